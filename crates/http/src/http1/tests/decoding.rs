//! Decoding bodies: RFC 9112, 6.3 and 7, and each state of the table in `mod.rs`.

use super::check;
use super::naive::{self, Read};
use super::{cases, drive};
use crate::http1::{BodyPart, Decoder, Framing, FramingError};

/// Decodes `pieces`. Returns the decoder, the content and what is left of the input.
fn read(framing: Framing, pieces: &[&[u8]]) -> (Decoder, Result<Vec<u8>, FramingError>, Vec<u8>) {
    let mut decoder = Decoder::new(framing);
    let (mut rest, mut content) = (Vec::new(), Vec::new());
    for piece in pieces {
        rest.extend_from_slice(piece);
        loop {
            let mut skipped = 0;
            let next = decoder.next(&rest, |bytes| skipped += bytes);
            rest.drain(..skipped);
            match next {
                Ok(BodyPart::Data(bytes)) => {
                    content.extend(rest.drain(..bytes));
                    decoder.consumed(bytes);
                }
                Ok(BodyPart::More | BodyPart::End) => break,
                Err(malformed) => return (decoder, Err(malformed), rest),
            }
        }
    }
    (decoder, Ok(content), rest)
}

fn chunked(bytes: &[u8]) -> (Decoder, Result<Vec<u8>, FramingError>, Vec<u8>) {
    read(Framing::Chunked, &[bytes])
}

fn is_whole(bytes: &[u8]) -> bool {
    let (decoder, content, rest) = chunked(bytes);
    content.is_ok() && decoder.is_end() && rest.is_empty()
}

fn is_broken(bytes: &[u8]) -> bool {
    chunked(bytes).1.is_err()
}

/// It is incomplete.
fn is_open(bytes: &[u8]) -> bool {
    let (decoder, content, _) = chunked(bytes);
    content.is_ok() && !decoder.is_end()
}

#[test]
fn a_length_ends_after_so_many_bytes_and_leaves_what_follows() {
    let (mut decoder, content, rest) = read(Framing::Length(5), &[b"he", b"", b"llo, next"]);
    assert_eq!(
        (content.unwrap().as_slice(), rest.as_slice()),
        (b"hello".as_slice(), b", next".as_slice())
    );
    assert!(decoder.is_end() && decoder.close());
    assert_eq!((decoder.remaining(), decoder.take_trailers()), (Some(0), None));
}

#[test]
fn a_length_that_is_cut_has_not_ended() {
    let (mut decoder, content, _) = read(Framing::Length(6), &[b"hello"]);
    assert_eq!(content.unwrap(), b"hello");
    assert_eq!((decoder.remaining(), decoder.is_end(), decoder.close()), (Some(1), false, false));
}

#[test]
fn a_length_of_nothing_has_ended_at_once() {
    let mut decoder = Decoder::new(Framing::Length(0));
    assert!(decoder.is_end());
    assert_eq!(decoder.next(b"GET", |_| panic!("nothing is to be skipped")), Ok(BodyPart::End));
}

#[test]
fn content_is_taken_in_parts() {
    let mut decoder = Decoder::new(Framing::Length(5));
    assert_eq!(decoder.next(b"hello!", |_| ()), Ok(BodyPart::Data(5)));
    decoder.consumed(2);
    assert_eq!(decoder.next(b"llo!", |_| ()), Ok(BodyPart::Data(3)));
    assert_eq!(decoder.next(b"", |_| ()), Ok(BodyPart::More));
    decoder.consumed(3);
    assert_eq!(decoder.next(b"!", |_| ()), Ok(BodyPart::End));
}

#[test]
fn until_close_takes_all_and_ends_with_the_connection() {
    let (mut decoder, content, rest) = read(Framing::UntilClose, &[b"he", b"llo\r\n\r\n"]);
    assert_eq!((content.unwrap().as_slice(), rest.len()), (b"hello\r\n\r\n".as_slice(), 0));
    assert_eq!((decoder.remaining(), decoder.is_end()), (None, false));
    assert!(decoder.close() && decoder.is_end());
}

