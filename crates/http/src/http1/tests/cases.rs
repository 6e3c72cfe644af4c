//! Named cases: how we answer ambiguous messages, and messages that came up in differential runs.
//! The corpus of the fuzz targets starts with them.

use http::StatusCode;

use super::drive::Stop;

/// The number of complete messages, and why reading stops after them.
pub(crate) type Want = (usize, Stop);

/// The first message is refused.
const NO: Want = (0, Stop::HeadRejected(StatusCode::BAD_REQUEST));
/// The same, because its transfer coding is unknown.
const CODING: Want = (0, Stop::HeadRejected(StatusCode::NOT_IMPLEMENTED));
/// One message without a body; what was meant to be its body is refused.
const BARE: Want = (1, Stop::HeadRejected(StatusCode::BAD_REQUEST));
/// The head is valid and the body is not.
const BROKEN: Want = (0, Stop::Broken);
/// The body is incomplete.
const WAITS: Want = (0, Stop::More);
const ONE: Want = (1, Stop::More);
const TWO: Want = (2, Stop::More);
const CLOSES: Want = (1, Stop::Closes);

/// Field lines of a POST that is followed by `0\r\n\r\n` and a GET. Reading that as chunks or as
/// five bytes gives two requests.
const FIELDS: &[(&str, &[u8], Want)] = &[
    ("no-length", b"", BARE),
    ("chunked", b"Transfer-Encoding: chunked\r\n", TWO),
    ("chunked-in-capitals", b"TRANSFER-ENCODING: CHUNKED\r\n", TWO),
    ("length", b"Content-Length: 5\r\n", TWO),
    ("length-of-zeros", b"Content-Length: 0000005\r\n", TWO),
    ("length-after-blanks", b"Content-Length: \t 5 \t\r\n", TWO),
    ("length-without-a-blank", b"Content-Length:5\r\n", TWO),
    ("length-0", b"Content-Length: 0\r\n", BARE),
    ("length-twice", b"Content-Length: 5\r\nContent-Length: 5\r\n", TWO),
    ("length-twice-in-other-digits", b"Content-Length: 5\r\nContent-Length: 05\r\n", TWO),
    ("lengths-that-differ", b"Content-Length: 5\r\nContent-Length: 6\r\n", NO),
    ("lengths-0-and-5", b"Content-Length: 0\r\nContent-Length: 5\r\n", NO),
    ("length-and-an-empty-one", b"Content-Length: 5\r\nContent-Length:\r\n", NO),
    ("lengths-in-a-list", b"Content-Length: 5, 5\r\n", NO),
    ("lengths-in-a-list-that-differ", b"Content-Length: 5,6\r\n", NO),
    ("length-and-a-comma", b"Content-Length: 5,\r\n", NO),
    ("lengths-apart", b"Content-Length: 5 5\r\n", NO),
    ("length-empty", b"Content-Length:\r\n", NO),
    ("length-blank", b"Content-Length: \t \r\n", NO),
    ("length-plus", b"Content-Length: +5\r\n", NO),
    ("length-minus", b"Content-Length: -5\r\n", NO),
    ("length-minus-0", b"Content-Length: -0\r\n", NO),
    ("length-hex", b"Content-Length: 0x5\r\n", NO),
    ("length-hex-digits", b"Content-Length: 5a\r\n", NO),
    ("length-fraction", b"Content-Length: 5.0\r\n", NO),
    ("length-exponent", b"Content-Length: 5e0\r\n", NO),
    ("length-underscore", b"Content-Length: 5_0\r\n", NO),
    ("length-dollar", b"Content-Length: $5\r\n", NO),
    ("length-quoted", b"Content-Length: \"5\"\r\n", NO),
    ("length-other-digits", b"Content-Length: \xd9\xa5\r\n", NO),
    ("length-control", b"Content-Length: 5\x11\r\n", NO),
    ("length-control-before", b"Content-Length: \x01 5\r\n", NO),
    ("length-nul", b"Content-Length: 5\0\r\n", NO),
    ("length-obs-text", b"Content-Length: 5\xa0\r\n", NO),
    ("length-vertical-tab", b"Content-Length: \x0b5\r\n", NO),
    ("length-63-bits", b"Content-Length: 9223372036854775807\r\n", WAITS),
    ("length-64-bits", b"Content-Length: 9223372036854775808\r\n", NO),
    ("length-all-64-bits", b"Content-Length: 18446744073709551615\r\n", NO),
    ("length-65-bits", b"Content-Length: 18446744073709551616\r\n", NO),
    ("length-65-bits-and-5", b"Content-Length: 18446744073709551621\r\n", NO),
    ("length-and-chunked", b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", NO),
    ("chunked-and-length", b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", NO),
    ("chunked-and-length-0", b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n", NO),
    ("gzip-and-length", b"Transfer-Encoding: gzip\r\nContent-Length: 5\r\n", NO),
    ("identity-and-length", b"Transfer-Encoding: identity\r\nContent-Length: 5\r\n", NO),
    ("empty-coding-and-length", b"Transfer-Encoding:\r\nContent-Length: 5\r\n", NO),
    ("chunked-case-and-length", b"tRANSFER-eNCODING: cHUNKED\r\ncONTENT-lENGTH: 5\r\n", NO),
    ("coding-empty", b"Transfer-Encoding:\r\n", NO),
    ("coding-identity", b"Transfer-Encoding: identity\r\n", NO),
    ("coding-gzip", b"Transfer-Encoding: gzip\r\n", NO),
    ("coding-unknown", b"Transfer-Encoding: xchunked\r\n", NO),
    ("coding-shortened", b"Transfer-Encoding: chunk\r\n", NO),
    ("coding-chunked-with-a-parameter", b"Transfer-Encoding: chunked;a=b\r\n", NO),
    ("coding-chunked-quoted", b"Transfer-Encoding: \"chunked\"\r\n", NO),
    ("coding-gzip-chunked", b"Transfer-Encoding: gzip, chunked\r\n", CODING),
    ("coding-identity-chunked", b"Transfer-Encoding: identity, chunked\r\n", CODING),
    (
        "coding-gzip-chunked-in-two-lines",
        b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n",
        CODING,
    ),
    ("coding-chunked-gzip", b"Transfer-Encoding: chunked, gzip\r\n", NO),
    (
        "coding-chunked-gzip-in-two-lines",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: gzip\r\n",
        NO,
    ),
    ("coding-chunked-identity", b"Transfer-Encoding: chunked, identity\r\n", NO),
    ("coding-chunked-twice", b"Transfer-Encoding: chunked, chunked\r\n", NO),
    (
        "coding-chunked-in-two-lines",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        NO,
    ),
    ("coding-chunked-and-a-comma", b"Transfer-Encoding: chunked,\r\n", NO),
    ("coding-comma-and-chunked", b"Transfer-Encoding: , chunked\r\n", CODING),
    ("coding-chunked-control", b"Transfer-Encoding: chunked\x11\r\n", NO),
    ("coding-control-chunked", b"Transfer-Encoding: \x01chunked\r\n", NO),
    ("coding-chunked-del", b"Transfer-Encoding: chunked\x7f\r\n", NO),
    ("coding-chunked-obs-text", b"Transfer-Encoding: chunked\xa0\r\n", NO),
    ("coding-obs-text-chunked", b"Transfer-Encoding: \x80chunked\r\n", NO),
    ("coding-vertical-tab-chunked", b"Transfer-Encoding: \x0bchunked\r\n", NO),
    ("coding-form-feed-chunked", b"Transfer-Encoding: \x0cchunked\r\n", NO),
    ("coding-nul-chunked", b"Transfer-Encoding: \0chunked\r\n", NO),
    ("coding-tab-chunked", b"Transfer-Encoding:\tchunked\t\r\n", TWO),
    ("coding-chunked-apart", b"Transfer-Encoding: chun ked\r\n", NO),
    ("name-blank-colon", b"Transfer-Encoding : chunked\r\n", NO),
    ("name-tab-colon", b"Transfer-Encoding\t: chunked\r\n", NO),
    ("name-blank-colon-and-length", b"Transfer-Encoding : chunked\r\nContent-Length: 5\r\n", NO),
    ("length-name-blank-colon", b"Content-Length : 5\r\nContent-Length: 6\r\n", NO),
    ("name-after-a-blank", b" Transfer-Encoding: chunked\r\n", NO),
    ("name-after-a-tab", b"\tContent-Length: 5\r\n", NO),
    ("name-after-a-control", b"\x01Transfer-Encoding: chunked\r\n", NO),
    ("name-after-a-nul", b"\0Transfer-Encoding: chunked\r\n", NO),
    ("name-before-a-control", b"Content-Length\x01: 5\r\n", NO),
    ("name-before-a-nul", b"Some\0: 5\r\n", NO),
    ("name-apart", b"Transfer- Encoding: chunked\r\n", NO),
    ("name-with-an-underscore", b"Transfer_Encoding: chunked\r\n", BARE),
    ("name-empty", b": chunked\r\n", NO),
    ("name-blank", b" \t: chunked\r\n", NO),
    ("name-that-begins-with-a-colon", b":Transfer-Encoding: chunked\r\n", NO),
    ("name-in-obs-text", b"N\xe4me: a\r\n", NO),
    (
        "name-of-all-that-a-token-may-have",
        b"!#$%&'*+-.^_`|~09azAZ: a\r\nContent-Length: 5\r\n",
        TWO,
    ),
    ("name-with-a-bracket", b"Na(me: a\r\n", NO),
    ("name-with-a-quote", b"\"Name\": a\r\n", NO),
    ("line-without-a-colon", b"Transfer-Encoding chunked\r\n", NO),
    ("value-with-obs-text", b"X-Key: \xc3\xa4\xff\r\nContent-Length: 5\r\n", TWO),
    ("value-with-a-nul", b"X-Key: a\0b\r\n", NO),
    ("value-with-a-bare-return", b"X-Key: a\rContent-Length: 5\r\n", NO),
    ("value-that-ends-in-two-returns", b"X-Key: a\r\r\n", NO),
    ("value-with-a-bare-line-end", b"X-Key: a\nContent-Length: 5\r\n", NO),
    ("value-with-a-bare-line-end-and-a-blank", b"X-Key: a\n b\r\n", NO),
    ("name-with-a-bare-return", b"X\rKey: a\r\n", NO),
    ("name-after-a-bare-return", b"\rContent-Length: 5\r\n", NO),
    ("folded", b"X-Key: a\r\n b\r\n", NO),
    ("folded-by-a-tab", b"Transfer-Encoding:\r\n\tchunked\r\n", NO),
    ("folded-first", b" folded: a\r\nContent-Length: 5\r\n", NO),
    ("folded-blank", b"Content-Length: 5\r\n \r\n", NO),
    ("chunked-in-another-field", b"X-Key: Transfer-Encoding: chunked\r\n", BARE),
    ("close", b"Content-Length: 5\r\nConnection: close\r\n", CLOSES),
    ("close-in-a-list", b"Content-Length: 5\r\nConnection: x, Close\r\n", CLOSES),
    (
        "close-before-keep-alive",
        b"Content-Length: 5\r\nConnection: close\r\nConnection: keep-alive\r\n",
        CLOSES,
    ),
    ("closed-only-in-part", b"Content-Length: 5\r\nConnection: closed\r\n", TWO),
];

/// Request lines, to be followed by a Host field and an empty line.
const LINES: &[(&str, &[u8], Want)] = &[
    ("path", b"GET /a?b HTTP/1.1", ONE),
    ("path-and-fragment", b"GET /a?b#c HTTP/1.1", ONE),
    ("path-of-marks", b"GET /\"{|}^`\\~!$&'()*+,;=:@%?a/b\\\"|^` HTTP/1.1", NO),
    ("path-of-fewer-marks", b"GET /\"{}~!$&'()*+,;=:@%?a/b|~ HTTP/1.1", ONE),
    ("path-in-utf-8", "GET /\u{e4}\u{20ac}?\u{e4} HTTP/1.1".as_bytes(), ONE),
    ("path-in-latin-1", b"GET /\xe4 HTTP/1.1", NO),
    ("path-with-a-tab", b"GET /a\tHTTP/1.1", NO),
    ("path-with-a-blank", b"GET /a b HTTP/1.1", NO),
    ("path-with-a-nul", b"GET /a\0 HTTP/1.1", NO),
    ("path-with-a-control", b"GET /a\x01 HTTP/1.1", NO),
    ("path-with-a-del", b"GET /a\x7f HTTP/1.1", NO),
    ("path-with-angles", b"GET /<a> HTTP/1.1", NO),
    ("path-with-a-return", b"GET /a\rb HTTP/1.1", NO),
    ("path-with-a-line-end", b"GET /a\nb HTTP/1.1", NO),
    ("path-with-a-request", b"GET /a\tHTTP/1.1\r\nHost: a\r\n\r\nGET\t/b\tHTTP/1.1", NO),
    ("path-of-escapes", b"GET /%09%20%0d%0a%00 HTTP/1.1", ONE),
    ("path-relative", b"GET a HTTP/1.1", NO),
    ("path-missing", b"GET HTTP/1.1", NO),
    ("path-empty", b"GET  HTTP/1.1", NO),
    ("blanks-before-the-target", b"GET  / HTTP/1.1", NO),
    ("blanks-after-the-target", b"GET /  HTTP/1.1", NO),
    ("tab-after-the-method", b"GET\t/ HTTP/1.1", NO),
    ("blank-before-the-method", b" GET / HTTP/1.1", NO),
    ("blank-after-the-version", b"GET / HTTP/1.1 ", NO),
    ("absolute", b"GET http://a/b?c HTTP/1.1", ONE),
    ("absolute-in-capitals", b"GET HTTPS://A:8080/b HTTP/1.1", ONE),
    ("absolute-without-a-path", b"GET http://a HTTP/1.1", ONE),
    ("absolute-with-a-query-only", b"GET http://a?b HTTP/1.1", ONE),
    ("absolute-with-a-fragment-only", b"GET http://a#b HTTP/1.1", ONE),
    ("absolute-without-an-authority", b"GET http:///a HTTP/1.1", NO),
    ("absolute-of-another-scheme", b"GET ftp://a/ HTTP/1.1", NO),
    ("absolute-without-a-scheme", b"GET ://a/ HTTP/1.1", NO),
    ("absolute-with-a-user", b"GET http://u@a/ HTTP/1.1", ONE),
    ("authority", b"CONNECT a:1 HTTP/1.1", ONE),
    ("authority-of-a-get", b"GET a:1 HTTP/1.1", NO),
    ("star", b"OPTIONS * HTTP/1.1", ONE),
    ("star-and-more", b"OPTIONS *a HTTP/1.1", NO),
    ("method-in-small-letters", b"get / HTTP/1.1", ONE),
    ("method-of-its-own", b"B!#$%&'*+-.^_`|~9 / HTTP/1.1", ONE),
    ("method-with-a-control", b"GE\x01T / HTTP/1.1", NO),
    ("method-with-a-colon", b"GET: / HTTP/1.1", NO),
    ("method-empty", b" / HTTP/1.1", NO),
    ("version-0-9", b"GET / HTTP/0.9", NO),
    ("version-none", b"GET /", NO),
    ("version-1-2", b"GET / HTTP/1.2", NO),
    ("version-2", b"GET / HTTP/2", NO),
    ("version-2-0", b"GET / HTTP/2.0", NO),
    ("version-1", b"GET / HTTP/1", NO),
    ("version-1-10", b"GET / HTTP/1.10", NO),
    ("version-01-1", b"GET / HTTP/01.1", NO),
    ("version-in-small-letters", b"GET / http/1.1", NO),
    ("version-apart", b"GET / HTTP/ 1.1", NO),
    ("version-shifted", b"GET / HTTP/1 .1", NO),
    ("version-of-another", b"GET / ICAP/1.0", NO),
    ("version-1-0", b"GET / HTTP/1.0", CLOSES),
    ("preface", b"PRI * HTTP/2.0", NO),
];

/// Whole streams.
const STREAMS: &[(&str, &[u8], Want)] = &[
    ("nothing", b"", (0, Stop::More)),
    ("empty-lines", b"\r\n\r\n\r\n", (0, Stop::More)),
    ("empty-lines-first", b"\r\n\r\nGET / HTTP/1.1\r\n\r\n", ONE),
    ("empty-lines-between", b"GET / HTTP/1.1\r\n\r\n\r\n\r\nGET / HTTP/1.1\r\n\r\n", TWO),
    ("bare-empty-line-first", b"\nGET / HTTP/1.1\r\n\r\n", NO),
    ("bare-empty-line-last", b"GET / HTTP/1.1\r\nA: b\r\n\n", NO),
    ("bare-lines", b"GET / HTTP/1.1\nA: b\n\n", NO),
    ("bare-first-line", b"GET / HTTP/1.1\nA: b\r\n\r\n", NO),
    ("returns-last", b"GET / HTTP/1.1\r\nA: b\r\r\n\r\n", NO),
    ("pipelined", b"GET /a HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\n\r\nGET /c HTTP/1.1\r\n\r\n", (3, Stop::More)),
    ("pipelined-after-a-close", b"GET /a HTTP/1.1\r\nConnection: close\r\n\r\nGET /b HTTP/1.1\r\n\r\n", CLOSES),
    ("kept-by-1-0", b"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\nGET / HTTP/1.0\r\n\r\n", (2, Stop::Closes)),
    ("chunked-by-1-0", b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", NO),
    ("chunked-by-1-0-that-is-kept", b"POST / HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", NO),
    ("length-of-a-get", b"GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhelloGET / HTTP/1.1\r\n\r\n", TWO),
    ("chunks-of-a-get", b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n", TWO),
    ("body-that-is-short", b"POST / HTTP/1.1\r\nContent-Length: 6\r\n\r\nhello", WAITS),
    ("one-more-than-its-length", b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nhello", ONE),
    ("request-in-a-body", b"POST / HTTP/1.1\r\nContent-Length: 18\r\n\r\nGET / HTTP/1.1\r\n\r\n", ONE),
    ("preface-second", b"GET / HTTP/1.1\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", BARE),
    ("tls", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n\n", NO),
];

/// Bodies of a chunked POST.
const CHUNKS: &[(&str, &[u8], Want)] = &[
    ("one", b"5\r\nhello\r\n0\r\n\r\n", ONE),
    ("capitals", b"A\r\n0123456789\r\n0\r\n\r\n", ONE),
    ("zeros", b"005\r\nhello\r\n000\r\n\r\n", ONE),
    ("fifteen-digits", b"000000000000005\r\nhello\r\n0\r\n\r\n", ONE),
    ("sixteen-digits", b"0000000000000005\r\nhello\r\n0\r\n\r\n", BROKEN),
    ("65-bits", b"10000000000000005\r\nhello\r\n0\r\n\r\n", BROKEN),
    ("63-bits", b"7fffffffffffffff\r\nhello\r\n0\r\n\r\n", BROKEN),
    ("60-bits", b"fffffffffffffff\r\nhello\r\n0\r\n\r\n", WAITS),
    ("no-size", b"\r\nhello\r\n0\r\n\r\n", BROKEN),
    ("size-of-extensions-only", b";a\r\nhello\r\n0\r\n\r\n", BROKEN),
    ("plus", b"+5\r\nhello\r\n0\r\n\r\n", BROKEN),
    ("minus", b"-1\r\nhello\r\n0\r\n\r\n", BROKEN),
    ("hex-mark", b"0x5\r\nhello\r\n0\r\n\r\n", BROKEN),
    ("underscore", b"5_\r\nhello\r\n0\r\n\r\n", BROKEN),
    ("blank-before", b" 5\r\nhello\r\n0\r\n\r\n", BROKEN),
    ("blank-after", b"5 \t\r\nhello\r\n0 \r\n\r\n", ONE),
    ("blank-between", b"1 0\r\nhello\r\n0\r\n\r\n", BROKEN),
    ("quoted", b"\"5\"\r\nhello\r\n0\r\n\r\n", BROKEN),
    ("comma", b"5,5\r\nhello\r\n0\r\n\r\n", BROKEN),
    ("extension", b"5;a=b;c=\"d e\"\r\nhello\r\n0;e\r\n\r\n", ONE),
    ("extension-after-blanks", b"5 \t;a\r\nhello\r\n0\r\n\r\n", ONE),
    ("extension-empty", b"5;\r\nhello\r\n0\r\n\r\n", ONE),
    ("extension-with-a-line-end", b"5;a\nhello\r\n0\r\n\r\n", BROKEN),
    ("extension-with-a-return", b"5;a\rb\r\nhello\r\n0\r\n\r\n", BROKEN),
    ("extension-with-two-returns", b"5;a\r\r\nhello\r\n0\r\n\r\n", BROKEN),
    ("extension-with-a-nul", b"5;a\0\r\nhello\r\n0\r\n\r\n", BROKEN),
    ("extension-of-obs-text", b"5;\xe4\r\nhello\r\n0\r\n\r\n", ONE),
    ("bare-size", b"5\nhello\r\n0\r\n\r\n", BROKEN),
    ("bare-end", b"5\r\nhello\n0\r\n\r\n", BROKEN),
    ("bare-last-size", b"5\r\nhello\r\n0\n\r\n", BROKEN),
    ("bare-last-line", b"5\r\nhello\r\n0\r\n\n", BROKEN),
    ("return-only", b"5\rhello\r\n0\r\n\r\n", BROKEN),
    ("two-returns", b"5\r\r\nhello\r\n0\r\n\r\n", BROKEN),
    ("longer-than-its-size", b"4\r\nhello\r\n0\r\n\r\n", BROKEN),
    ("shorter-than-its-size", b"7\r\nhello\r\n0\r\n\r\n", BROKEN),
    ("no-line-end", b"5\r\nhello0\r\n\r\n", BROKEN),
    ("no-last", b"5\r\nhello\r\n", WAITS),
    ("no-last-line", b"5\r\nhello\r\n0\r\n", WAITS),
    ("a-request-at-once", b"0\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n", BROKEN),
    ("a-request-after", b"0\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n", TWO),
    ("trailers", b"0\r\nX-Sum: 1\r\nx-sum: 2\r\nY:\r\n\r\n", ONE),
    ("trailer-without-a-colon", b"0\r\nX\r\n\r\n", BROKEN),
    ("trailer-bare", b"0\r\nX: a\n\r\n", BROKEN),
    ("trailer-folded", b"0\r\nX: a\r\n b\r\n\r\n", BROKEN),
    ("trailer-blank-colon", b"0\r\nX : a\r\n\r\n", BROKEN),
    ("trailer-with-a-nul", b"0\r\nX: a\0\r\n\r\n", BROKEN),
    ("trailer-with-a-return", b"0\r\nX: a\rb\r\n\r\n", BROKEN),
    ("trailer-empty-name", b"0\r\n: a\r\n\r\n", BROKEN),
    ("trailer-length", b"0\r\nContent-Length: 5\r\n\r\n", ONE),
    ("trailers-that-begin-with-a-blank-line", b"0\r\n \r\n\r\n", BROKEN),
];

/// Replies to a GET, after which the upstream closes.
const REPLIES: &[(&str, &[u8], Want)] = &[
    ("length", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", CLOSES),
    ("length-and-more", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\n\r\n", CLOSES),
    ("length-that-is-short", b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello", WAITS),
    ("length-twice", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello", CLOSES),
    ("length-in-a-list", b"HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\nhello", CLOSES),
    ("lengths-that-differ", b"HTTP/1.1 200 OK\r\nContent-Length: 5, 6\r\n\r\nhello", NO),
    ("lengths-that-differ-in-two-lines", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", NO),
    ("length-plus", b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello", NO),
    ("length-hex", b"HTTP/1.1 200 OK\r\nContent-Length: 0x5\r\n\r\nhello", NO),
    ("length-empty", b"HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\nhello", NO),
    ("length-65-bits", b"HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551621\r\n\r\nhello", NO),
    ("chunked", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX: y\r\n\r\n", CLOSES),
    (
        "chunked-beside-a-length",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        CLOSES,
    ),
    ("chunked-that-is-short", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel", WAITS),
    ("chunked-badly", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nhello", BROKEN),
    ("chunked-twice", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", CODING),
    ("gzip-chunked", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", CODING),
    ("gzip", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nhello", CODING),
    ("identity", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\nhello", CODING),
    ("chunked-by-1-0", b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", CODING),
    ("until-close", b"HTTP/1.1 200 OK\r\n\r\nhello", CLOSES),
    ("until-close-by-1-0", b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\nhello", CLOSES),
    ("no-content", b"HTTP/1.1 204 No Content\r\n\r\n", CLOSES),
    ("no-content-with-a-length", b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello", CLOSES),
    ("not-modified", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\nEtag: \"a\"\r\n\r\n", CLOSES),
    ("not-modified-in-chunks", b"HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n", CLOSES),
    ("continue", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", CLOSES),
    ("hints", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", CLOSES),
    ("interim-with-a-length", b"HTTP/1.1 102 A\r\nContent-Length: 5\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", CLOSES),
    ("another-protocol", b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: a\r\n\r\n", (0, Stop::HeadRejected(StatusCode::BAD_GATEWAY))),
    ("bare-lines", b"HTTP/1.1 200 OK\nA:  b \nContent-Length: 5\n\nhello", CLOSES),
    ("bare-last-line", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\nhello", CLOSES),
    ("no-reason", b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", CLOSES),
    ("reason-empty", b"HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n", CLOSES),
    ("reason-of-its-own", b"HTTP/1.1 200 Fine\tby me\r\nContent-Length: 0\r\n\r\n", CLOSES),
    ("reason-of-obs-text", b"HTTP/1.1 200 \xe4\r\nContent-Length: 0\r\n\r\n", CLOSES),
    ("reason-with-a-nul", b"HTTP/1.1 200 a\0\r\nContent-Length: 0\r\n\r\n", NO),
    ("status-of-four-digits", b"HTTP/1.1 2000 OK\r\n\r\n", NO),
    ("status-of-two-digits", b"HTTP/1.1 20 OK\r\n\r\n", NO),
    ("status-099", b"HTTP/1.1 099 OK\r\n\r\n", NO),
    ("status-999", b"HTTP/1.1 999 No\r\nContent-Length: 0\r\n\r\n", CLOSES),
    ("version-2", b"HTTP/2 200 OK\r\n\r\n", NO),
    ("version-1-2", b"HTTP/1.2 200 OK\r\n\r\n", NO),
    ("folded", b"HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", NO),
    ("name-blank-colon", b"HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\nhello", NO),
    ("value-with-a-nul", b"HTTP/1.1 200 OK\r\nA: \0\r\n\r\n", NO),
    ("value-with-a-return", b"HTTP/1.1 200 OK\r\nA: b\rc\r\n\r\n", NO),
    ("no-http", b"hello\r\n\r\n", NO),
];

/// Every stream of requests: its name, its bytes and the expected result.
pub(crate) fn requests() -> Vec<(String, Vec<u8>, Want)> {
    let join = |parts: &[&[u8]]| parts.concat();
    let fields = FIELDS.iter().map(|(name, fields, want)| {
        let bytes = join(&[
            b"POST /a HTTP/1.1\r\nHost: a\r\n",
            fields,
            b"\r\n0\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
        ]);
        (format!("field-{name}"), bytes, want.clone())
    });
    let lines = LINES.iter().map(|(name, line, want)| {
        (format!("line-{name}"), join(&[line, b"\r\nHost: a\r\n\r\n"]), want.clone())
    });
    let chunks = CHUNKS.iter().map(|(name, chunks, want)| {
        let head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        (format!("chunk-{name}"), join(&[head, chunks]), want.clone())
    });
    let streams = STREAMS
        .iter()
        .map(|(name, bytes, want)| (format!("stream-{name}"), bytes.to_vec(), want.clone()));
    fields.chain(lines).chain(chunks).chain(streams).collect()
}

/// Every chunked body.
pub(crate) fn chunks() -> impl Iterator<Item = (&'static str, &'static [u8])> {
    CHUNKS.iter().map(|(name, bytes, _)| (*name, *bytes))
}

/// Every reply.
pub(crate) fn replies() -> impl Iterator<Item = (&'static str, &'static [u8], Want)> {
    REPLIES.iter().map(|(name, bytes, want)| (*name, *bytes, want.clone()))
}
