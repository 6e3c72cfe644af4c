//! YAML as `weir rls import` reads it: each scalar keeps the text that is written and its line,
//! since `007` is another value than `7` there. Knows nothing of limits.

use std::collections::{HashMap, HashSet};

use yaml_rust2::Event;
use yaml_rust2::parser::{Parser, Tag};
use yaml_rust2::scanner::TScalarStyle;

/// How deep lists and tables may be nested.
const DEPTH_MAX: usize = 100;
/// Values of a file at most, those included that aliases repeat.
const NODES_MAX: usize = 1_000_000;
/// The key whose value is one more table, or a list of them, with members of this one.
const MERGE: &str = "<<";
const CORE_TAGS: &str = "tag:yaml.org,2002:";

/// A value, and the line on which it begins.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) line: usize,
    content: Content,
}

#[derive(Clone, Debug)]
enum Content {
    /// `is_plain`: without quotes or a tag, so that it may be a number, a truth value or nothing.
    Scalar {
        text: String,
        is_plain: bool,
    },
    List(Vec<Node>),
    Table(Vec<(Node, Node)>),
}

/// Reads all documents of a file.
///
/// # Errors
/// What is wrong, with its line.
pub(super) fn load(yaml: &str) -> Result<Vec<Node>, String> {
    // Some editors write a byte order mark.
    let yaml = yaml.strip_prefix('\u{feff}').unwrap_or(yaml);
    let mut parser = Parser::new(yaml.chars());
    let mut loader = Loader::default();
    loop {
        let (event, mark) = parser.next_token().map_err(|error| error.to_string())?;
        if event == Event::StreamEnd {
            return Ok(loader.documents);
        }
        let line = mark.line();
        loader.take(event, line).map_err(|wrong| format!("line {line}: {wrong}"))?;
    }
}

impl Node {
    /// The member with this key; none if its value is nothing, either.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        let mut members = self.members()?.iter();
        let (_, value) = members.find(|(own, _)| own.text() == Some(key))?;
        (!value.is_null()).then_some(value)
    }

    /// The text of a scalar, as it is written.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.content {
            Content::Scalar { text, .. } if !self.is_null() => Some(text),
            _ => None,
        }
    }

    pub(super) fn list(&self) -> Option<&[Self]> {
        match &self.content {
            Content::List(items) => Some(items),
            _ => None,
        }
    }

    pub(super) fn members(&self) -> Option<&[(Self, Self)]> {
        match &self.content {
            Content::Table(members) => Some(members),
            _ => None,
        }
    }

    /// A truth value, as YAML 1.1 spells it.
    pub(super) fn truth(&self) -> Option<bool> {
        match self.plain()? {
            "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
                Some(true)
            }
            "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off"
            | "OFF" => Some(false),
            _ => None,
        }
    }

    /// A whole number. `010` is none: it is 8 to some readers, and 10 to others.
    pub(super) fn whole(&self) -> Option<u64> {
        let text = self.plain()?.replace('_', "");
        let digits = text.strip_prefix('+').unwrap_or(&text);
        let radix = [("0x", 16), ("0o", 8), ("0b", 2)];
        let other =
            radix.iter().find_map(|(start, radix)| Some((digits.strip_prefix(start)?, *radix)));
        let (digits, radix) = other.unwrap_or((digits, 10));
        let is_plain = radix != 10 || digits == "0" || !digits.starts_with('0');
        let is_number = is_plain && digits.chars().all(|digit| digit.is_digit(radix));
        is_number.then(|| u64::from_str_radix(digits, radix).ok()).flatten()
    }

    /// What it is, for messages.
    pub(super) fn found(&self) -> String {
        match &self.content {
            Content::Scalar { text, .. } => format!("{text:?}"),
            Content::List(_) => "a list".to_owned(),
            Content::Table(_) => "a table".to_owned(),
        }
    }

    /// With the members that merge keys (`<<: *other`) bring.
    ///
    /// # Errors
    /// What is merged is no table, or it is written after a key that it has as well: which of the
    /// two counts differs between readers.
    pub(super) fn merged(self) -> Result<Self, String> {
        let line = self.line;
        let content = match self.content {
            Content::List(items) => {
                Content::List(items.into_iter().map(Self::merged).collect::<Result<_, _>>()?)
            }
            Content::Table(members) => Content::Table(merged(members)?),
            scalar @ Content::Scalar { .. } => scalar,
        };
        Ok(Self { line, content })
    }

    /// Whether it is a scalar without quotes or a tag.
    pub(super) fn is_plain(&self) -> bool {
        self.plain().is_some()
    }

    fn plain(&self) -> Option<&str> {
        match &self.content {
            Content::Scalar { text, is_plain: true } => Some(text),
            _ => None,
        }
    }

    fn is_null(&self) -> bool {
        self.plain().is_some_and(|text| ["", "~", "null", "Null", "NULL"].contains(&text))
    }

    /// How many values it has, itself included.
    fn count(&self) -> usize {
        let within = match &self.content {
            Content::Scalar { .. } => 0,
            Content::List(items) => items.iter().map(Self::count).sum(),
            Content::Table(members) => {
                members.iter().map(|(key, value)| key.count() + value.count()).sum()
            }
        };
        within + 1
    }
}

