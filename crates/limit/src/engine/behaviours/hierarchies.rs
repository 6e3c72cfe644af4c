//! Parents and their children: what is assured, what is borrowed, and the bound of all.

use super::super::testing::{
    CONCURRENCY, FIXED_WINDOW, GCRA, QUOTA, SECOND_US, SLIDING_WINDOW_COUNTER, TOKEN_BUCKET,
    TimedStore, cell, one,
};
use super::super::{Cell, Cells, Key, Part, Program, new_member};

/// What a parent may count with.
fn parents() -> [&'static Program; 5] {
    [&FIXED_WINDOW, &SLIDING_WINDOW_COUNTER, &QUOTA, &TOKEN_BUCKET, &GCRA]
}

/// The same with a debt, wherever the program has its number.
fn owing(mut cell: Cell, debt: i64) -> Cell {
    let at = match cell.program.name {
        "sliding_window_counter" => 2,
        "quota" => 6,
        _ => 3,
    };
    cell.numbers[at] = debt;
    cell
}

/// A parent of 10 a second whose children are assured 3 each, with a ceiling of 8.
struct Family {
    program: &'static Program,
    parent: Cell,
}

impl Family {
    fn new(program: &'static Program) -> Self {
        let parent = owing(cell(program, "parent", 10, SECOND_US, 10), 10);
        Self { program, parent: Cell { part: Part::Parent, ..parent } }
    }

    fn part(&self, name: &str, child: u128, units: u64) -> Cell {
        let cell = cell(self.program, name, units, SECOND_US, units);
        Cell { key: Key { key: child, ..cell.key.clone() }, ..cell }
    }

    /// What a request of this child is charged.
    fn child(&self, child: u128) -> Cells {
        let assured = Cell { part: Part::Assured, ..self.part("assured", child, 3) };
        Cells::from_iter([self.part("ceiling", child, 8), assured, self.parent.clone()])
    }

    /// Takes until refused; returns how many were admitted.
    fn drain(&self, store: &mut TimedStore, child: u128) -> usize {
        (0..).take_while(|_| store.take(&self.child(child)).admitted).count()
    }
}

#[test]
fn a_child_gets_what_is_assured_whatever_the_others_took() {
    for (engine, mut store) in TimedStore::engines() {
        for program in parents() {
            let family = Family::new(program);
            // Three of its own, and five of the parent's up to the ceiling.
            assert_eq!(family.drain(&mut store, 7), 8, "{engine} {}", program.name);
            // Two are left, and three are assured: the parent owes one.
            assert_eq!(family.drain(&mut store, 8), 3, "{engine} {}", program.name);
            assert_eq!(family.drain(&mut store, 9), 3, "{engine} {}", program.name);
            // At most the parent's ten and three for each child.
            assert_eq!(family.drain(&mut store, 7), 0, "{engine} {}", program.name);
        }
    }
}

#[test]
fn what_a_child_leaves_is_borrowed_by_others() {
    for (engine, mut store) in TimedStore::engines() {
        for program in parents() {
            let family = Family::new(program);
            let taken = store.take(&family.child(7));
            let [ceiling, assured, parent] = &taken.cells[..] else { panic!("{taken:?}") };
            assert!(ceiling.fits && assured.fits && parent.fits, "{engine} {}", program.name);
            let left = [ceiling, assured, parent].map(|reply| reply.remaining);
            assert_eq!(left, [7, 2, 9], "{engine} {}", program.name);
            // Nine are left for all: three that are assured, and five that are borrowed.
            assert_eq!(family.drain(&mut store, 8), 8, "{engine} {}", program.name);
            let refused = store.take(&family.child(8));
            assert!(!refused.cells[0].fits && refused.cells[2].fits, "{engine}: {refused:?}");
        }
    }
}

#[test]
fn a_parent_in_debt_lends_nothing_until_it_is_paid() {
    for (engine, mut store) in TimedStore::engines() {
        for program in [&TOKEN_BUCKET, &GCRA] {
            let family = Family::new(program);
            // Six of ten are borrowed, or charged to those that may: 8 + 3 + 3 + 3 = 17.
            let all: usize = (1..=4).map(|child| family.drain(&mut store, child)).sum();
            assert_eq!(all, 17, "{engine} {}", program.name);
            // The debt of seven is paid in 0.7 s, but each child's own comes back before.
            store.step(600_000);
            assert_eq!(family.drain(&mut store, 1), 1, "{engine} {}", program.name);
            let looked = store.look(&family.child(1));
            assert!(!looked.admitted && !looked.cells[2].fits, "{engine}: {looked:?}");
        }
    }
}

