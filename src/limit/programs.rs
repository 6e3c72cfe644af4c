//! What each algorithm of a plan becomes for the engine: a Lua program, its numbers, and the name
//! of its state's shape.
//!
//! The only place that knows both `plan::Algorithm` and `lua/`. To add an algorithm: its file in
//! `lua/`, a static here, an arm in each match.

use std::time::Duration;

use crate::engine::{Kind, NUMBERS_MAX, Program};
use crate::plan::{Algorithm, Alignment, Calendar};

macro_rules! program {
    ($name:literal, $kind:ident, $state:literal, $numbers:literal) => {
        Program {
            name: $name,
            text: include_str!(concat!("../../lua/", $name, ".lua")),
            kind: Kind::$kind,
            state: $state,
            numbers: $numbers,
        }
    };
}

static FIXED_WINDOW: Program = program!("fixed_window", Numbers, 2, 3);
static SLIDING_WINDOW_COUNTER: Program = program!("sliding_window_counter", Numbers, 3, 2);
static SLIDING_WINDOW_LOG: Program = program!("sliding_window_log", Log, 0, 2);
static SLIDING_WINDOW_BUCKETS: Program = program!("sliding_window_buckets", Buckets, 0, 3);
static TOKEN_BUCKET: Program = program!("token_bucket", Numbers, 3, 3);
static GCRA: Program = program!("gcra", Numbers, 2, 3);
static LEAKY_BUCKET: Program = program!("leaky_bucket", Numbers, 3, 5);
static CONCURRENCY: Program = program!("concurrency", Leases, 0, 3);
static QUOTA: Program = program!("quota", Numbers, 2, 6);

/// All of them.
pub(super) static NAMES: [&str; 9] = [
    FIXED_WINDOW.name,
    SLIDING_WINDOW_COUNTER.name,
    SLIDING_WINDOW_LOG.name,
    SLIDING_WINDOW_BUCKETS.name,
    TOKEN_BUCKET.name,
    GCRA.name,
    LEAKY_BUCKET.name,
    CONCURRENCY.name,
    QUOTA.name,
];

/// Fails: what a plan asks for that nobody has. A script's error is a store error, so that the
/// limit's own fallback decides.
pub(super) static NO_SUCH_SCRIPT: Program = Program {
    name: "no_such_script",
    text: "local function take() return error('there is no such script') end\nlocal give_back = take\nreturn { take = take, give_back = give_back }",
    kind: Kind::Numbers,
    state: 3,
    numbers: 0,
};

/// Of a script's text, in its counters' keys: 64 bits, against mistakes and not against attackers.
const SCRIPT_DIGEST_CHARS: usize = 16;

/// The place of a leaky bucket's `may_wait` among its numbers.
pub(super) const MAY_WAIT: usize = 4;

/// The Lua that decides `algorithm`; `None` of a script: those are the operator's.
pub(super) fn shipped(algorithm: &Algorithm) -> Option<&'static Program> {
    Some(match algorithm {
        Algorithm::FixedWindow { .. } => &FIXED_WINDOW,
        Algorithm::SlidingWindowCounter { .. } => &SLIDING_WINDOW_COUNTER,
        Algorithm::SlidingWindowLog { .. } => &SLIDING_WINDOW_LOG,
        Algorithm::SlidingWindowBuckets { .. } => &SLIDING_WINDOW_BUCKETS,
        Algorithm::TokenBucket { .. } => &TOKEN_BUCKET,
        Algorithm::Gcra { .. } => &GCRA,
        Algorithm::LeakyBucket { .. } => &LEAKY_BUCKET,
        Algorithm::Concurrency { .. } => &CONCURRENCY,
        Algorithm::Quota { .. } => &QUOTA,
        Algorithm::Script { .. } => return None,
    })
}

