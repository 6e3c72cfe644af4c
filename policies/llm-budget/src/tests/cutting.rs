//! Which replies are cut, what is taken for them at first, and how their output is estimated.

use weir_policy::{Gather, Term};

use super::*;
use crate::api::{Api, Named};

const CUT: &str = "\"hard_cut\": 64";
const STREAM: (&str, &str) = ("body.json:/stream", "true");

/// A policy with this limit in `tokens`, and steps of 64.
fn cutting(api: &str, quota: u64) -> Instance<LlmBudget> {
    of(api, &format!("{}, {CUT}", list("tokens", "all", quota)))
}

/// A request that asks for a stream.
fn streamed<'a>(more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut facts = post(CHAT, &[STREAM]);
    facts.extend(more);
    facts
}

/// Whether output is taken in steps. If not, it must be reserved whole.
#[track_caller]
fn in_steps(policy: &Instance<LlmBudget>, facts: &[(&str, &str)]) -> bool {
    let decision = decide(policy, facts);
    let steps = hard_cut(&decision).is_some();
    assert_eq!(costs(&decision), [("all", if steps { 164 } else { 4_196 })]);
    assert_eq!(partial(&decision).is_some(), !steps, "as without `hard_cut`");
    steps
}

#[test]
fn output_is_taken_in_steps_where_it_is_cut() {
    let policy = openai(&format!("{}, {CUT}, \"bytes_per_token\": 5", tokens()));
    let decision = decide(&policy, &streamed(&[("body.json:/max_tokens", "1000")]));
    assert_eq!(costs(&decision), [("all", 124)]);
    assert!(partial(&decision).is_none());
    let HardCut { limits, taken, step, used } = hard_cut(&decision).unwrap();
    assert_eq!((limits, taken, step, used.base), (vec!["all".to_owned()], 124, 64, 60));
    // Each number of output has a term of its own, and input has none.
    let told = |Term { group, meter, units, per }: &Term| {
        let Meter { pointer, gather } = &meters(&decision)[*meter as usize];
        (pointer.clone(), *gather, *group, *units, *per)
    };
    let terms: Vec<_> = used.terms.iter().map(told).collect();
    let told = ("/usage/completion_tokens".to_owned(), Gather::Last, 2, 1, 1);
    assert!(terms.contains(&told));
    for text in ["/choices/*/delta/content", "/choices/*/delta/reasoning_content"] {
        assert!(terms.contains(&(text.to_owned(), Gather::Count, 0, 1, 1)));
        assert!(terms.contains(&(text.to_owned(), Gather::Bytes, 1, 1, 5)));
    }
    assert_eq!(terms.len(), meters(&decision).len() - 1, "all but the input");
    assert!(!terms.iter().any(|(pointer, ..)| pointer == "/usage/prompt_tokens"));
    // A request for less than a step takes no more than that.
    let little = decide(&policy, &streamed(&[("body.json:/max_tokens", "5")]));
    assert_eq!(costs(&little), [("all", 65)]);
    let cut = hard_cut(&little).unwrap();
    assert_eq!((cut.taken, cut.used.base), (65, 60));
    // No step is more than a limit ever has.
    let log = tokens().replace("fixed_window", "sliding_window_log");
    let log = openai(&format!("{}, \"hard_cut\": 20000", log.replace("1000000", "5000")));
    let facts = streamed(&[("body.json:/max_tokens", "1000")]);
    assert_eq!(hard_cut(&decide(&log, &facts)).unwrap().step, 5_000);
    let embeddings = post("/v1/embeddings", &[STREAM]);
    assert!(hard_cut(&decide(&policy, &embeddings)).is_none());
}

#[test]
fn only_limits_that_refuse_are_taken_in_steps() {
    let shadow =
        list("output_tokens", "seen", 90_000).replace("\"period\"", "\"shadow\": true, \"period\"");
    let small = list("tokens", "all", 170);
    let decision = decide(&openai(&format!("{small}, {shadow}, {CUT}")), &streamed(&[]));
    assert_eq!(costs(&decision), [("all", 164), ("seen", 4_096)]);
    let cut = hard_cut(&decision).unwrap();
    assert_eq!((cut.limits, cut.taken), (vec!["all".to_owned()], 164));
}

