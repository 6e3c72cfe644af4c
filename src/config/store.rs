//! `[store]`: where counters live, and what happens when they can't be reached.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use super::reader::{Item, Notes, Table};
use super::{files, scripts, tls};
use crate::engine::{
    self, EmbeddedSettings, RedisMode, RedisSettings, ScriptFile, SentinelSettings,
    SnapshotSettings,
};
use crate::limit::{self, Share};
use crate::plan::OnStoreError;

/// For one whole decision.
const DEADLINE: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(10);
/// How long a request in flight stays counted on Redis if its proxy falls silent. Renewed three
/// times within it.
const LEASE: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(300);
/// How long a refusal is answered again without asking Redis.
const REFUSALS_HELD: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(1);
const KEYS_DEFAULT: usize = 1_000_000;
const KEYS: RangeInclusive<u64> = 1..=1_000_000_000;
/// How often counters in memory are saved.
const SNAPSHOT_EVERY: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(24 * 3600);
const SNAPSHOT_EVERY_DEFAULT: Duration = Duration::from_secs(5);
const NODES_MAX: usize = 256;
const KEY_PREFIX_DEFAULT: &str = "weir";
const KEY_PREFIX_BYTES_MAX: usize = 64;

/// What happens to a request when the store fails.
pub(super) const FALLBACKS: [(&str, OnStoreError); 3] =
    [("allow", OnStoreError::Allow), ("local", OnStoreError::Local), ("deny", OnStoreError::Deny)];

/// `[store]`.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) engine: engine::Settings,
    pub(super) limiter: limit::Settings,
    pub(super) scripts: Vec<ScriptFile>,
    pub(super) on_store_error: OnStoreError,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Embedded,
    Redis,
}

/// Whether anybody can compute the digests of keys. In memory each process makes its own secret.
pub(super) fn has_open_digests(engine: &engine::Settings, limiter: &limit::Settings) -> bool {
    matches!(engine, engine::Settings::Redis(_)) && limiter.key_secret.is_none()
}

/// `waiting_max` is read from `[server.limits]`, where the other bounds of a worker are.
pub(super) fn store(notes: &Notes, root: &mut Table<'_>, waiting_max: usize) -> Store {
    let mut table = root.section("store");
    let mut limiter = limit::Settings { waiting_max, ..limit::Settings::default() };
    let kinds = [("embedded", Kind::Embedded), ("redis", Kind::Redis)];
    let mut kind = Kind::Embedded;
    table.choice("engine", &kinds, &mut kind);
    let on_store_error = match table.take("on_store_error") {
        Some(item) => item.choice(&FALLBACKS),
        None if kind == Kind::Redis => {
            // Failing open, or failing closed on every network hiccup: either must be a conscious
            // decision.
            table.missing(
                "on_store_error",
                "\"allow\" (let requests through uncounted), \"local\" (count this proxy's share of each limit) or \"deny\" (503): with \"redis\" it must be written",
            );
            None
        }
        None => None,
    };
    table.duration("deadline", DEADLINE, &mut limiter.deadline);
    table.duration("lease", LEASE, &mut limiter.lease);
    table.duration("remember_refusals", REFUSALS_HELD, &mut limiter.refusals_held);
    limiter.key_secret = files::secret(&mut table, "key_secret_file", "key_secret_env");

    let scripts = scripts::scripts(notes, &mut table);

    let mut embedded = table.section("embedded");
    let mut keys_max = KEYS_DEFAULT;
    embedded.number("max_keys", KEYS, &mut keys_max);
    let snapshot = snapshot(notes, &mut embedded);
    embedded.finish();

    // Read even when it is not in use, so that mistakes show before the switch.
    let redis = redis(&mut table, limiter.deadline, kind == Kind::Redis);
    if let Some(item) = table.take("local_share") {
        let expected = "a fraction above 0 and at most 1, such as \"1/4\" for one of four proxies";
        limiter.local_share = item.parsed(expected, Share::parse).unwrap_or(Share::WHOLE);
    }
    table.finish();
    Store {
        engine: match kind {
            Kind::Embedded => {
                let secret_id = limit::secret_id(limiter.key_secret.as_ref());
                engine::Settings::Embedded(EmbeddedSettings { keys_max, snapshot, secret_id })
            }
            Kind::Redis => redis.into(),
        },
        limiter,
        scripts,
        on_store_error: on_store_error.unwrap_or(OnStoreError::Deny),
    }
}

/// Its folder must exist. The file itself appears when counters are first saved.
fn snapshot(notes: &Notes, table: &mut Table<'_>) -> Option<SnapshotSettings> {
    let expected = "the path of a file in a folder that exists, such as \"weir.snapshot\"";
    let mut every = SNAPSHOT_EVERY_DEFAULT;
    let path = table.take("snapshot").and_then(|item| {
        let path = notes.folder.join(item.text(expected)?);
        // A file beside a configuration that is named without a folder has none, either.
        let here = |folder: &Path| folder.as_os_str().is_empty() || folder.is_dir();
        let folder = path.parent().is_some_and(here);
        if path.file_name().is_none() || path.is_dir() || !folder {
            item.found(path.display().to_string(), expected, None);
            return None;
        }
        Some(path)
    });
    if let Some(item) = table.take("snapshot_every") {
        match (&path, item.duration(SNAPSHOT_EVERY)) {
            (None, _) if !table.has("snapshot") => {
                item.found_key("snapshot_every without `snapshot`", "a `snapshot` to write", None);
            }
            (_, duration) => every = duration.unwrap_or(every),
        }
    }
    path.map(|path| SnapshotSettings { path, every })
}

