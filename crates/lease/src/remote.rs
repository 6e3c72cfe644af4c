//! A holder in another process that only reports now and then: what it was handed, what it has
//! spent, and when it needs more.
//!
//! A [`Holder`](crate::Holder) spends by its own deadline. Somebody else's proxy, such as Envoy's
//! quota filter, is handed units with a time to live that begins when it hears of them, and reports
//! how many requests it has let through since its last report. Everything is decided here by the
//! clock of the process that hands out, on two conditions: an assignment and a report are under way
//! for at most [`DELIVERY_US`].
//!
//! Pure, as the rest of the crate. `tests/remote.rs` plays it against holders that spend as late as
//! they may, and a log that counts what they spent.

use std::collections::VecDeque;

/// How long an assignment may be under way to its holder, and a report from it, in microseconds. A
/// lease is handed out for as much less than it lives.
pub const DELIVERY_US: u64 = 900_000;
/// The unit in which holders count a time to live, in microseconds.
pub const TIME_TO_LIVE_UNIT_US: u64 = 1_000_000;
/// After so long without a request the holder is to forget its bucket, in microseconds.
pub const IDLE_US: u64 = 30_000_000;
/// The next attempt after one that failed comes after this time, in microseconds.
pub const RETRY_US: u64 = 1_000_000;
/// Between two attempts to get units that were refused there is at least this time, in
/// microseconds.
const REFUSED_MIN_US: u64 = 50_000;
/// When this part of a lease may have been spent, more is assigned at once.
const LOW: (u64, u64) = (3, 4);
/// Requests a second are counted in fractions of this.
const RATE_UNIT: u64 = 1_024;

/// What one holder has of one bucket.
#[derive(Clone, Debug)]
pub struct Remote {
    life_us: u64,
    /// Requests a second, in [`RATE_UNIT`]s. `None` before the second report.
    rate: Option<u64>,
    reported_us: u64,
    requested_us: u64,
    /// Whether the last report had no requests.
    is_quiet: bool,
    /// Those that may be spent still, or whose last report has not come. The oldest first.
    leases: VecDeque<RemoteLease>,
    /// Whether the last of them is what the holder goes by.
    is_spending: bool,
    next: u64,
    owed: u64,
    due_us: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RemoteLease {
    id: u64,
    units: u64,
    /// What was let through is counted to the oldest lease first, as far as it has units: what none
    /// of them has is owed.
    spent: u64,
    /// What may have been spent of it: all that was let through since.
    possible: u64,
    /// From here on it can't be spent.
    ends_us: u64,
    /// Until then its units stand for requests in the store, whichever lease these came with.
    deadline_us: u64,
}

/// What a bucket needs now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing before this instant, unless a report comes.
    Wait {
        /// In microseconds of the clock of the process that hands out.
        until_us: u64,
    },
    /// Units are to be taken from the store, and assigned.
    Assign {
        /// Units that were spent without having been assigned. They are taken as well, and not
        /// handed out.
        owed: u64,
        /// Units that the holder wants: see [`units_to_assign`].
        wanted: u64,
    },
    /// Nobody has asked for it for [`IDLE_US`]: the holder is to forget it.
    Abandon,
}

/// Units of a lease that nobody has spent, and nobody can spend any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unspent {
    /// What [`Remote::assigned`] returned.
    pub lease: u64,
    /// How many of its units. 0: all of it was spent.
    pub units: u64,
}

impl Remote {
    /// Holds nothing, and wants something at once. `life_us` is that of its leases, in
    /// microseconds.
    #[must_use]
    pub fn new(now_us: u64, life_us: u64) -> Self {
        Self {
            life_us,
            rate: None,
            reported_us: now_us,
            requested_us: now_us,
            is_quiet: false,
            leases: VecDeque::new(),
            is_spending: false,
            next: 0,
            owed: 0,
            due_us: now_us,
        }
    }

    /// The leases have another life from now on.
    pub fn set_life(&mut self, life_us: u64) {
        self.life_us = life_us;
    }

