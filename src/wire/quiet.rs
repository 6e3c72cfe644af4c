//! A byte stream that is not asked again while nothing can have come. Knows nothing of what comes.
//!
//! hyper reads ahead of every step that it takes: a request brings seven reads that find nothing on its two connections. Each of them asks the runtime,
//! which takes a lock and looks whom to wake. Who was told "nothing yet" and was not woken since need not ask.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// See the file's head.
#[derive(Debug)]
pub(crate) struct Quiet<S> {
    stream: S,
    ear: Arc<Ear>,
    /// The ear's.
    waker: Waker,
    /// Who is woken when something comes.
    reader: Option<Waker>,
}

/// Hears that something has come.
#[derive(Debug, Default)]
struct Ear {
    heard: AtomicBool,
    reader: Mutex<Option<Waker>>,
}

impl<S> Quiet<S> {
    pub(crate) fn new(stream: S) -> Self {
        let ear = Arc::<Ear>::default();
        Self { stream, waker: Waker::from(Arc::clone(&ear)), ear, reader: None }
    }

    /// Whether `reader` was told that nothing has come, and nothing has since.
    fn is_quiet(&self, reader: &Waker) -> bool {
        !self.ear.heard.load(Ordering::Acquire) && self.reader.as_ref().is_some_and(|known| known.will_wake(reader))
    }

    fn wake_from_now_on(&mut self, reader: &Waker) {
        if self.reader.as_ref().is_none_or(|known| !known.will_wake(reader)) {
            self.reader = Some(reader.clone());
            *self.ear.reader.lock().unwrap_or_else(PoisonError::into_inner) = Some(reader.clone());
        }
        self.ear.heard.store(false, Ordering::Release);
    }
}

impl Wake for Ear {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.heard.store(true, Ordering::Release);
        if let Some(reader) = &*self.reader.lock().unwrap_or_else(PoisonError::into_inner) {
            reader.wake_by_ref();
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Quiet<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.is_quiet(cx.waker()) {
            return Poll::Pending;
        }
        self.wake_from_now_on(cx.waker());
        let this = &mut *self;
        let read = Pin::new(&mut this.stream).poll_read(&mut Context::from_waker(&this.waker), buf);
        if read.is_ready() {
            // There may be more.
            this.ear.heard.store(true, Ordering::Release);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Quiet<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    /// Counts how often it is asked. It has something where `full`, and keeps the waker of who finds nothing.
    #[derive(Debug, Default)]
    struct Source {
        asked: usize,
        full: bool,
        waker: Option<Waker>,
    }

    impl AsyncRead for Source {
        fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            self.asked += 1;
            if std::mem::take(&mut self.full) {
                buf.put_slice(b"x");
                return Poll::Ready(Ok(()));
            }
            self.waker = Some(cx.waker().clone());
            Poll::Pending
        }
    }

    #[derive(Default)]
    struct Reader(AtomicUsize);

    impl Wake for Reader {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn read(stream: &mut Quiet<Source>, reader: &Arc<Reader>) -> bool {
        let waker = Waker::from(Arc::clone(reader));
        Pin::new(stream).poll_read(&mut Context::from_waker(&waker), &mut ReadBuf::new(&mut [0; 4])).is_ready()
    }

    #[test]
    fn who_was_told_nothing_yet_asks_again_only_when_woken() {
        let (first, second) = (Arc::<Reader>::default(), Arc::<Reader>::default());
        let mut stream = Quiet::new(Source::default());
        assert!(!read(&mut stream, &first) && !read(&mut stream, &first));
        assert_eq!(stream.stream.asked, 1);
        // Another one has to be made known.
        assert!(!read(&mut stream, &second) && !read(&mut stream, &second));
        assert_eq!(stream.stream.asked, 2);

        stream.stream.full = true;
        stream.stream.waker.take().unwrap().wake();
        assert_eq!((first.0.load(Ordering::Relaxed), second.0.load(Ordering::Relaxed)), (0, 1));
        // There may be more than what was read.
        assert!(read(&mut stream, &second) && !read(&mut stream, &second) && !read(&mut stream, &second));
        assert_eq!(stream.stream.asked, 4);
    }
}
