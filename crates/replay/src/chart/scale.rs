//! Where a value lies on an axis, which values get a label, and how a value reads.

/// What an axis counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Things: `950`, `12k`, `3.4M`.
    Count,
    /// Seconds that something took: `250µs`, `1.5ms`, `2s`.
    Seconds,
    /// Seconds since 1970, in UTC: `14:05:30`, or `14:05`, or the date where days are between them.
    Instant,
    /// Seconds since a moment: `45s`, `5m`, `2h`.
    Elapsed,
    /// Seconds before now, negative: `-5m`, and `now`.
    Ago,
    /// Parts of one: `12.5%`.
    Share,
}

/// Maps values of an axis to places in a chart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    from: (f64, f64),
    to: (f64, f64),
    is_logarithmic: bool,
}

impl Scale {
    pub(super) fn new(from: (f64, f64), to: (f64, f64)) -> Self {
        Self { from, to, is_logarithmic: false }
    }

    /// A scale on which equal distances are equal factors. Both ends are above 0.
    pub(super) fn logarithmic(from: (f64, f64), to: (f64, f64)) -> Self {
        Self { from: (from.0.ln(), from.1.ln()), to, is_logarithmic: true }
    }

    /// The place of `value`. All values of an axis without a length are at its beginning.
    pub(super) fn of(&self, value: f64) -> f64 {
        let length = self.from.1 - self.from.0;
        if !length.is_finite() || length <= 0.0 {
            return self.to.0;
        }
        let value = match self.is_logarithmic {
            true if value > 0.0 => value.ln(),
            true => self.from.0,
            false => value,
        };
        self.to.0 + (value - self.from.0) / length * (self.to.1 - self.to.0)
    }
}

/// Steps of time that people count in, in seconds, up to a day.
const TIMES: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1_800.0, 3_600.0, 7_200.0,
    10_800.0, 21_600.0, 43_200.0, 86_400.0,
];
const DAY: f64 = 86_400.0;

/// Round values from `low` to the first that is at least `high` where the axis begins at 0, else
/// between both; about `wanted` of them.
pub(super) fn ticks(low: f64, high: f64, wanted: usize, unit: Unit) -> Vec<f64> {
    let span = high - low;
    let parts = u32::try_from(wanted.max(1)).map_or(1.0, f64::from);
    let rough = span / parts;
    if !rough.is_finite() || rough <= 0.0 {
        return vec![low];
    }
    let step = match unit {
        Unit::Instant | Unit::Elapsed | Unit::Ago if rough > 0.5 => {
            let in_days = || round_step(rough / DAY).max(1.0) * DAY;
            TIMES.iter().copied().find(|step| *step >= rough).unwrap_or_else(in_days)
        }
        _ => round_step(rough),
    };
    let begin = (low / step).ceil();
    let end = if low == 0.0 { (high / step).ceil() } else { (high / step).floor() };
    let mut ticks = Vec::new();
    let mut index = begin;
    while index <= end && ticks.len() <= 2 * wanted {
        ticks.push(index * step);
        index += 1.0;
    }
    ticks
}

/// Round values from `low` to `high`, both above 0, for a logarithmic axis: 1, 2, 5, 10 and so on
/// where `most` are enough for them, else powers of ten, or fewer of those.
pub(super) fn log_ticks(low: f64, high: f64, most: usize) -> Vec<f64> {
    let (first, last) = (low.log10().floor(), high.log10().ceil());
    if !first.is_finite() || !last.is_finite() {
        return vec![low];
    }
    let of = |factors: &[f64], every: f64| {
        let mut ticks = Vec::new();
        let mut power = first;
        while power <= last {
            let one = 10_f64.powf(power);
            let within = |tick: &f64| *tick >= low * 0.999_999 && *tick <= high * 1.000_001;
            ticks.extend(factors.iter().map(|factor| factor * one).filter(within));
            power += every;
        }
        ticks
    };
    let fine = of(&[1.0, 2.0, 5.0], 1.0);
    if fine.len() <= most {
        return fine;
    }
    let mut every = 1.0;
    loop {
        let ticks = of(&[1.0], every);
        if ticks.len() <= most.max(2) {
            return ticks;
        }
        every += 1.0;
    }
}

/// The next of 1, 2, 5, 10 ... that is at least this.
fn round_step(rough: f64) -> f64 {
    let power = 10_f64.powf(rough.log10().floor());
    let of = [1.0, 2.0, 5.0].into_iter().map(|factor| factor * power);
    of.into_iter().find(|step| *step >= rough * 0.999_999).unwrap_or(10.0 * power)
}

