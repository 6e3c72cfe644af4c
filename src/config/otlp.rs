//! `[telemetry.otlp]`. The endpoint and the fields are checked by the module that sends them.

use std::ops::RangeInclusive;
use std::time::Duration;

use toml::de::DeValue;

use super::reader::{Item, Table, integer};
use super::tls;
use crate::otlp::{Header, Sampling, Settings};

/// Header fields, and attributes, at most.
const FIELDS_MAX: usize = 64;
/// Bytes of an attribute's name or value, at most.
const ATTRIBUTE_BYTES_MAX: usize = 256;
const TIMEOUT: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(60);
const INTERVAL: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3_600);

pub(super) fn otlp(root: &mut Table<'_>) -> Option<Settings> {
    let mut telemetry = root.section("telemetry");
    let written = telemetry.take("otlp");
    telemetry.finish();
    let mut table = written?.table()?;
    let mut settings = Settings::default();
    let endpoint = table.need("endpoint", "a URL such as \"http://127.0.0.1:4318\"");
    let endpoint = endpoint.and_then(|item| item.text("a URL such as \"http://127.0.0.1:4318\""));
    settings.headers = headers(&mut table);
    settings.tls = tls::client(table.section("tls"));
    table.flag("traces", &mut settings.traces);
    table.flag("metrics", &mut settings.metrics);
    if let Some(share) = table.take("sample").and_then(|item| share(&item)) {
        settings.sampling = Sampling::of_share(share);
    }
    table.duration("timeout", TIMEOUT, &mut settings.timeout);
    table.duration("interval", INTERVAL, &mut settings.interval);
    if let Some(service) = table.take("service").and_then(|item| short_text(&item)) {
        settings.service = service;
    }
    settings.attributes = attributes(&mut table);
    table.finish();
    // Without one, the mistake has been noted.
    endpoint.map(|endpoint| Settings { endpoint: endpoint.to_owned(), ..settings })
}

/// `headers = { X-Tenant = "a" }`; values that are secrets come from files or from the environment.
fn headers(table: &mut Table<'_>) -> Vec<Header> {
    let mut headers = Vec::new();
    for key in ["headers", "headers_file", "headers_env"] {
        let read = |item: &Item<'_>| match key {
            "headers_file" => item.secret_in_file(),
            "headers_env" => item.secret_in_env(),
            _ => item.text("a field's value").map(ToOwned::to_owned),
        };
        let section = table.section(key);
        headers.extend(
            named(&section)
                .into_iter()
                .filter_map(|(name, item)| Some(Header { key, name, value: read(&item)? })),
        );
    }
    headers
}

fn attributes(table: &mut Table<'_>) -> Vec<(String, String)> {
    let section = table.section("attributes");
    let attribute = |(name, item): (String, Item<'_>)| {
        if name.is_empty() || name.len() > ATTRIBUTE_BYTES_MAX {
            item.wrong_key(&name, format!("a name of 1 to {ATTRIBUTE_BYTES_MAX} bytes"));
            return None;
        }
        if name == "service.name" {
            item.found_key("the attribute `service.name`", "`service`, which sets it", None);
            return None;
        }
        Some((name, short_text(&item)?))
    };
    named(&section).into_iter().filter_map(attribute).collect()
}

fn named<'a>(section: &Table<'a>) -> Vec<(String, Item<'a>)> {
    let mut named = section.named();
    if named.len() > FIELDS_MAX {
        section.found(format!("{} entries", named.len()), format!("at most {FIELDS_MAX}"));
        named.truncate(FIELDS_MAX);
    }
    named
}

fn short_text(item: &Item<'_>) -> Option<String> {
    let expected = format!("a text of 1 to {ATTRIBUTE_BYTES_MAX} bytes");
    item.parsed(&expected, |text| {
        (1..=ATTRIBUTE_BYTES_MAX).contains(&text.len()).then(|| text.to_owned())
    })
}

/// A share of requests.
fn share(item: &Item<'_>) -> Option<f64> {
    let written = match item.value {
        DeValue::Float(number) => number.as_str().parse().ok(),
        // Nothing between them is a whole number.
        value => {
            integer(value).filter(|n| (0..=1).contains(n)).map(|n| f64::from(u8::from(n == 1)))
        }
    };
    let share = written.filter(|share| (0.0..=1.0).contains(share));
    if share.is_none() {
        item.wrong("a share of requests from 0 to 1, such as 0.01");
    }
    share
}
