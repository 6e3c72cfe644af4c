//! How long a body is: RFC 9112, 6 and RFC 9110, 8.6. Also runs every named case.

use http::Method;

use super::cases;
use super::drive::{self, cut};
use crate::http1::{self, Framing, HeadError};
use crate::wire::Known;

fn parse(version: &str, fields: &[&str]) -> Result<Framing, HeadError> {
    let fields: String = fields.iter().flat_map(|field| [field, "\r\n"]).collect();
    http1::request(format!("POST / {version}\r\n{fields}\r\n").as_bytes()).map(|head| head.framing)
}

fn parse_reply(
    method: &Method,
    line: &str,
    fields: &[&str],
) -> Result<http1::ReplyHead, HeadError> {
    let fields: String = fields.iter().flat_map(|field| [field, "\r\n"]).collect();
    http1::reply(format!("HTTP/1.1 {line}\r\n{fields}\r\n").as_bytes(), method)
}

#[test]
fn every_named_case_is_answered_as_it_says() {
    for (name, bytes, want) in cases::requests() {
        let got = drive::requests([bytes.as_slice()]);
        assert_eq!((got.ends.len(), got.stop.clone()), want, "{name}");
        for place in 0..bytes.len() {
            assert_eq!(drive::requests(cut(&bytes, &[place])), got, "{name} cut at {place}");
        }
    }
    for (name, bytes, want) in cases::replies() {
        let got = drive::reply([bytes], &Method::GET, true);
        assert_eq!((got.ends.len(), got.stop.clone()), want, "{name}");
        for place in 0..bytes.len() {
            assert_eq!(
                drive::reply(cut(bytes, &[place]), &Method::GET, true),
                got,
                "{name} cut at {place}"
            );
        }
    }
}

#[test]
fn a_request_has_the_body_that_its_fields_declare_and_none_without() {
    assert_eq!(parse("HTTP/1.1", &[]), Ok(Framing::Length(0)));
    assert_eq!(parse("HTTP/1.1", &["Content-Length: 0"]), Ok(Framing::Length(0)));
    assert_eq!(parse("HTTP/1.0", &["Content-Length: 007"]), Ok(Framing::Length(7)));
    assert_eq!(
        parse("HTTP/1.1", &["Content-Length: 7", "content-length:7"]),
        Ok(Framing::Length(7))
    );
    assert_eq!(parse("HTTP/1.1", &["Transfer-Encoding: cHUNKED"]), Ok(Framing::Chunked));
    assert_eq!(
        parse("HTTP/1.1", &[&format!("Content-Length: {}", i64::MAX)]),
        Ok(Framing::Length(i64::MAX as u64))
    );
}

#[test]
fn whatever_could_be_read_in_two_ways_is_refused() {
    let lengths = [
        "",
        "+5",
        "-5",
        "0x5",
        "5a",
        "5 5",
        "5,5",
        "5, 6",
        "5,",
        ",5",
        "5.0",
        "5e0",
        "5_0",
        "\"5\"",
        "five",
        "9223372036854775808",
        "18446744073709551615",
        "18446744073709551616",
        "99999999999999999999999999",
        "\u{0665}",
    ];
    for length in lengths {
        let refused = parse("HTTP/1.1", &[&format!("Content-Length: {length}")]);
        assert!(matches!(refused, Err(HeadError::Malformed(_))), "{length}: {refused:?}");
        let beside =
            parse("HTTP/1.1", &["Content-Length: 5", &format!("Content-Length: {length}")]);
        assert!(matches!(beside, Err(HeadError::Malformed(_))), "{length} beside 5: {beside:?}");
    }
    for coding in [
        "",
        "gzip",
        "identity",
        "chunked, gzip",
        "chunked, chunked",
        "chunked, ",
        "xchunked",
        "chunkedx",
        "chunked;q=1",
        "\"chunked\"",
        "chunked gzip",
    ] {
        let refused = parse("HTTP/1.1", &[&format!("Transfer-Encoding: {coding}")]);
        assert!(matches!(refused, Err(HeadError::Malformed(_))), "{coding}: {refused:?}");
    }
    let refused = |version: &str, fields: &[&str]| {
        matches!(parse(version, fields), Err(HeadError::Malformed(_)))
    };
    assert!(refused("HTTP/1.1", &["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"]));
    assert!(refused("HTTP/1.1", &["Transfer-Encoding: chunked", "Transfer-Encoding: gzip"]));
    assert!(refused("HTTP/1.0", &["Transfer-Encoding: chunked"]), "1.0 has none");
    for length in ["5", "0", "", "x"] {
        let length = format!("Content-Length: {length}");
        assert!(
            refused("HTTP/1.1", &["Transfer-Encoding: chunked", &length])
                && refused("HTTP/1.1", &[&length, "Transfer-Encoding: chunked"])
        );
        assert!(refused("HTTP/1.1", &["Transfer-Encoding: gzip", &length]));
    }
}

