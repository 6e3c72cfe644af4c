//! The words that policy, limiter and proxy share: what a policy asks for ([`Plan`]) and what came
//! of it ([`Outcome`]).
//!
//! Plain data, checked when it is made: whoever holds a [`Plan`] may rely on every range below.
//! This room uses no other room, and knows neither HTTP nor Wasm nor Redis.

mod adjustment;
mod calendar;
mod check;
mod outcome;
mod reserved;
mod slot;

pub use adjustment::{Adjustment, Change};
pub use calendar::{Calendar, TimeZone, utc_text};
pub use check::Invalid;
pub use outcome::{LimitOutcome, Outcome};
pub use reserved::{is_reserved_field, reserved_fields};
pub use slot::Slot;

use std::sync::Arc;

use smallvec::SmallVec;

/// Limits in one plan, at most.
pub const LIMITS_MAX: usize = 16;
/// Bytes of a limit's name, at most.
pub const NAME_BYTES_MAX: usize = 64;
/// Bytes of a key or a tag, at most.
pub const KEY_BYTES_MAX: usize = 4096;
/// Largest amount, burst, cost and adjustment: what all engines count exactly.
pub const AMOUNT_MAX: u64 = 1 << 31;
/// Longest period: 400 days.
pub const PERIOD_MS_MAX: u64 = 400 * 24 * 3600 * 1000;
/// Periods up to this long are counted in microseconds, longer ones in milliseconds.
pub const PERIOD_MS_MAX_FOR_MICROSECONDS: u64 = 3600 * 1000;
/// Units that a `sliding_window_log` holds, at most, and that one request takes from a log or a
/// `concurrency`: each is a member of its own.
pub const MEMBERS_MAX: u64 = 10_000;
/// Sub-windows of a `sliding_window_buckets`, at most.
pub const BUCKETS_MAX: u32 = 1_000;
/// Numbers that a script of the operator's own is given, at most.
pub const ARGUMENTS_MAX: usize = 6;
/// Largest of such numbers, either way: what a double holds exactly.
pub const ARGUMENT_MAX: u64 = 1 << 53;
/// `burst x period` in the limit's time unit, at most: products stay whole numbers in a double, and
/// so do their quotients.
pub const BURST_PERIOD_MAX: u64 = 1 << 52;

/// One or more limits that are charged together or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    limits: Vec<Limit>,
    slot: Slot,
}

/// One counter and what this request takes from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Names the limit in fields, metrics and adjustments: `[a-z0-9._-]{1,64}`, unique in its plan.
    pub name: String,
    /// Whose allowance is counted; any bytes of UTF-8, up to [`KEY_BYTES_MAX`].
    pub key: String,
    /// Limits with one tag are decided in one atomic script; the key where there is none.
    pub tag: Option<String>,
    /// How it is counted.
    pub algorithm: Algorithm,
    /// Units that this request takes; 0 only looks, and is decided as 1.
    pub cost: u64,
    /// What is counted where it is not requests.
    pub unit: Option<String>,
    /// Whether it refuses, or only counts.
    pub enforcement: Enforcement,
    /// When what was taken is given back.
    pub refund: Refund,
    /// What to do when this counter can't be reached.
    pub on_store_error: Option<Fallback>,
}

/// How a limit counts. Each is a pure function in `lua/`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// At most `rate.amount` in each window of `rate.per_ms`.
    FixedWindow {
        /// The quota of a window and its length.
        rate: Rate,
        /// Where a window begins.
        alignment: Alignment,
    },
    /// About `rate.amount` in each trailing `rate.per_ms`: the last window counts by the share of
    /// it that is still inside. Approximate.
    SlidingWindowCounter {
        /// The quota and the window's length.
        rate: Rate,
    },
    /// At most `rate.amount`, up to [`MEMBERS_MAX`], in any span of `rate.per_ms`: each unit is
    /// remembered.
    SlidingWindowLog {
        /// The quota and the window's length.
        rate: Rate,
    },
    /// At most `rate.amount` in the last `buckets` sub-windows: over by at most what one sub-window
    /// held.
    SlidingWindowBuckets {
        /// The quota and the window's length.
        rate: Rate,
        /// Sub-windows, 1 to [`BUCKETS_MAX`], at most one for each of the limit's time units.
        buckets: u32,
    },
    /// A bucket of `burst` tokens, refilled at `rate`.
    TokenBucket {
        /// The bucket's capacity.
        burst: u64,
        /// How fast it refills.
        rate: Rate,
    },
    /// Virtual scheduling (ITU-T I.371): the promise of a token bucket, kept as one instant.
    Gcra {
        /// How many may come at once.
        burst: u64,
        /// The sustained rate.
        rate: Rate,
    },
    /// Shapes: `burst` pass at once, what is early by at most `max_delay_ms` waits for its turn,
    /// the rest is refused. One in a plan.
    LeakyBucket {
        /// How many may come at once.
        burst: u64,
        /// The rate at which the others pass.
        rate: Rate,
        /// Milliseconds that a request waits, at most; 0: none does.
        max_delay_ms: u64,
    },
    /// At most `amount` at the same time, over all proxies: given back at the request's end.
    Concurrency {
        /// Requests in flight.
        amount: u64,
    },
    /// At most `amount` in each period of a calendar.
    Quota {
        /// Units of a period.
        amount: u64,
        /// Which periods.
        calendar: Calendar,
        /// Whether it refuses. If not, it counts and shows what is left, and all pass.
        conditional: bool,
    },
    /// A Lua file of the operator's own.
    Script {
        /// The file's name without `.lua`.
        name: Arc<str>,
        /// Its numbers, up to [`ARGUMENTS_MAX`], each at most [`ARGUMENT_MAX`] either way.
        arguments: SmallVec<[i64; ARGUMENTS_MAX]>,
    },
}

