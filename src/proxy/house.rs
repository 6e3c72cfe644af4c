//! Everything that one request needs, built whole from one configuration and never changed. Knows how things are found, not what is done with them.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;

use super::facts::Question;
use super::routes::Routes;
use super::settings::{FieldStyle, RoutePolicy, RouteSettings, Settings, Target};
use super::tally::{NO_ROUTE, Tally};
use crate::clock::Clock;
use crate::limit::{Limiter, Scope};
use crate::policy::Policy;
use crate::telemetry::{Access, Metrics, Mistake};
use crate::upstream::Upstream;

/// Everything that one request needs, built whole from one configuration and never changed: a snapshot.
#[derive(Debug)]
pub struct House {
    pub(super) settings: Settings,
    pub(super) routes: Routes,
    pub(super) limiter: Arc<Limiter>,
    table: Vec<Route>,
    /// For requests that no route takes.
    nowhere: Tail,
}

/// A route as it runs.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) answer: Answer,
    pub(super) decider: Option<Decider>,
    pub(super) body_bytes_max: u64,
    tail: Tail,
}

/// What answers on a route.
#[derive(Debug)]
pub(super) enum Answer {
    Upstream(Arc<Upstream>),
    Respond(StatusCode, Bytes),
}

/// Who decides on a route.
#[derive(Debug)]
pub(super) struct Decider {
    pub(super) policy: Arc<Policy>,
    pub(super) scope: Arc<Scope>,
    pub(super) allow_on_error: bool,
    /// What the policy asks to see.
    pub(super) questions: Vec<Question>,
}

/// What a request needs of its route after its headers are out: a stream may outlive its house.
#[derive(Clone, Debug)]
pub(super) struct Tail {
    pub(super) route: String,
    pub(super) fields: FieldStyle,
    /// With the policy's name.
    pub(super) policy: Option<(String, Arc<Policy>)>,
    pub(super) tally: Tally,
    pub(super) access: Access,
    pub(super) access_json: bool,
    pub(super) clock: Clock,
}

impl House {
    /// Builds the routes.
    ///
    /// # Errors
    /// All of them: paths, hosts, methods and statuses that are none, and routes of which none is more specific (settings `routes[0].path` ...).
    pub fn build(settings: Settings, routes: Vec<RouteSettings>, limiter: Arc<Limiter>, metrics: &Metrics) -> Result<Self, Vec<Mistake>> {
        let mut found = Routes::default();
        let mut table = Vec::with_capacity(routes.len());
        let mut mistakes = Vec::new();
        for (index, written) in routes.into_iter().enumerate() {
            let built = found
                .add(index, written.host.as_deref(), &written.path, &written.methods)
                .and_then(|parameters| Route::build(index, written, &parameters, &settings, metrics));
            match built {
                Ok(route) => table.push(route),
                Err(mistake) => mistakes.push(mistake),
            }
        }
        if !mistakes.is_empty() {
            return Err(mistakes);
        }
        let nowhere = Tail::new(NO_ROUTE.to_owned(), FieldStyle::Off, None, &settings, metrics);
        Ok(Self { settings, routes: found, limiter, table, nowhere })
    }

    /// Route number `index` of the configuration.
    pub(super) fn route(&self, index: usize) -> Option<&Route> {
        self.table.get(index)
    }

    /// Of each route, in order.
    pub(super) fn tails(&self) -> impl Iterator<Item = &Tail> {
        self.table.iter().map(|route| &route.tail)
    }

    /// Of requests that no route takes.
    pub(super) fn nowhere(&self) -> &Tail {
        &self.nowhere
    }
}

impl Route {
    fn build(index: usize, written: RouteSettings, parameters: &[String], settings: &Settings, metrics: &Metrics) -> Result<Self, Mistake> {
        let answer = match written.target {
            Target::Upstream(upstream) => Answer::Upstream(upstream),
            Target::Respond { status, body } => {
                let known = StatusCode::from_u16(status).ok().filter(|_| (200..600).contains(&status));
                let at = || Mistake::new(format!("routes[{index}].respond.status"), status.to_string(), "200 to 599");
                Answer::Respond(known.ok_or_else(at)?, Bytes::from(body))
            }
        };
        let named = written.policy.as_ref().map(|policy| (policy.scope.policy.clone(), Arc::clone(&policy.policy)));
        let tail = Tail::new(written.name, written.fields, named, settings, metrics);
        let decider = written.policy.map(|policy| Decider::new(policy, parameters));
        Ok(Self { answer, decider, body_bytes_max: written.body_bytes_max, tail })
    }
}

impl Decider {
    fn new(policy: RoutePolicy, parameters: &[String]) -> Self {
        let questions = policy.policy.request_facts().iter().filter_map(|fact| Question::new(fact, parameters)).collect();
        Self { policy: policy.policy, scope: policy.scope, allow_on_error: policy.allow_on_error, questions }
    }
}

impl Tail {
    fn new(route: String, fields: FieldStyle, policy: Option<(String, Arc<Policy>)>, settings: &Settings, metrics: &Metrics) -> Self {
        let tally = Tally::new(metrics, &route, policy.as_ref().map(|(name, _)| name.as_str()));
        let (access, access_json) = (settings.access, settings.access_json);
        Self { route, fields, policy, tally, access, access_json, clock: Clock::system() }
    }
}
