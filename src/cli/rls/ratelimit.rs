//! The configuration of envoyproxy/ratelimit. Knows nothing of how descriptors are decided.

mod entries;
mod metadata;

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use self::entries::{Entry, Siblings, shared_key};
use super::yaml::Node;
use super::{Imported, Names};
use crate::cli::written::{comment, plain, section, string, unique};

/// The settings of ratelimit's descriptors and limits.
const DESCRIPTOR: [&str; 10] = [
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "quota_mode",
    "metadata",
];
const RATE_LIMIT: [&str; 5] = ["unit", "requests_per_unit", "unlimited", "name", "replaces"];
/// Units, with the periods that they are in ratelimit.
const UNITS: [(&str, &str); 7] = [
    ("second", "1s"),
    ("minute", "1m"),
    ("hour", "1h"),
    ("day", "1d"),
    ("week", "7d"),
    ("month", "30d"),
    ("year", "365d"),
];
/// Maximum depth of nested descriptors, number of rules of a policy, and of limits that a rule
/// replaces: those of the policy.
const DEPTH_MAX: usize = 16;
const RULES_MAX: usize = 2_000;
const REPLACES_MAX: usize = 16;
/// A name that no limit of the policy may have.
const RESERVED: &str = "override";

/// What is named in a domain.
#[derive(Clone, Debug, Default)]
pub(super) struct DomainNames {
    policy: String,
    limits: HashSet<String>,
    /// The values that each key has, by the entries above it and the key.
    siblings: HashMap<String, Siblings>,
    rules: usize,
    /// By the name that a limit has in ratelimit, the names of those here.
    pub(super) named: HashMap<String, Vec<String>>,
}

/// A domain, as far as it is written.
#[derive(Debug, Default)]
struct Domain {
    out: Imported,
    names: DomainNames,
    /// What all files of the domain name. Rules may replace a limit before it is there.
    named: HashMap<String, Vec<String>>,
}

/// Reads a file. One more of a domain adds rules to it.
pub(super) fn read(root: Node, names: &mut Names) -> Imported {
    let mut domain = Domain::default();
    if let Err(message) = root.merged().and_then(|root| domain.read(&root, names)) {
        domain.out.wrong.push(message);
    }
    domain.out
}

impl Domain {
    fn read(&mut self, root: &Node, names: &mut Names) -> Result<(), String> {
        self.only_known(root, "", &["domain", "descriptors"]);
        let domain = self.text(root, "", "domain");
        match domain.as_str() {
            "" => return Err("found no `domain`, expected one".to_owned()),
            "*" => return Err("domain: found \"*\", which is any domain in Weir".to_owned()),
            _ => {}
        }
        let list = root.get("descriptors");
        match names.domains.remove(&domain) {
            Some(known) => self.names = known,
            None => {
                self.begin(&domain, names);
                if list.is_none_or(|list| list.list().is_some_and(<[Node]>::is_empty)) {
                    // A policy without rules has to say that it is for limits of callers.
                    let policy = &self.names.policy;
                    let _ =
                        writeln!(self.out.text, "\n[policies.{policy}.config]\noverrides = true");
                }
            }
        }
        if let Some(list) = list {
            let mut first = Self { names: self.names.clone(), ..Self::default() };
            first.descriptors(list, "", &mut Vec::new());
            self.named = names.known.get(&domain).cloned().unwrap_or(first.names.named);
            self.descriptors(list, "", &mut Vec::new());
        }
        if self.names.rules > RULES_MAX {
            let found = self.names.rules;
            self.out.wrong.push(format!(
                "descriptors: found {found} rules for the domain, expected at most {RULES_MAX}"
            ));
        }
        names.domains.insert(domain, std::mem::take(&mut self.names));
        Ok(())
    }

