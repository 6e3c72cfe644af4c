//! Gives units back that no grant of this process stands for: a caller says that what it was
//! charged for, by whichever process and whenever, did not happen. Decides nothing.

use std::sync::Arc;

use super::Scope;
use super::prepared::{self, CellRequest};
use super::shared::Shared;
use crate::engine::{Cell, Cells, EngineError};
use crate::plan::Plan;

/// Gives back the cost of each limit of `plan` as if it had just been taken: a window gets it back
/// only if it is the current one, and nothing gets more than it has given. One limit after another.
pub(super) async fn give_back(
    shared: &Arc<Shared>,
    scope: &Arc<Scope>,
    plan: &Plan,
) -> Result<(), EngineError> {
    for (index, limit) in plan.limits().iter().enumerate() {
        if limit.cost == 0 || limit.algorithm.refuses_all() {
            continue;
        }
        let now_us = if limit.algorithm.is_dated() { shared.clock.wall_us() } else { 0 };
        let request = CellRequest { cost: 0, member: 0, now_us };
        let cell = prepared::with(shared, scope, plan, |prepared| {
            prepared.cell(shared, scope, (limit, index), request)
        });
        // A look says what time it is at the store.
        let looked = shared.engine.take(&Cells::from_iter([cell.clone()])).await?;
        let numbers = if looked.cells.iter().any(|reply| reply.outside) {
            shared.numbers(&shared.counting(limit), looked.at_us as i64)
        } else {
            cell.numbers
        };
        let cells = Cells::from_iter([Cell { cost: limit.cost, numbers, ..cell }]);
        shared.engine.give_back(&cells, looked.at_us).await?;
    }
    Ok(())
}
