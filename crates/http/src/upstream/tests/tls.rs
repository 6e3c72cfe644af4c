//! TLS to upstreams: real handshakes, with a certificate authority made for the test.

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::pki::{IssuedCertificate, Pki};
use rcgen::{KeyPair, PublicKeyData as _};
use weir_tls::{ClientTls, Identity, Pem, Pin, provider};

fn pem(text: &str) -> Pem {
    Pem { path: "test.pem".into(), bytes: text.as_bytes().into() }
}

fn identity(issued: &IssuedCertificate) -> Identity {
    Identity { certificate: pem(&issued.certificate), key: pem(&issued.key) }
}

/// A server for `name`. It asks for a client certificate if `clients` is an authority.
fn server(
    pki: &Pki,
    name: &str,
    clients: Option<&Pki>,
    alpn: &[&str],
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> TlsAcceptor {
    acceptor(&pki.server(&[name]), clients, alpn, versions)
}

fn acceptor(
    issued: &IssuedCertificate,
    clients: Option<&Pki>,
    alpn: &[&str],
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> TlsAcceptor {
    let chain = vec![CertificateDer::from_pem_slice(issued.certificate.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).unwrap();
    let config =
        ServerConfig::builder_with_provider(provider()).with_protocol_versions(versions).unwrap();
    let config = match clients {
        None => config.with_no_client_auth(),
        Some(clients) => {
            let mut roots = rustls::RootCertStore::empty();
            roots.add(CertificateDer::from_pem_slice(clients.ca.as_bytes()).unwrap()).unwrap();
            config.with_client_cert_verifier(
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
                    .build()
                    .unwrap(),
            )
        }
    };
    let mut config = config.with_single_cert(chain, key).unwrap();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    TlsAcceptor::from(Arc::new(config))
}

/// Answers HTTP/1.1 over TLS, one request per connection, with the result of the handshake.
async fn scripted(acceptor: TlsAcceptor) -> ScriptedUpstream {
    ScriptedUpstream::new(move |stream, _| {
        let acceptor = acceptor.clone();
        async move {
            let Ok(mut tls) = acceptor.accept(stream.0).await else { return };
            let session = tls.get_ref().1;
            let told = format!(
                "{:?} {:?} {:?}",
                session.protocol_version().unwrap(),
                session.handshake_kind().unwrap(),
                session.server_name()
            );
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let Ok(byte) = tls.read_u8().await else { return };
                head.push(byte);
            }
            let reply = format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{told}",
                told.len()
            );
            let _ = tls.write_all(reply.as_bytes()).await;
            let _ = tls.shutdown().await;
        }
    })
    .await
}

fn settings_tls(scripted: &ScriptedUpstream, pki: &Pki) -> Settings {
    Settings {
        endpoints: vec![format!("https://localhost:{}", scripted.address.port()).into()],
        tls: ClientTls { ca: Some(pem(&pki.ca)), ..ClientTls::default() },
        ..settings(&[])
    }
}

async fn send(settings: &Settings) -> Result<String, UpstreamError> {
    Ok(text(in_time(Upstream::build(settings, &Metrics::new(1)).unwrap().send(get())).await?).await)
}

#[tokio::test]
async fn both_versions_are_spoken_and_sessions_resumed() {
    let pki = Pki::new();
    for (version, name) in
        [(&rustls::version::TLS12, "TLSv1_2"), (&rustls::version::TLS13, "TLSv1_3")]
    {
        let scripted = scripted(server(&pki, "localhost", None, &["http/1.1"], &[version])).await;
        let upstream = Upstream::build(&settings_tls(&scripted, &pki), &Metrics::new(1)).unwrap();
        let first = text(in_time(upstream.send(get())).await.unwrap()).await;
        assert_eq!(first, format!("{name} Full Some(\"localhost\")"));
        let second = text(in_time(upstream.send(get())).await.unwrap()).await;
        assert_eq!(second, format!("{name} Resumed Some(\"localhost\")"));
    }
}

#[tokio::test]
async fn an_upstream_that_is_not_who_it_should_be_gets_nothing() {
    let (pki, other) = (Pki::new(), Pki::new());
    let scripted = scripted(server(&pki, "localhost", None, &[], rustls::ALL_VERSIONS)).await;
    let right = settings_tls(&scripted, &pki);
    assert!(send(&right).await.is_ok());
    let named = |name: &str| ClientTls { server_name: Some(name.to_owned()), ..right.tls.clone() };
    let wrong = [ClientTls { ca: Some(pem(&other.ca)), ..right.tls.clone() }, named("api.example")];
    for tls in wrong {
        let error = send(&Settings { tls, ..right.clone() }).await.unwrap_err();
        assert_eq!((error.cause, error.sent), (Cause::Tls, false));
    }
    // Its certificate names the host, not the address.
    let by_address = Settings {
        endpoints: vec![format!("https://{}", scripted.address).into()],
        ..right.clone()
    };
    assert_eq!(send(&by_address).await.unwrap_err().cause, Cause::Tls);
    let told = send(&Settings { tls: named("localhost"), ..by_address }).await.unwrap();
    assert!(told.ends_with("Some(\"localhost\")"), "{told}");
}

#[tokio::test]
async fn our_own_certificate_is_shown_where_it_is_asked_for() {
    let (pki, clients) = (Pki::new(), Pki::new());
    let scripted =
        scripted(server(&pki, "localhost", Some(&clients), &[], &[&rustls::version::TLS12])).await;
    let without = settings_tls(&scripted, &pki);
    let error = send(&without).await.unwrap_err();
    assert_eq!(error.cause, Cause::Tls);
    let identity = Some(identity(&clients.client("weir")));
    send(&Settings { tls: ClientTls { identity, ..without.tls.clone() }, ..without })
        .await
        .unwrap();
}

#[tokio::test]
async fn http2_is_agreed_on_or_there_is_no_connection() {
    let pki = Pki::new();
    for (alpn, agreed) in [(&["h2", "http/1.1"][..], true), (&["http/1.1"], false), (&[], false)] {
        let acceptor = server(&pki, "localhost", None, alpn, rustls::ALL_VERSIONS);
        let scripted = ScriptedUpstream::new(move |stream, _| {
            let acceptor = acceptor.clone();
            async move {
                let Ok(tls) = acceptor.accept(stream.0).await else { return };
                let mut connection = h2::server::handshake(tls).await.unwrap();
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    let mut stream = respond.send_response(http::Response::new(()), false).unwrap();
                    stream.send_data(Bytes::from(request.uri().to_string()), true).unwrap();
                }
            }
        })
        .await;
        let sent =
            send(&Settings { protocol: Protocol::H2, ..settings_tls(&scripted, &pki) }).await;
        if agreed {
            assert_eq!(sent.unwrap(), "https://a/");
        } else {
            assert_eq!(sent.unwrap_err().cause, Cause::Tls, "{alpn:?}");
        }
    }
}

