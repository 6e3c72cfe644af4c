//! What the old process decides after it has sent its last counters: each operation follows over
//! the same socket, and the new process does the same to its own counters.
//!
//! No counter can follow then, as the new process has counted on its own since. A [`Journal`] notes
//! operations under the lock of their shard, from the moment on at which that shard was sent: so
//! each operation is either in a counter that was sent, or follows, and those of one counter follow
//! in order. Must not know what an algorithm computes.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};

use super::format::{FormatError, Kind, Reader, Writer};
use super::{BLOCK_BYTES, Embedded, ReceiveError};
use crate::engine::bytes::Bytes;
use crate::engine::journal::{Journal, Operation};
use crate::engine::{
    Cell, Cells, ChargeReply, Engine, Key, NUMBERS_MAX, Part, Program, Space, script_texts,
};

/// Maximum number of operations that wait to be sent. Those beyond it are lost, and counted.
const WAITING_MAX: usize = 16_384;
/// Maximum number of counters remembered that were charged less than was spent.
const SHORT_MAX: usize = 65_536;
/// What an operation begins with.
const SPENT: u8 = 1;
const GIVEN_BACK: u8 = 2;
const RESET: u8 = 3;

/// Identifies a program in both processes, which may be of different versions.
type TextDigest = [u8; 16];

fn text_digest(program: &Program) -> TextDigest {
    super::format::shortened(blake3::hash(program.text.as_bytes()))
}

impl Operation {
    fn write(&self, texts: &mut Texts, out: &mut Vec<u8>) {
        let (kind, key) = match self {
            Self::Spent(cell) => (SPENT, &cell.key),
            Self::GivenBack(cell, _) => (GIVEN_BACK, &cell.key),
            Self::Reset(key) => (RESET, key),
        };
        out.push(kind);
        for digest in [key.tag, key.key, key.space.digest] {
            out.extend_from_slice(&digest.to_le_bytes());
        }
        let (Self::Spent(cell) | Self::GivenBack(cell, _)) = self else { return };
        out.extend_from_slice(&texts.digest(cell.program));
        out.extend_from_slice(&cell.unit_us.to_le_bytes());
        out.extend_from_slice(&cell.cost.to_le_bytes());
        for number in cell.numbers {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&cell.member.to_le_bytes());
        if let Self::GivenBack(_, taken_at_us) = self {
            out.extend_from_slice(&taken_at_us.to_le_bytes());
        }
    }

    /// Reads one operation; `Some(None)` is one of a program that this process does not have.
    fn read(bytes: &mut Bytes<'_>, programs: &mut Programs) -> Option<Option<Self>> {
        let kind = bytes.u8()?;
        let (tag, key) = (bytes.u128()?, bytes.u128()?);
        // Counters are found by digests alone. The space came with the counters, or is noted when
        // the new process uses it.
        let space = Arc::new(Space { text: String::new(), digest: bytes.u128()? });
        let key = Key { tag, key, space };
        if kind == RESET {
            return Some(Some(Self::Reset(key)));
        }
        let program = programs.find(bytes.array()?);
        let (unit_us, cost) = (bytes.u32()?, bytes.u64()?);
        let mut numbers = [0; NUMBERS_MAX];
        for number in &mut numbers {
            *number = i64::from_le_bytes(bytes.array()?);
        }
        let member = bytes.u128()?;
        let cell = program.map(|program| Cell {
            program,
            key,
            unit_us,
            shadow: false,
            part: Part::Alone,
            cost,
            numbers,
            member,
        });
        match kind {
            SPENT => Some(cell.map(Self::Spent)),
            GIVEN_BACK => {
                let taken_at_us = bytes.u64()?;
                Some(cell.map(|cell| Self::GivenBack(cell, taken_at_us)))
            }
            _ => None,
        }
    }
}

