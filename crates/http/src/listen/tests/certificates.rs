//! Which certificates are accepted, and which of them a client is shown.

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;
use crate::clock::Clock;
use crate::pki::{IssuedCertificate, Pki};
use crate::telemetry::SettingError;
use weir_tls::{Identity, Pem};

pub(super) fn pem(path: &str, text: &str) -> Pem {
    Pem { path: path.into(), bytes: text.as_bytes().into() }
}

pub(super) fn identity(issued: &IssuedCertificate) -> Identity {
    Identity { certificate: pem("api.pem", &issued.certificate), key: pem("api.key", &issued.key) }
}

pub(super) fn listener(issued: &[IssuedCertificate]) -> Settings {
    Settings {
        certificates: issued.iter().map(identity).map(Certificate::Files).collect(),
        ..Settings::plain(([127, 0, 0, 1], 0).into())
    }
}

pub(super) fn tls(settings: &Settings) -> Arc<Tls> {
    Tls::build(settings, None).unwrap().unwrap()
}

pub(super) fn errors(settings: &Settings) -> Vec<SettingError> {
    Tls::build(settings, None).unwrap_err()
}

/// A client that trusts `ca` and offers `alpn`.
pub(super) fn client(ca: &str, alpn: &[&[u8]]) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    for certificate in pem("ca.pem", ca).certificates().unwrap() {
        roots.add(certificate).unwrap();
    }
    let builder = ClientConfig::builder_with_provider(weir_tls::provider())
        .with_safe_default_protocol_versions()
        .unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    config
}

pub(super) async fn handshake(
    server: &TestServer,
    config: ClientConfig,
    name: &str,
) -> std::io::Result<TlsStream<TcpStream>> {
    let socket = TcpStream::connect(server.address).await?;
    let name = ServerName::try_from(name.to_owned()).unwrap();
    tokio::time::timeout(TEST_TIMEOUT, TlsConnector::from(Arc::new(config)).connect(name, socket))
        .await
        .expect("no handshake in time")
}

/// The certificate that a client is shown when it asks for `name`, whether or not it fits.
async fn seen(server: &TestServer, ca: &str, name: &str) -> Vec<u8> {
    seen_with(server, ca, name, &[]).await
}

