//! What a request is charged when it comes, and what is asked of its reply. Does not read bodies.
//!
//! Of limits in `tokens` a request may get less than it asks for: what is left of them (`partial`)
//! or, where no others can refuse it, one step after another (`hard_cut`, of a reply that can be
//! cut). Input and money have no maximum that an upstream could be told: they are reserved whole.

use std::time::Duration;

use weir_policy::{Algorithm, Decision, Denial, Facts, HardCut, Limit, Meter, Partial, Term};

use crate::api::Role;
use crate::asked::{self, Asked};
use crate::config::Settings;
use crate::lists::{Counted, cost_max};
use crate::memo::{Memo, Taken};
use crate::models::Known;
use crate::prices::Tariff;
use crate::{AMOUNT_MAX, LlmBudget, Stop};

/// Groups of the estimate's terms. A group is a sum, and the largest counts, as in
/// [`Api::read`](crate::api::Api::read): the number of texts, their bytes, and the output as
/// reported at each place where it may be.
const COUNT_GROUP: u32 = 0;
const BYTES_GROUP: u32 = 1;
const TOLD_GROUPS: u32 = 2;

/// The name of the limit on requests with references at the same time.
pub(crate) const IN_FLIGHT: &str = "in-flight";

/// How much of what a request may use is taken when it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// All.
    Whole,
    /// All, or what is left if that is less.
    Partial,
    /// The input, and this many tokens of output. The rest follows in steps.
    Steps(u64),
}

/// A request's charge.
#[derive(Debug)]
struct Reservation<'a> {
    asked: &'a Asked<'a>,
    settings: &'a Settings,
    tariff: Option<Tariff>,
    /// Tokens of output of one answer, and of all of them.
    each: u64,
    output: u64,
    /// The pointers at which the upstream is told a maximum.
    tell: Vec<&'a str>,
    /// Whether the maximum that the request has is lowered in any case.
    lowered: bool,
    mode: Mode,
    limits: Vec<(Counted, Limit)>,
}

impl LlmBudget {
    /// The limits on requests, for one that is not charged for tokens.
    pub(crate) fn count(&self, facts: &Facts) -> Result<Vec<Limit>, Stop> {
        let Some(limits) = &self.requests else { return Ok(Vec::new()) };
        let client = self.ipv6_prefix.client(facts)?.key();
        Ok(limits.charge(&client, facts)?)
    }

    /// The decision about a request for tokens.
    pub(crate) fn reserve(&self, facts: &Facts) -> Result<Decision, Stop> {
        let settings = &self.settings;
        let asked = asked::read(&self.api, facts, settings)?;
        let known = self.known(&asked)?;
        let client = self.ipv6_prefix.client(facts)?.key();
        let mut limits = Vec::new();
        for (counted, list) in &self.budgets {
            let charged = list.charge(&client, facts)?;
            limits.extend(charged.into_iter().map(|limit| (*counted, limit)));
        }
        let to_write = self.api.maximum_to_write(asked.call);
        let reservation = Reservation::new(&asked, settings, known, to_write, limits);
        let settled = !reservation.limits.is_empty();
        let mut changes = reservation.maxima(to_write);
        if settled && let Some(pointer) = self.api.usage_to_ask(asked.call, asked.streams) {
            changes.push((pointer, "true".to_owned()));
        }
        let charged = reservation.limits.iter().map(|(_, limit)| limit.clone());
        let limits = charged.chain(self.count(facts)?).chain(reservation.in_flight()).collect();
        let mut decision = check(limits).label("model", known.label);
        for (pointer, json) in changes {
            decision = decision.body_change(pointer, json);
        }
        Ok(if settled {
            let caches = reservation.tariff.as_ref().is_some_and(Tariff::tells_caches_apart);
            let caches = caches && self.has_money();
            reservation.settled(decision, self.api.meters(asked.call, caches))
        } else {
            decision
        })
    }

