//! The types that policy, limiter and proxy share: what a policy asks for ([`Plan`]) and the result
//! ([`PlanOutcome`]).
//!
//! Plain data that is checked on construction: a [`Plan`] keeps every range below. It knows neither
//! HTTP nor Wasm nor Redis.

mod adjustment;
mod check;
mod outcome;
mod reserved;
mod slot;
mod text;

pub use adjustment::{Adjustment, Change};
pub use check::PlanError;
pub use outcome::{LimitOutcome, PlanOutcome};
pub use reserved::{is_reserved_field, is_token, reserved_fields};
pub use slot::Slot;
pub use text::{algorithm_text, duration_text, wait_text};

pub use weir_algorithms::types::*;
pub use weir_algorithms::{
    AMOUNT_MAX, ARGUMENT_MAX, ARGUMENTS_MAX, Algorithm, Alignment, BUCKETS_MAX, Bound, Calendar,
    Debt, LEASE_MS_MAX, Lease, Leased, MEMBERS_MAX, PERIOD_MS_MAX, PERIOD_MS_MAX_FOR_MICROSECONDS,
    Rate, TimeZone,
};

/// Maximum number of limits in one plan.
pub const LIMITS_MAX: usize = 16;
/// Maximum length of a limit's name, in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Maximum length of a key or a tag, in bytes.
pub const KEY_BYTES_MAX: usize = 4096;

/// The highest priority of a request; the lowest is 0.
pub const PRIORITY_MAX: u8 = 7;
/// The priority of a request of which nothing is said.
pub const PRIORITY_DEFAULT: u8 = 4;

/// One or more limits that are charged together or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    limits: Vec<Limit>,
    slot: Slot,
    quiet: bool,
}

/// One counter and what this request takes from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Names the limit in fields, metrics and adjustments: `[a-z0-9._-]{1,64}`, unique in its plan,
    /// unless the plan is [`joined`](Plan::joined).
    pub name: String,
    /// Whose allowance is counted: any UTF-8 up to [`KEY_BYTES_MAX`] bytes.
    pub key: String,
    /// Limits with the same tag are decided in one atomic script. Defaults to the key.
    pub tag: Option<String>,
    /// The algorithm and its settings.
    pub algorithm: Algorithm,
    /// Units that this request takes. 0 only looks, and is decided as 1.
    pub cost: u64,
    /// What is counted, if it is not requests.
    pub unit: Option<String>,
    /// Whether it refuses or only counts.
    pub enforcement: Enforcement,
    /// When what was taken is given back.
    pub refund: Refund,
    /// What to do when this counter can't be reached.
    pub on_store_error: Option<OnStoreError>,
    /// Whether a proxy may take several units at once and spend them by itself. Of no effect where
    /// counters are in memory.
    pub lease: Option<Lease>,
    /// What it is to other limits of its plan.
    pub role: Role,
}

/// What a limit is to others of its plan: of a parent's limit, a child has an assured part, and
/// may borrow what others leave. All three share a tag, unless the parent is leased.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// Nothing: it counts by itself.
    #[default]
    Alone,
    /// It is a child's ceiling: the most that it gets.
    Child {
        /// The index in the plan of the child's [`Role::Assured`].
        assured: u8,
        /// The index in the plan of its [`Role::Parent`].
        parent: u8,
    },
    /// What a child is sure to get. While it fits, its parent is charged, into debt if need be;
    /// else the parent has to fit. It refuses nothing.
    Assured,
    /// What its children share.
    Parent,
}

/// Whether a limit refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Enforcement {
    /// It refuses.
    Enforce,
    /// It counts what it would have refused, and refuses nothing.
    Shadow,
}

/// When what was taken is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refund {
    /// Never.
    Never,
    /// When nothing of the request reached the upstream.
    Unsent,
    /// When nothing reached the upstream, or it failed (502, 504, or its own 5xx).
    UpstreamError,
    /// The policy's `settle` decides.
    BySettle,
}

/// What to do when a counter can't be reached, from loose to strict (`Allow < Local < Deny`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OnStoreError {
    /// Let the request through uncounted, and report that.
    Allow,
    /// Count this proxy's share of the limit in memory.
    Local,
    /// Refuse with 503.
    Deny,
}

impl Plan {
    /// Checks all of `limits`.
    ///
    /// # Errors
    /// The first [`PlanError`] field: no limit or more than [`LIMITS_MAX`], a name twice, a second
    /// leaky bucket, a number, name or key outside its range, or roles that don't fit each other.
    pub fn new(limits: Vec<Limit>) -> Result<Self, PlanError> {
        check::limits(&limits, check::Names::AreUnique)?;
        Ok(Self { limits, slot: Slot::default(), quiet: false })
    }

    /// The limits of several decisions, taken together: a name may be there more than once, with
    /// another key each time.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn joined(limits: Vec<Limit>) -> Result<Self, PlanError> {
        check::limits(&limits, check::Names::AreUniqueByKey)?;
        Ok(Self { limits, slot: Slot::default(), quiet: false })
    }

    /// The same plan, whose refusals are not counted: it is one of several tries for a request, or
    /// nobody is refused.
    #[must_use]
    pub fn quiet(self) -> Self {
        Self { quiet: true, ..self }
    }

    /// Whether its refusals are not counted.
    #[must_use]
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// The limits, in the policy's order.
    #[must_use]
    #[inline]
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// A cache for what a consumer derives from the plan.
    #[must_use]
    #[inline]
    pub fn slot(&self) -> &Slot {
        &self.slot
    }
}

impl Limit {
    /// An enforced limit with cost 1 and no refund, tagged with its key.
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
            lease: None,
            role: Role::Alone,
        }
    }

    /// Whether it can refuse a request.
    #[must_use]
    #[inline]
    pub fn is_enforced(&self) -> bool {
        self.enforcement == Enforcement::Enforce && self.role != Role::Assured
    }

    /// Whether its policy keeps it from clients, with an empty unit.
    #[must_use]
    #[inline]
    pub fn is_hidden(&self) -> bool {
        self.unit.as_deref() == Some("")
    }

    /// Whether clients see it. They see a child as one limit.
    #[must_use]
    #[inline]
    pub fn is_shown(&self) -> bool {
        self.enforcement == Enforcement::Enforce
            && !self.is_hidden()
            && !matches!(self.role, Role::Assured | Role::Parent)
    }

    /// The limit with its leases, if it has some. A limit that refuses everything has none.
    #[must_use]
    pub fn leased(&self) -> Option<Leased> {
        let lease = self.lease.filter(|_| !self.algorithm.refuses_all())?;
        self.algorithm.leased(lease).ok()
    }

    /// What decides the hash slot: the tag if there is one, else the key.
    #[must_use]
    pub fn tag_or_key(&self) -> &str {
        self.tag.as_deref().unwrap_or(&self.key)
    }
}

/// The README's example runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
