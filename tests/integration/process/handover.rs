//! A new process takes over: no connection is refused, counters go on, and what is under way in the
//! old one finishes.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::harness::client::{Client, Tally, get, get_blocking};
use crate::harness::toml::{Toml, simple};
use crate::harness::upstream::Upstream;
use crate::harness::weir::{Weir, replace};
use crate::harness::{TIMEOUT, eventually, eventually_async};

const QUOTA: u64 = 1_000_000;
const DAY: &str =
    "name = \"day\", algorithm = \"fixed_window\", quota = 1000000, period = \"400d\"";

/// A process that has taken over. Ended when dropped.
pub struct Successor(Pid);

impl Successor {
    /// The new process of the `nth` hand-over in the log, counted from 1.
    pub fn of(weir: &Weir, nth: usize) -> Self {
        let pid = eventually("a new process", || {
            let events = weir.output().events();
            let mut all =
                events.iter().filter(|event| event["message"] == "a new process takes over");
            all.nth(nth - 1)
                .and_then(|event| event["pid"].as_i64())
                .ok_or_else(|| weir.output().tail(30))
        });
        Self(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap())
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.0, signal).expect("a running process");
    }

    fn running(&self) -> bool {
        test_kill_process(self.0).is_ok()
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
    }
}

/// Sends requests, each on a connection of its own, until told to stop.
async fn load(address: SocketAddr, stop: Arc<AtomicBool>) -> Tally {
    let mut tally = Tally::default();
    while !stop.load(Ordering::Relaxed) {
        let reply =
            async { Client::connect(address).await?.get("/", &[("connection", "close")]).await };
        tally.add(&reply.await);
    }
    tally
}

/// Sends requests on one connection, and on another one each time that a reply says to close it.
async fn load_kept(address: SocketAddr, stop: Arc<AtomicBool>) -> Tally {
    let (mut tally, mut client) = (Tally::default(), None);
    while !stop.load(Ordering::Relaxed) {
        let mut kept = match client.take() {
            Some(kept) => kept,
            None => Client::connect(address).await.unwrap(),
        };
        let reply = kept.get("/", &[]).await;
        tally.add(&reply);
        client = reply.is_ok_and(|reply| reply.header("connection") != "close").then_some(kept);
    }
    tally
}

#[tokio::test]
async fn no_request_is_refused_while_a_new_process_takes_over_and_counters_go_on() {
    const CLIENTS: u64 = 8;
    let upstream = Upstream::start();
    let mut weir = Weir::start(&simple(&upstream.url(), &[DAY]).text());
    let stop = Arc::<AtomicBool>::default();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| match number % 2 {
            0 => tokio::spawn(load(weir.http, Arc::clone(&stop))),
            _ => tokio::spawn(load_kept(weir.http, Arc::clone(&stop))),
        })
        .collect();
    let pause = || tokio::time::sleep(Duration::from_millis(300));
    pause().await;
    let mut latest: Option<Successor> = None;
    for turn in 1..=3 {
        match &latest {
            None => weir.signal(Signal::USR2),
            Some(latest) => latest.signal(Signal::USR2),
        }
        let (next, output) = (turn + 1, weir.output().clone());
        eventually_async("the new process is ready", async || {
            let ready = output.events().iter().filter(|event| event["message"] == "ready").count();
            if ready == next { Ok(()) } else { Err(output.tail(40)) }
        })
        .await;
        let successor = Successor::of(&weir, turn);
        match latest.replace(successor) {
            None => assert!(weir.exit().success(), "{}", weir.output().tail(40)),
            Some(old) => {
                eventually_async("the old process ends", async || {
                    if old.running() { Err(output.tail(40)) } else { Ok(()) }
                })
                .await
            }
        }
        pause().await;
    }
    stop.store(true, Ordering::Relaxed);
    let mut admitted = 0;
    for client in clients {
        let tally = client.await.unwrap();
        tally.only(&[200]);
        admitted += tally.count(200);
    }
    assert!(admitted > 100, "{admitted}");
    // Also what connections asked that were open when the last counters were sent: the old process
    // counted that, and said so before it ended.
    let output = weir.output().clone();
    output.await_events("the old process has ended", 3);
    let reply = get(weir.http, "/", &[]).await;
    let used = QUOTA - reply.remaining("day") as u64 - 1;
    assert_eq!(used, admitted, "{}", output.tail(40));
    assert_eq!(weir.admin_page("/ready").status, 200, "the pages are the new process's");
}

