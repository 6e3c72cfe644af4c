//! Modules and components that were damaged at random, by a seed: each costs at most its loading.
//!
//! `WEIR_DAMAGED_MODULES` sets their number: `make test` tries few, `make test-all` hundreds,
//! `make test-long` ten thousand.

use super::damage::damage;
use super::*;

/// The rounds without a longer run.
const ROUNDS: usize = 60;
const SEED: u64 = 11;

/// What is damaged: guests as they are built, and the same as components.
fn originals() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = [guest::api_key(), guest::misbehaving()]
        .iter()
        .map(|path| std::fs::read(path).unwrap())
        .collect();
    all.extend(crate::policy::build::modules().map(|(_, module)| module));
    let components: Vec<Vec<u8>> = all
        .iter()
        .map(|module| crate::policy::component::validated(module).unwrap().unwrap())
        .collect();
    all.extend(components);
    all
}

#[test]
fn damaged_modules_and_components_cost_at_most_their_loading() {
    let rounds = std::env::var("WEIR_DAMAGED_MODULES")
        .map_or(ROUNDS, |rounds| rounds.parse().expect("a number"));
    // Nothing of this belongs into the cache.
    let off =
        RuntimeSettings { instances: 2, cache: CacheFolder::Off, ..RuntimeSettings::default() };
    let runtime = Runtime::with(&off, fuzzing::known_facts()).unwrap();
    let (originals, mut random) = (originals(), fastrand::Rng::with_seed(SEED));
    let (mut refused, mut failed) = (0, 0);
    for round in 0..rounds {
        let module = damage(&originals[round % originals.len()], &mut random);
        match Policy::build(&runtime, &settings(bytes(module), LIMITS), &Metrics::new(1)) {
            // Some of them are still valid: whatever the code then does is bounded like that of any
            // guest.
            Ok(policy) => {
                if let Err(error) = policy.decide(&[("client-ip", "192.0.2.1")]) {
                    failed += 1;
                    assert!(!error.message.is_empty() && error.message.len() < 1_000, "{error}");
                }
            }
            Err(errors) => {
                refused += 1;
                assert!(!errors.is_empty(), "round {round}");
                for setting_error in errors {
                    let text = setting_error.to_string();
                    let place = setting_error.setting.as_str();
                    assert!(
                        (place == "wasm" || place == "memory" || place.starts_with("config"))
                            && !setting_error.found.is_empty()
                            && !setting_error.expected.is_empty()
                            && text.len() < 1_500
                            && !text.contains('\n'),
                        "round {round}: {setting_error:?}"
                    );
                }
            }
        }
    }
    eprintln!(
        "{rounds} damaged modules and components: {refused} refused, {failed} failed when called"
    );
    assert!(refused > rounds / 2 && refused < rounds, "{refused} of {rounds}");
    assert!(client_ip().decide(&[("client-ip", "192.0.2.1")]).is_ok());
}
