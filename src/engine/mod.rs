//! Runs algorithms on counters, atomically: on a Redis Cluster or in memory, the same Lua in both.
//!
//! This room knows keys, whole numbers and programs (a text and its digest). It knows no plan and
//! no policy: what a number means is the business of `limit` and of the program. Programs are pure
//! functions in `lua/`; the driver around them - read, decide, write only when all agreed - is
//! generated in `driver` for Redis and done in Rust in `embedded`.

mod counters;
mod driver;
mod embedded;
mod found;
mod key;
mod lua;
mod redis;
mod scripts;
mod shard;

#[cfg(test)]
mod behaviours;
#[cfg(test)]
mod conformity;
#[cfg(test)]
mod equality;
#[cfg(test)]
mod model;
#[cfg(test)]
mod scripted;
#[cfg(test)]
pub(crate) mod testing;

use std::sync::Arc;
use std::time::Duration;

pub use self::redis::Redis;
pub use embedded::Embedded;
pub use found::Found;
pub use scripts::{SCRIPT_BYTES_MAX, SCRIPTS_MAX, ScriptFile, Scripts, is_script_name};
use smallvec::SmallVec;
pub use weir_algorithms::{Content, Kind, NUMBERS_MAX, Program};

use crate::clock::Clock;
use crate::telemetry::{Metrics, Mistake, labels};

/// A counter's name, digested: callers can't steer its slot nor make it long.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Decides the slot: keys with one tag are decided together.
    pub tag: u128,
    /// Whose allowance.
    pub key: u128,
    /// `SCOPE/LIMIT/SHAPE`: what the counter belongs to and what its state means.
    pub space: Arc<Space>,
}

/// `SCOPE/LIMIT/SHAPE` with its digest.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Space {
    /// As text, for Redis' keys.
    pub text: String,
    /// As a number, for the embedded map.
    pub digest: u128,
}

/// One counter of a call.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Its algorithm.
    pub program: &'static Program,
    /// Its name.
    pub key: Key,
    /// Microseconds in its time unit: 1 or 1000.
    pub unit_us: u32,
    /// It is charged only when it fits and all enforced ones fit, and refuses nobody.
    pub shadow: bool,
    /// Units to take; 0 only looks. In a give-back: units to return.
    pub cost: u64,
    /// The algorithm's numbers, as its header says; those that it has not are 0.
    pub numbers: [i64; NUMBERS_MAX],
    /// Names what is taken, where the store keeps it by name (logs and leases); unique for each
    /// take of a key.
    pub member: u128,
}

/// Cells under one tag, to be taken all or none.
pub type Cells = SmallVec<[Cell; 1]>;

/// What a take answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The store's time of the decision, in microseconds since 1970: names the take when it is
    /// given back.
    pub at_us: u64,
    /// All enforced cells fitted, and what had to be written was written.
    pub admitted: bool,
    /// One for each cell, in order.
    pub cells: SmallVec<[CellReply; 2]>,
}

/// What one cell answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellReply {
    /// Whether the cost (or 1, for a cost of 0) fitted.
    pub fits: bool,
    /// Units left if this take is written.
    pub remaining: u64,
    /// Time units until it would fit, where it does not and ever can. Where it fits: how long it
    /// must wait for its turn, in an algorithm that has requests wait; of sliding windows, when a
    /// unit is back where it leaves nothing.
    pub retry_units: Option<u64>,
    /// Time units until the whole allowance is back.
    pub reset_units: u64,
    /// The store's time lies outside what the cell's numbers are about: nothing was decided, and
    /// whoever asks should name others.
    pub outside: bool,
}

/// What a program answers as time to retry when it can't decide.
const OUTSIDE: i64 = -2;

/// Why the store gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("the store failed: {cause:?}")]
pub struct EngineError {
    /// What went wrong.
    pub cause: Cause,
    /// Whether the script may have run all the same.
    pub ran: Ran,
}

labels! {
    /// What went wrong: a metric's label.
    pub enum Cause {
        /// No answer within the deadline.
        Timeout = "timeout",
        /// No connection, or it was cut.
        Connection = "connection",
        /// Redis is out of memory (`OOM`).
        OutOfMemory = "out_of_memory",
        /// `NOREPLICAS`: too few replicas to write.
        NoReplicas = "no_replicas",
        /// `BUSY`: another script holds the server.
        Busy = "busy",
        /// `NOPERM`, `NOAUTH`, `WRONGPASS`.
        NoPermission = "no_permission",
        /// `MISCONF`: Redis refuses writes.
        Misconfigured = "misconfigured",
        /// The cluster serves no such slot now, or kept moving it.
        Cluster = "cluster",
        /// The embedded engine holds its maximum of keys.
        Full = "full",
        /// A script's error, or a reply that makes no sense: a bug.
        Script = "script",
    }
}

/// Whether a failed call may have run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ran {
    /// Certainly not.
    No,
    /// Unknown: it may have been charged.
    Unknown,
}

/// The `[store]` section, as far as it concerns the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settings {
    /// In memory.
    Embedded(EmbeddedSettings),
    /// On Redis.
    Redis(RedisSettings),
}

