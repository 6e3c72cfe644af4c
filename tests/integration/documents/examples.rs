//! The programs in `examples/`, run as a reader would run them.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use weir::limit::{CounterName, Limiter};

use crate::harness::cluster::Cluster;
use crate::harness::{eventually, eventually_async};

#[path = "../../../examples/children.rs"]
#[allow(dead_code, reason = "their `main` is not called")]
mod children;
#[path = "../../../examples/embed.rs"]
#[allow(dead_code, reason = "their `main` is not called")]
mod embed;
#[path = "../../../crates/limit/examples/limiter.rs"]
#[allow(dead_code, reason = "their `main` is not called")]
mod limiter;
#[path = "../../../examples/pictures.rs"]
#[allow(dead_code, reason = "their `main` is not called")]
mod pictures;
#[path = "../../../examples/sliding_error.rs"]
#[allow(dead_code, reason = "their `main` is not called")]
mod sliding_error;

/// The picture in docs/children.md is of what the limiter does now, and shows what the page says.
#[tokio::test]
async fn three_children_get_what_is_assured_and_share_the_rest() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/pictures/children.svg");
    let kept = std::fs::read_to_string(path).unwrap();
    assert!(kept == children::draw().await.unwrap(), "cargo run --example children");
    let bursts: u64 = children::CHILDREN.iter().map(|child| child.assured / 10).sum();
    for (second, passed) in (0_u32..).zip(children::passed().await.unwrap()) {
        for (child, passed) in children::CHILDREN.iter().zip(passed) {
            // All but its burst, if nothing was asked for at the end of a second.
            let own = child.assured - child.assured / 10;
            let least = if child.active.contains(&second) { own } else { 0 };
            assert!(passed >= least, "second {second}: {passed} of {least}");
        }
        let all: u64 = passed.iter().sum();
        let most = children::WHOLE + children::WHOLE / 10 + bursts;
        assert!(all <= most, "second {second}: {passed:?}");
    }
}

#[test]
fn a_program_serves_through_weir_on_a_socket_of_its_own() {
    let statuses = embed::run().unwrap();
    let (ok, refused) = ("HTTP/1.1 200 OK", "HTTP/1.1 429 Too Many Requests");
    assert_eq!(
        statuses,
        [ok, ok, ok, refused, ok],
        "three of four, and the fourth after the quota was raised"
    );
}

/// A hundred mails to send, and ten to a recipient that does not exist.
fn outbox(folder: &Path) -> limiter::Mailbox {
    let mails = (0..100)
        .map(|number| format!("customer-{number}"))
        .chain((0..10).map(|number| format!("nobody-{number}")));
    limiter::Mailbox::open(folder).unwrap().filled(mails).unwrap()
}

/// The count of the current hour.
async fn counted(limiter: &Limiter) -> String {
    let name = CounterName {
        scope: "mail".into(),
        limit: "hourly".into(),
        key: "everybody".into(),
        tag: None,
    };
    let found = limiter.find(&name).await.unwrap();
    let Some(counter) = found.first() else { return String::new() };
    // This is also printed for an hour that is over: "0 used (the window from .. to .., with 100,
    // is over)".
    let state = counter.state(None);
    let over = state.split_once(", with ").and_then(|(_, rest)| rest.split(',').next());
    over.unwrap_or_else(|| state.split(" used").next().unwrap()).to_owned()
}

