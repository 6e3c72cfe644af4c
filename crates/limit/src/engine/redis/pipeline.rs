//! One worker's connection to one node. A task reads and writes it: what calls append between two
//! of its turns goes out in one write, and replies are matched by their order.
//!
//! A node that stops answering is **away**: calls to it fail at once, while the task keeps trying
//! to connect. Its handshake is the probe that ends this. Nothing here is shared with other nodes,
//! so a node that freezes holds up nobody else's calls.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use ::redis::Value;
use tokio::io::ReadBuf;
use tokio::sync::watch as version;
use tokio::time::{Sleep, sleep, timeout_at};

use super::calls::{Calls, Time};
use super::connector::{Connector, OpenError, Stream};
use super::resp::{self, ReplyScan};
use crate::clock;
use crate::engine::{Cause, EngineError, Execution};

/// Maximum number of open calls on one connection, and of calls that wait for one. More are
/// refused.
const IN_FLIGHT_MAX: usize = 4_096;
/// After this many calls in a row without an answer in time, the node is away.
const TIMEOUTS_MAX: usize = 3;
/// A call that has less than the deadline divided by this says nothing about the node.
const SHORT_SHARE: u32 = 4;
/// Pause after the first failed attempt to connect. Each further one doubles it ...
const RETRY_MIN: Duration = Duration::from_millis(100);
/// ... up to this.
const RETRY_MAX: Duration = Duration::from_millis(400);
/// Attempts go on for this long after the last call.
const RETRY_FOR: Duration = Duration::from_secs(3);
/// How many times within a deadline the calls are searched for those whose time is over ...
const TICKS: u32 = 16;
/// ... and the longest and shortest time between two searches.
const TICK_MS: (u64, u64) = (1, 25);
/// The input buffer's size, which grows for longer replies.
const INPUT_BYTES: usize = 4 << 10;

/// A connection to a node, opened by the first call.
pub(super) struct Pipeline {
    connector: Arc<Connector>,
    address: Arc<str>,
    state: Mutex<State>,
    /// Changes with the stage.
    changed: version::Sender<u64>,
}

#[derive(Default)]
struct State {
    stage: Stage,
    calls: Calls,
    /// Calls that wait for the connection.
    connecting: usize,
    /// Calls in a row that had no answer in time.
    timeouts: usize,
    /// Nothing more is sent, and the task ends as soon as nobody waits.
    is_retired: bool,
    driver: Option<Waker>,
    /// When a call last found the node away.
    asked: Option<Instant>,
    /// The node answers that it can't serve. Until then nobody asks again.
    rests: Option<(Instant, Cause)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// No connection. The next call has one opened, and waits for it.
    #[default]
    Idle,
    Connecting,
    Open,
    Away(Cause),
    Closed,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The node closed it, or it broke.
    Lost,
    /// The node stopped answering, or can't serve.
    Away(Cause),
    /// Nobody needs it any more.
    Unused,
}

/// What became of an attempt to make a call.
enum CallStart {
    Call(usize),
    /// Wait until the stage changes.
    Wait(version::Receiver<u64>),
}

