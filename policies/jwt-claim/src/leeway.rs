//! By how much the issuer's clock may differ from the proxy's.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// More would keep expired tokens alive.
const MAX_S: u64 = 600;

/// Written as "60s" or "1m"; one minute by default. Use it as the type of a setting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leeway {
    seconds: u64,
}

impl Leeway {
    pub(crate) fn ms(self) -> u64 {
        self.seconds * 1000
    }

    fn parse(text: &str) -> Option<Self> {
        let (digits, unit_s) = match (text.strip_suffix('s'), text.strip_suffix('m')) {
            (Some(digits), _) => (digits, 1),
            (_, Some(digits)) => (digits, 60),
            _ => return None,
        };
        let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let number = digits.parse::<u64>().ok().filter(|_| plain)?;
        let seconds = number.checked_mul(unit_s).filter(|seconds| *seconds <= MAX_S)?;
        Some(Self { seconds })
    }
}

impl Default for Leeway {
    fn default() -> Self {
        Self { seconds: 60 }
    }
}

impl<'de> Deserialize<'de> for Leeway {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let expected = "a duration from \"0s\" to \"10m\"";
        Self::parse(&text)
            .ok_or_else(|| D::Error::custom(format!("found {text:?}, expected {expected}")))
    }
}
