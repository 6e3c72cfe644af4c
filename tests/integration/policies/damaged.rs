//! Modules and components that were damaged at random, by a seed, as new versions of the policy of
//! one running proxy: those that can't be loaded cost a reload that says why, and nothing else.
//! `make test-long` tries more of them (`WEIR_DAMAGED_MODULES`).

use std::time::Duration;

use wit_component::ComponentEncoder;

use crate::harness::TIMEOUT;
use crate::harness::client::get;
use crate::harness::damage::damage;
use crate::harness::guest;
use crate::harness::toml::simple;
use crate::harness::upstream::Upstream;
use crate::harness::weir::{Weir, replace};
use crate::reload::changes::ask_for_a_reload_within;

/// The rounds without a longer run.
const ROUNDS: usize = 300;
const SEED: u64 = 14;
/// The time limit of longer runs: modules that are still valid are compiled on a thread of low
/// priority.
const LONG_RELOAD_MAX: Duration = Duration::from_secs(300);
const LIMIT: &str =
    "name = \"day\", algorithm = \"fixed_window\", quota = 1000000, period = \"1d\"";

#[tokio::test]
async fn damaged_modules_and_components_cost_a_running_proxy_one_reload_each() {
    let module = std::fs::read(guest::api_key()).unwrap();
    let component = ComponentEncoder::default().module(&module).unwrap().encode().unwrap();
    let upstream = Upstream::start();
    let config = simple(&upstream.url(), &[LIMIT]).text();
    let config = config.replace("use = \"client-ip\"", "wasm = \"guest.wasm\"");
    let line = 1 + config.lines().position(|line| line.contains("guest.wasm")).unwrap();
    let mut weir = Weir::build(&config).file("guest.wasm", &module).start();
    let path = weir.folder().join("guest.wasm");
    let mut random = fastrand::Rng::with_seed(SEED);
    let rounds = std::env::var("WEIR_DAMAGED_MODULES")
        .map_or(ROUNDS, |rounds| rounds.parse().expect("a number"));
    let reload_max = if rounds > ROUNDS { LONG_RELOAD_MAX } else { TIMEOUT };
    let (mut refused, mut left) = (0, get(weir.http, "/", &[]).await.remaining("day"));
    for round in 0..rounds {
        let original = if round % 2 == 0 { &module } else { &component };
        replace(&path, &damage(original, &mut random));
        let (status, answer) = ask_for_a_reload_within(&weir, reload_max);
        if status == 200 {
            // It is valid all the same: whatever it does is bounded, and it is replaced.
            let _ = get(weir.http, "/", &[]).await;
            replace(&path, original);
            assert_eq!(ask_for_a_reload_within(&weir, reload_max).0, 200, "round {round}");
            left = get(weir.http, "/", &[]).await.remaining("day");
            continue;
        }
        refused += 1;
        assert_eq!(status, 422, "round {round}: {answer}");
        let error = &answer["errors"][0];
        let (file, text) = (error["file"].as_str().unwrap(), error["text"].as_str().unwrap());
        assert!(file.ends_with("/proxy.toml"), "round {round}: {answer}");
        // The setting that names the file, or one that the guest refuses.
        let of_module = error["line"] == line && text.starts_with("policies.public.wasm: found ");
        let of_config = text.starts_with("policies.public.config");
        assert!(of_module || of_config, "round {round}: {answer}");
        assert!(text.contains("expected ") && text.len() < 1_500, "round {round}: {answer}");
        // The policy before it stays in use, with its counts.
        let reply = get(weir.http, "/", &[]).await;
        left -= 1;
        assert_eq!((reply.status, reply.remaining("day")), (200, left), "round {round}: {answer}");
    }
    eprintln!("{rounds} damaged modules and components: {refused} refused");
    assert!(refused > rounds / 2 && refused < rounds, "{refused} of {rounds}");
    assert!(weir.running());
    assert!(weir.reloads("refused") >= refused as u64);
}
