//! What a reply's end changes: each API's usage, and each way in which a reply can end.

use super::*;
use crate::memo::Memo;

const PROMPT: &str = "usage.last:/usage/prompt_tokens";
const COMPLETION: &str = "usage.last:/usage/completion_tokens";
const BYTES: &str = "usage.bytes:/choices/*/delta/content";
const COUNT: &str = "usage.count:/choices/*/delta/content";

/// A chat request for 1,000 tokens: 1,100 are reserved.
fn chat() -> Vec<(&'static str, &'static str)> {
    post(CHAT, &[("body:/model", "gpt-4o"), ("body.json:/max_tokens", "1000")])
}

/// The change of the one limit in tokens.
fn of_chat(view: &ResponseView) -> i64 {
    change(&openai(&tokens()), &chat(), view)
}

#[test]
fn unused_units_are_given_back_to_each_limit() {
    let policy = openai(&format!("{}, {MODELS}", all_lists()));
    let view = completed(&[(PROMPT, "90"), (COMPLETION, "200")]);
    let expected = [
        ("tokens", 290 - 1_100),
        ("input-tokens", 90 - 100),
        ("output-tokens", 200 - 1_000),
        ("money", 2_225 - 10_250),
    ];
    let expected = expected.map(|(name, units)| (name.to_owned(), units));
    assert_eq!(settled(&policy, &chat(), &view), expected);
}

#[test]
fn additional_use_is_owed() {
    let policy = openai(&format!("{}, {MODELS}", all_lists()));
    let view = completed(&[(PROMPT, "150"), (COMPLETION, "1000")]);
    let expected = [("tokens", 50), ("input-tokens", 50), ("money", 125)];
    let expected = expected.map(|(name, units)| (name.to_owned(), units));
    assert_eq!(settled(&policy, &chat(), &view), expected, "and nothing of the output");
    let exactly = completed(&[(PROMPT, "100"), (COMPLETION, "1000")]);
    assert_eq!(settled(&policy, &chat(), &exactly), []);
}

#[test]
fn a_limit_that_is_smaller_than_the_request_owes_the_rest() {
    let policy = openai(&format!("{}, \"partial\": false", list("tokens", "all", 300)));
    assert_eq!(change(&policy, &chat(), &completed(&[(PROMPT, "100"), (COMPLETION, "250")])), 50);
    assert_eq!(change(&policy, &chat(), &completed(&[(PROMPT, "100"), (COMPLETION, "50")])), -150);
    assert_eq!(change(&policy, &chat(), &completed(&[])), 0, "nothing is known to be owed");
}

#[test]
fn responses_and_embeddings_tell_their_usage_in_their_own_places() {
    let policy = openai(&tokens());
    let request = post("/v1/responses", &[("body.json:/max_output_tokens", "1000")]);
    for place in ["/usage", "/response/usage"] {
        let input = format!("usage.last:{place}/input_tokens");
        let output = format!("usage.last:{place}/output_tokens");
        let view = completed(&[(&input, "90"), (&output, "200")]);
        assert_eq!(change(&policy, &request, &view), 290 - 1_100, "{place}");
    }
    // Embeddings report no output.
    let request = post("/v1/embeddings", &[]);
    assert_eq!(change(&policy, &request, &completed(&[(PROMPT, "70")])), -30);
    assert_eq!(change(&policy, &request, &completed(&[])), 0);
}

