//! `[[routes]]` and `[[refusals]]`.

use super::server::{BODY_BYTES, INSPECT_BYTES};
use super::*;
use crate::plan::{OnStoreError, PRIORITY_DEFAULT, PRIORITY_MAX};
use crate::proxy::settings::{CompressionLevel, ContentCoding, FieldStyle, Oversized, Preflight};
use crate::upstream::Retry;

/// Maximum number of names in one set of header rules.
const RULES_MAX: usize = 64;
/// Maximum size of an answer in the configuration file, in bytes.
pub(in crate::config) const BODY_TEXT_BYTES_MAX: usize = 64 << 10;
const DAY: std::time::Duration = s(24 * 3_600);

/// Maximum number of types of replies that a route compresses.
const TYPES_MAX: usize = 64;
/// The names of codings.
pub(in crate::config) const ENCODINGS: Words<ContentCoding> = Choice(&[
    ("zstd", ContentCoding::Zstd),
    ("br", ContentCoding::Brotli),
    ("gzip", ContentCoding::Gzip),
]);

const MEDIA_TYPE: &str = "a media type such as \"application/json\"";

section! {
    route = ["[[routes]]"],
        "Which requests go where, under which policy. The most specific route wins, in any order; \
         a tie is an error.";
    NAME "name": Else<Text> = text("a name of 1 to 64 of A-Z a-z 0-9 . _ -", "made from the path"),
        "The name in metrics and logs.";
    PATH "path": Else<Text> =
        text("a path such as \"/*\" or \"/v1/users/{id}\"", "required without `domain`"),
        "The paths of its requests.";
    DOMAIN "domain": Else<Text> =
        text("a domain such as \"edge\", or \"*\" for all that no other route has", "none"),
        "The domain of Envoy's rate limit service that the route's policy decides about, at a \
         listener with `serves = \"decisions\"`; in place of a path and an upstream.";
    HOST "host": Else<Text> =
        text("a host such as \"api.example.com\" or \"*.example.com\"", "all"),
        "The hosts of its requests.";
    METHODS "methods": List = list("array of methods such as \"GET\"", 32, "all"),
        "The methods of its requests.";
    LISTENERS "listeners": List = list("array of the names of listeners", LISTENERS_MAX, "all"),
        "The listeners that it is on.";
    UPSTREAM "upstream": Else<Text> =
        text("the name of an upstream", "one of `upstream`, `respond` and `redirect` is required"),
        "Where the requests are forwarded.";
    REDIRECT "redirect": Else<Text> = text(
        "a path or URL such as \"https://www.example.com/users/{id}\", or { to = \"/new/*\", status = 301 }",
        "none",
    ),
        "Where clients are sent, with 308 if no status is written; `/*` stands for what the route's \
         own matched, and the query is kept.";
    MAINTENANCE "maintenance": Else<Text> = text("the path of a file, such as \"maintenance.on\"", "none"),
        "A file that is watched: while it exists, requests are answered with 503.";
    POLICY "policy": Else<Text> = text("the name of a policy", "none: nothing is limited"),
        "The policy that decides.";
    ON_POLICY_ERROR "on_policy_error": Is<Words<bool>> =
        words(&[("deny", false), ("allow", true)], false),
        "Whether requests pass when the policy itself fails, unless it failed over a body that it \
         read.";
    ON_STORE_ERROR "on_store_error": Else<Words<Option<OnStoreError>>> = Else { kind: Choice(&[
        ("allow", Some(OnStoreError::Allow)), ("local", Some(OnStoreError::Local)),
        ("deny", Some(OnStoreError::Deny)), ("policy", None),
    ]), default: "the store's" },
        "What happens to a request whose counter can't be reached or stored; with `\"policy\"`, \
         what each limit says.";
    LIMIT_SCOPE "limit_scope": Is<Words<bool>> =
        words(&[("policy", false), ("route", true)], false),
        "Whether the route shares its policy's counters with other routes, or has its own.";
    RATELIMIT_FIELDS "ratelimit_fields": Is<Words<FieldStyle>> = words(&[
        ("draft", FieldStyle::Draft), ("legacy", FieldStyle::Legacy), ("both", FieldStyle::Both),
        ("off", FieldStyle::Off),
    ], FieldStyle::Draft),
        "Which fields tell clients about their limits: `RateLimit` and `RateLimit-Policy`, \
         `X-RateLimit-*`, both, or none.";
    PRIORITY "priority": Is<Whole<u8>> = whole(0..=PRIORITY_MAX, PRIORITY_DEFAULT),
        "How much its requests matter, unless the policy says so, where not all can be served: by an \
         upstream with `concurrency`, or a worker that is behind; more goes first.";
    BODY_BYTES "body_bytes": Else<Size<u64>> =
        Else { kind: Size(super::BODY_BYTES), default: "that of `[server.limits]`" },
        "Size of the body of a request; a larger one is answered with 413.";
    INSPECT_BYTES "inspect_bytes": Else<Size<u64>> =
        Else { kind: Size(super::INSPECT_BYTES), default: "that of `[server.limits]`" },
        "Bytes of a body that are read before the decision where the policy asks for facts about \
         it.";
    INSPECT_OVERSIZED "inspect_oversized": Is<Words<Oversized>> =
        words(&[("refuse", Oversized::Refuse), ("pass", Oversized::Pass)], Oversized::Refuse),
        "Whether a longer body is answered with 413, or decided without these facts and forwarded \
         unread.";
    UPSTREAM_HOST "upstream_host": Else<Text> =
        text("a host such as \"api.internal\"", "the client's own"),
        "The `Host` that is sent to the upstream.";
    RETRY "retry": Else<Words<Retry>> = Else {
        kind: super::upstreams::RETRIES,
        default: "that of the upstream",
    },
        "Which of its requests are sent a second time.";
    HASH "hash": Else<Text> =
        text("a fact such as \"path.id\", or \"off\"", "that of the upstream"),
        "Its requests for which this is equal go to the same server of the upstream.";
    REWRITE "rewrite": Else<Text> = text(
        "a path such as \"/v2/users/{id}\", or { strip_prefix = \"/api\", add_prefix = \"/v1\" }",
        "the client's own",
    ),
        "The path that is sent to the upstream.";
}

