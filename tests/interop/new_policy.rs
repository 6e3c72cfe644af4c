//! `weir policy new`: what it writes is built by cargo, and passes its tests at once.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// In a folder, with what cargo builds kept for the next run.
fn run(program: &str, folder: &Path, arguments: &[&str]) -> (i32, String) {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("policy-command");
    let output = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .env("CARGO_TARGET_DIR", target)
        .env_remove("RUSTFLAGS")
        .output()
        .unwrap();
    let told = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(told).unwrap())
}

fn weir(folder: &Path, arguments: &[&str]) -> (i32, String) {
    run(env!("CARGO_BIN_EXE_weir"), folder, arguments)
}

/// Replaces a part of a file that must be there.
fn edit(path: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.contains(from), "{from:?} is not in {}", path.display());
    fs::write(path, text.replace(from, to)).unwrap();
}

#[test]
fn a_new_policy_builds_and_passes_its_tests_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let (code, told) = weir(folder.path(), &["policy", "new", "by-key", "--in", "policies"]);
    assert_eq!(code, 0, "{told}");
    let policy: PathBuf = folder.path().join("policies/by-key");
    let (code, told) = weir(folder.path(), &["policy", "new", "by-key", "--in", "policies"]);
    assert!(code == 2 && told.contains("exists already: nothing was written"), "{told}");
    for name in ["By-Key", "../up", "serde"] {
        let (code, told) = weir(folder.path(), &["policy", "new", name]);
        assert!(code == 2 && told.contains("expected 1 to 64 of a-z 0-9 -"), "{told}");
    }

    let (code, told) = weir(&policy, &["policy", "test"]);
    assert!(code == 2 && told.contains("by-key.wasm"), "{told}");
    // What can't be loaded is not put in place.
    edit(&policy.join("requests.toml"), "quota = 5", "qouta = 5");
    let (code, told) = weir(&policy, &["policy", "build"]);
    assert!(code == 2 && told.contains("by-key.wasm was not written"), "{told}");
    assert!(told.contains("requests.toml:") && !policy.join("by-key.wasm").exists(), "{told}");
    edit(&policy.join("requests.toml"), "qouta = 5", "quota = 5");
    let (code, told) = weir(&policy, &["policy", "build"]);
    assert_eq!(code, 0, "{told}");
    assert!(told.contains("reads      header.x-api-key, client-ip"), "{told}");
    let (code, told) = weir(&policy, &["policy", "test"]);
    assert_eq!((code, told.as_str()), (0, "requests.toml: 9 requests, all as expected\n"));
    let (code, told) = run("cargo", &policy, &["test"]);
    assert!(code == 0 && told.contains("1 passed"), "{told}");

    // What an error in the code looks like.
    edit(&policy.join("src/lib.rs"), "format!(\"key:{key}\")", "format!(\"key:{}\", key.len())");
    let (_, told) = weir(&policy, &["policy", "test"]);
    assert!(told.contains("lib.rs is newer than the module: run `weir policy build`"), "{told}");
    let (code, told) = weir(folder.path(), &["policy", "build", "policies/by-key"]);
    assert_eq!(code, 0, "{told}");
    let (code, told) = weir(folder.path(), &["policy", "test", "policies/by-key"]);
    assert_eq!(code, 1, "{told}");
    assert!(told.contains("found \"key:3\"") && told.contains("expected \"key:abc\""), "{told}");
    // A fact that the manifest does not name.
    edit(
        &policy.join("src/lib.rs"),
        "facts.get(\"header",
        "facts.get(\"header.x-other\").or(facts.get(\"header",
    );
    edit(&policy.join("src/lib.rs"), "-key\") {", "-key\")) {");
    let (code, told) = weir(&policy, &["policy", "build"]);
    assert_eq!(code, 0, "{told}");
    let unnamed = "asks for the fact `header.x-other`, which its manifest does not name";
    let (_, told) = weir(&policy, &["policy", "test"]);
    assert_eq!(told.matches(unnamed).count(), 1, "{told}");
    let (code, told) = run("cargo", &policy, &["test"]);
    assert!(code != 0 && told.contains(unnamed), "{told}");
    // A module that traps when it is configured, and one that is none.
    let built = fs::read(policy.join("by-key.wasm")).unwrap();
    edit(
        &policy.join("src/lib.rs"),
        "Ok(config)",
        "panic!(\"no {}\", config.limits.facts().count())",
    );
    let (code, told) = weir(&policy, &["policy", "build"]);
    assert!(code == 2 && told.contains("by-key.wasm stays as it was"), "{told}");
    assert_eq!(fs::read(policy.join("by-key.wasm")).unwrap(), built);
    edit(&policy.join("src/lib.rs"), "weir_policy::export!(ByKey);", "");
    fs::remove_file(policy.join("requests.toml")).unwrap();
    let (code, told) = weir(&policy, &["policy", "build"]);
    assert!(code == 1 && told.contains("by-key.wasm stays as it was"), "{told}");
    edit(&policy.join("src/lib.rs"), "Ok(self", "Ok(sefl");
    let (code, told) = weir(&policy, &["policy", "build"]);
    assert!(code == 1 && told.contains("`sefl`"), "{told}");
    let (code, told) = weir(folder.path(), &["policy", "build"]);
    assert!(code == 2 && told.contains("no Cargo.toml"), "{told}");
}
