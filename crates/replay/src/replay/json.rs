//! Lines that are JSON objects: of nginx, Caddy, Traefik, Envoy and Weir. What nginx and Envoy
//! write is described in their configurations, so several names are known for one thing.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::line::Line;
use super::{own, time};

/// What Caddy and Traefik write for a field's value that is not to be in the log.
const REDACTED: &str = "REDACTED";
/// The field of a request that names its client and the proxies after it.
const X_FORWARDED_FOR: &str = "x-forwarded-for";

/// Who wrote a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writer {
    Nginx,
    Caddy,
    Traefik,
    Envoy,
    Weir,
}

type Object = Map<String, Value>;
type Read<'l> = Result<Line<'l>, Cow<'static, str>>;

/// Who writes lines like this one.
pub(super) fn writer(text: &str) -> Option<Writer> {
    let object = object(text).ok()?;
    let has = |name: &str| object.contains_key(name);
    Some(if has("request") && object.get("request").is_some_and(Value::is_object) {
        Writer::Caddy
    } else if has("DownstreamStatus") || has("RequestPath") {
        Writer::Traefik
    } else if has("message") && has("timestamp") && has("level") {
        Writer::Weir
    } else if has("response_code") || has("start_time") {
        Writer::Envoy
    } else {
        Writer::Nginx
    })
}

fn object(text: &str) -> Result<Object, Cow<'static, str>> {
    serde_json::from_str(text).map_err(|error| format!("not a JSON object: {error}").into())
}

/// # Errors
/// What is wrong with the line.
pub(super) fn read<'l>(writer: Writer, text: &str) -> Read<'l> {
    let object = object(text)?;
    match writer {
        Writer::Nginx => nginx(object),
        Writer::Caddy => caddy(object),
        Writer::Traefik => traefik(object),
        Writer::Envoy => envoy(object),
        Writer::Weir => weir(object),
    }
}

/// Takes the first of these members that says something, as text.
fn text(object: &mut Object, names: &[&str]) -> Option<Cow<'static, str>> {
    names.iter().find_map(|name| match object.get_mut(*name)? {
        Value::String(text) if text.is_empty() || text == "-" => None,
        Value::String(text) => Some(Cow::Owned(std::mem::take(text))),
        Value::Number(number) => Some(Cow::Owned(number.to_string())),
        _ => None,
    })
}

fn number(object: &Object, names: &[&str]) -> Option<f64> {
    names.iter().find_map(|name| match object.get(*name)? {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    })
}

fn whole(object: &Object, names: &[&str]) -> Option<u64> {
    let number = number(object, names).filter(|number| (0.0..1e15).contains(number))?;
    Some(number as u64)
}

/// A duration in microseconds, of a number with this many microseconds in its unit.
fn duration(object: &Object, names: &[&str], unit_us: f64) -> Option<u64> {
    let us = number(object, names)? * unit_us;
    (0.0..1e15).contains(&us).then_some(us as u64)
}

/// 0 is a client that left before it had an answer (Caddy, Envoy).
fn status(object: &Object, names: &[&str]) -> Option<u16> {
    whole(object, names).and_then(|status| u16::try_from(status).ok())
}

fn stamp(
    object: &mut Object,
    names: &[&str],
    read: fn(&str) -> Option<i64>,
) -> Result<Option<i64>, Cow<'static, str>> {
    let Some(found) = text(object, names) else {
        return Err(format!("no time: none of {}", names.join(", ")).into());
    };
    match read(&found) {
        Some(us) => Ok(Some(us)),
        None => {
            Err(format!("found the time {found:?}, expected one such as 2015-05-17T10:05:03Z")
                .into())
        }
    }
}

/// Milliseconds since 1970, or a time as text.
fn milliseconds(text: &str) -> Option<i64> {
    match text.parse::<f64>() {
        Ok(ms) => (0.0..1e14).contains(&ms).then_some((ms * 1e3) as i64),
        Err(_) => time::any(text),
    }
}

/// Takes members that begin with `prefix` as header fields.
fn headers(object: &mut Object, prefix: &str, line: &mut Line<'_>) {
    for (name, value) in object.iter_mut() {
        if let (Some(field), Value::String(value)) = (name.strip_prefix(prefix), value) {
            let value = if value == "-" { String::new() } else { std::mem::take(value) };
            line.add_header(Cow::Owned(field.replace('_', "-").to_ascii_lowercase()), value.into());
        }
    }
}

