//! `weir demo`: the proxy with its `proxy.toml`, and an upstream where `proxy.toml` expects one.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::process::ExitCode;

use serde_json::Value;

use super::{failed, finish, wrong_config};
use crate::app::{self, App, DemoUpstream, InheritedSockets};
use crate::cli::print::{errln, outln};
use crate::config::Config;
use crate::plan::Algorithm;
use crate::policy::{self, DeclaredLimit, Module};

/// How many requests a second a loop of curl sends at least.
const LOOP_PER_S: u64 = 20;
/// The longest loop that is printed, in requests.
const LOOP_MAX: u64 = 1_000;
/// The loop that is printed where no limit would refuse any, in requests.
const LOOP_SHORT: u64 = 10;
/// Settings of a limit that may make it count other requests than these, or refuse none.
const COUNTS_SOME: [&str; 5] = ["when", "unless", "key", "cost", "shadow"];

pub(super) fn run(path: &Path) -> ExitCode {
    let config = match app::load_to_serve(path) {
        Ok(config) => config,
        Err(errors) => return wrong_config("demo", &errors),
    };
    app::start_log(&config);
    let mut upstreams = Vec::new();
    for (name, endpoint) in endpoints(&config) {
        let Some(address) = loopback(&endpoint) else {
            errln!(
                "weir demo: upstream {name} is at {endpoint}, which is not on this machine: it is expected to run already"
            );
            continue;
        };
        match DemoUpstream::start(address) {
            Ok(upstream) => upstreams.push((name, upstream)),
            Err(error) => {
                errln!("weir demo: can't serve the demo upstream {name} on {address}: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    let trial = Trial::of(&config);
    let (app, signals) = match App::start_inheriting(config, InheritedSockets::default()) {
        Ok(started) => started,
        Err(error) => return failed("demo", &error),
    };
    print_welcome(&app, (path, trial.as_ref()), &upstreams);
    let finished = app::serve(app, signals, Some(path));
    drop(upstreams);
    finish(finished)
}

fn endpoints(config: &Config) -> Vec<(String, String)> {
    config
        .upstreams
        .iter()
        .flat_map(|upstream| {
            upstream.endpoints.iter().map(|at| (upstream.name.clone(), at.url.clone()))
        })
        .collect()
}

/// The endpoint's address where it is on this machine.
fn loopback(endpoint: &str) -> Option<SocketAddr> {
    let authority = endpoint.strip_prefix("http://")?.trim_end_matches('/');
    let with_port = if authority.rsplit(']').next().is_some_and(|rest| rest.contains(':')) {
        authority.to_owned()
    } else {
        format!("{authority}:80")
    };
    with_port.to_socket_addrs().ok()?.find(|address| address.ip().is_loopback())
}

/// Requests to try the proxy with: plain GETs that a policy for addresses counts.
#[derive(Debug, PartialEq, Eq)]
struct Trial {
    path: String,
    /// How many of them it takes until one is refused; `None` if a loop of a shell would not get
    /// there.
    count: Option<u64>,
}

impl Trial {
    fn of(config: &Config) -> Option<Self> {
        let by_address = |name: &str| {
            let mut all = config.policies.iter().filter(|policy| policy.name == name);
            all.find(|it| matches!(&it.module, Module::Shipped(own) if own == "client-ip"))
        };
        config.routes.iter().find_map(|route| {
            let path = route.path.trim_end_matches('*').to_owned();
            let is_plain = route.host.is_none() && !path.is_empty() && !path.contains('{');
            let takes_get = route.methods.is_empty() || route.methods.iter().any(|it| it == "GET");
            let policy = by_address(route.policy.as_deref()?)?;
            (is_plain && takes_get).then(|| Self { path, count: count(policy) })
        })
    }
}

/// How many requests in a loop it takes until a limit refuses one.
fn count(policy: &policy::Settings) -> Option<u64> {
    let written: Value = serde_json::from_str(&policy.config_json).ok()?;
    let counts_all = |limit: &DeclaredLimit| {
        let table = limit.setting_in(&written).and_then(Value::as_object);
        table.is_some_and(|table| !COUNTS_SOME.iter().any(|key| table.contains_key(*key)))
    };
    let limits = policy.written_limits();
    let counts = limits.iter().filter(|limit| counts_all(limit)).filter_map(|limit| {
        let algorithm = &limit.algorithm;
        if algorithm.queues() || matches!(algorithm, Algorithm::Concurrency(_)) {
            return None;
        }
        // What comes back meanwhile is used up as well.
        let per_s = algorithm.rate().map_or(0, |rate| (rate.amount * 1_000).div_ceil(rate.per_ms));
        let used_up_per_s = LOOP_PER_S.checked_sub(per_s).filter(|left| *left > 0)?;
        let all = algorithm.capacity()?.checked_mul(LOOP_PER_S)?.div_ceil(used_up_per_s);
        // Ten at least, so that more than one is refused.
        (all + 1).checked_next_multiple_of(10)
    });
    counts.min().filter(|count| *count <= LOOP_MAX)
}

fn print_welcome(
    app: &App,
    (path, trial): (&Path, Option<&Trial>),
    upstreams: &[(String, DemoUpstream)],
) {
    outln!();
    outln!("  Weir runs with {}. Save that file, and it reloads.", path.display());
    outln!();
    for address in app.addresses() {
        outln!("    proxy     http://{address}/");
    }
    if let Some(admin) = app.admin_address() {
        let pages: Vec<&str> = app::page_paths().collect();
        outln!("    admin     http://{admin}{}", pages.join("   "));
    }
    for (name, upstream) in upstreams {
        outln!("    upstream  http://{}/   (\"{name}\", built in)", upstream.address());
    }
    if let Some(address) = app.addresses().first() {
        outln!();
        match trial {
            Some(Trial { path, count }) => {
                let then = match count {
                    Some(_) => "then a 429 that says when to come back.",
                    None => "whose limits are too large for a 429 here.",
                };
                outln!("  In another terminal: 200s with RateLimit fields, {then}");
                outln!();
                outln!(
                    "    for i in $(seq {}); do curl -si http://{address}{path} | grep -iE '^(HTTP|RateLimit|Retry)'; echo; done",
                    count.unwrap_or(LOOP_SHORT)
                );
            }
            None => {
                outln!("  The limits of this file need requests of their own: see its comments.")
            }
        }
        outln!();
        outln!("  Ctrl-C stops it.");
        outln!();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(limits: &str) -> Option<Trial> {
        let text = format!(
            "[policies.p]\nuse = \"client-ip\"\nconfig.limits = [{limits}]\n\
             [[routes]]\npath = \"/x/*\"\npolicy = \"p\"\nrespond = {{ status = 204 }}\n"
        );
        let config = Config::parse(&text, Path::new("proxy.toml"));
        Trial::of(&config.unwrap_or_else(|errors| panic!("{errors}")))
    }

    #[test]
    fn the_loop_is_long_enough_for_a_refusal() {
        let limit = |rest: &str| format!("{{ name = \"l\", {rest} }}");
        for (written, count) in [
            ("algorithm = \"gcra\", quota = 100, period = \"1m\"", Some(120)),
            ("algorithm = \"fixed_window\", quota = 20, period = \"1d\"", Some(30)),
            ("algorithm = \"gcra\", quota = 10, period = \"1s\", burst = 20", Some(50)),
            ("algorithm = \"quota\", quota = 9, calendar = \"month\"", Some(10)),
            // It gives back faster than a loop uses it up, it is too large, or counts others.
            ("algorithm = \"gcra\", quota = 100, period = \"1s\"", None),
            ("algorithm = \"fixed_window\", quota = 5000, period = \"1d\"", None),
            ("algorithm = \"concurrency\", quota = 1", None),
            ("algorithm = \"gcra\", quota = 1, period = \"1m\", shadow = true", None),
        ] {
            let expected = Some(Trial { path: "/x/".into(), count });
            assert_eq!(trial(&limit(written)), expected, "{written}");
        }
        let two = [("quota", 7), ("quota", 50)].map(|(key, amount)| {
            format!(
                "{{ name = \"l{amount}\", algorithm = \"gcra\", {key} = {amount}, period = \"1h\" }}"
            )
        });
        assert_eq!(trial(&two.join(", ")).and_then(|trial| trial.count), Some(10));
    }
}
