//! Runs algorithms on counters, atomically: on a Redis Cluster or in memory, the same Lua in both.
//!
//! This module knows keys, whole numbers and programs (a text and its digest). It knows no plan and
//! no policy: `limit` and the program decide what a number means. Programs are pure functions in
//! `lua/`. The driver around them reads, decides, and writes only when all cells agree: `driver`
//! generates it for Redis, `embedded` implements it in Rust.

mod bytes;
mod counters;
mod driver;
mod embedded;
mod failed;
mod found;
mod journal;
mod key;
mod lease;
mod lua;
mod part;
mod redis;
mod saved;
mod script_texts;
mod scripts;
mod shard;
mod snapshot_file;

#[cfg(test)]
mod behaviours;
#[cfg(test)]
mod conformity;
#[cfg(test)]
mod equality;
#[cfg(test)]
mod leasing;
#[cfg(test)]
mod model;
#[cfg(test)]
mod scripted;
#[cfg(test)]
pub(crate) mod testing;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use self::redis::{Advice, Redis};
pub use embedded::Embedded;
pub use failed::{Cause, EngineError, Execution};
pub use found::FoundCounter;
pub use lease::{LeaseCall, LeaseHolder, LeaseReply};
pub use part::Part;
use part::{UNCHARGED, is_assured};
pub use saved::{
    CounterReceiver, CounterSender, OperationCounts, OperationReceiver, OperationSender,
    ReceiveError, SaveSummary,
};
pub use script_texts::SCRIPTS_MAX;
pub use scripts::{SCRIPT_BYTES_MAX, ScriptFile, Scripts, is_script_name};
use smallvec::SmallVec;
pub use snapshot_file::SaveError;
pub use weir_algorithms::{Content, Kind, NUMBERS_MAX, Program};

use crate::clock::Clock;
use crate::telemetry::{Metrics, SettingError};
use weir_tls::ClientTls;

/// A counter's name, as digests: clients can neither choose its slot nor make it long.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Decides the hash slot: only keys that share a tag can be decided together.
    pub tag: u128,
    /// Identifies whose allowance it is.
    pub key: u128,
    /// `SCOPE/LIMIT/SHAPE`: which limit the counter belongs to, and how to read its state.
    pub space: Arc<Space>,
}

/// `SCOPE/LIMIT/SHAPE` with its digest.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Space {
    /// The text, part of a Redis key.
    pub text: String,
    /// Its digest, for the embedded map.
    pub digest: u128,
}

/// One counter of a call.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The algorithm that decides it.
    pub program: &'static Program,
    /// Its name.
    pub key: Key,
    /// Microseconds per time unit: 1 or 1000.
    pub unit_us: u32,
    /// A shadow limit: it refuses no request, and is charged only when it fits and all enforced
    /// cells fit.
    pub shadow: bool,
    /// What it is to the cells beside it.
    pub part: Part,
    /// Units to take; 0 asks about one unit and takes none. In a give-back: units to return.
    pub cost: u64,
    /// The algorithm's numbers, in the order of its Lua header; unused ones are 0.
    pub numbers: [i64; NUMBERS_MAX],
    /// The name of the first unit, for kinds that store units by name (logs and leases). Each
    /// further one has the next: see [`new_member`].
    pub member: u128,
}

/// A name that no other take of a key has. Its lowest 32 bits are 0: the units of a take are
/// numbered there.
#[must_use]
pub fn new_member() -> u128 {
    // 96 random bits are as good as unique among the members of one key.
    fastrand::u128(..) << 32
}

/// Cells that share a tag and are taken all or none.
pub type Cells = SmallVec<[Cell; 1]>;

/// The outcome of a take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakeReply {
    /// The store's time of the decision, in microseconds since 1970. A give-back passes it to
    /// identify the take.
    pub at_us: u64,
    /// Whether all enforced cells fitted. What had to be written was then written.
    pub admitted: bool,
    /// One reply per cell, in order.
    pub cells: SmallVec<[CellReply; 2]>,
}

