//! Why a certificate was not issued.

use std::io;
use std::path::{Path, PathBuf};

use instant_acme::{Error, Problem};

use crate::client::chain;

/// Why a certificate was not issued.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// The authority can't be reached, or what it says makes no sense.
    #[error("{0}")]
    Unreached(String),
    /// The authority refuses.
    #[error("the authority refuses: {0}")]
    Refused(String),
    /// The authority wants less to be asked.
    #[error("the authority has had too many requests: {0}")]
    RateLimited(String),
    /// The authority could not see that a name is ours.
    #[error("the authority could not see that {name} is served here: {why}")]
    Unproven {
        /// The name.
        name: String,
        /// What it says.
        why: String,
    },
    /// It is taking its time.
    #[error("the authority has not issued the certificate in time")]
    Late,
    /// What was issued can't be used.
    #[error("the certificate that was issued can't be used: {0}")]
    Unusable(String),
    /// The folder can't be written.
    #[error("{path}: {why}")]
    Folder {
        /// The folder, or the file in it.
        path: PathBuf,
        /// Why not.
        why: io::Error,
    },
}

/// The type of a problem for an account that the authority does not know (RFC 8555, 6.7).
pub(crate) const NO_ACCOUNT: &str = "urn:ietf:params:acme:error:accountDoesNotExist";
/// The type of a problem for an account that was closed, among other things.
pub(crate) const UNAUTHORIZED: &str = "urn:ietf:params:acme:error:unauthorized";
/// The type of a problem for who asks too often.
const RATE_LIMITED: &str = "urn:ietf:params:acme:error:rateLimited";
/// The types of problems with a new order that have nothing to do with the certificate that it is
/// to replace: who asks is at fault, or has to do something first. A nonce has been tried several
/// times by then.
const NOT_OF_THE_ORDER: [&str; 5] = [
    NO_ACCOUNT,
    RATE_LIMITED,
    "urn:ietf:params:acme:error:userActionRequired",
    "urn:ietf:params:acme:error:externalAccountRequired",
    "urn:ietf:params:acme:error:badNonce",
];

/// Whether a new order may have failed because of the certificate that it is to replace. It may
/// have been replaced already, or be another account's, or the authority has forgotten it, and
/// authorities say so by problems of many types.
pub(crate) fn may_be_about_replacing(error: &Error) -> bool {
    match error {
        Error::Api(problem) => {
            problem.r#type.as_deref().is_none_or(|kind| !NOT_OF_THE_ORDER.contains(&kind))
        }
        // The directory no longer has it.
        Error::Unsupported(_) => true,
        // The client's own check of the reply.
        Error::Other(why) => why.to_string().starts_with("replaces field mismatch"),
        _ => false,
    }
}

impl OrderError {
    /// Something in this folder can't be read or written.
    pub(crate) fn folder(path: &Path, error: &io::Error) -> Self {
        Self::Folder { path: path.to_owned(), why: io::Error::new(error.kind(), error.to_string()) }
    }
}

impl From<Error> for OrderError {
    fn from(error: Error) -> Self {
        match error {
            Error::Api(problem) if problem.r#type.as_deref() == Some(RATE_LIMITED) => {
                Self::RateLimited(text(&problem))
            }
            Error::Api(problem) => Self::Refused(text(&problem)),
            Error::Timeout(_) => Self::Late,
            other => Self::Unreached(chain(&other)),
        }
    }
}

/// What a problem document says, in one line.
pub(crate) fn text(problem: &Problem) -> String {
    let kind = problem.r#type.as_deref().unwrap_or("no reason");
    let kind = kind.strip_prefix("urn:ietf:params:acme:error:").unwrap_or(kind);
    let mut text = match &problem.detail {
        Some(detail) => format!("{detail} ({kind})"),
        None => kind.to_owned(),
    };
    for part in problem.subproblems.iter().filter_map(|part| part.detail.as_deref()) {
        text.push_str("; ");
        text.push_str(part);
    }
    text.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_placed_again_without_what_it_replaces_unless_that_is_not_the_reason() {
        let refused = |kind: &str| {
            let problem =
                serde_json::json!({ "type": format!("urn:ietf:params:acme:error:{kind}") });
            may_be_about_replacing(&Error::Api(serde_json::from_value(problem).unwrap()))
        };
        // Boulder says `unauthorized` of another account's certificate, and `notFound` of one that
        // it does not know.
        for kind in ["alreadyReplaced", "malformed", "unauthorized", "notFound", "serverInternal"] {
            assert!(refused(kind), "{kind}");
        }
        for kind in ["rateLimited", "accountDoesNotExist", "userActionRequired", "badNonce"] {
            assert!(!refused(kind), "{kind}");
        }
        let untyped = serde_json::from_value(serde_json::json!({ "status": 403 })).unwrap();
        assert!(may_be_about_replacing(&Error::Api(untyped)));
        assert!(may_be_about_replacing(&Error::Other("replaces field mismatch: ...".into())));
        assert!(!may_be_about_replacing(&Error::Other("https://a/: no reply".into())));
    }
}
