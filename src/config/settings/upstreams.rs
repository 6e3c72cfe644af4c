//! `[upstreams.NAME]`, and `tls` of all servers that Weir connects to.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::*;
use crate::upstream::{CheckMethod, Protocol, ProxyVersion, Retry, SameSite};

const DAY: Duration = s(24 * 3_600);
const STEP: RangeInclusive<Duration> = ms(1)..=DAY;
/// A file that is expected.
pub(in crate::config) const PEM: &str = "a PEM file";

/// Which requests are sent a second time.
pub(super) const RETRIES: Words<Retry> =
    Choice(&[("idempotent", Retry::Idempotent), ("unsent", Retry::Unsent), ("off", Retry::Off)]);

section! {
    upstream = ["[upstreams.NAME]"], "Servers that requests are forwarded to.";
    ENDPOINTS "endpoints": List =
        list("array of URLs, such as [\"http://127.0.0.1:9000\"], or tables", 256, "required"),
        "The servers, with TLS to all or to none; with several of them, or several addresses of a \
         name, each request goes to the less busy of two.";
    HASH "hash": Else<Text> = text("a fact such as \"client-ip\" or \"header.x-user\"", "none"),
        "Requests for which this is equal go to the same server, unless that is down or has much \
         more to do than the others; those without it go to the less busy of two.";
    ZONE_MIN "zone_min": Is<Whole<u32>> = whole(1..=100, 50),
        "How many of a hundred endpoints in Weir's own zone, by weight, must be able to take \
         requests for all of them to stay there; below that, they go to all zones.";
    PROXY_PROTOCOL "proxy_protocol": Is<WordOr<Words<ProxyVersion>>> = word_or(
        "off",
        Choice(&[("v1", ProxyVersion::V1), ("v2", ProxyVersion::V2)]),
    ),
        "The version of the PROXY protocol in which each connection says which client it is for; \
         each request has a connection of its own then.";
    PROTOCOL "protocol": Is<Words<Protocol>> =
        words(&[("h1", Protocol::H1), ("h2", Protocol::H2)], Protocol::H1),
        "HTTP/1.1, or HTTP/2 as gRPC needs it: by ALPN with TLS, by prior knowledge without.";
    RESOLVE_EVERY "resolve_every": Is<Time> = time(s(1)..=DAY, s(5)),
        "How often names are resolved while there are requests or health checks; not with `dns`, \
         whose answers say how long they hold.";
    RETRY "retry": Is<Words<Retry>> = Is { kind: RETRIES, default: Retry::Idempotent },
        "Which requests are sent a second time: also idempotent ones without a body that lost \
         their connection before the response; only those of which nothing was sent; none.";
    RETRY_PERCENT "retry_percent": Is<Whole<usize>> = whole(0..=100, 20),
        "How many of a hundred requests may be sent twice.";
    POOL_IDLE_PER_WORKER "pool_idle_per_worker": Is<Whole<usize>> = whole(0..=10_000, 64),
        "Idle connections that each worker keeps.";
    REQUESTS_PER_WORKER "requests_per_worker": Is<Whole<usize>> = whole(1..=1_000_000, 16_384),
        "Simultaneous requests that each worker may have there; further ones are answered with \
         503.";
}

section! {
    endpoint = ["[upstreams.NAME] endpoints"], "An endpoint that is written as a table.";
    URL "url": Else<Text> = text(
        "a URL such as \"http://127.0.0.1:9000\" or \"unix:/run/api.sock\"", "required",
    ),
        "The server: `http://`, `https://`, or the path of a Unix socket.";
    WEIGHT "weight": Is<Whole<u32>> = whole(1..=1_000, 1),
        "How much of the requests it gets, compared with the others.";
    ZONE "zone": Else<Text> = text("a name such as \"eu-1\"", "none"),
        "Where it is: servers in the zone that `[server]` names are preferred.";
    BACKUP "backup": Is<Flag> = flag(false),
        "Whether it gets requests only while no other can take any.";
}

