//! A connection that was upgraded from HTTP to another protocol (mostly WebSocket): two opaque byte
//! streams, joined until both have ended. `messages` reads what passes, where a policy counts the
//! messages of a WebSocket by `frames`.
//!
//! A client asks for it (`Connection: upgrade`), the route and the limits let it pass, and the
//! upstream agrees with a real 101. Nothing is joined before that. The request is charged once, and
//! its grant is settled when the tunnel ends. `h2c` is never passed on: no limit would see the
//! requests in it.

mod frames;
mod messages;

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::Method;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::time::timeout;

use self::messages::{Excess, Gate};
use crate::clock;
use crate::proxy::receive::hop::Text;
use crate::proxy::settings;
use crate::telemetry::{Gauge, Label as _, Metrics, SettingError, labels, names};
use crate::wire::{self, Body, Charge, Fields, Known, Request, Response, Stream, Timer, websocket};

pub(in crate::proxy) use messages::{MessageCounts, MessageLimits};

/// The buffer for each direction of a tunnel.
const PIECE_BYTES: usize = 16 << 10;
/// How long both sides of a tunnel that Weir closes may take to read that, and to close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// The facts that say how many messages came from the client, and from the upstream.
pub(in crate::proxy) const MESSAGES: [&str; 2] = ["request.messages", "response.messages"];
/// The code for an upstream whose client is cut off (RFC 6455, section 7.4.1).
const GOING_AWAY: (u16, &str) = (1001, "");

/// The protocols that a route's clients may ask for.
#[derive(Debug)]
pub(in crate::proxy) struct Upgrades {
    /// The protocols' names in lower case.
    protocols: Vec<String>,
    idle: Duration,
}

/// The protocol that a client asks for.
#[derive(Debug)]
pub(in crate::proxy) struct UpgradeRequest {
    protocol: Text,
    idle: Duration,
    /// What the upstream has to answer to the client's key, if the messages are read: with other
    /// frames than those of RFC 6455 they could not be.
    accept: Option<String>,
}

impl Upgrades {
    /// Checks what is written under the setting `at`.
    pub(in crate::proxy) fn build(
        written: &settings::Upgrade,
        at: &str,
        errors: &mut Vec<SettingError>,
    ) -> Self {
        let protocols = written.protocols.iter().map(|protocol| protocol.to_ascii_lowercase());
        let protocols: Vec<String> = protocols.collect();
        for (index, protocol) in protocols.iter().enumerate() {
            let token = |text: &str| http::HeaderName::from_bytes(text.as_bytes()).is_ok();
            let is_one = protocol.split('/').count() <= 2 && protocol.split('/').all(token);
            // Both would carry requests past policies and limits.
            let is_http = protocol == "h2c"
                || ["http", "tls"].contains(&protocol.split('/').next().unwrap_or_default());
            if !is_one || is_http {
                let expected = "a protocol such as \"websocket\"; HTTP itself and TLS are not passed on, since no limit would see what is in them";
                errors.push(SettingError::new(
                    format!("{at}.protocols[{index}]"),
                    format!("{protocol:?}"),
                    expected,
                ));
            }
        }
        Self { protocols, idle: written.idle }
    }

    /// The protocol's name in lower case, if a request that asks for it may be sent on with it. A
    /// request with a body is never upgraded, nor is one with which a browser only asks whether it
    /// may send another.
    pub(in crate::proxy) fn allowed(
        &self,
        request: &Request,
        body: &Body,
        protocol: &[u8],
    ) -> Option<&str> {
        let mut known = self.protocols.iter();
        let known = known.find(|known| known.as_bytes().eq_ignore_ascii_case(protocol))?;
        let fits = match is_websocket(protocol) {
            // RFC 6455, section 4.1. Over HTTP/2 the method is another one.
            true => request.method == Method::GET,
            false => request.method != Method::OPTIONS,
        };
        let is_empty = !body.is_streaming() && body.length() == Some(0);
        (fits && is_empty).then_some(known)
    }
}

fn is_websocket(protocol: &[u8]) -> bool {
    protocol.eq_ignore_ascii_case(websocket::WEBSOCKET.as_bytes())
}

