//! Runs an operator's script in this process, in a VM of its own, so that a bad script affects only
//! its own calls.
//!
//! The script sees only what a pure function needs: no `pcall`, which could catch the error that
//! ends its time, and nothing to build strings with. It can set no globals, and is limited in
//! instructions, CPU time and memory. LuaJIT can't interrupt compiled code, so its compiler is off
//! here. A sandbox is discarded after a failed call, because its memory may be in any state.

use std::cell::Cell as Plain;
use std::rc::Rc;
use std::time::Duration;

use mlua::chunk::ChunkMode;
use mlua::debug::Debug;
use mlua::{
    FromLua as _, Function, HookTriggers, Lua, LuaOptions, MultiValue, StdLib, Table, Value,
    VmState,
};

use super::{Decision, GiveBackResult, State};
use crate::clock::thread_cpu;
use crate::engine::NUMBERS_MAX;

type Numbers = [i64; NUMBERS_MAX];

/// Maximum number of instructions of one call; a decision takes a few hundred.
const INSTRUCTIONS_MAX: u32 = 100_000;
/// Maximum CPU time of one call: a single instruction that joins long strings can take long.
const CPU_TIME_MAX: Duration = Duration::from_millis(5);
/// Maximum memory of one script on one worker, in addition to the VM's own.
const MEMORY_BYTES_MAX: usize = 512 << 10;
/// Instructions between two checks of the budget.
const INSTRUCTIONS_PER_CHECK: u32 = 500;
/// Maximum number of characters repeated from a script's own error.
const ERROR_CHARS_MAX: usize = 200;
/// The range in which all engines count exactly.
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;

/// The functions of the base library that a script may call. Each ends soon, whatever it is given.
const BASE: [&str; 9] =
    ["assert", "error", "ipairs", "next", "pairs", "select", "tonumber", "tostring", "type"];
/// The members of `math` that a script may use: they give the same result on each machine.
const MATH: [&str; 8] = ["abs", "ceil", "floor", "fmod", "huge", "max", "min", "modf"];

/// What a call has used up so far.
#[derive(Default)]
struct Usage {
    instructions: Plain<u32>,
    /// The thread's CPU time at the first check of this call. Reading it when the call starts would
    /// cost each call a system call.
    started: Plain<Option<Duration>>,
}

impl Usage {
    fn reset(&self) {
        self.instructions.set(0);
        self.started.set(None);
    }

    fn check(&self, debug: &Debug) -> mlua::Result<VmState> {
        self.instructions.set(self.instructions.get() + INSTRUCTIONS_PER_CHECK);
        let now = thread_cpu();
        let started = self.started.get().unwrap_or(now);
        self.started.set(Some(started));
        if self.instructions.get() > INSTRUCTIONS_MAX {
            return Err(mlua::Error::runtime(format!(
                "{}more than {INSTRUCTIONS_MAX} instructions",
                location(debug)
            )));
        }
        if now.saturating_sub(started) > CPU_TIME_MAX {
            return Err(mlua::Error::runtime(format!(
                "{}more than {CPU_TIME_MAX:?} of CPU time",
                location(debug)
            )));
        }
        Ok(VmState::Continue)
    }
}

/// A loaded script.
pub(in crate::engine) struct Sandbox {
    take: Function,
    give_back: Function,
    usage: Rc<Usage>,
    /// Dropped after the functions, which belong to it.
    _lua: Lua,
}

impl Sandbox {
    /// Loads the script in a fresh VM.
    ///
    /// # Errors
    /// Why it can't be loaded, as `FILE:LINE: WHY` if there is a line.
    pub(in crate::engine) fn new(text: &str, file: &str) -> Result<Self, String> {
        Self::load(text, file).map_err(|error| error_line(&error))
    }

