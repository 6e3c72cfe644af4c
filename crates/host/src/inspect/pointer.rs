//! JSON pointers (RFC 6901), many of them matched at once.

use std::fmt;

use smallvec::SmallVec;

/// Maximum size of a pointer, in bytes.
pub(crate) const POINTER_BYTES_MAX: usize = 256;
/// Maximum number of tokens of a pointer.
const TOKENS_MAX: usize = 16;

/// A pointer: the names and indices that lead to a value from the document's root. `*` stands for
/// every element of an array, which RFC 6901 does not have. A member called `*` can't be named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pointer {
    tokens: Vec<String>,
}

/// Why a text is not a pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PointerError {
    /// It is neither empty nor begins with a slash.
    #[error("a pointer that begins with a slash, or an empty one for the whole document")]
    Start,
    /// `~` is only allowed in `~0` and `~1`.
    #[error("~0 for a tilde and ~1 for a slash")]
    Escape,
    /// Too many tokens or bytes.
    #[error("at most {TOKENS_MAX} tokens and {POINTER_BYTES_MAX} bytes")]
    TooLong,
}

impl Pointer {
    /// Reads a pointer.
    ///
    /// # Errors
    /// What was expected instead.
    pub fn parse(text: &str) -> Result<Self, PointerError> {
        if text.is_empty() {
            return Ok(Self { tokens: Vec::new() });
        }
        let tokens = text.strip_prefix('/').ok_or(PointerError::Start)?;
        if text.len() > POINTER_BYTES_MAX || tokens.split('/').count() > TOKENS_MAX {
            return Err(PointerError::TooLong);
        }
        Ok(Self { tokens: tokens.split('/').map(unescaped).collect::<Result<_, _>>()? })
    }

    /// Its tokens, unescaped.
    pub(super) fn tokens(&self) -> &[String] {
        &self.tokens
    }

    /// Whether it names one place, and not every element of some array.
    #[must_use]
    pub fn is_single(&self) -> bool {
        self.tokens.iter().all(|token| token != "*")
    }

    /// The pointers to what is on the way: the document first, itself last.
    pub(super) fn ancestry(&self) -> impl Iterator<Item = Self> + '_ {
        (0..=self.tokens.len())
            .map(|count| Self { tokens: self.tokens.iter().take(count).cloned().collect() })
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tokens
            .iter()
            .try_for_each(|token| write!(out, "/{}", token.replace('~', "~0").replace('/', "~1")))
    }
}

fn unescaped(token: &str) -> Result<String, PointerError> {
    let mut text = String::with_capacity(token.len());
    let mut chars = token.chars();
    while let Some(char) = chars.next() {
        text.push(match char {
            '~' => match chars.next() {
                Some('0') => '~',
                Some('1') => '/',
                _ => return Err(PointerError::Escape),
            },
            char => char,
        });
    }
    Ok(text)
}

/// Maximum number of times that one place of a value is listed.
const PLACE_TIMES_MAX: usize = 2;

/// The places in a tree of pointers that a value is at: more than one if a `*` and an index both
/// lead to it, or if it may be taken for another one.
pub(super) type Places = SmallVec<[u16; 2]>;

/// Pointers as a tree, so that a document is read once for all of them.
#[derive(Debug, Default)]
pub struct Pointers {
    nodes: Vec<Node>,
    /// Whether a member whose name differs from the pointer's in case is a place as well, twice.
    any_case: bool,
}

#[derive(Debug, Default)]
struct Node {
    /// The nodes to which a name or an index leads.
    children: Vec<(Box<str>, u16)>,
    /// The node to which each element of an array leads.
    each: Option<u16>,
    /// The pointers that end here, by their index.
    ends: SmallVec<[u16; 1]>,
}

