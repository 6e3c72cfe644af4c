//! What a request holds and how it is settled: concurrency leases, turns in a leaky bucket, replies
//! whose cost is reported at their end.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::client::{Client, get};
use crate::harness::redis::Redis;
use crate::harness::toml::{Toml, simple};
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;
use crate::harness::{eventually_async, guest};

const ONE_PLACE: &str = "name = \"in-flight\", algorithm = \"concurrency\", quota = 1";

/// The configuration `config` with each engine.
fn both(redis: &Redis, config: &Toml) -> [Toml; 2] {
    [config.clone(), config.clone().redis("single", &[redis.address])]
}

async fn at_upstream(upstream: &Upstream, count: u64) {
    eventually_async("the requests wait at the upstream", async || match upstream.count() {
        seen if seen == count => Ok(()),
        seen => Err(format!("{seen} of {count}")),
    })
    .await;
}

#[tokio::test]
async fn a_client_that_goes_away_gives_its_place_back_at_once() {
    let redis = Redis::start();
    for config in both(&redis, &simple("http://127.0.0.1:9", &[ONE_PLACE])) {
        let upstream = Upstream::start();
        let weir = Weir::start(&config.text().replace("http://127.0.0.1:9", &upstream.url()));
        upstream.hold();
        let mut client = Client::connect(weir.http).await.unwrap();
        let gone =
            tokio::spawn(async move { client.get("/", &[]).await.map(|reply| reply.status) });
        at_upstream(&upstream, 1).await;
        let refused = get(weir.http, "/", &[]).await;
        assert_eq!(
            (refused.status, refused.header("retry-after").as_str()),
            (429, ""),
            "no time is known: {refused:?}"
        );
        gone.abort();
        // The upstream still has not answered the first request.
        let next = eventually_async("a free place", async || {
            let address = weir.http;
            let next = tokio::spawn(async move { get(address, "/", &[]).await.status });
            while upstream.count() == 1 && !next.is_finished() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            if upstream.count() == 2 { Ok(next) } else { Err(format!("{:?}", next.await)) }
        })
        .await;
        upstream.release();
        assert_eq!(next.await.unwrap(), 200);
    }
}

#[tokio::test]
async fn after_a_drain_no_lease_is_left() {
    // Requests in flight finish, or are cut off at the end of the grace period.
    for (grace, code) in [("20s", 0), ("200ms", 1)] {
        let (upstream, redis) = (Upstream::start(), Redis::start());
        let config = simple(
            &upstream.url(),
            &["name = \"in-flight\", algorithm = \"concurrency\", quota = 9"],
        );
        let config = config
            .server(&format!("shutdown_grace = \"{grace}\""))
            .redis("single", &[redis.address]);
        let mut weir = Weir::start(&config.text());
        upstream.hold();
        let mut held = Vec::new();
        for _ in 0..3 {
            let mut client = Client::connect(weir.http).await.unwrap();
            held.push(tokio::spawn(async move {
                client.get("/", &[]).await.map(|reply| reply.status).ok()
            }));
        }
        at_upstream(&upstream, 3).await;
        let mut connection = redis.connect();
        let key = connection.ask(&["KEYS", "*"]).list()[0].text();
        assert_eq!(connection.ask(&["ZCARD", &key]).number(), 3);
        weir.signal(Signal::TERM);
        if code == 0 {
            upstream.release();
        }
        assert_eq!(weir.exit().code(), Some(code));
        for reply in held {
            assert_eq!(reply.await.unwrap(), (code == 0).then_some(200));
        }
        assert_eq!(connection.ask(&["KEYS", "*"]).list(), [], "{grace}");
    }
}