    /// Writes the route and the policy of a domain.
    fn begin(&mut self, domain: &str, names: &mut Names) {
        let policy = unique(&section(domain, "limit"), &mut names.taken);
        let written = string(domain);
        let _ = write!(
            self.out.text,
            "\n[[routes]]\nname = \"{policy}\"\ndomain = {written}\npolicy = \"{policy}\"\n\
             \n[policies.{policy}]\nuse = \"rls\"\n",
        );
        self.names.policy = policy;
        self.names.limits.insert(RESERVED.to_owned());
    }

    fn descriptors(&mut self, list: &Node, at: &str, above: &mut Vec<Entry>) {
        let Some(items) = list.list() else {
            let found = list.found();
            self.wrong(list, format_args!("{at}descriptors: found {found}, expected a list"));
            return;
        };
        for (index, item) in items.iter().enumerate() {
            let at = format!("{at}descriptors[{index}].");
            if !self.only_known(item, &at, &DESCRIPTOR) {
                continue;
            }
            let key = self.text(item, &at, "key");
            if key.is_empty() || key.contains(['=', '*']) {
                let expected = "a text without `=` and `*`";
                self.wrong(item, format_args!("{at}key: found {key:?}, expected {expected}"));
                continue;
            }
            let value = Some(self.text(item, &at, "value")).filter(|value| !value.is_empty());
            if above.len() >= DEPTH_MAX {
                self.wrong(item, format_args!("{at}key: found more than {DEPTH_MAX} entries"));
                continue;
            }
            let is_shared = self.flag(item, &at, "share_threshold");
            let entry = Entry { key, value, is_shared };
            if is_shared && !entry.is_pattern() {
                let expected = "it beside a `value` with `*` only";
                self.wrong(
                    item,
                    format_args!("{at}share_threshold: found true, expected {expected}"),
                );
            }
            self.add_sibling(item, &at, above, &entry);
            above.push(entry);
            self.rule(item, &at, above);
            if let Some(list) = item.get("descriptors") {
                self.descriptors(list, &at, above);
            }
            above.pop();
        }
    }

    /// Adds an entry to those with its key, of which one is followed. Says what is there twice or
    /// never reached.
    fn add_sibling(&mut self, item: &Node, at: &str, above: &[Entry], entry: &Entry) {
        let path = format!("{} {}", listed(above), string(&entry.key));
        let siblings = self.names.siblings.entry(path).or_default();
        let (is_new, unreached) = siblings.add(entry.value.as_deref());
        if !is_new {
            let expected = "entries that no other descriptor of the domain has";
            let found = string(&entry.written());
            self.wrong(item, format_args!("{at}key: found {found} again, expected {expected}"));
        }
        if let Some(unreached) = unreached {
            let line = item.line;
            self.out.warnings.push(format!("line {line}: {at}value: {unreached}"));
        }
    }

    /// The rule of one descriptor, if it is one.
    fn rule(&mut self, item: &Node, at: &str, entries: &[Entry]) {
        let limit = item.get("rate_limit");
        let is_leaf =
            item.get("descriptors").is_none_or(|list| list.list().is_some_and(<[Node]>::is_empty));
        let mut comments = self.metrics(item, at);
        let is_shadow = self.flag(item, at, "shadow_mode");
        let has_quota_mode = self.flag(item, at, "quota_mode");
        let mut replaces = Vec::new();
        let rule = match limit {
            Some(limit) => {
                replaces = self.replaced(limit, at, &mut comments);
                self.limit(limit, at, entries, is_shadow)
            }
            None => is_leaf.then(unlimited),
        };
        let has_limits = rule.as_ref().is_some_and(|rule| *rule != unlimited());
        let told = self.told(item, at, has_limits, &mut comments);
        if rule.is_some() {
            let _ = write!(self.out.text, "\n[[policies.{}.config.rules]]\n", self.names.policy);
        } else if !comments.is_empty() {
            self.out.text.push('\n');
        }
        for why in comments {
            let _ = writeln!(self.out.text, "# left out: {}", comment(&why));
            self.out.left_out.push(why);
        }
        let Some(mut rule) = rule else { return };
        self.names.rules += 1;
        if has_quota_mode && has_limits {
            rule.push_str("\nquota_mode = true");
        }
        rule.extend(told);
        if !replaces.is_empty() {
            let names: Vec<String> = replaces.iter().map(|name| string(name)).collect();
            let _ = write!(rule, "\nreplaces = [{}]", names.join(", "));
        }
        let _ = writeln!(self.out.text, "descriptor = [{}]\n{rule}", listed(entries));
    }

