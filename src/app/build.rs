//! Turns a checked configuration into what serves it. What did not change is taken over from the
//! running configuration, so that a reload keeps counters, connections and compiled guests.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::challenges;
use super::handover::Predecessor;
use super::shown;
use crate::admin;
use crate::clock::Clock;
use crate::config::{self, Config, ConfigErrors, Outline, Route, Warning, setting};
use crate::engine::{self, Engine, Scripts};
use crate::fetch::Document;
use crate::insight;
use crate::limit::{self, Limiter, Scope};
use crate::listen::{self, Serves};
use crate::otlp::Collector;
use crate::policy::{self, Policy, Runtime, RuntimeSettings};
use crate::proxy::settings::{
    Callers, Mirror, Respond, RouteAction, RoutePolicy, RouteSettings, Unrouted,
};
use crate::proxy::{self, Snapshot, fact_names};
use crate::reload::Watch;
use crate::telemetry::{self, Lint, LintKind, Metrics, SettingError};
use crate::upstream::{self, Budget, Upstream};
use weir_acme::{Authority, Challenges};

/// What outlives every configuration.
#[derive(Debug)]
pub(super) struct Builder {
    metrics: Metrics,
    clock: Clock,
    runtime: Arc<Runtime>,
    /// Where counters in memory come from.
    counters: CounterOrigin,
    /// Shared by the upstreams of all configurations.
    pub(super) budget: Budget,
}

/// Where a new engine's counters come from.
#[derive(Clone, Debug)]
pub(super) enum CounterOrigin {
    /// What is built will be checked and dropped.
    Nowhere,
    /// The configured snapshot.
    Snapshot,
    /// The process that this one takes over from.
    Predecessor(Arc<Predecessor>),
}

/// What was built from one configuration, kept for the next one to compare with.
#[derive(Debug)]
pub(super) struct ConfigBuild {
    pub(super) listeners: Vec<listen::Settings>,
    /// Who may ask for decisions.
    callers: Arc<Callers>,
    /// The authority that certificates are ordered from.
    pub(super) acme: Option<Arc<Authority>>,
    /// Each listener's TLS settings. Taken over while its certificates stay the same, so that
    /// clients can resume TLS sessions.
    pub(super) tls: Vec<Option<Arc<listen::Tls>>>,
    pub(super) admin: Option<admin::Settings>,
    pub(super) insight: insight::Settings,
    pub(super) workers: usize,
    pub(super) shutdown_delay: Duration,
    pub(super) shutdown_grace: Duration,
    pub(super) log: telemetry::Settings,
    /// Taken over while its settings stay the same, with its connections.
    pub(super) collector: Option<Arc<Collector>>,
    /// Each is taken over while its settings stay the same.
    pub(super) documents: Vec<Arc<Document>>,
    pub(super) connections: listen::ConnectionSettings,
    pub(super) watched: Vec<Watch>,
    pub(super) limiter: Arc<Limiter>,
    pub(super) engine: Arc<Engine>,
    pub(super) engine_settings: engine::Settings,
    pub(super) limiter_settings: limit::Settings,
    pub(super) policy_runtime: RuntimeSettings,
    pub(super) policies: NamedBuilds<policy::Settings, Policy>,
    pub(super) upstreams: NamedBuilds<upstream::Settings, Upstream>,
    pub(super) routes: Vec<Route>,
    /// What the configuration says, for the next one to be compared with.
    pub(super) outline: Outline,
    /// What is allowed but probably unintended, each with file and line.
    pub(super) warnings: Vec<Warning>,
}

/// What is suspicious about policies' settings, each at its own: what is seen without the policy,
/// and what it finds itself.
fn lints_of(policies: &NamedBuilds<policy::Settings, Policy>) -> Vec<Lint> {
    let mut policies: Vec<_> = policies.iter().collect();
    policies.sort_unstable_by_key(|(name, _)| *name);
    let of_one = |(name, (settings, policy)): (&String, &(policy::Settings, Arc<Policy>))| {
        let section = setting::policy(name);
        let all = settings.lints().into_iter().chain(policy.lints());
        all.map(|lint| lint.under(&section)).collect::<Vec<_>>()
    };
    policies.into_iter().flat_map(of_one).collect()
}

