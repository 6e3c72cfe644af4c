//! What a route changes in its requests, checked when the snapshot is built. A route that changes
//! nothing has an empty pointer.

use http::uri::Authority;
use http::{HeaderName, HeaderValue};

use super::rules::Rules;
use crate::proxy::receive::target::Target;
use crate::proxy::refusal::Refusal;
use crate::proxy::route::rewrite::PathRewrite;
use crate::proxy::route::trie::Pattern;
use crate::proxy::settings::{Extras, HeaderRules};
use crate::telemetry::SettingError;
use crate::wire::{Known, Request};

/// Changes to a request before the upstream gets it.
#[derive(Debug)]
pub(in crate::proxy) struct RequestExtras {
    rewriting: Option<PathRewrite>,
    host: Option<HeaderValue>,
    headers: Option<Rules>,
}

impl RequestExtras {
    /// Checks the settings for requests of the route at the setting `at`, whose path is `pattern`.
    /// Errors are added to `errors`.
    pub(in crate::proxy) fn build(
        extras: &Extras,
        pattern: &Pattern,
        at: &str,
        errors: &mut Vec<SettingError>,
    ) -> Option<Box<Self>> {
        let headers = rules(&extras.request_headers, &format!("{at}.request_headers"), errors);
        let mut kept =
            |built: Result<_, SettingError>| built.map_err(|error| errors.push(error)).ok();
        let rewriting = extras.rewrite.as_ref().and_then(|written| {
            kept(PathRewrite::build(written, pattern, &format!("{at}.rewrite")))
        });
        let host = extras
            .upstream_host
            .as_ref()
            .and_then(|written| host(written, at).map_err(|error| errors.push(error)).ok());
        (rewriting.is_some() || host.is_some() || headers.is_some())
            .then(|| Box::new(Self { rewriting, host, headers }))
    }

    /// How the upstream's path is made, if it differs from the client's.
    pub(in crate::proxy) fn rewriting(&self) -> Option<&PathRewrite> {
        self.rewriting.as_ref()
    }

    /// The upstream's path, if it differs from the client's.
    ///
    /// # Errors
    /// 414 if it would be too long.
    pub(in crate::proxy) fn path_and_query(
        &self,
        target: Target<'_>,
        parameters: &[&str],
    ) -> Result<Option<String>, Refusal> {
        self.rewriting
            .as_ref()
            .map(|rewriting| rewriting.apply((target.path, target.paths), target.query, parameters))
            .transpose()
    }

    /// Applied after Weir's own forwarding fields, which a route may change too, and before the
    /// policy's fields. `ambiguous`: fields may have names that an upstream reads as others.
    pub(in crate::proxy) fn apply(
        &self,
        request: &mut Request,
        path_and_query: Option<&str>,
        ambiguous: bool,
    ) {
        if let Some(path_and_query) = path_and_query {
            request.set_target(path_and_query);
        }
        if let Some(host) = &self.host {
            request.fields.set(Known::Host, host);
        }
        if let Some(headers) = &self.headers {
            if ambiguous {
                headers.remove_ambiguous(&mut request.fields);
            }
            headers.apply(&mut request.fields);
        }
    }

    /// The fields that the route changes.
    pub(in crate::proxy) fn changed(&self) -> impl Iterator<Item = &HeaderName> {
        self.headers.iter().flat_map(Rules::names)
    }
}

/// Checks the changes to header fields under the setting `at`. Errors are added to `errors`.
pub(in crate::proxy) fn rules(
    written: &HeaderRules,
    at: &str,
    errors: &mut Vec<SettingError>,
) -> Option<Rules> {
    Rules::build(written, at).unwrap_or_else(|found| {
        errors.extend(found);
        None
    })
}

fn host(written: &str, at: &str) -> Result<HeaderValue, SettingError> {
    let fits = written
        .parse::<Authority>()
        .is_ok_and(|authority| authority.as_str() == written && !written.contains('@'));
    HeaderValue::from_str(written).ok().filter(|_| fits).ok_or_else(|| {
        SettingError::new(
            format!("{at}.upstream_host"),
            format!("{written:?}"),
            "a host, perhaps with a port: \"api.internal\" or \"10.0.0.1:8080\"",
        )
    })
}
