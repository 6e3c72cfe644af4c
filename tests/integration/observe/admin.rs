//! The admin pages: metrics, status, and readiness for traffic.

use crate::harness::client::{Client, get, raw, statuses};
use crate::harness::toml::simple;
use crate::harness::upstream::Upstream;
use crate::harness::weir::{Weir, replace};
use crate::harness::{TIMEOUT, eventually};

const LIMIT: &str = "name = \"day\", algorithm = \"fixed_window\", quota = 3, period = \"1d\"";

#[tokio::test]
async fn metrics_count_what_happened() {
    let upstream = Upstream::start();
    let weir = Weir::start(&simple(&upstream.url(), &[LIMIT]).text());
    let mut client = Client::connect(weir.http).await.unwrap();
    for _ in 0..5 {
        client.get("/some/path?key=secret", &[("x-api-key", "secret")]).await.unwrap();
    }
    let counted = [
        ("weir_requests_total{route=\"api\",code=\"200\"}", 3),
        ("weir_requests_total{route=\"api\",code=\"429\"}", 2),
        ("weir_decisions_total{policy=\"public\",decision=\"admitted\"}", 3),
        ("weir_decisions_total{policy=\"public\",decision=\"refused\"}", 2),
        ("weir_limit_refusals_total{policy=\"public\",limit=\"day\"}", 2),
        ("weir_takes_unknown_total", 0),
        ("weir_embedded_keys", 1),
    ];
    for (series, expected) in counted {
        // A request is counted at the end of its response, which the client may see a moment
        // earlier.
        eventually(series, || {
            let found = weir.metric(series);
            if found == expected { Ok(()) } else { Err(format!("{found}, expected {expected}")) }
        });
    }
    let page = weir.admin_page("/metrics");
    assert_eq!(page.status, 200);
    assert!(
        page.header("content-type").starts_with("application/openmetrics-text"),
        "{:?}",
        page.headers
    );
    assert!(page.text().ends_with("# EOF\n"));
    let text = page.text();
    let version = env!("CARGO_PKG_VERSION");
    for series in [
        format!("weir_build_info{{version=\"{version}\",store=\"embedded\"}} 1\n"),
        "weir_request_duration_seconds_count{route=\"api\"} 5\n".to_owned(),
        "weir_upstream_duration_seconds_count{upstream=\"api\"} 3\n".to_owned(),
    ] {
        assert!(text.contains(&series), "{series}: {text}");
    }
    #[cfg(target_os = "linux")]
    for name in [
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "process_open_fds",
        "process_max_fds",
        "process_start_time_seconds",
    ] {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        assert!(line.unwrap().parse::<f64>().unwrap() > 0.0, "{name}: {line:?}");
    }
    assert!(
        !page.text().contains("secret") && !page.text().contains("some/path"),
        "a caller's text in a label"
    );
}

#[tokio::test]
async fn live_ready_and_status_answer() {
    let upstream = Upstream::start();
    let weir = Weir::start(&simple(&upstream.url(), &[LIMIT]).text());
    assert_eq!(weir.admin_page("/live").status, 200);
    assert_eq!(weir.admin_page("/ready").status, 200);
    let status = weir.admin_page("/status");
    assert_eq!(status.status, 200);
    assert!(status.json()["version"].is_string(), "{}", status.text());
    assert_eq!(weir.admin_page("/nothing").status, 404);
}

#[tokio::test]
async fn the_operators_pages_are_not_on_the_public_listener() {
    let upstream = Upstream::start();
    let weir = Weir::start(&simple(&upstream.url(), &[LIMIT]).text());
    let reply = get(weir.http, "/metrics", &[]).await;
    assert_eq!(reply.text(), "from upstream\n", "/metrics belongs to the upstream there");
}

