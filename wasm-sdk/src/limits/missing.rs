//! What a limit does with a request that lacks its key.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::mistakes::{message, nearest};
use crate::{Denial, Json, NoKey, Template};

const STATUS_DEFAULT: u16 = 400;
const WORDS: [&str; 4] = ["address", "shared", "skip", "deny"];
const EXPECTED: &str = "\"address\", \"shared\", \"skip\", \"deny\" or { deny = STATUS }";

/// What a limit does with a request that lacks its key, because a fact is absent, empty or
/// repeated. Use it as the type of a setting.
///
/// A request with a repeated fact, or whose key would be in a body that can't be read, is charged
/// to its address or denied, but never skipped or shared: otherwise a client with a valid key could
/// add a second one, or hide it, to evade its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Missing {
    /// The request is charged to the client's address.
    #[default]
    Address,
    /// An absent fact counts as a value: all such requests share one allowance.
    Shared,
    /// The limit does not apply. A client that leaves the fact out is not limited.
    Skip,
    /// The request is refused, with 400 unless another status is given: `{ deny = 401 }`.
    Deny {
        /// 400 to 499.
        status: u16,
    },
}

impl<'de> Deserialize<'de> for Missing {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        read(&Json::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

pub(super) fn read(value: &Json<'_>) -> Result<Missing, String> {
    if let Some(word) = value.as_str() {
        return match &*word {
            "address" => Ok(Missing::Address),
            "shared" => Ok(Missing::Shared),
            "skip" => Ok(Missing::Skip),
            "deny" => Ok(Missing::Deny { status: STATUS_DEFAULT }),
            other => {
                let hint = nearest(other, WORDS)
                    .map(|near| format!("; \"{near}\" is near"))
                    .unwrap_or_default();
                Err(message(&format_args!("{other:?}"), &format_args!("{EXPECTED}{hint}")))
            }
        };
    }
    if !value.is_table() {
        return Err(message(&value.kind_text(), &EXPECTED));
    }
    let status = value.get("deny").filter(|_| value.members().count() == 1);
    let number = status.as_ref().and_then(Json::as_u64);
    let fitting = number
        .and_then(|status| u16::try_from(status).ok())
        .filter(|status| (400..500).contains(status));
    let found =
        || status.as_ref().map_or_else(|| "another table".to_owned(), |it| format!("deny = {it}"));
    let expected = "{ deny = STATUS } with a status from 400 to 499";
    fitting.map(|status| Missing::Deny { status }).ok_or_else(|| message(&found(), &expected))
}

impl NoKey {
    /// The refusal of a request that has no key of its own from `template`.
    #[must_use]
    pub fn denial(self, template: &Template, status: u16) -> Denial {
        denial(status, template, self)
    }
}

/// Refuses a request without a key. The reason names the facts that were looked for: these come
/// from the configuration, not from the client.
pub(super) fn denial(status: u16, template: &Template, why: NoKey) -> Denial {
    let facts: Vec<String> = template.named().map(|fact| fact.replacen('.', " ", 1)).collect();
    let how = match why {
        NoKey::Missing => "must be there",
        NoKey::Repeated => "must be there once",
        NoKey::Unreadable => "must be in a body that can be read",
    };
    let reason: String = format!("{} {how}", facts.join(" and ")).chars().take(256).collect();
    let denial = Denial::new(status, reason);
    // RFC 9110, section 15.5.2: a 401 must have a WWW-Authenticate field.
    if status == 401 { denial.header("www-authenticate", "Key") } else { denial }
}
