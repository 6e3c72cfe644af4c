//! The words that policy, limiter and proxy share: what a policy asks for ([`Plan`]) and what came
//! of it ([`Outcome`]).
//!
//! Plain data, checked when it is made: whoever holds a [`Plan`] may rely on every range below.
//! This room uses no other room, and knows neither HTTP nor Wasm nor Redis.

mod adjustment;
mod check;
mod outcome;
mod reserved;
mod slot;

pub use adjustment::{Adjustment, Change};
pub use check::Invalid;
pub use outcome::{LimitOutcome, Outcome};
pub use reserved::{is_reserved_field, reserved_fields};
pub use slot::Slot;

pub use weir_algorithms::{
    AMOUNT_MAX, ARGUMENT_MAX, ARGUMENTS_MAX, Algorithm, Alignment, BUCKETS_MAX, Calendar,
    Concurrency, FixedWindow, Gcra, LeakyBucket, MEMBERS_MAX, PERIOD_MS_MAX,
    PERIOD_MS_MAX_FOR_MICROSECONDS, Quota, Rate, Script, SlidingWindowBuckets,
    SlidingWindowCounter, SlidingWindowLog, TimeZone, TokenBucket,
};

/// Limits in one plan, at most.
pub const LIMITS_MAX: usize = 16;
/// Bytes of a limit's name, at most.
pub const NAME_BYTES_MAX: usize = 64;
/// Bytes of a key or a tag, at most.
pub const KEY_BYTES_MAX: usize = 4096;
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
    pub on_store_error: Option<OnStoreError>,
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
pub enum OnStoreError {
    /// Let it through uncounted, and say so.
    Allow,
    /// Count this proxy's share in memory. Not offered yet: a plan that asks for it is refused.
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
