//! Row 6: a master that is slow, busy, out of memory, without replicas, loading, or that denies
//! access.

use std::collections::BTreeMap;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Run;
use crate::harness::redis::{Connection, Value};
use crate::load::{Load, Target};
use crate::report::Line;
use crate::stage::{Setting, Stage};

/// The shard whose master fails.
const SHARD: usize = 0;
/// A script or a load that has taken this long is answered with an error.
const BUSY_AFTER_MS: &str = "20";
/// The number of keys that makes loading take long.
const BALLAST: u64 = 2_000;
/// How much the memory of all proxies may grow, over all faults.
const GROWTH_KIB: u64 = 16 << 10;
/// Calls beyond one for each request: connections that are opened, and what the load had in flight.
const CALLS_BESIDE: u64 = 100;
/// Errors of another cause for each hundred of the expected one: a fault begins and ends while
/// calls are under way.
const OTHERS_PERCENT: u64 = 10;

struct Fault {
    number: &'static str,
    done: &'static str,
    /// The label of its errors.
    cause: &'static str,
    /// How often a request may be sent.
    tries: u64,
    begin: fn(&Stage, Duration) -> Option<JoinHandle<()>>,
    end: fn(&Stage),
}

const FAULTS: &[Fault] = &[
    Fault {
        number: "6a",
        done: "50 ms more on the way to a master",
        cause: "timeout",
        tries: 1,
        begin: |stage, _| delay(stage, 50),
        end: |stage| drop(delay(stage, 0)),
    },
    Fault {
        number: "6b",
        done: "500 ms more on the way to a master",
        cause: "timeout",
        tries: 1,
        begin: |stage, _| delay(stage, 500),
        end: |stage| drop(delay(stage, 0)),
    },
    Fault {
        number: "6c",
        done: "a script that doesn't end (BUSY)",
        cause: "busy",
        tries: 1,
        begin: |stage, _| {
            ask(stage, &["CONFIG", "SET", "busy-reply-threshold", BUSY_AFTER_MS]);
            Some(background(stage, &["EVAL", "while true do end", "0"]))
        },
        end: |stage| drop(ask(stage, &["SCRIPT", "KILL"])),
    },
    Fault {
        number: "6d",
        done: "a master without memory (OOM)",
        cause: "out_of_memory",
        tries: 1,
        begin: |stage, _| set(stage, "maxmemory", "1"),
        end: |stage| drop(set(stage, "maxmemory", "0")),
    },
    Fault {
        number: "6e",
        done: "fewer replicas than min-replicas-to-write (NOREPLICAS)",
        cause: "no_replicas",
        tries: 1,
        begin: |stage, _| set(stage, "min-replicas-to-write", "5"),
        end: |stage| drop(set(stage, "min-replicas-to-write", "0")),
    },
    Fault {
        number: "6f",
        done: "a master that loads its data (LOADING)",
        cause: "loading",
        // Nothing ran, so it is asked twice more.
        tries: 3,
        begin: load_data,
        end: |_| {},
    },
    Fault {
        number: "6g",
        done: "the right to run scripts revoked (ACL SETUSER)",
        cause: "no_permission",
        tries: 1,
        begin: |stage, _| {
            ask(stage, &["ACL", "SETUSER", "default", "-eval", "-evalsha"]);
            None
        },
        end: |stage| drop(ask(stage, &["ACL", "SETUSER", "default", "+@all"])),
    },
];

pub fn all(run: &Run) -> Vec<Line> {
    let mut rng = run.rng("6");
    let deadline = run.pick(Duration::from_millis(300), Duration::from_millis(50));
    let setting = Setting {
        relayed: &[SHARD],
        options: &["--enable-debug-command", "yes"],
        ..Setting::new(deadline)
    };
    let mut stage = Stage::start(run, &setting);
    let targets = stage.targets(&[("/huge", 6)], &mut rng);
    let unknown = stage.unknown();
    let load = Load::start(&stage.addresses(), &targets, run.pick(150, 600), &mut rng);
    load.await_decided("a calm start", 20, |_| true);
    let memory = stage.memory_kib();
    let mut lines: Vec<Line> =
        FAULTS.iter().map(|fault| under(run, fault, &stage, &load, deadline)).collect();
    let growth = stage.memory_kib().saturating_sub(memory);
    let log = load.stop();
    stage.book(&log);
    let mut after = Line::new(
        "6h",
        "all of these, one after the other",
        "flat memory; counters exact but for takes with an unknown outcome",
    );
    after.judge(
        growth <= GROWTH_KIB,
        format!("the proxies' memory grew by {} KiB from {} KiB", growth, memory),
    );
    let difference = stage.difference(&targets);
    let unknown = stage.unknown() - unknown;
    after.judge(
        (difference.less, difference.astray) == (0, 0) && difference.more <= unknown,
        format!("{}, {unknown} takes with an unknown outcome", difference.text()),
    );
    lines.push(after);
    lines
}

