//! A replay's report for a terminal.

use std::fmt::Write as _;
use std::time::Duration;

use super::difference::Difference;
use super::read::{DamagedFile, Summary};
use super::report::{Quotas, ReplayReport};
use super::tally::{Counts, LimitTally, Refusal, Tally, VERDICTS, Verdict};
use super::time::shown;
use crate::plan::{algorithm_text, wait_text};

/// Maximum number of rows of a list. JSON has more.
const ROWS_MAX: usize = 10;
/// Maximum length of a client, a key or a request, in characters.
const CHARS_MAX: usize = 60;
/// Maximum length of the reason for a rejection, in characters.
const WHY_CHARS_MAX: usize = 160;

/// Characters that turn the order of others around, or that nobody sees: text would read as
/// another. The live page's script replaces the same ones.
fn misleads(letter: char) -> bool {
    matches!(
        letter,
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
    )
}

/// Text on one line, without what a terminal would act on.
pub(super) fn cut(text: &str) -> String {
    cut_to(text, CHARS_MAX)
}

fn cut_to(text: &str, most: usize) -> String {
    let shown = |letter: char| !letter.is_control() && !misleads(letter);
    let plain = text.chars().map(|letter| if shown(letter) { letter } else { '\u{fffd}' });
    if text.chars().count() <= most {
        return plain.collect();
    }
    plain.take(most - 1).chain(['\u{2026}']).collect()
}

/// `12.3 %`.
pub(super) fn percent(part: u64, all: u64) -> String {
    if all == 0 {
        return "0 %".to_owned();
    }
    let percent = part as f64 * 100.0 / all as f64;
    // What is not all must not read as all, and what is not none not as none.
    let text = match percent {
        _ if part == all => "100".to_owned(),
        99.95.. => "99.9".to_owned(),
        ..0.05 if part > 0 => "<0.1".to_owned(),
        _ => format!("{percent:.1}"),
    };
    format!("{text} %")
}

