//! Watches the store while calls fail, and only then: finds a slot's new owner, and replaces a connection that will not recover.
//!
//! A frozen master answers nothing, and a timeout never makes redis-rs look for the slot's new owner; so a plain connection to any other node
//! asks every 100 ms, and only when the owners changed is a new cluster connection opened, aside, and put in place. The calls to other shards
//! go on on the old one until then.

use std::time::Duration;

use ::redis::aio::MultiplexedConnection;

use super::link::Link;
use super::opener::Conn;

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Looks go on for so long after the last failure.
const LOOK_FOR: Duration = Duration::from_secs(3);

/// Looks until no call has failed for a while.
pub(super) async fn run(link: &Link) {
    let mut probe = None;
    let mut turn = 0;
    while link.failed_within(LOOK_FOR) {
        tokio::time::sleep(LOOK_EVERY).await;
        // Without a connection the next call opens one.
        let Some((epoch, known)) = link.topology() else { continue };
        let Some(mut conn) = probe.take() else {
            probe = open_probe(link, &known.masters().map(ToOwned::to_owned).collect::<Vec<_>>(), turn).await;
            turn += 1;
            continue;
        };
        // A probe that fails is dropped; the next node is asked.
        let Ok(seen) = link.opener.look(&mut conn).await else { continue };
        probe = Some(conn);
        if seen.agrees(&known) && !link.all_failing() {
            continue;
        }
        match link.opener.open().await {
            Ok((conn, topology)) => {
                if link.replace(epoch, conn, topology) {
                    tracing::info!("opened a new connection to Redis");
                }
            }
            Err(error) => tracing::debug!(%error, "no new connection to Redis yet"),
        }
    }
}

/// A plain connection to one of the nodes, another one each turn.
async fn open_probe(link: &Link, masters: &[String], turn: usize) -> Option<MultiplexedConnection> {
    let mut nodes: Vec<String> = link.opener.nodes().collect();
    nodes.extend_from_slice(masters);
    nodes.sort();
    nodes.dedup();
    let node = nodes.get(turn % nodes.len().max(1))?;
    link.opener.open_node(node).await.ok()
}

/// Warns of settings of Redis that change what limits mean. Best effort: CONFIG may be forbidden.
pub(super) async fn warn_of_settings(conn: &mut Conn) {
    if matches!(conn, Conn::Cluster(_)) && conn.setting("cluster-require-full-coverage").await.contains("yes") {
        tracing::warn!("Redis has cluster-require-full-coverage yes: one lost shard stops them all; set it to no");
    }
    let policy = conn.setting("maxmemory-policy").await;
    if policy.contains("allkeys") {
        tracing::warn!(%policy, "Redis may evict counters when memory is short, which silently resets limits; use noeviction");
    }
}
