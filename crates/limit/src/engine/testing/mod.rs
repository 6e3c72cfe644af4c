//! Shared by the engine's tests: the programs, cells, a store whose time the test controls (in
//! memory, or a real Redis), and real servers that stop when dropped.

mod servers;

use std::collections::HashMap;
use std::sync::Arc;

pub(crate) use servers::{Cluster, Server, free_port, wait_until};

use super::driver::{self, Script, Verb};
use super::{
    Cell, Cells, ChargeReply, Embedded, EmbeddedSettings, Key, Kind, LeaseCall, LeaseReply, Part,
    Program, Space, TakeReply,
};
use crate::clock::Clock;
use crate::telemetry::Metrics;

macro_rules! program {
    ($constant:ident, $name:literal, $kind:ident, $state:literal, $numbers:literal) => {
        pub(super) static $constant: Program = Program {
            name: $name,
            text: include_str!(concat!("../../../../../lua/", $name, ".lua")),
            kind: Kind::$kind,
            state: $state,
            numbers: $numbers,
        };
    };
}

program!(FIXED_WINDOW, "fixed_window", Numbers, 3, 4);
program!(SLIDING_WINDOW_COUNTER, "sliding_window_counter", Numbers, 3, 3);
program!(SLIDING_WINDOW_LOG, "sliding_window_log", Log, 0, 3);
program!(SLIDING_WINDOW_BUCKETS, "sliding_window_buckets", Buckets, 0, 4);
program!(TOKEN_BUCKET, "token_bucket", Numbers, 3, 4);
program!(GCRA, "gcra", Numbers, 3, 4);
program!(LEAKY_BUCKET, "leaky_bucket", Numbers, 3, 5);
program!(CONCURRENCY, "concurrency", Leases, 0, 3);
program!(QUOTA, "quota", Numbers, 3, 7);

/// All programs that ship with Weir.
pub(super) static ALL: [&Program; 9] = [
    &FIXED_WINDOW,
    &SLIDING_WINDOW_COUNTER,
    &SLIDING_WINDOW_LOG,
    &SLIDING_WINDOW_BUCKETS,
    &TOKEN_BUCKET,
    &GCRA,
    &LEAKY_BUCKET,
    &CONCURRENCY,
    &QUOTA,
];
/// Those with a rate, which report when to retry.
pub(super) static RATES: [&Program; 7] = [
    &FIXED_WINDOW,
    &SLIDING_WINDOW_COUNTER,
    &SLIDING_WINDOW_LOG,
    &SLIDING_WINDOW_BUCKETS,
    &TOKEN_BUCKET,
    &GCRA,
    &LEAKY_BUCKET,
];

pub(super) const SECOND_US: u64 = 1_000_000;
/// Tests that control the time start here, in 2039, so that Redis' own clock does not expire what
/// they write.
pub(super) const START_US: u64 = 2_200_000_000_000_000;
/// Number of sub-windows in [`cell`].
const BUCKETS: u64 = 10;

/// A cell of cost 1 in microseconds, under tag 1 and a key of its own name. Numbers other than
/// quota, period and burst are filled in: a tenth of the period as a sub-window, no delay, the
/// period as a lease's length, periods of a calendar around the start.
pub(super) fn cell(
    program: &'static Program,
    name: &str,
    quota: u64,
    period_us: u64,
    burst: u64,
) -> Cell {
    let digest = name.bytes().chain(program.name.bytes()).fold(7_u128, |digest, byte| {
        digest.wrapping_mul(0x0100_0000_01b3).wrapping_add(byte.into())
    });
    let space = Arc::new(Space { text: format!("test/{name}/{}", program.name), digest });
    let key = Key { tag: 1, key: 2, space };
    let [quota, period, burst] = [quota as i64, period_us as i64, burst as i64];
    let numbers = match program.name {
        "fixed_window" | "sliding_window_counter" | "sliding_window_log" | "concurrency" => {
            [quota, period, 0, 0, 0, 0, 0]
        }
        "sliding_window_buckets" => {
            [quota, period_us.div_ceil(BUCKETS) as i64, BUCKETS as i64, 0, 0, 0, 0]
        }
        "leaky_bucket" => [quota, period, burst, 0, 1, 0, 0],
        "quota" => {
            let this = START_US as i64 / period * period;
            [quota, 1, this - period, this, this + period, this + 2 * period, 0]
        }
        _ => [quota, period, burst, 0, 0, 0, 0],
    };
    let part = Part::Alone;
    Cell { program, key, unit_us: 1, shadow: false, part, cost: 1, numbers, member: 0 }
}

pub(super) fn cost(cell: &Cell, cost: u64) -> Cell {
    Cell { cost, ..cell.clone() }
}

pub(super) fn one(cell: &Cell) -> Cells {
    Cells::from_iter([cell.clone()])
}

/// A call on a store at an instant.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) now_us: u64,
    pub(super) verb: Verb,
    pub(super) cells: Cells,
    pub(super) taken_at_us: u64,
}

impl Event {
    /// Whether the store answers with a decision, or with what it charged.
    pub(super) fn answers(&self) -> bool {
        matches!(self.verb, Verb::Take | Verb::Look | Verb::Charge)
    }
}

