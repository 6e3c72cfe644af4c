//! Which key is counted: no caller can choose a counter's slot, collide with another counter or
//! hide from its own, whatever bytes it sends.

use crate::harness::client::{Client, get};
use crate::harness::cluster::Cluster;
use crate::harness::toml::{Toml, simple};
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;

const BY_TENANT: &str = "name = \"tenant\", algorithm = \"fixed_window\", quota = 3, period = \"1d\", key = \"{header.x-tenant}\"";

/// Names that would collide, choose their slot or end early if a key were built by concatenating
/// strings. Bytes above 0x7F are sent as they are.
const TRICKY: &[&str] = &[
    "a",
    "A",
    "{a}",
    "{a}b",
    "{b}a",
    "a{b}",
    "{}",
    "{}{}",
    "}{",
    "a:b",
    "a/b",
    "a|b",
    "a\tb",
    "a b",
    "\u{e9}",
    "\u{c3}\u{a9}",
    "%00",
    "a%00",
    "\\0",
    "\\u0000",
    "{client_ip}",
    "{header.x-tenant}",
];

async fn each_name_has_its_own_three(config: &Toml) -> usize {
    let weir = Weir::start(&config.text());
    let mut client = Client::connect(weir.http).await.unwrap();
    // In turn, so that each counter is used while all others exist.
    for turn in 0..5 {
        for name in TRICKY {
            let reply = client.get("/", &[("x-tenant", name)]).await.unwrap();
            let expected = if turn < 3 { (200, 2 - turn) } else { (429, 0) };
            assert_eq!(
                (reply.status, reply.remaining("tenant")),
                expected,
                "{name:?} in turn {turn}: {reply:?}"
            );
        }
    }
    TRICKY.len()
}

#[tokio::test]
async fn in_memory_names_with_braces_and_odd_bytes_are_counted_apart() {
    let upstream = Upstream::start();
    each_name_has_its_own_three(&simple(&upstream.url(), &[BY_TENANT])).await;
}

#[tokio::test]
async fn on_a_cluster_names_with_braces_and_odd_bytes_are_counted_apart() {
    let (upstream, cluster) = (Upstream::start(), Cluster::start());
    let config = simple(&upstream.url(), &[BY_TENANT]).redis("cluster", &cluster.addresses());
    let names = each_name_has_its_own_three(&config).await;
    assert_eq!(cluster.keys(), i64::try_from(names).unwrap());
    // A caller's braces do not choose a slot: the names are spread over all masters.
    for node in &cluster.nodes {
        assert_ne!(node.connect().ask(&["DBSIZE"]).text(), "0");
    }
}

#[tokio::test]
async fn no_key_in_redis_shows_a_callers_text() {
    let (upstream, cluster) = (Upstream::start(), Cluster::start());
    let config = simple(&upstream.url(), &[BY_TENANT]).redis("cluster", &cluster.addresses());
    let weir = Weir::start(&config.text());
    let long = "secret-".repeat(500);
    assert_eq!(get(weir.http, "/", &[("x-tenant", &long)]).await.status, 200);
    let keys: Vec<_> = cluster
        .nodes
        .iter()
        .map(|node| format!("{:?}", node.connect().ask(&["KEYS", "*"])))
        .collect();
    let all = keys.concat();
    assert!(!all.contains("secret"), "{all}");
    assert!(all.contains("weir:1:{"), "{all}");
    assert!(all.len() < 500, "a key's length does not follow the caller's: {all}");
}

#[tokio::test]
async fn an_escaped_nul_in_a_path_neither_ends_a_key_nor_passes_uncounted() {
    let upstream = Upstream::start();
    let by_path = "name = \"item\", algorithm = \"fixed_window\", quota = 3, period = \"1d\", key = \"{path.id}\"";
    let config = Toml::new()
        .upstream("api", &upstream.url(), "")
        .policy("items", &[by_path])
        .route("name = \"items\"\npath = \"/items/{id}\"\nupstream = \"api\"\npolicy = \"items\"");
    let weir = Weir::start(&config.text());
    for target in ["/items/a%00", "/items/a%00b", "/items/%00a"] {
        let reply = get(weir.http, target, &[]).await;
        assert_eq!(reply.status, 400, "{target}: {reply:?}");
    }
    assert_eq!(upstream.count(), 0);
    // The same resource is one counter, however it is written.
    for (turn, target) in
        ["/items/a", "/items/%61", "/items/./a", "/x/../items/a"].iter().enumerate()
    {
        assert_eq!(
            get(weir.http, target, &[]).await.status,
            if turn < 3 { 200 } else { 429 },
            "{target}"
        );
    }
    assert_eq!(get(weir.http, "/items/b", &[]).await.status, 200);
}

#[test]
fn a_limit_named_with_braces_is_refused_with_its_place() {
    let upstream = Upstream::start();
    let config = simple(
        &upstream.url(),
        &["name = \"{x}\", algorithm = \"gcra\", quota = 1, period = \"1s\""],
    )
    .text();
    let line = 1 + config.lines().position(|line| line.contains("{x}")).unwrap();
    let weir = Weir::build(&config);
    let path = weir.folder().join("proxy.toml");
    let (code, out, err) = Weir::check(weir);
    assert_ne!(code, 0);
    let all = format!("{out}{err}");
    assert!(all.contains("{x}") && all.contains("name"), "{all}");
    assert!(
        all.contains(&format!("{line}")),
        "line {line} of {} is not named:\n{all}",
        path.display()
    );
    assert!(all.contains("a-z 0-9 . _ -"), "it does not say what a name may hold:\n{all}");
}
