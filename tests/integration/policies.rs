//! The policies that ship, each as its README's examples have it, through the running proxy.

use bytes::Bytes;

use crate::harness::client::{Client, get};
use crate::harness::toml::Toml;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;

/// The TOML blocks of a policy's README.
fn examples(readme: &str) -> Vec<&str> {
    readme.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// A block with an upstream and a route for its policy.
fn whole(block: &str, url: &str) -> Toml {
    let name = block.split("[policies.").nth(1).unwrap().split([']', '.']).next().unwrap();
    let route = format!("path = \"/customers/{{id}}/*\"\nupstream = \"api\"\npolicy = \"{name}\"");
    let all = format!("path = \"/*\"\nupstream = \"api\"\npolicy = \"{name}\"");
    Toml::new().upstream("api", url, "").more(block).route(&route).route(&all)
}

#[test]
fn each_example_has_no_mistake() {
    let readmes = [include_str!("../../policies/client-ip/README.md"), include_str!("../../policies/keyed/README.md")];
    let blocks: Vec<&str> = readmes.iter().flat_map(|readme| examples(readme)).collect();
    assert!(blocks.len() >= 5, "{blocks:?}");
    for block in blocks {
        let (code, out, err) = Weir::check(Weir::build(&whole(block, "http://127.0.0.1:9").text()));
        assert_eq!(code, 0, "{block}\n{out}{err}");
    }
}

/// The first example of `keyed`, with small quotas.
fn keyed(upstream: &Upstream) -> Weir {
    let example = examples(include_str!("../../policies/keyed/README.md"))[0];
    let small = example
        .replace("quota = 600\nperiod = \"1m\"", "quota = 3\nperiod = \"1d\"")
        .replace("quota = 60\nperiod = \"1m\"", "quota = 1\nperiod = \"1d\"")
        .replace("quota = 6000\nperiod = \"1m\"", "quota = 10\nperiod = \"1d\"");
    assert_eq!(small.matches("\"1d\"").count(), 3, "{small}");
    Weir::start(&whole(&small, &upstream.url()).text())
}

#[tokio::test]
async fn keyed_counts_keys_apart_and_nobody_gains_by_having_none_or_two_or_many() {
    let upstream = Upstream::start();
    let weir = keyed(&upstream);
    let mut client = Client::connect(weir.http).await.unwrap();
    let mut statuses = async |headers: &[(&str, &str)], count: usize| {
        let mut statuses = Vec::new();
        for _ in 0..count {
            statuses.push(client.get("/", headers).await.unwrap().status);
        }
        statuses
    };
    assert_eq!(statuses(&[("x-api-key", "a")], 4).await, [200, 200, 200, 429]);
    assert_eq!(statuses(&[], 2).await, [200, 200]);
    // An empty key is none, and two keys are none: all of them are the address, of which one is left.
    assert_eq!(statuses(&[("x-api-key", "")], 1).await, [200]);
    assert_eq!(statuses(&[("x-api-key", "b"), ("x-api-key", "c")], 1).await, [429]);
    // What looks like an address's key is a key.
    assert_eq!(statuses(&[("x-api-key", "\\@127.0.0.1")], 1).await, [200]);
    // Inventing keys ends at the limit on the address: seven of its ten are used.
    assert_eq!(statuses(&[("x-api-key", "d")], 2).await, [200, 200]);
    assert_eq!(statuses(&[("x-api-key", "e")], 2).await, [200, 429]);
    assert_eq!(upstream.count(), 10);
}

#[tokio::test]
async fn keyed_charges_a_limit_only_for_the_requests_that_it_is_about_and_lets_others_by() {
    let upstream = Upstream::start();
    let weir = keyed(&upstream);
    let mut client = Client::connect(weir.http).await.unwrap();
    let key = [("x-api-key", "a")];
    assert_eq!(client.send("POST", "/", &key, Bytes::new()).await.unwrap().status, 200);
    let refused = client.send("POST", "/", &key, Bytes::new()).await.unwrap();
    assert_eq!((refused.status, refused.remaining("writes"), refused.remaining("per-minute")), (429, 0, 2), "{refused:?}");
    let read = client.get("/", &key).await.unwrap();
    assert_eq!((read.status, read.limits().contains_key("writes")), (200, false), "{read:?}");
    for _ in 0..20 {
        assert_eq!(get(weir.http, "/status/deep", &key).await.status, 200);
    }
    assert_eq!(client.send("POST", "/status/deep", &key, Bytes::new()).await.unwrap().status, 429);
}

#[tokio::test]
async fn keyed_counts_a_part_of_the_path() {
    let upstream = Upstream::start();
    let readme = include_str!("../../policies/keyed/README.md");
    let example = examples(readme).into_iter().find(|block| block.contains("{path.id}")).unwrap().replace("quota = 100", "quota = 1");
    let weir = Weir::start(&whole(&example.replace("1s", "1d"), &upstream.url()).text());
    for (target, expected) in [("/customers/1/a", 200), ("/customers/2/a", 200), ("/customers/%31/b", 429), ("/customers/3", 200)] {
        assert_eq!(get(weir.http, target, &[]).await.status, expected, "{target}");
    }
    // A route that has no such part charges the address.
    assert_eq!([get(weir.http, "/a", &[]).await.status, get(weir.http, "/b", &[]).await.status], [200, 429]);
}

#[tokio::test]
async fn keyed_may_deny_who_has_no_key() {
    let upstream = Upstream::start();
    let readme = include_str!("../../policies/keyed/README.md");
    let example = examples(readme).into_iter().find(|block| block.contains("policies.login")).unwrap();
    let weir = Weir::start(&whole(example, &upstream.url()).text());
    assert_eq!(get(weir.http, "/?user=me", &[]).await.status, 200);
    for target in ["/", "/?user=", "/?user=me&user=you"] {
        let denied = get(weir.http, target, &[]).await;
        assert_eq!((denied.status, denied.header("content-type").as_str()), (400, "application/problem+json"), "{target} {denied:?}");
    }
    assert_eq!(upstream.count(), 1);
}
