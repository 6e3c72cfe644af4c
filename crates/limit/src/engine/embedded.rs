//! Counters in this process: shards of plain numbers, decided by the same Lua as on Redis.
//!
//! All cells of a call share a tag, hence a shard, hence one lock. For a take or a look, the time
//! is read under the lock, every cell is decided, and the changes are written only when all
//! enforced cells fit. Charges, give-backs and renewals handle each cell on its own. Must not know
//! what an algorithm's numbers mean, except for those that a `Kind` prescribes.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use smallvec::SmallVec;

use super::counters::{self, CounterContent};
use super::found::{FOUND_MAX, FoundCounter};
use super::journal::Operation;
use super::lua::{self, Decision, Vm};
use super::shard::{Entry, NEVER_US, Shard};
use super::snapshot_file::SnapshotFile;
use super::{
    Cause, Cell, Cells, ChargeReply, EmbeddedSettings, EngineError, Execution, Key, Kind, Part,
    Space, TakeReply, is_assured, part,
};
use crate::clock::Clock;
use crate::telemetry::{Counter, CounterSet, Gauge, Metrics, names};

/// Number of shards, a power of two. Far more than there are workers, so that two workers rarely
/// contend for one.
pub(super) const SHARDS: usize = 256;
/// Bytes of the random salt of keys.
pub(super) const SALT_BYTES: usize = 32;
/// Identifies the secret under which keys are digested.
pub(super) type SecretId = [u8; 16];
/// Counters that each call checks for expiry, in addition to two for each of its cells: this frees
/// keys faster than calls can add them.
const SWEEP_STEPS: usize = 2;
/// Counters that a call checks for expiry when there is no room for a new one.
const SWEEP_STEPS_WHEN_FULL: usize = 512;
/// Logs and leases that already exist may exceed the maximum by this fraction of it (1/4), so that
/// existing clients continue when new ones have filled the engine.
const EXISTING_SHARE: usize = 4;
/// Counters that [`Embedded::sweep`] checks under one lock.
const SWEEP_STEPS_AT_ONCE: usize = 128;
/// How many shards a call of [`Embedded::sweep`] looks at, and what part of their counters.
const SHARDS_PER_SWEEP: usize = 8;
const PARTS: usize = 10;
/// BLAKE3 key derivation context of the salt: separates this use from any other.
const SALT_CONTEXT: &str = "weir 2025 digests of counter keys in memory, version 1";
/// Maximum number of spaces remembered for searches. It is bounded because guests choose the names
/// of limits. Spaces beyond it are not found.
const SPACES_MAX: usize = 16_384;
/// A counter is kept for this long after its state has lost its meaning: a give-back may still need
/// it.
const LINGER_US: u64 = 1_000_000;

const FULL: EngineError = EngineError { cause: Cause::Full, ran: Execution::No };

/// Aligned so that each shard has its own cache line and neighbours don't slow each other down.
#[repr(align(128))]
struct AlignedShard(Mutex<Shard>);

/// Counters in memory, up to the configured maximum.
pub struct Embedded {
    shards: Box<[AlignedShard]>,
    clock: Clock,
    keys_max: AtomicUsize,
    linger_us: u64,
    keys: AtomicUsize,
    warned: AtomicBool,
    gauge: Gauge,
    full: Counter,
    failures: CounterSet<Cause>,
    /// The spaces by text. The map holds only digests, so a search has to know the spaces.
    spaces: Mutex<HashMap<String, Arc<Space>>>,
    /// Keys are digested with it where no secret is configured. Random, and saved with counters.
    salt: OnceLock<[u8; SALT_BYTES]>,
    settings: Mutex<EmbeddedSettings>,
    snapshot: Mutex<Option<SnapshotFile>>,
    /// Where the next sweep continues.
    swept: AtomicUsize,
}

impl std::fmt::Debug for Embedded {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            out,
            "Embedded {{ keys: {} of {} }}",
            self.keys.load(Ordering::Relaxed),
            self.keys_max.load(Ordering::Relaxed)
        )
    }
}

