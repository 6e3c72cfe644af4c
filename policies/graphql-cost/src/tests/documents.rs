//! What is a document and what is not, and what is too much of one.

use super::*;

/// Documents that the specification allows.
const VALID: &[&str] = &[
    "{a}",
    "\u{feff}{a}",
    "query{a}",
    "query Q{a}",
    "query Q @d {a}",
    "query Q($a:Int){a}",
    "query($a:[Int!]!,$b:String=\"x\" @d){a}",
    "query($a:In={b:[1,{c:2}],d:E}){a}",
    "\"what it is for\" query Q(\"d\" $a: Int = 1 @d) {a}",
    "\"\"\"what it is for\"\"\" fragment F on T {a} {...F}",
    "{query}",
    "{fragment mutation subscription on true null}",
    "{on:on}",
    "query on {a}",
    "{a @skip(if:true)@x}",
    "{a{b{c}}}",
    "{a,,,b,}",
    "{a #comment }\n}",
    "{a #comment }\r}",
    "{a(b:1 c:-0 d:0.5 e:1e9 f:-1.5E-3)}",
    "{a(b:true c:null d:E e:$f)}",
    "{a(b:[] c:[1,[2]] d:{} e:{f:{g:$h}})}",
    r#"{a(b:"")}"#,
    r#"{a(b:"x\"\\\/\b\f\n\r\t\u00e9\u{1F600}é")}"#,
    r#"{a(b:""""""c:"""x""y\"""z\\x"""d:"""\"""""")}"#,
    "{a(b:\"\"\"x\n} y\"\"\")}",
    "{...on T{a}...@d{b}...{c}}",
    "{a ...F} fragment F on T@d{a}",
    "{a ...onward} fragment onward on T{a}",
    "{a(b: $ c)}",
    "query A{a} query B{a} mutation C{a} subscription D{a}",
];

