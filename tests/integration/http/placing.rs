//! Which of several endpoints a request goes to: by a cookie, by zones and ranks. And connections
//! that say which client they are for.

use rustix::process::Signal;

use crate::harness::client::{Reply, get};
use crate::harness::eventually_async;
use crate::harness::toml::Toml;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;

/// A process that answers every request with `text`.
fn answering(text: &str) -> Weir {
    let route = format!("path = \"/*\"\nrespond = {{ status = 200, body = \"{text}\" }}");
    Weir::start(&Toml::new().route(&route).text())
}

/// A proxy in front of these endpoints.
fn in_front(endpoints: &[String], more: &str) -> Toml {
    let upstream = format!("[upstreams.api]\nendpoints = [{}]\n{more}", endpoints.join(", "));
    Toml::new().more(&upstream).route("path = \"/*\"\nupstream = \"api\"")
}

fn at(weir: &Weir, more: &str) -> String {
    format!("{{ url = \"http://{}\"{more} }}", weir.http)
}

/// What is set of the cookie, and its value.
fn cookie(reply: &Reply) -> Option<(String, String)> {
    let set = reply.headers.get("set-cookie")?.to_str().ok()?.to_owned();
    let value = set.split(';').next()?.strip_prefix("server=")?.to_owned();
    Some((set, value))
}

#[tokio::test]
async fn a_client_comes_back_to_the_endpoint_that_its_cookie_names() {
    let (one, mut two) = (answering("one"), answering("two"));
    let sticky = "sticky = { cookie = \"server\", max_age = \"1h\" }";
    let weir = Weir::start(&in_front(&[at(&one, ""), at(&two, "")], sticky).text());
    let send = async |value: &str| {
        get(weir.http, "/", &[("cookie", &format!("a=b; server={value}"))]).await
    };
    let first = get(weir.http, "/", &[]).await;
    let (set, _) = cookie(&first).expect("a cookie");
    assert!(set.ends_with("; Path=/; HttpOnly; SameSite=Lax; Max-Age=3600"), "{set}");
    // Without the cookie, both get requests.
    let value = eventually_async("the other one answers as well", async || {
        let reply = get(weir.http, "/", &[]).await;
        let (_, value) = cookie(&reply).expect("a cookie");
        if reply.text() == "two" { Ok(value) } else { Err(reply.text()) }
    })
    .await;
    for _ in 0..20 {
        let reply = send(&value).await;
        assert_eq!((reply.text().as_str(), cookie(&reply)), ("two", None));
    }
    for nobody in ["", "0", "ffffffffffffffff", "two"] {
        assert!(cookie(&send(nobody).await).is_some(), "{nobody:?} names no endpoint");
    }
    two.signal(Signal::KILL);
    two.exit();
    let reply = send(&value).await;
    let (_, moved) = cookie(&reply).expect("another cookie");
    assert_eq!((reply.text().as_str(), moved == value), ("one", false));
    assert_eq!(cookie(&send(&moved).await), None);
}

#[tokio::test]
async fn a_routes_rules_do_not_touch_the_cookie_that_names_the_endpoint() {
    let upstream = Upstream::start();
    upstream.answer(200, &[("set-cookie", "session=1")], "");
    let endpoint = format!("\"{}\"", upstream.url());
    for rules in ["remove = [\"set-cookie\"]", "set = { Set-Cookie = \"server=x\" }"] {
        let sticky = "[upstreams.api]\nsticky = { cookie = \"server\" }";
        let config = Toml::new()
            .more(&format!("{sticky}\nendpoints = [{endpoint}]"))
            .route(&format!("path = \"/*\"\nupstream = \"api\"\nresponse_headers = {{ {rules} }}"));
        let weir = Weir::start(&config.text());
        let reply = get(weir.http, "/", &[]).await;
        let all: Vec<_> = reply.headers.get_all("set-cookie").iter().collect();
        let ours = all.last().and_then(|value| value.to_str().ok()).unwrap_or_default();
        assert!(ours.starts_with("server=") && ours.contains("; HttpOnly"), "{rules}: {all:?}");
        assert!(!all.iter().any(|value| value.as_bytes() == b"session=1"), "{rules}: {all:?}");
    }
}

#[tokio::test]
async fn requests_stay_in_the_zone_and_away_from_backups_while_they_can() {
    let (mut near, mut far, backup) = (answering("near"), answering("far"), answering("backup"));
    let endpoints = [
        at(&backup, ", backup = true"),
        at(&far, ", zone = \"there\""),
        at(&near, ", zone = \"here\""),
    ];
    let config = in_front(&endpoints, "").server("zone_env = \"ZONE_OF_THE_TEST\"");
    let weir = Weir::build(&config.text()).environment("ZONE_OF_THE_TEST", "here").start();
    let all = async |expected: &str| {
        for _ in 0..20 {
            let reply = get(weir.http, "/", &[]).await;
            assert_eq!((reply.status, reply.text().as_str()), (200, expected));
        }
    };
    all("near").await;
    near.signal(Signal::KILL);
    near.exit();
    all("far").await;
    far.signal(Signal::KILL);
    far.exit();
    all("backup").await;
}

#[tokio::test]
async fn a_connection_names_its_client_to_an_upstream_that_asks_for_it() {
    let upstream = Upstream::start();
    for version in ["v1", "v2"] {
        // It believes whoever connects, since that is the proxy under test.
        let behind = Toml::new()
            .listener("proxy_protocol = true")
            .server("trusted_proxies = [\"127.0.0.1\"]")
            .upstream("api", &upstream.url(), "")
            .route("path = \"/*\"\nupstream = \"api\"");
        let behind = Weir::start(&behind.text());
        let config = in_front(&[at(&behind, "")], &format!("proxy_protocol = \"{version}\""));
        let weir = Weir::start(&config.text());
        for last in [7, 9] {
            use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
            let mut client = crate::harness::client::connect_from(last, weir.http).await;
            let request = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
            client.write_all(request).await.unwrap();
            let mut reply = String::new();
            client.read_to_string(&mut reply).await.unwrap();
            assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
            let chain = upstream.last().header("x-forwarded-for").unwrap();
            assert!(chain.ends_with(&format!("127.0.0.{last}")), "{chain}");
        }
    }
}

#[test]
fn what_does_not_fit_is_said_where_it_is() {
    let check = |more: &str, server: &str| {
        let endpoint = "\"http://127.0.0.1:1\"".to_owned();
        let config = in_front(&[endpoint], more).server(server);
        let (code, _, errors) = Weir::check(Weir::build(&config.text()));
        assert_eq!(code, 78, "{errors}");
        errors
    };
    for (more, server, expected) in [
        ("protocol = \"h2\"\nproxy_protocol = \"v2\"", "", "many clients share"),
        ("proxy_protocol = \"v3\"", "", "\"v1\" or \"v2\""),
        ("sticky = {}", "", "cookie"),
        ("sticky = { cookie = \"a b\" }", "", "letters, digits"),
        ("zone_min = 0", "", "1 to 100"),
        ("", "zone = \"a\"\nzone_env = \"B\"", "one of the two"),
        ("", "zone_env = \"A_VARIABLE_THAT_NOBODY_HAS_SET\"", "environment variable that is set"),
        ("tls = { pins = [\"sha256/AAAA\"] }", "", "44 characters"),
    ] {
        let errors = check(more, server);
        assert!(errors.contains(expected), "{more} {server}: {errors}");
    }
}
