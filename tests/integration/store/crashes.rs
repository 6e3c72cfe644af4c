//! A proxy is killed: its charges stand, its leases end, and those of the other proxies are kept.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::net::TcpStream;

use crate::harness::client::get;
use crate::harness::counting::{Counting, held, status};
use crate::harness::eventually_async;
use crate::harness::redis::Redis;
use crate::harness::toml::simple;
use crate::harness::weir::Weir;

const PLACES: u64 = 8;
const QUOTA: u64 = 100;
const LEASE: Duration = Duration::from_secs(2);

/// Sends a request that the upstream holds, and so takes a lease.
async fn place(address: SocketAddr, upstream: &Counting) -> Result<TcpStream, u16> {
    let id = format!("{address} {}", upstream.of("places").arrived);
    held(address, "/places", "t", &id, upstream).await
}

#[tokio::test]
async fn of_a_proxy_that_is_killed_the_charges_stand_and_the_places_come_back_when_their_leases_end()
 {
    let (upstream, redis) = (Counting::start(), Redis::start());
    let places = format!("name = \"places\", algorithm = \"concurrency\", quota = {PLACES}");
    let window = format!(
        "name = \"window\", algorithm = \"fixed_window\", quota = {QUOTA}, period = \"400d\""
    );
    let config =
        simple(&upstream.url(), &[&places, &window]).redis("single", &[redis.address]).text();
    let config =
        config.replacen("[store]", &format!("[store]\nlease = \"{}ms\"", LEASE.as_millis()), 1);
    let [mut killed, one, other] = [(); 3].map(|()| Weir::start(&config));
    let mut clients = Vec::new();
    for address in [killed.http, one.http, other.http].into_iter().cycle().take(PLACES as usize) {
        clients.push(place(address, &upstream).await.unwrap());
    }
    assert_eq!(place(one.http, &upstream).await.err(), Some(429));
    // In turn it had three of the eight.
    killed.signal(Signal::KILL);
    killed.exit();
    let killed_at = Instant::now();
    assert_eq!(
        place(one.http, &upstream).await.err(),
        Some(429),
        "the other proxies do not know yet that they are free"
    );
    for address in [one.http, other.http, one.http] {
        let next = eventually_async("a lease ends", async || {
            place(address, &upstream).await.map_err(|status| status.to_string())
        });
        clients.push(next.await);
    }
    // Until every lease, including the latest, would have ended without renewal.
    let taken_at = Instant::now();
    let mut asked = 0;
    while taken_at.elapsed() < 2 * LEASE {
        assert_eq!(place(other.http, &upstream).await.err(), Some(429));
        asked += 1;
        tokio::time::sleep(LEASE / 100).await;
    }
    assert!(asked > 0 && killed_at.elapsed() > 2 * LEASE);
    let count = upstream.of("places");
    assert_eq!(
        (count.in_flight, count.in_flight_most, count.arrived),
        (PLACES, PLACES, PLACES + 3),
        "{count:?}"
    );

    assert_eq!(redis.keys_without_lifetime(), [] as [&str; 0]);
    upstream.release();
    for client in clients
        .iter_mut()
        .enumerate()
        .filter(|(number, _)| *number >= PLACES as usize || number % 3 != 0)
        .map(|(_, client)| client)
    {
        assert_eq!(status(client).await, 200);
    }
    eventually_async("all places are free, and all that arrived is charged", async || {
        let told = get(one.http, "/places", &[]).await;
        let expected = [(PLACES - 1) as i64, (QUOTA - upstream.of("places").arrived) as i64];
        let told = [told.remaining("places"), told.remaining("window")];
        if told == expected { Ok(()) } else { Err(format!("{told:?}, expected {expected:?}")) }
    })
    .await;
}
