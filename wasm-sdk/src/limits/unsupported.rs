//! What the WIT contract defines but the proxy does not implement yet. A limits table that uses it
//! is refused, rather than treated as something else.

use serde::de::{Deserialize, Deserializer, Error as _, IntoDeserializer as _};

use crate::limits::written::Fallback;
use crate::mistakes::message;

pub(super) fn on_store_error<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Fallback>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text == "local" {
        return Err(D::Error::custom(message(
            "`local`, which is not built yet",
            "`allow` or `deny`",
        )));
    }
    Fallback::deserialize(text.into_deserializer()).map(Some)
}
