//! Draws the state: a line of what it is, the limits, the keys of one of them, a line of help. What
//! does not fit is left out, the least important first.

use std::time::Instant;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Wrap};

use super::super::table::{Order, TopLimit, TopRow};
use super::State;

const HELP: &str = "q quit   \u{2190}\u{2192} limit   \u{2191}\u{2193} scroll   s sort   d digests";
/// The height from which on there is a list of the limits, on at most this part of the lines.
const LIST_HEIGHT_MIN: u16 = 12;
const LIST_PART: u16 = 3;
/// The height from which on there is a line of help.
const HELP_HEIGHT_MIN: u16 = 6;
/// The width from which on there is a column with shares.
const SHARE_WIDTH_MIN: u16 = 60;
/// Columns between two others.
const GAP: &str = "  ";
/// Maximum number of lines of an error.
const ERROR_LINES_MAX: u16 = 2;

/// Draws the state as it is `now`.
pub(super) fn draw(frame: &mut Frame<'_>, state: &mut State, now: Instant) {
    let area = frame.area();
    let limits = state.table.limits.len();
    let list = match u16::try_from(limits).unwrap_or(u16::MAX) {
        limits @ 2.. if area.height >= LIST_HEIGHT_MIN => limits.min(area.height / LIST_PART),
        _ => 0,
    };
    let error = if state.error.is_some() { ERROR_LINES_MAX.min(area.height / 4) } else { 0 };
    let [head, failed, _, list, _, title, keys, help] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(error),
        Constraint::Length(list.min(1)),
        Constraint::Length(list),
        Constraint::Length(u16::from(area.height >= HELP_HEIGHT_MIN)),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(u16::from(area.height >= HELP_HEIGHT_MIN)),
    ])
    .areas(area);
    frame.render_widget(first_line(state, now, (head.width, error > 0)), head);
    if let Some(error) = &state.error {
        let text = Paragraph::new(error.as_str()).wrap(Wrap { trim: true });
        frame.render_widget(text.style(Style::new().fg(Color::Red).bold()), failed);
    }
    draw_limits(frame, state, list);
    match state.limit() {
        Some(limit) => {
            let which = if limits > 1 && list.height == 0 {
                format!(" (limit {} of {limits})", state.at() + 1)
            } else {
                String::new()
            };
            let room = title.width.saturating_sub(which.len() as u16);
            frame.render_widget(Line::from(cut(&limit.title(), room) + &which).bold(), title);
        }
        None => frame.render_widget(Line::from(state.table.nothing()), title),
    }
    draw_keys(frame, state, keys);
    frame.render_widget(Line::from(cut(HELP, help.width)).dim(), help);
}

/// What is shown, and as of when. An error is there if it has no lines of its own.
fn first_line(state: &State, now: Instant, (width, error_fits): (u16, bool)) -> Line<'static> {
    let old = state.old_s(now).map(|age| format!(", {age} s ago")).unwrap_or_default();
    let text = match &state.error {
        Some(error) if !error_fits => error.clone(),
        _ => format!("weir top {}: {}{old}", state.address, state.table.title()),
    };
    let text = cut(&text, width);
    let space = " ".repeat(usize::from(width).saturating_sub(Span::from(&*text).width()));
    Line::from(text + &space).reversed()
}

/// The limits, with a mark at the one that is shown.
fn draw_limits(frame: &mut Frame<'_>, state: &State, area: Rect) {
    let (at, lines) = (state.at(), usize::from(area.height));
    // The chosen one is in the middle, but at the ends of the list.
    let last = state.table.limits.len().saturating_sub(lines);
    let first = at.saturating_sub(lines / 2).min(last);
    let limits = state.table.limits.iter().enumerate().skip(first).take(lines);
    let lines: Vec<Line<'_>> = limits
        .map(|(index, limit)| {
            let mark = if index == at { "> " } else { "  " };
            let line = Line::from(cut(&format!("{mark}{}", limit.title()), area.width));
            if index == at { line.bold() } else { line }
        })
        .collect();
    frame.render_widget(Paragraph::new(lines), area);
}

