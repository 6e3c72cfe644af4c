//! HTTP over TLS: handshakes, how they fail, and what they reveal about a client.

use tokio_rustls::client::TlsStream;

use super::certificates::{client, handshake, listener, pem, tls};
use super::*;
use crate::pki::Pki;

/// A client over TLS and HTTP/1.1.
pub(super) struct Client(pub(super) TlsStream<TcpStream>);

impl Client {
    pub(super) async fn connect(server: &TestServer, ca: &str, name: &str) -> Self {
        Self(handshake(server, client(ca, &[b"http/1.1"]), name).await.unwrap())
    }

    pub(super) async fn get(&mut self, path: &str, end: &str) -> String {
        self.0
            .write_all(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes())
            .await
            .unwrap();
        let mut text = String::new();
        while !text.ends_with(end) {
            let mut piece = [0; 4096];
            let read = tokio::time::timeout(TEST_TIMEOUT, self.0.read(&mut piece))
                .await
                .unwrap_or_else(|_| panic!("only {text:?}"))
                .unwrap();
            assert!(read > 0, "closed after {text:?}");
            text.push_str(std::str::from_utf8(&piece[..read]).unwrap());
        }
        text
    }
}

pub(super) fn api(pki: &Pki) -> Arc<Tls> {
    tls(&listener(&[pki.server(&["api.example"])]))
}

fn failed(cause: &str) -> String {
    format!("weir_tls_handshakes_failed_total{{cause=\"{cause}\"}} 1")
}

