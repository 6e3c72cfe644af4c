//! Holders that spend as late as they may and are heard of as late as may be, over streams that
//! break off, and a log that counts what they really spent: never more in a period than the limit
//! has.

use std::collections::{HashMap, VecDeque};

use fastrand::Rng;
use weir_lease::{
    Bound, DELIVERY_US, Numbers, Remote, Step, TIME_TO_LIVE_UNIT_US, Terms, TermsError,
    seconds_to_live, units_to_assign,
};

const PERIOD_US: u64 = 10_000_000;
const LONG_US: u64 = 60_000_000;
const TICK_US: u64 = 50_000;
const HOLDERS: u64 = 3;

/// The store: a log that counts each unit for the period and one life.
struct Log {
    /// When each unit was taken, and for what.
    units: VecDeque<(u64, u64)>,
    counted_us: u64,
    quota: u64,
    takes: u64,
}

impl Log {
    fn left(&mut self, now_us: u64) -> u64 {
        self.units.retain(|(taken_us, _)| taken_us + self.counted_us > now_us);
        self.quota - self.units.len() as u64
    }

    /// Takes units under a new name.
    fn take(&mut self, now_us: u64, units: u64) -> u64 {
        assert!(units <= self.left(now_us));
        self.takes += 1;
        self.units.extend((0..units).map(|_| (now_us, self.takes)));
        self.takes
    }

    fn give_back(&mut self, units: u64, take: u64) {
        for _ in 0..units {
            if let Some(at) = self.units.iter().position(|(_, other)| *other == take) {
                self.units.remove(at);
            }
        }
    }
}

/// A mistake in the rules. Each lets too many through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// The log counts units for the period alone.
    Period,
    /// The time to live is the whole life.
    Life,
    /// Messages take longer than is allowed for.
    Late,
    /// A unit stands for requests for ever.
    Deadline,
}

/// What all holders have in common.
struct World {
    random: Rng,
    mistake: Mistake,
    life_us: u64,
    log: Log,
    /// The network is slow for a while, and then it is not.
    is_slow: bool,
    now_us: u64,
    /// When each request was let through.
    passed: Vec<u64>,
}

/// A proxy of somebody else's, the messages on their way to it and from it, and what is known of it
/// at the other end.
struct Proxy {
    remote: Remote,
    /// What the leases of this stream are called in the log.
    takes: HashMap<u64, u64>,
    /// When it arrives, the units, and the seconds that they live.
    assignments: VecDeque<(u64, u64, u64)>,
    /// When it arrives, and the requests that were let through and turned away.
    reports: VecDeque<(u64, u64, u64)>,
    cut_until_us: u64,
    /// Until then the other end reads nothing.
    busy_until_us: u64,
    units: u64,
    ends_us: u64,
    allowed: u64,
    denied: u64,
    busy: u32,
    reports_every_us: u64,
    reports_us: u64,
}

impl World {
    fn new(seed: u64, mistake: Mistake) -> Result<Self, TermsError> {
        let mut random = Rng::with_seed(seed);
        let life_us = random.u64(2..=6) * 1_000_000;
        let terms = Terms::new(Numbers::Sliding { period: PERIOD_US }, 1, life_us, Bound::Strict)?;
        let counted_us = match terms.numbers {
            Numbers::Sliding { period } if mistake != Mistake::Period => period,
            _ => PERIOD_US,
        };
        let quota = random.u64(1..80);
        let log = Log { units: VecDeque::new(), counted_us, quota, takes: 0 };
        let passed = Vec::new();
        Ok(Self { random, mistake, life_us, log, is_slow: false, now_us: 0, passed })
    }

    /// For how long a message is under way. One that is due between two ticks comes with the
    /// second.
    fn delay_us(&mut self) -> u64 {
        let late_us = match self.mistake {
            Mistake::Late => 6 * DELIVERY_US,
            _ => DELIVERY_US - TICK_US,
        };
        if self.is_slow { late_us } else { self.random.u64(0..late_us) / 8 }
    }

    /// The most requests in a period.
    fn most(&self) -> u64 {
        let within = |from: &u64| {
            let span = *from..from + PERIOD_US;
            self.passed.iter().filter(|at| span.contains(at)).count() as u64
        };
        self.passed.iter().map(within).max().unwrap_or(0)
    }
}

impl Proxy {
    fn new(world: &mut World) -> Self {
        Self {
            remote: Remote::new(0, world.life_us),
            takes: HashMap::new(),
            assignments: VecDeque::new(),
            reports: VecDeque::new(),
            cut_until_us: 0,
            busy_until_us: 0,
            units: 0,
            ends_us: 0,
            allowed: 0,
            denied: 0,
            busy: 0,
            reports_every_us: world.random.u64(1..60) * TICK_US,
            reports_us: 0,
        }
    }

    fn tick(&mut self, world: &mut World) {
        let now_us = world.now_us;
        if now_us >= self.cut_until_us && world.random.u32(0..300) == 0 {
            // The stream breaks off with all that is on its way, and comes back after a while.
            self.cut_until_us = now_us + world.random.u64(0..100) * TICK_US;
            self.assignments.clear();
            self.reports.clear();
            self.takes.clear();
            self.remote = Remote::new(self.cut_until_us, world.life_us);
        }
        if world.random.u32(0..200) == 0 {
            self.busy_until_us = now_us + world.random.u64(0..60) * TICK_US;
        }
        self.let_through(world);
        if now_us >= self.cut_until_us {
            self.report(world);
            self.assign(world);
        }
    }

