//! Every metric that Weir has: its name, its labels, its help text. `/metrics` adds `_total` to
//! counters.

/// A counter's name, help text and label names. A label's value comes from the configuration or
/// from a closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    /// Without the `_total` that the exposition adds.
    pub name: &'static str,
    /// One sentence.
    pub help: &'static str,
    /// In the order in which values are handed in.
    pub labels: &'static [&'static str],
}

macro_rules! names {
    ($($constant:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(#[doc = $help] pub const $constant: Name = Name { name: $name, help: $help, labels: &[$($label),*] };)*
        /// All of them: `/metrics` shows each from the start, and the README's table is checked
        /// against it.
        pub const ALL: &[Name] = &[$($constant),*];
    };
}

names! {
    REQUESTS "weir_requests" ["route", "code"] "Requests answered, by route and status code";
    DECISIONS "weir_decisions" ["policy", "decision"] "Policy decisions: admitted, refused, bypassed, denied, degraded, unavailable, failed";
    LIMIT_REFUSALS "weir_limit_refusals" ["policy", "limit"] "Requests that this limit refused";
    LIMIT_WOULD_REFUSE "weir_limit_would_refuse" ["policy", "limit"] "Requests that this shadow limit would have refused";
    POLICY_ERRORS "weir_policy_errors" ["policy", "cause"] "Policy calls that failed: trap, time, memory, stack, answer, guest, overload";
    STORE_ERRORS "weir_store_errors" ["cause"] "Store calls that failed, by cause";
    STORE_DEGRADED "weir_store_degraded" ["policy"] "Requests let through uncounted because the store could not be reached";
    TAKES_UNKNOWN "weir_takes_unknown" [] "Takes whose outcome is unknown: they stand until they expire";
    SETTLES_DROPPED "weir_settles_dropped" ["kind"] "Settling calls dropped from the full queue: give_back, charge, reset";
    SETTLES_FAILED "weir_settles_failed" ["kind"] "Settling calls that failed: give_back, charge, reset and renewal (of a place in flight) had no answer, charge_refused did not fit any more";
    UPSTREAM_ERRORS "weir_upstream_errors" ["upstream", "cause"] "Upstream failures: connect, tls, timeout, cut, protocol, overload, share, descriptors, body";
    UPSTREAM_EJECTIONS "weir_upstream_ejections" ["upstream", "endpoint"] "Times that an endpoint, or one of its addresses, was left alone because it failed";
    UPSTREAM_RETRIES "weir_upstream_retries" ["upstream", "result"] "Idempotent requests that lost their connection: sent to another endpoint, reconnected (sent again after a pooled connection was closed), held back by the budget";
    CONNECTIONS "weir_connections" [] "Client connections accepted";
    CONNECTIONS_REFUSED "weir_connections_refused" ["cause"] "Client connections closed at once: limit, address, accept";
    CONNECTIONS_RECLAIMED "weir_connections_reclaimed" ["cause"] "Idle client connections closed to make room for others: limit, descriptors";
    CONNECTION_ERRORS "weir_connection_errors" ["cause"] "Client connections that ended early: malformed, tls_hello, head_too_large, head_timeout, send_timeout, send_slow, request_timeout, reply_cut, closed, other";
    TLS_HANDSHAKES_FAILED "weir_tls_handshakes_failed" ["cause"] "TLS handshakes of clients that failed: timeout, closed, plain_text, incompatible, client_certificate, alert, malformed";
    TUNNELS "weir_tunnels" ["ending"] "Upgraded connections that have ended: closed, idle, client, upstream";
    RELOADS "weir_reloads" ["result"] "Reloads: applied, unchanged, refused";
    EMBEDDED_FULL "weir_embedded_full" [] "Takes refused because the embedded engine holds its maximum of keys";
}

/// A gauge's name and help text.
pub const CONNECTIONS_OPEN: Name =
    Name { name: "weir_connections_open", help: "Client connections open now", labels: &[] };
/// Upgraded connections.
pub const TUNNELS_OPEN: Name = Name {
    name: "weir_tunnels_open",
    help: "Upgraded connections (WebSockets) open now",
    labels: &[],
};
/// What buffers hold.
pub const BUFFERED_BYTES: Name = Name {
    name: "weir_buffered_bytes",
    help: "Bytes held for others to take, as server.limits.buffered_bytes counts them; renewed each second",
    labels: &[],
};
/// Keys that the embedded engine holds.
pub const EMBEDDED_KEYS: Name =
    Name { name: "weir_embedded_keys", help: "Keys that the embedded engine holds", labels: &[] };
/// When the first certificate of a listener expires.
pub const CERTIFICATES_EXPIRE: Name = Name {
    name: "weir_certificates_expire_timestamp_seconds",
    help: "When the first certificate of a listener expires, in Unix seconds; absent without TLS",
    labels: &[],
};
/// When the running configuration was applied.
pub const CONFIG_APPLIED: Name = Name {
    name: "weir_config_applied_timestamp_seconds",
    help: "When the running configuration was applied, in Unix seconds",
    labels: &[],
};
/// Time from the request's head to the reply's last byte.
pub const REQUEST_SECONDS: Name = Name {
    name: "weir_request_duration_seconds",
    help: "From the request's head to the reply's end, in seconds",
    labels: &[],
};
/// Time that deciding took: policy and limits.
pub const DECISION_SECONDS: Name = Name {
    name: "weir_decision_duration_seconds",
    help: "Deciding, policy and limits together, in seconds",
    labels: &[],
};
