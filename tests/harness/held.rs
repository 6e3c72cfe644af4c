//! Processes whose wall clock a test stops and sets, and processes in which some calls never
//! return. Only the wall clock is affected: timers and deadlines use the monotonic one.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use super::process::run;

const TIME: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/harness/held_time.c");
const CALLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/harness/held_calls.c");

/// Builds a library that is loaded before all others, in a folder of its own.
fn build(source: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let built = run(Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(folder.path().join("held.so"))
        .arg(source));
    assert_eq!(built.code, 0, "{source}: {}", built.err);
    folder
}

/// A wall clock under a test's control.
pub struct HeldTime {
    folder: TempDir,
    file: File,
}

impl HeldTime {
    /// The real time, which runs until [`HeldTime::set`] stops it.
    pub fn running() -> Self {
        let folder = build(TIME);
        let file = File::create(folder.path().join("now")).expect("a file");
        let held = Self { folder, file };
        held.set(0);
        held
    }

    /// Stops the clock at this second since 1970.
    pub fn set(&self, at_s: i64) {
        self.file.write_all_at(&at_s.to_ne_bytes(), 0).expect("a written file");
    }

    /// The environment variables of a process with this clock.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let path =
            |name| PathBuf::from(self.folder.path()).join(name).to_string_lossy().into_owned();
        vec![("LD_PRELOAD", path("held.so")), ("HELD_TIME", path("now"))]
    }

    /// The same for a clock that is this many seconds ahead while it runs; behind, if negative.
    pub fn environment_ahead(&self, by_s: i64) -> Vec<(&'static str, String)> {
        let mut environment = self.environment();
        environment.push(("HELD_AHEAD_S", by_s.to_string()));
        environment
    }
}

/// Calls that never return: see `held_calls.c`.
pub struct HeldCalls(TempDir);

impl HeldCalls {
    /// Resolving a name that starts with `hung.` hangs. Files can be opened until
    /// [`HeldCalls::hold_files`].
    pub fn new() -> Self {
        Self(build(CALLS))
    }

    /// Keeps the opening of files `held.*` from returning.
    pub fn hold_files(&self) {
        std::fs::write(self.0.path().join("now"), "").expect("a written file");
    }

    fn switch(&self, how: &str, call: &str) -> PathBuf {
        self.0.path().join(format!("now.{how}.{call}"))
    }

    /// Has a system call wait until [`HeldCalls::restore`].
    pub fn wait(&self, call: &str) {
        std::fs::write(self.switch("wait", call), "").expect("a written file");
    }

    /// Has a system call fail, as without a free descriptor, until [`HeldCalls::restore`].
    pub fn fail(&self, call: &str) {
        std::fs::write(self.switch("fail", call), "").expect("a written file");
    }

    /// Lets a system call do its work again.
    pub fn restore(&self, call: &str) {
        for how in ["wait", "fail"] {
            // It is one of the two.
            let _ = std::fs::remove_file(self.switch(how, call));
        }
    }

    /// Whether a call is hanging.
    pub fn reached(&self) -> bool {
        self.0.path().join("now.reached").exists()
    }

    /// The environment variables of a process whose calls hang.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let path = |name| PathBuf::from(self.0.path()).join(name).to_string_lossy().into_owned();
        vec![("LD_PRELOAD", path("held.so")), ("HELD_CALLS", path("now"))]
    }
}
