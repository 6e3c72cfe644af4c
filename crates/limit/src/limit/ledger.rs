//! What was admitted in this process while a shard was away, to be charged on Redis when the shard
//! is back: otherwise its limits would begin again with what they had before.
//!
//! Best effort: what does not fit any more is not charged, not even into debt, units leave as the
//! limit refills, and a charge whose outcome is unknown is not repeated. What was charged on Redis
//! is remembered, so that a request which gives its units back later gives them back there.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::clock::monotonic;
use crate::engine::{Cell, ChargeReply, Key, NUMBERS_MAX};
use crate::plan::{Algorithm, Debt, Rate};

/// Maximum number of counters remembered. The units of others are not charged later.
const COUNTERS_MAX: usize = 65_536;
/// What was charged is remembered for at most this long: the longest period.
const HANDED_MS_MAX: u64 = 400 * 86_400_000;
/// Minimum time between two attempts to charge what is owed.
const ATTEMPT_EVERY: Duration = Duration::from_millis(250);
/// Maximum number of counters charged in one attempt.
const ATTEMPT_MAX: usize = 1_024;

#[derive(Debug, Default)]
pub(super) struct Ledger {
    any: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    owed: HashMap<Key, OwedUnits>,
    /// What was charged on Redis, by counter.
    handed: HashMap<Key, HandedUnits>,
    /// The counters that an attempt is about to charge, each with the units that were given back
    /// meanwhile.
    charging: HashMap<Key, u64>,
    /// The order in which they are charged. Has each counter of `owed` once.
    order: VecDeque<Key>,
    is_running: bool,
    attempted: Option<Instant>,
}

/// Units that are to be charged on Redis.
#[derive(Debug)]
pub(super) struct OwedUnits {
    /// The counter as on Redis, with all units as its cost.
    pub(super) cell: Cell,
    /// The limit's allowance: no more than this is owed.
    most: u64,
    rate: Rate,
    /// The time up to which units that came back in the meantime are accounted for.
    at: Instant,
}

/// Units of a counter that were charged on Redis.
#[derive(Debug)]
struct HandedUnits {
    /// The counter as it was charged. Its cost is what has not been given back.
    cell: Cell,
    /// The store's time of the charge, in microseconds since 1970.
    at_us: u64,
    /// Nothing is left of it then.
    until: Instant,
}

/// What is given back of a counter on Redis: units of this cell, charged at this time.
pub(super) type RedisRefund = (Cell, u64);

impl OwedUnits {
    /// Takes off what has come back since the last time.
    fn refill(&mut self, now: Instant) {
        let passed_ms = now.duration_since(self.at).as_millis();
        let Rate { amount, per_ms } = self.rate;
        let back = u128::from(amount) * passed_ms / u128::from(per_ms.max(1));
        if back > 0 {
            self.cell.cost = self.cell.cost.saturating_sub(u64::try_from(back).unwrap_or(u64::MAX));
            self.at = now;
        }
    }

    fn add(&mut self, units: u64, now: Instant) {
        self.refill(now);
        self.cell.cost = self.cell.cost.saturating_add(units).min(self.most);
    }
}

impl State {
    /// Remembers what was charged.
    fn hand(&mut self, owed: OwedUnits, at_us: u64, units: u64, now: Instant) {
        if self.handed.len() >= COUNTERS_MAX {
            self.handed.retain(|_, handed| handed.until > now);
        }
        if units == 0 || self.handed.len() >= COUNTERS_MAX {
            return;
        }
        // By then a bucket of this capacity is full again, and a window is over.
        let Rate { amount, per_ms } = owed.rate;
        let full_ms = owed.most.saturating_mul(per_ms).div_ceil(amount.max(1)).max(per_ms);
        let until = now + Duration::from_millis(full_ms.min(HANDED_MS_MAX));
        let key = owed.cell.key.clone();
        let cell = Cell { cost: units, ..owed.cell };
        match self.handed.entry(key) {
            Entry::Occupied(mut known) => {
                // Given back as if all had been charged at the later time, the stricter of the two
                // for buckets. A window's units of before are given back only in their window.
                let known = known.get_mut();
                let before = if known.until > now { known.cell.cost } else { 0 };
                *known = HandedUnits { cell, at_us, until };
                known.cell.cost = known.cell.cost.saturating_add(before);
            }
            Entry::Vacant(place) => drop(place.insert(HandedUnits { cell, at_us, until })),
        }
    }

