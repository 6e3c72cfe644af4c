//! The lease of one key in one process: a state machine that is told what happened and says what to
//! do.
//!
//! Decides nothing about how many units to ask for (`demand.rs`), and sends nothing. A caller with
//! several threads wraps it: one holder for each worker, or one behind a lock that is taken when
//! the units at hand are spent.

/// The shortest time from one call that found too little to the next one, in microseconds. Requests
/// that come meanwhile wait, and the next call asks for all of them: so a limit that is used up
/// costs the store a bounded number of calls, and refusals stay the store's own.
pub const PACE_US: u64 = 1_000;

/// How long requests ask alone at most after a call that failed or was answered too late, in
/// microseconds: long enough to leave a slow store alone, and short enough that one lost reply does
/// not send the requests of a long life to it one by one.
pub const ALONE_US: u64 = 50_000;

/// The lease of one key in one process.
///
/// Two rules make it safe. The deadline counts from before the call was sent, so that it comes no
/// later than one life after the store took the units. And at most one call for a lease is in
/// flight, so that a process never holds more than it asked for once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    life_us: u64,
    state: State,
    /// The calls made so far. It tells them apart where the clock does not.
    calls: u32,
    /// The next call is sent at this instant at the earliest.
    next_us: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    /// Nothing is held: the next request may ask for a lease.
    Nothing,
    /// One call is in flight, and requests wait for it.
    Asking(Call),
    /// Units are held.
    Holding(Lease),
    /// The last call failed, or was answered too late: requests ask alone until this instant.
    Alone { until_us: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Lease {
    call: Call,
    units: u64,
    /// On the holder's clock. Nothing is spent at this instant or later.
    deadline_us: u64,
    taken_at: u64,
}

/// What the requests of a process want of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Want {
    /// The units of the request that comes first. Cost 0 is decided as 1 and spends nothing.
    pub cost: u64,
    /// The units of the requests that wait behind it.
    pub waiting: u64,
    /// The units that are worth a call: [`crate::units_to_ask`].
    pub units: u64,
}

/// A call for a lease. Its result is reported once, with [`Holder::reply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Call {
    number: u32,
    /// The instant before it was sent, in microseconds of the holder's clock.
    pub sent_us: u64,
    /// The units of the request that comes first: a store that has fewer refuses.
    pub least: u64,
    /// The units of all requests that wait, which the store grants as far as there are any.
    pub needed: u64,
    /// The most units. Those beyond `needed` are for requests that will come: the store grants no
    /// more than a fair share of what is left.
    pub units: u64,
}

impl Call {
    /// Names the call among those of its holder, where the store keeps units by name.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }
}

/// What a request has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// It is admitted: its units came from the lease.
    Spend(Spent),
    /// A call is in flight. Once its result has been reported, the request is to be presented
    /// again. The caller bounds how long a call is in flight.
    Wait,
    /// The last call found too little, and the next one is not sent before this instant of the
    /// holder's clock, in microseconds. The request is to be presented again then.
    Pause {
        /// At most [`PACE_US`] from now.
        until_us: u64,
    },
    /// Send this call, and report its result.
    Ask {
        /// The call.
        call: Call,
        /// Units of the previous lease that this request is too large for: they go back first, in
        /// the same round trip.
        give_back: Option<GiveBack>,
    },
    /// Ask the store for this request alone, as if there were no leases. Any number of these may be
    /// in flight.
    AskAlone,
}

/// Units that a request has spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Spent {
    number: u32,
    units: u64,
    /// The request has to be admitted before this instant of the holder's clock, in microseconds.
    /// If other limits of its plan take longer to decide, it has to present itself again.
    pub deadline_us: u64,
    /// The instant of the take, as the store reported it.
    pub taken_at: u64,
}

impl Spent {
    /// The number of the call that took them: [`Call::number`].
    #[must_use]
    pub fn number(self) -> u32 {
        self.number
    }

    /// How many they are.
    #[must_use]
    pub fn units(self) -> u64 {
        self.units
    }

