//! `location { }`: which paths each takes, and which expressions nginx asks before it. nginx finds
//! the longest path of a block and then of the block that this path has, and asks expressions from
//! the inside out. Weir knows paths alone, the longest of which wins, so the expressions stand
//! beside each path that they are asked for.

use super::Notes;
use super::expressions::{conditions, of_text};
use super::guards::{guard, guard_of};
use super::servers::{Server, is_redirect_to_https};
use crate::cli::import::directives::Directive;

const FORBIDDEN: u16 = 403;
const NOT_FOUND: u16 = 404;

/// Requests of a server, and how they are answered.
#[derive(Clone, Debug)]
pub(super) struct Location<'a> {
    pub(super) path: String,
    /// What the path has to match besides, one of these.
    pub(super) when: Vec<String>,
    /// The text that `proxy_pass` with a path replaces.
    pub(super) replaced: Option<&'a str>,
    /// Its own block, and those around it up to the server's.
    pub(super) chain: Vec<&'a [Directive]>,
    pub(super) answers: Answers<'a>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Answers<'a> {
    Proxied(&'a Directive),
    Returned(&'a Directive),
    /// `return 301 https://$host$request_uri`, on a port that others share.
    Https,
    /// Nothing that Weir could send it to.
    Status(u16),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Exact,
    /// `asks`: expressions beside it are asked first.
    Beginning {
        asks: bool,
    },
    Expression {
        ignores_case: bool,
    },
}

/// A location as it is written, with those inside it.
struct Node<'a> {
    directive: &'a Directive,
    kind: Kind,
    text: &'a str,
    chain: Vec<&'a [Directive]>,
    answers: Answers<'a>,
    inner: Vec<Node<'a>>,
}

/// An expression's place: which locations are asked for their expressions, in order.
type Asked<'n, 'a> = Vec<&'n Node<'a>>;

/// A path of a location, and the expressions that are asked before it.
struct Placed<'n, 'a> {
    node: &'n Node<'a>,
    asked: Asked<'n, 'a>,
}

/// All locations of a server, in the order in which nginx asks them.
pub(super) fn of<'a>(
    server: &Server<'a>,
    http: &'a [Directive],
    notes: &mut Notes,
) -> Vec<Location<'a>> {
    let block = server.directive.block();
    if server.redirects {
        return vec![everything(Answers::Https)];
    }
    if let Some(closed) = guard(block).or_else(|| guard(http)) {
        notes.add(closed, "Weir refuses all requests of this server");
        return vec![everything(Answers::Status(FORBIDDEN))];
    }
    if let Some(returned) = block.iter().find(|one| one.name == "return") {
        return vec![everything(Answers::Returned(returned))];
    }
    let nodes = read(block, &[], notes);
    let mut placed = Vec::new();
    place(&nodes, &[], &mut placed);
    written(&nodes, &placed, notes)
}

fn everything<'a>(answers: Answers<'a>) -> Location<'a> {
    let (path, when, replaced) = ("/*".to_owned(), Vec::new(), None);
    Location { path, when, replaced, chain: Vec::new(), answers }
}

/// Reads the locations of a block. `around` are the blocks that they are in, without the server's.
fn read<'a>(
    block: &'a [Directive],
    around: &[&'a [Directive]],
    notes: &mut Notes,
) -> Vec<Node<'a>> {
    let mut nodes = Vec::new();
    for directive in block.iter().filter(|one| one.name == "location") {
        let inner = directive.block();
        inner.iter().for_each(|one| notes.left_out(one));
        let (kind, text) = match kind(directive) {
            Ok(found) => found,
            Err(what) => {
                notes.add(directive, what);
                continue;
            }
        };
        let chain: Vec<&[Directive]> = [&[inner], around].concat();
        let answers = answers(directive, &chain, notes);
        let inner = read(inner, &chain, notes);
        nodes.push(Node { directive, kind, text, chain, answers, inner });
    }
    nodes
}

