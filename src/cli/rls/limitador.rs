//! The configuration of Limitador: a list of limits, each with conditions and variables over the
//! entries of a descriptor. Knows nothing of how descriptors are decided.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;

use yaml_rust2::Yaml;

use super::{Imported, scalar};
use crate::cli::written::{plain, string, unique};

/// The settings of a limit.
const LIMIT: [&str; 7] =
    ["namespace", "max_value", "seconds", "conditions", "variables", "name", "id"];

/// A limit whose conditions and variables can be said in Weir.
struct Limit {
    quota: u64,
    seconds: u64,
    name: Option<String>,
    /// Entries and their values.
    conditions: Vec<(String, String)>,
    variables: Vec<String>,
}

/// Why a limit is not written.
enum Skipped {
    /// It is none of Limitador's.
    Wrong(String),
    /// It is more than can be said.
    LeftOut(String),
}

/// Reads a file.
pub(super) fn read(limits: &[Yaml], names: &mut HashSet<String>) -> Imported {
    let mut out = Imported::default();
    let mut namespaces: BTreeMap<String, (Vec<Limit>, Vec<String>)> = BTreeMap::new();
    if limits.is_empty() {
        out.wrong.push("found no limits, expected one or more".to_owned());
    }
    for (index, item) in limits.iter().enumerate() {
        let namespace = item["namespace"].as_str().filter(|name| !name.is_empty());
        let Some(namespace) = namespace else {
            out.wrong.push(format!("[{index}]: found no `namespace`, expected one"));
            continue;
        };
        let (known, left_out) = namespaces.entry(namespace.to_owned()).or_default();
        match limit(item) {
            Ok(limit) => known.push(limit),
            Err(Skipped::Wrong(why)) => out.wrong.push(format!("[{index}]{why}")),
            Err(Skipped::LeftOut(why)) => {
                let why = format!("[{index}]{why}");
                left_out.push(why.replace('\n', " "));
                out.left_out.push(why);
            }
        }
    }
    if !out.left_out.is_empty() && namespaces.values().all(|(limits, _)| limits.is_empty()) {
        out.wrong.push("nothing is left: none of the limits can be said in Weir".to_owned());
    }
    for (namespace, (limits, left_out)) in &namespaces {
        write(&mut out.text, namespace, (limits, left_out), names);
    }
    out
}

/// Reads a limit.
fn limit(item: &Yaml) -> Result<Limit, Skipped> {
    let table = item.as_hash().ok_or_else(|| Skipped::Wrong(": found no table".to_owned()))?;
    for key in table.keys() {
        let key = scalar(key).unwrap_or_default();
        if !LIMIT.contains(&key.as_str()) {
            return Err(Skipped::LeftOut(format!(
                ".{key}: a setting that is not known; the limit with it"
            )));
        }
    }
    let number = |name: &str| {
        let found = item[name].as_i64().and_then(|number| u64::try_from(number).ok());
        found.ok_or_else(|| {
            let found = scalar(&item[name]).unwrap_or_default();
            Skipped::Wrong(format!(".{name}: found {found:?}, expected a whole number"))
        })
    };
    let texts = |name: &str| match &item[name] {
        Yaml::BadValue | Yaml::Null => Ok(Vec::new()),
        Yaml::Array(texts) => Ok(texts.iter().filter_map(scalar).collect::<Vec<_>>()),
        _ => Err(Skipped::Wrong(format!(".{name}: found no list"))),
    };
    let mut limit = Limit {
        quota: number("max_value")?,
        seconds: number("seconds")?,
        name: item["name"].as_str().map(|name| plain(name, "limit")),
        conditions: Vec::new(),
        variables: Vec::new(),
    };
    for written in texts("conditions")? {
        match condition(&written) {
            Some((name, value)) if limit.conditions.iter().all(|(other, _)| *other != name) => {
                limit.conditions.push((name, value));
            }
            _ => {
                return Err(Skipped::LeftOut(format!(
                    ".conditions: {written:?} is not of the form NAME == 'VALUE', once for each name; the limit with it"
                )));
            }
        }
    }
    for written in texts("variables")? {
        match entry(&written) {
            Some(name) => limit.variables.push(name),
            None => {
                return Err(Skipped::LeftOut(format!(
                    ".variables: {written:?} is no name of an entry; the limit with it"
                )));
            }
        }
    }
    Ok(limit)
}

/// The entry that a condition names and its value: `NAME == 'VALUE'`.
fn condition(written: &str) -> Option<(String, String)> {
    let (name, value) = written.split_once("==")?;
    let value = value.trim();
    let quote = value.chars().next().filter(|quote| ['\'', '"'].contains(quote))?;
    let value = value.strip_prefix(quote)?.strip_suffix(quote)?;
    let is_plain = !value.contains([quote, '\\']) && !value.is_empty();
    is_plain.then_some(())?;
    Some((entry(name)?, value.to_owned()))
}

/// The entry of an expression: `NAME`, `descriptors[0].NAME` or `descriptors[0]['NAME']`.
fn entry(written: &str) -> Option<String> {
    let written = written.trim();
    let name = match written.strip_prefix("descriptors[0]") {
        None => written,
        Some(rest) => match rest.strip_prefix('.') {
            Some(name) => name,
            None => {
                let inner = rest.strip_prefix('[')?.strip_suffix(']')?;
                let quote = inner.chars().next().filter(|quote| ['\'', '"'].contains(quote))?;
                inner.strip_prefix(quote)?.strip_suffix(quote)?
            }
        },
    };
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    (!name.is_empty() && name.chars().all(is_name)).then(|| name.to_owned())
}