fn redis(store: &mut Table<'_>, deadline: Duration, used: bool) -> RedisSettings {
    let mut table = store.section("redis");
    let modes = [
        ("cluster", RedisMode::Cluster),
        ("single", RedisMode::Single),
        ("sentinel", RedisMode::Sentinel),
    ];
    let mut mode = RedisMode::Cluster;
    table.choice("mode", &modes, &mut mode);
    let nodes = if used || table.is_present() { nodes(&mut table, mode) } else { Vec::new() };
    let sentinel = sentinel(&mut table, mode, used);
    let username =
        table.take("username").and_then(|item| item.text("an ACL user's name").map(str::to_owned));
    let password = files::secret(&mut table, "password_file", "password_env");
    let key_prefix = table
        .take("key_prefix")
        .and_then(|item| key_prefix(&item))
        .unwrap_or_else(|| KEY_PREFIX_DEFAULT.into());
    let tls = table.section("tls");
    // An empty section is TLS, too: with the system's authorities.
    let is_used = tls.is_present();
    let tls = Some(tls::client(tls)).filter(|_| is_used);
    let addresses = addresses(&mut table);
    table.finish();
    RedisSettings {
        nodes,
        mode,
        sentinel,
        username,
        password,
        key_prefix,
        deadline,
        tls,
        addresses,
    }
}

fn sentinel(table: &mut Table<'_>, mode: RedisMode, used: bool) -> Option<SentinelSettings> {
    const KEYS: [&str; 4] =
        ["master", "sentinel_username", "sentinel_password_file", "sentinel_password_env"];
    if mode != RedisMode::Sentinel {
        for key in KEYS {
            let _ = table.take(key);
            table.useless(key, "this key only with mode = \"sentinel\"");
        }
        return None;
    }
    let expected = "the name under which the sentinels watch the master, such as \"mymaster\"";
    let master = if used || table.is_present() { table.need("master", expected) } else { None };
    let master = master
        .and_then(|item| item.parsed(expected, |name| (!name.is_empty()).then(|| name.to_owned())));
    let username = table.take("sentinel_username");
    let username = username.and_then(|item| item.text("an ACL user's name").map(str::to_owned));
    let password = files::secret(table, "sentinel_password_file", "sentinel_password_env");
    Some(SentinelSettings { master: master.unwrap_or_default(), username, password })
}

/// The keys are addresses, and not finished as a table of known keys would be.
fn addresses(table: &mut Table<'_>) -> BTreeMap<String, String> {
    let mut addresses = BTreeMap::new();
    let Some(written) = table.take("addresses").and_then(|item| item.table()) else {
        return addresses;
    };
    for (announced, item) in written.named() {
        if host_and_port(&announced).is_none() {
            item.wrong_key(&announced, "\"host:port\", as the node announces it");
        }
        if let Some(reached) = item.parsed("\"host:port\", to connect to instead", host_and_port) {
            addresses.insert(announced, reached);
        }
    }
    addresses
}

fn nodes(table: &mut Table<'_>, mode: RedisMode) -> Vec<String> {
    let expected = "an array of \"host:port\", such as [\"10.0.0.1:6379\"]";
    let Some(written) = table.need("nodes", expected) else { return Vec::new() };
    let items = written.list(NODES_MAX);
    if items.is_empty() && written.value.is_array() {
        written.found("no node", expected, None);
    }
    if items.len() > 1 && mode == RedisMode::Single {
        written.found(format!("{} nodes", items.len()), "one node with mode = \"single\"", None);
    }
    items.iter().filter_map(|item| item.parsed("\"host:port\"", host_and_port)).collect()
}

fn host_and_port(text: &str) -> Option<String> {
    let (host, port) = text.rsplit_once(':')?;
    let numbered = port.parse::<u16>().is_ok_and(|port| port > 0)
        && port.bytes().all(|byte| byte.is_ascii_digit());
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let named = match bare {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            !host.is_empty()
                && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
        }
    };
    (numbered && named).then(|| text.to_owned())
}

/// Without braces: they would put all keys on one slot, or let a client choose the slot.
fn key_prefix(item: &Item<'_>) -> Option<String> {
    let expected =
        format!("1 to {KEY_PREFIX_BYTES_MAX} visible ASCII characters without {{ and }}");
    item.parsed(&expected, |text| {
        let visible =
            text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'{' && byte != b'}');
        (visible && (1..=KEY_PREFIX_BYTES_MAX).contains(&text.len())).then(|| text.to_owned())
    })
}
