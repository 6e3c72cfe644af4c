//! Fields that let a browser's scripts read Weir's own responses (the Fetch standard's CORS
//! protocol). Knows no limit.
//!
//! Only Weir's own responses are opened to a route's origins. An upstream decides for itself about
//! its own responses. If it has allowed an origin, Weir's fields are added to those that the script
//! may see. A preflight charges nothing by default: a browser shows its refusal to nobody, and
//! sends it without its user asking for it.

use http::Method;

use crate::proxy::settings::{self, FieldStyle, Preflight};
use crate::telemetry::SettingError;
use crate::wire::{Fields, Known};

/// A route's checked rules.
#[derive(Debug)]
pub(in crate::proxy) struct Cors {
    origins: Origins,
    credentials: bool,
    preflight: Preflight,
    exposed: &'static str,
}

#[derive(Debug)]
enum Origins {
    Any,
    Of(Vec<Origin>),
}

#[derive(Debug, PartialEq, Eq)]
enum Origin {
    Exact(String),
    /// `https://` and `.example.com`, with something in between.
    Subdomain(String, String),
}

impl Cors {
    /// Checks what is written under the setting `at`.
    pub(in crate::proxy) fn build(
        written: &settings::Cors,
        style: FieldStyle,
        at: &str,
        errors: &mut Vec<SettingError>,
    ) -> Option<Self> {
        let before = errors.len();
        let any = written.origins.iter().any(|origin| origin == "*");
        if written.origins.is_empty() {
            errors.push(SettingError::new(
                format!("{at}.origins"),
                "no origin",
                "[\"https://app.example.com\"], or [\"*\"] for all",
            ));
        }
        if any && written.origins.len() > 1 {
            errors.push(SettingError::new(
                format!("{at}.origins"),
                "\"*\" and others",
                "\"*\" alone, or others without it",
            ));
        }
        if any && written.credentials {
            errors.push(SettingError::new(
                format!("{at}.credentials"),
                "credentials for every origin",
                "the origins by name: browsers take no \"*\" with credentials",
            ));
        }
        let origins = written.origins.iter().enumerate().filter(|(_, origin)| *origin != "*").filter_map(|(index, written)| {
            let expected =
                "an origin as browsers send it: \"https://app.example.com\", \"http://localhost:3000\" or \"https://*.example.com\"";
            let origin = Origin::read(written);
            if origin.is_none() {
                errors.push(SettingError::new(
                    format!("{at}.origins[{index}]"),
                    format!("{:?}", written.chars().take(80).collect::<String>()),
                    expected,
                ));
            }
            origin
        });
        let origins: Vec<Origin> = origins.collect();
        let origins = if any { Origins::Any } else { Origins::Of(origins) };
        (errors.len() == before).then(|| Self {
            origins,
            credentials: written.credentials,
            preflight: written.preflight,
            exposed: exposed(style),
        })
    }

    /// Lets `origin` read a response of Weir's own.
    pub(in crate::proxy) fn allow(&self, fields: &mut Fields, origin: Option<&[u8]>) {
        let allowed = match &self.origins {
            Origins::Any => b"*".as_slice(),
            Origins::Of(_) => {
                // Also without an origin or for another one: a cache must not give this response to
                // the next origin.
                fields.append(Known::Vary, "origin");
                let Some(origin) = origin.filter(|origin| self.allows(origin)) else { return };
                origin
            }
        };
        fields.set(Known::AllowOrigin, allowed);
        if self.credentials {
            fields.set(Known::AllowCredentials, "true");
        }
        fields.append(Known::ExposeHeaders, self.exposed);
    }

    /// Exposes Weir's fields to an origin that the upstream has allowed to read its reply.
    pub(in crate::proxy) fn expose(&self, fields: &mut Fields) {
        let said =
            fields.get_all(Known::ExposeHeaders).any(|value| value == self.exposed.as_bytes());
        if fields.has(Known::AllowOrigin) && !said {
            fields.append(Known::ExposeHeaders, self.exposed);
        }
    }

    /// Whether preflights of `origin` bypass policy and limits.
    pub(in crate::proxy) fn bypasses(&self, origin: &[u8]) -> bool {
        self.preflight == Preflight::Bypass && self.allows(origin)
    }

