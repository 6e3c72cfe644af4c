//! What a policy says about itself when it is configured, besides the facts that it reads: the
//! limits that its decisions may have, and what is probably unintended in its configuration.
//!
//! Nothing is decided by it. The limits are for `weir check`, `weir key` and what a reload reports;
//! of a guest that declares none, `listed` looks for them in the configuration. The warnings are
//! shown by `weir check`, at start and at a reload.

use serde_json::Value;

use crate::plan::{Algorithm, Lease};
use crate::telemetry::{Lint, SettingError};

/// A limit that a policy's decisions may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredLimit {
    /// Its name.
    pub name: String,
    /// The setting that it is read from or made of, such as `plans.gold[0]`; empty if it is the
    /// policy's default.
    pub at: String,
    /// How it counts.
    pub algorithm: Algorithm,
    /// The request facts that its key is made of.
    pub key_facts: Vec<String>,
    /// What its keys begin with.
    pub key_prefix: String,
    /// Limits with the same text are charged by the same requests, each as its setting says, and
    /// not settled.
    pub together: Option<String>,
    /// The most units that one request takes, if the policy knows.
    pub cost_max: Option<u64>,
    /// How it is leased, if it is.
    pub lease: Option<Lease>,
}

impl DeclaredLimit {
    /// The setting that it is read from or made of; `None` if there is none.
    #[must_use]
    pub fn setting_in<'a>(&self, config: &'a Value) -> Option<&'a Value> {
        if self.at.is_empty() { None } else { find(config, &self.at) }
    }

    /// What counts it: with leases that is more than it says. Where counters are in memory, only
    /// callers have leases.
    #[must_use]
    pub fn counting(&self, in_memory: bool) -> Algorithm {
        let lease = self.lease.filter(|lease| lease.to_callers || !in_memory);
        let leased = lease.and_then(|lease| self.algorithm.leased(lease).ok());
        leased.map_or_else(|| self.algorithm.clone(), |leased| leased.at_store)
    }

    /// What is wrong with its lease: its algorithm has none, or none of that life, or a request
    /// costs more than can be leased, or one of `all` is a child of its places.
    pub(super) fn lease_error(&self, all: &[Self]) -> Option<SettingError> {
        let lease = self.lease.filter(|_| !self.algorithm.refuses_all())?;
        let dot = if self.at.is_empty() { "" } else { "." };
        let error = |found: String, expected: String| {
            Some(SettingError::new(format!("config{dot}{}.lease", self.at), found, expected))
        };
        if lease.units_max == Some(0) {
            return error("0 units".into(), "at least 1".into());
        }
        let children = format!("{}.children.", self.at);
        if self.algorithm.holds() && all.iter().any(|it| it.at.starts_with(&children)) {
            let expected = "nothing: a concurrency with children has no leases";
            return error(format!("{} ms", lease.life_ms), expected.into());
        }
        let at_store = match self.algorithm.leased(lease) {
            Ok(leased) => leased.at_store,
            Err(expected) => return error(format!("{} ms", lease.life_ms), expected),
        };
        let (most, whole) = (at_store.cost_max()?, self.algorithm.cost_max()?);
        let cost = self.cost_max.filter(|cost| (most + 1..=whole).contains(cost))?;
        error(
            format!("{} ms", lease.life_ms),
            format!(
                "less: with it at most {most} units could pass at once, and a request costs {cost}"
            ),
        )
    }
}

/// The value at the path `at` of a configuration, such as `plans.gold[0]`. Names may contain dots.
fn find<'a>(value: &'a Value, at: &str) -> Option<&'a Value> {
    match value {
        _ if at.is_empty() => Some(value),
        Value::Array(items) => {
            let (index, rest) = at.strip_prefix('[')?.split_once(']')?;
            find(items.get(index.parse::<usize>().ok()?)?, rest)
        }
        Value::Object(table) => {
            let at = at.strip_prefix('.').unwrap_or(at);
            table.iter().find_map(|(key, member)| {
                let rest = at.strip_prefix(key.as_str())?;
                let ends = rest.is_empty() || rest.starts_with(['.', '[']);
                if ends { find(member, rest) } else { None }
            })
        }
        _ => None,
    }
}

/// Something in a policy's configuration that is allowed and probably not meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Its kind. `weir check --allow` takes it, with `policy.` before it if the proxy has no such
    /// kind itself.
    pub kind: String,
    /// Its setting, below `config`.
    pub at: String,
    /// One sentence without a full stop.
    pub text: String,
    /// Settings that are shown with it, each with a label.
    pub beside: Vec<(String, String)>,
    /// What to do about it.
    pub remedy: Option<String>,
}

impl Warning {
    /// The same for people, below the policy's section.
    pub(super) fn lint(&self) -> Lint {
        let setting = |at: &str| match at {
            "" => "config".to_owned(),
            _ if at.starts_with('[') => format!("config{at}"),
            _ => format!("config.{at}"),
        };
        let lint = Lint::of_policy(&self.kind, setting(&self.at), self.text.as_str());
        // A warning about the whole configuration marks where it begins.
        let lint = if self.at.is_empty() { lint.in_key() } else { lint };
        let beside = self.beside.iter();
        let lint = beside.fold(lint, |lint, (at, label)| lint.beside(setting(at), label.as_str()));
        match &self.remedy {
            Some(remedy) => lint.remedy(remedy.as_str()),
            None => lint,
        }
    }
}
