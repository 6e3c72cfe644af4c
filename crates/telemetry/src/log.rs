//! Logs: one structured line for each event, on standard output, as text for people or as JSON for
//! programs.
//!
//! A thread of its own writes the lines out of a bounded queue, so that a slow terminal never
//! blocks a request. Lines that don't fit are dropped and counted.

use std::io::{IsTerminal, Write};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{self, FormatEvent, FormatFields};
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::fmt::{self, FmtContext, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, reload};

use super::fields::{AccessFields, AccessHeaders};

/// Maximum number of messages that wait for the writer.
const QUEUE_LINES_MAX: usize = 8_192;
/// Lines are gathered up to this size before they are written.
const BATCH_BYTES: usize = 64 << 10;
/// How long to wait at most for the last lines to be written.
const FLUSH_WAIT: Duration = Duration::from_secs(1);
/// The wait before a full queue is tried again. The standard library's channel has no send with a
/// timeout.
const FLUSH_TRY_AGAIN: Duration = Duration::from_millis(10);

/// How lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Text on a terminal, JSON elsewhere.
    #[default]
    Auto,
    /// Text for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Which requests are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// All requests.
    #[default]
    All,
    /// Those that got no answer from an upstream: refused, denied, failed.
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
    /// What a line says about a request.
    pub access_fields: AccessFields,
    /// The header fields of requests among them.
    pub access_headers: AccessHeaders,
    /// Lines go to standard error, because a command prints its results on standard output.
    pub on_stderr: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            level: "info".into(),
            format: Format::Auto,
            access: Access::All,
            access_fields: AccessFields::default(),
            access_headers: AccessHeaders::default(),
            on_stderr: false,
        }
    }
}

enum Message {
    Line(Vec<u8>),
    /// Answered when everything before it is written.
    Flush(SyncSender<()>),
}

struct Writer {
    queue: SyncSender<Message>,
    /// Lines that were lost and that the log does not yet say.
    dropped: AtomicU64,
    /// All lines that were lost.
    lost: AtomicU64,
}

static WRITER: OnceLock<Writer> = OnceLock::new();

/// The level of the log that [`start`] began, while it can be changed.
static LEVEL: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// Whether its lines are JSON.
static JSON: AtomicBool = AtomicBool::new(false);
/// See [`Settings::on_stderr`].
static STDERR: AtomicBool = AtomicBool::new(false);

/// Starts logging for this process. A second call changes nothing: a process has one log.
pub fn start(settings: &Settings) {
    writer();
    JSON.store(settings.is_json(), Ordering::Relaxed);
    STDERR.store(settings.on_stderr, Ordering::Relaxed);
    let (level, handle) = reload::Layer::new(level(settings));
    let is_terminal = if settings.on_stderr { std::io::stderr().is_terminal() } else { terminal() };
    let lines = fmt::layer().with_writer(Queue).with_ansi(is_terminal).event_format(Lines {
        json: format::format().json().flatten_event(true).with_target(false),
        text: format::format().with_target(false),
    });
    // It fails where a log was installed before, by the embedding program or an earlier call. That
    // one stays.
    if Registry::default().with(level).with(lines).try_init().is_ok() {
        let _ = LEVEL.set(handle);
    }
}

/// Writes each event in the current format.
struct Lines {
    json: format::Format<format::Json>,
    text: format::Format,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'w> FormatFields<'w> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        writer: format::Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        if JSON.load(Ordering::Relaxed) {
            self.json.format_event(context, writer, event)
        } else {
            self.text.format_event(context, writer, event)
        }
    }
}

/// Applies new settings to the log that [`start`] began. An embedding program's own is left alone.
pub fn apply(settings: &Settings) {
    if let Some(handle) = LEVEL.get() {
        JSON.store(settings.is_json(), Ordering::Relaxed);
        // It fails only where the log is gone.
        let _ = handle.reload(level(settings));
    }
}

fn level(settings: &Settings) -> EnvFilter {
    EnvFilter::try_new(&settings.level).unwrap_or_else(|_| EnvFilter::new("info"))
}

impl Settings {
    /// Whether lines are JSON, on this process's standard output.
    #[must_use]
    pub fn is_json(&self) -> bool {
        match self.format {
            Format::Auto => !terminal(),
            Format::Text => false,
            Format::Json => true,
        }
    }
}

fn terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// Writes one finished line of the access log, its line end included.
pub fn access_line(line: Vec<u8>) {
    let writer = writer();
    if writer.queue.try_send(Message::Line(line)).is_err() {
        writer.lose(1);
    }
}

/// How many lines of this process were lost: its queue was full, or they could not be written.
#[must_use]
pub fn log_lines_dropped() -> u64 {
    WRITER.get().map_or(0, |writer| writer.lost.load(Ordering::Relaxed))
}

