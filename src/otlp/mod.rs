//! Exports traces of requests, and the metrics that `/metrics` shows, to an OpenTelemetry collector
//! (OTLP/HTTP with protobuf). Knows spans, and no requests.
//!
//! Requests only hand over what is finished ([`Tracer::push`]). A thread of its own encodes and
//! sends it. Everything in between is bounded, and what does not fit is dropped and counted, so a
//! collector that is slow or away costs requests nothing. `context` reads and writes `traceparent`,
//! `span` is what is handed over and `buffer` where it waits, `encode` and `schema` make messages
//! of it, `collector` sends them, and `export` decides when. `settings` is what is configured.

mod buffer;
mod collector;
mod context;
mod encode;
mod export;
mod schema;
mod settings;
mod span;

use std::fmt;
use std::io;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::clock::Clock;
use crate::telemetry::{CounterSet, Label as _, Metrics, labels, names};

pub use buffer::{Sampling, Tracer};
pub use collector::Collector;
pub use context::{SpanId, TraceId, TraceParent};
pub use settings::{Header, Settings};
pub use span::{Kind, Span, Trace, Value};

/// How long the end of the process waits at most for the last export.
const FINISH_MAX: Duration = Duration::from_secs(2);

labels! {
    /// What is exported: a metric's label.
    enum Signal {
        Traces = "traces",
        Metrics = "metrics",
    }
}

labels! {
    /// How an export ended: a metric's label.
    enum ExportEnd {
        Accepted = "accepted",
        Failed = "failed",
    }
}

/// The export of one process, which outlives its configurations.
#[derive(Debug)]
pub struct Otlp {
    shared: Arc<Shared>,
    /// None until something is exported for the first time.
    exporter: Mutex<Option<Exporter>>,
}

/// What the exporter's thread uses.
struct Shared {
    tracer: Tracer,
    metrics: Metrics,
    clock: Clock,
    /// When the process began to count, in microseconds since 1970.
    started_us: i64,
    /// Tells this process from others of the same service.
    instance: String,
    /// Counts of ended exports, by signal.
    ended: Box<[CounterSet<ExportEnd>]>,
    dropped: CounterSet<Signal>,
}

/// The thread that exports.
#[derive(Debug)]
struct Exporter {
    collector: watch::Sender<Option<Arc<Collector>>>,
    /// Closed when the thread has ended.
    ended: Receiver<()>,
}

impl Otlp {
    /// Exports nothing until [`apply`](Self::apply).
    #[must_use]
    pub fn new(workers: usize, metrics: &Metrics, clock: &Clock) -> Self {
        let dropped = metrics.counters(names::OTLP_DROPPED, &[]);
        let of_traces = metrics.counter(names::OTLP_DROPPED, &[Signal::Traces.label()]);
        let ended = |signal: &Signal| metrics.counters(names::OTLP_EXPORTS, &[signal.label()]);
        let shared = Shared {
            tracer: Tracer::new(workers, of_traces),
            metrics: metrics.clone(),
            clock: clock.clone(),
            started_us: clock.wall_us(),
            instance: instance(),
            ended: Signal::ALL.iter().map(ended).collect(),
            dropped,
        };
        Self { shared: Arc::new(shared), exporter: Mutex::default() }
    }

    /// Where requests hand over their traces.
    #[must_use]
    pub fn tracer(&self) -> Tracer {
        self.shared.tracer.clone()
    }

    /// Exports to this collector from now on. What is still buffered goes to the previous one.
    ///
    /// # Errors
    /// The thread can't be started. Nothing is exported then.
    pub fn apply(&self, collector: Option<&Arc<Collector>>) -> io::Result<()> {
        let sampling = collector.and_then(|collector| collector.sampling());
        if sampling.is_none() {
            // Before the exporter takes what is left, or a later collector would get the rest.
            self.shared.tracer.apply(None);
        }
        let mut exporter = self.exporter.lock().unwrap_or_else(PoisonError::into_inner);
        if exporter.is_none() && collector.is_some() {
            *exporter = Some(Exporter::start(&self.shared)?);
        }
        if let Some(exporter) = &*exporter {
            exporter.collector.send_if_modified(|current| {
                let same = match (current.as_ref(), collector) {
                    (Some(current), Some(next)) => Arc::ptr_eq(current, next),
                    (current, next) => current.is_none() && next.is_none(),
                };
                if !same {
                    *current = collector.cloned();
                }
                !same
            });
        }
        self.shared.tracer.apply(sampling);
        Ok(())
    }

    /// Exports what is waiting, and the metrics one last time, if that does not take long.
    pub fn finish(&self) {
        let exporter = self.exporter.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Exporter { collector, ended }) = exporter {
            drop(collector);
            // Always an error: the thread has ended (disconnected), or takes too long (timeout).
            let _ = ended.recv_timeout(FINISH_MAX);
        }
    }
}

impl Exporter {
    fn start(shared: &Arc<Shared>) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (collector, collectors) = watch::channel(None);
        let (ending, ended) = channel();
        let shared = Arc::clone(shared);
        let export = move || {
            runtime.block_on(export::run(&shared, collectors));
            // Dropping the runtime would wait for a DNS lookup in progress.
            runtime.shutdown_background();
            drop(ending);
        };
        std::thread::Builder::new().name("weir-otlp".into()).spawn(export)?;
        Ok(Self { collector, ended })
    }
}

/// A random UUID (RFC 9562, version 4).
fn instance() -> String {
    let random = fastrand::u128(..);
    let uuid = random & !(0xf << 76) & !(0b11 << 62) | 4 << 76 | 0b10 << 62;
    let digits = format!("{uuid:032x}");
    let groups = [0..8, 8..12, 12..16, 16..20, 20..32];
    groups.map(|range| digits.get(range).unwrap_or_default()).join("-")
}

impl fmt::Debug for Shared {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Shared").field("tracer", &self.tracer).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Wake, Waker};

    use super::*;

    /// Notes what is traced at the moment when it is woken.
    struct SamplingRecorder {
        tracer: Tracer,
        seen: Mutex<Option<Option<Sampling>>>,
    }

    impl Wake for SamplingRecorder {
        fn wake(self: Arc<Self>) {
            *self.seen.lock().unwrap() = Some(self.tracer.sampling());
        }
    }

    #[test]
    fn nothing_is_traced_any_more_when_the_exporter_hears_of_the_end() {
        let otlp = Otlp::new(1, &Metrics::new(1), &Clock::system());
        let settings = Settings { metrics: false, ..Settings::default() };
        let collector = Arc::new(Collector::build(&settings).unwrap());
        otlp.apply(Some(&collector)).unwrap();
        let tracer = otlp.tracer();
        assert!(tracer.sampling().is_some());
        let noting = Arc::new(SamplingRecorder { tracer, seen: Mutex::default() });
        let waker = Waker::from(Arc::clone(&noting));
        let mut heard = otlp.exporter.lock().unwrap().as_ref().unwrap().collector.subscribe();
        let mut changed = pin!(heard.changed());
        // The sender wakes it itself, before `apply` goes on.
        assert!(changed.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        otlp.apply(None).unwrap();
        assert_eq!(*noting.seen.lock().unwrap(), Some(None));
    }

    #[test]
    fn each_process_has_an_id_of_its_own() {
        let (one, other) = (instance(), instance());
        assert_ne!(one, other);
        assert_eq!((one.len(), one.as_bytes()[14]), (36, b'4'), "{one}");
        assert!("89ab".contains(char::from(one.as_bytes()[19])), "{one}");
    }
}
