//! What a decision costs, printed (`--nocapture`); the bounds are far above it, so that only a wrong order of magnitude fails on a busy machine.

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
    let addresses: Vec<String> =
        (0..50_000_u32).map(|client| format!("10.{}.{}.{}", client >> 16, client >> 8 & 255, client & 255)).collect();
    let asked = each(40_000, |round| drop(policy.decide(&[("client-ip", &addresses[round as usize])]).unwrap()));
    let remembered = each(40_000, |_| drop(policy.decide(&[("client-ip", "192.0.2.1")]).unwrap()));
    let mut settings = settings(shipped("client-ip"), LIMITS);
    settings.isolated = true;
    let policy = build(&settings).unwrap();
    let fresh = each(500, |_| drop(policy.decide(&[("client-ip", "192.0.2.1")]).unwrap()));
    println!("client-ip, two limits, CPU time: asked {asked:?}, remembered {remembered:?}, fresh instance {fresh:?}");
    assert!(asked < Duration::from_micros(50) && remembered < Duration::from_micros(10) && fresh < Duration::from_millis(10));
}