/// `40 requests`, `1 request`.
pub(super) fn many(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// `2 clients are`, `1 client is`.
pub(super) fn are(count: usize, what: &str) -> String {
    format!("{} {}", many(count as u64, what), if count == 1 { "is" } else { "are" })
}

/// `admitted 9, refused 1 (10.0 %)`: what there is.
pub(super) fn counts(counts: &Counts) -> String {
    let all = counts.all();
    let each =
        VERDICTS.iter().filter(|(verdict, _)| counts.of(*verdict) > 0).map(|(verdict, word)| {
            let count = counts.of(*verdict);
            format!("{count} {word} ({})", percent(count, all))
        });
    each.collect::<Vec<_>>().join(", ")
}

impl ReplayReport {
    /// The report for a terminal.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::new();
        self.head(&mut out);
        rows(&mut out, &self.candidate);
        self.limits(&mut out);
        self.clients_text(&mut out);
        self.refusals(&mut out, "first refusals", &self.candidate.refusals);
        if let Some((against, difference)) = &self.against {
            self.difference_text(&mut out, against, difference);
        }
        let gaps = self.gaps();
        if !gaps.is_empty() {
            out.push_str("\nnot in the log\n");
            gaps.iter().for_each(|gap| line(&mut out, gap));
        }
        out
    }

    fn head(&self, out: &mut String) {
        let Summary { files, broken, broken_shown, damaged, .. } = &self.summary;
        let names = files.iter().map(|(name, format)| match format {
            Some(format) => format!("{name} ({format})"),
            None => name.clone(),
        });
        let _ = writeln!(
            out,
            "{} through {}, in virtual time, from fresh counters\n{}",
            names.collect::<Vec<_>>().join(", "),
            self.config,
            self.summary.line_total()
        );
        for one in broken_shown.iter().take(ROWS_MAX) {
            line(out, &format!("{}:{}: {}", one.file, one.line, cut(&one.why)));
        }
        let more = broken.saturating_sub(broken_shown.len().min(ROWS_MAX) as u64);
        if more > 0 {
            line(out, &format!("and {more} more"));
        }
        damaged.iter().for_each(|one| line(out, &one.describe()));
        let (clients, stopped) = self.clients_counted();
        let begin = self.candidate.timeline.as_ref().map_or(0, |line| line.start_us);
        let _ = writeln!(
            out,
            "{} of {}, {stopped} of them stopped at least once, from {} to {}\n{}",
            many(self.candidate.counts.all(), "request"),
            many(clients as u64, "client"),
            shown(begin),
            shown(self.candidate.last_us),
            counts(&self.candidate.counts)
        );
    }

    fn limits(&self, out: &mut String) {
        for (limit, quotas) in self.candidate.limits.iter().zip(&self.quotas) {
            let _ = writeln!(
                out,
                "\nlimit {} of {} ({}){}",
                limit.name,
                limit.scope,
                algorithm_text(&limit.algorithm),
                if limit.shadow { ", shadow" } else { "" }
            );
            let refuses = if limit.shadow { "would refuse" } else { "refuses" };
            line(
                out,
                &format!(
                    "{refuses} {} of {} ({}), {} of {} keys",
                    limit.refused,
                    many(limit.asked, "request"),
                    percent(limit.refused, limit.asked),
                    limit.keys_refused(),
                    limit.keys.len()
                ),
            );
            if let Some(first_us) = limit.first_refused_us {
                let wait = wait_text(Duration::from_micros(limit.longest_wait_us));
                line(out, &format!("first at {}; the longest wait is {wait}", shown(first_us)));
            }
            for (key, tally) in limit.refused_keys(ROWS_MAX) {
                line(
                    out,
                    &format!("  {}: {} of {}", cut(&self.key(key)), tally.refused, tally.asked),
                );
            }
            line(out, &suggestion(limit, quotas.as_ref(), self.percent));
        }
    }

    fn clients_text(&self, out: &mut String) {
        let clients = self.stopped_clients();
        if clients.is_empty() {
            return;
        }
        out.push_str("\nclients that are stopped most often\n");
        for (number, requests, stopped, first_us) in clients.into_iter().take(ROWS_MAX) {
            line(
                out,
                &format!(
                    "{}: {stopped} of {}, first at {}",
                    cut(self.client(number)),
                    many(requests, "request"),
                    shown(first_us)
                ),
            );
        }
    }

    fn refusals(&self, out: &mut String, title: &str, all: &[Refusal]) {
        if all.is_empty() {
            return;
        }
        let _ = writeln!(out, "\n{title}");
        for one in all.iter().take(ROWS_MAX) {
            line(out, &self.refusal_text(one));
        }
    }

    pub(super) fn refusal_text(&self, one: &Refusal) -> String {
        let mut text = format!(
            "{} {} {}: {}",
            shown(one.at_us),
            cut(self.client(one.client)),
            cut(&one.request),
            one.verdict.word()
        );
        let by: Vec<&str> = one.by.iter().map(|(limit, _)| limit.as_str()).collect();
        if !by.is_empty() {
            let _ = write!(text, " by {}", by.join(" and "));
        }
        match (&one.rejection, one.cause) {
            (Some(why), _) => {
                let _ = write!(text, " {}", cut_to(&why.to_string(), WHY_CHARS_MAX));
            }
            (None, Some(cause)) if one.verdict == Verdict::Rejected => {
                let _ = write!(text, " ({cause})");
            }
            (None, _) => {}
        }
        if let Some(us) = one.passes_in_us {
            let _ = write!(text, ", passes in {}", wait_text(Duration::from_micros(us)));
        }
        text
    }

    fn difference_text(&self, out: &mut String, against: &Tally, difference: &Difference) {
        let other = self.against_config.as_deref().unwrap_or_default();
        let _ = writeln!(out, "\ncompared with {other}: {}", counts(&against.counts));
        let Difference { newly_stopped, newly_passed, clients, .. } = difference;
        if newly_stopped + newly_passed == 0 {
            line(out, "no request of the log is treated differently");
            return;
        }
        line(
            out,
            &format!(
                "{newly_stopped} would be stopped now, {newly_passed} would pass now; {} affected",
                are(clients.len(), "client")
            ),
        );
        for (number, stopped, passed) in difference.top_clients(ROWS_MAX) {
            let client = cut(self.client(number));
            line(out, &format!("  {client}: {stopped} stopped, {passed} passed"));
        }
        self.refusals(out, "first that would be stopped now", &difference.first);
    }
}

