//! What a request is charged when it comes, and what is asked of its reply.

use weir_policy::{Debt, Gather, Refund};

use super::*;

#[test]
fn input_is_estimated_and_the_maximum_of_output_is_reserved() {
    let policy = openai(&format!("{}, {MODELS}", all_lists()));
    let decision = decide(
        &policy,
        &post(CHAT, &[("body:/model", "gpt-4o"), ("body.json:/max_tokens", "1000")]),
    );
    // 100 tokens at 2.50 and 1,000 at 10 dollars a million.
    let expected =
        [("tokens", 1_100), ("input-tokens", 100), ("output-tokens", 1_000), ("money", 10_250)];
    assert_eq!(costs(&decision), expected);
    assert_eq!(label(&decision), "gpt-4o");
    assert_eq!(read_on_ms(&decision), 30_000);
    let units = ["tokens", "input-tokens", "output-tokens", "micro-dollars"];
    for (limit, unit) in decision.limits().iter().zip(units) {
        assert_eq!(limit.unit.as_deref(), Some(unit));
        assert_eq!((limit.refund, limit.debt), (Refund::BySettle, Some(Debt::Allowance)));
        assert_eq!(limit.key, "\\@192.0.2.1");
    }
}

#[test]
fn input_is_rounded_up_and_is_one_token_at_least() {
    let policy = openai(&format!("{}, \"bytes_per_token\": 7", tokens()));
    for (bytes, input) in [("0", 1), ("1", 1), ("7", 1), ("8", 2), ("700", 100)] {
        let mut facts = post(CHAT, &[("body.json:/max_tokens", "50")]);
        facts.retain(|(name, _)| *name != "body.bytes");
        facts.push(("body.bytes", bytes));
        assert_eq!(cost(&policy, &facts), input + 50, "{bytes}");
    }
}

#[test]
fn a_request_that_names_no_maximum_reserves_its_models_or_the_default() {
    let policy = openai(&format!("{}, {MODELS}, \"default_max_output\": 700", tokens()));
    assert_eq!(cost(&policy, &post(CHAT, &[("body:/model", "gpt-4o")])), 2_100);
    assert_eq!(cost(&policy, &post(CHAT, &[("body:/model", "gpt-4o-mini")])), 800);
    assert_eq!(cost(&policy, &post(CHAT, &[])), 800);
    assert_eq!(cost(&openai(&tokens()), &post(CHAT, &[])), 4_196);
    // `null` is what libraries write for nothing, and some servers take 0 for none at all.
    for none in ["null", "0"] {
        assert_eq!(cost(&policy, &post(CHAT, &[("body.json:/max_tokens", none)])), 800, "{none}");
    }
}

#[test]
fn only_posts_are_charged_for_tokens() {
    let flight = r#""requests": [{"name": "flight", "algorithm": "concurrency", "quota": 8}]"#;
    let policy = openai(&format!("{}, {flight}", tokens()));
    let facts = [("method", "GET"), ("path", "/v1/models"), ("client-ip", "192.0.2.1")];
    let decision = decide(&policy, &facts);
    assert_eq!(costs(&decision), [("flight", 1)]);
    assert!(decision.settle_with.is_none() && meters(&decision).is_empty());
    assert_eq!(decide(&openai(&tokens()), &facts).verdict, Verdict::Bypass);
    assert_eq!(costs(&decide(&policy, &post(CHAT, &[]))), [("all", 4_196), ("flight", 1)]);
    // In whatever case a server takes the method.
    let mut lower = post(CHAT, &[]);
    lower[0].1 = "post";
    assert_eq!(decide(&policy, &lower).limits().len(), 2);
}

#[test]
fn limits_on_requests_alone_read_no_body() {
    let flight = r#""requests": [{"name": "flight", "algorithm": "concurrency", "quota": 8}]"#;
    let policy = openai(flight);
    let read = ["method", "client-ip", "upgrade", "path", "upstream-path"];
    assert_eq!(policy.manifest().request_facts, read);
    let facts = [("method", "POST"), ("path", CHAT), ("client-ip", "192.0.2.1")];
    let decision = decide(&policy, &facts);
    assert_eq!(costs(&decision), [("flight", 1)]);
    assert!(decision.body_changes.is_empty() && decision.settle_with.is_none());
}

