//! Writes the Lua that Redis runs: the programs of a call, and around them read, decide, and write
//! only when all agreed.
//!
//! Unrolled for the number of cells, without a table a limit, numbers packed as doubles: that is
//! what costs least inside Redis (facts in ARCHITECTURE.md). A text depends only on the list of
//! programs; units, shadows, costs and numbers are arguments, so that there are few texts and
//! Redis' cache of them never turns over. Must not know what a program computes.
//!
//! KEYS: one a cell. ARGV: one a cell, little-endian doubles: unit (microseconds); shadow (0 or 1),
//! or in a give-back the instant of the take (microseconds); cost or units; then the program's
//! numbers. Behind them the sixteen bytes of a member's name, where the kind keeps names. What is
//! stored: numbers as three packed doubles, a ring as two and a count of four bytes a sub-window, a
//! log as a list, leases as a sorted set by instant. Answer of a take, as doubles again (a table of
//! integers costs Redis more than twice that): the time (microseconds), admitted (0 or 1), then for
//! each cell fits, remaining, retry, reset. The others answer the time, an integer.

mod parts;

use std::fmt::Write as _;

use smallvec::SmallVec;

use super::counters::PURGE_EACH;
use super::{Cell, Cells, Kind, NUMBERS_MAX, OUTSIDE, Program, scripts};

/// What each chunk in `lua/` ends with; here its two functions are taken up by the driver.
pub(super) const LAST_LINE: &str = "return { take = take, give_back = give_back }";

/// Redis' time, asked once a call, and both units of it.
const REDIS_TIME: &str = "local t = call('TIME')\nlocal us = t[1] * 1000000 + t[2]\n";

/// Values of an answer that one call packs.
const VALUES_A_PACK: usize = 18;

/// Which of a program's functions is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Verb {
    /// All or none.
    Take,
    /// Whether all of it would be taken; nothing is written.
    Look,
    /// Each by itself; also when Redis is out of memory.
    GiveBack,
    /// Leases, for another length of them.
    Renew,
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
        let programs: SmallVec<[&'static Program; 2]> =
            cells.iter().map(|cell| cell.program).collect();
        let text = match verb {
            Verb::Take => take(&programs, time),
            Verb::Look => look(&programs, time),
            Verb::GiveBack => give_back(&programs, time),
            Verb::Renew => renew(&programs, time),
        };
        let sha = sha1_smol::Sha1::from(&text).digest().to_string();
        Self { text, sha }
    }
}

/// A cell's argument: unit, second, cost, its program's numbers, and the name of what is taken
/// where it is kept by name.
pub(super) type Argument = SmallVec<[u8; 8 * (3 + NUMBERS_MAX)]>;

/// A cell's argument.
pub(super) fn argument(verb: Verb, cell: &Cell, taken_at_us: u64) -> Argument {
    let second = match verb {
        Verb::Take | Verb::Look => i64::from(cell.shadow),
        Verb::GiveBack => taken_at_us as i64,
        Verb::Renew => 0,
    };
    let first = [i64::from(cell.unit_us), second, cell.cost as i64];
    let numbers = first.iter().chain(cell.numbers.iter().take(cell.program.numbers));
    let mut bytes: Argument = numbers.flat_map(|number| (*number as f64).to_le_bytes()).collect();
    if named(cell.program.kind) {
        bytes.extend_from_slice(&cell.member.to_le_bytes());
    }
    bytes
}

/// Whether what is taken is kept by name. The others are strings.
fn named(kind: Kind) -> bool {
    matches!(kind, Kind::Log | Kind::Leases)
}