impl Summary {
    /// `9 lines, 2 not about requests, 1 broken`.
    #[must_use]
    pub fn line_total(&self) -> String {
        let parts = [
            (self.blank, "blank"),
            (self.skipped, "not about requests"),
            (self.calls, "of calls for decisions"),
            (self.to_https, "redirected to https"),
            (self.rejected, "rejected before a route was found"),
            (self.broken, "broken"),
        ];
        let mut text = many(self.lines, "line");
        for (count, what) in parts.into_iter().filter(|(count, _)| *count > 0) {
            let _ = write!(text, ", {count} {what}");
        }
        text
    }
}

impl DamagedFile {
    /// The damage in a sentence.
    #[must_use]
    pub fn describe(&self) -> String {
        let Self { file, bytes, lines, ends } = self;
        let what = match ends {
            true => format!("ends in the middle of its compressed data, at byte {bytes}"),
            false => format!("its compressed data is damaged at byte {bytes}"),
        };
        let lines = many(*lines, "line");
        format!("{file}: {what}: the {lines} before that are replayed, and nothing after it")
    }
}

/// What the quota could be, in a sentence.
pub(super) fn suggestion(limit: &LimitTally, quotas: Option<&Quotas>, share: f64) -> String {
    let Some(Quotas { suggestion, .. }) = quotas else {
        return match limit.free {
            true => "no quota is suggested: requests do not ask this limit, its policy charges it",
            false => "no quota is suggested: the limit has no quota that could be changed",
        }
        .to_owned();
    };
    let mut text = match suggestion.quota {
        Some(quota) => format!(
            "a quota of {quota} never refuses {share} % of its keys ({} of {})",
            suggestion.never_refused, suggestion.keys
        ),
        None => format!("no quota never refuses {share} % of its keys"),
    };
    if limit.algorithm.capacity() != limit.algorithm.amount() {
        text.push_str(", with its burst in proportion");
    }
    let now = limit.algorithm.amount().unwrap_or(0);
    let _ =
        write!(text, "; its current one of {now} never refused {}", suggestion.never_refused_now);
    if limit.demands_cut {
        text.push_str("; not all requests could be taken into account");
    }
    text
}

fn rows(out: &mut String, tally: &Tally) {
    if tally.routes.len() > 1 {
        out.push_str("\nroutes\n");
        for row in &tally.routes {
            let name = row.name.as_deref().unwrap_or("no route");
            line(out, &format!("{name}: {}", counts(&row.counts)));
        }
    }
    if !tally.policies.is_empty() {
        out.push_str("\npolicies\n");
        for policy in &tally.policies {
            line(out, &format!("{}: {}", policy.name, counts(&policy.counts)));
        }
    }
}

fn line(out: &mut String, text: &str) {
    let _ = writeln!(out, "    {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_never_reads_as_all_or_none() {
        let cases = [(0, 10, "0.0 %"), (1, 3, "33.3 %"), (10, 10, "100 %"), (0, 0, "0 %")];
        for (part, all, text) in cases {
            assert_eq!(percent(part, all), text);
        }
        assert_eq!(
            (percent(1, 100_000), percent(99_999, 100_000)),
            ("<0.1 %".into(), "99.9 %".into())
        );
    }

    #[test]
    fn the_content_of_a_log_cannot_affect_a_terminal() {
        assert_eq!(cut("a\u{1b}[31mb"), "a\u{fffd}[31mb");
        assert_eq!(cut("/gpj.\u{202e}exe\u{200b}\u{feff}"), "/gpj.\u{fffd}exe\u{fffd}\u{fffd}");
        assert_eq!(cut(&"x".repeat(100)).chars().count(), CHARS_MAX);
    }
}
