//! A worker's connection: opened when first needed, shared by the worker's calls, opened anew when
//! it is lost.
//!
//! Everything in a link belongs to one worker; its locks are there because the engine closes links
//! from another thread, and are never contended nor held across an await.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ::redis::aio::MultiplexedConnection;
use ::redis::{Cmd, RedisError, Value};
use smallvec::SmallVec;
use tokio::sync::watch as version;

use super::opener::{Conn, Opener};
use super::topology::Topology;
use super::{failure, watch};
use crate::clock;
use crate::engine::driver::{Script, Verb};
use crate::engine::{Cause, Cells, EngineError, Ran};

/// After a connection could not be opened, calls fail at once for so long.
const REOPEN_WAIT: Duration = Duration::from_millis(100);
/// A slot's owner that would not serve is not asked again for so long: each try would have redis-rs
/// refresh its slots, and nothing else is sent meanwhile.
const DOWN_WAIT: Duration = Duration::from_millis(100);
/// A cluster connection is given up when so many calls failed in a row ...
const FAILURES_MAX: u32 = 3;
/// ... and none went well for so long: one master's death must not cost the others their
/// connection.
const FAILING_WAIT: Duration = Duration::from_millis(250);
/// Scripts that a worker remembers; beyond, it forgets all and starts again.
const SCRIPTS_MAX: usize = 512;
/// Nodes to which ASK leads, kept open.
const ASKED_MAX: usize = 8;

type Programs = SmallVec<[usize; 4]>;

/// A worker's connection to Redis.
pub(super) struct Link {
    pub(super) opener: Arc<Opener>,
    state: Mutex<State>,
    /// Moves whenever the state did.
    changed: version::Sender<u64>,
    /// Calls that failed since one went well.
    failures: AtomicU32,
    any_down: AtomicBool,
    scripts: Mutex<HashMap<(Verb, Programs), Arc<Script>>>,
}

#[derive(Default)]
struct State {
    open: Option<Open>,
    /// Counts connections, so that a call can say which one it lost.
    epoch: u64,
    opening: bool,
    watching: bool,
    closed: bool,
    /// When and why the last try to open failed.
    refused: Option<(Instant, Cause)>,
    failing_since: Option<Instant>,
    failed_last: Option<Instant>,
    down: Vec<(String, Instant)>,
    asked: Vec<(String, MultiplexedConnection)>,
}

#[derive(Clone)]
struct Open {
    conn: Conn,
    topology: Arc<Topology>,
}

