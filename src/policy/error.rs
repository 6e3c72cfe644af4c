//! Why a guest gave no decision, and what wasmtime's errors mean. The fault is the guest's, except
//! for [`Cause::Overload`].

use wasmtime::{PoolConcurrencyLimitError, Trap, WasmBacktrace};

use crate::telemetry::{Label as _, labels};

/// Characters of a message, at most: some messages are the guest's.
const MESSAGE_CHARS_MAX: usize = 300;
/// The same for a mistake in a policy's configuration. It may list all keys that were expected, and
/// the nearest one comes last.
const MISTAKE_CHARS_MAX: usize = 512;

/// Why a guest gave no decision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("policy {policy}: {}: {message}", cause.label())]
pub struct PolicyError {
    /// The policy's name.
    pub policy: String,
    /// What went wrong.
    pub cause: Cause,
    /// For the log: bounded, on one line.
    pub message: String,
}

labels! {
    /// What went wrong in a guest: a metric's label.
    pub enum Cause {
        /// It trapped or panicked.
        Trap = "trap",
        /// It used up its CPU time.
        Time = "time",
        /// It wanted more memory than it may have.
        Memory = "memory",
        /// It recursed too deep, or reached outside its memory. In a Rust guest the stack lies
        /// below the data, so the two can't be told apart.
        Stack = "stack",
        /// It answered something outside the contract, or too much.
        Answer = "answer",
        /// It returned an error of its own.
        Guest = "guest",
        /// All instances are in use.
        Overload = "overload",
    }
}

/// A failed call. The policy's name is added later.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) cause: Cause,
    pub(super) message: String,
}

impl Failure {
    pub(super) fn new(cause: Cause, message: &str) -> Self {
        Self { cause, message: one_line(message) }
    }
}

/// More memory, tables or elements than an instance may have. Raised by its limiter, so that the
/// cause is known.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the guest wanted more {what} than it may have")]
pub(super) struct OverLimit {
    pub(super) what: &'static str,
}

impl From<wasmtime::Error> for Failure {
    fn from(error: wasmtime::Error) -> Self {
        if let Some(over) = error.downcast_ref::<OverLimit>() {
            return Self::new(Cause::Memory, &over.to_string());
        }
        if let Some(full) = error.downcast_ref::<PoolConcurrencyLimitError>() {
            return Self::new(Cause::Overload, &full.to_string());
        }
        if let Some(trap) = error.downcast_ref::<Trap>() {
            let cause = match trap {
                Trap::Interrupt | Trap::OutOfFuel => Cause::Time,
                Trap::StackOverflow | Trap::MemoryOutOfBounds => Cause::Stack,
                Trap::AllocationTooLarge => Cause::Memory,
                _ => Cause::Trap,
            };
            return Self::new(cause, &trap.to_string());
        }
        // With a backtrace it was raised while the guest ran: a host function refused. Without one,
        // what the guest handed back could not be read.
        let cause = if error.downcast_ref::<WasmBacktrace>().is_some() {
            Cause::Trap
        } else {
            Cause::Answer
        };
        Self::new(cause, &error.root_cause().to_string())
    }
}

/// A foreign text for a log line: shortened, and without control characters, which could begin a
/// new line or move a terminal's cursor.
pub(super) fn one_line(text: &str) -> String {
    bounded(text, MESSAGE_CHARS_MAX)
}

/// The same for a mistake's text.
pub(super) fn mistake_line(text: &str) -> String {
    bounded(text, MISTAKE_CHARS_MAX)
}

/// The same with another bound.
pub(super) fn bounded(text: &str, chars_max: usize) -> String {
    let mut shown: String = text
        .chars()
        .take(chars_max)
        .map(|next| if next.is_control() { ' ' } else { next })
        .collect();
    if text.chars().nth(chars_max).is_some() {
        shown.push_str(" ...");
    }
    shown
}
