//! What an engine runs and what its counters hold: texts and numbers, without their meaning.

/// Numbers of a counter's algorithm, at most.
pub const NUMBERS_MAX: usize = 6;

/// An algorithm's Lua.
#[derive(PartialEq, Eq)]
pub struct Program {
    /// `fixed_window`, `gcra`, ...: a Lua identifier, one name for one text.
    pub name: &'static str,
    /// The chunk; its last line is `return { take = take, give_back = give_back }`.
    pub text: &'static str,
    /// What its counters are made of.
    pub kind: Kind,
    /// Of [`Kind::Numbers`]: how many of the three it uses, from the first; the others are always 0
    /// and are not stored on Redis.
    pub state: usize,
    /// How many of a cell's numbers it reads, at most [`NUMBERS_MAX`].
    pub numbers: usize,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Program({})", self.name)
    }
}

/// What a program's counters are made of. Every program decides from three whole numbers: of
/// [`Kind::Numbers`] they are the state, of the others what the engine reads out of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Three whole numbers, all 0 where there is no counter.
    Numbers,
    /// Units, each with its instant. Read: how many lie within the last period, and the instant of
    /// the one that must leave before the cost fits. Numbers: the capacity, the period.
    Log,
    /// Counts of sub-windows, packed. Read: the units of the last `buckets`, and the instant at
    /// which enough of them have left. Numbers: the capacity, a sub-window's length, how many there
    /// are.
    Buckets,
    /// Leases, each with the instant at which it ends unless it is renewed. Read: how many there
    /// are. Numbers: the capacity, a lease's length, how much later one may end and count.
    Leases,
}

/// What a counter holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Three numbers.
    Numbers([i64; 3]),
    /// An instant for each unit, in their order: of a log when it came, of leases when it ends.
    Members(Vec<u64>),
    /// The number of the last sub-window, and the units of each in its place.
    Buckets {
        /// Counted from 1970.
        last: u64,
        /// A sub-window's place is its number modulo their count.
        counts: Vec<u32>,
    },
}

/// The Lua file beside an algorithm's description.
macro_rules! program {
    ($name:literal, $kind:ident, state $state:literal, numbers $numbers:literal) => {{
        static PROGRAM: $crate::Program = $crate::Program {
            name: $name,
            text: include_str!(concat!($name, ".lua")),
            kind: $crate::Kind::$kind,
            state: $state,
            numbers: $numbers,
        };
        Some(&PROGRAM)
    }};
}
pub(crate) use program;
