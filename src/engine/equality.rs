//! Decision by decision the same: the plain model, the embedded engine and a real Redis (a cluster
//! of one), under random plans, costs, times, looks, give-backs, renewals and edits; and what Redis
//! keeps lives as long as it means something, and not much longer. Where the clock never steps
//! back, an embedded engine that forgets what has expired decides the same, too.
//!
//! The model goes first, so that a time may depend on what was told; the engines then do the same
//! at the same instants. `WEIR_DECISIONS` says how many decisions that are (`make test-long`).

mod cases;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestRunner};

use self::cases::{Case, Played};
use super::driver::Verb;
use super::testing::{ALL, Server, Timed, wait_until};
use super::{Cell, Taken};

/// Takes that are compared, at least.
const DECISIONS: u64 = 100_000;
/// Cases of which one run consists.
const CASES: u32 = 200;

/// What happened in all cases so far, by the program's name: so that no part of it can fall silent.
#[derive(Debug, Default)]
struct Seen {
    decisions: u64,
    /// Of an embedded engine that forgets.
    forgetting: u64,
    events: BTreeMap<(&'static str, &'static str), u64>,
}

impl Seen {
    fn count(&mut self, program: &'static str, what: &'static str, happened: bool) {
        if happened {
            *self.events.entry((program, what)).or_default() += 1;
        }
    }

    fn of(&self, program: &'static str, what: &'static str) -> u64 {
        self.events.get(&(program, what)).copied().unwrap_or(0)
    }

    fn played(&mut self, played: &Played) {
        let mut takes = played.expected.iter();
        for event in &played.events {
            let answer = if event.answers() { takes.next() } else { None };
            self.decisions += u64::from(answer.is_some());
            for (index, cell) in event.cells.iter().enumerate() {
                let name = cell.program.name;
                let Some(reply) = answer.map(|answer| answer.cells[index]) else {
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
            }
        }
    }

    /// Each of what can happen to a program happened to one in a hundred of the decisions or, what
    /// is rarer, one in a thousand.
    fn check(&self) {
        assert!(self.forgetting > self.decisions / 100, "{self:#?}");
        for program in ALL {
            let rare = self.decisions / 1_000;
            for (what, least) in [
                ("fits", 10 * rare),
                ("refused", 10 * rare),
                ("looked at", 10 * rare),
                ("given back", 5 * rare),
            ] {
                assert!(self.of(program.name, what) >= least, "{} {what}: {self:#?}", program.name);
            }
            let tells = program.name != "concurrency";
            assert!(
                !tells || self.of(program.name, "told when") >= rare,
                "{}: {self:#?}",
                program.name
            );
        }
        for (name, what) in
            [("leaky_bucket", "waits"), ("quota", "outside"), ("concurrency", "renewed")]
        {
            assert!(self.of(name, what) >= self.decisions / 1_000, "{name} {what}: {self:#?}");
        }
    }
}

/// That both are the same, or the first difference with what led there.
fn same(engine: &str, played: &Played, answers: &[Taken]) -> Result<(), TestCaseError> {
    let different =
        played.expected.iter().zip(answers).position(|(expected, answer)| expected != answer);
    if let Some(index) = different {
        let (at, _) = played
            .events
            .iter()
            .enumerate()
            .filter(|(_, event)| event.answers())
            .nth(index)
            .unwrap();
        let (expected, found) = (&played.expected[index], &answers[index]);
        let before = &played.events[at.saturating_sub(8)..=at];
        return Err(TestCaseError::fail(format!(
            "{engine}, decision {index}:\n expected {expected:?}\n found    {found:?}\n after {before:#?}"
        )));
    }
    prop_assert_eq!(played.expected.len(), answers.len());
    Ok(())
}

/// A key lives until its counter is as good as none, and not much longer. Only a quota for ever has
/// none.
fn lifetimes(played: &Played, redis: &mut Timed) -> Result<(), TestCaseError> {
    let cells: Vec<Cell> = played.longest.values().map(|(cell, _)| cell.clone()).collect();
    let lifetimes = redis.on_redis().lifetimes(&cells);
    let there = lifetimes.iter().filter(|gone_ms| **gone_ms != -2).count();
    prop_assert_eq!(redis.on_redis().keys(), there, "no other key was written");
    for ((cell, longest_us), gone_ms) in played.longest.values().zip(lifetimes) {
        let for_ever = cell.program.name == "quota" && cell.numbers[2..] == [0; 4];
        let wrong = match gone_ms {
            -1 => !for_ever,
            -2 => !played.edited && !played.model.is_forgotten(cell, played.now_us),
            _ => {
                let gone_us = gone_ms as u64 * 1_000;
                // Once it is gone nothing of it may have been left; a calendar's periods have other
                // names by then, and an edited limit another burst.
                let judged = cell.program.name != "quota" && !played.edited;
                for_ever
                    || gone_us > *longest_us
                    || judged && !played.model.is_forgotten(cell, gone_us)
            }
        };
        prop_assert!(
            !wrong,
            "gone at {} ms, at {} us at the latest: {:?}",
            gone_ms,
            longest_us,
            cell
        );
    }
    Ok(())
}

fn decisions() -> u64 {
    std::env::var("WEIR_DECISIONS")
        .map_or(DECISIONS, |text| text.parse().expect("WEIR_DECISIONS is a number"))
}

/// A cluster of one node: it refuses keys that were not declared or lie in several slots, as any
/// cluster does.
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
    let (redis, seen) = (RefCell::new(Timed::on(server)), RefCell::new(Seen::default()));
    let wanted = decisions();
    while seen.borrow().decisions < wanted {
        let result = TestRunner::new(config()).run(&cases::cases(), |case: Case| {
            let played = case.play();
            same("embedded", &played, &Timed::embedded().replay(&played.events))?;
            // An edited limit may have another burst once its counter is forgotten.
            if !played.edited && played.events.is_sorted_by_key(|event| event.now_us) {
                same("forgetting", &played, &Timed::forgetting().replay(&played.events))?;
                seen.borrow_mut().forgetting += played.expected.len() as u64;
            }
            let mut redis = redis.borrow_mut();
            redis.on_redis().start_again();
            same("redis", &played, &redis.replay(&played.events))?;
            lifetimes(&played, &mut redis)?;
            seen.borrow_mut().played(&played);
            Ok(())
        });
        if let Err(error) = result {
            panic!("{error}");
        }
    }
    let seen = seen.into_inner();
    println!("{seen:#?}");
    assert!(seen.decisions >= wanted);
    seen.check();
}
