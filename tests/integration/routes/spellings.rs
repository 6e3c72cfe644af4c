//! Other spellings of a path do not escape the limit of its route, through a running proxy: which
//! spellings are one path, which are refused, and what the upstream receives.

use crate::harness::TIMEOUT;
use crate::harness::client::{raw, statuses};
use crate::harness::tls::Http2;
use crate::harness::toml::Toml;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;

const ONE: &str = "name = \"day\", algorithm = \"fixed_window\", quota = 1, period = \"1d\"";
const MANY: &str = "name = \"day\", algorithm = \"fixed_window\", quota = 1000, period = \"1d\"";

/// Paths that other servers may treat as `/api/login`.
const SAME: &[&str] = &[
    "/api/login",
    "/API/login",
    "/api/Login",
    "/api/login/",
    "/api/login//",
    "/api/login;x",
    "/api/login;x=1;y=2",
    "/api/login;",
    "/api/login;x/",
    "/api/login/;x",
    "/api;v=1/LOGIN;x/",
    "/api/login%3Bx",
    "/api/%6cogin",
    "/api/%4Cogin",
    "//api/login",
    "/api//login",
    "/./api/login",
    "/api/x/../login",
    "/api/%2e%2e/api/./login",
];

/// Paths that are refused.
const REFUSED: &[&str] = &[
    "/api%2Flogin",
    "/api%2flogin",
    "/api/login%2F",
    "/x%2F..%2Fapi/login",
    "/api%5Clogin",
    "/api%5clogin",
    "/api\\login",
    "/api/login%00",
    "/api/login%0A",
    "/api/login%1f",
    "/;x/api/login",
    "/api/;x/login",
    "/api/%3Bx/login",
    "/x/..;/api/login",
    "/api/.;x/login",
    "/../api/login",
    "/api/login%",
];

/// One limited route and one for everything else.
fn login(url: &str, limit: &str, paths: &str) -> String {
    let config = Toml::new()
        .upstream("api", url, "")
        .policy("login", &[limit])
        .route("path = \"/api/login\"\nupstream = \"api\"\npolicy = \"login\"")
        .route("path = \"/*\"\nupstream = \"api\"");
    if paths.is_empty() {
        config.text()
    } else {
        config.more(&format!("[server.paths]\n{paths}")).text()
    }
}

/// A proxy with [`login`] in front of its upstream.
fn start_login(limit: &str) -> (Upstream, Weir) {
    let upstream = Upstream::start();
    let weir = Weir::start(&login(&upstream.url(), limit, ""));
    (upstream, weir)
}

/// A proxy with an upstream `api`, and what `configure` adds.
fn start(configure: impl FnOnce(Toml) -> Toml) -> (Upstream, Weir) {
    let upstream = Upstream::start();
    let weir = Weir::start(&configure(Toml::new().upstream("api", &upstream.url(), "")).text());
    (upstream, weir)
}

fn ask(weir: &Weir, path: &str) -> (u16, String) {
    let reply = raw(
        weir.http,
        format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").as_bytes(),
        TIMEOUT,
    );
    (statuses(&reply).first().copied().unwrap_or_default(), reply)
}

fn status(weir: &Weir, path: &str) -> u16 {
    ask(weir, path).0
}

#[test]
fn another_spelling_takes_the_limited_route_or_is_refused() {
    let (upstream, weir) = start_login(ONE);
    assert_eq!(status(&weir, "/api/login"), 200);
    for path in SAME {
        assert_eq!(status(&weir, path), 429, "{path}");
    }
    for path in REFUSED {
        let (status, reply) = ask(&weir, path);
        assert!(status == 400 && reply.contains("\"detail\":\"The path "), "{path}: {reply}");
    }
    assert_eq!(upstream.count(), 1);
    for path in ["/api/login.json", "/api/logins", "/api", "/api/login/x", "/api/login%20"] {
        assert_eq!(status(&weir, path), 200, "{path}");
    }
}

#[tokio::test]
async fn over_http2_too() {
    let (_upstream, weir) = start_login(ONE);
    let mut client = Http2::plain(weir.http).await.unwrap();
    for (path, expected) in [
        ("/api/login", 200),
        ("/API/login;x/", 429),
        ("/api%2Flogin", 400),
        ("/api/;x/login", 400),
        ("/api", 200),
    ] {
        assert_eq!(client.get(path, &[]).await.unwrap().status, expected, "{path}");
    }
}