/// What kind of location it is, and its text: nginx needs no blank between the two.
fn kind(directive: &Directive) -> Result<(Kind, &str), &'static str> {
    let all = [
        ("=", Kind::Exact),
        ("^~", Kind::Beginning { asks: false }),
        ("~*", Kind::Expression { ignores_case: true }),
        ("~", Kind::Expression { ignores_case: false }),
    ];
    let (kind, text) = if directive.words.len() > 1 {
        let kind = all.into_iter().find(|(written, _)| *written == directive.word(0));
        let (_, kind) = kind.ok_or("LEFT OUT: found an unknown kind of location")?;
        (kind, directive.word(1))
    } else {
        let word = directive.word(0);
        let glued = |(written, kind): (&str, Kind)| Some((kind, word.strip_prefix(written)?));
        let plain = (Kind::Beginning { asks: true }, word);
        all.into_iter().find_map(glued).unwrap_or(plain)
    };
    match kind {
        Kind::Expression { .. } => Ok((kind, text)),
        _ if text.starts_with('@') => Err("left out: Weir sends no request on to another location"),
        _ if text.starts_with('/') => Ok((kind, text)),
        _ => Err("left out: no path begins so"),
    }
}

fn answers<'a>(
    location: &'a Directive,
    chain: &[&'a [Directive]],
    notes: &mut Notes,
) -> Answers<'a> {
    let block = location.block();
    let named = |name: &str| block.iter().find(|one| one.name == name);
    if let Some(closed) = guard_of(chain) {
        if guard(block).is_none() {
            let what = format!("Weir refuses its requests, for `{}` around it", closed.text());
            notes.add(location, &what);
        }
        let is_internal = closed.name == "internal";
        return Answers::Status(if is_internal { NOT_FOUND } else { FORBIDDEN });
    }
    if let Some(returned) = named("return") {
        let is_https = is_redirect_to_https(returned);
        return if is_https { Answers::Https } else { Answers::Returned(returned) };
    }
    if let Some(proxied) = named("proxy_pass") {
        return Answers::Proxied(proxied);
    }
    notes.add(location, "Weir serves no files and speaks HTTP alone: its requests get 404");
    Answers::Status(NOT_FOUND)
}

/// Finds the paths that nginx can reach, those of `level` and inside it. `above` are the locations
/// that they are in, the outermost first, each with the locations beside it.
fn place<'n, 'a>(
    level: &'n [Node<'a>],
    above: &[(&'n Node<'a>, &'n [Node<'a>])],
    placed: &mut Vec<Placed<'n, 'a>>,
) {
    let (exact, others): (Vec<_>, Vec<_>) = level.iter().partition(|node| node.kind == Kind::Exact);
    for node in exact.into_iter().chain(others).filter(|node| !node.is_expression()) {
        let here = [above, &[(node, level)]].concat();
        if node.kind == Kind::Exact {
            let is_first = !placed.iter().any(|one| one.node.is_same(node));
            if is_first && is_reached(above, node.text) {
                placed.push(Placed { node, asked: Vec::new() });
            }
            continue;
        }
        if !is_reached(&here, node.text) {
            continue;
        }
        if !node.inner.iter().any(|inner| inner.is_same(node)) {
            placed.push(Placed { node, asked: asked(&here) });
        }
        place(&node.inner, &here, placed);
    }
}

/// Whether nginx looks into these locations, one in another, for a path that begins with `text`:
/// beside each, there may be a longer one.
fn is_reached(chain: &[(&Node<'_>, &[Node<'_>])], text: &str) -> bool {
    chain.iter().all(|(node, level)| {
        let longest = level
            .iter()
            .filter(|one| one.is_beginning() && text.starts_with(one.text))
            .max_by_key(|one| one.text.len());
        longest.is_some_and(|one| std::ptr::eq(one, *node))
    })
}

/// The expressions that are asked for the paths of the last location of the chain.
fn asked<'n, 'a>(chain: &[(&'n Node<'a>, &'n [Node<'a>])]) -> Asked<'n, 'a> {
    let mut all = Vec::new();
    let mut add = |level: &'n [Node<'a>]| {
        all.extend(level.iter().filter(|one| one.is_expression()));
    };
    if let Some((last, _)) = chain.last() {
        add(&last.inner);
    }
    for (node, level) in chain.iter().rev() {
        if node.kind == (Kind::Beginning { asks: true }) {
            add(level);
        }
    }
    all
}

/// The folder of a path: what precedes the `/*` of the route.
fn folder(text: &str) -> &str {
    text.trim_end_matches('/')
}

fn has_no_path(text: &str) -> bool {
    text.contains(['{', '}', '*'])
}

