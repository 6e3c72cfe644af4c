//! Weir hands out quotas: streams of Envoy's rate limit quota service, as Envoy sees them.
//! `interop` has Envoy itself.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use rustix::process::Signal;

use super::decisions::{hits, start_text, user};
use crate::harness::quotas::{Event, Reported, Stream, Told};
use crate::harness::redis::Redis;
use crate::harness::rls::{Client, OK, descriptor, framed};
use crate::harness::toml::Toml;
use crate::harness::weir::Weir;
use crate::harness::{TIMEOUT, eventually};

/// Rules for users, with a log that counts them for a day; for teams, with two limits; and two that
/// can't be handed out or need not be.
const RULES: &str = r#"
[policies.edge]
use = "rls"

[[policies.edge.config.rules]]
descriptor = ["user"]
limits = [{ name = "user", algorithm = "sliding_window_log", quota = 100, period = "1d", lease = { life = "2s", callers = true } }]

[[policies.edge.config.rules]]
descriptor = ["team"]
limits = [
    { name = "team", algorithm = "gcra", quota = 1000, period = "1s", burst = 5000, lease = { life = "3s", callers = true } },
    { name = "team-day", algorithm = "fixed_window", quota = 40, period = "1d", cost = 2, lease = { life = "5s", callers = true } },
]

[[policies.edge.config.rules]]
descriptor = ["plain"]
limits = [{ name = "plain", algorithm = "fixed_window", quota = 5, period = "1d" }]

[[policies.edge.config.rules]]
descriptor = ["free"]
unlimited = true

[[policies.edge.config.rules]]
descriptor = ["window"]
limits = [{ name = "window", algorithm = "fixed_window", quota = 50, period = "3s", alignment = "clock", lease = { life = "2s", callers = true } }]

[[policies.edge.config.rules]]
descriptor = ["ever"]
limits = [{ name = "ever", algorithm = "quota", quota = 100, calendar = "forever", lease = { life = "2s", callers = true } }]

[[policies.edge.config.rules]]
descriptor = ["shadow"]
limits = [{ name = "shadow", algorithm = "fixed_window", quota = 5, period = "1d", shadow = true }]

[[policies.edge.config.rules]]
descriptor = ["rare"]
limits = [{ name = "rare", algorithm = "sliding_window_log", quota = 100, period = "1d", lease = { life = "10s", callers = true } }]

[[policies.edge.config.rules]]
descriptor = ["few"]
limits = [{ name = "few", algorithm = "sliding_window_log", quota = 100, period = "1d", lease = { life = "2s", units = 3, callers = true } }]
"#;

fn config() -> Toml {
    Toml::new()
        .listener("serves = \"decisions\"")
        .route("domain = \"edge\"\npolicy = \"edge\"")
        .more(RULES)
}

/// What is left of a user's limit.
async fn left(client: &Client, name: &str) -> u32 {
    client.ask("edge", &[hits(user(name), 0)]).await.unwrap().left()[0]
}

