//! Builds a policy: compiles its module, starts and configures an instance, and checks everything
//! that it answered. Runs off the request path.

use std::borrow::Cow;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::abi::types;
use super::answer;
use super::bounds::Bounds;
use super::breaker::Breaker;
use super::component;
use super::error::{CallPhase, Cause, one_line};
use super::fact;
use super::health::Health;
use super::instance::{Instance, StartError};
use super::runtime::{MEMORY_BYTES_MAX, Runtime};
use super::spare::{SpareInstances, Starter};
use super::workers::Token;
use super::written;
use super::{Module, Policy, Settings};
use crate::clock::{LogThrottle, thread_cpu};
use crate::telemetry::{Label as _, Metrics, SettingError, error_line};

include!(concat!(env!("OUT_DIR"), "/shipped.rs"));

/// Maximum number of errors of one guest that are reported.
const ERRORS_MAX: usize = 64;
/// Maximum length of what an error of a guest says was found or expected, in characters. It may
/// list all keys that are known, with the nearest one last.
const ERROR_CHARS_MAX: usize = 512;
/// If starting an instance takes more CPU time than this, the workers' instances are started
/// beforehand. That is the time of about a hundred requests.
const SLOW: Duration = Duration::from_millis(2);

/// The names of the policies that ship inside the binary.
#[must_use]
pub fn shipped() -> &'static [&'static str] {
    NAMES
}

/// The module that ships under this name. Unpacking it takes milliseconds, far less than compiling
/// it, and whoever runs none has none of them in memory.
pub(super) fn shipped_module(name: &str) -> Option<Vec<u8>> {
    let (_, range) = SHIPPED.iter().find(|(known, _)| *known == name)?;
    let mut all = zstd::Decoder::with_buffer(PACKED).ok()?;
    io::copy(&mut (&mut all).take(range.start as u64), &mut io::sink()).ok()?;
    let mut module = Vec::with_capacity(range.len());
    all.take(range.len() as u64).read_to_end(&mut module).ok()?;
    Some(module)
}

/// Builds it on a thread of its own: see [`Runtime::aside`].
pub(super) fn policy(
    runtime: &Arc<Runtime>,
    settings: &Settings,
    metrics: &Metrics,
) -> Result<Policy, Vec<SettingError>> {
    runtime.aside(|| here(runtime, settings, metrics)).unwrap_or_else(|error| Err(vec![error]))
}

/// Builds it on the calling thread.
pub(super) fn here(
    runtime: &Arc<Runtime>,
    settings: &Settings,
    metrics: &Metrics,
) -> Result<Policy, Vec<SettingError>> {
    let (source, bytes) = source(settings).map_err(|error| vec![error])?;
    if settings.memory_bytes > MEMORY_BYTES_MAX {
        let found = format!("{} bytes", settings.memory_bytes);
        return Err(vec![SettingError::new(
            "memory",
            found,
            format!("at most {MEMORY_BYTES_MAX} bytes"),
        )]);
    }
    let unfit = |(found, expected): (String, String)| SettingError::new(source, found, expected);
    let component::LoadedGuest { pre, label, digest } =
        component::load(runtime, &settings.caps, &bytes).map_err(|unfit| {
            let setting = unfit.setting.unwrap_or(source);
            vec![SettingError::new(setting, unfit.found, unfit.expected)]
        })?;
    let bounds = bounds(runtime, settings);
    let unknown = written::unknown("config", &settings.config_json, &settings.scripts);
    let started = thread_cpu();
    let (instance, mut manifest) = Instance::start(&pre, &label, &bounds, &settings.config_json)
        .map_err(|unready| not_started(unready, &unknown, source, &bounds))?;
    if !unknown.is_empty() {
        return Err(unknown);
    }
    let declared = answer::declared(&mut manifest, &settings.scripts);
    let (limits, warnings) = declared.map_err(|wrong| {
        vec![SettingError::new(source, one_line(&wrong), "a manifest that follows the contract")]
    })?;
    let wrong: Vec<SettingError> =
        limits.iter().filter_map(|it| it.lease_error(&limits)).take(ERRORS_MAX).collect();
    if !wrong.is_empty() {
        return Err(wrong);
    }
    let declares_limits = !limits.is_empty();
    let limits = if declares_limits { limits } else { settings.written_limits() };
    let slow = !settings.isolated && thread_cpu().saturating_sub(started) > SLOW;
    let facts =
        |unknown: Vec<fact::UnknownFact>| unknown.into_iter().map(unfit).collect::<Vec<_>>();
    let request_facts = runtime.facts().of_request(&manifest.request_facts);
    let response_facts = runtime.facts().of_response(&manifest.response_facts);
    let (request_facts, response_facts) = match (request_facts, response_facts) {
        (Ok(request), Ok(response)) => (request, response),
        (request, response) => {
            let all = request.err().into_iter().chain(response.err()).flatten();
            return Err(facts(all.take(ERRORS_MAX).collect()));
        }
    };
    let health = Health::new(&settings.name, &digest, &bounds.largest, metrics);
    Ok(Policy {
        runtime: runtime.clone(),
        token: Token::new(),
        starter: Starter { pre, label, bounds, config_json: Arc::clone(&settings.config_json) },
        scripts: Arc::clone(&settings.scripts),
        measured: settings.measured.clone(),
        isolated: settings.isolated,
        remembers: manifest.pure && !settings.isolated,
        limits,
        declares_limits,
        warnings,
        request_facts,
        response_facts,
        health,
        breaker: Breaker::new(settings.caps.breaker.clone()),
        sets_priorities: AtomicBool::default(),
        spare: SpareInstances::new(instance, slow),
    })
}

