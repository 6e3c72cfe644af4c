//! Holds the plain model, the embedded engine and a real Redis (a cluster of one) to the same
//! decisions under random plans, costs, times, looks, give-backs, renewals and edits. Also checks
//! that keys on Redis live as long as they mean something, and not much longer. If the clock never
//! steps back, an embedded engine with expiry must decide the same, too.
//!
//! The model runs first, so that a time may depend on what it reported. The engines then repeat the
//! same calls at the same instants. `WEIR_DECISIONS` sets the number of decisions (`make
//! test-long`).

mod cases;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestRunner};

use self::cases::{Case, Trace};
use super::driver::Verb;
use super::testing::{ALL, Answer, Server, TimedStore, wait_until};
use super::{Cell, CellReply, is_assured};

/// Minimum number of decisions to compare.
const DECISIONS: u64 = 100_000;
/// Cases go on until every kind of event happened often enough, for at most this many times the
/// minimum: what a random run has too little of, the next cases have.
const DECISIONS_TIMES_MAX: u64 = 5;
/// Number of cases per run.
const CASES: u32 = 200;

/// Counts what happened in all cases, by program, to notice when the random cases no longer cover
/// something.
#[derive(Debug, Default)]
struct Coverage {
    decisions: u64,
    /// Decisions compared with an embedded engine with expiry.
    forgetting: u64,
    events: BTreeMap<(&'static str, &'static str), u64>,
}

impl Coverage {
    fn count(&mut self, program: &'static str, what: &'static str, happened: bool) {
        if happened {
            *self.events.entry((program, what)).or_default() += 1;
        }
    }

    fn of(&self, program: &'static str, what: &'static str) -> u64 {
        self.events.get(&(program, what)).copied().unwrap_or(0)
    }

    fn add(&mut self, trace: &Trace) {
        let mut takes = trace.expected.iter();
        for event in &trace.events {
            let answer = if event.answers() { takes.next() } else { None };
            self.decisions += u64::from(answer.is_some());
            for (index, cell) in event.cells.iter().enumerate() {
                let name = cell.program.name;
                if let Some(Answer::Charged(charged)) = answer {
                    let units = charged.units[index];
                    self.count(name, "charged", units.is_some_and(|units| units > 0));
                    self.count(name, "debt full", units.is_some_and(|units| units < cell.cost));
                    self.count(name, "outside", units.is_none());
                    continue;
                }
                let taken = answer.and_then(Answer::taken);
                let Some(reply): Option<CellReply> = taken.map(|taken| taken.cells[index]) else {
                    self.count(
                        name,
                        if event.verb == Verb::Renew { "renewed" } else { "given back" },
                        true,
                    );
                    continue;
                };
                self.count(name, "looked at", event.verb == Verb::Look);
                self.count(name, "fits", reply.fits);
                self.count(name, "refused", !reply.fits);
                self.count(name, "told when", !reply.fits && reply.retry_units.is_some());
                self.count(name, "waits", reply.fits && reply.retry_units.is_some());
                self.count(name, "outside", reply.outside);
                self.count(name, "alone refused", event.cells.len() == 1 && !reply.fits);
                if is_assured(&event.cells, index) {
                    let assured = taken.is_some_and(|taken| taken.cells[index - 1].fits);
                    let what = [("borrowed from", !assured && reply.fits), ("owed", assured)];
                    what.into_iter().for_each(|(what, is)| self.count(name, what, is));
                    self.count(name, "parent refused", !reply.fits);
                }
            }
        }
    }

    /// What happened less often than in one of a hundred of the `wanted` decisions, or one of a
    /// thousand for rarer events: empty once the cases cover everything.
    fn missing(&self, wanted: u64) -> Vec<String> {
        let rare = wanted / 1_000;
        let mut least: Vec<(&'static str, &'static str, u64)> = Vec::new();
        for name in ALL.map(|program| program.name) {
            for (what, times) in
                [("fits", 10), ("refused", 10), ("looked at", 10), ("given back", 5)]
            {
                least.push((name, what, times * rare));
            }
            if name != "concurrency" {
                least.push((name, "told when", rare));
            }
            if !matches!(name, "leaky_bucket" | "concurrency") {
                least.extend(["charged", "debt full"].map(|what| (name, what, rare)));
            }
        }
        for name in cases::PARENTS {
            let what = ["borrowed from", "owed", "parent refused"];
            least.extend(what.map(|what| (name, what, wanted / 5_000)));
        }
        for (name, what) in
            [("leaky_bucket", "waits"), ("quota", "outside"), ("concurrency", "renewed")]
        {
            least.push((name, what, rare));
        }
        let counted =
            least.into_iter().map(|(name, what, least)| (name, what, self.of(name, what), least));
        counted
            .chain([("all", "with expiry", self.forgetting, wanted / 100)])
            .filter(|(_, _, found, least)| found < least)
            .map(|(name, what, found, least)| format!("{name} {what}: {found} of {least}"))
            .collect()
    }
}

