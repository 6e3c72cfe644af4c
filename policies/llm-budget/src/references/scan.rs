//! Counts the references in a body of one of the APIs that are known, in one pass and without
//! copying. The proxy has checked that it is JSON.
//!
//! The names of all these APIs are looked for at once. They differ, and a server may understand
//! more than one. Names are compared without case, `_` and `-`: some servers read them in any case,
//! and protocol buffers in two spellings. Where it is not clear what something is, the dearer kind
//! is counted.

use super::{Counts, Kind};

/// Maximum depth to which a body is examined. The proxy takes no deeper document for JSON.
const DEPTH_MAX: usize = 256;
/// Bytes of the longest name that means something, without `_` and `-`.
const NAME_BYTES_MAX: usize = 24;
/// The level of a body's own members, and of the items of lists in them.
const ROOT: usize = 1;
const ITEMS: usize = 3;

/// Types of tools that the client runs, by how they begin. All others are counted, but for
/// Anthropic's `mcp_toolset`: its server is counted.
const CLIENT_TOOLS: [&[u8]; 10] = [
    b"function",
    b"custom",
    b"namespace",
    b"local_shell",
    b"apply_patch",
    b"computer",
    b"bash",
    b"text_editor",
    b"memory",
    b"mcp_toolset",
];

/// The name of a member, as far as it means something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Name {
    #[default]
    Other,
    Type,
    MimeType,
    /// The address of a picture in a text, or in an object with a `url`.
    ImageUrl,
    /// The same of sound and films.
    MediaUrl,
    Url,
    /// Ids and addresses of files.
    File,
    /// Objects with one of them.
    Source,
    Id,
    Role,
    Audio,
    /// Lists of parts of a message.
    Content,
    Input,
    Output,
    Tools,
    McpServers,
    /// Tools by their names, in lists of tools.
    Tool,
    WebSearchOptions,
    /// What is stored, in a text.
    StoredId,
    /// What is stored, in a text or an object.
    Stored,
    /// A stored prompt, if it is an object.
    Prompt,
}

impl Name {
    /// `written` is what is between its quotes.
    fn of(written: &[u8]) -> Self {
        let mut plain = [0; NAME_BYTES_MAX];
        let Some(length) = plain_name(written, &mut plain) else { return Self::Other };
        match plain.get(..length).unwrap_or_default() {
            b"type" => Self::Type,
            b"mimetype" => Self::MimeType,
            b"imageurl" => Self::ImageUrl,
            b"videourl" | b"audiourl" => Self::MediaUrl,
            b"url" => Self::Url,
            b"fileid" | b"fileurl" | b"fileuri" => Self::File,
            b"source" | b"file" | b"filedata" => Self::Source,
            b"id" => Self::Id,
            b"role" => Self::Role,
            b"audio" => Self::Audio,
            b"content" => Self::Content,
            b"input" => Self::Input,
            b"output" => Self::Output,
            b"tools" => Self::Tools,
            b"mcpservers" => Self::McpServers,
            b"googlesearch"
            | b"googlesearchretrieval"
            | b"googlemaps"
            | b"urlcontext"
            | b"filesearch"
            | b"codeexecution"
            | b"enterprisewebsearch"
            | b"retrieval" => Self::Tool,
            b"websearchoptions" => Self::WebSearchOptions,
            b"previousresponseid" | b"cachedcontent" => Self::StoredId,
            b"conversation" | b"container" => Self::Stored,
            b"prompt" => Self::Prompt,
            _ => Self::Other,
        }
    }
}

/// Writes a name in lower case and without escapes, `_` and `-`. Returns its length; `None` if it
/// is longer than all that mean something.
fn plain_name(written: &[u8], plain: &mut [u8; NAME_BYTES_MAX]) -> Option<usize> {
    let mut length = 0;
    let mut rest = written;
    while let [first, after @ ..] = rest {
        let byte;
        (byte, rest) = match (first, after) {
            (b'\\', [b'u', digits @ ..]) => {
                let hex = std::str::from_utf8(digits.get(..4)?).ok()?;
                let code = u32::from_str_radix(hex, 16).ok()?;
                (u8::try_from(code).ok()?, digits.get(4..)?)
            }
            // No name that means something has another escape.
            (b'\\', _) => return None,
            (byte, after) => (*byte, after),
        };
        if !matches!(byte, b'_' | b'-') {
            *plain.get_mut(length)? = byte.to_ascii_lowercase();
            length += 1;
        }
    }
    Some(length)
}

/// What is known of an object or a list, one bit each. Four bytes hold a level, and a body may open
/// half a million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Marks(u16);

