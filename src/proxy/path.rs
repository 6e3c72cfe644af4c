//! The path's normal form: the one form that is matched, shown to policies and forwarded. Knows no route.
//!
//! What a proxy matches and what its upstream understands must be the same path, or a limit can be walked around. So, once, at arrival:
//!
//! - escapes of unreserved characters are decoded, all others keep their escape, in upper case (RFC 3986, 6.2.2);
//! - bytes that may not stand in a path (`"`, `{`, controls, beyond ASCII) are escaped;
//! - `//` becomes `/`, as under nginx' `merge_slashes on`;
//! - `.` and `..` are resolved; a path that climbs above the root is refused;
//! - `%2F` stays an escape and never separates segments. `%5C` stays as well. Where an upstream that decodes either would find a dot segment
//!   (`..%2Fadmin`), or a servlet container would (`..;/admin`), the path is refused;
//! - `%00`, a raw backslash and broken escapes are refused.
//!
//! The query is left as it came.

use std::borrow::Cow;

use smallvec::SmallVec;

/// Why a path has no normal form, for the problem document.
pub(super) type Refused = &'static str;

/// The normal form of `path`, which begins with `/`. Borrowed when it is normal already, the usual case.
pub(super) fn normal(path: &str) -> Result<Cow<'_, str>, Refused> {
    if !path.starts_with('/') {
        return Err("the path does not begin with a slash");
    }
    if is_plain(path.as_bytes()) {
        return Ok(Cow::Borrowed(path));
    }
    let mut out = Vec::with_capacity(path.len() + 16);
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        push_segment(&mut out, segment, segments.peek().is_none())?;
    }
    // Only ASCII was written: this can't fail, and if it did the request would be refused.
    String::from_utf8(out).map(Cow::Owned).map_err(|_| "the path is not text")
}

/// Whether the path with which `asked` begins is in its normal form: up to a query, where there is
/// one.
pub(super) fn begins_normal(asked: &[u8]) -> bool {
    let path = asked.iter().position(|byte| *byte == b'?').and_then(|end| asked.get(..end)).unwrap_or(asked);
    path.first() == Some(&b'/') && is_plain(path)
}

/// No byte to change, no `//`, no segment that begins with a dot.
fn is_plain(path: &[u8]) -> bool {
    let mut before = 0;
    path.iter().all(|&byte| {
        let plain = STANDS.get(usize::from(byte)) == Some(&true) && !(before == b'/' && matches!(byte, b'/' | b'.'));
        before = byte;
        plain
    })
}

/// What may stand in a path, [`stands`] and the slash, by byte.
static STANDS: [bool; 256] = stand();

#[allow(clippy::indexing_slicing, reason = "evaluated at compile time, where an index out of bounds is an error of the build")]
const fn stand() -> [bool; 256] {
    let mut stand = [false; 256];
    let mut byte = 0;
    while byte <= u8::MAX as usize {
        stand[byte] = byte == b'/' as usize || stands(byte as u8);
        byte += 1;
    }
    stand
}

/// Appends one segment in its normal form, with the slash before it. `out` holds whole segments, each with its slash.
fn push_segment(out: &mut Vec<u8>, segment: &str, last: bool) -> Result<(), Refused> {
    let start = out.len();
    out.push(b'/');
    normal_segment(out, segment.as_bytes())?;
    match out.get(start + 1..).unwrap_or_default() {
        b"" | b"." => out.truncate(start),
        b".." => {
            out.truncate(start);
            let Some(parent) = out.iter().rposition(|byte| *byte == b'/') else { return Err("the path climbs above the root") };
            out.truncate(parent);
        }
        segment if hides_dots(segment) => return Err("the path hides a dot segment"),
        _ => return Ok(()),
    }
    // Nothing is left of the segment; as the last one it leaves the slash that came before it.
    if last {
        out.push(b'/');
    }
    Ok(())
}

fn normal_segment(out: &mut Vec<u8>, segment: &[u8]) -> Result<(), Refused> {
    let mut bytes = segment.iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => {
                let (Some(high), Some(low)) = (bytes.next().and_then(hex), bytes.next().and_then(hex)) else {
                    return Err("the path has a broken escape");
                };
                match high << 4 | low {
                    0 => return Err("the path has a NUL"),
                    byte if unreserved(byte) => out.push(byte),
                    byte => push_escape(out, byte),
                }
            }
            b'\\' => return Err("the path has a backslash"),
            byte if stands(byte) => out.push(byte),
            byte => push_escape(out, byte),
        }
    }
    Ok(())
}

/// Whether an upstream that takes `%2F` or `%5C` for a separator, or cuts a segment at `;`, would find a dot segment here.
fn hides_dots(segment: &[u8]) -> bool {
    if !segment.contains(&b'.') || !segment.iter().any(|byte| matches!(byte, b'%' | b';')) {
        return false;
    }
    let decoded = decode(segment);
    decoded.split(|byte| matches!(byte, b'/' | b'\\')).any(|part| {
        let name = part.split(|byte| *byte == b';').next().unwrap_or_default();
        matches!(name, b"." | b"..")
    })
}

