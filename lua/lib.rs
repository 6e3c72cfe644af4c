//! Describes each algorithm in one file next to its Lua: the program, the numbers that it reads,
//! its settings and their ranges, the shape of its counters, and how their state is shown to an
//! operator.
//!
//! The proxy uses all of it. The policies' SDK reads and checks limits with the same tables, so
//! that an error is reported at its line before the proxy sees an answer.
//!
//! To add an algorithm: write `NAME.lua` and `NAME.rs`, and add its line to [`algorithms!`] below.
//! CONTRIBUTING.md has the other steps.

mod calendar;
mod check;
mod concurrency;
mod debt;
mod fixed_window;
mod gcra;
mod leaky_bucket;
#[cfg(feature = "host")]
mod lease;
mod program;
mod quota;
mod script;
mod shape;
mod share;
mod sliding_window_buckets;
mod sliding_window_counter;
mod sliding_window_log;
#[cfg(feature = "host")]
mod state;
mod token_bucket;
mod written;

pub use calendar::{Calendar, TimeZone};
#[cfg(feature = "host")]
pub use calendar::{LocalTime, utc_text};
pub use check::{
    AMOUNT_MAX, ARGUMENT_MAX, ARGUMENTS_MAX, BUCKETS_MAX, BURST_PERIOD_MAX, Breach, MEMBERS_MAX,
    PERIOD_MS_MAX, PERIOD_MS_MAX_FOR_MICROSECONDS,
};
pub use debt::Debt;
pub use fixed_window::Alignment;
#[cfg(feature = "host")]
pub use lease::{LEASE_MS_MAX, Lease, Leased};
pub use program::{Content, Kind, NUMBERS_MAX, Program};
pub use shape::{Shape, ShapeExtra, script_digest_of};
pub use share::Share;
#[cfg(feature = "host")]
pub use weir_lease::{Bound, Terms};
pub use written::{Every, Setting, Written};

use std::time::Duration;

/// The length of a lease in memory, longer than any request: such a lease ends with its request, or
/// with the process.
pub const LEASE_IN_MEMORY: Duration = Duration::from_secs(400 * 24 * 3600);

/// `amount` units every `per_ms` milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    /// Units, 0 to [`AMOUNT_MAX`]; with 0 every request is refused.
    pub amount: u64,
    /// Milliseconds, 1 to [`PERIOD_MS_MAX`].
    pub per_ms: u64,
}

impl Rate {
    /// Microseconds per time unit of the limit: 1, or 1000 if the period is longer than an hour.
    #[must_use]
    pub fn unit_us(&self) -> u64 {
        if self.per_ms <= PERIOD_MS_MAX_FOR_MICROSECONDS { 1 } else { 1000 }
    }

    /// The period in the limit's time unit.
    #[must_use]
    pub fn period_units(&self) -> u64 {
        self.per_ms * (1000 / self.unit_us())
    }

    /// Its amount and its period, divided by what they have in common: the same rate with the
    /// smallest numbers, so that a bucket of any size counts exactly. A bucket's first two numbers.
    fn ticking(&self) -> Ticking {
        let factor = common_factor(self.amount, self.period_units()).max(1);
        Ticking { amount: self.amount / factor, period: self.period_units() / factor }
    }

    /// The time in which `units` come back; `period` is the rate's in some unit of time, and
    /// `divide` says how to round.
    fn time_for(&self, units: u64, period: u64, divide: fn(u128, u128) -> u128) -> u64 {
        // Below 2^52 x 2^46, so 128 bits are enough for any plan.
        let time = divide(u128::from(units) * u128::from(period), u128::from(self.amount.max(1)));
        u64::try_from(time).unwrap_or(u64::MAX)
    }

    /// The same period without an amount: the part that a counter's shape depends on.
    fn of_shape(self) -> Self {
        Self { amount: 0, ..self }
    }
}

/// A rate as a program reads it.
#[derive(Clone, Copy, Debug)]
struct Ticking {
    amount: u64,
    /// The period in the limit's time unit.
    period: u64,
}

/// The greatest common divisor.
fn common_factor(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// What an algorithm's numbers depend on in addition to its own settings.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// The length of a lease.
    pub lease: Duration,
    /// The instant for which a calendar's periods are named, in microseconds since 1970.
    pub now_us: i64,
}

