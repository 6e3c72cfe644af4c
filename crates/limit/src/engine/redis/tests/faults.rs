//! What moved slots, failovers and lost masters cost on a real cluster.

use std::cell::RefCell;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::super::super::testing::{
    Cluster, FIXED_WINDOW, GCRA, SECOND_US, Server, cell, one, wait_until,
};
use super::{Proxy, TIGHT, block_on, engine, left, recovers, settings, slow, tag_in};
use crate::clock;
use crate::engine::{
    Cause, Cell, Cells, Engine, EngineError, Execution, Kind, RedisMode, RedisSettings, TakeReply,
};
use crate::telemetry::names;

/// The names of the counters of a tag and key, as an operator is shown them.
async fn names(engine: &Engine, cell: &Cell) -> Vec<String> {
    let found = engine.find(&cell.key, "test/", |_| Some(Kind::Numbers)).await.unwrap();
    let mut names: Vec<_> = found.iter().map(|found| found.key.space.text.clone()).collect();
    names.sort();
    names
}

#[test]
fn a_slot_that_moves_is_followed_while_it_moves_and_afterwards() {
    let cluster = Cluster::start(0);
    let (ours, _) = engine(settings(cluster.addresses(), RedisMode::Cluster));
    // It knows who owned the slot before, and makes no call that would tell it otherwise.
    let (looks, _) = engine(settings(cluster.addresses(), RedisMode::Cluster));
    let (from, to) = (&cluster.nodes[0], &cluster.nodes[1]);
    let tag = tag_in(0..=5460);
    let slot = slow(tag).key.slot();
    let set_slot = |node: &Server, what: &str, other: usize| {
        let _: String =
            node.run(&format!("CLUSTER SETSLOT {slot} {what} {}", cluster.id(other))).unwrap();
    };
    let mut before = cell(&GCRA, "before", 10, 1_000 * SECOND_US, 10);
    before.key.tag = tag;
    block_on(async {
        recovers(&ours, &slow(999)).await;
        recovers(&looks, &slow(999)).await;
        for tag in 1..50 {
            assert!(ours.take(&one(&slow(tag + 1_000))).await.unwrap().admitted);
        }
        assert!(ours.take(&one(&before)).await.unwrap().admitted);
        // One counter exists, and the other one not yet. The slot is being migrated: ASK redirects
        // to the importing node.
        set_slot(to, "IMPORTING", 0);
        set_slot(from, "MIGRATING", 1);
        assert_eq!(ours.take(&one(&slow(tag))).await.unwrap().cells[0].remaining, 999);
        assert_eq!(ours.take(&one(&slow(tag))).await.unwrap().cells[0].remaining, 998);
        assert_eq!(names(&looks, &before).await, ["test/before/gcra", "test/slow/fixed_window"]);
        // It has moved: MOVED.
        let key = before.key.text("weir");
        let _: String = from.run(&format!("MIGRATE 127.0.0.1 {} {key} 0 5000", to.port)).unwrap();
        for node in [to, from, &cluster.nodes[2]] {
            set_slot(node, "NODE", 1);
        }
        assert_eq!(names(&looks, &before).await, ["test/before/gcra", "test/slow/fixed_window"]);
        assert_eq!(ours.take(&one(&slow(tag))).await.unwrap().cells[0].remaining, 997);
        assert_eq!(ours.take(&one(&slow(tag))).await.unwrap().cells[0].remaining, 996);
        assert_eq!(ours.ping().await, Ok(Vec::new()));
    });
}

#[test]
fn a_single_server_that_becomes_a_replica_is_left_for_its_master() {
    let (first, second) = (Server::start(&[]), Server::start(&[]));
    let nodes = vec![first.address(), second.address()];
    let (engine, _) = engine(settings(nodes, RedisMode::Single));
    block_on(async {
        recovers(&engine, &slow(1)).await;
        for (demoted, promoted) in [(&first, &second), (&second, &first)] {
            let _: String = promoted.run("REPLICAOF NO ONE").unwrap();
            let _: String = demoted.run(&format!("REPLICAOF 127.0.0.1 {}", promoted.port)).unwrap();
            recovers(&engine, &slow(2)).await;
            assert!(engine.take(&one(&slow(2))).await.unwrap().admitted);
        }
    });
}

