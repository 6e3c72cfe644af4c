//! What clocks in a time zone show.

use jiff::{Timestamp, civil};

use super::TimeZone;

/// An instant as clocks in a time zone show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalTime {
    /// The year.
    pub year: i16,
    /// 1 to 12.
    pub month: u8,
    /// 1 to 31.
    pub day: u8,
    /// 1 (Monday) to 7.
    pub weekday: u8,
    /// 0 to 23.
    pub hour: u8,
    /// 0 to 59.
    pub minute: u8,
    /// 0 to 59.
    pub second: u8,
    /// How far the zone is ahead of UTC, in seconds.
    pub offset_s: i32,
    /// The time until which it is that far ahead, in milliseconds since 1970; `None` if for ever.
    pub offset_until_ms: Option<i64>,
}

impl TimeZone {
    /// What its clocks show at an instant, in milliseconds since 1970. `None` out of the calendar's
    /// range.
    #[must_use]
    pub fn local_time(&self, unix_ms: i64) -> Option<LocalTime> {
        let at = Timestamp::from_millisecond(unix_ms).ok()?;
        let shown: civil::DateTime = self.zone.to_datetime(at);
        let unsigned = |number: i8| u8::try_from(number).unwrap_or(0);
        let next = self.zone.following(at).next();
        Some(LocalTime {
            year: shown.year(),
            month: unsigned(shown.month()),
            day: unsigned(shown.day()),
            weekday: unsigned(shown.weekday().to_monday_one_offset()),
            hour: unsigned(shown.hour()),
            minute: unsigned(shown.minute()),
            second: unsigned(shown.second()),
            offset_s: self.zone.to_offset(at).seconds(),
            offset_until_ms: next.map(|change| change.timestamp().as_millisecond()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_shows_the_zones_own_time_and_when_it_is_changed() {
        let unix_ms = |text: &str| text.parse::<Timestamp>().unwrap().as_millisecond();
        let berlin = TimeZone::named("Europe/Berlin").unwrap();
        // A Saturday, the last evening of winter time in 2026.
        let shown = berlin.local_time(unix_ms("2026-03-28T22:59:30Z")).unwrap();
        let change = unix_ms("2026-03-29T01:00:00Z");
        let expected = LocalTime {
            year: 2026,
            month: 3,
            day: 28,
            weekday: 6,
            hour: 23,
            minute: 59,
            second: 30,
            offset_s: 3_600,
            offset_until_ms: Some(change),
        };
        assert_eq!(shown, expected);
        let after = berlin.local_time(change).unwrap();
        assert_eq!((after.weekday, after.hour, after.offset_s), (7, 3, 7_200));
        let utc = TimeZone::utc().local_time(change).unwrap();
        assert_eq!((utc.hour, utc.offset_s, utc.offset_until_ms), (1, 0, None));
        assert_eq!(berlin.local_time(i64::MAX), None);
    }
}
