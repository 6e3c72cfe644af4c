//! Checks the names of facts in a manifest. Which facts there are is handed in: what they mean is
//! known where they are found.
//!
//! An unknown name refuses the configuration, so a new fact never changes the contract
//! (`policy.wit`).

use crate::inspect::Pointer;
use crate::plan::is_token;

/// Maximum number of facts of a request, and of a response, that one policy may name.
const FACTS_MAX: usize = 64;
/// Maximum size of a fact's name, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// The facts that policies may name.
#[derive(Clone, Debug)]
pub struct KnownFacts {
    /// Those of a request.
    pub request: FactNames,
    /// Those of a response.
    pub response: FactNames,
}

/// Names of facts, as a manifest writes them.
#[derive(Clone, Debug)]
pub struct FactNames {
    /// Whole names: `client-ip`.
    pub single: Vec<&'static str>,
    /// What a name begins with, and what may follow it: `header.` in `header.x-api-key`.
    pub families: Vec<(&'static str, Member)>,
}

/// What may follow the beginning of a family's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Member {
    /// A token of RFC 9110: the name of a field or of a cookie.
    Token,
    /// Any text but an empty one.
    Text,
    /// A JSON pointer to one place.
    Pointer,
}

/// What was found and what was expected.
pub(super) type UnknownFact = (String, String);

impl KnownFacts {
    /// A manifest's request facts, each once.
    pub(super) fn of_request(&self, names: &[String]) -> Result<Vec<String>, Vec<UnknownFact>> {
        each(names, |name| self.request.check("fact", name))
    }

    /// A manifest's response facts, each once.
    pub(super) fn of_response(&self, names: &[String]) -> Result<Vec<String>, Vec<UnknownFact>> {
        each(names, |name| self.response.check("response fact", name))
    }
}

impl FactNames {
    /// Checks that there is this fact. `what` says where it was named.
    ///
    /// # Errors
    /// There is none, with the nearest name that there is.
    pub fn check(&self, what: &str, name: &str) -> Result<String, UnknownFact> {
        if self.single.contains(&name) || self.has_family_of(name) {
            return Ok(name.to_owned());
        }
        Err(self.unknown(what, name))
    }

    fn has_family_of(&self, name: &str) -> bool {
        let mut families = self.families.iter();
        let own = families.find_map(|(start, member)| Some((name.strip_prefix(start)?, member)));
        let allowed = own.is_some_and(|(own, member)| match member {
            Member::Token => is_token(own),
            Member::Text => !own.is_empty(),
            Member::Pointer => Pointer::parse(own).is_ok_and(|pointer| pointer.is_single()),
        });
        allowed && name.len() <= NAME_BYTES_MAX
    }

    /// Suggests the nearest known name, be it a whole one or a family with a member.
    fn unknown(&self, what: &str, name: &str) -> UnknownFact {
        let name = shown(name);
        let member = name.split_once('.').map_or("NAME", |(_, own)| own);
        let named = |member: &str| -> Vec<String> {
            let family = |(start, kind): &(&str, Member)| match kind {
                Member::Pointer => format!("{start}/POINTER"),
                Member::Token | Member::Text => format!("{start}{member}"),
            };
            let families = self.families.iter().map(family);
            self.single.iter().map(|known| (*known).to_owned()).chain(families).collect()
        };
        let nearest = named(member)
            .into_iter()
            .min_by_key(|candidate| strsim::damerau_levenshtein(&name, candidate));
        let nearest =
            nearest.map(|nearest| format!("; the nearest is `{nearest}`")).unwrap_or_default();
        (
            format!("the unknown {what} `{name}`"),
            format!("one of `{}`{nearest}", named("NAME").join("`, `")),
        )
    }
}

fn each(
    names: &[String],
    check: impl Fn(&str) -> Result<String, UnknownFact>,
) -> Result<Vec<String>, Vec<UnknownFact>> {
    if names.len() > FACTS_MAX {
        return Err(vec![(
            format!("a manifest with {} facts", names.len()),
            format!("at most {FACTS_MAX}"),
        )]);
    }
    let mut known = Vec::with_capacity(names.len());
    let mut errors = Vec::new();
    for name in names {
        match check(name) {
            // Shown twice, it would look like a repeated header.
            Ok(fact) if known.contains(&fact) => {}
            Ok(fact) => known.push(fact),
            Err((found, expected)) => {
                errors.push((format!("{found} in the policy's manifest"), expected));
            }
        }
    }
    if errors.is_empty() { Ok(known) } else { Err(errors) }
}

fn shown(name: &str) -> String {
    super::error::bounded(name, 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_request(names: &[&str]) -> Result<Vec<String>, Vec<UnknownFact>> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        crate::policy::fuzzing::known_facts().of_request(&names)
    }

    fn of_response(names: &[&str]) -> Result<Vec<String>, Vec<UnknownFact>> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        crate::policy::fuzzing::known_facts().of_response(&names)
    }

    #[test]
    fn names_and_members_of_families_are_known() {
        let names = [
            "method",
            "scheme",
            "authority",
            "host",
            "upgrade",
            "path",
            "query",
            "client-ip",
            "route",
            "header.X-Api-Key",
            "cookie.SID",
            "query.a b",
            "path.id",
            "request.length",
            "http.version",
            "tls.sni",
            "tls.client.subject",
        ];
        assert_eq!(of_request(&names).unwrap(), names);
        let names =
            ["header.x", "trailer.grpc-status", "request.bytes", "response.bytes", "duration-ms"];
        assert_eq!(of_response(&names).unwrap(), names);
    }

    #[test]
    fn a_fact_named_twice_is_shown_once_and_keeps_its_spelling() {
        assert_eq!(of_request(&["path", "header.X-A", "path"]).unwrap(), ["path", "header.X-A"]);
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_nearest() {
        for (name, nearest) in [
            ("client_ip", "`client-ip`"),
            ("headers.x-api-key", "`header.x-api-key`"),
            ("header.", "`header.`"),
            ("metod", "`method`"),
        ] {
            let (found, expected) = of_request(&[name]).unwrap_err().remove(0);
            assert!(
                found.contains(name) && expected.ends_with(&format!("the nearest is {nearest}")),
                "{found} {expected}"
            );
        }
        assert!(
            of_request(&["tls.client"])
                .unwrap_err()
                .remove(0)
                .0
                .contains("the unknown fact `tls.client`")
        );
        assert!(
            of_response(&["trailers.grpc-status"])
                .unwrap_err()
                .remove(0)
                .1
                .ends_with("the nearest is `trailer.grpc-status`")
        );
        assert!(of_response(&["status"]).is_err());
        assert!(of_request(&["path"; FACTS_MAX + 1]).is_err());
    }
}
