//! Counters on Redis: one script per call, within one deadline, and never run twice.
//!
//! Each worker has one connection to each node, and nothing that one of them waits for holds up the
//! others. A command is sent again only after an answer that proves that nothing ran, within the
//! deadline. redis-rs gives the commands and parses the replies.
//!
//! Read next: `lease` (units that are taken in advance), `send` (how a command finds its node),
//! `link` (a worker's connections and scripts), `pipeline` (a worker's connection to a node),
//! `calls` (which reply belongs to which call), `failure` (what an error means), `watch` (which
//! node owns which slot), `owners` (how that is read), `connector` (how connections are opened).
//! Must not know what a program computes.

mod advice;
mod calls;
mod connector;
mod failure;
mod find;
mod lease;
mod link;
mod outage;
mod owners;
mod pipeline;
mod resp;
mod scripts;
mod send;
mod topology;
mod watch;

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use ::redis::Value;
use futures_util::future::join_all;
use smallvec::SmallVec;

pub use self::advice::Advice;
use self::connector::Connector;
use self::link::Link;
use self::outage::NO_MASTER;
use self::watch::Watch;
use super::driver::{self, Script, Verb};
use super::{
    Cause, CellReply, Cells, ChargeReply, EngineError, Execution, Key, OUTSIDE, RedisSettings,
    Space, TakeReply, UNCHARGED,
};
use crate::clock;
use crate::telemetry::{Counter, CounterSet, Metrics, SettingError, names};

/// Does what a take needs permission, memory and replicas for, and writes nothing. With a key, it
/// also needs the key's slot and access to the key.
const CHECK: &str = "#!lua\nreturn 1";

static NEXT_ID: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// This worker's links, one per engine: few, since a reload overlaps two engines.
    static LINKS: RefCell<Vec<(u64, Arc<Link>)>> = const { RefCell::new(Vec::new()) };
}

/// Counters on a Redis Cluster or a single Redis server.
pub struct Redis {
    id: u64,
    key_prefix: String,
    deadline: Duration,
    connector: Arc<Connector>,
    watch: Arc<Watch>,
    /// All workers' links. They are closed when the engine is dropped, since an idle worker would
    /// otherwise keep its connections.
    links: Mutex<Vec<Weak<Link>>>,
    failures: CounterSet<Cause>,
    unknown: Counter,
}

impl std::fmt::Debug for Redis {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Redis {{ id: {}, deadline: {:?} }}", self.id, self.deadline)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.watch.close();
        let links = std::mem::take(&mut *self.links.lock().unwrap_or_else(PoisonError::into_inner));
        links.iter().filter_map(Weak::upgrade).for_each(|link| link.close());
    }
}

/// A script call on some cells.
struct Request<'c> {
    verb: Verb,
    cells: &'c Cells,
    key_prefix: &'c str,
    script: &'c Script,
    taken_at_us: u64,
}

impl Request<'_> {
    /// Writes EVALSHA, or EVAL with the whole text for a server that does not have the script yet.
    fn write(&self, with_text: bool, out: &mut Vec<u8>) {
        resp::begin(out, 3 + 2 * self.cells.len());
        if with_text {
            resp::word(out, b"EVAL");
            resp::word(out, self.script.text.as_bytes());
        } else {
            resp::word(out, b"EVALSHA");
            resp::word(out, self.script.sha.as_bytes());
        }
        resp::word(out, itoa::Buffer::new().format(self.cells.len()).as_bytes());
        for cell in self.cells {
            let bytes = cell.key.text_bytes(self.key_prefix);
            resp::word_of(out, bytes, |out| cell.key.write(self.key_prefix, out));
        }
        for cell in self.cells {
            resp::word(out, &driver::argument(self.verb, cell, self.taken_at_us));
        }
    }
}

