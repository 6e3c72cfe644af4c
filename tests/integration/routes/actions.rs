//! What a route does besides deciding and forwarding, through a running proxy: files that are
//! reloaded, trailers, interim responses.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::mpsc;

use bytes::Bytes;

use crate::harness::client::{Client, get, raw};
use crate::harness::guest;
use crate::harness::pki::Pki;
use crate::harness::toml::{Toml, simple};
use crate::harness::upstream::Upstream;
use crate::harness::weir::{Weir, replace};
use crate::harness::{TIMEOUT, eventually_async};

const ONE: &str = "name = \"day\", algorithm = \"fixed_window\", quota = 1, period = \"1d\"";
const MANY: &str = "name = \"day\", algorithm = \"fixed_window\", quota = 1000, period = \"1d\"";

#[tokio::test]
async fn paths_hosts_and_fields_are_changed_for_the_upstream_and_the_client() {
    let upstream = Upstream::start();
    upstream.answer(200, &[("server", "secret/1.0"), ("x-kept", "1")], "x");
    let config = Toml::new().upstream("api", &upstream.url(), "").route(
        "path = \"/api/{tenant}/*\"\nupstream = \"api\"\nrewrite = \"/t/{tenant}/v1/*\"\nupstream_host = \"inner.example\"\n\
         request_headers = { set = { X-Env = \"prod\" }, remove = [\"cookie\"] }\n\
         response_headers = { set = { X-Frame-Options = \"DENY\" }, remove = [\"server\"] }",
    );
    let weir = Weir::start(&config.text());
    let reply =
        get(weir.http, "/api/acme/users/7?x=/api", &[("cookie", "a=1"), ("x-env", "forged")]).await;
    assert_eq!(
        (reply.status, reply.header("x-frame-options").as_str(), reply.header("x-kept").as_str()),
        (200, "DENY", "1")
    );
    assert_eq!(reply.header("server"), "");
    let seen = upstream.only();
    assert_eq!(seen.target, "/t/acme/v1/users/7?x=/api");
    assert_eq!(
        (seen.header("host").as_deref(), seen.header("x-env").as_deref()),
        (Some("inner.example"), Some("prod"))
    );
    assert_eq!(
        (seen.header("cookie"), seen.header("x-forwarded-host")),
        (None, Some(weir.http.to_string()))
    );
}

#[tokio::test]
async fn a_redirect_has_the_parameters_the_rest_and_the_query() {
    let config = Toml::new()
        .route("path = \"/old/{id}\"\nredirect = \"https://www.example.com/users/{id}\"")
        .route("path = \"/docs/*\"\nredirect = { to = \"/help/*\", status = 301 }")
        .route("path = \"/all/*\"\nredirect = \"https://www.example.com\"");
    let weir = Weir::start(&config.text());
    let here = format!("http://{}", weir.http);
    for (target, status, location) in [
        ("/old/a%20b?x=1", 308, "https://www.example.com/users/a%20b?x=1".to_owned()),
        ("/docs/a/b?c", 301, format!("{here}/help/a/b?c")),
        ("/docs", 301, format!("{here}/help")),
        ("/all/a?b", 308, "https://www.example.com/all/a?b".to_owned()),
        // Not another host.
        ("/docs//evil.example/x", 301, format!("{here}/help/evil.example/x")),
    ] {
        let reply = get(weir.http, target, &[]).await;
        assert_eq!((reply.status, reply.header("location")), (status, location), "{target}");
        assert!(reply.body.is_empty());
    }
    let forged = raw(
        weir.http,
        b"GET /docs/x HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
        TIMEOUT,
    );
    assert!(forged.to_lowercase().contains("location: http://evil.example/help/x"), "{forged}");
    for (route, expected) in [
        ("redirect = \"new\"", "a path such as"),
        ("redirect = \"/new/{other}\"", "{other}"),
        ("redirect = { to = \"/new\", status = 200 }", "a whole number from 300 to 399"),
        ("redirect = \"/new\"\nrespond = { status = 200 }", "one of the three"),
        ("redirect = \"/new\"\nupstream_host = \"a\"", "a route with an `upstream`"),
    ] {
        let config = Toml::new().route(&format!("path = \"/old/{{id}}\"\n{route}"));
        let (code, _, errors) = Weir::check(Weir::build(&config.text()));
        assert!(code == 78 && errors.contains(expected), "{route}: {errors}");
    }
}

