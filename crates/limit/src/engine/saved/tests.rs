//! Saved counters are what they were, and a file that is not whole is not used.

use std::fs;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use super::super::testing::{
    ALL, CONCURRENCY, FIXED_WINDOW, GCRA, SECOND_US, SLIDING_WINDOW_BUCKETS, SLIDING_WINDOW_LOG,
    START_US, cell, cost, one,
};
use super::super::{
    Cell, Cells, Content, Embedded, EmbeddedSettings, SaveError, SnapshotSettings, Space,
};
use crate::clock::Clock;
use crate::telemetry::Metrics;

struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn file(&self) -> std::path::PathBuf {
        self.0.path().join("weir.snapshot")
    }

    fn settings(&self) -> EmbeddedSettings {
        let snapshot = SnapshotSettings { path: self.file(), every: Duration::from_secs(5) };
        EmbeddedSettings { snapshot: Some(snapshot), ..EmbeddedSettings::new(1_000_000) }
    }

    /// An engine that has restored what is there.
    fn engine(&self) -> (Embedded, Clock) {
        self.engine_with(&self.settings())
    }

    fn engine_with(&self, settings: &EmbeddedSettings) -> (Embedded, Clock) {
        let clock = Clock::virtual_at(START_US as i64);
        let engine = Embedded::new(settings, clock.clone(), &Metrics::new(1));
        engine.restore();
        (engine, clock)
    }

    fn names(&self) -> Vec<String> {
        let names = fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<String> =
            names.map(|name| name.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// One counter of each algorithm, with some tag.
fn all(tag: u128) -> Vec<Cell> {
    let of = |program: &&'static super::super::Program| {
        let mut cell = cell(program, "saved", 10, 60 * SECOND_US, 10);
        cell.key.tag = tag;
        cell
    };
    ALL.iter().map(of).collect()
}

fn left(engine: &Embedded, cell: &Cell) -> u64 {
    engine.look(&one(&cost(cell, 0))).unwrap().cells[0].remaining
}

fn named(cell: &Cell, member: u128) -> Cells {
    one(&Cell { member: member << 32, ..cell.clone() })
}

#[test]
fn each_counter_goes_on_after_a_restart_but_leases_are_free() {
    let place = Place::new();
    let (engine, clock) = place.engine();
    clock.step(17);
    for tag in 0..300 {
        for limit in all(tag) {
            for member in 0..3 {
                assert!(engine.take(&named(&limit, member)).unwrap().admitted);
            }
        }
    }
    let saved = engine.save().unwrap().unwrap();
    assert_eq!(saved.counters as usize, 300 * (ALL.len() - 1));
    assert_eq!(saved.bytes, fs::metadata(place.file()).unwrap().len());
    assert!(engine.save().unwrap().is_none(), "nothing has changed");
    let keys = engine.keys();
    drop(engine);

    let (engine, clock) = place.engine();
    clock.step(17);
    // Nine algorithms, each a key; a log has a record for each of its takes, leases have none.
    assert_eq!(engine.keys(), keys - 300 * 3);
    for limit in all(299) {
        let expected = if limit.program.name == CONCURRENCY.name { 10 } else { 7 };
        assert_eq!(left(&engine, &limit), expected, "{}", limit.program.name);
    }
    // A sliding window counts the window before, too. A quota's cell names its own period only.
    clock.step(2 * 60 * SECOND_US as i64);
    for limit in all(299).iter().filter(|limit| limit.program.name != "quota") {
        assert_eq!(left(&engine, limit), 10, "{}", limit.program.name);
    }
}

#[test]
fn counters_that_expired_while_the_machine_was_off_are_left_out() {
    let place = Place::new();
    let (engine, clock) = place.engine();
    let long = cell(&FIXED_WINDOW, "long", 10, 40 * 3_600 * SECOND_US, 10);
    let short = cell(&GCRA, "short", 10, SECOND_US, 10);
    assert!(engine.take(&one(&cost(&long, 4))).unwrap().admitted);
    assert!(engine.take(&one(&cost(&short, 4))).unwrap().admitted);
    engine.save().unwrap().unwrap();
    drop((engine, clock));

    let clock = Clock::virtual_at(START_US as i64 + 24 * 3_600 * SECOND_US as i64);
    let engine = Embedded::new(&place.settings(), clock, &Metrics::new(1));
    engine.restore();
    assert_eq!((engine.keys(), left(&engine, &long), left(&engine, &short)), (1, 6, 10));
}

#[test]
fn a_clock_that_stands_before_the_snapshot_gives_no_more_than_a_full_allowance() {
    let place = Place::new();
    let (engine, _) = place.engine();
    for limit in all(1) {
        assert!(engine.take(&one(&cost(&limit, 10))).unwrap().admitted);
    }
    engine.save().unwrap().unwrap();
    drop(engine);
    let clock = Clock::virtual_at(START_US as i64 - 3_600 * SECOND_US as i64);
    let engine = Embedded::new(&place.settings(), clock, &Metrics::new(1));
    engine.restore();
    for limit in all(1) {
        assert!(left(&engine, &limit) <= 10, "{}", limit.program.name);
        assert!(!engine.take(&one(&cost(&limit, 11))).unwrap().admitted, "{}", limit.program.name);
    }
}

#[test]
fn restored_counters_are_found_by_their_names_and_keys_keep_their_salt() {
    let place = Place::new();
    let (engine, _) = place.engine();
    let limit = cell(&SLIDING_WINDOW_LOG, "found", 10, 60 * SECOND_US, 10);
    let space = std::sync::Arc::new(Space { text: "policy/found/swl".into(), digest: 77 });
    let limit = Cell { key: super::super::Key { space, ..limit.key }, ..limit };
    engine.note_space(&limit.key.space);
    assert!(engine.take(&one(&limit)).unwrap().admitted);
    engine.save().unwrap().unwrap();
    let salt = engine.salt();
    drop(engine);

    let (engine, _) = place.engine();
    assert_eq!(engine.salt(), salt);
    let found = engine.find(&limit.key, "policy/found/");
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].content, Content::Members(vec![START_US]));
    let other = Place::new();
    assert_ne!(other.engine().0.salt(), salt, "each has its own");
}

