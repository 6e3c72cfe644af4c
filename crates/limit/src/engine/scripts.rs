//! The operator's own algorithms: Lua files that follow the contract of `lua/`. Each is tried out
//! before any request uses it. Must not know what a script computes, nor where its file is.

use weir_algorithms::ARGUMENTS_MAX;

use super::driver;
use super::lua::Sandbox;
use super::script_texts::{LAST_LINE, intern};
use super::{NUMBERS_MAX, Program};
use crate::telemetry::SettingError;

/// Maximum size of a script in bytes.
pub const SCRIPT_BYTES_MAX: u64 = 64 << 10;
/// Maximum length of a script's name in bytes.
const SCRIPT_NAME_BYTES_MAX: usize = 64;

/// Starts a comment line with numbers to try the script with.
const TRIAL: &str = "-- trial:";
/// The numbers for a script without such a line.
const TRIAL_DEFAULT: [i64; NUMBERS_MAX] = [1; NUMBERS_MAX];
/// Maximum number of trials of one script.
const TRIALS_MAX: usize = 8;
/// The instant at which a trial begins, in microseconds since 1970, and the time between its steps:
/// none, small, large, and backwards.
const TRIAL_NOW_US: f64 = 1_774_785_600_000_000.0;
const TRIAL_STEPS_US: [f64; 6] = [0.0, 0.0, 1.0, 250_000.0, 86_400_000_000.0, -3_600_000_000.0];
const TRIAL_COSTS: [u64; 4] = [1, 0, 3, 1 << 31];

/// A script file as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptFile {
    /// The file's name without `.lua`, which policies refer to.
    pub name: String,
    /// Its path, for messages.
    pub path: std::path::PathBuf,
    /// The Lua chunk.
    pub text: String,
}

/// Scripts that passed their trials, by name.
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
    /// Tries each of `files` in a fresh VM and loads it.
    ///
    /// # Errors
    /// All errors, each at the setting `scripts.NAME`, with the file and if possible the
    /// line: an invalid name, a text that is too long, can't be loaded or breaks the contract, or
    /// one text more than a process may load.
    pub fn load(files: &[ScriptFile]) -> Result<Self, Vec<SettingError>> {
        let wrong = |file: &ScriptFile, found: String, expected: &str| {
            // Lua's own messages begin with the file's name and the line.
            let name = file.path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
            let line = found.strip_prefix(&*name).filter(|rest| rest.starts_with(':'));
            let found = line.map_or_else(|| format!(": {found}"), str::to_owned);
            SettingError::new(
                format!("scripts.{}", file.name),
                format!("{}{found}", file.path.display()),
                expected,
            )
        };
        let mut errors = Vec::new();
        let mut programs = Vec::with_capacity(files.len());
        for file in files {
            let tried = try_out(file).map_err(|(found, expected)| wrong(file, found, expected));
            let kept = tried.and_then(|()| {
                let expected =
                    "at most 256 different script texts in the lifetime of a process: restart it";
                intern(&file.name, &file.text)
                    .ok_or_else(|| wrong(file, "one text too many".into(), expected))
            });
            match kept {
                Ok(program) => programs.push((file.name.clone(), program)),
                Err(error) => errors.push(error),
            }
        }
        if errors.is_empty() { Ok(Self(programs)) } else { Err(errors) }
    }

    /// All of them, with their names.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &'static Program)> {
        self.0.iter().map(|(name, program)| (name.as_str(), *program))
    }

    /// The script of that name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&'static Program> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, program)| *program)
    }
}

/// Whether `name` is a valid name for a script: `[a-z][a-z0-9_]{0,63}`.
#[must_use]
pub fn is_script_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    name.len() <= SCRIPT_NAME_BYTES_MAX
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.bytes().all(plain)
}

/// Checks that a script follows the contract, as far as some states, times and costs can show.
fn try_out(file: &ScriptFile) -> Result<(), (String, &'static str)> {
    const CONTRACT: &str = "a script that answers as docs/scripts.md says";
    if !is_script_name(&file.name) {
        return Err(("its name".into(), "1 to 64 of a-z 0-9 _ before `.lua`, a letter first"));
    }
    if file.text.len() as u64 > SCRIPT_BYTES_MAX {
        return Err((format!("{} bytes", file.text.len()), "at most 64 KiB"));
    }
    // LuaJIT skips these, but in the middle of a generated script they are not valid Lua.
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
    for load in driver::loads(&file.text) {
        let expected = "a script that loads on Redis, too, where it is a part of a larger text: \
                        fewer local variables, and one `return` outside its functions";
        Sandbox::load_function(&load, &name).map_err(|why| (why, expected))?;
    }
    Ok(())
}

/// The numbers to try a script with, from lines such as `-- trial: 100 60000000`.
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
        let mut places = numbers.iter_mut().take(ARGUMENTS_MAX);
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

/// Whether a state would be forgotten as soon as it is written, and so count nothing.
fn is_over(state: [f64; 3], expire: f64, now: f64) -> bool {
    state != [0.0; 3] && expire > 0.0 && expire <= now
}

fn over(function: &str, expire: f64) -> String {
    format!(
        "{function}'s `expire` is {expire}, not after `now`: it is a time, such as `now + n2`, and \
         not a duration"
    )
}

/// Takes and gives back, each from the state that the previous call left. If an answer is wrong,
/// the error includes the call.
fn run(sandbox: &Sandbox, numbers: [i64; NUMBERS_MAX]) -> Result<(), (String, String)> {
    let mut state = [0.0; 3];
    let mut now = TRIAL_NOW_US;
    // When the state may be forgotten, below zero if never.
    let mut until = 0.0;
    for step in TRIAL_STEPS_US {
        now += step;
        for cost in TRIAL_COSTS {
            let call = |what: &str, state: [f64; 3]| {
                format!("asked {what}({state:?}, now = {now}, {cost}, numbers {numbers:?})")
            };
            let taken = sandbox
                .take(state, now, cost, numbers)
                .map_err(|why| (why, call("take", state)))?;
            if taken.fits && cost > 0 {
                if is_over(taken.state, taken.expire, now) {
                    return Err((over("take", taken.expire), call("take", state)));
                }
                (state, until) = (taken.state, taken.expire);
            }
            let returned = sandbox
                .give_back(state, now, cost, now - 1.0, numbers)
                .map_err(|why| (why, call("give_back", state)))?;
            if returned.changed && cost == 1 {
                // A state that means nothing any more may well say so.
                if (until < 0.0 || until > now) && is_over(returned.state, returned.expire, now) {
                    return Err((over("give_back", returned.expire), call("give_back", state)));
                }
                state = returned.state;
                until = if returned.expire == 0.0 { until } else { returned.expire };
            }
        }
    }
    Ok(())
}
