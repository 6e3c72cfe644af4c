//! `[[listeners]]`, `[server]`, `[admin]`, `[log]`.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::*;
use crate::listen::Serves;
use crate::proxy::settings::{EncodedSlash, PathParameters};
use crate::telemetry::{Access, AccessField, Format, Label, WORKERS_MAX};

/// Maximum number of names of a certificate that is ordered: what Let's Encrypt allows.
const NAMES_MAX: usize = 100;
/// Maximum number of header fields in an access line.
pub(in crate::config) const ACCESS_HEADERS_MAX: usize = 16;
/// The time for one step of a connection.
const STEP: RangeInclusive<Duration> = ms(1)..=s(3_600);
/// Bytes a second. With 0 a client may be as slow as it likes.
const RATE: RangeInclusive<u64> = 0..=1 << 30;
/// The size of a request's body. With 0 no request may have one.
pub(in crate::config) const BODY_BYTES: RangeInclusive<u64> = 0..=1 << 40;
/// The size of a body that is read for a policy, and held in memory.
pub(in crate::config) const INSPECT_BYTES: RangeInclusive<u64> = 0..=64 << 20;

section! {
    listeners = ["[[listeners]]"], "Where clients connect.";
    NAME "name": Else<Text> = text("a name of 1 to 64 of A-Z a-z 0-9 . _ -", "none"),
        "The name that routes use in their own `listeners`.";
    ADDRESS "address": Else<Text> = text(
        "an address and port, such as \"127.0.0.1:8080\" or \"[::]:8080\", which is IPv6 alone",
        "required; without any `[[listeners]]`, \"127.0.0.1:8080\"",
    ), restart,
        "Where the listener accepts connections; adding or removing a listener takes a restart as \
         well.";
    CLIENT_CA "client_ca": Else<Text> = text(
        "a PEM file with certificate authorities",
        "none: clients are not asked for certificates",
    ),
        "The authorities that must have issued clients' certificates.";
    CLIENT_CRL "client_crl": Else<Text> =
        text("a PEM file with certificate revocation lists", "none"),
        "Lists of client certificates that have been revoked: one from every authority in a chain, the \
         root included, none of them past its next update. It is watched.";
    CLIENT_CERTIFICATES "client_certificates": Is<Words<bool>> =
        words(&[("required", true), ("optional", false)], true),
        "Whether a handshake fails if the client shows no certificate.";
    PROXY_PROTOCOL "proxy_protocol": Is<Flag> = flag(false),
        "Whether connections of `server.trusted_proxies` begin with a header of the PROXY protocol, \
         version 1 or 2, that names the client.";
    REDIRECT "redirect_to_https": Is<WordOr<Whole<u16>>> = word_or("off", Whole(1..=65_535)),
        "The port of `https://` that all requests are redirected to, usually 443; not for a \
         listener with TLS.";
    SERVES "serves": Is<Words<Serves>> = words(
        &[
            ("requests", Serves::Requests),
            ("auth_request", Serves::AuthRequest),
            ("forward_auth", Serves::ForwardAuth),
            ("ext_authz", Serves::ExtAuthz),
            ("ext_authz_grpc", Serves::ExtAuthzGrpc),
            ("spoe", Serves::Spoe),
            ("decisions", Serves::Decisions),
        ],
        Serves::Requests,
    ),
        "What comes here: requests; questions of nginx (`auth_request`), Traefik and Caddy \
         (`forward_auth`), HAProxy (`spoe`) or Envoy (`ext_authz`, or `ext_authz_grpc`) in `server.trusted_proxies` about theirs; or calls \
         of Envoy's rate limit service and of the HTTP API (`decisions`), for those with one of \
         `[[decisions.tokens]]`.";
}

section! {
    certificates = ["[[listeners]] certificates"],
        "The certificates of a TLS listener: chosen by the client's SNI, or else the first. At \
         most 1_024.";
    CERTIFICATE "certificate": Else<Text> =
        text("a PEM file with a certificate", "required without `acme`"),
        "The certificate, followed by those of the authorities between it and the root.";
    KEY "key": Else<Text> = text("a PEM file with a private key", "required without `acme`"),
        "The certificate's private key.";
    ACME "acme": Is<Flag> = flag(false),
        "Whether the certificate is ordered from the authority of `[acme]` instead, and renewed.";
    NAMES "names": List =
        list("array of host names such as \"api.example.com\"", NAMES_MAX, "required with `acme`"),
        "The names that it is ordered for.";
}