fn nginx<'l>(mut object: Object) -> Read<'l> {
    let it = &mut object;
    let mut line = Line { stamp_is_end: true, ..Line::default() };
    line.client = text(it, &["remote_addr", "client", "client_ip", "clientip", "remote_ip", "ip"]);
    line.stamp_us = match text(it, &["time_ms", "timestamp_ms"]) {
        Some(ms) => milliseconds(&ms),
        None => {
            let names = [
                "time_iso8601",
                "time_local",
                "msec",
                "time",
                "timestamp",
                "@timestamp",
                "ts",
                "date",
            ];
            stamp(it, &names, time::any)?
        }
    };
    if let Some(request) = text(it, &["request"]) {
        let mut split = Line::default();
        split.set_request(&request)?;
        let owned = |part: Option<Cow<'_, str>>| part.map(|part| Cow::Owned(part.into_owned()));
        (line.method, line.target, line.version) =
            (owned(split.method), owned(split.target), owned(split.version));
    }
    let method = text(it, &["request_method", "method", "verb"]);
    let has_uri = it.contains_key("request_uri") || it.contains_key("url");
    let target = text(it, &["request_uri", "uri", "path", "url"]);
    let version = text(it, &["server_protocol", "protocol", "http_version"]);
    line.method = line.method.or(method);
    // Only these two have the query.
    let is_whole = line.target.is_some() || has_uri;
    line.target = line.target.or(target);
    line.version = line.version.or(version);
    let has_query = it.contains_key("args") || it.contains_key("query_string");
    line.query = text(it, &["args", "query_string"]);
    let shows_one = line.target.as_deref().is_some_and(|target| target.contains('?'));
    line.no_queries = !is_whole && !has_query && !shows_one;
    line.status = status(it, &["status", "response", "status_code"]);
    line.bytes = whole(it, &["body_bytes_sent", "bytes_sent", "bytes", "size"]);
    line.request_bytes = whole(it, &["content_length"]);
    line.took_us = duration(it, &["request_time", "duration"], 1e6)
        .or_else(|| duration(it, &["request_time_ms", "duration_ms"], 1e3));
    line.host = text(it, &["host", "http_host", "vhost", "server_name"]);
    line.scheme = text(it, &["scheme"]);
    headers(it, "http_", &mut line);
    let agent = text(it, &["user_agent", "agent"]);
    agent.into_iter().for_each(|agent| line.add_header("user-agent".into(), agent));
    Ok(line)
}

fn caddy<'l>(mut object: Object) -> Read<'l> {
    let Some(Value::Object(mut request)) = object.remove("request") else {
        return Ok(Line::of_nothing());
    };
    let mut line = Line { stamp_is_end: true, all_headers: true, ..Line::default() };
    line.stamp_us = stamp(&mut object, &["ts"], time::any)?;
    line.status = status(&object, &["status"]);
    line.bytes = whole(&object, &["size"]);
    line.request_bytes = whole(&object, &["bytes_read"]);
    line.took_us = duration(&object, &["duration"], 1e6);
    let it = &mut request;
    line.client = text(it, &["client_ip", "remote_ip", "remote_addr"]);
    line.method = text(it, &["method"]);
    line.target = text(it, &["uri"]);
    line.version = text(it, &["proto"]);
    line.host = text(it, &["host"]);
    line.scheme = Some(if it.contains_key("tls") { "https".into() } else { "http".into() });
    if let Some(Value::Object(headers)) = it.remove("headers") {
        for (name, values) in headers {
            let Value::Array(values) = values else { continue };
            for value in values {
                let Value::String(value) = value else { continue };
                // Caddy leaves these out unless it is configured to show them.
                let value = if value == REDACTED { String::new() } else { value };
                line.add_header(Cow::Owned(name.to_ascii_lowercase()), Cow::Owned(value));
            }
        }
    }
    Ok(line)
}

