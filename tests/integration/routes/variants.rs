//! Routes with `when`, endpoints that are chosen by a hash or are Unix sockets, and clients that a
//! proxy in front names.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::time::Duration;

use crate::harness::client::{get, raw};
use crate::harness::toml::Toml;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;

const TEN: &str = "name = \"day\", algorithm = \"fixed_window\", quota = 10, period = \"1d\"";

fn responding(name: &str, when: &str) -> String {
    let respond = format!("respond = {{ status = 200, body = \"{name}\" }}");
    format!("name = \"{name}\"\npath = \"/*\"\n{when}\n{respond}")
}

#[tokio::test]
async fn the_first_route_whose_conditions_hold_takes_a_request() {
    let config = Toml::new()
        .route(&responding("beta", "when = { header.x-beta = \"*\" }"))
        .route(&responding("team", "when = { cookie.team = [\"red\", \"blue\"], query.v = \"2\" }"))
        .route(&responding("rest", ""));
    let weir = Weir::start(&config.text());
    let answer =
        async |target: &str, headers: &[(&str, &str)]| get(weir.http, target, headers).await.text();
    assert_eq!(answer("/", &[]).await, "rest");
    assert_eq!(answer("/", &[("x-beta", "")]).await, "beta");
    assert_eq!(answer("/?v=2", &[("cookie", "a=b; team=blue")]).await, "team");
    assert_eq!(answer("/?v=2", &[("cookie", "team=green")]).await, "rest");
    assert_eq!(answer("/?v=1", &[("cookie", "team=blue")]).await, "rest");
    assert_eq!(answer("/?v=2", &[("cookie", "team=blue"), ("x-beta", "1")]).await, "beta");
    for (route, count) in [("beta", 2), ("team", 1), ("rest", 3)] {
        let series = format!("weir_requests_total{{route=\"{route}\",code=\"200\"}}");
        assert_eq!(weir.metric(&series), count, "{route}");
    }
}

#[tokio::test]
async fn an_expression_is_matched_by_the_whole_value_whatever_the_spelling_of_a_path() {
    let config = Toml::new()
        .route(&responding("versioned", "when = { path = \"~/v[0-9]+/(users|@me)/[^/]+\" }"))
        .route(&responding("robot", "when = { header.user-agent = \"~(?i)(curl|wget)/.*\" }"))
        .route(&responding("rest", ""));
    let weir = Weir::start(&config.text());
    let answer =
        async |target: &str, headers: &[(&str, &str)]| get(weir.http, target, headers).await.text();
    for target in [
        "/v1/users/7",
        "/V22/Users/7/?x=y",
        "/v1/%75sers/7",
        "/v1/%40me/7;x=y",
        "/v1/x/../users/7",
        "/v1/@me/a%20b",
    ] {
        assert_eq!(answer(target, &[]).await, "versioned", "{target}");
    }
    for target in ["/", "/v1/users", "/v1/users/7/8", "/x/v1/users/7", "/va/users/7"] {
        assert_eq!(answer(target, &[]).await, "rest", "{target}");
    }
    assert_eq!(answer("/", &[("user-agent", "CURL/8")]).await, "robot");
    assert_eq!(answer("/", &[("user-agent", "not curl/8")]).await, "rest");
    // What is a slash for some upstreams and data for others.
    assert_eq!(get(weir.http, "/v1/users/7%2F8", &[]).await.status, 400);
}

