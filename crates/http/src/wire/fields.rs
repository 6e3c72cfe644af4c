//! Header fields as one block of bytes: the head as it arrived, followed by the fields that were
//! added. Knows nothing about requests or replies.
//!
//! A field that arrived is a range of the block and is never copied on its own. Removing a field
//! marks it; adding one appends a line. Writing the fields copies the unmarked ranges, adjacent
//! ones together. The memory comes from the worker and goes back to it.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::budget::Charge;
use super::known::{Known, KnownSet, Name};

/// Maximum blocks that a worker keeps for reuse, and the largest one that it keeps.
const SPARE_BLOCKS_MAX: usize = 64;
const SPARE_BYTES_MAX: usize = 16 << 10;
/// The capacity that most heads need.
const BLOCK_BYTES: usize = 1 << 10;
const BLOCK_LINES: usize = 24;

/// Fields whose values hardly ever come twice. In HPACK's table they would displace the others, and
/// h2 compares each with all values that the table has under the name. The only other form that it
/// writes is the never-indexed one (RFC 7541, 6.2.3), which whoever passes the field on keeps.
const UNIQUE: KnownSet = KnownSet::of(&[Known::RequestId, Known::TraceParent, Known::RateLimit]);

thread_local! {
    #[allow(clippy::vec_box, reason = "a block is handed on as its box")]
    static SPARE: RefCell<Vec<Box<Block>>> = const { RefCell::new(Vec::new()) };
}

struct Block {
    text: Vec<u8>,
    lines: Vec<Line>,
    /// The known names among the fields.
    present: KnownSet,
    /// Charged with the bytes of the head that arrived.
    head_charge: Charge,
}

static EMPTY: Block = Block {
    text: Vec::new(),
    lines: Vec::new(),
    present: KnownSet::of(&[]),
    head_charge: Charge::nothing(),
};

/// An ordered list of header fields. A single pointer, since requests and replies are moved often;
/// null while there is no field.
#[derive(Default)]
pub struct Fields(Option<Box<Block>>);

/// A range of a block. Unlike `Range`, it is `Copy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    start: u32,
    end: u32,
}

/// A field's line, and the positions of its name and value.
#[derive(Clone, Copy, Debug)]
struct Line {
    /// The line from the first byte of the name to the start of the next line.
    whole: Span,
    value: Span,
    name_bytes: u32,
    known: Known,
    dropped: bool,
}

impl Span {
    pub(crate) fn new(range: Range<usize>) -> Self {
        // No head comes near four gigabytes.
        let at = |place| u32::try_from(place).unwrap_or(u32::MAX);
        Self { start: at(range.start), end: at(range.end) }
    }

    #[inline]
    pub(crate) fn of(self, text: &[u8]) -> &[u8] {
        text.get(self.start as usize..self.end as usize).unwrap_or_default()
    }
}

impl Fields {
    /// No fields.
    #[must_use]
    #[inline]
    pub const fn new() -> Self {
        Self(None)
    }

    #[inline]
    fn block(&self) -> &Block {
        self.0.as_deref().unwrap_or(&EMPTY)
    }

    #[inline]
    fn block_mut(&mut self) -> &mut Block {
        self.0.get_or_insert_with(Block::spare)
    }

    /// No fields, in a block that holds the bytes of a head. Its lines are added with a
    /// [`LineIndex`].
    pub(crate) fn of_head(head: &[u8]) -> Self {
        let mut fields = Self::new();
        let block = fields.block_mut();
        block.text.extend_from_slice(head);
        block.head_charge.set(head.len());
        fields
    }