impl Settings {
    /// Whether counters that were made under `other` stay what they are: an engine that has them
    /// can be kept, and [`Engine::resize`]d.
    #[must_use]
    pub fn keeps_counters_of(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Embedded(_), Self::Embedded(_)) => true,
            (Self::Redis(settings), Self::Redis(other)) => settings == other,
            (Self::Embedded(_) | Self::Redis(_), _) => false,
        }
    }
}

/// `[store.embedded]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddedSettings {
    /// Keys held at once, at most.
    pub keys_max: usize,
}

/// `[store.redis]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisSettings {
    /// `host:port`, any of the cluster.
    pub nodes: Vec<String>,
    /// A cluster, or one server.
    pub mode: RedisMode,
    /// ACL user.
    pub username: Option<String>,
    /// Never shown.
    pub password: Option<Secret>,
    /// Before every key; without braces.
    pub key_prefix: String,
    /// Of one whole decision.
    pub deadline: Duration,
}

/// A cluster, or one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedisMode {
    /// Redis Cluster.
    Cluster,
    /// One server.
    Single,
}

/// A password or key that no log line shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Secret(..)")
    }
}

/// Where counters live: a closed set.
#[derive(Debug)]
pub enum Engine {
    /// In this process.
    Embedded(Embedded),
    /// On Redis.
    Redis(Redis),
}

impl Engine {
    /// Makes the engine. Connects to nothing yet: each worker opens its own connection when it
    /// first needs one.
    ///
    /// # Errors
    /// Settings that can't work (an address that is none).
    pub fn build(settings: &Settings, clock: Clock, metrics: &Metrics) -> Result<Self, Mistake> {
        match settings {
            Settings::Embedded(settings) => {
                Ok(Self::Embedded(Embedded::new(settings, clock, metrics)))
            }
            // Redis tells the time itself.
            Settings::Redis(settings) => Ok(Self::Redis(Redis::new(settings, metrics)?)),
        }
    }

    /// Takes on how many counters `settings` allow; whatever else they say has an engine of its
    /// own.
    pub fn resize(&self, settings: &Settings) {
        if let (Self::Embedded(embedded), Settings::Embedded(settings)) = (self, settings) {
            embedded.resize(settings);
        }
    }

    /// Which of the store's shards has a counter, as far as that is known: a number that says
    /// nothing else, and may be another one later.
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
    /// See [`EngineError`]; a refusal is no error. Failures are counted here, by cause.
    pub async fn take(&self, cells: &Cells) -> Result<Taken, EngineError> {
        match self {
            Self::Embedded(embedded) => embedded.take(cells),
            Self::Redis(redis) => redis.take(cells, Duration::MAX).await,
        }
    }

    /// Says what [`Engine::take`] would, within `left`, and writes nothing. Whether a cell fits,
    /// and when it will, is about its cost; what remains, and when all is back, is said as it
    /// stands.
    ///
    /// # Errors
    /// See [`Engine::take`]; nothing may have been charged.
    pub async fn look(&self, cells: &Cells, left: Duration) -> Result<Taken, EngineError> {
        match self {
            Self::Embedded(embedded) => embedded.look(cells),
            Self::Redis(redis) => redis.look(cells, left).await,
        }
    }

    /// As [`Engine::take`], and within `left` where that is less than the engine's own deadline:
    /// for a decision that asks more than once.
    ///
    /// # Errors
    /// See [`Engine::take`]; with no time left nothing is sent.
    pub async fn take_within(&self, cells: &Cells, left: Duration) -> Result<Taken, EngineError> {
        match self {
            Self::Embedded(embedded) => embedded.take(cells),
            Self::Redis(redis) => redis.take(cells, left).await,
        }
    }

    /// Keeps the leases of these cells for another length of them; one that has ended begins again.
    /// The cells share a tag.
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

    /// Gives back `cost` of each cell, taken at `taken_at_us`; only into the same window, never
    /// above full. The cells share a tag.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn give_back(&self, cells: &Cells, taken_at_us: u64) -> Result<(), EngineError> {
        match self {
            Self::Embedded(embedded) => embedded.give_back(cells, taken_at_us),
            Self::Redis(redis) => redis.give_back(cells, taken_at_us).await,
        }
    }

    /// Forgets a counter: its whole allowance is back.
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

    /// Remembers a space whose counters may be looked for. On Redis their names say it.
    pub fn note_space(&self, space: &Arc<Space>) {
        if let Self::Embedded(embedded) = self {
            embedded.note_space(space);
        }
    }

    /// The counters of `key`, whatever its space, whose space begins with `prefix`: for a person
    /// who asks, not for requests. `kind` says of a space what its counters are made of. Of a
    /// counter in memory no name is kept, so only the spaces that were noted are looked at.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn find(
        &self,
        key: &Key,
        prefix: &str,
        kind: fn(&str) -> Option<Kind>,
    ) -> Result<Vec<Found>, EngineError> {
        match self {
            Self::Embedded(embedded) => Ok(embedded.find(key, prefix)),
            Self::Redis(redis) => redis.find(key, prefix, kind).await,
        }
    }

    /// Whether the store answers now: for `/ready`.
    ///
    /// # Errors
    /// Why it does not.
    pub async fn ping(&self) -> Result<(), EngineError> {
        match self {
            Self::Embedded(_) => Ok(()),
            Self::Redis(redis) => redis.ping().await,
        }
    }
}
