//! Operators' scripts in both engines: what a good one does, and that a bad one affects only its
//! own calls.

use std::path::PathBuf;
use std::time::Duration;

use super::driver::{self, Script, Verb};
use super::testing::{FIXED_WINDOW, SECOND_US, Server, TimedStore, cell, cost, one};
use super::{
    Cause, Cell, Cells, Engine, EngineError, Execution, Program, RedisMode, RedisSettings,
    ScriptFile, Scripts, Settings,
};
use crate::clock::{Clock, thread_cpu};
use crate::telemetry::Metrics;

const LAST: &str = "return { take = take, give_back = give_back }\n";
/// The number that makes a script misbehave.
const EVIL: i64 = 666;

fn file(name: &str, text: &str) -> ScriptFile {
    ScriptFile {
        name: name.into(),
        path: PathBuf::from(format!("lua/{name}.lua")),
        text: text.into(),
    }
}

fn program(name: &str, text: &str) -> &'static Program {
    Scripts::load(&[file(name, text)])
        .unwrap_or_else(|errors| panic!("{errors:?}"))
        .find(name)
        .unwrap()
}

/// Why a script is not loaded.
fn refused(name: &str, text: &str) -> String {
    let errors = Scripts::load(&[file(name, text)]).expect_err(text);
    assert_eq!(errors.len(), 1, "{errors:?}");
    errors[0].to_string()
}

/// A script that counts to `n2`, and runs the code `evil` when triggered.
fn counting(evil: &str) -> String {
    format!(
        "local function take(s1, s2, s3, now, cost, n1, n2)\n  if n1 == {EVIL} then {evil} end\n  if s1 + cost > n2 then return 0, s1, 0, 0, 0, -1, 0, 0 end\n  \
         return 1, s1 + cost, 0, 0, n2 - s1 - cost, -1, 0, now + 3600000000\nend\n\
         local function give_back(s1, s2, s3, now, units)\n  return s1 - units, 0, 0, 1, now + 3600000000\nend\n{LAST}"
    )
    .replace("local function take", "-- trial: 0 9999999999\nlocal function take")
}

fn asked(program: &'static Program, name: &str, how: i64) -> Cell {
    let cell = cell(program, name, 0, 0, 0);
    Cell { numbers: [how, 5, 0, 0, 0, 0, 0], ..cell }
}

fn lockout() -> &'static Program {
    program("lockout", include_str!("../../../../examples/scripts/lockout.lua"))
}

#[test]
fn the_example_locks_out_in_both_engines() {
    for (engine, mut store) in TimedStore::engines() {
        let limit = cell(lockout(), "login", 3, 60 * SECOND_US, 300 * SECOND_US);
        assert_eq!(store.left(&limit), 3, "{engine}");
        let first_at = store.now_us;
        assert!(store.fits(&limit) && store.fits(&limit), "{engine}");
        store.step(59_999_999);
        // Given back within its window: one more fits.
        store.give_back(&one(&limit), first_at);
        assert_eq!(store.left(&limit), 2, "{engine}");
        assert!(store.fits(&cost(&limit, 2)), "{engine}");
        let taken = store.take(&one(&limit));
        assert_eq!(
            (taken.admitted, taken.cells[0].retry_units),
            (false, Some(300 * SECOND_US)),
            "{engine}"
        );
        store.step(299_999_999);
        assert!(!store.fits(&limit), "{engine}");
        store.step(1);
        assert_eq!(store.left(&limit), 3, "{engine}");
        assert_eq!(
            store.take(&one(&cost(&limit, 4))).cells[0].retry_units,
            None,
            "{engine}: it can never fit"
        );
        // Together with one of Weir's own algorithms, all or none.
        let window = cell(&FIXED_WINDOW, "beside", 1, SECOND_US, 1);
        assert!(
            store.take(&Cells::from_iter([limit.clone(), window.clone()])).admitted,
            "{engine}"
        );
        assert!(!store.take(&Cells::from_iter([limit.clone(), window])).admitted, "{engine}");
        assert_eq!(store.left(&limit), 2, "{engine}");
    }
}

#[test]
fn units_that_a_script_gives_back_are_back_in_both_engines() {
    let script = program("counting", &counting(""));
    for (engine, mut store) in TimedStore::engines() {
        let limit = asked(script, "back", 0);
        assert_eq!(store.drain(&limit), 5, "{engine}");
        let now_us = store.now_us;
        store.give_back(&one(&cost(&limit, 2)), now_us);
        assert_eq!(store.drain(&limit), 2, "{engine}");
    }
}

