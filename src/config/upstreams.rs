//! `[upstreams.*]`. Whether an endpoint is one is checked by the room that connects to it.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::reader::{Item, Table};
use super::{NAMED_MAX, check_name};
use crate::upstream;

const ENDPOINTS_MAX: usize = 256;
const TIMEOUT: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(24 * 3_600);
const CONNECT_DEFAULT: Duration = Duration::from_secs(1);
const RESPONSE_HEADER_DEFAULT: Duration = Duration::from_secs(30);
const IDLE_DEFAULT: Duration = Duration::from_secs(60);
const POOL_IDLE_DEFAULT: usize = 64;
const POOL_IDLE: RangeInclusive<u64> = 0..=10_000;

pub(super) fn upstreams(root: &mut Table<'_>) -> Vec<upstream::Settings> {
    let table = root.section("upstreams");
    let named = table.named();
    if named.len() > NAMED_MAX {
        table.found(format!("{} upstreams", named.len()), format!("at most {NAMED_MAX}"));
    }
    named.into_iter().take(NAMED_MAX).filter_map(|(name, item)| upstream(name, &item)).collect()
}

fn upstream(name: String, item: &Item<'_>) -> Option<upstream::Settings> {
    check_name(&name, item);
    let mut table = item.table()?;
    let endpoints = table.need("endpoints", "an array of URLs, such as [\"http://127.0.0.1:9000\"]").map(|item| endpoints(&item));
    let mut timeouts = table.section("timeouts");
    let connect = timeouts.duration("connect", TIMEOUT, CONNECT_DEFAULT);
    let response_header = timeouts.duration("response_header", TIMEOUT, RESPONSE_HEADER_DEFAULT);
    let idle = timeouts.duration("idle", TIMEOUT, IDLE_DEFAULT);
    timeouts.finish();
    let pool_idle_per_worker = table.count("pool_idle_per_worker", POOL_IDLE, POOL_IDLE_DEFAULT);
    table.not_yet("protocol", "HTTP/2 to upstreams");
    table.finish();
    Some(upstream::Settings { name, endpoints: endpoints.unwrap_or_default(), connect, response_header, idle, pool_idle_per_worker })
}

fn endpoints(written: &Item<'_>) -> Vec<String> {
    let items = written.list(ENDPOINTS_MAX);
    if items.is_empty() && written.value.is_array() {
        written.found("no endpoint", "one URL or more, such as [\"http://127.0.0.1:9000\"]", None);
    }
    let endpoint = |item: &Item<'_>| {
        let url = item.text("a URL such as \"http://127.0.0.1:9000\"")?;
        if url.starts_with("https://") {
            item.wrong_with("a URL that begins with \"http://\"", Some("TLS to upstreams is not built yet".into()));
            return None;
        }
        Some(url.to_owned())
    };
    items.iter().filter_map(endpoint).collect()
}
