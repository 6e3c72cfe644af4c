//! `map` and `geo`, as far as keys of limits need them: nginx counts no request whose key is empty,
//! so a variable of theirs says which requests a limit is about.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use super::Notes;
use super::keys::{Key, fact, is_address_of_proxy, key};
use crate::cli::import::directives::Directive;
use crate::cli::written::string;

/// Maps of maps of maps.
const DEPTH_MAX: usize = 8;
/// Maximum number of entries of a `map` or `geo` that is read.
const ENTRIES_MAX: usize = 10_000;
/// Maximum number of values of a condition of Weir's.
const VALUES_MAX: usize = 1_000;
/// The fact of a client's address.
const ADDRESS: &str = "client_ip";

/// The variables that `map` and `geo` set, by their names in lower case.
#[derive(Debug, Default)]
pub(super) struct Maps<'a> {
    all: BTreeMap<String, &'a Directive>,
    used: BTreeSet<String>,
    /// What was found for a variable and a server.
    known: BTreeMap<(String, String), Found>,
}

/// A key and the requests that it is for, or why Weir can't count like that.
type Found = Result<(Key, Option<Selection>), String>;

/// The requests that a limit is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Selection {
    /// All requests but these.
    is_except: bool,
    fact: String,
    values: Vec<String>,
}

/// The value of a variable for each value of a fact.
struct Cases {
    fact: String,
    /// What the fact is, and what the variable is then.
    cases: Vec<(String, String)>,
    default: String,
    /// The cases are networks.
    is_geo: bool,
    /// The fact is the client's address, and the variable a field in which a proxy names it.
    names_proxy: bool,
}

impl<'a> Maps<'a> {
    pub(super) fn read(http: &'a [Directive]) -> Self {
        let variable = |directive: &'a Directive| {
            let is_map = ["map", "geo"].contains(&directive.name.as_str());
            let name = variable(directive.words.last().filter(|_| is_map)?)?;
            Some((name.to_ascii_lowercase(), directive))
        };
        Self { all: http.iter().filter_map(variable).collect(), ..Self::default() }
    }

    /// The key of a limit, and the requests that it is about; `None` if the key has no such
    /// variable.
    ///
    /// # Errors
    /// Why Weir can't count like that.
    pub(super) fn key(&mut self, written: &str, server: &str) -> Option<Found> {
        let name = variable(written)?.to_ascii_lowercase();
        if !self.all.contains_key(&name) {
            return None;
        }
        let place = (name, server.to_owned());
        if let Some(found) = self.known.get(&place) {
            return Some(found.clone());
        }
        let found = self.cases(&place.0, 0).and_then(|cases| cases.key(server));
        self.known.insert(place, found.clone());
        Some(found)
    }

    /// What `$name` is, for each value of the fact that it depends on.
    fn cases(&mut self, name: &str, depth: usize) -> Result<Cases, String> {
        let lower = name.to_ascii_lowercase();
        let Some(directive) = self.all.get(&lower).copied() else {
            let fact = fact(name).ok_or_else(|| format!("Weir has no fact for ${name}"))?;
            if lower == "binary_remote_addr" {
                return Err(format!("${name} is no text: no value is like it in nginx"));
            }
            return Ok(Cases {
                fact: fact.trim_matches(['{', '}']).to_owned(),
                cases: Vec::new(),
                default: String::new(),
                is_geo: false,
                names_proxy: is_address_of_proxy(&lower),
            });
        };
        if depth > DEPTH_MAX {
            return Err(format!("${name} depends on itself, or on more than {DEPTH_MAX} others"));
        }
        if directive.block().len() > ENTRIES_MAX {
            return Err(format!("${name} has more than {ENTRIES_MAX} entries"));
        }
        self.used.insert(lower);
        let source = match directive.words.as_slice() {
            [_] if directive.name == "geo" => "remote_addr",
            [source, _] => variable(source)
                .ok_or_else(|| format!("`{source}` of ${name} is more than one variable"))?,
            _ => return Err(format!("`{}` is not read", directive.text())),
        };
        let inner = self.cases(source, depth + 1)?;
        if directive.name == "geo" {
            return match inner.fact == ADDRESS && inner.cases.is_empty() {
                true => networks(directive, inner.names_proxy),
                false => Err(format!("${source} is no address")),
            };
        }
        let Table { cases, default } = table(directive)?;
        if !self.all.contains_key(&source.to_ascii_lowercase()) {
            return Ok(Cases { cases, default, ..inner });
        }
        // nginx compares in any case.
        let results: BTreeMap<String, &String> =
            cases.iter().rev().map(|(of, result)| (of.to_ascii_lowercase(), result)).collect();
        let of = |value: &str| {
            if value.contains('$') {
                return Err(format!("${source} is itself of variables"));
            }
            let found = results.get(&value.to_ascii_lowercase());
            Ok(found.map_or(&default, |result| *result).clone())
        };
        let mut all = Vec::with_capacity(inner.cases.len());
        for (value, result) in &inner.cases {
            all.push((value.clone(), of(result)?));
        }
        let default = of(&inner.default)?;
        Ok(Cases { cases: all, default, ..inner })
    }

    /// Notes those that no limit needs.
    pub(super) fn note_unused(&self, notes: &mut Notes) {
        let unused = self.all.iter().filter(|(name, _)| !self.used.contains(*name));
        unused.for_each(|(_, directive)| notes.add(directive, "left out"));
    }
}

