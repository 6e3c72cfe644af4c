//! When traces and metrics are exported, and what becomes of an export that fails. Each signal has
//! at most one request under way, so that one that hangs does not hold up the other.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::sleep;

use super::collector::{Collector, ExportError, ExportReply, RetryAdvice};
use super::encode::{Anchor, Batch, Encoder};
use super::{ExportEnd, Shared, Signal};
use crate::clock;
use crate::telemetry::Label as _;

/// How long a finished trace waits for others.
const FLUSH_EVERY: Duration = Duration::from_secs(1);
/// The wait before an export is tried again the first time. It doubles each time.
const RETRY_FIRST: Duration = Duration::from_secs(1);
/// Maximum of that wait, and so how late a collector that is back is noticed, unless it named
/// another wait.
const RETRY_WAIT_MAX: Duration = Duration::from_secs(5);
/// A batch is tried for this long, and then dropped in favour of later ones.
const RETRY_FOR_MAX: Duration = Duration::from_secs(30);

type Collectors = watch::Receiver<Option<Arc<Collector>>>;

/// Exports until the sender of `collectors` is dropped, and then what is left.
pub(super) async fn run(shared: &Shared, mut collectors: Collectors) {
    loop {
        let current = collectors.borrow_and_update().clone();
        if let Some(collector) = current {
            let export = Export::new(shared, collector);
            tokio::join!(
                export.traces(InterruptibleWait::changed(&collectors)),
                export.metrics(InterruptibleWait::changed(&collectors))
            );
        }
        if collectors.changed().await.is_err() {
            return;
        }
    }
}

/// The export to one collector, until the configuration names another.
struct Export<'a> {
    shared: &'a Shared,
    collector: Arc<Collector>,
    encoder: Encoder,
    told_rejected: AtomicBool,
}

/// Waits that end early when there is another collector, or the process ends.
struct InterruptibleWait {
    collectors: Collectors,
    over: bool,
}

/// How the export of one signal is going.
struct State {
    signal: Signal,
    /// Whether the collector's last answer was a failure, to log only when that changes.
    is_away: bool,
    /// An export failed after the end had begun, so nothing more is tried.
    has_given_up: bool,
}

impl State {
    fn of(signal: Signal) -> Self {
        Self { signal, is_away: false, has_given_up: false }
    }
}

impl InterruptibleWait {
    fn changed(collectors: &Collectors) -> Self {
        Self { collectors: collectors.clone(), over: false }
    }

    /// Waits for this long, or until `sooner`.
    async fn wait(&mut self, time: Duration, sooner: impl Future<Output = ()>) {
        if self.over {
            return;
        }
        let (mut time, mut sooner) = (pin!(sleep(time)), pin!(sooner));
        tokio::select! {
            () = &mut time => {}
            () = &mut sooner => {}
            _ = self.collectors.changed() => self.over = true,
        }
    }

    /// Whether there is another collector, or the process ends.
    fn is_over(&mut self) -> bool {
        self.over |= !matches!(self.collectors.has_changed(), Ok(false));
        self.over
    }
}

impl<'a> Export<'a> {
    fn new(shared: &'a Shared, collector: Arc<Collector>) -> Self {
        let settings = &collector.settings;
        let own = [
            ("service.name", settings.service.as_str()),
            ("service.version", env!("CARGO_PKG_VERSION")),
            ("service.instance.id", &shared.instance),
            ("telemetry.sdk.name", "weir"),
            ("telemetry.sdk.language", "rust"),
            ("telemetry.sdk.version", env!("CARGO_PKG_VERSION")),
        ];
        let given = settings.attributes.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        // What the operator says takes precedence.
        let is_given = |key: &str| settings.attributes.iter().any(|(given, _)| given == key);
        let own = own.into_iter().filter(|(key, _)| !is_given(key));
        let encoder = Encoder::new(own.chain(given), shared.started_us);
        Self { shared, encoder, told_rejected: AtomicBool::new(false), collector }
    }

