//! `limit_req` and `limit_conn`: each zone, with what is asked of it, is a limit. Limits that some
//! route has together are in one policy, as they are charged together.

use std::collections::HashSet;
use std::fmt::Write as _;

use super::Notes;
use crate::cli::import::directives::Directive;
use crate::cli::written::{plain, string, unique};
use crate::plan::is_reserved_field;

/// All limits that locations use.
#[derive(Debug)]
pub(super) struct Limits {
    zones: Vec<Zone>,
    used: Vec<Limit>,
    names: HashSet<String>,
}

/// `limit_req_zone` or `limit_conn_zone`.
#[derive(Debug)]
struct Zone {
    name: String,
    /// With variables.
    key: String,
    /// Requests in a period. None for connections.
    rate: Option<(u64, &'static str)>,
}

/// A zone as a location uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Limit {
    name: String,
    zone: String,
    key: Key,
    counts: Counts,
    shadow: bool,
}

/// A template, and what is done without such a key.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    text: String,
    missing: &'static str,
    /// It has a field in which a proxy names its client, and that client's address for it.
    names_proxy: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counts {
    Requests { quota: u64, period: &'static str, at_once: u64, waiting: u64 },
    Places(u64),
}

/// Limits of the same routes.
#[derive(Debug)]
pub(super) struct Policy {
    pub(super) name: String,
    /// Their names, and what is written of each.
    pub(super) limits: Vec<(String, String)>,
}

impl Limits {
    pub(super) fn read(http: &[Directive]) -> Self {
        let zone = |directive: &Directive| {
            let rate = match directive.name.as_str() {
                "limit_req_zone" => Some(directive.value("rate").and_then(rate)?),
                "limit_conn_zone" => None,
                _ => return None,
            };
            let name = directive.value("zone")?.split(':').next()?.to_owned();
            Some(Zone { name, key: directive.word(0).to_owned(), rate })
        };
        let zones = http.iter().filter_map(zone).collect();
        Self { zones, used: Vec::new(), names: HashSet::new() }
    }

    /// The names of the limits of a location: its own, or those around it where it has none, as
    /// nginx inherits them. `server` is the server's name.
    pub(super) fn of(
        &mut self,
        around: &[&[Directive]],
        server: &str,
        notes: &mut Notes,
    ) -> Vec<String> {
        let mut names = Vec::new();
        for kind in ["limit_req", "limit_conn"] {
            let named = |name: &str| {
                around.iter().find_map(|block| block.iter().find(|one| one.name == name))
            };
            let here = |block: &&&[Directive]| block.iter().any(|one| one.name == kind);
            let Some(block) = around.iter().find(here) else { continue };
            let shadow = named(&format!("{kind}_dry_run")).is_some_and(|one| one.word(0) == "on");
            for directive in block.iter().filter(|one| one.name == kind) {
                names.extend(self.limit(directive, server, shadow, notes));
            }
            let status = named(&format!("{kind}_status")).map_or("503", |one| one.word(0));
            if status != "429" {
                notes.line(&format!(
                    "what {kind} refuses gets {status} from nginx, and 429 with Retry-After from Weir"
                ));
            }
        }
        names
    }

    fn limit(
        &mut self,
        directive: &Directive,
        server: &str,
        shadow: bool,
        notes: &mut Notes,
    ) -> Option<String> {
        let is_rate = directive.name == "limit_req";
        let named = if is_rate { directive.value("zone")? } else { directive.word(0) };
        let mut zones = self.zones.iter();
        let zone = zones.find(|zone| zone.name == named && zone.rate.is_some() == is_rate);
        let Some(zone) = zone else {
            notes.add(directive, "LEFT OUT: found no such zone with a rate such as 10r/s or 30r/m");
            return None;
        };
        let key = match key(&zone.key, server) {
            Ok(key) => key,
            Err(why) => {
                notes.add(directive, &format!("LEFT OUT, nothing is limited by it: {why}"));
                return None;
            }
        };
        if key.names_proxy {
            notes.add(
                directive,
                "counts by {client_ip}: a proxy's word for it holds if `server.trusted_proxies` has that proxy; from anybody else Weir removes the field",
            );
        }
        let counts = match (zone.rate, directive.word(1).parse()) {
            (Some(rate), _) => requests(directive, rate),
            (None, Ok(count)) => Counts::Places(count),
            (None, Err(_)) => {
                notes.add(directive, "LEFT OUT: expected a number of connections");
                return None;
            }
        };
        let zone = zone.name.clone();
        let mut limit = Limit { name: String::new(), zone, key, counts, shadow };
        let same = self.used.iter().find(|one| {
            limit.name.clone_from(&one.name);
            **one == limit
        });
        if let Some(same) = same {
            return Some(same.name.clone());
        }
        if self.used.iter().any(|one| one.zone == limit.zone && one.key == limit.key) {
            notes.add(
                directive,
                "a zone counts for all its uses in nginx; limits with different numbers have counters of their own in Weir",
            );
        }
        limit.name = unique(&plain(named, "limit"), &mut self.names);
        self.used.push(limit);
        self.used.last().map(|limit| limit.name.clone())
    }

    /// The limits of all routes, those in one policy that some route has together.
    pub(super) fn policies(&self, routes: &[&[String]], notes: &mut Notes) -> Vec<Policy> {
        let mut groups: Vec<Vec<&Limit>> = Vec::new();
        for limit in &self.used {
            let together = |group: &Vec<&Limit>| {
                let has = |names: &&&[String]| names.contains(&limit.name);
                let shared = |names: &&[String]| group.iter().any(|one| names.contains(&one.name));
                routes.iter().filter(has).any(shared)
            };
            let (mut joined, apart): (Vec<_>, Vec<_>) = groups.into_iter().partition(together);
            groups = apart;
            let mut group: Vec<&Limit> = joined.drain(..).flatten().collect();
            group.push(limit);
            groups.push(group);
        }
        let mut names = HashSet::new();
        groups.iter().map(|group| {
            let mut is_waiting = false;
            let limits = group.iter().map(|limit| {
                let refuses = is_waiting && limit.waits();
                is_waiting |= limit.waits();
                if refuses {
                    notes.line(&format!(
                        "zone {}: a request of Weir's waits for one limit only: this one refuses what comes too early, and lets the same burst through at once",
                        limit.zone
                    ));
                }
                (limit.name.clone(), limit.text(refuses))
            });
            let limits = limits.collect();
            Policy { name: unique("limits", &mut names), limits }
        }).collect()
    }
}

impl Limit {
    fn waits(&self) -> bool {
        matches!(self.counts, Counts::Requests { waiting: 1.., .. })
    }

    /// `refuses`: also what could wait.
    fn text(&self, refuses: bool) -> String {
        let counts = match self.counts {
            Counts::Places(count) => format!("algorithm = \"concurrency\", quota = {count}"),
            Counts::Requests { quota, period, at_once, waiting } if refuses || waiting == 0 => {
                // nginx counts what exceeds the first request, Weir all that may come at once.
                let burst = at_once.saturating_add(waiting).saturating_add(1);
                format!(
                    "algorithm = \"gcra\", quota = {quota}, period = \"{period}\", burst = {burst}"
                )
            }
            Counts::Requests { quota, period, at_once, waiting } => {
                let period_ms: u128 = if period == "1s" { 1_000 } else { 60_000 };
                let max_delay_ms = (u128::from(waiting) * period_ms).div_ceil(u128::from(quota));
                let burst = at_once.saturating_add(1);
                format!(
                    "algorithm = \"leaky_bucket\", quota = {quota}, period = \"{period}\", burst = {burst}, max_delay = \"{max_delay_ms}ms\""
                )
            }
        };
        let Key { text: key, missing, .. } = &self.key;
        let missing = if key.contains('{') && key != "{client_ip}" {
            format!(", missing = \"{missing}\"")
        } else {
            String::new()
        };
        let shadow = if self.shadow { ", shadow = true" } else { "" };
        format!("name = {}, {counts}, key = {}{missing}{shadow}", string(&self.name), string(key))
    }
}

impl Policy {
    /// Writes it, with the routes of each limit. `routes` are names with those of limits.
    pub(super) fn write(&self, routes: &[(&str, &[String])], out: &mut String) {
        let _ = write!(out, "\n[policies.{}]\nuse = \"keyed\"\nconfig.limits = [\n", self.name);
        for (name, text) in &self.limits {
            let mine: Vec<String> = routes
                .iter()
                .filter(|(_, limits)| limits.contains(name))
                .map(|(route, _)| string(route))
                .collect();
            let when = if mine.len() == routes.len() {
                String::new()
            } else {
                format!(", when.route = [{}]", mine.join(", "))
            };
            let _ = writeln!(out, "    {{ {text}{when} }},");
        }
        out.push_str("]\n");
    }
}

fn requests(directive: &Directive, (quota, period): (u64, &'static str)) -> Counts {
    let number = |key: &str| directive.value(key).and_then(|text| text.parse::<u64>().ok());
    let burst = number("burst").unwrap_or(0);
    let at_once = match number("delay") {
        _ if directive.has("nodelay") => burst,
        Some(delay) => delay.min(burst),
        None => 0,
    };
    Counts::Requests { quota, period, at_once, waiting: burst - at_once }
}

/// `10r/s` or `30r/m`.
fn rate(text: &str) -> Option<(u64, &'static str)> {
    let (count, unit) = text.split_once("r/")?;
    let count = count.parse::<u64>().ok().filter(|count| *count > 0)?;
    match unit {
        "s" => Some((count, "1s")),
        "m" => Some((count, "1m")),
        _ => None,
    }
}

/// A key of nginx as a template of Weir's. nginx counts a request unless its whole key is empty.
fn key(key: &str, server: &str) -> Result<Key, String> {
    let mut text = String::new();
    let (mut rest, mut variables) = (key, 0);
    let (mut has_address, mut names_proxy) = (false, false);
    if key.contains(['{', '}']) && !key.contains("${") {
        return Err("a template can't have braces".to_owned());
    }
    while let Some((before, after)) = rest.split_once('$') {
        text.push_str(before);
        let (name, next) = match after.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            Some(braced) => braced,
            None => {
                let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
                after.split_at(after.find(|letter| !is_part(letter)).unwrap_or(after.len()))
            }
        };
        if name.eq_ignore_ascii_case("server_name") {
            text.push_str(server);
        } else {
            names_proxy |= is_address_of_proxy(&name.to_ascii_lowercase());
            let fact = fact(name).ok_or_else(|| format!("Weir has no fact for ${name}"))?;
            has_address |= fact == "{client_ip}";
            text.push_str(&fact);
            variables += 1;
        }
        rest = next;
    }
    text.push_str(rest);
    if text.is_empty() {
        return Err("found an empty key".to_owned());
    }
    let is_alone = variables == 1 && text.starts_with('{') && text.ends_with('}');
    let missing = match (is_alone, has_address) {
        (true, _) => "skip",
        (false, true) => "address",
        (false, false) => "shared",
    };
    Ok(Key { text, missing, names_proxy })
}

/// Fields that Weir removes from what a client sends, or that belong to a connection: a policy does
/// not see them.
fn is_removed(field: &str) -> bool {
    const REMOVED: &[&str] = &["forwarded", "keep-alive", "proxy-connection"];
    let is_of_connection = is_reserved_field(field) && field != "host" && field != "content-length";
    REMOVED.contains(&field) || field.starts_with("x-forwarded-") || is_of_connection
}

/// Whether a variable is what a proxy says of its client's address.
fn is_address_of_proxy(variable: &str) -> bool {
    ["http_x_forwarded_for", "http_x_real_ip"].contains(&variable)
}

/// The fact of a variable, in braces. nginx ignores the case of a variable's name.
pub(super) fn fact(variable: &str) -> Option<String> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    if !variable.chars().all(is_part) {
        return None;
    }
    let lower = variable.to_ascii_lowercase();
    let name = match lower.as_str() {
        "binary_remote_addr" | "remote_addr" => "client_ip".to_owned(),
        address if is_address_of_proxy(address) => "client_ip".to_owned(),
        "host" => "host".to_owned(),
        // A client can add any port.
        "http_host" => "authority".to_owned(),
        "uri" | "document_uri" => "path".to_owned(),
        "args" | "query_string" => "query".to_owned(),
        "request_method" => "method".to_owned(),
        "scheme" => "scheme".to_owned(),
        "ssl_server_name" => "tls.sni".to_owned(),
        "ssl_client_s_dn" => "tls.client.subject".to_owned(),
        _ => {
            let (kind, rest) = lower.split_once('_')?;
            match kind {
                "http" => {
                    let field = rest.replace('_', "-");
                    if is_removed(&field) {
                        return None;
                    }
                    format!("header.{field}")
                }
                // As they are written: Weir compares these names itself.
                "arg" | "cookie" => format!(
                    "{}.{}",
                    if kind == "arg" { "query" } else { kind },
                    variable.split_once('_')?.1
                ),
                _ => return None,
            }
        }
    };
    Some(format!("{{{name}}}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_variables_is_a_template() {
        for (written, expected, missing) in [
            ("$binary_remote_addr", "{client_ip}", "skip"),
            ("$http_x_api_key", "{header.x-api-key}", "skip"),
            ("$binary_remote_addr$http_x_api_key", "{client_ip}{header.x-api-key}", "address"),
            ("a:${arg_user}$cookie_s!", "a:{query.user}{cookie.s}!", "shared"),
            ("$host$uri", "{host}{path}", "shared"),
            ("$http_host", "{authority}", "skip"),
            ("$http_X_Api_Key", "{header.x-api-key}", "skip"),
            ("$Remote_Addr", "{client_ip}", "skip"),
            ("$http_x_forwarded_for", "{client_ip}", "skip"),
            ("${http_X_Real_IP}", "{client_ip}", "skip"),
            ("$Arg_userId", "{query.userId}", "skip"),
            ("$server_name", "api.example", "shared"),
            ("all", "all", "shared"),
        ] {
            let key = key(written, "api.example").unwrap();
            assert_eq!((key.text.as_str(), key.missing), (expected, missing), "{written}");
        }
        for name in
            ["geo", "http_x_forwarded_proto", "http_forwarded", "http_connection", "http_te"]
        {
            let error = format!("Weir has no fact for ${name}");
            assert_eq!(key(&format!("${name}"), "").unwrap_err(), error);
        }
        assert_eq!(fact("http_x$remote_addr"), None);
        assert!(
            key("", "").is_err() && key("$server_name", "").is_err() && key("{x}", "").is_err()
        );
    }

    #[test]
    fn what_nginx_delays_and_what_it_refuses_is_kept_apart() {
        let limit = |words: &str, rate, refuses| {
            let words = words.split(' ').map(str::to_owned).collect();
            let (place, name) = (String::new(), "limit_req".to_owned());
            let counts = requests(&Directive { place, name, words, block: None }, rate);
            let key = Key { text: "{client_ip}".to_owned(), missing: "skip", names_proxy: false };
            let (name, zone) = (String::new(), String::new());
            Limit { name, zone, key, counts, shadow: false }.text(refuses)
        };
        let second = (10, "1s");
        let of = |algorithm: &str, quota: u64, burst: u64, rest: &str| {
            format!(
                "name = \"\", algorithm = \"{algorithm}\", quota = {quota}, period = \"1s\", burst = {burst}{rest}, key = \"{{client_ip}}\""
            )
        };
        assert_eq!(limit("zone=a", second, false), of("gcra", 10, 1, ""));
        assert_eq!(limit("zone=a burst=19 nodelay", second, false), of("gcra", 10, 20, ""));
        let delayed = of("leaky_bucket", 10, 1, ", max_delay = \"2000ms\"");
        assert_eq!(limit("zone=a burst=20", second, false), delayed);
        assert_eq!(limit("zone=a burst=20", second, true), of("gcra", 10, 21, ""));
        let partly = of("leaky_bucket", 10, 9, ", max_delay = \"400ms\"");
        assert_eq!(limit("zone=a burst=12 delay=8", second, false), partly);
        // Rounded up, so that the last place of the burst is one.
        let third = of("leaky_bucket", 3, 1, ", max_delay = \"334ms\"");
        assert_eq!(limit("zone=a burst=1", (3, "1s"), false), third);
        let huge = limit("zone=a burst=18446744073709551615 nodelay", second, false);
        assert!(huge.contains("burst = 18446744073709551615"), "{huge}");
        limit("zone=a burst=18446744073709551615", second, false);
    }
}
