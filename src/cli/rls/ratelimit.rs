//! The configuration of envoyproxy/ratelimit. Knows nothing of how descriptors are decided.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use yaml_rust2::Yaml;

use super::{Imported, Names, scalar};
use crate::cli::written::{plain, string, unique};

/// The settings of ratelimit's descriptors and limits.
const DESCRIPTOR: [&str; 9] = [
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "quota_mode",
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
/// Maximum depth of nested descriptors: that of the policy's rules.
const DEPTH_MAX: usize = 16;

/// What is named in a domain.
#[derive(Clone, Debug, Default)]
pub(super) struct DomainNames {
    policy: String,
    limits: HashSet<String>,
    /// The entries of each rule.
    rules: HashSet<String>,
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
pub(super) fn read(root: &Yaml, names: &mut Names) -> Imported {
    let mut domain = Domain::default();
    if let Err(message) = domain.read(root, names) {
        domain.out.wrong.push(message);
    }
    domain.out
}

impl Domain {
    fn read(&mut self, root: &Yaml, names: &mut Names) -> Result<(), String> {
        let domain = root["domain"].as_str().filter(|domain| !domain.is_empty());
        let domain = domain.ok_or("found no `domain`, expected one")?;
        self.only_known(root, "", &["domain", "descriptors"]);
        match names.domains.remove(domain) {
            Some(known) => self.names = known,
            None => self.begin(domain, names),
        }
        let none = root["descriptors"].as_vec().is_none_or(Vec::is_empty);
        if none {
            return Err("found no `descriptors`, expected one or more".to_owned());
        }
        let mut first = Self { names: self.names.clone(), ..Self::default() };
        first.descriptors(&root["descriptors"], "", &mut Vec::new());
        self.named = names.known.get(domain).cloned().unwrap_or(first.names.named);
        self.descriptors(&root["descriptors"], "", &mut Vec::new());
        names.domains.insert(domain.to_owned(), std::mem::take(&mut self.names));
        Ok(())
    }

    /// Writes the route and the policy of a domain.
    fn begin(&mut self, domain: &str, names: &mut Names) {
        let policy = unique(&plain(domain, "limit"), &mut names.taken);
        let written = string(domain);
        let _ = write!(
            self.out.text,
            "\n[[routes]]\nname = \"{policy}\"\ndomain = {written}\npolicy = \"{policy}\"\n\
             \n[policies.{policy}]\nuse = \"rls\"\n",
            policy = string(&policy).trim_matches('"'),
        );
        self.names.policy = policy;
    }

    fn descriptors(&mut self, list: &Yaml, at: &str, above: &mut Vec<String>) {
        let Some(list) = list.as_vec() else {
            self.out.wrong.push(format!("{at}descriptors: found no list"));
            return;
        };
        for (index, item) in list.iter().enumerate() {
            let at = format!("{at}descriptors[{index}].");
            self.only_known(item, &at, &DESCRIPTOR);
            let key = item["key"].as_str().filter(|key| !key.is_empty() && !key.contains('='));
            let Some(key) = key else {
                let found = scalar(&item["key"]).unwrap_or_default();
                self.out
                    .wrong
                    .push(format!("{at}key: found {found:?}, expected a text without `=`"));
                continue;
            };
            let entry = match scalar(&item["value"]).filter(|value| !value.is_empty()) {
                Some(value) => format!("{key}={value}"),
                None => key.to_owned(),
            };
            if above.len() >= DEPTH_MAX {
                self.out.wrong.push(format!("{at}key: found more than {DEPTH_MAX} entries"));
                continue;
            }
            above.push(entry);
            self.rule(item, &at, above);
            if !item["descriptors"].is_badvalue() && !item["descriptors"].is_null() {
                self.descriptors(&item["descriptors"], &at, above);
            }
            above.pop();
        }
    }

    /// The rule of one descriptor, if it is one.
    fn rule(&mut self, item: &Yaml, at: &str, entries: &[String]) {
        let limit = &item["rate_limit"];
        let is_leaf = item["descriptors"].as_vec().is_none_or(Vec::is_empty);
        let is_limited = !limit.is_badvalue() && !limit.is_null();
        if !is_limited && !is_leaf {
            return;
        }
        let listed: Vec<String> = entries.iter().map(|entry| string(entry)).collect();
        let mut comments = Vec::new();
        for (setting, why) in [
            ("detailed_metric", "the access log has the label `rule`"),
            ("value_to_metric", "the access log has the label `rule`"),
        ] {
            if item[setting].as_bool() == Some(true) {
                comments.push(format!("{setting} ({why})"));
            }
        }
        let replaces = self.replaced(&limit["replaces"], at, &mut comments);
        let rule = if is_limited { self.limit(item, at, entries) } else { Some(unlimited()) };
        let Some(mut rule) = rule else { return };
        if !self.names.rules.insert(listed.join(", ")) {
            let expected = "entries that no other descriptor of the domain has";
            self.out
                .wrong
                .push(format!("{at}key: found {}, expected {expected}", listed.join(", ")));
        }
        if item["quota_mode"].as_bool() == Some(true) && rule != unlimited() {
            rule.push_str("\nquota_mode = true");
        }
        if !replaces.is_empty() {
            let names: Vec<String> = replaces.iter().map(|name| string(name)).collect();
            let _ = write!(rule, "\nreplaces = [{}]", names.join(", "));
        }
        let _ = write!(self.out.text, "\n[[policies.{}.config.rules]]\n", self.names.policy);
        for comment in comments {
            let _ = writeln!(self.out.text, "# left out: {comment}");
            self.out.left_out.push(format!("{at}{comment}"));
        }
        let _ = write!(self.out.text, "descriptor = [{}]\n{rule}\n", listed.join(", "));
    }

    /// The names of the limits that a `rate_limit` replaces.
    fn replaced(&mut self, written: &Yaml, at: &str, comments: &mut Vec<String>) -> Vec<String> {
        if written.is_badvalue() || written.is_null() {
            return Vec::new();
        }
        let mut replaced = Vec::new();
        for (index, one) in written.as_vec().into_iter().flatten().enumerate() {
            let at = format!("{at}rate_limit.replaces[{index}].");
            self.only_known(one, &at, &["name"]);
            let name = scalar(&one["name"]).unwrap_or_default();
            match self.named.get(&name) {
                Some(limits) => replaced.extend(limits.iter().cloned()),
                None => {
                    comments.push(format!("replaces {name:?} (no limit that counts has this name)"))
                }
            }
        }
        if written.as_vec().is_none() {
            self.out.wrong.push(format!("{at}rate_limit.replaces: found no list"));
        }
        replaced
    }

    /// What a descriptor's `rate_limit` says, as a line.
    fn limit(&mut self, item: &Yaml, at: &str, entries: &[String]) -> Option<String> {
        let limit = &item["rate_limit"];
        let at = format!("{at}rate_limit.");
        self.only_known(limit, &at, &RATE_LIMIT);
        if limit["unlimited"].as_bool() == Some(true) {
            return Some(unlimited());
        }
        let unit = scalar(&limit["unit"]).unwrap_or_default();
        let period = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(&unit));
        let Some((_, period)) = period else {
            let known = UNITS.map(|(name, _)| name).join(", ");
            self.out.wrong.push(format!("{at}unit: found {unit:?}, expected one of {known}"));
            return None;
        };
        let requests = limit["requests_per_unit"].as_i64();
        let requests = requests.and_then(|requests| u32::try_from(requests).ok());
        let Some(requests) = requests else {
            let found = scalar(&limit["requests_per_unit"]).unwrap_or_default();
            self.out.wrong.push(format!(
                "{at}requests_per_unit: found {found:?}, expected a whole number of 32 bits"
            ));
            return None;
        };
        let own = scalar(&limit["name"]).filter(|name| !name.is_empty());
        let wanted = plain(own.as_ref().unwrap_or(&entries.join(".")), "limit");
        let name = unique(&wanted, &mut self.names.limits);
        if let Some(own) = own {
            self.names.named.entry(own).or_default().push(name.clone());
        }
        let mut line = format!(
            "limits = [{{ name = \"{name}\", algorithm = \"fixed_window\", quota = {requests}, \
             period = \"{period}\", alignment = \"clock\""
        );
        if item["shadow_mode"].as_bool() == Some(true) {
            line.push_str(", shadow = true");
        }
        if item["share_threshold"].as_bool() == Some(true) {
            line.push_str(", key = \"all\"");
        }
        line.push_str(" }]");
        Some(line)
    }

    fn only_known(&mut self, item: &Yaml, at: &str, known: &[&str]) {
        let Some(table) = item.as_hash() else {
            self.out.wrong.push(format!("{}: found no table", at.trim_end_matches('.')));
            return;
        };
        for key in table.keys() {
            let key = scalar(key).unwrap_or_default();
            if !known.contains(&key.as_str()) {
                let known = known.join(", ");
                self.out
                    .wrong
                    .push(format!("{at}{key}: found an unknown key, expected one of {known}"));
            }
        }
    }
}

fn unlimited() -> String {
    "unlimited = true".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn imported(yaml: &str) -> Imported {
        Imported::of(yaml, &mut Names::default())
    }

    #[test]
    fn each_leaf_is_a_rule_with_the_entries_above_it() {
        let domain = imported(
            "
domain: edge_proxy
descriptors:
  - key: message_type
    value: marketing
    descriptors:
      - key: to_number
        rate_limit: { unit: day, requests_per_unit: 5 }
  - key: path
    value: /v1/*
    rate_limit: { unit: MINUTE, requests_per_unit: 0 }
    shadow_mode: true
    descriptors:
      - key: code
        value: 50
        share_threshold: true
        rate_limit: { unit: year, requests_per_unit: 7 }
  - key: ldap
    rate_limit: { unlimited: true }
  - key: anything
",
        );
        assert_eq!((&domain.wrong[..], &domain.left_out[..]), (&[][..], &[][..]));
        let expected = r#"
[[routes]]
name = "edge_proxy"
domain = "edge_proxy"
policy = "edge_proxy"

[policies.edge_proxy]
use = "rls"

[[policies.edge_proxy.config.rules]]
descriptor = ["message_type=marketing", "to_number"]
limits = [{ name = "message_type-marketing.to_number", algorithm = "fixed_window", quota = 5, period = "1d", alignment = "clock" }]

[[policies.edge_proxy.config.rules]]
descriptor = ["path=/v1/*"]
limits = [{ name = "path-v1", algorithm = "fixed_window", quota = 0, period = "1m", alignment = "clock", shadow = true }]

[[policies.edge_proxy.config.rules]]
descriptor = ["path=/v1/*", "code=50"]
limits = [{ name = "path-v1-.code-50", algorithm = "fixed_window", quota = 7, period = "365d", alignment = "clock", key = "all" }]

[[policies.edge_proxy.config.rules]]
descriptor = ["ldap"]
unlimited = true

[[policies.edge_proxy.config.rules]]
descriptor = ["anything"]
unlimited = true
"#;
        assert_eq!(domain.text, expected);
    }

    #[test]
    fn names_are_unique() {
        let domain = imported(
            "{domain: d, descriptors: [{key: A b, rate_limit: {unit: day, requests_per_unit: 1}}, {key: a_b, rate_limit: {unit: day, requests_per_unit: 1}}, {key: a-b, rate_limit: {unit: day, requests_per_unit: 1}}]}",
        );
        let names: Vec<&str> = domain
            .text
            .split("name = \"")
            .skip(2)
            .filter_map(|rest| rest.split('"').next())
            .collect();
        assert_eq!(names, ["a-b", "a_b", "a-b-2"]);
    }

    #[test]
    fn mistakes_say_where_they_are() {
        let one =
            |descriptor: &str| imported(&format!("{{domain: d, descriptors: [{descriptor}]}}"));
        for (yaml, expected) in [
            ("{value: x}", "descriptors[0].key: found \"\""),
            ("{key: a=b}", "descriptors[0].key: found \"a=b\""),
            ("{key: a, rate_limt: {}}", "descriptors[0].rate_limt: found an unknown key"),
            (
                "{key: a, rate_limit: {unit: decade, requests_per_unit: 1}}",
                "descriptors[0].rate_limit.unit: found \"decade\"",
            ),
            (
                "{key: a, descriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: -1}}]}",
                "descriptors[0].descriptors[0].rate_limit.requests_per_unit: found \"-1\"",
            ),
            ("{key: a, rate_limit: {requests_per_unit: 1}}", "rate_limit.unit: found \"\""),
            (
                "{key: a, rate_limit: {unit: day, requests_per_unit: 1}}, {key: a, rate_limit: {unlimited: true}}",
                "descriptors[1].key: found \"a\", expected entries that no other descriptor",
            ),
        ] {
            let found = one(yaml).wrong.join("\n");
            assert!(found.contains(expected), "{yaml}: {found}");
        }
        assert!(imported("descriptors: []").wrong[0].contains("no `domain`"));
        assert!(imported("a: [").wrong[0].contains("line"));
        assert!(imported("--- {domain: a}\n--- {domain: b}").wrong[0].contains("2 documents"));
    }

    #[test]
    fn what_has_no_counterpart_is_named() {
        let domain = imported(
            "{domain: d, descriptors: [{key: a, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: x}]}}]}",
        );
        assert_eq!(domain.left_out.len(), 2, "{:?}", domain.left_out);
        assert_eq!(domain.text.matches("# left out: ").count(), 2);
    }

    #[test]
    fn limits_are_replaced_by_the_names_that_they_have_here() {
        let limit = "unit: day, requests_per_unit: 1";
        let domain = imported(&format!(
            "
domain: d
descriptors:
  - key: special
    rate_limit: {{ {limit}, replaces: [{{ name: Read All }}] }}
  - key: free
    rate_limit: {{ unlimited: true, replaces: [{{ name: write }}] }}
  - key: a
    rate_limit: {{ {limit}, name: Read All }}
  - key: b
    quota_mode: true
    rate_limit: {{ {limit}, name: Read All }}
  - key: c
    rate_limit: {{ {limit}, name: write }}
"
        ));
        assert_eq!((&domain.wrong[..], &domain.left_out[..]), (&[][..], &[][..]));
        let lines = domain.text.lines().filter(|line| line.starts_with("replaces"));
        let lines: Vec<_> = lines.collect();
        assert_eq!(lines, ["replaces = [\"read-all\", \"read-all-2\"]", "replaces = [\"write\"]"]);
        assert!(domain.text.contains("name = \"read-all-2\", algorithm"), "{}", domain.text);
        assert_eq!(domain.text.matches("quota_mode = true").count(), 1);
    }

    #[test]
    fn files_of_one_domain_are_one_policy() {
        let file = |key: &str, more: &str| {
            let limit = format!("unit: day, requests_per_unit: 1, {more}");
            format!("{{domain: d, descriptors: [{{key: {key}, rate_limit: {{{limit}}}}}]}}")
        };
        let files = [
            file("a", "name: n"),
            file("b", "replaces: [{name: later}]"),
            file("c", "name: later"),
        ];
        let all = |names: &mut Names| {
            files.iter().map(|file| Imported::of(file, names).text).collect::<Vec<_>>()
        };
        let mut names = Names::default();
        all(&mut names);
        let texts = all(&mut Names::knowing(names));
        let routes: Vec<_> = texts.iter().map(|text| text.matches("[[routes]]").count()).collect();
        assert_eq!(routes, [1, 0, 0]);
        assert!(texts.iter().all(|text| text.contains("[[policies.d.config.rules]]")));
        // One file's limit may be replaced by an earlier one.
        assert!(texts[1].contains("replaces = [\"later\"]"), "{}", texts[1]);
    }
}
