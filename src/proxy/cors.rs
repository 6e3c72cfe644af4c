//! What a browser's script needs to be allowed to read Weir's own answers (the Fetch standard's CORS protocol). Knows no limit.
//!
//! Only Weir's own answers are opened to the origins that a route names: what an upstream says, to whom, is the upstream's business, and where it has
//! allowed an origin, Weir's fields are added to those that the script may see. A preflight charges nothing by default: a browser shows its refusal to
//! nobody, and sends it where its user did not ask for it.

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, ORIGIN,
    VARY,
};
use http::{HeaderMap, HeaderValue, Method};

use super::settings::{self, FieldStyle, Preflight};
use crate::telemetry::Mistake;

/// A route's rules, checked.
#[derive(Debug)]
pub(super) struct Cors {
    origins: Origins,
    credentials: bool,
    preflight: Preflight,
    exposed: HeaderValue,
}

#[derive(Debug)]
enum Origins {
    Any,
    Of(Vec<Origin>),
}

#[derive(Debug, PartialEq, Eq)]
enum Origin {
    Exact(String),
    /// `https://` and `.example.com`, with something between them.
    Under(String, String),
}

impl Cors {
    /// Checks what is written under the setting `at`.
    pub(super) fn build(written: &settings::Cors, style: FieldStyle, at: &str, mistakes: &mut Vec<Mistake>) -> Option<Self> {
        let before = mistakes.len();
        let any = written.origins.iter().any(|origin| origin == "*");
        if written.origins.is_empty() {
            mistakes.push(Mistake::new(format!("{at}.origins"), "no origin", "[\"https://app.example.com\"], or [\"*\"] for all"));
        }
        if any && written.origins.len() > 1 {
            mistakes.push(Mistake::new(format!("{at}.origins"), "\"*\" and others", "\"*\" alone, or others without it"));
        }
        if any && written.credentials {
            mistakes.push(Mistake::new(
                format!("{at}.credentials"),
                "credentials for every origin",
                "the origins by name: browsers take no \"*\" with credentials",
            ));
        }
        let origins = written.origins.iter().enumerate().filter(|(_, origin)| *origin != "*").filter_map(|(place, written)| {
            let expected =
                "an origin as browsers send it: \"https://app.example.com\", \"http://localhost:3000\" or \"https://*.example.com\"";
            let origin = Origin::read(written);
            if origin.is_none() {
                mistakes.push(Mistake::new(
                    format!("{at}.origins[{place}]"),
                    format!("{:?}", written.chars().take(80).collect::<String>()),
                    expected,
                ));
            }
            origin
        });
        let origins: Vec<Origin> = origins.collect();
        let origins = if any { Origins::Any } else { Origins::Of(origins) };
        (mistakes.len() == before).then(|| Self {
            origins,
            credentials: written.credentials,
            preflight: written.preflight,
            exposed: exposed(style),
        })
    }

    /// Opens an answer of Weir's own to `origin`.
    pub(super) fn allow(&self, headers: &mut HeaderMap, origin: Option<&HeaderValue>) {
        let allowed = match &self.origins {
            Origins::Any => HeaderValue::from_static("*"),
            Origins::Of(_) => {
                // Also where there is none or another: a cache must not give this answer to the next origin.
                headers.append(VARY, HeaderValue::from_static("origin"));
                let Some(origin) = origin.filter(|origin| self.knows(origin)) else { return };
                origin.clone()
            }
        };
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
        if self.credentials {
            headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
        }
        headers.append(ACCESS_CONTROL_EXPOSE_HEADERS, self.exposed.clone());
    }

    /// Shows Weir's fields to whom the upstream has allowed to read its reply.
    pub(super) fn expose(&self, headers: &mut HeaderMap) {
        let said = headers.get_all(ACCESS_CONTROL_EXPOSE_HEADERS).iter().any(|value| *value == self.exposed);
        if headers.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) && !said {
            headers.append(ACCESS_CONTROL_EXPOSE_HEADERS, self.exposed.clone());
        }
    }

    /// Whether policy and limits are left aside for the preflights of `origin`.
    pub(super) fn bypasses(&self, origin: &HeaderValue) -> bool {
        self.preflight == Preflight::Bypass && self.knows(origin)
    }

    fn knows(&self, origin: &HeaderValue) -> bool {
        match &self.origins {
            Origins::Any => true,
            Origins::Of(known) => origin.to_str().is_ok_and(|text| known.iter().any(|origin| origin.is(text))),
        }
    }
}

/// The method that a preflight asks for; `None` for any other request.
pub(super) fn preflight(method: &Method, headers: &HeaderMap) -> Option<Method> {
    if *method != Method::OPTIONS || !headers.contains_key(ORIGIN) {
        return None;
    }
    Method::from_bytes(headers.get(ACCESS_CONTROL_REQUEST_METHOD)?.as_bytes()).ok()
}

