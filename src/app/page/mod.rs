//! The operator's live page: what the metrics said in the last ten minutes, drawn once a second for
//! all who watch.
//!
//! A sample is taken each second on the admin thread, so that a page that is opened shows what was
//! before. Nothing is drawn while nobody watches. `history` keeps the samples, `numbers`, `tables`
//! and `changes` draw parts of the page with `html`. `admin` serves the page itself, which puts
//! each part into its place.

mod changes;
mod history;
mod html;
mod numbers;
mod tables;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::StatusCode;
use tokio::time::MissedTickBehavior;

use super::Instance;
use crate::admin::{Events, SendOutcome, event, page_paths};
use crate::chart::escaped;
use crate::clock;
use crate::engine::{EngineError, Settings};
use crate::telemetry::{Label as _, names};
use crate::wire::Body;
use history::History;
use html::{Severity, badge, moment, span};

/// The time between two samples.
const EVERY: Duration = Duration::from_secs(1);
/// Samples between two questions to Redis, while somebody watches.
const ASK_EVERY: u32 = 2;
/// Maximum number of simultaneous viewers. There may be fewer where file descriptors are scarce:
/// half of the connections are left to probes and to those who ask for other pages.
const VIEWERS_MAX: usize = 32;

/// The live page of a running proxy.
#[derive(Debug)]
pub(super) struct LivePage {
    began: Instant,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    history: History,
    store: Store,
    /// The parts of the page by name, as they were last drawn.
    parts: BTreeMap<&'static str, Part>,
    /// Counts how often the page was drawn.
    drawn: u64,
    viewers: Vec<Viewer>,
    /// Whether nobody may watch any more.
    is_over: bool,
}

/// A part of the page.
#[derive(Debug, Default)]
struct Part {
    /// HTML, but for `pages`.
    html: String,
    /// When it last changed, by [`State::drawn`].
    changed: u64,
}

/// Somebody who watches.
#[derive(Debug)]
struct Viewer {
    events: Events,
    /// What they have seen, by [`State::drawn`].
    seen: u64,
}

/// What Redis last answered.
#[derive(Debug, Default)]
struct Store {
    /// Whether it was asked at all.
    is_asked: bool,
    nodes: Vec<String>,
    /// Each shard that can't serve, and its cause.
    failing: Vec<(String, &'static str)>,
    /// Why no shard can.
    error: Option<String>,
    /// Each node that could not be connected to, and why.
    unreached: Vec<(String, String)>,
}

impl Default for LivePage {
    fn default() -> Self {
        Self { began: clock::monotonic(), state: Mutex::default() }
    }
}

impl LivePage {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the page shows, as events, beginning with all of it.
    ///
    /// # Errors
    /// Too many watch, or the process ends.
    pub(super) fn watch(&self, running: &Instance) -> Result<Body, (StatusCode, String)> {
        let unavailable = |why: String| Err((StatusCode::SERVICE_UNAVAILABLE, why));
        let mut state = self.lock();
        if state.is_over {
            return unavailable("This process is ending.".to_owned());
        }
        state.viewers.retain(|viewer| !viewer.events.is_gone());
        let most = VIEWERS_MAX.min(running.current.load().operators_max() / 2).max(1);
        if state.viewers.len() >= most {
            return unavailable(format!(
                "{most} viewers watch this page already, which is the maximum."
            ));
        }
        let (events, body) = Events::new();
        state.viewers.push(Viewer { events, seen: 0 });
        state.draw(running);
        state.send(running);
        Ok(body)
    }

    /// Samples and draws, until the admin pages end.
    pub(super) async fn run(&self, running: &Arc<Instance>) {
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let ended = running.admin_drain.wait();
        tokio::pin!(ended);
        for tick in (0..ASK_EVERY).cycle() {
            tokio::select! {
                () = &mut ended => break,
                _ = ticks.tick() => {}
            }
            // At once for the first who watches.
            let is_asked = self.lock().store.is_asked;
            if self.tick(running) && (tick == 0 || !is_asked) {
                self.ask(running);
            }
        }
        let mut state = self.lock();
        state.is_over = true;
        // Their replies end.
        state.viewers.clear();
    }

    /// Takes a sample, and draws it if somebody watches: then returns true.
    fn tick(&self, running: &Instance) -> bool {
        let mut state = self.lock();
        state.history.note(
            &running.metrics,
            clock::monotonic().saturating_duration_since(self.began).as_secs_f64(),
        );
        state.viewers.retain(|viewer| !viewer.events.is_gone());
        if state.viewers.is_empty() {
            // The answer would be old when the next one comes.
            state.store = Store::default();
            return false;
        }
        state.draw(running);
        state.send(running);
        true
    }

