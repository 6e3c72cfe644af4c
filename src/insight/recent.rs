//! The last requests of one worker, bounded in number and bytes. Knows no clock.

use std::collections::VecDeque;

use super::{Counts, Entry, Kind};

/// One in this many bytes is for the sample.
const SAMPLES_BYTES_PART: usize = 4;
/// One in this many bytes is for rejections.
const REJECTIONS_BYTES_PART: usize = 8;

/// Refusals, rejections and a sample of other requests, each in a ring of its own: a flood of one
/// kind displaces none of the others.
pub(super) struct Recent<R> {
    refusals: Ring<R>,
    rejections: Ring<R>,
    samples: Ring<R>,
}

impl<R> Default for Recent<R> {
    fn default() -> Self {
        Self { refusals: Ring::default(), rejections: Ring::default(), samples: Ring::default() }
    }
}

impl<R: Entry> Recent<R> {
    pub(super) fn bound(
        &mut self,
        refusals_max: usize,
        rejections_max: usize,
        samples_max: usize,
        bytes_max: usize,
    ) {
        let (of_samples, of_rejections) =
            (bytes_max / SAMPLES_BYTES_PART, bytes_max / REJECTIONS_BYTES_PART);
        self.refusals.bound(refusals_max, bytes_max - of_samples - of_rejections);
        self.rejections.bound(rejections_max, of_rejections);
        self.samples.bound(samples_max, of_samples);
    }

    pub(super) fn push(&mut self, request: R, kind: Kind) {
        match kind {
            Kind::Refusal => self.refusals.push(request),
            Kind::Rejection => self.rejections.push(request),
            Kind::Sample => self.samples.push(request),
        }
    }

    /// Refusals, rejections, then the sample; the newest of each first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&R, Kind)> {
        self.refusals
            .newest_first(Kind::Refusal)
            .chain(self.rejections.newest_first(Kind::Rejection))
            .chain(self.samples.newest_first(Kind::Sample))
    }

    pub(super) fn counts(&self) -> Counts {
        Counts {
            refusals: self.refusals.requests.len(),
            rejections: self.rejections.requests.len(),
            samples: self.samples.requests.len(),
        }
    }
}

/// The oldest first.
struct Ring<R> {
    requests: VecDeque<R>,
    count_max: usize,
    bytes: usize,
    bytes_max: usize,
}

impl<R> Default for Ring<R> {
    fn default() -> Self {
        Self { requests: VecDeque::new(), count_max: 0, bytes: 0, bytes_max: 0 }
    }
}

impl<R: Entry> Ring<R> {
    fn bound(&mut self, count_max: usize, bytes_max: usize) {
        (self.count_max, self.bytes_max) = (count_max, bytes_max);
        self.make_room(0, 0);
        self.requests.shrink_to(count_max);
    }

    fn newest_first(&self, kind: Kind) -> impl Iterator<Item = (&R, Kind)> {
        self.requests.iter().rev().map(move |request| (request, kind))
    }

    fn push(&mut self, request: R) {
        let bytes = request.bytes();
        // One that can never fit must not displace all others.
        if self.count_max == 0 || bytes > self.bytes_max {
            return;
        }
        self.make_room(1, bytes);
        self.bytes += bytes;
        self.requests.push_back(request);
    }

    fn make_room(&mut self, count: usize, bytes: usize) {
        while self.requests.len() + count > self.count_max || self.bytes + bytes > self.bytes_max {
            let Some(oldest) = self.requests.pop_front() else { return };
            self.bytes = self.bytes.saturating_sub(oldest.bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct LargeEntry(usize);

    impl Entry for LargeEntry {
        fn bytes(&self) -> usize {
            self.0
        }
    }

    #[test]
    fn bytes_are_bounded_and_what_never_fits_displaces_nothing() {
        let mut recent = Recent::default();
        recent.bound(1_000, 1_000, 1_000, 4_000);
        for _ in 0..100 {
            recent.push(LargeEntry(100), Kind::Refusal);
            recent.push(LargeEntry(100), Kind::Rejection);
            recent.push(LargeEntry(100), Kind::Sample);
        }
        let counts = |refusals: usize| Counts { refusals, rejections: 5, samples: 10 };
        assert_eq!(recent.counts(), counts(25));
        recent.push(LargeEntry(2_501), Kind::Refusal);
        assert_eq!(recent.counts(), counts(25));
        recent.push(LargeEntry(2_500), Kind::Refusal);
        assert_eq!(recent.counts(), counts(1), "a heavy one displaces as many as it weighs");
        assert_eq!(recent.iter().next().unwrap().0.0, 2_500);
    }
}
