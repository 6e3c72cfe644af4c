//! A request of a log, owned and in one piece of memory, and the clients of a log. Made from a
//! [`Line`], whatever its format is.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use super::line::Line;
use super::own;

/// Maximum number of clients of a replay.
pub(super) const CLIENTS_MAX: usize = 4_000_000;
/// Maximum size of a method, target, host and header fields together, in bytes.
const TEXT_BYTES_MAX: usize = 1 << 16;
/// Maximum length of a client's name, in bytes: that of a name in the DNS.
const NAME_BYTES_MAX: usize = 255;
/// The block from which names get addresses: reserved, so that no client comes from it (RFC 1112).
const NAMES_FROM: u32 = 0xf000_0000;
/// Upper bound of a duration: a day. What takes longer is an error in the log.
const TOOK_US_MAX: u64 = 86_400_000_000;

/// A request of a log.
#[derive(Debug)]
pub struct Record {
    /// When it came, in microseconds since 1970.
    pub at_us: i64,
    /// How long it took, without the time for which a limiter held it back. 0 where the log does
    /// not record.
    pub took_us: u64,
    /// The number of its client.
    pub client: u32,
    /// The status of the reply, where it was the upstream's.
    pub status: Option<u16>,
    /// Bytes of the reply's body.
    pub bytes: u64,
    /// Bytes of the request's body.
    pub request_bytes: Option<u64>,
    /// Whether it came over TLS, if the log records it.
    pub https: Option<bool>,
    /// 10, 11 or 20 for HTTP/1.0, 1.1 and 2, if the log records it.
    pub version: Option<u8>,
    /// The log says that a limiter refused it.
    pub was_refused: bool,
    /// The number of its file, and its line there, from 1.
    pub file: u16,
    /// See `file`.
    pub line: u64,
    held: LineParts,
    text: Box<str>,
    /// Where method, target, host, and then names and values of header fields end in `text`.
    ends: SmallVec<[u32; 8]>,
}

/// What else the line says.
#[derive(Clone, Copy, Debug)]
struct LineParts {
    host: bool,
    query: bool,
    took: bool,
    bytes: bool,
    digests: bool,
    all_headers: bool,
}

/// A fact that a policy asks for, as far as logs can answer it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FactNeed {
    /// Every line has it.
    Always,
    /// No line has it.
    Never,
    /// Lines with queries.
    Query,
    /// Lines with the host.
    Host,
    /// Lines with the scheme.
    Scheme,
    /// Lines with the version.
    Version,
    /// Lines with the length of the request's body.
    RequestBytes,
    /// Lines with this header field.
    Header(String),
    /// Lines with the length of the reply's body.
    Bytes,
    /// Lines with the duration.
    Took,
}

impl FactNeed {
    /// What answers a fact of a request, by its name.
    #[must_use]
    pub(super) fn of_request(fact: &str) -> Self {
        match fact {
            "method" | "path" | "upstream-path" | "client-ip" | "route" => Self::Always,
            "query" => Self::Query,
            "authority" | "host" | "header.host" => Self::Host,
            "scheme" => Self::Scheme,
            "http.version" => Self::Version,
            "request.length" | "header.content-length" => Self::RequestBytes,
            "bearer" => Self::Header("authorization".to_owned()),
            _ if fact.starts_with("path.") => Self::Always,
            _ if fact.starts_with("query.") => Self::Query,
            _ if fact.starts_with("cookie.") => Self::Header("cookie".to_owned()),
            _ => match fact.strip_prefix("header.") {
                Some(name) => Self::Header(name.to_ascii_lowercase()),
                None => Self::Never,
            },
        }
    }

    /// What answers a fact of a reply, by its name.
    #[must_use]
    pub(super) fn of_reply(fact: &str) -> Self {
        match fact {
            "response.bytes" => Self::Bytes,
            "duration-ms" => Self::Took,
            "request.bytes" => Self::RequestBytes,
            _ => Self::Never,
        }
    }
}

/// A client of a log.
#[derive(Clone, Debug)]
pub struct Client {
    /// Its address without a port, or its name.
    pub text: Box<str>,
    /// Its address. One of its own, from a block that is reserved, where the log has a name.
    pub address: IpAddr,
}

/// Why a line does not become a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SkipCause {
    /// It is not one that could be sent.
    Broken(Cow<'static, str>),
    /// There are as many clients as there may be, and it is of another.
    TooManyClients,
}

impl From<&'static str> for SkipCause {
    fn from(why: &'static str) -> Self {
        Self::Broken(Cow::Borrowed(why))
    }
}

impl From<String> for SkipCause {
    fn from(why: String) -> Self {
        Self::Broken(Cow::Owned(why))
    }
}

