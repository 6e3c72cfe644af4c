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
    message_bytes_max: usize,
    buffered_bytes_max: usize,
}

impl Frames {
    /// Those of a body, with at most `message_bytes_max` bytes each.
    pub(super) fn of(body: Body, message_bytes_max: usize, buffered_bytes_max: usize) -> Self {
        let (read, charge) = (Vec::new(), Charge::nothing());
        Self { body, read, due: None, charge, message_bytes_max, buffered_bytes_max }
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
                self.due = Some(clock::monotonic() + MESSAGE_TIME_MAX);
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
        self.due = None;
        if self.read.is_empty() {
            // A stream is open for days, and most of its messages are small.
            self.read = Vec::new();
            self.charge.set(0);
        }
        Ok(Some(message))
    }
}