#[tokio::test]
async fn the_access_log_is_one_json_object_a_request() {
    let upstream = Upstream::start();
    let text =
        simple(&upstream.url(), &[LIMIT]).text().replace("access = \"off\"", "access = \"all\"");
    let weir = Weir::start(&text);
    let id = get(weir.http, "/one?two=three", &[]).await.header("x-request-id");
    let line = eventually("the line of that request", || {
        let lines = weir.output().lines();
        lines.into_iter().find(|line| line.contains(&id)).ok_or_else(|| "not yet".to_owned())
    });
    let event: serde_json::Value =
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
    let text = event.to_string();
    assert!(text.contains("/one") && text.contains("200") && text.contains("127.0.0.1"), "{text}");
}

/// Requests an admin page with these fields. Returns its status and the whole response.
fn page(weir: &Weir, method: &str, path: &str, fields: &str) -> (u16, String) {
    let request = format!("{method} {path} HTTP/1.1\r\n{fields}Connection: close\r\n\r\n");
    let reply = raw(weir.admin.expect("an admin listener"), request.as_bytes(), TIMEOUT);
    (statuses(&reply).first().copied().unwrap_or_default(), reply)
}

const COUNTERS: &str = "/counters?policy=public&limit=day&key=127.0.0.1";

#[tokio::test]
async fn a_website_whose_name_is_pointed_here_reads_and_changes_nothing() {
    let upstream = Upstream::start();
    let config = simple(&upstream.url(), &[LIMIT])
        .text()
        .replace("[admin]", "[admin]\nhosts = [\"weir.internal\"]");
    let weir = Weir::start(&config);
    assert_eq!(get(weir.http, "/", &[]).await.remaining("day"), 2);
    let port = weir.admin.unwrap().port();
    for (method, path) in [
        ("GET", "/status"),
        ("GET", "/metrics"),
        ("GET", COUNTERS),
        ("DELETE", COUNTERS),
        ("POST", "/reload"),
        ("GET", "/live"),
        ("GET", "/x"),
    ] {
        let (status, reply) = page(
            &weir,
            method,
            path,
            &format!("Host: evil.example:{port}\r\nOrigin: http://evil.example:{port}\r\n"),
        );
        assert!(
            status == 421 && reply.contains("admin.hosts") && !reply.contains("weir_"),
            "{method} {path}: {reply}"
        );
        let (status, reply) = page(
            &weir,
            method,
            path,
            &format!("Host: localhost:{port}\r\nOrigin: http://evil.example\r\n"),
        );
        assert!(status == 403, "{method} {path}: {reply}");
    }
    assert_eq!(get(weir.http, "/", &[]).await.remaining("day"), 1, "nothing was forgotten");
    for host in [
        format!("localhost:{port}"),
        format!("127.0.0.1:{port}"),
        "10.0.0.9".into(),
        "[::1]:9901".into(),
        "Weir.internal:1".into(),
    ] {
        let (status, reply) = page(&weir, "GET", "/status", &format!("Host: {host}\r\n"));
        assert_eq!(status, 200, "{host}: {reply}");
    }
    let form = "Host: localhost\r\nSec-Fetch-Site: cross-site\r\nContent-Length: 0\r\n";
    assert_eq!(page(&weir, "POST", "/reload", form).0, 403);
    assert_eq!(weir.reloads("applied"), 0, "nor reloaded");
    assert_eq!(page(&weir, "DELETE", COUNTERS, "Host: localhost\r\n").0, 200);
    assert_eq!(get(weir.http, "/", &[]).await.remaining("day"), 2, "its own address is a loopback");
}

