//! The holder of one counter, with the requests that wait for it. Knows no other counter.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use tokio::sync::{Notify, oneshot};
use weir_lease::{Action, Call, Demand, GiveBack, Holder, Reply, Want, units_to_ask};

use super::places::Places;
use super::{Answer, Kept, LeaseSpec, Returned, ReturnedUnits, SpentUnits};
use crate::engine::CellReply;
use crate::plan::MEMBERS_MAX;

/// Places that nobody uses go back so often in a life.
const TRIMMED: u64 = 4;

/// The holder of one counter.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) spec: Arc<LeaseSpec>,
    pub(super) holder: Holder,
    /// Which units of the lease are free, if they are places.
    places: Option<Places>,
    pub(super) demand: Demand,
    pub(super) waiters: VecDeque<Waiter>,
    /// How many of the first waiters the call in flight is for.
    pub(super) covered: usize,
    /// Whether a task asks for it.
    pub(super) is_kept: bool,
    pub(super) wake: Arc<Notify>,
    /// What the names of its units begin with.
    pub(super) member: u128,
    /// When places that nobody uses go back next.
    trimmed_us: u64,
}

#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) cost: u64,
    pub(super) answer: oneshot::Sender<Answer>,
}

/// The name of the first unit of a call. The others have the next ones.
pub(super) fn named(holder: u128, call: u32) -> u128 {
    holder | u128::from(call) << 32
}

fn named_ranges(holder: u128, (call, ranges): (u32, Vec<Range<u32>>)) -> Returned {
    let first = named(holder, call);
    let range = |range: Range<u32>| ReturnedUnits {
        units: range.len() as u64,
        // A place goes back whenever it was taken.
        taken_at_us: 0,
        member: first + u128::from(range.start),
    };
    ranges.into_iter().map(range).collect()
}

impl Kept {
    /// What goes back of a call whose holder is gone. Units do not: they may be of a counter that
    /// was deleted, and would go back to the one that came after it.
    pub(super) fn unused(&self, call: Call, reply: Reply) -> Returned {
        let Reply::Granted { units, taken_at, .. } = reply else { return Returned::new() };
        let member = named(self.member, call.number());
        let units = ReturnedUnits { units, taken_at_us: taken_at, member };
        if self.spec.has_places { Returned::from_iter([units]) } else { Returned::new() }
    }
}

impl Entry {
    pub(super) fn new(spec: Arc<LeaseSpec>) -> Self {
        let life_us = spec.terms.life_us;
        Self {
            places: spec.has_places.then(Places::default),
            spec,
            holder: Holder::new(life_us),
            demand: Demand::new(life_us),
            waiters: VecDeque::new(),
            covered: 0,
            is_kept: false,
            wake: Arc::default(),
            // The numbers of a call and of a unit follow.
            member: u128::from(fastrand::u64(..)) << 64,
            trimmed_us: 0,
        }
    }

    /// The places of a call that was answered, if the holder has taken them; else they go back.
    /// `are_last`: it left nothing for others.
    pub(super) fn begin(
        &mut self,
        kept: &Kept,
        now_us: u64,
        (call, reply): (Call, Reply),
        are_last: bool,
    ) -> Returned {
        let (Some(places), Reply::Granted { units, .. }) = (&mut self.places, reply) else {
            return Returned::new();
        };
        if !self.holder.holds(call) {
            return kept.unused(call, reply);
        }
        places.begin(call.number(), u32::try_from(units).unwrap_or(u32::MAX), are_last);
        self.trimmed_us = self.next_trim_us(now_us);
        Returned::new()
    }

    fn next_trim_us(&self, now_us: u64) -> u64 {
        now_us.saturating_add(self.spec.terms.life_us / TRIMMED)
    }

    /// When [`Entry::surplus`] is due.
    pub(super) fn trimmed_us(&self) -> Option<u64> {
        self.places.is_some().then_some(self.trimmed_us)
    }

    /// Places that go back before the lease ends, if it is time to look: nobody has used them.
    pub(super) fn surplus(&mut self, now_us: u64) -> Returned {
        if now_us < self.trimmed_us {
            return Returned::new();
        }
        self.trimmed_us = self.next_trim_us(now_us);
        let Some(places) = &mut self.places else { return Returned::new() };
        let surplus = named_ranges(self.member, places.surplus());
        self.holder.give_up(surplus.iter().map(|range| range.units).sum());
        surplus
    }

    /// Ends the lease. Unused units go back.
    pub(super) fn leave(&mut self) -> Returned {
        let left = self.holder.leave();
        self.returned(left)
    }

