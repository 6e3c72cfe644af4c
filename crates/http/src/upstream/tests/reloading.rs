//! What an upstream takes over from the one before it, when a reload has changed its settings.

use std::collections::HashMap;
use std::io;

use super::super::hosts::{Answer, Found, Question, Resolver, Resolving, SystemResolver};
use super::hosts::{answered_by, build, named};
use super::*;

pub(super) fn after(before: &Upstream, settings: &Settings) -> Upstream {
    Upstream::build_within(settings, &Metrics::new(1), &Budget::unlimited(), Some(before)).unwrap()
}

pub(super) fn checked(endpoints: &[SocketAddr], healthy_min: usize) -> Settings {
    let probe =
        Probe::Http { method: CheckMethod::Get, path: "/".into(), statuses: vec![STATUSES_WELL] };
    let health = HealthCheck {
        probe,
        host: None,
        interval: TEST_TIMEOUT,
        timeout: TEST_TIMEOUT,
        rise: 1,
        fall: 1,
        healthy_min,
        slow_start: None,
    };
    Settings { health: Some(health), ..settings(endpoints) }
}

#[tokio::test]
async fn who_is_ejected_or_unhealthy_stays_so() {
    let (one, two, three) = (named("one").await, named("two").await, named("three").await);
    let before = build(&checked(&[one.address, two.address, three.address], 0));
    let hosts = before.0.hosts.current();
    hosts[0].eject_until(u64::MAX);
    hosts[1].set_healthy(&before.0, false);
    hosts[1].note_check(Some("status 500".to_owned()));
    drop(hosts);
    // Their places in the configuration do not matter.
    let new = named("new").await;
    let addresses = [new.address, two.address, one.address];
    let upstream = after(&before, &checked(&addresses, 0));
    drop(before);
    let status = upstream.status();
    let of = |address: SocketAddr| {
        let is_its = |status: &&EndpointStatus| status.address == HostAddress::Ip(address);
        let status = status.iter().find(is_its).unwrap();
        (status.ejected, status.healthy, status.check_failed.as_deref())
    };
    assert_eq!(of(one.address), (true, Some(true), None));
    assert_eq!(of(two.address), (false, Some(false), Some("status 500")));
    assert_eq!(of(new.address), (false, Some(true), None));
    assert_eq!(answered_by(&upstream).await, "new");
    // The time of its ejection goes on.
    let hosts = upstream.0.hosts.current();
    let ejected = hosts.iter().find(|host| host.is_ejected()).unwrap();
    ejected.eject_until(upstream.0.now_ms());
    until_async(async || {
        answered_by(&upstream).await;
        !upstream.status().iter().any(|status| status.ejected)
    })
    .await;
    // While too few are healthy, all get requests, even before the first check.
    let few = after(&upstream, &checked(&[two.address], 50));
    assert!(few.0.hosts.ignores_health());
}

#[tokio::test]
async fn what_other_settings_have_found_out_is_forgotten() {
    let (one, two) = (named("one").await, named("two").await);
    let before = build(&checked(&[one.address, two.address], 0));
    let hosts = before.0.hosts.current();
    hosts[0].eject_until(u64::MAX);
    hosts[1].set_healthy(&before.0, false);
    hosts[1].note_check(Some("status 500".to_owned()));
    let state = |upstream: &Upstream| {
        let status = upstream.status();
        (status[0].ejected, status[1].healthy, status[1].check_failed.clone())
    };
    let checked = checked(&[one.address, two.address], 0);
    let unchecked = after(&before, &Settings { health: None, ..checked.clone() });
    assert_eq!(state(&unchecked), (true, None, None));
    assert_eq!(state(&after(&unchecked, &checked)), (true, Some(true), None));
    let ejection = Ejection { failures: 0, ..Ejection::default() };
    let unejected = after(&before, &Settings { ejection, ..checked.clone() });
    assert_eq!(state(&unejected), (false, Some(false), Some("status 500".to_owned())));
    let proxied = Settings { proxy_protocol: Some(ProxyVersion::V1), ..checked };
    assert!(!state(&after(&before, &proxied)).0, "it may have failed for want of that");
}

#[tokio::test]
async fn another_server_by_the_same_name_is_not_known() {
    let one = named("one").await;
    let written = |name: &str| Settings {
        resolve_every: TEST_TIMEOUT,
        ..Settings::new("api", vec![format!("http://{name}:1")])
    };
    let build = |name: &str, before| {
        let names = HashMap::from([(name.to_owned(), one.address)]);
        let once: Arc<dyn Resolver> = Arc::new(Once(names.into()));
        let budget = Budget::unlimited();
        Upstream::build_of(&written(name), &Metrics::new(1), &budget, before, once).unwrap()
    };
    let before = build("one.test", None);
    assert_eq!(answered_by(&before).await, "one");
    before.0.hosts.current()[0].eject_until(u64::MAX);
    let other = build("two.test", Some(&before));
    assert_eq!(answered_by(&other).await, "one");
    assert!(!other.status()[0].ejected);
}

/// Names that can be resolved once.
#[derive(Debug)]
struct Once(std::sync::Mutex<HashMap<String, SocketAddr>>);

impl Resolver for Once {
    fn resolve(&self, question: Question) -> Resolving {
        let Question::Name { host, .. } = question else { panic!("no service is asked for") };
        let found = self.0.lock().unwrap().remove(&host);
        Box::pin(async move {
            let found = found.ok_or_else(|| io::Error::other("asked again"))?;
            Ok(Answer { found: vec![Found::at(found)], ttl: None })
        })
    }
}

#[tokio::test]
async fn names_that_were_resolved_are_not_asked_for_again() {
    let one = named("one").await;
    let written = |names: &[&str], retry_percent| Settings {
        retry_percent,
        resolve_every: TEST_TIMEOUT,
        ..Settings::new("api", names.iter().map(|name| format!("http://{name}:1")).collect())
    };
    let names = HashMap::from([("one.test".to_owned(), one.address)]);
    let once: Arc<dyn Resolver> = Arc::new(Once(names.into()));
    let build = |settings: &Settings, before: Option<&Upstream>, resolver| {
        let budget = Budget::unlimited();
        Upstream::build_of(settings, &Metrics::new(1), &budget, before, resolver).unwrap()
    };
    let before = build(&written(&["one.test"], 20), None, Arc::clone(&once));
    assert_eq!(answered_by(&before).await, "one");
    let same = build(&written(&["one.test"], 10), Some(&before), Arc::clone(&once));
    assert_eq!(same.status().len(), 1);
    assert_eq!(answered_by(&same).await, "one");
    // A name that is new is asked for at once, and the other is still known meanwhile.
    let more = build(&written(&["one.test", "two.test"], 20), Some(&same), once);
    assert!(more.0.hosts.is_due(&more.0));
    assert_eq!(answered_by(&more).await, "one");
    // A resolver that is another one makes no difference.
    let system = build(&written(&["one.test"], 30), Some(&more), Arc::new(SystemResolver));
    assert_eq!(answered_by(&system).await, "one");
}
