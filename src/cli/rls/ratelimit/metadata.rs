//! What ratelimit tells its caller of a descriptor that has room, as a value of TOML.

use serde_json::{Map, Value};

use crate::cli::rls::yaml::Node;
use crate::cli::written;

/// Maximum size of the table as JSON, and how deep it may be nested: those of the policy.
const BYTES_MAX: usize = 4 << 10;
const DEPTH_MAX: usize = 16;

/// A descriptor's `metadata`, on one line.
///
/// # Errors
/// What can't be said: the line, and a sentence.
pub(super) fn written(node: &Node) -> Result<String, (usize, String)> {
    if node.members().is_none() {
        return Err((node.line, format!("found {}, expected a table", node.found())));
    }
    let value = value(node, DEPTH_MAX)?;
    let bytes = value.to_string().len();
    if bytes > BYTES_MAX {
        let wrong = format!("found {bytes} bytes of JSON, expected at most {BYTES_MAX}");
        return Err((node.line, wrong));
    }
    Ok(written::value(&value))
}

fn value(node: &Node, depth: usize) -> Result<Value, (usize, String)> {
    let wrong = |message: String| (node.line, message);
    let is_nested = node.list().is_some() || node.members().is_some();
    if is_nested && depth == 0 {
        return Err(wrong(format!("found more than {DEPTH_MAX} levels of tables and lists")));
    }
    if let Some(items) = node.list() {
        let items = items.iter().map(|item| value(item, depth - 1));
        return items.collect::<Result<_, _>>().map(Value::Array);
    }
    if let Some(members) = node.members() {
        let mut table = Map::new();
        for (key, member) in members {
            let Some(name) = key.text() else {
                return Err((key.line, format!("found the key {}, expected a text", key.found())));
            };
            table.insert(name.to_owned(), value(member, depth - 1)?);
        }
        return Ok(Value::Object(table));
    }
    let Some(text) = node.text() else {
        return Err(wrong("found nothing (`null`), which TOML has no value for".to_owned()));
    };
    scalar(node, text).ok_or_else(|| {
        let expected = "a number without zeros before it, or a text in quotes";
        wrong(format!("found {text}, expected {expected}"))
    })
}

/// What a scalar is in YAML 1.1. `None`: a number to some readers only.
fn scalar(node: &Node, text: &str) -> Option<Value> {
    let is_quoted = || Some(Value::String(text.to_owned()));
    if !node.is_plain() {
        return is_quoted();
    }
    if let Some(truth) = node.truth() {
        return Some(Value::Bool(truth));
    }
    if let Some(whole) = node.whole().and_then(|whole| i64::try_from(whole).ok()) {
        return Some(whole.into());
    }
    let digits = text.trim_start_matches(['-', '+']);
    let is_number = text.len() - digits.len() <= 1
        && digits.starts_with(|first: char| first.is_ascii_digit() || first == '.')
        && digits.contains(|one: char| one.is_ascii_digit())
        && digits.chars().all(|one| one.is_ascii_digit() || "._eE+-".contains(one));
    let number = || text.replace('_', "").parse::<f64>().ok().filter(|number| number.is_finite());
    match number().filter(|_| is_number) {
        None => is_quoted(),
        Some(_) if digits.starts_with('0') && !digits.starts_with("0.") && digits != "0" => None,
        Some(number) => {
            let whole = text.replace('_', "").parse::<i64>();
            Some(whole.map_or_else(|_| number.into(), Value::from))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::rls::yaml::load;

    fn of(yaml: &str) -> Result<String, (usize, String)> {
        written(&load(yaml).unwrap()[0])
    }

    #[test]
    fn values_are_those_of_yaml_1_1() {
        for (yaml, toml) in [
            (
                "{a: gold, b: '5', c: 5, d: -5, e: +5, f: 0x1f, g: 1_000}",
                "a = \"gold\", b = \"5\", c = 5, d = -5, e = 5, f = 31, g = 1000",
            ),
            (
                "{a: 1.5, b: -1e3, c: .5, d: 1.2.3, e: 2001-01-01, f: 0, g: 0.5}",
                "a = 1.5, b = -1000.0, c = 0.5, d = \"1.2.3\", e = \"2001-01-01\", f = 0, g = 0.5",
            ),
            ("{a: on, b: [no, {c d: x}]}", "a = true, b = [false, { \"c d\" = \"x\" }]"),
            ("{a: 18446744073709551615}", "a = 1.8446744073709552e+19"),
        ] {
            assert_eq!(of(yaml).unwrap(), format!("{{ {toml} }}"), "{yaml}");
        }
    }

    #[test]
    fn what_can_not_be_said_is_named_with_its_line() {
        let nested = format!("{}1{}", "{a: ".repeat(17), "}".repeat(17));
        let long = format!("{{a: {}}}", "x".repeat(BYTES_MAX));
        for (yaml, line, expected) in [
            ("[a]", 1, "found a list, expected a table"),
            ("\na: ~", 2, "found nothing"),
            ("a:\n  b: 010", 2, "found 010, expected a number"),
            (&nested, 1, "levels"),
            (&long, 1, "bytes of JSON, expected at most 4096"),
        ] {
            let (at, message) = of(yaml).unwrap_err();
            assert!(at == line && message.contains(expected), "{yaml}: {at}: {message}");
        }
    }
}
