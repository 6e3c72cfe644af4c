//! An operator's script in this process: in a VM of its own, so that whatever it does costs the
//! calls to it and nothing else.
//!
//! It sees what a pure function needs and no more (no `pcall` that could catch the end of its time,
//! nothing to make text with), can set no global, and is held to instructions, CPU time and memory.
//! LuaJIT can't interrupt what it has compiled, so here it compiles nothing. A sandbox whose call
//! failed is thrown away: its memory may be in any state.

use std::cell::Cell as Plain;
use std::rc::Rc;
use std::time::Duration;

use mlua::chunk::ChunkMode;
use mlua::debug::Debug;
use mlua::{Function, HookTriggers, Lua, LuaOptions, MultiValue, StdLib, Table, Value, VmState};

use super::{Decision, Returned, State};
use crate::clock::thread_cpu;
use crate::engine::NUMBERS_MAX;

type Numbers = [i64; NUMBERS_MAX];

/// Instructions of one call, at most: a decision takes some hundred.
const INSTRUCTIONS_MAX: u32 = 100_000;
/// CPU time of one call, at most: an instruction that joins long texts is no short one.
const CPU_TIME_MAX: Duration = Duration::from_millis(5);
/// Memory of one script on one worker beside the VM's own, at most.
const MEMORY_BYTES_MAX: usize = 512 << 10;
/// How often its spending is looked at.
const INSTRUCTIONS_EACH: u32 = 500;
/// Characters of a script's own error that are repeated, at most.
const ERROR_CHARS_MAX: usize = 200;
/// What all engines count exactly.
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;

/// What is left of the base library. Every function here ends soon, whatever it is given.
const BASE: [&str; 9] =
    ["assert", "error", "ipairs", "next", "pairs", "select", "tonumber", "tostring", "type"];
/// What is left of `math`: the same number from the same numbers, on each machine.
const MATH: [&str; 8] = ["abs", "ceil", "floor", "fmod", "huge", "max", "min", "modf"];

/// What a call has spent so far.
#[derive(Default)]
struct Spent {
    instructions: Plain<u32>,
    /// The thread's CPU time when this call was first looked at; asking at its start would cost
    /// each call a system call.
    since: Plain<Option<Duration>>,
}

impl Spent {
    fn begin(&self) {
        self.instructions.set(0);
        self.since.set(None);
    }

    fn look(&self, debug: &Debug) -> mlua::Result<VmState> {
        self.instructions.set(self.instructions.get() + INSTRUCTIONS_EACH);
        let now = thread_cpu();
        let since = self.since.get().unwrap_or(now);
        self.since.set(Some(since));
        if self.instructions.get() > INSTRUCTIONS_MAX {
            return Err(mlua::Error::runtime(format!(
                "{}more than {INSTRUCTIONS_MAX} instructions",
                place(debug)
            )));
        }
        if now.saturating_sub(since) > CPU_TIME_MAX {
            return Err(mlua::Error::runtime(format!(
                "{}more than {CPU_TIME_MAX:?} of CPU time",
                place(debug)
            )));
        }
        Ok(VmState::Continue)
    }
}

/// A script, loaded.
pub(in crate::engine) struct Sandbox {
    take: Function,
    give_back: Function,
    spent: Rc<Spent>,
    /// After the functions: they belong to it.
    _lua: Lua,
}

impl Sandbox {
    /// A fresh VM with the script in it.
    ///
    /// # Errors
    /// Why it can't be loaded, as `FILE:LINE: WHY` where there is a line.
    pub(in crate::engine) fn new(text: &str, file: &str) -> Result<Self, String> {
        Self::load(text, file).map_err(|error| told(&error))
    }

    fn load(text: &str, file: &str) -> mlua::Result<Self> {
        // Without the jit library LuaJIT never starts its compiler; without string, texts have no
        // methods.
        let lua = Lua::new_with(StdLib::MATH, LuaOptions::default())?;
        let environment = environment(&lua)?;
        let spent = Rc::new(Spent::default());
        let theirs = Rc::clone(&spent);
        lua.set_hook(
            HookTriggers::new().every_nth_instruction(INSTRUCTIONS_EACH),
            move |_, debug| theirs.look(debug),
        )?;
        lua.set_memory_limit(lua.used_memory() + MEMORY_BYTES_MAX)?;
        let chunk = lua
            .load(text)
            .set_name(format!("={file}"))
            .set_mode(ChunkMode::Text)
            .set_environment(environment);
        let functions: Table = chunk.eval()?;
        let (take, give_back) = (functions.get("take")?, functions.get("give_back")?);
        Ok(Self { take, give_back, spent, _lua: lua })
    }

