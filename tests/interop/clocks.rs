//! Time comes from the store: proxies with different clocks agree on limits.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::harness::client::{Client, Tally};
use crate::harness::counting::{Counting, held, status};
use crate::harness::eventually_async;
use crate::harness::held::HeldTime;
use crate::harness::process::run;
use crate::harness::redis::Redis;
use crate::harness::toml::{Toml, simple};
use crate::harness::weir::{Builder, Weir};

const QUOTA: u64 = 60;
/// Clients per proxy, and how often each uses each limit when all run at once.
const CLIENTS: usize = 4;
const EACH: usize = 8;
const HOUR_S: i64 = 3_600;

/// Each limit is on its own route. The periods are the hours of the store's clock if one is to end
/// in the test, and otherwise so long that nothing is refilled.
const LIMITS: [(&str, &str); 11] = [
    ("first", "algorithm = \"fixed_window\", period = \"400d\""),
    ("clock", "algorithm = \"fixed_window\", period = \"1h\", alignment = \"clock\""),
    ("counter", "algorithm = \"sliding_window_counter\", period = \"400d\""),
    ("log", "algorithm = \"sliding_window_log\", period = \"400d\""),
    ("ring", "algorithm = \"sliding_window_buckets\", period = \"400d\", buckets = 100"),
    ("tokens", "algorithm = \"token_bucket\", period = \"400d\""),
    ("gcra", "algorithm = \"gcra\", period = \"400d\""),
    ("leaky", "algorithm = \"leaky_bucket\", period = \"400d\", burst = 60, max_delay = \"0s\""),
    ("hour", "algorithm = \"quota\", calendar = \"hour\""),
    ("day", "algorithm = \"quota\", calendar = \"day\", time_zone = \"Asia/Kathmandu\""),
    ("ever", "algorithm = \"quota\", calendar = \"forever\""),
];

/// The limits whose period ends with the store's hour.
const HOURLY: [&str; 2] = ["clock", "hour"];

/// libfaketime gives a process another wall clock. It is in Debian's package `faketime`.
fn faketime() -> PathBuf {
    let mut folders = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let library = folders.find_map(|folder| {
        Some(folder.path().join("faketime/libfaketime.so.1")).filter(|path| path.is_file())
    });
    library.expect("libfaketime.so.1 under /usr/lib: `make setup` installs it")
}

