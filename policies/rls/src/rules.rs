//! Which rule a descriptor meets: the settings `rules`.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use weir_policy::{Json, Limits, Mistakes};

/// Maximum number of rules.
const RULES_MAX: usize = 2_000;
/// Maximum number of entries of a rule.
const ENTRIES_MAX: usize = 16;
/// Maximum number of limits that a rule replaces.
const REPLACES_MAX: usize = 16;
/// Maximum size of a rule's metadata as JSON, and how deep it may be nested: those of the proxy.
const METADATA_BYTES_MAX: usize = 4 << 10;
const METADATA_DEPTH_MAX: usize = 16;
const ENTRY: &str = "\"KEY\", or \"KEY=VALUE\", in which each `*` stands for any characters";

/// One of `rules`, as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Written {
    descriptor: Vec<String>,
    #[serde(default, deserialize_with = "without_children")]
    limits: Limits,
    #[serde(default)]
    unlimited: bool,
    /// Of the descriptors of a call whose rules have it, one with room is enough.
    #[serde(default)]
    quota_mode: bool,
    /// The names of limits that are not taken for the call's other descriptors.
    #[serde(default)]
    replaces: Vec<String>,
    /// What the caller is told of a descriptor that has room.
    #[serde(default, deserialize_with = "owned")]
    metadata: Option<Json<'static>>,
}

fn owned<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Json<'static>>, D::Error> {
    Ok(Some(Json::deserialize(deserializer)?.into_owned()))
}

/// Limits of several descriptors are taken together, and a parent of two of them would be there
/// twice.
fn without_children<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Limits, D::Error> {
    Limits::from_json(&Json::deserialize(deserializer)?)
}

/// A rule.
#[derive(Debug)]
pub(crate) struct Rule {
    /// The setting: `rules[0]`.
    pub(crate) at: String,
    /// Its entries, for people.
    pub(crate) name: String,
    /// None: what it is for is unlimited.
    pub(crate) limits: Limits,
    /// Whether another descriptor of the call with room is enough.
    pub(crate) quota_mode: bool,
    /// Names of limits of the call's other descriptors, which are not taken.
    pub(crate) replaces: Vec<String>,
    /// What the caller is told of a descriptor that has room: a JSON object.
    pub(crate) metadata: Option<String>,
}

/// An entry as a rule names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry<'a> {
    Is(&'a str, &'a str),
    Like(&'a str, &'a str),
    Any(&'a str),
}

impl<'a> Entry<'a> {
    fn parse(written: &'a str) -> Option<Self> {
        let entry = match written.split_once('=') {
            None => Self::Any(written),
            Some((key, value)) if value.contains('*') => Self::Like(key, value),
            Some((key, value)) => Self::Is(key, value),
        };
        let (Self::Is(key, _) | Self::Like(key, _) | Self::Any(key)) = entry;
        (!key.is_empty()).then_some(entry)
    }
}

/// What may follow the entries so far. Of the entries that fit, one is followed, and no other one
/// if that leads nowhere: as in envoyproxy/ratelimit.
#[derive(Debug, Default)]
struct Node {
    /// The index of the rule that ends here.
    rule: Option<usize>,
    keys: BTreeMap<String, Values>,
}

/// What may follow an entry with one key, by its value.
#[derive(Debug, Default)]
struct Values {
    exact: BTreeMap<String, Node>,
    /// In the order of the rules.
    patterns: Vec<Pattern>,
    /// By pattern, as it is written.
    like: BTreeMap<String, Node>,
    any: Option<Box<Node>>,
}

impl Node {
    fn follow(&mut self, entry: Entry<'_>) -> &mut Self {
        let (Entry::Is(key, _) | Entry::Like(key, _) | Entry::Any(key)) = entry;
        let values = self.keys.entry(key.to_owned()).or_default();
        match entry {
            Entry::Is(_, value) => values.exact.entry(value.to_owned()).or_default(),
            Entry::Like(_, written) => {
                if !values.like.contains_key(written) {
                    values.patterns.push(Pattern::new(written));
                }
                values.like.entry(written.to_owned()).or_default()
            }
            Entry::Any(_) => values.any.get_or_insert_default(),
        }
    }

