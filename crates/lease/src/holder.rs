//! The lease of one key in one process: a state machine that is told what happened and says what to
//! do.
//!
//! Decides nothing about how many units to ask for (`demand.rs`), and sends nothing. A caller with
//! several threads wraps it: one holder for each worker, or one behind a lock that is taken when
//! the units at hand are spent.

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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    /// Nothing is held: the next request may ask for a lease.
    Nothing,
    /// One call is in flight, and requests wait for it.
    Asking(Call),
    /// Units are held.
    Holding(Lease),
    /// The last call brought nothing, so requests ask alone until the store admits one of them.
    Alone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Lease {
    call: Call,
    units: u64,
    /// On the holder's clock. Nothing is spent at this instant or later.
    deadline_us: u64,
    taken_at: u64,
}

/// A call for a lease. Its result is reported once, with [`Holder::reply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Call {
    number: u32,
    /// The instant before it was sent, in microseconds of the holder's clock.
    pub sent_us: u64,
    /// The units that were asked for.
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
    /// A call is in flight. Once its result has been reported, or its life has passed, the request
    /// is to be presented again.
    Wait,
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

/// Units that a request has spent, so that they can be returned to the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Spent {
    number: u32,
    units: u64,
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
        /// How many: at most those asked for, and enough for the request that asked.
        units: u64,
        /// How long they may be spent, in microseconds from before the call:
        /// [`crate::Terms::life_of_grant_us`].
        life_us: u64,
        /// The store's instant of the take, in the limit's time unit.
        taken_at: u64,
    },
    /// Fewer units are left than were asked for.
    Refused,
    /// Nobody knows: the call failed or timed out. It may have taken units, which nobody spends.
    Unknown,
}

impl Holder {
    /// Holds nothing. `life_us` is that of the limit's leases, in microseconds: see
    /// [`crate::Terms::life_us`].
    #[must_use]
    pub fn new(life_us: u64) -> Self {
        Self { life_us, state: State::Nothing, calls: 0 }
    }

    /// Decides a request that costs `cost` units, at `now_us` on the holder's clock. If a call is
    /// needed it is for `units` units, as [`crate::units_to_ask`] computes them. Cost 0 is decided
    /// as 1 and spends nothing.
    ///
    /// The clock must go on while the machine sleeps (`CLOCK_BOOTTIME` on Linux), else a lease
    /// outlives its deadline by that time.
    pub fn want(&mut self, now_us: u64, cost: u64, units: u64) -> Action {
        let needed = cost.max(1);
        match self.state {
            State::Holding(mut lease) if lease.covers(now_us, needed) => {
                lease.units -= cost;
                self.state = State::Holding(lease);
                Action::Spend(Spent { number: lease.call.number, units: cost })
            }
            State::Asking(call) if now_us < self.late_from_us(call) => Action::Wait,
            // Whatever it brings now comes too late.
            State::Asking(_) | State::Alone => {
                self.state = State::Alone;
                Action::AskAlone
            }
            State::Nothing | State::Holding(_) if units <= needed => Action::AskAlone,
            State::Nothing | State::Holding(_) => {
                let give_back = self.leave(now_us);
                self.calls = self.calls.wrapping_add(1);
                let call = Call { number: self.calls, sent_us: now_us, units };
                self.state = State::Asking(call);
                Action::Ask { call, give_back }
            }
        }
    }

    /// Reports what came of a call. Granted units that can't be used come back as a [`GiveBack`] if
    /// their deadline has not passed; after it they lapse.
    ///
    /// After a refusal, an unknown outcome or a grant that comes too late, requests ask alone, so
    /// that a refusal is the store's own and a slow store delays nobody twice.
    pub fn reply(&mut self, now_us: u64, call: Call, reply: Reply) -> Option<GiveBack> {
        let lease = match reply {
            Reply::Granted { units, life_us, taken_at } => {
                let deadline_us = call.sent_us.saturating_add(life_us.min(self.life_us));
                Some(Lease { call, units: units.min(call.units), deadline_us, taken_at })
            }
            Reply::Refused | Reply::Unknown => None,
        };
        let lease = lease.filter(|lease| lease.covers(now_us, 1));
        if self.state != State::Asking(call) {
            return lease.map(Lease::into_give_back);
        }
        self.state = lease.map_or(State::Alone, State::Holding);
        None
    }