/// Waits until all mails that this hour allows are sent. One unit of the hundred is held by a
/// worker that is stuck.
async fn until_the_hour_is_full(mailbox: &limiter::Mailbox, limiter: &Limiter) {
    eventually_async("an hour's mails", async || {
        // Undeliverable mails may be left for the next hour: they count for nothing.
        let seen = (mailbox.names("sent").unwrap().len(), counted(limiter).await);
        if seen == (99, "100".to_owned()) { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;
}

/// Exactly a hundred were sent, each once. The last one was sent in the second hour, in which
/// nothing else is taken.
async fn assert_all_are_sent(mailbox: &limiter::Mailbox, limiter: &Limiter) {
    assert_eq!(
        (mailbox.names("sent").unwrap().len(), mailbox.names("returned").unwrap().len()),
        (100, 10)
    );
    assert_eq!(mailbox.names("outbox").unwrap(), [] as [&str; 0], "none is lost");
    assert_eq!(counted(limiter).await, "1", "no drift");
}

#[tokio::test]
async fn workers_in_one_process_send_exactly_a_hundred_though_one_is_killed_with_a_mail_in_hand() {
    let folder = tempfile::tempdir().unwrap();
    let mailbox = outbox(folder.path());
    let limiter = Arc::new(limiter::limiter(&limiter::in_memory()).unwrap());
    let pace = limiter::Pace { quota: 100, hour: Duration::from_secs(4), send: Duration::ZERO };
    let never = limiter::Pace { send: Duration::from_secs(3_600), ..pace };
    let stuck = tokio::spawn(limiter::worker(Arc::clone(&limiter), never, mailbox.clone()));
    eventually_async("one in hand", async || {
        if counted(&limiter).await == "1" { Ok(()) } else { Err("not yet".into()) }
    })
    .await;
    let workers: Vec<_> = (0..3)
        .map(|_| tokio::spawn(limiter::worker(Arc::clone(&limiter), pace, mailbox.clone())))
        .collect();
    until_the_hour_is_full(&mailbox, &limiter).await;
    stuck.abort();
    let (mut sent, mut waited) = (0, 0);
    for worker in workers {
        let report = worker.await.unwrap().unwrap();
        sent += report.sent;
        waited += report.waited;
    }
    assert!(sent == 100 && waited > 0, "{sent} sent, {waited} waits");
    assert_all_are_sent(&mailbox, &limiter).await;
}

/// `cargo run --example limiter`, built with the features of the whole workspace, like the tests,
/// so that no dependency is built again.
fn program() -> PathBuf {
    let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(["build", "--quiet", "--workspace", "--example", "limiter", "--profile", profile])
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    assert!(cargo.status().expect("cargo").success());
    // Next to `deps`, where this test's own program is.
    let folder = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("examples");
    folder.join("limiter")
}

/// A worker's process; killed when dropped.
struct Worker(Child);

impl Worker {
    fn start(program: &Path, folder: &Path, nodes: &[SocketAddr], send_ms: u64) -> Self {
        let nodes: Vec<String> = nodes.iter().map(SocketAddr::to_string).collect();
        let mut command = Command::new(program);
        command.arg("--outbox").arg(folder).args([
            "--cluster",
            &nodes.join(","),
            "--hour-ms",
            "8000",
        ]);
        Self(
            command
                .args(["--send-ms", &send_ms.to_string()])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap(),
        )
    }

    /// Its next line with this prefix.
    fn says(&mut self, what: &str) -> String {
        let lines = BufReader::new(self.0.stdout.take().unwrap()).lines().map_while(Result::ok);
        lines
            .into_iter()
            .find(|line| line.starts_with(what))
            .unwrap_or_else(|| panic!("it never said {what:?}"))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn workers_in_many_processes_on_one_cluster_send_exactly_a_hundred_though_one_is_killed_with_a_mail_in_hand()
 {
    let program = program();
    let (folder, cluster) = (tempfile::tempdir().unwrap(), Cluster::start());
    let mailbox = outbox(folder.path());
    let nodes: Vec<String> = cluster.addresses().iter().map(SocketAddr::to_string).collect();
    let looks = limiter::limiter(&limiter::on_redis(
        weir::engine::RedisMode::Cluster,
        nodes.iter().map(String::as_str),
    ))
    .unwrap();
    let mut stuck = Worker::start(&program, folder.path(), &cluster.addresses(), 3_600_000);
    stuck.says("taken for ");
    let mut workers: Vec<Worker> =
        (0..3).map(|_| Worker::start(&program, folder.path(), &cluster.addresses(), 0)).collect();
    until_the_hour_is_full(&mailbox, &looks).await;
    // Like `kill -9`: nothing of it is given back.
    drop(stuck);
    for worker in &mut workers {
        assert!(worker.0.try_wait().unwrap().is_none(), "it waits for the next hour");
    }
    for worker in &mut workers {
        let status = eventually("its end", || {
            worker.0.try_wait().unwrap().ok_or_else(|| "it runs".to_owned())
        });
        assert!(status.success(), "{status}");
    }
    assert_all_are_sent(&mailbox, &looks).await;
    assert_eq!(cluster.keys_without_lifetime(), [] as [&str; 0]);
}