section! {
    when = ["[[routes]] when"],
        "Which requests the route takes of those that another one, without `when`, is for as well. \
         Keys are facts, such as `header.x-version = \"2\"`, and all have to hold: one of several \
         values, `\"*\"` for any, `\"~...\"` for a regular expression that the whole value matches. The first route in the file whose conditions hold takes a request.";
    SHARE "share": Else<Percent> =
        Else { kind: Percent(1..=9_999), default: "all" },
        "How much of the senders, such as 5 or \"0.5%\".";
    BY "by": Else<Text> = text("a fact such as \"client-ip\" or \"header.x-user\"", "\"client-ip\""),
        "Who the sender is, for `share`: it gets the same route each time. Requests without it are \
         not taken.";
}

section! {
    route_timeouts = ["[[routes]] timeouts"], "How long a request may take.";
    // A download may take hours.
    REQUEST "request": Else<Time> = Else { kind: Time(ms(1)..=DAY), default: "no limit" },
        "Time for a whole request, to the last byte of the response; after it 504, or 408 while \
         its body is still arriving.";
    RESPONSE_HEADER "response_header": Else<Time> =
        Else { kind: Time(ms(1)..=DAY), default: "that of the upstream" },
        "Time from the end of the request to the head of the response.";
    IDLE "idle": Else<Time> = Else { kind: Time(ms(1)..=DAY), default: "that of the upstream" },
        "Time between two pieces of a body, of those that the upstream sends and takes.";
}

section! {
    mirror = ["[[routes]] mirror"],
        "Copies of the route's requests for another upstream, whose responses are dropped. Nothing \
         waits for them.";
    UPSTREAM "upstream": Else<Text> = text("the name of an upstream", "required"),
        "Where the copies go.";
    SHARE "share": Else<Percent> = Else { kind: Percent(1..=9_999), default: "all" },
        "How many of the requests are copied, such as 5 or \"0.5%\".";
    BODY_BYTES "body_bytes": Is<Size<u64>> = Is { kind: Size(0..=(16 << 20)), default: 64 << 10 },
        "Requests with a longer body are not copied.";
}

section! {
    redirect = ["[[routes]] redirect"], "A redirect with a status of its own.";
    TO "to": Else<Text> =
        text("a path or URL such as \"https://www.example.com/users/{id}\"", "required"),
        "Where clients are sent.";
    MATCH "match": Else<Text> = text("a regular expression such as \"/v[0-9]+/(.*)\"", "none"),
        "Only paths that it matches as a whole are redirected, and `to` has its groups (`{1}`).";
    STATUS "status": Is<Whole<u16>> = whole(300..=399, 308),
        "The status of the response.";
}

section! {
    rewrite = ["[[routes]] rewrite"],
        "Another path for the upstream: other prefixes, or one by an expression.";
    STRIP_PREFIX "strip_prefix": Else<Text> = text("a path such as \"/api\"", "none"),
        "What is taken off the path.";
    ADD_PREFIX "add_prefix": Else<Text> = text("a path such as \"/v1\"", "none"),
        "What is put before it.";
    MATCH "match": Else<Text> = text("a regular expression such as \"/v[0-9]+/(.*)\"", "none"),
        "Paths that it matches as a whole become `to`, and others stay as they are.";
    TO "to": Else<Text> = text("a path such as \"/api/{1}\"", "required beside `match`"),
        "The path, with groups of the expression by number or name.";
}

