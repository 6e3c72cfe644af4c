//! Reads logs: several files, compressed or not, merged into the order of their requests' times.
//! Knows no limit.
//!
//! Lines are written when requests end, and times are those of their beginnings, so a log is a
//! little out of order. Each file's lines pass through a window of [`WINDOW`] lines that sorts
//! them. What is later than that is taken at the time of the request before it, and counted.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;

use super::format::{Reader, Reading};
use super::record::{Client, Clients, Record};

/// Lines of a file that are held to sort them.
pub const WINDOW: usize = 65_536;
/// Files that are read at once, at most.
pub const FILES_MAX: usize = 64;
/// Bytes of a line, at most.
const LINE_BYTES_MAX: usize = 1 << 16;
/// Broken lines that are shown, at most.
const SHOWN_MAX: usize = 20;
/// Requests that are handed on at once.
const BATCH: usize = 4_096;
const BUFFER_BYTES: usize = 1 << 18;
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// A log that can't be read.
#[derive(Debug, thiserror::Error)]
#[error("{name}: {cause}")]
pub struct Unreadable {
    /// The file.
    pub name: String,
    /// Why.
    pub cause: io::Error,
}

/// A line that is no request.
#[derive(Clone, Debug)]
pub struct Broken {
    /// The file.
    pub file: String,
    /// Its line there, from 1.
    pub line: u64,
    /// What is wrong with it.
    pub why: String,
}

/// What was read.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Each file and its format; none where no line was known.
    pub files: Vec<(String, Option<&'static str>)>,
    /// Lines that are not empty.
    pub lines: u64,
    /// Lines about something else than a request.
    pub skipped: u64,
    /// Lines that are no request.
    pub broken: u64,
    /// The first of them.
    pub broken_shown: Vec<Broken>,
    /// Lines that came later than one with a later time.
    pub out_of_order: u64,
    /// Those that came too late to be sorted.
    pub late: u64,
    /// Clients that are names, not addresses.
    pub names: u32,
}

/// Requests in their order, and the clients that occur in them for the first time.
#[derive(Debug, Default)]
pub struct Batch {
    /// The requests.
    pub records: Vec<Box<Record>>,
    /// The next clients, by number.
    pub clients: Vec<Client>,
}

/// Bytes that were read so far, for who watches.
pub type Progress = Arc<AtomicU64>;

struct Counted<R> {
    inner: R,
    progress: Progress,
}

impl<R: io::Read> io::Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.inner.read(buffer)?;
        self.progress.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(bytes)
    }
}

/// Logs that are open.
pub struct Logs {
    sources: Vec<Source>,
    clients: Clients,
    summary: Summary,
    /// Their bytes as they are stored; none where it is not known, as of standard input.
    pub bytes: Option<u64>,
}

struct Source {
    name: String,
    number: u16,
    input: Box<dyn BufRead + Send>,
    reader: Reader,
    line: u64,
    /// A line, kept for its memory.
    buffer: Vec<u8>,
    window: VecDeque<Box<Record>>,
    latest_us: i64,
    ended: bool,
}

impl Logs {
    /// Opens files; `-` is standard input.
    ///
    /// # Errors
    /// One of them can't be read.
    pub fn open(
        paths: &[&Path],
        reading: &Reading,
        progress: &Progress,
    ) -> Result<Self, Unreadable> {
        let mut bytes = Some(0);
        let mut sources = Vec::new();
        for (path, number) in paths.iter().zip(0_u16..) {
            let name = path.display().to_string();
            let unreadable = |cause| Unreadable { name: name.clone(), cause };
            let raw: Box<dyn io::Read + Send> = if name == "-" {
                bytes = None;
                Box::new(io::stdin())
            } else {
                let file = File::open(path).map_err(unreadable)?;
                let length = file.metadata().map_err(unreadable)?.len();
                bytes = bytes.map(|all| all + length);
                Box::new(file)
            };
            let input = input(Counted { inner: raw, progress: Arc::clone(progress) });
            sources.push(Source {
                input: input.map_err(unreadable)?,
                number,
                reader: Reader::new(reading),
                line: 0,
                buffer: Vec::new(),
                window: VecDeque::new(),
                latest_us: i64::MIN,
                ended: false,
                name,
            });
        }
        Ok(Self { sources, clients: Clients::default(), summary: Summary::default(), bytes })
    }