    /// Asks the shards whether they serve, as `/ready` does, outside the page's own task.
    fn ask(&self, running: &Arc<Instance>) {
        let applied = running.current.load();
        if matches!(applied.built.engine_settings, Settings::Embedded(_)) {
            return;
        }
        let running = Arc::clone(running);
        // It ends within the store's deadline.
        tokio::spawn(async move {
            let answer = applied.built.engine.ping().await;
            let engine = &applied.built.engine;
            let (failing, error) = match answer {
                Ok(failing) => (failing, None),
                Err(error) => (Vec::new(), Some(sentence(&error))),
            };
            running.page.lock().store = Store {
                is_asked: true,
                nodes: engine.nodes(),
                failing: failing.into_iter().map(|(node, cause)| (node, cause.label())).collect(),
                error,
                unreached: engine.unreached(),
            };
        });
    }
}

fn sentence(error: &EngineError) -> String {
    error.cause.label().to_owned()
}

impl State {
    /// Draws all parts, and notes which have changed.
    fn draw(&mut self, running: &Instance) {
        self.drawn += 1;
        let applied = running.current.load();
        let (built, metrics) = (&applied.built, &running.metrics);
        let history = &self.history;
        let now_s = running.clock.wall_us() / 1_000_000;
        if self.store.nodes.is_empty() {
            self.store.nodes = built.engine.nodes();
        }
        let parts = [
            // A section whose page does not exist is left out.
            ("pages", page_paths().collect::<Vec<_>>().join(" ")),
            ("about", about(running, now_s)),
            ("state", self.state(running, applied.store_is_needed) + &hosts(built)),
            ("now", numbers::now(history, metrics)),
            ("requests", numbers::requests(history)),
            ("decisions", numbers::decisions(history)),
            ("deciding", numbers::deciding(history)),
            ("answering", numbers::upstream(history)),
            ("routes", tables::routes(built, history)),
            ("limits", tables::limits(history)),
            ("policies", tables::policies(built, history)),
            ("upstreams", tables::upstreams(built, history)),
            ("store", tables::store(built, &self.store, metrics)),
            ("certificates", tables::certificates(built, now_s)),
            ("reloads", reloads(running)),
        ];
        for (name, html) in parts {
            let part = self.parts.entry(name).or_default();
            if part.html != html {
                *part = Part { html, changed: self.drawn };
            }
        }
    }

    /// Sends to each viewer what they have not seen.
    fn send(&mut self, running: &Instance) {
        let now_s = running.clock.wall_us() / 1_000_000;
        let mut batches: BTreeMap<u64, Bytes> = BTreeMap::new();
        let (parts, drawn) = (&self.parts, self.drawn);
        self.viewers.retain_mut(|viewer| {
            let batch = batches.entry(viewer.seen).or_insert_with(|| {
                let fresh = parts.iter().filter(|(_, part)| part.changed > viewer.seen);
                let mut text: String = fresh.map(|(name, part)| event(name, &part.html)).collect();
                text.push_str(&event("tick", &now_s.to_string()));
                Bytes::from(text)
            });
            match viewer.events.send(batch.clone()) {
                SendOutcome::Queued => viewer.seen = drawn,
                SendOutcome::Slow => {}
                SendOutcome::Gone => return false,
            }
            true
        });
    }

    /// Whether this proxy serves, in a word or two.
    fn state(&self, running: &Instance, store_is_needed: bool) -> String {
        let is_leaving = running.leaving.load(Ordering::SeqCst) || running.drain.started();
        let Store { is_asked, failing, error, .. } = &self.store;
        let settings = &running.current.load().built.engine_settings;
        if !is_leaving && !is_asked && matches!(settings, Settings::Redis(_)) {
            return badge(Severity::Neutral, "asking Redis");
        }
        match (is_leaving, error) {
            (true, _) => badge(Severity::Doubtful, "shutting down"),
            (false, Some(error)) if store_is_needed => {
                badge(Severity::Bad, &format!("not ready: Redis: {error}"))
            }
            (false, Some(error)) => badge(Severity::Doubtful, &format!("degraded: Redis: {error}")),
            (false, None) if failing.is_empty() => badge(Severity::Good, "serving"),
            (false, None) => {
                let plural = if failing.len() == 1 { " fails" } else { "s fail" };
                let text = format!("degraded: {} Redis shard{plural}", failing.len());
                badge(Severity::Doubtful, &text)
            }
        }
    }
}

/// Whether hosts of upstreams are out.
fn hosts(built: &super::build::ConfigBuild) -> String {
    tables::hosts_out(built)
        .map_or_else(String::new, |out| format!(" {}", badge(Severity::Doubtful, &out)))
}

/// Which Weir this is, when it started, and with which configuration it runs.
fn about(running: &Instance, now_s: i64) -> String {
    let up_s = u64::try_from(now_s - running.started_us / 1_000_000).unwrap_or(0);
    let applied = match running.metrics.gauge_value(names::CONFIG_APPLIED) {
        Some(applied_s) => moment(applied_s),
        None => String::new(),
    };
    format!(
        "<span>{}</span> <span>up {}</span> <span>configuration of {applied}</span>",
        escaped(env!("CARGO_PKG_VERSION")),
        escaped(&span(up_s)),
    )
}

fn reloads(running: &Instance) -> String {
    let mut items = String::new();
    running.reloads.each(|record| items.push_str(&changes::item(record)));
    if items.is_empty() {
        return "<p class=\"nothing\">None since the start.</p>".to_owned();
    }
    format!("<ol class=\"reloads\">{items}</ol>")
}
