//! Routes that no request reaches, and routes that fewer reach than was meant, as lints.

use super::super::build::ConfigBuild;
use super::{SHOWN_MAX, names};
use crate::config::setting;
use crate::proxy::{Snapshot, UnreachedCause, UnreachedRoute};
use crate::telemetry::{Lint, LintKind};

pub(super) fn lints(built: &ConfigBuild, snapshot: &Snapshot) -> Vec<Lint> {
    let unreached = snapshot.unreached().into_iter().map(|unreached| lint(built, unreached));
    // Where a slash at the end makes another path, it was written on purpose.
    let single = if snapshot.ignores_trailing_slash() { single_paths(built) } else { Vec::new() };
    unreached.chain(single).collect()
}

/// Routes such as `/api/`, which in nginx and others are for all paths below it.
fn single_paths(built: &ConfigBuild) -> Vec<Lint> {
    let single = built.routes.iter().enumerate().filter_map(|(index, route)| {
        let bare = route.path.strip_suffix('/')?;
        // Beside others, `/` is a page of its own.
        if bare.is_empty() && built.routes.len() > 1 {
            return None;
        }
        let below = format!("{bare}/*");
        // Who has a route for these as well knows the difference.
        if built.routes.iter().any(|other| other.path == below && other.host == route.host) {
            return None;
        }
        let text = format!(
            "the route {} is for {} and not for what is below it",
            names(&[&route.name]),
            names(&[&route.path])
        );
        let remedy = match bare {
            "" => format!("write `{below}`"),
            bare => format!("write `{below}`, or `{bare}` if that one path is meant"),
        };
        Some(Lint::new(LintKind::SinglePath, setting::route_path(index), text).remedy(remedy))
    });
    single.collect()
}

fn lint(built: &ConfigBuild, UnreachedRoute { route, why }: UnreachedRoute) -> Lint {
    let name_of = |index: usize| built.routes.get(index).map_or("", |route| route.name.as_str());
    let (at, name) = (setting::route_path(route), names(&[name_of(route)]));
    let others = |by: &[usize]| {
        let all: Vec<&str> = by.iter().map(|index| name_of(*index)).collect();
        names(&all)
    };
    let beside = |lint: Lint, by: &[usize]| {
        by.iter().take(SHOWN_MAX).fold(lint, |lint, index| {
            lint.beside(setting::route_path(*index), "this route is more specific")
        })
    };
    match why {
        UnreachedCause::Hidden(by) => {
            let text = format!(
                "no request can reach the route {name}: {} match everything that it would",
                others(&by)
            );
            beside(Lint::new(LintKind::HiddenRoute, at, text), &by)
                .remedy("remove it, or narrow the routes that hide it")
        }
        UnreachedCause::OnlyUnusualMethods(by) => {
            let text = format!(
                "the route {name} gets only requests with unusual methods, such as PROPFIND: {} \
                 take all others",
                others(&by)
            );
            let remedy = "remove it, or write the `methods` that it is for";
            beside(Lint::new(LintKind::UnusualMethods, at, text), &by).remedy(remedy)
        }
        UnreachedCause::TooLong { bytes } => {
            let text = format!(
                "no request can reach the route {name}: its path has at least {bytes} bytes, and \
                 longer targets than `uri_bytes` are refused"
            );
            Lint::new(LintKind::HiddenRoute, at, text)
                .beside(setting::URI_BYTES, "this is the maximum")
                .remedy("raise server.limits.uri_bytes")
        }
    }
}
