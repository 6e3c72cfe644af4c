//! What an engine runs and what its counters hold: texts and numbers without their meaning.

/// Maximum number of numbers that a counter's algorithm reads.
pub const NUMBERS_MAX: usize = 7;

/// An algorithm's Lua.
#[derive(PartialEq, Eq)]
pub struct Program {
    /// `fixed_window`, `gcra`, ...: a Lua identifier, unique for each text.
    pub name: &'static str,
    /// The chunk. Its last line returns a table of its functions: `take`, `give_back`, and `charge`
    /// if its units may be owed. A policy runs none, and is smaller without them.
    #[cfg(feature = "host")]
    pub text: &'static str,
    /// What its counters are made of.
    pub kind: Kind,
    /// How many of the three numbers a program of [`Kind::Numbers`] uses, from the first. The
    /// others are always 0, and are not stored on Redis.
    pub state: usize,
    /// How many of a cell's numbers it reads, at most [`NUMBERS_MAX`].
    pub numbers: usize,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Program({})", self.name)
    }
}

/// What a program's counters are made of. Every program decides from three whole numbers: for
/// [`Kind::Numbers`] they are the state itself, for the others the engine computes them from the
/// stored units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Three whole numbers, all 0 if there is no counter.
    Numbers,
    /// Units, each with its instant. The program sees how many lie within the last period, and the
    /// instant of the unit that must leave before the cost fits. Its numbers begin with the
    /// capacity and the period.
    Log,
    /// Counts of sub-windows, packed. The program sees the units of the last `buckets` sub-windows,
    /// and the instant at which enough of them have left. Its numbers begin with the capacity, the
    /// length of a sub-window, and how many there are.
    Buckets,
    /// Leases, each with the instant at which it ends unless renewed. The program sees how many
    /// there are. Its numbers begin with the capacity, the length of a lease, and the slack: how
    /// much later one may end and still count.
    Leases,
}

/// What a counter holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Three numbers.
    Numbers([i64; 3]),
    /// One instant per unit, in order: when a log's unit was taken, or when a lease ends.
    Members(Vec<u64>),
    /// The number of the last sub-window, and the units of each.
    Buckets {
        /// Counted from 1970.
        last: u64,
        /// Indexed by a sub-window's number modulo their count.
        counts: Vec<u64>,
    },
}

/// The program in the Lua file next to an algorithm's description.
macro_rules! program {
    ($name:literal, $kind:ident, state $state:literal, numbers $numbers:literal) => {{
        static PROGRAM: $crate::Program = $crate::Program {
            name: $name,
            #[cfg(feature = "host")]
            text: include_str!(concat!($name, ".lua")),
            kind: $crate::Kind::$kind,
            state: $state,
            numbers: $numbers,
        };
        Some(&PROGRAM)
    }};
}
pub(crate) use program;
