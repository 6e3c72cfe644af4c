//! The embedded engine's Lua: one LuaJIT VM per thread for the programs that ship with Weir, each
//! compiled once and called with plain numbers, and a sandbox for each of the operator's scripts.
//!
//! Must not know what a program computes. The VM has no io, os, ffi or load: only what a pure
//! function needs.

mod sandbox;

use std::cell::RefCell;

use mlua::{Function, Lua, LuaOptions, StdLib, Table};

use super::{
    Cause, Cell, CellReply, EngineError, Execution, OUTSIDE, Program, UNCHARGED, script_texts,
};

pub(super) use sandbox::Sandbox;

/// A counter's state as programs see it: three whole numbers, all 0 if there is no counter.
pub(super) type State = [f64; 3];

/// The values that `take` returns: fits, the new state, remaining, retry, reset, expiry.
type TakeAnswer = (f64, f64, f64, f64, f64, f64, f64, f64);
/// The values that `give_back` returns: the new state, changed, expiry. Those of `charge` are the
/// new state, the units charged, expiry.
type GiveBackAnswer = (f64, f64, f64, f64, f64);

/// The result of a program's `take`.
pub(super) struct Decision {
    pub(super) fits: bool,
    pub(super) state: State,
    remaining: f64,
    /// Time units until it would fit; below zero if it fits, or never can.
    pub(super) retry: f64,
    reset: f64,
    /// The instant from which the state may be forgotten, in time units; 0 leaves it as it is,
    /// below zero means never.
    pub(super) expire: f64,
}

impl Decision {
    pub(super) fn reply(&self) -> CellReply {
        CellReply {
            fits: self.fits,
            remaining: self.remaining as u64,
            retry_units: (self.retry >= 0.0).then_some(self.retry as u64),
            reset_units: self.reset as u64,
            outside: self.outside(),
            uncharged: self.uncharged(),
        }
    }

    /// Replaces what remains and when it resets by those of `unchanged`, a decision of cost 0.
    pub(super) fn report_remaining_of(&mut self, unchanged: &Self) {
        (self.remaining, self.reset) = (unchanged.remaining, unchanged.reset);
    }

    /// Whether it fits and is not to be written.
    pub(super) fn uncharged(&self) -> bool {
        self.retry == UNCHARGED as f64
    }

    /// Whether the time was outside the periods that the numbers name, so that nothing was decided.
    pub(super) fn outside(&self) -> bool {
        self.retry == OUTSIDE as f64
    }
}

/// The result of a program's `give_back`.
pub(super) struct GiveBackResult {
    pub(super) state: State,
    pub(super) changed: bool,
    /// When the state may be forgotten, as in [`Decision`].
    pub(super) expire: f64,
}

/// The result of a program's `charge`.
pub(super) struct ChargeAnswer {
    pub(super) state: State,
    /// Units charged; [`OUTSIDE`]: nothing was decided.
    pub(super) units: f64,
    /// When the state may be forgotten, as in [`Decision`].
    pub(super) expire: f64,
}

impl ChargeAnswer {
    /// The units charged; `None` if the time was outside the periods that the numbers name.
    pub(super) fn units(&self) -> Option<u64> {
        (self.units != OUTSIDE as f64).then_some(self.units as u64)
    }

    /// Converts it into a take that fits, so that it can be written; one that decided nothing, if
    /// nothing was decided.
    pub(super) fn into_decision(self) -> Decision {
        let fits = self.units().is_some();
        let retry = if fits { -1.0 } else { OUTSIDE as f64 };
        let Self { state, expire, .. } = self;
        Decision { fits, state, remaining: 0.0, retry, reset: 0.0, expire }
    }
}

/// Most programs read at most this many numbers.
const NUMBERS_USUAL_MAX: usize = 4;

/// Maximum number of sandboxes per thread. Beyond it all are dropped and created again on use,
/// which removes those of scripts that a reload has replaced.
const SANDBOXES_MAX: usize = script_texts::SCRIPTS_MAX;
struct LoadedProgram {
    program: &'static Program,
    code: Code,
}

