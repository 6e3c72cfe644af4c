//! Certificates that pebble issues: ordered, shown, renewed and shared.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::eventually;
use crate::harness::pebble::{EXTERNAL, Pebble};
use crate::harness::pki::Pki;
use crate::harness::process::run;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;

const HOST: &str = "api.example.test";
const LONG: Duration = Duration::from_secs(90 * 86_400);
/// Renewed after half of it.
const SHORT: Duration = Duration::from_secs(8);

/// A proxy with a plain and a TLS listener, the latter with a certificate from `acme`.
fn config(
    (http, tls): (SocketAddr, SocketAddr),
    names: &[&str],
    acme: &str,
    upstream: &Upstream,
) -> String {
    format!(
        r#"
[[listeners]]
address = "{http}"
redirect_to_https = {port}
[[listeners]]
address = "{tls}"
certificates = [{{ acme = true, names = {names:?} }}]

{acme}
[admin]
address = "127.0.0.1:0"
[log]
format = "json"
access = "off"
[upstreams.api]
endpoints = ["{url}"]
[[routes]]
path = "/*"
upstream = "api"
"#,
        port = tls.port(),
        url = upstream.url(),
    )
}

/// curl: its exit code, the status, and everything that it printed.
fn curl(address: SocketAddr, host: &str, url: &str, arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--include", "--max-time", "30", "--noproxy", "*"]);
    command.args(["--connect-to", &format!("{host}:{0}:127.0.0.1:{0}", address.port())]);
    command.args(["--write-out", "\n%{http_code}"]).args(arguments);
    let done = run(command.arg(url.replacen("HOST", &format!("{host}:{}", address.port()), 1)));
    let (text, status) = done.out.rsplit_once('\n').unwrap_or(("", ""));
    (done.code, status.to_owned(), format!("{text}\n{}", done.err))
}

/// Waits until `host` is served with a certificate that the authority has issued.
fn await_secured(weir: &Weir, tls: SocketAddr, host: &str, root: &Path) {
    let root = root.display().to_string();
    eventually(&format!("{host} is served"), || {
        let (code, status, text) = curl(tls, host, "https://HOST/", &["--cacert", &root]);
        if (code, status.as_str()) == (0, "200") {
            return Ok(());
        }
        Err(format!("{code} {text}\n{}", weir.output().tail(20)))
    });
}

fn orders(weir: &Weir, result: &str) -> u64 {
    weir.metric(&format!("weir_acme_orders_total{{result=\"{result}\"}}"))
}

fn shown(weir: &Weir) -> Value {
    let page: Value = serde_json::from_slice(&weir.admin_page("/status").body).expect("JSON");
    page["certificates"][0].clone()
}

/// A proxy on the ports where the authority looks.
fn start(pebble: &Pebble, names: &[&str], more: &str, upstream: &Upstream) -> Weir {
    let acme = pebble.settings("acme", more);
    Weir::start(&config((pebble.http, pebble.tls), names, &acme, upstream))
}

#[test]
fn a_certificate_is_ordered_at_the_start_and_kept_over_a_restart() {
    let (pebble, upstream) = (Pebble::start(LONG), Upstream::start());
    let weir = start(&pebble, &[HOST], "contact = [\"mailto:ops@example.test\"]", &upstream);
    await_secured(&weir, pebble.tls, HOST, &pebble.root());
    assert_eq!((orders(&weir, "issued"), pebble.issued()), (1, 1));
    let state = shown(&weir);
    assert_eq!(state["names"][0], HOST, "{state}");
    assert!(state["error"].is_null() && state["expires"].as_i64() > state["renew"].as_i64());
    // The authority's handshakes ended as handshakes.
    assert!(weir.metric("weir_tls_handshakes_failed_total{cause=\"challenge\"}") >= 1);
    // No answer is left behind.
    let folder = weir.folder().join("acme");
    assert_eq!(std::fs::read_dir(folder.join("challenges")).unwrap().count(), 0);
    let weir = weir.restart(Signal::TERM);
    await_secured(&weir, pebble.tls, HOST, &pebble.root());
    assert_eq!((orders(&weir, "issued"), pebble.issued()), (0, 1));
}

#[test]
fn names_are_proven_over_http_while_everything_else_is_redirected() {
    let (pebble, upstream) = (Pebble::start(LONG), Upstream::start());
    let names = [HOST, "www.example.test"];
    let weir = start(&pebble, &names, "challenges = [\"http-01\"]", &upstream);
    for name in names {
        await_secured(&weir, pebble.tls, name, &pebble.root());
    }
    assert_eq!(weir.metric("weir_tls_handshakes_failed_total{cause=\"challenge\"}"), 0);
    let moved = format!("location: https://{HOST}:{}/a%20b?c=d", pebble.tls.port());
    for path in ["/a%20b?c=d", "/.well-known/acme-challenge/unknown"] {
        let (_, status, text) = curl(pebble.http, HOST, &format!("http://HOST{path}"), &[]);
        assert_eq!(status, "308", "{text}");
        assert!(path.starts_with("/.") || text.to_lowercase().contains(&moved), "{text}");
    }
    assert_eq!(weir.metric("weir_requests_total{route=\"api\",code=\"200\"}"), 0);
}

