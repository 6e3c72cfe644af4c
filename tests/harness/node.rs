//! Programs in JavaScript, in `tests/clients`, with the Node.js and the packages that
//! `scripts/setup.sh interop` installs.

use std::path::Path;
use std::process::Command;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
/// The folder with `node_modules`.
pub const NODE: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/../node");

/// A script in `tests/clients`.
pub fn node(script: &str) -> Command {
    let mut command = Command::new(Path::new(NODE).join("node_modules/.bin/node"));
    command.arg(Path::new(ROOT).join("tests/clients").join(script));
    command
}
