//! Whatever serde_json reads is read alike, through serde and through [`Json`], and whatever it
//! refuses is refused.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde::Deserialize;
use serde_json::Value;

use super::*;

/// Through `deserialize_any`, and through everything that [`Json`] shows.
fn read_by_us(text: &str) -> Option<Value> {
    let json = Json::parse(text).ok()?;
    let mut track = Track::default();
    // A number may be too large for any type.
    let value = Value::deserialize(Reader::new(&json, &mut track)).ok()?;
    assert!(track.path.is_empty());
    assert_eq!(alike(&shown_by(&json)), alike(&value), "{text}");
    Some(value)
}

fn shown_by(json: &Json<'_>) -> Value {
    match json.kind() {
        Kind::Null => Value::Null,
        Kind::Bool => json.as_bool().unwrap().into(),
        Kind::Number => match json.as_u64() {
            Some(number) => number.into(),
            None => serde_json::from_str(json.as_text()).unwrap(),
        },
        Kind::String => json.as_str().unwrap().into_owned().into(),
        Kind::List => json.items().map(|item| shown_by(&item)).collect(),
        Kind::Table => {
            json.members().map(|(name, value)| (name.into_owned(), shown_by(&value))).collect()
        }
    }
}

/// A value, of which fractions are equal if they differ by a part in 10^12 at most: serde_json
/// reads the last of 17 digits wrongly at times.
#[derive(Debug)]
struct Alike<'a>(&'a Value);

fn alike(value: &Value) -> Alike<'_> {
    Alike(value)
}

impl PartialEq for Alike<'_> {
    fn eq(&self, other: &Self) -> bool {
        match (self.0, other.0) {
            (Value::Number(one), Value::Number(two)) if !(one.is_u64() && two.is_u64()) => {
                let (one, two) = (one.as_f64().unwrap(), two.as_f64().unwrap());
                one == two || (one - two).abs() <= one.abs() * 1e-12
            }
            (Value::Array(one), Value::Array(two)) => {
                one.iter().map(alike).eq(two.iter().map(alike))
            }
            (Value::Object(one), Value::Object(two)) => {
                one.len() == two.len()
                    && one.iter().all(|(name, value)| {
                        two.get(name).is_some_and(|other| alike(value) == alike(other))
                    })
            }
            (one, two) => one == two,
        }
    }
}

fn same(text: &str) {
    let theirs = serde_json::from_str::<Value>(text).ok();
    assert_eq!(read_by_us(text).as_ref().map(alike), theirs.as_ref().map(alike), "{text:?}");
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1e9..1e9).prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
        "[\"\\\\/\u{0}-\u{20}]{0,4}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(".{0,4}", inner, 0..6)
                .prop_map(|table| table.into_iter().collect()),
        ]
    })
}

proptest! {
    #[test]
    fn every_value_is_read(value in value(), pretty in any::<bool>()) {
        let text = if pretty {
            serde_json::to_string_pretty(&value).unwrap()
        } else {
            value.to_string()
        };
        let read = read_by_us(&text).unwrap();
        prop_assert_eq!(alike(&read), alike(&value));
        let json = Json::parse(&text).unwrap();
        let shown: Value = serde_json::from_str(&json.to_string()).unwrap();
        prop_assert_eq!(alike(&shown), alike(&value));
        let captured: Json<'_> = Json::deserialize(value.clone()).unwrap();
        let read = read_by_us(captured.as_text()).unwrap();
        prop_assert_eq!(alike(&read), alike(&value));
    }

    #[test]
    fn a_text_with_a_change_is_read_or_refused_as_serde_json_does(
        value in value(), at in any::<prop::sample::Index>(), with in "[\\[\\]{}:,\"\\\\a-fnru0-9eE+. \t-]{0,2}"
    ) {
        let mut text: Vec<char> = value.to_string().chars().collect();
        let at = at.index(text.len());
        text.splice(at..=at, with.chars());
        same(&text.into_iter().collect::<String>());
    }

    #[test]
    fn texts_of_its_characters_are_read_or_refused_as_serde_json_does(
        text in "[\\[\\]{}:,\"\\\\/ubtrueflasn0-9dD+. \n-]{0,16}"
    ) {
        same(&text);
    }
}

