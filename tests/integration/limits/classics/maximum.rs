//! Counters with a maximum: those that refuse, and those that only count.

use weir::plan::{Algorithm, Calendar, Debt, Quota};

use crate::harness::nodes::{Node, one, together};
use crate::harness::redis::{Connection, Redis};

const MOST: u64 = 5;
const CLIENTS: usize = 16;

fn quota(amount: u64, conditional: bool) -> Algorithm {
    Algorithm::Quota(Quota { amount, calendar: Calendar::Forever, conditional, debt: Debt::None })
}

#[tokio::test]
async fn incr_then_compare_counts_what_it_refuses_and_a_conditional_quota_stops_at_its_maximum() {
    let redis = Redis::start();
    let mut naive: Vec<Connection> = (0..CLIENTS).map(|_| redis.connect()).collect();
    let counted: Vec<i64> =
        naive.iter_mut().map(|client| client.ask(&["INCR", "seats"]).number()).collect();
    assert_eq!(
        counted.iter().filter(|count| **count <= MOST as i64).count(),
        MOST as usize,
        "it admits as many as it should"
    );
    assert_eq!(
        naive[0].ask(&["GET", "seats"]).number(),
        CLIENTS as i64,
        "and the counter is beyond its maximum"
    );
    // The maximum is raised by three, but nobody gets these.
    assert!(naive[0].ask(&["INCR", "seats"]).number() > MOST as i64 + 3, "refused with three free");

    let nodes = Node::several(4, redis.address);
    let plan = one("seats", quota(MOST, true));
    assert_eq!(together(&nodes, CLIENTS, &plan).await, MOST);
    assert_eq!(nodes[0].left(&plan).await, 0);
    // The quota is not part of a counter's shape: the same counter with a higher maximum reports
    // its count.
    let raised = one("seats", quota(MOST + 3, true));
    assert_eq!(nodes[0].left(&raised).await, 3, "exactly those that were admitted are counted");
    assert_eq!(together(&nodes, CLIENTS, &raised).await, 3);
}

#[tokio::test]
async fn an_unconditional_quota_refuses_nobody_counts_all_and_shows_what_is_left() {
    let redis = Redis::start();
    let nodes = Node::several(4, redis.address);
    let plan = one("seats", quota(MOST, false));
    for taken in 1..=MOST {
        let outcome = nodes[0].ask(&plan).await;
        assert_eq!((outcome.admitted, outcome.limits[0].remaining), (true, MOST - taken));
    }
    assert_eq!(together(&nodes, CLIENTS, &plan).await, CLIENTS as u64, "all pass");
    assert_eq!(nodes[0].left(&plan).await, 0);
    let raised = one("seats", quota(100, true));
    assert_eq!(nodes[0].left(&raised).await, 100 - MOST - CLIENTS as u64, "and all are counted");
}