#[test]
fn a_script_that_can_not_serve_is_refused_with_its_line_and_why() {
    let body = |line: &str| {
        format!(
            "local function take(s1, s2, s3, now, cost) {line} end\nlocal give_back = take\n{LAST}"
        )
    };
    for (text, parts) in [
        ("local x = = 1\n".to_owned() + LAST, &["lua/bad.lua:1: ", "near '='"][..]),
        ("local take = 1".into(), &["line 1: another last line", "as the last line, alone"]),
        (String::new(), &["line 1: another last line"]),
        (format!("#!/usr/bin/lua\n{}", counting("")), &["line 1: a `#` or a byte order mark"]),
        (format!("\u{feff}{}", counting("")), &["line 1: a `#` or a byte order mark"]),
        (format!("--[[\n{LAST}"), &["bad.lua:", "unfinished long comment"]),
        (LAST.into(), &["bad.lua:1: there is no global `take`"]),
        (body("return 1"), &["take answered 1 values instead of 8", "asked take([0.0, 0.0, 0.0]"]),
        (body("return 1, 0, 0, 0, 0, -1, 0, 0, 0"), &["answered 9 values instead of 8"]),
        (body("return '1', 0, 0, 0, 0, -1, 0, 0"), &["take's answer 1 is a string, not a number"]),
        (body("return 1, 0/0, 0, 0, 0, -1, 0, 0"), &["answer 2 is NaN, not a whole number"]),
        (body("return 1, 1/0, 0, 0, 0, -1, 0, 0"), &["answer 2 is inf"]),
        (body("return 1, 0.5, 0, 0, 0, -1, 0, 0"), &["answer 2 is 0.5"]),
        (body("return 1, 2^53 + 2, 0, 0, 0, -1, 0, 0"), &["answer 2 is 9007199254740994"]),
        (body("return 2, 0, 0, 0, 0, -1, 0, 0"), &["`fits` is 2, not 0 to 1"]),
        (body("return 1, 0, 0, 0, -1, -1, 0, 0"), &["`left` is -1, not 0 or more"]),
        (body("return 1, 0, 0, 0, 0, 5, 0, 0"), &["`retry` is 5, not -1 to -1"]),
        (body("return 0, 0, 0, 0, 0, -2, 0, 0"), &["`retry` is -2, not -1 or more"]),
        (body("return 1, 0, 0, 0, 0, -1, 0, 0"), &["`expire` is 0 where it fits"]),
        (body("return 0, 0, 0, 0, 0, -1, 0, -2"), &["`expire` is -2, not -1 or more"]),
        (body("return 1, 0, 0, 0, 0, -1, 0, -1"), &["give_back answered 8 values instead of 5"]),
        (body("error('not today')"), &["bad.lua:1: not today"]),
        (
            body("return 1, s1 + cost, 0, 0, 0, -1, 0, 60000000"),
            &["take's `expire` is 60000000, not after `now`", "and not a duration", "asked take("],
        ),
        (
            counting("").replace("1, now + 3600000000", "1, 3600000000"),
            &["give_back's `expire` is 3600000000, not after `now`", "asked give_back("],
        ),
        (
            (0..175).map(|at| format!("local l{at}\n")).collect::<String>() + &counting(""),
            &["local variables", "a script that loads on Redis"],
        ),
        (
            counting("").replace(LAST, &format!("do {} end\n{LAST}", LAST.trim_end())),
            &["a table instead of a function", "one `return` outside its functions"],
        ),
        (body("error({})"), &["lua/bad.lua: "]),
        (body("count = 1"), &["bad.lua:1: the global `count` is set"]),
        (body("if cots == nil then end return 1"), &["bad.lua:1: there is no global `cots`"]),
        (body("math.floor = nil"), &["the global `floor` is set"]),
        (body("while true do end"), &["more than 100000 instructions"]),
        ("while true do end\n".to_owned() + LAST, &["more than 100000 instructions"]),
        (body("return take(s1, s2, s3, now, cost), 1"), &["more than 512 KiB of memory"]),
        (body("local t = {} for k = 1, 1e9 do t[k] = k end"), &["more than 512 KiB of memory"]),
        (body("local s = 'x' while true do s = s .. s end"), &["more than 512 KiB of memory"]),
        (body("redis.call('FLUSHALL')"), &["there is no global `redis`"]),
        (body("return ('x'):rep(9)"), &["attempt to index a string value"]),
        ("\u{1b}LJ\u{2}\n".to_owned() + LAST, &["lua/bad.lua: "]),
        (
            format!("-- trial: 1 x\n{}", counting("")),
            &["line 1: -- trial: 1 x", "up to six whole numbers"],
        ),
        (format!("-- trial: 1 2 3 4 5 6 7\n{}", counting("")), &["line 1: -- trial: 1 2"]),
    ] {
        let told = refused("bad", &text);
        assert!(told.starts_with("scripts.bad: found lua/bad.lua"), "{told}");
        assert!(parts.iter().all(|part| told.contains(part)), "{text}\n{told}");
        assert!(told.len() < 600, "{told}");
    }
    for name in ["", "A", "1a", "a-b", "a.b", &"a".repeat(65)] {
        assert!(refused(name, &counting("")).contains("1 to 64 of a-z 0-9 _"), "{name}");
    }
    let long = format!("--{}\n{}", "x".repeat(64 << 10), counting(""));
    assert!(refused("long", &long).contains("at most 64 KiB"));
}