#[tokio::test]
async fn letters_beyond_ascii_are_compared_as_they_are_written() {
    // `printf %s café | sha256sum`.
    let digest = "850f7dc43910ff890f8879c0ed26fe697c93a067ad93a7d50f466a7028a9bf4e";
    let config = Toml::new()
        .route(&responding("path", "when = { path = \"~/w/café/.*\" }"))
        .route(&responding("query", "when = { query.x = \"é\" }"))
        .route(&responding("header", "when = { header.x-a = [\"é\", \"~über(é|è)+\"] }"))
        .route(&responding("digest", &format!("when = {{ query.y = \"sha256:{digest}\" }}")))
        .route(&responding("rest", ""));
    let weir = Weir::start(&config.text());
    let answer = |target: &str, value: &str| {
        let request = format!(
            "GET {target} HTTP/1.1\r\nhost: a\r\nconnection: close\r\nx-a: {value}\r\n\r\n"
        );
        let reply = raw(weir.http, request.as_bytes(), Duration::from_secs(5));
        reply.rsplit("\r\n").next().unwrap_or_default().to_owned()
    };
    for (target, value, expected) in [
        ("/w/caf%C3%A9/x", "", "path"),
        ("/W/CAF%c3%89/x", "", "path"),
        ("/w/café/x", "", "path"),
        ("/w/cafe/x", "", "rest"),
        ("/w/caf%E9/x", "", "rest"),
        ("/?x=%C3%A9", "", "query"),
        ("/?x=e", "", "rest"),
        ("/", "é", "header"),
        ("/", "überéèé", "header"),
        ("/", "übere", "rest"),
        ("/?y=caf%C3%A9", "", "digest"),
    ] {
        assert_eq!(answer(target, value), expected, "{target} {value}");
    }
}

#[tokio::test]
async fn a_redirect_under_conditions_does_not_lead_to_itself() {
    for (from, to) in [("/docs", "/docs/"), ("/docs/", "/docs")] {
        let redirect = format!(
            "name = \"moved\"\npath = \"{from}\"\nwhen = {{ header.x-new = \"*\" }}\n\
             redirect = \"{to}\""
        );
        let rest = responding("rest", "").replace("/*", from);
        let weir = Weir::start(&Toml::new().route(&redirect).route(&rest).text());
        let status = async |target: &str| get(weir.http, target, &[("x-new", "")]).await.status;
        assert_eq!((status(from).await, status(to).await), (308, 200), "{from}");
        assert_eq!(status(&format!("{from};x")).await, 308, "{from}");
    }
}

#[tokio::test]
async fn a_variant_without_limits_leaves_other_spellings_to_a_limited_route() {
    let upstream = crate::harness::upstream::Upstream::start();
    let route = |path: &str, more: &str| format!("path = \"{path}\"\nupstream = \"api\"\n{more}");
    let free = "name = \"free\"\nwhen = { header.x-free = \"*\" }";
    let config = Toml::new()
        .upstream("api", &upstream.url(), "")
        .policy("public", &[TEN])
        .route(&route("/static/*", free))
        .route(&route("/static/*", "name = \"static\"\npolicy = \"public\""))
        .route(&route("/*", "name = \"all\"\npolicy = \"public\""));
    let weir = Weir::start(&config.text());
    for (target, route) in [
        ("/static/x", "free"),
        ("/static/x;y", "free"),
        ("/STATIC/x", "all"),
        ("/%53tatic/x", "all"),
    ] {
        let series = format!("weir_requests_total{{route=\"{route}\",code=\"200\"}}");
        let before = weir.metric(&series);
        assert_eq!(get(weir.http, target, &[("x-free", "")]).await.status, 200);
        assert_eq!(weir.metric(&series), before + 1, "{target} is for {route}");
    }
    let escaped =
        async |weir: &Weir| get(weir.http, "/STATIC/a%2Fb", &[("x-free", "")]).await.status;
    assert_eq!(escaped(&weir).await, 200, "the policy reads nothing of the path");
    let by_path = format!(
        "[policies.pages]\nuse = \"keyed\"\nconfig.limits = [{{ {TEN}, key = \"{{path}}\" }}]"
    );
    let config = config.more(&by_path).text().replace("policy = \"public\"", "policy = \"pages\"");
    let weir = Weir::start(&config);
    assert_eq!(escaped(&weir).await, 400, "the key of the limited route depends on the slash");
    assert_eq!(get(weir.http, "/STATIC/a", &[("x-free", "")]).await.status, 200);
}

#[tokio::test]
async fn a_share_of_the_senders_goes_to_a_canary_and_stays_there() {
    let by = |share: &str| format!("when = {{ share = {share}, by = \"header.x-user\" }}");
    let config = |share: &str| {
        Toml::new().route(&responding("canary", &by(share))).route(&responding("stable", "")).text()
    };
    let weir = Weir::start(&config("20"));
    let canaries = async || {
        let mut taken = BTreeSet::new();
        for user in 0..300 {
            let user = format!("user-{user}");
            if get(weir.http, "/", &[("x-user", &user)]).await.text() == "canary" {
                taken.insert(user);
            }
        }
        taken
    };
    let first = canaries().await;
    assert!((35..=90).contains(&first.len()), "{}", first.len());
    assert_eq!(canaries().await, first);
    assert_eq!(get(weir.http, "/", &[]).await.text(), "stable", "nobody in particular");
    weir.reload(&config("40"), "applied");
    let more = canaries().await;
    assert!(more.is_superset(&first) && more.len() > first.len(), "{}", more.len());
}