    /// Reads all, and hands requests on until `send` says that nobody wants more.
    ///
    /// # Errors
    /// A file can't be read on.
    pub fn read(mut self, mut send: impl FnMut(Batch) -> bool) -> Result<Summary, Unreadable> {
        let mut batch = Batch::default();
        let mut now_us = i64::MIN;
        while let Some(mut record) = self.next()? {
            if record.at_us < now_us {
                self.summary.late += 1;
                record.at_us = now_us;
            }
            now_us = record.at_us;
            batch.records.push(record);
            if batch.records.len() == BATCH {
                batch.clients.append(&mut self.clients.new);
                if !send(std::mem::take(&mut batch)) {
                    break;
                }
                batch.records.reserve(BATCH);
            }
        }
        batch.clients.append(&mut self.clients.new);
        send(batch);
        let Self { sources, clients, mut summary, .. } = self;
        summary.names = clients.names;
        summary.files =
            sources.into_iter().map(|source| (source.name, source.reader.format())).collect();
        Ok(summary)
    }

    /// The earliest request of all files.
    fn next(&mut self) -> Result<Option<Box<Record>>, Unreadable> {
        for source in &mut self.sources {
            while !source.ended && source.window.len() < WINDOW {
                source.read_line(&mut self.clients, &mut self.summary)?;
            }
        }
        let fronts = self.sources.iter_mut().filter(|source| !source.window.is_empty());
        let first = fronts.min_by_key(|source| source.window.front().map(|front| front.at_us));
        Ok(first.and_then(|source| source.window.pop_front()))
    }
}

/// Looks at the first bytes: what is compressed is decompressed.
fn input<R: io::Read + Send + 'static>(raw: R) -> io::Result<Box<dyn BufRead + Send>> {
    let mut plain = BufReader::with_capacity(BUFFER_BYTES, raw);
    Ok(if plain.fill_buf()?.starts_with(&GZIP) {
        Box::new(BufReader::with_capacity(BUFFER_BYTES, MultiGzDecoder::new(plain)))
    } else {
        Box::new(plain)
    })
}

impl Source {
    /// Reads the next request.
    fn read_line(&mut self, clients: &mut Clients, all: &mut Summary) -> Result<(), Unreadable> {
        let mut bytes = std::mem::take(&mut self.buffer);
        let read = self.read_into(&mut bytes, clients, all);
        self.buffer = bytes;
        read
    }

    fn read_into(
        &mut self,
        bytes: &mut Vec<u8>,
        clients: &mut Clients,
        all: &mut Summary,
    ) -> Result<(), Unreadable> {
        let most = LINE_BYTES_MAX as u64;
        loop {
            bytes.clear();
            let read = self.input.by_ref().take(most).read_until(b'\n', bytes);
            let read = read.map_err(|cause| Unreadable { name: self.name.clone(), cause })?;
            if read == 0 {
                self.ended = true;
                return Ok(());
            }
            self.line += 1;
            if read == LINE_BYTES_MAX && !bytes.ends_with(b"\n") {
                all.lines += 1;
                self.skip_rest()?;
                self.broken("a line of more than 65536 bytes".into(), all);
                continue;
            }
            let line = String::from_utf8_lossy(bytes.trim_ascii());
            if line.is_empty() {
                continue;
            }
            all.lines += 1;
            let place = (self.number, self.line);
            let record = match self.reader.read(&line) {
                Ok(line) if line.skip => {
                    all.skipped += 1;
                    continue;
                }
                Ok(line) => Record::of(&line, clients, place),
                Err(why) => Err(why),
            };
            match record {
                Ok(record) => {
                    self.insert(Box::new(record), all);
                    return Ok(());
                }
                Err(why) => self.broken(why, all),
            }
        }
    }

    fn skip_rest(&mut self) -> Result<(), Unreadable> {
        let skipped = loop {
            let most = LINE_BYTES_MAX as u64;
            let mut bytes = Vec::new();
            match self.input.by_ref().take(most).read_until(b'\n', &mut bytes) {
                Ok(0) => break Ok(()),
                Ok(_) if bytes.ends_with(b"\n") => break Ok(()),
                Ok(_) => {}
                Err(cause) => break Err(cause),
            }
        };
        skipped.map_err(|cause| Unreadable { name: self.name.clone(), cause })
    }

    fn broken(&self, why: Cow<'static, str>, all: &mut Summary) {
        all.broken += 1;
        if all.broken_shown.len() < SHOWN_MAX {
            let (file, line) = (self.name.clone(), self.line);
            all.broken_shown.push(Broken { file, line, why: why.into_owned() });
        }
    }

    /// Requests of the same time keep the order of their lines.
    fn insert(&mut self, record: Box<Record>, all: &mut Summary) {
        if record.at_us >= self.latest_us {
            self.latest_us = record.at_us;
            self.window.push_back(record);
            return;
        }
        all.out_of_order += 1;
        let place = self.window.partition_point(|other| other.at_us <= record.at_us);
        self.window.insert(place, record);
    }
}

impl std::fmt::Debug for Logs {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Logs").field("files", &self.sources.len()).finish_non_exhaustive()
    }
}
