//! Whether the store can count, as an operator asks before anything is served.

use super::*;
use crate::engine::Cause;
use weir_algorithms::{Every, ROWS, Written};

#[tokio::test]
async fn every_algorithm_is_tried_and_leaves_nothing() {
    let mut server = redis_server::Server::start();
    let rig = Rig::redis(server.port);
    assert!(rig.admits(&daily("warm", "k", 5)).await);
    let counters = server.command(&["DBSIZE"]);
    let written = Written {
        quota: Some(1_000),
        period_ms: Some(3_600_000),
        max_delay_ms: Some(1_000),
        calendar: Some(Every::Month),
        ..Written::default()
    };
    let all: Vec<Algorithm> = ROWS.iter().filter_map(|row| (row.read)(&written)).collect();
    assert_eq!(all.len(), ROWS.len() - 1, "all but scripts");
    for algorithm in &all {
        assert_eq!(rig.limiter.probe(algorithm).await, Ok(()), "{algorithm:?}");
    }
    assert_eq!(server.command(&["DBSIZE"]), counters);
    // Leases are a sorted set, and nothing else is.
    server.command(&["ACL", "SETUSER", "default", "-zadd"]);
    for algorithm in &all {
        let failed = rig.limiter.probe(algorithm).await.err().map(|failed| failed.error.cause);
        let expected = (algorithm.name() == "concurrency").then_some(Cause::NoPermission);
        assert_eq!(failed, expected, "{algorithm:?}");
    }
    server.command(&["ACL", "SETUSER", "default", "-eval", "-evalsha"]);
    for algorithm in &all {
        let failed = rig.limiter.probe(algorithm).await.err().map(|failed| failed.error.cause);
        assert_eq!(failed, Some(Cause::NoPermission), "{algorithm:?} is not tried");
    }
}

#[test]
fn the_allowance_of_a_proxy_that_counts_alone_is_its_share() {
    let local_share = crate::limit::Share::parse("1/4").unwrap();
    let settings = Settings { local_share, ..Settings::default() };
    let rig = Rig::with(&in_memory(), settings);
    assert_eq!(rig.limiter.local_allowance(&daily("a", "k", 100)), Some(25));
    let held = Limit::new("c", "k", Algorithm::from(crate::plan::Concurrency { amount: 9 }));
    assert_eq!(rig.limiter.local_allowance(&held), None, "no proxy can count it alone");
}
