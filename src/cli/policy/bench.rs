//! `weir policy bench`: how many decisions a policy makes in a second, on one core.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::inspect::{self, LoadedPolicy, micros};
use super::{EXIT_DIFFERENT, measure, words, wrong};
use crate::app;
use crate::cli::print::{errln, outln};
use crate::proxy::account::Account;
use crate::proxy::trial::{TrialReply, TrialRequest};

/// How long each way is measured.
const TIME: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
pub(in crate::cli) struct Bench {
    /// A .wasm file, the name of a built-in policy, or with --config the name of a policy there
    policy: String,
    /// A request, as in 'GET /search x-api-key: abc from 203.0.113.7'
    request: Option<String>,
    /// The request's body
    #[arg(long)]
    body: Option<String>,
    /// A proxy.toml that has the policy, or a file of requests with its configuration [default: the
    /// requests.toml next to the module]
    #[arg(long)]
    config: Option<PathBuf>,
}

pub(super) fn run(bench: &Bench) -> ExitCode {
    app::start_quiet_log();
    let mut loaded = match inspect::load(&bench.policy, bench.config.as_deref()) {
        Ok(loaded) => loaded,
        Err(code) => return code,
    };
    let asked = match inspect::asked(bench.request.as_deref(), bench.body.as_deref(), &loaded) {
        Ok(asked) => asked,
        Err(message) => return wrong(&message),
    };
    let code = match loaded.simulation.send(&asked, TrialReply::answer(200), Duration::ZERO) {
        Ok(ran) => measured(&mut loaded, &asked, &ran.account),
        Err(unusable) => wrong(&unusable.to_string()),
    };
    app::flush_log();
    code
}

fn measured(loaded: &mut LoadedPolicy, asked: &TrialRequest, account: &Account) -> ExitCode {
    let Some(policy) = loaded.simulation.policy(&loaded.settings.name).cloned() else {
        return wrong("the configuration has no such policy");
    };
    let facts: Vec<(&str, &str)> =
        account.facts.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    if let Err(error) = policy.decide_fresh(&facts) {
        errln!("weir: {error}");
        return ExitCode::from(EXIT_DIFFERENT);
    }
    outln!("{} on one core", words::request(asked));
    print("fresh instance", || drop(policy.decide_fresh(&facts)));
    print("reused instance", || drop(policy.decide_anew(&facts)));
    if policy.remembers() {
        print("remembered", || drop(policy.decide(&facts)));
    }
    let simulation = &mut loaded.simulation;
    print("with limits", || {
        drop(simulation.run(asked, TrialReply::answer(200), Duration::ZERO));
    });
    ExitCode::SUCCESS
}

fn print(name: &str, run: impl FnMut()) {
    let each = measure::call(TIME, run);
    let rate = 1.0 / each.as_secs_f64().max(f64::MIN_POSITIVE);
    outln!("    {name:<16} {rate:>12.0} a second, {:>8} us each", micros(each));
}