    fn next(&self, key: &str, value: &str) -> Option<&Self> {
        let values = self.keys.get(key)?;
        let like = || {
            let pattern = values.patterns.iter().find(|pattern| pattern.fits(value))?;
            values.like.get(&pattern.written)
        };
        values.exact.get(value).or_else(like).or(values.any.as_deref())
    }
}

/// A value in which each `*` stands for any characters, or none.
#[derive(Debug)]
struct Pattern {
    written: String,
    start: String,
    /// What is between two `*` each.
    middle: Vec<String>,
    end: String,
}

impl Pattern {
    fn new(written: &str) -> Self {
        let mut parts = written.split('*').map(str::to_owned);
        let start = parts.next().unwrap_or_default();
        let mut middle: Vec<String> = parts.collect();
        let end = middle.pop().unwrap_or_default();
        middle.retain(|part| !part.is_empty());
        Self { written: written.to_owned(), start, middle, end }
    }

    /// Whether a value is of this pattern. Each part is sought once, after the one before it: the
    /// first place is right, since it leaves the most for the parts that follow. So the time grows
    /// with the length of the value, and not with the ways to divide it.
    fn fits(&self, value: &str) -> bool {
        let Some(rest) = value.strip_prefix(self.start.as_str()) else { return false };
        let Some(mut rest) = rest.strip_suffix(self.end.as_str()) else { return false };
        for part in &self.middle {
            let Some((_, after)) = rest.split_once(part.as_str()) else { return false };
            rest = after;
        }
        true
    }
}

/// Adds what is wrong with what a caller is to be told: the proxy takes no other.
fn check_metadata(at: &str, written: &Json<'_>, mistakes: &mut Mistakes) {
    fn fits(value: &Json<'_>, depth: usize) -> bool {
        let is_nested = value.is_table() || value.is_list();
        let inner = |value: Json<'_>| fits(&value, depth - 1);
        !is_nested
            || (depth > 0
                && value.items().all(inner)
                && value.members().all(|(_, value)| inner(value)))
    }
    let at = format!("{at}.metadata");
    let bytes = written.as_text().len();
    if !written.is_table() {
        mistakes.add(at, written.kind_text(), "a table");
    } else if bytes > METADATA_BYTES_MAX {
        let expected = format_args!("at most {METADATA_BYTES_MAX}");
        mistakes.add(at, format_args!("{bytes} bytes of JSON"), expected);
    } else if !fits(written, METADATA_DEPTH_MAX) {
        let expected = format_args!("at most {METADATA_DEPTH_MAX}");
        mistakes.add(at, "more levels of tables and lists", expected);
    }
}

/// All rules.
#[derive(Debug)]
pub(crate) struct Rules {
    rules: Vec<Rule>,
    root: Node,
}