impl Marks {
    const OBJECT: Self = Self(1 << 0);
    const ITEM: Self = Self(1 << 1);
    /// It has the address or the id of something.
    const REFERS: Self = Self(1 << 2);
    /// It has a type, all of them are types of pictures, one is a type of input.
    const TYPE: Self = Self(1 << 3);
    const IMAGE: Self = Self(1 << 4);
    const INPUT: Self = Self(1 << 5);
    /// It has a type of tools that the provider runs, or that of an item that is stored.
    const TOOL: Self = Self(1 << 6);
    const STORED: Self = Self(1 << 7);
    const ID: Self = Self(1 << 8);
    const CONTENT: Self = Self(1 << 9);

    fn when(self, holds: bool) -> Self {
        if holds { self } else { Self(0) }
    }
}

/// An object or a list that has begun and not ended.
#[derive(Clone, Copy, Debug, Default)]
struct Level {
    /// In an object: the name of the member that is read.
    member: Name,
    /// The name under which it stands itself, be it in a list of that name.
    name: Name,
    marks: Marks,
}

#[derive(Debug)]
struct Scan {
    levels: Vec<Level>,
    counts: Counts,
}

/// The references of a body.
pub(super) fn count(document: &str) -> Counts {
    let mut scan = Scan { levels: Vec::with_capacity(16), counts: Counts::default() };
    scan.read(document.as_bytes());
    scan.counts
}

impl Scan {
    fn read(&mut self, document: &[u8]) {
        let mut rest = document;
        while let [first, after @ ..] = rest {
            rest = after;
            match first {
                b'"' => {
                    let text;
                    (text, rest) = split_text(after);
                    self.text(text, rest);
                }
                b'{' | b'[' => {
                    if self.levels.len() >= DEPTH_MAX {
                        return;
                    }
                    self.open(*first == b'{');
                }
                b'}' | b']' => self.close(),
                b',' => {}
                _ => {
                    let Some(next) = quote_or_bracket(after) else { return };
                    rest = after.get(next..).unwrap_or_default();
                }
            }
        }
    }

    fn open(&mut self, is_object: bool) {
        let depth = self.levels.len();
        let mut level = Level { marks: Marks::OBJECT.when(is_object), ..Level::default() };
        if let Some(parent) = self.levels.last_mut() {
            if parent.has(Marks::OBJECT) {
                level.name = parent.member;
                parent.mark(Marks::CONTENT.when(parent.member == Name::Content));
                if is_object && depth <= ITEMS {
                    let is_tool = parent.name == Name::Tools;
                    match parent.member {
                        Name::Stored | Name::Prompt if depth == ROOT => {
                            self.counts.add(Kind::Stored, 1);
                        }
                        Name::WebSearchOptions if depth == ROOT => self.counts.add(Kind::Tool, 1),
                        Name::Tool if is_tool => self.counts.add(Kind::Tool, 1),
                        _ => {}
                    }
                }
            } else {
                level.name = parent.name;
                level.mark(Marks::ITEM);
            }
        }
        self.levels.push(level);
    }

    /// A text, be it a name or a value. `after` is what follows it: a colon, if it is a name.
    fn text(&mut self, text: &[u8], after: &[u8]) {
        let depth = self.levels.len();
        let Some(level) = self.levels.last_mut().filter(|level| level.has(Marks::OBJECT)) else {
            return;
        };
        let next = after.iter().find(|byte| !byte.is_ascii_whitespace());
        if next == Some(&b':') {
            level.member = Name::of(text);
            return;
        }
        let is_inline = || text.starts_with(b"data:");
        match level.member {
            Name::Other => {}
            Name::Type => level.add_type(text),
            Name::MimeType => level.add_image(text.starts_with(b"image/")),
            Name::Role | Name::Content => level.mark(Marks::CONTENT),
            _ if text.is_empty() => {}
            Name::Id => level.mark(Marks::ID),
            Name::File => level.mark(Marks::REFERS),
            Name::ImageUrl => {
                level.mark(Marks::REFERS.when(!is_inline()));
                level.add_image(true);
            }
            Name::MediaUrl => level.mark(Marks::REFERS.when(!is_inline())),
            Name::Url => {
                let holds = matches!(level.name, Name::ImageUrl | Name::MediaUrl | Name::Source);
                level.mark(Marks::REFERS.when(holds && !is_inline()));
            }
            Name::StoredId | Name::Stored if depth == ROOT => self.counts.add(Kind::Stored, 1),
            _ => {}
        }
    }

