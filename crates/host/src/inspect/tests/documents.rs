//! Requests' documents: selecting and setting values.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn wanted(text: &str, as_json: bool) -> Selector {
    Selector { pointer: pointer(text), as_json }
}

fn select(document: &str, wanted: Vec<Selector>) -> Option<Vec<(usize, String)>> {
    Selection::new(wanted).of(document.as_bytes())
}

proptest! {
    #[test]
    fn a_selection_equals_what_a_full_parse_finds(
        document in document(),
        texts in pointers(),
        escape: bool,
    ) {
        let written = if escape { escaped(&document) } else { document.to_string() };
        let all = texts.iter().map(|text| wanted(text, true)).collect();
        let selected = select(&written, all).unwrap();
        for (index, text) in texts.iter().enumerate() {
            let own = selected.iter().filter(|(of, _)| *of == index);
            let values: Vec<Value> =
                own.map(|(_, json)| serde_json::from_str(json).unwrap()).collect();
            let expected = found(&document, pointer(text).tokens());
            prop_assert_eq!(values.iter().collect::<Vec<_>>(), expected, "{} {}", text, written);
        }
    }

    #[test]
    fn an_edit_sets_its_value_and_changes_nothing_else(
        document in document(),
        name in "[a-c]",
        other in "[a-c]",
        deep: bool,
    ) {
        let text = if deep { format!("/{name}/{other}") } else { format!("/{name}") };
        let edit = Edit { pointer: pointer(&text), json: "{\"new\":[1]}".into() };
        let edited = edit.apply(document.to_string().as_bytes());
        let Some(members) = document.as_object() else {
            prop_assert_eq!(edited, None);
            return Ok(());
        };
        let mut expected = members.clone();
        if deep {
            let child = expected.entry(name).or_insert_with(|| json!({}));
            if !child.is_object() {
                *child = json!({});
            }
            child.as_object_mut().unwrap().insert(other, json!({"new": [1]}));
        } else {
            expected.insert(name, json!({"new": [1]}));
        }
        let edited: Value = serde_json::from_slice(&edited.unwrap()).unwrap();
        prop_assert_eq!(edited, Value::Object(expected));
    }

    /// An error anywhere is no document, and never a panic.
    #[test]
    fn a_document_with_an_error_is_none(
        document in document(),
        at: prop::sample::Index,
        byte: u8,
    ) {
        let mut bytes = document.to_string().into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let all = vec![wanted("", true), wanted("/a", false), wanted("/*", false)];
        let selected = Selection::new(all).of(&bytes);
        let valid = serde_json::from_slice::<Value>(&bytes).is_ok();
        // serde_json also refuses numbers that no float can hold.
        prop_assert!(!valid || selected.is_some(), "{:?}", bytes);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let is_number = |error: &serde_json::Error| error.to_string().contains("number out of range");
        let refused = serde_json::from_slice::<Value>(&bytes).err();
        prop_assert!(
            selected.is_none() || refused.as_ref().is_none_or(is_number),
            "{}: {:?}", text, refused
        );
    }
}

#[test]
fn values_are_shown_as_policies_read_them() {
    let document = r#"{"model":"g\u00e9\n","max":12.50,"list":[1, 2],"no":null,"yes":true,"o":{}}"#;
    let names = ["/model", "/max", "/list", "/no", "/yes", "/o", "/absent", "/list/1", "/list/01"];
    let all = names.iter().map(|name| wanted(name, false)).collect();
    let shown: Vec<(usize, String)> =
        [(0, "gé\n"), (1, "12.50"), (7, "2"), (2, "6"), (3, "null"), (4, "true"), (5, "2")]
            .map(|(index, text)| (index, text.to_owned()))
            .to_vec();
    assert_eq!(select(document, all), Some(shown));
    assert_eq!(select(document, vec![wanted("/list", true)]), Some(vec![(0, "[1, 2]".to_owned())]));
}

