//! Long histories, with more units, more processes and many faults: chosen at random, as they are
//! too many to try all.

use stateright::{Expectation, Model};
use weir_lease::{Bound, Numbers, Terms};

use crate::cases::{case, running};
use crate::programs::{FIXED_WINDOW, GCRA, Program, SLIDING_WINDOW_LOG, TOKEN_BUCKET};
use crate::promise::Promise;
use crate::world::{Case, Event, Faults};

const LIFE_US: u64 = 19_999;

/// Histories of each limit, and the actions of each.
const HISTORIES: u64 = 200;
const ACTIONS: usize = 2_000;

/// The limit with many faults, and what no history of it keeps.
fn follow(case: Case) -> (Case, Option<String>) {
    let faults = Faults { timeouts: 3, left: 5, rolled_back: 5, killed: 2, ..Faults::default() };
    let slow = vec![true, true, false];
    let case = Case { slow, units: 4, messages: usize::MAX, calls: u32::MAX, faults, ..case };
    let broken = (0..HISTORIES).find_map(|seed| walk(&case, seed));
    (case, broken)
}

fn holds(case: Case) {
    let (case, broken) = follow(case);
    assert_eq!(broken, None);
    for event in [
        Event::Granted,
        Event::GrantedLess,
        Event::Refused,
        Event::Unknown,
        Event::GrantedLate,
        Event::SpentLast,
        Event::GivenBack,
        Event::RolledBack,
        Event::Killed,
    ] {
        assert!(case.seen.has(event), "nothing led to {event:?}");
    }
}

/// One history. Returns what it breaks.
fn walk(case: &Case, seed: u64) -> Option<String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut world = case.init_states().remove(0);
    let (mut history, mut actions) = (Vec::new(), Vec::new());
    for _ in 0..ACTIONS {
        actions.clear();
        case.actions(&world, &mut actions);
        let action = random.choice(&actions).expect("an action").clone();
        let Some(next) = case.next_state(&world, action.clone()) else { continue };
        world = next;
        history.push(action);
        for property in case.properties() {
            if property.expectation == Expectation::Always && !(property.condition)(case, &world) {
                return Some(format!("seed {seed}: {}: {history:?}", property.name));
            }
        }
    }
    None
}

fn bucket(program: Program) -> Case {
    let (quota, period, burst) = (3, 20_002, 12);
    let terms = Terms::new(Numbers::Bucket { quota, period, burst }, 1, LIFE_US, Bound::Strict);
    let terms = terms.unwrap();
    let Numbers::Bucket { burst: at_store, .. } = terms.numbers else { panic!("no bucket") };
    let (quota, period, burst) = (quota as i64, period as i64, burst as i64);
    let running = running(program, vec![quota, period, at_store as i64]);
    case(running, terms, Promise::Bucket { quota, period, burst, late: 0 }, (100, 5_000))
}

#[test]
fn gcra_keeps_its_bound_for_long() {
    holds(bucket(GCRA));
}

#[test]
fn token_bucket_keeps_its_bound_for_long() {
    holds(bucket(TOKEN_BUCKET));
}

fn log() -> Case {
    let period = 40_001;
    let terms = Terms::new(Numbers::Sliding { period }, 1, LIFE_US, Bound::Strict).unwrap();
    let Numbers::Sliding { period: at_store } = terms.numbers else { panic!("no period") };
    let promise = Promise::Trailing { quota: 9, span: period as i64 };
    let running = running(SLIDING_WINDOW_LOG, vec![9, at_store as i64, 0]);
    case(running, terms, promise, (100, 5_000))
}

#[test]
fn sliding_window_log_is_exact_for_long() {
    holds(log());
}

/// So that the histories are not too tame.
#[test]
fn a_log_that_keeps_units_for_its_period_alone_is_found() {
    let mut log = log();
    log.running.numbers[1] = 40_001;
    assert!(follow(log).1.is_some());
}

#[test]
fn fixed_window_is_exact_for_long() {
    let period = 40_000;
    let terms = Terms::new(Numbers::Window { period }, 1, LIFE_US, Bound::Strict).unwrap();
    let promise = Promise::Windows { quota: 9, period: period as i64, aligned: true };
    let running = running(FIXED_WINDOW, vec![9, period as i64, 1, 0]);
    holds(case(running, terms, promise, (100, 5_000)));
}
