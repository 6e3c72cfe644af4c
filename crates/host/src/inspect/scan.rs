//! Finds values in a JSON document (RFC 8259) while it arrives, in pieces of any size.
//!
//! Nothing of the document is kept but the numbers and member names that a pointer may lead to, so
//! a document may be of any size. What is found is reported at once, before it is known whether the
//! document ends without an error.

use std::sync::Arc;

use smallvec::SmallVec;

use super::pointer::{POINTER_BYTES_MAX, Places, Pointers};

/// Maximum nesting depth of containers. A deeper document counts as invalid.
pub(super) const DEPTH_MAX: u32 = 128;
/// Maximum number of characters of a number that is read.
const NUMBER_BYTES_MAX: usize = 64;

/// A value that a pointer leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FoundValue<'a> {
    /// The pointer's index.
    pub(super) pointer: usize,
    pub(super) kind: Kind,
    /// Where the value begins and ends, in bytes from the document's start.
    pub(super) start: u64,
    pub(super) end: u64,
    /// A number's digits. Empty for other values, and for numbers that are too long.
    pub(super) number: &'a [u8],
    /// The bytes of a text as UTF-8, without quotes and escapes.
    pub(super) text_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Number,
    True,
    False,
    Null,
    Array,
    Object,
}

/// A scan of one document after the other.
#[derive(Debug)]
pub(super) struct Scanner {
    pointers: Arc<Pointers>,
    state: State,
    /// Bytes of the document so far.
    at: u64,
    depth: u32,
    /// Which of the open containers are objects, the innermost in the lowest bit.
    objects: u128,
    /// The open containers that pointers lead to or through, the innermost last.
    frames: SmallVec<[Frame; 4]>,
    /// Where the value is that comes next or is being read.
    places: Places,
    /// Where that value begins.
    start: u64,
    text_bytes: u64,
    /// The code unit of an escape, as far as it was read.
    unit: u32,
    /// A member's name or a number, as far as it was read.
    kept: SmallVec<[u8; 64]>,
    /// It was longer than any that could matter.
    overlong: bool,
    /// Where texts begin and end, while they are recorded.
    texts: Option<Vec<(usize, usize)>>,
}

#[derive(Debug)]
struct Frame {
    depth: u32,
    places: Places,
    start: u64,
    /// The index of an array's next element.
    index: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before a value.
    Value,
    /// After `[`: a value, or the end.
    ValueOrEnd,
    /// After `{`: a name, or the end.
    NameOrEnd,
    /// After a comma in an object.
    Name,
    Colon,
    /// After a value in a container.
    Comma,
    String {
        name: bool,
    },
    /// After a backslash.
    Escape {
        name: bool,
    },
    /// After `\u`, with this many digits to come.
    Unit {
        name: bool,
        left: u8,
    },
    Number(Number),
    /// The bytes of `true`, `false` or `null` that are to come.
    Literal(Kind, &'static [u8]),
    /// After the document's value.
    End,
    Invalid,
}

/// How far a number was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Minus,
    Zero,
    Integer,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
}

impl Number {
    fn is_complete(self) -> bool {
        matches!(self, Self::Zero | Self::Integer | Self::Fraction | Self::ExponentDigits)
    }

    /// After one more byte; `None` if that byte is not part of the number.
    fn after(self, byte: u8) -> Option<Self> {
        Some(match (self, byte) {
            (Self::Minus, b'0') => Self::Zero,
            (Self::Minus, b'1'..=b'9') | (Self::Integer, b'0'..=b'9') => Self::Integer,
            (Self::Zero | Self::Integer, b'.') => Self::Point,
            (Self::Point | Self::Fraction, b'0'..=b'9') => Self::Fraction,
            (Self::Zero | Self::Integer | Self::Fraction, b'e' | b'E') => Self::Exponent,
            (Self::Exponent, b'+' | b'-') => Self::ExponentSign,
            (Self::Exponent | Self::ExponentSign | Self::ExponentDigits, b'0'..=b'9') => {
                Self::ExponentDigits
            }
            _ => return None,
        })
    }
}

