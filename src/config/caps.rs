//! What policies may use: the caps of `[policies.NAME]` and of `[server.policies]`, and where
//! compiled code is cached.

use super::reader::Table;
use super::settings::policies::{breaker, policy};
use super::settings::server::{pool, server};
use super::settings::{Is, Kind as _, Time, Whole};
use crate::policy::{BreakerSettings, CacheFolder, Caps, RuntimeSettings};

/// What a policy's instances may use, besides CPU time and memory.
pub(super) fn caps(table: &mut Table<'_>) -> Caps {
    Caps {
        start_cpu_time: table.read(&policy::START_CPU_TIME),
        module_bytes: table.read(&policy::MODULE_BYTES),
        answer_bytes: table.read(&policy::ANSWER_BYTES),
        log_lines: table.read(&policy::LOG_LINES),
        log_lines_per_second: table.read(&policy::LOG_LINES_PER_SECOND),
        breaker: breaker(table.section("breaker")),
    }
}

fn breaker(mut table: Table<'_>) -> BreakerSettings {
    let time = table.read(&breaker::TIME);
    let Is { kind: Time(range), default } = &breaker::TIME_MAX.kind;
    let time_max = table
        .item(&breaker::TIME_MAX)
        .and_then(|item| item.duration(time..=*range.end()))
        .unwrap_or(time.max(*default));
    let settings = BreakerSettings { failures: table.read(&breaker::FAILURES), time, time_max };
    table.finish();
    settings
}

/// `[server.policies]`, and where `[server]` wants compiled code to be cached.
pub(super) fn runtime(server: &mut Table<'_>, workers: usize) -> RuntimeSettings {
    let cache = server.item(&server::CACHE_FOLDER).map(|item| {
        let expected = server::CACHE_FOLDER.expected();
        match item.text(expected) {
            Some("off") | None => CacheFolder::Off,
            Some("") => {
                item.wrong(expected);
                CacheFolder::Off
            }
            Some(folder) => CacheFolder::At(item.notes.folder.join(folder)),
        }
    });
    let mut table = server.section("policies");
    let settings = RuntimeSettings {
        instances: instances(&mut table, workers),
        // And one for the thread that builds a new configuration.
        unkept_instances: u32::try_from(workers).unwrap_or(u32::MAX).saturating_add(1),
        core_instances: table.read(&pool::CORE_INSTANCES),
        memories: table.read(&pool::MEMORIES),
        tables: table.read(&pool::TABLES),
        table_elements: table.read(&pool::TABLE_ELEMENTS),
        handles: table.read(&pool::HANDLES),
        stack_bytes: table.read(&pool::STACK),
        cache: cache.unwrap_or(CacheFolder::Usual),
        cache_bytes: server.read(&server::CACHE_BYTES),
    };
    table.finish();
    settings
}

/// At least one for each worker, as each may run a guest.
fn instances(table: &mut Table<'_>, workers: usize) -> u32 {
    let Is { kind: Whole(range), default } = &pool::INSTANCES.kind;
    let min = u32::try_from(workers).unwrap_or(u32::MAX).max(*range.start());
    let written = table.item(&pool::INSTANCES);
    written.and_then(|item| Whole(min..=*range.end()).read(&item)).unwrap_or(*default)
}
