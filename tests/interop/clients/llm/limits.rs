//! The end of a budget: what is refused, what is lowered, what is cut, and that many streams at the
//! same time use no more than there is.

use serde_json::{Value, json};

use super::{Budget, Case, Charge, FIELD, Seen, estimate, limit, seen};
use crate::harness::model::Reply;
use crate::harness::process::Service;
use crate::harness::python;

/// All requests of a test have one budget: cases are renamed to it.
const SHARED: &str = "shared";

fn tokens(quota: u64) -> String {
    format!("tokens = [{}]\n", limit("all", quota))
}

/// What the model did in all.
fn used(budget: &Budget) -> u64 {
    budget.model.truths().iter().map(|truth| truth.input + truth.output).sum()
}

/// Runs a case with the shared budget.
fn run(budget: &Budget, case: &Case) -> Seen {
    let mut case = case.json();
    case["headers"][FIELD] = SHARED.into();
    let work = json!([case]).to_string();
    let out = python::client("llm_client.py", &[&budget.url(), "cases", &work]);
    seen(&out).remove(0)
}

/// A reply without end.
fn long() -> Reply {
    Reply { output: 100_000, ..Reply::default() }
}

/// A request for more than is left gets what is left, and the next gets nothing.
fn lowers_and_refuses(api: &str, call: &'static str) {
    const BUDGET: u64 = 1_000;
    let budget = Budget::start(api, &tokens(BUDGET));
    let case = |name: &'static str| {
        let case = Case::new(name, call, Charge::Told).streamed().reply(long());
        case.arguments(json!({"max_tokens": 600}))
    };
    let first = run(&budget, &case("first").wants_tokens(600));
    assert_eq!(budget.charged("all", SHARED), used(&budget));
    assert_eq!(first.remaining("all"), Some(BUDGET - first.reserved_input() - 600));
    let left = BUDGET - used(&budget);

    let seen = run(&budget, &case("lowered").wants("error", Value::Null));
    let lowered = left - seen.reserved_input();
    let truth = budget.model.truths()[1].clone();
    assert_eq!((truth.json()["max_tokens"].as_u64(), truth.output), (Some(lowered), lowered));
    assert_eq!(seen.texts, lowered);
    assert_eq!(seen.remaining("all"), Some(0));
    let charged = budget.charged("all", SHARED);
    assert_eq!(charged, used(&budget));
    assert!(charged <= BUDGET, "{charged}");

    let case = case("refused").wants("error", "RateLimitError").wants("text", "");
    let seen = run(&budget, &case);
    assert_eq!(seen.error["status"], 429, "{seen:?}");
    let wait: u64 = seen.error["retry_after"].as_str().unwrap().parse().unwrap();
    assert!((86_000..=86_400).contains(&wait), "{wait}");
    assert_eq!(budget.model.truths().len(), 2, "it never arrived");
    assert_eq!(budget.charged("all", SHARED), charged, "a refusal costs nothing");
}

#[test]
fn the_last_chat_is_lowered_and_the_next_is_refused() {
    lowers_and_refuses("openai", "chat");
}

#[test]
fn the_last_message_is_lowered_and_the_next_is_refused() {
    lowers_and_refuses("anthropic", "messages");
}

#[test]
fn output_beyond_the_reservation_is_owed() {
    let budget = Budget::start("openai", &tokens(400));
    // It names no maximum, so less than this is reserved.
    let reply = Reply { output: 600, ..Reply::default() };
    let case = || Case::new("owes", "chat", Charge::Told).streamed().reply(reply.clone());
    run(&budget, &case().wants_tokens(600));
    assert_eq!(budget.charged("all", SHARED), used(&budget));
    assert!(used(&budget) > 600);
    run(&budget, &case().wants("error", "RateLimitError"));
    assert_eq!(budget.model.truths().len(), 1);
}

#[test]
fn maxima_above_what_is_left_are_lowered_and_others_stay() {
    let budget = Budget::start("openai", &tokens(400));
    let both = json!({"max_tokens": 1, "max_completion_tokens": 100_000});
    let case = Case::new("both", "chat", Charge::Told).streamed().reply(long()).arguments(both);
    let seen = run(&budget, &case.wants("finish", "length"));
    let lowered = 400 - seen.reserved_input();
    let truth = budget.model.truths()[0].clone();
    let told = |name: &str| truth.json()[name].as_u64();
    assert_eq!((told("max_tokens"), told("max_completion_tokens")), (Some(1), Some(lowered)));
    assert_eq!(truth.output, lowered);
    assert_eq!(budget.charged("all", SHARED), truth.input + lowered);
}

