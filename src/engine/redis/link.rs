//! A worker's connection: opened on first use, shared by the worker's calls, and reopened when it
//! is lost.
//!
//! A link belongs to one worker. Its locks exist because the engine closes links from another
//! thread. They are never contended, nor held across an await.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ::redis::aio::MultiplexedConnection;
use ::redis::{Cmd, RedisError, Value};
use smallvec::SmallVec;
use tokio::sync::watch as version;

use super::connector::{Conn, Connector};
use super::topology::Topology;
use super::{failure, watch};
use crate::clock;
use crate::engine::driver::{Script, Verb};
use crate::engine::{Cause, Cells, EngineError, Ran};

/// After an attempt to connect has failed, calls fail immediately for this long.
const REOPEN_WAIT: Duration = Duration::from_millis(100);
/// After a slot's owner failed to answer, calls to it fail immediately for this long. Each attempt
/// would make redis-rs refresh its slots, and nothing else is sent meanwhile.
const DOWN_WAIT: Duration = Duration::from_millis(100);
/// A cluster connection is replaced after this many failed calls in a row, if none has succeeded
/// for [`FAILING_WAIT`]: losing one master must not cost the other masters' calls their connection.
const FAILURES_MAX: u32 = 3;
/// See [`FAILURES_MAX`].
const FAILING_WAIT: Duration = Duration::from_millis(250);
/// Scripts that a worker caches; when there are more, the cache is emptied.
const SCRIPTS_CACHED_MAX: usize = 512;
/// Connections kept open to nodes that ASK redirected to.
const ASK_NODES_MAX: usize = 8;

type Programs = SmallVec<[usize; 4]>;

/// A worker's connection to Redis.
pub(super) struct Link {
    pub(super) connector: Arc<Connector>,
    state: Mutex<State>,
    /// Changes when an attempt to connect or a watch ends, and when the connection is replaced or
    /// the link is closed.
    changed: version::Sender<u64>,
    /// Failed calls since the last successful one.
    failures_in_a_row: AtomicU32,
    any_down: AtomicBool,
    scripts: Mutex<HashMap<(Verb, Programs), Arc<Script>>>,
}

#[derive(Default)]
struct State {
    open: Option<Connected>,
    /// The connection's number, so that a call can say which connection it found closed.
    epoch: u64,
    opening: bool,
    watching: bool,
    closed: bool,
    /// When and why the last attempt to connect failed.
    open_failed: Option<(Instant, Cause)>,
    failing_since: Option<Instant>,
    failed_last: Option<Instant>,
    down: Vec<(String, Instant)>,
    ask_nodes: Vec<(String, MultiplexedConnection)>,
}

#[derive(Clone)]
struct Connected {
    conn: Conn,
    topology: Arc<Topology>,
}

