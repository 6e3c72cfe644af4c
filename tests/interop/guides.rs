//! What the guides for operators tell people to type: each command is run, each piece of a
//! configuration is checked, and each metric that they name exists.

use std::collections::BTreeSet;
use std::process::Command;

use crate::harness::cluster::Cluster;
use crate::harness::redis::{Connection, Value};
use crate::harness::toml::Toml;
use crate::harness::upstream::Upstream;
use crate::harness::weir::{Weir, binary};

const PAGES: [&str; 9] = [
    include_str!("../../docs/redis.md"),
    include_str!("../../docs/operations.md"),
    include_str!("../../docs/reloads.md"),
    include_str!("../../docs/upgrades.md"),
    include_str!("../../docs/documents.md"),
    include_str!("../../docs/admin.md"),
    include_str!("../../docs/tracing.md"),
    include_str!("../../docs/access-log.md"),
    include_str!("../../docs/warnings.md"),
];

/// The blocks of a language in these pages.
fn blocks(language: &str) -> Vec<&'static str> {
    let fence = format!("```{language}\n");
    PAGES
        .iter()
        .flat_map(|page| page.split(&fence).skip(1))
        .map(|rest| rest.split("```").next().unwrap())
        .collect()
}

/// Text in backticks that is not in a block.
fn code() -> BTreeSet<String> {
    let outside = |page: &'static str| page.split("```").step_by(2);
    PAGES
        .iter()
        .flat_map(|page| outside(page))
        .flat_map(|text| text.split('`').skip(1).step_by(2))
        .map(|code| code.replace('\n', " "))
        .collect()
}

/// One that serves, with its limits on the cluster.
fn proxy(cluster: &Cluster, upstream: &Upstream) -> Weir {
    let toml =
        Toml::new().redis("cluster", &cluster.addresses()).upstream("api", &upstream.url(), "");
    Weir::start(&toml.route("path = \"/*\"\nupstream = \"api\"").text())
}

#[test]
fn the_commands_of_the_guides_run_as_they_are_written() {
    let (cluster, upstream) = (Cluster::of(3, &[]), Upstream::start());
    let weir = proxy(&cluster, &upstream);
    let node = cluster.addresses()[0];
    // What production has, as far as `weir check --against` is concerned.
    std::fs::copy(weir.folder().join("proxy.toml"), weir.folder().join("before.toml")).unwrap();
    let mut ran = 0;
    for line in blocks("sh").iter().flat_map(|block| block.lines()) {
        // The ports of the guides are those of a default installation.
        let here = line
            .replace("-p 6379", &format!("-p {}", node.port()))
            .replace("127.0.0.1:9901", &weir.admin.unwrap().to_string())
            .replace("curl -s", "curl -s --fail")
            .replacen("weir ", &format!("{} ", binary()), usize::from(line.starts_with("weir ")));
        let ended = Command::new("sh")
            .args(["-ec", &here])
            .current_dir(weir.folder())
            .output()
            .unwrap_or_else(|error| panic!("{line}: {error}"));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&ended.stdout), text(&ended.stderr));
        assert!(ended.status.success(), "{line}\n{out}{err}");
        // redis-cli prints the server's errors to stdout, and succeeds.
        assert!(!out.starts_with("ERR "), "{line}\n{out}");
        ran += 1;
    }
    assert!(ran >= 8, "{ran} commands");
}

#[test]
fn redis_knows_the_commands_that_the_guides_name() {
    let cluster = Cluster::of(3, &[]);
    let mut node = Connection::open(cluster.addresses()[0]).unwrap();
    let families = ["CLUSTER", "SCRIPT", "SLOWLOG", "ACL", "INFO", "CONFIG"];
    let named: Vec<String> = code()
        .into_iter()
        .filter(|code| {
            let mut words = code.split(' ');
            families.contains(&words.next().unwrap()) && words.next().is_some()
        })
        .collect();
    assert!(named.len() >= 5, "{named:?}");
    for command in named {
        let words: Vec<&str> = command.split(' ').collect();
        if let Ok(Value::Error(error)) = node.command(&words) {
            // Others say that there is nothing to do: no script to end, no replica to promote.
            let wrong = ["unknown", "wrong number", "syntax"];
            assert!(!wrong.iter().any(|word| error.contains(word)), "{command}: {error}");
        }
    }
}

#[test]
fn the_configurations_of_the_guides_have_no_errors() {
    let blocks = blocks("toml");
    assert!(blocks.len() >= 4, "{blocks:?}");
    for block in blocks {
        let store = match block {
            _ if ["[store]", "[store.embedded]", "[telemetry."]
                .iter()
                .any(|section| block.starts_with(section)) =>
            {
                ""
            }
            _ if block.starts_with("[store.redis.") => {
                "[store]\nengine = \"redis\"\non_store_error = \"deny\"\n[store.redis]\nnodes = [\"a:6379\"]\n"
            }
            _ => "[store]\nengine = \"redis\"\non_store_error = \"deny\"\n",
        };
        let config = Toml::new()
            .upstream("api", "http://127.0.0.1:9", "")
            .route("path = \"/*\"\nupstream = \"api\"")
            .more(store)
            .more(&block.replace("/run/secrets/", "").replace("/var/lib/weir/", ""));
        let pki = crate::harness::pki::Pki::new();
        let builder = Weir::build(&config.text())
            .file("weir", b"a secret that is long enough, 32 bytes")
            .file("redis", b"password")
            .file("sentinel", b"password")
            .file("tls/redis-ca.pem", pki.ca.as_bytes());
        let (code, out, err) = Weir::check(builder);
        assert_eq!(code, 0, "{block}\n{out}{err}");
    }
}

/// docs/metrics.md has all metrics; `tests/tidy` holds it to the code.
#[test]
fn the_metrics_that_the_guides_name_exist() {
    let listed: BTreeSet<&str> = include_str!("../../docs/metrics.md")
        .lines()
        .filter_map(|line| line.strip_prefix("| `weir_")?.split('`').next())
        .collect();
    let mut seen = 0;
    for page in PAGES {
        for rest in page.split("weir_").skip(1) {
            let name = rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap();
            let name = name.trim_end_matches("_bucket");
            assert!(listed.contains(name), "weir_{name} is not a metric");
            seen += 1;
        }
    }
    assert!(seen >= 15, "{seen}");
}