/// The locations as Weir can have them.
fn written<'a>(
    nodes: &[Node<'a>],
    placed: &[Placed<'_, 'a>],
    notes: &mut Notes,
) -> Vec<Location<'a>> {
    let (exact, beginnings): (Vec<_>, Vec<_>) =
        placed.iter().partition(|one| one.node.kind == Kind::Exact);
    let has_path = |one: &&&Placed<'_, 'a>| !has_no_path(one.node.text);
    let exact: Vec<&Placed<'_, 'a>> = exact.into_iter().filter(|one| has_path(&one)).collect();
    let is_beside = |one: &&Placed<'_, 'a>| {
        beginnings.iter().any(|other| other.node.text.strip_suffix('/') == Some(one.node.text))
    };
    // `/api` beside `/api/` is that path alone.
    let (beside, paths): (Vec<_>, Vec<_>) =
        beginnings.iter().copied().filter(|one| has_path(&one)).partition(is_beside);
    let mut all: Vec<Location<'a>> =
        exact.iter().map(|one| one.node.location(one.node.text.to_owned())).collect();
    let is_exact = |text: &str| exact.iter().any(|one| one.node.text == text);
    let of_server: Asked<'_, 'a> = nodes.iter().filter(|one| one.is_expression()).collect();
    let beside: Vec<_> = beside.into_iter().filter(|one| !is_exact(one.node.text)).collect();
    for one in &beside {
        all.extend(one.asked.iter().flat_map(|asked| asked.beside(one.node.text, notes)));
        all.push(one.node.location(one.node.text.to_owned()));
    }
    for one in exact.iter().chain(&beside) {
        let path = format!("{}/", one.node.text);
        if !one.node.text.ends_with('/') && !is_exact(&path) {
            all.extend(slashed(one.node, path, &beginnings, &of_server, notes));
        }
    }
    let folders: Vec<&str> = paths.iter().map(|one| folder(one.node.text)).collect();
    for one in &paths {
        let apart = apart(folder(one.node.text), &one.asked, placed, &folders, notes);
        all.extend(asked_first(&format!("{}/*", folder(one.node.text)), &one.asked, apart, notes));
        all.push(one.node.location(format!("{}/*", folder(one.node.text))));
    }
    if !folders.contains(&"") {
        let apart = apart("", &of_server, placed, &folders, notes);
        all.extend(asked_first("/*", &of_server, apart, notes));
        // nginx looks for a file.
        all.push(everything(Answers::Status(NOT_FOUND)));
    }
    all
}

/// The locations of a path with a slash at its end, where `bare` is the one without: that one would
/// take its requests, too, where nginx keeps these out, limits them or has a location for them.
fn slashed<'a>(
    bare: &Node<'a>,
    path: String,
    beginnings: &[&Placed<'_, 'a>],
    of_server: &[&Node<'a>],
    notes: &mut Notes,
) -> Vec<Location<'a>> {
    let around = beginnings.iter().filter(|one| path.starts_with(one.node.text));
    let around = around.max_by_key(|one| one.node.text.len());
    let asked = around.map_or(of_server, |one| one.asked.as_slice());
    let mut others = asked.iter().copied().chain(around.map(|one| one.node));
    let is_open = |one: &Node<'_>| matches!(one.answers, Answers::Proxied(_));
    let is_needed = around.is_some_and(|one| one.node.text == path)
        || is_open(bare)
            && (around.is_none()
                || others.any(|one| !is_open(one) || one.is_limited() && !bare.is_limited()));
    if !is_needed {
        return Vec::new();
    }
    let mut all: Vec<_> = asked.iter().flat_map(|asked| asked.beside(&path, notes)).collect();
    all.push(match around {
        Some(one) => one.node.location(path),
        None => Location { path, ..everything(Answers::Status(NOT_FOUND)) },
    });
    all
}

/// What is asked before a path: the expressions, and what is `apart` before and after them.
fn asked_first<'a>(
    path: &str,
    asked: &[&Node<'a>],
    (first, last): (Vec<Location<'a>>, Vec<Location<'a>>),
    notes: &mut Notes,
) -> Vec<Location<'a>> {
    let mut all = first;
    all.extend(asked.iter().flat_map(|asked| asked.beside(path, notes)));
    all.extend(last);
    all
}

