//! A limit of N admits N, never N+1, however many clients, workers and proxies there are.
//!
//! All exact algorithms at once, each on its own route: 256 clients send requests in turn,
//! upstreams fail and units are given back, clients go away in the middle. The upstream keeps its
//! own counts, and at the end each counter must agree with them. Periods are long, so that nothing
//! is refilled meanwhile.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::sync::Barrier;

use crate::harness::client::{self, Client, Reply, Tally};
use crate::harness::cluster::Cluster;
use crate::harness::counting::{Counting, held, status, write};
use crate::harness::eventually_async;
use crate::harness::redis::Redis;
use crate::harness::toml::{Toml, simple};
use crate::harness::weir::Weir;

const CLIENTS: usize = 256;
/// The limit of all clients together: they share an address.
const OWN: u64 = 100;
/// A second limit with the same tag, which is not reached.
const WIDE: u64 = 1_000;
/// A second limit with another tag, for each of the tenants.
const TENANT: u64 = 30;
const TENANTS: usize = 4;
/// Requests in flight: for all, and for a tenant.
const OWN_IN_FLIGHT: u64 = 8;
const TENANT_IN_FLIGHT: u64 = 3;

/// What happens to the units of a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// They are given back completely.
    Whole,
    /// They are given back except for what was refilled meanwhile: a fraction of a unit may be
    /// missing.
    Flows,
    /// They stay taken.
    Stands,
    /// They are held only while the request is in flight.
    InFlight,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    algorithm: &'static str,
    kind: Kind,
}

const CASES: [Case; 10] = [
    Case {
        name: "first",
        algorithm: "algorithm = \"fixed_window\", period = \"400d\"",
        kind: Kind::Whole,
    },
    Case {
        name: "clock",
        algorithm: "algorithm = \"fixed_window\", period = \"400d\", alignment = \"clock\"",
        kind: Kind::Whole,
    },
    Case {
        name: "log",
        algorithm: "algorithm = \"sliding_window_log\", period = \"400d\"",
        kind: Kind::Whole,
    },
    Case {
        name: "ring",
        algorithm: "algorithm = \"sliding_window_buckets\", period = \"400d\", buckets = 100",
        kind: Kind::Whole,
    },
    Case {
        name: "tokens",
        algorithm: "algorithm = \"token_bucket\", period = \"400d\"",
        kind: Kind::Flows,
    },
    Case { name: "gcra", algorithm: "algorithm = \"gcra\", period = \"400d\"", kind: Kind::Flows },
    Case { name: "leaky", algorithm: LEAKY, kind: Kind::Stands },
    Case {
        name: "month",
        algorithm: "algorithm = \"quota\", calendar = \"month\", time_zone = \"Europe/Berlin\"",
        kind: Kind::Whole,
    },
    Case {
        name: "ever",
        algorithm: "algorithm = \"quota\", calendar = \"forever\"",
        kind: Kind::Whole,
    },
    Case { name: "flight", algorithm: "algorithm = \"concurrency\"", kind: Kind::InFlight },
];
const LEAKY: &str =
    "algorithm = \"leaky_bucket\", period = \"400d\", burst = 100, max_delay = \"0s\"";

/// The limits of each plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tags {
    /// Both limits have the tag of the client's address.
    One,
    /// The second limit has the tag of the tenant.
    Two,
}

impl Case {
    /// The quotas of the first limit and of the second.
    fn quotas(&self, tags: Tags) -> [u64; 2] {
        match (self.kind, tags) {
            (Kind::InFlight, Tags::One) => [OWN_IN_FLIGHT, WIDE],
            (Kind::InFlight, Tags::Two) => [OWN_IN_FLIGHT, TENANT_IN_FLIGHT],
            (_, Tags::One) => [OWN, WIDE],
            (_, Tags::Two) => [OWN, TENANT],
        }
    }

    /// The algorithm of the second limit: the same, except that a plan has at most one leaky
    /// bucket.
    fn second(&self) -> Self {
        if self.kind == Kind::Stands { CASES[0] } else { *self }
    }

