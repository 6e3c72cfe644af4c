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
/// The types of problems with an order that is to replace a certificate (RFC 9773, 5).
pub(crate) const NOT_REPLACED: [&str; 2] =
    ["urn:ietf:params:acme:error:alreadyReplaced", "urn:ietf:params:acme:error:malformed"];
/// The type of a problem for an account that was closed, among other things.
pub(crate) const UNAUTHORIZED: &str = "urn:ietf:params:acme:error:unauthorized";
/// The type of a problem for who asks too often.
const RATE_LIMITED: &str = "urn:ietf:params:acme:error:rateLimited";

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
