//! `[telemetry.otlp]`. The endpoint and the fields are checked by the module that sends them.

use toml::de::DeValue;

use super::reader::{Item, Table, integer};
use super::settings::otlp::{ATTRIBUTE_BYTES_MAX, otlp};
use super::settings::{Kind as _, List, Setting};
use super::tls;
use crate::otlp::{Header, Sampling, Settings};

pub(super) fn otlp(root: &mut Table<'_>) -> Option<Settings> {
    let mut telemetry = root.section("telemetry");
    let written = telemetry.take("otlp");
    telemetry.finish();
    let mut table = written?.table()?;
    let endpoint = table.required(&otlp::ENDPOINT);
    let endpoint = endpoint.and_then(|item| otlp::ENDPOINT.kind.kind.read(&item));
    let mut settings = Settings {
        headers: headers(&mut table),
        tls: tls::client(table.section("tls")),
        traces: table.read(&otlp::TRACES),
        metrics: table.read(&otlp::METRICS),
        timeout: table.read(&otlp::TIMEOUT),
        interval: table.read(&otlp::INTERVAL),
        attributes: attributes(&mut table),
        ..Settings::default()
    };
    if let Some(share) = table.item(&otlp::SAMPLE).and_then(|item| share(&item)) {
        settings.sampling = Sampling::of_share(share);
    }
    if let Some(service) = table.item(&otlp::SERVICE).and_then(|item| short_text(&item)) {
        settings.service = service;
    }
    table.finish();
    // Without one, the error has been noted.
    endpoint.map(|endpoint| Settings { endpoint, ..settings })
}

/// `headers = { X-Tenant = "a" }`; values that are secrets come from files or from the environment.
fn headers(table: &mut Table<'_>) -> Vec<Header> {
    let mut headers = Vec::new();
    let mut add = |setting: &Setting<List>, read: &dyn Fn(&Item<'_>) -> Option<String>| {
        let header = |(name, item)| Some(Header { key: setting.key, name, value: read(&item)? });
        headers.extend(table.entries(setting, "entries").into_iter().filter_map(header));
    };
    add(&otlp::HEADERS, &|item| item.text("a field's value").map(str::to_owned));
    add(&otlp::HEADERS_FILE, &|item| item.secret_in_file());
    add(&otlp::HEADERS_ENV, &|item| item.secret_in_env());
    headers
}

fn attributes(table: &mut Table<'_>) -> Vec<(String, String)> {
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
    table.entries(&otlp::ATTRIBUTES, "entries").into_iter().filter_map(attribute).collect()
}

fn short_text(item: &Item<'_>) -> Option<String> {
    item.parsed(otlp::SERVICE.expected(), |text| {
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
        item.wrong(otlp::SAMPLE.expected());
    }
    share
}
