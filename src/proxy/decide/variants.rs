//! Routes with `when`: those for the same requests as another one, of which they take some. By
//! facts of the request, by a share of the senders, or both. Knows nothing of hosts and paths.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::proxy::decide::facts::{self, FactQuery, Facts, RequestView, RouteTraits};
use crate::proxy::receive::path;
use crate::proxy::route::expression;
use crate::proxy::settings::{Paths, When};
use crate::telemetry::SettingError;
use regex_automata::meta::Regex;

/// The value that any is as good as.
const ANY: &str = "*";
/// What a value begins with that is a regular expression.
const EXPRESSION: char = '~';
/// Shares are counted in parts of this.
pub(in crate::proxy) const SHARE_WHOLE: u32 = 10_000;

/// Which requests a variant takes of those of its route.
#[derive(Debug)]
pub(in crate::proxy) struct Condition {
    facts: Vec<FactCondition>,
    share: Option<Share>,
}

/// A fact, and the values of which it has to have one.
#[derive(Debug)]
struct FactCondition {
    query: Box<[FactQuery]>,
    values: Vec<Value>,
    /// It is the path, whose spellings are many.
    paths: Option<Paths>,
}

/// A value that is looked for.
#[derive(Debug)]
enum Value {
    Any,
    Text(String),
    Expression(Regex),
}

/// A share of the requests, those of the same senders each time.
#[derive(Debug)]
struct Share {
    /// In parts of [`SHARE_WHOLE`].
    part: u32,
    /// Who the sender is.
    by: Box<[FactQuery]>,
    /// Of the route's name, so that two variants do not take the same senders.
    salt: u64,
}

impl Condition {
    /// Checks the setting `when` of a route with these traits. Errors are added to `errors`.
    pub(in crate::proxy) fn build(
        written: &When,
        name: &str,
        (route, at, paths): (RouteTraits<'_>, &str, Paths),
        errors: &mut Vec<SettingError>,
    ) -> Self {
        let mut query = |setting: &str, fact: &str| {
            let built = FactQuery::new(fact, route).map(|query| [query].into());
            built.unwrap_or_else(|| {
                let found = format!("{fact:?}, which requests of this route never have");
                errors.push(SettingError::new(format!("{at}.{setting}"), found, "another fact"));
                [].into()
            })
        };
        let (mut conditions, mut wrong) = (Vec::with_capacity(written.facts.len()), Vec::new());
        for (fact, texts) in &written.facts {
            let paths = (fact == "path").then_some(paths);
            let ignores_case = paths.is_some_and(|paths| !paths.case_exact);
            let mut values = Vec::with_capacity(texts.len());
            for text in texts {
                match Value::build(text, ignores_case) {
                    Ok(value) => values.push(value),
                    Err(expected) => {
                        let (setting, found) = (format!("{at}.{fact}"), format!("{text:?}"));
                        wrong.push(SettingError::new(setting, found, expected));
                    }
                }
            }
            conditions.push(FactCondition { query: query(fact, fact), values, paths });
        }
        let share = written.share.map(|part| {
            let mut salt = DefaultHasher::new();
            name.hash(&mut salt);
            Share { part, by: query("by", &written.by), salt: salt.finish() }
        });
        errors.append(&mut wrong);
        Self { facts: conditions, share }
    }

    /// Whether two readings of a path are the same to it.
    pub(in crate::proxy) fn agrees(&self, both: [&[&str]; 2], paths: Paths) -> bool {
        let facts = self.facts.iter().map(|condition| &condition.query);
        let mut all = facts.chain(self.share.iter().map(|share| &share.by));
        all.all(|queries| facts::agree(queries, both, paths))
    }

    /// Whether a request is among those that it takes.
    pub(in crate::proxy) fn holds(&self, view: RequestView<'_>) -> bool {
        self.facts.iter().all(|condition| condition.holds(view))
            && self.share.as_ref().is_none_or(|share| share.takes(view))
    }
}

impl FactCondition {
    fn holds(&self, view: RequestView<'_>) -> bool {
        let facts = Facts::gather(&self.query, view);
        let pairs = facts.pairs();
        let is_meant = |found: &str| self.values.iter().any(|value| value.is(found));
        pairs.iter().any(|(_, found)| match self.paths {
            Some(paths) => is_meant(&path::one_spelling(found, paths)),
            None => is_meant(found),
        })
    }
}

impl Value {
    /// The error says what was expected.
    fn build(written: &str, ignores_case: bool) -> Result<Self, String> {
        let Some(expression) = written.strip_prefix(EXPRESSION) else {
            let any = written == ANY;
            return Ok(if any { Self::Any } else { Self::Text(written.to_owned()) });
        };
        expression::compile(expression, ignores_case).map(Self::Expression)
    }

    fn is(&self, found: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Text(text) => text == found,
            Self::Expression(regex) => regex.is_match(found),
        }
    }
}

impl Share {
    fn takes(&self, view: RequestView<'_>) -> bool {
        let facts = Facts::gather(&self.by, view);
        let pairs = facts.pairs();
        // The same in all processes, so that a sender stays where it is.
        let mut hasher = DefaultHasher::new();
        self.salt.hash(&mut hasher);
        pairs.iter().for_each(|(_, value)| value.hash(&mut hasher));
        !pairs.is_empty() && hasher.finish() % u64::from(SHARE_WHOLE) < u64::from(self.part)
    }
}
