//! What a configuration changes for the requests of a log, compared with another one.

use std::collections::HashMap;

use super::record::Record;
use super::tally::{DecidedRequest, Refusal};

/// Maximum number of changes that are shown.
const SHOWN_MAX: usize = 20;

/// Requests by what each of two configurations does with them.
#[derive(Debug, Default)]
pub struct Difference {
    /// They reach their upstreams under both.
    pub pass_both: u64,
    /// They are stopped under both.
    pub stopped_both: u64,
    /// They would be stopped now.
    pub newly_stopped: u64,
    /// They would pass now.
    pub newly_passed: u64,
    /// Requests newly stopped and newly passed, by client.
    pub clients: HashMap<u32, (u64, u64)>,
    /// Requests newly stopped and newly passed, by route under the candidate.
    pub routes: HashMap<String, (u64, u64)>,
    /// The first that would be stopped now.
    pub first: Vec<Refusal>,
}

impl Difference {
    /// Counts a request.
    pub fn add(&mut self, record: &Record, candidate: &DecidedRequest<'_>, against_passes: bool) {
        let (stopped, passed) = match (candidate.verdict.passes(), against_passes) {
            (true, true) => {
                self.pass_both += 1;
                return;
            }
            (false, false) => {
                self.stopped_both += 1;
                return;
            }
            (false, true) => (1, 0),
            (true, false) => (0, 1),
        };
        self.newly_stopped += stopped;
        self.newly_passed += passed;
        let add = |counts: &mut (u64, u64)| {
            counts.0 += stopped;
            counts.1 += passed;
        };
        add(self.clients.entry(record.client).or_default());
        let route = candidate.route.unwrap_or_default();
        match self.routes.get_mut(route) {
            Some(counts) => add(counts),
            None => add(self.routes.entry(route.to_owned()).or_default()),
        }
        if stopped > 0 && self.first.len() < SHOWN_MAX {
            self.first.push(Refusal::of(record, candidate));
        }
    }

    /// The clients that would be stopped most, with their numbers, at most this many.
    #[must_use]
    pub fn top_clients(&self, most: usize) -> Vec<(u32, u64, u64)> {
        let mut all: Vec<(u32, u64, u64)> = self
            .clients
            .iter()
            .map(|(client, (stopped, passed))| (*client, *stopped, *passed))
            .collect();
        all.sort_unstable_by_key(|(client, stopped, passed)| {
            (std::cmp::Reverse((*stopped).max(*passed)), *client)
        });
        all.truncate(most);
        all
    }
}
