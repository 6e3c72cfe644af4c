//! What is remembered, for how long, and what gives way.

use super::super::decision::Joining;
use super::*;
use crate::plan::Slot;

const UNBOUNDED: usize = THREAD_BYTES_MAX;

fn decision(label: &str) -> Arc<Decision> {
    let labels = vec![("l".to_owned(), label.to_owned())];
    Arc::new(Decision {
        verdict: Verdict::Bypass,
        upstream_headers: vec![],
        response_headers: vec![],
        labels,
        settle_with: None,
        settle_on_refusal: false,
        bodies: None,
        valid_until_ms: None,
        priority: None,
        fair_key: None,
        refusal: None,
        messages: Vec::new(),
        joining: Joining::default(),
        slot: Slot::default(),
    })
}

impl DecisionCache {
    /// Looks up the decision on one client, and caches it if it is missing. Returns whether it
    /// was cached before.
    fn knows(&mut self, client: &str) -> bool {
        self.knows_within(client, UNBOUNDED)
    }

    fn knows_within(&mut self, client: &str, bytes_max: usize) -> bool {
        let facts = [("client-ip", client)];
        let known = self.get(&facts, &Clock::system());
        if known.is_none() {
            self.put(&facts, &decision(client), Expiry::NEVER, bytes_max);
        }
        known.is_some_and(|known| known == decision(client))
    }

    fn assert_bounded(&self, bytes_max: usize) {
        let entries = self.sets.iter().flat_map(|set| &set.entries).flatten();
        assert_eq!(self.bytes, entries.map(Entry::bytes).sum::<usize>());
        assert!(
            self.bytes <= bytes_max && self.sets.len() <= sets_max(bytes_max),
            "{} bytes, {} sets",
            self.bytes,
            self.sets.len()
        );
    }
}

#[test]
fn the_same_facts_give_the_same_decision_and_no_others_do() {
    let mut remembered = DecisionCache::default();
    let facts = [("client-ip", "192.0.2.1"), ("path", "/")];
    assert!(remembered.get(&facts, &Clock::system()).is_none());
    remembered.put(&facts, &decision("a"), Expiry::NEVER, UNBOUNDED);
    assert_eq!(remembered.get(&facts, &Clock::system()), Some(decision("a")));
    assert!(remembered.get(&[("client-ip", "192.0.2.1")], &Clock::system()).is_none());
    assert!(same(&[("a", "bc")], &[1, 0, 0, 0, b'a', 2, 0, 0, 0, b'b', b'c']));
    assert!(!same(&[("ab", "c")], &[1, 0, 0, 0, b'a', 2, 0, 0, 0, b'b', b'c']));
    assert!(!same(&[("a", "b")], &[1, 0, 0, 0, b'a', 2, 0, 0, 0, b'b', b'c']));
}

/// Facts with the same hash are still distinguished, and those that find no free entry are not
/// cached.
#[test]
fn chosen_collisions_are_harmless() {
    let mut set = Set::default();
    let clients: Vec<String> = (0..WAYS).map(|client| client.to_string()).collect();
    for (way, client) in clients.iter().enumerate() {
        let facts = [("client-ip", client.as_str())];
        let facts = packed(&facts, packed_bytes(&facts));
        set.put(way, 7, Entry { facts, decision: decision(client), expiry: Expiry::NEVER });
    }
    let mut find = |client: &str| match set.find(7, &[("client-ip", client)], &Clock::system()) {
        Found::Decision(decision) => Some(decision),
        Found::Nothing | Found::Expired(_) => None,
    };
    for client in &clients {
        assert_eq!(find(client), Some(decision(client)));
    }
    assert!(find("x").is_none());
    assert!(set.unused().is_none());
    set.age();
    assert!(set.unused().is_none(), "all were used a short time ago");
    set.age();
    assert!(set.unused().is_some());
}

#[test]
fn a_decision_is_dropped_when_its_time_is_over() {
    let (mut remembered, clock) = (DecisionCache::default(), Clock::virtual_at(5_000));
    let facts = [("client-ip", "192.0.2.1")];
    for round in 1..4 {
        let expiry = Expiry::at(clock.steady_us() + 100);
        remembered.put(&facts, &decision("a"), expiry, UNBOUNDED);
        clock.step(99);
        assert_eq!(remembered.get(&facts, &clock), Some(decision("a")), "{round}");
        clock.step(1);
        assert_eq!(remembered.get(&facts, &clock), None, "{round}");
        remembered.assert_bounded(0);
    }
}

#[test]
fn with_more_bytes_it_holds_more() {
    let mut remembered = DecisionCache::default();
    let clients = 2 * SETS_MAX * WAYS;
    let known = |remembered: &mut DecisionCache, bytes_max: usize| {
        let known = |client: &usize| remembered.knows_within(&client.to_string(), bytes_max);
        (0..clients).filter(known).count()
    };
    assert_eq!(known(&mut remembered, THREAD_BYTES_MAX), 0);
    let usual = known(&mut remembered, THREAD_BYTES_MAX);
    assert!((1..=SETS_MAX * WAYS).contains(&usual), "{usual}");
    known(&mut remembered, 4 * THREAD_BYTES_MAX);
    assert_eq!(known(&mut remembered, 4 * THREAD_BYTES_MAX), clients);
    remembered.assert_bounded(4 * THREAD_BYTES_MAX);
}