/// The clients of a log, each with a number.
#[derive(Debug)]
pub(super) struct Clients {
    /// A client is an address, whatever its port is: it may have many connections.
    addresses: HashMap<IpAddr, u32, RandomState>,
    named: HashMap<Box<str>, u32, RandomState>,
    most: usize,
    /// Those that were not handed out yet.
    pub(super) new: Vec<Client>,
    pub(super) names: u32,
}

impl Default for Clients {
    fn default() -> Self {
        Self::new(CLIENTS_MAX)
    }
}

impl Clients {
    /// A list of at most this many.
    pub(super) fn new(most: usize) -> Self {
        let (addresses, named) = (HashMap::default(), HashMap::default());
        Self { addresses, named, most, new: Vec::new(), names: 0 }
    }

    fn number(&mut self, text: &str) -> Result<u32, SkipCause> {
        let found = address(text);
        if found.is_none() && text.len() > NAME_BYTES_MAX {
            let bytes = text.len();
            let why =
                format!("a client's name of {bytes} bytes, expected {NAME_BYTES_MAX} at most");
            return Err(why.into());
        }
        if found.is_none() && is_meant_as_address(text) {
            return Err(format!("the client {text:?} is neither an address nor a name").into());
        }
        let known = match &found {
            Some(address) => self.addresses.get(address),
            None => self.named.get(text),
        };
        if let Some(number) = known {
            return Ok(*number);
        }
        let all = self.addresses.len() + self.named.len();
        if all >= self.most {
            return Err(SkipCause::TooManyClients);
        }
        let number = u32::try_from(all).unwrap_or(u32::MAX);
        let client = match found {
            Some(address) => {
                self.addresses.insert(address, number);
                Client { text: address.to_string().into(), address }
            }
            None => {
                self.names += 1;
                self.named.insert(text.into(), number);
                let address = Ipv4Addr::from_bits(NAMES_FROM + self.names);
                Client { text: text.into(), address: address.into() }
            }
        };
        self.new.push(client);
        Ok(number)
    }
}

/// Whether a text that is no address was to be one: no name has only digits in its last label (RFC
/// 3696, 2), or a colon.
fn is_meant_as_address(text: &str) -> bool {
    let last = text.rsplit('.').next().unwrap_or_default();
    // nginx writes `unix:` for the clients of a Unix socket.
    let is_socket = text.starts_with("unix:");
    (text.contains(':') && !is_socket)
        || (!last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit()))
}

/// An address, perhaps with a port.
fn address(text: &str) -> Option<IpAddr> {
    let without_port = || text.parse().ok().map(|socket: std::net::SocketAddr| socket.ip());
    text.parse().ok().or_else(without_port).map(|address: IpAddr| address.to_canonical())
}

impl Record {
    /// # Errors
    /// Why it is not a request that could be sent, or not one that is replayed.
    pub(super) fn of(
        line: &Line<'_>,
        clients: &mut Clients,
        place: (u16, u64),
    ) -> Result<Self, SkipCause> {
        let stamp_us = line.stamp_us.ok_or("no time")?;
        // Limits count from 1970 on. A device without a clock writes such times.
        if stamp_us < 0 {
            return Err("a time before 1970".into());
        }
        let client = line.client.as_deref().ok_or("no client")?;
        let target = line.target.as_deref().ok_or("no path")?;
        let (host, target) = match target.split_once("://") {
            Some((scheme, rest)) if !scheme.contains('/') => {
                let slash = rest.find('/').unwrap_or(rest.len());
                let (host, path) = rest.split_at_checked(slash).unwrap_or((rest, ""));
                (Some(host), if path.is_empty() { "/" } else { path })
            }
            _ => (line.host.as_deref(), target),
        };
        if !target.starts_with('/') && target != "*" {
            let target: String = target.chars().take(60).collect();
            return Err(format!("found the target {target:?}, expected a path").into());
        }
        let host = host.unwrap_or_default();
        let mut text = Text::default();
        text.push(line.method.as_deref().unwrap_or("GET"));
        match line.query.as_deref().filter(|_| !target.contains('?')) {
            Some(query) => text.push(&[target, "?", query].concat()),
            None => text.push(target),
        }
        text.push(host);
        for (name, value) in &line.headers {
            text.push(name);
            text.push(value.trim());
        }
        if text.all.len() > TEXT_BYTES_MAX {
            return Err("a request of more than 65536 bytes".into());
        }
        let took_us = line.took_us.unwrap_or(0).min(TOOK_US_MAX);
        let before_us = if line.stamp_is_end { took_us } else { 0 };
        Ok(Self {
            at_us: stamp_us.saturating_sub_unsigned(before_us).max(0),
            // A delay is added again where the replay finds one.
            took_us: took_us.saturating_sub(line.delayed_us),
            client: clients.number(client)?,
            status: line.status.filter(|_| !line.was_refused),
            bytes: if line.was_refused { 0 } else { line.bytes.unwrap_or(0) },
            request_bytes: line.request_bytes,
            https: line.scheme.as_deref().map(|scheme| scheme.eq_ignore_ascii_case("https")),
            version: line.version.as_deref().and_then(version),
            was_refused: line.was_refused,
            file: place.0,
            line: place.1,
            held: LineParts {
                host: !host.is_empty(),
                query: !line.no_queries,
                took: line.took_us.is_some(),
                bytes: line.bytes.is_some(),
                digests: line.has_digests,
                all_headers: line.all_headers,
            },
            text: text.all.into(),
            ends: text.ends,
        })
    }