impl Embedded {
    pub(crate) fn new(settings: &EmbeddedSettings, clock: Clock, metrics: &Metrics) -> Self {
        let seed = RandomState::new().hash_one(0_u8);
        Self {
            shards: (0..SHARDS).map(|_| AlignedShard(Mutex::new(Shard::new(seed)))).collect(),
            clock,
            keys_max: AtomicUsize::new(settings.keys_max),
            linger_us: LINGER_US,
            keys: AtomicUsize::new(0),
            warned: AtomicBool::new(false),
            gauge: metrics.gauge(names::EMBEDDED_KEYS),
            full: metrics.counter(names::EMBEDDED_FULL, &[]),
            failures: metrics.counters(names::STORE_ERRORS, &[]),
            spaces: Mutex::default(),
            salt: OnceLock::new(),
            settings: Mutex::new(settings.clone()),
            snapshot: Mutex::default(),
            swept: AtomicUsize::new(0),
        }
    }

    /// Changes the maximum number of keys, and where they are saved. Existing keys stay, even if
    /// there are more.
    pub(super) fn resize(&self, settings: &EmbeddedSettings) {
        lock(&self.settings).clone_from(settings);
        if self.keys_max.swap(settings.keys_max, Ordering::Relaxed) != settings.keys_max {
            self.warned.store(false, Ordering::Relaxed);
        }
    }

    /// Takes synchronously, on the calling thread.
    ///
    /// # Errors
    /// [`Cause::Full`] or [`Cause::Script`]; nothing is charged then.
    pub fn take(&self, cells: &Cells) -> Result<TakeReply, EngineError> {
        self.decide(cells, true).inspect_err(|error| self.failures.inc(error.cause))
    }

    /// Answers what [`Embedded::take`] would and writes nothing: see [`super::Engine::look`].
    ///
    /// # Errors
    /// [`Cause::Script`].
    pub fn look(&self, cells: &Cells) -> Result<TakeReply, EngineError> {
        self.decide(cells, false).inspect_err(|error| self.failures.inc(error.cause))
    }

    /// Gives back `cost` units of each cell, taken at `taken_at_us` (microseconds since 1970).
    ///
    /// # Errors
    /// [`Cause::Script`]; all other cells are given back.
    pub fn give_back(&self, cells: &Cells, taken_at_us: u64) -> Result<(), EngineError> {
        self.try_give_back(cells, taken_at_us).inspect_err(|error| self.failures.inc(error.cause))
    }

    /// Charges `cost` units of each cell, into debt if need be: see [`super::Engine::charge`].
    ///
    /// # Errors
    /// [`Cause::Full`] or [`Cause::Script`]; cells before the one that failed are charged.
    pub fn charge(&self, cells: &Cells) -> Result<ChargeReply, EngineError> {
        self.try_charge(cells).inspect_err(|error| self.failures.inc(error.cause))
    }

    /// Deletes a counter, which restores its whole allowance.
    pub fn reset(&self, key: &Key) {
        let Some(mut shard) = self.shard(key.tag) else { return };
        let freed = shard.remove(key.id());
        note(&shard, || Operation::Reset(key.clone()));
        drop(shard);
        self.release(freed);
    }

    /// Remembers a space, for [`Embedded::find`].
    pub(super) fn note_space(&self, space: &Arc<Space>) {
        let mut spaces = lock(&self.spaces);
        if spaces.len() < SPACES_MAX {
            spaces.entry(space.text.clone()).or_insert_with(|| Arc::clone(space));
        }
    }

    /// The counters of `key` in the remembered spaces that begin with `prefix`.
    pub(super) fn find(&self, key: &Key, prefix: &str) -> Vec<FoundCounter> {
        let known = self.spaces().into_iter().filter(|space| space.text.starts_with(prefix));
        known
            .filter_map(|space| self.read_out(Key { space, ..key.clone() }))
            .take(FOUND_MAX)
            .collect()
    }

    /// What a counter holds now; `None` if it does not exist.
    fn read_out(&self, key: Key) -> Option<FoundCounter> {
        let shard = self.shard(key.tag)?;
        let at_us = self.now_us();
        let entry = shard.entry_at(key.id())?;
        let expires_ms =
            (entry.expire_us() != NEVER_US).then(|| entry.expire_us().saturating_sub(at_us) / 1000);
        Some(FoundCounter { content: entry.counter.content(), key, text: None, expires_ms, at_us })
    }

