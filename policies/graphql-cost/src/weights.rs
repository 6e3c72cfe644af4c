//! What each field costs, and how many items it returns, as the configuration says. Knows no
//! documents.
//!
//! There is no schema. So a field is known by its name, by its name and that of the field around
//! it, or, at the top of an operation, by the name of the root type.

use std::collections::BTreeMap;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use weir_policy::{Json, Mistakes};

use crate::document::Kind;

/// Maximum number of fields with weights of their own.
const FIELDS_MAX: usize = 10_000;
/// Maximum number of argument names in one list: each is compared with each argument.
const SIZES_MAX: usize = 16;
/// The only field that every type has. Clients ask for it everywhere, and it costs servers nothing.
pub(crate) const TYPENAME: &str = "__typename";

/// An entry of `fields`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Written {
    cost: Option<u64>,
    list: Option<List>,
    sizes: Option<Vec<String>>,
    sized: Option<bool>,
}

/// Whether a field returns a list, and how long it is if its arguments don't say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum List {
    No,
    /// A list as long as the policy's `default_list`.
    Usual,
    Of(u64),
}

impl<'de> Deserialize<'de> for List {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Json::deserialize(deserializer)?;
        match (value.as_bool(), value.as_u64()) {
            (Some(false), _) => Ok(Self::No),
            (Some(true), _) => Ok(Self::Usual),
            (_, Some(size)) if size > 0 => Ok(Self::Of(size)),
            _ => Err(D::Error::custom(format!(
                "found {value}, expected true, false, or a usual length of 1 or more"
            ))),
        }
    }
}

/// What is configured for a field.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rule {
    pub(crate) cost: Option<u64>,
    /// Items, if no argument says how many; `None` if it is not a list.
    pub(crate) list: Option<u64>,
    /// The arguments that say how many items there are, instead of the usual ones.
    pub(crate) sizes: Option<Vec<SizeArgument>>,
    /// Whether an argument has to say how many items there are.
    pub(crate) sized: bool,
}

/// An argument that says how many items a field returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SizeArgument {
    pub(crate) argument: String,
    /// The member of an input object that says it.
    pub(crate) member: Option<String>,
}

impl SizeArgument {
    /// Reads `first`, or `input.first`.
    fn parse(text: &str) -> Option<Self> {
        let (argument, member) = match text.split_once('.') {
            Some((argument, member)) => (argument, Some(member)),
            None => (text, None),
        };
        let names = is_graphql_name(argument) && member.is_none_or(is_graphql_name);
        names.then(|| Self { argument: argument.to_owned(), member: member.map(str::to_owned) })
    }
}

/// Which fields a selection is inside: those of an operation's root type, or of a field. Only if
/// something is configured for fields inside it; otherwise all are alike.
pub(crate) type Parent = Option<usize>;

/// All weights.
#[derive(Debug, Default)]
pub(crate) struct Weights {
    /// Rules by the field's name alone.
    anywhere: BTreeMap<String, Rule>,
    /// Rules by the name of the field or of the root type around it. Sorted.
    inside: Vec<(String, BTreeMap<String, Rule>)>,
    /// The arguments that say the size of any field.
    pub(crate) sizes: Vec<SizeArgument>,
    /// The names that the member of an input object may have that says a size. Sorted.
    pub(crate) members: Vec<String>,
}

