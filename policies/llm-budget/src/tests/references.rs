//! What is reserved for what a body only refers to, and how many such requests there may be at the
//! same time.

use weir_policy::Algorithm;

use super::*;

const RESPONSES: &str = "/v1/responses";
/// The default floors.
const IMAGE: u64 = 1_500;
const FILE: u64 = 20_000;
const STORED: u64 = 20_000;
const TOOL: u64 = 10_000;
/// What the body of [`post`] and its output are reserved at otherwise.
const PLAIN: u64 = 100 + 4_096;

/// Tokens that are reserved for the references in `body`.
#[track_caller]
fn reserved(api: &str, path: &str, body: &str) -> u64 {
    let policy = of(api, &tokens());
    let decision = decide(&policy, &post(path, &[("body.json:", body)]));
    decision.limits()[0].cost - PLAIN
}

#[track_caller]
fn each_is(api: &str, path: &str, floor: u64, bodies: &[&str]) {
    for body in bodies {
        assert_eq!(reserved(api, path, body), floor, "{api} {path} {body}");
    }
}

/// A body for chat with this part of a message.
fn part(part: &str) -> String {
    format!(r#"{{"model":"m","messages":[{{"role":"user","content":[{part}]}}]}}"#)
}

/// A body for responses with this item of the input.
fn item(item: &str) -> String {
    format!(r#"{{"model":"m","input":[{item}]}}"#)
}

/// A body with this tool.
fn tool(tool: &str) -> String {
    format!(r#"{{"model":"m","tools":[{tool}],"tool_choice":{{"type":"file_search"}}}}"#)
}

#[test]
fn inline_content_is_no_reference() {
    let inline = r#"{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}"#;
    each_is(
        "openai",
        CHAT,
        0,
        &[
            r#"{"model":"m","messages":[{"role":"user","content":"see https://a.example/x.png"}]}"#,
            &part(inline),
            &part(r#"{"type":"input_audio","input_audio":{"data":"AAAA","format":"wav"}}"#),
            &part(r#"{"type":"file","file":{"filename":"a.pdf","file_data":"data:AAAA"}}"#),
            &part(r#"{"type":"text","text":"{\"file_id\":\"f\"}"}"#),
            r#"{"metadata":{"file_id":"f","url":"https://a.example"},"user":"u"}"#,
            r#"{"prompt":"a"}"#,
            r#"{"prompt":["a"]}"#,
        ],
    );
    each_is(
        "openai",
        RESPONSES,
        0,
        &[
            &item(r#"{"role":"user","content":"hello"}"#),
            &item(r#"{"id":"fc_1","type":"function_call","name":"f","arguments":"{}"}"#),
            &item(r#"{"id":"msg_1","role":"assistant","content":[{"type":"output_text"}]}"#),
            &item(r#"{"type":"input_image","image_url":"data:image/png;base64,AAAA"}"#),
            r#"{"input":"hello","previous_response_id":null,"conversation":null}"#,
        ],
    );
    each_is(
        "anthropic",
        MESSAGES,
        0,
        &[
            &part(r#"{"type":"image","source":{"type":"base64","data":"AAAA"}}"#),
            // The arguments of a client's tool.
            &part(r#"{"type":"tool_use","input":{"file_id":"f","url":"https://a.example"}}"#),
        ],
    );
    let parts = r#"{"contents":[{"parts":[{"inlineData":{"mimeType":"image/png","data":"AA"}}]}]}"#;
    each_is("gemini", GENERATE, 0, &[parts]);
}

#[test]
fn an_image_by_its_address_or_id_has_a_floor() {
    each_is(
        "openai",
        CHAT,
        IMAGE,
        &[
            &part(r#"{"type":"image_url","image_url":{"url":"https://a.example/x.png"}}"#),
            &part(r#"{"image_url":{"url":"https://a.example/x.png"},"type":"image_url"}"#),
            &part(r#"{"type":"image_url","image_url":"https://a.example/x.png"}"#),
            // As JSON may spell it, and as some servers read it.
            &part(r#"{"type":"image_url","image\u005furl":{"\u0075rl":"https://a.example/"}}"#),
            &part(r#"{"Type":"image_url","Image_URL":{"URL":"https://a.example/x.png"}}"#),
            &part(r#"{ "type" : "image_url" , "image_url" : { "url" : "https://a.example" } }"#),
        ],
    );
    each_is(
        "openai",
        RESPONSES,
        IMAGE,
        &[
            &item(r#"{"role":"user","content":[{"type":"input_image","image_url":"https://a"}]}"#),
            &item(r#"{"role":"user","content":[{"file_id":"f","type":"input_image"}]}"#),
            &item(
                r#"{"type":"function_call_output","output":[{"type":"input_image","file_id":"f"}]}"#,
            ),
        ],
    );
    each_is(
        "anthropic",
        MESSAGES,
        IMAGE,
        &[
            &part(r#"{"type":"image","source":{"type":"url","url":"https://a.example/x.png"}}"#),
            &part(r#"{"source":{"file_id":"f","type":"file"},"type":"image"}"#),
            &part(
                r#"{"type":"tool_result","content":[{"type":"image","source":{"type":"url","url":"https://a"}}]}"#,
            ),
        ],
    );
    let gemini = |data: &str| format!(r#"{{"contents":[{{"parts":[{data}]}}]}}"#);
    each_is(
        "gemini",
        GENERATE,
        IMAGE,
        &[
            &gemini(r#"{"fileData":{"mimeType":"image/png","fileUri":"gs://b/x"}}"#),
            &gemini(r#"{"file_data":{"file_uri":"gs://b/x","mime_type":"image/png"}}"#),
        ],
    );
}

#[test]
fn a_file_by_its_address_or_id_has_a_floor() {
    each_is(
        "openai",
        CHAT,
        FILE,
        &[
            &part(r#"{"type":"file","file":{"file_id":"f"}}"#),
            &part(r#"{"type":"video_url","video_url":{"url":"https://a.example/x.mp4"}}"#),
        ],
    );
    each_is(
        "openai",
        RESPONSES,
        FILE,
        &[
            &item(r#"{"role":"user","content":[{"type":"input_file","file_id":"f"}]}"#),
            &item(r#"{"role":"user","content":[{"type":"input_file","file_url":"https://a"}]}"#),
            // What is said twice must be said alike.
            &item(
                r#"{"role":"user","content":[{"type":"input_file","file_id":"f","type":"input_image"}]}"#,
            ),
        ],
    );
    each_is(
        "anthropic",
        MESSAGES,
        FILE,
        &[
            &part(r#"{"type":"document","source":{"type":"url","url":"https://a.example/x.pdf"}}"#),
            &part(r#"{"type":"document","source":{"type":"file","file_id":"f"}}"#),
            &part(r#"{"type":"container_upload","file_id":"f"}"#),
        ],
    );
    let gemini = |data: &str| format!(r#"{{"contents":[{{"parts":[{data}]}}]}}"#);
    each_is(
        "gemini",
        GENERATE,
        FILE,
        &[
            &gemini(r#"{"fileData":{"mimeType":"video/mp4","fileUri":"gs://b/x"}}"#),
            &gemini(r#"{"file_data":{"file_uri":"gs://b/x"}}"#),
        ],
    );
}

#[test]
fn content_stored_by_the_provider_has_a_floor() {
    each_is(
        "openai",
        RESPONSES,
        STORED,
        &[
            r#"{"input":"go on","previous_response_id":"resp_1"}"#,
            r#"{"input":"go on","conversation":"conv_1"}"#,
            r#"{"input":"go on","conversation":{"id":"conv_1"}}"#,
            r#"{"prompt":{"id":"pmpt_1","variables":{"name":"a"}}}"#,
            &item(r#"{"type":"item_reference","id":"msg_1"}"#),
            &item(r#"{"id":"msg_1"}"#),
        ],
    );
    let audio = r#"{"messages":[{"role":"assistant","audio":{"id":"audio_1"}}]}"#;
    each_is("openai", CHAT, STORED, &[audio]);
    let containers = [r#"{"container":"c_1"}"#, r#"{"container":{"id":"c_1"}}"#];
    each_is("anthropic", MESSAGES, STORED, &containers);
    let caches =
        [r#"{"cachedContent":"cachedContents/a"}"#, r#"{"cached_content":"cachedContents/a"}"#];
    each_is("gemini", GENERATE, STORED, &caches);
}

#[test]
fn a_tool_that_the_provider_runs_has_a_floor() {
    for kind in [
        "file_search",
        "web_search",
        "web_search_preview_2025_03_11",
        "code_interpreter",
        "mcp",
        "image_generation",
        // Nobody knows it yet.
        "mind_reading",
    ] {
        let body = tool(&format!(r#"{{"type":"{kind}","container":{{"type":"auto"}}}}"#));
        assert_eq!(reserved("openai", RESPONSES, &body), TOOL, "{kind}");
    }
    for kind in ["function", "custom", "local_shell", "computer_use_preview", "apply_patch"] {
        let body = tool(&format!(r#"{{"type":"{kind}","parameters":{{"type":"object"}}}}"#));
        assert_eq!(reserved("openai", RESPONSES, &body), 0, "{kind}");
    }
    each_is("openai", CHAT, TOOL, &[r#"{"web_search_options":{}}"#]);
    for kind in ["web_search_20250305", "web_fetch_20250910", "code_execution_20250825"] {
        let body = tool(&format!(r#"{{"type":"{kind}","name":"x","max_uses":5}}"#));
        assert_eq!(reserved("anthropic", MESSAGES, &body), TOOL, "{kind}");
    }
    let servers = r#"{"mcp_servers":[{"type":"url","url":"https://a"}],"tools":[{"type":"mcp_toolset"},{"name":"x","input_schema":{"type":"object"}}]}"#;
    each_is("anthropic", MESSAGES, TOOL, &[servers]);
    for kind in ["googleSearch", "google_search", "urlContext", "fileSearch", "codeExecution"] {
        assert_eq!(reserved("gemini", GENERATE, &tool(&format!(r#"{{"{kind}":{{}}}}"#))), TOOL);
        let alone = format!(r#"{{"tools":{{"{kind}":{{}}}}}}"#);
        assert_eq!(reserved("gemini", GENERATE, &alone), TOOL, "{kind}");
    }
    let own = tool(r#"{"functionDeclarations":[{"name":"f","parameters":{"type":"object"}}]}"#);
    each_is("gemini", GENERATE, 0, &[&own]);
}

#[test]
fn all_references_of_a_body_are_added_up_to_a_bound() {
    let picture = r#"{"type":"image_url","image_url":{"url":"https://a.example/x.png"}}"#;
    let file = r#"{"type":"file","file":{"file_id":"f"}}"#;
    let three = part(&[picture, file, picture].join(","));
    assert_eq!(reserved("openai", CHAT, &three), 2 * IMAGE + FILE);
    let policy = openai(&list("tokens", "all", 1_000_000_000));
    let many = part(&vec![file; 5_000].join(","));
    let decision = decide(&policy, &post(CHAT, &[("body.json:", &many)]));
    assert_eq!(decision.limits()[0].cost, PLAIN + 1_000 * FILE);
    // Never more than the whole limit: otherwise it could not pass at all.
    let small = openai(&list("tokens", "all", 10_000));
    let decision = decide(&small, &post(CHAT, &[("body.json:", &part(file))]));
    assert_eq!(costs(&decision), [("all", 10_000), ("in-flight", 1)]);
}

#[test]
fn the_floors_are_settings() {
    let floors = r#""references": {"image": 0, "file": 7}, "in_flight": 0"#;
    let policy = openai(&format!("{}, {floors}", tokens()));
    let cost_of = |part_of: &str| cost(&policy, &post(CHAT, &[("body.json:", &part(part_of))]));
    assert_eq!(cost_of(r#"{"type":"image_url","image_url":{"url":"https://a"}}"#), PLAIN);
    assert_eq!(cost_of(r#"{"type":"file","file":{"file_id":"f"}}"#), PLAIN + 7);
    // Without any floor, and any number of requests, bodies are not looked through.
    let none = r#""references": {"image": 0, "file": 0, "stored": 0, "tool": 0}, "in_flight": 0"#;
    let reads = |more: &str| {
        let facts = openai(&format!("{}, {more}", tokens())).manifest().request_facts;
        facts.iter().any(|name| name == "body.json:")
    };
    assert!(!reads(none));
    assert!(reads(&none.replace("\"in_flight\": 0", "\"in_flight\": 1")));
    assert!(reads("\"in_flight\": 0"));
}

#[test]
fn references_at_pointers_are_files() {
    let policy = Instance::<LlmBudget>::new(&format!(
        r#"{{"pointers": {{"text": ["/a"], "references": ["/files", "/history"]}}, {}, "in_flight": 0}}"#,
        tokens()
    ))
    .unwrap();
    for (value, count) in [
        ("null", 0),
        ("[]", 0),
        ("\"\"", 0),
        ("\"f\"", 1),
        ("{\"id\": 5}", 1),
        ("[\"f\", null, \"g\"]", 2),
    ] {
        let facts = post("/own", &[("body.json:/files", value), ("body.json:/files", "null")]);
        assert_eq!(cost(&policy, &facts), PLAIN + count * FILE, "{value}");
    }
    let both = post("/own", &[("body.json:/files", "\"f\""), ("body.json:/history", "7")]);
    assert_eq!(cost(&policy, &both), PLAIN + 2 * FILE);
}

#[test]
fn requests_with_references_have_a_number_at_the_same_time() {
    let file = part(r#"{"type":"file","file":{"file_id":"f"}}"#);
    let key = r#""key": "{authority}", "period""#;
    let keyed = tokens().replace("\"period\"", key);
    let refers = post(CHAT, &[("authority", "a"), ("body.json:", &file)]);
    let decision = decide(&openai(&keyed), &refers);
    let [all, in_flight] = decision.limits() else { panic!("{:?}", decision.verdict) };
    assert_eq!((in_flight.name.as_str(), in_flight.cost), ("in-flight", 1));
    assert_eq!(in_flight.algorithm, Algorithm::Concurrency(32));
    assert_eq!((&in_flight.key, &in_flight.tag), (&all.key, &all.tag));
    assert_ne!(all.key, "192.0.2.1");
    // All others are any number.
    let plain = post(CHAT, &[("authority", "a"), ("body.json:", "{}")]);
    assert_eq!(costs(&decide(&openai(&keyed), &plain)), [("all", PLAIN)]);
    let names = |more: &str| {
        let decision = decide(&openai(more), &refers);
        decision.limits().iter().map(|limit| limit.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&format!("{keyed}, \"in_flight\": 0")), ["all"]);
    // The operator's own limit is enough.
    let own = r#""requests": [{"name": "at-once", "algorithm": "concurrency", "quota": 99}]"#;
    assert_eq!(names(&format!("{keyed}, {own}")), ["all", "at-once"]);
    let other = list("requests", "minute", 99);
    assert_eq!(names(&format!("{keyed}, {other}")), ["all", "minute", "in-flight"]);
    // What refuses nothing is not followed by something that does.
    let shadow = keyed.replace("\"period\"", "\"shadow\": true, \"period\"");
    assert_eq!(names(&shadow), ["all"]);
    assert_eq!(names(&other), ["minute"]);
}
