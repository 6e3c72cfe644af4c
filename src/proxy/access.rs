//! The access log: one line per request, written at the reply's end. Knows a request's result, and
//! nothing of how it came about.
//!
//! Queries are left out: they carry tokens and names more often than a log should hold. Header
//! values are left out for the same reason.

use std::cell::Cell;
use std::time::Duration;

use super::context::RequestContext;
use super::json;
use crate::plan::Enforcement;
use crate::telemetry::{self, Access, Label as _};

/// Maximum bytes of a path in a line.
const PATH_BYTES_MAX: usize = 2_048;
/// Maximum bytes of a method in a line: a client may send one as long as a head.
const METHOD_BYTES_MAX: usize = 32;
/// Maximum labels in a line.
const LABELS_MAX: usize = 32;
/// The usual size of a line, allocated at once.
const LINE_BYTES: usize = 512;

/// Writes the request's line, if such requests are logged.
pub(super) fn log(context: &RequestContext, bytes: u64, took: Duration) {
    let wanted = match context.route.access {
        Access::All => true,
        Access::Refused => context.refused,
        Access::Off => false,
    };
    if wanted {
        telemetry::access_line(line(
            context,
            bytes,
            took,
            context.route.clock.wall_us(),
            context.route.access_json,
        ));
    }
}

pub(super) fn line(
    context: &RequestContext,
    bytes: u64,
    took: Duration,
    wall_us: i64,
    as_json: bool,
) -> Vec<u8> {
    let mut line = Line { out: Vec::with_capacity(LINE_BYTES), json: as_json };
    line.open(wall_us);
    line.text("request_id", context.id.as_str());
    line.text("client", context.client.text.as_str());
    line.text("method", cut_method(context.method.as_str()));
    line.text("path", std::str::from_utf8(&context.path).unwrap_or_default());
    line.text("route", &context.route.name);
    line.number("status", u64::from(context.status));
    line.number("bytes", bytes);
    if let Some(up) = context.tunnelled_up {
        line.number("bytes_up", up);
    }
    line.milliseconds("duration_ms", took);
    let delayed = context.delayed();
    if delayed > Duration::ZERO {
        line.milliseconds("delayed_ms", delayed);
    }
    if let Some(decided) = context.decided {
        line.text("decision", decided.label());
    }
    if let Some(policy) = context.route.policy_name() {
        line.text("policy", policy);
    }
    if let Some((limits, outcome)) = context.limits() {
        line.list("refused_by", outcome.violated(limits).map(|(limit, _)| limit.name.as_str()));
        let shadows = limits
            .iter()
            .zip(&outcome.limits)
            .filter(|(limit, outcome)| limit.enforcement == Enforcement::Shadow && !outcome.fits);
        line.list(
            "would_refuse",
            shadows
                .filter(|(_, outcome)| outcome.unmeasured.is_none())
                .map(|(limit, _)| limit.name.as_str()),
        );
    }
    if let Some(failure) = context.failure {
        line.text("failure", failure);
    }
    if let Some(failure) = context.store_failure {
        line.text("store_failure", failure);
    }
    let settled = context.settled.as_deref();
    let decided = context.decision.iter().flat_map(|decision| &decision.labels);
    let mut labels = decided.chain(settled.iter().flat_map(|settled| &settled.labels)).peekable();
    if labels.peek().is_some() {
        line.labels(labels);
    }
    if let Some(settled) = settled.filter(|settled| !settled.amounts.is_empty()) {
        line.amounts(&settled.amounts);
    }
    line.close()
}

/// The part of a path that a line shows: at most [`PATH_BYTES_MAX`].
pub(super) fn cut(path: &str) -> &str {
    path.get(..path.floor_char_boundary(PATH_BYTES_MAX)).unwrap_or_default()
}

/// The part of a method that a line shows.
fn cut_method(method: &str) -> &str {
    method.get(..method.floor_char_boundary(METHOD_BYTES_MAX)).unwrap_or_default()
}