/// The keys of the limit that is shown, from the first one on to which they are scrolled.
fn draw_keys(frame: &mut Frame<'_>, state: &mut State, area: Rect) {
    state.lines = usize::from(area.height.saturating_sub(1));
    let count = state.limit().map_or(0, |limit| limit.keys.len());
    state.first = state.first.min(count.saturating_sub(state.lines));
    let Some(limit) = state.limit().filter(|_| area.height > 0) else { return };
    let shown: Vec<&TopRow> = limit.keys.iter().skip(state.first).take(state.lines).collect();
    let columns = Columns::of(limit, &shown, state, area.width);
    let mut lines = vec![columns.heading(state)];
    lines.extend(shown.into_iter().map(|key| columns.row(limit, key, state)));
    frame.render_widget(Paragraph::new(lines), area);
}

/// The widths of the columns before the key's, which has the rest.
struct Columns {
    units: usize,
    refusals: usize,
    /// Shares are of the number by which keys are ordered.
    share: Option<Order>,
    width: u16,
}

impl Columns {
    fn of(limit: &TopLimit, shown: &[&TopRow], state: &State, width: u16) -> Self {
        let widest = |heading: &str, cell: fn(&TopRow) -> String| {
            let cells = shown.iter().map(|key| cell(key).len());
            cells.chain([heading.len() + 1]).max().unwrap_or(0)
        };
        let total = total(limit, state.order);
        Self {
            units: widest("units", |key| key.units.to_string()),
            refusals: widest("refused", |key| key.refusals.to_string()),
            share: (width >= SHARE_WIDTH_MIN && total > 0).then_some(state.order),
            width,
        }
    }

    fn heading(&self, state: &State) -> Line<'static> {
        let Self { units, refusals, .. } = self;
        let mark = |order| if state.order == order { "\u{25bc}" } else { "" };
        let share = self.share.map(|_| format!("{:>4}{GAP}", "%")).unwrap_or_default();
        let (by_units, by_refusals) =
            (format!("units{}", mark(Order::Units)), format!("refused{}", mark(Order::Refusals)));
        let text = format!("{by_units:>units$}{GAP}{by_refusals:>refusals$}{GAP}{share}key");
        Line::from(cut(&text, self.width)).underlined()
    }

    fn row(&self, limit: &TopLimit, key: &TopRow, state: &State) -> Line<'static> {
        let Self { units, refusals, share, width } = self;
        let share = share.map(|order| {
            let most = match order {
                Order::Units => key.units.most,
                Order::Refusals => key.refusals.most,
            };
            let percent = most.saturating_mul(100).checked_div(total(limit, order)).unwrap_or(0);
            format!("{percent:>4}{GAP}")
        });
        let numbers = format!("{:>units$}{GAP}{:>refusals$}{GAP}", key.units, key.refusals);
        let name = key.text.as_ref().filter(|_| !state.digests).unwrap_or(&key.digest);
        Line::from(cut(&format!("{numbers}{}{name}", share.unwrap_or_default()), *width))
    }
}

fn total(limit: &TopLimit, order: Order) -> u64 {
    match order {
        Order::Units => limit.units,
        Order::Refusals => limit.refusals,
    }
}

