//! `limit_req` and `limit_conn`: each zone, with what is asked of it, is a limit. Limits that some
//! route has together are in one policy, as they are charged together.

use std::collections::HashSet;
use std::fmt::Write as _;

use super::Notes;
use super::keys::{Key, key};
use super::maps::{Maps, Selection};
use crate::cli::import::directives::Directive;
use crate::cli::written::{plain, string, unique};

/// All limits that locations use.
#[derive(Debug)]
pub(super) struct Limits<'a> {
    zones: Vec<Zone>,
    maps: Maps<'a>,
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
    /// All requests, without one.
    selection: Option<Selection>,
    counts: Counts,
    shadow: bool,
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

impl<'a> Limits<'a> {
    pub(super) fn read(http: &'a [Directive]) -> Self {
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
        Self { zones, maps: Maps::read(http), used: Vec::new(), names: HashSet::new() }
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
        let of_map = self.maps.key(&zone.key, server);
        let (key, selection) = match of_map.unwrap_or_else(|| Ok((key(&zone.key, server)?, None))) {
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
        if selection.as_ref().is_some_and(Selection::has_cases) {
            notes.add(
                directive,
                "nginx compares the values of its `map` in any case, and Weir as they are written: what comes in another case is not among them",
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
        let mut limit = Limit { name: String::new(), zone, key, selection, counts, shadow };
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

    /// Notes what no limit needed.
    pub(super) fn note_unused(&self, notes: &mut Notes) {
        self.maps.note_unused(notes);
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
        let of = self.selection.as_ref().map(Selection::text).unwrap_or_default();
        format!(
            "name = {}, {counts}, key = {}{missing}{of}{shadow}",
            string(&self.name),
            string(key)
        )
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nginx_delays_and_what_it_refuses_is_kept_apart() {
        let limit = |words: &str, rate, refuses| {
            let words = words.split(' ').map(str::to_owned).collect();
            let (place, name) = (String::new(), "limit_req".to_owned());
            let counts = requests(&Directive { place, name, words, block: None }, rate);
            let key = Key { text: "{client_ip}".to_owned(), missing: "skip", names_proxy: false };
            let (name, zone) = (String::new(), String::new());
            Limit { name, zone, key, selection: None, counts, shadow: false }.text(refuses)
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
