//! The messages of a stream of gRPC, one after another.

use std::future::poll_fn;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::malformed;
use super::rls::FRAME_HEAD_BYTES;
use crate::clock;
use crate::proxy::refusal::Refusal;
use crate::wire::{self, Body, Charge};

/// How long a message may take from its first byte to its last. A stream may be open for days.
const MESSAGE_TIME_MAX: Duration = Duration::from_secs(30);

/// What has arrived of a stream.
pub(in crate::proxy) struct Frames {
    body: Body,
    /// What has arrived of the next message.
    read: Vec<u8>,
    /// Until when it has to be there.
    due: Option<Instant>,
    charge: Charge,
    message_time_max: Duration,
    message_bytes_max: usize,
    buffered_bytes_max: usize,
}

impl Frames {
    /// Those of a body, with at most `message_bytes_max` bytes each.
    pub(super) fn of(body: Body, message_bytes_max: usize, buffered_bytes_max: usize) -> Self {
        Self {
            body,
            read: Vec::new(),
            due: None,
            charge: Charge::nothing(),
            message_time_max: MESSAGE_TIME_MAX,
            message_bytes_max,
            buffered_bytes_max,
        }
    }

    /// The next message; `None` at the stream's end. Nothing is lost if it is not awaited to the
    /// end.
    ///
    /// # Errors
    /// The connection failed, or what came is no message.
    pub(in crate::proxy) async fn next(&mut self) -> Result<Option<Bytes>, Refusal> {
        loop {
            if let Some(message) = self.take()? {
                return Ok(Some(message));
            }
            let filled = poll_fn(|cx| self.body.poll_fill(cx));
            let filled = match self.due {
                None => filled.await,
                Some(due) => match tokio::time::timeout_at(due.into(), filled).await {
                    Ok(filled) => filled,
                    Err(_) => return Err(Refusal::BodyTooSlow),
                },
            };
            let filled = filled.transpose()?;
            if filled.is_none() {
                return if self.read.is_empty() {
                    Ok(None)
                } else {
                    Err(malformed("a part of one"))
                };
            }
            let data = self.body.data();
            self.read.extend_from_slice(data);
            let bytes = data.len();
            self.body.consume(bytes);
            self.body.end_if_read();
            self.charge.set(self.read.capacity());
            if !self.read.is_empty() && self.due.is_none() {
                self.due = Some(self.due_from_now());
            }
            if wire::buffered_bytes() > self.buffered_bytes_max {
                return Err(Refusal::TooMuchBuffered);
            }
        }
    }

    /// The first message, if it is there as a whole.
    fn take(&mut self) -> Result<Option<Bytes>, Refusal> {
        let Some((head, rest)) = self.read.split_first_chunk::<FRAME_HEAD_BYTES>() else {
            return Ok(None);
        };
        let [compressed, length @ ..] = *head;
        if compressed != 0 {
            return Err(malformed("a compressed message"));
        }
        let length = u32::from_be_bytes(length) as usize;
        if length > self.message_bytes_max {
            return Err(Refusal::BodyTooLarge { limit_bytes: self.message_bytes_max as u64 });
        }
        let Some(message) = rest.get(..length) else { return Ok(None) };
        let message = Bytes::copy_from_slice(message);
        self.read.drain(..FRAME_HEAD_BYTES + length);
        // A stream is open for days, and most of its messages are small.
        self.read.shrink_to_fit();
        self.charge.set(self.read.capacity());
        self.due = (!self.read.is_empty()).then(|| self.due_from_now());
        Ok(Some(message))
    }

    fn due_from_now(&self) -> Instant {
        clock::monotonic() + self.message_time_max
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll};

    use bytes::Buf as _;
    use http::HeaderMap;

    use super::*;
    use crate::proxy::receive::call::rls::framed;
    use crate::wire::{BodyEnd, BodyError};

    /// A body that ends with a part of a message, and goes on for ever.
    fn unfinished(begin: &[u8]) -> Frames {
        struct Silent(Bytes);

        impl wire::Source for Silent {
            fn poll_fill(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
                if self.0.is_empty() { Poll::Pending } else { Poll::Ready(Ok(())) }
            }

            fn data(&self) -> &[u8] {
                &self.0
            }

            fn consume(&mut self, bytes: usize) {
                self.0.advance(bytes);
            }

            fn remaining(&self) -> Option<u64> {
                None
            }

            fn is_end(&self) -> bool {
                false
            }

            fn is_lent(&self) -> bool {
                false
            }

            fn take_trailers(&mut self) -> Option<HeaderMap> {
                None
            }

            fn finish(self: Box<Self>, _: &BodyEnd) {}
        }

        let body = Body::source(Box::new(Silent(Bytes::copy_from_slice(begin))));
        Frames {
            message_time_max: Duration::from_millis(20),
            ..Frames::of(body, 1 << 20, usize::MAX)
        }
    }

    #[tokio::test]
    async fn a_message_that_has_begun_has_an_end() {
        let long = framed(&vec![7_u8; 1 << 16]);
        let whole = long.len();
        let next = async |begin: &[u8]| {
            let mut frames = unfinished(begin);
            let first = frames.next().await;
            (first.map(|message| message.map(|message| message.len())), frames)
        };
        let (cut, _) = next(&long[..whole - 1]).await;
        assert!(matches!(cut, Err(Refusal::BodyTooSlow)), "{cut:?}");
        // The beginning of the next one came with it.
        let (first, mut frames) = next(&[&long[..], &[0]].concat()).await;
        assert!(matches!(first, Ok(Some(_))) && frames.read.capacity() < whole, "{first:?}");
        assert!(matches!(frames.next().await, Err(Refusal::BodyTooSlow)));
        // Without one, a stream may be silent for long.
        let (first, mut frames) = next(&long).await;
        assert!(first.is_ok());
        let silent = tokio::time::timeout(Duration::from_millis(100), frames.next()).await;
        assert!(silent.is_err(), "{silent:?}");
    }
}