    /// What is left of a quota according to the upstream, and the other value that is acceptable.
    fn left(&self, quota: u64, upstream: &Counting, name: &str) -> [i64; 2] {
        let count = upstream.of(name);
        let (charged, slack) = match self.kind {
            Kind::Whole => (count.kept(), 0),
            Kind::Flows => (count.kept(), 1),
            Kind::Stands => (count.arrived, 0),
            // The request that reads it is in flight itself.
            Kind::InFlight => (1, 0),
        };
        assert!(charged <= quota, "{charged} of {quota} under {name}: {self:?}");
        let left = (quota - charged) as i64;
        [left, (left - slack).max(0)]
    }
}

fn config(upstream: &Counting, tags: Tags) -> Toml {
    let mut toml = Toml::new().upstream("api", &upstream.url(), "");
    for case in &CASES {
        let [own, second] = case.quotas(tags);
        let key = if tags == Tags::One { "{client_ip}" } else { "{header.x-tenant}" };
        let line = |name: &str, algorithm: &str, quota: u64, key: &str| {
            format!(
                "name = \"{name}\", {algorithm}, quota = {quota}, key = \"{key}\", refund = \"upstream_error\""
            )
        };
        let own = line("own", case.algorithm, own, "{client_ip}");
        let second = line("second", case.second().algorithm, second, key);
        let name = case.name;
        toml = toml.policy(name, &[&own, &second]).route(&format!(
            "name = \"{name}\"\npath = \"/{name}\"\nupstream = \"api\"\npolicy = \"{name}\""
        ));
    }
    toml
}

fn tenant(number: usize) -> String {
    format!("t{}", number % TENANTS)
}

/// 256 clients. Each sends one request to each route, one route after another, starting at a
/// different one.
async fn storm(addresses: &[SocketAddr], upstream: &Arc<Counting>) {
    let barrier = Arc::new(Barrier::new(CLIENTS));
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..CLIENTS {
        let (address, barrier, upstream) =
            (addresses[number % addresses.len()], Arc::clone(&barrier), Arc::clone(upstream));
        clients.spawn(async move {
            let mut client = Client::connect(address).await.expect("a connection");
            let mut tally = Tally::default();
            barrier.wait().await;
            for turn in 0..CASES.len() {
                let case = &CASES[(number + turn) % CASES.len()];
                let (target, tenant) = (format!("/{}", case.name), tenant(number / CASES.len()));
                // Chosen by a number that is independent of the order of routes and tenants.
                let what = match (number * 7 + turn) % 11 {
                    0..3 => "fail",
                    3 if case.kind != Kind::InFlight => {
                        // The client goes away when the upstream has the request.
                        let held =
                            held(address, &target, &tenant, &format!("{number} {turn}"), &upstream)
                                .await;
                        assert!(matches!(held, Ok(_) | Err(429)), "{held:?}");
                        continue;
                    }
                    _ if case.kind == Kind::InFlight => "slow",
                    _ => "answer",
                };
                tally.add(&client.get(&target, &[("x-tenant", &tenant), ("x-do", what)]).await);
            }
            tally
        });
    }
    while let Some(tally) = clients.join_next().await {
        tally.expect("no panic in a client").only(&[200, 429, 500]);
    }
}

/// Checks by one more request that each counter agrees with the upstream.
async fn read_back(case: &Case, tags: Tags, address: SocketAddr, upstream: &Counting) {
    let quotas = case.quotas(tags);
    for number in 0..TENANTS {
        let tenant = tenant(number);
        let names = [
            case.name.to_owned(),
            if tags == Tags::One {
                case.name.to_owned()
            } else {
                format!("{} {tenant}", case.name)
            },
        ];
        // What was in flight when the last client left is given back a little later.
        eventually_async(&format!("the counters of {names:?} say what was admitted"), async || {
            let told = ask(case, address, &tenant).await;
            let told = [told.remaining("own"), told.remaining("second")];
            let left = [
                case.left(quotas[0], upstream, &names[0]),
                case.second().left(quotas[1], upstream, &names[1]),
            ];
            let agree = told.iter().zip(&left).all(|(told, left)| left.contains(told));
            if agree {
                Ok(())
            } else {
                Err(format!(
                    "{told:?} are left, by the upstream's count {left:?}: {:?}",
                    upstream.of(&names[0])
                ))
            }
        })
        .await;
    }
}

