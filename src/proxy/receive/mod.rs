//! The first phase: what arrived, in the one form in which everything after it reads it.
//!
//! After it, a request has one authority and one path (`target`, `path`), its client is known
//! behind trusted proxies (`client`), it has an id (`id`), and the fields that belong to its
//! connection are gone (`hop`). An auth request of another proxy has become the request that it is
//! about (`forward_auth`). What concerns no route is answered here (`unrouted`). `kept` and
//! `trace` hold what the access line and the trace show of the head. `call` reads calls for
//! decisions. Knows no route, no policy and no upstream.

pub(super) mod call;
pub(super) mod client;
pub(super) mod forward_auth;
pub(super) mod grpc;
pub(super) mod hop;
pub(super) mod id;
pub(super) mod kept;
pub(super) mod path;
pub(super) mod target;
pub(super) mod text;
pub(super) mod trace;
pub(super) mod unrouted;

use std::time::Instant;

use http::{Method, Version};
use smallvec::SmallVec;

use self::call::Call;
use self::call::noted::NotedCall;
use self::client::Client;
use self::id::Id;
use self::kept::KeptHead;
use self::target::Authority;
use self::trace::TraceContext;
use crate::clock;
use crate::listen::{Peer, Serves};
use crate::proxy::callers::Caller;
use crate::proxy::live::LocalSnapshot;
use crate::proxy::refusal::{Check, Refusal};
use crate::telemetry::{Access, AccessFields};
use crate::wire::Request;

/// What is known of a request as soon as its head has been read.
#[derive(Debug)]
pub(super) struct Received {
    /// When its head had been read.
    pub(super) started: Instant,
    pub(super) id: Id,
    pub(super) client: Client,
    pub(super) method: Method,
    /// The path for the access log, the trace and what is remembered: in its normal form, or as it
    /// came if it has none. Empty if none of them shows it.
    pub(super) path: SmallVec<[u8; 64]>,
    /// The client speaks gRPC.
    pub(super) grpc: bool,
    /// What its listener serves.
    pub(super) serves: Serves,
    /// Whether the reply to it has no body: a proxy may ask about a `HEAD` with a `GET`.
    pub(super) is_head: bool,
    /// What the access line shows of the head.
    pub(super) kept: Option<Box<KeptHead>>,
    /// The trace that it belongs to, if it is traced.
    pub(super) trace: Option<Box<TraceContext>>,
}

/// The parts of a request that are taken out of its head, in their normal form.
#[derive(Debug)]
pub(super) struct NormalHead {
    pub(super) authority: Authority,
    /// The protocol that the client asks to upgrade to.
    pub(super) upgrade: Option<hop::Text>,
}

impl Received {
    /// A request whose head was read.
    #[inline]
    pub(super) fn new(local: &LocalSnapshot, request: &Request, peer: &Peer) -> Self {
        let client = Client::of(&request.fields, peer, &local.snapshot().settings.trusted_proxies);
        let id = Id::of(&request.fields, client.trusted);
        // All routes have the same settings of the access log.
        let shown = local.no_route();
        let kept = match shown.access {
            Access::Off => None,
            Access::All | Access::Refused => KeptHead::of(shown.access_fields, request, peer),
        };
        let trace = local
            .sampling()
            .and_then(|sampling| TraceContext::of(request, client.trusted, sampling));
        Self {
            started: clock::monotonic(),
            id,
            client,
            method: request.method.clone(),
            path: SmallVec::new(),
            grpc: grpc::is_request(request),
            serves: Serves::Requests,
            is_head: request.method == Method::HEAD,
            kept,
            trace,
        }
    }

    /// A request whose head can't be read. Only its peer is known.
    pub(super) fn unreadable(peer: &Peer) -> Self {
        Self {
            started: clock::monotonic(),
            id: Id::fresh(),
            client: Client::untrusted(peer),
            method: Method::from_bytes(b"-").unwrap_or_default(),
            path: SmallVec::new(),
            grpc: false,
            serves: Serves::Requests,
            is_head: false,
            kept: None,
            trace: None,
        }
    }