#[test]
fn without_partial_a_request_for_more_than_is_left_is_refused() {
    let budget = Budget::start("openai", &format!("partial = false\n{}", tokens(1_000)));
    let case = |name: &'static str, tokens: u64| {
        let case = Case::new(name, "chat", Charge::Told).streamed().reply(long());
        case.arguments(json!({"max_tokens": tokens}))
    };
    run(&budget, &case("first", 600).wants_tokens(600));
    assert_eq!(budget.charged("all", SHARED), used(&budget));
    run(&budget, &case("second", 600).wants("error", "RateLimitError"));
    run(&budget, &case("third", 100).wants_tokens(100));
    assert_eq!(budget.charged("all", SHARED), used(&budget));
    assert_eq!(budget.model.truths().len(), 2);
}

#[test]
fn a_reply_is_cut_when_nothing_is_left() {
    const BUDGET: u64 = 500;
    const STEP: u64 = 16;
    for (api, call, error) in
        [("openai", "chat", "APIError"), ("anthropic", "messages", "APIStatusError")]
    {
        let budget = Budget::start(api, &format!("hard_cut = {STEP}\n{}", tokens(BUDGET)));
        let case = Case::new("cut", call, Charge::Told).streamed().reply(long());
        let case = case.arguments(json!({"max_tokens": 90_000}));
        let seen = run(&budget, &case.wants("error", error));
        let message = seen.error["message"].as_str().unwrap();
        assert!(message.contains("used up"), "{message}");
        // Only the first step was taken when it began.
        let input = seen.reserved_input();
        assert_eq!(seen.remaining("all"), Some(BUDGET - input - STEP));
        // Of what the model wrote, this was passed on.
        let passed = estimate(&long(), seen.texts);
        assert!(seen.texts > STEP, "{seen:?}");
        assert!(input + passed <= BUDGET + STEP, "{passed}");
        assert!(input + passed + 2 * STEP >= BUDGET, "it was cut too early: {passed}");
        // Anthropic reported its input; OpenAI would have reported it at the end.
        let truth = budget.model.truths()[0].clone();
        let told = if api == "openai" { input } else { truth.input };
        assert_eq!(budget.charged("all", SHARED), told + passed);
        assert!(truth.output < long().output, "the model was told to stop");
    }
}

#[test]
fn a_reply_that_fits_is_not_cut() {
    let budget = Budget::start("openai", &format!("hard_cut = 16\n{}", tokens(2_000)));
    let reply = Reply { output: 300, ..Reply::default() };
    let case = Case::new("fits", "chat", Charge::Told).streamed().reply(reply).wants_tokens(300);
    run(&budget, &case.arguments(json!({"max_tokens": 90_000})).wants("finish", "stop"));
    assert_eq!(budget.charged("all", SHARED), used(&budget));
}

#[test]
fn many_streams_at_the_same_time_never_exceed_their_budget() {
    const STREAMS: u64 = 64;
    const BUDGET: u64 = 6_000;
    const MAXIMUM: u64 = 100;
    let budget = Budget::start("openai", &tokens(BUDGET));
    let members = (0..STREAMS).map(|number| {
        // Different lengths, and some leave early. All wait when they have begun.
        let output = 10 + number * 37 % 200;
        let reply = Reply { output, hold_after: Some(2), ..Reply::default() };
        let case = Case::new("", "chat", Charge::Told).streamed().reply(reply);
        let mut member = case.arguments(json!({"max_tokens": MAXIMUM})).json();
        member["headers"][FIELD] = SHARED.into();
        member["name"] = number.to_string().into();
        member["leave_after"] = if number % 3 == 0 { json!(4) } else { Value::Null };
        member
    });
    let work = Value::Array(members.collect()).to_string();
    let arguments = [budget.url(), "crowd".to_owned(), work];
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut crowd = Service::spawn(&mut python::python("llm_client.py", &arguments));
    crowd.await_line("all have begun");
    // Nothing has ended yet, so what is reserved bounds what is used.
    let begun = budget.model.truths().len() as u64;
    let open = budget.counted("at-once", SHARED);
    assert_eq!((begun, open, begun < STREAMS, begun > 10), (open, begun, true, true), "{begun}");
    assert!(budget.counted("all", SHARED) <= BUDGET);
    let lowered = |maximum: u64| maximum < MAXIMUM;
    let told = budget.model.truths();
    let told = told.iter().filter_map(|truth| truth.json()["max_tokens"].as_u64());
    assert!(told.filter(|maximum| lowered(*maximum)).count() <= 1, "only the last got less");
    budget.model.release();
    crate::harness::eventually("the crowd ends", || {
        if crowd.running() { Err(crowd.lines().join("\n")) } else { Ok(()) }
    });
    let charged = budget.charged("all", SHARED);
    let truths = budget.model.truths();
    assert_eq!(charged, used(&budget), "each is settled to the truth");
    assert!(charged <= BUDGET, "{charged}");
    assert!(truths.len() as u64 > begun, "those refused have tried again");
    let seen = seen(&crowd.lines().join("\n"));
    let passed = seen.iter().filter(|seen| seen.error.is_null()).count();
    assert_eq!(passed, truths.len());
}
