//! Finding, describing and deleting counters, on both engines.

use super::redis_server::Server;
use super::settling::algorithms;
use super::*;
use crate::limit::{Counter, CounterName};
use crate::plan::{Debt, Quota};

fn name(limit: &str, key: &str, tag: Option<&str>) -> CounterName {
    CounterName {
        scope: "public".into(),
        limit: limit.into(),
        key: key.into(),
        tag: tag.map(str::to_owned),
    }
}

async fn found(rig: &Rig, name: &CounterName) -> Vec<Counter> {
    let mut found = rig.limiter.find(name).await.unwrap();
    found.sort_by_cached_key(|counter| counter.shape.to_string());
    found
}

#[tokio::test]
async fn a_counter_of_each_algorithm_is_found_described_and_deleted() {
    let mut server = Server::start();
    // Enough keys that a search takes several pages.
    server.command(&[
        "EVAL",
        "for i = 1, 5000 do redis.call('SET', 'other' .. i, '') end return 1",
        "0",
    ]);
    for rig in Rig::both(&server, &with_test_timeout()) {
        let mut held = Vec::new();
        for algorithm in algorithms(20) {
            // A name that is a prefix of another, and a key with pattern characters.
            for (name, key) in [("l", "a*[{\\}]?"), ("l.more", "a*[{\\}]?"), ("l", "neighbour")] {
                held.push(
                    rig.grant(&Limit { cost: 4, ..Limit::new(name, key, algorithm.clone()) }).await,
                );
            }
        }
        let searched = name("l", "a*[{\\}]?", None);
        let counters = found(&rig, &searched).await;
        let mut names: Vec<&str> = counters.iter().map(|counter| counter.shape.name()).collect();
        names.sort_unstable();
        let mut expected: Vec<String> =
            algorithms(20).iter().map(|algorithm| algorithm.name().to_owned()).collect();
        expected.sort_unstable();
        assert_eq!(names, expected, "{}", rig.name());
        for counter in &counters {
            let says = match counter.shape.name() {
                "token_bucket" => "16 tokens left at ",
                "gcra" | "leaky_bucket" => "nothing left at ",
                _ => "4 used",
            };
            assert!(counter.state(None).starts_with(says), "{} {counter:?}", rig.name());
            assert!(counter.expires.is_some(), "{counter:?}");
            let keys = server.keys();
            assert!(
                counter
                    .redis_key
                    .as_ref()
                    .map_or(rig.name() == "embedded", |key| keys.contains(key)),
                "{counter:?}"
            );
            rig.limiter.forget(counter).await.unwrap();
        }
        assert_eq!(found(&rig, &searched).await, []);
        assert_eq!(found(&rig, &name("l", "neighbour", None)).await.len(), 9, "{}", rig.name());
        assert_eq!(
            found(&rig, &name("l.more", "a*[{\\}]?", None)).await.len(),
            9,
            "{}",
            rig.name()
        );
        drop(held);
        rig.limiter.drain(TEST_TIMEOUT).await;
    }
}

#[tokio::test]
async fn a_tag_is_part_of_a_counters_name_and_for_ever_has_no_lifetime() {
    let server = Server::start();
    for rig in Rig::both(&server, &with_test_timeout()) {
        let forever = Algorithm::Quota(Quota {
            amount: 5,
            calendar: crate::plan::Calendar::Forever,
            conditional: true,
            debt: Debt::None,
        });
        drop(
            rig.grant(&Limit { tag: Some("tenant".into()), ..Limit::new("q", "k", forever) }).await,
        );
        assert_eq!(found(&rig, &name("q", "k", None)).await, []);
        let counters = found(&rig, &name("q", "k", Some("tenant"))).await;
        assert_eq!(
            (counters.len(), counters[0].expires, counters[0].state(None).as_str()),
            (1, None, "1 used, for ever")
        );
    }
}
