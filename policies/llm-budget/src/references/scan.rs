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

/// An object or a list that has begun and not ended.
#[derive(Clone, Copy, Debug, Default)]
struct Level {
    is_object: bool,
    /// In an object: whether the next text is a name, and the name of the member that is read.
    awaits_name: bool,
    member: Name,
    /// The name under which it stands itself, be it in a list of that name.
    name: Name,
    is_item: bool,
    /// It has the address or the id of something.
    refers: bool,
    /// It has a type, all of them are types of pictures, one is a type of input.
    has_type: bool,
    is_image: bool,
    is_input: bool,
    /// It has a type of tools that the provider runs, or that of an item that is stored.
    is_tool: bool,
    is_stored: bool,
    has_id: bool,
    has_content: bool,
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
                    self.text(text);
                }
                b'{' | b'[' => {
                    if self.levels.len() >= DEPTH_MAX {
                        return;
                    }
                    self.open(*first == b'{');
                }
                b'}' | b']' => self.close(),
                b',' => {
                    if let Some(level) = self.levels.last_mut() {
                        level.awaits_name = level.is_object;
                    }
                }
                _ => {}
            }
        }
    }

    fn open(&mut self, is_object: bool) {
        let depth = self.levels.len();
        let mut level = Level { is_object, awaits_name: is_object, ..Level::default() };
        if let Some(parent) = self.levels.last_mut() {
            level.name = if parent.is_object { parent.member } else { parent.name };
            level.is_item = !parent.is_object;
            parent.has_content |= parent.is_object && parent.member == Name::Content;
            if is_object && parent.is_object {
                match parent.member {
                    Name::Stored | Name::Prompt if depth == ROOT => {
                        self.counts.add(Kind::Stored, 1);
                    }
                    Name::WebSearchOptions if depth == ROOT => self.counts.add(Kind::Tool, 1),
                    Name::Tool if parent.name == Name::Tools && depth <= ITEMS => {
                        self.counts.add(Kind::Tool, 1);
                    }
                    _ => {}
                }
            }
        }
        self.levels.push(level);
    }

    /// A text, be it a name or a value.
    fn text(&mut self, text: &[u8]) {
        let depth = self.levels.len();
        let Some(level) = self.levels.last_mut().filter(|level| level.is_object) else { return };
        if level.awaits_name {
            level.member = Name::of(text);
            level.awaits_name = false;
            return;
        }
        let is_inline = text.starts_with(b"data:");
        match level.member {
            Name::Type => level.add_type(text),
            Name::MimeType => level.add_image(text.starts_with(b"image/")),
            Name::Role => level.has_content = true,
            Name::Content => level.has_content = true,
            _ if text.is_empty() => {}
            Name::Id => level.has_id = true,
            Name::File => level.refers = true,
            Name::ImageUrl => {
                level.refers |= !is_inline;
                level.add_image(true);
            }
            Name::MediaUrl => level.refers |= !is_inline,
            Name::Url => {
                let holds = matches!(level.name, Name::ImageUrl | Name::MediaUrl | Name::Source);
                level.refers |= holds && !is_inline;
            }
            Name::StoredId | Name::Stored if depth == ROOT => self.counts.add(Kind::Stored, 1),
            _ => {}
        }
    }

    fn close(&mut self) {
        let Some(level) = self.levels.pop().filter(|level| level.is_object) else { return };
        let depth = self.levels.len() + 1;
        if level.refers && level.holds_content() {
            if level.is_image || level.name == Name::ImageUrl {
                self.counts.add(Kind::Image, 1);
            } else if level.name == Name::Source && !level.is_item {
                // What it is, is said beside it.
                if let Some(parent) = self.levels.last_mut() {
                    parent.refers = true;
                    parent.is_input = true;
                }
            } else {
                self.counts.add(Kind::File, 1);
            }
        }
        if level.is_item && depth == ITEMS {
            match level.name {
                Name::Tools if level.is_tool => self.counts.add(Kind::Tool, 1),
                Name::McpServers => self.counts.add(Kind::Tool, 1),
                Name::Input if level.is_stored_item() => self.counts.add(Kind::Stored, 1),
                _ => {}
            }
        }
        if level.name == Name::Audio && level.has_id {
            self.counts.add(Kind::Stored, 1);
        }
    }
}

impl Level {
    fn add_type(&mut self, text: &[u8]) {
        self.is_input |= text.starts_with(b"input_");
        self.is_tool |= !CLIENT_TOOLS.iter().any(|tool| text.starts_with(tool));
        self.is_stored |= text == b"item_reference";
        // The type of an object with an address says what kind of address it is.
        if self.name != Name::Source {
            self.add_image(matches!(text, b"image" | b"input_image" | b"image_url"));
        }
    }

    /// Where it is said twice what it is, both must say that it is a picture.
    fn add_image(&mut self, is_image: bool) {
        self.is_image = is_image && (self.is_image || !self.has_type);
        self.has_type = true;
    }

    /// Whether an id or an address in it is one of the API's, and not an argument of somebody's
    /// tool.
    fn holds_content(&self) -> bool {
        let in_list = self.is_item && matches!(self.name, Name::Content | Name::Input);
        let is_part =
            matches!(self.name, Name::ImageUrl | Name::MediaUrl | Name::Source | Name::Output);
        in_list || is_part || self.is_input
    }

    /// Whether it is an item that is stored, with nothing but its id.
    fn is_stored_item(&self) -> bool {
        self.is_stored || (self.has_id && !self.has_type && !self.has_content)
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

/// The first quote or backslash. Eight bytes at a time: pictures in a body are long texts.
fn quote_or_escape(bytes: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    const HIGHS: u64 = u64::from_le_bytes([0x80; 8]);
    const QUOTES: u64 = u64::from_le_bytes([b'"'; 8]);
    const ESCAPES: u64 = u64::from_le_bytes([b'\\'; 8]);
    let has_zero = |word: u64| word.wrapping_sub(ONES) & !word & HIGHS != 0;
    let (words, _) = bytes.as_chunks::<8>();
    let without = words.iter().position(|word| {
        let word = u64::from_le_bytes(*word);
        has_zero(word ^ QUOTES) || has_zero(word ^ ESCAPES)
    });
    let start = without.unwrap_or(words.len()) * 8;
    let rest = bytes.get(start..).unwrap_or_default();
    rest.iter().position(|byte| matches!(byte, b'"' | b'\\')).map(|found| start + found)
}