    /// What is known of a request's model.
    fn known(&self, asked: &Asked) -> Result<Known<'_>, Denial> {
        match self.models.find(asked.model.as_deref()) {
            Some(known) => Ok(known),
            None if !self.has_money() => Ok(Known::UNKNOWN),
            None if asked.model.is_none() => Err(Denial::new(400, "the request names no model")),
            None => Err(Denial::new(400, "the model that the request names is not available")),
        }
    }

    fn has_money(&self) -> bool {
        self.budgets.iter().any(|(counted, _)| *counted == Counted::Money)
    }
}

/// The limit on requests at the same time.
pub(crate) fn in_flight(key: String, quota: u64) -> Limit {
    Limit::new(IN_FLIGHT, key, Algorithm::concurrency(quota))
}

/// Charges these limits; without any, nothing is counted.
pub(crate) fn check(limits: Vec<Limit>) -> Decision {
    if limits.is_empty() { Decision::bypass() } else { Decision::check(limits) }
}

impl<'a> Reservation<'a> {
    fn new(
        asked: &'a Asked<'a>,
        settings: &'a Settings,
        known: Known,
        to_write: Option<&'a str>,
        limits: Vec<(Counted, Limit)>,
    ) -> Self {
        let default = known.max_output.unwrap_or(settings.default_max_output);
        let each = if asked.call.has_output() { asked.maximum.unwrap_or(default) } else { 0 };
        let output = each.saturating_mul(asked.copies).min(AMOUNT_MAX);
        let tell = if asked.named.is_empty() {
            Vec::from_iter(to_write)
        } else {
            asked.named.iter().map(|(pointer, _)| *pointer).collect()
        };
        let tiers = asked.tiers.iter().map(String::as_str);
        let tariff = known.prices.map(|prices| prices.tariff(tiers, asked.input_max));
        let money = tariff.as_ref().map_or(0, |tariff| tariff.most(asked.input, output));
        // A limit that this request can't charge anything must not refuse it: embeddings have no
        // output, and some models are free.
        let charged =
            |(counted, _): &(Counted, Limit)| counted.units(asked.input, output, money) > 0;
        let limits = limits.into_iter().filter(charged).collect();
        let (lowered, mode) = (false, Mode::Whole);
        let mut this = Self { asked, settings, tariff, each, output, tell, lowered, mode, limits };
        this.choose_mode();
        this.set_costs();
        this
    }

    fn choose_mode(&mut self) {
        let refusing = || self.limits.iter().filter(|(_, limit)| limit.may_refuse());
        let (shared, others): (Vec<_>, Vec<_>) =
            refusing().partition(|(counted, _)| *counted == Counted::Tokens);
        let Some(most) = shared.iter().map(|(_, limit)| cost_max(limit)).min() else { return };
        if self.output == 0 {
            return;
        }
        let (input, settings) = (self.asked.input, self.settings);
        let left = most.saturating_sub(input);
        let first = settings.hard_cut.min(self.output);
        // Where the input and a step are never left, a reply would end before its first byte. Only
        // tokens can be taken in steps.
        if first > 0 && self.asked.in_events && first <= left && others.is_empty() {
            self.mode = Mode::Steps(first);
            return;
        }
        // One number can't say what is left for several answers, and a request that asks for no
        // output at all must not get any.
        let none = self.asked.maximum.is_none() && !self.asked.named.is_empty();
        let tells = self.asked.copies == 1 && !self.tell.is_empty() && !none;
        if !settings.partial || !tells || left < settings.least_output {
            return;
        }
        // More than a whole budget is never left.
        self.lowered = self.output > left;
        self.output = self.output.min(left);
        self.each = self.output;
        // With so little output there is nothing to lower.
        if self.output > settings.least_output {
            self.mode = Mode::Partial;
        }
    }

    fn set_costs(&mut self) {
        let (input, output) = (self.asked.input, self.output);
        let money = self.tariff.as_ref().map_or(0, |tariff| tariff.most(input, output));
        let first = match self.mode {
            Mode::Whole | Mode::Partial => output,
            Mode::Steps(first) => first,
        };
        for (counted, limit) in &mut self.limits {
            let output = if *counted == Counted::Tokens { first } else { output };
            limit.cost = counted.units(input, output, money).min(cost_max(limit));
            limit.unit = Some(counted.unit().to_owned());
        }
    }

