//! What clients may try: each is refused or charged in little time, without a panic and without
//! much of the stack.

use std::time::{Duration, Instant};

use super::*;

/// A wide margin, since tests are compiled without optimisation and run in parallel with others.
/// What takes too long takes minutes, or does not end.
const SOON: Duration = Duration::from_secs(5);

/// The decision, made on a stack as small as a guest's.
#[track_caller]
fn soon(policy: fn() -> Instance<GraphqlCost>, body: String) -> Result<u64, (u16, String)> {
    let small = std::thread::Builder::new().stack_size(1 << 20);
    let thread = small.spawn(move || {
        let policy = policy();
        let start = Instant::now();
        let decision = post(&policy, &body);
        let took = start.elapsed();
        (charged(&decision).map_err(|(status, reason)| (status, reason.to_owned())), took)
    });
    let (charged, took) = thread.unwrap().join().unwrap();
    assert!(took < SOON, "took {took:?}");
    charged
}

fn usual() -> Instance<GraphqlCost> {
    policy("")
}

fn largest() -> Instance<GraphqlCost> {
    unbounded(r#", "max_tokens": 50000, "max_operations": 1000"#)
}

fn refusal(reason: &str) -> Result<u64, (u16, String)> {
    Err((400, reason.to_owned()))
}

#[test]
fn nesting_of_a_hundred_thousand_levels_is_refused() {
    let nested = refusal("the query is nested more than 200 times");
    for (begin, step) in [
        ("", "{a"),
        ("{", "...{"),
        ("{", "... on T {"),
        ("{a(b:", "["),
        ("{a(b:", "{c:"),
        ("{a @d(b:", "[{c:"),
        ("query($a:", "["),
        ("query($a:I=", "["),
    ] {
        let text = format!("{begin}{}", step.repeat(100_000.min(260_000 / step.len())));
        assert_eq!(soon(largest, query(&text)), nested, "{begin}{step}");
    }
    // Fragments, each in the one before it.
    let chain: String =
        (0..5_000).map(|n| format!("fragment F{n} on T {{...F{}}}", n + 1)).collect();
    assert_eq!(soon(largest, query(&format!("{{...F0}}{chain}"))), nested);
    // In the JSON around it.
    for deep in ["[".repeat(100_000), r#"{"a":"#.repeat(100_000)] {
        assert!(soon(usual, deep.clone()).is_err());
        let body = format!(r#"{{"query": "{{ a }}", "variables": {deep}}}"#);
        assert!(soon(usual, body).is_err());
    }
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let text = "query ($n: Int) { a(first: $n) { b } }";
    let body = format!(r#"{{"query": "{text}", "variables": {{"n": {deep}, "m": {deep}}}}}"#);
    assert_eq!(soon(usual, body), Ok(1));
}

#[test]
fn the_deepest_allowed_nesting_fits_the_stack() {
    let text = format!("{{...{}a{}", "{...".repeat(198), "}".repeat(199)).replace("...a", "a");
    assert_eq!(soon(largest, query(&text)), Ok(1));
    let text = format!("{{a(b:{}{})}}", "[".repeat(199), "]".repeat(199));
    assert_eq!(soon(largest, query(&text)), Ok(1));
    let fragments: String =
        (0..198).map(|n| format!("fragment F{n} on T {{...F{}}}", n + 1)).collect();
    let text = format!("{{...F0}}{fragments} fragment F198 on T {{a{{b}}}}");
    assert_eq!(soon(largest, query(&text)), refusal("the query is nested more than 200 times"));
    let text = text.replace("{...F0}", "{...F1}");
    assert_eq!(soon(largest, query(&text)), Ok(1));
}

/// Thirty levels of fragments, each with the next one twice.
fn bomb(levels: u32, step: impl Fn(u32) -> String) -> String {
    let fragments: String =
        (0..levels).map(|n| format!("fragment F{n} on T {{ {} }} ", step(n + 1))).collect();
    format!("{{ ...F0 }} {fragments} fragment F{levels} on T {{ a {{ b }} }}")
}

#[test]
fn fragments_that_double_are_added_up_once() {
    let text = bomb(30, |next| format!("...F{next} ...F{next}"));
    assert_eq!(soon(largest, query(&text)), Ok(1 << 30));
    let reason = "the query costs 1073741824, at most 10000 are allowed";
    assert_eq!(soon(usual, query(&text)), refusal(reason));
    // In fields: 1 + 2 x (1 + 2 x (...)) - each level adds two fields.
    let text = bomb(30, |next| format!("x {{ ...F{next} }} y {{ ...F{next} }}"));
    assert_eq!(soon(largest, query(&text)), Ok((1 << 30) + (1 << 31) - 2));
    // More than there are numbers for.
    let text = bomb(90, |next| format!("...F{next} ...F{next}"));
    let reason = "the query costs 18446744073709551615, at most 4503599627370496 are allowed";
    assert_eq!(soon(largest, query(&text)), refusal(reason));
}

#[test]
fn cycles_are_refused() {
    let cycle = bomb(30, |next| format!("...F{next}")).replace("a { b }", "a { ...F0 }");
    assert_eq!(soon(largest, query(&cycle)), refusal("the fragment `F0` contains itself"));
    let itself = "{ ...F } fragment F on T { a { ...F } }";
    assert_eq!(soon(largest, query(itself)), refusal("the fragment `F` contains itself"));
}

#[test]
fn the_longest_queries_are_read_quickly() {
    // As many as fit, written in JSON.
    let many = |piece: &str| piece.repeat(260_000 / (json!(piece).to_string().len() - 2));
    let aliases = refusal("the query has more than 30 aliases");
    let tokens = refusal("the query has more than 15000 tokens");
    assert_eq!(soon(usual, query(&format!("{{{}}}", many("a:b ")))), aliases);
    assert_eq!(soon(usual, query(&format!("{{{}}}", many("a ")))), tokens);
    assert_eq!(soon(usual, query(&many("{a}"))), tokens);
    assert_eq!(soon(usual, query(&format!("{{a({})}}", many("b:1 ")))), tokens);
    for (begin, piece, end) in [
        ("{a", ",", "}"),
        ("{a", "\u{feff}", "}"),
        ("{a", "#\n", "}"),
        ("{a#", "x", "\n}"),
        ("{a(b:\"", "x", "\")}"),
        ("{a(b:\"", "\\\\", "\")}"),
        ("{a(b:\"\"\"", "x\n", "\"\"\")}"),
        ("{a(b:\"\"\"", "\"\"x", "\"\"\")}"),
        ("{a(b:\"\"\"", "\\\"\"\"", "\"\"\")}"),
        ("{a(b:", "9", ")}"),
        ("{", "a", "}"),
    ] {
        let text = format!("{begin}{}{end}", many(piece));
        assert_eq!(soon(usual, query(&text)), Ok(1), "{begin}{piece}");
    }
    let reason = "the query costs 18446744073709551615, at most 10000 are allowed";
    let text = format!("{{a(first: {}) {{ b }}}}", many("9"));
    assert_eq!(soon(usual, query(&text)), refusal(reason));
}

#[test]
fn a_mebibyte_of_anything_is_read_quickly() {
    let long = refusal("a query of more than 262144 bytes");
    let aliases = query(&format!("{{{}}}", "a:b ".repeat(1 << 18)));
    assert_eq!(soon(largest, aliases), long);
    assert_eq!(soon(largest, query(&"\n".repeat(1 << 19))), long);
    let name = json!({ "query": "{a}", "operationName": "x".repeat(1 << 20) });
    assert_eq!(soon(largest, name.to_string()), long);
    // A quarter of it in each of five.
    let quarter = json!({ "query": format!("{{a{}}}", ",".repeat(60_000)) });
    assert_eq!(soon(largest, json!([quarter, quarter, quarter, quarter]).to_string()), Ok(1));
    let five = json!([quarter, quarter, quarter, quarter, quarter]);
    assert_eq!(soon(largest, five.to_string()), long);

    let batch = format!("[{}]", vec!["{}"; 300_000].join(","));
    let reason = "a batch of 300000 operations, at most 10 are allowed";
    assert_eq!(soon(usual, batch), refusal(reason));

    let text = "query ($n: Int) { a(first: $n) { b } }";
    let with = |variables: &str| {
        soon(usual, format!(r#"{{"query": "{text}", "variables": {{{variables}"n": 3}}}}"#))
    };
    let entries = |count: usize| (0..count).map(|n| format!(r#""v{n}":1,"#)).collect::<String>();
    assert_eq!(with(&entries(999)), Ok(3));
    for variables in [entries(1_000), entries(100_000), r#""v":1,"#.repeat(150_000)] {
        assert!(matches!(with(&variables), Err((400, _))));
    }
    assert_eq!(with(&format!(r#""v":[{}0],"#, "0,".repeat(500_000))), Ok(3));
    let members =
        |count: usize| format!(r#""o":{{{}"w":{{{}"x":0}}}},"#, entries(count), entries(9_000));
    assert_eq!(with(&members(1_999)), Ok(3));
    for variables in [
        members(2_000),
        format!(r#""p":{{{}"w":0}},{}"#, entries(1_000), members(1_000)),
        format!(r#""o":{{{}"w":0}},"#, r#""\n":1,"#.repeat(140_000)),
    ] {
        let reason = with(&variables).unwrap_err().1;
        assert!(reason.starts_with("more than 2000 members of variables"), "{reason}");
    }
    assert_eq!(with(&format!(r#""v":"{}","#, "\\n".repeat(500_000))), Ok(3));
    let members = r#""a":1,"#.repeat(150_000);
    assert_eq!(soon(usual, format!(r#"{{{members}"query":"{{a}}"}}"#)), Ok(1));
    let members = r#""query":1,"#.repeat(100_000);
    assert!(soon(usual, format!(r#"{{{members}"query":"{{a}}"}}"#)).is_err());
}

#[test]
fn many_names_are_found_quickly() {
    // Operations that all use a fragment which each of them must read again: refused, not read.
    let repeated = refusal("the query uses its fragments in too many places");
    let fragment = format!("fragment F on T {{{}}}", "a ".repeat(20_000));
    let operations: String = (0..4_000).map(|n| format!("query Q{n}{{...F}}")).collect();
    assert_eq!(soon(largest, query(&format!("{operations}{fragment}"))), repeated);
    let arguments: String = (0..9_000).map(|n| format!("x{n}:1 ")).collect();
    let fragment = format!("fragment F on T {{ a({arguments}) }}");
    let operations: String = (0..2_000).map(|n| format!("query Q{n}{{...F}}")).collect();
    assert_eq!(soon(largest, query(&format!("{operations}{fragment}"))), repeated);
    // An input object with many members, in many places.
    let members: String = (0..9_000).map(|n| format!("x{n}:1 ")).collect();
    let fields = "a(i:$i) ".repeat(2_000);
    let text = format!("query ($i:I={{{members}}}) {{{fields}}}");
    assert_eq!(soon(largest, query(&text)), repeated);
    let objects = format!("fragment F on T {{ a(i:{{{members}}}) }}");
    assert_eq!(soon(largest, query(&format!("{operations}{objects}"))), repeated);
    // Fragments, variables and defaults, each used once.
    let fragments: String = (0..5_000).map(|n| format!("fragment F{n} on T{{a}}")).collect();
    let spreads: String = (0..5_000).map(|n| format!("...F{n} ")).collect();
    assert_eq!(soon(largest, query(&format!("{{{spreads}}}{fragments}"))), Ok(1));
    let defaults: String = (0..3_000).map(|n| format!("$v{n}:I=2 ")).collect();
    let fields: String = (0..3_000).map(|n| format!("a(first:$v{n}){{b}}")).collect();
    assert_eq!(soon(largest, query(&format!("query({defaults}){{{fields}}}"))), Ok(6_000));
}

#[test]
fn a_fragment_in_many_places_with_weights_of_their_own_is_bounded() {
    let weights = || {
        let fields: Vec<String> =
            (0..1_000).map(|n| format!(r#""p{n}.x": {{"cost": {n}}}"#)).collect();
        policy(&format!(r#", "max_cost": 1000000, "fields": {{{}}}"#, fields.join(", ")))
    };
    let places = |count: usize| (0..count).map(|n| format!("p{n}{{...F}}")).collect::<String>();
    let fragment = format!("fragment F on T {{{} x}}", "a ".repeat(4_000));
    // 0 + 1 + 2, and 1 for each of the three.
    assert_eq!(soon(weights, query(&format!("{{{}}}{fragment}", places(3)))), Ok(6));
    let repeated = refusal("the query uses its fragments in too many places");
    assert_eq!(soon(weights, query(&format!("{{{}}}{fragment}", places(900)))), repeated);
    // All operations of a batch share what a request may take.
    let half = json!({ "query": format!("{{{}}}{}", places(4), "fragment F on T {a x}") });
    assert_eq!(soon(weights, json!([half, half]).to_string()), Ok(2 * (6 + 4)));
    let small = format!("fragment F on T {{{} x}}", "a ".repeat(1_000));
    let half = json!({ "query": format!("{{{}}}{small}", places(8)) });
    assert!(soon(weights, half.to_string()).is_ok());
    assert_eq!(soon(weights, json!([half, half]).to_string()), repeated);
    // In places that are alike, it is added up once.
    let alike = "q{...F}".repeat(900);
    assert_eq!(soon(weights, query(&format!("{{{alike}}}{fragment}"))), Ok(900));
}

#[test]
fn huge_and_negative_numbers_do_not_wrap() {
    let policy = unbounded("");
    let most = "the query costs 18446744073709551615, at most 4503599627370496 are allowed";
    for text in [
        "{ a(first: 18446744073709551615) { b } }",
        "{ a(first: 18446744073709551616) { b } }",
        "{ a(first: 99999999999999999999999999999999999999) { b } }",
        "{ a(first: 1e300) { b } }",
        "{ a(first: 1e99999) { b } }",
        "{ a(first: \"99999999999999999999999\") { b } }",
        "{ a(first: 9999999999) { b(first: 9999999999) { c } } }",
        "mutation { a(first: 18446744073709551615) { b } }",
        "{ a(first: 18446744073709551615) { b } c(first: 18446744073709551615) { b } }",
    ] {
        assert_eq!(refused(&policy, &query(text)), (400, most.to_owned()), "{text}");
    }
    let text = "query ($n: Int) { a(first: $n) { b } }";
    for n in ["18446744073709551615", "18446744073709551616", "1e300"] {
        let body = format!(r#"{{"query": "{text}", "variables": {{"n": {n}}}}}"#);
        assert_eq!(refused(&policy, &body), (400, most.to_owned()), "{n}");
    }
    for n in ["-1", "-9223372036854775808", "-9223372036854775809", "-1e300"] {
        assert_eq!(
            cost(&policy, &text.replace("$n)", &format!("{n})")).replace("($n: Int)", "")),
            10
        );
        let body = format!(r#"{{"query": "{text}", "variables": {{"n": {n}}}}}"#);
        assert_eq!(charged(&post(&policy, &body)), Ok(10), "{n}");
    }
}
