//! Real files, real events, a real signal. The builder here reads its files and reports what it
//! read.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use tempfile::TempDir;

use super::*;
use crate::telemetry::{Label as _, names};

/// After this time a test fails. No test waits for it.
const TIMEOUT: Duration = Duration::from_secs(20);

struct Set {
    folder: TempDir,
    metrics: Metrics,
    builds: Receiver<(Reason, Vec<String>)>,
    watcher: Watcher,
}

/// Reads all of these files as a builder does, noting each.
fn read(paths: &[PathBuf]) -> (Vec<Watch>, Vec<String>) {
    let read = |path: &PathBuf| match fs::read(path) {
        Ok(bytes) => (Watch::read(path, &bytes), String::from_utf8(bytes).unwrap()),
        Err(_) => (Watch::absent(path), "absent".into()),
    };
    paths.iter().map(read).unzip()
}

/// A file that says `bad` is refused; one that says `also NAME` names another.
fn builder(
    path: PathBuf,
    builds: Sender<(Reason, Vec<String>)>,
) -> impl FnMut(Reason) -> BuildReport + Send + 'static {
    move |reason| {
        let mut paths = vec![path.clone()];
        let (_, first) = read(&paths);
        if let Some(name) = first[0].strip_prefix("also ") {
            paths.push(path.with_file_name(name));
        }
        let (files, texts) = read(&paths);
        let refused = texts.iter().any(|text| text == "bad");
        let panics = texts[0] == "panic";
        let _ = builds.send((reason, texts));
        assert!(!panics, "as the file says");
        if refused { BuildReport::refused(files) } else { BuildReport::applied(files) }
    }
}

impl Set {
    fn new(prepare: impl FnOnce(&Path), file: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        prepare(folder.path());
        let (files, _) = read(&[folder.path().join(file)]);
        Self::over(folder, file, files)
    }

    fn over(folder: TempDir, file: &str, files: Vec<Watch>) -> Self {
        let (sender, builds) = channel();
        let metrics = Metrics::new(1);
        let settings = Settings { files, on_sighup: false };
        let watcher =
            Watcher::start(settings, metrics.clone(), builder(folder.path().join(file), sender))
                .unwrap();
        Self { folder, metrics, builds, watcher }
    }

