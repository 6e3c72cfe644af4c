//! What the engine's tests share: the programs, cells, a store whose time a test holds (in memory, or a real Redis), and real servers that
//! stop when they are dropped.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use super::driver::{self, Script, Verb};
use super::model::Model;
use super::{Cell, Cells, Embedded, EmbeddedSettings, Key, Kind, Program, Space, Taken};
use crate::clock::{self, Clock};
use crate::telemetry::Metrics;

pub(super) static FIXED_WINDOW: Program =
    Program { name: "fixed_window", text: include_str!("../../lua/fixed_window.lua"), kind: Kind::Numbers, state: 2, numbers: 4 };
pub(super) static TOKEN_BUCKET: Program =
    Program { name: "token_bucket", text: include_str!("../../lua/token_bucket.lua"), kind: Kind::Numbers, state: 3, numbers: 3 };
pub(super) static GCRA: Program =
    Program { name: "gcra", text: include_str!("../../lua/gcra.lua"), kind: Kind::Numbers, state: 2, numbers: 3 };
pub(super) static ALL: [&Program; 3] = [&FIXED_WINDOW, &TOKEN_BUCKET, &GCRA];

pub(super) const SECOND_US: u64 = 1_000_000;
/// Tests with a held time begin here, in 2039: Redis' own clock must not expire what they write.
pub(super) const START_US: u64 = 2_200_000_000_000_000;

/// A cell of cost 1 in microseconds, under tag 1 and a key of its own name.
pub(super) fn cell(program: &'static Program, name: &str, quota: u64, period_us: u64, burst: u64) -> Cell {
    let digest = name.bytes().fold(7_u128, |digest, byte| digest.wrapping_mul(0x0100_0000_01b3).wrapping_add(byte.into()));
    let space = Arc::new(Space { text: format!("test/{name}/{}", program.name), digest });
    let key = Key { tag: 1, key: 2, space };
    Cell { program, key, unit_us: 1, shadow: false, cost: 1, numbers: [quota as i64, period_us as i64, burst as i64, 0, 0, 0], member: 0 }
}

pub(super) fn cost(cell: &Cell, cost: u64) -> Cell {
    Cell { cost, ..cell.clone() }
}

pub(super) fn one(cell: &Cell) -> Cells {
    Cells::from_iter([cell.clone()])
}

/// A store whose time a test holds.
pub(super) enum Store {
    Model(Model),
    Embedded(Box<Embedded>, Clock),
    /// A real Redis, under a prefix of its own, with the driver's text but for its way to ask for the time.
    Redis {
        conn: Box<::redis::Connection>,
        prefix: String,
        _server: Arc<Server>,
    },
}

/// A store and its time.
pub(super) struct Timed {
    pub(super) store: Store,
    pub(super) now_us: u64,
}

impl Timed {
    pub(super) fn model() -> Self {
        Self { store: Store::Model(Model::default()), now_us: START_US }
    }

    pub(super) fn embedded() -> Self {
        let clock = Clock::virtual_at(START_US as i64);
        let settings = EmbeddedSettings { keys_max: 1_000_000 };
        let embedded = Embedded::new(&settings, clock.clone(), &Metrics::new(1)).remembering();
        Self { store: Store::Embedded(Box::new(embedded), clock), now_us: START_US }
    }

    pub(super) fn redis() -> Self {
        let server = Server::shared();
        let conn = server.client().get_connection().unwrap();
        let prefix = format!("t{:x}", fastrand::u64(..));
        Self { store: Store::Redis { conn: Box::new(conn), prefix, _server: server }, now_us: START_US }
    }