    fn allows(&self, origin: &[u8]) -> bool {
        match &self.origins {
            Origins::Any => true,
            Origins::Of(known) => std::str::from_utf8(origin)
                .is_ok_and(|text| known.iter().any(|origin| origin.is(text))),
        }
    }
}

/// The method that a preflight announces. `None` for any other request.
pub(in crate::proxy) fn preflight(method: &Method, fields: &Fields) -> Option<Method> {
    if *method != Method::OPTIONS || !fields.has(Known::Origin) {
        return None;
    }
    Method::from_bytes(fields.get(Known::RequestMethod)?).ok()
}

/// The fields that report limits, by the names under which scripts ask for them.
fn exposed(style: FieldStyle) -> &'static str {
    match style {
        FieldStyle::Draft => {
            "RateLimit, RateLimit-Policy, Retry-After, X-Request-Id, Weir-Degraded"
        }
        FieldStyle::Legacy => {
            "X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, Retry-After, X-Request-Id, Weir-Degraded"
        }
        FieldStyle::Both => {
            "RateLimit, RateLimit-Policy, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, Retry-After, X-Request-Id, Weir-Degraded"
        }
        FieldStyle::Off => "Retry-After, X-Request-Id, Weir-Degraded",
    }
}

impl Origin {
    fn read(text: &str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        let plain = |text: &str| {
            text.bytes().all(|byte| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-._:[]".contains(&byte)
            })
        };
        let is_scheme = !scheme.is_empty()
            && scheme.bytes().all(|byte| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"+-.".contains(&byte)
            });
        if let Some(suffix) = rest.strip_prefix('*') {
            let fits = is_scheme
                && plain(suffix)
                && suffix.strip_prefix('.').is_some_and(|name| !name.is_empty());
            return fits.then(|| Self::Subdomain(format!("{scheme}://"), suffix.to_owned()));
        }
        // Browsers omit the scheme's default port.
        let default_port = (scheme == "https" && rest.ends_with(":443"))
            || (scheme == "http" && rest.ends_with(":80"));
        (is_scheme && !rest.is_empty() && plain(rest) && !default_port)
            .then(|| Self::Exact(text.to_owned()))
    }

    fn is(&self, text: &str) -> bool {
        match self {
            Self::Exact(known) => known == text,
            Self::Subdomain(scheme, suffix) => {
                let name = text
                    .strip_prefix(scheme.as_str())
                    .and_then(|rest| rest.strip_suffix(suffix.as_str()));
                name.is_some_and(|name| {
                    !name.is_empty()
                        && name
                            .bytes()
                            .all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte))
                })
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

    fn allowed(origins: &[&str], credentials: bool, origin: Option<&str>) -> Fields {
        let cors = Cors::build(
            &settings::Cors { credentials, ..written(origins) },
            FieldStyle::Draft,
            "cors",
            &mut Vec::new(),
        )
        .unwrap();
        let mut fields = Fields::new();
        cors.allow(&mut fields, origin.map(str::as_bytes));
        fields
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
            let fields = allowed(&known, true, Some(origin));
            assert_eq!(fields.get(Known::AllowOrigin), is.then_some(origin.as_bytes()));
            assert_eq!(
                (fields.has(Known::AllowCredentials), fields.has(Known::ExposeHeaders)),
                (is, is)
            );
            assert_eq!(fields.get(Known::Vary), Some(b"origin".as_slice()));
        }
        assert_eq!(allowed(&known, false, None).iter().count(), 1);
        let any = allowed(&["*"], false, Some("https://a"));
        assert_eq!(
            (any.get(Known::AllowOrigin), any.has(Known::Vary)),
            (Some(b"*".as_slice()), false)
        );
    }

    #[test]
    fn an_invalid_origin_is_an_error() {
        let errors = |written: settings::Cors| {
            let mut errors = Vec::new();
            assert!(Cors::build(&written, FieldStyle::Off, "cors", &mut errors).is_none());
            errors.into_iter().map(|error| error.setting).collect::<Vec<_>>()
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
            assert_eq!(errors(written(&["https://ok", origin])), ["cors.origins[1]"], "{origin}");
        }
        assert_eq!(errors(written(&[])), ["cors.origins"]);
        assert_eq!(errors(written(&["*", "https://a"])), ["cors.origins"]);
        assert_eq!(
            errors(settings::Cors { credentials: true, ..written(&["*"]) }),
            ["cors.credentials"]
        );
    }
}
