//! Logs: one structured line an event, on standard output, as text for a person and as JSON for a machine.
//!
//! A line is written by a thread of its own behind a bounded queue, so that a slow terminal never holds a request; lines that don't fit are
//! dropped and counted.

use std::io::{IsTerminal, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Chunks of text that wait for the writer, at most.
const QUEUE_LINES_MAX: usize = 8_192;
/// Lines are gathered up to this size before they are written.
const BATCH_BYTES: usize = 64 << 10;

/// How lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Text on a terminal, JSON elsewhere.
    #[default]
    Auto,
    /// For a person.
    Text,
    /// One JSON object a line.
    Json,
}

/// Which requests are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Each.
    #[default]
    All,
    /// Those that got no answer from the upstream: refused, denied, failed.
    Refused,
    /// None.
    Off,
}

/// The `[log]` section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `error`, `warn`, `info`, `debug` or `trace`.
    pub level: String,
    /// Text or JSON.
    pub format: Format,
    /// Which requests are logged.
    pub access: Access,
}

impl Default for Settings {
    fn default() -> Self {
        Self { level: "info".into(), format: Format::Auto, access: Access::All }
    }
}

enum Message {
    Line(Vec<u8>),
    /// Answered when everything before it is written.
    Flush(SyncSender<()>),
}

struct Writer {
    queue: SyncSender<Message>,
    dropped: AtomicU64,
}

static WRITER: OnceLock<Writer> = OnceLock::new();

/// Starts logging for this process. A second call changes nothing: a process has one log.
pub fn start(settings: &Settings) {
    writer();
    let filter = EnvFilter::try_new(&settings.level).unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(Queue).with_target(false);
    // An error says that a log runs already (an embedding program's own, or an earlier call's): then that one stands.
    let _ = if json(settings.format) { builder.json().flatten_event(true).try_init() } else { builder.with_ansi(terminal()).try_init() };
}

/// Whether lines are JSON under `format` here.
#[must_use]
pub(super) fn json(format: Format) -> bool {
    match format {
        Format::Auto => !terminal(),
        Format::Text => false,
        Format::Json => true,
    }
}

fn terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// Writes one finished line of the access log, its line end included.
pub fn access_line(line: Vec<u8>) {
    let writer = writer();
    if writer.queue.try_send(Message::Line(line)).is_err() {
        writer.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

/// Waits until the lines so far are written, for at most a second: what a process does last.
pub fn flush() {
    let (done, written) = sync_channel(1);
    if WRITER.get().is_some_and(|writer| writer.queue.send(Message::Flush(done)).is_ok()) {
        let _ = written.recv_timeout(std::time::Duration::from_secs(1));
    }
}

fn writer() -> &'static Writer {
    WRITER.get_or_init(|| {
        let (queue, lines) = sync_channel(QUEUE_LINES_MAX);
        // Without a thread the queue's other end is gone: each line is then dropped and counted.
        let _ = std::thread::Builder::new().name("weir-log".into()).spawn(move || drain(&lines));
        Writer { queue, dropped: AtomicU64::new(0) }
    })
}

/// Takes what waits in one go: under load one write serves many lines.
fn drain(messages: &Receiver<Message>) {
    let mut batch = Vec::new();
    while let Ok(message) = messages.recv() {
        let mut flushed = append(&mut batch, message);
        while flushed.is_none()
            && batch.len() < BATCH_BYTES
            && let Ok(message) = messages.try_recv()
        {
            flushed = append(&mut batch, message);
        }
        if let Some(dropped) = WRITER.get().map(|writer| writer.dropped.swap(0, Ordering::Relaxed)).filter(|dropped| *dropped > 0) {
            batch.extend_from_slice(format!("{{\"level\":\"WARN\",\"message\":\"log lines dropped\",\"count\":{dropped}}}\n").as_bytes());
        }
        let mut out = std::io::stdout().lock();
        // A closed standard output is no reason to stop serving; nor is a flush that nobody waits for any more.
        let _ = out.write_all(&batch).and_then(|()| out.flush());
        batch.clear();
        let _ = flushed.map(|done| done.try_send(()));
    }
}

fn append(batch: &mut Vec<u8>, message: Message) -> Option<SyncSender<()>> {
    match message {
        Message::Line(line) => {
            batch.extend_from_slice(&line);
            None
        }
        Message::Flush(done) => Some(done),
    }
}

/// Hands whole events to the writer's queue.
#[derive(Clone, Copy)]
struct Queue;

struct Line(Vec<u8>);

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        access_line(std::mem::take(&mut self.0));
    }
}

impl<'a> MakeWriter<'a> for Queue {
    type Writer = Line;

    fn make_writer(&'a self) -> Self::Writer {
        Line(Vec::with_capacity(256))
    }
}