#[test]
fn anthropics_first_event_tells_the_input_and_its_last_the_output() {
    let policy = of("anthropic", &tokens());
    let request = post(MESSAGES, &[("body.json:/max_tokens", "1000")]);
    let start = [
        ("usage.last:/message/usage/input_tokens", "20"),
        ("usage.last:/message/usage/cache_creation_input_tokens", "300"),
        ("usage.last:/message/usage/cache_read_input_tokens", "4000"),
        ("usage.last:/message/usage/output_tokens", "3"),
    ];
    let with = |more: &[(&'static str, &'static str)]| {
        let mut facts = start.to_vec();
        facts.extend(more);
        facts
    };
    let end =
        with(&[("usage.last:/usage/output_tokens", "250"), ("usage.bytes:/delta/text", "9000")]);
    assert_eq!(change(&policy, &request, &completed(&end)), 4_320 + 250 - 1_100);
    // Its last event repeats the input. It is the same input.
    let again = with(&[
        ("usage.last:/usage/input_tokens", "25"),
        ("usage.last:/usage/cache_read_input_tokens", "4000"),
        ("usage.last:/usage/output_tokens", "250"),
    ]);
    assert_eq!(change(&policy, &request, &completed(&again)), 4_325 + 250 - 1_100);
    let less = with(&[
        ("usage.last:/usage/input_tokens", "0"),
        ("usage.last:/usage/output_tokens", "250"),
    ]);
    assert_eq!(change(&policy, &request, &completed(&less)), 4_320 + 250 - 1_100);
    // Without the last event, the first one's 3 tokens are not all that was written.
    let cut = with(&[("usage.count:/delta/text", "40"), ("usage.bytes:/delta/text", "90")]);
    let estimates = of("anthropic", &format!("{}, \"without_usage\": \"estimated\"", tokens()));
    assert_eq!(change(&estimates, &request, &completed(&cut)), 4_320 + 40 - 1_100);
    for outcome in [Outcome::Completed, Outcome::ClientGone, Outcome::UpstreamFailed] {
        assert_eq!(change(&policy, &request, &ended(outcome, 200, &cut)), 4_320 + 1_000 - 1_100);
    }
    assert_eq!(change(&policy, &request, &completed(&start)), 4_320 + 1_000 - 1_100);
    assert_eq!(change(&estimates, &request, &completed(&start)), 4_320 + 3 - 1_100);
    // A reply that is not streamed.
    let whole =
        [("usage.last:/usage/input_tokens", "90"), ("usage.last:/usage/output_tokens", "10")];
    assert_eq!(change(&policy, &request, &completed(&whole)), -1_000);
}

#[test]
fn geminis_thoughts_are_output() {
    let policy = of("gemini", &tokens());
    let request = post(GENERATE, &[("body.json:/generationConfig/maxOutputTokens", "1000")]);
    for place in ["/usageMetadata", "/*/usageMetadata"] {
        let [prompt, tool, candidates, thoughts] = [
            "promptTokenCount",
            "toolUsePromptTokenCount",
            "candidatesTokenCount",
            "thoughtsTokenCount",
        ]
        .map(|name| format!("usage.last:{place}/{name}"));
        let all = [(&*prompt, "90"), (&*tool, "5"), (&*candidates, "100"), (&*thoughts, "400")];
        assert_eq!(change(&policy, &request, &completed(&all)), 595 - 1_100, "{place}");
        let plain = [(&*prompt, "90"), (&*candidates, "100")];
        assert_eq!(change(&policy, &request, &completed(&plain)), 190 - 1_100, "{place}");
        // A number that is 0 is left out.
        assert_eq!(
            change(&policy, &request, &completed(&[(&prompt, "90")])),
            90 - 1_100,
            "{place}"
        );
    }
}

#[test]
fn a_complete_reply_without_usage_keeps_its_reservation() {
    for (count, bytes, change) in [("200", "300", 0), ("1", "1", 0), ("2", "9000", 2_000)] {
        let view = completed(&[(COUNT, count), (BYTES, bytes)]);
        assert_eq!(of_chat(&view), change, "{count} {bytes}");
    }
    // The input may be known all the same.
    assert_eq!(of_chat(&completed(&[(PROMPT, "80"), (COUNT, "9")])), -20);
    // Of what was taken instead, no more could be used.
    let view = completed(&[("usage.taken", "300"), (COUNT, "9"), (BYTES, "9")]);
    assert_eq!(of_chat(&view), 0);
    let reserved = openai(&format!("{}, \"without_usage\": \"reserved\"", tokens()));
    assert_eq!(change(&reserved, &chat(), &completed(&[(COUNT, "9")])), 0);
}