/// The chunks in use, each in a block of its own, with `function` of it as `NAME`, and what the
/// kinds in use share.
fn preamble(text: &mut String, programs: &[&'static Program], function: Option<&str>) {
    if let Some(function) = function {
        operators_scripts(text, programs, function);
    }
    let mut done: SmallVec<[&str; 4]> = SmallVec::new();
    for program in programs.iter().filter(|program| !scripts::is_one(program)) {
        let Some(function) = function.filter(|_| !done.contains(&program.name)) else { continue };
        done.push(program.name);
        line(text, format_args!("local {}\ndo", program.name));
        let code = program.text.lines().filter(|line| {
            !line.starts_with("--") && !line.trim().is_empty() && line.trim() != LAST_LINE
        });
        // A function is made anew by each call of the script, so the one that is not asked stays
        // away. It ends where its last line stands alone.
        let (other, mut inside) = (
            if function == "take" { "local function give_back(" } else { "local function take(" },
            false,
        );
        for code in code {
            inside |= code.starts_with(other);
            if !inside {
                line(text, format_args!("{code}"));
            }
            inside &= code != "end";
        }
        line(text, format_args!("{} = {function}\nend", program.name));
    }
    let has = |wanted: fn(Kind) -> bool| programs.iter().any(|program| wanted(program.kind));
    // A number that is handed to a command is written out as a double: written here, as a whole
    // number, it costs a third of that.
    text.push_str("local fmt = string.format\n");
    if has(named) {
        text.push_str("local spread, sub = unpack, string.sub\n");
    }
    if has(|kind| kind == Kind::Buckets) {
        text.push_str("local rep, sub = string.rep, string.sub\n");
    }
    text.push_str("local unpack, pack, call = struct.unpack, struct.pack, redis.call\n");
    if has(|kind| kind == Kind::Buckets) {
        text.push_str(parts::RING);
    }
}

/// The operator's scripts come first, so that no local of the driver's is in their scope, and each
/// before the local that it becomes. An earlier script's local is hidden from a later one.
fn operators_scripts(text: &mut String, programs: &[&'static Program], function: &str) {
    let mut done: SmallVec<[&str; 4]> = SmallVec::new();
    for program in programs.iter().filter(|program| scripts::is_one(program)) {
        let (name, body) = (program.name, scripts::body(program));
        if done.contains(&name) {
            continue;
        }
        let (hidden, error) = (parts::HIDDEN, parts::ERROR);
        let others: String = done.iter().map(|other| format!(", {other}")).collect();
        line(
            text,
            format_args!(
                "local {name} = (function()\nlocal error, {hidden}{others} = {error}\n{body}\nreturn {function}\nend)()"
            ),
        );
        done.push(name);
    }
    if !done.is_empty() {
        text.push_str(parts::SOUND);
    }
}

/// The name of a take's first unit in a log: its instant, a double, and the take's own.
fn logged(i: usize, instant: &str) -> String {
    format!("pack('<d', {instant}) .. sub(ARGV[{i}], -16)")
}

/// Adds `z` units behind all others: the first bears the name `x`, the others a number behind it.
/// At most so many go into one call, for Lua's stack. Written out, because a function is made anew
/// by each call of the script, and mostly there is one unit.
fn push(text: &mut String, i: usize) {
    line(
        text,
        format_args!(
            "if z{i} == 1 then call('RPUSH', KEYS[{i}], x{i}) else\nlocal batch, n = {{ x{i} }}, 1"
        ),
    );
    line(
        text,
        format_args!("for k = 1, z{i} - 1 do\nn = n + 1\nbatch[n] = x{i} .. pack('<I4', k)"),
    );
    line(
        text,
        format_args!(
            "if n == 1000 then call('RPUSH', KEYS[{i}], spread(batch, 1, n)); n = 0 end\nend"
        ),
    );
    line(
        text,
        format_args!("if n > 0 then call('RPUSH', KEYS[{i}], spread(batch, 1, n)) end\nend"),
    );
}

/// Adds `units` leases with one score, named as in a log, but for the instant.
fn add(text: &mut String, i: usize, score: &str, units: &str) {
    line(text, format_args!("local name = sub(ARGV[{i}], -16)"));
    line(
        text,
        format_args!(
            "if {units} == 1 then call('ZADD', KEYS[{i}], {score}, name) else\nlocal batch, n = {{ {score}, name }}, 2"
        ),
    );
    line(
        text,
        format_args!(
            "for k = 1, {units} - 1 do\nbatch[n + 1], batch[n + 2], n = {score}, name .. pack('<I4', k), n + 2"
        ),
    );
    line(
        text,
        format_args!(
            "if n == 1000 then call('ZADD', KEYS[{i}], spread(batch, 1, n)); n = 0 end\nend"
        ),
    );
    line(text, format_args!("if n > 0 then call('ZADD', KEYS[{i}], spread(batch, 1, n)) end\nend"));
}

/// Removes `units` units by name.
fn drop_members(text: &mut String, i: usize) {
    line(
        text,
        format_args!(
            "local name = sub(ARGV[{i}], -16)\nlocal batch, n = {{ name }}, 1\nfor k = 1, units - 1 do"
        ),
    );
    line(text, format_args!("n = n + 1\nbatch[n] = name .. pack('<I4', k)"));
    line(
        text,
        format_args!(
            "if n == 1000 then call('ZREM', KEYS[{i}], spread(batch, 1, n)); n = 0 end\nend"
        ),
    );
    line(text, format_args!("if n > 0 then call('ZREM', KEYS[{i}], spread(batch, 1, n)) end"));
}

/// Reads all strings at once; where each cell's is found.
fn read(text: &mut String, programs: &[&'static Program]) -> SmallVec<[String; 2]> {
    let strings: SmallVec<[usize; 2]> =
        (1..).zip(programs).filter(|(_, program)| !named(program.kind)).map(|(i, _)| i).collect();
    match strings.as_slice() {
        [] => {}
        [i] => line(text, format_args!("local v1 = call('GET', KEYS[{i}])")),
        several => {
            let keys: Vec<String> = several.iter().map(|i| format!("KEYS[{i}]")).collect();
            line(text, format_args!("local v = call('MGET', {})", keys.join(", ")));
        }
    }
    let place =
        |i: usize| strings.iter().position(|string| *string == i).map_or(0, |place| place + 1);
    (1..=programs.len())
        .map(|i| if strings.len() == 1 { "v1".into() } else { format!("v[{}]", place(i)) })
        .collect()
}

/// How a take and a look begin, and where each cell's string is found.
fn begin(
    first_line: &str,
    programs: &[&'static Program],
    how_to_ask_the_time: &str,
) -> (String, SmallVec<[String; 2]>) {
    let mut text = String::from(first_line);
    preamble(&mut text, programs, Some("take"));
    text.push_str(how_to_ask_the_time);
    let stored = read(&mut text, programs);
    text.push_str("local ok = 1\n");
    (text, stored)
}

fn take(programs: &[&'static Program], how_to_ask_the_time: &str) -> String {
    // Without allow-oom: Redis refuses the script before it runs when it is out of memory.
    let (mut text, stored) = begin("#!lua\n", programs, how_to_ask_the_time);
    for ((i, program), stored) in (1..).zip(programs).zip(&stored) {
        ask(&mut text, i, stored, program);
        refusal(&mut text, i);
        keep(&mut text, i, program);
    }
    text.push_str("if ok == 1 then\n");
    for ((i, program), stored) in (1..).zip(programs).zip(&stored) {
        line(&mut text, format_args!("if w{i} then"));
        match program.kind {
            Kind::Numbers => set(
                &mut text,
                i,
                &packed(program, &["x", "y", "z"].map(|name| format!("{name}{i}"))),
                &format!("e{i}"),
            ),
            Kind::Buckets => set(
                &mut text,
                i,
                &format!("ring_add({stored}, x{i}, y{i}, z{i})"),
                &format!("e{i}"),
            ),
            Kind::Log => {
                line(
                    &mut text,
                    format_args!(
                        "if w{i} > 0 then\ncall('LTRIM', KEYS[{i}], fmt('%d', y{i}), fmt('%d', -1 - w{i}))\ny{i} = 0\nend"
                    ),
                );
                push(&mut text, i);
                // After the push: the key stays, and its lifetime with it.
                line(&mut text, format_args!("if y{i} == 1 then call('LPOP', KEYS[{i}])"));
                line(
                    &mut text,
                    format_args!(
                        "elseif y{i} > 1 then call('LTRIM', KEYS[{i}], fmt('%d', y{i}), '-1') end"
                    ),
                );
                line(
                    &mut text,
                    format_args!(
                        "if e{i} > 0 then call('PEXPIREAT', KEYS[{i}], fmt('%d', e{i})) end"
                    ),
                );
            }
            Kind::Leases => {
                add(&mut text, i, &format!("x{i}"), &format!("z{i}"));
                line(
                    &mut text,
                    format_args!(
                        "if us % {PURGE_EACH} == 0 or z{i} > 1 then call('ZREMRANGEBYSCORE', KEYS[{i}], '-inf', fmt('%d', y{i})) end"
                    ),
                );
                // A lifetime that would not grow was set in this very millisecond, or never, or by
                // a clock that has stepped back since.
                line(
                    &mut text,
                    format_args!(
                        "local lives = fmt('%d', e{i})\nif call('PEXPIREAT', KEYS[{i}], lives, 'GT') == 0"
                    ),
                );
                line(&mut text, format_args!("and call('PEXPIRETIME', KEYS[{i}]) ~= e{i} then"));
                line(
                    &mut text,
                    format_args!(
                        "call('ZREMRANGEBYSCORE', KEYS[{i}], w{i}, '+inf')\ncall('PEXPIREAT', KEYS[{i}], lives)\nend"
                    ),
                );
            }
        }
        text.push_str("end\n");
    }
    text.push_str("end\n");
    answer(&mut text, programs.len());
    text
}

/// As a take, but for the writing.
fn look(programs: &[&'static Program], how_to_ask_the_time: &str) -> String {
    let (mut text, stored) = begin("#!lua flags=no-writes\n", programs, how_to_ask_the_time);
    for ((i, program), stored) in (1..).zip(programs).zip(&stored) {
        ask(&mut text, i, stored, program);
        // What is left, and when all is back, as it stands: nothing is charged.
        line(&mut text, format_args!("if f{i} == 1 and cost > 0 then\nlocal _"));
        line(
            &mut text,
            format_args!("_, _, _, _, l{i}, _, b{i} = {}\nend", call_take(program, "0")),
        );
        refusal(&mut text, i);
        text.push_str("end\nend\n");
    }
    answer(&mut text, programs.len());
    text
}

/// Several packs for many cells: each value of one call takes a register of Lua's, beside all
/// locals.
fn answer(text: &mut String, cells: usize) {
    let of_cells = (1..=cells).flat_map(|i| ["f", "l", "r", "b"].map(|name| format!("{name}{i}")));
    let values: Vec<String> = ["us", "ok"].map(str::to_owned).into_iter().chain(of_cells).collect();
    let packs: Vec<String> = values
        .chunks(VALUES_A_PACK)
        .map(|some| format!("pack('<{}', {})", "d".repeat(some.len()), some.join(", ")))
        .collect();
    line(text, format_args!("return {}", packs.join(" .. ")));
}

/// Asks one cell's program, and leaves its block open. What the others or the writing need stays: f
/// fits, x y z what is to be written, l what is left, r retry, b reset (all back), e the expiry, w
/// what is truthy if it is to be written (of leases: after which score they hold what a stepped
/// clock has left; of a log: how many units of it are such). Nine locals a cell, so that sixteen
/// cells stay below Lua's two hundred.
fn ask(text: &mut String, i: usize, stored: &str, program: &'static Program) {
    line(text, format_args!("local f{i}, x{i}, y{i}, z{i}, l{i}, r{i}, b{i}, e{i}, w{i}\ndo"));
    unpack(text, i, program, "unit, shadow, cost");
    text.push_str("local now, s1, s2, s3 = us, 0, 0, 0\nif unit == 1000 then now = (us - us % 1000) / 1000 end\n");
    match program.kind {
        Kind::Numbers => {
            line(text, format_args!("if {stored} then {} end", unpacked(program, stored)))
        }
        Kind::Log => {
            text.push_str(&parts::log(parts::LOG_COUNT, i));
            lacking(text);
            text.push_str(&parts::log(parts::LOG_LEAVES, i));
        }
        Kind::Buckets => {
            text.push_str("local this, last = (now - now % n2) / n2\ns3 = this * n2\n");
            line(
                text,
                format_args!("if {stored} then s1, last = ring_count({stored}, this, n3) end"),
            );
            lacking(text);
            line(
                text,
                format_args!("s2 = ring_leaves({stored}, this, last, n3, lacking) * n2\nend"),
            );
        }
        Kind::Leases => {
            line(
                text,
                format_args!(
                    "s1 = call('ZCOUNT', KEYS[{i}], fmt('(%d', now), fmt('%d', now + n2 + n3))"
                ),
            );
        }
    }
    line(
        text,
        format_args!(
            "f{i}, x{i}, y{i}, z{i}, l{i}, r{i}, b{i}, e{i} = {}",
            call_take(program, "cost")
        ),
    );
}

/// Calls a program's take.
fn call_take(program: &'static Program, cost: &str) -> String {
    let numbers: Vec<String> = (1..=program.numbers).map(|n| format!(", n{n}")).collect();
    judged(
        program,
        "take",
        format!("{}(s1, s2, s3, now, {cost}{})", program.name, numbers.concat()),
    )
}

/// Opens a block with what a cell says to all of the call when it does not fit.
fn refusal(text: &mut String, i: usize) {
    line(
        text,
        format_args!("if f{i} == 0 then\nif shadow == 0 or r{i} == {OUTSIDE} then ok = 0 end"),
    );
}

/// In the blocks that are open: what is to be written where the cell fits. Ends them.
fn keep(text: &mut String, i: usize, program: &'static Program) {
    line(text, format_args!("elseif cost > 0 then\nw{i} = true"));
    match program.kind {
        Kind::Numbers => {}
        Kind::Log => {
            line(
                text,
                format_args!("x{i}, y{i}, z{i}, w{i} = {}, old, cost, new", logged(i, "now")),
            );
        }
        Kind::Buckets => line(text, format_args!("x{i}, y{i}, z{i} = this, n3, cost")),
        Kind::Leases => line(
            text,
            format_args!(
                "x{i}, y{i}, z{i}, w{i} = fmt('%d', now + n2), now, cost, fmt('(%d', now + n2 + n3)"
            ),
        ),
    }
    expiry(text, &format!("e{i}"));
    if program.kind == Kind::Log {
        // A log lives until two periods after its oldest unit, or longer: as long as that one
        // counts, until a period from now, or longer. Where the oldest is over, what stands is
        // looked at; what is set reaches a quarter of a period further, so that it is seldom set.
        line(
            text,
            format_args!(
                "if new == 0 and card > 0 and (old == 0 or call('PEXPIRETIME', KEYS[{i}]) >= e{i}) then e{i} = 0"
            ),
        );
        line(text, format_args!("else e{i} = e{i} + (n2 * unit - n2 * unit % 4000) / 4000 end"));
    }
    text.push_str("end\nend\n");
}

/// The numbers of its state that a program uses, packed.
fn packed(program: &Program, names: &[String; 3]) -> String {
    let used: Vec<&str> = names.iter().take(program.state).map(String::as_str).collect();
    format!("pack('<{}', {})", "d".repeat(used.len()), used.join(", "))
}

/// The other way round. What `unpack` answers last is a position: it is not taken for a number.
fn unpacked(program: &Program, stored: &str) -> String {
    let used: Vec<&str> = ["s1", "s2", "s3"].into_iter().take(program.state).collect();
    format!("{} = unpack('<{}', {stored})", used.join(", "), "d".repeat(used.len()))
}

/// What a script of the operator's answers is looked at first.
fn judged(program: &'static Program, function: &str, call: String) -> String {
    if scripts::is_one(program) { format!("sound_{function}({call})") } else { call }
}

/// A cell's argument as locals.
fn unpack(text: &mut String, i: usize, program: &Program, first: &str) {
    let numbers: Vec<String> = (1..=program.numbers).map(|n| format!(", n{n}")).collect();
    let format = "d".repeat(3 + program.numbers);
    line(text, format_args!("local {first}{} = unpack('<{format}', ARGV[{i}])", numbers.concat()));
}

/// Opens a block for where the cost does not fit and could, or fits and leaves nothing, with how
/// many units must leave before it fits, or before the next unit does.
fn lacking(text: &mut String) {
    text.push_str("local lacking = s1 + cost - n1\nif cost == 0 then lacking = lacking + 1 elseif lacking == 0 then lacking = 1 end\n");
    text.push_str("if lacking > 0 and lacking <= s1 then\n");
}

/// From the limit's units to milliseconds, rounded up, and a second more. 0, as it stands, and what
/// is below it, never, are left alone.
fn expiry(text: &mut String, e: &str) {
    let rounded = format!("({e} + (1000 - {e} % 1000) % 1000) / 1000 + 1000");
    line(
        text,
        format_args!(
            "if {e} > 0 then\nif unit == 1000 then {e} = {e} + 1000 else {e} = {rounded} end\nend"
        ),
    );
}

/// Writes a string that lives until `e`; as long as it lived anyway (it is there, and as long as
/// this one: then it is written over, the cheapest of these); or for ever.
fn set(text: &mut String, i: usize, value: &str, e: &str) {
    line(
        text,
        format_args!("if {e} > 0 then call('SET', KEYS[{i}], {value}, 'PXAT', fmt('%d', {e}))"),
    );
    line(
        text,
        format_args!(
            "elseif {e} == 0 then call('SETRANGE', KEYS[{i}], '0', {value})\nelse call('SET', KEYS[{i}], {value}) end"
        ),
    );
}

fn give_back(programs: &[&'static Program], how_to_ask_the_time: &str) -> String {
    // With allow-oom: what gives memory's allowance back must not fail for want of memory; it
    // writes only over what is there.
    let mut text = String::from("#!lua flags=allow-oom\n");
    preamble(&mut text, programs, Some("give_back"));
    text.push_str(how_to_ask_the_time);
    for (i, program) in (1..).zip(programs) {
        text.push_str("do\n");
        unpack(&mut text, i, program, "unit, taken, units");
        if named(program.kind) {
            text.push_str("if units > 0 then\n");
            if program.kind == Kind::Log {
                text.push_str("if unit == 1000 then taken = (taken - taken % 1000) / 1000 end\n");
                line(&mut text, format_args!("local name = {}", logged(i, "taken")));
                text.push_str(&parts::log(parts::LOG_GIVE_BACK, i));
                expiry(&mut text, "e");
                line(
                    &mut text,
                    format_args!("call('PEXPIREAT', KEYS[{i}], fmt('%d', e), 'GT')\nend"),
                );
            } else {
                drop_members(&mut text, i);
            }
            text.push_str("end\nend\n");
            continue;
        }
        line(
            &mut text,
            format_args!("local v = call('GET', KEYS[{i}])\nif v then\nlocal now = us"),
        );
        text.push_str("if unit == 1000 then now, taken = (us - us % 1000) / 1000, (taken - taken % 1000) / 1000 end\n");
        if program.kind == Kind::Buckets {
            text.push_str(parts::RING_GIVE_BACK);
            line(
                &mut text,
                format_args!(
                    "if total == units then call('DEL', KEYS[{i}])\nelse call('SETRANGE', KEYS[{i}], '0', v) end"
                ),
            );
            text.push_str("end\nend\nend\n");
            continue;
        }
        let numbers: Vec<String> = (1..=program.numbers).map(|n| format!(", n{n}")).collect();
        line(&mut text, format_args!("local s1, s2, s3 = 0, 0, 0\n{}", unpacked(program, "v")));
        let call = judged(
            program,
            "give_back",
            format!("{}(s1, s2, s3, now, units, taken{})", program.name, numbers.concat()),
        );
        line(&mut text, format_args!("local x, y, z, changed, e = {call}\nif changed == 1 then"));
        // As good as no counter: then there need not be one.
        line(
            &mut text,
            format_args!("if x == 0 and y == 0 and z == 0 then call('DEL', KEYS[{i}]) else"),
        );
        expiry(&mut text, "e");
        set(&mut text, i, &packed(program, &["x", "y", "z"].map(str::to_owned)), "e");
        text.push_str("end\nend\nend\nend\n");
    }
    text.push_str("return us\n");
    text
}

/// Leases only: what is anything else is left alone.
fn renew(programs: &[&'static Program], how_to_ask_the_time: &str) -> String {
    // With allow-oom: what is in flight is in flight.
    let mut text = String::from("#!lua flags=allow-oom\n");
    preamble(&mut text, programs, None);
    text.push_str(how_to_ask_the_time);
    for (i, program) in (1..).zip(programs).filter(|(_, program)| program.kind == Kind::Leases) {
        text.push_str("do\n");
        unpack(&mut text, i, program, "unit, _, units");
        text.push_str("local now = us\nif unit == 1000 then now = (us - us % 1000) / 1000 end\nlocal e = now + n2 + n2\n");
        text.push_str("if units > 0 then\nlocal ends = fmt('%d', now + n2)\n");
        add(&mut text, i, "ends", "units");
        expiry(&mut text, "e");
        line(
            &mut text,
            format_args!(
                "e = fmt('%d', e)\nif call('PEXPIREAT', KEYS[{i}], e, 'GT') == 0 and call('PTTL', KEYS[{i}]) < 0 then"
            ),
        );
        line(&mut text, format_args!("call('PEXPIREAT', KEYS[{i}], e)\nend\nend\nend"));
    }
    text.push_str("return us\n");
    text
}

fn line(text: &mut String, what: std::fmt::Arguments<'_>) {
    // Writing to a String can't fail.
    let _ = text.write_fmt(what);
    text.push('\n');
}
