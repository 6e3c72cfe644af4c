//! The pages over a real socket.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use arc_swap::ArcSwap;

use crate::listen::{self, ConnectionSettings, Drain, ListenConfig, Listener};

#[derive(Default)]
struct Shown {
    broken: AtomicBool,
    watching: Mutex<Option<Events>>,
}

impl Views for Shown {
    async fn ready(&self) -> Result<String, String> {
        if self.broken.load(Ordering::SeqCst) {
            Err("the store does not answer".to_owned())
        } else {
            Ok("ready".into())
        }
    }

    fn status(&self) -> String {
        "{\"version\":\"1\"}".to_owned()
    }

    fn watch(&self) -> Result<Body, (StatusCode, String)> {
        let mut watching = self.watching.lock().unwrap();
        if watching.is_some() {
            return Err((StatusCode::SERVICE_UNAVAILABLE, "one reads already".into()));
        }
        let (events, body) = Events::new();
        assert_eq!(events.send(events::event("now", "a\n<b>").into()), SendOutcome::Queued);
        *watching = Some(events);
        Ok(body)
    }

    async fn reload(&self) -> (StatusCode, String) {
        (StatusCode::UNPROCESSABLE_ENTITY, "{\"applied\":false}".to_owned())
    }

    async fn counters(
        &self,
        query: CounterQuery,
        forget: bool,
    ) -> Result<String, (StatusCode, String)> {
        match query.policy.as_str() {
            "none" => Err((StatusCode::BAD_REQUEST, "policy: found \"none\"".into())),
            policy => Ok(format!("[\"{policy} {} {:?} {forget}\"]", query.limit, query.of)),
        }
    }

    fn explain(&self, request_id: Option<String>) -> Result<String, (StatusCode, String)> {
        match request_id.as_deref() {
            Some("none") => Err((StatusCode::NOT_FOUND, "it is not remembered".into())),
            id => Ok(format!("[{id:?}]")),
        }
    }

    fn top(&self, query: TopQuery) -> String {
        format!("[{:?} {}]", query.limit, query.count)
    }
}

fn settings_of(address: std::net::SocketAddr) -> SettingsSource {
    Arc::new(ArcSwap::from_pointee(Some(super::Settings::plain(address))))
}

async fn ask(address: std::net::SocketAddr, method: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream
        .write_all(
            format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")
                .as_bytes(),
        )
        .await
        .unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.unwrap();
    reply
}

#[tokio::test]
async fn counters_are_shown_and_forgotten_and_a_reload_is_asked_for_by_their_methods() {
    let listener =
        Listener::bind(&listen::Settings::plain(([127, 0, 0, 1], 0).into()), 1).unwrap().remove(0);
    let address = listener.address();
    let settings = Arc::new(ArcSwap::from_pointee(ListenConfig::default()));
    let (drain, metrics) = (Drain::new(), Metrics::new(1));
    let admin = Admin::new(Arc::new(Shown::default()), metrics.clone(), settings_of(address));
    let serving = tokio::spawn(listener.serve(admin, settings, drain.clone(), metrics));
    let path = "/counters?policy=p&limit=l&key=a%20b";
    for (method, path, status, says) in [
        ("GET", path, "200", "key: \"a b\", tag: None } false\"]"),
        ("DELETE", path, "200", "key: \"a b\", tag: None } true\"]"),
        ("POST", path, "405", "Only GET, HEAD, DELETE."),
        ("DELETE", "/metrics", "405", "Only GET, HEAD."),
        ("POST", "/reload", "422", "{\"applied\":false}"),
        ("GET", "/reload", "405", "Only POST."),
        ("GET", "/explain", "200", "[None]"),
        ("GET", "/explain?request_id=a%2Fb", "200", "[Some(\"a/b\")]"),
        ("GET", "/explain?request_id=none", "404", "it is not remembered"),
        ("GET", "/explain?id=none", "400", "expected request_id"),
        ("GET", "/top", "200", "[None 20]"),
        ("GET", "/top?limit=a%20b&n=1000", "200", "[Some(\"a b\") 1000]"),
        ("GET", "/top?n=0", "400", "n: found \"0\", expected a whole number from 1 to 1000"),
        ("GET", "/counters", "400", "no policy"),
        ("GET", "/counters?policy=none&limit=l&key=", "400", "found \"none\""),
    ] {
        let reply = ask(address, method, path).await;
        assert!(
            reply.starts_with(&format!("HTTP/1.1 {status} ")) && reply.contains(says),
            "{method} {path}: {reply}"
        );
    }
    drain.start();
    serving.await.unwrap();
}