section! {
    server = ["[server]"], "The process as a whole.";
    WORKERS "workers": Is<WordOr<Whole<usize>>> = word_or("auto", Whole(1..=WORKERS_MAX)), restart,
        "Threads that serve; `\"auto\"` is one for each core.";
    TRUSTED_PROXIES "trusted_proxies": List =
        list("array of networks such as \"10.0.0.0/8\", or single addresses", 1_024, "[]"),
        "The proxies whose `X-Forwarded-For` is trusted.";
    ZONE "zone": Else<Text> = text("a name such as \"eu-1\"", "none"),
        "Where this process is: upstreams' endpoints in the same zone are preferred.";
    ZONE_ENV "zone_env": Else<Text> = text("the name of an environment variable", "none"),
        "The variable that holds it instead.";
    SHUTDOWN_DELAY "shutdown_delay": Is<Time> = time(s(0)..=s(600), s(0)),
        "How long to keep serving after SIGTERM while `/ready` says no, so that load balancers \
         notice.";
    SHUTDOWN_GRACE "shutdown_grace": Is<Time> = time(s(0)..=s(3_600), s(30)), restart,
        "Time to finish requests in flight at a shutdown.";
    CACHE_FOLDER "cache_folder": Else<Text> = text(
        "a folder, or \"off\"",
        "`$CACHE_DIRECTORY`, else `$XDG_CACHE_HOME/weir`, else `~/.cache/weir`",
    ), restart,
        "Where compiled policies are cached; with `\"off\"` they are compiled at each start.";
    CACHE_BYTES "cache_bytes": Is<Size<u64>> = size(1 << 20..=1 << 40, 256 << 20), restart,
        "Maximum size of that cache; what has been unused for longest is removed first.";
    UNDERSCORES_IN_HEADERS "underscores_in_headers": Is<Flag> = flag(false),
        "Whether header fields with an underscore or dot in their names, which many upstreams \
         can't tell from those with a hyphen, are forwarded.";
}

section! {
    limits = ["[server.limits]"], "Bounds of connections and requests.";
    CONNECTIONS "connections": Is<Whole<usize>> = whole(1..=1_000_000, 20_000),
        "Simultaneous connections over all workers; when nearly all are taken, those that have \
         been idle longest are closed.";
    CONNECTIONS_PER_ADDRESS "connections_per_address": Else<Whole<usize>> =
        Else { kind: Whole(1..=1_000_000), default: "a tenth of `connections`, at least 100" },
        "Connections of one client address: at most half of `connections`, and without a limit \
         for trusted proxies.";
    // From a provider's block to a single address.
    IPV6_PREFIX "ipv6_prefix": Is<Whole<u8>> = whole(16..=128, 64),
        "IPv6 addresses that share a prefix of this length count as one client address.";
    // The low end is what an HTTP/1 connection reads at a time. With the high end a head of HTTP/2,
    // whose fields count 32 bytes more than they have, stays below the 24,576 fields that a
    // `HeaderMap` can hold.
    HEADER_BYTES "header_bytes": Is<Size<usize>> = size(8 << 10..=512 << 10, 32 << 10),
        "Size of the head of a request; a larger one is answered with 431.";
    // The `http` crate itself refuses a URI of 64 KiB.
    URI_BYTES "uri_bytes": Is<Size<usize>> = size(64..=63 << 10, 8 << 10),
        "Length of the target of a request; a longer one is answered with 414.";
    BODY_BYTES "body_bytes": Is<Size<u64>> = size(super::BODY_BYTES, 100 << 20),
        "Size of the body of a request, which a route may override; a larger one is answered with \
         413.";
    INSPECT_BYTES "inspect_bytes": Is<Size<u64>> = size(super::INSPECT_BYTES, 1 << 20),
        "Bytes of a body that are read before the decision where a policy asks for facts about it; \
         a route may override it.";
    // The low end is what a worker's connections with large bodies hold. It is far above the bytes
    // that workers have counted but not yet reported.
    BUFFERED_BYTES "buffered_bytes": Is<Size<usize>> = size(4 << 20..=1 << 44, 1 << 30),
        "Bytes that are buffered for clients and upstreams over all workers, headers included; \
         beyond that, new requests are answered with 503.";
    WORKER_LAG "worker_lag": Is<WordOr<Time>> =
        Is { kind: WordOr { word: "off", kind: Time(ms(10)..=s(60)) }, default: Some(ms(250)) },
        "How long what a worker has to do may wait for its turn; a worker that stays behind answers \
         requests with 503, those of the lowest priority first.";
    STREAMS_PER_CONNECTION "streams_per_connection": Is<Whole<u32>> = whole(1..=10_000, 100),
        "HTTP/2: simultaneous requests on one connection.";
    BODY_RATE "body_rate": Is<Size<u64>> = size(RATE, 240),
        "Bytes a second that a client must send of a body on average while Weir waits for it, \
         else 408; `\"0B\"` for no minimum.";
    SEND_RATE "send_rate": Is<Size<u64>> = size(RATE, 240),
        "Bytes a second that a client must read of a response on average (HTTP/1.1), else the \
         connection is closed; `\"0B\"` for no minimum.";
    // Each waiting request holds its connection, and what the client has sent of its body.
    WAITING_PER_WORKER "waiting_per_worker": Is<Whole<usize>> = whole(0..=1_000_000, 1_000),
        "Requests that may wait for their turn in a leaky bucket on each worker; further ones are \
         answered with 429, and with 0 all of them are.";
}