#[tokio::test]
async fn a_file_takes_a_route_out_of_service_and_back() {
    let config = Toml::new()
        .policy("public", &[MANY])
        .route(
            "name = \"shop\"\npath = \"/shop/*\"\npolicy = \"public\"\nmaintenance = \"shop.off\"\n\
             respond = { status = 200 }\n\
             refusals = [{ status = 503, body = \"back soon\" }]",
        )
        .route("path = \"/*\"\nrespond = { status = 204 }");
    let weir = Weir::start(&config.text());
    let status = async |target| get(weir.http, target, &[]).await.status;
    assert_eq!((status("/shop/a").await, status("/").await), (200, 204));
    std::fs::write(weir.folder().join("shop.off"), "").unwrap();
    weir.await_reloads("applied", 1);
    let closed = get(weir.http, "/shop/a", &[]).await;
    assert_eq!((closed.status, closed.text().as_str()), (503, "back soon"));
    assert_eq!(status("/").await, 204);
    std::fs::remove_file(weir.folder().join("shop.off")).unwrap();
    weir.await_reloads("applied", 2);
    let open = get(weir.http, "/shop/a", &[]).await;
    assert_eq!((open.status, open.remaining("day")), (200, 998), "nothing was charged meanwhile");
    assert_eq!(weir.metric("weir_route_refusals_total{route=\"shop\",cause=\"maintenance\"}"), 1);
}

#[tokio::test]
async fn a_route_goes_out_of_service_and_back_while_the_configuration_is_broken() {
    let config = Toml::new()
        .route("path = \"/shop/*\"\nmaintenance = \"shop.off\"\nrespond = { status = 200 }")
        .route("path = \"/*\"\nrespond = { body_file = \"page\" }");
    let weir = Weir::build(&config.text()).file("page", b"here").start();
    let in_folder = |name: &str| weir.folder().join(name);
    let status = async || get(weir.http, "/shop/a", &[]).await.status;
    let is = async |expected: u16| {
        eventually_async("the file is followed", async || {
            let found = status().await;
            if found == expected { Ok(()) } else { Err(found.to_string()) }
        })
        .await;
    };
    let whole = std::fs::read_to_string(in_folder("proxy.toml")).unwrap();
    let breaks: [&dyn Fn(); 3] = [
        &|| std::fs::remove_file(in_folder("page")).unwrap(),
        // Nobody can tell from it which files it names.
        &|| replace(&in_folder("proxy.toml"), whole.replace("[[routes]]", "x = \"\"\"").as_bytes()),
        &|| std::fs::remove_file(in_folder("proxy.toml")).unwrap(),
    ];
    for (number, break_it) in (1..).zip(breaks) {
        let refused = weir.metric("weir_config_reloads_total{result=\"refused\"}");
        break_it();
        weir.await_reloads("refused", refused + 1);
        assert_eq!(status().await, 200, "{number}");
        std::fs::write(in_folder("shop.off"), "").unwrap();
        is(503).await;
        std::fs::remove_file(in_folder("shop.off")).unwrap();
        is(200).await;
    }
    assert_eq!(get(weir.http, "/", &[]).await.text(), "here", "the one from before serves");
}

/// The first listener is that of the harness; it has the name `public`.
fn two_listeners(upstream: &Upstream) -> Toml {
    let routes = [
        "path = \"/*\"\nrespond = { status = 204 }\nlisteners = [\"public\"]",
        "path = \"/*\"\nupstream = \"api\"\nlisteners = [\"private\"]\nname = \"inside\"",
        "path = \"/both\"\nupstream = \"api\"",
    ];
    let config = Toml::new().upstream("api", &upstream.url(), "").listener("name = \"public\"");
    let config = config.more("[[listeners]]\naddress = \"127.0.0.1:0\"\nname = \"private\"");
    routes.iter().fold(config, |config, route| config.route(route))
}

