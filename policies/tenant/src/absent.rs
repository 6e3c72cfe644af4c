//! What happens to a request without a tenant, or without a user.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use weir_policy::{Denial, Facts, Json, NoKey, Template};

/// The status of a refusal, unless another is written.
const STATUS_DEFAULT: u16 = 400;
/// What keeps the other one's limits alone.
const TENANT: &str = "tenant";
const USER: &str = "user";

/// What happens to a request without one of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absent {
    /// It is refused.
    Deny { status: u16 },
    /// The client's address takes its place.
    Address,
    /// Only the other one's limits are charged.
    Other,
}

impl Default for Absent {
    fn default() -> Self {
        Self::Deny { status: STATUS_DEFAULT }
    }
}

impl Absent {
    /// The key of a tenant or a user. `None`: its limits are not charged.
    ///
    /// A fact that is repeated is never left out: otherwise a client with a valid tenant could add
    /// another one to escape the tenant's limits.
    pub(crate) fn key(
        self,
        template: &Template,
        facts: &Facts,
        address: &str,
    ) -> Result<Option<String>, Denial> {
        match (template.key(facts), self) {
            (Ok(key), _) => Ok(Some(key)),
            (Err(why), Self::Deny { status }) => Err(why.denial(template, status)),
            (Err(NoKey::Missing), Self::Other) => Ok(None),
            (Err(_), _) => Ok(Some(address.to_owned())),
        }
    }

    fn read(value: &Json<'_>, other: &str) -> Result<Self, String> {
        match value.as_str().as_deref() {
            Some("deny") => return Ok(Self::default()),
            Some("address") => return Ok(Self::Address),
            Some(word) if word == other => return Ok(Self::Other),
            _ => {}
        }
        let status = value.get("deny").filter(|_| value.members().count() == 1);
        let status = status.and_then(|status| u16::try_from(status.as_u64()?).ok());
        match status.filter(|status| (400..500).contains(status)) {
            Some(status) => Ok(Self::Deny { status }),
            None => Err(format!(
                "found {value}, expected \"deny\", {{ deny = STATUS }} with a status from 400 to 499, \"address\" or {other:?}"
            )),
        }
    }
}

/// Reads `missing_tenant`.
pub(crate) fn tenant<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Absent, D::Error> {
    Absent::read(&Json::deserialize(deserializer)?, USER).map_err(D::Error::custom)
}

/// Reads `missing_user`.
pub(crate) fn user<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Absent, D::Error> {
    Absent::read(&Json::deserialize(deserializer)?, TENANT).map_err(D::Error::custom)
}
