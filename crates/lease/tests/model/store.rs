//! The store of the model: one counter, kept as the engines keep it and decided by its program.

use crate::programs::{Program, Taken};

/// One counter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Store {
    /// Three whole numbers.
    Numbers([i64; 3]),
    /// A log: each unit with its instant.
    Log(Vec<Member>),
    /// Sub-windows that count, in order.
    SubWindows(Vec<(i64, i64)>),
    /// Places in use, with the instant at which each ends.
    Places(Vec<Member>),
}

/// Units that are kept by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    pub at: i64,
    pub units: i64,
    pub name: Name,
}

/// Names units: the process with which of its starts, and the number of its call. `None`: a request
/// that asked alone.
pub type Name = Option<((u8, u8), u32)>;

/// How a counter is run.
#[derive(Clone, Debug)]
pub struct Running {
    pub program: Program,
    /// The numbers that the program reads, without those that depend on the date.
    pub numbers: Vec<i64>,
}

/// The length of the calendar's periods, in time units: the model has no other calendar.
pub const CALENDAR: i64 = 20_000;

impl Running {
    pub fn new_store(&self) -> Store {
        match self.program.name {
            "sliding_window_log" => Store::Log(Vec::new()),
            "sliding_window_buckets" => Store::SubWindows(Vec::new()),
            "concurrency" => Store::Places(Vec::new()),
            _ => Store::Numbers([0; 3]),
        }
    }

    /// Takes `units` at `now`, all or none.
    pub fn take(&self, store: &mut Store, now: i64, units: i64, name: Name) -> Taken {
        let numbers = self.numbers_at(now);
        let counted = self.counted(store, now);
        // Instants at which units leave: only what an answer tells of the future depends on them.
        let arguments = match store {
            Store::Numbers(state) => *state,
            Store::Log(_) => [counted, now, 0],
            Store::SubWindows(_) => [counted, now, now - now % self.length()],
            Store::Places(_) => [counted, 0, 0],
        };
        let taken = self.program.take(arguments, now, units, &numbers);
        if taken.fits {
            self.write(store, now, units, name, taken.state);
        }
        taken
    }

    /// Takes as many units as there are, at least `least` and at most `most`. Returns how many.
    pub fn lease(
        &self,
        store: &mut Store,
        now: i64,
        (least, most): (u64, u64),
        name: Name,
    ) -> Option<(u64, Taken)> {
        (least..=most).rev().find_map(|units| {
            let taken = self.take(store, now, units as i64, name);
            taken.fits.then_some((units, taken))
        })
    }

    fn write(&self, store: &mut Store, now: i64, units: i64, name: Name, state: [i64; 3]) {
        match store {
            Store::Numbers(numbers) => *numbers = state,
            Store::Log(members) => {
                let period = self.numbers[1];
                members.retain(|member| member.at > now - period && member.at <= now);
                members.push(Member { at: now, units, name });
            }
            Store::SubWindows(windows) => {
                let (window, buckets) = (now / self.length(), self.numbers[2]);
                if windows.iter().any(|(number, _)| *number > window) {
                    windows.clear();
                }
                windows.retain(|(number, _)| *number > window - buckets);
                match windows.iter_mut().find(|(number, _)| *number == window) {
                    Some((_, count)) => *count += units,
                    None => windows.push((window, units)),
                }
            }
            Store::Places(members) => {
                let (length, slack) = (self.length(), self.numbers[2]);
                members.retain(|member| member.at > now && member.at <= now + length + slack);
                members.push(Member { at: now + length, units, name });
            }
        }
    }

    /// Returns units that were taken at `taken_at`.
    pub fn give_back(&self, store: &mut Store, now: i64, units: i64, taken_at: i64, name: Name) {
        let numbers = self.numbers_at(now);
        let length = self.length();
        match store {
            Store::Numbers(state) => {
                *state = self.program.give_back(*state, now, units, taken_at, &numbers);
            }
            Store::Log(members) | Store::Places(members) => {
                if let Some(member) = members.iter_mut().find(|member| member.name == name) {
                    member.units = (member.units - units).max(0);
                }
                members.retain(|member| member.units > 0);
            }
            Store::SubWindows(windows) => {
                let window = taken_at / length;
                for (_, count) in windows.iter_mut().filter(|(number, _)| *number == window) {
                    *count = (*count - units).max(0);
                }
            }
        }
    }

    /// The units that count at `now`, where the store counts them.
    fn counted(&self, store: &Store, now: i64) -> i64 {
        match store {
            Store::Numbers(_) => 0,
            Store::Log(members) => {
                let period = self.numbers[1];
                let counts = |member: &&Member| member.at > now - period && member.at <= now;
                members.iter().filter(counts).map(|member| member.units).sum()
            }
            Store::SubWindows(windows) => {
                let (window, buckets) = (now / self.length(), self.numbers[2]);
                if windows.iter().any(|(number, _)| *number > window) {
                    return 0;
                }
                let counts = |(number, _): &&(i64, i64)| *number > window - buckets;
                windows.iter().filter(counts).map(|(_, count)| count).sum()
            }
            Store::Places(members) => {
                let most = now + self.length() + self.numbers[2];
                let counts = |member: &&Member| member.at > now && member.at <= most;
                members.iter().filter(counts).map(|member| member.units).sum()
            }
        }
    }

    /// The length of a sub-window or of a place.
    fn length(&self) -> i64 {
        self.numbers.get(1).copied().unwrap_or(1).max(1)
    }

    fn numbers_at(&self, now: i64) -> Vec<i64> {
        if self.program.name != "quota" {
            return self.numbers.clone();
        }
        let this = now - now % CALENDAR;
        let starts = [this - CALENDAR, this, this + CALENDAR, this + 2 * CALENDAR];
        [&self.numbers[..2], &starts, &[0]].concat()
    }
}
