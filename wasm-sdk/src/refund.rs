//! Giving back at the end of a response: which statuses do, and a memo of what each limit took.

use std::fmt::Write as _;
use std::ops::RangeInclusive;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::mistakes::message;
use crate::{Adjustment, Json, Limit, Outcome, Refund, ResponseView, Settlement};

/// Maximum number of statuses and classes.
const STATUSES_MAX: usize = 64;
const EXPECTED: &str = "a status such as 404, or a class such as \"4xx\"";

/// Statuses of responses, and whole classes of them: `[404, "5xx"]`. Use it as the type of a
/// setting.
///
/// ```
/// use weir_policy::Statuses;
///
/// let statuses: Statuses = serde_json::from_str(r#"[404, "5xx"]"#).unwrap();
/// assert!(statuses.contain(404) && statuses.contain(503) && !statuses.contain(400));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statuses(Vec<RangeInclusive<u16>>);

impl Statuses {
    /// Whether this status is one of them.
    #[must_use]
    pub fn contain(&self, status: u16) -> bool {
        self.0.iter().any(|range| range.contains(&status))
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a response ended with one of them. If the client left first, or made the request
    /// last, it did not, whatever the status: otherwise clients could choose to be given back what
    /// they used. Nor did it if a limit refused the request.
    #[must_use]
    pub fn ended(&self, response: &ResponseView) -> bool {
        let refused = response.outcome == Outcome::Refused;
        !refused && !response.is_by_client() && self.contain(response.status)
    }
}

impl<'de> Deserialize<'de> for Statuses {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Json::deserialize(deserializer)?;
        let items = value.one_or_several();
        if items.len() > STATUSES_MAX {
            let found = format_args!("{} statuses", items.len());
            return Err(D::Error::custom(message(&found, &format_args!("at most {STATUSES_MAX}"))));
        }
        let ranges = items.iter().map(range).collect::<Result<_, _>>();
        ranges.map(Self).map_err(D::Error::custom)
    }
}

fn range(value: &Json<'_>) -> Result<RangeInclusive<u16>, String> {
    let status = value.as_u64().and_then(|status| u16::try_from(status).ok());
    if let Some(status) = status.filter(|status| (100..600).contains(status)) {
        return Ok(status..=status);
    }
    let Some(text) = value.as_str() else {
        return Err(match value.is_number() {
            true => message(value, &EXPECTED),
            false => message(&value.kind_text(), &EXPECTED),
        });
    };
    let digit = text.strip_suffix("xx").and_then(|digit| digit.parse::<u16>().ok());
    match digit.filter(|digit| text.len() == 3 && (1..=5).contains(digit)) {
        Some(digit) => Ok(digit * 100..=digit * 100 + 99),
        None => Err(message(&format_args!("{text:?}"), &EXPECTED)),
    }
}

/// What limits took of a request that may be given back: those with [`Refund::BySettle`]. It goes
/// from [`Policy::decide`](crate::Policy::decide) to [`Policy::settle`](crate::Policy::settle) as
/// the memo, since another instance may settle.
///
/// ```
/// use weir_policy::{Algorithm, Calendar, Limit, Refund, Taken};
///
/// let limit = Limit::new("day", "alice", Algorithm::quota(100, Calendar::Day));
/// let memo = Taken::of(&[limit.cost(3).refund(Refund::BySettle)]).memo();
/// let taken = Taken::read(&memo).unwrap();
/// assert_eq!(taken.each().collect::<Vec<_>>(), [("day", 3)]);
/// assert_eq!(taken.give_back().adjustments.len(), 1);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken(Vec<(String, u64)>);

impl Taken {
    /// What these limits take.
    #[must_use]
    pub fn of(limits: &[Limit]) -> Self {
        let settled = limits.iter().filter(|limit| limit.refund == Refund::BySettle);
        Self(settled.map(|limit| (limit.name.clone(), limit.cost)).collect())
    }

