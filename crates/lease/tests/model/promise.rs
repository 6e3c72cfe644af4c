//! What a limit promises, measured on what was admitted: written from docs/leases.md and not from
//! the crate.

/// The promise of a limit, over all processes.
#[derive(Clone, Copy, Debug)]
pub enum Promise {
    /// At most `burst` + rate x (T + `late`) units in any span T, at a rate of `quota` units every
    /// `period` microseconds. `late` is in microseconds.
    Bucket { quota: i64, period: i64, burst: i64, late: i64 },
    /// At most `quota` units in any span (s, s + `span`], in microseconds.
    Trailing { quota: i64, span: i64 },
    /// At most `quota` units in each window of `period` microseconds of the store's clock. If they
    /// are not aligned to it, a window starts with its first unit.
    Windows { quota: i64, period: i64, aligned: bool },
    /// At most `most` places in use.
    InUse { most: i64 },
}

/// Measures a promise.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Meter {
    /// What was admitted beyond the rate: the largest over all spans that end now, in units x
    /// `period`. A span that keeps the promise has at most burst x period.
    Excess { level: i64, at: i64 },
    /// Units with the instants at which they were admitted.
    Recent(Vec<(i64, i64)>),
    /// The last window and its units.
    Window { number: i64, units: i64 },
    /// Each place in use, with the instant of its holder's clock at which it ends.
    Used,
}

impl Promise {
    pub fn new_meter(self) -> Meter {
        match self {
            Self::Bucket { .. } => Meter::Excess { level: 0, at: 0 },
            Self::Trailing { .. } => Meter::Recent(Vec::new()),
            Self::Windows { .. } => Meter::Window { number: 0, units: 0 },
            Self::InUse { .. } => Meter::Used,
        }
    }

    /// Forgets what no later span holds. `now` is the true time, `window_now` an instant of the
    /// store's window.
    pub fn pass(self, meter: &mut Meter, now: i64, window_now: i64) {
        match (self, meter) {
            (Self::Bucket { quota, .. }, Meter::Excess { level, at }) => {
                *level = (*level - quota * (now - *at)).max(0);
                *at = now;
            }
            (Self::Trailing { span, .. }, Meter::Recent(admitted)) => {
                admitted.retain(|(at, _)| *at > now - span);
            }
            (Self::Windows { period, .. }, Meter::Window { number, units })
                if *number != window_now / period =>
            {
                (*number, *units) = (window_now / period, 0);
            }
            _ => {}
        }
    }

    pub fn admit(self, meter: &mut Meter, now: i64, window_now: i64, units: i64) {
        self.pass(meter, now, window_now);
        match (self, meter) {
            (Self::Bucket { period, .. }, Meter::Excess { level, .. }) => *level += units * period,
            (_, Meter::Recent(admitted)) => match admitted.last_mut() {
                Some((at, before)) if *at == now => *before += units,
                _ => admitted.push((now, units)),
            },
            (_, Meter::Window { units: counted, .. }) => *counted += units,
            _ => {}
        }
    }

    /// How much more than promised was admitted, in units, rounded up; below zero if less was.
    pub fn over(self, meter: &Meter, in_use: i64) -> i64 {
        match (self, meter) {
            (Self::Bucket { quota, period, burst, late }, Meter::Excess { level, .. }) => {
                let over = level - burst * period - quota * late;
                (over + period - 1).div_euclid(period)
            }
            (Self::Trailing { quota, .. }, Meter::Recent(admitted)) => {
                admitted.iter().map(|(_, units)| units).sum::<i64>() - quota
            }
            (Self::Windows { quota, .. }, Meter::Window { units, .. }) => units - quota,
            (Self::InUse { most }, _) => in_use - most,
            (promise, meter) => panic!("{meter:?} does not measure {promise:?}"),
        }
    }

    /// The units that may be admitted at once: what one step of the store's clock may add.
    pub fn allowance(self) -> i64 {
        match self {
            Self::Bucket { burst, .. } => burst,
            Self::Trailing { quota, .. } | Self::Windows { quota, .. } => quota,
            Self::InUse { most } => most,
        }
    }
}