    /// Extends leases to one full length from now. A lease that no longer fits into memory is not
    /// extended, and counts in `weir_embedded_full`.
    pub fn renew(&self, cells: &Cells) {
        for cell in cells.iter().filter(|cell| cell.program.kind == Kind::Leases && cell.cost > 0) {
            let Some(mut shard) = self.shard(cell.key.tag) else { continue };
            let now_us = self.now_us();
            let reserved = usize::from(shard.get(cell.key.id()).is_none());
            if !self.reserve(reserved, || true) {
                self.full.inc();
                continue;
            }
            let (entry, before) = shard.entry(cell.key.id(), || CounterContent::new(cell));
            entry.counter.renew(cell, whole_units(now_us, cell.unit_us));
            let length = cell
                .numbers
                .get(1)
                .copied()
                .and_then(|length| u64::try_from(length).ok())
                .unwrap_or(0);
            let ends_us = now_us
                .saturating_add(2 * length * u64::from(cell.unit_us))
                .saturating_add(self.linger_us);
            entry.expire_at(entry.expire_us().max(ends_us));
            let after = entry.counter.weight();
            drop(shard);
            self.reweigh(before + reserved, after);
        }
    }

    /// Decides. With `writes`, the decision is written if all enforced cells fit. Otherwise nothing
    /// is, and what is left is reported for the current state.
    fn decide(&self, cells: &Cells, writes: bool) -> Result<TakeReply, EngineError> {
        let Some(tag) = cells.first().map(|cell| cell.key.tag) else {
            return Ok(TakeReply { at_us: self.now_us(), admitted: true, cells: SmallVec::new() });
        };
        if cells.iter().any(|cell| cell.key.tag != tag) {
            // Like CROSSSLOT on Redis: these cells can't be decided together.
            tracing::error!("cells of several tags in one call");
            return Err(EngineError { cause: Cause::Script, ran: Execution::No });
        }
        lua::with(|vm| {
            let mut shard = self.shard(tag).ok_or(FULL)?;
            // Under the lock, so that calls on one counter see times in the order in which they are
            // decided.
            let at_us = self.now_us();
            let mut decisions: SmallVec<[(u128, Decision); 2]> = SmallVec::new();
            let mut admitted = true;
            for (index, cell) in cells.iter().enumerate() {
                let id = cell.key.id();
                let now = whole_units(at_us, cell.unit_us);
                let state = counters::read(shard.get(id), cell, now);
                let assured = is_assured(cells, index)
                    && decisions.last().is_some_and(|(_, assured)| assured.fits);
                let decision = if assured {
                    part::of_parent(vm, cell, state, now as f64, writes)?
                } else {
                    let mut decision = vm.take(cell, cell.cost, state, now as f64)?;
                    if !writes && decision.fits && cell.cost > 0 {
                        decision.report_remaining_of(&vm.take(cell, 0, state, now as f64)?);
                    }
                    decision
                };
                let refuses = !cell.shadow && cell.part != Part::Assured;
                admitted &= (!refuses || decision.fits) && !decision.outside();
                decisions.push((id, decision));
            }
            if admitted && writes {
                self.write(&mut shard, cells, &decisions, at_us)?;
            }
            if writes {
                self.extend(&mut shard, cells, &decisions);
            }
            self.release(shard.sweep(at_us, SWEEP_STEPS + 2 * cells.len()));
            Ok(TakeReply {
                at_us,
                admitted,
                cells: decisions.iter().map(|(_, decision)| decision.reply()).collect(),
            })
        })
    }

