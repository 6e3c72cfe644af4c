//! Files of data that Weir fetches by URL, here the keys of `jwt-claim`: what is new is applied
//! without a restart, and what can't be fetched or used changes nothing.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Instant;

use aws_lc_rs::signature;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::harness::flood::{Speaks, acceptor};
use crate::harness::pki::Pki;
use crate::harness::upstream::{self, Upstream};
use crate::harness::weir::Weir;
use crate::harness::{eventually, free_address};
use crate::policies::jwt_claim::{Signer, config, ec, key_set, rsa, set, with_token};
use crate::process::handover::Successor;

const SETTING: &str = "policies.users.config_files.keys";
/// The most that a file of data may have.
const BYTES_MAX: usize = 16 << 20;

/// The example of `jwt-claim`, with keys that are fetched each second from `url`.
fn fetching(app: &str, url: &str, more: &str) -> String {
    let keys = format!("keys = {{ url = \"{url}\", file = \"jwks.json\", every = \"1s\"{more} }}");
    let config = config(app, &["RS256", "ES256"]);
    let fetched = config.replace("keys = \"jwks.json\"", &keys);
    assert_ne!(fetched, config);
    fetched
}

fn ours() -> Signer {
    rsa("RS256", "2026-01", &signature::RSA_PKCS1_SHA256)
}

fn theirs() -> Signer {
    ec("ES256", "P-256", &signature::ECDSA_P256_SHA256_FIXED_SIGNING)
}

/// A server of keys. Unlike `upstream::listener`, std lets another socket have its address later.
fn issuer_at(address: SocketAddr, keys: &str) -> Upstream {
    let socket = eventually("the address is free", || {
        TcpListener::bind(address).map_err(|error| error.to_string())
    });
    let issuer = Upstream::on(socket);
    issuer.answer(200, &[], keys.to_owned());
    issuer
}

fn issuer(keys: &str) -> Upstream {
    issuer_at((Ipv4Addr::LOCALHOST, 0).into(), keys)
}

/// What `/status` says about the one document.
fn state(weir: &Weir) -> Value {
    let status: Value = serde_json::from_str(&weir.admin_page("/status").text()).unwrap();
    let documents = status["documents"].as_array().unwrap();
    assert_eq!(documents.len(), 1, "{status}");
    documents[0].clone()
}

/// Waits until the last fetch has failed, for a reason with this text in it.
fn await_error(weir: &Weir, text: &str) {
    eventually(&format!("a failure: {text}"), || {
        let state = state(weir);
        let found = state["error"].as_str().is_some_and(|error| error.contains(text));
        found.then_some(()).ok_or_else(|| format!("{state}\n{}", weir.output().tail(10)))
    });
}

fn fetches(weir: &Weir, result: &str) -> u64 {
    let labels = format!("policy=\"users\",member=\"keys\",result=\"{result}\"");
    weir.metric(&format!("weir_documents_fetched_total{{{labels}}}"))
}

