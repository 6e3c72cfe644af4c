//! A limit's settings that belong to its algorithm, as an operator writes them.

use crate::fixed_window::Alignment;
use crate::{Debt, NAMES, ROWS};

/// A setting of some algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// `quota`
    Quota,
    /// `period`
    Period,
    /// `burst`
    Burst,
    /// `alignment`
    Alignment,
    /// `buckets`
    Buckets,
    /// `max_delay`
    MaxDelay,
    /// `calendar`
    Calendar,
    /// `time_zone`
    TimeZone,
    /// `anchor_day`
    AnchorDay,
    /// `conditional`
    Conditional,
    /// `script`
    Script,
    /// `arguments`
    Arguments,
    /// `debt`
    Debt,
}

impl Setting {
    /// All settings, in the order in which errors are listed.
    pub const ALL: [Self; 13] = [
        Self::Quota,
        Self::Period,
        Self::Burst,
        Self::Alignment,
        Self::Buckets,
        Self::MaxDelay,
        Self::Calendar,
        Self::TimeZone,
        Self::AnchorDay,
        Self::Conditional,
        Self::Script,
        Self::Arguments,
        Self::Debt,
    ];

    /// Its key in the configuration.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::Quota => "quota",
            Self::Period => "period",
            Self::Burst => "burst",
            Self::Alignment => "alignment",
            Self::Buckets => "buckets",
            Self::MaxDelay => "max_delay",
            Self::Calendar => "calendar",
            Self::TimeZone => "time_zone",
            Self::AnchorDay => "anchor_day",
            Self::Conditional => "conditional",
            Self::Script => "script",
            Self::Arguments => "arguments",
            Self::Debt => "debt",
        }
    }

    /// The algorithms that it belongs to, for a message.
    #[must_use]
    pub fn owners(self) -> String {
        let owners: Vec<&str> =
            ROWS.iter().filter(|row| row.settings.contains(&self)).map(|row| row.name).collect();
        match (self, owners.as_slice()) {
            (Self::Period, _) => "algorithms with a rate".into(),
            (Self::Debt, _) => "fixed_window, quota, sliding windows, token_bucket and gcra".into(),
            (_, [one]) => (*one).to_owned(),
            (_, [others @ .., last]) if owners.len() < NAMES.len() / 2 => {
                format!("{} and {last}", others.join(", "))
            }
            _ => "Weir's own algorithms".into(),
        }
    }
}

/// The kind of period of a calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Every {
    /// From one full hour to the next.
    Hour,
    /// From midnight to midnight.
    Day,
    /// From Monday to Monday.
    Week,
    /// From one month's anchor day to the next's.
    Month,
    /// One period without an end.
    Forever,
}

impl Every {
    /// All kinds with their names.
    pub const ALL: [(&'static str, Self); 5] = [
        ("hour", Self::Hour),
        ("day", Self::Day),
        ("week", Self::Week),
        ("month", Self::Month),
        ("forever", Self::Forever),
    ];
}

/// The settings as written; `None` if a setting is missing. Durations are in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "each is the setting of its name")]
pub struct Written<'w> {
    pub quota: Option<u64>,
    pub period_ms: Option<u64>,
    pub burst: Option<u64>,
    pub alignment: Option<Alignment>,
    pub buckets: Option<u64>,
    pub max_delay_ms: Option<u64>,
    pub calendar: Option<Every>,
    pub time_zone: Option<&'w str>,
    pub anchor_day: Option<u64>,
    pub conditional: Option<bool>,
    pub script: Option<&'w str>,
    pub arguments: Option<&'w [i64]>,
    pub debt: Option<Debt>,
}

impl Written<'_> {
    /// Whether a setting is present.
    #[must_use]
    pub fn has(&self, setting: Setting) -> bool {
        match setting {
            Setting::Quota => self.quota.is_some(),
            Setting::Period => self.period_ms.is_some(),
            Setting::Burst => self.burst.is_some(),
            Setting::Alignment => self.alignment.is_some(),
            Setting::Buckets => self.buckets.is_some(),
            Setting::MaxDelay => self.max_delay_ms.is_some(),
            Setting::Calendar => self.calendar.is_some(),
            Setting::TimeZone => self.time_zone.is_some(),
            Setting::AnchorDay => self.anchor_day.is_some(),
            Setting::Conditional => self.conditional.is_some(),
            Setting::Script => self.script.is_some(),
            Setting::Arguments => self.arguments.is_some(),
            Setting::Debt => self.debt.is_some(),
        }
    }

    /// The debt, none by default.
    pub(crate) fn debt(&self) -> Debt {
        self.debt.unwrap_or_default()
    }

    /// Quota and period.
    pub(crate) fn rate(&self) -> Option<crate::Rate> {
        Some(crate::Rate { amount: self.quota?, per_ms: self.period_ms? })
    }
}

/// The expected value of `quota`, for most algorithms.
pub(crate) const QUOTA: (Setting, &str) =
    (Setting::Quota, "the units that each period allows, such as `quota = 100`");
/// The expected value of `period`.
pub(crate) const PERIOD: (Setting, &str) =
    (Setting::Period, "a duration, such as `period = \"1m\"`");