    /// Writes the cells that fit and cost something. A shadow limit for which there is no room is
    /// left uncounted, as it must refuse nothing.
    fn write(
        &self,
        shard: &mut Shard,
        cells: &Cells,
        decisions: &[(u128, Decision)],
        now_us: u64,
    ) -> Result<(), EngineError> {
        let charged = |cell: &Cell, decision: &Decision| {
            decision.fits && !decision.uncharged() && cell.cost > 0
        };
        let growth = |shard: &Shard, shadows: bool| {
            let all = cells.iter().zip(decisions).filter(|(cell, (_, decision))| {
                charged(cell, decision) && (shadows || !cell.shadow)
            });
            all.map(|(cell, (id, _))| counters::growth(shard.get(*id), cell)).sum()
        };
        let new = |shard: &Shard, shadows: bool| {
            let mut all = cells.iter().zip(decisions).filter(|(cell, (_, decision))| {
                charged(cell, decision) && (shadows || !cell.shadow)
            });
            all.any(|(_, (id, _))| shard.get(*id).is_none())
        };
        let mut room_for_shadows = true;
        let mut reserved: usize = growth(shard, true);
        if !self.reserve(reserved, || new(shard, true)) {
            self.release(shard.sweep(now_us, SWEEP_STEPS_WHEN_FULL));
            self.purge(shard, cells, now_us);
            reserved = growth(shard, true);
            if !self.reserve(reserved, || new(shard, true)) {
                self.full.inc();
                room_for_shadows = false;
                reserved = growth(shard, false);
                if !self.reserve(reserved, || new(shard, false)) {
                    return Err(FULL);
                }
            }
        }
        let (mut before, mut after) = (reserved, 0);
        for (cell, (id, decision)) in cells.iter().zip(decisions) {
            if charged(cell, decision)
                && (!cell.shadow || room_for_shadows || counters::growth(shard.get(*id), cell) == 0)
            {
                let (entry, weight) = shard.entry(*id, || CounterContent::new(cell));
                before += weight;
                entry.counter.take(cell, whole_units(now_us, cell.unit_us), now_us, decision.state);
                let expire_us = self.expire_us(entry.expire_us(), decision.expire, cell.unit_us);
                entry.expire_at(expire_us);
                after += entry.counter.weight();
                note(shard, || Operation::Spent(cell.clone()));
            }
        }
        // Releases what was reserved and not used, and what the writes themselves dropped.
        self.reweigh(before, after);
        Ok(())
    }

    /// Keeps the counters that refused until the reported time: their lifetime may have been set
    /// under a larger quota, with which all would be back earlier.
    fn extend(&self, shard: &mut Shard, cells: &Cells, decisions: &[(u128, Decision)]) {
        for (cell, (id, decision)) in cells.iter().zip(decisions) {
            let told = !decision.fits && decision.retry > 0.0;
            if !told || cell.program.kind != Kind::Numbers {
                continue;
            }
            let Some(current) = shard.entry_at(*id).map(Entry::expire_us) else { continue };
            let expire_us = self.expire_us(current, decision.expire, cell.unit_us);
            if expire_us > current
                && decision.expire > 0.0
                && let Some(entry) = shard.get_mut(*id)
            {
                entry.expire_at(expire_us);
            }
        }
    }

    /// Drops expired units of these cells' own logs and leases. Without this, a log that fills the
    /// engine could never be written to again.
    fn purge(&self, shard: &mut Shard, cells: &Cells, now_us: u64) {
        for cell in cells {
            let Some(entry) = shard.get_mut(cell.key.id()) else { continue };
            let before = entry.counter.weight();
            entry.counter.purge(cell, whole_units(now_us, cell.unit_us));
            self.reweigh(before, entry.counter.weight());
        }
    }

    fn try_charge(&self, cells: &Cells) -> Result<ChargeReply, EngineError> {
        lua::with(|vm| {
            let mut charged = ChargeReply { at_us: self.now_us(), units: SmallVec::new() };
            for cell in cells {
                let mut shard = self.shard(cell.key.tag).ok_or(FULL)?;
                let (id, now_us) = (cell.key.id(), self.now_us());
                let now = whole_units(now_us, cell.unit_us);
                let state = counters::read(shard.get(id), cell, now);
                let answer = vm.charge(cell, state, now as f64)?;
                charged.at_us = now_us;
                charged.units.push(answer.units());
                if let Some(cost @ 1..) = answer.units() {
                    let part = Part::Alone;
                    let cell = Cell { cost, shadow: false, part, ..cell.clone() };
                    let cells = Cells::from_iter([cell]);
                    self.write(&mut shard, &cells, &[(id, answer.into_decision())], now_us)?;
                }
            }
            Ok(charged)
        })
    }

    fn try_give_back(&self, cells: &Cells, taken_at_us: u64) -> Result<(), EngineError> {
        lua::with(|vm| {
            // A script that fails keeps no other cell from getting its units back.
            let all = cells.iter().map(|cell| self.give_back_one(vm, cell, taken_at_us));
            all.fold(Ok(()), Result::and)
        })
    }