/// The digests of the programs that were used.
#[derive(Default)]
struct Texts(Vec<(&'static Program, TextDigest)>);

impl Texts {
    fn digest(&mut self, program: &'static Program) -> TextDigest {
        if let Some((_, digest)) = self.0.iter().find(|(known, _)| std::ptr::eq(*known, program)) {
            return *digest;
        }
        let digest = text_digest(program);
        self.0.push((program, digest));
        digest
    }
}

/// The programs whose digests were read.
#[derive(Default)]
struct Programs(HashMap<TextDigest, Option<&'static Program>>);

impl Programs {
    fn find(&mut self, digest: TextDigest) -> Option<&'static Program> {
        *self.0.entry(digest).or_insert_with(|| {
            script_texts::all().into_iter().find(|program| text_digest(program) == digest)
        })
    }
}

/// How many operations followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationCounts {
    /// Those that were sent, or done.
    pub done: u64,
    /// Those that were not: too many at once, no room for the counter, or a program that the new
    /// process does not have.
    pub lost: u64,
}

/// Sends operations to the new process.
pub struct OperationSender<W> {
    writer: Writer<W>,
    receiver: Receiver<Operation>,
    lost: Arc<AtomicU64>,
}

impl<W> std::fmt::Debug for OperationSender<W> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("SendingOperations")
    }
}

impl<W: Write> OperationSender<W> {
    /// Its journal ends when the last copy of it is dropped.
    pub(super) fn new(writer: Writer<W>) -> (Self, Journal) {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let lost = Arc::new(AtomicU64::new(0));
        let journal = Journal::new(sender, Arc::clone(&lost));
        (Self { writer, receiver, lost }, journal)
    }

    pub(super) fn writer(&mut self) -> &mut Writer<W> {
        &mut self.writer
    }

    /// Sends each operation as it comes, until [`Engine::end_operations`].
    ///
    /// # Errors
    /// The other process is gone.
    pub fn run(mut self) -> io::Result<OperationCounts> {
        let (mut block, mut texts, mut done) = (Vec::new(), Texts::default(), 0);
        loop {
            let operation = match self.receiver.try_recv() {
                Ok(operation) => operation,
                Err(TryRecvError::Disconnected) => break,
                Err(TryRecvError::Empty) => {
                    self.flush(&mut block)?;
                    let Ok(operation) = self.receiver.recv() else { break };
                    operation
                }
            };
            operation.write(&mut texts, &mut block);
            done += 1;
            if block.len() >= BLOCK_BYTES {
                self.flush(&mut block)?;
            }
        }
        self.flush(&mut block)?;
        Ok(OperationCounts { done, lost: self.lost.load(Ordering::Relaxed) })
    }

    fn flush(&mut self, block: &mut Vec<u8>) -> io::Result<()> {
        if !block.is_empty() {
            self.writer.block(Kind::Operations, block)?;
            self.writer.flush()?;
            block.clear();
        }
        Ok(())
    }
}

/// Receives operations from the old process.
pub struct OperationReceiver<R> {
    reader: Reader<R>,
    /// Whether its counters are counted here.
    useful: bool,
}

impl<R> std::fmt::Debug for OperationReceiver<R> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("ReceivingOperations")
    }
}

impl<R: Read> OperationReceiver<R> {
    pub(super) fn new(reader: Reader<R>, useful: bool) -> Self {
        Self { reader, useful }
    }

    /// Does each operation as it comes, until the old process ends.
    ///
    /// # Errors
    /// Something else came than operations.
    pub fn run(mut self, engine: &Engine) -> Result<OperationCounts, ReceiveError> {
        let mut followed = OperationCounts::default();
        let (mut programs, mut short) = (Programs::default(), Shortfall::default());
        while !self.reader.is_at_the_end()? {
            let at = self.reader.at();
            let (Kind::Operations, payload) = self.reader.block()? else {
                return Err(FormatError::Nonsense(at).into());
            };
            let mut bytes = Bytes(payload);
            while !bytes.is_empty() {
                let operation = Operation::read(&mut bytes, &mut programs);
                let operation = operation.ok_or(FormatError::Nonsense(at))?;
                let done = match (engine, operation) {
                    (Engine::Embedded(engine), Some(operation)) if self.useful => {
                        engine.repeat(operation, &mut short)
                    }
                    _ => false,
                };
                followed.done += u64::from(done);
                followed.lost += u64::from(!done);
            }
        }
        Ok(followed)
    }
}