/// The outcome for one cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellReply {
    /// Whether the cost (or 1, for a cost of 0) fitted.
    pub fits: bool,
    /// Units left once this take is written.
    pub remaining: u64,
    /// If it does not fit: time units until it would, or `None` if it never can. If it fits: how
    /// long the request must wait, for an algorithm that queues; for sliding windows, when the next
    /// unit is free if none is left.
    pub retry_units: Option<u64>,
    /// Time units until the whole allowance is available again.
    pub reset_units: u64,
    /// The store's time is outside the periods named in the cell's numbers. Nothing was decided,
    /// and the caller should ask again with other periods.
    pub outside: bool,
    /// A parent whose debt has no room for the cost: its child is admitted all the same, and
    /// nothing of it was charged here.
    pub uncharged: bool,
}

/// The retry time that a program returns when it can't decide.
const OUTSIDE: i64 = -2;

/// The outcome of a charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChargeReply {
    /// The store's time, in microseconds since 1970.
    pub at_us: u64,
    /// The units charged to each cell, in order: its cost, or less if its debt has no room for
    /// more. `None`: the store's time is outside the periods named in the cell's numbers, and
    /// nothing was charged.
    pub units: SmallVec<[Option<u64>; 2]>,
}

/// Maximum number of nodes that [`Engine::explain`] names.
const EXPLAINED_NODES_MAX: usize = 4;

/// The part of the `[store]` section that the engine uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settings {
    /// Counters in memory.
    Embedded(EmbeddedSettings),
    /// Counters on Redis.
    Redis(Box<RedisSettings>),
}

impl From<RedisSettings> for Settings {
    fn from(settings: RedisSettings) -> Self {
        Self::Redis(Box::new(settings))
    }
}

impl Settings {
    /// Whether counters written under `other` remain valid, so that its engine can be kept and
    /// [`Engine::resize`]d.
    #[must_use]
    pub fn keeps_counters_of(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Embedded(_), Self::Embedded(_)) => true,
            (Self::Redis(settings), Self::Redis(other)) => settings == other,
            (Self::Embedded(_) | Self::Redis(_), _) => false,
        }
    }
}

impl Settings {
    /// Whether an engine with these settings finds the counters that one with `other` wrote, as far
    /// as settings tell: in memory, or on a Redis with a node that both name, under the same names.
    #[must_use]
    pub fn finds_counters_of(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Redis(settings), Self::Redis(other)) => settings.finds_counters_of(other),
            _ => self.keeps_counters_of(other),
        }
    }
}

/// `[store.embedded]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddedSettings {
    /// Maximum number of keys held at once.
    pub keys_max: usize,
    /// Where counters are saved, if they are.
    pub snapshot: Option<SnapshotSettings>,
    /// Identifies the secret under which keys are digested: a snapshot of counters under another
    /// one is of no use.
    pub secret_id: [u8; 16],
}

impl EmbeddedSettings {
    /// Settings without a snapshot and without a secret.
    #[must_use]
    pub fn new(keys_max: usize) -> Self {
        Self { keys_max, snapshot: None, secret_id: [0; 16] }
    }
}

/// Where and how often counters in memory are saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotSettings {
    /// The file.
    pub path: PathBuf,
    /// The time from the beginning of one save to that of the next, where saving takes at most a
    /// tenth of that; else ten times as long as it takes.
    pub every: Duration,
}

/// `[store.redis]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisSettings {
    /// `host:port` of any nodes of the cluster, of the server, or of the sentinels.
    pub nodes: Vec<String>,
    /// What they are.
    pub mode: RedisMode,
    /// Whom the sentinels watch; only with [`RedisMode::Sentinel`].
    pub sentinel: Option<SentinelSettings>,
    /// ACL user.
    pub username: Option<String>,
    /// Never logged.
    pub password: Option<Secret>,
    /// The prefix of every key; contains no braces.
    pub key_prefix: String,
    /// Time limit for one whole decision.
    pub deadline: Duration,
    /// How the nodes are verified, if they are connected to with TLS.
    pub tls: Option<ClientTls>,
    /// Where to find nodes that announce an address at which they can't be reached from here: from
    /// `host:port` as announced to `host:port` as reached.
    pub addresses: BTreeMap<String, String>,
}

