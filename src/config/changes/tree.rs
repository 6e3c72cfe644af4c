//! The file as written, with a digest in place of each value: enough to tell which settings differ,
//! and nothing that could show a secret. A setting that names a file includes that file's content.
//!
//! Leaves out what `policies` compares: the policies' modules and their own configurations.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use toml::de::{DeTable, DeValue};

use super::super::finding::join;
use super::super::reader::integer;
use super::super::{setting, settings};
use super::{ADDED, CHANGED, Change, Effect, REMOVED, add_text};
use crate::reload::Watch;

/// Maximum depth of tables and arrays that are compared. No setting is deeper.
const DEPTH_MAX: usize = 32;
/// The settings that name an element of a list, the first that all elements have.
const IDENTITIES: [&str; 2] = ["name", "address"];
/// Settings of a policy that are compared elsewhere.
const OF_POLICIES: [&str; 3] = ["config", "use", "wasm"];
/// Sections that are the same on all proxies that count together.
const OF_ALL_PROXIES: [&str; 3] = [setting::POLICIES, setting::ROUTES, setting::STORE];
/// All sections of a file.
#[derive(Clone)]
pub(super) struct Tree(Node);

#[derive(Clone)]
enum Node {
    Leaf(Leaf),
    Table(Nodes),
    List(Nodes),
}

type Nodes = BTreeMap<Box<str>, Node>;

#[derive(Clone)]
struct Leaf {
    value: blake3::Hash,
    /// The file that the setting names.
    file: Option<Box<Watch>>,
}

impl Default for Tree {
    fn default() -> Self {
        Self(Node::Table(Nodes::new()))
    }
}

/// What is known about the file besides its text.
struct FileFacts<'a> {
    /// The names of all routes, in the file's order: they need not be written.
    routes: &'a [&'a str],
    files: HashMap<String, Watch>,
}

impl Tree {
    pub(super) fn new(root: &DeTable<'_>, routes: &[&str], files: HashMap<String, Watch>) -> Self {
        Self(table(root, "", &FileFacts { routes, files }, 0))
    }

    /// Adds the sections that are the same on all proxies that count together.
    pub(super) fn add_to(&self, hasher: &mut blake3::Hasher) {
        let Self(Node::Table(sections)) = self else { return };
        for (name, section) in
            sections.iter().filter(|(name, _)| OF_ALL_PROXIES.contains(&&***name))
        {
            add_text(hasher, name);
            section.add_to(hasher);
        }
    }

    pub(super) fn compare(&self, after: &Self, found: &mut Vec<Change>) {
        compare("", &self.0, &after.0, found);
    }
}

impl Node {
    fn add_to(&self, hasher: &mut blake3::Hasher) {
        match self {
            // Where a file is may differ. What is in it counts.
            Self::Leaf(Leaf { file: Some(file), .. }) => {
                hasher.update(b"f").update(&file.identity().unwrap_or_default());
            }
            Self::Leaf(Leaf { value, file: None }) => {
                hasher.update(b"v").update(value.as_bytes());
            }
            Self::Table(nodes) | Self::List(nodes) => {
                hasher.update(b"n").update(&(nodes.len() as u64).to_le_bytes());
                for (name, node) in nodes {
                    add_text(hasher, name);
                    node.add_to(hasher);
                }
            }
        }
    }
}

fn table(table: &DeTable<'_>, at: &str, known: &FileFacts<'_>, depth: usize) -> Node {
    let policy = at.strip_prefix(setting::POLICIES).and_then(|rest| rest.strip_prefix('.'));
    let of_policy = policy.is_some() && depth == 2;
    let members = table
        .iter()
        .filter(|(key, _)| !(of_policy && OF_POLICIES.contains(&key.get_ref().as_ref())));
    let node =
        |(key, value): (&toml::Spanned<std::borrow::Cow<'_, str>>, &toml::Spanned<DeValue<'_>>)| {
            let key = key.get_ref();
            let node = node(value.get_ref(), &join(at, key), known, depth + 1);
            (Box::from(key.as_ref()), node)
        };
    Node::Table(members.map(node).collect())
}

fn node(value: &DeValue<'_>, at: &str, known: &FileFacts<'_>, depth: usize) -> Node {
    match value {
        DeValue::Table(members) if depth < DEPTH_MAX => table(members, at, known, depth),
        DeValue::Array(elements)
            if depth < DEPTH_MAX
                && !elements.is_empty()
                && elements.iter().all(|element| element.get_ref().is_table()) =>
        {
            let tables: Vec<&DeTable<'_>> =
                elements.iter().filter_map(|element| element.get_ref().as_table()).collect();
            let ids = identities(&tables, at, known);
            let nodes = tables.iter().zip(ids).enumerate().map(|(index, (element, id))| {
                (id, table(element, &format!("{at}[{index}]"), known, depth + 1))
            });
            Node::List(nodes.collect())
        }
        _ => {
            let mut hasher = blake3::Hasher::new();
            digest(value, &mut hasher, depth);
            let file = known.files.get(at).filter(|_| !at.contains(".config_files."));
            Node::Leaf(Leaf { value: hasher.finalize(), file: file.cloned().map(Box::new) })
        }
    }
}

