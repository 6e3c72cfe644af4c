//! Who waits for a place, and who is next. Pure: knows no upstream and reads no clock.
//!
//! The next one is of the highest priority, and there of whoever has least under way; then the one
//! that came first, or last once somebody of this priority has waited at every moment of
//! `max_wait`: by then those at the front have waited nearly as long as they may, and serving them
//! makes everybody late (adaptive LIFO; B. Maurer, Fail at Scale, ACM Queue 13(8), 2015).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::upstream::sender::PRIORITY_MAX;

const PRIORITIES: usize = PRIORITY_MAX as usize + 1;

/// The line of one upstream. `G` is what grants a place.
#[derive(Debug)]
pub(super) struct Line<G> {
    waiters: Vec<(u64, Waiter<G>)>,
    /// The most that may wait.
    max: usize,
    max_wait: Duration,
    ids: u64,
    /// Since when somebody of each priority has waited at every moment.
    since: [Option<Instant>; PRIORITIES],
    /// The requests under way and waiting, by whose they are, as far as they are counted.
    by_key: HashMap<u64, Share>,
}

/// A request that waits.
#[derive(Debug)]
pub(super) struct Waiter<G> {
    /// More goes first.
    pub(super) priority: u8,
    /// Whose it is.
    pub(super) key: u64,
    pub(super) grant: G,
}

/// What somebody has.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    in_flight: usize,
    waiting: usize,
}