impl Weights {
    /// Checks what is written.
    pub(crate) fn new(
        fields: BTreeMap<String, Written>,
        size_arguments: &[String],
        default_list: u64,
        mistakes: &mut Mistakes,
    ) -> Self {
        let sizes = sizes("size_arguments", size_arguments, mistakes);
        if fields.len() > FIELDS_MAX {
            let found = format_args!("{} fields", fields.len());
            mistakes.add("fields", found, format_args!("at most {FIELDS_MAX}"));
        }
        let mut weights = Self { sizes, ..Self::default() };
        let mut inside: BTreeMap<String, BTreeMap<String, Rule>> = BTreeMap::new();
        // What a path leaves open is taken from the field's own entry, so those are read first.
        let (plain, paths): (Vec<_>, Vec<_>) =
            fields.into_iter().partition(|(path, _)| !path.contains('.'));
        for (path, written) in plain.into_iter().chain(paths) {
            let (parent, name) = match path.rsplit_once('.') {
                Some((parent, name)) => (Some(parent), name),
                None => (None, path.as_str()),
            };
            if !is_graphql_name(name) || !parent.is_none_or(is_graphql_name) {
                let expected = "a field such as `search`, `users.posts` for those inside another, \
                                or `Query.users` for those of a root type";
                mistakes.add(format!("fields.{path}"), format_args!("{path:?}"), expected);
                continue;
            }
            if name == TYPENAME {
                let expected = "no weight: it is always free";
                mistakes.add(format!("fields.{path}"), format_args!("{path:?}"), expected);
            }
            let general = weights.anywhere.get(name).cloned().unwrap_or_default();
            let at = format!("fields.{path}.sizes");
            let rule = Rule {
                cost: written.cost.or(general.cost),
                list: match written.list {
                    None => general.list,
                    Some(List::No) => None,
                    Some(List::Usual) => Some(default_list),
                    Some(List::Of(size)) => Some(size),
                },
                sizes: written
                    .sizes
                    .map(|names| self::sizes(&at, &names, mistakes))
                    .or(general.sizes),
                sized: written.sized.unwrap_or(general.sized),
            };
            let table = match parent {
                None => &mut weights.anywhere,
                Some(parent) => inside.entry(parent.to_owned()).or_default(),
            };
            table.insert(name.to_owned(), rule);
        }
        weights.inside = inside.into_iter().collect();
        weights.members = weights.member_names();
        weights
    }

    fn member_names(&self) -> Vec<String> {
        let rules = self.inside.iter().map(|(_, rules)| rules).chain([&self.anywhere]);
        let own = rules.flat_map(BTreeMap::values).filter_map(|rule| rule.sizes.as_ref());
        let all = own.chain([&self.sizes]).flatten();
        let mut names: Vec<String> =
            all.map(|size| size.member.as_ref().unwrap_or(&size.argument).clone()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// What is around an operation's own fields.
    pub(crate) fn root(&self, kind: Kind) -> Parent {
        self.parent(match kind {
            Kind::Query => "Query",
            Kind::Mutation => "Mutation",
            Kind::Subscription => "Subscription",
        })
    }

    /// What is around the fields inside this one.
    pub(crate) fn parent(&self, field: &str) -> Parent {
        self.inside.binary_search_by(|(name, _)| name.as_str().cmp(field)).ok()
    }

    /// The rule for a field, the most specific one.
    pub(crate) fn rule(&self, parent: Parent, field: &str) -> Option<&Rule> {
        let inside = parent.and_then(|index| self.inside.get(index));
        inside.and_then(|(_, rules)| rules.get(field)).or_else(|| self.anywhere.get(field))
    }
}

fn sizes(path: &str, names: &[String], mistakes: &mut Mistakes) -> Vec<SizeArgument> {
    if names.len() > SIZES_MAX {
        let found = format_args!("{} arguments", names.len());
        mistakes.add(path, found, format_args!("at most {SIZES_MAX}"));
    }
    let mut sizes = Vec::with_capacity(names.len());
    for (index, name) in names.iter().enumerate() {
        match SizeArgument::parse(name) {
            Some(size) => sizes.push(size),
            None => mistakes.add(
                format!("{path}[{index}]"),
                format_args!("{name:?}"),
                "an argument's name such as \"first\", or \"input.first\" in an input object",
            ),
        }
    }
    sizes
}

/// Whether a document may call something so.
pub(crate) fn is_graphql_name(text: &str) -> bool {
    !text.starts_with(|first: char| first.is_ascii_digit())
        && !text.is_empty()
        && text.bytes().all(|next| next.is_ascii_alphanumeric() || next == b'_')
}