#[test]
fn a_reply_without_usage_is_estimated_from_its_texts_where_that_is_wanted() {
    let policy = openai(&format!("{}, \"without_usage\": \"estimated\"", tokens()));
    let of_chat = |view: &ResponseView| change(&policy, &chat(), view);
    for (count, bytes, output) in [
        // A token an event, or several in one.
        ("200", "300", 200),
        ("2", "900", 300),
        ("2", "901", 301),
        ("1", "1", 1),
    ] {
        let view = completed(&[(COUNT, count), (BYTES, bytes)]);
        assert_eq!(of_chat(&view), output - 1_000, "{count} {bytes}");
    }
    // All texts together: what was said, thought and called.
    let view = completed(&[
        (COUNT, "10"),
        ("usage.count:/choices/*/delta/reasoning_content", "20"),
        ("usage.count:/choices/*/delta/tool_calls/*/function/arguments", "30"),
        (BYTES, "3"),
        ("usage.bytes:/choices/*/delta/reasoning_content", "4"),
    ]);
    assert_eq!(of_chat(&view), 60 - 1_000);
    let view = completed(&[(BYTES, "301"), ("usage.bytes:/choices/*/message/content", "301")]);
    assert_eq!(of_chat(&view), 201 - 1_000, "rounded once");
}

#[test]
fn a_complete_replys_usage_counts_whatever_its_texts_look_like() {
    let view = [(PROMPT, "100"), (COMPLETION, "50"), (COUNT, "90"), (BYTES, "9000")];
    assert_eq!(of_chat(&completed(&view)), 50 - 1_000);
    // Before it is complete, usage may be older than the texts.
    for outcome in [Outcome::ClientGone, Outcome::UpstreamFailed] {
        assert_eq!(of_chat(&ended(outcome, 200, &view)), 2_000, "{outcome:?}");
        let few = [(PROMPT, "100"), (COMPLETION, "50"), (COUNT, "9"), (BYTES, "90")];
        assert_eq!(of_chat(&ended(outcome, 200, &few)), 50 - 1_000, "{outcome:?}");
    }
}

#[test]
fn nothing_is_given_back_for_nothing_known() {
    assert_eq!(of_chat(&completed(&[])), 0, "a reply that tells nothing");
    assert_eq!(of_chat(&completed(&[(COUNT, "0"), (BYTES, "0")])), 0);
    assert_eq!(of_chat(&completed(&[(PROMPT, "many"), (COMPLETION, "")])), 0);
    assert_eq!(of_chat(&ended(Outcome::Completed, 307, &[])), 0);
    assert_eq!(of_chat(&ended(Outcome::ClientGone, 200, &[])), 0, "a client that left at once");
    assert_eq!(of_chat(&ended(Outcome::UpstreamFailed, 200, &[])), 0, "a reply that was cut");
    // Before the reply's head. The upstream may have been at work.
    assert_eq!(of_chat(&ended(Outcome::ClientGone, 0, &[])), 0);
    assert_eq!(of_chat(&ended(Outcome::ClientGone, 499, &[])), 0);
}

#[test]
fn a_reply_that_was_read_on_to_its_end_counts_as_it_would_have() {
    let view = [("usage.whole", "true"), (PROMPT, "100"), (COMPLETION, "50"), (COUNT, "90")];
    assert_eq!(of_chat(&ended(Outcome::ClientGone, 200, &view)), 50 - 1_000);
    assert_eq!(of_chat(&ended(Outcome::ClientGone, 200, &view[1..])), 90 - 1_000);
    assert_eq!(of_chat(&ended(Outcome::ClientGone, 200, &view[..1])), 0, "nothing was told");
}

