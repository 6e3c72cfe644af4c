//! A limit under load, and how a process is told of it.

use std::sync::Arc;

use weir_limit::plan::{
    Algorithm, Alignment, Debt, FixedWindow, Gcra, Lease, Limit, Plan, Rate, SlidingWindowLog,
};

/// Processes that decide.
pub(crate) const PROCESSES: usize = 3;
/// A quota that is never used up.
pub(crate) const PLENTY: u64 = 1 << 31;

/// A limit under load.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) algorithm: &'static str,
    /// Units in a second.
    pub(crate) quota: u64,
    pub(crate) burst: u64,
    /// How long a lease lives, in milliseconds; 0 for none.
    pub(crate) life_ms: u64,
    /// Keys that clients choose from, one as often as another.
    pub(crate) keys: u64,
    /// Limits of a plan, each with a tag of its own.
    pub(crate) tags: u64,
    pub(crate) processes: usize,
    /// Requests that each process sends in a second; 0 for clients that ask again as soon as they
    /// are answered.
    pub(crate) demand: [u64; 3],
}

impl Case {
    pub(crate) fn limit(&self) -> Limit {
        let rate = Rate { amount: self.quota, per_ms: 1_000 };
        let algorithm: Algorithm = match self.algorithm {
            "gcra" => Gcra { burst: self.burst, rate, debt: Debt::None }.into(),
            "sliding_window_log" => SlidingWindowLog { rate, debt: Debt::None }.into(),
            _ => FixedWindow { rate, alignment: Alignment::Clock, debt: Debt::None }.into(),
        };
        let lease = (self.life_ms > 0).then(|| Lease::of_ms(self.life_ms));
        Limit { lease, ..Limit::new("everybody", "all", algorithm) }
    }

    /// A plan for each key.
    pub(crate) fn plans(&self) -> Vec<Arc<Plan>> {
        let of = |key: u64, tag: u64| {
            let key = format!("{tag}/{key}");
            Limit { key, name: format!("limit-{tag}"), ..self.limit() }
        };
        let plan = |key: u64| (0..self.tags).map(|tag| of(key, tag)).collect();
        (0..self.keys).map(|key| Arc::new(Plan::new(plan(key)).unwrap())).collect()
    }

    pub(crate) fn arguments(&self) -> Vec<String> {
        let numbers = [self.quota, self.burst, self.life_ms, self.keys, self.tags].into_iter();
        let numbers = numbers.chain(self.demand).map(|number| number.to_string());
        std::iter::once(self.algorithm.to_owned()).chain(numbers).collect()
    }

    pub(crate) fn of_arguments(words: &[String]) -> Self {
        let numbers: Vec<u64> = words[1..].iter().map(|word| word.parse().unwrap()).collect();
        Self {
            name: "",
            algorithm: Box::leak(words[0].clone().into_boxed_str()),
            quota: numbers[0],
            burst: numbers[1],
            life_ms: numbers[2],
            keys: numbers[3],
            tags: numbers[4],
            processes: PROCESSES,
            demand: numbers[5..].try_into().unwrap(),
        }
    }
}

/// A limit on one key, with as many processes as there are, at full speed.
pub(crate) fn case(
    name: &'static str,
    algorithm: &'static str,
    quota: u64,
    burst: u64,
    life_ms: u64,
) -> Case {
    let (keys, tags, processes, demand) = (1, 1, PROCESSES, [0; 3]);
    Case { name, algorithm, quota, burst, life_ms, keys, tags, processes, demand }
}