#[test]
fn a_certificate_is_renewed_in_time_and_no_connection_notices() {
    let (pebble, upstream) = (Pebble::start(SHORT), Upstream::start());
    let weir = start(&pebble, &[HOST], "", &upstream);
    await_secured(&weir, pebble.tls, HOST, &pebble.root());
    let first = shown(&weir)["expires"].as_i64();
    let root = pebble.root().display().to_string();
    eventually("a second certificate", || {
        let (code, status, text) = curl(pebble.tls, HOST, "https://HOST/", &["--cacert", &root]);
        assert_eq!((code, status.as_str()), (0, "200"), "{text}\n{}", weir.output().tail(20));
        let now = shown(&weir)["expires"].as_i64();
        if now > first { Ok(()) } else { Err(weir.output().tail(20)) }
    });
    assert!(pebble.issued() >= 2);
}

/// Pebble behind a proxy that adds what this version of it lacks: renewal information (RFC 9773),
/// with the same window for all certificates.
fn suggesting(pebble: &Pebble, window: [&str; 2]) -> (Weir, String) {
    let pki = Pki::new();
    let address = crate::harness::free_address();
    let host = format!("localhost:{}", address.port());
    let mut directory = pebble.listed(&host);
    directory["renewalInfo"] = format!("https://{host}/renewal").into();
    let [start, end] = window;
    let info = serde_json::json!({ "suggestedWindow": { "start": start, "end": end } });
    let json = |status: u16, body: &Value, more: &str| {
        let body = body.to_string();
        format!(
            "respond = {{ status = {status}, body = {body:?}, headers = {{ Content-Type = \"application/json\"{more} }} }}"
        )
    };
    let config = format!(
        r#"
[[listeners]]
address = "{address}"
certificates = [{{ certificate = "own.pem", key = "own.key" }}]
[admin]
address = "127.0.0.1:0"
[upstreams.pebble]
endpoints = ["https://localhost:{port}"]
tls = {{ ca = "{ca}" }}
[[routes]]
path = "/*"
upstream = "pebble"
[[routes]]
path = "/dir"
{directory}
[[routes]]
name = "renewal"
path = "/renewal/*"
{info}
"#,
        port = pebble.directory().port(),
        ca = pebble.ca().display(),
        directory = json(200, &directory, ""),
        info = json(200, &info, ", Retry-After = \"21600\""),
    );
    let proxy = Weir::build(&config).identity("own", &pki.server(&["localhost"])).start();
    let ca = proxy.folder().join("ca.pem");
    std::fs::write(&ca, &pki.ca).expect("a file");
    let settings = format!(
        "[acme]\ndirectory = \"https://{host}/dir\"\naccept_terms_of_service = true\nfolder = \"acme\"\ntls = {{ ca = \"{}\" }}\n",
        ca.display()
    );
    (proxy, settings)
}

#[test]
fn a_certificate_is_renewed_when_the_authority_suggests_it_and_never_too_late() {
    // Half of its life is left after a time that no test waits for, and a tenth of it is how long
    // it is kept at least.
    let life = Duration::from_secs(100);
    let (pebble, upstream) = (Pebble::start(life), Upstream::start());
    let (proxy, acme) = suggesting(&pebble, ["2020-01-01T00:00:00Z", "2020-01-02T00:00:00Z"]);
    let weir = Weir::start(&config((pebble.http, pebble.tls), &[HOST], &acme, &upstream));
    await_secured(&weir, pebble.tls, HOST, &pebble.root());
    let first = shown(&weir)["expires"].as_i64();
    eventually("a second certificate", || {
        let now = shown(&weir)["expires"].as_i64();
        if now > first { Ok(()) } else { Err(weir.output().tail(20)) }
    });
    assert_eq!((orders(&weir, "issued"), pebble.issued()), (2, 2));
    let asked = "weir_requests_total{route=\"renewal\",code=\"200\"}";
    assert!(proxy.metric(asked) >= 1);
    drop(weir);
    // One that would like it to be renewed after its end.
    let (proxy, acme) = suggesting(&pebble, ["2100-01-01T00:00:00Z", "2100-01-02T00:00:00Z"]);
    let weir = Weir::start(&config((pebble.http, pebble.tls), &[HOST], &acme, &upstream));
    await_secured(&weir, pebble.tls, HOST, &pebble.root());
    eventually("the latest time", || {
        let state = shown(&weir);
        let (renew, expires) = (state["renew"].as_i64(), state["expires"].as_i64());
        let left = expires.zip(renew).map(|(expires, renew)| expires - renew);
        // A tenth of its life, which the authority counts with both its ends.
        if matches!(left, Some(9..=10)) { Ok(()) } else { Err(state.to_string()) }
    });
    assert!(proxy.metric(asked) >= 1);
}