#[test]
fn the_path_is_forwarded_as_it_came() {
    let (upstream, weir) = start_login(MANY);
    for (path, forwarded) in [
        ("/API/Login;jsessionid=1/?a;b=%2F", "/API/Login;jsessionid=1/?a;b=%2F"),
        ("/api/login/;x", "/api/login/;x"),
        ("/api/login%3bx", "/api/login%3Bx"),
        ("//api/./%6Cogin", "/api/login"),
    ] {
        let (status, reply) = ask(&weir, path);
        assert!(status == 200 && reply.contains("\r\nratelimit: "), "{path}: {reply}");
        assert_eq!(upstream.last().target, forwarded, "{path}");
    }
}

#[test]
fn a_part_of_the_path_is_one_key_in_any_spelling() {
    let (upstream, weir) = start(|config| {
        config
            .more(&format!("[policies.users]\nuse = \"keyed\"\nconfig.limits = [{{ {ONE}, key = \"{{path.id}}\" }}]"))
            .more(&format!("[policies.pages]\nuse = \"keyed\"\nconfig.limits = [{{ {ONE}, key = \"{{path}}\" }}]"))
            .route("path = \"/users/{id}\"\nupstream = \"api\"\npolicy = \"users\"\nrewrite = \"/v2/users/{id}\"")
            .route("path = \"/*\"\nupstream = \"api\"\npolicy = \"pages\"")
    });
    assert_eq!(status(&weir, "/users/7;a"), 200);
    assert_eq!(upstream.only().target, "/v2/users/7;a");
    for path in ["/users/7", "/users/7;b", "/users/%37", "/users/7/", "/USERS/7%3Bc", "/users;x/7;"]
    {
        assert_eq!(status(&weir, path), 429, "{path}");
    }
    assert_eq!(
        (status(&weir, "/users/8"), status(&weir, "/page"), status(&weir, "/page;x")),
        (200, 200, 429)
    );
}

#[test]
fn a_limit_about_a_path_is_about_its_other_spellings() {
    let (_upstream, weir) = start(|config| {
        config
            .more(&format!(
                "[policies.all]\nuse = \"keyed\"\nconfig.limits = [{{ {ONE}, key = \"{{client_ip}}\", when = {{ path = \"/api/login\" }} }}]"
            ))
            .route("path = \"/*\"\nupstream = \"api\"\npolicy = \"all\"")
    });
    assert_eq!(status(&weir, "/api/login"), 200);
    for path in ["/API/login", "/api/login/", "/api/login;x", "/Api/Login;x/"] {
        assert_eq!(status(&weir, path), 429, "{path}");
    }
    assert_eq!(status(&weir, "/api/other"), 200);
}

#[test]
fn no_spelling_leads_out_of_a_limit_to_a_route_without_one() {
    let (_upstream, weir) = start(|config| {
        config
            .policy("all", &[MANY])
            .route("path = \"/*\"\nupstream = \"api\"\npolicy = \"all\"")
            .route("path = \"/static/*\"\nupstream = \"api\"")
            .route("path = \"/status\"\nupstream = \"api\"")
            .route("path = \"/Assets/*\"\nupstream = \"api\"")
            .route("path = \"/docs/\"\nupstream = \"api\"")
            .route("path = \"/closed\"\nrespond = { status = 403 }")
    });
    let limited = |path: &str| ask(&weir, path).1.to_lowercase().contains("\r\nratelimit: ");
    for path in ["/static/x", "/static", "/static/X;y/", "/status", "/Assets/x", "/docs/"] {
        assert!(!limited(path), "{path}");
    }
    for path in [
        "/STATIC/x",
        "/static;x/y",
        "/status/",
        "/status;x",
        "/Status",
        "/assets/x",
        "/docs",
        "/other",
    ] {
        assert!(limited(path), "{path}");
    }
    assert_eq!(
        (status(&weir, "/closed"), status(&weir, "/CLOSED/"), status(&weir, "/closed;x")),
        (403, 403, 403)
    );
}

