//! Adds up what a document's operations cost. Knows nothing of requests.
//!
//! A field costs its own weight and what is inside it, times the number of its items. A fragment
//! costs in each place what it contains, but is added up only once for all places that are alike:
//! thirty fragments that each contain the next one twice are thirty sums.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::document::{Argument, Document, Kind, NESTING_MAX, Operation, Selected, Value};
use crate::refusal::{Refusal, shown};
use crate::variables::Given;
use crate::weights::{Parent, Rule, SizeArgument, TYPENAME, Weights};

/// What operations and fields cost that have no weight of their own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Defaults {
    pub(crate) field: u64,
    pub(crate) scalar: u64,
    /// Items of a list.
    pub(crate) list: u64,
    pub(crate) mutation: u64,
    pub(crate) subscription: u64,
}

/// What selections cost, and how many fields are inside one another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) cost: u64,
    pub(crate) depth: u64,
}

/// What has to be known to add up a document.
pub(crate) struct Adder<'d, 'a> {
    pub(crate) document: &'d Document<'a>,
    pub(crate) weights: &'d Weights,
    pub(crate) defaults: Defaults,
    pub(crate) variables: &'d BTreeMap<String, Given>,
    /// Selections, arguments and members of input objects that may still be looked at.
    pub(crate) steps: u64,
}

impl Adder<'_, '_> {
    /// What an operation costs.
    pub(crate) fn operation(&mut self, operation: &Operation<'_>) -> Result<Sum, Refusal> {
        let all = self.document.defaults.get(operation.defaults.clone()).unwrap_or_default();
        // If a variable occurs twice, the document is invalid, and it does not matter which default
        // is taken.
        let defaults = all.iter().map(|default| (default.name, &default.value)).collect();
        let root = self.weights.root(operation.kind);
        let mut run = Run { adder: self, defaults, fragments: BTreeMap::new(), nesting: 0 };
        let sum = run.selections(operation.selections.clone(), root)?;
        let extra = match operation.kind {
            Kind::Query => 0,
            Kind::Mutation => self.defaults.mutation,
            Kind::Subscription => self.defaults.subscription,
        };
        Ok(Sum { cost: sum.cost.saturating_add(extra), ..sum })
    }
}

/// How many items something says that a list has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Size {
    /// It is an argument for the size, but no usable number.
    Unknown,
    Known(u64),
}

/// One operation that is being added up.
struct Run<'r, 'd, 'a> {
    adder: &'r mut Adder<'d, 'a>,
    /// The defaults of the operation's variables.
    defaults: BTreeMap<&'a str, &'d Value<'a>>,
    /// What each fragment costs, by what is around it; `None` while it is being added up.
    fragments: BTreeMap<(usize, Parent), Option<Sum>>,
    nesting: u32,
}

