//! Counters on Redis: one script per call, on one connection per worker, within one deadline, and
//! never run twice.
//!
//! Read next: `link` (a worker's connection), `failure` (what an error means), `watch` (how a lost
//! master is found again), `connector` (how connections are opened). Must not know what a program
//! computes.
//!
//! redis-rs' own retries are switched off, as they can't tell a command that may have run from one
//! that has not. This module retries only on errors that prove that nothing ran, within the
//! deadline.

mod connector;
mod failure;
mod find;
mod link;
mod outage;
mod topology;
mod watch;

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use ::redis::{Cmd, Value};
use smallvec::SmallVec;

use self::connector::Connector;
use self::failure::Next;
use self::link::Link;
use self::outage::Outages;
use super::driver::{self, Script, Verb};
use super::{
    Cause, CellReply, Cells, Charged, EngineError, Key, OUTSIDE, Ran, RedisSettings, Taken,
};
use crate::clock;
use crate::telemetry::{Counter, CounterSet, Metrics, Mistake, names};

/// Maximum number of times that one call is sent again after errors that prove that nothing ran.
const RETRIES_MAX: usize = 2;

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
    /// All workers' links. They are closed when the engine is dropped, since an idle worker would
    /// otherwise keep its connection.
    links: Mutex<Vec<Weak<Link>>>,
    failures: CounterSet<Cause>,
    outages: Outages,
    unknown: Counter,
}

impl std::fmt::Debug for Redis {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Redis {{ id: {}, deadline: {:?} }}", self.id, self.deadline)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let links = std::mem::take(&mut *self.links.lock().unwrap_or_else(PoisonError::into_inner));
        links.iter().filter_map(Weak::upgrade).for_each(|link| link.close());
    }
}

/// A script with its keys and arguments.
struct Request {
    script: Arc<Script>,
    slot: u16,
    keys: SmallVec<[String; 2]>,
    arguments: SmallVec<[driver::Argument; 2]>,
}

impl Request {
    /// EVALSHA, or EVAL with the whole text for a server that does not have the script yet.
    fn command(&self, with_text: bool) -> Cmd {
        let mut command = Cmd::new();
        if with_text {
            command.arg("EVAL").arg(&self.script.text);
        } else {
            command.arg("EVALSHA").arg(&self.script.sha);
        }
        command.arg(self.keys.len());
        self.keys.iter().for_each(|key| _ = command.arg(key));
        self.arguments.iter().for_each(|argument| _ = command.arg(argument.as_slice()));
        command
    }
}