    /// Notes a report: requests that were let through, and those that were turned away. Returns the
    /// leases that are over with it, and what is left of them.
    ///
    /// A report does not say which of two leases a request was let through with. It is counted to
    /// the first one. If that was of the second one, a unit of the first stands for it, which is as
    /// good until the first one's deadline. When a report comes after that, no more of either comes
    /// back than is certainly unspent.
    ///
    /// The second instant is when the report arrived, or earlier: one that waits to be read does
    /// not know of what came since.
    pub fn report(
        &mut self,
        (now_us, arrived_us): (u64, u64),
        allowed: u64,
        denied: u64,
    ) -> Vec<Unspent> {
        let requests = allowed.saturating_add(denied);
        self.is_quiet = requests == 0;
        if requests > 0 {
            self.requested_us = now_us;
        }
        let passed_us = now_us.saturating_sub(self.reported_us);
        if passed_us > 0 {
            let scaled = u128::from(requests) * u128::from(RATE_UNIT) * 1_000_000;
            let seen = u64::try_from(scaled / u128::from(passed_us)).unwrap_or(u64::MAX);
            // Up at once, and down by halves: a holder that has too little turns requests away.
            self.rate = Some(self.rate.map_or(seen, |rate| seen.max(rate / 2 + seen / 2)));
            self.reported_us = now_us;
        }
        let mut left = allowed;
        for lease in &mut self.leases {
            let spent = left.min(lease.units - lease.spent);
            lease.spent += spent;
            lease.possible = lease.possible.saturating_add(allowed);
            left -= spent;
        }
        self.owed = self.owed.saturating_add(left);
        let (part, whole) = LOW;
        let latest = self.leases.back().filter(|_| self.is_spending);
        let is_low = latest.is_some_and(|lease| {
            let possible = u128::from(lease.possible) * u128::from(whole);
            denied > 0 || possible >= u128::from(lease.units) * u128::from(part)
        });
        if left > 0 || is_low {
            self.due_us = self.due_us.min(now_us);
        }
        let mut over = Vec::new();
        while let Some(lease) = self.leases.front().copied()
            && lease.ends_us.saturating_add(DELIVERY_US) <= arrived_us
        {
            self.leases.pop_front();
            let mut units = lease.units - lease.spent;
            if now_us > lease.deadline_us {
                units = lease.units.saturating_sub(lease.possible);
                for other in &mut self.leases {
                    other.spent = other.units.min(other.possible);
                }
            }
            over.push(Unspent { lease: lease.id, units });
        }
        over
    }

    /// What comes next.
    #[must_use]
    pub fn next(&self, now_us: u64) -> Step {
        if now_us < self.due_us {
            return Step::Wait { until_us: self.due_us };
        }
        let idle_us = now_us.saturating_sub(self.requested_us);
        if idle_us >= IDLE_US && self.owed == 0 || idle_us >= 2 * IDLE_US {
            return Step::Abandon;
        }
        Step::Assign { owed: self.owed, wanted: self.wanted() }
    }

    /// Units of what is owed were taken, or given up.
    pub fn paid(&mut self, units: u64) {
        self.owed = self.owed.saturating_sub(units);
    }

    /// Units are handed out at `now_us`, for `seconds` from when the holder hears of it, and stand
    /// for requests until `deadline_us`. Returns what the lease is called. It takes the place of
    /// the one before.
    pub fn assigned(&mut self, now_us: u64, units: u64, seconds: u64, deadline_us: u64) -> u64 {
        self.replaced(now_us);
        self.next += 1;
        let live_us = seconds.saturating_mul(TIME_TO_LIVE_UNIT_US);
        let ends_us = now_us.saturating_add(live_us).saturating_add(DELIVERY_US);
        self.leases.push_back(RemoteLease {
            id: self.next,
            units,
            spent: 0,
            possible: 0,
            ends_us,
            deadline_us,
        });
        self.is_spending = true;
        self.due_us = now_us.saturating_add(live_us / 2);
        self.next
    }

    /// What is certainly left of the lease that the holder goes by, and until when it may be spent.
    #[must_use]
    pub fn live(&self) -> Option<(u64, u64)> {
        let last = self.leases.back().filter(|_| self.is_spending)?;
        Some((last.units.saturating_sub(last.possible), last.ends_us.saturating_sub(DELIVERY_US)))
    }