    /// Both engines.
    pub(super) fn engines() -> [(&'static str, Self); 2] {
        [("embedded", Self::embedded()), ("redis", Self::redis())]
    }

    pub(super) fn step(&mut self, us: i64) {
        self.now_us = self.now_us.checked_add_signed(us).unwrap();
    }

    pub(super) fn take(&mut self, cells: &Cells) -> Taken {
        let now_us = self.now_us;
        match &mut self.store {
            Store::Model(model) => model.take(cells, now_us),
            Store::Embedded(embedded, clock) => {
                clock.set(now_us as i64);
                embedded.take(cells).unwrap()
            }
            Store::Redis { conn, prefix, .. } => {
                let answer = run(conn, prefix, Verb::Take, cells, now_us, 0);
                super::redis::taken(&answer, cells.len()).unwrap()
            }
        }
    }

    pub(super) fn give_back(&mut self, cells: &Cells, taken_at_us: u64) {
        let now_us = self.now_us;
        match &mut self.store {
            Store::Model(model) => model.give_back(cells, now_us, taken_at_us),
            Store::Embedded(embedded, clock) => {
                clock.set(now_us as i64);
                embedded.give_back(cells, taken_at_us).unwrap();
            }
            Store::Redis { conn, prefix, .. } => _ = run(conn, prefix, Verb::GiveBack, cells, now_us, taken_at_us),
        }
    }

    /// Takes one cell; whether it was admitted.
    pub(super) fn fits(&mut self, cell: &Cell) -> bool {
        self.take(&one(cell)).admitted
    }

    /// Takes until it is refused; how many were admitted.
    pub(super) fn drain(&mut self, cell: &Cell) -> u64 {
        (0..).take_while(|_| self.fits(cell)).count() as u64
    }

    /// What a look (cost 0) says is left.
    pub(super) fn left(&mut self, cell: &Cell) -> u64 {
        self.take(&one(&cost(cell, 0))).cells[0].remaining
    }
}

fn run(conn: &mut ::redis::Connection, prefix: &str, verb: Verb, cells: &Cells, now_us: u64, taken_at_us: u64) -> ::redis::Value {
    let script = Script::with_time(verb, cells, "local us = tonumber(ARGV[#ARGV])\n");
    let ask = |first: &str, second: &str| {
        let mut command = ::redis::cmd(first);
        command.arg(second).arg(cells.len());
        cells.iter().for_each(|cell| _ = command.arg(cell.key.text(prefix)));
        cells.iter().for_each(|cell| _ = command.arg(driver::argument(verb, cell, taken_at_us).as_slice()));
        command.arg(now_us);
        command
    };
    match ask("EVALSHA", &script.sha).query(conn) {
        Err(error) if error.code() == Some("NOSCRIPT") => ask("EVAL", &script.text).query(conn).unwrap(),
        other => other.unwrap(),
    }
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Waits until `done`, for at most thirty seconds.
pub(super) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let end = clock::monotonic() + Duration::from_secs(30);
    while !done() {
        assert!(clock::monotonic() < end, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A redis-server in a temporary folder, killed when it is dropped.
pub(super) struct Server {
    child: Child,
    pub(super) port: u16,
    pub(super) bus_port: u16,
    _folder: tempfile::TempDir,
}

impl Server {
    /// One for all tests that run just now, stopped with the last of them (a static would never be dropped).
    pub(super) fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let server = Arc::new(Self::start(&[]));
            *shared = Arc::downgrade(&server);
            server
        })
    }

    pub(super) fn start(arguments: &[&str]) -> Self {
        // Somebody may take the port between the look and the start: then the server ends, and another port is tried.
        (0..10).find_map(|_| Self::try_start(arguments)).expect("redis-server starts: is it installed?")
    }

    fn try_start(arguments: &[&str]) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let (port, bus_port) = (free_port(), free_port());
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--daemonize", "no"])
            .arg("--dir")
            .arg(folder.path())
            .args(arguments.iter().map(|argument| argument.replace("BUS_PORT", &bus_port.to_string())))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        let mut server = Self { child, port, bus_port, _folder: folder };
        let mut ended = false;
        wait_until("the start of redis-server", || {
            ended = server.child.try_wait().unwrap().is_some();
            ended || server.client().get_connection().is_ok_and(|mut conn| ::redis::cmd("PING").query::<String>(&mut conn).is_ok())
        });
        (!ended).then_some(server)
    }

    pub(super) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(super) fn client(&self) -> ::redis::Client {
        ::redis::Client::open(format!("redis://{}", self.address())).unwrap()
    }

    /// Runs one command, by words.
    pub(super) fn run<T: ::redis::FromRedisValue>(&self, words: &str) -> ::redis::RedisResult<T> {
        let mut conn = self.client().get_connection()?;
        let mut words = words.split(' ');
        let mut command = ::redis::cmd(words.next().unwrap());
        words.for_each(|word| _ = command.arg(word));
        command.query(&mut conn)
    }

    pub(super) fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Three masters, and as many replicas of the first as asked for.
pub(super) struct Cluster {
    pub(super) nodes: Vec<Server>,
}

impl Cluster {
    pub(super) fn start(replicas: usize) -> Self {
        let arguments = [
            "--cluster-enabled",
            "yes",
            "--cluster-port",
            "BUS_PORT",
            "--cluster-node-timeout",
            "2000",
            "--cluster-require-full-coverage",
            "no",
            "--cluster-replica-validity-factor",
            "0",
            "--repl-ping-replica-period",
            "1",
        ];
        let nodes: Vec<Server> = (0..3 + replicas).map(|_| Server::start(&arguments)).collect();
        for (index, (node, slots)) in nodes.iter().zip(["0 5460", "5461 10922", "10923 16383"]).enumerate() {
            let _: String = node.run(&format!("CLUSTER ADDSLOTSRANGE {slots}")).unwrap();
            let _: String = node.run(&format!("CLUSTER SET-CONFIG-EPOCH {}", index + 1)).unwrap();
        }
        let first = &nodes[0];
        for node in &nodes[1..] {
            let _: String = node.run(&format!("CLUSTER MEET 127.0.0.1 {} {}", first.port, first.bus_port)).unwrap();
        }
        let sees = |node: &Server, text: &str| node.run::<String>("CLUSTER INFO").is_ok_and(|info| info.contains(text));
        let known = format!("cluster_known_nodes:{}\r", nodes.len());
        wait_until("the cluster's meeting", || {
            // Without full coverage a node calls itself well before it knows every slot.
            nodes.iter().all(|node| sees(node, "cluster_state:ok") && sees(node, "cluster_slots_ok:16384") && sees(node, &known))
        });
        let id: String = first.run("CLUSTER MYID").unwrap();
        for node in &nodes[3..] {
            wait_until("a replica's knowing its master", || node.run::<String>(&format!("CLUSTER REPLICATE {id}")).is_ok());
            wait_until("a replica's link", || {
                node.run::<String>("INFO replication").is_ok_and(|info| info.contains("master_link_status:up"))
            });
        }
        Self { nodes }
    }

    pub(super) fn addresses(&self) -> Vec<String> {
        self.nodes.iter().map(Server::address).collect()
    }

    pub(super) fn id(&self, index: usize) -> String {
        self.nodes[index].run("CLUSTER MYID").unwrap()
    }
}
