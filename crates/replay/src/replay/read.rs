//! Reads logs: several files, compressed or not, merged into the order of their requests' times.
//! Knows no limit.
//!
//! Lines are written when requests end, and times are those of their beginnings, so a log is a
//! little out of order. Each file's lines pass through a window of [`WINDOW`] lines, fewer if they
//! are long ([`WINDOWS_BYTES_MAX`]), that sorts them. What is later than that is taken at the time
//! of the request before it, and counted.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;

use super::format::{Reader, Reading};
use super::line::{LeftOut, Line};
use super::record::{Client, Clients, Record, SkipCause};

/// Maximum number of lines of a file that are held for sorting.
const WINDOW: usize = 65_536;
/// Approximate maximum size of all lines that are held for sorting, in bytes. Each file has an
/// equal share, and at least one line.
const WINDOWS_BYTES_MAX: usize = 256 << 20;
/// Maximum number of files that are read at once.
pub const FILES_MAX: usize = 64;
/// Maximum size of a line, in bytes.
const LINE_BYTES_MAX: usize = 1 << 16;
/// Maximum number of broken lines that are shown.
const SHOWN_MAX: usize = 20;
/// The number of requests that are handed on at once.
const BATCH: usize = 4_096;
/// Their approximate size, in bytes: a batch with more is handed on as it is.
const BATCH_BYTES: usize = 4 << 20;
const BUFFER_BYTES: usize = 1 << 18;
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// A log that can't be read.
#[derive(Debug, thiserror::Error)]
#[error("{name}: {cause}")]
pub struct LogError {
    /// The file.
    pub name: String,
    /// Why.
    pub cause: io::Error,
}

/// A line that is not a request.
#[derive(Clone, Debug)]
pub struct BrokenLine {
    /// The file.
    pub file: String,
    /// Its line there, from 1.
    pub line: u64,
    /// What is wrong with it.
    pub why: String,
}

/// A compressed file that could be read only in part. What comes before that place is replayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedFile {
    /// The file.
    pub file: String,
    /// Compressed bytes that were read before that place.
    pub bytes: u64,
    /// Complete lines that were read before that place.
    pub lines: u64,
    /// True if the file ends there, false if what follows is not valid gzip.
    pub ends: bool,
}

/// What was read.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Each file and its format; none where no line was known.
    pub files: Vec<(String, Option<&'static str>)>,
    /// All lines.
    pub lines: u64,
    /// Lines with nothing in them.
    pub blank: u64,
    /// Lines about something else than a request.
    pub skipped: u64,
    /// Calls for decisions. They are not replayed.
    pub calls: u64,
    /// Requests that Weir had redirected to https before it looked for a route. They are not
    /// replayed.
    pub to_https: u64,
    /// Requests that Weir had rejected before a route was found. They are not replayed.
    pub rejected: u64,
    /// Lines that are not requests.
    pub broken: u64,
    /// The first of them.
    pub broken_shown: Vec<BrokenLine>,
    /// Files that were read only in part.
    pub damaged: Vec<DamagedFile>,
    /// Requests of clients beyond the first four million.
    pub left_out: u64,
    /// Lines that came later than one with a later time.
    pub out_of_order: u64,
    /// Those that came too late to be sorted.
    pub late: u64,
    /// Clients that are names, not addresses.
    pub names: u32,
}

impl Summary {
    fn leave_out(&mut self, why: LeftOut) {
        let count = match why {
            LeftOut::NotRequest => &mut self.skipped,
            LeftOut::Call => &mut self.calls,
            LeftOut::ToHttps => &mut self.to_https,
            LeftOut::Rejected => &mut self.rejected,
        };
        *count += 1;
    }
}

/// Requests in their order, and the clients that occur in them for the first time.
#[derive(Debug, Default)]
pub struct Batch {
    /// The requests.
    pub records: Vec<Box<Record>>,
    /// The next clients, by number.
    pub clients: Vec<Client>,
}

/// Bytes that were read so far, for whoever watches.
pub type Progress = Arc<AtomicU64>;