/// The names in a proxy's folder, sorted.
fn names(folder: &std::path::Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn rotated_keys_are_fetched_and_applied_without_a_restart_and_without_losing_a_count() {
    let (old, new) = (ours(), theirs());
    let (app, issuer) = (Upstream::start(), issuer(&set(&[&old])));
    let url = format!("{}/jwks.json?p=secret", issuer.url());
    let weir = Weir::start(&fetching(&app.url(), &url, ""));
    let of = |signer: &Signer| signer.token(json!({ "sub": "ann" }));
    // They were fetched before anything was served.
    assert_eq!(with_token(&weir, &of(&old)).await, 200);
    assert_eq!(with_token(&weir, &of(&new)).await, 401);
    let asked = issuer.seen();
    assert_eq!(
        (asked[0].method.as_str(), asked[0].target.as_str()),
        ("GET", "/jwks.json?p=secret")
    );
    assert_eq!(asked[0].header("host"), Some(issuer.address.to_string()));
    // What is the same is no reload.
    eventually("it is fetched again", || match fetches(&weir, "unchanged") {
        0 => Err(state(&weir).to_string()),
        _ => Ok(()),
    });
    assert_eq!(weir.reloads("applied"), 0);

    issuer.answer(200, &[], set(&[&old, &new]));
    weir.await_reloads("applied", 1);
    assert_eq!(with_token(&weir, &of(&new)).await, 200);
    assert_eq!(with_token(&weir, &of(&old)).await, 200);
    assert_eq!(with_token(&weir, &of(&new)).await, 429, "one user, one count");
    issuer.answer(200, &[], set(&[&new]));
    weir.await_reloads("applied", 2);
    assert_eq!(with_token(&weir, &of(&old)).await, 401);
    assert_eq!(with_token(&weir, &of(&new)).await, 429);

    assert_eq!((fetches(&weir, "new"), weir.reloads("refused")), (2, 0));
    let state = state(&weir);
    assert_eq!((&state["policy"], &state["member"]), (&json!("users"), &json!("keys")));
    // A query may be a secret.
    assert_eq!(state["url"], format!("{}/jwks.json", issuer.url()));
    assert!(state["error"].is_null() && state["succeeded"].is_i64(), "{state}");
    assert!(!weir.output().lines().join("\n").contains("p=secret"));
    assert_eq!(fs::read_to_string(weir.folder().join("jwks.json")).unwrap(), set(&[&new]));
    assert_eq!(names(weir.folder()), ["jwks.json", "proxy.toml"]);
}

#[tokio::test]
async fn a_document_that_cant_be_fetched_or_used_leaves_the_old_keys_in_force_and_in_their_file() {
    let (old, new) = (ours(), theirs());
    let keys = set(&[&old]);
    let (app, issuer) = (Upstream::start(), issuer(&keys));
    let url = format!("{}/jwks.json", issuer.url());
    let weir =
        Weir::build(&fetching(&app.url(), &url, "")).file("jwks.json", keys.as_bytes()).start();
    let user = |name: &str| old.token(json!({ "sub": name }));
    let path = weir.folder().join("jwks.json");
    let unusable = set(&[&new]).replace("\"x\":\"", "\"x\":\"!");
    let elsewhere = [("location", "/other.json")];
    let large = "x".repeat(BYTES_MAX + 1);
    for (status, fields, body, result, text) in [
        (500, &[][..], keys.clone(), "status", "it answered 500 Internal Server Error"),
        (302, &elsewhere, String::new(), "status", "302 Found, expected 200 OK (redirects are not"),
        (204, &[], String::new(), "status", "it answered 204 No Content"),
        (200, &[], "<html>".to_owned(), "refused", "JSON: expected value"),
        (200, &[], "{}".to_owned(), "refused", "found no list, expected a set of keys"),
        (
            200,
            &[],
            "{\"keys\":[]}".to_owned(),
            "refused",
            "none of them for a configured algorithm",
        ),
        (200, &[], unusable, "refused", "found a text of another kind"),
        (200, &[], large, "too_large", "the document has more than 16777216 bytes"),
    ] {
        let before = fetches(&weir, result);
        issuer.answer(status, fields, body);
        await_error(&weir, text);
        assert!(fetches(&weir, result) > before, "{result}");
        assert_eq!(with_token(&weir, &user(text)).await, 200, "{text}");
        assert_eq!(fs::read_to_string(&path).unwrap(), keys, "{text}");
    }
    // A server that takes the request and says nothing.
    let before = fetches(&weir, "unreached");
    issuer.hold();
    let (began, mut served) = (Instant::now(), 0);
    while fetches(&weir, "unreached") == before {
        assert_eq!(with_token(&weir, &user(&format!("slow-{served}"))).await, 200);
        served += 1;
        assert!(began.elapsed() < 2 * crate::harness::TIMEOUT, "{}", state(&weir));
    }
    await_error(&weir, "no reply within 10s");
    assert!(served > 100, "{served} requests while the server hung");
    // It is gone, and the proxy is started again meanwhile.
    let address = issuer.address;
    drop(issuer);
    await_error(&weir, "it can't be reached: connect: Connection refused");
    assert_eq!((weir.reloads("applied"), weir.reloads("refused")), (0, 0));
    let failures = weir
        .output()
        .await_events("a document was not renewed: what its file holds stays in use", 1);
    assert!(failures.iter().all(|event| event["setting"] == SETTING && event["url"] == url));
    let weir = weir.restart(Signal::TERM);
    await_error(&weir, "it can't be reached: connect: Connection refused");
    assert_eq!(with_token(&weir, &user("restarted")).await, 200);
    assert_eq!(names(weir.folder()), ["jwks.json", "proxy.toml"]);

    let _issuer = issuer_at(address, &set(&[&old, &new]));
    weir.await_reloads("applied", 1);
    assert_eq!(with_token(&weir, &new.token(json!({ "sub": "new" }))).await, 200);
    weir.output().await_text("a document can be renewed again");
    assert!(state(&weir)["error"].is_null());
}

/// Runs one that can't start: the exit code, and its errors on one line.
fn fails(config: &str) -> (i32, String) {
    let (code, out, err) = Weir::build(config).run();
    assert_eq!(out, "", "{err}");
    (code, err.split_whitespace().collect::<Vec<_>>().join(" "))
}

#[tokio::test]
async fn without_a_file_and_without_a_server_the_start_fails_and_names_the_url() {
    let app = Upstream::start();
    let gone = format!("http://{}/jwks.json", free_address());
    let started = |url: &str| fails(&fetching(&app.url(), url, ""));
    let (code, err) = started(&gone);
    // Not the code of an error, after which a service manager does not try again.
    assert_eq!(code, 1, "{err}");
    for text in [
        "jwks.json (it does not exist yet)",
        &format!("the document of {gone}, which can't be fetched: it can't be reached"),
        "Connection refused",
    ] {
        assert!(err.contains(text), "{text}: {err}");
    }
    let issuer = issuer("{\"keys\": []}");
    let url = format!("{}/jwks.json", issuer.url());
    let (code, err) = started(&url);
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("none of them for a configured algorithm"), "{err}");
    assert!(err.contains(&format!("what was fetched from {url} is not kept")), "{err}");
    issuer.answer(503, &[], "");
    let (code, err) = started(&url);
    assert!(code == 1 && err.contains("it answered 503 Service Unavailable"), "{code} {err}");
    // An error elsewhere is one.
    let wrong = fetching(&app.url(), &url, "").replace("[[routes]]", "[[rotues]]");
    let (code, err) = fails(&wrong);
    assert!(code == 78 && err.contains("rotues"), "{code} {err}");
}

