//! What a limit should answer, computed plainly from the log: without Weir's code, and with a
//! different formulation of each algorithm.

use std::collections::BTreeMap;

/// A limit, in whole seconds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rule {
    /// `quota` in a window that starts with the first request.
    Window { quota: i64, period_s: i64 },
    /// The same in windows that start at multiples of the period.
    Aligned { quota: i64, period_s: i64 },
    /// A bucket of `burst` that refills at `quota` per `period`: what `gcra` and `token_bucket`
    /// both guarantee.
    Bucket { quota: i64, period_s: i64, burst: i64 },
}

impl Rule {
    /// The rule as written in a policy's configuration.
    pub(super) fn toml(self, name: &str, algorithm: &str) -> String {
        let (quota, period_s, more) = match self {
            Self::Window { quota, period_s } => (quota, period_s, String::new()),
            Self::Aligned { quota, period_s } => {
                (quota, period_s, ", alignment = \"clock\"".into())
            }
            Self::Bucket { quota, period_s, burst } => {
                (quota, period_s, format!(", burst = {burst}"))
            }
        };
        format!(
            "name = \"{name}\", algorithm = \"{algorithm}\", quota = {quota}, period = \"{period_s}s\"{more}"
        )
    }
}

/// The counters of one rule, by client.
pub(super) struct Oracle {
    rule: Rule,
    /// A window's start and count; or when a bucket was last updated, and its content in parts, of
    /// which `period_s` make one request.
    clients: BTreeMap<String, (i64, i64)>,
}

impl Oracle {
    pub(super) fn new(rule: Rule) -> Self {
        Self { rule, clients: BTreeMap::new() }
    }

    /// Whether this request is admitted. If so, it is counted.
    pub(super) fn admits(&mut self, client: &str, at_s: i64) -> bool {
        let known = self.clients.get(client).copied();
        let (admitted, state) = match self.rule {
            Rule::Window { quota, period_s } => match known {
                Some((begin, count)) if at_s < begin + period_s => {
                    (count < quota, (begin, count + i64::from(count < quota)))
                }
                _ => (quota > 0, (at_s, 1)),
            },
            Rule::Aligned { quota, period_s } => {
                let window = at_s.div_euclid(period_s);
                let count = known.filter(|(last, _)| *last == window).map_or(0, |(_, count)| count);
                (count < quota, (window, count + i64::from(count < quota)))
            }
            Rule::Bucket { quota, period_s, burst } => {
                let full = burst * period_s;
                let level =
                    known.map_or(full, |(last, level)| full.min(level + (at_s - last) * quota));
                let admitted = level >= period_s;
                (admitted, (at_s, if admitted { level - period_s } else { level }))
            }
        };
        self.clients.insert(client.to_owned(), state);
        admitted
    }
}

#[test]
fn the_oracle_counts_as_one_would_by_hand() {
    let told = |rule, times: &[i64]| {
        let mut oracle = Oracle::new(rule);
        times
            .iter()
            .map(|at_s| if oracle.admits("a", *at_s) { '+' } else { '-' })
            .collect::<String>()
    };
    assert_eq!(
        told(Rule::Window { quota: 2, period_s: 10 }, &[3, 4, 5, 12, 13, 14, 22, 23]),
        "++--++-+"
    );
    assert_eq!(
        told(Rule::Aligned { quota: 2, period_s: 10 }, &[3, 4, 5, 9, 10, 10, 10, 19, 20]),
        "++--++--+"
    );
    assert_eq!(
        told(Rule::Bucket { quota: 1, period_s: 10, burst: 2 }, &[0, 0, 0, 9, 10, 10, 40, 40, 40]),
        "++--+-++-"
    );
}
