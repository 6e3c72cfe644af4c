//! Parsing heads: RFC 9112, 2.2 (lines), 3 (request line), 3.2 (target), 4 (status line), 5
//! (fields) and 9.3 (persistence); RFC 9110, 5 (fields).

use http::{Method, StatusCode, Version};

use super::drive::{self, Stop, cut, of_fields};
use crate::http1::head::FIELDS_MAX;
use crate::http1::{self, HeadError, RequestHead, Scan};
use crate::wire::Known;

/// Parses the head of a request with this line and these fields.
fn parse(line: &str, fields: &[&str]) -> Result<RequestHead, HeadError> {
    let mut head = format!("{line}\r\n");
    fields.iter().for_each(|field| head.extend([field, "\r\n"]));
    head.push_str("\r\n");
    let range = Scan::default().find(head.as_bytes(), false)?.expect("it is whole");
    assert_eq!(range, 0..head.len());
    http1::request(head.as_bytes())
}

fn malformed(line: &str, fields: &[&str]) -> bool {
    matches!(parse(line, fields), Err(HeadError::Malformed(_)))
}

/// The target and authority of `GET target`.
fn target(raw: &str) -> Option<(String, Option<String>)> {
    let head = parse(&format!("GET {raw} HTTP/1.1"), &[]).ok()?;
    Some((head.request.target().to_owned(), head.request.authority().map(str::to_owned)))
}

fn path(raw: &str) -> Option<String> {
    target(raw).map(|(path, _)| path)
}

#[test]
fn a_head_cut_anywhere_is_found_where_it_is_when_it_is_whole() {
    let bytes = b"\r\n\r\nGET /a HTTP/1.1\r\nHost: a\r\nX-Key:\r\n\r\nGET /b HTTP/1.1\r\n\r\n";
    let end = bytes.len() - b"GET /b HTTP/1.1\r\n\r\n".len();
    for place in 0..=bytes.len() {
        let mut scan = Scan::default();
        let first = scan.find(&bytes[..place], false).unwrap();
        assert_eq!(first, (place >= end).then_some(4..end), "cut at {place}");
        if first.is_none() {
            assert_eq!(scan.has_begun(), place > 4 || matches!(place, 1 | 3), "cut at {place}");
            assert_eq!(scan.find(bytes, false).unwrap(), Some(4..end), "cut at {place}");
        }
    }
}

#[test]
fn a_head_in_single_bytes_is_found_once() {
    let bytes = b"GET / HTTP/1.1\r\nA: b\r\n\r\n";
    let mut scan = Scan::default();
    let found: Vec<_> =
        (1..=bytes.len()).filter_map(|end| scan.find(&bytes[..end], false).unwrap()).collect();
    assert_eq!((found.len(), found[0].clone()), (1, 0..bytes.len()));
}

#[test]
fn lines_end_in_a_return_and_a_line_end_unless_a_reply_is_read() {
    for bytes in [
        "GET / HTTP/1.1\n\n",
        "GET / HTTP/1.1\r\nA: b\n\r\n",
        "\nGET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nA: b\r\n\n",
        "\n",
    ] {
        assert!(
            matches!(Scan::default().find(bytes.as_bytes(), false), Err(HeadError::Malformed(_))),
            "{bytes:?}"
        );
    }
    for bytes in [
        "GET / HTTP/1.1\r\nA: b\n\r\n",
        "GET / HTTP/1.1\nA: b\r\n\r\n",
        "GET / HTTP/1.1\r\nA: b\r\nC: d\n\r\n",
        "GET / HTTP/1.1\r\nA:\n\r\n",
        "GET / HTTP/1.1\n\r\n",
    ] {
        assert!(
            matches!(Scan::default().request(bytes.as_bytes()), Err(HeadError::Malformed(_))),
            "{bytes:?}"
        );
    }
    // Reported as soon as it is seen.
    assert!(Scan::default().find(b"GET / HTTP/1.1\nA", false).is_err());
    for bytes in [
        "HTTP/1.1 200 OK\nA: b\n\nx",
        "HTTP/1.1 200 OK\r\nA: b\n\r\nx",
        "HTTP/1.1 200 OK\r\nA: b\r\n\nx",
    ] {
        assert_eq!(
            Scan::default().find(bytes.as_bytes(), true).unwrap(),
            Some(0..bytes.len() - 1),
            "{bytes:?}"
        );
    }
}

