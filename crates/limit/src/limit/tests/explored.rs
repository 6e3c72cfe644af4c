//! Takes without leases, in every order of events: rounds over two tags that race with each other,
//! calls that fail before or after they ran, roll-backs, limits that are counted in each process
//! while their shard is away, and what they charge later.
//!
//! The rounds are those that ship. A client's state is the list of answers that its round was
//! given, and its round is made anew from that list for each step. Counters are fixed windows of a
//! few units. `MISTAKES` are changes of which each must break a property in one of the cases.

use std::sync::Arc;

use stateright::{Checker, Model, Property};

use super::*;
use crate::engine::{Key, Kind, Part, Program, Space};
use crate::plan::{Alignment, Debt, FixedWindow, Rate};

static PROGRAM: Program =
    Program { name: "fixed_window", text: "", kind: Kind::Numbers, state: 3, numbers: 4 };

const TAGS: usize = 2;
const WINDOWS: usize = 2;
/// Units in each process while a shard is away.
const SHARE: u8 = 1;

/// A change that must break a property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    /// Tags are called in the order in which a plan has them.
    InThePlansOrder,
    /// Nothing is looked at first.
    WithoutLooks,
    /// What was taken before a refusal stays taken.
    WithoutRollBack,
    /// What may have been taken is given back.
    GivesBackUnknown,
    /// What may have been counted on the store is charged there again.
    OwesUnknown,
}

const MISTAKES: [Mistake; 5] = [
    Mistake::InThePlansOrder,
    Mistake::WithoutLooks,
    Mistake::WithoutRollBack,
    Mistake::GivesBackUnknown,
    Mistake::OwesUnknown,
];

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fate {
    Answered,
    /// It did not run, and this is known.
    Refused,
    /// It did not run, and this is unknown.
    Lost,
    /// It ran, and its reply is lost.
    ReplyLost,
}

impl Fate {
    const FAULTS: [Self; 3] = [Self::Refused, Self::Lost, Self::ReplyLost];

    fn runs(self) -> bool {
        matches!(self, Self::Answered | Self::ReplyLost)
    }
}

