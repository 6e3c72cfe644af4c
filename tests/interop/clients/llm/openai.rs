//! OpenAI's library: chat completions, responses and embeddings.

use serde_json::{Value, json};

use super::{Budget, Case, Charge, DEFAULT_OUTPUT, FIELD, all_lists, estimate, post};
use crate::harness::model::Reply;

/// What Weir sends before the error of an upstream that gave no reply.
const NO_REPLY: &str = "InternalServerError";

fn tools() -> Value {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let function = json!({"name": "weather", "parameters": parameters});
    json!({"tools": [{"type": "function", "function": function}]})
}

fn odd(change: impl FnOnce(&mut Reply)) -> Reply {
    let mut reply = Reply::default();
    change(&mut reply);
    reply
}

/// A chat that is streamed, and complete.
fn streamed(name: &'static str, charged: Charge, reply: Reply) -> Case {
    let tokens = reply.output;
    Case::new(name, "chat", charged).streamed().reply(reply).wants_tokens(tokens)
}

#[test]
fn chats_are_charged_what_they_tell() {
    let tool = || odd(|reply| reply.tool = true);
    let usage = |include: bool| json!({"stream_options": {"include_usage": include}});
    let default = Reply::default;
    let budget = Budget::start("openai", &all_lists());
    budget.check(&[
        Case::new("whole", "chat", Charge::Told).wants_tokens(20).wants("finish", "stop"),
        streamed("stream", Charge::Told, default()).wants("finish", "stop"),
        streamed("usage-refused", Charge::Told, default()).arguments(usage(false)),
        streamed("usage-wanted", Charge::Told, default()).arguments(usage(true)),
        Case::new("tool", "chat", Charge::Told)
            .arguments(tools())
            .reply(tool())
            .wants_tokens(20)
            .wants("tool", true)
            .wants("finish", "tool_calls"),
        streamed("tool-stream", Charge::Told, tool())
            .arguments(tools())
            .wants("tool", true)
            .wants("finish", "tool_calls"),
        streamed("two-maxima", Charge::Told, odd(|reply| reply.output = 200))
            .arguments(json!({"max_tokens": 1, "max_completion_tokens": 500}))
            .maximum(500),
        Case::new("cut-short", "chat", Charge::Told)
            .arguments(json!({"max_tokens": 5}))
            .maximum(5)
            .wants_tokens(5)
            .wants("finish", "length"),
        // It writes more than was reserved, which is owed.
        streamed("no-maximum", Charge::Told, odd(|reply| reply.output = DEFAULT_OUTPUT + 50)),
    ]);
    assert_eq!(budget.truth("two-maxima").output, 200, "more than the smaller maximum");
    // Every stream is asked for its usage, whatever the client said. Nothing else is changed.
    for (case, include) in [("usage-refused", false), ("usage-wanted", true), ("stream", true)] {
        let mut asked = budget.truth(case).json();
        assert_eq!(asked["stream_options"], json!({"include_usage": true}), "{case}");
        asked["stream_options"] = json!({"include_usage": include});
        let sent = if case == "stream" { json!({}) } else { usage(include) };
        let sent = streamed("", Charge::Told, Reply::default()).arguments(sent).json();
        let mut sent = sent["arguments"].clone();
        sent["stream_options"] = json!({"include_usage": include});
        assert_eq!(asked, sent, "{case}");
    }
    assert!(budget.truth("whole").json().get("stream_options").is_none());
}

#[test]
fn chats_without_usage_keep_their_reservation() {
    let silent = |output: u64| odd(|reply| (reply.usage, reply.output) = (false, output));
    let budget = Budget::start("openai", &all_lists());
    budget.check(&[
        Case::new("whole", "chat", Charge::Reserved).reply(silent(20)).wants_tokens(20),
        streamed("stream", Charge::Reserved, silent(20)),
        // It certainly had that many.
        streamed("beyond", Charge::Estimated, silent(2 * DEFAULT_OUTPUT)),
    ]);
}

