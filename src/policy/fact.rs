//! The names of facts, as a manifest writes them, into what they mean.
//!
//! The names are the contract's (`policy.wit`): an unknown one refuses the configuration, so that
//! new facts never change the contract.

/// Facts of a request, and of a response, that one policy may name.
const FACTS_MAX: usize = 64;
/// Bytes of a fact's name, at most.
const NAME_BYTES_MAX: usize = 256;

/// Something that a policy may ask to see.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FactName {
    /// As the manifest wrote it: the name under which the fact is shown.
    pub text: String,
    /// What it means.
    pub kind: FactKind,
}

/// Each known fact of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each variant is the fact's name in policy.wit")]
pub enum FactKind {
    Method,
    Scheme,
    Authority,
    Path,
    Query,
    ClientIp,
    Route,
    /// The field's name in lower case.
    Header(String),
    Cookie(String),
    QueryParameter(String),
    PathParameter(String),
    RequestLength,
    HttpVersion,
    TlsSni,
    TlsClientSubject,
}

const PLAIN: [(&str, FactKind); 11] = [
    ("method", FactKind::Method),
    ("scheme", FactKind::Scheme),
    ("authority", FactKind::Authority),
    ("path", FactKind::Path),
    ("query", FactKind::Query),
    ("client-ip", FactKind::ClientIp),
    ("route", FactKind::Route),
    ("request.length", FactKind::RequestLength),
    ("http.version", FactKind::HttpVersion),
    ("tls.sni", FactKind::TlsSni),
    ("tls.client.subject", FactKind::TlsClientSubject),
];
const FAMILIES: [&str; 4] = ["header", "cookie", "query", "path"];
const RESPONSE_PLAIN: [&str; 3] = ["request.bytes", "response.bytes", "duration-ms"];
const RESPONSE_FAMILIES: [&str; 2] = ["header", "trailer"];

/// What was found and what was expected.
pub(super) type Unknown = (String, String);

/// A manifest's request facts, each once.
pub(super) fn of_request(names: &[String]) -> Result<Vec<FactName>, Vec<Unknown>> {
    each(names, |name| request_kind(name).map(|kind| FactName { text: name.to_owned(), kind }))
}

/// A manifest's response facts, each once.
pub(super) fn of_response(names: &[String]) -> Result<Vec<String>, Vec<Unknown>> {
    each(names, |name| {
        let in_family = name
            .split_once('.')
            .is_some_and(|(family, own)| RESPONSE_FAMILIES.contains(&family) && is_token(own));
        if RESPONSE_PLAIN.contains(&name) || in_family {
            return Ok(name.to_owned());
        }
        Err(unknown("response fact", name, &RESPONSE_PLAIN, &RESPONSE_FAMILIES))
    })
}

fn each<T: PartialEq>(
    names: &[String],
    parse: impl Fn(&str) -> Result<T, Unknown>,
) -> Result<Vec<T>, Vec<Unknown>> {
    if names.len() > FACTS_MAX {
        return Err(vec![(
            format!("a manifest with {} facts", names.len()),
            format!("at most {FACTS_MAX}"),
        )]);
    }
    let mut known = Vec::with_capacity(names.len());
    let mut mistakes = Vec::new();
    for name in names {
        match parse(name) {
            // A fact that is named twice would be shown twice, and look like a repeated header.
            Ok(fact) if known.contains(&fact) => {}
            Ok(fact) => known.push(fact),
            Err(mistake) => mistakes.push(mistake),
        }
    }
    if mistakes.is_empty() { Ok(known) } else { Err(mistakes) }
}

fn request_kind(name: &str) -> Result<FactKind, Unknown> {
    if let Some((_, kind)) = PLAIN.iter().find(|(known, _)| *known == name) {
        return Ok(kind.clone());
    }
    let kind = match name.split_once('.').filter(|_| name.len() <= NAME_BYTES_MAX) {
        Some(("header", own)) if is_token(own) => Some(FactKind::Header(own.to_ascii_lowercase())),
        Some(("cookie", own)) if is_token(own) => Some(FactKind::Cookie(own.to_owned())),
        Some(("query", own)) if !own.is_empty() => Some(FactKind::QueryParameter(own.to_owned())),
        Some(("path", own)) if !own.is_empty() => Some(FactKind::PathParameter(own.to_owned())),
        _ => None,
    };
    kind.ok_or_else(|| unknown("fact", name, &PLAIN.each_ref().map(|(known, _)| *known), &FAMILIES))
}

