//! Printing for the commands, where `println!` would panic: standard output may be a pipe whose
//! reader has left, which has read enough and changes no exit code, or a file on a full disk, which
//! ends the command with a message and exit code 1.

use std::fmt;
use std::io::{self, ErrorKind, Write as _};
use std::process;

use serde_json::Value;

use crate::app::json_for_terminals;

/// The command could not be finished.
const EXIT_FAILED: i32 = 1;

/// `print!` that ignores a closed pipe.
macro_rules! out {
    ($($text:tt)*) => { $crate::cli::print::to_stdout(format_args!($($text)*)) };
}

/// `println!` that ignores a closed pipe.
macro_rules! outln {
    () => { $crate::cli::print::to_stdout(format_args!("\n")) };
    ($($text:tt)*) => { $crate::cli::print::to_stdout(format_args!("{}\n", format_args!($($text)*))) };
}

/// `eprint!` that ignores a closed pipe.
macro_rules! err {
    ($($text:tt)*) => { $crate::cli::print::to_stderr(format_args!($($text)*)) };
}

/// `eprintln!` that ignores a closed pipe.
macro_rules! errln {
    ($($text:tt)*) => { $crate::cli::print::to_stderr(format_args!("{}\n", format_args!($($text)*))) };
}

pub(super) use {err, errln, out, outln};

/// Ends the process if it can't be written: what was to be done is done, or can't be reported.
pub(super) fn to_stdout(text: fmt::Arguments<'_>) {
    finished(io::stdout().lock().write_fmt(text));
}

/// Ends the process if standard output could not be written, unless its reader has left.
pub(super) fn finished(written: io::Result<()>) {
    if let Err(error) = written.and_then(|()| io::stdout().flush())
        && error.kind() != ErrorKind::BrokenPipe
    {
        errln!("weir: standard output: {error}");
        process::exit(EXIT_FAILED);
    }
}

/// Prints a JSON value on a line.
pub(super) fn print_json(value: &Value) {
    outln!("{}", json_for_terminals(value.to_string()));
}

/// There is nowhere to say that this could not be written.
pub(super) fn to_stderr(text: fmt::Arguments<'_>) {
    let written = std::io::stderr().lock().write_fmt(text);
    drop(written);
}