/// `amount` units every `per_ms` milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    /// Units, 0 to [`AMOUNT_MAX`]; with 0 every request is refused.
    pub amount: u64,
    /// Milliseconds, 1 to [`PERIOD_MS_MAX`].
    pub per_ms: u64,
}

/// Where a fixed window begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Alignment {
    /// At the first request after the last window's end.
    FirstRequest,
    /// At whole multiples of the period since 1970.
    Clock,
}

/// Whether a limit refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Enforcement {
    /// It refuses.
    Enforce,
    /// It counts what it would have refused, and refuses nobody.
    Shadow,
}

/// When what was taken is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refund {
    /// It stays taken.
    Never,
    /// When the upstream got nothing of the request.
    Unsent,
    /// When the upstream got nothing, or failed (502, 504, a 5xx of its own).
    UpstreamError,
    /// As the policy's `settle` says.
    BySettle,
}

/// What to do when a counter can't be reached, from loose to strict (`Allow < Local < Deny`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fallback {
    /// Let it through uncounted, and say so.
    Allow,
    /// Count this proxy's share in memory.
    Local,
    /// Refuse with 503.
    Deny,
}

impl Plan {
    /// Checks `limits` whole.
    ///
    /// # Errors
    /// The first [`Invalid`] field: no limit or more than [`LIMITS_MAX`], a name twice, or a
    /// number, name or key outside its range.
    pub fn new(limits: Vec<Limit>) -> Result<Self, Invalid> {
        check::limits(&limits)?;
        Ok(Self { limits, slot: Slot::default() })
    }

    /// The limits, in the policy's order.
    #[must_use]
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// Where whoever charges the plan keeps what it has derived from it.
    #[must_use]
    pub fn slot(&self) -> &Slot {
        &self.slot
    }
}

impl Limit {
    /// An enforced limit of cost 1, never refunded, under its key's own tag.
    #[must_use]
    pub fn new(name: impl Into<String>, key: impl Into<String>, algorithm: Algorithm) -> Self {
        Self {
            name: name.into(),
            key: key.into(),
            tag: None,
            algorithm,
            cost: 1,
            unit: None,
            enforcement: Enforcement::Enforce,
            refund: Refund::Never,
            on_store_error: None,
        }
    }

    /// What decides the slot: the tag where there is one, else the key.
    #[must_use]
    pub fn tag_or_key(&self) -> &str {
        self.tag.as_deref().unwrap_or(&self.key)
    }
}

impl Algorithm {
    /// The algorithm's name, as in the configuration and in `lua/NAME.lua`; a script's is its
    /// file's.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::FixedWindow { .. } => "fixed_window",
            Self::SlidingWindowCounter { .. } => "sliding_window_counter",
            Self::SlidingWindowLog { .. } => "sliding_window_log",
            Self::SlidingWindowBuckets { .. } => "sliding_window_buckets",
            Self::TokenBucket { .. } => "token_bucket",
            Self::Gcra { .. } => "gcra",
            Self::LeakyBucket { .. } => "leaky_bucket",
            Self::Concurrency { .. } => "concurrency",
            Self::Quota { .. } => "quota",
            Self::Script { name, .. } => name,
        }
    }

    /// Quota and period, where there is a rate.
    #[must_use]
    pub fn rate(&self) -> Option<Rate> {
        match self {
            Self::FixedWindow { rate, .. }
            | Self::SlidingWindowCounter { rate }
            | Self::SlidingWindowLog { rate }
            | Self::SlidingWindowBuckets { rate, .. }
            | Self::TokenBucket { rate, .. }
            | Self::Gcra { rate, .. }
            | Self::LeakyBucket { rate, .. } => Some(*rate),
            Self::Concurrency { .. } | Self::Quota { .. } | Self::Script { .. } => None,
        }
    }

    /// The units that a period allows, or that may be in flight; `None` of a script: only it knows.
    #[must_use]
    pub fn amount(&self) -> Option<u64> {
        match self {
            Self::Concurrency { amount } | Self::Quota { amount, .. } => Some(*amount),
            Self::Script { .. } => None,
            _ => self.rate().map(|rate| rate.amount),
        }
    }

    /// How many units may pass at once: the burst, or a window's whole quota; `None` of a script.
    #[must_use]
    pub fn capacity(&self) -> Option<u64> {
        match self {
            Self::TokenBucket { burst, .. }
            | Self::Gcra { burst, .. }
            | Self::LeakyBucket { burst, .. } => Some(*burst),
            _ => self.amount(),
        }
    }

    /// The largest cost that can ever pass: the capacity, and in a leaky bucket what may wait as
    /// well; `None` where nothing is too large.
    #[must_use]
    pub fn most(&self) -> Option<u64> {
        match self {
            Self::Quota { conditional: false, .. } => None,
            Self::LeakyBucket { burst, rate, max_delay_ms } => {
                // Products below 2^31 x 2^36: in 128 bits they are whole.
                let waiting = u128::from(*max_delay_ms) * u128::from(rate.amount)
                    / u128::from(rate.per_ms.max(1));
                Some(burst.saturating_add(u64::try_from(waiting).unwrap_or(u64::MAX)))
            }
            _ => self.capacity(),
        }
    }

    /// Microseconds in the limit's time unit, 1 or 1000: leases and calendars are counted in
    /// milliseconds, scripts in microseconds.
    #[must_use]
    pub fn unit_us(&self) -> u64 {
        match self {
            Self::Concurrency { .. } | Self::Quota { .. } => 1000,
            Self::Script { .. } => 1,
            _ => self.rate().map_or(1, |rate| rate.unit_us()),
        }
    }
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
}