    /// So many of them at most.
    #[must_use]
    pub fn part(self, units: u64) -> Self {
        Self { units: self.units.min(units), ..self }
    }
}

/// Unused units to return to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GiveBack {
    /// The call that took them.
    pub call: Call,
    /// How many of its units.
    pub units: u64,
    /// The instant of the take, as the store reported it, which its `give_back` needs.
    pub taken_at: u64,
}

/// What came of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reply {
    /// The store took units.
    Granted {
        /// How many: at least [`Call::least`], at most [`Call::units`].
        units: u64,
        /// How long they may be spent, in microseconds from before the call:
        /// [`crate::Terms::life_of_grant_us`].
        life_us: u64,
        /// The store's instant of the take, in the limit's time unit.
        taken_at: u64,
    },
    /// Fewer units are left than the first request needs.
    Refused,
    /// Nobody knows: the call failed or timed out. It may have taken units, which nobody spends.
    Unknown,
}

impl Holder {
    /// Holds nothing. `life_us` is that of the limit's leases, in microseconds: see
    /// [`crate::Terms::life_us`].
    #[must_use]
    pub fn new(life_us: u64) -> Self {
        Self { life_us, state: State::Nothing, calls: 0, next_us: 0 }
    }

    /// Decides the request that comes first, at `now_us` on the holder's clock. If no lease is
    /// worth a call (`units` are no more than the request needs) it asks alone.
    ///
    /// The clock must go on while the machine sleeps (`CLOCK_BOOTTIME` on Linux), else a lease
    /// outlives its deadline by that time.
    #[inline]
    pub fn want(&mut self, now_us: u64, want: Want) -> Action {
        if let Some(spent) = self.spend(now_us, want.cost) {
            return Action::Spend(spent);
        }
        let least = want.cost.max(1);
        let needed = least.saturating_add(want.waiting);
        match self.state {
            State::Asking(_) => Action::Wait,
            State::Alone { until_us } if now_us < until_us => Action::AskAlone,
            _ if want.units <= least && want.waiting == 0 => Action::AskAlone,
            _ if now_us < self.next_us => Action::Pause { until_us: self.next_us },
            _ => {
                let give_back = self.leave();
                self.calls = self.calls.wrapping_add(1);
                let units = want.units.max(needed);
                let call = Call { number: self.calls, sent_us: now_us, least, needed, units };
                self.state = State::Asking(call);
                Action::Ask { call, give_back }
            }
        }
    }

    /// Spends `cost` units of the lease, if it has as many and its deadline has not passed.
    #[inline]
    pub fn spend(&mut self, now_us: u64, cost: u64) -> Option<Spent> {
        let State::Holding(lease) = &mut self.state else { return None };
        if !lease.covers(now_us, cost.max(1)) {
            return None;
        }
        lease.units -= cost;
        let Lease { call, deadline_us, taken_at, .. } = *lease;
        Some(Spent { number: call.number, units: cost, deadline_us, taken_at })
    }

    /// Reports what came of a call. Granted units that can't be used come back as a [`GiveBack`],
    /// those whose deadline has passed too.
    ///
    /// After a refusal, and after a grant of fewer units than were needed, the next call waits for
    /// [`PACE_US`]. After an unknown outcome, or a grant that comes too late, requests ask alone
    /// for as long as it would have lived, at most [`ALONE_US`], so that a slow store delays nobody
    /// twice.
    pub fn reply(&mut self, now_us: u64, call: Call, reply: Reply) -> Option<GiveBack> {
        let lease = match reply {
            Reply::Granted { units, life_us, taken_at } => {
                let deadline_us = call.sent_us.saturating_add(life_us.min(self.life_us));
                Some(Lease { call, units: units.min(call.units), deadline_us, taken_at })
            }
            Reply::Refused | Reply::Unknown => None,
        };
        if self.state != State::Asking(call) {
            return lease.and_then(Lease::into_give_back);
        }
        let granted = lease;
        let lease = granted.filter(|lease| lease.covers(now_us, 1));
        if lease.is_none_or(|lease| lease.units < call.needed) {
            self.next_us = call.sent_us.saturating_add(PACE_US);
        }
        let alone =
            |life_us: u64| State::Alone { until_us: now_us.saturating_add(life_us.min(ALONE_US)) };
        self.state = match (lease, reply) {
            (Some(lease), _) => State::Holding(lease),
            (None, Reply::Refused) => State::Nothing,
            (None, Reply::Granted { life_us, .. }) => alone(life_us.min(self.life_us)),
            (None, Reply::Unknown) => alone(self.life_us),
        };
        granted.filter(|_| lease.is_none()).and_then(Lease::into_give_back)
    }

