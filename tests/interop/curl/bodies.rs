//! Policies that look into bodies, over each version of HTTP, plain and with TLS.

use crate::harness::contents::config;
use crate::harness::test_proxy::TestProxy;
use crate::harness::toml::Toml;
use crate::harness::transfer::Transfer;
use crate::harness::upstream::Upstream;

#[test]
fn each_name_in_a_body_has_its_own_allowance_and_bodies_arrive_as_they_were() {
    let upstream = Upstream::start();
    let proxy = TestProxy::start(&config(&upstream));
    for (turn, way) in proxy.ways().iter().enumerate() {
        let padding = " ".repeat(30_000);
        let json =
            |user: &str| format!("{{\"a\": [1,2],{padding}\"user\": {{\"name\": \"{user}\"}}}}\n");
        let form = |user: &str| format!("a=1&user={user}&b=%20");
        for (path, field, bodies) in [
            (
                "/json",
                "Content-Type: text/plain",
                // Escaped or not, it is the same name.
                [json(&format!("j{turn}")), json(&format!("\\u006a{turn}")), json("other")],
            ),
            (
                "/form",
                "Content-Type: application/x-www-form-urlencoded; charset=utf-8",
                [form(&format!("f{turn}")), form(&format!("%66{turn}")), form("other")],
            ),
        ] {
            let [plain, escaped, _] = &bodies;
            for (body, status) in [(plain, 200), (escaped, 200), (plain, 429)] {
                let transfer = way.curl(path, &["-H", field, "--data-binary", body]);
                assert_eq!(transfer.status, status, "{path} {} {body:.40}", way.name);
                if status == 200 {
                    assert_eq!(upstream.last().body, body.as_bytes(), "{path}");
                }
            }
        }
    }
}

/// A client that waits for `100 Continue` gets it as soon as the policy wants the body. Over HTTP/2
/// curl does not wait.
#[test]
fn a_body_that_is_waited_for_is_asked_for() {
    let upstream = Upstream::start();
    let proxy = TestProxy::start(&config(&upstream));
    for way in &proxy.ways() {
        let body = format!("{{\"user\": {{\"name\": \"{}\"}}}}", way.name);
        let json = "Content-Type: application/json";
        let options = [
            "-H",
            json,
            "-H",
            "Expect: 100-continue",
            "--expect100-timeout",
            "60",
            "--data-binary",
            &body,
        ];
        assert_eq!(way.curl("/json", &options).status, 200, "{}", way.name);
        assert_eq!(upstream.last().body, body.as_bytes());
    }
}

/// A query is charged what it asks for, however it is sent.
#[test]
fn graphql_is_charged_what_it_asks_for() {
    let upstream = Upstream::start();
    let policy = "[policies.api]\nuse = \"graphql-cost\"\n[policies.api.config]\nmax_cost = 100\n\
        default_scalar = 0\nlimits = [{ name = \"points\", algorithm = \"fixed_window\", quota = 100, period = \"1d\" }]\n\
        fields = { \"Query.users\" = { cost = 1, list = true } }\n";
    let proxy = TestProxy::start(
        &Toml::new()
            .upstream("api", &upstream.url(), "")
            .more(policy)
            .route("path = \"/*\"\nupstream = \"api\"\npolicy = \"api\"")
            .server("trusted_proxies = [\"127.0.0.1\"]"),
    );
    for (index, way) in proxy.ways().iter().enumerate() {
        let client = format!("X-Forwarded-For: 192.0.2.{index}");
        let ask = |options: &[&str], path: &str| {
            way.curl(
                path,
                &[&["-H", &client, "-H", "Content-Type: application/json"], options].concat(),
            )
        };
        let left = |transfer: &Transfer| {
            transfer.field("ratelimit").unwrap().split(";r=").nth(1).unwrap().to_owned()
        };
        let query = "{\"query\": \"query($n: Int) { users(first: $n) { id name } }\", \"variables\": {\"n\": 20}}";
        let first = ask(&["--data-binary", query], "/graphql");
        assert_eq!((first.status, left(&first).starts_with("80;")), (200, true), "{first:?}");
        assert_eq!(upstream.last().body, query);
        let second = ask(&[], "/graphql?query=%7Busers(first:30)%7Bid%7D%7D");
        assert_eq!((second.status, left(&second).starts_with("50;")), (200, true), "{second:?}");
        let third = ask(&["--data-binary", &query.replace("20", "60")], "/graphql");
        assert_eq!(third.status, 429, "{third:?}");
        let before = upstream.count();
        for refused in [query.replace("20", "101"), query.replace("} }", "}"), "[]".to_owned()] {
            let reply = ask(&["--data-binary", &refused], "/graphql");
            assert_eq!(reply.status, 400, "{refused}: {reply:?}");
        }
        assert_eq!(upstream.count(), before);
    }
}
