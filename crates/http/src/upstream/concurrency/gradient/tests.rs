//! The limit against a simulated upstream: some servers that take requests in order. The simulation
//! knows nothing of how the limit is found.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::*;

/// A simulated upstream, and the clients before it. Times are in microseconds.
struct Simulation {
    gradient: Gradient,
    random: fastrand::Rng,
    now: u64,
    servers: usize,
    /// The mean time that a server needs for a request, and how it varies.
    service: u64,
    spread: Spread,
    /// Requests a second.
    rate: f64,
    max_wait: u64,
    /// Until then no server answers.
    frozen_until: u64,
    next_arrival: u64,
    /// Requests that wait here, by the time of their arrival.
    waiting: VecDeque<u64>,
    /// Requests at the upstream that no server has begun: when they came, and were sent.
    queued: VecDeque<(u64, u64)>,
    /// Requests that a server works on: when it is done, when they came, and were sent.
    served: BinaryHeap<Reverse<(u64, u64, u64)>>,
    full: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Spread {
    None,
    Exponential,
    /// Nine in ten take half a mean, one takes 5.5.
    TwoKinds,
}

/// What was seen in a span of time.
#[derive(Debug, Default)]
struct Seen {
    done: usize,
    shed: usize,
    /// From the arrival to the end, in microseconds.
    times: Vec<u64>,
    limits: Vec<usize>,
}

impl Seen {
    fn p99(&mut self) -> u64 {
        self.times.sort_unstable();
        self.times[self.times.len() * 99 / 100]
    }
}

impl Simulation {
    fn new(servers: usize, service_ms: u64, spread: Spread, seed: u64) -> Self {
        Self {
            gradient: Gradient::new(4, 1_000),
            random: fastrand::Rng::with_seed(seed),
            now: 0,
            servers,
            service: service_ms * 1_000,
            spread,
            rate: 0.0,
            max_wait: service_ms * 1_000,
            frozen_until: 0,
            next_arrival: 0,
            waiting: VecDeque::new(),
            queued: VecDeque::new(),
            served: BinaryHeap::new(),
            full: false,
        }
    }

    /// Requests a second that the servers can do.
    fn capacity(&self) -> f64 {
        self.servers as f64 / (self.service as f64 / 1e6)
    }

    fn exponential(&mut self, mean: f64) -> u64 {
        (-mean * (1.0 - self.random.f64()).ln()).ceil() as u64
    }

    fn service_time(&mut self) -> u64 {
        let mean = self.service as f64;
        match self.spread {
            Spread::None => self.service,
            Spread::Exponential => self.exponential(mean),
            Spread::TwoKinds if self.random.f64() < 0.1 => (mean * 5.5) as u64,
            Spread::TwoKinds => (mean * 0.5) as u64,
        }
    }

    fn in_flight(&self) -> usize {
        self.queued.len() + self.served.len()
    }

    /// Lets this much time pass at `load` times the capacity.
    fn run(&mut self, seconds: f64, load: f64) -> Seen {
        self.rate = self.capacity() * load;
        let until = self.now + (seconds * 1e6) as u64;
        self.next_arrival = self.now + 1;
        let mut seen = Seen::default();
        loop {
            let done = self.served.peek().map_or(u64::MAX, |Reverse((at, ..))| *at);
            let next = done.min(self.next_arrival);
            if next > until {
                self.now = until;
                return seen;
            }
            self.now = next;
            if done == next {
                let Reverse((_, came, sent)) = self.served.pop().unwrap();
                let sample = Sample {
                    now: Duration::from_micros(self.now),
                    reply: Reply::After(Duration::from_micros(self.now - sent)),
                    in_flight: self.in_flight() + 1,
                    full: std::mem::take(&mut self.full),
                };
                self.gradient.record(sample);
                seen.done += 1;
                seen.times.push(self.now - came);
                seen.limits.push(self.gradient.limit());
            } else {
                self.waiting.push_back(self.now);
                self.next_arrival = self.now + self.exponential(1e6 / self.rate).max(1);
            }
            self.move_on(&mut seen);
        }
    }

