//! What is read of a request, and what is refused outright.

use super::*;

#[test]
fn of_several_maxima_the_largest_counts() {
    let policy = openai(&tokens());
    for maxima in [
        &[("body.json:/max_tokens", "5"), ("body.json:/max_completion_tokens", "900")][..],
        &[("body.json:/max_completion_tokens", "5"), ("body.json:/max_tokens", "900")],
        &[("body.json:/max_tokens", "900"), ("body.json:/max_tokens", "5")],
        &[("body.json:/max_tokens", "5"), ("body.json:/max_tokens", "900")],
        &[("body.json:/max_tokens", "900"), ("body.json:/max_tokens", "null")],
        &[("body.json:/max_tokens", "0"), ("body.json:/max_tokens", "900")],
    ] {
        assert_eq!(cost(&policy, &post(CHAT, maxima)), 1_000, "{maxima:?}");
    }
}

#[test]
fn a_maximum_that_the_call_ignores_bounds_nothing() {
    let policy = openai(&format!("{}, \"set_maximum\": true", tokens()));
    let [chat, completions, responses] = [CHAT, "/v1/completions", "/v1/responses"];
    let [old, new, output] = ["/max_tokens", "/max_completion_tokens", "/max_output_tokens"];
    for (path, heeded, written) in [
        (chat, &[old, new][..], new),
        (completions, &[old], old),
        (responses, &[output], output),
        ("/v1/other", &[old, new, output], old),
    ] {
        for pointer in [old, new, output] {
            let fact = format!("body.json:{pointer}");
            let decision = decide(&policy, &post(path, &[(&fact, "7")]));
            let partial = partial(&decision);
            let partial = partial.as_ref().map(|it| it.tell.as_slice());
            if heeded.contains(&pointer) {
                assert_eq!(costs(&decision), [("all", 107)], "{path} {pointer}");
                assert!(decision.body_changes.is_empty(), "{path} {pointer}");
            } else {
                // It is as if it were not there.
                assert_eq!(costs(&decision), [("all", 4_196)], "{path} {pointer}");
                assert_eq!(changes(&decision), [(written, "4096")], "{path} {pointer}");
                assert_eq!(partial, Some(&[written.to_owned()][..]), "{path} {pointer}");
                let decision = decide(&policy, &post(path, &[(&fact, "none")]));
                assert_eq!(costs(&decision), [("all", 4_196)], "{path} {pointer}");
            }
        }
    }
    // It does not count next to one that the call heeds either, even if it is larger.
    let both = [("body.json:/max_tokens", "9"), ("body.json:/max_output_tokens", "500")];
    assert_eq!(cost(&policy, &post(chat, &both)), 109);
    assert_eq!(cost(&policy, &post(responses, &both)), 600);
    assert_eq!(cost(&policy, &post("/v1/other", &both)), 600);
}

#[test]
fn each_answer_that_is_asked_for_has_the_maximum_of_its_own() {
    let policy = openai(&tokens());
    for (copies, output) in [
        (&[("body.json:/n", "3")][..], 300),
        (&[("body.json:/n", "2"), ("body.json:/best_of", "5")], 500),
        (&[("body.json:/n", "5"), ("body.json:/best_of", "2")], 500),
        (&[("body.json:/n", "1"), ("body.json:/n", "4")], 400),
        (&[("body.json:/n", "null")], 100),
        (&[("body.json:/n", "0")], 100),
    ] {
        let mut more = vec![("body.json:/max_tokens", "100")];
        more.extend(copies);
        assert_eq!(cost(&policy, &post("/v1/completions", &more)), 100 + output, "{copies:?}");
    }
    let gemini = of("gemini", &tokens());
    let more = [
        ("body.json:/generationConfig/maxOutputTokens", "100"),
        ("body.json:/generationConfig/candidateCount", "4"),
    ];
    assert_eq!(cost(&gemini, &post(GENERATE, &more)), 500);
}

#[test]
fn a_maximum_that_is_no_sensible_number_is_refused() {
    let policy = openai(&tokens());
    let gemini = of("gemini", &tokens());
    let maximum = "/generationConfig/maxOutputTokens";
    for (policy, path, pointer) in [
        (&policy, CHAT, "/max_tokens"),
        (&policy, CHAT, "/max_completion_tokens"),
        (&policy, "/v1/responses", "/max_output_tokens"),
        (&policy, CHAT, "/n"),
        (&policy, "/v1/completions", "/best_of"),
        (&gemini, GENERATE, maximum),
        (&gemini, GENERATE, "/generation_config/candidate_count"),
    ] {
        let fact = format!("body.json:{pointer}");
        let fact = fact.as_str();
        for value in [
            "-1",
            "1.5",
            "1e3",
            "100.0",
            "true",
            "false",
            "4503599627370497",
            "\"100\"",
            "\"\"",
            "[]",
            "[5]",
            "{}",
            "{\"a\": 5}",
        ] {
            let (status, reason) = refusal(policy, &post(path, &[(fact, value)]));
            assert_eq!(status, 400, "{pointer} {value}");
            let expected =
                format!("{pointer} must be null or a whole number from 0 to 4503599627370496");
            assert_eq!(reason, expected, "{value}");
        }
        // A good value beside it changes nothing.
        assert_eq!(refusal(policy, &post(path, &[(fact, "5"), (fact, "-1")])).0, 400);
    }
    let most =
        post(CHAT, &[("body.json:/max_tokens", "4503599627370496"), ("body.json:/n", "128")]);
    assert_eq!(cost(&policy, &most), 1_000_000, "the quota: more can never be taken");
}

