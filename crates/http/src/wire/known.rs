//! The field names that Weir itself uses, as numbers. A name is looked up once, when a head is
//! parsed, and compared as a number from then on. Knows nothing about values.

use http::HeaderName;

/// Slots of the lookup table. It is sparse, so that a multiplier without collisions is found soon.
const SLOTS: usize = 512;

macro_rules! known {
    ($($name:ident = $text:literal,)*) => {
        /// A field name that Weir uses.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Known {
            $(#[doc = concat!("`", $text, "`")] $name,)*
            /// Any other name.
            Other,
        }

        const ALL: &[(Known, &str)] = &[$((Known::$name, $text),)*];
        /// How a line with the name begins.
        const PREFIXES: &[&str] = &[$(concat!($text, ": "),)*];
        /// The names in the form of the `http` crate.
        static HEADER_NAMES: [HeaderName; ALL.len()] = [$(HeaderName::from_static($text),)*];
    };
}

known! {
    Host = "host",
    Connection = "connection",
    KeepAlive = "keep-alive",
    ProxyConnection = "proxy-connection",
    Te = "te",
    TransferEncoding = "transfer-encoding",
    Upgrade = "upgrade",
    Http2Settings = "http2-settings",
    ProxyAuthenticate = "proxy-authenticate",
    ProxyAuthorization = "proxy-authorization",
    WeirDegraded = "weir-degraded",
    ContentLength = "content-length",
    ContentType = "content-type",
    Trailer = "trailer",
    Expect = "expect",
    Date = "date",
    Cookie = "cookie",
    SetCookie = "set-cookie",
    Vary = "vary",
    Origin = "origin",
    Authorization = "authorization",
    CacheControl = "cache-control",
    Via = "via",
    Forwarded = "forwarded",
    RealIp = "x-real-ip",
    RequestId = "x-request-id",
    ForwardedFor = "x-forwarded-for",
    ForwardedProto = "x-forwarded-proto",
    ForwardedHost = "x-forwarded-host",
    RateLimit = "ratelimit",
    RateLimitPolicy = "ratelimit-policy",
    RetryAfter = "retry-after",
    Allow = "allow",
    RequestMethod = "access-control-request-method",
    AllowOrigin = "access-control-allow-origin",
    AllowCredentials = "access-control-allow-credentials",
    ExposeHeaders = "access-control-expose-headers",
    UserAgent = "user-agent",
    Accept = "accept",
    AcceptEncoding = "accept-encoding",
    Server = "server",
    LastModified = "last-modified",
    Etag = "etag",
    TraceParent = "traceparent",
}

/// A set of known names, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KnownSet(u64);

impl KnownSet {
    /// The fields of a connection of HTTP/1.1, which HTTP/2 does not have (RFC 9113, 8.2.2).
    pub const OF_CONNECTIONS: Self = Self::of(&[
        Known::Connection,
        Known::KeepAlive,
        Known::ProxyConnection,
        Known::Te,
        Known::TransferEncoding,
        Known::Upgrade,
    ]);

    /// The names of both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// A set of these names.
    #[must_use]
    pub const fn of(names: &[Known]) -> Self {
        let (mut bits, mut rest) = (0, names);
        while let [first, tail @ ..] = rest {
            bits |= 1 << *first as u8;
            rest = tail;
        }
        Self(bits)
    }

    /// Whether it contains `name`.
    #[must_use]
    #[inline]
    pub const fn has(self, name: Known) -> bool {
        self.0 & (1 << name as u8) != 0
    }

    /// Whether the sets have a name in common.
    #[must_use]
    #[inline]
    pub const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Adds `name`.
    pub(super) fn insert(&mut self, name: Known) {
        self.0 |= 1 << name as u8;
    }

    /// Removes `name`.
    pub(super) fn remove(&mut self, name: Known) {
        self.0 &= !(1 << name as u8);
    }
}

impl Known {
    /// The known name that equals `name` in any case. `name` must be a token.
    #[must_use]
    pub fn of(name: &[u8]) -> Self {
        let candidate = TABLE.get(slot(name, MULTIPLIER)).copied().unwrap_or(Self::Other);
        if is_same(name, candidate.text().as_bytes()) { candidate } else { Self::Other }
    }

    /// How a line with this name begins: the name in lower case, a colon and a blank. Empty for
    /// [`Known::Other`].
    #[inline]
    fn prefix(self) -> &'static [u8] {
        PREFIXES.get(self as usize).map_or(b"", |text| text.as_bytes())
    }

    /// The name in the form of the `http` crate; `None` for [`Known::Other`].
    pub(super) fn header_name(self) -> Option<&'static HeaderName> {
        HEADER_NAMES.get(self as usize)
    }

    /// The name in lower case; empty for [`Known::Other`].
    #[must_use]
    #[inline]
    pub fn text(self) -> &'static str {
        ALL.get(self as usize).map_or("", |(_, text)| text)
    }
}

