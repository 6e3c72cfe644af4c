//! The proxy as a whole: a real limiter on the embedded engine, the shipped policy, and real
//! sockets where a body streams.

mod endings;
mod extras;
mod http2;
mod overload;
mod replies;
mod sockets;
mod unreached;

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, StatusCode, Version};
use http_body_util::BodyExt;

use super::serve::handle;
use super::*;
use crate::clock::Clock;
use crate::engine::{EmbeddedSettings, Engine, Settings as EngineSettings};
use crate::limit::{Ending, Limiter, Scope};
use crate::plan::{
    Algorithm, Alignment, Debt, FixedWindow, Limit, OnStoreError, PRIORITY_DEFAULT, Plan, Rate,
    Slot,
};
use crate::policy::{Decision, Joining, Module, Policy, Runtime, Verdict};
use crate::proxy::context::{End, RequestContext};
use crate::proxy::decide::{Decided, admit};
use crate::proxy::forward::Sent;
use crate::proxy::live::LocalSnapshot;
use crate::proxy::record::access;
use crate::proxy::route::Routed;
use crate::proxy::settings::{
    Extras, FieldStyle, Inspect, Paths, Respond, RouteAction, RoutePolicy, RouteSettings,
};
use crate::proxy::snapshot::Snapshot;
use crate::telemetry::{Access, AccessFields, AccessHeaders, Metrics};
use crate::wire::Body;

/// Long enough that no test fails because a machine was busy.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);
/// A whole day since 1970, so that windows by the clock begin here.
const START_US: i64 = 86_400_000_000 * 20_000;

/// A snapshot, and what tests inspect.
struct TestHandler {
    snapshot: Arc<Snapshot>,
    local: Arc<LocalSnapshot>,
    limiter: Arc<Limiter>,
    metrics: Metrics,
}

/// A route with a response of its own.
fn respond(path: &str) -> RouteSettings {
    RouteSettings {
        overrides: Default::default(),
        hash: None,
        mirror: None,
        name: path.trim_matches(['/', '*']).to_owned(),
        host: None,
        path: path.to_owned(),
        methods: Vec::new(),
        listeners: Vec::new(),
        action: RouteAction::Respond(Respond {
            status: 200,
            body: "ok\n".into(),
            ..Respond::default()
        }),
        policy: None,
        fields: FieldStyle::Draft,
        body_bytes_max: 1_000,
        inspect: Inspect::default(),
        request_timeout: None,
        priority: PRIORITY_DEFAULT,
        maintenance: None,
        when: None,
        extras: Extras::default(),
    }
}

/// The policy `client-ip` with these limits, as JSON.
fn client_ip(limits: &str) -> RoutePolicy {
    let settings = crate::policy::Settings {
        name: "public".into(),
        module: Module::Shipped("client-ip".into()),
        cpu_time: Duration::from_secs(1),
        memory_bytes: 16 << 20,
        isolated: false,
        config_json: format!("{{\"limits\":[{limits}]}}").into(),
        scripts: Arc::default(),
        measured: crate::policy::MeasuredNames::default(),
        caps: crate::policy::Caps::default(),
    };
    let policy = Policy::build(
        &Runtime::new(crate::proxy::fact_names()).unwrap(),
        &settings,
        &Metrics::new(1),
    )
    .unwrap();
    let scope = Scope::new("public".into(), "public".into(), OnStoreError::Deny, false);
    RoutePolicy { policy: Arc::new(policy), scope: Arc::new(scope), allow_on_error: false }
}

const TWO_A_MINUTE: &str =
    r#"{"name":"per-minute","algorithm":"fixed_window","quota":2,"period":"1m"}"#;

pub(super) fn settings() -> Settings {
    Settings {
        callers: Arc::default(),
        trusted_proxies: Vec::new(),
        listeners: Vec::new(),
        unrouted: None,
        serves: None,
        uri_bytes_max: 200,
        paths: Paths::default(),
        underscores_in_headers: false,
        buffered_bytes_max: usize::MAX,
        worker_lag_max: None,
        body_idle: TEST_TIMEOUT,
        body_rate: None,
        ipv6_prefix: 64,
        access: Access::Off,
        access_json: true,
        access_fields: AccessFields::default(),
        access_headers: AccessHeaders::default(),
        refusals: Vec::new(),
    }
}

fn limiter(metrics: &Metrics) -> Arc<Limiter> {
    let clock = Clock::virtual_at(START_US);
    let engine = EngineSettings::Embedded(EmbeddedSettings::new(1_000));
    let engine = Engine::build(&engine, clock.clone(), metrics).unwrap();
    Arc::new(Limiter::new(
        crate::limit::Settings { deadline: TEST_TIMEOUT, ..Default::default() },
        Arc::new(engine),
        clock,
        metrics.clone(),
    ))
}