impl Moment {
    /// The moment for algorithms whose numbers depend on nothing else.
    #[cfg(feature = "host")]
    const ANY: Self = Self { lease: Duration::ZERO, now_us: 0 };
}

/// One algorithm with its settings. [`Algorithm`] delegates each method to its variant.
pub trait Describe: Sized {
    /// Its name in the configuration and in `NAME.lua`.
    const NAME: &'static str;
    /// What its shapes begin with. Its number must change whenever the meaning of the state does.
    const CODE: &'static str;
    /// The settings that it has.
    const SETTINGS: &'static [Setting];
    /// The settings without a default, each with the value that is expected.
    const NEEDED: &'static [(Setting, &'static str)] = &[written::QUOTA, written::PERIOD];
    /// Whether it is a bucket: it has a burst, and refills unit by unit.
    const BUCKET: bool = false;
    /// Whether it counts in windows that end, where a debt may be forgotten.
    const WINDOWS: bool = false;
    /// Whether a request that fits may have to wait for its turn.
    const QUEUES: bool = false;

    /// The Lua that decides it; `None` for an operator's script.
    fn program() -> Option<&'static Program>;

    /// Reads its settings; `None` if a required one is missing. Ranges are checked afterwards.
    fn read(written: &Written<'_>) -> Option<Self>;

    /// Adds all settings that are out of range.
    fn check(&self, breaches: &mut Vec<Breach>) {
        match (self.rate(), self.amount()) {
            (Some(rate), _) => _ = self.check_rate(rate, breaches),
            (None, Some(amount)) => _ = check::amount(Setting::Quota, amount, breaches),
            (None, None) => {}
        }
    }

    /// Adds what is out of range of the quota, the period and the burst; returns whether all are in
    /// range.
    fn check_rate(&self, rate: Rate, breaches: &mut Vec<Breach>) -> bool {
        check::rate(rate, self.capacity().filter(|_| Self::BUCKET), breaches)
    }

    /// The most units that may be owed; 0 if none may.
    fn debt_max(&self) -> u64 {
        match self.rate() {
            Some(rate) if Self::BUCKET => {
                check::burst_max(rate).saturating_sub(self.capacity().unwrap_or(0))
            }
            Some(rate) if Self::WINDOWS => debt::most_of_windows(rate),
            _ => self.amount().map_or(0, debt::most_beside),
        }
    }

    /// The numbers that its program reads.
    fn numbers(&self, _: Moment) -> [i64; NUMBERS_MAX] {
        let (Some(rate), allowance) = (self.rate(), self.capacity().unwrap_or(0)) else {
            return [0; NUMBERS_MAX];
        };
        let debt = self.debt().number(allowance);
        if Self::BUCKET {
            let Ticking { amount, period } = rate.ticking();
            [amount as i64, period as i64, allowance as i64, debt, 0, 0, 0]
        } else {
            [rate.amount as i64, rate.period_units() as i64, debt, 0, 0, 0, 0]
        }
    }

    /// Its name; for a script the file's name.
    fn name(&self) -> &str {
        Self::NAME
    }

    /// How far its units may be owed.
    fn debt(&self) -> Debt {
        Debt::None
    }

    /// Quota and period, if it has a rate.
    fn rate(&self) -> Option<Rate> {
        None
    }

    /// The units allowed per period, or in flight; `None` if only a script knows.
    fn amount(&self) -> Option<u64> {
        self.rate().map(|rate| rate.amount)
    }

    /// Its allowance, which is how many units may pass at once: the burst, or a window's whole
    /// quota.
    fn capacity(&self) -> Option<u64> {
        self.amount()
    }

    /// The largest cost that can ever pass; `None` if there is no limit.
    fn cost_max(&self) -> Option<u64> {
        self.capacity()
    }

    /// What messages call [`Describe::cost_max`].
    fn cost_max_text(&self) -> &'static str {
        if Self::BUCKET { "the burst" } else { "the quota" }
    }

    /// Whether no request can ever pass. Such a limit never reaches Lua.
    fn refuses_all(&self) -> bool {
        self.amount() == Some(0) || self.capacity() == Some(0)
    }

    /// Microseconds per time unit, 1 or 1000.
    fn unit_us(&self) -> u64 {
        self.rate().map_or(1, |rate| rate.unit_us())
    }

    /// Whether its numbers depend on the date, so that they are computed for each take.
    fn is_dated(&self) -> bool {
        false
    }

    /// Whether units can be given back, or more can be charged, once the response is complete.
    fn settles(&self) -> bool {
        true
    }

    /// Whether units come back with time alone.
    fn refills(&self) -> bool {
        true
    }

    /// What it counts, if not requests.
    fn unit(&self) -> Option<&'static str> {
        None
    }

    /// `q` and `w` of `RateLimit-Policy`: a quota, and the window in seconds. With a capacity above
    /// the quota more than the quota may be left. The capacity is reported then, and the time in
    /// which it comes back, which is the same rate.
    fn policy(&self) -> Option<(u64, Option<u64>)> {
        let (rate, capacity) = (self.rate()?, self.capacity()?);
        let (quota, window_ms) = if capacity > rate.amount && rate.amount > 0 {
            (capacity, rate.time_for(capacity, rate.per_ms, u128::div_ceil))
        } else {
            (rate.amount, rate.per_ms)
        };
        Some((quota, Some(window_ms.div_ceil(1_000))))
    }

    /// When nothing is left and the whole allowance is back after `reset_us` microseconds: how long
    /// until the next unit is back, in microseconds. Rounded down, as the reported value is rounded
    /// up later.
    fn unit_back_us(&self, reset_us: u64) -> u64 {
        match (self.rate(), self.capacity()) {
            // All but one unit of the burst are still missing then.
            (Some(rate), Some(burst)) if Self::BUCKET => {
                let others_us =
                    rate.time_for(burst.saturating_sub(1), rate.per_ms * 1_000, u128::div_euclid);
                reset_us.saturating_sub(others_us)
            }
            _ => reset_us,
        }
    }

    /// The same with this debt; `None` if units can't be owed to it.
    fn with_debt(self, _: Debt) -> Option<Self> {
        None
    }

    /// The same with another quota and burst; `None` if it can't be counted separately for a while.
    fn with_rate(&self, _: Rate, _: u64) -> Option<Self> {
        None
    }

    /// The same without amounts: everything that gives a counter's state its meaning. Counters keep
    /// their state as long as this is unchanged.
    fn of_shape(&self) -> Self;

    /// The shape as text, such as `fw2-60000c`: the code, the period in milliseconds, and whatever
    /// else the state's meaning depends on. Short, as it is part of every key.
    fn write_shape(&self, _: &ShapeExtra) -> String {
        format!("{}-{}", Self::CODE, self.rate().map_or(0, |rate| rate.per_ms))
    }

    /// Parses what [`Describe::write_shape`] wrote.
    fn read_shape(text: &str) -> Option<(Self, ShapeExtra)>;

    /// Describes a counter's content in words. `known`: whether the limit's amounts are known, to
    /// report the used share of the allowance.
    #[cfg(feature = "host")]
    fn state(
        &self,
        extra: &ShapeExtra,
        content: &Content,
        at_us: u64,
        known: bool,
    ) -> Option<String>;
}