impl<'d, 'a> Run<'_, 'd, 'a> {
    fn selections(&mut self, range: Range<usize>, parent: Parent) -> Result<Sum, Refusal> {
        let document = self.adder.document;
        self.nesting += 1;
        if self.nesting > NESTING_MAX {
            return Err(Refusal::Nested { max: NESTING_MAX });
        }
        let mut sum = Sum::default();
        let mut at = range.start;
        while let Some(selection) = document.selections.get(at).filter(|_| at < range.end) {
            self.step(1)?;
            let inside = at + 1..selection.end;
            let one = match &selection.what {
                Selected::Field { name, arguments, object } => {
                    let arguments = document.arguments.get(arguments.clone()).unwrap_or_default();
                    self.field(name, arguments, object.then_some(inside), parent)?
                }
                Selected::Inline => self.selections(inside, parent)?,
                Selected::Spread(name) => self.fragment(name, parent)?,
            };
            sum.cost = sum.cost.saturating_add(one.cost);
            sum.depth = sum.depth.max(one.depth);
            at = selection.end;
        }
        self.nesting -= 1;
        Ok(sum)
    }

    fn field(
        &mut self,
        name: &str,
        arguments: &'d [Argument<'a>],
        inside: Option<Range<usize>>,
        parent: Parent,
    ) -> Result<Sum, Refusal> {
        if name == TYPENAME {
            return Ok(Sum { cost: 0, depth: 1 });
        }
        let weights = self.adder.weights;
        let rule = weights.rule(parent, name);
        let Defaults { field, scalar, .. } = self.adder.defaults;
        let own = rule.and_then(|rule| rule.cost);
        let own = own.unwrap_or(if inside.is_some() { field } else { scalar });
        let items = self.items(name, rule, arguments)?;
        let inner = match inside {
            Some(inside) => self.selections(inside, weights.parent(name))?,
            None => Sum::default(),
        };
        Ok(Sum {
            cost: own.saturating_add(inner.cost).saturating_mul(items),
            depth: inner.depth + 1,
        })
    }

    fn fragment(&mut self, name: &str, parent: Parent) -> Result<Sum, Refusal> {
        let Some((index, fragment)) = self.adder.document.fragment(name) else {
            return Err(Refusal::NoFragment(shown(name)));
        };
        match self.fragments.get(&(index, parent)) {
            Some(Some(sum)) => return Ok(*sum),
            Some(None) => return Err(Refusal::Cycle(shown(name))),
            None => {}
        }
        self.fragments.insert((index, parent), None);
        let sum = self.selections(fragment.selections.clone(), parent)?;
        self.fragments.insert((index, parent), Some(sum));
        Ok(sum)
    }

    /// How many items a field returns: what its arguments say, the largest of them; or what it
    /// usually is, if they don't say it or in a way that can't be used. 1 at least, since servers
    /// may take 0 for no limit. Refused if nothing says it and the configuration asks for it.
    fn items(
        &mut self,
        field: &str,
        rule: Option<&Rule>,
        arguments: &'d [Argument<'a>],
    ) -> Result<u64, Refusal> {
        let usual = rule.and_then(|rule| rule.list);
        let sized = rule.is_some_and(|rule| rule.sized);
        if arguments.is_empty() && !sized {
            return Ok(usual.unwrap_or(1));
        }
        let names = rule.and_then(|rule| rule.sizes.as_ref()).unwrap_or(&self.adder.weights.sizes);
        let (mut items, mut is_known) = (None, false);
        for argument in arguments {
            let members = self.members(&argument.value);
            self.step(1 + members.len())?;
            for name in names {
                let size = self.size(argument, members, name);
                is_known |= matches!(size, Some(Size::Known(1..)));
                items = items.max(size.map(|size| match size {
                    Size::Known(items) => items,
                    Size::Unknown => usual.unwrap_or(self.adder.defaults.list),
                }));
            }
        }
        if sized && !is_known {
            return Err(Refusal::Unsized(shown(field)));
        }
        Ok(items.or(usual).unwrap_or(1).max(1))
    }

    /// What an argument says about the size; `None` if it is not the one that says it. `members`
    /// are those that the document writes for it.
    fn size(
        &self,
        argument: &'d Argument<'a>,
        members: &'d [Argument<'a>],
        name: &SizeArgument,
    ) -> Option<Size> {
        let SizeArgument { argument: wanted, member } = name;
        if argument.name == wanted && member.is_none() {
            return Some(self.known(&argument.value));
        }
        let member = match member {
            Some(member) if argument.name == wanted => member,
            None => wanted,
            Some(_) => return None,
        };
        if let Value::Variable(variable) = &argument.value
            && let Some(given) = self.adder.variables.get(*variable)
        {
            let Given::Object(given) = given else { return None };
            return given.get(member).map(|given| match given {
                Given::Number(number) | Given::List(number) => Size::Known(*number),
                Given::Object(_) | Given::Other => Size::Unknown,
            });
        }
        members.iter().filter(|one| one.name == member).map(|one| self.known(&one.value)).max()
    }

    /// The members of an input object that is written in the document: where it is used, or as the
    /// default of a variable.
    fn members(&self, value: &'d Value<'a>) -> &'d [Argument<'a>] {
        let object = match value {
            Value::Variable(name) if !self.defaults.is_empty() => self.default(name),
            value => Some(value),
        };
        let Some(Value::Object(range)) = object else { return &[] };
        self.adder.document.members.get(range.clone()).unwrap_or_default()
    }

    /// What a value says itself.
    fn known(&self, value: &Value<'a>) -> Size {
        let number = match value {
            Value::Number(number) | Value::List(number) => Some(*number),
            Value::Object(_) | Value::Other => None,
            Value::Variable(name) => match self.adder.variables.get(*name) {
                Some(Given::Number(number) | Given::List(number)) => Some(*number),
                Some(_) => None,
                None => match self.default(name) {
                    Some(Value::Number(number) | Value::List(number)) => Some(*number),
                    _ => None,
                },
            },
        };
        number.map_or(Size::Unknown, Size::Known)
    }

    /// Bounds the time: what is inside a fragment may be looked at more than once.
    fn step(&mut self, count: usize) -> Result<(), Refusal> {
        let left = self.adder.steps.checked_sub(count as u64);
        self.adder.steps = left.ok_or(Refusal::Repetition)?;
        Ok(())
    }

    fn default(&self, variable: &str) -> Option<&'d Value<'a>> {
        self.defaults.get(variable).copied()
    }
}
