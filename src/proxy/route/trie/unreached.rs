//! Finds routes that no request can reach, and those that only unusual requests can. Reads the
//! same nodes as a search, in the same order of precedence. Knows no host and no request.
//!
//! Literals and parameters can hide a less specific route only where they leave nothing: there are
//! always further values of a parameter, so a literal never hides one. What can be hidden is a
//! trailing `/*`: `/a` and `/a/{x}/*` leave nothing of `/a/*`.

use http::Method;

use super::{Candidates, Leaf, Methods, Trie};

/// The methods that clients use. Any other token is a method, too.
const USUAL: [Method; 7] = [
    Method::GET,
    Method::HEAD,
    Method::POST,
    Method::PUT,
    Method::PATCH,
    Method::DELETE,
    Method::OPTIONS,
];
/// A method that no configuration names.
const UNUSUAL: &[u8] = b"WEIR-CHECK";

/// A route that is reached by no request, or by none that clients usually send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreachedRoute {
    /// Its index in the configuration.
    pub route: usize,
    /// Why.
    pub why: UnreachedCause,
}

/// Why a route is not reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnreachedCause {
    /// These more specific routes match every request that it matches.
    Hidden(Vec<usize>),
    /// These routes leave it only requests with methods that clients don't use.
    OnlyUnusualMethods(Vec<usize>),
    /// The shortest path that it matches is longer than a request's target may be.
    TooLong {
        /// Its length.
        bytes: usize,
    },
}

impl Trie {
    /// The routes of this host that are not reached. A longer path than `uri_bytes_max` is refused.
    pub(in crate::proxy) fn unreached(&self, uri_bytes_max: usize, into: &mut Vec<UnreachedRoute>) {
        self.look(0, 0, uri_bytes_max, into);
    }

    /// `bytes` is the length of the shortest path that leads to the node `at`. The depth is bounded
    /// by the segments of a pattern.
    fn look(&self, at: usize, bytes: usize, uri_bytes_max: usize, into: &mut Vec<UnreachedRoute>) {
        let Some(node) = self.nodes.get(at) else { return };
        for (leaves, open) in [(&node.here, false), (&node.below, true)] {
            for leaf in leaves {
                // Every path has the slash of the root.
                let why = if bytes.max(1) > uri_bytes_max {
                    Some(UnreachedCause::TooLong { bytes })
                } else {
                    self.hidden(at, leaf, leaves, open)
                };
                into.extend(why.map(|why| UnreachedRoute { route: leaf.route, why }));
            }
        }
        for (name, child) in &node.literals {
            // A route with a final slash also matches without it, unless that is told apart.
            let ends = self.nodes.get(*child).is_some_and(|child| {
                name.is_empty() && !child.here.iter().all(|leaf| leaf.slash_exact)
            });
            let own = if ends { 0 } else { 1 + shortest(name) };
            self.look(*child, bytes + own, uri_bytes_max, into);
        }
        if let Some(child) = node.parameter {
            self.look(child, bytes + 2, uri_bytes_max, into);
        }
    }

    /// Whether others take all requests, or all usual ones, of one of the `leaves` at a node.
    fn hidden(
        &self,
        at: usize,
        leaf: &Leaf,
        leaves: &[Leaf],
        open: bool,
    ) -> Option<UnreachedCause> {
        let mut by = Vec::new();
        let mut is_taken = |method: &Method| {
            let own = leaf.methods.fit(method);
            let better = leaves.iter().find(|other| {
                other.route != leaf.route
                    && other.methods.fit(method).is_some_and(|fit| own < Some(fit))
            });
            by.extend(better.map(|other| other.route));
            better.is_some() || (open && self.leaves_nothing_open(at, method, &mut by))
        };
        let mut methods = match &leaf.methods {
            Methods::Any => USUAL.to_vec(),
            Methods::Only(methods) => methods.clone(),
        };
        if methods.contains(&Method::GET) && !methods.contains(&Method::HEAD) {
            methods.push(Method::HEAD);
        }
        let usual = methods.iter().all(&mut is_taken);
        let any = match leaf.methods {
            Methods::Any => Method::from_bytes(UNUSUAL).is_ok_and(|method| is_taken(&method)),
            Methods::Only(_) => true,
        };
        by.sort_unstable();
        by.dedup();
        match (usual, any) {
            (true, true) => Some(UnreachedCause::Hidden(by)),
            (true, false) => Some(UnreachedCause::OnlyUnusualMethods(by)),
            _ => None,
        }
    }

    /// Whether the routes below a node leave none of the paths that a `/*` there matches.
    fn leaves_nothing_open(&self, at: usize, method: &Method, by: &mut Vec<usize>) -> bool {
        let Some(node) = self.nodes.get(at) else { return false };
        let slashed = self.slashed(node);
        // No path ends before the slash of the root.
        let end = at == 0
            || take(Candidates::exactly(&node.here), method, by)
            || take(Candidates::by_other_slash(slashed), method, by);
        let slash = take(Candidates::exactly(slashed), method, by)
            || take(Candidates::by_other_slash(&node.here), method, by);
        end && slash && node.parameter.is_some_and(|child| self.takes_all(child, method, by))
    }

    /// Whether every path that leads to a node, or through it, is matched there.
    fn takes_all(&self, at: usize, method: &Method, by: &mut Vec<usize>) -> bool {
        let Some(node) = self.nodes.get(at) else { return false };
        take(Candidates::exactly(&node.below), method, by)
            || self.leaves_nothing_open(at, method, by)
    }
}

/// Whether a route among these takes the method; it is added to `by`.
fn take(candidates: Candidates<'_>, method: &Method, by: &mut Vec<usize>) -> bool {
    let taking = super::best(candidates, method);
    by.extend(taking);
    taking.is_some()
}

/// Bytes of the shortest spelling of a literal. Folding case may lengthen letters beyond ASCII, so
/// each counts as one.
fn shortest(name: &[u8]) -> usize {
    if name.is_ascii() {
        return name.len();
    }
    std::str::from_utf8(name).map_or(name.len(), |text| text.chars().count())
}