/// The locations in a folder that no path can be written for: those with braces or stars, and the
/// rest of those without a slash at the end (`/adminx` of `/admin`). They are asked before the
/// expressions of the folder, or after them if these are their own, too.
fn apart<'a>(
    here: &str,
    asked_here: &[&Node<'a>],
    placed: &[Placed<'_, 'a>],
    folders: &[&str],
    notes: &mut Notes,
) -> (Vec<Location<'a>>, Vec<Location<'a>>) {
    let path = format!("{here}/*");
    let around = |text: &str| {
        let has = |folder: &&&str| {
            text.strip_prefix(**folder).is_some_and(|rest| rest.len() > 1 && rest.starts_with('/'))
        };
        folders.iter().filter(has).map(|folder| folder.len()).max().unwrap_or(0)
    };
    let inside = |one: &&Placed<'_, 'a>| {
        let text = one.node.text;
        text.len() > here.len() && text.starts_with(here) && around(text) == here.len()
    };
    let mut inner: Vec<&Placed<'_, 'a>> = placed.iter().filter(inside).collect();
    inner.sort_by_key(|one| std::cmp::Reverse(one.node.text.len()));
    let (mut first, mut last) = (Vec::new(), Vec::new());
    for Placed { node, asked } in inner {
        let is_rest = node.is_beginning() && !node.text.ends_with('/');
        let when = vec![of_text(node.text, node.is_beginning())];
        if has_no_path(node.text) {
            let what =
                "LEFT OUT: a path has no braces and stars in Weir, which refuses its requests";
            notes.add(node.directive, what);
            let answers = node.answers.refused();
            first.push(Location { when, answers, replaced: None, ..node.location(path.clone()) });
        } else if is_rest && let Answers::Proxied(_) = node.answers {
            let text = node.text;
            let what =
                format!("nginx also takes {text}x for it, and Weir only {text} and what is below");
            notes.add(node.directive, &what);
        } else if is_rest {
            let is_inner =
                |one: &&&Node<'a>| node.inner.iter().any(|inner| std::ptr::eq(inner, **one));
            let own = asked.iter().skip_while(is_inner).map(|one| std::ptr::from_ref(*one));
            let is_alike = own.eq(asked_here.iter().map(|one| std::ptr::from_ref(*one)));
            let place = if is_alike { &mut last } else { &mut first };
            place.push(Location { when, ..node.location(path.clone()) });
        }
    }
    (first, last)
}

impl Answers<'_> {
    /// What answers instead where it can't be carried over.
    fn refused(self) -> Self {
        match self {
            Self::Status(status) => Self::Status(status),
            _ => Self::Status(FORBIDDEN),
        }
    }
}

impl<'a> Node<'a> {
    fn is_expression(&self) -> bool {
        matches!(self.kind, Kind::Expression { .. })
    }

    fn is_beginning(&self) -> bool {
        matches!(self.kind, Kind::Beginning { .. })
    }

    /// Whether it or a location around it limits requests.
    fn is_limited(&self) -> bool {
        let mut all = self.chain.iter().flat_map(|block| block.iter());
        all.any(|one| ["limit_req", "limit_conn"].contains(&one.name.as_str()))
    }

    /// Whether nginx looks for the same text in both.
    fn is_same(&self, other: &Self) -> bool {
        self.text == other.text
            && (self.kind == other.kind || self.is_beginning() && other.is_beginning())
    }

    fn location(&self, path: String) -> Location<'a> {
        let replaced = (self.kind != Kind::Exact).then_some(self.text);
        let (when, chain) = (Vec::new(), self.chain.clone());
        Location { path, when, replaced, chain, answers: self.answers }
    }

    /// An expression beside a path, after the locations inside it: Weir can't ask for two at once,
    /// and refuses what these match.
    fn beside(&self, path: &str, notes: &mut Notes) -> Vec<Location<'a>> {
        let mut all = Vec::new();
        for inner in &self.inner {
            notes.add(
                inner.directive,
                "LEFT OUT: Weir does not ask two expressions for one request, and refuses all requests that this one matches",
            );
            let answers = inner.answers.refused();
            let (path, replaced, chain) = (path.to_owned(), None, inner.chain.clone());
            all.push(Location { path, when: inner.conditions(notes), replaced, chain, answers });
        }
        let (path, replaced, chain) = (path.to_owned(), None, self.chain.clone());
        let when = self.conditions(notes);
        all.push(Location { path, when, replaced, chain, answers: self.answers });
        all
    }

    fn conditions(&self, notes: &mut Notes) -> Vec<String> {
        let Kind::Expression { ignores_case } = self.kind else {
            return vec![of_text(self.text, self.kind != Kind::Exact)];
        };
        conditions(self.text, ignores_case).unwrap_or_else(|(found, why)| {
            let what = format!(
                "LEFT OUT for paths that end with a slash, which Weir takes off before it asks: {why}"
            );
            notes.add(self.directive, &what);
            vec![found]
        })
    }
}
