//! An upstream that speaks like a language model: OpenAI's chat completions, responses and
//! embeddings, Anthropic's messages, Gemini's contents. It generates as many tokens as it is told
//! to, obeys the request's maximum, and keeps the truth that a budget is compared with.
//!
//! How it answers is the [`Reply`] of the test, or that in the request's field `x-reply`, as JSON.
//! [`shapes`] has the documents, [`frames`] the bytes that carry them.

mod frames;
mod shapes;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::server::Server;
use frames::Piece;
use shapes::Call;

/// Maximum size of a request's head, in bytes.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// How to answer a request.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Reply {
    /// Tokens that it would like to write. The request's maximum may allow fewer.
    pub output: u64,
    /// The text of each token.
    pub text: String,
    /// Tokens in an event of a stream.
    pub tokens_per_event: u64,
    /// Calls a tool instead of writing text.
    pub tool: bool,
    /// Whether it reports its usage.
    pub usage: bool,
    /// OpenAI's chat: reports the input in the first event, and the output alone in the last.
    pub split_usage: bool,
    /// Ends the lines of a stream of events.
    pub line_end: String,
    /// Spreads the JSON of each event over several lines of data.
    pub data_lines: bool,
    /// Comments and events without data between the others.
    pub comments: bool,
    /// Writes each byte by itself.
    pub bytewise: bool,
    /// `Content-Encoding`. "gzip" compresses, whatever the request accepts; others only say so.
    pub coding: Option<String>,
    /// `Content-Type`, if another than the API's.
    pub media: Option<String>,
    /// Closes the connection after this many events, or in the middle of a document.
    pub die_after: Option<u64>,
    /// Waits for [`Model::release`] after this many events.
    pub hold_after: Option<u64>,
    /// Waits for [`Model::release`] before the reply's head.
    pub hold_head: bool,
    /// Closes the connection instead of answering.
    pub no_head: bool,
    /// An error instead of an answer.
    pub status: Option<u16>,
    /// The error reports its usage: this input, and no output.
    pub error_usage: bool,
}

impl Default for Reply {
    fn default() -> Self {
        Self {
            output: 20,
            // Four bytes: estimated from its bytes, it is more than a token.
            text: "abc ".to_owned(),
            tokens_per_event: 1,
            tool: false,
            usage: true,
            split_usage: false,
            line_end: "\n".to_owned(),
            data_lines: false,
            comments: false,
            bytewise: false,
            coding: None,
            media: None,
            die_after: None,
            hold_after: None,
            hold_head: false,
            no_head: false,
            status: None,
            error_usage: false,
        }
    }
}

impl Reply {
    /// The texts of all tokens. A tool's arguments are a JSON object if they are complete.
    pub fn tokens(&self, allowed: u64) -> Vec<String> {
        let wanted = self.output;
        let token = |index: u64| match index {
            0 if self.tool => "{\"city\": \"".to_owned(),
            last if self.tool && last + 1 == wanted => "\"}".to_owned(),
            _ => self.text.clone(),
        };
        (0..wanted.min(allowed)).map(token).collect()
    }

    /// The value of the field `x-reply`: JSON in ASCII.
    pub fn field(&self) -> String {
        let json = serde_json::to_string(self).expect("plain values");
        let mut field = String::new();
        for char in json.chars() {
            let units = &mut [0; 2];
            match char.is_ascii() {
                true => field.push(char),
                false => char
                    .encode_utf16(units)
                    .iter()
                    .for_each(|unit| field += &format!("\\u{unit:04x}")),
            }
        }
        field
    }
}

/// What really happened to a request.
#[derive(Clone, Debug)]
pub struct Truth {
    pub target: String,
    pub headers: http::HeaderMap,
    pub body: Bytes,
    /// Tokens of input that it counted.
    pub input: u64,
    /// Tokens of output that it generated. It generates an event's when it writes it.
    pub output: u64,
    /// It has written what it wanted to, or could not.
    pub ended: bool,
}

impl Truth {
    /// The request's body.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("a request in JSON")
    }
}

struct State {
    reply: Mutex<Reply>,
    truths: Mutex<Vec<Truth>>,
    released: watch::Receiver<bool>,
}

impl State {
    fn truths(&self) -> MutexGuard<'_, Vec<Truth>> {
        self.truths.lock().expect("no panic while it is held")
    }
}

/// A running upstream; ends when it is dropped.
pub struct Model {
    pub address: SocketAddr,
    state: Arc<State>,
    release: watch::Sender<bool>,
    _server: Server,
}

