//! The files of the live page: the same for everybody, with nothing of this proxy in them. What it
//! shows comes with `/events`.

use http::StatusCode;

use super::reply;
use crate::wire::Response;

/// A file of the live page.
#[derive(Debug)]
pub(super) struct File {
    content_type: &'static str,
    text: &'static str,
    /// Whether it is what an operator opens.
    pub(super) is_page: bool,
}

pub(super) static PAGE: File = File {
    content_type: "text/html; charset=utf-8",
    text: include_str!("page/index.html"),
    is_page: true,
};
pub(super) static STYLE: File = File {
    content_type: "text/css; charset=utf-8",
    text: include_str!("page/page.css"),
    is_page: false,
};
pub(super) static SCRIPT: File = File {
    content_type: "text/javascript; charset=utf-8",
    text: include_str!("page/page.js"),
    is_page: false,
};
pub(super) static ICON: File =
    File { content_type: "image/svg+xml", text: include_str!("page/icon.svg"), is_page: false };

/// What the page may do. Whatever a client wrote into a path or a key, no script but ours runs, and
/// nothing is asked for or sent elsewhere.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

impl File {
    /// The file, with the fields that confine it.
    pub(super) fn reply(&self) -> Response {
        let mut reply = reply(StatusCode::OK, self.content_type, self.text);
        for (name, value) in [
            ("content-security-policy", CONTENT_SECURITY_POLICY),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cross-origin-opener-policy", "same-origin"),
            ("cross-origin-resource-policy", "same-origin"),
        ] {
            reply.fields.append(name, value);
        }
        reply
    }
}
