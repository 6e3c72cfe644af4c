//! Which trailers of a request its upstream gets. Knows no connection.
//!
//! Several servers merge trailers into the header fields (uvicorn with httptools, PHP's own). A
//! field that was decided on, removed or set in the head must not come again behind the body. So a
//! trailer is forwarded only if the head announced it (`Trailer`), and neither the proxy, the route
//! nor the policy has anything to do with a field that an upstream may read as the same. Everything
//! else is dropped.

use http::HeaderName;
use smallvec::SmallVec;

use super::bodies;
use crate::proxy::decide::facts;
use crate::proxy::decide::policy_fields::PolicyFields;
use crate::proxy::receive::hop;
use crate::spelling;
use crate::wire::{Fields, Known, TrailerFilter};

/// Trailers that one request may announce, at most. Further ones are dropped.
const ANNOUNCED_MAX: usize = 64;

/// The fields that a route's rules change and its policy reads.
#[derive(Debug, Default)]
pub(in crate::proxy) struct ChangedFields(Box<[HeaderName]>);

impl ChangedFields {
    /// The fields of a route whose rules change `changed`, and whose policy asks for `facts`.
    pub(in crate::proxy) fn of<'a>(
        changed: impl Iterator<Item = &'a HeaderName>,
        facts: impl Iterator<Item = &'a str>,
    ) -> Self {
        let read = facts.filter_map(facts::field_of);
        Self(changed.cloned().chain(read).collect())
    }

    fn has(&self, name: &[u8]) -> bool {
        self.0.iter().any(|touched| spelling::is_same(touched.as_str().as_bytes(), name))
    }
}

/// Which trailers are kept that not every request keeps.
#[derive(Clone, Copy, Debug)]
pub(in crate::proxy) struct Kept {
    /// Those with names that an upstream may read as others.
    pub(in crate::proxy) ambiguous: bool,
    /// Digests of the content.
    pub(in crate::proxy) digests: bool,
}

/// The filter for a request's trailers. `fields` are the request's, as they are sent: what they
/// announce is reduced to what is forwarded.
pub(in crate::proxy) fn filter(
    fields: &mut Fields,
    touched: &ChangedFields,
    policy: &PolicyFields,
    kept: Kept,
) -> TrailerFilter {
    if !fields.has(Known::Trailer) {
        return TrailerFilter::Only(Box::default());
    }
    let set = |name: &[u8]| {
        policy.iter().any(|(set, _)| spelling::is_same(set.as_str().as_bytes(), name))
    };
    let mut allowed: SmallVec<[HeaderName; 4]> = SmallVec::new();
    for name in fields.get_all(Known::Trailer).flat_map(hop::tokens).take(ANNOUNCED_MAX) {
        let passes = hop::may_be_trailer(name)
            && (kept.ambiguous || !spelling::is_ambiguous(name))
            && (kept.digests || !bodies::is_digest(name))
            && !touched.has(name)
            && !set(name);
        if let Some(name) = HeaderName::from_bytes(name).ok().filter(|_| passes)
            && !allowed.contains(&name)
        {
            allowed.push(name);
        }
    }
    fields.remove(Known::Trailer);
    if !allowed.is_empty() {
        fields.append_with(Known::Trailer, |out| {
            for (index, name) in allowed.iter().enumerate() {
                out.extend_from_slice(if index == 0 { b"" } else { b", " });
                out.extend_from_slice(name.as_str().as_bytes());
            }
        });
    }
    TrailerFilter::Only(allowed.into_vec().into_boxed_slice())
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue};

    use super::*;

    fn sent(announced: &[&str], ambiguous_kept: bool) -> (Option<String>, Vec<String>) {
        let changed = [HeaderName::from_static("x-user")];
        let facts = ["header.x-api-key", "path", "bearer"];
        let touched = ChangedFields::of(changed.iter(), facts.into_iter());
        let policy = vec![(HeaderName::from_static("x-plan"), HeaderValue::from_static("free"))];
        let mut fields = Fields::new();
        for line in announced {
            fields.append(Known::Trailer, line);
        }
        let kept = Kept { ambiguous: ambiguous_kept, digests: true };
        let filter = filter(&mut fields, &touched, &policy, kept);
        let mut trailers = HeaderMap::new();
        let all =
            ["x-sum", "x-other", "x-user", "x_user", "x-api-key", "x-plan", "x.plan", "x_sum"];
        for name in all.into_iter().chain(["authorization", "cookie", "x-forwarded-for", "host"]) {
            trailers.insert(name, HeaderValue::from_static("1"));
        }
        filter.apply(&mut trailers);
        let mut names: Vec<String> = trailers.keys().map(|name| name.to_string()).collect();
        names.sort();
        let announced = fields.get(Known::Trailer);
        (announced.map(|text| String::from_utf8(text.to_vec()).unwrap()), names)
    }

    #[test]
    fn unannounced_trailers_are_dropped() {
        assert_eq!(sent(&[], false), (None, vec![]));
        assert_eq!(sent(&["X-Sum"], false), (Some("x-sum".into()), vec!["x-sum".into()]));
    }

    #[test]
    fn digests_of_a_body_that_was_edited_are_dropped() {
        let announced = |digests: bool| {
            let mut fields = Fields::new();
            fields.append(Known::Trailer, "content-digest, x-sum, Content_MD5");
            let kept = Kept { ambiguous: true, digests };
            let none = (ChangedFields::default(), PolicyFields::new());
            let _filter = filter(&mut fields, &none.0, &none.1, kept);
            String::from_utf8(fields.get(Known::Trailer).unwrap().to_vec()).unwrap()
        };
        assert_eq!(announced(true), "content-digest, x-sum, content_md5");
        assert_eq!(announced(false), "x-sum");
    }

    #[test]
    fn trailers_that_the_proxy_the_route_or_the_policy_changes_are_dropped() {
        let everything = "x-sum, x-user, x_user, x-api-key, x-plan, x.plan, authorization, cookie, \
                          x-forwarded-for, host, x_sum";
        assert_eq!(sent(&[everything], false), (Some("x-sum".into()), vec!["x-sum".into()]));
        assert_eq!(
            sent(&["x-user", everything], true),
            (Some("x-sum, x_sum".into()), vec!["x-sum".into(), "x_sum".into()])
        );
        assert_eq!(sent(&["authorization", "x-plan"], false), (None, vec![]));
    }
}