#[test]
fn the_manifest_names_what_is_read() {
    let key = r#""tokens": [{"name": "a", "algorithm": "gcra", "quota": 9, "period": "1m", "key": "{header.authorization}"}]"#;
    let facts = |api: &str| of(api, key).manifest().request_facts;
    assert_eq!(
        facts("openai"),
        [
            "method",
            "client-ip",
            "upgrade",
            "path",
            "upstream-path",
            "body.type",
            "body.bytes",
            "body:/model",
            "body.json:/max_tokens",
            "body.json:/max_completion_tokens",
            "body.json:/max_output_tokens",
            "body.json:/n",
            "body.json:/best_of",
            "body.json:/stream",
            "body.json:/background",
            "body.json:/prompt/1",
            "body.json:/service_tier",
            "body.json:",
            "header.authorization"
        ]
    );
    let anthropic = ["body:/model", "body.json:/max_tokens", "body.json:/stream"];
    assert_eq!(facts("anthropic")[7..10], anthropic);
    let gemini = facts("gemini");
    assert!(gemini.contains(&"query.alt".to_owned()));
    assert!(gemini.contains(&"body.json:/generation_config/max_output_tokens".to_owned()));
    assert!(!gemini.iter().any(|fact| fact == "body:/model"), "it is in the path");
    assert!(of("gemini", key).manifest().pure);
}

#[test]
fn prices_are_of_the_longest_name_and_are_rounded_up() {
    let policy = openai(&format!("{}, {MODELS}", list("money", "usd", 1_000_000_000)));
    for (model, cost_expected, label_expected) in [
        // 100 tokens of input and 1 of output.
        ("gpt-4o", 260, "gpt-4o"),
        ("gpt-4o-mini", 16, "gpt-4o-mini*"),
        ("gpt-4o-mini-2024-07-18", 16, "gpt-4o-mini*"),
        ("gpt-4o-mini-high", 115, "gpt-4o-mini-high*"),
        ("gpt-4o-mini-highest", 115, "gpt-4o-mini-high*"),
    ] {
        let facts = post(CHAT, &[("body:/model", model), ("body.json:/max_tokens", "1")]);
        let decision = decide(&policy, &facts);
        assert_eq!(costs(&decision), [("usd", cost_expected)], "{model}");
        assert_eq!(label(&decision), label_expected);
    }
}

#[test]
fn a_model_without_a_price_is_refused_where_money_counts() {
    let money = list("money", "usd", 1_000_000_000);
    let policy = openai(&format!("{money}, {MODELS}"));
    for model in ["gpt-5", "GPT-4O", "gpt-4", "gpt-4o2", ""] {
        assert_eq!(refusal(&policy, &post(CHAT, &[("body:/model", model)])).0, 400, "{model}");
    }
    assert_eq!(refusal(&policy, &post(CHAT, &[])), (400, "the request names no model".to_owned()));
    // Tokens count without prices.
    let decision = decide(
        &openai(&format!("{}, {MODELS}", tokens())),
        &post(CHAT, &[("body:/model", "gpt-5")]),
    );
    assert_eq!(label(&decision), "other");
    assert_eq!(costs(&decision), [("all", 4_196)]);
    // `*` is the price of all others, also of a request without a model.
    let other = r#""models": {"*": {"input": 1000000, "output": 1000000}}"#;
    let policy = openai(&format!("{money}, {other}"));
    for facts in [post(CHAT, &[("body:/model", "any")]), post(CHAT, &[])] {
        assert_eq!(cost(&policy, &facts), 4_196);
        assert_eq!(label(&decide(&policy, &facts)), "other");
    }
}

#[test]
fn money_does_not_overflow() {
    let models = r#""models": {"*": {"input": 4503599627370496, "output": 4503599627370496}}"#;
    let policy = openai(&format!("{}, {models}", list("money", "usd", 1 << 51)));
    let facts = post(CHAT, &[("body.json:/max_tokens", "4503599627370496")]);
    assert_eq!(cost(&policy, &facts), 1 << 51);
    let told = completed(&[("usage.last:/usage/completion_tokens", "18446744073709551615")]);
    assert_eq!(change(&policy, &facts, &told), 1 << 51, "2^52 in all");
}

#[test]
fn a_free_model_is_not_refused_for_money() {
    let policy = openai(&format!("{}, {MODELS}", list("money", "usd", 1_000)));
    let decision =
        decide(&policy, &post(CHAT, &[("body:/model", "free"), ("body.json:/stream", "true")]));
    assert_eq!(decision.verdict, Verdict::Bypass);
    assert!(decision.body_changes.is_empty() && decision.settle_with.is_none());
}