    /// Loads Lua that returns a function of the script, as `driver` has Redis do it, in a fresh VM.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(in crate::engine) fn load_function(text: &str, file: &str) -> Result<(), String> {
        let loaded = start(text, file).map_err(|error| error_line(&error))?;
        match loaded.result {
            Value::Function(_) => Ok(()),
            other => Err(format!("{file}: a {} instead of a function", other.type_name())),
        }
    }

    fn load(text: &str, file: &str) -> mlua::Result<Self> {
        let Loaded { result, usage, lua } = start(text, file)?;
        let functions = Table::from_lua(result, &lua)?;
        let (take, give_back) = (functions.get("take")?, functions.get("give_back")?);
        Ok(Self { take, give_back, usage, _lua: lua })
    }
    /// Calls the script's `take`.
    ///
    /// # Errors
    /// Why there is no decision. The sandbox must not be used again.
    pub(in crate::engine) fn take(
        &self,
        state: State,
        now: f64,
        cost: u64,
        numbers: Numbers,
    ) -> Result<Decision, String> {
        let [s1, s2, s3] = state;
        let [n1, n2, n3, n4, n5, n6, _] = numbers.map(|number| number as f64);
        self.usage.reset();
        let answer: mlua::Result<MultiValue> =
            self.take.call((s1, s2, s3, now, cost as f64, n1, n2, n3, n4, n5, n6));
        let [fits, x, y, z, remaining, retry, reset, expire] =
            whole("take", &answer.map_err(|error| error_line(&error))?)?;
        ranges(
            "take",
            &[
                ("fits", fits, 0.0, 1.0),
                ("left", remaining, 0.0, WHOLE_MAX),
                ("reset", reset, 0.0, WHOLE_MAX),
            ],
        )?;
        // Only a leaky bucket lets a request wait.
        let retry_max = if fits == 1.0 { -1.0 } else { WHOLE_MAX };
        ranges("take", &[("retry", retry, -1.0, retry_max), ("expire", expire, -1.0, WHOLE_MAX)])?;
        if fits == 1.0 && expire == 0.0 {
            return Err(
                "take's `expire` is 0 where it fits: a counter that never expires says -1".into()
            );
        }
        Ok(Decision { fits: fits == 1.0, state: [x, y, z], remaining, retry, reset, expire })
    }

    /// Calls the script's `give_back` for `units` taken at `taken_at`.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub(in crate::engine) fn give_back(
        &self,
        state: State,
        now: f64,
        units: u64,
        taken_at: f64,
        numbers: Numbers,
    ) -> Result<GiveBackResult, String> {
        let [s1, s2, s3] = state;
        let [n1, n2, n3, n4, n5, n6, _] = numbers.map(|number| number as f64);
        self.usage.reset();
        let answer: mlua::Result<MultiValue> =
            self.give_back.call((s1, s2, s3, now, units as f64, taken_at, n1, n2, n3, n4, n5, n6));
        let [x, y, z, changed, expire] =
            whole("give_back", &answer.map_err(|error| error_line(&error))?)?;
        ranges(
            "give_back",
            &[("changed", changed, 0.0, 1.0), ("expire", expire, -1.0, WHOLE_MAX)],
        )?;
        Ok(GiveBackResult { state: [x, y, z], changed: changed == 1.0, expire })
    }
}

/// What a chunk returned, and its VM.
struct Loaded {
    result: Value,
    usage: Rc<Usage>,
    lua: Lua,
}

/// Runs a chunk in a fresh VM.
fn start(text: &str, file: &str) -> mlua::Result<Loaded> {
    // Without the jit library LuaJIT never starts its compiler; without the string library,
    // strings have no methods.
    let lua = Lua::new_with(StdLib::MATH, LuaOptions::default())?;
    let environment = environment(&lua)?;
    let usage = Rc::new(Usage::default());
    let hook_usage = Rc::clone(&usage);
    lua.set_hook(
        HookTriggers::new().every_nth_instruction(INSTRUCTIONS_PER_CHECK),
        move |_, debug| hook_usage.check(debug),
    )?;
    lua.set_memory_limit(lua.used_memory() + MEMORY_BYTES_MAX)?;
    let chunk = lua
        .load(text)
        .set_name(format!("={file}"))
        .set_mode(ChunkMode::Text)
        .set_environment(environment);
    Ok(Loaded { result: chunk.eval()?, usage, lua })
}

