//! `login-guard` with the examples from its README, in front of an upstream that answers sign-ins.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use crate::harness::client::{Client, Reply};
use crate::harness::eventually_async;
use crate::harness::redis::Redis;
use crate::harness::toml::Toml;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;

const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");
const JSON: (&str, &str) = ("content-type", "application/json");

/// An example with one worker, so that what is given back reaches Redis before the next take.
fn config(example: usize, url: &str) -> Toml {
    let readme = include_str!("../../../policies/login-guard/README.md");
    let block = readme.split("```toml\n").nth(example + 1).unwrap().split("```").next().unwrap();
    let name = block.split("[policies.").nth(1).unwrap().split(']').next().unwrap();
    let route = format!("path = \"/*\"\nupstream = \"app\"\npolicy = \"{name}\"");
    Toml::new().upstream("app", url, "").more(block).route(&route).server("workers = 1")
}

fn start(config: &Toml) -> Weir {
    Weir::start(&config.text().replace("access = \"off\"", "access = \"all\""))
}

/// Waits until this many requests have ended. They are settled before their log line is written.
async fn ended(weir: &Weir, count: usize) {
    eventually_async("the requests' end", async || {
        let events = weir.output().events();
        match events.iter().filter(|event| event["message"] == "request").count() {
            ended if ended == count => Ok(()),
            ended => Err(format!("{ended} of {count}")),
        }
    })
    .await;
}

async fn guess(client: &mut Client, account: &str) -> Reply {
    let form = format!("username={account}&password=x");
    client.send("POST", "/login", &[FORM], form.into()).await.unwrap()
}

/// Method, account, the upstream's status, and what is left of the address and of the pair while
/// the attempt is under way. A refused one is not sent to the upstream.
type Attempt = (&'static str, &'static str, u16, Option<(i64, i64)>);

const ATTEMPTS: [Attempt; 14] = [
    ("POST", "alice", 500, Some((5, 2))),
    ("POST", "alice", 401, Some((5, 2))),
    ("POST", "alice", 302, Some((4, 1))),
    ("POST", "alice", 401, Some((4, 2))),
    // The page itself is no attempt, and resets nothing.
    ("GET", "alice", 302, None),
    ("POST", "+Alice%20", 200, Some((3, 1))),
    // The success of another account doesn't, either.
    ("POST", "mallory", 302, Some((2, 2))),
    ("POST", "ALICE", 401, Some((2, 0))),
    ("POST", "alice", 429, None),
    ("POST", "alice", 429, None),
    ("POST", "bob", 401, Some((1, 2))),
    ("POST", "mallory", 302, Some((0, 2))),
    ("POST", "bob", 401, Some((0, 1))),
    ("POST", "mallory", 429, None),
];

/// The units of all fixed windows. Each counter is two doubles, its start and its count.
fn counted(redis: &Redis) -> i64 {
    let script = "local units = 0 for _, key in ipairs(redis.call('KEYS', '*')) do \
                  local _, count = struct.unpack('<dd', redis.call('GET', key)) units = units + count end return units";
    redis.connect().ask(&["EVAL", script, "0"]).number()
}

/// The failures that must be counted after the first `count` attempts, by address and by pair.
fn failures(count: usize) -> i64 {
    let mut pairs: BTreeMap<String, i64> = BTreeMap::new();
    let mut address = 0;
    let sent = |attempt: &&Attempt| attempt.0 == "POST" && attempt.2 != 429;
    for (_, account, status, _) in ATTEMPTS.iter().take(count).filter(sent) {
        let account = account.trim_start_matches('+').trim_end_matches("%20").to_lowercase();
        match status {
            302 => pairs.insert(account, 0).map(drop).unwrap_or_default(),
            500 => {}
            _ => {
                address += 1;
                *pairs.entry(account).or_default() += 1;
            }
        }
    }
    address + pairs.values().sum::<i64>()
}