#[test]
fn only_a_stream_is_taken_in_steps() {
    for (api, path) in [
        ("openai", CHAT),
        ("openai", "/v1/completions"),
        ("openai", "/v1/responses"),
        ("anthropic", MESSAGES),
    ] {
        let policy = cutting(api, 1_000_000);
        let with = |values: &[&'static str]| -> Vec<(&str, &str)> {
            let values = values.iter().map(|value| ("body.json:/stream", *value));
            post(path, &values.collect::<Vec<_>>())
        };
        assert!(in_steps(&policy, &with(&["true"])), "{path}");
        assert!(in_steps(&policy, &with(&["true", "true"])), "{path}");
        for other in ["false", "null", "0", "1", "\"true\"", "\"off\"", "{}", "[]"] {
            assert!(!in_steps(&policy, &with(&[other])), "{path} {other}");
            // Which of the two the upstream takes is not known.
            assert!(!in_steps(&policy, &with(&["true", other])), "{path} {other}");
            assert!(!in_steps(&policy, &with(&[other, "true"])), "{path} {other}");
        }
        assert!(!in_steps(&policy, &with(&[])), "{path}");
        // Another fact of the same request says nothing about it.
        assert!(!in_steps(&policy, &post(path, &[("query.alt", "sse")])), "{path}");
    }
    let other = post("/v1/other", &[STREAM]);
    assert!(!in_steps(&cutting("openai", 1_000_000), &other), "what it answers is not known");
}

#[test]
fn of_gemini_a_stream_of_events_is_taken_in_steps() {
    let policy = cutting("gemini", 1_000_000);
    let events = ("query.alt", "sse");
    let whole = "/v1beta/models/gemini-pro:generateContent";
    assert!(in_steps(&policy, &post(GENERATE, &[events])));
    assert!(in_steps(&policy, &post(&GENERATE.replace(':', "%3A"), &[events])));
    assert!(!in_steps(&policy, &post(GENERATE, &[])), "one long array");
    for alt in ["json", "proto", "", "sse,json"] {
        assert!(!in_steps(&policy, &post(GENERATE, &[("query.alt", alt)])), "{alt}");
        assert!(!in_steps(&policy, &post(GENERATE, &[events, ("query.alt", alt)])), "{alt}");
    }
    assert!(!in_steps(&policy, &post(whole, &[events])));
    assert!(!in_steps(&policy, &post(GENERATE, &[STREAM])), "it is in the query");
}

#[test]
fn of_an_api_of_ones_own_what_asks_for_a_stream_is_taken_in_steps() {
    let pointers = r#""pointers": {"maxima": ["/limit"], "text": ["/text"]}"#;
    let policy = Instance::<LlmBudget>::new(&format!("{{{pointers}, {}, {CUT}}}", tokens()));
    let policy = policy.unwrap();
    assert!(policy.manifest().request_facts.contains(&STREAM.0.to_owned()));
    assert!(in_steps(&policy, &post("/ask", &[STREAM])));
    assert!(!in_steps(&policy, &post("/ask", &[])));
    for other in ["false", "1", "\"true\""] {
        assert!(!in_steps(&policy, &post("/ask", &[(STREAM.0, other)])), "{other}");
    }
}

#[test]
fn an_input_that_leaves_no_step_is_reserved_whole() {
    // The input is 100, and a step is 64.
    let fits = decide(&cutting("openai", 164), &streamed(&[]));
    let cut = hard_cut(&fits).unwrap();
    assert_eq!((costs(&fits), cut.taken, cut.used.base), (vec![("all", 164)], 164, 100));
    // With less, it gets what is left, as without steps.
    let left = decide(&cutting("openai", 163), &streamed(&[]));
    assert!(hard_cut(&left).is_none());
    assert_eq!(costs(&left), [("all", 163)]);
    assert_eq!(changes(&left)[0], ("/max_completion_tokens", "63"));
    assert_eq!(partial(&left).unwrap().least, 116);
    for quota in [0, 50, 100, 110] {
        let whole = decide(&cutting("openai", quota), &streamed(&[]));
        assert!(hard_cut(&whole).is_none() && partial(&whole).is_none(), "{quota}");
        assert_eq!(costs(&whole), [("all", quota.max(1))]);
    }
    // Where less is asked for, a smaller step is enough.
    let little = decide(&cutting("openai", 110), &streamed(&[("body.json:/max_tokens", "5")]));
    assert_eq!(hard_cut(&little).unwrap().used.base, 100);
    // The smallest of several limits counts, and a bucket's burst is what it can let through.
    let bucket = |burst: u64| {
        let algorithm = format!("\"algorithm\": \"token_bucket\", \"burst\": {burst}");
        limit("b", 100).replace("\"algorithm\": \"fixed_window\"", &algorithm)
    };
    for (burst, steps) in [(163, false), (164, true)] {
        let two = format!("\"tokens\": [{}, {}], {CUT}", limit("a", 9_000), bucket(burst));
        assert_eq!(hard_cut(&decide(&openai(&two), &streamed(&[]))).is_some(), steps, "{burst}");
    }
}