    fn remove(&mut self, key: &Key, units: u64, now: Instant) -> Option<RedisRefund> {
        let mut left = units;
        if let Some(owed) = self.owed.get_mut(key) {
            owed.refill(now);
            let removed = owed.cell.cost.min(left);
            owed.cell.cost -= removed;
            left -= removed;
        }
        let back = self.take_handed(key, left, now);
        left -= back.as_ref().map_or(0, |(cell, _)| cell.cost);
        if let Some(meanwhile) = self.charging.get_mut(key) {
            *meanwhile = meanwhile.saturating_add(left);
        }
        back
    }

    /// Units of what was charged on Redis, to be given back there.
    fn take_handed(&mut self, key: &Key, units: u64, now: Instant) -> Option<RedisRefund> {
        let handed = self.handed.get_mut(key).filter(|handed| handed.until > now)?;
        let given = handed.cell.cost.min(units);
        handed.cell.cost -= given;
        (given > 0).then(|| (Cell { cost: given, ..handed.cell.clone() }, handed.at_us))
    }

    fn insert(&mut self, owed: OwedUnits, now: Instant) {
        if let Some(known) = self.owed.get_mut(&owed.cell.key) {
            known.add(owed.cell.cost, now);
        } else if self.owed.len() < COUNTERS_MAX {
            self.order.push_back(owed.cell.key.clone());
            self.owed.insert(owed.cell.key.clone(), owed);
        }
    }
}

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what was admitted or charged. `cell` is the counter as on Redis, and `numbers_of` are
    /// the numbers that an algorithm's program reads.
    pub(super) fn add(
        &self,
        algorithm: &Algorithm,
        cell: &Cell,
        numbers_of: impl FnOnce(&Algorithm) -> [i64; NUMBERS_MAX],
    ) {
        let (Some(rate), Some(most)) = (algorithm.rate(), algorithm.capacity()) else { return };
        // A leaky bucket's turns are over with their requests.
        if algorithm.queues() || cell.cost == 0 {
            return;
        }
        // Only what fits is charged.
        let without_debt = algorithm.clone().with_debt(Debt::None);
        let numbers = numbers_of(without_debt.as_ref().unwrap_or(algorithm));
        let now = monotonic();
        let cell = Cell { numbers, ..cell.clone() };
        self.lock().insert(OwedUnits { cell, most, rate, at: now }, now);
        self.any.store(true, Ordering::Relaxed);
    }

    /// Takes back what was given back. Returns what of it has to be given back on Redis, because it
    /// was charged there already. What is being charged at this moment is given back there later,
    /// see [`Ledger::charged`].
    pub(super) fn remove(&self, key: &Key, units: u64) -> Option<RedisRefund> {
        self.lock().remove(key, units, monotonic())
    }

    /// Whether any units are to be charged.
    pub(super) fn owes(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Takes the next counters, if it is time for an attempt. It lasts until
    /// [`end`](Self::end).
    pub(super) fn begin(&self) -> Option<Vec<OwedUnits>> {
        let (mut state, now) = (self.lock(), monotonic());
        let recent = state.attempted.is_some_and(|at| now.duration_since(at) < ATTEMPT_EVERY);
        if state.is_running || recent {
            return None;
        }
        (state.is_running, state.attempted) = (true, Some(now));
        let count = state.order.len().min(ATTEMPT_MAX);
        let keys: Vec<Key> = state.order.drain(..count).collect();
        let mut taken: Vec<OwedUnits> =
            keys.iter().filter_map(|key| state.owed.remove(key)).collect();
        self.any.store(!state.owed.is_empty(), Ordering::Relaxed);
        taken.iter_mut().for_each(|owed| owed.refill(now));
        taken.retain(|owed| owed.cell.cost > 0);
        state.charging.extend(taken.iter().map(|owed| (owed.cell.key.clone(), 0)));
        drop(state);
        Some(taken)
    }

    /// The units were charged. Returns what was given back meanwhile.
    pub(super) fn charged(&self, owed: OwedUnits, charged: &ChargeReply) -> Option<RedisRefund> {
        let units = charged.units.first().copied().flatten().unwrap_or(0);
        let (mut state, now) = (self.lock(), monotonic());
        let (key, cost) = (owed.cell.key.clone(), owed.cell.cost);
        let meanwhile = state.charging.remove(&key).unwrap_or(0).min(cost);
        state.hand(owed, charged.at_us, units, now);
        // What had no room was given back first.
        state.take_handed(&key, meanwhile.saturating_sub(cost.saturating_sub(units)), now)
    }

    /// The shard is still away.
    pub(super) fn put_back(&self, mut owed: OwedUnits) {
        let mut state = self.lock();
        let meanwhile = state.charging.remove(&owed.cell.key).unwrap_or(0);
        owed.cell.cost = owed.cell.cost.saturating_sub(meanwhile);
        if owed.cell.cost > 0 {
            state.insert(owed, monotonic());
            self.any.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the units were charged is not known: nothing of them is given back.
    pub(super) fn unknown(&self, owed: &OwedUnits) {
        self.lock().charging.remove(&owed.cell.key);
    }

    /// Ends an attempt.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.is_running = false;
        state.charging.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use smallvec::SmallVec;

    use super::*;
    use crate::engine::{Part, Space};
    use crate::plan::{Debt, Gcra, Rate};

    const KEYS: usize = 3;
    const MOST: u64 = 40;

    /// Units of a counter that nothing refills.
    fn owed(key: usize, cost: u64) -> OwedUnits {
        let rate = Rate { amount: 1, per_ms: HANDED_MS_MAX };
        let gcra = Gcra { burst: MOST, rate, debt: Debt::None };
        let space = Arc::new(Space { text: "a/b/c".into(), digest: 3 });
        let cell = Cell {
            program: Algorithm::Gcra(gcra).program().unwrap(),
            key: Key { tag: 1, key: key as u128, space },
            unit_us: 1,
            shadow: false,
            part: Part::Alone,
            cost,
            numbers: [0; NUMBERS_MAX],
            member: 0,
        };
        OwedUnits { cell, most: MOST, rate, at: monotonic() }
    }

    #[derive(Clone, Copy, Debug)]
    enum Action {
        /// Admitted here.
        Admit(usize, u64),
        /// A part of what was admitted and not given back, in hundredths.
        GiveBack(usize, u64),
        Begin,
        /// Charges the next counter on Redis, as far as there is room.
        Charged {
            room: u64,
        },
        Away,
        Unknown,
    }

    fn act() -> impl Strategy<Value = Action> {
        prop_oneof![
            4 => (0..KEYS, 1..15_u64).prop_map(|(key, units)| Action::Admit(key, units)),
            4 => (0..KEYS, 1..=100_u64).prop_map(|(key, part)| Action::GiveBack(key, part)),
            2 => Just(Action::Begin),
            3 => (0..60_u64).prop_map(|room| Action::Charged { room }),
            1 => Just(Action::Away),
            1 => Just(Action::Unknown),
        ]
    }

    /// One counter as a bookkeeper sees it: units that were admitted here and not given back, and
    /// what Redis counts of them.
    #[derive(Clone, Copy, Debug, Default)]
    struct Book {
        used: u64,
        on_redis: u64,
        /// What may or may not have been charged.
        unknown: u64,
        /// What had no room on Redis, or was more than the limit allows.
        left_out: u64,
    }

    proptest! {
        /// However calls, give-backs and outages follow each other: Redis never counts more than
        /// was used here, and once all is handed back it counts all of it, but for what had no
        /// room and for charges without an answer.
        #[test]
        fn redis_counts_what_was_used(acts in prop::collection::vec(act(), 1..120)) {
            let ledger = Ledger::default();
            let mut books = [Book::default(); KEYS];
            let mut charging: Vec<OwedUnits> = Vec::new();
            let begin = |charging: &mut Vec<OwedUnits>| {
                ledger.lock().attempted = None;
                charging.extend(ledger.begin().unwrap_or_default());
                ledger.lock().is_running = !charging.is_empty();
            };
            let key_of = |owed: &OwedUnits| owed.cell.key.key as usize;
            let charge = |books: &mut [Book; KEYS], owed: OwedUnits, room: u64| {
                let (key, cost) = (key_of(&owed), owed.cell.cost);
                let units = cost.min(room);
                books[key].on_redis += units;
                // What was given back meanwhile needs no room.
                let meanwhile = ledger.lock().charging[&owed.cell.key];
                books[key].left_out += (cost - units).saturating_sub(meanwhile);
                let charged = ChargeReply { at_us: 1, units: SmallVec::from_iter([Some(units)]) };
                if let Some((cell, _)) = ledger.charged(owed, &charged) {
                    books[key].on_redis -= cell.cost;
                }
            };
            for act in acts {
                match act {
                    Action::Admit(key, units) => {
                        let held = ledger.lock().owed.get(&owed(key, 0).cell.key).map_or(0, |owed| owed.cell.cost);
                        books[key].left_out += (held + units).saturating_sub(MOST);
                        ledger.lock().insert(owed(key, units), monotonic());
                        books[key].used += units;
                    }
                    Action::GiveBack(key, part) => {
                        let units = (books[key].used * part).div_ceil(100);
                        books[key].used -= units;
                        if let Some((cell, _)) = ledger.remove(&owed(key, 0).cell.key, units) {
                            books[key].on_redis -= cell.cost;
                        }
                    }
                    Action::Begin => {
                        if charging.is_empty() {
                            begin(&mut charging);
                        }
                    }
                    Action::Charged { room } => {
                        if let Some(owed) = charging.pop() {
                            charge(&mut books, owed, room);
                        }
                    }
                    Action::Away => {
                        if let Some(owed) = charging.pop() {
                            let (key, cost) = (key_of(&owed), owed.cell.cost);
                            let meanwhile = ledger.lock().charging[&owed.cell.key];
                            let held = ledger.lock().owed.get(&owed.cell.key).map_or(0, |owed| owed.cell.cost);
                            books[key].left_out += (held + cost.saturating_sub(meanwhile)).saturating_sub(MOST);
                            ledger.put_back(owed);
                        }
                    }
                    Action::Unknown => {
                        if let Some(owed) = charging.pop() {
                            books[key_of(&owed)].unknown += owed.cell.cost;
                            ledger.unknown(&owed);
                        }
                    }
                }
                ledger.lock().is_running = !charging.is_empty();
            }
            charging.drain(..).for_each(|owed| charge(&mut books, owed, MOST));
            ledger.lock().is_running = false;
            begin(&mut charging);
            charging.drain(..).for_each(|owed| charge(&mut books, owed, MOST));
            for book in books {
                prop_assert!(book.on_redis <= book.used, "{book:?}");
                prop_assert!(book.on_redis + book.unknown + book.left_out >= book.used, "{book:?}");
            }
        }
    }

    #[test]
    fn a_debt_shrinks_as_the_limit_refills_and_never_exceeds_its_allowance() {
        let gcra = Gcra { burst: 10, rate: Rate { amount: 10, per_ms: 1_000 }, debt: Debt::None };
        let start = monotonic();
        let at = |ms| start + Duration::from_millis(ms);
        let space = Arc::new(Space { text: "a/b/c".into(), digest: 3 });
        let cell = Cell {
            program: Algorithm::Gcra(gcra).program().unwrap(),
            key: Key { tag: 1, key: 2, space },
            unit_us: 1,
            shadow: false,
            part: Part::Alone,
            cost: 4,
            numbers: [0; NUMBERS_MAX],
            member: 0,
        };
        let rate = Rate { amount: 10, per_ms: 1_000 };
        let mut owed = OwedUnits { cell, most: 10, rate, at: start };
        owed.add(4, at(250));
        assert_eq!(owed.cell.cost, 6, "two of four had come back");
        owed.add(9, at(250));
        assert_eq!(owed.cell.cost, 10);
        // A bucket of 10 that gets one unit a second.
        owed.rate = Rate { amount: 1, per_ms: 1_000 };
        owed.refill(at(2_250));
        assert_eq!(owed.cell.cost, 8, "by its rate, and not by its burst");
        owed.refill(at(20_000));
        assert_eq!(owed.cell.cost, 0);
    }
}
