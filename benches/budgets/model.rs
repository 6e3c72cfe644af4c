//! An upstream that answers like a language model: streams of unknown length, one token an event.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Bytes of a token, in requests and in replies.
pub const TOKEN_BYTES: u64 = 4;
/// The mean and standard deviation of the logarithm of a reply's tokens. Half of the replies have
/// fewer than 150 tokens.
const MEAN: f64 = 5.01;
const DEVIATION: f64 = 0.7;

#[derive(Default)]
struct State {
    /// Tokens that a customer would be billed.
    tokens: AtomicU64,
    streams: AtomicU64,
    tells_usage: bool,
    /// Time for each token.
    pace: Duration,
}

pub struct Model {
    address: SocketAddr,
    state: Arc<State>,
}

impl Model {
    /// Takes `pace` for each token.
    pub async fn start(tells_usage: bool, pace: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State { tells_usage, pace, ..State::default() });
        let serving = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = Arc::clone(&serving);
                tokio::spawn(async move {
                    let mut stream = stream;
                    while serve(&mut stream, &state).await.is_some() {}
                });
            }
        });
        Self { address, state }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn tokens(&self) -> u64 {
        self.state.tokens.load(Ordering::Relaxed)
    }

    /// Waits until no reply is being generated.
    pub async fn idle(&self) {
        while self.state.streams.load(Ordering::Relaxed) > 0 {
            tokio::time::sleep(self.state.pace).await;
        }
    }
}

/// Answers one request. `None` when the connection is of no more use.
async fn serve(stream: &mut TcpStream, state: &State) -> Option<()> {
    let body = request(stream).await?;
    state.streams.fetch_add(1, Ordering::Relaxed);
    let answered = answer(stream, state, &body).await;
    state.streams.fetch_sub(1, Ordering::Relaxed);
    answered.ok()
}

async fn request(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut read = Vec::new();
    loop {
        if stream.read_buf(&mut read).await.ok()? == 0 {
            return None;
        }
        let Some(end) = memchr::memmem::find(&read, b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&read[..end]).to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.map_or(0, |length| length.trim().parse().unwrap());
        while read.len() < end + 4 + length {
            if stream.read_buf(&mut read).await.ok()? == 0 {
                return None;
            }
        }
        return Some(read.split_off(end + 4));
    }
}

async fn answer(stream: &mut TcpStream, state: &State, body: &[u8]) -> std::io::Result<()> {
    let request: serde_json::Value = serde_json::from_slice(body).unwrap();
    let number = |name: &str| request[name].as_u64();
    let input = number("input").unwrap();
    state.tokens.fetch_add(input, Ordering::Relaxed);
    let maximum =
        number("max_completion_tokens").or(number("max_tokens")).unwrap_or(super::MAXIMUM);
    let output = length(number("seed").unwrap()).min(maximum);
    stream
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        .await?;
    for _ in 0..output {
        tokio::time::sleep(state.pace).await;
        state.tokens.fetch_add(1, Ordering::Relaxed);
        event(stream, r#"{"id":"c","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"content":" tok"},"finish_reason":null}]}"#).await?;
    }
    if state.tells_usage && request["stream_options"]["include_usage"] == true {
        let usage = format!(
            r#"{{"id":"c","object":"chat.completion.chunk","model":"m","choices":[],"usage":{{"prompt_tokens":{input},"completion_tokens":{output},"total_tokens":{}}}}}"#,
            input + output
        );
        event(stream, &usage).await?;
    }
    event(stream, "[DONE]").await?;
    stream.write_all(b"0\r\n\r\n").await
}

async fn event(stream: &mut TcpStream, data: &str) -> std::io::Result<()> {
    let event = format!("data: {data}\n\n");
    stream.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes()).await
}

/// How many tokens a reply has: log-normal, the same for the same seed.
fn length(seed: u64) -> u64 {
    let mut random = fastrand::Rng::with_seed(seed);
    // Box and Muller's transform of two uniform numbers.
    let (first, second) = (1.0 - random.f64(), random.f64());
    let normal = (-2.0 * first.ln()).sqrt() * (std::f64::consts::TAU * second).cos();
    (MEAN + DEVIATION * normal).exp().round().max(1.0) as u64
}
