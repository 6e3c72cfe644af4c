//! The names by which credentials are recognised, so that they are never shown, whoever asks.

/// A value with one of these words in its name is never shown. `token` is another such word,
/// `tokens` is not.
const CREDENTIALS: [&str; 8] =
    ["authorization", "bearer", "password", "passwd", "passphrase", "pwd", "secret", "credential"];

/// Whether a value with this name is a password or the like. Case does not matter. API keys are
/// not: limits count by them, so an operator who shows keys shows them.
#[must_use]
pub fn names_credentials(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let is_token = |(at, token): (usize, &str)| {
        // `max_tokens` is a number.
        !name.get(at + token.len()..).is_some_and(|rest| rest.starts_with('s'))
    };
    CREDENTIALS.iter().any(|word| name.contains(word)) || name.match_indices("token").any(is_token)
}

/// More such words, for header fields: gateways and identity-aware proxies put tokens there that
/// whoever holds them can use.
const HEADER_CREDENTIALS: [&str; 3] = ["jwt", "assertion", "session"];

/// Whether the header field with this name has a client's credentials.
#[must_use]
pub fn is_credentials_header(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    lower == "cookie"
        || HEADER_CREDENTIALS.iter().any(|word| lower.contains(word))
        || names_credentials(name)
}
