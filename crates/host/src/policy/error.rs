//! Why a guest gave no decision, and what wasmtime's errors mean. The fault is the guest's, except
//! for [`Cause::Overload`] and [`Cause::Stopped`].

use std::time::Duration;

use wasmtime::{PoolConcurrencyLimitError, Trap, WasmBacktrace};

use super::bounds::Bounds;
use super::caps::shown_bytes;
use crate::telemetry::{Label as _, labels};

/// Maximum length of a message, in characters: some messages are the guest's.
const MESSAGE_CHARS_MAX: usize = 300;
/// A part of the message of wasmtime's error about a guest that hands over too much. The error's
/// type is private.
const TOO_MUCH_HANDED_OVER: &str = "fuel allocated for hostcalls";

/// Why a guest gave no decision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("policy {policy}: {}: {message}", cause.label())]
pub struct PolicyError {
    /// The policy's name.
    pub policy: String,
    /// What went wrong.
    pub cause: Cause,
    /// The message for the log: bounded, on one line.
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
        /// It recursed too deeply, or reached outside its memory. In a Rust guest the stack lies
        /// below the data, so the two can't be told apart.
        Stack = "stack",
        /// Its answer was outside the contract, or too large.
        Answer = "answer",
        /// It returned an error of its own.
        Guest = "guest",
        /// All instances are in use.
        Overload = "overload",
        /// It was not called: it is stopped, because it kept failing.
        Stopped = "stopped",
    }
}

impl Cause {
    /// Whether a request's content can bring it about: one that costs a lot, is deeply nested, or
    /// triggers a bug in the guest. An error that the guest returns itself is its own decision.
    #[must_use]
    pub fn may_be_provoked(self) -> bool {
        match self {
            Self::Trap | Self::Time | Self::Memory | Self::Stack | Self::Answer => true,
            Self::Guest | Self::Overload | Self::Stopped => false,
        }
    }
}

/// A failed call. The policy's name is added later.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) cause: Cause,
    pub(super) message: String,
    /// The cap whose setting the message should name.
    cap: Option<Cap>,
}

/// A cap that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cap {
    CpuTime,
    Memory,
    TableElements,
    Stack,
    AnswerBytes,
    Instances,
}

impl Failure {
    pub(super) fn new(cause: Cause, message: &str) -> Self {
        Self { cause, message: one_line(message), cap: None }
    }

    fn at(cap: Cap, cause: Cause, message: &str) -> Self {
        Self { cap: Some(cap), ..Self::new(cause, message) }
    }

    /// Adds the name and the value of the setting whose cap was reached.
    pub(super) fn naming(mut self, bounds: &Bounds, during: CallPhase) -> Self {
        if let Some(cap) = self.cap.take() {
            self.message.push_str(": ");
            self.message.push_str(&cap.limit(bounds, during));
        }
        self
    }
}

/// What the guest was doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallPhase {
    Start,
    Call,
}

impl Cap {
    fn limit(self, bounds: &Bounds, during: CallPhase) -> String {
        let pool = &bounds.pool;
        let time = |time: Duration| humantime::format_duration(time).to_string();
        match (self, during) {
            (Self::CpuTime, CallPhase::Start) => {
                format!("more than `start_cpu_time` ({})", time(bounds.caps.start_cpu_time))
            }
            (Self::CpuTime, CallPhase::Call) => {
                format!("more than `cpu_time` ({})", time(bounds.cpu_time))
            }
            (Self::Memory, _) => {
                format!("more than `memory` ({})", shown_bytes(bounds.memory_bytes))
            }
            (Self::AnswerBytes, _) => {
                format!("more than `answer_bytes` ({})", shown_bytes(bounds.caps.answer_bytes))
            }
            (Self::TableElements, _) => {
                format!("more than `server.policies.table_elements` ({})", pool.table_elements)
            }
            (Self::Stack, _) => format!(
                "more than `server.policies.stack` ({}), or outside its memory",
                shown_bytes(pool.stack_bytes)
            ),
            (Self::Instances, _) => {
                format!("`server.policies.instances` is {}", pool.instances)
            }
        }
    }
}

/// More memory, tables or elements than an instance may have. Raised by its limiter, so that the
/// cause is known.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the guest asked for more {what} than it may have")]
pub(super) struct LimiterRefusal {
    pub(super) what: &'static str,
    /// `None` if the cap is part of the contract.
    pub(super) cap: Option<Cap>,
}

impl From<wasmtime::Error> for Failure {
    fn from(error: wasmtime::Error) -> Self {
        if let Some(over) = error.downcast_ref::<LimiterRefusal>() {
            return Self { cap: over.cap, ..Self::new(Cause::Memory, &over.to_string()) };
        }
        if let Some(full) = error.downcast_ref::<PoolConcurrencyLimitError>() {
            return Self::at(Cap::Instances, Cause::Overload, &full.to_string());
        }
        if let Some(trap) = error.downcast_ref::<Trap>() {
            let text = trap.to_string();
            return match trap {
                Trap::Interrupt | Trap::OutOfFuel => Self::at(Cap::CpuTime, Cause::Time, &text),
                Trap::StackOverflow | Trap::MemoryOutOfBounds => {
                    Self::at(Cap::Stack, Cause::Stack, &text)
                }
                Trap::AllocationTooLarge => Self::at(Cap::Memory, Cause::Memory, &text),
                _ => Self::new(Cause::Trap, &text),
            };
        }
        let text = error.root_cause().to_string();
        if text.contains(TOO_MUCH_HANDED_OVER) {
            let text = "the guest returned too much";
            return Self::at(Cap::AnswerBytes, Cause::Answer, text);
        }
        // With a backtrace it was raised while the guest ran: a host function refused. Without one,
        // what the guest handed back could not be read.
        let cause = if error.downcast_ref::<WasmBacktrace>().is_some() {
            Cause::Trap
        } else {
            Cause::Answer
        };
        Self::new(cause, &text)
    }
}

/// Makes a foreign text fit for a log line: shortens it, and removes control characters, which
/// could begin a new line or move a terminal's cursor.
pub(super) fn one_line(text: &str) -> String {
    bounded(text, MESSAGE_CHARS_MAX)
}

/// Like [`one_line`], for a text of at most `chars_max` characters.
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
