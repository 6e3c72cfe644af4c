//! The faults of a soak, one in each piece.

use std::time::Duration;

use rustix::process::Signal;

use crate::harness::eventually;
use crate::load::Load;
use crate::rows::failover;
use crate::stage::Stage;

/// Decisions in a row that show that a shard serves.
const SERVES: usize = 10;
/// The shortest piece in which a replica can take over and the old master come back.
const FAILOVER_PIECE_MIN: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    Kill,
    Freeze,
    Failover,
    Flush,
    Cut,
    Reload,
}

impl Fault {
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "nothing",
            Self::Kill => "a master killed and started again",
            Self::Freeze => "a master frozen until its replica took over",
            Self::Failover => "a planned failover",
            Self::Flush => "SCRIPT FLUSH on every node",
            Self::Cut => "all connections to Redis cut",
            Self::Reload => "another configuration",
        }
    }
}

/// The faults of pieces of this length, in their order.
pub fn of(piece: Duration) -> &'static [Fault] {
    use Fault::{Cut, Failover, Flush, Freeze, Kill, None, Reload};
    if piece < FAILOVER_PIECE_MIN {
        return &[Flush, Reload, Cut];
    }
    &[None, Kill, Reload, Freeze, Flush, Failover, Cut]
}

/// Causes a fault, and waits until everything is as before. `number` is the piece's.
pub fn apply(fault: Fault, stage: &mut Stage, load: &Load, number: usize) {
    let shard = number % 3;
    let serves = || load.await_decided("the shard serves", SERVES, |target| target.shard == shard);
    match fault {
        Fault::None => {}
        Fault::Kill => {
            let master = master(stage, shard);
            stage.cluster.nodes[master].kill();
            taken_over(stage, shard, master);
            serves();
            stage.cluster.nodes[master].start_again();
            follows(stage, master);
        }
        Fault::Freeze => {
            let master = master(stage, shard);
            stage.cluster.nodes[master].signal(Signal::STOP);
            taken_over(stage, shard, master);
            serves();
            stage.cluster.nodes[master].signal(Signal::CONT);
            follows(stage, master);
        }
        Fault::Failover => {
            let next = 2 * shard + 3 - master(stage, shard);
            failover(stage, next);
        }
        Fault::Flush => on_each(stage, &["SCRIPT", "FLUSH"]),
        Fault::Cut => on_each(stage, &["CLIENT", "KILL", "TYPE", "normal"]),
        Fault::Reload => {
            for weir in &stage.proxies {
                let path = weir.folder().join("proxy.toml");
                let text = std::fs::read_to_string(path).expect("its configuration");
                let (from, to) = if text.contains("burst = 5") {
                    ("burst = 5", "burst = 6")
                } else {
                    ("burst = 6", "burst = 5")
                };
                weir.reload(&text.replacen(from, to, 1), "applied");
            }
        }
    }
}

fn on_each(stage: &Stage, command: &[&str]) {
    for node in &stage.cluster.nodes {
        // A connection that is cut is not there to answer.
        let _ = node.connect().command(command);
    }
}

/// The node that is a shard's master.
fn master(stage: &Stage, shard: usize) -> usize {
    if stage.leads(shard) { shard } else { shard + 3 }
}

/// Waits until the other node of a shard is its master.
fn taken_over(stage: &Stage, shard: usize, lost: usize) {
    let other = 2 * shard + 3 - lost;
    eventually("a replica takes over", || {
        if stage.leads(other) { Ok(()) } else { Err("it is still a replica".to_owned()) }
    });
}

/// Waits until a node is a replica that has everything.
fn follows(stage: &Stage, node: usize) {
    eventually("the old master follows", || {
        let info = stage.cluster.nodes[node].connect().ask(&["INFO", "replication"]).text();
        let follows = info.contains("role:slave") && info.contains("master_link_status:up");
        if follows { Ok(()) } else { Err(info) }
    });
}