impl Link {
    pub(super) fn new(connector: Arc<Connector>) -> Self {
        Self {
            connector,
            state: Mutex::default(),
            changed: version::Sender::new(0),
            failures_in_a_row: AtomicU32::new(0),
            any_down: AtomicBool::new(false),
            scripts: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection and its number. Waits while it is being opened: the caller's deadline bounds
    /// the wait, and opening continues without the caller.
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

    /// The connection's number and topology, if there is one.
    pub(super) fn topology(&self) -> Option<(u64, Arc<Topology>)> {
        let state = self.lock();
        state.open.as_ref().map(|open| (state.epoch, Arc::clone(&open.topology)))
    }

    /// The address of the node that owns `slot`, for the log; all that are configured, while the
    /// owner is not known.
    pub(super) fn node_of(&self, slot: u16) -> String {
        let topology = self.topology().map(|(_, topology)| topology);
        let owner = topology.as_ref().and_then(|topology| topology.address(slot));
        owner.map_or_else(
            || self.connector.nodes().collect::<Vec<_>>().join(", "),
            ToOwned::to_owned,
        )
    }

    fn start_opening(self: &Arc<Self>) -> Result<(), EngineError> {
        let mut state = self.lock();
        if state.closed {
            return Err(EngineError { cause: Cause::Connection, ran: Ran::No });
        }
        if let Some((at, cause)) = state.open_failed
            && clock::monotonic().duration_since(at) < REOPEN_WAIT
        {
            return Err(EngineError { cause, ran: Ran::No });
        }
        if !state.opening {
            state.opening = true;
            drop(state);
            tokio::spawn(open(ResetFlag {
                link: Arc::clone(self),
                which: |state| &mut state.opening,
            }));
        }
        Ok(())
    }

    /// Replaces connection number `epoch`; returns whether that was still the current one.
    pub(super) fn replace(&self, epoch: u64, conn: Conn, topology: Topology) -> bool {
        let mut state = self.lock();
        if state.closed || state.epoch != epoch {
            return false;
        }
        state.epoch += 1;
        state.open = Some(Connected { conn, topology: Arc::new(topology) });
        state.open_failed = None;
        state.failing_since = None;
        state.down.clear();
        self.any_down.store(false, Ordering::Relaxed);
        drop(state);
        self.failures_in_a_row.store(0, Ordering::Relaxed);
        self.changed.send_modify(|version| *version += 1);
        true
    }

    fn epoch(&self) -> u64 {
        self.lock().epoch
    }

    /// Records that a call succeeded.
    pub(super) fn record_success(&self) {
        if self.failures_in_a_row.load(Ordering::Relaxed) > 0 {
            self.failures_in_a_row.store(0, Ordering::Relaxed);
            self.lock().failing_since = None;
        }
    }

    /// Records that a call failed, and watches the store until calls succeed again.
    pub(super) fn record_failure(self: &Arc<Self>, cause: Cause) {
        if !matches!(cause, Cause::Timeout | Cause::Connection | Cause::Cluster) {
            return;
        }
        self.failures_in_a_row.fetch_add(1, Ordering::Relaxed);
        let now = clock::monotonic();
        let mut state = self.lock();
        state.failing_since.get_or_insert(now);
        state.failed_last = Some(now);
        if !state.watching && !state.closed {
            state.watching = true;
            drop(state);
            let done = ResetFlag { link: Arc::clone(self), which: |state| &mut state.watching };
            tokio::spawn(async move { watch::run(&done.link).await });
        }
    }

    /// Whether a call failed within the last `span`.
    pub(super) fn failed_within(&self, span: Duration) -> bool {
        let state = self.lock();
        !state.closed
            && state.failed_last.is_some_and(|at| clock::monotonic().duration_since(at) < span)
    }

    /// Whether all calls on this connection fail.
    pub(super) fn all_failing(&self) -> bool {
        let since = self.lock().failing_since;
        self.failures_in_a_row.load(Ordering::Relaxed) >= FAILURES_MAX
            && since.is_some_and(|at| clock::monotonic().duration_since(at) >= FAILING_WAIT)
    }

    /// Records that a call found connection `epoch` closed. A single server's connection is
    /// dropped. A cluster's recovers by itself, and is dropped only if all calls on it fail.
    pub(super) fn connection_lost(&self, epoch: u64) {
        if self.connector.is_cluster() && !self.all_failing() {
            return;
        }
        let mut state = self.lock();
        if state.epoch == epoch && state.open.take().is_some() {
            state.epoch += 1;
        }
    }

    /// Whether the owner of `slot` was recently unreachable.
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

    /// Records that the owner of `slot` is unreachable.
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

    /// Sends a command to the node that is importing a slot. The ASKING before it goes in the same
    /// write, since other calls share the connection.
    pub(super) async fn ask(&self, node: &str, command: Cmd) -> Result<Value, RedisError> {
        let known = self
            .lock()
            .ask_nodes
            .iter()
            .find(|(name, _)| name == node)
            .map(|(_, conn)| conn.clone());
        let mut conn = match known {
            Some(conn) => conn,
            None => {
                let conn = self.connector.open_node(node).await?;
                let mut state = self.lock();
                if state.ask_nodes.len() >= ASK_NODES_MAX {
                    state.ask_nodes.clear();
                }
                state.ask_nodes.push((node.to_owned(), conn.clone()));
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
                    "no reply after ASKING",
                ))),
            }
        });
        if reply.as_ref().is_err_and(RedisError::is_io_error) {
            self.lock().ask_nodes.retain(|(name, _)| name != node);
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
        if scripts.len() >= SCRIPTS_CACHED_MAX {
            scripts.clear();
        }
        let script = Arc::new(Script::new(verb, cells));
        scripts.insert((verb, programs), Arc::clone(&script));
        script
    }

    /// Closes the link for good, because its engine was dropped.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.open = None;
        state.ask_nodes.clear();
        drop(state);
        self.changed.send_modify(|version| *version += 1);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }
}

/// Clears a task's flag when the task ends, however it ends.
struct ResetFlag {
    link: Arc<Link>,
    which: fn(&mut State) -> &mut bool,
}

impl Drop for ResetFlag {
    fn drop(&mut self) {
        *(self.which)(&mut self.link.lock()) = false;
        self.link.changed.send_modify(|version| *version += 1);
    }
}

/// Opens the link's connection once. This has its own time limit: a caller's deadline is far
/// shorter than a slow connect, which must not start over with every request.
async fn open(done: ResetFlag) {
    let link = &done.link;
    let epoch = link.epoch();
    match link.connector.open().await {
        Ok((conn, topology)) => {
            let first = link.lock().open_failed.take().is_some() || epoch == 0;
            if link.replace(epoch, conn, topology) && first {
                tracing::info!("connected to Redis");
                if link.connector.claim_settings_check() {
                    tokio::spawn(watch::watch_settings(Arc::downgrade(link)));
                }
            }
        }
        Err(error) => {
            let cause = failure::engine_error(&error).cause;
            let before = link.lock().open_failed.replace((clock::monotonic(), cause));
            if before.is_none() {
                tracing::warn!(%error, "no connection to Redis; retrying whenever a request needs it");
            }
        }
    }
}
