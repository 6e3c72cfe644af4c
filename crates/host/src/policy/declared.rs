//! What a policy says about itself when it is configured, besides the facts that it reads: the
//! limits that its decisions may have, and what is probably not meant in its configuration.
//!
//! Nothing is decided by it. It is for `weir check`, `weir key`, and what a reload reports. They do
//! not read it yet: `listed` and `lints` still look for limits in the configuration.

use crate::plan::Algorithm;

/// A limit that a policy's decisions may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredLimit {
    /// Its name.
    pub name: String,
    /// The setting that it is read from or made of, such as `plans.gold[0]`; empty if it is the
    /// policy's default.
    pub at: String,
    /// How it counts.
    pub algorithm: Algorithm,
    /// The request facts that its key is made of.
    pub key_facts: Vec<String>,
    /// What its keys begin with.
    pub key_prefix: String,
    /// Limits with the same text are charged by the same requests, each as its setting says, and
    /// not settled.
    pub together: Option<String>,
    /// The most units that one request takes, if the policy knows.
    pub cost_max: Option<u64>,
}

/// Something in a policy's configuration that is allowed and probably not meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// As `weir check --allow` takes it.
    pub kind: String,
    /// Its setting, below `config`.
    pub at: String,
    /// One sentence without a full stop.
    pub text: String,
    /// Settings that are shown with it, each with a label.
    pub beside: Vec<(String, String)>,
    /// What to do about it.
    pub remedy: Option<String>,
}