#[test]
fn a_bare_return_or_a_nul_is_refused_wherever_it_stands() {
    for byte in ['\r', '\0'] {
        assert!(malformed(&format!("G{byte}ET / HTTP/1.1"), &[]), "{byte:?}");
        assert!(malformed(&format!("GET /{byte} HTTP/1.1"), &[]), "{byte:?}");
        assert!(malformed(&format!("GET / HTTP/1.1{byte}"), &[]), "{byte:?}");
        assert!(malformed("GET / HTTP/1.1", &[&format!("X{byte}: a")]), "{byte:?}");
        assert!(malformed("GET / HTTP/1.1", &[&format!("X: a{byte}")]), "{byte:?}");
        assert!(malformed("GET / HTTP/1.1", &[&format!("X: a{byte}b")]), "{byte:?}");
        assert!(malformed("GET / HTTP/1.1", &["X: a", &format!("{byte}Y: a")]), "{byte:?}");
    }
}

#[test]
fn a_request_line_has_three_parts_with_one_blank_between() {
    assert!(parse("GET / HTTP/1.1", &[]).is_ok());
    for line in [
        "GET  / HTTP/1.1",
        "GET /  HTTP/1.1",
        " GET / HTTP/1.1",
        "GET / HTTP/1.1 ",
        "GET\t/ HTTP/1.1",
        "GET /\tHTTP/1.1",
        "GET /a b HTTP/1.1",
        "GET /",
        "GET",
        "GET HTTP/1.1",
        "GET: / HTTP/1.1",
        "G\u{e4}T / HTTP/1.1",
        "G(T / HTTP/1.1",
    ] {
        assert!(malformed(line, &[]), "{line}");
    }
}

#[test]
fn a_method_keeps_its_case() {
    for method in ["GET", "get", "PURGE", "M!#$%&'*+-.^_`|~9"] {
        assert_eq!(
            parse(&format!("{method} / HTTP/1.1"), &[]).unwrap().request.method.as_str(),
            method
        );
    }
}

#[test]
fn only_versions_1_0_and_1_1_are_taken() {
    let version =
        |text: &str| parse(&format!("GET / {text}"), &[]).map(|head| head.request.version);
    assert_eq!(version("HTTP/1.0").unwrap(), Version::HTTP_10);
    assert_eq!(version("HTTP/1.1").unwrap(), Version::HTTP_11);
    for other in [
        "HTTP/0.9",
        "HTTP/1.2",
        "HTTP/2",
        "HTTP/2.0",
        "HTTP/1",
        "HTTP/1.",
        "HTTP/1.10",
        "HTTP/01.1",
        "http/1.1",
        "HTTP/1,1",
        "ICAP/1.0",
        "HTTP 1.1",
    ] {
        assert!(matches!(version(other), Err(HeadError::Malformed(_))), "{other}");
    }
}

#[test]
fn a_path_is_taken_as_it_came_without_its_fragment() {
    let same = [
        "/",
        "/a/b;c=d?e=f&g",
        "/%00%2f",
        "/a//../b/.",
        "/?",
        "/?/?",
        "/\"{}~!$&'()*+,;=:@",
        "/\u{e4}?\u{e4}",
        "/a?\\^`|{}",
    ];
    for raw in same {
        assert_eq!(target(raw), Some((raw.to_owned(), None)), "{raw}");
    }
    assert_eq!(path("/a?b#c?d").unwrap(), "/a?b");
    assert_eq!(path("/#?").unwrap(), "/");
    for raw in ["/<", "/>", "/a?<", "/a?>", "/\u{7f}x", "/a?\"", "a", "", "?a", "#", "\u{e4}"] {
        assert_eq!(target(raw), None, "{raw:?}");
    }
    let mut head = b"GET /\xe4 HTTP/1.1\r\n\r\n".to_vec();
    assert!(http1::request(&head).is_err(), "no UTF-8");
    head.splice(5..6, "\u{e4}".bytes());
    assert!(http1::request(&head).is_ok());
}