/// An algorithm's entry in [`ROWS`], used to read a limit's settings.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its name.
    pub name: &'static str,
    /// See [`Describe::SETTINGS`].
    pub settings: &'static [Setting],
    /// See [`Describe::NEEDED`].
    pub needed: &'static [(Setting, &'static str)],
    /// See [`Describe::QUEUES`].
    pub queues: bool,
    /// See [`Describe::read`].
    pub read: fn(&Written<'_>) -> Option<Algorithm>,
}

macro_rules! algorithms {
    (($d:tt) $($(#[$doc:meta])* $module:ident :: $variant:ident),+ $(,)?) => {
        $(
            pub use $module::$variant;

            impl From<$variant> for Algorithm {
                fn from(algorithm: $variant) -> Self {
                    Self::$variant(algorithm)
                }
            }
        )+

        /// The types of all algorithms.
        pub mod types {
            $(pub use super::$variant;)+
        }

        /// How a limit counts. Each variant except a script is a pure function in `lua/`.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub enum Algorithm {
            $($(#[$doc])* $variant($variant)),+
        }

        /// All algorithms, in the order in which messages list them.
        pub static ROWS: &[Row] = &[$(Row {
            name: $variant::NAME,
            settings: $variant::SETTINGS,
            needed: $variant::NEEDED,
            queues: $variant::QUEUES,
            read: |written| $variant::read(written).map(Algorithm::$variant),
        }),+];

        /// The programs of all algorithms.
        #[must_use]
        pub fn programs() -> Vec<&'static Program> {
            [$($variant::program()),+].into_iter().flatten().collect()
        }

        /// The names of all algorithms.
        pub const NAMES: &[&str] = &[$($variant::NAME),+];

        /// Runs `$body` with the variant's value as `$it`. It needs no vtable, so that a policy's
        /// module contains only the methods that it calls.
        macro_rules! dispatch {
            ($d algorithm:expr, $d it:ident => $d body:expr) => {
                match $d algorithm { $(Algorithm::$variant($d it) => $d body),+ }
            };
        }

        impl Algorithm {
            /// The Lua that decides it; `None` of an operator's script.
            #[must_use]
            pub fn program(&self) -> Option<&'static Program> {
                match self { $(Self::$variant(_) => $variant::program()),+ }
            }

            /// See [`Describe::QUEUES`].
            #[must_use]
            pub fn queues(&self) -> bool {
                match self { $(Self::$variant(_) => $variant::QUEUES),+ }
            }

            /// See [`Describe::WINDOWS`].
            fn has_windows(&self) -> bool {
                match self { $(Self::$variant(_) => $variant::WINDOWS),+ }
            }

            /// The same with this debt; `None` if units can't be owed to it.
            #[must_use]
            pub fn with_debt(self, debt: Debt) -> Option<Self> {
                match self { $(Self::$variant(it) => it.with_debt(debt).map(Self::$variant)),+ }
            }

            /// This share of its quota and burst. `None` if several can't count it separately: what
            /// is in flight, calendars, and scripts.
            #[must_use]
            pub fn share(&self, share: Share) -> Option<Self> {
                match self { $(Self::$variant(it) => share.of_algorithm(it).map(Self::$variant)),+ }
            }

            /// The same without amounts: see [`Describe::of_shape`].
            #[must_use]
            pub fn of_shape(&self) -> Self {
                match self { $(Self::$variant(it) => Self::$variant(it.of_shape())),+ }
            }

            /// Parses a shape, without amounts.
            fn read_shape(text: &str) -> Option<(Self, ShapeExtra)> {
                None$(.or_else(|| {
                    $variant::read_shape(text).map(|(it, extra)| (Self::$variant(it), extra))
                }))+
            }
        }
    };
}

algorithms! { ($)
    /// At most `rate.amount` in each window of `rate.per_ms`.
    fixed_window::FixedWindow,
    /// About `rate.amount` in each trailing period: the previous window counts in proportion to the
    /// part of it that the period still covers. Approximate.
    sliding_window_counter::SlidingWindowCounter,
    /// At most `rate.amount` in any span of one period: each unit is stored.
    sliding_window_log::SlidingWindowLog,
    /// At most `rate.amount` in the last sub-windows; over-admits by at most the units of one of
    /// them.
    sliding_window_buckets::SlidingWindowBuckets,
    /// A bucket of `burst` tokens, refilled at `rate`.
    token_bucket::TokenBucket,
    /// Virtual scheduling (ITU-T I.371): the guarantee of a token bucket, stored as one instant.
    gcra::Gcra,
    /// Shapes traffic: `burst` units pass at once, early requests wait for their turn, the rest is
    /// refused.
    leaky_bucket::LeakyBucket,
    /// At most `amount` at the same time, over all proxies; given back when the request ends.
    concurrency::Concurrency,
    /// At most `amount` in each period of a calendar.
    quota::Quota,
    /// The operator's own Lua file.
    script::Script,
}

impl Row {
    /// Finds an algorithm by name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        ROWS.iter().find(|row| row.name == name)
    }
}

