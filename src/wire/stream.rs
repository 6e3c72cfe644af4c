//! A byte stream that sends small pieces as one. Knows nothing of what they mean.
//!
//! hyper hands over a head and its body as two pieces, and sends even a single piece by `writev`. Gathering a few hundred bytes and calling `send`
//! costs less than what the kernel does to take a vector in; a large body still goes as it lies.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use smallvec::SmallVec;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Up to this size pieces are gathered, on the stack.
const GATHER_BYTES_MAX: usize = 2 << 10;

/// See the file's head.
#[derive(Debug)]
pub(crate) struct Gathering<S>(pub(crate) S);

impl<S: AsyncRead + Unpin> AsyncRead for Gathering<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Gathering<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if let [one] = bufs {
            return Pin::new(&mut self.0).poll_write(cx, one);
        }
        if bufs.iter().map(|buf| buf.len()).sum::<usize>() > GATHER_BYTES_MAX {
            return Pin::new(&mut self.0).poll_write_vectored(cx, bufs);
        }
        let mut whole: SmallVec<[u8; GATHER_BYTES_MAX]> = SmallVec::new();
        for buf in bufs {
            whole.extend_from_slice(buf);
        }
        Pin::new(&mut self.0).poll_write(cx, &whole)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What reached it, a line a call.
    #[derive(Debug, Default)]
    struct Calls(Vec<String>);

    impl AsyncWrite for Calls {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            self.0.push(format!("write {}", buf.len()));
            Poll::Ready(Ok(buf.len()))
        }

        fn poll_write_vectored(mut self: Pin<&mut Self>, _: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
            let bytes = bufs.iter().map(|buf| buf.len()).sum();
            self.0.push(format!("vector {bytes}"));
            Poll::Ready(Ok(bytes))
        }

        fn is_write_vectored(&self) -> bool {
            true
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn small_pieces_go_as_one_and_large_ones_as_they_lie() {
        let large = [0; GATHER_BYTES_MAX];
        let mut stream = Gathering(Calls::default());
        let mut cx = Context::from_waker(std::task::Waker::noop());
        for pieces in [&[&b"head"[..], b"body"][..], &[&large], &[b"head", &large]] {
            let slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
            let all = pieces.iter().map(|piece| piece.len()).sum::<usize>();
            let wrote = Pin::new(&mut stream).poll_write_vectored(&mut cx, &slices);
            assert!(matches!(wrote, Poll::Ready(Ok(bytes)) if bytes == all), "{wrote:?}");
        }
        assert_eq!(stream.0.0, ["write 8", "write 2048", "vector 2052"]);
    }
}