impl<G> Line<G> {
    pub(super) fn new(max: usize, max_wait: Duration) -> Self {
        let since = [None; PRIORITIES];
        Self { waiters: Vec::new(), max, max_wait, ids: 0, since, by_key: HashMap::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Puts a request into the line, and returns its number. In a full line it takes the turn of
    /// one of a lower priority, or of somebody who has more; the last of those. `None` if there is
    /// none.
    pub(super) fn join(&mut self, waiter: Waiter<G>, now: Instant) -> Option<u64> {
        if self.waiters.len() >= self.max {
            let rank = |waiter: &Waiter<G>, more: usize| {
                let share = self.share(waiter.key);
                // Those with more under way and waiting go first.
                (waiter.priority, usize::MAX - (share.in_flight + share.waiting + more))
            };
            let all = self.waiters.iter().enumerate();
            let (at, (_, last)) =
                all.min_by_key(|(at, (_, other))| (rank(other, 0), usize::MAX - at))?;
            if rank(last, 0) >= rank(&waiter, 1) {
                return None;
            }
            self.remove(at);
        }
        if let Some(since) = self.since.get_mut(usize::from(waiter.priority)) {
            since.get_or_insert(now);
        }
        self.ids += 1;
        self.by_key.entry(waiter.key).or_default().waiting += 1;
        self.waiters.push((self.ids, waiter));
        Some(self.ids)
    }

    /// Takes the one who is next.
    pub(super) fn next(&mut self, now: Instant) -> Option<Waiter<G>> {
        let all = self.waiters.iter().enumerate();
        let (at, _) = all.min_by_key(|(at, (_, waiter))| {
            let since = self.since.get(usize::from(waiter.priority)).copied().flatten();
            let newest_first =
                since.is_some_and(|since| now.saturating_duration_since(since) >= self.max_wait);
            let turn = if newest_first { usize::MAX - at } else { *at };
            (u8::MAX - waiter.priority, self.share(waiter.key).in_flight, turn)
        })?;
        Some(self.remove(at))
    }

    /// Whether somebody of a lower priority waits, and nobody of a higher one.
    pub(super) fn is_only_above(&self, priority: u8) -> bool {
        let waits = |mut priorities: std::ops::Range<usize>| {
            priorities.any(|other| self.since.get(other).is_some_and(Option::is_some))
        };
        let priority = usize::from(priority);
        waits(0..priority) && !waits(priority + 1..PRIORITIES)
    }

    /// Takes a request out of the line, if it is still there.
    pub(super) fn leave(&mut self, id: u64) -> Option<Waiter<G>> {
        let at = self.waiters.iter().position(|(waiting, _)| *waiting == id)?;
        Some(self.remove(at))
    }

    /// Whether nothing is kept of anybody.
    #[cfg(test)]
    pub(super) fn knows_nobody(&self) -> bool {
        self.by_key.is_empty()
    }

    /// A request of `key` is under way now.
    pub(super) fn began(&mut self, key: u64) {
        self.by_key.entry(key).or_default().in_flight += 1;
    }

    /// A request of `key` is no longer under way.
    pub(super) fn ended(&mut self, key: u64) {
        self.change(key, |share| share.in_flight = share.in_flight.saturating_sub(1));
    }

    fn remove(&mut self, at: usize) -> Waiter<G> {
        let (_, waiter) = self.waiters.remove(at);
        if self.waiters.iter().all(|(_, other)| other.priority != waiter.priority)
            && let Some(since) = self.since.get_mut(usize::from(waiter.priority))
        {
            *since = None;
        }
        self.change(waiter.key, |share| share.waiting = share.waiting.saturating_sub(1));
        waiter
    }

    fn change(&mut self, key: u64, change: impl FnOnce(&mut Share)) {
        let Some(share) = self.by_key.get_mut(&key) else { return };
        change(share);
        if share.in_flight == 0 && share.waiting == 0 {
            self.by_key.remove(&key);
        }
    }

    fn share(&self, key: u64) -> Share {
        self.by_key.get(&key).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAX_WAIT: Duration = Duration::from_millis(100);

    fn waiter(priority: u8, key: u64) -> Waiter<()> {
        Waiter { priority, key, grant: () }
    }

    fn order(line: &mut Line<()>, now: Instant) -> Vec<(u8, u64)> {
        let mut order = Vec::new();
        while let Some(waiter) = line.next(now) {
            line.began(waiter.key);
            order.push((waiter.priority, waiter.key));
        }
        order
    }

    #[test]
    fn priority_decides_first_then_who_has_least_then_who_came_first() {
        let (mut line, now) = (Line::new(16, MAX_WAIT), Instant::now());
        line.began(1);
        for (priority, key) in [(4, 1), (4, 1), (4, 2), (4, 3), (4, 2), (7, 1), (0, 9)] {
            line.join(waiter(priority, key), now).unwrap();
        }
        let expected = [(7, 1), (4, 2), (4, 3), (4, 2), (4, 1), (4, 1), (0, 9)];
        assert_eq!(order(&mut line, now), expected);
    }

    #[test]
    fn the_newest_is_first_once_somebody_has_always_waited() {
        let (mut line, now) = (Line::new(16, MAX_WAIT), Instant::now());
        let join = |line: &mut Line<()>| {
            for key in 1..=3 {
                line.join(waiter(4, key), now).unwrap();
            }
        };
        join(&mut line);
        assert_eq!(order(&mut line, now), [(4, 1), (4, 2), (4, 3)]);
        for key in 1..=3 {
            line.ended(key);
        }
        join(&mut line);
        assert_eq!(order(&mut line, now + MAX_WAIT), [(4, 3), (4, 2), (4, 1)]);
    }

    #[test]
    fn who_came_first_is_first_as_long_as_only_lower_priorities_have_always_waited() {
        let (mut line, begun) = (Line::new(16, MAX_WAIT), Instant::now());
        line.join(waiter(4, 9), begun).unwrap();
        let later = begun + MAX_WAIT;
        for key in 1..=2 {
            line.join(waiter(7, key), later).unwrap();
        }
        line.join(waiter(4, 8), later).unwrap();
        assert!(line.is_only_above(7) && !line.is_only_above(4) && !line.is_only_above(6));
        assert_eq!(order(&mut line, later), [(7, 1), (7, 2), (4, 8), (4, 9)]);
        assert!(line.since.iter().all(Option::is_none), "nobody waits");
    }

    #[test]
    fn in_a_full_line_the_least_important_of_whoever_has_most_gives_way() {
        let (mut line, now) = (Line::new(3, MAX_WAIT), Instant::now());
        for (priority, key) in [(4, 1), (4, 1), (4, 2)] {
            line.join(waiter(priority, key), now).unwrap();
        }
        assert!(line.join(waiter(3, 5), now).is_none(), "a lower priority");
        assert!(line.join(waiter(4, 1), now).is_none(), "one who has more");
        assert!(line.join(waiter(4, 2), now).is_none(), "one who would have as much");
        assert!(line.join(waiter(4, 3), now).is_some(), "one who has less");
        assert!(line.join(waiter(5, 1), now).is_some(), "a higher priority");
        assert_eq!(order(&mut line, now), [(5, 1), (4, 2), (4, 1)]);
    }

    #[test]
    fn whoever_leaves_is_not_next() {
        let (mut line, now) = (Line::new(3, MAX_WAIT), Instant::now());
        let first = line.join(waiter(4, 1), now).unwrap();
        line.join(waiter(4, 2), now).unwrap();
        assert!(line.leave(first).is_some());
        assert!(line.leave(first).is_none());
        assert_eq!(order(&mut line, now), [(4, 2)]);
        line.ended(2);
        assert!(line.knows_nobody(), "nothing is kept of those who are gone");
    }

    proptest! {
        /// Against a list that is sorted anew each time.
        #[test]
        fn no_order_of_events_breaks_the_rules(
            events in prop::collection::vec((0..4_u8, 0..4_u8, 0..4_u64), 1..200),
        ) {
            let (mut line, now) = (Line::new(4, MAX_WAIT), Instant::now());
            let mut waiting: Vec<(u64, u8, u64)> = Vec::new();
            let mut under_way: Vec<u64> = Vec::new();
            for (event, priority, key) in events {
                let has = |key: u64| under_way.iter().filter(|other| **other == key).count();
                let total = |key: u64| {
                    has(key) + waiting.iter().filter(|(_, _, other)| *other == key).count()
                };
                match event {
                    0 | 1 => {
                        let worst = waiting
                            .iter()
                            .copied()
                            .min_by_key(|(id, priority, key)| (*priority, usize::MAX - total(*key), u64::MAX - id));
                        let gives_way = worst.filter(|(_, other, theirs)| {
                            *other < priority || (*other == priority && total(*theirs) > total(key) + 1)
                        });
                        let fits = waiting.len() < 4 || gives_way.is_some();
                        let joined = line.join(waiter(priority, key), now);
                        prop_assert_eq!(joined.is_some(), fits);
                        if let Some(id) = joined {
                            if waiting.len() == 4 {
                                waiting.retain(|one| Some(*one) != gives_way);
                            }
                            waiting.push((id, priority, key));
                        }
                    }
                    2 => {
                        let best = waiting
                            .iter()
                            .copied()
                            .min_by_key(|(id, priority, key)| (u8::MAX - priority, has(*key), *id));
                        let next = line.next(now).map(|waiter| (waiter.priority, waiter.key));
                        prop_assert_eq!(next, best.map(|(_, priority, key)| (priority, key)));
                        if let Some(best) = best {
                            waiting.retain(|one| *one != best);
                            line.began(best.2);
                            under_way.push(best.2);
                        }
                    }
                    _ => {
                        if let Some(key) = under_way.pop() {
                            line.ended(key);
                        }
                    }
                }
                prop_assert_eq!(line.len(), waiting.len());
            }
        }
    }
}