impl TestHandler {
    fn new(routes: Vec<RouteSettings>) -> Self {
        Self::with(settings(), routes)
    }

    fn with(settings: Settings, routes: Vec<RouteSettings>) -> Self {
        let metrics = Metrics::new(1);
        let limiter = limiter(&metrics);
        let snapshot =
            Arc::new(Snapshot::build(settings, routes, Arc::clone(&limiter), &metrics).unwrap());
        Self {
            local: Arc::new(LocalSnapshot::new(
                0,
                Arc::clone(&snapshot),
                &Arc::default(),
                &Observers::none(),
            )),
            snapshot,
            limiter,
            metrics,
        }
    }

    async fn ask(&self, method: &str, uri: &str, fields: &[(&str, &str)]) -> Reply {
        let mut request =
            http::Request::builder().method(method).uri(uri).header("host", "api.example");
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        Reply::read(handle(&self.local, request.body(Body::empty()).unwrap().into(), &peer()).await)
            .await
    }

    async fn get(&self, uri: &str) -> Reply {
        self.ask("GET", uri, &[]).await
    }

    /// A request on route `index`, before its decision.
    fn context(&self, index: usize) -> Box<RequestContext> {
        let request = http::Request::get("/x?secret=1").header("host", "api.example");
        let mut request: Request = request.body(Body::empty()).unwrap().into();
        let mut context = RequestContext::begin(&self.local, &request, &peer());
        let RequestContext { received, routed, .. } = &mut *context;
        receive::normalize(&mut request, received, &peer(), &self.local).unwrap();
        *routed = Routed::on(self.local.handle(index).unwrap(), received, &request.fields);
        context
    }

    /// Carries out a policy's decision on a request.
    async fn charge(
        &self,
        decision: Arc<Decision>,
        context: &mut RequestContext,
    ) -> Result<(), Refusal> {
        let RequestContext { received, routed, decided, .. } = context;
        let decided = decided.insert(Decided::default());
        admit::charge(&self.limiter, decision, None, (received, routed), decided).await
    }

    #[track_caller]
    fn counted(&self, series: &str, count: u64) {
        let text = self.metrics.encode();
        assert!(text.contains(&format!("{series} {count}\n")), "{series} {count}: {text}");
    }
}

/// The request is about to be sent to an upstream.
fn send(context: &mut RequestContext) -> &mut Sent {
    context.sent.insert(Sent::new(&context.received, None))
}

/// The access line of a request that ends now.
fn line_of(context: &RequestContext, bytes: u64, took: Duration, as_json: bool) -> Vec<u8> {
    let end = End { ending: Ending::Completed, bytes, tunnelled: None };
    access::line(&context.record(&end, took, None), START_US, as_json)
}

fn peer() -> Peer {
    Peer::plain("192.0.2.1:5".parse().unwrap(), "192.0.2.9:80".parse().unwrap())
}

/// A reply, read to its end.
#[derive(Debug)]
struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
}

impl Reply {
    async fn read(reply: Response) -> Self {
        let (head, body) = reply.into_http().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Self {
            status: head.status,
            headers: head.headers,
            body: String::from_utf8(body.to_vec()).unwrap(),
        }
    }

    fn field(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// The problem document. Its status and request id are compared with the reply's.
    #[track_caller]
    fn problem(&self, status: u16) -> serde_json::Value {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.field("content-type"), Some("application/problem+json"));
        assert_eq!(self.field("cache-control"), Some("no-store"));
        let problem: serde_json::Value = serde_json::from_str(&self.body).unwrap();
        assert_eq!(problem["status"], status);
        assert_eq!(problem["request_id"].as_str(), self.field("x-request-id"));
        problem
    }
}

/// A decision that sets no fields or labels.
pub(in crate::proxy) fn decision(verdict: Verdict) -> Decision {
    Decision {
        verdict,
        upstream_headers: Vec::new(),
        response_headers: Vec::new(),
        labels: Vec::new(),
        settle_with: None,
        settle_on_refusal: false,
        bodies: None,
        valid_until_ms: None,
        priority: None,
        fair_key: None,
        refusal: None,
        messages: Vec::new(),
        joining: Joining::default(),
        slot: Slot::default(),
    }
}

fn window(name: &str, amount: u64) -> Limit {
    Limit::new(
        name,
        "k",
        Algorithm::FixedWindow(FixedWindow {
            rate: Rate { amount, per_ms: 60_000 },
            alignment: Alignment::Clock,
            debt: Debt::None,
        }),
    )
}

fn check(limits: Vec<Limit>) -> Arc<Decision> {
    Arc::new(decision(Verdict::Check(Arc::new(Plan::new(limits).unwrap()))))
}