    async fn traces(&self, mut until: InterruptibleWait) {
        if !self.collector.settings.traces {
            return;
        }
        let tracer = &self.shared.tracer;
        let mut state = State::of(Signal::Traces);
        let mut is_last = false;
        while !is_last {
            until.wait(FLUSH_EVERY, tracer.filled()).await;
            // If it ends while something is sent, what has come meanwhile is taken as well.
            is_last = until.over;
            let traces = tracer.take();
            if traces.is_empty() {
                continue;
            }
            let anchor =
                Anchor { monotonic: clock::monotonic(), wall_us: self.shared.clock.wall_us() };
            self.send_all(&mut state, self.encoder.traces(traces, anchor), &mut until).await;
        }
    }

    async fn metrics(&self, mut until: InterruptibleWait) {
        let settings = &self.collector.settings;
        if !settings.metrics {
            return;
        }
        let mut state = State::of(Signal::Metrics);
        let mut is_last = false;
        while !is_last {
            until.wait(settings.interval, std::future::pending()).await;
            is_last = until.over;
            let batches = self.encoder.metrics(&self.shared.metrics, self.shared.clock.wall_us());
            self.send_all(&mut state, batches.into_iter(), &mut until).await;
        }
    }

    /// Sends batches one after another. Once the export is over, the first failure is the last: a
    /// collector that is away must hold up neither the next one nor the end of the process.
    async fn send_all(
        &self,
        state: &mut State,
        batches: impl Iterator<Item = Batch>,
        until: &mut InterruptibleWait,
    ) {
        for batch in batches {
            if state.has_given_up {
                self.shared.dropped.add(state.signal, batch.count);
                continue;
            }
            let is_accepted = self.send(state, &batch, until).await;
            state.has_given_up = !is_accepted && until.is_over();
        }
    }

    /// Sends a batch, again if that is of use. If it is not accepted, it is dropped and counted.
    async fn send(&self, state: &mut State, batch: &Batch, until: &mut InterruptibleWait) -> bool {
        let (began, mut wait) = (clock::monotonic(), RETRY_FIRST);
        loop {
            let body = batch.body.clone();
            let sent = match state.signal {
                Signal::Traces => self.collector.post_traces(body).await,
                Signal::Metrics => self.collector.post_metrics(body).await,
            };
            let failed = match sent {
                Ok(accepted) => {
                    self.accepted(state, &accepted);
                    return true;
                }
                Err(failed) => failed,
            };
            self.failed(state, &failed);
            let Some(pause) = pause(state.signal, &failed, wait, began) else { break };
            until.wait(pause, std::future::pending()).await;
            if until.over {
                break;
            }
            wait = (wait * 2).min(RETRY_WAIT_MAX);
        }
        self.shared.dropped.add(state.signal, batch.count);
        false
    }

    fn accepted(&self, state: &mut State, accepted: &ExportReply) {
        self.count(state.signal, ExportEnd::Accepted);
        let (signal, endpoint) = (state.signal.label(), &self.collector.endpoint);
        if std::mem::replace(&mut state.is_away, false) {
            tracing::info!(signal, endpoint, "the OTLP collector accepts exports again");
        }
        if accepted.rejected == 0 {
            return;
        }
        self.shared.dropped.add(state.signal, accepted.rejected);
        if !self.told_rejected.swap(true, Ordering::Relaxed) {
            let (rejected, why) = (accepted.rejected, &accepted.message);
            tracing::warn!(
                signal,
                endpoint,
                rejected,
                why,
                "the OTLP collector rejects a part of an export; from now on this is only counted"
            );
        }
    }

    fn failed(&self, state: &mut State, failed: &ExportError) {
        self.count(state.signal, ExportEnd::Failed);
        if !std::mem::replace(&mut state.is_away, true) {
            let (signal, endpoint) = (state.signal.label(), &self.collector.endpoint);
            tracing::warn!(
                signal,
                endpoint,
                error = %failed,
                "can't export to the OTLP collector; what does not fit into the buffers is dropped and counted"
            );
        }
    }

    fn count(&self, signal: Signal, ended: ExportEnd) {
        if let Some(counters) = self.shared.ended.get(signal.index()) {
            counters.inc(ended);
        }
    }
}

