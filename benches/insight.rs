//! What it costs a request to be counted for `/top`, and a refusal to be remembered for `/explain`.
//!
//!     cargo bench --bench insight
//!
//! benches/README.md explains the figures.
#![allow(
    clippy::unwrap_used,
    clippy::missing_docs_in_private_items,
    missing_docs,
    reason = "a benchmark may fail loudly"
)]

use std::hint::black_box;
use std::time::Instant;

use criterion::{Criterion, criterion_group, criterion_main};
use weir::insight::{Digest, Entry, Insight, KeyEvent, Kind, LimitName, Settings};

const KEYS: usize = 100_000;
/// Enough requests that none is measured from a warm cache alone.
const REQUESTS: usize = 1 << 20;

struct Request([u8; 400]);

impl Entry for Request {
    fn bytes(&self) -> usize {
        self.0.len()
    }
}

fn digest(number: usize) -> Digest {
    let spread = (number as u128 + 1).wrapping_mul(0x2545_f491_4f6c_dd1d_9e37_79b9_7f4a_7c15);
    [spread, spread]
}

/// Keys of a Zipf distribution with exponent 1.
fn zipf() -> Vec<(Digest, String)> {
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=KEYS)
        .map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        })
        .collect();
    let mut random = fastrand::Rng::with_seed(7);
    let key = |_| sums.partition_point(|upto| *upto < random.f64() * sum).min(KEYS - 1);
    (0..REQUESTS).map(key).map(|key| (digest(key), format!("customer-{key}"))).collect()
}

fn insight(show_keys: bool) -> Insight<Request> {
    weir::telemetry::enter_worker(0);
    let insight = Insight::new(1);
    insight.apply(&Settings { show_keys, ..Settings::default() });
    insight
}

fn counted(bench: &mut Criterion) {
    let mut group = bench.benchmark_group("insight");
    let name = || LimitName { policy: "p".into(), route: None, limit: "l".into() };
    let (zipf, now) = (zipf(), Instant::now());
    for (show_keys, what) in [(false, "digests"), (true, "digests and texts")] {
        let insight = insight(show_keys);
        let mut requests = zipf.iter().cycle();
        group.bench_function(format!("counted, a Zipf stream, {what}"), |bencher| {
            bencher.iter(|| {
                let (key, text) = requests.next().unwrap();
                insight.count(now, |top| {
                    top.count(black_box(1), name, (*key, text), KeyEvent::Used(1));
                });
            });
        });
    }
    let insight = insight(false);
    let (one, _) = zipf.first().unwrap();
    group.bench_function("counted, one key", |bencher| {
        bencher.iter(|| {
            insight.count(now, |top| {
                top.count(black_box(1), name, (*one, ""), KeyEvent::Used(1));
            });
        });
    });
    // Each key once in 2^20 requests: the entry with the least is always taken over.
    let mut number = 0;
    group.bench_function("counted, no key twice", |bencher| {
        bencher.iter(|| {
            number += 1;
            insight.count(now, |top| {
                top.count(black_box(1), name, (digest(number), ""), KeyEvent::Used(1));
            });
        });
    });
    group.bench_function("not sampled", |bencher| bencher.iter(|| insight.is_sampled()));
    group.bench_function("remembered", |bencher| {
        bencher.iter(|| insight.remember(black_box(Request([0; 400])), Kind::Refusal));
    });
    group.finish();
}

criterion_group!(benches, counted);
criterion_main!(benches);