/// A line being built: a JSON object, or `key=value` text.
struct Line {
    out: Vec<u8>,
    json: bool,
}

impl Line {
    fn open(&mut self, wall_us: i64) {
        if self.json {
            self.out.extend_from_slice(b"{\"timestamp\":\"");
            self.out.extend_from_slice(&timestamp(wall_us));
            self.out.extend_from_slice(b"\",\"level\":\"INFO\",\"message\":\"request\"");
        } else {
            self.out.extend_from_slice(&timestamp(wall_us));
            self.out.extend_from_slice(b"  INFO request");
        }
    }

    fn key(&mut self, key: &str) {
        if self.json {
            self.out.extend_from_slice(b",\"");
            self.out.extend_from_slice(key.as_bytes());
            self.out.extend_from_slice(b"\":");
        } else {
            self.out.push(b' ');
            self.out.extend_from_slice(key.as_bytes());
            self.out.push(b'=');
        }
    }

    fn text(&mut self, key: &str, value: &str) {
        self.key(key);
        let bare = !self.json
            && !value.is_empty()
            && value
                .bytes()
                .all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\' | b'='));
        if bare {
            self.out.extend_from_slice(value.as_bytes())
        } else {
            json::string(&mut self.out, value)
        }
    }

    fn number(&mut self, key: &str, value: u64) {
        self.key(key);
        json::number(&mut self.out, value);
    }

    /// With three decimal places.
    fn milliseconds(&mut self, key: &str, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.number(key, us / 1_000);
        self.out.push(b'.');
        self.out.extend(digits::<3>(us % 1_000));
    }

    fn list<'a>(&mut self, key: &str, values: impl Iterator<Item = &'a str>) {
        let mut values = values.peekable();
        if values.peek().is_some() {
            self.key(key);
            json::strings(&mut self.out, values);
        }
    }

    fn labels<'a>(&mut self, labels: impl Iterator<Item = &'a (String, String)>) {
        self.key("labels");
        for (index, (name, value)) in labels.take(LABELS_MAX).enumerate() {
            self.out.push(if index == 0 { b'{' } else { b',' });
            json::string(&mut self.out, name);
            self.out.push(b':');
            json::string(&mut self.out, value);
        }
        self.out.push(b'}');
    }

    fn amounts(&mut self, amounts: &[(String, u64)]) {
        self.key("amounts");
        for (index, (name, units)) in amounts.iter().enumerate() {
            self.out.push(if index == 0 { b'{' } else { b',' });
            json::string(&mut self.out, name);
            self.out.push(b':');
            json::number(&mut self.out, *units);
        }
        self.out.push(b'}');
    }

    fn close(mut self) -> Vec<u8> {
        self.out.extend_from_slice(if self.json { b"}\n" } else { b"\n" });
        self.out
    }
}

type Stamp = [u8; 24];

thread_local! {
    /// The last second that was formatted, and its text.
    static SECOND: Cell<(i64, Stamp)> = const { Cell::new((i64::MIN, *b"1970-01-01T00:00:00.000Z")) };
}

/// RFC 3339 in UTC with milliseconds: `2026-01-31T23:59:59.999Z`. The date is formatted once a
/// second.
fn timestamp(wall_us: i64) -> Stamp {
    let second = wall_us.div_euclid(1_000_000);
    let (known, mut stamp) = SECOND.get();
    if known != second {
        stamp = date(second);
        SECOND.set((second, stamp));
    }
    put(&mut stamp, 20, &digits::<3>(wall_us.rem_euclid(1_000_000).unsigned_abs() / 1_000));
    stamp
}

