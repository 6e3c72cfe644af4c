//! How many requests an upstream with `concurrency` has at once, over all workers, and what becomes
//! of the others: they wait for a place, for a short time, by priority and then by who has least.
//!
//! `gradient` finds the limit if it is to follow the upstream, `line` says who is next, and
//! `upload` which requests use no place while their clients send them. This file counts, and wakes
//! whoever waits. While less than half of the limit is used, a request costs two atomic operations;
//! beyond that, a lock that all workers share. An upstream without `concurrency` has none of this.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Context;
use std::time::Instant;

use http::StatusCode;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::phase::Phase;
use super::settings::Concurrency;
use super::{ConcurrencyStatus, PRIORITY_DEFAULT, Sender};
use crate::clock;
use crate::telemetry::{CounterSet, Histogram, Metrics, labels, names};

mod gradient;
mod line;
mod upload;

use gradient::{Gradient, Reply, Sample};
use line::{Line, Waiter};
use upload::Upload;

/// While an adaptive limit dips, this part more of it may be under way, and one at least: requests
/// of high priority that have waited for as long as they may.
const BEYOND_PART: usize = 8;

labels! {
    /// Why a request got no place: a metric's label.
    pub(super) enum ShedReason {
        /// It has waited for `max_wait`.
        Waited = "waited",
        /// As many requests waited as may, of the same priority or a higher one.
        Full = "full",
        /// It waited, and one of a higher priority, or of somebody with less, took its turn.
        Displaced = "displaced",
    }
}

/// The places of one upstream.
#[derive(Debug)]
pub(super) struct Places {
    settings: Concurrency,
    /// The places there are now.
    limit: AtomicUsize,
    /// The places in use.
    in_flight: AtomicUsize,
    /// Requests whose places others use until their slow clients have sent them.
    uploading: AtomicUsize,
    /// The last dip of the limit.
    dip: Mutex<Dip>,
    /// The requests in `line`, readable without its lock.
    waiting: AtomicUsize,
    line: Mutex<Line<oneshot::Sender<Place>>>,
    /// A request had to wait since this was last read.
    full: AtomicBool,
    created: Instant,
    /// Present if the limit follows the upstream.
    gradient: Option<Mutex<Gradient>>,
    shed: CounterSet<ShedReason>,
    wait_seconds: Histogram,
}

/// A dip of an adaptive limit: it is lower for a moment than what the upstream can use.
#[derive(Clone, Copy, Debug, Default)]
struct Dip {
    /// Which one it is.
    number: u64,
    is_on: bool,
    /// The requests under way that it let through beyond the limit.
    beyond: usize,
}

/// A place at the upstream, given back on drop.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    /// Whose request it is, if that is counted.
    counted: Option<u64>,
    /// When the whole request was sent, until it is answered.
    complete: Option<Instant>,
    upload: Upload,
    /// It is not in use, since the request's client is slow to send it.
    is_lent: bool,
    /// The number of the dip that let it through beyond the limit, if one did.
    beyond_in: Option<u64>,
}

/// A place that a request has before it is sent.
#[derive(Debug)]
pub struct PlacePermit(Box<Place>);

impl PlacePermit {
    pub(super) fn new(place: Place) -> Self {
        Self(Box::new(place))
    }

    pub(super) fn into_place(self) -> Box<Place> {
        self.0
    }
}

/// Takes a waiting request out of the line if it is dropped.
struct Waiting<'a> {
    places: &'a Places,
    id: u64,
}

impl Places {
    /// The places of the upstream `name`. They are the same ones as `before` if nothing has
    /// changed. An adaptive limit goes on from where it was.
    pub(super) fn new(
        name: &str,
        settings: &Concurrency,
        metrics: &Metrics,
        before: Option<&Arc<Self>>,
    ) -> Arc<Self> {
        if let Some(before) = before.filter(|before| before.settings == *settings) {
            return Arc::clone(before);
        }
        let learnt = before.and_then(|before| {
            let gradient = locked(before.gradient.as_ref()?).clone();
            Some((gradient.within(settings.min, settings.max), before.created))
        });
        let created = learnt.as_ref().map_or_else(clock::monotonic, |(_, created)| *created);
        let gradient = settings.adaptive.then(|| {
            learnt
                .map_or_else(|| Gradient::new(settings.min, settings.max), |(gradient, _)| gradient)
        });
        let limit = gradient.as_ref().map_or(settings.max, Gradient::limit);
        let is_on = gradient.as_ref().is_some_and(Gradient::is_in_dip);
        Arc::new(Self {
            settings: settings.clone(),
            limit: AtomicUsize::new(limit),
            in_flight: AtomicUsize::new(0),
            uploading: AtomicUsize::new(0),
            dip: Mutex::new(Dip { is_on, ..Dip::default() }),
            waiting: AtomicUsize::new(0),
            line: Mutex::new(Line::new(settings.queue, settings.max_wait)),
            full: AtomicBool::new(false),
            created,
            gradient: gradient.map(Mutex::new),
            shed: metrics.counters(names::UPSTREAM_SHED, &[name]),
            wait_seconds: metrics.times_of(names::UPSTREAM_WAIT_SECONDS, &[name]),
        })
    }

