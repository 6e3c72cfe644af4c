//! The dynamic metadata of an answer to a call of Envoy's rate limit service: what a policy has the
//! caller told of descriptors that have room. Envoy keeps it by the name of its filter, for access
//! lines and for other filters. Its form is envoyproxy/ratelimit's.

use serde_json::{Map, Value, json};

use crate::proxy::decide::descriptors::Share;
use crate::proxy::receive::call::Call;
use crate::proxy::receive::call::messages::{Code, DescriptorStatus};

/// What the caller is told: the domain, the entries of each descriptor, and the members of what is
/// said of those with room. `None` if nothing is said of any of them.
pub(super) fn of(
    call: &Call,
    shares: &[Share],
    statuses: &[DescriptorStatus],
) -> Option<Map<String, Value>> {
    if shares.iter().all(|share| share.metadata.is_none()) {
        return None;
    }
    let mut said = Map::new();
    for (share, _) in shares.iter().zip(statuses).filter(|(_, status)| status.code() == Code::Ok) {
        let object = share.metadata.as_deref().and_then(|text| serde_json::from_str(text).ok());
        merge(&mut said, object.unwrap_or_default());
    }
    let descriptors = call.descriptors.iter().map(|descriptor| {
        let entries = descriptor.entries.iter().map(|(key, value)| format!("{key}={value}"));
        json!({ "entries": entries.collect::<Vec<_>>() })
    });
    let mut out = Map::new();
    out.insert("domain".to_owned(), call.domain.as_str().into());
    out.insert("descriptors".to_owned(), descriptors.collect());
    if !said.is_empty() {
        out.insert("metadata".to_owned(), said.into());
    }
    Some(out)
}

/// Adds members. Of two that are no tables, the first stays.
fn merge(all: &mut Map<String, Value>, more: Map<String, Value>) {
    for (name, value) in more {
        match (all.get_mut(&name), value) {
            (Some(Value::Object(known)), Value::Object(value)) => merge(known, value),
            (Some(_), _) => {}
            (None, value) => {
                all.insert(name, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        match value {
            Value::Object(object) => object,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn tables_are_merged_and_of_other_members_the_first_stays() {
        let mut all = object(json!({ "a": { "x": 1 }, "b": 1, "c": [1] }));
        merge(
            &mut all,
            object(json!({ "a": { "x": 2, "y": 2 }, "b": { "z": 2 }, "c": [2], "d": 2 })),
        );
        let expected = json!({ "a": { "x": 1, "y": 2 }, "b": 1, "c": [1], "d": 2 });
        assert_eq!(Value::from(all), expected);
    }
}
