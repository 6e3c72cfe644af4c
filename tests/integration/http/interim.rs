//! Interim responses to clients of HTTP/2: 100 (Continue) and 103 (Early Hints). Those of HTTP/1.1
//! are in `routes/actions.rs`.

use std::future::poll_fn;
use std::net::SocketAddr;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};

use crate::harness::TIMEOUT;
use crate::harness::toml::Toml;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;
use crate::routes::actions::answering;

const ONE: &str = "name = \"one\", algorithm = \"fixed_window\", quota = 1, period = \"1d\"";

async fn connect(address: SocketAddr) -> SendRequest<Bytes> {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    client.ready().await.unwrap()
}

/// The next interim response; `None` if the response comes.
async fn interim(reply: &mut ResponseFuture) -> Option<http::Response<()>> {
    let next = poll_fn(|cx| reply.poll_informational(cx));
    tokio::time::timeout(TIMEOUT, next).await.expect("in time").map(|head| head.unwrap())
}

async fn status(reply: ResponseFuture) -> u16 {
    tokio::time::timeout(TIMEOUT, reply).await.expect("in time").unwrap().status().as_u16()
}

#[tokio::test]
async fn early_hints_reach_clients_of_http2_and_say_nothing_that_a_reply_may_not_say() {
    let reply = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\nLink: </b.js>\r\nConnection: x-hop\r\nX-Hop: 1\r\n\
                 X-Request-Id: foreign\r\nServer: secret\r\nContent-Length: 9\r\n\r\n\
                 HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let (address, _told) = answering(reply, "\r\n\r\n");
    let config = Toml::new().upstream("api", &format!("http://{address}"), "").route(
        "path = \"/*\"\nupstream = \"api\"\nresponse_headers = { remove = [\"Server\"], set = { X-Set = \"ours\" } }",
    );
    let weir = Weir::start(&config.text());
    let mut client = connect(weir.http).await;
    let request = http::Request::get("http://api.example/").body(()).unwrap();
    let (mut reply, _) = client.send_request(request, true).unwrap();
    let hints = interim(&mut reply).await.expect("hints");
    assert_eq!(hints.status(), 103);
    let mut fields: Vec<String> = hints
        .headers()
        .iter()
        .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
        .collect();
    fields.sort();
    assert_eq!(fields, ["link: </a.css>", "link: </b.js>", "x-set: ours"]);
    assert!(interim(&mut reply).await.is_none());
    let mut reply = reply.await.unwrap();
    assert_eq!(reply.status(), 200);
    assert_eq!(reply.body_mut().data().await.unwrap().unwrap(), "ok");
}

#[tokio::test]
async fn an_upload_over_http2_that_waits_for_100_gets_it_when_admitted_and_only_then() {
    let upstream = Upstream::start();
    // In front of that, it speaks HTTP/2 to the proxy.
    let route = "path = \"/*\"\nupstream = \"api\"";
    let inner = Weir::start(&Toml::new().upstream("api", &upstream.url(), "").route(route).text());
    let second = format!("http://{}", inner.http);
    // A connection of HTTP/2 to the upstream reads the body in a task of its own.
    for (protocol, url) in [("h1", upstream.url()), ("h2", second)] {
        let config = Toml::new()
            .upstream("api", &url, &format!("protocol = \"{protocol}\""))
            .policy("public", &[ONE])
            .route(&format!("{route}\npolicy = \"public\""));
        let weir = Weir::start(&config.text());
        let before = upstream.count();
        let mut client = connect(weir.http).await;
        let post = || {
            http::Request::post("http://api.example/up")
                .header("expect", "100-continue")
                .body(())
                .unwrap()
        };
        let (mut reply, mut upload) = client.send_request(post(), false).unwrap();
        assert_eq!(interim(&mut reply).await.expect("a 100").status(), 100, "{protocol}");
        upload.send_data(Bytes::from_static(b"a body"), true).unwrap();
        assert!(interim(&mut reply).await.is_none(), "{protocol}");
        assert_eq!(status(reply).await, 200, "{protocol}");
        let seen = upstream.last();
        assert_eq!((&*seen.body, seen.header("expect")), (&b"a body"[..], None), "{protocol}");
        // Refused: the client is told at once, and is never asked for its body.
        let (mut reply, _upload) = client.send_request(post(), false).unwrap();
        assert!(interim(&mut reply).await.is_none(), "{protocol}");
        assert_eq!(status(reply).await, 429, "{protocol}");
        assert_eq!(upstream.count(), before + 1, "{protocol}");
    }
}
