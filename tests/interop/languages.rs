//! The policies in `examples/languages`, in other languages than Rust: built as their READMEs say,
//! and configured as they say.

use crate::harness::client::get;
use crate::harness::languages::Example;
use crate::harness::process::run;
use crate::harness::toml::Toml;
use crate::harness::upstream::Upstream;
use crate::harness::weir::{Builder, Weir, binary};

/// Compiling 18 MB takes some seconds once; then the code is in wasmtime's cache.
fn builder(example: &Example, config: &str, upstream: &Upstream) -> Builder {
    let config = Toml::new().upstream("app", &upstream.url(), "").more(config).text();
    let config = config.replace("access = \"off\"", "access = \"all\"");
    Weir::build(&config).file(example.module_name(), &example.module())
}

/// `weir check` of the README's configuration with some changes: its exit code and its output.
fn check(example: &Example, changes: &[(&str, &str)]) -> (i32, String) {
    let upstream = Upstream::start();
    let builder = builder(example, &changed(example, changes), &upstream);
    let config = builder.folder().join("proxy.toml");
    let mut weir = std::process::Command::new(binary());
    let ended = run(weir.arg("check").arg("--config").arg(config));
    (ended.code, ended.out + &ended.err)
}

fn changed(example: &Example, changes: &[(&str, &str)]) -> String {
    changes.iter().fold(example.config().to_owned(), |config, (from, to)| {
        assert!(config.contains(from), "no `{from}` in\n{config}");
        config.replace(from, to)
    })
}

/// A proxy with the README's configuration and some changes. It has been checked before, so that it
/// starts with compiled code.
fn start(example: &Example, changes: &[(&str, &str)], upstream: &Upstream) -> Weir {
    let (code, output) = check(example, changes);
    assert_eq!(code, 0, "{output}");
    builder(example, &changed(example, changes), upstream).start()
}

/// Each error is reported with its setting and with the guest's text.
fn refuses(example: &Example, changes: &[(&str, &str)], errors: &[(&str, &str)]) {
    let (code, output) = check(example, changes);
    assert_eq!(code, 78, "{output}");
    for (setting, message) in errors {
        assert!(
            output.contains(setting) && output.contains(message),
            "{setting}, {message}: {output}"
        );
    }
}

async fn statuses(weir: &Weir, headers: &[(&str, &str)], count: usize) -> Vec<u16> {
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(get(weir.http, "/", headers).await.status);
    }
    all
}

/// What both the README and the list say that `make setup` installs must be the same.
fn installs(example: &Example, wanted: &str, list: &str) {
    assert!(example.install().contains(wanted), "{}", example.install());
    assert!(list.contains(wanted), "{wanted} is not in\n{list}");
}

#[tokio::test]
async fn a_policy_in_python_has_other_limits_in_office_hours() {
    let example = Example::new("python-hours", "hours.py");
    installs(&example, "componentize-py==0.25.1", include_str!("../clients/requirements.txt"));
    let upstream = Upstream::start();
    let quotas = [("inside = 600", "inside = 1"), ("outside = 60", "outside = 2")];
    let days = "days = [\"mon\", \"tue\", \"wed\", \"thu\", \"fri\"]";
    // Two configurations for which the day of the test does not matter.
    let never = [quotas[0], quotas[1], (days, "days = []")];
    let weir = start(&example, &never, &upstream);
    assert_eq!(statuses(&weir, &[], 3).await, [200, 200, 429]);
    let every = "days = [\"mon\", \"tue\", \"wed\", \"thu\", \"fri\", \"sat\", \"sun\"]";
    let always = [
        quotas[0],
        quotas[1],
        (days, every),
        ("from = \"08:00\"", "from = \"00:00\""),
        ("until = \"18:00\"", "until = \"24:00\""),
    ];
    let weir = start(&example, &always, &upstream);
    assert_eq!(statuses(&weir, &[], 2).await, [200, 429]);
    assert_eq!(upstream.count(), 3);
    refuses(
        &example,
        &[("from = \"08:00\"", "from = \"8 am\""), ("\"wed\"", "\"wen\"")],
        &[
            ("policies.hours.config.from", "\"8 am\""),
            ("policies.hours.config.days[2]", "one of mon, tue"),
        ],
    );
}

