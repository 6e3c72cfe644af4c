//! The variables of a pattern: which ones there are, and what the value of each says about a
//! request.

use std::borrow::Cow;

use super::line::{Line, unescaped};
use super::time;

/// Maximum number of characters that an error shows of what was found.
const FOUND_CHARS_MAX: usize = 40;
/// The beginning of a header field's variable.
const HEADER: &str = "http_";

/// What a variable says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Variable {
    Client,
    TimeLocal,
    TimeIso,
    Milliseconds,
    Request,
    Method,
    Target,
    Path,
    Query,
    Version,
    Status,
    Bytes,
    RequestTime,
    Host,
    Scheme,
    Header(String),
    /// Not of interest here.
    Other,
}

/// The variables that are used here. `$http_NAME` is, too.
static KNOWN: [(&str, Variable); 21] = [
    ("remote_addr", Variable::Client),
    ("realip_remote_addr", Variable::Client),
    ("time_local", Variable::TimeLocal),
    ("time_iso8601", Variable::TimeIso),
    ("msec", Variable::Milliseconds),
    ("request", Variable::Request),
    ("request_method", Variable::Method),
    ("request_uri", Variable::Target),
    ("uri", Variable::Path),
    ("document_uri", Variable::Path),
    ("args", Variable::Query),
    ("query_string", Variable::Query),
    ("server_protocol", Variable::Version),
    ("status", Variable::Status),
    ("body_bytes_sent", Variable::Bytes),
    ("bytes_sent", Variable::Bytes),
    ("bytes", Variable::Bytes),
    ("request_time", Variable::RequestTime),
    ("host", Variable::Host),
    ("http_host", Variable::Host),
    ("scheme", Variable::Scheme),
];

/// Variables of nginx, and `$identity` of the common format, that are not used here.
const IGNORED: [&str; 47] = [
    "ancient_browser",
    "binary_remote_addr",
    "connection",
    "connection_requests",
    "connection_time",
    "content_length",
    "content_type",
    "document_root",
    "gzip_ratio",
    "hostname",
    "http2",
    "http3",
    "https",
    "identity",
    "invalid_referer",
    "is_args",
    "is_request_port",
    "limit_conn_status",
    "limit_rate",
    "limit_req_status",
    "memcached_key",
    "modern_browser",
    "msie",
    "nginx_version",
    "pid",
    "pipe",
    "realip_remote_port",
    "realpath_root",
    "remote_port",
    "remote_user",
    "request_body",
    "request_body_file",
    "request_completion",
    "request_filename",
    "request_id",
    "request_length",
    "request_port",
    "server_addr",
    "server_name",
    "server_port",
    "session_log_binary_id",
    "session_log_id",
    "slice_range",
    "spdy",
    "uid_got",
    "uid_reset",
    "uid_set",
];

/// Beginnings of more of them. A pattern's own names begin with an underscore.
const IGNORED_PREFIXES: [&str; 18] = [
    "_",
    "arg_",
    "connections_",
    "cookie_",
    "date_",
    "fastcgi_",
    "geoip2_",
    "geoip_",
    "jwt_",
    "otel_",
    "proxy_",
    "sent_http_",
    "sent_trailer_",
    "ssl_",
    "tcpinfo_",
    "trailer_",
    "upstream_",
    "secure_link",
];

impl Variable {
    /// # Errors
    /// What was expected in its place, and which known name is nearest.
    pub(super) fn named(name: &str) -> Result<Self, String> {
        if let Some((_, variable)) = KNOWN.iter().find(|(known, _)| *known == name) {
            return Ok(variable.clone());
        }
        if let Some(field) = name.strip_prefix(HEADER).filter(|field| !field.is_empty()) {
            return Ok(Self::Header(field.replace('_', "-")));
        }
        let is_ignored = IGNORED_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        if is_ignored || IGNORED.contains(&name) {
            return Ok(Self::Other);
        }
        let nearest: Vec<String> = nearest(name).iter().map(|known| format!("${known}")).collect();
        let nearest = match nearest.is_empty() {
            true => String::new(),
            false => format!("the nearest is {}; ", nearest.join(" or ")),
        };
        let known: Vec<String> = KNOWN.iter().map(|(known, _)| format!("${known}")).collect();
        Err(format!(
            "expected a known variable: {nearest}known are {}, ${HEADER}NAME for a header field, and \
             nginx's other variables; to ignore a variable of your own, write $_{name}",
            known.join(", ")
        ))
    }