async fn ask(case: &Case, address: SocketAddr, tenant: &str) -> Reply {
    let mut client = Client::connect(address).await.unwrap();
    let reply = client.get(&format!("/{}", case.name), &[("x-tenant", tenant)]).await.unwrap();
    assert!(matches!(reply.status, 200 | 429), "{reply:?}");
    reply
}

/// Checks that everything that is left can be used, and no more.
async fn use_up(case: &Case, tags: Tags, address: SocketAddr, upstream: &Counting) {
    let [own, second] = case.quotas(tags);
    eventually_async(&format!("the whole allowance of {case:?} is used"), async || {
        let mut refused = 0;
        for number in 0..TENANTS {
            refused += usize::from(ask(case, address, &tenant(number)).await.status == 429);
        }
        let used = own as i64 - case.left(own, upstream, case.name)[1];
        // The second limits allow more in total, so the first one decides.
        if refused == TENANTS && used >= own as i64 {
            Ok(())
        } else {
            Err(format!("{used} of {own}: {:?}", upstream.of(case.name)))
        }
    })
    .await;
    let most = |name: &str| {
        if case.kind == Kind::Stands {
            upstream.of(name).arrived
        } else {
            upstream.of(name).kept_most
        }
    };
    assert!(most(case.name) <= own, "{:?}", upstream.of(case.name));
    for number in 0..TENANTS {
        let name = format!("{} {}", case.name, tenant(number));
        assert!(
            tags == Tags::One || upstream.of(&name).kept_most <= second,
            "{name}: {:?}",
            upstream.of(&name)
        );
    }
}

async fn exact(proxies: &[Weir], upstream: &Arc<Counting>, tags: Tags) {
    let addresses: Vec<SocketAddr> = proxies.iter().map(|weir| weir.http).collect();
    storm(&addresses, upstream).await;
    for case in &CASES {
        // The upstream learns of the clients that went away.
        eventually_async(&format!("nothing is in flight of {case:?}"), async || {
            match upstream.of(case.name).in_flight {
                0 => Ok(()),
                count => Err(format!("{count} are")),
            }
        })
        .await;
        read_back(case, tags, addresses[0], upstream).await;
        if case.kind == Kind::InFlight {
            let [own, second] = case.quotas(tags);
            assert!(upstream.of(case.name).in_flight_most <= own, "{:?}", upstream.of(case.name));
            for number in 0..TENANTS {
                assert!(
                    upstream.of(&format!("{} {}", case.name, tenant(number))).in_flight_most
                        <= second
                );
            }
        } else {
            assert!(
                upstream.of(case.name).failed > 0,
                "nothing was ever given back: {:?}",
                upstream.of(case.name)
            );
            use_up(case, tags, addresses[addresses.len() - 1], upstream).await;
        }
        let series =
            format!("weir_decisions_total{{policy=\"{}\",decision=\"admitted\"}}", case.name);
        let admitted: u64 = proxies.iter().map(|weir| weir.metric(&series)).sum();
        assert_eq!(
            admitted,
            upstream.of(case.name).arrived,
            "every admitted request, and no refused one, reached the upstream: {case:?}"
        );
    }
}

