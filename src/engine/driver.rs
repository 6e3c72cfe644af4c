//! Writes the Lua that Redis runs: the programs of a call, and around them read, decide, and write only when all agreed.
//!
//! Unrolled for the number of cells, without a table a limit, numbers packed as doubles: that is what costs least inside Redis (facts in
//! ARCHITECTURE.md). A text depends only on the list of programs; units, shadows, costs and numbers are arguments, so that there are few
//! texts and Redis' cache of them never turns over. Must not know what a program computes.
//!
//! KEYS: one a cell. ARGV: one a cell, seven little-endian doubles:
//! take: unit (microseconds), shadow (0 or 1), cost, four numbers; give-back: unit, instant of the take (microseconds), units, four numbers.
//! Answer, all integers: take: the time (microseconds), admitted (0 or 1), then for each cell fits, remaining, retry, reset; give-back: the time.

use std::fmt::Write as _;

use smallvec::SmallVec;

use super::{Cell, Cells, Program};

/// What each chunk in `lua/` ends with; here its two functions are taken up by the driver.
const LAST_LINE: &str = "return { take = take, give_back = give_back }";

/// Bytes of a cell's argument.
pub(super) const ARGUMENT_BYTES: usize = 56;

/// Redis' time, asked once a call, and both units of it.
const REDIS_TIME: &str = "local t = redis.call('TIME')\nlocal us = t[1] * 1000000 + t[2]\n";

/// Which of a program's functions is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Verb {
    /// All or none.
    Take,
    /// Each by itself; also when Redis is out of memory.
    GiveBack,
}

/// A script's text and its name on Redis.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) text: String,
    /// SHA-1 of the text, as hex: what EVALSHA asks for.
    pub(super) sha: String,
}

impl Script {
    /// The script for these cells' programs, in their order.
    pub(super) fn new(verb: Verb, cells: &Cells) -> Self {
        Self::with_time(verb, cells, REDIS_TIME)
    }

    /// As [`Script::new`], with another way to ask for the time: Redis' own can't be set by a test.
    pub(super) fn with_time(verb: Verb, cells: &Cells, time: &str) -> Self {
        let programs: SmallVec<[&'static Program; 2]> = cells.iter().map(|cell| cell.program).collect();
        let text = match verb {
            Verb::Take => take(&programs, time),
            Verb::GiveBack => give_back(&programs, time),
        };
        let sha = sha1_smol::Sha1::from(&text).digest().to_string();
        Self { text, sha }
    }
}

/// A cell's argument.
pub(super) fn argument(verb: Verb, cell: &Cell, taken_at_us: u64) -> [u8; ARGUMENT_BYTES] {
    let second = match verb {
        Verb::Take => u64::from(cell.shadow),
        Verb::GiveBack => taken_at_us,
    };
    let [n1, n2, n3, n4] = cell.numbers;
    let mut bytes = [0; ARGUMENT_BYTES];
    let numbers = [u64::from(cell.unit_us), second, cell.cost, n1, n2, n3, n4];
    for (place, number) in bytes.chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&(number as f64).to_le_bytes());
    }
    bytes
}

