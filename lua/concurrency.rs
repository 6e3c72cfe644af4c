//! `concurrency`: requests in flight, over all proxies, each with a lease.

use std::time::Duration;

use crate::written::Written;
#[cfg(feature = "host")]
use crate::{
    Content,
    state::{Time, used},
};
use crate::{Describe, LEASE_IN_MEMORY, Moment, NUMBERS_MAX, Program, Setting, ShapeExtra, shape};

/// Maximum number of leases whose ends are listed.
#[cfg(feature = "host")]
const LEASES_LISTED_MAX: usize = 10;

/// At most `amount` at the same time, over all proxies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Concurrency {
    /// Requests in flight.
    pub amount: u64,
}

impl Describe for Concurrency {
    const NAME: &'static str = "concurrency";
    const CODE: &'static str = "cc1";
    const SETTINGS: &'static [Setting] = &[Setting::Quota];
    const NEEDED: &'static [(Setting, &'static str)] =
        &[(Setting::Quota, "how many requests may be in flight, such as `quota = 10`")];

    fn program() -> Option<&'static Program> {
        crate::program::program!("concurrency", Leases, state 0, numbers 3)
    }

    fn read(written: &Written<'_>) -> Option<Self> {
        Some(Self { amount: written.quota? })
    }

    fn numbers(&self, moment: Moment) -> [i64; NUMBERS_MAX] {
        let lease_ms = moment.lease.as_millis() as i64;
        // The slack: how far beyond the latest end of a new lease one may end and still count. In
        // memory a lease counts as long as it exists, however far the clock has stepped back. On
        // Redis, where the holder may have died, there is no slack.
        let slack_ms = if moment.lease == LEASE_IN_MEMORY { lease_ms } else { 0 };
        [self.amount as i64, lease_ms, slack_ms, 0, 0, 0, 0]
    }

    fn amount(&self) -> Option<u64> {
        Some(self.amount)
    }

    fn unit_us(&self) -> u64 {
        1000
    }

    fn unit(&self) -> Option<&'static str> {
        Some("concurrent-requests")
    }

    fn settles(&self) -> bool {
        false
    }

    fn refills(&self) -> bool {
        false
    }

    fn policy(&self) -> Option<(u64, Option<u64>)> {
        Some((self.amount, None))
    }

    fn of_shape(&self) -> Self {
        Self { amount: 0 }
    }

    fn write_shape(&self, extra: &ShapeExtra) -> String {
        let lease = if let ShapeExtra::Lease(lease) = extra { *lease } else { Duration::ZERO };
        format!("{}-{}", Self::CODE, lease.as_millis())
    }

    fn read_shape(text: &str) -> Option<(Self, ShapeExtra)> {
        let lease = Duration::from_millis(shape::period_after(text, Self::CODE)?);
        Some((Self { amount: 0 }, ShapeExtra::Lease(lease)))
    }

    #[cfg(feature = "host")]
    fn state(
        &self,
        extra: &ShapeExtra,
        content: &Content,
        at_us: u64,
        known: bool,
    ) -> Option<String> {
        let Content::Members(ends) = content else { return None };
        let time = Time::in_ms(at_us);
        let held: Vec<u64> = ends.iter().copied().filter(|ends| *ends > time.now).collect();
        let used = used(held.len() as u64, known.then_some(self.amount));
        // Leases in memory are not renewed.
        let renewed = matches!(extra, ShapeExtra::Lease(lease) if *lease < LEASE_IN_MEMORY);
        Some(match held.len() {
            0 => used,
            _ if !renewed => format!("{used}, back when their requests end"),
            _ => {
                let listed: Vec<String> =
                    held.iter().take(LEASES_LISTED_MAX).map(|ends| time.at(*ends)).collect();
                let more = if held.len() > listed.len() { ", ..." } else { "" };
                format!(
                    "{used}, back when their requests end; leases until {}{more} unless they are renewed",
                    listed.join(", ")
                )
            }
        })
    }
}