/// Asks the upstream to upgrade if the route allows the protocol. Otherwise the request is sent as
/// an ordinary one, as is one for a WebSocket whose messages are to be read and could not be.
#[cold]
pub(in crate::proxy) fn request_upgrade(
    upgrades: &Upgrades,
    request: &mut Request,
    body: &Body,
    (protocol, reads_messages): (Text, bool),
) -> Option<Box<UpgradeRequest>> {
    upgrades.allowed(request, body, &protocol)?;
    let mut upgrade = UpgradeRequest { protocol, idle: upgrades.idle, accept: None };
    if reads_messages && upgrade.has_messages() {
        let version = only(&request.fields, websocket::VERSION)?;
        let key = only(&request.fields, websocket::KEY)?;
        if version != websocket::VERSION_13 {
            return None;
        }
        upgrade.accept = Some(websocket::accept_of(key));
    }
    upgrade.announce(&mut request.fields);
    request.upgrade = true;
    Some(Box::new(upgrade))
}

fn only<'f>(fields: &'f Fields, name: &str) -> Option<&'f [u8]> {
    let mut values = fields.get_all(name);
    values.next().filter(|_| values.next().is_none())
}

/// Called when a tunnel has ended.
pub(in crate::proxy) type OnTunnelEnd = Box<dyn FnOnce(TunnelEnd, Transferred) + Send>;

/// What is read of a tunnel's messages.
#[derive(Debug, Default)]
pub(in crate::proxy) enum Watch {
    /// Nothing: it is two streams of bytes.
    #[default]
    Nothing,
    /// How many there are.
    Counts,
    /// The client's are held to limits, too.
    Limits(Box<MessageLimits>),
}

impl UpgradeRequest {
    /// Sets the fields that name the protocol. They concern this connection, and agree with what
    /// follows on it.
    pub(in crate::proxy) fn announce(&self, fields: &mut Fields) {
        fields.set(Known::Connection, "upgrade");
        fields.set(Known::Upgrade, &self.protocol);
    }

    /// Whether the upstream agrees to the protocol, with a connection that can be taken over.
    pub(in crate::proxy) fn is_met(&self, reply: &Response) -> bool {
        let mut protocols = reply.fields.get_all(Known::Upgrade);
        let same =
            protocols.next().is_some_and(|protocol| protocol.eq_ignore_ascii_case(&self.protocol));
        let knows = self
            .accept
            .as_ref()
            .is_none_or(|accept| only(&reply.fields, websocket::ACCEPT) == Some(accept.as_bytes()));
        same && knows
            && protocols.next().is_none()
            && matches!(reply.upgrade, Some(wire::Upgrade::Stream(_)))
    }

    /// Whether messages can be told apart in the protocol.
    pub(in crate::proxy) fn has_messages(&self) -> bool {
        is_websocket(&self.protocol)
    }

    /// How long both sides may be silent.
    pub(in crate::proxy) fn idle(&self) -> Duration {
        self.idle
    }

    /// Joins the upstream's connection and the client's in a task of its own, once the client has
    /// its 101.
    pub(in crate::proxy) fn join(
        &self,
        upstream: Box<dyn Stream>,
        watch: Watch,
        metrics: &Metrics,
        on_end: OnTunnelEnd,
    ) -> wire::Upgrade {
        let (tunnel, idle) = (Tunnel::open(metrics, on_end), self.idle);
        wire::Upgrade::Callback(Box::new(move |client| {
            tokio::spawn(tunnel.run(client, upstream, watch, idle));
        }))
    }
}

/// A tunnel from the upstream's 101 to its end. If it is dropped before that, the client went away
/// before its 101, or its worker was stopped.
struct Tunnel {
    /// Present until it has ended.
    on_end: Option<OnTunnelEnd>,
    metrics: Metrics,
    open: Gauge,
    transferred: Transferred,
}

impl Tunnel {
    fn open(metrics: &Metrics, on_end: OnTunnelEnd) -> Self {
        let open = metrics.gauge(names::TUNNELS_OPEN);
        open.add(1);
        let transferred = Transferred::default();
        Self { on_end: Some(on_end), metrics: metrics.clone(), open, transferred }
    }

    async fn run(
        mut self,
        client: Box<dyn Stream>,
        upstream: Box<dyn Stream>,
        watch: Watch,
        idle: Duration,
    ) {
        let end = join(client, upstream, watch, idle, &mut self.transferred).await;
        self.ended(end);
    }

    fn ended(&mut self, end: TunnelEnd) {
        let Some(on_end) = self.on_end.take() else { return };
        self.open.add(-1);
        self.metrics.count(names::TUNNELS, &[end.label()]);
        on_end(end, self.transferred);
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.ended(TunnelEnd::Client);
    }
}

labels! {
    /// How a tunnel ended: a metric's label.
    pub(in crate::proxy) enum TunnelEnd {
        /// Both sides closed.
        Closed = "closed",
        /// Nothing was said in either direction for too long.
        Idle = "idle",
        /// The client's connection failed, or was cut at the end of a shutdown.
        Client = "client",
        /// The upstream's did.
        Upstream = "upstream",
        /// A limit had no unit for a message of the client.
        Limited = "limited",
    }
}

