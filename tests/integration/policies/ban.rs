//! `ban` with the examples from its README, in memory and on Redis.

use std::time::{Duration, Instant};

use crate::harness::client::{Client, get};
use crate::harness::eventually_async;
use crate::harness::redis::Redis;
use crate::harness::toml::Toml;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;

/// An example with its policy on every path.
fn config(example: usize, url: &str, changes: &[(&str, &str)]) -> Toml {
    let readme = include_str!("../../../policies/ban/README.md");
    let block = readme.split("```toml\n").nth(example + 1).unwrap().split("```").next().unwrap();
    let mut block = block.to_owned();
    for (from, to) in changes {
        assert!(block.contains(from), "{from}");
        block = block.replace(from, to);
    }
    let name = block.split("[policies.").nth(1).unwrap().split(']').next().unwrap().to_owned();
    let route = format!("path = \"/*\"\nupstream = \"app\"\npolicy = \"{name}\"");
    Toml::new().upstream("app", url, "").more(&block).route(&route).server("workers = 1")
}

fn start(config: &Toml) -> Weir {
    Weir::start(&config.text().replace("access = \"off\"", "access = \"all\""))
}

/// Three strikes, a limit of one request in a long time, a ban of two seconds.
const SHORT: [(&str, &str); 4] = [
    ("quota = 20", "quota = 3"),
    ("ban = \"15m\"", "ban = \"2s\""),
    ("quota = 10\nperiod = \"1s\"", "quota = 1\nperiod = \"300ms\""),
    ("burst = 30\n", ""),
];

/// The status and the seconds of `Retry-After`, and whether this request started a ban. Waits until
/// it is settled: its log line comes after.
async fn ask(weir: &Weir, client: &mut Client, target: &str) -> (u16, Option<u64>, bool) {
    let lines = || {
        let events = weir.output().events().into_iter();
        events.filter(|event| event["message"] == "request").collect::<Vec<_>>()
    };
    let before = lines().len();
    let reply = client.get(target, &[]).await.unwrap();
    let line = eventually_async("its line", async || {
        lines().get(before).cloned().ok_or_else(|| weir.output().tail(3))
    })
    .await;
    let begins = line.to_string().contains("\"begins\"");
    (reply.status, reply.header("retry-after").parse().ok(), begins)
}