/// The text of a second since 1970.
fn date(second: i64) -> Stamp {
    let (days, of_day) = (second.div_euclid(86_400), second.rem_euclid(86_400).unsigned_abs());
    // Counted from 1 March of the year 0, so that a leap day is a year's last. 400 years have
    // 146,097 days.
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Months from March have 31, 30, 31, 30, 31 days, repeating: 153 in five.
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    let mut stamp = *b"0000-00-00T00:00:00.000Z";
    put(&mut stamp, 0, &digits::<4>(year.unsigned_abs()));
    put(&mut stamp, 5, &digits::<2>(month.unsigned_abs()));
    put(&mut stamp, 8, &digits::<2>(day.unsigned_abs()));
    put(&mut stamp, 11, &digits::<2>(of_day / 3_600));
    put(&mut stamp, 14, &digits::<2>(of_day / 60 % 60));
    put(&mut stamp, 17, &digits::<2>(of_day % 60));
    stamp
}

/// The last `N` decimal digits.
fn digits<const N: usize>(mut value: u64) -> [u8; N] {
    let mut out = [b'0'; N];
    for digit in out.iter_mut().rev() {
        *digit += u8::try_from(value % 10).unwrap_or_default();
        value /= 10;
    }
    out
}

fn put(stamp: &mut Stamp, at: usize, digits: &[u8]) {
    if let Some(index) = stamp.get_mut(at..at + digits.len()) {
        index.copy_from_slice(digits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn is(wall_us: i64, expected: &str) {
        assert_eq!(std::str::from_utf8(&timestamp(wall_us)).unwrap(), expected);
    }

    #[test]
    fn a_timestamp_is_the_calendars() {
        is(0, "1970-01-01T00:00:00.000Z");
        is(-1, "1969-12-31T23:59:59.999Z");
        is(951_782_399_999_999, "2000-02-28T23:59:59.999Z");
        is(951_782_400_000_000, "2000-02-29T00:00:00.000Z");
        is(1_709_251_199_123_456, "2024-02-29T23:59:59.123Z");
        is(1_709_251_199_987_654, "2024-02-29T23:59:59.987Z");
        is(4_107_542_400_000_000, "2100-03-01T00:00:00.000Z");
        is(1_798_761_599_000_000, "2026-12-31T23:59:59.000Z");
    }

    #[test]
    fn text_is_quoted_where_a_reader_could_be_misled() {
        let text = |value: &str| {
            let mut line = Line { out: Vec::new(), json: false };
            line.text("path", value);
            String::from_utf8(line.out).unwrap()
        };
        assert_eq!(text("/a%20b"), " path=/a%20b");
        assert_eq!(text("/a status=200\n"), " path=\"/a status=200\\n\"");
        assert_eq!(text(""), " path=\"\"");
        assert_eq!(text("a=b"), " path=\"a=b\"");
    }

    #[test]
    fn a_long_path_is_cut_between_two_characters() {
        let path = format!("/{}", "\u{e9}".repeat(PATH_BYTES_MAX));
        assert_eq!(cut(&path).len(), PATH_BYTES_MAX - 1);
        assert_eq!(cut("/a"), "/a");
    }

    #[test]
    fn a_long_method_is_cut() {
        assert_eq!(cut_method(&"M".repeat(8_000)).len(), METHOD_BYTES_MAX);
        assert_eq!(cut_method("PROPPATCH"), "PROPPATCH");
    }

    #[test]
    fn a_duration_has_three_places() {
        let mut line = Line { out: Vec::new(), json: true };
        line.milliseconds("d", Duration::from_micros(12_034));
        let labels = [("plan".into(), "gold \"1\"".into()), ("b".into(), String::new())];
        line.labels(labels.iter());
        line.amounts(&[("input".into(), 5), ("output".into(), 7)]);
        assert_eq!(
            String::from_utf8(line.out).unwrap(),
            ",\"d\":12.034,\"labels\":{\"plan\":\"gold \\\"1\\\"\",\"b\":\"\"},\"amounts\":{\"input\":5,\"output\":7}"
        );
    }
}
