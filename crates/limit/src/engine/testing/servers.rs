//! Real Redis servers, single or as a cluster, that stop when dropped.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use crate::clock;

/// A port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Waits until `done`, for at most thirty seconds.
pub(crate) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let end = clock::monotonic() + Duration::from_secs(30);
    while !done() {
        assert!(clock::monotonic() < end, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A redis-server in a temporary folder, killed when it is dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
    pub(crate) bus_port: u16,
    _folder: tempfile::TempDir,
}

impl Server {
    /// One server for all tests running at the moment, stopped with the last of them (a static
    /// would never be dropped).
    pub(crate) fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let server = Arc::new(Self::start(&[]));
            *shared = Arc::downgrade(&server);
            server
        })
    }

    pub(crate) fn start(arguments: &[&str]) -> Self {
        // Another process may take the port before the server starts. The server then exits, and
        // another port is tried.
        (0..10)
            .find_map(|_| Self::try_start(arguments))
            .expect("redis-server starts: is it installed?")
    }

    fn try_start(arguments: &[&str]) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let (port, bus_port) = (free_port(), free_port());
        let child = Command::new("redis-server")
            .args([
                "--port",
                &port.to_string(),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
                "--daemonize",
                "no",
            ])
            .arg("--dir")
            .arg(folder.path())
            .args(
                arguments
                    .iter()
                    .map(|argument| argument.replace("BUS_PORT", &bus_port.to_string())),
            )
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        let mut server = Self { child, port, bus_port, _folder: folder };
        let mut ended = false;
        wait_until("the start of redis-server", || {
            ended = server.child.try_wait().unwrap().is_some();
            ended
                || server
                    .client()
                    .get_connection()
                    .is_ok_and(|mut conn| ::redis::cmd("PING").query::<String>(&mut conn).is_ok())
        });
        (!ended).then_some(server)
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn client(&self) -> ::redis::Client {
        ::redis::Client::open(format!("redis://{}", self.address())).unwrap()
    }

    /// Runs one command, by words.
    pub(crate) fn run<T: ::redis::FromRedisValue>(&self, words: &str) -> ::redis::RedisResult<T> {
        let mut conn = self.client().get_connection()?;
        let mut words = words.split(' ');
        let mut command = ::redis::cmd(words.next().unwrap());
        words.for_each(|word| _ = command.arg(word));
        command.query(&mut conn)
    }

    pub(crate) fn signal(&self, name: &str) {
        assert!(
            Command::new("kill")
                .args([name, &self.child.id().to_string()])
                .status()
                .unwrap()
                .success()
        );
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if it has exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Three masters, and the given number of replicas of the first.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Server>,
}

impl Cluster {
    pub(crate) fn start(replicas: usize) -> Self {
        Self::with(replicas, &[])
    }

    /// Starts a cluster with more arguments for the first node.
    pub(crate) fn with(replicas: usize, of_first: &[&str]) -> Self {
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
        let arguments_of =
            |index| if index == 0 { [&arguments, of_first].concat() } else { arguments.to_vec() };
        let nodes: Vec<Server> =
            (0..3 + replicas).map(|index| Server::start(&arguments_of(index))).collect();
        for (index, (node, slots)) in
            nodes.iter().zip(["0 5460", "5461 10922", "10923 16383"]).enumerate()
        {
            let _: String = node.run(&format!("CLUSTER ADDSLOTSRANGE {slots}")).unwrap();
            let _: String = node.run(&format!("CLUSTER SET-CONFIG-EPOCH {}", index + 1)).unwrap();
        }
        let first = &nodes[0];
        for node in &nodes[1..] {
            let _: String = node
                .run(&format!("CLUSTER MEET 127.0.0.1 {} {}", first.port, first.bus_port))
                .unwrap();
        }
        let sees = |node: &Server, text: &str| {
            node.run::<String>("CLUSTER INFO").is_ok_and(|info| info.contains(text))
        };
        let known = format!("cluster_known_nodes:{}\r", nodes.len());
        wait_until("the cluster's meeting", || {
            // Without cluster-require-full-coverage a node reports ok well before it knows every
            // slot.
            nodes.iter().all(|node| {
                sees(node, "cluster_state:ok")
                    && sees(node, "cluster_slots_ok:16384")
                    && sees(node, &known)
            })
        });
        let id: String = first.run("CLUSTER MYID").unwrap();
        for node in &nodes[3..] {
            wait_until("a replica's knowing its master", || {
                node.run::<String>(&format!("CLUSTER REPLICATE {id}")).is_ok()
            });
            wait_until("a replica's link", || {
                node.run::<String>("INFO replication")
                    .is_ok_and(|info| info.contains("master_link_status:up"))
            });
        }
        Self { nodes }
    }

    pub(crate) fn addresses(&self) -> Vec<String> {
        self.nodes.iter().map(Server::address).collect()
    }

    pub(crate) fn id(&self, index: usize) -> String {
        self.nodes[index].run("CLUSTER MYID").unwrap()
    }
}
