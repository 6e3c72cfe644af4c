//! The path's normal form, which is forwarded, and the looser form in which a segment is compared
//! with a route's. Knows no route.
//!
//! The path that a proxy matches and the one that its upstream understands must be the same, or a
//! limit can be bypassed. So, once, at arrival:
//!
//! - escapes of unreserved characters are decoded, all others are kept, in upper case (RFC 3986,
//!   6.2.2);
//! - bytes that are not allowed in a path (`"`, `{`, beyond ASCII) are escaped;
//! - `//` becomes `/`, as with nginx's `merge_slashes on`;
//! - `.` and `..` are resolved, and a path that climbs above the root is refused;
//! - some upstreams read `%2F` and `%5C` as separators and others as data. `%2F` is kept where both
//!   readings lead to the same decision, which the snapshot finds out; `%5C` is refused.
//!   [`EncodedSlash`] can choose one reading;
//! - a path is refused if an upstream that cuts segments at `;` would find a dot segment
//!   (`..;/admin`) or an empty one (`/;/admin`) in it;
//! - NUL, other control characters, a raw backslash and broken escapes are refused.
//!
//! Other differences between spellings of one resource (case, a final slash, `;parameters`) are
//! forwarded as they came, and ignored when paths are compared with routes: see [`folded`] and
//! `trie`. The query is left as it came.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::text::latin1;
use crate::proxy::settings::{EncodedSlash, PathParameters, Paths};
use crate::spelling::decode;

/// Why a path has no normal form, for the problem document.
pub(in crate::proxy) type PathError = &'static str;

/// The normal form of `path`, which begins with `/`. Borrowed if it is normal already, the usual
/// case.
pub(in crate::proxy) fn normal(path: &str, paths: Paths) -> Result<Cow<'_, str>, PathError> {
    if !path.starts_with('/') {
        return Err("the path does not begin with a slash");
    }
    if is_normal(path.as_bytes(), paths) {
        return Ok(Cow::Borrowed(path));
    }
    let path = if paths.encoded_slash == EncodedSlash::Decode {
        with_slashes(path)
    } else {
        Cow::Borrowed(path)
    };
    let mut out = Vec::with_capacity(path.len() + 16);
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        push_segment(&mut out, parameters_checked(segment, last, paths.parameters)?, last, paths)?;
    }
    // Only ASCII was written, so this can't fail. If it did, the request would be refused.
    String::from_utf8(out).map(Cow::Owned).map_err(|_| "the path is not text")
}

/// The normal form of a normal path whose escaped slashes are read as slashes. `None` if there are
/// none.
pub(in crate::proxy) fn with_decoded_slashes(
    path: &str,
    paths: Paths,
) -> Option<Result<String, PathError>> {
    let is_escaped = memchr::memchr(b'%', path.as_bytes()).is_some() && path.contains("%2F");
    let paths = Paths { encoded_slash: EncodedSlash::Decode, ..paths };
    is_escaped.then(|| normal(path, paths).map(Cow::into_owned))
}

/// Whether the path at the start of `asked`, up to a query, is in its normal form.
pub(in crate::proxy) fn begins_normal(asked: &[u8], paths: Paths) -> bool {
    let path = asked
        .iter()
        .position(|byte| *byte == b'?')
        .and_then(|end| asked.get(..end))
        .unwrap_or(asked);
    path.first() == Some(&b'/') && is_normal(path, paths)
}

fn is_normal(path: &[u8], paths: Paths) -> bool {
    is_plain(path)
        && (matches!(paths.parameters, PathParameters::Ignore | PathParameters::Keep)
            || !path.contains(&b';'))
}

/// The path with slashes in place of `%2F` and `%5C`.
fn with_slashes(path: &str) -> Cow<'_, str> {
    let escapes = |text: &str| matches!(text.get(..3), Some("%2F" | "%2f" | "%5C" | "%5c"));
    let indexes: SmallVec<[usize; 8]> = path
        .match_indices('%')
        .map(|(index, _)| index)
        .filter(|index| path.get(*index..).is_some_and(escapes))
        .collect();
    if indexes.is_empty() {
        return Cow::Borrowed(path);
    }
    let mut out = String::with_capacity(path.len());
    let mut done = 0;
    for index in indexes {
        out.push_str(path.get(done..index).unwrap_or_default());
        out.push('/');
        done = index + 3;
    }
    out.push_str(path.get(done..).unwrap_or_default());
    Cow::Owned(out)
}

