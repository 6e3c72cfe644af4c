//! The directives that keep requests out, or answer them otherwise. Weir refuses the requests that
//! they are for.

use crate::cli::import::directives::Directive;

/// Guards by their names, in lower case.
const GUARDS: &[&str] = &[
    "allow",
    "basicrule",
    "checkrule",
    "deniedurl",
    "deny",
    "if",
    "internal",
    "js_access",
    "limit_except",
    "oidc",
    "rewrite",
    "satisfy",
    "ssl_client_certificate",
    "ssl_reject_handshake",
    "ssl_verify_client",
    "testcookie",
    "valid_referers",
];
/// Guards of nginx and its modules by the beginnings of their names: each has several directives.
const GUARDS_OF_MODULES: &[&str] =
    &["access_by_", "auth_", "modsecurity", "oidc_", "secrules", "secure_link", "testcookie_"];
/// Those that hold for a location alone and not for the ones inside it. All others are inherited.
const OF_ONE_LOCATION: &[&str] = &["if", "limit_except", "rewrite", "valid_referers"];

pub(super) fn is_guard(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    GUARDS.contains(&name.as_str())
        || name.contains("rewrite_by_")
        || GUARDS_OF_MODULES.iter().any(|beginning| name.starts_with(beginning))
}

/// The first guard in a block.
pub(super) fn guard(block: &[Directive]) -> Option<&Directive> {
    block.iter().find(|one| is_guard(&one.name))
}

/// The guard of a location: its own, or one that it inherits from those around it. `chain` has its
/// own block first.
pub(super) fn guard_of<'a>(chain: &[&'a [Directive]]) -> Option<&'a Directive> {
    let (own, around) = chain.split_first()?;
    let is_inherited =
        |one: &&Directive| is_guard(&one.name) && !OF_ONE_LOCATION.contains(&one.name.as_str());
    let inherited = || around.iter().find_map(|block| block.iter().find(is_inherited));
    guard(own).or_else(inherited)
}
