//! What serves by one configuration. A reload builds the next [`AppliedConfig`] aside and swaps it
//! in as one value: requests, connections and the operator's pages all read that value, so nothing
//! sees half of a reload.

use std::sync::Arc;

use arc_swap::ArcSwap;
use arc_swap::access::Map;

use super::build::ConfigBuild;
use super::counters::Charges;
use super::descriptors::Descriptors;
use crate::admin;
use crate::config::setting;
use crate::listen::{ConfigSource, ConnectionSettings, ListenConfig};
use crate::plan::OnStoreError;
use crate::proxy::{Snapshot, SnapshotSource};
use crate::upstream::Budget;

/// Maximum number of simultaneous connections to the operator's pages.
const ADMIN_CONNECTIONS_MAX: usize = 256;

/// What serves by one configuration.
#[derive(Debug)]
pub(super) struct AppliedConfig {
    /// Kept for the next configuration to compare with, and shown to the operator.
    pub(super) built: ConfigBuild,
    /// What requests are served by.
    snapshot: Arc<Snapshot>,
    /// What connections of clients are served by.
    clients: ListenConfig,
    /// What connections to the operator's pages are served by.
    operators: ListenConfig,
    /// Whether some route refuses its clients when the store does not answer.
    pub(super) store_is_needed: bool,
    pub(super) charges: Vec<Charges>,
}

impl AppliedConfig {
    /// Divides the file descriptors for `built`, too. Connections are bounded by what they allow;
    /// upstreams share `budget`.
    pub(super) fn new(
        built: ConfigBuild,
        snapshot: Snapshot,
        before: Option<&ConfigBuild>,
        descriptors: Descriptors,
        budget: &Budget,
    ) -> Self {
        let (clients, operators) = within(descriptors, &built, before, budget);
        let store_is_needed = built
            .routes
            .iter()
            .any(|route| route.policy.is_some() && route.on_store_error == OnStoreError::Deny);
        let policies = built.policies.iter();
        let policies = policies.map(|(name, (_, policy))| (name.as_str(), policy.limits()));
        Self {
            snapshot: Arc::new(snapshot),
            clients: ListenConfig {
                settings: Arc::new(clients),
                tls: built.tls.clone(),
                proxy_protocol: built.listeners.iter().map(|one| one.proxy_protocol).collect(),
            },
            operators: ListenConfig::from(operators),
            store_is_needed,
            charges: Charges::of(&built.routes, policies),
            built,
        }
    }
}

impl AppliedConfig {
    /// Maximum number of simultaneous connections to the operator's pages.
    pub(super) fn operators_max(&self) -> usize {
        self.operators.settings.connections_max
    }
}

/// The one value that a reload swaps, and the parts of it that other modules read.
#[derive(Clone, Debug)]
pub(super) struct CurrentConfig(Arc<ArcSwap<AppliedConfig>>);

impl CurrentConfig {
    pub(super) fn new(applied: AppliedConfig) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(applied)))
    }

    /// What serves now.
    pub(super) fn load(&self) -> Arc<AppliedConfig> {
        self.0.load_full()
    }

    /// Lets `applied` serve from now on.
    pub(super) fn swap(&self, applied: AppliedConfig) {
        self.0.store(Arc::new(applied));
    }

    pub(super) fn snapshot(&self) -> SnapshotSource {
        Arc::new(Map::new(Arc::clone(&self.0), |applied: &AppliedConfig| &applied.snapshot))
    }

    pub(super) fn clients(&self) -> ConfigSource {
        Arc::new(Map::new(Arc::clone(&self.0), |applied: &AppliedConfig| &applied.clients))
    }

    pub(super) fn operators(&self) -> ConfigSource {
        Arc::new(Map::new(Arc::clone(&self.0), |applied: &AppliedConfig| &applied.operators))
    }

    pub(super) fn admin(&self) -> admin::SettingsSource {
        Arc::new(Map::new(Arc::clone(&self.0), |applied: &AppliedConfig| &applied.built.admin))
    }
}

/// How many connections there may be to the listeners and to the operator's pages: what `built`
/// says, as far as the descriptors allow it.
fn within(
    descriptors: Descriptors,
    built: &ConfigBuild,
    before: Option<&ConfigBuild>,
    budget: &Budget,
) -> (ConnectionSettings, ConnectionSettings) {
    let public = &built.connections;
    let shares = descriptors.share(
        public.connections_max,
        ADMIN_CONNECTIONS_MAX,
        built.workers,
        built.listeners.len(),
    );
    if before.is_none_or(|before| before.connections.connections_max != public.connections_max) {
        shares.warn(setting::CONNECTIONS, public.connections_max);
    }
    budget.set(shares.upstreams, built.workers);
    // Where there are fewer than configured, one address gets at most half of them.
    let of_an_address = if shares.clients < public.connections_max {
        (shares.clients / 2).max(1)
    } else {
        usize::MAX
    };
    let clients = ConnectionSettings {
        connections_max: shares.clients,
        connections_per_address_max: public.connections_per_address_max.min(of_an_address),
        ..public.clone()
    };
    // Scrapers and people behind one address share them.
    let operators = ConnectionSettings {
        connections_max: shares.admin,
        connections_per_address_max: ADMIN_CONNECTIONS_MAX,
        ..public.clone()
    };
    (clients, operators)
}
