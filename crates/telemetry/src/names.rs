//! Every metric that Weir has: its kind, name, labels and help text. `/metrics` adds `_total` to
//! counters.

/// A metric. A label's value comes from the configuration or from a closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    /// What it measures.
    pub kind: Kind,
    /// The name, without the `_total` that the exposition adds to counters.
    pub name: &'static str,
    /// One sentence.
    pub help: &'static str,
    /// The labels' names, in the order in which values are passed. Gauges have none.
    pub labels: &'static [&'static str],
}

/// What a metric measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A number that only grows.
    Counter,
    /// A number that goes up and down.
    Gauge,
    /// A gauge that is shown only while it has a value.
    OptionalGauge,
    /// A gauge that is always 1: what it says is in its labels.
    Info,
    /// What the system counts for this process, if anything. Read when it is asked for.
    MeasuredCounter,
    /// What the system says about this process now, if anything. Read when it is asked for.
    MeasuredGauge,
    /// Times, in seconds.
    Histogram,
}

macro_rules! names {
    ($($kind:ident $constant:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(
            #[doc = $help]
            pub const $constant: Name = Name {
                kind: Kind::$kind,
                name: $name,
                help: $help,
                labels: &[$($label),*],
            };
        )*
        /// All of them. `/metrics` shows each from the start, but for optional gauges and what a
        /// system does not report; the table in docs/metrics.md is checked against this file.
        pub const ALL: &[Name] = &[$($constant),*];
    };
}

names! {
    Counter REQUESTS "weir_requests" ["route", "code"] "Requests answered, by route and status code";
    Counter DECISIONS "weir_decisions" ["policy", "decision"] "Policy decisions: admitted, refused, bypassed, denied, degraded, local, unavailable, failed (the policy, and the request was refused), uncounted (it failed, and the request was let through); looks, which take nothing, are not included";
    Counter ROUTE_REFUSALS "weir_route_refusals" ["route", "cause"] "Requests that Weir refused on this route, by cause: limit, denial (by the policy), store (a counter could not be reached), policy_error (the policy failed), overload, maintenance; of a route without a policy the last two";
    Counter LIMIT_REFUSALS "weir_limit_refusals" ["policy", "limit"] "Requests that this limit refused, or let through with less than they asked for (partial)";
    Counter LIMIT_REFUSALS_HELD "weir_limit_refusals_held" ["policy", "limit"] "Requests that this limit refused while requests under way on this proxy had reserved enough units that they may give back";
    Counter LIMIT_WOULD_REFUSE "weir_limit_would_refuse" ["policy", "limit"] "Requests that this shadow limit would have refused";
    Counter POLICY_ERRORS "weir_policy_errors" ["policy", "cause"] "Policy calls that failed: trap, time, memory, stack, answer (also an adjustment of `settle` that its limit does not allow), guest, overload, stopped (not called, because the policy kept failing)";
    Counter POLICY_CALLS "weir_policy_calls" ["policy", "call"] "Calls of a policy's guest: decide (decisions that were not remembered), settle";
    Counter POLICY_STOPS "weir_policy_stops" ["policy"] "Times that a policy was stopped for a while because it kept failing";
    Counter POLICY_REQUESTS "weir_policy_requests" ["policy", "label", "value"] "Requests to which the policy gave this label, for the labels listed under metrics";
    Counter POLICY_AMOUNTS "weir_policy_amounts" ["policy", "amount"] "Units that requests used, as counted by the policy (input-tokens), for the amounts listed under metrics";
    Counter STORE_ERRORS "weir_store_errors" ["cause"] "Store calls that failed, by cause";
    Counter LEASE_CALLS "weir_lease_calls" ["result"] "Calls for units of limits with a `lease`, by result: granted, refused (too few units were left), failed";
    Counter LEASE_UNITS "weir_lease_units" ["event"] "Units of limits with a `lease`: taken (in advance), given_back (unused, or refunded)";
    Counter QUOTA_ASSIGNMENTS "weir_quota_assignments" ["result"] "What streams of Envoy's quota service were told about their buckets: assigned (units), denied, unlimited, abandoned; or not told: failed (the policy or the store), unfit (a limit that can't be handed out)";
    Counter QUOTA_REQUESTS "weir_quota_requests" ["result"] "Requests that streams of Envoy's quota service report: allowed, denied";
    Counter REFUSALS_REMEMBERED "weir_refusals_remembered" [] "Requests refused because an equal one was refused less than a second ago, without asking Redis";
    Counter STORE_DEGRADED "weir_store_degraded" ["policy"] "Requests let through uncounted because the store could not be reached";
    Counter TAKES_UNKNOWN "weir_takes_unknown" [] "Takes whose outcome is unknown: their charge stands until it expires";
    Counter SETTLES_DROPPED "weir_settles_dropped" ["kind"] "Settling calls dropped because the queue was full: give_back, charge, reset";
    Counter SETTLES_FAILED "weir_settles_failed" ["kind"] "Settling calls that failed: give_back, charge, reset and renewal (of a concurrency lease) got no answer, charge_refused no longer fitted, debt_full exceeded the limit's debt";
    Counter UPSTREAM_ERRORS "weir_upstream_errors" ["upstream", "cause"] "Upstream failures: connect, tls, timeout, cut, protocol, overload, shed, share, descriptors; and body (the request's own was malformed, too large or too slow)";
    Counter UPSTREAM_SHED "weir_upstream_shed" ["upstream", "reason"] "Requests that got no place at an upstream with `concurrency`, by reason: waited (for `max_wait`), full (as many waited as may), displaced (one of a higher priority, or of a sender with less, took its turn)";
    Counter MIRRORED_REQUESTS "weir_mirrored_requests" ["route", "result"] "Copies of requests for the upstream of a route's `mirror`: answered, failed, and those that were not sent: too_large (a body longer than `body_bytes`), overload (too many copies were under way), incomplete (the request itself broke off)";
    Counter UPSTREAM_EJECTIONS "weir_upstream_ejections" ["upstream", "endpoint"] "Times that an endpoint, or one of its addresses, was ejected because it failed";
    Counter UPSTREAM_HEALTH_CHECKS "weir_upstream_health_checks" ["upstream", "endpoint", "result"] "Active health checks of an endpoint's addresses: passed, failed (no answer, or another than is expected)";
    Counter UPSTREAM_HEALTH_CHANGES "weir_upstream_health_changes" ["upstream", "endpoint", "to"] "Times that an address of an endpoint was found unhealthy, or healthy again";
    Counter UPSTREAM_RETRIES "weir_upstream_retries" ["upstream", "result"] "Idempotent requests that lost their connection: sent (to another endpoint), reconnected (sent again after a pooled connection was closed), held (not retried, because the budget was used up)";
    Counter CONNECTIONS "weir_connections" [] "Client connections accepted";
    Counter CONNECTIONS_REFUSED "weir_connections_refused" ["cause"] "Client connections closed at once: limit, address, accept";
    Counter CONNECTIONS_RECLAIMED "weir_connections_reclaimed" ["cause"] "Idle client connections closed to make room for others: limit, descriptors";
    Counter CONNECTION_ERRORS "weir_connection_errors" ["cause"] "Client connections that ended early: malformed, tls_hello, head_too_large, head_timeout, send_timeout (also streams of HTTP/2 that were reset for it), send_slow, request_timeout, reply_cut, proxy_header, address (of a client that a proxy has named, and that has as many connections as it may), closed, other";
    Counter TLS_HANDSHAKES_FAILED "weir_tls_handshakes_failed" ["cause"] "TLS handshakes of clients that failed: timeout, closed, plain_text, incompatible, client_certificate, alert, malformed; or that an authority began to check a name: challenge";
    Counter TUNNELS "weir_tunnels" ["ending"] "Upgraded connections that have ended: closed, idle, client, upstream, limited";
    Counter RELOADS "weir_reloads" ["result"] "Reloads: applied, unchanged, refused";
    Counter WORKER_SHED "weir_worker_shed" ["reason"] "Requests that a worker turned away before they were charged, by reason: lag (its work waits for longer than server.limits.worker_lag), buffers (too much is buffered for a request of a priority below the default)";
    Counter ACME_ORDERS "weir_acme_orders" ["result"] "Certificates ordered from an authority: issued, unreached, refused, rate_limited, unproven (it could not see that a name is served here), late, unusable, unwritten";
    Counter DOCUMENTS_FETCHED "weir_documents_fetched" ["policy", "member", "result"] "Fetches of documents that config_files names by URL: new (another document, written to its file), unchanged, unreached, status, too_large, refused (it can't be used), unwritten";
    Counter EMBEDDED_FULL "weir_embedded_full" [] "Takes refused because the embedded engine holds its maximum of keys";
    Counter OTLP_EXPORTS "weir_otlp_exports" ["signal", "result"] "Requests to the OTLP collector with traces or metrics: accepted, failed";
    Counter OTLP_DROPPED "weir_otlp_dropped" ["signal"] "Spans (traces) and data points (metrics) that no OTLP collector got: a buffer was full, or the collector could not be reached or rejected them";
    Gauge CONNECTIONS_OPEN "weir_connections_open" [] "Client connections open now";
    Gauge TUNNELS_OPEN "weir_tunnels_open" [] "Upgraded connections (WebSockets) open now";
    Gauge BUFFERED_BYTES "weir_buffered_bytes" [] "Bytes buffered for clients and upstreams to read, as counted for server.limits.buffered_bytes; updated each second";
    Gauge EMBEDDED_KEYS "weir_embedded_keys" [] "Keys that the embedded engine holds";
    Counter SNAPSHOTS_FAILED "weir_snapshots_failed" [] "Snapshots of counters in memory that could not be written";
    OptionalGauge SNAPSHOT_SAVED "weir_snapshot_saved_timestamp_seconds" [] "When counters in memory were last saved, in Unix seconds; absent before the first time";
    Gauge CONFIG_APPLIED "weir_config_applied_timestamp_seconds" [] "When the running configuration was applied, in Unix seconds";
    Gauge CONFIG_HASH "weir_config_hash" [] "A number for what the running configuration says about policies, routes and the store, with the files named there: the same on all proxies on which that is the same";
    OptionalGauge CERTIFICATES_EXPIRE "weir_certificates_expire_timestamp_seconds" [] "When the first certificate of a listener expires, in Unix seconds; absent without TLS";
    Histogram REQUEST_SECONDS "weir_request_duration_seconds" ["route"] "Time from the request's headers to the end of the response, by route, in seconds; upgraded connections are not included";
    Histogram DECISION_SECONDS "weir_decision_duration_seconds" [] "Time to decide, from the request's arrival: routing, policy and limits, in seconds";
    Histogram UPSTREAM_SECONDS "weir_upstream_duration_seconds" ["upstream"] "Time from handing a request to this upstream to the head of its reply, in seconds; requests without a reply are not included";
    Histogram UPSTREAM_WAIT_SECONDS "weir_upstream_wait_duration_seconds" ["upstream"] "Time that requests waited for a place at an upstream with `concurrency`, in seconds; those that found one at once are not included";
    Info BUILD "weir_build_info" ["version", "store"] "Always 1: the version that runs, and where its counters are (embedded, redis)";
    MeasuredCounter LOG_LINES_DROPPED "weir_log_lines_dropped" [] "Lines of the log that were lost: whoever reads it was too slow, or they could not be written";
    MeasuredCounter PROCESS_CPU "process_cpu_seconds" [] "CPU time that the process has used, in seconds";
    MeasuredGauge PROCESS_MEMORY "process_resident_memory_bytes" [] "Memory of the process that is in RAM, in bytes; Linux only";
    MeasuredGauge PROCESS_FILES "process_open_fds" [] "File descriptors that the process has open; Linux only";
    MeasuredGauge PROCESS_FILES_MAX "process_max_fds" [] "File descriptors that the process may have open";
    MeasuredGauge PROCESS_START "process_start_time_seconds" [] "When the process started, in Unix seconds; Linux only";
}