impl RedisSettings {
    /// Settings without a user, without TLS, and with the defaults of `proxy.toml`.
    #[must_use]
    pub fn new(nodes: Vec<String>, mode: RedisMode) -> Self {
        Self {
            nodes,
            mode,
            sentinel: None,
            username: None,
            password: None,
            key_prefix: "weir".into(),
            deadline: Duration::from_millis(50),
            tls: None,
            addresses: BTreeMap::new(),
        }
    }
}

impl RedisSettings {
    fn finds_counters_of(&self, other: &Self) -> bool {
        let master = |of: &Self| of.sentinel.as_ref().map(|sentinel| sentinel.master.clone());
        self.nodes.iter().any(|node| other.nodes.contains(node))
            && (self.mode, master(self)) == (other.mode, master(other))
            && self.key_prefix == other.key_prefix
    }
}

/// What Redis Sentinel is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentinelSettings {
    /// The name under which the sentinels watch the master.
    pub master: String,
    /// ACL user at the sentinels.
    pub username: Option<String>,
    /// Never logged.
    pub password: Option<Secret>,
}

/// A cluster, or one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedisMode {
    /// Redis Cluster.
    Cluster,
    /// One server.
    Single,
    /// One master, which sentinels name.
    Sentinel,
}

/// A password or key. Its `Debug` output hides it, so that it never reaches a log.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Secret(..)")
    }
}

/// Where counters are stored: a closed set.
#[derive(Debug)]
pub enum Engine {
    /// Counters in this process.
    Embedded(Embedded),
    /// Counters on Redis.
    Redis(Redis),
}

impl Engine {
    /// Creates the engine. It does not connect yet: each worker opens its own connection on first
    /// use.
    ///
    /// # Errors
    /// A setting that can't work, such as an invalid address.
    pub fn build(
        settings: &Settings,
        clock: Clock,
        metrics: &Metrics,
    ) -> Result<Self, SettingError> {
        match settings {
            Settings::Embedded(settings) => {
                Ok(Self::Embedded(Embedded::new(settings, clock, metrics)))
            }
            // Redis uses its own clock.
            Settings::Redis(settings) => Ok(Self::Redis(Redis::new(settings, metrics)?)),
        }
    }

    /// Applies the settings of the embedded engine. Every other change needs a new engine.
    pub fn resize(&self, settings: &Settings) {
        if let (Self::Embedded(embedded), Settings::Embedded(settings)) = (self, settings) {
            embedded.resize(settings);
        }
    }

    /// Loads the counters that were saved to the configured snapshot, before any is used. What was
    /// found is logged.
    pub fn restore(&self) {
        if let Self::Embedded(embedded) = self {
            embedded.restore();
        }
    }

    /// Leaves the configured snapshot to another process, until the next save.
    pub fn release_snapshot(&self) {
        if let Self::Embedded(embedded) = self {
            *embedded.snapshot_file() = None;
        }
    }

    /// Ends [`OperationSender::run`], once it has sent what was decided before.
    pub fn end_operations(&self) {
        if let Self::Embedded(embedded) = self {
            embedded.end_operations();
        }
    }

    /// Drops expired counters in memory. Each call checks a small part of them, so that all are
    /// checked after 320 calls. Redis does this itself.
    pub fn sweep(&self) {
        if let Self::Embedded(embedded) = self {
            embedded.sweep();
        }
    }

    /// Saves counters in memory to the configured snapshot; `None` if there is none, or if nothing
    /// has changed since.
    ///
    /// # Errors
    /// See [`SaveError`].
    pub fn save(&self) -> Result<Option<SaveSummary>, SaveError> {
        match self {
            Self::Embedded(embedded) => embedded.save(),
            Self::Redis(_) => Ok(None),
        }
    }