/// The part of the segment that is forwarded.
fn parameters_checked(
    segment: &str,
    last: bool,
    parameters: PathParameters,
) -> Result<&str, PathError> {
    let bare = without_parameters(segment);
    match parameters {
        PathParameters::Keep => Ok(segment),
        PathParameters::Strip => Ok(bare),
        PathParameters::Reject if bare.len() < segment.len() => {
            Err("the path has parameters (`;`)")
        }
        // Without its parameters the segment would be empty, and a server that ignores parameters
        // would merge the slashes.
        PathParameters::Ignore if bare.is_empty() && !segment.is_empty() && !last => {
            Err("the path hides an empty segment")
        }
        PathParameters::Ignore | PathParameters::Reject => Ok(segment),
    }
}

/// The part of a segment before its first `;`, escaped or not.
pub(in crate::proxy) fn without_parameters(segment: &str) -> &str {
    let end = segment.bytes().enumerate().find_map(|(index, byte)| match byte {
        b';' => Some(index),
        b'%' => segment
            .get(index..index + 3)
            .filter(|escape| matches!(*escape, "%3B" | "%3b"))
            .map(|_| index),
        _ => None,
    });
    end.and_then(|end| segment.get(..end)).unwrap_or(segment)
}

/// Whether a normal path ends in a slash, but for what routing ignores.
pub(in crate::proxy) fn ends_in_slash(path: &str, paths: Paths) -> bool {
    let last = path.rsplit('/').next().unwrap_or_default();
    let ignored = paths.parameters == PathParameters::Ignore;
    (if ignored { without_parameters(last) } else { last }).is_empty()
}

/// The path as policies see it: without the parts that routing ignores because an upstream may
/// ignore them.
pub(in crate::proxy) fn shown(path: &str, paths: Paths) -> Cow<'_, str> {
    let parameters = paths.parameters == PathParameters::Ignore
        && path.bytes().any(|byte| matches!(byte, b';' | b'%'));
    let dots = paths.trailing_dots_ignored
        && path.split('/').any(|segment| without_trailing_dots(segment).len() < segment.len());
    if !parameters && !dots {
        return Cow::Borrowed(path);
    }
    let mut out = String::with_capacity(path.len());
    for segment in path.split('/').skip(1) {
        out.push('/');
        out.push_str(significant(segment, paths));
    }
    Cow::Owned(out)
}

/// The path in one spelling of all that routing takes for the same: decoded, but for slashes that
/// are data, and without a slash at its end where that makes no difference.
pub(in crate::proxy) fn one_spelling(path: &str, paths: Paths) -> Cow<'_, str> {
    let bare = match path.strip_suffix('/') {
        Some(bare) if !paths.trailing_slash_exact && !bare.is_empty() => bare,
        _ => path,
    };
    if !bare.contains('%') {
        return Cow::Borrowed(bare);
    }
    let segments = bare.split('/').map(|segment| decoded(segment).replace('/', "%2F"));
    Cow::Owned(segments.collect::<Vec<_>>().join("/"))
}

/// A text with its escapes decoded, each byte beyond ASCII shown as a code point of Latin-1.
pub(in crate::proxy) fn decoded(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return latin1(text.as_bytes());
    }
    Cow::Owned(decode(text.as_bytes()).iter().copied().map(char::from).collect())
}

/// The part of a segment that is compared and shown: without what an upstream may ignore.
pub(in crate::proxy) fn significant(segment: &str, paths: Paths) -> &str {
    let ignored = paths.parameters == PathParameters::Ignore;
    let bare = if ignored { without_parameters(segment) } else { segment };
    if paths.trailing_dots_ignored { without_trailing_dots(bare) } else { bare }
}

/// A segment without the dots and blanks at its end, which Windows leaves off a file's name. One of
/// nothing else is left as it is.
fn without_trailing_dots(segment: &str) -> &str {
    let mut rest = segment;
    while let Some(shorter) = rest.strip_suffix('.').or_else(|| rest.strip_suffix("%20")) {
        rest = shorter;
    }
    if rest.is_empty() { segment } else { rest }
}

/// Whether a segment may change when it is [`folded`].
pub(in crate::proxy) fn may_fold(segment: &str) -> bool {
    segment.ends_with('.') || segment.bytes().any(|byte| matches!(byte, b'%' | b';' | b'A'..=b'Z'))
}

