//! What a route does beside deciding and forwarding, checked when the house is built. A route without any has two empty pointers.

use http::header::HOST;
use http::request::Parts;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, HeaderValue, Uri};

use super::refusal::Refusal;
use super::rewrite::Rewriting;
use super::rules::Rules;
use super::settings::Extras;
use super::target::Target;
use super::trie::Pattern;
use crate::telemetry::Mistake;

/// What is done to a request before the upstream gets it.
#[derive(Debug)]
pub(super) struct RequestExtras {
    rewriting: Option<Rewriting>,
    host: Option<HeaderValue>,
    headers: Option<Rules>,
}

/// What is done to a reply.
#[derive(Debug)]
pub(super) struct ReplyExtras {
    headers: Option<Rules>,
}

impl RequestExtras {
    /// The upstream's path, where it is not the client's.
    ///
    /// # Errors
    /// 414 where it would be too long.
    pub(super) fn path_and_query(&self, target: &Target, parameters: &[&str]) -> Result<Option<PathAndQuery>, Refusal> {
        self.rewriting.as_ref().map(|rewriting| rewriting.apply(&target.path_and_query, parameters)).transpose()
    }

    /// After what Weir itself says of the client, which a route may change too, and before the policy's fields.
    pub(super) fn apply(&self, head: &mut Parts, path_and_query: Option<PathAndQuery>) {
        if let Some(path_and_query) = path_and_query {
            head.uri = Uri::from(path_and_query);
        }
        if let Some(host) = &self.host {
            head.headers.insert(HOST, host.clone());
        }
        if let Some(headers) = &self.headers {
            headers.apply(&mut head.headers);
        }
    }
}

impl ReplyExtras {
    /// To a reply's own fields, before Weir adds its own.
    pub(super) fn apply(&self, headers: &mut HeaderMap) {
        if let Some(rules) = &self.headers {
            rules.apply(headers);
        }
    }
}

/// Both, for the route at the setting `at` whose path is `pattern`. What can't stand is added to `mistakes`.
pub(super) fn build(
    extras: &Extras,
    pattern: &Pattern,
    at: &str,
    mistakes: &mut Vec<Mistake>,
) -> (Option<Box<RequestExtras>>, Option<Box<ReplyExtras>>) {
    let mut rules = |written, name: &str| {
        Rules::build(written, &format!("{at}.{name}")).unwrap_or_else(|found| {
            mistakes.extend(found);
            None
        })
    };
    let headers = rules(&extras.request_headers, "request_headers");
    let reply_headers = rules(&extras.response_headers, "response_headers");
    let rewriting =
        extras.rewrite.as_ref().and_then(|written| kept(Rewriting::build(written, pattern, &format!("{at}.rewrite")), mistakes));
    let host = extras.upstream_host.as_ref().and_then(|written| kept(host(written, at), mistakes));
    let request = rewriting.is_some() || host.is_some() || headers.is_some();
    let request = request.then(|| Box::new(RequestExtras { rewriting, host, headers }));
    let reply = reply_headers.is_some().then(|| Box::new(ReplyExtras { headers: reply_headers }));
    (request, reply)
}

fn kept<T>(built: Result<T, Mistake>, mistakes: &mut Vec<Mistake>) -> Option<T> {
    built.map_err(|mistake| mistakes.push(mistake)).ok()
}

fn host(written: &str, at: &str) -> Result<HeaderValue, Mistake> {
    let fits = written.parse::<Authority>().is_ok_and(|authority| authority.as_str() == written && !written.contains('@'));
    HeaderValue::from_str(written).ok().filter(|_| fits).ok_or_else(|| {
        Mistake::new(
            format!("{at}.upstream_host"),
            format!("{written:?}"),
            "a host, perhaps with a port: \"api.internal\" or \"10.0.0.1:8080\"",
        )
    })
}
