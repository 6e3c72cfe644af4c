//! For a policy's own tests, on the host: make a policy from its configuration, show it facts,
//! check its answer. No WebAssembly is needed.
//!
//! ```
//! # use weir_policy::{Decision, Facts, Limits, Manifest, Mistakes, Policy};
//! # #[derive(serde::Deserialize)]
//! # struct Mine { limits: Limits }
//! # impl Policy for Mine {
//! #     type Config = Self;
//! #     fn new(config: Self) -> Result<Self, Mistakes> { Ok(config) }
//! #     fn manifest(&self) -> Manifest { Manifest::reads(["client-ip"]) }
//! #     fn decide(&self, facts: &Facts) -> Result<Decision, String> { Ok(self.limits.check(facts.get("client-ip").unwrap_or(""), facts)) }
//! # }
//! use weir_policy::testing::Instance;
//!
//! let config = r#"{"limits": [{"name": "a", "algorithm": "gcra", "quota": 1, "period": "1s"}]}"#;
//! let policy = Instance::<Mine>::new(config).unwrap();
//! assert_eq!(policy.decide(&[("client-ip", "192.0.2.1")]).unwrap().limits()[0].key, "192.0.2.1");
//!
//! let mistakes = Instance::<Mine>::new(&config.replace("gcra", "gcar")).unwrap_err();
//! assert_eq!(mistakes[0].path, "limits[0].algorithm");
//! ```

use std::cell::Cell;
use std::fmt;

use crate::{
    Decision, DeclaredLimit, Facts, Limit, LocalTime, Manifest, Mistake, Policy, ResponseView,
    Settlement, VerifyingKey, guest, named, repeated,
};

/// What the digest begins with that [`bounded_key`](crate::bounded_key) puts in a long key's place.
const HASHED: &str = "\\#";

/// Stands in for the host's [`verify`](crate::verify).
pub type Verifier = fn(&VerifyingKey, &[u8], &[u8]) -> bool;

thread_local! {
    static NOW_MS: Cell<u64> = const { Cell::new(0) };
    static VERIFIER: Cell<Verifier> = const { Cell::new(|_, _, _| false) };
    static LOCAL_TIME: Cell<Option<LocalTime>> = const { Cell::new(None) };
}

/// Sets what [`verify`](crate::verify) calls from now on, in this thread. Without it, no signature
/// is right.
pub fn set_verifier(verifier: Verifier) {
    VERIFIER.with(|known| known.set(verifier));
}

#[cfg(not(target_arch = "wasm32"))]
pub(crate) fn verify(key: &VerifyingKey, message: &[u8], signature: &[u8]) -> bool {
    VERIFIER.with(Cell::get)(key, message, signature)
}

/// Sets what [`now_ms`](crate::now_ms) returns from now on, in this thread.
pub fn set_now_ms(now_ms: u64) {
    NOW_MS.with(|now| now.set(now_ms));
}

#[cfg(not(target_arch = "wasm32"))]
pub(crate) fn now_ms() -> u64 {
    NOW_MS.with(Cell::get)
}

/// Sets what [`local_time`](crate::local_time) returns from now on, in this thread, in any zone.
/// [`LocalTime::utc`](crate::LocalTime::utc) makes one.
pub fn set_local_time(time: LocalTime) {
    LOCAL_TIME.with(|known| known.set(Some(time)));
}

#[cfg(not(target_arch = "wasm32"))]
pub(crate) fn local_time(_zone: &str) -> Option<LocalTime> {
    LOCAL_TIME.with(Cell::get)
}

/// A policy as the proxy would hold it, configured from JSON.
pub struct Instance<P>(P);

impl<P> fmt::Debug for Instance<P> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Instance").finish_non_exhaustive()
    }
}

impl<P: Policy> Instance<P> {
    /// Configures it as the proxy does.
    ///
    /// # Errors
    /// The mistakes that the proxy would report.
    pub fn new(config_json: &str) -> Result<Self, Vec<Mistake>> {
        guest::make(config_json).map(Self)
    }

    /// What the policy reads.
    #[must_use]
    pub fn manifest(&self) -> Manifest {
        self.0.manifest()
    }

    /// Calls `decide` with these facts.
    ///
    /// # Errors
    /// The policy's own.
    ///
    /// # Panics
    /// The policy asks for a fact that its manifest does not name, and that is not among these. Or
    /// its manifest declares limits, and the decision has one that differs from those of its name.
    pub fn decide(&self, facts: &[(&str, &str)]) -> Result<Decision, String> {
        let facts: Vec<(String, String)> =
            facts.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let _checked = Checked::begin(&self.0);
        let decision = repeated::decide(&self.0, &Facts::new(&facts))?;
        let declared = self.0.manifest().limits;
        decision.limits().iter().for_each(|limit| is_as_declared(limit, &declared));
        Ok(decision)
    }