/// A normal segment in the form in which it is compared with a route's: escapes decoded, in lower
/// case unless case matters, and without its parameters if they are ignored.
pub(in crate::proxy) fn folded(segment: &str, paths: Paths) -> SmallVec<[u8; 64]> {
    let mut bytes = decode(significant(segment, paths).as_bytes());
    if !paths.case_exact {
        fold_case(&mut bytes);
    }
    bytes
}

/// Beyond ASCII by Unicode's simple rules, in both directions: some letters have no upper case,
/// others no lower case.
pub(in crate::proxy) fn fold_case(bytes: &mut SmallVec<[u8; 64]>) {
    if bytes.is_ascii() {
        return bytes.make_ascii_lowercase();
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => {
            let folded: String =
                text.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect();
            *bytes = SmallVec::from_slice(folded.as_bytes());
        }
        Err(_) => bytes.make_ascii_lowercase(),
    }
}

/// Nothing to change: all bytes allowed, no `//`, no segment that begins with a dot or a semicolon.
fn is_plain(path: &[u8]) -> bool {
    let mut before = 0;
    path.iter().all(|&byte| {
        let plain = STANDS.get(usize::from(byte)) == Some(&true)
            && !(before == b'/' && matches!(byte, b'/' | b'.' | b';'));
        before = byte;
        plain
    })
}

const CONTROL: PathError = "the path has a control character";

/// The bytes allowed in a path: [`stands`] and the slash.
static STANDS: [bool; 256] = stand();

#[allow(
    clippy::indexing_slicing,
    reason = "evaluated at compile time, where an index out of bounds is an error of the build"
)]
const fn stand() -> [bool; 256] {
    let mut stand = [false; 256];
    let mut byte = 0;
    while byte <= u8::MAX as usize {
        stand[byte] = byte == b'/' as usize || stands(byte as u8);
        byte += 1;
    }
    stand
}

/// Appends one segment in its normal form, with a slash before it. `out` holds whole segments, each
/// with its slash.
fn push_segment(
    out: &mut Vec<u8>,
    segment: &str,
    last: bool,
    paths: Paths,
) -> Result<(), PathError> {
    let start = out.len();
    out.push(b'/');
    normal_segment(out, segment.as_bytes(), paths)?;
    match out.get(start + 1..).unwrap_or_default() {
        b"" | b"." => out.truncate(start),
        b".." => {
            out.truncate(start);
            let Some(parent) = out.iter().rposition(|byte| *byte == b'/') else {
                return Err("the path climbs above the root");
            };
            out.truncate(parent);
        }
        segment if hides_dots(segment) => return Err("the path hides a dot segment"),
        _ => return Ok(()),
    }
    // Nothing is left of the segment. If it is the last one, the slash before it remains.
    if last {
        out.push(b'/');
    }
    Ok(())
}

fn normal_segment(out: &mut Vec<u8>, segment: &[u8], paths: Paths) -> Result<(), PathError> {
    let mut bytes = segment.iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => {
                let (Some(high), Some(low)) =
                    (bytes.next().and_then(hex), bytes.next().and_then(hex))
                else {
                    return Err("the path has a broken escape");
                };
                match high << 4 | low {
                    0 => return Err("the path has a NUL"),
                    byte if byte.is_ascii_control() && !paths.control_characters => {
                        return Err(CONTROL);
                    }
                    b'/' | b'\\' if paths.encoded_slash == EncodedSlash::Reject => {
                        return Err("the path has an escaped slash or backslash");
                    }
                    b'\\' if paths.encoded_slash == EncodedSlash::Compare => {
                        return Err("the path has an escaped backslash");
                    }
                    byte if unreserved(byte) => out.push(byte),
                    byte => push_escape(out, byte),
                }
            }
            b'\\' => return Err("the path has a backslash"),
            byte if byte.is_ascii_control() && !paths.control_characters => return Err(CONTROL),
            byte if stands(byte) => out.push(byte),
            byte => push_escape(out, byte),
        }
    }
    Ok(())
}

/// Whether an upstream that reads `%2F` or `%5C` as a separator, or cuts a segment at `;`, would
/// find a dot segment here.
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

fn push_escape(out: &mut Vec<u8>, byte: u8) {
    out.extend([b'%', hex_digit(byte >> 4), hex_digit(byte & 15)]);
}

