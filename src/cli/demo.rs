//! `weir demo`: the proxy with its `proxy.toml`, and an upstream where `proxy.toml` expects one.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::process::ExitCode;

use super::{failed, finish, wrong_config};
use crate::app::{self, App, DemoUpstream, InheritedSockets};
use crate::cli::print::{errln, outln};
use crate::config::Config;
use crate::policy::Module;

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
    let path_to_try = path_to_try(&config);
    let (app, signals) = match App::start_inheriting(config, InheritedSockets::default()) {
        Ok(started) => started,
        Err(error) => return failed("demo", &error),
    };
    print_welcome(&app, (path, path_to_try.as_deref()), &upstreams);
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

/// A path where a plain GET is counted by a policy for addresses.
fn path_to_try(config: &Config) -> Option<String> {
    let by_address = |name: &str| {
        let mut all = config.policies.iter().filter(|policy| policy.name == name);
        all.any(|policy| matches!(&policy.module, Module::Shipped(own) if own == "client-ip"))
    };
    let route = config.routes.iter().find(|route| {
        let is_plain = route.host.is_none() && !route.path.is_empty() && !route.path.contains('{');
        let takes_get = route.methods.is_empty() || route.methods.iter().any(|it| it == "GET");
        is_plain && takes_get && route.policy.as_deref().is_some_and(by_address)
    });
    route.map(|route| route.path.trim_end_matches('*').to_owned())
}

fn print_welcome(
    app: &App,
    (path, path_to_try): (&Path, Option<&str>),
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
        match path_to_try {
            Some(path) => {
                outln!(
                    "  In another terminal: 200s with RateLimit fields, then a 429 that says when to come back."
                );
                outln!();
                outln!(
                    "    for i in $(seq 30); do curl -si http://{address}{path} | grep -iE '^(HTTP|RateLimit|Retry)'; echo; done"
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