/// One fault under load.
fn under(run: &Run, fault: &Fault, stage: &Stage, load: &Load, deadline: Duration) -> Line {
    let mut line = Line::new(
        fault.number,
        fault.done,
        format!(
            "`weir_store_errors_total{{cause=\"{}\"}}` counts its errors; at most {}; other shards: no error",
            fault.cause,
            if fault.tries == 1 {
                "one call for each request"
            } else {
                "three calls for each request"
            },
        ),
    );
    let lasting = run.pick(Duration::from_millis(1_200), Duration::from_secs(6));
    let mine = |target: &Target| target.shard == SHARD;
    let (errors, calls) = (stage.errors(), calls(stage));
    let began = Instant::now();
    let held = (fault.begin)(stage, lasting);
    std::thread::sleep(lasting);
    (fault.end)(stage);
    if let Some(held) = held {
        held.join().expect("its command ends");
    }
    load.await_decided("requests after the fault", 20, mine);
    let sent = load.so_far(|target, sent| mine(target) && sent.at >= began);
    let made = self::calls(stage) - calls;
    let failed = load.so_far(|target, sent| !mine(target) && sent.at >= began && !sent.decided());
    let caused = since(&errors, &stage.errors());

    let expected = caused.get(fault.cause).copied().unwrap_or(0);
    // On a machine with other work, requests are late whatever the fault is.
    let is_other = |cause: &str| cause != fault.cause && (run.long || cause != "timeout");
    let others: u64 =
        caused.iter().filter(|(cause, _)| is_other(cause)).map(|(_, count)| count).sum();
    // A delay within the deadline is not an error.
    let harmless = fault.number == "6a" && deadline > Duration::from_millis(50);
    line.judge(
        harmless || (expected > 0 && others * 100 <= expected * OTHERS_PERCENT),
        format!("errors {caused:?} of {} requests", sent.len()),
    );
    let most = sent.len() as u64 * fault.tries + CALLS_BESIDE;
    line.judge(made <= most, format!("{made} calls at the node"));
    line.judge(failed.is_empty(), format!("{} errors on other shards", failed.len()));
    line
}

/// The script calls that were sent to a shard's first master.
fn calls(stage: &Stage) -> u64 {
    let mut connection = stage.cluster.nodes[SHARD].connect();
    connection.attempts("evalsha") + connection.attempts("eval")
}

fn since(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let grown = |(cause, count): (&String, &u64)| {
        (cause.clone(), count - before.get(cause).copied().unwrap_or(0))
    };
    after.iter().map(grown).filter(|(_, count)| *count > 0).collect()
}

fn ask(stage: &Stage, words: &[&str]) -> Value {
    stage.cluster.nodes[SHARD].connect().ask(words)
}

fn set(stage: &Stage, name: &str, value: &str) -> Option<JoinHandle<()>> {
    ask(stage, &["CONFIG", "SET", name, value]);
    None
}

fn delay(stage: &Stage, by_ms: u64) -> Option<JoinHandle<()>> {
    stage.relays[&SHARD].delay(Duration::from_millis(by_ms));
    None
}

/// A command that keeps the server for a while.
fn background(stage: &Stage, words: &[&str]) -> JoinHandle<()> {
    let address = stage.cluster.nodes[SHARD].address;
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    std::thread::spawn(move || {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut connection = Connection::open(address).expect("a connection");
        // A script that is killed is answered with an error.
        connection.command(&words).expect("an answer");
    })
}

/// Makes the server load its own data again, slowly. It answers with LOADING until that has ended.
fn load_data(stage: &Stage, lasting: Duration) -> Option<JoinHandle<()>> {
    let each_us = lasting.as_micros() as u64 / BALLAST;
    let fill = "for i = 1, ARGV[1] do redis.call('SET', KEYS[1] .. i, string.rep('x', 1100), 'EX', 60) end";
    ask(stage, &["EVAL", fill, "1", &ballast(stage), &BALLAST.to_string()]);
    // Each key is more than the interval, so that the server answers between any two of them.
    ask(stage, &["CONFIG", "SET", "rdbcompression", "no"]);
    ask(stage, &["CONFIG", "SET", "key-load-delay", &each_us.to_string()]);
    ask(stage, &["CONFIG", "SET", "loading-process-events-interval-bytes", "1024"]);
    Some(background(stage, &["DEBUG", "RELOAD"]))
}

/// A name with a slot of this shard, of which keys can be made that share its slot.
fn ballast(stage: &Stage) -> String {
    let mut connection = stage.cluster.nodes[SHARD].connect();
    let name = (0..).map(|number| format!("{{ballast{number}}}")).find(|name| {
        let slot = connection.ask(&["CLUSTER", "KEYSLOT", name]).number();
        // The first of three masters.
        slot < 16_384 / 3 - 1
    });
    name.expect("a name")
}
