//! The bytes of a reply: its head, and its documents as events, as an array or alone.

use std::io::Write as _;

use flate2::write::GzEncoder;
use serde_json::{Value, json};

use super::Reply;
use super::shapes::{Call, Document, Generate, Shape};

/// A reply to write.
pub(super) struct Answer {
    /// The head with its empty line.
    pub(super) head: String,
    /// One for each event, or one for all.
    pub(super) pieces: Vec<Piece>,
    /// Whether it is sent in chunks, since its length is not known.
    pub(super) streamed: bool,
}

/// Bytes that are written at once, unless each is written by itself.
pub(super) struct Piece {
    pub(super) bytes: Vec<u8>,
    /// Tokens of output in them.
    pub(super) tokens: u64,
}

impl Answer {
    /// The answer to a request with this body and input.
    pub(super) fn new(call: Call, body: &Value, input: u64, reply: &Reply) -> Self {
        if let Some(status) = reply.status {
            return Self::error(status, input, reply.error_usage);
        }
        let allowed = call.allowed(body);
        let tokens = reply.tokens(allowed);
        let model = body["model"].as_str().unwrap_or("gemini-pro");
        let cut = reply.output > allowed;
        let documents = Shape { reply, model, input, tokens: &tokens, cut }.documents(call);
        let (media, mut pieces) = match call {
            Call::Generate(Generate::Array) => {
                ("application/json; charset=UTF-8", array(documents))
            }
            _ if call.streams() => {
                ("text/event-stream; charset=utf-8", events(documents, call, reply))
            }
            _ => ("application/json", documents.into_iter().map(whole).collect()),
        };
        if reply.coding.as_deref() == Some("gzip") {
            compress(&mut pieces);
        }
        let media = reply.media.as_deref().unwrap_or(media);
        let streamed = call.streams();
        let mut head = format!("HTTP/1.1 200 OK\r\nContent-Type: {media}\r\n");
        if let Some(coding) = &reply.coding {
            head += &format!("Content-Encoding: {coding}\r\n");
        }
        head += &match streamed {
            true => "Transfer-Encoding: chunked\r\n\r\n".to_owned(),
            false => format!("Content-Length: {}\r\n\r\n", length(&pieces)),
        };
        Self { head, pieces, streamed }
    }

    fn error(status: u16, input: u64, usage: bool) -> Self {
        let error = json!({"message": "no", "type": "api_error", "param": null, "code": null});
        let mut json = json!({"type": "error", "error": error});
        if usage {
            json["usage"] = json!({"prompt_tokens": input, "input_tokens": input,
                "completion_tokens": 0, "output_tokens": 0});
        }
        let pieces = vec![whole(Document { name: None, json, tokens: 0 })];
        let head = format!(
            "HTTP/1.1 {status} Error\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            length(&pieces)
        );
        Self { head, pieces, streamed: false }
    }
}

fn length(pieces: &[Piece]) -> usize {
    pieces.iter().map(|piece| piece.bytes.len()).sum()
}

fn whole(document: Document) -> Piece {
    Piece { bytes: document.json.to_string().into_bytes(), tokens: document.tokens }
}

fn array(documents: Vec<Document>) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = documents.into_iter().map(whole).collect();
    for (index, piece) in pieces.iter_mut().enumerate() {
        let before: &[u8] = if index == 0 { b"[" } else { b"\n,\r\n" };
        piece.bytes.splice(0..0, before.iter().copied());
    }
    pieces.push(Piece { bytes: b"\n]\n".to_vec(), tokens: 0 });
    pieces
}

fn events(documents: Vec<Document>, call: Call, reply: &Reply) -> Vec<Piece> {
    let end = &reply.line_end;
    let mut pieces: Vec<Piece> = Vec::new();
    for document in documents {
        let mut text = String::new();
        if reply.comments {
            text += &format!(": ping{end}{end}:{end}");
            if matches!(call, Call::Messages { .. }) {
                text += &format!("event: ping{end}data: {{\"type\": \"ping\"}}{end}{end}");
            }
        }
        if let Some(name) = document.name {
            text += &format!("event: {name}{end}");
        }
        // The data of an event is its lines, joined by line feeds.
        let json = if reply.data_lines {
            serde_json::to_string_pretty(&document.json).expect("plain values")
        } else {
            document.json.to_string()
        };
        for line in json.lines() {
            text += &format!("data: {line}{end}");
        }
        text += end;
        pieces.push(Piece { bytes: text.into_bytes(), tokens: document.tokens });
    }
    if matches!(call, Call::Chat { .. }) {
        let bytes = format!("data: [DONE]{end}{end}").into_bytes();
        pieces.push(Piece { bytes, tokens: 0 });
    }
    pieces
}

/// Compresses the pieces one after another, each so that it can be read when it comes.
fn compress(pieces: &mut [Piece]) {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::default());
    let last = pieces.len().saturating_sub(1);
    for (index, piece) in pieces.iter_mut().enumerate() {
        encoder.write_all(&piece.bytes).expect("memory");
        if index == last {
            encoder.try_finish().expect("memory");
        } else {
            encoder.flush().expect("memory");
        }
        piece.bytes = std::mem::take(encoder.get_mut());
    }
}
