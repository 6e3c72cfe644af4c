//! The table of ordinary limits, as far as this policy has rules of its own for it.

use serde::{Deserialize, Deserializer};
use weir_policy::{Json, Limits, Mistakes};

/// The ordinary limits.
#[derive(Debug, Default)]
pub(crate) struct Ordinary {
    pub(crate) limits: Limits,
    /// The indices of those that wait for a policy to settle them.
    by_settle: Vec<usize>,
    owing: Vec<usize>,
}

impl Ordinary {
    /// Adds what is a mistake here and in no other policy's table.
    pub(crate) fn check(&self, taken: &[&str], most: usize, mistakes: &mut Mistakes) {
        let mut count = 0;
        for (index, name) in self.limits.names().enumerate() {
            count += 1;
            if taken.contains(&name) {
                let at = format!("limits[{index}].name");
                mistakes.add(at, format_args!("{name:?}"), "a name that this policy does not use");
            }
        }
        if count > most {
            mistakes.add("limits", format_args!("{count} limits"), format_args!("at most {most}"));
        }
        for index in &self.by_settle {
            let expected = "another refund: nothing would be given back";
            mistakes.add(format!("limits[{index}].refund"), "\"by_settle\"", expected);
        }
        for index in &self.owing {
            mistakes.add(format!("limits[{index}].debt"), "a debt", "none: nothing would be owed");
        }
    }
}

impl<'de> Deserialize<'de> for Ordinary {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Json::deserialize(deserializer)?;
        let by_settle = Json::from("by_settle");
        let (mut settled, mut owing) = (Vec::new(), Vec::new());
        for (index, item) in value.items().enumerate() {
            let refund = item.get("refund").filter(|own| *own == by_settle);
            settled.extend(refund.map(|_| index));
            owing.extend(item.get("debt").map(|_| index));
        }
        let limits = Limits::from_json(&value)?;
        Ok(Self { limits, by_settle: settled, owing })
    }
}