    /// Whether the last report had no requests.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.is_quiet
    }

    /// The holder keeps what it has, as the store has no more than that.
    pub fn kept(&mut self, now_us: u64) {
        let ends_us = self.live().map_or(now_us, |(_, ends_us)| ends_us);
        let wait_us = (ends_us.saturating_sub(now_us) / 2).max(REFUSED_MIN_US);
        self.due_us = now_us.saturating_add(wait_us);
    }

    /// The store has no unit for it, and may have one in `retry_us`: the holder is told to turn
    /// requests away.
    pub fn refused(&mut self, now_us: u64, retry_us: u64) {
        self.replaced(now_us);
        let longest = (self.life_us / 2).max(REFUSED_MIN_US);
        self.due_us = now_us.saturating_add(retry_us.clamp(REFUSED_MIN_US, longest));
    }

    /// The holder may let everything through for so long.
    pub fn unlimited(&mut self, now_us: u64, live_us: u64) {
        self.replaced(now_us);
        self.owed = 0;
        self.due_us = now_us.saturating_add(live_us / 2);
    }

    /// Nothing could be asked, so the holder is told nothing.
    pub fn failed(&mut self, now_us: u64) {
        self.due_us = now_us.saturating_add(RETRY_US);
    }

    /// The holder goes by something else than its last lease as soon as it hears of it.
    fn replaced(&mut self, now_us: u64) {
        self.is_spending = false;
        if let Some(last) = self.leases.back_mut() {
            last.ends_us = last.ends_us.min(now_us.saturating_add(DELIVERY_US));
        }
    }

    /// Units for the time until the next assignment, with room for requests that come by chance.
    /// All that there are, as long as nobody knows; none, if nobody asks.
    fn wanted(&self) -> u64 {
        if self.is_quiet {
            return 0;
        }
        let Some(rate) = self.rate else { return u64::MAX };
        let until_next_us = u128::from(self.life_us) * 5 / 8;
        let mean = u128::from(rate) * until_next_us / u128::from(RATE_UNIT) / 1_000_000;
        let mean = u64::try_from(mean).unwrap_or(u64::MAX);
        // Of requests that come independently, that many more are seldom exceeded.
        mean.saturating_add(2 * mean.isqrt()).saturating_add(1)
    }
}

/// For how many seconds units may be handed out at `now_us` that were taken by a call sent at
/// `sent_us` and may be spent for `life_us` from then. 0: not at all.
///
/// [`DELIVERY_US`] is left out, as the holder may hear of them late.
#[must_use]
pub fn seconds_to_live(sent_us: u64, life_us: u64, now_us: u64) -> u64 {
    let ends_us = sent_us.saturating_add(life_us);
    ends_us.saturating_sub(now_us).saturating_sub(DELIVERY_US) / TIME_TO_LIVE_UNIT_US
}

