//! The periods of a calendar in a time zone: the start of the one around an instant, and of the
//! next ones.
//!
//! A day, week or month starts at local midnight or, if a clock change skips midnight, at the first
//! instant after it. An hour starts at whole hours since midnight: after a clock change of less
//! than an hour, the day's last one is short. So each instant lies in exactly one period, whatever
//! the zone does.

use std::fmt;
use std::sync::Arc;

#[cfg(feature = "host")]
use jiff::{Timestamp, tz};

/// Which periods a quota is counted in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Calendar {
    /// From one full hour to the next.
    Hour(TimeZone),
    /// From midnight to midnight: 23 or 25 hours where the clocks change.
    Day(TimeZone),
    /// From Monday to Monday (ISO 8601).
    Week(TimeZone),
    /// From one month's anchor day to the next's.
    Month {
        /// The time zone.
        time_zone: TimeZone,
        /// The day on which it starts, 1 to 31; in a shorter month its last day.
        anchor_day: u8,
    },
    /// One period without an end.
    Forever,
}

/// An instant, in milliseconds since 1970, as text (RFC 3339, UTC); the number itself if it is out
/// of the calendar's range.
#[cfg(feature = "host")]
#[must_use]
pub fn utc_text(unix_ms: i64) -> String {
    Timestamp::from_millisecond(unix_ms).map_or_else(|_| unix_ms.to_string(), |at| at.to_string())
}

/// A time zone of the IANA database, by its name.
#[derive(Clone)]
pub struct TimeZone {
    name: Arc<str>,
    #[cfg(feature = "host")]
    zone: tz::TimeZone,
}

impl TimeZone {
    /// A zone of which only the name is used. Only the proxy has the database.
    #[must_use]
    pub fn unchecked(name: &str) -> Self {
        Self {
            name: name.into(),
            #[cfg(feature = "host")]
            zone: tz::TimeZone::UTC,
        }
    }

    /// Coordinated Universal Time.
    #[must_use]
    pub fn utc() -> Self {
        Self::unchecked("UTC")
    }

    /// Its name in the database.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for TimeZone {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl PartialEq for TimeZone {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for TimeZone {}

impl std::hash::Hash for TimeZone {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
}

#[cfg(feature = "host")]
mod local;
#[cfg(feature = "host")]
mod periods;

#[cfg(feature = "host")]
pub use local::LocalTime;

impl Calendar {
    /// The zone in which its periods start; `None` if there is only one period.
    #[must_use]
    pub fn time_zone(&self) -> Option<&TimeZone> {
        match self {
            Self::Hour(zone) | Self::Day(zone) | Self::Week(zone) => Some(zone),
            Self::Month { time_zone, .. } => Some(time_zone),
            Self::Forever => None,
        }
    }

    /// The same in a zone that has been looked up.
    #[must_use]
    pub fn within(self, zone: TimeZone) -> Self {
        match self {
            Self::Hour(_) => Self::Hour(zone),
            Self::Day(_) => Self::Day(zone),
            Self::Week(_) => Self::Week(zone),
            Self::Month { anchor_day, .. } => Self::Month { time_zone: zone, anchor_day },
            Self::Forever => Self::Forever,
        }
    }
}
