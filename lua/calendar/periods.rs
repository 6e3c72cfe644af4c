//! Computes when the periods of a calendar start. This needs the database of time zones, which only
//! the proxy has.

use jiff::civil::{Date, date};
use jiff::{Timestamp, tz};

use super::{Calendar, TimeZone};

/// Longer than any zone's name.
const NAME_BYTES_MAX: usize = 64;
const HOUR_MS: i64 = 3_600_000;

impl TimeZone {
    /// Looks up a zone by name (`Europe/Berlin`) in the database built into this program; `None` if
    /// there is no such zone.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        if name.eq_ignore_ascii_case("utc") {
            return Some(Self::utc());
        }
        let zone = tz::TimeZone::get(name).ok()?;
        Some(Self { name: zone.iana_name().unwrap_or("UTC").into(), zone })
    }

    /// The most similar name in the database, if it is similar enough to be what was meant.
    #[must_use]
    pub fn nearest(name: &str) -> Option<String> {
        if name.len() > NAME_BYTES_MAX {
            return None;
        }
        let distance = |known: &str| strsim::damerau_levenshtein(name, known);
        let names = tz::db().available().map(|known| known.to_string());
        let (near, known) = names.map(|known| (distance(&known), known)).min()?;
        (near <= name.len().div_ceil(4)).then_some(known)
    }

    fn date(&self, ms: i64) -> Date {
        self.zone.to_datetime(Timestamp::from_millisecond(ms).unwrap_or_default()).date()
    }

    /// The first instant of a day, in milliseconds since 1970.
    fn midnight(&self, day: Date) -> i64 {
        day.to_zoned(self.zone.clone()).map_or(0, |midnight| midnight.timestamp().as_millisecond())
    }
}

impl Calendar {
    /// The starts of the previous period, this one, the next and the one after, in milliseconds
    /// since 1970, around `now_ms`; all 0 for a single period without an end.
    #[must_use]
    pub fn starts(&self, now_ms: i64) -> [i64; 4] {
        match self {
            Self::Hour(zone) => hours(zone, now_ms),
            Self::Day(zone) => around(zone, now_ms, i64::from(days(zone.date(now_ms))), |day| {
                plus_days(EPOCH, day)
            }),
            Self::Week(zone) => {
                let week = i64::from(days(zone.date(now_ms))).div_euclid(7);
                around(zone, now_ms, week, |week| plus_days(MONDAY, 7 * week))
            }
            Self::Month { time_zone, anchor_day } => {
                let today = time_zone.date(now_ms);
                let month = 12 * i64::from(today.year()) + i64::from(today.month()) - 1;
                around(time_zone, now_ms, month, |month| anchored(month, *anchor_day))
            }
            Self::Forever => [0; 4],
        }
    }
}

const EPOCH: Date = date(1970, 1, 1);
/// Weeks are counted from this Monday.
const MONDAY: Date = date(1969, 12, 29);

fn days(day: Date) -> i32 {
    EPOCH.until(day).map_or(0, |span| span.get_days())
}

fn plus_days(day: Date, days: i64) -> Date {
    day.saturating_add(jiff::Span::new().try_days(days).unwrap_or_default())
}

/// The anchor day of the `month`th month since the year 0, or that month's last day.
fn anchored(month: i64, anchor_day: u8) -> Date {
    let (year, month) = (month.div_euclid(12), month.rem_euclid(12) + 1);
    let first = Date::new(i16::try_from(year).unwrap_or(1970), i8::try_from(month).unwrap_or(1), 1)
        .unwrap_or(EPOCH);
    let day = i8::try_from(anchor_day).unwrap_or(31).clamp(1, first.days_in_month());
    Date::new(first.year(), first.month(), day).unwrap_or(first)
}

/// The starts around `now_ms` of numbered periods; `guess` is the number of one nearby.
fn around(zone: &TimeZone, now_ms: i64, guess: i64, first_day: impl Fn(i64) -> Date) -> [i64; 4] {
    let start = |number: i64| zone.midnight(first_day(number));
    let mut number = guess;
    // The guess is off by a day or a month at most.
    while start(number) > now_ms {
        number -= 1;
    }
    while start(number + 1) <= now_ms {
        number += 1;
    }
    [start(number - 1), start(number), start(number + 1), start(number + 2)]
}

