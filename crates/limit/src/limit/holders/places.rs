//! Which places of a lease are free. Unlike other units they come back: a request of a
//! `concurrency` returns its place, and the next one takes it. Knows no time and no store.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// The places of one lease, by their numbers in it.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// The number of the call that took them.
    call: u32,
    units: u32,
    /// Those of them that have not gone back as surplus.
    held: u32,
    /// The lowest is used first, so that those that are free are few ranges.
    free: BinaryHeap<Reverse<u32>>,
    /// The most that were in use at once.
    peak: u32,
    /// At some time all that were held were in use.
    were_all_in_use: bool,
    /// The call left nothing for others.
    are_last: bool,
    /// The fewest that were free since the last look for surplus.
    spare: u32,
}

impl Places {
    /// A call took `units` places, and all are free. `are_last`: it left nothing for others.
    pub(super) fn begin(&mut self, call: u32, units: u32, are_last: bool) {
        let free = (0..units).map(Reverse).collect();
        *self = Self { call, units, held: units, spare: units, are_last, free, ..Self::default() };
    }

    /// Takes a free place.
    pub(super) fn take(&mut self) -> Option<u32> {
        let Reverse(place) = self.free.pop()?;
        let free = self.free();
        self.peak = self.peak.max(self.held.saturating_sub(free));
        self.spare = self.spare.min(free);
        self.were_all_in_use |= free == 0;
        Some(place)
    }

    /// Whether a place of this call's lease goes to the store and not to the lease when its request
    /// ends: it is the only one, which is never surplus, and there was nothing left for others,
    /// who would wait for all of the lease's life while it is used for moments.
    pub(super) fn go_back(&mut self, call: u32) -> bool {
        let go_back = self.are_last && self.held == 1 && call == self.call;
        self.held -= u32::from(go_back);
        go_back
    }

    /// A place of this call's lease is free again.
    pub(super) fn put_back(&mut self, call: u32, place: u32) {
        if call == self.call && place < self.units {
            self.free.push(Reverse(place));
        }
    }

    /// Whether none is free.
    pub(super) fn are_in_use(&self) -> bool {
        self.free.is_empty()
    }

    fn free(&self) -> u32 {
        u32::try_from(self.free.len()).unwrap_or(u32::MAX)
    }

    /// How many places the next lease is worth, if there was one: a quarter more than were in use
    /// at once, or twice as many if all were.
    pub(super) fn worth(&self) -> Option<u64> {
        let peak = u64::from(self.peak);
        let more = if self.were_all_in_use { 2 * peak } else { peak + peak / 4 + 1 };
        (self.units > 0).then(|| more.max(2))
    }

    /// Removes those that nobody has used since the last call, but for a quarter of what was used
    /// at once and one more. Their call, and their numbers in ascending order.
    pub(super) fn surplus(&mut self) -> (u32, Vec<Range<u32>>) {
        let used = self.held.saturating_sub(self.spare);
        let surplus = self.spare.saturating_sub(used / 4 + 1);
        let mut free = std::mem::take(&mut self.free).into_sorted_vec();
        // Sorted from the highest on.
        let kept = free.split_off(free.len().min(surplus as usize));
        self.free = kept.into();
        self.held = self.held.saturating_sub(surplus);
        self.spare = self.free();
        (self.call, ranges(free.into_iter().rev()))
    }

    /// Removes all that are free. Their call, and their numbers in ascending order.
    pub(super) fn end(&mut self) -> (u32, Vec<Range<u32>>) {
        let free = std::mem::take(&mut self.free).into_sorted_vec();
        (self.call, ranges(free.into_iter().rev()))
    }
}

fn ranges(ascending: impl Iterator<Item = Reverse<u32>>) -> Vec<Range<u32>> {
    let mut ranges: Vec<Range<u32>> = Vec::new();
    for Reverse(place) in ascending {
        match ranges.last_mut() {
            Some(range) if range.end == place => range.end += 1,
            _ => ranges.push(place..place + 1),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(range: Range<u32>) -> Vec<Range<u32>> {
        vec![range]
    }

    #[test]
    fn the_lowest_free_place_is_used_first_and_the_others_end_as_ranges() {
        let mut places = Places::default();
        places.begin(7, 6, false);
        let taken: Vec<u32> = (0..4).map_while(|_| places.take()).collect();
        assert_eq!(taken, [0, 1, 2, 3]);
        places.put_back(7, 1);
        places.put_back(6, 0);
        assert_eq!(places.take(), Some(1), "the other one is of an earlier lease");
        places.put_back(7, 2);
        assert_eq!(places.end(), (7, vec![2..3, 4..6]));
        assert_eq!(places.take(), None);
    }

    #[test]
    fn what_nobody_has_used_for_a_while_is_surplus() {
        let mut places = Places::default();
        places.begin(3, 20, false);
        let in_use: Vec<u32> = (0..8).map_while(|_| places.take()).collect();
        in_use.into_iter().for_each(|place| places.put_back(3, place));
        // Eight of them were used, and three may be wanted besides.
        assert_eq!(places.surplus(), (3, only(11..20)));
        assert_eq!(places.take(), Some(0));
        assert_eq!(places.surplus(), (3, only(2..11)));
        assert_eq!(places.surplus(), (3, vec![]), "one is in use, and one may be wanted");
        assert_eq!(places.worth(), Some(11), "of the whole lease");
        places.put_back(3, 0);
        assert_eq!(places.end(), (3, only(0..2)));
    }

    #[test]
    fn the_only_place_goes_back_if_it_was_the_last() {
        for (units, are_last, goes) in [(1, true, true), (1, false, false), (2, true, false)] {
            let mut places = Places::default();
            places.begin(3, units, are_last);
            assert_eq!(places.take(), Some(0));
            assert!(!places.go_back(2), "of an earlier lease");
            assert_eq!(places.go_back(3), goes, "{units} {are_last}");
            assert!(!goes || !places.go_back(3), "once");
        }
    }

    #[test]
    fn the_next_lease_is_worth_what_was_in_use_at_once() {
        let mut places = Places::default();
        assert_eq!(places.worth(), None, "there was none");
        places.begin(1, 100, false);
        assert_eq!(places.worth(), Some(2));
        for _ in 0..5 {
            let eight: Vec<u32> = (0..8).map_while(|_| places.take()).collect();
            eight.into_iter().for_each(|place| places.put_back(1, place));
        }
        assert_eq!(places.worth(), Some(11));
        while places.take().is_some() {}
        assert_eq!(places.worth(), Some(200), "more may have been wanted");
    }
}
