//! Writing messages: RFC 9112, 2.1, 3, 4, 6 and 7; RFC 9110, 6.6.1 and 8.6. Each message is read
//! back by us, by httparse and by hyper.

use std::task::{Context, Poll, Waker};

use http::{HeaderMap, Method, StatusCode, Version};

use super::cases;
use super::drive::{self, Start, Stop};
use super::reference;
use super::send::{Pieces, Slow, map, round_trip, send};
use crate::http1::{self, Encoding, Outbox, SendError};
use crate::wire::{Body, Fields, Known};

/// Too large to be gathered, so it is sent directly.
const LARGE: usize = (16 << 10) + 1;

fn request(line: &str, fields: &str) -> crate::wire::Request {
    http1::request(format!("{line} HTTP/1.1\r\n{fields}\r\n").as_bytes()).unwrap().request
}

fn pieces(sizes: &[usize], declared: Option<u64>, trailers: Option<HeaderMap>, late: bool) -> Body {
    let mut all = Pieces::of(&[], 1);
    all.pieces =
        sizes.iter().enumerate().map(|(at, size)| vec![b'a' + at as u8; *size]).rev().collect();
    (all.declared, all.trailers, all.late) = (declared, trailers, late);
    Body::source(Box::new(all))
}

fn content(sizes: &[usize]) -> Vec<u8> {
    sizes.iter().enumerate().flat_map(|(at, size)| vec![b'a' + at as u8; *size]).collect()
}

/// The bytes that are sent for `body` after the head `H`.
fn sent(encoding: Encoding, mut body: Body, connection: Slow) -> Result<Vec<u8>, SendError> {
    let mut outbox = Outbox::default();
    outbox.begin(encoding).push(b'H');
    let bytes = send(&mut outbox, &mut body, connection)?;
    assert!(outbox.is_empty() && outbox.has_ended() && !outbox.awaits_body());
    assert_eq!(outbox.sent_bytes(), bytes.len() as u64);
    assert_eq!(bytes[0], b'H');
    Ok(bytes[1..].to_vec())
}

#[test]
fn a_request_head_is_written_in_one_form() {
    let written = |line: &str, fields: &str, encoding: Encoding| {
        let mut out = Vec::new();
        http1::request_head(&mut out, &mut request(line, fields), encoding);
        String::from_utf8(out).unwrap()
    };
    assert_eq!(
        written("GET /a?b#c", "hOST:  a \r\n", Encoding::NoBody),
        "GET /a?b HTTP/1.1\r\nhOST:  a \r\n\r\n"
    );
    assert_eq!(
        written("POST http://x/a", "Content-Length: 5\r\nA: b\r\n", Encoding::Length(5)),
        "POST /a HTTP/1.1\r\nContent-Length: 5\r\nA: b\r\n\r\n"
    );
    assert_eq!(written("OPTIONS *", "", Encoding::NoBody), "OPTIONS * HTTP/1.1\r\n\r\n");
    // The declared length is the one that is sent.
    let length = |fields: &str, encoding: Encoding| {
        written("POST /", fields, encoding).replace("POST / HTTP/1.1\r\n", "")
    };
    assert_eq!(length("", Encoding::Length(0)), "content-length: 0\r\n\r\n");
    assert_eq!(length("Content-Length: 5\r\n", Encoding::Length(7)), "content-length: 7\r\n\r\n");
    assert_eq!(length("Content-Length: 5\r\n", Encoding::Length(0)), "content-length: 0\r\n\r\n");
    assert_eq!(length("Content-Length: 05\r\n", Encoding::Length(5)), "content-length: 5\r\n\r\n");
    assert_eq!(
        length("Content-Length: 5\r\nContent-Length: 5\r\n", Encoding::Length(5)),
        "content-length: 5\r\n\r\n"
    );
    assert_eq!(
        length("Content-Length: 5\r\nContent-Length: 05\r\n", Encoding::Length(5)),
        "content-length: 5\r\n\r\n"
    );
    assert_eq!(
        length("Transfer-Encoding: chunked\r\n", Encoding::Length(5)),
        "content-length: 5\r\n\r\n"
    );
    assert_eq!(
        length("Content-Length: 5\r\n", Encoding::Chunked),
        "transfer-encoding: chunked\r\n\r\n"
    );
    assert_eq!(
        length("Transfer-Encoding: CHUNKED\r\n", Encoding::Chunked),
        "transfer-encoding: chunked\r\n\r\n"
    );
    assert_eq!(length("Transfer-Encoding: chunked\r\n", Encoding::NoBody), "\r\n");
}