    /// What it is like at the moment.
    pub(super) fn status(&self) -> ConcurrencyStatus {
        let base = self.gradient.as_ref().and_then(|gradient| locked(gradient).base());
        ConcurrencyStatus {
            limit: self.limit(),
            in_flight: self.in_flight.load(Ordering::Relaxed),
            waiting: self.waiting.load(Ordering::Relaxed),
            base,
        }
    }

    fn limit(&self) -> usize {
        self.limit.load(Ordering::SeqCst)
    }

    /// A place for a request of `sender`, perhaps after a wait.
    ///
    /// # Errors
    /// There is none, within the time that it may wait.
    pub(super) async fn acquire(
        self: &Arc<Self>,
        sender: &Sender<'_>,
    ) -> Result<Place, ShedReason> {
        // Below half of the limit, who has how many does not matter.
        if self.waiting.load(Ordering::SeqCst) == 0 && self.count_up(self.limit() / 2) {
            return Ok(self.place(None));
        }
        Box::pin(self.acquire_counted(sender)).await
    }

    /// The same with the line's lock.
    async fn acquire_counted(self: &Arc<Self>, sender: &Sender<'_>) -> Result<Place, ShedReason> {
        let key = sender.fair_key;
        let (mut granted, id) = {
            let mut line = locked(&self.line);
            if line.is_empty() && self.count_up(self.limit()) {
                line.began(key);
                return Ok(self.place(Some(key)));
            }
            self.full.store(true, Ordering::Relaxed);
            let (grant, granted) = oneshot::channel();
            let waiter = Waiter { priority: sender.priority, key, grant };
            let Some(id) = line.join(waiter, clock::monotonic()) else {
                self.shed.inc(ShedReason::Full);
                return Err(ShedReason::Full);
            };
            self.waiting.store(line.len(), Ordering::SeqCst);
            (granted, id)
        };
        let waiting = Waiting { places: self, id };
        // A place that became free before the line was joined has woken nobody.
        self.serve_line();
        let began = clock::monotonic();
        let answer = timeout(self.settings.max_wait, &mut granted).await;
        // Whoever answered has taken it out of the line, or it is done below: to look for it again
        // would be a look at all who wait.
        std::mem::forget(waiting);
        self.wait_seconds.observe(clock::monotonic().saturating_duration_since(began));
        let why = match answer {
            Ok(Ok(place)) => return Ok(place),
            Ok(Err(_)) => ShedReason::Displaced,
            Err(_) => match self.place_at_last(sender, id, &mut granted) {
                Some(place) => return Ok(place),
                None => ShedReason::Waited,
            },
        };
        self.shed.inc(why);
        Err(why)
    }

    /// The place of a request that has waited for as long as it may, and leaves the line: one that
    /// it was given at this moment, or one beyond the limit if only that keeps it from being turned
    /// away before those with a lower priority. While an adaptive limit dips, nobody is let
    /// through, for longer than a request may wait if the upstream is slow.
    fn place_at_last(
        self: &Arc<Self>,
        sender: &Sender<'_>,
        id: u64,
        granted: &mut oneshot::Receiver<Place>,
    ) -> Option<Place> {
        let mut line = locked(&self.line);
        let Some(gone) = line.leave(id) else {
            drop(line);
            return granted.try_recv().ok();
        };
        self.waiting.store(line.len(), Ordering::SeqCst);
        let is_next = sender.priority > PRIORITY_DEFAULT && line.is_only_above(sender.priority);
        let beyond_in = is_next.then(|| self.count_beyond()).flatten();
        if beyond_in.is_some() {
            line.began(sender.fair_key);
        }
        drop(line);
        // After the lock, which what it grants may need.
        drop(gone);
        beyond_in?;
        let mut place = self.place(Some(sender.fair_key));
        place.beyond_in = beyond_in;
        Some(place)
    }

