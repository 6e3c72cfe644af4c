//! The formats of logs: their names, how they are recognised, and the reader of each.

use std::borrow::Cow;
use std::net::IpAddr;

use super::json::{self, Writer};
use super::line::Line;
use super::own;
use super::pattern::{COMBINED, COMMON, Pattern};

/// How the lines of a log are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `HOST - USER [TIME] "REQUEST" STATUS BYTES`.
    Common,
    /// The same with referrer and user agent, perhaps with more.
    Combined,
    /// JSON lines with the names of nginx's variables.
    Nginx,
    /// Caddy's JSON.
    Caddy,
    /// Traefik's JSON.
    Traefik,
    /// Envoy's JSON.
    Envoy,
    /// Weir's own access log, as text or as JSON.
    Weir,
}

/// Characters of a line that are shown.
const SHOWN_CHARS: usize = 60;

/// The names of all formats, as they are given on the command line.
pub const FORMATS: [(&str, Format); 7] = [
    ("common", Format::Common),
    ("combined", Format::Combined),
    ("nginx", Format::Nginx),
    ("caddy", Format::Caddy),
    ("traefik", Format::Traefik),
    ("envoy", Format::Envoy),
    ("weir", Format::Weir),
];

/// How lines are read.
#[derive(Clone, Debug)]
pub enum Reading {
    /// Each file in the format of its first line that is recognised.
    Detected,
    /// All as this format.
    As(Format),
    /// All as a pattern describes it.
    Pattern(LinePattern),
}

/// A pattern like those of nginx's `log_format`, checked.
#[derive(Clone, Debug)]
pub struct LinePattern(std::sync::Arc<Pattern>);

impl LinePattern {
    /// Parses `$remote_addr - $remote_user [$time_local] "$request" $status $bytes`.
    ///
    /// # Errors
    /// What was found, and what was expected.
    pub fn parse(pattern: &str) -> Result<Self, String> {
        Pattern::parse(pattern).map(|pattern| Self(std::sync::Arc::new(pattern)))
    }
}

impl Format {
    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        FORMATS.iter().find(|(_, format)| *format == self).map_or("", |(name, _)| name)
    }

    fn of(text: &str) -> Option<Self> {
        if text.starts_with('{') {
            return json::writer(text).map(|writer| match writer {
                Writer::Nginx => Self::Nginx,
                Writer::Caddy => Self::Caddy,
                Writer::Traefik => Self::Traefik,
                Writer::Envoy => Self::Envoy,
                Writer::Weir => Self::Weir,
            });
        }
        if own::is(text) {
            return Some(Self::Weir);
        }
        let reads = |pattern: &str| {
            let pattern = Pattern::parse(pattern).map(Pattern::open);
            pattern
                .is_ok_and(|pattern| client_first(text).and_then(|()| pattern.read(text)).is_ok())
        };
        if reads(COMBINED) {
            return Some(Self::Combined);
        }
        reads(COMMON).then_some(Self::Common)
    }
}

/// Reads the lines of one file.
#[derive(Debug)]
pub(super) struct Reader {
    reading: Reading,
    found: Option<Format>,
    /// The pattern of common and combined.
    pattern: Option<Pattern>,
    /// Whether a line had a query. Weir leaves the query out where there is none, so this log shows
    /// them.
    shows_queries: bool,
}

impl Reader {
    pub(super) fn new(reading: &Reading) -> Self {
        let mut reader =
            Self { reading: reading.clone(), found: None, pattern: None, shows_queries: false };
        if let Reading::As(format) = reading {
            reader.becomes(*format);
        }
        reader
    }