/// How many units to hand to one of so many holders if the store has `left`: what it wants, at most
/// its share, and at least a sixteenth of that, so that a client that comes back after a pause is
/// not turned away while there is plenty. A holder that wants all ([`u64::MAX`]), as nobody knows
/// what it needs, gets half of its share. One that wants none gets 1, as it is abandoned with what
/// it has. The last units go one by one.
#[must_use]
pub fn units_to_assign(wanted: u64, left: u64, holders: u64) -> u64 {
    let holders = holders.max(1);
    if wanted == 0 {
        return left.min(1);
    }
    let parts = if wanted == u64::MAX { holders.saturating_mul(2) } else { holders };
    let (least, most) = (left / holders.saturating_mul(16), left / parts);
    wanted.clamp(least, most.max(least)).max(1).min(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE_US: u64 = 5_000_000;
    const S: u64 = 1_000_000;

    /// A report that is read when it arrives.
    fn report(remote: &mut Remote, now_us: u64, allowed: u64, denied: u64) -> Vec<Unspent> {
        remote.report((now_us, now_us), allowed, denied)
    }

    /// Hands out units for 4 s, which were taken just now for 5 s.
    fn hand(remote: &mut Remote, now_us: u64, units: u64) -> u64 {
        remote.assigned(now_us, units, 4, now_us + LIFE_US)
    }

    fn wanted(remote: &Remote, now_us: u64) -> (u64, u64) {
        match remote.next(now_us) {
            Step::Assign { owed, wanted } => (owed, wanted),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_new_holder_wants_what_there_is_and_owes_what_it_let_through_before() {
        let mut remote = Remote::new(0, LIFE_US);
        assert_eq!(report(&mut remote, 0, 1, 0), []);
        assert_eq!(wanted(&remote, 0), (1, u64::MAX));
        remote.paid(1);
        hand(&mut remote, 10, 40);
        assert_eq!(remote.next(10), Step::Wait { until_us: 10 + 2 * S });
        assert_eq!(wanted(&remote, 10 + 2 * S), (0, u64::MAX));
    }

    #[test]
    fn what_is_wanted_follows_the_requests() {
        let mut remote = Remote::new(0, LIFE_US);
        hand(&mut remote, 0, 1_000);
        report(&mut remote, S, 100, 0);
        // 100 a second for 3.125 s, and 2 x 17 more.
        assert_eq!(wanted(&remote, 2 * S), (0, 312 + 34 + 1));
        report(&mut remote, 2 * S, 400, 600);
        assert_eq!(wanted(&remote, 2 * S).1, 3_125 + 2 * 55 + 1);
        report(&mut remote, 3 * S, 1, 0);
        assert_eq!(wanted(&remote, 3 * S).1, 1_564 + 2 * 39 + 1);
        // Nobody asks any more.
        report(&mut remote, 4 * S, 0, 0);
        assert_eq!(wanted(&remote, 4 * S).1, 0);
    }

    #[test]
    fn a_lease_that_is_nearly_spent_is_followed_at_once() {
        let mut remote = Remote::new(0, LIFE_US);
        hand(&mut remote, 0, 40);
        report(&mut remote, 100, 29, 0);
        assert!(matches!(remote.next(100), Step::Wait { .. }));
        report(&mut remote, 200, 1, 0);
        assert!(matches!(remote.next(200), Step::Assign { owed: 0, .. }));
        // Nothing there: reports alone don't make the store be asked again.
        remote.refused(200, 10 * S);
        report(&mut remote, 300, 0, 9);
        assert_eq!(remote.next(300), Step::Wait { until_us: 200 + LIFE_US / 2 });
        remote.refused(300, 0);
        assert_eq!(remote.next(301), Step::Wait { until_us: 300 + REFUSED_MIN_US });
    }

    #[test]
    fn what_was_let_through_without_a_lease_is_owed() {
        let mut remote = Remote::new(0, LIFE_US);
        hand(&mut remote, 0, 5);
        assert_eq!(report(&mut remote, S, 8, 0), []);
        assert_eq!(wanted(&remote, S).0, 3);
        remote.paid(2);
        assert_eq!(wanted(&remote, S).0, 1);
    }

    #[test]
    fn what_is_left_of_a_lease_is_known_when_its_last_report_must_have_come() {
        let mut remote = Remote::new(0, LIFE_US);
        let first = hand(&mut remote, 0, 10);
        let second = hand(&mut remote, 2 * S, 10);
        // It was replaced after 2 s, and its last report has come after twice the delivery.
        let known_us = 2 * S + 2 * DELIVERY_US;
        assert_eq!(report(&mut remote, known_us - 1, 3, 0), []);
        let units = |lease, units| Unspent { lease, units };
        // Three units of the first one stand for what may have been of the second one.
        assert_eq!(report(&mut remote, known_us, 0, 0), [units(first, 7)]);
        assert_eq!(report(&mut remote, known_us + 4 * S - 1, 8, 0), []);
        // This report is late: perhaps those eight came after the second one's deadline.
        let third = hand(&mut remote, known_us + 4 * S - 1, 20);
        assert_eq!(report(&mut remote, 9 * S, 5, 0), [units(second, 0)]);
        assert_eq!(report(&mut remote, 19 * S, 0, 0), [units(third, 15)]);
        assert_eq!(wanted(&remote, 19 * S).0, 0);
    }

    #[test]
    fn a_bucket_that_nobody_asks_for_is_abandoned() {
        let mut remote = Remote::new(0, LIFE_US);
        report(&mut remote, 0, 1, 0);
        remote.paid(1);
        for second in (2..30).step_by(2) {
            report(&mut remote, second * S, 0, 0);
            assert!(matches!(remote.next(second * S), Step::Assign { .. }), "{second}");
            hand(&mut remote, second * S, 1);
        }
        assert_eq!(remote.next(30 * S), Step::Abandon);
    }

    #[test]
    fn a_time_to_live_ends_with_the_lease_however_late_it_is_heard_of() {
        let room_us = DELIVERY_US;
        assert_eq!(seconds_to_live(0, 4 * S + room_us, 0), 4);
        assert_eq!(seconds_to_live(0, 4 * S + room_us, 1), 3);
        // The call may take a moment.
        assert_eq!(seconds_to_live(0, 5 * S, 100_000), 4);
        assert_eq!(seconds_to_live(0, S + room_us - 1, 0), 0);
        assert_eq!(seconds_to_live(0, 5 * S, 9 * S), 0);
    }

    #[test]
    fn units_are_shared_and_the_last_ones_go_one_by_one() {
        assert_eq!(units_to_assign(u64::MAX, 1_000, 2), 250);
        assert_eq!(units_to_assign(7, 1_000, 2), 31);
        assert_eq!(units_to_assign(100, 1_000, 2), 100);
        assert_eq!(units_to_assign(100, 3, 2), 1);
        assert_eq!((units_to_assign(0, 3_000, 2), units_to_assign(0, 0, 2)), (1, 0));
        assert_eq!(units_to_assign(5, 0, 1), 0);
        assert_eq!(units_to_assign(900, 1_000, 2), 500);
        assert_eq!(units_to_assign(5, 9, 0), 5);
    }
}