    /// The memory that it takes, in bytes.
    pub(super) fn weight(&self) -> usize {
        let ends = if self.ends.spilled() { self.ends.capacity() } else { 0 };
        size_of::<Self>() + self.text.len() + ends * size_of::<u32>()
    }

    fn part(&self, index: usize) -> &str {
        let end = |index: usize| self.ends.get(index).map_or(0, |end| *end as usize);
        let start = if index == 0 { 0 } else { end(index - 1) };
        self.text.get(start..end(index)).unwrap_or_default()
    }

    /// `GET`.
    #[must_use]
    pub fn method(&self) -> &str {
        self.part(0)
    }

    /// Path and query, or `*`.
    #[must_use]
    pub fn target(&self) -> &str {
        self.part(1)
    }

    /// Empty if the log does not record it.
    #[must_use]
    pub fn host(&self) -> &str {
        self.part(2)
    }

    /// The header fields that the line has. A field without a value was not sent.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        (3..self.ends.len()).step_by(2).map(|index| (self.part(index), self.part(index + 1)))
    }

    /// Whether the line answers what was asked.
    #[must_use]
    pub(super) fn holds(&self, asked: &FactNeed) -> bool {
        match asked {
            FactNeed::Always => true,
            FactNeed::Never => false,
            FactNeed::Query => self.held.query,
            FactNeed::Host => self.held.host,
            FactNeed::Scheme => self.https.is_some(),
            FactNeed::Version => self.version.is_some(),
            FactNeed::RequestBytes => self.request_bytes.is_some(),
            FactNeed::Bytes => self.held.bytes,
            FactNeed::Took => self.held.took,
            FactNeed::Header(name) => {
                let found = self.headers().find(|(known, _)| known.eq_ignore_ascii_case(name));
                // Where all fields are logged, one without a value was hidden on purpose.
                let all = self.held.all_headers;
                found.map_or(all, |(_, value)| !(all && value.is_empty()))
            }
        }
    }

    /// Whether the line answers what was asked only with a digest.
    #[must_use]
    pub(super) fn is_digest(&self, asked: &FactNeed) -> bool {
        let FactNeed::Header(name) = asked else { return false };
        self.held.digests
            && self
                .headers()
                .any(|(known, value)| known.eq_ignore_ascii_case(name) && own::is_digest(value))
    }
}

/// Texts one after another.
#[derive(Default)]
struct Text {
    all: String,
    ends: SmallVec<[u32; 8]>,
}

impl Text {
    fn push(&mut self, text: &str) {
        self.all.push_str(text);
        self.ends.push(u32::try_from(self.all.len()).unwrap_or(u32::MAX));
    }
}