impl Cases {
    fn key(mut self, server: &str) -> Result<(Key, Option<Selection>), String> {
        let all = || self.cases.iter().map(|(_, result)| result).chain([&self.default]);
        let written: BTreeSet<&String> = all().filter(|result| !result.is_empty()).collect();
        let mut keys: Vec<Key> = Vec::new();
        for written in written {
            let key = key(written, server)?;
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        let own = format!("{{{}}}", self.fact);
        let key = match keys.as_slice() {
            [] => return Err("its key is always empty".to_owned()),
            [key] => Key { names_proxy: key.names_proxy || self.names_proxy, ..key.clone() },
            // A field, or the address without one: what `missing` is for.
            [_, _] if self.is_absent_alone() => {
                let (field, otherwise) = (key(&self.default, server)?, key(self.absent(), server)?);
                if field.text != own || otherwise.text != format!("{{{ADDRESS}}}") {
                    return Err("it counts by keys of two kinds".to_owned());
                }
                let names_proxy = field.names_proxy || otherwise.names_proxy;
                return Ok((Key { missing: "address", names_proxy, ..field }, None));
            }
            _ => return Err("it counts by keys of several kinds".to_owned()),
        };
        let is_except = !self.default.is_empty();
        // Without the field there is no key either.
        if is_except && key.text == own && key.missing == "skip" {
            self.cases.retain(|(value, result)| !(value.is_empty() && result.is_empty()));
        }
        let (mut values, mut others) = (Vec::new(), Vec::new());
        for (value, result) in &self.cases {
            let Some(value) = self.comparable(value) else { continue };
            let group = if result.is_empty() == is_except { &mut values } else { &mut others };
            if !group.contains(&value) {
                group.push(value);
            }
        }
        if values.is_empty() {
            // An address is never like such a value.
            let is_nobody = "its key is empty for all clients";
            return if is_except { Ok((key, None)) } else { Err(is_nobody.to_owned()) };
        }
        if values.len() > VALUES_MAX {
            return Err(format!("it depends on more than {VALUES_MAX} values"));
        }
        check(&self.fact, &values, &others)?;
        Ok((key, Some(Selection { is_except, fact: self.fact, values })))
    }

    /// A value as Weir writes the fact; `None` of a text that the fact never is.
    fn comparable(&self, value: &str) -> Option<String> {
        match self.fact.as_str() {
            "host" | "scheme" => Some(value.to_ascii_lowercase()),
            "method" => Some(value.to_ascii_uppercase()),
            ADDRESS if !self.is_geo => {
                // A `map` compares the address as a text.
                let address: IpAddr = value.parse().ok()?;
                value.eq_ignore_ascii_case(&address.to_string()).then(|| address.to_string())
            }
            _ => Some(value.to_owned()),
        }
    }

    /// The result without the fact, where that is the only case.
    fn absent(&self) -> &str {
        self.cases.first().map_or("", |(_, result)| result)
    }

    /// Whether the only case is that the fact is absent.
    fn is_absent_alone(&self) -> bool {
        matches!(self.cases.as_slice(), [(value, _)] if value.is_empty())
    }
}

impl Selection {
    /// As a setting of a limit.
    pub(super) fn text(&self) -> String {
        let values: Vec<String> = self.values.iter().map(|value| string(value)).collect();
        let setting = if self.is_except { "unless" } else { "when" };
        match values.as_slice() {
            [value] => format!(", {setting}.{} = {value}", self.fact),
            _ => format!(", {setting}.{} = [{}]", self.fact, values.join(", ")),
        }
    }