macro_rules! delegate {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) -> $answer:ty;)+) => {
        impl Algorithm {
            $(
                $(#[$doc])*
                #[must_use]
                pub fn $name(&self, $($argument: $type),*) -> $answer {
                    dispatch!(self, it => it.$name($($argument),*))
                }
            )+
        }
    };
}

delegate! {
    /// See [`Describe::name`].
    name() -> &str;
    /// See [`Describe::debt`].
    debt() -> Debt;
    /// See [`Describe::rate`].
    rate() -> Option<Rate>;
    /// See [`Describe::amount`].
    amount() -> Option<u64>;
    /// See [`Describe::capacity`].
    capacity() -> Option<u64>;
    /// See [`Describe::cost_max`].
    cost_max() -> Option<u64>;
    /// See [`Describe::cost_max_text`].
    cost_max_text() -> &'static str;
    /// See [`Describe::refuses_all`].
    refuses_all() -> bool;
    /// See [`Describe::unit_us`].
    unit_us() -> u64;
    /// See [`Describe::is_dated`].
    is_dated() -> bool;
    /// See [`Describe::settles`].
    settles() -> bool;
    /// See [`Describe::refills`].
    refills() -> bool;
    /// See [`Describe::unit`].
    unit() -> Option<&'static str>;
    /// See [`Describe::policy`].
    policy() -> Option<(u64, Option<u64>)>;
    /// See [`Describe::unit_back_us`].
    unit_back_us(reset_us: u64) -> u64;
    /// See [`Describe::debt_max`].
    debt_max() -> u64;
    /// See [`Describe::numbers`].
    numbers(moment: Moment) -> [i64; NUMBERS_MAX];
}