#[tokio::test]
async fn charges_from_before_a_reload_are_given_back_after_it_and_before_the_end() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let config =
        simple(&upstream.url(), &["name = \"in-flight\", algorithm = \"concurrency\", quota = 9"]);
    let before = config.server("shutdown_grace = \"20s\"").redis("single", &[redis.address]).text();
    let mut weir = Weir::start(&before);
    upstream.hold();
    let mut client = Client::connect(weir.http).await.unwrap();
    let held =
        tokio::spawn(async move { client.get("/", &[]).await.map(|reply| reply.status).ok() });
    at_upstream(&upstream, 1).await;
    // Another deadline means another limiter.
    weir.reload(&before.replace("deadline = \"10s\"", "deadline = \"9s\""), "applied");
    let mut connection = redis.connect();
    assert_eq!(connection.ask(&["DBSIZE"]).number(), 1);
    // The lease is given back only when everything else has ended. A client that leaves Redis
    // meanwhile leaves nothing behind.
    connection.ask(&["CLIENT", "PAUSE", "500"]);
    weir.signal(Signal::TERM);
    upstream.release();
    assert_eq!(held.await.unwrap(), Some(200));
    assert_eq!(weir.exit().code(), Some(0));
    assert_eq!(connection.ask(&["DBSIZE"]).number(), 0);
}

/// One at once, then one every half second.
const TURNS: &str = "name = \"turns\", algorithm = \"leaky_bucket\", quota = 2, period = \"1s\", burst = 1, max_delay = \"20s\"";

/// When the bucket's last turn ends, in microseconds since 1970.
fn turns_end(redis: &Redis) -> i64 {
    let script = "return string.format('%.0f', struct.unpack('<d', redis.call('GET', redis.call('KEYS', '*')[1])))";
    redis.connect().ask(&["EVAL", script, "0"]).text().parse().unwrap()
}

async fn until_turns(redis: &Redis, before_us: i64, turns: i64, turn_us: i64) {
    eventually_async("turns taken", async || match turns_end(redis) - before_us {
        taken if taken == turns * turn_us => Ok(()),
        taken => Err(format!("{taken} us")),
    })
    .await;
}

#[tokio::test]
async fn a_request_that_waits_for_its_turn_says_so_and_survives_a_drain() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let config = simple(&upstream.url(), &[TURNS]).redis("single", &[redis.address]);
    let mut weir = Weir::start(&config.text().replace("access = \"off\"", "access = \"all\""));
    assert_eq!(get(weir.http, "/", &[]).await.status, 200);
    let (address, first, began) = (weir.http, turns_end(&redis), Instant::now());
    let others: Vec<_> =
        (0..2).map(|_| tokio::spawn(async move { get(address, "/", &[]).await.status })).collect();
    until_turns(&redis, first, 2, 500_000).await;
    weir.signal(Signal::TERM);
    for status in others {
        assert_eq!(status.await.unwrap(), 200, "a drain waits for those that wait");
    }
    assert_eq!(weir.exit().code(), Some(0));
    assert!(began.elapsed() >= Duration::from_millis(500), "{:?}", began.elapsed());
    let lines = weir.output().await_events("request", 3);
    let number = |line: &serde_json::Value, name: &str| line[name].as_f64().unwrap_or(0.0);
    let mut delayed: Vec<f64> = lines.iter().map(|line| number(line, "delayed_ms")).collect();
    delayed.sort_by(f64::total_cmp);
    assert!(delayed.len() == 3 && delayed[0] == 0.0 && delayed[2] > 500.0, "{delayed:?}");
    assert!(
        lines.iter().all(|line| number(line, "duration_ms") >= number(line, "delayed_ms")),
        "{lines:?}"
    );
}

