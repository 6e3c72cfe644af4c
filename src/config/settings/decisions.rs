//! `[[decisions.tokens]]`.

use super::*;
use crate::proxy::settings::CallScope;

/// Maximum number of tokens.
pub(in crate::config) const TOKENS_MAX: usize = 256;
/// Maximum number of domains of a token.
const DOMAINS_MAX: usize = 256;

/// What a token may be for.
pub(in crate::config) const SCOPES: Choice<'static, CallScope> = Choice(&[
    ("decide", CallScope::Decide),
    ("take", CallScope::Take),
    ("look", CallScope::Look),
    ("settle", CallScope::Settle),
]);

section! {
    tokens = ["[[decisions.tokens]]"],
        "Who may call listeners with `serves = \"decisions\"`, at most 256 tokens; without one, \
         whoever reaches them may.";
    NAME "name": Else<Text> = text("a name of 1 to 64 of A-Z a-z 0-9 . _ -", "required"),
        "What the token is called: decisions that are held, and idempotency keys, belong to it.";
    TOKEN_FILE "token_file": Else<Text> =
        text("a file that holds the token", "required without `token_env`"),
        "The token that callers send as `Authorization: Bearer`.";
    TOKEN_ENV "token_env": Else<Text> =
        text("the name of an environment variable", "required without `token_file`"),
        "The environment variable that holds the token instead.";
    SCOPES_OF "scopes": List = list(
        "array of \"decide\", \"take\", \"look\" or \"settle\"", 4, "required",
    ),
        "What it is for: decisions by policies, which Envoy's rate limit service asks for as well; \
         decisions by limits that callers send; looks; what becomes of decisions.";
    DOMAINS "domains": List = list("array of domains", DOMAINS_MAX, "all"),
        "The domains that it may ask about.";
}
