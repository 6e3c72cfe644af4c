//! The last requests of one worker, bounded in number and bytes. Knows no clock.

use std::collections::VecDeque;

use super::{Kind, Remembered};

/// The part of the bytes that refusals have: one in so many is for the sample.
const SAMPLES_PART: usize = 4;

/// Refusals and a sample of the others, apart: a flood of refusals forgets no sample.
pub(super) struct Recent<R> {
    refusals: Ring<R>,
    samples: Ring<R>,
}

impl<R> Default for Recent<R> {
    fn default() -> Self {
        Self { refusals: Ring::default(), samples: Ring::default() }
    }
}

impl<R: Remembered> Recent<R> {
    pub(super) fn bound(&mut self, refusals_max: usize, samples_max: usize, bytes_max: usize) {
        let of_samples = bytes_max / SAMPLES_PART;
        self.refusals.bound(refusals_max, bytes_max - of_samples);
        self.samples.bound(samples_max, of_samples);
    }

    pub(super) fn push(&mut self, request: R, kind: Kind) {
        match kind {
            Kind::Refusal => self.refusals.push(request),
            Kind::Sample => self.samples.push(request),
        }
    }

    /// Refusals, then the sample; the newest of each first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&R, Kind)> {
        let refusals = self.refusals.requests.iter().rev().map(|it| (it, Kind::Refusal));
        refusals.chain(self.samples.requests.iter().rev().map(|it| (it, Kind::Sample)))
    }

    pub(super) fn counts(&self) -> (usize, usize) {
        (self.refusals.requests.len(), self.samples.requests.len())
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

impl<R: Remembered> Ring<R> {
    fn bound(&mut self, count_max: usize, bytes_max: usize) {
        (self.count_max, self.bytes_max) = (count_max, bytes_max);
        self.make_room(0, 0);
        self.requests.shrink_to(count_max);
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

    struct Heavy(usize);

    impl Remembered for Heavy {
        fn bytes(&self) -> usize {
            self.0
        }
    }

    #[test]
    fn bytes_are_bounded_and_what_never_fits_displaces_nothing() {
        let mut recent = Recent::default();
        recent.bound(1_000, 1_000, 4_000);
        for _ in 0..100 {
            recent.push(Heavy(100), Kind::Refusal);
            recent.push(Heavy(100), Kind::Sample);
        }
        assert_eq!(recent.counts(), (30, 10));
        recent.push(Heavy(3_001), Kind::Refusal);
        assert_eq!(recent.counts(), (30, 10));
        recent.push(Heavy(3_000), Kind::Refusal);
        assert_eq!(recent.counts(), (1, 10), "a heavy one displaces as many as it weighs");
        assert_eq!(recent.iter().next().unwrap().0.0, 3_000);
    }
}
