//! `[store]`.

use super::*;
use crate::engine::RedisMode;
use crate::plan::OnStoreError;

/// Which store counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::config) enum Engine {
    Embedded,
    Redis,
}

/// What happens to a request when the store fails.
pub(in crate::config) const FALLBACKS: &[(&str, OnStoreError)] =
    &[("allow", OnStoreError::Allow), ("local", OnStoreError::Local), ("deny", OnStoreError::Deny)];

const SECRET_FILE: Else<Text> = text("a file that holds the secret", "none");
const SECRET_ENV: Else<Text> = text("the name of an environment variable", "none");
const USER: Else<Text> = text("an ACL user's name", "none");

section! {
    store = ["[store]"], "Where counters are, and what happens when they can't be reached.";
    ENGINE "engine": Is<Words<Engine>> =
        words(&[("embedded", Engine::Embedded), ("redis", Engine::Redis)], Engine::Embedded),
        "Counters are in this process, or on Redis where several proxies share their limits.";
    ON_STORE_ERROR "on_store_error": Else<Words<OnStoreError>> =
        Else { kind: Choice(FALLBACKS), default: "`\"deny\"`; required with `\"redis\"`" },
        "What happens to a request whose counter can't be reached or stored: it passes uncounted, \
         this proxy's share is counted, or it is answered with 503.";
    LOCAL_SHARE "local_share": Else<Text> = text(
        "a fraction above 0 and at most 1, such as \"1/4\" for one of four proxies",
        "\"1/1\"",
    ),
        "With `\"local\"`: this proxy's share of each limit.";
    DEADLINE "deadline": Is<Time> = time(ms(1)..=s(10), ms(50)),
        "Time for a whole decision.";
    // Renewed three times within it.
    LEASE "lease": Is<Time> = time(s(1)..=s(300), s(10)),
        "On Redis: how long a request in flight stays counted if its proxy falls silent; the same \
         on all proxies. A leased place may be used for a sixth of it.";
    REMEMBER_REFUSALS "remember_refusals": Is<Time> = time(s(0)..=s(1), s(1)),
        "On Redis: how long a refusal is repeated without asking Redis, where no unit can be given \
         back.";
    SCRIPTS "scripts": Else<Text> = text("the path of a folder with Lua files", "none"),
        "A folder in which each `NAME.lua` is an algorithm of your own; see \
         [scripts.md](scripts.md).";
    KEY_SECRET_FILE "key_secret_file": Else<Text> = SECRET_FILE,
        "The secret for the digests of clients' keys, without which anybody can choose keys that \
         share one slot; on Redis the same on all proxies.";
    KEY_SECRET_ENV "key_secret_env": Else<Text> = SECRET_ENV,
        "The variable that holds this secret instead.";
}

section! {
    embedded = ["[store.embedded]"], "Counters in this process.";
    MAX_KEYS "max_keys": Is<Whole<usize>> = whole(1..=1_000_000_000, 1_000_000),
        "Simultaneous keys; beyond that, known keys still work and new ones follow \
         `on_store_error`.";
    SNAPSHOT "snapshot": Else<Text> =
        text("the path of a file in a folder that exists, such as \"weir.snapshot\"", "none"),
        "A file for these counters, so that a restart forgets nothing; it must not be shared.";
    SNAPSHOT_EVERY "snapshot_every": Is<Time> = time(ms(100)..=s(24 * 3_600), s(5)),
        "How often they are saved, and so the most that a crash can lose.";
}

section! {
    redis = ["[store.redis]"], "Counters on Redis; see [redis.md](redis.md).";
    NODES "nodes": List =
        list("array of \"host:port\", such as [\"10.0.0.1:6379\"]", 256, "required"),
        "Some nodes of the cluster, from which the others are discovered; the server itself; or \
         the sentinels.";
    MODE "mode": Is<Words<RedisMode>> = words(&[
        ("cluster", RedisMode::Cluster), ("single", RedisMode::Single),
        ("sentinel", RedisMode::Sentinel),
    ], RedisMode::Cluster),
        "What the nodes are.";
    MASTER "master": Else<Text> = text(
        "the name under which the sentinels watch the master, such as \"mymaster\"",
        "required with sentinels",
    ),
        "The master to use, of those that the sentinels watch.";
    SENTINEL_USERNAME "sentinel_username": Else<Text> = USER,
        "The user that sentinels know this proxy as.";
    SENTINEL_PASSWORD_FILE "sentinel_password_file": Else<Text> = SECRET_FILE,
        "This user's password.";
    SENTINEL_PASSWORD_ENV "sentinel_password_env": Else<Text> = SECRET_ENV,
        "The variable that holds it instead.";
    USERNAME "username": Else<Text> = USER,
        "The user that the nodes know this proxy as.";
    PASSWORD_FILE "password_file": Else<Text> = SECRET_FILE,
        "This user's password.";
    PASSWORD_ENV "password_env": Else<Text> = SECRET_ENV,
        "The variable that holds it instead.";
    // Without braces: they would put all keys on one slot, or let a client choose the slot.
    KEY_PREFIX "key_prefix": Else<Text> =
        text("1 to 64 visible ASCII characters without { and }", "\"weir\""),
        "What the names of all keys begin with.";
    ADDRESSES "addresses": Else<Text> =
        text("table of \"host:port\", each with the one to connect to instead", "{}"),
        "Where to reach nodes that announce other addresses.";
}