/// Restores from a file with this content; returns what is in the folder then.
fn set_aside(content: &[u8]) -> Vec<String> {
    let place = Place::new();
    fs::write(place.file(), content).unwrap();
    let (engine, _) = place.engine();
    assert_eq!(engine.keys(), 0);
    // It can save there all the same.
    assert!(engine.take(&one(&all(1)[0])).unwrap().admitted);
    assert_eq!(engine.save().unwrap().unwrap().counters, 1);
    let kept = place.0.path().join("weir.snapshot.unreadable-1");
    assert_eq!(fs::read(kept).unwrap(), content);
    place.names()
}

#[test]
fn a_torn_or_foreign_file_is_set_aside_and_nothing_of_it_is_used() {
    let place = Place::new();
    let (engine, _) = place.engine();
    for tag in 0..5_000 {
        let limit = cell(&GCRA, "many", 10, 60 * SECOND_US, 10);
        let key = super::super::Key { tag, ..limit.key };
        assert!(engine.take(&one(&Cell { key, ..limit })).unwrap().admitted);
    }
    engine.save().unwrap().unwrap();
    let whole = fs::read(place.file()).unwrap();
    let names =
        ["weir.snapshot", "weir.snapshot.lock", "weir.snapshot.unreadable-1"].map(str::to_owned);
    for length in [0, 1, 16, 17, whole.len() / 2, whole.len() - 1] {
        assert_eq!(set_aside(&whole[..length]), names, "{length} bytes");
    }
    for at in [20, 100, whole.len() / 2, whole.len() - 1] {
        let mut changed = whole.clone();
        changed[at] ^= 4;
        assert_eq!(set_aside(&changed), names, "byte {at}");
    }
    assert_eq!(set_aside(&[&whole[..], b"more"].concat()), names);
    assert_eq!(set_aside(b"[store]\nengine = \"embedded\"\n"), names);
    let later = [b"weir snapshot 2\n", &whole[16..]].concat();
    assert_eq!(set_aside(&later), names);
}

#[test]
fn counters_under_another_secret_are_not_used() {
    let place = Place::new();
    let secret = EmbeddedSettings { secret_id: [1; 16], ..place.settings() };
    let (engine, _) = place.engine_with(&secret);
    assert!(engine.take(&one(&all(1)[0])).unwrap().admitted);
    engine.save().unwrap().unwrap();
    drop(engine);
    assert_eq!(place.engine_with(&secret).0.keys(), 1);
    let other = EmbeddedSettings { secret_id: [2; 16], ..place.settings() };
    assert_eq!(place.engine_with(&other).0.keys(), 0);
    assert!(place.names().contains(&"weir.snapshot.unreadable-1".to_owned()));
}