#[tokio::test]
async fn a_handshake_that_stands_still_ends_with_the_time_to_connect() {
    let scripted =
        ScriptedUpstream::new(|mut stream, _| async move { stream.closed().await }).await;
    let error = send(&Settings {
        connect: Duration::from_millis(100),
        ..settings_tls(&scripted, &Pki::new())
    })
    .await
    .unwrap_err();
    assert_eq!((error.cause, error.sent), (Cause::Timeout, false));
}

#[tokio::test]
async fn a_reply_that_is_cut_without_a_goodbye_is_not_whole() {
    let pki = Pki::new();
    let acceptor = server(&pki, "localhost", None, &[], rustls::ALL_VERSIONS);
    let scripted = ScriptedUpstream::new(move |stream, _| {
        let acceptor = acceptor.clone();
        async move {
            let mut tls = acceptor.accept(stream.0).await.unwrap();
            let _ = tls.read_u8().await;
            tls.write_all(b"HTTP/1.1 200 OK\r\n\r\nhalf of it").await.unwrap();
            tls.flush().await.unwrap();
            // Without TLS's close_notify: anyone who cuts the connection could do this.
            drop(tls);
        }
    })
    .await;
    let upstream = Upstream::build(&settings_tls(&scripted, &pki), &Metrics::new(1)).unwrap();
    let reply = in_time(upstream.send(get())).await.unwrap();
    assert!(in_time(reply.body.collect()).await.is_err());
}

