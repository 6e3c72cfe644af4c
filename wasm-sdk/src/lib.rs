//! The SDK for authors of Weir policies: one trait, one macro, typed configuration, and a shared
//! way to write limits.
//!
//! A policy is a WebAssembly module. The proxy shows it facts about a request, and it returns which
//! limits apply, which key each is counted under, by which algorithm, and how many units the
//! request costs. This crate knows the contract (`wit/policy.wit`) and nothing of the proxy. A
//! complete policy, which counts by API key, and by address if there is none:
//!
//! ```
//! use weir_policy::{Decision, Facts, Ipv6Prefix, Limits, Manifest, Mistakes, Policy};
//!
//! #[derive(serde::Deserialize)]
//! #[serde(deny_unknown_fields)]
//! struct ApiKey {
//!     limits: Limits,
//! }
//!
//! impl Policy for ApiKey {
//!     type Config = Self;
//!
//!     fn new(config: Self) -> Result<Self, Mistakes> {
//!         Ok(config)
//!     }
//!
//!     fn manifest(&self) -> Manifest {
//!         let key = ["header.x-api-key", "client-ip"];
//!         Manifest::reads(key).limits("limits", &self.limits, &key).pure()
//!     }
//!
//!     fn decide(&self, facts: &Facts) -> Result<Decision, String> {
//!         let key = match facts.get("header.x-api-key") {
//!             Some(key) => format!("key:{key}"),
//!             None => format!("ip:{}", Ipv6Prefix::default().client(facts)?.text),
//!         };
//!         Ok(self.limits.check(&key, facts))
//!     }
//! }
//!
//! weir_policy::export!(ApiKey);
//! # use weir_policy::testing::Instance;
//! # let config = r#"{"limits": [{"name": "a", "algorithm": "gcra", "quota": 1, "period": "1s"}]}"#;
//! # let policy = Instance::<ApiKey>::new(config).unwrap();
//! # assert_eq!(policy.decide(&[("client-ip", "192.0.2.1")]).unwrap().limits()[0].key, "ip:192.0.2.1");
//! ```
//!
//! Read next: [`Policy`], [`Limits`], and [`testing`] for tests that run on the host.

mod answer;
mod bearer;
#[doc(hidden)]
pub mod bindings;
mod client;
mod conditions;
mod config;
mod declared;
mod digest;
mod facts;
#[doc(hidden)]
pub mod guest;
mod host;
mod json;
mod limits;
mod metering;
mod mistakes;
mod named;
mod names;
mod network;
mod path;
mod period;
mod policy;
mod refund;
mod repeated;
mod request;
mod response;
mod template;
pub mod testing;
mod time;

pub use bearer::{AUTHORIZATION, bearer};
pub use bindings::weir::policy::host::DateTime as LocalTime;
pub use bindings::weir::policy::types::{
    Adjustment, Algorithm, Alignment, Body, BodyChange, Calendar, Change, Debt, Decision,
    DeclaredLimit, Denial, Enforcement, Fallback, Limit, LimitResult, Manifest, Mistake, Origin,
    Outcome, Quota, Rate, Refund, ResponseView, Settlement, Value, Verdict, Warning,
};
pub use bindings::weir::policy::usage::{
    Estimate, Gather, HardCut, Meter, Metering, Partial, Term,
};
pub use client::{Client, Ipv6Prefix};
pub use conditions::Conditions;
pub use digest::{DIGEST_EXPECTED, Digest};
pub use facts::Facts;
pub use host::{Level, RsaKey, VerifyingKey, local_time, log, now_ms, verify};
pub use json::Json;
pub use limits::{Limits, Missing, PlanPriorities, PlanTable, bounded_key};
pub use mistakes::Mistakes;
pub use names::{FieldName, NAME_EXPECTED, is_name};
pub use path::{Methods, PathTable, PathTemplate, Spelling, Tie};
pub use period::Period;
pub use policy::Policy;
pub use refund::{Statuses, Taken};
pub use template::{NoKey, Template};

/// Maximum size of a limit's key, in bytes: what the proxy accepts.
pub const KEY_BYTES_MAX: usize = 4096;
/// Maximum number of limits in one decision.
pub const LIMITS_MAX: usize = 16;

/// The README's policies compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