section! {
    dns = ["[upstreams.NAME] dns"],
        "Names are asked of DNS servers directly, which say how long answers hold and know \
         services. Without this table the system resolves them.";
    SERVERS "servers": List = list(
        "array of addresses with ports, such as \"10.0.0.2:53\"",
        8,
        "those of /etc/resolv.conf",
    ),
        "The servers.";
    TTL_MIN "ttl_min": Is<Time> = time(s(1)..=DAY, s(1)),
        "The shortest time that an answer is taken to hold.";
    TTL_MAX "ttl_max": Is<Time> = time(s(1)..=DAY, s(300)),
        "The longest; not shorter than `ttl_min`.";
}

section! {
    sticky = ["[upstreams.NAME] sticky"],
        "A cookie by which a client's requests stay at one server, while that can take them. \
         Without this table there is none.";
    COOKIE "cookie": Else<Text> = text("the name of a cookie such as \"server\"", "required"),
        "Its name.";
    MAX_AGE "max_age": Else<Time> =
        Else { kind: Time(s(1)..=s(400 * 24 * 3_600)), default: "as long as the browser runs" },
        "How long browsers keep it.";
    SAME_SITE "same_site": Is<Words<SameSite>> = words(&[
        ("lax", SameSite::Lax), ("strict", SameSite::Strict), ("none", SameSite::None),
    ], SameSite::Lax),
        "Whether browsers send it with requests from other sites: only when a link is followed, \
         never, or always (https).";
}

section! {
    upstream_timeouts = ["[upstreams.NAME] timeouts"], "How long an upstream may take.";
    // A lost SYN is sent again after one second.
    CONNECT "connect": Is<Time> = time(STEP, s(3)),
        "Time to connect, including TLS.";
    RESPONSE_HEADER "response_header": Is<Time> = time(STEP, s(30)),
        "Time from the end of the request to the head of the response.";
    IDLE "idle": Is<Time> = time(STEP, s(60)),
        "Time between two pieces of a body; also how long an unused connection is kept.";
}

section! {
    // Not 0 percent: `failures = 0` turns ejection off.
    ejection = ["[upstreams.NAME] ejection"],
        "When an endpoint that fails is left out, where there are several.";
    FAILURES "failures": Is<Whole<u32>> = whole(0..=1_000, 3),
        "Failures in a row that eject an endpoint; 0 for never.";
    TIME "time": Is<Time> = time(ms(100)..=DAY, s(10)),
        "How long it is ejected the first time; this doubles each time.";
    TIME_MAX "time_max": Is<Time> = time(ms(100)..=DAY, s(300)),
        "How long it is ejected at most; not shorter than `time`.";
    MAX_PERCENT "max_percent": Is<Whole<usize>> = whole(1..=100, 50),
        "How many of a hundred addresses may be ejected at once; one always may.";
}

section! {
    concurrency = ["[upstreams.NAME] concurrency"],
        "How many requests the upstream has at once, over all workers and endpoints; further ones \
         wait a little. Without this table only `requests_per_worker` limits them.";
    ADAPTIVE "adaptive": Is<Flag> = flag(false),
        "Whether the limit follows the time that the upstream takes to answer, between `min` and \
         `max`; otherwise it is `max`.";
    MIN "min": Is<Whole<usize>> = whole(1..=100_000, 4),
        "The least that an adaptive limit can be.";
    MAX "max": Else<Whole<usize>> =
        Else { kind: Whole(1..=100_000), default: "required; 1_000 with `adaptive = true`" },
        "The most requests that it has.";
    QUEUE "queue": Is<Whole<usize>> = whole(0..=1_024, 128),
        "Requests that wait for a place at most; one of a higher priority, or of a sender with \
         less, then takes the turn of another.";
    MAX_WAIT "max_wait": Is<Time> = time(ms(1)..=s(60), ms(100)),
        "How long a request waits before it is answered with 503.";
}

