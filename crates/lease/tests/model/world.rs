//! The model: processes with holders, one store, messages between them, clocks and faults. What
//! happens next is any of the actions that are possible; the checker tries all orders.
//!
//! The holders are the crate's own. A mutant changes how they are used: see `mutants.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use stateright::{Model, Property};
use weir_lease::{Action as Answer, Call, GiveBack, Holder, Reply, Spent, Terms, Want};

use crate::mutants::Mutant;
use crate::promise::{Meter, Promise};
use crate::store::{Name, Running, Store};

/// Microseconds of an exact clock in which one that is 200 ppm slow loses one.
const DRIFT_EVERY_US: u64 = 5_000;
/// The store's time at the start, in microseconds since 1970: the start of every window.
const START_US: i64 = 600_000_000_000_000;
/// The name of units that a request took alone.
const ALONE: Name = None;

/// How often each of these may happen in one history. A lost message is one that never arrives, and
/// a process that dies for good is one that does nothing more: both are part of every case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Faults {
    /// A process gives up on a call that is still in flight.
    pub timeouts: u8,
    /// A lease is left early.
    pub left: u8,
    /// A spent unit is rolled back.
    pub rolled_back: u8,
    /// A process is killed and started again.
    pub killed: u8,
    /// The store forgets its last write.
    pub failovers: u8,
    /// The store's clock steps.
    pub steps: u8,
}

/// One limit with what may happen to it.
#[derive(Clone)]
pub struct Case {
    pub running: Running,
    pub terms: Terms,
    pub promise: Promise,
    /// One process for each, and whether its clock is slow.
    pub slow: Vec<bool>,
    /// The units that a lease asks for.
    pub units: u64,
    /// The length of a step of time, in microseconds of an exact clock.
    pub tick_us: u64,
    /// How many steps time makes.
    pub ticks: u8,
    /// The most messages in flight. More are possible in reality, and would only charge the store
    /// for units that nobody spends.
    pub messages: usize,
    /// The most calls for a lease of each process.
    pub calls: u32,
    pub faults: Faults,
    /// Whether a fault excuses what it may admit beyond the promise.
    pub excuses: bool,
    pub mutant: Option<Mutant>,
    /// What happened in any history.
    pub seen: Arc<Seen>,
}

/// Events that happened, in any history: against vacuity.
#[derive(Debug, Default)]
pub struct Seen(AtomicU32);

/// What may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Granted,
    /// A grant of fewer units than were asked for.
    GrantedLess,
    Refused,
    Unknown,
    /// A grant comes after its deadline.
    GrantedLate,
    /// A grant comes for a call that was given up.
    GrantedUnexpected,
    AdmittedAlone,
    RefusedAlone,
    /// A unit is spent in the last tick before its deadline.
    SpentLast,
    /// Unused units are free again.
    GivenBack,
    /// A unit is rolled back into its lease.
    RolledBack,
    /// A unit is rolled back after its lease.
    RolledBackLate,
    /// A place is free for the next request of its holder.
    Finished,
    /// A process dies with units.
    Killed,
    /// A write is forgotten.
    Forgotten,
    /// The store's clock steps.
    Stepped,
}

impl Seen {
    pub fn has(&self, event: Event) -> bool {
        self.0.load(Ordering::Relaxed) & (1 << event as u32) != 0
    }

