//! W3C Trace Context, level 1: the ids of traces and spans, and the header field `traceparent` that
//! carries them. Knows no request.

use std::fmt;

/// Bytes of a `traceparent` of version 00, the only one that is written.
const TEXT_BYTES: usize = 55;
/// The flag that says that the caller records its part of the trace.
const SAMPLED: u8 = 1;

/// The id of a trace. Not 0.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TraceId(u128);

/// The id of a span. Not 0.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SpanId(u64);

/// Who called: the content of a `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace that the request is part of.
    pub trace: TraceId,
    /// The caller's span.
    pub span: SpanId,
    /// Whether the caller records its part.
    pub sampled: bool,
}

impl TraceId {
    /// A random one.
    #[must_use]
    pub fn random() -> Self {
        Self(fastrand::u128(1..))
    }

    pub(super) fn bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }
}

impl SpanId {
    /// A random one.
    #[must_use]
    pub fn random() -> Self {
        Self(fastrand::u64(1..))
    }

    pub(super) fn bytes(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }
}

impl TraceParent {
    /// Reads the value of a field. `None` if it is not valid, and so says nothing.
    #[must_use]
    pub fn read(value: &[u8]) -> Option<Self> {
        let (known, rest) = value.split_at_checked(TEXT_BYTES)?;
        let version = number(known.get(..2)?)?;
        // A later version may add parts at the end. 255 is not a version.
        let ends = match version {
            0 => rest.is_empty(),
            255 => false,
            _ => rest.first().is_none_or(|byte| *byte == b'-'),
        };
        let dashes = [2, 35, 52].iter().all(|at| known.get(*at) == Some(&b'-'));
        let (trace, span) = (number(known.get(3..35)?)?, number(known.get(36..52)?)?);
        let flags = number(known.get(53..)?)?;
        let span = u64::try_from(span).ok()?;
        let valid = ends && dashes && trace != 0 && span != 0;
        let sampled = flags & u128::from(SAMPLED) != 0;
        valid.then_some(Self { trace: TraceId(trace), span: SpanId(span), sampled })
    }

    /// The value of a field.
    #[must_use]
    pub fn text(&self) -> String {
        let flags = if self.sampled { SAMPLED } else { 0 };
        format!("00-{}-{}-{flags:02x}", self.trace, self.span)
    }
}

/// A number in hexadecimal digits, which must be in lower case.
fn number(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0_u128, |number, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(value))
    })
}

impl fmt::Display for TraceId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:032x}", self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:016x}", self.0)
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn read(value: &str) -> Option<TraceParent> {
        TraceParent::read(value.as_bytes())
    }

    #[test]
    fn a_valid_one_is_read_and_written_the_same() {
        let parent = read(VALID).unwrap();
        assert_eq!(parent.trace.to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(parent.span.to_string(), "00f067aa0ba902b7");
        assert!(parent.sampled);
        assert_eq!(parent.text(), VALID);
        let unsampled = VALID.replace("-01", "-00");
        assert_eq!(read(&unsampled).unwrap().text(), unsampled);
        // Flags of which level 1 knows nothing are not passed on.
        assert_eq!(read(&VALID.replace("-01", "-ff")).unwrap().text(), VALID);
        assert!(!read(&VALID.replace("-01", "-fe")).unwrap().sampled);
    }

    #[test]
    fn a_later_version_may_have_more_parts() {
        assert!(read(&VALID.replacen("00-", "01-", 1)).unwrap().sampled);
        let longer = format!("{}-what-follows", VALID.replacen("00-", "cc-", 1));
        let parent = read(&longer).unwrap();
        assert_eq!(parent.text(), VALID);
        assert_eq!(read(&format!("{}.x", VALID.replacen("00-", "cc-", 1))), None);
        assert_eq!(read(&format!("{}1", VALID.replacen("00-", "cc-", 1))), None);
        assert!(read(&format!("{}-", VALID.replacen("00-", "01-", 1))).is_some());
    }

    #[test]
    fn an_invalid_field_is_ignored() {
        for value in [
            "",
            "00",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "0-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "0g-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00F067AA0BA902B7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e47361-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0x",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01 ",
            " 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7_01",
            "00-4bf92f3577b34da6a3ce929d0e0e473\u{e9}00f067aa0ba902b7-01",
        ] {
            assert_eq!(read(value), None, "{value}");
        }
    }

    #[test]
    fn random_ids_are_valid() {
        for _ in 0..100 {
            let (trace, span) = (TraceId::random(), SpanId::random());
            let parent = TraceParent { trace, span, sampled: true };
            assert_eq!(read(&parent.text()), Some(parent));
        }
    }
}