section! {
    timeouts = ["[server.timeouts]"], "How long connections of clients may take.";
    TLS_HANDSHAKE "tls_handshake": Is<Time> = time(STEP, s(5)),
        "Time for a TLS handshake.";
    REQUEST_HEADER "request_header": Is<Time> = time(STEP, s(10)),
        "Time for the head of a request.";
    BODY_IDLE "body_idle": Is<Time> = time(STEP, s(30)),
        "Time between two pieces of a request body, not for the whole body.";
    SEND_IDLE "send_idle": Is<Time> = time(STEP, s(60)),
        "How long a client may read nothing of its response; over HTTP/2, how long it may take for \
         64 KiB of one, and five times that for the end.";
    RATE_GRACE "rate_grace": Is<Time> = time(STEP, s(10)),
        "Time before `body_rate` and `send_rate` apply.";
    HALF_CLOSE "half_close": Is<Time> = time(STEP, s(1)),
        "How long to serve a client that has closed its sending side (HTTP/1).";
    KEEP_ALIVE "keep_alive": Is<Time> = time(STEP, s(75)),
        "Time between two requests of a connection.";
}

section! {
    paths = ["[server.paths]"],
        "Which spellings of a path count as the same path; see [routes.md](routes.md).";
    ENCODED_SLASH "encoded_slash": Is<Words<EncodedSlash>> = words(&[
        ("compare", EncodedSlash::Compare), ("reject", EncodedSlash::Reject),
        ("keep", EncodedSlash::Keep), ("decode", EncodedSlash::Decode),
    ], EncodedSlash::Compare),
        "What becomes of `%2F` in a path: it is forwarded if it makes no difference to route and \
         policy, else answered with 400; always answered with 400; data; or a slash, for the \
         upstream too.";
    PARAMETERS "parameters": Is<Words<PathParameters>> = words(&[
        ("ignore", PathParameters::Ignore), ("keep", PathParameters::Keep),
        ("strip", PathParameters::Strip), ("reject", PathParameters::Reject),
    ], PathParameters::Ignore),
        "What becomes of `;x` in `/login;x`: it is left out of what is matched; part of a \
         different path; removed, for the upstream too; or answered with 400.";
    CONTROL_CHARACTERS "control_characters": Is<Words<bool>> =
        words(&[("reject", false), ("keep", true)], false),
        "Whether `%0A` and the like are answered with 400, or are data.";
    TRAILING_SLASH "trailing_slash": Is<Words<bool>> =
        words(&[("ignore", false), ("exact", true)], false),
        "Whether `/login/` and `/login` are different paths.";
    TRAILING_DOTS "trailing_dots": Is<Words<bool>> =
        words(&[("exact", false), ("ignore", true)], false),
        "Whether `/login.` and `/login%20` match as `/login` does, since IIS treats them alike.";
    CASE "case": Is<Words<bool>> = words(&[("ignore", false), ("exact", true)], false),
        "Whether `/Login` and `/login` are different paths.";
}

