//! `weir key show` and `weir key reset`: what is counted for a key, on each engine.

use std::path::Path;

use crate::harness::client::get;
use crate::harness::cluster::Cluster;
use crate::harness::free_address;
use crate::harness::redis::{Redis, Value};
use crate::harness::toml::{Toml, simple};
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;

/// A wrong command line, and a wrong configuration.
const EXIT_USAGE: i32 = 2;
const EXIT_CONFIG: i32 = 78;

/// What is said where a key has no counter, and that a tag or a digest may be missing.
const NOTHING: &str = "\n  nothing is counted\n    if it should be: /explain ";

const DAY: &str = "name = \"day\", algorithm = \"fixed_window\", quota = 5, period = \"1d\"";

/// `weir key VERB` for that limit and key of the policy `public`.
fn key(weir: &Weir, verb: &str, limit: &str, key: &str, more: &[&str]) -> (i32, String, String) {
    let config = weir.folder().join("proxy.toml");
    let admin = weir.admin.expect("an admin listener").to_string();
    let mut arguments = vec![
        "key",
        verb,
        "--policy",
        "public",
        "--limit",
        limit,
        "--key",
        key,
        "--config",
        config.to_str().unwrap(),
    ];
    // The configuration has port 0.
    arguments.extend(["--admin", &admin]);
    arguments.extend(more);
    Weir::with_arguments(&arguments).run()
}

async fn remaining(weir: &Weir) -> i64 {
    get(weir.http, "/", &[]).await.remaining("day")
}

#[tokio::test]
async fn a_key_is_shown_and_reset_wherever_it_is_counted() {
    let (redis, cluster) = (Redis::start(), Cluster::start());
    let plain = simple("http://127.0.0.1:9", &[DAY]);
    let addresses = cluster.addresses();
    for config in [
        plain.clone(),
        plain.clone().redis("single", &[redis.address]),
        plain.redis("cluster", &addresses),
    ] {
        let upstream = Upstream::start();
        let weir = Weir::start(&config.text().replace("http://127.0.0.1:9", &upstream.url()));
        let (code, out, err) = key(&weir, "show", "day", "127.0.0.1", &[]);
        assert!(code == 0 && out.contains(NOTHING), "{out}{err}");
        assert_eq!((remaining(&weir).await, remaining(&weir).await), (4, 3));
        let (code, out, err) = key(&weir, "show", "day", "127.0.0.1", &[]);
        assert_eq!(code, 0, "{out}{err}");
        // The command itself is printed first, so that it can be pasted.
        assert!(
            out.starts_with("weir key show --policy public --limit day --key 127.0.0.1 --config "),
            "{out}"
        );
        assert!(
            out.contains("\n  fixed_window: 2 of 5 used, all back in ")
                && out.contains("\n    shape fw2-86400000f, forgotten in "),
            "{out}"
        );
        assert_eq!(remaining(&weir).await, 2, "looking takes nothing");

        let (code, out, err) = key(&weir, "reset", "day", "127.0.0.1", &[]);
        assert!(
            code == 0 && out.contains("\n  deleted: fixed_window: 3 of 5 used, all back in "),
            "{out}{err}"
        );
        if let Some(name) = out.lines().find_map(|line| line.strip_prefix("    weir:1:")) {
            let gone = |address| {
                let mut connection = crate::harness::redis::Connection::open(address).unwrap();
                connection.command(&["EXISTS", &format!("weir:1:{name}")]).unwrap()
                    != Value::Integer(1)
            };
            let servers = if config.store.contains("single") {
                vec![redis.address]
            } else {
                addresses.clone()
            };
            assert!(servers.into_iter().all(gone), "{name}");
        } else {
            assert_eq!(config.store, "", "on Redis its name is shown: {out}");
        }
        assert_eq!(remaining(&weir).await, 4);
        let (code, out, _) = key(&weir, "reset", "day", "somebody else", &[]);
        assert!(
            code == 0 && out.contains(" --key 'somebody else' ") && out.contains(NOTHING),
            "{out}"
        );
        assert_eq!(remaining(&weir).await, 3);
    }
}