#[test]
fn a_reply_without_its_end_keeps_the_reservation_of_its_output_until_usage_comes() {
    for outcome in [Outcome::ClientGone, Outcome::UpstreamFailed] {
        // The model may have thought much that it did not send.
        let text = ended(outcome, 200, &[(COUNT, "70"), (BYTES, "150")]);
        assert_eq!(of_chat(&text), 0, "{outcome:?}");
        let more = ended(outcome, 200, &[(COUNT, "1700")]);
        assert_eq!(of_chat(&more), 700, "{outcome:?}");
        let told = ended(outcome, 200, &[(PROMPT, "100"), (COMPLETION, "80"), (COUNT, "70")]);
        assert_eq!(of_chat(&told), 80 - 1_000, "{outcome:?}");
    }
    // The input is known, but of the output nothing was seen: its reservation stands.
    let input = [(PROMPT, "80")];
    assert_eq!(of_chat(&ended(Outcome::ClientGone, 200, &input)), -20);
    assert_eq!(of_chat(&completed(&input)), 80 - 1_100, "a complete reply had none");
}

#[test]
fn a_request_that_may_be_worked_on_without_a_reply_keeps_its_reservation() {
    for status in [502, 504, 0] {
        for outcome in [Outcome::UpstreamFailed, Outcome::TimedOut, Outcome::Overdue] {
            let view = ended(outcome, status, &[]).by_proxy();
            assert_eq!(of_chat(&view), 0, "{status}: the model may be at work");
        }
        let view = |outcome| ended(outcome, status, &[]);
        assert_eq!(of_chat(&view(Outcome::Unsent).by_proxy()), -1_100, "{status}");
        let answered = view(Outcome::UpstreamFailed);
        assert_eq!(of_chat(&answered), -1_100, "{status}: it says so itself");
    }
}

#[test]
fn a_request_that_was_answered_with_an_error_gets_everything_back() {
    for (outcome, status) in [
        (Outcome::UpstreamFailed, 0),
        (Outcome::UpstreamFailed, 502),
        (Outcome::UpstreamFailed, 504),
        (Outcome::Completed, 400),
        (Outcome::Completed, 429),
        (Outcome::Completed, 500),
        (Outcome::ClientGone, 500),
    ] {
        assert_eq!(of_chat(&ended(outcome, status, &[])), -1_100, "{outcome:?} {status}");
        // An error may contain anything at these places.
        let text = [("usage.bytes:/choices/*/message/content", "900")];
        assert_eq!(of_chat(&ended(outcome, status, &text)), -1_100, "{outcome:?} {status}");
    }
    let told = [(PROMPT, "100"), (COMPLETION, "7")];
    assert_eq!(of_chat(&ended(Outcome::Completed, 500, &told)), 7 - 1_000, "it says what it used");
    let policy = openai(&format!("{}, {MODELS}", all_lists()));
    let back = settled(&policy, &chat(), &ended(Outcome::Completed, 503, &[]));
    let units: Vec<i64> = back.iter().map(|(_, units)| *units).collect();
    assert_eq!(units, [-1_100, -100, -1_000, -10_250]);
}

#[test]
fn units_taken_instead_of_the_cost_are_settled() {
    let taken = |units: &'static str, more: &[(&'static str, &'static str)]| {
        let mut facts = vec![("usage.taken", units)];
        facts.extend(more);
        facts
    };
    let used = [(PROMPT, "90"), (COMPLETION, "150")];
    assert_eq!(of_chat(&completed(&taken("300", &used))), -60);
    assert_eq!(of_chat(&completed(&taken("200", &used))), 40);
    assert_eq!(of_chat(&ended(Outcome::Completed, 500, &taken("300", &[]))), -300);
    assert_eq!(of_chat(&completed(&taken("300", &[]))), 0, "nothing known: it stands");
    // Of the output only 200 could be used.
    let gone = ended(Outcome::ClientGone, 200, &taken("300", &[(PROMPT, "80")]));
    assert_eq!(of_chat(&gone), -20);
}

