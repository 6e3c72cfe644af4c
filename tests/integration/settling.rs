//! What a request holds and how it is settled: concurrency leases, turns in a leaky bucket,
//! failures that count and successes that reset, replies whose cost is told at their end.

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
async fn what_was_charged_before_a_reload_is_given_back_after_it_and_before_the_end() {
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
    let lines: Vec<_> =
        weir.output().events().into_iter().filter(|event| event["message"] == "request").collect();
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
async fn whoever_goes_away_while_waiting_asks_nothing_of_the_upstream() {
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

/// Method, account, the upstream's status, and what is left for the address and for the account.
/// Each attempt is charged until its result is known. If nothing is left, the request is refused
/// and is not sent to the upstream.
type Attempt = (&'static str, &'static str, u16, Option<(i64, i64)>);

const ATTEMPTS: [Attempt; 13] = [
    ("POST", "alice", 404, Some((5, 2))),
    ("POST", "alice", 401, Some((5, 2))),
    ("POST", "alice", 200, Some((4, 1))),
    ("POST", "alice", 401, Some((4, 2))),
    // Viewing the page is not an attempt, and resets nothing.
    ("GET", "alice", 200, None),
    ("POST", "alice", 401, Some((3, 1))),
    // The success of another account does not reset it either.
    ("POST", "mallory", 200, Some((2, 2))),
    ("POST", "alice", 401, Some((2, 0))),
    ("POST", "alice", 429, None),
    ("POST", "bob", 401, Some((1, 2))),
    ("POST", "mallory", 200, Some((0, 2))),
    ("POST", "bob", 401, Some((0, 1))),
    ("POST", "mallory", 429, None),
];

/// The units of all fixed windows. Each counter is two doubles, its start and its count.
fn counted(redis: &Redis) -> i64 {
    let script = "local units = 0 for _, key in ipairs(redis.call('KEYS', '*')) do \
                  local _, count = struct.unpack('<dd', redis.call('GET', key)) units = units + count end return units";
    redis.connect().ask(&["EVAL", script, "0"]).number()
}

#[tokio::test]
async fn only_failures_count_and_a_success_resets_its_own_account_alone() {
    let redis = Redis::start();
    let limit = |name: &str, quota: u8| {
        format!(
            "[{{ name = \"{name}\", algorithm = \"fixed_window\", quota = {quota}, period = \"1h\", refund = \"by_settle\" }}]"
        )
    };
    let limits = format!(
        "limits = {}\naccount = \"{{header.x-account}}\"\naccount_limits = {}",
        limit("address", 6),
        limit("account", 3)
    );
    let policy = format!(
        "[policies.sign-in]\nwasm = \"sign_in.wasm\"\n[policies.sign-in.config]\n{limits}\n"
    );
    let route = "name = \"sign-in\"\npath = \"/*\"\nupstream = \"app\"\npolicy = \"sign-in\"";
    let config = Toml::new().upstream("app", "http://127.0.0.1:9", "").more(&policy).route(route);
    let module = std::fs::read(guest::sign_in()).unwrap();
    for config in both(&redis, &config) {
        let upstream = Upstream::start();
        // One worker, so that what it gives back is sent to Redis before its next take.
        let config =
            config.server("workers = 1").text().replace("http://127.0.0.1:9", &upstream.url());
        let config = config.replace("access = \"off\"", "access = \"all\"");
        let weir = Weir::build(&config).file("sign_in.wasm", &module).start();
        let mut client = Client::connect(weir.http).await.unwrap();
        for (step, (method, account, status, left)) in ATTEMPTS.into_iter().enumerate() {
            if status != 429 {
                upstream.answer(status, &[], "");
            }
            // The last request is settled before its log line is written.
            eventually_async("the last one's end", async || {
                let over = weir
                    .output()
                    .events()
                    .into_iter()
                    .filter(|event| event["message"] == "request")
                    .count();
                if over == step { Ok(()) } else { Err(format!("{over} of {step}")) }
            })
            .await;
            let reply = client
                .send(method, "/", &[("x-account", account)], bytes::Bytes::new())
                .await
                .unwrap();
            assert_eq!(reply.status, status, "step {step}: {reply:?}");
            if let Some(left) = left {
                assert_eq!(
                    (reply.remaining("address"), reply.remaining("account")),
                    left,
                    "step {step}"
                );
            }
            if step == 0 && config.contains("engine = \"redis\"") {
                // Redis does not know the script that gives back and asks for its text, so the next
                // take would overtake it.
                eventually_async("both units given back", async || match counted(&redis) {
                    0 => Ok(()),
                    units => Err(format!("{units} units")),
                })
                .await;
            }
        }
    }
}

/// The configuration of `examples/policies/reply-cost` with one limit.
fn reply_cost(limit: &str) -> Toml {
    let policy = format!(
        "[policies.tokens]\nwasm = \"reply_cost.wasm\"\n[policies.tokens.config]\nlimits = [{{ name = \"tokens\", {limit} }}]\n"
    );
    let route = "name = \"v1\"\npath = \"/*\"\nupstream = \"app\"\npolicy = \"tokens\"";
    Toml::new().upstream("app", "http://127.0.0.1:9", "").more(&policy).route(route)
}

/// 1,000 tokens, replies that cost 500, told at their end, 64 callers at once: those that were
/// under way are charged whole, and nobody else passes until their debt is paid.
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
