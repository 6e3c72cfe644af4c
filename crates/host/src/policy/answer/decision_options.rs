//! The options of a decision: how much its request matters, whose it is, how a refusal by its
//! limits is answered, and what it means for other descriptors of a call.

use serde_json::Value;

use super::super::decision::Joining;
use super::{Pairs, bounded, is_media_type, is_name, second, shortened};
use crate::plan::{KEY_BYTES_MAX, LIMITS_MAX, PRIORITY_MAX};

/// Maximum size of the body of a refusal: an error for each message of a batch.
const REFUSAL_BYTES_MAX: usize = 64 << 10;

/// Maximum size of what the caller is told of a descriptor, and how deep it may be nested: what
/// reads messages of protobuf stops at a depth of 100, and each level here is three of those.
const METADATA_BYTES_MAX: usize = 4 << 10;
const METADATA_DEPTH_MAX: usize = 16;

/// Whether a text is an object that callers can be sent.
fn is_metadata(text: &str) -> bool {
    fn fits(value: &Value, depth: usize) -> bool {
        match value {
            Value::Object(members) if depth > 0 => {
                members.values().all(|member| fits(member, depth - 1))
            }
            Value::Array(items) if depth > 0 => items.iter().all(|item| fits(item, depth - 1)),
            Value::Object(_) | Value::Array(_) => false,
            _ => true,
        }
    }
    let read = serde_json::from_str::<Value>(text);
    read.is_ok_and(|value| value.is_object() && fits(&value, METADATA_DEPTH_MAX))
}

/// How a refusal by a decision's limits is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusalReply {
    /// 200, or 400 to 599. `None`: that of all refusals by limits.
    pub status: Option<u16>,
    /// The body's media type: a field value.
    pub media_type: String,
    /// The body, with placeholders for what is known only then.
    pub body: String,
}

/// What the options of a decision say.
pub(super) struct DecisionOptions {
    pub(super) priority: Option<u8>,
    pub(super) fair_key: Option<String>,
    pub(super) refusal: Option<RefusalReply>,
    pub(super) joining: Joining,
}

