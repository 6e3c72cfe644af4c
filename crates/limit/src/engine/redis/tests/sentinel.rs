//! With Redis Sentinel: the master that the sentinels name, and the next one after a failover.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::super::super::testing::{FIXED_WINDOW, Server, cell, one, wait_until};
use super::{DEADLINE, block_on, engine};
use crate::engine::{Cells, Engine, RedisMode, RedisSettings, Secret, SentinelSettings};

const MASTER: &str = "counters";
const PASSWORD: &str = "of the sentinels";

/// A sentinel, killed when dropped.
struct Sentinel {
    child: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Sentinel {
    fn watching(master: &Server) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = super::super::super::testing::free_port();
        let file = folder.path().join("sentinel.conf");
        let text = format!(
            "port {port}\nbind 127.0.0.1\nrequirepass \"{PASSWORD}\"\n\
             sentinel sentinel-pass \"{PASSWORD}\"\n\
             sentinel monitor {MASTER} 127.0.0.1 {} 2\n\
             sentinel down-after-milliseconds {MASTER} 500\n\
             sentinel failover-timeout {MASTER} 3000\n",
            master.port
        );
        std::fs::write(&file, text).unwrap();
        let child = Command::new("redis-server")
            .arg(&file)
            .arg("--sentinel")
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let sentinel = Self { child, port, _folder: folder };
        wait_until("the start of a sentinel", || sentinel.fields().is_some());
        sentinel
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// What it knows about the master.
    fn fields(&self) -> Option<std::collections::BTreeMap<String, String>> {
        let url = format!("redis://:{}@{}", PASSWORD.replace(' ', "%20"), self.address());
        let mut conn = ::redis::Client::open(url).ok()?.get_connection().ok()?;
        ::redis::cmd("SENTINEL").arg("MASTER").arg(MASTER).query(&mut conn).ok()
    }

    /// Has the replica replace the master, which goes on meanwhile.
    fn failover(&self) {
        let url = format!("redis://:{}@{}", PASSWORD.replace(' ', "%20"), self.address());
        let mut conn = ::redis::Client::open(url).unwrap().get_connection().unwrap();
        let _: String =
            ::redis::cmd("SENTINEL").arg("FAILOVER").arg(MASTER).query(&mut conn).unwrap();
    }

    fn knows(&self, replicas: &str, others: &str) -> bool {
        self.fields().is_some_and(|fields| {
            fields["num-slaves"] == replicas && fields["num-other-sentinels"] == others
        })
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A master with a replica, and three sentinels.
struct SentinelSetup {
    master: Server,
    replica: Server,
    sentinels: Vec<Sentinel>,
}

impl SentinelSetup {
    fn start() -> Self {
        let master = Server::start(&[]);
        let port = master.port.to_string();
        let replica = Server::start(&["--replicaof", "127.0.0.1", &port]);
        let sentinels: Vec<Sentinel> = (0..3).map(|_| Sentinel::watching(&master)).collect();
        wait_until("sentinels that know each other and the replica", || {
            sentinels.iter().all(|sentinel| sentinel.knows("1", "2"))
        });
        Self { master, replica, sentinels }
    }

    fn await_replication(&self) {
        wait_until("the replica has the counter", || {
            self.replica.run::<i64>("DBSIZE").is_ok_and(|keys| keys == 1)
        });
    }

    fn settings(&self) -> RedisSettings {
        let sentinel = SentinelSettings {
            master: MASTER.into(),
            username: None,
            password: Some(Secret(PASSWORD.into())),
        };
        let nodes = self.sentinels.iter().map(Sentinel::address).collect();
        RedisSettings {
            sentinel: Some(sentinel),
            deadline: DEADLINE,
            ..RedisSettings::new(nodes, RedisMode::Sentinel)
        }
    }
}

fn limit() -> Cells {
    one(&cell(&FIXED_WINDOW, "sentinel", 1_000_000, 400 * 24 * 3_600_000_000, 0))
}

async fn taken(engine: &Engine) -> Option<u64> {
    engine.take(&limit()).await.ok().map(|taken| taken.cells[0].remaining)
}

#[test]
fn after_a_failover_counters_go_on_at_the_new_master() {
    let watched = SentinelSetup::start();
    let (engine, _) = engine(watched.settings());
    block_on(async {
        let first = taken(&engine).await.unwrap();
        assert_eq!(taken(&engine).await, Some(first - 1));
        assert_eq!(engine.ping().await, Ok(Vec::new()));
        watched.await_replication();
        // It hangs, as far as its clients and the sentinels can see, and comes back as a replica.
        watched.master.signal("-STOP");
        let began = crate::clock::monotonic();
        let next = loop {
            if let Some(next) = taken(&engine).await {
                break next;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "no new master");
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        // Replication is asynchronous, so the last ones may be missing.
        assert!(next < first && next >= first - 3, "{next} after {first}");
        assert_eq!(taken(&engine).await, Some(next - 1));
        watched.master.signal("-CONT");
        wait_until("the old master is a replica", || {
            let info = watched.master.run::<String>("INFO replication");
            info.is_ok_and(|info| info.contains("role:slave"))
        });
        assert_eq!(taken(&engine).await, Some(next - 2));
    });
}

#[test]
fn a_master_that_was_replaced_while_it_still_answers_is_left() {
    let watched = SentinelSetup::start();
    let (engine, _) = engine(watched.settings());
    block_on(async {
        let mut last = taken(&engine).await.unwrap();
        watched.await_replication();
        watched.sentinels[0].failover();
        let began = crate::clock::monotonic();
        // The sentinels cut its clients' connections.
        let is_master = || {
            let info = watched.replica.run::<String>("INFO replication");
            info.is_ok_and(|info| info.contains("role:master"))
        };
        while !is_master() {
            assert!(began.elapsed() < Duration::from_secs(60), "no failover");
            if let Some(next) = taken(&engine).await {
                last = next;
            }
        }
        let calls = |server: &Server| {
            let stats = server.run::<String>("INFO commandstats").unwrap_or_default();
            let line =
                stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).map(str::to_owned);
            line.unwrap_or_default()
        };
        // What the old master still counted after it was replaced is lost with it.
        let before = calls(&watched.replica);
        while calls(&watched.replica) == before {
            if let Some(next) = taken(&engine).await {
                last = next;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert!(began.elapsed() < Duration::from_secs(60), "no take at the new master");
        }
        assert!(taken(&engine).await.is_some_and(|next| next + 1_000 > last), "after {last}");
    });
}

#[test]
fn a_name_that_the_sentinels_do_not_know_is_no_master() {
    let watched = SentinelSetup::start();
    let mut settings = watched.settings();
    settings.sentinel.as_mut().unwrap().master = "another".into();
    let (engine, _) = engine(settings);
    block_on(async {
        let error = engine.take(&limit()).await.unwrap_err();
        assert_eq!(
            (error.cause, error.ran),
            (crate::engine::Cause::Cluster, crate::engine::Execution::No)
        );
        assert!(engine.ping().await.is_err());
    });
}