#[tokio::test]
async fn a_variant_charges_the_counters_of_its_policy_or_its_own() {
    let upstream = Upstream::start();
    let route = |name: &str, more: &str| {
        format!("name = \"{name}\"\npath = \"/*\"\nupstream = \"api\"\npolicy = \"public\"\n{more}")
    };
    let config = Toml::new()
        .upstream("api", &upstream.url(), "")
        .policy("public", &[TEN])
        .route(&route("rest", ""))
        .route(&route("same", "when.header.x-beta = \"1\""))
        .route(&route("own", "when.header.x-beta = \"2\"\nlimit_scope = \"route\""));
    let weir = Weir::start(&config.text());
    let left = async |beta: &str| get(weir.http, "/", &[("x-beta", beta)]).await.remaining("day");
    assert_eq!((left("0").await, left("1").await, left("2").await), (9, 8, 9));
}

#[tokio::test]
async fn a_limit_that_is_not_shown_refuses_without_its_name() {
    let hidden = format!("{}, show = false", TEN.replace("10", "1"));
    let config = Toml::new()
        .policy(
            "public",
            &["name = \"minute\", algorithm = \"gcra\", quota = 60, period = \"1m\"", &hidden],
        )
        .route("path = \"/*\"\npolicy = \"public\"\nrespond = { status = 200 }");
    let weir = Weir::start(&config.text());
    let first = get(weir.http, "/", &[]).await;
    let names: Vec<_> = first.limits().into_keys().collect();
    assert_eq!((first.status, names), (200, vec!["minute".to_owned()]));
    assert!(!first.header("ratelimit-policy").contains("day"));
    let refused = get(weir.http, "/", &[]).await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.json()["violated-policies"], serde_json::json!([]));
    assert!(!refused.header("retry-after").is_empty());
    assert_eq!(weir.metric("weir_limit_refusals_total{policy=\"public\",limit=\"day\"}"), 1);
}

#[tokio::test]
async fn an_address_has_any_spelling() {
    let same = "when = { client-ip = [\"2001:DB8:0::1\", \"::ffff:127.0.0.1\"] }";
    let config = Toml::new()
        .server("trusted_proxies = [\"127.0.0.1\"]")
        .route(&responding("some", same))
        .route(&responding("rest", "").replace("200", "404"));
    let weir = Weir::start(&config.text());
    for (client, status) in [("2001:db8::1", 200), ("2001:db8::2", 404)] {
        let reply = get(weir.http, "/", &[("x-forwarded-for", client)]).await;
        assert_eq!(reply.status, status, "{client}");
    }
    assert_eq!(get(weir.http, "/", &[]).await.status, 200);
}

#[test]
fn what_is_wrong_with_a_condition_is_said_where_it_is() {
    let check = |when: &str, rest: &str| {
        let config = Toml::new().route(&responding("some", when)).route(rest);
        let (code, _, errors) = Weir::check(Weir::build(&config.text()));
        assert_eq!(code, 78, "{errors}");
        errors
    };
    let rest = responding("rest", "");
    for (when, expected) in [
        ("when = { heade.x = \"1\" }", "the unknown key \"heade.x\""),
        ("when = { body.model = \"1\" }", "except those of bodies"),
        ("when = { by = \"client-ip\" }", "without a `share`"),
        ("when = { header = {} }", "no condition"),
        ("when = { header.x = [] }", "one value or more"),
        ("when = { path = \"/a\" }", "a route with this path"),
        ("when = {}", "no condition"),
        ("when = { header.x = \"~(a\" }", "a regular expression: unclosed group"),
        ("when = { header.x = \"~a{1000}{1000}\" }", "a smaller regular expression"),
        ("when = { share = 0 }", "a percentage"),
        ("when = { share = \"5.123%\" }", "a percentage"),
        ("when = { share = 5, by = \"nobody\" }", "a fact such as"),
        ("when = { path.id = \"1\" }", "never have"),
        ("when = { path = \"~/caf%C3%A9/.*\" }", "without escapes but `%2F`"),
        ("when = { path = \"~/caf[éè]/.*\" }", "without `é` between brackets"),
        ("when = { header.x = \"~[é]\" }", "without `é` between brackets"),
        ("when = { header.x = 1 }", "a text"),
        ("when = { client-ip = \"10.0.0.0/8\" }", "for a network a regular expression"),
        ("when = { client-ip = [\"10.0.0.1\", \"me\"] }", "\"me\""),
    ] {
        let errors = check(when, &rest);
        assert!(errors.contains(expected), "{when}: {errors}");
    }
    let other = rest.replace("/*", "/other/*");
    let errors = check("when = { header.x = \"1\" }", &other);
    assert!(errors.contains("without `when`"), "{errors}");
}