    fn give_back_one(&self, vm: &mut Vm, cell: &Cell, taken_at_us: u64) -> Result<(), EngineError> {
        let Some(mut shard) = self.shard(cell.key.tag) else { return Ok(()) };
        let (id, now_us) = (cell.key.id(), self.now_us());
        let [now, taken_at] = [now_us, taken_at_us].map(|us| whole_units(us, cell.unit_us));
        // A counter that no longer exists is full: there is nothing to give back.
        let Some(entry) = shard.get_mut(id) else { return Ok(()) };
        match (&mut entry.counter, cell.program.kind) {
            (CounterContent::Numbers(state), Kind::Numbers) => {
                let returned = vm.give_back(cell, *state, now as f64, taken_at as f64)?;
                if !returned.changed {
                    return Ok(());
                }
                if returned.state == [0.0; 3] {
                    // Equivalent to no counter, so it need not be kept.
                    self.release(shard.remove(id));
                } else {
                    *state = returned.state;
                    let current = entry.expire_us();
                    entry.expire_at(self.expire_us(current, returned.expire, cell.unit_us));
                }
            }
            (counter, _) => {
                let before = counter.weight();
                counter.give_back(cell, now, taken_at);
                let after = counter.weight();
                self.reweigh(before, after);
                if counter.is_empty() {
                    self.release(shard.remove(id));
                }
            }
        }
        note(&shard, || Operation::GivenBack(cell.clone(), taken_at_us));
        Ok(())
    }

    /// Drops expired counters: a part of those of some shards, so that all have been checked after
    /// `SHARDS / SHARDS_PER_SWEEP * PARTS` calls. So memory comes back after a flood, even when no
    /// requests come.
    pub fn sweep(&self) {
        if self.keys.load(Ordering::Relaxed) == 0 {
            return;
        }
        let first = self.swept.fetch_add(SHARDS_PER_SWEEP, Ordering::Relaxed);
        for index in (first..first + SHARDS_PER_SWEEP).map(|index| index % SHARDS) {
            let Some(mut left) = self.shard_at(index).map(|shard| shard.len() / PARTS + 1) else {
                continue;
            };
            // Each step has its own lock, so that no call waits for long.
            while left > 0 {
                let steps = left.min(SWEEP_STEPS_AT_ONCE);
                let Some(mut shard) = self.shard_at(index) else { break };
                let freed = shard.sweep(self.now_us(), steps);
                drop(shard);
                self.release(freed);
                left -= steps;
            }
        }
    }

    /// The salt of keys; random if none was restored.
    pub(crate) fn salt(&self) -> [u8; SALT_BYTES] {
        // `RandomState` gets its keys from the system's random numbers.
        *self.salt.get_or_init(|| {
            let seed = [0_u64; SALT_BYTES / 8].map(|zero| RandomState::new().hash_one(zero));
            blake3::derive_key(SALT_CONTEXT, seed.map(u64::to_le_bytes).as_flattened())
        })
    }

    /// Sets a restored salt, before any key is digested.
    pub(super) fn set_salt(&self, salt: [u8; SALT_BYTES]) {
        let _ = self.salt.set(salt);
    }

    /// Identifies the secret of keys.
    pub(super) fn secret_id(&self) -> SecretId {
        lock(&self.settings).secret_id
    }

    pub(super) fn snapshot_path(&self) -> Option<PathBuf> {
        lock(&self.settings).snapshot.as_ref().map(|snapshot| snapshot.path.clone())
    }