#[tokio::test]
async fn a_policy_in_javascript_has_plans_and_gives_back_what_a_reply_does_not_cost() {
    let example = Example::new("js-plan", "plan.js");
    let list = include_str!("../clients/package.json").replace("\": \"", "@");
    installs(&example, "componentize-qjs@0.4.5", &list);
    let upstream = Upstream::start();
    let quotas = [("free = 60", "free = 1"), ("pro = 600", "pro = 2")];
    let weir = start(&example, &quotas, &upstream);
    let anna = [("x-api-key", "k-anna")];
    assert_eq!(statuses(&weir, &anna, 3).await, [200, 200, 429]);
    // Invented keys are counted by their address, all together.
    assert_eq!(statuses(&weir, &[("x-api-key", "k-1")], 1).await, [200]);
    assert_eq!(statuses(&weir, &[("x-api-key", "k-2")], 1).await, [429]);
    let plans: Vec<_> = upstream.seen().iter().map(|seen| seen.header("x-plan")).collect();
    assert_eq!(plans, ["pro", "pro", "free"].map(|plan| Some(plan.to_owned())));
    // A fresh one: `pro` allows two, but these replies cost nothing. A client has its reply before
    // it is settled; the log line is written after that.
    upstream.answer(304, &[], "");
    let weir = start(&example, &quotas, &upstream);
    for count in 1..=5 {
        assert_eq!(statuses(&weir, &anna, 1).await, [304]);
        weir.output().await_events("request", count);
    }
    upstream.answer(200, &[], "");
    assert_eq!(statuses(&weir, &anna, 3).await, [200, 200, 429]);
    refuses(
        &example,
        &[("free = 60", "free = 6.5"), ("\"pro\"", "\"gold\"")],
        &[
            ("policies.plans.config.plans.free", "6.5"),
            ("policies.plans.config.keys.k-anna", "one of free, pro"),
        ],
    );
}

/// Only on Linux: see `scripts/setup.sh`.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_policy_in_c_lets_robots_share_one_allowance() {
    let example = Example::new("c-robots", "robots.c");
    let setup = include_str!("../../scripts/setup.sh");
    let packages = ["clang", "lld", "wasi-libc", "libclang-rt-dev-wasm32"];
    packages.iter().for_each(|package| installs(&example, package, setup));
    installs(&example, "wit-bindgen-cli@0.63.0", &bindings());
    let upstream = Upstream::start();
    let quotas = [("robots = 60", "robots = 2"), ("others = 600", "others = 3")];
    let weir = start(&example, &quotas, &upstream);
    assert_eq!(statuses(&weir, &[], 4).await, [200, 200, 200, 429]);
    // From the same address, but under a key of all robots.
    let robot = [("user-agent", "Mozilla/5.0 (compatible; Googlebot/2.1)")];
    assert_eq!(statuses(&weir, &robot, 1).await, [200]);
    let second = [("user-agent", "a"), ("user-agent", "MyCrawler")];
    assert_eq!(statuses(&weir, &second, 2).await, [200, 429]);
    // Nothing that a call is given or answers stays allocated.
    let agent = "x".repeat(3_000);
    for number in 0..2_000 {
        let agent = format!("{agent}{number}");
        let reply = get(weir.http, "/", &[("user-agent", &agent)]).await;
        assert_eq!(reply.status, 429, "{number}");
    }
    let status = weir.admin_page("/status").json();
    let memory = status["policies"]["robots"]["memory_bytes"].as_u64();
    assert!(memory.is_some_and(|bytes| bytes <= 256 << 10), "{status}");
    refuses(
        &example,
        &[("robots = 60", "robots = 0")],
        &[("policies.robots.config.robots", "from 1 to 1000000")],
    );
    refuses(
        &example,
        &[("robots = 60", "robts = 60")],
        &[("policies.robots.config.robts", "`robots` or `others`")],
    );
    refuses(&example, &[("others = 600", "")], &[("policies.robots.config", "no `others`")]);
}

/// The version of the library that makes the bindings, as the command line is named.
#[cfg(target_os = "linux")]
fn bindings() -> String {
    let lock = include_str!("../../Cargo.lock");
    let (_, rest) = lock.split_once("name = \"wit-bindgen-c\"\nversion = \"").unwrap();
    format!("wit-bindgen-cli@{}", rest.split('"').next().unwrap())
}