#[tokio::test]
async fn a_request_under_way_finishes_in_the_old_process() {
    let upstream = Upstream::start();
    upstream.hold();
    let mut weir = Weir::start(&simple(&upstream.url(), &[DAY]).text());
    let mut client = Client::connect(weir.http).await.unwrap();
    let held = tokio::spawn(async move { client.get("/", &[]).await.map(|reply| reply.status) });
    eventually_async("the request waits at the upstream", async || {
        if upstream.count() == 1 { Ok(()) } else { Err("not yet".into()) }
    })
    .await;
    weir.signal(Signal::USR2);
    weir.output().await_events("ready", 2);
    let _successor = Successor::of(&weir, 1);
    weir.output()
        .await_events("handed over to a new process: requests in flight here may finish", 1);
    assert!(weir.running());
    // As a service manager does that stops all processes of a service: the first one says nothing
    // new to a process that ends already.
    weir.signal(Signal::TERM);
    weir.output().await_events(
        "this process is already shutting down: it exits once its requests have ended",
        1,
    );
    upstream.release();
    assert_eq!(held.await.unwrap().unwrap(), 200);
    assert!(weir.exit().success(), "{}", weir.output().tail(40));
    assert_eq!(get(weir.http, "/", &[]).await.remaining("day"), QUOTA as i64 - 2);
}

/// A reservation that the old process settles after it has handed over.
#[tokio::test]
async fn the_old_processs_last_refunds_reach_the_new_one() {
    let upstream = Upstream::start();
    upstream.answer(500, &[], "");
    upstream.hold();
    let limit = format!("{DAY}, refund = \"upstream_error\"");
    let mut weir = Weir::start(&simple(&upstream.url(), &[&limit]).text());
    let mut client = Client::connect(weir.http).await.unwrap();
    let held = tokio::spawn(async move { client.get("/", &[]).await.map(|reply| reply.status) });
    eventually_async("the request waits at the upstream", async || {
        if upstream.count() == 1 { Ok(()) } else { Err("not yet".into()) }
    })
    .await;
    weir.signal(Signal::USR2);
    weir.output().await_events("ready", 2);
    let _successor = Successor::of(&weir, 1);
    upstream.release();
    assert_eq!(held.await.unwrap().unwrap(), 500);
    upstream.answer(200, &[], "");
    assert!(weir.exit().success(), "{}", weir.output().tail(40));
    weir.output().await_events("the old process has ended", 1);
    assert_eq!(get(weir.http, "/", &[]).await.remaining("day"), QUOTA as i64 - 1);
}

#[tokio::test]
async fn a_new_process_that_can_not_serve_changes_nothing() {
    let upstream = Upstream::start();
    let config = simple(&upstream.url(), &[DAY]).text();
    let mut weir = Weir::start(&config);
    assert_eq!(get(weir.http, "/", &[]).await.status, 200);
    // It is refused on reload, too.
    replace(&weir.folder().join("proxy.toml"), config.replace("client-ip", "nobody").as_bytes());
    weir.await_reloads("refused", 1);
    weir.signal(Signal::USR2);
    let failed = "the hand-over failed, so this process keeps serving: the new process did not take over: it ended with exit status: 78";
    weir.output().await_events(failed, 1);
    assert_eq!(get(weir.http, "/", &[]).await.remaining("day"), QUOTA as i64 - 2);
    assert_eq!(weir.admin_page("/ready").status, 200);
    // And the next one can.
    weir.rewrite(&config);
    weir.await_reloads("applied", 1);
    weir.signal(Signal::USR2);
    weir.output().await_events("ready", 2);
    let _successor = Successor::of(&weir, 2);
    assert!(weir.exit().success());
    assert_eq!(get(weir.http, "/", &[]).await.remaining("day"), QUOTA as i64 - 3);
}

