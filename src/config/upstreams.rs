//! `[upstreams.*]`. Endpoints are checked by the module that connects to them.

use super::reader::{Item, Table};
use super::settings::upstreams::{ejection, http2, upstream, upstream_timeouts};
use super::settings::{Is, Kind as _};
use super::{NAMED_MAX, check_name, tls};
use crate::upstream::{Ejection, Http2Settings, Settings};

pub(super) fn upstreams(root: &mut Table<'_>) -> Vec<Settings> {
    let table = root.section("upstreams");
    let named = table.named();
    if named.len() > NAMED_MAX {
        table.found(format!("{} upstreams", named.len()), format!("at most {NAMED_MAX}"));
    }
    named.into_iter().take(NAMED_MAX).filter_map(|(name, item)| upstream(name, &item)).collect()
}

fn upstream(name: String, item: &Item<'_>) -> Option<Settings> {
    check_name(&name, item);
    let mut table = item.table()?;
    let endpoints =
        table.required_list(&upstream::ENDPOINTS).map_or_else(Vec::new, |item| endpoints(&item));
    let mut timeouts = table.section("timeouts");
    let settings = Settings {
        name,
        endpoints,
        protocol: table.read(&upstream::PROTOCOL),
        tls: tls::client(table.section("tls")),
        http2: http2(table.section("http2")),
        connect: timeouts.read(&upstream_timeouts::CONNECT),
        response_header: timeouts.read(&upstream_timeouts::RESPONSE_HEADER),
        idle: timeouts.read(&upstream_timeouts::IDLE),
        pool_idle_per_worker: table.read(&upstream::POOL_IDLE_PER_WORKER),
        requests_per_worker: table.read(&upstream::REQUESTS_PER_WORKER),
        resolve_every: table.read(&upstream::RESOLVE_EVERY),
        retry: table.read(&upstream::RETRY),
        retry_percent: table.read(&upstream::RETRY_PERCENT),
        ejection: ejection(table.section("ejection")),
        logs_failures: true,
    };
    timeouts.finish();
    table.finish();
    Some(settings)
}

fn ejection(mut table: Table<'_>) -> Ejection {
    let time = table.read(&ejection::TIME);
    let written = table.item(&ejection::TIME_MAX);
    let Is { kind, default } = &ejection::TIME_MAX.kind;
    let time_max = written.and_then(|item| kind.read(&item)).unwrap_or(time.max(*default));
    if time_max < time {
        table.found(
            "a `time_max` that is shorter than `time`",
            "a `time_max` that is `time` or longer",
        );
    }
    let settings = Ejection {
        failures: table.read(&ejection::FAILURES),
        time,
        time_max,
        max_percent: table.read(&ejection::MAX_PERCENT),
    };
    table.finish();
    settings
}

fn endpoints(written: &Item<'_>) -> Vec<String> {
    let items = written.list(upstream::ENDPOINTS.kind.max);
    if items.is_empty() && written.value.is_array() {
        written.found("no endpoint", "one URL or more, such as [\"http://127.0.0.1:9000\"]", None);
    }
    items
        .iter()
        .filter_map(|item| {
            item.text("a URL such as \"http://127.0.0.1:9000\"").map(ToOwned::to_owned)
        })
        .collect()
}

fn http2(mut table: Table<'_>) -> Http2Settings {
    let settings = Http2Settings {
        connections_per_worker: table.read(&http2::CONNECTIONS_PER_WORKER),
        streams_per_connection: table.read(&http2::STREAMS_PER_CONNECTION),
        ping_interval: table.read(&http2::PING_INTERVAL),
        ping_timeout: table.read(&http2::PING_TIMEOUT),
    };
    table.finish();
    settings
}
