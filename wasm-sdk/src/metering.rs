//! What a decision wants to learn from a reply, and how it holds the reply to what was taken for
//! it: the contract's interface `usage`.

use std::time::Duration;

use crate::answer::milliseconds;
use crate::bindings::weir::policy::usage::Metering;
use crate::{Decision, Estimate, Gather, HardCut, Meter, Partial, Term};

impl Decision {
    /// Reads a number from the reply's body. [`ResponseView::usage`](crate::ResponseView::usage)
    /// has what was read.
    #[must_use]
    pub fn meter(mut self, pointer: impl Into<String>, gather: Gather) -> Self {
        self.metering().meters.push(Meter { pointer: pointer.into(), gather });
        self
    }

    /// If the client leaves, reads the rest of the reply for this long, to learn its usage.
    #[must_use]
    pub fn read_on(mut self, wait: Duration) -> Self {
        self.metering().read_on_ms = u32::try_from(milliseconds(wait)).unwrap_or(u32::MAX);
        self
    }

    /// Takes what is left, if that is less than the limits' cost.
    #[must_use]
    pub fn partial(mut self, partial: Partial) -> Self {
        self.metering().partial = Some(partial);
        self
    }

    /// Ends a reply that uses more than can be taken for it.
    #[must_use]
    pub fn hard_cut(mut self, cut: HardCut) -> Self {
        self.metering().hard_cut = Some(cut);
        self
    }

    fn metering(&mut self) -> &mut Metering {
        self.metering.get_or_insert_with(|| Metering {
            meters: Vec::new(),
            read_on_ms: 0,
            partial: None,
            hard_cut: None,
        })
    }
}

impl Partial {
    /// Takes at least `least` of each of these limits.
    #[must_use]
    pub fn new<S: Into<String>>(limits: impl IntoIterator<Item = S>, least: u64) -> Self {
        let limits = limits.into_iter().map(Into::into).collect();
        Self { limits, least, tell: Vec::new(), base: 0 }
    }

    /// Lowers the numbers at these pointers, in the request's body, to what was taken less `base`.
    #[must_use]
    pub fn tell<S: Into<String>>(
        mut self,
        pointers: impl IntoIterator<Item = S>,
        base: u64,
    ) -> Self {
        self.tell = pointers.into_iter().map(Into::into).collect();
        self.base = base;
        self
    }
}

impl HardCut {
    /// Takes `step` units of each of these limits, again and again, as soon as the reply has used
    /// the `taken` ones. How many it has used is the `base` and the largest group of the terms,
    /// added up.
    #[must_use]
    pub fn new<S: Into<String>>(
        limits: impl IntoIterator<Item = S>,
        taken: u64,
        step: u64,
        base: u64,
        terms: Vec<Term>,
    ) -> Self {
        let limits = limits.into_iter().map(Into::into).collect();
        Self { limits, taken, step, used: Estimate { base, terms } }
    }
}

impl Gather {
    /// The name of the fact that holds what was read at `pointer`.
    #[must_use]
    pub fn fact(self, pointer: &str) -> String {
        let word = match self {
            Self::Last => "last",
            Self::Max => "max",
            Self::Sum => "sum",
            Self::Bytes => "bytes",
            Self::Count => "count",
        };
        format!("usage.{word}:{pointer}")
    }
}
