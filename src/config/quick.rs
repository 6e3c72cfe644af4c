//! `weir run --to URL --limit 100/1m`: a configuration from two arguments instead of a file.

use std::net::SocketAddr;
use std::path::Path;

use super::{Config, ConfigErrors, units};
use crate::plan::{AMOUNT_MAX, PERIOD_MS_MAX};
use crate::telemetry::SettingError;

/// The name that messages use in place of a file's.
const NAME: &str = "<command line>";

/// A configuration that forwards everything to `to` and allows each client address `limit` requests
/// (`100/1m`, `10/1s`). It listens on `listen`, by default where a file without listeners would.
/// The operator's pages are served on `admin` only.
///
/// # Errors
/// An invalid `limit`, or what is wrong with `to`.
pub fn quick(
    to: &str,
    limit: &str,
    listen: Option<SocketAddr>,
    admin: Option<SocketAddr>,
) -> Result<Config, ConfigErrors> {
    // A URL with a host of digits is possible, and never meant.
    if !to.is_empty() && to.bytes().all(|byte| byte.is_ascii_digit()) {
        let expected = format!("a URL, or a host and a port: http://localhost:{to}");
        let error = SettingError::new("--to", super::reader::quoted(to), expected);
        return Err(ConfigErrors::single("", None, &error.to_string(), Vec::new()));
    }
    let (quota, period) = rate(limit).ok_or_else(|| {
        let expected = format!(
            "a quota from 1 to {AMOUNT_MAX} and a period up to 400 days, such as 100/1m or 10/1s"
        );
        let error = SettingError::new("--limit", super::reader::quoted(limit), expected);
        ConfigErrors::single("", None, &error.to_string(), Vec::new())
    })?;
    let url = if to.contains("://") { to.to_owned() } else { format!("http://{to}") };
    // As a TOML string, so that any text of the shell's stays one value.
    let url = toml::Value::from(url.trim_end_matches('/')).to_string();
    let listener = listen
        .map_or_else(String::new, |address| format!("[[listeners]]\naddress = \"{address}\"\n\n"));
    let admin = admin.map_or_else(|| "off".to_owned(), |address| address.to_string());
    let text = format!(
        "{listener}[admin]\naddress = \"{admin}\"\n\n[upstreams.to]\nendpoints = [{url}]\n\n\
         [policies.limit]\nuse = \"client-ip\"\n\n\
         [[policies.limit.config.limits]]\nname = \"limit\"\nalgorithm = \"fixed_window\"\nquota = {quota}\nperiod = \"{period}\"\n\n\
         [[routes]]\nname = \"all\"\npath = \"/*\"\nupstream = \"to\"\npolicy = \"limit\"\n"
    );
    super::read(&text, Path::new(NAME), None, Vec::new())
}

/// `100/1m`; and `100/m`, `100/min`, `100/minute` and nginx' `100r/m`, as in what people know.
fn rate(limit: &str) -> Option<(u64, &str)> {
    let (quota, period) = limit.split_once('/')?;
    let quota = quota.strip_suffix('r').unwrap_or(quota);
    let period = match period {
        "s" | "sec" | "second" => "1s",
        "m" | "min" | "minute" => "1m",
        "h" | "hour" => "1h",
        "d" | "day" => "1d",
        period => period,
    };
    let digits = !quota.is_empty() && quota.bytes().all(|byte| byte.is_ascii_digit());
    let quota =
        quota.parse::<u64>().ok().filter(|quota| digits && (1..=AMOUNT_MAX).contains(quota))?;
    let period_ms = units::duration(period)?.as_millis();
    (1..=u128::from(PERIOD_MS_MAX)).contains(&period_ms).then_some((quota, period))
}
