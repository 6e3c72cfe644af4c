//! Matches a path by its segments: of all patterns that match, finds the most specific. Knows
//! methods only as lists to compare with, and no host.
//!
//! `matchit` rejects `/api/{*rest}` beside `/api/{tenant}/items`; here both are allowed. At each
//! segment a search tries the literal, then the parameter, then the trailing `*`, and backtracks
//! when a branch ends without a route. Each node is entered at most once per search, since only one
//! path leads to it. So a request costs at most as many steps as the configuration has segments.
//!
//! Spellings that many servers read as the same resource are equal here, unless [`Paths`]
//! distinguishes them. Literals are stored and compared in their [folded](path::folded) form. A
//! path with a final slash matches a route without one if no route ends in one, and the other way
//! round.

mod unreached;

use http::Method;
use smallvec::SmallVec;

use crate::proxy::receive::path;
use crate::proxy::settings::{PathParameters, Paths};

pub use unreached::{UnreachedCause, UnreachedRoute};

/// Maximum segments of a pattern. Bounds the depth of a search.
pub(in crate::proxy) const SEGMENTS_MAX: usize = 64;

/// A route's path, parsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::proxy) struct Pattern {
    /// The segments in order.
    pub(in crate::proxy) segments: Vec<Segment>,
    /// It ends in `/*`: anything may follow, also nothing.
    pub(in crate::proxy) open: bool,
}

impl Pattern {
    /// The names of its parameters, in order.
    pub(in crate::proxy) fn parameters(&self) -> impl Iterator<Item = &String> {
        self.segments.iter().filter_map(|segment| {
            if let Segment::Parameter(name) = segment { Some(name) } else { None }
        })
    }

    /// Whether it ends in a slash.
    pub(in crate::proxy) fn ends_in_slash(&self) -> bool {
        matches!(self.segments.last(), Some(Segment::Literal(bytes)) if bytes.is_empty())
    }
}

/// One segment of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::proxy) enum Segment {
    /// These bytes, escapes decoded. Only the last may be empty, if the pattern ends in a slash.
    Literal(Vec<u8>),
    /// Any nonempty segment, under this name.
    Parameter(String),
}

/// The methods that a route matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::proxy) enum Methods {
    /// Any method.
    Any,
    /// These. `GET` includes `HEAD`.
    Only(Vec<Method>),
}

/// The routes of one host.
#[derive(Debug)]
pub(in crate::proxy) struct Trie {
    nodes: Vec<Node>,
    paths: Paths,
}

#[derive(Debug, Default)]
struct Node {
    /// Sorted.
    literals: Vec<(Vec<u8>, usize)>,
    parameter: Option<usize>,
    /// Routes whose pattern ends here.
    here: Vec<Leaf>,
    /// Routes whose pattern continues with `/*`.
    below: Vec<Leaf>,
}

#[derive(Debug)]
struct Leaf {
    methods: Methods,
    route: usize,
    /// Never matched by a path that differs in its final slash.
    slash_exact: bool,
}

/// Leaves that a search has reached, and whether the path differs from theirs in its final slash.
#[derive(Clone, Copy, Debug)]
struct Candidates<'t> {
    leaves: &'t [Leaf],
    by_other_slash: bool,
}

/// The result of a search: the route, and the segments that its parameters matched, in the
/// pattern's order.
#[derive(Debug)]
pub(in crate::proxy) struct Match<'p> {
    /// The route's index.
    pub(in crate::proxy) route: usize,
    /// The parameters as they are in the path, with their escapes.
    pub(in crate::proxy) parameters: Parameters<'p>,
}

/// Usually few enough to need no allocation.
pub(in crate::proxy) type Parameters<'p> = SmallVec<[&'p str; 4]>;

impl Trie {
    /// No routes.
    pub(in crate::proxy) fn new(paths: Paths) -> Self {
        Self { nodes: vec![Node::default()], paths }
    }

    /// Adds a route. With `slash_exact`, it is never matched by a path that differs in its final
    /// slash.
    ///
    /// # Errors
    /// The route that matches exactly the same paths and shares a method.
    pub(in crate::proxy) fn insert(
        &mut self,
        pattern: &Pattern,
        methods: Methods,
        route: usize,
        slash_exact: bool,
    ) -> Result<(), usize> {
        let mut at = 0;
        for segment in &pattern.segments {
            at = self.child(at, segment);
        }
        let Some(node) = self.nodes.get_mut(at) else { return Ok(()) };
        let leaves = if pattern.open { &mut node.below } else { &mut node.here };
        if let Some(other) = leaves.iter().find(|leaf| leaf.methods.overlaps(&methods)) {
            return Err(other.route);
        }
        leaves.push(Leaf {
            methods,
            route,
            slash_exact: slash_exact || self.paths.trailing_slash_exact,
        });
        Ok(())
    }

    fn child(&mut self, parent: usize, segment: &Segment) -> usize {
        let (fresh, paths) = (self.nodes.len(), self.paths);
        let Some(node) = self.nodes.get_mut(parent) else { return parent };
        let child = match segment {
            Segment::Parameter(_) => *node.parameter.get_or_insert(fresh),
            Segment::Literal(bytes) => {
                let mut folded = SmallVec::from_slice(bytes);
                if !paths.case_exact {
                    path::fold_case(&mut folded);
                }
                match node.literals.binary_search_by(|(name, _)| name.as_slice().cmp(&folded)) {
                    Ok(found) => node.literals.get(found).map_or(parent, |(_, child)| *child),
                    Err(index) => {
                        node.literals.insert(index, (folded.into_vec(), fresh));
                        fresh
                    }
                }
            }
        };
        if child == fresh {
            self.nodes.push(Node::default());
        }
        child
    }