/// Members with those that merge keys bring. Own ones go before them, and of several tables the
/// first.
fn merged(members: Vec<(Node, Node)>) -> Result<Vec<(Node, Node)>, String> {
    let (mut all, mut brought) = (Vec::new(), Vec::new());
    for (key, value) in members {
        if key.plain() != Some(MERGE) {
            all.push((key, value.merged()?));
            continue;
        }
        let line = key.line;
        let tables = match value.content {
            Content::List(items) => items,
            _ => vec![value],
        };
        for table in tables {
            let Content::Table(members) = table.merged()?.content else {
                return Err(format!("line {line}: `<<`: found no table, expected one or several"));
            };
            let is_before =
                |(own, _): &&(Node, Node)| members.iter().any(|(key, _)| key.text() == own.text());
            if let Some((own, _)) = all.iter().find(is_before) {
                let own = own.found();
                return Err(format!(
                    "line {line}: `<<` brings the key {own}, which stands before it: write `<<` first"
                ));
            }
            brought.extend(members);
        }
    }
    let mut known: HashSet<String> = all.iter().map(|(key, _)| key.found()).collect();
    all.extend(brought.into_iter().filter(|(key, _)| known.insert(key.found())));
    Ok(all)
}

/// Makes documents of what a parser says, one event after another.
#[derive(Default)]
struct Loader {
    documents: Vec<Node>,
    /// Lists and tables that have not ended.
    open: Vec<Open>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
}

struct Open {
    anchor: usize,
    node: Node,
    /// A key that has no value yet.
    key: Option<Node>,
}

impl Loader {
    fn take(&mut self, event: Event, line: usize) -> Result<(), String> {
        match event {
            Event::SequenceStart(anchor, tag) => {
                self.open(anchor, tag, Node { line, content: Content::List(Vec::new()) })
            }
            Event::MappingStart(anchor, tag) => {
                self.open(anchor, tag, Node { line, content: Content::Table(Vec::new()) })
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(Open { anchor, node, .. }) => {
                    check_keys(&node)?;
                    self.insert(anchor, node)
                }
                None => Ok(()),
            },
            Event::Scalar(text, style, anchor, tag) => {
                let is_tagged = check_tag(tag, &["str", "!"])?;
                let is_plain = style == TScalarStyle::Plain && !is_tagged;
                self.insert(anchor, Node { line, content: Content::Scalar { text, is_plain } })
            }
            Event::Alias(anchor) => {
                let node = self.anchors.get(&anchor).cloned();
                self.insert(0, node.ok_or("found an alias within what it repeats")?)
            }
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart
            | Event::DocumentEnd => Ok(()),
        }
    }

    fn open(&mut self, anchor: usize, tag: Option<Tag>, node: Node) -> Result<(), String> {
        check_tag(tag, &["seq", "map", "!"])?;
        if self.open.len() >= DEPTH_MAX {
            return Err(format!("found lists and tables nested more than {DEPTH_MAX} deep"));
        }
        self.open.push(Open { anchor, node, key: None });
        Ok(())
    }

    /// Adds a whole value to what it is in.
    fn insert(&mut self, anchor: usize, node: Node) -> Result<(), String> {
        self.nodes = self.nodes.saturating_add(node.count());
        if self.nodes > NODES_MAX {
            return Err(format!("found more than {NODES_MAX} values, with what aliases repeat"));
        }
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        let Some(Open { node: parent, key, .. }) = self.open.last_mut() else {
            self.documents.push(node);
            return Ok(());
        };
        match (&mut parent.content, key.take()) {
            (Content::List(items), _) => items.push(node),
            (Content::Table(members), Some(key)) => members.push((key, node)),
            (Content::Table(_), None) => *key = Some(node),
            // Nothing is in a scalar.
            (Content::Scalar { .. }, _) => {}
        }
        Ok(())
    }
}