#[test]
fn what_is_given_back_is_given_back_where_it_was_charged() {
    for (engine, mut store) in TimedStore::engines() {
        for program in parents() {
            let family = Family::new(program);
            let at = store.now_us;
            assert_eq!(family.drain(&mut store, 7), 8, "{engine} {}", program.name);
            // One that was borrowed: the parent and the ceiling have it, and nothing else does.
            let [ceiling, assured, parent] = &family.child(7)[..] else { panic!() };
            store.give_back(&Cells::from_iter([ceiling.clone(), parent.clone()]), at);
            assert_eq!(store.left(&Cell { part: Part::Alone, ..parent.clone() }), 3, "{engine}");
            assert_eq!(family.drain(&mut store, 7), 1, "{engine} {}", program.name);
            store.give_back(&family.child(7), at);
            assert_eq!(store.left(&Cell { part: Part::Alone, ..assured.clone() }), 1, "{engine}");
        }
    }
}

#[test]
fn a_parent_whose_debt_is_full_is_charged_no_more() {
    for (engine, mut store) in TimedStore::engines() {
        for program in parents() {
            let family = Family::new(program);
            let parent = Cell { part: Part::Parent, ..owing(family.parent.clone(), 2) };
            let family = Family { parent, ..family };
            for child in 1..=6 {
                let least = if child == 1 { 8 } else { 3 };
                assert_eq!(family.drain(&mut store, child), least, "{engine} {}", program.name);
            }
            let alone = one(&Cell { part: Part::Alone, cost: 0, ..family.parent.clone() });
            let reset = store.look(&alone).cells[0].reset_units;
            assert!(reset <= 2 * SECOND_US, "{engine} {}: {reset}", program.name);
        }
    }
}

/// Units that a parent was not charged, because its debt is full, are not given back to it.
#[test]
fn what_a_full_debt_has_no_room_for_pays_no_debt() {
    for (engine, mut store) in TimedStore::engines() {
        for program in parents() {
            let family = Family::new(program);
            let parent = Cell { part: Part::Parent, ..owing(family.parent.clone(), 2) };
            let family = Family { parent, ..family };
            (1..=4).for_each(|child| _ = family.drain(&mut store, child));
            let at = store.now_us;
            for _ in 0..12 {
                let cells = family.child(99);
                let taken = store.take(&cells);
                assert!(taken.admitted, "{engine} {}", program.name);
                let charged = cells.iter().zip(&taken.cells);
                let charged = charged.filter(|(_, reply)| reply.fits && !reply.uncharged);
                let charged: Cells = charged.map(|(cell, _)| cell.clone()).collect();
                store.give_back(&charged, at);
            }
            let alone = Cell { part: Part::Alone, ..family.parent.clone() };
            assert_eq!(store.left(&alone), 0, "{engine} {}", program.name);
            assert!(!store.fits(&alone), "{engine} {}", program.name);
        }
    }
}

/// The places of children: some are sure to be free, and all others are for whoever comes.
#[test]
fn places_are_lent_while_they_are_not_used() {
    for (engine, mut store) in TimedStore::engines() {
        let family = Family::new(&CONCURRENCY);
        let mut held: Vec<Cells> = Vec::new();
        let enter = |store: &mut TimedStore, held: &mut Vec<Cells>, child| {
            let mut cells = family.child(child);
            let member = new_member();
            cells.iter_mut().for_each(|cell| cell.member = member);
            let taken = store.take(&cells);
            if taken.admitted {
                let charged = cells.iter().zip(&taken.cells).filter(|(_, reply)| reply.fits);
                held.push(charged.map(|(cell, _)| cell.clone()).collect());
            }
            taken.admitted
        };
        let fill = |store: &mut TimedStore, held: &mut Vec<Cells>, child| {
            (0..).take_while(|_| enter(store, held, child)).count()
        };
        // Eight up to the ceiling, of which five are borrowed. Two are free, and three are assured
        // to each of the others.
        for (child, places) in [(1, 8), (2, 3), (3, 3), (1, 0)] {
            assert_eq!(fill(&mut store, &mut held, child), places, "{engine} {child}");
        }
        // Fourteen are in use, four more than there are. Nothing is lent until there is one.
        let at = store.now_us;
        for _ in 0..4 {
            // The first that were borrowed.
            store.give_back(&held.remove(3), at);
        }
        assert_eq!(fill(&mut store, &mut held, 1), 0, "{engine}");
        store.give_back(&held.remove(3), at);
        assert_eq!(fill(&mut store, &mut held, 1), 1, "{engine}");
    }
}