impl Pipeline {
    pub(super) fn new(connector: Arc<Connector>, address: Arc<str>) -> Self {
        Self { connector, address, state: Mutex::default(), changed: version::Sender::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls the node: `write` appends the command. Ends by `until`, give or take a tick. An error
    /// reply is a reply.
    pub(super) async fn call(
        self: &Arc<Self>,
        until: Instant,
        asking: bool,
        write: impl Fn(&mut Vec<u8>),
    ) -> Result<Value, EngineError> {
        loop {
            match self.begin(until, asking, &write)? {
                CallStart::Call(id) => return Call { pipeline: self, id }.await,
                CallStart::Wait(mut changed) => {
                    let _waits = ConnectionWait::begin(self)?;
                    let until = tokio::time::Instant::from_std(until);
                    // The sender lives as long as `self`.
                    if timeout_at(until, changed.changed()).await.is_err() {
                        return Err(not_run(Cause::Timeout));
                    }
                }
            }
        }
    }

    fn begin(
        self: &Arc<Self>,
        until: Instant,
        asking: bool,
        write: impl Fn(&mut Vec<u8>),
    ) -> Result<CallStart, EngineError> {
        let mut state = self.lock();
        match state.stage {
            Stage::Open => {
                if let Some((end, cause)) = state.rests {
                    if clock::monotonic() < end {
                        return Err(not_run(cause));
                    }
                    state.rests = None;
                }
                if state.calls.open() >= IN_FLIGHT_MAX {
                    return Err(not_run(Cause::Overload));
                }
                let now = clock::monotonic();
                // What was left of a decision with several calls. A look has half of it.
                let is_short = until < now + self.connector.deadline / SHORT_SHARE;
                if until <= now {
                    return Err(not_run(Cause::Timeout));
                }
                let id = state.calls.push(Time { until, is_short }, asking, write);
                let driver = state.driver.take();
                drop(state);
                if let Some(driver) = driver {
                    driver.wake();
                }
                Ok(CallStart::Call(id))
            }
            Stage::Away(cause) => {
                state.asked = Some(clock::monotonic());
                Err(not_run(cause))
            }
            Stage::Closed => Err(not_run(Cause::Connection)),
            Stage::Idle if state.is_retired => Err(not_run(Cause::Connection)),
            Stage::Connecting => Ok(CallStart::Wait(self.changed.subscribe())),
            Stage::Idle => {
                state.stage = Stage::Connecting;
                let changed = self.changed.subscribe();
                drop(state);
                tokio::spawn(run(PipelineTask(Arc::clone(self))));
                Ok(CallStart::Wait(changed))
            }
        }
    }

    /// Makes calls fail at once with `cause` for `span`: the node answers that it can't serve.
    pub(super) fn rest(&self, cause: Cause, span: Duration) {
        self.lock().rests = Some((clock::monotonic() + span, cause));
    }

    /// Leaves the node for the one that its address leads to now: calls fail at once with `cause`
    /// until there is a new connection, which is opened when nobody waits for a reply any more.
    pub(super) fn leave(&self, cause: Cause) {
        let mut state = self.lock();
        if state.stage == Stage::Open {
            state.asked = Some(clock::monotonic());
            state.stage = Stage::Away(cause);
        }
        self.wake(state);
    }

    /// Closes the connection as soon as nobody waits for a reply on it. No call may follow.
    pub(super) fn retire(&self) {
        let mut state = self.lock();
        state.is_retired = true;
        self.wake(state);
    }

    /// Closes the connection now, for good.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.stage = Stage::Closed;
        state.calls.end();
        self.wake(state);
        self.changed.send_modify(|version| *version += 1);
    }

    /// Wakes the task, and the calls that have ended.
    fn wake(&self, mut state: MutexGuard<'_, State>) {
        let (woken, driver) = (state.calls.woken(), state.driver.take());
        drop(state);
        woken.into_iter().chain(driver).for_each(Waker::wake);
    }

    /// Changes the stage unless the pipeline is closed, and returns whether it was not.
    fn set(&self, stage: Stage) -> bool {
        let mut state = self.lock();
        let closed = state.stage == Stage::Closed;
        if !closed {
            state.stage = stage;
            (state.timeouts, state.rests) = (0, None);
            if stage != Stage::Open {
                state.calls.end();
            }
        }
        self.wake(state);
        self.changed.send_modify(|version| *version += 1);
        !closed
    }

    /// An attempt to connect has failed. Returns whether to try again.
    fn set_away(&self, cause: Cause) -> bool {
        let mut state = self.lock();
        let now = clock::monotonic();
        let goes_on =
            !state.is_retired && now.duration_since(*state.asked.get_or_insert(now)) < RETRY_FOR;
        if !goes_on {
            state.asked = None;
        }
        drop(state);
        self.set(if goes_on { Stage::Away(cause) } else { Stage::Idle }) && goes_on
    }
}

fn not_run(cause: Cause) -> EngineError {
    EngineError { cause, ran: Execution::No }
}

/// A call in flight. It is forgotten when it is dropped.
struct Call<'p> {
    pipeline: &'p Pipeline,
    id: usize,
}