async fn awaited(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !holds().await {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_bucket_gets_units_of_its_limit_and_pays_for_what_it_let_through_before() {
    let (weir, client) = start_text(config().text()).await;
    let mut stream = Stream::open(weir.http, "edge").await;
    stream.report(&[(&[("user", "a")], 1, 0)]);
    // One is owed, and half of the others are handed out.
    let told = stream.one().await;
    assert!(matches!(told, Told::Units { units: 48..=50, seconds: 1, .. }), "{told:?}");
    let units = told.units();
    let left_over = left(&client, "a").await;
    assert!((49..=51).contains(&left_over) && left_over <= 99 - units, "{left_over}");
    stream.report(&[(&[("user", "a")], 45, 0)]);
    // It is nearly out of them, so it gets more at once.
    assert!(matches!(stream.one().await, Told::Units { .. }));
    assert_eq!(weir.metric("weir_quota_requests_total{result=\"allowed\"}"), 46);
    assert!(weir.metric("weir_quota_assignments_total{result=\"assigned\"}") >= 2);
}

#[tokio::test]
async fn streams_share_a_limit_and_never_get_more_than_it_has() {
    let (weir, client) = start_text(config().text()).await;
    let mut streams = Vec::new();
    for _ in 0..4 {
        streams.push(Stream::open(weir.http, "edge").await);
    }
    // All of them spend everything that they get, and want more.
    for stream in &mut streams {
        stream.report(&[(&[("user", "b")], 0, 1)]);
    }
    spend_all(&mut streams, "b").await;
    assert_eq!(left(&client, "b").await, 0);
}

/// Spends what is handed out of a user's limit, until all of it is.
async fn spend_all(streams: &mut [Stream], name: &str) {
    let (mut handed, deadline) = (0, Instant::now() + TIMEOUT);
    while handed < 100 {
        assert!(Instant::now() < deadline, "only {handed}");
        for stream in streams.iter_mut() {
            let event = stream.next_within(Duration::from_millis(20)).await;
            let spent = match &event {
                Some(Event::Told(told)) if told[0].1 != Told::DenyAll => told[0].1.units(),
                Some(Event::End(..)) => panic!("{event:?}"),
                _ => 0,
            };
            handed += spent;
            stream.report(&[(&[("user", name)], u64::from(spent), 50)]);
        }
    }
    assert_eq!(handed, 100);
}

#[tokio::test]
async fn what_nobody_used_comes_back() {
    let (weir, client) = start_text(config().text()).await;
    let mut stream = Stream::open(weir.http, "edge").await;
    stream.report(&[(&[("user", "c")], 0, 1)]);
    assert!(matches!(stream.one().await, Told::Units { units: 48..=50, .. }));
    // Envoy reports each second, whatever happened: nothing, now.
    awaited("all but a few units are there", async || {
        stream.report(&[(&[("user", "c")], 0, 0)]);
        while stream.next_within(Duration::from_millis(10)).await.is_some() {}
        left(&client, "c").await >= 90
    })
    .await;
}

#[tokio::test]
async fn each_bucket_has_what_its_rule_says_and_disturbs_no_other() {
    let (weir, _client) = start_text(config().text()).await;
    let mut stream = Stream::open(weir.http, "edge").await;
    stream.report(&[
        (&[("plain", "x")], 0, 1),
        (&[("free", "x")], 0, 1),
        (&[("nobody", "x"), ("knows", "it")], 0, 1),
        (&[("team", "x")], 0, 1),
        (&[], 0, 1),
    ]);
    let Event::Told(told) = stream.next().await else { panic!() };
    let told: HashMap<String, Told> =
        told.into_iter().map(|(entries, told)| (entries[0].0.clone(), told)).collect();
    assert_eq!(told.len(), 3, "{told:?}");
    assert_eq!((&told["free"], &told["knows"]), (&Told::AllowAll, &Told::AllowAll));
    // Of two limits the tighter one, which costs two; and the shorter life.
    assert!(matches!(told["team"], Told::Units { units: 9 | 10, seconds: 2, .. }), "{told:?}");
    assert_eq!(weir.metric("weir_quota_assignments_total{result=\"unfit\"}"), 1);
    weir.output().await_text("found no `lease` with `callers = true`");
    // What can't be handed out is not charged.
    let client = Client::connect(weir.http).await;
    let looked = client.ask("edge", &[hits(descriptor(&[("plain", "x")]), 0)]).await.unwrap();
    assert_eq!((looked.overall_code, looked.left()), (OK, vec![5]));
}

#[tokio::test]
async fn a_window_is_handed_out_to_its_end_and_no_further() {
    let (weir, _client) = start_text(config().text()).await;
    let mut stream = Stream::open(weir.http, "edge").await;
    stream.report(&[(&[("window", "x")], 0, 1)]);
    let mut windows: HashMap<u128, u32> = HashMap::new();
    // Windows of 3 s by the clock, and leases of 1 s: at the end of a window there is no room for
    // one.
    while windows.len() < 4 {
        let told = stream.one().await;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
        match told {
            Told::Units { units, seconds } => {
                assert_eq!(seconds, 1);
                assert!(now % 3_000 <= 2_000, "at {} of 3000 ms", now % 3_000);
                *windows.entry(now / 3_000).or_default() += units;
                stream.report(&[(&[("window", "x")], 1, 0)]);
            }
            Told::DenyAll => stream.report(&[(&[("window", "x")], 0, 1)]),
            other => panic!("{other:?}"),
        }
    }
    assert!(windows.values().all(|units| *units <= 50), "{windows:?}");
}

#[tokio::test]
async fn what_does_not_end_and_what_does_not_refuse_is_handed_out_too() {
    let (weir, client) = start_text(config().text()).await;
    let mut stream = Stream::open(weir.http, "edge").await;
    stream.report(&[(&[("ever", "x")], 0, 1)]);
    assert!(matches!(stream.one().await, Told::Units { units: 45..=50, seconds: 1 }));
    // A shadow limit counts what was let through, and nothing else.
    stream.report(&[(&[("shadow", "x")], 3, 0)]);
    loop {
        let Event::Told(told) = stream.next().await else { panic!() };
        if told.iter().any(|(entries, told)| entries[0].0 == "shadow" && *told == Told::AllowAll) {
            break;
        }
    }
    stream.report(&[(&[("shadow", "x")], 4, 0)]);
    let shadow = "weir_limit_would_refuse_total{policy=\"edge\",limit=\"shadow\"}";
    awaited("seven of five are counted", async || {
        client.ask("edge", &[descriptor(&[("shadow", "x")])]).await.unwrap();
        weir.metric(shadow) > 0
    })
    .await;
    // The most that an operator wants to be away.
    stream.report(&[(&[("few", "x")], 0, 1)]);
    loop {
        let Event::Told(told) = stream.next().await else { panic!() };
        if let Some((_, told)) = told.iter().find(|(entries, _)| entries[0].0 == "few") {
            assert_eq!(told.units(), 3);
            break;
        }
    }
}

#[tokio::test]
async fn a_bucket_that_nobody_asks_for_costs_next_to_nothing_and_is_forgotten() {
    let (weir, _client) = start_text(config().text()).await;
    let mut stream = Stream::open(weir.http, "edge").await;
    stream.report(&[(&[("rare", "h")], 1, 0)]);
    // As Envoy does while nobody asks. Half a minute passes until it is abandoned.
    let deadline = Instant::now() + 3 * TIMEOUT;
    loop {
        assert!(Instant::now() < deadline);
        match stream.next_within(Duration::from_millis(500)).await {
            None => stream.report(&[(&[("rare", "h")], 0, 0)]),
            Some(Event::Told(told)) if told[0].1 == Told::Abandon => break,
            Some(Event::Told(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    let client = Client::connect(weir.http).await;
    let looked = client.ask("edge", &[hits(descriptor(&[("rare", "h")]), 0)]).await.unwrap();
    let left = looked.left()[0];
    assert!((97..=99).contains(&left), "one was used: {left}");
    // What crossed the word to forget it is no new bucket.
    stream.report(&[(&[("rare", "h")], 0, 0)]);
    assert_eq!(stream.next_within(Duration::from_millis(300)).await, None);
}

#[tokio::test]
async fn thousands_of_buckets_are_reported_in_one_message() {
    let redis = tokio::task::spawn_blocking(Redis::start).await.unwrap();
    let stores = [(config(), 5_000), (config().redis("single", &[redis.address]), 3_000)];
    for (config, buckets) in stores {
        let (weir, _client) = start_text(config.text()).await;
        let mut stream = Stream::open(weir.http, "edge").await;
        let names: Vec<String> = (0..buckets).map(|nth| format!("user-{nth}")).collect();
        let entries: Vec<_> = names.iter().map(|name| [("rare", &**name)]).collect();
        let usages: Vec<Reported<'_>> =
            entries.iter().map(|entries| (&entries[..], 1, 0)).collect();
        stream.report(&usages);
        let mut told = HashMap::new();
        while told.len() < names.len() {
            let Event::Told(all) = stream.next().await else { panic!() };
            // The first assignment of each: some are renewed before all are told.
            for (entries, assigned) in all {
                told.entry(entries[0].1.clone()).or_insert_with(|| assigned.units());
            }
        }
        assert!(told.values().all(|units| (48..=50).contains(units)));
    }
}

#[tokio::test]
async fn what_is_too_large_for_a_stream_takes_little_memory() {
    let (weir, _client) = start_text(config().text()).await;
    let before = weir.peak_memory_kib();
    // A domain that each of many buckets would have a copy of.
    let names: Vec<String> = (0..500).map(|nth| format!("user-{nth}")).collect();
    let entries: Vec<[(&str, &str); 1]> = names.iter().map(|name| [("user", &**name)]).collect();
    let usages: Vec<Reported<'_>> = entries.iter().map(|entries| (&entries[..], 1, 0)).collect();
    let mut stream = Stream::open(weir.http, &"d".repeat(1 << 20)).await;
    stream.report(&usages);
    assert!(matches!(stream.next().await, Event::End(status, _) if status == "3"));
    // Usages of eight bytes, each of a bucket without a name.
    let usage = [0x12, 6, 0x0a, 2, 0x0a, 0, 0x18, 1];
    let mut stream = Stream::open(weir.http, "edge").await;
    stream.send_bytes(framed(&usage.repeat(1 << 17)));
    assert!(matches!(stream.next().await, Event::End(status, _) if status == "3"));
    // Buckets that are no buckets, again and again, of a caller that does not read what it is told.
    let long = "x".repeat(2 << 10);
    let mut stream = Stream::open(weir.http, "edge").await;
    for _ in 0..50 {
        let names: Vec<String> = (0..100).map(|nth| format!("{nth}-{long}")).collect();
        let entries: Vec<[(&str, &str); 1]> =
            names.iter().map(|name| [("user", &**name)]).collect();
        let usages: Vec<Reported<'_>> =
            entries.iter().map(|entries| (&entries[..], 1, 0)).collect();
        stream.report(&usages);
    }
    let Event::Told(told) = stream.next().await else { panic!() };
    assert!(told.iter().all(|(_, told)| *told == Told::Abandon));
    let grown = weir.peak_memory_kib() - before;
    assert!(grown < 50 << 10, "{grown} KiB");
}

#[tokio::test]
async fn a_stream_that_says_nothing_sensible_ends_alone() {
    let (weir, _client) = start_text(config().text()).await;
    let mut other = Stream::open(weir.http, "edge").await;
    other.report(&[(&[("user", "d")], 0, 1)]);
    let first = other.one().await.units();
    for bytes in [
        framed(&[0xff; 9]),
        Bytes::from_static(&[1, 0, 0, 0, 0]),
        Bytes::from_static(&[0, 0xff, 0, 0, 0]),
    ] {
        let mut stream = Stream::open(weir.http, "edge").await;
        stream.send_bytes(bytes);
        assert!(matches!(stream.next().await, Event::End(status, _) if status == "3"));
    }
    let mut nameless = Stream::open(weir.http, "").await;
    nameless.report(&[(&[("user", "d")], 0, 1)]);
    assert!(matches!(nameless.next().await, Event::End(status, _) if status == "3"));
    let mut unknown = Stream::open(weir.http, "elsewhere").await;
    unknown.report(&[(&[("user", "d")], 0, 1)]);
    assert!(matches!(unknown.next().await, Event::End(status, _) if status == "5"));
    // A caller that has nothing more to say.
    let mut done = Stream::open(weir.http, "edge").await;
    done.finish();
    assert!(matches!(done.next().await, Event::End(status, _) if status == "0"));
    other.report(&[(&[("user", "d")], u64::from(first), 0)]);
    assert!(matches!(other.one().await, Told::Units { .. }));
}

#[tokio::test]
async fn streams_follow_reloads_and_end_when_the_proxy_does() {
    let (weir, _client) = start_text(config().text()).await;
    let mut stream = Stream::open(weir.http, "edge").await;
    stream.report(&[(&[("user", "e")], 0, 1)]);
    assert!((48..=50).contains(&stream.one().await.units()));
    let more = config().text().replacen("quota = 100,", "quota = 5000,", 1);
    let weir = tokio::task::spawn_blocking(move || {
        weir.reload(&more, "applied");
        weir
    })
    .await
    .unwrap();
    // It asks for more by itself, without a report.
    stream.report(&[(&[("user", "e")], 50, 5_000)]);
    awaited(
        "the new quota is handed out",
        async || matches!(stream.one().await, Told::Units { units, .. } if units > 1_000),
    )
    .await;
    weir.signal(Signal::TERM);
    assert_eq!(stream.end().await, ("14".to_owned(), "this proxy stops".to_owned()));
    let mut weir = weir;
    let exited = tokio::task::spawn_blocking(move || {
        eventually("it ends", || if weir.running() { Err("it runs".to_owned()) } else { Ok(()) })
    });
    exited.await.unwrap();
}

#[tokio::test]
async fn a_domain_that_is_gone_and_a_token_for_another_end_the_stream() {
    let tokens = "\n[[decisions.tokens]]\nname = \"envoy\"\ntoken_file = \"token\"\nscopes = [\"decide\"]\ndomains = [\"edge\"]\n";
    let text = format!("{}{tokens}", config().text());
    let builder = Weir::build(&text).file("token", b"0123456789abcdef0123456789abcdef");
    let weir = tokio::task::spawn_blocking(move || builder.start()).await.unwrap();
    let token = Some("0123456789abcdef0123456789abcdef");
    let refused = Stream::open_with(weir.http, "edge", None).await;
    assert_eq!(refused.err().as_deref(), Some("16"));
    let mut other = Stream::open_with(weir.http, "other", token).await.unwrap();
    other.report(&[(&[("user", "f")], 0, 1)]);
    let end = other.next().await;
    assert!(matches!(&end, Event::End(status, _) if status == "7"), "{end:?}");
    let mut stream = Stream::open_with(weir.http, "edge", token).await.unwrap();
    stream.report(&[(&[("user", "f")], 0, 1)]);
    assert!((48..=50).contains(&stream.one().await.units()));
    let gone =
        format!("{}{tokens}", config().text()).replacen("domain = \"edge\"", "domain = \"new\"", 1);
    let _weir = tokio::task::spawn_blocking(move || {
        weir.reload(&gone, "applied");
        weir
    })
    .await
    .unwrap();
    assert_eq!(stream.end().await.0, "5");
}

#[tokio::test]
async fn two_proxies_on_one_redis_hand_out_one_quota() {
    let redis = tokio::task::spawn_blocking(Redis::start).await.unwrap();
    let text = config().redis("single", &[redis.address]).text();
    let (one, _) = start_text(text.clone()).await;
    let (two, client) = start_text(text).await;
    let mut streams = [Stream::open(one.http, "edge").await, Stream::open(two.http, "edge").await];
    for stream in &mut streams {
        stream.report(&[(&[("user", "g")], 0, 1)]);
    }
    spend_all(&mut streams, "g").await;
    assert_eq!(left(&client, "g").await, 0);
}