impl Link {
    pub(super) fn new(opener: Arc<Opener>) -> Self {
        Self {
            opener,
            state: Mutex::default(),
            changed: version::Sender::new(0),
            failures: AtomicU32::new(0),
            any_down: AtomicBool::new(false),
            scripts: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection, and its number. Waits while it is being opened: the caller's deadline bounds
    /// that, and the opening goes on without it.
    pub(super) async fn connection(self: &Arc<Self>) -> Result<(u64, Conn), EngineError> {
        if let Some(found) = self.current() {
            return Ok(found);
        }
        let mut changed = self.changed.subscribe();
        loop {
            if let Some(found) = self.current() {
                return Ok(found);
            }
            self.start_opening()?;
            if changed.changed().await.is_err() {
                return Err(EngineError { cause: Cause::Connection, ran: Ran::No });
            }
        }
    }

    fn current(&self) -> Option<(u64, Conn)> {
        let state = self.lock();
        state.open.as_ref().map(|open| (state.epoch, open.conn.clone()))
    }

    /// The number and topology of the connection, if there is one.
    pub(super) fn topology(&self) -> Option<(u64, Arc<Topology>)> {
        let state = self.lock();
        state.open.as_ref().map(|open| (state.epoch, Arc::clone(&open.topology)))
    }

    fn start_opening(self: &Arc<Self>) -> Result<(), EngineError> {
        let mut state = self.lock();
        if state.closed {
            return Err(EngineError { cause: Cause::Connection, ran: Ran::No });
        }
        if let Some((at, cause)) = state.refused
            && clock::monotonic().duration_since(at) < REOPEN_WAIT
        {
            return Err(EngineError { cause, ran: Ran::No });
        }
        if !state.opening {
            state.opening = true;
            drop(state);
            tokio::spawn(open(Flag { link: Arc::clone(self), which: |state| &mut state.opening }));
        }
        Ok(())
    }

    /// Puts a new connection in place of number `epoch`; whether that was still the one.
    pub(super) fn replace(&self, epoch: u64, conn: Conn, topology: Topology) -> bool {
        let mut state = self.lock();
        if state.closed || state.epoch != epoch {
            return false;
        }
        state.epoch += 1;
        state.open = Some(Open { conn, topology: Arc::new(topology) });
        state.refused = None;
        state.failing_since = None;
        state.down.clear();
        self.any_down.store(false, Ordering::Relaxed);
        drop(state);
        self.failures.store(0, Ordering::Relaxed);
        self.changed.send_modify(|version| *version += 1);
        true
    }

    fn epoch(&self) -> u64 {
        self.lock().epoch
    }

    /// A call went well.
    pub(super) fn went_well(&self) {
        if self.failures.load(Ordering::Relaxed) > 0 {
            self.failures.store(0, Ordering::Relaxed);
            self.lock().failing_since = None;
        }
    }

    /// A call failed: notes it, and has the store watched until calls go well again.
    pub(super) fn failed(self: &Arc<Self>, cause: Cause) {
        if !matches!(cause, Cause::Timeout | Cause::Connection | Cause::Cluster) {
            return;
        }
        self.failures.fetch_add(1, Ordering::Relaxed);
        let now = clock::monotonic();
        let mut state = self.lock();
        state.failing_since.get_or_insert(now);
        state.failed_last = Some(now);
        if !state.watching && !state.closed {
            state.watching = true;
            drop(state);
            let done = Flag { link: Arc::clone(self), which: |state| &mut state.watching };
            tokio::spawn(async move { watch::run(&done.link).await });
        }
    }

    /// Whether calls failed lately, within `span`.
    pub(super) fn failed_within(&self, span: Duration) -> bool {
        let state = self.lock();
        !state.closed
            && state.failed_last.is_some_and(|at| clock::monotonic().duration_since(at) < span)
    }

    /// Whether nothing goes well on this connection any more.
    pub(super) fn all_failing(&self) -> bool {
        let since = self.lock().failing_since;
        self.failures.load(Ordering::Relaxed) >= FAILURES_MAX
            && since.is_some_and(|at| clock::monotonic().duration_since(at) >= FAILING_WAIT)
    }

    /// A call found connection `epoch` cut. One server's is gone then; a cluster's mends itself,
    /// unless nothing goes well on it any more.
    pub(super) fn lost(&self, epoch: u64) {
        if self.opener.is_cluster() && !self.all_failing() {
            return;
        }
        let mut state = self.lock();
        if state.epoch == epoch && state.open.take().is_some() {
            state.epoch += 1;
        }
    }

    /// Whether the owner of `slot` could not be reached just now.
    pub(super) fn is_down(&self, slot: u16) -> bool {
        if !self.any_down.load(Ordering::Relaxed) {
            return false;
        }
        let now = clock::monotonic();
        let mut state = self.lock();
        state.down.retain(|(_, until)| *until > now);
        if state.down.is_empty() {
            self.any_down.store(false, Ordering::Relaxed);
            return false;
        }
        let owner = state.open.as_ref().and_then(|open| open.topology.owner(slot));
        owner.is_some_and(|owner| state.down.iter().any(|(node, _)| node == owner))
    }

    /// The owner of `slot` could not be reached.
    pub(super) fn set_down(&self, slot: u16) {
        let until = clock::monotonic() + DOWN_WAIT;
        let mut state = self.lock();
        let owner =
            state.open.as_ref().and_then(|open| open.topology.owner(slot)).map(ToOwned::to_owned);
        if let Some(owner) = owner {
            state.down.retain(|(node, _)| *node != owner);
            state.down.push((owner, until));
            self.any_down.store(true, Ordering::Relaxed);
        }
    }

    /// Sends a command to the node that imports a slot, behind the ASKING that it wants, in one
    /// piece: other calls share the connection.
    pub(super) async fn ask(&self, node: &str, command: Cmd) -> Result<Value, RedisError> {
        let known =
            self.lock().asked.iter().find(|(name, _)| name == node).map(|(_, conn)| conn.clone());
        let mut conn = match known {
            Some(conn) => conn,
            None => {
                let conn = self.opener.open_node(node).await?;
                let mut state = self.lock();
                if state.asked.len() >= ASKED_MAX {
                    state.asked.clear();
                }
                state.asked.push((node.to_owned(), conn.clone()));
                conn
            }
        };
        let mut pipeline = ::redis::pipe();
        pipeline.cmd("ASKING").add_command(command);
        let reply = conn.send_packed_commands(&pipeline, 1, 1).await.and_then(|mut values| {
            match values.pop() {
                Some(value) => value.extract_error(),
                None => Err(RedisError::from((
                    ::redis::ErrorKind::UnexpectedReturnType,
                    "no answer behind ASKING",
                ))),
            }
        });
        if reply.as_ref().is_err_and(RedisError::is_io_error) {
            self.lock().asked.retain(|(name, _)| name != node);
        }
        reply
    }

    /// The script for these cells' programs.
    pub(super) fn script(&self, verb: Verb, cells: &Cells) -> Arc<Script> {
        let programs: Programs =
            cells.iter().map(|cell| std::ptr::from_ref(cell.program).addr()).collect();
        let mut scripts = self.scripts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(script) = scripts.get(&(verb, programs.clone())) {
            return Arc::clone(script);
        }
        if scripts.len() >= SCRIPTS_MAX {
            scripts.clear();
        }
        let script = Arc::new(Script::new(verb, cells));
        scripts.insert((verb, programs), Arc::clone(&script));
        script
    }

    /// Drops the connection for good: its engine is gone.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.open = None;
        state.asked.clear();
        drop(state);
        self.changed.send_modify(|version| *version += 1);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }
}

/// Puts a task's flag down when the task ends, however it ends.
struct Flag {
    link: Arc<Link>,
    which: fn(&mut State) -> &mut bool,
}

impl Drop for Flag {
    fn drop(&mut self) {
        *(self.which)(&mut self.link.lock()) = false;
        self.link.changed.send_modify(|version| *version += 1);
    }
}

/// Opens the link's connection once. It has its own time: a caller's deadline is far shorter than a
/// slow connect, which must not begin again with every request.
async fn open(done: Flag) {
    let link = &done.link;
    let epoch = link.epoch();
    match link.opener.open().await {
        Ok((conn, topology)) => {
            let first = link.lock().refused.take().is_some() || epoch == 0;
            if link.replace(epoch, conn, topology) && first {
                tracing::info!("connected to Redis");
                if link.opener.first_to_warn() {
                    tokio::spawn(watch::settings(Arc::downgrade(link)));
                }
            }
        }
        Err(error) => {
            let cause = failure::meaning(&error).cause;
            let before = link.lock().refused.replace((clock::monotonic(), cause));
            if before.is_none() {
                tracing::warn!(%error, "no connection to Redis; trying again as long as requests need it");
            }
        }
    }
}