struct ProgressReader<R> {
    inner: R,
    progress: Progress,
}

impl<R: io::Read> io::Read for ProgressReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.inner.read(buffer)?;
        self.progress.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(bytes)
    }
}

/// Counts the bytes that a decompressor has used, which reads further ahead.
struct UsedReader<R> {
    inner: R,
    bytes: Arc<AtomicU64>,
}

impl<R: BufRead> io::Read for UsedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.inner.read(buffer)?;
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(bytes)
    }
}

impl<R: BufRead> BufRead for UsedReader<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.inner.fill_buf()
    }

    fn consume(&mut self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.inner.consume(bytes);
    }
}

/// Logs that are open.
pub struct Logs {
    sources: Vec<Source>,
    clients: Clients,
    summary: Summary,
    /// Maximum size of one file's window, in bytes.
    window_bytes_max: usize,
    /// Their size as they are stored, in bytes; `None` where it is not known, as for standard
    /// input.
    pub bytes: Option<u64>,
}

struct Source {
    name: String,
    number: u16,
    input: Box<dyn BufRead + Send>,
    /// The bytes of a compressed file that were decompressed.
    unpacked: Option<Arc<AtomicU64>>,
    reader: Reader,
    line: u64,
    /// A line, kept for its memory.
    buffer: Vec<u8>,
    window: VecDeque<Box<Record>>,
    /// The bytes in the window.
    window_bytes: usize,
    latest_us: i64,
    ended: bool,
}

impl Logs {
    /// Opens files; `-` is standard input.
    ///
    /// # Errors
    /// One of them can't be read.
    pub fn open(paths: &[&Path], reading: &Reading, progress: &Progress) -> Result<Self, LogError> {
        let mut bytes = Some(0);
        let mut sources = Vec::new();
        for (path, number) in paths.iter().zip(0_u16..) {
            let name = path.display().to_string();
            let unreadable = |cause| LogError { name: name.clone(), cause };
            let raw: Box<dyn io::Read + Send> = if name == "-" {
                bytes = None;
                Box::new(io::stdin())
            } else {
                let file = File::open(path).map_err(unreadable)?;
                let length = file.metadata().map_err(unreadable)?.len();
                bytes = bytes.map(|all| all + length);
                Box::new(file)
            };
            let input = input(ProgressReader { inner: raw, progress: Arc::clone(progress) });
            let (input, unpacked) = input.map_err(unreadable)?;
            sources.push(Source {
                input,
                unpacked,
                number,
                reader: Reader::new(reading),
                line: 0,
                buffer: Vec::new(),
                window: VecDeque::new(),
                window_bytes: 0,
                latest_us: i64::MIN,
                ended: false,
                name,
            });
        }
        Ok(Self {
            window_bytes_max: WINDOWS_BYTES_MAX / sources.len().max(1),
            sources,
            clients: Clients::default(),
            summary: Summary::default(),
            bytes,
        })
    }