/// Sends as many requests as may be in flight, none of which ends by itself: the upstream must have
/// exactly as many as the counter holds.
async fn in_flight(proxies: &[Weir], upstream: &Arc<Counting>) {
    let case = CASES.iter().find(|case| case.kind == Kind::InFlight).unwrap();
    let target = format!("/{}", case.name);
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..CLIENTS {
        let (address, target, upstream) =
            (proxies[number % proxies.len()].http, target.clone(), Arc::clone(upstream));
        clients.spawn(async move {
            held(address, &target, "t", &format!("first {number}"), &upstream).await
        });
    }
    let (held_now, refused): (Vec<_>, Vec<_>) =
        clients.join_all().await.into_iter().partition(Result::is_ok);
    assert_eq!(
        (held_now.len() as u64, upstream.of(case.name).in_flight),
        (OWN_IN_FLIGHT, OWN_IN_FLIGHT)
    );
    assert!(refused.iter().all(|held| matches!(held, Err(429))), "{refused:?}");

    // Half of the clients go away: as many leases are released, whichever proxy held them.
    let mut kept: Vec<TcpStream> =
        held_now.into_iter().flatten().skip(OWN_IN_FLIGHT as usize / 2).collect();
    for address in proxies.iter().map(|weir| weir.http).cycle().take(OWN_IN_FLIGHT as usize / 2) {
        let next = eventually_async("a place is free again", async || {
            let id = format!("again {}", upstream.of(case.name).arrived);
            held(address, &target, "t", &id, upstream).await.map_err(|status| status.to_string())
        });
        kept.push(next.await);
    }
    assert_eq!(held(proxies[0].http, &target, "t", "one more", upstream).await.err(), Some(429));
    eventually_async("the upstream knows who is gone", async || {
        match upstream.of(case.name).in_flight {
            OWN_IN_FLIGHT => Ok(()),
            count => Err(format!("{count} in flight")),
        }
    })
    .await;
    upstream.release();
    for stream in &mut kept {
        assert_eq!(status(stream).await, 200);
    }
    read_back(case, Tags::One, proxies[0].http, upstream).await;
}

/// Clients that go away before their request is decided, sent or answered. Each is charged once if
/// the upstream may have got the request, or not at all.
async fn gone_at_any_moment(proxies: &[Weir], upstream: &Arc<Counting>) {
    const GONE: usize = 20 * CASES.len();
    for number in 0..GONE {
        let case = &CASES[number % CASES.len()];
        drop(
            write(
                proxies[number % proxies.len()].http,
                &format!("/{}", case.name),
                "x-tenant: t0\r\nx-do: slow\r\n",
            )
            .await,
        );
    }
    let all_gone = async || {
        let open: u64 = proxies.iter().map(|weir| weir.metric("weir_connections_open")).sum();
        // Each proxy answers on a connection that it counts as well.
        if open <= proxies.len() as u64 {
            Ok(())
        } else {
            Err(format!("{open} connections are open"))
        }
    };
    eventually_async("all are gone", all_gone).await;
    for case in &CASES {
        if case.kind == Kind::InFlight {
            read_back(case, Tags::One, proxies[0].http, upstream).await;
            continue;
        }
        // Twenty clients are gone. What they took and the upstream never saw is missing here, and
        // nothing else.
        let gone = (GONE / CASES.len()) as u64;
        let arrived_gone = upstream.of(case.name).arrived;
        assert!(arrived_gone <= gone, "{:?}", upstream.of(case.name));
        let mut tries = 0;
        while ask(case, proxies[0].http, "t0").await.status == 200 {
            tries += 1;
            assert!(tries <= OWN, "it refuses nobody: {case:?}");
        }
        let arrived = upstream.of(case.name).arrived;
        assert!(
            (OWN - (gone - arrived_gone)..=OWN).contains(&arrived),
            "{arrived} of {OWN} arrived, {arrived_gone} of those gone: {case:?}"
        );
    }
}

/// A leaky bucket that lets some requests wait. Those that passed, each after its wait, are no more
/// than the burst, those that may wait and what was refilled.
async fn turns(proxies: &[Weir], upstream: &Counting) {
    const EACH: usize = 2;
    let addresses: Vec<SocketAddr> = proxies.iter().map(|weir| weir.http).collect();
    let begun = Instant::now();
    let tally = client::storm(&addresses, CLIENTS, EACH, |_, _| Vec::new()).await;
    let flowed = (begun.elapsed().as_secs_f64() * TURNS_A_SECOND as f64).ceil() as u64;
    tally.only(&[200, 429]);
    let most = TURNS_AT_ONCE + TURNS_WAITING + flowed;
    // The last ones found it full, and the last of those that waited was answered as well.
    assert!(
        (TURNS_AT_ONCE + TURNS_WAITING..=most).contains(&tally.count(200)),
        "at most {most}: {tally:?}"
    );
    assert_eq!(upstream.of("").arrived, tally.count(200));
    assert!(begun.elapsed() >= TURNS_DELAY, "nobody waited");
}

