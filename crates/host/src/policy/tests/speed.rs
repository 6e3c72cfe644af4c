//! What a decision costs, printed (`--nocapture`); the bounds are far above it, so that only a
//! wrong order of magnitude fails on a busy machine.

use super::*;
use crate::clock::thread_cpu;

fn each(rounds: u32, mut run: impl FnMut(u32)) -> Duration {
    (0..5)
        .map(|_| {
            let before = thread_cpu();
            (0..rounds).for_each(&mut run);
            (thread_cpu() - before) / rounds
        })
        .min()
        .unwrap()
}

#[test]
fn a_decision_is_cheap() {
    let policy = client_ip();
    let addresses: Vec<String> = (0..50_000_u32)
        .map(|client| format!("10.{}.{}.{}", client >> 16, client >> 8 & 255, client & 255))
        .collect();
    let asked = each(40_000, |round| {
        drop(policy.decide(&[("client-ip", &addresses[round as usize])]).unwrap())
    });
    let remembered = each(40_000, |_| drop(policy.decide(&[("client-ip", "192.0.2.1")]).unwrap()));
    let mut settings = settings(shipped("client-ip"), LIMITS);
    settings.isolated = true;
    let policy = build(&settings).unwrap();
    let fresh = each(500, |_| drop(policy.decide(&[("client-ip", "192.0.2.1")]).unwrap()));
    println!(
        "client-ip, two limits, CPU time: asked {asked:?}, remembered {remembered:?}, fresh instance {fresh:?}"
    );
    assert!(
        asked < Duration::from_micros(50)
            && remembered < Duration::from_micros(10)
            && fresh < Duration::from_millis(10)
    );
}

/// `[policies.NAME.config]` of `plans` with as many customers.
fn customers(count: usize) -> String {
    let digest = |customer: usize| {
        format!(
            "\"sha256:{}\":\"{}\"",
            blake3::hash(&customer.to_le_bytes()).to_hex(),
            ["free", "gold"][customer % 2]
        )
    };
    let assigned: Vec<String> = (0..count).map(digest).collect();
    let limits = r#"[{"name": "plan", "algorithm": "gcra", "quota": 60, "period": "1m"}]"#;
    format!(
        r#"{{"key":"{{header.k}}","default_plan":"free","plans":{{"free":{limits},"gold":{limits}}},"assign":{{{}}}}}"#,
        assigned.join(",")
    )
}

#[test]
fn a_hundred_thousand_customers_fit_and_are_ready_soon() {
    let mut settings = settings(shipped("plans"), &customers(100_000));
    // The default is 32 MiB.
    settings.memory_bytes = 20 << 20;
    // The default is 250 ms, which a machine with other work may need for so many.
    settings.caps.start_cpu_time = Duration::from_secs(5);
    let started = thread_cpu();
    // On this thread, whose CPU time is measured.
    let policy = crate::policy::build::here(&runtime(), &settings, &Metrics::new(1)).unwrap();
    let built = thread_cpu() - started;
    policy.prepare(2);
    let started = thread_cpu();
    policy.decide(&[("client-ip", "192.0.2.1"), ("header.k", "first")]).unwrap();
    let first = thread_cpu() - started;
    let keys: Vec<String> = (0..40_000_u32).map(|key| format!("key-{key}")).collect();
    let asked = each(40_000, |round| {
        drop(
            policy
                .decide(&[("client-ip", "192.0.2.1"), ("header.k", &keys[round as usize])])
                .unwrap(),
        )
    });
    println!(
        "plans, 100,000 customers, CPU time: built {built:?}, a worker's first decision {first:?}, asked {asked:?}"
    );
    assert!(asked < Duration::from_micros(50));
    // What takes long was done beforehand, for each of the two workers.
    let other = std::thread::scope(|scope| {
        scope
            .spawn(|| policy.decide(&[("client-ip", "192.0.2.1")]).map(|_| thread_cpu()))
            .join()
            .unwrap()
    });
    let other = other.unwrap();
    println!("another worker's first decision: {other:?}");
    assert!(first < built / 4 && other < built / 4, "{first:?} and {other:?} of {built:?}");
    settings.memory_bytes = 16 << 20;
    assert!(
        build(&settings).unwrap_err()[0].setting == "memory",
        "the README says how much memory they need"
    );
}