#[test]
fn an_absolute_target_is_taken_apart() {
    let parts =
        |raw: &str| target(raw).map(|(path, authority)| format!("{} {path}", authority.unwrap()));
    assert_eq!(parts("http://a/b?c").unwrap(), "a /b?c");
    assert_eq!(parts("HTTPS://A.b:80/").unwrap(), "A.b:80 /");
    assert_eq!(parts("http://[::1]:8080/x").unwrap(), "[::1]:8080 /x");
    assert_eq!(parts("http://a").unwrap(), "a ");
    assert_eq!(parts("http://a?b").unwrap(), "a ?b");
    assert_eq!(parts("http://a#b").unwrap(), "a ");
    assert_eq!(parts("http://a/b#c").unwrap(), "a /b");
    for raw in [
        "http:///a",
        "http://",
        "http:a",
        "ftp://a/",
        "://a",
        "//a",
        "http://a/<",
        "httpx://a/",
        "http:/a/b",
    ] {
        assert!(parts_or_path(raw), "{raw}");
    }
}

/// Whether it is refused, or only has a path.
fn parts_or_path(raw: &str) -> bool {
    target(raw).is_none_or(|(path, authority)| authority.is_none() && path == raw)
}

#[test]
fn an_authority_is_what_connect_asks_for_and_a_star_what_options_may() {
    let connect = parse("CONNECT a:443 HTTP/1.1", &[]).unwrap().request;
    assert_eq!(
        (&connect.method, connect.target(), connect.authority()),
        (&Method::CONNECT, "", Some("a:443"))
    );
    assert_eq!(target("a:443"), None);
    assert_eq!(path("*").unwrap(), "*");
    assert_eq!(target("*a"), None);
}

#[test]
fn a_name_is_a_token_directly_before_its_colon() {
    for field in [
        "X : a",
        "X\t: a",
        " X: a",
        "\tX: a",
        ": a",
        " : a",
        "X",
        "X a",
        "(X): a",
        "\"X\": a",
        "X\u{e4}: a",
        "X/Y: a",
        "X\u{1}: a",
        "X Y: a",
    ] {
        assert!(malformed("GET / HTTP/1.1", &[field, "Host: a"]), "first: {field:?}");
        assert!(malformed("GET / HTTP/1.1", &["Host: a", field]), "last: {field:?}");
    }
    let names = "!#$%&'*+-.^_`|~09azAZ";
    let head = parse("GET / HTTP/1.1", &[&format!("{names}: a")]).unwrap();
    assert_eq!(
        head.request.fields.iter().collect::<Vec<_>>(),
        [(names.as_bytes(), b"a".as_slice())]
    );
}

#[test]
fn a_line_that_is_folded_is_refused() {
    for fields in [["X: a", " b"], ["X: a", "\tb"], ["X:", " a"], ["X: a", " Y: b"], ["X: a", " "]]
    {
        assert!(malformed("GET / HTTP/1.1", &fields), "{fields:?}");
    }
    let folded = b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n";
    assert!(matches!(http1::reply(folded, &Method::GET), Err(HeadError::Malformed(_))));
}

