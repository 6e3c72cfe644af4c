//! What guests may use: settings with a name and a default for each cap. `instance` and `runtime`
//! enforce them, and a message about one that was reached names its setting.
//!
//! What a single answer may contain (headers, labels, lengths of names) is part of the contract,
//! not a setting: see `answer`.

use std::path::PathBuf;
use std::time::Duration;

/// What instances of one policy may use, besides `cpu_time` and `memory`: keys of
/// `[policies.NAME]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caps {
    /// `start_cpu_time`: CPU time to start an instance and configure it.
    pub start_cpu_time: Duration,
    /// `module_bytes`: size of the module.
    pub module_bytes: usize,
    /// `answer_bytes`: what a guest may hand over in one call, approximately. With the default the
    /// largest plan of the contract fits: 16 limits with 4 KiB of key and of tag each. Otherwise a
    /// client's long header could make a good policy fail.
    pub answer_bytes: usize,
    /// `log_lines`: lines that a guest may log in one call; the rest is only counted.
    pub log_lines: u32,
    /// `log_lines_per_second`: lines of all instances of the policy together, as the process has
    /// only one log.
    pub log_lines_per_second: u32,
    /// `breaker`: when a policy that keeps failing is stopped.
    pub breaker: BreakerSettings,
}

impl Default for Caps {
    fn default() -> Self {
        Self {
            start_cpu_time: Duration::from_millis(250),
            module_bytes: 64 << 20,
            answer_bytes: 256 << 10,
            log_lines: 8,
            log_lines_per_second: 100,
            breaker: BreakerSettings::default(),
        }
    }
}

/// When a policy that keeps failing is stopped, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BreakerSettings {
    /// Failures after which a policy is suspected, if they are most of the calls since the first of
    /// them. With 0 it is never stopped.
    pub failures: u32,
    /// How long it is stopped.
    pub time: Duration,
    /// `time` doubles up to this while it still fails.
    pub time_max: Duration,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self { failures: 20, time: Duration::from_secs(1), time_max: Duration::from_secs(30) }
    }
}

/// What all policies of the process share: `[server.policies]`, and where compiled code is cached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeSettings {
    /// `instances` that may be kept for a next call, of all policies and workers together.
    pub instances: u32,
    /// How many more there may be that are not kept: one for each thread that may call a guest, so
    /// that a thread can start one even if others keep all `instances`.
    pub unkept_instances: u32,
    /// `core_instances` of one instance: a Python guest has 38.
    pub core_instances: u32,
    /// Linear `memories` of one instance.
    pub memories: u32,
    /// `tables` of one instance.
    pub tables: u32,
    /// `table_elements` of one table.
    pub table_elements: usize,
    /// Resource `handles` that may exist at once in one instance. The contract has none, but the
    /// parts of a component may use them among themselves.
    pub handles: usize,
    /// `stack` of a running guest. It is part of the calling thread's stack.
    pub stack_bytes: usize,
    /// Where compiled code is cached.
    pub cache: CacheFolder,
    /// Maximum size of the cache, in bytes: beyond that, the least recently used files are removed.
    pub cache_bytes: u64,
}

impl Default for RuntimeSettings {
    fn default() -> Self {
        Self {
            instances: 1_000,
            unkept_instances: 0,
            core_instances: 50,
            memories: 4,
            tables: 20,
            table_elements: 20_000,
            handles: 1_000,
            stack_bytes: 1 << 20,
            cache: CacheFolder::Usual,
            cache_bytes: 256 << 20,
        }
    }
}

/// Where compiled code is cached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheFolder {
    /// `$CACHE_DIRECTORY` (systemd's), else `$XDG_CACHE_HOME/weir`, else `$HOME/.cache/weir`.
    Usual,
    /// Here.
    At(PathBuf),
    /// Nowhere.
    Off,
}

/// A size as the configuration has it: `16MiB`, and bytes where no larger unit fits.
pub(super) fn shown_bytes(bytes: usize) -> String {
    let units = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let unit = units.into_iter().find(|(_, unit)| bytes > 0 && bytes.is_multiple_of(*unit));
    unit.map_or_else(|| format!("{bytes}B"), |(name, unit)| format!("{}{name}", bytes / unit))
}
