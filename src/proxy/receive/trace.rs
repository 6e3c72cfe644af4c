//! The trace that a request belongs to: the client's, or one that begins here. Knows no span but
//! their ids.

use http::Version;

use crate::otlp::{Sampling, SpanId, TraceId, TraceParent};
use crate::wire::{Fields, Known, Request};

/// Bytes of a host with its port that are kept, at most.
const AUTHORITY_BYTES_MAX: usize = 264;

/// What is kept of a traced request.
#[derive(Debug)]
pub(in crate::proxy) struct TraceContext {
    pub(in crate::proxy) id: TraceId,
    /// The client's span, if it has named one; of a part of a request, that of the request.
    pub(in crate::proxy) parent: Option<TraceParent>,
    /// The span of the request.
    pub(in crate::proxy) span: SpanId,
    /// The span of its sending.
    pub(in crate::proxy) sending: SpanId,
    /// It is a part of a request: one of several calls in a body.
    pub(in crate::proxy) is_part: bool,
    /// The host that the client named, perhaps with a port.
    pub(in crate::proxy) authority: String,
    /// The version of HTTP.
    pub(in crate::proxy) version: &'static str,
}

impl TraceContext {
    /// The trace of a request, if it is traced. A client can't have its requests traced: only what
    /// a trusted proxy has decided is followed.
    pub(in crate::proxy) fn of(
        request: &Request,
        trusted: bool,
        sampling: Sampling,
    ) -> Option<Box<Self>> {
        let decided = trusted && request.fields.has(Known::TraceParent);
        if decided || sampling.hits() {
            Self::of_sampled(request, decided.then_some(sampling))
        } else {
            None
        }
    }

    /// The request is another one than it seemed.
    pub(super) fn note_authority(&mut self, request: &Request) {
        self.authority = authority(request);
    }

    /// The part of [`of`](Self::of) for requests that may be traced. `sampling` is `None` if it has
    /// already decided for the request.
    #[cold]
    fn of_sampled(request: &Request, sampling: Option<Sampling>) -> Option<Box<Self>> {
        let parent = parent(&request.fields);
        // One that is not valid says nothing.
        let hits = || sampling.is_none_or(Sampling::hits);
        let decided = parent.filter(|_| sampling.is_some());
        if !decided.map_or_else(hits, |parent| parent.sampled) {
            return None;
        }
        Some(Box::new(Self {
            id: parent.map_or_else(TraceId::random, |parent| parent.trace),
            parent,
            is_part: false,
            span: SpanId::random(),
            sending: SpanId::random(),
            authority: authority(request),
            version: match request.version {
                Version::HTTP_10 => "1.0",
                Version::HTTP_11 => "1.1",
                _ => "2",
            },
        }))
    }

    /// The trace of a part of the request.
    pub(in crate::proxy) fn of_part(&self) -> Box<Self> {
        Box::new(Self {
            id: self.id,
            parent: Some(TraceParent { trace: self.id, span: self.span, sampled: true }),
            is_part: true,
            span: SpanId::random(),
            sending: SpanId::random(),
            authority: self.authority.clone(),
            version: self.version,
        })
    }

    /// Tells the upstream of the trace. A `tracestate` is passed on as it came, if it belongs to
    /// this trace.
    pub(in crate::proxy) fn pass_on(&self, fields: &mut Fields) {
        let parent = TraceParent { trace: self.id, span: self.sending, sampled: true };
        fields.set(Known::TraceParent, parent.text().as_bytes());
        if self.parent.is_none() {
            fields.remove("tracestate");
        }
    }
}

/// The client's span. Several fields are as good as none.
fn parent(fields: &Fields) -> Option<TraceParent> {
    let mut values = fields.get_all(Known::TraceParent);
    let only = values.next().filter(|_| values.next().is_none())?;
    TraceParent::read(only)
}

/// The authority that a request is for, if it can be shown.
fn authority(request: &Request) -> String {
    let authority = match request.authority() {
        Some(authority) => authority.as_bytes(),
        None => request.fields.get(Known::Host).unwrap_or_default(),
    };
    let plain =
        authority.len() <= AUTHORITY_BYTES_MAX && authority.iter().all(u8::is_ascii_graphic);
    String::from_utf8_lossy(if plain { authority } else { b"" }).into_owned()
}