/// Checks that a table has each key once.
fn check_keys(node: &Node) -> Result<(), String> {
    let mut known = HashSet::new();
    for (key, _) in node.members().unwrap_or_default() {
        if let Some(text) = key.text()
            && key.plain() != Some(MERGE)
            && !known.insert(text)
        {
            return Err(format!("found the key {text:?} twice in one table"));
        }
    }
    Ok(())
}

/// Checks that a value has no tag but one of these. `true` if it has one.
fn check_tag(tag: Option<Tag>, known: &[&str]) -> Result<bool, String> {
    let Some(Tag { handle, suffix }) = tag else { return Ok(false) };
    let is_known = [CORE_TAGS, ""].contains(&handle.as_str()) && known.contains(&suffix.as_str());
    if is_known {
        return Ok(true);
    }
    Err(format!("found the tag {:?}, expected none", format!("{handle}{suffix}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(yaml: &str) -> Node {
        let mut documents = load(yaml).unwrap();
        assert_eq!(documents.len(), 1, "{yaml}");
        documents.remove(0).merged().unwrap()
    }

    #[test]
    fn scalars_keep_the_text_that_is_written() {
        for text in ["007", "0x10", "+1", "1_000", "1.50", "True", "yes", "2001-01-01", "-a"] {
            assert_eq!(root(&format!("a: {text}")).get("a").unwrap().text(), Some(text));
        }
        for nothing in ["", "~", "null", "NULL"] {
            assert!(root(&format!("{{a: {nothing}}}")).get("a").is_none(), "{nothing}");
        }
        assert_eq!(root("a: 'null'").get("a").unwrap().text(), Some("null"));
        assert_eq!(root("a: !!str 012").get("a").unwrap().text(), Some("012"));
        assert_eq!(root("\u{feff}# x\n\na: b").get("a").unwrap().line, 3);
    }

    #[test]
    fn truth_values_and_numbers_are_those_of_yaml_1_1() {
        for (text, expected) in [
            ("yes", Some(true)),
            ("On", Some(true)),
            ("y", Some(true)),
            ("TRUE", Some(true)),
            ("no", Some(false)),
            ("OFF", Some(false)),
            ("'yes'", None),
            ("1", None),
            ("yES", None),
        ] {
            assert_eq!(root(&format!("[{text}]")).list().unwrap()[0].truth(), expected, "{text}");
        }
        for (text, expected) in [
            ("0", Some(0)),
            ("12", Some(12)),
            ("+12", Some(12)),
            ("1_000", Some(1_000)),
            ("0x10", Some(16)),
            ("010", None),
            ("-1", None),
            ("'1'", None),
            ("1.0", None),
            ("0x+1", None),
            ("++1", None),
            ("18446744073709551616", None),
        ] {
            assert_eq!(root(&format!("[{text}]")).list().unwrap()[0].whole(), expected, "{text}");
        }
    }

    #[test]
    fn merge_keys_bring_members_that_are_not_there() {
        let node = root(
            "x: &x {a: 1, b: 2}\ny: &y {<<: *x, b: 3, c: 4}\nz: {<<: [*y, {a: 5, d: 6}], c: 7}",
        );
        let z = node.get("z").unwrap();
        let found = ["a", "b", "c", "d", "<<"].map(|key| z.get(key).and_then(Node::text));
        assert_eq!(found, [Some("1"), Some("3"), Some("7"), Some("6"), None]);
    }

    #[test]
    fn what_can_not_be_read_is_named_with_its_line() {
        let deep = format!("{}{}", "[".repeat(101), "]".repeat(101));
        let lines: String =
            (1..20).map(|at| format!("x{at}: &x{at} [*x{0}, *x{0}]\n", at - 1)).collect();
        let many = format!("x0: &x0 [{}]\n{lines}", "a, ".repeat(100));
        for (yaml, expected) in [
            ("a: [", "line"),
            ("a: 1\nb: 2\na: 3", "found the key \"a\" twice"),
            ("a: 1\nb: !!binary x", "line 2: found the tag"),
            ("a: !x b", "found the tag \"!x\""),
            ("a: &a [*a]", "an alias within what it repeats"),
            (&deep, "nested more than 100 deep"),
            (&many, "found more than 1000000 values"),
        ] {
            let found = load(yaml).unwrap_err();
            assert!(found.contains(expected), "{found}");
        }
        for (yaml, expected) in [
            ("a:\n  <<: 1", "line 2: `<<`: found no table"),
            ("x: &x {a: 1}\ny:\n  a: 2\n  <<: *x", "line 4: `<<` brings the key \"a\""),
        ] {
            let found = load(yaml).unwrap().remove(0).merged().unwrap_err();
            assert!(found.contains(expected), "{found}");
        }
    }
}
