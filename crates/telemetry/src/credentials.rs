//! By which names credentials are known: what is never shown, whoever asks.

/// What has one of these words in its name is never shown. `token` is one more, `tokens` is not.
const CREDENTIALS: [&str; 8] =
    ["authorization", "bearer", "password", "passwd", "passphrase", "pwd", "secret", "credential"];

/// Whether what has this name is a password or the like, whatever its case is. API keys are not:
/// limits count by them, so an operator who shows keys shows them.
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
