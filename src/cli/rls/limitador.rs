//! The configuration of Limitador: a list of limits, each with conditions and variables over the
//! entries of a descriptor. Knows nothing of how descriptors are decided.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt::Write as _;
use std::ops::RangeInclusive;

use super::Imported;
use super::yaml::Node;
use crate::cli::written::{comment, plain, section, string, unique};

/// The settings of a limit.
const LIMIT: [&str; 7] =
    ["namespace", "max_value", "seconds", "conditions", "variables", "name", "id"];
/// What a limit of Weir may have: its quota, the seconds of its period, and how many there are in a
/// policy.
const QUOTAS: RangeInclusive<u64> = 0..=4_503_599_627_370_496;
const SECONDS: RangeInclusive<u64> = 1..=400 * 86_400;
const LIMITS_MAX: usize = 16;
/// What is no variable of an expression: words of its language, and what Limitador itself names so.
const WORDS: [&str; 24] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
    "limit",
    "descriptors",
    "_",
];

/// A limit whose conditions and variables can be said in Weir.
struct Limit {
    quota: u64,
    seconds: u64,
    name: Option<String>,
    /// Entries and their values.
    conditions: Vec<(String, String)>,
    variables: Vec<String>,
}

/// What Limitador tells limits of a namespace apart by: the seconds, and the conditions and
/// variables as they are written.
type Identity = (u64, BTreeSet<String>, BTreeSet<String>);

/// The limits of a namespace.
#[derive(Default)]
struct Namespace {
    limits: Vec<Limit>,
    left_out: Vec<String>,
    /// Those so far, with their places in the file.
    known: HashMap<Identity, usize>,
}

/// Why a limit is not written.
enum Skipped {
    /// It is none of Limitador's, or one whose numbers no limit of Weir has.
    Wrong(String),
    /// It is more than can be said.
    LeftOut(String),
}

/// Reads a file.
pub(super) fn read(limits: &[Node], names: &mut HashSet<String>) -> Imported {
    let mut out = Imported::default();
    let mut namespaces: BTreeMap<String, Namespace> = BTreeMap::new();
    if limits.is_empty() {
        out.wrong.push("found no limits, expected one or more".to_owned());
    }
    for (index, item) in limits.iter().enumerate() {
        let at = format!("line {}: [{index}]", item.line);
        let namespace = item.get("namespace").and_then(Node::text);
        let namespace = match namespace {
            None | Some("") => {
                out.wrong.push(format!("{at}: found no `namespace`, expected one"));
                continue;
            }
            Some("*") => {
                out.wrong.push(format!("{at}.namespace: found \"*\", which is any domain in Weir"));
                continue;
            }
            Some(namespace) => namespace,
        };
        let known = namespaces.entry(namespace.to_owned()).or_default();
        match known.add(index, item) {
            Ok(()) => {}
            Err(Skipped::Wrong(why)) => out.wrong.push(format!("{at}{why}")),
            Err(Skipped::LeftOut(why)) => {
                let why = format!("{at}{why}");
                known.left_out.push(why.clone());
                out.left_out.push(why);
            }
        }
    }
    if !out.left_out.is_empty() && namespaces.values().all(|known| known.limits.is_empty()) {
        out.wrong.push("nothing is left: none of the limits can be said in Weir".to_owned());
    }
    for (namespace, known) in &namespaces {
        write(&mut out.text, namespace, known, names);
    }
    out
}

impl Namespace {
    /// Adds the limit at a place of the file.
    fn add(&mut self, index: usize, item: &Node) -> Result<(), Skipped> {
        let (limit, identity) = limit(item)?;
        if let Some(first) = self.known.get(&identity) {
            return Err(Skipped::LeftOut(format!(
                ": the same limit as [{first}] with another `max_value` or name: Limitador counts by \
                 the first one only"
            )));
        }
        if self.limits.len() >= LIMITS_MAX {
            return Err(Skipped::Wrong(format!(
                ".namespace: found more than {LIMITS_MAX} limits of one namespace, expected at most \
                 {LIMITS_MAX}: so many a policy of Weir has"
            )));
        }
        self.known.insert(identity, index);
        self.limits.push(limit);
        Ok(())
    }
}

