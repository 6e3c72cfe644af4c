//! Who may call for decisions: tokens, each with the operations and the domains that it is for.
//! Knows no call.

use std::sync::Arc;

use crate::spelling::{self, Bearer};
use crate::wire::{Fields, Known};

use super::receive::call::api::Operation;
use super::refusal::{CallError, Refusal};

/// The tokens of a listener that serves decisions. Without one, whoever reaches it may call.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Callers(Vec<Arc<Caller>>);

/// A token and what it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// What it is called. No two have one name.
    pub name: String,
    /// The token's digest, so that the token itself is nowhere in memory.
    pub token: TokenDigest,
    /// What it may call.
    pub scopes: Vec<CallScope>,
    /// The domains that it may ask about. None: all of them.
    pub domains: Option<Vec<String>>,
}

/// What a token is recognised by. Digests are compared, so that timing tells nothing of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenDigest(blake3::Hash);

/// Operations that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallScope {
    /// Decisions by policies: `/v1/decide` and Envoy's rate limit service.
    Decide,
    /// Decisions by limits of the caller's own: `/v1/take`.
    Take,
    /// `/v1/look`.
    Look,
    /// What becomes of decisions: `/v1/settle`, `/v1/give-back` and `/v1/renew`.
    Settle,
}

impl CallScope {
    fn of(operation: Operation) -> Self {
        match operation {
            Operation::Decide => Self::Decide,
            Operation::Take => Self::Take,
            Operation::Look => Self::Look,
            Operation::Settle | Operation::GiveBack | Operation::Renew => Self::Settle,
        }
    }
}

impl TokenDigest {
    /// The digest of a token.
    #[must_use]
    pub fn of(token: &[u8]) -> Self {
        Self(blake3::hash(token))
    }
}

impl Callers {
    /// These tokens.
    #[must_use]
    pub fn new(callers: Vec<Caller>) -> Self {
        Self(callers.into_iter().map(Arc::new).collect())
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// The caller with a request's token, if it may call this. `None` if nobody needs a token.
    ///
    /// # Errors
    /// It has no token that is known, or the token is not for this.
    pub(super) fn admit(
        &self,
        fields: &Fields,
        operation: Operation,
    ) -> Result<Option<&Arc<Caller>>, Refusal> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let mut values = fields.get_all(Known::Authorization);
        let (Some(value), None) = (values.next(), values.next()) else {
            return Err(Refusal::Call(CallError::UnknownCaller));
        };
        let Bearer::One(token) = spelling::bearer(value) else {
            return Err(Refusal::Call(CallError::UnknownCaller));
        };
        let digest = TokenDigest::of(token);
        let caller = self.0.iter().find(|caller| caller.token == digest);
        let caller = caller.ok_or(Refusal::Call(CallError::UnknownCaller))?;
        caller.check_scope(operation)?;
        Ok(Some(caller))
    }
}

impl Caller {
    /// Checks that it may call this, too.
    ///
    /// # Errors
    /// It may not.
    pub(super) fn check_scope(&self, operation: Operation) -> Result<(), Refusal> {
        if self.scopes.contains(&CallScope::of(operation)) {
            return Ok(());
        }
        Err(Refusal::Call(CallError::OutOfScope("its token is not for this operation")))
    }

    /// Checks that it may ask about a domain.
    ///
    /// # Errors
    /// It may not.
    pub(super) fn check_domain(&self, domain: &str) -> Result<(), Refusal> {
        match &self.domains {
            Some(domains) if !domains.iter().any(|own| own == domain) => {
                Err(Refusal::Call(CallError::OutOfScope("its token is not for this domain")))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(name: &str, scopes: &[CallScope], domains: Option<&[&str]>) -> Caller {
        Caller {
            name: name.to_owned(),
            token: TokenDigest::of(format!("secret-{name}").as_bytes()),
            scopes: scopes.to_vec(),
            domains: domains.map(|all| all.iter().map(|one| (*one).to_owned()).collect()),
        }
    }

    #[test]
    fn a_token_is_for_its_operations_and_its_domains() {
        let edge = caller("edge", &[CallScope::Decide, CallScope::Settle], Some(&["edge"]));
        let all = caller("all", &[CallScope::Look], None);
        let callers = Callers::new(vec![edge, all]);
        let admit = |values: &[&str], operation| {
            let mut fields = Fields::new();
            values.iter().for_each(|value| fields.append(Known::Authorization, value));
            callers.admit(&fields, operation).map(|caller| caller.unwrap().name.clone())
        };
        let edge = ["Bearer secret-edge"];
        assert_eq!(admit(&edge, Operation::Decide).unwrap(), "edge");
        assert_eq!(admit(&["bearer  secret-edge"], Operation::GiveBack).unwrap(), "edge");
        assert!(matches!(
            admit(&edge, Operation::Take),
            Err(Refusal::Call(CallError::OutOfScope(_)))
        ));
        for unknown in [&[][..], &["Bearer secret"], &["Basic secret-edge"], &[edge[0], edge[0]]] {
            let refused = admit(unknown, Operation::Decide);
            assert!(matches!(refused, Err(Refusal::Call(CallError::UnknownCaller))), "{unknown:?}");
        }
        let [edge, all] = &callers.0[..] else { panic!() };
        assert!(edge.check_domain("edge").is_ok() && edge.check_domain("other").is_err());
        assert!(all.check_domain("other").is_ok());
        let open = Callers::default();
        assert!(open.admit(&Fields::new(), Operation::Take).unwrap().is_none());
    }
}
