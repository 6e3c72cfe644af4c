//! Reads numbers from a reply's body while it streams.

use std::sync::Arc;

use smallvec::SmallVec;

use super::coding::Decoder;
use super::events::{Events, Part};
use super::pointer::{Pointer, Pointers};
use super::repeat::Repeat;
use super::scan::{FoundValue, Kind, Scanner};

/// The largest number that a meter reads: what a counter can hold.
const NUMBER_MAX: u64 = 1 << 52;

/// What to read from a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meter {
    /// Where the value is in each document.
    pub pointer: Pointer,
    /// How several values become one.
    pub gather: Gather,
}

/// How the values that a pointer finds become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gather {
    /// The last number.
    Last,
    /// The largest number.
    Max,
    /// All numbers added.
    Sum,
    /// The bytes of all texts, and of arrays and objects as they are written.
    Bytes,
    /// The number of values other than null and empty texts.
    Count,
}

impl Gather {
    /// The word in the name of the fact.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Last => "last",
            Self::Max => "max",
            Self::Sum => "sum",
            Self::Bytes => "bytes",
            Self::Count => "count",
        }
    }

    /// What a value that was found contributes.
    fn value(self, found: &FoundValue<'_>) -> Option<u64> {
        match self {
            Self::Last | Self::Max | Self::Sum => number(found.number),
            Self::Bytes => match found.kind {
                Kind::Text => Some(found.text_bytes),
                Kind::Array | Kind::Object => Some(found.end - found.start),
                _ => None,
            },
            Self::Count => match found.kind {
                Kind::Null => None,
                Kind::Text if found.text_bytes == 0 => None,
                _ => Some(1),
            },
        }
    }

    fn join(self, before: Option<u64>, value: u64) -> u64 {
        let joined = match (self, before) {
            (Self::Last, _) | (_, None) => value,
            (Self::Max, Some(before)) => before.max(value),
            (Self::Sum | Self::Bytes | Self::Count, Some(before)) => before.saturating_add(value),
        };
        joined.min(NUMBER_MAX)
    }
}

/// Reads a number as a whole one, rounded up; `None` if it is negative.
fn number(digits: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(digits).ok()?;
    if let Ok(whole) = text.parse::<u64>() {
        return Some(whole.min(NUMBER_MAX));
    }
    let float = text.parse::<f64>().ok()?;
    (float >= 0.0).then(|| float.ceil().min(NUMBER_MAX as f64) as u64)
}

/// The meters of a decision, prepared once.
#[derive(Debug)]
pub struct Meters {
    list: Vec<Meter>,
    pointers: Arc<Pointers>,
}

impl Meters {
    /// Prepares these meters.
    #[must_use]
    pub fn new(list: Vec<Meter>) -> Self {
        let pointers = Arc::new(Pointers::new(list.iter().map(|meter| &meter.pointer)));
        Self { list, pointers }
    }

    /// All of them.
    #[must_use]
    pub fn list(&self) -> &[Meter] {
        &self.list
    }
}

impl PartialEq for Meters {
    fn eq(&self, other: &Self) -> bool {
        self.list == other.list
    }
}

/// How the documents of a body follow each other.
#[derive(Debug)]
enum Form {
    /// The body is one document.
    Document,
    /// Server-sent events, a document in the data of each.
    Events(Events),
    /// A document in each line.
    Lines,
    /// There are none.
    Other,
}

impl Form {
    fn of(content_type: &[u8]) -> Self {
        let media = content_type.split(|byte| *byte == b';').next().unwrap_or_default();
        let media = media.trim_ascii().to_ascii_lowercase();
        match media.as_slice() {
            b"text/event-stream" => Self::Events(Events::default()),
            b"application/x-ndjson" | b"application/ndjson" | b"application/jsonl" => Self::Lines,
            b"application/json" => Self::Document,
            json if json.ends_with(b"+json") => Self::Document,
            _ => Self::Other,
        }
    }
}

