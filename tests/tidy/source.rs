//! Walks the Rust sources of the crate: paths between modules, crates in the wrong module, and code
//! that asks the system for the time.
//!
//! Code under `cfg(test)` is exempt: a module's tests may use any other module. Paths inside the
//! arguments of macros are found as well, as tokens.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Span, TokenStream, TokenTree};
use syn::visit::{self, Visit};

use super::rules::{self, CRATES, MAY_USE, NARROW, PHASES};
use super::{File, Finding};

pub fn check(files: &[File]) -> Vec<Finding> {
    walk(files).0
}

/// Entries of the tables that no code needs: what is not used may not be allowed.
pub fn unused(files: &[File]) -> Vec<Finding> {
    let uses = walk(files).1;
    let finding = |why: String| Finding {
        file: "tests/tidy/rules.rs".to_owned(),
        line: 1,
        rule: "unused",
        why,
    };
    let mut findings = Vec::new();
    for (module, others) in MAY_USE {
        let unused = others.iter().filter(|other| {
            !uses.items.iter().any(|(user, used, _)| user == module && used == *other)
        });
        findings.extend(unused.map(|other| finding(format!("`{module}` does not use `{other}`"))));
    }
    for (module, other, items) in NARROW {
        let unused = items.iter().filter(|item| {
            let used = ((*module).to_owned(), (*other).to_owned(), (**item).to_owned());
            !uses.items.contains(&used)
        });
        let why = |item| format!("`{module}` does not use `{other}::{item}`");
        findings.extend(unused.map(|item| finding(why(item))));
    }
    for rule in CRATES {
        let of_rule =
            || uses.crates.iter().filter(|(name, _)| rule.crates.contains(&name.as_str()));
        let names = rule.crates.iter().filter(|name| of_rule().all(|(used, _)| used != *name));
        findings.extend(names.map(|name| finding(format!("no module uses the crate `{name}`"))));
        let places = rule.to.iter().filter(|to| of_rule().all(|(_, path)| !path.starts_with(*to)));
        let crates = rule.crates.join("` or `");
        findings.extend(places.map(|to| finding(format!("`{to}` does not use `{crates}`"))));
    }
    findings
}

/// What the sources use: items of other modules as (user, used, item), and the crates of the table,
/// each with the path that uses it.
#[derive(Default)]
struct Uses {
    items: BTreeSet<(String, String, String)>,
    crates: BTreeSet<(String, String)>,
    /// The module of a file, from the crate's top, and the path from there that it names.
    paths: BTreeSet<(Vec<String>, Vec<String>)>,
}

fn walk(files: &[File]) -> (Vec<Finding>, Uses) {
    let mut uses = Uses::default();
    let mut findings = Vec::new();
    let mut parsed = Vec::new();
    for file in files {
        match syn::parse_file(&file.text) {
            Ok(tree) => parsed.push((file, tree)),
            Err(error) => findings.push(Finding {
                file: file.path.clone(),
                line: error.span().start().line,
                rule: "parse",
                why: error.to_string(),
            }),
        }
    }
    let test_only: Vec<String> =
        parsed.iter().flat_map(|(file, tree)| test_modules(&file.path, tree)).collect();
    for (file, tree) in &parsed {
        let exempt = test_only.iter().any(|stem| {
            file.path == format!("{stem}.rs") || file.path.starts_with(&format!("{stem}/"))
        });
        if !exempt {
            let mut walker = Walker::new(&file.path, tree);
            walker.visit_file(tree);
            findings.extend(walker.findings);
            uses.items.extend(walker.uses.items);
            uses.paths.extend(walker.uses.paths);
            uses.crates.extend(walker.uses.crates);
        }
    }
    (findings, uses)
}

/// The module of the file at this place, from the crate's top.
fn file_module(place: &str) -> Vec<String> {
    let stem = place.strip_suffix("/mod.rs").or_else(|| place.strip_suffix(".rs"));
    match stem.unwrap_or(place) {
        "lib" | "main" => Vec::new(),
        stem => stem.split('/').map(str::to_owned).collect(),
    }
}

