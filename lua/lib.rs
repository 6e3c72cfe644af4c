//! What each algorithm is, in one file each beside its Lua: the program, the numbers that it reads,
//! the settings that it is written with and their ranges, the shape of its counters, and how their
//! state reads to an operator.
//!
//! The proxy uses all of it. The policies' SDK reads and checks limits with the same tables, so
//! that a mistake is reported at its line before the proxy sees an answer.
//!
//! To add an algorithm: `NAME.lua`, `NAME.rs`, its line in [`algorithms!`] below, its variant in
//! the contract (`wasm-sdk/wit/policy.wit` and the two conversions that the compiler then asks
//! for), and its section in `docs/algorithms.md`.

mod bucket;
mod calendar;
mod check;
mod program;
mod shape;
#[cfg(feature = "host")]
mod state;
mod written;

#[cfg(feature = "host")]
pub use calendar::utc_text;
pub use calendar::{Calendar, TimeZone};
pub use check::{
    AMOUNT_MAX, ARGUMENT_MAX, ARGUMENTS_MAX, BUCKETS_MAX, BURST_PERIOD_MAX, Breach, MEMBERS_MAX,
    PERIOD_MS_MAX, PERIOD_MS_MAX_FOR_MICROSECONDS,
};
pub use fixed_window::Alignment;
pub use program::{Content, Kind, NUMBERS_MAX, Program};
pub use shape::{Beside, Shape, script_digest_of};
pub use written::{Every, Setting, Written};

use std::time::Duration;

/// In memory a lease ends with its request, or with the process: longer than any request.
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
    /// Microseconds in the limit's time unit: 1, or 1000 where the period is longer than an hour.
    #[must_use]
    pub fn unit_us(&self) -> u64 {
        if self.per_ms <= PERIOD_MS_MAX_FOR_MICROSECONDS { 1 } else { 1000 }
    }

    /// The period in the limit's time unit.
    #[must_use]
    pub fn period_units(&self) -> u64 {
        self.per_ms * (1000 / self.unit_us())
    }

    /// The program's first two numbers. Below 2^53 each, which `check` holds.
    fn numbers(&self) -> [i64; 2] {
        [self.amount as i64, self.period_units() as i64]
    }

    /// The same period without an amount: what a counter's shape depends on.
    fn of_shape(self) -> Self {
        Self { amount: 0, ..self }
    }
}

/// What an algorithm's numbers depend on beside its own settings.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// A lease's length.
    pub lease: Duration,
    /// The instant around which a calendar's periods are named, in microseconds since 1970.
    pub now_us: i64,
}

/// One algorithm with its settings. [`Algorithm`] passes each method on to the variant's.
pub trait Describe: Sized {
    /// What it is called in the configuration and in `NAME.lua`.
    const NAME: &'static str;
    /// The settings that it is written with.
    const SETTINGS: &'static [Setting];
    /// Those without a default, each with what may stand there.
    const NEEDED: &'static [(Setting, &'static str)];

    /// Whether a request that fits may have to wait for its turn.
    const QUEUES: bool = false;

    /// The Lua that decides it; `None` of an operator's script.
    fn program() -> Option<&'static Program>;

    /// Reads it, where all that it needs is written. Ranges are checked afterwards.
    fn read(written: &Written<'_>) -> Option<Self>;

    /// Adds all settings that are out of range.
    fn check(&self, breaches: &mut Vec<Breach>);

    /// The numbers that its program reads.
    fn numbers(&self, moment: Moment) -> [i64; NUMBERS_MAX];

    /// What it is called: a script bears its file's name.
    fn name(&self) -> &str {
        Self::NAME
    }

    /// Quota and period, where it has a rate.
    fn rate(&self) -> Option<Rate> {
        None
    }

    /// The units that a period allows, or that may be in flight; `None` where only a script knows.
    fn amount(&self) -> Option<u64> {
        self.rate().map(|rate| rate.amount)
    }

    /// How many units may pass at once: the burst, or a window's whole quota.
    fn capacity(&self) -> Option<u64> {
        self.amount()
    }

    /// The largest cost that can ever pass; `None` where nothing is too large.
    fn cost_max(&self) -> Option<u64> {
        self.capacity()
    }

    /// How a message calls [`Describe::cost_max`].
    fn cost_max_text(&self) -> &'static str {
        "the quota"
    }

    /// Whether no request can ever pass. Such a limit never reaches Lua.
    fn refuses_all(&self) -> bool {
        self.amount() == Some(0)
    }

    /// Microseconds in its time unit, 1 or 1000.
    fn unit_us(&self) -> u64 {
        self.rate().map_or(1, |rate| rate.unit_us())
    }

    /// Whether its numbers depend on the date, so that each take works them out anew.
    fn is_dated(&self) -> bool {
        false
    }

    /// Whether what was taken can be given back or added to once the response is over.
    fn settles(&self) -> bool {
        true
    }

    /// Whether time alone brings units back.
    fn refills(&self) -> bool {
        true
    }

    /// What it counts, where that is not requests.
    fn unit(&self) -> Option<&'static str> {
        None
    }

    /// `q` and `w` of `RateLimit-Policy`: a quota, and the seconds that it is for.
    fn policy(&self) -> Option<(u64, Option<u64>)> {
        let rate = self.rate()?;
        Some((rate.amount, Some(rate.per_ms.div_ceil(1_000))))
    }

    /// When the next unit is back, after nothing was left and where the whole allowance is back
    /// after `reset_us` microseconds. Rounded down: what is reported is rounded up afterwards.
    fn unit_back_us(&self, reset_us: u64) -> u64 {
        reset_us
    }

    /// The same without amounts: what the meaning of a counter's state depends on. Counters keep
    /// their state as long as it stays the same.
    fn of_shape(&self) -> Self;

    /// The shape as text, such as `fw1-60000c`. Short, because it stands in every key. A new
    /// meaning of an algorithm's state gets a new number.
    fn write_shape(&self, beside: &Beside) -> String;

    /// Reads what [`Describe::write_shape`] wrote.
    fn read_shape(text: &str) -> Option<(Self, Beside)>;

    /// What a counter holds, in words; with `known`, how much of the allowance is used as well.
    #[cfg(feature = "host")]
    fn state(&self, beside: &Beside, content: &Content, at_us: u64, known: bool) -> Option<String>;
}

