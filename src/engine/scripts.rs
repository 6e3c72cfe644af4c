//! Algorithms of the operator's own: Lua files with the contract of `lua/`, tried before any
//! request meets them.
//!
//! A [`Program`] lives for ever, because a counted pointer in each cell would be contended between
//! cores. So texts are kept once for the life of the process, and their number is bounded. Must not
//! know what a script computes, nor where its files stand.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::driver::LAST_LINE;
use super::lua::Sandbox;
use super::{Kind, NUMBERS_MAX, Program};
use crate::telemetry::Mistake;

/// Scripts of one configuration, at most.
pub const SCRIPTS_MAX: usize = 64;
/// Bytes of one script, at most.
pub const SCRIPT_BYTES_MAX: u64 = 64 << 10;
/// Different texts that a process takes up in its life, at most.
const TEXTS_MAX: usize = 256;
/// Bytes of a script's name, at most.
const SCRIPT_NAME_BYTES_MAX: usize = 64;

/// What a script is called inside a Lua text begins so: `end` and `call` are good names for a file.
const PREFIX: &str = "user_";
/// A line of a script that gives the numbers to try it with.
const TRIAL: &str = "-- trial:";
/// What it is tried with where it has no such line.
const TRIAL_DEFAULT: [i64; NUMBERS_MAX] = [1; NUMBERS_MAX];
/// Trials of one script, at most.
const TRIALS_MAX: usize = 8;
/// Microseconds since 1970 at which a trial begins, and from one of its steps to the next: also
/// none, far ahead, and back.
const TRIAL_NOW_US: f64 = 1_774_785_600_000_000.0;
const TRIAL_STEPS_US: [f64; 6] = [0.0, 0.0, 1.0, 250_000.0, 86_400_000_000.0, -3_600_000_000.0];
const TRIAL_COSTS: [u64; 4] = [1, 0, 3, 1 << 31];

static TEXTS: Mutex<Vec<&'static Program>> = Mutex::new(Vec::new());

/// A script as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptFile {
    /// The file's name without `.lua`: what policies call it.
    pub name: String,
    /// Where it stands, for messages.
    pub path: std::path::PathBuf,
    /// The Lua chunk.
    pub text: String,
}

/// Scripts that were tried and found good, by name.
#[derive(Clone, Debug, Default)]
pub struct Scripts(Vec<(String, &'static Program)>);

impl PartialEq for Scripts {
    fn eq(&self, other: &Self) -> bool {
        let same =
            |((a, x), (b, y)): (&(String, &'static Program), &(String, &'static Program))| {
                a == b && std::ptr::eq(*x, *y)
            };
        self.0.len() == other.0.len() && self.0.iter().zip(&other.0).all(same)
    }
}

impl Eq for Scripts {}

impl Scripts {
    /// Tries each of `files` in a fresh VM and takes them up.
    ///
    /// # Errors
    /// All mistakes, each at the setting `scripts.NAME`, with the file and where possible its
    /// line: a name that is none, a text that is too long, that can't be loaded or doesn't answer
    /// as the contract says; and one text too many in this process' life.
    pub fn load(files: &[ScriptFile]) -> Result<Self, Vec<Mistake>> {
        let wrong = |file: &ScriptFile, found: String, expected: &str| {
            // Lua's own messages begin with the file's name and the line.
            let name = file.path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
            let line = found.strip_prefix(&*name).filter(|rest| rest.starts_with(':'));
            let found = line.map_or_else(|| format!(": {found}"), str::to_owned);
            Mistake::new(
                format!("scripts.{}", file.name),
                format!("{}{found}", file.path.display()),
                expected,
            )
        };
        let mut mistakes = Vec::new();
        let mut programs = Vec::with_capacity(files.len());
        for file in files {
            let tried = try_out(file).map_err(|(found, expected)| wrong(file, found, expected));
            let kept = tried.and_then(|()| {
                let expected =
                    "at most 256 different texts of scripts in a process' life: restart it";
                keep(&file.name, &file.text)
                    .ok_or_else(|| wrong(file, "one text too many".into(), expected))
            });
            match kept {
                Ok(program) => programs.push((file.name.clone(), program)),
                Err(mistake) => mistakes.push(mistake),
            }
        }
        if mistakes.is_empty() { Ok(Self(programs)) } else { Err(mistakes) }
    }

    /// The script of that name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&'static Program> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, program)| *program)
    }
}

/// Whether a script may be called so: `[a-z][a-z0-9_]{0,63}`.
#[must_use]
pub fn is_script_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    name.len() <= SCRIPT_NAME_BYTES_MAX
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.bytes().all(plain)
}

/// Whether a program is an operator's script.
pub(super) fn is_one(program: &'static Program) -> bool {
    texts().iter().any(|known| std::ptr::eq(*known, program))
}