#[tokio::test]
async fn only_failures_count_and_a_success_resets_its_own_account_alone() {
    let redis = Redis::start();
    let memory = config(0, "http://127.0.0.1:9");
    for config in [memory.clone(), memory.redis("single", &[redis.address])] {
        let upstream = Upstream::start();
        let text = config.text().replace("http://127.0.0.1:9", &upstream.url());
        let text =
            text.replace("quota = 50\n", "quota = 6\n").replace("quota = 5\n", "quota = 3\n");
        let on_redis = text.contains("engine = \"redis\"");
        let weir = Weir::start(&text.replace("access = \"off\"", "access = \"all\""));
        let mut client = Client::connect(weir.http).await.unwrap();
        for (step, (method, account, status, left)) in ATTEMPTS.into_iter().enumerate() {
            if status != 429 {
                upstream.answer(status, &[("location", "/home")], "");
            }
            let form = Bytes::from(format!("username={account}"));
            let reply = client.send(method, "/login", &[FORM], form).await.unwrap();
            assert_eq!(reply.status, status, "step {step}: {reply:?}");
            if let Some(left) = left {
                let found = (reply.remaining("address"), reply.remaining("pair"));
                assert_eq!(found, left, "step {step}");
            }
            ended(&weir, step + 1).await;
            if on_redis {
                eventually_async("it is settled", async || match counted(&redis) {
                    units if units == failures(step + 1) => Ok(()),
                    units => Err(format!("{units} of {}", failures(step + 1))),
                })
                .await;
            }
        }
    }
}

#[tokio::test]
async fn guesses_at_the_same_time_never_exceed_the_limit() {
    const GUESSES: u64 = 40;
    let upstream = Upstream::start();
    let weir =
        Weir::start(&config(0, &upstream.url()).text().replace("workers = 1", "workers = 2"));
    upstream.answer(401, &[], "");
    upstream.hold();
    let address = weir.http;
    let guesses: Vec<_> = (0..GUESSES)
        .map(|_| {
            tokio::spawn(async move {
                guess(&mut Client::connect(address).await.unwrap(), "ann").await.status
            })
        })
        .collect();
    eventually_async("the others are refused", async || {
        match guesses.iter().filter(|guess| guess.is_finished()).count() {
            35 => Ok(()),
            refused => Err(format!("{refused} refused, {} sent", upstream.count())),
        }
    })
    .await;
    upstream.release();
    let mut statuses = Vec::new();
    for guess in guesses {
        statuses.push(guess.await.unwrap());
    }
    let with = |status: u16| statuses.iter().filter(|one| **one == status).count();
    assert_eq!((with(401), with(429), upstream.count()), (5, 35, 5));
}

#[tokio::test]
async fn a_client_that_leaves_is_charged_and_an_upstream_that_fails_is_not() {
    let upstream = Upstream::start();
    let weir = start(&config(0, &upstream.url()));
    let mut client = Client::connect(weir.http).await.unwrap();
    for (count, status) in (1..).zip([500, 503, 500]) {
        upstream.answer(status, &[], "");
        let reply = guess(&mut client, "ann").await;
        assert_eq!((reply.status, reply.remaining("pair")), (status, 4), "{reply:?}");
        ended(&weir, count).await;
    }
    upstream.hold();
    for left in 0..2 {
        let mut client = Client::connect(weir.http).await.unwrap();
        let leaving = tokio::spawn(async move { guess(&mut client, "ann").await });
        eventually_async("the guess reaches the upstream", async || {
            if upstream.count() == 4 + left { Ok(()) } else { Err(upstream.count().to_string()) }
        })
        .await;
        leaving.abort();
        ended(&weir, 4 + usize::try_from(left).unwrap()).await;
    }
    upstream.release();
    upstream.answer(401, &[], "");
    // Three were given back, two are charged, and this is the third.
    let reply = guess(&mut client, "ann").await;
    assert_eq!((reply.status, reply.remaining("pair"), reply.remaining("address")), (401, 2, 47));
}

#[tokio::test]
async fn an_upstream_that_can_not_be_reached_charges_nothing() {
    let weir = start(&config(0, "http://127.0.0.1:9"));
    let mut client = Client::connect(weir.http).await.unwrap();
    for count in 1..=7 {
        let reply = guess(&mut client, "ann").await;
        assert_eq!((reply.status, reply.remaining("pair")), (502, 4), "{count}: {reply:?}");
        ended(&weir, count).await;
    }
}

