//! The times in logs: `17/May/2015:10:05:03 +0000`, RFC 3339, and seconds since 1970.

const MONTHS: [&[u8; 3]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];
const SECOND_US: i64 = 1_000_000;
/// Times from here on, in seconds since 1970, are no times: the year 5138.
const SECONDS_MAX: i64 = 100_000_000_000;

/// Microseconds since 1970 of `17/May/2015:10:05:03 +0000`.
pub(super) fn common(text: &str) -> Option<i64> {
    let (date, zone) = text.as_bytes().split_at_checked(20)?;
    let [d1, d2, b'/', m1, m2, m3, b'/', y1, y2, y3, y4, b':', clock @ ..] = date else {
        return None;
    };
    let month = MONTHS.iter().position(|name| name.eq_ignore_ascii_case(&[*m1, *m2, *m3]))?;
    let days = days(number(&[*y1, *y2, *y3, *y4])?, month as i64 + 1, number(&[*d1, *d2])?)?;
    let seconds = days * 86_400 + of_day(clock)? - offset(zone.trim_ascii())?;
    Some(seconds * SECOND_US)
}

/// Microseconds since 1970 of `2015-05-17T10:05:03.123+02:00`, with a blank or a `T`.
pub(super) fn rfc3339(text: &str) -> Option<i64> {
    let (date, rest) = text.as_bytes().split_at_checked(19)?;
    let [y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2, b'T' | b't' | b' ', clock @ ..] = date else {
        return None;
    };
    let days = days(number(&[*y1, *y2, *y3, *y4])?, number(&[*m1, *m2])?, number(&[*d1, *d2])?)?;
    let (fraction_us, zone) = fraction(rest)?;
    let seconds = days * 86_400 + of_day(clock)? - offset(zone)?;
    Some(seconds * SECOND_US + fraction_us)
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
    rfc3339(text).or_else(|| common(text)).or_else(|| seconds(text))
}

/// Days since 1970 of a date of the Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Years begin in March here, so that a leap day is a year's last. 400 years have 146,097 days.
    let year = if month > 2 { year } else { year - 1 };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    // Months from March have 31, 30, 31, 30, 31 days, repeating: 153 in five.
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    Some(era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468)
}

/// Seconds of `10:05:03`.
fn of_day(text: &[u8]) -> Option<i64> {
    let [h1, h2, b':', m1, m2, b':', s1, s2] = text else { return None };
    let (hour, minute, second) = (number(&[*h1, *h2])?, number(&[*m1, *m2])?, number(&[*s1, *s2])?);
    // A leap second is the one before it once more.
    let fits = hour < 24 && minute < 60 && second <= 60;
    fits.then_some(hour * 3_600 + minute * 60 + second.min(59))
}

/// Microseconds of `.123` or `,123`, and what follows.
fn fraction(text: &[u8]) -> Option<(i64, &[u8])> {
    let [b'.' | b',', digits @ ..] = text else { return Some((0, text)) };
    let end = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    let (digits, rest) = digits.split_at_checked(end)?;
    let mut unit = SECOND_US;
    let each = digits.iter().map(|digit| {
        unit /= 10;
        i64::from(digit - b'0') * unit
    });
    Some((each.sum(), rest))
}

/// Seconds east of UTC of `Z`, `+0200`, `+02:00`. Without any it is UTC.
fn offset(text: &[u8]) -> Option<i64> {
    let (sign, digits) = match text {
        [] | [b'Z' | b'z'] => return Some(0),
        [b'+', digits @ ..] => (1, digits),
        [b'-', digits @ ..] => (-1, digits),
        _ => return None,
    };
    let (hours, minutes) = match digits {
        [h1, h2, b':', m1, m2] | [h1, h2, m1, m2] => (number(&[*h1, *h2])?, number(&[*m1, *m2])?),
        [h1, h2] => (number(&[*h1, *h2])?, 0),
        _ => return None,
    };
    Some(sign * (hours * 3_600 + minutes * 60))
}

fn number(digits: &[u8]) -> Option<i64> {
    digits.iter().try_fold(0, |number, digit| {
        digit.is_ascii_digit().then(|| number * 10 + i64::from(digit - b'0'))
    })
}

/// `2015-05-17 10:05:03Z`, for people.
pub(super) fn shown(unix_us: i64) -> String {
    let (date, time) = date_and_time(unix_us);
    format!("{date} {time}")
}

/// `2015-05-17T10:05:03Z`, for programs (RFC 3339).
pub(super) fn stamp(unix_us: i64) -> String {
    let (date, time) = date_and_time(unix_us);
    format!("{date}T{time}")
}

fn date_and_time(unix_us: i64) -> (String, String) {
    let second = unix_us.div_euclid(SECOND_US);
    let (days, of_day) = (second.div_euclid(86_400), second.rem_euclid(86_400));
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + i64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    (format!("{year:04}-{month:02}-{day:02}"), format!("{hour:02}:{minute:02}:{second:02}Z"))
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
        assert_eq!(shown(1_456_704_000 * SECOND_US), "2016-02-29 00:00:00Z");
    }

    #[test]
    fn an_invalid_time_is_none() {
        for wrong in ["", "-", "17/Mai/2015:10:05:03 +0000", "17/May/2015:25:05:03 +0000", "x"] {
            assert_eq!(any(wrong), None, "{wrong}");
        }
        assert_eq!(any("1431857103123"), None, "milliseconds have a name of their own");
    }
}