#[test]
fn it_stays_within_its_bounds() {
    let mut remembered = DecisionCache::default();
    for client in 0..3 * SETS_MAX * WAYS {
        remembered.put(
            &[("client-ip", &client.to_string())],
            &decision("a"),
            Expiry::NEVER,
            UNBOUNDED,
        );
    }
    assert_eq!(remembered.sets.len(), SETS_MAX);
    remembered.assert_bounded(UNBOUNDED);
    let long = "x".repeat(FACTS_BYTES_MAX);
    remembered.put(&[("path", &long)], &decision("a"), Expiry::NEVER, UNBOUNDED);
    assert!(remembered.get(&[("path", &long)], &Clock::system()).is_none());
    remembered.put(
        &[("path", "/heavy")],
        &decision(&"x".repeat(DECISION_BYTES_MAX)),
        Expiry::NEVER,
        UNBOUNDED,
    );
    assert!(remembered.get(&[("path", "/heavy")], &Clock::system()).is_none());
}

#[test]
fn heavy_decisions_stay_within_the_bytes_and_a_smaller_share_is_kept_to() {
    let mut remembered = DecisionCache::default();
    let heavy = decision(&"x".repeat(DECISION_BYTES_MAX / 2));
    let put = |remembered: &mut DecisionCache, clients: std::ops::Range<usize>, bytes_max| {
        for client in clients {
            remembered.put(&[("client-ip", &client.to_string())], &heavy, Expiry::NEVER, bytes_max);
            // All of them are in use, so that only a second look frees any.
            remembered.get(&[("client-ip", &client.to_string())], &Clock::system());
        }
    };
    put(&mut remembered, 0..5_000, 1 << 20);
    remembered.assert_bounded(1 << 20);
    assert!(remembered.bytes > 1 << 19, "{} bytes", remembered.bytes);
    put(&mut remembered, 5_000..10_000, 1 << 18);
    remembered.assert_bounded(1 << 18);
    assert!(remembered.bytes > 1 << 17, "{} bytes", remembered.bytes);
}

#[test]
fn facts_in_use_are_all_remembered_from_their_second_round_on() {
    for count in [1_usize, 1_000, 10_000] {
        let mut remembered = DecisionCache::default();
        let clients: Vec<String> =
            (0..count).map(|client| format!("10.0.{}.{}", client / 256, client % 256)).collect();
        assert!(clients.iter().all(|client| !remembered.knows(client)));
        assert!(clients.iter().all(|client| remembered.knows(client)), "{count} clients");
        assert!(
            remembered.sets.len() * WAYS <= (2 * count).next_power_of_two().max(SETS_MIN * WAYS),
            "{count} clients, {} sets",
            remembered.sets.len()
        );
    }
}

#[test]
fn facts_that_come_once_fill_no_memory_and_those_that_come_again_are_cached() {
    let mut remembered = DecisionCache::default();
    let mut offer = |client: &str| {
        let facts = [("client-ip", client)];
        let known = remembered.get(&facts, &Clock::system()).is_some();
        if !known {
            remembered.offer(&facts, &decision(client), Expiry::NEVER, UNBOUNDED);
        }
        (known, remembered.bytes)
    };
    for stranger in 0..100_000 {
        let (_, bytes) = offer(&format!("stranger {stranger}"));
        assert!(bytes < SEEN_AGAIN_FROM_BYTES + 4_096, "{bytes} bytes");
    }
    let clients: Vec<String> = (0..10_000).map(|client| client.to_string()).collect();
    let mut known = 0;
    // Half of those that are not noted yet are noted in each round.
    for _ in 0..30 {
        known = clients.iter().filter(|client| offer(client).0).count();
    }
    assert!(known > 9_990, "{known}");
}

#[test]
fn facts_that_come_once_displace_only_each_other() {
    let mut remembered = DecisionCache::default();
    let clients: Vec<String> = (0..10_000).map(|client| client.to_string()).collect();
    for _ in 0..2 {
        for client in &clients {
            remembered.knows(client);
        }
    }
    for (round, client) in clients.iter().cycle().take(5 * clients.len()).enumerate() {
        for stranger in 0..5 {
            remembered.knows(&format!("stranger {round} {stranger}"));
        }
        assert!(remembered.knows(client), "after {round} rounds");
    }
}

/// More facts than there is room for, in a cycle: with LRU each look-up would miss.
#[test]
fn too_many_facts_in_use_are_remembered_in_part() {
    let mut remembered = DecisionCache::default();
    let clients: Vec<String> = (0..2 * SETS_MAX * WAYS).map(|client| client.to_string()).collect();
    let found = |remembered: &mut DecisionCache| {
        clients.iter().filter(|client| remembered.knows(client)).count()
    };
    let found = (0..4).map(|_| found(&mut remembered)).last().unwrap();
    assert!(found > clients.len() / 8, "{found}");
}

/// When other facts come into use, the former ones are replaced.
#[test]
fn unused_entries_give_way() {
    let mut remembered = DecisionCache::default();
    for day in ["monday", "tuesday"] {
        let clients: Vec<String> = (0..10_000).map(|client| format!("{day} {client}")).collect();
        let found = |remembered: &mut DecisionCache| {
            clients.iter().filter(|client| remembered.knows(client)).count()
        };
        let found = (0..30).map(|_| found(&mut remembered)).last().unwrap();
        assert!(found > clients.len() * 9 / 10, "{day}: {found}");
    }
}
