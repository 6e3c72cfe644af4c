//! The shape of a counter: what gives its state its meaning. It is part of every counter's name, so
//! that an edited limit keeps the counters whose meaning is unchanged, and starts the others
//! afresh.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

#[cfg(feature = "host")]
use crate::Content;
use crate::{Algorithm, Kind};

/// Hexadecimal characters of a script's digest in a counter's name: 64 bits, enough against
/// errors but not against attackers.
const SCRIPT_DIGEST_CHARS: usize = 16;

/// What a shape depends on in addition to the algorithm's own settings.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ShapeExtra {
    /// Nothing.
    Nothing,
    /// The length of a lease.
    Lease(Duration),
    /// The digest of a script's text, so that an edited script starts afresh.
    Script(String),
}

/// A shape, such as `fw2-60000c`: the algorithm with the version of its state's format, the period
/// in milliseconds, and what else the state depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// The algorithm without amounts.
    algorithm: Algorithm,
    extra: ShapeExtra,
}

/// Shortens a script's hexadecimal digest to the form used in a shape.
#[must_use]
pub fn script_digest_of(hex: &str) -> String {
    hex.chars().take(SCRIPT_DIGEST_CHARS).collect()
}

impl Shape {
    pub(crate) fn new(algorithm: Algorithm, extra: ShapeExtra) -> Self {
        Self { algorithm, extra }
    }

    /// The name of its algorithm, or of its script.
    #[must_use]
    pub fn name(&self) -> &str {
        self.algorithm.name()
    }

    /// What its counters are made of.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.algorithm.kind()
    }

    /// Describes a counter's content in words. `at_us` is when it was read, in microseconds since
    /// 1970. `known` is the limit that it belongs to, if known, to report the used share of its
    /// allowance. `None` if the content does not match this shape.
    #[cfg(feature = "host")]
    #[must_use]
    pub fn state(
        &self,
        content: &Content,
        at_us: u64,
        known: Option<&Algorithm>,
    ) -> Option<String> {
        let known = known.filter(|known| known.of_shape() == self.algorithm);
        let algorithm = known.unwrap_or(&self.algorithm);
        algorithm.state(&self.extra, content, at_us, known.is_some())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.algorithm.write_shape(&self.extra))
    }
}

impl FromStr for Shape {
    /// This version does not write such a shape.
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Algorithm::read_shape(text).map(|(algorithm, extra)| Self { algorithm, extra }).ok_or(())
    }
}

/// Parses `CODE-PERIODsuffix` into period and suffix.
pub(crate) fn after_code<'t>(text: &'t str, code: &str) -> Option<(u64, &'t str)> {
    let rest = text.strip_prefix(code)?.strip_prefix('-')?;
    let digits = rest.find(|next: char| !next.is_ascii_digit()).unwrap_or(rest.len());
    let (digits, suffix) = rest.split_at(digits);
    Some((digits.parse().ok()?, suffix))
}

/// Parses `CODE-PERIOD`.
pub(crate) fn period_after(text: &str, code: &str) -> Option<u64> {
    after_code(text, code).filter(|(_, suffix)| suffix.is_empty()).map(|(per_ms, _)| per_ms)
}