#[tokio::test]
async fn an_account_is_counted_however_it_is_written_and_never_beside_another() {
    let upstream = Upstream::start();
    upstream.answer(401, &[], "");
    let weir = Weir::start(&config(0, &upstream.url()).text());
    let mut client = Client::connect(weir.http).await.unwrap();
    let mut post = async |target: &str, field, body: &'static str| {
        let body = Bytes::from_static(body.as_bytes());
        let reply = client.send("POST", target, &[field], body).await.unwrap();
        (reply.status, reply.limits().get("pair").map(|limit| limit.remaining))
    };
    for (left, body) in
        (0..5).rev().zip(["username=ann", "username=ANN", "username=+ann+", "username=%61nn%00"])
    {
        assert_eq!(post("/login", FORM, body).await, (401, Some(left)), "{body}");
    }
    assert_eq!(post("/login?username=ann", FORM, "username=Ann").await, (401, Some(0)));
    for (target, field, body) in [
        ("/login", FORM, "username=bob&username=ann"),
        ("/login?username=ann", FORM, "username=bob"),
        ("/login?username=bob&username=ann", FORM, ""),
        ("/login", FORM, "password=x"),
        ("/login", JSON, r#"{"username": "ann"}"#),
        ("/login", ("content-type", "multipart/form-data; boundary=b"), "--b--"),
    ] {
        assert_eq!(post(target, field, body).await, (400, None), "{target} {body}");
    }
    assert_eq!(upstream.count(), 5);
    assert_eq!(post("/login", FORM, "username=ann").await.0, 429);
}

#[tokio::test]
async fn an_account_in_a_document_is_counted_too() {
    let upstream = Upstream::start();
    upstream.answer(401, &[], "");
    let weir = Weir::start(&config(1, &upstream.url()).text());
    let mut client = Client::connect(weir.http).await.unwrap();
    let mut post = async |body: &'static str| {
        let body = Bytes::from_static(body.as_bytes());
        client.send("POST", "/login", &[JSON], body).await.unwrap().status
    };
    for body in [
        r#"{"email": "ann@example.org"}"#,
        r#"{"email": "Ann@Example.org "}"#,
        r#"{"email": "ANN@EXAMPLE.ORG"}"#,
        r#"{"email": "\u0061nn@example.org"}"#,
        r#"{"x": {"email": "bob@example.org"}, "email": "ann@example.org"}"#,
    ] {
        assert_eq!(post(body).await, 401, "{body}");
    }
    assert_eq!(post(r#"{"email": "ann@example.org"}"#).await, 429);
    for body in [
        r#"{"email": "ann@example.org", "email": "ANN@example.org"}"#,
        r#"{"email": "bob@example.org", "email": "ann@example.org"}"#,
        r#"{"email": "bob@example.org", "Email": "ann@example.org"}"#,
        r#"{"email": ["ann@example.org"]}"#,
        r#"{"email": {"$ne": ""}}"#,
        r#"{"mail": "ann@example.org"}"#,
        r#"["ann@example.org"]"#,
        "email=ann@example.org",
    ] {
        assert_eq!(post(body).await, 400, "{body}");
    }
    assert_eq!(upstream.count(), 5);
}

#[tokio::test]
async fn a_locked_out_account_may_try_again_when_the_window_ends() {
    let upstream = Upstream::start();
    upstream.answer(401, &[], "");
    let config = config(0, &upstream.url()).text().replace("\"15m\"", "\"2s\"");
    let weir = Weir::start(&config);
    let mut client = Client::connect(weir.http).await.unwrap();
    for _ in 0..5 {
        assert_eq!(guess(&mut client, "ann").await.status, 401);
    }
    let refused = guess(&mut client, "ann").await;
    let wait: u64 = refused.header("retry-after").parse().unwrap();
    assert!(refused.status == 429 && (1..=2).contains(&wait), "{refused:?}");
    // Other accounts are not locked.
    assert_eq!(guess(&mut client, "bob").await.status, 401);
    tokio::time::sleep(Duration::from_secs(wait)).await;
    assert_eq!(guess(&mut client, "ann").await.status, 401);
}
