//! What hyper answers by itself, in the handler's words: a head that can't be read is no request, and yet somebody waits for a reply, and somebody
//! wants to find it in a log. Knows no route.
//!
//! hyper hands such a reply to the stream like any other. It is recognised where it is written: while a head is waited for, one piece, and nothing in it
//! that a handler's reply would not have more of.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes};
use http::StatusCode;
use http_body::Body as _;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Handler;
use super::connection::Served;
use super::stream::ClientStream;
use crate::wire::Response;

/// hyper's own replies are shorter.
const CANNED_BYTES_MAX: usize = 256;
const EMPTY: &str = "content-length: 0\r\n";

/// A client's stream whose handler answers in hyper's place.
pub(super) struct Answering<S, H> {
    pub(super) stream: ClientStream<S>,
    served: Arc<Served<H>>,
    /// What is left to write of the handler's answer.
    answer: Bytes,
}

impl<S, H> Answering<S, H> {
    pub(super) fn new(stream: ClientStream<S>, served: Arc<Served<H>>) -> Self {
        Self { stream, served, answer: Bytes::new() }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin, H: Handler> Answering<S, H> {
    /// The handler's answer in the place of `bytes`, where they are hyper's own.
    fn instead_of(&self, bytes: &[u8]) -> Option<Bytes> {
        if !self.served.pulse.in_head() {
            return None;
        }
        let (head, status) = canned(bytes)?;
        Some(written(head, self.served.handler.unreadable(status, &self.served.peer)))
    }

    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.answer.is_empty() {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, &self.answer))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                wrote => self.answer.advance(wrote),
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// The head of a reply of hyper's own, and its status.
fn canned(bytes: &[u8]) -> Option<(&str, StatusCode)> {
    let head = std::str::from_utf8(bytes).ok().filter(|head| head.len() <= CANNED_BYTES_MAX && head.ends_with("\r\n\r\n"))?;
    let status = head.strip_prefix("HTTP/1.1 4")?.get(..2)?;
    let fields = head.lines().count();
    // Status line, `connection`, `content-length`, `date`, and the empty line.
    let bare = head.contains("connection: close\r\n") && head.contains(EMPTY) && fields <= 5;
    let status = format!("4{status}").parse().ok()?;
    bare.then_some((head, status))
}

/// hyper's head with the fields and the body of `answer`.
fn written(head: &str, answer: Response) -> Bytes {
    let (parts, mut body) = answer.into_parts();
    let mut cx = Context::from_waker(Waker::noop());
    let body = match Pin::new(&mut body).poll_frame(&mut cx) {
        Poll::Ready(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
        // Whole bodies are there at once; another has no place here.
        _ => Bytes::new(),
    };
    let head = head.replacen(EMPTY, "", 1);
    let mut out = head.strip_suffix("\r\n").unwrap_or(&head).as_bytes().to_vec();
    for (name, value) in &parts.headers {
        if name != http::header::CONTENT_LENGTH {
            out.extend_from_slice(name.as_str().as_bytes());
            out.extend_from_slice(b": ");
            out.extend_from_slice(value.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
    }
    out.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
    out.extend_from_slice(&body);
    out.into()
}

impl<S: AsyncRead + AsyncWrite + Unpin, H: Handler> AsyncRead for Answering<S, H> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin, H: Handler> AsyncWrite for Answering<S, H> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_answer(cx))?;
        match self.instead_of(buf) {
            None => Pin::new(&mut self.stream).poll_write(cx, buf),
            Some(answer) => {
                // Written by the flush that follows.
                self.answer = answer;
                Poll::Ready(Ok(buf.len()))
            }
        }
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if let [one] = bufs {
            return self.poll_write(cx, one);
        }
        ready!(self.poll_answer(cx))?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_answer(cx))?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_answer(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire;

    const HYPERS: &str = "HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\ndate: Sat, 21 Nov 2026 13:00:00 GMT\r\n\r\n";

    #[test]
    fn only_what_hyper_says_by_itself_is_recognised() {
        assert_eq!(canned(HYPERS.as_bytes()).map(|(_, status)| status.as_u16()), Some(431));
        for other in [
            HYPERS.replace("431", "503"),
            HYPERS.replace("connection: close\r\n", ""),
            HYPERS.replace("date:", "x-request-id: 7\r\ndate:"),
            HYPERS.replace("content-length: 0", "content-length: 2"),
            format!("{HYPERS}ok"),
            "HTTP/1.1 4".into(),
        ] {
            assert!(canned(other.as_bytes()).is_none(), "{other}");
        }
    }

    #[test]
    fn the_answer_has_the_handlers_fields_and_body_and_one_length() {
        let mut answer = Response::new(wire::full("why"));
        answer.headers_mut().insert("x-request-id", "7".parse().unwrap());
        answer.headers_mut().insert("content-length", "3".parse().unwrap());
        let text = String::from_utf8(written(HYPERS, answer).to_vec()).unwrap();
        assert!(text.starts_with("HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ndate: Sat"), "{text}");
        assert!(text.ends_with("GMT\r\nx-request-id: 7\r\ncontent-length: 3\r\n\r\nwhy"), "{text}");
    }
}
