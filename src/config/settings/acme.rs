//! `[acme]`.

use super::*;
use weir_acme::ChallengeKind;

/// Maximum number of contacts.
const CONTACTS_MAX: usize = 8;
/// The challenges that Weir can answer.
pub(in crate::config) const CHALLENGES: Choice<'static, ChallengeKind> =
    Choice(&[("tls-alpn-01", ChallengeKind::TlsAlpn01), ("http-01", ChallengeKind::Http01)]);

section! {
    acme = ["[acme]"],
        "The authority that certificates with `acme = true` are ordered from; see \
         [tls.md](tls.md).";
    DIRECTORY "directory": Else<Text> = text(
        "an https:// URL of an authority's directory",
        "\"https://acme-v02.api.letsencrypt.org/directory\"",
    ),
        "Where its directory is.";
    ACCEPT_TERMS "accept_terms_of_service": Is<Flag> = flag(false),
        "Whether you agree to its terms of service, without which it issues nothing.";
    CONTACT "contact": List = list("array of URLs such as \"mailto:ops@example.com\"", CONTACTS_MAX, "[]"),
        "Where it can reach you.";
    FOLDER "folder": Else<Text> = text("a folder, such as \"acme\"", "required"),
        "Where the account, the certificates and their keys are kept; shared by all proxies that \
         serve the same names.";
    CHALLENGES_ "challenges": List =
        list("array of \"tls-alpn-01\" and \"http-01\"", 2, "[\"tls-alpn-01\", \"http-01\"]"),
        "How it may check that a name is served here, the preferred way first: in a handshake on \
         port 443, or by a request on port 80.";
    PROFILE "profile": Else<Text> = text("the name of a profile, such as \"shortlived\"", "the authority's default"),
        "The kind of certificate, of those that it offers.";
    EXTERNAL_ID "external_account": Else<Text> = text("the id of an account's key", "none"),
        "Your account with it, if it asks for one (external account binding).";
    EXTERNAL_KEY_FILE "external_account_key_file": Else<Text> =
        text("a file that holds the secret", "none"),
        "The key of this account, in base64url.";
    EXTERNAL_KEY_ENV "external_account_key_env": Else<Text> =
        text("the name of an environment variable", "none"),
        "The variable that holds it instead.";
}