    /// Counts one more request beyond the limit, if that dips and has room for it. Returns the
    /// number of the dip.
    fn count_beyond(&self) -> Option<u64> {
        let mut dip = locked(&self.dip);
        let most = (self.limit() / BEYOND_PART).max(1);
        if !dip.is_on || dip.beyond >= most || !self.count_up(self.settings.max) {
            return None;
        }
        dip.beyond += 1;
        Some(dip.number)
    }

    /// Takes up whether the limit dips. What an earlier dip let through is not held against this
    /// one.
    fn note_dip(&self, is_on: bool) {
        let mut dip = locked(&self.dip);
        if is_on && !dip.is_on {
            *dip = Dip { number: dip.number + 1, is_on, beyond: 0 };
        }
        dip.is_on = is_on;
    }

    fn place(self: &Arc<Self>, counted: Option<u64>) -> Place {
        Place {
            places: Arc::clone(self),
            counted,
            complete: None,
            upload: Upload::default(),
            is_lent: false,
            beyond_in: None,
        }
    }

    /// Counts one more request if fewer than `most` are under way.
    fn count_up(&self, most: usize) -> bool {
        count_up_to(&self.in_flight, most)
    }

    /// Gives free places to whoever is next.
    fn serve_line(self: &Arc<Self>) {
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return;
        }
        // Places of requests that are gone: dropped after the lock, which they need.
        let mut returned = Vec::new();
        let mut line = locked(&self.line);
        while !line.is_empty() && self.count_up(self.limit()) {
            let Some(Waiter { key, grant, .. }) = line.next(clock::monotonic()) else {
                self.in_flight.fetch_sub(1, Ordering::SeqCst);
                break;
            };
            line.began(key);
            if let Err(place) = grant.send(self.place(Some(key))) {
                returned.push(place);
            }
        }
        self.waiting.store(line.len(), Ordering::SeqCst);
        drop(line);
        drop(returned);
    }

    /// Records what the upstream's answer to a request says.
    fn record(self: &Arc<Self>, reply: Reply) {
        self.record_if(reply, |_| true);
    }

    fn record_if(self: &Arc<Self>, reply: Reply, tells: impl FnOnce(&Gradient) -> bool) {
        // If another worker records at this moment, one sample fewer does not matter.
        let Some(gradient) = &self.gradient else { return };
        let Ok(mut gradient) = gradient.try_lock() else { return };
        if !tells(&gradient) {
            return;
        }
        let sample = Sample {
            now: clock::monotonic().saturating_duration_since(self.created),
            reply,
            in_flight: self.in_flight.load(Ordering::Relaxed),
            full: self.full.swap(false, Ordering::Relaxed),
        };
        if gradient.record(sample) {
            let limit = gradient.limit();
            let before = self.limit.swap(limit, Ordering::SeqCst);
            self.note_dip(gradient.is_in_dip());
            drop(gradient);
            if limit > before {
                self.serve_line();
            }
        }
    }
}

impl Place {
    /// The request is begun at a host, perhaps another one.
    pub(super) fn begin(&mut self) {
        self.complete = None;
    }

    /// What is awaited for the request may have changed. An adaptive limit is on requests that wait
    /// for their replies, so a client that takes its time to send one lends its place to others
    /// meanwhile. When it is sent, the request goes on, even beyond the limit.
    pub(super) fn note(&mut self, phase: Phase, cx: &mut Context<'_>) {
        if self.places.gradient.is_none() {
            return;
        }
        let is_slow = self.upload.awaits_slow_client(phase, cx);
        if let Some(since) = phase.awaited_since() {
            self.complete = Some(since);
            if std::mem::take(&mut self.is_lent) {
                self.places.in_flight.fetch_add(1, Ordering::SeqCst);
                self.places.uploading.fetch_sub(1, Ordering::SeqCst);
            }
        } else if is_slow
            && !self.is_lent
            && count_up_to(&self.places.uploading, self.places.settings.max)
        {
            self.is_lent = true;
            self.places.in_flight.fetch_sub(1, Ordering::SeqCst);
            self.places.serve_line();
        }
    }