    /// Adds the lines of the head; `lines` is a hint at their number.
    pub(crate) fn line_index(&mut self, lines: usize) -> LineIndex<'_> {
        let block = self.block_mut();
        block.lines.reserve(lines);
        LineIndex(block)
    }

    /// Stores a text next to the fields, such as a target or a reason phrase.
    pub(crate) fn keep(&mut self, text: &[u8]) -> Span {
        let block = self.block_mut();
        let start = block.text.len();
        block.text.extend_from_slice(text);
        Span::new(start..block.text.len())
    }

    /// A text that was stored, or a part of the head.
    #[inline]
    pub(crate) fn kept(&self, span: Span) -> &[u8] {
        span.of(&self.block().text)
    }

    /// The known names among the fields.
    #[must_use]
    #[inline]
    pub fn present(&self) -> KnownSet {
        self.block().present
    }

    /// All fields, with names in the case in which they arrived.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let Block { text, .. } = self.block();
        self.lines().map(|line| (line.name(text), line.value.of(text)))
    }

    /// The value of the first field with this name.
    #[must_use]
    #[inline]
    pub fn get<'n>(&self, name: impl Into<Name<'n>>) -> Option<&[u8]> {
        self.get_all(name).next()
    }

    /// The values of all fields with this name.
    pub fn get_all<'f, 'n, N: Into<Name<'n>>>(
        &'f self,
        name: N,
    ) -> impl DoubleEndedIterator<Item = &'f [u8]> + use<'f, 'n, N> {
        let name = name.into();
        let Block { text, lines, present, .. } = self.block();
        let lines = if present.has(name.known) { lines.as_slice() } else { &[] };
        lines.iter().filter(move |line| line.is(name, text)).map(|line| line.value.of(text))
    }

    /// Whether there is a field with this name.
    #[must_use]
    pub fn has<'n>(&self, name: impl Into<Name<'n>>) -> bool {
        let name = name.into();
        let Block { text, present, .. } = self.block();
        present.has(name.known)
            && (name.known != Known::Other || self.lines().any(|line| line.is(name, text)))
    }

    /// Whether there are no fields.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.lines().next().is_none()
    }

    /// Adds a field, even if there are others with its name.
    pub fn append<'n>(&mut self, name: impl Into<Name<'n>>, value: impl AsRef<[u8]>) {
        self.append_with(name, |out| out.extend_from_slice(value.as_ref()));
    }

    /// Adds a field with the value of the first field named `other`, if there is one.
    pub fn append_value_of(&mut self, name: Known, other: Known) {
        let line = self.lines().find(|line| line.known == other).copied();
        if let Some(Line { value: Span { start, end }, .. }) = line {
            self.append_with(name, |out| out.extend_from_within(start as usize..end as usize));
        }
    }

    /// Adds a field with the value that `write` appends: visible bytes and inner blanks, no line
    /// end.
    pub fn append_with<'n>(&mut self, name: impl Into<Name<'n>>, write: impl FnOnce(&mut Vec<u8>)) {
        let name = name.into();
        let Block { text, lines, present, .. } = self.block_mut();
        let start = text.len();
        if let Some(prefix) = name.prefix {
            text.extend_from_slice(prefix);
        } else {
            text.extend_from_slice(name.text);
            text.extend_from_slice(b": ");
        }
        let value = text.len();
        write(text);
        let end = text.len();
        debug_assert!(
            text.get(value..)
                .is_some_and(|value| !value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)))
        );
        text.extend_from_slice(b"\r\n");
        let (whole, name_bytes) = (Span::new(start..text.len()), Span::new(0..name.text.len()).end);
        lines.push(Line {
            whole,
            value: Span::new(value..end),
            name_bytes,
            known: name.known,
            dropped: false,
        });
        present.insert(name.known);
    }

    /// Replaces all fields with this name.
    pub fn set<'n>(&mut self, name: impl Into<Name<'n>>, value: impl AsRef<[u8]>) {
        let name = name.into();
        self.remove(name);
        self.append(name, value);
    }

    /// Removes all fields with this name. Returns whether there were any.
    pub fn remove<'n>(&mut self, name: impl Into<Name<'n>>) -> bool {
        let name = name.into();
        let Some(Block { text, lines, present, .. }) =
            self.0.as_deref_mut().filter(|block| block.present.has(name.known))
        else {
            return false;
        };
        let mut found = false;
        for line in lines.iter_mut().filter(|line| line.is(name, text)) {
            line.dropped = true;
            found = true;
        }
        if name.known != Known::Other {
            present.remove(name.known);
        }
        found
    }

    /// Makes equal `Content-Length` fields one: the next reader may not accept two (RFC 9110, 8.6).
    pub(super) fn merge_lengths(&mut self) {
        if !self.has(Known::ContentLength) {
            return;
        }
        let mut lengths = self.get_all(Known::ContentLength);
        let first = lengths.next();
        let are_equal = lengths.all(|length| Some(length) == first);
        drop(lengths);
        if are_equal {
            self.keep_first(Known::ContentLength);
        }
    }

    /// Removes all fields with this name but the first.
    pub(crate) fn keep_first(&mut self, name: Known) {
        if self.get_all(name).nth(1).is_none() {
            return;
        }
        let first = self.get(name).unwrap_or_default().to_vec();
        self.set(name, first);
    }

    /// Removes all fields with these names.
    pub fn remove_all(&mut self, names: KnownSet) {
        let Some(Block { lines, present, .. }) =
            self.0.as_deref_mut().filter(|block| block.present.meets(names))
        else {
            return;
        };
        for line in
            lines.iter_mut().filter(|line| line.known != Known::Other && names.has(line.known))
        {
            line.dropped = true;
            present.remove(line.known);
        }
    }

    /// Removes the fields for which `keep` returns false. It is given the known name, the name as
    /// it arrived, and the value.
    pub fn retain(&mut self, mut keep: impl FnMut(Known, &[u8], &[u8]) -> bool) {
        let Some(Block { text, lines, present: before, .. }) = self.0.as_deref_mut() else {
            return;
        };
        let mut present = KnownSet::default();
        for line in lines.iter_mut().filter(|line| !line.dropped) {
            line.dropped = !keep(line.known, line.name(text), line.value.of(text));
            if !line.dropped {
                present.insert(line.known);
            }
        }
        *before = present;
    }

    /// Appends all fields to `out` in the form of HTTP/1.1, one line each.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let Block { text, .. } = self.block();
        let mut run = Span::default();
        for line in self.lines() {
            if line.whole.start != run.end {
                out.extend_from_slice(run.of(text));
                run = line.whole;
            }
            run.end = line.whole.end;
        }
        out.extend_from_slice(run.of(text));
    }

    /// The fields as a map, for HTTP/2. Fields that are not valid there are left out, and those of
    /// [`UNIQUE`] are marked so that their values don't get into HPACK's table.
    #[must_use]
    pub fn to_map(&self) -> HeaderMap {
        let Block { text, lines, .. } = self.block();
        let mut map = HeaderMap::with_capacity(lines.len());
        for line in self.lines() {
            // A known name need not be checked, hashed for its number and, if `http` does not know
            // it, allocated.
            let name = match line.known.header_name() {
                Some(known) => Ok(known.clone()),
                None => HeaderName::from_bytes(line.name(text)),
            };
            let value = HeaderValue::from_bytes(line.value.of(text));
            if let (Ok(name), Ok(mut value)) = (name, value) {
                value.set_sensitive(UNIQUE.has(line.known));
                map.append(name, value);
            }
        }
        map
    }

    #[inline]
    fn lines(&self) -> impl Iterator<Item = &Line> {
        self.block().lines.iter().filter(|line| !line.dropped)
    }
}

