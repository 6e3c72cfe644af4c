//! One worker's connections to an upstream, with one slot per host: idle connections, shared
//! connections, and the choice between hosts. Knows nothing of requests.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use smallvec::SmallVec;

use super::host::{Host, InFlight};
use super::http1::Http1Connection;
use super::http2::Http2Connection;
use super::streams::{StreamUse, Streams};
use super::{Affinity, Inner, hash};

/// The slots of all of an upstream's hosts.
#[derive(Default)]
pub(super) struct Slots {
    /// The slots in the order of the upstream's hosts.
    all: Vec<Slot>,
    idle_total: usize,
    /// The generation of the list of hosts that the slots follow.
    generation: u64,
    /// The weights of the hosts so far, added up; empty if all are the same.
    weights: Vec<u64>,
    /// Which of the hosts are asked first; empty if they are all alike.
    stages: Vec<Stage>,
}

/// Hosts that are asked before others: those of the own zone before those of the same rank
/// elsewhere, and those of a rank before the next.
struct Stage {
    of: Range<usize>,
    /// How many of a hundred of them, by weight, have to be able to take requests. At least one
    /// has to, in any case.
    min_percent: u32,
}

/// One host's connections.
struct Slot {
    host: Arc<Host>,
    /// HTTP/1.1, the longest unused first.
    #[allow(
        clippy::vec_box,
        reason = "a connection is boxed once for its life: unboxing it here would move it twice for every request"
    )]
    idle: Vec<Box<Http1Connection>>,
    /// HTTP/2.
    streams: Streams,
    tunnels: Streams,
}

/// What load is multiplied by before it is divided by a weight.
const LOAD_SCALE: usize = 1 << 27;

/// The weights so far at each slot, added up. Empty if all are the same.
fn cumulated(slots: &[Slot]) -> Vec<u64> {
    let first = slots.first().map(Slot::weight);
    if slots.iter().all(|slot| Some(slot.weight()) == first) {
        return Vec::new();
    }
    let add = |sum: &mut u64, slot: &Slot| {
        *sum += u64::from(slot.weight());
        Some(*sum)
    };
    slots.iter().scan(0, add).collect()
}

/// The stages of hosts, which are in their order. Empty if there is only one.
fn stages(slots: &[Slot], zone_min: u32) -> Vec<Stage> {
    let mut stages = Vec::new();
    let mut from = 0;
    for rank in slots.chunk_by(|one, other| one.host.standing.rank == other.host.standing.rank) {
        let local = rank.iter().filter(|slot| slot.host.standing.is_local).count();
        if (1..rank.len()).contains(&local) {
            stages.push(Stage { of: from..from + local, min_percent: zone_min });
        }
        stages.push(Stage { of: from..from + rank.len(), min_percent: 0 });
        from += rank.len();
    }
    if stages.len() == 1 { Vec::new() } else { stages }
}

impl Slot {
    fn new(host: &Arc<Host>) -> Self {
        let (streams, tunnels) = (Streams::default(), Streams::default());
        Self { host: Arc::clone(host), idle: Vec::new(), streams, tunnels }
    }

    fn weight(&self) -> u32 {
        self.host.standing.weight
    }
}

/// Connections to be closed, which the caller drops outside the borrow of its thread-local.
#[derive(Default)]
pub(super) struct DiscardedConnections {
    #[allow(clippy::vec_box, reason = "as in `Slot`")]
    http1: Vec<Box<Http1Connection>>,
    http2: Vec<Arc<Http2Connection>>,
}

impl Slots {
    /// Adopts the upstream's current hosts, if they have changed.
    pub(super) fn update_hosts(&mut self, upstream: &Inner, discarded: &mut DiscardedConnections) {
        let generation = upstream.hosts.generation();
        if generation == self.generation && !self.all.is_empty() {
            return;
        }
        self.generation = generation;
        let mut before = std::mem::take(&mut self.all);
        let slot =
            |host: &Arc<Host>| match before.iter().position(|slot| Arc::ptr_eq(&slot.host, host)) {
                Some(at) => before.swap_remove(at),
                None => Slot::new(host),
            };
        self.all = upstream.hosts.current().iter().map(slot).collect();
        self.idle_total = self.all.iter().map(|slot| slot.idle.len()).sum();
        self.weights = cumulated(&self.all);
        self.stages = stages(&self.all, upstream.settings.zone_min);
        // Addresses that are gone. Requests under way there continue.
        for mut gone in before {
            discarded.http1.append(&mut gone.idle);
            gone.streams.close(&mut discarded.http2);
            gone.tunnels.close(&mut discarded.http2);
        }
    }

