//! Requests that can't be decided because every instance of the pool is in use.

use std::sync::mpsc::channel;

use super::*;
use crate::policy::{Caps, MeasuredNames, RuntimeSettings, Settings as PolicySettings};

fn policy(runtime: &Arc<Runtime>, metrics: &Metrics) -> Policy {
    let settings = PolicySettings {
        name: "public".into(),
        module: Module::Shipped("client-ip".into()),
        cpu_time: Duration::from_secs(1),
        memory_bytes: 16 << 20,
        isolated: false,
        config_json: format!("{{\"limits\":[{TWO_A_MINUTE}]}}").into(),
        scripts: Arc::default(),
        measured: MeasuredNames::default(),
        caps: Caps::default(),
    };
    Policy::build(runtime, &settings, metrics).unwrap()
}

#[tokio::test]
async fn a_full_pool_is_503_also_where_failures_of_the_policy_let_requests_through() {
    let pool = RuntimeSettings { instances: 1, ..RuntimeSettings::default() };
    let runtime = Runtime::with(&pool, crate::proxy::fact_names()).unwrap();
    let metrics = Metrics::new(1);
    let policy = Arc::new(policy(&runtime, &metrics));
    let scope = Scope::new("public".into(), "public".into(), OnStoreError::Deny, false);
    let route =
        RoutePolicy { policy: Arc::clone(&policy), scope: Arc::new(scope), allow_on_error: true };
    let handler = TestHandler::new(vec![RouteSettings { policy: Some(route), ..respond("/a") }]);
    // Another thread keeps the only instance while this one asks.
    let (held, is_held) = channel();
    let (release, released) = channel::<()>();
    let other = std::thread::spawn(move || {
        policy.decide(&[("client-ip", "192.0.2.7")]).unwrap();
        held.send(()).unwrap();
        let _ = released.recv();
    });
    is_held.recv().unwrap();
    let refused = handler.get("/a").await;
    assert_eq!(refused.problem(503)["detail"], "Too many requests are being decided.");
    assert_eq!(refused.field("weir-degraded"), None, "it was not let through");
    handler.counted("weir_decisions_total{policy=\"public\",decision=\"failed\"}", 1);
    let errors = metrics.encode();
    assert!(
        errors.contains("weir_policy_errors_total{policy=\"public\",cause=\"overload\"} 1\n"),
        "{errors}"
    );
    drop(release);
    other.join().unwrap();
    assert_eq!(handler.get("/a").await.status, 200);
}