/// What a round was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Told {
    Looked(usize, Answer),
    Took(Answer),
    TookAt(usize, Answer),
    GaveBack,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Answer {
    /// Whether it fits, and when that was decided.
    Store {
        fits: bool,
        window: u8,
    },
    Failed {
        ran: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Client {
    told: Vec<Told>,
    ended: Option<Ended>,
    /// Whether a call ran on the store whose reply was lost.
    leaked: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Ended {
    admitted: bool,
    /// In which window each tag was charged on the store.
    charged: [Option<u8>; TAGS],
    local: [bool; TAGS],
}

/// What is used: of the store's counters by window, and in each process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    window: u8,
    used: [[u8; TAGS]; WINDOWS],
    local: Vec<[u8; TAGS]>,
    owed: Vec<[u8; TAGS]>,
    clients: Vec<Client>,
    faults: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// The next call of a client, of the group at `at` if it is a look.
    Call { client: usize, at: usize, fate: Fate },
    /// The window ends.
    Tick,
    /// A process charges what it owes.
    HandBack(usize),
}

struct Case {
    quota: [u8; TAGS],
    /// The tags of each client's plan.
    plans: Vec<Vec<u128>>,
    calls: Vec<Calls>,
    on_store_error: OnStoreError,
    faults: u8,
    windows: u8,
    /// Whether some request may be refused after it has taken something.
    gives_back: bool,
    /// Whether limits are thought to have plenty.
    at_once: bool,
    mistake: Option<Mistake>,
}

/// The quota that a process counts with by itself.
struct Shares;

impl Numbers for Shares {
    fn at(&self, _: usize, _: u64) -> Option<[i64; NUMBERS_MAX]> {
        None
    }

    fn local(&self, _: usize) -> Option<[i64; NUMBERS_MAX]> {
        Some([i64::from(SHARE), 1, 0, 0, 0, 0, 0])
    }
}

fn limit() -> Limit {
    let rate = Rate { amount: 2, per_ms: 1_000 };
    let window = FixedWindow { rate, alignment: Alignment::Clock, debt: Debt::None };
    Limit::new("l", "k", window.into())
}

fn calls(tags: &[u128], quota: [u8; TAGS], sorted: bool) -> Calls {
    let mut calls = Calls::default();
    for (tag, index) in tags.iter().zip(0..) {
        let space = Arc::new(Space { text: String::new(), digest: 0 });
        let numbers = [i64::from(quota[*tag as usize]), 1, 0, 0, 0, 0, 0];
        let cell = Cell {
            program: &PROGRAM,
            key: Key { tag: *tag, key: 0, space },
            unit_us: 1,
            shadow: false,
            part: Part::Alone,
            cost: 1,
            numbers,
            member: 0,
        };
        calls.add(cell, index, Order::Usual);
    }
    if !sorted {
        calls.0.sort_by_key(|call| tags.iter().position(|tag| *tag == call.tag));
    }
    calls
}

impl Case {
    fn new(quota: [u8; TAGS], plans: &[&[u128]]) -> Self {
        Self {
            quota,
            plans: plans.iter().map(|tags| tags.to_vec()).collect(),
            calls: plans.iter().map(|tags| calls(tags, quota, true)).collect(),
            on_store_error: OnStoreError::Deny,
            faults: 0,
            windows: 1,
            gives_back: false,
            at_once: false,
            mistake: None,
        }
    }

    fn with(mut self, mistake: Mistake) -> Self {
        if mistake == Mistake::InThePlansOrder {
            let plans = self.plans.iter();
            self.calls = plans.map(|tags| calls(tags, self.quota, false)).collect();
        }
        self.mistake = Some(mistake);
        self
    }

    /// The round of a client, as far as it is.
    fn round(&self, client: usize, told: &[Told]) -> Round<'_> {
        let mut round = Round::new(&self.calls[client], |_| None, |_| self.on_store_error);
        if self.at_once {
            round.take_all_at_once();
        } else if self.mistake == Some(Mistake::WithoutLooks) {
            round.groups.iter_mut().for_each(|group| group.is_due = false);
            round.phase = Phase::Taking(0);
        }
        for told in told {
            round.next();
            match told {
                Told::Looked(at, answer) => round.looked(*at, reply(*answer), &Shares),
                Told::Took(answer) => round.took(reply(*answer), &Shares),
                Told::TookAt(at, answer) => round.took_at(*at, reply(*answer), &Shares),
                Told::GaveBack => {}
            }
        }
        round
    }

    /// Notes what a round came to, if it is over.
    fn end(&self, state: &mut State, client: usize) {
        let told = state.clients[client].told.clone();
        let mut round = self.round(client, &told);
        let skips = self.mistake == Some(Mistake::WithoutRollBack)
            && matches!(round.phase, Phase::RollingBack(_));
        if !matches!(round.next(), Step::Done) && !skips {
            return;
        }
        let limits = vec![limit(); self.plans[client].len()];
        let mut outcomes = vec![LimitOutcome::default(); limits.len()];
        let mut times = ChargeTimes::from_elem(None, limits.len());
        round.report(&limits, &mut outcomes, &mut times);
        let mut ended = Ended {
            admitted: round.result() == RoundResult::Admitted,
            charged: [None; TAGS],
            local: [false; TAGS],
        };
        for (index, tag) in self.plans[client].iter().enumerate() {
            let tag = *tag as usize;
            let is_local = round.local().contains(index);
            ended.local[tag] = is_local && times[index].is_some();
            ended.charged[tag] = times[index].filter(|_| !is_local).map(|at| at as u8);
            let owes = round.owed().contains(index) || self.mistake == Some(Mistake::OwesUnknown);
            if ended.admitted && ended.local[tag] && owes {
                state.owed[client][tag] += 1;
            }
        }
        state.clients[client].ended = Some(ended);
    }

    /// A take and what becomes of it: what the client is told.
    fn take(
        &self,
        state: &mut State,
        client: usize,
        (cell, place): (&Cell, GroupStore),
        fate: Fate,
    ) -> Answer {
        let ran = fate.runs().then(|| Self::decide(state, client, cell, place, true));
        if fate == Fate::ReplyLost && matches!(ran, Some(Answer::Store { fits: true, .. })) {
            state.clients[client].leaked += 1;
        }
        if self.mistake == Some(Mistake::GivesBackUnknown)
            && matches!(fate, Fate::Lost | Fate::ReplyLost)
        {
            let used = &mut state.used[usize::from(state.window)][cell.key.tag as usize];
            *used = used.saturating_sub(1);
        }
        let failed = Answer::Failed { ran: fate != Fate::Refused };
        ran.filter(|_| fate == Fate::Answered).unwrap_or(failed)
    }

    /// Decides a call, and writes it if it takes.
    fn decide(
        state: &mut State,
        client: usize,
        cell: &Cell,
        place: GroupStore,
        takes: bool,
    ) -> Answer {
        let (tag, window) = (cell.key.tag as usize, state.window);
        let used = match place {
            GroupStore::Store => &mut state.used[usize::from(window)][tag],
            GroupStore::Local => &mut state.local[client][tag],
        };
        let fits = i64::from(*used) < cell.numbers[0];
        *used += u8::from(fits && takes);
        Answer::Store { fits, window }
    }
}

fn reply(answer: Answer) -> Result<TakeReply, EngineError> {
    match answer {
        Answer::Failed { ran } => {
            let ran = if ran { Execution::Unknown } else { Execution::No };
            Err(EngineError { cause: Cause::Timeout, ran })
        }
        Answer::Store { fits, window } => {
            let cell = CellReply {
                fits,
                remaining: 0,
                retry_units: None,
                reset_units: 1,
                outside: false,
                uncharged: false,
            };
            let cells = smallvec::smallvec![cell];
            Ok(TakeReply { at_us: u64::from(window), admitted: fits, cells })
        }
    }
}

/// What is called next: of a look, each group that is not answered yet.
enum Next {
    Looks(Vec<(usize, Cell, GroupStore)>),
    /// The same of takes at once.
    Takes(Vec<(usize, Cell, GroupStore)>),
    Take(Cell, GroupStore),
    GiveBack(Cell, u8, GroupStore),
    Nothing,
}

fn next(round: &mut Round<'_>) -> Next {
    let takes = match round.next() {
        Step::Look => false,
        Step::TakeAll => true,
        Step::Take(cells, place) => return Next::Take(cells[0].clone(), place),
        Step::GiveBack(cells, at, place) => {
            return Next::GiveBack(cells[0].clone(), at as u8, place);
        }
        Step::Done => return Next::Nothing,
    };
    let due = round.due().into_iter();
    let due = due.map(|(at, cells, place)| (at, cells[0].clone(), place)).collect();
    if takes { Next::Takes(due) } else { Next::Looks(due) }
}

impl Model for Case {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let client = || Client { told: Vec::new(), ended: None, leaked: 0 };
        let clients = self.plans.len();
        vec![State {
            window: 0,
            used: [[0; TAGS]; WINDOWS],
            local: vec![[0; TAGS]; clients],
            owed: vec![[0; TAGS]; clients],
            clients: (0..clients).map(|_| client()).collect(),
            faults: self.faults,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (client, it) in state.clients.iter().enumerate() {
            if state.owed[client] != [0; TAGS] {
                actions.push(Action::HandBack(client));
            }
            if it.ended.is_some() {
                continue;
            }
            let mut round = self.round(client, &it.told);
            let groups: Vec<(usize, GroupStore)> = match next(&mut round) {
                Next::Looks(due) | Next::Takes(due) => {
                    due.into_iter().map(|(at, _, place)| (at, place)).collect()
                }
                Next::Take(_, place) | Next::GiveBack(_, _, place) => vec![(0, place)],
                Next::Nothing => Vec::new(),
            };
            for (at, place) in groups {
                let mut add = |fate| actions.push(Action::Call { client, at, fate });
                add(Fate::Answered);
                if state.faults > 0 && place == GroupStore::Store {
                    Fate::FAULTS.into_iter().for_each(add);
                }
            }
        }
        if state.window + 1 < self.windows {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Tick => state.window += 1,
            Action::HandBack(client) => {
                let owed = std::mem::take(&mut state.owed[client]);
                let used = &mut state.used[usize::from(state.window)];
                used.iter_mut().zip(owed).for_each(|(used, owed)| *used += owed);
            }
            Action::Call { client, at, fate } => {
                state.faults -= u8::from(fate != Fate::Answered);
                let mut round = self.round(client, &last.clients[client].told);
                let failed = Answer::Failed { ran: fate != Fate::Refused };
                let told = match next(&mut round) {
                    Next::Nothing => return None,
                    Next::Looks(looks) => {
                        let (at, cell, place) = looks.into_iter().find(|(nth, ..)| *nth == at)?;
                        let answer = Self::decide(&mut state, client, &cell, place, false);
                        Told::Looked(at, if fate == Fate::Answered { answer } else { failed })
                    }
                    Next::Take(cell, place) => {
                        Told::Took(self.take(&mut state, client, (&cell, place), fate))
                    }
                    Next::Takes(due) => {
                        let (at, cell, place) = due.into_iter().find(|(nth, ..)| *nth == at)?;
                        Told::TookAt(at, self.take(&mut state, client, (&cell, place), fate))
                    }
                    Next::GiveBack(cell, window, place) => {
                        let tag = cell.key.tag as usize;
                        match place {
                            GroupStore::Local => state.local[client][tag] -= 1,
                            // A window that has ended is not given back to.
                            GroupStore::Store if fate.runs() && window == state.window => {
                                let used = &mut state.used[usize::from(window)][tag];
                                *used = used.saturating_sub(1);
                            }
                            GroupStore::Store => state.clients[client].leaked += 1,
                        }
                        Told::GaveBack
                    }
                };
                state.clients[client].told.push(told);
                self.end(&mut state, client);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no more is admitted than there is", |case: &Self, state: &State| {
                (0..TAGS).all(|tag| {
                    let local = admitted(state, |it| it.local[tag]);
                    let shares = SHARE * case.plans.len() as u8;
                    local <= shares
                        && (0..case.windows).all(|window| {
                            admitted(state, |it| it.charged[tag] == Some(window)) <= case.quota[tag]
                        })
                })
            }),
            Property::always("all that is admitted is charged", |case: &Self, state: &State| {
                (0..TAGS).all(|tag| {
                    (0..case.windows).all(|window| {
                        let charged = admitted(state, |it| it.charged[tag] == Some(window));
                        state.used[usize::from(window)][tag] >= charged
                    })
                })
            }),
            Property::always("nothing is charged twice", |_, state: &State| {
                let sum = |counts: &[[u8; TAGS]]| -> u8 { counts.iter().flatten().sum() };
                let charged = sum(&state.used) + sum(&state.owed);
                let taken = state.clients.iter().map(|client| match &client.ended {
                    Some(ended) if ended.admitted => {
                        let store = ended.charged.iter().flatten().count();
                        let local = ended.local.iter().filter(|is| **is).count();
                        (store + local) as u8
                    }
                    Some(_) => client.leaked,
                    None => 2,
                });
                charged <= taken.sum::<u8>()
            }),
            Property::always("a refused request takes nothing", |case: &Self, state: &State| {
                let over = state.clients.iter().all(|client| client.ended.is_some());
                !over || case.faults > 0 || state.owed.iter().flatten().any(|owed| *owed > 0) || {
                    (0..TAGS).all(|tag| {
                        (0..case.windows).all(|window| {
                            let charged = admitted(state, |it| it.charged[tag] == Some(window));
                            // What was given back in a later window stays taken.
                            case.windows > 1 || state.used[usize::from(window)][tag] == charged
                        })
                    })
                }
            }),
            Property::always(
                "nothing is taken for what a full counter refuses",
                |case: &Self, state: &State| {
                    let full =
                        |tags: &Vec<u128>| tags.iter().any(|tag| case.quota[*tag as usize] == 0);
                    !case.plans.iter().all(full)
                        || case.faults > 0
                        || case.at_once
                        || state.used[0] == [0; TAGS]
                },
            ),
            Property::always("requests do not refuse each other", |case: &Self, state: &State| {
                let over = state.clients.iter().all(|client| client.ended.is_some());
                let is_judged = over && case.faults == 0 && case.windows == 1 && !case.at_once;
                !is_judged || case.quota.contains(&0) || admitted(state, |_| true) > 0
            }),
            Property::sometimes("something is given back", |case: &Self, state: &State| {
                let gave = |client: &Client| client.told.contains(&Told::GaveBack);
                !case.gives_back || state.clients.iter().any(gave)
            }),
            Property::sometimes("all is used", |case: &Self, state: &State| {
                case.quota.contains(&0) || state.used[0] == case.quota
            }),
            Property::sometimes("a process counts by itself", |case: &Self, state: &State| {
                case.on_store_error != OnStoreError::Local
                    || admitted(state, |it| it.local != [false; TAGS]) > 0
            }),
        ]
    }
}

fn admitted(state: &State, counts: impl Fn(&Ended) -> bool) -> u8 {
    let ended = state.clients.iter().filter_map(|client| client.ended.as_ref());
    ended.filter(|ended| ended.admitted && counts(ended)).count() as u8
}

/// All cases, without a mistake.
fn cases() -> Vec<Case> {
    let both: &[u128] = &[0, 1];
    let other: &[u128] = &[1, 0];
    let racing = |quota, plans: &[&[u128]]| Case { gives_back: true, ..Case::new(quota, plans) };
    let local = OnStoreError::Local;
    let at_once = |case: Case| Case { at_once: true, gives_back: true, ..case };
    vec![
        Case::new([1, 1], &[both, other, both]),
        Case::new([2, 1], &[both, &[0], &[0]]),
        Case::new([2, 0], &[both, other]),
        racing([2, 1], &[both, &[1], other]),
        Case { windows: 2, ..racing([1, 1], &[both, other, &[1]]) },
        Case { faults: 2, ..racing([1, 1], &[both, other, &[1]]) },
        Case { faults: 2, on_store_error: local, ..racing([1, 1], &[both, other, &[1]]) },
        at_once(Case::new([2, 1], &[both, other, &[0]])),
        at_once(Case { windows: 2, ..Case::new([1, 1], &[both, other, &[1]]) }),
        at_once(Case { faults: 2, ..Case::new([1, 1], &[both, other, &[1]]) }),
        at_once(Case { faults: 2, on_store_error: local, ..Case::new([1, 1], &[both, other]) }),
    ]
}

#[test]
fn every_order_of_events_keeps_the_promises() {
    for (number, case) in cases().into_iter().enumerate() {
        let checked = case.checker().spawn_bfs().join();
        println!("case {number}: {} states", checked.unique_state_count());
        checked.assert_properties();
    }
}

#[test]
fn each_mistake_breaks_a_promise() {
    for mistake in MISTAKES {
        let breaks = cases().into_iter().any(|case| {
            let checked = case.with(mistake).checker().spawn_bfs().join();
            let found = checked.discoveries();
            let always = |name: &&'static str| {
                checked.model().properties().iter().any(|property| {
                    property.name == *name
                        && property.expectation == stateright::Expectation::Always
                })
            };
            let broken: Vec<&str> = found.keys().copied().filter(|name| always(name)).collect();
            println!("{mistake:?}: {broken:?}");
            !broken.is_empty()
        });
        assert!(breaks, "{mistake:?}");
    }
}