/// Adds the lines of a head to its fields.
pub(crate) struct LineIndex<'f>(&'f mut Block);

impl LineIndex<'_> {
    /// Adds a line: the positions of its name and its value, and the start of the next line.
    pub(crate) fn push(&mut self, name: Range<usize>, value: Range<usize>, next: usize) {
        let Block { text, lines, present, .. } = &mut *self.0;
        let name = Span::new(name);
        let known = Known::of(name.of(text));
        present.insert(known);
        let whole = Span { start: name.start, ..Span::new(0..next) };
        lines.push(Line {
            whole,
            value: Span::new(value),
            name_bytes: name.end - name.start,
            known,
            dropped: false,
        });
    }
}

impl Block {
    /// An empty block: a reused or a new one.
    fn spare() -> Box<Self> {
        let spare = SPARE.try_with(|spare| spare.borrow_mut().pop()).ok().flatten();
        spare.unwrap_or_else(|| {
            let (text, lines) = (Vec::with_capacity(BLOCK_BYTES), Vec::with_capacity(BLOCK_LINES));
            Box::new(Self {
                text,
                lines,
                present: KnownSet::default(),
                head_charge: Charge::nothing(),
            })
        })
    }
}

impl Line {
    #[inline]
    fn name<'t>(&self, text: &'t [u8]) -> &'t [u8] {
        Span { end: self.whole.start + self.name_bytes, ..self.whole }.of(text)
    }

    #[inline]
    fn is(&self, name: Name<'_>, text: &[u8]) -> bool {
        !self.dropped
            && self.known == name.known
            && (name.known != Known::Other || self.name(text).eq_ignore_ascii_case(name.text))
    }
}

