//! What a row required, what was seen, and whether that was enough. Must not know how a fault is
//! made. `page` writes the page around the table.

use std::fmt::Write as _;
use std::time::Duration;

use crate::Run;

/// Whether a row's requirements were met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Met,
    /// Missed by design, and said so: it does not fail the run.
    Known,
    Missed,
}

impl Verdict {
    /// The word for it in the table.
    pub fn word(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Known => "**missed by design**",
            Self::Missed => "**missed**",
        }
    }
}

/// One line of the table.
#[derive(Clone, Debug)]
pub struct Line {
    pub number: &'static str,
    pub done: String,
    pub required: String,
    seen: Vec<(Verdict, String)>,
}

impl Line {
    pub fn new(number: &'static str, done: impl Into<String>, required: impl Into<String>) -> Self {
        Self { number, done: done.into(), required: required.into(), seen: Vec::new() }
    }

    /// Something seen that is required in both forms.
    pub fn judge(&mut self, met: bool, seen: String) {
        self.seen.push((if met { Verdict::Met } else { Verdict::Missed }, seen));
    }

    /// Something seen that is required in the long form only: times on a machine that does nothing
    /// else.
    pub fn time(&mut self, run: &Run, met: bool, seen: String) {
        self.judge(met || !run.long, seen);
    }

    /// Something seen that is required, where Weir is known to do otherwise.
    pub fn by_design(&mut self, met: bool, seen: String) {
        self.seen.push((if met { Verdict::Met } else { Verdict::Known }, seen));
    }

    /// Something seen that nothing is required of.
    pub fn tell(&mut self, seen: String) {
        self.judge(true, seen);
    }

    pub fn verdict(&self) -> Verdict {
        let has = |verdict| self.seen.iter().any(|(seen, _)| *seen == verdict);
        [Verdict::Missed, Verdict::Known]
            .into_iter()
            .find(|verdict| has(*verdict))
            .unwrap_or(Verdict::Met)
    }

    fn seen(&self) -> String {
        let seen = self.seen.iter().map(|(verdict, text)| match verdict {
            Verdict::Met => text.clone(),
            missed => format!("{}: {text}", missed.word()),
        });
        seen.collect::<Vec<_>>().join("; ")
    }

    /// The report for a terminal.
    pub fn text(&self) -> String {
        let verdict = self.verdict().word();
        format!("{verdict}: {} {}: {}", self.number, self.done, self.seen())
    }
}

/// Milliseconds with one decimal.
pub fn ms(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

/// Seconds with one decimal.
pub fn s(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// The lines as a table in Markdown.
pub fn table(lines: &[Line]) -> String {
    let mut text =
        String::from("| | what was done | required | seen | verdict |\n|---|---|---|---|---|\n");
    for line in lines {
        let verdict = line.verdict().word();
        let cell = |text: &str| text.replace('|', "\\|").replace('\n', " ");
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {verdict} |",
            line.number,
            cell(&line.done),
            cell(&line.required),
            cell(&line.seen())
        );
    }
    text
}