#[tokio::test]
async fn events_come_for_as_long_as_there_are_some() {
    let listener =
        Listener::bind(&listen::Settings::plain(([127, 0, 0, 1], 0).into()), 1).unwrap().remove(0);
    let address = listener.address();
    let config = Arc::new(ArcSwap::from_pointee(ListenConfig::default()));
    let (views, metrics) = (Arc::new(Shown::default()), Metrics::new(1));
    let admin = Admin::new(Arc::clone(&views), metrics.clone(), settings_of(address));
    let serving = tokio::spawn(listener.serve(admin, config, Drain::new(), metrics));
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET /events HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let (mut reply, mut piece) = (String::new(), [0; 4096]);
    // Before the reply ends.
    while !reply.contains("data: <b>\n\n") {
        let read = stream.read(&mut piece).await.unwrap();
        assert!(read > 0, "{reply}");
        reply.push_str(&String::from_utf8_lossy(&piece[..read]));
    }
    assert!(reply.contains("content-type: text/event-stream\r\n"), "{reply}");
    assert!(reply.contains("event: now\ndata: a\ndata: <b>\n\n"), "{reply}");
    assert!(ask(address, "GET", "/events").await.starts_with("HTTP/1.1 503 "));
    drop(views.watching.lock().unwrap().take());
    let mut rest = String::new();
    stream.read_to_string(&mut rest).await.unwrap();
    assert!(rest.ends_with("0\r\n\r\n"), "{rest:?}");
    serving.abort();
}

#[tokio::test]
async fn each_page_shows_what_it_is_handed() {
    let views = Arc::new(Shown::default());
    let metrics = Metrics::new(1);
    let listener =
        Listener::bind(&listen::Settings::plain(([127, 0, 0, 1], 0).into()), 1).unwrap().remove(0);
    let address = listener.address();
    let timeout = Duration::from_secs(5);
    let settings = ConnectionSettings {
        connections_max: 10,
        request_header: timeout,
        keep_alive: timeout,
        ..ConnectionSettings::default()
    };
    let admin = Admin::new(Arc::clone(&views), metrics.clone(), settings_of(address));
    let serving = tokio::spawn(listener.serve(
        admin,
        Arc::new(ArcSwap::from_pointee(ListenConfig::from(settings))),
        Drain::new(),
        metrics,
    ));

    let reply = ask(address, "GET", "/metrics").await;
    assert!(reply.starts_with("HTTP/1.1 200 OK\r\n"), "{reply}");
    assert!(
        reply.contains(
            "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"
        ),
        "{reply}"
    );
    assert!(reply.contains("weir_connections_total 1\n") && reply.ends_with("# EOF\n"), "{reply}");

    assert!(ask(address, "GET", "/live").await.starts_with("HTTP/1.1 200 OK\r\n"));
    assert!(ask(address, "GET", "/ready").await.starts_with("HTTP/1.1 200 OK\r\n"));
    views.broken.store(true, Ordering::SeqCst);
    let reply = ask(address, "GET", "/ready").await;
    assert!(
        reply.starts_with("HTTP/1.1 503 ")
            && reply.ends_with("\r\n\r\nthe store does not answer\n"),
        "{reply}"
    );

    let reply = ask(address, "GET", "/status?x").await;
    assert!(
        reply.contains("content-type: application/json\r\n")
            && reply.ends_with("{\"version\":\"1\"}"),
        "{reply}"
    );
    let head = ask(address, "HEAD", "/status").await;
    assert!(head.contains("content-length: 15\r\n") && head.ends_with("\r\n\r\n"), "{head}");

    let reply = ask(address, "GET", "/other").await;
    let list = "There are /, /metrics, /live, /ready, /status, /counters, /explain, /top, /reload and /events.\n";
    assert!(reply.starts_with("HTTP/1.1 404 ") && reply.ends_with(list), "{reply}");
    assert!(ask(address, "POST", "/other").await.starts_with("HTTP/1.1 404 "));
    let reply = ask(address, "DELETE", "/status").await;
    assert!(
        reply.starts_with("HTTP/1.1 405 ") && reply.contains("allow: GET, HEAD\r\n"),
        "{reply}"
    );
    serving.abort();
}