/// The output that the proxy estimates from these facts while a reply streams.
fn estimate(decision: &Decision, facts: &[(&str, &str)]) -> u64 {
    let cut = hard_cut(decision).unwrap();
    let mut groups = [0; 8];
    for term in &cut.used.terms {
        let Meter { pointer, gather } = &meters(decision)[term.meter as usize];
        let name = gather.fact(pointer);
        let read = facts.iter().find(|(fact, _)| *fact == name);
        let read: u64 = read.map_or(0, |(_, value)| value.parse().unwrap());
        groups[term.group as usize] += (read * term.units).div_ceil(term.per);
    }
    groups.into_iter().max().unwrap()
}

/// The estimate is `output`, and so is what the reply's end makes of the same facts.
#[track_caller]
fn is_estimated(named: Named, facts: &[(&str, &str)], output: u64) {
    let (api, path, events) = match named {
        Named::OpenAi if facts[0].0.contains("/choices/") => ("openai", CHAT, STREAM),
        Named::OpenAi => ("openai", "/v1/responses", STREAM),
        Named::Anthropic => ("anthropic", MESSAGES, STREAM),
        Named::Gemini => ("gemini", GENERATE, ("query.alt", "sse")),
    };
    let decision = decide(&cutting(api, 1_000_000), &post(path, &[events]));
    assert_eq!(estimate(&decision, facts), output);
    let reply = Api::from(named).read(&completed(facts), 3);
    assert_eq!(reply.output.max(reply.so_far).max(reply.text), Some(output));
}

#[test]
fn the_estimate_while_a_reply_streams_is_that_at_its_end() {
    let count = |text: &str| format!("usage.count:/choices/*/delta/{text}");
    let bytes = |text: &str| format!("usage.bytes:/choices/*/delta/{text}");
    let [content, thought] = ["content", "reasoning_content"];
    let told = ("usage.last:/usage/completion_tokens", "7");
    // The numbers of all texts together, or their bytes together, or what is reported.
    is_estimated(Named::OpenAi, &[(&count(content), "40"), (&count(thought), "50")], 90);
    is_estimated(
        Named::OpenAi,
        &[(&count(content), "99"), (&bytes(content), "300"), (&bytes(thought), "600"), told],
        300,
    );
    is_estimated(Named::OpenAi, &[(&count(content), "2"), (&bytes(content), "6"), told], 7);
    // The same number at two places counts once.
    let places = ["/usage", "/response/usage"].map(|at| format!("usage.last:{at}/output_tokens"));
    is_estimated(Named::OpenAi, &[(&places[0], "70"), (&places[1], "70")], 70);
    // The first event's tokens are among the last one's.
    let places = ["/message/usage", "/usage"].map(|at| format!("usage.last:{at}/output_tokens"));
    is_estimated(Named::Anthropic, &[(&places[0], "3"), (&places[1], "70")], 70);
    // Thoughts are reported separately.
    let text = ("usage.count:/candidates/*/content/parts/*/text", "9");
    for at in ["/usageMetadata", "/*/usageMetadata"] {
        let parts = ["candidates", "thoughts"].map(|of| format!("usage.last:{at}/{of}TokenCount"));
        is_estimated(Named::Gemini, &[(&parts[0], "60"), (&parts[1], "80"), text], 140);
    }
}