    fn one_file() -> Self {
        Self::new(|folder| fs::write(folder.join("proxy.toml"), "one").unwrap(), "proxy.toml")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Waits for the build that read `text`; a half-written file may have been read before it.
    fn built(&self, text: &str) -> Reason {
        loop {
            let (reason, texts) = self
                .builds
                .recv_timeout(TIMEOUT)
                .unwrap_or_else(|error| panic!("no build read {text:?}: {error}"));
            if texts.iter().any(|read| read == text) {
                return reason;
            }
        }
    }

    fn count(&self, result: ReloadResult) -> u64 {
        self.metrics.counter(names::RELOADS, &[result.label()]).get()
    }

    fn counted(&self, result: ReloadResult, mut poke: impl FnMut()) {
        let latest = crate::clock::monotonic() + TIMEOUT;
        while self.count(result) == 0 {
            assert!(crate::clock::monotonic() < latest, "never {result:?}");
            poke();
            // Lets the watcher run; the loop ends on the count.
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_file_that_looks_unfinished_for_long_is_read_as_it_is() {
    let set = Set::new(
        |folder| fs::write(folder.join("proxy.toml"), "one\ntwo\n").unwrap(),
        "proxy.toml",
    );
    fs::write(set.path("proxy.toml"), "one\nt").unwrap();
    assert_eq!(set.built("one\nt"), Reason::FileChanged);
    fs::write(set.path("proxy.toml"), "1").unwrap();
    assert_eq!(set.built("1"), Reason::FileChanged);
}

#[test]
fn a_saved_file_is_built() {
    let set = Set::one_file();
    fs::write(set.path("proxy.toml"), "two").unwrap();
    assert_eq!(set.built("two"), Reason::FileChanged);
    set.counted(ReloadResult::Applied, || {});
}

#[test]
fn an_editors_new_file_in_the_old_ones_place_is_built_and_so_is_the_next() {
    let set = Set::one_file();
    for text in ["two", "three"] {
        fs::write(set.path(".proxy.toml.swp"), text).unwrap();
        fs::rename(set.path(".proxy.toml.swp"), set.path("proxy.toml")).unwrap();
        set.built(text);
    }
    fs::rename(set.path("proxy.toml"), set.path("proxy.toml~")).unwrap();
    fs::write(set.path("proxy.toml"), "four").unwrap();
    set.built("four");
}

/// As the kubelet does it: file -> ..data/file, ..data -> a folder, and a new ..data is renamed
/// over the old.
#[test]
fn a_config_maps_swapped_links_are_followed() {
    let put = |folder: &Path, version: &str, text: &str| {
        fs::create_dir(folder.join(version)).unwrap();
        fs::write(folder.join(version).join("proxy.toml"), text).unwrap();
        symlink(version, folder.join("..data_tmp")).unwrap();
        fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
    };
    let prepare = |folder: &Path| {
        put(folder, "..1", "one");
        symlink("..data/proxy.toml", folder.join("proxy.toml")).unwrap();
    };
    let set = Set::new(prepare, "proxy.toml");
    put(set.folder.path(), "..2", "two");
    set.built("two");
    fs::remove_dir_all(set.path("..1")).unwrap();
    put(set.folder.path(), "..3", "three");
    set.built("three");
    fs::write(set.path("..3/proxy.toml"), "in place").unwrap();
    set.built("in place");
}

/// As a script does that deploys a release and asks for a reload at once.
#[test]
fn a_link_that_is_replaced_right_before_a_reload_is_asked_for_is_followed() {
    let put = |folder: &Path, release: &str, text: &str| {
        fs::create_dir(folder.join(release)).unwrap();
        fs::write(folder.join(release).join("proxy.toml"), text).unwrap();
        symlink(release, folder.join("next")).unwrap();
        fs::rename(folder.join("next"), folder.join("live")).unwrap();
    };
    let set = Set::new(|folder| put(folder, "1", "one"), "live/proxy.toml");
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for (release, text) in [("2", "two"), ("3", "three"), ("4", "four")] {
        put(set.folder.path(), release, text);
        let asked = runtime.block_on(set.watcher.trigger().reload()).unwrap();
        assert_eq!(asked.result, ReloadResult::Applied);
        set.built(text);
        let edited = format!("{text}, edited");
        fs::write(set.path("live/proxy.toml"), &edited).unwrap();
        assert_eq!(set.built(&edited), Reason::FileChanged);
    }
}

#[test]
fn a_file_and_a_folder_that_come_later_are_noticed() {
    let set = Set::new(|_| {}, "conf/live/proxy.toml");
    fs::create_dir_all(set.path("conf/live")).unwrap();
    fs::write(set.path("conf/live/proxy.toml"), "one").unwrap();
    set.built("one");
    // A whole folder put in the place of another.
    fs::create_dir_all(set.path("next/live")).unwrap();
    fs::write(set.path("next/live/proxy.toml"), "two").unwrap();
    fs::rename(set.path("conf"), set.path("old")).unwrap();
    fs::rename(set.path("next"), set.path("conf")).unwrap();
    set.built("two");
    fs::remove_dir_all(set.path("conf")).unwrap();
    set.built("absent");
    fs::create_dir_all(set.path("conf/live")).unwrap();
    fs::write(set.path("conf/live/proxy.toml"), "three").unwrap();
    set.built("three");
}

#[test]
fn a_file_that_the_new_one_names_is_watched_from_then_on() {
    let set = Set::one_file();
    fs::write(set.path("proxy.toml"), "also a.wasm").unwrap();
    set.built("absent");
    fs::write(set.path("a.wasm"), "bad").unwrap();
    set.built("bad");
    set.counted(ReloadResult::Refused, || {});
    // Refused, and still watched.
    fs::write(set.path("a.wasm"), "mended").unwrap();
    set.built("mended");
}

#[test]
fn touching_a_file_builds_nothing() {
    let set = Set::one_file();
    set.counted(ReloadResult::Unchanged, || {
        fs::File::open(set.path("proxy.toml")).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap()
    });
    // Nor does a file next to it: the first build is that of the new content.
    fs::write(set.path("neighbour"), "two").unwrap();
    fs::rename(set.path("neighbour"), set.path("proxy.toml")).unwrap();
    assert_eq!(
        set.builds.recv_timeout(TIMEOUT).unwrap(),
        (Reason::FileChanged, vec!["two".to_owned()])
    );
    assert_eq!(set.builds.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty));
}

#[test]
fn a_change_between_reading_and_watching_is_not_lost() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("proxy.toml");
    let files = vec![Watch::read(&path, b"one")];
    fs::write(&path, "two").unwrap();
    let set = Set::over(folder, "proxy.toml", files);
    assert_eq!(set.built("two"), Reason::FileChanged);
}

#[test]
fn a_builder_that_panics_refuses_and_the_next_is_built() {
    let set = Set::one_file();
    fs::write(set.path("proxy.toml"), "panic").unwrap();
    set.built("panic");
    set.counted(ReloadResult::Refused, || {});
    fs::write(set.path("proxy.toml"), "two").unwrap();
    set.built("two");
}

#[test]
fn a_pipe_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert_eq!(Watch::now(&pipe), Watch::absent(&pipe));
}

#[test]
fn hanging_up_rebuilds_though_nothing_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("proxy.toml");
    fs::write(&path, "one").unwrap();
    let (sender, builds) = channel();
    let settings = Settings { files: vec![Watch::now(&path)], on_sighup: true };
    let watcher = Watcher::start(settings, Metrics::new(1), builder(path, sender)).unwrap();
    for _ in 0..2 {
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::HUP)
            .unwrap();
        assert_eq!(builds.recv_timeout(TIMEOUT).unwrap(), (Reason::Signal, vec!["one".to_owned()]));
    }
    drop(watcher);
    // The builder is gone with the thread.
    assert_eq!(builds.recv_timeout(TIMEOUT), Err(RecvTimeoutError::Disconnected));
}