/// The client's address, or all of `X-Forwarded-For`, where there is one: then the address is that
/// of the proxy before Traefik, and the field is the request's.
fn traefik_client<'l>(it: &mut Object, line: &mut Line<'l>) -> Option<Cow<'l, str>> {
    let host = text(it, &["ClientHost"]);
    let Some(forwarded) = host.as_deref().filter(|host| host.contains(',')) else {
        return host.or_else(|| text(it, &["ClientAddr"]));
    };
    line.add_header(X_FORWARDED_FOR.into(), Cow::Owned(forwarded.to_owned()));
    it.remove("request_X-Forwarded-For");
    text(it, &["ClientAddr"])
}

fn traefik<'l>(mut object: Object) -> Read<'l> {
    let it = &mut object;
    let mut line =
        Line { stamp_us: stamp(it, &["StartUTC", "StartLocal"], time::any)?, ..Line::default() };
    // Traefik writes this word for fields that it is configured to hide.
    it.retain(|_, value| value != REDACTED);
    line.client = traefik_client(it, &mut line);
    line.method = text(it, &["RequestMethod"]);
    line.target = text(it, &["RequestPath"]);
    line.version = text(it, &["RequestProtocol"]);
    line.host = text(it, &["RequestHost", "RequestAddr"]);
    line.scheme = text(it, &["RequestScheme"]);
    // Here 0 says that there was no reply: a request that no origin was asked for.
    let replied = |name: &str| status(it, &[name]).filter(|status| *status > 0);
    let (downstream, origin) = (replied("DownstreamStatus"), replied("OriginStatus"));
    line.status = downstream.or(origin);
    line.was_refused = line.status == Some(429) && origin.is_none();
    line.bytes = whole(it, &["DownstreamContentSize", "OriginContentSize"]);
    line.request_bytes = whole(it, &["RequestContentSize"]);
    line.took_us = duration(it, &["Duration"], 1e-3);
    headers(it, "request_", &mut line);
    Ok(line)
}

fn envoy<'l>(mut object: Object) -> Read<'l> {
    let it = &mut object;
    let mut line =
        Line { stamp_us: stamp(it, &["start_time", "timestamp"], time::any)?, ..Line::default() };
    line.client = text(
        it,
        &[
            "downstream_remote_address",
            "downstream_remote_address_without_port",
            "downstream_direct_remote_address",
            "client_ip",
            "remote_address",
        ],
    );
    line.method = text(it, &["method", "request_method"]);
    line.target = text(it, &["x_envoy_original_path", "path", "request_path"]);
    line.version = text(it, &["protocol"]);
    line.host = text(it, &["authority", "host"]);
    line.scheme = text(it, &["scheme"]);
    line.status = status(it, &["response_code", "status"]);
    line.bytes = whole(it, &["bytes_sent"]);
    line.request_bytes = whole(it, &["bytes_received"]);
    line.took_us = duration(it, &["duration"], 1e3);
    let flags = text(it, &["response_flags"]);
    line.was_refused =
        flags.is_some_and(|flags| flags.split(',').any(|flag| matches!(flag, "RL" | "RLSE")));
    for (member, field) in [("user_agent", "user-agent"), ("x_forwarded_for", X_FORWARDED_FOR)] {
        let value = text(it, &[member]);
        value.into_iter().for_each(|value| line.add_header(field.into(), value));
    }
    Ok(line)
}