    /// Asks for a decision at `now`.
    ///
    /// # Errors
    /// Why there is none: the sandbox must not be used again.
    pub(in crate::engine) fn take(
        &self,
        state: State,
        now: f64,
        cost: u64,
        numbers: Numbers,
    ) -> Result<Decision, String> {
        let [s1, s2, s3] = state;
        let [n1, n2, n3, n4, n5, n6] = numbers.map(|number| number as f64);
        self.spent.begin();
        let answer: mlua::Result<MultiValue> =
            self.take.call((s1, s2, s3, now, cost as f64, n1, n2, n3, n4, n5, n6));
        let [fits, x, y, z, remaining, retry, reset, expire] =
            whole("take", &answer.map_err(|error| told(&error))?)?;
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
                "take's `expire` is 0 where it fits: a counter that nobody forgets says -1".into(),
            );
        }
        Ok(Decision { fits: fits == 1.0, state: [x, y, z], remaining, retry, reset, expire })
    }

    /// Asks for `units` back that were taken at `taken_at`.
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
    ) -> Result<Returned, String> {
        let [s1, s2, s3] = state;
        let [n1, n2, n3, n4, n5, n6] = numbers.map(|number| number as f64);
        self.spent.begin();
        let answer: mlua::Result<MultiValue> =
            self.give_back.call((s1, s2, s3, now, units as f64, taken_at, n1, n2, n3, n4, n5, n6));
        let [x, y, z, changed, expire] =
            whole("give_back", &answer.map_err(|error| told(&error))?)?;
        ranges(
            "give_back",
            &[("changed", changed, 0.0, 1.0), ("expire", expire, -1.0, WHOLE_MAX)],
        )?;
        Ok(Returned { state: [x, y, z], changed: changed == 1.0, expire })
    }
}

/// The globals that a script sees. They can be read and not set: what a script remembered would be
/// another thing on each worker.
fn environment(lua: &Lua) -> mlua::Result<Table> {
    let globals = lua.globals();
    let base = pick(lua, &globals, &BASE)?;
    base.set("math", read_only(lua, pick(lua, &globals.get("math")?, &MATH)?)?)?;
    read_only(lua, base)
}

/// `FILE:LINE: `, as Lua's own errors begin.
fn place(debug: &Debug) -> String {
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
        // The caller: the level above this function.
        let place = lua.inspect_stack(1, place).unwrap_or_default();
        let name = name
            .as_string()
            .map_or_else(String::new, |name| format!(" `{}`", name.to_string_lossy()));
        Err(mlua::Error::runtime(format!(
            "{place}the global{name} is set: a script's names are local"
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

/// So many whole numbers and nothing else. Texts are no numbers here, also those that look like
/// one.
fn whole<const N: usize>(function: &str, answer: &MultiValue) -> Result<[f64; N], String> {
    if answer.len() != N {
        return Err(format!("{function} answered {} values instead of {N}", answer.len()));
    }
    let mut numbers = [0.0; N];
    for ((place, number), value) in (1..).zip(&mut numbers).zip(answer) {
        *number = match value {
            Value::Integer(integer) => *integer as f64,
            Value::Number(number) => *number,
            other => {
                return Err(format!(
                    "{function}'s answer {place} is a {}, not a number",
                    other.type_name()
                ));
            }
        };
        if number.fract() != 0.0 || number.abs() > WHOLE_MAX {
            return Err(format!(
                "{function}'s answer {place} is {number}, not a whole number of at most 2^53"
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

/// A script's error in one line, without the traceback.
fn told(error: &mlua::Error) -> String {
    let text = match error {
        mlua::Error::RuntimeError(text) => text.clone(),
        mlua::Error::SyntaxError { message, .. } => message.clone(),
        mlua::Error::MemoryError(_) => {
            format!("more than {} KiB of memory", MEMORY_BYTES_MAX >> 10)
        }
        mlua::Error::CallbackError { cause, .. } => return told(cause),
        other => other.to_string(),
    };
    let line = text.lines().next().unwrap_or_default();
    line.chars()
        .take(ERROR_CHARS_MAX)
        .map(|next| if next.is_control() { ' ' } else { next })
        .collect()
}