#[tokio::test]
async fn a_hash_keeps_a_user_at_one_endpoint() {
    let (one, two) = (Upstream::start(), Upstream::start());
    let config = Toml::new()
        .more(&format!(
            "[upstreams.api]\nendpoints = [{{ url = \"{}\", weight = 2 }}, \"{}\"]\nhash = \"header.x-user\"",
            one.url(),
            two.url()
        ))
        .route("path = \"/*\"\nupstream = \"api\"");
    let weir = Weir::start(&config.text());
    for user in 0..60 {
        for _ in 0..2 {
            get(weir.http, "/", &[("x-user", &format!("user-{user}"))]).await;
        }
    }
    let users = |upstream: &Upstream| -> BTreeSet<String> {
        upstream.seen().iter().filter_map(|seen| seen.header("x-user")).collect()
    };
    let (at_one, at_two) = (users(&one), users(&two));
    assert!(at_one.is_disjoint(&at_two), "{at_one:?} {at_two:?}");
    assert_eq!(at_one.len() + at_two.len(), 60);
    assert!(at_one.len() >= 20 && at_two.len() >= 5, "{} {}", at_one.len(), at_two.len());
}

#[tokio::test]
async fn an_upstream_may_be_a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("api.sock");
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        // A thread for each, as each worker of the proxy keeps a connection of its own.
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                while let Some(Ok(line)) = lines.next() {
                    if line.is_empty() {
                        let reply = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nunix";
                        stream.write_all(reply).unwrap();
                    }
                }
            });
        }
    });
    let url = format!("unix:{}", path.display());
    let config = Toml::new().upstream("api", &url, "").route("path = \"/*\"\nupstream = \"api\"");
    let weir = Weir::start(&config.text());
    for _ in 0..3 {
        let reply = get(weir.http, "/", &[]).await;
        assert_eq!((reply.status, reply.text().as_str()), (200, "unix"));
    }
    let status = weir.admin_page("/status").json();
    assert_eq!(status["upstreams"]["api"][0]["address"], url);
}

#[test]
fn whom_a_trusted_proxy_names_is_counted() {
    let upstream = Upstream::start();
    let config = Toml::new()
        .server("trusted_proxies = [\"127.0.0.1\"]")
        .upstream("api", &upstream.url(), "")
        .policy("public", &[&TEN.replace("10", "1")])
        .route("path = \"/*\"\nupstream = \"api\"\npolicy = \"public\"")
        .text()
        .replacen("[[listeners]]\n", "[[listeners]]\nproxy_protocol = true\n", 1);
    let weir = Weir::start(&config);
    let ask = |client: &str| {
        let text = format!(
            "PROXY TCP4 {client} 198.51.100.1 5555 80\r\nGET / HTTP/1.1\r\nhost: a\r\n\
             x-forwarded-for: 192.0.2.99\r\nconnection: close\r\n\r\n"
        );
        let reply = raw(weir.http, text.as_bytes(), Duration::from_secs(10));
        reply.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    assert_eq!(
        (ask("192.0.2.1"), ask("192.0.2.1"), ask("192.0.2.2")),
        ("200".into(), "429".into(), "200".into())
    );
    // The client that was named is no trusted proxy, so its own field counts for nothing.
    assert_eq!(upstream.last().header("x-forwarded-for").as_deref(), Some("192.0.2.2"));
}