/// Says which known name is nearest, be it a whole one or a family with a member.
fn unknown(what: &str, name: &str, plain: &[&str], families: &[&str]) -> Unknown {
    let name = shown(name);
    let member = name.split_once('.').map_or("NAME", |(_, own)| own);
    let candidates = plain
        .iter()
        .map(|known| (*known).to_owned())
        .chain(families.iter().map(|family| format!("{family}.{member}")));
    let nearest = candidates.min_by_key(|candidate| strsim::damerau_levenshtein(&name, candidate));
    let all = plain
        .iter()
        .map(|known| format!("`{known}`"))
        .chain(families.iter().map(|family| format!("`{family}.NAME`")));
    let all = all.collect::<Vec<_>>().join(", ");
    let nearest =
        nearest.map(|nearest| format!("; the nearest is `{nearest}`")).unwrap_or_default();
    (
        format!("the unknown {what} `{name}` in the policy's manifest"),
        format!("one of {all}{nearest}"),
    )
}

fn shown(name: &str) -> String {
    super::error::bounded(name, 64)
}

/// A token of RFC 9110, section 5.6.2: what a field's name, or a cookie's, may be.
pub(super) fn is_token(text: &str) -> bool {
    let tchar = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(tchar)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(name: &str) -> FactKind {
        of_request(&[name.to_owned()]).unwrap().remove(0).kind
    }

    #[test]
    fn every_name_of_the_contract_is_known() {
        assert_eq!(kind("client-ip"), FactKind::ClientIp);
        assert_eq!(kind("http.version"), FactKind::HttpVersion);
        assert_eq!(kind("tls.sni"), FactKind::TlsSni);
        assert_eq!(kind("tls.client.subject"), FactKind::TlsClientSubject);
        assert_eq!(kind("header.X-Api-Key"), FactKind::Header("x-api-key".into()));
        assert_eq!(kind("cookie.SID"), FactKind::Cookie("SID".into()));
        assert_eq!(kind("query.a b"), FactKind::QueryParameter("a b".into()));
        assert_eq!(kind("path.id"), FactKind::PathParameter("id".into()));
        let names =
            ["header.x", "trailer.grpc-status", "request.bytes", "response.bytes", "duration-ms"]
                .map(str::to_owned);
        assert_eq!(of_response(&names).unwrap(), names);
    }

    #[test]
    fn a_fact_named_twice_is_shown_once_and_keeps_its_spelling() {
        let names = ["path", "header.X-A", "path"].map(str::to_owned);
        let texts: Vec<String> =
            of_request(&names).unwrap().into_iter().map(|fact| fact.text).collect();
        assert_eq!(texts, ["path", "header.X-A"]);
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_nearest() {
        for (name, nearest) in [
            ("client_ip", "`client-ip`"),
            ("headers.x-api-key", "`header.x-api-key`"),
            ("header.", "`header.`"),
            ("metod", "`method`"),
        ] {
            let (found, expected) = of_request(&[name.to_owned()]).unwrap_err().remove(0);
            assert!(
                found.contains(name) && expected.ends_with(&format!("the nearest is {nearest}")),
                "{found} {expected}"
            );
        }
        assert!(
            of_request(&["tls.client".into()])
                .unwrap_err()
                .remove(0)
                .0
                .contains("the unknown fact `tls.client`")
        );
        assert!(
            of_response(&["trailers.grpc-status".into()])
                .unwrap_err()
                .remove(0)
                .1
                .ends_with("the nearest is `trailer.grpc-status`")
        );
        assert!(of_response(&["status".into()]).is_err());
        assert!(of_request(&vec!["path".into(); FACTS_MAX + 1]).is_err());
    }
}