    /// Calls `settle`.
    ///
    /// # Errors
    /// The policy's own.
    ///
    /// # Panics
    /// As [`decide`](Self::decide), for facts of the response.
    pub fn settle(&self, memo: &str, response: &ResponseView) -> Result<Settlement, String> {
        let _checked = Checked::begin(&self.0);
        self.0.settle(memo, response)
    }
}

/// Fails a test in which a limit is not what the manifest says of those of its name.
fn is_as_declared(limit: &Limit, declared: &[DeclaredLimit]) {
    let named = || declared.iter().filter(|one| one.name == limit.name);
    let differs = |one: &DeclaredLimit| {
        let keyed = limit.key.starts_with(&one.key_prefix) || limit.key.starts_with(HASHED);
        if !keyed {
            return Some(format!("its key, which is to begin with {:?}", one.key_prefix));
        }
        if let Some(most) = one.cost_max.filter(|most| limit.cost > *most) {
            return Some(format!(
                "its cost of {}, at most {most}: declare it with `limits.declared(..)` and \
                 `times(most)`",
                limit.cost
            ));
        }
        let algorithm = (one.algorithm != limit.algorithm).then(|| "its algorithm".to_owned());
        algorithm.or_else(|| (one.debt != limit.debt).then(|| "its debt".to_owned()))
    };
    let fits_one = named().next().is_none() || named().any(|one| differs(one).is_none());
    let how = || named().filter_map(differs).next().unwrap_or_default();
    assert!(fits_one, "asks for {limit:?}, which its manifest declares otherwise: {}", how());
}

/// While it lives, a fact that the manifest does not name may not be asked for.
struct Checked;

impl Checked {
    fn begin(policy: &impl Policy) -> Self {
        named::set(Some(named::of(&policy.manifest())));
        Self
    }
}

impl Drop for Checked {
    fn drop(&mut self) {
        named::set(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Algorithm, Mistakes};

    #[derive(serde::Deserialize)]
    struct Forgetful {}

    impl Policy for Forgetful {
        type Config = Self;

        fn new(config: Self) -> Result<Self, Mistakes> {
            Ok(config)
        }

        fn manifest(&self) -> Manifest {
            Manifest::reads(["path"]).and_of_response(["response.header.x-cost"])
        }

        fn decide(&self, facts: &Facts) -> Result<Decision, String> {
            let path = facts.get("path").ok_or("no path")?;
            let shown = facts.header("x-api-key").is_some() || path == "/public";
            Ok(if shown { Decision::bypass() } else { Decision::check([]) })
        }
    }

    #[test]
    fn a_named_fact_may_be_absent() {
        let policy = Instance::<Forgetful>::new("{}").unwrap();
        assert_eq!(policy.decide(&[]).unwrap_err(), "no path");
        // One that a test shows is a test's own affair.
        policy.decide(&[("path", "/"), ("header.x-api-key", "abc")]).unwrap();
    }

    /// Charges another quota than it declares.
    #[derive(serde::Deserialize)]
    struct Careless {
        declared: u64,
    }

    impl Policy for Careless {
        type Config = Self;

        fn new(config: Self) -> Result<Self, Mistakes> {
            Ok(config)
        }

        fn manifest(&self) -> Manifest {
            let limit = Limit::new("a", "", Algorithm::concurrency(self.declared));
            Manifest::reads(["path"]).declare([DeclaredLimit::of(&limit, "declared", &[])])
        }

        fn decide(&self, facts: &Facts) -> Result<Decision, String> {
            let name = facts.get("path").ok_or("no path")?;
            Ok(Decision::check([Limit::new(name, "k", Algorithm::concurrency(5))]))
        }
    }

    #[test]
    fn a_limit_may_be_undeclared() {
        let policy = Instance::<Careless>::new(r#"{"declared": 5}"#).unwrap();
        policy.decide(&[("path", "a")]).unwrap();
        policy.decide(&[("path", "b")]).unwrap();
    }

    #[test]
    #[should_panic(expected = "which its manifest declares otherwise")]
    fn a_limit_that_is_declared_otherwise_fails_the_test() {
        let policy = Instance::<Careless>::new(r#"{"declared": 6}"#).unwrap();
        let _ = policy.decide(&[("path", "a")]);
    }

    #[test]
    #[should_panic(
        expected = "asks for the fact `header.x-api-key`, which its manifest does not name"
    )]
    fn a_fact_that_the_manifest_does_not_name_fails_the_test() {
        let _ = Instance::<Forgetful>::new("{}").unwrap().decide(&[("path", "/")]);
    }
}
