//! An HTTP/1 client's socket, shared by the task that serves it and by a request's body, which may
//! be read by another task. Knows nothing of heads.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use http::{StatusCode, Version};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::transport::Transport;
use crate::http1::{self, Encoding, Reader};
use crate::wire::{Buffer, Fields, InterimSender};

/// Bytes of interim replies that wait for a client, at most: what does not fit is left out.
const INTERIM_BYTES_MAX: usize = 16 << 10;

/// The socket. Locked for one call at a time, by one worker: nothing contends for it.
#[derive(Clone)]
pub(super) struct Client(Arc<Shared>);

pub(super) struct Shared(Mutex<Inner>);

struct Inner {
    transport: Transport,
    /// Interim replies, or what is left of them: they come before anything else.
    interim: Vec<u8>,
    /// The reply has begun: an interim one would come too late.
    replied: bool,
    /// What a request's body has left: the bytes behind it, and how far it was read.
    returned: Option<Reader>,
}

impl Client {
    pub(super) fn new(transport: Transport) -> Self {
        Self(Arc::new(Shared(Mutex::new(Inner {
            transport,
            interim: Vec::new(),
            replied: false,
            returned: None,
        }))))
    }

    /// Takes interim replies for the client.
    pub(super) fn interim(&self) -> Arc<dyn InterimSender> {
        Arc::clone(&self.0) as Arc<dyn InterimSender>
    }

    /// A request begins, or its reply: only between the two there may be interim replies.
    pub(super) fn set_replied(&self, replied: bool) {
        self.0.lock().replied = replied;
    }

    /// Asks the client for the body that it holds back.
    pub(super) fn send_continue(&self, cx: &mut Context<'_>) {
        let mut inner = self.0.lock();
        inner.push_interim(|out| out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n"));
        // What can't be sent now is sent before the reply.
        let _ = inner.poll_interim(cx);
    }

    /// The body of a request gives its bytes back.
    pub(super) fn give_back(&self, reader: Reader) {
        self.0.lock().returned = Some(reader);
    }

    /// What the body of a request has given back.
    pub(super) fn take_returned(&self) -> Option<Reader> {
        self.0.lock().returned.take()
    }

    /// Reads what has come into `input`, so that it takes up to `most` bytes: the number of bytes,
    /// 0 at the end. Pending where there is no room.
    pub(super) fn poll_fill(
        &self,
        cx: &mut Context<'_>,
        input: &mut Buffer,
        most: usize,
    ) -> Poll<io::Result<usize>> {
        input.poll_fill(most, |room| self.poll_into(cx, room))
    }

    /// Reads into `room`.
    pub(super) fn poll_into(
        &self,
        cx: &mut Context<'_>,
        room: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut room = ReadBuf::new(room);
        ready!(Pin::new(&mut self.0.lock().transport).poll_read(cx, &mut room))?;
        Poll::Ready(Ok(room.filled().len()))
    }

    /// The socket itself, for another protocol.
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

    /// Sends the interim replies that wait.
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

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.lock().transport).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.lock().transport).poll_shutdown(cx)
    }
}