impl Rules {
    /// Checks the rules.
    pub(crate) fn new(written: Vec<Written>, mistakes: &mut Mistakes) -> Self {
        if written.len() > RULES_MAX {
            let found = format_args!("{} rules", written.len());
            mistakes.add("rules", found, format_args!("at most {RULES_MAX}"));
        }
        let (mut rules, mut root) = (Vec::with_capacity(written.len()), Node::default());
        for (index, written) in written.into_iter().enumerate() {
            let Written { descriptor, limits, unlimited, quota_mode, replaces, metadata } = written;
            let at = format!("rules[{index}]");
            if descriptor.is_empty() || descriptor.len() > ENTRIES_MAX {
                let found = format_args!("{} entries", descriptor.len());
                mistakes.add(format!("{at}.descriptor"), found, format_args!("1 to {ENTRIES_MAX}"));
            }
            let mut node = &mut root;
            for (place, written) in descriptor.iter().enumerate() {
                match Entry::parse(written) {
                    Some(entry) => node = node.follow(entry),
                    None => {
                        let at = format!("{at}.descriptor[{place}]");
                        mistakes.add(at, format_args!("{written:?}"), ENTRY);
                    }
                }
            }
            match node.rule {
                Some(other) if !descriptor.is_empty() => {
                    let expected = format_args!("entries that differ from those of rules[{other}]");
                    mistakes.add(
                        format!("{at}.descriptor"),
                        format_args!("{descriptor:?}"),
                        expected,
                    );
                }
                _ => node.rule = Some(index),
            }
            match (limits.count() > 0, unlimited) {
                (false, false) => {
                    mistakes.add(&at, "no limits", "`limits`, or `unlimited = true`");
                }
                (true, true) => {
                    mistakes.add(format!("{at}.unlimited"), "true", "no `limits` beside it");
                }
                (false, true) if quota_mode => {
                    let expected = "none: what is unlimited would always be enough";
                    mistakes.add(format!("{at}.quota_mode"), "true", expected);
                }
                _ => {}
            }
            if replaces.len() > REPLACES_MAX {
                let found = format_args!("{} names", replaces.len());
                mistakes.add(
                    format!("{at}.replaces"),
                    found,
                    format_args!("at most {REPLACES_MAX}"),
                );
            }
            if let Some(written) = &metadata {
                check_metadata(&at, written, mistakes);
            }
            let (name, metadata) = (descriptor.join(","), metadata.map(|json| json.to_string()));
            rules.push(Rule { at, name, limits, quota_mode, replaces, metadata });
        }
        let rules = Self { rules, root };
        rules.check_names(mistakes);
        rules.check_replaced(mistakes);
        rules
    }

    /// Adds names that two limits have: they would be one counter for equal descriptors.
    fn check_names(&self, mistakes: &mut Mistakes) {
        let mut all: Vec<(&str, String)> = Vec::new();
        for rule in &self.rules {
            let named = rule.limits.named();
            all.extend(named.map(|(place, name)| (name, format!("{}.limits{place}", rule.at))));
        }
        // A stable order, so that of two the later one is the mistake.
        all.sort_by_key(|(name, _)| *name);
        for pair in all.windows(2) {
            if let [(name, at), (other, theirs)] = pair
                && name == other
            {
                let expected = format_args!("a name that {at} does not have");
                mistakes.add(format!("{theirs}.name"), format_args!("{name:?}"), expected);
            }
        }
    }

    /// Adds names that no other rule's limit has.
    fn check_replaced(&self, mistakes: &mut Mistakes) {
        if self.rules.iter().all(|rule| rule.replaces.is_empty()) {
            return;
        }
        // Each name with the rule that has it; a name that two have is a mistake by itself.
        let named = self
            .rules
            .iter()
            .flat_map(|rule| rule.limits.named().map(move |(_, name)| (name, rule.at.as_str())));
        let owners: BTreeMap<&str, &str> = named.collect();
        for rule in &self.rules {
            for (place, name) in rule.replaces.iter().enumerate() {
                if owners.get(name.as_str()).is_none_or(|owner| *owner == rule.at) {
                    let at = format!("{}.replaces[{place}]", rule.at);
                    let expected = "the name of a limit of another rule";
                    mistakes.add(at, format_args!("{name:?}"), expected);
                }
            }
        }
    }

    /// The rule for a descriptor with these entries.
    pub(crate) fn find<'e>(
        &self,
        entries: impl IntoIterator<Item = (impl AsRef<str> + 'e, impl AsRef<str> + 'e)>,
    ) -> Option<&Rule> {
        let mut node = &self.root;
        for (key, value) in entries {
            node = node.next(key.as_ref(), value.as_ref())?;
        }
        self.rules.get(node.rule?)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter()
    }
}