/// Waits until the lines so far are written, for at most a second. A process does this last.
pub fn flush() {
    if let Some(writer) = WRITER.get() {
        writer.flush();
    }
}

impl Writer {
    fn new(queue: SyncSender<Message>) -> Self {
        Self { queue, dropped: AtomicU64::new(0), lost: AtomicU64::new(0) }
    }

    fn lose(&self, lines: u64) {
        self.dropped.fetch_add(lines, Ordering::Relaxed);
        self.lost.fetch_add(lines, Ordering::Relaxed);
    }

    fn flush(&self) {
        let (done, written) = sync_channel(1);
        let mut message = Message::Flush(done);
        let mut left = FLUSH_WAIT;
        // The queue is full where nothing reads the log. A plain `send` would then block for ever.
        while let Err(TrySendError::Full(back)) = self.queue.try_send(message) {
            if left == Duration::ZERO {
                return;
            }
            std::thread::sleep(FLUSH_TRY_AGAIN);
            (message, left) = (back, left.saturating_sub(FLUSH_TRY_AGAIN));
        }
        let _ = written.recv_timeout(left);
    }
}

fn writer() -> &'static Writer {
    WRITER.get_or_init(|| {
        let (queue, lines) = sync_channel(QUEUE_LINES_MAX);
        // If the thread can't be started, the queue has no receiver: lines are dropped and counted.
        let _ = std::thread::Builder::new().name("weir-log".into()).spawn(move || drain(&lines));
        Writer::new(queue)
    })
}

/// Writes all waiting lines in one go: under load, one write serves many lines.
fn drain(messages: &Receiver<Message>) {
    let (mut batch, mut failures, mut is_torn) = (Vec::new(), Failures::default(), false);
    while let Ok(message) = messages.recv() {
        if is_torn {
            // The next line must not go on where the last one was cut off, as by a full disk.
            batch.push(b'\n');
        }
        let begin = batch.len();
        let mut flushed = append(&mut batch, message);
        while flushed.is_none()
            && batch.len() < BATCH_BYTES
            && let Ok(message) = messages.try_recv()
        {
            flushed = append(&mut batch, message);
        }
        let dropped = WRITER.get().map_or(0, |writer| writer.dropped.swap(0, Ordering::Relaxed));
        let lines = batch.len();
        if dropped > 0 {
            batch.extend_from_slice(dropped_line(dropped).as_bytes());
        }
        let is_stderr = STDERR.load(Ordering::Relaxed);
        let (written, error) = match is_stderr {
            false => write_all(std::io::stdout().as_fd(), &batch),
            true => write_all(std::io::stderr().as_fd(), &batch),
        };
        is_torn = is_torn_after(&batch, written, is_torn);
        // Neither a closed output nor a flush that timed out is a reason to stop.
        if written < batch.len()
            && let Some(writer) = WRITER.get()
        {
            let lost = batch.get(written.max(begin)..lines).unwrap_or_default();
            let lost = lost.iter().filter(|byte| **byte == b'\n').count();
            writer.dropped.fetch_add(dropped, Ordering::Relaxed);
            writer.lose(lost as u64);
        }
        if let Some(told) = error.filter(|_| !is_stderr).and_then(|error| failures.add(error)) {
            // There is nowhere to say that this could not be written.
            let _ = std::io::stderr().lock().write_all(told.as_bytes());
        }
        batch.clear();
        let _ = flushed.map(|done| done.try_send(()));
    }
}

/// Whether the output ends within a line after so many bytes of this batch.
fn is_torn_after(batch: &[u8], written: usize, was_torn: bool) -> bool {
    let last = written.checked_sub(1).and_then(|last| batch.get(last));
    last.map_or(was_torn, |last| *last != b'\n')
}

/// Writes to standard output that failed.
#[derive(Debug, Default)]
struct Failures(u64);

impl Failures {
    /// What standard error says of one more, if anything: of the first, the second, the fourth, the
    /// eighth and so on, so that a full disk does not fill another. Who closed a pipe knows.
    fn add(&mut self, error: Errno) -> Option<String> {
        if error == Errno::PIPE {
            return None;
        }
        self.0 += 1;
        let error = std::io::Error::from(error);
        let told = || format!("weir: the log can't be written to standard output: {error}\n");
        self.0.is_power_of_two().then(told)
    }
}