/// The algorithm's numbers, as its file's header says. A lease has the length `lease`, and a
/// calendar's periods are those around `now_us` (microseconds since 1970).
pub(super) fn numbers(algorithm: &Algorithm, lease: Duration, now_us: i64) -> [i64; NUMBERS_MAX] {
    // Every one of them is below 2^53: plan.
    let [rate, period] =
        algorithm.rate().map_or([0; 2], |rate| [rate.amount as i64, rate.period_units() as i64]);
    match algorithm {
        Algorithm::FixedWindow { alignment, .. } => {
            [rate, period, i64::from(*alignment == Alignment::Clock), 0, 0, 0]
        }
        Algorithm::SlidingWindowCounter { .. } | Algorithm::SlidingWindowLog { .. } => {
            [rate, period, 0, 0, 0, 0]
        }
        Algorithm::SlidingWindowBuckets { buckets, .. } => {
            [rate, length(period, *buckets), i64::from(*buckets), 0, 0, 0]
        }
        Algorithm::TokenBucket { burst, .. } | Algorithm::Gcra { burst, .. } => {
            [rate, period, *burst as i64, 0, 0, 0]
        }
        Algorithm::LeakyBucket { burst, max_delay_ms, .. } => {
            let delay = *max_delay_ms as i64 * (1000 / algorithm.unit_us() as i64);
            [rate, period, *burst as i64, delay, 1, 0]
        }
        Algorithm::Concurrency { amount } => {
            [*amount as i64, lease.as_millis() as i64, slack_ms(lease), 0, 0, 0]
        }
        Algorithm::Quota { amount, calendar, conditional } => {
            let [before, this, next, after] = calendar.starts(now_us.div_euclid(1000));
            [*amount as i64, i64::from(*conditional), before, this, next, after]
        }
        Algorithm::Script { arguments, .. } => {
            std::array::from_fn(|index| arguments.get(index).copied().unwrap_or(0))
        }
    }
}

/// How much later than a lease can end by now one may end and still count. In memory a place is
/// held for as long as it is there, however far the clock has stepped back since; on Redis, where
/// nobody may be left to give it back, not at all.
fn slack_ms(lease: Duration) -> i64 {
    if lease == LEASE_IN_MEMORY { lease.as_millis() as i64 } else { 0 }
}

/// In memory a lease ends with its request, or with the process: longer than any request.
pub(super) const LEASE_IN_MEMORY: Duration = Duration::from_secs(400 * 24 * 3600);

/// A sub-window's length: rounded up, so that all of them cover the period.
fn length(period: i64, buckets: u32) -> i64 {
    let buckets = i64::from(buckets.max(1));
    (period + buckets - 1) / buckets
}

/// Microseconds in the limit's time unit.
pub(super) fn unit_us(algorithm: &Algorithm) -> u32 {
    // 1 or 1000.
    u32::try_from(algorithm.unit_us()).unwrap_or(1)
}

/// Whether nothing can ever pass: an amount of 0, or a burst of 0 where none may wait. Such a limit
/// never reaches Lua.
pub(super) fn never_passes(algorithm: &Algorithm) -> bool {
    match algorithm {
        Algorithm::TokenBucket { burst, rate } | Algorithm::Gcra { burst, rate } => {
            *burst == 0 || rate.amount == 0
        }
        Algorithm::LeakyBucket { rate, .. } => rate.amount == 0 || algorithm.most() == Some(0),
        Algorithm::Quota { amount, conditional, .. } => *conditional && *amount == 0,
        _ => algorithm.amount() == Some(0),
    }
}

/// What gives a counter's state its meaning, `fw1-60000c`: the algorithm with the version of its
/// state's format, the period in milliseconds, and what else its state depends on. Two algorithms
/// of one shape may use one state; of two shapes never. Short, because it stands in every key. A
/// new meaning of an algorithm's state gets a new number.
pub(super) fn shape(algorithm: &Algorithm, lease: Duration) -> String {
    let per_ms = algorithm.rate().map_or(0, |rate| rate.per_ms);
    match algorithm {
        Algorithm::FixedWindow { alignment: Alignment::FirstRequest, .. } => {
            format!("fw1-{per_ms}f")
        }
        Algorithm::FixedWindow { alignment: Alignment::Clock, .. } => format!("fw1-{per_ms}c"),
        Algorithm::SlidingWindowCounter { .. } => format!("sc1-{per_ms}"),
        Algorithm::SlidingWindowLog { .. } => format!("sl2-{per_ms}"),
        Algorithm::SlidingWindowBuckets { buckets, .. } => format!("sb1-{per_ms}x{buckets}"),
        Algorithm::TokenBucket { .. } => format!("tb1-{per_ms}"),
        Algorithm::Gcra { .. } => format!("gcra2-{per_ms}"),
        Algorithm::LeakyBucket { .. } => format!("lb1-{per_ms}"),
        Algorithm::Concurrency { .. } => format!("cc1-{}", lease.as_millis()),
        Algorithm::Quota { calendar, .. } => format!("q1-{}", period(calendar)),
        // Its text is not known here: `shape_of_script`.
        Algorithm::Script { name, .. } => format!("script-{name}"),
    }
}

/// The same of an operator's script: another text is another meaning, so an edited script starts
/// afresh.
pub(super) fn shape_of_script(name: &str, program: &Program) -> String {
    let digest = blake3::hash(program.text.as_bytes()).to_hex();
    format!("script-{name}-{}", digest.get(..SCRIPT_DIGEST_CHARS).unwrap_or_default())
}

