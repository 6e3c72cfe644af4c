//! A policy of an operator's own, which says in its manifest what limits it makes and what it warns
//! of: `weir check`, `weir key` and a reload know as much of it as of a built-in one.

use std::path::Path;

use crate::harness::client::get;
use crate::harness::guest;
use crate::harness::redis::Redis;
use crate::harness::toml::Toml;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;

const EXIT_CONFIG: i32 = 78;

fn config(url: &str, per_day: u64, gold: u64) -> Toml {
    let plan = format!(
        "{{ name = \"plan\", algorithm = \"fixed_window\", quota = {gold}, period = \"1d\" }}"
    );
    let policy = format!(
        "[policies.mine]\nwasm = \"declaring.wasm\"\n[policies.mine.config]\nper_day = {per_day}\nplans = {{ gold = [{plan}] }}"
    );
    let route = "name = \"api\"\npath = \"/*\"\nupstream = \"api\"\npolicy = \"mine\"";
    Toml::new().upstream("api", url, "").more(&policy).route(route)
}

fn module() -> Vec<u8> {
    std::fs::read(guest::declaring()).expect("the module")
}

/// `weir key show` for a limit and a key of the policy.
fn shown(weir: &Weir, limit: &str, key: &str) -> (i32, String) {
    let (config, admin) =
        (weir.folder().join("proxy.toml"), weir.admin.expect("an admin listener"));
    let (config, admin) = (config.to_str().unwrap(), admin.to_string());
    let named = ["--policy", "mine", "--limit", limit, "--key", key];
    let arguments = [&["key", "show"][..], &named, &["--config", config, "--admin", &admin]];
    let (code, out, err) = Weir::with_arguments(&arguments.concat()).run();
    (code, out + &err)
}

#[tokio::test]
async fn its_limits_are_known_to_weir_key_and_to_a_reload() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    for on_redis in [false, true] {
        let config = |per_day, gold| {
            let config = config(&upstream.url(), per_day, gold);
            if on_redis { config.redis("single", &[redis.address]) } else { config }
        };
        let weir = Weir::build(&config(5, 3).text()).file("declaring.wasm", &module()).start();
        for (headers, limit, left) in
            [(&[][..], "daily", 4), (&[], "daily", 3), (&[("x-plan", "gold")], "plan", 2)]
        {
            assert_eq!(get(weir.http, "/", headers).await.remaining(limit), left, "{limit}");
        }
        // Their quotas are not in the counters: the policy is asked for them.
        let (code, told) = shown(&weir, "daily", "127.0.0.1");
        assert!(code == 0 && told.contains("  fixed_window: 2 of 5 used, all back in "), "{told}");
        let (code, told) = shown(&weir, "plan", "gold/127.0.0.1");
        assert!(code == 0 && told.contains("  fixed_window: 1 of 3 used, all back in "), "{told}");
        let (code, told) = shown(&weir, "dialy", "127.0.0.1");
        let expected = "no such limit: found \"dialy\", expected one of the policy mine: daily, plan; the nearest is \"daily\"";
        assert!(code == 2 && told.contains(expected), "{told}");

        weir.reload(&config(9, 4).text(), "applied");
        let status = weir.admin_page("/status").json();
        let kept = "(existing counters go on)";
        let changes = [
            format!("policies.mine.config.per_day: 5 -> 9 {kept}"),
            format!("policies.mine.config.plans.gold[plan].quota: 3 -> 4 {kept}"),
        ];
        assert_eq!(status["last_reload"]["changes"], serde_json::json!(changes), "{status}");
        assert_eq!(get(weir.http, "/", &[]).await.remaining("daily"), 6);
        let (code, told) = shown(&weir, "daily", "127.0.0.1");
        assert!(code == 0 && told.contains("  fixed_window: 3 of 9 used, all back in "), "{told}");
    }
}

