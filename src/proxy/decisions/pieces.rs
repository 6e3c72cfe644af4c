//! The reply to a stream of gRPC: messages one after another, and the status at its end.

use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use http::{HeaderMap, HeaderValue, StatusCode};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::proxy::reply::grpc;
use crate::wire::{Body, BodyEnd, BodyError, Fields, Known, Response, Source};

/// What is sent on a stream.
pub(super) enum Piece {
    /// With its frame.
    Message(Bytes),
    End(HeaderMap),
}

impl Piece {
    /// The end, with a status and a message of printable ASCII, if any.
    pub(super) fn end(status: &'static str, message: &'static str) -> Self {
        let mut trailers = HeaderMap::with_capacity(2);
        trailers.insert("grpc-status", HeaderValue::from_static(status));
        if !message.is_empty() {
            trailers.insert("grpc-message", HeaderValue::from_static(message));
        }
        Self::End(trailers)
    }
}

/// A reply, and where its pieces go. They can't be sent any more when nobody reads it.
pub(super) fn reply() -> (Sender<Piece>, Response) {
    let (pieces, waiting) = channel(1);
    let mut fields = Fields::new();
    fields.set(Known::ContentType, grpc::CONTENT_TYPE);
    let body = Body::source(Box::new(Pieces { waiting, piece: Bytes::new(), end: None }));
    (pieces, Response { fields, ..Response::new(StatusCode::OK, body) })
}

/// The body of the reply.
struct Pieces {
    waiting: Receiver<Piece>,
    /// What was not read yet of the current message.
    piece: Bytes,
    end: Option<Option<HeaderMap>>,
}

impl Source for Pieces {
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        while self.piece.is_empty() && self.end.is_none() {
            match ready!(self.waiting.poll_recv(cx)) {
                Some(Piece::Message(message)) => self.piece = message,
                Some(Piece::End(trailers)) => self.end = Some(Some(trailers)),
                None => self.end = Some(None),
            }
        }
        Poll::Ready(Ok(()))
    }

    fn data(&self) -> &[u8] {
        &self.piece
    }

    fn consume(&mut self, bytes: usize) {
        self.piece.advance(bytes.min(self.piece.len()));
    }

    fn remaining(&self) -> Option<u64> {
        None
    }

    fn is_end(&self) -> bool {
        self.end.is_some() && self.piece.is_empty()
    }

    fn is_lent(&self) -> bool {
        false
    }

    fn take_trailers(&mut self) -> Option<HeaderMap> {
        self.end.as_mut()?.take()
    }

    fn finish(self: Box<Self>, _end: &BodyEnd) {}
}