#[tokio::test]
async fn a_check_fetches_nothing_unless_it_is_to_connect() {
    let (app, issuer) = (Upstream::start(), issuer(&key_set()));
    let config = fetching(&app.url(), &format!("{}/jwks.json", issuer.url()), "");
    let (code, out, err) = Weir::check(Weir::build(&config));
    assert_eq!((code, issuer.count()), (78, 0), "{out}{err}");
    assert!(err.contains("jwks.json (it does not exist yet)"), "{err}");
    assert!(err.contains("which `weir run` fetches before it serves"), "{err}");
    let kept = || Weir::build(&config).file("jwks.json", key_set().as_bytes());
    let (code, out, err) = Weir::check(kept());
    assert_eq!((code, issuer.count()), (0, 0), "{out}{err}");
    let (code, out, err) = Weir::check(kept().argument("--connect"));
    assert_eq!((code, issuer.count()), (0, 1), "{out}{err}");
    assert!(out.contains(&format!("{SETTING}: {}/jwks.json: reached", issuer.url())), "{out}");
    issuer.answer(404, &[], "");
    let (code, out, err) = Weir::check(kept().argument("--connect"));
    assert_eq!(code, 1, "{out}{err}");
    assert!(out.contains("it answered 404 Not Found"), "{out}");
}

