//! Generates the Lua that Redis runs: the programs of a call, and around them code that reads,
//! decides, and writes only when all cells agree. That code comes from the templates in
//! `lua/driver/`.
//!
//! A script is unrolled for the number of cells, without a table per cell, and numbers are packed
//! as doubles: that costs least inside Redis. A script depends only
//! on the list of programs. Units, shadows, costs and numbers are arguments, so there are few
//! scripts and they never overflow Redis' script cache. Must not know what a program computes. Only
//! a parent after its assured cell has code of its own.
//!
//! `lua/driver/frame.lua` documents KEYS and ARGV. Redis stores numbers as packed doubles, a ring
//! as two doubles and one per sub-window, a log as a list, and leases as a sorted set by
//! instant. A take and a look return packed doubles, since a table of integers costs Redis more
//! than twice as much: the time (microseconds), admitted (0 or 1), then for each cell fits,
//! remaining, retry, reset. A charge returns packed doubles, too: the time, then for each cell the
//! units charged. Give-backs and renewals return the time, an integer.

mod hidden;
mod template;

use std::fmt::Write as _;

use smallvec::SmallVec;

use self::template::Template;
use super::{Cell, Cells, Kind, NUMBERS_MAX, Part, Program, is_assured, script_texts};

/// How the last line of each program begins. The driver removes it and calls the functions itself.
const LAST_LINE_BEGINS: &str = "return { take = take, give_back = give_back";
/// The functions of a program.
const FUNCTIONS: [&str; 3] = ["take", "give_back", CHARGE];
const CHARGE: &str = "charge";

/// Maximum number of cells of a call: of limits of a plan.
const CELLS_MAX: usize = 16;
/// Maximum number of values of a reply that one call of `pack` packs.
const VALUES_PER_PACK_MAX: usize = 18;

/// What a script does with its cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Verb {
    /// Takes all cells or none.
    Take,
    /// Answers whether a take would succeed; writes nothing.
    Look,
    /// Gives each cell back independently of the others, even when Redis is out of memory.
    GiveBack,
    /// Charges each cell independently of the others, into debt if need be.
    Charge,
    /// Extends leases to one full length from now.
    Renew,
    /// Takes several units of one cell: what waits for them, and a fair share of what is left.
    Lease,
}

/// A script's text and its digest.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) text: String,
    /// SHA-1 of the text in hex, as EVALSHA takes it.
    pub(super) sha: String,
}

impl Script {
    /// The script for these cells' programs, in their order.
    pub(super) fn new(verb: Verb, cells: &Cells) -> Self {
        Self::with_time(verb, cells, &template::shared("time"))
    }