    /// The name of the format; none before it is known.
    pub(super) fn format(&self) -> Option<&'static str> {
        match self.reading {
            Reading::Pattern(_) => Some("pattern"),
            _ => self.found.map(Format::name),
        }
    }

    fn becomes(&mut self, format: Format) {
        self.found = Some(format);
        let pattern = match format {
            Format::Common => Pattern::parse(COMMON).ok(),
            Format::Combined => Pattern::parse(COMBINED).ok(),
            _ => None,
        };
        self.pattern = pattern.map(Pattern::open);
    }

    fn own<'l>(&mut self, text: &'l str) -> Result<Line<'l>, Cow<'static, str>> {
        let is_json = text.starts_with('{');
        let line = if is_json { json::read(Writer::Weir, text)? } else { own::read(text)? };
        self.shows_queries |= line.query.is_some();
        Ok(Line { no_queries: !self.shows_queries, ..line })
    }

    /// # Errors
    /// Why it is not a request of this log.
    pub(super) fn read<'l>(&mut self, text: &'l str) -> Result<Line<'l>, Cow<'static, str>> {
        if let Reading::Pattern(LinePattern(pattern)) = &self.reading {
            return pattern.read(text);
        }
        let format = match self.found {
            Some(format) => format,
            None => {
                let format = Format::of(text).ok_or_else(|| unknown(text))?;
                self.becomes(format);
                format
            }
        };
        if format == Format::Weir {
            return self.own(text);
        }
        match (format, &self.pattern) {
            (Format::Common | Format::Combined, Some(pattern)) => {
                client_first(text).and_then(|()| pattern.read(text))
            }
            (Format::Caddy, _) => json::read(Writer::Caddy, text),
            (Format::Traefik, _) => json::read(Writer::Traefik, text),
            (Format::Envoy, _) => json::read(Writer::Envoy, text),
            _ => json::read(Writer::Nginx, text),
        }
    }
}

/// # Errors
/// An address is where the client's identity should be: Apache's `vhost_combined` has the host
/// before the client, and would be read as one client.
fn client_first(text: &str) -> Result<(), Cow<'static, str>> {
    let mut words = text.split(' ');
    match (words.next(), words.next()) {
        (Some(first), Some(second)) if second.parse::<IpAddr>().is_ok() => {
            let first: String = first.chars().take(SHOWN_CHARS).collect();
            Err(format!("found {second} after {first:?}, expected the client first").into())
        }
        _ => Ok(()),
    }
}

