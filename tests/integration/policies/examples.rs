//! The built-in policies with the examples from their READMEs, through the running proxy.

use bytes::Bytes;

use crate::harness::client::{Client, get};
use crate::harness::eventually;
use crate::harness::toml::Toml;
use crate::harness::upstream::Upstream;
use crate::harness::weir::{Weir, replace};
use crate::policies::jwt_claim;

/// An example of a policy's README, which is in its folder.
pub fn example(policy: &str, number: usize) -> String {
    let path = format!("{}/policies/{policy}/README.md", env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    examples(&readme)[number].to_owned()
}

/// The TOML blocks of a policy's README.
fn examples(readme: &str) -> Vec<&str> {
    readme.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// A block, completed with an upstream and a route for its policy.
pub fn whole(block: &str, url: &str) -> Toml {
    let name = block.split("[policies.").nth(1).unwrap().split([']', '.']).next().unwrap();
    let route = format!("path = \"/customers/{{id}}/*\"\nupstream = \"api\"\npolicy = \"{name}\"");
    let all = format!("path = \"/*\"\nupstream = \"api\"\npolicy = \"{name}\"");
    Toml::new().upstream("api", url, "").more(block).route(&route).route(&all)
}

#[test]
fn each_example_has_no_error() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("policies");
    let mut policies = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let readme = std::fs::read_to_string(entry.path().join("README.md"))
            .unwrap_or_else(|error| panic!("{name} has no README.md: {error}"));
        let blocks = examples(&readme);
        let used = format!("use = \"{name}\"\n");
        assert!(blocks.iter().any(|block| block.contains(&used)), "{name} shows no example");
        for block in blocks {
            let mut weir = Weir::build(&whole(block, "http://127.0.0.1:9").text())
                .file("jwks.json", jwt_claim::key_set().as_bytes());
            for (file, content) in files(&readme) {
                weir = weir.file(&file, content.as_bytes());
            }
            let (code, out, err) = Weir::check(weir);
            assert_eq!(code, 0, "{block}\n{out}{err}");
        }
        policies += 1;
    }
    assert!(policies >= 12, "{policies}");
}

/// The files that a README shows, each in the `text` block after the sentence that begins with its
/// name.
fn files(readme: &str) -> Vec<(String, &str)> {
    let named = readme.match_indices("\n`").filter_map(|(at, _)| {
        let (name, rest) = readme[at + 2..].split_once('`')?;
        let content = rest.split_once("```text\n")?.1.split("```").next()?;
        name.ends_with(".toml").then(|| (name.to_owned(), content))
    });
    named.collect()
}

#[test]
fn the_plans_of_the_complete_configuration_have_no_errors() {
    let block = include_str!("../../../proxy.toml")
        .split("# [policies.plans]\n")
        .nth(1)
        .unwrap()
        .split("\n\n")
        .next()
        .unwrap();
    let block: Vec<&str> = block.lines().map(|line| line.trim_start_matches("# ")).collect();
    let block = format!("[policies.plans]\n{}\n", block.join("\n"));
    let weir = Weir::build(&whole(&block, "http://127.0.0.1:9").text())
        .file("customers.toml", customers(&[("a", "gold")]).as_bytes());
    let (code, out, err) = Weir::check(weir);
    assert_eq!(code, 0, "{block}\n{out}{err}");
}

/// The first example of `keyed`, with small quotas.
fn keyed(upstream: &Upstream) -> Weir {
    let example = examples(include_str!("../../../policies/keyed/README.md"))[0];
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
    // An empty key counts as none, and so do two keys: all of these are counted by address, of
    // which one is left.
    assert_eq!(statuses(&[("x-api-key", "")], 1).await, [200]);
    assert_eq!(statuses(&[("x-api-key", "b"), ("x-api-key", "c")], 1).await, [429]);
    // A key that looks like an address's is still a key.
    assert_eq!(statuses(&[("x-api-key", "\\@127.0.0.1")], 1).await, [200]);
    // The limit on the address stops invented keys: seven of its ten are used.
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
    assert_eq!(
        (refused.status, refused.remaining("writes"), refused.remaining("per-minute")),
        (429, 0, 2),
        "{refused:?}"
    );
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
    let readme = include_str!("../../../policies/keyed/README.md");
    let example = examples(readme)
        .into_iter()
        .find(|block| block.contains("{path.id}"))
        .unwrap()
        .replace("quota = 100", "quota = 1");
    let weir = Weir::start(&whole(&example.replace("1s", "1d"), &upstream.url()).text());
    for (target, expected) in [
        ("/customers/1/a", 200),
        ("/customers/2/a", 200),
        ("/customers/%31/b", 429),
        ("/customers/3", 200),
    ] {
        assert_eq!(get(weir.http, target, &[]).await.status, expected, "{target}");
    }
    // A route without that part charges the address.
    assert_eq!(
        [get(weir.http, "/a", &[]).await.status, get(weir.http, "/b", &[]).await.status],
        [200, 429]
    );
}