#[tokio::test]
async fn a_client_that_leaves_while_waiting_costs_the_upstream_nothing() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let config = simple(&upstream.url(), &[&TURNS.replace("\"1s\"", "\"20s\"")])
        .redis("single", &[redis.address]);
    let weir = Weir::start(&config.text().replace("access = \"off\"", "access = \"all\""));
    assert_eq!(get(weir.http, "/", &[]).await.status, 200);
    let first = turns_end(&redis);
    let mut client = Client::connect(weir.http).await.unwrap();
    let gone =
        tokio::spawn(async move { client.get("/gone", &[]).await.map(|reply| reply.status) });
    until_turns(&redis, first, 1, 10_000_000).await;
    gone.abort();
    let line = eventually_async("its line", async || {
        let mut events = weir.output().events().into_iter();
        events
            .find(|event| event["message"] == "request" && event["path"] == "/gone")
            .ok_or_else(|| weir.output().tail(5))
    })
    .await;
    assert_eq!((&line["status"], &line["failure"]), (&499.into(), &"client-gone".into()), "{line}");
    assert_eq!(upstream.count(), 1, "only the first was sent");
    assert_eq!(turns_end(&redis) - first, 10_000_000, "its turn stays taken");
}

/// The configuration of `examples/policies/reply-cost` with one limit.
fn reply_cost(limit: &str) -> Toml {
    let policy = format!(
        "[policies.tokens]\nwasm = \"reply_cost.wasm\"\n[policies.tokens.config]\nlimits = [{{ name = \"tokens\", {limit} }}]\n"
    );
    let route = "name = \"v1\"\npath = \"/*\"\nupstream = \"app\"\npolicy = \"tokens\"";
    Toml::new().upstream("app", "http://127.0.0.1:9", "").more(&policy).route(route)
}

/// 1,000 tokens, replies that cost 500, as they report at their end, 64 callers at once: those that
/// were under way are charged whole, and nobody else passes until their debt is paid.
#[tokio::test]
async fn replies_that_cost_more_than_is_left_are_owed() {
    const CALLERS: u64 = 64;
    let redis = Redis::start();
    let module = std::fs::read(guest::reply_cost()).unwrap();
    for limit in [
        "algorithm = \"fixed_window\", quota = 1000, period = \"1h\", debt = 32000",
        // Pays 31,000 back in 1.55 s.
        "algorithm = \"gcra\", quota = 20000, period = \"1s\", burst = 1000, debt = 32000",
    ] {
        for config in both(&redis, &reply_cost(limit)) {
            let upstream = Upstream::start();
            upstream.answer(200, &[("x-cost", "500")], "");
            upstream.hold();
            let config = config.text().replace("http://127.0.0.1:9", &upstream.url());
            let weir = Weir::build(&config).file("reply_cost.wasm", &module).start();
            let address = weir.http;
            let callers: Vec<_> = (0..CALLERS)
                .map(|_| tokio::spawn(async move { get(address, "/", &[]).await.status }))
                .collect();
            at_upstream(&upstream, CALLERS).await;
            let released = Instant::now();
            upstream.release();
            for caller in callers {
                assert_eq!(caller.await.unwrap(), 200, "{limit}");
            }
            // On Redis the charges may still be under way.
            let refused = eventually_async("the replies are charged", async || {
                let reply = get(weir.http, "/", &[]).await;
                if reply.status == 429 { Ok(reply) } else { Err(format!("{reply:?}")) }
            })
            .await;
            assert_eq!(refused.remaining("tokens"), 0, "{limit}: {refused:?}");
            let wait: u64 = refused.header("retry-after").parse().unwrap();
            assert!(wait > 0, "{limit}: {refused:?}");
            if limit.contains("gcra") {
                eventually_async("the debt is paid", async || {
                    let reply = get(weir.http, "/", &[]).await;
                    if reply.status == 200 { Ok(()) } else { Err(format!("{reply:?}")) }
                })
                .await;
                assert!(released.elapsed() > Duration::from_millis(1_500), "paid too soon");
            }
        }
    }
}

/// A policy that counts refusals in a limit of its own: three, after which that limit refuses too.
const STRIKES: &str = "[policies.guest]\nwasm = \"guest.wasm\"\nmetrics = { labels = [\"kind\", \"ended\"], amounts = [\"strikes\"] }";

