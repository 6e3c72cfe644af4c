//! The Redis engine against real servers: which errors are retried, what never runs twice, what is
//! waited for, and what losing a master costs.

mod access;
mod faults;
mod sentinel;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::super::testing::{
    Cluster, FIXED_WINDOW, GCRA, RATES, SECOND_US, Server, cell, cost, one,
};
use super::super::{
    Cause, Cell, Cells, Engine, EngineError, Execution, RedisMode, RedisSettings, Secret,
    new_member,
};
use crate::clock::{self, Clock};
use crate::telemetry::{Metrics, names};

/// A long deadline, so that a busy machine fails no test. Tests that need a short one say so.
const DEADLINE: Duration = Duration::from_secs(5);
const TIGHT: Duration = Duration::from_millis(250);

fn settings(nodes: Vec<String>, mode: RedisMode) -> RedisSettings {
    RedisSettings { deadline: DEADLINE, ..RedisSettings::new(nodes, mode) }
}

fn engine(settings: RedisSettings) -> (Engine, Metrics) {
    let metrics = Metrics::new(1);
    (Engine::build(&settings.into(), Clock::system(), &metrics).unwrap(), metrics)
}

fn single(server: &Server) -> (Engine, Metrics) {
    engine(settings(vec![server.address()], RedisMode::Single))
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// A limit of 1,000 per 1,000 seconds, under this tag.
fn slow(tag: u128) -> Cell {
    let mut cell = cell(&FIXED_WINDOW, "slow", 1_000, 1_000 * SECOND_US, 1_000);
    cell.key.tag = tag;
    cell
}

async fn left(engine: &Engine, cell: &Cell) -> u64 {
    engine.take(&one(&cost(cell, 0))).await.unwrap().cells[0].remaining
}

/// Retries until a take succeeds, for at most twenty seconds.
async fn recovers(engine: &Engine, cell: &Cell) {
    let start = clock::monotonic();
    while let Err(error) = engine.take(&one(&cost(cell, 0))).await {
        assert!(start.elapsed() < Duration::from_secs(20), "{error:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A tag with a slot in this range.
fn tag_in(slots: std::ops::RangeInclusive<u16>) -> u128 {
    (1..).find(|tag| slots.contains(&slow(*tag).key.slot())).unwrap()
}

#[test]
fn a_take_counts_by_redis_own_time_and_is_given_back_and_reset() {
    let server = Server::start(&[]);
    let (engine, _) = single(&server);
    block_on(async {
        recovers(&engine, &slow(999)).await;
        let before = Clock::system().wall_us() as u64;
        for program in RATES {
            let limit = cell(program, "counts", 10, 1_000 * SECOND_US, 10);
            let taken = engine.take(&one(&cost(&limit, 4))).await.unwrap();
            assert!(
                taken.admitted && taken.at_us >= before && taken.at_us < before + 60 * SECOND_US,
                "{taken:?}"
            );
            assert_eq!(taken.cells[0].remaining, 6);
            engine.give_back(&one(&cost(&limit, 3)), taken.at_us).await.unwrap();
            // A turn in a leaky bucket is not given back.
            let left_then = if program.name == "leaky_bucket" { 6 } else { 9 };
            assert_eq!(left(&engine, &limit).await, left_then, "{}", program.name);
            engine.reset(&limit.key).await.unwrap();
            assert_eq!(left(&engine, &limit).await, 10, "{}", program.name);
        }
        engine.ping().await.unwrap();
    });
}

#[test]
fn keys_on_redis_expire_and_are_named_by_tag_and_key() {
    let server = Server::start(&[]);
    let (engine, _) = single(&server);
    let limit = cell(&GCRA, "ttl", 10, 10 * SECOND_US, 10);
    block_on(async {
        recovers(&engine, &limit).await;
        engine.take(&one(&limit)).await.unwrap()
    });
    let keys: Vec<String> = server.run("KEYS *").unwrap();
    assert_eq!(keys, [limit.key.text("weir")]);
    // One second until all is back, one period, one second more.
    let ttl_ms: i64 = server.run(&format!("PTTL {}", keys[0])).unwrap();
    assert!((11_000..=12_001).contains(&ttl_ms), "{ttl_ms}");
    let bytes: Vec<u8> = server.run(&format!("GET {}", keys[0])).unwrap();
    assert_eq!(bytes.len(), 24, "three numbers");
}

#[test]
fn a_flushed_script_is_sent_again_as_text() {
    let server = Server::start(&[]);
    let (engine, _) = single(&server);
    block_on(async {
        recovers(&engine, &slow(999)).await;
        for expected in (990..1_000).rev() {
            let _: String = server.run("SCRIPT FLUSH").unwrap();
            assert_eq!(engine.take(&one(&slow(1))).await.unwrap().cells[0].remaining, expected);
        }
    });
}

#[test]
fn sixteen_cells_are_one_script() {
    let server = Server::start(&[]);
    let (engine, _) = single(&server);
    let mut cells: Cells = (0..16)
        .map(|index| cell(RATES[index % 7], &format!("many{index}"), 3, 1_000 * SECOND_US, 3))
        .collect();
    block_on(async {
        recovers(&engine, &slow(999)).await;
        for admitted in [true, true, true, false] {
            cells.iter_mut().for_each(|cell| cell.member += 1);
            assert_eq!(engine.take(&cells).await.unwrap().admitted, admitted);
        }
        let taken = engine.take(&cells).await.unwrap();
        assert!(taken.cells.iter().all(|cell| !cell.fits && cell.remaining == 0));
        engine.give_back(&cells, taken.at_us).await.unwrap();
    });
}

#[test]
fn many_calls_of_many_workers_admit_the_quota_exactly() {
    let cluster = Cluster::start(0);
    let engine = Arc::new(engine(settings(cluster.addresses(), RedisMode::Cluster)).0);
    for program in RATES {
        let mut limit = cell(program, "exact", 200, 1_000_000 * SECOND_US, 200);
        limit.unit_us = 1000;
        limit.numbers[1] /= 1000;
        let worker = || {
            block_on(async {
                recovers(&engine, &slow(999)).await;
                let calls: Vec<_> = (0..200)
                    .map(|_| {
                        let (engine, cells) = (
                            Arc::clone(&engine),
                            one(&Cell { member: new_member(), ..limit.clone() }),
                        );
                        tokio::spawn(async move { engine.take(&cells).await.unwrap().admitted })
                    })
                    .collect();
                let mut admitted = 0;
                for call in calls {
                    admitted += usize::from(call.await.unwrap());
                }
                admitted
            })
        };
        let admitted: usize = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..3).map(|_| scope.spawn(worker)).collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).sum()
        });
        assert_eq!(admitted, 200, "{}", program.name);
    }
}

