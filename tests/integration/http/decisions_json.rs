//! Calls of Envoy's rate limit service as JSON, at the path where envoyproxy/ratelimit takes them.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;

use super::decision_api::{config, start};

#[tokio::test]
async fn the_rate_limit_services_calls_are_answered_as_json_too() {
    let (_weir, api) = start(config()).await;
    let call = json!({
        "domain": "users", "hitsAddend": 2,
        "descriptors": [
            { "entries": [{ "key": "user", "value": "a" }] },
            { "entries": [{ "key": "user", "value": "b" }], "hits_addend": "1" },
            { "entries": [{ "key": "nobody", "value": "knows" }] },
        ],
    });
    let first = api.send_json("/json", &[], &call).await;
    first.is(200);
    let limit = json!({ "name": "user", "requestsPerUnit": 3, "unit": "DAY" });
    assert_eq!(first.body["overallCode"], "OK");
    assert_eq!(first.body["statuses"][0]["currentLimit"], limit);
    assert_eq!(first.body["statuses"][0]["limitRemaining"], 1);
    assert_eq!(first.body["statuses"][1]["limitRemaining"], 2);
    assert_eq!(first.body["statuses"][2], json!({ "code": "OK" }));
    let reset = first.body["statuses"][0]["durationUntilReset"].as_str().unwrap();
    assert!(["86399s", "86400s"].contains(&reset), "{reset}");
    assert!(first.body.get("rawBody").is_none(), "{first:?}");

    let second = api.send_json("/json", &[], &call).await;
    second.is(429);
    assert_eq!(second.body["overallCode"], "OVER_LIMIT");
    let codes: Vec<_> = (0..3).map(|nth| &second.body["statuses"][nth]["code"]).collect();
    assert_eq!(codes, ["OVER_LIMIT", "OK", "OK"]);
    let fields = second.body["responseHeadersToAdd"].as_array().unwrap();
    assert!(fields.iter().any(|field| field["key"] == "retry-after"), "{second:?}");
    let body = BASE64_STANDARD.decode(second.body["rawBody"].as_str().unwrap()).unwrap();
    assert!(String::from_utf8(body).unwrap().contains("\"violated-policies\":[\"user\"]"));
    // All or nothing.
    let look = json!({
        "domain": "users",
        "descriptors": [{ "entries": [{ "key": "user", "value": "b" }], "hitsAddend": 0 }],
    });
    let look = api.send_json("/json", &[], &look).await;
    assert_eq!(look.body["statuses"][0]["limitRemaining"], 2, "{look:?}");
}

#[tokio::test]
async fn what_is_wrong_with_a_call_as_json_is_a_problem_document() {
    let (_weir, api) = start(config()).await;
    let entry = json!({ "entries": [{ "key": "user", "value": "a" }] });
    for (call, status, detail) in [
        (json!({ "domain": "users", "descriptor": [entry] }), 400, "Unknown field `descriptor`"),
        (json!({ "domain": "users" }), 400, "No descriptor"),
        (json!({ "domain": "nobody", "descriptors": [entry] }), 404, "domain"),
        (
            json!({ "domain": "users", "descriptors": [{ "entries": entry["entries"], "limit": { "requestsPerUnit": 1 } }] }),
            400,
            "without a known unit",
        ),
    ] {
        let answer = api.send_json("/json", &[], &call).await;
        answer.is(status);
        assert!(answer.body["detail"].as_str().unwrap().contains(detail), "{answer:?}");
    }
    let grpc = [("content-type", "application/grpc")];
    let call = json!({ "domain": "nobody", "descriptors": [entry] });
    api.send_json("/json", &grpc, &call).await.is(404);
    let large = api.send("POST", "/json", &[], vec![b' '; (1 << 20) + 1]).await;
    large.is(413);
    let other = api.send("GET", "/json", &[], Vec::new()).await;
    other.is(405);
    assert_eq!(other.header("allow"), "POST");
}