#[test]
fn chunks_are_joined_and_what_follows_is_left() {
    let (mut decoder, content, rest) = chunked(b"5\r\nhello\r\nA\r\n0123456789\r\n00\r\n\r\nGET");
    assert_eq!(
        (content.unwrap().as_slice(), rest.as_slice()),
        (b"hello0123456789".as_slice(), b"GET".as_slice())
    );
    assert!(decoder.is_end() && decoder.take_trailers().is_none());
    assert_eq!(decoder.remaining(), Some(0));
}

#[test]
fn chunks_that_are_cut_have_not_ended() {
    let whole = b"5;a\r\nhello\r\n0\r\nX: y\r\n\r\n";
    for end in 0..whole.len() {
        let (mut decoder, content, _) = chunked(&whole[..end]);
        assert!(content.is_ok() && !decoder.is_end() && !decoder.close(), "cut at {end}");
        assert_eq!(decoder.remaining(), None, "nobody has declared anything");
    }
}

#[test]
fn a_size_is_one_to_fifteen_hexadecimal_digits() {
    for size in ["5", "05", "000000000000005"] {
        assert!(is_whole(format!("{size}\r\nhello\r\n0\r\n\r\n").as_bytes()), "{size}");
    }
    assert!(is_whole(
        b"aB\r\n\
        0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789\
        01234567890123456789012345678901234567890123456789012345678901234567890\r\n0\r\n\r\n"
    ));
    for size in [
        "",
        "0000000000000005",
        "10000000000000005",
        "ffffffffffffffff",
        "+5",
        "-5",
        "0x5",
        " 5",
        "5 5",
        "g",
        "5g",
        "5_",
        "5,",
        "\u{0665}",
    ] {
        assert!(is_broken(format!("{size}\r\nhello\r\n0\r\n\r\n").as_bytes()), "{size}");
    }
    // Refused as soon as there are too many digits, before the line ends.
    assert!(is_open(b"fffffffffffffff") && is_broken(b"ffffffffffffffff"));
    assert!(is_broken(b"x") && is_open(b""));
}

#[test]
fn extensions_are_visible_and_bounded() {
    for extension in [";", ";a", "; a = \"b\\\" c\" ;d", " \t;a", " ", "\t", ";\u{e4}"] {
        assert!(
            is_whole(format!("5{extension}\r\nhello\r\n0{extension}\r\n\r\n").as_bytes()),
            "{extension:?}"
        );
    }
    for extension in
        [" a", "z", "\t5", ";a\0", ";a\u{7f}", ";\u{1}", ";a\rb", ";a\r", "\r", "\0", ","]
    {
        assert!(
            is_broken(format!("5{extension}\r\nhello\r\n0\r\n\r\n").as_bytes()),
            "{extension:?}"
        );
    }
    // One line, including its end.
    let line = |bytes: usize| format!("5;{}\r\nhello\r\n0\r\n\r\n", "a".repeat(bytes - 4));
    assert!(is_whole(line(4 << 10).as_bytes()) && is_broken(line((4 << 10) + 1).as_bytes()));
    // A line without an end is refused when it is too long.
    let endless = format!("5;{}", "a".repeat(4 << 10));
    assert!(
        is_open(&endless.as_bytes()[..(4 << 10) - 1]) && is_broken(&endless.as_bytes()[..4 << 10])
    );
    // All lines of a body.
    let body = |chunks: usize| {
        format!("{}0\r\n\r\n", format!("1;{}\r\nx\r\n", "a".repeat(1023)).repeat(chunks))
    };
    assert!(is_whole(body(16).as_bytes()) && is_broken(body(17).as_bytes()));
}

#[test]
fn lines_end_in_a_return_and_a_line_end() {
    for bytes in [
        "5\nhello\r\n0\r\n\r\n",
        "5\r\nhello\n0\r\n\r\n",
        "5\r\nhello\r\n0\n\r\n",
        "5\r\nhello\r\n0\r\n\n",
        "5\rhello",
        "5\r\r\nhello",
        "5\r\nhello\rx",
    ] {
        assert!(is_broken(bytes.as_bytes()), "{bytes:?}");
    }
}