#[test]
fn nothing_leads_out_of_the_sandbox() {
    for name in [
        "io",
        "os",
        "ffi",
        "package",
        "require",
        "debug",
        "load",
        "loadstring",
        "loadfile",
        "dofile",
        "string",
        "table",
        "bit",
        "jit",
        "coroutine",
        "pcall",
        "xpcall",
        "getmetatable",
        "setmetatable",
        "rawget",
        "rawset",
        "rawequal",
        "getfenv",
        "setfenv",
        "newproxy",
        "collectgarbage",
        "print",
        "gcinfo",
        "module",
        "_G",
        "redis",
    ] {
        // An error, as on Redis, and not nil, so that a misspelt name is found.
        let told = refused("bad", &format!("if {name} then end\n{}", counting("")));
        assert!(told.contains(&format!("bad.lua:1: there is no global `{name}`")), "{told}");
    }
    let text = format!("assert(math.random == nil)\n{}", counting(""));
    let tried = Scripts::load(&[file("outside", &text)]);
    assert!(tried.is_ok(), "{tried:?}");
}

#[test]
fn names_that_mean_something_in_lua_or_in_the_driver_are_good_names() {
    for name in ["end", "call", "unpack", "us", "ok", "sound_take"] {
        let limit = asked(program(name, &counting("")), name, 0);
        for (engine, mut store) in TimedStore::engines() {
            assert_eq!(store.drain(&limit), 5, "{engine} {name}");
        }
    }
}

#[tokio::test]
async fn two_scripts_of_one_call_do_not_see_each_other() {
    let look = "if type(user_first) == 'function' then return 1, 1, 0, 0, 0, -1, 0, -1 end error('unknown')";
    let (first, second) = (program("first", &counting("")), program("second", &counting(look)));
    let server = Server::shared();
    for engine in [embedded(), redis(&server)] {
        let both = |how| Cells::from_iter([asked(first, "pair", 0), asked(second, "pair", how)]);
        assert!(engine.take(&both(0)).await.unwrap().admitted);
        assert_eq!(engine.take(&both(EVIL)).await.unwrap_err().cause, Cause::Script);
        assert_eq!(
            engine.take(&one(&cost(&asked(first, "pair", 0), 0))).await.unwrap().cells[0].remaining,
            4
        );
    }
}

#[tokio::test]
async fn a_script_that_fails_on_redis_has_written_nothing_and_is_named_with_its_line() {
    let server = Server::shared();
    let engine = redis(&server);
    let text = counting("error('not today')");
    let other = program("before", &format!("-- one\n-- two\n{}", counting("")));
    for (script, line, why) in [
        (program("named", &text), 3, "not today"),
        (program("nil_is_added", &counting("local x = nil + 1")), 3, "attempt to"),
    ] {
        let cells = Cells::from_iter([asked(other, "named", 0), asked(script, "named", EVIL)]);
        let failed = engine.take(&cells).await.unwrap_err();
        assert_eq!(failed, EngineError { cause: Cause::Script, ran: Execution::No });
        let made = Script::new(Verb::Take, &cells);
        let mut command = ::redis::cmd("EVAL");
        command.arg(&made.text).arg(cells.len());
        cells.iter().for_each(|cell| _ = command.arg(cell.key.text("named")));
        cells.iter().for_each(|cell| {
            _ = command.arg(driver::argument(Verb::Take, cell, 0).as_slice());
        });
        let mut conn = server.client().get_connection().unwrap();
        let answer = command.query::<::redis::Value>(&mut conn).unwrap_err();
        assert_eq!(answer.code(), Some("WEIRSCRIPT"));
        let name = script.name.strip_prefix("user_").unwrap();
        let told = answer.detail().unwrap();
        assert!(told.starts_with(&format!("{name} {name}.lua:{line}: ")), "{told}");
        assert!(told.contains(why), "{told}");
    }
}