    fn move_on(&mut self, seen: &mut Seen) {
        let (now, max_wait) = (self.now, self.max_wait);
        let before = self.waiting.len();
        self.waiting.retain(|came| now - came <= max_wait);
        seen.shed += before - self.waiting.len();
        while self.in_flight() < self.gradient.limit()
            && let Some(came) = self.waiting.pop_front()
        {
            self.queued.push_back((came, now));
        }
        self.full |= !self.waiting.is_empty();
        while self.served.len() < self.servers
            && let Some((came, sent)) = self.queued.pop_front()
        {
            let begins = now.max(self.frozen_until);
            let takes = self.service_time();
            self.served.push(Reverse((begins + takes, came, sent)));
        }
    }
}

const ALL: [(usize, u64, Spread); 7] = [
    (8, 50, Spread::None),
    (8, 50, Spread::Exponential),
    (8, 10, Spread::TwoKinds),
    (2, 20, Spread::Exponential),
    (64, 20, Spread::Exponential),
    (200, 50, Spread::TwoKinds),
    (16, 1_500, Spread::Exponential),
];

/// Seconds for things to settle: longer where there are few replies a second.
fn settled(servers: usize, service_ms: u64) -> f64 {
    let few = if servers < 4 { 4.0 } else { 1.0 };
    (service_ms as f64 / 1e3 * 60.0).max(8.0) * few
}

#[test]
fn under_fourfold_load_the_upstream_is_used_up_and_still_answers_soon() {
    for (servers, service, spread) in ALL {
        for seed in 0..4 {
            let mut simulation = Simulation::new(servers, service, spread, seed);
            let case = format!("{servers} servers, {service} ms, seed {seed}");
            let mut rest = simulation.run(settled(servers, service), 0.5);
            simulation.run(settled(servers, service), 4.0);
            let seconds = settled(servers, service) * 3.0;
            let mut busy = simulation.run(seconds, 4.0);
            let goodput = busy.done as f64 / seconds / simulation.capacity();
            assert!(goodput >= 0.9, "{case}: goodput {goodput}");
            let (rest, busy) = (rest.p99(), busy.p99());
            let most = if servers <= 8 { 5 } else { 4 };
            assert!(busy <= most * rest, "{case}: p99 {busy} us, at rest {rest} us");
        }
    }
}

#[test]
fn the_first_seconds_of_an_overload_are_no_exception() {
    for (servers, service, spread) in ALL {
        let case = format!("{servers} servers, {service} ms");
        let mut simulation = Simulation::new(servers, service, spread, 7);
        let mut rest = simulation.run(settled(servers, service), 0.5);
        let mut onset = simulation.run(service as f64 / 1e3 * 100.0, 4.0);
        let (rest, onset) = (rest.p99(), onset.p99());
        assert!(onset <= 6 * rest, "{case}: p99 {onset} us, at rest {rest} us");
    }
}

#[test]
fn whoever_starts_under_overload_finds_the_knee() {
    for (servers, service, spread) in ALL {
        let mut simulation = Simulation::new(servers, service, spread, 1);
        simulation.run(settled(servers, service) * 5.0, 4.0);
        let seconds = settled(servers, service);
        let seen = simulation.run(seconds, 4.0);
        let mean = seen.limits.iter().sum::<usize>() as f64 / seen.limits.len() as f64;
        let goodput = seen.done as f64 / seconds / simulation.capacity();
        let case = format!("{servers} servers, {service} ms: limit {mean}, goodput {goodput}");
        assert!(mean <= servers as f64 * 2.5 + 6.0 && goodput >= 0.9, "{case}");
    }
}

#[test]
fn an_upstream_that_is_slower_for_good_is_not_strangled() {
    for (servers, service, spread) in ALL {
        let mut simulation = Simulation::new(servers, service, spread, 2);
        simulation.run(settled(servers, service), 2.0);
        simulation.service *= 3;
        simulation.max_wait *= 3;
        simulation.run(settled(servers, service * 3), 2.0);
        let seconds = settled(servers, service * 3);
        let seen = simulation.run(seconds, 2.0);
        let goodput = seen.done as f64 / seconds / simulation.capacity();
        // With slow requests among fast ones chance hides much for longer.
        let least = if spread == Spread::TwoKinds { 0.7 } else { 0.9 };
        assert!(goodput >= least, "{servers} servers, {service} ms: goodput {goodput}");
    }
}

#[test]
fn latency_that_grows_little_by_little_is_followed() {
    for load in [0.3, 2.0] {
        let mut simulation = Simulation::new(32, 20, Spread::Exponential, 3);
        simulation.run(8.0, load);
        for _ in 0..60 {
            simulation.service += simulation.service / 20;
            simulation.max_wait = simulation.service;
            simulation.run(2.0, load);
        }
        let seen = simulation.run(20.0, load);
        if load < 1.0 {
            let shed = seen.shed as f64 / (seen.done + seen.shed) as f64;
            assert!(shed <= 0.01, "at {load}: {shed} are shed");
        } else {
            let goodput = seen.done as f64 / 20.0 / simulation.capacity();
            assert!(goodput >= 0.9, "at {load}: {goodput}");
        }
    }
}

#[test]
fn after_a_restart_all_is_as_before_within_five_seconds() {
    for seed in 0..4 {
        let mut simulation = Simulation::new(64, 20, Spread::Exponential, seed);
        simulation.run(8.0, 0.8);
        simulation.frozen_until = simulation.now + 3_000_000;
        simulation.run(3.0, 0.8);
        // Cold caches: four times as slow for two seconds.
        simulation.service *= 4;
        simulation.run(2.0, 0.2);
        simulation.service /= 4;
        simulation.run(5.0, 0.8);
        let seen = simulation.run(5.0, 0.8);
        let share = seen.done as f64 / (seen.done + seen.shed) as f64;
        assert!(share >= 0.999, "seed {seed}: {share}");
    }
}

#[test]
fn the_limit_grows_fast_while_nothing_is_congested() {
    let mut simulation = Simulation::new(500, 50, Spread::Exponential, 5);
    let seen = simulation.run(3.0, 0.8);
    assert!(simulation.gradient.limit() >= 400, "{}", simulation.gradient.limit());
    let late = simulation.run(3.0, 0.8);
    assert_eq!(late.shed, 0, "{} were shed before", seen.shed);
}

#[test]
fn requests_that_fail_shrink_the_limit_and_leave_the_base() {
    let mut gradient = Gradient::new(4, 1_000);
    let mut now = Duration::ZERO;
    let mut record = |gradient: &mut Gradient, reply: Reply, windows: u32| {
        for _ in 0..windows * 20 {
            now += Duration::from_millis(10);
            gradient.record(Sample { now, reply, in_flight: gradient.limit(), full: true });
        }
    };
    let soon = Reply::After(Duration::from_millis(10));
    record(&mut gradient, soon, 10);
    let (limit, base) = (gradient.limit(), gradient.base());
    record(&mut gradient, Reply::Overloaded, 20);
    assert_eq!(gradient.limit(), 4);
    assert_eq!(gradient.base(), base);
    record(&mut gradient, Reply::Unclear, 20);
    assert_eq!((gradient.limit(), gradient.base()), (4, base));
    record(&mut gradient, soon, 200);
    assert!(gradient.limit() >= limit, "{} of {limit}", gradient.limit());
}

#[test]
fn errors_alone_do_not_leave_the_limit_in_a_dip() {
    let mut upstream = Simulation::new(8, 50, Spread::None, 1);
    let seen = std::iter::repeat_with(|| {
        upstream.run(0.05, 4.0);
        upstream.gradient.clone()
    });
    let in_dips: Vec<Gradient> = seen.take(400).filter(Gradient::is_in_dip).collect();
    let is_draining = |gradient: &&Gradient| matches!(gradient.dip, Dip::Draining { .. });
    let draining = in_dips.iter().filter(is_draining).count();
    assert!(draining > 0 && draining < in_dips.len(), "{draining} of {}", in_dips.len());
    for mut gradient in in_dips {
        let (mut now, before) = (gradient.window.opened, gradient.limit());
        for _ in 0..1_000 {
            now += Duration::from_millis(10);
            // More than a dip allows are under way.
            let in_flight = gradient.limit() + 1;
            gradient.record(Sample { now, reply: Reply::Unclear, in_flight, full: true });
        }
        assert!(!gradient.is_in_dip() && gradient.limit() > before, "{gradient:?}");
    }
}

#[test]
fn the_limit_stays_within_its_range() {
    for (min, max) in [(1, 1), (4, 4), (1, 5), (10, 2_000)] {
        let mut gradient = Gradient::new(min, max);
        let mut random = fastrand::Rng::with_seed(6);
        let mut now = Duration::ZERO;
        for _ in 0..200_000 {
            now += Duration::from_micros(random.u64(0..20_000));
            let reply = match random.u8(..) {
                ..10 => Reply::Unclear,
                10..30 => Reply::Overloaded,
                _ => Reply::After(Duration::from_micros(random.u64(1..3_000_000))),
            };
            let in_flight = random.usize(1..3_000);
            gradient.record(Sample { now, reply, in_flight, full: random.bool() });
            assert!((min..=max).contains(&gradient.limit()), "{min}..{max}: {gradient:?}");
        }
    }
}
