//! The sandbox as an operator sees it: a policy that keeps failing is stopped and resumed, and
//! compiled code is cached in a private folder.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::harness::client::get;
use crate::harness::eventually;
use crate::harness::guest;
use crate::harness::toml::simple;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;

const LIMIT: &str =
    "name = \"day\", algorithm = \"fixed_window\", quota = 1000000, period = \"1d\"";

fn now_ms() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()
}

#[tokio::test]
async fn a_policy_that_breaks_is_stopped_and_resumed_and_its_clients_cannot_stop_it() {
    let upstream = Upstream::start();
    let config = |more: &str| {
        let breaker = "breaker = { failures = 5, time = \"100ms\", time_max = \"200ms\" }";
        crate::harness::toml::Toml::new()
            .upstream("api", &upstream.url(), "")
            .more(&format!("[policies.guest]\nwasm = \"guest.wasm\"\n{breaker}\n{more}"))
            .route("name = \"api\"\npath = \"/*\"\nupstream = \"api\"\npolicy = \"guest\"")
            .text()
    };
    let module = std::fs::read(guest::misbehaving()).unwrap();
    let weir = Weir::build(&config("")).file("guest.wasm", &module).start();
    let status = async |query: &str| get(weir.http, &format!("/?{query}"), &[]).await.status;
    let stops = || weir.metric("weir_policy_stops_total{policy=\"guest\"}");
    // One client's requests fail, and others are served.
    assert_eq!(status("bypass").await, 200);
    for _ in 0..50 {
        assert_eq!(status("panic").await, 503);
    }
    assert_eq!((status("bypass").await, stops()), (200, 0));
    // Now it breaks for everybody, a while after it was built.
    let (from, until) = (now_ms() + 2_000, now_ms() + 6_000);
    weir.reload(&config(&format!("config.broken_ms = [{from}, {until}]")), "applied");
    while stops() == 0 {
        assert!(now_ms() < until, "it was never stopped");
        status("bypass").await;
    }
    let calls = || weir.metric("weir_policy_calls_total{policy=\"guest\",call=\"decide\"}");
    let (before, mut asked) = (calls(), 0);
    let measured = std::time::Instant::now();
    while measured.elapsed() < Duration::from_millis(300) && now_ms() + 500 < until {
        assert_eq!(status("bypass").await, 503);
        asked += 1;
    }
    let made = calls() - before;
    assert!(made <= 5 && made <= asked, "{made} of {asked} requests were probes");
    assert!(weir.metric("weir_policy_errors_total{policy=\"guest\",cause=\"stopped\"}") > 0);
    while status("bypass").await != 200 {
        assert!(now_ms() < until + 20_000, "it was never called again");
    }
    assert_eq!(status("bypass").await, 200);
}

fn cached(url: &str) -> String {
    simple(url, &[LIMIT]).server("cache_folder = \"code\"").text()
}

fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let all = std::fs::read_dir(folder).unwrap();
    all.map(|entry| entry.unwrap().path()).collect()
}

#[tokio::test]
async fn compiled_code_is_cached_in_a_private_folder_and_damage_costs_nothing() {
    let upstream = Upstream::start();
    let weir = Weir::start(&cached(&upstream.url()));
    let folder = weir.folder().join("code");
    assert_eq!(folder.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    let compiled = files(&folder);
    assert_eq!(compiled.len(), 1, "{compiled:?}");
    assert_eq!(compiled[0].metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let whole = std::fs::read(&compiled[0]).unwrap();
    std::fs::write(&compiled[0], &whole[..whole.len() / 2]).unwrap();
    let weir = weir.restart(rustix::process::Signal::TERM);
    assert_eq!(get(weir.http, "/", &[]).await.status, 200);
    eventually("the damage is told", || {
        let said = weir.output().tail(50);
        if said.contains("it is damaged") { Ok(()) } else { Err(said) }
    });
    assert_eq!(std::fs::read(&compiled[0]).unwrap().len(), whole.len(), "it was compiled again");
}

#[tokio::test]
async fn a_folder_that_others_can_write_to_is_not_used() {
    let upstream = Upstream::start();
    let builder = Weir::build(&cached(&upstream.url()));
    let folder = builder.folder().join("code");
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
    let weir = builder.start();
    assert_eq!(get(weir.http, "/", &[]).await.status, 200);
    let said = weir.output().tail(50);
    assert!(said.contains("compiled policies are not cached: server.cache_folder"), "{said}");
    assert!(said.contains("others can write to it (mode 0777)"), "{said}");
    assert!(files(&folder).is_empty());
}