#[test]
fn a_watch_shows_no_digest() {
    assert_eq!(
        format!("{:?}", Watch::read("/run/secrets/key", b"hunter2")),
        "Watch(/run/secrets/key)"
    );
}

#[test]
fn a_file_that_comes_into_a_watched_folder_or_leaves_it_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let lua = folder.path().join("lua");
    fs::create_dir(&lua).unwrap();
    fs::write(lua.join("a.lua"), "one").unwrap();
    let (sender, builds) = channel();
    let seen = lua.clone();
    let build = move |_| {
        let files = vec![Watch::folder(&seen)];
        let mut names: Vec<_> =
            fs::read_dir(&seen).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        sender.send(names).unwrap();
        BuildReport::applied(files)
    };
    let _watcher = Watcher::start(
        Settings { files: vec![Watch::folder(&lua)], on_sighup: false },
        Metrics::new(1),
        build,
    )
    .unwrap();
    let built = |names: &[&str]| while builds.recv_timeout(TIMEOUT).expect("a build") != names {};
    fs::write(lua.join("b.lua"), "two").unwrap();
    built(&["a.lua", "b.lua"]);
    fs::remove_file(lua.join("a.lua")).unwrap();
    built(&["b.lua"]);
}

#[test]
fn leaving_does_not_wait_for_a_build() {
    let folder = tempfile::tempdir().unwrap();
    let (begun, began) = channel();
    let (end, ended) = channel::<()>();
    let build = move |_| {
        let _ = begun.send(());
        let _ = ended.recv();
        BuildReport::applied(Vec::new())
    };
    let path = folder.path().join("proxy.toml");
    let files = vec![Watch::absent(&path)];
    let watcher =
        Watcher::start(Settings { files, on_sighup: false }, Metrics::new(1), build).unwrap();
    fs::write(&path, "one").unwrap();
    began.recv_timeout(TIMEOUT).unwrap();
    // Returns while the builder still runs: the test ends it below.
    watcher.leave();
    drop(end);
}

/// Runs `work` on a runtime of its own.
fn wait<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

#[test]
fn a_caller_gets_the_report_of_a_build_that_began_after_its_request() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("proxy.toml");
    fs::write(&path, "one").unwrap();
    let seen = path.clone();
    let build = move |reason: Reason| {
        let text = fs::read_to_string(&seen).unwrap();
        let files = vec![Watch::read(&seen, text.as_bytes())];
        let report = format!("{} {text}", reason.label());
        match text.as_str() {
            "panic" => panic!("as the file says"),
            "bad" => BuildReport { report, ..BuildReport::refused(files) },
            _ => BuildReport { report, ..BuildReport::applied(files) },
        }
    };
    let settings = Settings { files: vec![Watch::now(&path)], on_sighup: false };
    let watcher = Watcher::start(settings, Metrics::new(1), build).unwrap();
    let trigger = watcher.trigger();
    let ask = || {
        let outcome = wait(trigger.reload()).unwrap();
        (outcome.result, outcome.report)
    };
    assert_eq!(ask(), (ReloadResult::Applied, "asked one".to_owned()), "though nothing changed");
    fs::write(&path, "bad").unwrap();
    assert_eq!(ask(), (ReloadResult::Refused, "asked bad".to_owned()));
    fs::write(&path, "panic").unwrap();
    assert_eq!(ask(), (ReloadResult::Refused, String::new()));
    fs::write(&path, "two").unwrap();
    assert_eq!(ask(), (ReloadResult::Applied, "asked two".to_owned()));
    drop(watcher);
    assert_eq!(wait(trigger.reload()).unwrap_err(), TriggerError::Ended);
}

#[test]
fn those_who_ask_during_a_build_share_the_next_one_and_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("proxy.toml");
    let (begun, began) = channel();
    let (go, going) = channel::<()>();
    let mut count = 0;
    let build = move |_| {
        count += 1;
        let _ = begun.send(());
        let _ = going.recv();
        BuildReport { report: count.to_string(), ..BuildReport::applied(Vec::new()) }
    };
    let settings = Settings { files: vec![Watch::absent(&path)], on_sighup: false };
    let watcher = Watcher::start(settings, Metrics::new(1), build).unwrap();
    let trigger = watcher.trigger();
    wait(async {
        let first = tokio::spawn({
            let trigger = trigger.clone();
            async move { trigger.reload().await.unwrap().report }
        });
        tokio::task::yield_now().await;
        began.recv_timeout(TIMEOUT).unwrap();
        let more = (0..ASKED_MAX).map(|_| {
            let trigger = trigger.clone();
            tokio::spawn(async move { trigger.reload().await.unwrap().report })
        });
        let more: Vec<_> = more.collect();
        while trigger.0.capacity() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(trigger.reload().await.unwrap_err(), TriggerError::Busy);
        go.send(()).unwrap();
        assert_eq!(first.await.unwrap(), "1");
        began.recv_timeout(TIMEOUT).unwrap();
        go.send(()).unwrap();
        for one in more {
            assert_eq!(one.await.unwrap(), "2");
        }
    });
    drop(go);
}