section! {
    rules = ["[[routes]] request_headers", "[[routes]] response_headers"],
        "Changes to the header of the request to the upstream, and to that of every response to \
         the client.";
    SET "set": List = list("table of header fields", RULES_MAX, "{}"),
        "Fields that replace those of the same name.";
    SET_FILE "set_file": List =
        list("table of header fields, each with the file that holds its value", RULES_MAX, "{}"),
        "The same, with values that are never shown.";
    SET_ENV "set_env": List = list(
        "table of header fields, each with the environment variable that holds its value",
        RULES_MAX,
        "{}",
    ),
        "The same, from the environment.";
    ADD "add": List =
        list("table of header fields, each with a value or an array of values", RULES_MAX, "{}"),
        "Fields that are added to those of the same name.";
    ADD_FILE "add_file": List =
        list("table of header fields, each with the file that holds its value", RULES_MAX, "{}"),
        "The same, with values that are never shown.";
    ADD_ENV "add_env": List = list(
        "table of header fields, each with the environment variable that holds its value",
        RULES_MAX,
        "{}",
    ),
        "The same, from the environment.";
    REMOVE "remove": List = list("array of the names of header fields", RULES_MAX, "[]"),
        "Fields that are removed.";
}

section! {
    upgrade = ["[[routes]] upgrade"], "Connections that become tunnels.";
    PROTOCOLS "protocols": List =
        list("array of protocols such as \"websocket\"", 16, "[\"websocket\"]"),
        "Protocols to which connections may be upgraded.";
    IDLE "idle": Is<Time> = time(ms(1)..=DAY, s(300)),
        "How long both sides of a tunnel may be silent.";
}

section! {
    cors = ["[[routes]] cors"], "What scripts from other origins may do in a browser.";
    ORIGINS "origins": List =
        list("array of origins, such as [\"https://app.example.com\"]", 256, "required"),
        "The origins whose scripts may read Weir's own responses.";
    CREDENTIALS "credentials": Is<Flag> = flag(false),
        "Whether these scripts may send cookies.";
    PREFLIGHT "preflight": Is<Words<Preflight>> =
        words(&[("bypass", Preflight::Bypass), ("limit", Preflight::Limit)], Preflight::Bypass),
        "Whether preflights pass uncounted, or are decided like any other request.";
}

section! {
    compress = ["[[routes]] compress"],
        "Compression of responses that the upstream sent plain. It is off without this section, and \
         `compress = true` is all its defaults.";
    ENCODINGS "encodings": List = list(
        "array of \"zstd\", \"br\" and \"gzip\"",
        3,
        "[\"zstd\", \"br\", \"gzip\"]",
    ),
        "The codings, the preferred one first: it is used where a client likes several as much.";
    TYPES "types": List = list(
        "array of media types such as \"application/json\", \"text/*\" or \"application/*+json\"",
        TYPES_MAX,
        "[\"text/*\", \"application/json\", \"application/*+json\", \"application/x-ndjson\", \
         \"application/javascript\", \"application/xml\", \"application/*+xml\", \
         \"application/wasm\", \"image/svg+xml\"]",
    ),
        "The types that are compressed.";
    MIN_BYTES "min_bytes": Is<Size<u64>> =
        Is { kind: Size(0..=(1 << 30)), default: 1 << 10 },
        "Responses that are known to be shorter are passed on as they are.";
    LEVEL "level": Is<Words<CompressionLevel>> = words(&[
        ("fast", CompressionLevel::Fast), ("default", CompressionLevel::Default),
        ("best", CompressionLevel::Best),
    ], CompressionLevel::Default),
        "How much work it may be: `\"best\"` takes several times as long, for a few percent.";
}

section! {
    respond = ["[[routes]] respond"], "A response of Weir's own instead of an upstream's.";
    STATUS "status": Is<Whole<u16>> = whole(200..=599, 200),
        "Its status.";
    BODY "body": Else<Text> = text("a text of at most 65536 bytes", "none"),
        "Its body.";
    BODY_FILE "body_file": Else<Text> = text("a file with the answer's body", "none"),
        "The file that holds its body instead, of at most 1 MiB.";
    CONTENT_TYPE "content_type": Else<Text> = text(MEDIA_TYPE, "\"text/plain\" if there is a body"),
        "Its `Content-Type`.";
    HEADERS "headers": List =
        list("table of header fields, each with a value or an array of values", RULES_MAX, "{}"),
        "More header fields.";
}

section! {
    refusals = ["[[refusals]]", "[[routes]] refusals"],
        "Bodies for refusals, on all routes or on one, whose own take precedence. Without them \
         Weir answers with problem documents.";
    STATUS "status": Else<Whole<u16>> = Else { kind: Whole(400..=599), default: "required" },
        "The status that the body is for, or several in an array.";
    BODY "body": Else<Text> =
        text("a text of at most 65536 bytes", "one of `body` and `body_file` is required"),
        "The body; it may have the placeholders {status} {title} {detail} {request_id} \
         {retry_after} {when} {limit} {route}.";
    BODY_FILE "body_file": Else<Text> =
        text("a file with the answer's body", "one of `body` and `body_file` is required"),
        "The file that holds it instead, of at most 1 MiB.";
    CONTENT_TYPE "content_type": Else<Text> = text(MEDIA_TYPE, "none"),
        "Its `Content-Type`.";
}
