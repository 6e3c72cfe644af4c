//! What a limit does when its counter can't be reached. Knows fallbacks, not why the store failed.
//!
//! `allow` lets the request through uncounted and says so (`LimitOutcome::degraded`, a metric);
//! `deny` makes the whole plan unavailable. `local` - counting this proxy's share in memory - is
//! not built yet: the configuration refuses it, and a policy that asks for it is treated as asking
//! for `deny`, the stricter neighbour. A shadow limit refuses nobody, whatever it says.

use super::Scope;
use crate::plan::{Enforcement, Fallback, Limit};

/// Whether a failed store denies the request because of this limit.
pub(super) fn denies(scope: &Scope, limit: &Limit) -> bool {
    limit.enforcement == Enforcement::Enforce && fallback(scope, limit) != Fallback::Allow
}

/// The limit's own word, which may only be stricter than the scope's unless the scope leaves it to
/// the limit.
fn fallback(scope: &Scope, limit: &Limit) -> Fallback {
    match limit.on_store_error {
        None => scope.on_store_error,
        Some(own) if scope.limit_decides => own,
        Some(own) => own.max(scope.on_store_error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Algorithm, Gcra, Rate};

    fn denied(
        scope: Fallback,
        limit_decides: bool,
        own: Option<Fallback>,
        enforcement: Enforcement,
    ) -> bool {
        let scope = Scope::new("p".into(), "p".into(), scope, limit_decides);
        let plain = Limit::new(
            "l",
            "k",
            Algorithm::Gcra(Gcra { burst: 1, rate: Rate { amount: 1, per_ms: 1 } }),
        );
        denies(&scope, &Limit { on_store_error: own, enforcement, ..plain })
    }

    #[test]
    fn a_limit_may_be_stricter_than_its_scope_and_looser_only_where_it_decides() {
        use Enforcement::Enforce;
        use Fallback::{Allow, Deny};
        assert!(!denied(Allow, false, None, Enforce));
        assert!(denied(Deny, false, None, Enforce));
        assert!(denied(Allow, false, Some(Deny), Enforce));
        assert!(denied(Deny, false, Some(Allow), Enforce));
        assert!(!denied(Deny, true, Some(Allow), Enforce));
        assert!(denied(Deny, true, None, Enforce));
    }

    #[test]
    fn local_is_deny_until_it_is_built_and_a_shadow_denies_never() {
        assert!(denied(Fallback::Local, false, None, Enforcement::Enforce));
        assert!(denied(Fallback::Allow, false, Some(Fallback::Local), Enforcement::Enforce));
        assert!(!denied(Fallback::Deny, false, Some(Fallback::Deny), Enforcement::Shadow));
    }
}