#[tokio::test]
async fn a_route_is_on_the_listeners_that_it_names() {
    let upstream = Upstream::start();
    let text = two_listeners(&upstream).text();
    let weir = Weir::start(&text);
    let all = weir.listeners();
    let (mut public, mut private) =
        (Client::connect(all[0]).await.unwrap(), Client::connect(all[1]).await.unwrap());
    let mut statuses = async |path| {
        let both = (public.get(path, &[]).await, private.get(path, &[]).await);
        (both.0.unwrap().status, both.1.unwrap().status)
    };
    assert_eq!(statuses("/x").await, (204, 200));
    assert_eq!(statuses("/both").await, (200, 200));
    // The names change places, and the next request on either connection goes by the new ones.
    let swapped = text.replace("name = \"public\"", "name = \"-\"");
    let swapped = swapped.replace("name = \"private\"", "name = \"public\"");
    weir.rewrite(&swapped.replace("name = \"-\"", "name = \"private\""));
    weir.await_reloads("applied", 1);
    assert_eq!(statuses("/x").await, (200, 204));
    // A listener without a name has the routes that name none.
    let unnamed = text.replace("name = \"private\"", "");
    weir.rewrite(
        &unnamed
            .replace("[\"private\"]", "[\"public\"]")
            .replace("path = \"/*\"\nup", "path = \"/in/*\"\nup"),
    );
    weir.await_reloads("applied", 2);
    assert_eq!(statuses("/x").await, (204, 404));
    assert_eq!(statuses("/in/x").await, (200, 404));
    assert_eq!(statuses("/both").await, (200, 200));
    weir.rewrite(&text.replace("[\"private\"]", "[\"privat\"]"));
    weir.await_reloads("refused", 1);
    let status = weir.admin_page("/status").text();
    assert!(status.contains("the name of a listener that the file defines"), "{status}");
}

#[tokio::test]
async fn a_fields_value_may_be_a_secret_that_nothing_shows() {
    let upstream = Upstream::start();
    let config = Toml::new().upstream("api", &upstream.url(), "").route(
        "path = \"/*\"\nupstream = \"api\"\nrequest_headers = { set_file = { Authorization = \"upstream.key\" }, set_env = { X-Key = \"UPSTREAM_KEY\" } }",
    );
    let weir = Weir::build(&config.text())
        .file("upstream.key", b"Bearer s3cret\n")
        .environment("UPSTREAM_KEY", "s3cret too")
        .start();
    assert_eq!(get(weir.http, "/", &[("authorization", "Bearer client")]).await.status, 200);
    let seen = upstream.last();
    assert_eq!(
        (seen.header("authorization").as_deref(), seen.header("x-key").as_deref()),
        (Some("Bearer s3cret"), Some("s3cret too"))
    );
    let before = weir.reloads("applied");
    replace(&weir.folder().join("upstream.key"), b"Bearer s3cret renewed\n");
    weir.await_reloads("applied", before + 1);
    assert_eq!(get(weir.http, "/", &[]).await.status, 200);
    assert_eq!(upstream.last().header("authorization").as_deref(), Some("Bearer s3cret renewed"));
    // An invalid value is an error whose message does not show the value.
    let before = weir.reloads("refused");
    replace(&weir.folder().join("upstream.key"), b"Bearer s3cret\nin two lines\n");
    weir.await_reloads("refused", before + 1);
    weir.output().await_text("set_file.Authorization");
    weir.output().await_text("a value that is not shown");
    let log = weir.output().tail(1_000);
    assert!(
        !log.contains("s3cret") && !weir.admin_page("/status").text().contains("s3cret"),
        "{log}"
    );
}

#[tokio::test]
async fn files_of_answers_and_refusals_are_watched() {
    let upstream = Upstream::start();
    let config = simple(&upstream.url(), &[ONE])
        .route("path = \"/robots.txt\"\nrespond = { body_file = \"robots.txt\" }")
        .more("[[refusals]]\nstatus = [429, 404]\ncontent_type = \"application/json\"\nbody_file = \"refused.json\"");
    let weir = Weir::build(&config.text())
        .file("robots.txt", b"User-agent: *\n")
        .file(
            "refused.json",
            b"{\"error\": {\"code\": {status}, \"wait\": {retry_after}, \"by\": \"{limit}\"}}",
        )
        .start();
    assert_eq!(get(weir.http, "/robots.txt", &[]).await.text(), "User-agent: *\n");
    assert_eq!(get(weir.http, "/", &[]).await.status, 200);
    let refused = get(weir.http, "/", &[]).await;
    let wait: i64 = refused.header("retry-after").parse().unwrap();
    assert_eq!(
        refused.json(),
        serde_json::json!({"error": {"code": 429, "wait": wait, "by": "day"}})
    );
    let before = weir.reloads("applied");
    replace(&weir.folder().join("refused.json"), b"{\"sorry\": \"{title}\"}");
    weir.await_reloads("applied", before + 1);
    assert_eq!(
        get(weir.http, "/", &[]).await.json(),
        serde_json::json!({"sorry": "Too Many Requests"})
    );
    // A page that can't be filled in leaves the running one in place.
    let before = weir.reloads("refused");
    replace(&weir.folder().join("refused.json"), b"{\"sorry\": {titel}}");
    weir.await_reloads("refused", before + 1);
    assert_eq!(
        get(weir.http, "/", &[]).await.json(),
        serde_json::json!({"sorry": "Too Many Requests"})
    );
    weir.output().await_text("{titel}");
}