/// The beginning of a text that is too wide, with a mark that there is more. Some characters are
/// two columns wide.
fn cut(text: &str, width: u16) -> String {
    let width = usize::from(width);
    if Span::from(text).width() <= width {
        return text.to_owned();
    }
    let mut shown = String::new();
    let mut left = width.saturating_sub(1);
    let mut bytes = [0; 4];
    for letter in text.chars() {
        let wide = Span::from(&*letter.encode_utf8(&mut bytes)).width();
        let Some(rest) = left.checked_sub(wide) else { break };
        left = rest;
        shown.push(letter);
    }
    if width > 0 {
        shown.push('\u{2026}');
    }
    shown
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{Event, KeyCode, KeyEvent};

    use super::super::super::table::TopTable;
    use super::super::super::table::tests::ANSWER;
    use super::*;

    fn state(answer: &str) -> State {
        let table = TopTable::read(answer, 10).unwrap();
        State::new(([127, 0, 0, 1], 9901).into(), table, Instant::now())
    }

    /// The lines of a screen of this size, without the spaces at their ends.
    fn drawn(state: &mut State, (width, height): (u16, u16)) -> Vec<String> {
        drawn_at(state, (width, height), Instant::now())
    }

    fn drawn_at(state: &mut State, (width, height): (u16, u16), now: Instant) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, state, now)).unwrap();
        let text = terminal.backend().to_string();
        text.lines().map(|line| line.trim_matches('"').trim_end().to_owned()).collect()
    }

    fn press(state: &mut State, code: KeyCode) {
        assert!(!state.is_over_after(&Event::Key(KeyEvent::from(code))));
    }

    #[test]
    fn limits_and_the_keys_of_one_are_drawn() {
        let mut state = state(ANSWER);
        let first = "weir top 127.0.0.1:9901: in the last 213 s";
        let digest = "9e6b23645a7c871ab49d279271d8db3a";
        assert_eq!(
            drawn(&mut state, (70, 14)),
            [
                first,
                "",
                "> public, per-minute: 90 units used, 7 times refused",
                "  p, r, l: 0 units used, 0 times refused",
                "",
                "public, per-minute: 90 units used, 7 times refused",
                "units\u{25bc}   refused     %  key",
                "    50         2    55  $'a\\033[2J\\342\\200\\256'",
                &format!("37..40         0    44  {digest}"),
                " 0..40         5    44  01",
                "",
                "",
                "",
                HELP,
            ]
        );
        press(&mut state, KeyCode::Char('s'));
        press(&mut state, KeyCode::Char('d'));
        let lines = drawn(&mut state, (47, 9));
        assert_eq!(
            lines[2..7],
            [
                "public, per-minute: 90 units us\u{2026} (limit 1 of 2)",
                " units  refused\u{25bc}  key",
                " 0..40         5  01",
                "    50         2  00",
                &format!("37..40         0  {}\u{2026}", &digest[..28]),
            ]
        );
        press(&mut state, KeyCode::Tab);
        let lines = drawn(&mut state, (70, 8));
        assert_eq!(lines[2], "p, r, l: 0 units used, 0 times refused (limit 2 of 2)");
    }

    #[test]
    fn keys_scroll_to_their_end_and_not_beyond() {
        let mut state = state(ANSWER);
        for (code, first) in
            [(KeyCode::Down, "37..40"), (KeyCode::End, "0..40"), (KeyCode::Up, "37..40")]
        {
            press(&mut state, code);
            let lines = drawn(&mut state, (40, 4));
            assert!(lines[3].trim_start().starts_with(first), "{code:?}: {lines:?}");
        }
    }

    #[test]
    fn any_size_is_drawn_and_wide_keys_are_cut_where_they_end() {
        let wide = "\u{5c71}".repeat(40);
        let mut state = state(&ANSWER.replace("a\\u001b[2J\\u202e", &wide));
        for width in 1..100 {
            for height in 1..20 {
                let lines = drawn(&mut state, (width, height));
                assert_eq!(lines.len(), usize::from(height));
            }
        }
        // Two columns each: one of them is left for the mark, and one is empty.
        let row = &drawn(&mut state, (40, 8))[4];
        assert!(row.contains("\u{5c71}\u{2026}") && row.contains(&"\u{5c71}".repeat(10)), "{row}");
    }

    #[test]
    fn an_error_is_drawn_beside_the_last_answer() {
        let mut state = state(ANSWER);
        let later = Instant::now() + Duration::from_secs(7);
        state.hear(Err("the proxy's admin listener does not answer".into()), later);
        let lines = drawn_at(&mut state, (60, 12), later);
        assert!(lines[0].contains("in the last 213 s, "), "{lines:?}");
        assert_eq!(lines[1], "the proxy's admin listener does not answer");
        assert!(lines.iter().any(|line| line.contains("37..40")), "{lines:?}");
        assert_eq!(drawn_at(&mut state, (60, 3), later)[0], lines[1], "there is one line for both");
        let none = drawn(&mut self::state("{\"since_s\": 4, \"limits\": []}"), (60, 5));
        assert_eq!(none[1], "no key was counted");
    }
}