#[test]
fn a_coding_under_the_chunks_is_one_that_nobody_knows() {
    for fields in [
        &["Transfer-Encoding: gzip, chunked"][..],
        &["Transfer-Encoding: gzip", "Transfer-Encoding: chunked"],
        &["Transfer-Encoding: ,chunked"],
    ] {
        assert_eq!(parse("HTTP/1.1", fields), Err(HeadError::UnknownCoding), "{fields:?}");
    }
    assert_eq!(HeadError::UnknownCoding.status().as_u16(), 501);
}

#[test]
fn a_reply_ends_as_it_says_or_with_its_connection() {
    let framing =
        |fields: &[&str]| parse_reply(&Method::GET, "200 OK", fields).map(|head| head.framing);
    assert_eq!(framing(&[]).unwrap(), Framing::UntilClose);
    assert_eq!(framing(&["Content-Length: 5"]).unwrap(), Framing::Length(5));
    assert_eq!(framing(&["Content-Length: 0"]).unwrap(), Framing::Length(0));
    assert_eq!(framing(&["Transfer-Encoding: chunked"]).unwrap(), Framing::Chunked);
    for length in ["", "5, 6", "+5", "0x5", "5,,5", "9223372036854775808", "x"] {
        let refused = framing(&[&format!("Content-Length: {length}")]);
        assert!(matches!(refused, Err(HeadError::Malformed(_))), "{length}: {refused:?}");
    }
    assert!(framing(&["Content-Length: 5", "Content-Length: 6"]).is_err());
    for coding in [
        "",
        "gzip",
        "gzip, chunked",
        "chunked, gzip",
        "chunked, chunked",
        "chunked,",
        "xchunked",
        "identity",
    ] {
        assert_eq!(
            framing(&[&format!("Transfer-Encoding: {coding}")]),
            Err(HeadError::UnknownCoding),
            "{coding}"
        );
    }
    let old = http1::reply(b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", &Method::GET);
    assert_eq!(old.map(|head| head.framing).unwrap_err(), HeadError::UnknownCoding);
}

#[test]
fn a_length_is_passed_on_once_and_not_beside_chunks() {
    let lengths = |fields: &[&str]| {
        let head = parse_reply(&Method::GET, "200 OK", fields).unwrap();
        head.reply
            .fields
            .get_all(Known::ContentLength)
            .map(|value| String::from_utf8(value.to_vec()).unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(lengths(&["Content-Length: 5"]), ["5"]);
    assert_eq!(lengths(&["Content-Length: 5, 5"]), ["5"]);
    assert_eq!(lengths(&["Content-Length: 5", "Content-Length: 05"]), ["5"]);
    assert!(lengths(&["Transfer-Encoding: chunked", "Content-Length: 3"]).is_empty());
    assert!(lengths(&["Content-Length: nonsense", "Transfer-Encoding: chunked"]).is_empty());
}

#[test]
fn replies_that_have_no_body_have_none_whatever_they_declare() {
    for fields in [
        &[][..],
        &["Content-Length: 5"],
        &["Transfer-Encoding: chunked"],
        &["Transfer-Encoding: chunked", "Content-Length: 5"],
    ] {
        for line in [
            "204 No Content",
            "304 Not Modified",
            "100 Continue",
            "103 Early Hints",
            "101 Switching Protocols",
        ] {
            assert_eq!(
                parse_reply(&Method::GET, line, fields).unwrap().framing,
                Framing::Length(0),
                "{line} {fields:?}"
            );
        }
        let head = parse_reply(&Method::HEAD, "200 OK", fields).unwrap();
        assert_eq!(head.framing, Framing::Length(0), "{fields:?}");
        assert!(head.keep_alive);
    }
    // The length that the reply to a GET would have is passed on.
    let head = parse_reply(&Method::HEAD, "200 OK", &["Content-Length: 5"]).unwrap();
    assert_eq!(head.reply.fields.get(Known::ContentLength).unwrap(), b"5");
    // An invalid length is refused even so.
    assert!(parse_reply(&Method::HEAD, "200 OK", &["Content-Length: x"]).is_err());
    assert!(parse_reply(&Method::GET, "304 Not Modified", &["Transfer-Encoding: gzip"]).is_err());
}