impl Model {
    pub fn start() -> Self {
        let (release, released) = watch::channel(false);
        let (reply, truths) = (Mutex::default(), Mutex::default());
        let state = Arc::new(State { reply, truths, released });
        let serving = Arc::clone(&state);
        let server = Server::start(super::upstream::listener(), move |stream| {
            serve(stream, Arc::clone(&serving))
        });
        Self { address: server.address, state, release, _server: server }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Requests without a field `x-reply` are answered like this from now on.
    pub fn answer(&self, reply: Reply) {
        *self.state.reply.lock().expect("no panic while it is held") = reply;
    }

    /// Replies that wait go on, and none waits from now on.
    pub fn release(&self) {
        self.release.send_replace(true);
    }

    /// Requests so far, in the order of their arrival.
    pub fn truths(&self) -> Vec<Truth> {
        self.state.truths().clone()
    }

    /// Those with this field.
    pub fn truths_of(&self, field: &str, value: &str) -> Vec<Truth> {
        let is = |truth: &Truth| truth.headers.get(field).is_some_and(|found| found == value);
        self.state.truths().iter().filter(|truth| is(truth)).cloned().collect()
    }
}

async fn serve(stream: TcpStream, state: Arc<State>) {
    let mut connection = Connection { stream, read: Vec::new(), state };
    while connection.exchange().await.is_some() {}
}

/// A connection of a client.
struct Connection {
    stream: TcpStream,
    /// What was read and not used yet.
    read: Vec<u8>,
    state: Arc<State>,
}

/// A request that has arrived.
struct Request {
    target: String,
    headers: http::HeaderMap,
    body: Bytes,
}

impl Connection {
    /// One request and its reply. `None` if the connection has ended.
    async fn exchange(&mut self) -> Option<()> {
        let request = self.request().await?;
        let reply = match request.headers.get("x-reply") {
            Some(field) => serde_json::from_slice(field.as_bytes()).expect("a reply in x-reply"),
            None => self.state.reply.lock().expect("no panic while it is held").clone(),
        };
        let json: Value = serde_json::from_slice(&request.body).expect("a request in JSON");
        let call = Call::of(&request.target, &json);
        let truth = Truth {
            target: request.target,
            headers: request.headers,
            body: request.body,
            input: call.input(&json),
            output: 0,
            ended: false,
        };
        let input = truth.input;
        let index = {
            let mut truths = self.state.truths();
            truths.push(truth);
            truths.len() - 1
        };
        let answer = frames::Answer::new(call, &json, input, &reply);
        let alive = self.write(index, &reply, &answer).await;
        self.state.truths()[index].ended = true;
        alive
    }

    async fn request(&mut self) -> Option<Request> {
        let (length, mut request) = loop {
            let mut fields = [httparse::EMPTY_HEADER; 64];
            let mut head = httparse::Request::new(&mut fields);
            if let httparse::Status::Complete(length) = head.parse(&self.read).ok()? {
                let mut headers = http::HeaderMap::new();
                for field in head.headers.iter() {
                    let name = http::HeaderName::from_bytes(field.name.as_bytes()).ok()?;
                    headers.append(name, http::HeaderValue::from_bytes(field.value).ok()?);
                }
                let target = head.path?.to_owned();
                break (length, Request { target, headers, body: Bytes::new() });
            }
            self.read_more().await.filter(|_| self.read.len() < HEAD_BYTES_MAX)?;
        };
        let body: usize = request.headers.get("content-length")?.to_str().ok()?.parse().ok()?;
        while self.read.len() < length + body {
            self.read_more().await?;
        }
        let rest = self.read.split_off(length + body);
        request.body = self.read.split_off(length).into();
        self.read = rest;
        Some(request)
    }

    async fn read_more(&mut self) -> Option<()> {
        (self.stream.read_buf(&mut self.read).await.ok()? > 0).then_some(())
    }

    /// Waits until replies may go on. `None` if the other side has gone.
    async fn held(&mut self) -> Option<()> {
        let mut released = self.state.released.clone();
        let mut byte = [0];
        tokio::select! {
            // An error means that the upstream is being dropped.
            released = released.wait_for(|released| *released) => released.ok().map(|_| ()),
            _ = self.stream.peek(&mut byte) => None,
        }
    }

    async fn write(&mut self, index: usize, reply: &Reply, answer: &frames::Answer) -> Option<()> {
        if reply.hold_head {
            self.held().await?;
        }
        if reply.no_head {
            return None;
        }
        self.stream.write_all(answer.head.as_bytes()).await.ok()?;
        for (number, piece) in (0..).zip(&answer.pieces) {
            if reply.hold_after == Some(number) {
                self.held().await?;
            }
            if reply.die_after == Some(number) {
                if !answer.streamed {
                    let half = piece.bytes.len() / 2;
                    self.stream.write_all(&piece.bytes[..half]).await.ok()?;
                }
                return None;
            }
            self.state.truths()[index].output += piece.tokens;
            self.write_piece(piece, answer.streamed, reply.bytewise).await?;
        }
        if reply.hold_after == Some(answer.pieces.len() as u64) {
            self.held().await?;
        }
        if answer.streamed {
            self.stream.write_all(b"0\r\n\r\n").await.ok()?;
        }
        Some(())
    }

    async fn write_piece(&mut self, piece: &Piece, chunked: bool, bytewise: bool) -> Option<()> {
        let parts: Vec<&[u8]> =
            if bytewise { piece.bytes.chunks(1).collect() } else { vec![&piece.bytes] };
        for part in parts {
            if !chunked {
                self.stream.write_all(part).await.ok()?;
                continue;
            }
            let mut chunk = format!("{:x}\r\n", part.len()).into_bytes();
            chunk.extend_from_slice(part);
            chunk.extend_from_slice(b"\r\n");
            self.stream.write_all(&chunk).await.ok()?;
            // Lets the other side read what is there.
            tokio::task::yield_now().await;
        }
        Some(())
    }
}
