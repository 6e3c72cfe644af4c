//! What the live page shows of reloads: what each changed, or its errors as they are drawn in the
//! log.

use std::fmt::Write as _;

use super::html::{Severity, badge, moment};
use crate::app::reloads::{Record, ReloadEnd};
use crate::chart::escaped;
use crate::reload::Reason;

/// One reload as an item of a list.
pub(super) fn item(record: &Record) -> String {
    let why = match record.reason {
        Some(Reason::FileChanged) => "a file changed",
        Some(Reason::Signal) => "SIGHUP",
        Some(Reason::Asked) => "POST /reload",
        None => "asked for by the program",
    };
    let (badge, body) = match &record.ended {
        ReloadEnd::Applied(changes) => {
            let mut list = String::new();
            for change in changes.shown() {
                let _ = write!(list, "<li>{}</li>", escaped(&change.to_string()));
            }
            if changes.left_off() > 0 {
                let _ = write!(list, "<li>and {} more</li>", changes.left_off());
            }
            let body = match list.is_empty() {
                true => "<p class=\"nothing\">Nothing changed.</p>".to_owned(),
                false => format!("<ul class=\"changes\">{list}</ul>"),
            };
            (badge(Severity::Good, "applied"), body)
        }
        ReloadEnd::ShuttingDown => {
            (badge(Severity::Neutral, "too late: shutting down"), String::new())
        }
        ReloadEnd::Refused { count, text, .. } => {
            let plural = if *count == 1 { "" } else { "s" };
            let badge = badge(Severity::Bad, &format!("refused: {count} error{plural}"));
            (badge, drawn(text))
        }
    };
    format!(
        "<li><p class=\"when\">{badge} {}, {}</p>{body}</li>",
        moment(record.at_s),
        escaped(why)
    )
}

/// Errors as they are drawn for the log: the marks below a line get a class of their own.
fn drawn(text: &str) -> String {
    let mut out = String::from("<pre class=\"drawn\" tabindex=\"0\">");
    for line in text.trim_end().lines() {
        // `12 | text` is a line of the file, `   | ^^^ text` marks a part of it.
        let margin = line.split_once('|').map(|(margin, rest)| (margin.trim(), rest));
        let class = match margin {
            Some(("", rest)) if rest.trim_start().starts_with(['^', '-']) => "mark",
            Some(("", _)) => "margin",
            Some((number, _)) if number.bytes().all(|byte| byte.is_ascii_digit()) => "source",
            _ if line.starts_with("error") => "title",
            _ => "place",
        };
        let _ = writeln!(out, "<span class=\"{class}\">{}</span>", escaped(line));
    }
    out.push_str("</pre>");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_drawn_with_its_marks() {
        let text = "error: unknown <key>\n --> a.toml:2:1\n  |\n2 | quta = 5\n  | ^^^^ did you mean `quota`?\n\na.toml: 1 error";
        let html = drawn(text);
        for line in [
            "<span class=\"title\">error: unknown &lt;key&gt;</span>",
            "<span class=\"place\"> --&gt; a.toml:2:1</span>",
            "<span class=\"margin\">  |</span>",
            "<span class=\"source\">2 | quta = 5</span>",
            "<span class=\"mark\">  | ^^^^ did you mean `quota`?</span>",
        ] {
            assert!(html.contains(line), "{line}: {html}");
        }
    }
}
