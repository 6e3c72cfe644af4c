//! What each mistake in the configuration says.

use weir_policy::Digest;

use super::*;

/// The mistakes of a configuration with these settings, sorted.
fn mistakes(more: &str) -> Vec<String> {
    mistakes_of(&format!(r#"{{"limits": [{POINTS}]{more}}}"#))
}

fn mistakes_of(config: &str) -> Vec<String> {
    let mistakes = Instance::<GraphqlCost>::new(config).unwrap_err();
    let mut shown: Vec<String> =
        mistakes.iter().map(|mistake| format!("{}: {}", mistake.path, mistake.message)).collect();
    shown.sort();
    shown
}

#[test]
fn numbers_have_ranges() {
    for (setting, found, range) in [
        ("default_field", "4503599627370497", "0 to 4503599627370496"),
        ("default_scalar", "4503599627370497", "0 to 4503599627370496"),
        ("default_list", "0", "1 to 4503599627370496"),
        ("max_depth", "0", "1 to 100"),
        ("max_depth", "101", "1 to 100"),
        ("max_cost", "0", "1 to 4503599627370496"),
        ("max_cost", "4503599627370497", "1 to 4503599627370496"),
        ("max_aliases", "100001", "0 to 100000"),
        ("max_tokens", "0", "1 to 50000"),
        ("max_tokens", "50001", "1 to 50000"),
        ("max_operations", "0", "1 to 1000"),
        ("max_operations", "1001", "1 to 1000"),
        ("mutation", "4503599627370497", "0 to 4503599627370496"),
        ("subscription", "4503599627370497", "0 to 4503599627370496"),
    ] {
        let expected = format!("{setting}: found {found}, expected {range}");
        assert_eq!(mistakes(&format!(r#", "{setting}": {found}"#)), [expected]);
        let expected = format!("{setting}: found -1, expected a whole number, 0 or more");
        assert_eq!(mistakes(&format!(r#", "{setting}": -1"#)), [expected]);
    }
    // The ends of the ranges are allowed.
    for setting in [
        r#""max_aliases": 0, "max_depth": 100, "max_tokens": 50000, "max_operations": 1000"#,
        r#""default_field": 0, "default_list": 1, "max_cost": 4503599627370496, "mutation": 0"#,
    ] {
        policy(&format!(", {setting}"));
    }
}

#[test]
fn words_are_those_that_are_known() {
    for (setting, expected) in [
        (
            r#""max_dept": 3"#,
            "max_dept: found the unknown key `max_dept`, expected one of `limits`, `requests`,",
        ),
        (r#""introspection": "no""#, "introspection: found \"no\", expected true or false"),
        (
            r#""unknown_persisted": "allow""#,
            "unknown_persisted: found \"allow\", expected \"deny\", or what such a query costs",
        ),
        (
            r#""unknown_persisted": -1"#,
            "unknown_persisted: found -1, expected \"deny\", or what such a query costs",
        ),
        (r#""ipv6_prefix": 129"#, "ipv6_prefix: found 129, expected 0 to 128"),
        (r#""bypass": ["x"]"#, "bypass[0]: found \"x\", expected an address or a network"),
    ] {
        let found = mistakes(&format!(", {setting}"));
        assert!(found.len() == 1 && found[0].starts_with(expected), "{found:?}");
    }
}

#[test]
fn limits_are_needed_and_have_names_of_their_own() {
    let none = "limits: found no limits, expected at least one, which is charged what a request \
                costs";
    assert_eq!(mistakes_of("{}"), [none]);
    assert_eq!(mistakes_of(&format!(r#"{{"requests": [{POINTS}]}}"#)), [none]);
    assert_eq!(
        mistakes_of(r#"{"limits": []}"#),
        ["limits: found 0 limits, expected 1 to 16"],
        "once is enough"
    );
    let twice = "requests[0].name: found \"points\", expected a name that no limit in `limits` has";
    assert_eq!(mistakes(&format!(r#", "requests": [{POINTS}]"#)), [twice]);
    let many = |table: &str, count: usize| {
        let limits: Vec<String> =
            (0..count).map(|n| POINTS.replace("points", &format!("{table}{n}"))).collect();
        format!(r#""{table}": [{}]"#, limits.join(", "))
    };
    let found = mistakes_of(&format!("{{{}, {}}}", many("limits", 10), many("requests", 7)));
    assert_eq!(found, ["requests: found 17 limits, with those in `limits`, expected 16 together"]);
    let settled = mistakes_of(&format!(
        r#"{{"limits": [{}]}}"#,
        POINTS.replace('}', r#", "refund": "by_settle"}"#)
    ));
    assert!(settled.len() == 1 && settled[0].starts_with("limits[0].refund: "), "{settled:?}");
}

#[test]
fn weights_are_checked() {
    let field = "expected a field such as `search`, `users.posts` for those inside another, or \
                 `Query.users` for those of a root type";
    for (fields, expected) in [
        (r#""a.b.c": {}"#, format!("fields.a.b.c: found \"a.b.c\", {field}")),
        (r#""a b": {}"#, format!("fields.a b: found \"a b\", {field}")),
        (r#""": {}"#, format!("fields.: found \"\", {field}")),
        (r#""7a": {}"#, format!("fields.7a: found \"7a\", {field}")),
        (r#"".a": {}"#, format!("fields..a: found \".a\", {field}")),
        (r#""a.": {}"#, format!("fields.a.: found \"a.\", {field}")),
        (r#""a.7": {}"#, format!("fields.a.7: found \"a.7\", {field}")),
        (r#""7.a": {}"#, format!("fields.7.a: found \"7.a\", {field}")),
        (r#""é": {}"#, format!("fields.é: found \"é\", {field}")),
        (
            r#""User.__typename": {}"#,
            "fields.User.__typename: found \"User.__typename\", expected no weight: it is always free"
                .to_owned(),
        ),
        (
            r#""a": {"cost": "5"}"#,
            "fields.a.cost: found \"5\", expected a whole number, 0 or more".to_owned(),
        ),
        (
            r#""a": {"list": 0}"#,
            "fields.a.list: found 0, expected true, false, or a usual length of 1 or more"
                .to_owned(),
        ),
        (
            r#""a": {"list": "10"}"#,
            "fields.a.list: found \"10\", expected true, false, or a usual length of 1 or more"
                .to_owned(),
        ),
        (
            r#""a": {"lists": 1}"#,
            "fields.a.lists: found the unknown key `lists`, expected one of `cost`, `list`, \
             `sizes`, `sized`; `list` is near"
                .to_owned(),
        ),
        (
            r#""a.b": {"sizes": ["first", "a.b.c"]}"#,
            "fields.a.b.sizes[1]: found \"a.b.c\", expected an argument's name such as \"first\", \
             or \"input.first\" in an input object"
                .to_owned(),
        ),
        // What TOML makes of `fields.Query.users = { cost = 5 }`, without quotes.
        (
            r#""Query": {"users": {"cost": 5}}"#,
            "fields.Query.users: found the unknown key `users`, expected one of `cost`, `list`, \
             `sizes`, `sized`"
                .to_owned(),
        ),
    ] {
        assert_eq!(mistakes(&format!(r#", "fields": {{{fields}}}"#)), [expected]);
    }
    let many: Vec<String> = (0..10_001).map(|n| format!(r#""f{n}": {{}}"#)).collect();
    let found = mistakes(&format!(r#", "fields": {{{}}}"#, many.join(", ")));
    assert_eq!(found, ["fields: found 10001 fields, expected at most 10000"]);
}

#[test]
fn size_arguments_are_checked() {
    let expected = "size_arguments[1]: found \"first \", expected an argument's name such as \
                    \"first\", or \"input.first\" in an input object";
    assert_eq!(mistakes(r#", "size_arguments": ["first", "first "]"#), [expected]);
    let many = json!(vec!["a"; 17]);
    let expected = "size_arguments: found 17 arguments, expected at most 16";
    assert_eq!(mistakes(&format!(r#", "size_arguments": {many}"#)), [expected]);
    let expected = "fields.a.sizes: found 17 arguments, expected at most 16";
    assert_eq!(mistakes(&format!(r#", "fields": {{"a": {{"sizes": {many}}}}}"#)), [expected]);
    // None at all is allowed: then only `fields` says sizes.
    assert_eq!(cost(&policy(r#", "size_arguments": []"#), "{ a(first: 9) { b } }"), 1);
}

#[test]
fn persisted_queries_are_checked() {
    let hex = "ab".repeat(32);
    let digest = |text: &str| {
        let bytes: String = text.bytes().map(char::from).collect();
        Digest::of_fact(&bytes).to_string()
    };
    for (key, value, expected) in [
        (
            "abc".to_owned(),
            json!(1),
            "persisted.abc: found \"abc\", expected the query's SHA-256 in 64 hexadecimal digits"
                .to_owned(),
        ),
        (
            hex.clone(),
            json!(-1),
            format!(
                "persisted.{hex}: found another value, expected what the query costs, or its text"
            ),
        ),
        (
            hex.clone(),
            json!({}),
            format!(
                "persisted.{hex}: found another value, expected what the query costs, or its text"
            ),
        ),
        (
            hex.clone(),
            json!("{ a }"),
            format!(
                "persisted.sha256:{hex}: found a text whose digest is {}, expected the text itself",
                digest("{ a }")
            ),
        ),
        (
            digest("{ é }"),
            json!("{ é }"),
            format!(
                "persisted.{}: found a text that is refused: line 1, column 3: found `é`, expected \
                 a token of GraphQL, expected a GraphQL document within the maxima",
                digest("{ é }")
            ),
        ),
        (
            digest("{ x: a y: b }"),
            json!("{ x: a y: b }"),
            format!(
                "persisted.{}: found a text that is refused: the query has more than 1 aliases, \
                 expected a GraphQL document within the maxima",
                digest("{ x: a y: b }")
            ),
        ),
    ] {
        let settings = format!(r#", "max_aliases": 1, "persisted": {{"{key}": {value}}}"#);
        assert_eq!(mistakes(&settings), [expected]);
    }
    let twice = format!(r#"{{"{hex}": 1, "sha256:{}": 2}}"#, hex.to_uppercase());
    let expected = format!(
        "persisted.sha256:{hex}: found the digest a second time, expected each digest once, its \
         digits in lower case"
    );
    assert_eq!(mistakes(&format!(r#", "persisted": {twice}"#)), [expected]);
    let found = mistakes(r#", "persisted": 3"#);
    assert!(found[0].starts_with("persisted: found 3, expected a table of digests"), "{found:?}");
    // The digest of a text with other letters is that of its bytes.
    let text = "{ a(b: \"é€\") { c } }";
    let policy = policy(&format!(r#", "persisted": {{"{}": {}}}"#, digest(text), json!(text)));
    let body = format!(
        r#"{{"extensions": {{"persistedQuery": {{"sha256Hash": "{}"}}}}}}"#,
        &digest(text)[7..]
    );
    assert_eq!(charged(&post(&policy, &body)), Ok(1));
}

#[test]
fn all_errors_come_at_once() {
    let found = mistakes(
        r#", "max_depth": 0, "max_cost": "x", "fields": {"a.b.c": {}, "d": {"list": -1}},
           "persisted": {"abc": 1}, "size_arguments": ["7"], "introspecton": true"#,
    );
    let starts = [
        "fields.a.b.c: ",
        "fields.d.list: ",
        "introspecton: ",
        "max_cost: ",
        "max_depth: ",
        "persisted.abc: ",
        "size_arguments[0]: ",
    ];
    assert_eq!(found.len(), starts.len(), "{found:#?}");
    for (found, start) in found.iter().zip(starts) {
        assert!(found.starts_with(start), "{found}");
    }
}

#[test]
fn the_readmes_persisted_queries_are_right() {
    let readme = include_str!("../../README.md");
    let lines = readme.split("```text\n").nth(1).and_then(|rest| rest.split("```").next());
    let entries: Vec<String> =
        lines.unwrap().lines().map(|line| line.replace(" = ", ": ")).collect();
    assert_eq!(entries.len(), 2);
    policy(&format!(r#", "persisted": {{{}}}"#, entries.join(", ")));
}

/// Mistakes of the SDK's own and of this policy, in one list and between lists.
#[test]
fn an_error_in_a_limit_hides_no_other_and_causes_none() {
    let broken = POINTS.replace("\"points\"", "\"points\", \"burrst\": 3");
    let found = mistakes_of(&format!(r#"{{"limits": [{broken}], "max_depth": 0}}"#));
    let starts = ["limits[0].burrst: ", "max_depth: "];
    assert_eq!(found.len(), starts.len(), "{found:#?}");
    found
        .iter()
        .zip(starts)
        .for_each(|(found, start)| assert!(found.starts_with(start), "{found}"));
    let found = mistakes_of(&format!(r#"{{"limits": [{broken}], "requests": [{broken}]}}"#));
    let starts = ["limits[0].burrst: ", "requests[0].burrst: ", "requests[0].name: "];
    assert_eq!(found.len(), starts.len(), "{found:#?}");
    found
        .iter()
        .zip(starts)
        .for_each(|(found, start)| assert!(found.starts_with(start), "{found}"));
}