    /// Like [`Script::new`], but with other code to read the time: a test can't set Redis' own
    /// clock.
    pub(super) fn with_time(verb: Verb, cells: &Cells, time: &str) -> Self {
        let programs: SmallVec<[&'static Program; 2]> =
            cells.iter().map(|cell| cell.program).collect();
        let assured: SmallVec<[bool; 8]> =
            (0..cells.len()).map(|index| is_assured(cells, index)).collect();
        let text = match verb {
            Verb::Take => take(&programs, &assured, time),
            Verb::Look => look(&programs, &assured, time),
            Verb::GiveBack => give_back(&programs, time),
            Verb::Charge => charge(&programs, time),
            Verb::Renew => renew(&programs, time),
            Verb::Lease => lease(&programs, time),
        };
        let sha = sha1_smol::Sha1::from(&text).digest().to_string();
        Self { text, sha }
    }
}

/// A cell's ARGV: unit, an argument that depends on the verb, cost, the program's numbers, and the
/// member's name for kinds that store units by name.
pub(super) type Argument = SmallVec<[u8; 8 * (3 + NUMBERS_MAX)]>;

/// Packs a cell's ARGV.
pub(super) fn argument(verb: Verb, cell: &Cell, taken_at_us: u64) -> Argument {
    let second = match verb {
        Verb::Take | Verb::Look => i64::from(cell.shadow || cell.part == Part::Assured),
        Verb::GiveBack => taken_at_us as i64,
        Verb::Charge | Verb::Renew | Verb::Lease => 0,
    };
    let first = [i64::from(cell.unit_us), second, cell.cost as i64];
    let numbers = first.iter().chain(cell.numbers.iter().take(cell.program.numbers));
    let mut bytes: Argument = numbers.flat_map(|number| (*number as f64).to_le_bytes()).collect();
    if named(cell.program.kind) {
        bytes.extend_from_slice(&cell.member.to_le_bytes());
    }
    bytes
}

/// Whether units are stored by name. The other kinds are stored as strings.
fn named(kind: Kind) -> bool {
    matches!(kind, Kind::Log | Kind::Leases)
}

/// Writes the programs in use, each in a block of its own that exports `function` under the
/// program's name, and the helpers that the kinds in use share. Those of parents, which `assured`
/// marks, export their `charge`, too.
fn preamble(
    text: &mut String,
    (programs, assured): (&[&'static Program], &[bool]),
    function: Option<&str>,
) {
    if let Some(function) = function {
        operators_scripts(text, programs, function);
    }
    let mut done: SmallVec<[&str; 4]> = SmallVec::new();
    for program in programs.iter().filter(|program| !script_texts::is_operator_script(program)) {
        let Some(function) = function.filter(|_| !done.contains(&program.name)) else { continue };
        done.push(program.name);
        let name = program.name;
        let owes = programs.iter().zip(assured).any(|(it, assured)| *assured && it.name == name);
        line(text, format_args!("local {name}"));
        if owes {
            line(text, format_args!("local {name}_{CHARGE}"));
        }
        line(text, format_args!("do"));
        let code = program.text.lines().filter(|line| {
            !line.starts_with("--")
                && !line.trim().is_empty()
                && !line.starts_with(LAST_LINE_BEGINS)
        });
        // Each call of the script creates its functions, so those that are not called are left out.
        // A function ends at the first `end` in column 0.
        let others =
            FUNCTIONS.into_iter().filter(|other| *other != function && !(owes && *other == CHARGE));
        let others: SmallVec<[String; 2]> =
            others.map(|other| format!("local function {other}(")).collect();
        let mut inside = false;
        for code in code {
            inside |= others.iter().any(|other| code.starts_with(other));
            if !inside {
                line(text, format_args!("{code}"));
            }
            inside &= code != "end";
        }
        if owes {
            line(text, format_args!("{name}_{CHARGE} = {CHARGE}"));
        }
        line(text, format_args!("{name} = {function}\nend"));
    }
    let has = |wanted: fn(Kind) -> bool| programs.iter().any(|program| wanted(program.kind));
    // A number passed to a command is formatted as a double. Formatting it here as a whole number
    // costs a third of that.
    text.push_str("local fmt = string.format\n");
    if has(named) {
        text.push_str("local spread, sub = unpack, string.sub\n");
    }
    if has(|kind| kind == Kind::Buckets) {
        text.push_str("local rep, sub = string.rep, string.sub\n");
    }
    text.push_str("local unpack, pack, call = struct.unpack, struct.pack, redis.call\n");
    if has(|kind| kind == Kind::Buckets) {
        text.push_str(&template::functions(Kind::Buckets));
    }
}

/// Writes the operator's scripts. They come first, so that none of the driver's locals is in their
/// scope. Each is defined before the local that it becomes, and the locals of earlier scripts are
/// hidden from later ones.
fn operators_scripts(text: &mut String, programs: &[&'static Program], function: &str) {
    let mut done: SmallVec<[&str; 4]> = SmallVec::new();
    let mut first_line = String::from("local function first_line(name)\n");
    for program in programs.iter().filter(|program| script_texts::is_operator_script(program)) {
        let (name, known) = (program.name, script_texts::name(program));
        if done.contains(&name) {
            continue;
        }
        let at = text.lines().count() + 1;
        line(&mut first_line, format_args!("if name == '{known}' then return {at} end"));
        let body = script_texts::body(program.text);
        line(text, format_args!("local {name} = {}", operators_script(body, function, &done)));
        done.push(name);
    }
    if !done.is_empty() {
        text.push_str(&first_line);
        text.push_str("end\n");
        text.push_str(&template::shared("sound"));
    }
}

/// The expression for `function` of an operator's script without its last line. The script's first
/// line is on the first line of it.
fn operators_script(body: &str, function: &str, others: &[&str]) -> String {
    let (hidden, error) = (hidden::NAMES, hidden::ERROR);
    let others: String = others.iter().map(|other| format!(", {other}")).collect();
    format!(
        "(function() local error, {hidden}{others} = {error}; {body}\nreturn {function}\nend)()"
    )
}

/// Lua that loads an operator's script as calls do, and returns what they would call as its take
/// and its give-back, each in a chunk of its own. Their lines are those of the script.
pub(super) fn loads(text: &str) -> [String; 2] {
    // Other scripts of a call take room, too.
    let others: Vec<String> = (1..CELLS_MAX).map(|other| format!("other{other}")).collect();
    let others: Vec<&str> = others.iter().map(String::as_str).collect();
    let body = script_texts::body(text);
    let load = |function| format!("return {}", operators_script(body, function, &others));
    ["take", "give_back"].map(load)
}

/// Reads all strings with one command; returns the expression for each cell's string.
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
    let index =
        |i: usize| strings.iter().position(|string| *string == i).map_or(0, |index| index + 1);
    (1..=programs.len())
        .map(|i| if strings.len() == 1 { "v1".into() } else { format!("v[{}]", index(i)) })
        .collect()
}

/// The beginning of a take, a look and a charge, and the expression for each cell's string.
fn begin(
    first_line: &str,
    (programs, assured): (&[&'static Program], &[bool]),
    function: &str,
    time: &str,
) -> (String, SmallVec<[String; 2]>) {
    let mut text = String::from(first_line);
    preamble(&mut text, (programs, assured), Some(function));
    text.push_str(time);
    let stored = read(&mut text, programs);
    (text, stored)
}

fn take(programs: &[&'static Program], assured: &[bool], time: &str) -> String {
    // Without allow-oom, so that Redis refuses the script before running it when it is out of
    // memory.
    let (mut text, stored) = begin("#!lua\n", (programs, assured), "take", time);
    text.push_str("local ok = 1\n");
    for (cell, assured) in cells(programs, &stored).zip(assured) {
        cell.write(&mut text, if *assured { "take_of_parent" } else { "take" });
    }
    text.push_str("if ok == 1 then\n");
    for cell in cells(programs, &stored) {
        cell.write(&mut text, "write");
    }
    text.push_str("end\n");
    answer(&mut text, programs.len());
    text
}

fn lease(programs: &[&'static Program], time: &str) -> String {
    let (mut text, stored) = begin("#!lua\n", (programs, &[]), "take", time);
    for cell in cells(programs, &stored) {
        cell.write(&mut text, "lease");
        cell.write(&mut text, "write");
    }
    let reply = ["us", "units", "holders", "fits_1", "left_1", "retry_1", "reset_1"];
    pack(&mut text, reply.map(str::to_owned).into());
    text
}

fn look(programs: &[&'static Program], assured: &[bool], time: &str) -> String {
    let (mut text, stored) = begin("#!lua flags=no-writes\n", (programs, assured), "take", time);
    text.push_str("local ok = 1\n");
    for (cell, assured) in cells(programs, &stored).zip(assured) {
        cell.write(&mut text, "look");
        if *assured {
            cell.write(&mut text, "look_after_assured");
        }
        cell.write(&mut text, "look_ends");
    }
    answer(&mut text, programs.len());
    text
}

fn charge(programs: &[&'static Program], time: &str) -> String {
    // Without allow-oom, as a charge may need a new key.
    let (mut text, stored) = begin("#!lua\n", (programs, &[]), "charge", time);
    for cell in cells(programs, &stored) {
        cell.write(&mut text, "charge");
    }
    let charged = (1..=programs.len()).map(|i| format!("charged_{i}"));
    pack(&mut text, std::iter::once("us".to_owned()).chain(charged).collect());
    text
}

/// Writes the reply to a take or a look.
fn answer(text: &mut String, cells: usize) {
    let of_cells = (1..=cells)
        .flat_map(|i| ["fits", "left", "retry", "reset"].map(|name| format!("{name}_{i}")));
    pack(text, ["us", "ok"].map(str::to_owned).into_iter().chain(of_cells).collect());
}

/// Writes a reply of packed doubles. Many need several packs: each value of a call takes one of
/// Lua's registers, in addition to all locals.
fn pack(text: &mut String, values: Vec<String>) {
    let packs: Vec<String> = values
        .chunks(VALUES_PER_PACK_MAX)
        .map(|some| format!("pack('<{}', {})", "d".repeat(some.len()), some.join(", ")))
        .collect();
    line(text, format_args!("return {}", packs.join(" .. ")));
}

fn give_back(programs: &[&'static Program], time: &str) -> String {
    // With allow-oom: a give-back must not fail for lack of memory, and it only overwrites what
    // exists.
    let mut text = String::from("#!lua flags=allow-oom\n");
    preamble(&mut text, (programs, &[]), Some("give_back"));
    text.push_str(time);
    let stored: SmallVec<[String; 2]> = programs.iter().map(|_| "v".to_owned()).collect();
    for cell in cells(programs, &stored) {
        let frame = if named(cell.program.kind) { "give_back_members" } else { "give_back_state" };
        cell.write(&mut text, frame);
    }
    let scripted = programs.iter().any(|program| script_texts::is_operator_script(program));
    // What a script answers wrongly keeps no other cell from getting its units back.
    text.push_str(if scripted { "return wrong or us\n" } else { "return us\n" });
    text
}

/// Renews leases; cells of other kinds are left alone.
fn renew(programs: &[&'static Program], time: &str) -> String {
    // With allow-oom: the requests are in flight already, and losing their leases would admit more.
    let mut text = String::from("#!lua flags=allow-oom\n");
    preamble(&mut text, (programs, &[]), None);
    text.push_str(time);
    for (index, program) in (1..).zip(programs) {
        if program.kind == Kind::Leases {
            Template { index, program, stored: "" }.write(&mut text, "renew");
        }
    }
    text.push_str("return us\n");
    text
}

/// The templates of a call's cells. `stored` has the expression for each cell's string.
fn cells<'s>(
    programs: &'s [&'static Program],
    stored: &'s [String],
) -> impl Iterator<Item = Template<'s>> {
    (1..).zip(programs).zip(stored).map(|((index, program), stored)| Template {
        index,
        program,
        stored,
    })
}

fn line(text: &mut String, what: std::fmt::Arguments<'_>) {
    // Writing to a String can't fail.
    let _ = text.write_fmt(what);
    text.push('\n');
}
