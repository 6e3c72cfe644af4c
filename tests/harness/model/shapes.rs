//! The documents of each API, as the real ones send them. Knows nothing of how they are framed.

use serde_json::{Value, json};

use super::Reply;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Chat { stream: bool, usage: bool },
    Responses { stream: bool },
    Embeddings,
    Messages { stream: bool },
    Generate(Generate),
}

/// How Gemini's reply is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Generate {
    Whole,
    Events,
    Array,
}

/// A document of a reply.
#[derive(Clone, Debug)]
pub(super) struct Document {
    /// The event's name, where the API names them.
    pub(super) name: Option<&'static str>,
    pub(super) json: Value,
    /// Tokens of output in it.
    pub(super) tokens: u64,
}

/// A reply under construction.
pub(super) struct Shape<'a> {
    pub(super) reply: &'a Reply,
    pub(super) model: &'a str,
    pub(super) input: u64,
    pub(super) tokens: &'a [String],
    /// The maximum ended it.
    pub(super) cut: bool,
}

impl Call {
    pub(super) fn of(target: &str, body: &Value) -> Self {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let stream = body["stream"] == true;
        match path {
            _ if path.ends_with("/chat/completions") => {
                Self::Chat { stream, usage: body["stream_options"]["include_usage"] == true }
            }
            _ if path.ends_with("/responses") => Self::Responses { stream },
            _ if path.ends_with("/embeddings") => Self::Embeddings,
            _ if path.ends_with("/messages") => Self::Messages { stream },
            _ if path.ends_with(":generateContent") => Self::Generate(Generate::Whole),
            _ if path.ends_with(":streamGenerateContent") && query.contains("alt=sse") => {
                Self::Generate(Generate::Events)
            }
            _ if path.ends_with(":streamGenerateContent") => Self::Generate(Generate::Array),
            _ => panic!("no API has {target}"),
        }
    }

    /// Tokens of input: one for four bytes of what the request says.
    pub(super) fn input(self, body: &Value) -> u64 {
        let said = match self {
            Self::Chat { .. } | Self::Messages { .. } => &body["messages"],
            Self::Responses { .. } | Self::Embeddings => &body["input"],
            Self::Generate(_) => &body["contents"],
        };
        (said.to_string().len() as u64).div_ceil(4)
    }

    /// Tokens of output that the request allows.
    pub(super) fn allowed(self, body: &Value) -> u64 {
        let maximum = match self {
            // The old name counts only without the new one.
            Self::Chat { .. } => {
                body["max_completion_tokens"].as_u64().or(body["max_tokens"].as_u64())
            }
            Self::Responses { .. } => body["max_output_tokens"].as_u64(),
            Self::Embeddings => Some(0),
            Self::Messages { .. } => {
                Some(body["max_tokens"].as_u64().expect("Anthropic demands it"))
            }
            Self::Generate(_) => body["generationConfig"]["maxOutputTokens"].as_u64(),
        };
        maximum.unwrap_or(u64::MAX)
    }

    pub(super) fn streams(self) -> bool {
        match self {
            Self::Chat { stream, .. } | Self::Responses { stream } | Self::Messages { stream } => {
                stream
            }
            Self::Embeddings => false,
            Self::Generate(generate) => generate != Generate::Whole,
        }
    }
}