    /// What goes back of a lease that has ended.
    pub(super) fn returned(&mut self, left: Option<GiveBack>) -> Returned {
        let Some(places) = &mut self.places else {
            let units = left.map(|GiveBack { call, units, taken_at }| ReturnedUnits {
                units,
                taken_at_us: taken_at,
                member: named(self.member, call.number()),
            });
            return units.into_iter().collect();
        };
        named_ranges(self.member, places.end())
    }

    /// Whether these units are of this holder.
    pub(super) fn has_taken(&self, units: SpentUnits) -> bool {
        units.member >> 32 == named(self.member, units.spent.number()) >> 32
    }

    /// Spends units that are at hand.
    pub(super) fn spend(&mut self, now_us: u64, cost: u64) -> Option<SpentUnits> {
        if self.places.as_ref().is_some_and(Places::are_in_use) {
            return None;
        }
        let spent = self.holder.spend(now_us, cost)?;
        let place = self.places.as_mut().and_then(Places::take).unwrap_or(0);
        let member = named(self.member, spent.number()) + u128::from(place);
        Some(SpentUnits { spent, member, left: self.holder.held(now_us) })
    }

    /// Whether what was spent goes back to the store, though its lease goes on.
    pub(super) fn goes_back(&mut self, units: SpentUnits) -> bool {
        self.places.as_mut().is_some_and(|places| places.go_back(units.spent.number()))
    }

    /// Returns what was spent to its lease, if that has not ended.
    pub(super) fn undo(&mut self, now_us: u64, units: SpentUnits) -> bool {
        let is_back = self.holder.undo(now_us, units.spent);
        if let Some(places) = self.places.as_mut().filter(|_| is_back) {
            // The last 32 bits of its name.
            places.put_back(units.spent.number(), units.member as u32);
        }
        is_back
    }

    /// Whether there is a lease, and all its places are in use. It goes on: they come back to it.
    /// Meanwhile requests ask alone.
    pub(super) fn places_are_in_use(&self, now_us: u64) -> bool {
        let lives = self.holder.deadline_us().is_some_and(|deadline_us| now_us < deadline_us);
        self.places.is_some() && lives && self.holder.held(now_us) == 0
    }

    fn units(&self, now_us: u64, cost: u64) -> u64 {
        let units = units_to_ask(self.demand.units(now_us), cost, self.spec.lease.units_max);
        match &self.places {
            None => units,
            Some(places) => {
                units.min(places.worth().unwrap_or(u64::MAX)).min(MEMBERS_MAX).max(cost)
            }
        }
    }

    /// Whether no lease is worth a call for the only request.
    pub(super) fn asks_alone(&self, now_us: u64, cost: u64) -> bool {
        if self.places_are_in_use(now_us) {
            return true;
        }
        let want = Want { cost, waiting: 0, units: self.units(now_us, cost) };
        // On a copy: if it is to ask, its keeper does.
        let mut holder = self.holder;
        holder.want(now_us, want) == Action::AskAlone
    }

    /// What the waiting requests want, if there are any.
    pub(super) fn want(&self, now_us: u64) -> Option<Want> {
        let cost = self.waiters.front()?.cost;
        let others = self.waiters.iter().skip(1);
        let waiting = others.fold(0_u64, |sum, waiter| sum.saturating_add(waiter.cost.max(1)));
        Some(Want { cost, waiting, units: self.units(now_us, cost) })
    }

    /// Answers the first waiting requests for which there are units.
    pub(super) fn serve(&mut self, now_us: u64, waiting: &mut usize) {
        while let Some(waiter) = self.waiters.front() {
            let Some(spent) = self.spend(now_us, waiter.cost) else { return };
            let Some(waiter) = self.waiters.pop_front() else { return };
            *waiting -= 1;
            if waiter.answer.send(Answer::Spent(spent)).is_err() {
                // Its request is gone.
                self.undo(now_us, spent);
            }
        }
    }

    /// Refuses those of the first `count` waiting requests that cost `cost`. They came before the
    /// call was sent, so the store's answer to it is theirs, too. The store tells others itself
    /// when they would fit.
    pub(super) fn refuse(
        &mut self,
        count: usize,
        cost: u64,
        answer: CellReply,
        waiting: &mut usize,
    ) {
        let count = count.min(self.waiters.len());
        *waiting -= count;
        for waiter in self.waiters.drain(..count) {
            let is_same = waiter.cost.max(1) == cost;
            let answer = if is_same { Answer::Refused(answer) } else { Answer::Alone };
            // Whoever is gone needs no answer.
            let _ = waiter.answer.send(answer);
        }
    }

    /// Has all waiting requests ask alone.
    pub(super) fn send_away(&mut self, waiting: &mut usize) {
        *waiting -= self.waiters.len();
        self.covered = 0;
        for waiter in self.waiters.drain(..) {
            let _ = waiter.answer.send(Answer::Alone);
        }
    }
}
