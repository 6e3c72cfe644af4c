//! Charges on Redis what was admitted in this process while a shard was away (`ledger`).

use std::sync::Arc;

use smallvec::SmallVec;

use super::ledger::RedisRefund;
use super::shared::Shared;
use crate::engine::{Cells, EngineError, Execution, new_member};

/// Counters after which an attempt lets other tasks run.
const YIELD_EVERY: usize = 16;

/// A call to Redis has succeeded: charges what is owed, in a task. A shard that does not answer is
/// asked once an attempt.
pub(super) fn start(shared: &Arc<Shared>) {
    if !shared.ledger.owes() {
        return;
    }
    let Some(taken) = shared.ledger.begin() else { return };
    let running = AttemptGuard(Arc::clone(shared));
    tokio::spawn(async move {
        let shared = &running.0;
        let mut away: SmallVec<[usize; 4]> = SmallVec::new();
        for (nth, mut owed) in (1..).zip(taken) {
            let shard = shared.engine.shard_of(&owed.cell.key);
            if away.contains(&shard) {
                shared.ledger.put_back(owed);
            } else {
                owed.cell.member = new_member();
                match shared.engine.charge(&Cells::from_iter([owed.cell.clone()])).await {
                    Ok(charged) => give_back(shared, shared.ledger.charged(owed, &charged)).await,
                    Err(EngineError { ran: Execution::No, .. }) => {
                        away.push(shard);
                        shared.ledger.put_back(owed);
                    }
                    Err(EngineError { ran: Execution::Unknown, .. }) => {
                        away.push(shard);
                        shared.ledger.unknown(&owed);
                        shared.counters.failed.charge.inc();
                    }
                }
            }
            if nth % YIELD_EVERY == 0 {
                tokio::task::yield_now().await;
            }
        }
    });
}

/// Gives back on Redis what was given back here while it was charged there.
async fn give_back(shared: &Shared, back: Option<RedisRefund>) {
    let Some((cell, at_us)) = back else { return };
    if shared.engine.give_back(&Cells::from_iter([cell]), at_us).await.is_err() {
        shared.counters.failed.give_back.inc();
    }
}

/// An attempt. It is over however its task ends.
struct AttemptGuard(Arc<Shared>);

impl Drop for AttemptGuard {
    fn drop(&mut self) {
        self.0.ledger.end();
    }
}