impl Algorithm {
    /// What its counters are made of.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.program().map_or(Kind::Numbers, |program| program.kind)
    }

    /// Whether each unit is stored by name: the units of a log, or leases.
    #[must_use]
    pub fn keeps_members(&self) -> bool {
        matches!(self.kind(), Kind::Log | Kind::Leases)
    }

    /// Whether units are held only while the request is in flight.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.kind() == Kind::Leases
    }

    /// The same as the parent of children with assured rates, whose units may take more than is
    /// left: as far as its own debt allows, or without one as much as comes back in a minute, and
    /// at least one allowance. `None` if it can't be one: what it counts can't be owed.
    #[cfg(feature = "host")]
    #[must_use]
    pub fn as_parent(&self) -> Option<Self> {
        if let Self::Concurrency(_) = self {
            // Its places beyond the amount are held, and nothing pays for them.
            return Some(self.clone());
        }
        let owing =
            self.clone().with_debt(Debt::Allowance).filter(|_| self.kind() == Kind::Numbers);
        if self.debt() != Debt::None {
            return owing.map(|_| self.clone());
        }
        let minute =
            self.rate().map_or(0, |rate| rate.amount.saturating_mul(60_000) / rate.per_ms.max(1));
        let units = minute.max(self.capacity().unwrap_or(0)).min(self.debt_max());
        owing?.with_debt(Debt::Units(units))
    }

    pub(crate) fn write_shape(&self, extra: &ShapeExtra) -> String {
        dispatch!(self, it => it.write_shape(extra))
    }

    #[cfg(feature = "host")]
    pub(crate) fn state(
        &self,
        extra: &ShapeExtra,
        content: &Content,
        at_us: u64,
        known: bool,
    ) -> Option<String> {
        dispatch!(self, it => it.state(extra, content, at_us, known))
    }

    /// All settings that are out of range, in the order in which the algorithm checks them.
    #[must_use]
    #[inline(never)]
    pub fn breaches(&self) -> Vec<Breach> {
        let mut breaches = Vec::new();
        dispatch!(self, it => it.check(&mut breaches));
        if breaches.is_empty() && self.debt() != Debt::None {
            let (allowance, most) = (self.capacity().unwrap_or(0), self.debt_max());
            self.debt().check(allowance, most, self.has_windows(), &mut breaches);
        }
        breaches
    }

    /// The shape of its counters. `extra` is what it depends on in addition to the settings.
    #[must_use]
    pub fn shape(&self, extra: ShapeExtra) -> Shape {
        Shape::new(self.of_shape(), extra)
    }
}

#[cfg(test)]
#[cfg(feature = "host")]
mod tests;