    /// What is said of metrics, and left out.
    fn metrics(&mut self, item: &Node, at: &str) -> Vec<String> {
        let mut comments = Vec::new();
        for setting in ["detailed_metric", "value_to_metric"] {
            if self.flag(item, at, setting) {
                let why = "the access log has the label `rule`";
                comments.push(format!("line {}: {at}{setting} ({why})", item.line));
            }
        }
        comments
    }

    /// What the caller is told of a descriptor, as a line of its rule. What no limit can have room
    /// for is never told, as in ratelimit.
    fn told(
        &mut self,
        item: &Node,
        at: &str,
        has_limits: bool,
        comments: &mut Vec<String>,
    ) -> Option<String> {
        let metadata = item.get("metadata")?;
        let line = metadata.line;
        match metadata::written(metadata) {
            Ok(written) if has_limits => return Some(format!("\nmetadata = {written}")),
            Ok(_) => {
                let why = "ratelimit tells none of what has no limit of its own";
                comments.push(format!("line {line}: {at}metadata ({why})"));
            }
            Err((line, wrong)) => {
                self.out.wrong.push(format!("line {line}: {at}metadata: {wrong}"));
            }
        }
        None
    }

    /// The names of the limits that a `rate_limit` replaces.
    fn replaced(&mut self, limit: &Node, at: &str, comments: &mut Vec<String>) -> Vec<String> {
        let Some(written) = limit.get("replaces") else { return Vec::new() };
        let at = format!("{at}rate_limit.replaces");
        let Some(items) = written.list() else {
            let found = written.found();
            self.wrong(written, format_args!("{at}: found {found}, expected a list"));
            return Vec::new();
        };
        let own = limit.get("name").and_then(Node::text).unwrap_or_default();
        let mut replaced: Vec<String> = Vec::new();
        for (index, one) in items.iter().enumerate() {
            let at = format!("{at}[{index}].");
            if !self.only_known(one, &at, &["name"]) {
                continue;
            }
            let name = self.text(one, &at, "name");
            if name.is_empty() || name == own {
                let expected = "the name of another limit";
                self.wrong(one, format_args!("{at}name: found {name:?}, expected {expected}"));
                continue;
            }
            match self.named.get(&name) {
                Some(limits) => {
                    for limit in limits {
                        if !replaced.contains(limit) {
                            replaced.push(limit.clone());
                        }
                    }
                }
                None => {
                    let (line, why) = (one.line, "no limit that counts has this name");
                    comments.push(format!("line {line}: {at}name: {name:?} ({why})"));
                }
            }
        }
        if replaced.len() > REPLACES_MAX {
            let found = replaced.len();
            self.wrong(
                written,
                format_args!(
                    "{at}: found {found} limits with these names, expected at most {REPLACES_MAX}"
                ),
            );
        }
        replaced
    }

