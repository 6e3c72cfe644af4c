//! Documents, and what they cost: computed by hand.

use super::*;

/// Weights of an imaginary schema.
const FIELDS: &str = r#", "fields": {
    "Query.users": {"cost": 5, "list": 20},
    "Mutation.users": {"cost": 7},
    "users": {"cost": 3, "list": true},
    "users.posts": {"cost": 2, "list": 4},
    "posts": {"list": 6},
    "search": {"cost": 20, "sizes": ["count", "page.count"], "list": true},
    "name": {"cost": 1},
    "nodes": {"sizes": ["ids"], "list": true},
    "first": {"cost": 2, "sizes": []}
}"#;

/// Queries, and what they cost with these weights.
const COSTS: &[(&str, u64)] = &[
    // Fields with selections cost 1, others nothing.
    ("{ a { b } }", 1),
    ("{ a { b c d e } }", 1),
    ("{ a { b { c } } d { e } }", 3),
    // An own weight, with and without selections.
    ("{ name }", 1),
    ("{ a { name } }", 2),
    ("{ a { name } b { name } }", 4),
    // Lists: 10 x (1 + 1).
    ("{ a(first: 10) { b { c } } }", 20),
    // 10 x (1 + 5 x 1)
    ("{ a(first: 10) { b(last: 5) { c } } }", 60),
    // 3 x 1: also of scalars.
    ("{ name(limit: 3) }", 3),
    ("{ a(pageSize: 3) { b } }", 3),
    // Not one of the arguments that say a size.
    ("{ a(count: 3) { b } }", 1),
    // The larger of two.
    ("{ a(first: 3, last: 8) { b } }", 8),
    // 20 x 5: at the top it is 20 long, and costs 5 an item.
    ("{ users { id } }", 100),
    // 2 x 5
    ("{ users(first: 2) { id } }", 10),
    // 2 x (5 + 4 x 2): inside `users`, posts are 4 and cost 2.
    ("{ users(first: 2) { posts { id } } }", 26),
    // 6 x 1: elsewhere, they are 6 and cost the default.
    ("{ posts { id } }", 6),
    // 1 + 10 x 3: not at the top.
    ("{ a { users { id } } }", 31),
    // A mutation, and its own `users`: 10 + 10 x 7, the length is that of any `users`.
    ("mutation { users { id } }", 80),
    ("mutation { a }", 10),
    ("subscription { a { b } }", 1),
    // 3 x 20: only its own arguments say a size.
    ("{ search(count: 3, first: 1000) { id } }", 60),
    // 10 x 20: the argument is not there.
    ("{ search(first: 1000) { id } }", 200),
    ("{ search { id } }", 200),
    ("{ search(page: {count: 4}) { id } }", 80),
    ("{ search(other: {count: 4}) { id } }", 80),
    ("{ search(page: {first: 4}) { id } }", 200),
    // No argument says its size.
    ("{ first(first: 100) { id } }", 2),
    // As many as were asked for.
    (r#"{ nodes(ids: ["a", "b", "c"]) { id } }"#, 3),
    // 0 and 1 are one item.
    ("{ a(first: 0) { b } c { d } }", 2),
    ("{ nodes(ids: []) { id } c { d } }", 2),
    ("{ users(first: 1) { id } }", 5),
    // What is no number of items is the usual length.
    ("{ a(first: -1) { b } }", 10),
    ("{ users(first: -1) { id } }", 100),
    ("{ a(first: ALL) { b } }", 10),
    ("{ a(first: null) { b } }", 10),
    ("{ a(first: $unknown) { b } }", 10),
    ("{ a(first: -1, last: 3) { b } }", 10),
    ("{ a(first: -1, last: 30) { b } }", 30),
    // Some servers read these as numbers.
    (r#"{ a(first: "7") { b } }"#, 7),
    ("{ a(first: 6.5) { b } }", 7),
    (r#"{ a(first: """12""") { b } }"#, 12),
    (r#"{ a(first: "7x") { b } }"#, 10),
    (r#"{ a(first: "\u0037") { b } }"#, 7),
    (r#"{ a(first: "\u007") { b } }"#, 10),
    // Sizes in input objects, one level deep.
    ("{ a(input: {first: 4, after: \"x\"}) { b } }", 4),
    ("{ a(input: {page: {first: 4}}) { b } }", 1),
    ("{ a(input: [{first: 4}]) { b } }", 1),
    // Aliases are fields of their own.
    ("{ x: name y: name name }", 3),
    ("{ x: users(first: 2) { id } }", 10),
    // `__typename` is free everywhere.
    ("{ __typename a { __typename x: __typename } }", 1),
    // As if included.
    ("{ name @skip(if: true) ... @include(if: false) { name } }", 2),
    ("query ($no: Boolean!) { a @include(if: $no) { b } }", 1),
];

#[test]
fn costs_are_those_computed_by_hand() {
    let policy = unbounded(FIELDS);
    for (text, expected) in COSTS {
        assert_eq!(cost(&policy, text), *expected, "{text}");
    }
}

#[test]
fn fragments_cost_what_they_contain_in_each_place() {
    let policy = unbounded(FIELDS);
    for (text, expected) in [
        ("{ ...F } fragment F on Query { a { b } }", 1),
        ("{ ...F ...F } fragment F on Query { a { b } }", 2),
        ("fragment F on Query { a { b } } { ...F x { ...F } }", 3),
        ("{ ... on Query { a { b } } ... { c { d } } }", 2),
        // 10 x (1 + 1)
        ("{ a(first: 10) { ...F } } fragment F on A { name }", 20),
        ("{ ...F } fragment F on Q { ...G ...G } fragment G on Q { name }", 2),
        // One that is not used costs nothing, whatever it uses.
        ("{ a { b } } fragment F on Q { ...F ...G name }", 1),
        // 1 x 5 + 4 x 2 inside users, 6 x 1 inside b, and 6 x 1 at the top, and 1 for b.
        (
            "{ users(first: 1) { ...P } b { ...P } ...P } fragment P on U { posts { id } }",
            5 + 8 + 6 + 6 + 1,
        ),
        // Also through another fragment, and through an inline one.
        (
            "{ users(first: 1) { ...O } } fragment O on U { ... { ...P } } fragment P on U { posts { id } }",
            13,
        ),
        // At the top also in a fragment: 2 x 5.
        ("{ ...T } fragment T on Query { users(first: 2) { id } }", 10),
    ] {
        assert_eq!(cost(&policy, text), expected, "{text}");
    }
}

#[test]
fn a_list_inside_a_list_multiplies() {
    let policy = unbounded("");
    let mut text = "x".to_owned();
    let mut expected = 0;
    for _ in 0..6 {
        text = format!("a(first: 7) {{ {text} }}");
        expected = 7 * (1 + expected);
        assert_eq!(cost(&policy, &format!("{{ {text} }}")), expected, "{text}");
    }
    assert_eq!(expected, 137_256);
}

/// What a query costs with these variables.
fn with(policy: &Instance<GraphqlCost>, text: &str, variables: &str) -> u64 {
    let body = format!(r#"{{"query": {}, "variables": {variables}}}"#, json!(text));
    charged(&post(policy, &body)).unwrap_or_else(|refused| panic!("{body}: {refused:?}"))
}

#[test]
fn variables_say_sizes() {
    let policy = unbounded(FIELDS);
    let text = "query ($n: Int) { a(first: $n) { b } }";
    let or_5 = "query ($m: Int, $n: Int = 5) { a(first: $n) { b } }";
    let input = "query ($i: Input) { a(input: $i) { b } }";
    let inside = "query ($n: Int = 5) { a(input: {first: $n}) { b } }";
    let default = "query ($i: Input = {first: 8, x: {first: 9}}) { a(input: $i) { b } }";
    let ids = "query ($ids: [ID!]!) { nodes(ids: $ids) { id } }";
    let page = "query ($p: Page) { search(page: $p) { id } }";
    for (text, variables, expected) in [
        (text, r#"{"n": 3}"#, 3),
        (text, r#"{"n": 3, "m": 100}"#, 3),
        (text, r#"{"n": 3.0}"#, 3),
        (text, r#"{"n": 2.5}"#, 3),
        (text, r#"{"n": "3"}"#, 3),
        (text, r#"{"n": "1\u0032"}"#, 12),
        (text, r#"{"n": "\u0031\u0032"}"#, 12),
        (text, r#"{"n": "1\\u0032"}"#, 10),
        (text, r#"{"n": 1e1}"#, 10),
        (text, r#"{"n": 0}"#, 1),
        // Missing, or of a wrong type: the usual length.
        (text, "{}", 10),
        (text, "null", 10),
        (text, r#"{"n": null}"#, 10),
        (text, r#"{"n": -3}"#, 10),
        (text, r#"{"n": -3.5}"#, 10),
        (text, r#"{"n": true}"#, 10),
        (text, r#"{"n": "many"}"#, 10),
        (text, r#"{"n": {"first": 3}}"#, 10),
        (text, r#"{"N": 3}"#, 10),
        // A default is for a variable that is missing, not for one that is null.
        (or_5, "{}", 5),
        (or_5, r#"{"n": 3}"#, 3),
        (or_5, r#"{"n": null}"#, 10),
        (or_5, r#"{"m": 3}"#, 5),
        (inside, "{}", 5),
        (inside, r#"{"n": 4}"#, 4),
        // Members of objects, one level deep.
        (input, r#"{"i": {"first": 6, "after": "x"}}"#, 6),
        (input, r#"{"i": {"first": "6"}}"#, 6),
        (input, r#"{"i": {"first": [1, 2]}}"#, 2),
        (input, r#"{"i": {"first": null}}"#, 10),
        (input, r#"{"i": {"first": {"first": 3}}}"#, 10),
        (input, r#"{"i": {"page": {"first": 6}}}"#, 1),
        (input, r#"{"i": 6}"#, 1),
        (input, "{}", 1),
        (default, "{}", 8),
        (default, r#"{"i": {}}"#, 1),
        // The length of a list.
        (ids, r#"{"ids": ["a", {"b": [1]}, null, []]}"#, 4),
        (ids, r#"{"ids": []}"#, 1),
        (ids, r#"{"ids": [ [ ] , [1,2,3] ]}"#, 2),
        (ids, r#"{"ids": [[1,2,3]]}"#, 1),
        (ids, r#"{"ids": ["", "],", "\"],[", "\\", {"a": [1, 2], "b,": "}"}]}"#, 5),
        // 3 x 20: a member with another name than the argument's.
        (page, r#"{"p": {"count": 3}}"#, 60),
        (page, r#"{"p": {"count": 0}}"#, 20),
        (page, r#"{"p": {"first": 3}}"#, 200),
    ] {
        assert_eq!(with(&policy, text, variables), expected, "{text} with {variables}");
    }
}

#[test]
fn a_default_that_is_another_variable_says_nothing() {
    let text = "query ($n: Int = $m, $m: Int = 3) { a(first: $n) { b } }";
    assert_eq!(with(&policy(""), text, "{}"), 10);
}

#[test]
fn each_operation_has_its_own_defaults() {
    let policy = policy("");
    let text = "query A($n: Int = 2) { ...F } query B($n: Int = 7) { ...F } \
                fragment F on Query { a(first: $n) { b } }";
    for (name, expected) in [("A", 2), ("B", 7)] {
        let body = json!({ "query": text, "operationName": name }).to_string();
        assert_eq!(charged(&post(&policy, &body)), Ok(expected));
    }
}

#[test]
fn only_the_named_operation_counts_and_without_a_name_the_dearest() {
    let policy = policy("");
    let text = "query A { a { b } } query B { a { b { c { d } } } } mutation C { a }";
    let decide = |name: serde_json::Value| {
        post(&policy, &json!({ "query": text, "operationName": name }).to_string())
    };
    for (name, expected, label_expected) in [
        (json!("A"), 1, "A"),
        (json!("B"), 3, "B"),
        (json!("C"), 10, "C"),
        (json!(null), 10, "C"),
        (json!(""), 10, "C"),
    ] {
        let decision = decide(name.clone());
        assert_eq!(charged(&decision), Ok(expected), "{name}");
        assert_eq!(label(&decision, "operation"), Some(label_expected), "{name}");
    }
    let no = decide(json!("D\u{7}"));
    assert_eq!(charged(&no), Err((400, "there is no operation `D?`")));
    let body = json!({ "query": "{ a }", "operationName": "A" }).to_string();
    assert_eq!(refused(&policy, &body), (400, "there is no operation `A`".to_owned()));
}

#[test]
fn the_labels_name_is_short() {
    let policy = policy("");
    let name = "x".repeat(65);
    let decision = post(&policy, &query(&format!("query {name} {{ a }}")));
    assert_eq!(label(&decision, "operation"), Some(&name[..64]));
}

#[test]
fn the_defaults_are_settings() {
    let policy = policy(
        r#", "default_field": 3, "default_scalar": 2, "default_list": 7, "mutation": 100,
           "subscription": 50, "size_arguments": ["top", "page.size"],
           "fields": {"list": {"list": true}, "single": {"list": false}}"#,
    );
    for (text, expected) in [
        ("{ a { b } }", 5),
        // 7 x (3 + 2)
        ("{ list { b } }", 35),
        ("{ single { b } }", 5),
        ("{ a(first: 9) { b } }", 5),
        ("{ a(top: 9) { b } }", 45),
        ("{ a(page: {size: 2}) { b } }", 10),
        ("{ a(other: {size: 2}) { b } }", 5),
        ("{ a(other: {top: 2}) { b } }", 10),
        ("mutation { a { b } }", 105),
        ("subscription { a { b } }", 55),
    ] {
        assert_eq!(cost(&policy, text), expected, "{text}");
    }
}

#[test]
fn a_path_says_more_than_a_name_and_leaves_the_rest_to_it() {
    let policy = policy(
        r#", "fields": {"b": {"cost": 5, "list": 3, "sizes": ["n"]}, "a.b": {"cost": 2},
                        "Query.b": {"list": false}, "c.b": {"sizes": ["m"]}}"#,
    );
    for (text, expected) in [
        // 1 + 3 x 5, 1 + 3 x 2, 1 x 5
        ("{ x { b { y } } }", 16),
        ("{ a { b { y } } }", 7),
        ("{ b { y } }", 5),
        // Aliases don't change what is inside what.
        ("{ z: a { w: b { y } } }", 7),
        ("{ a: x { b { y } } }", 16),
        // 1 + 2 x 2, 1 + 3 x 5, 1 + 2 x 5
        ("{ a { b(n: 2) { y } } }", 5),
        ("{ c { b(n: 2) { y } } }", 16),
        ("{ c { b(m: 2) { y } } }", 11),
    ] {
        assert_eq!(cost(&policy, text), expected, "{text}");
    }
}

const README: &str = include_str!("../../README.md");

#[test]
fn scalars_are_not_free_unless_the_configuration_says_so() {
    let thousand = format!("{{ a(first: 100) {{ {} }} }}", "b ".repeat(1_000));
    assert_eq!(cost(&unbounded(""), &thousand), 100);
    let priced = priced(r#", "max_cost": 1000000"#);
    assert_eq!(cost(&priced, &thousand), 100 * (1 + 1_000));
    assert_eq!(cost(&priced, "{ __typename a { b __typename } }"), 2);
}

#[test]
fn a_field_may_have_to_say_how_many_items_it_returns() {
    let policy = unbounded(
        r#", "fields": {"users": {"sized": true}, "nodes": {"sizes": ["ids"], "sized": true},
                        "me.users": {"sized": false}}"#,
    );
    for text in [
        "{ users(first: 3) { id } }",
        "{ users(last: 3) { id } }",
        "{ users(page: {first: 3}) { id } }",
    ] {
        assert_eq!(cost(&policy, text), 3, "{text}");
    }
    assert_eq!(cost(&policy, r#"{ nodes(ids: ["a", "b"]) { id } }"#), 2);
    // Where it is not asked for.
    assert_eq!(cost(&policy, "{ me { users { id } } others { id } }"), 3);
    let asked = "query ($n: Int) { users(first: $n) { id } }";
    assert_eq!(with(&policy, asked, r#"{"n": 3}"#), 3);
    for (text, variables) in [
        ("{ users { id } }", "{}"),
        ("{ users(after: \"x\") { id } }", "{}"),
        ("{ x: users(first: null) { id } }", "{}"),
        ("{ users(first: -1) { id } }", "{}"),
        ("{ users(first: 0) { id } }", "{}"),
        ("{ a { ...F } } fragment F on A { users { id } }", "{}"),
        (asked, "{}"),
        (asked, r#"{"n": null}"#),
    ] {
        let body = format!(r#"{{"query": {}, "variables": {variables}}}"#, json!(text));
        let reason = "the field `users` must say how many items it returns".to_owned();
        assert_eq!(refused(&policy, &body), (400, reason), "{text} with {variables}");
    }
}

#[test]
fn directives_are_bounded() {
    let text = |count: usize| query(&format!("query @a {{ b {} }}", "@c(d: 1) ".repeat(count)));
    let usual = policy("");
    assert!(charged(&post(&usual, &text(29))).is_ok());
    let reason = "the query has more than 30 directives".to_owned();
    assert_eq!(refused(&usual, &text(30)), (400, reason));
    assert!(charged(&post(&policy(r#", "max_directives": 31"#), &text(30))).is_ok());
}

#[test]
fn the_readmes_example_costs_what_it_says() {
    let policy = priced(
        r#", "max_cost": 2000, "fields": {
            "Query.users": {"cost": 5, "list": 20},
            "users.posts": {"cost": 2},
            "search": {"cost": 20, "sizes": ["count"], "list": true}
        }"#,
    );
    let block = README.split("```graphql\n").nth(1).and_then(|rest| rest.split("```").next());
    let example = block.unwrap();
    assert!(README.contains("without variables costs 293, one with `{\"n\": 2}` 109."));
    assert_eq!(cost(&policy, example), 293);
    assert_eq!(with(&policy, example, r#"{"n": 2}"#), 109);
}

#[test]
fn the_readmes_connection_counts_nodes_if_the_rest_is_free() {
    let text = "{ users(first: 10) { edges { node { name } } pageInfo { endCursor } } }";
    assert_eq!(cost(&priced(""), text), 60);
    let nodes = priced(
        r#", "fields": {"edges": {"cost": 0}, "pageInfo": {"cost": 0}, "Query.users": {"cost": 0}}"#,
    );
    assert_eq!(cost(&nodes, text), 30);
}