    /// Whether the proxy may take less of a limit than its cost, or more in steps.
    fn shares(&self, counted: Counted, limit: &Limit) -> bool {
        self.mode != Mode::Whole && counted == Counted::Tokens && limit.may_refuse()
    }

    /// The limit on requests at the same time, for one whose input is not known: what they all use
    /// beyond their reservations is not owed beyond the limits' debt. It has the key of the first
    /// limit that can refuse the request.
    fn in_flight(&self) -> Option<Limit> {
        let quota = self.settings.in_flight;
        let (_, of) = self.limits.iter().find(|(_, limit)| limit.may_refuse())?;
        let tag = of.tag.clone();
        let limit = in_flight(of.key.clone(), quota);
        (quota > 0 && self.asked.refers).then_some(Limit { tag, ..limit })
    }

    fn shared(&self) -> impl Iterator<Item = &Limit> {
        let shared = self.limits.iter().filter(|(counted, limit)| self.shares(*counted, limit));
        shared.map(|(_, limit)| limit)
    }

    /// The maxima to write into the request.
    fn maxima(&self, to_write: Option<&'a str>) -> Vec<(&'a str, String)> {
        let written = self.settings.set_maximum && self.asked.named.is_empty() && self.output > 0;
        let pointers = match to_write {
            _ if self.lowered => self.tell.clone(),
            Some(pointer) if written => vec![pointer],
            _ => Vec::new(),
        };
        // What the client limited to less stays as it is.
        let higher = pointers.into_iter().filter(|at| !self.asked.is_within(at, self.each));
        higher.map(|pointer| (pointer, self.each.to_string())).collect()
    }

    /// The decision, with what its reply is settled by.
    fn settled(&self, decision: Decision, meters: Vec<(Role, Meter)>) -> Decision {
        let mut decision = decision
            .settle_with(self.memo().write())
            .read_on(Duration::from_millis(self.settings.read_on_ms));
        let input = self.asked.input;
        let taken = self.shared().map(|limit| limit.cost).min().unwrap_or(0);
        let names = self.shared().map(|limit| limit.name.as_str());
        decision = match self.mode {
            Mode::Whole => decision,
            Mode::Partial => {
                let least = input.saturating_add(self.settings.least_output);
                let partial = Partial::new(names, least);
                decision.partial(partial.tell(self.tell.iter().copied(), input))
            }
            Mode::Steps(first) => {
                // What was taken for the input, and not more: the first step is for the output.
                // A step of more than a limit ever has would never be taken.
                let step = self.shared().map(cost_max).fold(self.settings.hard_cut, u64::min);
                let base = taken.saturating_sub(first);
                decision.hard_cut(HardCut::new(names, taken, step, base, self.terms(&meters)))
            }
        };
        for (_, meter) in meters {
            decision = decision.meter(meter.pointer, meter.gather);
        }
        decision
    }

    /// How the output so far is estimated while a reply streams.
    fn terms(&self, meters: &[(Role, Meter)]) -> Vec<Term> {
        let term = |(meter, (role, _)): (u32, &(Role, Meter))| {
            let (group, per) = match role {
                Role::Input => return None,
                Role::Count => (COUNT_GROUP, 1),
                Role::Bytes => (BYTES_GROUP, self.settings.bytes_per_token),
                Role::Output(place) => (TOLD_GROUPS.saturating_add(*place), 1),
            };
            Some(Term { group, meter, units: 1, per })
        };
        (0..).zip(meters).filter_map(term).collect()
    }

    fn memo(&self) -> Memo {
        let taken = |(counted, limit): &(Counted, Limit)| Taken {
            counted: *counted,
            shares: self.shares(*counted, limit),
            units: limit.cost,
            name: limit.name.clone(),
        };
        Memo {
            input: self.asked.input,
            output: self.output,
            extends: matches!(self.mode, Mode::Steps(_)),
            tariff: self.tariff.clone(),
            limits: self.limits.iter().map(taken).collect(),
        }
    }
}