#[tokio::test]
async fn a_client_that_is_refused_too_often_is_banned_until_the_ban_ends_and_not_longer() {
    let redis = Redis::start();
    let upstream = Upstream::start();
    let memory = config(0, &upstream.url(), &SHORT);
    for config in [memory.clone(), memory.redis("single", &[redis.address])] {
        let weir = start(&config);
        let mut client = Client::connect(weir.http).await.unwrap();
        // One passes at a time, so the rest are strikes, up to the ban.
        let banned =
            eventually_async("a ban begins", async || match ask(&weir, &mut client, "/").await {
                (429, _, true) => Ok(Instant::now()),
                other => Err(format!("{other:?}")),
            })
            .await;
        let strikes =
            weir.metric("weir_limit_refusals_total{policy=\"public\",limit=\"per-second\"}");
        assert!(strikes >= 3, "{strikes}");
        // On Redis the charge may still be under way.
        let (_, wait, _) = eventually_async("the ban refuses", async || {
            match ask(&weir, &mut client, "/").await {
                (429, Some(wait), false) if wait > 1 => Ok((429, wait, false)),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        assert_eq!(wait, 2);
        // Requests during the ban don't extend it, and it does not end before its time.
        let passed =
            eventually_async("the ban ends", async || match ask(&weir, &mut client, "/").await {
                (200, _, false) => Ok(Instant::now()),
                (429, Some(_), false) => Err("refused".to_owned()),
                other => panic!("{other:?}"),
            })
            .await;
        let took = passed - banned;
        let (least, most) = (Duration::from_millis(1_900), Duration::from_millis(3_000));
        assert!(least < took && took < most, "{took:?}");
        // Strikes start afresh: the next refusal is not a ban.
        let again = ask(&weir, &mut client, "/").await;
        assert!(!again.2, "{again:?}");
    }
}

#[tokio::test]
async fn a_ban_may_be_extended_by_each_request() {
    let upstream = Upstream::start();
    let mut changes = SHORT.to_vec();
    changes[1] = ("ban = \"15m\"", "ban = \"2s\"\nextend = true");
    let weir = start(&config(0, &upstream.url(), &changes));
    let mut client = Client::connect(weir.http).await.unwrap();
    eventually_async("a ban begins", async || match ask(&weir, &mut client, "/").await {
        (429, _, true) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(4) {
        assert_eq!(ask(&weir, &mut client, "/").await.0, 429, "{:?}", begun.elapsed());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let (_, wait, _) = ask(&weir, &mut client, "/").await;
    tokio::time::sleep(Duration::from_secs(wait.unwrap())).await;
    assert_eq!(ask(&weir, &mut client, "/").await.0, 200, "after a silence it ends");
}

#[tokio::test]
async fn statuses_of_the_upstream_are_strikes_and_other_clients_are_not_banned() {
    let upstream = Upstream::start();
    let changes =
        [("quota = 30", "quota = 3"), ("bypass = [\"10.0.0.0/8\"]", "key = \"{header.x-key}\"")];
    let weir = start(&config(1, &upstream.url(), &changes));
    let ask = async |key: &str| get(weir.http, "/", &[("x-key", key)]).await;
    let ended = async |count: usize| {
        eventually_async("the ends", async || {
            let events = weir.output().events();
            match events.iter().filter(|event| event["message"] == "request").count() {
                ended if ended == count => Ok(()),
                ended => Err(format!("{ended} of {count}")),
            }
        })
        .await;
    };
    let mut count = 0;
    for status in [404, 200, 401, 200, 403] {
        upstream.answer(status, &[], "");
        assert_eq!(ask("scanner").await.status, status);
        count += 1;
        ended(count).await;
    }
    upstream.answer(200, &[], "");
    let banned = ask("scanner").await;
    let wait: u64 = banned.header("retry-after").parse().unwrap();
    assert!(banned.status == 429 && (3590..=3600).contains(&wait), "{banned:?}");
    assert_eq!(banned.json()["violated-policies"], serde_json::json!(["ban"]));
    let other = ask("other").await;
    // A limit that is only looked at is not reported.
    assert_eq!((other.status, other.header("ratelimit").as_str()), (200, ""));
    assert_eq!(upstream.count(), 6);
}

#[tokio::test]
async fn a_client_that_walks_into_a_trap_is_banned_from_everything() {
    let upstream = Upstream::start();
    let weir = start(&config(2, &upstream.url(), &[]));
    let mut client = Client::connect(weir.http).await.unwrap();
    assert_eq!(ask(&weir, &mut client, "/").await, (200, None, false));
    assert_eq!(ask(&weir, &mut client, "/.git/config").await, (429, None, true));
    let (status, wait, begins) = ask(&weir, &mut client, "/").await;
    assert!(status == 429 && wait.unwrap() > 86_000 && !begins, "{wait:?}");
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn refusals_at_the_same_time_are_a_ban_too() {
    let upstream = Upstream::start();
    let changes =
        [SHORT[0], ("quota = 10\nperiod = \"1s\"", "quota = 1\nperiod = \"1d\""), SHORT[3]];
    let redis = Redis::start();
    let memory = config(0, &upstream.url(), &changes);
    for config in [memory.clone(), memory.redis("single", &[redis.address])] {
        let weir = Weir::start(&config.text().replace("workers = 1", "workers = 2"));
        let address = weir.http;
        let all: Vec<_> = (0..50)
            .map(|_| tokio::spawn(async move { get(address, "/", &[]).await.status }))
            .collect();
        for one in all {
            assert!([200, 429].contains(&one.await.unwrap()));
        }
        eventually_async("the ban", async || {
            let reply = get(weir.http, "/", &[]).await;
            let violated = reply.json()["violated-policies"].to_string();
            if violated.contains("ban") { Ok(()) } else { Err(violated) }
        })
        .await;
    }
    assert_eq!(upstream.count(), 2);
}
