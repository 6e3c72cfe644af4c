//! Anthropic's library: messages. A stream reports its input first, and its output last.

use serde_json::json;

use super::{Budget, Case, Charge, DEFAULT_OUTPUT, all_lists};
use crate::harness::model::Reply;

/// A stream that is complete.
fn streamed(name: &'static str, charged: Charge, reply: Reply) -> Case {
    let tokens = reply.output;
    Case::new(name, "messages", charged).streamed().reply(reply).wants_tokens(tokens)
}

#[test]
fn messages_are_charged_what_they_tell() {
    let tool = || Reply { tool: true, ..Reply::default() };
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let tools = || json!({"tools": [{"name": "weather", "input_schema": schema}]});
    let budget = Budget::start("anthropic", &all_lists());
    budget.check(&[
        Case::new("whole", "messages", Charge::Told).wants_tokens(20).wants("finish", "end_turn"),
        streamed("stream", Charge::Told, Reply::default()).wants("finish", "end_turn"),
        Case::new("tool", "messages", Charge::Told)
            .arguments(tools())
            .reply(tool())
            .wants_tokens(20)
            .wants("tool", true)
            .wants("finish", "tool_use"),
        streamed("tool-stream", Charge::Told, tool())
            .arguments(tools())
            .wants("tool", true)
            .wants("finish", "tool_use"),
        Case::new("cut-short", "messages", Charge::Told)
            .streamed()
            .arguments(json!({"max_tokens": 5}))
            .maximum(5)
            .wants_tokens(5)
            .wants("finish", "max_tokens"),
        streamed("bytewise", Charge::Told, Reply { bytewise: true, ..Reply::default() }),
        streamed("crlf", Charge::Told, Reply { line_end: "\r\n".to_owned(), ..Reply::default() }),
        streamed("data-lines", Charge::Told, Reply { data_lines: true, ..Reply::default() }),
        streamed("pings", Charge::Told, Reply { comments: true, ..Reply::default() }),
        streamed(
            "gzip",
            Charge::Told,
            Reply { coding: Some("gzip".to_owned()), ..Reply::default() },
        ),
    ]);
}

#[test]
fn messages_that_tell_nothing_or_break_off_stay_reserved() {
    let dies = |events: u64| Reply { die_after: Some(events), ..Reply::default() };
    let silent = || Reply { usage: false, ..Reply::default() };
    let fails = |error_usage: bool| Reply { status: Some(529), error_usage, ..Reply::default() };
    let broken = |name: &'static str, charged: Charge, reply: Reply| {
        Case::new(name, "messages", charged).streamed().reply(reply)
    };
    let (cut, overloaded) =
        (json!(["APIConnectionError", "RemoteProtocolError"]), "OverloadedError");
    let budget = Budget::start("anthropic", &all_lists());
    budget.check(&[
        Case::new("whole-silent", "messages", Charge::Reserved).reply(silent()).wants_tokens(20),
        streamed("stream-silent", Charge::Reserved, silent()),
        // The message's start, a block's start and a ping come before the first text.
        broken("after-text", Charge::ToldAndReserved, dies(9)).wants("error", cut.clone()),
        broken("before-anything", Charge::Reserved, dies(0)).wants("error", cut.clone()),
        // All texts came, but not what the last event but one reports.
        broken("before-usage", Charge::ToldAndReserved, dies(24)).wants("error", cut.clone()),
        // That came, and only the last event is missing.
        broken("before-the-end", Charge::ToldAndEstimated, dies(25)).wants("error", cut.clone()),
        broken("overloaded", Charge::Nothing, fails(false)).wants("error", overloaded),
        broken("overloaded-with-usage", Charge::Told, fails(true)).wants("error", overloaded),
    ]);
}

#[test]
fn a_message_that_breaks_off_at_its_start_is_charged_the_input_that_it_says() {
    let budget = Budget::start("anthropic", &all_lists());
    let reply = Reply { die_after: Some(1), ..Reply::default() };
    let case = Case::new("start", "messages", Charge::ToldAndReserved).streamed().reply(reply);
    budget.run(&[case.wants("error", json!(["APIConnectionError", "RemoteProtocolError"]))]);
    // The one token of output that the start reports is not all of it.
    let input = budget.truth("start").input;
    assert_eq!(
        (budget.charged("input", "start"), budget.charged("output", "start")),
        (input, DEFAULT_OUTPUT)
    );
}
