//! TLS to clients: versions, names, client certificates, and certificates that are renewed under
//! load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::harness::client::{Client, Tally};
use crate::harness::eventually_async;
use crate::harness::pki::Pki;
use crate::harness::tls::{HOST, Http2, shown};
use crate::harness::toml::{Toml, simple};
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;

const LIMIT: &str =
    "name = \"day\", algorithm = \"fixed_window\", quota = 1000000, period = \"1d\"";

fn secured(upstream: &Upstream) -> Toml {
    simple(&upstream.url(), &[LIMIT]).secured(&["api"])
}

/// TLS clients that send one request after another, each on one connection. Half of them use
/// HTTP/2.
async fn load(
    weir: &Weir,
    ca: &str,
    stop: &Arc<AtomicBool>,
    answered: &Arc<AtomicU64>,
) -> tokio::task::JoinSet<Tally> {
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..4 {
        let mut client = Http2::secured(weir.http, ca).await.unwrap();
        let (stop, answered) = (Arc::clone(stop), Arc::clone(answered));
        tasks.spawn(async move {
            let mut tally = Tally::default();
            while !stop.load(Ordering::Relaxed) && tally.failed.is_empty() {
                tally.add(&client.get(&format!("/{number}"), &[]).await);
                answered.fetch_add(1, Ordering::Relaxed);
            }
            tally
        });
    }
    tasks
}

#[tokio::test]
async fn certificates_are_renewed_under_load_and_no_connection_notices() {
    let (pki, upstream) = (Pki::new(), Upstream::start());
    let (old, new) = (pki.server(&[HOST]), pki.server(&[HOST]));
    let weir = Weir::build(&secured(&upstream).text()).identity("api", &old).start();
    let before = shown(weir.http, &pki.ca).await.unwrap();
    let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut running = load(&weir, &pki.ca, &stop, &answered).await;
    weir.renew("api", &new);
    let after = eventually_async("the new certificate is shown", async || {
        let now = shown(weir.http, &pki.ca).await.map_err(|error| error.to_string())?;
        if now == before { Err("the old one still".into()) } else { Ok(now) }
    })
    .await;
    // On every worker, from now on.
    for _ in 0..20 {
        assert!(shown(weir.http, &pki.ca).await.unwrap() == after);
    }
    let seen = answered.load(Ordering::Relaxed);
    eventually_async("the load goes on", async || {
        let now = answered.load(Ordering::Relaxed);
        if now > seen + 100 { Ok(()) } else { Err(format!("{now} answered")) }
    })
    .await;
    stop.store(true, Ordering::Relaxed);
    while let Some(tally) = running.join_next().await {
        tally.unwrap().only(&[200]);
    }
}

#[tokio::test]
async fn a_renewal_that_does_not_fit_is_refused_and_the_old_certificate_served_on() {
    let (pki, upstream) = (Pki::new(), Upstream::start());
    let weir =
        Weir::build(&secured(&upstream).text()).identity("api", &pki.server(&[HOST])).start();
    let before = shown(weir.http, &pki.ca).await.unwrap();
    std::fs::write(weir.folder().join("api.key"), pki.server(&[HOST]).key).unwrap();
    weir.await_reloads("refused", 1);
    assert!(shown(weir.http, &pki.ca).await.unwrap() == before);
    let status = weir.admin_page("/status").text();
    assert!(
        status.contains("a key that does not fit the certificate")
            && status.contains("proxy.toml:3"),
        "{status}"
    );
    // The address stays, so another certificate for it needs no restart.
    weir.renew("api", &pki.server(&[HOST]));
    weir.await_reloads("applied", 1);
    assert!(
        !weir.output().says("this setting changed, but is applied only at a restart"),
        "{}",
        weir.output().tail(20)
    );
}

#[tokio::test]
async fn a_certificate_that_expired_is_reported_with_its_line_and_stops_nothing_else() {
    let (pki, upstream) = (Pki::new(), Upstream::start());
    let (code, _, told) =
        Weir::check(Weir::build(&secured(&upstream).text()).identity("api", &pki.expired(&[HOST])));
    assert_eq!(code, 0, "{told}");
    assert!(told.contains("proxy.toml:3") && told.contains("which expired on Jan  2"), "{told}");
}

#[tokio::test]
async fn a_plain_and_a_secured_listener_stand_side_by_side() {
    let (pki, upstream) = (Pki::new(), Upstream::start());
    let plain = "[[listeners]]\naddress = \"127.0.0.1:0\"\n";
    let weir = Weir::build(&format!("{plain}{}", secured(&upstream).text()))
        .identity("api", &pki.server(&[HOST]))
        .start();
    let mut client = Client::connect(weir.http).await.unwrap();
    assert_eq!(client.get("/", &[]).await.unwrap().status, 200);
    assert_eq!(upstream.last().header("x-forwarded-proto").as_deref(), Some("http"));
}

#[tokio::test]
async fn a_plain_listener_becomes_a_secured_one_by_a_reload() {
    let (pki, upstream) = (Pki::new(), Upstream::start());
    let plain = simple(&upstream.url(), &[LIMIT]);
    let weir = Weir::build(&plain.text()).identity("api", &pki.server(&[HOST])).start();
    let mut before = Client::connect(weir.http).await.unwrap();
    assert_eq!(before.get("/", &[]).await.unwrap().status, 200);
    assert!(
        !weir.admin_page("/metrics").text().contains("weir_certificates_expire_timestamp_seconds")
    );
    weir.reload(&secured(&upstream).text(), "applied");
    assert_eq!(
        Http2::secured(weir.http, &pki.ca).await.unwrap().get("/", &[]).await.unwrap().status,
        200
    );
    assert_eq!(upstream.last().header("x-forwarded-proto").as_deref(), Some("https"));
    assert_eq!(before.get("/", &[]).await.unwrap().status, 200);
    assert!(weir.metric("weir_certificates_expire_timestamp_seconds") > 60_000_000_000);
    // And back: nobody should be alerted about a certificate that is no longer served.
    weir.reload(&plain.text(), "applied");
    assert!(
        !weir.admin_page("/metrics").text().contains("weir_certificates_expire_timestamp_seconds")
    );
}
