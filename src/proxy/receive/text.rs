//! Short texts stored inline, so that an address or a number costs no allocation. Knows nothing
//! else of the proxy.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::net::IpAddr;

/// Maximum bytes of a path that is shown.
const PATH_BYTES_MAX: usize = 2_048;

/// At most `N` bytes of text. Writing more is an error.
#[derive(Clone, Copy)]
pub(in crate::proxy) struct ShortText<const N: usize> {
    bytes: [u8; N],
    len: u8,
}

/// An address as text. The longest has 45 bytes (`ffff:...:255.255.255.255`).
pub(in crate::proxy) type AddressText = ShortText<48>;

impl<const N: usize> ShortText<N> {
    /// `value` as it displays. Empty if that is longer than `N` bytes.
    pub(in crate::proxy) fn of(value: impl fmt::Display) -> Self {
        let mut text = Self { bytes: [0; N], len: 0 };
        if write!(text, "{value}").is_err() {
            text.len = 0;
        }
        text
    }

    /// A copy of `text`. Empty if it is longer than `N` bytes.
    pub(in crate::proxy) fn copied(text: &str) -> Self {
        let mut copy = Self { bytes: [0; N], len: 0 };
        // If it does not fit, nothing is written.
        let _ = copy.write_str(text);
        copy
    }

    /// The text.
    pub(in crate::proxy) fn as_str(&self) -> &str {
        std::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }

    /// The text's bytes, without the check for UTF-8.
    pub(in crate::proxy) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

impl AddressText {
    /// `address` in the form of RFC 5952.
    pub(in crate::proxy) fn address(address: IpAddr) -> Self {
        let IpAddr::V4(v4) = address else { return Self::of(address) };
        let mut text = Self { bytes: [0; 48], len: 0 };
        let mut number = itoa::Buffer::new();
        for (index, octet) in v4.octets().into_iter().enumerate() {
            // Four numbers and three dots always fit into 48 bytes.
            let _ = text
                .write_str(if index == 0 { "" } else { "." })
                .and_then(|()| text.write_str(number.format(octet)));
        }
        text
    }
}

impl<const N: usize> fmt::Write for ShortText<N> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let start = usize::from(self.len);
        let end = start + text.len();
        self.bytes.get_mut(start..end).ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        self.len = u8::try_from(end).map_err(|_| fmt::Error)?;
        Ok(())
    }
}

impl<const N: usize> fmt::Debug for ShortText<N> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(out)
    }
}

/// Bytes as text, borrowed if they are ASCII.
pub(in crate::proxy) fn latin1(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) if text.is_ascii() => Cow::Borrowed(text),
        _ => Cow::Owned(bytes.iter().copied().map(char::from).collect()),
    }
}

/// The bytes that a text of [`latin1`] stands for, if they are others than those of the text.
pub(in crate::proxy) fn latin1_bytes(text: &str) -> Option<Vec<u8>> {
    if text.is_ascii() {
        return None;
    }
    text.chars().map(|letter| u8::try_from(letter).ok()).collect()
}

/// The part of a path that the access log and the trace show.
pub(in crate::proxy) fn cut_path(path: &str) -> &str {
    path.get(..path.floor_char_boundary(PATH_BYTES_MAX)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_path_is_cut_between_two_characters() {
        let path = format!("/{}", "\u{e9}".repeat(PATH_BYTES_MAX));
        assert_eq!(cut_path(&path).len(), PATH_BYTES_MAX - 1);
        assert_eq!(cut_path("/a"), "/a");
    }

    #[test]
    fn an_address_reads_as_the_standard_library_writes_it() {
        for address in [
            "0.0.0.0",
            "255.255.255.255",
            "10.2.30.4",
            "::1",
            "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff",
            "::ffff:1.2.3.4",
        ] {
            let parsed: IpAddr = address.parse().unwrap();
            assert_eq!(AddressText::address(parsed).as_str(), parsed.to_string());
        }
    }

    #[test]
    fn a_text_that_is_too_long_is_empty_and_not_cut() {
        assert_eq!(ShortText::<4>::of("12345").as_str(), "");
        assert_eq!(ShortText::<4>::of("1234").as_str(), "1234");
        assert_eq!(
            (ShortText::<4>::copied("12345").as_str(), ShortText::<4>::copied("1234").as_str()),
            ("", "1234")
        );
    }
}
