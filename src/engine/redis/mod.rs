//! Counters on Redis: a script for each call, on one connection a worker, within one deadline,
//! never run twice.
//!
//! Read on in `link` (a worker's connection), `failure` (what an error means), `watch` (how a lost
//! master is found again), `opener` (how connections are made). Must not know what a program
//! computes.
//!
//! redis-rs itself retries nothing here: its retries can't tell a command that may have run from
//! one that has not. Answers that prove that nothing ran are followed by us, within the deadline.

mod failure;
mod link;
mod look;
mod opener;
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

use self::failure::Next;
use self::link::Link;
use self::opener::Opener;
use super::driver::{self, Script, Verb};
use super::{Cause, CellReply, Cells, EngineError, Key, OUTSIDE, Ran, RedisSettings, Taken};
use crate::clock;
use crate::telemetry::{Counter, CounterSet, Metrics, Mistake, names};

/// Answers that prove that nothing ran are followed this often.
const FOLLOWS_MAX: usize = 2;

static NEXT_ID: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// This worker's links, one an engine: few (a reload overlaps two).
    static LINKS: RefCell<Vec<(u64, Arc<Link>)>> = const { RefCell::new(Vec::new()) };
}

/// Counters on a Redis Cluster, or on one Redis.
pub struct Redis {
    id: u64,
    key_prefix: String,
    deadline: Duration,
    opener: Arc<Opener>,
    /// All workers' links, to close them when the engine goes: an idle worker would keep its
    /// connection.
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
        let links = std::mem::take(&mut *self.links.lock().unwrap_or_else(PoisonError::into_inner));
        links.iter().filter_map(Weak::upgrade).for_each(|link| link.close());
    }
}

/// A script on its keys.
struct Request {
    script: Arc<Script>,
    slot: u16,
    keys: SmallVec<[String; 2]>,
    arguments: SmallVec<[driver::Argument; 2]>,
}

impl Request {
    /// EVALSHA, or EVAL with the whole text for a server that does not know it.
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
            opener: Arc::new(Opener::new(settings)?),
            links: Mutex::new(Vec::new()),
            failures: metrics.counters(names::STORE_ERRORS, &[]),
            unknown: metrics.counter(names::TAKES_UNKNOWN, &[]),
        })
    }

    pub(super) async fn take(&self, cells: &Cells, left: Duration) -> Result<Taken, EngineError> {
        self.ask(Verb::Take, cells, left).await.inspect_err(|error| {
            if error.ran == Ran::Unknown {
                self.unknown.inc();
            }
        })
    }

    pub(super) async fn look(&self, cells: &Cells, left: Duration) -> Result<Taken, EngineError> {
        self.ask(Verb::Look, cells, left)
            .await
            .map_err(|error| EngineError { ran: Ran::No, ..error })
    }

    async fn ask(&self, verb: Verb, cells: &Cells, left: Duration) -> Result<Taken, EngineError> {
        if left == Duration::ZERO {
            // The time went elsewhere: this shard is not to blame.
            let error = EngineError { cause: Cause::Timeout, ran: Ran::No };
            self.failures.inc(error.cause);
            return Err(error);
        }
        let link = self.link();
        let request = self.request(&link, verb, cells, 0);
        self.call(&link, &request, left).await.and_then(|answer| taken(&answer, cells.len()))
    }

    /// The master of a counter's slot, by its place among all; 0 where none is known yet.
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

    pub(super) async fn renew(&self, cells: &Cells) -> Result<(), EngineError> {
        let link = self.link();
        let request = self.request(&link, Verb::Renew, cells, 0);
        self.call(&link, &request, self.deadline).await.map(|_| ())
    }

    pub(super) async fn reset(&self, key: &Key) -> Result<(), EngineError> {
        let mut command = ::redis::cmd("DEL");
        command.arg(key.text(&self.key_prefix));
        let link = self.link();
        self.within(self.deadline, &link, async |ran| {
            follow(&link, key.slot(), |_| command.clone(), ran).await.map(|_| ())
        })
        .await
    }

    pub(super) async fn ping(&self) -> Result<(), EngineError> {
        let link = self.link();
        self.within(self.deadline, &link, async |_| {
            let (_, mut conn) = link.connection().await?;
            let reply = conn.look().await.map_err(|error| failure::meaning(&error))?;
            if reply { Ok(()) } else { Err(EngineError { cause: Cause::Cluster, ran: Ran::No }) }
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
        self.within(left, link, async |ran| {
            follow(link, request.slot, |with_text| request.command(with_text), ran).await
        })
        .await
    }

    /// Runs `work` for at most `left` and the deadline, connecting included; `work` keeps its
    /// [`Ran`] at what a timeout would mean just then.
    async fn within<T>(
        &self,
        left: Duration,
        link: &Arc<Link>,
        work: impl AsyncFnOnce(&mut Ran) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let deadline = tokio::time::Instant::from_std(clock::monotonic() + self.deadline.min(left));
        let mut ran = Ran::No;
        let outcome = match tokio::time::timeout_at(deadline, work(&mut ran)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(EngineError { cause: Cause::Timeout, ran }),
        };
        match outcome {
            Ok(_) => link.went_well(),
            Err(error) => {
                self.failures.inc(error.cause);
                link.failed(error.cause);
            }
        }
        outcome
    }

    /// The calling worker's link.
    fn link(&self) -> Arc<Link> {
        LINKS.with_borrow_mut(|links| {
            if let Some((_, link)) = links.iter().find(|(id, _)| *id == self.id) {
                return Arc::clone(link);
            }
            links.retain(|(_, link)| !link.is_closed());
            let link = Arc::new(Link::new(Arc::clone(&self.opener)));
            links.push((self.id, Arc::clone(&link)));
            let mut all = self.links.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|link| link.strong_count() > 0);
            all.push(Arc::downgrade(&link));
            link
        })
    }
}

