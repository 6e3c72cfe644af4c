//! A list of limits whose mistakes are kept, to be reported together with those of the rest.

use serde::{Deserialize, Deserializer};
use weir_policy::{Json, Limits, Mistakes};

/// `limits` and `requests`.
#[derive(Debug, Default)]
pub(crate) struct List {
    pub(crate) limits: Limits,
    /// Also of limits with mistakes.
    names: Vec<Option<String>>,
    mistakes: Mistakes,
}

impl List {
    /// The limits that are written, with their indices and names.
    pub(crate) fn named(&self) -> impl Iterator<Item = (usize, &str)> {
        self.names.iter().enumerate().filter_map(|(index, name)| Some((index, name.as_deref()?)))
    }

    /// How many limits are written.
    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    /// Adds its mistakes; `setting` is the list.
    pub(crate) fn check(&self, setting: &str, mistakes: &mut Mistakes) {
        mistakes.append(self.mistakes.clone().under(setting));
    }

    /// Whether nothing is written, and nothing said about it.
    pub(crate) fn is_missing(&self) -> bool {
        self.names.is_empty() && self.mistakes.is_empty()
    }
}

impl<'de> Deserialize<'de> for List {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Json::deserialize(deserializer)?;
        let name = |item: Json<'_>| Some(item.get("name")?.as_str()?.into_owned());
        let names = value.items().map(name).collect();
        let (limits, mistakes) = match Limits::read(&value) {
            Ok(limits) => (limits, Mistakes::new()),
            Err(mistakes) => (Limits::default(), mistakes),
        };
        Ok(Self { limits, names, mistakes })
    }
}
