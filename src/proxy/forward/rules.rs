//! A route's changes to header fields: remove, set, add. Knows neither requests nor replies.

use http::{HeaderName, HeaderValue};

use crate::plan::is_reserved_field;
use crate::proxy::decide::policy_fields;
use crate::proxy::settings::HeaderRules;
use crate::spelling;
use crate::telemetry::SettingError;
use crate::wire::Fields;

/// Maximum bytes of a value.
const VALUE_BYTES_MAX: usize = 4 << 10;

/// Checked changes, in the order in which they are applied.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Rules {
    remove: Vec<HeaderName>,
    set: Vec<(HeaderName, HeaderValue)>,
    add: Vec<(HeaderName, HeaderValue)>,
}

impl Rules {
    /// Checks the rules under the setting `at`. `None` if there are none.
    ///
    /// # Errors
    /// All errors: invalid names, names that belong to a connection or to message framing, and
    /// invalid values.
    pub(in crate::proxy) fn build(
        written: &HeaderRules,
        at: &str,
    ) -> Result<Option<Self>, Vec<SettingError>> {
        let mut errors = Vec::new();
        let mut rules = Self {
            remove: written
                .remove
                .iter()
                .enumerate()
                .filter_map(|(index, name)| {
                    self::name(name)
                        .map_err(|why| {
                            errors.push(error(&format!("{at}.remove[{index}]"), name, why))
                        })
                        .ok()
                })
                .collect(),
            set: fields(&written.set, &format!("{at}.set"), true, &mut errors),
            add: fields(&written.add, &format!("{at}.add"), false, &mut errors),
        };
        for secret in &written.secrets {
            let sets = secret.key.starts_with("set");
            let into = if sets { &mut rules.set } else { &mut rules.add };
            push(
                into,
                &format!("{at}.{}", secret.key),
                (&secret.name, &secret.value),
                sets,
                true,
                &mut errors,
            );
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        Ok(Some(rules).filter(|_| *written != HeaderRules::default()))
    }

    /// The fields that are changed.
    pub(in crate::proxy) fn names(&self) -> impl Iterator<Item = &HeaderName> {
        let set = self.set.iter().chain(&self.add).map(|(name, _)| name);
        self.remove.iter().chain(set)
    }

    /// Removes the fields that an upstream may read as one of those that are removed or set.
    pub(in crate::proxy) fn remove_ambiguous(&self, fields: &mut Fields) {
        let names = self.remove.iter().chain(self.set.iter().map(|(name, _)| name));
        policy_fields::remove_spelled_otherwise(fields, |name| {
            names.clone().any(|own| spelling::is_same(own.as_str().as_bytes(), name))
        });
    }

    /// Applies the changes.
    pub(in crate::proxy) fn apply(&self, fields: &mut Fields) {
        for name in &self.remove {
            fields.remove(name);
        }
        for (name, value) in &self.set {
            fields.set(name, value);
        }
        for (name, value) in &self.add {
            fields.append(name, value);
        }
    }
}

/// Checks names and values under the setting `at`. `once`: no name may occur twice.
pub(in crate::proxy) fn fields(
    written: &[(String, String)],
    at: &str,
    once: bool,
    errors: &mut Vec<SettingError>,
) -> Vec<(HeaderName, HeaderValue)> {
    let mut fields: Vec<(HeaderName, HeaderValue)> = Vec::with_capacity(written.len());
    for (name, value) in written {
        push(&mut fields, at, (name, value), once, false, errors);
    }
    fields
}

/// Checks one name and value under the setting `at`. Errors never show the value, and logs never
/// that of a `secret` one.
fn push(
    fields: &mut Vec<(HeaderName, HeaderValue)>,
    at: &str,
    (name, value): (&str, &str),
    once: bool,
    secret: bool,
    errors: &mut Vec<SettingError>,
) {
    let setting = format!("{at}.{name}");
    let name = match self::name(name) {
        Ok(header) if once && fields.iter().any(|(known, _)| *known == header) => {
            Err((name, "each name once: names are case-insensitive"))
        }
        Ok(header) => Ok(header),
        Err(why) => Err((name, why)),
    };
    // Whatever the setting, it may be a key of the upstream's.
    let shown = "a value that is not shown";
    let value = HeaderValue::from_bytes(value.as_bytes())
        .ok()
        .filter(|_| value.len() <= VALUE_BYTES_MAX && value.trim() == value)
        .ok_or((shown, "a field's value: at most 4096 visible characters and blanks between them"));
    match (name, value) {
        (Ok(name), Ok(mut value)) => {
            value.set_sensitive(secret);
            fields.push((name, value));
        }
        (Err((found, why)), _) => errors.push(error(&setting, found, why).in_key()),
        (Ok(_), Err((found, why))) => errors.push(error(&setting, found, why)),
    }
}

/// Checks the setting `at`.content_type.
pub(in crate::proxy) fn content_type(
    written: &str,
    at: &str,
    errors: &mut Vec<SettingError>,
) -> Option<HeaderValue> {
    let main = written.split(';').next().unwrap_or_default().trim();
    let token = |text: &str| HeaderName::from_bytes(text.as_bytes()).is_ok();
    let fits = main.split_once('/').is_some_and(|(kind, sub)| token(kind) && token(sub));
    let value = HeaderValue::from_str(written).ok().filter(|_| fits);
    if value.is_none() {
        errors.push(error(
            &format!("{at}.content_type"),
            written,
            "a media type such as \"application/json\" or \"text/html; charset=utf-8\"",
        ));
    }
    value
}

fn name(name: &str) -> Result<HeaderName, &'static str> {
    let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| "a field's name")?;
    match header.as_str() {
        "host" => Err("another field: what the upstream gets as Host is said by `upstream_host`"),
        name if is_reserved_field(name) => Err(
            "a field that is forwarded: this one belongs to a connection, or says where a message ends",
        ),
        _ => Ok(header),
    }
}