#[tokio::test]
async fn after_an_edit_each_shape_is_reported() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    for config in [
        simple(&upstream.url(), &[DAY]),
        simple(&upstream.url(), &[DAY]).redis("single", &[redis.address]),
    ] {
        let weir = Weir::start(&config.text());
        remaining(&weir).await;
        weir.reload(&config.text().replace("fixed_window", "sliding_window_log"), "applied");
        remaining(&weir).await;
        let both = |weir: &Weir| {
            let (_, out, _) = key(weir, "show", "day", "127.0.0.1", &[]);
            // The limit before the edit is described without its quota.
            let found = [
                "  fixed_window: 1 used",
                "    shape fw2-86400000f",
                "  sliding_window_log: 1 of 5 used",
                "    shape sl2-86400000",
            ];
            let places =
                found.map(|text| out.find(text).unwrap_or_else(|| panic!("no {text:?} in\n{out}")));
            assert!(places.is_sorted(), "{out}");
        };
        both(&weir);
        // Another deadline: a new limiter on the same store, which has not been used yet.
        let mut later = config.clone();
        later.store = if later.store.is_empty() {
            "[store]\n".into()
        } else {
            later.store.replace("deadline = \"10s\"\n", "")
        };
        later.store = later.store.replacen("[store]\n", "[store]\ndeadline = \"9s\"\n", 1);
        weir.reload(&later.text().replace("fixed_window", "sliding_window_log"), "applied");
        both(&weir);
    }
}

#[tokio::test]
async fn counters_of_a_route_are_asked_by_its_name() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let route = |name: &str| {
        format!(
            "name = \"{name}\"\npath = \"/{name}\"\nupstream = \"api\"\npolicy = \"public\"\nlimit_scope = \"route\""
        )
    };
    let config = Toml::new()
        .upstream("api", &upstream.url(), "")
        .policy("public", &[DAY])
        .route(&route("a"))
        .route(&route("b"));
    for config in [config.clone(), config.redis("single", &[redis.address])] {
        let weir = Weir::start(&config.text());
        assert_eq!(get(weir.http, "/a", &[]).await.status, 200);
        let (code, out, err) = key(&weir, "show", "day", "127.0.0.1", &["--route", "a"]);
        assert!(code == 0 && out.contains("1 of 5 used"), "{out}{err}");
        assert!(
            key(&weir, "show", "day", "127.0.0.1", &["--route", "b"])
                .1
                .contains("nothing is counted")
        );
        let (code, _, err) = key(&weir, "show", "day", "127.0.0.1", &[]);
        assert!(code == EXIT_USAGE && err.contains("each has counters of its own: a, b"), "{err}");
    }
}

#[tokio::test]
async fn an_invalid_question_is_refused_with_the_reason() {
    let upstream = Upstream::start();
    let dead = free_address();
    let config = simple(&upstream.url(), &[DAY]);
    let ask = |config: &str, more: &[&str]| {
        let builder = Weir::build(config);
        let path = builder.folder().join("proxy.toml");
        let mut arguments =
            vec!["key", "show", "--limit", "day", "--key", "k", "--config", path.to_str().unwrap()];
        arguments.extend(more);
        let (code, out, err) = Weir::with_arguments(&arguments).run();
        assert_eq!(out, "");
        (code, err)
    };
    let public = ["--policy", "public"];
    let without_admin = config
        .text()
        .replace("[admin]\naddress = \"127.0.0.1:0\"\n", "[admin]\naddress = \"off\"\n");
    let (code, err) = ask(&without_admin, &public);
    assert!(code == 1 && err.contains("an [admin] address"), "{err}");
    let (code, err) = ask(&config.text(), &[&public[..], &["--admin", &dead.to_string()]].concat());
    assert!(code == 1 && err.contains(&dead.to_string()), "{err}");
    let (code, err) = ask(&config.clone().redis("single", &[dead]).text(), &public);
    let failed = format!("the store failed: connection: Redis {dead} (");
    assert!(code == 1 && err.contains(&failed), "{err}");
    let (code, err) = ask(&config.clone().redis("single", &[dead]).text(), &["--policy", "pulbic"]);
    assert!(
        code == EXIT_USAGE
            && err.contains("found \"pulbic\", expected one that a route names: public"),
        "{err}"
    );
    assert_eq!(ask(&config.text(), &[]).0, EXIT_USAGE, "a policy must be named");
    let (code, err) = ask("wrokers = 2", &public);
    assert!(code == EXIT_CONFIG && err.contains("wrokers"), "{err}");
}

/// The table in `docs/counters.md`: which `--key` finds what a request was counted under.
#[tokio::test]
async fn the_keys_in_the_guide_are_those_that_policies_answer() {
    let page =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/counters.md"))
            .unwrap();
    let rows: Vec<Vec<String>> = page
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| {
            line.trim_matches('|')
                .split(" | ")
                .map(|cell| cell.trim().trim_matches('`').to_owned())
                .collect()
        })
        .collect();
    assert!(rows.len() >= 6, "{rows:?}");
    let upstream = Upstream::start();
    for row in rows {
        let [written, request, answered] = row.as_slice() else { panic!("{row:?}") };
        let (using, limit) = written.split_once("; ").unwrap_or((written, ""));
        let limit = if limit.is_empty() { DAY.to_owned() } else { format!("{DAY}, {limit}") };
        let config =
            simple(&upstream.url(), &[&limit]).text().replace("use = \"client-ip\"", using);
        let weir = Weir::start(&config);
        let mut words = request.split_whitespace();
        let path = words.next().unwrap();
        let fields: Vec<(&str, &str)> = words.map(|field| field.split_once(':').unwrap()).collect();
        assert_eq!(get(weir.http, path, &fields).await.status, 200, "{row:?}");
        let (code, out, err) = key(&weir, "show", "day", answered, &[]);
        assert!(code == 0 && out.contains("1 of 5 used"), "{row:?}: {out}{err}");
    }
}