    /// Reports that the store admitted a request that asked alone: it has units again, and the next
    /// request may ask for a lease.
    pub fn admitted_alone(&mut self) {
        if self.state == State::Alone {
            self.state = State::Nothing;
        }
    }

    /// Returns what an admitted request has spent, because another limit of its plan refused. Units
    /// of a lease that has ended lapse, so this never needs the store.
    pub fn undo(&mut self, now_us: u64, spent: Spent) {
        if let State::Holding(lease) = &mut self.state
            && lease.call.number == spent.number
            && now_us < lease.deadline_us
        {
            lease.units = lease.units.saturating_add(spent.units).min(lease.call.units);
        }
    }

    /// Ends the lease early: because the process stops, the limit is edited or the key is idle.
    /// Returns the unused units, if their deadline has not passed. While a call is in flight
    /// nothing is held, and nothing changes.
    pub fn leave(&mut self, now_us: u64) -> Option<GiveBack> {
        let State::Holding(lease) = self.state else { return None };
        self.state = State::Nothing;
        lease.covers(now_us, 1).then(|| lease.into_give_back())
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
    /// that leaves shortly before, so that unused units do not lapse.
    #[must_use]
    pub fn deadline_us(&self) -> Option<u64> {
        match self.state {
            State::Holding(lease) => Some(lease.deadline_us),
            _ => None,
        }
    }

    /// The call in flight, if any.
    #[must_use]
    pub fn call(&self) -> Option<Call> {
        match self.state {
            State::Asking(call) => Some(call),
            _ => None,
        }
    }

    /// The instant from which a call's grant is of no use.
    fn late_from_us(&self, call: Call) -> u64 {
        call.sent_us.saturating_add(self.life_us)
    }
}

impl Lease {
    fn covers(&self, now_us: u64, units: u64) -> bool {
        now_us < self.deadline_us && self.units >= units
    }

