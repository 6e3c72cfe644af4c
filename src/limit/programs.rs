//! What each algorithm of a plan becomes for the engine: a Lua program, its numbers, and the name of its state's shape.
//!
//! The only place that knows both `plan::Algorithm` and `lua/`. To add an algorithm: its file in `lua/`, a static here, an arm in each match.

use crate::engine::Program;
use crate::plan::{Algorithm, Alignment};

static FIXED_WINDOW: Program = Program { name: "fixed_window", text: include_str!("../../lua/fixed_window.lua") };
static TOKEN_BUCKET: Program = Program { name: "token_bucket", text: include_str!("../../lua/token_bucket.lua") };
static GCRA: Program = Program { name: "gcra", text: include_str!("../../lua/gcra.lua") };

/// The Lua that decides `algorithm`.
pub(super) fn program(algorithm: &Algorithm) -> &'static Program {
    match algorithm {
        Algorithm::FixedWindow { .. } => &FIXED_WINDOW,
        Algorithm::TokenBucket { .. } => &TOKEN_BUCKET,
        Algorithm::Gcra { .. } => &GCRA,
    }
}

/// Quota, period in time units, burst, and where a window begins (0: at the first request, 1: by the clock; 0 where there are no windows).
pub(super) fn numbers(algorithm: &Algorithm) -> [u64; 4] {
    let rate = algorithm.rate();
    let by_clock = matches!(algorithm, Algorithm::FixedWindow { alignment: Alignment::Clock, .. });
    [rate.amount, rate.period_units(), algorithm.capacity(), u64::from(by_clock)]
}

/// Microseconds in the limit's time unit.
pub(super) fn unit_us(algorithm: &Algorithm) -> u32 {
    // 1 or 1000.
    u32::try_from(algorithm.rate().unit_us()).unwrap_or(1)
}

/// Whether nothing can ever pass: an amount or a burst of 0. Such a limit never reaches Lua.
pub(super) fn never_passes(algorithm: &Algorithm) -> bool {
    algorithm.rate().amount == 0 || algorithm.capacity() == 0
}

/// What gives a counter's state its meaning. Two algorithms of one shape may use one state; of two shapes never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    format: Format,
    per_ms: u64,
}

/// How a state is to be read: an algorithm, and where its windows begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    WindowFromFirst,
    WindowByClock,
    TokenBucket,
    Gcra,
}

impl Shape {
    pub(super) fn of(algorithm: &Algorithm) -> Self {
        let format = match algorithm {
            Algorithm::FixedWindow { alignment: Alignment::FirstRequest, .. } => Format::WindowFromFirst,
            Algorithm::FixedWindow { alignment: Alignment::Clock, .. } => Format::WindowByClock,
            Algorithm::TokenBucket { .. } => Format::TokenBucket,
            Algorithm::Gcra { .. } => Format::Gcra,
        };
        Self { format, per_ms: algorithm.rate().per_ms }
    }

    /// `fw1-60000c`: the algorithm with the version of its state's format, the period in milliseconds, the alignment. Short, because it
    /// stands in every key. A new meaning of an algorithm's state gets a new number.
    pub(super) fn text(&self) -> String {
        let (code, alignment) = match self.format {
            Format::WindowFromFirst => ("fw1", "f"),
            Format::WindowByClock => ("fw1", "c"),
            Format::TokenBucket => ("tb1", ""),
            Format::Gcra => ("gcra1", ""),
        };
        format!("{code}-{}{alignment}", self.per_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Rate;

    const MINUTE: Rate = Rate { amount: 100, per_ms: 60_000 };

    fn window(rate: Rate, alignment: Alignment) -> Algorithm {
        Algorithm::FixedWindow { rate, alignment }
    }

    #[test]
    fn amount_and_burst_leave_the_shape_as_it_is() {
        let shape = |burst, amount| Shape::of(&Algorithm::Gcra { burst, rate: Rate { amount, per_ms: 1000 } });
        assert_eq!(shape(1, 1), shape(20, 10));
    }

    #[test]
    fn algorithm_period_and_alignment_each_change_it() {
        let shapes = [
            window(MINUTE, Alignment::Clock),
            window(MINUTE, Alignment::FirstRequest),
            window(Rate { per_ms: 60_001, ..MINUTE }, Alignment::Clock),
            Algorithm::Gcra { burst: 1, rate: MINUTE },
            Algorithm::TokenBucket { burst: 1, rate: MINUTE },
        ]
        .map(|algorithm| Shape::of(&algorithm).text());
        assert_eq!(shapes, ["fw1-60000c", "fw1-60000f", "fw1-60001c", "gcra1-60000", "tb1-60000"]);
    }

    #[test]
    fn numbers_are_in_the_limits_own_unit() {
        assert_eq!(numbers(&window(MINUTE, Alignment::Clock)), [100, 60_000_000, 100, 1]);
        assert_eq!(numbers(&window(MINUTE, Alignment::FirstRequest)), [100, 60_000_000, 100, 0]);
        let day = Algorithm::Gcra { burst: 7, rate: Rate { amount: 5, per_ms: 86_400_000 } };
        assert_eq!((numbers(&day), unit_us(&day)), ([5, 86_400_000, 7, 0], 1000));
    }

    #[test]
    fn a_program_bears_its_algorithms_name() {
        for algorithm in [
            window(MINUTE, Alignment::Clock),
            Algorithm::Gcra { burst: 1, rate: MINUTE },
            Algorithm::TokenBucket { burst: 1, rate: MINUTE },
        ] {
            assert_eq!(program(&algorithm).name, algorithm.name());
        }
    }
}