fn version(text: &str) -> Option<u8> {
    match text.strip_prefix("HTTP/").unwrap_or(text) {
        "1.0" => Some(10),
        "1.1" => Some(11),
        "2" | "2.0" | "h2" => Some(20),
        "3" | "3.0" | "h3" => Some(30),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(line: &Line<'_>) -> Result<Record, SkipCause> {
        Record::of(line, &mut Clients::new(9), (0, 1))
    }

    fn clients_of(name: &str) -> Result<u32, SkipCause> {
        Clients::new(1).number(name)
    }

    #[test]
    fn a_time_before_1970_is_none() {
        let at = |stamp_us| record(&Line { stamp_us: Some(stamp_us), ..line() });
        assert!(at(0).is_ok());
        assert!(matches!(at(-1), Err(SkipCause::Broken(why)) if why.contains("before 1970")));
        // It began before, and the limits count from then.
        let began = Line { stamp_us: Some(5), stamp_is_end: true, took_us: Some(10), ..line() };
        assert_eq!(record(&began).unwrap().at_us, 0);
    }

    fn line<'l>() -> Line<'l> {
        Line {
            stamp_us: Some(10_000_000),
            client: Some("a.example".into()),
            target: Some("/a".into()),
            ..Line::default()
        }
    }

    #[test]
    fn the_fields_of_a_line_are_kept() {
        let mut line = line();
        line.stamp_is_end = true;
        line.took_us = Some(1_500_000);
        line.query = Some("b=1".into());
        line.add_header("user-agent".into(), "x".into());
        line.add_header("referer".into(), "".into());
        let record = record(&line).unwrap();
        assert_eq!((record.at_us, record.took_us), (8_500_000, 1_500_000));
        assert_eq!((record.method(), record.target(), record.host()), ("GET", "/a?b=1", ""));
        let headers: Vec<_> = record.headers().collect();
        assert_eq!(headers, [("user-agent", "x"), ("referer", "")]);
        let held = [
            "method",
            "upstream-path",
            "path.id",
            "query.b",
            "header.user-agent",
            "header.referer",
        ];
        let missing = ["authority", "scheme", "header.x", "cookie.a", "body:/a", "tls.sni"];
        assert!(held.iter().all(|fact| record.holds(&FactNeed::of_request(fact))));
        assert!(!missing.iter().any(|fact| record.holds(&FactNeed::of_request(fact))));
        assert!(record.holds(&FactNeed::of_reply("duration-ms")));
        assert!(!record.holds(&FactNeed::of_reply("header.x")));
    }

    #[test]
    fn a_digest_answers_for_its_own_field() {
        let mut line = line();
        line.has_digests = true;
        line.add_header("x-a".into(), "digest:0123456789abcdef0123456789abcdef".into());
        line.add_header("x-b".into(), "b".into());
        let record = record(&line).unwrap();
        let of = |name: &str| FactNeed::of_request(name);
        assert!(record.holds(&of("header.x-a")) && record.is_digest(&of("header.X-A")));
        assert!(record.holds(&of("header.x-b")) && !record.is_digest(&of("header.x-b")));
        assert!(!record.is_digest(&of("header.x-c")) && !record.is_digest(&of("path")));
    }

    #[test]
    fn the_time_in_a_limiters_queue_is_not_the_upstreams() {
        let line = Line { took_us: Some(30_000), delayed_us: 20_000, stamp_is_end: true, ..line() };
        let record = record(&line).unwrap();
        assert_eq!((record.at_us, record.took_us), (9_970_000, 10_000));
    }

    #[test]
    fn an_absolute_target_has_its_host() {
        let mut line = line();
        line.target = Some("http://b.example:80/x?u=http://c".into());
        let record = record(&line).unwrap();
        assert_eq!((record.host(), record.target()), ("b.example:80", "/x?u=http://c"));
        let mut line = self::line();
        line.target = Some("/x?u=http://c".into());
        assert_eq!(self::record(&line).unwrap().target(), "/x?u=http://c");
        line.target = Some("a.example:443".into());
        let Err(SkipCause::Broken(told)) = self::record(&line) else { panic!("it is no path") };
        assert!(told.contains("a path"), "{told}");
    }

    #[test]
    fn a_name_gets_an_address_of_its_own() {
        let mut clients = Clients::new(5);
        let texts = ["a.example", "203.0.113.7:5", "[2001:db8::1]:5", "::ffff:192.0.2.1", "b", "b"];
        let numbers: Vec<u32> = texts.iter().map(|text| clients.number(text).unwrap()).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4, 4]);
        // Another connection of the same client, as Envoy's default format writes it.
        for (text, number) in [("203.0.113.7:6", 1), ("203.0.113.7", 1), ("2001:db8:0::1", 2)] {
            assert_eq!(clients.number(text), Ok(number), "{text}");
        }
        assert_eq!(clients.number("203.0.113.8"), Err(SkipCause::TooManyClients));
        assert_eq!(clients.number("c"), Err(SkipCause::TooManyClients));
        let texts: Vec<&str> = clients.new.iter().map(|client| &*client.text).collect();
        assert_eq!(texts, ["a.example", "203.0.113.7", "2001:db8::1", "192.0.2.1", "b"]);
        let addresses: Vec<String> =
            clients.new.iter().map(|client| client.address.to_string()).collect();
        assert_eq!(
            addresses,
            ["240.0.0.1", "203.0.113.7", "2001:db8::1", "192.0.2.1", "240.0.0.2"]
        );
        assert_eq!(clients.names, 2);
        assert!(Clients::new(1).number("unix:").is_ok());
        let name = "n".repeat(NAME_BYTES_MAX);
        assert!(clients_of(&name).is_ok());
        let SkipCause::Broken(why) = clients_of(&format!("{name}n")).unwrap_err() else { panic!() };
        assert!(why.contains("name of 256 bytes"), "{why}");
        for text in ["999.1.1.1", "192.0.2", "2001:db8::g", "192.0.2.1:99999"] {
            let wrong = clients.number(text);
            assert!(matches!(wrong, Err(SkipCause::Broken(_))), "{text}: {wrong:?}");
        }
    }
}