#[test]
fn a_name_that_occurs_twice_is_found_twice() {
    let twice = r#"{"max": 1, "m\u0061x": 100000, "o": {"a": 1}, "o": {"a": 2}}"#;
    let all = vec![wanted("/max", false), wanted("/o/a", false)];
    let values = [(0, "1"), (0, "100000"), (1, "1"), (1, "2")];
    let values = values.map(|(index, text)| (index, text.to_owned())).to_vec();
    assert_eq!(select(twice, all), Some(values));
    let edit = Edit { pointer: pointer("/o/a"), json: "7".into() };
    assert_eq!(
        String::from_utf8(edit.apply(twice.as_bytes()).unwrap()).unwrap(),
        twice.replace("{\"a\": 1}", "{\"a\": 7}").replace("{\"a\": 2}", "{\"a\": 7}")
    );
}

/// Go and .NET ignore the case of names, most servers don't.
#[test]
fn a_name_in_another_case_is_found_twice() {
    let shown = |document: &str, pointers: &[&str]| {
        let all = pointers.iter().map(|text| wanted(text, false)).collect();
        let found = select(document, all).unwrap();
        found.iter().map(|(index, value)| format!("{index} {value}")).collect::<Vec<_>>().join(", ")
    };
    for (document, expected) in [
        (r#"{"to": 1, "too": 2, "t": 3}"#, "0 1"),
        (r#"{"to": 1, "To": 2}"#, "0 1, 0 2, 0 2"),
        (r#"{"TO": 2}"#, "0 2, 0 2"),
        (r#"{"\u0054o": 2}"#, "0 2, 0 2"),
        (r#"{"tO": {"to": 1}}"#, "0 9, 0 9"),
    ] {
        assert_eq!(shown(document, &["/to"]), expected, "{document}");
    }
    // Go folds letters beyond ASCII, too.
    assert_eq!(shown("{\"ma\u{17f}k\": 1}", &["/mask"]), "0 1, 0 1");
    assert_eq!(shown(r#"{"mas\u212a": 1}"#, &["/mask"]), "0 1, 0 1");
    assert_eq!(shown(r#"{"É": 1, "e": 2}"#, &["/é"]), "0 1, 0 1");
    // However deep it is, no more than twice.
    let names = ["/a/b/c/d/e/f/g/h"];
    let deep = r#"{"A":{"B":{"C":{"D":{"E":{"F":{"G":{"H":1}}}}}}}}"#;
    assert_eq!(shown(deep, &names), "0 1, 0 1");
}

/// Of two objects with one name some servers take the first, others the last, and others merge
/// them.
#[test]
fn members_of_a_repeated_object_are_repeated() {
    let shown = |document: &str| {
        let all =
            ["/user/email", "/user", "/user/id", "/other/email"].map(|text| wanted(text, true));
        select(document, all.into()).unwrap()
    };
    let all = |expected: &[(usize, &str)]| {
        expected.iter().map(|(index, value)| (*index, (*value).to_owned())).collect::<Vec<_>>()
    };
    let email = r#"{"email":"v"}"#;
    for second in [r#""user":{}"#, r#""User":{}"#, r#""user":null"#] {
        let found = shown(&format!(r#"{{"user":{email},"other":{email},{second}}}"#));
        let own = |index| found.iter().filter(|(of, _)| *of == index).count();
        assert!(own(0) == 2 && own(1) >= 2 && own(2) == 0 && own(3) == 1, "{second}: {found:?}");
    }
    assert_eq!(shown(&format!(r#"{{"user":{email}}}"#)), all(&[(0, "\"v\""), (1, email)]));
    // Elements of an array are several.
    let items = vec![wanted("/to/*/id", false)];
    let found = select(r#"{"to":[{"id":1},{"id":2}]}"#, items).unwrap();
    assert_eq!(found, all(&[(0, "1"), (0, "2")]));
}

#[test]
fn nothing_is_set_beside_a_name_in_another_case() {
    let set = |document: &str| {
        Edit { pointer: pointer("/a/b"), json: "1".into() }.apply(document.as_bytes())
    };
    for document in
        [r#"{"A":{"b":2}}"#, r#"{"a":{"B":2}}"#, r#"{"a":{},"A":3}"#, r#"{"A":{"B":2}}"#]
    {
        assert_eq!(set(document), None, "{document}");
    }
    assert_eq!(set(r#"{"a":{"c":2},"B":3}"#).unwrap(), br#"{"a":{"b":1,"c":2},"B":3}"#);
}

#[test]
fn a_document_with_very_many_values_is_none() {
    let many = |count: usize| format!("{{{}}}", vec!["\"a\":1"; count].join(","));
    let found = |count| select(&many(count), vec![wanted("/a", false)]).map(|all| all.len());
    assert_eq!((found(64), found(65)), (Some(64), None));
    // Of those that nobody asked for there may be any number.
    assert_eq!(select(&many(10_000), vec![wanted("/b", false)]), Some(Vec::new()));
}

#[test]
fn an_invalid_document_has_no_facts() {
    for text in [
        "",
        " ",
        "{",
        "[1,]",
        "{\"a\":1,}",
        "{\"a\" 1}",
        "{a:1}",
        "01",
        "1.",
        "-",
        "1e",
        "tru",
        "nul",
        "truex",
        "\"\t\"",
        "\"\\x\"",
        "\"\\u12g4\"",
        "[1}",
        "{\"a\":1]",
        "1 2",
        "NaN",
        "\u{feff}{}",
        "'a'",
        "[1,,2]",
        "{\"a\":\"\\ud800\"}",
    ] {
        assert_eq!(select(text, vec![wanted("/a", false)]), None, "{text:?}");
    }
    assert_eq!(Selection::new(Vec::new()).of(b"\"\xFF\""), None);
    let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert_eq!(select(&deep(128), Vec::new()), Some(Vec::new()));
    assert_eq!(select(&deep(129), Vec::new()), None);
    assert_eq!(select(&"[".repeat(1 << 20), Vec::new()), None);
}

#[test]
fn edits_keep_the_bytes_around_them() {
    for (document, text, edited) in [
        ("{}", "/a", "{\"a\":true}"),
        ("{ }", "/a/b", "{\"a\":{\"b\":true} }"),
        ("{\"b\" : 1}", "/a", "{\"a\":true,\"b\" : 1}"),
        ("{\"a\": null, \"b\": 1.0}", "/a/b", "{\"a\": {\"b\":true}, \"b\": 1.0}"),
        (
            "{\"a\": {\"include_usage\" :false, \"x\":[ ]}}",
            "/a/include_usage",
            "{\"a\": {\"include_usage\" :true, \"x\":[ ]}}",
        ),
        (" {\"a\":[1,2]}\n", "/a/1", " {\"a\":[1,true]}\n"),
        ("{\"a~/\":0}", "/a~0~1", "{\"a~/\":true}"),
        ("{\"x\\\"\":0}", "/x\"", "{\"x\\\"\":true}"),
    ] {
        let edit = Edit { pointer: pointer(text), json: "true".into() };
        let found = edit.apply(document.as_bytes()).map(|bytes| String::from_utf8(bytes).unwrap());
        assert_eq!(found.as_deref(), Some(edited), "{document} {text}");
    }
    let edit = |document: &str| {
        Edit { pointer: pointer("/a"), json: "1".into() }.apply(document.as_bytes())
    };
    assert_eq!([edit("[]"), edit("3"), edit("{\"a\":"), edit("")], [None, None, None, None]);
    assert_eq!(edit(&format!("{{{}\"b\":1}}", "\"a\":1,".repeat(100))), None, "made to grow");
}

#[test]
fn pointers_are_those_of_the_rfc_and_stars() {
    for text in ["", "/", "/a/0/*", "/a~0~1b", "/ü"] {
        assert_eq!(pointer(text).to_string(), text);
    }
    for (text, expected) in [
        ("a", PointerError::Start),
        ("/~2", PointerError::Escape),
        ("/~", PointerError::Escape),
        (&"/a".repeat(17), PointerError::TooLong),
        (&format!("/{}", "a".repeat(256)), PointerError::TooLong),
    ] {
        assert_eq!(Pointer::parse(text), Err(expected), "{text}");
    }
    assert!(pointer("/a/0").is_single() && !pointer("/a/*/b").is_single());
}
