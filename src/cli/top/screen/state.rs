//! What is on the screen: the last answer, the limit that is chosen, how far down its keys are
//! scrolled, their order. Draws nothing.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::super::table::{Order, TopLimit, TopTable};

/// An answer that is older than this is marked as old.
const FRESH: Duration = Duration::from_secs(3);

/// What is shown.
#[derive(Debug)]
pub(super) struct State {
    pub(super) address: SocketAddr,
    pub(super) table: TopTable,
    /// Why the last question has no answer.
    pub(super) error: Option<String>,
    answered: Instant,
    /// The name of the limit that was chosen by hand: others come and go. The first one if it is
    /// not there.
    chosen: Option<String>,
    /// The key in the first line. The screen lowers it to what fills it.
    pub(super) first: usize,
    /// Lines for keys, when it was drawn last.
    pub(super) lines: usize,
    pub(super) order: Order,
    /// Digests instead of texts.
    pub(super) digests: bool,
}

impl State {
    pub(super) fn new(address: SocketAddr, table: TopTable, now: Instant) -> Self {
        Self {
            address,
            table,
            error: None,
            answered: now,
            chosen: None,
            first: 0,
            lines: 0,
            order: Order::Units,
            digests: false,
        }
    }

    /// An answer has come, or an error instead of it.
    pub(super) fn hear(&mut self, answer: Result<TopTable, String>, now: Instant) {
        match answer {
            Ok(mut table) => {
                table.limits.iter_mut().for_each(|limit| limit.order(self.order));
                (self.table, self.error, self.answered) = (table, None, now);
            }
            Err(error) => self.error = Some(error),
        }
    }

    /// Seconds since the last answer, where there should have been another one since.
    pub(super) fn old_s(&self, now: Instant) -> Option<u64> {
        let age = now.saturating_duration_since(self.answered);
        (age > FRESH).then_some(age.as_secs())
    }

    /// The index of the limit whose keys are shown.
    pub(super) fn at(&self) -> usize {
        let chosen = self.chosen.as_ref();
        let at = self.table.limits.iter().position(|limit| Some(&limit.name) == chosen);
        at.unwrap_or(0)
    }

    /// The limit whose keys are shown.
    pub(super) fn limit(&self) -> Option<&TopLimit> {
        self.table.limits.get(self.at())
    }

    /// Does what an event asks for. Returns whether that was to quit.
    pub(super) fn is_over_after(&mut self, event: &Event) -> bool {
        let Event::Key(KeyEvent { code, modifiers, kind, .. }) = event else { return false };
        if *kind == KeyEventKind::Release {
            return false;
        }
        let page = self.lines.max(1);
        match code {
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => return true,
            KeyCode::Right | KeyCode::Tab | KeyCode::Char('l') => self.choose(true),
            KeyCode::Left | KeyCode::BackTab | KeyCode::Char('h') => self.choose(false),
            KeyCode::Down | KeyCode::Char('j') => self.first = self.first.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => self.first = self.first.saturating_sub(1),
            KeyCode::PageDown | KeyCode::Char(' ') => self.first = self.first.saturating_add(page),
            KeyCode::PageUp => self.first = self.first.saturating_sub(page),
            KeyCode::Home => self.first = 0,
            KeyCode::End => self.first = usize::MAX,
            KeyCode::Char('s') => self.sort(),
            KeyCode::Char('d') => self.digests = !self.digests,
            _ => {}
        }
        false
    }

    /// The next limit or the one before, around the ends.
    fn choose(&mut self, next: bool) {
        let count = self.table.limits.len();
        let step = if next { 1 } else { count.saturating_sub(1) };
        let at = (self.at() + step).checked_rem(count).unwrap_or(0);
        self.chosen = self.table.limits.get(at).map(|limit| limit.name.clone());
        self.first = 0;
    }

    fn sort(&mut self) {
        self.order = match self.order {
            Order::Units => Order::Refusals,
            Order::Refusals => Order::Units,
        };
        self.first = 0;
        self.table.limits.iter_mut().for_each(|limit| limit.order(self.order));
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::table::tests::ANSWER;
    use super::*;

    #[test]
    fn keys_choose_scroll_sort_and_quit() {
        let now = Instant::now();
        let table = || TopTable::read(ANSWER, 10).unwrap();
        let mut state = State::new(([127, 0, 0, 1], 9901).into(), table(), now);
        let plain = KeyModifiers::NONE;
        let press = |state: &mut State, code, modifiers| {
            state.is_over_after(&Event::Key(KeyEvent::new(code, modifiers)))
        };
        for (code, at) in [(KeyCode::Tab, 1), (KeyCode::Right, 0), (KeyCode::BackTab, 1)] {
            assert!(!press(&mut state, code, plain));
            assert_eq!(state.at(), at, "{code:?}");
        }
        // The chosen one stays chosen when another one is new, or its own is gone for a while.
        let mut more = table();
        more.limits.insert(0, TopLimit { name: "a".into(), ..TopLimit::default() });
        state.hear(Ok(more), now);
        assert_eq!(state.limit().unwrap().name, "p, r, l");
        state.hear(Ok(TopTable::default()), now);
        assert!(state.limit().is_none() && !press(&mut state, KeyCode::Left, plain));
        state.hear(Ok(table()), now);
        assert_eq!(state.limit().unwrap().name, "public, per-minute");

        press(&mut state, KeyCode::Char('s'), plain);
        assert_eq!(state.limit().unwrap().keys[0].digest, "01", "refused most");
        state.hear(Ok(table()), now);
        assert_eq!(state.limit().unwrap().keys[0].digest, "01", "and with the next answer");
        press(&mut state, KeyCode::Down, plain);
        press(&mut state, KeyCode::PageDown, plain);
        assert_eq!(state.first, 2);
        press(&mut state, KeyCode::PageUp, plain);
        assert_eq!(state.first, 1);
        press(&mut state, KeyCode::End, plain);
        press(&mut state, KeyCode::Down, plain);
        press(&mut state, KeyCode::Home, plain);
        assert_eq!(state.first, 0);

        assert!(!state.is_over_after(&Event::Resize(1, 1)));
        assert!(!press(&mut state, KeyCode::Char('c'), plain));
        for (code, modifiers) in [
            (KeyCode::Char('q'), plain),
            (KeyCode::Esc, plain),
            (KeyCode::Char('c'), KeyModifiers::CONTROL),
        ] {
            assert!(press(&mut state, code, modifiers), "{code:?}");
        }
    }

    #[test]
    fn an_old_answer_stays_and_is_known_to_be_old() {
        let now = Instant::now();
        let table = TopTable::read(ANSWER, 10).unwrap();
        let mut state = State::new(([127, 0, 0, 1], 9901).into(), table.clone(), now);
        let later = now + Duration::from_secs(9);
        state.hear(Err("gone".into()), later);
        assert_eq!((&state.table, state.old_s(later)), (&table, Some(9)));
        state.hear(Ok(table), later);
        assert_eq!((state.error.as_ref(), state.old_s(later)), (None, None));
    }
}
