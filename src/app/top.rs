//! Tells an operator which keys use most and which are refused most: `/top`.

use serde_json::{Value, json};

use super::Instance;
use crate::admin::TopQuery;
use crate::clock;
use crate::insight::{TopKey, TopOfLimit};
use crate::limit::KeyDigest;

/// The keys that use most, by limit, as JSON.
pub(super) fn top(running: &Instance, query: &TopQuery) -> String {
    let show_keys = running.current.load().built.insight.show_keys;
    let top = running.insight.top(clock::monotonic(), query.limit.as_deref(), query.count);
    let limit = |of: &TopOfLimit| {
        json!({
            "policy": of.name.policy,
            "route": of.name.route,
            "limit": of.name.limit,
            "units": of.used_total,
            "used": keys(&of.used, "units", show_keys),
            "refusals": of.refused_total,
            "refused": keys(&of.refused, "refusals", show_keys),
        })
    };
    json!({
        "since_s": top.since.as_secs(),
        "limits": top.limits.iter().map(limit).collect::<Vec<_>>(),
        "left_out": top.left_out,
    })
    .to_string()
}

/// Each key with its number under the name `what`.
fn keys(keys: &[TopKey], what: &str, show_keys: bool) -> Vec<Value> {
    let one = |of: &TopKey| {
        json!({
            "key": show_keys.then_some(&of.text),
            "digest": KeyDigest::of_parts(of.key).to_string(),
            what: of.units,
            "error": of.error,
        })
    };
    keys.iter().map(one).collect()
}
