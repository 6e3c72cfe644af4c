//! Why a request is refused, and what the client is told. Every reason is here: the other modules
//! only say what they found.

use weir_policy::Denial;

/// Maximum number of characters that a reason repeats of a client's own words.
const SHOWN_CHARS_MAX: usize = 64;
/// Maximum length of the description of a JSON error, in characters.
const JSON_CHARS_MAX: usize = 256;

/// A request that is not let through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It is no GraphQL request that can be read in only one way.
    Unreadable(String),
    /// The proxy did not read its body.
    TooLarge {
        /// Bytes of the body, if known.
        bytes: Option<String>,
    },
    /// The texts of its queries are longer than this together.
    Bytes { max: usize },
    /// A document is not what the specification allows.
    Syntax {
        /// The line, from 1.
        line: usize,
        /// The column, from 1, in characters.
        column: usize,
        expected: &'static str,
        found: String,
    },
    /// The documents of the request have more tokens than this together.
    Tokens { max: u64 },
    /// A document has more aliases than this.
    Aliases { max: u64 },
    /// A document has more directives than this.
    Directives { max: u64 },
    /// A field does not say how many items it returns, and has to.
    Unsized(String),
    /// Selections, fragments or values are inside one another further than can be followed.
    Nested { max: u32 },
    /// Fields are inside one another further than is allowed.
    Depth { found: u64, max: u64 },
    /// The same fragments are used in so many places that adding them up takes too long.
    Repetition,
    /// It costs more than a request may.
    Cost { found: u64, max: u64 },
    /// A batch has too many operations.
    Operations { found: usize, max: usize },
    /// It asks for the schema.
    Introspection,
    /// A fragment contains itself.
    Cycle(String),
    /// A fragment is used and not defined.
    NoFragment(String),
    /// Two fragments, or two operations, have the same name: servers differ in which they take.
    Twice(String),
    /// The operation to run is not in the document.
    NoOperation(String),
    /// The digest of a query that is not listed.
    UnknownPersisted,
}

impl Refusal {
    /// It can't be read.
    pub(crate) fn unreadable(why: &str) -> Self {
        Self::Unreadable(why.to_owned())
    }

    /// What is not a GraphQL request in JSON.
    pub(crate) fn no_request(error: &serde_json::Error) -> Self {
        Self::Unreadable(bounded(&error.to_string(), JSON_CHARS_MAX))
    }

    /// What the client is told.
    pub(crate) fn denial(&self) -> Denial {
        let (status, reason) = match self {
            Self::Unreadable(why) => (400, why.clone()),
            Self::TooLarge { bytes: Some(bytes) } => {
                (413, format!("a body of {bytes} bytes is too large to be read"))
            }
            Self::TooLarge { bytes: None } => (413, "the body is too large to be read".to_owned()),
            Self::Syntax { line, column, expected, found } => {
                (400, format!("line {line}, column {column}: found {found}, expected {expected}"))
            }
            Self::Bytes { max } => (400, format!("a query of more than {max} bytes")),
            Self::Tokens { max } => (400, format!("the query has more than {max} tokens")),
            Self::Aliases { max } => (400, format!("the query has more than {max} aliases")),
            Self::Directives { max } => (400, format!("the query has more than {max} directives")),
            Self::Unsized(name) => {
                (400, format!("the field `{name}` must say how many items it returns"))
            }
            Self::Nested { max } => (400, format!("the query is nested more than {max} times")),
            Self::Depth { found, max } => {
                (400, format!("the query is {found} fields deep, at most {max} are allowed"))
            }
            Self::Repetition => (400, "the query uses its fragments in too many places".to_owned()),
            Self::Cost { found, max } => {
                (400, format!("the query costs {found}, at most {max} are allowed"))
            }
            Self::Operations { found, max } => {
                (400, format!("a batch of {found} operations, at most {max} are allowed"))
            }
            Self::Introspection => (403, "introspection is not allowed".to_owned()),
            Self::Cycle(name) => (400, format!("the fragment `{name}` contains itself")),
            Self::NoFragment(name) => (400, format!("there is no fragment `{name}`")),
            Self::Twice(name) => (400, format!("the name `{name}` is given twice")),
            Self::NoOperation(name) => (400, format!("there is no operation `{name}`")),
            Self::UnknownPersisted => (400, "this persisted query is not known".to_owned()),
        };
        Denial::new(status, reason)
    }
}

/// A client's words, short enough for a reason and without control characters.
pub(crate) fn shown(text: &str) -> String {
    bounded(text, SHOWN_CHARS_MAX)
}

fn bounded(text: &str, chars_max: usize) -> String {
    let plain = |next: char| if next.is_control() { '?' } else { next };
    text.chars().take(chars_max).map(plain).collect()
}
