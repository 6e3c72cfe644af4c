//! Tries whether the store can count for this process, with counters that no request has: for an
//! operator who asks before anything is served.

use std::sync::Arc;

use weir_algorithms::{Every, ROWS, Written};

use super::prepared::{self, CellRequest};
use super::shared::Shared;
use super::{ProbeError, Scope};
use crate::engine::{Cell, Cells, EngineError, Key, new_member};
use crate::plan::{Algorithm, Limit, OnStoreError, Plan};

/// The scope of these counters. No policy has it: [`Scope::name_of`] writes an `@` otherwise.
const SCOPE: &str = "@check";
/// The period of these counters, in milliseconds: what is not deleted soon expires.
const PERIOD_MS: u64 = 1_000;

/// Takes a unit of a limit that counts as `algorithm` does, gives it back and deletes the counter,
/// on each shard.
pub(super) async fn probe(shared: &Arc<Shared>, algorithm: &Algorithm) -> Result<(), ProbeError> {
    let scope = Arc::new(Scope::new(SCOPE.into(), SCOPE.into(), OnStoreError::Deny, false));
    let limit = Limit::new("probe", format!("{:032x}", new_member()), small(algorithm));
    // Its numbers are in range, as those of the configuration are.
    let Ok(plan) = Plan::new(vec![limit.clone()]) else { return Ok(()) };
    let now_us = if limit.algorithm.is_dated() { shared.clock.wall_us() } else { 0 };
    let request = CellRequest { cost: 1, member: new_member(), now_us };
    let cell = prepared::with(shared, &scope, &plan, |prepared| {
        prepared.cell(shared, &scope, (&limit, 0), request)
    });
    for (node, tag) in shared.engine.tags() {
        let key = Key { tag, ..cell.key.clone() };
        let counted = count(shared, &limit, Cell { key, ..cell.clone() }).await;
        counted.map_err(|error| ProbeError { node, error })?;
    }
    Ok(())
}

/// The same algorithm with one unit and a short period; an operator's script as it is.
fn small(algorithm: &Algorithm) -> Algorithm {
    let written = Written {
        quota: Some(1),
        period_ms: Some(PERIOD_MS),
        max_delay_ms: Some(0),
        calendar: Some(Every::Hour),
        ..Written::default()
    };
    let row = ROWS.iter().find(|row| row.name == algorithm.name());
    row.and_then(|row| (row.read)(&written)).unwrap_or_else(|| algorithm.clone())
}

async fn count(shared: &Shared, limit: &Limit, mut cell: Cell) -> Result<(), EngineError> {
    let engine = &shared.engine;
    let one = |cell: &Cell| Cells::from_iter([cell.clone()]);
    let mut taken = engine.take(&one(&cell)).await?;
    if taken.cells.iter().any(|reply| reply.outside) {
        cell.numbers = shared.numbers(&shared.counting(limit), taken.at_us as i64);
        taken = engine.take(&one(&cell)).await?;
    }
    if limit.algorithm.holds() {
        engine.renew(&one(&cell)).await?;
    }
    let given_back = engine.give_back(&one(&cell), taken.at_us).await;
    given_back.and(engine.reset(&cell.key).await)
}