impl Redis {
    pub(super) fn new(settings: &RedisSettings, metrics: &Metrics) -> Result<Self, SettingError> {
        if settings.key_prefix.contains(['{', '}']) {
            let expected = "a prefix without braces: they would put every key on one slot";
            return Err(SettingError::new(
                "redis.key_prefix",
                format!("{:?}", settings.key_prefix),
                expected,
            ));
        }
        let connector = Arc::new(Connector::new(settings)?);
        Ok(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            key_prefix: settings.key_prefix.clone(),
            deadline: settings.deadline,
            watch: Arc::new(Watch::new(settings.mode, &connector)),
            connector,
            links: Mutex::new(Vec::new()),
            failures: metrics.counters(names::STORE_ERRORS, &[]),
            unknown: metrics.counter(names::TAKES_UNKNOWN, &[]),
        })
    }

    pub(super) async fn take(
        &self,
        cells: &Cells,
        left: Duration,
    ) -> Result<TakeReply, EngineError> {
        self.decide(Verb::Take, cells, left).await.inspect_err(|error| {
            if error.ran == Execution::Unknown {
                self.unknown.inc();
            }
        })
    }

    pub(super) async fn look(
        &self,
        cells: &Cells,
        left: Duration,
    ) -> Result<TakeReply, EngineError> {
        self.decide(Verb::Look, cells, left)
            .await
            .map_err(|error| EngineError { ran: Execution::No, ..error })
    }

    async fn decide(
        &self,
        verb: Verb,
        cells: &Cells,
        left: Duration,
    ) -> Result<TakeReply, EngineError> {
        if left == Duration::ZERO {
            // The caller's time ran out before anything was sent, so this says nothing about the
            // shard.
            let error = EngineError { cause: Cause::Timeout, ran: Execution::No };
            self.failures.inc(error.cause);
            return Err(error);
        }
        let answer = self.call(verb, cells, 0, left).await?;
        parse_taken(&answer, cells.len())
    }

    /// The position of the master of a counter's slot among all masters; 0 while none is known.
    pub(super) fn shard_of(&self, key: &Key) -> usize {
        self.watch.topology().and_then(|topology| topology.shard(key.slot())).unwrap_or(0)
    }

    pub(super) async fn give_back(
        &self,
        cells: &Cells,
        taken_at_us: u64,
    ) -> Result<(), EngineError> {
        let answer = self.call(Verb::GiveBack, cells, taken_at_us, self.deadline).await;
        answer.map(|_| ()).map_err(|error| match error.cause {
            // All cells but that of the script are given back.
            Cause::Script => EngineError { ran: Execution::Unknown, ..error },
            _ => error,
        })
    }

    pub(super) async fn charge(&self, cells: &Cells) -> Result<ChargeReply, EngineError> {
        let answer = self.call(Verb::Charge, cells, 0, self.deadline).await?;
        parse_charged(&answer, cells.len())
    }

    pub(super) async fn renew(&self, cells: &Cells) -> Result<(), EngineError> {
        self.call(Verb::Renew, cells, 0, self.deadline).await.map(|_| ())
    }

    pub(super) async fn reset(&self, key: &Key) -> Result<(), EngineError> {
        let (link, name) = (self.link(), key.text(&self.key_prefix));
        let delete = |_, out: &mut Vec<u8>| {
            resp::begin(out, 2);
            resp::word(out, b"DEL");
            resp::word(out, name.as_bytes());
        };
        let outcome = link.send(key.slot(), self.until(self.deadline), delete).await;
        self.record(&link, key.slot(), outcome).map(|_| ())
    }

    /// The nodes that could not be connected to, each with the reason.
    pub(super) fn unreached(&self) -> Vec<(String, String)> {
        self.connector.outages.unreached()
    }

    /// The masters, or the servers in the settings while no master is known.
    pub(super) fn nodes(&self) -> Vec<String> {
        match self.watch.topology() {
            Some(topology) => {
                topology.masters().iter().map(|master| master.address.to_string()).collect()
            }
            None => self.connector.nodes().collect(),
        }
    }

    /// The masters that own slots, each with a tag that it holds; none while no master is known.
    pub(super) fn tags(&self) -> Vec<(String, u128)> {
        let topology = self.watch.topology();
        let masters = topology.iter().flat_map(|topology| topology.masters_with_tags());
        masters.map(|(master, tag)| (master.address.to_string(), tag)).collect()
    }

    /// Asks each master for what a take needs. Returns those that can't serve; an error if none
    /// can.
    pub(super) async fn ping(&self) -> Result<Vec<(String, Cause)>, EngineError> {
        let (link, until) = (self.link(), self.until(self.deadline));
        let topology = owners::known(&link, until).await?;
        let shards = topology.masters_with_tags();
        let checks = shards.iter().map(|(_, tag)| {
            let key = check_key(*tag);
            let (slot, name) = (key.slot(), key.text(&self.key_prefix));
            let check = move |_, out: &mut Vec<u8>| {
                let words: [&[u8]; 4] = [b"EVAL", CHECK.as_bytes(), b"1", name.as_bytes()];
                resp::begin(out, words.len());
                words.iter().for_each(|word| resp::word(out, word));
            };
            // As a take is sent, so that what a take survives is no failure.
            link.send(slot, until, check)
        });
        let found = join_all(checks).await;
        let mut failing: Vec<_> = shards
            .iter()
            .zip(&found)
            .filter_map(|((master, _), found)| {
                Some((master.address.to_string(), found.as_ref().err()?.cause))
            })
            .collect();
        let lacks_owners = topology.lacks_owners();
        if lacks_owners || failing.iter().any(|(_, cause)| cause.is_about_the_node()) {
            // A proxy without requests must find the new owners, too.
            owners::failed(&link);
        }
        if failing.len() == shards.len() {
            let cause = failing.first().map_or(Cause::Cluster, |(_, cause)| *cause);
            return Err(EngineError { cause, ran: Execution::No });
        }
        if failing.is_empty() && !lacks_owners {
            self.connector.outages.reached(clock::monotonic());
        }
        if lacks_owners {
            failing.push((NO_MASTER.into(), Cause::Cluster));
        }
        Ok(failing)
    }

    /// What an operator should change about the servers that can be reached.
    pub(super) async fn advice(&self) -> Advice {
        let (link, until) = (self.link(), self.until(self.deadline));
        match owners::known(&link, until).await {
            Ok(topology) => advice::of_masters(&link, &topology).await,
            Err(_) => Advice::default(),
        }
    }

    async fn call(
        &self,
        verb: Verb,
        cells: &Cells,
        taken_at_us: u64,
        left: Duration,
    ) -> Result<Value, EngineError> {
        let link = self.link();
        let script = &*link.script(verb, cells);
        let key_prefix = self.key_prefix.as_str();
        let request = Request { verb, cells, key_prefix, script, taken_at_us };
        let slot = cells.first().map_or(0, |cell| cell.key.slot());
        let outcome =
            link.send(slot, self.until(left), |with_text, out| request.write(with_text, out)).await;
        self.record(&link, slot, outcome)
    }

    /// When a call that begins now has to end.
    fn until(&self, left: Duration) -> Instant {
        clock::monotonic() + self.deadline.min(left)
    }

    /// Counts a failure, reports it to the operator, and has the owners of slots watched.
    fn record<T>(
        &self,
        link: &Arc<Link>,
        slot: u16,
        outcome: Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let outages = &self.connector.outages;
        match &outcome {
            Ok(_) if outages.any() => outages.succeeded(&link.node_of(slot), clock::monotonic()),
            Ok(_) => {}
            Err(error) => {
                self.failures.inc(error.cause);
                outages.failed(&link.node_of(slot), error.cause, clock::monotonic());
                if error.cause.is_about_the_node() {
                    owners::failed(link);
                }
            }
        }
        outcome
    }

    /// This worker's link.
    fn link(&self) -> Arc<Link> {
        LINKS.with_borrow_mut(|links| {
            if let Some((_, link)) = links.iter().find(|(id, _)| *id == self.id) {
                return Arc::clone(link);
            }
            links.retain(|(_, link)| !link.is_closed());
            let link = Arc::new(Link::new(Arc::clone(&self.connector), Arc::clone(&self.watch)));
            links.push((self.id, Arc::clone(&link)));
            let mut all = self.links.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|link| link.strong_count() > 0);
            all.push(Arc::downgrade(&link));
            drop(all);
            if self.connector.claim_advice() {
                tokio::spawn(advice::watch_settings(Arc::downgrade(&link)));
            }
            link
        })
    }
}