#[test]
fn a_body_that_is_not_read_is_refused() {
    let policy = openai(&tokens());
    let with = |kind: Option<&'static str>| {
        let mut facts = post(CHAT, &[("body.json:/max_tokens", "5")]);
        facts.retain(|(name, _)| *name != "body.type");
        facts.extend(kind.map(|kind| ("body.type", kind)));
        facts
    };
    assert_eq!(refusal(&policy, &with(Some("large"))).0, 413);
    for kind in [Some("form"), Some("other"), Some("empty"), None] {
        let (status, reason) = refusal(&policy, &with(kind));
        assert_eq!(status, 400, "{kind:?}");
        assert!(reason.contains("JSON"), "{reason}");
    }
    let mut facts = with(Some("json"));
    facts.retain(|(name, _)| *name != "body.bytes");
    assert!(policy.decide(&facts).unwrap_err().contains("body.bytes"));
}

#[test]
fn a_reply_that_is_made_later_is_refused() {
    let policy = openai(&tokens());
    let [chat, responses, pictures] = [CHAT, "/v1/responses", "/v1/images/generations"];
    for (path, value) in [
        (responses, "true"),
        (responses, "1"),
        (responses, "\"yes\""),
        (chat, "true"),
        ("/v1/other", "true"),
    ] {
        let (status, reason) = refusal(&policy, &post(path, &[("body.json:/background", value)]));
        assert_eq!(status, 400, "{path} {value}");
        assert!(reason.starts_with("/background must be false"), "{reason}");
    }
    let twice = [("body.json:/background", "false"), ("body.json:/background", "true")];
    assert_eq!(refusal(&policy, &post(responses, &twice)).0, 400);
    for (path, value) in [(responses, "false"), (responses, "null"), (pictures, "\"transparent\"")]
    {
        assert_eq!(cost(&policy, &post(path, &[("body.json:/background", value)])), 4_196);
    }
    let elsewhere = post(MESSAGES, &[("body.json:/background", "true")]);
    assert_eq!(cost(&of("anthropic", &tokens()), &elsewhere), 4_196);
}

#[test]
fn calls_whose_use_nothing_tells_are_refused() {
    let policy = openai(&tokens());
    let allows = openai(&format!("{}, \"unpriced\": \"allow\"", tokens()));
    for path in ["/v1/batches", "/v1/batches/", "/v1/Batches", "/v1/fine_tuning/jobs"] {
        assert_eq!(refusal(&policy, &post(path, &[])).0, 403, "{path}");
        assert_eq!(cost(&allows, &post(path, &[])), 4_196, "{path}");
        // Looking at one uses nothing.
        let mut look = post(path, &[]);
        look[0].1 = "GET";
        assert_eq!(decide(&policy, &look).verdict, Verdict::Bypass, "{path}");
    }
    let mut other = post("/v1/anything", &[("upgrade", "websocket")]);
    other[0].1 = "GET";
    assert_eq!(refusal(&policy, &other).0, 403);
    assert_eq!(decide(&allows, &other).verdict, Verdict::Bypass);
    // A websocket begins with GET.
    let mut realtime = post("/v1/realtime", &[]);
    realtime[0].1 = "GET";
    assert_eq!(refusal(&policy, &realtime).0, 403);
    assert_eq!(decide(&allows, &realtime).verdict, Verdict::Bypass);
    let mut responses = post("/v1/responses", &[]);
    responses[0].1 = "GET";
    assert_eq!(refusal(&policy, &responses).0, 403);
    assert_eq!(decide(&allows, &responses).verdict, Verdict::Bypass);
    let mut one = post("/v1/responses/resp_1", &[]);
    one[0].1 = "GET";
    assert_eq!(decide(&policy, &one).verdict, Verdict::Bypass);
    let anthropic = of("anthropic", &tokens());
    assert_eq!(refusal(&anthropic, &post("/v1/messages/batches", &[])).0, 403);
    let gemini = of("gemini", &tokens());
    let batch = "/v1beta/models/gemini-pro:batchGenerateContent";
    assert_eq!(refusal(&gemini, &post(batch, &[])).0, 403);
    // Who counts requests alone asks for no use.
    let flight = r#""requests": [{"name": "flight", "algorithm": "concurrency", "quota": 8}]"#;
    assert_eq!(costs(&decide(&openai(flight), &post("/v1/batches", &[]))), [("flight", 1)]);
}

#[test]
fn several_prompts_in_one_request_are_refused() {
    let policy = openai(&tokens());
    let allows = openai(&format!("{}, \"unpriced\": \"allow\"", tokens()));
    let completions = "/v1/completions";
    for second in ["\"and another\"", "[5,6]", "null"] {
        let facts = post(completions, &[("body.json:/prompt/1", second)]);
        assert_eq!(refusal(&policy, &facts).0, 400, "{second}");
        assert_eq!(cost(&allows, &facts), 4_196, "{second}");
    }
    // `[1, 2, 3]` is one prompt, in tokens.
    let tokens = post(completions, &[("body.json:/prompt/1", "2")]);
    assert_eq!(cost(&policy, &tokens), 4_196);
    // Written twice, either may be read.
    let twice = [("body.json:/prompt/1", "2"), ("body.json:/prompt/1", "\"b\"")];
    assert_eq!(refusal(&policy, &post(completions, &twice)).0, 400);
    // A chat has none.
    let chat = post(CHAT, &[("body.json:/prompt/1", "\"b\"")]);
    assert_eq!(cost(&policy, &chat), 4_196);
}