    /// Reads all, and hands requests on until `send` says that nobody wants more.
    ///
    /// # Errors
    /// A file can't be read on.
    pub fn read(mut self, mut send: impl FnMut(Batch) -> bool) -> Result<Summary, LogError> {
        let mut batch = Batch::default();
        let (mut now_us, mut batch_bytes) = (i64::MIN, 0);
        while let Some(mut record) = self.next()? {
            if record.at_us < now_us {
                self.summary.late += 1;
                record.at_us = now_us;
            }
            now_us = record.at_us;
            batch_bytes += record.weight();
            batch.records.push(record);
            if batch.records.len() == BATCH || batch_bytes >= BATCH_BYTES {
                batch_bytes = 0;
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
    fn next(&mut self) -> Result<Option<Box<Record>>, LogError> {
        for source in &mut self.sources {
            while !source.ended && !source.is_full(self.window_bytes_max) {
                source.read_line(&mut self.clients, &mut self.summary)?;
            }
        }
        let fronts = self.sources.iter_mut().filter(|source| !source.window.is_empty());
        let first = fronts.min_by_key(|source| source.window.front().map(|front| front.at_us));
        Ok(first.and_then(Source::take))
    }
}

type Input = (Box<dyn BufRead + Send>, Option<Arc<AtomicU64>>);

/// Looks at the first bytes: what is compressed is decompressed. Returns the count of the bytes for
/// which that was done, too.
fn input<R: io::Read + Send + 'static>(raw: R) -> io::Result<Input> {
    let mut plain = BufReader::with_capacity(BUFFER_BYTES, raw);
    if !plain.fill_buf()?.starts_with(&GZIP) {
        return Ok((Box::new(plain), None));
    }
    let bytes = Arc::new(AtomicU64::new(0));
    let packed = UsedReader { inner: plain, bytes: Arc::clone(&bytes) };
    let unpacked = BufReader::with_capacity(BUFFER_BYTES, MultiGzDecoder::new(packed));
    Ok((Box::new(unpacked), Some(bytes)))
}

impl Source {
    /// Whether its window has as many lines as it may.
    fn is_full(&self, bytes_max: usize) -> bool {
        self.window.len() >= WINDOW || (self.window_bytes >= bytes_max && !self.window.is_empty())
    }

    /// The earliest request of its window.
    fn take(&mut self) -> Option<Box<Record>> {
        let record = self.window.pop_front()?;
        self.window_bytes = self.window_bytes.saturating_sub(record.weight());
        Some(record)
    }

    /// Reads the next request.
    fn read_line(&mut self, clients: &mut Clients, all: &mut Summary) -> Result<(), LogError> {
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
    ) -> Result<(), LogError> {
        let most = LINE_BYTES_MAX as u64;
        loop {
            bytes.clear();
            let read = match self.input.by_ref().take(most).read_until(b'\n', bytes) {
                Ok(0) => {
                    self.ended = true;
                    return Ok(());
                }
                Ok(read) => read,
                // A part of a line may look like a whole one: it is left out.
                Err(cause) => return self.ends_damaged(cause, all),
            };
            let is_too_long = read == LINE_BYTES_MAX && !bytes.ends_with(b"\n");
            if is_too_long {
                self.skip_rest(all)?;
                if self.ended {
                    return Ok(());
                }
            }
            self.line += 1;
            if is_too_long {
                all.lines += 1;
                self.broken("a line of more than 65536 bytes".into(), all);
                continue;
            }
            let line = String::from_utf8_lossy(bytes.trim_ascii());
            all.lines += 1;
            if line.is_empty() {
                all.blank += 1;
                continue;
            }
            let place = (self.number, self.line);
            let record = match self.reader.read(&line) {
                Ok(Line { left_out: Some(why), .. }) => {
                    all.leave_out(why);
                    continue;
                }
                Ok(line) => Record::of(&line, clients, place),
                Err(why) => Err(SkipCause::Broken(why)),
            };
            match record {
                Ok(record) => {
                    self.insert(Box::new(record), all);
                    return Ok(());
                }
                Err(SkipCause::Broken(why)) => self.broken(why, all),
                Err(SkipCause::TooManyClients) => all.left_out += 1,
            }
        }
    }

    fn skip_rest(&mut self, all: &mut Summary) -> Result<(), LogError> {
        loop {
            let most = LINE_BYTES_MAX as u64;
            let mut bytes = Vec::new();
            match self.input.by_ref().take(most).read_until(b'\n', &mut bytes) {
                Ok(0) => return Ok(()),
                Ok(_) if bytes.ends_with(b"\n") => return Ok(()),
                Ok(_) => {}
                Err(cause) => return self.ends_damaged(cause, all),
            }
        }
    }

    /// A compressed file that was cut off, or is damaged, ends where that is.
    fn ends_damaged(&mut self, cause: io::Error, all: &mut Summary) -> Result<(), LogError> {
        use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
        let is_damage = matches!(cause.kind(), InvalidData | InvalidInput | UnexpectedEof);
        match self.unpacked.as_ref().filter(|_| is_damage && !self.ended) {
            Some(bytes) => {
                let (file, lines) = (self.name.clone(), self.line);
                let bytes = bytes.load(Ordering::Relaxed);
                let ends = cause.kind() == UnexpectedEof;
                all.damaged.push(DamagedFile { file, bytes, lines, ends });
                self.ended = true;
                Ok(())
            }
            None => Err(LogError { name: self.name.clone(), cause }),
        }
    }

    fn broken(&self, why: Cow<'static, str>, all: &mut Summary) {
        all.broken += 1;
        if all.broken_shown.len() < SHOWN_MAX {
            let (file, line) = (self.name.clone(), self.line);
            all.broken_shown.push(BrokenLine { file, line, why: why.into_owned() });
        }
    }

    /// Requests of the same time keep the order of their lines.
    fn insert(&mut self, record: Box<Record>, all: &mut Summary) {
        self.window_bytes += record.weight();
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

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn file(lines: &[String]) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.log");
        std::fs::write(&path, lines.concat()).unwrap();
        (folder, path)
    }

    fn line(client: &str, second: u32, path: &str) -> String {
        format!(
            "{client} - - [17/May/2015:10:05:{second:02} +0000] \"GET {path} HTTP/1.1\" 200 5\n"
        )
    }

    fn open(path: &Path) -> Logs {
        Logs::open(&[path], &Reading::Detected, &Progress::default()).unwrap()
    }

    #[test]
    fn long_lines_make_the_window_shorter() {
        let path = format!("/{}", "x".repeat(10_000));
        let lines: Vec<String> = (0..50).rev().map(|at| line("192.0.2.1", at, &path)).collect();
        let (_folder, path) = file(&lines);
        let late = |bytes_max: usize| {
            let mut logs = open(&path);
            logs.window_bytes_max = bytes_max;
            let mut most = 0;
            while logs.next().unwrap().is_some() {
                most = most.max(logs.sources[0].window_bytes);
            }
            assert!(most <= bytes_max.max(11_000) + 11_000, "{most} of {bytes_max}");
            assert_eq!(logs.sources[0].window_bytes, 0);
            let mut logs = open(&path);
            logs.window_bytes_max = bytes_max;
            logs.read(|_| true).unwrap().late
        };
        assert_eq!(late(WINDOWS_BYTES_MAX), 0, "all are sorted");
        assert!((1..50).contains(&late(100_000)), "some are");
        assert_eq!(late(0), 49, "none are, and each is read");
    }

    /// Lines that differ enough for more than one block of deflate, and the same with gzip.
    fn packed() -> (Vec<String>, Vec<u8>) {
        let each = (0..40_000_u64).map(|number| {
            let path = format!("/{:x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            line(&format!("192.0.2.{}", number % 250), (number / 1_000) as u32, &path)
        });
        let lines: Vec<String> = each.collect();
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(lines.concat().as_bytes()).unwrap();
        (lines, packed.finish().unwrap())
    }

    /// The targets of the requests that were read, and what is reported of the file.
    fn read(bytes: &[u8]) -> (Vec<String>, Summary) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.log.gz");
        std::fs::write(&path, bytes).unwrap();
        let mut targets = Vec::new();
        let summary = open(&path).read(|batch| {
            targets.extend(batch.records.iter().map(|record| record.target().to_owned()));
            true
        });
        (targets, summary.unwrap())
    }

    #[test]
    fn a_compressed_file_that_was_cut_off_is_read_as_far_as_it_goes() {
        let (lines, whole) = packed();
        let (targets, summary) = read(&whole);
        assert_eq!((targets.len(), summary.damaged.len()), (lines.len(), 0));
        // In its checksum, in its data, in its header.
        for (length, least) in [(whole.len() - 3, lines.len()), (whole.len() / 2, 10_000), (7, 0)] {
            let (found, summary) = read(&whole[..length]);
            assert!(found.len() >= least, "{} of {length} bytes", found.len());
            assert!(found.len() < lines.len() || least == lines.len());
            assert_eq!(found, targets[..found.len()], "no line is broken in two");
            let [damaged] = &summary.damaged[..] else { panic!("{:?}", summary.damaged) };
            assert!(damaged.ends && damaged.file.ends_with("access.log.gz"), "{damaged:?}");
            assert_eq!((damaged.bytes, damaged.lines), (length as u64, found.len() as u64));
            assert_eq!((summary.broken, summary.lines), (0, found.len() as u64));
        }
    }

    #[test]
    fn a_long_line_at_the_end_of_a_file_that_was_cut_off_is_none() {
        let mut random = fastrand::Rng::with_seed(1);
        let long: String = (0..200_000).map(|_| random.alphanumeric()).collect();
        let text = line("192.0.2.1", 0, "/a") + &line("192.0.2.1", 1, &long);
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(text.as_bytes()).unwrap();
        let whole = packed.finish().unwrap();
        let (found, summary) = read(&whole);
        assert_eq!((found.len(), summary.lines, summary.broken), (1, 2, 1), "too long");
        let (found, summary) = read(&whole[..whole.len() - 10_000]);
        assert_eq!((found.len(), summary.lines, summary.broken), (1, 1, 0));
        let [damaged] = &summary.damaged[..] else { panic!("{:?}", summary.damaged) };
        assert_eq!((damaged.ends, damaged.lines), (true, 1));
    }

    #[test]
    fn a_compressed_file_that_is_damaged_is_read_up_to_that() {
        let (lines, whole) = packed();
        let (targets, _) = read(&whole);
        // A part that is not gzip after one that is: a file that was copied over another.
        let (found, summary) = read(&[&whole[..], b"nothing of the kind"].concat());
        assert_eq!(found, targets);
        let [damaged] = &summary.damaged[..] else { panic!("{:?}", summary.damaged) };
        assert_eq!((damaged.ends, damaged.lines), (false, lines.len() as u64));
        assert!(damaged.bytes.abs_diff(whole.len() as u64) <= 20, "{damaged:?}");
        // Another checksum: all lines were read when that is seen.
        let mut other = whole.clone();
        let place = other.len() - 6;
        other[place] ^= 1;
        let (found, summary) = read(&other);
        assert_eq!((found.len(), summary.damaged.len()), (lines.len(), 1));
        // And in the middle, a stretch of other bytes.
        let mut other = whole.clone();
        let middle = other.len() / 2;
        other[middle..middle + 200].fill(0xff);
        let (found, summary) = read(&other);
        assert!((5_000..lines.len()).contains(&found.len()), "{}", found.len());
        let [damaged] = &summary.damaged[..] else { panic!("{:?}", summary.damaged) };
        assert!(!damaged.ends && damaged.bytes >= middle as u64 / 2, "{damaged:?} of {middle}");
    }

    #[test]
    fn requests_of_too_many_clients_are_counted_apart() {
        let clients = ["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.1", "a.example"];
        let lines: Vec<String> = clients.iter().map(|client| line(client, 3, "/")).collect();
        let (_folder, path) = file(&lines);
        let mut logs = open(&path);
        logs.clients = Clients::new(2);
        let mut requests = 0;
        let summary = logs
            .read(|batch| {
                requests += batch.records.len();
                true
            })
            .unwrap();
        assert_eq!((requests, summary.left_out, summary.broken), (3, 2, 0));
    }

    #[test]
    fn a_batch_of_long_lines_is_handed_on_early() {
        let path = format!("/{}", "x".repeat(60_000));
        let lines: Vec<String> = (0..200).map(|_| line("192.0.2.1", 3, &path)).collect();
        let (_folder, path) = file(&lines);
        let mut batches = Vec::new();
        let read = open(&path).read(|batch| {
            batches.push(batch.records.len());
            true
        });
        assert_eq!(read.unwrap().broken, 0);
        assert!(batches.iter().all(|records| *records < 100), "{batches:?}");
        assert_eq!(batches.iter().sum::<usize>(), 200);
    }
}