/// Adds what policies say of their limits to the outline of their configuration.
fn declare(outline: &mut Outline, policies: &NamedBuilds<policy::Settings, Policy>) {
    for (name, (_, policy)) in policies {
        outline.declare(name, policy.limits());
    }
}

/// Facts that a route's policy reads but the route never has.
fn missing_facts(snapshot: &Snapshot, routes: &[Route]) -> Vec<Lint> {
    let lint = |(route, fact): (usize, &str)| {
        let name = routes.get(route).map_or("", |route| route.name.as_str());
        let text = missing_fact(fact, name);
        Lint::new(LintKind::MissingFact, setting::route_policy(route), text).in_key()
    };
    snapshot.missing_facts().map(lint).collect()
}

/// Why a policy never sees a fact that it reads on the route `name`.
fn missing_fact(fact: &str, name: &str) -> String {
    let why = if fact.starts_with("header.") {
        let allowing = setting::UNDERSCORES_IN_HEADERS;
        format!("which is dropped from requests without {allowing}")
    } else {
        format!("which the path of the route {name} has no place for")
    };
    format!("this policy reads `{fact}`, {why}: it is never there")
}

impl Builder {
    pub(super) fn new(
        metrics: Metrics,
        clock: Clock,
        settings: &RuntimeSettings,
    ) -> Result<Self, SettingError> {
        let runtime = Runtime::timed(settings, fact_names(), clock.clone())
            .map_err(|error| error.under(setting::POLICIES))?;
        Ok(Self {
            metrics,
            clock,
            runtime,
            counters: CounterOrigin::Nowhere,
            budget: Budget::unlimited(),
        })
    }

    /// A builder of what will serve, with these counters.
    pub(super) fn serving(self, counters: CounterOrigin) -> Self {
        if matches!(counters, CounterOrigin::Predecessor(_)) {
            // It still serves.
            self.runtime.serve();
        }
        Self { counters, ..self }
    }

    /// Notes that requests are served from now on: what is built next must not slow them down.
    pub(super) fn serves(&self) {
        self.runtime.serve();
    }

    /// Adds the errors that modules find in what could be read of an invalid configuration.
    pub(super) fn complete(
        &self,
        errors: ConfigErrors,
        before: Option<&ConfigBuild>,
    ) -> ConfigErrors {
        errors.and_those_of(|config, routes_stand| {
            self.build_all(config, before, routes_stand).err().unwrap_or_default()
        })
    }

    /// Builds everything that `config` names, and reports all errors of all modules at once.
    pub(super) fn build(
        &self,
        config: Config,
        before: Option<&ConfigBuild>,
    ) -> Result<(ConfigBuild, Snapshot), ConfigErrors> {
        let source = Arc::clone(&config.source);
        self.build_all(config, before, true).map_err(|errors| source.locate(&errors))
    }

