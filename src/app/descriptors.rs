//! File descriptors: how many this process may have, and how they are divided among clients,
//! upstreams and the operator. Knows no connection.
//!
//! Running out of descriptors must not look like a failing upstream, and must not shut the operator
//! out. So the numbers of connections are bounded beforehand by the descriptors that there are: see
//! [`Shares`].

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors for the log, watched files, signals, files of the configuration while they are read,
/// and the thread of the admin pages.
const FIXED: usize = 24;
/// Descriptors of each worker: for its runtime, its connections to Redis, and a name that is being
/// resolved.
const PER_WORKER: usize = 8;
/// Connections to the admin pages, where descriptors are scarce: a sixteenth of them, and at least
/// eight.
const ADMIN_PART: usize = 16;
const ADMIN_MIN: usize = 8;

/// How many files the process may have open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptors {
    have: usize,
}

/// What the descriptors allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shares {
    /// Connections of clients.
    pub(super) clients: usize,
    /// Connections to upstreams.
    pub(super) upstreams: usize,
    /// Connections to the admin pages.
    pub(super) admin: usize,
    /// Descriptors that there are, and how many the settings would take.
    pub(super) have: usize,
    pub(super) wanted: usize,
}

impl Descriptors {
    /// Raises the soft limit to the hard one, and reads how many there are then.
    pub(super) fn raise() -> Self {
        let limit = getrlimit(Resource::Nofile);
        // Some systems refuse to remove the limit altogether: then the current one stays.
        if limit.current != limit.maximum
            && let Err(error) = setrlimit(
                Resource::Nofile,
                Rlimit { current: limit.maximum, maximum: limit.maximum },
            )
        {
            tracing::warn!(%error, "the number of open files can't be raised to its hard limit");
        }
        let have = getrlimit(Resource::Nofile).current.and_then(|have| usize::try_from(have).ok());
        Self { have: have.unwrap_or(usize::MAX) }
    }

    /// Divides them. If there are enough: `connections` for clients, and at least as many for
    /// upstreams. If not: half each of what is left after `workers` and their `listeners`.
    pub(super) fn share(
        self,
        connections: usize,
        admin: usize,
        workers: usize,
        listeners: usize,
    ) -> Shares {
        let have = self.have;
        let own = FIXED + workers.saturating_mul(PER_WORKER + listeners);
        let wanted = own.saturating_add(admin).saturating_add(connections.saturating_mul(2));
        if have >= wanted {
            let upstreams = have - own - admin - connections;
            return Shares { clients: connections, upstreams, admin, have, wanted };
        }
        let admin = admin.min((have / ADMIN_PART).max(ADMIN_MIN));
        let rest = have.saturating_sub(own + admin);
        let clients = connections.min((rest / 2).max(1));
        Shares { clients, upstreams: rest.saturating_sub(clients).max(1), admin, have, wanted }
    }
}

impl Shares {
    /// Warns if fewer clients are served than the configuration allows. `setting` is the path of
    /// the setting that allows `connections`.
    pub(super) fn warn(&self, setting: &str, connections: usize) {
        if self.clients < connections {
            let Self { have, wanted, clients, .. } = *self;
            tracing::warn!(
                have,
                wanted,
                "this process may open {have} files, and {setting} = {connections} needs {wanted}: \
                 at most {clients} clients are connected at once; raise the limit \
                 (ulimit -n, LimitNOFILE) or lower the setting"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enough_descriptors_satisfy_all_settings() {
        let shares = Descriptors { have: 100_000 }.share(20_000, 256, 2, 1);
        assert_eq!((shares.clients, shares.admin), (20_000, 256));
        assert!(shares.upstreams >= 20_000, "{shares:?}");
        assert_eq!(shares.wanted, 24 + 2 * 9 + 256 + 40_000);
        let all = Descriptors { have: usize::MAX }.share(20_000, 256, 2, 1);
        assert!(all.upstreams > 1_000_000);
    }

    #[test]
    fn few_descriptors_are_shared_by_clients_and_upstreams() {
        for (have, operators) in
            [(0, 8), (10, 8), (64, 8), (100, 8), (1_024, 64), (4_096, 256), (40_000, 256)]
        {
            let Shares { clients, upstreams, admin, wanted, .. } =
                Descriptors { have }.share(20_000, 256, 2, 1);
            assert!(clients >= 1 && upstreams >= 1 && admin == operators && wanted > have);
            assert!(
                have < 64 || 24 + 18 + admin + clients + upstreams <= have,
                "{have}: {clients} {upstreams}"
            );
        }
        assert_eq!(Descriptors { have: 64 }.share(20_000, 256, 2, 1).clients, 7);
        // A small setting is not touched.
        assert_eq!(Descriptors { have: 1_024 }.share(100, 256, 2, 1).clients, 100);
    }

    #[test]
    fn the_soft_limit_is_raised_to_the_hard_one() {
        let raised = Descriptors::raise();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
        assert_eq!(
            raised.have,
            limit.current.map_or(usize::MAX, |have| usize::try_from(have).unwrap())
        );
    }
}