    fn into_give_back(self) -> GiveBack {
        GiveBack { call: self.call, units: self.units, taken_at: self.taken_at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE_US: u64 = 1_000;

    fn granted(units: u64) -> Reply {
        Reply::Granted { units, life_us: LIFE_US, taken_at: 77 }
    }

    /// A holder that asked for `units` at the instant 10, and its call.
    fn asking(units: u64) -> (Holder, Call) {
        let mut holder = Holder::new(LIFE_US);
        let Action::Ask { call, give_back: None } = holder.want(10, 1, units) else {
            panic!("{holder:?} asks for nothing");
        };
        assert_eq!((call.sent_us, call.units), (10, units));
        (holder, call)
    }

    /// A holder of `units` units, until the instant 1,010.
    fn holding(units: u64) -> Holder {
        let (mut holder, call) = asking(units);
        assert_eq!(holder.reply(400, call, granted(units)), None);
        holder
    }

    #[test]
    fn units_are_spent_until_the_deadline_which_counts_from_before_the_call() {
        let mut holder = holding(3);
        assert_eq!(holder.deadline_us(), Some(1_010));
        assert!(matches!(holder.want(1_009, 1, 9), Action::Spend(_)));
        assert_eq!((holder.held(1_009), holder.held(1_010)), (2, 0));
        assert!(matches!(holder.want(1_010, 1, 9), Action::Ask { give_back: None, .. }));
    }

    #[test]
    fn requests_wait_for_the_call_in_flight_and_no_longer_than_a_life() {
        let (mut holder, call) = asking(5);
        assert_eq!(holder.want(10, 1, 5), Action::Wait);
        assert_eq!(holder.want(1_009, 1, 5), Action::Wait);
        assert_eq!(holder.want(1_010, 1, 5), Action::AskAlone);
        // What comes now is too late to be spent, or to be given back.
        assert_eq!(holder.reply(1_011, call, granted(5)), None);
        assert_eq!(holder.held(1_011), 0);
    }

    #[test]
    fn after_a_refusal_requests_ask_alone_until_the_store_admits_one() {
        for reply in [Reply::Refused, Reply::Unknown] {
            let (mut holder, call) = asking(5);
            assert_eq!(holder.reply(20, call, reply), None);
            assert_eq!(holder.want(20, 1, 5), Action::AskAlone);
            assert_eq!(holder.want(20, 1, 5), Action::AskAlone);
            holder.admitted_alone();
            assert!(matches!(holder.want(20, 1, 5), Action::Ask { .. }));
        }
    }

    #[test]
    fn a_late_grant_makes_requests_ask_alone() {
        let (mut holder, call) = asking(5);
        assert_eq!(holder.reply(1_010, call, granted(5)), None);
        assert_eq!(holder.want(1_010, 1, 5), Action::AskAlone);
    }

    #[test]
    fn a_request_for_which_no_lease_is_worth_it_asks_alone() {
        let mut holder = Holder::new(LIFE_US);
        assert_eq!(holder.want(10, 3, 3), Action::AskAlone);
        assert_eq!(holder.want(10, 0, 1), Action::AskAlone);
        assert_eq!(holder.call(), None);
    }

    #[test]
    fn a_cost_of_zero_needs_a_unit_and_spends_none() {
        let mut holder = holding(2);
        assert!(matches!(holder.want(500, 0, 9), Action::Spend(_)));
        assert_eq!(holder.held(500), 2);
        assert!(matches!(holder.want(500, 2, 9), Action::Spend(_)));
        assert!(matches!(holder.want(500, 0, 9), Action::Ask { .. }));
    }

    #[test]
    fn what_is_left_of_a_lease_goes_back_with_the_next_call() {
        let mut holder = holding(3);
        let Action::Ask { call, give_back: Some(give_back) } = holder.want(500, 4, 9) else {
            panic!("{holder:?} gives nothing back");
        };
        assert_eq!((give_back.units, give_back.taken_at), (3, 77));
        assert_ne!(give_back.call.number(), call.number());
    }

    #[test]
    fn unused_units_go_back_before_the_deadline_only() {
        let mut holder = holding(3);
        assert!(matches!(holder.want(500, 1, 9), Action::Spend(_)));
        let units = |give_back: Option<GiveBack>| give_back.map(|give_back| give_back.units);
        let mut late = holder;
        assert_eq!(units(late.leave(1_010)), None);
        assert_eq!(units(holder.leave(1_009)), Some(2));
        assert_eq!(units(holder.leave(1_009)), None);
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
        let Action::Spend(first) = holder.want(500, 1, 9) else { panic!("{holder:?}") };
        holder.undo(500, first);
        assert_eq!(holder.held(500), 2);
        let Action::Spend(spent) = holder.want(500, 2, 9) else { panic!("{holder:?}") };
        // The next lease, which a coarse clock dates like the first one.
        let Action::Ask { call, .. } = holder.want(500, 1, 4) else { panic!("{holder:?}") };
        assert_eq!(holder.reply(500, call, granted(4)), None);
        holder.undo(500, spent);
        assert_eq!(holder.held(500), 4);
    }

    #[test]
    fn units_that_are_returned_after_the_deadline_lapse() {
        let mut holder = holding(2);
        let Action::Spend(spent) = holder.want(500, 1, 9) else { panic!("{holder:?}") };
        holder.undo(1_010, spent);
        assert_eq!((holder.held(1_009), holder.held(1_010)), (1, 0));
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
        assert_eq!((holder.held(1_009), holder.held(1_010)), (5, 0));
    }
}
