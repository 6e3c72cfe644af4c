//! The `Date` field of a reply that has none (RFC 9110, 6.6.1), formatted once a second.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use http::HeaderValue;

use crate::clock::{self, Clock};

/// `Sun, 06 Nov 1994 08:49:37 GMT`.
type Text = [u8; 29];

thread_local! {
    /// The text of the last second that was formatted, and when the next one begins.
    static SECOND: Cell<(Option<Instant>, Text)> =
        const { Cell::new((None, *b"Thu, 01 Jan 1970 00:00:00 GMT")) };
    /// The last text as a value, which its users share.
    static VALUE: RefCell<HeaderValue> = const { RefCell::new(HeaderValue::from_static("")) };
}

/// [`now`] as a value for HTTP/2.
pub(crate) fn value() -> HeaderValue {
    let text = now();
    VALUE.with_borrow_mut(|value| {
        if value.as_bytes() != text {
            // What a date consists of is valid in a field.
            *value = HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static(""));
        }
        value.clone()
    })
}

/// The date. If the wall clock is set, it is that of before for up to a second.
pub(super) fn now() -> Text {
    let now = clock::recent();
    let (until, text) = SECOND.get();
    if until.is_some_and(|until| now < until) {
        return text;
    }
    let wall_us = Clock::system().wall_us();
    let (second, us) = (wall_us.div_euclid(1_000_000), wall_us.rem_euclid(1_000_000));
    let time = std::time::UNIX_EPOCH + Duration::from_secs(u64::try_from(second).unwrap_or(0));
    let mut text = text;
    let written = httpdate::fmt_http_date(time);
    // It has 29 bytes until the year 10,000.
    if written.len() == text.len() {
        text.copy_from_slice(written.as_bytes());
    }
    let left = Duration::from_micros(1_000_000_u64.saturating_sub(us.unsigned_abs()));
    SECOND.set((Some(now + left), text));
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
        let value = super::value();
        httpdate::parse_http_date(value.to_str().unwrap()).unwrap();
        assert_eq!(super::value().as_bytes().as_ptr(), value.as_bytes().as_ptr(), "copied");
    }
}