/// Forwards bytes to a server and back. When armed, it lets the next script through, waits for the
/// answer, and closes the connection without passing it on.
struct Proxy {
    port: u16,
    armed: Arc<AtomicBool>,
    /// Closes new connections at once.
    shut: Arc<AtomicBool>,
    /// Passes nothing on until it is false again.
    silent: Arc<AtomicBool>,
}

impl Proxy {
    fn start(listener: TcpListener, server_port: u16) -> Self {
        let proxy = Self {
            port: listener.local_addr().unwrap().port(),
            armed: Arc::default(),
            shut: Arc::default(),
            silent: Arc::default(),
        };
        let (armed, shut) = (Arc::clone(&proxy.armed), Arc::clone(&proxy.shut));
        let silent = Arc::clone(&proxy.silent);
        // Ends with the test's process, as it waits for connections until then.
        std::thread::spawn(move || {
            for client in
                listener.incoming().map_while(Result::ok).filter(|_| !shut.load(Ordering::SeqCst))
            {
                let Ok(server) = TcpStream::connect(("127.0.0.1", server_port)) else { continue };
                let (armed, cut) = (Arc::clone(&armed), Arc::new(AtomicBool::new(false)));
                let silent = Arc::clone(&silent);
                let (from, to, back_cut) =
                    (server.try_clone().unwrap(), client.try_clone().unwrap(), Arc::clone(&cut));
                std::thread::spawn(move || pass(from, to, |_| !back_cut.load(Ordering::SeqCst)));
                std::thread::spawn(move || {
                    pass(client, server, |bytes| {
                        while silent.load(Ordering::SeqCst) {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                        let script = bytes.windows(7).any(|window| window == b"EVALSHA");
                        if script && armed.swap(false, Ordering::SeqCst) {
                            cut.store(true, Ordering::SeqCst);
                        }
                        true
                    });
                });
            }
        });
        proxy
    }
}

/// Copies until either side ends, or until `wanted` returns false for what was read.
fn pass(mut from: TcpStream, mut to: TcpStream, wanted: impl Fn(&[u8]) -> bool) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if !wanted(&bytes[..count]) || to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// A server behind a proxy: single, or as a cluster of one that announces the proxy's address as
/// its own.
fn proxied(mode: RedisMode) -> (Server, Proxy, Engine, Metrics) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let announced = listener.local_addr().unwrap().port().to_string();
    let arguments = [
        "--cluster-enabled",
        "yes",
        "--cluster-port",
        "BUS_PORT",
        "--cluster-announce-ip",
        "127.0.0.1",
    ];
    let server = match mode {
        RedisMode::Single | RedisMode::Sentinel => Server::start(&[]),
        RedisMode::Cluster => Server::start(
            &[arguments.as_slice(), &["--cluster-announce-port", &announced]].concat(),
        ),
    };
    if mode == RedisMode::Cluster {
        let _: String = server.run("CLUSTER ADDSLOTSRANGE 0 16383").unwrap();
        super::super::testing::wait_until("a cluster of one", || {
            server.run::<String>("CLUSTER INFO").is_ok_and(|info| info.contains("cluster_state:ok"))
        });
    }
    let proxy = Proxy::start(listener, server.port);
    let (engine, metrics) = engine(settings(vec![format!("127.0.0.1:{}", proxy.port)], mode));
    (server, proxy, engine, metrics)
}

