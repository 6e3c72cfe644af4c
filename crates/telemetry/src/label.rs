//! Labels with a closed set of values. Each set is an enum, declared once with the texts of its
//! values; [`CounterSet`] holds one counter for each of them.

use std::fmt;
use std::marker::PhantomData;

use super::counter::Counter;

/// A closed set of label values. Implemented by [`labels!`](crate::labels) alone.
pub trait Label: Copy + 'static {
    /// All values, in the order of their declaration.
    const ALL: &'static [Self];

    /// The value's text: in metrics, and in logs.
    fn label(self) -> &'static str;

    /// The value's place in [`ALL`](Self::ALL).
    fn index(self) -> usize;
}

/// Declares an enum whose variants are the values of a label, with the text of each.
#[macro_export]
macro_rules! labels {
    (
        $(#[$attribute:meta])*
        $visibility:vis enum $name:ident {
            $($(#[$of_variant:meta])* $variant:ident = $text:literal,)+
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        $visibility enum $name {
            $($(#[$of_variant])* $variant,)+
        }

        impl $crate::Label for $name {
            const ALL: &'static [Self] = &[$(Self::$variant),+];

            fn label(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }

            fn index(self) -> usize {
                self as usize
            }
        }
    };
}

/// One counter for each value of a label, looked up once and then only added to.
pub struct CounterSet<L> {
    counters: Box<[Counter]>,
    label: PhantomData<fn(L)>,
}

impl<L: Label> CounterSet<L> {
    pub(super) fn new(counter: impl Fn(L) -> Counter) -> Self {
        Self { counters: L::ALL.iter().copied().map(counter).collect(), label: PhantomData }
    }

    /// Adds one.
    #[inline]
    pub fn inc(&self, label: L) {
        self.add(label, 1);
    }

    /// The sum over all workers.
    #[must_use]
    pub fn get(&self, label: L) -> u64 {
        self.counters.get(label.index()).map_or(0, Counter::get)
    }

    /// Adds `n`.
    #[inline]
    pub fn add(&self, label: L, n: u64) {
        if let Some(counter) = self.counters.get(label.index()) {
            counter.add(n);
        }
    }
}

impl<L: Label> fmt::Debug for CounterSet<L> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_map()
            .entries(L::ALL.iter().map(|label| label.label()).zip(&self.counters))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Metrics, names};
    use super::*;

    labels! {
        enum Ending {
            /// Documented like any variant.
            Closed = "closed",
            TimedOut = "timed_out",
        }
    }

    #[test]
    fn each_value_is_counted_under_its_text() {
        let metrics = Metrics::new(1);
        let endings = metrics.counters::<Ending>(names::TUNNELS, &[]);
        endings.inc(Ending::TimedOut);
        endings.add(Ending::Closed, 2);
        for (place, ending) in Ending::ALL.iter().enumerate() {
            assert_eq!(ending.index(), place);
        }
        let text = metrics.encode();
        assert!(text.contains("weir_tunnels_total{ending=\"closed\"} 2\n"), "{text}");
        assert!(text.contains("weir_tunnels_total{ending=\"timed_out\"} 1\n"), "{text}");
    }

    #[test]
    fn the_values_before_the_label_are_the_same_for_all() {
        let metrics = Metrics::new(1);
        metrics.counters::<Ending>(names::POLICY_ERRORS, &["public"]).inc(Ending::Closed);
        let closed = "weir_policy_errors_total{policy=\"public\",cause=\"closed\"} 1\n";
        assert!(metrics.encode().contains(closed));
    }
}