/// Writes all, and returns how many bytes were written before an error, and the error. The output
/// may be non-blocking, since any process that has it open can make it so: then this waits until it
/// takes more.
fn write_all(output: BorrowedFd<'_>, bytes: &[u8]) -> (usize, Option<Errno>) {
    let mut written = 0;
    while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
        match rustix::io::write(output, rest) {
            Ok(0) => return (written, Some(Errno::IO)),
            Ok(more) => written += more,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let ready = PollFd::from_borrowed_fd(output, PollFlags::OUT);
                // What is wrong with the output, writing to it will say.
                let _ = rustix::event::poll(&mut [ready], None);
            }
            Err(error) => return (written, Some(error)),
        }
    }
    (written, None)
}

/// Written without the log, whose queue is full.
fn dropped_line(count: u64) -> String {
    let mut at = String::new();
    // A string takes everything.
    let _ = SystemTime.format_time(&mut format::Writer::new(&mut at));
    if JSON.load(Ordering::Relaxed) {
        format!(
            "{{\"timestamp\":\"{at}\",\"level\":\"WARN\",\"message\":\"log lines dropped\",\
             \"count\":{count}}}\n"
        )
    } else {
        format!("{at}  WARN log lines dropped count={count}\n")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_that_ends_within_a_line_is_torn_until_one_ends() {
        for (batch, written, was_torn, is_torn) in [
            ("a\nb\n", 4, true, false),
            ("a\nb\n", 3, false, true),
            ("a\nb\n", 2, true, false),
            ("a\nb\n", 0, true, true),
            ("a\nb\n", 0, false, false),
            // The line end that ends what was torn.
            ("\nc\n", 1, true, false),
            ("\nc\n", 2, true, true),
        ] {
            let found = is_torn_after(batch.as_bytes(), written, was_torn);
            assert_eq!(found, is_torn, "{batch:?} {written} {was_torn}");
        }
    }

    #[test]
    fn lines_that_were_dropped_are_counted_in_a_line_with_its_time() {
        let line = dropped_line(7);
        let (at, rest) = line.split_once("Z  WARN ").expect("a time and a level");
        assert!(at.starts_with("20") && at.len() >= "2026-11-29T12:00:00".len(), "{line}");
        assert_eq!(rest, "log lines dropped count=7\n");
    }

    #[test]
    fn a_flush_gives_up_where_nobody_reads_the_log() {
        // As behind a blocked terminal: the writer's thread hangs in its write, and the queue is
        // full.
        let (queue, _unread) = sync_channel(1);
        let writer = Writer::new(queue);
        writer.queue.try_send(Message::Line(Vec::new())).unwrap();
        let (done, ended) = sync_channel(1);
        std::thread::spawn(move || {
            writer.flush();
            done.send(())
        });
        ended
            .recv_timeout(FLUSH_WAIT * 10)
            .expect("a process that ends must not wait for its reader");
    }

    #[test]
    fn an_output_that_does_not_block_is_waited_for_and_a_closed_one_is_not() {
        let (reader, writer) = std::os::unix::net::UnixStream::pair().unwrap();
        writer.set_nonblocking(true).unwrap();
        let lines = "a line\n".repeat(1 << 17);
        let all = std::thread::scope(|scope| {
            let writing = scope.spawn(|| {
                let written = write_all(writer.as_fd(), lines.as_bytes());
                writer.shutdown(std::net::Shutdown::Write).unwrap();
                written
            });
            let mut all = String::new();
            std::io::Read::read_to_string(&mut &reader, &mut all).unwrap();
            assert_eq!(writing.join().unwrap(), (lines.len(), None));
            all
        });
        assert_eq!(all, lines);
        drop(reader);
        assert_eq!(write_all(writer.as_fd(), lines.as_bytes()), (0, Some(Errno::PIPE)));
    }

    #[test]
    fn of_an_output_that_is_full_standard_error_is_told_now_and_then() {
        let full = std::fs::File::options().write(true).open("/dev/full");
        if let Ok(full) = full {
            assert_eq!(write_all(full.as_fd(), b"a line\n"), (0, Some(Errno::NOSPC)));
        }
        let mut failures = Failures::default();
        let told: Vec<_> = (0..100).filter_map(|_| failures.add(Errno::NOSPC)).collect();
        assert_eq!(told.len(), 7);
        assert!(told.iter().all(|line| line.contains("No space left")), "{told:?}");
        assert_eq!(failures.add(Errno::PIPE), None);
    }

    #[test]
    fn a_flush_waits_until_what_was_there_is_written() {
        let (queue, lines) = sync_channel(2);
        let writer = Writer::new(queue);
        writer.queue.try_send(Message::Line(vec![b'x'])).unwrap();
        let reader = std::thread::spawn(move || {
            let mut batch = Vec::new();
            while let Ok(message) = lines.recv() {
                if let Some(done) = append(&mut batch, message) {
                    done.try_send(()).unwrap();
                    break;
                }
            }
            batch
        });
        writer.flush();
        assert_eq!(reader.join().unwrap(), b"x");
    }
}
