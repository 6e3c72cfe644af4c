//! `[store]`: where counters live, and what happens when they can't be reached.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::reader::{Item, Notes, Table};
use super::settings::store::{Engine, embedded, redis as rows, store};
use super::{files, scripts, tls};
use crate::engine::{
    self, EmbeddedSettings, RedisMode, RedisSettings, ScriptFile, SentinelSettings,
    SnapshotSettings,
};
use crate::limit::{self, Share};
use crate::plan::OnStoreError;

const KEY_PREFIX_DEFAULT: &str = "weir";
const KEY_PREFIX_BYTES_MAX: usize = 64;

/// `[store]`.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) engine: engine::Settings,
    pub(super) limiter: limit::Settings,
    pub(super) scripts: Vec<ScriptFile>,
    pub(super) on_store_error: OnStoreError,
}

/// Whether anybody can compute the digests of keys. In memory each process makes its own secret.
pub(super) fn has_open_digests(engine: &engine::Settings, limiter: &limit::Settings) -> bool {
    matches!(engine, engine::Settings::Redis(_)) && limiter.key_secret.is_none()
}

/// Reads `[store]`. `waiting_max` is read from `[server.limits]`, where the other bounds of a
/// worker are.
pub(super) fn store(notes: &Notes, root: &mut Table<'_>, waiting_max: usize) -> Store {
    let mut table = root.section("store");
    let kind = table.read(&store::ENGINE);
    if kind == Engine::Redis && !table.has(store::ON_STORE_ERROR.key) {
        // Failing open, or failing closed on every network hiccup: either must be a conscious
        // decision.
        table.missing(
            store::ON_STORE_ERROR.key,
            "\"allow\" (let requests through uncounted), \"local\" (count this proxy's share of each limit) or \"deny\" (503): with \"redis\" it must be written",
        );
    }
    let on_store_error = table.read_if_any(&store::ON_STORE_ERROR);
    let local_share = table.item(&store::LOCAL_SHARE);
    let local_share =
        local_share.and_then(|item| item.parsed(store::LOCAL_SHARE.expected(), Share::parse));
    let limiter = limit::Settings {
        deadline: table.read(&store::DEADLINE),
        lease: table.read(&store::LEASE),
        waiting_max,
        key_secret: files::secret(&mut table, &store::KEY_SECRET_FILE, &store::KEY_SECRET_ENV),
        local_share: local_share.unwrap_or(Share::WHOLE),
        refusals_held: table.read(&store::REMEMBER_REFUSALS),
        ..limit::Settings::default()
    };
    let scripts = scripts::scripts(notes, &mut table);

    let mut embedded = table.section("embedded");
    let keys_max = embedded.read(&embedded::MAX_KEYS);
    let snapshot = snapshot(notes, &mut embedded);
    embedded.finish();

    // Read even when it is not in use, so that errors show before the switch.
    let redis = redis(&mut table, limiter.deadline, kind == Engine::Redis);
    table.finish();
    Store {
        engine: match kind {
            Engine::Embedded => {
                let secret_id = limit::secret_id(limiter.key_secret.as_ref());
                engine::Settings::Embedded(EmbeddedSettings { keys_max, snapshot, secret_id })
            }
            Engine::Redis => redis.into(),
        },
        limiter,
        scripts,
        on_store_error: on_store_error.unwrap_or(OnStoreError::Deny),
    }
}

/// Reads `snapshot`. Its folder must exist. The file itself appears when counters are first saved.
fn snapshot(notes: &Notes, table: &mut Table<'_>) -> Option<SnapshotSettings> {
    let expected = embedded::SNAPSHOT.expected();
    let path = table.item(&embedded::SNAPSHOT).and_then(|item| {
        let path = notes.folder.join(item.text(expected)?);
        // A file next to a configuration that is named without a folder has none, either.
        let here = |folder: &Path| folder.as_os_str().is_empty() || folder.is_dir();
        let folder = path.parent().is_some_and(here);
        if path.file_name().is_none() || path.is_dir() || !folder {
            item.found(path.display().to_string(), expected, None);
            return None;
        }
        Some(path)
    });
    let every = table.read(&embedded::SNAPSHOT_EVERY);
    if let Some(item) =
        table.item(&embedded::SNAPSHOT_EVERY).filter(|_| !table.has(embedded::SNAPSHOT.key))
    {
        item.found_key("snapshot_every without `snapshot`", "a `snapshot` to write", None);
    }
    path.map(|path| SnapshotSettings { path, every })
}

fn redis(store: &mut Table<'_>, deadline: Duration, used: bool) -> RedisSettings {
    let mut table = store.section("redis");
    let mode = table.read(&rows::MODE);
    let nodes = if used || table.is_present() { nodes(&mut table, mode) } else { Vec::new() };
    let sentinel = sentinel(&mut table, mode, used);
    let username = table.read_if_any(&rows::USERNAME);
    let password = files::secret(&mut table, &rows::PASSWORD_FILE, &rows::PASSWORD_ENV);
    let key_prefix = table
        .item(&rows::KEY_PREFIX)
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
    let (in_file, in_env) = (&rows::SENTINEL_PASSWORD_FILE, &rows::SENTINEL_PASSWORD_ENV);
    if mode != RedisMode::Sentinel {
        for setting in [&rows::MASTER, &rows::SENTINEL_USERNAME, in_file, in_env] {
            let _ = table.item(setting);
            table.useless(setting.key, "this key only with mode = \"sentinel\"");
        }
        return None;
    }
    let master = if used || table.is_present() { table.required(&rows::MASTER) } else { None };
    let master = master.and_then(|item| {
        let name = |name: &str| (!name.is_empty()).then(|| name.to_owned());
        item.parsed(rows::MASTER.expected(), name)
    });
    let username = table.read_if_any(&rows::SENTINEL_USERNAME);
    let password = files::secret(table, in_file, in_env);
    Some(SentinelSettings { master: master.unwrap_or_default(), username, password })
}

/// Reads `addresses`. Its keys are addresses, so it is not finished as a table of known keys would
/// be.
fn addresses(table: &mut Table<'_>) -> BTreeMap<String, String> {
    let mut addresses = BTreeMap::new();
    let Some(written) = table.item(&rows::ADDRESSES).and_then(|item| item.table()) else {
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
    let Some(written) = table.required_list(&rows::NODES) else { return Vec::new() };
    let items = written.list(rows::NODES.kind.max);
    if items.is_empty() && written.value.is_array() {
        written.found("no node", rows::NODES.kind.expected(), None);
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

/// Reads a prefix without braces: they would put all keys on one slot, or let a client choose the
/// slot.
fn key_prefix(item: &Item<'_>) -> Option<String> {
    item.parsed(rows::KEY_PREFIX.expected(), |text| {
        let visible =
            text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'{' && byte != b'}');
        (visible && (1..=KEY_PREFIX_BYTES_MAX).contains(&text.len())).then(|| text.to_owned())
    })
}
