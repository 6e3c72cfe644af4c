//! What becomes of a request that has no such key as a limit counts by.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::config::kind;
use crate::mistakes::{message, nearest};
use crate::{Denial, NoKey, Template};

const STATUS_DEFAULT: u16 = 400;
const WORDS: [&str; 4] = ["address", "shared", "skip", "deny"];
const EXPECTED: &str = "\"address\", \"shared\", \"skip\", \"deny\" or { deny = STATUS }";

/// What becomes of a request that has no such key as a limit counts by, because a fact is absent,
/// empty or repeated: use it as the type of a setting.
///
/// A repeated fact is charged to the address, or denied, but never skipped or shared: whoever has a
/// good key could add a second one to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Missing {
    /// It is charged to the client's address.
    #[default]
    Address,
    /// That a fact is absent is a value of its own: all such requests share one allowance.
    Shared,
    /// The limit is not about it. Whoever leaves the fact out is not limited then.
    Skip,
    /// It is refused, by 400 unless another status is written: `{ deny = 401 }`.
    Deny {
        /// 400 to 499.
        status: u16,
    },
}

impl<'de> Deserialize<'de> for Missing {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        read(&Value::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

fn read(value: &Value) -> Result<Missing, String> {
    match value {
        Value::String(word) => match word.as_str() {
            "address" => Ok(Missing::Address),
            "shared" => Ok(Missing::Shared),
            "skip" => Ok(Missing::Skip),
            "deny" => Ok(Missing::Deny { status: STATUS_DEFAULT }),
            other => {
                let hint = nearest(other, WORDS)
                    .map(|near| format!("; \"{near}\" is near"))
                    .unwrap_or_default();
                Err(message(format_args!("{other:?}"), format_args!("{EXPECTED}{hint}")))
            }
        },
        Value::Object(table) => {
            let status = table.get("deny").filter(|_| table.len() == 1);
            let fitting = status
                .and_then(Value::as_u64)
                .and_then(|status| u16::try_from(status).ok())
                .filter(|status| (400..500).contains(status));
            let found = || {
                status
                    .map_or_else(|| "another table".to_owned(), |status| format!("deny = {status}"))
            };
            fitting
                .map(|status| Missing::Deny { status })
                .ok_or_else(|| message(found(), "{ deny = STATUS } with a status from 400 to 499"))
        }
        other => Err(message(kind(other), EXPECTED)),
    }
}

/// Refuses a request that names nobody. Says which facts were looked for: an operator's words, none
/// of the client's.
pub(super) fn denial(status: u16, template: &Template, why: NoKey) -> Denial {
    let facts: Vec<String> = template.facts().map(|fact| fact.replacen('.', " ", 1)).collect();
    let how = match why {
        NoKey::Missing => "must be there",
        NoKey::Repeated => "must be there once",
    };
    let reason: String = format!("{} {how}", facts.join(" and ")).chars().take(256).collect();
    let denial = Denial::new(status, reason);
    // RFC 9110, section 15.5.2: a 401 names a way to authenticate.
    if status == 401 { denial.header("www-authenticate", "Key") } else { denial }
}
