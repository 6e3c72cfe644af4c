//! The embedded engine's Lua: one LuaJIT a thread, each program that ships compiled once in it,
//! called with plain numbers; and a sandbox for each script of the operator's own.
//!
//! Must not know what a program computes. The VM has neither io nor os, ffi nor load: only what a
//! pure function needs.

mod sandbox;

use std::cell::RefCell;
use std::sync::LazyLock;

use mlua::{Function, Lua, LuaOptions, StdLib, Table};

use super::{Cause, Cell, CellReply, EngineError, OUTSIDE, Program, Ran, scripts};
use crate::clock::Seldom;

pub(super) use sandbox::Sandbox;

/// What programs see of a counter: three whole numbers, all 0 where there is none.
pub(super) type State = [f64; 3];

/// `take`'s answer, in the order of the contract: fits, the new state, remaining, retry, reset,
/// expiry.
type TakeAnswer = (f64, f64, f64, f64, f64, f64, f64, f64);
/// `give_back`'s: the new state, changed, expiry.
type GiveBackAnswer = (f64, f64, f64, f64, f64);

/// What a program's `take` answered.
pub(super) struct Decision {
    pub(super) fits: bool,
    pub(super) state: State,
    remaining: f64,
    retry: f64,
    reset: f64,
    /// The instant, in time units, from which the state means nothing any more.
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
        }
    }

    /// Takes over what `idle`, which takes nothing, says of what is left.
    pub(super) fn stands(&mut self, idle: &Self) {
        (self.remaining, self.reset) = (idle.remaining, idle.reset);
    }

    /// Nothing was decided.
    pub(super) fn outside(&self) -> bool {
        self.retry == OUTSIDE as f64
    }
}

/// What a program's `give_back` answered.
pub(super) struct Returned {
    pub(super) state: State,
    pub(super) changed: bool,
    /// As in [`Decision`].
    pub(super) expire: f64,
}

/// Numbers of most programs.
const FEW: usize = 4;

/// Sandboxes of one thread, at most; beyond, all are made again: those of scripts that a reload has
/// replaced go then.
const SANDBOXES_MAX: usize = scripts::SCRIPTS_MAX;
/// Lines a second about scripts that fail, on all workers.
const LINES_PER_SECOND_MAX: u32 = 4;

static SAID: LazyLock<Seldom> = LazyLock::new(|| Seldom::at_most(LINES_PER_SECOND_MAX));

struct Loaded {
    program: &'static Program,
    code: Code,
}

enum Code {
    /// It ships with Weir.
    Own { take: Function, give_back: Function },
    /// An operator's.
    Theirs(Box<Sandbox>),
}

/// One thread's LuaJIT with the programs that were used so far.
pub(super) struct Vm {
    lua: Lua,
    loaded: Vec<Loaded>,
}

thread_local! {
    static VM: RefCell<Option<Vm>> = const { RefCell::new(None) };
}

/// Runs `work` with this thread's VM, which is made when it is first needed.
///
/// # Errors
/// [`Cause::Script`] when no VM can be made; whatever `work` says.
pub(super) fn with<T>(
    work: impl FnOnce(&mut Vm) -> Result<T, EngineError>,
) -> Result<T, EngineError> {
    VM.with_borrow_mut(|vm| {
        if vm.is_none() {
            *vm = Some(Vm::new().map_err(|error| script("start", &error))?);
        }
        vm.as_mut().map_or(Err(FAILED), work)
    })
}

const FAILED: EngineError = EngineError { cause: Cause::Script, ran: Ran::No };

/// What the base library has beside what a pure function needs: it reads files and compiles texts.
const TAKEN_AWAY: [&str; 4] = ["load", "loadstring", "loadfile", "dofile"];

fn script(name: &str, error: &mlua::Error) -> EngineError {
    tracing::error!(program = name, %error, "an algorithm's script failed");
    FAILED
}