#[tokio::test]
async fn a_refusal_may_be_charged_to_another_limit() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let config = Toml::new()
        .upstream("api", &upstream.url(), "")
        .more(STRIKES)
        .route("name = \"api\"\npath = \"/*\"\nupstream = \"api\"\npolicy = \"guest\"");
    let module = std::fs::read(guest::misbehaving()).unwrap();
    for config in both(&redis, &config) {
        let weir = Weir::build(&config.text()).file("guest.wasm", &module).start();
        assert_eq!(get(weir.http, "/?strikes", &[]).await.status, 200);
        let refused_by_strikes = || async {
            let refused = get(weir.http, "/?strikes", &[]).await;
            assert_eq!(refused.status, 429, "{refused:?}");
            refused.text().contains("\"strikes\"")
        };
        // On Redis a charge is queued, and a refusal remembered for a while.
        let mut calls = 1;
        while !refused_by_strikes().await {
            calls += 1;
            assert!(calls < 10_000, "refusals are not counted");
        }
        if !config.text().contains("redis") {
            assert_eq!(calls, 4, "three refusals were counted");
        }
        let series = |labels: &str| {
            weir.metric(&format!("weir_policy_requests_total{{policy=\"guest\",{labels}}}"))
        };
        eventually_async("all calls are counted", async || {
            let counted = series("label=\"kind\",value=\"counted\"");
            if counted == calls + 1 { Ok(()) } else { Err(format!("{counted} of {calls} + 1")) }
        })
        .await;
        assert_eq!(series("label=\"ended\",value=\"refused\""), calls);
        assert_eq!(series("label=\"ended\",value=\"otherwise\""), 1);
        assert_eq!(
            weir.metric("weir_policy_amounts_total{policy=\"guest\",amount=\"strikes\"}"),
            2 * calls
        );
        assert!(!weir.admin_page("/metrics").text().contains("hidden"));
        let own = get(weir.http, "/?own-body", &[]).await;
        assert_eq!((own.status, own.header("content-type").as_str()), (403, "application/json"));
        assert_eq!(own.text(), "{\"errors\":[{\"message\":\"no\"}]}");
    }
}

/// What a limit does not allow is not done, and somebody should know.
#[tokio::test]
async fn an_adjustment_that_is_not_allowed_is_logged_with_what_to_set() {
    let upstream = Upstream::start();
    let config = Toml::new()
        .upstream("api", &upstream.url(), "")
        .more("[policies.guest]\nwasm = \"guest.wasm\"")
        .route("name = \"api\"\npath = \"/*\"\nupstream = \"api\"\npolicy = \"guest\"");
    let module = std::fs::read(guest::misbehaving()).unwrap();
    let weir = Weir::build(&config.text()).file("guest.wasm", &module).start();
    for (query, limit, why) in [
        ("settles-reset", "a", "a reset needs `refund = \"by_settle\"` on the limit"),
        ("settles-give-back", "a", "giving back needs `refund = \"by_settle\"` on the limit"),
        ("settles-owe", "a", "a charge into debt needs a `debt` on the limit"),
        ("settles-elsewhere", "nowhere", "the plan has no such limit"),
    ] {
        // At most one line a second: until this one is due.
        let event = eventually_async(query, async || {
            get(weir.http, &format!("/?{query}"), &[]).await;
            let events = weir.output().events();
            let found = events.into_iter().find(|event| event["why"] == why);
            found.ok_or_else(|| weir.output().tail(3))
        })
        .await;
        assert_eq!(
            (&event["message"], &event["level"], &event["policy"], &event["limit"]),
            (&"adjustment ignored".into(), &"WARN".into(), &"guest".into(), &limit.into()),
            "{event}"
        );
    }
    let errors = weir.metric("weir_policy_errors_total{policy=\"guest\",cause=\"answer\"}");
    assert!(errors >= 4, "{errors}");
}