impl Redis {
    pub(super) fn new(settings: &RedisSettings, metrics: &Metrics) -> Result<Self, Mistake> {
        if settings.key_prefix.contains(['{', '}']) {
            let expected = "a prefix without braces: they would put every key on one slot";
            return Err(Mistake::new(
                "redis.key_prefix",
                format!("{:?}", settings.key_prefix),
                expected,
            ));
        }
        Ok(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            key_prefix: settings.key_prefix.clone(),
            deadline: settings.deadline,
            connector: Arc::new(Connector::new(settings)?),
            links: Mutex::new(Vec::new()),
            failures: metrics.counters(names::STORE_ERRORS, &[]),
            outages: Outages::default(),
            unknown: metrics.counter(names::TAKES_UNKNOWN, &[]),
        })
    }

    pub(super) async fn take(&self, cells: &Cells, left: Duration) -> Result<Taken, EngineError> {
        self.decide(Verb::Take, cells, left).await.inspect_err(|error| {
            if error.ran == Ran::Unknown {
                self.unknown.inc();
            }
        })
    }

    pub(super) async fn look(&self, cells: &Cells, left: Duration) -> Result<Taken, EngineError> {
        self.decide(Verb::Look, cells, left)
            .await
            .map_err(|error| EngineError { ran: Ran::No, ..error })
    }

    async fn decide(
        &self,
        verb: Verb,
        cells: &Cells,
        left: Duration,
    ) -> Result<Taken, EngineError> {
        if left == Duration::ZERO {
            // The caller's time ran out before anything was sent, so this says nothing about the
            // shard.
            let error = EngineError { cause: Cause::Timeout, ran: Ran::No };
            self.failures.inc(error.cause);
            return Err(error);
        }
        let link = self.link();
        let request = self.request(&link, verb, cells, 0);
        self.call(&link, &request, left).await.and_then(|answer| parse_taken(&answer, cells.len()))
    }

    /// The position of the master of a counter's slot among all masters; 0 while none is known.
    pub(super) fn shard_of(&self, key: &Key) -> usize {
        self.link().topology().and_then(|(_, topology)| topology.shard(key.slot())).unwrap_or(0)
    }

    pub(super) async fn give_back(
        &self,
        cells: &Cells,
        taken_at_us: u64,
    ) -> Result<(), EngineError> {
        let link = self.link();
        let request = self.request(&link, Verb::GiveBack, cells, taken_at_us);
        self.call(&link, &request, self.deadline).await.map(|_| ())
    }

    pub(super) async fn charge(&self, cells: &Cells) -> Result<Charged, EngineError> {
        let link = self.link();
        let request = self.request(&link, Verb::Charge, cells, 0);
        let answer = self.call(&link, &request, self.deadline).await?;
        parse_charged(&answer, cells.len())
    }

    pub(super) async fn renew(&self, cells: &Cells) -> Result<(), EngineError> {
        let link = self.link();
        let request = self.request(&link, Verb::Renew, cells, 0);
        self.call(&link, &request, self.deadline).await.map(|_| ())
    }

    pub(super) async fn reset(&self, key: &Key) -> Result<(), EngineError> {
        let mut command = ::redis::cmd("DEL");
        command.arg(key.text(&self.key_prefix));
        let link = self.link();
        self.within(self.deadline, &link, Some(key.slot()), async |ran| {
            send(&link, key.slot(), |_| command.clone(), ran).await.map(|_| ())
        })
        .await
    }

    pub(super) async fn ping(&self) -> Result<(), EngineError> {
        let link = self.link();
        self.within(self.deadline, &link, None, async |_| {
            let (_, mut conn) = link.connection().await?;
            let healthy = conn.is_healthy().await.map_err(|error| failure::engine_error(&error))?;
            if healthy { Ok(()) } else { Err(EngineError { cause: Cause::Cluster, ran: Ran::No }) }
        })
        .await
    }

    fn request(&self, link: &Link, verb: Verb, cells: &Cells, taken_at_us: u64) -> Request {
        Request {
            script: link.script(verb, cells),
            slot: cells.first().map_or(0, |cell| cell.key.slot()),
            keys: cells.iter().map(|cell| cell.key.text(&self.key_prefix)).collect(),
            arguments: cells.iter().map(|cell| driver::argument(verb, cell, taken_at_us)).collect(),
        }
    }

    async fn call(
        &self,
        link: &Arc<Link>,
        request: &Request,
        left: Duration,
    ) -> Result<Value, EngineError> {
        self.within(left, link, Some(request.slot), async |ran| {
            send(link, request.slot, |with_text| request.command(with_text), ran).await
        })
        .await
    }

    /// Runs `work`, a call to the shard of `slot`, for at most `left` and at most the engine's
    /// deadline, including connecting.
    /// `work` keeps its [`Ran`] up to date, for the error if it times out.
    async fn within<T>(
        &self,
        left: Duration,
        link: &Arc<Link>,
        slot: Option<u16>,
        work: impl AsyncFnOnce(&mut Ran) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let deadline = tokio::time::Instant::from_std(clock::monotonic() + self.deadline.min(left));
        let mut ran = Ran::No;
        let outcome = match tokio::time::timeout_at(deadline, work(&mut ran)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(EngineError { cause: Cause::Timeout, ran }),
        };
        match outcome {
            Ok(_) => {
                link.record_success();
                if let Some(slot) = slot.filter(|_| self.outages.any()) {
                    self.outages.succeeded(&link.node_of(slot), clock::monotonic());
                }
            }
            Err(error) => {
                self.failures.inc(error.cause);
                if let Some(slot) = slot {
                    self.outages.failed(&link.node_of(slot), error.cause, clock::monotonic());
                }
                link.record_failure(error.cause);
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
            let link = Arc::new(Link::new(Arc::clone(&self.connector)));
            links.push((self.id, Arc::clone(&link)));
            let mut all = self.links.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|link| link.strong_count() > 0);
            all.push(Arc::downgrade(&link));
            link
        })
    }
}

