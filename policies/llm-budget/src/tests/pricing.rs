//! Prices: of caches, by the size of the input, of service tiers, and by the path.

use super::*;

const PROMPT: &str = "usage.last:/usage/prompt_tokens";
const COMPLETION: &str = "usage.last:/usage/completion_tokens";
const CACHED: &str = "usage.last:/usage/prompt_tokens_details/cached_tokens";

/// A policy that counts micro-dollars, with this model at these prices and all others at 1 dollar.
fn priced(api: &str, model: &str) -> Instance<LlmBudget> {
    let money = list("money", "usd", 1_000_000_000_000);
    let others = r#""*": {"input": 1000000, "output": 1000000}"#;
    of(api, &format!(r#"{money}, "in_flight": 0, "models": {{"m": {model}, {others}}}"#))
}

/// The facts of a request for the model, with a maximum of 1,000.
fn asked<'a>(path: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut facts = post(path, &[("body:/model", "m"), ("body.json:/max_tokens", "1000")]);
    facts.extend(more);
    facts
}

/// What a request costs in the end.
#[track_caller]
fn charged(policy: &Instance<LlmBudget>, facts: &[(&str, &str)], view: &ResponseView) -> i64 {
    let reserved = i64::try_from(cost(policy, facts)).unwrap();
    reserved + change(policy, facts, view)
}

#[test]
fn tokens_from_a_cache_have_a_price_of_their_own() {
    let model = r#"{"input": 2000000, "output": 8000000, "cached_input": 500000}"#;
    let policy = priced("openai", model);
    let facts = asked(CHAT, &[]);
    assert_eq!(cost(&policy, &facts), 200 + 8_000, "nobody knows yet what is in a cache");
    let view = completed(&[(PROMPT, "100"), (CACHED, "60"), (COMPLETION, "10")]);
    assert_eq!(charged(&policy, &facts, &view), 40 * 2 + 30 + 80);
    // The whole of the input at most.
    let view = completed(&[(PROMPT, "100"), (CACHED, "600"), (COMPLETION, "10")]);
    assert_eq!(charged(&policy, &facts, &view), 50 + 80);
    let responses = asked("/v1/responses", &[]);
    for place in ["/usage", "/response/usage"] {
        let [input, cached, output] =
            ["input_tokens", "input_tokens_details/cached_tokens", "output_tokens"]
                .map(|name| format!("usage.last:{place}/{name}"));
        let view = completed(&[(&input, "100"), (&cached, "60"), (&output, "10")]);
        assert_eq!(charged(&policy, &responses, &view), 40 * 2 + 30 + 80, "{place}");
    }
    let gemini = of(
        "gemini",
        &format!(
            r#"{}, "models": {{"gemini-pro": {model}}}"#,
            list("money", "usd", 1_000_000_000_000)
        ),
    );
    for place in ["/usageMetadata", "/*/usageMetadata"] {
        let [input, cached, output] =
            ["promptTokenCount", "cachedContentTokenCount", "candidatesTokenCount"]
                .map(|name| format!("usage.last:{place}/{name}"));
        let view = completed(&[(&input, "100"), (&cached, "60"), (&output, "10")]);
        assert_eq!(charged(&gemini, &post(GENERATE, &[]), &view), 40 * 2 + 30 + 80, "{place}");
    }
}

#[test]
fn tokens_that_are_written_to_a_cache_are_reserved_and_charged_at_their_price() {
    let model = r#"{"input": 2000000, "output": 8000000, "cached_input": 200000,
        "cache_write": 2500000, "cache_write_1h": 4000000}"#;
    let policy = priced("anthropic", model);
    let facts = asked(MESSAGES, &[]);
    assert_eq!(cost(&policy, &facts), 400 + 8_000, "the dearest of what may become of the input");
    let view = completed(&[
        ("usage.last:/message/usage/input_tokens", "10"),
        ("usage.last:/message/usage/cache_read_input_tokens", "50"),
        ("usage.last:/message/usage/cache_creation_input_tokens", "40"),
        ("usage.last:/message/usage/cache_creation/ephemeral_1h_input_tokens", "30"),
        ("usage.last:/usage/output_tokens", "10"),
    ]);
    // 20, 10, 25 and 120 for the input, and 80 for the output.
    assert_eq!(charged(&policy, &facts, &view), 20 + 10 + 25 + 120 + 80);
    // Without a price of its own, each is input.
    let plain = priced("anthropic", r#"{"input": 2000000, "output": 8000000}"#);
    assert_eq!(charged(&plain, &facts, &view), 200 + 80);
    let written = r#"{"input": 2000000, "output": 8000000, "cache_write": 4000000}"#;
    assert_eq!(charged(&priced("anthropic", written), &facts, &view), 20 + 100 + 160 + 80);
}

#[test]
fn parts_of_the_input_are_read_only_where_they_have_a_price() {
    let reads = |policy: &Instance<LlmBudget>, path: &str| {
        let meters = meters(&decide(policy, &asked(path, &[])));
        meters.iter().any(|meter| meter.pointer.ends_with("cached_tokens"))
    };
    let cached = r#"{"input": 2, "output": 8, "cached_input": 1}"#;
    assert!(reads(&priced("openai", cached), CHAT));
    assert!(!reads(&priced("openai", r#"{"input": 2, "output": 8, "cached_input": 2}"#), CHAT));
    let tokens = format!(r#"{}, "models": {{"m": {cached}}}"#, tokens());
    assert!(!reads(&openai(&tokens), CHAT));
    // So much is read of an unknown call that there is no room.
    let other = decide(&priced("openai", cached), &asked("/v1/other", &[]));
    assert_eq!(meters(&other).len(), 32);
    let anthropic = decide(&priced("anthropic", cached), &asked(MESSAGES, &[]));
    let meters = meters(&anthropic);
    let mut pointers: Vec<_> = meters.iter().map(|it| (&it.pointer, it.gather)).collect();
    let all = pointers.len();
    pointers.dedup();
    assert_eq!(pointers.len(), all, "each is read once: {pointers:?}");
}

#[test]
fn a_large_input_has_other_prices_for_the_whole_request() {
    let model = r#"{"input": 1000000, "output": 4000000, "above": [
        {"input_tokens": 200, "input": 2000000, "output": 5000000},
        {"input_tokens": 1000, "input": 3000000, "output": 6000000, "cached_input": 1000000}]}"#;
    let policy = priced("openai", model);
    let facts = asked(CHAT, &[]);
    for (input, expected) in
        [("200", 200 + 40), ("201", 402 + 50), ("1000", 2_000 + 50), ("1001", 3_003 + 60)]
    {
        let view = completed(&[(PROMPT, input), (COMPLETION, "10")]);
        assert_eq!(charged(&policy, &facts, &view), expected, "{input}");
    }
    let cached = completed(&[(PROMPT, "1001"), (CACHED, "1001"), (COMPLETION, "10")]);
    assert_eq!(charged(&policy, &facts, &cached), 1_001 + 60);
    // 300 bytes are 300 tokens at most, and 100 by the estimate.
    assert_eq!(cost(&policy, &facts), 200 + 5_000);
    let of_bytes = |bytes| {
        let mut facts = facts.clone();
        facts.retain(|(name, _)| *name != "body.bytes");
        facts.push(("body.bytes", bytes));
        cost(&policy, &facts)
    };
    assert_eq!(of_bytes("200"), 67 + 4_000);
    assert_eq!(of_bytes("201"), 67 * 2 + 5_000);
    assert_eq!(of_bytes("1001"), 334 * 3 + 6_000);
    // What is referred to may be of any size.
    let refers = asked(CHAT, &[("body.json:", r#"{"previous_response_id":"r"}"#)]);
    assert_eq!(cost(&policy, &refers), 20_100 * 3 + 6_000);
    // If the input is not reported, at the prices of the reservation.
    let text = completed(&[("usage.last:/usage/completion_tokens", "10")]);
    assert_eq!(charged(&policy, &facts, &text), 200 + 50);
}

#[test]
fn a_service_tier_has_a_price_in_percent() {
    let model = r#"{"input": 1000000, "output": 4000000,
        "tiers": {"priority": 200, "flex": 50, "scale": 0}}"#;
    let policy = priced("openai", model);
    let with = |tiers: &[&'static str]| {
        let named: Vec<_> = tiers.iter().map(|it| ("body.json:/service_tier", *it)).collect();
        asked(CHAT, &named)
    };
    for (tiers, percent) in [
        (&[][..], 100),
        (&["null"], 100),
        (&["\"auto\""], 100),
        (&["\"default\""], 100),
        (&["\"flex\""], 50),
        (&["\"priority\""], 200),
        // Any of them, for all that is known.
        (&["\"turbo\""], 200),
        (&["\"Flex\""], 200),
        (&["5"], 200),
        (&["\"flex\"", "\"default\""], 100),
        (&["\"flex\"", "\"flex\""], 50),
    ] {
        let facts = with(tiers);
        assert_eq!(cost(&policy, &facts), 4_100 * percent / 100, "{tiers:?}");
        let view = completed(&[(PROMPT, "101"), (COMPLETION, "10")]);
        let expected = (141 * percent).div_ceil(100);
        let charged = charged(&policy, &facts, &view);
        assert_eq!(u64::try_from(charged).unwrap(), expected, "{tiers:?}");
    }
    // What costs nothing is counted by no limit on money.
    assert_eq!(decide(&policy, &with(&["\"scale\""])).limits(), []);
    // Anthropic's API calls one of them by another name.
    let fast =
        priced("anthropic", r#"{"input": 1000000, "output": 4000000, "tiers": {"fast": 600}}"#);
    for (speed, percent) in [("\"fast\"", 600), ("\"standard\"", 100), ("null", 100)] {
        let facts = asked(MESSAGES, &[("body.json:/speed", speed)]);
        assert_eq!(cost(&fast, &facts), 4_100 * percent / 100, "{speed}");
    }
    // Requests without a tier have that of the project.
    let auto = model.replace("\"flex\": 50", "\"auto\": 170");
    assert_eq!(cost(&priced("openai", &auto), &with(&[])), 4_100 * 170 / 100);
    let gemini = of(
        "gemini",
        &format!(
            r#"{}, "models": {{"gemini-pro": {model}}}"#,
            list("money", "usd", 1_000_000_000_000)
        ),
    );
    for pointer in ["body.json:/serviceTier", "body.json:/service_tier"] {
        let more = [(pointer, "\"flex\""), ("body.json:/generationConfig/maxOutputTokens", "1000")];
        assert_eq!(cost(&gemini, &post(GENERATE, &more)), 2_050);
    }
}

#[test]
fn a_deployment_in_the_path_is_the_model() {
    let policy = priced("openai", r#"{"input": 10000000, "output": 10000000}"#);
    let with = |path| cost(&policy, &post(path, &[("body:/model", "other")]));
    let (dear, other) = (41_960, 4_196);
    assert_eq!(with("/openai/deployments/m/chat/completions"), dear);
    assert_eq!(with("/azure/OpenAI/Deployments/%6d/chat/completions"), dear);
    assert_eq!(with("/openai/deployments/n/chat/completions"), other);
    assert_eq!(with("/openai/deployments//chat/completions"), other);
    assert_eq!(with("/openai/v1/chat/completions"), other);
    // What the body names is not asked, be it twice.
    let twice = [("body:/model", "a"), ("body:/model", "b")];
    assert_eq!(cost(&policy, &post("/openai/deployments/m/chat/completions", &twice)), dear);
}

#[test]
fn the_rewritten_path_decides_which_call_it_is() {
    let policy = openai(&tokens());
    let [old, new] = [("body.json:/max_tokens", "7"), ("body.json:/max_output_tokens", "9")];
    let to = |upstream| post("/ask", &[old, new, ("upstream-path", upstream)]);
    assert_eq!(cost(&policy, &to(CHAT)), 107);
    assert_eq!(cost(&policy, &to("/v1/responses")), 109);
    assert_eq!(cost(&policy, &to("/v1/embeddings")), 100);
    assert_eq!(refusal(&policy, &to("/v1/batches")).0, 403);
    let away = post("/v1/batches", &[old, ("upstream-path", CHAT)]);
    assert_eq!(cost(&policy, &away), 107);
    let azure = priced("openai", r#"{"input": 10000000, "output": 10000000}"#);
    let upstream = "/openai/deployments/m/chat/completions";
    assert_eq!(cost(&azure, &post(CHAT, &[("upstream-path", upstream)])), 41_960);
    let gemini = of("gemini", &format!("{}, {MODELS}", list("money", "usd", 1_000_000_000)));
    let upstream = "/v1beta/models/free:generateContent";
    assert_eq!(decide(&gemini, &post("/ask", &[("upstream-path", upstream)])).limits(), []);
}
