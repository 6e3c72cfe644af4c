//! The words that policy, limiter and proxy share: what a policy asks for ([`Plan`]) and what came of it ([`Outcome`]).
//!
//! Plain data, checked when it is made: whoever holds a [`Plan`] may rely on every range below. This room uses no other room, and knows
//! neither HTTP nor Wasm nor Redis.

mod check;
mod outcome;

pub use check::Invalid;
pub use outcome::{LimitOutcome, Outcome};

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
/// `burst x period` in the limit's time unit, at most: products stay whole numbers in a double, and so do their quotients.
pub const BURST_PERIOD_MAX: u64 = 1 << 52;

/// One or more limits that are charged together or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    limits: Vec<Limit>,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// At most `rate.amount` in each window of `rate.per_ms`.
    FixedWindow {
        /// The quota of a window and its length.
        rate: Rate,
        /// Where a window begins.
        alignment: Alignment,
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
    /// The first [`Invalid`] field: no limit or more than [`LIMITS_MAX`], a name twice, or a number, name or key outside its range.
    pub fn new(limits: Vec<Limit>) -> Result<Self, Invalid> {
        check::limits(&limits)?;
        Ok(Self { limits })
    }

    /// The limits, in the policy's order.
    #[must_use]
    pub fn limits(&self) -> &[Limit] {
        &self.limits
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
    /// The algorithm's name, as in the configuration and in `lua/NAME.lua`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::FixedWindow { .. } => "fixed_window",
            Self::TokenBucket { .. } => "token_bucket",
            Self::Gcra { .. } => "gcra",
        }
    }

    /// Quota and period.
    #[must_use]
    pub fn rate(&self) -> Rate {
        match self {
            Self::FixedWindow { rate, .. } | Self::TokenBucket { rate, .. } | Self::Gcra { rate, .. } => *rate,
        }
    }

    /// How many units may pass at once: the burst, or a window's whole quota.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        match self {
            Self::FixedWindow { rate, .. } => rate.amount,
            Self::TokenBucket { burst, .. } | Self::Gcra { burst, .. } => *burst,
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