/// Whether two algorithms have one shape, without writing it down.
pub(super) fn same_shape(one: &Algorithm, other: &Algorithm) -> bool {
    match (one, other) {
        (
            Algorithm::FixedWindow { rate: a, alignment: x },
            Algorithm::FixedWindow { rate: b, alignment: y },
        ) => a.per_ms == b.per_ms && x == y,
        (
            Algorithm::SlidingWindowBuckets { rate: a, buckets: x },
            Algorithm::SlidingWindowBuckets { rate: b, buckets: y },
        ) => a.per_ms == b.per_ms && x == y,
        (
            Algorithm::SlidingWindowCounter { rate: a },
            Algorithm::SlidingWindowCounter { rate: b },
        )
        | (Algorithm::SlidingWindowLog { rate: a }, Algorithm::SlidingWindowLog { rate: b })
        | (Algorithm::TokenBucket { rate: a, .. }, Algorithm::TokenBucket { rate: b, .. })
        | (Algorithm::Gcra { rate: a, .. }, Algorithm::Gcra { rate: b, .. })
        | (Algorithm::LeakyBucket { rate: a, .. }, Algorithm::LeakyBucket { rate: b, .. }) => {
            a.per_ms == b.per_ms
        }
        (Algorithm::Concurrency { .. }, Algorithm::Concurrency { .. }) => true,
        (Algorithm::Quota { calendar: a, .. }, Algorithm::Quota { calendar: b, .. }) => a == b,
        (Algorithm::Script { name: a, .. }, Algorithm::Script { name: b, .. }) => a == b,
        _ => false,
    }
}

/// A calendar in a key: its zone's `/` becomes `.`, which no zone's name has.
fn period(calendar: &Calendar) -> String {
    let (code, zone) = match calendar {
        Calendar::Hour(zone) => ("h".to_owned(), zone),
        Calendar::Day(zone) => ("d".to_owned(), zone),
        Calendar::Week(zone) => ("w".to_owned(), zone),
        Calendar::Month { time_zone, anchor_day } => (format!("m{anchor_day}"), time_zone),
        Calendar::Forever => return "ever".into(),
    };
    format!("{code}-{}", zone.name().replace('/', "."))
}

