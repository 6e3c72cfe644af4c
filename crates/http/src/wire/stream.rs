//! A body as the frames of a stream of HTTP/2: a reply's from hyper, a request's from h2 itself.
//! Knows nothing about limits and timeouts.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::RecvStream;
use http::{HeaderMap, StatusCode};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;

use super::{BodyError, Fields, InterimSender};

/// See the module documentation.
pub(super) enum StreamBody {
    /// An upstream's reply.
    Reply(Incoming),
    /// A client's request.
    Request(RequestStream),
}

/// The body of a client's request.
pub struct RequestStream {
    stream: RecvStream,
    /// The bytes that are to come, if the client has declared its length.
    left: Option<u64>,
    /// The data has ended: trailers may follow.
    is_read: bool,
    /// Sends the 100 (Continue) that the client waits for before it sends the body.
    waiting: Option<Arc<dyn InterimSender>>,
}

impl RequestStream {
    /// The body that arrives on `stream`, of this length if it was declared. `waiting` is told
    /// once the body is waited for.
    #[must_use]
    pub fn new(
        stream: RecvStream,
        length: Option<u64>,
        waiting: Option<Arc<dyn InterimSender>>,
    ) -> Self {
        Self { stream, left: length, is_read: false, waiting }
    }

    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if !self.is_read {
            let data = self.stream.poll_data(cx);
            // A client that has already begun to send is not waiting.
            if let Some(waiting) = self.waiting.take()
                && data.is_pending()
            {
                waiting.send(StatusCode::CONTINUE, &Fields::new());
            }
            match ready!(data) {
                Some(Ok(data)) => {
                    // It fails if the stream has been reset, which is found by the next read.
                    let _ = self.stream.flow_control().release_capacity(data.len());
                    if let Some(left) = &mut self.left {
                        *left = left.saturating_sub(data.len() as u64);
                    }
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(failed(error)))),
                None => self.is_read = true,
            }
        }
        match ready!(self.stream.poll_trailers(cx)) {
            Ok(trailers) => Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers)))),
            Err(error) => Poll::Ready(Some(Err(failed(error)))),
        }
    }
}

/// A reset, whoever sent it and why, ends the stream alone.
fn failed(error: h2::Error) -> BodyError {
    if error.is_reset() { BodyError::Reset } else { BodyError::Cut(Arc::new(error)) }
}

impl StreamBody {
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self {
            Self::Reply(reply) => {
                // hyper reports a stream that was reset with `NO_ERROR` as ended. A server may do
                // that after a complete reply, when it does not want the rest of the request (RFC
                // 9113, 8.1). No body may end before its declared length.
                match ready!(Pin::new(&mut *reply).poll_frame(cx)) {
                    None if !reply.is_end_stream() && reply.size_hint().lower() > 0 => {
                        Poll::Ready(Some(Err(BodyError::Reset)))
                    }
                    None => Poll::Ready(None),
                    Some(frame) => {
                        Poll::Ready(Some(frame.map_err(|error| BodyError::Cut(Arc::new(error)))))
                    }
                }
            }
            Self::Request(request) => request.poll_frame(cx),
        }
    }

    pub(super) fn is_end_stream(&self) -> bool {
        match self {
            Self::Reply(reply) => reply.is_end_stream(),
            Self::Request(request) => request.stream.is_end_stream(),
        }
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        match self {
            Self::Reply(reply) => reply.size_hint(),
            Self::Request(request) if request.stream.is_end_stream() => SizeHint::with_exact(0),
            Self::Request(request) => {
                request.left.map_or_else(SizeHint::default, SizeHint::with_exact)
            }
        }
    }

    /// Nobody wants the body: a client that waits is not asked to send it.
    pub(super) fn unwanted(&mut self) {
        if let Self::Request(request) = self {
            request.waiting = None;
        }
    }

    /// The bytes that are to come at least.
    pub(super) fn declared(&self) -> u64 {
        self.size_hint().lower()
    }
}

/// A length that was declared, once or several times alike.
#[must_use]
pub fn declared_length(fields: &HeaderMap) -> Option<u64> {
    let mut values = fields.get_all(http::header::CONTENT_LENGTH).iter();
    let length = values.next()?;
    if values.any(|value| value != length) {
        return None;
    }
    let digits = length.to_str().ok()?;
    // `parse` takes a sign as well.
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}