#[test]
fn a_file_has_one_writer() {
    let place = Place::new();
    let ((one_engine, _), (other, _)) = (place.engine(), place.engine());
    for engine in [&one_engine, &other] {
        assert!(engine.take(&one(&all(1)[0])).unwrap().admitted);
    }
    assert!(one_engine.save().unwrap().is_some());
    let error = other.save().unwrap_err();
    assert!(matches!(error, SaveError::Held(_)), "{error}");
    drop(one_engine);
    let first = fs::read(place.file()).unwrap();
    assert!(other.save().unwrap().is_some(), "it takes over");
    // It never read what the first one has counted.
    assert_eq!(fs::read(place.0.path().join("weir.snapshot.replaced-1")).unwrap(), first);
    assert!(other.take(&one(&all(2)[0])).unwrap().admitted && other.save().unwrap().is_some());
    assert!(!place.0.path().join("weir.snapshot.replaced-2").exists(), "that was its own");
}

#[test]
fn a_file_that_a_reload_names_is_not_overwritten_unless_its_counters_are_here() {
    let place = Place::new();
    let (first, _) = place.engine();
    assert!(first.take(&one(&all(1)[0])).unwrap().admitted);
    first.save().unwrap().unwrap();
    drop(first);
    let written = fs::read(place.file()).unwrap();
    let path = place.0.path().join("elsewhere");
    let snapshot = SnapshotSettings { path, every: Duration::from_secs(5) };
    let elsewhere = EmbeddedSettings { snapshot: Some(snapshot), ..place.settings() };
    let (second, _) = place.engine_with(&elsewhere);
    assert!(second.take(&one(&all(2)[0])).unwrap().admitted);
    second.save().unwrap().unwrap();
    for settings in [place.settings(), elsewhere, place.settings()] {
        second.resize(&settings);
        assert_eq!(second.save().unwrap().unwrap().counters, 1);
    }
    let kept: Vec<String> =
        place.names().into_iter().filter(|name| name.contains("replaced")).collect();
    assert_eq!(kept, ["weir.snapshot.replaced-1"]);
    assert_eq!(fs::read(place.0.path().join(&kept[0])).unwrap(), written);
}

#[test]
fn a_lock_that_is_removed_is_taken_again() {
    let place = Place::new();
    let (engine, _) = place.engine();
    let lock = place.0.path().join("weir.snapshot.lock");
    fs::remove_file(&lock).unwrap();
    assert!(engine.take(&one(&all(1)[0])).unwrap().admitted);
    engine.save().unwrap().unwrap();
    let (other, _) = place.engine();
    assert!(other.take(&one(&all(1)[0])).unwrap().admitted);
    assert!(matches!(other.save().unwrap_err(), SaveError::Held(_)));
    // Another process has it by the time that this one looks.
    fs::remove_file(&lock).unwrap();
    assert!(other.save().unwrap().is_some());
    assert!(matches!(engine.save().unwrap_err(), SaveError::Held(_)));
}

#[test]
fn a_failed_save_is_made_up_for_later() {
    let place = Place::new();
    let folder = place.0.path().join("later");
    let path = folder.join("weir.snapshot");
    let snapshot = SnapshotSettings { path: path.clone(), every: Duration::from_secs(5) };
    let settings = EmbeddedSettings { snapshot: Some(snapshot), ..EmbeddedSettings::new(10) };
    let (engine, _) = place.engine_with(&settings);
    assert!(engine.take(&one(&all(1)[0])).unwrap().admitted);
    let error = engine.save().unwrap_err().to_string();
    assert!(error.starts_with("can't open ") && error.contains("No such file"), "{error}");
    fs::create_dir(&folder).unwrap();
    assert_eq!(engine.save().unwrap().unwrap().counters, 1);
    assert!(engine.save().unwrap().is_none());
    // Something that is not a file is in the way of the next one.
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(engine.take(&one(&all(1)[0])).unwrap().admitted);
    assert!(engine.save().unwrap_err().to_string().starts_with("can't replace "));
    fs::remove_dir(&path).unwrap();
    assert_eq!(engine.save().unwrap().unwrap().counters, 1);
    assert!(is_private(&path));
}

fn is_private(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).unwrap().permissions().mode() & 0o777 == 0o600
}

#[test]
fn a_sweep_frees_everything_that_expired_without_a_call() {
    let place = Place::new();
    let (engine, clock) = place.engine();
    for tag in 0..20_000 {
        let limit = cell(&SLIDING_WINDOW_BUCKETS, "swept", 10, SECOND_US, 10);
        let key = super::super::Key { tag, ..limit.key };
        assert!(engine.take(&one(&Cell { key, ..limit })).unwrap().admitted);
    }
    engine.sweep();
    assert!(engine.keys() >= 20_000);
    clock.step(3_600 * SECOND_US as i64);
    let mut sweeps = 0;
    while engine.keys() > 0 {
        engine.sweep();
        sweeps += 1;
        assert!(sweeps < 1_000, "{} keys", engine.keys());
    }
    assert!(sweeps > 50, "{sweeps}: each does a part");
}