fn error(setting: &str, found: &str, expected: &str) -> SettingError {
    SettingError::new(
        setting,
        format!("{:?}", found.chars().take(80).collect::<String>()),
        expected,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::settings::SecretField;

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn they_are_done_in_their_order() {
        let written = HeaderRules {
            set: pairs(&[("X-Set", "new"), ("x-both", "1")]),
            add: pairs(&[("x-both", "2"), ("x-both", "3")]),
            remove: vec!["X-Gone".into(), "x-both".into()],
            secrets: Vec::new(),
        };
        let mut fields = Fields::new();
        for (name, value) in [
            ("X-Set", "old"),
            ("x-set", "older"),
            ("x-gone", "1"),
            ("x-kept", "1"),
            ("x-both", "0"),
        ] {
            fields.append(name, value);
        }
        Rules::build(&written, "r").unwrap().unwrap().apply(&mut fields);
        let all = |name: &str| {
            fields
                .get_all(name)
                .map(|value| String::from_utf8(value.to_vec()).unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!((all("x-set"), all("x-kept")), (vec!["new".to_owned()], vec!["1".to_owned()]));
        assert_eq!(all("x-both"), ["1", "2", "3"]);
        assert!(!fields.has("x-gone"));
        assert!(Rules::build(&HeaderRules::default(), "r").unwrap().is_none());
    }

    #[test]
    fn an_invalid_value_is_reported_with_its_place() {
        let written = HeaderRules {
            set: pairs(&[
                ("Host", "a"),
                ("content-length", "1"),
                ("x-a", "s3cret\nb"),
                ("x-b", " s3cret"),
                ("x-c", "1"),
                ("X-C", "2"),
                ("x-d", "\u{20ac}"),
            ]),
            add: pairs(&[("connection", "close"), ("a b", "1")]),
            remove: vec!["x-fine".into(), "transfer-encoding".into()],
            secrets: Vec::new(),
        };
        let errors = Rules::build(&written, "routes[0].request_headers").unwrap_err();
        let settings: Vec<&str> = errors
            .iter()
            .filter_map(|error| error.setting.strip_prefix("routes[0].request_headers."))
            .collect();
        let expected = [
            "remove[1]",
            "set.Host",
            "set.content-length",
            "set.x-a",
            "set.x-b",
            "set.X-C",
            "add.connection",
            "add.a b",
        ];
        // A value beyond ASCII is sent as UTF-8.
        assert_eq!(settings, expected);
        assert!(errors[1].expected.contains("upstream_host"), "{}", errors[1]);
        assert!(!errors.iter().any(|error| error.to_string().contains("s3cret")), "{errors:?}");
    }

    #[test]
    fn a_value_from_elsewhere_is_set_and_never_shown() {
        let secret = |key, name: &str, value: &str| SecretField {
            key,
            name: name.into(),
            value: value.into(),
        };
        let written = HeaderRules {
            secrets: vec![
                secret("set_file", "Authorization", "s3cret"),
                secret("add_env", "x-key", "s3cret2"),
            ],
            ..HeaderRules::default()
        };
        let rules = Rules::build(&written, "r").unwrap().unwrap();
        let mut fields = Fields::new();
        fields.append("authorization", "client's");
        fields.append("x-key", "1");
        rules.apply(&mut fields);
        assert_eq!(fields.get_all("authorization").collect::<Vec<_>>(), [b"s3cret"]);
        assert_eq!(fields.get_all("x-key").collect::<Vec<_>>(), [b"1".as_slice(), b"s3cret2"]);
        assert!(!format!("{rules:?} {written:?}").contains("s3cret"), "{rules:?} {written:?}");

        let wrong = HeaderRules {
            set: pairs(&[("x-a", "1")]),
            secrets: vec![
                secret("set_file", "X-A", "s3cret"),
                secret("set_env", "x-b", "s3cret\nx"),
                secret("add_file", "te", "s3cret"),
            ],
            ..HeaderRules::default()
        };
        let errors = Rules::build(&wrong, "r").unwrap_err();
        let settings: Vec<&str> = errors.iter().map(|error| error.setting.as_str()).collect();
        assert_eq!(settings, ["r.set_file.X-A", "r.set_env.x-b", "r.add_file.te"]);
        assert!(!errors.iter().any(|error| error.to_string().contains("s3cret")), "{errors:?}");
    }
}