/// The files of a module that use each other in a circle. A file names the parts that it declares
/// (`mod NAME;`), and they may use it.
pub fn cycles(files: &[File]) -> Vec<Finding> {
    let places: BTreeSet<Vec<String>> =
        files.iter().map(|file| file_module(&rules::place(&file.path))).collect();
    let mut uses: BTreeMap<Vec<String>, BTreeSet<Vec<String>>> = BTreeMap::new();
    for (from, path) in walk(files).1.paths {
        let file = (1..=path.len()).rev().map(|end| &path[..end]).find(|it| places.contains(*it));
        let Some(file) = file.filter(|file| !file.starts_with(&from)) else { continue };
        if from[0] == file[0] {
            uses.entry(from).or_default().insert(file.to_vec());
        }
    }
    // What uses only files that are in no circle is in none.
    loop {
        let free: Vec<Vec<String>> = uses
            .iter()
            .filter(|(_, used)| !used.iter().any(|file| uses.contains_key(file)))
            .map(|(from, _)| from.clone())
            .collect();
        if free.is_empty() {
            break;
        }
        uses.retain(|from, _| !free.contains(from));
    }
    let finding = |(from, used): (&Vec<String>, &BTreeSet<Vec<String>>)| {
        let used = used.iter().filter(|file| uses.contains_key(*file));
        let used: Vec<String> = used.map(|file| file.join("::")).collect();
        Finding {
            file: from.join("::"),
            line: 1,
            rule: "cycle",
            why: format!("is in a circle by its use of {}", used.join(" and ")),
        }
    };
    uses.iter().map(finding).collect()
}

/// `#[cfg(test)] mod NAME;` in a file: the paths, without `.rs`, of what it declares.
fn test_modules(path: &str, tree: &syn::File) -> Vec<String> {
    let stem = path.strip_suffix("/mod.rs").or_else(|| path.strip_suffix(".rs")).unwrap_or(path);
    let declared = tree.items.iter().filter_map(|item| match item {
        syn::Item::Mod(module) if module.content.is_none() && for_tests(&module.attrs) => {
            Some(format!("{stem}/{}", module.ident))
        }
        _ => None,
    });
    declared.collect()
}

struct Walker {
    path: String,
    /// Its place among the modules.
    place: String,
    /// The file's module, from the crate's top: `["limit", "keys"]`. Inline modules are pushed
    /// while they are walked.
    module: Vec<String>,
    /// Modules declared here: their names shadow crates of the same name.
    local: BTreeSet<String>,
    /// `Instant` is tokio's here, which a test can pause.
    tokio_instant: bool,
    findings: Vec<Finding>,
    uses: Uses,
}

impl Walker {
    fn new(path: &str, tree: &syn::File) -> Self {
        let place = rules::place(path);
        let module = file_module(&place);
        let mut uses = Vec::new();
        for item in &tree.items {
            if let syn::Item::Use(item) = item {
                flatten(&item.tree, &mut Vec::new(), &mut uses);
            }
        }
        let local = tree.items.iter().filter_map(|item| match item {
            syn::Item::Mod(module) => Some(module.ident.to_string()),
            _ => None,
        });
        Self {
            path: path.to_owned(),
            place: place.clone(),
            module,
            local: local.collect(),
            tokio_instant: uses.iter().any(|used| used.segments == ["tokio", "time", "Instant"]),
            findings: Vec::new(),
            uses: Uses::default(),
        }
    }

    fn module_name(&self) -> Option<&str> {
        self.place.split_once('/').map(|(name, _)| name)
    }

    fn find(&mut self, span: Span, rule: &'static str, why: String) {
        self.findings.push(Finding { file: self.path.clone(), line: span.start().line, rule, why });
    }