#[test]
fn two_models_in_one_body_are_refused() {
    let policy = openai(&format!("{}, {MODELS}", tokens()));
    let two =
        |second: &'static str| post(CHAT, &[("body:/model", "gpt-4o"), ("body:/model", second)]);
    assert_eq!(refusal(&policy, &two("free")).0, 400);
    assert_eq!(label(&decide(&policy, &two("gpt-4o"))), "gpt-4o");
}

#[test]
fn a_label_has_64_characters_at_most() {
    let name = "\u{e9}".repeat(100);
    let policy = openai(&format!(r#"{}, "models": {{"{name}*": {{}}}}"#, tokens()));
    let model = format!("{name}-2");
    let decision = decide(&policy, &post(CHAT, &[("body:/model", &model)]));
    assert_eq!(label(&decision), "\u{e9}".repeat(64));
}

#[test]
fn usage_is_asked_for_in_streams_that_have_none_otherwise() {
    let policy = openai(&tokens());
    let asked = |path: &str, more: &[(&str, &str)]| {
        let decision = decide(&policy, &post(path, more));
        changes(&decision) == [("/stream_options/include_usage", "true")]
    };
    for path in [
        CHAT,
        "/v1/completions",
        "/v1/chat/completions/",
        "/openai/deployments/x/chat/completions",
        "/v1/chat/%63ompletions",
        "/V1/Chat/Completions",
    ] {
        assert!(asked(path, &[("body.json:/stream", "true")]), "{path}");
        assert!(!asked(path, &[]), "{path}");
        assert!(!asked(path, &[("body.json:/stream", "false")]), "{path}");
        assert!(!asked(path, &[("body.json:/stream", "null")]), "{path}");
    }
    // Set over whatever the client wrote: nothing of it is read, so nothing of it can stop this.
    let refused =
        [("body.json:/stream", "true"), ("body.json:/stream_options/include_usage", "false")];
    assert!(asked(CHAT, &refused));
    assert!(asked(CHAT, &[("body.json:/stream", "false"), ("body.json:/stream", "true")]));
    for odd in ["1", "0", "\"false\"", "\"null\"", "{}", "[]"] {
        assert!(asked(CHAT, &[("body.json:/stream", odd)]), "{odd}: some server takes it for true");
    }
    for path in ["/v1/responses", "/v1/embeddings", "/v1/other"] {
        assert!(!asked(path, &[("body.json:/stream", "true")]), "{path}");
    }
    assert!(decide(&of("anthropic", &tokens()), &post(MESSAGES, &[])).body_changes.is_empty());
}

#[test]
fn a_paths_possible_replies_are_read_in_32_meters_at_most() {
    let pointers = |policy: &Instance<LlmBudget>, path: &str| -> Vec<Meter> {
        let meters = meters(&decide(policy, &post(path, &[])));
        assert!((4..=32).contains(&meters.len()), "{path}: {}", meters.len());
        for (index, meter) in meters.iter().enumerate() {
            assert!(!meters[..index].contains(meter), "{meter:?} a second time");
        }
        meters
    };
    let has = |meters: &[Meter], pointer: &str| meters.iter().any(|it| it.pointer == pointer);
    let policy = openai(&tokens());
    let chat = pointers(&policy, CHAT);
    assert!(has(&chat, "/usage/prompt_tokens") && has(&chat, "/choices/*/delta/content"));
    assert!(!has(&chat, "/delta") && !has(&chat, "/usage/input_tokens"));
    let text = |gather| Meter { pointer: "/choices/*/delta/content".to_owned(), gather };
    assert!(chat.contains(&text(Gather::Bytes)) && chat.contains(&text(Gather::Count)));
    let responses = pointers(&policy, "/v1/responses");
    assert!(has(&responses, "/response/usage/output_tokens") && has(&responses, "/delta"));
    assert!(!has(&responses, "/choices/*/text"));
    let other = pointers(&policy, "/v1/other");
    assert!(has(&other, "/delta") && has(&other, "/choices/*/text"));
    let embeddings = meters(&decide(&policy, &post("/v1/embeddings", &[])));
    assert!(has(&embeddings, "/usage/prompt_tokens") && !has(&embeddings, "/delta"));
    pointers(&of("anthropic", &tokens()), MESSAGES);
    pointers(&of("gemini", &tokens()), GENERATE);
}

#[test]
fn calls_without_output_reserve_their_input_alone() {
    let policy = openai(&format!("{}, {MODELS}", all_lists()));
    let facts =
        post("/v1/embeddings", &[("body:/model", "gpt-4o"), ("body.json:/max_tokens", "900")]);
    let decision = decide(&policy, &facts);
    // An output budget that is used up does not refuse it.
    assert_eq!(costs(&decision), [("tokens", 100), ("input-tokens", 100), ("money", 250)]);
    assert!(partial(&decision).is_none() && decision.body_changes.is_empty());
    assert_eq!(cost(&of("anthropic", &tokens()), &post("/v1/messages/count_tokens", &[])), 100);
    // A server that decodes a path once more acts on what is before its end.
    for end in ["%3F/embeddings", "%23/embeddings", ";x=/embeddings", "/embeddings"] {
        let path = format!("/v1/chat/completions{end}");
        let facts = post(&path, &[("body:/model", "gpt-4o"), ("body.json:/max_tokens", "900")]);
        let decision = decide(&policy, &facts);
        assert_eq!(costs(&decision)[0], ("tokens", 1_000), "{path}");
    }
    for method in ["embedContent", "batchEmbedContents", "countTokens"] {
        let path = format!("/v1beta/models/text:{method}");
        assert_eq!(cost(&of("gemini", &tokens()), &post(&path, &[])), 100);
    }
}

#[test]
fn geminis_model_is_in_the_path_however_it_is_spelt() {
    let models = r#""models": {"gemini-pro": {"input": 1000000, "output": 1000000}, "*": {"input": 0, "output": 0}}"#;
    let policy = of("gemini", &format!("{}, {models}", tokens()));
    for (path, model) in [
        (GENERATE, "gemini-pro"),
        (
            "/v1/projects/p/locations/l/publishers/google/models/gemini-pro:generateContent",
            "gemini-pro",
        ),
        ("/v1beta/models/gemini%2Dpro:generateContent", "gemini-pro"),
        ("/v1beta/%6dodels/gemini-pro%3AgenerateContent", "gemini-pro"),
        ("/v1beta/models/gemini-pro", "gemini-pro"),
        ("/v1beta/models/gemini-pro:2:generateContent", "other"),
        ("/v1beta/models/gemini-%zz:generateContent", "other"),
        ("/v1beta/tunedModels/x:generateContent", "other"),
        ("/v1beta/models/", "other"),
    ] {
        assert_eq!(label(&decide(&policy, &post(path, &[]))), model, "{path}");
    }
}

#[test]
fn the_maximum_that_is_reserved_is_written_where_asked_for() {
    let policy =
        |api: &str, more: &str| of(api, &format!("{}, \"set_maximum\": true{more}", tokens()));
    let written = |api: &str, path: &str, facts: &[(&str, &str)]| -> Vec<(String, String)> {
        let decision = decide(&policy(api, ""), &post(path, facts));
        changes(&decision).into_iter().map(|(at, json)| (at.to_owned(), json.to_owned())).collect()
    };
    for (api, path, pointer) in [
        ("openai", CHAT, "/max_completion_tokens"),
        ("openai", "/v1/completions", "/max_tokens"),
        ("openai", "/v1/responses", "/max_output_tokens"),
        ("anthropic", MESSAGES, "/max_tokens"),
        ("gemini", GENERATE, "/generationConfig/maxOutputTokens"),
    ] {
        let expected = [(pointer.to_owned(), "4096".to_owned())];
        assert_eq!(written(api, path, &[]), expected, "{path}");
        let named = format!("body.json:{pointer}");
        assert!(written(api, path, &[(&named, "7")]).is_empty(), "{path}");
        assert_eq!(written(api, path, &[(&named, "null")]), expected, "{path}");
    }
    // The maximum of one answer, not of all of them.
    assert_eq!(written("openai", CHAT, &[("body.json:/n", "2")])[0].1, "4096");
    assert!(written("openai", "/v1/embeddings", &[]).is_empty());
    assert!(decide(&openai(&tokens()), &post(CHAT, &[])).body_changes.is_empty());
}

#[test]
fn near_the_end_of_a_budget_a_request_gets_what_is_left() {
    let two = format!(r#""tokens": [{}, {}]"#, limit("minute", 10_000), limit("day", 90_000));
    let decision = decide(&openai(&two), &post(CHAT, &[("body.json:/max_tokens", "1000")]));
    assert_eq!(costs(&decision), [("minute", 1_100), ("day", 1_100)]);
    let expected = Partial {
        limits: vec!["minute".to_owned(), "day".to_owned()],
        least: 116,
        tell: vec!["/max_tokens".to_owned()],
        base: 100,
    };
    assert_eq!(partial(&decision), Some(expected));
    assert!(decision.body_changes.is_empty());
    let tell = |path: &str, more: &[(&str, &str)]| {
        partial(&decide(&openai(&two), &post(path, more))).unwrap().tell
    };
    assert_eq!(tell(CHAT, &[]), ["/max_completion_tokens"]);
    assert_eq!(tell("/v1/completions", &[]), ["/max_tokens"]);
    assert_eq!(tell("/v1/responses", &[]), ["/max_output_tokens"]);
    let both = [("body.json:/max_tokens", "500"), ("body.json:/max_completion_tokens", "900")];
    assert_eq!(tell(CHAT, &both), ["/max_tokens", "/max_completion_tokens"]);
}

#[test]
fn nothing_is_lowered_that_one_number_cannot_lower() {
    let none = |more: &str, facts: &[(&str, &str)]| {
        let decision = decide(&openai(more), &post(CHAT, facts));
        assert!(!decision.limits().is_empty());
        partial(&decision).is_none() && decision.body_changes.is_empty()
    };
    assert!(!none(&tokens(), &[]));
    assert!(none(&format!("{}, \"partial\": false", tokens()), &[]));
    assert!(none(&tokens(), &[("body.json:/n", "2")]), "several answers");
    assert!(none(&tokens(), &[("body.json:/max_tokens", "16")]), "as little as can be");
    assert!(none(&tokens(), &[("body.json:/max_tokens", "0")]), "no output is asked for");
    for other in ["input_tokens", "output_tokens"] {
        // Beside one in tokens, it is reserved whole.
        let both = format!("{}, {}", tokens(), list(other, "b", 900_000));
        let decision = decide(&openai(&both), &post(CHAT, &[]));
        assert_eq!(partial(&decision).unwrap().limits, ["all"], "{other}");
        let whole = if other == "input_tokens" { 100 } else { 4_096 };
        assert_eq!(costs(&decision), [("all", 4_196), ("b", whole)], "{other}");
        assert!(none(&list(other, "b", 900_000), &[]), "{other}");
    }
    // A shadow limit refuses nothing, so it neither lowers anything nor prevents it.
    let shadow = |setting: &str| {
        list(setting, "b", 200).replace("\"period\"", "\"shadow\": true, \"period\"")
    };
    assert!(!none(&format!("{}, {}", tokens(), shadow("output_tokens")), &[]));
    assert!(none(&shadow("tokens"), &[]));
    let both = format!(
        r#""tokens": [{}, {}]"#,
        limit("a", 10_000),
        &shadow("x")[6..shadow("x").len() - 1]
    );
    let decision = decide(&openai(&both), &post(CHAT, &[]));
    assert_eq!(costs(&decision), [("a", 4_196), ("b", 200)]);
    assert_eq!(partial(&decision).unwrap().limits, ["a"]);
}

#[test]
fn a_request_for_more_than_a_whole_budget_is_lowered_to_it() {
    let small = list("tokens", "all", 1_000);
    let decision = decide(&openai(&small), &post(CHAT, &[("body.json:/max_tokens", "5000")]));
    assert_eq!(costs(&decision), [("all", 1_000)]);
    assert_eq!(changes(&decision), [("/max_tokens", "900")]);
    assert_eq!(partial(&decision).unwrap().least, 116);
    let decision = decide(&openai(&format!("{small}, \"set_maximum\": true")), &post(CHAT, &[]));
    assert_eq!(changes(&decision), [("/max_completion_tokens", "900")], "once, and the lower");
    let least = decide(&openai(&list("tokens", "all", 116)), &post(CHAT, &[]));
    assert_eq!(changes(&least), [("/max_completion_tokens", "16")]);
    assert!(partial(&least).is_none(), "there is nothing less");
    // Without `partial`, or where the input alone takes it all, it takes the whole budget.
    let whole = format!("{small}, \"partial\": false");
    for (config, cost) in [(whole, 1_000), (list("tokens", "all", 110), 110)] {
        let decision = decide(&openai(&config), &post(CHAT, &[("body.json:/max_tokens", "5000")]));
        assert!(decision.body_changes.is_empty() && partial(&decision).is_none());
        assert_eq!(costs(&decision), [("all", cost)]);
    }
}

#[test]
fn each_limits_cost_is_at_most_what_it_can_ever_let_through() {
    for (settings, most) in [
        (r#""algorithm": "fixed_window", "quota": 50, "period": "1m""#, 50),
        (r#""algorithm": "sliding_window_counter", "quota": 50, "period": "1m""#, 50),
        (r#""algorithm": "sliding_window_log", "quota": 50, "period": "1m""#, 50),
        (r#""algorithm": "sliding_window_buckets", "quota": 50, "period": "1m""#, 50),
        (r#""algorithm": "token_bucket", "quota": 50, "period": "1m""#, 50),
        (r#""algorithm": "token_bucket", "quota": 50, "period": "1m", "burst": 70"#, 70),
        (r#""algorithm": "gcra", "quota": 50, "period": "1m", "burst": 70"#, 70),
        (r#""algorithm": "quota", "quota": 50, "calendar": "day""#, 50),
        (r#""algorithm": "quota", "quota": 50, "calendar": "day", "conditional": false"#, 4_196),
        (r#""algorithm": "fixed_window", "quota": 0, "period": "1m""#, 1),
    ] {
        let policy = openai(&format!(r#""tokens": [{{"name": "a", {settings}}}]"#));
        assert_eq!(cost(&policy, &post(CHAT, &[])), most, "{settings}");
    }
}

#[test]
fn an_api_of_ones_own_is_read_by_its_pointers() {
    let pointers = r#""pointers": {"model": "/engine", "maxima": ["/limit", "/cap"], "include_usage": "/report",
        "input": [{"pointer": "/tokens/in"}], "output": [{"pointer": "/tokens/out", "gather": "sum"}], "text": ["/parts/*/text"]}"#;
    let policy =
        Instance::<LlmBudget>::new(&format!("{{{pointers}, {}, {MODELS}}}", tokens())).unwrap();
    let facts = policy.manifest().request_facts;
    assert_eq!(
        facts[7..],
        ["body:/engine", "body.json:/limit", "body.json:/cap", "body.json:/stream"]
    );
    let request = post("/ask", &[("body:/engine", "gpt-4o"), ("body.json:/cap", "500")]);
    let decision = decide(&policy, &request);
    assert_eq!((costs(&decision), label(&decision)), (vec![("all", 600)], "gpt-4o"));
    assert_eq!(changes(&decision), [("/report", "true")]);
    let meters: Vec<_> = meters(&decision).iter().map(|it| it.gather.fact(&it.pointer)).collect();
    let expected =
        ["last:/tokens/in", "sum:/tokens/out", "count:/parts/*/text", "bytes:/parts/*/text"];
    assert_eq!(meters, expected.map(|name| format!("usage.{name}")));
    assert_eq!(partial(&decision).unwrap().tell, ["/cap"]);
    assert_eq!(partial(&decide(&policy, &post("/ask", &[]))).unwrap().tell, ["/limit"]);
    let told = completed(&[("usage.last:/tokens/in", "90"), ("usage.sum:/tokens/out", "10")]);
    assert_eq!(change(&policy, &request, &told), -500);
}

#[test]
fn requests_that_bypass_are_not_read() {
    let policy = openai(&format!(r#"{}, "bypass": ["10.0.0.0/8"], "ipv6_prefix": 48"#, tokens()));
    let facts = [("method", "POST"), ("path", CHAT), ("client-ip", "10.0.0.1")];
    assert_eq!(decide(&policy, &facts).verdict, Verdict::Bypass);
    let mut facts = post(CHAT, &[]);
    facts[2].1 = "2001:db8:1:2::7";
    assert_eq!(decide(&policy, &facts).limits()[0].key, "\\@2001:db8:1::/48");
    let keyed = |list: String| list.replace("\"period\"", "\"key\": \"{client_ip}\", \"period\"");
    let lists = keyed(format!("{}, {}", tokens(), list("requests", "each", 9)));
    let decision = decide(&openai(&format!(r#"{lists}, "ipv6_prefix": 48"#)), &facts);
    let keys: Vec<&str> = decision.limits().iter().map(|limit| limit.key.as_str()).collect();
    assert_eq!(keys, ["2001:db8:1::/48", "2001:db8:1::/48"]);
}

#[test]
fn a_request_without_its_key_is_denied_where_the_limit_says_so() {
    let keyed = list("tokens", "a", 900).replace(
        "\"period\"",
        r#""key": "{header.authorization}", "missing": {"deny": 401}, "period""#,
    );
    let policy = openai(&keyed);
    assert_eq!(refusal(&policy, &post(CHAT, &[])).0, 401);
    let decision = decide(&policy, &post(CHAT, &[("header.authorization", "Bearer x")]));
    assert_eq!(decision.limits()[0].key, "Bearer x");
}
