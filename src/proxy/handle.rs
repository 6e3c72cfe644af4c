//! What a request keeps of its route until it has ended. Knows nothing of how the route was found.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::clock::Clock;
use crate::limit::Scope;
use crate::otlp::Tracer;
use crate::plan::PRIORITY_DEFAULT;
use crate::policy::Policy;
use crate::proxy::overload;
use crate::proxy::record::account::Origin;
use crate::proxy::record::remembered::Insight;
use crate::proxy::reply::compress::Compress;
use crate::proxy::reply::extras::{Interim, ReplyExtras};
use crate::proxy::settings::{FieldStyle, Settings};
use crate::proxy::tally::Tally;
use crate::telemetry::{Access, AccessFields, AccessHeaders, Metrics};

/// The part of a route that a request keeps after its headers are sent, since a stream may outlive
/// its snapshot.
#[derive(Clone, Debug)]
pub(super) struct RouteHandle {
    pub(super) name: String,
    pub(super) fields: FieldStyle,
    pub(super) policy: Option<PolicyScope>,
    pub(super) tally: Tally,
    pub(super) access: Access,
    pub(super) access_json: bool,
    pub(super) access_fields: AccessFields,
    pub(super) access_headers: AccessHeaders,
    pub(super) clock: Clock,
    pub(super) extras: Option<Arc<ReplyExtras>>,
    /// What is done with interim replies. A worker's handle has it.
    pub(super) interim: Option<Arc<Interim>>,
    /// What is remembered of requests.
    pub(super) insight: Insight,
    /// Where their traces go.
    pub(super) tracer: Tracer,
    /// How much its requests matter, unless the policy says so.
    pub(super) priority: u8,
    /// Whether its requests may have to wait for the upstream, and then pay nothing if they are
    /// not sent.
    pub(super) may_withdraw: bool,
    /// How many bytes the process may buffer.
    buffered_max: usize,
    /// The route's path as configured; empty for none.
    pub(super) path: String,
    /// This route, for what is remembered of requests.
    pub(super) origin: Arc<Origin>,
    /// The grace period of a shutdown is over: see `Live::cut`.
    cut: Arc<AtomicBool>,
}

/// A route's policy, and the scope that its requests are charged to.
#[derive(Clone, Debug)]
pub(super) struct PolicyScope {
    pub(super) policy: Arc<Policy>,
    pub(super) scope: Arc<Scope>,
}

impl RouteHandle {
    pub(super) fn new(
        name: String,
        fields: FieldStyle,
        policy: Option<PolicyScope>,
        settings: &Settings,
        metrics: &Metrics,
    ) -> Self {
        let tally =
            Tally::new(metrics, &name, policy.as_ref().map(|policy| policy.scope.policy.as_str()));
        let (access, access_json) = (settings.access, settings.access_json);
        let scope = policy.as_ref().map(|policy| Arc::clone(&policy.scope));
        Self {
            origin: Arc::new(Origin { route: name.clone(), scope }),
            insight: Insight::off(),
            tracer: Tracer::off(),
            path: String::new(),
            priority: PRIORITY_DEFAULT,
            may_withdraw: false,
            buffered_max: settings.buffered_bytes_max,
            name,
            fields,
            policy,
            tally,
            access,
            access_json,
            access_fields: settings.access_fields,
            access_headers: settings.access_headers.clone(),
            clock: Clock::system(),
            extras: None,
            cut: Arc::default(),
            interim: None,
        }
    }

    /// A copy for one worker, so that its requests don't share reference counts with other workers.
    pub(super) fn of_worker(
        &self,
        cut: &Arc<AtomicBool>,
        (insight, tracer): (&Insight, &Tracer),
    ) -> Arc<Self> {
        let interim = Arc::new(Interim::new(self.extras.clone()));
        let own = |PolicyScope { policy, scope }: &PolicyScope| PolicyScope {
            policy: Arc::clone(policy),
            scope: Arc::new(Scope::clone(scope)),
        };
        let policy = self.policy.as_ref().map(own);
        let scope = policy.as_ref().map(|policy| Arc::clone(&policy.scope));
        Arc::new(Self {
            policy,
            origin: Arc::new(Origin { route: self.name.clone(), scope }),
            insight: insight.for_this_thread(),
            tracer: tracer.clone(),
            cut: Arc::clone(cut),
            interim: Some(interim),
            ..self.clone()
        })
    }

    /// Whether the access log or the operator's memory may show a request of this route.
    pub(super) fn shows_requests(&self) -> bool {
        self.access != Access::Off || self.insight.remembers()
    }

    /// Whether requests that end early are now cut by the shutdown.
    pub(super) fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed)
    }

    /// How its replies are compressed, if they are.
    pub(super) fn compress(&self) -> Option<&Compress> {
        self.extras.as_ref()?.compress.as_ref()
    }

    /// Whether this worker has too much to do for a request of this priority.
    #[inline]
    pub(super) fn turns_away(&self, priority: u8) -> bool {
        overload::turns_away(priority, self.buffered_max)
    }

    /// The policy's name, if there is a policy.
    pub(super) fn policy_name(&self) -> Option<&str> {
        self.policy.as_ref().map(|policy| policy.scope.policy.as_str())
    }
}
