//! A replay's report as one page for a browser: no scripts, and nothing that is loaded from
//! anywhere.

use std::fmt::Write as _;

use super::report::{LISTED_MAX, Quotas, ReplayReport};
use super::suggest::Point;
use super::tally::{Counts, LimitTally, VERDICTS};
use super::text::{are, counts, cut, many, percent, suggestion};
use super::time::shown;
use crate::chart::{AxisScale, Bars, Chart, Layout, Mark, Series, Unit, escaped};
use crate::plan::algorithm_text;

const STYLE: &str = include_str!("page.css");
/// Maximum number of bars of a chart.
const BARS_MAX: usize = 12;
/// The factor between the largest and the smallest quota of a curve up to which its axis is linear.
/// On a longer one, what small quotas do would be a line at its left end.
const LINEAR_FACTOR_MAX: f64 = 20.0;

impl ReplayReport {
    /// A whole page.
    #[must_use]
    pub fn page(&self) -> String {
        let mut out = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>Replay through {}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n",
            escaped(&self.config)
        );
        self.page_head(&mut out);
        self.page_time(&mut out);
        self.page_clients(&mut out);
        for (limit, quotas) in self.candidate.limits.iter().zip(&self.quotas) {
            self.page_limit(&mut out, limit, quotas.as_ref());
        }
        self.page_tables(&mut out);
        self.page_difference(&mut out);
        self.page_log(&mut out);
        out.push_str("</main>\n</body>\n</html>\n");
        out
    }

    fn page_head(&self, out: &mut String) {
        let files: Vec<&str> = self.summary.files.iter().map(|(name, _)| name.as_str()).collect();
        let (clients, stopped) = self.clients_counted();
        let begin = self.candidate.timeline.as_ref().map_or(0, |line| line.start_us);
        let _ = write!(
            out,
            "<h1>Replay</h1>\n<p>{} through {}, in virtual time, from fresh counters. {} of {} from \
             {} to {}; {stopped} of the clients were stopped at least once.</p>\n<p class=\"sum\">{}</p>\n",
            escaped(&files.join(", ")),
            escaped(&self.config),
            many(self.candidate.counts.all(), "request"),
            many(clients as u64, "client"),
            shown(begin),
            shown(self.candidate.last_us),
            escaped(&counts(&self.candidate.counts))
        );
        for damaged in &self.summary.damaged {
            let _ = writeln!(out, "<p class=\"damaged\">{}</p>", escaped(&damaged.describe()));
        }
    }

    fn page_time(&self, out: &mut String) {
        let Some(line) = &self.candidate.timeline else { return };
        let second = |index: usize| (line.start_us + line.span_us * index as i64) as f64 / 1e6;
        let of = |pick: fn(&(u64, u64)) -> u64| {
            let spans = line.spans.iter().enumerate();
            spans.map(|(index, span)| (second(index), pick(span) as f64)).collect()
        };
        let chart = Chart {
            title: "Requests over time".to_owned(),
            description: counts(&self.candidate.counts),
            layout: Layout::Stacked,
            x: Unit::Instant,
            scale: AxisScale::Linear,
            marks: Vec::new(),
            y: Unit::Count,
            series: vec![
                Series { name: "passed".to_owned(), points: of(|(passed, _)| *passed) },
                Series { name: "stopped".to_owned(), points: of(|(_, stopped)| *stopped) },
            ],
        };
        let span = line.span_us / 1_000_000;
        section(out, "Over time", &format!("Requests in spans of {span} s."), &chart.svg());
    }

    fn page_clients(&self, out: &mut String) {
        let clients = self.stopped_clients();
        if clients.is_empty() {
            return;
        }
        let rows = clients.iter().take(BARS_MAX);
        let rows = rows.map(|(number, _, stopped, _)| (cut(self.client(*number)), *stopped as f64));
        let bars = Bars {
            title: "Requests that do not pass, by client".to_owned(),
            unit: Unit::Count,
            rows: rows.collect(),
        };
        section(out, "By client", "The clients that are stopped most often.", &bars.svg());
        let rows = clients.iter().map(|(number, requests, stopped, first_us)| {
            vec![
                cut(self.client(*number)),
                requests.to_string(),
                stopped.to_string(),
                percent(*stopped, *requests),
                shown(*first_us),
            ]
        });
        table(out, &["client", "requests", "stopped", "share", "first"], rows);
    }

    fn page_limit(&self, out: &mut String, limit: &LimitTally, quotas: Option<&Quotas>) {
        let shadow = if limit.shadow { ", shadow" } else { "" };
        let title = format!("Limit {} of {}", limit.name, limit.scope);
        let text = format!(
            "{}{shadow}: refuses {} of {} ({}), {} of {} keys. {}.",
            algorithm_text(&limit.algorithm),
            limit.refused,
            many(limit.asked, "request"),
            percent(limit.refused, limit.asked),
            limit.keys_refused(),
            limit.keys.len(),
            capital(&suggestion(limit, quotas, self.percent))
        );
        section(out, &title, &text, &curve(limit, quotas, self.percent));
        let keys = limit.refused_keys(LISTED_MAX);
        if !keys.is_empty() {
            let rows = keys.iter().map(|(key, of)| {
                vec![cut(&self.key(key)), of.asked.to_string(), of.refused.to_string()]
            });
            table(out, &["key", "asked", "refused"], rows);
        }
    }

    fn page_tables(&self, out: &mut String) {
        let mut head = vec!["route", "requests"];
        head.extend(VERDICTS.iter().map(|(_, word)| *word));
        let row = |name: &str, counts: &Counts| {
            let mut row = vec![name.to_owned(), counts.all().to_string()];
            row.extend(VERDICTS.iter().map(|(verdict, _)| counts.of(*verdict).to_string()));
            row
        };
        section(out, "Routes", "", "");
        let routes = self.candidate.routes.iter();
        table(
            out,
            &head,
            routes.map(|it| row(it.name.as_deref().unwrap_or("no route"), &it.counts)),
        );
        if !self.candidate.refusals.is_empty() {
            section(out, "First refusals", "", "");
            let lines = self.candidate.refusals.iter().map(|one| self.refusal_text(one));
            list(out, lines);
        }
    }

    fn page_difference(&self, out: &mut String) {
        let Some((against, difference)) = &self.against else { return };
        let other = self.against_config.as_deref().unwrap_or_default();
        let text = format!(
            "{other}: {}. With {} instead, {} requests would be stopped and {} would pass that did \
             not; {} affected.",
            counts(&against.counts),
            self.config,
            difference.newly_stopped,
            difference.newly_passed,
            are(difference.clients.len(), "client")
        );
        section(out, "What changes", &text, "");
        let clients = difference.top_clients(LISTED_MAX);
        if !clients.is_empty() {
            let rows = clients.iter().map(|(number, stopped, passed)| {
                vec![cut(self.client(*number)), stopped.to_string(), passed.to_string()]
            });
            table(out, &["client", "newly stopped", "newly passed"], rows);
        }
        list(out, difference.first.iter().map(|one| self.refusal_text(one)));
    }

    fn page_log(&self, out: &mut String) {
        let gaps = self.gaps();
        if !gaps.is_empty() {
            section(out, "Not in the log", "", "");
            list(out, gaps.into_iter());
        }
        let summary = &self.summary;
        let left_out = [
            (summary.calls, "Calls for decisions", "is about a call for a decision"),
            (summary.to_https, "Redirected requests", "is about a redirect to https"),
            (
                summary.rejected,
                "Rejected requests",
                "is about a request that was rejected before a route was found",
            ),
        ];
        for (count, title, what) in left_out.into_iter().filter(|(count, ..)| *count > 0) {
            section(out, title, &format!("Left out, as each {what}: {}.", many(count, "line")), "");
        }
        if summary.broken > 0 {
            let text = format!("{} could not be read.", many(summary.broken, "line"));
            section(out, "Broken lines", &text, "");
            let lines = summary.broken_shown.iter();
            list(out, lines.map(|one| format!("{}:{}: {}", one.file, one.line, cut(&one.why))));
        }
    }
}