/// The chunks in use, each in a block of its own, with `function` of it as `NAME`.
fn preamble(text: &mut String, programs: &[&'static Program], function: &str) {
    let mut done: SmallVec<[&str; 4]> = SmallVec::new();
    for program in programs {
        if done.contains(&program.name) {
            continue;
        }
        done.push(program.name);
        line(text, format_args!("local {}\ndo", program.name));
        let code = program.text.lines().filter(|line| !line.starts_with("--") && !line.trim().is_empty() && line.trim() != LAST_LINE);
        code.for_each(|code| line(text, format_args!("{code}")));
        line(text, format_args!("{} = {function}\nend", program.name));
    }
    text.push_str("local unpack, pack, call = struct.unpack, struct.pack, redis.call\n");
}

fn time(text: &mut String, time: &str) {
    text.push_str(time);
    text.push_str("local ms = (us - us % 1000) / 1000\n");
}

fn take(programs: &[&'static Program], how_to_ask_the_time: &str) -> String {
    // Without allow-oom: Redis refuses the script before it runs when it is out of memory.
    let mut text = String::from("#!lua\n");
    preamble(&mut text, programs, "take");
    time(&mut text, how_to_ask_the_time);
    let count = programs.len();
    if count == 1 {
        text.push_str("local v1 = call('GET', KEYS[1])\n");
    } else {
        let keys: Vec<String> = (1..=count).map(|i| format!("KEYS[{i}]")).collect();
        line(&mut text, format_args!("local v = call('MGET', {})", keys.join(", ")));
    }
    text.push_str("local ok = 1\n");
    for (i, program) in (1..).zip(programs) {
        decide(&mut text, i, if count == 1 { "v1".into() } else { format!("v[{i}]") }, program.name);
    }
    text.push_str("if ok == 1 then\n");
    for i in 1..=count {
        line(&mut text, format_args!("if w{i} then call('SET', KEYS[{i}], pack('<ddd', x{i}, y{i}, z{i}), 'PXAT', e{i}) end"));
    }
    text.push_str("end\nreturn { us, ok");
    for i in 1..=count {
        // Writing to a String can't fail.
        let _ = write!(text, ", f{i}, l{i}, r{i}, b{i}");
    }
    text.push_str(" }\n");
    text
}

/// Asks one cell's program. What the others or the writing need stays: f fits, x y z the new state, l what is left, r retry, b reset (all
/// back), e the expiry, w whether it is to be written. Nine locals a cell, so that sixteen cells stay below Lua's two hundred.
fn decide(text: &mut String, i: usize, stored: String, program: &str) {
    line(text, format_args!("local f{i}, x{i}, y{i}, z{i}, l{i}, r{i}, b{i}, e{i}, w{i}\ndo"));
    line(text, format_args!("local unit, shadow, cost, n1, n2, n3, n4 = unpack('<ddddddd', ARGV[{i}])"));
    text.push_str("local now, s1, s2, s3 = us, 0, 0, 0\nif unit == 1000 then now = ms end\n");
    line(text, format_args!("if {stored} then s1, s2, s3 = unpack('<ddd', {stored}) end"));
    line(text, format_args!("f{i}, x{i}, y{i}, z{i}, l{i}, r{i}, b{i}, e{i} = {program}(s1, s2, s3, now, cost, n1, n2, n3, n4)"));
    line(text, format_args!("if f{i} == 0 then\nif shadow == 0 then ok = 0 end\nelseif cost > 0 then\nw{i} = true"));
    expiry(text, &format!("e{i}"));
    text.push_str("end\nend\n");
}

/// From the limit's units to milliseconds, rounded up, and a second more.
fn expiry(text: &mut String, e: &str) {
    line(text, format_args!("if unit == 1000 then {e} = {e} + 1000 else {e} = ({e} + (1000 - {e} % 1000) % 1000) / 1000 + 1000 end"));
}

fn give_back(programs: &[&'static Program], how_to_ask_the_time: &str) -> String {
    // With allow-oom: what gives memory's allowance back must not fail for want of memory; it writes only over what is there.
    let mut text = String::from("#!lua flags=allow-oom\n");
    preamble(&mut text, programs, "give_back");
    time(&mut text, how_to_ask_the_time);
    for (i, program) in (1..).zip(programs) {
        line(&mut text, format_args!("do\nlocal v = call('GET', KEYS[{i}])\nif v then"));
        line(&mut text, format_args!("local unit, taken, units, n1, n2, n3, n4 = unpack('<ddddddd', ARGV[{i}])"));
        text.push_str("local now, s1, s2, s3 = us, unpack('<ddd', v)\n");
        text.push_str("if unit == 1000 then now, taken = ms, (taken - taken % 1000) / 1000 end\n");
        let name = program.name;
        line(&mut text, format_args!("local x, y, z, changed, e = {name}(s1, s2, s3, now, units, taken, n1, n2, n3, n4)"));
        text.push_str("if changed == 1 then\n");
        expiry(&mut text, "e");
        line(&mut text, format_args!("call('SET', KEYS[{i}], pack('<ddd', x, y, z), 'PXAT', e)\nend\nend\nend"));
    }
    text.push_str("return { us }\n");
    text
}

fn line(text: &mut String, what: std::fmt::Arguments<'_>) {
    // Writing to a String can't fail.
    let _ = text.write_fmt(what);
    text.push('\n');
}
