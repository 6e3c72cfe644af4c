//! Counters in memory outlive the process: a restart forgets nothing, and a file that is not whole
//! is never used. Crashes are a row of `tests/chaos`.

use rustix::process::Signal;

use crate::harness::client::get;
use crate::harness::toml::simple;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;

const DAY: &str =
    "name = \"day\", algorithm = \"fixed_window\", quota = 1000000, period = \"400d\"";
const LOG: &str =
    "name = \"log\", algorithm = \"sliding_window_log\", quota = 1000, period = \"1h\"";
const QUOTA: u64 = 1_000_000;

fn config(upstream: &Upstream, limits: &[&str], every: &str) -> String {
    let store =
        format!("[store.embedded]\nsnapshot = \"weir.snapshot\"\nsnapshot_every = \"{every}\"\n");
    simple(&upstream.url(), limits).more(&store).text()
}

#[tokio::test]
async fn a_restart_forgets_nothing() {
    let upstream = Upstream::start();
    let mut weir = Weir::start(&config(&upstream, &[DAY, LOG], "1h"));
    let mut admitted = 0;
    for _ in 0..3 {
        for _ in 0..5 {
            assert_eq!(get(weir.http, "/", &[]).await.status, 200);
            admitted += 1;
        }
        weir = weir.restart(Signal::TERM);
        assert!(weir.output().says("counters restored"), "{}", weir.output().tail(30));
        let counters = weir.admin_page("/counters?policy=public&limit=day&key=127.0.0.1").text();
        assert!(counters.contains(&format!("{admitted} of {QUOTA} used")), "{counters}");
    }
    let reply = get(weir.http, "/", &[]).await;
    assert_eq!(reply.remaining("day"), (QUOTA - admitted - 1) as i64);
    assert_eq!(reply.remaining("log"), (1000 - admitted - 1) as i64);
}

#[tokio::test]
async fn a_file_that_is_not_whole_is_set_aside_and_said() {
    let upstream = Upstream::start();
    let weir = Weir::start(&config(&upstream, &[DAY], "1h"));
    assert_eq!(get(weir.http, "/", &[]).await.status, 200);
    let path = weir.folder().join("weir.snapshot");
    let weir = weir.restart(Signal::TERM);
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 10]).unwrap();
    let weir = weir.restart(Signal::KILL);
    assert_eq!(get(weir.http, "/", &[]).await.remaining("day"), QUOTA as i64 - 1);
    let said = weir.output().lines().join("\n");
    assert!(said.contains("can't be used, so they start at zero"), "{said}");
    assert!(said.contains("it was not written completely"), "{said}");
    assert!(weir.folder().join("weir.snapshot.unreadable-1").exists());
}
