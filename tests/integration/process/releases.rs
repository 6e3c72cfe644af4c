//! What a release wrote goes on in every later one: its configuration, and its counters, in memory
//! and on Redis (`tests/releases`). What fails here is not recorded again: the program changes.
//!
//! `WEIR_KEEP=0.9.0 cargo test --workspace --test integration kept` records the counters of a new
//! release in the folder of that name, which must have a `counters.toml`.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use crate::harness::client::{Reply, get};
use crate::harness::held::HeldTime;
use crate::harness::redis::{Connection, Redis};
use crate::harness::toml::Toml;
use crate::harness::weir::Weir;

const RELEASES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/releases");
/// When the counters were recorded, in seconds since 1970: noon of 2026-11-27, UTC.
const RECORDED_S: i64 = 1_795_780_800;
/// What each client has of each limit, and what one of them used before the counters were recorded.
const QUOTA: i64 = 10;
const USED: i64 = 3;
/// The file of the counters in memory, beside the configuration.
const SNAPSHOT: &str = "weir.snapshot";

const DUMP: &str = "local bytes = redis.call('DUMP', KEYS[1]) \
    return (bytes:gsub('.', function(c) return string.format('%02x', c:byte()) end))";
const RESTORE: &str = "local hex = ARGV[2] \
    local bytes = hex:gsub('..', function(c) return string.char(tonumber(c, 16)) end) \
    return redis.call('RESTORE', KEYS[1], ARGV[1], bytes)";

/// The folder of each release.
fn releases() -> Vec<PathBuf> {
    let entries = fs::read_dir(RELEASES).unwrap().map(|entry| entry.unwrap().path());
    let mut folders: Vec<PathBuf> = entries.filter(|path| path.is_dir()).collect();
    folders.sort();
    assert!(!folders.is_empty());
    folders
}

fn read(release: &Path, name: &str) -> String {
    let path = release.join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The names of the limits that are counted.
fn limits(release: &Path) -> Vec<String> {
    let text = read(release, "counters.toml");
    let names = text.lines().filter_map(|line| line.trim().strip_prefix("{ name = \""));
    let names: Vec<String> = names.map(|rest| rest.split('"').next().unwrap().to_owned()).collect();
    assert!(names.len() >= 8, "{names:?}");
    names
}

/// Weir with these counters in memory, at this time.
fn in_memory(release: &Path, time: &HeldTime, snapshot: Option<&[u8]>) -> Weir {
    let store = format!("[store.embedded]\nsnapshot = \"{SNAPSHOT}\"\n");
    let text = Toml::new().more(&store).more(&read(release, "counters.toml")).text();
    let mut builder = Weir::build(&text);
    for (name, value) in time.environment() {
        builder = builder.environment(name, &value);
    }
    if let Some(bytes) = snapshot {
        builder = builder.file(SNAPSHOT, bytes);
    }
    builder.start()
}

fn on_redis(release: &Path, redis: &Redis) -> Weir {
    let text = Toml::new().redis("single", &[redis.address]);
    Weir::start(&text.more(&read(release, "counters.toml")).text())
}

async fn ask(weir: &Weir, client: &str) -> Reply {
    get(weir.http, "/", &[("x-client", client)]).await
}

/// One client uses some of each limit, and another one all.
async fn count(weir: &Weir) {
    for _ in 0..USED {
        assert_eq!(ask(weir, "some").await.status, 200);
    }
    for _ in 0..QUOTA {
        assert_eq!(ask(weir, "all").await.status, 200);
    }
    assert_eq!(ask(weir, "all").await.status, 429);
}

/// What was used is used, of each limit.
async fn goes_on(weir: &Weir, release: &Path) {
    let reply = ask(weir, "some").await;
    assert_eq!(reply.status, 200);
    for limit in limits(release) {
        assert_eq!(reply.remaining(&limit), QUOTA - USED - 1, "{}: {limit}", release.display());
    }
    let reply = ask(weir, "all").await;
    assert_eq!(reply.status, 429);
    let fresh = ask(weir, "new").await;
    for limit in limits(release) {
        assert_eq!(fresh.remaining(&limit), QUOTA - 1, "{limit}");
    }
}

/// Each key with its remaining lifetime in milliseconds and its content.
fn dump(connection: &mut Connection) -> String {
    let mut text = String::new();
    let mut keys: Vec<String> =
        connection.ask(&["KEYS", "*"]).list().iter().map(|key| key.text()).collect();
    keys.sort();
    for key in keys {
        let lifetime_ms = connection.ask(&["PTTL", &key]).number().max(0);
        let hex = connection.ask(&["EVAL", DUMP, "1", &key]).text();
        writeln!(text, "{key} {lifetime_ms} {hex}").unwrap();
    }
    text
}

/// What is the same each time: identities in a log differ.
fn keys(dumped: &str) -> Vec<(&str, &str)> {
    let mut keys: Vec<_> = dumped
        .lines()
        .filter_map(|line| {
            let (key, rest) = line.split_once(' ')?;
            Some((key, rest.split_once(' ')?.0))
        })
        .collect();
    keys.sort_unstable();
    keys
}

fn restore(connection: &mut Connection, text: &str) {
    for line in text.lines() {
        let [key, lifetime_ms, hex] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("not a key, its lifetime and its content: {line}");
        };
        connection.ask(&["EVAL", RESTORE, "1", key, lifetime_ms, hex]);
    }
}