/// One reply that is being read.
#[derive(Debug)]
pub struct Reading {
    meters: Arc<Meters>,
    decoder: Decoder,
    documents: Documents,
}

#[derive(Debug)]
struct Documents {
    form: Form,
    scanner: Scanner,
    repeat: Repeat,
    /// What each meter has read.
    values: SmallVec<[Option<u64>; 8]>,
}

impl Reading {
    /// A reply with these fields; each is empty if there is none.
    #[must_use]
    pub fn new(meters: &Arc<Meters>, content_type: &[u8], content_encoding: &str) -> Self {
        let documents = Documents {
            form: Form::of(content_type),
            scanner: Scanner::new(Arc::clone(&meters.pointers)),
            repeat: Repeat::default(),
            values: meters.list.iter().map(|_| None).collect(),
        };
        let decoder = Decoder::of(content_encoding);
        Self { meters: Arc::clone(meters), decoder, documents }
    }

    /// Whether the reply is a stream of events that can be told apart: it is not compressed.
    #[must_use]
    pub fn is_events(&self) -> bool {
        matches!(self.documents.form, Form::Events(_)) && matches!(self.decoder, Decoder::Identity)
    }

    /// Reads the next piece of the body.
    pub fn feed(&mut self, piece: &[u8]) {
        let (list, documents) = (&self.meters.list, &mut self.documents);
        if !matches!(documents.form, Form::Other) {
            self.decoder.feed(piece, &mut |content| documents.feed(list, content));
        }
    }

    /// The body has ended, or nothing more of it comes.
    pub fn finish(&mut self) {
        self.documents.finish(&self.meters.list);
    }

    /// The meters, and what each has read.
    pub fn values(&self) -> impl Iterator<Item = (&Meter, Option<u64>)> {
        self.meters.list.iter().zip(self.documents.values.iter().copied())
    }

    /// Bytes on the heap that depend on what was read.
    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> usize {
        self.documents.scanner.held_bytes()
    }

    /// What the meter with this index has read.
    #[must_use]
    pub fn value(&self, index: usize) -> Option<u64> {
        self.documents.values.get(index).copied().flatten()
    }
}

impl Documents {
    fn feed(&mut self, list: &[Meter], content: &[u8]) {
        let Self { form, scanner, repeat, values } = self;
        let mut found = |found: FoundValue<'_>| gather(list, values, &found);
        match form {
            Form::Document => scanner.feed(content, &mut found),
            Form::Events(events) => events.feed(content, &mut |part| match part {
                Part::Data(data) => scanner.feed(data, &mut found),
                Part::Line(line) => repeat.read(line, scanner, &mut found),
                Part::End => {
                    scanner.finish(&mut found);
                    scanner.restart();
                }
            }),
            Form::Lines => {
                for line in content.split_inclusive(|byte| *byte == b'\n') {
                    scanner.feed(line, &mut found);
                    if line.ends_with(b"\n") {
                        scanner.finish(&mut found);
                        scanner.restart();
                    }
                }
            }
            Form::Other => {}
        }
    }

    fn finish(&mut self, list: &[Meter]) {
        let Self { form, scanner, values, .. } = self;
        let mut found = |found: FoundValue<'_>| gather(list, values, &found);
        if let Form::Events(events) = form {
            events.finish(&mut |part| {
                if part == Part::End {
                    scanner.finish(&mut found);
                }
            });
        } else {
            scanner.finish(&mut found);
        }
        scanner.restart();
    }
}

fn gather(list: &[Meter], values: &mut SmallVec<[Option<u64>; 8]>, found: &FoundValue<'_>) {
    let meter = list.get(found.pointer).zip(values.get_mut(found.pointer));
    if let Some((meter, value)) = meter
        && let Some(new) = meter.gather.value(found)
    {
        *value = Some(meter.gather.join(*value, new));
    }
}
