//! A start with policies whose code is cached, compared with the first one.
//!
//! To see the times: `cargo test --workspace --lib policy::tests::cached -- --nocapture`.

use std::time::Instant;

use super::*;
use crate::clock::monotonic;

const POLICIES: usize = 10;
/// A tenth of a second is expected. Tests may share the machine with others.
const MOST: Duration = Duration::from_secs(1);

#[test]
fn a_start_with_ten_cached_policies_is_quick() {
    let folder = tempfile::tempdir().unwrap();
    let cached = RuntimeSettings {
        instances: 16,
        cache: CacheFolder::At(folder.path().join("code")),
        ..RuntimeSettings::default()
    };
    let modules: Vec<_> = crate::policy::build::modules().map(|(_, module)| module).collect();
    // Ten modules that differ: each with a custom section of its own.
    let module = |nth: usize| {
        let mut module = modules[nth % modules.len()].clone();
        module.extend([0, 2, 1, b'a' + u8::try_from(nth).unwrap()]);
        bytes(module)
    };
    let started = |settings: &RuntimeSettings| {
        let began: Instant = monotonic();
        let runtime = Runtime::with(settings, fuzzing::known_facts()).unwrap();
        for nth in 0..POLICIES {
            // Some refuse this configuration, once they are loaded, instantiated and called.
            let built = Policy::build(&runtime, &settings_of(module(nth)), &Metrics::new(1));
            if let Err(errors) = built {
                assert!(errors[0].setting.starts_with("config"), "{errors:?}");
            }
        }
        began.elapsed()
    };
    let first = started(&cached);
    assert_eq!(std::fs::read_dir(folder.path().join("code")).unwrap().count(), POLICIES);
    let second = (0..5).map(|_| started(&cached)).min().unwrap();
    eprintln!("{POLICIES} policies: {first:?} when they are compiled, {second:?} from the cache");
    assert!(second < MOST && second < first / 2, "{first:?}, {second:?}");
    assert_eq!(std::fs::read_dir(folder.path().join("code")).unwrap().count(), POLICIES);
}

fn settings_of(module: Module) -> Settings {
    settings(module, LIMITS)
}

#[test]
fn cached_code_decides_as_compiled_code_does() {
    let folder = tempfile::tempdir().unwrap();
    let cached = RuntimeSettings {
        instances: 2,
        cache: CacheFolder::At(folder.path().into()),
        ..RuntimeSettings::default()
    };
    let decide = || {
        let runtime = Runtime::with(&cached, fuzzing::known_facts()).unwrap();
        let settings = settings(shipped("client-ip"), LIMITS);
        let policy = Policy::build(&runtime, &settings, &Metrics::new(1)).unwrap();
        policy.decide(&[("client-ip", "192.0.2.1")]).unwrap()
    };
    let compiled = decide();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    assert_eq!(decide(), compiled);
    // A file that is damaged is compiled again, and replaced.
    let file = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    let whole = std::fs::read(&file).unwrap();
    let mut damaged = whole.clone();
    let middle = damaged.len() / 2;
    damaged[middle..].fill(0x90);
    std::fs::write(&file, damaged).unwrap();
    assert_eq!(decide(), compiled);
    assert_eq!(std::fs::read(&file).unwrap().len(), whole.len());
    assert_eq!(decide(), compiled);
}