    fn build_all(
        &self,
        mut config: Config,
        before: Option<&ConfigBuild>,
        routes_stand: bool,
    ) -> Result<(ConfigBuild, Snapshot), Vec<SettingError>> {
        let mut errors = Vec::new();
        let (tls, of_tls) = self.tls(&mut config, before, &mut errors);
        let engine = self.engine(&config, before).map_err(|error| errors.push(error)).ok();
        let collector = collector(&config, before, &mut errors);
        let documents = documents(&config, before, &mut errors);
        let (policies, upstreams) =
            (before.map(|before| &before.policies), before.map(|before| &before.upstreams));
        let policies = build_each(
            config.policies,
            |settings| &settings.name,
            policies,
            |settings| self.policy(settings),
            &mut errors,
        );
        let upstreams = build_each(
            config.upstreams,
            |settings| &settings.name,
            upstreams,
            |settings| self.upstream(settings, upstreams),
            &mut errors,
        );
        let scripts = Scripts::load(&config.scripts)
            .map_err(|found| errors.extend(prefix_all(setting::STORE, found)))
            .ok();
        let Some(engine) = engine else { return Err(errors) };
        let limiter_settings =
            limit::Settings { scripts: scripts.unwrap_or_default(), ..config.limiter };

        let limiter = self.limiter(&limiter_settings, &engine, before);
        // Also where a policy or an upstream failed: the routes are then built for their errors
        // alone.
        let routes = config
            .routes
            .iter()
            .filter(|_| routes_stand)
            .map(|route| settings_of(route, &policies, &upstreams))
            .collect();
        let callers = callers(&config.listeners, &config.requests.callers, before);
        let requests = proxy::Settings {
            callers: Arc::clone(&callers),
            listeners: names_of_listeners(&config.listeners, before),
            unrouted: unrouted(&config.listeners, config.acme.as_deref(), before),
            serves: serves(&config.listeners, before),
            ..config.requests
        };
        let snapshot = Snapshot::build(requests, routes, Arc::clone(&limiter), &self.metrics);
        let snapshot = snapshot.map_err(|found| errors.extend(found)).ok();
        let Some(snapshot) = snapshot.filter(|_| errors.is_empty()) else {
            return Err(errors);
        };
        let mut outline = config.outline;
        declare(&mut outline, &policies);
        let mut warnings = config.warnings;
        let missing = missing_facts(&snapshot, &config.routes);
        let lints = missing.into_iter().chain(lints_of(&policies)).chain(of_tls);
        warnings.extend(lints.map(|lint| config.source.warn(&lint)));
        let built = ConfigBuild {
            listeners: config.listeners,
            callers,
            acme: config.acme,
            tls,
            admin: config.admin,
            insight: config.insight,
            workers: config.workers,
            shutdown_delay: config.shutdown_delay,
            shutdown_grace: config.shutdown_grace,
            log: config.log,
            collector,
            documents,
            connections: config.connections,
            watched: config.watched,
            limiter,
            engine,
            engine_settings: config.engine,
            limiter_settings,
            policy_runtime: config.policy_runtime,
            policies,
            upstreams,
            routes: config.routes,
            outline,
            warnings,
        };
        Ok((built, snapshot))
    }

    /// Builds one upstream, with what is known from the one of the same name in `before`.
    fn upstream(
        &self,
        settings: &upstream::Settings,
        before: Option<&NamedBuilds<upstream::Settings, Upstream>>,
    ) -> Result<Upstream, Vec<SettingError>> {
        let before = before.and_then(|before| before.get(&settings.name));
        let before = before.map(|(_, before)| &**before);
        Upstream::build_within(settings, &self.metrics, &self.budget, before)
            .map_err(|found| prefix_all(&setting::upstream(&settings.name), found))
    }

    /// Builds one policy.
    pub(super) fn policy(&self, settings: &policy::Settings) -> Result<Policy, Vec<SettingError>> {
        Policy::build(&self.runtime, settings, &self.metrics)
            .map_err(|found| prefix_all(&setting::policy(&settings.name), found))
    }

    /// The TLS of each listener, and warnings of its certificates.
    fn tls(
        &self,
        config: &mut Config,
        before: Option<&ConfigBuild>,
        errors: &mut Vec<SettingError>,
    ) -> (Vec<Option<Arc<listen::Tls>>>, Vec<Lint>) {
        let running = before.map_or(&[][..], |before| &before.listeners);
        let mut lints = shown::keep(&mut config.listeners, running);
        let authority = config.acme.as_deref();
        errors.extend(authority.into_iter().flat_map(challenges::tls_errors));
        let challenges =
            authority.map(|authority| challenges::in_handshakes(authority, &config.listeners));
        // A listener that shows them to authorities does so for the names of all.
        let names = challenges::names(&config.listeners);
        let are_known = before.is_some_and(|before| challenges::names(&before.listeners) == names);
        let each = config.listeners.iter().map(|settings| {
            let kept = before.and_then(|before| {
                let orders = challenges::ordered(&settings.certificates).next().is_some();
                let mut known = before.listeners.iter().zip(&before.tls);
                known.find(|(old, _)| *old == settings && (are_known || !orders))
            });
            let built = kept.map_or_else(
                || listen::Tls::build(settings, challenges.clone()),
                |(_, tls)| Ok(tls.clone()),
            );
            built.unwrap_or_else(|found| {
                errors.extend(found);
                None
            })
        });
        let tls: Vec<_> = each.collect();
        lints.extend(shown::old(&tls, self.clock.wall_us() / 1_000_000));
        (tls, lints)
    }