fn hours(zone: &TimeZone, now_ms: i64) -> [i64; 4] {
    // Half an hour's day is no day: an hour before a midnight lies in the day before.
    let start = |ms: i64| {
        let [_, midnight, _, _] = Calendar::Day(zone.clone()).starts(ms);
        midnight + (ms - midnight).div_euclid(HOUR_MS) * HOUR_MS
    };
    let next = |ms: i64| {
        let [_, _, midnight, _] = Calendar::Day(zone.clone()).starts(ms);
        (ms + HOUR_MS).min(midnight)
    };
    let this = start(now_ms);
    [start(this - 1), this, next(this), next(next(this))]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(text: &str) -> i64 {
        text.parse::<Timestamp>().unwrap().as_millisecond()
    }

    fn told(calendar: &Calendar, now: &str) -> [String; 4] {
        calendar.starts(ms(now)).map(|ms| Timestamp::from_millisecond(ms).unwrap().to_string())
    }

    fn berlin() -> TimeZone {
        TimeZone::named("Europe/Berlin").unwrap()
    }

    #[test]
    fn a_day_of_the_change_of_clocks_has_23_or_25_hours() {
        let spring = told(&Calendar::Day(berlin()), "2026-03-29T12:00:00Z");
        assert_eq!(
            spring,
            [
                "2026-03-27T23:00:00Z",
                "2026-03-28T23:00:00Z",
                "2026-03-29T22:00:00Z",
                "2026-03-30T22:00:00Z"
            ]
        );
        let autumn = told(&Calendar::Day(berlin()), "2026-10-24T22:00:00Z");
        assert_eq!(
            autumn[1..],
            ["2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z", "2026-10-26T23:00:00Z"]
        );
    }

    #[test]
    fn a_week_begins_on_monday_and_a_month_on_its_anchor_or_its_last_day() {
        let week = told(&Calendar::Week(TimeZone::utc()), "2026-11-21T10:00:00Z");
        assert_eq!(week[1..3], ["2026-11-16T00:00:00Z", "2026-11-23T00:00:00Z"]);
        let month = |anchor_day, now| {
            told(&Calendar::Month { time_zone: TimeZone::utc(), anchor_day }, now)
        };
        assert_eq!(
            month(31, "2026-02-28T00:00:00Z"),
            [
                "2026-01-31T00:00:00Z",
                "2026-02-28T00:00:00Z",
                "2026-03-31T00:00:00Z",
                "2026-04-30T00:00:00Z"
            ]
        );
        assert_eq!(
            month(15, "2026-01-14T23:59:59Z")[1..3],
            ["2025-12-15T00:00:00Z", "2026-01-15T00:00:00Z"]
        );
        assert_eq!(month(29, "2028-02-29T00:00:00Z")[1], "2028-02-29T00:00:00Z", "a leap year");
    }

    #[test]
    fn a_midnight_that_does_not_exist_is_the_first_instant_after_it() {
        // Chile's clocks go from 24:00 to 01:00.
        let chile = TimeZone::named("America/Santiago").unwrap();
        assert_eq!(told(&Calendar::Day(chile), "2026-09-06T12:00:00Z")[1], "2026-09-06T04:00:00Z");
    }

    #[test]
    fn for_ever_has_no_starts_and_unknown_zones_no_name() {
        assert_eq!(Calendar::Forever.starts(ms("2026-03-29T12:00:00Z")), [0; 4]);
        assert_eq!(TimeZone::named("Europe/Atlantis").map(|zone| zone.name().to_owned()), None);
        assert_eq!((TimeZone::utc().name(), berlin().name()), ("UTC", "Europe/Berlin"));
    }

    proptest! {
        #[test]
        fn each_instant_lies_in_one_period_and_all_of_a_period_agree(
            now in 0_i64..4_102_444_800_000,
            zone in prop::sample::select(vec!["UTC", "Europe/Berlin", "America/Santiago", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kathmandu"]),
            which in 0..4,
            anchor_day in 1_u8..=31,
        ) {
            let time_zone = TimeZone::named(zone).unwrap();
            let calendar = match which {
                0 => Calendar::Hour(time_zone),
                1 => Calendar::Day(time_zone),
                2 => Calendar::Week(time_zone),
                _ => Calendar::Month { time_zone, anchor_day },
            };
            let [before, this, next, after] = calendar.starts(now);
            prop_assert!(before < this && this <= now && now < next && next < after);
            prop_assert_eq!(calendar.starts(this), [before, this, next, after]);
            prop_assert_eq!(calendar.starts(next - 1), [before, this, next, after]);
            prop_assert_eq!(calendar.starts(next)[..3].to_vec(), vec![this, next, after]);
            prop_assert_eq!(calendar.starts(this - 1)[1..].to_vec(), vec![before, this, next]);
        }
    }
}