impl Pointers {
    /// The tree of these pointers. They are told apart by their index.
    pub fn new<'p>(pointers: impl IntoIterator<Item = &'p Pointer>) -> Self {
        let mut tree = Self { nodes: vec![Node::default()], any_case: false };
        for (index, pointer) in pointers.into_iter().enumerate() {
            let end = pointer.tokens.iter().fold(0, |node, token| tree.child(node, token));
            if let Some(node) = tree.nodes.get_mut(usize::from(end)) {
                node.ends.push(u16::try_from(index).unwrap_or(u16::MAX));
            }
        }
        tree
    }

    /// The same for a client's document. Go and .NET take `To` for `to`, and other servers don't,
    /// so a member whose name differs in case is found twice, as if it were there twice: only the
    /// upstream knows whether it is.
    pub fn case_insensitive<'p>(pointers: impl IntoIterator<Item = &'p Pointer>) -> Self {
        Self { any_case: true, ..Self::new(pointers) }
    }

    /// The child of a node, added if it has none.
    fn child(&mut self, node: u16, token: &str) -> u16 {
        let next = u16::try_from(self.nodes.len()).unwrap_or(u16::MAX);
        let Some(parent) = self.nodes.get_mut(usize::from(node)) else { return node };
        let known = if token == "*" {
            parent.each
        } else {
            parent.children.iter().find(|(name, _)| **name == *token).map(|(_, child)| *child)
        };
        if let Some(child) = known {
            return child;
        }
        if token == "*" {
            parent.each = Some(next);
        } else {
            parent.children.push((token.into(), next));
        }
        self.nodes.push(Node::default());
        next
    }

    /// Where the document itself is.
    pub(super) fn root() -> Places {
        Places::from_slice(&[0])
    }

    /// Where the member `name` of an object is.
    pub(super) fn member(&self, places: &Places, name: &[u8]) -> Places {
        let mut found = Places::new();
        let nodes = places.iter().filter_map(|place| self.node(*place));
        for (token, child) in nodes.flat_map(|node| node.children.iter()) {
            let times = match token.as_bytes() {
                token if token == name => 1,
                _ if self.any_case && is_alike(token, name) => PLACE_TIMES_MAX,
                _ => continue,
            };
            let known = found.iter().filter(|place| *place == child).count();
            found.extend(std::iter::repeat_n(*child, times.min(PLACE_TIMES_MAX - known)));
        }
        found
    }

    /// Where the element of an array is.
    pub(super) fn element(&self, places: &Places, index: u64) -> Places {
        let mut found = Places::new();
        for node in places.iter().filter_map(|place| self.node(*place)) {
            found.extend(node.each);
            let named = |token: &str| token.parse() == Ok(index) && is_index(token);
            let child = node.children.iter().find(|(token, _)| named(token));
            found.extend(child.map(|(_, child)| *child));
        }
        found
    }

    /// The indices of the pointers that lead to a value.
    pub(super) fn ends<'p>(&'p self, places: &'p Places) -> impl Iterator<Item = usize> + 'p {
        let nodes = places.iter().filter_map(|place| self.node(*place));
        nodes.flat_map(|node| node.ends.iter().map(|end| usize::from(*end)))
    }

    fn node(&self, place: u16) -> Option<&Node> {
        self.nodes.get(usize::from(place))
    }
}

/// Whether a server that ignores the case of names takes `name` for `token`. Go folds all letters
/// of Unicode: `\u{17f}` (a long s) is an `s`.
fn is_alike(token: &str, name: &[u8]) -> bool {
    if token.is_ascii() && name.is_ascii() {
        return token.as_bytes().eq_ignore_ascii_case(name);
    }
    let folded = |text: &str| -> String {
        text.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect()
    };
    std::str::from_utf8(name).is_ok_and(|name| folded(name) == folded(token))
}

/// Whether it is an index, without a sign or leading zeros (RFC 6901, 4).
fn is_index(token: &str) -> bool {
    token == "0" || (!token.starts_with('0') && token.bytes().all(|byte| byte.is_ascii_digit()))
}