    fn check(&mut self, segments: &[String], span: Span) {
        if segments.len() < 2 {
            return;
        }
        if let Some(absolute) = self.absolute(segments) {
            self.check_module(&absolute, span);
            self.uses.paths.insert((file_module(&self.place), absolute));
        } else {
            self.check_crate(segments, span);
            self.check_time(segments, span);
        }
    }

    /// The path from the crate's root, if it is one of ours.
    fn absolute(&self, segments: &[String]) -> Option<Vec<String>> {
        let main = self.path == "src/main.rs";
        match segments[0].as_str() {
            // A crate that is one module.
            "crate" if self.is_a_crate() => {
                Some(self.module.iter().take(1).chain(&segments[1..]).cloned().collect())
            }
            "crate" => Some(segments[1..].to_vec()),
            "weir" if main => Some(segments[1..].to_vec()),
            "self" | "super" => {
                let ups = segments.iter().take_while(|segment| *segment == "super").count();
                let rest =
                    segments.iter().skip_while(|segment| *segment == "self" || *segment == "super");
                let kept = self.module.len().saturating_sub(ups);
                Some(self.module[..kept].iter().chain(rest).cloned().collect())
            }
            name => {
                let module = rules::module_of_crate(name)?;
                let module = Some(module.to_owned()).filter(|module| !module.is_empty());
                Some(module.into_iter().chain(segments[1..].iter().cloned()).collect())
            }
        }
    }

    /// Whether the file's crate is one module.
    fn is_a_crate(&self) -> bool {
        let own =
            |(folder, module): &(&str, &str)| !module.is_empty() && self.path.starts_with(folder);
        rules::OURS.iter().any(own)
    }

    fn check_module(&mut self, absolute: &[String], span: Span) {
        let Some(target) = absolute.first() else { return };
        let target = if target == "App" { "app" } else { target.as_str() };
        let Some(module) = self.module_name().map(str::to_owned) else {
            // lib.rs names every module; main.rs only calls the command line.
            if self.path == "src/main.rs" && target != "cli" {
                self.find(span, "module", format!("main.rs only calls cli, not `{target}`"));
            }
            return;
        };
        let item = absolute.get(1).cloned().unwrap_or_default();
        if module == "proxy" && target == "proxy" {
            self.check_phase(&item, span);
        }
        self.uses.items.insert((module.clone(), target.to_owned(), item));
        if !rules::is_module(target) {
            self.find(span, "module", format!("`crate::{target}` is not a module of the table"));
        } else if !rules::may_use(&module, target) {
            self.find(span, "module", format!("`{module}` may not use `{target}`"));
        } else if let Some((.., items)) =
            NARROW.iter().find(|(from, to, _)| *from == module && *to == target)
            && !absolute.get(1).is_some_and(|item| items.contains(&item.as_str()))
        {
            self.find(
                span,
                "module",
                format!("of `{target}`, `{module}` may use only {}", items.join(" and ")),
            );
        }
    }

    fn check_phase(&mut self, other: &str, span: Span) {
        let place = |name: &str| PHASES.iter().position(|phase| *phase == name);
        let Some(own) = self.module.get(1).cloned() else { return };
        if let (Some(before), Some(after)) = (place(&own), place(other))
            && before < after
        {
            self.find(span, "phase", format!("`{own}` may not use `{other}`, which comes later"));
        }
    }

    fn check_crate(&mut self, segments: &[String], span: Span) {
        let name = segments[0].as_str();
        if self.local.contains(name) {
            return;
        }
        let Some(rule) = CRATES.iter().find(|rule| rule.crates.contains(&name)) else { return };
        self.uses.crates.insert((name.to_owned(), self.place.clone()));
        if !rule.to.iter().any(|prefix| self.place.starts_with(prefix)) {
            self.find(span, "crate", format!("`{name}` may not be used here: {}", rule.why));
        }
    }