/// What is called for each value that is found.
pub(super) trait Sink: FnMut(FoundValue<'_>) {}

impl<F: FnMut(FoundValue<'_>)> Sink for F {}

impl Scanner {
    pub(super) fn new(pointers: Arc<Pointers>) -> Self {
        let mut scanner = Self {
            pointers,
            state: State::Value,
            at: 0,
            depth: 0,
            objects: 0,
            frames: SmallVec::new(),
            places: Places::new(),
            start: 0,
            text_bytes: 0,
            unit: 0,
            kept: SmallVec::new(),
            overlong: false,
            texts: None,
        };
        scanner.restart();
        scanner
    }

    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> usize {
        self.kept.capacity() + self.frames.capacity() * size_of::<Frame>()
    }

    /// Begins another document.
    pub(super) fn restart(&mut self) {
        (self.state, self.at, self.depth, self.objects) = (State::Value, 0, 0, 0);
        self.frames.clear();
        self.places = Pointers::root();
    }

    /// Whether a whole document was read, and nothing after it.
    pub(super) fn is_whole(&self) -> bool {
        self.state == State::End
    }

    /// Takes a whole document of this length as read.
    pub(super) fn skip_whole(&mut self, bytes: usize) {
        self.state = State::End;
        self.at += bytes as u64;
    }

    /// Records where texts other than names are, from here on.
    pub(super) fn record_texts(&mut self) {
        self.texts = Some(Vec::new());
    }

    /// Hands over what was recorded, and ends recording.
    pub(super) fn take_texts(&mut self, out: &mut Vec<(usize, usize)>) {
        *out = self.texts.take().unwrap_or_default();
    }

    /// Ends the document. Returns whether it was one. A number within an object or a list that ends
    /// here was cut: more digits may have followed.
    pub(super) fn finish(&mut self, sink: &mut impl Sink) -> bool {
        if let State::Number(number) = self.state
            && number.is_complete()
            && self.depth == 0
        {
            self.end_of_value(Kind::Number, sink);
        }
        self.state == State::End
    }

    /// Reads the next piece.
    pub(super) fn feed(&mut self, piece: &[u8], sink: &mut impl Sink) {
        let begun = self.at;
        let mut rest = piece;
        while let Some((&byte, after)) = rest.split_first() {
            match self.state {
                State::Invalid => break,
                State::String { name } => {
                    // Most bytes of a document are in texts: found with SIMD, not one by one.
                    let run = memchr::memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
                    let (text, next) = rest.split_at(run);
                    self.at = begun + (piece.len() - rest.len()) as u64;
                    self.text(name, text);
                    rest = next;
                    if let (Some((&byte, next)), State::String { .. }) =
                        (rest.split_first(), self.state)
                    {
                        self.at = begun + (piece.len() - next.len()) as u64;
                        rest = next;
                        match byte {
                            b'"' => self.end_of_string(name, sink),
                            _ => self.state = State::Escape { name },
                        }
                    }
                    continue;
                }
                State::Number(number) => match number.after(byte) {
                    Some(number) => {
                        self.state = State::Number(number);
                        self.keep(&[byte]);
                    }
                    None if number.is_complete() => {
                        self.at = begun + (piece.len() - rest.len()) as u64;
                        self.end_of_value(Kind::Number, sink);
                        // This byte belongs to what comes next.
                        continue;
                    }
                    None => self.state = State::Invalid,
                },
                _ => {
                    self.at = begun + (piece.len() - rest.len()) as u64;
                    self.step(byte, sink);
                }
            }
            rest = after;
        }
        self.at = begun + piece.len() as u64;
    }

    /// Takes a byte that is in no text and no number.
    fn step(&mut self, byte: u8, sink: &mut impl Sink) {
        match (self.state, byte) {
            (State::Literal(kind, rest), _) => self.literal(kind, rest, byte, sink),
            (State::Escape { name }, _) => self.escape(name, byte),
            (State::Unit { name, left }, _) => self.unit(name, left, byte),
            (_, b' ' | b'\t' | b'\n' | b'\r') => {}
            (State::ValueOrEnd, b']') | (State::NameOrEnd, b'}') => self.close(sink),
            (State::Comma, b']') if !self.in_object() => self.close(sink),
            (State::Comma, b'}') if self.in_object() => self.close(sink),
            (State::Comma, b',') if self.in_object() => self.state = State::Name,
            (State::Comma, b',') => self.next_element(),
            (State::Colon, b':') => self.state = State::Value,
            (State::NameOrEnd | State::Name, b'"') => {
                self.begin_kept();
                self.state = State::String { name: true };
            }
            (State::Value | State::ValueOrEnd, _) => {
                if self.state == State::ValueOrEnd {
                    self.next_element();
                }
                self.value(byte);
            }
            _ => self.state = State::Invalid,
        }
    }

    /// Begins a value.
    fn value(&mut self, byte: u8) {
        self.start = self.at;
        self.state = match byte {
            b'{' | b'[' => return self.open(byte == b'{'),
            b'"' => {
                self.text_bytes = 0;
                State::String { name: false }
            }
            b't' => State::Literal(Kind::True, b"rue"),
            b'f' => State::Literal(Kind::False, b"alse"),
            b'n' => State::Literal(Kind::Null, b"ull"),
            b'-' | b'0'..=b'9' => {
                self.begin_kept();
                self.keep(&[byte]);
                State::Number(match byte {
                    b'-' => Number::Minus,
                    b'0' => Number::Zero,
                    _ => Number::Integer,
                })
            }
            _ => State::Invalid,
        };
    }

    fn open(&mut self, object: bool) {
        if self.depth == DEPTH_MAX {
            self.state = State::Invalid;
            return;
        }
        self.depth += 1;
        self.objects = (self.objects << 1) | u128::from(object);
        if !self.places.is_empty() {
            let places = std::mem::take(&mut self.places);
            self.frames.push(Frame { depth: self.depth, places, start: self.start, index: 0 });
        }
        self.state = if object { State::NameOrEnd } else { State::ValueOrEnd };
    }

    fn close(&mut self, sink: &mut impl Sink) {
        let kind = if self.in_object() { Kind::Object } else { Kind::Array };
        self.places.clear();
        if self.frames.last().is_some_and(|frame| frame.depth == self.depth)
            && let Some(frame) = self.frames.pop()
        {
            (self.places, self.start) = (frame.places, frame.start);
        }
        self.depth -= 1;
        self.objects >>= 1;
        self.at += 1;
        self.end_of_value(kind, sink);
    }

    fn in_object(&self) -> bool {
        self.objects & 1 == 1
    }

    fn next_element(&mut self) {
        self.state = State::Value;
        self.places = match self.frames.last_mut() {
            Some(frame) if frame.depth == self.depth => {
                frame.index += 1;
                self.pointers.element(&frame.places, frame.index - 1)
            }
            _ => Places::new(),
        };
    }

    fn end_of_string(&mut self, name: bool, sink: &mut impl Sink) {
        if !name {
            if let Some(texts) = &mut self.texts {
                let place = |at| usize::try_from(at).unwrap_or(usize::MAX);
                texts.push((place(self.start), place(self.at)));
            }
            return self.end_of_value(Kind::Text, sink);
        }
        self.state = State::Colon;
        let found = match self.frames.last() {
            Some(frame) if frame.depth == self.depth && !self.overlong => {
                self.pointers.member(&frame.places, &self.kept)
            }
            _ => Places::new(),
        };
        self.places = found;
    }

    /// A value has ended at `at`.
    fn end_of_value(&mut self, kind: Kind, sink: &mut impl Sink) {
        self.state = if self.depth == 0 { State::End } else { State::Comma };
        if self.places.is_empty() {
            return;
        }
        let places = std::mem::take(&mut self.places);
        let number: &[u8] =
            if kind == Kind::Number && !self.overlong { &self.kept } else { Default::default() };
        for pointer in self.pointers.ends(&places) {
            let text_bytes = if kind == Kind::Text { self.text_bytes } else { 0 };
            sink(FoundValue { pointer, kind, start: self.start, end: self.at, number, text_bytes });
        }
    }

    fn literal(&mut self, kind: Kind, rest: &'static [u8], byte: u8, sink: &mut impl Sink) {
        match rest.split_first() {
            Some((expected, [])) if *expected == byte => {
                self.at += 1;
                self.end_of_value(kind, sink);
            }
            Some((expected, rest)) if *expected == byte => self.state = State::Literal(kind, rest),
            _ => self.state = State::Invalid,
        }
    }

    /// Bytes of a text or a name, without escapes.
    fn text(&mut self, name: bool, text: &[u8]) {
        if text.iter().any(|byte| *byte < 0x20) {
            self.state = State::Invalid;
        } else if name {
            self.keep(text);
        } else {
            self.text_bytes += text.len() as u64;
        }
    }

    fn escape(&mut self, name: bool, byte: u8) {
        let char = match byte {
            b'"' | b'\\' | b'/' => byte,
            b'b' => 0x08,
            b'f' => 0x0C,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                self.unit = 0;
                self.state = State::Unit { name, left: 4 };
                return;
            }
            _ => {
                self.state = State::Invalid;
                return;
            }
        };
        self.state = State::String { name };
        if name {
            self.keep(&[char]);
        } else {
            self.text_bytes += 1;
        }
    }

    fn unit(&mut self, name: bool, left: u8, byte: u8) {
        let Some(digit) = char::from(byte).to_digit(16) else {
            self.state = State::Invalid;
            return;
        };
        self.unit = self.unit * 16 + digit;
        if left > 1 {
            self.state = State::Unit { name, left: left - 1 };
            return;
        }
        self.state = State::String { name };
        match (name, char::from_u32(self.unit)) {
            (true, Some(char)) => {
                let mut utf8 = [0; 4];
                let utf8 = char.encode_utf8(&mut utf8);
                self.keep(utf8.as_bytes());
            }
            // No pointer has to name a member with a character beyond the first 2^16 escaped.
            (true, None) => self.overlong = true,
            (false, Some(char)) => self.text_bytes += char.len_utf8() as u64,
            // One half of a pair, which together is four bytes.
            (false, None) => self.text_bytes += 2,
        }
    }

    fn begin_kept(&mut self) {
        self.kept.clear();
        self.overlong = false;
    }

    /// Keeps bytes of a name or a number, up to the longest that may matter.
    fn keep(&mut self, bytes: &[u8]) {
        let max = if matches!(self.state, State::Number(_)) || self.state == State::Value {
            NUMBER_BYTES_MAX
        } else {
            POINTER_BYTES_MAX
        };
        if self.overlong || self.kept.len() + bytes.len() > max {
            self.overlong = true;
        } else {
            self.kept.extend_from_slice(bytes);
        }
    }
}