/// Units by counter that were spent in the old process and not charged here. They can't be given
/// back here either.
#[derive(Default)]
struct Shortfall(HashMap<u128, u64>);

impl Shortfall {
    fn add(&mut self, counter: u128, units: u64) {
        if units > 0 && (self.0.len() < SHORT_MAX || self.0.contains_key(&counter)) {
            let short = self.0.entry(counter).or_default();
            *short = short.saturating_add(units);
        }
    }

    /// What is left of a give-back of this many units.
    fn take_off(&mut self, counter: u128, units: u64) -> u64 {
        let Some(short) = self.0.get_mut(&counter) else { return units };
        let off = units.min(*short);
        *short -= off;
        if *short == 0 {
            self.0.remove(&counter);
        }
        units - off
    }
}

impl Embedded {
    /// Applies an operation of the old process to the same counter, at this process's time; returns
    /// whether all of it could be applied. A spend is charged up to what is left plus the debt that
    /// the limit allows.
    fn repeat(&self, operation: Operation, short: &mut Shortfall) -> bool {
        match operation {
            Operation::Spent(cell) => {
                let (cost, id) = (cell.cost, cell.key.id());
                let missing = cost.saturating_sub(self.spend(cell));
                short.add(id, missing);
                missing == 0
            }
            Operation::GivenBack(cell, taken_at_us) => {
                let cost = short.take_off(cell.key.id(), cell.cost);
                let cells = Cells::from_iter([Cell { cost, ..cell }]);
                cost == 0 || self.give_back(&cells, taken_at_us).is_ok()
            }
            Operation::Reset(key) => {
                short.0.remove(&key.id());
                self.reset(&key);
                true
            }
        }
    }

    /// Charges the cell's cost as far as there is room; returns how many units that was.
    fn spend(&self, cell: Cell) -> u64 {
        let (cost, charges) = (cell.cost, script_texts::has_charge(cell.program));
        let cells = Cells::from_iter([cell]);
        if charges {
            let units = |charged: ChargeReply| charged.units.first().copied().flatten();
            return self.charge(&cells).ok().and_then(units).unwrap_or(0);
        }
        if self.take(&cells).is_ok_and(|taken| taken.admitted) { cost } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::AtomicBool;

    use proptest::prelude::*;

    use super::super::super::testing::{ALL, FIXED_WINDOW, SECOND_US, START_US, cell, cost, one};
    use super::super::super::{CellReply, EmbeddedSettings, Kind as ProgramKind, Settings};
    use super::super::{CounterReceiver, CounterSender};
    use super::*;
    use crate::clock::Clock;
    use crate::telemetry::Metrics;

    fn engine(clock: &Clock) -> Engine {
        let settings = Settings::Embedded(EmbeddedSettings::new(1_000_000));
        Engine::build(&settings, clock.clone(), &Metrics::new(1)).unwrap()
    }

    fn embedded(engine: &Engine) -> &Embedded {
        let Engine::Embedded(embedded) = engine else { panic!() };
        embedded
    }

    /// The `nth` counter: of each algorithm two keys that share a tag.
    fn counter(nth: usize) -> Cell {
        let quota = if nth.is_multiple_of(2) { 10 } else { 50 };
        let mut cell = cell(ALL[nth / 2], &nth.to_string(), quota, 60 * SECOND_US, quota);
        // A debt, where there is one.
        match cell.program.name {
            "fixed_window" | "sliding_window_counter" | "sliding_window_log" => cell.numbers[2] = 7,
            "sliding_window_buckets" | "token_bucket" | "gcra" => cell.numbers[3] = 7,
            _ => {}
        }
        cell
    }

    #[derive(Clone, Debug)]
    enum Action {
        Take { counters: Vec<usize>, cost: u64 },
        Charge { counter: usize, cost: u64 },
        GiveBack { take: prop::sample::Index, cost: u64 },
        Reset { counter: usize },
    }

    fn act() -> impl Strategy<Value = Action> {
        let counter = || 0..2 * ALL.len();
        let counters = prop::collection::hash_set(counter(), 1..3);
        prop_oneof![
            6 => (counters, 0..6_u64).prop_map(|(counters, cost)| {
                Action::Take { counters: counters.into_iter().collect(), cost }
            }),
            2 => (counter(), 1..9_u64).prop_map(|(counter, cost)| Action::Charge { counter, cost }),
            2 => (any::<prop::sample::Index>(), 1..4_u64)
                .prop_map(|(take, cost)| Action::GiveBack { take, cost }),
            1 => counter().prop_map(|counter| Action::Reset { counter }),
        ]
    }

    /// An engine, and what was taken from it.
    struct Used<'a>(&'a Embedded, Vec<(Cell, u64)>);