/// Reads the options of a decision.
pub(super) fn read(options: Pairs) -> Result<DecisionOptions, String> {
    let (mut priority, mut fair_key) = (None, None);
    let (mut status, mut media_type, mut body) = (None, None, None);
    let mut joining = Joining::default();
    let wrong = |name: &str, value: &str, expected: &str| {
        format!("decision.options.{name}: found {:?}, expected {expected}", shortened(value))
    };
    // All are known names, so they are few.
    let mut seen: Vec<String> = Vec::new();
    for (name, value) in options {
        if seen.contains(&name) {
            return Err(format!("decision.options: {}", second(&name)));
        }
        match name.as_str() {
            "priority" => {
                let number = value.parse().ok().filter(|priority| *priority <= PRIORITY_MAX);
                let expected = || wrong(&name, &value, &format!("0 to {PRIORITY_MAX}"));
                priority = Some(number.ok_or_else(expected)?);
            }
            "fair-key" => {
                bounded("decision.options.fair-key", Some(&value), KEY_BYTES_MAX)?;
                fair_key = Some(value);
            }
            "refusal-status" => {
                let known = |status: &u16| *status == 200 || (400..=599).contains(status);
                let number = value.parse().ok().filter(known);
                status = Some(number.ok_or_else(|| wrong(&name, &value, "200, or 400 to 599"))?);
            }
            "refusal-type" if is_media_type(&value) => media_type = Some(value),
            "refusal-type" => return Err(wrong(&name, &value, "a field value")),
            "refusal-body" => {
                bounded("decision.options.refusal-body", Some(&value), REFUSAL_BYTES_MAX)?;
                body = Some(value);
            }
            "replaces" => {
                let names = value.split(',').map(str::to_owned).collect::<Vec<_>>();
                if names.len() > LIMITS_MAX || !names.iter().all(|name| is_name(name)) {
                    let expected =
                        format!("1 to {LIMITS_MAX} names of limits, with commas between");
                    return Err(wrong(&name, &value, &expected));
                }
                joining.replaces = names;
            }
            "quota-mode" if value == "true" => joining.quota_mode = true,
            "quota-mode" => return Err(wrong(&name, &value, "true")),
            "metadata" => {
                bounded("decision.options.metadata", Some(&value), METADATA_BYTES_MAX)?;
                if !is_metadata(&value) {
                    let expected =
                        format!("a JSON object, nested at most {METADATA_DEPTH_MAX} deep");
                    return Err(wrong(&name, &value, &expected));
                }
                joining.metadata = Some(value.into());
            }
            other => {
                return Err(format!(
                    "decision.options: found {:?}, expected priority, fair-key, refusal-status, \
                     refusal-type, refusal-body, replaces, quota-mode or metadata",
                    shortened(other)
                ));
            }
        }
        seen.push(name);
    }
    let refusal = match (media_type, body) {
        (Some(media_type), Some(body)) => Some(RefusalReply { status, media_type, body }),
        (None, None) if status.is_none() => None,
        _ => {
            return Err("decision.options: found a part of a refusal, expected refusal-type and \
                        refusal-body"
                .into());
        }
    };
    Ok(DecisionOptions { priority, fair_key, refusal, joining })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(pairs: &[(&str, &str)]) -> Result<DecisionOptions, String> {
        read(pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect())
    }

    #[test]
    fn a_descriptor_may_replace_limits_of_others_or_suffice() {
        let joining =
            options(&[("replaces", "read,write"), ("quota-mode", "true")]).unwrap().joining;
        let replaces = vec!["read".into(), "write".into()];
        assert_eq!(joining, Joining { replaces, quota_mode: true, metadata: None });
    }

    #[test]
    fn metadata_is_an_object_of_a_bounded_size_and_depth() {
        let nested = |depth: usize| format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth));
        let long = format!("{{\"a\":\"{}\"}}", "x".repeat(METADATA_BYTES_MAX));
        for (text, is_read) in [
            ("{}", true),
            (r#"{"tier": "gold", "list": [1, null, true]}"#, true),
            (&nested(METADATA_DEPTH_MAX), true),
            (&nested(METADATA_DEPTH_MAX + 1), false),
            ("[1]", false),
            ("1", false),
            ("{", false),
            (&long, false),
        ] {
            let joining = options(&[("metadata", text)]).map(|read| read.joining);
            let found = joining.ok().and_then(|joining| joining.metadata);
            assert_eq!(found.as_deref(), is_read.then_some(text));
        }
    }

    #[test]
    fn a_refusal_has_a_type_and_a_body_and_perhaps_a_status() {
        let plain = [("refusal-type", "text/plain"), ("refusal-body", "no")];
        let reply = options(&plain).unwrap().refusal.unwrap();
        let (media_type, body) = ("text/plain".into(), "no".into());
        assert_eq!(reply, RefusalReply { status: None, media_type, body });
        let with = |status: &'static str| [&plain[..], &[("refusal-status", status)]].concat();
        for (status, known) in [("200", true), ("599", true), ("204", false), ("x", false)] {
            assert_eq!(options(&with(status)).is_ok(), known, "{status}");
        }
        assert!(options(&[]).unwrap().refusal.is_none());
        let long = "x".repeat(REFUSAL_BYTES_MAX + 1);
        for wrong in [
            &[("refusal-status", "200")][..],
            &plain[..1],
            &plain[1..],
            &[("refusal-type", "a\r\nb"), ("refusal-body", "no")],
            &[("refusal-type", "text/plain"), ("refusal-body", &long)],
            &[("refusal", "no")],
            &[("quota-mode", "false")],
            &[("replaces", "")],
            &[("replaces", "a,B")],
            &[("priority", "1"), ("fair-key", "a"), ("priority", "2")],
        ] {
            let Err(message) = options(wrong) else { panic!("{wrong:?}") };
            assert!(message.starts_with("decision.options"), "{message}");
        }
    }
}