#[test]
fn the_ends_of_the_grammar_are_serde_jsons() {
    for text in [
        "",
        " ",
        "null ",
        "\u{feff}1",
        "01",
        "-",
        "-0",
        "-01",
        "1.",
        ".1",
        "1e",
        "1e+",
        "1e+5",
        "1E-5",
        "+1",
        "18446744073709551615",
        "-9223372036854775808",
        "tru",
        "truex",
        "[1,]",
        "[,1]",
        "{,}",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{1:1}",
        "[1 2]",
        "[1]]",
        "\"\t\"",
        "\"\u{7f}\"",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\u+123\"",
        "\"\\ud83d\\ude00\"",
        "\"\\ud83d\"",
        "\"\\ud83d\\n\"",
        "\"\\ude00\"",
        "\"\\ud83d\\ud83d\"",
        "\"\\uFFff\"",
        "\"\\",
        "\"\\u",
        "\"",
        "{\"\\u0061\":1}",
    ] {
        same(text);
    }
    for depth in [126, 127, 128, 129, 1000] {
        same(&format!("{}{}", "[".repeat(depth), "]".repeat(depth)));
        same(&format!("{}1{}", "{\"a\":[".repeat(depth / 2), "]}".repeat(depth / 2)));
    }
    assert!(Json::parse(&"[".repeat(10_000_000)).is_err(), "and needs no stack");
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Choice {
    Unit,
    Newtype(u8),
    Tuple(i8, Option<f32>),
    Struct { inner: Box<Choice> },
}

#[derive(Debug, Deserialize, PartialEq)]
struct Flat {
    a: char,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(untagged)]
enum Either {
    Number(u64),
    Text(String),
    Both { number: i16, text: String },
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct All<'t> {
    #[serde(default)]
    choices: Vec<Choice>,
    #[serde(borrow)]
    borrowed: Option<&'t str>,
    by_number: Option<BTreeMap<u16, ()>>,
    by_choice: Option<BTreeMap<Choice2, bool>>,
    flat: Option<Flat>,
    either: Option<Vec<Either>>,
    pair: Option<(u8, String)>,
    ignored: Option<serde::de::IgnoredAny>,
    float: Option<f64>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
enum Choice2 {
    A,
    B,
}

#[test]
fn types_are_read_as_serde_json_reads_them() {
    for text in [
        "{}",
        r#"{"choices": ["unit", {"newtype": 5}, {"tuple": [-1, null]}, {"tuple": [1, 2.5]},
            {"struct": {"inner": "unit"}}, {"struct": {"inner": {"newtype": 255}}}]}"#,
        r#"{"choices": [{"unit": null}]}"#,
        r#"{"choices": ["newtype"]}"#,
        r#"{"choices": [{"newtype": 256}]}"#,
        r#"{"choices": [{"tuple": [1]}]}"#,
        r#"{"choices": [{"tuple": [1, 2, 3]}]}"#,
        r#"{"choices": [{"unit": null, "newtype": 1}]}"#,
        r#"{"choices": [{}]}"#,
        r#"{"choices": {}}"#,
        r#"{"choices": ["other"]}"#,
        r#"{"borrowed": "plain"}"#,
        r#"{"borrowed": "\n"}"#,
        r#"{"borrowed": 1}"#,
        r#"{"by_number": {"1": null, "65535": null}}"#,
        r#"{"by_number": {"65536": null}}"#,
        r#"{"by_number": {"x": null}}"#,
        r#"{"by_choice": {"A": true, "B": false}}"#,
        r#"{"by_choice": {"C": true}}"#,
        r#"{"flat": {"a": "x", "b": [1, -1], "c": {"d": null}}}"#,
        r#"{"flat": {"a": "xy"}}"#,
        r#"{"either": [1, "a", {"number": -1, "text": "t"}]}"#,
        r#"{"either": [true]}"#,
        r#"{"pair": [1, "a"]}"#,
        r#"{"pair": [1, "a", 2]}"#,
        r#"{"ignored": [{"a": [1, "]"]}], "float": 1e300}"#,
        r#"{"float": 3}"#,
        r#"{"float": "3"}"#,
        r#"{"other": 1}"#,
        r#"{"float": 1, "float": 2}"#,
    ] {
        let theirs = serde_json::from_str::<All<'_>>(text).ok().map(|all| format!("{all:?}"));
        let json = Json::parse(text).unwrap();
        let mut track = Track::default();
        let ours = All::deserialize(Reader::new(&json, &mut track));
        assert_eq!(ours.ok().map(|all| format!("{all:?}")), theirs, "{text}");
    }
}

#[test]
fn a_message_repeats_the_beginning_of_a_long_text() {
    let text = "\u{e9}".repeat(81);
    let found = Json::from(text.as_str()).found();
    assert_eq!(found, format!("\"{}...\"", "\u{e9}".repeat(80)));
    assert_eq!(Json::from("a\nb").found(), r#""a\nb""#);
}