#[tokio::test]
async fn the_snapshot_is_the_new_processs() {
    let upstream = Upstream::start();
    let store = "[store.embedded]\nsnapshot = \"weir.snapshot\"\nsnapshot_every = \"100ms\"\n";
    let mut weir = Weir::start(&simple(&upstream.url(), &[DAY]).more(store).text());
    assert_eq!(get(weir.http, "/", &[]).await.status, 200);
    weir.signal(Signal::USR2);
    weir.output().await_events("ready", 2);
    let successor = Successor::of(&weir, 1);
    assert!(weir.exit().success());
    assert_eq!(get(weir.http, "/", &[]).await.remaining("day"), QUOTA as i64 - 2);
    successor.signal(Signal::TERM);
    eventually(
        "it ends",
        || if successor.running() { Err(weir.output().tail(20)) } else { Ok(()) },
    );
    let output = weir.output().lines().join("\n");
    assert!(!output.contains("can't be saved"), "{output}");
    let saved = std::fs::read(weir.folder().join("weir.snapshot")).unwrap();
    assert!(saved.starts_with(b"weir snapshot 1\n"));
}

#[tokio::test]
async fn a_socket_of_the_service_manager_is_served() {
    let upstream = Upstream::start();
    let socket = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = socket.local_addr().unwrap();
    let config = simple(&upstream.url(), &[DAY]).text();
    let config = config.replacen("127.0.0.1:0", &address.to_string(), 1);
    let weir = Weir::build(&config).activated(&socket).start();
    assert_eq!(weir.http, address);
    // Ours is closed: only what was passed on is left.
    drop(socket);
    for _ in 0..20 {
        assert_eq!(get(address, "/", &[]).await.status, 200);
    }
}

/// What the process tells the service manager until it has told `last`.
fn told(manager: &UnixDatagram, last: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let mut message = [0; 1024];
    while !all.iter().any(|line| line == last) {
        let length = manager.recv(&mut message).unwrap_or_else(|error| panic!("{error}: {all:?}"));
        let text = std::str::from_utf8(&message[..length]).unwrap();
        all.extend(text.lines().map(str::to_owned));
    }
    all
}

#[test]
fn the_service_manager_is_told_what_its_unit_relies_on() {
    let unit = include_str!("../../../docs/systemd/weir.service");
    for line in [
        "Type=notify-reload",
        "NotifyAccess=all",
        "RestartPreventExitStatus=2 78",
        "RestartSec=2s",
        "StartLimitIntervalSec=0",
    ] {
        assert!(unit.lines().any(|other| other == line), "{line}");
    }
    let (upstream, folder) = (Upstream::start(), tempfile::tempdir().unwrap());
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(TIMEOUT)).unwrap();
    let config = simple(&upstream.url(), &[DAY]).text();
    let weir = Weir::build(&config).environment("NOTIFY_SOCKET", path.to_str().unwrap());
    let mut weir = weir.start();
    let main = format!("MAINPID={}", weir.pid().as_raw_nonzero());
    let ready = told(&manager, &main);
    assert!(ready.contains(&"READY=1".to_owned()), "{ready:?}");

    weir.signal(Signal::HUP);
    let reloading = told(&manager, "READY=1");
    assert!(reloading.starts_with(&["RELOADING=1".to_owned()]), "{reloading:?}");
    assert!(reloading[1].starts_with("MONOTONIC_USEC="), "{reloading:?}");

    weir.signal(Signal::USR2);
    let successor = Successor::of(&weir, 1);
    let handed_over = told(&manager, &format!("MAINPID={}", successor.0.as_raw_nonzero()));
    assert!(handed_over.contains(&"READY=1".to_owned()), "{handed_over:?}");
    // The service goes on, so the old process does not say that it ends.
    assert!(!handed_over.contains(&"STOPPING=1".to_owned()), "{handed_over:?}");
    assert!(weir.exit().success());
    successor.signal(Signal::TERM);
    assert_eq!(told(&manager, "STOPPING=1"), ["STOPPING=1"]);
}

#[test]
fn during_the_shutdown_delay_everything_is_served_and_nothing_is_ready() {
    let upstream = Upstream::start();
    let config = simple(&upstream.url(), &[DAY]).server("shutdown_delay = \"1s\"");
    let mut weir = Weir::start(&Toml::text(&config));
    assert_eq!(weir.admin_page("/ready").status, 200);
    weir.signal(Signal::TERM);
    eventually("/ready says no", || match weir.admin_page("/ready").status {
        503 => Ok(()),
        status => Err(status.to_string()),
    });
    let mut served = 0;
    while let Ok(reply) = get_blocking(weir.http, "/") {
        assert_eq!(reply.status, 200);
        served += 1;
    }
    assert!(served > 3, "{served}");
    assert!(weir.exit().success());
}
