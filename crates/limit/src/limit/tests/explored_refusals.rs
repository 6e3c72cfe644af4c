//! Remembered refusals in every order of requests, of ends of a window and of resets: what is
//! answered from memory is what the counters would answer. The memory is that which ships.

use std::time::{Duration, Instant};

use stateright::{Checker, Model, Property};

use super::*;
use crate::limit::keys::{Identity, KeyDigest};
use crate::limit::refusals::{RefundableLimits, Refusals};

const COUNTERS: usize = 2;
const QUOTA: [u8; COUNTERS] = [2, 1];
/// A window has two of them.
const TICK: Duration = Duration::from_millis(100);
const TICKS: u8 = 5;
const REQUESTS: usize = 6;

/// A change that must break the property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    /// A refusal answers all plans that begin with the same counter.
    ByTheFirstCounter,
    /// A refusal is held although its window has ended.
    HeldForLonger,
    /// A refusal outlives a reset.
    AfterAReset,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    tick: u8,
    used: [u8; COUNTERS],
    resets: u8,
    /// The plans that were refused, when, and after how many resets.
    refused: Vec<(usize, u8, u8)>,
    requests: usize,
    /// Whether memory answered, and whether that was wrong.
    remembered: bool,
    wrong: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Request(usize),
    Tick,
    Reset,
}

struct Case {
    /// The limits of each plan, and their counters.
    plans: Vec<Vec<(usize, Limit)>>,
    begin: Instant,
    mistake: Option<Mistake>,
}

impl Case {
    fn new(mistake: Option<Mistake>) -> Self {
        let limit = |counter: usize, cost| {
            let of = daily(&counter.to_string(), "k", u64::from(QUOTA[counter]));
            (counter, Limit { cost, ..of })
        };
        let shadowed = |(counter, limit): (usize, Limit)| (counter, shadow(limit));
        Self {
            plans: vec![
                vec![limit(0, 1)],
                vec![limit(0, 1), limit(1, 1)],
                vec![limit(0, 2)],
                vec![limit(1, 1), limit(0, 1)],
                vec![limit(0, 1), shadowed(limit(1, 1))],
            ],
            begin: Instant::now(),
            mistake,
        }
    }

    fn at(&self, tick: u8) -> Instant {
        self.begin + TICK * u32::from(tick)
    }

    fn limits(&self, plan: usize) -> Vec<Limit> {
        self.plans[plan].iter().map(|(_, limit)| limit.clone()).collect()
    }

    fn identities(&self, plan: usize) -> super::super::keys::Identities {
        let of = |(counter, _): &(usize, Limit)| Identity {
            limit: *counter as u128,
            key: KeyDigest::of_parts([1, 1]),
        };
        self.plans[plan].iter().map(of).collect()
    }

    /// What the counters answer.
    fn decide(&self, state: &State, plan: usize) -> PlanOutcome {
        let left = u32::from(2 - state.tick % 2);
        let limits = self.plans[plan].iter().map(|(counter, limit)| {
            let fits = u64::from(state.used[*counter]) + limit.cost <= u64::from(QUOTA[*counter]);
            let wait_us = (TICK * left).as_micros() as u64;
            let wait_us = match self.mistake {
                Some(Mistake::HeldForLonger) => None,
                _ => Some(wait_us),
            };
            LimitOutcome {
                fits,
                retry_after_us: wait_us.filter(|_| !fits),
                ..LimitOutcome::default()
            }
        });
        let limits: Vec<LimitOutcome> = limits.collect();
        let admitted = self.plans[plan]
            .iter()
            .zip(&limits)
            .all(|((_, limit), outcome)| outcome.fits || !limit.is_enforced());
        PlanOutcome { admitted, limits, store_failure: None }
    }

    /// What memory answers.
    fn remembered(&self, state: &State, plan: usize) -> bool {
        let (mut memory, given_back) = (Refusals::default(), RefundableLimits::default());
        let version = |resets: u8| match self.mistake {
            Some(Mistake::AfterAReset) => 0,
            _ => u64::from(resets),
        };
        let first = |plan: usize| self.plans[plan][0].0;
        for (refused, tick, resets) in &state.refused {
            let at = self.at(*tick);
            let then = State { tick: *tick, used: [u8::MAX; COUNTERS], ..state.clone() };
            let mut outcome = self.decide(&then, *refused);
            // Which of them refused is not kept: as many as can.
            outcome.admitted = false;
            let (identities, limits) = (self.identities(*refused), self.limits(*refused));
            let rules = (Duration::from_secs(1), &given_back);
            memory.of(version(*resets)).add(&identities, &limits, &outcome, (at, at), rules);
        }
        let memory = memory.of(version(state.resets));
        let mut find = |plan: usize| {
            let (identities, limits) = (self.identities(plan), self.limits(plan));
            memory.find(&identities, &limits, self.at(state.tick)).is_some()
        };
        if self.mistake == Some(Mistake::ByTheFirstCounter) {
            return state.refused.iter().any(|(it, ..)| first(*it) == first(plan) && find(*it));
        }
        find(plan)
    }
}

impl Model for Case {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            tick: 0,
            used: [0; COUNTERS],
            resets: 0,
            refused: Vec::new(),
            requests: 0,
            remembered: false,
            wrong: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.requests < REQUESTS && !state.wrong {
            actions.extend((0..self.plans.len()).map(Action::Request));
        }
        if state.tick < TICKS {
            actions.push(Action::Tick);
        }
        if state.resets == 0 {
            actions.push(Action::Reset);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Tick => {
                state.tick += 1;
                if state.tick.is_multiple_of(2) {
                    state.used = [0; COUNTERS];
                }
            }
            Action::Reset => {
                (state.used, state.resets) = ([0; COUNTERS], 1);
            }
            Action::Request(plan) => {
                state.requests += 1;
                let outcome = self.decide(last, plan);
                if self.remembered(last, plan) {
                    state.remembered = true;
                    state.wrong = outcome.admitted;
                } else if outcome.admitted {
                    for ((counter, limit), outcome) in self.plans[plan].iter().zip(&outcome.limits)
                    {
                        state.used[*counter] += if outcome.fits { limit.cost as u8 } else { 0 };
                    }
                } else {
                    state.refused.push((plan, last.tick, last.resets));
                }
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("memory answers what the counters would", |_, state: &State| {
                !state.wrong
            }),
            Property::sometimes("memory answers", |_, state: &State| state.remembered),
        ]
    }
}

#[test]
fn in_every_order_memory_answers_what_the_counters_would() {
    let checked = Case::new(None).checker().spawn_bfs().join();
    println!("{} states", checked.unique_state_count());
    checked.assert_properties();
}

#[test]
fn each_mistake_answers_wrongly() {
    for mistake in [Mistake::ByTheFirstCounter, Mistake::HeldForLonger, Mistake::AfterAReset] {
        let checked = Case::new(Some(mistake)).checker().spawn_bfs().join();
        checked.assert_any_discovery("memory answers what the counters would");
    }
}