    impl Used<'_> {
        fn act(&mut self, act: &Action, member: u128) {
            match act {
                Action::Take { counters, cost: units } => {
                    let cells = counters.iter().map(|nth| Cell { member, ..counter(*nth) });
                    let cells: Cells = cells.map(|cell| cost(&cell, *units)).collect();
                    let taken = self.0.take(&cells).unwrap();
                    if taken.admitted {
                        self.1.extend(cells.into_iter().map(|cell| (cell, taken.at_us)));
                    }
                }
                Action::Charge { counter: nth, cost: units } => {
                    let cell = Cell { member, ..cost(&counter(*nth), *units) };
                    if script_texts::has_charge(cell.program) {
                        self.0.charge(&one(&cell)).unwrap();
                    }
                }
                Action::GiveBack { take, cost: units } => {
                    if let Some((cell, at_us)) = self.1.get(take.index(self.1.len().max(1))) {
                        let units = (*units).min(cell.cost);
                        self.0.give_back(&one(&cost(cell, units)), *at_us).unwrap();
                    }
                }
                Action::Reset { counter: nth } => self.0.reset(&counter(*nth).key),
            }
        }

        /// What each counter answers, but leases: they end with their process.
        fn answers(&self) -> Vec<(&'static str, CellReply)> {
            let counters = (0..2 * ALL.len()).map(counter);
            let counters = counters.filter(|cell| cell.program.kind != ProgramKind::Leases);
            let look = |cell: Cell| (cell.program.name, self.0.look(&one(&cell)).unwrap().cells[0]);
            counters.map(look).collect()
        }
    }

    proptest! {
        /// The oracle is one engine that does everything itself.
        #[test]
        fn the_new_process_counts_as_if_it_had_done_it_all(
            acts in prop::collection::vec((act(), 0..9_000_000_u64), 1..60),
            begins in 0..60_usize,
            ends in 0..60_usize,
        ) {
            let clock = Clock::virtual_at(START_US as i64);
            let (whole, old, new) = (engine(&clock), engine(&clock), engine(&clock));
            let mut whole = Used(embedded(&whole), Vec::new());
            let mut used = Used(embedded(&old), Vec::new());
            let (begins, ends) = (begins.min(acts.len()), begins.max(ends).min(acts.len()));
            let mut acts = acts.iter().zip((1_u128..).map(|number| number << 32));
            let mut both = |acts: &mut dyn Iterator<Item = (&(Action, u64), u128)>, waits: bool| {
                for ((act, wait_us), member) in acts {
                    if waits {
                        clock.step(*wait_us as i64);
                    }
                    whole.act(act, member);
                    used.act(act, member);
                }
            };
            both(&mut acts.by_ref().take(begins), true);
            let mut bytes = Vec::new();
            let sending = CounterSender::begin(&old, &mut bytes).unwrap();
            both(&mut acts.by_ref().take(ends - begins), true);
            let (_, operations) = sending.finish().unwrap();
            // All at once, as the new process does them later.
            both(&mut acts, false);
            old.end_operations();
            let sent = operations.run().unwrap();
            let (receiving, _) = CounterReceiver::begin(&new, bytes.as_slice()).unwrap();
            let (_, operations) = receiving.finish(&new).unwrap();
            let received = operations.run(&new).unwrap();
            prop_assert_eq!((received.done, sent.lost, received.lost), (sent.done, 0, 0));
            let new = Used(embedded(&new), Vec::new());
            prop_assert_eq!(new.answers(), whole.answers());
        }
    }

    #[test]
    fn nothing_is_lost_or_counted_twice_while_threads_take() {
        const THREADS: u128 = 3;
        const QUOTA: u64 = 1_000_000_000;
        let clock = Clock::virtual_at(START_US as i64);
        let (old, new) = (engine(&clock), engine(&clock));
        let limit = |tag: u128| {
            let limit = cell(&FIXED_WINDOW, "busy", QUOTA, 60 * SECOND_US, 0);
            Cell { key: Key { tag: tag % 700, ..limit.key.clone() }, ..limit }
        };
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (stop, taken) = (AtomicBool::new(false), AtomicU64::new(0));
        let (sent, received) = std::thread::scope(|scope| {
            let takers: Vec<_> = (0..THREADS)
                .map(|first| {
                    let (old, stop, taken) = (embedded(&old), &stop, &taken);
                    scope.spawn(move || {
                        let mut tag = first;
                        while !stop.load(Ordering::Relaxed) {
                            assert!(old.take(&one(&limit(tag))).unwrap().admitted);
                            taken.fetch_add(1, Ordering::Relaxed);
                            tag += THREADS;
                        }
                    })
                })
                .collect();
            let receiver = scope.spawn(|| {
                let (receiving, _) = CounterReceiver::begin(&new, &theirs).unwrap();
                let (_, operations) = receiving.finish(&new).unwrap();
                operations.run(&new).unwrap()
            });
            let mut sending = CounterSender::begin(&old, ours).unwrap();
            sending.catch_up().unwrap();
            let (_, operations) = sending.finish().unwrap();
            let sender = scope.spawn(move || operations.run().unwrap());
            // Each thread may have counted one take that came before the end of the counters.
            let noted = taken.load(Ordering::Relaxed) + THREADS as u64;
            while taken.load(Ordering::Relaxed) <= noted {
                std::thread::yield_now();
            }
            stop.store(true, Ordering::Relaxed);
            for taker in takers {
                taker.join().unwrap();
            }
            old.end_operations();
            (sender.join().unwrap(), receiver.join().unwrap())
        });
        assert!(sent.done > 0 && sent.done == received.done, "{sent:?} {received:?}");
        let left = |tag| embedded(&new).look(&one(&limit(tag))).unwrap().cells[0].remaining;
        let used: u64 = (0..700).map(|tag| QUOTA - left(tag)).sum();
        // What could not be sent as fast as it came is reported, and not counted.
        assert_eq!(used, taken.load(Ordering::Relaxed) - sent.lost);
    }

    #[test]
    fn once_operations_are_lost_nothing_is_given_back() {
        let clock = Clock::virtual_at(START_US as i64);
        let (old, new, mut bytes) = (engine(&clock), engine(&clock), Vec::new());
        let limit = cell(&FIXED_WINDOW, "many", 1_000_000, 60 * SECOND_US, 0);
        let (_, operations) = CounterSender::begin(&old, &mut bytes).unwrap().finish().unwrap();
        let take = |_, _| embedded(&old).take(&one(&limit)).unwrap().at_us;
        let at_us = (0..WAITING_MAX + 5).fold(0, take);
        // There is room again, for the give-back of what was lost.
        operations.receiver.recv().unwrap();
        embedded(&old).give_back(&one(&limit), at_us).unwrap();
        old.end_operations();
        let sent = operations.run().unwrap();
        assert_eq!(sent, OperationCounts { done: WAITING_MAX as u64 - 1, lost: 6 });
        let (receiving, _) = CounterReceiver::begin(&new, bytes.as_slice()).unwrap();
        receiving.finish(&new).unwrap().1.run(&new).unwrap();
        let left = embedded(&new).look(&one(&limit)).unwrap().cells[0].remaining;
        assert_eq!(left, 1_000_000 - sent.done);
    }

    /// Both processes decide, and the new one has no room for all that the old one spent.
    #[test]
    fn charges_without_room_are_not_given_back_either() {
        // Leases end with their process, and are not handed over.
        let charged = |program: &&Program| {
            script_texts::has_charge(program) && program.kind != ProgramKind::Leases
        };
        for program in ALL.into_iter().filter(charged) {
            let clock = Clock::virtual_at(START_US as i64);
            let (old, new, mut bytes) = (engine(&clock), engine(&clock), Vec::new());
            let limit = Cell { member: 1 << 32, ..cell(program, "short", 10, 60 * SECOND_US, 10) };
            let (_, operations) = CounterSender::begin(&old, &mut bytes).unwrap().finish().unwrap();
            let at_us = embedded(&old).take(&one(&cost(&limit, 5))).unwrap().at_us;
            embedded(&old).give_back(&one(&cost(&limit, 5)), at_us).unwrap();
            old.end_operations();
            operations.run().unwrap();
            let (receiving, _) = CounterReceiver::begin(&new, bytes.as_slice()).unwrap();
            let (_, operations) = receiving.finish(&new).unwrap();
            let others = Cell { member: 2 << 32, ..cost(&limit, 8) };
            assert!(embedded(&new).take(&one(&others)).unwrap().admitted);
            let followed = operations.run(&new).unwrap();
            assert_eq!(followed, OperationCounts { done: 1, lost: 1 }, "{}", program.name);
            let left = embedded(&new).look(&one(&limit)).unwrap().cells[0].remaining;
            assert_eq!(left, 2, "{}: 8 are used", program.name);
        }
    }

    #[test]
    fn a_program_that_the_new_process_does_not_have_is_reported() {
        static OTHER: Program = Program {
            name: "other",
            text: "return { take = take, give_back = give_back } -- another",
            kind: ProgramKind::Numbers,
            state: 3,
            numbers: 4,
        };
        let clock = Clock::virtual_at(START_US as i64);
        let (old, new, mut bytes) = (engine(&clock), engine(&clock), Vec::new());
        let sending = CounterSender::begin(&old, &mut bytes).unwrap();
        let (_, operations) = sending.finish().unwrap();
        let limit = cell(&FIXED_WINDOW, "one", 10, 60 * SECOND_US, 0);
        let shard = embedded(&old).shard_at((limit.key.tag as usize) & 0xff).unwrap();
        shard.journal().unwrap().note(Operation::Spent(Cell { program: &OTHER, ..limit.clone() }));
        drop(shard);
        embedded(&old).take(&one(&limit)).unwrap();
        old.end_operations();
        assert_eq!(operations.run().unwrap(), OperationCounts { done: 2, lost: 0 });
        let (receiving, _) = CounterReceiver::begin(&new, bytes.as_slice()).unwrap();
        let (_, operations) = receiving.finish(&new).unwrap();
        assert_eq!(operations.run(&new).unwrap(), OperationCounts { done: 1, lost: 1 });
        assert_eq!(embedded(&new).look(&one(&limit)).unwrap().cells[0].remaining, 9);
    }
}
