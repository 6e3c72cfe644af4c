//! Why a head or a body is refused.

use http::StatusCode;

/// Why a head is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadError {
    /// Not HTTP, or ambiguous: 400.
    Malformed(&'static str),
    /// Too many fields: 431.
    TooManyFields,
    /// A transfer coding other than `chunked`: 501.
    UnknownCoding,
}

impl std::fmt::Display for HeadError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(self.why())
    }
}

impl HeadError {
    /// What was found.
    pub(crate) fn why(self) -> &'static str {
        match self {
            Self::Malformed(why) => why,
            Self::TooManyFields => "too many fields",
            Self::UnknownCoding => "an unknown transfer coding",
        }
    }

    /// The status that the client is sent.
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::Malformed(_) => StatusCode::BAD_REQUEST,
            Self::TooManyFields => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::UnknownCoding => StatusCode::NOT_IMPLEMENTED,
        }
    }
}

/// The framing of a body is broken, so its connection can't be reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct FramingError(pub(crate) &'static str);