/// Records the counters of a release, if one is asked for.
async fn record(time: &HeldTime) {
    let Ok(version) = std::env::var("WEIR_KEEP") else { return };
    let release = Path::new(RELEASES).join(version);
    time.set(RECORDED_S);
    let mut weir = in_memory(&release, time, None);
    count(&weir).await;
    weir.signal(Signal::TERM);
    weir.exit();
    fs::copy(weir.folder().join(SNAPSHOT), release.join("counters.memory")).unwrap();
    let redis = Redis::within(&[], &time.environment());
    count(&on_redis(&release, &redis)).await;
    fs::write(release.join("counters.redis"), dump(&mut redis.connect())).unwrap();
}

#[tokio::test]
async fn kept_counters_of_each_release_go_on_in_memory_and_on_redis() {
    let time = HeldTime::running();
    record(&time).await;
    for release in releases() {
        time.set(RECORDED_S + 1);
        let snapshot = fs::read(release.join("counters.memory")).unwrap();
        goes_on(&in_memory(&release, &time, Some(&snapshot)), &release).await;

        let redis = Redis::within(&[], &time.environment());
        let recorded = read(&release, "counters.redis");
        restore(&mut redis.connect(), &recorded);
        goes_on(&on_redis(&release, &redis), &release).await;

        // That release would find what this program writes: the same keys, with the same lifetimes.
        time.set(RECORDED_S);
        let redis = Redis::within(&[], &time.environment());
        count(&on_redis(&release, &redis)).await;
        let written = dump(&mut redis.connect());
        assert_eq!(keys(&written), keys(&recorded), "{}", release.display());
    }
}

#[test]
fn kept_configurations_of_each_release_have_no_errors() {
    for release in releases() {
        let files = fs::read_dir(&release).unwrap().map(|entry| entry.unwrap().path());
        let tables = files.filter(|path| path.extension().is_some_and(|end| end == "toml"));
        let mut checked = 0;
        for path in tables {
            let text = fs::read_to_string(&path).unwrap();
            // `counters.toml` is a part of a configuration.
            if !text.contains("[[listeners]]") {
                continue;
            }
            let builder = Weir::build(&text)
                .file("mailer.token", b"a token of more than sixteen bytes")
                .environment("WEIR_KEPT_SECRET", "0123456789abcdef0123456789abcdef");
            let (code, out, err) = Weir::check(builder);
            assert_eq!(code, 0, "{}:\n{out}{err}", path.display());
            checked += 1;
        }
        assert!(checked >= 2, "{}: {checked} configurations", release.display());
    }
}
