//! Any bytes as a policy's module. Weir's own tests include this file, and give it the corpus.

use std::cell::Cell;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use weir::policy::{
    CacheFolder, Caps, MeasuredNames, Module, Policy, Runtime, RuntimeSettings, Settings,
};
use weir::telemetry::Metrics;

const LIMITS: &str =
    r#"{"limits": [{"name": "a", "algorithm": "gcra", "quota": 10, "period": "1s"}]}"#;
const FACTS: &[(&str, &str)] = &[("client-ip", "192.0.2.1")];
/// The good policy is asked once for this many modules.
const GOOD_EACH: u32 = 64;

fn runtime() -> &'static Arc<Runtime> {
    static RUNTIME: OnceLock<Arc<Runtime>> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let settings =
            RuntimeSettings { instances: 4, cache: CacheFolder::Off, ..RuntimeSettings::default() };
        Runtime::with(&settings, weir::policy::fuzzing::known_facts()).expect("a runtime")
    })
}

fn metrics() -> &'static Metrics {
    static METRICS: OnceLock<Metrics> = OnceLock::new();
    METRICS.get_or_init(|| Metrics::new(1))
}

fn settings(module: Module) -> Settings {
    Settings {
        name: "fuzzed".into(),
        module,
        cpu_time: Duration::from_millis(10),
        memory_bytes: 4 << 20,
        isolated: false,
        config_json: LIMITS.into(),
        scripts: [].into(),
        measured: MeasuredNames::default(),
        caps: Caps::default(),
    }
}

/// A policy in the same process, which must go on working.
fn good() -> &'static Policy {
    static GOOD: OnceLock<Policy> = OnceLock::new();
    GOOD.get_or_init(|| {
        let settings = settings(Module::Shipped("client-ip".into()));
        Policy::build(runtime(), &settings, metrics()).expect("client-ip")
    })
}

/// Loads the bytes as the proxy does, and calls what could be loaded. Whatever is wrong with it is
/// reported in one line.
pub fn modules(bytes: &[u8]) {
    let module = Module::File { path: "guest.wasm".into(), bytes: bytes.into() };
    match Policy::build(runtime(), &settings(module), metrics()) {
        Ok(policy) => {
            if let Err(error) = policy.decide(FACTS) {
                assert!(!error.message.is_empty() && error.message.len() < 1_000, "{error}");
            }
        }
        Err(mistakes) => {
            assert!(!mistakes.is_empty());
            for mistake in mistakes {
                let text = mistake.to_string();
                let told = !mistake.found.is_empty() && !mistake.expected.is_empty();
                assert!(told && text.len() < 1_500 && !text.contains('\n'), "{mistake:?}");
            }
        }
    }
    thread_local! { static COUNT: Cell<u32> = const { Cell::new(0) } }
    let count = COUNT.replace(COUNT.get().wrapping_add(1));
    if count.is_multiple_of(GOOD_EACH) {
        good().decide(FACTS).expect("a decision of client-ip");
    }
}