/// Why the first instance did not start, besides the `unknown` names in its configuration.
fn not_started(
    unready: StartError,
    unknown: &[SettingError],
    source: &str,
    bounds: &Bounds,
) -> Vec<SettingError> {
    match unready {
        // An error that both found is reported once.
        StartError::Refused(errors) => {
            let refused = refused("config", &errors);
            let is_news =
                |ours: &&SettingError| !refused.iter().any(|it| it.setting == ours.setting);
            let more = unknown.iter().filter(is_news).cloned();
            refused.iter().cloned().chain(more).collect()
        }
        StartError::Failed(failure) => {
            let setting = if failure.cause == Cause::Memory { "memory" } else { source };
            let failure = failure.naming(bounds, CallPhase::Start);
            let found = format!(
                "a guest that failed when it was configured ({}: {})",
                failure.cause.label(),
                failure.message
            );
            vec![SettingError::new(setting, found, "one that starts and answers within its bounds")]
        }
    }
}

fn bounds(runtime: &Arc<Runtime>, settings: &Settings) -> Bounds {
    Bounds {
        policy: settings.name.as_str().into(),
        cpu_time: settings.cpu_time,
        memory_bytes: settings.memory_bytes,
        caps: settings.caps.clone().into(),
        pool: runtime.settings().clone().into(),
        instances: runtime.instances().clone(),
        largest: Arc::default(),
        ticker: Arc::clone(runtime.ticker()),
        log: Arc::new(LogThrottle::at_most(settings.caps.log_lines_per_second)),
        clock: runtime.clock().clone(),
    }
}

/// The setting that named the module, and the module.
fn source(settings: &Settings) -> Result<(&'static str, Cow<'_, [u8]>), SettingError> {
    match &settings.module {
        Module::File { bytes, .. } => Ok(("wasm", Cow::Borrowed(bytes))),
        Module::Shipped(name) => match shipped_module(name) {
            Some(bytes) => Ok(("use", Cow::Owned(bytes))),
            None => {
                let nearest =
                    NAMES.iter().min_by_key(|known| strsim::damerau_levenshtein(name, known));
                let nearest = nearest
                    .map(|nearest| format!("; the nearest is `{nearest}`"))
                    .unwrap_or_default();
                let expected = format!("one of `{}`{nearest}", NAMES.join("`, `"));
                Err(SettingError::new("use", format!("`{}`", one_line(name)), expected))
            }
        },
    }
}

/// What the SDK finds where somebody wrote a rate as nginx does.
const RATE_KEY: &str = "the unknown key `rate`";
/// It is said here, because in the SDK it would be a part of every guest.
const RATE_HINT: &str =
    "`quota` and `period`: \"30r/m\" of nginx is `quota = 30`, `period = \"1m\"`";

/// A guest's errors, with the whole path of each setting. The SDK writes "found X, expected Y";
/// others may write what they like.
fn refused(config: &str, errors: &[types::Mistake]) -> Vec<SettingError> {
    if errors.is_empty() {
        return vec![SettingError::new(
            config,
            "a configuration that the policy refused without saying why",
            "one that it accepts",
        )];
    }
    let whole = |error: &types::Mistake| {
        let path = one_line(&error.path);
        let dot = if path.is_empty() || path.starts_with('[') { "" } else { "." };
        let message = error.message.as_str();
        let parts = message.strip_prefix("found ").and_then(|rest| rest.split_once(", expected "));
        let (found, expected) = parts.unwrap_or((message, "what the policy accepts"));
        let found = error_line(found, ERROR_CHARS_MAX);
        // Of a limit, which is in a list.
        let is_rate = found == RATE_KEY && path.ends_with("].rate");
        let expected = error_line(if is_rate { RATE_HINT } else { expected }, ERROR_CHARS_MAX);
        // The SDK's texts for a key that is unknown, or not allowed together with another one.
        let in_key = found.starts_with("the unknown key ")
            || found.starts_with("the key ")
            || expected.starts_with("nothing: ");
        let error = SettingError::new(format!("{config}{dot}{path}"), found, expected);
        if in_key { error.in_key() } else { error }
    };
    errors.iter().take(ERRORS_MAX).map(whole).collect()
}

/// Name and module of each policy that ships.
#[cfg(test)]
pub(super) fn modules() -> impl Iterator<Item = (&'static str, Vec<u8>)> {
    NAMES.iter().map(|name| (*name, shipped_module(name).unwrap()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_near_is_kept_of_an_error_that_lists_many_keys() {
        let keys = "`a-key-with-a-long-name`, ".repeat(50);
        let word = "x".repeat(600);
        let message =
            format!("found the unknown key `{word}`, expected one of {keys}; `quota` is near");
        let found = refused("config", &[types::Mistake { path: "limits[0]".into(), message }]);
        let [error] = found.as_slice() else { panic!("{found:?}") };
        assert!(error.in_key && error.found.starts_with("the unknown key `xxx"), "{error}");
        assert!(error.expected.starts_with("one of `a-key"), "{error}");
        assert!(error.expected.ends_with("; `quota` is near"), "{error}");
        assert!(error.to_string().chars().count() < 2 * ERROR_CHARS_MAX + 60, "{error}");
    }
}
