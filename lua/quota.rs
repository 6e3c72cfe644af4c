//! `quota`: an amount in each period of a calendar.

use crate::{
    Breach, Calendar, Debt, Describe, Every, Moment, NUMBERS_MAX, Program, Setting, ShapeExtra,
    TimeZone, Written, check, debt, written,
};
#[cfg(feature = "host")]
use crate::{
    Content,
    state::{Time, owed, used, used_and_owed, whole},
    utc_text,
};

const TIME_ZONE_DEFAULT: &str = "UTC";

/// At most `amount` in each period of a calendar.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    /// Units per period.
    pub amount: u64,
    /// Which periods.
    pub calendar: Calendar,
    /// Whether it refuses requests. If not, it only counts and reports what is left.
    pub conditional: bool,
    /// How far charges may go beyond it.
    pub debt: Debt,
}

#[cfg(feature = "host")]
impl Quota {
    /// The same with its time zone looked up.
    ///
    /// # Errors
    /// The zone's name, if the database has no such zone.
    pub fn located(self) -> Result<Self, String> {
        let Some(zone) = self.calendar.time_zone() else { return Ok(self) };
        let zone = TimeZone::named(zone.name()).ok_or_else(|| zone.name().to_owned())?;
        Ok(Self { calendar: self.calendar.within(zone), ..self })
    }
}