    /// Returns what a request has spent and does not use, because another limit of its plan
    /// refused, or a place that it does not use any more. Returns whether the units are there
    /// again. Those of a lease that has ended lapse; places go back to the store.
    pub fn undo(&mut self, now_us: u64, spent: Spent) -> bool {
        if let State::Holding(lease) = &mut self.state
            && lease.call.number == spent.number
            && now_us < lease.deadline_us
        {
            lease.units = lease.units.saturating_add(spent.units).min(lease.call.units);
            return true;
        }
        false
    }

    /// Gives up so many of the units at hand, which the caller returns to the store by their names.
    /// The lease goes on with the others.
    pub fn give_up(&mut self, units: u64) {
        if let State::Holding(lease) = &mut self.state {
            lease.units = lease.units.saturating_sub(units);
        }
    }

    /// Ends the lease early: because the process stops, the limit is edited or the key is idle.
    /// Returns the unused units. Those whose deadline has passed go back too: the instant of their
    /// take says what of them has come back by itself. While a call is in flight nothing is held,
    /// and nothing changes.
    pub fn leave(&mut self) -> Option<GiveBack> {
        let State::Holding(lease) = self.state else { return None };
        self.state = State::Nothing;
        lease.into_give_back()
    }

    /// The units that can be spent at `now_us`.
    #[must_use]
    pub fn held(&self, now_us: u64) -> u64 {
        match self.state {
            State::Holding(lease) if now_us < lease.deadline_us => lease.units,
            _ => 0,
        }
    }

    /// The deadline of the units that are held, in microseconds of the holder's clock: for a timer
    /// that leaves shortly before, so that unused units are of use to others.
    #[must_use]
    pub fn deadline_us(&self) -> Option<u64> {
        match self.state {
            State::Holding(lease) => Some(lease.deadline_us),
            _ => None,
        }
    }

    /// Whether it holds what this call brought.
    #[must_use]
    pub fn holds(&self, call: Call) -> bool {
        matches!(self.state, State::Holding(lease) if lease.call == call)
    }

    /// The call in flight, if any.
    #[must_use]
    pub fn call(&self) -> Option<Call> {
        match self.state {
            State::Asking(call) => Some(call),
            _ => None,
        }
    }
}

impl Lease {
    fn covers(&self, now_us: u64, units: u64) -> bool {
        now_us < self.deadline_us && self.units >= units
    }