#[cfg(test)]
pub(super) fn samples() -> Vec<(Algorithm, Option<&'static Program>)> {
    tests::of_each_kind()
        .into_iter()
        .map(|(algorithm, _)| (algorithm.clone(), shipped(&algorithm)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Rate, TimeZone};

    const MINUTE: Rate = Rate { amount: 100, per_ms: 60_000 };

    fn window(rate: Rate, alignment: Alignment) -> Algorithm {
        Algorithm::FixedWindow { rate, alignment }
    }

    const LEASE: Duration = Duration::from_secs(10);

    pub(super) fn of_each_kind() -> Vec<(Algorithm, &'static str)> {
        let berlin = || TimeZone::named("Europe/Berlin").unwrap();
        let quota = |calendar| Algorithm::Quota { amount: 5, calendar, conditional: true };
        vec![
            (window(MINUTE, Alignment::Clock), "fw1-60000c"),
            (window(MINUTE, Alignment::FirstRequest), "fw1-60000f"),
            (window(Rate { per_ms: 60_001, ..MINUTE }, Alignment::Clock), "fw1-60001c"),
            (Algorithm::SlidingWindowCounter { rate: MINUTE }, "sc1-60000"),
            (Algorithm::SlidingWindowLog { rate: MINUTE }, "sl2-60000"),
            (Algorithm::SlidingWindowBuckets { rate: MINUTE, buckets: 6 }, "sb1-60000x6"),
            (Algorithm::SlidingWindowBuckets { rate: MINUTE, buckets: 7 }, "sb1-60000x7"),
            (Algorithm::Gcra { burst: 1, rate: MINUTE }, "gcra2-60000"),
            (Algorithm::TokenBucket { burst: 1, rate: MINUTE }, "tb1-60000"),
            (Algorithm::LeakyBucket { burst: 1, rate: MINUTE, max_delay_ms: 5 }, "lb1-60000"),
            (Algorithm::Concurrency { amount: 5 }, "cc1-10000"),
            (quota(Calendar::Day(TimeZone::utc())), "q1-d-UTC"),
            (quota(Calendar::Day(berlin())), "q1-d-Europe.Berlin"),
            (
                quota(Calendar::Month { time_zone: berlin(), anchor_day: 31 }),
                "q1-m31-Europe.Berlin",
            ),
            (quota(Calendar::Forever), "q1-ever"),
            (
                Algorithm::Script { name: "mine".into(), arguments: [1, 2].into_iter().collect() },
                "script-mine",
            ),
        ]
    }

    #[test]
    fn each_shape_is_its_own() {
        let all = of_each_kind();
        for (index, (algorithm, text)) in all.iter().enumerate() {
            assert_eq!(shape(algorithm, LEASE), *text);
            for (other, (another, _)) in all.iter().enumerate() {
                assert_eq!(
                    same_shape(algorithm, another),
                    index == other,
                    "{algorithm:?} {another:?}"
                );
            }
        }
    }

    #[test]
    fn amount_and_burst_leave_the_shape_as_it_is() {
        let gcra = |burst, amount| Algorithm::Gcra { burst, rate: Rate { amount, per_ms: 1000 } };
        assert!(same_shape(&gcra(1, 1), &gcra(20, 10)));
        assert_eq!(shape(&gcra(1, 1), LEASE), shape(&gcra(20, 10), LEASE));
    }

    #[test]
    fn numbers_are_in_the_limits_own_unit() {
        let of = |algorithm: &Algorithm| numbers(algorithm, LEASE, 1_774_785_600_000_000);
        assert_eq!(of(&window(MINUTE, Alignment::Clock)), [100, 60_000_000, 1, 0, 0, 0]);
        assert_eq!(of(&window(MINUTE, Alignment::FirstRequest)), [100, 60_000_000, 0, 0, 0, 0]);
        let day = Rate { amount: 5, per_ms: 86_400_000 };
        let gcra = Algorithm::Gcra { burst: 7, rate: day };
        assert_eq!((of(&gcra), unit_us(&gcra)), ([5, 86_400_000, 7, 0, 0, 0], 1000));
        assert_eq!(
            of(&Algorithm::SlidingWindowBuckets { rate: day, buckets: 7 }),
            [5, 12_342_858, 7, 0, 0, 0],
            "rounded up"
        );
        let leaky = |rate| Algorithm::LeakyBucket { burst: 2, rate, max_delay_ms: 1_500 };
        assert_eq!(of(&leaky(MINUTE)), [100, 60_000_000, 2, 1_500_000, 1, 0]);
        assert_eq!(of(&leaky(day)), [5, 86_400_000, 2, 1_500, 1, 0]);
        let leases = Algorithm::Concurrency { amount: 3 };
        assert_eq!((of(&leases), unit_us(&leases)), ([3, 10_000, 0, 0, 0, 0], 1000));
        let quota = Algorithm::Quota {
            amount: 9,
            calendar: Calendar::Day(TimeZone::utc()),
            conditional: true,
        };
        let day_ms = 86_400_000;
        let noon = 1_774_742_400_000;
        assert_eq!(of(&quota), [9, 1, noon - day_ms, noon, noon + day_ms, noon + 2 * day_ms]);
        assert_eq!(
            of(&Algorithm::Script { name: "s".into(), arguments: [-1, 2].into_iter().collect() }),
            [-1, 2, 0, 0, 0, 0]
        );
    }

    #[test]
    fn a_program_bears_its_algorithms_name_and_reads_as_many_numbers_as_there_are() {
        for (algorithm, _) in of_each_kind() {
            let Some(program) = shipped(&algorithm) else { continue };
            assert_eq!(program.name, algorithm.name());
            let given = numbers(&algorithm, LEASE, 1_774_785_600_000_000);
            assert!(
                given[program.numbers..].iter().all(|number| *number == 0) || program.numbers == 3,
                "{algorithm:?}: {given:?}"
            );
        }
    }

    #[test]
    fn nothing_passes_a_limit_of_0_unless_it_only_counts() {
        let rate = |amount| Rate { amount, per_ms: 1_000 };
        let quota =
            |conditional| Algorithm::Quota { amount: 0, calendar: Calendar::Forever, conditional };
        for (algorithm, never) in [
            (Algorithm::Gcra { burst: 0, rate: rate(5) }, true),
            (Algorithm::Gcra { burst: 5, rate: rate(0) }, true),
            (Algorithm::LeakyBucket { burst: 0, rate: rate(5), max_delay_ms: 1_000 }, false),
            (Algorithm::LeakyBucket { burst: 0, rate: rate(5), max_delay_ms: 0 }, true),
            (Algorithm::Concurrency { amount: 0 }, true),
            (quota(true), true),
            (quota(false), false),
        ] {
            assert_eq!(never_passes(&algorithm), never, "{algorithm:?}");
        }
    }
}