    /// The most specific route for a normal `path` and a method.
    pub(in crate::proxy) fn find<'p>(&self, path: &'p str, method: &Method) -> Option<Match<'p>> {
        let mut parameters = Parameters::new();
        let route = self.walk(0, path.strip_prefix('/'), &mut parameters, &mut |candidates| {
            best(candidates, method)
        })?;
        Some(Match { route, parameters })
    }

    /// The methods of all routes for `path`. Only used for `Allow`, after [`Trie::find`] found
    /// none.
    pub(in crate::proxy) fn methods(&self, path: &str, into: &mut Vec<Method>) {
        self.walk(
            0,
            path.strip_prefix('/'),
            &mut Parameters::new(),
            &mut |candidates: Candidates<'_>| {
                for leaf in candidates.leaves() {
                    if let Methods::Only(methods) = &leaf.methods {
                        into.extend_from_slice(methods);
                    }
                }
                None
            },
        );
    }

    /// Visits leaves from most to least specific, until `pick` takes one. `rest` is what follows
    /// the last slash, `None` at the path's end.
    fn walk<'p>(
        &self,
        at: usize,
        rest: Option<&'p str>,
        parameters: &mut Parameters<'p>,
        pick: &mut impl FnMut(Candidates<'_>) -> Option<usize>,
    ) -> Option<usize> {
        let node = self.nodes.get(at)?;
        let Some(rest) = rest else {
            return pick(Candidates::exactly(&node.here))
                .or_else(|| pick(Candidates::by_other_slash(self.slashed(node))))
                .or_else(|| pick(Candidates::exactly(&node.below)));
        };
        if node.is_only_open() {
            return pick(Candidates::exactly(&node.below));
        }
        let (segment, rest) =
            rest.split_once('/').map_or((rest, None), |(segment, rest)| (segment, Some(rest)));
        let folds = path::may_fold(segment);
        let ignored = folds && self.paths.parameters == PathParameters::Ignore;
        let bare = if ignored { path::without_parameters(segment) } else { segment };
        if bare.is_empty() && rest.is_none() {
            return pick(Candidates::exactly(self.slashed(node)))
                .or_else(|| pick(Candidates::by_other_slash(&node.here)))
                .or_else(|| pick(Candidates::exactly(&node.below)));
        }
        if let Some(child) = node.literal(segment, folds, self.paths)
            && let Some(found) = self.walk(child, rest, parameters, pick)
        {
            return Some(found);
        }
        if let Some(child) = node.parameter.filter(|_| !bare.is_empty()) {
            parameters.push(segment);
            if let Some(found) = self.walk(child, rest, parameters, pick) {
                return Some(found);
            }
            parameters.pop();
        }
        pick(Candidates::exactly(&node.below))
    }

    /// Patterns that end in a slash after this node.
    fn slashed(&self, node: &Node) -> &[Leaf] {
        // Sorted: an empty name comes first.
        let child = node
            .literals
            .first()
            .filter(|(name, _)| name.is_empty())
            .and_then(|(_, child)| self.nodes.get(*child));
        child.map_or(&[], |child| &child.here)
    }
}

impl<'t> Candidates<'t> {
    fn exactly(leaves: &'t [Leaf]) -> Self {
        Self { leaves, by_other_slash: false }
    }

    fn by_other_slash(leaves: &'t [Leaf]) -> Self {
        Self { leaves, by_other_slash: true }
    }

    fn leaves(self) -> impl Iterator<Item = &'t Leaf> {
        self.leaves.iter().filter(move |leaf| !(self.by_other_slash && leaf.slash_exact))
    }
}

impl Node {
    /// Whether only `/*` can match here.
    fn is_only_open(&self) -> bool {
        self.literals.is_empty() && self.parameter.is_none() && self.here.is_empty()
    }

    /// A segment is compared in its decoded form, so that `/%40me` can't bypass a route for `/@me`.
    fn literal(&self, segment: &str, folds: bool, paths: Paths) -> Option<usize> {
        if self.literals.is_empty() {
            return None;
        }
        let find = |bytes: &[u8]| {
            self.literals.binary_search_by(|(name, _)| name.as_slice().cmp(bytes)).ok()
        };
        let found =
            if folds { find(&path::folded(segment, paths)) } else { find(segment.as_bytes()) };
        self.literals.get(found?).map(|(_, child)| *child)
    }
}

/// The route that names the method, or one whose GET includes HEAD, or one for any method.
fn best(candidates: Candidates<'_>, method: &Method) -> Option<usize> {
    candidates
        .leaves()
        .filter_map(|leaf| Some((leaf.methods.fit(method)?, leaf.route)))
        .max()
        .map(|(_, route)| route)
}

impl Methods {
    /// How well `method` matches. More is better.
    pub(in crate::proxy) fn fit(&self, method: &Method) -> Option<u8> {
        match self {
            Self::Any => Some(0),
            Self::Only(methods) if methods.contains(method) => Some(2),
            Self::Only(methods) if *method == Method::HEAD && methods.contains(&Method::GET) => {
                Some(1)
            }
            Self::Only(_) => None,
        }
    }

    fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, Self::Any) => true,
            (Self::Only(ours), Self::Only(theirs)) => {
                ours.iter().any(|method| theirs.contains(method))
            }
            (Self::Any, Self::Only(_)) | (Self::Only(_), Self::Any) => false,
        }
    }
}