/// The globals that a script sees, read-only: a value that a script remembered would differ between
/// workers.
fn environment(lua: &Lua) -> mlua::Result<Table> {
    let globals = lua.globals();
    let base = pick(lua, &globals, &BASE)?;
    base.set("math", read_only(lua, pick(lua, &globals.get("math")?, &MATH)?)?)?;
    // As Redis does. A misspelt name would be nil here, and an error there in each call.
    let unknown = |lua: &Lua, (_, name): (Value, Value)| -> mlua::Result<()> {
        let location = lua.inspect_stack(1, location).unwrap_or_default();
        let name = quoted(&name);
        Err(mlua::Error::runtime(format!("{location}there is no global{name}")))
    };
    let meta = lua.create_table()?;
    meta.set("__index", lua.create_function(unknown)?)?;
    meta.set("__metatable", false)?;
    base.set_metatable(Some(meta))?;
    read_only(lua, base)
}

/// A name in a message; nothing if it is no text.
fn quoted(name: &Value) -> String {
    name.as_string().map_or_else(String::new, |name| format!(" `{}`", name.to_string_lossy()))
}

/// `FILE:LINE: `, the beginning of Lua's own errors.
fn location(debug: &Debug) -> String {
    match (debug.source().short_src, debug.current_line()) {
        (Some(file), Some(line)) => format!("{file}:{line}: "),
        _ => String::new(),
    }
}

fn pick(lua: &Lua, from: &Table, names: &[&str]) -> mlua::Result<Table> {
    let picked = lua.create_table()?;
    names.iter().try_for_each(|name| picked.set(*name, from.get::<Value>(*name)?))?;
    Ok(picked)
}

fn read_only(lua: &Lua, what: Table) -> mlua::Result<Table> {
    let refuse = |lua: &Lua, (_, name): (Value, Value)| -> mlua::Result<()> {
        // The caller is one level above this function.
        let location = lua.inspect_stack(1, location).unwrap_or_default();
        let name = quoted(&name);
        Err(mlua::Error::runtime(format!(
            "{location}the global{name} is set: a script's names are local"
        )))
    };
    let meta = lua.create_table()?;
    meta.set("__index", what)?;
    meta.set("__newindex", lua.create_function(refuse)?)?;
    meta.set("__metatable", false)?;
    let empty = lua.create_table()?;
    empty.set_metatable(Some(meta))?;
    Ok(empty)
}

/// Checks that the answer is exactly `N` whole numbers. Strings are rejected, even if they look
/// like numbers.
fn whole<const N: usize>(function: &str, answer: &MultiValue) -> Result<[f64; N], String> {
    if answer.len() != N {
        return Err(format!("{function} answered {} values instead of {N}", answer.len()));
    }
    let mut numbers = [0.0; N];
    for ((position, number), value) in (1..).zip(&mut numbers).zip(answer) {
        *number = match value {
            Value::Integer(integer) => *integer as f64,
            Value::Number(number) => *number,
            other => {
                return Err(format!(
                    "{function}'s answer {position} is a {}, not a number",
                    other.type_name()
                ));
            }
        };
        if number.fract() != 0.0 || number.abs() > WHOLE_MAX {
            return Err(format!(
                "{function}'s answer {position} is {number}, not a whole number of at most 2^53"
            ));
        }
    }
    Ok(numbers)
}

fn ranges(function: &str, all: &[(&str, f64, f64, f64)]) -> Result<(), String> {
    match all.iter().find(|(_, value, least, most)| !(*least..=*most).contains(value)) {
        None => Ok(()),
        Some((name, value, least, most)) => {
            let range = if *most >= WHOLE_MAX {
                format!("{least} or more")
            } else {
                format!("{least} to {most}")
            };
            Err(format!("{function}'s `{name}` is {value}, not {range}"))
        }
    }
}

/// A script's error as one line, without the traceback.
fn error_line(error: &mlua::Error) -> String {
    let text = match error {
        mlua::Error::RuntimeError(text) => text.clone(),
        mlua::Error::SyntaxError { message, .. } => message.clone(),
        mlua::Error::MemoryError(_) => {
            format!("more than {} KiB of memory", MEMORY_BYTES_MAX >> 10)
        }
        mlua::Error::CallbackError { cause, .. } => return error_line(cause),
        other => other.to_string(),
    };
    let line = text.lines().next().unwrap_or_default();
    line.chars()
        .take(ERROR_CHARS_MAX)
        .map(|next| if next.is_control() { ' ' } else { next })
        .collect()
}