/// Sends a command to a slot's owner, and again where the answer proves that nothing ran.
async fn follow(
    link: &Arc<Link>,
    slot: u16,
    command: impl Fn(bool) -> Cmd,
    ran: &mut Ran,
) -> Result<Value, EngineError> {
    let mut with_text = false;
    let mut asked: Option<String> = None;
    let mut follows = 0;
    loop {
        if link.is_down(slot) {
            return Err(EngineError { cause: Cause::Cluster, ran: Ran::No });
        }
        let (epoch, mut conn) = link.connection().await?;
        *ran = Ran::Unknown;
        let reply = match asked.take() {
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
            Next::Follow(wait) | Next::Ask(_, wait) if follows < FOLLOWS_MAX => {
                follows += 1;
                if let Next::Ask(node, _) = next {
                    asked = Some(node);
                }
                tokio::time::sleep(wait).await;
            }
            Next::Follow(_) | Next::Ask(..) => {
                // While slots are moved, one of them after another says so for its calls: the
                // node's others go on.
                if !failure::is_of_a_moving_slot(&error) {
                    link.set_down(slot);
                }
                return Err(EngineError { cause: Cause::Cluster, ran: Ran::No });
            }
            Next::Fail(error) => {
                if error.cause == Cause::Connection {
                    link.lost(epoch);
                }
                return Err(error);
            }
        }
    }
}

/// The driver's answer to a take.
pub(super) fn taken(answer: &Value, cells: usize) -> Result<Taken, EngineError> {
    // The script ran, or else something answered that is no script of ours.
    let nonsense = EngineError { cause: Cause::Script, ran: Ran::Unknown };
    let Value::BulkString(bytes) = answer else { return Err(nonsense) };
    let mut numbers = bytes.chunks(8).map(|bytes| {
        bytes.try_into().map(f64::from_le_bytes).ok().filter(|number| number.fract() == 0.0)
    });
    let mut next = || numbers.next().flatten().map(|number| number as i64).ok_or(nonsense);
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
