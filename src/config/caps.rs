//! What policies may use: the caps of `[policies.NAME]` and of `[server.policies]`, and where
//! compiled code is cached.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::reader::Table;
use crate::policy::{CacheFolder, Caps, RuntimeSettings};

/// Starting may parse a large configuration, and a request may have to wait for it.
const START_CPU_TIME: RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_secs(60);
/// Read into memory whole.
const MODULE_BYTES: RangeInclusive<u64> = 1 << 10..=256 << 20;
/// The low end is enough for a plan with one limit.
const ANSWER_BYTES: RangeInclusive<u64> = 16 << 10..=16 << 20;
/// With 0 it may log nothing.
const LOG_LINES: RangeInclusive<u64> = 0..=1_000;
const LOG_LINES_PER_SECOND: RangeInclusive<u64> = 0..=10_000;
/// With 0 it is never stopped.
const BREAKER_FAILURES: RangeInclusive<u64> = 0..=1_000_000;
const BREAKER_TIME: RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_secs(3_600);

/// Each instance reserves some GiB of address space, of which a process has 128 TiB.
const INSTANCES: RangeInclusive<u64> = 1..=10_000;
const CORE_INSTANCES: RangeInclusive<u64> = 1..=1_000;
const MEMORIES: RangeInclusive<u64> = 1..=100;
const TABLES: RangeInclusive<u64> = 1..=1_000;
const TABLE_ELEMENTS: RangeInclusive<u64> = 100..=1_000_000;
const HANDLES: RangeInclusive<u64> = 0..=1_000_000;
/// Each worker has a stack that is larger by this.
const STACK_BYTES: RangeInclusive<u64> = 64 << 10..=16 << 20;
const CACHE_BYTES: RangeInclusive<u64> = 1 << 20..=1 << 40;

/// What a policy's instances may use, besides CPU time and memory.
pub(super) fn caps(table: &mut Table<'_>) -> Caps {
    let mut caps = Caps::default();
    table.duration("start_cpu_time", START_CPU_TIME, &mut caps.start_cpu_time);
    table.size("module_bytes", MODULE_BYTES, &mut caps.module_bytes);
    table.size("answer_bytes", ANSWER_BYTES, &mut caps.answer_bytes);
    table.number("log_lines", LOG_LINES, &mut caps.log_lines);
    table.number("log_lines_per_second", LOG_LINES_PER_SECOND, &mut caps.log_lines_per_second);
    let mut breaker = table.section("breaker");
    breaker.number("failures", BREAKER_FAILURES, &mut caps.breaker.failures);
    breaker.duration("time", BREAKER_TIME, &mut caps.breaker.time);
    caps.breaker.time_max = caps.breaker.time_max.max(caps.breaker.time);
    let time = caps.breaker.time;
    breaker.duration("time_max", time..=*BREAKER_TIME.end(), &mut caps.breaker.time_max);
    breaker.finish();
    caps
}

/// `[server.policies]`, and where `[server]` wants compiled code to be cached.
pub(super) fn runtime(server: &mut Table<'_>, workers: usize) -> RuntimeSettings {
    let mut settings = RuntimeSettings::default();
    if let Some(item) = server.take("cache_folder") {
        settings.cache = match item.text("a folder, or \"off\"") {
            Some("off") => CacheFolder::Off,
            Some("") => {
                item.wrong("a folder, or \"off\"");
                CacheFolder::Off
            }
            Some(folder) => CacheFolder::At(item.notes.folder.join(folder)),
            None => CacheFolder::Off,
        };
    }
    server.size("cache_bytes", CACHE_BYTES, &mut settings.cache_bytes);
    let mut table = server.section("policies");
    // Each worker may run a guest.
    let instances = (workers as u64).max(*INSTANCES.start())..=*INSTANCES.end();
    table.number("instances", instances, &mut settings.instances);
    table.number("core_instances", CORE_INSTANCES, &mut settings.core_instances);
    table.number("memories", MEMORIES, &mut settings.memories);
    table.number("tables", TABLES, &mut settings.tables);
    table.number("table_elements", TABLE_ELEMENTS, &mut settings.table_elements);
    table.number("handles", HANDLES, &mut settings.handles);
    table.size("stack", STACK_BYTES, &mut settings.stack_bytes);
    table.finish();
    settings
}