    /// The host for a request, none of `tried`. A single host is not counted.
    ///
    /// Of two random hosts it takes the one with less load for its weight (power of two choices).
    /// That is nearly as even as comparing all of them, and workers that see the same counts don't
    /// all choose the same host. With an affinity it takes the host of that, or with a hash the
    /// next one if that is too busy. Hosts that are ejected or unhealthy are skipped while there is
    /// another, and those of a later stage while there is one of an earlier.
    pub(super) fn choose(
        &self,
        upstream: &Inner,
        tried: &[Arc<Host>],
        affinity: Option<Affinity>,
    ) -> Option<(usize, Option<InFlight>)> {
        let count = self.all.len();
        if count <= 1 {
            return (count == 1 && tried.is_empty()).then_some((0, None));
        }
        let untried = |index: &usize| {
            self.host(*index)
                .is_some_and(|host| !tried.iter().any(|tried| Arc::ptr_eq(tried, host)))
        };
        // Drawn once, so that a host that starts slowly is ready or not for the whole choice.
        let slow_start = upstream.settings.health.as_ref().and_then(|check| check.slow_start);
        let drawn = slow_start.map_or(0.0, |_| fastrand::f64());
        let ready = |index: &usize| {
            untried(index)
                && self
                    .host(*index)
                    .is_some_and(|host| !host.is_ejected() && host.takes_requests(upstream, drawn))
        };
        let able = |index: &usize| {
            let ignores_health =
                upstream.settings.health.is_none() || upstream.hosts.ignores_health();
            untried(index) && self.host(*index).is_some_and(|host| host.is_able(ignores_health))
        };
        let may_probe = |index: &usize| {
            untried(index) && self.host(*index).is_some_and(|host| host.may_probe(upstream, drawn))
        };
        // Scaled before the division: it is a whole number, and weights go up to 65,535,000.
        let load = |index: &usize| {
            self.all.get(*index).map_or(usize::MAX, |slot| {
                slot.host.outstanding().saturating_mul(LOAD_SCALE) / slot.weight().max(1) as usize
            })
        };
        let stage = self.stage(ready);
        let pair = self.two(&stage);
        let (from, count) = (stage.start, stage.len());
        let around = || (0..count).map(|step| from + (pair[0] - from + step) % count);
        // A session goes before everything else, but not to a backup that is not used.
        let rank = self.host(stage.end - 1).map_or(0, |last| last.standing.rank);
        let own = match affinity {
            Some(Affinity::Host(tag)) => {
                let is_its = |slot: &Slot| slot.host.tag == tag && slot.host.standing.rank <= rank;
                self.all.iter().position(is_its).filter(able)
            }
            _ => None,
        };
        // Those of other stages are drawn by no request, but have to be probed as well.
        let index = own.or_else(|| match self.stages.is_empty() {
            true => pair.into_iter().find(may_probe),
            false => (0..self.all.len()).find(may_probe),
        });
        let index = index.or_else(|| match affinity? {
            Affinity::Hash(hash) => self.hashed(hash, stage.clone(), |index| ready(&index)),
            Affinity::Host(_) => None,
        });
        let index = index.or_else(|| pair.into_iter().filter(ready).min_by_key(load));
        let index = index.or_else(|| self.one_of(stage.clone().filter(ready), load));
        let index = index.or_else(|| around().find(may_probe));
        // Those that start slowly, rather than one that is known to be down.
        let index = index.or_else(|| around().find(able));
        // All are ejected, so ejection decides nothing.
        let index = index.or_else(|| around().filter(untried).min_by_key(load))?;
        Some((index, Some(InFlight::new(self.host(index)?))))
    }

    /// The hosts that a request may go to: those of the first stage of which enough are `ready`,
    /// or of any that has one, or all.
    fn stage(&self, ready: impl Fn(&usize) -> bool) -> Range<usize> {
        let weight = |of: &Range<usize>, counts: &dyn Fn(&usize) -> bool| -> u64 {
            let weights = of.clone().filter(counts).filter_map(|index| self.all.get(index));
            weights.map(|slot| u64::from(slot.weight())).sum()
        };
        let mut any = None;
        for Stage { of, min_percent } in &self.stages {
            let able = weight(of, &ready);
            if able == 0 {
                continue;
            }
            if able * 100 >= weight(of, &|_| true) * u64::from(*min_percent) {
                return of.clone();
            }
            any.get_or_insert_with(|| of.clone());
        }
        any.unwrap_or(0..self.all.len())
    }

    /// Two hosts of a stage, each by chance in proportion to its weight; different ones if there
    /// are two and all weights are the same.
    fn two(&self, stage: &Range<usize>) -> [usize; 2] {
        let (from, count) = (stage.start, stage.len());
        let upto = |index: usize| self.weights.get(index).copied().unwrap_or_default();
        if self.weights.is_empty() {
            let first = fastrand::usize(..count);
            let second =
                if count < 2 { first } else { (first + fastrand::usize(1..count)) % count };
            return [from + first, from + second];
        }
        let (before, end) = (from.checked_sub(1).map_or(0, upto), upto(stage.end - 1));
        let pick = || {
            let drawn = fastrand::u64(before..end);
            self.weights.partition_point(|sum| *sum <= drawn)
        };
        // One that is drawn twice is not compared: its weight has decided.
        [pick(), pick()]
    }

