//! The APIs that this policy knows, as their documentation describes them.

use serde::Deserialize;
use weir_policy::Gather;

use super::{Api, Caches, Dialect, ModelAt, Reading, UsageSources};
use crate::references::References;

/// The APIs by name.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Named {
    #[serde(rename = "openai")]
    OpenAi,
    Anthropic,
    Gemini,
}

/// What only OpenAI's responses have. The others have the rest.
pub(super) const OPENAI_RESPONSES: [&str; 8] = [
    "/usage/input_tokens",
    "/usage/output_tokens",
    "/response/usage/input_tokens",
    "/response/usage/output_tokens",
    "/delta",
    "/output/*/content/*/text",
    OPENAI_CACHED[1],
    OPENAI_CACHED[2],
];
/// The part of the input that was read from a cache: of chat, and of responses.
pub(super) const OPENAI_CACHED: [&str; 3] = [
    "/usage/prompt_tokens_details/cached_tokens",
    "/usage/input_tokens_details/cached_tokens",
    "/response/usage/input_tokens_details/cached_tokens",
];

/// The maxima that each of OpenAI's calls heeds.
pub(super) const CHAT_MAXIMA: &[&str] = &["/max_tokens", "/max_completion_tokens"];
pub(super) const COMPLETIONS_MAXIMA: &[&str] = &["/max_tokens"];
pub(super) const RESPONSES_MAXIMA: &[&str] = &["/max_output_tokens"];

/// Calls whose usage no reply reports, by the last words of their paths: the work is done later, or
/// elsewhere.
pub(super) const UNPRICED: [&str; 5] =
    ["/batches", "/fine_tuning/jobs", "/runs", "/submit_tool_outputs", ":batchgeneratecontent"];
/// Calls whose usage is not known because they use a connection of their own, which is not read, by
/// a word in their paths.
pub(super) const UNPRICED_STREAMS: [&str; 2] = ["/realtime", "bidigeneratecontent"];

/// The end of the path of OpenAI's responses.
pub(super) const RESPONSES: &str = "/responses";

/// What is before the model in Azure's paths.
pub(super) const DEPLOYMENTS: &str = "/openai/deployments/";

/// Gemini's methods without output.
pub(super) const GEMINI_INPUT_ONLY: [&str; 3] =
    [":embedcontent", ":batchembedcontents", ":counttokens"];

impl From<Named> for Api {
    fn from(named: Named) -> Self {
        match named {
            Named::OpenAi => openai(),
            Named::Anthropic => anthropic(),
            Named::Gemini => gemini(),
        }
    }
}

/// Chat completions, completions, responses and embeddings.
fn openai() -> Api {
    Api {
        dialect: Dialect::OpenAi,
        model: ModelAt::Pointer("/model".to_owned()),
        maxima: owned(&["/max_tokens", "/max_completion_tokens", "/max_output_tokens"]),
        copies: owned(&["/n", "/best_of"]),
        second_prompt: Some("/prompt/1".to_owned()),
        tiers: owned(&["/service_tier"]),
        stream: Some("/stream".to_owned()),
        background: Some("/background".to_owned()),
        form: None,
        references: References::Known,
        // The same number, wherever the call puts it.
        input: vec![lasts(&[
            "/usage/prompt_tokens",
            "/usage/input_tokens",
            "/response/usage/input_tokens",
        ])],
        caches: Caches { read: vec![lasts(&OPENAI_CACHED)], ..Caches::default() },
        output: vec![lasts(&[
            "/usage/completion_tokens",
            "/usage/output_tokens",
            "/response/usage/output_tokens",
        ])],
        so_far: Vec::new(),
        texts: owned(&[
            "/choices/*/delta/content",
            "/choices/*/delta/reasoning_content",
            "/choices/*/delta/reasoning",
            "/choices/*/delta/function_call/arguments",
            "/choices/*/delta/tool_calls/*/function/arguments",
            "/choices/*/message/content",
            "/choices/*/message/reasoning_content",
            "/choices/*/message/reasoning",
            "/choices/*/message/function_call/arguments",
            "/choices/*/message/tool_calls/*/function/arguments",
            "/choices/*/text",
            "/delta",
            "/output/*/content/*/text",
        ]),
    }
}

/// Messages. A stream reports its input in its first event, and its output in the last but one.
fn anthropic() -> Api {
    // `input_tokens` leaves out what was written to the cache or read from it.
    let kinds = ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"];
    let places = |kind| lasts(&[format!("/message/usage/{kind}"), format!("/usage/{kind}")]);
    Api {
        dialect: Dialect::Anthropic,
        model: ModelAt::Pointer("/model".to_owned()),
        maxima: owned(&["/max_tokens"]),
        copies: Vec::new(),
        second_prompt: None,
        tiers: owned(&["/service_tier", "/speed"]),
        stream: Some("/stream".to_owned()),
        background: None,
        form: None,
        references: References::Known,
        input: kinds.into_iter().map(places).collect(),
        caches: Caches {
            read: vec![places("cache_read_input_tokens")],
            written: vec![places("cache_creation_input_tokens")],
            written_1h: vec![places("cache_creation/ephemeral_1h_input_tokens")],
        },
        output: vec![lasts(&["/usage/output_tokens"])],
        // The first event's number is that of the first few tokens. A stream that ends before the
        // last event has nothing better.
        so_far: lasts(&["/message/usage/output_tokens"]),
        texts: owned(&["/delta/text", "/delta/partial_json", "/delta/thinking", "/content/*/text"]),
    }
}

/// `generateContent` and its relatives. A stream is a JSON array or a list of events, and each
/// element reports the usage so far.
fn gemini() -> Api {
    let sum = |names: &[&str]| -> UsageSources {
        let places =
            |name: &&str| [format!("/usageMetadata/{name}"), format!("/*/usageMetadata/{name}")];
        names.iter().map(|name| lasts(&places(name))).collect()
    };
    Api {
        dialect: Dialect::Gemini,
        model: ModelAt::Path,
        // JSON of protocol buffers may be written in either way.
        maxima: owned(&[
            "/generationConfig/maxOutputTokens",
            "/generationConfig/max_output_tokens",
            "/generation_config/maxOutputTokens",
            "/generation_config/max_output_tokens",
        ]),
        copies: owned(&[
            "/generationConfig/candidateCount",
            "/generationConfig/candidate_count",
            "/generation_config/candidateCount",
            "/generation_config/candidate_count",
        ]),
        second_prompt: None,
        tiers: owned(&["/serviceTier", "/service_tier"]),
        stream: None,
        background: None,
        form: Some("alt".to_owned()),
        references: References::Known,
        // What a tool's results take is reported separately from the prompt.
        input: sum(&["promptTokenCount", "toolUsePromptTokenCount"]),
        caches: Caches { read: sum(&["cachedContentTokenCount"]), ..Caches::default() },
        output: sum(&["candidatesTokenCount", "thoughtsTokenCount"]),
        so_far: Vec::new(),
        texts: owned(&[
            "/candidates/*/content/parts/*/text",
            "/*/candidates/*/content/parts/*/text",
        ]),
    }
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn lasts<S: AsRef<str>>(pointers: &[S]) -> Vec<Reading> {
    let last = |pointer: &S| Reading { pointer: pointer.as_ref().to_owned(), gather: Gather::Last };
    pointers.iter().map(last).collect()
}