#[test]
fn errors_name_their_setting() {
    let (pki, other) = (Pki::new(), Pki::new());
    let (client, stranger) = (pki.client("weir"), other.client("weir"));
    let tls = |tls: ClientTls| Settings {
        tls,
        ..Settings::new("api", vec!["https://localhost".to_owned()])
    };
    let ca = || Some(pem(&pki.ca));
    let mixed = Identity { certificate: pem(&client.certificate), key: pem(&stranger.key) };
    let swapped = Identity { certificate: pem(&client.key), key: pem(&client.certificate) };
    let cases = [
        (tls(ClientTls { ca: Some(pem("nothing")), ..ClientTls::default() }), &["tls.ca"][..]),
        (tls(ClientTls { ca: ca(), identity: Some(mixed), ..ClientTls::default() }), &["tls.key"]),
        (
            tls(ClientTls { ca: ca(), identity: Some(swapped), ..ClientTls::default() }),
            &["tls.certificate", "tls.key"],
        ),
        (
            tls(ClientTls {
                ca: ca(),
                server_name: Some("a:80".to_owned()),
                ..ClientTls::default()
            }),
            &["tls.server_name"],
        ),
        (
            Settings {
                endpoints: vec!["http://localhost".to_owned().into()],
                ..tls(ClientTls { ca: ca(), ..ClientTls::default() })
            },
            &["tls"],
        ),
    ];
    for (settings, expected) in cases {
        let errors = Upstream::build(&settings, &Metrics::new(1)).unwrap_err();
        let settings: Vec<&str> = errors.iter().map(|error| error.setting.as_str()).collect();
        assert_eq!(settings, expected, "{errors:?}");
    }
}

#[tokio::test]
async fn a_server_is_known_by_its_key() {
    let (pki, other) = (Pki::new(), Pki::new());
    let issued = pki.server(&["localhost"]);
    let pin = |issued: &IssuedCertificate| {
        Pin::of(&KeyPair::from_pem(&issued.key).unwrap().subject_public_key_info())
    };
    let (right, wrong) = (pin(&issued), pin(&other.server(&["localhost"])));
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let scripted = scripted(acceptor(&issued, None, &[], &[version])).await;
        let with = |ca: Option<&Pki>, pins: &[Pin], host: &str| Settings {
            endpoints: vec![format!("https://{host}:{}", scripted.address.port()).into()],
            tls: ClientTls {
                ca: ca.map(|pki| pem(&pki.ca)),
                pins: pins.to_vec(),
                ..ClientTls::default()
            },
            ..settings(&[])
        };
        // The key alone, whoever has signed its certificate and for what name.
        let told = send(&with(None, &[wrong, right], "127.0.0.1")).await.unwrap();
        assert!(told.contains("Full"), "{told}");
        let refused = async |settings: Settings| send(&settings).await.unwrap_err().cause;
        assert_eq!(refused(with(None, &[wrong], "localhost")).await, Cause::Tls);
        // With an authority, both.
        assert!(send(&with(Some(&pki), &[right], "localhost")).await.is_ok());
        assert_eq!(refused(with(Some(&pki), &[wrong], "localhost")).await, Cause::Tls);
        assert_eq!(refused(with(Some(&other), &[right], "localhost")).await, Cause::Tls);
        assert_eq!(refused(with(Some(&pki), &[right], "127.0.0.1")).await, Cause::Tls);
    }
}