    fn let_through(&mut self, world: &mut World) {
        let now_us = world.now_us;
        let mut is_rush = false;
        while let Some(&(at_us, units, seconds)) = self.assignments.front()
            && at_us <= now_us
        {
            self.assignments.pop_front();
            (self.units, self.ends_us) = (units, now_us + seconds * TIME_TO_LIVE_UNIT_US);
            is_rush = world.random.bool();
        }
        // Requests come in bursts, and often when a lease has come or is about to end.
        if world.random.u32(0..40) == 0 {
            self.busy = world.random.u32(0..8);
        }
        is_rush |= self.ends_us.saturating_sub(now_us) <= 2 * TICK_US;
        for _ in 0..self.busy + if is_rush { 20 } else { 0 } {
            if now_us < self.ends_us && self.units > 0 {
                self.units -= 1;
                self.allowed += 1;
                world.passed.push(now_us);
            } else {
                self.denied += 1;
            }
        }
    }

    fn report(&mut self, world: &mut World) {
        let now_us = world.now_us;
        if now_us >= self.reports_us {
            self.reports_us = now_us + self.reports_every_us;
            // They arrive in their order.
            let last_us = self.reports.back().map_or(0, |(at_us, ..)| *at_us);
            let at_us = last_us.max(now_us + world.delay_us());
            self.reports.push_back((at_us, self.allowed, self.denied));
            (self.allowed, self.denied) = (0, 0);
        }
        while let Some(&(at_us, allowed, denied)) = self.reports.front()
            && at_us <= now_us
            && now_us >= self.busy_until_us
        {
            self.reports.pop_front();
            // What is read late is known to have arrived a while ago.
            let arrived_us = at_us.min(now_us);
            for unspent in self.remote.report((now_us, arrived_us), allowed, denied) {
                let take = self.takes.get(&unspent.lease).copied().unwrap_or_default();
                world.log.give_back(unspent.units, take);
            }
        }
    }

    fn assign(&mut self, world: &mut World) {
        let now_us = world.now_us;
        let (owed, wanted) = match self.remote.next(now_us) {
            Step::Wait { .. } => return,
            Step::Assign { owed, wanted } => (owed, wanted),
            // It forgets what it has, and what it has not reported.
            Step::Abandon => {
                self.remote = Remote::new(now_us, world.life_us);
                self.takes.clear();
                self.assignments.clear();
                (self.units, self.allowed, self.denied) = (0, 0, 0);
                return;
            }
        };
        // What it let through with a lease of the stream before.
        let paid = owed.min(world.log.left(now_us));
        world.log.take(now_us, paid);
        self.remote.paid(owed);
        let units = units_to_assign(wanted, world.log.left(now_us), HOLDERS);
        // The call takes a while.
        let done_us = now_us + world.random.u64(0..TICK_US);
        let seconds = match world.mistake {
            Mistake::Life => world.life_us / TIME_TO_LIVE_UNIT_US,
            _ => seconds_to_live(now_us, world.life_us, done_us),
        };
        let last_us = self.assignments.back().map_or(0, |(at_us, ..)| *at_us);
        let at_us = last_us.max(done_us + world.delay_us());
        if let Some((left, ends_us)) = self.remote.live()
            && !self.remote.is_quiet()
            && units <= left
            && done_us + TIME_TO_LIVE_UNIT_US < ends_us
        {
            self.remote.kept(done_us);
            return;
        }
        if units == 0 || seconds == 0 {
            self.remote.refused(done_us, PERIOD_US / 100);
            self.assignments.push_back((at_us, 0, 1));
            return;
        }
        let deadline_us = match world.mistake {
            Mistake::Deadline => u64::MAX,
            _ => now_us + world.life_us,
        };
        let lease = self.remote.assigned(done_us, units, seconds, deadline_us);
        self.takes.insert(lease, world.log.take(now_us, units));
        self.assignments.push_back((at_us, units, seconds));
    }
}

/// What three holders do in a minute.
fn play(seed: u64, mistake: Mistake) -> Result<World, TermsError> {
    let mut world = World::new(seed, mistake)?;
    let mut proxies: Vec<Proxy> = (0..HOLDERS).map(|_| Proxy::new(&mut world)).collect();
    while world.now_us < LONG_US {
        world.is_slow ^= world.random.u32(0..100) == 0;
        proxies.iter_mut().for_each(|proxy| proxy.tick(&mut world));
        world.now_us += TICK_US;
    }
    Ok(world)
}

#[test]
fn no_period_has_more_than_the_limit_however_late_all_is() {
    let mut used = 0;
    for seed in 0..2_000 {
        let world = play(seed, Mistake::None).unwrap();
        let (most, quota) = (world.most(), world.log.quota);
        assert!(most <= quota, "{most} of {quota}, seed {seed}");
        used += world.passed.len() as u64 * 1_000 / (LONG_US / PERIOD_US * quota);
    }
    // Streams break off every fifteen seconds, and a life is up to six tenths of the period.
    assert!(used / 2_000 > 400, "only {} of 1000 units were used", used / 2_000);
}

#[test]
fn each_mistake_lets_too_many_through() {
    for mistake in [Mistake::Period, Mistake::Life, Mistake::Late, Mistake::Deadline] {
        let is_found = |seed| {
            let world = play(seed, mistake).unwrap();
            world.most() > world.log.quota
        };
        assert!((0..20_000).any(is_found), "{mistake:?}");
    }
}
