//! The `weir` binary. See [`weir::cli`].

use std::process::ExitCode;

/// musl's own allocator has one lock for all threads. glibc's is as fast as this one and holds less
/// at rest.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    weir::cli::main()
}