/// The chart of what other quotas would refuse; empty where they were not counted.
fn curve(limit: &LimitTally, quotas: Option<&Quotas>, share: f64) -> String {
    let Some((curve, suggestion)) =
        quotas.and_then(|quotas| Some((quotas.curve.as_deref()?, &quotas.suggestion)))
    else {
        return String::new();
    };
    let (Some(first), Some(last)) = (curve.first(), curve.last()) else { return String::new() };
    let of = |pick: fn(&Point) -> f64| {
        curve.iter().map(|point| (point.quota as f64, pick(point))).collect()
    };
    let is_wide = last.quota as f64 > first.quota as f64 * LINEAR_FACTOR_MAX;
    let marks: Vec<(&str, u64)> = match (limit.algorithm.amount(), suggestion.quota) {
        (Some(now), Some(other)) if now == other => vec![("current and suggested quota", now)],
        (now, other) => {
            let now = now.map(|now| ("current quota", now));
            now.into_iter().chain(other.map(|other| ("suggested quota", other))).collect()
        }
    };
    // For readers who can't see the chart: its values at the marks.
    let mut description = format!("{}.", capital(&super::text::suggestion(limit, quotas, share)));
    for (name, quota) in &marks {
        if let Some(Point { requests, keys, .. }) = curve.iter().find(|it| it.quota == *quota) {
            let percent = |part: f64| Unit::Share.label(part, 1.0);
            let _ = write!(
                description,
                " The {name} of {quota} refuses {} of the requests, and {} of the keys at least once.",
                percent(*requests),
                percent(*keys)
            );
        }
    }
    let mark =
        |(name, quota): &(&str, u64)| Mark { text: format!("{name} {quota}"), at: *quota as f64 };
    let chart = Chart {
        title: format!("Share refused by {}, over its quota", limit.name),
        description,
        layout: Layout::Lines,
        x: Unit::Count,
        scale: if is_wide { AxisScale::Logarithmic } else { AxisScale::Linear },
        marks: marks.iter().map(mark).collect(),
        y: Unit::Share,
        series: vec![
            Series { name: "keys refused at least once".to_owned(), points: of(|it| it.keys) },
            Series { name: "requests refused".to_owned(), points: of(|it| it.requests) },
        ],
    };
    let axis = if is_wide { ", on a logarithmic axis" } else { "" };
    format!(
        "{}<figcaption>What each quota would refuse: quotas from left to right{axis}.</figcaption>",
        chart.svg()
    )
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

fn section(out: &mut String, title: &str, text: &str, picture: &str) {
    let _ = writeln!(out, "<h2>{}</h2>", escaped(title));
    if !text.is_empty() {
        let _ = writeln!(out, "<p>{}</p>", escaped(text));
    }
    if !picture.is_empty() {
        let _ = writeln!(out, "<figure>{picture}</figure>");
    }
}

fn table(out: &mut String, head: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    out.push_str("<div class=\"wide\"><table>\n<thead><tr>");
    for name in head {
        let _ = write!(out, "<th scope=\"col\">{}</th>", escaped(name));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        out.push_str("<tr>");
        for cell in row {
            let _ = write!(out, "<td>{}</td>", escaped(&cell));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
}

fn list(out: &mut String, lines: impl Iterator<Item = String>) {
    let mut lines = lines.peekable();
    if lines.peek().is_none() {
        return;
    }
    out.push_str("<ul>\n");
    lines.for_each(|line| {
        let _ = writeln!(out, "<li>{}</li>", escaped(&line));
    });
    out.push_str("</ul>\n");
}