    /// Whether it is held until the reply has ended, or only to its head: an adaptive limit is on
    /// what it measures, or a client that reads slowly would be taken for a slow upstream.
    pub(super) fn outlives_head(&self) -> bool {
        self.places.gradient.is_none()
    }

    /// The upstream has answered with this status. The request was complete at `sent`, if that is
    /// known.
    pub(super) fn answered(&mut self, status: StatusCode, sent: Option<Instant>) {
        self.complete = None;
        if self.places.gradient.is_none() {
            return;
        }
        match status {
            // The upstream, or what it asks, has too much to do.
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
                self.places.record(Reply::Overloaded);
            }
            status if status.is_server_error() => self.places.record(Reply::Unclear),
            _ => {
                if let Some(sent) = sent {
                    let latency = clock::monotonic().saturating_duration_since(sent);
                    self.places.record(Reply::After(latency));
                }
            }
        }
    }

    /// The upstream has not answered in time.
    pub(super) fn timed_out(&mut self) {
        self.complete = None;
        self.places.record(Reply::Overloaded);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Nobody waited for the answer any longer. It would have taken this long at least, which
        // tells something if that is more than usual.
        if let Some(complete) = self.complete {
            let waited = clock::monotonic().saturating_duration_since(complete);
            let tells = |gradient: &Gradient| gradient.base().is_some_and(|base| waited > base * 2);
            self.places.record_if(Reply::After(waited), tells);
        }
        if let Some(key) = self.counted {
            locked(&self.places.line).ended(key);
        }
        if let Some(number) = self.beyond_in {
            let mut dip = locked(&self.places.dip);
            if dip.number == number {
                dip.beyond -= 1;
            }
        }
        if self.is_lent {
            self.places.uploading.fetch_sub(1, Ordering::SeqCst);
        } else {
            self.places.in_flight.fetch_sub(1, Ordering::SeqCst);
            self.places.serve_line();
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut line = locked(&self.places.line);
        // Its sender is dropped after the lock.
        let gone = line.leave(self.id);
        self.places.waiting.store(line.len(), Ordering::SeqCst);
        drop(line);
        drop(gone);
    }
}

