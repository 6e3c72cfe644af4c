//! Local time: what its clocks show next, and when.

use crate::LocalTime;

const DAY_S: i64 = 86_400;

impl LocalTime {
    /// A time of day in UTC, on a weekday from 1 (Monday) to 7: for tests.
    #[must_use]
    pub fn utc(weekday: u8, hour: u8, minute: u8) -> Self {
        Self {
            year: 2026,
            month: 1,
            day: 4 + weekday,
            weekday,
            hour,
            minute,
            second: 0,
            offset_s: 0,
            offset_until_ms: None,
        }
    }

    /// Minutes since midnight, as the clock shows them.
    #[must_use]
    pub fn minutes(&self) -> u16 {
        u16::from(self.hour) * 60 + u16::from(self.minute)
    }

    /// When the clock next shows this time, in milliseconds since 1970: for
    /// [`Decision::valid_until_ms`](crate::Decision::valid_until_ms). `now_ms` is
    /// [`now_ms`](crate::now_ms), and `minutes` counts from midnight: 18:00 is `18 * 60`.
    ///
    /// If the clocks are changed before that, it is the time of the change: then ask again.
    #[must_use]
    pub fn next(&self, now_ms: u64, minutes: u16) -> u64 {
        let second = i64::from(self.minutes()) * 60 + i64::from(self.second);
        let ahead = (i64::from(minutes) * 60 - second).rem_euclid(DAY_S);
        let ahead = u64::try_from(if ahead == 0 { DAY_S } else { ahead }).unwrap_or(0);
        let next = now_ms - now_ms % 1_000 + ahead * 1_000;
        self.offset_until_ms.map_or(next, |change| next.min(change))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_time_is_later_today_or_tomorrow_and_never_after_a_change_of_the_clocks() {
        let now_ms = 1_000_000_000_500;
        let time = LocalTime { second: 30, ..LocalTime::utc(2, 17, 59) };
        assert_eq!(time.next(now_ms, 18 * 60), 1_000_000_030_000);
        assert_eq!(time.next(now_ms, 17 * 60), 1_000_000_000_000 + (23 * 3_600 + 30) * 1_000);
        let whole = LocalTime::utc(2, 18, 0);
        assert_eq!(whole.next(now_ms, 18 * 60), 1_000_000_000_000 + 86_400_000);
        let change = LocalTime { offset_until_ms: Some(1_000_000_010_000), ..time };
        assert_eq!(change.next(now_ms, 18 * 60), 1_000_000_010_000);
    }
}