#[tokio::test]
async fn the_peer_knows_the_host_that_was_named_and_that_the_connection_is_tls() {
    let pki = Pki::new();
    let server = start_tls(settings(), Some(api(&pki)));
    let mut client = Client::connect(&server, &pki.ca, "API.example").await;
    let reply = client.get("/tls", "HTTP/1.1").await;
    assert!(reply.ends_with("true Some(\"api.example\") None HTTP/1.1"), "{reply}");
    assert!(client.get("/hello", "hello").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn only_tls_1_2_and_1_3_are_spoken_and_both_are() {
    let pki = Pki::new();
    let server = start_tls(settings(), Some(api(&pki)));
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let mut config = client(&pki.ca, &[]);
        let roots = pem("ca.pem", &pki.ca).certificates().unwrap();
        let mut store = rustls::RootCertStore::empty();
        store.add(roots[0].clone()).unwrap();
        let builder = rustls::ClientConfig::builder_with_provider(weir_tls::provider())
            .with_protocol_versions(&[version])
            .unwrap();
        config.clone_from(&builder.with_root_certificates(store).with_no_client_auth());
        let stream = handshake(&server, config, "api.example").await.unwrap();
        assert_eq!(stream.get_ref().1.protocol_version(), Some(version.version));
        let mut client = Client(stream);
        assert!(client.get("/hello", "hello").await.starts_with("HTTP/1.1 200"));
    }
    // A TLS 1.1 hello, byte by byte, since rustls can't send one.
    let mut old = server.connect().await;
    let mut hello = b"\x16\x03\x01\x00\x2f\x01\x00\x00\x2b\x03\x02".to_vec();
    hello.extend([7; 32]);
    hello.extend(b"\x00\x00\x04\xc0\x13\x00\x2f\x01\x00");
    old.0.write_all(&hello).await.unwrap();
    let mut alert = Vec::new();
    tokio::time::timeout(TEST_TIMEOUT, old.0.read_to_end(&mut alert))
        .await
        .expect("not closed")
        .unwrap();
    assert_eq!(alert[0], 21, "an alert: {alert:?}");
    server.await_shown(&failed("incompatible")).await;
}

#[tokio::test]
async fn a_client_resumes_its_session() {
    let pki = Pki::new();
    let server = start_tls(settings(), Some(api(&pki)));
    let config = client(&pki.ca, &[b"http/1.1"]);
    for (attempt, expected) in
        [(0, rustls::HandshakeKind::Full), (1, rustls::HandshakeKind::Resumed)]
    {
        let mut client = Client(handshake(&server, config.clone(), "api.example").await.unwrap());
        client.get("/hello", "hello").await;
        let kind = client.0.get_ref().1.handshake_kind().unwrap();
        // The first handshake may need another round trip to agree on a group.
        assert_eq!(
            kind == rustls::HandshakeKind::Resumed,
            expected == rustls::HandshakeKind::Resumed,
            "{attempt}: {kind:?}"
        );
    }
}

#[tokio::test]
async fn a_client_that_does_not_shake_hands_is_cut_off_and_holds_nobody() {
    let pki = Pki::new();
    let server = start_tls(
        ConnectionSettings { tls_handshake: Duration::from_millis(300), ..settings() },
        Some(api(&pki)),
    );
    let mut silent = server.connect().await;
    let mut half = server.connect().await;
    half.0.write_all(b"\x16\x03\x01").await.unwrap();
    // Meanwhile others are served.
    Client::connect(&server, &pki.ca, "api.example").await.get("/hello", "hello").await;
    assert_eq!(silent.read_all().await, "");
    assert_eq!(half.read_all().await, "");
    server.await_shown("weir_tls_handshakes_failed_total{cause=\"timeout\"} 2").await;
    server.await_shown("weir_connections_open 0").await;
}

#[tokio::test]
async fn plain_http_on_a_tls_port_is_answered_so_that_a_person_understands() {
    let pki = Pki::new();
    let server = start_tls(settings(), Some(api(&pki)));
    let mut plain = server.connect().await;
    plain.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let reply = plain.read_all().await;
    assert!(reply.starts_with("HTTP/1.1 400 ") && reply.contains("speaks HTTPS"), "{reply}");
    server.await_shown(&failed("plain_text")).await;
    assert_eq!(server.handler.0.calls.load(Ordering::SeqCst), 0);
    let mut noise = server.connect().await;
    noise.send("\u{1}").await;
    // Closed or reset, without a reply.
    let _ =
        tokio::time::timeout(TEST_TIMEOUT, noise.0.read(&mut [0; 1])).await.expect("not closed");
    server.await_shown(&failed("malformed")).await;
    drop(server.connect().await);
    server.await_shown(&failed("closed")).await;
}

#[tokio::test]
async fn a_tls_hello_on_a_plain_port_is_refused_and_counted() {
    let pki = Pki::new();
    let server = start(settings());
    let error = handshake(&server, client(&pki.ca, &[]), "api.example").await.unwrap_err();
    assert!(error.to_string().contains("corrupt message"), "{error}");
    server.await_shown("weir_connection_errors_total{cause=\"tls_hello\"} 1").await;
}

#[tokio::test]
async fn no_common_protocol_and_a_distrusting_client_are_told_apart() {
    let pki = Pki::new();
    let server = start_tls(settings(), Some(api(&pki)));
    assert!(handshake(&server, client(&pki.ca, &[b"spdy/3"]), "api.example").await.is_err());
    server.await_shown(&failed("incompatible")).await;
    assert!(handshake(&server, client(&Pki::new().ca, &[]), "api.example").await.is_err());
    server.await_shown(&failed("alert")).await;
}

#[tokio::test]
async fn a_client_whose_certificate_expires_can_not_resume_its_session() {
    let pki = Pki::new();
    let clients = ClientCertificates { ca: pem("ca.pem", &pki.ca), required: true, crl: None };
    let server = start_tls(
        settings(),
        Some(tls(&Settings {
            clients: Some(clients),
            ..listener(&[pki.server(&["api.example"])])
        })),
    );
    let now_s = u64::try_from(crate::clock::Clock::system().wall_us() / 1_000_000).unwrap();
    let issued = pki.client_until("alice", now_s + 4);
    let config = with_certificate(&pki, &issued);
    let began = crate::clock::monotonic();
    let mut resumed = false;
    // With each connection it gets fresh tickets.
    loop {
        let Ok(stream) = handshake(&server, config.clone(), "api.example").await else { break };
        let mut client = Client(stream);
        client.0.write_all(b"GET /hello HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        let mut answer = [0; 12];
        if client.0.read_exact(&mut answer).await.is_err() {
            break;
        }
        resumed |= client.0.get_ref().1.handshake_kind() == Some(rustls::HandshakeKind::Resumed);
        assert!(began.elapsed() < TEST_TIMEOUT, "it is served for ever");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(resumed, "the session was resumed while the certificate was valid");
    server.await_shown(&failed("client_certificate")).await;
}

/// A client that shows this certificate.
fn with_certificate(pki: &Pki, issued: &crate::pki::IssuedCertificate) -> rustls::ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(pem("ca.pem", &pki.ca).certificates().unwrap()[0].clone()).unwrap();
    let builder = rustls::ClientConfig::builder_with_provider(weir_tls::provider())
        .with_safe_default_protocol_versions()
        .unwrap();
    let (chain, key) = (
        pem("c", &issued.certificate).certificates().unwrap(),
        pem("k", &issued.key).key().unwrap(),
    );
    builder.with_root_certificates(roots).with_client_auth_cert(chain, key).unwrap()
}

#[tokio::test]
async fn a_clients_certificate_is_asked_for_verified_and_named() {
    let (pki, stranger) = (Pki::new(), Pki::new());
    let with = |issued: &crate::pki::IssuedCertificate| with_certificate(&pki, issued);
    for required in [true, false] {
        let clients = ClientCertificates { ca: pem("ca.pem", &pki.ca), required, crl: None };
        let server = start_tls(
            settings(),
            Some(tls(&Settings {
                clients: Some(clients),
                ..listener(&[pki.server(&["api.example"])])
            })),
        );
        let mut alice =
            Client(handshake(&server, with(&pki.client("alice")), "api.example").await.unwrap());
        let reply = alice.get("/tls", "HTTP/1.1").await;
        assert!(reply.contains("Some(\"CN=alice\")"), "{reply}");
        // With TLS 1.3 the client's handshake is complete before the server has verified it.
        let mut eve =
            handshake(&server, with(&stranger.client("alice")), "api.example").await.unwrap();
        assert!(eve.read(&mut [0; 1]).await.is_err());
        server.await_shown(&failed("client_certificate")).await;
        let mut nobody = handshake(&server, client(&pki.ca, &[]), "api.example").await.unwrap();
        if required {
            assert!(nobody.read(&mut [0; 1]).await.is_err());
            server
                .await_shown("weir_tls_handshakes_failed_total{cause=\"client_certificate\"} 2")
                .await;
        } else {
            let reply = Client(nobody).get("/tls", "HTTP/1.1").await;
            assert!(reply.ends_with("true Some(\"api.example\") None HTTP/1.1"), "{reply}");
        }
    }
}

#[tokio::test]
async fn a_client_whose_certificate_was_revoked_is_turned_away() {
    let pki = Pki::new();
    let (alice, bob) = (pki.client_numbered("alice", 7), pki.client_numbered("bob", 8));
    let with = |crl: &str| {
        let crl = Some(pem("crl.pem", crl));
        let clients = ClientCertificates { ca: pem("ca.pem", &pki.ca), required: true, crl };
        Settings { clients: Some(clients), ..listener(&[pki.server(&["api.example"])]) }
    };
    let is_served = async |crl: &str, issued: &crate::pki::IssuedCertificate| {
        let server = start_tls(settings(), Some(tls(&with(crl))));
        let config = with_certificate(&pki, issued);
        let mut stream = handshake(&server, config, "api.example").await.unwrap();
        stream.write_all(b"GET /hello HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        let served = stream.read_exact(&mut [0; 12]).await.is_ok();
        if !served {
            server.await_shown(&failed("client_certificate")).await;
        }
        served
    };
    let list = pki.revoked(&[7], 2400);
    assert!(!is_served(&list, &alice).await);
    assert!(is_served(&list, &bob).await);
    // A list that is too old, or of another authority, says nothing of whom it does not name.
    assert!(!is_served(&pki.revoked(&[7], 2002), &bob).await);
    assert!(!is_served(&Pki::new().revoked(&[7], 2400), &bob).await);
    // Of several of one authority the newest counts, wherever it is in the file.
    let newer = pki.revoked_in(&[7, 8], (2002, 2), 2400);
    for crl in [format!("{list}{newer}"), format!("{newer}{list}")] {
        assert!(!is_served(&crl, &bob).await);
    }
    let other = Pki::named("Others").revoked_in(&[8], (2003, 3), 2400);
    assert!(is_served(&format!("{other}{list}"), &bob).await);
    let Err(errors) = Tls::build(&with("nothing"), None) else { panic!("it is no list") };
    assert_eq!(errors[0].setting, "listeners[0].client_crl");
    assert_eq!(errors[0].found, "no revocation list in crl.pem");
    let broken = "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n";
    let Err(errors) = Tls::build(&with(broken), None) else { panic!("it is no list") };
    assert_eq!(errors[0].setting, "listeners[0].client_crl");
    assert!(errors[0].found.starts_with("a broken list in crl.pem"), "{}", errors[0].found);
    // One that is too old is reported, as it turns everybody away.
    let now_s = crate::clock::Clock::system().wall_us() / 1_000_000;
    let warnings = |crl: &str| tls(&with(crl)).warnings(now_s).collect::<Vec<_>>();
    assert!(warnings(&list).is_empty());
    assert!(warnings(&format!("{}{newer}", pki.revoked(&[7], 2002))).is_empty());
    let old = warnings(&pki.revoked(&[7], 2002));
    assert_eq!(old[0].setting, "listeners[0].client_crl");
    assert!(old[0].found.contains("a list that ended on"), "{:?}", old[0]);
    // A session that was resumed would not be checked again.
    let server = start_tls(settings(), Some(tls(&with(&list))));
    let config = with_certificate(&pki, &bob);
    for _ in 0..3 {
        let mut client = Client(handshake(&server, config.clone(), "api.example").await.unwrap());
        assert!(client.get("/hello", "hello").await.starts_with("HTTP/1.1 200"));
        let kind = client.0.get_ref().1.handshake_kind();
        assert_eq!(kind, Some(rustls::HandshakeKind::Full));
    }
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_given_up_also_behind_tls() {
    let pki = Pki::new();
    let server = start_tls(
        ConnectionSettings { send_idle: Duration::from_millis(300), ..settings() },
        Some(api(&pki)),
    );
    let mut client = Client::connect(&server, &pki.ca, "api.example").await;
    client.0.write_all(b"GET /long HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    server.await_shown("weir_connection_errors_total{cause=\"send_timeout\"} 1").await;
    server.await_shown("weir_connections_open 0").await;
}

#[tokio::test]
async fn a_drain_finishes_what_is_under_way_on_tls() {
    let pki = Pki::new();
    let server = start_tls(settings(), Some(api(&pki)));
    let mut busy = Client::connect(&server, &pki.ca, "api.example").await;
    let mut idle = Client::connect(&server, &pki.ca, "api.example").await;
    idle.get("/hello", "hello").await;
    busy.0.write_all(b"GET /wait HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    server.handler.0.begun.notified().await;
    server.drain.start();
    let mut rest = String::new();
    idle.0.read_to_string(&mut rest).await.unwrap();
    assert_eq!(rest, "");
    server.handler.0.go.notify_one();
    busy.0.read_to_string(&mut rest).await.unwrap();
    assert!(rest.contains("connection: close\r\n") && rest.ends_with("waited"), "{rest}");
    tokio::time::timeout(TEST_TIMEOUT, server.serving)
        .await
        .expect("serve() does not return")
        .unwrap();
}

#[tokio::test]
async fn a_handshake_under_way_when_a_drain_begins_leads_to_one_request() {
    let pki = Pki::new();
    let server = start_tls(settings(), Some(api(&pki)));
    let socket = TcpStream::connect(server.address).await.unwrap();
    server.await_shown("weir_connections_open 1").await;
    server.drain.start();
    let name = rustls::pki_types::ServerName::try_from("api.example").unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(client(&pki.ca, &[b"http/1.1"])));
    let mut stream = connector.connect(name, socket).await.unwrap();
    stream.write_all(b"GET /hello HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.unwrap();
    assert!(reply.contains("connection: close\r\n") && reply.ends_with("hello"), "{reply}");
    tokio::time::timeout(TEST_TIMEOUT, server.serving)
        .await
        .expect("serve() does not return")
        .unwrap();
}