#[tokio::test]
async fn keyed_may_deny_who_has_no_key() {
    let upstream = Upstream::start();
    let readme = include_str!("../../../policies/keyed/README.md");
    let example =
        examples(readme).into_iter().find(|block| block.contains("policies.login")).unwrap();
    let weir = Weir::start(&whole(example, &upstream.url()).text());
    assert_eq!(get(weir.http, "/?user=me", &[]).await.status, 200);
    for target in ["/", "/?user=", "/?user=me&user=you"] {
        let denied = get(weir.http, target, &[]).await;
        assert_eq!(
            (denied.status, denied.header("content-type").as_str()),
            (400, "application/problem+json"),
            "{target} {denied:?}"
        );
    }
    assert_eq!(upstream.count(), 1);
}

/// The SHA-256 of `key-of-gold`, as `sha256sum` prints it, is in the README's example.
const GOLD_KEY: &str = "key-of-gold";

/// An example of `plans`, with small quotas.
fn plans(upstream: &Upstream, number: usize) -> Toml {
    let example = examples(include_str!("../../../policies/plans/README.md"))[number];
    let small = example
        .replace("quota = 6000, period = \"1m\"", "quota = 4, period = \"1d\"")
        .replace(", burst = 500", "");
    whole(
        &small.replace("quota = 60, period = \"1m\"", "quota = 2, period = \"1d\""),
        &upstream.url(),
    )
}

#[tokio::test]
async fn plans_charge_known_keys_on_their_plan_and_all_others_by_address() {
    let upstream = Upstream::start();
    let config = plans(&upstream, 0).text().replace("access = \"off\"", "access = \"all\"");
    let weir = Weir::start(&config);
    let mut client = Client::connect(weir.http).await.unwrap();
    let mut status =
        async |headers: &[(&str, &str)]| client.get("/", headers).await.unwrap().status;
    for expected in [200, 200, 200, 200, 429] {
        assert_eq!(status(&[("x-api-key", GOLD_KEY), ("x-plan", "platinum")]).await, expected);
    }
    assert_eq!(upstream.last().header("x-plan").as_deref(), Some("gold"));
    assert_eq!(status(&[("x-plan", "gold")]).await, 200);
    assert_eq!(upstream.last().header("x-plan").as_deref(), Some("free"));
    assert_eq!(status(&[("x-api-key", "made up")]).await, 200);
    for key in ["made up", "another", "\\@127.0.0.1", ""] {
        assert_eq!(status(&[("x-api-key", key)]).await, 429, "{key}");
    }
    assert_eq!(status(&[("x-api-key", GOLD_KEY), ("x-api-key", "another")]).await, 429);
    eventually("the access log names the plan", || {
        let events = weir.output().events();
        if events.iter().any(|event| event.to_string().contains("\"plan\":\"gold\"")) {
            Ok(())
        } else {
            Err(format!("{events:?}"))
        }
    });
}

fn customers(keys: &[(&str, &str)]) -> String {
    keys.iter().map(|(key, plan)| format!("\"{}\" = \"{plan}\"\n", digest(key))).collect()
}

/// `printf %s KEY | sha256sum`.
fn digest(key: &str) -> String {
    let out = std::process::Command::new("sh")
        .args(["-c", "printf %s \"$0\" | sha256sum", key])
        .output()
        .expect("sha256sum");
    format!("sha256:{}", String::from_utf8_lossy(&out.stdout).split(' ').next().unwrap())
}

