//! The client against a server that misbehaves.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::PrivateKeyDer;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_rustls::TlsAcceptor;
use weir_client::{Client, Error, Kind, OnError, Question, Settlement};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const ALLOWED: &str = r#"{"allowed":true,"status":200,"fields":[["ratelimit","r=2"]]}"#;

const BATCH: &str = r#"[{"allowed":true,"status":200},{"error":{"status":413}}]"#;

/// A client, and the head of each request that its server gets. The server answers by what stands
/// in the body.
async fn client(on_error: OnError) -> io::Result<(Client, UnboundedReceiver<String>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let (heads, seen) = unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, heads.clone()));
        }
    });
    let client = Client::builder(url).on_error(on_error).build().map_err(io::Error::other)?;
    Ok((client, seen))
}

async fn serve<S>(stream: S, heads: UnboundedSender<String>) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut stream = BufReader::new(stream);
    for nth in 1.. {
        let (mut head, mut length) = (String::new(), 0);
        while stream.read_line(&mut head).await? > 2 {
            let line = head.lines().last().unwrap_or_default();
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.parse().map_err(io::Error::other)?;
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        let body = String::from_utf8_lossy(&body).into_owned();
        heads.send(head).map_err(io::Error::other)?;
        let has = |word| body.contains(word);
        let (status, answer) = match () {
            () if has("stale") && nth > 1 => return Ok(()),
            () if has("partial") => return stream.write_all(b"HTTP/1.1 2").await,
            () if has("missing") => (404, r#"{"detail":"no such domain"}"#),
            () if has("failing") => (503, r#"{"detail":"the store is away"}"#),
            () if has("garbage") => (200, "<html>"),
            () if has("long") => (413, "{}"),
            () if body.starts_with('[') => (200, BATCH),
            () => (200, ALLOWED),
        };
        let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n", answer.len());
        stream.write_all(head.as_bytes()).await?;
        for byte in answer.bytes() {
            stream.write_all(&[byte]).await?;
            if has("trickle") {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
    Ok(())
}

fn heads(seen: &mut UnboundedReceiver<String>) -> Vec<String> {
    std::iter::from_fn(|| seen.try_recv().ok()).collect()
}

#[tokio::test]
async fn sends_again_with_the_same_key_what_a_closed_connection_swallowed() -> Outcome {
    let (client, mut seen) = client(OnError::Deny).await?;
    assert!(client.decide(&Question::new("ok")).await?.allowed);
    heads(&mut seen);
    let decision = client.decide(&Question::new("stale")).await?;
    assert_eq!((decision.allowed, decision.degraded), (true, None));
    let heads = heads(&mut seen);
    assert_eq!(heads.len(), 2);
    assert!(heads.iter().all(|head| head.contains("idempotency-key: ") && *head == heads[0]));
    Ok(())
}

#[tokio::test]
async fn sends_a_batch_again_with_its_key() -> Outcome {
    let (client, mut seen) = client(OnError::Deny).await?;
    client.decide(&Question::new("ok")).await?;
    heads(&mut seen);
    let questions = [Question::new("stale"), Question::new("other")];
    let results = client.batch(Kind::Decide, &questions).await?;
    let heads = heads(&mut seen);
    assert_eq!(heads.len(), 2);
    assert!(heads.iter().all(|head| head.contains("idempotency-key: ") && *head == heads[0]));
    assert!(matches!(&results[..], [Ok(_), Err(Error::Mistake { status: 413, .. })]));
    Ok(())
}

#[tokio::test]
async fn sends_nothing_again_of_which_an_answer_has_begun() -> Outcome {
    let (client, mut seen) = client(OnError::Deny).await?;
    client.decide(&Question::new("ok")).await?;
    heads(&mut seen);
    let decision = client.decide(&Question::new("partial")).await?;
    assert_eq!(decision.degraded.as_deref(), Some("unreachable"));
    assert_eq!(heads(&mut seen).len(), 1, "an answer had begun");
    Ok(())
}

#[tokio::test]
async fn falls_back_as_it_is_told() -> Outcome {
    for (on_error, allowed, status) in [(OnError::Allow, true, 200), (OnError::Deny, false, 503)] {
        let (client, _seen) = client(on_error).await?;
        for (domain, why) in [
            ("failing", "Service Unavailable"),
            ("garbage", "bad answer"),
            ("partial", "unreachable"),
        ] {
            let decision = client.decide(&Question::new(domain)).await?;
            assert_eq!((decision.allowed, decision.status), (allowed, status), "{domain}");
            assert_eq!(decision.degraded.as_deref(), Some(why));
        }
        let error = client.decide(&Question::new("missing")).await;
        assert!(matches!(error, Err(Error::Mistake { status: 404, .. })), "{error:?}");
        for domain in ["long".to_owned(), "a".repeat(weir_client::MAX_CALL)] {
            let error = client.decide(&Question::new(domain)).await;
            assert!(matches!(error, Err(Error::Mistake { status: 413, .. })), "{error:?}");
        }
        assert!(!client.settle(&Settlement::new("missing")).await?);
    }
    Ok(())
}

#[tokio::test]
async fn the_deadline_is_for_the_last_byte() -> Outcome {
    let (client, _seen) = client(OnError::Deny).await?;
    let start = Instant::now();
    let decision = client.decide(&Question::new("trickle")).await?;
    assert_eq!(decision.degraded.as_deref(), Some("unreachable"));
    assert!((240..1000).contains(&start.elapsed().as_millis()));
    Ok(())
}

/// Settings of a server with a certificate for 127.0.0.1, and of a client that trusts it.
fn tls() -> Result<(ServerConfig, ClientConfig), Box<dyn std::error::Error>> {
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let key = PrivateKeyDer::try_from(signing_key.serialize_der())?;
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)?;
    let mut roots = RootCertStore::empty();
    roots.add(cert.der().clone())?;
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok((server, client))
}

#[tokio::test]
async fn asks_over_tls_a_server_that_it_trusts() -> Outcome {
    let (server, trusting) = tls()?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("https://{}", listener.local_addr()?);
    let (heads_seen, mut seen) = unbounded_channel();
    tokio::spawn(async move {
        let acceptor = TlsAcceptor::from(Arc::new(server));
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, heads) = (acceptor.clone(), heads_seen.clone());
            tokio::spawn(async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    let _ = serve(stream, heads).await;
                }
            });
        }
    });
    let slow = Duration::from_secs(10);
    let client = Client::builder(&url).deadline(slow).tls(trusting).build()?;
    assert_eq!(client.decide(&Question::new("ok")).await?.degraded, None);
    heads(&mut seen);
    // The connection is used again, and a call that it swallowed is sent on a new one.
    let decision = client.decide(&Question::new("stale")).await?;
    assert_eq!((decision.allowed, decision.degraded), (true, None));
    assert_eq!(heads(&mut seen).len(), 2);
    let (_, other) = tls()?;
    let stranger = Client::builder(&url).deadline(slow).tls(other).build()?;
    let decision = stranger.decide(&Question::new("ok")).await?;
    assert_eq!(decision.degraded.as_deref(), Some("unreachable"));
    // Connections that end have an empty head.
    assert!(heads(&mut seen).iter().all(String::is_empty));
    Ok(())
}

#[test]
fn addresses_that_are_none() {
    for wrong in [
        "ftp://a",
        "https://",
        "https://u:p@a",
        "http://",
        "http://u:p@a",
        "http://a?b",
        "http://a#b",
        "http://a:0",
        "http://a:65536",
    ] {
        assert!(matches!(Client::builder(wrong).build(), Err(Error::Address(_))), "{wrong}");
    }
    for right in ["http://a", "http://a:1", "http://a/b/", "http://[::1]", "http://[::1]:1"] {
        assert!(Client::builder(right).build().is_ok(), "{right}");
    }
}