#[test]
fn an_order_that_fails_says_why_and_is_not_tried_again_at_once() {
    let (pebble, upstream) = (Pebble::start(LONG), Upstream::start());
    // The authority looks elsewhere, where nobody answers.
    let ports = (crate::harness::free_address(), crate::harness::free_address());
    let acme = pebble.settings("acme", "");
    let weir = Weir::start(&config(ports, &[HOST], &acme, &upstream));
    let again = eventually("the order fails", || {
        let state = shown(&weir);
        state["again"].as_i64().ok_or_else(|| state.to_string())
    });
    let error = shown(&weir)["error"].as_str().unwrap_or_default().to_owned();
    assert!(error.contains(&format!("could not see that {HOST} is served here")), "{error}");
    assert!(error.contains("connect"), "{error}");
    assert_eq!(orders(&weir, "unproven"), 1);
    // Clients can't connect, and the other listener serves.
    let (code, ..) = curl(ports.1, HOST, "https://HOST/", &["--insecure"]);
    assert_eq!(code, 35);
    let weir = weir.restart(Signal::TERM);
    eventually("it is known again", || {
        let state = shown(&weir);
        if state["again"].as_i64() == Some(again) { Ok(()) } else { Err(state.to_string()) }
    });
    assert_eq!(orders(&weir, "unproven"), 0);
}

#[test]
fn an_account_is_bound_to_one_at_the_authority() {
    let (pebble, upstream) = (Pebble::binding(LONG), Upstream::start());
    let refused = start(&pebble, &[HOST], "", &upstream);
    eventually("the order is refused", || match orders(&refused, "refused") {
        1 => Ok(()),
        _ => Err(refused.output().tail(20)),
    });
    drop(refused);
    let more = format!("external_account = {:?}\nexternal_account_key_env = \"EAB\"", EXTERNAL.0);
    let acme = pebble.settings("acme", &more);
    let weir = Weir::build(&config((pebble.http, pebble.tls), &[HOST], &acme, &upstream))
        .environment("EAB", EXTERNAL.1)
        .start();
    await_secured(&weir, pebble.tls, HOST, &pebble.root());
}

#[test]
fn of_two_proxies_with_one_folder_one_orders_and_either_answers() {
    let (pebble, upstream) = (Pebble::start(LONG), Upstream::start());
    let folder = tempfile::tempdir().expect("a temporary folder");
    let acme = pebble.settings(&folder.path().join("acme").display().to_string(), "");
    let elsewhere = (crate::harness::free_address(), crate::harness::free_address());
    // The first one is not where the authority looks: it orders, and the second one answers.
    let turn = std::fs::create_dir_all(folder.path().join("acme"))
        .and_then(|()| std::fs::File::create(folder.path().join("acme/lock")))
        .expect("a lock");
    turn.lock().expect("the turn");
    let first = Weir::start(&config(elsewhere, &[HOST], &acme, &upstream));
    let second = Weir::start(&config((pebble.http, pebble.tls), &[HOST], &acme, &upstream));
    drop(turn);
    for (weir, tls) in [(&first, elsewhere.1), (&second, pebble.tls)] {
        await_secured(weir, tls, HOST, &pebble.root());
    }
    assert_eq!(pebble.issued(), 1);
    assert_eq!(orders(&first, "issued") + orders(&second, "issued"), 1);
    let challenged = "weir_tls_handshakes_failed_total{cause=\"challenge\"}";
    assert_eq!((first.metric(challenged), second.metric(challenged) >= 1), (0, true));
}

#[test]
fn the_certificate_before_serves_until_one_for_more_names_is_there() {
    let (mut pebble, upstream) = (Pebble::start(LONG), Upstream::start());
    let acme = pebble.settings("acme", "");
    let ports = (pebble.http, pebble.tls);
    let weir = Weir::start(&config(ports, &[HOST], &acme, &upstream));
    await_secured(&weir, pebble.tls, HOST, &pebble.root());
    let root = pebble.root();
    // The authority is away when a name is added.
    pebble.stop();
    weir.reload(&config(ports, &[HOST, "new.example.test"], &acme, &upstream), "applied");
    eventually("the order fails", || match orders(&weir, "unreached") {
        1 => Ok(()),
        _ => Err(weir.output().tail(20)),
    });
    assert!(shown(&weir)["expires"].is_null());
    await_secured(&weir, pebble.tls, HOST, &root);
}