#[test]
fn a_redirect_to_the_final_slash_does_not_come_back_to_itself() {
    let (_upstream, weir) = start(|config| {
        config
            .route(
                "path = \"/docs\"\nrespond = { status = 308, headers = { Location = \"/docs/\" } }",
            )
            .route("path = \"/closed\"\nrespond = { status = 403 }")
            .route("path = \"/*\"\nupstream = \"api\"")
    });
    assert_eq!(
        (status(&weir, "/docs"), status(&weir, "/docs/"), status(&weir, "/DOCS")),
        (308, 200, 308)
    );
    assert_eq!((status(&weir, "/closed/"), status(&weir, "/Closed")), (403, 403));
}

#[test]
fn an_upstream_that_means_it_otherwise_has_its_options() {
    let upstream = Upstream::start();
    for (paths, path, expected, forwarded) in [
        ("case = \"exact\"", "/API/login", 200, "/API/login"),
        ("case = \"exact\"", "/api/login/", 429, ""),
        ("trailing_slash = \"exact\"", "/api/login/", 200, "/api/login/"),
        ("trailing_slash = \"exact\"", "/api/Login", 429, ""),
        ("parameters = \"keep\"", "/api/login;x", 200, "/api/login;x"),
        ("parameters = \"keep\"", "/;/api/login", 200, "/;/api/login"),
        ("parameters = \"strip\"", "/api/login;x", 429, ""),
        ("parameters = \"strip\"", "/;x/api;y/other;z", 200, "/api/other"),
        ("parameters = \"reject\"", "/api/other;x", 400, ""),
        ("encoded_slash = \"keep\"", "/api%2flogin", 200, "/api%2Flogin"),
        ("encoded_slash = \"keep\"", "/api%5clogin", 200, "/api%5Clogin"),
        ("encoded_slash = \"keep\"", "/x%2F..%2Fapi/login", 400, ""),
        ("encoded_slash = \"decode\"", "/api%2flogin", 429, ""),
        ("encoded_slash = \"decode\"", "/x%2F..%5Capi/other", 200, "/api/other"),
        ("encoded_slash = \"reject\"", "/other%2Fname", 400, ""),
        ("control_characters = \"keep\"", "/api/login%0A", 200, "/api/login%0A"),
        ("trailing_dots = \"ignore\"", "/api/login.", 429, ""),
        ("trailing_dots = \"ignore\"", "/api/login%20", 429, ""),
        ("trailing_dots = \"ignore\"", "/api./LOGIN%20.;x/", 429, ""),
        ("trailing_dots = \"ignore\"", "/api/login.x", 200, "/api/login.x"),
    ] {
        let weir = Weir::start(&login(&upstream.url(), ONE, paths));
        assert_eq!(status(&weir, "/api/login"), 200, "{paths}");
        assert_eq!(status(&weir, path), expected, "{paths} {path}");
        let seen = upstream.last().target;
        assert_eq!(seen, if expected == 200 { forwarded } else { "/api/login" }, "{paths} {path}");
    }
}

#[test]
fn an_escaped_slash_passes_where_it_makes_no_difference() {
    let (upstream, weir) = start(|config| {
        config
            .policy("public", &[MANY])
            .more(&format!(
                "[policies.pages]\nuse = \"keyed\"\nconfig.key = \"{{path}}\"\nconfig.limits = [{{ {MANY} }}]\n\
                 [policies.users]\nuse = \"keyed\"\nconfig.key = \"{{path.id}}\"\nconfig.limits = [{{ {MANY} }}]"
            ))
            .route("path = \"/*\"\nupstream = \"api\"\npolicy = \"public\"")
            .route("path = \"/pages/*\"\nupstream = \"api\"\npolicy = \"pages\"")
            .route("path = \"/users/{id}/*\"\nupstream = \"api\"\npolicy = \"users\"")
            .route("path = \"/users/{id}/keys\"\nupstream = \"api\"")
    });
    for path in
        ["/@scope%2fname", "/api/v4/projects/group%2Fname/issues", "/users/7/a%2Fb", "/b/%2F"]
    {
        assert_eq!(status(&weir, path), 200, "{path}");
        assert_eq!(upstream.last().target, path.replace("%2f", "%2F"));
    }
    // The route, the path that the policy reads, or its parameter would be another.
    for path in [
        "/users%2F7/x",
        "/pages/a%2Fb",
        "/users/7%2Fx",
        "/users/7%2F8/x",
        "/users/7%2Fkeys",
        "/x%2F../y",
        "/x%5Cy",
    ] {
        assert_eq!(status(&weir, path), 400, "{path}");
    }
}