#[test]
fn a_connection_that_is_cut_after_the_send_runs_the_script_once() {
    for mode in [RedisMode::Single, RedisMode::Cluster] {
        let (server, proxy, engine, metrics) = proxied(mode);
        block_on(async {
            recovers(&engine, &slow(999)).await;
            assert_eq!(engine.take(&one(&slow(1))).await.unwrap().cells[0].remaining, 999);
            let unknown = metrics.counter(names::TAKES_UNKNOWN, &[]);
            let before = unknown.get();
            proxy.armed.store(true, Ordering::SeqCst);
            let error = engine.take(&one(&slow(1))).await.unwrap_err();
            assert_eq!(error.ran, Execution::Unknown, "{mode:?}: {error:?}");
            assert!(
                matches!(error.cause, Cause::Connection | Cause::Timeout),
                "{mode:?}: {error:?}"
            );
            assert_eq!(unknown.get(), before + 1, "{mode:?}");
            recovers(&engine, &slow(1)).await;
            assert_eq!(left(&engine, &slow(1)).await, 998, "{mode:?}: charged once");
        });
        drop(server);
    }
}

#[test]
fn a_store_that_can_not_be_reached_fails_at_once_and_is_found_again() {
    for mode in [RedisMode::Single, RedisMode::Cluster] {
        let (_server, proxy, engine, _) = proxied(mode);
        proxy.shut.store(true, Ordering::SeqCst);
        block_on(async {
            let start = clock::monotonic();
            for _ in 0..10 {
                let error = engine.take(&one(&slow(1))).await.unwrap_err();
                assert_eq!(error.ran, Execution::No, "{mode:?}: {error:?}");
            }
            assert!(start.elapsed() < DEADLINE, "{mode:?}: {:?}", start.elapsed());
            proxy.shut.store(false, Ordering::SeqCst);
            recovers(&engine, &slow(1)).await;
        });
    }
}

#[test]
fn a_frozen_server_costs_a_call_its_deadline_and_no_more() {
    let server = Server::start(&[]);
    let (engine, _) = engine(RedisSettings {
        deadline: TIGHT,
        ..settings(vec![server.address()], RedisMode::Single)
    });
    block_on(async {
        recovers(&engine, &slow(999)).await;
        engine.take(&one(&slow(1))).await.unwrap();
        server.signal("-STOP");
        let start = clock::monotonic();
        assert_eq!(
            engine.take(&one(&slow(1))).await,
            Err(EngineError { cause: Cause::Timeout, ran: Execution::Unknown })
        );
        assert!((TIGHT..TIGHT * 8).contains(&start.elapsed()), "{:?}", start.elapsed());
        server.signal("-CONT");
        recovers(&engine, &slow(1)).await;
        // The unanswered take ran when the server resumed: it counts, once.
        assert_eq!(left(&engine, &slow(1)).await, 998);
    });
}