/// The guide's commands for `plans`: the key is the plan's name and a digest.
#[tokio::test]
async fn a_customers_counter_is_found_as_the_guide_says() {
    let page =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/counters.md"))
            .unwrap();
    assert!(
        page.contains("--key gold/$(printf %s \"$API_KEY\" | sha256sum | cut -c -64)"),
        "the guide's command"
    );
    let digest = |key: &str| {
        let out = std::process::Command::new("sh")
            .args(["-c", "printf %s \"$0\" | sha256sum | cut -c -64", key])
            .output()
            .expect("sha256sum");
        String::from_utf8(out.stdout).unwrap().trim_end().to_owned()
    };
    let plan = |quota: u8| {
        format!("[{{ name = \"plan\", algorithm = \"gcra\", quota = {quota}, period = \"1d\" }}]")
    };
    let policy = format!(
        "[policies.public]\nuse = \"plans\"\n[policies.public.config]\nkey = \"{{header.x-api-key}}\"\ndefault_plan = \"free\"\n\
         assign = {{ \"sha256:{}\" = \"gold\" }}\n[policies.public.config.plans]\nfree = {}\ngold = {}\n",
        digest("rich"),
        plan(3),
        plan(9)
    );
    let upstream = Upstream::start();
    let route = "path = \"/*\"\nupstream = \"api\"\npolicy = \"public\"";
    let weir = Weir::start(
        &Toml::new().upstream("api", &upstream.url(), "").more(&policy).route(route).text(),
    );
    for api_key in ["rich", "rich", "unknown"] {
        assert_eq!(get(weir.http, "/", &[("x-api-key", api_key)]).await.status, 200);
    }
    let (code, out, err) = key(&weir, "show", "plan", &format!("gold/{}", digest("rich")), &[]);
    assert!(code == 0 && out.contains("  gcra: 2 of 9 used, 1 back in "), "{out}{err}");
    let (code, out, err) = key(&weir, "show", "plan", "free/\\@127.0.0.1", &[]);
    assert!(
        code == 0
            && out.contains("  gcra: 1 of 3 used, back in ")
            && out.contains(" --key 'free/\\@127.0.0.1' "),
        "{out}{err}"
    );
}

#[tokio::test]
async fn a_limit_that_is_not_there_is_named_with_those_that_are() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let config = simple(&upstream.url(), &[DAY, &DAY.replace("day", "burst")]);
    for config in [config.clone(), config.redis("single", &[redis.address])] {
        let weir = Weir::start(&config.text());
        remaining(&weir).await;
        let (code, out, err) = key(&weir, "show", "dya", "127.0.0.1", &[]);
        assert_eq!((code, out.as_str()), (EXIT_USAGE, ""));
        assert!(
            err.contains("no such limit: found \"dya\", expected one of the policy public: burst, day; the nearest is \"day\""),
            "{err}"
        );
    }
}

#[tokio::test]
async fn without_a_configuration_the_running_proxy_is_asked() {
    let (upstream, admin) = (Upstream::start(), free_address().to_string());
    let run = [
        "run",
        "--to",
        &upstream.url(),
        "--limit",
        "3/1m",
        "--listen",
        "127.0.0.1:0",
        "--admin",
        &admin,
    ];
    let weir = Weir::with_arguments(&run).start();
    assert_eq!(get(weir.http, "/", &[]).await.status, 200);
    // In an empty folder: no proxy.toml is read.
    let ask = |verb: &str| {
        Weir::with_arguments(&[
            "key",
            verb,
            "--policy",
            "limit",
            "--limit",
            "limit",
            "--key",
            "127.0.0.1",
            "--admin",
            &admin,
        ])
        .run()
    };
    let (code, out, err) = ask("show");
    assert!(code == 0 && out.contains("  fixed_window: 1 of 3 used, all back in "), "{out}{err}");
    let (code, out, err) = ask("reset");
    assert!(code == 0 && out.contains("  deleted: fixed_window: 1 of 3 used"), "{out}{err}");
    assert!(ask("show").1.contains(NOTHING));
}
