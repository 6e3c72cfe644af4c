//! Converts a guest's answers, for the fuzz targets of `fuzz/policies`. Part of no builds but
//! theirs and those of the tests.

use super::{Decision, FactNames, KnownFacts, Member, Settlement, answer};

pub use super::abi::v0_9::{types, usage};

/// Checks and converts what `decide` answered.
///
/// # Errors
/// What is wrong with it.
pub fn decision(answer: types::Decision, scripts: &[String]) -> Result<Decision, String> {
    answer::decision(answer, scripts)
}

/// Checks and converts what `settle` answered.
///
/// # Errors
/// What is wrong with it.
pub fn settlement(answer: types::Settlement) -> Result<Settlement, String> {
    answer::settlement(answer)
}

/// Checks the facts that a manifest names: those of requests, then those of replies.
///
/// # Errors
/// For each unknown name, what was found and what was expected.
pub fn facts(
    known: &KnownFacts,
    manifest: &mut types::Manifest,
) -> Result<[Vec<String>; 2], Vec<(String, String)>> {
    let declared = answer::declared(manifest, &[]);
    declared.map_err(|wrong| vec![(wrong, "a manifest that follows the contract".to_owned())])?;
    let request = known.of_request(&manifest.request_facts)?;
    let response = known.of_response(&manifest.response_facts)?;
    Ok([request, response])
}

/// The facts that a shipped policy or a test names. In Weir itself the proxy defines them.
#[must_use]
pub fn known_facts() -> KnownFacts {
    KnownFacts {
        request: FactNames {
            single: vec![
                "method",
                "scheme",
                "authority",
                "host",
                "upgrade",
                "path",
                "query",
                "client-ip",
                "route",
                "request.length",
                "http.version",
                "tls.sni",
                "tls.client.subject",
                "body.type",
                "body.bytes",
                "bearer",
                "upstream-path",
                "rls.domain",
                "rls.descriptor",
                "rls.limit",
                "rls.limits",
            ],
            families: vec![
                ("header.", Member::Token),
                ("cookie.", Member::Token),
                ("query.", Member::Text),
                ("path.", Member::Text),
                ("form.", Member::Text),
                ("rls.entry.", Member::Text),
                ("body:", Member::Pointer),
                ("body.json:", Member::Pointer),
            ],
        },
        response: FactNames {
            single: vec!["request.bytes", "response.bytes", "duration-ms"],
            families: vec![("header.", Member::Token), ("trailer.", Member::Token)],
        },
    }
}
