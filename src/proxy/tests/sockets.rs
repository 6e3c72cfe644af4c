//! Whole requests over real sockets: listener, proxy, upstream.

use std::net::SocketAddr;
use std::sync::Mutex;

use arc_swap::ArcSwap;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::*;
use crate::listen::{self, ConnectionSettings, Drain, ListenConfig, Listener};
use crate::proxy::forward::exchange::UpstreamExchange;
use crate::upstream::{self, Upstream};

/// A proxy in front of an upstream that answers each request with `ok` and keeps its head.
pub(super) struct TestProxy {
    address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
    metrics: Metrics,
    live: Arc<Live>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for TestProxy {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl TestProxy {
    pub(super) async fn new(change: impl FnOnce(&mut RouteSettings)) -> Self {
        let metrics = Metrics::new(1);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = listener.local_addr().unwrap();
        let heads = Arc::new(Mutex::new(Vec::new()));
        let answers = tokio::spawn(answer(listener, Arc::clone(&heads)));
        let upstream = upstream::Settings {
            connect: TEST_TIMEOUT,
            response_header: TEST_TIMEOUT,
            idle: TEST_TIMEOUT,
            ..upstream::Settings::new("api", vec![format!("http://{endpoint}")])
        };
        let upstream = Arc::new(Upstream::build(&upstream, &metrics).unwrap());
        let mut route = RouteSettings {
            name: "api".into(),
            action: RouteAction::Upstream(upstream),
            body_bytes_max: 10,
            inspect: Inspect::default(),
            ..respond("/*")
        };
        change(&mut route);
        let snapshot =
            Snapshot::build(settings(), vec![route], limiter(&metrics), &metrics).unwrap();
        let listener = Listener::bind(&listen::Settings::plain("127.0.0.1:0".parse().unwrap()), 1)
            .unwrap()
            .pop()
            .unwrap();
        let address = listener.address();
        let connections = ConnectionSettings {
            request_header: TEST_TIMEOUT,
            keep_alive: TEST_TIMEOUT,
            ..ConnectionSettings::default()
        };
        let live = Live::new(Arc::new(ArcSwap::from_pointee(snapshot)));
        let proxy = Proxy::new(Arc::clone(&live));
        let serving = listener.serve(
            proxy,
            Arc::new(ArcSwap::from_pointee(ListenConfig::from(connections))),
            Drain::new(),
            metrics.clone(),
        );
        Self { address, heads, metrics, live, tasks: vec![tokio::spawn(serving), answers] }
    }

    /// Sends `request` on a connection of its own and reads until the proxy closes.
    pub(super) async fn exchange(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut reply = String::new();
        let read = stream.read_to_string(&mut reply);
        tokio::time::timeout(TEST_TIMEOUT, read).await.unwrap().unwrap();
        reply
    }

    /// Handles a request that came from no connection.
    pub(super) async fn handle(&self, request: Request) -> Response {
        handle(&self.live.load(), request, &peer()).await
    }

    pub(super) fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

/// An upstream: for each request it keeps the head, reads a body of declared length, and answers
/// `ok`.
async fn answer(listener: TcpListener, heads: Arc<Mutex<Vec<String>>>) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let heads = Arc::clone(&heads);
        tokio::spawn(async move {
            let mut got = Vec::new();
            while let Ok(1..) = stream.read_buf(&mut got).await {
                let Some(end) = got.windows(4).position(|four| four == b"\r\n\r\n") else {
                    continue;
                };
                let head = String::from_utf8(got[..end + 2].to_vec()).unwrap();
                let chunked = head.contains("transfer-encoding: chunked");
                if chunked && !got.ends_with(b"0\r\n\r\n") {
                    continue;
                }
                heads.lock().unwrap().push(head);
                got.clear();
                stream
                    .write_all(
                        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nkeep-alive: timeout=5\r\n\r\nok",
                    )
                    .await
                    .unwrap();
            }
        });
    }
}

#[tokio::test]
async fn a_request_goes_through_and_back() {
    let proxy = TestProxy::new(|route| route.policy = Some(client_ip(TWO_A_MINUTE))).await;
    let request = "GET /a/%2e%2e//b?q=%2e HTTP/1.1\r\nHost: Api.Example\r\nX-Forwarded-For: 1.1.1.1\r\nConnection: close, x-hop\r\nx-hop: 1\r\n\r\n";
    let reply = proxy.exchange(request).await;
    assert!(reply.starts_with("HTTP/1.1 200 OK\r\n") && reply.ends_with("\r\n\r\nok"), "{reply}");
    assert!(
        reply.contains("\r\nratelimit: \"per-minute\";r=1;t=60\r\n")
            && reply.contains("\r\nx-request-id: "),
        "{reply}"
    );
    assert!(!reply.contains("keep-alive: timeout"), "{reply}");
    let head = proxy.heads().pop().unwrap();
    assert!(head.starts_with("GET /b?q=%2e HTTP/1.1\r\n"), "{head}");
    for line in [
        "Host: Api.Example",
        "x-forwarded-for: 127.0.0.1",
        "forwarded: for=127.0.0.1;host=api.example;proto=http",
    ] {
        assert!(head.contains(&format!("\r\n{line}\r\n")), "{line}: {head}");
    }
    let head = head.to_lowercase();
    assert!(
        !head.contains("x-hop") && !head.contains("connection") && !head.contains("1.1.1.1"),
        "{head}"
    );
    for status in [200, 429, 429] {
        let reply = proxy.exchange("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
        assert!(reply.starts_with(&format!("HTTP/1.1 {status} ")), "{reply}");
    }
    assert_eq!(proxy.heads().len(), 2, "a refused request is not sent");
    assert!(proxy.metrics.encode().contains("weir_requests_total{route=\"api\",code=\"429\"} 2\n"));
}

/// What a policy's `settle` is told of whose status it is.
#[tokio::test]
async fn a_reply_is_the_upstreams_only_if_an_upstream_sent_it() {
    let own = || RouteAction::Respond(Respond { status: 200, ..Respond::default() });
    for (proxy, by_upstream) in [
        (TestProxy::new(|_| {}).await, true),
        (TestProxy::new(|route| route.action = own()).await, false),
    ] {
        let local = proxy.live.load();
        let request = http::Request::get("http://api.example/").body(Body::empty()).unwrap();
        let (mut request, peer) = (Request::from(request), peer());
        let mut context = RequestContext::begin(&local, &request, &peer);
        let admitted = serve::admit(&local, &mut request, &peer, &mut context, |_| {}).await;
        let mut admitted = admitted.unwrap();
        serve::answer(request, &mut admitted, &peer, &mut context, &UpstreamExchange)
            .await
            .unwrap();
        assert_eq!(context.sent.as_ref().is_some_and(|sent| sent.by_upstream), by_upstream);
    }
}

#[tokio::test]
async fn an_old_client_is_served_and_the_upstream_asked_in_1_1() {
    let proxy = TestProxy::new(|_| {}).await;
    let reply = proxy.exchange("GET / HTTP/1.0\r\n\r\n").await;
    assert!(reply.contains(" 200 OK\r\n") && reply.ends_with("ok"), "{reply}");
    let head = proxy.heads().pop().unwrap();
    assert!(
        head.starts_with("GET / HTTP/1.1\r\n")
            && head.contains(&format!("\r\nhost: {}\r\n", proxy.address)),
        "{head}"
    );
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_before_it_is_read_and_while_it_comes() {
    let proxy = TestProxy::new(|route| route.policy = Some(client_ip(TWO_A_MINUTE))).await;
    let declared = proxy
        .exchange(
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\nExpect: 100-continue\r\n\r\n",
        )
        .await;
    assert!(declared.starts_with("HTTP/1.1 413 "), "no 100 first: {declared}");
    assert!(!declared.contains("ratelimit"), "nothing was charged: {declared}");
    assert_eq!(proxy.heads().len(), 0);
    let chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\nb\r\n01234567890\r\n0\r\n\r\n";
    let streamed = proxy.exchange(chunked).await;
    assert!(streamed.starts_with("HTTP/1.1 413 "), "{streamed}");
    assert_eq!(proxy.heads().len(), 0, "the upstream never got a whole request");
}

#[tokio::test]
async fn a_client_that_waits_for_100_gets_it_once_its_request_is_admitted() {
    let proxy = TestProxy::new(|_| {}).await;
    let mut stream = TcpStream::connect(proxy.address).await.unwrap();
    let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut interim = [0; 25];
    tokio::time::timeout(TEST_TIMEOUT, stream.read_exact(&mut interim)).await.unwrap().unwrap();
    assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"2\r\nhi\r\n0\r\n\r\n").await.unwrap();
    let mut reply = String::new();
    tokio::time::timeout(TEST_TIMEOUT, stream.read_to_string(&mut reply)).await.unwrap().unwrap();
    assert!(reply.starts_with("HTTP/1.1 200 OK\r\n"), "{reply}");
    assert!(!proxy.heads().pop().unwrap().to_lowercase().contains("expect"));
}

#[tokio::test]
async fn ambiguous_requests_never_reach_the_upstream() {
    let proxy = TestProxy::new(|_| {}).await;
    for request in [
        "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        "GET /\\..\\a HTTP/1.1\r\nHost: a\r\n\r\n",
    ] {
        let reply =
            proxy.exchange(&request.replacen("\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1)).await;
        assert!(
            reply.starts_with("HTTP/1.1 400 ") || reply.starts_with("HTTP/1.1 501 "),
            "{request:?}: {reply}"
        );
    }
    assert_eq!(proxy.heads(), [""; 0]);
}