    /// The engine is kept, with its counters, unless the settings name another store.
    fn engine(
        &self,
        config: &Config,
        before: Option<&ConfigBuild>,
    ) -> Result<Arc<Engine>, SettingError> {
        if let Some(before) =
            before.filter(|before| config.engine.keeps_counters_of(&before.engine_settings))
        {
            return Ok(Arc::clone(&before.engine));
        }
        let engine = Engine::build(&config.engine, self.clock.clone(), &self.metrics)
            .map_err(|error| error.under(setting::STORE))?;
        match &self.counters {
            CounterOrigin::Nowhere => {}
            CounterOrigin::Predecessor(predecessor) if before.is_none() => {
                predecessor.counters(&engine);
            }
            CounterOrigin::Snapshot | CounterOrigin::Predecessor(_) => engine.restore(),
        }
        Ok(Arc::new(engine))
    }

    /// The limiter is kept as long as its engine and its settings stay the same, with what it still
    /// has to settle.
    fn limiter(
        &self,
        settings: &limit::Settings,
        engine: &Arc<Engine>,
        before: Option<&ConfigBuild>,
    ) -> Arc<Limiter> {
        let same = |before: &&ConfigBuild| {
            Arc::ptr_eq(&before.engine, engine) && before.limiter_settings == *settings
        };
        match before.filter(same) {
            Some(before) => Arc::clone(&before.limiter),
            None => Arc::new(Limiter::new(
                settings.clone(),
                Arc::clone(engine),
                self.clock.clone(),
                self.metrics.clone(),
            )),
        }
    }
}

/// Where traces and metrics are exported to, if they are.
fn collector(
    config: &Config,
    before: Option<&ConfigBuild>,
    errors: &mut Vec<SettingError>,
) -> Option<Arc<Collector>> {
    let settings = config.otlp.as_ref()?;
    let kept = before.and_then(|before| before.collector.as_ref());
    if let Some(kept) = kept.filter(|collector| collector.is_of(settings)) {
        return Some(Arc::clone(kept));
    }
    Collector::build(settings)
        .map_err(|found| errors.extend(prefix_all(setting::OTLP, found)))
        .ok()
        .map(Arc::new)
}

/// What to fetch.
fn documents(
    config: &Config,
    before: Option<&ConfigBuild>,
    errors: &mut Vec<SettingError>,
) -> Vec<Arc<Document>> {
    let kept = before.map_or(&[][..], |before| &before.documents);
    let mut document = |settings| {
        if let Some(kept) = kept.iter().find(|document| document.is_of(settings)) {
            return Some(Arc::clone(kept));
        }
        let built = Document::build(settings);
        built
            .map_err(|found| errors.extend(prefix_all(&settings.setting, found)))
            .ok()
            .map(Arc::new)
    };
    config.documents.iter().filter_map(&mut document).collect()
}

/// What was built under a name, and the settings that it was built from.
type NamedBuilds<S, T> = HashMap<String, (S, Arc<T>)>;

/// Builds each of `all`, except those whose settings have not changed: these are taken over with
/// all they hold.
fn build_each<S: PartialEq, T>(
    all: Vec<S>,
    name: impl Fn(&S) -> &str,
    before: Option<&NamedBuilds<S, T>>,
    build: impl Fn(&S) -> Result<T, Vec<SettingError>>,
    errors: &mut Vec<SettingError>,
) -> NamedBuilds<S, T> {
    let mut named = NamedBuilds::with_capacity(all.len());
    for settings in all {
        let kept = before
            .and_then(|before| before.get(name(&settings)))
            .filter(|(old, _)| *old == settings);
        match kept.map_or_else(|| build(&settings).map(Arc::new), |(_, kept)| Ok(Arc::clone(kept)))
        {
            Ok(built) => drop(named.insert(name(&settings).to_owned(), (settings, built))),
            Err(found) => errors.extend(found),
        }
    }
    named
}