impl Unit {
    /// How `value` reads on an axis of this length.
    #[must_use]
    pub fn label(self, value: f64, span: f64) -> String {
        match self {
            Self::Count => short(value),
            Self::Seconds if value == 0.0 => "0".to_owned(),
            Self::Seconds if value < 0.001 => format!("{}\u{b5}s", trimmed(value * 1e6)),
            Self::Seconds if value < 1.0 => format!("{}ms", trimmed(value * 1e3)),
            Self::Seconds => format!("{}s", trimmed(value)),
            Self::Instant => instant(value, span),
            Self::Elapsed if value >= 2.0 * 3_600.0 => format!("{}h", trimmed(value / 3_600.0)),
            Self::Elapsed if value >= 120.0 => format!("{}m", trimmed(value / 60.0)),
            Self::Elapsed => format!("{}s", trimmed(value)),
            Self::Ago if value > -0.5 => "now".to_owned(),
            Self::Ago => format!("\u{2212}{}", Self::Elapsed.label(-value, span)),
            Self::Share => format!("{}%", trimmed(value * 100.0)),
        }
    }
}

/// A number in few characters: `950`, `1.2k`, `34M`.
#[must_use]
pub fn short(value: f64) -> String {
    for (one, letter) in [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")] {
        // 999,960 would read as 1000k.
        if value.abs() >= one * 0.999_95 {
            return trimmed(value / one) + letter;
        }
    }
    trimmed(value)
}

/// Three significant digits, without zeros at the end.
fn trimmed(value: f64) -> String {
    let places = match value.abs() {
        0.0 => 0,
        size if size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        size if size >= 0.995 => 2,
        _ => 3,
    };
    let text = format!("{value:.places$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

fn instant(seconds: f64, span: f64) -> String {
    #[expect(clippy::cast_possible_truncation, reason = "a cast saturates")]
    let at = jiff::Timestamp::from_second(seconds as i64).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    let form = match span {
        days if days >= 2.0 * DAY => "%-d %b",
        minutes if minutes >= 600.0 => "%H:%M",
        _ => "%H:%M:%S",
    };
    at.strftime(form).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_reach_the_highest_value() {
        assert_eq!(ticks(0.0, 97.0, 5, Unit::Count), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(ticks(0.0, 0.004, 4, Unit::Seconds), [0.0, 0.001, 0.002, 0.003, 0.004]);
        assert_eq!(ticks(100.0, 400.0, 5, Unit::Instant), [120.0, 180.0, 240.0, 300.0, 360.0]);
        assert_eq!(ticks(0.0, 3.0 * DAY, 4, Unit::Elapsed), [0.0, DAY, 2.0 * DAY, 3.0 * DAY]);
        assert_eq!(ticks(5.0, 5.0, 5, Unit::Count), [5.0]);
        assert_eq!(ticks(0.0, f64::INFINITY, 5, Unit::Count), [0.0]);
    }

    #[test]
    fn log_ticks_are_round_and_few() {
        assert_eq!(log_ticks(1.0, 100.0, 10), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
        assert_eq!(log_ticks(3.0, 70.0, 10), [5.0, 10.0, 20.0, 50.0]);
        assert_eq!(log_ticks(1.0, 20_000.0, 10), [1.0, 10.0, 100.0, 1e3, 1e4]);
        assert!(log_ticks(1.0, 1e15, 10).len() <= 10);
        assert!(log_ticks(f64::MIN_POSITIVE, f64::MAX, 10).len() <= 10);
        assert_eq!(log_ticks(1.0, f64::INFINITY, 10), [1.0]);
    }

    #[test]
    fn equal_factors_are_equal_distances() {
        let scale = Scale::logarithmic((1.0, 10_000.0), (100.0, 500.0));
        let near =
            |value: f64, place: f64| assert!((scale.of(value) - place).abs() < 1e-9, "{value}");
        near(1.0, 100.0);
        near(10.0, 200.0);
        near(100.0, 300.0);
        near(10_000.0, 500.0);
        near(0.0, 100.0);
        assert_eq!(Scale::logarithmic((5.0, 5.0), (100.0, 500.0)).of(5.0), 100.0);
    }

    #[test]
    fn values_read_in_few_characters() {
        for (value, text) in [
            (0.0, "0"),
            (0.25, "0.25"),
            (7.0, "7"),
            (950.0, "950"),
            (999.96, "1k"),
            (1_234.0, "1.23k"),
            (120_000.0, "120k"),
            (3_400_000.0, "3.4M"),
            (-5_000.0, "-5k"),
        ] {
            assert_eq!(short(value), text);
        }
        let label = |unit: Unit, value: f64| unit.label(value, value);
        assert_eq!(label(Unit::Seconds, 0.000_25), "250\u{b5}s");
        assert_eq!(label(Unit::Seconds, 0.0015), "1.5ms");
        assert_eq!(label(Unit::Elapsed, 300.0), "5m");
        assert_eq!(label(Unit::Share, 0.125), "12.5%");
        assert_eq!(label(Unit::Ago, -480.0), "\u{2212}8m");
        assert_eq!(label(Unit::Ago, -0.0), "now");
        let noon = 1_798_761_600.0;
        assert_eq!(Unit::Instant.label(noon, 60.0), "00:00:00");
        assert_eq!(Unit::Instant.label(noon, 3_600.0), "00:00");
        assert_eq!(Unit::Instant.label(noon, 3.0 * DAY), "1 Jan");
    }
}