/// A folder with the module and these configurations.
fn folder(configs: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("declaring.wasm"), module()).unwrap();
    for (name, text) in configs {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

fn check(folder: &Path, more: &[&str]) -> (i32, String, String) {
    let config = folder.join("proxy.toml");
    let arguments = [&["check", "--config", config.to_str().unwrap()], more].concat();
    Weir::with_arguments(&arguments).run()
}

#[test]
fn its_limits_are_compared_with_an_older_file() {
    let url = "http://127.0.0.1:9";
    let new = config(url, 9, 3).text().replace("period = \"1d\"", "period = \"2d\"");
    let folder = folder(&[("old.toml", &config(url, 5, 3).text()), ("proxy.toml", &new)]);
    let old = folder.path().join("old.toml");
    let against = ["--against", old.to_str().unwrap()];
    let (code, out, err) = check(folder.path(), &against);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    for change in [
        "policies.mine.config.per_day: 5 -> 9 (existing counters go on)\n",
        "policies.mine.config.plans.gold[plan].period: \"1d\" -> \"2d\" (starts with fresh counters)\n",
    ] {
        assert!(out.contains(change), "{change}: {out}");
    }
}

#[test]
fn its_warning_has_a_line_and_is_left_out_by_its_kind() {
    let text = config("http://127.0.0.1:9", 2, 3).text();
    let line = 1 + text.lines().position(|line| line.starts_with("per_day")).unwrap();
    let folder = folder(&[("proxy.toml", &text)]);
    let (code, out, err) = check(folder.path(), &["--strict"]);
    assert!(code == EXIT_CONFIG && out.ends_with(": no errors, 1 warning\n"), "{out}{err}");
    let warning = "warning: fewer than 3 requests a day [policy.few-requests]\n";
    assert!(err.starts_with(warning) && err.contains("= help: more of them"), "{err}");
    assert!(err.contains(&format!("proxy.toml:{line}:11\n")), "{err}");
    // Kinds of policies are not known before the file is read.
    let (code, out, err) = check(folder.path(), &["--strict", "--allow", "policy.few-request"]);
    assert!(code == EXIT_CONFIG && err.starts_with(warning), "{out}{err}");
    let (code, out, err) = check(folder.path(), &["--strict", "--allow", "policy.few-requests"]);
    assert!(code == 0 && err.is_empty() && out.ends_with(": no errors\n"), "{out}{err}");
}

/// The example of the guide to `weir policy test`: a denial, and what `settle` charges.
#[test]
fn the_guides_example_of_a_denial_and_of_settling_is_as_it_says() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/policies.md");
    let page = std::fs::read_to_string(page).unwrap();
    let mut blocks = page.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let example = blocks.find(|block| block.starts_with("wasm = \"reply-cost.wasm\"")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let test = |text: &str| {
        std::fs::write(folder.path().join("requests.toml"), text).unwrap();
        let file = folder.path().join("requests.toml");
        Weir::with_arguments(&["policy", "test", file.to_str().unwrap()]).run()
    };
    let (code, _, err) = test(example);
    let missing = folder.path().join("reply-cost.wasm").display().to_string();
    assert!(
        code == 2 && err.contains(&missing) && err.contains("expected the path of a .wasm file"),
        "{err}"
    );
    let module = std::fs::read(guest::reply_cost()).unwrap();
    std::fs::write(folder.path().join("reply-cost.wasm"), module).unwrap();
    let (code, out, err) = test(example);
    assert!(code == 0 && out.ends_with(" requests, all as expected\n"), "{out}{err}");
    for (right, wrong, found) in [
        ("\"denied 401\"", "\"admitted\"", "found denied"),
        ("tokens = 700", "tokens = 999", "found 700"),
    ] {
        assert!(example.contains(right), "{right}");
        let (code, _, err) = test(&example.replacen(right, wrong, 1));
        assert!(code == 1 && err.contains(found), "{wrong}: {err}");
    }
}
