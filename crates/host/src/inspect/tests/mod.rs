//! Documents and streams in pieces of any size are read as if they were whole: values that are
//! found are compared with those of `serde_json`.

mod documents;
mod streams;

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::Value;

use super::*;

fn pointer(text: &str) -> Pointer {
    Pointer::parse(text).unwrap()
}

/// Any document, with names that pointers of [`pointers`] are likely to lead to.
fn document() -> impl Strategy<Value = Value> {
    let text =
        prop_oneof!["[a-c]{0,2}", any::<String>(), Just("\u{1F600}\"\\/\u{8}\u{1}é".to_owned())];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0_u64..1_000_000).prop_map(Value::from),
        // serde_json reads these back exactly.
        any::<i32>().prop_map(|eighths| Value::from(f64::from(eighths) / 8.0)),
        text.clone().prop_map(Value::from),
    ];
    let name = prop_oneof![
        4 => "[a-c]",
        1 => Just("0".to_owned()),
        1 => Just("~/".to_owned()),
        1 => text
    ];
    leaf.prop_recursive(5, 48, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((name.clone(), inner), 0..5)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn pointers() -> impl Strategy<Value = Vec<String>> {
    let token = prop_oneof![6 => "[a-c]", 2 => "[0-3]", 2 => Just("*".to_owned()), 1 => Just("~0~1".to_owned())];
    let pointer = prop::collection::vec(token, 0..4)
        .prop_map(|tokens| tokens.iter().map(|token| format!("/{token}")).collect::<String>());
    prop::collection::vec(pointer, 1..5)
}

/// The values that a pointer leads to, found in the whole document.
fn found<'v>(value: &'v Value, tokens: &[String]) -> Vec<&'v Value> {
    let Some((token, rest)) = tokens.split_first() else { return vec![value] };
    match value {
        Value::Array(items) if token == "*" => {
            items.iter().flat_map(|item| found(item, rest)).collect()
        }
        Value::Object(_) if token == "*" => Vec::new(),
        _ => {
            let escaped = token.replace('~', "~0").replace('/', "~1");
            let child = value.pointer(&format!("/{escaped}"));
            child.map_or_else(Vec::new, |child| found(child, rest))
        }
    }
}

/// The JSON of a writer that escapes all that it may, with white space.
fn escaped(value: &Value) -> String {
    match value {
        Value::String(text) => {
            let units = text.encode_utf16().map(|unit| format!("\\u{unit:04x}"));
            format!("\"{}\"", units.collect::<String>())
        }
        Value::Array(items) => {
            format!("[ {} ]", items.iter().map(escaped).collect::<Vec<_>>().join(" ,\n"))
        }
        Value::Object(members) => {
            let members = members
                .iter()
                .map(|(name, value)| {
                    format!("{} :\t{}", escaped(&Value::from(name.as_str())), escaped(value))
                })
                .collect::<Vec<_>>();
            format!("\r\n{{ {} }}", members.join(","))
        }
        other => other.to_string(),
    }
}

/// Splits `bytes` into pieces at the given places.
fn pieces<'b>(bytes: &'b [u8], cuts: &[prop::sample::Index]) -> Vec<&'b [u8]> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    cuts.sort_unstable();
    let mut pieces = Vec::new();
    let mut begin = 0;
    for cut in cuts.into_iter().chain([bytes.len()]) {
        pieces.push(&bytes[begin..cut]);
        begin = cut;
    }
    pieces
}

fn meters(list: &[(&str, Gather)]) -> Arc<Meters> {
    let list = list.iter().map(|(text, gather)| Meter { pointer: pointer(text), gather: *gather });
    Arc::new(Meters::new(list.collect()))
}

/// What meters read of a body in these pieces.
fn read<'b>(
    meters: &Arc<Meters>,
    content_type: &str,
    coding: &str,
    pieces: impl IntoIterator<Item = &'b [u8]>,
) -> Vec<Option<u64>> {
    let mut reading = Reading::new(meters, content_type.as_bytes(), coding);
    pieces.into_iter().for_each(|piece| reading.feed(piece));
    reading.finish();
    reading.values().map(|(_, value)| value).collect()
}