#[tokio::test]
async fn a_file_of_customers_is_watched_and_no_counter_is_lost_by_a_change() {
    let upstream = Upstream::start();
    let config = plans(&upstream, 1).text();
    let weir = Weir::build(&config)
        .file("customers.toml", customers(&[("a", "trial"), ("b", "trial")]).as_bytes())
        .start();
    let mut client = Client::connect(weir.http).await.unwrap();
    let mut status = async |key: &str| client.get("/", &[("x-api-key", key)]).await.unwrap().status;
    assert_eq!([status("a").await, status("a").await, status("a").await], [200, 200, 429]);
    assert_eq!([status("b").await, status("c").await], [200, 401]);

    let path = weir.folder().join("customers.toml");
    let change = |text: &str, result: &str| {
        let before = weir.reloads(result);
        replace(&path, text.as_bytes());
        weir.await_reloads(result, before + 1);
    };
    change(&customers(&[("a", "gold"), ("b", "trial"), ("c", "trial")]), "applied");
    // `a` was moved and starts with a new counter; `b` continues; `c` is new.
    assert_eq!(
        [status("a").await, status("b").await, status("b").await, status("c").await],
        [200, 200, 429, 200]
    );
    change(&customers(&[("a", "trial"), ("b", "trial")]), "applied");
    assert_eq!(
        [status("a").await, status("b").await, status("c").await],
        [429, 429, 401],
        "moved back, and gone"
    );

    // An error is reported with its own file and line, and changes nothing.
    change(
        &format!("{}\n\"sha256:12\" = \"trial\"\n", customers(&[("a", "gold"), ("x", "silver")])),
        "refused",
    );
    assert_eq!([status("a").await, status("b").await, status("c").await], [429, 429, 401]);
    let page = weir.admin_page("/status").text();
    for part in [
        "customers.toml:2:77",
        "found a text that is not shown",
        "customers.toml:4:1",
        "the key of 9 characters, which is no digest",
    ] {
        assert!(page.contains(part), "{part}\n{page}");
    }
    change("\"sha256:", "refused");
    change(&customers(&[("c", "gold")]), "applied");
    assert_eq!([status("a").await, status("c").await], [401, 200]);
}

#[test]
fn a_field_that_no_policy_may_set_is_an_error_of_the_configuration() {
    let limits = "name = \"a\", algorithm = \"gcra\", quota = 1, period = \"1s\"";
    for name in include_str!("../../../wasm-sdk/reserved-fields.txt")
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        let policy = format!(
            "[policies.p]\nuse = \"plans\"\nconfig = {{ key = \"{{header.x-api-key}}\", default_plan = \"free\", plan_header = \"{name}\", \
             plans = {{ free = [{{ {limits} }}] }} }}"
        );
        let route = format!(
            "path = \"/*\"\nupstream = \"api\"\npolicy = \"p\"\nrequest_headers.set = {{ {name} = \"x\" }}\nresponse_headers.remove = [\"{name}\"]"
        );
        let config =
            Toml::new().upstream("api", "http://127.0.0.1:9", "").more(&policy).route(&route);
        let (code, _, err) = Weir::check(Weir::build(&config.text()));
        assert_eq!(code, 78, "{name}: {err}");
        for setting in [
            "policies.p.config.plan_header",
            &format!("request_headers.set.{name}"),
            "response_headers.remove[0]",
        ] {
            assert!(err.contains(setting), "{name}: {setting}: {err}");
        }
    }
}

#[tokio::test]
async fn a_preflight_that_is_let_through_carries_no_plan_of_the_clients() {
    let upstream = Upstream::start();
    let limits = "name = \"a\", algorithm = \"fixed_window\", quota = 1, period = \"1d\"";
    for (default, told) in [("default_plan = \"free\", ", "free"), ("unknown = \"deny\", ", "")] {
        let policy = format!(
            "[policies.p]\nuse = \"plans\"\nconfig = {{ key = \"{{header.x-api-key}}\", {default}plan_header = \"x-plan\", \
             plans = {{ free = [{{ {limits} }}] }}, assign = {{}} }}"
        );
        let route = "path = \"/*\"\nupstream = \"api\"\npolicy = \"p\"\ncors.origins = [\"https://app.example\"]";
        let weir = Weir::start(
            &Toml::new().upstream("api", &upstream.url(), "").more(&policy).route(route).text(),
        );
        let mut client = Client::connect(weir.http).await.unwrap();
        let fields = [
            ("origin", "https://app.example"),
            ("access-control-request-method", "PUT"),
            ("x-plan", "gold"),
        ];
        for _ in 0..3 {
            assert_eq!(
                client.send("OPTIONS", "/", &fields, Bytes::new()).await.unwrap().status,
                200
            );
            assert_eq!(upstream.last().header("x-plan").as_deref(), Some(told));
        }
    }
}