fn prefix_all(section: &str, errors: Vec<SettingError>) -> Vec<SettingError> {
    errors.into_iter().map(|error| error.under(section)).collect()
}

impl ConfigBuild {
    /// When the first of the listeners' certificates expires, in Unix seconds.
    pub(super) fn first_expiry_s(&self) -> Option<i64> {
        self.tls.iter().flatten().filter_map(|tls| tls.expires_s()).min()
    }

    /// Prepares what each worker would otherwise have to start during a request.
    pub(super) fn prepare(&self) {
        for (_, policy) in self.policies.values() {
            policy.prepare(self.workers);
        }
    }

    /// Logs each warning that `before`, the running configuration, did not have.
    pub(super) fn warn(&self, before: Option<&Self>) {
        let known =
            |warning: &&Warning| before.is_some_and(|before| before.warnings.contains(warning));
        for warning in self.warnings.iter().filter(|warning| !known(warning)) {
            tracing::warn!("{warning}");
        }
    }

    /// Keeps the values of `running` for settings that a running process can't change, so that the
    /// next configuration is compared with what really runs.
    pub(super) fn started_as(mut self, running: &Self) -> Self {
        let (mut listeners, mut tls) = (running.listeners.clone(), running.tls.clone());
        for (index, (settings, tls)) in listeners.iter_mut().zip(&mut tls).enumerate() {
            // A listener keeps its address, and takes the certificates of the new listener that has
            // this address.
            if let Some((next, secured)) = self.listener_at(index, settings.address) {
                settings.clone_from(next);
                tls.clone_from(secured);
            }
        }
        (self.listeners, self.tls) = (listeners, tls);
        // The address stays; hosts and token may change.
        self.admin = match (self.admin, &running.admin) {
            (Some(next), Some(running)) => {
                Some(admin::Settings { address: running.address, ..next })
            }
            (_, running) => running.clone(),
        };
        if self.admin.is_none() {
            self.insight = self.insight.off();
        }
        self.workers = running.workers;
        self.policy_runtime = running.policy_runtime.clone();
        self.shutdown_grace = running.shutdown_grace;
        self
    }

    /// The listener with this address, preferably at the same index.
    fn listener_at(
        &self,
        index: usize,
        address: SocketAddr,
    ) -> Option<(&listen::Settings, &Option<Arc<listen::Tls>>)> {
        let index = index_at(&self.listeners, index, address)?;
        Some((self.listeners.get(index)?, self.tls.get(index)?))
    }

    /// How often counters are saved, if they are.
    pub(super) fn snapshot_every(&self) -> Option<Duration> {
        match &self.engine_settings {
            engine::Settings::Embedded(settings) => {
                settings.snapshot.as_ref().map(|snapshot| snapshot.every)
            }
            engine::Settings::Redis(_) => None,
        }
    }

    /// Applies changed settings to an engine that is taken over.
    pub(super) fn resize_engine(&self) {
        self.engine.resize(&self.engine_settings);
    }
}

/// The names of the listeners of this process, in the order of their numbers. A process that runs
/// keeps its listeners, and a new configuration may name them differently.
fn names_of_listeners(
    next: &[listen::Settings],
    before: Option<&ConfigBuild>,
) -> Vec<Option<String>> {
    of_listeners(next, before, |settings| settings.name.clone())
}

/// What is answered before a route is looked for.
fn unrouted(
    listeners: &[listen::Settings],
    authority: Option<&Authority>,
    before: Option<&ConfigBuild>,
) -> Option<Arc<Unrouted>> {
    let https_ports = of_listeners(listeners, before, |one| one.redirect_to_https);
    let challenges = authority.map(|authority| Challenges::new(&authority.folder));
    let is_any = challenges.is_some() || https_ports.iter().any(Option::is_some);
    is_any.then(|| Arc::new(Unrouted { challenges, https_ports }))
}

