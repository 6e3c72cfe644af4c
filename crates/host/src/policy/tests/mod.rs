//! The module as others use it: real guests, real calls. `misbehaving` shows what a bad guest
//! costs, `loading` what a bad module does.

mod answers;
mod cached;
mod caps;
mod contract;
mod damaged;
mod declares;
mod kept;
mod leases;
mod loading;
mod misbehaving;
mod sharing;
mod size;
mod speed;
mod stopping;
mod worst;

use super::*;
use crate::plan::Plan;
use crate::telemetry::{Label as _, names};

#[path = "../../../../../fuzz/policies/src/answers.rs"]
#[expect(unreachable_pub, reason = "for the crate that has it outside the tests")]
mod any_answer;
#[path = "../../../../../fuzz/policies/src/modules.rs"]
#[expect(unreachable_pub, reason = "for the crate that has it outside the tests")]
mod any_module;
#[path = "../../../../../tests/harness/damage.rs"]
mod damage;
#[path = "../../../../../tests/harness/guest.rs"]
mod guest;

const LIMITS: &str = r#"{"limits": [{"name": "per-minute", "algorithm": "fixed_window", "quota": 100, "period": "1m"},
    {"name": "burst", "algorithm": "gcra", "quota": 10, "period": "1s", "burst": 20}]}"#;

/// The inputs of a fuzz target, with their names.
fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let all: Vec<_> =
        files.map(|path| (path.display().to_string(), std::fs::read(&path).unwrap())).collect();
    assert!(!all.is_empty(), "{target} has no corpus");
    all
}

/// One for all tests: an engine reserves address space for a thousand instances.
fn runtime() -> Arc<Runtime> {
    static RUNTIME: std::sync::OnceLock<Arc<Runtime>> = std::sync::OnceLock::new();
    RUNTIME.get_or_init(|| Runtime::new(fuzzing::known_facts()).unwrap()).clone()
}

fn settings(module: Module, config: &str) -> Settings {
    Settings {
        name: "public".into(),
        module,
        cpu_time: Duration::from_millis(50),
        memory_bytes: 32 << 20,
        isolated: false,
        config_json: config.into(),
        scripts: ["mine".to_owned()].into(),
        measured: crate::policy::MeasuredNames::default(),
        caps: Caps::default(),
    }
}

fn shipped(name: &str) -> Module {
    Module::Shipped(name.into())
}

fn file(path: &std::path::Path) -> Module {
    Module::File { path: path.into(), bytes: std::fs::read(path).unwrap().into() }
}

fn bytes(bytes: Vec<u8>) -> Module {
    Module::File { path: "guest.wasm".into(), bytes: bytes.into() }
}

fn wat(name: &str) -> Module {
    bytes(
        wat::parse_file(
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/guests").join(name),
        )
        .unwrap(),
    )
}

fn misbehaving() -> Module {
    file(&guest::misbehaving())
}

fn build(settings: &Settings) -> Result<Policy, Vec<SettingError>> {
    Policy::build(&runtime(), settings, &Metrics::new(1))
}

fn client_ip() -> Policy {
    build(&settings(shipped("client-ip"), LIMITS)).unwrap()
}

fn plan(decision: &Decision) -> &Plan {
    match &decision.verdict {
        Verdict::Check(plan) => plan,
        other => panic!("{other:?}"),
    }
}
