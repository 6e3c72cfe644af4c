//! The access log: one line per request, written at the reply's end. Knows a request's result, and
//! nothing of how it came about.
//!
//! Queries are left out unless the operator chooses to have them: they carry tokens and names more
//! often than a log should hold. Other header values are left out for the same reason. Those that
//! are chosen are digests, and keys are left out, unless the configuration shows keys.

use std::io::Write as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use smallvec::SmallVec;

use super::data::Record;
use super::text::{cut_method, digits, timestamp};
use crate::limit::KeyDigest;
use crate::listen::Serves;
use crate::plan::{Enforcement, Role};
use crate::proxy::decide::Decided;
use crate::proxy::forward::sent::BYTES_UNKNOWN;
use crate::proxy::receive::call::noted::NotedCall;
use crate::proxy::receive::kept::KeptHead;
use crate::proxy::reply::json;
use crate::telemetry::{self, Access, AccessField, AccessFields, AccessHeaders, Label as _};
use crate::upstream::SendRecord;

/// Maximum labels in a line.
const LABELS_MAX: usize = 32;
/// The usual size of a line, allocated at once.
const LINE_BYTES: usize = 512;

/// Writes the request's line, if such requests are logged.
pub(super) fn log(record: &Record<'_>) {
    let route = &record.routed.handle;
    let wanted = match route.access {
        Access::All => true,
        Access::Refused => record.answer.refused,
        Access::Off => false,
    };
    if wanted {
        telemetry::access_line(line(record, route.clock.wall_us(), route.access_json));
    }
}

/// The line of a request that ended at `wall_us`, in microseconds since 1970.
pub(in crate::proxy) fn line(record: &Record<'_>, wall_us: i64, as_json: bool) -> Vec<u8> {
    let route = &record.routed.handle;
    let mut line =
        Line { out: Vec::with_capacity(LINE_BYTES), json: as_json, fields: route.access_fields };
    line.open(wall_us);
    line.asked(record);
    line.text(AccessField::Route, &route.name);
    line.number(AccessField::Status, u64::from(record.answer.status));
    line.number(AccessField::Bytes, record.bytes);
    let bytes_in = record.sent.and_then(|sent| sent.request_bytes.as_deref());
    let bytes_in = bytes_in.map(|bytes| bytes.load(Ordering::Relaxed));
    if let Some(bytes_in) = bytes_in.filter(|bytes| *bytes != BYTES_UNKNOWN) {
        line.number(AccessField::BytesIn, bytes_in);
    }
    if let Some(up) = record.tunnelled_up {
        line.number(AccessField::BytesUp, up);
    }
    line.milliseconds(AccessField::Duration, record.took);
    let delayed = record.decided.map_or(Duration::ZERO, Decided::delayed);
    if delayed > Duration::ZERO {
        line.milliseconds(AccessField::Delayed, delayed);
    }
    if let Some(reached) = record.sent.and_then(|sent| sent.reached.as_ref()) {
        line.reached(reached);
    }
    if let Some(verdict) = record.decided.and_then(|decided| decided.verdict) {
        line.text(AccessField::Decision, verdict.label());
    }
    if let Some(policy) = route.policy_name() {
        line.text(AccessField::Policy, policy);
    }
    if let Some(decided) = record.decided {
        line.limits(decided, route.insight.shows_keys());
    }
    line.word(AccessField::Failure, record.failure());
    line.word(AccessField::StoreFailure, record.decided.and_then(|decided| decided.store_failure));
    let mut labels = record.labels().peekable();
    if labels.peek().is_some() {
        line.labels(labels);
    }
    if let Some(settled) = record.settled.filter(|settled| !settled.amounts.is_empty()) {
        line.amounts(&settled.amounts);
    }
    line.close()
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
    fn asked(&mut self, record: &Record<'_>) {
        let received = record.received;
        let kept = received.kept.as_deref();
        self.text(AccessField::RequestId, received.id.as_str());
        if let Some(trace) = &received.trace {
            self.text(AccessField::TraceId, &trace.id.to_string());
        }
        self.text(AccessField::Client, received.client.text.as_str());
        self.text(AccessField::Method, cut_method(received.method.as_str()));
        self.kept(AccessField::Host, kept);
        self.text(AccessField::Path, std::str::from_utf8(&received.path).unwrap_or_default());
        self.kept(AccessField::Query, kept);
        if let Some(kept) = kept {
            self.word(AccessField::Protocol, kept.protocol);
            self.word(AccessField::TlsVersion, kept.tls_version);
        }
        self.kept(AccessField::Referer, kept);
        self.kept(AccessField::UserAgent, kept);
        if received.serves != Serves::Requests {
            self.text(AccessField::Serves, received.serves.label());
        }
        if let Some(call) = kept.and_then(|kept| kept.call.as_deref()) {
            self.call(call, record.routed.handle.insight.shows_keys());
        }
        if let Some(kept) = kept
            && self.fields.has_headers()
        {
            self.headers(&record.routed.handle.access_headers, kept);
        }
    }

    /// A call for a decision.
    #[inline(never)]
    fn call(&mut self, call: &NotedCall, shows_keys: bool) {
        // They are keys, or become some.
        let descriptors = call.descriptors.as_ref().filter(|_| shows_keys);
        for (field, value) in [
            (AccessField::Caller, call.caller.as_ref()),
            (AccessField::Domain, call.domain.as_ref()),
            (AccessField::Descriptors, descriptors),
        ] {
            if let Some(value) = value {
                self.text(field, value);
            }
        }
        if let Some(hits) = call.hits
            && self.begins(AccessField::Hits)
        {
            // Writing to a `Vec` can't fail.
            let _ = write!(self.out, "{hits}");
        }
    }

    /// Which limits refused, or would have.
    fn limits(&mut self, decided: &Decided, shows_keys: bool) {
        let Some((limits, outcome)) = decided.limits() else { return };
        let violated = || outcome.violated(limits).map(|(limit, _)| limit);
        self.list(AccessField::RefusedBy, violated().map(|limit| limit.name.as_str()));
        let digests: SmallVec<[String; 1]> =
            decided.refused_keys.iter().map(KeyDigest::to_string).collect();
        self.list(AccessField::KeyDigest, digests.iter().map(String::as_str));
        if shows_keys {
            self.list(AccessField::Key, violated().map(|limit| limit.key.as_str()));
        }
        let shadows = limits.iter().zip(&outcome.limits).filter(|(limit, outcome)| {
            let would_refuse = !outcome.fits && outcome.unmeasured.is_none();
            limit.enforcement == Enforcement::Shadow && limit.role != Role::Assured && would_refuse
        });
        let shadows = shadows.map(|(limit, _)| limit.name.as_str());
        let left_out = decided.left_out.iter().map(String::as_str);
        self.list(AccessField::WouldRefuse, shadows.chain(left_out));
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
    fn reached(&mut self, reached: &SendRecord) {
        if let Some(address) = &reached.address
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

#[cfg(test)]
mod tests {
    use super::*;

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
