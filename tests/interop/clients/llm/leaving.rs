//! Clients that leave before the end of their reply.

use serde_json::json;

use super::{Budget, Case, Charge, DEFAULT_OUTPUT, all_lists, post};
use crate::harness::eventually;
use crate::harness::model::Reply;

/// Texts that come before the model waits.
const BEGUN: u64 = 5;

/// Leaves when the model has written the first texts, and waits. `before` events come before them.
fn leaves(name: &'static str, call: &'static str, charged: Charge, before: u64) -> Case {
    let reply = Reply { output: 30, hold_after: Some(before + BEGUN), ..Reply::default() };
    let case = Case::new(name, call, charged).streamed().reply(reply);
    case.leaves_after(BEGUN).wants_tokens(BEGUN)
}

/// The kinds of streams, by their API: call, and events before the first text.
const STREAMS: [(&str, &str, &str, u64); 3] = [
    ("openai", "chat", "chat", 1),
    ("openai", "responses", "responses", 4),
    ("anthropic", "messages", "messages", 3),
];

#[test]
fn a_reply_is_read_on_for_its_usage() {
    for (api, name, call, before) in STREAMS {
        let budget = Budget::start(api, &all_lists());
        let case = leaves(name, call, Charge::Told, before);
        let seen = budget.run(std::slice::from_ref(&case)).remove(0);
        assert_eq!(seen.texts, BEGUN);
        // As long as the model writes, nothing is settled.
        budget.check_reserved(&case, &seen);
        assert_eq!(budget.counted("at-once", name), 1, "{name}");
        assert_eq!(budget.counted("output", name), case.maximum, "{name}");
        budget.model.release();
        let charged = budget.charged("output", name);
        assert_eq!((charged, budget.truth(name).output), (30, 30), "{name}");
        assert_eq!(budget.charged("input", name), budget.truth(name).input, "{name}");
    }
}

/// OpenAI's library closes its connection when it has read `[DONE]`, whether the reply has ended or
/// not.
#[test]
fn a_client_that_leaves_after_the_last_event_is_charged_what_was_reported() {
    let budget = Budget::start("openai", &all_lists());
    // One event begins the stream, and one each has the reason, the usage and `[DONE]`.
    let reply = Reply { hold_after: Some(20 + 4), ..Reply::default() };
    let case = Case::new("done", "chat", Charge::Told).streamed().reply(reply).wants_tokens(20);
    budget.run(&[case]);
    assert_eq!(budget.counted("output", "done"), DEFAULT_OUTPUT, "the reply has not ended yet");
    budget.model.release();
    assert_eq!(budget.charged("output", "done"), 20);
}

#[test]
fn a_reply_that_is_not_read_on_keeps_the_reservation_of_its_output() {
    for (api, name, call, before) in STREAMS {
        let budget = Budget::start(api, &format!("read_on = \"0s\"\n{}", all_lists()));
        let charge = if api == "openai" { Charge::Reserved } else { Charge::ToldAndReserved };
        // The model is never released: it learns that nobody reads on.
        budget.check(&[leaves(name, call, charge, before)]);
        eventually("the model's connection is closed", || {
            let truth = budget.truth(name);
            if truth.ended { Ok(()) } else { Err(format!("{truth:?}")) }
        });
        assert_eq!(budget.truth(name).output, BEGUN);
    }
}

#[test]
fn a_reply_is_read_on_no_longer_than_it_may_be() {
    let budget = Budget::start("openai", &format!("read_on = \"300ms\"\n{}", all_lists()));
    budget.check(&[leaves("late", "chat", Charge::Reserved, 1)]);
    assert_eq!(budget.truth("late").output, BEGUN);
    assert_eq!(budget.charged("output", "late"), DEFAULT_OUTPUT);
}

#[tokio::test]
async fn a_client_that_leaves_before_the_reply_is_charged_what_was_reserved() {
    for read_on in ["0s", "30s"] {
        let budget = Budget::start("openai", &format!("read_on = \"{read_on}\"\n{}", all_lists()));
        let body = json!({"model": "gpt-4o", "messages": [], "stream": true, "max_tokens": 70});
        let reserved = (body.to_string().len() as u64).div_ceil(3);
        let (address, reply) = (budget.weir.http, Reply { hold_head: true, ..Reply::default() });
        let asking = tokio::spawn(async move {
            let sent = post(address, "/v1/chat/completions", "gone", &reply, &body).await;
            sent.map(|reply| reply.status).map_err(|error| error.to_string())
        });
        crate::harness::eventually_async("the model has the request", async || {
            let seen = budget.model.truths().len();
            if seen == 1 { Ok(()) } else { Err(seen.to_string()) }
        })
        .await;
        asking.abort();
        assert!(asking.await.unwrap_err().is_cancelled());
        let charged = (budget.charged("input", "gone"), budget.charged("output", "gone"));
        assert_eq!(charged, (reserved, 70), "read_on = {read_on}");
    }
}