section! {
    health = ["[upstreams.NAME.health]"],
        "Active health checks: each address is asked, also while there are no requests. Without \
         this table none is.";
    PATH "path": Else<Text> = text("a path that begins with /, such as \"/healthz\"", "none"),
        "What is asked for over HTTP; this or `grpc` is required.";
    GRPC "grpc": Else<Text> =
        text("the name of a gRPC service of at most 127 bytes, \"\" for the whole server", "none"),
        "The service that gRPC's health protocol is asked for; with `protocol = \"h2\"`.";
    METHOD "method": Is<Words<CheckMethod>> = words(&[
        ("GET", CheckMethod::Get), ("HEAD", CheckMethod::Head), ("OPTIONS", CheckMethod::Options),
    ], CheckMethod::Get),
        "The method of the request.";
    HOST "host": Else<Text> = text("a host name", "the endpoint's"),
        "The `Host` of the request.";
    STATUSES "statuses": List =
        list("array of statuses and ranges, such as [200, \"300-399\"]", 16, "[\"200-399\"]"),
        "The statuses of a healthy address.";
    INTERVAL "interval": Is<Time> = time(ms(100)..=DAY, s(5)),
        "Time between two checks of an address, give or take a tenth.";
    TIMEOUT "timeout": Is<Time> = time(STEP, s(1)),
        "How long an answer may take, connecting included; not longer than `interval`.";
    RISE "rise": Is<Whole<u32>> = whole(1..=1_000, 2),
        "Checks in a row that must pass until an unhealthy address gets requests again.";
    FALL "fall": Is<Whole<u32>> = whole(1..=1_000, 3),
        "Checks in a row that must fail until an address gets no more requests.";
    HEALTHY_MIN "healthy_min": Is<Whole<usize>> = whole(0..=100, 50),
        "While fewer of a hundred addresses are healthy, all get requests: the checks are then \
         more likely at fault than so many servers.";
    SLOW_START "slow_start": Is<WordOr<Time>> = word_or("off", Time(ms(100)..=DAY)),
        "The time until an address that is healthy again gets its full share of requests; a few at \
         first.";
}

section! {
    http2 = ["[upstreams.NAME.http2]"], "HTTP/2, with `protocol = \"h2\"`.";
    CONNECTIONS_PER_WORKER "connections_per_worker": Is<Whole<usize>> = whole(1..=1_000, 8),
        "Connections of each worker to each endpoint; another one is opened when the others are \
         full. WebSockets have as many of their own.";
    STREAMS_PER_CONNECTION "streams_per_connection": Is<Whole<usize>> = whole(1..=10_000, 100),
        "Simultaneous requests on one of them; the upstream may allow fewer.";
    PING_INTERVAL "ping_interval": Is<WordOr<Time>> = word_or("off", Time(s(1)..=DAY)),
        "How long a connection with requests on it may be silent before it is pinged; many gRPC \
         servers treat pings more often than every 5m as an attack.";
    PING_TIMEOUT "ping_timeout": Is<Time> = time(STEP, s(10)),
        "How long the upstream may take to answer a ping.";
}

section! {
    tls = [
        "[acme.tls]",
        "[upstreams.NAME.tls]",
        "[store.redis.tls]",
        "[telemetry.otlp] tls",
        "[policies.NAME] config_files.MEMBER.tls"
    ],
        "TLS to a server that Weir connects to: 1.2 and 1.3. The files are watched.";
    CA "ca": Else<Text> = text(PEM, "the system's authorities"),
        "The authorities that must have issued the server's certificate.";
    CERTIFICATE "certificate": Else<Text> = text(PEM, "none"),
        "The certificate to show to servers that ask for one.";
    KEY "key": Else<Text> = text(PEM, "none"),
        "The key of this certificate.";
    SERVER_NAME "server_name": Else<Text> = text("a host name", "the host that is connected to"),
        "The name that is sent as SNI and verified.";
    PINS "pins": List = list("array of pins such as \"sha256/...\"", 16, "none"),
        "The public keys that the server may have: base64 of the SHA-256 of its \
         SubjectPublicKeyInfo; without `ca` its authority and name are not verified then.";
}