/// A name to look up: a known name, or the text of another.
#[derive(Clone, Copy, Debug)]
pub struct Name<'a> {
    pub(super) known: Known,
    pub(super) text: &'a [u8],
    /// How a line with the name begins, if that is precomputed.
    pub(super) prefix: Option<&'static [u8]>,
}

impl From<Known> for Name<'_> {
    #[inline]
    fn from(known: Known) -> Self {
        Self { known, text: known.text().as_bytes(), prefix: Some(known.prefix()) }
    }
}

impl<'a> From<&'a str> for Name<'a> {
    #[inline]
    fn from(text: &'a str) -> Self {
        Self { known: Known::of(text.as_bytes()), text: text.as_bytes(), prefix: None }
    }
}

impl<'a> From<&'a HeaderName> for Name<'a> {
    #[inline]
    fn from(name: &'a HeaderName) -> Self {
        name.as_str().into()
    }
}

/// A name's slot in the table: its length and three of its letters, mixed. Upper and lower case
/// differ in one bit, which is set for all.
#[allow(
    clippy::indexing_slicing,
    reason = "evaluated at compile time too, where `get` can't be; all three places are within the name"
)]
const fn slot(name: &[u8], multiplier: u64) -> usize {
    let len = name.len();
    if len == 0 {
        return 0;
    }
    let letters = ((name[0] | 0x20) as u64) << 16
        | ((name[len / 2] | 0x20) as u64) << 8
        | (name[len - 1] | 0x20) as u64;
    ((len as u64) << 24 | letters).wrapping_mul(multiplier) as usize >> 40 & (SLOTS - 1)
}

/// Whether `token` equals `known` in any case. `known` consists of lower-case letters, digits and
/// `-`. Setting bit 0x20 turns upper case into lower case, leaves `known`'s characters as they are,
/// and turns no other token character into one of them. Compares eight bytes at a time, as it runs
/// for every field of every head.
fn is_same(token: &[u8], known: &[u8]) -> bool {
    let (mut tokens, mut knowns) = (token.chunks_exact(8), known.chunks_exact(8));
    let word = |bytes: &[u8]| <[u8; 8]>::try_from(bytes).map_or(0, u64::from_ne_bytes);
    token.len() == known.len()
        && tokens
            .by_ref()
            .zip(knowns.by_ref())
            .all(|(token, known)| word(token) | 0x2020_2020_2020_2020 == word(known))
        && tokens
            .remainder()
            .iter()
            .zip(knowns.remainder())
            .all(|(token, known)| token | 0x20 == *known)
}

/// A multiplier that gives each known name a slot of its own.
const MULTIPLIER: u64 = {
    let mut multiplier = 0x9e37_79b9_7f4a_7c15;
    while !is_free_of_collisions(multiplier) {
        multiplier += 2;
    }
    multiplier
};

#[allow(
    clippy::indexing_slicing,
    reason = "evaluated at compile time, where an index out of bounds is an error of the build"
)]
const fn is_free_of_collisions(multiplier: u64) -> bool {
    let mut taken = [false; SLOTS];
    let mut index = 0;
    while index < ALL.len() {
        let slot = slot(ALL[index].1.as_bytes(), multiplier);
        if taken[slot] {
            return false;
        }
        taken[slot] = true;
        index += 1;
    }
    true
}

static TABLE: [Known; SLOTS] = table();

#[allow(
    clippy::indexing_slicing,
    reason = "evaluated at compile time, where an index out of bounds is an error of the build"
)]
const fn table() -> [Known; SLOTS] {
    let mut table = [Known::Other; SLOTS];
    let mut index = 0;
    while index < ALL.len() {
        table[slot(ALL[index].1.as_bytes(), MULTIPLIER)] = ALL[index].0;
        index += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_name_is_found_in_any_case_and_nothing_else_is() {
        for (known, text) in ALL {
            assert_eq!(Known::of(text.as_bytes()), *known);
            assert_eq!(Known::of(text.to_ascii_uppercase().as_bytes()), *known);
            assert_eq!(Known::of(format!("{text}x").as_bytes()), Known::Other, "{text}");
            assert_eq!(known.text(), *text);
            assert_eq!(known.header_name().unwrap(), text);
        }
        for other in [
            "",
            "x",
            "hosts",
            "h!st",
            "x-forwarded-port",
            "_ost",
            "x_real-ip",
            "x-forwarded_for",
            "t~",
        ] {
            assert_eq!(Known::of(other.as_bytes()), Known::Other, "{other}");
        }
        assert!(Known::Other.header_name().is_none());
        assert!(ALL.len() < 63, "a set has 64 bits, one of them for the others");
    }

    #[test]
    fn a_set_has_what_was_put_into_it() {
        let mut set = KnownSet::of(&[Known::Host, Known::Etag]);
        assert!(set.has(Known::Host) && set.has(Known::Etag) && !set.has(Known::Te));
        assert!(
            set.meets(KnownSet::of(&[Known::Te, Known::Host]))
                && !set.meets(KnownSet::of(&[Known::Te]))
        );
        set.remove(Known::Host);
        assert!(!set.has(Known::Host));
    }
}