enum Code {
    /// A program that ships with Weir.
    BuiltIn { take: Function, give_back: Function, charge: Option<Function> },
    /// An operator's script.
    Sandboxed(Box<Sandbox>),
}

/// One thread's LuaJIT with the programs used so far.
pub(super) struct Vm {
    lua: Lua,
    loaded: Vec<LoadedProgram>,
}

thread_local! {
    static VM: RefCell<Option<Vm>> = const { RefCell::new(None) };
}

/// Runs `work` with this thread's VM, which is created on first use.
///
/// # Errors
/// [`Cause::Script`] if no VM can be created; otherwise the errors of `work`.
pub(super) fn with<T>(
    work: impl FnOnce(&mut Vm) -> Result<T, EngineError>,
) -> Result<T, EngineError> {
    VM.with_borrow_mut(|vm| {
        if vm.is_none() {
            *vm = Some(Vm::new().map_err(|error| script_failed("start", &error))?);
        }
        vm.as_mut().map_or(Err(FAILED), work)
    })
}

const FAILED: EngineError = EngineError { cause: Cause::Script, ran: Execution::No };

/// Functions of the base library that a pure function does not need: they read files and compile
/// text.
const REMOVED_GLOBALS: [&str; 4] = ["load", "loadstring", "loadfile", "dofile"];

fn script_failed(name: &str, error: &mlua::Error) -> EngineError {
    tracing::error!(program = name, %error, "an algorithm's script failed");
    FAILED
}

impl Vm {
    fn new() -> mlua::Result<Self> {
        // Without the jit library LuaJIT never starts its compiler.
        let lua = Lua::new_with(StdLib::JIT | StdLib::MATH, LuaOptions::default())?;
        for name in REMOVED_GLOBALS {
            lua.globals().set(name, mlua::Value::Nil)?;
        }
        Ok(Self { lua, loaded: Vec::new() })
    }

    fn program(&mut self, program: &'static Program) -> Result<usize, EngineError> {
        if let Some(index) =
            self.loaded.iter().position(|loaded| std::ptr::eq(loaded.program, program))
        {
            return Ok(index);
        }
        let code = if script_texts::is_operator_script(program) {
            let sandboxed = |loaded: &LoadedProgram| matches!(loaded.code, Code::Sandboxed(_));
            if self.loaded.iter().filter(|loaded| sandboxed(loaded)).count() >= SANDBOXES_MAX {
                self.loaded.retain(|loaded| !sandboxed(loaded));
            }
            Code::Sandboxed(Box::new(
                Sandbox::new(program.text, &format!("{}.lua", script_texts::name(program)))
                    .map_err(|why| sandbox_failed(program, &why))?,
            ))
        } else {
            load(&self.lua, program).map_err(|error| script_failed(program.name, &error))?
        };
        self.loaded.push(LoadedProgram { program, code });
        Ok(self.loaded.len() - 1)
    }

    /// Asks `cell`'s program for `cost` units at `now` (in the cell's time units).
    pub(super) fn take(
        &mut self,
        cell: &Cell,
        cost: u64,
        state: State,
        now: f64,
    ) -> Result<Decision, EngineError> {
        let index = self.program(cell.program)?;
        match self.loaded.get(index).map(|loaded| &loaded.code) {
            Some(Code::BuiltIn { take, .. }) => built_in_take(take, cell, cost, state, now),
            Some(Code::Sandboxed(sandbox)) => sandbox
                .take(state, now, cost, cell.numbers)
                .map_err(|why| self.discard(index, &why)),
            None => Err(FAILED),
        }
    }

    /// Asks `cell`'s program to return `cell.cost` units taken at `taken_at`; both instants are in
    /// the cell's time units.
    pub(super) fn give_back(
        &mut self,
        cell: &Cell,
        state: State,
        now: f64,
        taken_at: f64,
    ) -> Result<GiveBackResult, EngineError> {
        let index = self.program(cell.program)?;
        match self.loaded.get(index).map(|loaded| &loaded.code) {
            Some(Code::BuiltIn { give_back, .. }) => {
                built_in_give_back(give_back, cell, state, now, taken_at)
            }
            Some(Code::Sandboxed(sandbox)) => sandbox
                .give_back(state, now, cell.cost, taken_at, cell.numbers)
                .map_err(|why| self.discard(index, &why)),
            None => Err(FAILED),
        }
    }

