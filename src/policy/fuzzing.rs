//! For the fuzz targets of `fuzz/policies`: answers as a guest gives them, and what becomes of
//! them. Not part of any build but theirs and that of the tests.

use super::{Decision, KnownFacts, Settlement, answer};

pub use super::abi::weir::policy::types;

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
    manifest: &types::Manifest,
) -> Result<[Vec<String>; 2], Vec<(String, String)>> {
    let request = known.of_request(&manifest.request_facts)?;
    let response = known.of_response(&manifest.response_facts)?;
    Ok([request, response])
}