async fn seen_with(
    server: &TestServer,
    ca: &str,
    name: &str,
    schemes: &'static [rustls::SignatureScheme],
) -> Vec<u8> {
    let mut config = client(ca, &[]);
    config.dangerous().set_certificate_verifier(Arc::new(AcceptAny(schemes)));
    let stream = handshake(server, config, name).await.unwrap();
    stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

/// Accepts any certificate, since these tests look at which one was shown. If schemes are given, it
/// supports only those.
#[derive(Debug)]
struct AcceptAny(&'static [rustls::SignatureScheme]);

impl rustls::client::danger::ServerCertVerifier for AcceptAny {
    fn verify_server_cert(
        &self,
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &[rustls::pki_types::CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        if self.0.is_empty() {
            weir_tls::provider().signature_verification_algorithms.supported_schemes()
        } else {
            self.0.to_vec()
        }
    }
}

#[tokio::test]
async fn a_client_sees_the_certificate_of_the_host_it_names() {
    let pki = Pki::new();
    let all = [
        pki.server(&["first.example"]),
        pki.server(&["api.example", "www.example"]),
        pki.server(&["*.wild.example"]),
    ];
    let der = |issued: &IssuedCertificate| {
        pem("x", &issued.certificate).certificates().unwrap()[0].to_vec()
    };
    let [first, second, wild] = all.each_ref().map(der);
    let server = start_tls(settings(), Some(tls(&listener(&all))));
    for (name, expected) in [
        ("first.example", &first),
        ("api.example", &second),
        ("WWW.Example", &second),
        ("a.wild.example", &wild),
        // A wildcard stands for one label. Unknown hosts, and no host, are shown the first
        // certificate.
        ("a.b.wild.example", &first),
        ("wild.example", &first),
        ("unknown.example", &first),
        ("127.0.0.1", &first),
    ] {
        assert!(seen(&server, &pki.ca, name).await == *expected, "{name}");
    }
}

#[tokio::test]
async fn a_dot_at_the_end_of_the_name_does_not_matter() {
    let pki = Pki::new();
    let all = [pki.server(&["first.example"]), pki.server(&["api.example"])];
    let second = pem("x", &all[1].certificate).certificates().unwrap()[0].to_vec();
    let server = start_tls(settings(), Some(tls(&listener(&all))));
    // rustls sends no such name: it is changed on the way. TLS 1.2 shows certificates in the clear.
    let config = ClientConfig::builder_with_provider(weir_tls::provider())
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap();
    let config = config.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    let name = ServerName::try_from("api.examplex").unwrap();
    let mut client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut hello = Vec::new();
    client.write_tls(&mut hello).unwrap();
    let at = hello.windows(12).position(|piece| piece == b"api.examplex").unwrap();
    hello[at..at + 12].copy_from_slice(b"API.example.");
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(&hello).await.unwrap();
    let mut seen = Vec::new();
    while !seen.windows(second.len()).any(|piece| piece == second) {
        let read = tokio::time::timeout(TEST_TIMEOUT, stream.read_buf(&mut seen)).await;
        assert!(read.expect("no certificate in time").unwrap() > 0, "another certificate");
    }
    assert_eq!(crate::listen::tls::host("API.example."), "api.example");
}

#[tokio::test]
async fn a_client_sees_a_key_that_it_understands() {
    use rustls::SignatureScheme as S;
    let pki = Pki::new();
    let all = [pki.server(&["api.example"]), pki.server_ed25519(&["api.example"])];
    // Until the year 4096.
    assert_eq!(tls(&listener(&all)).expires_s(), Some(67_090_118_400));
    let [ecdsa, ed25519] = all
        .each_ref()
        .map(|issued| pem("x", &issued.certificate).certificates().unwrap()[0].to_vec());
    let server = start_tls(settings(), Some(tls(&listener(&all))));
    // Without a name too: the second is another default.
    for name in ["api.example", "127.0.0.1"] {
        assert!(
            seen_with(&server, &pki.ca, name, &[S::ECDSA_NISTP256_SHA256]).await == ecdsa,
            "{name}"
        );
        assert!(seen_with(&server, &pki.ca, name, &[S::ED25519]).await == ed25519, "{name}");
        assert!(seen(&server, &pki.ca, name).await == ecdsa, "{name}");
    }
}

#[tokio::test]
async fn an_invalid_setting_is_reported_by_its_path() {
    let pki = Pki::new();
    let (good, other) = (pki.server(&["api.example"]), pki.server(&["www.example"]));
    let wrong = |certificate: &str, key: &str| {
        let identities = [
            identity(&good),
            Identity { certificate: pem("a.pem", certificate), key: pem("a.key", key) },
        ];
        let identities = identities.map(Certificate::Files).into();
        let found = errors(&Settings { certificates: identities, ..listener(&[]) });
        assert_eq!(found.len(), 1, "{found:?}");
        (found[0].setting.clone(), found[0].found.clone())
    };
    let (setting, found) = wrong(&other.certificate, &good.key);
    assert_eq!(setting, "listeners[0].certificates[1].key");
    assert!(found.contains("does not fit") && found.contains("a.key"), "{found}");
    let (setting, found) = wrong("", &good.key);
    assert_eq!(
        (setting.as_str(), found.as_str()),
        ("listeners[0].certificates[1].certificate", "no certificate in a.pem")
    );
    assert_eq!(wrong(&other.certificate, "").1, "no private key in a.key");
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    assert!(wrong(broken, &good.key).1.starts_with("a broken certificate in a.pem"));
    let nameless = pki.client("nameless");
    assert!(wrong(&nameless.certificate, &nameless.key).1.contains("without a DNS name"));
    let clients = ClientCertificates { ca: pem("ca.pem", "nothing"), required: true, crl: None };
    let found = errors(&Settings { clients: Some(clients), ..listener(&[good]) });
    assert_eq!(
        (found[0].setting.as_str(), found[0].found.as_str()),
        ("listeners[0].client_ca", "no certificate in ca.pem")
    );
}

/// A certificate that is ordered.
fn ordered(names: &[&str], identity: Option<Identity>) -> Certificate {
    let names = names.iter().map(ToString::to_string).collect();
    Certificate::Ordered(OrderedCertificate { names, file: "acme.pem".into(), identity })
}

#[test]
fn only_the_first_certificate_may_be_without_a_name_also_where_that_is_not_issued_yet() {
    let pki = Pki::new();
    let (named, nameless) = (pki.server(&["api.example"]), pki.client("nameless"));
    for issued in [None, Some(identity(&named))] {
        let nameless = Certificate::Files(identity(&nameless));
        let certificates = vec![ordered(&["api.example"], issued), nameless];
        let found = errors(&Settings { certificates, ..listener(&[]) });
        assert!(found[0].found.contains("without a DNS name"), "{found:?}");
    }
    tls(&listener(&[nameless, named]));
}

/// Shows one certificate in the handshakes of an authority.
#[derive(Debug)]
struct Shows(Arc<CertifiedKey>);

impl ChallengeCertificates for Shows {
    fn certificate(&self, name: &str) -> Option<Arc<CertifiedKey>> {
        (name == "new.example").then(|| Arc::clone(&self.0))
    }
}

#[tokio::test]
async fn an_authority_sees_the_answer_to_its_check_and_clients_what_was_issued() {
    let pki = Pki::new();
    let (issued, answer) = (pki.server(&["api.example"]), pki.server(&["new.example"]));
    let answer = identity(&answer);
    let answer = CertifiedKey::from_der(
        answer.certificate.certificates().unwrap(),
        answer.key.key().unwrap(),
        &weir_tls::provider(),
    );
    let answer = Arc::new(answer.unwrap());
    let settings_of = |certificates| Settings { certificates, ..listener(&[]) };
    let build = |certificates: Vec<Certificate>| {
        let challenges: Arc<dyn ChallengeCertificates> = Arc::new(Shows(Arc::clone(&answer)));
        Tls::build(&settings_of(certificates), Some(challenges)).unwrap().unwrap()
    };
    let authority = |name: &'static str| {
        let mut config = client(&pki.ca, &[b"acme-tls/1"]);
        config.dangerous().set_certificate_verifier(Arc::new(AcceptAny(&[])));
        (config, name)
    };
    // Nothing is issued yet: only the authority gets through, and only for an open check.
    let none = build(vec![ordered(&["new.example"], None)]);
    assert_eq!((none.expires_s(), none.certificates()[0].expires_s), (None, None));
    let server = start_tls(settings(), Some(none));
    assert!(handshake(&server, client(&pki.ca, &[]), "new.example").await.is_err());
    let (config, name) = authority("other.example");
    assert!(handshake(&server, config, name).await.is_err());
    let (config, name) = authority("new.example");
    let mut stream = handshake(&server, config, name).await.unwrap();
    let session = stream.get_ref().1;
    assert_eq!(session.alpn_protocol(), Some(&b"acme-tls/1"[..]));
    assert_eq!(session.peer_certificates().unwrap(), &answer.cert[..]);
    // The handshake was all of it.
    let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: new.example\r\n\r\n").await;
    let mut left = Vec::new();
    let _ = stream.read_to_end(&mut left).await;
    assert!(left.is_empty(), "{left:?}");

    let one = build(vec![ordered(&["api.example"], Some(identity(&issued)))]);
    assert!(one.expires_s().is_some());
    let server = start_tls(settings(), Some(one));
    assert!(handshake(&server, client(&pki.ca, &[b"h2"]), "api.example").await.is_ok());
    // Beside a certificate for another host, names that wait for theirs are not served with that.
    let both = build(vec![Certificate::Files(identity(&issued)), ordered(&["new.example"], None)]);
    let server = start_tls(settings(), Some(both));
    let mut any = client(&pki.ca, &[]);
    any.dangerous().set_certificate_verifier(Arc::new(AcceptAny(&[])));
    assert!(handshake(&server, any.clone(), "new.example").await.is_err());
    assert!(handshake(&server, any.clone(), "unknown.example").await.is_ok());
    // Nor what another certificate, which serves meanwhile, does not have.
    let some = ordered(&["api.example", "new.example"], Some(identity(&issued)));
    let server = start_tls(settings(), Some(build(vec![some])));
    assert!(handshake(&server, any.clone(), "new.example").await.is_err());
    assert!(handshake(&server, any.clone(), "unknown.example").await.is_ok());
    assert!(handshake(&server, any, "api.example").await.is_ok());
    // Without a certificate that is ordered, nobody speaks the authority's protocol.
    let server = start_tls(settings(), Some(tls(&listener(&[issued]))));
    let (config, name) = authority("new.example");
    assert!(handshake(&server, config, name).await.is_err());
}

#[tokio::test]
async fn a_certificate_that_must_be_stapled_is_refused() {
    let mut params = rcgen::CertificateParams::new(vec!["api.example".to_owned()]).unwrap();
    let feature = |numbers: &[u8]| {
        let content = vec![0x30, numbers.len() as u8].into_iter().chain(numbers.iter().copied());
        rcgen::CustomExtension::from_oid_content(&[1, 3, 6, 1, 5, 5, 7, 1, 24], content.collect())
    };
    for (numbers, is_refused) in
        [(&[2, 1, 5][..], true), (&[2, 1, 17, 2, 1, 5], true), (&[2, 1, 17], false)]
    {
        params.custom_extensions = vec![feature(numbers)];
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        let issued = IssuedCertificate { certificate, key: key.serialize_pem() };
        let settings = listener(&[issued]);
        if is_refused {
            let found = &errors(&settings)[0].found;
            assert!(found.contains("must-staple"), "{found}");
        } else {
            tls(&settings);
        }
    }
}

#[tokio::test]
async fn a_swap_is_seen_by_new_connections_and_by_no_old_one() {
    let pki = Pki::new();
    let (old, new) = (pki.server(&["api.example"]), pki.server(&["api.example"]));
    let new_der = pem("x", &new.certificate).certificates().unwrap()[0].to_vec();
    let server = start_tls(settings(), Some(tls(&listener(&[old]))));
    let mut kept = tls::Client::connect(&server, &pki.ca, "api.example").await;
    kept.get("/hello", "hello").await;
    server.set_tls(Some(tls(&listener(&[new]))));
    assert!(seen(&server, &pki.ca, "api.example").await == new_der);
    kept.get("/hello", "hello").await;
    // Even to plain HTTP: what the address speaks may change.
    server.set_tls(None);
    server.connect().await.get("/hello", "hello").await;
    kept.get("/hello", "hello").await;
}

#[test]
fn a_certificate_whose_time_is_over_is_reported_and_served() {
    let pki = Pki::new();
    let built = tls(&listener(&[pki.server(&["api.example"]), pki.expired(&["www.example"])]));
    let told = |now_s: i64| built.warnings(now_s).collect::<Vec<_>>();
    let all = told(Clock::system().wall_us() / 1_000_000);
    let [warning] = &all[..] else { panic!("{all:?}") };
    assert_eq!(warning.setting, "listeners[0].certificates[1].certificate");
    assert!(warning.found.contains("expired on Jan  2"), "{}", warning.found);
    // It is told whenever it is asked for, as it was valid once.
    assert!(told(978_307_200).is_empty(), "{:?}", told(978_307_200));
    assert_eq!(told(978_307_200 + 86_399).len(), 1);
}