/// What comes to the listeners. None if that is requests everywhere.
fn serves(listeners: &[listen::Settings], before: Option<&ConfigBuild>) -> Option<Arc<[Serves]>> {
    let all = of_listeners(listeners, before, |one| one.serves);
    all.iter().any(|serves| *serves != Serves::Requests).then(|| all.into())
}

/// What the listeners of this process have of `next`, in the order of their numbers. One that is
/// gone from the file runs until a restart, with what it had.
fn of_listeners<T>(
    next: &[listen::Settings],
    before: Option<&ConfigBuild>,
    of: impl Fn(&listen::Settings) -> T,
) -> Vec<T> {
    let Some(before) = before else { return next.iter().map(of).collect() };
    let running = before.listeners.iter().enumerate();
    let found = running.map(|(index, running)| {
        let named = index_at(next, index, running.address).and_then(|index| next.get(index));
        of(named.unwrap_or(running))
    });
    found.collect()
}

/// Who may ask for decisions. A listener for them that is gone from the file, with the tokens that
/// were for it, runs until a restart, and asks for these.
fn callers(
    listeners: &[listen::Settings],
    next: &Arc<Callers>,
    before: Option<&ConfigBuild>,
) -> Arc<Callers> {
    let for_decisions = |one: &listen::Settings| one.serves == Serves::Decisions;
    match before.filter(|_| !listeners.iter().any(for_decisions)) {
        Some(before) if before.listeners.iter().any(for_decisions) => Arc::clone(&before.callers),
        _ => Arc::clone(next),
    }
}

/// The index of the listener with this address, preferably `index`.
fn index_at(all: &[listen::Settings], index: usize, address: SocketAddr) -> Option<usize> {
    let has = |index: &usize| all.get(*index).is_some_and(|settings| settings.address == address);
    Some(index).filter(has).or_else(|| (0..all.len()).find(has))
}

/// Replaces names by what was built under them. `config` has checked the names: where one is
/// missing, building it failed, and its errors prevent this snapshot from ever serving.
fn settings_of(
    route: &Route,
    policies: &NamedBuilds<policy::Settings, Policy>,
    upstreams: &NamedBuilds<upstream::Settings, Upstream>,
) -> RouteSettings {
    let unbuilt = || RouteAction::Respond(Respond { status: 503, ..Respond::default() });
    let action = match &route.action {
        config::RouteAction::Respond(own) => RouteAction::Respond(own.clone()),
        config::RouteAction::Redirect(to) => RouteAction::Redirect(to.clone()),
        config::RouteAction::Decide(domain) => RouteAction::Decide(domain.clone()),
        config::RouteAction::Upstream(name) => upstreams
            .get(name)
            .map_or_else(unbuilt, |(_, upstream)| RouteAction::Upstream(Arc::clone(upstream))),
    };
    let mirror = route.mirror.as_ref().and_then(|written| {
        let (_, upstream) = upstreams.get(&written.upstream)?;
        let config::Mirror { share, body_bytes_max, .. } = *written;
        Some(Mirror { upstream: Arc::clone(upstream), share, body_bytes_max })
    });
    let policy =
        route.policy.as_ref().and_then(|name| policies.get(name).map(|(_, policy)| (name, policy)));
    let policy = policy.map(|(name, policy)| RoutePolicy {
        policy: Arc::clone(policy),
        scope: Arc::new(Scope::new(
            route.scope().unwrap_or_default(),
            name.clone(),
            route.on_store_error,
            route.limit_decides,
        )),
        allow_on_error: route.allow_on_policy_error,
    });
    RouteSettings {
        name: route.name.clone(),
        host: route.host.clone(),
        path: route.path.clone(),
        methods: route.methods.clone(),
        listeners: route.listeners.clone(),
        action,
        policy,
        fields: route.fields,
        body_bytes_max: route.body_bytes_max,
        inspect: route.inspect,
        request_timeout: route.request_timeout,
        overrides: route.overrides.clone(),
        hash: route.hash.clone(),
        mirror,
        priority: route.priority,
        maintenance: route.maintenance.clone(),
        when: route.when.clone(),
        extras: route.extras.clone(),
    }
}
