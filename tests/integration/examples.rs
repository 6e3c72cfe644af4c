//! The programs in `examples/`, run as a reader runs them: what they show is so.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use weir::limit::{CounterName, Limiter};

use crate::harness::cluster::Cluster;
use crate::harness::{eventually, eventually_async};

#[path = "../../examples/embed.rs"]
#[allow(dead_code, reason = "their `main` is not called")]
mod embed;
#[path = "../../examples/limiter.rs"]
#[allow(dead_code, reason = "their `main` is not called")]
mod limiter;
#[path = "../../examples/pictures.rs"]
#[allow(dead_code, reason = "their `main` is not called")]
mod pictures;
#[path = "../../examples/sliding_error.rs"]
#[allow(dead_code, reason = "their `main` is not called")]
mod sliding_error;

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

/// A hundred mails to send, and ten to nobody.
fn outbox(folder: &Path) -> limiter::Post {
    let mails = (0..100)
        .map(|number| format!("customer-{number}"))
        .chain((0..10).map(|number| format!("nobody-{number}")));
    limiter::Post::open(folder).unwrap().filled(mails).unwrap()
}

/// What the hour's counter holds.
async fn counted(limiter: &Limiter) -> String {
    let name = CounterName {
        scope: "mail".into(),
        limit: "hourly".into(),
        key: "everybody".into(),
        tag: None,
    };
    let found = limiter.find(&name).await.unwrap();
    let Some(counter) = found.first() else { return String::new() };
    // Also of an hour that is over: "0 used (the window from .. to .., with 100, is over)".
    let state = counter.state(None);
    let over = state.split_once(", with ").and_then(|(_, rest)| rest.split(',').next());
    over.unwrap_or_else(|| state.split(" used").next().unwrap()).to_owned()
}

/// Waits until all that can be sent in this hour is: of the hundred one unit is in the hand of a
/// worker that is stuck.
async fn until_the_hour_is_full(post: &limiter::Post, limiter: &Limiter) {
    eventually_async("an hour's mails", async || {
        // Mails to nobody may be left for the next hour: they count for nothing.
        let seen = (post.names("sent").unwrap().len(), counted(limiter).await);
        if seen == (99, "100".to_owned()) { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;
}

/// Exactly a hundred went out, each once; the last one in the second hour, of which nothing else is
/// taken.
async fn assert_all_are_sent(post: &limiter::Post, limiter: &Limiter) {
    assert_eq!(
        (post.names("sent").unwrap().len(), post.names("returned").unwrap().len()),
        (100, 10)
    );
    assert_eq!(post.names("outbox").unwrap(), [] as [&str; 0], "none is lost");
    assert_eq!(counted(limiter).await, "1", "no drift");
}

#[tokio::test]
async fn workers_in_one_process_send_exactly_a_hundred_though_one_is_killed_with_a_mail_in_hand() {
    let folder = tempfile::tempdir().unwrap();
    let post = outbox(folder.path());
    let limiter = Arc::new(limiter::limiter(&limiter::in_memory()).unwrap());
    let pace = limiter::Pace { quota: 100, hour: Duration::from_secs(4), send: Duration::ZERO };
    let never = limiter::Pace { send: Duration::from_secs(3_600), ..pace };
    let stuck = tokio::spawn(limiter::worker(Arc::clone(&limiter), never, post.clone()));
    eventually_async("one in hand", async || {
        if counted(&limiter).await == "1" { Ok(()) } else { Err("not yet".into()) }
    })
    .await;
    let workers: Vec<_> = (0..3)
        .map(|_| tokio::spawn(limiter::worker(Arc::clone(&limiter), pace, post.clone())))
        .collect();
    until_the_hour_is_full(&post, &limiter).await;
    stuck.abort();
    let (mut sent, mut waited) = (0, 0);
    for worker in workers {
        let report = worker.await.unwrap().unwrap();
        sent += report.sent;
        waited += report.waited;
    }
    assert!(sent == 100 && waited > 0, "{sent} sent, {waited} waits");
    assert_all_are_sent(&post, &limiter).await;
}

/// `cargo run --example limiter`, built as the tests are: with the features of the whole workspace,
/// so that no dependency is built again.
fn program() -> PathBuf {
    let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(["build", "--quiet", "--workspace", "--example", "limiter", "--profile", profile])
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    assert!(cargo.status().expect("cargo").success());
    // Beside `deps`, where this test's own program is.
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

    /// Its next line that begins so.
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
    let post = outbox(folder.path());
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
    until_the_hour_is_full(&post, &looks).await;
    // As `kill -9` does: nothing of it is given back.
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
    assert_all_are_sent(&post, &looks).await;
    assert_eq!(cluster.keys_without_lifetime(), [] as [&str; 0]);
}