    /// Asks `cell`'s program to charge `cell.cost` units at `now` (in the cell's time units).
    pub(super) fn charge(
        &mut self,
        cell: &Cell,
        state: State,
        now: f64,
    ) -> Result<ChargeAnswer, EngineError> {
        let index = self.program(cell.program)?;
        let Some(Code::BuiltIn { charge: Some(charge), .. }) =
            self.loaded.get(index).map(|loaded| &loaded.code)
        else {
            tracing::error!(program = cell.program.name, "an algorithm without debt is charged");
            return Err(FAILED);
        };
        let [s1, s2, s3] = state;
        let [n1, n2, n3, n4, n5, n6, n7] = cell.numbers.map(|number| number as f64);
        let answer: mlua::Result<GiveBackAnswer> =
            charge.call((s1, s2, s3, now, cell.cost as f64, n1, n2, n3, n4, n5, n6, n7));
        let (s1, s2, s3, units, expire) =
            answer.map_err(|error| script_failed(cell.program.name, &error))?;
        Ok(ChargeAnswer { state: [s1, s2, s3], units, expire })
    }

    /// Drops a sandbox that failed; the next call creates a fresh one.
    fn discard(&mut self, index: usize, why: &str) -> EngineError {
        sandbox_failed(self.loaded.swap_remove(index).program, why)
    }
}

fn built_in_take(
    take: &Function,
    cell: &Cell,
    cost: u64,
    state: State,
    now: f64,
) -> Result<Decision, EngineError> {
    // All are whole numbers below 2^53, and passing an integer costs half of what passing a double
    // does.
    let [s1, s2, s3] = state.map(|number| number as i64);
    let [n1, n2, n3, n4, n5, n6, n7] = cell.numbers;
    let (now, cost) = (now as i64, cost as i64);
    // Each number passed costs time, and most programs read four at most.
    let answer: mlua::Result<TakeAnswer> = if cell.program.numbers > NUMBERS_USUAL_MAX {
        take.call((s1, s2, s3, now, cost, n1, n2, n3, n4, n5, n6, n7))
    } else {
        take.call((s1, s2, s3, now, cost, n1, n2, n3, n4))
    };
    let (fits, s1, s2, s3, remaining, retry, reset, expire) =
        answer.map_err(|error| script_failed(cell.program.name, &error))?;
    Ok(Decision { fits: fits == 1.0, state: [s1, s2, s3], remaining, retry, reset, expire })
}

fn built_in_give_back(
    give_back: &Function,
    cell: &Cell,
    state: State,
    now: f64,
    taken_at: f64,
) -> Result<GiveBackResult, EngineError> {
    let [s1, s2, s3] = state;
    let [n1, n2, n3, n4, n5, n6, n7] = cell.numbers.map(|number| number as f64);
    let units = cell.cost as f64;
    let answer: mlua::Result<GiveBackAnswer> =
        give_back.call((s1, s2, s3, now, units, taken_at, n1, n2, n3, n4, n5, n6, n7));
    let (s1, s2, s3, changed, expire) =
        answer.map_err(|error| script_failed(cell.program.name, &error))?;
    Ok(GiveBackResult { state: [s1, s2, s3], changed: changed == 1.0, expire })
}

fn load(lua: &Lua, program: &'static Program) -> mlua::Result<Code> {
    let functions: Table = lua.load(program.text).set_name(program.name).eval()?;
    Ok(Code::BuiltIn {
        take: functions.get("take")?,
        give_back: functions.get("give_back")?,
        charge: functions.get("charge")?,
    })
}

fn sandbox_failed(program: &Program, why: &str) -> EngineError {
    script_texts::log_failure(script_texts::name(program), why);
    FAILED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vm_reads_no_file_and_compiles_no_text() {
        with(|vm| {
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
            ] {
                assert!(vm.lua.globals().get::<mlua::Value>(name).unwrap().is_nil(), "{name}");
            }
            Ok(())
        })
        .unwrap();
    }
}
