//! What each mistake in a configuration says, and where.

use super::*;

/// All mistakes, `path: message`, sorted.
fn mistakes(config: &str) -> Vec<String> {
    let mistakes = Instance::<LlmBudget>::new(config).unwrap_err();
    let mut all: Vec<String> =
        mistakes.iter().map(|mistake| format!("{}: {}", mistake.path, mistake.message)).collect();
    all.sort();
    all
}

/// The only mistake of a configuration for OpenAI.
fn mistake(more: &str) -> String {
    let all = mistakes(&format!(r#"{{"api": "openai", {more}}}"#));
    assert_eq!(all.len(), 1, "{more}: {all:#?}");
    all[0].clone()
}

#[track_caller]
fn starts(found: &str, expected: &str) {
    assert!(found.starts_with(expected), "{found}\nexpected {expected}");
}

#[test]
fn an_api_is_named_or_described_and_not_both() {
    let neither = mistakes(&format!("{{{}}}", tokens()));
    assert_eq!(neither.len(), 1);
    starts(&neither[0], "api: found neither `api` nor `pointers`, expected `api = \"openai\"`");
    starts(
        &mistake(&format!(r#"{}, "pointers": {{"text": ["/a"]}}"#, tokens())),
        "pointers: found pointers beside `api`, expected only one of the two",
    );
    let misspelt = mistakes(&format!(r#"{{"api": "opnai", {}}}"#, tokens()));
    assert_eq!(misspelt.len(), 1, "{misspelt:?}");
    starts(&misspelt[0], "api: found the unknown word `opnai`");
    assert!(misspelt[0].ends_with("`openai` is near"), "{misspelt:?}");
}

#[test]
fn there_is_a_limit_at_least_and_there_are_16_at_most() {
    assert_eq!(
        mistakes(r#"{"api": "gemini"}"#),
        [
            ": found no limits, expected one of `tokens`, `input_tokens`, `output_tokens`, `money`, `requests`"
        ]
    );
    starts(&mistake(r#""tokens": []"#), "tokens: found 0 limits, expected 1 to 16");
    let many = |start: usize| (start..start + 9).map(|index| limit(&format!("l{index}"), 9));
    let lists = format!(
        r#""tokens": [{}], "requests": [{}]"#,
        many(0).collect::<Vec<_>>().join(","),
        many(9).collect::<Vec<_>>().join(",")
    );
    starts(&mistake(&lists), ": found 18 limits in all lists, expected at most 16");
    let all = |count: usize| (0..count).map(|index| limit(&format!("l{index}"), 9));
    let sixteen = format!(r#""tokens": [{}]"#, all(16).collect::<Vec<_>>().join(","));
    starts(
        &mistake(&sixteen),
        ": found 16 limits in all lists, and the one of `in_flight`, expected at most 16",
    );
    openai(&format!("{sixteen}, \"in_flight\": 0"));
}

#[test]
fn a_name_is_in_one_list_only() {
    starts(
        &mistake(&format!("{}, {}", tokens(), list("requests", "all", 5))),
        "requests[0].name: found \"all\", which is also in `tokens`, expected a name that no other",
    );
    starts(
        &mistake(&format!(r#""output_tokens": [{0}, {0}]"#, limit("a", 5))),
        "output_tokens[1].name: found \"a\" a second time",
    );
}

#[test]
fn no_limit_has_the_name_of_the_one_of_in_flight() {
    let named = list("tokens", "in-flight", 5);
    starts(
        &mistake(&named),
        "tokens: found a limit with the name \"in-flight\", expected another name, or `in_flight = 0`",
    );
    openai(&format!("{named}, \"in_flight\": 0"));
    let own = r#""requests": [{"name": "in-flight", "algorithm": "concurrency", "quota": 9}]"#;
    openai(&format!("{}, {own}", tokens()));
}

#[test]
fn floors_are_whole_numbers_of_known_kinds() {
    let with = |floors: &str| mistake(&format!("{}, \"references\": {floors}", tokens()));
    starts(
        &with(r#"{"image": 4503599627370497}"#),
        "references.image: found 4503599627370497, expected 0 to 4503599627370496",
    );
    starts(&with(r#"{"image": -1}"#), "references.image: found -1, expected a whole");
    starts(&with(r#"{"video": 1}"#), "references.video: found the unknown key `video`");
    starts(&with("7"), "references: found 7");
}

#[test]
fn a_limit_that_is_settled_has_no_cost_unit_or_refund_of_its_own() {
    let with =
        |more: &str| mistake(&tokens().replace("\"period\"", &format!("{more}, \"period\"")));
    starts(
        &with(r#""cost": 5"#),
        "tokens[0].cost: found 5, expected nothing: a request is charged its tokens",
    );
    starts(&with(r#""cost": "x""#), "tokens[0].cost: found \"x\", expected nothing");
    starts(&with(r#""refund": "never""#), "tokens[0].refund: found \"never\", expected nothing");
    starts(
        &with(r#""unit": "requests""#),
        "tokens[0].unit: found \"requests\", expected nothing: in `tokens` it is \"tokens\"",
    );
    // What they are anyway may be written.
    let same = r#""cost": 1, "refund": "by_settle", "unit": "tokens", "period""#;
    let policy = openai(&tokens().replace("\"period\"", same));
    assert_eq!(cost(&policy, &post(CHAT, &[])), 4_196);
    let debt = |written: &str| {
        let policy =
            openai(&tokens().replace("\"period\"", &format!("\"debt\": {written}, \"period\"")));
        decide(&policy, &post(CHAT, &[])).limits()[0].debt
    };
    assert_eq!(debt("7"), Some(weir_policy::Debt::Units(7)));
    assert_eq!(debt("\"window\""), Some(weir_policy::Debt::Window));
}

#[test]
fn limits_that_cannot_be_settled_are_for_requests() {
    for (name, settings) in [
        ("leaky_bucket", r#""quota": 5, "period": "1s", "max_delay": "1s""#),
        ("concurrency", r#""quota": 5"#),
        ("script", r#""script": "mine""#),
    ] {
        let list = |setting: &str| {
            format!(r#""{setting}": [{{"name": "a", "algorithm": "{name}", {settings}}}]"#)
        };
        for setting in ["tokens", "input_tokens", "output_tokens"] {
            let expected = format!(
                "{setting}[0].algorithm: found `{name}`, expected an algorithm whose units can be given back"
            );
            starts(&mistake(&list(setting)), &expected);
        }
        starts(&mistake(&format!("{}, {MODELS}", list("money"))), "money[0].algorithm: found");
        openai(&list("requests"));
    }
}

#[test]
fn requests_are_not_settled() {
    let with = |more: &str| {
        mistake(&list("requests", "a", 5).replace("\"period\"", &format!("{more}, \"period\"")))
    };
    starts(
        &with(r#""refund": "by_settle""#),
        "requests[0].refund: found \"by_settle\", expected another",
    );
    starts(&with(r#""debt": 5"#), "requests[0].debt: found 5, expected none");
}

#[test]
fn a_limit_is_checked_with_the_debt_that_it_gets() {
    // Nobody could count this quota and as much debt.
    let found = mistake(&list("tokens", "a", (1 << 51) + 1));
    starts(&found, "tokens[0].debt: found \"allowance\", expected 0 to");
    openai(&list("tokens", "a", 1 << 51));
    starts(&mistake(&list("tokens", "a", 5).replace("1m", "1x")), "tokens[0].period: found \"1x\"");
}

#[test]
fn models_have_names_and_prices() {
    let money = list("money", "usd", 500);
    let with = |models: &str| mistake(&format!(r#"{money}, "models": {models}"#));
    starts(&mistake(&money), "models: found no prices, expected a price of each model");
    starts(&with(r#"{"a": {"input": 5}}"#), "models.a.output: found no `output`, expected a price");
    starts(&with(r#"{"a": {"output": 5}}"#), "models.a.input: found no `input`, expected a price");
    starts(
        &with(r#"{"a": {"input": 5, "output": -1}}"#),
        "models.a.output: found -1, expected a whole",
    );
    starts(&with(r#"{"a": {"input": 2.5, "output": 1}}"#), "models.a.input: found 2.5");
    starts(
        &with(r#"{"a": {"input": 5, "output": 4503599627370497}}"#),
        "models.a.output: found 4503599627370497, expected 0 to",
    );
    starts(
        &with(r#"{"a": {"input": 5, "output": 5, "price": 5}}"#),
        "models.a.price: found the unknown key `price`",
    );
    for max in ["0", "4503599627370497"] {
        let model = format!(r#"{{"a": {{"input": 5, "output": 5, "max_output": {max}}}}}"#);
        starts(&with(&model), &format!("models.a.max_output: found {max}, expected 1 to"));
    }
    for name in ["", "a*b", "**", &"x".repeat(257)] {
        let model = format!(r#"{{"{name}": {{"input": 5, "output": 5}}}}"#);
        starts(&with(&model), &format!("models.{name}: found the name {name:?}, expected a model"));
    }
    for (model, expected) in [
        (
            r#""cached_input": 4503599627370497"#,
            "cached_input: found 4503599627370497, expected 0 to",
        ),
        (r#""cache_write": -1"#, "cache_write: found -1, expected a whole"),
        (
            r#""above": [{"input": 1, "output": 1}]"#,
            "above[0]: found no `input_tokens`, expected this",
        ),
        (
            r#""above": [{"input_tokens": 9, "input": 1}]"#,
            "above[0].output: found no `output`, expected a price",
        ),
        (
            r#""above": [{"input_tokens": 0, "input": 1, "output": 1}]"#,
            "above[0].input_tokens: found 0, expected more than 0, and at most 4503599627370496",
        ),
        (
            r#""above": [{"input_tokens": 9, "input": 1, "output": 1}, {"input_tokens": 9, "input": 1, "output": 1}]"#,
            "above[1].input_tokens: found 9, expected more than 9",
        ),
        (
            r#""tiers": {"flex": 10001}"#,
            "tiers.flex: found 10001, expected 0 to 10000 percent of the model's prices",
        ),
        (r#""tiers": {"": 50}"#, "tiers.: found the name \"\", expected a tier of 1 to 64 bytes"),
        (r#""tiers": {"flex": 0.5}"#, "tiers.flex: found 0.5, expected a whole"),
    ] {
        let model = format!(r#"{{"a": {{"input": 5, "output": 5, {model}}}}}"#);
        starts(&with(&model), &format!("models.a.{expected}"));
    }
    let listed = |count: u64, item: &dyn Fn(u64) -> String| {
        (1..=count).map(item).collect::<Vec<_>>().join(",")
    };
    let step = |index| format!(r#"{{"input_tokens": {index}, "input": 1, "output": 1}}"#);
    let steps = listed(5, &step);
    let steps = format!(r#"{{"a": {{"input": 5, "output": 5, "above": [{steps}]}}}}"#);
    starts(&with(&steps), "models.a.above: found 5 steps, expected at most 4");
    let tiers = listed(17, &|index| format!(r#""t{index}": 100"#));
    let tiers = format!(r#"{{"a": {{"input": 5, "output": 5, "tiers": {{{tiers}}}}}}}"#);
    starts(&with(&tiers), "models.a.tiers: found 17 tiers, expected at most 16");
    // Without money no price is needed.
    openai(&format!(r#"{}, "models": {{"a": {{"max_output": 9}}}}"#, tokens()));
}

#[test]
fn numbers_have_their_ranges() {
    for (setting, wrong, expected) in [
        ("default_max_output", "0", "found 0, expected 1 to 4503599627370496"),
        ("default_max_output", "4503599627370497", "found 4503599627370497, expected 1 to"),
        ("bytes_per_token", "0", "found 0, expected 1 to 1024"),
        ("bytes_per_token", "1025", "found 1025, expected 1 to 1024"),
        ("bytes_per_token", "3.5", "found 3.5, expected a whole number"),
        ("in_flight", "1000001", "found 1000001, expected 0 to 1000000"),
        ("least_output", "0", "found 0, expected 1 to"),
        ("hard_cut", "4503599627370497", "found 4503599627370497, expected 0 to"),
        ("read_on", "30", "found 30, expected a duration from \"0s\" to \"10m\""),
        ("read_on", "\"11m\"", "found \"11m\", expected a duration"),
        ("read_on", "\"soon\"", "found \"soon\", expected a duration"),
        ("set_maximum", "1", "found 1, expected true or false"),
        ("partial", "\"no\"", "found \"no\", expected true or false"),
        (
            "without_usage",
            "\"free\"",
            "found the unknown word `free`, expected `reserved` or `estimated`",
        ),
        ("ipv6_prefix", "129", "found 129, expected 0 to 128"),
    ] {
        let found = mistake(&format!(r#"{}, "{setting}": {wrong}"#, tokens()));
        starts(&found, &format!("{setting}: {expected}"));
    }
    starts(&mistake(&format!(r#"{}, "bypass": ["x"]"#, tokens())), "bypass[0]: found \"x\"");
}

#[test]
fn replies_are_cut_by_tokens_alone() {
    let cut = r#""hard_cut": 64"#;
    starts(
        &mistake(&format!("{}, {}, {cut}", tokens(), list("output_tokens", "b", 5))),
        "hard_cut: found 64, with limits in `output_tokens`, expected 0, or these limits with `shadow = true`",
    );
    starts(
        &mistake(&format!("{}, {cut}", list("requests", "b", 5))),
        "hard_cut: found 64, without limits in `tokens`, expected 0",
    );
    for counts in ["\"shadow\": true", "\"conditional\": false"] {
        let other = format!(
            r#""input_tokens": [{{"name": "b", "algorithm": "quota", "quota": 5, "calendar": "day", {counts}}}]"#
        );
        openai(&format!("{}, {other}, {cut}", tokens()));
    }
}

#[test]
fn pointers_are_pointers_each_written_once() {
    let mistake = |pointers: &str| {
        let all = mistakes(&format!(r#"{{"pointers": {{{pointers}}}, {}}}"#, tokens()));
        assert_eq!(all.len(), 1, "{pointers}: {all:#?}");
        all[0].clone()
    };
    starts(
        &mistake(r#""model": "/model""#),
        "pointers: found no `input`, `output` or `text`, expected one",
    );
    let (long, deep) = (format!("/{}", "x".repeat(200)), "/x".repeat(17));
    for wrong in ["", "model", "a/b", "/a~2", "/a~", &long, &deep] {
        let found = mistake(&format!(r#""model": "{wrong}", "text": ["/a"]"#));
        starts(&found, &format!("pointers.model: found {wrong:?}, expected a JSON pointer"));
    }
    starts(
        &mistake(r#""text": ["/a", "b"]"#),
        "pointers.text[1]: found \"b\", expected a JSON pointer",
    );
    starts(&mistake(r#""text": ["/a", "/a"]"#), "pointers.text[1]: found \"/a\" a second time");
    starts(
        &mistake(r#""text": ["/a"], "maxima": ["/b", "/b"]"#),
        "pointers.maxima[1]: found \"/b\" a second",
    );
    // Only a reply has values at many places.
    for (request, at) in [
        (r#""model": "/a/*""#, "model"),
        (r#""maxima": ["/a", "/*/b"]"#, "maxima[1]"),
        (r#""references": ["/*"]"#, "references[0]"),
        (r#""include_usage": "/*""#, "include_usage"),
    ] {
        let found = mistake(&format!(r#"{request}, "text": ["/a/*"]"#));
        starts(&found, &format!("pointers.{at}: found"));
        assert!(found.ends_with("expected a pointer to one place, without `*`"), "{found}");
    }
    let twice = r#""input": [{"pointer": "/a"}], "output": [{"pointer": "/a", "gather": "last"}]"#;
    starts(&mistake(twice), "pointers.output[0]: found \"/a\" a second time");
    starts(
        &mistake(r#""output": [{"pointer": "/a", "gather": "bytes"}]"#),
        "pointers.output[0].gather: found the unknown word `bytes`, expected one of `last`, `max`, `sum`",
    );
    starts(
        &mistake(r#""texts": ["/a"], "text": ["/a"]"#),
        "pointers.texts: found the unknown key `texts`",
    );
    let listed = |count: usize| {
        (0..count).map(|index| format!("\"/{index}\"")).collect::<Vec<_>>().join(",")
    };
    starts(
        &mistake(&format!(r#""text": [{}]"#, listed(17))),
        "pointers: found 34 numbers to read, two for each `text`, expected at most 32",
    );
    starts(
        &mistake(&format!(r#""text": ["/a"], "maxima": [{}]"#, listed(9))),
        "pointers.maxima: found 9 of them, expected at most 8",
    );
    starts(
        &mistake(&format!(r#""text": ["/a"], "references": [{}]"#, listed(9))),
        "pointers.references: found 9 of them, expected at most 8",
    );
}

#[test]
fn a_maximum_is_set_only_where_there_is_one() {
    let all = mistakes(&format!(
        r#"{{"pointers": {{"text": ["/a"]}}, "set_maximum": true, {}}}"#,
        tokens()
    ));
    assert_eq!(all.len(), 1);
    starts(&all[0], "set_maximum: found true, expected false, or `pointers.maxima`");
}

#[test]
fn all_errors_come_at_once() {
    let config = format!(
        r#"{{"api": "opnai", "partail": true, "hard_cut": 5, "least_output": 0, {}, {}, {}}}"#,
        list("tokens", "a", 5).replace("\"quota\": 5", "\"quota\": \"x\""),
        list("money", "b", 5).replace("\"period\"", "\"cost\": 3, \"period\""),
        r#""models": {"gpt*4": {"input": 1, "output": "x"}}"#
    );
    let found = mistakes(&config);
    let expected = [
        "api: found the unknown word `opnai`",
        "hard_cut: found 5, with limits in `money`",
        "least_output: found 0, expected 1 to",
        "models.gpt*4.output: found \"x\"",
        "models.gpt*4: found the name \"gpt*4\"",
        "money[0].cost: found 3, expected nothing: a request is charged its micro-dollars",
        "partail: found the unknown key `partail`",
        "tokens[0].quota: found \"x\"",
    ];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        starts(found, expected);
    }
}

/// Mistakes of the SDK's own and of this policy, in one list and between lists.
#[test]
fn an_error_in_a_limit_hides_no_other() {
    let config = r#"{"api": "openai",
        "tokens": [{"name": "a", "algorithm": "gcra", "quota": "x", "period": "1m"},
                   {"name": "b", "algorithm": "gcra", "quota": 5, "period": "1m", "cost": 7}],
        "requests": [{"name": "a", "algorithm": "gcra", "quota": 5, "period": "1x"},
                     {"name": "c", "algorithm": "gcra", "quota": 5, "period": "1m", "refund": "by_settle"}],
        "models": {"m*x": {"max_output": "y"}}, "hard_cut": -1}"#;
    let found = mistakes(config);
    let expected = [
        "hard_cut: found -1",
        "models.m*x.max_output: found \"y\"",
        "models.m*x: found the name \"m*x\"",
        "requests[0].name: found \"a\", which is also in `tokens`",
        "requests[0].period: found \"1x\"",
        "requests[1].refund: found \"by_settle\"",
        "tokens[0].quota: found \"x\"",
        "tokens[1].cost: found 7",
    ];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    found.iter().zip(expected).for_each(|(found, expected)| starts(found, expected));
}
