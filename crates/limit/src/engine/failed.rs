//! Why the store gave no decision, and what an operator may do about it.

use crate::telemetry::{Label as _, labels};

/// Why the store gave no decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("the store failed: {}", cause.label())]
pub struct EngineError {
    /// What went wrong.
    pub cause: Cause,
    /// Whether the script may have run anyway.
    pub ran: Execution,
}

labels! {
    /// What went wrong. A closed set, as it is a metric label.
    pub enum Cause {
        /// No answer within the deadline.
        Timeout = "timeout",
        /// No connection could be opened, or it was closed.
        Connection = "connection",
        /// Redis is out of memory (`OOM`).
        OutOfMemory = "out_of_memory",
        /// `NOREPLICAS`: too few replicas to write.
        NoReplicas = "no_replicas",
        /// `BUSY`: another script is blocking the server.
        Busy = "busy",
        /// `NOPERM`, `NOAUTH`, `WRONGPASS`.
        NoPermission = "no_permission",
        /// `MISCONF`: Redis refuses writes.
        Misconfigured = "misconfigured",
        /// Redis is a single server, and `store.redis.mode` asks for a cluster.
        NoCluster = "no_cluster",
        /// The node is part of a cluster, and `store.redis.mode` says that it is not.
        NotSingle = "not_single",
        /// The cluster does not serve the slot at the moment, or kept redirecting.
        Cluster = "cluster",
        /// `LOADING`: the node has started, and still reads its data.
        Loading = "loading",
        /// `READONLY`, `MASTERDOWN`: the node is a replica.
        Replica = "replica",
        /// Too many calls to the shard are in flight: nothing was sent.
        Overload = "overload",
        /// The embedded engine already holds its maximum number of keys.
        Full = "full",
        /// A script failed, or a reply could not be parsed: a bug.
        Script = "script",
    }
}

impl Cause {
    /// Whether it is about one node at this moment: another one may own its slots now.
    #[must_use]
    pub fn is_about_the_node(self) -> bool {
        matches!(
            self,
            Self::Timeout | Self::Connection | Self::Cluster | Self::Loading | Self::Replica
        )
    }

    /// What an operator may do about it. `docs/operations.md` says more.
    #[must_use]
    pub fn remedy(self) -> &'static str {
        match self {
            Self::Timeout => {
                "is the node overloaded, frozen or cut off? store.deadline bounds each decision"
            }
            Self::Connection => "is the node running, and reachable from here?",
            Self::OutOfMemory => "raise its maxmemory, or add shards",
            Self::NoReplicas => "it has too few replicas for its min-replicas-to-write",
            Self::Busy => "a script or module blocks it: SCRIPT KILL ends a script that only reads",
            Self::NoPermission => {
                "check store.redis' user, password and key_prefix, and the user's ACL"
            }
            Self::Misconfigured => "it refuses writes because it can't save: see its own log",
            Self::NoCluster => {
                "it is a single server: write store.redis.mode = \"single\", or name the nodes of a \
                 cluster"
            }
            Self::NotSingle => {
                "it is part of a cluster, and decides only the keys of its own slots: write \
                 store.redis.mode = \"cluster\""
            }
            Self::Cluster => "slots move, or have no master: see CLUSTER INFO and CLUSTER NODES",
            Self::Loading => "it has started and still reads its data: wait for it",
            Self::Replica => {
                "it is a replica and takes no writes: name its master, or the sentinels with \
                 store.redis.mode = \"sentinel\"; a failover ends by itself"
            }
            Self::Overload => "it answers too slowly for the calls that it gets: add shards",
            Self::Script | Self::Full => "see the log for what was said before",
        }
    }
}

/// Whether a failed call may have run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Execution {
    /// It did not run.
    No,
    /// It may have run, and units may have been charged.
    Unknown,
}
