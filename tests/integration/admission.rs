//! A limit of N admits N, never N+1, whatever the number of clients, workers and proxies.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::harness::client::storm;
use crate::harness::cluster::Cluster;
use crate::harness::toml::{Toml, simple};
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;

const QUOTA: u64 = 1_000;
const CLIENTS: usize = 256;
/// Requests of each client: twice as many as the limit in all.
const EACH: usize = 8;
const DAY: Duration = Duration::from_secs(24 * 3600);

const FIXED: &str = "name = \"day\", algorithm = \"fixed_window\", quota = 1000, period = \"1d\"";
const GCRA: &str = "name = \"day\", algorithm = \"gcra\", quota = 1000, period = \"1d\"";
const BUCKET: &str = "name = \"day\", algorithm = \"token_bucket\", quota = 1000, period = \"1d\"";

/// Storms `addresses`, and fails unless exactly `quota` were admitted; `refills` says that one more unit comes back every `DAY / quota`.
async fn exactly_the_quota(addresses: &[SocketAddr], upstream: &Upstream, refills: bool) {
    let begun = Instant::now();
    let tally = storm(addresses, CLIENTS, EACH, |_, _| Vec::new()).await;
    // Measured from before the first request to after the last: never less than what the store saw.
    let refilled = if refills { begun.elapsed().as_secs() / (DAY.as_secs() / QUOTA) } else { 0 };
    tally.only(&[200, 429]);
    assert_eq!(tally.total(), (CLIENTS * EACH) as u64);
    let admitted = tally.count(200);
    assert!((QUOTA..=QUOTA + refilled).contains(&admitted), "{admitted} admitted, {QUOTA} + at most {refilled} refilled: {tally:?}");
    assert_eq!(upstream.count(), admitted, "every admitted request, and no refused one, reached the upstream");
}

async fn embedded(limit: &str, refills: bool) {
    let upstream = Upstream::start();
    let weir = Weir::start(&simple(&upstream.url(), &[limit]).text());
    exactly_the_quota(&[weir.http], &upstream, refills).await;
    assert_eq!(weir.metric("weir_decisions_total{policy=\"public\",decision=\"admitted\"}"), upstream.count());
}

async fn three_proxies_on_a_cluster(limit: &str, refills: bool) {
    let (upstream, cluster) = (Upstream::start(), Cluster::start());
    let config: Toml = simple(&upstream.url(), &[limit]).redis("cluster", &cluster.addresses());
    let proxies = [(); 3].map(|()| Weir::start(&config.text()));
    exactly_the_quota(&proxies.each_ref().map(|weir| weir.http), &upstream, refills).await;
    // One caller, one limit: one counter, wherever the requests came in.
    assert_eq!(cluster.keys(), 1);
}

#[tokio::test]
async fn in_memory_256_clients_on_a_fixed_window_of_1000_are_admitted_1000_times() {
    embedded(FIXED, false).await;
}

#[tokio::test]
async fn in_memory_256_clients_on_a_gcra_of_1000_are_admitted_1000_times() {
    embedded(GCRA, true).await;
}

#[tokio::test]
async fn in_memory_256_clients_on_a_token_bucket_of_1000_are_admitted_1000_times() {
    embedded(BUCKET, true).await;
}

#[tokio::test]
async fn over_three_proxies_and_a_cluster_256_clients_on_a_fixed_window_of_1000_are_admitted_1000_times() {
    three_proxies_on_a_cluster(FIXED, false).await;
}

#[tokio::test]
async fn over_three_proxies_and_a_cluster_256_clients_on_a_gcra_of_1000_are_admitted_1000_times() {
    three_proxies_on_a_cluster(GCRA, true).await;
}

#[tokio::test]
async fn over_three_proxies_and_a_cluster_256_clients_on_a_token_bucket_of_1000_are_admitted_1000_times() {
    three_proxies_on_a_cluster(BUCKET, true).await;
}
