//! The configuration of docs/quotas.md with real Envoys: what their clients get is never more than
//! the limit has, and all of it can be had.

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::harness::process::{Service, run};
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;
use crate::harness::{eventually, free_address, python};

const PAGE: &str = include_str!("../../docs/quotas.md");
const ADMIN: &str = "\n[admin]\naddress = \"127.0.0.1:0\"\n";

fn block(language: &str) -> &'static str {
    let (_, rest) = PAGE.split_once(&format!("```{language}\n")).expect("a block");
    rest.split("```").next().expect("its end")
}

/// An Envoy that asks Weir for quotas.
struct Envoy {
    address: SocketAddr,
    _folder: TempDir,
    _process: Service,
}

impl Envoy {
    fn start(weir: SocketAddr, upstream: &Upstream, change: impl Fn(&str) -> String) -> Self {
        let (folder, address) = (tempfile::tempdir().expect("a folder"), free_address());
        let behind: SocketAddr = upstream.url()["http://".len()..].parse().expect("one");
        let config = change(block("envoy"))
            .replace("port_value: 8081", &format!("port_value: {}", weir.port()))
            .replace("port_value: 3000", &format!("port_value: {}", behind.port()))
            .replace("port_value: 8000", &format!("port_value: {}", address.port()));
        std::fs::write(folder.path().join("config.yaml"), config).expect("a file");
        let mut command = Command::new(python::program("envoy"));
        command.args(["-c", "config.yaml", "--concurrency", "2", "--base-id"]);
        command.arg(fastrand::u32(1..1_000_000).to_string());
        let process = Service::spawn(command.current_dir(folder.path()));
        eventually("Envoy listens", || {
            std::net::TcpStream::connect(address).map_err(|_| process.lines().join("\n"))
        });
        Self { address, _folder: folder, _process: process }
    }

    /// The statuses of so many requests of a customer, one after another.
    fn get(&self, customer: &str, count: usize) -> Vec<u16> {
        let mut command = Command::new("curl");
        command.args(["--silent", "--output", "/dev/null", "--noproxy", "*", "--max-time", "20"]);
        command.args(["--write-out", "%{http_code}\n", "--header"]);
        command.arg(format!("X-Customer: {customer}"));
        command.arg(format!("http://{}/[1-{count}]", self.address));
        let done = run(&mut command);
        done.out.lines().filter_map(|status| status.parse().ok()).collect()
    }
}

fn weir(change: impl Fn(&str) -> String) -> Weir {
    let config = block("toml").replacen("127.0.0.1:8081", "127.0.0.1:0", 1);
    Weir::start(&format!("{}{ADMIN}", change(&config)))
}

fn admitted(statuses: &[u16]) -> usize {
    assert!(statuses.iter().all(|status| [200, 429, 503].contains(status)), "{statuses:?}");
    statuses.iter().filter(|status| **status == 200).count()
}

#[test]
fn two_envoys_let_through_what_the_limit_has_and_no_more() {
    // A log for a day: what was let through stays counted.
    let weir = weir(|text| {
        text.replacen("\"sliding_window_counter\"", "\"sliding_window_log\"", 1).replacen(
            "period = \"1h\"",
            "period = \"1d\"",
            1,
        )
    });
    let upstream = Upstream::start();
    let deny = |text: &str| text.replacen("ALLOW_ALL", "DENY_ALL", 1);
    let envoys = [0, 1].map(|_| Envoy::start(weir.http, &upstream, deny));
    let began = Instant::now();
    let mut total = 0;
    // Envoy reports every five seconds, and gets a part of what is left each time: after half a
    // minute nearly all of it.
    while total < 550 {
        assert!(began.elapsed() < Duration::from_secs(120), "{total}");
        total += envoys.iter().map(|envoy| admitted(&envoy.get("acme", 100))).sum::<usize>();
        std::thread::sleep(Duration::from_millis(100));
    }
    for _ in 0..50 {
        total += envoys.iter().map(|envoy| admitted(&envoy.get("acme", 100))).sum::<usize>();
    }
    assert!(total <= 600 && upstream.count() == total as u64, "{total}");
}