    pub(super) fn tell<'l>(
        &self,
        value: &'l str,
        line: &mut Line<'l>,
    ) -> Result<(), Cow<'static, str>> {
        let known = Some(value).filter(|value| !value.is_empty() && *value != "-");
        let stamp = |us: Option<i64>, expected: &str| {
            us.map(Some).ok_or_else(|| format!("found the time {value:?}, expected {expected}"))
        };
        match self {
            Self::Client => line.client = known.map(Cow::Borrowed),
            Self::TimeLocal => {
                line.stamp_us = stamp(time::common(value), "17/May/2015:10:05:03 +0000")?;
            }
            Self::TimeIso => line.stamp_us = stamp(time::rfc3339(value), "2015-05-17T10:05:03Z")?,
            Self::Milliseconds => line.stamp_us = stamp(time::seconds(value), "1431857103.123")?,
            Self::Request => {
                line.set_request(value)?;
                if let Some(Cow::Borrowed(target)) = line.target {
                    line.target = Some(unescaped(target));
                }
            }
            Self::Method => line.method = known.map(Cow::Borrowed),
            Self::Target | Self::Path => line.target = known.map(unescaped),
            Self::Query => line.query = known.map(unescaped),
            Self::Version => line.version = known.map(Cow::Borrowed),
            Self::Status => {
                let read = |text: &str| text.parse().map_err(|_| unlike("status", text, "200"));
                line.status = known.map(read).transpose()?;
            }
            Self::Bytes => {
                let read = |text: &str| text.parse().map_err(|_| unlike("length", text, "1024"));
                line.bytes = Some(known.map_or(Ok(0), read)?);
            }
            Self::RequestTime => {
                let read = |text: &str| {
                    let us = time::seconds(text).and_then(|us| u64::try_from(us).ok());
                    us.ok_or_else(|| unlike("duration", text, "0.250"))
                };
                line.took_us = known.map(read).transpose()?;
            }
            Self::Host => line.host = known.map(Cow::Borrowed),
            Self::Scheme => line.scheme = known.map(Cow::Borrowed),
            Self::Header(name) => {
                // The log has the field: without a value, the request had none.
                let value = known.map(unescaped);
                line.add_header(Cow::Owned(name.clone()), value.unwrap_or_default());
            }
            Self::Other => {}
        }
        Ok(())
    }
}

/// The known names that were probably meant: those of the least edit distance, if that is at most a
/// third of their length.
fn nearest(name: &str) -> Vec<&'static str> {
    let name = cut(&name.to_ascii_lowercase());
    let all = KNOWN.iter().map(|(known, _)| *known).chain(IGNORED);
    let each = all.map(|known| (strsim::damerau_levenshtein(&name, known), known));
    let near = each.filter(|(distance, known)| *distance <= (known.len() / 3).max(1));
    let near: Vec<(usize, &str)> = near.collect();
    let least = near.iter().map(|(distance, _)| *distance).min();
    near.iter().filter(|(distance, _)| Some(*distance) == least).map(|(_, known)| *known).collect()
}

fn unlike(what: &str, found: &str, such_as: &str) -> String {
    format!("found the {what} {:?}, expected one such as {such_as}", cut(found))
}

/// What was found, as an error shows it.
pub(super) fn cut(found: &str) -> String {
    found.chars().take(FOUND_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_listed_once() {
        for (index, (name, _)) in KNOWN.iter().enumerate() {
            assert!(!IGNORED.contains(name), "{name}");
            assert!(KNOWN.iter().skip(index + 1).all(|(other, _)| other != name), "{name}");
        }
        assert!(IGNORED.is_sorted());
    }

    #[test]
    fn a_name_that_is_misspelt_gets_the_nearest() {
        for (name, near) in [
            ("remote_adr", &["remote_addr"][..]),
            ("STATUS", &["status"]),
            ("stauts", &["status"]),
            ("time_iso8061", &["time_iso8601"]),
            ("remote_usr", &["remote_user"]),
            ("body_byte_sent", &["body_bytes_sent"]),
            ("my_own_map", &[]),
        ] {
            assert_eq!(nearest(name), near, "{name}");
            let told = Variable::named(name).unwrap_err();
            for near in near {
                assert!(told.contains(&format!("the nearest is ${near}")), "{told}");
            }
            assert_eq!(told.contains("nearest"), !near.is_empty(), "{told}");
            for (known, _) in &KNOWN {
                assert!(told.contains(&format!("${known}, ")), "{known}: {told}");
            }
            assert_eq!(Variable::named(&format!("_{name}")), Ok(Variable::Other), "{name}");
        }
        for name in ["remote_user", "upstream_response_time", "cookie_a", "_", "ssl_protocol"] {
            assert_eq!(Variable::named(name), Ok(Variable::Other), "{name}");
        }
        let field = Variable::named("http_x_api_key");
        assert_eq!(field, Ok(Variable::Header("x-api-key".to_owned())));
        assert!(Variable::named("http_").is_err());
    }
}