/// Whether a field's value begins or ends with a blank: malformed in HTTP/2 (RFC 9113, 8.2.1), and
/// no part of the value in HTTP/1.
#[must_use]
pub fn is_padded(value: &[u8]) -> bool {
    let blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    blank(value.first()) || blank(value.last())
}

impl From<&HeaderMap> for Fields {
    fn from(map: &HeaderMap) -> Self {
        let mut fields = Self::new();
        for (name, value) in map {
            // HTTP/2 allows no blanks around a value, and HTTP/1 would not show them.
            fields.append(name, value.as_bytes().trim_ascii());
        }
        if let Some(block) = &mut fields.0 {
            block.head_charge.set(block.text.len());
        }
        fields
    }
}

impl Clone for Fields {
    fn clone(&self) -> Self {
        let mut copy = Self::new();
        if let Some(block) = &self.0 {
            let Block { text, lines, present, head_charge } = copy.block_mut();
            text.extend_from_slice(&block.text);
            lines.extend_from_slice(&block.lines);
            *present = block.present;
            head_charge.set(text.len());
        }
        copy
    }
}

impl Drop for Fields {
    fn drop(&mut self) {
        let Some(mut block) =
            self.0.take().filter(|block| block.text.capacity() <= SPARE_BYTES_MAX)
        else {
            return;
        };
        block.text.clear();
        block.lines.clear();
        block.present = KnownSet::default();
        block.head_charge.set(0);
        // If the thread is exiting, its thread-locals are gone and the block is freed.
        let _ = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < SPARE_BLOCKS_MAX {
                spare.push(block);
            }
        });
    }
}

impl fmt::Debug for Fields {
    /// Shows names only: values may be secrets.
    #[inline]
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_list()
            .entries(self.iter().map(|(name, _)| String::from_utf8_lossy(name)))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(fields: &Fields) -> String {
        let mut out = Vec::new();
        fields.write(&mut out);
        String::from_utf8(out).unwrap()
    }

    /// Fields as they arrive: `Host: a`, `X-Key:  one`, `x-KEY: two`, `Te: trailers`.
    fn arrived() -> Fields {
        let head =
            b"GET / HTTP/1.1\r\nHost: a\r\nX-Key:  one \r\nx-KEY: two\r\nTe: trailers\r\n\r\n";
        let mut fields = Fields::of_head(head);
        let mut index = fields.line_index(4);
        index.push(16..20, 22..23, 25);
        index.push(25..30, 33..36, 39);
        index.push(39..44, 46..49, 51);
        index.push(51..53, 55..63, 65);
        fields
    }

    #[test]
    fn fields_are_written_as_they_came() {
        assert_eq!(
            written(&arrived()),
            "Host: a\r\nX-Key:  one \r\nx-KEY: two\r\nTe: trailers\r\n"
        );
        assert_eq!(written(&Fields::new()), "");
    }

    #[test]
    fn names_are_found_in_any_case_and_in_order() {
        let fields = arrived();
        assert_eq!(fields.get("x-key"), Some(b"one".as_slice()));
        assert_eq!(fields.get_all("X-Key").collect::<Vec<_>>(), [b"one", b"two"]);
        assert_eq!(fields.get_all("x-key").next_back(), Some(b"two".as_slice()));
        assert_eq!(fields.get(Known::Host), Some(b"a".as_slice()));
        assert!(
            fields.has(Known::Te)
                && fields.has("te")
                && !fields.has("x-other")
                && !fields.has(Known::Upgrade)
        );
    }

