//! Pieces of a page: tables, badges, times. All text that is not ours is escaped here.

use std::fmt::Write as _;

use crate::chart::{Unit, escaped};

/// A table with a caption, which a screen reader says first.
pub(super) struct Table {
    caption: &'static str,
    columns: &'static [Column],
    rows: Vec<Vec<Cell>>,
}

/// A column of a table.
pub(super) struct Column {
    pub(super) title: &'static str,
    pub(super) kind: Kind,
}

/// How a column is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// What the row is about: the first column.
    Name,
    Text,
    Number,
    /// A small chart, which narrow screens leave out.
    Chart,
    /// Text that narrow screens leave out.
    Detail,
}

/// A cell of a table.
pub(super) enum Cell {
    Text(String),
    /// It is of no interest: shown in grey.
    Quiet(String),
    /// It has our own elements in it.
    Html(String),
}

/// What a badge says about something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Severity {
    Good,
    Bad,
    Doubtful,
    Neutral,
}

impl Cell {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// How often something happens. Nothing is of no interest.
    pub(super) fn rate(per_second: f64) -> Self {
        if per_second == 0.0 {
            return Self::Quiet("0".into());
        }
        Self::Text(rate(per_second))
    }

    pub(super) fn count(count: u64) -> Self {
        if count == 0 { Self::Quiet("0".into()) } else { Self::Text(thousands(count)) }
    }

    /// A time that was measured, if one was.
    pub(super) fn time(seconds: Option<f64>) -> Self {
        seconds.map_or_else(|| Self::Quiet(NOTHING.into()), |seconds| Self::Text(time(seconds)))
    }
}

/// Where there is no value.
pub(super) const NOTHING: &str = "\u{2013}";

impl Table {
    pub(super) fn new(caption: &'static str, columns: &'static [Column]) -> Self {
        Self { caption, columns, rows: Vec::new() }
    }

    /// Adds a row with a cell for each column.
    pub(super) fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    /// The table, or `nothing` as a sentence if it has no rows.
    pub(super) fn html(&self, nothing: &str) -> String {
        if self.rows.is_empty() {
            return format!("<p class=\"nothing\">{}</p>", escaped(nothing));
        }
        let mut out = format!("<table><caption>{}</caption><thead><tr>", escaped(self.caption));
        for column in self.columns {
            let _ = write!(
                out,
                "<th scope=\"col\"{}>{}</th>",
                class(column.kind),
                escaped(column.title)
            );
        }
        out.push_str("</tr></thead><tbody>");
        for row in &self.rows {
            out.push_str("<tr>");
            for (column, cell) in self.columns.iter().zip(row) {
                let class = class(column.kind);
                let content = match cell {
                    Cell::Text(text) => escaped(text),
                    Cell::Quiet(text) => format!("<span class=\"quiet\">{}</span>", escaped(text)),
                    Cell::Html(html) => html.clone(),
                };
                let _ = match column.kind {
                    Kind::Name => write!(out, "<th scope=\"row\"{class}>{content}</th>"),
                    _ => write!(out, "<td{class}>{content}</td>"),
                };
            }
            out.push_str("</tr>");
        }
        out.push_str("</tbody></table>");
        out
    }
}

fn class(kind: Kind) -> &'static str {
    match kind {
        Kind::Name => " class=\"name\"",
        Kind::Text => "",
        Kind::Number => " class=\"number\"",
        Kind::Chart => " class=\"chart-cell\"",
        Kind::Detail => " class=\"detail\"",
    }
}

/// A word about the state of something.
pub(super) fn badge(mood: Severity, text: &str) -> String {
    let mood = match mood {
        Severity::Good => "good",
        Severity::Bad => "bad",
        Severity::Doubtful => "warning",
        Severity::Neutral => "neutral",
    };
    format!("<span class=\"badge {mood}\">{}</span>", escaped(text))
}

/// How often something happens, per second: `950`, `12.3k`, `0.4`.
pub(super) fn rate(per_second: f64) -> String {
    if per_second > 0.0 && per_second < 0.01 {
        return "<0.01".to_owned();
    }
    let rounded = if per_second < 10.0 { (per_second * 100.0).round() / 100.0 } else { per_second };
    Unit::Count.label(rounded, rounded)
}

/// A time that something takes.
pub(super) fn time(seconds: f64) -> String {
    Unit::Seconds.label(seconds, seconds)
}

/// `1,234,567`.
pub(super) fn thousands(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A moment: `2026-11-23 12:40:12 UTC`.
pub(super) fn moment(unix_s: i64) -> String {
    let Ok(at) = jiff::Timestamp::from_second(unix_s) else { return NOTHING.to_owned() };
    let text = at.to_string();
    let shown = text.replacen('T', " ", 1).replacen('Z', " UTC", 1);
    format!("<time datetime=\"{}\">{}</time>", escaped(&text), escaped(&shown))
}

/// A span: `45 s`, `12 min`, `3 h 5 min`, `12 days`.
pub(super) fn span(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{minutes} min"),
        7_200..172_800 => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} days"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &[Column] = &[
        Column { title: "Route", kind: Kind::Name },
        Column { title: "Requests", kind: Kind::Number },
    ];

    #[test]
    fn a_table_escapes_what_is_in_it() {
        let mut table = Table::new("Routes", COLUMNS);
        assert_eq!(table.html("No <routes>."), "<p class=\"nothing\">No &lt;routes&gt;.</p>");
        table.row(vec![Cell::text("<script>"), Cell::count(1_234)]);
        let html = table.html("");
        assert!(html.starts_with("<table><caption>Routes</caption>"), "{html}");
        assert!(html.contains("<th scope=\"row\" class=\"name\">&lt;script&gt;</th>"), "{html}");
        assert!(html.contains("<td class=\"number\">1,234</td>"), "{html}");
    }

    #[test]
    fn numbers_times_and_spans_read_well() {
        assert_eq!(
            [0.0, 0.001, 0.333, 42.0, 12_345.0].map(rate),
            ["0", "<0.01", "0.33", "42", "12.3k"]
        );
        assert_eq!([7, 1_000, 1_234_567].map(thousands), ["7", "1,000", "1,234,567"]);
        assert_eq!([5, 300, 8_000, 500_000].map(span), ["5 s", "5 min", "2 h 13 min", "5 days"]);
        assert_eq!(time(0.000_25), "250\u{b5}s");
        assert_eq!(
            moment(0),
            "<time datetime=\"1970-01-01T00:00:00Z\">1970-01-01 00:00:00 UTC</time>"
        );
    }
}
