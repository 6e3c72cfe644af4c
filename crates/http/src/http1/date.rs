//! The `Date` field of a reply that has none (RFC 9110, 6.6.1), formatted once a second.

use std::cell::Cell;

use crate::clock::Clock;

/// `Sun, 06 Nov 1994 08:49:37 GMT`.
type Text = [u8; 29];

thread_local! {
    /// The last second that was formatted, and its text.
    static SECOND: Cell<(i64, Text)> = const { Cell::new((i64::MIN, *b"Thu, 01 Jan 1970 00:00:00 GMT")) };
}

pub(super) fn now() -> Text {
    let second = Clock::system().wall_us().div_euclid(1_000_000);
    let (known, text) = SECOND.get();
    if known == second {
        return text;
    }
    let time =
        std::time::UNIX_EPOCH + std::time::Duration::from_secs(u64::try_from(second).unwrap_or(0));
    let mut text = text;
    let written = httpdate::fmt_http_date(time);
    // It has 29 bytes until the year 10,000.
    if written.len() == text.len() {
        text.copy_from_slice(written.as_bytes());
    }
    SECOND.set((second, text));
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_date_is_what_others_read() {
        let text = super::now();
        let read = httpdate::parse_http_date(std::str::from_utf8(&text).unwrap()).unwrap();
        let now = std::time::UNIX_EPOCH
            + std::time::Duration::from_micros(super::Clock::system().wall_us().unsigned_abs());
        assert!(now.duration_since(read).unwrap() < std::time::Duration::from_secs(60));
        assert_eq!(super::now(), super::now());
    }
}