    fn check_time(&mut self, segments: &[String], span: Span) {
        let [.., kind, verb] = segments else { return };
        let reads_time = verb == "now" && (kind == "Instant" || kind == "SystemTime");
        let tokio = segments[0] == "tokio"
            || (segments.len() == 2 && kind == "Instant" && self.tokio_instant);
        if reads_time && !tokio && self.module_name() != Some("clock") {
            self.find(
                span,
                "time",
                format!(
                    "use crate::clock instead of `{kind}::now`, so that a test can control the time"
                ),
            );
        }
    }
}

impl<'ast> Visit<'ast> for Walker {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !for_tests(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        self.module.push(module.ident.to_string());
        visit::visit_item_mod(self, module);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let mut uses = Vec::new();
        flatten(&item.tree, &mut Vec::new(), &mut uses);
        for used in uses {
            // `check_time` would not find a renamed clock.
            let tokio = used.segments.first().is_some_and(|first| first == "tokio");
            let hidden = used.renamed
                && !tokio
                && matches!(
                    used.segments.last().map(String::as_str),
                    Some("Instant" | "SystemTime")
                );
            if hidden && self.module_name() != Some("clock") {
                self.find(
                    used.span,
                    "time",
                    "do not rename a clock's type: its use would not be found".into(),
                );
            }
            self.check(&used.segments, used.span);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> =
            path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if let Some(first) = path.segments.first() {
            self.check(&segments, first.ident.span());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        for (segments, span) in paths_in(&call.tokens) {
            self.check(&segments, span);
        }
        visit::visit_macro(self, call);
    }
}

/// One name that a `use` brings in.
struct Used {
    segments: Vec<String>,
    span: Span,
    renamed: bool,
}

fn flatten(tree: &syn::UseTree, before: &mut Vec<String>, found: &mut Vec<Used>) {
    let mut add = |before: &[String], last: &str, span: Span, renamed: bool| {
        let segments =
            before.iter().cloned().chain((last != "self").then(|| last.to_owned())).collect();
        found.push(Used { segments, span, renamed });
    };
    match tree {
        syn::UseTree::Path(path) => {
            before.push(path.ident.to_string());
            flatten(&path.tree, before, found);
            before.pop();
        }
        syn::UseTree::Name(name) => add(before, &name.ident.to_string(), name.ident.span(), false),
        syn::UseTree::Rename(name) => add(before, &name.ident.to_string(), name.ident.span(), true),
        syn::UseTree::Glob(glob) => add(before, "*", glob.star_token.spans[0], false),
        syn::UseTree::Group(group) => {
            group.items.iter().for_each(|tree| flatten(tree, before, found))
        }
    }
}

/// Paths of two segments or more in a macro's tokens.
fn paths_in(tokens: &TokenStream) -> Vec<(Vec<String>, Span)> {
    let mut found = Vec::new();
    let mut current: Option<(Vec<String>, Span)> = None;
    let mut colons = 0;
    for token in tokens.clone() {
        match token {
            TokenTree::Ident(ident) => match &mut current {
                Some((segments, _)) if colons == 2 => segments.push(ident.to_string()),
                _ => found.extend(current.replace((vec![ident.to_string()], ident.span()))),
            },
            TokenTree::Punct(punct) if punct.as_char() == ':' => {
                colons += 1;
                continue;
            }
            TokenTree::Group(group) => {
                found.extend(current.take());
                found.extend(paths_in(&group.stream()));
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => found.extend(current.take()),
        }
        colons = 0;
    }
    found.extend(current);
    found
}

fn for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        if attribute.path().is_ident("test") {
            return true;
        }
        let syn::Meta::List(list) = &attribute.meta else { return false };
        let words: Vec<String> = words(&list.tokens);
        attribute.path().is_ident("cfg")
            && words.iter().any(|word| word == "test")
            && !words.iter().any(|word| word == "not")
    })
}

fn words(tokens: &TokenStream) -> Vec<String> {
    let mut found = Vec::new();
    for token in tokens.clone() {
        match token {
            TokenTree::Ident(ident) => found.push(ident.to_string()),
            TokenTree::Group(group) => found.extend(words(&group.stream())),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
    found
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}
