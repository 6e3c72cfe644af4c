//! Quotas: the store's time decides, whatever the proxy's clock says. `forever` never ends.

use super::super::Ending;
use super::redis_server::Server;
use super::*;
use crate::plan::{Calendar, TimeZone};
use crate::plan::{Debt, Quota};

const HOUR_US: i64 = 3_600_000_000;

fn quota(name: &str, amount: u64, calendar: Calendar) -> Limit {
    Limit::new(
        name,
        "k",
        Algorithm::Quota(Quota { amount, calendar, conditional: true, debt: Debt::None }),
    )
}

fn calendars() -> [Calendar; 4] {
    let utc = TimeZone::utc;
    [
        Calendar::Hour(utc()),
        Calendar::Day(utc()),
        Calendar::Week(utc()),
        Calendar::Month { time_zone: utc(), anchor_day: 1 },
    ]
}

/// How far a proxy's clock may be off.
const OFF_US: [i64; 7] = [
    -800 * 24 * HOUR_US,
    -31 * 24 * HOUR_US,
    -HOUR_US,
    0,
    HOUR_US,
    31 * 24 * HOUR_US,
    800 * 24 * HOUR_US,
];

#[tokio::test]
async fn a_proxy_whose_clock_is_off_decides_by_the_stores_time() {
    let server = Server::start();
    for off_us in OFF_US {
        let limiter_us = [START_US + off_us, Clock::system().wall_us() + off_us];
        for rig in Rig::both_at(&server, limiter_us) {
            for calendar in calendars() {
                let limit = Limit { key: format!("{off_us}"), ..quota("q", 3, calendar) };
                let seen = shadow(Limit { name: "seen".into(), ..limit.clone() });
                let refunds = refunded(limit, Refund::Unsent);
                for (back, left) in [(true, 2), (false, 2), (false, 1), (false, 0)] {
                    let (outcome, grant) =
                        granted(rig.take(&[refunds.clone(), seen.clone()]).await);
                    assert_eq!(remaining(&outcome)[0], left, "{} {off_us} {refunds:?}", rig.name());
                    grant.settle(if back { Ending::Unsent } else { Ending::Completed }, &[]);
                    rig.limiter.drain(TEST_TIMEOUT).await;
                }
                refused(rig.take(&[refunds, seen]).await);
            }
            assert_eq!(rig.count(names::STORE_ERRORS, &["script"]), 0);
        }
    }
}

#[tokio::test]
async fn later_charges_use_the_stores_time_too() {
    let server = Server::start();
    for off_us in OFF_US {
        for rig in Rig::both_at(&server, [START_US + off_us; 2]) {
            let limit = Limit {
                key: format!("{off_us}"),
                ..quota("l", 9, Calendar::Hour(TimeZone::utc()))
            };
            let more = Adjustment { limit: "l".into(), change: Change::Units(3) };
            rig.grant(&limit).await.settle(Ending::Completed, &[more]);
            rig.limiter.drain(TEST_TIMEOUT).await;
            assert_eq!(rig.remaining(&limit).await, 5, "{} {off_us}", rig.name());
            assert_eq!(rig.count(names::SETTLES_FAILED, &["charge_refused"]), 0);
        }
    }
}

#[tokio::test]
async fn a_period_begins_anew_and_a_give_back_never_goes_into_another_one() {
    let rig = Rig::embedded();
    let limit = refunded(quota("q", 2, Calendar::Hour(TimeZone::utc())), Refund::Unsent);
    let late = rig.grant(&limit).await;
    assert_eq!(rig.remaining(&limit).await, 1);
    rig.clock.step(HOUR_US);
    drop(rig.grant(&limit).await);
    late.settle(Ending::Unsent, &[]);
    assert_eq!(rig.remaining(&limit).await, 1);
}

#[tokio::test]
async fn unconditional_counts_and_shows_and_never_refuses() {
    let server = Server::start();
    for rig in Rig::both(&server, &with_test_timeout()) {
        let calendar = Calendar::Day(TimeZone::utc());
        let limit = Limit {
            cost: 2,
            ..Limit::new(
                "q",
                "k",
                Algorithm::Quota(Quota {
                    amount: 5,
                    calendar,
                    conditional: false,
                    debt: Debt::None,
                }),
            )
        };
        for left in [3, 1, 0, 0] {
            assert_eq!(
                remaining(&granted(rig.take(std::slice::from_ref(&limit)).await).0),
                [left],
                "{}",
                rig.name()
            );
        }
        let none = Algorithm::Quota(Quota {
            amount: 0,
            calendar: Calendar::Forever,
            conditional: false,
            debt: Debt::None,
        });
        assert!(rig.admits(&Limit::new("none", "k", none)).await);
    }
}

#[tokio::test]
async fn for_ever_is_for_ever_and_without_a_lifetime() {
    let mut server = Server::start();
    for rig in Rig::both(&server, &with_test_timeout()) {
        let limit = refunded(quota("q", 2, Calendar::Forever), Refund::Unsent);
        let grant = rig.grant(&limit).await;
        assert!(rig.admits(&limit).await);
        for _ in 0..3 {
            rig.clock.step(400 * 24 * HOUR_US);
            let outcome = refused(rig.take(std::slice::from_ref(&limit)).await);
            assert_eq!(outcome.limits[0].retry_after_us, None, "waiting cannot help");
        }
        grant.settle(Ending::Unsent, &[]);
        rig.limiter.drain(TEST_TIMEOUT).await;
        assert_eq!(rig.remaining(&limit).await, 1, "{}", rig.name());
    }
    let key = server.keys().pop().unwrap();
    assert_eq!(server.command(&["PTTL", &key]), "-1");
}
