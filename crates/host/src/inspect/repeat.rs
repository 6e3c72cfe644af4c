//! Reads documents that differ from the one before only in their texts, as the events of a stream
//! mostly do, many times faster than by scanning: the rest is compared, not parsed.

use super::scan::{FoundValue, Kind, Scanner};

/// Maximum size of a document that is kept to compare others with, in bytes.
const BYTES_MAX: usize = 4 << 10;
/// Maximum number of texts in it.
const TEXTS_MAX: usize = 64;
/// After this many different documents in a row, no others are compared.
const MISSES_MAX: u8 = 16;

/// The last document that was scanned.
#[derive(Debug, Default)]
pub(super) struct Repeat {
    document: Vec<u8>,
    /// Where its texts begin and end, quotes included, in order. Names of members are not among
    /// them.
    texts: Vec<(usize, usize)>,
    /// What was found in it, in order.
    found: Vec<Value>,
    misses: u8,
    usable: bool,
}

/// A value that was found.
#[derive(Debug)]
struct Value {
    pointer: usize,
    kind: Kind,
    start: usize,
    end: usize,
    text_bytes: u64,
    /// If it is a text, which.
    text: Option<usize>,
}

impl Repeat {
    /// Calls `sink` for what is found in `document`, a whole one. Afterwards the scanner is where
    /// it would be if it had scanned it.
    pub(super) fn read(
        &mut self,
        document: &[u8],
        scanner: &mut Scanner,
        sink: &mut impl FnMut(FoundValue<'_>),
    ) {
        if self.usable && self.matches(document, sink) {
            self.misses = 0;
            scanner.skip_whole(document.len());
        } else if self.misses == MISSES_MAX || document.len() > BYTES_MAX {
            scanner.feed(document, sink);
        } else {
            self.misses += 1;
            self.learn(document, scanner, sink);
        }
    }

    /// Scans a document, and keeps it.
    fn learn(
        &mut self,
        document: &[u8],
        scanner: &mut Scanner,
        sink: &mut impl FnMut(FoundValue<'_>),
    ) {
        self.found.clear();
        let kept = &mut self.found;
        scanner.record_texts();
        scanner.feed(document, &mut |found| {
            kept.push(Value {
                pointer: found.pointer,
                kind: found.kind,
                start: usize::try_from(found.start).unwrap_or(usize::MAX),
                end: usize::try_from(found.end).unwrap_or(usize::MAX),
                text_bytes: found.text_bytes,
                text: None,
            });
            sink(found);
        });
        self.texts.clear();
        scanner.take_texts(&mut self.texts);
        for value in kept.iter_mut().filter(|value| value.kind == Kind::Text) {
            value.text = self.texts.iter().position(|(start, _)| *start == value.start);
        }
        // The size of an array or an object changes with the texts in it.
        let sized = |value: &Value| matches!(value.kind, Kind::Array | Kind::Object);
        self.usable = scanner.is_whole()
            && self.texts.len() <= TEXTS_MAX
            && self.found.len() <= TEXTS_MAX
            && !self.found.iter().any(sized);
        self.document.clear();
        self.document.extend_from_slice(document);
    }

    /// Whether `document` is the kept one with other texts. What is found in it is passed on then.
    fn matches(&self, document: &[u8], sink: &mut impl FnMut(FoundValue<'_>)) -> bool {
        // The bytes of each text without its quotes.
        let mut lengths = [0_u64; TEXTS_MAX];
        let mut rest = document;
        let mut at = 0;
        for ((start, end), length) in self.texts.iter().zip(&mut lengths) {
            // Up to the opening quote.
            let Some(same) = self.document.get(at..=*start) else { return false };
            let Some(after) = rest.strip_prefix(same) else { return false };
            let old = self.document.get(start + 1..*end).unwrap_or_default();
            if let Some(after) = after.strip_prefix(old) {
                *length = u64::MAX;
                rest = after;
            } else {
                let Some(close) = memchr::memchr2(b'"', b'\\', after) else { return false };
                let (text, quote) = after.split_at(close);
                let Some(after) = quote.strip_prefix(b"\"") else { return false };
                if text.iter().any(|byte| *byte < 0x20) {
                    return false;
                }
                *length = text.len() as u64;
                rest = after;
            }
            at = *end;
        }
        if self.document.get(at..) != Some(rest) {
            return false;
        }
        for value in &self.found {
            let length = value.text.and_then(|text| lengths.get(text)).copied();
            let number: &[u8] = match value.kind {
                Kind::Number => self.document.get(value.start..value.end).unwrap_or_default(),
                _ => &[],
            };
            sink(FoundValue {
                pointer: value.pointer,
                kind: value.kind,
                // Only the sizes of arrays and objects are asked for, and there are none.
                start: 0,
                end: 0,
                number,
                text_bytes: length.filter(|it| *it != u64::MAX).unwrap_or(value.text_bytes),
            });
        }
        true
    }
}