    /// One of these hosts, as of all of them: the less loaded of two that are drawn by their
    /// weights. So those that can take requests share what the others can't, and not only the
    /// next one in the list.
    fn one_of(
        &self,
        hosts: impl Iterator<Item = usize>,
        load: impl Fn(&usize) -> usize,
    ) -> Option<usize> {
        let weight = |index: usize| self.all.get(index).map_or(0, |slot| u64::from(slot.weight()));
        let mut sum = 0;
        let upto: SmallVec<[(u64, usize); 16]> = hosts
            .map(|index| {
                sum += weight(index);
                (sum, index)
            })
            .collect();
        let pick = || {
            let drawn = fastrand::u64(..sum.max(1));
            upto.get(upto.partition_point(|(sum, _)| *sum <= drawn)).map(|(_, index)| *index)
        };
        [pick(), pick()].into_iter().flatten().min_by_key(load)
    }

    /// The host that this hash belongs to, or the next one for it while that is not ready or has
    /// more than its share of the requests.
    fn hashed(
        &self,
        hash: u64,
        stage: Range<usize>,
        ready: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        // Of those alone that may get requests: they share what the others would have had.
        let able: SmallVec<[(usize, &Slot); 16]> = stage
            .filter(|index| ready(*index))
            .filter_map(|at| Some((at, self.all.get(at)?)))
            .collect();
        let total: usize = able.iter().map(|(_, slot)| slot.host.outstanding()).sum();
        let weights: u64 = able.iter().map(|(_, slot)| u64::from(slot.weight())).sum();
        let fit = able.iter().filter(|(_, slot)| {
            hash::has_room(slot.host.outstanding(), total, (slot.weight(), weights))
        });
        let ranked =
            fit.map(|(index, slot)| (hash::rank(hash, slot.host.tag, slot.weight()), *index));
        ranked.max_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, index)| index)
    }

    /// The number of hosts.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn host(&self, index: usize) -> Option<&Arc<Host>> {
        self.all.get(index).map(|slot| &slot.host)
    }

    /// The index of `host`, which was `index` not long ago.
    fn at(&self, index: usize, host: &Arc<Host>) -> Option<usize> {
        if self.host(index).is_some_and(|at| Arc::ptr_eq(at, host)) {
            return Some(index);
        }
        self.all.iter().position(|slot| Arc::ptr_eq(&slot.host, host))
    }

    /// The most recently used connection to a host, or else the host. `host` is given if there are
    /// several.
    pub(super) fn take(
        &mut self,
        upstream: &Inner,
        index: usize,
        host: Option<&Arc<Host>>,
        now: Instant,
        discarded: &mut DiscardedConnections,
    ) -> Result<Box<Http1Connection>, Option<Arc<Host>>> {
        let index = match host {
            None => index,
            Some(host) => self.at(index, host).ok_or_else(|| Some(Arc::clone(host)))?,
        };
        let slot = self.all.get_mut(index).ok_or(None)?;
        while let Some(mut connection) = slot.idle.pop() {
            self.idle_total -= 1;
            if now.saturating_duration_since(connection.idle_since) < upstream.settings.idle {
                connection.slot = index;
                return Ok(connection);
            }
            discarded.http1.push(connection);
        }
        Err(Some(Arc::clone(&slot.host)))
    }

    /// Keeps an idle connection, unless enough are kept, other workers need its descriptor, or its
    /// host is gone.
    pub(super) fn put(&mut self, upstream: &Inner, connection: Box<Http1Connection>) {
        if self.idle_total >= upstream.settings.pool_idle_per_worker || upstream.budget.is_tight() {
            return;
        }
        if let Some(slot) =
            self.at(connection.slot, &connection.host).and_then(|at| self.all.get_mut(at))
        {
            slot.idle.push(connection);
            self.idle_total += 1;
        }
    }

    /// Closes idle connections, the longest unused first: half of each host's, and at least one. Of
    /// HTTP/2 all that carry no request, as they are few.
    pub(super) fn release_idle(&mut self, discarded: &mut DiscardedConnections) {
        for slot in &mut self.all {
            let count = slot.idle.len().div_ceil(2);
            discarded.http1.extend(slot.idle.drain(..count));
            self.idle_total -= count;
            slot.streams.release_idle(&mut discarded.http2);
            slot.tunnels.release_idle(&mut discarded.http2);
        }
    }

    pub(super) fn streams(
        &mut self,
        host: &Arc<Host>,
        stream_use: StreamUse,
    ) -> Option<&mut Streams> {
        let slot = self.all.iter_mut().find(|slot| Arc::ptr_eq(&slot.host, host))?;
        Some(match stream_use {
            StreamUse::Requests => &mut slot.streams,
            StreamUse::Tunnels => &mut slot.tunnels,
        })
    }

    pub(super) fn are_empty(&self) -> bool {
        self.idle_total == 0
            && self.all.iter().all(|slot| slot.streams.is_empty() && slot.tunnels.is_empty())
    }

    pub(super) fn sweep(&mut self, now: Instant, discarded: &mut DiscardedConnections) {
        for slot in &mut self.all {
            let before = slot.idle.len();
            discarded
                .http1
                .extend(slot.idle.extract_if(.., |connection| !connection.is_worth_keeping(now)));
            self.idle_total -= before - slot.idle.len();
            slot.streams.sweep(now, &mut discarded.http2);
            slot.tunnels.sweep(now, &mut discarded.http2);
        }
    }
}
