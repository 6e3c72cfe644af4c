//! Calls of Envoy's rate limit service to several proxies that count on one Redis: what all callers
//! get together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::decisions::{hits, start_text, user};
use crate::harness::redis::Redis;
use crate::harness::rls::{OK, OVER_LIMIT, descriptor};
use crate::harness::toml::Toml;

#[tokio::test(flavor = "current_thread")]
async fn callers_of_two_proxies_on_one_store_get_exactly_what_there_is() {
    const QUOTA: usize = 100;
    const CALLERS: usize = 256;
    let redis = tokio::task::spawn_blocking(Redis::start).await.unwrap();
    let algorithms = [
        "algorithm = \"fixed_window\", period = \"1d\"",
        "algorithm = \"sliding_window_counter\", period = \"1d\"",
        "algorithm = \"sliding_window_log\", period = \"1d\"",
        "algorithm = \"sliding_window_buckets\", period = \"1d\", buckets = 10",
        "algorithm = \"token_bucket\", period = \"30d\"",
        "algorithm = \"gcra\", period = \"30d\"",
        "algorithm = \"quota\", calendar = \"forever\"",
    ];
    let rules: String = algorithms
        .iter()
        .enumerate()
        .map(|(nth, algorithm)| {
            format!(
                "[[policies.edge.config.rules]]\ndescriptor = [\"a{nth}\"]\n\
                 limits = [{{ name = \"a{nth}\", quota = {QUOTA}, {algorithm} }}]\n"
            )
        })
        .collect();
    let text = Toml::new()
        .listener("serves = \"decisions\"")
        .redis("single", &[redis.address])
        .route("domain = \"edge\"\npolicy = \"edge\"")
        .more(&format!("[policies.edge]\nuse = \"rls\"\n{rules}"))
        .text();
    let (_one, first) = start_text(text.clone()).await;
    let (_other, second) = start_text(text).await;
    for (nth, algorithm) in algorithms.into_iter().enumerate() {
        let admitted = Arc::new(AtomicUsize::new(0));
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let client = if caller.is_multiple_of(2) { first.clone() } else { second.clone() };
                let admitted = Arc::clone(&admitted);
                tokio::spawn(async move {
                    let key = format!("a{nth}");
                    let answer = client.ask("edge", &[descriptor(&[(&key, "x")])]).await.unwrap();
                    assert!([OK, OVER_LIMIT].contains(&answer.overall_code));
                    admitted.fetch_add(usize::from(answer.overall_code == OK), Ordering::Relaxed);
                })
            })
            .collect();
        for caller in callers {
            caller.await.unwrap();
        }
        assert_eq!(admitted.load(Ordering::Relaxed), QUOTA, "{algorithm}");
    }
}

#[tokio::test]
async fn calls_with_several_descriptors_take_all_or_nothing_on_redis_too() {
    const QUOTA: usize = 50;
    const CALLERS: usize = 128;
    let redis = tokio::task::spawn_blocking(Redis::start).await.unwrap();
    let rule = |key: &str, quota: usize| {
        format!(
            "[[policies.edge.config.rules]]\ndescriptor = [\"{key}\"]\nlimits = [{{ name = \"{key}\", \
             algorithm = \"fixed_window\", quota = {quota}, period = \"1d\" }}]\n"
        )
    };
    let text = Toml::new()
        .listener("serves = \"decisions\"")
        .redis("single", &[redis.address])
        .route("domain = \"edge\"\npolicy = \"edge\"")
        .more(&format!(
            "[policies.edge]\nuse = \"rls\"\n{}{}",
            rule("all", QUOTA),
            rule("user", 2 * CALLERS)
        ))
        .text();
    let (_one, first) = start_text(text.clone()).await;
    let (_other, second) = start_text(text).await;
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let client = if caller.is_multiple_of(2) { first.clone() } else { second.clone() };
            tokio::spawn(async move {
                // In either order.
                let mut both = [descriptor(&[("all", "x")]), user("a")];
                both.rotate_left(caller / 2 % 2);
                client.ask("edge", &both).await.unwrap().overall_code
            })
        })
        .collect();
    let mut admitted = 0;
    for caller in callers {
        admitted += usize::from(caller.await.unwrap() == OK);
    }
    // Never more. Two that meet may both give back what they had taken of the last units.
    assert!((QUOTA - 10..=QUOTA).contains(&admitted), "{admitted}");
    // What was refused is charged to none of its descriptors.
    let look = [hits(user("a"), 0), hits(descriptor(&[("all", "x")]), 0)];
    let left = first.ask("edge", &look).await.unwrap().left();
    let used = [2 * CALLERS - left[0] as usize, QUOTA - left[1] as usize];
    assert_eq!(used, [admitted; 2]);
}