#[test]
fn chats_without_usage_are_estimated_where_that_is_wanted() {
    let silent = || odd(|reply| reply.usage = false);
    let chunky = || odd(|reply| (reply.usage, reply.tokens_per_event) = (false, 7));
    let short = || odd(|reply| (reply.usage, reply.text) = (false, "a".to_owned()));
    let config = format!("without_usage = \"estimated\"\n{}", all_lists());
    let budget = Budget::start("openai", &config);
    budget.check(&[
        Case::new("whole", "chat", Charge::Estimated).reply(silent()).wants_tokens(20),
        streamed("stream", Charge::Estimated, silent()),
        streamed("several-in-one", Charge::Estimated, chunky()),
        streamed("letters", Charge::Estimated, short()),
        streamed("tool", Charge::Estimated, odd(|reply| (reply.usage, reply.tool) = (false, true)))
            .arguments(tools()),
        streamed("two-maxima", Charge::Estimated, silent())
            .arguments(json!({"max_tokens": 1, "max_completion_tokens": 500}))
            .maximum(500),
        streamed(
            "beyond",
            Charge::Estimated,
            odd(|reply| {
                (reply.usage, reply.output) = (false, 2 * DEFAULT_OUTPUT);
            }),
        ),
        // A complete reply without text and usage says nothing.
        Case::new("empty", "chat", Charge::Reserved)
            .reply(odd(|reply| (reply.usage, reply.output) = (false, 0))),
    ]);
    assert_eq!((estimate(&silent(), 20), estimate(&short(), 20)), (27, 20));
}

#[test]
fn odd_framings_are_read_and_arrive_as_they_were() {
    let reply = || Reply { output: 30, ..Reply::default() };
    let framings: [(&'static str, Reply); 9] = [
        ("split", Reply { split_usage: true, ..reply() }),
        ("bytewise", Reply { bytewise: true, ..reply() }),
        ("crlf", Reply { line_end: "\r\n".to_owned(), ..reply() }),
        ("cr", Reply { line_end: "\r".to_owned(), ..reply() }),
        ("data-lines", Reply { data_lines: true, ..reply() }),
        ("comments", Reply { comments: true, ..reply() }),
        ("gzip", Reply { coding: Some("gzip".to_owned()), ..reply() }),
        ("gzip-bytewise", Reply { coding: Some("gzip".to_owned()), bytewise: true, ..reply() }),
        (
            "all",
            Reply {
                split_usage: true,
                bytewise: true,
                line_end: "\r\n".to_owned(),
                data_lines: true,
                comments: true,
                tokens_per_event: 4,
                text: "\u{1F600}\"\\".to_owned(),
                ..reply()
            },
        ),
    ];
    let budget = Budget::start("openai", &all_lists());
    let cases = framings.clone().map(|(name, reply)| streamed(name, Charge::Told, reply));
    budget.check(&cases);
    let body = json!({"model": "gpt-4o", "stream": true, "messages": [],
        "stream_options": {"include_usage": true}});
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (name, reply) in &framings {
        let ask = |address| {
            let target = "/v1/chat/completions";
            runtime.block_on(post(address, target, "bytes", reply, &body)).unwrap()
        };
        let (through, straight) = (ask(budget.weir.http), ask(budget.model.address));
        assert_eq!((through.status, straight.status), (200, 200), "{name}");
        assert!(straight.body == through.body, "{name}: {}\n{}", straight.text(), through.text());
        for field in ["content-type", "content-encoding"] {
            assert_eq!(through.header(field), straight.header(field), "{name}");
        }
        let asked = budget.model.truths_of(FIELD, "bytes");
        let codings = asked.iter().rev().take(2).map(|truth| &truth.headers["accept-encoding"]);
        assert_eq!(codings.collect::<Vec<_>>(), ["gzip", "identity"], "{name}");
    }
}

#[test]
fn replies_that_break_off_before_their_usage_keep_the_reservation_of_their_output() {
    let dies = |events: u64| odd(|reply| reply.die_after = Some(events));
    let split = odd(|reply| (reply.die_after, reply.split_usage) = (Some(1), true));
    let later = odd(|reply| (reply.die_after, reply.split_usage) = (Some(9), true));
    let error = "APIConnectionError";
    let budget = Budget::start("openai", &all_lists());
    let broken = |name: &'static str, charged: Charge, reply: Reply| {
        Case::new(name, "chat", charged).streamed().reply(reply).wants("error", error)
    };
    budget.check(&[
        // The first event has no text.
        broken("after-text", Charge::Reserved, dies(9)),
        broken("before-anything", Charge::Reserved, dies(0)),
        broken("before-text", Charge::Reserved, dies(1)),
        broken("input-alone", Charge::ToldAndReserved, split),
        broken("input-and-text", Charge::ToldAndReserved, later),
        // Everything was reported, and only `[DONE]` is missing.
        broken("before-done", Charge::ToldAndEstimated, dies(23)),
        Case::new("whole", "chat", Charge::Reserved)
            .reply(odd(|reply| (reply.output, reply.die_after) = (200, Some(0))))
            .wants("error", error),
    ]);
}