#[test]
fn a_value_is_what_stands_between_the_blanks() {
    let value = |field: &str| {
        parse("GET / HTTP/1.1", &[field])
            .map(|head| head.request.fields.get("x").unwrap().to_vec())
            .ok()
    };
    for (field, expected) in [
        ("X:a", "a"),
        ("X: a", "a"),
        ("X: \t a \t ", "a"),
        ("X: a b\tc", "a b\tc"),
        ("X:", ""),
        ("X: ", ""),
        ("X: \t", ""),
        ("X: a:b: c", "a:b: c"),
        ("X: \u{e4}\u{ff}", "\u{e4}\u{ff}"),
        ("X: \",;()", "\",;()"),
    ] {
        assert_eq!(value(field).as_deref(), Some(expected.as_bytes()), "{field:?}");
    }
    for byte in (0..0x20_u8).chain([0x7F]).filter(|byte| !matches!(byte, b'\t' | b'\r' | b'\n')) {
        assert_eq!(value(&format!("X: a{}b", char::from(byte))), None, "{byte:#x}");
    }
    let mut head = b"GET / HTTP/1.1\r\nX: \x80\xfe\xff\r\nY: b\r\n\r\n".to_vec();
    assert_eq!(http1::request(&head).unwrap().request.fields.get("x").unwrap(), b"\x80\xfe\xff");
    head.truncate(head.len() - 2);
    assert!(http1::request(&head).is_err(), "it must be whole");
}

#[test]
fn fields_keep_order_and_case_and_are_written_as_they_came() {
    let head = parse("GET / HTTP/1.1", &["hOST: a", "X-Key:  one ", "E:", "x-kEY:two"]).unwrap();
    let fields = &head.request.fields;
    assert_eq!(
        of_fields(fields),
        [("host", "a"), ("x-key", "one"), ("e", ""), ("x-key", "two")]
            .map(|(n, v)| (n.to_owned(), v.into()))
    );
    assert_eq!(fields.get_all("x-key").collect::<Vec<_>>(), [b"one", b"two"]);
    assert_eq!(fields.get(Known::Host).unwrap(), b"a");
    let mut out = Vec::new();
    fields.write(&mut out);
    assert_eq!(out, b"hOST: a\r\nX-Key:  one \r\nE:\r\nx-kEY:two\r\n");
}

#[test]
fn there_may_be_so_many_fields_and_no_more() {
    let fields = vec!["X: a"; FIELDS_MAX + 1];
    assert!(parse("GET / HTTP/1.1", &fields[1..]).is_ok());
    let refused = parse("GET / HTTP/1.1", &fields).unwrap_err();
    assert_eq!(
        (refused, refused.status()),
        (HeadError::TooManyFields, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE)
    );
    let reply = format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: a\r\n".repeat(FIELDS_MAX + 1));
    assert_eq!(http1::reply(reply.as_bytes(), &Method::GET).unwrap_err(), HeadError::TooManyFields);
}

#[test]
fn a_head_of_all_sorts_cut_at_every_byte_gives_the_same_answer() {
    let bytes = b"\r\nPOST http://a/b?c#d HTTP/1.1\r\nHost:a\r\nX-Key: \xff \r\nE:\r\nContent-Length: 3\r\n\r\nabcGET /b HTTP/1.0\r\n\r\n";
    let whole = drive::requests([bytes.as_slice()]);
    assert_eq!((whole.messages.len(), whole.stop.clone()), (2, Stop::Closes));
    for first in 0..bytes.len() {
        for second in (first..bytes.len()).step_by(7) {
            assert_eq!(
                drive::requests(cut(bytes, &[first, second])),
                whole,
                "cut at {first} and {second}"
            );
        }
    }
}

