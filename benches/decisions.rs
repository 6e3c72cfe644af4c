//! What a decision costs, without HTTP: the policy (Wasm), the engine (Lua in memory), and both
//! with the limiter between them.
//!
//!     cargo bench --bench decisions
//!
//! benches/README.md explains the figures.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::missing_docs_in_private_items,
    missing_docs,
    reason = "a benchmark may fail loudly"
)]

use std::hint::black_box;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use weir::clock::Clock;
use weir::engine::{self, Cell, Cells, EmbeddedSettings, Engine, Key, Kind, Part, Program, Space};
use weir::limit::{self, Ending, Limiter, Scope, Take};
use weir::plan::OnStoreError;
use weir::policy::{self, Module, Policy, Runtime, Verdict};
use weir::telemetry::Metrics;

/// So many clients that a worker has forgotten each one before it returns.
const STRANGERS: usize = 1 << 18;
/// Few enough for a worker to remember all of them.
const REGULARS: usize = 10_000;
/// Never reached: a refusal writes nothing, and would look cheap.
const QUOTA: u64 = 1 << 31;

macro_rules! program {
    ($name:literal, $kind:ident, $state:literal, $numbers:literal) => {
        Program {
            name: $name,
            text: include_str!(concat!("../lua/", $name, ".lua")),
            kind: Kind::$kind,
            state: $state,
            numbers: $numbers,
        }
    };
}

/// The algorithms that store numbers or a ring, each with numbers that admit: a quota per second,
/// in microseconds.
static VALUES: [(Program, [i64; 7]); 7] = [
    (program!("fixed_window", Numbers, 3, 4), [QUOTA as i64, SECOND, 1, 0, 0, 0, 0]),
    (program!("sliding_window_counter", Numbers, 3, 3), [1 << 31, SECOND, 0, 0, 0, 0, 0]),
    (
        program!("sliding_window_buckets", Buckets, 0, 4),
        [QUOTA as i64, SECOND / 60, 60, 0, 0, 0, 0],
    ),
    (program!("token_bucket", Numbers, 3, 4), [QUOTA as i64, SECOND, QUOTA as i64, 0, 0, 0, 0]),
    (program!("gcra", Numbers, 3, 4), [QUOTA as i64, SECOND, QUOTA as i64, 0, 0, 0, 0]),
    (program!("leaky_bucket", Numbers, 3, 5), [QUOTA as i64, SECOND, QUOTA as i64, 0, 1, 0, 0]),
    // One period for ever: the engine needs no time zone.
    (program!("quota", Numbers, 3, 7), [QUOTA as i64, 1, 0, 0, 0, 0, 0]),
];
const SECOND: i64 = 1_000_000;

fn client_ip(limits: usize) -> Policy {
    let limit = |index: usize| {
        format!(
            r#"{{"name": "l{index}", "algorithm": "gcra", "quota": {QUOTA}, "period": "1s", "burst": {QUOTA}}}"#
        )
    };
    let limits: Vec<String> = (0..limits).map(limit).collect();
    let settings = policy::Settings {
        name: "bench".into(),
        module: Module::Shipped("client-ip".into()),
        cpu_time: Duration::from_millis(10),
        memory_bytes: 16 << 20,
        isolated: false,
        config_json: format!(r#"{{"limits": [{}]}}"#, limits.join(", ")).into(),
        measured: weir::policy::MeasuredNames::default(),
        scripts: Arc::default(),
        caps: policy::Caps::default(),
    };
    Policy::build(&Runtime::new(weir::proxy::fact_names()).unwrap(), &settings, &Metrics::new(1))
        .unwrap_or_else(|errors| panic!("{errors:?}"))
}

fn addresses() -> Vec<String> {
    (0..STRANGERS)
        .map(|client| format!("10.{}.{}.{}", client >> 16, client >> 8 & 255, client & 255))
        .collect()
}

fn in_memory() -> Engine {
    let settings = engine::Settings::Embedded(EmbeddedSettings::new(1_000_000));
    Engine::build(&settings, Clock::system(), &Metrics::new(1)).unwrap()
}

/// The result of a future that is ready at once, as all of the embedded engine's are.
fn now<T>(answer: impl Future<Output = T>) -> T {
    match std::pin::pin!(answer).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("the embedded engine answers at once"),
    }
}

/// The guest: a fact in, a plan of one limit out.
fn wasm(bench: &mut Criterion) {
    let (policy, addresses) = (client_ip(1), addresses());
    let mut group = bench.benchmark_group("policy");
    let mut strangers = addresses.iter().cycle();
    group.bench_function("fresh facts", |bencher| {
        bencher.iter(|| {
            let address = strangers.next().unwrap();
            policy.decide(black_box(&[("client-ip", address)])).unwrap()
        });
    });
    group.bench_function("remembered", |bencher| {
        bencher.iter(|| policy.decide(black_box(&[("client-ip", "192.0.2.1")])).unwrap())
    });
    let policy = client_ip(1);
    let mut regulars = addresses.iter().take(REGULARS).cycle();
    group.bench_function("remembered, 10,000 in use", |bencher| {
        bencher
            .iter(|| policy.decide(black_box(&[("client-ip", regulars.next().unwrap())])).unwrap());
    });
    group.finish();
}

/// One counter's take: shard, lock, clock, Lua, write.
fn embedded(bench: &mut Criterion) {
    let mut group = bench.benchmark_group("embedded engine");
    for (program, numbers) in &VALUES {
        let engine = in_memory();
        let space = Arc::new(Space { text: "bench".into(), digest: 1 });
        let key = Key { tag: 7, key: 7, space };
        let cell = Cell {
            program,
            key,
            unit_us: 1,
            shadow: false,
            part: Part::Alone,
            cost: 1,
            numbers: *numbers,
            member: 0,
        };
        let cells = Cells::from_iter([cell]);
        group.bench_function(program.name, |bencher| {
            bencher.iter(|| {
                let taken = now(engine.take(black_box(&cells))).unwrap();
                assert!(taken.admitted);
                taken
            });
        });
    }
    group.finish();
}

/// Measures a request from facts to a settled grant: the price of a limit for a request.
fn whole(bench: &mut Criterion) {
    let mut group = bench.benchmark_group("decision");
    let scope = Scope::new("bench".into(), "bench".into(), OnStoreError::Deny, false);
    let (scope, addresses) = (Arc::new(scope), addresses());
    for (limits, name) in [(1, "one limit"), (2, "two limits")] {
        let policy = client_ip(limits);
        let settings = limit::Settings::default();
        let limiter =
            Limiter::new(settings, Arc::new(in_memory()), Clock::system(), Metrics::new(1));
        let decide = |address: &str| {
            let decision = policy.decide(black_box(&[("client-ip", address)])).unwrap();
            let Verdict::Check(plan) = &decision.verdict else { panic!("{decision:?}") };
            let Take::Granted(outcome, grant) = now(limiter.take(&scope, plan)) else {
                panic!("refused")
            };
            grant.settle(Ending::Completed, &[]);
            outcome
        };
        group.bench_function(format!("{name}, remembered"), |bencher| {
            bencher.iter(|| decide("192.0.2.1"))
        });
        let mut strangers = addresses.iter().cycle();
        group.bench_function(format!("{name}, fresh facts"), |bencher| {
            bencher.iter(|| decide(strangers.next().unwrap()))
        });
    }
    group.finish();
}

criterion_group!(benches, wasm, embedded, whole);
criterion_main!(benches);
