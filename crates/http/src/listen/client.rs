//! An HTTP/1 client's socket. The task that serves the connection shares it with the request's
//! body, which another task may read. Knows nothing about heads.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use http::{StatusCode, Version};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::transport::Transport;
use crate::http1::{self, Encoding, Reader};
use crate::wire::{Buffer, Fields, InterimSender, delegate_write};

/// Maximum bytes of queued interim replies. Further ones are dropped.
const INTERIM_BYTES_MAX: usize = 16 << 10;

/// The shared socket. Locked for one call at a time, on one worker, so the lock is never contended.
#[derive(Clone)]
pub(super) struct Client(Arc<Shared>);

pub(super) struct Shared(Mutex<Inner>);

struct Inner {
    transport: Transport,
    /// Interim replies that are not sent yet. They go out before anything else.
    interim: Vec<u8>,
    /// Whether the final reply has begun. No interim reply may follow it.
    replied: bool,
    /// Handed back by a request's body: the bytes that follow it, and how far it was read.
    returned: Option<Reader>,
    /// Something was read since the request's body was begun.
    is_read: bool,
}

impl Client {
    pub(super) fn new(transport: Transport) -> Self {
        Self(Arc::new(Shared(Mutex::new(Inner {
            transport,
            interim: Vec::new(),
            replied: false,
            returned: None,
            is_read: false,
        }))))
    }

    /// A handle that sends interim replies to this client.
    pub(super) fn interim(&self) -> Arc<dyn InterimSender> {
        Arc::clone(&self.0) as Arc<dyn InterimSender>
    }

    /// Interim replies are accepted from `false` (a request begins) to `true` (its reply begins).
    pub(super) fn set_replied(&self, replied: bool) {
        self.0.lock().replied = replied;
    }

    /// Sends 100 (Continue), as the client waits for it before it sends its body.
    pub(super) fn send_continue(&self, cx: &mut Context<'_>) {
        let mut inner = self.0.lock();
        inner.push_interim(|out| out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n"));
        // The rest is sent before the reply.
        let _ = inner.poll_interim(cx);
    }

    /// Called by a request's body when it is done with the socket.
    pub(super) fn give_back(&self, reader: Reader) {
        self.0.lock().returned = Some(reader);
    }

    /// Takes what the request's body handed back.
    pub(super) fn take_returned(&self) -> Option<Reader> {
        self.0.lock().returned.take()
    }

    /// Reads into `input` until it holds up to `most` bytes. Returns the number of bytes, 0 at the
    /// end of the stream. Pending if `input` is full.
    pub(super) fn poll_fill(
        &self,
        cx: &mut Context<'_>,
        input: &mut Buffer,
        most: usize,
    ) -> Poll<io::Result<usize>> {
        input.poll_fill(most, |room| self.poll_into(cx, room))
    }

    /// Reads into `room` and returns the number of bytes.
    pub(super) fn poll_into(
        &self,
        cx: &mut Context<'_>,
        room: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut room = ReadBuf::new(room);
        let mut inner = self.0.lock();
        inner.is_read = true;
        ready!(Pin::new(&mut inner.transport).poll_read(cx, &mut room))?;
        Poll::Ready(Ok(room.filled().len()))
    }

    /// A request's body begins, which nobody has read yet.
    pub(super) fn begin_body(&self) {
        self.0.lock().is_read = false;
    }

    /// Whether the client has closed its side while nobody has begun to read its request's body.
    pub(super) fn has_left_unread(&self) -> bool {
        let inner = self.0.lock();
        !inner.is_read && inner.transport.has_ended()
    }

    /// Takes the socket out, for another protocol.
    pub(super) fn take_transport(&self) -> Transport {
        std::mem::replace(&mut self.0.lock().transport, Transport::Taken)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InterimSender for Shared {
    fn send(&self, status: StatusCode, fields: &Fields) {
        let mut inner = self.lock();
        inner.push_interim(|out| {
            http1::reply_head(
                out,
                (status, None),
                &mut fields.clone(),
                Encoding::NoBody,
                (Version::HTTP_11, false),
            )
        });
        let _ = inner.poll_interim(&mut Context::from_waker(std::task::Waker::noop()));
    }
}

impl Inner {
    fn push_interim(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if !self.replied && self.interim.len() < INTERIM_BYTES_MAX {
            write(&mut self.interim);
        }
    }

    /// Sends the queued interim replies.
    fn poll_interim(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.interim.is_empty() {
            let wrote = ready!(Pin::new(&mut self.transport).poll_write(cx, &self.interim))?;
            self.interim.drain(..wrote);
            if self.interim.is_empty() {
                return Pin::new(&mut self.transport).poll_flush(cx);
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Client {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut inner = self.0.lock();
        ready!(inner.poll_interim(cx))?;
        Pin::new(&mut inner.transport).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut inner = self.0.lock();
        ready!(inner.poll_interim(cx))?;
        Pin::new(&mut inner.transport).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    delegate_write! { this => this.0.lock().transport; poll_flush, poll_shutdown }
}