#[tokio::test]
async fn a_reload_that_names_another_url_fetches_its_document_first() {
    let (old, new) = (ours(), theirs());
    let (app, issuer) = (Upstream::start(), issuer(&set(&[&new])));
    let weir = Weir::build(&config(&app.url(), &["RS256", "ES256"]))
        .file("jwks.json", set(&[&old]).as_bytes())
        .start();
    let fetched = |url: &str| {
        fetching(&app.url(), url, "").replace("file = \"jwks.json\"", "file = \"fetched.json\"")
    };
    let by = |signer: &Signer| signer.token(json!({ "sub": "ann" }));
    weir.reload(&fetched(&format!("http://{}/k", free_address())), "refused");
    let page = weir.admin_page("/status").text();
    assert!(page.contains("which can't be fetched: it can't be reached"), "{page}");
    assert_eq!(with_token(&weir, &by(&old)).await, 200);
    weir.reload(&fetched(&issuer.url()), "applied");
    assert_eq!(with_token(&weir, &by(&new)).await, 200);
    assert_eq!(with_token(&weir, &by(&old)).await, 401);
    // From then on it is kept up to date.
    issuer.answer(200, &[], set(&[&old, &new]));
    weir.await_reloads("applied", 2);
    assert_eq!(with_token(&weir, &by(&old)).await, 200);
    // And no longer once nothing names it.
    weir.reload(&config(&app.url(), &["RS256", "ES256"]), "applied");
    let status: Value = serde_json::from_str(&weir.admin_page("/status").text()).unwrap();
    assert_eq!(status["documents"], json!([]));
}

#[tokio::test]
async fn a_new_process_goes_on_fetching_and_the_old_one_does_not() {
    let (old, new) = (ours(), theirs());
    let (app, issuer) = (Upstream::start(), issuer(&set(&[&old])));
    let mut weir = Weir::start(&fetching(&app.url(), &issuer.url(), ""));
    assert_eq!(with_token(&weir, &old.token(json!({ "sub": "ann" }))).await, 200);
    weir.signal(Signal::USR2);
    weir.output().await_events("ready", 2);
    let _successor = Successor::of(&weir, 1);
    assert!(weir.exit().success(), "{}", weir.output().tail(40));
    issuer.answer(200, &[], set(&[&old, &new]));
    weir.await_reloads("applied", 1);
    // Two requests of three are left.
    assert_eq!(with_token(&weir, &new.token(json!({ "sub": "ann" }))).await, 200);
    assert_eq!(with_token(&weir, &old.token(json!({ "sub": "ann" }))).await, 200);
    assert_eq!(with_token(&weir, &new.token(json!({ "sub": "ann" }))).await, 429);
    assert_eq!(names(weir.folder()), ["jwks.json", "proxy.toml"]);
}

/// Answers each request with `body`, over TLS with a certificate for `localhost`.
fn secured(pki: &Pki, body: String) -> SocketAddr {
    let listener = upstream::listener();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let tls = acceptor(Speaks::Http1, &pki.server(&["localhost"]));
    let length = body.len();
    let reply = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}");
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                // A client that does not trust the certificate leaves.
                let Ok(mut stream) = tls.accept(stream).await else { continue };
                let mut head = Vec::new();
                while let Ok(byte) = stream.read_u8().await {
                    head.push(byte);
                    if head.ends_with(b"\r\n\r\n") {
                        let _ = stream.write_all(reply.as_bytes()).await;
                        break;
                    }
                }
                let _ = stream.shutdown().await;
            }
        });
    });
    address
}

#[tokio::test]
async fn keys_come_over_tls_from_a_server_that_is_verified() {
    let (pki, others) = (Pki::new(), Pki::new());
    let keys = ours();
    let app = Upstream::start();
    let server = secured(&pki, set(&[&keys]));
    let url = format!("https://localhost:{}/jwks.json", server.port());
    let trusting = fetching(&app.url(), &url, ", tls = { ca = \"ca.pem\" }");
    let weir = Weir::build(&trusting).file("ca.pem", pki.ca.as_bytes()).start();
    assert_eq!(with_token(&weir, &keys.token(json!({ "sub": "ann" }))).await, 200);
    eventually("it is fetched again", || match fetches(&weir, "unchanged") {
        0 => Err(state(&weir).to_string()),
        _ => Ok(()),
    });
    // An authority that did not issue it, and the system's.
    let others = Weir::build(&trusting).file("ca.pem", others.ca.as_bytes());
    for builder in [others, Weir::build(&fetching(&app.url(), &url, ""))] {
        let (code, _, err) = builder.run();
        assert_eq!(code, 1, "{err}");
        let err = err.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(err.contains("can't be reached: tls: invalid peer certificate"), "{err}");
    }
}