#[tokio::test]
async fn a_script_of_an_allowed_origin_may_read_a_429_and_its_preflights_are_free() {
    let upstream = Upstream::start();
    let config = Toml::new().upstream("api", &upstream.url(), "").policy("public", &[ONE]).route(
        "path = \"/*\"\nmethods = [\"GET\", \"PUT\"]\nupstream = \"api\"\npolicy = \"public\"\ncors.origins = [\"https://app.example\"]",
    );
    let weir = Weir::start(&config.text());
    let mut client = Client::connect(weir.http).await.unwrap();
    let origin = ("origin", "https://app.example");
    for _ in 0..5 {
        let preflight = client
            .send("OPTIONS", "/", &[origin, ("access-control-request-method", "PUT")], Bytes::new())
            .await
            .unwrap();
        assert_eq!((preflight.status, preflight.header("ratelimit").as_str()), (200, ""));
    }
    assert_eq!(
        client.get("/", &[origin]).await.unwrap().header("access-control-allow-origin"),
        "",
        "the upstream has not allowed it"
    );
    let refused = client.get("/", &[origin]).await.unwrap();
    assert_eq!(
        (refused.status, refused.header("access-control-allow-origin").as_str()),
        (429, "https://app.example")
    );
    assert!(refused.header("access-control-expose-headers").contains("Retry-After"), "{refused:?}");
    assert_eq!(
        client
            .get("/", &[("origin", "https://evil.example")])
            .await
            .unwrap()
            .header("access-control-allow-origin"),
        ""
    );
}

/// An upstream that answers one request with these bytes, and returns everything that it received:
/// the head, and what follows up to `end`.
pub(crate) fn answering(
    answer: &'static str,
    end: &'static str,
) -> (SocketAddr, mpsc::Receiver<String>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut reader = BufReader::new(&stream);
            let mut got = String::new();
            while !got.ends_with(end) && reader.read_line(&mut got).is_ok_and(|read| read > 0) {}
            let _ = tell.send(got);
            let _ = (&stream).write_all(answer.as_bytes());
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = reader.read_to_end(&mut Vec::new());
        }
    });
    (address, told)
}

#[test]
fn trailers_pass_both_ways_where_they_are_announced_and_say_nothing_that_must_be_known_before() {
    let reply = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x-sum, set-cookie\r\n\r\n2\r\nok\r\n0\r\nx-sum: 7\r\nset-cookie: a=1\r\n\r\n";
    let (address, told) = answering(reply, "\r\nx-end: 1\r\n\r\n");
    let weir = Weir::start(&simple(&format!("http://{address}"), &[MANY]).text());
    let request = "POST / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nTransfer-Encoding: chunked\r\nTrailer: x-sum, authorization, x-end\r\nConnection: close, te\r\n\r\n\
                   2\r\nhi\r\n0\r\nx-sum: 6\r\nauthorization: forged\r\nx-end: 1\r\n\r\n";
    let reply = raw(weir.http, request.as_bytes(), TIMEOUT).to_lowercase();
    assert!(
        reply.starts_with("http/1.1 200 ")
            && reply.contains("\r\n0\r\nx-sum: 7\r\n\r\n")
            && !reply.contains("a=1"),
        "{reply}"
    );
    let got = told.recv_timeout(TIMEOUT).unwrap().to_lowercase();
    assert!(
        got.contains("\r\nte: trailers\r\n")
            && got.contains("\r\n0\r\n")
            && got.contains("x-sum: 6"),
        "{got}"
    );
    assert!(!got.contains("forged"), "{got}");
}

#[test]
fn a_policy_may_charge_what_a_trailer_says() {
    let reply = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x-cost\r\n\r\n2\r\nok\r\n0\r\nx-cost: 7\r\n\r\n";
    let (address, _told) = answering(reply, "\r\n\r\n");
    let config = Toml::new()
        .upstream("api", &format!("http://{address}"), "")
        .more(
            "[policies.guest]\nwasm = \"guest.wasm\"\nconfig.response_facts = [\"trailer.x-cost\"]",
        )
        .route("path = \"/*\"\nupstream = \"api\"\npolicy = \"guest\"");
    let module = std::fs::read(guest::misbehaving()).expect("the module");
    let weir = Weir::build(&config.text()).file("guest.wasm", &module).start();
    for (request, left) in [(1, 99), (2, 91), (3, 83)] {
        // The client itself asks for no trailers.
        let reply = raw(
            weir.http,
            b"GET /?trailer HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
            TIMEOUT,
        )
        .to_lowercase();
        assert!(reply.starts_with("http/1.1 200 ") && !reply.contains("x-cost: 7"), "{reply}");
        assert!(reply.contains(&format!("\r\nratelimit: \"a\";r={left};")), "{request}: {reply}");
    }
}