#[test]
fn a_reply_head_is_written_in_one_form() {
    let written = |status: u16,
                   reason: Option<&[u8]>,
                   lines: &[(&str, &str)],
                   encoding: Encoding,
                   to: (Version, bool)| {
        let mut fields = Fields::new();
        lines.iter().for_each(|(name, value)| fields.append(*name, value));
        let mut out = Vec::new();
        http1::reply_head(
            &mut out,
            (StatusCode::from_u16(status).unwrap(), reason),
            &mut fields,
            encoding,
            to,
        );
        String::from_utf8(out).unwrap()
    };
    let dated = [("date", "then")];
    let (new, old) = (Version::HTTP_11, Version::HTTP_10);
    assert_eq!(
        written(200, None, &dated, Encoding::Length(5), (new, false)),
        "HTTP/1.1 200 OK\r\ndate: then\r\ncontent-length: 5\r\n\r\n"
    );
    assert_eq!(
        written(200, Some(b"Fine"), &dated, Encoding::NoBody, (new, false)),
        "HTTP/1.1 200 Fine\r\ndate: then\r\n\r\n"
    );
    assert_eq!(
        written(599, None, &dated, Encoding::NoBody, (new, false)),
        "HTTP/1.1 599 \r\ndate: then\r\n\r\n"
    );
    assert_eq!(
        written(204, None, &dated, Encoding::NoBody, (new, true)),
        "HTTP/1.1 204 No Content\r\ndate: then\r\nconnection: close\r\n\r\n"
    );
    assert_eq!(
        written(200, None, &dated, Encoding::Chunked, (new, false)),
        "HTTP/1.1 200 OK\r\ndate: then\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    assert_eq!(
        written(200, None, &dated, Encoding::Close, (old, true)),
        "HTTP/1.0 200 OK\r\ndate: then\r\nconnection: close\r\n\r\n"
    );
    assert_eq!(
        written(200, None, &dated, Encoding::Length(1), (old, false)),
        "HTTP/1.0 200 OK\r\ndate: then\r\ncontent-length: 1\r\nconnection: keep-alive\r\n\r\n"
    );
    // The reply to a HEAD keeps its length.
    let length = [("Date", "then"), ("Content-Length", "7")];
    assert_eq!(
        written(200, None, &length, Encoding::NoBody, (new, false)),
        "HTTP/1.1 200 OK\r\nDate: then\r\nContent-Length: 7\r\n\r\n"
    );
    // Interim replies have no date and no length, and `Connection` is not changed.
    let upgrade = [("connection", "upgrade"), ("upgrade", "a"), ("content-length", "5")];
    assert_eq!(
        written(101, None, &upgrade, Encoding::NoBody, (new, true)),
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: a\r\n\r\n"
    );
    assert_eq!(
        written(103, None, &[("Link", "a")], Encoding::NoBody, (new, false)),
        "HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n"
    );
    // A date is added if there is none.
    let text = written(200, None, &[], Encoding::NoBody, (new, false));
    let date = text.lines().find_map(|line| line.strip_prefix("date: ")).unwrap();
    assert!(httpdate::parse_http_date(date).is_ok(), "{text}");
}

#[test]
fn httparse_reads_what_was_written() {
    let mut out = Vec::new();
    http1::request_head(
        &mut out,
        &mut request("POST /a", "X-Key:  \u{e4} \r\nE:\r\n"),
        Encoding::Length(3),
    );
    let mut lines = [httparse::EMPTY_HEADER; 8];
    let mut read = httparse::Request::new(&mut lines);
    assert_eq!(read.parse(&out).unwrap(), httparse::Status::Complete(out.len()));
    assert_eq!((read.method, read.path, read.version), (Some("POST"), Some("/a"), Some(1)));
    let fields: Vec<_> = read.headers.iter().map(|field| (field.name, field.value)).collect();
    assert_eq!(fields, [("X-Key", "\u{e4}".as_bytes()), ("E", b""), ("content-length", b"3")]);
}

#[test]
fn bodies_leave_whole_whatever_their_pieces_and_the_connection() {
    let sizes: [&[usize]; 8] = [
        &[],
        &[1],
        &[5, 0, 7],
        &[LARGE - 1],
        &[LARGE],
        &[3, LARGE, 2],
        &[LARGE, 2 * LARGE],
        &[9000, 9000, 100_000, 1],
    ];
    for sizes in sizes {
        let sizes: Vec<usize> = sizes.iter().copied().filter(|size| *size > 0).collect();
        let all = content(&sizes);
        for (most, hesitates, late) in [
            (usize::MAX, false, false),
            (1, false, true),
            (1000, true, false),
            (20 << 10, true, true),
        ] {
            let to = || Slow::new(most, hesitates);
            let length = all.len() as u64;
            assert!(
                sent(Encoding::Length(length), pieces(&sizes, Some(length), None, late), to())
                    .unwrap()
                    == all,
                "{sizes:?} {most}"
            );
            assert!(
                sent(Encoding::Close, pieces(&sizes, None, None, late), to()).unwrap() == all,
                "{sizes:?} {most}"
            );
            let chunked = sent(Encoding::Chunked, pieces(&sizes, None, None, late), to()).unwrap();
            let expected: Vec<u8> = sizes
                .iter()
                .zip(b'a'..)
                .flat_map(|(size, letter)| {
                    [format!("{size:x}\r\n").into_bytes(), vec![letter; *size], b"\r\n".to_vec()]
                        .concat()
                })
                .chain(*b"0\r\n\r\n")
                .collect();
            assert!(chunked == expected, "{sizes:?} {most}: {}", chunked.escape_ascii());
        }
    }
    assert_eq!(
        sent(Encoding::NoBody, pieces(&[5], Some(5), None, false), Slow::new(1, true)).unwrap(),
        b""
    );
}

