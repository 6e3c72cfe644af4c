//! Counts the messages of a WebSocket, and takes units for those of the client before they are
//! passed on. Knows no connection.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use super::frames::{Frames, begins_message};
use crate::clock;
use crate::limit::{ExtraTakes, Grant, Take};
use crate::plan::{Limit, PlanOutcome};
use crate::policy::MessageExcess;
use crate::wire::Timer;

/// The shortest wait of a message.
const WAIT_MIN: Duration = Duration::from_millis(10);
/// A wait is so much longer at most, as a part of it: many connections may wait for one limit.
const WAIT_JITTER: f64 = 0.25;

/// How many messages there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::proxy) struct MessageCounts {
    pub(in crate::proxy) up: u64,
    pub(in crate::proxy) down: u64,
}

/// Why a message is not passed on, and the tunnel ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Excess {
    /// A limit has no unit for it.
    Limit,
    /// A limit's counter can't be reached.
    Store,
    /// The client's frames are not those of RFC 6455, so that its messages can't be told apart.
    Protocol,
}

impl Excess {
    /// The code and reason of the close frame (RFC 6455, section 7.4.1, and IANA's registry).
    pub(super) fn close(self) -> (u16, &'static str) {
        match self {
            Self::Limit => (1008, "too many messages"),
            Self::Store => (1013, "try again later"),
            Self::Protocol => (1002, "protocol error"),
        }
    }
}

/// What the messages of a tunnel's client are held to.
pub(in crate::proxy) struct MessageLimits {
    /// Those that a message is charged to, and what happens where one refuses.
    limits: Vec<(Limit, MessageExcess)>,
    takes: ExtraTakes,
    /// Settles what was taken for a message.
    on_grant: Box<dyn Fn(Grant) + Send>,
    /// The longest wait for one message.
    wait_max: Duration,
    state: State,
}

enum State {
    /// The next message has no units yet, and nobody has asked for any.
    Idle,
    Taking(Pin<Box<dyn Future<Output = Take> + Send>>),
    Waiting(Timer, Instant),
    /// The next message has its units.
    Taken,
}

impl fmt::Debug for MessageLimits {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("MessageLimits").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl MessageLimits {
    /// Takes of `limits` for each message. Where they refuse, it waits for `wait_max` at most.
    pub(in crate::proxy) fn new(
        limits: Vec<(Limit, MessageExcess)>,
        takes: ExtraTakes,
        wait_max: Duration,
        on_grant: Box<dyn Fn(Grant) + Send>,
    ) -> Self {
        Self { limits, takes, on_grant, wait_max, state: State::Idle }
    }

    /// Ready when the next message has its units.
    fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Excess>> {
        loop {
            match &mut self.state {
                State::Idle => self.state = State::Taking(Box::pin(self.takes.take())),
                State::Waiting(timer, _) => {
                    ready!(timer.poll(cx));
                    self.state = State::Idle;
                }
                State::Taken => return Poll::Ready(Ok(())),
                State::Taking(taking) => match ready!(taking.as_mut().poll(cx)) {
                    Take::Granted(_, grant) => {
                        (self.on_grant)(grant);
                        self.state = State::Taken;
                    }
                    Take::Refused(outcome) => {
                        let Some(wait) = self.wait(&outcome) else {
                            return Poll::Ready(Err(Excess::Limit));
                        };
                        let mut timer = Timer::default();
                        let until = clock::monotonic()
                            + wait.max(WAIT_MIN).mul_f64(1.0 + WAIT_JITTER * fastrand::f64());
                        timer.arm(until);
                        self.state = State::Waiting(timer, until);
                    }
                    Take::Unavailable(_) => return Poll::Ready(Err(Excess::Store)),
                },
            }
        }
    }

    /// How long a refused message waits. `None` if a limit that refuses it wants none to wait, if
    /// waiting can't help, or if the wait would be too long.
    fn wait(&self, outcome: &PlanOutcome) -> Option<Duration> {
        let mut longest = Duration::ZERO;
        for ((limit, excess), outcome) in self.limits.iter().zip(&outcome.limits) {
            if outcome.fits || !limit.is_enforced() {
                continue;
            }
            if *excess == MessageExcess::Close {
                return None;
            }
            longest = longest.max(Duration::from_micros(outcome.retry_after_us?));
        }
        (longest <= self.wait_max).then_some(longest)
    }
}

/// Lets the bytes of one direction pass, as far as they may.
#[derive(Debug, Default)]
pub(super) struct Gate {
    frames: Frames,
    pub(super) messages: u64,
    limits: Option<MessageLimits>,
    /// No frame is begun any more.
    closing: bool,
}

impl Gate {
    pub(super) fn new(limits: Option<MessageLimits>) -> Self {
        let frames = if limits.is_some() { Frames::of_client() } else { Frames::default() };
        Self { frames, limits, ..Self::default() }
    }

    /// Until when a message waits, if one does.
    pub(super) fn waits_until(&self) -> Option<Instant> {
        match self.limits.as_ref()?.state {
            State::Waiting(_, until) => Some(until),
            _ => None,
        }
    }

    /// How many of the bytes `ahead`, which follow those that passed, may pass now: at least one.
    /// Never ready between frames once it is closing.
    pub(super) fn poll_pass(
        &mut self,
        ahead: &[u8],
        cx: &mut Context<'_>,
    ) -> Poll<Result<usize, Excess>> {
        let Self { frames, messages, limits, closing } = self;
        loop {
            let read = frames.read(ahead, |first| {
                if *closing {
                    return true;
                }
                if begins_message(first) {
                    match limits.as_mut().map(|limits| &mut limits.state) {
                        Some(taken @ State::Taken) => *taken = State::Idle,
                        Some(_) => return true,
                        None => {}
                    }
                    *messages += 1;
                }
                false
            });
            match limits {
                _ if read > 0 => return Poll::Ready(Ok(read)),
                _ if frames.are_broken() => return Poll::Ready(Err(Excess::Protocol)),
                Some(limits) if !*closing => ready!(limits.poll_take(cx))?,
                _ => return Poll::Pending,
            }
        }
    }

    /// Begins no more frames.
    pub(super) fn close(&mut self) {
        self.closing = true;
    }

    /// Whether nothing of a frame has passed whose rest is missing.
    pub(super) fn is_between_frames(&self) -> bool {
        self.frames.is_between()
    }
}