/// What was transferred: bytes, and messages where they are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::proxy) struct Transferred {
    pub(in crate::proxy) up: u64,
    pub(in crate::proxy) down: u64,
    pub(in crate::proxy) messages: Option<MessageCounts>,
}

/// Copies bytes in both directions. The end of one side is passed on, and the other side may
/// continue.
async fn join<C, U>(
    mut client: C,
    mut upstream: U,
    watch: Watch,
    idle: Duration,
    transferred: &mut Transferred,
) -> TunnelEnd
where
    C: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
{
    let (up, down) = match watch {
        Watch::Nothing => (None, None),
        Watch::Counts => (Some(Gate::new(None)), Some(Gate::new(None))),
        Watch::Limits(limits) => (Some(Gate::new(Some(*limits))), Some(Gate::new(None))),
    };
    let (mut up, mut down) = (Direction::new(up), Direction::new(down));
    let mut alarm = Timer::default();
    alarm.arm(clock::monotonic() + idle);
    let mut waits_until = None;
    let joined = poll_fn(|cx| {
        let before = *transferred;
        let polled =
            (up.poll(cx, &mut client, &mut upstream), down.poll(cx, &mut upstream, &mut client));
        *transferred = Transferred::of(&up, &down);
        match polled {
            (Poll::Ready(Err(Stop::Excess(excess))), _)
            | (_, Poll::Ready(Err(Stop::Excess(excess)))) => return Poll::Ready(Err(excess)),
            (Poll::Ready(Err(Stop::Source)), _) | (_, Poll::Ready(Err(Stop::Sink))) => {
                return Poll::Ready(Ok(TunnelEnd::Client));
            }
            (Poll::Ready(Err(Stop::Sink)), _) | (_, Poll::Ready(Err(Stop::Source))) => {
                return Poll::Ready(Ok(TunnelEnd::Upstream));
            }
            (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => {
                return Poll::Ready(Ok(TunnelEnd::Closed));
            }
            _ => {}
        }
        if *transferred != before {
            alarm.arm(clock::monotonic() + idle);
        }
        // A message that waits is not silence.
        let waiting = up.gate.as_ref().and_then(Gate::waits_until);
        if waiting != waits_until {
            waits_until = waiting;
            alarm.arm(waiting.unwrap_or_else(clock::monotonic) + idle);
        }
        alarm.poll(cx).map(|()| Ok(TunnelEnd::Idle))
    })
    .await;
    match joined {
        Ok(end) => end,
        Err(excess) => {
            let ends = (up.is_between_frames(), &mut down);
            let closing = close(&mut client, &mut upstream, ends, excess);
            // Whoever does not take part in it is cut off.
            let _ = timeout(CLOSE_TIMEOUT, closing).await;
            *transferred = Transferred::of(&up, &down);
            TunnelEnd::Limited
        }
    }
}

/// Closes a WebSocket whose client sends more than it may: nothing more of it is passed on, and
/// both sides are told. The frame that the upstream is sending is passed on to its end.
async fn close<C, U>(
    client: &mut C,
    upstream: &mut U,
    (up_is_between, down): (bool, &mut Direction),
    excess: Excess,
) -> io::Result<()>
where
    C: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
{
    if let Some(gate) = &mut down.gate {
        gate.close();
    }
    poll_fn(|cx| match down.poll(cx, upstream, client) {
        _ if down.is_between_frames() => Poll::Ready(Ok(())),
        // The frame will never be whole.
        Poll::Ready(_) => Poll::Ready(Err(io::Error::from(io::ErrorKind::UnexpectedEof))),
        Poll::Pending => Poll::Pending,
    })
    .await?;
    // Neither waits for the other, which may read nothing.
    let tell_upstream = async {
        if up_is_between {
            let (code, reason) = GOING_AWAY;
            upstream.write_all(&frames::close(code, reason, true)).await?;
        }
        upstream.shutdown().await
    };
    let tell_client = async {
        if !down.closed {
            let (code, reason) = excess.close();
            client.write_all(&frames::close(code, reason, false)).await?;
            client.shutdown().await?;
        }
        // A connection that is closed while bytes of the client wait is reset, and the client might
        // never see the frame.
        let mut rest = [0; 1 << 10];
        while client.read(&mut rest).await? > 0 {}
        Ok(())
    };
    let (_, told) = tokio::join!(tell_upstream, tell_client);
    told
}

impl Transferred {
    fn of(up: &Direction, down: &Direction) -> Self {
        let messages = up.gate.as_ref().zip(down.gate.as_ref());
        let messages =
            messages.map(|(up, down)| MessageCounts { up: up.messages, down: down.messages });
        Self { up: up.bytes, down: down.bytes, messages }
    }
}

/// One direction.
struct Direction {
    buffer: Box<[u8]>,
    from: usize,
    /// How far the buffer may be written: up to here it is passed on.
    open: usize,
    to: usize,
    /// Reads what passes.
    gate: Option<Gate>,
    /// Written but not flushed.
    unflushed: bool,
    /// The source has ended.
    ended: bool,
    /// The sink was shut down.
    closed: bool,
    bytes: u64,
    /// The memory of the buffer.
    _charge: Charge,
}

/// Why a direction stops before its source has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    Source,
    Sink,
    Excess(Excess),
}

