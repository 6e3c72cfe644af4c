//! Real Redis servers: one, or a cluster of masters. They end when dropped.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Hash slots of a cluster.
const SLOTS: usize = 16_384;
/// How long servers may take to start.
const START: Duration = Duration::from_secs(60);

/// One server, or the masters of a cluster.
pub(crate) struct Servers {
    nodes: Vec<(Child, u16)>,
    _folder: tempfile::TempDir,
}

impl Servers {
    pub(crate) fn start(masters: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let nodes = (0..masters).map(|_| {
            // Its bus has the port that is 10,000 greater.
            let port = fastrand::u16(12_000..32_000);
            let mut command = Command::new("redis-server");
            command
                .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
                .args(["--appendonly", "no", "--dir"])
                .arg(folder.path());
            if masters > 1 {
                let file = format!("nodes-{port}.conf");
                command.args(["--cluster-enabled", "yes", "--cluster-config-file", &file]);
            }
            let child = command.stdout(Stdio::null()).spawn().expect("redis-server is installed");
            (child, port)
        });
        let servers = Self { nodes: nodes.collect(), _folder: folder };
        for (_, port) in &servers.nodes {
            until("redis-server", || client(*port).get_connection().is_ok());
        }
        if masters > 1 {
            servers.join();
        }
        servers
    }

    /// Makes a cluster of the nodes, with as many slots each.
    fn join(&self) {
        let ask = |port: u16, words: &[String]| -> redis::RedisResult<redis::Value> {
            let mut conn = client(port).get_connection()?;
            let mut command = redis::cmd("CLUSTER");
            words.iter().for_each(|word| _ = command.arg(word));
            command.query(&mut conn)
        };
        let (count, first) = (self.nodes.len(), self.nodes[0].1);
        for (index, (_, port)) in self.nodes.iter().enumerate() {
            let slots = [SLOTS * index / count, SLOTS * (index + 1) / count - 1];
            let [from, to] = slots.map(|slot| slot.to_string());
            ask(*port, &["ADDSLOTSRANGE".into(), from, to]).unwrap();
            if index > 0 {
                ask(*port, &["MEET".into(), "127.0.0.1".into(), first.to_string()]).unwrap();
            }
        }
        for (_, port) in &self.nodes {
            until("the cluster", || {
                let info = ask(*port, &["INFO".into()]);
                let info = info.ok().and_then(|info| redis::from_redis_value::<String>(info).ok());
                info.is_some_and(|info| {
                    info.contains("cluster_state:ok")
                        && info.contains(&format!("cluster_known_nodes:{count}"))
                })
            });
        }
    }

    /// The ports, with commas between them.
    pub(crate) fn ports(&self) -> String {
        let ports: Vec<String> = self.nodes.iter().map(|(_, port)| port.to_string()).collect();
        ports.join(",")
    }

    /// A client of the first one.
    pub(crate) fn client(&self) -> redis::Client {
        client(self.nodes[0].1)
    }

    /// What each server has used so far.
    pub(crate) fn used(&self) -> Vec<Used> {
        self.nodes.iter().map(|(_, port)| used(*port)).collect()
    }
}

/// What a server has used since it began.
pub(crate) struct Used {
    /// Scripts that were run.
    pub(crate) calls: f64,
    /// Seconds of CPU.
    pub(crate) cpu_s: f64,
    /// Bytes that were received and sent.
    pub(crate) bytes: f64,
}

impl Drop for Servers {
    fn drop(&mut self) {
        for (child, _) in &mut self.nodes {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + START;
    while !holds() {
        assert!(Instant::now() < end, "{what} did not start");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn client(port: u16) -> redis::Client {
    redis::Client::open(format!("redis://127.0.0.1:{port}")).unwrap()
}

fn used(port: u16) -> Used {
    let mut conn = client(port).get_connection().unwrap();
    let info: String = redis::cmd("INFO").arg("everything").query(&mut conn).unwrap();
    let of = |name: &str| -> f64 {
        let line = info.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|value| value.trim().parse().ok()).unwrap_or(0.0)
    };
    let calls = info.lines().filter(|line| {
        ["cmdstat_evalsha:", "cmdstat_eval:"].iter().any(|name| line.starts_with(name))
    });
    let calls = calls
        .filter_map(|line| line.split_once("calls=")?.1.split(',').next()?.parse::<f64>().ok());
    Used {
        calls: calls.sum(),
        cpu_s: of("used_cpu_user:") + of("used_cpu_sys:"),
        bytes: of("total_net_input_bytes:") + of("total_net_output_bytes:"),
    }
}