#[test]
fn a_call_with_less_time_left_ends_then() {
    let server = Server::start(&[]);
    let (engine, metrics) = single(&server);
    block_on(async {
        recovers(&engine, &slow(999)).await;
        engine.take(&one(&slow(1))).await.unwrap();
        assert_eq!(
            engine.take_within(&one(&slow(1)), Duration::ZERO).await,
            Err(EngineError { cause: Cause::Timeout, ran: Execution::No })
        );
        assert_eq!(left(&engine, &slow(1)).await, 999, "nothing is sent when no time is left");
        let counted = metrics.counter(names::STORE_ERRORS, &["timeout"]).get();

        server.signal("-STOP");
        let start = clock::monotonic();
        assert_eq!(
            engine.take_within(&one(&slow(1)), TIGHT).await,
            Err(EngineError { cause: Cause::Timeout, ran: Execution::Unknown })
        );
        assert!((TIGHT..DEADLINE).contains(&start.elapsed()), "{:?}", start.elapsed());
        assert_eq!(metrics.counter(names::STORE_ERRORS, &["timeout"]).get(), counted + 1);
        assert_eq!(metrics.counter(names::TAKES_UNKNOWN, &[]).get(), 1);
        server.signal("-CONT");
        recovers(&engine, &slow(1)).await;
    });
}

#[test]
fn a_server_without_memory_refuses_takes_and_accepts_give_backs() {
    let server = Server::start(&[]);
    let (engine, metrics) = single(&server);
    block_on(async {
        recovers(&engine, &slow(999)).await;
        let taken = engine.take(&one(&cost(&slow(1), 5))).await.unwrap();
        let _: String = server.run("CONFIG SET maxmemory 1").unwrap();
        assert_eq!(
            engine.take(&one(&slow(1))).await,
            Err(EngineError { cause: Cause::OutOfMemory, ran: Execution::No })
        );
        engine.give_back(&one(&cost(&slow(1), 5)), taken.at_us).await.unwrap();
        let _: String = server.run("CONFIG SET maxmemory 0").unwrap();
        assert_eq!(left(&engine, &slow(1)).await, 1_000);
    });
    assert!(metrics.encode().contains("weir_store_errors_total{cause=\"out_of_memory\"} 1"));
}

#[test]
fn a_password_is_needed_where_the_server_wants_one() {
    let server = Server::start(&[]);
    let _: String = server.run("CONFIG SET requirepass p{}:@\"w").unwrap();
    let right = RedisSettings {
        password: Some(Secret("p{}:@\"w".into())),
        ..settings(vec![server.address()], RedisMode::Single)
    };
    block_on(async {
        let (engine_without, _) = single(&server);
        assert_eq!(
            engine_without.take(&one(&slow(1))).await,
            Err(EngineError { cause: Cause::NoPermission, ran: Execution::No })
        );
        let (engine_with, _) = engine(right);
        recovers(&engine_with, &slow(1)).await;
        assert!(engine_with.take(&one(&slow(1))).await.unwrap().admitted);
    });
}

#[test]
fn settings_that_can_not_work_are_named() {
    let error = |settings: RedisSettings| {
        Engine::build(&settings.into(), Clock::system(), &Metrics::new(1)).unwrap_err().setting
    };
    assert_eq!(
        error(settings(vec!["a:1".into(), "b".into()], RedisMode::Cluster)),
        "redis.nodes[1]"
    );
    assert_eq!(error(settings(vec![], RedisMode::Single)), "redis.nodes");
    let braces = RedisSettings {
        key_prefix: "{p}".into(),
        ..settings(vec!["a:1".into()], RedisMode::Single)
    };
    assert_eq!(error(braces), "redis.key_prefix");
}