#[test]
fn a_slot_that_moves_costs_the_other_slots_of_its_node_nothing() {
    let cluster = Cluster::start(0);
    let (engine, _) = engine(settings(cluster.addresses(), RedisMode::Cluster));
    let (from, to) = (&cluster.nodes[0], &cluster.nodes[1]);
    let (moving, beside) = (tag_in(0..=1000), tag_in(1001..=5460));
    let slot = slow(moving).key.slot();
    block_on(async {
        recovers(&engine, &slow(beside)).await;
        let _: String =
            to.run(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", cluster.id(0))).unwrap();
        let _: String =
            from.run(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", cluster.id(1))).unwrap();
        // Neither of two keys exists yet: ASK redirects, and there TRYAGAIN says to wait until the
        // slot has moved.
        let mut second = cell(&GCRA, "second", 10, 1_000 * SECOND_US, 10);
        second.key.tag = moving;
        let both = Cells::from_iter([slow(moving), second]);
        for _ in 0..5 {
            assert_eq!(
                engine.take(&both).await,
                Err(EngineError { cause: Cause::Cluster, ran: Execution::No })
            );
            engine.take(&one(&slow(beside))).await.unwrap();
        }
        for node in [to, from, &cluster.nodes[2]] {
            let _: String =
                node.run(&format!("CLUSTER SETSLOT {slot} NODE {}", cluster.id(1))).unwrap();
        }
        assert!(engine.take(&both).await.unwrap().admitted);
    });
}

/// Keeps calling all shards, one call after another on each, until calls to the first shard succeed
/// again. Returns how many of its calls failed, what share of the others' failed, and how long it
/// took.
async fn during_an_outage(engine: &Engine, until_back: bool) -> (usize, f64, Duration) {
    let tags = [tag_in(0..=5460), tag_in(5461..=10922), tag_in(10923..=16383)];
    let start = clock::monotonic();
    let end = if until_back { Duration::from_secs(20) } else { Duration::from_secs(3) };
    let back = AtomicBool::new(false);
    let first = async {
        let mut failed = 0;
        while start.elapsed() < end {
            match engine.take(&one(&slow(tags[0]))).await {
                Ok(_) if failed > 0 => break,
                Ok(_) => {}
                Err(_) => failed += 1,
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        back.store(true, Ordering::SeqCst);
        failed
    };
    let other = async |tag: u128| {
        let (mut failed, mut calls) = (0_u32, 0_u32);
        while !back.load(Ordering::SeqCst) {
            failed += u32::from(engine.take(&one(&slow(tag))).await.is_err());
            calls += 1;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        (failed, calls)
    };
    let (failed, second, third) = tokio::join!(first, other(tags[1]), other(tags[2]));
    (failed, f64::from(second.0 + third.0) / f64::from(second.1 + third.1), start.elapsed())
}

// The other shards' calls should notice nothing. A machine that stalls for a moment costs a call or
// two in some thousand. The fault that these tests are meant to catch (a connection that refreshes
// or reopens while others wait) costs a third of them.

#[test]
fn a_frozen_master_costs_its_shard_a_failover_and_the_others_nothing() {
    let cluster = Cluster::start(1);
    let (engine, _) = engine(RedisSettings {
        deadline: TIGHT,
        ..settings(cluster.addresses(), RedisMode::Cluster)
    });
    block_on(async {
        for tag in [tag_in(0..=5460), tag_in(5461..=10922), tag_in(10923..=16383)] {
            recovers(&engine, &slow(tag)).await;
        }
        cluster.nodes[0].signal("-STOP");
        let (failed, others, took) = during_an_outage(&engine, true).await;
        cluster.nodes[0].signal("-CONT");
        assert!(failed > 0 && took < Duration::from_secs(15), "{failed} failed in {took:?}");
        assert!(others < 0.02, "{others} of the other shards' calls failed");
    });
}

#[test]
fn a_killed_master_fails_its_shard_and_the_others_go_on() {
    let mut cluster = Cluster::start(0);
    let (engine, _) = engine(RedisSettings {
        deadline: TIGHT,
        ..settings(cluster.addresses(), RedisMode::Cluster)
    });
    block_on(async {
        for tag in [tag_in(0..=5460), tag_in(5461..=10922), tag_in(10923..=16383)] {
            recovers(&engine, &slow(tag)).await;
        }
        drop(cluster.nodes.remove(0));
        let (failed, others, _) = during_an_outage(&engine, false).await;
        assert!(failed > 10, "{failed}");
        assert!(others < 0.02, "{others} of the other shards' calls failed");
    });
}

/// What callers saw of the calls to some counters.
#[derive(Debug, Default)]
struct CallerView {
    admitted: Vec<u64>,
    failed: Vec<EngineError>,
    slowest: Duration,
}

impl CallerView {
    fn add(&mut self, at: usize, taken: Result<TakeReply, EngineError>, took: Duration) {
        self.slowest = self.slowest.max(took);
        match taken {
            Ok(taken) => self.admitted[at] += u64::from(taken.admitted),
            Err(error) => self.failed.push(error),
        }
    }
}

/// Calls the counters one after another, from several tasks, until `done`.
async fn traffic(engine: &Engine, counters: &[Cells], done: &AtomicBool) -> CallerView {
    let seen =
        RefCell::new(CallerView { admitted: vec![0; counters.len()], ..CallerView::default() });
    let caller = async |from: usize| {
        for at in (from..).map(|turn| turn % counters.len()) {
            if done.load(Ordering::SeqCst) {
                return;
            }
            let start = clock::monotonic();
            let taken = engine.take(&counters[at]).await;
            seen.borrow_mut().add(at, taken, start.elapsed());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    join_all((0..8).map(|nth| caller(nth * 7))).await;
    seen.into_inner()
}

/// A limit that no test uses up, under this tag.
fn large(tag: u128) -> Cell {
    let mut cell = cell(&FIXED_WINDOW, "large", 1_000_000, 1_000 * SECOND_US, 1_000_000);
    cell.key.tag = tag;
    cell
}

/// Runs `fault` on a thread while all counters are called, and checks that each counted what was
/// admitted.
fn under(fault: impl FnOnce() + Send, engine: &Engine, counters: &[Cells]) -> CallerView {
    let done = AtomicBool::new(false);
    block_on(async {
        for cells in counters {
            recovers(engine, &cells[0]).await;
        }
    });
    std::thread::scope(|scope| {
        let faults = scope.spawn(|| {
            // Also when it panics.
            let _ends = SetOnDrop(&done);
            fault();
        });
        let seen = block_on(traffic(engine, counters, &done));
        faults.join().unwrap();
        block_on(async {
            for (cells, admitted) in counters.iter().zip(&seen.admitted) {
                for cell in cells {
                    assert_eq!(left(engine, cell).await, 1_000_000 - admitted, "{seen:?}");
                }
            }
        });
        seen
    })
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn busy_slots_are_resharded_without_a_failed_call() {
    let cluster = Cluster::start(0);
    let (engine, _) = engine(settings(cluster.addresses(), RedisMode::Cluster));
    let (from, to) = (&cluster.nodes[0], &cluster.nodes[1]);
    let tags: Vec<u128> = (1..).filter(|tag| large(*tag).key.slot() <= 5460).take(40).collect();
    let counters: Vec<Cells> = tags
        .iter()
        .map(|tag| {
            // Every third plan has two limits: while some of its keys have moved, TRYAGAIN.
            let mut second = large(*tag);
            second.key.key += 1;
            Cells::from_iter([large(*tag), second].into_iter().take(if tag % 3 == 0 {
                2
            } else {
                1
            }))
        })
        .collect();
    let reshard = || {
        for tag in &tags {
            let slot = large(*tag).key.slot();
            let ids = (cluster.id(0), cluster.id(1));
            let _: String = to.run(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", ids.0)).unwrap();
            let _: String =
                from.run(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", ids.1)).unwrap();
            loop {
                let keys: Vec<String> =
                    from.run(&format!("CLUSTER GETKEYSINSLOT {slot} 1")).unwrap();
                let Some(key) = keys.first() else { break };
                let _: String =
                    from.run(&format!("MIGRATE 127.0.0.1 {} {key} 0 5000", to.port)).unwrap();
            }
            for node in [to, from] {
                let _: String =
                    node.run(&format!("CLUSTER SETSLOT {slot} NODE {}", ids.1)).unwrap();
            }
        }
    };
    let seen = under(reshard, &engine, &counters);
    assert_eq!(seen.failed, [], "slowest {:?}", seen.slowest);
}

#[test]
fn planned_failovers_fail_no_call() {
    let cluster = Cluster::start(1);
    // A failover that finds no majority pauses the master's writes for five seconds before it is
    // given up, and the next one may be as slow.
    let settings = settings(cluster.addresses(), RedisMode::Cluster);
    let (engine, _) = engine(RedisSettings { deadline: Duration::from_secs(15), ..settings });
    let counters: Vec<Cells> = (1..40).map(|tag| one(&large(tag))).collect();
    let failovers = || {
        let mut voted = None::<Instant>;
        for turn in 0..3 {
            // The masters vote only once in two node timeouts for replicas of the same master. If
            // one asks sooner, Redis holds all calls for five seconds, their deadline here.
            if let Some(voted) = voted {
                let vote_again = voted + Duration::from_millis(4_500);
                std::thread::sleep(vote_again.saturating_duration_since(clock::monotonic()));
            }
            let next = &cluster.nodes[if turn % 2 == 0 { 3 } else { 0 }];
            wait_until("a replica that is up to date", || {
                next.run::<String>("INFO replication")
                    .is_ok_and(|info| info.contains("master_link_status:up"))
            });
            let mut asked = None;
            wait_until("the failover", || {
                // Redis gives up after five seconds.
                if asked.is_none_or(|at: Instant| at.elapsed() > Duration::from_secs(6)) {
                    asked = Some(clock::monotonic());
                    // It fails if the failover has happened meanwhile.
                    let _ = next.run::<String>("CLUSTER FAILOVER");
                }
                next.run::<String>("INFO replication")
                    .is_ok_and(|info| info.contains("role:master"))
            });
            voted = Some(clock::monotonic());
        }
    };
    let seen = under(failovers, &engine, &counters);
    assert_eq!(seen.failed, [], "slowest {:?}", seen.slowest);
}

#[test]
fn a_master_that_falls_silent_holds_up_nobody_elses_calls() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let announced = listener.local_addr().unwrap().port().to_string();
    // Only its clients' port: the other nodes still see it, so there is no failover.
    let cluster = Cluster::with(0, &["--cluster-announce-port", &announced]);
    let proxy = Proxy::start(listener, cluster.nodes[0].port);
    let nodes = [proxy.port, cluster.nodes[1].port, cluster.nodes[2].port];
    let nodes = nodes.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let (engine, metrics) =
        engine(RedisSettings { deadline: TIGHT, ..settings(nodes, RedisMode::Cluster) });
    let cells = |slots| one(&large(tag_in(slots)));
    let (silent, others) = ([cells(0..=5460)], [cells(5461..=10922), cells(10923..=16383)]);
    let done = AtomicBool::new(false);
    block_on(async {
        for cells in silent.iter().chain(&others) {
            recovers(&engine, &cells[0]).await;
        }
        proxy.silent.store(true, Ordering::SeqCst);
        let watch = async {
            tokio::time::sleep(TIGHT * 16).await;
            done.store(true, Ordering::SeqCst);
        };
        let (of_silent, of_others, ()) =
            tokio::join!(traffic(&engine, &silent, &done), traffic(&engine, &others, &done), watch);
        assert_eq!(of_others.failed, [], "slowest {:?}", of_others.slowest);
        let waited =
            of_silent.failed.iter().filter(|error| error.ran == Execution::Unknown).count();
        // Eight callers wait once each. Then all fail at once, and nothing is sent.
        assert!(waited <= 8 && of_silent.failed.len() > 100 * waited, "{waited}");
        assert!(of_silent.slowest < TIGHT * 3, "{:?}", of_silent.slowest);
        assert_eq!(metrics.counter(names::TAKES_UNKNOWN, &[]).get(), waited as u64);
        proxy.silent.store(false, Ordering::SeqCst);
        let start = clock::monotonic();
        recovers(&engine, &silent[0][0]).await;
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        // What was sent before it fell silent ran when it woke up, once.
        let charged = 1_000_000 - left(&engine, &silent[0][0]).await;
        assert!(charged <= of_silent.admitted[0] + waited as u64, "{charged}");
    });
}

#[test]
fn a_cluster_that_is_down_as_a_whole_is_not_ready() {
    let cluster = Cluster::start(0);
    let (engine, _) = engine(settings(cluster.addresses(), RedisMode::Cluster));
    block_on(async {
        recovers(&engine, &slow(1)).await;
        assert_eq!(engine.ping().await, Ok(Vec::new()));
        for node in &cluster.nodes {
            let _: String = node.run("CONFIG SET cluster-require-full-coverage yes").unwrap();
            let _: String = node.run("CLUSTER DELSLOTS 0").unwrap();
        }
        for node in &cluster.nodes {
            wait_until("a cluster without a slot", || {
                node.run::<String>("CLUSTER INFO")
                    .is_ok_and(|info| info.contains("cluster_state:fail"))
            });
        }
        // All nodes answer, and none decides.
        let down = EngineError { cause: Cause::Cluster, ran: Execution::No };
        assert_eq!(engine.ping().await, Err(down));
    });
}

#[test]
fn a_replica_and_a_node_of_a_cluster_are_named_as_such() {
    let server = Server::start(&[]);
    let cluster = Cluster::start(0);
    block_on(async {
        let _: String = server.run("REPLICAOF 127.0.0.1 1").unwrap();
        let (engine, _) = engine(settings(vec![server.address()], RedisMode::Single));
        let replica = EngineError { cause: Cause::Replica, ran: Execution::No };
        assert_eq!(engine.ping().await, Err(replica));
    });
    block_on(async {
        let one_node = vec![cluster.nodes[0].address()];
        let (engine, _) = engine(settings(one_node, RedisMode::Single));
        let elsewhere = slow(tag_in(16_000..=16_383));
        let error = EngineError { cause: Cause::NotSingle, ran: Execution::No };
        assert_eq!(engine.take(&one(&elsewhere)).await, Err(error));
        let advice = engine.advice().await;
        assert!(advice.wrong[0].contains("is part of a cluster"), "{advice:?}");
    });
}