/// Sends a command to a slot's owner. Sends it again after an error that proves that nothing ran.
async fn send(
    link: &Arc<Link>,
    slot: u16,
    command: impl Fn(bool) -> Cmd,
    ran: &mut Ran,
) -> Result<Value, EngineError> {
    let mut with_text = false;
    let mut ask_node: Option<String> = None;
    let mut retries = 0;
    loop {
        if link.is_down(slot) {
            return Err(EngineError { cause: Cause::Cluster, ran: Ran::No });
        }
        let (epoch, mut conn) = link.connection().await?;
        *ran = Ran::Unknown;
        let reply = match ask_node.take() {
            None => conn.send(command(with_text), slot).await,
            Some(node) => link.ask(&node, command(with_text)).await,
        };
        let error = match reply {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        let next = failure::next(&error);
        if !matches!(next, Next::Fail(_)) {
            *ran = Ran::No;
        }
        match next {
            Next::SendText if !with_text => with_text = true,
            Next::SendText => return Err(EngineError { cause: Cause::Script, ran: Ran::No }),
            Next::Retry(wait) | Next::Ask(_, wait) if retries < RETRIES_MAX => {
                retries += 1;
                if let Next::Ask(node, _) = next {
                    ask_node = Some(node);
                }
                tokio::time::sleep(wait).await;
            }
            Next::Retry(_) | Next::Ask(..) => {
                // While slots are being migrated, one after another answers so. The node's other
                // slots are not affected.
                if !failure::is_from_migrating_slot(&error) {
                    link.set_down(slot);
                }
                return Err(EngineError { cause: Cause::Cluster, ran: Ran::No });
            }
            Next::Fail(error) => {
                if error.cause == Cause::Connection {
                    link.connection_lost(epoch);
                }
                return Err(error);
            }
        }
    }
}

/// Either the script ran, or the reply is not from one of our scripts.
const MALFORMED: EngineError = EngineError { cause: Cause::Script, ran: Ran::Unknown };

/// The whole numbers of a reply of packed doubles, one by one.
fn numbers_of(answer: &Value) -> Result<impl FnMut() -> Result<i64, EngineError>, EngineError> {
    let Value::BulkString(bytes) = answer else { return Err(MALFORMED) };
    let mut numbers = bytes.chunks(8).map(|bytes| {
        bytes.try_into().map(f64::from_le_bytes).ok().filter(|number| number.fract() == 0.0)
    });
    Ok(move || numbers.next().flatten().map(|number| number as i64).ok_or(MALFORMED))
}

/// Parses the reply to a charge.
pub(super) fn parse_charged(answer: &Value, cells: usize) -> Result<Charged, EngineError> {
    let mut next = numbers_of(answer)?;
    let at_us = next()? as u64;
    let units = (0..cells).map(|_| next().map(|units| u64::try_from(units).ok()));
    Ok(Charged { at_us, units: units.collect::<Result<_, _>>()? })
}

/// Parses the reply to a take or a look.
pub(super) fn parse_taken(answer: &Value, cells: usize) -> Result<Taken, EngineError> {
    let mut next = numbers_of(answer)?;
    let at_us = next()? as u64;
    let admitted = next()? == 1;
    let mut replies = SmallVec::new();
    for _ in 0..cells {
        let (fits, remaining, retry, reset) = (next()?, next()?, next()?, next()?);
        replies.push(CellReply {
            fits: fits == 1,
            remaining: u64::try_from(remaining).unwrap_or(0),
            retry_units: u64::try_from(retry).ok(),
            reset_units: u64::try_from(reset).unwrap_or(0),
            outside: retry == OUTSIDE,
        });
    }
    Ok(Taken { at_us, admitted, cells: replies })
}