#[tokio::test]
async fn redis_says_which_scripts_it_can_not_load() {
    let server = Server::shared();
    let engine = redis(&server);
    let newer = counting("").replace(
        "local function give_back",
        "\nlocal function jump() goto done ::done:: end\nlocal function give_back",
    );
    let files = [file("good", &counting("")), file("newer", &newer)];
    let scripts = Scripts::load(&files).unwrap();
    let failing = engine.try_scripts(&scripts).await.unwrap();
    let [(name, said)] = &*failing else { panic!("{failing:?}") };
    assert_eq!(name, "newer");
    let line = newer.lines().position(|line| line.contains("goto")).unwrap() + 1;
    assert!(said.contains(&format!("user_script:{line}: ")), "{said}");
    assert!(embedded().try_scripts(&scripts).await.unwrap().is_empty());
}

#[test]
fn a_text_is_taken_up_once_and_another_text_is_another_program() {
    let (one, two) = (counting(""), counting("local more = 1"));
    assert!(std::ptr::eq(program("again", &one), program("again", &one)));
    assert!(!std::ptr::eq(program("again", &one), program("again", &two)));
    assert!(!std::ptr::eq(program("again", &one), program("once_more", &one)));
    // Windows line endings, and text after the last line.
    let windows = format!("{}\r\n\r\n", counting("").trim_end().replace('\n', "\r\n"));
    for (engine, mut store) in TimedStore::engines() {
        assert_eq!(store.drain(&asked(program("windows", &windows), "w", 0)), 5, "{engine}");
    }
}

fn embedded() -> Engine {
    let settings = Settings::Embedded(super::EmbeddedSettings::new(1_000));
    Engine::build(&settings, Clock::system(), &Metrics::new(1)).unwrap()
}

fn redis(server: &Server) -> Engine {
    let settings = RedisSettings {
        key_prefix: format!("t{:x}", fastrand::u64(..)),
        deadline: Duration::from_secs(10),
        ..RedisSettings::new(vec![server.address()], RedisMode::Single)
    };
    Engine::build(&settings.into(), Clock::system(), &Metrics::new(1)).unwrap()
}

/// What a script may do that passes its trial and misbehaves later. The last ones are stopped by
/// their budget, which only a sandbox has.
const HOSTILE: [(&str, bool); 26] = [
    // The names of the driver's own helpers, and of the algorithm that precedes the script.
    (
        "if type(raise) == 'function' then return 1, 1, 0, 0, 0, -1, 0, -1 end error('unknown')",
        true,
    ),
    (
        "if type(whole) == 'function' then return 1, 1, 0, 0, 0, -1, 0, -1 end error('unknown')",
        true,
    ),
    (
        "if type(sound_take) == 'function' then return 1, 1, 0, 0, 0, -1, 0, -1 end error('unknown')",
        true,
    ),
    (
        "if type(fixed_window) == 'function' then return 1, 1, 0, 0, 0, -1, 0, -1 end error('unknown')",
        true,
    ),
    ("return 1", true),
    ("return 1, 0, 0, 0, 0, -1, 0, 0, 0", true),
    ("return 1, 0/0, 0, 0, 0, -1, 0, 0", true),
    ("return 1, 1/0, 0, 0, 0, -1, 0, 0", true),
    ("return 1, '7', 0, 0, 0, -1, 0, 0", true),
    ("return 1, {}, 0, 0, 0, -1, 0, 0", true),
    ("return true, 0, 0, 0, 0, -1, 0, 0", true),
    ("return 1, 0, 0, 0, 0, 60000000, 0, 0", true),
    ("return 0, 0, 0, 0, 0, -2, 0, 0", true),
    ("error('no')", true),
    ("error({})", true),
    ("error({ err = {} })", true),
    ("assert(false, {})", true),
    ("error('\\r\\n+OK\\r\\n')", true),
    ("leak = 1", true),
    ("local m = getmetatable('').__index.rep", true),
    ("return string.dump(take)", true),
    ("return redis.call('FLUSHALL')", true),
    ("local function deep(n) return 1 + deep(n + 1) end return deep(1)", true),
    ("while true do end", false),
    ("local t = {} for k = 1, 1e12 do t[k] = { k } end", false),
    ("local s = 'xxxxxxxxxxxxxxxx' for k = 1, 1e12 do s = s .. s end", false),
];