    fn add(&self, event: Event) {
        if !self.has(event) {
            self.0.fetch_or(1 << event as u32, Ordering::Relaxed);
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    tick: u8,
    /// How far the store's clock has stepped, in ticks.
    stepped: i8,
    store: Store,
    /// The store before its last write.
    before: Store,
    processes: Vec<Process>,
    /// In order, as a set.
    messages: Vec<Message>,
    meter: Meter,
    left: Faults,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Process {
    holder: Holder,
    /// How often it was started, and the calls of this start.
    starts: u8,
    calls: u32,
    /// A second one, of the mutant without a guard.
    unguarded: Option<Holder>,
    /// What a request spent that will be rolled back.
    pending: Option<Spent>,
    /// Places in use.
    in_use: Vec<Spent>,
}

/// A process, and which of its starts.
type From = (u8, u8);

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Message {
    Ask { from: From, call: Call, give_back: Option<GiveBack> },
    Granted { from: From, call: Call, units: u64, life_us: u64, taken_at: u64 },
    Refused { from: From, call: Call },
    GiveBack { from: From, give_back: GiveBack },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Tick,
    /// A request comes; `alone`: its process asks for no lease; `stays`: it is not rolled back.
    Request {
        process: usize,
        alone: bool,
        stays: bool,
    },
    /// A message arrives.
    Arrive(usize),
    TimeOut(usize),
    Leave(usize),
    RollBack(usize),
    /// A request that uses a place ends.
    Finish(usize),
    Kill(usize),
    Failover,
    Step(i8),
}

impl Case {
    /// The true time, in microseconds.
    fn now(&self, world: &World) -> i64 {
        i64::from(world.tick) * self.tick_us as i64
    }

    fn store_now(&self, world: &World) -> i64 {
        START_US + self.now(world) + i64::from(world.stepped) * self.tick_us as i64
    }

    /// The clock of a process.
    fn clock(&self, world: &World, process: usize) -> u64 {
        let lost_us = if self.slow[process] { self.tick_us / DRIFT_EVERY_US } else { 0 };
        1 + u64::from(world.tick) * (self.tick_us - lost_us)
    }

    /// An instant of the window that the store is in. A window that starts with its first unit is
    /// named by that instant.
    fn window_now(&self, world: &World) -> i64 {
        let now = self.store_now(world);
        match (&world.store, self.promise) {
            (
                Store::Numbers([start, units, _]),
                Promise::Windows { period, aligned: false, .. },
            ) if *units > 0 && now - start < period => *start,
            _ => now,
        }
    }

    /// Whether nothing has happened, and it does not matter when it does.
    fn is_idle(&self, world: &World) -> bool {
        self.running.program.is_even()
            && world.store == self.running.new_store()
            && world.messages.is_empty()
    }

    fn in_places(&self) -> bool {
        matches!(self.promise, Promise::InUse { .. })
    }

    /// The places in use whose holders' deadlines have not passed.
    fn in_use(&self, world: &World) -> i64 {
        let of = |(number, process): (usize, &Process)| {
            let now_us = self.clock(world, number);
            process.in_use.iter().filter(|spent| now_us < spent.deadline_us).count() as i64
        };
        world.processes.iter().enumerate().map(of).sum()
    }

    /// What may be admitted beyond the promise, in units: a store that forgets a lease may grant it
    /// again, and one whose clock steps may start afresh.
    fn excused(&self, world: &World) -> i64 {
        if !self.excuses {
            return 0;
        }
        let failovers = self.faults.failovers - world.left.failovers;
        let steps = self.faults.steps - world.left.steps;
        i64::from(failovers) * self.units as i64 + i64::from(steps) * self.promise.allowance()
    }

    fn over(&self, world: &World) -> i64 {
        self.promise.over(&world.meter, self.in_use(world)) - self.excused(world)
    }

    fn admit(&self, world: &mut World, units: i64) {
        let (now, window_now) = (self.now(world), self.window_now(world));
        self.promise.admit(&mut world.meter, now, window_now, units);
    }

    fn request(&self, world: &mut World, process: usize, alone: bool, stays: bool) -> Option<()> {
        let now_us = self.clock(world, process);
        let units = if alone { 1 } else { self.units };
        let answer = world.processes[process].want(now_us, units, self);
        match answer {
            Answer::Spend(spent) => {
                if spent.deadline_us - now_us <= self.tick_us {
                    self.seen.add(Event::SpentLast);
                }
                if self.in_places() {
                    let process = &mut world.processes[process];
                    process.in_use.push(spent);
                    process.in_use.sort_unstable();
                } else if stays {
                    self.admit(world, 1);
                } else {
                    world.left.rolled_back = world.left.rolled_back.checked_sub(1)?;
                    world.processes[process].pending = Some(spent);
                }
            }
            // The request comes again, and the state is the same.
            Answer::Wait | Answer::Pause { .. } => return None,
            Answer::Ask { call, give_back } => {
                let from = world.from(process);
                world.processes[process].calls = call.number();
                world.send(Message::Ask { from, call, give_back });
            }
            Answer::AskAlone => self.ask_alone(world),
        }
        Some(())
    }

    /// A request alone is one step: the store admits it at the instant of the take.
    fn ask_alone(&self, world: &mut World) {
        let now = self.store_now(world);
        let before = world.store.clone();
        let taken = self.running.take(&mut world.store, now, 1, ALONE);
        if taken.fits {
            if self.in_places() {
                // It ends at once: its place is free again.
                self.running.give_back(&mut world.store, now, 1, now, ALONE);
                return;
            }
            self.remember(world, before);
            self.admit(world, 1);
            self.seen.add(Event::AdmittedAlone);
        } else {
            self.seen.add(Event::RefusedAlone);
        }
    }

    fn arrive(&self, world: &mut World, message: Message) {
        let now = self.store_now(world);
        match message {
            Message::Ask { from, call, give_back } => {
                if let Some(give_back) = give_back {
                    self.arrive(world, Message::GiveBack { from, give_back });
                }
                let before = world.store.clone();
                let name = Some((from, call.number()));
                let units = (call.least, call.units);
                if let Some((units, taken)) = self.running.lease(&mut world.store, now, units, name)
                {
                    self.remember(world, before);
                    if units < call.units {
                        self.seen.add(Event::GrantedLess);
                    }
                    let window_left = self.terms.ends_with_window.then_some(taken.reset as u64);
                    let life_us = self.life_of_grant_us(window_left);
                    let taken_at = now as u64;
                    world.send(Message::Granted { from, call, units, life_us, taken_at });
                } else {
                    world.send(Message::Refused { from, call });
                }
            }
            Message::Granted { from, call, units, life_us, taken_at } => {
                self.report(world, from, call, Reply::Granted { units, life_us, taken_at });
            }
            Message::Refused { from, call } => self.report(world, from, call, Reply::Refused),
            Message::GiveBack { from, give_back } => {
                let GiveBack { call, units, taken_at } = give_back;
                let before = world.store.clone();
                let taken_at = match self.mutant {
                    Some(Mutant::GiveBackUndated) => now,
                    _ => taken_at as i64,
                };
                let name = Some((from, call.number()));
                self.running.give_back(&mut world.store, now, units as i64, taken_at, name);
                if world.store != before {
                    self.seen.add(Event::GivenBack);
                    self.remember(world, before);
                }
            }
        }
    }

    /// Remembers the store before its last write, where that may be forgotten.
    fn remember(&self, world: &mut World, before: Store) {
        if world.left.failovers > 0 {
            world.before = before;
        }
    }

    fn life_of_grant_us(&self, window_left: Option<u64>) -> u64 {
        match self.mutant {
            Some(Mutant::OutlivesWindow) => self.terms.life_us,
            _ => self.terms.life_of_grant_us(window_left),
        }
    }

    fn report(&self, world: &mut World, from: From, call: Call, reply: Reply) {
        let number = usize::from(from.0);
        if from != world.from(number) {
            return;
        }
        let now_us = self.clock(world, number);
        let process = &mut world.processes[number];
        let expected = process.is_asking(call);
        let give_back = process.reply(now_us, call, reply, self);
        let held = process.held(now_us) > 0;
        match reply {
            Reply::Granted { .. } if expected && !held => self.seen.add(Event::GrantedLate),
            Reply::Granted { .. } if expected => self.seen.add(Event::Granted),
            Reply::Granted { .. } => self.seen.add(Event::GrantedUnexpected),
            Reply::Refused => self.seen.add(Event::Refused),
            Reply::Unknown => self.seen.add(Event::Unknown),
        }
        if let Some(give_back) = give_back {
            world.send(Message::GiveBack { from, give_back });
        }
    }

    fn leave(&self, world: &mut World, process: usize) -> Option<()> {
        let give_back = world.processes[process].holder.leave()?;
        let from = world.from(process);
        world.send(Message::GiveBack { from, give_back });
        Some(())
    }

    fn step(&self, world: &mut World, action: Action) -> Option<()> {
        match action {
            Action::Tick => {
                world.tick += 1;
                let (now, window_now) = (self.now(world), self.window_now(world));
                self.promise.pass(&mut world.meter, now, window_now);
            }
            Action::Request { process, alone, stays } => {
                self.request(world, process, alone, stays)?;
            }
            Action::Arrive(index) => {
                let message = world.messages.remove(index);
                self.arrive(world, message);
            }
            Action::TimeOut(process) => {
                world.left.timeouts -= 1;
                let call = world.processes[process].holder.call()?;
                let from = world.from(process);
                self.report(world, from, call, Reply::Unknown);
            }
            Action::Leave(process) => {
                world.left.left -= 1;
                self.leave(world, process)?;
            }
            Action::RollBack(process) => {
                let now_us = self.clock(world, process);
                let process = &mut world.processes[process];
                let held = process.held(now_us);
                process.holder.undo(now_us, process.pending.take()?);
                let returned = process.held(now_us) > held;
                self.seen.add(if returned { Event::RolledBack } else { Event::RolledBackLate });
            }
            Action::Finish(process) => {
                let now_us = self.clock(world, process);
                let process = &mut world.processes[process];
                let spent = process.in_use.remove(0);
                process.holder.undo(now_us, spent);
                self.seen.add(Event::Finished);
            }
            Action::Kill(process) => {
                world.left.killed -= 1;
                let now_us = self.clock(world, process);
                if world.processes[process].held(now_us) > 0 {
                    self.seen.add(Event::Killed);
                }
                let starts = world.processes[process].starts + 1;
                world.processes[process] = Process { starts, ..self.process() };
            }
            Action::Failover => {
                world.left.failovers -= 1;
                world.store = world.before.clone();
                self.seen.add(Event::Forgotten);
            }
            Action::Step(ticks) => {
                world.left.steps -= 1;
                world.stepped += ticks;
                self.seen.add(Event::Stepped);
            }
        }
        Some(())
    }

    fn process(&self) -> Process {
        Process {
            holder: Holder::new(self.terms.life_us),
            starts: 1,
            calls: 0,
            unguarded: None,
            pending: None,
            in_use: Vec::new(),
        }
    }
}

impl World {
    fn from(&self, process: usize) -> From {
        (process as u8, self.processes[process].starts)
    }

    fn send(&mut self, message: Message) {
        self.messages.push(message);
        self.messages.sort_unstable();
    }
}

impl Process {
    fn is_asking(&self, call: Call) -> bool {
        self.holder.call() == Some(call)
            || self.unguarded.as_ref().is_some_and(|holder| holder.call() == Some(call))
    }

    /// The units at hand.
    fn held(&self, now_us: u64) -> u64 {
        let unguarded = self.unguarded.as_ref().map_or(0, |holder| holder.held(now_us));
        self.holder.held(now_us) + unguarded
    }

    fn want(&mut self, now_us: u64, units: u64, case: &Case) -> Answer {
        let want = Want { cost: 1, waiting: 0, units };
        let answer = self.holder.want(now_us, want);
        match (answer, case.mutant) {
            (Answer::Wait, Some(Mutant::NoGuard)) => {
                let new = || Holder::new(case.terms.life_us);
                self.unguarded.get_or_insert_with(new).want(now_us, want)
            }
            _ => answer,
        }
    }

    fn reply(&mut self, now_us: u64, call: Call, reply: Reply, case: &Case) -> Option<GiveBack> {
        if let Some(other) = self.unguarded.as_mut().filter(|other| other.call() == Some(call)) {
            return other.reply(now_us, call, reply);
        }
        if case.mutant == Some(Mutant::FromReply) && self.holder.call() == Some(call) {
            // As if it had been sent now.
            let mut holder = Holder::new(case.terms.life_us);
            let want = Want { cost: 1, waiting: 0, units: call.units };
            let Answer::Ask { call, .. } = holder.want(now_us, want) else { return None };
            let give_back = holder.reply(now_us, call, reply);
            self.holder = holder;
            return give_back;
        }
        self.holder.reply(now_us, call, reply)
    }
}

impl Model for Case {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let store = self.running.new_store();
        vec![World {
            tick: 0,
            stepped: 0,
            before: store.clone(),
            store,
            processes: self.slow.iter().map(|_| self.process()).collect(),
            messages: Vec::new(),
            meter: self.promise.new_meter(),
            left: self.faults,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.tick < self.ticks && !self.is_idle(world) {
            actions.push(Action::Tick);
        }
        for index in 0..world.messages.len() {
            actions.push(Action::Arrive(index));
        }
        for (number, process) in world.processes.iter().enumerate() {
            actions.push(Action::Request { process: number, alone: false, stays: true });
            // With units at hand it would be the same.
            if process.held(self.clock(world, number)) == 0 {
                actions.push(Action::Request { process: number, alone: true, stays: true });
            }
            if world.left.rolled_back > 0 && process.pending.is_none() {
                actions.push(Action::Request { process: number, alone: false, stays: false });
            }
            if process.pending.is_some() {
                actions.push(Action::RollBack(number));
            }
            if !process.in_use.is_empty() {
                actions.push(Action::Finish(number));
            }
            if world.left.timeouts > 0 && process.holder.call().is_some() {
                actions.push(Action::TimeOut(number));
            }
            if world.left.left > 0 {
                actions.push(Action::Leave(number));
            }
            if world.left.killed > 0 {
                actions.push(Action::Kill(number));
            }
        }
        if world.left.failovers > 0 && world.before != world.store {
            actions.push(Action::Failover);
        }
        if world.left.steps > 0 {
            actions.extend([Action::Step(-3), Action::Step(3)]);
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        self.step(&mut next, action)?;
        (next != *world).then_some(next)
    }

    fn within_boundary(&self, world: &World) -> bool {
        world.messages.len() <= self.messages
            && world.processes.iter().all(|process| process.calls <= self.calls)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(crate::PROMISE, |case: &Self, world| case.over(world) <= 0),
            Property::always(crate::HOLDINGS, |case: &Self, world| {
                let within = |(number, process): (usize, &Process)| {
                    process.held(case.clock(world, number)) <= case.units
                };
                world.processes.iter().enumerate().all(within)
            }),
            Property::sometimes(crate::REACHED, |case: &Self, world| case.over(world) == 0),
            Property::sometimes(crate::TOGETHER, |case: &Self, world| {
                let holds = |(number, process): (usize, &Process)| {
                    process.held(case.clock(world, number)) > 0
                };
                world.processes.iter().enumerate().filter(|it| holds(*it)).count() > 1
            }),
        ]
    }
}