    fn into_give_back(self) -> Option<GiveBack> {
        let Self { call, units, taken_at, .. } = self;
        (units > 0).then_some(GiveBack { call, units, taken_at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE_US: u64 = 100_000;

    /// A request for `cost` units where `units` are worth a call.
    fn want(cost: u64, units: u64) -> Want {
        Want { cost, waiting: 0, units }
    }

    fn granted(units: u64) -> Reply {
        Reply::Granted { units, life_us: LIFE_US, taken_at: 77 }
    }

    /// A holder that asked for `units` at the instant 10, and its call.
    fn asking(units: u64) -> (Holder, Call) {
        let mut holder = Holder::new(LIFE_US);
        let Action::Ask { call, give_back: None } = holder.want(10, want(1, units)) else {
            panic!("{holder:?} asks for nothing");
        };
        assert_eq!((call.sent_us, call.least, call.needed, call.units), (10, 1, 1, units));
        (holder, call)
    }

    /// A holder of `units` units, until the instant 100,010.
    fn holding(units: u64) -> Holder {
        let (mut holder, call) = asking(units);
        assert_eq!(holder.reply(400, call, granted(units)), None);
        holder
    }

    #[test]
    fn units_are_spent_until_the_deadline_which_counts_from_before_the_call() {
        let mut holder = holding(3);
        assert_eq!(holder.deadline_us(), Some(100_010));
        let Action::Spend(spent) = holder.want(100_009, want(1, 9)) else { panic!("{holder:?}") };
        assert_eq!((spent.deadline_us, spent.taken_at), (100_010, 77));
        assert_eq!((holder.held(100_009), holder.held(100_010)), (2, 0));
        let action = holder.want(100_010, want(1, 9));
        assert!(matches!(action, Action::Ask { give_back: Some(GiveBack { units: 2, .. }), .. }));
    }

    #[test]
    fn requests_wait_for_the_call_in_flight() {
        let (mut holder, call) = asking(5);
        assert_eq!(holder.want(10, want(1, 5)), Action::Wait);
        assert_eq!(holder.want(100_009, want(1, 5)), Action::Wait);
        assert_eq!(holder.reply(100_009, call, granted(5)), None);
        assert!(matches!(holder.want(100_009, want(1, 5)), Action::Spend(_)));
    }

    #[test]
    fn after_a_refusal_the_next_call_waits_and_asks_for_all_that_wait() {
        let (mut holder, call) = asking(5);
        assert_eq!(holder.reply(400, call, Reply::Refused), None);
        let until_us = 10 + PACE_US;
        assert_eq!(holder.want(400, want(1, 5)), Action::Pause { until_us });
        let all = Want { cost: 2, waiting: 7, units: 5 };
        assert_eq!(holder.want(until_us - 1, all), Action::Pause { until_us });
        let Action::Ask { call, .. } = holder.want(until_us, all) else { panic!("{holder:?}") };
        assert_eq!((call.least, call.needed, call.units), (2, 9, 9));
    }

    #[test]
    fn after_a_grant_of_less_than_was_needed_the_next_call_waits() {
        for (units, pauses) in [(3, true), (4, false)] {
            let mut holder = Holder::new(LIFE_US);
            let all = Want { cost: 1, waiting: 3, units: 1 };
            let Action::Ask { call, .. } = holder.want(10, all) else { panic!("{holder:?}") };
            assert_eq!(holder.reply(20, call, granted(units)), None);
            assert!((0..units).all(|_| holder.spend(20, 1).is_some()));
            let action = holder.want(20, want(1, 5));
            assert_eq!(matches!(action, Action::Pause { .. }), pauses, "{action:?}");
        }
    }

    #[test]
    fn after_an_unknown_outcome_or_a_late_grant_requests_ask_alone_for_a_while() {
        for (now_us, reply, back) in [(20, Reply::Unknown, None), (100_010, granted(5), Some(5))] {
            let (mut holder, call) = asking(5);
            let give_back = holder.reply(now_us, call, reply);
            assert_eq!(give_back.map(|give_back| give_back.units), back);
            assert_eq!(holder.held(now_us), 0);
            assert_eq!(holder.want(now_us, want(1, 5)), Action::AskAlone);
            assert_eq!(holder.want(now_us + ALONE_US - 1, want(1, 5)), Action::AskAlone);
            assert!(matches!(holder.want(now_us + ALONE_US, want(1, 5)), Action::Ask { .. }));
        }
    }

    #[test]
    fn a_grant_that_ends_with_its_window_before_it_comes_is_followed_by_another() {
        let (mut holder, call) = asking(5);
        let reply = Reply::Granted { units: 5, life_us: 30, taken_at: 0 };
        assert!(holder.reply(40, call, reply).is_some());
        assert_eq!(holder.want(69, want(1, 5)), Action::AskAlone);
        assert!(matches!(holder.want(70, want(1, 5)), Action::Ask { .. } | Action::Pause { .. }));
    }

    #[test]
    fn a_request_for_which_no_lease_is_worth_it_asks_alone() {
        let mut holder = Holder::new(LIFE_US);
        assert_eq!(holder.want(10, want(3, 3)), Action::AskAlone);
        assert_eq!(holder.want(10, want(0, 1)), Action::AskAlone);
        assert_eq!(holder.call(), None);
    }

    #[test]
    fn a_cost_of_zero_needs_a_unit_and_spends_none() {
        let mut holder = holding(2);
        assert!(matches!(holder.want(500, want(0, 9)), Action::Spend(_)));
        assert_eq!(holder.held(500), 2);
        assert!(matches!(holder.want(500, want(2, 9)), Action::Spend(_)));
        assert!(matches!(holder.want(500, want(0, 9)), Action::Ask { .. }));
    }

    #[test]
    fn what_is_left_of_a_lease_goes_back_with_the_next_call() {
        let mut holder = holding(3);
        let Action::Ask { call, give_back: Some(give_back) } = holder.want(500, want(4, 9)) else {
            panic!("{holder:?} gives nothing back");
        };
        assert_eq!((give_back.units, give_back.taken_at), (3, 77));
        assert_ne!(give_back.call.number(), call.number());
    }

    #[test]
    fn unused_units_go_back_once_also_after_the_deadline() {
        let mut holder = holding(3);
        assert!(matches!(holder.want(500, want(1, 9)), Action::Spend(_)));
        let units = |give_back: Option<GiveBack>| give_back.map(|give_back| give_back.units);
        // The next call takes them along, however late it is.
        let mut late = holder;
        let Action::Ask { give_back, .. } = late.want(200_000, want(1, 9)) else {
            panic!("{late:?}")
        };
        assert_eq!(units(give_back), Some(2));
        assert_eq!(units(holder.leave()), Some(2));
        assert_eq!(units(holder.leave()), None);
        // A grant that comes too late is spent by nobody.
        let (mut holder, call) = asking(5);
        assert_eq!(units(holder.reply(100_010, call, granted(5))), Some(5));
        assert_eq!(holder.leave(), None);
    }

    #[test]
    fn a_grant_that_nobody_waits_for_goes_back() {
        let (mut holder, call) = asking(5);
        assert_eq!(holder.reply(20, call, Reply::Unknown), None);
        let give_back = holder.reply(30, call, granted(5));
        assert_eq!(give_back, Some(GiveBack { call, units: 5, taken_at: 77 }));
    }

    #[test]
    fn spent_units_return_to_their_own_lease_only() {
        let mut holder = holding(2);
        let Action::Spend(first) = holder.want(500, want(1, 9)) else { panic!("{holder:?}") };
        assert!(holder.undo(500, first));
        assert_eq!(holder.held(500), 2);
        let Action::Spend(spent) = holder.want(500, want(2, 9)) else { panic!("{holder:?}") };
        // The next lease, which a coarse clock dates like the first one.
        let Action::Ask { call, .. } = holder.want(500, want(1, 4)) else { panic!("{holder:?}") };
        assert_eq!(holder.reply(500, call, granted(4)), None);
        assert!(!holder.undo(500, spent));
        assert_eq!(holder.held(500), 4);
    }

    #[test]
    fn units_that_are_returned_after_the_deadline_lapse() {
        let mut holder = holding(2);
        let Action::Spend(spent) = holder.want(500, want(1, 9)) else { panic!("{holder:?}") };
        assert!(!holder.undo(100_010, spent));
        assert_eq!((holder.held(100_009), holder.held(100_010)), (1, 0));
    }

    #[test]
    fn a_grant_has_no_more_units_than_were_asked_for_and_lives_no_longer() {
        let (mut holder, call) = asking(5);
        let reply = Reply::Granted { units: 9, life_us: 300, taken_at: 0 };
        assert_eq!(holder.reply(20, call, reply), None);
        assert_eq!((holder.held(309), holder.held(310)), (5, 0));
        let (mut holder, call) = asking(5);
        let reply = Reply::Granted { units: 5, life_us: u64::MAX, taken_at: 0 };
        assert_eq!(holder.reply(20, call, reply), None);
        assert_eq!(holder.deadline_us(), Some(100_010));
    }
}
