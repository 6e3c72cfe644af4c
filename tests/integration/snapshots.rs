//! Counters in memory outlive the process: a restart forgets nothing, a crash at most one interval,
//! and a file that is not whole is never used.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::client::{Client, get};
use crate::harness::eventually_async;
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

/// Sends requests until told to stop; counts those that were admitted.
async fn load(address: SocketAddr, stop: Arc<AtomicBool>, admitted: Arc<AtomicU64>) {
    let Ok(mut client) = Client::connect(address).await else { return };
    while !stop.load(Ordering::Relaxed) {
        match client.get("/", &[]).await {
            Ok(reply) if reply.status == 200 => admitted.fetch_add(1, Ordering::Relaxed),
            // It was killed meanwhile.
            _ => return,
        };
    }
}

#[tokio::test]
async fn a_crash_forgets_at_most_one_interval_and_charges_nothing_twice() {
    let upstream = Upstream::start();
    let mut weir = Weir::start(&config(&upstream, &[DAY], "100ms"));
    let mut charged = 0;
    for turn in 0..6 {
        let (stop, admitted) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let clients: Vec<_> = (0..4)
            .map(|_| tokio::spawn(load(weir.http, Arc::clone(&stop), Arc::clone(&admitted))))
            .collect();
        // What was admitted before a snapshot began is in it. Two more have begun later than now.
        let saved = || weir.metric("weir_snapshot_saved_timestamp_seconds");
        eventually_async("some requests and a snapshot", async || {
            let some = admitted.load(Ordering::Relaxed) > 50 && saved() > 0;
            if some { Ok(()) } else { Err("none yet".to_owned()) }
        })
        .await;
        let before = admitted.load(Ordering::Relaxed);
        // Far more than an interval, also on a busy machine; killed at any moment of a save.
        tokio::time::sleep(Duration::from_millis(1_000 + turn * 37)).await;
        weir = weir.restart(Signal::KILL);
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.await.unwrap();
        }
        let admitted = admitted.load(Ordering::Relaxed);
        assert!(weir.output().says("counters restored"), "{}", weir.output().tail(30));
        let reply = get(weir.http, "/", &[]).await;
        let now = QUOTA - reply.remaining("day") as u64;
        assert!(
            now > charged + before && now <= charged + admitted + 4 + 1,
            "{charged} were charged, {before} to {admitted} admitted since, and then {now} charged"
        );
        charged = now;
    }
    let unreadable = std::fs::read_dir(weir.folder()).unwrap().filter(|entry| {
        entry.as_ref().unwrap().file_name().to_string_lossy().contains("unreadable")
    });
    assert_eq!(unreadable.count(), 0);
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