async fn costs_its_own_calls_only(engine: &Engine, name: &str, evil: &str, redis_too: bool) {
    let script = program(name, &counting(evil));
    let limit = |how: i64| asked(script, name, how);
    let window = cell(&FIXED_WINDOW, name, 2, 3_600 * SECOND_US, 2);
    let neighbour = Cell { numbers: [2, 3_600_000_000, 0, 0, 0, 0, 0], ..window };
    assert!(engine.take(&one(&limit(0))).await.unwrap().admitted, "{evil}");
    let before = thread_cpu();
    for turn in 0..3 {
        // Together with a cell that would fit: a failure charges neither.
        let both = Cells::from_iter([neighbour.clone(), limit(EVIL)]);
        let EngineError { cause, .. } = engine.take(&both).await.expect_err(evil);
        assert_eq!(cause, Cause::Script, "{evil}");
        let left = engine.take(&one(&cost(&limit(0), 0))).await.unwrap().cells[0].remaining;
        assert_eq!(left, 4, "{evil}, turn {turn}: its own counter is as it was");
    }
    if !redis_too {
        assert!(thread_cpu() - before < Duration::from_secs(2), "{evil}");
    }
    assert_eq!(
        engine.take(&one(&cost(&neighbour, 0))).await.unwrap().cells[0].remaining,
        2,
        "{evil}"
    );
    engine.give_back(&one(&limit(0)), 0).await.unwrap();
    assert_eq!(
        engine.take(&one(&cost(&limit(0), 0))).await.unwrap().cells[0].remaining,
        5,
        "{evil}"
    );
}

#[tokio::test]
async fn a_script_that_turns_hostile_costs_its_own_calls_in_memory() {
    let engine = embedded();
    for (place, (evil, redis_too)) in HOSTILE.iter().enumerate() {
        costs_its_own_calls_only(&engine, &format!("hostile{place}"), evil, *redis_too).await;
    }
}

#[tokio::test]
async fn a_script_that_turns_hostile_costs_its_own_calls_on_redis() {
    let server = Server::shared();
    let engine = redis(&server);
    for (place, (evil, _)) in HOSTILE.iter().enumerate().filter(|(_, (_, redis_too))| *redis_too) {
        costs_its_own_calls_only(&engine, &format!("hostile{place}"), evil, true).await;
    }
}

#[test]
fn a_give_back_that_turns_hostile_changes_nothing() {
    let engine = embedded();
    let Engine::Embedded(engine) = &engine else { panic!() };
    for (place, answer) in [
        "while true do end",
        "return s1, s2, s3, 1",
        "return 0/0, 0, 0, 1, 0",
        "return '0', 0, 0, 1, 0",
    ]
    .iter()
    .enumerate()
    {
        let text = counting("").replace(
            "  return s1 - units",
            &format!("  if units == 9 then {answer} end\n  return s1 - units"),
        );
        let limit = asked(program(&format!("back{place}"), &text), "hostile back", 0);
        assert!(engine.take(&one(&limit)).unwrap().admitted);
        assert_eq!(
            engine.give_back(&one(&cost(&limit, 9)), 0).unwrap_err().cause,
            Cause::Script,
            "{answer}"
        );
        assert_eq!(engine.take(&one(&cost(&limit, 0))).unwrap().cells[0].remaining, 4, "{answer}");
        engine.reset(&limit.key);
    }
}

#[tokio::test]
async fn a_loop_on_redis_holds_its_server_until_it_is_killed_and_has_written_nothing() {
    let server = Server::start(&["--busy-reply-threshold", "50"]);
    let engine = redis(&server);
    let script = program("endless", &counting("while true do end"));
    let limit = |how: i64| asked(script, "endless", how);
    assert!(engine.take(&one(&limit(0))).await.unwrap().admitted);
    let evil = one(&limit(EVIL));
    let kill = async {
        while server.run::<String>("SCRIPT KILL").is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let (answer, ()) = tokio::join!(engine.take(&evil), kill);
    assert_eq!(answer.expect_err("it was killed").cause, Cause::Script);
    assert_eq!(engine.take(&one(&cost(&limit(0), 0))).await.unwrap().cells[0].remaining, 4);
}