/// The fields that tell of limits, by the names under which a script asks for them.
fn exposed(style: FieldStyle) -> HeaderValue {
    HeaderValue::from_static(match style {
        FieldStyle::Draft => "RateLimit, RateLimit-Policy, Retry-After, X-Request-Id, Weir-Degraded",
        FieldStyle::Legacy => "X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, Retry-After, X-Request-Id, Weir-Degraded",
        FieldStyle::Both => {
            "RateLimit, RateLimit-Policy, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, Retry-After, X-Request-Id, Weir-Degraded"
        }
        FieldStyle::Off => "Retry-After, X-Request-Id, Weir-Degraded",
    })
}

impl Origin {
    fn read(text: &str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-._:[]".contains(&byte));
        let is_scheme =
            !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"+-.".contains(&byte));
        if let Some(suffix) = rest.strip_prefix('*') {
            let fits = is_scheme && plain(suffix) && suffix.strip_prefix('.').is_some_and(|name| !name.is_empty());
            return fits.then(|| Self::Under(format!("{scheme}://"), suffix.to_owned()));
        }
        // Browsers leave the scheme's own port off.
        let default_port = (scheme == "https" && rest.ends_with(":443")) || (scheme == "http" && rest.ends_with(":80"));
        (is_scheme && !rest.is_empty() && plain(rest) && !default_port).then(|| Self::Exact(text.to_owned()))
    }

    fn is(&self, text: &str) -> bool {
        match self {
            Self::Exact(known) => known == text,
            Self::Under(scheme, suffix) => {
                let name = text.strip_prefix(scheme.as_str()).and_then(|rest| rest.strip_suffix(suffix.as_str()));
                name.is_some_and(|name| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(origins: &[&str]) -> settings::Cors {
        settings::Cors {
            origins: origins.iter().map(|origin| (*origin).to_owned()).collect(),
            credentials: false,
            preflight: Preflight::Bypass,
        }
    }

    fn allowed(origins: &[&str], credentials: bool, origin: Option<&'static str>) -> HeaderMap {
        let cors = Cors::build(&settings::Cors { credentials, ..written(origins) }, FieldStyle::Draft, "cors", &mut Vec::new()).unwrap();
        let mut headers = HeaderMap::new();
        cors.allow(&mut headers, origin.map(HeaderValue::from_static).as_ref());
        headers
    }

    #[test]
    fn an_answer_is_opened_to_the_origins_that_are_named() {
        let known = ["https://app.example", "http://localhost:3000", "https://*.team.example"];
        for (origin, is) in [
            ("https://app.example", true),
            ("http://localhost:3000", true),
            ("https://a.b.team.example", true),
            ("https://team.example", false),
            ("https://.team.example", false),
            ("https://evil/.team.example", false),
            ("http://a.team.example", false),
            ("https://app.example.evil", false),
            ("http://app.example", false),
            ("null", false),
        ] {
            let headers = allowed(&known, true, Some(origin));
            assert_eq!(headers.get(ACCESS_CONTROL_ALLOW_ORIGIN).map(HeaderValue::as_bytes), is.then_some(origin.as_bytes()));
            assert_eq!(
                (headers.contains_key(ACCESS_CONTROL_ALLOW_CREDENTIALS), headers.contains_key(ACCESS_CONTROL_EXPOSE_HEADERS)),
                (is, is)
            );
            assert_eq!(headers.get(VARY).unwrap(), "origin");
        }
        assert_eq!(allowed(&known, false, None).len(), 1);
        let any = allowed(&["*"], false, Some("https://a"));
        assert_eq!((any.get(ACCESS_CONTROL_ALLOW_ORIGIN).unwrap(), any.contains_key(VARY)), (&HeaderValue::from_static("*"), false));
    }

    #[test]
    fn what_is_no_origin_is_a_mistake() {
        let mistakes = |written: settings::Cors| {
            let mut mistakes = Vec::new();
            assert!(Cors::build(&written, FieldStyle::Off, "cors", &mut mistakes).is_none());
            mistakes.into_iter().map(|mistake| mistake.setting).collect::<Vec<_>>()
        };
        for origin in [
            "app.example",
            "https://App.example",
            "https://a/",
            "https://",
            "https://a:443",
            "http://a:80",
            "https://*",
            "https://*a.b",
            "null",
        ] {
            assert_eq!(mistakes(written(&["https://ok", origin])), ["cors.origins[1]"], "{origin}");
        }
        assert_eq!(mistakes(written(&[])), ["cors.origins"]);
        assert_eq!(mistakes(written(&["*", "https://a"])), ["cors.origins"]);
        assert_eq!(mistakes(settings::Cors { credentials: true, ..written(&["*"]) }), ["cors.credentials"]);
    }
}