impl Future for Call<'_> {
    type Output = Result<Value, EngineError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = self.pipeline.lock().calls.poll(self.id, cx);
        if outcome.is_ready() {
            self.get_mut().id = usize::MAX;
        }
        outcome
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if self.id != usize::MAX {
            self.pipeline.lock().calls.abandon(self.id);
        }
    }
}

/// A call that waits for the connection, counted.
struct ConnectionWait<'p>(&'p Pipeline);

impl<'p> ConnectionWait<'p> {
    fn begin(pipeline: &'p Pipeline) -> Result<Self, EngineError> {
        let mut state = pipeline.lock();
        if state.connecting >= IN_FLIGHT_MAX {
            return Err(not_run(Cause::Overload));
        }
        state.connecting += 1;
        Ok(Self(pipeline))
    }
}

impl Drop for ConnectionWait<'_> {
    fn drop(&mut self) {
        self.0.lock().connecting -= 1;
    }
}

/// The task of a pipeline. When it ends, in whatever way, so does its connection.
struct PipelineTask(Arc<Pipeline>);

impl Drop for PipelineTask {
    fn drop(&mut self) {
        self.0.set(Stage::Idle);
    }
}

/// Connects, serves the connection until it ends, and connects again while calls need it.
async fn run(running: PipelineTask) {
    let pipeline = &running.0;
    let (mut pause, mut is_probe) = (RETRY_MIN, false);
    loop {
        match pipeline.connector.open(&pipeline.address, is_probe).await {
            Ok(stream) => {
                if !pipeline.set(Stage::Open) {
                    return;
                }
                pause = RETRY_MIN;
                let mut driver = Driver::new(stream, pipeline.connector.deadline);
                match std::future::poll_fn(|cx| driver.poll(pipeline, cx)).await {
                    End::Lost | End::Unused => return,
                    End::Away(cause) => is_probe = pipeline.set_away(cause),
                }
                if !is_probe {
                    return;
                }
            }
            Err(OpenError { cause, why, .. }) => {
                tracing::debug!(node = &*pipeline.address, %why, "no connection to Redis");
                pipeline.connector.outages.explain(&pipeline.address, why);
                if !pipeline.set_away(cause) {
                    return;
                }
                sleep(pause).await;
                pause = RETRY_MAX.min(pause * 2);
            }
        }
    }
}

/// Reads and writes one connection.
struct Driver {
    stream: Stream,
    input: Vec<u8>,
    /// How much of `input` was received and not yet parsed.
    filled: usize,
    scan: ReplyScan,
    is_flushed: bool,
    tick: Pin<Box<Sleep>>,
    tick_every: Duration,
    ticks: bool,
}

impl Driver {
    fn new(stream: Stream, deadline: Duration) -> Self {
        let [shortest, longest] = [TICK_MS.0, TICK_MS.1].map(Duration::from_millis);
        Self {
            stream,
            input: vec![0; INPUT_BYTES],
            filled: 0,
            scan: ReplyScan::default(),
            is_flushed: true,
            tick: Box::pin(sleep(longest)),
            tick_every: (deadline / TICKS).clamp(shortest, longest),
            ticks: false,
        }
    }

    fn poll(&mut self, pipeline: &Pipeline, cx: &mut Context<'_>) -> Poll<End> {
        let mut state = pipeline.lock();
        let end = self.advance(&mut state, cx);
        if end.is_none() {
            state.driver = Some(cx.waker().clone());
        }
        let woken = state.calls.woken();
        drop(state);
        woken.into_iter().for_each(Waker::wake);
        end.map_or(Poll::Pending, Poll::Ready)
    }