/// Compares the answers with the model's; fails at the first difference, with the calls that led to
/// it.
fn same(engine: &str, trace: &Trace, answers: &[Answer]) -> Result<(), TestCaseError> {
    let different =
        trace.expected.iter().zip(answers).position(|(expected, answer)| expected != answer);
    if let Some(index) = different {
        let (at, _) = trace
            .events
            .iter()
            .enumerate()
            .filter(|(_, event)| event.answers())
            .nth(index)
            .unwrap();
        let (expected, found) = (&trace.expected[index], &answers[index]);
        let before = &trace.events[at.saturating_sub(8)..=at];
        return Err(TestCaseError::fail(format!(
            "{engine}, decision {index}:\n expected {expected:?}\n found    {found:?}\n after {before:#?}"
        )));
    }
    prop_assert_eq!(trace.expected.len(), answers.len());
    Ok(())
}

/// Checks that each key lives until its counter is equivalent to none, and not much longer. Only a
/// quota without an end has no expiry.
fn lifetimes(trace: &Trace, redis: &mut TimedStore) -> Result<(), TestCaseError> {
    let cells: Vec<Cell> = trace.latest_expiry.values().map(|(cell, _)| cell.clone()).collect();
    let lifetimes = redis.on_redis().lifetimes(&cells);
    let there = lifetimes.iter().filter(|gone_ms| **gone_ms != -2).count();
    prop_assert_eq!(redis.on_redis().keys(), there, "no other key was written");
    for ((cell, latest_us), gone_ms) in trace.latest_expiry.values().zip(lifetimes) {
        let for_ever = cell.program.name == "quota" && cell.numbers[2..6] == [0; 4];
        let wrong = match gone_ms {
            -1 => !for_ever,
            -2 => !trace.edited && !trace.model.is_forgotten(cell, trace.now_us),
            _ => {
                let gone_us = gone_ms as u64 * 1_000;
                // When the key expires, its counter must be equivalent to none. Not checked for
                // calendars, whose periods have other starts by then, nor after edits, which may
                // have changed the burst.
                let judged = cell.program.name != "quota" && !trace.edited;
                for_ever
                    || gone_us > *latest_us
                    || judged && !trace.model.is_forgotten(cell, gone_us)
            }
        };
        prop_assert!(
            !wrong,
            "gone at {} ms, at {} us at the latest: {:?}",
            gone_ms,
            latest_us,
            cell
        );
    }
    Ok(())
}

fn decisions() -> u64 {
    std::env::var("WEIR_DECISIONS")
        .map_or(DECISIONS, |text| text.parse().expect("WEIR_DECISIONS is a number"))
}

/// A cluster of one node. Like any cluster, it refuses undeclared keys and keys in several slots.
fn cluster() -> Server {
    let server = Server::start(&["--cluster-enabled", "yes", "--cluster-port", "BUS_PORT"]);
    let _: String = server.run("CLUSTER ADDSLOTSRANGE 0 16383").unwrap();
    wait_until("the cluster's start", || {
        server.run::<String>("CLUSTER INFO").is_ok_and(|info| info.contains("cluster_state:ok"))
    });
    server
}

fn config() -> Config {
    Config {
        cases: CASES,
        max_shrink_iters: 2_000,
        max_shrink_time: 20_000,
        source_file: Some(file!()),
        test_name: Some("both_engines_decide_as_the_model_does"),
        // `proptest-regressions/engine/equality.txt`, which is committed.
        failure_persistence: Some(Box::new(FileFailurePersistence::SourceParallel(
            "proptest-regressions",
        ))),
        ..Config::default()
    }
}

#[test]
fn both_engines_decide_as_the_model_does() {
    let server = Arc::new(cluster());
    let (redis, coverage) =
        (RefCell::new(TimedStore::on(server)), RefCell::new(Coverage::default()));
    let wanted = decisions();
    let is_done = |coverage: &Coverage| {
        coverage.decisions >= wanted * DECISIONS_TIMES_MAX
            || coverage.decisions >= wanted && coverage.missing(wanted).is_empty()
    };
    while !is_done(&coverage.borrow()) {
        let result = TestRunner::new(config()).run(&cases::cases(), |case: Case| {
            let trace = case.run();
            same("embedded", &trace, &TimedStore::embedded().replay(&trace.events))?;
            // Not after edits: once a counter is forgotten, its limit may have another burst.
            if !trace.edited && trace.events.is_sorted_by_key(|event| event.now_us) {
                same("forgetting", &trace, &TimedStore::forgetting().replay(&trace.events))?;
                coverage.borrow_mut().forgetting += trace.expected.len() as u64;
            }
            let mut redis = redis.borrow_mut();
            redis.on_redis().use_new_prefix();
            same("redis", &trace, &redis.replay(&trace.events))?;
            lifetimes(&trace, &mut redis)?;
            coverage.borrow_mut().add(&trace);
            Ok(())
        });
        if let Err(error) = result {
            panic!("{error}");
        }
    }
    let coverage = coverage.into_inner();
    println!("{coverage:#?}");
    assert_eq!(coverage.missing(wanted), [""; 0], "{} decisions", coverage.decisions);
}