impl Shape<'_> {
    pub(super) fn documents(&self, call: Call) -> Vec<Document> {
        match call {
            Call::Chat { stream: false, .. } => self.chat(),
            Call::Chat { usage, .. } => self.chat_stream(usage),
            Call::Responses { stream: false } => self.response(),
            Call::Responses { .. } => self.response_stream(),
            Call::Embeddings => self.embeddings(),
            Call::Messages { stream: false } => self.message(),
            Call::Messages { .. } => self.message_stream(),
            Call::Generate(generate) => self.generate(generate != Generate::Whole),
        }
    }

    fn output(&self) -> u64 {
        self.tokens.len() as u64
    }

    fn text(&self) -> String {
        self.tokens.concat()
    }

    /// The texts of a stream's events, and the tokens in each.
    fn events(&self) -> impl Iterator<Item = (String, u64)> {
        let each = usize::try_from(self.reply.tokens_per_event).expect("a small number");
        self.tokens.chunks(each).map(|tokens| (tokens.concat(), tokens.len() as u64))
    }

    /// The JSON, with the usage unless the reply reports none.
    fn telling(&self, mut json: Value, usage: Value) -> Value {
        if self.reply.usage {
            json["usage"] = usage;
        }
        json
    }

    fn whole(&self, json: Value) -> Vec<Document> {
        vec![Document { name: None, json, tokens: self.output() }]
    }

    // ---- OpenAI
    // ----------------------------------------------------------------------------------

    fn chat_usage(&self) -> Value {
        let (input, output) = (self.input, self.output());
        json!({"prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output,
            "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0}})
    }

    fn finish_reason(&self) -> &'static str {
        match (self.cut, self.reply.tool) {
            (true, _) => "length",
            (false, true) => "tool_calls",
            (false, false) => "stop",
        }
    }

    fn chat(&self) -> Vec<Document> {
        let message = if self.reply.tool {
            let call = json!({"id": "call_1", "type": "function",
                "function": {"name": "weather", "arguments": self.text()}});
            json!({"role": "assistant", "content": null, "tool_calls": [call], "refusal": null})
        } else {
            json!({"role": "assistant", "content": self.text(), "refusal": null})
        };
        let json = json!({"id": "chatcmpl-1", "object": "chat.completion", "created": 1_700_000_000,
            "model": self.model, "system_fingerprint": "fp_1", "choices": [{"index": 0,
            "message": message, "logprobs": null, "finish_reason": self.finish_reason()}]});
        self.whole(self.telling(json, self.chat_usage()))
    }

    fn chunk(&self, choices: Value, usage: Option<Value>) -> Value {
        let mut json = json!({"id": "chatcmpl-1", "object": "chat.completion.chunk",
            "created": 1_700_000_000, "model": self.model, "system_fingerprint": "fp_1",
            "choices": choices});
        if let Some(usage) = usage {
            json["usage"] = usage;
        }
        json
    }

    fn chat_stream(&self, asked: bool) -> Vec<Document> {
        let tells = asked && self.reply.usage;
        let (split, none) = (tells && self.reply.split_usage, tells.then_some(Value::Null));
        let document = |json: Value, tokens: u64| Document { name: None, json, tokens };
        let delta = |delta: Value, reason: Option<&str>, usage: Option<Value>| {
            let choice =
                json!({"index": 0, "delta": delta, "logprobs": null, "finish_reason": reason});
            self.chunk(json!([choice]), usage)
        };
        let begin = if self.reply.tool {
            let function = json!({"name": "weather", "arguments": ""});
            let call =
                json!({"index": 0, "id": "call_1", "type": "function", "function": function});
            json!({"role": "assistant", "content": null, "tool_calls": [call], "refusal": null})
        } else {
            json!({"role": "assistant", "content": "", "refusal": null})
        };
        let first = if split { Some(json!({"prompt_tokens": self.input})) } else { none.clone() };
        let mut documents = vec![document(delta(begin, None, first), 0)];
        for (text, tokens) in self.events() {
            let piece = if self.reply.tool {
                json!({"tool_calls": [{"index": 0, "function": {"arguments": text}}]})
            } else {
                json!({"content": text})
            };
            documents.push(document(delta(piece, None, none.clone()), tokens));
        }
        documents.push(document(delta(json!({}), Some(self.finish_reason()), none), 0));
        if tells {
            let last = json!({"completion_tokens": self.output()});
            let usage = if split { last } else { self.chat_usage() };
            documents.push(document(self.chunk(json!([]), Some(usage)), 0));
        }
        documents
    }

    fn response_json(&self, status: &str, output: Value) -> Value {
        let incomplete = match status {
            "incomplete" => json!({"reason": "max_output_tokens"}),
            _ => Value::Null,
        };
        json!({"id": "resp_1", "object": "response", "created_at": 1_700_000_000, "status": status,
            "error": null, "incomplete_details": incomplete, "instructions": null,
            "model": self.model, "output": output, "parallel_tool_calls": true, "tool_choice": "auto",
            "tools": [], "metadata": {}, "usage": null})
    }

    /// The response as it is at the end, with its usage.
    fn response_end(&self) -> (&'static str, Value) {
        let (input, output) = (self.input, self.output());
        let status = if self.cut { "incomplete" } else { "completed" };
        let part = json!({"type": "output_text", "text": self.text(), "annotations": []});
        let item = json!({"type": "message", "id": "msg_1", "status": status, "role": "assistant",
            "content": [part]});
        let usage = json!({"input_tokens": input, "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": output, "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": input + output});
        (status, self.telling(self.response_json(status, json!([item])), usage))
    }

    fn response(&self) -> Vec<Document> {
        self.whole(self.response_end().1)
    }

    fn response_stream(&self) -> Vec<Document> {
        let mut documents = Vec::new();
        let mut push = |name: &'static str, mut json: Value, tokens: u64| {
            json["type"] = name.into();
            json["sequence_number"] = documents.len().into();
            documents.push(Document { name: Some(name), json, tokens });
        };
        let begun = || json!({"response": self.response_json("in_progress", json!([]))});
        let part = |text: &str| json!({"type": "output_text", "text": text, "annotations": []});
        let of_part = |mut json: Value| {
            json["item_id"] = "msg_1".into();
            json["output_index"] = 0.into();
            json["content_index"] = 0.into();
            json
        };
        let item = |status: &str, content: Value| {
            json!({"output_index": 0, "item": {"id": "msg_1", "type": "message", "status": status,
                "role": "assistant", "content": content}})
        };
        push("response.created", begun(), 0);
        push("response.in_progress", begun(), 0);
        push("response.output_item.added", item("in_progress", json!([])), 0);
        push("response.content_part.added", of_part(json!({"part": part("")})), 0);
        for (text, tokens) in self.events() {
            push("response.output_text.delta", of_part(json!({"delta": text})), tokens);
        }
        let text = self.text();
        let (status, response) = self.response_end();
        push("response.output_text.done", of_part(json!({"text": text})), 0);
        push("response.content_part.done", of_part(json!({"part": part(&text)})), 0);
        push("response.output_item.done", item(status, json!([part(&text)])), 0);
        let last = if self.cut { "response.incomplete" } else { "response.completed" };
        push(last, json!({"response": response}), 0);
        documents
    }

    fn embeddings(&self) -> Vec<Document> {
        let json = json!({"object": "list", "model": self.model,
            "data": [{"object": "embedding", "index": 0, "embedding": [0.25, -0.5]}]});
        let usage = json!({"prompt_tokens": self.input, "total_tokens": self.input});
        self.whole(self.telling(json, usage))
    }

    // ---- Anthropic
    // -------------------------------------------------------------------------------

    fn stop_reason(&self) -> &'static str {
        match (self.cut, self.reply.tool) {
            (true, _) => "max_tokens",
            (false, true) => "tool_use",
            (false, false) => "end_turn",
        }
    }

    fn message_usage(&self, output: u64) -> Value {
        json!({"input_tokens": self.input, "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0, "output_tokens": output})
    }

    fn message_json(&self, content: Value, stop_reason: Option<&str>, output: u64) -> Value {
        let json = json!({"id": "msg_1", "type": "message", "role": "assistant",
            "model": self.model, "content": content, "stop_reason": stop_reason,
            "stop_sequence": null});
        self.telling(json, self.message_usage(output))
    }

    fn message(&self) -> Vec<Document> {
        let block = if self.reply.tool {
            let input: Value = serde_json::from_str(&self.text()).unwrap_or_default();
            json!({"type": "tool_use", "id": "toolu_1", "name": "weather", "input": input})
        } else {
            json!({"type": "text", "text": self.text()})
        };
        self.whole(self.message_json(json!([block]), Some(self.stop_reason()), self.output()))
    }

    fn message_stream(&self) -> Vec<Document> {
        let mut documents = Vec::new();
        let mut push = |name: &'static str, mut json: Value, tokens: u64| {
            json["type"] = name.into();
            documents.push(Document { name: Some(name), json, tokens });
        };
        // As many as were generated by then.
        let begun = self.message_json(json!([]), None, 1);
        push("message_start", json!({"message": begun}), 0);
        let block = if self.reply.tool {
            json!({"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}})
        } else {
            json!({"type": "text", "text": ""})
        };
        push("content_block_start", json!({"index": 0, "content_block": block}), 0);
        push("ping", json!({}), 0);
        for (text, tokens) in self.events() {
            let delta = if self.reply.tool {
                json!({"type": "input_json_delta", "partial_json": text})
            } else {
                json!({"type": "text_delta", "text": text})
            };
            push("content_block_delta", json!({"index": 0, "delta": delta}), tokens);
        }
        push("content_block_stop", json!({"index": 0}), 0);
        let delta = json!({"stop_reason": self.stop_reason(), "stop_sequence": null});
        let usage = json!({"output_tokens": self.output()});
        push("message_delta", self.telling(json!({"delta": delta}), usage), 0);
        push("message_stop", json!({}), 0);
        documents
    }

    // ---- Gemini
    // ----------------------------------------------------------------------------------

    fn generate(&self, streams: bool) -> Vec<Document> {
        let all = || vec![(self.text(), self.output())];
        let events = if streams { self.events().collect() } else { all() };
        let (mut written, last) = (0, events.len().saturating_sub(1));
        let document = |(index, (text, tokens)): (usize, (String, u64))| {
            written += tokens;
            let content = json!({"parts": [{"text": text}], "role": "model"});
            let mut candidate = json!({"content": content, "index": 0});
            if index == last {
                candidate["finishReason"] = if self.cut { "MAX_TOKENS" } else { "STOP" }.into();
            }
            let mut json = json!({"candidates": [candidate], "modelVersion": self.model});
            if self.reply.usage {
                json["usageMetadata"] = json!({"promptTokenCount": self.input,
                    "candidatesTokenCount": written, "totalTokenCount": self.input + written});
            }
            Document { name: None, json, tokens }
        };
        events.into_iter().enumerate().map(document).collect()
    }
}