#[test]
fn a_chunk_is_as_long_as_its_size() {
    for bytes in [
        "4\r\nhello\r\n0\r\n\r\n",
        "6\r\nhello\r\n0\r\n\r\n",
        "5\r\nhello0\r\n\r\n",
        "5\r\nhello \r\n",
    ] {
        assert!(is_broken(bytes.as_bytes()), "{bytes:?}");
    }
    let (_, content, rest) = chunked(b"fffffffffffffff\r\nhello");
    assert_eq!((content.unwrap().as_slice(), rest.len()), (b"hello".as_slice(), 0));
}

#[test]
fn trailers_are_fields_and_bounded() {
    let (mut decoder, content, rest) = chunked(b"0\r\nX-Sum: 1\r\nx-sum:\t2 \r\nE:\r\n\r\nGET");
    assert_eq!((content.unwrap().len(), rest.as_slice()), (0, b"GET".as_slice()));
    assert_eq!(decoder.remaining(), None, "trailers are something, too");
    let trailers = decoder.take_trailers().unwrap();
    assert_eq!(trailers.get_all("x-sum").iter().collect::<Vec<_>>(), ["1", "2"]);
    assert_eq!(trailers["e"], "");
    assert!(decoder.take_trailers().is_none());
    for trailers in [
        "X\r\n",
        "X : a\r\n",
        " X: a\r\n",
        "X: a\r\n b\r\n",
        ": a\r\n",
        "X: \0\r\n",
        "X: a\rb\r\n",
        "X: a\n",
        "X: a\r\n\n",
        "X\u{e4}: a\r\n",
        " \r\n",
    ] {
        assert!(is_broken(format!("0\r\n{trailers}\r\n").as_bytes()), "{trailers:?}");
    }
    let many = |count: usize| format!("0\r\n{}\r\n", "X: a\r\n".repeat(count));
    assert!(is_whole(many(64).as_bytes()) && is_broken(many(65).as_bytes()));
    let long = |bytes: usize| format!("0\r\nX: {}\r\n\r\n", "a".repeat(bytes - 7));
    assert!(is_whole(long(16 << 10).as_bytes()) && is_broken(long((16 << 10) + 1).as_bytes()));
    // Trailers without an end are refused when they are too long, and a bare LF at once.
    assert!(
        is_open(&long(17 << 10).as_bytes()[..3 + (16 << 10) - 1])
            && is_broken(&long(17 << 10).as_bytes()[..3 + (16 << 10)])
    );
    assert!(is_broken(b"0\r\nX: a\nY"));
}

#[test]
fn no_more_is_read_after_an_error_or_the_end() {
    let mut decoder = Decoder::new(Framing::Chunked);
    assert_eq!(decoder.next(b"0\r\n\r\n", |_| ()), Ok(BodyPart::End));
    assert_eq!(
        decoder.next(b"5\r\nhello\r\n", |_| panic!("nothing is to be skipped")),
        Ok(BodyPart::End)
    );
    let mut decoder = Decoder::new(Framing::Chunked);
    assert!(decoder.next(b"x", |_| ()).is_err());
    assert!(decoder.next(b"x\r\n", |_| ()).is_err());
}

#[test]
fn every_case_cut_anywhere_is_what_the_naive_reader_says() {
    for (name, bytes) in cases::chunks() {
        eprintln!("{name}");
        check::chunks(bytes);
        for end in 0..bytes.len() {
            check::chunks(&bytes[..end]);
        }
    }
}

#[test]
fn the_naive_reader_can_tell() {
    let whole = Read::Whole {
        body: b"hello".to_vec(),
        trailers: vec![("x".to_owned(), b"y z".to_vec())],
        end: 26,
    };
    assert_eq!(naive::chunked(b"5;a\r\nhello\r\n0\r\nX: y z \r\n\r\nrest"), whole);
    assert_eq!(naive::chunked(b"5\r\nhel"), Read::Part { body: b"hel".to_vec(), broken: false });
    assert_eq!(
        naive::chunked(b"5\r\nhello0"),
        Read::Part { body: b"hello".to_vec(), broken: true }
    );
    assert_eq!(drive::cut(b"abc", &[1, 1, 9]), [b"a".as_slice(), b"", b"bc", b""]);
}