#[test]
fn a_large_piece_leaves_with_its_head_and_its_end_with_what_follows() {
    let mut outbox = Outbox::default();
    outbox.begin(Encoding::Chunked).extend_from_slice(b"H");
    let mut body = pieces(&[LARGE, LARGE, 1], None, None, false);
    let mut counting = Counting(Vec::new());
    let mut cx = Context::from_waker(Waker::noop());
    assert!(matches!(outbox.poll_send(&mut cx, &mut counting, &mut body), Poll::Ready(Ok(()))));
    assert_eq!(counting.0, [1 + 6 + LARGE, 2 + 6 + LARGE, 2 + 3 + 3 + 5]);
}

/// Takes everything and records the size of each write.
struct Counting(Vec<usize>);

impl tokio::io::AsyncWrite for Counting {
    fn poll_write(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        self.0.push(bytes.len());
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_write_vectored(
        self: std::pin::Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let all: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        self.poll_write(cx, &all)
    }

    fn poll_flush(
        self: std::pin::Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(
        self: std::pin::Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[test]
fn trailers_follow_chunks_where_they_are_taken() {
    let trailers = || {
        Some(map(&vec![
            ("x".to_owned(), b"1".to_vec()),
            ("x".to_owned(), b"\xff 2".to_vec()),
            ("e".to_owned(), b"".to_vec()),
        ]))
    };
    let written =
        sent(Encoding::Chunked, pieces(&[2], None, trailers(), false), Slow::new(3, true)).unwrap();
    assert_eq!(written, b"2\r\naa\r\n0\r\nx: 1\r\nx: \xff 2\r\ne: \r\n\r\n");
    let mut outbox = Outbox::default();
    outbox.set_trailers(false);
    outbox.begin(Encoding::Chunked);
    let written =
        send(&mut outbox, &mut pieces(&[2], None, trailers(), false), Slow::new(9, false)).unwrap();
    assert_eq!(written, b"2\r\naa\r\n0\r\n\r\n");
    assert_eq!(
        sent(Encoding::Close, pieces(&[2], None, trailers(), false), Slow::new(9, false)).unwrap(),
        b"aa"
    );
}

#[test]
fn a_body_that_is_not_as_long_as_was_said_is_an_error() {
    for (said, sizes) in [
        (3, &[2][..]),
        (3, &[]),
        (3, &[2, 2]),
        (0, &[1]),
        (5, &[LARGE]),
        (LARGE as u64 + 1, &[LARGE]),
        (LARGE as u64, &[1, LARGE]),
    ] {
        let error =
            sent(Encoding::Length(said), pieces(sizes, None, None, false), Slow::new(100, false))
                .unwrap_err();
        assert!(matches!(error, SendError::Length), "{said} {sizes:?}: {error:?}");
    }
}

#[test]
fn no_more_is_written_than_was_said_before_a_longer_body_is_refused() {
    let mut outbox = Outbox::default();
    outbox.begin(Encoding::Length(3)).push(b'H');
    let mut connection = Slow::new(100, false);
    let mut body = pieces(&[2, 2], None, None, false);
    let mut cx = Context::from_waker(Waker::noop());
    assert!(matches!(
        outbox.poll_send(&mut cx, &mut connection, &mut body),
        Poll::Ready(Err(SendError::Length))
    ));
    assert!(connection.taken.len() <= 1 + 3, "{:?}", connection.taken);
}

#[test]
fn a_connection_that_takes_nothing_is_an_error() {
    for sizes in [&[1][..], &[LARGE]] {
        let error = sent(
            Encoding::Length(sizes[0] as u64),
            pieces(sizes, None, None, false),
            Slow::new(0, false),
        )
        .unwrap_err();
        assert!(
            matches!(&error, SendError::Io(error) if error.kind() == std::io::ErrorKind::WriteZero),
            "{error:?}"
        );
    }
}

#[test]
fn an_outbox_says_for_whom_it_waits() {
    let mut outbox = Outbox::default();
    assert!(outbox.is_empty() && outbox.has_ended());
    outbox.begin(Encoding::Length(1)).push(b'H');
    assert!(!outbox.is_empty() && !outbox.has_ended() && !outbox.awaits_body());
    let mut cx = Context::from_waker(Waker::noop());
    let mut body = pieces(&[1], Some(1), None, true);
    // First the connection is pending, then the body.
    let mut connection = Slow::new(10, true);
    assert!(outbox.poll_send(&mut cx, &mut connection, &mut body).is_pending());
    assert!(!outbox.awaits_body() && !outbox.is_empty());
    assert!(
        outbox
            .poll_send(&mut cx, &mut Slow::new(10, false), &mut pieces(&[1], Some(1), None, true))
            .is_pending()
    );
    assert!(outbox.awaits_body() && outbox.is_empty() && !outbox.has_ended());
    assert!(outbox.poll_send(&mut cx, &mut Slow::new(10, false), &mut body).is_ready());
    assert!(!outbox.awaits_body() && outbox.has_ended());
    assert_eq!(outbox.sent_bytes(), 2);
}

#[test]
fn messages_follow_each_other() {
    let mut outbox = Outbox::default();
    let mut all = Vec::new();
    for (path, sizes) in [("/a", &[3_usize][..]), ("/b", &[]), ("/c", &[LARGE])] {
        let length = sizes.iter().sum::<usize>() as u64;
        let encoding = Encoding::Length(length);
        http1::request_head(
            outbox.begin(encoding),
            &mut request(&format!("POST {path}"), "Host: a\r\n"),
            encoding,
        );
        all.extend(
            send(&mut outbox, &mut pieces(sizes, Some(length), None, false), Slow::new(1000, true))
                .unwrap(),
        );
        outbox.shrink();
    }
    let read = drive::requests([all.as_slice()]);
    assert_eq!((read.stop, read.ends.last()), (Stop::More, Some(&all.len())));
    let seen = reference::requests(&all);
    assert!(!seen.failed);
    for messages in [&read.messages, &seen.messages] {
        let bodies: Vec<_> = messages.iter().map(|message| message.body.len()).collect();
        assert_eq!(bodies, [3, 0, LARGE]);
        let Start::Request { target, .. } = &messages[2].start else { panic!("{messages:?}") };
        assert_eq!(target, "/c");
    }
}

#[test]
fn every_case_that_is_accepted_is_written_as_one_message() {
    for (name, bytes, _) in cases::requests() {
        eprintln!("{name}");
        round_trip(&bytes);
    }
    for (name, bytes, _) in cases::replies() {
        eprintln!("{name}");
        round_trip(bytes);
    }
}

#[test]
fn hyper_reads_a_reply_in_each_encoding() {
    let reply = |method: &Method, encoding: Encoding, version: Version, body: Body| {
        let mut outbox = Outbox::default();
        let mut body = body;
        let closes = encoding == Encoding::Close;
        http1::reply_head(
            outbox.begin(encoding),
            (StatusCode::OK, None),
            &mut Fields::new(),
            encoding,
            (version, closes),
        );
        let written = send(&mut outbox, &mut body, Slow::new(1, false)).unwrap();
        let seen = reference::reply(&written, method);
        assert!(!seen.failed, "{}", written.escape_ascii());
        (seen.messages[0].body.clone(), seen.messages[0].trailers.len())
    };
    let trailers = || Some(map(&vec![("x".to_owned(), b"1".to_vec())]));
    assert_eq!(
        reply(
            &Method::GET,
            Encoding::Length(2),
            Version::HTTP_11,
            pieces(&[1, 1], Some(2), None, true)
        ),
        (b"ab".to_vec(), 0)
    );
    assert_eq!(
        reply(
            &Method::GET,
            Encoding::Chunked,
            Version::HTTP_11,
            pieces(&[1, 1], None, trailers(), true)
        ),
        (b"ab".to_vec(), 1)
    );
    assert_eq!(
        reply(&Method::GET, Encoding::Close, Version::HTTP_10, pieces(&[1, 1], None, None, true)),
        (b"ab".to_vec(), 0)
    );
    assert_eq!(
        reply(&Method::HEAD, Encoding::NoBody, Version::HTTP_11, Body::empty()),
        (Vec::new(), 0)
    );
}

#[test]
fn declarations_of_a_head_are_left_as_they_came() {
    let mut fields = Fields::new();
    fields.append(Known::ContentLength, "12");
    let mut out = Vec::new();
    http1::reply_head(
        &mut out,
        (StatusCode::OK, None),
        &mut fields,
        Encoding::NoBody,
        (Version::HTTP_11, false),
    );
    let seen = reference::reply(&out, &Method::HEAD);
    assert_eq!(
        seen.messages[0].fields.iter().find(|(name, _)| name == "content-length").unwrap().1,
        b"12"
    );
}