impl Vm {
    fn new() -> mlua::Result<Self> {
        // Without the jit library LuaJIT never starts its compiler.
        let lua = Lua::new_with(StdLib::JIT | StdLib::MATH, LuaOptions::default())?;
        for name in TAKEN_AWAY {
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
        let code = if scripts::is_one(program) {
            let theirs = |loaded: &Loaded| matches!(loaded.code, Code::Theirs(_));
            if self.loaded.iter().filter(|loaded| theirs(loaded)).count() >= SANDBOXES_MAX {
                self.loaded.retain(|loaded| !theirs(loaded));
            }
            Code::Theirs(Box::new(
                Sandbox::new(program.text, program.name)
                    .map_err(|why| failed(program.name, &why))?,
            ))
        } else {
            load(&self.lua, program).map_err(|error| script(program.name, &error))?
        };
        self.loaded.push(Loaded { program, code });
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
            Some(Code::Own { take, .. }) => own_take(take, cell, cost, state, now),
            Some(Code::Theirs(sandbox)) => sandbox
                .take(state, now, cost, cell.numbers)
                .map_err(|why| self.throw_away(index, &why)),
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
    ) -> Result<Returned, EngineError> {
        let index = self.program(cell.program)?;
        match self.loaded.get(index).map(|loaded| &loaded.code) {
            Some(Code::Own { give_back, .. }) => {
                own_give_back(give_back, cell, state, now, taken_at)
            }
            Some(Code::Theirs(sandbox)) => sandbox
                .give_back(state, now, cell.cost, taken_at, cell.numbers)
                .map_err(|why| self.throw_away(index, &why)),
            None => Err(FAILED),
        }
    }

    /// A sandbox that failed: the next call starts a fresh one.
    fn throw_away(&mut self, index: usize, why: &str) -> EngineError {
        failed(self.loaded.swap_remove(index).program.name, why)
    }
}

fn own_take(
    take: &Function,
    cell: &Cell,
    cost: u64,
    state: State,
    now: f64,
) -> Result<Decision, EngineError> {
    // All are whole numbers below 2^53, and handing over an integer costs half of what another
    // number does.
    let [s1, s2, s3] = state.map(|number| number as i64);
    let [n1, n2, n3, n4, n5, n6] = cell.numbers;
    let (now, cost) = (now as i64, cost as i64);
    // Each number that is handed over costs, and most programs have four at most.
    let answer: mlua::Result<TakeAnswer> = if cell.program.numbers > FEW {
        take.call((s1, s2, s3, now, cost, n1, n2, n3, n4, n5, n6))
    } else {
        take.call((s1, s2, s3, now, cost, n1, n2, n3, n4))
    };
    let (fits, s1, s2, s3, remaining, retry, reset, expire) =
        answer.map_err(|error| script(cell.program.name, &error))?;
    Ok(Decision { fits: fits == 1.0, state: [s1, s2, s3], remaining, retry, reset, expire })
}

fn own_give_back(
    give_back: &Function,
    cell: &Cell,
    state: State,
    now: f64,
    taken_at: f64,
) -> Result<Returned, EngineError> {
    let [s1, s2, s3] = state;
    let [n1, n2, n3, n4, n5, n6] = cell.numbers.map(|number| number as f64);
    let units = cell.cost as f64;
    let answer: mlua::Result<GiveBackAnswer> =
        give_back.call((s1, s2, s3, now, units, taken_at, n1, n2, n3, n4, n5, n6));
    let (s1, s2, s3, changed, expire) =
        answer.map_err(|error| script(cell.program.name, &error))?;
    Ok(Returned { state: [s1, s2, s3], changed: changed == 1.0, expire })
}

fn load(lua: &Lua, program: &'static Program) -> mlua::Result<Code> {
    let functions: Table = lua.load(program.text).set_name(program.name).eval()?;
    Ok(Code::Own { take: functions.get("take")?, give_back: functions.get("give_back")? })
}

/// An operator's script failed: that is no bug of ours, and may happen at each request.
fn failed(name: &str, why: &str) -> EngineError {
    if let Some(held_back) = SAID.due() {
        tracing::error!(
            script = name,
            why,
            held_back,
            "a script failed: its limit follows on_store_error"
        );
    }
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