/// What tells the elements of a list apart: their names or addresses, or else their positions.
fn identities(tables: &[&DeTable<'_>], at: &str, known: &FileFacts<'_>) -> Vec<Box<str>> {
    if at == setting::ROUTES && known.routes.len() == tables.len() {
        return known.routes.iter().map(|name| Box::from(*name)).collect();
    }
    let by = |key: &&str| -> Option<Vec<Box<str>>> {
        let text = |table: &&DeTable<'_>| Some(Box::from(table.get(*key)?.get_ref().as_str()?));
        let ids: Vec<Box<str>> = tables.iter().map(text).collect::<Option<_>>()?;
        let distinct = ids.iter().collect::<BTreeSet<_>>().len();
        (distinct == ids.len()).then_some(ids)
    };
    let positions = || (0..tables.len()).map(|index| index.to_string().into()).collect();
    // A listener may be given another name while it runs, but no other address.
    let of_listeners = at == setting::LISTENERS;
    let mut names = IDENTITIES.iter().filter(|name| !of_listeners || **name == "address");
    names.find_map(by).unwrap_or_else(positions)
}

/// Values that are written differently and mean the same have the same digest: `1_000` and `1000`.
fn digest(value: &DeValue<'_>, hasher: &mut blake3::Hasher, depth: usize) {
    let mut part = |kind: &[u8], text: &str| {
        hasher.update(kind).update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
    };
    match value {
        DeValue::String(text) => part(b"s", text),
        DeValue::Integer(_) => {
            part(b"i", &integer(value).map(|number| number.to_string()).unwrap_or_default());
        }
        DeValue::Float(number) => part(b"f", number.as_str()),
        DeValue::Boolean(flag) => part(b"b", if *flag { "true" } else { "false" }),
        DeValue::Datetime(time) => part(b"d", &time.to_string()),
        DeValue::Array(elements) => {
            part(b"a", &elements.len().to_string());
            let below = elements.iter().filter(|_| depth < DEPTH_MAX);
            below.for_each(|element| digest(element.get_ref(), hasher, depth + 1));
        }
        DeValue::Table(members) => {
            part(b"t", &members.len().to_string());
            for (key, member) in members.iter().filter(|_| depth < DEPTH_MAX) {
                let key = key.get_ref();
                hasher.update(&(key.len() as u64).to_le_bytes()).update(key.as_bytes());
                digest(member.get_ref(), hasher, depth + 1);
            }
        }
    }
}

fn compare(at: &str, before: &Node, after: &Node, found: &mut Vec<Change>) {
    match (before, after) {
        (Node::Leaf(old), Node::Leaf(new)) if old.value == new.value => {
            // Their folders may differ, where the configurations are two files.
            let same = match (&old.file, &new.file) {
                (Some(old), Some(new)) => new.has_content_of(old),
                (old, new) => old.is_none() == new.is_none(),
            };
            if !same {
                found.push(change(at, "new content"));
            }
        }
        (Node::Table(old), Node::Table(new)) => {
            members(old, new, |name| join(at, name), found);
        }
        (Node::List(old), Node::List(new)) => {
            members(old, new, |name| format!("{at}[{name}]"), found);
        }
        _ => found.push(change(at, CHANGED)),
    }
}

fn members(before: &Nodes, after: &Nodes, path: impl Fn(&str) -> String, found: &mut Vec<Change>) {
    let names: BTreeSet<&str> = before.keys().chain(after.keys()).map(AsRef::as_ref).collect();
    for name in names {
        match (before.get(name), after.get(name)) {
            (Some(old), Some(new)) => compare(&path(name), old, new, found),
            (None, Some(new)) => one_sided(&path(name), new, ADDED, found),
            (Some(old), None) => one_sided(&path(name), old, REMOVED, found),
            (None, None) => {}
        }
    }
}

/// Notes what only one of the two has. For a whole section, which need not be written, its members
/// are noted.
fn one_sided(at: &str, node: &Node, what: &str, found: &mut Vec<Change>) {
    let is_section = !at.contains(['.', '[']);
    match node {
        Node::Table(members) if is_section => {
            found.extend(members.keys().map(|name| change(&join(at, name), what)));
        }
        Node::List(members) if is_section => {
            found.extend(members.keys().map(|name| change(&format!("{at}[{name}]"), what)));
        }
        _ => found.push(change(at, what)),
    }
}

fn change(at: &str, what: &str) -> Change {
    Change::new(at, what, settings::needs_restart(at).then_some(Effect::Restart))
}
