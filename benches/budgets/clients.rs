//! Clients that want more than the budget has.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use super::model::TOKEN_BYTES;

/// What clients do.
#[derive(Clone, Copy)]
pub struct Habits {
    /// The part of requests whose client leaves before the end.
    pub leave: f64,
    /// They name a small maximum, and a large one in another field.
    pub lie: bool,
}

#[derive(Default)]
pub struct Counts {
    pub admitted: u64,
    pub refused: u64,
}

/// Asks one request after the other until `until`.
pub async fn ask(
    proxy: SocketAddr,
    habits: Habits,
    maximum: Option<u64>,
    index: u64,
    until: Instant,
) -> Counts {
    let mut counts = Counts::default();
    let mut random = fastrand::Rng::with_seed(index);
    while Instant::now() < until {
        let seed = random.u32(..);
        let leaves = random.f64() < habits.leave;
        let events = if leaves { random.usize(1..60) } else { usize::MAX };
        match one(proxy, habits, maximum, seed, events).await {
            Ok(200) => counts.admitted += 1,
            Ok(429) => {
                counts.refused += 1;
                sleep(Duration::from_millis(random.u64(100..300))).await;
            }
            other => panic!("{other:?}"),
        }
    }
    counts
}

/// One request. Returns its status after `events` events or the end of the reply.
async fn one(
    proxy: SocketAddr,
    habits: Habits,
    maximum: Option<u64>,
    seed: u32,
    events: usize,
) -> std::io::Result<u16> {
    let maximum = match maximum {
        Some(maximum) if habits.lie => {
            format!("\"max_tokens\": 1, \"max_completion_tokens\": {maximum},")
        }
        Some(maximum) => format!("\"max_tokens\": {maximum},"),
        None => String::new(),
    };
    // What the model bills for it, whatever a proxy changes in it.
    let written = |input: u64| {
        format!(
            "{{\"model\": \"m\", {maximum} \"input\": {input}, \"seed\": {seed}, \"stream\": true, \"stream_options\": {{\"include_usage\": true}}, \"messages\": [{{\"role\": \"user\", \"content\": \"hello\"}}]}}"
        )
    };
    let body = written((written(10).len() as u64).div_ceil(TOKEN_BYTES));
    let mut stream = TcpStream::connect(proxy).await?;
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).await?;
    let mut read = Vec::new();
    let mut seen = 0;
    loop {
        let from = read.len().saturating_sub(1);
        let count = stream.read_buf(&mut read).await?;
        seen += memchr::memmem::find_iter(&read[from..], b"\n\n").count();
        if count == 0 || seen >= events {
            break;
        }
    }
    let status = std::str::from_utf8(read.get(9..12).unwrap_or_default()).unwrap_or_default();
    status.parse().map_err(|_| std::io::ErrorKind::UnexpectedEof.into())
}