#[test]
fn a_shadow_limit_was_charged_its_cost_whatever_was_taken_of_the_others() {
    let shadow = limit("seen", 9_000).replace("\"period\"", "\"shadow\": true, \"period\"");
    let policy = openai(&format!(r#""tokens": [{}, {shadow}]"#, limit("all", 9_000)));
    let view = completed(&[("usage.taken", "300"), (PROMPT, "90"), (COMPLETION, "150")]);
    let expected = [("all".to_owned(), -60), ("seen".to_owned(), 240 - 1_100)];
    assert_eq!(settled(&policy, &chat(), &view), expected);
}

#[test]
fn units_taken_in_steps_are_settled_with_the_first_step() {
    let policy = openai(&format!("{}, \"hard_cut\": 64", tokens()));
    let mut streamed = chat();
    streamed.push(("body.json:/stream", "true"));
    let change = |view: &ResponseView| change(&policy, &streamed, view);
    let used = [("usage.extended", "128"), (PROMPT, "90"), (COMPLETION, "150")];
    assert_eq!(change(&completed(&used)), 240 - (164 + 128));
    let cut = [("usage.extended", "64"), (COUNT, "130")];
    for outcome in [Outcome::Completed, Outcome::ClientGone, Outcome::UpstreamFailed] {
        assert_eq!(change(&ended(outcome, 200, &cut)), 230 - (164 + 64), "{outcome:?}");
    }
    assert_eq!(change(&ended(Outcome::Completed, 500, &[("usage.extended", "64")])), -228);
    // Nothing could be read, so nothing was cut: as much as without steps.
    assert_eq!(change(&completed(&[])), 1_100 - 164);
}

#[test]
fn a_decision_of_another_instance_is_settled_by_its_memo() {
    let facts = post(CHAT, &[("body:/model", "gpt-4o"), ("body.json:/max_tokens", "1000")]);
    let memo = decide(&openai(&format!("{}, {MODELS}", all_lists())), &facts).settle_with.unwrap();
    // The prices have changed since.
    let other = openai(&format!("{}, {}", all_lists(), MODELS.replace("2500000", "1")));
    let view = completed(&[(PROMPT, "90"), (COMPLETION, "200")]);
    let money = other.settle(&memo, &view).unwrap().adjustments.pop().unwrap();
    assert_eq!((money.limit.as_str(), money.change), ("money", Change::Units(2_225 - 10_250)));
}

#[test]
fn a_memo_is_read_as_it_was_written_and_is_never_too_long() {
    let name = |index: usize| format!("{}{index:02}", "x".repeat(62));
    let limits: Vec<String> = (0..16).map(|index| limit(&name(index), (1 << 51) - 1)).collect();
    let most = 1_u64 << 52;
    let step = |index| {
        let input_tokens = most - index;
        format!(r#"{{"input_tokens": {input_tokens}, "input": {most}, "output": {most}}}"#)
    };
    let steps: Vec<String> = (0..4).rev().map(step).collect();
    let policy = openai(&format!(
        r#""output_tokens": [{}], "in_flight": 0, "models": {{"*": {{"input": {most}, "output": {most}, "above": [{}]}}}}"#,
        limits.join(","),
        steps.join(",")
    ));
    let facts = post(CHAT, &[("body.json:/max_tokens", "4503599627370496")]);
    let text = decide(&policy, &facts).settle_with.unwrap();
    assert!(text.len() <= 4_096, "{}", text.len());
    let memo = Memo::read(&text).unwrap();
    assert_eq!(memo.write(), text);
    assert_eq!((memo.limits.len(), memo.limits[15].name.clone()), (16, name(15)));
    for wrong in
        ["", "1 2", "1 2 3", "1 2 0 4", "x 2 0", "1 2 0\ntokens", "1 2 0\nall 0 5 a", "1 2 0 5 6"]
    {
        assert!(policy.settle(wrong, &completed(&[])).is_err(), "{wrong:?}");
    }
}

#[test]
fn clients_that_leave_are_read_on_for_unless_it_is_off() {
    let wait = |more: &str| read_on_ms(&decide(&openai(&format!("{}{more}", tokens())), &chat()));
    assert_eq!(wait(""), 30_000);
    assert_eq!(wait(r#", "read_on": "1m30s""#), 90_000);
    assert_eq!(wait(r#", "read_on": "0s""#), 0);
}