/// A script's text without its last line.
pub(super) fn body(program: &Program) -> &str {
    program.text.trim_end().strip_suffix(LAST_LINE).unwrap_or(program.text)
}

fn texts() -> MutexGuard<'static, Vec<&'static Program>> {
    // Nothing panics while it is held, and an entry is whole before it is there.
    TEXTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The one program of this name and text.
fn keep(name: &str, text: &str) -> Option<&'static Program> {
    let mut texts = texts();
    let known = |program: &&&'static Program| {
        program.name.strip_prefix(PREFIX) == Some(name) && program.text == text
    };
    if let Some(program) = texts.iter().find(known) {
        return Some(program);
    }
    if texts.len() >= TEXTS_MAX {
        return None;
    }
    let name = (PREFIX.to_owned() + name).leak();
    let program = Program {
        name,
        text: text.to_owned().leak(),
        kind: Kind::Numbers,
        state: 3,
        numbers: NUMBERS_MAX,
    };
    let program: &'static Program = Box::leak(Box::new(program));
    texts.push(program);
    Some(program)
}

/// A script that answers as the contract says, as far as some states, times and costs can tell.
fn try_out(file: &ScriptFile) -> Result<(), (String, &'static str)> {
    const CONTRACT: &str = "a script that answers as docs/scripts.md says";
    if !is_script_name(&file.name) {
        return Err(("its name".into(), "1 to 64 of a-z 0-9 _ before `.lua`, a letter first"));
    }
    if file.text.len() as u64 > SCRIPT_BYTES_MAX {
        return Err((format!("{} bytes", file.text.len()), "at most 64 KiB"));
    }
    // LuaJIT passes over them; in the middle of what Redis is sent they are no Lua.
    if file.text.starts_with(['#', '\u{feff}']) {
        return Err((
            "line 1: a `#` or a byte order mark".into(),
            "a Lua chunk from its first byte on",
        ));
    }
    let last = file.text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    if last.trim_end() != LAST_LINE {
        let line = file.text.trim_end().lines().count().max(1);
        return Err((
            format!("line {line}: another last line"),
            "`return { take = take, give_back = give_back }` as the last line, alone",
        ));
    }
    let name = file
        .path
        .file_name()
        .map_or_else(|| file.name.clone(), |name| name.to_string_lossy().into_owned());
    for numbers in trials(&file.text)? {
        let sandbox = Sandbox::new(&file.text, &name).map_err(|why| (why, CONTRACT))?;
        run(&sandbox, numbers).map_err(|(why, asked)| (format!("{why} ({asked})"), CONTRACT))?;
    }
    Ok(())
}

/// The numbers to try a script with: what its lines `-- trial: 100 60000000` say.
fn trials(text: &str) -> Result<Vec<[i64; NUMBERS_MAX]>, (String, &'static str)> {
    let expected = "`-- trial:` and up to six whole numbers, on eight lines at most";
    let mut all = Vec::new();
    for (line, rest) in
        (1..).zip(text.lines()).filter_map(|(at, line)| Some((at, line.strip_prefix(TRIAL)?)))
    {
        let wrong = || {
            (format!("line {line}: {TRIAL}{}", rest.chars().take(40).collect::<String>()), expected)
        };
        let mut numbers = [0; NUMBERS_MAX];
        let mut places = numbers.iter_mut();
        for word in rest.split_whitespace() {
            *places.next().ok_or_else(wrong)? = word
                .parse::<i64>()
                .ok()
                .filter(|n| n.unsigned_abs() <= 1 << 53)
                .ok_or_else(wrong)?;
        }
        if all.len() == TRIALS_MAX {
            return Err(wrong());
        }
        all.push(numbers);
    }
    Ok(if all.is_empty() { vec![TRIAL_DEFAULT] } else { all })
}

/// Takes and gives back, each from the state that the one before left; says what was asked where an
/// answer is wrong.
fn run(sandbox: &Sandbox, numbers: [i64; NUMBERS_MAX]) -> Result<(), (String, String)> {
    let mut state = [0.0; 3];
    let mut now = TRIAL_NOW_US;
    for step in TRIAL_STEPS_US {
        now += step;
        for cost in TRIAL_COSTS {
            let ask = |what: &str, state: [f64; 3]| {
                format!("asked {what}({state:?}, now = {now}, {cost}, numbers {numbers:?})")
            };
            let taken =
                sandbox.take(state, now, cost, numbers).map_err(|why| (why, ask("take", state)))?;
            if taken.fits && cost > 0 {
                state = taken.state;
            }
            let returned = sandbox
                .give_back(state, now, cost, now - 1.0, numbers)
                .map_err(|why| (why, ask("give_back", state)))?;
            if returned.changed && cost == 1 {
                state = returned.state;
            }
        }
    }
    Ok(())
}