#[test]
fn errors_cost_nothing_unless_they_tell_usage() {
    let fails = |status: u16| odd(|reply| reply.status = Some(status));
    let case = |name: &'static str, charged: Charge, reply: Reply, error: &str| {
        Case::new(name, "chat", charged).streamed().reply(reply).wants("error", error)
    };
    let telling = odd(|reply| (reply.status, reply.error_usage) = (Some(500), true));
    let budget = Budget::start("openai", &all_lists());
    budget.check(&[
        case("400", Charge::Nothing, fails(400), "BadRequestError"),
        case("429", Charge::Nothing, fails(429), "RateLimitError"),
        case("500", Charge::Nothing, fails(500), "InternalServerError"),
        case("500-with-usage", Charge::Told, telling, "InternalServerError"),
        // The model got the request, and may have worked.
        case("no-reply", Charge::Reserved, odd(|reply| reply.no_head = true), NO_REPLY),
    ]);
}

#[test]
fn a_timeout_of_the_upstream_keeps_the_reservation() {
    let budget = Budget::within("openai", &all_lists(), |mut config| {
        config.rest = config.rest.replace(
            "[upstreams.model]\n",
            "[upstreams.model]\ntimeouts = { response_header = \"200ms\" }\n",
        );
        config
    });
    let held = odd(|reply| reply.hold_head = true);
    budget
        .check(&[Case::new("late", "chat", Charge::Reserved).reply(held).wants("error", NO_REPLY)]);
}

#[test]
fn responses_and_embeddings_are_charged_what_they_tell() {
    let response = |name: &'static str, charged: Charge| Case::new(name, "responses", charged);
    let silent = || odd(|reply| reply.usage = false);
    let dies = odd(|reply| reply.die_after = Some(10));
    let shorter = json!({"max_output_tokens": 6});
    let budget = Budget::start("openai", &all_lists());
    budget.check(&[
        response("whole", Charge::Told).wants_tokens(20).wants("finish", "completed"),
        response("stream", Charge::Told).streamed().wants_tokens(20).wants("finish", "completed"),
        response("shorter", Charge::Told)
            .streamed()
            .arguments(shorter)
            .maximum(6)
            .wants_tokens(6)
            .wants("finish", "incomplete"),
        response("whole-silent", Charge::Reserved).reply(silent()).wants_tokens(20),
        response("stream-silent", Charge::Reserved).streamed().reply(silent()).wants_tokens(20),
        // Four events come before the first text.
        response("dies", Charge::Reserved)
            .streamed()
            .reply(dies)
            .wants("error", "APIConnectionError"),
        // They have no output.
        Case::new("embeddings", "embeddings", Charge::Told).maximum(0),
        Case::new("embeddings-silent", "embeddings", Charge::Reserved).maximum(0).reply(silent()),
    ]);
    assert_eq!(budget.truth("embeddings").output, 0);
}

#[tokio::test]
async fn replies_that_can_not_be_read_are_charged_what_was_reserved() {
    let budget = Budget::start("openai", &all_lists());
    let coded = |coding: &str| odd(|reply| reply.coding = Some(coding.to_owned()));
    let body = json!({"model": "gpt-4o", "messages": [], "max_tokens": 50});
    let reserved = (body.to_string().len() as u64).div_ceil(3);
    for (case, reply) in [
        ("text", odd(|reply| reply.media = Some("text/plain".to_owned()))),
        ("no-type", odd(|reply| reply.media = Some(String::new()))),
        ("unknown-coding", coded("compress")),
        ("wrong-coding", coded("br")),
    ] {
        let target = "/v1/chat/completions";
        let through = post(budget.weir.http, target, case, &reply, &body).await.unwrap();
        let straight = post(budget.model.address, target, "", &reply, &body).await.unwrap();
        assert_eq!(through.body, straight.body, "{case}");
        assert_eq!(budget.truth(case).output, 20);
        assert_eq!(budget.charged("input", case), reserved, "{case}");
        assert_eq!(budget.charged("output", case), 50, "{case}");
    }
}