/// The value of a hexadecimal digit.
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

/// The bytes allowed in a segment without an escape: `pchar` of RFC 3986, 3.3.
const fn stands(byte: u8) -> bool {
    unreserved(byte)
        || matches!(
            byte,
            b'!' | b'$'
                | b'&'
                | b'\''
                | b'('
                | b')'
                | b'*'
                | b'+'
                | b','
                | b';'
                | b'='
                | b':'
                | b'@'
        )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DEFAULT: Paths = Paths {
        encoded_slash: EncodedSlash::Reject,
        parameters: PathParameters::Ignore,
        control_characters: false,
        trailing_slash_exact: false,
        case_exact: false,
        trailing_dots_ignored: false,
    };
    const KEPT: Paths = Paths { encoded_slash: EncodedSlash::Keep, ..DEFAULT };

    #[track_caller]
    fn becomes(paths: Paths, path: &str, expected: &str) {
        assert_eq!(normal(path, paths).as_deref(), Ok(expected), "{path}");
    }

    #[track_caller]
    fn is(path: &str, expected: &str) {
        becomes(KEPT, path, expected);
    }

    #[test]
    fn a_normal_path_is_borrowed() {
        for path in ["/", "/a", "/a/b.c/", "/v1/users/17;x=1/@me:(a)!*"] {
            assert!(
                matches!(normal(path, DEFAULT), Ok(Cow::Borrowed(same)) if same == path),
                "{path}"
            );
        }
    }

    #[test]
    fn a_normal_path_is_left_as_it_is() {
        for (asked, expected) in [
            ("/a", true),
            ("/a?//%61", true),
            ("/a/", true),
            ("/a;b", true),
            ("", false),
            ("?a", false),
            ("a", false),
            ("//", false),
        ] {
            assert_eq!(begins_normal(asked.as_bytes(), DEFAULT), expected, "{asked}");
        }
        for path in ["/a.b/.c", "/%61", "/a//b", "/a/./b", "/a\"b", "/\u{e9}", "/a/;b/c"] {
            assert!(!begins_normal(path.as_bytes(), DEFAULT), "{path}");
        }
        for parameters in [PathParameters::Strip, PathParameters::Reject] {
            assert!(
                !begins_normal(b"/a;b", Paths { parameters, ..DEFAULT })
                    && begins_normal(b"/a", Paths { parameters, ..DEFAULT })
            );
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
    fn values_that_two_servers_could_read_differently_are_refused() {
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
            "/%0a",
            "/a%7F",
            "/a\u{1}",
            "/;x/a",
            "/a/%3bx/b",
            "/a/;/",
        ];
        for path in paths {
            assert!(normal(path, KEPT).is_err(), "{path}: {:?}", normal(path, KEPT));
        }
        is("/a;b..c/x", "/a;b..c/x");
        is("/a%2Fb..c", "/a%2Fb..c");
        is("/;jsessionid=1", "/;jsessionid=1");
        for path in ["/a%2Fb", "/a%2fb", "/a%5Cb", "/a%5c"] {
            assert!(normal(path, DEFAULT).is_err(), "{path}: {:?}", normal(path, DEFAULT));
        }
    }

    #[test]
    fn escaped_slashes_may_separate_segments() {
        let decoded = Paths { encoded_slash: EncodedSlash::Decode, ..DEFAULT };
        becomes(decoded, "/a%2Fb%5cc%2f", "/a/b/c/");
        becomes(decoded, "/a/b%2F..%2f%2e%2E%5Cc", "/c");
        becomes(decoded, "/%252F", "/%252F");
        for path in ["/..%2Fa", "/a%2F;x/b", "/a\\b", "/a%2F%", "/a%2f\u{e9}%0"] {
            assert!(normal(path, decoded).is_err(), "{path}: {:?}", normal(path, decoded));
        }
    }

    #[test]
    fn parameters_may_be_kept_taken_off_or_refused() {
        let of = |parameters| Paths { parameters, ..DEFAULT };
        becomes(of(PathParameters::Keep), "/a;x/;y/%3bz", "/a;x/;y/%3Bz");
        becomes(of(PathParameters::Strip), "/a;x=1/%3by/b%3Bz;/;", "/a/b/");
        becomes(of(PathParameters::Strip), "/a/..;x/b", "/b");
        for path in ["/a;", "/a/;x", "/a%3bx"] {
            assert!(normal(path, of(PathParameters::Reject)).is_err(), "{path}");
        }
        becomes(of(PathParameters::Reject), "/a//b", "/a/b");
        becomes(Paths { control_characters: true, ..DEFAULT }, "/a%0ab\u{7f}", "/a%0Ab%7F");
        assert!(normal("/%00", Paths { control_characters: true, ..DEFAULT }).is_err());
    }

    #[test]
    fn a_segment_is_compared_without_what_a_server_may_ignore() {
        let kept = Paths { parameters: PathParameters::Keep, case_exact: true, ..DEFAULT };
        for (segment, ignoring, exact) in [
            ("Login", "login", "Login"),
            ("%4Cogin;x=1", "login", "Login;x=1"),
            ("a%3Bb%2Fc", "a", "a;b/c"),
            ("a%2FB", "a/b", "a/B"),
            (";x", "", ";x"),
        ] {
            assert_eq!(folded(segment, DEFAULT).as_slice(), ignoring.as_bytes(), "{segment}");
            assert_eq!(folded(segment, kept).as_slice(), exact.as_bytes(), "{segment}");
            assert!(may_fold(segment));
        }
        // Upper case beyond ASCII, a letter whose upper case is `S`, the Kelvin sign, and invalid
        // UTF-8.
        for (segment, expected) in [
            ("%C3%89", "\u{e9}".as_bytes()),
            ("%C5%BF", b"s"),
            ("%E2%84%AA", b"k"),
            ("%C3A", b"\xc3a"),
        ] {
            assert_eq!(folded(segment, DEFAULT).as_slice(), expected, "{segment}");
        }
        assert!(!may_fold("login-2.0_~!$&'()*+,=:@"));
    }

    #[test]
    fn policies_see_what_is_matched() {
        for (path, expected) in
            [("/a/b", "/a/b"), ("/a;x/b%3By/", "/a/b/"), ("/a/;x", "/a/"), ("/%C3%A9", "/%C3%A9")]
        {
            assert_eq!(shown(path, DEFAULT), expected, "{path}");
        }
        assert_eq!(shown("/a;x", Paths { parameters: PathParameters::Keep, ..DEFAULT }), "/a;x");
    }

    #[test]
    fn decoding_keeps_what_is_no_escape() {
        assert_eq!(decode(b"a%2Fb%zz%4").as_slice(), b"a/b%zz%4");
    }

    fn any_paths() -> impl Strategy<Value = Paths> {
        let slashes = prop::sample::select(vec![
            EncodedSlash::Reject,
            EncodedSlash::Keep,
            EncodedSlash::Decode,
        ]);
        let parameters = prop::sample::select(vec![
            PathParameters::Ignore,
            PathParameters::Keep,
            PathParameters::Strip,
            PathParameters::Reject,
        ]);
        (slashes, parameters, any::<bool>()).prop_map(
            |(encoded_slash, parameters, control_characters)| Paths {
                encoded_slash,
                parameters,
                control_characters,
                ..DEFAULT
            },
        )
    }

    proptest! {
        #[test]
        fn the_normal_form_is_stable_and_has_no_dot_segment(
            paths in any_paths(),
            path in "/([a-c./;\\\\]|%2[eEfF]|%5[cC]|%3[bB]|%00|%[0-9a-f]{2}|%|\u{e9}|\"){0,24}",
        ) {
            prop_assert!(!begins_normal(path.as_bytes(), paths) || normal(&path, paths).as_deref() == Ok(path.as_str()));
            if let Ok(once) = normal(&path, paths) {
                let twice = normal(&once, paths);
                prop_assert_eq!(twice.as_deref(), Ok(&*once));
                prop_assert!(once.starts_with('/') && once.is_ascii() && !once.contains("//"));
                // A server finds no segment that was not matched, neither by decoding nor by
                // ignoring parameters.
                let decoded = decode(once.as_bytes());
                let dots = decoded.split(|byte| matches!(byte, b'/' | b'\\')).any(|segment| matches!(segment, b"." | b".."));
                prop_assert!(!dots, "{}", once);
                prop_assert!(paths.parameters == PathParameters::Keep || !shown(&once, paths).contains("//"), "{}", once);
            }
        }

        #[test]
        fn any_text_is_answered(paths in any_paths(), path in "\\PC{0,40}") {
            let _ = normal(&path, paths);
        }
    }
}
