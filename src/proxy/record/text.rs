//! Times and methods as text, for lines and pages.

use std::cell::Cell;

/// Maximum bytes of a method in a line: a client may send one as long as a head.
const METHOD_BYTES_MAX: usize = 32;
/// The part of a method that a line shows.
pub(in crate::proxy) fn cut_method(method: &str) -> &str {
    method.get(..method.floor_char_boundary(METHOD_BYTES_MAX)).unwrap_or_default()
}

type Stamp = [u8; 24];
const EPOCH: Stamp = *b"1970-01-01T00:00:00.000Z";

thread_local! {
    /// The last second that was formatted, and its text.
    static SECOND: Cell<(i64, Stamp)> = const { Cell::new((i64::MIN, EPOCH)) };
}

/// The time of a line as text.
pub(in crate::proxy) fn time(wall_us: i64) -> String {
    String::from_utf8_lossy(&timestamp(wall_us)).into_owned()
}

/// RFC 3339 in UTC with milliseconds: `2026-01-31T23:59:59.999Z`. The date is formatted once a
/// second.
pub(super) fn timestamp(wall_us: i64) -> Stamp {
    let second = wall_us.div_euclid(1_000_000);
    let (known, mut stamp) = SECOND.get();
    if known != second {
        stamp = date(second);
        SECOND.set((second, stamp));
    }
    put(&mut stamp, 20, &digits::<3>(wall_us.rem_euclid(1_000_000).unsigned_abs() / 1_000));
    stamp
}

/// The text of a second since 1970; of the first one, if it is beyond the year 9999.
fn date(second: i64) -> Stamp {
    let known = jiff::Timestamp::from_second(second).ok();
    let text = known.map(|timestamp| format!("{timestamp:.3}"));
    text.and_then(|text| text.as_bytes().try_into().ok()).unwrap_or(EPOCH)
}

/// The last `N` decimal digits.
pub(super) fn digits<const N: usize>(mut value: u64) -> [u8; N] {
    let mut out = [b'0'; N];
    for digit in out.iter_mut().rev() {
        *digit += u8::try_from(value % 10).unwrap_or_default();
        value /= 10;
    }
    out
}

fn put(stamp: &mut Stamp, at: usize, digits: &[u8]) {
    if let Some(index) = stamp.get_mut(at..at + digits.len()) {
        index.copy_from_slice(digits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn is(wall_us: i64, expected: &str) {
        assert_eq!(std::str::from_utf8(&timestamp(wall_us)).unwrap(), expected);
    }

    #[test]
    fn a_timestamp_is_the_calendars() {
        is(0, "1970-01-01T00:00:00.000Z");
        is(-1, "1969-12-31T23:59:59.999Z");
        is(951_782_399_999_999, "2000-02-28T23:59:59.999Z");
        is(951_782_400_000_000, "2000-02-29T00:00:00.000Z");
        is(1_709_251_199_123_456, "2024-02-29T23:59:59.123Z");
        is(1_709_251_199_987_654, "2024-02-29T23:59:59.987Z");
        is(4_107_542_400_000_000, "2100-03-01T00:00:00.000Z");
        is(1_798_761_599_000_000, "2026-12-31T23:59:59.000Z");
    }

    #[test]
    fn a_long_method_is_cut() {
        assert_eq!(cut_method(&"M".repeat(8_000)).len(), METHOD_BYTES_MAX);
        assert_eq!(cut_method("PROPPATCH"), "PROPPATCH");
    }
}
