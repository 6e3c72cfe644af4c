//! TLS: versions, authorities, and curl's own certificate.

use crate::harness::curl::curl;
use crate::harness::pki::Pki;
use crate::harness::tls::HOST;
use crate::harness::toml::{Toml, simple};
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;

const LIMIT: &str =
    "name = \"day\", algorithm = \"fixed_window\", quota = 1000000, period = \"1d\"";

fn secured(upstream: &Upstream) -> Toml {
    simple(&upstream.url(), &[LIMIT]).secured(&["api"])
}

#[tokio::test]
async fn curl_is_served_over_both_versions_of_http_and_the_upstream_knows_that_it_was_tls() {
    let (pki, upstream) = (Pki::new(), Upstream::start());
    let weir = Weir::build(&secured(&upstream).text())
        .identity("api", &pki.server(&[HOST]))
        .file("ca.pem", pki.ca.as_bytes())
        .start();
    let ca = weir.folder().join("ca.pem").display().to_string();
    for (version, arguments) in
        [("1.1", "--http1.1"), ("2", "--http2"), ("2", "--tlsv1.3"), ("2", "--tls-max=1.2")]
    {
        let arguments: Vec<&str> = arguments.split('=').chain(["--cacert", &ca]).collect();
        let reply = curl(weir.http, "https://api.example/x?y=1", &arguments).await;
        assert_eq!(
            (reply.exit, reply.status, reply.version.as_str()),
            (0, 200, version),
            "{reply:?}"
        );
        assert!(
            reply.text.contains("from upstream")
                && reply.text.to_lowercase().contains("ratelimit: \"day\""),
            "{reply:?}"
        );
        let seen = upstream.last();
        assert_eq!(seen.header("x-forwarded-proto").as_deref(), Some("https"), "{seen:?}");
        assert_eq!(seen.target, "/x?y=1");
    }
    // No older version, no client that does not trust us, no plain text.
    let old = curl(
        weir.http,
        "https://api.example/",
        &["--tls-max", "1.1", "--ciphers", "ALL:@SECLEVEL=0", "--cacert", &ca],
    )
    .await;
    assert_eq!((old.exit, old.status), (35, 0), "{old:?}");
    let stranger = curl(weir.http, "https://api.example/", &[]).await;
    assert_eq!((stranger.exit, stranger.status), (60, 0), "{stranger:?}");
    assert!(stranger.errors.contains("certificate"), "{stranger:?}");
    let plain = curl(weir.http, "http://api.example/", &[]).await;
    assert_eq!((plain.exit, plain.status), (0, 400), "{plain:?}");
    assert!(plain.text.contains("speaks HTTPS"), "{plain:?}");
    for cause in ["incompatible", "alert", "plain_text"] {
        assert_eq!(
            weir.metric(&format!("weir_tls_handshakes_failed_total{{cause=\"{cause}\"}}")),
            1,
            "{cause}"
        );
    }
}

#[tokio::test]
async fn clients_without_a_certificate_are_turned_away_where_one_is_required() {
    let (pki, upstream) = (Pki::new(), Upstream::start());
    let config = secured(&upstream).listener("client_ca = \"ca.pem\"").text();
    let weir = Weir::build(&config)
        .identity("api", &pki.server(&[HOST]))
        .identity("alice", &pki.client("alice"))
        .identity("mallory", &Pki::new().client("alice"))
        .file("ca.pem", pki.ca.as_bytes())
        .start();
    let file = |name: &str| weir.folder().join(name).display().to_string();
    for (name, status) in [(None, 0), (Some("mallory"), 0), (Some("alice"), 200)] {
        let (ca, pem, key) = (
            file("ca.pem"),
            file(&format!("{}.pem", name.unwrap_or(""))),
            file(&format!("{}.key", name.unwrap_or(""))),
        );
        let mut arguments = vec!["--cacert", &ca];
        if name.is_some() {
            arguments.extend(["--cert", &pem, "--key", &key]);
        }
        let reply = curl(weir.http, "https://api.example/", &arguments).await;
        // curl's error code depends on when the alert arrives.
        assert_eq!((reply.exit == 0, reply.status), (status == 200, status), "{name:?}: {reply:?}");
    }
    assert_eq!(weir.metric("weir_tls_handshakes_failed_total{cause=\"client_certificate\"}"), 2);
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a_client_is_counted_by_its_certificate() {
    let (pki, upstream) = (Pki::new(), Upstream::start());
    let policy = "[policies.partners]\nuse = \"keyed\"\n[[policies.partners.config.limits]]\nname = \"day\"\nalgorithm = \"fixed_window\"\n\
                  quota = 2\nperiod = \"1d\"\nkey = \"{tls.client.subject}\"\n";
    let config = Toml::new()
        .secured(&["api"])
        .listener("client_ca = \"ca.pem\"")
        .upstream("api", &upstream.url(), "")
        .more(policy);
    let weir = Weir::build(
        &config.route("path = \"/*\"\nupstream = \"api\"\npolicy = \"partners\"").text(),
    )
    .identity("api", &pki.server(&[HOST]))
    .identity("alice", &pki.client("alice"))
    .identity("bob", &pki.client("bob"))
    .file("ca.pem", pki.ca.as_bytes())
    .start();
    let file = |name: String| weir.folder().join(name).display().to_string();
    for (name, expected) in [("alice", 200), ("alice", 200), ("alice", 429), ("bob", 200)] {
        let (ca, pem, key) =
            (file("ca.pem".into()), file(format!("{name}.pem")), file(format!("{name}.key")));
        let reply = curl(
            weir.http,
            "https://api.example/",
            &["--cacert", &ca, "--cert", &pem, "--key", &key],
        )
        .await;
        assert_eq!(reply.status, expected, "{name}: {reply:?}");
    }
}