/// The bytes that an escaped text stands for; a broken escape stands for itself.
pub(super) fn decode(text: &[u8]) -> SmallVec<[u8; 64]> {
    let mut out = SmallVec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte == b'%'
            && let [high, low, after @ ..] = rest
            && let (Some(high), Some(low)) = (hex(*high), hex(*low))
        {
            out.push(high << 4 | low);
            rest = after;
        } else {
            out.push(byte);
        }
    }
    out
}

fn push_escape(out: &mut Vec<u8>, byte: u8) {
    out.extend([b'%', hex_digit(byte >> 4), hex_digit(byte & 15)]);
}

/// A hexadecimal digit's value.
fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

fn hex_digit(value: u8) -> u8 {
    if value < 10 { b'0' + value } else { b'A' + value - 10 }
}

/// RFC 3986, 2.3.
const fn unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// What may stand in a segment without an escape: `pchar` of RFC 3986, 3.3.
const fn stands(byte: u8) -> bool {
    unreserved(byte) || matches!(byte, b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b';' | b'=' | b':' | b'@')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn is(path: &str, expected: &str) {
        assert_eq!(normal(path).as_deref(), Ok(expected), "{path}");
    }

    #[test]
    fn a_normal_path_is_borrowed() {
        for path in ["/", "/a", "/a/b.c/", "/v1/users/17;x=1/@me:(a)!*"] {
            assert!(matches!(normal(path), Ok(Cow::Borrowed(same)) if same == path), "{path}");
        }
    }

    #[test]
    fn what_begins_normal_is_left_as_it_is() {
        for (asked, expected) in [("/a", true), ("/a?//%61", true), ("/a/", true), ("", false), ("?a", false), ("a", false), ("//", false)]
        {
            assert_eq!(begins_normal(asked.as_bytes()), expected, "{asked}");
        }
        for path in ["/a.b/.c", "/%61", "/a//b", "/a/./b", "/a\"b", "/\u{e9}"] {
            assert!(!begins_normal(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn escapes_are_decoded_where_they_mean_the_same_and_else_written_one_way() {
        is("/%61%2D%2e%5f%7E", "/a-._~");
        is("/a%2fb", "/a%2Fb");
        is("/a%5cb", "/a%5Cb");
        is("/%c3%a9\u{e9}", "/%C3%A9%C3%A9");
        is("/%21%40", "/%21%40");
        is("/%252e%252e/x", "/%252e%252e/x");
        is("/a\"{}|^`", "/a%22%7B%7D%7C%5E%60");
    }

    #[test]
    fn dot_segments_and_doubled_slashes_are_resolved() {
        is("//a///b//", "/a/b/");
        is("/a/./b/../c", "/a/c");
        is("/a/%2e%2E/b", "/b");
        is("/a/..", "/");
        is("/a/b/..", "/a/");
        is("/a/.", "/a/");
        is("/.well-known/x", "/.well-known/x");
        is("/...", "/...");
        is("/a/..b/.c", "/a/..b/.c");
    }

    #[test]
    fn what_two_servers_could_read_in_two_ways_is_refused() {
        let paths = [
            "",
            "a",
            "*",
            "/..",
            "/../a",
            "//..",
            "/a/../..",
            "/%00",
            "/a%",
            "/a%4",
            "/a%zz",
            "/a\\b",
            "/a/..%2fb",
            "/..%5cb",
            "/a/x%2F..",
            "/x%2f.%2fy",
            "/..;/a",
            "/a/.;x=1/b",
            "/%2e%2e;/a",
        ];
        for path in paths {
            assert!(normal(path).is_err(), "{path}: {:?}", normal(path));
        }
        is("/a;b..c/x", "/a;b..c/x");
        is("/a%2Fb..c", "/a%2Fb..c");
    }

    #[test]
    fn decoding_keeps_what_is_no_escape() {
        assert_eq!(decode(b"a%2Fb%zz%4").as_slice(), b"a/b%zz%4");
    }

    proptest! {
        #[test]
        fn the_normal_form_is_stable_and_has_no_dot_segment(path in "/([a-c./;\\\\]|%2[eEfF]|%5[cC]|%00|%[0-9a-f]{2}|%|\u{e9}|\"){0,24}") {
            prop_assert!(!begins_normal(path.as_bytes()) || normal(&path).as_deref() == Ok(path.as_str()));
            if let Ok(once) = normal(&path) {
                let twice = normal(&once);
                prop_assert_eq!(twice.as_deref(), Ok(&*once));
                prop_assert!(once.starts_with('/') && once.is_ascii() && !once.contains("//"));
                let decoded = decode(once.as_bytes());
                let dots = decoded.split(|byte| matches!(byte, b'/' | b'\\')).any(|segment| matches!(segment, b"." | b".."));
                prop_assert!(!dots, "{}", once);
            }
        }

        #[test]
        fn any_text_is_answered(path in "\\PC{0,40}") {
            let _ = normal(&path);
        }
    }
}
