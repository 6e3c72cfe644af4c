//! The access log: one line per request, written at the reply's end. Knows a request's result, and
//! nothing of how it came about.
//!
//! Queries are left out unless the operator chooses to have them: they carry tokens and names more
//! often than a log should hold. Other header values are left out for the same reason. Those that
//! are chosen are digests, and keys are left out, unless the configuration shows keys.

use std::cell::Cell;
use std::io::Write as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use smallvec::SmallVec;

use super::kept::KeptHead;
use crate::limit::KeyDigest;
use crate::plan::Enforcement;
use crate::proxy::context::{BYTES_UNKNOWN, RequestContext};
use crate::proxy::reply::json;
use crate::telemetry::{self, Access, AccessField, AccessFields, AccessHeaders, Label as _};
use crate::upstream::SendRecord;

/// Maximum bytes of a path in a line.
const PATH_BYTES_MAX: usize = 2_048;
/// Maximum bytes of a method in a line: a client may send one as long as a head.
const METHOD_BYTES_MAX: usize = 32;
/// Maximum labels in a line.
const LABELS_MAX: usize = 32;
/// The usual size of a line, allocated at once.
const LINE_BYTES: usize = 512;

/// Writes the request's line, if such requests are logged.
pub(in crate::proxy) fn log(context: &RequestContext, bytes: u64, took: Duration) {
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

pub(in crate::proxy) fn line(
    context: &RequestContext,
    bytes: u64,
    took: Duration,
    wall_us: i64,
    as_json: bool,
) -> Vec<u8> {
    let fields = context.route.access_fields;
    let kept = context.kept.as_deref();
    let mut line = Line { out: Vec::with_capacity(LINE_BYTES), json: as_json, fields };
    line.open(wall_us);
    line.asked(context, kept);
    line.text(AccessField::Route, &context.route.name);
    line.number(AccessField::Status, u64::from(context.status));
    line.number(AccessField::Bytes, bytes);
    let bytes_in = context.request_bytes.as_deref().map(|bytes| bytes.load(Ordering::Relaxed));
    if let Some(bytes_in) = bytes_in.filter(|bytes| *bytes != BYTES_UNKNOWN) {
        line.number(AccessField::BytesIn, bytes_in);
    }
    if let Some(up) = context.tunnelled_up {
        line.number(AccessField::BytesUp, up);
    }
    line.milliseconds(AccessField::Duration, took);
    let delayed = context.delayed();
    if delayed > Duration::ZERO {
        line.milliseconds(AccessField::Delayed, delayed);
    }
    if let Some(reached) = kept.map(|kept| kept.reached) {
        line.reached(reached);
    }
    if let Some(verdict) = context.verdict {
        line.text(AccessField::Decision, verdict.label());
    }
    if let Some(policy) = context.route.policy_name() {
        line.text(AccessField::Policy, policy);
    }
    if let Some((limits, outcome)) = context.limits() {
        line.list(
            AccessField::RefusedBy,
            outcome.violated(limits).map(|(limit, _)| limit.name.as_str()),
        );
        let digests: SmallVec<[String; 1]> =
            context.refused_keys.iter().map(KeyDigest::to_string).collect();
        line.list(AccessField::KeyDigest, digests.iter().map(String::as_str));
        if context.route.insight.shows_keys() {
            line.list(
                AccessField::Key,
                outcome.violated(limits).map(|(limit, _)| limit.key.as_str()),
            );
        }
        let shadows = limits
            .iter()
            .zip(&outcome.limits)
            .filter(|(limit, outcome)| limit.enforcement == Enforcement::Shadow && !outcome.fits);
        line.list(
            AccessField::WouldRefuse,
            shadows
                .filter(|(_, outcome)| outcome.unmeasured.is_none())
                .map(|(limit, _)| limit.name.as_str()),
        );
    }
    line.word(AccessField::Failure, context.failure);
    line.word(AccessField::StoreFailure, context.store_failure);
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
pub(in crate::proxy) fn cut(path: &str) -> &str {
    path.get(..path.floor_char_boundary(PATH_BYTES_MAX)).unwrap_or_default()
}

/// The part of a method that a line shows.
pub(in crate::proxy) fn cut_method(method: &str) -> &str {
    method.get(..method.floor_char_boundary(METHOD_BYTES_MAX)).unwrap_or_default()
}

/// A line being built: a JSON object, or `key=value` text.
struct Line {
    out: Vec<u8>,
    json: bool,
    /// What it shows; the rest is left out.
    fields: AccessFields,
}

impl Line {
    fn open(&mut self, wall_us: i64) {
        let timed = self.fields.has(AccessField::Timestamp);
        if self.json {
            self.out.push(b'{');
            if timed {
                self.out.extend_from_slice(b"\"timestamp\":\"");
                self.out.extend_from_slice(&timestamp(wall_us));
                self.out.extend_from_slice(b"\",");
            }
            self.out.extend_from_slice(b"\"level\":\"INFO\",\"message\":\"request\"");
        } else {
            if timed {
                self.out.extend_from_slice(&timestamp(wall_us));
                self.out.push(b' ');
            }
            self.out.extend_from_slice(b" INFO request");
        }
    }

    /// Begins a field, if the line shows it.
    fn begins(&mut self, field: AccessField) -> bool {
        if !self.fields.has(field) {
            return false;
        }
        self.key(field.label());
        true
    }

    /// Begins a field.
    #[inline]
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

    /// Who asked for what.
    fn asked(&mut self, context: &RequestContext, kept: Option<&KeptHead>) {
        self.text(AccessField::RequestId, context.id.as_str());
        if let Some(trace) = &context.trace {
            self.text(AccessField::TraceId, &trace.id().to_string());
        }
        self.text(AccessField::Client, context.client.text.as_str());
        self.text(AccessField::Method, cut_method(context.method.as_str()));
        self.kept(AccessField::Host, kept);
        self.text(AccessField::Path, std::str::from_utf8(&context.path).unwrap_or_default());
        self.kept(AccessField::Query, kept);
        if let Some(kept) = kept {
            self.word(AccessField::Protocol, kept.protocol);
            self.word(AccessField::TlsVersion, kept.tls_version);
        }
        self.kept(AccessField::Referer, kept);
        self.kept(AccessField::UserAgent, kept);
        if let Some(kept) = kept
            && self.fields.has_headers()
        {
            self.headers(&context.route.access_headers, kept);
        }
    }

    /// The chosen header fields. One that was not sent has a field without a value, so that a
    /// replay of the log can tell it from one that is not in the log.
    #[inline(never)]
    fn headers(&mut self, headers: &AccessHeaders, kept: &KeptHead) {
        for (index, field) in headers.fields().enumerate() {
            let Some(values) = kept.header(index) else { continue };
            self.key(field);
            match values.as_slice() {
                [] if self.json => self.out.extend_from_slice(b"null"),
                [] => {}
                [value] => self.value(value),
                values => json::strings(&mut self.out, values.iter().map(|value| &**value)),
            }
        }
    }

    fn word(&mut self, field: AccessField, value: Option<&'static str>) {
        if let Some(value) = value {
            self.text(field, value);
        }
    }

    fn kept(&mut self, field: AccessField, kept: Option<&KeptHead>) {
        if let Some(value) = kept.and_then(|kept| kept.text(field)) {
            self.text(field, &value);
        }
    }

    /// Where the request was sent.
    fn reached(&mut self, reached: SendRecord) {
        if let Some(address) = reached.address
            && self.begins(AccessField::Upstream)
        {
            let quote: &[u8] = if self.json { b"\"" } else { b"" };
            self.out.extend_from_slice(quote);
            // Writing to a `Vec` can't fail.
            let _ = write!(self.out, "{address}");
            self.out.extend_from_slice(quote);
        }
        if let Some(took) = reached.took {
            self.milliseconds(AccessField::UpstreamTime, took);
        }
    }

    fn text(&mut self, field: AccessField, value: &str) {
        if self.begins(field) {
            self.value(value);
        }
    }

    /// A bare word, or a text in quotes. What begins like a list would be read as one.
    #[inline]
    fn value(&mut self, value: &str) {
        let bare = !self.json
            && !value.is_empty()
            && !value.starts_with(['[', '{'])
            && value
                .bytes()
                .all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\' | b'='));
        if bare {
            self.out.extend_from_slice(value.as_bytes())
        } else {
            json::string(&mut self.out, value)
        }
    }

    fn number(&mut self, field: AccessField, value: u64) {
        if self.begins(field) {
            json::number(&mut self.out, value);
        }
    }

    /// Writes a time with three decimal places.
    fn milliseconds(&mut self, field: AccessField, time: Duration) {
        if self.begins(field) {
            let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
            json::number(&mut self.out, us / 1_000);
            self.out.push(b'.');
            self.out.extend(digits::<3>(us % 1_000));
        }
    }

    fn list<'a>(&mut self, field: AccessField, values: impl Iterator<Item = &'a str>) {
        let mut values = values.peekable();
        if values.peek().is_some() && self.begins(field) {
            json::strings(&mut self.out, values);
        }
    }

    fn labels<'a>(&mut self, labels: impl Iterator<Item = &'a (String, String)>) {
        if !self.begins(AccessField::Labels) {
            return;
        }
        for (index, (name, value)) in labels.take(LABELS_MAX).enumerate() {
            self.out.push(if index == 0 { b'{' } else { b',' });
            json::string(&mut self.out, name);
            self.out.push(b':');
            json::string(&mut self.out, value);
        }
        self.out.push(b'}');
    }

    fn amounts(&mut self, amounts: &[(String, u64)]) {
        if !self.begins(AccessField::Amounts) {
            return;
        }
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

/// The time of a line as text.
pub(in crate::proxy) fn time(wall_us: i64) -> String {
    String::from_utf8_lossy(&timestamp(wall_us)).into_owned()
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
            let mut line = Line { out: Vec::new(), json: false, fields: AccessFields::default() };
            line.text(AccessField::Path, value);
            String::from_utf8(line.out).unwrap()
        };
        assert_eq!(text("/a%20b"), " path=/a%20b");
        assert_eq!(text("/a status=200\n"), " path=\"/a status=200\\n\"");
        assert_eq!(text(""), " path=\"\"");
        assert_eq!(text("a=b"), " path=\"a=b\"");
        assert_eq!(text("[a"), " path=\"[a\"");
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
        let mut line = Line { out: Vec::new(), json: true, fields: AccessFields::default() };
        line.milliseconds(AccessField::Duration, Duration::from_micros(12_034));
        let labels = [("plan".into(), "gold \"1\"".into()), ("b".into(), String::new())];
        line.labels(labels.iter());
        line.amounts(&[("input".into(), 5), ("output".into(), 7)]);
        assert_eq!(
            String::from_utf8(line.out).unwrap(),
            ",\"duration_ms\":12.034,\"labels\":{\"plan\":\"gold \\\"1\\\"\",\"b\":\"\"},\"amounts\":{\"input\":5,\"output\":7}"
        );
    }

    #[test]
    fn a_line_without_its_time_is_still_one_object() {
        let opened = |json, fields| {
            let mut line = Line { out: Vec::new(), json, fields };
            line.open(0);
            line.text(AccessField::Client, "a");
            line.number(AccessField::Status, 200);
            String::from_utf8(line.close()).unwrap()
        };
        let client = AccessFields::NONE.and(AccessField::Client);
        assert_eq!(
            opened(true, client),
            "{\"level\":\"INFO\",\"message\":\"request\",\"client\":\"a\"}\n"
        );
        assert_eq!(opened(false, client), " INFO request client=a\n");
        assert_eq!(
            opened(false, client.and(AccessField::Timestamp)),
            "1970-01-01T00:00:00.000Z  INFO request client=a\n"
        );
    }
}