/// Moves only the wall clock: deadlines and timers use the monotonic one, as on a machine whose
/// clock is simply wrong.
fn skewed(by: &str) -> [(&'static str, String); 4] {
    [
        ("LD_PRELOAD", faketime().to_string_lossy().into_owned()),
        ("FAKETIME", by.into()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
        ("FAKETIME_NO_CACHE", "1".into()),
    ]
}

fn start(config: &str, by: &str) -> Weir {
    let apply = |builder: Builder, (name, value): (&str, String)| builder.environment(name, &value);
    skewed(by).into_iter().fold(Weir::build(config), apply).start()
}

fn now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

/// How far ahead a proxy's clock is, in seconds.
fn skew_s(weir: &Weir) -> i64 {
    weir.metric("weir_config_applied_timestamp_seconds") as i64 - now_s() as i64
}

fn config(upstream: &Counting, redis: &Redis) -> String {
    let toml = LIMITS.iter().fold(
        Toml::new().upstream("api", &upstream.url(), ""),
        |toml, (name, algorithm)| {
            toml.policy(name, &[&format!("name = \"limit\", {algorithm}, quota = {QUOTA}")]).route(
                &format!(
                    "name = \"{name}\"\npath = \"/{name}\"\nupstream = \"api\"\npolicy = \"{name}\""
                ),
            )
        },
    );
    toml.redis("single", &[redis.address]).text()
}

/// This many clients of each of these proxies use each limit, all at once.
async fn ask(proxies: &[SocketAddr], each: usize) {
    let mut clients = tokio::task::JoinSet::new();
    for address in proxies.iter().copied().cycle().take(proxies.len() * CLIENTS) {
        clients.spawn(async move {
            let (mut client, mut tally) =
                (Client::connect(address).await.unwrap(), Tally::default());
            for _ in 0..each {
                for (name, _) in LIMITS {
                    tally.add(&client.get(&format!("/{name}"), &[]).await);
                }
            }
            tally.only(&[200, 429]);
        });
    }
    clients.join_all().await;
}

/// First each proxy in turn uses its part of the limit, so each would have the chance to start a
/// window of its own. Then all together ask for more than is left.
async fn ask_for_more_than_there_is(proxies: &[SocketAddr], upstream: &Counting, limits: &[&str]) {
    let arrived = || limits.iter().map(|name| upstream.of(name).arrived).collect::<Vec<_>>();
    for address in proxies {
        let expected: Vec<u64> = arrived().iter().map(|arrived| arrived + CLIENTS as u64).collect();
        ask(&[*address], 1).await;
        assert_eq!(arrived(), expected, "{limits:?}");
    }
    ask(proxies, EACH).await;
}

#[tokio::test]
async fn proxies_200_ms_and_hours_apart_admit_what_one_would_under_every_algorithm() {
    let (upstream, time) = (Counting::start(), HeldTime::running());
    let redis = Redis::within(&[], &time.environment());
    // In the middle of an hour of the store, which is over for one proxy and has not begun for the
    // other. The store's clock is stopped meanwhile.
    let noon_s = (now_s() as i64).div_euclid(HOUR_S) * HOUR_S + HOUR_S / 2;
    time.set(noon_s);
    let config = config(&upstream, &redis);
    // An hour ahead is in the next period. Three hours behind, none of the periods that the proxy
    // names around its own time is the store's.
    let proxies = [
        start(&config, "+0"),
        start(&config, "+0.2"),
        start(&config, "+3600"),
        start(&config, "-10800"),
    ];
    for (weir, expected) in proxies.iter().zip([0, 0, HOUR_S, -3 * HOUR_S]) {
        let skew = skew_s(weir);
        assert!(
            (expected - 120..=expected + 5).contains(&skew),
            "it believes to be {skew} s ahead, not {expected}"
        );
    }
    let addresses = proxies.each_ref().map(|weir| weir.http);
    ask_for_more_than_there_is(&addresses, &upstream, &LIMITS.map(|(name, _)| name)).await;
    for (name, _) in LIMITS {
        assert_eq!(upstream.of(name).arrived, QUOTA, "{name}");
    }
    // The store's hour ends: for all proxies at once, and only for the hourly limits.
    time.set(noon_s + HOUR_S / 2 - 1);
    ask(&addresses, 1).await;
    for (name, _) in LIMITS {
        assert_eq!(upstream.of(name).arrived, QUOTA, "{name}, a second before the hour's end");
    }
    time.set(noon_s + HOUR_S / 2);
    ask_for_more_than_there_is(&addresses, &upstream, &HOURLY).await;
    for (name, _) in LIMITS {
        let periods = if HOURLY.contains(&name) { 2 } else { 1 };
        assert_eq!(upstream.of(name).arrived, periods * QUOTA, "{name}");
    }
    assert!(proxies.iter().all(|weir| weir.metric("weir_takes_unknown_total") == 0));
}

/// A lease ends by the store's clock: a wrong clock neither releases it early nor keeps it longer.
#[tokio::test]
async fn proxies_hours_apart_hold_no_more_in_flight_than_may_be() {
    const IN_FLIGHT: usize = 6;
    let (upstream, redis) = (Counting::start(), Redis::start());
    let config = simple(
        &upstream.url(),
        &[&format!("name = \"places\", algorithm = \"concurrency\", quota = {IN_FLIGHT}")],
    )
    .redis("single", &[redis.address])
    .text();
    let proxies = [start(&config, "+3600"), start(&config, "+0"), start(&config, "-10800")];
    let mut clients = Vec::new();
    for (number, weir) in proxies.iter().cycle().take(2 * IN_FLIGHT).enumerate() {
        let held = held(weir.http, "/places", "t", &number.to_string(), &upstream).await;
        assert_eq!(held.as_ref().err(), (number >= IN_FLIGHT).then_some(&429), "request {number}");
        clients.extend(held);
    }
    assert_eq!(upstream.of("places").in_flight_most, IN_FLIGHT as u64);
    upstream.release();
    for client in &mut clients {
        assert_eq!(status(client).await, 200);
    }
    eventually_async("all places are free", async || {
        match redis.connect().ask(&["DBSIZE"]).number() {
            0 => Ok(()),
            keys => Err(format!("{keys} keys")),
        }
    })
    .await;
}

#[test]
fn two_hundred_milliseconds_are_two_hundred_milliseconds() {
    let before = now_s();
    let told = run(Command::new("date").arg("+%s.%N").envs(skewed("+0.2")));
    let after = now_s();
    let told: f64 = told.out.trim().parse().unwrap_or_else(|_| panic!("{told:?}"));
    assert!((before + 0.2..=after + 0.2).contains(&told), "{before} {told} {after}");
}
