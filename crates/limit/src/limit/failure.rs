//! What to do for a limit when its counter can't be reached. Does not know why the store failed.

use super::Scope;
use crate::plan::{Enforcement, Limit, OnStoreError};

/// The limit's own setting, which may only be stricter than the scope's unless the scope leaves the
/// choice to the limit. A shadow limit never refuses, whatever it says.
pub(super) fn on_store_error(scope: &Scope, limit: &Limit) -> OnStoreError {
    match (limit.enforcement, limit.on_store_error) {
        (Enforcement::Shadow, _) => OnStoreError::Allow,
        (Enforcement::Enforce, None) => scope.on_store_error,
        (Enforcement::Enforce, Some(own)) if scope.limit_decides => own,
        (Enforcement::Enforce, Some(own)) => own.max(scope.on_store_error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Algorithm, Debt, Gcra, Rate};

    fn resolve(
        scope: OnStoreError,
        limit_decides: bool,
        on_store_error: Option<OnStoreError>,
        enforcement: Enforcement,
    ) -> OnStoreError {
        let scope = Scope::new("p".into(), "p".into(), scope, limit_decides);
        let gcra = Gcra { burst: 1, rate: Rate { amount: 1, per_ms: 1 }, debt: Debt::None };
        let plain = Limit::new("l", "k", Algorithm::Gcra(gcra));
        super::on_store_error(&scope, &Limit { on_store_error, enforcement, ..plain })
    }

    #[test]
    fn a_limit_may_be_stricter_than_its_scope_and_looser_only_where_it_decides() {
        use Enforcement::{Enforce, Shadow};
        use OnStoreError::{Allow, Deny, Local};
        assert_eq!(resolve(Allow, false, None, Enforce), Allow);
        assert_eq!(resolve(Deny, false, None, Enforce), Deny);
        assert_eq!(resolve(Allow, false, Some(Local), Enforce), Local);
        assert_eq!(resolve(Allow, false, Some(Deny), Enforce), Deny);
        assert_eq!(resolve(Deny, false, Some(Allow), Enforce), Deny);
        assert_eq!(resolve(Deny, true, Some(Allow), Enforce), Allow);
        assert_eq!(resolve(Deny, true, None, Enforce), Deny);
        assert_eq!(resolve(Deny, false, Some(Deny), Shadow), Allow);
    }
}