impl Direction {
    fn new(gate: Option<Gate>) -> Self {
        let _charge = Charge::of(PIECE_BYTES);
        Self {
            buffer: vec![0; PIECE_BYTES].into(),
            from: 0,
            open: 0,
            to: 0,
            gate,
            unflushed: false,
            ended: false,
            closed: false,
            bytes: 0,
            _charge,
        }
    }

    /// Ready when the source has ended and the sink was shut down.
    fn poll<S: AsyncRead + Unpin, T: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut S,
        sink: &mut T,
    ) -> Poll<Result<(), Stop>> {
        if self.closed {
            return Poll::Ready(Ok(()));
        }
        loop {
            ready!(self.poll_write(cx, sink)).map_err(|_| Stop::Sink)?;
            if self.ended {
                ready!(Pin::new(&mut *sink).poll_shutdown(cx)).map_err(|_| Stop::Sink)?;
                self.closed = true;
                return Poll::Ready(Ok(()));
            }
            match self.poll_more(cx, source) {
                Poll::Ready(more) => more?,
                Poll::Pending => {
                    if self.unflushed {
                        ready!(Pin::new(&mut *sink).poll_flush(cx)).map_err(|_| Stop::Sink)?;
                        self.unflushed = false;
                    }
                    return Poll::Pending;
                }
            }
        }
    }

    /// Ready when there is more to write, or the source has ended.
    fn poll_more<S: AsyncRead + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut S,
    ) -> Poll<Result<(), Stop>> {
        if self.from == self.to {
            let mut piece = ReadBuf::new(&mut self.buffer);
            ready!(Pin::new(&mut *source).poll_read(cx, &mut piece)).map_err(|_| Stop::Source)?;
            (self.from, self.open, self.to) = (0, 0, piece.filled().len());
            self.ended = self.to == 0;
        }
        let ahead = self.buffer.get(self.from..self.to).unwrap_or_default();
        let Some(gate) = self.gate.as_mut().filter(|_| !self.ended) else {
            self.open = self.to;
            return Poll::Ready(Ok(()));
        };
        if let Poll::Ready(open) = gate.poll_pass(ahead, cx) {
            self.open = self.from + open.map_err(Stop::Excess)?;
            return Poll::Ready(Ok(()));
        }
        // A message whose units are being taken is passed on even if its sender ends after it.
        if gate.waits_until().is_some() { self.poll_ahead(cx, source) } else { Poll::Pending }
    }

    /// Reads on while a message waits for a limit, as far as there is room, to notice when its
    /// sender leaves: then what waits is dropped. Only ready if the source has ended or failed.
    fn poll_ahead<S: AsyncRead + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut S,
    ) -> Poll<Result<(), Stop>> {
        while let Some(room) = self.buffer.get_mut(self.to..).filter(|room| !room.is_empty()) {
            let mut piece = ReadBuf::new(room);
            ready!(Pin::new(&mut *source).poll_read(cx, &mut piece)).map_err(|_| Stop::Source)?;
            if piece.filled().is_empty() {
                return Poll::Ready(Err(Stop::Source));
            }
            self.to += piece.filled().len();
        }
        Poll::Pending
    }

    /// Whether what was written ends with a whole frame.
    fn is_between_frames(&self) -> bool {
        self.from == self.open && self.gate.as_ref().is_some_and(Gate::is_between_frames)
    }

    /// Ready when all of the buffer that may be passed on is written.
    fn poll_write<T: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        sink: &mut T,
    ) -> Poll<io::Result<()>> {
        while let Some(rest) = self.buffer.get(self.from..self.open).filter(|rest| !rest.is_empty())
        {
            let wrote = ready!(Pin::new(&mut *sink).poll_write(cx, rest))?;
            if wrote == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.from += wrote;
            self.bytes += wrote as u64;
            self.unflushed = true;
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests;
