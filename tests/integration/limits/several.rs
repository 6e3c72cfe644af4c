//! Several limits on one request: charged together or not at all.

use std::collections::BTreeMap;

use crate::harness::client::{Client, Reply, Tally, storm};
use crate::harness::cluster::Cluster;
use crate::harness::eventually_async;
use crate::harness::toml::{Toml, simple};
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;

const SMALL: &str = "name = \"small\", algorithm = \"fixed_window\", quota = 50, period = \"1d\"";
const LARGE: &str = "name = \"large\", algorithm = \"fixed_window\", quota = 1000, period = \"1d\"";

async fn the_other_limit_is_charged_exactly_what_was_admitted(config: &Toml, upstream: &Upstream) {
    let weir = Weir::start(&config.text());
    let tally = storm(&[weir.http], 64, 8, |_, _| Vec::new()).await;
    tally.only(&[200, 429]);
    assert_eq!(tally.count(200), 50, "{tally:?}");
    assert_eq!(upstream.count(), 50);
    let refused = Client::connect(weir.http).await.unwrap().get("/", &[]).await.unwrap();
    assert_eq!(refused.status, 429);
    assert_eq!(refused.remaining("small"), 0, "{refused:?}");
    assert_eq!(refused.remaining("large"), 950, "462 refusals and not one charged: {refused:?}");
}

#[tokio::test]
async fn in_memory_a_limit_beside_one_that_refuses_is_charged_exactly_what_was_admitted() {
    let upstream = Upstream::start();
    the_other_limit_is_charged_exactly_what_was_admitted(
        &simple(&upstream.url(), &[LARGE, SMALL]),
        &upstream,
    )
    .await;
}

#[tokio::test]
async fn on_a_cluster_a_limit_beside_one_that_refuses_is_charged_exactly_what_was_admitted() {
    let (upstream, cluster) = (Upstream::start(), Cluster::start());
    let config = simple(&upstream.url(), &[LARGE, SMALL]).redis("cluster", &cluster.addresses());
    the_other_limit_is_charged_exactly_what_was_admitted(&config, &upstream).await;
}

const TENANTS: usize = 4;
const CLIENT_QUOTA: i64 = 120;
const TENANT_QUOTA: i64 = 40;

/// Limits of 120 for one client's address, and at most 40 for each of four tenants: the tenants
/// allow 160, but the client only 120.
fn two_tags(url: &str) -> Toml {
    let client = format!(
        "name = \"client\", algorithm = \"fixed_window\", quota = {CLIENT_QUOTA}, period = \"1d\", key = \"{{client_ip}}\""
    );
    let tenant = format!(
        "name = \"tenant\", algorithm = \"fixed_window\", quota = {TENANT_QUOTA}, period = \"1d\", key = \"{{header.x-tenant}}\""
    );
    simple(url, &[&client, &tenant])
}

fn tenant(number: usize) -> Vec<(&'static str, String)> {
    vec![("x-tenant", format!("t{}", number % TENANTS))]
}

async fn never_over_and_afterwards_the_counters_equal_what_was_admitted(
    config: &Toml,
    upstream: &Upstream,
    proxies: usize,
) {
    let proxies: Vec<Weir> = (0..proxies).map(|_| Weir::start(&config.text())).collect();
    let addresses: Vec<_> = proxies.iter().map(|weir| weir.http).collect();
    let tally = storm(&addresses, 64, 10, |number, turn| tenant(number + turn)).await;
    tally.only(&[200, 429]);
    assert!(tally.count(200) <= CLIENT_QUOTA as u64, "{tally:?}");
    assert_eq!(upstream.count(), tally.count(200));

    // All clients are gone, so no roll-back takes long: each counter must soon agree with the
    // upstream.
    let mut after = Tally::default();
    for number in 0..TENANTS {
        let name = format!("t{number}");
        eventually_async(&format!("the counters of {name} equal what was admitted"), async || {
            let mut client = Client::connect(addresses[0]).await.unwrap();
            let reply = client.get("/", &[("x-tenant", &name)]).await;
            after.add(&reply);
            equals(&reply.unwrap(), &name, upstream)
        })
        .await;
    }
    after.only(&[200, 429]);

    // What is left of the client's allowance can be used completely.
    for number in 0..TENANTS {
        let name = format!("t{number}");
        let mut client = Client::connect(addresses[0]).await.unwrap();
        while client.get("/", &[("x-tenant", &name)]).await.unwrap().status == 200 {}
    }
    eventually_async("the client's whole allowance is used", async || {
        let mut client = Client::connect(addresses[0]).await.unwrap();
        for number in 0..TENANTS {
            client.get("/", &[("x-tenant", &format!("t{number}"))]).await.unwrap();
        }
        let count = upstream.count();
        assert!(count <= CLIENT_QUOTA as u64, "{count}");
        if count == CLIENT_QUOTA as u64 { Ok(()) } else { Err(format!("{count} admitted")) }
    })
    .await;
    assert!(
        admitted(upstream).values().all(|count| *count <= TENANT_QUOTA),
        "{:?}",
        admitted(upstream)
    );
}

fn admitted(upstream: &Upstream) -> BTreeMap<String, i64> {
    let mut by_tenant = BTreeMap::new();
    for seen in upstream.seen() {
        *by_tenant.entry(seen.header("x-tenant").unwrap()).or_default() += 1;
    }
    by_tenant
}

fn equals(reply: &Reply, name: &str, upstream: &Upstream) -> Result<(), String> {
    let admitted = admitted(upstream);
    let expected = (
        CLIENT_QUOTA - admitted.values().sum::<i64>(),
        TENANT_QUOTA - admitted.get(name).copied().unwrap_or(0),
    );
    let told = (reply.remaining("client"), reply.remaining("tenant"));
    if told == expected {
        Ok(())
    } else {
        Err(format!("told {told:?}, expected {expected:?} by {admitted:?}"))
    }
}

#[tokio::test]
async fn in_memory_two_limits_under_two_tags_are_never_over_and_end_equal_to_what_was_admitted() {
    let upstream = Upstream::start();
    never_over_and_afterwards_the_counters_equal_what_was_admitted(
        &two_tags(&upstream.url()),
        &upstream,
        1,
    )
    .await;
}

#[tokio::test]
async fn on_a_cluster_two_limits_under_two_tags_are_never_over_and_end_equal_to_what_was_admitted()
{
    let (upstream, cluster) = (Upstream::start(), Cluster::start());
    let config = two_tags(&upstream.url()).redis("cluster", &cluster.addresses());
    never_over_and_afterwards_the_counters_equal_what_was_admitted(&config, &upstream, 2).await;
}