#[tokio::test]
async fn an_admin_on_the_network_forgets_nothing_without_a_token() {
    let upstream = Upstream::start();
    let config = simple(&upstream.url(), &[LIMIT])
        .text()
        .replace("[admin]\naddress = \"127.0.0.1:0\"", "[admin]\naddress = \"0.0.0.0:0\"");
    let mut weir = Weir::start(&config);
    weir.admin = weir.admin.map(|address| ([127, 0, 0, 1], address.port()).into());
    assert_eq!(get(weir.http, "/", &[]).await.remaining("day"), 2);
    let (status, reply) = page(&weir, "DELETE", COUNTERS, "Host: 127.0.0.1\r\n");
    assert!(status == 403 && reply.contains("admin.token_file"), "{reply}");
    let (status, reply) = page(&weir, "POST", "/reload", "Host: 127.0.0.1\r\n");
    assert!(status == 403 && reply.contains("admin.token_file"), "{reply}");
    assert_eq!(page(&weir, "GET", COUNTERS, "Host: 127.0.0.1\r\n").0, 200);
    assert_eq!(get(weir.http, "/", &[]).await.remaining("day"), 1);
}

#[tokio::test]
async fn with_a_token_it_is_needed_and_may_be_renewed_and_weir_key_sends_it() {
    let upstream = Upstream::start();
    let config = simple(&upstream.url(), &[LIMIT])
        .text()
        .replace("[admin]", "[admin]\ntoken_file = \"admin.token\"");
    let weir = Weir::build(&config).file("admin.token", b"first-token\n").start();
    assert_eq!(get(weir.http, "/", &[]).await.remaining("day"), 2);
    let with = |path: &str, token: &str| {
        page(&weir, "GET", path, &format!("Host: any.example\r\nAuthorization: Bearer {token}\r\n"))
            .0
    };
    for path in ["/status", "/metrics", COUNTERS] {
        let (status, reply) = page(&weir, "GET", path, "Host: localhost\r\n");
        assert!(
            status == 401 && reply.to_lowercase().contains("www-authenticate: bearer"),
            "{path}: {reply}"
        );
        assert_eq!((with(path, "first-token"), with(path, "first-toke")), (200, 401), "{path}");
    }
    assert_eq!(
        (
            page(&weir, "GET", "/live", "Host: localhost\r\n").0,
            page(&weir, "GET", "/ready", "Host: 10.0.0.1\r\n").0
        ),
        (200, 200)
    );
    replace(&weir.folder().join("admin.token"), b"second-token\n");
    eventually("the token is renewed", || match with("/status", "second-token") {
        200 => Ok(()),
        status => Err(format!("{status}\n{}", weir.output().tail(10))),
    });
    assert_eq!(with("/status", "first-token"), 401);
    let reload = |token: &str| {
        page(
            &weir,
            "POST",
            "/reload",
            &format!("Host: localhost\r\nAuthorization: Bearer {token}\r\n"),
        )
        .0
    };
    assert_eq!((reload("first-token"), reload("second-token")), (401, 200));
    let (config, admin) = (weir.folder().join("proxy.toml"), weir.admin.unwrap().to_string());
    let mut arguments = vec![
        "key",
        "reset",
        "--policy",
        "public",
        "--limit",
        "day",
        "--key",
        "127.0.0.1",
        "--config",
        config.to_str().unwrap(),
    ];
    arguments.extend(["--admin", &admin]);
    let (code, out, err) = Weir::with_arguments(&arguments).run();
    assert!(code == 0 && out.contains("deleted: fixed_window: 1 of 3 used"), "{out}{err}");
    assert_eq!(get(weir.http, "/", &[]).await.remaining("day"), 2);
    // Without the token file the command says what is missing.
    let bare = weir.folder().join("bare.toml");
    std::fs::write(
        &bare,
        std::fs::read_to_string(&config).unwrap().replace("token_file = \"admin.token\"", ""),
    )
    .unwrap();
    let place =
        arguments.iter().position(|argument| *argument == config.to_str().unwrap()).unwrap();
    arguments[place] = bare.to_str().unwrap();
    let (code, _, err) = Weir::with_arguments(&arguments).run();
    assert!(code == 1 && err.contains("Authorization: Bearer"), "{err}");
    assert!(!weir.output().tail(1_000).contains("-token"), "{}", weir.output().tail(50));
}