fn weir<'l>(mut object: Object) -> Read<'l> {
    if object.get("message").and_then(Value::as_str) != Some("request") {
        return Ok(Line::of_nothing());
    }
    let mut told = own::LineFields::at(stamp(&mut object, &["timestamp"], time::rfc3339)?);
    for (name, value) in object {
        match value {
            Value::String(value) => told.tell(&name, Cow::Owned(value)),
            Value::Number(value) => told.tell(&name, Cow::Owned(value.to_string())),
            Value::Array(values) => told.tell_list(&name, values),
            Value::Null => told.tell_list(&name, Vec::new()),
            _ => {}
        }
    }
    Ok(told.line())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn line(writer: Writer, mut with: Value) -> Line<'static> {
        let object = with.as_object_mut().unwrap();
        for (name, value) in [
            ("time", json!("2015-05-17T10:05:03Z")),
            ("ts", json!(1_431_857_103)),
            ("StartUTC", json!("2015-05-17T10:05:03Z")),
            ("start_time", json!("2015-05-17T10:05:03Z")),
            ("timestamp", json!("2015-05-17T10:05:03Z")),
            ("message", json!("request")),
        ] {
            object.insert(name.to_owned(), value);
        }
        read(writer, &with.to_string()).unwrap()
    }

    #[test]
    fn a_status_of_0_is_a_client_that_left_but_to_traefik() {
        let caddy = line(Writer::Caddy, json!({"request": {}, "status": 0}));
        let envoy = line(Writer::Envoy, json!({"response_code": 0}));
        assert_eq!((caddy.status, envoy.status), (Some(0), Some(0)));
        for (downstream, origin, status, was_refused) in [
            (429, 0, Some(429), true),
            (429, 429, Some(429), false),
            (502, 0, Some(502), false),
            (0, 0, None, false),
            (0, 204, Some(204), false),
        ] {
            let of = json!({"DownstreamStatus": downstream, "OriginStatus": origin});
            let traefik = line(Writer::Traefik, of);
            let found = (traefik.status, traefik.was_refused);
            assert_eq!(found, (status, was_refused), "{downstream} {origin}");
        }
    }

    #[test]
    fn what_traefik_hides_and_who_it_was_asked_by_is_not_taken_for_the_clients() {
        let fields = |line: &Line<'_>| -> Vec<(String, String)> {
            let owned = |(name, value): &(Cow<'_, str>, Cow<'_, str>)| {
                (name.to_string(), value.to_string())
            };
            line.headers.iter().map(owned).collect()
        };
        let direct = line(
            Writer::Traefik,
            json!({"ClientHost": "203.0.113.7", "ClientAddr": "203.0.113.7:5",
                "request_X-Api-Key": "REDACTED", "request_X-Other": "a"}),
        );
        assert_eq!(direct.client.as_deref(), Some("203.0.113.7"));
        assert_eq!(fields(&direct), [("x-other".to_owned(), "a".to_owned())]);
        let list = "198.51.100.1, 203.0.113.7";
        let behind = line(
            Writer::Traefik,
            json!({"ClientHost": list, "ClientAddr": "10.0.0.1:5", "request_X-Forwarded-For": list}),
        );
        assert_eq!(behind.client.as_deref(), Some("10.0.0.1:5"));
        assert_eq!(fields(&behind), [(X_FORWARDED_FOR.to_owned(), list.to_owned())]);
    }

    #[test]
    fn a_path_alone_does_not_tell_the_query() {
        for (with, no_queries) in [
            (json!({"uri": "/a"}), true),
            (json!({"path": "/a"}), true),
            (json!({"uri": "/a", "args": ""}), false),
            (json!({"uri": "/a?b=1"}), false),
            (json!({"request_uri": "/a"}), false),
            (json!({"uri": "/a", "request": "GET /a HTTP/1.1"}), false),
        ] {
            let told = with.to_string();
            assert_eq!(line(Writer::Nginx, with).no_queries, no_queries, "{told}");
        }
    }

    #[test]
    fn weirs_fields_are_those_of_its_text() {
        let with = json!({"client": "192.0.2.1", "path": "/a", "query": "b=1", "protocol": "HTTP/2",
            "bytes_in": 7, "duration_ms": 30.5, "delayed_ms": 20.25, "status": 503, "decision": "failed"});
        let line = line(Writer::Weir, with);
        assert_eq!((line.query.as_deref(), line.version.as_deref()), (Some("b=1"), Some("HTTP/2")));
        assert_eq!(
            (line.request_bytes, line.took_us, line.delayed_us),
            (Some(7), Some(30_500), 20_250)
        );
        assert!(line.was_refused);
        let with = json!({"header.a": "x", "header.b": null, "header.c": ["y", "z"],
            "header.d": "digest:0123456789abcdef0123456789abcdef", "refused_by": ["a"]});
        let line = self::line(Writer::Weir, with);
        let headers: Vec<(&str, &str)> =
            line.headers.iter().map(|(name, value)| (&**name, &**value)).collect();
        let digest = "digest:0123456789abcdef0123456789abcdef";
        assert_eq!(headers, [("a", "x"), ("b", ""), ("c", "y"), ("c", "z"), ("d", digest)]);
        assert!(line.has_digests);
    }
}
