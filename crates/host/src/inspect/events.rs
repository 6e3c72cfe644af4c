//! Takes server-sent events apart while they stream (WHATWG HTML, "Server-sent events"), in pieces
//! of any size, and keeps nothing of them.

/// What an event stream is made of, as far as data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    /// Some of an event's data. Lines of data after the first begin with a line feed.
    Data(&'a [u8]),
    /// The first line of an event's data, which mostly is all of it.
    Line(&'a [u8]),
    /// The end of an event that had data.
    End,
}

/// Reads a stream of events.
#[derive(Debug, Default)]
pub(super) struct Events {
    line: Line,
    /// The event has data so far.
    data: bool,
    /// The last byte was a carriage return: a line feed belongs to it.
    returned: bool,
    /// Nothing of the event's data was passed on.
    first: bool,
    /// Bytes of the byte order mark that a stream may begin with.
    mark: u8,
}

/// Where in a line the stream is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Line {
    /// Nothing of the stream was read.
    #[default]
    Start,
    /// After this many bytes of the word `data`. With none, at the beginning of a line.
    Name(usize),
    /// After `data:`. One space is not part of the data.
    Space,
    Data,
    /// A comment, or a field that does not matter.
    Other,
}

const DATA: &[u8] = b"data";
const MARK: &[u8] = b"\xEF\xBB\xBF";

impl Events {
    /// Reads the next piece.
    pub(super) fn feed(&mut self, piece: &[u8], sink: &mut impl FnMut(Part<'_>)) {
        let mut rest = piece;
        while let Some((&byte, after)) = rest.split_first() {
            if std::mem::take(&mut self.returned) && byte == b'\n' {
                rest = after;
                continue;
            }
            if self.line == Line::Start {
                if MARK.get(usize::from(self.mark)) == Some(&byte) {
                    self.mark += 1;
                    rest = after;
                    continue;
                }
                // A part of a mark is a field of that name, which nobody reads.
                let part = !matches!(usize::from(self.mark), 0 | 3);
                self.line = if part { Line::Other } else { Line::Name(0) };
            }
            let end = match self.line {
                Line::Data | Line::Other => {
                    memchr::memchr2(b'\n', b'\r', rest).unwrap_or(rest.len())
                }
                _ => 0,
            };
            let (text, next) = rest.split_at(end);
            if self.line == Line::Data && !text.is_empty() {
                let whole = std::mem::take(&mut self.first) && !next.is_empty();
                sink(if whole { Part::Line(text) } else { Part::Data(text) });
            }
            rest = next;
            if let Some((&byte, next)) = rest.split_first() {
                rest = next;
                self.step(byte, sink);
            }
        }
    }

    /// Ends the stream. An event without an empty line after it counts, as its data has come.
    pub(super) fn finish(&mut self, sink: &mut impl FnMut(Part<'_>)) {
        self.end_of_event(sink);
        *self = Self::default();
    }

    fn step(&mut self, byte: u8, sink: &mut impl FnMut(Part<'_>)) {
        if matches!(byte, b'\n' | b'\r') {
            self.returned = byte == b'\r';
            match self.line {
                Line::Name(0) => self.end_of_event(sink),
                // A name without a colon is a field with an empty value.
                Line::Name(read) if read == DATA.len() => self.begin_data(sink),
                _ => {}
            }
            self.line = Line::Name(0);
            return;
        }
        self.line = match self.line {
            Line::Name(read) if read == DATA.len() && byte == b':' => {
                self.begin_data(sink);
                Line::Space
            }
            Line::Name(read) if DATA.get(read) == Some(&byte) => Line::Name(read + 1),
            Line::Space if byte == b' ' => Line::Data,
            Line::Space | Line::Data => {
                self.first = false;
                sink(Part::Data(&[byte]));
                Line::Data
            }
            Line::Start | Line::Name(_) | Line::Other => Line::Other,
        };
    }

    fn begin_data(&mut self, sink: &mut impl FnMut(Part<'_>)) {
        self.first = !std::mem::replace(&mut self.data, true);
        if !self.first {
            sink(Part::Data(b"\n"));
        }
    }

    fn end_of_event(&mut self, sink: &mut impl FnMut(Part<'_>)) {
        if std::mem::take(&mut self.data) {
            sink(Part::End);
        }
    }
}

/// Finds where events end in a stream that is passed on.
#[derive(Debug, Default)]
pub struct EventEnds {
    /// The current line has something in it.
    line: bool,
    /// The last byte was a carriage return.
    returned: bool,
}

impl EventEnds {
    /// The bytes of `data` up to the end of the event that it continues: past its empty line.
    /// `None` if `data` does not contain the end. The next call continues after these bytes.
    pub fn next(&mut self, data: &[u8]) -> Option<usize> {
        for (index, byte) in data.iter().enumerate() {
            let returned = std::mem::replace(&mut self.returned, *byte == b'\r');
            match byte {
                // It belongs to the carriage return before it.
                b'\n' if returned => {}
                b'\n' | b'\r' if !std::mem::take(&mut self.line) => {
                    let pair = *byte == b'\r' && data.get(index + 1) == Some(&b'\n');
                    self.returned &= !pair;
                    return Some(index + 1 + usize::from(pair));
                }
                b'\n' | b'\r' => {}
                _ => self.line = true,
            }
        }
        None
    }
}