fn unknown(text: &str) -> String {
    let shown: String = text.chars().take(SHOWN_CHARS).collect();
    let names = FORMATS.map(|(name, _)| name).join(", ");
    format!("the format is not known: found {shown:?}, expected one of {names}, or --pattern")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line of each format, and what it says: target, status, bytes, microseconds.
    const LINES: [(&str, &str); 10] = [
        ("common", r#"203.0.113.7 - - [17/May/2015:10:05:03 +0000] "GET /a?b=1 HTTP/1.1" 200 5"#),
        (
            "combined",
            r#"203.0.113.7 - al ice [17/May/2015:10:05:03 +0000] "GET /a?b=1 HTTP/1.1" 200 5 "-" "x \"y\"" "more" 7"#,
        ),
        (
            "nginx",
            r#"{"time_iso8601":"2015-05-17T10:05:03+00:00","remote_addr":"203.0.113.7","request":"GET /a?b=1 HTTP/1.1","status":"200","body_bytes_sent":"5","request_time":"0.000"}"#,
        ),
        (
            "nginx",
            r#"{"msec":1431857103.000,"remote_addr":"203.0.113.7","request_method":"GET","uri":"/a","args":"b=1","status":200,"bytes":5}"#,
        ),
        (
            "caddy",
            r#"{"level":"info","ts":1431857103.0,"msg":"handled request","request":{"remote_ip":"203.0.113.7","remote_port":"5","proto":"HTTP/2.0","method":"GET","host":"a.example","uri":"/a?b=1","headers":{"X-Api-Key":["k"]}},"bytes_read":0,"duration":0,"size":5,"status":200}"#,
        ),
        (
            "traefik",
            r#"{"ClientAddr":"203.0.113.7:5","ClientHost":"203.0.113.7","DownstreamContentSize":5,"DownstreamStatus":200,"OriginStatus":200,"Duration":0,"RequestHost":"a.example","RequestMethod":"GET","RequestPath":"/a?b=1","RequestProtocol":"HTTP/1.1","StartUTC":"2015-05-17T10:05:03Z"}"#,
        ),
        (
            "envoy",
            r#"{"start_time":"2015-05-17T10:05:03.000Z","downstream_remote_address":"203.0.113.7:5","method":"GET","path":"/a?b=1","protocol":"HTTP/1.1","response_code":200,"bytes_sent":5,"duration":0,"authority":"a.example","response_flags":"-"}"#,
        ),
        (
            "weir",
            r#"{"timestamp":"2015-05-17T10:05:03.000Z","level":"INFO","message":"request","request_id":"1","client":"203.0.113.7","method":"GET","path":"/a?b=1","route":"r","status":200,"bytes":5,"duration_ms":0.000}"#,
        ),
        (
            "weir",
            "2015-05-17T10:05:03.000Z  INFO request request_id=1 client=203.0.113.7 method=GET path=\"/a?b=1\" route=r status=200 bytes=5 duration_ms=0.000",
        ),
        (
            "weir",
            "2015-05-17T10:05:03.000Z  INFO request client=203.0.113.7 method=GET path=\"/a?b=1\" status=200 bytes=5 refused_by=[\"a b\"] decision=refused",
        ),
    ];

    #[test]
    fn each_format_is_known_by_its_line_and_tells_the_same() {
        for (name, text) in LINES {
            let mut reader = Reader::new(&Reading::Detected);
            let line = reader.read(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(reader.format(), Some(name), "{text}");
            let line_target = match &line.query {
                Some(query) => format!("{}?{query}", line.target.as_deref().unwrap()),
                None => line.target.as_deref().unwrap().to_owned(),
            };
            assert_eq!(line_target, "/a?b=1", "{text}");
            assert_eq!(line.stamp_us, Some(1_431_857_103_000_000), "{text}");
            assert_eq!(line.method.as_deref(), Some("GET"), "{text}");
            assert!(line.client.as_deref().unwrap().starts_with("203.0.113.7"), "{text}");
            assert_eq!((line.status, line.bytes), (Some(200), Some(5)), "{text}");
            assert_eq!(line.was_refused, text.ends_with("decision=refused"), "{text}");
        }
    }

    #[test]
    fn weirs_log_shows_queries_once_a_line_has_one() {
        let mut reader = Reader::new(&Reading::Detected);
        let line = |query: &str| {
            format!(
                "2015-05-17T10:05:03.000Z  INFO request client=192.0.2.1 path=/a{query} status=200"
            )
        };
        for (query, no_queries) in [("", true), (" query=b", false), ("", false)] {
            let text = line(query);
            assert_eq!(reader.read(&text).unwrap().no_queries, no_queries, "{query:?}");
        }
    }

    #[test]
    fn lines_about_something_else_are_left_out() {
        for (text, first) in [
            (
                r#"{"timestamp":"2015-05-17T10:05:03.000Z","level":"WARN","message":"late"}"#,
                LINES[7].1,
            ),
            ("2015-05-17T10:05:03.000Z  WARN weir: late", LINES[8].1),
            (r#"{"level":"info","ts":1431857103.0,"msg":"serving"}"#, LINES[4].1),
        ] {
            let mut reader = Reader::new(&Reading::Detected);
            reader.read(first).unwrap();
            assert!(reader.read(text).unwrap().left_out.is_some(), "{text}");
        }
    }

    #[test]
    fn a_line_of_another_format_is_refused_with_the_reason() {
        for (name, format) in FORMATS {
            assert_eq!(format.name(), name);
            let mut reader = Reader::new(&Reading::As(format));
            let told = match reader.read("nonsense") {
                Err(told) => told,
                // A log of Weir has lines about other things.
                Ok(line) => {
                    assert!(line.left_out.is_some());
                    continue;
                }
            };
            assert!(!told.is_empty());
        }
        let unknown = Reader::new(&Reading::Detected).read("nonsense").map(|_| ()).unwrap_err();
        assert!(unknown.contains("found \"nonsense\", expected one of common, "), "{unknown}");
        let apache = format!("www.example.com:443 {}", LINES[1].1);
        let unknown = Reader::new(&Reading::Detected).read(&apache).map(|_| ()).unwrap_err();
        assert!(unknown.contains("not known"), "{unknown}");
        let told = Reader::new(&Reading::As(Format::Combined)).read(&apache).map(|_| ());
        assert!(told.unwrap_err().contains("found 203.0.113.7 after \"www.example.com:443\""));
    }
}