impl Describe for Quota {
    const NAME: &'static str = "quota";
    const CODE: &'static str = "q2";
    const WINDOWS: bool = true;
    const SETTINGS: &'static [Setting] = &[
        Setting::Quota,
        Setting::Calendar,
        Setting::TimeZone,
        Setting::AnchorDay,
        Setting::Conditional,
        Setting::Debt,
    ];
    const NEEDED: &'static [(Setting, &'static str)] =
        &[written::QUOTA, (Setting::Calendar, "one of `hour`, `day`, `week`, `month`, `forever`")];

    fn program() -> Option<&'static Program> {
        crate::program::program!("quota", Numbers, state 3, numbers 7)
    }

    /// The zone is only named here; the proxy looks it up.
    fn read(written: &Written<'_>) -> Option<Self> {
        let zone = || TimeZone::unchecked(written.time_zone.unwrap_or(TIME_ZONE_DEFAULT));
        let calendar = match written.calendar? {
            Every::Hour => Calendar::Hour(zone()),
            Every::Day => Calendar::Day(zone()),
            Every::Week => Calendar::Week(zone()),
            Every::Month => {
                // Values out of range become 0, which is out of range too.
                let anchor_day = u8::try_from(written.anchor_day.unwrap_or(1)).unwrap_or(0);
                Calendar::Month { time_zone: zone(), anchor_day }
            }
            Every::Forever => Calendar::Forever,
        };
        let conditional = written.conditional.unwrap_or(true);
        Some(Self { amount: written.quota?, calendar, conditional, debt: written.debt() })
    }

    fn check(&self, breaches: &mut Vec<Breach>) {
        check::amount(Setting::Quota, self.amount, breaches);
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_+-/".contains(&byte);
        if let Some(zone) = self.calendar.time_zone().map(TimeZone::name)
            && (zone.is_empty() || !zone.bytes().all(plain))
        {
            let expected = "a name of the IANA database, such as \"Europe/Berlin\"";
            breaches.push(Breach::new(Setting::TimeZone, format!("{zone:?}"), expected));
        }
        if let Calendar::Month { anchor_day, .. } = self.calendar
            && !(1..=31).contains(&anchor_day)
        {
            breaches.push(Breach::new(Setting::AnchorDay, anchor_day, "1 to 31"));
        }
    }

    #[cfg(feature = "host")]
    fn numbers(&self, moment: Moment) -> [i64; NUMBERS_MAX] {
        let [before, this, next, after] = self.calendar.starts(moment.now_us.div_euclid(1000));
        let debt = self.debt.number(self.amount);
        [self.amount as i64, i64::from(self.conditional), before, this, next, after, debt]
    }

    /// There are no periods without the database of time zones.
    #[cfg(not(feature = "host"))]
    fn numbers(&self, _: Moment) -> [i64; NUMBERS_MAX] {
        [0; NUMBERS_MAX]
    }

    /// A debt is paid in one period, so that the periods that are named determine what is owed.
    fn debt_max(&self) -> u64 {
        self.amount.min(debt::most_beside(self.amount))
    }

    fn amount(&self) -> Option<u64> {
        Some(self.amount)
    }

    fn cost_max(&self) -> Option<u64> {
        self.conditional.then_some(self.amount)
    }

    fn refuses_all(&self) -> bool {
        self.conditional && self.amount == 0
    }

    fn unit_us(&self) -> u64 {
        1000
    }

    fn is_dated(&self) -> bool {
        true
    }

    fn refills(&self) -> bool {
        self.calendar != Calendar::Forever
    }

    fn policy(&self) -> Option<(u64, Option<u64>)> {
        let window_s = match self.calendar {
            Calendar::Hour(_) => Some(3_600),
            Calendar::Day(_) => Some(86_400),
            Calendar::Week(_) => Some(604_800),
            // Months differ in length.
            Calendar::Month { .. } | Calendar::Forever => None,
        };
        Some((self.amount, window_s))
    }

    fn debt(&self) -> Debt {
        self.debt
    }

    fn with_debt(self, debt: Debt) -> Option<Self> {
        Some(Self { debt, ..self })
    }

    fn of_shape(&self) -> Self {
        let calendar = self.calendar.clone();
        Self { amount: 0, calendar, conditional: true, debt: Debt::None }
    }

    /// A zone's `/` becomes `.`, which no zone's name contains.
    fn write_shape(&self, _: &ShapeExtra) -> String {
        let (code, zone) = match &self.calendar {
            Calendar::Hour(zone) => ("h".to_owned(), zone),
            Calendar::Day(zone) => ("d".to_owned(), zone),
            Calendar::Week(zone) => ("w".to_owned(), zone),
            Calendar::Month { time_zone, anchor_day } => (format!("m{anchor_day}"), time_zone),
            Calendar::Forever => return format!("{}-ever", Self::CODE),
        };
        format!("{}-{code}-{}", Self::CODE, zone.name().replace('/', "."))
    }

    fn read_shape(text: &str) -> Option<(Self, ShapeExtra)> {
        let period = text.strip_prefix(Self::CODE)?.strip_prefix('-')?;
        let calendar = if period == "ever" {
            Calendar::Forever
        } else {
            let (code, zone) = period.split_once('-')?;
            let zone = TimeZone::unchecked(&zone.replace('.', "/"));
            match code {
                "h" => Calendar::Hour(zone),
                "d" => Calendar::Day(zone),
                "w" => Calendar::Week(zone),
                _ => Calendar::Month {
                    time_zone: zone,
                    anchor_day: code.strip_prefix('m')?.parse().ok()?,
                },
            }
        };
        let quota = Self { amount: 0, calendar, conditional: true, debt: Debt::None };
        Some((quota, ShapeExtra::Nothing))
    }

    #[cfg(feature = "host")]
    fn state(&self, _: &ShapeExtra, content: &Content, at_us: u64, known: bool) -> Option<String> {
        let Content::Numbers([start, count, owing]) = *content else { return None };
        let amount = known.then_some(self.amount);
        if self.calendar == Calendar::Forever {
            return Some(format!("{}, for ever", used(whole(count), amount)));
        }
        let (time, began) = (Time::in_ms(at_us), utc_text(start));
        if !known {
            let used = used(whole(count), amount);
            return Some(format!("{used} in the period that began at {began}"));
        }
        let [before, this, next, after] =
            self.calendar.starts(i64::try_from(time.now).unwrap_or(i64::MAX));
        let owed = if self.conditional { owed(whole(count), whole(owing), self.amount) } else { 0 };
        if start < this {
            // What is owed is paid in the next period.
            let carried = if start == before { owed } else { 0 };
            let used = used(carried, amount);
            return Some(format!(
                "{used} (the period that began at {began}, with {count}, is over)"
            ));
        }
        let used = if self.conditional {
            used_and_owed(whole(count), self.amount, owed)
        } else {
            used(whole(count), amount)
        };
        let (ends, until) =
            (utc_text(next), time.until(whole(if owed > 0 { after } else { next })));
        Some(format!("{used}, all back in {until} (the period from {began} to {ends})"))
    }
}
