//! The policies in `examples/languages`, built as their READMEs say: the lines under `## Build` are
//! run in a copy of the folder. What they need is in folders that `make setup` fills under target/,
//! in the versions that the READMEs name. The bindings for C are made by the library of which
//! `wit-bindgen` is the command line, as that takes minutes to build.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use wit_bindgen_core::Files;
use wit_bindgen_core::wit_parser::Resolve;

use super::process::run;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
/// Inside target/, wherever that is.
const BUILT: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/languages");
/// Where `scripts/setup.sh` puts programs.
const PROGRAMS: [&str; 2] = [
    concat!(env!("CARGO_TARGET_TMPDIR"), "/../python/bin"),
    concat!(env!("CARGO_TARGET_TMPDIR"), "/../node/node_modules/.bin"),
];
const CONTRACT: &str = "wasm-sdk/wit/policy.wit";
/// The line that makes the bindings for C, in the folder where it is run.
const C_BINDINGS: &str = "wit-bindgen c --world policy ../../../wasm-sdk/wit\n";

/// A policy as its README describes it.
pub struct Example {
    folder: PathBuf,
    readme: String,
    source: &'static str,
}

impl Example {
    /// The one in `examples/languages/NAME`, whose only source file is `source`.
    pub fn new(name: &str, source: &'static str) -> Self {
        let folder = Path::new("examples/languages").join(name);
        let readme = text(&Path::new(ROOT).join(&folder).join("README.md"));
        Self { folder, readme, source }
    }

    /// The block of `language` that follows the heading `title`.
    fn block(&self, title: &str, language: &str) -> &str {
        let readme = self.folder.join("README.md");
        let part = |text, from: &str, to| -> Option<&str> {
            let (_, rest) = str::split_once(text, from)?;
            Some(rest.split_once(to)?.0)
        };
        let section = part(&self.readme, &format!("\n## {title}\n"), "\n## ");
        section
            .and_then(|section| part(section, &format!("```{language}\n"), "```"))
            .unwrap_or_else(|| panic!("{readme:?} has no {language} under `## {title}`"))
    }

    /// What its author types to install the tools.
    pub fn install(&self) -> &str {
        self.block("Install", "sh")
    }

    /// What its operator writes into `proxy.toml`.
    pub fn config(&self) -> &str {
        self.block("Use", "toml")
    }

    /// The name of the module in that configuration.
    pub fn module_name(&self) -> &str {
        let (_, rest) = self.config().split_once("wasm = \"").expect("a module");
        rest.split_once('"').expect("a name in quotes").0
    }

    /// The module. It is built again only if the source, the contract or the README changed.
    pub fn module(&self) -> Vec<u8> {
        let (root, lines) = (Path::new(ROOT), self.block("Build", "sh"));
        let source = self.folder.join(self.source);
        let mut inputs = DefaultHasher::new();
        [&self.readme, &text(&root.join(&source)), &text(&root.join(CONTRACT))].hash(&mut inputs);
        let kept = Path::new(BUILT).join(format!("{:016x}.wasm", inputs.finish()));
        if let Ok(module) = std::fs::read(&kept) {
            return module;
        }
        // With the same relative paths, and without anything that the build writes next to the
        // sources.
        std::fs::create_dir_all(BUILT).expect("a folder for modules");
        let copy = tempfile::tempdir_in(BUILT).expect("a folder for one build");
        for file in [&source, Path::new(CONTRACT)] {
            let to = copy.path().join(file);
            std::fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
            std::fs::copy(root.join(file), to).expect("a copied source");
        }
        let folder = copy.path().join(&self.folder);
        let lines = match lines.strip_prefix(C_BINDINGS) {
            Some(rest) => {
                c_bindings(&root.join(CONTRACT), &folder);
                rest
            }
            None => lines,
        };
        let ended = run(tools("sh").args(["-exc", lines]).current_dir(&folder));
        assert_eq!(
            ended.code, 0,
            "{:?} could not be built; `make setup` installs what it needs\n{}\n{}",
            self.folder, ended.out, ended.err
        );
        let module = std::fs::read(folder.join(self.module_name()))
            .unwrap_or_else(|error| panic!("the build made no {}: {error}", self.module_name()));
        super::weir::replace(&kept, &module);
        module
    }
}

fn c_bindings(contract: &Path, folder: &Path) {
    let mut resolve = Resolve::default();
    let package = resolve.push_path(contract.parent().expect("a folder")).expect("the contract").0;
    let world = resolve.select_world(&[package], Some("policy")).expect("the world");
    let mut files = Files::default();
    let mut generator = wit_bindgen_c::Opts::default().build();
    generator.generate(&mut resolve, world, &mut files).expect("bindings");
    for (name, content) in files.iter() {
        std::fs::write(folder.join(name), content).expect("a file of the bindings");
    }
}

/// A program, found where `make setup` installs the tools of these examples, or on the PATH.
fn tools(program: &str) -> Command {
    let inherited = std::env::var_os("PATH").unwrap_or_default();
    let folders = PROGRAMS.iter().map(PathBuf::from).chain(std::env::split_paths(&inherited));
    let mut command = Command::new(program);
    command.env("PATH", std::env::join_paths(folders).expect("folders without colons"));
    command
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path:?}: {error}"))
}
