//! Counters found again, shown in words and forgotten, on both engines.

use super::redis_server::Server;
use super::settling::algorithms;
use super::*;
use crate::limit::{Counter, Wanted};
use crate::plan::Quota;

fn wanted(limit: &str, key: &str, tag: Option<&str>) -> Wanted {
    Wanted {
        scope: "public".into(),
        limit: limit.into(),
        key: key.into(),
        tag: tag.map(str::to_owned),
    }
}

async fn found(rig: &Rig, wanted: &Wanted) -> Vec<Counter> {
    let mut found = rig.limiter.find(wanted).await.unwrap();
    found.sort_by_cached_key(|counter| counter.shape.to_string());
    found
}

#[tokio::test]
async fn a_counter_of_each_algorithm_is_found_told_and_forgotten() {
    let mut server = Server::start();
    // A search takes several pages.
    server.command(&[
        "EVAL",
        "for i = 1, 5000 do redis.call('SET', 'other' .. i, '') end return 1",
        "0",
    ]);
    for rig in Rig::both(&server, &patient()) {
        let mut held = Vec::new();
        for algorithm in algorithms(20) {
            // A name that begins as another's does, and a key with what patterns are made of.
            for (name, key) in [("l", "a*[{\\}]?"), ("l.more", "a*[{\\}]?"), ("l", "neighbour")] {
                held.push(
                    rig.grant(&Limit { cost: 4, ..Limit::new(name, key, algorithm.clone()) }).await,
                );
            }
        }
        let asked = wanted("l", "a*[{\\}]?", None);
        let counters = found(&rig, &asked).await;
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
        assert_eq!(found(&rig, &asked).await, []);
        assert_eq!(found(&rig, &wanted("l", "neighbour", None)).await.len(), 9, "{}", rig.name());
        assert_eq!(
            found(&rig, &wanted("l.more", "a*[{\\}]?", None)).await.len(),
            9,
            "{}",
            rig.name()
        );
        drop(held);
        rig.limiter.drain(PATIENCE).await;
    }
}

#[tokio::test]
async fn a_tag_is_part_of_a_counters_name_and_for_ever_has_no_lifetime() {
    let server = Server::start();
    for rig in Rig::both(&server, &patient()) {
        let forever = Algorithm::Quota(Quota {
            amount: 5,
            calendar: crate::plan::Calendar::Forever,
            conditional: true,
        });
        drop(
            rig.grant(&Limit { tag: Some("tenant".into()), ..Limit::new("q", "k", forever) }).await,
        );
        assert_eq!(found(&rig, &wanted("q", "k", None)).await, []);
        let counters = found(&rig, &wanted("q", "k", Some("tenant"))).await;
        assert_eq!(
            (counters.len(), counters[0].expires, counters[0].state(None).as_str()),
            (1, None, "1 used, for ever")
        );
    }
}