/// A store's answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Taken(TakeReply),
    Charged(ChargeReply),
}

impl Answer {
    pub(super) fn taken(&self) -> Option<&TakeReply> {
        if let Self::Taken(taken) = self { Some(taken) } else { None }
    }
}

/// A store whose time the test controls.
pub(super) enum Store {
    Embedded(Box<Embedded>, Clock),
    Redis(Box<RedisStore>),
}

/// The programs of a call's cells, and what they are to each other.
type Programs = Vec<(&'static str, Part)>;

/// A real Redis, under a prefix of its own. It runs the driver's scripts, except for how they read
/// the time.
pub(super) struct RedisStore {
    conn: ::redis::Connection,
    prefix: String,
    /// The digests of the scripts loaded so far.
    known: HashMap<(Verb, Programs), String>,
    _server: Arc<Server>,
}

/// A store and its present time.
pub(super) struct TimedStore {
    pub(super) store: Store,
    pub(super) now_us: u64,
    /// The name of the last take whose test gave none.
    takes: u128,
}

impl TimedStore {
    /// A store in memory, without expiry, so that every counter is found again when the clock steps
    /// back.
    pub(super) fn embedded() -> Self {
        Self::in_memory(Embedded::remembering)
    }

    /// A store in memory, with expiry, as in the proxy.
    pub(super) fn forgetting() -> Self {
        Self::in_memory(|embedded| embedded)
    }

    fn in_memory(change: fn(Embedded) -> Embedded) -> Self {
        let clock = Clock::virtual_at(START_US as i64);
        let settings = EmbeddedSettings::new(1_000_000);
        let embedded = change(Embedded::new(&settings, clock.clone(), &Metrics::new(1)));
        Self::of(Store::Embedded(Box::new(embedded), clock))
    }

    pub(super) fn redis() -> Self {
        Self::on(Server::shared())
    }

    pub(super) fn on(server: Arc<Server>) -> Self {
        let conn = server.client().get_connection().unwrap();
        Self::of(Store::Redis(Box::new(RedisStore {
            conn,
            prefix: prefix(),
            known: HashMap::new(),
            _server: server,
        })))
    }

    fn of(store: Store) -> Self {
        Self { store, now_us: START_US, takes: 0 }
    }

    /// Both engines.
    pub(super) fn engines() -> [(&'static str, Self); 2] {
        [("embedded", Self::embedded()), ("redis", Self::redis())]
    }

    pub(super) fn step(&mut self, us: i64) {
        self.now_us = self.now_us.checked_add_signed(us).unwrap();
    }

    pub(super) fn take(&mut self, cells: &Cells) -> TakeReply {
        let mut cells = cells.clone();
        self.takes += 1 << 32;
        cells.iter_mut().filter(|cell| cell.member == 0).for_each(|cell| cell.member = self.takes);
        self.apply(Verb::Take, cells, 0).and_then(|answer| answer.taken().cloned()).unwrap()
    }

    pub(super) fn look(&mut self, cells: &Cells) -> TakeReply {
        let answer = self.apply(Verb::Look, cells.clone(), 0);
        answer.and_then(|answer| answer.taken().cloned()).unwrap()
    }

    /// How many keys it holds.
    pub(super) fn keys(&mut self) -> usize {
        match &mut self.store {
            Store::Embedded(embedded, _) => embedded.keys(),
            Store::Redis(redis) => redis.keys(),
        }
    }

    pub(super) fn give_back(&mut self, cells: &Cells, taken_at_us: u64) {
        self.apply(Verb::GiveBack, cells.clone(), taken_at_us);
    }

    /// Charges one cell; returns the units charged, none if the time is outside its periods.
    pub(super) fn charge(&mut self, cell: &Cell) -> u64 {
        self.takes += 1 << 32;
        let cells = one(&Cell { member: self.takes, ..cell.clone() });
        match self.apply(Verb::Charge, cells, 0) {
            Some(Answer::Charged(charged)) => charged.units[0].unwrap_or(0),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn renew(&mut self, cells: &Cells) {
        self.apply(Verb::Renew, cells.clone(), 0);
    }

    fn apply(&mut self, verb: Verb, cells: Cells, taken_at_us: u64) -> Option<Answer> {
        self.replay(&[Event { now_us: self.now_us, verb, cells, taken_at_us }]).pop()
    }

    /// Makes all calls, on Redis in one pipeline; returns the answers of takes, looks and charges.
    pub(super) fn replay(&mut self, events: &[Event]) -> Vec<Answer> {
        let (embedded, clock) = match &mut self.store {
            Store::Redis(redis) => return redis.replay(events),
            Store::Embedded(embedded, clock) => (embedded, clock),
        };
        let answers = events.iter().filter_map(|Event { now_us, verb, cells, taken_at_us }| {
            clock.set(*now_us as i64);
            match verb {
                Verb::Take => return Some(Answer::Taken(embedded.take(cells).unwrap())),
                Verb::Look => return Some(Answer::Taken(embedded.look(cells).unwrap())),
                Verb::Charge => return Some(Answer::Charged(embedded.charge(cells).unwrap())),
                Verb::GiveBack => embedded.give_back(cells, *taken_at_us).unwrap(),
                Verb::Renew => embedded.renew(cells),
                Verb::Lease => panic!("there are no leases in memory"),
            }
            None
        });
        answers.collect()
    }

    pub(super) fn on_redis(&mut self) -> &mut RedisStore {
        match &mut self.store {
            Store::Redis(redis) => redis,
            _ => panic!("this store is not Redis"),
        }
    }

    /// Takes one cell; returns whether it was admitted.
    pub(super) fn fits(&mut self, cell: &Cell) -> bool {
        self.take(&one(cell)).admitted
    }

    /// Takes until refused; returns how many were admitted.
    pub(super) fn drain(&mut self, cell: &Cell) -> u64 {
        (0..).take_while(|_| self.fits(cell)).count() as u64
    }

    /// What a take of cost 0 reports as left.
    pub(super) fn left(&mut self, cell: &Cell) -> u64 {
        self.take(&one(&cost(cell, 0))).cells[0].remaining
    }
}

fn prefix() -> String {
    format!("t{:x}", fastrand::u64(..))
}

impl RedisStore {
    /// Number of scripts loaded before the server is flushed.
    const KNOWN_MAX: usize = 500;

    /// Switches to an unused prefix. Needs a server of its own, as the server is flushed now and
    /// then.
    pub(super) fn use_new_prefix(&mut self) {
        self.prefix = prefix();
        if self.known.len() > Self::KNOWN_MAX {
            ::redis::pipe()
                .cmd("SCRIPT")
                .arg("FLUSH")
                .ignore()
                .cmd("FLUSHALL")
                .ignore()
                .exec(&mut self.conn)
                .unwrap();
            self.known.clear();
        }
    }

    fn replay(&mut self, events: &[Event]) -> Vec<Answer> {
        if events.is_empty() {
            return Vec::new();
        }
        let mut pipe = ::redis::pipe();
        for Event { now_us, verb, cells, taken_at_us } in events {
            let programs = cells.iter().map(|cell| (cell.program.name, cell.part)).collect();
            let sha = self.known.entry((*verb, programs)).or_insert_with(|| {
                let script = Script::with_time(*verb, cells, "local us = tonumber(ARGV[#ARGV])\n");
                pipe.cmd("SCRIPT").arg("LOAD").arg(&script.text).ignore();
                script.sha
            });
            let command = pipe.cmd("EVALSHA").arg(&*sha).arg(cells.len());
            cells.iter().for_each(|cell| _ = command.arg(cell.key.text(&self.prefix)));
            cells.iter().for_each(|cell| {
                _ = command.arg(driver::argument(*verb, cell, *taken_at_us).as_slice())
            });
            command.arg(now_us);
        }
        let answers: Vec<::redis::Value> = pipe.query(&mut self.conn).unwrap();
        let takes = events.iter().zip(&answers).filter(|(event, _)| event.answers());
        let parse = |(event, answer): (&Event, &::redis::Value)| match event.verb {
            Verb::Charge => {
                Answer::Charged(super::redis::parse_charged(answer, event.cells.len()).unwrap())
            }
            _ => Answer::Taken(super::redis::parse_taken(answer, event.cells.len()).unwrap()),
        };
        takes.map(parse).collect()
    }

    /// Takes units of one cell in advance.
    pub(super) fn lease(&mut self, now_us: u64, cell: &Cell, lease: LeaseCall<'_>) -> LeaseReply {
        let script =
            Script::with_time(Verb::Lease, &one(cell), "local us = tonumber(ARGV[#ARGV])\n");
        let name = cell.key.text(&self.prefix);
        let numbers = [lease.needed, lease.units, lease.life_ms].map(|number| number as f64);
        let numbers: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let answer = ::redis::cmd("EVAL")
            .arg(&script.text)
            .arg(3)
            .arg([name.clone(), format!("{name}:holders"), format!("{name}:leased")].as_slice())
            .arg(driver::argument(Verb::Lease, cell, 0).as_slice())
            .arg(numbers)
            .arg(lease.holder)
            .arg(now_us)
            .query(&mut self.conn)
            .unwrap();
        super::redis::parse_leased(&answer).unwrap()
    }

    /// When each counter's key expires, in milliseconds since 1970; -1: never, -2: there is no such
    /// key.
    pub(super) fn lifetimes(&mut self, cells: &[Cell]) -> Vec<i64> {
        if cells.is_empty() {
            return Vec::new();
        }
        let mut pipe = ::redis::pipe();
        cells.iter().for_each(|cell| _ = pipe.cmd("PEXPIRETIME").arg(cell.key.text(&self.prefix)));
        pipe.query(&mut self.conn).unwrap()
    }

    /// How many keys it holds under its prefix.
    pub(super) fn keys(&mut self) -> usize {
        ::redis::cmd("KEYS")
            .arg(format!("{}:*", self.prefix))
            .query::<Vec<String>>(&mut self.conn)
            .unwrap()
            .len()
    }
}