    /// The shard that holds a counter, as far as it is known. The number only identifies the shard,
    /// and may change later.
    #[must_use]
    pub fn shard_of(&self, key: &Key) -> usize {
        match self {
            Self::Embedded(_) => 0,
            Self::Redis(redis) => redis.shard_of(key),
        }
    }

    /// Takes all cells or none. The cells share a tag, and no two of them a key.
    ///
    /// # Errors
    /// See [`EngineError`]; a refusal is not an error. Failures are counted here, by cause.
    pub async fn take(&self, cells: &Cells) -> Result<TakeReply, EngineError> {
        match self {
            Self::Embedded(embedded) => embedded.take(cells),
            Self::Redis(redis) => redis.take(cells, Duration::MAX).await,
        }
    }

    /// Answers what [`Engine::take`] would, within `left`, and writes nothing. Whether a cell fits,
    /// and when it will, depends on its cost. What remains, and when all of it is available again,
    /// is reported for the current state.
    ///
    /// # Errors
    /// See [`Engine::take`]; nothing is ever charged.
    pub async fn look(&self, cells: &Cells, left: Duration) -> Result<TakeReply, EngineError> {
        match self {
            Self::Embedded(embedded) => embedded.look(cells),
            Self::Redis(redis) => redis.look(cells, left).await,
        }
    }

    /// Like [`Engine::take`], but also bounded by `left` if that is shorter than the engine's own
    /// deadline: for a decision that makes several calls.
    ///
    /// # Errors
    /// See [`Engine::take`]; if `left` is zero nothing is sent.
    pub async fn take_within(
        &self,
        cells: &Cells,
        left: Duration,
    ) -> Result<TakeReply, EngineError> {
        match self {
            Self::Embedded(embedded) => embedded.take(cells),
            Self::Redis(redis) => redis.take(cells, left).await,
        }
    }

