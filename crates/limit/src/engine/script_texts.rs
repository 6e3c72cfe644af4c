//! The texts of the operator's scripts that this process has loaded, and how they differ from the
//! programs that ship with Weir.
//!
//! A [`Program`] is never freed, because cores would contend for a reference count in each cell. So
//! a text is stored once for the life of the process, and the number of texts is bounded. Must not
//! know what a script computes, nor whether it follows the contract (`scripts`).

use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use weir_algorithms::ARGUMENTS_MAX;

use super::{Kind, Program};
use crate::clock::LogThrottle;

/// Maximum number of scripts in one configuration.
pub const SCRIPTS_MAX: usize = 64;
/// Maximum number of different texts that a process loads in its life.
const TEXTS_MAX: usize = 256;
/// The last line of an operator's script.
pub(super) const LAST_LINE: &str = "return { take = take, give_back = give_back }";
/// Prefix of a script's name inside generated Lua, so that `end` and `call` are valid file names.
const PREFIX: &str = "user_";

/// Log lines per second about failing scripts, over all workers.
const FAILURE_LINES_PER_SECOND_MAX: u32 = 4;

static FAILURE_LOG: LazyLock<LogThrottle> =
    LazyLock::new(|| LogThrottle::at_most(FAILURE_LINES_PER_SECOND_MAX));
static TEXTS: Mutex<Vec<&'static Program>> = Mutex::new(Vec::new());

/// Whether a program is an operator's script.
pub(super) fn is_operator_script(program: &'static Program) -> bool {
    texts().iter().any(|known| std::ptr::eq(*known, program))
}

/// All programs: those that ship with Weir, and the scripts that this process has loaded.
pub(super) fn all() -> Vec<&'static Program> {
    weir_algorithms::programs().into_iter().chain(texts().iter().copied()).collect()
}

/// Whether the units of a program may be owed: whether it has a `charge`.
pub(super) fn has_charge(program: &Program) -> bool {
    !program.text.trim_end().ends_with(LAST_LINE)
}

/// A script's text without its last line.
pub(super) fn body(text: &str) -> &str {
    text.trim_end().strip_suffix(LAST_LINE).unwrap_or(text)
}

/// The name of an operator's script, as policies have it.
pub(super) fn name(program: &Program) -> &'static str {
    program.name.strip_prefix(PREFIX).unwrap_or(program.name)
}

/// Logs that an operator's script failed. That is not a bug in Weir, and may happen at each
/// request, so the lines are rate limited.
pub(super) fn log_failure(script: &str, why: &str) {
    if let Some(held_back) = FAILURE_LOG.due() {
        tracing::error!(
            script,
            why,
            held_back,
            "a script failed: its limit follows on_store_error"
        );
    }
}

fn texts() -> MutexGuard<'static, Vec<&'static Program>> {
    // Nothing panics while holding the lock, and an entry is complete before it is added.
    TEXTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Stores a text, or finds the program that already has this name and text. `None` when there are
/// too many.
pub(super) fn intern(name: &str, text: &str) -> Option<&'static Program> {
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
        numbers: ARGUMENTS_MAX,
    };
    let program: &'static Program = Box::leak(Box::new(program));
    texts.push(program);
    Some(program)
}