    /// Writes and reads as much as possible without waiting. Returns how the connection ended, if
    /// it has.
    fn advance(&mut self, state: &mut State, cx: &mut Context<'_>) -> Option<End> {
        if state.stage == Stage::Closed {
            return Some(End::Unused);
        }
        if self.write(state, cx).is_err() || self.read(state, cx).is_err() {
            return Some(End::Lost);
        }
        self.expire(state, cx);
        let nobody_waits = state.calls.waiting() == 0 && state.connecting == 0;
        if let Stage::Away(cause) = state.stage
            && nobody_waits
        {
            return Some(End::Away(cause));
        }
        (state.is_retired && nobody_waits).then_some(End::Unused)
    }

    fn write(&mut self, state: &mut State, cx: &mut Context<'_>) -> std::io::Result<()> {
        while !state.calls.unwritten().is_empty() {
            match self.stream.as_mut().poll_write(cx, state.calls.unwritten()) {
                Poll::Ready(Ok(0)) => return Err(std::io::ErrorKind::WriteZero.into()),
                Poll::Ready(bytes) => state.calls.wrote(bytes?),
                Poll::Pending => break,
            }
            self.is_flushed = false;
        }
        // TLS keeps what the socket did not take.
        if !self.is_flushed
            && let Poll::Ready(flushed) = self.stream.as_mut().poll_flush(cx)
        {
            flushed?;
            self.is_flushed = true;
        }
        Ok(())
    }

    fn read(&mut self, state: &mut State, cx: &mut Context<'_>) -> std::io::Result<()> {
        loop {
            if self.filled == self.input.len() {
                self.input.resize(self.input.len() * 2, 0);
            }
            let mut free = ReadBuf::new(self.input.get_mut(self.filled..).unwrap_or_default());
            match self.stream.as_mut().poll_read(cx, &mut free) {
                Poll::Pending => return Ok(()),
                Poll::Ready(read) => read?,
            }
            if free.filled().is_empty() {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            self.filled += free.filled().len();
            self.parse(state)?;
        }
    }

    /// Gives the replies that were received to their calls.
    fn parse(&mut self, state: &mut State) -> std::io::Result<()> {
        let mut parsed = 0;
        let received = self.input.get(..self.filled).unwrap_or_default();
        while let Some(rest) = received.get(parsed..).filter(|rest| !rest.is_empty()) {
            let Some(length) = self.scan.end(rest).map_err(std::io::Error::other)? else { break };
            let reply = rest.get(..length).unwrap_or_default();
            parsed += length;
            // A push message answers no call.
            if reply.first() == Some(&b'>') {
                continue;
            }
            let reply = resp::parse(reply).map_err(std::io::Error::other)?;
            let in_time = state
                .calls
                .answer(reply)
                .ok_or_else(|| std::io::Error::other("an unsolicited reply"))?;
            if in_time {
                state.timeouts = 0;
                // It was slow for a moment. One that was left for another reason stays so.
                if state.stage == Stage::Away(Cause::Timeout) {
                    state.stage = Stage::Open;
                }
            }
        }
        self.input.copy_within(parsed..self.filled, 0);
        self.filled -= parsed;
        if self.filled == 0 && self.input.len() > INPUT_BYTES {
            self.input = vec![0; INPUT_BYTES];
        }
        Ok(())
    }

    /// Ends the calls whose time is over. Too many of them, and the node is away.
    fn expire(&mut self, state: &mut State, cx: &mut Context<'_>) {
        loop {
            if self.ticks {
                if self.tick.as_mut().poll(cx).is_pending() {
                    return;
                }
                self.ticks = false;
                state.timeouts += state.calls.expire(clock::monotonic());
                if state.timeouts >= TIMEOUTS_MAX && state.stage == Stage::Open {
                    state.asked = Some(clock::monotonic());
                    state.stage = Stage::Away(Cause::Timeout);
                }
            }
            if state.calls.waiting() == 0 {
                return;
            }
            let next = tokio::time::Instant::from_std(clock::monotonic() + self.tick_every);
            self.tick.as_mut().reset(next);
            self.ticks = true;
        }
    }
}
