//! `weir policy inspect`: what a policy is, and what it answers.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::{EXIT_DIFFERENT, REQUESTS, measure, request, words, wrong, wrong_file};
use crate::app::{self, Simulation};
use crate::cli::print::{out, outln};
use crate::clock;
use crate::config::{self, Config, Requests};
use crate::policy::{self, Policy, Settings};
use crate::proxy::account::{Account, Verdict};
use crate::proxy::trial::{TrialReply, TrialRequest};

/// How long each way of a call is measured.
const TIME: Duration = Duration::from_millis(100);
/// What is sent if no request is given.
const REQUEST: &str = "GET /";

#[derive(Debug, Args)]
pub(in crate::cli) struct Inspect {
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

/// A policy that was built, in a simulation.
pub(super) struct LoadedPolicy {
    pub(super) simulation: Simulation,
    pub(super) settings: Settings,
    /// The first of the requests of its file.
    pub(super) example: Option<TrialRequest>,
}

pub(super) fn run(inspect: &Inspect) -> ExitCode {
    app::start_quiet_log();
    let mut loaded = match load(&inspect.policy, inspect.config.as_deref()) {
        Ok(loaded) => loaded,
        Err(code) => return code,
    };
    let asked = match asked(inspect.request.as_deref(), inspect.body.as_deref(), &loaded) {
        Ok(asked) => asked,
        Err(message) => return wrong(&message),
    };
    out!("{}", described(&loaded));
    let code = match loaded.simulation.send(&asked, TrialReply::answer(200), Duration::ZERO) {
        Ok(ran) => {
            outln!("{}: {}", words::request(&asked), words::outcome(&ran.account));
            out!("{}", words::account(&ran.account, &ran.left));
            if matches!(ran.account.verdict, Some(Verdict::Failed | Verdict::Uncounted)) {
                // The log has the cause. Times of calls that fail say nothing.
                ExitCode::from(EXIT_DIFFERENT)
            } else {
                measured(&loaded, &ran.account);
                ExitCode::SUCCESS
            }
        }
        Err(unusable) => wrong(&unusable.to_string()),
    };
    app::flush_log();
    code
}

/// The request on the command line, or the first of the policy's file.
pub(super) fn asked(
    line: Option<&str>,
    body: Option<&str>,
    loaded: &LoadedPolicy,
) -> Result<TrialRequest, String> {
    let mut asked = match (line, &loaded.example) {
        (Some(line), _) => request::parse(line)?,
        (None, Some(example)) => example.clone(),
        (None, None) => request::parse(REQUEST)?,
    };
    if let Some(body) = body {
        asked.body = body.as_bytes().to_vec();
    }
    Ok(asked)
}

/// Loads a policy with its configuration. What is wrong is printed.
pub(super) fn load(named: &str, config: Option<&Path>) -> Result<LoadedPolicy, ExitCode> {
    let is_module = Path::new(named).extension().is_some_and(|extension| extension == "wasm");
    let beside = Path::new(named).parent().map(|folder| folder.join(REQUESTS));
    let beside = beside.filter(|path| is_module && path.exists());
    let (config, start_us, example) = match (config, beside) {
        (Some(path), _) if !is_requests(path) => {
            let config = app::load(path).map_err(|errors| wrong_file(&errors))?;
            (config, clock::Clock::system().wall_us(), None)
        }
        (Some(path), _) => read_requests(path, None)?,
        (None, Some(path)) => read_requests(&path, None)?,
        (None, None) => {
            let config =
                config::policy_alone(named, is_module).map_err(|errors| wrong_file(&errors))?;
            (config, clock::Clock::system().wall_us(), None)
        }
    };
    of(config, named, is_module, start_us, example)
}

/// Loads what was built for `module`, with the configuration of a file of requests. What is wrong
/// is printed.
pub(super) fn load_built(
    requests: &Path,
    module: &Path,
    built: &Path,
) -> Result<LoadedPolicy, ExitCode> {
    let (config, start_us, example) = read_requests(requests, Some([module, built]))?;
    of(config, &module.to_string_lossy(), true, start_us, example)
}

fn of(
    config: Config,
    named: &str,
    is_module: bool,
    start_us: i64,
    example: Option<TrialRequest>,
) -> Result<LoadedPolicy, ExitCode> {
    let names: Vec<String> =
        config.policies.iter().map(|settings| format!("{:?}", settings.name)).collect();
    let Some((config, settings)) = chosen(config, named, is_module) else {
        return Err(wrong(&format!(
            "the configuration has no policy {named:?}; it has {}",
            names.join(", ")
        )));
    };
    let simulation = Simulation::build(config, start_us).map_err(|errors| wrong_file(&errors))?;
    Ok(LoadedPolicy { simulation, settings, example })
}

type ExampleFile = (Config, i64, Option<TrialRequest>);

/// `instead`: a file, and the one that is read in its place.
fn read_requests(path: &Path, instead: Option<[&Path; 2]>) -> Result<ExampleFile, ExitCode> {
    let requests = match instead {
        Some(instead) => Requests::load_instead(path, instead),
        None => Requests::load(path),
    };
    let requests = requests.map_err(|errors| wrong_file(&errors))?;
    let first = requests.entries.into_iter().next().map(|entry| entry.request);
    Ok((requests.config, requests.start_us, first))
}

/// Maximum size of a file that is looked into for what it is.
const SNIFFED_MAX: u64 = 1 << 20;

/// Whether it is a file of requests, by its name or by what is in it.
fn is_requests(path: &Path) -> bool {
    // Not of a pipe, which can be read once only.
    let has_some = || {
        let is_file =
            std::fs::metadata(path).is_ok_and(|it| it.is_file() && it.len() <= SNIFFED_MAX);
        let text = is_file.then(|| std::fs::read_to_string(path).ok()).flatten();
        text.unwrap_or_default().lines().any(|line| line.trim_end() == "[[requests]]")
    };
    path.file_name().is_some_and(|name| name == REQUESTS) || has_some()
}

/// The policy of this name, or of this module.
fn chosen(config: Config, named: &str, is_module: bool) -> Option<(Config, Settings)> {
    let of_module = |settings: &&Settings| match &settings.module {
        policy::Module::File { path, .. } => {
            is_module && path.file_name() == Path::new(named).file_name()
        }
        policy::Module::Shipped(_) => false,
    };
    let mut all = config.policies.iter();
    let found = all
        .clone()
        .find(|settings| settings.name == named)
        .or_else(|| all.clone().find(of_module))
        .or_else(|| all.find(|settings| settings.module == policy::Module::Shipped(named.into())));
    let settings = found?.clone();
    Some((config, settings))
}

pub(super) fn described(loaded: &LoadedPolicy) -> String {
    let LoadedPolicy { settings, simulation, .. } = loaded;
    let examined = policy::examine(&settings.module);
    let from = match &settings.module {
        policy::Module::File { path, .. } => path.display().to_string(),
        policy::Module::Shipped(name) => format!("{name} (built in)"),
    };
    let kind = if examined.is_component { "component" } else { "module" };
    let mut text = format!("{from}: {kind}, {}\n", bytes(examined.size));
    let mut line = |name: &str, value: String| {
        if !value.is_empty() {
            text.push_str(&format!("    {name:<10} {value}\n"));
        }
    };
    line("blake3", examined.digest);
    line("imports", examined.imports.join(", "));
    // Without what only the linker and the component model need.
    let named = |name: &&String| !name.starts_with("cabi_") && !name.starts_with("__");
    let exports: Vec<&str> = examined.exports.iter().filter(named).map(String::as_str).collect();
    line("exports", exports.join(", "));
    if let Some(policy) = simulation.policy(&settings.name) {
        line("reads", policy.request_facts().join(", "));
        line("of replies", policy.response_facts().join(", "));
        let kept = "its decisions are remembered (pure)";
        let asked = "it is asked for each request";
        line("decides", if policy.remembers() { kept } else { asked }.to_owned());
    }
    let bounds = format!(
        "{} of CPU time, {} of memory",
        words::time(settings.cpu_time),
        bytes(settings.memory_bytes)
    );
    line("bounds", bounds);
    text
}

/// Prints what a call costs.
fn measured(loaded: &LoadedPolicy, account: &Account) {
    let Some(policy) = loaded.simulation.policy(&loaded.settings.name) else { return };
    let facts: Vec<(&str, &str)> =
        account.facts.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let mut memory_bytes = 0;
    let fresh = measure::call(TIME, || match policy.decide_fresh(&facts) {
        Ok(fresh) => memory_bytes = fresh.memory_bytes,
        Err(_) => memory_bytes = 0,
    });
    let reused = measure::call(TIME, || drop(policy.decide_anew(&facts)));
    outln!(
        "    {:<10} {} us in a running instance, {} us in a fresh one, which then has {} of memory",
        "a call",
        micros(reused),
        micros(fresh),
        bytes(memory_bytes)
    );
    remembered(policy, &facts);
}

fn remembered(policy: &Policy, facts: &[(&str, &str)]) {
    if policy.remembers() {
        let kept = measure::call(TIME, || drop(policy.decide(facts)));
        outln!("    {:<10} {} us", "remembered", micros(kept));
    }
}

pub(super) fn micros(duration: Duration) -> String {
    format!("{:.2}", duration.as_secs_f64() * 1e6)
}

pub(super) fn bytes(bytes: usize) -> String {
    if bytes >= 1 << 20 {
        format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
    } else {
        format!("{:.1} KiB", bytes as f64 / 1024.0)
    }
}