#[test]
fn an_interim_reply_says_nothing_that_a_reply_may_not_say() {
    let reply = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\nConnection: x-hop\r\nX-Hop: 1\r\nUpgrade: h2c\r\n\
                 Weir-Degraded: store\r\nX-Request-Id: foreign\r\nServer: secret\r\nContent-Length: 9\r\n\r\n\
                 HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let (address, _told) = answering(reply, "\r\n\r\n");
    let config = Toml::new()
        .upstream("api", &format!("http://{address}"), "")
        .route("path = \"/*\"\nupstream = \"api\"\nresponse_headers = { remove = [\"Server\"], set = { X-Set = \"ours\" } }");
    let weir = Weir::start(&config.text());
    let reply = raw(weir.http, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", TIMEOUT);
    let (interim, rest) = reply.split_once("\r\n\r\n").expect("two heads");
    let mut lines: Vec<String> = interim.lines().map(str::to_lowercase).collect();
    lines.sort();
    assert_eq!(lines, ["http/1.1 103 early hints", "link: </a.css>", "x-set: ours"], "{reply}");
    assert!(rest.starts_with("HTTP/1.1 200 OK"), "{reply}");
}

#[test]
fn of_an_upstreams_interim_replies_103_alone_is_passed_on_and_only_to_a_client_that_knows_it() {
    let reply = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let (address, _told) = answering(reply, "\r\n\r\n");
    let weir = Weir::start(&simple(&format!("http://{address}"), &[MANY]).text());
    for (request, early) in [
        ("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", true),
        ("GET / HTTP/1.0\r\n\r\n", false),
    ] {
        let reply = raw(weir.http, request.as_bytes(), TIMEOUT);
        assert!(
            reply.contains(" 200 OK\r\n")
                && reply.ends_with("\r\n\r\nok")
                && !reply.contains(" 102 "),
            "{reply}"
        );
        assert_eq!(
            reply.starts_with(
                "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\nHTTP/1.1 200 OK\r\n"
            ),
            early,
            "{reply}"
        );
        // With its spaces: a request's id is random, and may have these digits.
        assert_eq!(reply.contains(" 103 "), early, "{reply}");
    }
}

#[test]
fn an_old_client_that_expects_100_gets_none_and_a_refused_one_neither() {
    let upstream = Upstream::start();
    let weir = Weir::start(&simple(&upstream.url(), &[ONE]).text());
    let old = raw(
        weir.http,
        b"POST / HTTP/1.0\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\nhi",
        TIMEOUT,
    );
    assert!(old.contains(" 200 OK\r\n") && !old.contains("100 Continue"), "{old}");
    assert_eq!(upstream.only().body, "hi");
    let refused = raw(
        weir.http,
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n",
        TIMEOUT,
    );
    assert!(refused.starts_with("HTTP/1.1 429 ") && !refused.contains("100 Continue"), "{refused}");
}

/// Each block of docs/routes.md: a complete one with the files that it names, or lines of a route.
#[test]
fn the_documentations_examples_have_no_errors() {
    let blocks: Vec<&str> = include_str!("../../../docs/routes.md")
        .split("```toml\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap())
        .collect();
    assert!(blocks.len() >= 6, "{blocks:?}");
    let pki = Pki::new();
    let identity = pki.server(&["api.example"]);
    for block in blocks {
        let config =
            Toml::new().upstream("api", "http://127.0.0.1:9", "").policy("public", &[MANY]);
        let whole = block.starts_with('[');
        let config = if whole {
            config.more(block)
        } else {
            config.route(&format!("path = \"/*\"\nupstream = \"api\"\n{block}"))
        };
        let files = Weir::build(&config.text())
            .file("robots.txt", b"")
            .file("busy.html", b"<p>{title}</p>")
            .file("partners.pem", pki.ca.as_bytes())
            .identity("api", &identity);
        let (code, out, err) = Weir::check(files);
        assert_eq!(code, 0, "{block}\n{out}{err}");
    }
}