    #[test]
    fn removed_fields_are_not_written_and_added_ones_come_last() {
        let mut fields = arrived();
        assert!(
            fields.remove("x-key") && !fields.remove("x-key") && !fields.remove(Known::Upgrade)
        );
        fields.append("x-b", "1");
        fields.append("x-b", "2");
        fields.set(Known::Host, "b");
        assert_eq!(written(&fields), "Te: trailers\r\nx-b: 1\r\nx-b: 2\r\nhost: b\r\n");
        assert_eq!(fields.get(Known::Host), Some(b"b".as_slice()));
        fields.set("x-b", "3");
        fields.remove_all(KnownSet::of(&[Known::Te, Known::Upgrade]));
        assert_eq!(written(&fields), "host: b\r\nx-b: 3\r\n");
        assert!(!fields.has(Known::Te));
        fields
            .retain(|known, name, value| known == Known::Host || (name == b"x-b" && value == b"4"));
        assert_eq!(written(&fields), "host: b\r\n");
        assert!(!fields.is_empty());
        fields.remove(Known::Host);
        assert!(fields.is_empty());
    }

    #[test]
    fn a_map_and_back_is_the_same() {
        let map = arrived().to_map();
        assert_eq!(map.get_all("x-key").iter().collect::<Vec<_>>(), ["one", "two"]);
        assert_eq!(Fields::from(&map).to_map(), map);
        assert_eq!(arrived().clone().to_map(), map);
    }

    #[test]
    fn values_that_hardly_come_twice_stay_out_of_the_table_of_http2() {
        let mut fields = arrived();
        fields.append(Known::RequestId, "1");
        fields.append(Known::TraceParent, "00-1-1-00");
        fields.append(Known::RateLimit, "\"a\";r=1");
        fields.append(Known::RateLimit, "\"b\";r=1");
        let map = fields.to_map();
        let unique = map.iter().filter(|(_, value)| value.is_sensitive());
        let names: Vec<&str> = unique.map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["x-request-id", "traceparent", "ratelimit", "ratelimit"]);
        assert_eq!(map.len(), fields.iter().count());
    }

    #[test]
    fn equal_lengths_become_one_and_others_stay() {
        let merged = |lengths: &[&str]| {
            let mut fields = Fields::new();
            lengths.iter().for_each(|length| fields.append(Known::ContentLength, length));
            fields.merge_lengths();
            fields.get_all(Known::ContentLength).map(<[u8]>::to_vec).collect::<Vec<_>>()
        };
        assert_eq!(merged(&[]), Vec::<Vec<u8>>::new());
        assert_eq!(merged(&["5"]), [b"5"]);
        assert_eq!(merged(&["5", "5", "5"]), [b"5"]);
        assert_eq!(merged(&["5", "6"]), [b"5", b"6"]);
    }

    #[test]
    fn text_is_kept_beside_the_fields() {
        let mut fields = arrived();
        let target = fields.keep(b"/a?b");
        fields.append("x", "y");
        assert_eq!(fields.kept(target), b"/a?b");
        assert_eq!(fields.kept(Span::new(4..5)), b"/");
        assert!(written(&fields).ends_with("Te: trailers\r\nx: y\r\n"));
    }

    #[test]
    fn memory_goes_back_to_the_worker_within_bounds() {
        drop((0..2 * SPARE_BLOCKS_MAX).map(|_| arrived()).collect::<Vec<_>>());
        let kept = SPARE.with_borrow(|spare| {
            spare
                .iter()
                .all(|block| block.text.is_empty() && block.lines.is_empty())
                .then_some(spare.len())
        });
        assert_eq!(kept, Some(SPARE_BLOCKS_MAX));
        let before = SPARE.with_borrow(Vec::len);
        let mut large = Fields::new();
        large.append("x", vec![b'x'; 2 * SPARE_BYTES_MAX]);
        drop(large);
        assert_eq!(SPARE.with_borrow(Vec::len), before - 1);
    }
}