/// A key that no limit has, with this tag.
fn check_key(tag: u128) -> Key {
    Key { tag, key: 0, space: Arc::new(Space { text: "weir/ready".into(), digest: 0 }) }
}

/// All text in a reply, whatever its type.
fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => text.clone(),
        Value::Array(items) => items.iter().map(text).collect::<Vec<_>>().join(" "),
        Value::Map(pairs) => {
            pairs.iter().map(|(_, value)| text(value)).collect::<Vec<_>>().join(" ")
        }
        _ => String::new(),
    }
}

/// Either the script ran, or the reply is not from one of our scripts.
const MALFORMED: EngineError = EngineError { cause: Cause::Script, ran: Execution::Unknown };

/// The whole numbers of a reply of packed doubles, one by one.
fn numbers_of(answer: &Value) -> Result<impl FnMut() -> Result<i64, EngineError>, EngineError> {
    let Value::BulkString(bytes) = answer else { return Err(MALFORMED) };
    let mut numbers = bytes.chunks(8).map(|bytes| {
        bytes.try_into().map(f64::from_le_bytes).ok().filter(|number| number.fract() == 0.0)
    });
    Ok(move || numbers.next().flatten().map(|number| number as i64).ok_or(MALFORMED))
}

#[cfg(test)]
pub(super) use lease::parse_leased;

/// Parses the reply to a charge.
pub(super) fn parse_charged(answer: &Value, cells: usize) -> Result<ChargeReply, EngineError> {
    let mut next = numbers_of(answer)?;
    let at_us = next()? as u64;
    let units = (0..cells).map(|_| next().map(|units| u64::try_from(units).ok()));
    Ok(ChargeReply { at_us, units: units.collect::<Result<_, _>>()? })
}

/// Parses the reply to a take or a look.
pub(super) fn parse_taken(answer: &Value, cells: usize) -> Result<TakeReply, EngineError> {
    let mut next = numbers_of(answer)?;
    let at_us = next()? as u64;
    let admitted = next()? == 1;
    let mut replies = SmallVec::new();
    for _ in 0..cells {
        replies.push(cell_reply(&mut next)?);
    }
    Ok(TakeReply { at_us, admitted, cells: replies })
}

/// The next cell of a reply.
fn cell_reply(
    next: &mut impl FnMut() -> Result<i64, EngineError>,
) -> Result<CellReply, EngineError> {
    let (fits, remaining, retry, reset) = (next()?, next()?, next()?, next()?);
    Ok(CellReply {
        fits: fits == 1,
        remaining: u64::try_from(remaining).unwrap_or(0),
        retry_units: u64::try_from(retry).ok(),
        reset_units: u64::try_from(reset).unwrap_or(0),
        outside: retry == OUTSIDE,
        uncharged: retry == UNCHARGED,
    })
}
