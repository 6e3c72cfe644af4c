//! The times in logs: `17/May/2015:10:05:03 +0000`, RFC 3339, and seconds since 1970.

use jiff::Timestamp;
use jiff::fmt::temporal::DateTimeParser;
use jiff::tz::Offset;

const MONTHS: [&[u8; 3]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];
static RFC3339: DateTimeParser = DateTimeParser::new();
const SECOND_US: i64 = 1_000_000;
/// Numbers from here on, in seconds since 1970, are not times: the year 5138.
const SECONDS_MAX: i64 = 100_000_000_000;

/// Microseconds since 1970 of `17/May/2015:10:05:03 +0000`. Without a zone it is UTC.
///
/// It is put in the order of RFC 3339 and read as that: jiff's `strtime` takes twice as long.
pub(super) fn common(text: &str) -> Option<i64> {
    let (date, zone) = text.as_bytes().split_at_checked(20)?;
    let [d1, d2, b'/', month @ .., b'/', y1, y2, y3, y4, b':', h1, h2, _, m1, m2, _, s1, s2] = date
    else {
        return None;
    };
    let month = 1 + MONTHS.iter().position(|name| name.eq_ignore_ascii_case(month))?;
    let (n1, n2) = (b'0' + u8::from(month > 9), b'0' + (month % 10) as u8);
    let date = [
        *y1, *y2, *y3, *y4, b'-', n1, n2, b'-', *d1, *d2, b'T', *h1, *h2, b':', *m1, *m2, b':',
        *s1, *s2,
    ];
    micros(&[&date, zone.trim_ascii()].concat())
}

/// Microseconds since 1970 of `2015-05-17T10:05:03.123+02:00`, with a blank or a `T`. Without a
/// zone it is UTC.
pub(super) fn rfc3339(text: &str) -> Option<i64> {
    micros(text.as_bytes())
}

fn micros(rfc3339: &[u8]) -> Option<i64> {
    let time = RFC3339.parse_pieces(rfc3339).ok()?;
    if time.time_zone_annotation().is_some() {
        return None;
    }
    let zone = time.to_numeric_offset().unwrap_or(Offset::UTC);
    let time = zone.to_timestamp(time.date().to_datetime(time.time()?)).ok()?;
    Some(time.as_microsecond())
}

/// Microseconds since 1970 of `1431857103.123`.
pub(super) fn seconds(text: &str) -> Option<i64> {
    let (whole, rest) = text.split_once('.').unwrap_or((text, ""));
    let whole: i64 = whole.parse().ok().filter(|seconds| (0..SECONDS_MAX).contains(seconds))?;
    let mut us = 0;
    let mut unit = SECOND_US;
    for digit in rest.bytes() {
        let digit = char::from(digit).to_digit(10)?;
        unit /= 10;
        us += i64::from(digit) * unit;
    }
    Some(whole * SECOND_US + us)
}

/// Any of the three.
pub(super) fn any(text: &str) -> Option<i64> {
    seconds(text).or_else(|| rfc3339(text)).or_else(|| common(text))
}

/// `2015-05-17 10:05:03Z`, for people.
pub(super) fn shown(unix_us: i64) -> String {
    stamp(unix_us).replacen('T', " ", 1)
}

/// `2015-05-17T10:05:03Z`, for programs (RFC 3339).
pub(super) fn stamp(unix_us: i64) -> String {
    let second = Timestamp::from_second(unix_us.div_euclid(SECOND_US));
    second.unwrap_or(Timestamp::UNIX_EPOCH).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_is_read() {
        let us = 1_431_857_103 * SECOND_US;
        assert_eq!(common("17/May/2015:10:05:03 +0000"), Some(us));
        assert_eq!(common("17/May/2015:06:05:03 -0400"), Some(us));
        assert_eq!(rfc3339("2015-05-17T10:05:03Z"), Some(us));
        assert_eq!(rfc3339("2015-05-17T12:05:03.25+02:00"), Some(us + 250_000));
        assert_eq!(rfc3339("2015-05-17 10:05:03,123456789"), Some(us + 123_456));
        assert_eq!(seconds("1431857103"), Some(us));
        assert_eq!(seconds("1431857103.1234567"), Some(us + 123_456));
        assert_eq!(common("29/Feb/2016:00:00:00 +0000"), Some(1_456_704_000 * SECOND_US));
        assert_eq!(rfc3339("1995-07-01T04:00:01Z"), common("01/Jul/1995:00:00:01 -0400"));
        assert_eq!(shown(us), "2015-05-17 10:05:03Z");
        assert_eq!(stamp(us), "2015-05-17T10:05:03Z");
        assert_eq!(shown(1_456_704_000 * SECOND_US + 1), "2016-02-29 00:00:00Z");
        assert_eq!(common("17/may/2015:10:05:03"), Some(us), "without a zone it is UTC");
        assert_eq!(rfc3339("2015-05-17T12:05:03+0200"), Some(us));
        assert_eq!(rfc3339("2015-05-17T12:05:03+02"), Some(us));
        let leap = rfc3339("2016-12-31T23:59:60Z");
        assert_eq!(leap, common("31/Dec/2016:23:59:59 +0000"), "the second before it once more");
    }

    #[test]
    fn an_invalid_time_is_none() {
        for wrong in [
            "",
            "-",
            "17/Mai/2015:10:05:03 +0000",
            "17/May/2015:25:05:03 +0000",
            "31/Feb/2015:10:05:03 +0000",
            "2015-05-17",
            "2015-05-17T10:05:03[Asia/Tokyo]",
            "x",
        ] {
            assert_eq!(any(wrong), None, "{wrong}");
        }
        assert_eq!(any("1431857103123"), None, "milliseconds have a name of their own");
    }
}
