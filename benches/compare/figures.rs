//! What was measured, and how it is summarised: medians, and the spread of the rounds.

use super::cases::{Case, Measure};

/// One run of one case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    pub requests_a_second: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    /// CPU time of the proxy per request.
    pub user_us: f64,
    pub kernel_us: f64,
    /// CPU time of all its Redis servers per request.
    pub redis_us: Option<f64>,
    /// The share of its core that the proxy used. Below 1 the load generator was the bottleneck.
    pub busy: f64,
    /// Memory before the first request, and at most.
    pub rest_mib: f64,
    pub peak_mib: f64,
}

impl Figure {
    pub fn cpu_us(&self) -> f64 {
        self.user_us + self.kernel_us
    }
}

/// All rounds of a case.
pub struct Row {
    pub case: Case,
    pub rounds: Vec<Figure>,
}

impl Row {
    pub fn median(&self, of: impl Fn(&Figure) -> f64) -> f64 {
        median(self.rounds.iter().map(of).collect())
    }

    pub fn cpu_us(&self) -> f64 {
        self.median(Figure::cpu_us)
    }

    /// The CPU time of the cheapest and the most expensive round.
    pub fn range_us(&self) -> (f64, f64) {
        let all = || self.rounds.iter().map(Figure::cpu_us);
        (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max))
    }

    /// The difference between the cheapest and the most expensive round, as a share of the median.
    pub fn spread(&self) -> f64 {
        let (least, most) = self.range_us();
        (most - least) / self.cpu_us()
    }

    pub fn redis_us(&self) -> Option<f64> {
        let all: Vec<f64> = self.rounds.iter().filter_map(|figure| figure.redis_us).collect();
        (!all.is_empty()).then(|| median(all))
    }

    pub fn measure(&self, measure: Measure) -> Option<f64> {
        match measure {
            Measure::Cpu => Some(self.cpu_us()),
            Measure::RedisCpu => self.redis_us(),
        }
    }
}

/// The row of that name, if it was measured.
pub fn find<'a>(rows: &'a [Row], name: &str) -> Option<&'a Row> {
    rows.iter().find(|row| row.case.name() == name)
}

/// The middle value, or the mean of the two in the middle; 0 if there are none.
pub fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    let middle = all.len() / 2;
    match (all.len() % 2, all.get(middle)) {
        (_, None) => 0.0,
        (0, Some(upper)) => (all[middle - 1] + upper) / 2.0,
        (_, Some(only)) => *only,
    }
}
