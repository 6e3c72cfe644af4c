//! The `weir` binary. See [`weir::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    weir::cli::main()
}
