//! nginx as an upstream that reads a path otherwise than its route does.

use crate::harness::TIMEOUT;
use crate::harness::client::{raw, statuses};
use crate::harness::nginx::Nginx;
use crate::harness::toml::Toml;
use crate::harness::weir::Weir;

const ONE: &str = "name = \"day\", algorithm = \"fixed_window\", quota = 1, period = \"1d\"";

/// One limited route and one for everything else.
fn login(url: &str, paths: &str) -> String {
    Toml::new()
        .upstream("api", url, "")
        .policy("login", &[ONE])
        .route("path = \"/api/login\"\nupstream = \"api\"\npolicy = \"login\"")
        .route("path = \"/*\"\nupstream = \"api\"")
        .more(&format!("[server.paths]\n{paths}"))
        .text()
}

fn ask(weir: &Weir, path: &str) -> (u16, String) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let reply = raw(weir.http, request.as_bytes(), TIMEOUT);
    (statuses(&reply).first().copied().unwrap_or_default(), reply)
}

fn status(weir: &Weir, path: &str) -> u16 {
    ask(weir, path).0
}

#[test]
fn an_escaped_slash_does_not_reach_a_real_nginx_past_the_limit() {
    let nginx =
        Nginx::start("location = /api/login { return 200 \"login\"; }\nlocation / { return 404; }");
    // With `keep`, the limit can be escaped: this is what the other options prevent.
    let kept = Weir::start(&login(&nginx.url(), "encoded_slash = \"keep\""));
    assert_eq!(status(&kept, "/api/login"), 200);
    let (answered, reply) = ask(&kept, "/api%2Flogin");
    assert!(answered == 200 && reply.ends_with("login"), "{reply}");
    for (paths, expected) in [("", 400), ("encoded_slash = \"decode\"", 429)] {
        let weir = Weir::start(&login(&nginx.url(), paths));
        assert_eq!(
            (status(&weir, "/api/login"), status(&weir, "/api%2Flogin")),
            (200, expected),
            "{paths}"
        );
    }
}