    /// Extends the leases of these cells to one full length from now. A lease that has ended starts
    /// again. The cells share a tag.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn renew(&self, cells: &Cells) -> Result<(), EngineError> {
        match self {
            Self::Embedded(embedded) => {
                embedded.renew(cells);
                Ok(())
            }
            Self::Redis(redis) => redis.renew(cells).await,
        }
    }

    /// Gives back `cost` units of each cell, taken at `taken_at_us`: only into the window that was
    /// charged, and never above full. The cells share a tag.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn give_back(&self, cells: &Cells, taken_at_us: u64) -> Result<(), EngineError> {
        match self {
            Self::Embedded(embedded) => embedded.give_back(cells, taken_at_us),
            Self::Redis(redis) => redis.give_back(cells, taken_at_us).await,
        }
    }

    /// Charges `cost` units of each cell, into debt if need be, independently of the other cells.
    /// The cells share a tag, and the programs of all of them have a `charge`.
    ///
    /// # Errors
    /// See [`EngineError`]; failures are counted here, by cause.
    pub async fn charge(&self, cells: &Cells) -> Result<ChargeReply, EngineError> {
        match self {
            Self::Embedded(embedded) => embedded.charge(cells),
            Self::Redis(redis) => redis.charge(cells).await,
        }
    }

    /// Takes several units of one counter, for its holder to spend.
    ///
    /// # Errors
    /// See [`Engine::take`]. In memory there are no leases: as if the store could not be reached.
    pub async fn lease(
        &self,
        cell: &Cell,
        lease: LeaseCall<'_>,
    ) -> Result<LeaseReply, EngineError> {
        match self {
            Self::Embedded(_) => Err(EngineError { cause: Cause::Connection, ran: Execution::No }),
            Self::Redis(redis) => redis.lease(cell, lease).await,
        }
    }

    /// The holders of leases of a counter. None in memory.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn lease_holders(&self, key: &Key) -> Result<Vec<LeaseHolder>, EngineError> {
        match self {
            Self::Embedded(_) => Ok(Vec::new()),
            Self::Redis(redis) => redis.holders(key).await,
        }
    }

    /// Deletes a counter, which restores its whole allowance.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn reset(&self, key: &Key) -> Result<(), EngineError> {
        match self {
            Self::Embedded(embedded) => {
                embedded.reset(key);
                Ok(())
            }
            Self::Redis(redis) => redis.reset(key).await,
        }
    }

    /// Remembers a space, so that [`Engine::find`] finds its counters. Redis needs no such list, as
    /// its key names contain the space.
    pub fn note_space(&self, space: &Arc<Space>) {
        if let Self::Embedded(embedded) = self {
            embedded.note_space(space);
        }
    }

    /// The counters of `key` in all spaces that begin with `prefix`. For operators, not for
    /// requests. `kind` returns what the counters of a space are made of. The embedded engine keeps
    /// no names, so it searches only the spaces passed to [`Engine::note_space`].
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn find(
        &self,
        key: &Key,
        prefix: &str,
        kind: fn(&str) -> Option<Kind>,
    ) -> Result<Vec<FoundCounter>, EngineError> {
        match self {
            Self::Embedded(embedded) => Ok(embedded.find(key, prefix)),
            Self::Redis(redis) => redis.find(key, prefix, kind).await,
        }
    }

    /// The nodes of the store that could not be connected to, each with the reason.
    #[must_use]
    pub fn unreached(&self) -> Vec<(String, String)> {
        match self {
            Self::Embedded(_) => Vec::new(),
            Self::Redis(redis) => redis.unreached(),
        }
    }

    /// The servers that hold the counters: a cluster's masters, or those in the settings before any
    /// was asked. None in this process.
    #[must_use]
    pub fn nodes(&self) -> Vec<String> {
        match self {
            Self::Embedded(_) => Vec::new(),
            Self::Redis(redis) => redis.nodes(),
        }
    }

    /// A tag on each shard that is known, with its server, which has no name in this process.
    pub(crate) fn tags(&self) -> Vec<(String, u128)> {
        let Self::Redis(redis) = self else { return vec![(String::new(), 0)] };
        redis.tags()
    }

    /// `error` for an operator: with the nodes that it may be about, why they could not be
    /// connected to, and what to do.
    #[must_use]
    pub fn explain(&self, error: &EngineError) -> String {
        // What can't be reached says nothing about nodes that answer.
        let is_away = error.cause.is_about_the_node();
        let unreached = if is_away { self.unreached() } else { Vec::new() };
        let mut about: Vec<String> = if unreached.is_empty() {
            self.nodes()
        } else {
            unreached.iter().map(|(node, why)| format!("{node} ({why})")).collect()
        };
        let more = about.len().saturating_sub(EXPLAINED_NODES_MAX);
        about.truncate(EXPLAINED_NODES_MAX);
        if more > 0 {
            about.push(format!("{more} more"));
        }
        let about = about.join(", ");
        let nodes = if about.is_empty() { String::new() } else { format!(": Redis {about}") };
        format!("{error}{nodes}; {}", error.cause.remedy())
    }

    /// Has the store load scripts that were tried here; returns those that it can't load, each with
    /// why. None in memory, where they were loaded for their trial.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn try_scripts(
        &self,
        scripts: &Scripts,
    ) -> Result<Vec<(String, String)>, EngineError> {
        match self {
            Self::Embedded(_) => Ok(Vec::new()),
            Self::Redis(redis) => redis.try_scripts(scripts).await,
        }
    }

    /// The versions and settings of the store's servers that an operator should change, as far as
    /// they can be read.
    pub async fn advice(&self) -> Advice {
        match self {
            Self::Embedded(_) => Advice::default(),
            Self::Redis(redis) => redis.advice().await,
        }
    }

    /// Checks that the store can decide now: for `/ready`. Returns the shards that can't, each with
    /// its cause.
    ///
    /// # Errors
    /// The reason why none can.
    pub async fn ping(&self) -> Result<Vec<(String, Cause)>, EngineError> {
        match self {
            Self::Embedded(_) => Ok(Vec::new()),
            Self::Redis(redis) => redis.ping().await,
        }
    }
}