/// Reads a limit.
fn limit(item: &Node) -> Result<(Limit, Identity), Skipped> {
    let Some(members) = item.members() else {
        return Err(Skipped::Wrong(format!(": found {}, expected a table", item.found())));
    };
    for (key, _) in members {
        let key = key.text().unwrap_or_default();
        if !LIMIT.contains(&key) {
            return Err(Skipped::LeftOut(format!(
                ".{key}: a setting that is not known; the limit with it"
            )));
        }
    }
    let name = match item.get("name").map(|name| (name.text(), name.found())) {
        Some((None, found)) => {
            return Err(Skipped::Wrong(format!(".name: found {found}, expected a text")));
        }
        Some((Some(name), _)) => Some(plain(name, "limit")),
        None => None,
    };
    let (written, variables) = (texts(item, "conditions")?, texts(item, "variables")?);
    let mut limit = Limit {
        quota: number(item, "max_value", QUOTAS)?,
        seconds: number(item, "seconds", SECONDS)?,
        name,
        conditions: Vec::new(),
        variables: Vec::new(),
    };
    let identity =
        (limit.seconds, written.iter().cloned().collect(), variables.iter().cloned().collect());
    for written in written {
        match condition(&written) {
            Some((_, value)) if value == "*" || value.starts_with("sha256:") => {
                return Err(Skipped::LeftOut(format!(
                    ".conditions: {written:?}: the value {value:?} stands for others in Weir; the limit with it"
                )));
            }
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
    for written in variables {
        match entry(&written) {
            Some(name) if limit.variables.contains(&name) => {}
            Some(name) => limit.variables.push(name),
            None => {
                return Err(Skipped::LeftOut(format!(
                    ".variables: {written:?} is no name of an entry; the limit with it"
                )));
            }
        }
    }
    Ok((limit, identity))
}

/// A number of a limit.
fn number(item: &Node, name: &str, range: RangeInclusive<u64>) -> Result<u64, Skipped> {
    let node = item.get(name);
    let number = node.and_then(Node::whole).filter(|number| range.contains(number));
    number.ok_or_else(|| {
        let found = node.map_or_else(|| "nothing".to_owned(), Node::found);
        let (least, most) = (range.start(), range.end());
        Skipped::Wrong(format!(
            ".{name}: found {found}, expected a whole number from {least} to {most}"
        ))
    })
}

/// A list of texts; empty if it isn't there.
fn texts(item: &Node, name: &str) -> Result<Vec<String>, Skipped> {
    let Some(node) = item.get(name) else { return Ok(Vec::new()) };
    let Some(items) = node.list() else {
        let found = node.found();
        return Err(Skipped::Wrong(format!(".{name}: found {found}, expected a list")));
    };
    let text = |(index, item): (usize, &Node)| {
        item.text().map(str::to_owned).ok_or_else(|| {
            let found = item.found();
            Skipped::Wrong(format!(".{name}[{index}]: found {found}, expected a text"))
        })
    };
    items.iter().enumerate().map(text).collect()
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
    let is_variable = |name: &str| {
        !name.starts_with(|letter: char| letter.is_ascii_digit())
            && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
    };
    let (name, is_name) = match written.strip_prefix("descriptors[0]") {
        None => (written, is_variable(written) && !WORDS.contains(&written)),
        Some(rest) => match rest.strip_prefix('.') {
            // `a-b` is a difference, and `a.b` a field of a value.
            Some(name) => (name, is_variable(name)),
            None => {
                let inner = rest.strip_prefix('[')?.strip_suffix(']')?;
                let quote = inner.chars().next().filter(|quote| ['\'', '"'].contains(quote))?;
                let name = inner.strip_prefix(quote)?.strip_suffix(quote)?;
                let fits = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
                (name, name.chars().all(fits))
            }
        },
    };
    (is_name && !name.is_empty()).then(|| name.to_owned())
}

/// Writes a namespace: a route and a policy with all of its limits.
fn write(text: &mut String, namespace: &str, known: &Namespace, names: &mut HashSet<String>) {
    for why in &known.left_out {
        let _ = writeln!(text, "\n# left out: {}", comment(why));
    }
    if known.limits.is_empty() {
        return;
    }
    let policy = unique(&section(namespace, "limit"), names);
    let _ = write!(
        text,
        "\n[[routes]]\nname = \"{policy}\"\ndomain = {}\npolicy = \"{policy}\"\n\
         \n[policies.{policy}]\nuse = \"keyed\"\n",
        string(namespace),
    );
    let mut taken = HashSet::new();
    for limit in &known.limits {
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
            // The entries are there, by `when`, but may be empty: Limitador counts these, too.
            false => {
                let _ = writeln!(text, "key = {}\nmissing = \"shared\"", string(&parts.join("/")));
            }
        }
        let given = conditions.iter().map(|(name, value)| (name, value.as_str()));
        let is_free = |name: &&String| conditions.iter().all(|(other, _)| other != *name);
        let any = variables.iter().filter(is_free).map(|name| (name, "*"));
        let all: Vec<String> = given
            .chain(any)
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
            "missing = \"shared\"",
            "when = { \"rls.entry.req.method\" = [\"GET\"], \"rls.entry.path\" = [\"/a\"], \"rls.entry.user_id\" = [\"*\"], \"rls.entry.app\" = [\"*\"] }",
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
            "path == '*'",
            "path == 'sha256:00'",
            "true == 'a'",
            "a.b == 'a'",
            "descriptors[0].a-b == 'a'",
            "limit == 'a'",
        ] {
            let yaml = format!(
                "[{{namespace: n, max_value: 1, seconds: 1, conditions: [\"{condition}\"]}}, \
                 {{namespace: n, max_value: 2, seconds: 1}}]"
            );
            let out = imported(&yaml);
            assert_eq!((out.wrong.len(), out.left_out.len()), (0, 1), "{condition}: {}", out.text);
            let start = "line 1: [0].conditions: ";
            assert!(out.left_out[0].starts_with(start), "{:?}", out.left_out);
            assert!(!out.text.contains("quota = 1\n"), "{}", out.text);
            assert!(out.text.contains(&format!("# left out: {start}")), "{}", out.text);
        }
        let odd = imported("[{namespace: n, max_value: 1, seconds: 1, variables: ['size(x)']}]");
        assert!(odd.left_out[0].contains("size(x)"), "{odd:?}");
        assert!(odd.wrong[0].starts_with("nothing is left"), "{odd:?}");
        let number =
            imported("[{namespace: n, max_value: 1, seconds: 1, variables: ['5', 'true']}]");
        assert!(number.left_out[0].contains("\"5\" is no name of an entry"), "{number:?}");
        let odd = imported("[{namespace: n, max_value: 1, seconds: 1, \"a\\rb\\u007f\": 1}]");
        assert!(odd.text.contains(".a b : a setting that is not known"), "{:?}", odd.text);
    }

    #[test]
    fn what_is_none_of_limitadors_is_named() {
        for (yaml, expected) in [
            ("[]", "found no limits"),
            ("[{max_value: 1}]", "[0]: found no `namespace`"),
            ("[{namespace: n, seconds: 1}]", "[0].max_value: found nothing"),
            ("[{namespace: '*', max_value: 1, seconds: 1}]", "[0].namespace: found \"*\""),
            (
                "[{namespace: n, max_value: 4503599627370497, seconds: 1}]",
                "[0].max_value: found \"4503599627370497\", expected a whole number from 0 to 4503599627370496",
            ),
            ("[{namespace: n, max_value: 1, seconds: 0}]", "[0].seconds: found \"0\""),
            (
                "[{namespace: n, max_value: 1, seconds: 34560001}]",
                "[0].seconds: found \"34560001\", expected a whole number from 1 to 34560000",
            ),
            (
                "[{namespace: n, max_value: 1, seconds: 1, conditions: ['a == \"b\"', {c: d}]}]",
                "[0].conditions[1]: found a table, expected a text",
            ),
            (
                "[{namespace: n, max_value: 1, seconds: 1, variables: [null]}]",
                "[0].variables[0]: found \"null\", expected a text",
            ),
            ("[x]", "[0]: found no `namespace`"),
            ("[{namespace: n, max_value: -1, seconds: 1}]", "[0].max_value: found \"-1\""),
            ("[{namespace: n, max_value: 1, seconds: x}]", "[0].seconds: found \"x\""),
            (
                "[{namespace: n, max_value: 1, seconds: 1, variables: a}]",
                "[0].variables: found \"a\"",
            ),
        ] {
            let out = imported(yaml);
            let found = out.wrong[0].trim_start_matches("line 1: ");
            assert!(found.starts_with(expected), "{yaml}: {found}");
        }
    }

    #[test]
    fn a_namespace_with_dots_is_a_policy_without() {
        let out = imported("[{namespace: example.org, max_value: 1, seconds: 1}]");
        assert!(out.text.contains("domain = \"example.org\"\npolicy = \"example-org\""));
        assert!(out.text.contains("[policies.example-org]\n"), "{}", out.text);
        assert!(toml::from_str::<toml::Table>(&out.text).is_ok(), "{}", out.text);
    }

    #[test]
    fn limits_that_differ_by_their_value_only_are_one() {
        let limit = |value: u32, more: &str| {
            format!("{{namespace: n, max_value: {value}, seconds: 1{more}}}")
        };
        let on = ", conditions: [\"a == 'b'\"]";
        let all = [limit(1, ""), limit(2, ", name: x"), limit(3, on), limit(4, on)].join(", ");
        let out = imported(&format!("[{all}]"));
        let quotas: Vec<_> = out.text.lines().filter(|line| line.starts_with("quota")).collect();
        assert_eq!(quotas, ["quota = 1", "quota = 3"]);
        assert!(out.left_out[0].contains("[1]: the same limit as [0]"), "{:?}", out.left_out);
        assert!(out.left_out[1].contains("[3]: the same limit as [2]"), "{:?}", out.left_out);
    }

    #[test]
    fn a_namespace_has_as_many_limits_as_a_policy() {
        let limits = |count: u32| {
            let limit = |seconds| format!("- {{namespace: n, max_value: 1, seconds: {seconds}}}\n");
            imported(&(1..=count).map(limit).collect::<String>())
        };
        assert_eq!(limits(16).wrong.len(), 0);
        let out = limits(17);
        assert!(out.wrong[0].starts_with("line 17: [16].namespace: found more than 16 limits"));
    }
}