    /// Whether no limit took anything that can be given back.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The limits' names, each with its units.
    pub fn each(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(name, units)| (name.as_str(), *units))
    }

    /// The memo, a line for each limit.
    #[must_use]
    pub fn memo(&self) -> String {
        let mut memo = String::new();
        for (name, units) in &self.0 {
            // Writing to a String can't fail.
            let _ = writeln!(memo, "{name} {units}");
        }
        memo
    }

    /// Reads what [`Taken::memo`] has written.
    ///
    /// # Errors
    /// A message, if it is something else.
    pub fn read(memo: &str) -> Result<Self, String> {
        let line = |line: &str| {
            let (name, units) = line.split_once(' ')?;
            Some((name.to_owned(), units.parse().ok()?))
        };
        let all = memo.lines().map(line).collect::<Option<_>>();
        all.map(Self).ok_or_else(|| "a memo that this policy has not written".to_owned())
    }

    /// Gives back everything.
    #[must_use]
    pub fn give_back(&self) -> Settlement {
        self.each().map(|(name, units)| Adjustment::give_back(name, units)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Algorithm, Change};

    #[test]
    fn statuses_and_classes_are_read() {
        let read =
            |text: &str| serde_json::from_str::<Statuses>(text).map_err(|error| error.to_string());
        let statuses = read(r#"["4xx", 503]"#).unwrap();
        for (status, contained) in
            [(399, false), (400, true), (499, true), (500, false), (503, true), (0, false)]
        {
            assert_eq!(statuses.contain(status), contained, "{status}");
        }
        assert!(read("\"2xx\"").unwrap().contain(204) && read("404").unwrap().contain(404));
        assert!(read("[]").unwrap().is_empty() && Statuses::default() == read("[]").unwrap());
        for (text, found) in [
            ("[99]", "found 99, "),
            ("[600]", "found 600, "),
            ("[\"6xx\"]", "found \"6xx\", "),
            ("[\"+4xx\"]", "found \"+4xx\", "),
            ("[\"40x\"]", "found \"40x\", "),
            ("[true]", "found true or false, "),
            ("[40.4]", "found 40.4, "),
        ] {
            let wrong = read(text).unwrap_err();
            assert!(wrong.starts_with(&format!("{found}expected a status")), "{wrong}");
        }
        let many = format!("[{}]", vec!["404"; STATUSES_MAX + 1].join(","));
        assert!(read(&many).unwrap_err().starts_with("found 65 statuses, expected at most 64"));
    }

    #[test]
    fn a_client_that_left_is_given_nothing_back() {
        let statuses: Statuses = serde_json::from_str("[\"4xx\"]").unwrap();
        let ended = |outcome, status| statuses.ended(&ResponseView::new(outcome, status));
        assert!(ended(Outcome::Completed, 404) && !ended(Outcome::Completed, 200));
        assert!(!ended(Outcome::ClientGone, 499) && !ended(Outcome::ClientGone, 404));
        assert!(!ended(Outcome::Overdue, 404) && !ended(Outcome::Refused, 429));
    }

    #[test]
    fn only_what_can_be_given_back_is_in_a_memo() {
        let limit = |name: &str, refund| {
            Limit::new(name, "k", Algorithm::concurrency(1)).cost(5).refund(refund)
        };
        let limits = [
            limit("a", Refund::BySettle),
            limit("b", Refund::Never),
            limit("c", Refund::UpstreamError),
            limit("d", Refund::BySettle),
        ];
        let taken = Taken::of(&limits);
        assert_eq!(taken.memo(), "a 5\nd 5\n");
        let read = Taken::read(&taken.memo()).unwrap();
        assert_eq!(read, taken);
        let back = read.give_back().adjustments;
        assert_eq!(
            back.iter().map(|one| (one.limit.as_str(), one.change)).collect::<Vec<_>>(),
            [("a", Change::Units(-5)), ("d", Change::Units(-5))]
        );
        assert!(Taken::read("").unwrap().is_empty());
        assert!(Taken::read("a").is_err() && Taken::read("a x").is_err());
    }
}