/// Writes a namespace: a route and a policy with all of its limits.
fn write(
    text: &mut String,
    namespace: &str,
    (limits, left_out): (&[Limit], &[String]),
    names: &mut HashSet<String>,
) {
    for why in left_out {
        let _ = writeln!(text, "\n# left out: {why}");
    }
    if limits.is_empty() {
        return;
    }
    let policy = unique(&plain(namespace, "limit"), names);
    let _ = write!(
        text,
        "\n[[routes]]\nname = \"{policy}\"\ndomain = {}\npolicy = \"{policy}\"\n\
         \n[policies.{policy}]\nuse = \"keyed\"\n",
        string(namespace),
    );
    let mut taken = HashSet::new();
    for limit in limits {
        let Limit { quota, seconds, name, conditions, variables } = limit;
        let made = variables.join(".");
        let name = unique(&plain(name.as_deref().unwrap_or(&made), "limit"), &mut taken);
        let _ = write!(
            text,
            "\n[[policies.{policy}.config.limits]]\nname = \"{name}\"\n\
             algorithm = \"fixed_window\"\nquota = {quota}\nperiod = \"{seconds}s\"\n",
        );
        let parts: Vec<String> =
            variables.iter().map(|name| format!("{{rls.entry.{name}}}")).collect();
        match parts.is_empty() {
            // One counter for all.
            true => text.push_str("key = \"all\"\n"),
            false => {
                let _ = writeln!(text, "key = {}\nmissing = \"skip\"", string(&parts.join("/")));
            }
        }
        let all: Vec<String> = conditions
            .iter()
            .map(|(name, value)| format!("\"rls.entry.{name}\" = [{}]", string(value)))
            .collect();
        if !all.is_empty() {
            let _ = writeln!(text, "when = {{ {} }}", all.join(", "));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Names;
    use super::*;

    fn imported(yaml: &str) -> Imported {
        Imported::of(yaml, &mut Names::default())
    }

    #[test]
    fn a_limit_counts_by_its_variables_where_its_conditions_hold() {
        let out = imported(
            "
- namespace: test_namespace
  max_value: 10
  seconds: 60
  conditions:
    - \"descriptors[0]['req.method'] == 'GET'\"
    - 'path == \"/a\"'
  variables: ['descriptors[0].user_id', app]
- { namespace: test_namespace, max_value: 5, seconds: 30, name: All of it }
",
        );
        assert_eq!((&out.wrong[..], &out.left_out[..]), (&[][..], &[][..]));
        for line in [
            "domain = \"test_namespace\"",
            "name = \"user_id.app\"",
            "quota = 10",
            "period = \"60s\"",
            "key = \"{rls.entry.user_id}/{rls.entry.app}\"",
            "missing = \"skip\"",
            "when = { \"rls.entry.req.method\" = [\"GET\"], \"rls.entry.path\" = [\"/a\"] }",
            "name = \"all-of-it\"",
            "key = \"all\"",
        ] {
            assert!(out.text.lines().any(|own| own == line), "{line}: {}", out.text);
        }
    }

    #[test]
    fn what_can_not_be_said_is_left_out_with_its_limit() {
        for condition in [
            "path != 'a'",
            "path.startsWith('/a')",
            "descriptors[1].path == 'a'",
            "path == 'a' && x == 'b'",
            "path == ''",
        ] {
            let yaml = format!(
                "[{{namespace: n, max_value: 1, seconds: 1, conditions: [\"{condition}\"]}}, \
                 {{namespace: n, max_value: 2, seconds: 1}}]"
            );
            let out = imported(&yaml);
            assert_eq!((out.wrong.len(), out.left_out.len()), (0, 1), "{condition}: {}", out.text);
            assert!(out.left_out[0].starts_with("[0].conditions: "), "{:?}", out.left_out);
            assert!(!out.text.contains("quota = 1\n") && out.text.contains("# left out: [0]"));
        }
        let odd = imported("[{namespace: n, max_value: 1, seconds: 1, variables: ['size(x)']}]");
        assert!(odd.left_out[0].contains("size(x)"), "{odd:?}");
        assert!(odd.wrong[0].starts_with("nothing is left"), "{odd:?}");
    }

    #[test]
    fn what_is_none_of_limitadors_is_named() {
        for (yaml, expected) in [
            ("[]", "found no limits"),
            ("[{max_value: 1}]", "[0]: found no `namespace`"),
            ("[{namespace: n, seconds: 1}]", "[0].max_value: found \"\""),
            ("[{namespace: n, max_value: -1, seconds: 1}]", "[0].max_value: found \"-1\""),
            ("[{namespace: n, max_value: 1, seconds: x}]", "[0].seconds: found \"x\""),
            ("[{namespace: n, max_value: 1, seconds: 1, variables: a}]", "[0].variables: found no"),
        ] {
            let out = imported(yaml);
            assert!(out.wrong[0].starts_with(expected), "{yaml}: {:?}", out.wrong);
        }
    }
}
