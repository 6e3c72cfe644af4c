//! `weir policy build`: compiles a policy's crate to a module next to it.
//!
//! The toolchain is rustup's, or Debian's where rustup has none for WebAssembly and
//! `WEIR_WASM_DEBIAN=1` says so.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use serde_json::Value;

use super::{EXIT_DIFFERENT, REQUESTS, inspect, wrong};
use crate::cli::print::{errln, out};
use crate::{app, policy, proxy};

const TARGET: &str = "wasm32-unknown-unknown";
/// Chooses Debian's `rustc-web` and `cargo-web`, as for the built-in policies.
const DEBIAN: &str = "WEIR_WASM_DEBIAN";

/// The toolchain that builds a policy.
struct Toolchain {
    cargo: OsString,
    rustc: OsString,
    builds_std: bool,
}

/// A module that cargo has built.
struct BuiltModule {
    /// Where cargo has put it.
    file: PathBuf,
    /// Where it goes.
    module: PathBuf,
}

pub(super) fn run(folder: &Path) -> ExitCode {
    if !folder.join("Cargo.toml").is_file() {
        return wrong(&format!(
            "{} has no Cargo.toml; `weir policy new NAME` writes a policy",
            folder.display()
        ));
    }
    let BuiltModule { file, module } = match build(folder) {
        Ok(built) => built,
        Err(message) => {
            errln!("weir: {message}");
            return ExitCode::from(EXIT_DIFFERENT);
        }
    };
    let described = match load(&file, &module) {
        Ok(described) => described,
        Err(code) => {
            let kept = if module.exists() { "stays as it was" } else { "was not written" };
            errln!(
                "weir: {} {kept}, as the module that was built can't be loaded: {}",
                module.display(),
                file.display()
            );
            return code;
        }
    };
    if let Err(error) = replace(&file, &module) {
        errln!("weir: {}: {error}", module.display());
        return ExitCode::from(EXIT_DIFFERENT);
    }
    out!("{described}");
    ExitCode::SUCCESS
}

/// Loads what was built as the proxy would, with the configuration of its requests where there are
/// some. Returns its size and facts; what is wrong is printed.
fn load(file: &Path, module: &Path) -> Result<String, ExitCode> {
    app::start_quiet_log();
    let requests = module.with_file_name(REQUESTS);
    if requests.exists() {
        let loaded = inspect::load_built(&requests, module, file)?;
        return Ok(inspect::described(&loaded));
    }
    let failed = |found: String| {
        errln!("weir: {}: {found}", file.display());
        ExitCode::from(EXIT_DIFFERENT)
    };
    let bytes = fs::read(file).map_err(|error| failed(error.to_string()))?;
    policy::load(&bytes, proxy::fact_names())
        .map_err(|setting_error| failed(setting_error.to_string()))?;
    Ok(format!(
        "{}: {} (not tried: there is no {REQUESTS} with its configuration)\n",
        module.display(),
        inspect::bytes(bytes.len())
    ))
}

fn build(folder: &Path) -> Result<BuiltModule, String> {
    let toolchain = Toolchain::find();
    if !toolchain.builds_std {
        toolchain.ensure_target(folder)?;
    }
    let mut command = Command::new(&toolchain.cargo);
    command
        .current_dir(folder)
        .args(["build", "--release", "--lib", "--target", TARGET])
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit());
    if toolchain.builds_std {
        command
            .env("RUSTC", &toolchain.rustc)
            .env("RUSTC_BOOTSTRAP", "1")
            .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", "wasm-ld")
            .arg("-Zbuild-std=std,panic_abort");
    }
    let output = command.output().map_err(|error| {
        format!(
            "{} could not be started: {error}; install Rust with rustup, https://rustup.rs",
            toolchain.cargo.display()
        )
    })?;
    if !output.status.success() {
        return Err("the policy could not be built, see above".to_owned());
    }
    let manifest = fs::canonicalize(folder.join("Cargo.toml"))
        .map_err(|error| format!("{}: {error}", folder.display()))?;
    let (name, file) = module_of(&String::from_utf8_lossy(&output.stdout), &manifest).ok_or(
        "the crate builds no module: its Cargo.toml needs `[lib] crate-type = [\"cdylib\"]`",
    )?;
    Ok(BuiltModule { file, module: folder.join(format!("{name}.wasm")) })
}