    /// What a `rate_limit` says, as a line.
    fn limit(
        &mut self,
        limit: &Node,
        at: &str,
        entries: &[Entry],
        is_shadow: bool,
    ) -> Option<String> {
        let at = format!("{at}rate_limit.");
        if !self.only_known(limit, &at, &RATE_LIMIT) {
            return None;
        }
        let unit = self.text(limit, &at, "unit");
        let period = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(&unit));
        match (self.flag(limit, &at, "unlimited"), period) {
            (true, Some(_)) => {
                let expected = "none beside `unlimited`";
                self.wrong(limit, format_args!("{at}unit: found {unit:?}, expected {expected}"));
                return None;
            }
            (true, None) => return Some(unlimited()),
            (false, _) => {}
        }
        let Some((_, period)) = period else {
            let known = UNITS.map(|(name, _)| name).join(", ");
            self.wrong(limit, format_args!("{at}unit: found {unit:?}, expected one of {known}"));
            return None;
        };
        let written = limit.get("requests_per_unit");
        let requests = written.and_then(Node::whole);
        let Some(requests) = requests.and_then(|requests| u32::try_from(requests).ok()) else {
            let found = written.map_or_else(|| "nothing".to_owned(), Node::found);
            let expected = "a whole number of 32 bits, without zeros before it";
            self.wrong(
                limit,
                format_args!("{at}requests_per_unit: found {found}, expected {expected}"),
            );
            return None;
        };
        let own = Some(self.text(limit, &at, "name")).filter(|name| !name.is_empty());
        let path: Vec<String> = entries.iter().map(Entry::written).collect();
        let wanted = plain(own.as_ref().unwrap_or(&path.join(".")), "limit");
        let name = unique(&wanted, &mut self.names.limits);
        if let Some(own) = own {
            self.names.named.entry(own).or_default().push(name.clone());
        }
        let mut line = format!(
            "limits = [{{ name = \"{name}\", algorithm = \"fixed_window\", quota = {requests}, \
             period = \"{period}\", alignment = \"clock\""
        );
        if is_shadow {
            line.push_str(", shadow = true");
        }
        match shared_key(entries) {
            Ok(key) => line.push_str(&key),
            Err(wrong) => self.wrong(limit, format_args!("{at}: share_threshold: {wrong}")),
        }
        line.push_str(" }]");
        Some(line)
    }

    /// A text, as it is written; empty if it isn't there.
    fn text(&mut self, item: &Node, at: &str, setting: &str) -> String {
        let Some(node) = item.get(setting) else { return String::new() };
        if node.text().is_none() {
            let found = node.found();
            self.wrong(node, format_args!("{at}{setting}: found {found}, expected a text"));
        }
        node.text().unwrap_or_default().to_owned()
    }

    /// What is on or off.
    fn flag(&mut self, item: &Node, at: &str, setting: &str) -> bool {
        let Some(node) = item.get(setting) else { return false };
        node.truth().unwrap_or_else(|| {
            let found = node.found();
            let expected = "true or false, without quotes";
            self.wrong(node, format_args!("{at}{setting}: found {found}, expected {expected}"));
            false
        })
    }

    /// Whether a value is a table. Says which of its keys are not known.
    fn only_known(&mut self, item: &Node, at: &str, known: &[&str]) -> bool {
        let Some(members) = item.members() else {
            let (at, found) = (at.trim_end_matches('.'), item.found());
            let at = if at.is_empty() { "the file" } else { at };
            self.wrong(item, format_args!("{at}: found {found}, expected a table"));
            return false;
        };
        for (key, _) in members {
            if key.text().is_none_or(|text| !known.contains(&text)) {
                let (found, known) = (key.text().unwrap_or_default(), known.join(", "));
                self.wrong(
                    key,
                    format_args!("{at}{found}: found an unknown key, expected one of {known}"),
                );
            }
        }
        true
    }

    fn wrong(&mut self, node: &Node, message: std::fmt::Arguments<'_>) {
        self.out.wrong.push(format!("line {}: {message}", node.line));
    }
}

/// Entries as a list of TOML has them.
fn listed(entries: &[Entry]) -> String {
    let written: Vec<String> = entries.iter().map(|entry| string(&entry.written())).collect();
    written.join(", ")
}

fn unlimited() -> String {
    "unlimited = true".to_owned()
}

#[cfg(test)]
mod tests;
