//! Routes that no request reaches, as doubts.

use super::super::build::ConfigBuild;
use super::{SHOWN_MAX, names};
use crate::config::setting;
use crate::proxy::{Snapshot, Unreached, UnreachedRoute};
use crate::telemetry::{Doubt, DoubtKind};

pub(super) fn doubts(built: &ConfigBuild, snapshot: &Snapshot) -> Vec<Doubt> {
    snapshot.unreached().into_iter().map(|unreached| doubt(built, unreached)).collect()
}

fn doubt(built: &ConfigBuild, UnreachedRoute { route, why }: UnreachedRoute) -> Doubt {
    let name_of = |index: usize| built.routes.get(index).map_or("", |route| route.name.as_str());
    let (at, name) = (setting::route_path(route), names(&[name_of(route)]));
    let others = |by: &[usize]| {
        let all: Vec<&str> = by.iter().map(|index| name_of(*index)).collect();
        names(&all)
    };
    let beside = |doubt: Doubt, by: &[usize]| {
        by.iter().take(SHOWN_MAX).fold(doubt, |doubt, index| {
            doubt.beside(setting::route_path(*index), "this route is more specific")
        })
    };
    match why {
        Unreached::Hidden(by) => {
            let text = format!(
                "no request can reach the route {name}: {} match all that it would",
                others(&by)
            );
            beside(Doubt::new(DoubtKind::HiddenRoute, at, text), &by)
                .remedy("remove it, or narrow the routes that hide it")
        }
        Unreached::OnlyUnusualMethods(by) => {
            let text = format!(
                "the route {name} gets only requests with unusual methods, such as PROPFIND: {} \
                 take all others",
                others(&by)
            );
            let remedy = "remove it, or write the `methods` that it is for";
            beside(Doubt::new(DoubtKind::UnusualMethods, at, text), &by).remedy(remedy)
        }
        Unreached::TooLong { bytes } => {
            let text = format!(
                "no request can reach the route {name}: its path has {bytes} bytes at least, and \
                 longer targets than `uri_bytes` are refused"
            );
            Doubt::new(DoubtKind::HiddenRoute, at, text)
                .beside(setting::URI_BYTES, "this is the maximum")
                .remedy("raise server.limits.uri_bytes")
        }
    }
}