const TURNS_A_SECOND: u64 = 50;
const TURNS_AT_ONCE: u64 = 10;
const TURNS_DELAY: Duration = Duration::from_millis(400);
const TURNS_WAITING: u64 = 20;

fn of_turns(upstream: &Counting) -> Toml {
    let leaky = format!(
        "algorithm = \"leaky_bucket\", quota = {TURNS_A_SECOND}, period = \"1s\", burst = {TURNS_AT_ONCE}"
    );
    simple(
        &upstream.url(),
        &[&format!("name = \"turns\", {leaky}, max_delay = \"{}ms\"", TURNS_DELAY.as_millis())],
    )
}

#[tokio::test]
async fn in_memory_256_clients_take_turns_in_a_leaky_bucket_and_no_more_pass_than_may() {
    let upstream = Counting::start();
    turns(&[Weir::start(&of_turns(&upstream).text())], &upstream).await;
}

#[tokio::test]
async fn over_three_proxies_and_a_redis_256_clients_take_turns_in_a_leaky_bucket_and_no_more_pass_than_may()
 {
    let (upstream, redis) = (Counting::start(), Redis::start());
    let config = of_turns(&upstream).redis("single", &[redis.address]);
    turns(&[(); 3].map(|()| Weir::start(&config.text())), &upstream).await;
}

async fn in_memory(tags: Tags) {
    let upstream = Arc::new(Counting::start());
    let proxy = Weir::start(&config(&upstream, tags).text());
    exact(&[proxy], &upstream, tags).await;
}

#[tokio::test]
async fn in_memory_no_more_are_in_flight_than_may_be_and_places_of_clients_that_went_away_come_back()
 {
    let upstream = Arc::new(Counting::start());
    let proxy = Weir::start(&config(&upstream, Tags::One).text());
    in_flight(&[proxy], &upstream).await;
}

#[tokio::test]
async fn in_memory_a_client_that_is_gone_at_any_moment_is_charged_once_or_not_at_all() {
    let upstream = Arc::new(Counting::start());
    let proxy = Weir::start(&config(&upstream, Tags::One).text());
    gone_at_any_moment(&[proxy], &upstream).await;
}

#[tokio::test]
async fn over_three_proxies_and_a_cluster_no_more_are_in_flight_than_may_be_and_clients_may_go_at_any_moment()
 {
    let (upstream, cluster) = (Arc::new(Counting::start()), Cluster::start());
    let config = config(&upstream, Tags::One).redis("cluster", &cluster.addresses());
    let proxies = [(); 3].map(|()| Weir::start(&config.text()));
    in_flight(&proxies, &upstream).await;
    gone_at_any_moment(&proxies, &upstream).await;
}

async fn over_three_proxies_and_a_cluster(tags: Tags) {
    let (upstream, cluster) = (Arc::new(Counting::start()), Cluster::start());
    let config = config(&upstream, tags).redis("cluster", &cluster.addresses());
    let proxies = [(); 3].map(|()| Weir::start(&config.text()));
    exact(&proxies, &upstream, tags).await;
    let for_ever = cluster.keys_without_lifetime();
    assert!(
        for_ever.iter().all(|key| key.contains("ever/") && key.contains("/q2-ever:")),
        "{for_ever:?}"
    );
    assert_eq!(for_ever.len(), if tags == Tags::One { 2 } else { 1 + TENANTS }, "{for_ever:?}");
}

#[tokio::test]
async fn in_memory_each_exact_algorithm_admits_its_limit_to_256_clients_with_refunds_and_aborts() {
    in_memory(Tags::One).await;
}

#[tokio::test]
async fn in_memory_two_tags_of_each_exact_algorithm_are_never_over_and_end_equal_to_what_was_admitted()
 {
    in_memory(Tags::Two).await;
}

#[tokio::test]
async fn over_three_proxies_and_a_cluster_each_exact_algorithm_admits_its_limit_to_256_clients_with_refunds_and_aborts()
 {
    over_three_proxies_and_a_cluster(Tags::One).await;
}

#[tokio::test]
async fn over_three_proxies_and_a_cluster_two_tags_of_each_exact_algorithm_are_never_over_and_end_equal_to_what_was_admitted()
 {
    over_three_proxies_and_a_cluster(Tags::Two).await;
}