/// Adds one if fewer than `most` are counted.
fn count_up_to(count: &AtomicUsize, most: usize) -> bool {
    let more = |count: usize| (count < most).then_some(count + 1);
    count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::task::{Poll, Waker};
    use std::time::Duration;

    use super::*;

    fn places(adaptive: bool) -> Arc<Places> {
        let max_wait = Duration::from_millis(50);
        let settings = Concurrency { adaptive, min: 2, max: 40, queue: 64, max_wait };
        Places::new("api", &settings, &Metrics::new(1), None)
    }

    fn sender(priority: u8, fair_key: u64) -> Sender<'static> {
        Sender { priority, fair_key, ..Sender::default() }
    }

    /// As if this many were under way, and no more might be but for a dip.
    fn busy(places: &Arc<Places>, in_flight: usize, limit: usize) -> Vec<Place> {
        places.in_flight.store(in_flight, Ordering::SeqCst);
        places.limit.store(limit, Ordering::SeqCst);
        (0..in_flight).map(|_| places.place(None)).collect()
    }

    /// How many of those with `urgent` priorities get a place while nobody is let through and
    /// others, with the priority `others`, come again and again.
    async fn passed(places: &Arc<Places>, urgent: &[u8], others: Option<u8>) -> Vec<u8> {
        let others = async {
            let Some(priority) = others else { return std::future::pending().await };
            loop {
                let all =
                    (0..8).map(|key| async move { places.acquire(&sender(priority, key)).await });
                for other in futures_util::future::join_all(all).await {
                    assert!(other.is_err(), "nobody of them is let through");
                }
            }
        };
        let urgent = urgent.iter().zip(100..).map(|(priority, key)| async move {
            let place = places.acquire(&sender(*priority, key)).await;
            place.map(|place| (*priority, place))
        });
        tokio::select! {
            () = others => unreachable!(),
            all = futures_util::future::join_all(urgent) => {
                let all: Vec<(u8, Place)> = all.into_iter().flatten().collect();
                all.into_iter().map(|(priority, _)| priority).collect()
            }
        }
    }

    fn is_empty(places: &Places) -> bool {
        let line = locked(&places.line);
        let counts = [&places.in_flight, &places.uploading, &places.waiting];
        counts.iter().all(|count| count.load(Ordering::SeqCst) == 0)
            && locked(&places.dip).beyond == 0
            && line.is_empty()
            && line.knows_nobody()
    }

    #[tokio::test]
    async fn while_the_limit_dips_the_urgent_are_not_turned_away_before_others() {
        for (limit, most) in [(6, 1), (16, 2), (24, 3)] {
            let places = places(true);
            let held = busy(&places, 30, limit);
            places.note_dip(true);
            // As many more as an eighth of the limit, and no further one.
            let passed = passed(&places, &[7; 5], Some(4)).await;
            assert_eq!(passed.len(), most, "{limit}");
            drop(held);
            assert!(is_empty(&places));
        }
    }

    #[tokio::test]
    async fn nobody_passes_a_dip_before_those_with_a_higher_priority() {
        // Whoever's time is up first.
        for urgent in [[5, 6, 7], [7, 6, 5]] {
            let places = places(true);
            let _held = busy(&places, 30, 6);
            places.note_dip(true);
            assert_eq!(passed(&places, &urgent, Some(4)).await, [7]);
        }
    }

    #[tokio::test]
    async fn only_the_urgent_pass_and_only_a_dip_and_only_before_others() {
        for (urgent, others, is_in_dip) in
            [(4, Some(0), true), (7, None, true), (7, Some(4), false)]
        {
            let places = places(true);
            let _held = busy(&places, 30, 16);
            places.note_dip(is_in_dip);
            assert_eq!(passed(&places, &[urgent], others).await, [0; 0], "{urgent} {others:?}");
        }
    }

    #[tokio::test]
    async fn what_one_dip_let_through_is_not_held_against_the_next() {
        let places = places(true);
        let held = busy(&places, 30, 6);
        places.note_dip(true);
        let first = places.count_beyond().unwrap();
        assert_eq!(places.count_beyond(), None);
        places.note_dip(false);
        assert_eq!(places.count_beyond(), None);
        places.note_dip(true);
        let second = places.count_beyond().unwrap();
        for beyond_in in [Some(first), Some(second)] {
            let mut place = places.place(None);
            place.beyond_in = beyond_in;
        }
        drop(held);
        assert!(is_empty(&places));
    }

    /// Until the place of an upload whose client is awaited is lent to others, or is not to be.
    async fn await_client(place: &mut Place) {
        std::future::poll_fn(|cx| {
            place.note(Phase::AwaitingClient, cx);
            if place.upload.is_slow() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    #[tokio::test]
    async fn a_slow_upload_lends_its_place_until_it_is_complete() {
        let places = places(true);
        let held = busy(&places, 3, 4);
        let mut place = places.acquire(&sender(4, 1)).await.unwrap();
        assert!(places.acquire(&sender(4, 2)).await.is_err());
        await_client(&mut place).await;
        // A client that leaves now has waited for nobody.
        assert!(place.complete.is_none());
        let other = places.acquire(&sender(4, 2)).await.unwrap();
        let mut cx = Context::from_waker(Waker::noop());
        place.note(Phase::AwaitingReply(clock::monotonic()), &mut cx);
        assert!(place.complete.is_some());
        assert_eq!(places.status().in_flight, 5, "beyond the limit");
        drop(place);
        let mut place = places.place(None);
        places.in_flight.fetch_add(1, Ordering::SeqCst);
        await_client(&mut place).await;
        drop((held, place, other));
        assert!(is_empty(&places));
    }

    #[tokio::test]
    async fn places_are_lent_by_adaptive_limits_only_and_no_more_than_the_highest() {
        for (adaptive, lent) in [(true, 40), (false, 0)] {
            let places = places(adaptive);
            let mut held = busy(&places, 42, 40);
            for place in &mut held {
                if adaptive {
                    await_client(place).await;
                } else {
                    place.note(Phase::AwaitingClient, &mut Context::from_waker(Waker::noop()));
                }
            }
            assert_eq!(places.status().in_flight, 42 - lent, "{adaptive}");
            drop(held);
            assert!(is_empty(&places));
        }
    }

    #[tokio::test]
    async fn neither_a_fixed_limit_nor_the_highest_is_ever_exceeded() {
        for (adaptive, in_flight) in [(false, 39), (true, 40)] {
            let places = places(adaptive);
            let held = busy(&places, in_flight, 16);
            places.note_dip(adaptive);
            assert_eq!(passed(&places, &[7], Some(4)).await, [0; 0], "{adaptive}");
            drop(held);
            assert!(is_empty(&places));
        }
    }
}