    /// Whether the time at which it is sent to an upstream is recorded.
    pub(super) fn notes_sending(&self) -> bool {
        self.kept.is_some() || self.trace.is_some()
    }

    /// Notes the original request in place of the auth request.
    fn note_restored(&mut self, request: &Request, peer: &Peer, local: &LocalSnapshot) {
        if self.serves == Serves::Requests {
            return;
        }
        if self.kept.is_some() {
            self.kept = KeptHead::of(local.no_route().access_fields, request, peer);
        }
        if let Some(trace) = &mut self.trace {
            trace.note_authority(request);
        }
    }

    /// It is a call for a decision.
    pub(super) fn note_call(&mut self, request: &Request, local: &LocalSnapshot) {
        self.serves = Serves::Decisions;
        self.note_path(request, local);
    }

    /// It is a call of somebody with a token.
    pub(super) fn note_caller(&mut self, caller: Option<&Caller>, local: &LocalSnapshot) {
        if caller.is_some()
            && let Some((noted, fields)) = self.noted_call(local)
        {
            noted.note_caller(fields, caller);
        }
    }

    /// It is this call.
    pub(super) fn note_asked(&mut self, call: &Call, local: &LocalSnapshot) {
        if let Some((noted, fields)) = self.noted_call(local) {
            noted.note_call(fields, call);
        }
    }

    /// What an access line shows of a call, if there are lines and they show something.
    fn noted_call(&mut self, local: &LocalSnapshot) -> Option<(&mut NotedCall, AccessFields)> {
        let shown = local.no_route();
        if shown.access == Access::Off || !shown.access_fields.meets(AccessFields::OF_CALLS) {
            return None;
        }
        let kept = self.kept.get_or_insert_with(KeptHead::of_call);
        Some((kept.call.get_or_insert_default(), shown.access_fields))
    }

    fn note_path(&mut self, request: &Request, local: &LocalSnapshot) {
        if self.trace.is_some() || local.no_route().shows_requests() {
            let (path, _) = target::split(request.target());
            self.path.extend_from_slice(text::cut_path(path).as_bytes());
        }
    }
}

/// Gives a request one authority and one path, in the normal form in which they are matched, shown
/// to the policy and forwarded. Takes out of its head what is for this connection alone.
///
/// # Errors
/// 400, 414 and 501; 204 for `OPTIONS *`.
pub(super) fn normalize(
    request: &mut Request,
    received: &mut Received,
    peer: &Peer,
    local: &LocalSnapshot,
) -> Result<NormalHead, Refusal> {
    let snapshot = local.snapshot();
    if snapshot.settings.serves.is_some() {
        forward_auth::restore(request, received, peer, &snapshot.settings)?;
        received.note_restored(request, peer, local);
    }
    let authority = target::normalize(request, received.client.https, peer, &snapshot.settings);
    received.note_path(request, local);
    let authority = authority?;
    if hop::has_too_many_options(&request.fields) {
        return Err(Refusal::BadRequest(Check::Head.wrong(hop::TOO_MANY_OPTIONS)));
    }
    // Before the policy: it must see what the upstream will see.
    let ambiguous = snapshot.settings.underscores_in_headers;
    // Over HTTP/2 a stream may become a tunnel, if the listener says so.
    let may_switch = std::mem::take(&mut request.upgrade) || request.version == Version::HTTP_11;
    let upgrade = hop::strip_request(&mut request.fields, received.client.trusted, ambiguous)
        .filter(|_| may_switch);
    if let Some(kept) = &mut received.kept
        && local.no_route().access_fields.has_headers()
    {
        kept.keep_headers(&local.no_route().access_headers, &request.fields, &snapshot.limiter);
    }
    if request.version == Version::HTTP_2 {
        hop::join_cookies(&mut request.fields);
    }
    Ok(NormalHead { authority, upgrade })
}