/// What a limit's settings say of one algorithm, before they are read.
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
            mod $module;
            pub use $module::$variant;

            impl From<$variant> for Algorithm {
                fn from(algorithm: $variant) -> Self {
                    Self::$variant(algorithm)
                }
            }
        )+

        /// How a limit counts. Each but a script is a pure function in `lua/`.
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

        /// Their names.
        pub const NAMES: &[&str] = &[$($variant::NAME),+];

        /// Runs `$body` with the variant's value as `$it`: without a vtable, so that a policy's
        /// module holds only the methods that it calls.
        macro_rules! each {
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

            /// The same without amounts: see [`Describe::of_shape`].
            #[must_use]
            pub fn of_shape(&self) -> Self {
                match self { $(Self::$variant(it) => Self::$variant(it.of_shape())),+ }
            }

            /// The shape that `text` names, without amounts.
            fn read_shape(text: &str) -> Option<(Self, Beside)> {
                None$(.or_else(|| {
                    $variant::read_shape(text).map(|(it, beside)| (Self::$variant(it), beside))
                }))+
            }
        }
    };
}

algorithms! { ($)
    /// At most `rate.amount` in each window of `rate.per_ms`.
    fixed_window::FixedWindow,
    /// About `rate.amount` in each trailing period: the last window counts by the share of it that
    /// is still inside. Approximate.
    sliding_window_counter::SlidingWindowCounter,
    /// At most `rate.amount` in any span of a period: each unit is remembered.
    sliding_window_log::SlidingWindowLog,
    /// At most `rate.amount` in the last sub-windows: over by at most what one of them held.
    sliding_window_buckets::SlidingWindowBuckets,
    /// A bucket of `burst` tokens, refilled at `rate`.
    token_bucket::TokenBucket,
    /// Virtual scheduling (ITU-T I.371): the promise of a token bucket, kept as one instant.
    gcra::Gcra,
    /// Shapes: `burst` pass at once, what is early waits for its turn, the rest is refused.
    leaky_bucket::LeakyBucket,
    /// At most `amount` at the same time, over all proxies: given back at the request's end.
    concurrency::Concurrency,
    /// At most `amount` in each period of a calendar.
    quota::Quota,
    /// A Lua file of the operator's own.
    script::Script,
}

impl Row {
    /// The algorithm of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        ROWS.iter().find(|row| row.name == name)
    }
}

macro_rules! pass_on {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) -> $answer:ty;)+) => {
        impl Algorithm {
            $(
                $(#[$doc])*
                #[must_use]
                pub fn $name(&self, $($argument: $type),*) -> $answer {
                    each!(self, it => it.$name($($argument),*))
                }
            )+
        }
    };
}

pass_on! {
    /// See [`Describe::name`].
    name() -> &str;
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
    /// See [`Describe::numbers`].
    numbers(moment: Moment) -> [i64; NUMBERS_MAX];
}

impl Algorithm {
    /// What its counters are made of.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.program().map_or(Kind::Numbers, |program| program.kind)
    }

    /// Whether each unit is a member of its own, kept by name: a log's units, or places in flight.
    #[must_use]
    pub fn keeps_members(&self) -> bool {
        matches!(self.kind(), Kind::Log | Kind::Leases)
    }

    /// Whether what is taken is held only while the request is under way.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.kind() == Kind::Leases
    }

    pub(crate) fn write_shape(&self, beside: &Beside) -> String {
        each!(self, it => it.write_shape(beside))
    }

    #[cfg(feature = "host")]
    pub(crate) fn state(
        &self,
        beside: &Beside,
        content: &Content,
        at_us: u64,
        known: bool,
    ) -> Option<String> {
        each!(self, it => it.state(beside, content, at_us, known))
    }

    /// All settings that are out of range, in the order of their settings.
    #[must_use]
    pub fn breaches(&self) -> Vec<Breach> {
        let mut breaches = Vec::new();
        each!(self, it => it.check(&mut breaches));
        breaches
    }

    /// The shape of its counters; `beside` what the settings alone don't tell.
    #[must_use]
    pub fn shape(&self, beside: Beside) -> Shape {
        Shape::new(self.of_shape(), beside)
    }
}

#[cfg(test)]
#[cfg(feature = "host")]
mod tests;
