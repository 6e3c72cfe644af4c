//! Gemini's contents, whole, as a stream of events and as an array, without a library: each part of
//! a stream reports the usage so far.

use serde_json::json;

use super::{Budget, all_lists, estimate, post};
use crate::harness::model::Reply;

const WHOLE: &str = "/v1beta/models/gemini-pro:generateContent";
const EVENTS: &str = "/v1beta/models/gemini-pro:streamGenerateContent?alt=sse";
const ARRAY: &str = "/v1beta/models/gemini-pro:streamGenerateContent";

#[tokio::test]
async fn contents_are_charged_what_they_tell_in_each_form() {
    let budget = Budget::start("gemini", &all_lists());
    let body = json!({"contents": [{"role": "user", "parts": [{"text": "How many roads?"}]}],
        "generationConfig": {"maxOutputTokens": 40}});
    let reserved = (body.to_string().len() as u64).div_ceil(3);
    let crlf = || Reply { line_end: "\r\n".to_owned(), output: 100, ..Reply::default() };
    let frames = [
        ("plain", crlf()),
        ("bytewise", Reply { bytewise: true, ..crlf() }),
        ("gzip", Reply { coding: Some("gzip".to_owned()), ..crlf() }),
        ("silent", Reply { usage: false, ..crlf() }),
    ];
    for (name, target) in [("whole", WHOLE), ("events", EVENTS), ("array", ARRAY)] {
        for (frame, reply) in &frames {
            let case = format!("{name}-{frame}");
            let through = post(budget.weir.http, target, &case, reply, &body).await.unwrap();
            let straight = post(budget.model.address, target, "", reply, &body).await.unwrap();
            assert_eq!(through.body, straight.body, "{case}");
            let truth = budget.truth(&case);
            assert_eq!(truth.output, 40, "it obeys the maximum");
            let wanted = match (reply.usage, name) {
                (true, _) => (truth.input, 40),
                // All texts are one. Their bytes are more than was reserved.
                (false, _) => (reserved, estimate(reply, 40).max(40)),
            };
            let charged = (budget.charged("input", &case), budget.charged("output", &case));
            assert_eq!(charged, wanted, "{case}");
        }
        // Whole documents are read when they have come, and so is an array's last number.
        let case = format!("{name}-dies");
        let reply = Reply { die_after: Some(if name == "whole" { 0 } else { 8 }), ..crlf() };
        let cut = post(budget.weir.http, target, &case, &reply, &body).await;
        assert!(cut.is_err(), "{case}: {cut:?}");
        let truth = budget.truth(&case);
        let wanted = match name {
            "whole" => (reserved, 40),
            _ => (truth.input, estimate(&reply, 8)),
        };
        let charged = (budget.charged("input", &case), budget.charged("output", &case));
        assert_eq!(charged, wanted, "{case}");
    }
}