    fn close(&mut self) {
        let Some(level) = self.levels.pop().filter(|level| level.has(Marks::OBJECT)) else {
            return;
        };
        let depth = self.levels.len() + 1;
        if level.has(Marks::REFERS) && level.holds_content() {
            if level.has(Marks::IMAGE) || level.name == Name::ImageUrl {
                self.counts.add(Kind::Image, 1);
            } else if level.name == Name::Source && !level.has(Marks::ITEM) {
                // What it is, is said beside it.
                if let Some(parent) = self.levels.last_mut() {
                    parent.mark(Marks::REFERS);
                    parent.mark(Marks::INPUT);
                }
            } else {
                self.counts.add(Kind::File, 1);
            }
        }
        if level.has(Marks::ITEM) && depth == ITEMS {
            match level.name {
                Name::Tools if level.has(Marks::TOOL) => self.counts.add(Kind::Tool, 1),
                Name::McpServers => self.counts.add(Kind::Tool, 1),
                Name::Input if level.is_stored_item() => self.counts.add(Kind::Stored, 1),
                _ => {}
            }
        }
        if level.name == Name::Audio && level.has(Marks::ID) {
            self.counts.add(Kind::Stored, 1);
        }
    }
}

impl Level {
    fn has(self, mark: Marks) -> bool {
        self.marks.0 & mark.0 != 0
    }

    fn mark(&mut self, mark: Marks) {
        self.marks.0 |= mark.0;
    }

    fn add_type(&mut self, text: &[u8]) {
        self.mark(Marks::INPUT.when(text.starts_with(b"input_")));
        let runs_at_client = CLIENT_TOOLS.iter().any(|tool| text.starts_with(tool));
        self.mark(Marks::TOOL.when(!runs_at_client));
        self.mark(Marks::STORED.when(text == b"item_reference"));
        // The type of an object with an address says what kind of address it is.
        if self.name != Name::Source {
            self.add_image(matches!(text, b"image" | b"input_image" | b"image_url"));
        }
    }

    /// Where it is said twice what it is, both must say that it is a picture.
    fn add_image(&mut self, is_image: bool) {
        let is_image = is_image && (self.has(Marks::IMAGE) || !self.has(Marks::TYPE));
        self.marks.0 &= !Marks::IMAGE.0;
        self.mark(Marks::IMAGE.when(is_image));
        self.mark(Marks::TYPE);
    }

    /// Whether an id or an address in it is one of the API's, and not an argument of somebody's
    /// tool.
    fn holds_content(self) -> bool {
        let in_list = self.has(Marks::ITEM) && matches!(self.name, Name::Content | Name::Input);
        let is_part =
            matches!(self.name, Name::ImageUrl | Name::MediaUrl | Name::Source | Name::Output);
        in_list || is_part || self.has(Marks::INPUT)
    }

    /// Whether it is an item that is stored, with nothing but its id.
    fn is_stored_item(self) -> bool {
        let is_more = self.has(Marks::TYPE) || self.has(Marks::CONTENT);
        self.has(Marks::STORED) || (self.has(Marks::ID) && !is_more)
    }
}

/// What is in a text that has begun, and what follows its closing quote.
fn split_text(bytes: &[u8]) -> (&[u8], &[u8]) {
    let mut at = 0;
    while let Some(found) = bytes.get(at..).and_then(quote_or_escape) {
        at += found;
        if bytes.get(at) == Some(&b'"') {
            let (text, rest) = bytes.split_at(at);
            return (text, rest.get(1..).unwrap_or_default());
        }
        // The character after a backslash belongs to it.
        at += 2;
    }
    (bytes, &[])
}

/// The first quote or backslash.
fn quote_or_escape(bytes: &[u8]) -> Option<usize> {
    position(bytes, |word| zeros(word ^ each(b'"')) | zeros(word ^ each(b'\\')))
}

/// The first quote or bracket in JSON outside of texts. The four brackets have `BRACKET`'s bits in
/// common with bytes that occur only in texts.
fn quote_or_bracket(bytes: &[u8]) -> Option<usize> {
    const BRACKET: u8 = b'{' & b'}' & b'[' & b']';
    let brackets = |word: u64| zeros(!word & each(BRACKET));
    position(bytes, |word| zeros(word ^ each(b'"')) | brackets(word))
}

/// Eight times the same byte.
const fn each(byte: u8) -> u64 {
    u64::from_le_bytes([byte; 8])
}

/// The highest bit of each byte that is zero. A byte above one that is zero may have it, too.
const fn zeros(word: u64) -> u64 {
    word.wrapping_sub(each(1)) & !word & each(0x80)
}

/// Where the first byte is that `find` marks with its highest bit. It is given eight bytes at a
/// time: there may be a picture in a text.
fn position(bytes: &[u8], find: impl Fn(u64) -> u64) -> Option<usize> {
    let (words, last) = bytes.as_chunks::<8>();
    let first = |word: &[u8; 8]| {
        let found = find(u64::from_le_bytes(*word));
        (found != 0).then(|| found.trailing_zeros() as usize / 8)
    };
    for (index, word) in words.iter().enumerate() {
        if let Some(found) = first(word) {
            return Some(8 * index + found);
        }
    }
    let mut word = [0; 8];
    word.get_mut(..last.len())?.copy_from_slice(last);
    first(&word).map(|found| bytes.len() - last.len() + found)
}