/// Texts that it does not allow, and where that is found.
const INVALID: &[(&str, &str)] = &[
    ("", "line 1, column 1: found the end, expected an operation or a fragment"),
    ("#", "line 1, column 2: found the end, expected an operation or a fragment"),
    ("{", "line 1, column 2: found the end, expected a field, `...` or `}`"),
    ("{}", "line 1, column 2: found `}`, expected a field, `...` or `}`"),
    ("{a", "line 1, column 3: found the end, expected a field, `...` or `}`"),
    ("{a}}", "line 1, column 4: found `}`, expected an operation or a fragment"),
    ("{a{}}", "line 1, column 4: found `}`, expected a field, `...` or `}`"),
    ("{a()}", "line 1, column 4: found `)`, expected a name"),
    ("{a(b)}", "line 1, column 5: found `)`, expected `:` and a value"),
    ("{a(b:)}", "line 1, column 6: found `)`, expected a value"),
    ("{a(b:1", "line 1, column 7: found the end, expected a name"),
    ("{a(b:$)}", "line 1, column 7: found `)`, expected a name"),
    ("{a(b:[1)}", "line 1, column 8: found `)`, expected a value"),
    ("{a(b:{c}})}", "line 1, column 8: found `}`, expected `:` and a value"),
    ("{a: b: c}", "line 1, column 6: found `:`, expected a field, `...` or `}`"),
    ("{a:}", "line 1, column 4: found `}`, expected a name"),
    ("{a @}", "line 1, column 5: found `}`, expected a name"),
    ("{...}", "line 1, column 5: found `}`, expected `{`"),
    ("{...on}", "line 1, column 7: found `}`, expected a name"),
    ("{...onT{a}}", "line 1, column 8: found `{`, expected a field, `...` or `}`"),
    ("{. . .a}", "line 1, column 2: found `.`, expected a token of GraphQL"),
    ("{a!}", "line 1, column 3: found `!`, expected a field, `...` or `}`"),
    ("{é}", "line 1, column 2: found `é`, expected a token of GraphQL"),
    ("{a\u{a0}b}", "line 1, column 3: found `\u{a0}`, expected a token of GraphQL"),
    ("{a \u{0}}", "line 1, column 4: found `?`, expected a token of GraphQL"),
    ("Query{a}", "line 1, column 1: found `Query`, expected an operation or a fragment"),
    ("type T{a:Int}", "line 1, column 1: found `type`, expected an operation or a fragment"),
    (
        "{a} extend type T{a:Int}",
        "line 1, column 5: found `extend`, expected an operation or a fragment",
    ),
    ("\"d\" {a}", "line 1, column 5: found `{`, expected an operation or a fragment"),
    ("query(){a}", "line 1, column 7: found `)`, expected `$` and a variable's name"),
    ("query($a){a}", "line 1, column 9: found `)`, expected `:` and a type"),
    ("query($a:){a}", "line 1, column 10: found `)`, expected a name"),
    ("query($a:[Int){a}", "line 1, column 14: found `)`, expected `]`"),
    ("query Q", "line 1, column 8: found the end, expected `{`"),
    ("fragment on on T{a}", "line 1, column 10: found `on`, expected a fragment's name"),
    ("fragment F T{a}", "line 1, column 12: found `T`, expected `on` and a type"),
    ("fragment F($a:Int) on T{a}", "line 1, column 11: found `(`, expected `on` and a type"),
    ("{a(b:01)}", "line 1, column 7: found `1`, expected the end of a number"),
    ("{a(b:1x)}", "line 1, column 7: found `x`, expected the end of a number"),
    ("{a(b:0xF)}", "line 1, column 7: found `xF`, expected the end of a number"),
    ("{a(b:1.)}", "line 1, column 8: found `)`, expected a digit"),
    ("{a(b:1.5.5)}", "line 1, column 9: found `.`, expected the end of a number"),
    ("{a(b:1e)}", "line 1, column 8: found `)`, expected a digit"),
    ("{a(b:-)}", "line 1, column 7: found `)`, expected a digit"),
    ("{a(b:+1)}", "line 1, column 6: found `+`, expected a token of GraphQL"),
    ("{a(b:.5)}", "line 1, column 6: found `.`, expected a token of GraphQL"),
    ("{a(b:\"x\ny\")}", "line 1, column 8: found `?`, expected the end of a string"),
    ("{a(b:\"x", "line 1, column 8: found the end, expected the end of a string"),
    (r#"{a(b:"\x")}"#, r"line 1, column 7: found `\`, expected an escape of GraphQL"),
    (r#"{a(b:"\"#, r"line 1, column 7: found `\`, expected an escape of GraphQL"),
    (r#"{a(b:"""x\\""")}"#, "line 1, column 6: found a quote, expected a block string with an end"),
    (r#"{a(b:"""x\""")}"#, "line 1, column 6: found a quote, expected a block string with an end"),
    ("{\n  a\r\n  b\r  é c(\n}", "line 4, column 3: found `é`, expected a token of GraphQL"),
];

#[test]
fn valid_documents_are_read() {
    let policy = unbounded("");
    for text in VALID {
        let decision = post(&policy, &query(text));
        assert!(charged(&decision).is_ok(), "{text}: {:?}", charged(&decision));
    }
}

#[test]
fn invalid_documents_are_refused_with_the_place() {
    let policy = unbounded("");
    for (text, expected) in INVALID.iter().skip(1) {
        assert_eq!(refused(&policy, &query(text)), (400, (*expected).to_owned()), "{text}");
    }
    // An empty text counts as none.
    assert_eq!(refused(&policy, &query(INVALID[0].0)), (400, "there is no query".to_owned()));
}

#[test]
fn each_beginning_of_a_document_is_refused_or_charged() {
    let policy = unbounded("");
    for text in VALID {
        for (at, _) in text.char_indices() {
            let _ = charged(&post(&policy, &query(&text[..at])));
            let _ = charged(&post(&policy, &query(&text[at..])));
        }
    }
}

#[test]
fn fragments_and_names_must_fit_each_other() {
    let policy = unbounded("");
    for (text, expected) in [
        ("{ ...F }", "there is no fragment `F`"),
        ("{ ...F } fragment F on T { ...G }", "there is no fragment `G`"),
        ("{ ...F } fragment F on T { a } fragment F on T { b }", "the name `F` is given twice"),
        ("query A { a } query A { b }", "the name `A` is given twice"),
        ("query B { a } query A { a } mutation B { b }", "the name `B` is given twice"),
        ("{ ...F } fragment F on T { ...F }", "the fragment `F` contains itself"),
        (
            "{ a { ...F } } fragment F on T { b { ...G } } fragment G on T { ... { ...F } }",
            "the fragment `F` contains itself",
        ),
        ("fragment F on T { a }", "the query has no operation"),
    ] {
        assert_eq!(refused(&policy, &query(text)), (400, expected.to_owned()), "{text}");
    }
    // An operation and a fragment may have the same name, and so may several without a name.
    for text in ["query F { ...F } fragment F on T { a }", "{ a } { b }"] {
        assert_eq!(cost(&policy, text), 1, "{text}");
    }
}

#[test]
fn depth_counts_fields_and_not_fragments() {
    let policy = policy(r#", "max_depth": 3"#);
    for text in [
        "{ a { b { c } } }",
        "{ a { b { __typename } } }",
        "{ ... { ... { ... on A { a { ... { b { c } } } } } } }",
        "{ a { ...F } } fragment F on A { b { c } }",
        // Not what is not run.
        "query A { a } fragment F on A { a { b { c { d } } } }",
    ] {
        assert!(charged(&post(&policy, &query(text))).is_ok(), "{text}");
    }
    for text in [
        "{ a { b { c { d } } } }",
        "{ a { b { c { __typename } } } }",
        "{ a { ...F } } fragment F on A { b { ... { c { d } } } }",
        "{ x } { a { b { c { d } } } }",
    ] {
        let expected = "the query is 4 fields deep, at most 3 are allowed".to_owned();
        assert_eq!(refused(&policy, &query(text)), (400, expected), "{text}");
    }
    let named = json!({
        "query": "query A { x } query B { a { b { c { d } } } }",
        "operationName": "A",
    });
    assert_eq!(charged(&post(&policy, &named.to_string())), Ok(1));
}

#[test]
fn costs_tokens_and_aliases_have_a_maximum_each() {
    let policy = policy(r#", "max_cost": 5, "max_tokens": 13, "max_aliases": 2"#);
    assert_eq!(cost(&policy, "{ a(first: 5) { b } }"), 5);
    let decision = post(&policy, &query("query Q { a(first: 6) { b } }"));
    let expected = "the query costs 6, at most 5 are allowed";
    assert_eq!(charged(&decision), Err((400, expected)));
    assert_eq!((label(&decision, "cost"), label(&decision, "operation")), (Some("6"), Some("Q")));

    // 13 tokens; spaces, commas and comments do not count.
    assert_eq!(cost(&policy, "{ a b c , , d e # f g\n ...{ h i } j }"), 1);
    let expected = (400, "the query has more than 13 tokens".to_owned());
    assert_eq!(refused(&policy, &query("{ a b c d e f g h i j k l }")), expected);

    assert_eq!(cost(&policy, "{ x: a y: b c }"), 1);
    let expected = (400, "the query has more than 2 aliases".to_owned());
    assert_eq!(refused(&policy, &query("{ x: a y: b z: c }")), expected);
    assert_eq!(refused(&policy, &query("{ x: a ... { y: b z: b } }")), expected);
}

#[test]
fn introspection_may_be_refused() {
    let refusing = policy(r#", "introspection": false"#);
    for text in [
        "{ __schema { types { name } } }",
        "{ __type(name: \"A\") { name } }",
        "{ x: __schema { types { name } } }",
        "query A { a } query B { ...F } fragment F on Query { __schema { types { name } } }",
    ] {
        let expected = (403, "introspection is not allowed".to_owned());
        assert_eq!(refused(&refusing, &query(text)), expected, "{text}");
        assert!(cost(&policy(""), text) >= 1, "{text}");
    }
    assert_eq!(cost(&refusing, "{ __typename a { __typename } }"), 1);
}
