//! Passes [`AsyncWrite`](tokio::io::AsyncWrite) on to another stream, so that a wrapper spells out
//! only the methods that it changes. Knows nothing about what the wrappers are for.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Implements methods of `AsyncWrite` by calling the same methods of another stream. To be used
/// inside `impl AsyncWrite for`, for a type that is `Unpin`.
///
/// It takes match arms on `self`. Each binds what it needs and names the stream to call:
///
/// ```ignore
/// delegate_write! { this => this.stream }
/// delegate_write! { Self::Plain(stream) => *stream, Self::Taken => DisconnectedStream }
/// ```
///
/// All five methods are implemented, vectored writes included, unless a list follows:
///
/// ```ignore
/// delegate_write! { this => this.stream; poll_flush, poll_shutdown }
/// ```
macro_rules! delegate_write {
    ($($pattern:pat => $stream:expr),+ $(,)?) => {
        $crate::wire::delegate_write! {
            $($pattern => $stream),+;
            poll_write, poll_write_vectored, is_write_vectored, poll_flush, poll_shutdown
        }
    };
    ($($pattern:pat => $stream:expr),+; $($method:ident),+ $(,)?) => {
        $crate::wire::delegate_write! { @each { $($pattern => $stream),+ } $($method)+ }
    };
    (@each $arms:tt $($method:ident)+) => {
        $($crate::wire::delegate_write! { @$method $arms })+
    };
    (@poll_write { $($pattern:pat => $stream:expr),+ }) => {
        fn poll_write(
            self: ::std::pin::Pin<&mut Self>,
            cx: &mut ::std::task::Context<'_>,
            buf: &[u8],
        ) -> ::std::task::Poll<::std::io::Result<usize>> {
            match self.get_mut() {
                $($pattern => ::std::pin::Pin::new(&mut $stream).poll_write(cx, buf),)+
            }
        }
    };
    (@poll_write_vectored { $($pattern:pat => $stream:expr),+ }) => {
        fn poll_write_vectored(
            self: ::std::pin::Pin<&mut Self>,
            cx: &mut ::std::task::Context<'_>,
            bufs: &[::std::io::IoSlice<'_>],
        ) -> ::std::task::Poll<::std::io::Result<usize>> {
            match self.get_mut() {
                $($pattern => ::std::pin::Pin::new(&mut $stream).poll_write_vectored(cx, bufs),)+
            }
        }
    };
    (@is_write_vectored { $($pattern:pat => $stream:expr),+ }) => {
        fn is_write_vectored(&self) -> bool {
            match self {
                $($pattern => $stream.is_write_vectored(),)+
            }
        }
    };
    (@poll_flush { $($pattern:pat => $stream:expr),+ }) => {
        fn poll_flush(
            self: ::std::pin::Pin<&mut Self>,
            cx: &mut ::std::task::Context<'_>,
        ) -> ::std::task::Poll<::std::io::Result<()>> {
            match self.get_mut() {
                $($pattern => ::std::pin::Pin::new(&mut $stream).poll_flush(cx),)+
            }
        }
    };
    (@poll_shutdown { $($pattern:pat => $stream:expr),+ }) => {
        fn poll_shutdown(
            self: ::std::pin::Pin<&mut Self>,
            cx: &mut ::std::task::Context<'_>,
        ) -> ::std::task::Poll<::std::io::Result<()>> {
            match self.get_mut() {
                $($pattern => ::std::pin::Pin::new(&mut $stream).poll_shutdown(cx),)+
            }
        }
    };
}

pub(crate) use delegate_write;

/// Stands for a stream that was taken out of its owner. Every call fails with `NotConnected`.
pub(crate) struct DisconnectedStream;

fn not_connected<T>() -> Poll<io::Result<T>> {
    Poll::Ready(Err(io::ErrorKind::NotConnected.into()))
}

impl AsyncRead for DisconnectedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        _buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        not_connected()
    }
}

impl AsyncWrite for DisconnectedStream {
    fn poll_write(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        _buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        not_connected()
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        not_connected()
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        not_connected()
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use tokio::io::AsyncWriteExt;

    use super::*;

    /// Records which methods are called.
    #[derive(Default)]
    struct Recorder(Vec<&'static str>);

    impl Recorder {
        fn note<T>(&mut self, method: &'static str, result: T) -> Poll<io::Result<T>> {
            self.0.push(method);
            Poll::Ready(Ok(result))
        }
    }

    impl AsyncWrite for Recorder {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _cx: &mut Context<'_>,
            buf: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.note("write", buf.len())
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            _cx: &mut Context<'_>,
            bufs: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            self.note("write_vectored", bufs.iter().map(|buf| buf.len()).sum())
        }

        fn is_write_vectored(&self) -> bool {
            true
        }

        fn poll_flush(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.note("flush", ())
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.note("shutdown", ())
        }
    }

    struct Wrapper {
        stream: Recorder,
    }

    impl AsyncWrite for Wrapper {
        delegate_write! { this => this.stream }
    }

    enum Either {
        Open(Recorder),
        Taken,
    }

    impl AsyncWrite for Either {
        delegate_write! { Self::Open(stream) => *stream, Self::Taken => DisconnectedStream }
    }

    /// Has a flush of its own.
    struct UnflushedRecorder(Recorder);

    impl AsyncWrite for UnflushedRecorder {
        delegate_write! {
            this => this.0; poll_write, poll_write_vectored, is_write_vectored, poll_shutdown
        }

        fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// Calls each method once.
    async fn call_all(mut stream: impl AsyncWrite + Unpin) -> io::Result<()> {
        assert!(stream.is_write_vectored());
        assert_eq!(stream.write(b"abc").await?, 3);
        assert_eq!(stream.write_vectored(&[IoSlice::new(b"a"), IoSlice::new(b"bc")]).await?, 3);
        stream.flush().await?;
        stream.shutdown().await
    }

    const ALL: [&str; 4] = ["write", "write_vectored", "flush", "shutdown"];

    #[tokio::test]
    async fn every_method_calls_its_own_of_the_inner_stream() {
        let mut wrapper = Wrapper { stream: Recorder::default() };
        call_all(&mut wrapper).await.unwrap();
        assert_eq!(wrapper.stream.0, ALL);
        let mut open = Either::Open(Recorder::default());
        call_all(&mut open).await.unwrap();
        assert!(matches!(open, Either::Open(stream) if stream.0 == ALL));
    }

    #[tokio::test]
    async fn a_method_that_is_not_listed_is_the_wrappers_own() {
        let mut unflushed = UnflushedRecorder(Recorder::default());
        call_all(&mut unflushed).await.unwrap();
        assert_eq!(unflushed.0.0, ["write", "write_vectored", "shutdown"]);
    }

    #[tokio::test]
    async fn a_stream_that_was_taken_is_not_connected() {
        let mut taken = Either::Taken;
        assert!(!taken.is_write_vectored());
        for failed in [
            taken.write(b"a").await.map(drop),
            taken.write_vectored(&[IoSlice::new(b"a")]).await.map(drop),
            taken.flush().await,
            taken.shutdown().await,
        ] {
            assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::NotConnected);
        }
    }
}
