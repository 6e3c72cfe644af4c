//! Pooled connections that the upstream closes while the next request is on its way.

use super::*;
use crate::wire::tests::{CHUNKED, incoming};

/// Answers the first request of its first connection with `first`, reads the next one and closes.
/// Answers all requests of further connections with the body that it got.
async fn closing(first: &'static str, said_before: &'static str) -> ScriptedUpstream {
    ScriptedUpstream::new(move |mut stream, number| async move {
        let mut turn = 0;
        while let Some(head) = stream.head().await {
            turn += 1;
            if number == 0 && turn == 2 {
                return stream.send(said_before).await;
            }
            let body = if head.contains("chunked") {
                stream.read_to("0\r\n\r\n").await.unwrap_or_default()
            } else {
                String::new()
            };
            if number == 0 {
                stream.send(first).await;
            } else {
                stream
                    .send(&format!(
                        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}",
                        body.len()
                    ))
                    .await;
            }
        }
    })
    .await
}

/// Sends a request that is answered, so that its connection is pooled, and then `request`.
async fn second(
    scripted: &ScriptedUpstream,
    changed: impl Fn(&mut Settings),
    request: Request,
) -> Result<String, UpstreamError> {
    let mut settings = settings(&[scripted.address]);
    changed(&mut settings);
    let upstream = Upstream::build(&settings, &Metrics::new(1)).unwrap();
    assert_eq!(text(in_time(upstream.send(get())).await?).await, "ok");
    Ok(text(in_time(upstream.send(request)).await?).await)
}

fn with(method: &str, mut request: Request) -> Request {
    request.method = method.parse().unwrap();
    request
}

#[tokio::test]
async fn an_idempotent_request_goes_to_a_new_connection_of_the_only_host() {
    for method in ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"] {
        let scripted = closing(OK, "").await;
        assert_eq!(second(&scripted, |_| {}, with(method, get())).await.unwrap(), "", "{method}");
        assert_eq!(scripted.accepted(), 2, "{method}");
    }
}

#[tokio::test]
async fn requests_that_may_not_be_repeated_are_not() {
    let refused = async |method: &str, retry: Retry, said: &'static str| {
        let scripted = closing(OK, said).await;
        let error = second(&scripted, |settings| settings.retry = retry, with(method, get()))
            .await
            .unwrap_err();
        assert_eq!((error.cause, error.sent), (Cause::Cut, true), "{method} {retry:?} {said:?}");
        assert_eq!(scripted.accepted(), 1, "{method} {retry:?} {said:?}");
    };
    for method in ["POST", "PATCH"] {
        refused(method, Retry::Idempotent, "").await;
    }
    for retry in [Retry::Off, Retry::Unsent] {
        refused("GET", retry, "").await;
    }
    // Part of the reply has come, so it was not closed before the request.
    for said in ["HTTP/1.1 200", "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"] {
        refused("GET", Retry::Idempotent, said).await;
    }
    let scripted = closing(OK, "").await;
    let (_client, body) = incoming(&format!("{CHUNKED}3\r\nabc\r\n0\r\n\r\n")).await;
    let error =
        second(&scripted, |_| {}, with("PUT", post(Body::incoming(body)))).await.unwrap_err();
    assert_eq!((error.cause, scripted.accepted()), (Cause::Cut, 1));
}

#[tokio::test]
async fn it_is_sent_once_more_and_no_host_is_blamed() {
    // Each connection answers one request, and no new one answers the second.
    let scripted = ScriptedUpstream::new(|mut stream, number| async move {
        stream.head().await;
        if number == 0 {
            stream.send(OK).await;
            stream.head().await;
        }
    })
    .await;
    assert_eq!(second(&scripted, |_| {}, get()).await.unwrap_err().cause, Cause::Cut);
    assert_eq!(scripted.accepted(), 2);
    let (one, two) = (closing(OK, "").await, closing(OK, "").await);
    let ejection = Ejection { failures: 1, ..Ejection::default() };
    let upstream = Upstream::build(
        &Settings { ejection, ..settings(&[one.address, two.address]) },
        &Metrics::new(1),
    )
    .unwrap();
    for _ in 0..20 {
        assert_eq!(in_time(upstream.send(get())).await.unwrap().status, 200);
    }
    assert_eq!((one.accepted(), two.accepted()), (2, 2));
    assert!(upstream.0.hosts.current().iter().all(|host| !host.is_ejected()));
}

#[tokio::test]
async fn an_upload_never_goes_to_a_kept_connection_of_http_1_0() {
    let scripted =
        closing("HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nok", "")
            .await;
    let (_client, body) = incoming(&format!("{CHUNKED}3\r\nabc\r\n0\r\n\r\n")).await;
    let answer = second(&scripted, |_| {}, post(Body::incoming(body))).await.unwrap();
    assert_eq!((answer.as_str(), scripted.accepted()), ("3\r\nabc\r\n0\r\n\r\n", 2));
    // A request without a body is sent on it, and then on a new one.
    let scripted =
        closing("HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nok", "")
            .await;
    assert_eq!(second(&scripted, |_| {}, get()).await.unwrap(), "");
    assert_eq!(scripted.accepted(), 2);
}

#[tokio::test]
async fn over_http2_it_goes_to_a_new_connection_too() {
    let scripted = ScriptedUpstream::new(|stream, number| async move {
        let mut connection = h2::server::handshake(stream.0).await.unwrap();
        let mut turn = 0;
        while let Some(Ok((_, mut respond))) = connection.accept().await {
            turn += 1;
            if number == 0 && turn == 2 {
                // The socket is closed, and no GOAWAY says which requests were processed.
                return;
            }
            let mut stream = respond.send_response(http::Response::new(()), false).unwrap();
            let _ = stream.send_data(Bytes::from_static(b"ok"), true);
        }
    })
    .await;
    let protocol = |settings: &mut Settings| settings.protocol = Protocol::H2;
    assert_eq!(second(&scripted, protocol, get()).await.unwrap(), "ok");
    assert_eq!(scripted.accepted(), 2);
}