section! {
    pool = ["[server.policies]"], "What all policies share.";
    // Each instance reserves some GiB of address space, of which a process has 128 TiB.
    INSTANCES "instances": Is<Whole<u32>> = whole(1..=10_000, 1_000), restart,
        "Instances of all policies that are kept for a next call, over all workers, at least one \
         for each worker. Beyond that, a call starts one of its own.";
    CORE_INSTANCES "core_instances": Is<Whole<u32>> = whole(1..=1_000, 50), restart,
        "Core modules of one instance; a Python guest has 38.";
    MEMORIES "memories": Is<Whole<u32>> = whole(1..=100, 4), restart,
        "Linear memories of one instance.";
    TABLES "tables": Is<Whole<u32>> = whole(1..=1_000, 20), restart,
        "Tables of one instance.";
    TABLE_ELEMENTS "table_elements": Is<Whole<usize>> = whole(100..=1_000_000, 20_000), restart,
        "Elements of one table.";
    HANDLES "handles": Is<Whole<usize>> = whole(0..=1_000_000, 1_000), restart,
        "Handles to resources, between the parts of a component.";
    // Each worker has a stack that is larger by this.
    STACK "stack": Is<Size<usize>> = size(64 << 10..=16 << 20, 1 << 20), restart,
        "Stack of a running guest.";
}

section! {
    admin = ["[admin]"], "The operator's pages. Do not expose them to the public.";
    ADDRESS "address": Else<Text> = text(
        "an address and port, such as \"127.0.0.1:9901\", or \"off\"",
        "\"127.0.0.1:9901\"",
    ), restart,
        "Where the pages are served; `\"off\"` for nowhere.";
    HOSTS "hosts": List =
        list("array of host names without a port, such as \"weir.internal\"", 64, "[]"),
        "Names by which the pages may be addressed, besides IP addresses and localhost.";
    TOKEN_FILE "token_file": Else<Text> = text("a file that holds the secret", "none"),
        "The token that is required as `Authorization: Bearer` for all but `/live` and `/ready`.";
    TOKEN_ENV "token_env": Else<Text> = text("the name of an environment variable", "none"),
        "The variable that holds this token instead.";
    SHOW_KEYS "show_keys": Is<Flag> = flag(false),
        "Whether `/explain`, `/top` and the access log show keys and what clients sent as text, \
         instead of digests.";
}

section! {
    explain = ["[admin.explain]"], "What `/explain` remembers, for the whole process.";
    REFUSALS "refusals": Is<Whole<usize>> = whole(0..=1_000_000, 4_096),
        "The last refused requests, and a quarter as many rejected ones; 0 for none.";
    SAMPLES "samples": Is<Whole<usize>> = whole(0..=1_000_000, 1_024),
        "The last ones of a sample of all other requests; 0 for none.";
    SAMPLE_ONE_IN "sample_one_in": Is<Whole<u32>> = whole(0..=1_000_000_000, 1_000),
        "One in this many of these is in the sample; 0 for none.";
    BYTES "bytes": Is<Size<usize>> = size(64 << 10..=1 << 34, 16 << 20),
        "Memory for everything that is remembered.";
}

section! {
    top = ["[admin.top]"], "What `/top` counts: the keys that use most and that are refused most.";
    KEYS "keys": Is<Whole<usize>> = whole(0..=16_384, 512),
        "Keys of each limit that each worker counts; no number is off by more than the total \
         divided by this, and with 0 none is counted.";
    WINDOW "window": Is<Time> = time(s(2)..=s(86_400), s(300)),
        "The time over which they are counted, and never less than half of it.";
}

section! {
    log = ["[log]"], "What is logged, and how.";
    LEVEL "level": Is<Words<&'static str>> = words(&[
        ("error", "error"), ("warn", "warn"), ("info", "info"), ("debug", "debug"),
        ("trace", "trace"),
    ], "info"),
        "Which messages are logged: those of this level, and of the levels before it.";
    FORMAT "format": Is<Words<Format>> = words(&[
        ("auto", Format::Auto), ("text", Format::Text), ("json", Format::Json),
    ], Format::Auto),
        "The form of a line; `\"auto\"` is text on a terminal, else JSON.";
    ACCESS "access": Is<Words<Access>> = words(&[
        ("all", Access::All), ("refused", Access::Refused), ("off", Access::Off),
    ], Access::All),
        "Which requests get a line: all; those that the upstream did not answer; none.";
    ACCESS_FIELDS "access_fields": List = list(
        "array of fields of an access line, and of header fields such as \"header.x-api-key\"",
        AccessField::ALL.len() + ACCESS_HEADERS_MAX,
        "all but host, query, referer, user_agent, protocol, tls_version, bytes_in, upstream and upstream_ms",
    ),
        "The fields of a request's line; one without a value is left out.";
}
