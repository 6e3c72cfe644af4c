//! What a release wrote goes on in every later one: its configuration, and its counters, in memory
//! and on Redis (`tests/releases`). What fails here is not recorded again: the program changes.
//!
//! `WEIR_KEEP=0.9.0 cargo test --workspace --test integration kept` records the counters of a new
//! release in the folder of that name, which must have the tables of [`SETS`]. Those that are there
//! stay. With `WEIR_KEEP_WITH=PROGRAM` it is that program that records.

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
/// What is leased belongs to a worker, and clients have connections of their own.
const ONE_WORKER: &str = "workers = 1";
/// The names of the tables of limits: as a whole, with children, and with leases.
const SETS: [&str; 3] = ["counters", "children", "leased"];
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

/// Limits of a release whose counters were recorded.
struct Kept {
    release: PathBuf,
    name: &'static str,
}

impl Kept {
    /// What each release has.
    fn all() -> Vec<Self> {
        let of = |release: PathBuf| SETS.map(|name| Self { release: release.clone(), name });
        releases().into_iter().flat_map(of).collect()
    }

    /// The file with this end.
    fn file(&self, end: &str) -> PathBuf {
        self.release.join(format!("{}.{end}", self.name))
    }

    fn read(&self, end: &str) -> String {
        let path = self.file(end);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// The names of the limits that a client is told of.
    fn limits(&self) -> Vec<String> {
        let text = self.read("toml");
        let lines = text.lines().filter(|line| line.trim().starts_with("{ name = \""));
        // Of a limit with children it is the child.
        let names: Vec<String> = lines
            .map(|line| line.rsplit("{ name = \"").next().unwrap().split('"').next().unwrap())
            .map(str::to_owned)
            .collect();
        assert!(names.len() >= 5, "{names:?}");
        names
    }

    /// Weir with these counters in memory, at this time.
    fn in_memory(&self, time: &HeldTime, snapshot: Option<&[u8]>, program: Option<&Path>) -> Weir {
        let store = format!("[store.embedded]\nsnapshot = \"{SNAPSHOT}\"\n");
        let text = Toml::new().server(ONE_WORKER).more(&store).more(&self.read("toml")).text();
        let mut builder = Weir::build(&text);
        for (name, value) in time.environment() {
            builder = builder.environment(name, &value);
        }
        if let Some(bytes) = snapshot {
            builder = builder.file(SNAPSHOT, bytes);
        }
        if let Some(program) = program {
            builder = builder.program(program);
        }
        builder.start()
    }

    fn on_redis(&self, redis: &Redis, program: Option<&Path>) -> Weir {
        let text = Toml::new().server(ONE_WORKER).redis("single", &[redis.address]);
        let mut builder = Weir::build(&text.more(&self.read("toml")).text());
        if let Some(program) = program {
            builder = builder.program(program);
        }
        builder.start()
    }

    /// What was used is used, of each limit.
    async fn goes_on(&self, weir: &Weir) {
        let at = || self.file("toml").display().to_string();
        let reply = ask(weir, "some").await;
        assert_eq!(reply.status, 200, "{}", at());
        let fresh = ask(weir, "new").await;
        // With leases, a client is told of what the proxy has in hand.
        if self.name != "leased" {
            for limit in self.limits() {
                assert_eq!(reply.remaining(&limit), QUOTA - USED - 1, "{}: {limit}", at());
                assert_eq!(fresh.remaining(&limit), QUOTA - 1, "{}: {limit}", at());
            }
        }
        for (client, left) in [("some", QUOTA - USED - 1), ("new", QUOTA - 1), ("all", 0)] {
            for _ in 0..left {
                assert_eq!(ask(weir, client).await.status, 200, "{}: {client}", at());
            }
            assert_eq!(ask(weir, client).await.status, 429, "{}: {client}", at());
        }
    }
}

async fn ask(weir: &Weir, client: &str) -> Reply {
    get(weir.http, "/", &[("x-client", client)]).await
}

/// One client uses some of each limit, and another one all. Then the proxy ends, and what it has
/// in hand goes back.
async fn count(weir: &mut Weir) {
    for _ in 0..USED {
        assert_eq!(ask(weir, "some").await.status, 200);
    }
    for _ in 0..QUOTA {
        assert_eq!(ask(weir, "all").await.status, 200);
    }
    assert_eq!(ask(weir, "all").await.status, 429);
    weir.signal(Signal::TERM);
    weir.exit();
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

/// Records the counters of a release that it does not have, if that is asked for.
async fn record(time: &HeldTime) {
    let Ok(version) = std::env::var("WEIR_KEEP") else { return };
    let program = std::env::var_os("WEIR_KEEP_WITH").map(PathBuf::from);
    for name in SETS {
        let kept = Kept { release: Path::new(RELEASES).join(&version), name };
        if kept.file("redis").exists() {
            continue;
        }
        time.set(RECORDED_S);
        let mut weir = kept.in_memory(time, None, program.as_deref());
        count(&mut weir).await;
        fs::copy(weir.folder().join(SNAPSHOT), kept.file("memory")).unwrap();
        let redis = Redis::within(&[], &time.environment());
        count(&mut kept.on_redis(&redis, program.as_deref())).await;
        fs::write(kept.file("redis"), dump(&mut redis.connect())).unwrap();
    }
}

#[tokio::test]
async fn kept_counters_of_each_release_go_on_in_memory_and_on_redis() {
    let time = HeldTime::running();
    record(&time).await;
    for kept in Kept::all() {
        time.set(RECORDED_S + 1);
        let snapshot = fs::read(kept.file("memory")).unwrap();
        kept.goes_on(&kept.in_memory(&time, Some(&snapshot), None)).await;

        let redis = Redis::within(&[], &time.environment());
        let recorded = kept.read("redis");
        restore(&mut redis.connect(), &recorded);
        kept.goes_on(&kept.on_redis(&redis, None)).await;

        // That release would find what this program writes: the same keys, with the same lifetimes.
        time.set(RECORDED_S);
        let redis = Redis::within(&[], &time.environment());
        count(&mut kept.on_redis(&redis, None)).await;
        let written = dump(&mut redis.connect());
        assert_eq!(keys(&written), keys(&recorded), "{}", kept.file("redis").display());
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
            // A table of limits is a part of a configuration.
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