    /// Whether Weir tells values apart that nginx does not.
    pub(super) fn has_cases(&self) -> bool {
        let has_letters = |value: &String| value.chars().any(|c| c.is_ascii_alphabetic());
        !["client_ip", "method", "scheme", "host", "path"].contains(&&*self.fact)
            && self.values.iter().any(has_letters)
    }
}

/// Whether conditions of Weir's mean what these values say. `others` are those of the same variable
/// that are not meant.
fn check(fact: &str, values: &[String], others: &[String]) -> Result<(), String> {
    if fact == ADDRESS {
        // The narrowest network decides in nginx, any of them in Weir.
        let network = |value: &String| value.parse::<IpNet>().ok();
        let all: Vec<IpNet> = values.iter().filter_map(network).collect();
        for other in others.iter().filter_map(network) {
            if let Some(around) = all.iter().find(|one| one.contains(&other)) {
                return Err(format!("{other} is excepted from {around}"));
            }
        }
    }
    for value in values {
        let is_special = value == "*" || value.starts_with("sha256:") || value.ends_with("/*");
        if value.is_empty() {
            return Err(format!("no condition of Weir's is that {fact} is absent"));
        } else if is_special {
            return Err(format!("{value:?} means something else in Weir"));
        }
    }
    Ok(())
}

/// A block of values.
struct Table {
    cases: Vec<(String, String)>,
    default: String,
}

fn table(map: &Directive) -> Result<Table, String> {
    let (mut cases, mut default) = (Vec::new(), String::new());
    let is_hosts = map.block().iter().any(|entry| entry.name == "hostnames");
    for entry in map.block() {
        if is_empty_include(entry) {
            continue;
        }
        let result = entry.word(0).to_owned();
        match entry.name.as_str() {
            "hostnames" | "volatile" if entry.words.is_empty() => {}
            _ if entry.words.len() != 1 || entry.block.is_some() => {
                return Err(format!("{}: expected a value and what it stands for", entry.place));
            }
            "default" => default = result,
            value if value.starts_with('~') => {
                return Err(format!("{}: limits of Weir know no expressions", entry.place));
            }
            value if is_hosts && (value.starts_with(['*', '.']) || value.ends_with('*')) => {
                return Err(format!("{}: limits of Weir know no names with stars", entry.place));
            }
            value => {
                let value = value.strip_prefix('\\').unwrap_or(value);
                cases.push((value.to_owned(), result));
            }
        }
    }
    Ok(Table { cases, default })
}

fn networks(geo: &Directive, names_proxy: bool) -> Result<Cases, String> {
    let (mut cases, mut default) = (BTreeMap::new(), String::new());
    for entry in geo.block().iter().filter(|entry| !is_empty_include(entry)) {
        let result = entry.word(0).to_owned();
        let address = entry.name.parse::<IpAddr>().map(IpNet::from);
        let network = entry.name.parse::<IpNet>().ok().or(address.ok());
        let is_mapped =
            matches!(network, Some(IpNet::V6(it)) if it.addr().to_ipv4_mapped().is_some());
        match (entry.name.as_str(), network) {
            _ if entry.words.len() > 1 => {
                return Err(format!("{}: expected a network and one value", entry.place));
            }
            ("default", _) => default = result,
            // The last of several counts.
            (_, Some(network)) if !is_mapped => drop(cases.insert(network.trunc(), result)),
            (name, _) => return Err(format!("{}: `{name}` is no network", entry.place)),
        }
    }
    let cases = cases.into_iter().map(|(network, result)| (network.to_string(), result)).collect();
    Ok(Cases { fact: ADDRESS.to_owned(), cases, default, is_geo: true, names_proxy })
}

/// Whether it is an `include` of files that are not there.
fn is_empty_include(entry: &Directive) -> bool {
    entry.name == "include" && entry.words.iter().any(|word| word.ends_with("(no file)"))
}

/// The name of `$name` or `${name}`.
fn variable(word: &str) -> Option<&str> {
    let name = word.strip_prefix('$')?;
    let name = name.strip_prefix('{').and_then(|inner| inner.strip_suffix('}')).unwrap_or(name);
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    (!name.is_empty() && name.chars().all(is_part)).then_some(name)
}
