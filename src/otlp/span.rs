//! A finished trace: its spans with their attributes, as whoever records a request hands them over.
//! Knows neither requests nor how spans are exported.

use std::borrow::Cow;
use std::time::Instant;

use smallvec::SmallVec;

use super::context::{SpanId, TraceId};

/// The spans of one request.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// The trace that they are part of.
    pub id: TraceId,
    /// The spans.
    pub spans: SmallVec<[Span; 3]>,
}

/// Something that was done for a request, and when.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// Its id.
    pub id: SpanId,
    /// The span that it is part of.
    pub parent: Option<SpanId>,
    /// Whether that one is another process's.
    pub parent_is_remote: bool,
    /// What was done.
    pub name: Cow<'static, str>,
    /// Its role.
    pub kind: Kind,
    /// When it began.
    pub start: Instant,
    /// When it ended.
    pub end: Instant,
    /// What is known about it.
    pub attributes: Vec<(&'static str, Value)>,
    /// Whether it failed.
    pub failed: bool,
}

/// The role of a span: OpenTelemetry's `SpanKind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Work inside Weir.
    Internal,
    /// A request that Weir answered.
    Server,
    /// A request that Weir sent.
    Client,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A text.
    Text(Cow<'static, str>),
    /// A whole number.
    Number(i64),
    /// Several texts.
    Texts(Vec<String>),
}

impl From<&'static str> for Value {
    fn from(text: &'static str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(Cow::Owned(text))
    }
}

impl From<u16> for Value {
    fn from(number: u16) -> Self {
        Self::Number(i64::from(number))
    }
}

impl Trace {
    /// The approximate memory that it takes, in bytes. Its encoded form takes less.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.spans.iter().map(Span::bytes).sum::<usize>()
    }
}

impl Span {
    fn bytes(&self) -> usize {
        let values = self.attributes.iter().map(|(_, value)| match value {
            Value::Text(Cow::Owned(text)) => text.capacity(),
            Value::Text(Cow::Borrowed(_)) | Value::Number(_) => 0,
            Value::Texts(texts) => texts.iter().map(|text| size_of::<String>() + text.len()).sum(),
        });
        let slots = self.attributes.capacity() * size_of::<(&str, Value)>();
        size_of::<Self>() + self.name.len() + slots + values.sum::<usize>()
    }
}