    /// Locked during a whole save, so that saves come one after another.
    pub(super) fn snapshot_file(&self) -> MutexGuard<'_, Option<SnapshotFile>> {
        lock(&self.snapshot)
    }

    pub(super) fn spaces(&self) -> Vec<Arc<Space>> {
        lock(&self.spaces).values().cloned().collect()
    }

    /// Whether a counter changed since this was last asked.
    pub(super) fn take_unsaved(&self) -> bool {
        let mut any = false;
        for index in 0..SHARDS {
            any |= self.shard_at(index).is_some_and(|mut shard| shard.take_unsaved());
        }
        any
    }

    /// Has the next save write all, as one failed.
    pub(super) fn set_unsaved(&self) {
        if let Some(mut shard) = self.shard_at(0) {
            shard.set_unsaved();
        }
    }

    /// Removes a counter that was removed where it comes from.
    pub(super) fn remove(&self, shard: usize, id: u128) {
        let freed = self.shard_at(shard).map_or(0, |mut shard| shard.remove(id));
        self.release(freed);
    }

    /// What is removed is no longer remembered for a hand-over.
    pub(super) fn forget_removed(&self) {
        self.each_shard(Shard::forget_removed);
    }

    /// What is done to counters is no longer noted for a new process.
    pub(super) fn end_operations(&self) {
        self.each_shard(|shard| shard.set_journal(None));
    }

    fn each_shard(&self, work: impl Fn(&mut Shard)) {
        for index in 0..SHARDS {
            if let Some(mut shard) = self.shard_at(index) {
                work(&mut shard);
            }
        }
    }

    /// Puts a restored counter in its place. It may replace an older state of itself, and is kept
    /// even where there are more keys than there may be.
    pub(super) fn put(&self, shard: usize, id: u128, entry: Entry) {
        let Some(mut shard) = self.shard_at(shard) else { return };
        let after = entry.counter.weight();
        let before = shard.put(id, entry);
        drop(shard);
        self.reweigh(before, after);
    }

    pub(super) fn now_us(&self) -> u64 {
        u64::try_from(self.clock.wall_us()).unwrap_or(0)
    }

    fn shard(&self, tag: u128) -> Option<MutexGuard<'_, Shard>> {
        // Nothing panics while holding a shard. Even then each counter would be whole, as it is
        // written in one assignment.
        self.shard_at((tag as usize) & (SHARDS - 1))
    }

    pub(super) fn shard_at(&self, index: usize) -> Option<MutexGuard<'_, Shard>> {
        self.shards.get(index).map(|slot| lock(&slot.0))
    }

    /// Reserves room for `n` more keys; returns whether there was room. `new` returns whether any
    /// of them is for a counter that does not exist yet.
    fn reserve(&self, n: usize, new: impl FnOnce() -> bool) -> bool {
        if n == 0 {
            return true;
        }
        let keys_max = self.keys_max.load(Ordering::Relaxed);
        let most =
            if new() { keys_max } else { keys_max.saturating_add(keys_max / EXISTING_SHARE) };
        let keys = self.keys.fetch_add(n, Ordering::Relaxed) + n;
        if keys > most {
            self.keys.fetch_sub(n, Ordering::Relaxed);
            return false;
        }
        self.gauge.set(keys as i64);
        if keys * 5 >= keys_max * 4 && !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                keys,
                max_keys = keys_max,
                "the embedded engine is 80 % full; when it is full, new keys follow on_store_error"
            );
        }
        true
    }

    fn release(&self, n: usize) {
        if n > 0 {
            let before = self.keys.fetch_sub(n, Ordering::Relaxed);
            self.gauge.set(before.saturating_sub(n) as i64);
        }
    }

    /// Updates the number of keys after counters that counted as `before` keys now count as
    /// `after`.
    fn reweigh(&self, before: usize, after: usize) {
        self.release(before.saturating_sub(after));
        // Never expected, as the growth was reserved. Counted nevertheless, so that the total stays
        // right.
        let more = after.saturating_sub(before);
        if more > 0 {
            self.gauge.set((self.keys.fetch_add(more, Ordering::Relaxed) + more) as i64);
        }
    }

    /// When a counter may be forgotten, in microseconds since 1970. `expire` is the program's
    /// answer in time units: 0 leaves the `current` time, below zero means never.
    fn expire_us(&self, current: u64, expire: f64, unit_us: u32) -> u64 {
        if expire == 0.0 {
            return current;
        }
        if expire < 0.0 {
            return NEVER_US;
        }
        (expire as u64).saturating_mul(u64::from(unit_us)).saturating_add(self.linger_us)
    }

    /// Never forgets a counter, so that a test can move the clock forward and back and still find
    /// all of them.
    #[cfg(test)]
    pub(super) fn remembering(mut self) -> Self {
        self.linger_us = u64::MAX;
        self
    }

    #[cfg(test)]
    pub(super) fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }
}

/// Notes an operation on a counter of `shard`, if it was handed over.
fn note(shard: &Shard, operation: impl FnOnce() -> Operation) {
    if let Some(journal) = shard.journal() {
        journal.note(operation());
    }
}

/// Nothing panics while it holds one of these locks, and what they guard would be whole even then.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Converts microseconds to whole units of `unit_us`.
fn whole_units(us: u64, unit_us: u32) -> u64 {
    us / u64::from(unit_us.max(1))
}