/// The package's name and its module, from what cargo says that it built.
fn module_of(messages: &str, manifest: &Path) -> Option<(String, PathBuf)> {
    messages.lines().find_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        let of_it = Path::new(message.get("manifest_path")?.as_str()?) == manifest;
        let files = message.get("filenames").filter(|_| of_it)?.as_array()?;
        let mut paths = files.iter().filter_map(Value::as_str).map(PathBuf::from);
        let module = paths.find(|path| path.extension().is_some_and(|it| it == "wasm"))?;
        // As written in Cargo.toml, while the target's name may have other hyphens.
        let id = message.get("package_id")?.as_str()?;
        let folder = manifest.parent()?.file_name()?.to_str()?;
        let after = id.rsplit_once('#').map_or(id, |(_, after)| after);
        let name = after.split_once('@').map_or(folder, |(name, _)| name);
        Some((name.to_owned(), module))
    })
}

/// Puts the module in place at once: a proxy may watch it.
fn replace(from: &Path, to: &Path) -> std::io::Result<()> {
    let beside = to.with_extension("wasm.new");
    fs::copy(from, &beside)?;
    fs::rename(&beside, to)
}

impl Toolchain {
    fn find() -> Self {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let debian = set(DEBIAN).is_some_and(|value| value != "0");
        let choose = |own: &str, debians: &str, name: &str| {
            set(own).unwrap_or_else(|| if debian { debians } else { name }.into())
        };
        Self {
            cargo: choose("WEIR_WASM_CARGO", "/usr/bin/cargo", "cargo"),
            rustc: choose("WEIR_WASM_RUSTC", "/usr/bin/rustc", "rustc"),
            builds_std: debian,
        }
    }

    /// Has rustup install the target if the toolchain of this folder lacks it.
    fn ensure_target(&self, folder: &Path) -> Result<(), String> {
        if self.has_target(folder)? {
            return Ok(());
        }
        errln!("weir: installing the target {TARGET} (rustup target add {TARGET})");
        let added = Command::new("rustup")
            .current_dir(folder)
            .args(["target", "add", TARGET])
            .stdout(Stdio::null())
            .status();
        let by_hand = format!(
            "Run: rustup target add {TARGET}. Or with Debian's toolchain (apt-get install rustc-web \
             cargo-web rust-web-src lld): {DEBIAN}=1 weir policy build"
        );
        match added {
            Ok(status) if status.success() && self.has_target(folder)? => Ok(()),
            Ok(_) => Err(format!("rustup could not install {TARGET}. {by_hand}")),
            Err(error) => Err(format!(
                "the toolchain has no standard library for {TARGET}, and rustup could not be started: {error}. {by_hand}"
            )),
        }
    }

    fn has_target(&self, folder: &Path) -> Result<bool, String> {
        let output = Command::new(&self.rustc)
            .current_dir(folder)
            .args(["--print", "target-libdir", "--target", TARGET])
            .output();
        let output = output.map_err(|error| {
            format!(
                "{} could not be started: {error}; install Rust with rustup, https://rustup.rs",
                self.rustc.display()
            )
        })?;
        let libraries = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        let mut files = fs::read_dir(&libraries).into_iter().flatten().flatten();
        Ok(files.any(|file| file.file_name().to_string_lossy().starts_with("libstd-")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_module_of_this_package_is_found_among_what_cargo_built() {
        let line = |name: &str, manifest: &str, file: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"path+file:///x/{name}#{name}@0.1.0","manifest_path":"{manifest}","filenames":["/t/lib.rlib","{file}"]}}"#
            )
        };
        let messages = format!(
            "{}\nno JSON\n{}\n{{\"reason\":\"build-finished\"}}",
            line("sdk", "/x/sdk/Cargo.toml", "/t/sdk.wasm"),
            line("my-policy", "/x/mine/Cargo.toml", "/t/my_policy.wasm")
        );
        let found = module_of(&messages, Path::new("/x/mine/Cargo.toml"));
        assert_eq!(found, Some(("my-policy".to_owned(), PathBuf::from("/t/my_policy.wasm"))));
        assert_eq!(module_of(&messages, Path::new("/x/Cargo.toml")), None);
        // Where the folder has the package's name, cargo leaves it out.
        let short = r#"{"package_id":"path+file:///x/mine#0.1.0","manifest_path":"/x/mine/Cargo.toml","filenames":["/t/mine.wasm"]}"#;
        let found = module_of(short, Path::new("/x/mine/Cargo.toml"));
        assert_eq!(found, Some(("mine".to_owned(), PathBuf::from("/t/mine.wasm"))));
    }
}