#[test]
fn a_connection_is_kept_unless_somebody_says_otherwise() {
    let kept = |version: &str, fields: &[&str]| {
        parse(&format!("GET / {version}"), fields).unwrap().keep_alive
    };
    assert!(kept("HTTP/1.1", &[]) && !kept("HTTP/1.0", &[]));
    assert!(
        kept("HTTP/1.1", &["Connection: x"])
            && kept("HTTP/1.1", &["Connection: keep-alive"])
            && kept("HTTP/1.1", &["Connection: closed"])
    );
    assert!(
        kept("HTTP/1.0", &["Connection: x, Keep-Alive"]) && !kept("HTTP/1.0", &["Connection: x"])
    );
    for close in
        ["Connection: close", "connection: CLOSE", "Connection: x ,\tclose", "Connection: close,"]
    {
        assert!(
            !kept("HTTP/1.1", &[close]) && !kept("HTTP/1.0", &["Connection: keep-alive", close]),
            "{close}"
        );
        assert!(!kept("HTTP/1.1", &[close, "Connection: keep-alive"]), "{close}");
    }
    let reply = |head: &str| http1::reply(head.as_bytes(), &Method::GET).unwrap().keep_alive;
    assert!(
        reply("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            && !reply("HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n")
    );
    assert!(reply("HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n"));
    assert!(
        !reply("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            && !reply("HTTP/1.1 200 OK\r\n\r\n")
    );
}

#[test]
fn a_hundred_is_awaited_by_whoever_says_so_and_has_a_body() {
    let awaited = |line: &str, fields: &[&str]| parse(line, fields).unwrap().expects_continue;
    assert!(awaited("POST / HTTP/1.1", &["Expect: 100-Continue", "Content-Length: 1"]));
    assert!(awaited("POST / HTTP/1.1", &["Expect: 100-continue", "Transfer-Encoding: chunked"]));
    assert!(
        !awaited("POST / HTTP/1.1", &["Expect: 100-continue"])
            && !awaited("POST / HTTP/1.1", &["Content-Length: 1"])
    );
    assert!(!awaited("POST / HTTP/1.0", &["Expect: 100-continue", "Content-Length: 1"]));
    assert!(!awaited("POST / HTTP/1.1", &["Expect: something", "Content-Length: 1"]));
}

#[test]
fn a_status_line_is_read_with_or_without_a_reason() {
    let read = |line: &str| {
        http1::reply(format!("{line}\r\nContent-Length: 0\r\n\r\n").as_bytes(), &Method::GET)
            .map(|head| head.reply)
    };
    let own = read("HTTP/1.1 200 Fine \tby me").unwrap();
    assert_eq!(
        (own.status, own.reason.as_deref()),
        (StatusCode::OK, Some(b"Fine \tby me".as_slice()))
    );
    for line in ["HTTP/1.1 200 OK", "HTTP/1.0 200 OK", "HTTP/1.1 200 ", "HTTP/1.1 200"] {
        let reply = read(line).unwrap();
        assert_eq!((reply.status, reply.reason), (StatusCode::OK, None), "{line}");
    }
    assert_eq!(read("HTTP/1.1 999 No").unwrap().status.as_u16(), 999);
    for line in [
        "HTTP/1.1 20 OK",
        "HTTP/1.1 2000 OK",
        "HTTP/1.1 099 OK",
        "HTTP/1.1  200 OK",
        "HTTP/1.1 -20 OK",
        "HTTP/2 200 OK",
        "HTTP/1.2 200 OK",
        "200 OK",
        "HTTP/1.1 200 a\u{1}",
        "HTTP/1.1 200OK",
        " HTTP/1.1 200 OK",
    ] {
        assert!(matches!(read(line), Err(HeadError::Malformed(_))), "{line}");
    }
}

#[test]
fn a_reply_with_bare_lines_is_passed_on_with_whole_ones() {
    let head = http1::reply(b"HTTP/1.1 200 OK\nX-Key:  one \nContent-Length: 5\n\n", &Method::GET)
        .unwrap();
    let mut out = Vec::new();
    head.reply.fields.write(&mut out);
    assert_eq!(out, b"X-Key: one\r\nContent-Length: 5\r\n");
    assert_eq!(head.framing, http1::Framing::Length(5));
}

#[test]
fn a_length_that_is_written_twice_is_one_field() {
    let head = parse("POST / HTTP/1.1", &["Content-Length: 7", "Content-Length: 07"]).unwrap();
    let lengths: Vec<&[u8]> = head.request.fields.get_all("content-length").collect();
    assert_eq!(lengths, [b"7"]);
    assert_eq!(head.framing, crate::http1::Framing::Length(7));
}