/// How long to wait before a failed export is sent again. `None` if it is not. Metrics are not: the
/// next export has the same sums, and later ones.
fn pause(signal: Signal, failed: &ExportError, wait: Duration, began: Instant) -> Option<Duration> {
    let RetryAdvice::After(told) = failed.again else { return None };
    if signal == Signal::Metrics {
        return None;
    }
    // Between half and all of it, so that many proxies don't come back at once.
    let own = wait.mul_f64(0.5 + fastrand::f64() / 2.0);
    let pause = told.unwrap_or(own);
    let spent = clock::monotonic().saturating_duration_since(began);
    (spent + pause <= RETRY_FOR_MAX).then_some(pause)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use smallvec::smallvec;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::super::buffer::BUFFER_TRACES_MAX;
    use super::super::{Kind, Otlp, Sampling, Settings, Span, SpanId, Trace, TraceId};
    use super::*;
    use crate::clock::Clock;
    use crate::telemetry::{Metrics, names};

    /// A trace of two spans.
    fn trace() -> Trace {
        let now = clock::monotonic();
        let span = Span {
            id: SpanId::random(),
            parent: None,
            parent_is_remote: false,
            name: "GET api".into(),
            kind: Kind::Server,
            start: now,
            end: now,
            attributes: Vec::new(),
            failed: false,
        };
        Trace { id: TraceId::random(), spans: smallvec![span.clone(), span] }
    }

    /// Reads one request to the end of its body.
    async fn read(stream: &mut TcpStream) {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            head.push(char::from(stream.read_u8().await.unwrap()));
        }
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().unwrap())
        });
        stream.read_exact(&mut vec![0; length.unwrap()]).await.unwrap();
    }

    #[tokio::test]
    async fn once_it_is_over_the_first_failure_is_the_last() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let collector = Collector::build(&Settings { endpoint, ..Settings::default() }).unwrap();
        let metrics = Metrics::new(1);
        let shared = Otlp::new(1, &metrics, &Clock::system()).shared;
        let tracer = &shared.tracer;
        tracer.apply(Some(Sampling::of_share(1.0)));
        // More than one batch.
        (0..BUFFER_TRACES_MAX).for_each(|_| tracer.push(trace()));

        let (sender, collectors) = watch::channel(None);
        let requests = Cell::new(0);
        let serve = async {
            let mut sender = Some(sender);
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                read(&mut stream).await;
                requests.set(requests.get() + 1);
                // Before the first answer, another trace is finished, and the process ends.
                if sender.take().is_some() {
                    tracer.push(trace());
                }
                let reply = "HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\n\
                             content-length: 0\r\n\r\n";
                stream.write_all(reply.as_bytes()).await.unwrap();
            }
        };
        let export = Export::new(&shared, Arc::new(collector));
        tokio::select! {
            () = export.traces(InterruptibleWait::changed(&collectors)) => {}
            () = serve => {}
        }
        assert_eq!(requests.get(), 1);
        assert!(tracer.take().is_empty());
        let dropped = metrics.counter(names::OTLP_DROPPED, &[Signal::Traces.label()]);
        assert_eq!(dropped.get(), 2 * (BUFFER_TRACES_MAX as u64 + 1));
    }

    #[test]
    fn spans_are_sent_again_for_a_while_and_metrics_are_not() {
        let now = clock::monotonic();
        let failed = |again| ExportError { why: "x".to_owned(), again };
        let second = Duration::from_secs(1);
        let away = failed(RetryAdvice::After(None));
        let first = pause(Signal::Traces, &away, second, now).unwrap();
        assert!(first >= second / 2 && first <= second, "{first:?}");
        assert_eq!(pause(Signal::Metrics, &away, second, now), None);
        assert_eq!(pause(Signal::Traces, &failed(RetryAdvice::No), second, now), None);
        let told = failed(RetryAdvice::After(Some(7 * second)));
        assert_eq!(pause(Signal::Traces, &told, second, now), Some(7 * second));
        let long = failed(RetryAdvice::After(Some(3_600 * second)));
        assert_eq!(pause(Signal::Traces, &long, second, now), None);
        let before = now.checked_sub(RETRY_FOR_MAX).unwrap();
        assert_eq!(pause(Signal::Traces, &away, second, before), None);
    }
}
