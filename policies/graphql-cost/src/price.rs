//! What a request costs: each of its operations is found, read and added up here.

use weir_policy::Facts;

use crate::body::Body;
use crate::config::Unknown;
use crate::cost::{Adder, Defaults, Sum};
use crate::document::{Bounds, Document, Operation};
use crate::persisted::{Listed, Persisted};
use crate::refusal::{Refusal, shown};
use crate::request::{self, Requested};
use crate::weights::{Weights, is_graphql_name};

/// What decides how much a request costs.
#[derive(Debug)]
pub(crate) struct Pricing {
    pub(crate) weights: Weights,
    pub(crate) defaults: Defaults,
    pub(crate) bounds: Bounds,
    pub(crate) depth_max: u64,
    pub(crate) cost_max: u64,
    pub(crate) operations_max: usize,
    pub(crate) introspection: bool,
    pub(crate) persisted: Persisted,
    pub(crate) unknown_persisted: Unknown,
}

/// What to charge.
#[derive(Debug, Default)]
pub(crate) struct Price {
    pub(crate) cost: u64,
    /// The name of the operation that is run, or those of a batch.
    pub(crate) operation: String,
}

/// What the documents of a request may still take: as many as `max_tokens` of each at first.
struct Budget {
    tokens: u64,
    /// Selections, arguments and members of input objects to look at. Each has at least one token,
    /// but those of a fragment are looked at again in each place that has weights of its own, and
    /// in each operation if none is named.
    steps: u64,
}

impl Pricing {
    /// What all operations of a request cost together: 1 at least. It may be more than
    /// [`Pricing::cost_max`].
    pub(crate) fn request(&self, facts: &Facts) -> Result<Price, Refusal> {
        let tokens = self.bounds.tokens;
        let mut budget = Budget { tokens, steps: tokens };
        let mut all = Price::default();
        let members = &self.weights.members;
        let body = Body { operations_max: self.operations_max, members };
        for requested in request::read(facts, body)? {
            let price = self.operation(&requested, &mut budget)?;
            all.cost = all.cost.saturating_add(price.cost);
            if !all.operation.is_empty() && !price.operation.is_empty() {
                all.operation.push(',');
            }
            all.operation.push_str(&price.operation);
        }
        Ok(Price { cost: all.cost.max(1), ..all })
    }

    /// What one operation costs. If it has a text and the digest of a listed query, some servers
    /// run the one and some the other: then it costs as much as the dearer of them.
    fn operation(&self, requested: &Requested<'_>, budget: &mut Budget) -> Result<Price, Refusal> {
        let text = match &requested.query {
            Some(text) => Some(self.document(text, requested, budget)?),
            None => None,
        };
        let listed = match requested.digest {
            Some(digest) => match (self.persisted.get(digest), self.unknown_persisted) {
                (Some(Listed::Text(text)), _) => Some(self.document(text, requested, budget)?),
                (Some(Listed::Cost(cost)), _) => Some(named(*cost, requested)),
                // The text is not known by its digest yet, but it is here.
                (None, _) if text.is_some() => None,
                (None, Unknown::Cost(cost)) => Some(named(cost, requested)),
                (None, Unknown::Deny) => return Err(Refusal::UnknownPersisted),
            },
            None => None,
        };
        let dearer = [text, listed].into_iter().flatten().max_by_key(|price| price.cost);
        dearer.ok_or_else(|| Refusal::unreadable("there is no query"))
    }

    /// What the operation of a document that will be run costs, or the dearest one if none is
    /// named.
    fn document(
        &self,
        text: &str,
        requested: &Requested<'_>,
        budget: &mut Budget,
    ) -> Result<Price, Refusal> {
        let (document, left) = Document::parse(text, budget.tokens, self.bounds)?;
        budget.tokens = left;
        if document.introspects && !self.introspection {
            return Err(Refusal::Introspection);
        }
        let mut adder = Adder {
            document: &document,
            weights: &self.weights,
            defaults: self.defaults,
            variables: &requested.variables,
            steps: budget.steps,
        };
        let mut dearest: Option<(Sum, &Operation<'_>)> = None;
        for operation in &document.operations {
            if requested.name.is_some() && requested.name.as_deref() != operation.name {
                continue;
            }
            let sum = adder.operation(operation)?;
            if sum.depth > self.depth_max {
                return Err(Refusal::Depth { found: sum.depth, max: self.depth_max });
            }
            if dearest.is_none_or(|(dearest, _)| sum.cost > dearest.cost) {
                dearest = Some((sum, operation));
            }
        }
        budget.steps = adder.steps;
        match (dearest, &requested.name) {
            (Some((sum, operation)), _) => {
                let operation = operation.name.unwrap_or_default().to_owned();
                Ok(Price { cost: sum.cost, operation })
            }
            (None, Some(name)) => Err(Refusal::NoOperation(shown(name))),
            (None, None) => Err(Refusal::unreadable("the query has no operation")),
        }
    }
}

/// The price of a query whose text is not known.
fn named(cost: u64, requested: &Requested<'_>) -> Price {
    // It is written into the log.
    let name = requested.name.as_deref().filter(|name| is_graphql_name(name));
    Price { cost, operation: name.unwrap_or_default().to_owned() }
}
