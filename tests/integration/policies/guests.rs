//! Guests that misbehave: each fails one request or one reload, never the process, and never
//! another request.

use std::time::Instant;

use crate::harness::client::{Client, get, storm};
use crate::harness::guest;
use crate::harness::toml::{Toml, simple};
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;

const WHOLE: &str =
    "name = \"day\", algorithm = \"fixed_window\", quota = 1000000, period = \"1d\"";

/// A configuration whose policy does what the query says.
fn config(url: &str, more: &str) -> Toml {
    Toml::new()
        .upstream("api", url, "")
        .more("[policies.guest]\nwasm = \"guest.wasm\"\ncpu_time = \"100ms\"\nmemory = \"64MiB\"")
        .route(&format!(
            "name = \"api\"\npath = \"/*\"\nupstream = \"api\"\npolicy = \"guest\"\n{more}"
        ))
}

fn start(upstream: &Upstream, more: &str) -> Weir {
    let module = std::fs::read(guest::misbehaving()).expect("the module");
    Weir::build(&config(&upstream.url(), more).text()).file("guest.wasm", &module).start()
}

/// Each way to misbehave in a decision, and the cause under which it is counted. The guest has
/// enough memory for its largest answers: they exceed the limit on an answer's size, not the one on
/// memory.
const WAYS: &[(&str, &str)] = &[
    ("loop", "time"),
    ("memory", "memory"),
    ("recursion", "stack"),
    ("panic", "trap"),
    ("error", "guest"),
    ("big-key", "answer"),
    ("long-key", "answer"),
    ("bad-name", "answer"),
    ("two-names", "answer"),
    ("17-limits", "answer"),
    ("million-limits", "answer"),
    ("period-0", "answer"),
    ("cost", "answer"),
    ("status-200", "answer"),
];

#[tokio::test]
async fn each_way_to_misbehave_costs_its_own_request_and_no_other() {
    let upstream = Upstream::start();
    let mut weir = start(&upstream, "");
    let mut client = Client::connect(weir.http).await.unwrap();
    let errors = |weir: &Weir| {
        ["time", "memory", "stack", "trap", "guest", "answer", "overload"]
            .map(|cause| errors_of(weir, cause))
            .iter()
            .sum::<u64>()
    };
    for (turn, (way, _)) in WAYS.iter().enumerate() {
        let reply = client
            .get(&format!("/?{way}"), &[])
            .await
            .unwrap_or_else(|error| panic!("{way}: {error}"));
        assert_eq!(reply.status, 503, "{way}: {reply:?}");
        assert_eq!(reply.header("content-type"), "application/problem+json");
        assert_eq!(errors(&weir), turn as u64 + 1, "{way}");
        // On the same connection, so on the same worker: the failure has left nothing behind there.
        assert_eq!(client.get("/?bypass", &[]).await.unwrap().status, 200, "after {way}");
    }
    for (_, cause) in WAYS {
        let expected = WAYS.iter().filter(|(_, counted)| *counted == *cause).count() as u64;
        assert_eq!(
            errors_of(&weir, cause),
            expected,
            "{cause}\n{}",
            weir.admin_page("/metrics").text()
        );
    }
    assert!(weir.running());
    assert_eq!(upstream.count(), WAYS.len() as u64, "only the good ones reached the upstream");
}

fn errors_of(weir: &Weir, cause: &str) -> u64 {
    weir.metric(&format!("weir_policy_errors_total{{policy=\"guest\",cause=\"{cause}\"}}"))
}

#[tokio::test]
async fn while_some_requests_meet_a_failing_guest_the_others_are_served() {
    let upstream = Upstream::start();
    let weir = start(&upstream, "");
    let (address, began) = (weir.http, Instant::now());
    let bad = tokio::spawn(async move {
        let mut client = Client::connect(address).await.unwrap();
        for turn in 0..60 {
            let (way, _) = WAYS[turn % WAYS.len()];
            assert_eq!(client.get(&format!("/?{way}"), &[]).await.unwrap().status, 503, "{way}");
        }
    });
    // `storm` requests `/`, which the guest answers with a limit of ten a second: the requests are
    // admitted or refused, but never fail.
    let tally = storm(&[weir.http], 16, 100, |_, _| Vec::new()).await;
    bad.await.unwrap();
    tally.only(&[200, 429]);
    // Each is counted, but the log is rate-limited.
    let seconds = began.elapsed().as_secs() + 1;
    let events = weir.output().events();
    let said: Vec<u64> = events
        .iter()
        .filter(|event| event["message"] == "policy failed")
        .filter_map(|event| event["held_back"].as_u64())
        .collect();
    assert!(
        (1..=4 * (seconds + 1)).contains(&(said.len() as u64)),
        "{} lines in {seconds} s",
        said.len()
    );
    assert!(said.len() as u64 + said.iter().sum::<u64>() <= 60, "{said:?}");
    assert_eq!(weir.metric("weir_decisions_total{policy=\"guest\",decision=\"failed\"}"), 60);
}

#[tokio::test]
async fn a_route_may_let_requests_through_when_its_policy_fails_and_says_so() {
    let upstream = Upstream::start();
    let weir = start(&upstream, "on_policy_error = \"allow\"");
    let reply = get(weir.http, "/?panic", &[]).await;
    assert_eq!(
        (reply.status, reply.header("weir-degraded").as_str()),
        (200, "policy"),
        "{reply:?}"
    );
    assert_eq!(upstream.count(), 1);
}

/// Whoever chooses the body can choose that the policy runs out of time or memory over it: that
/// must be no way past the limits.
#[tokio::test]
async fn a_policy_that_fails_over_a_body_denies_whatever_the_route_says() {
    let upstream = Upstream::start();
    let module = std::fs::read(guest::misbehaving()).expect("the module");
    let config = config(&upstream.url(), "on_policy_error = \"allow\"")
        .more("[policies.guest.config]\nfacts = [\"body.type\"]");
    let weir = Weir::build(&config.text()).file("guest.wasm", &module).start();
    let mut client = Client::connect(weir.http).await.unwrap();
    for how in ["loop", "memory", "recursion", "panic", "big-key"] {
        let reply = client.send("POST", &format!("/?{how}"), &[], "{}".into()).await.unwrap();
        assert_eq!((reply.status, reply.header("weir-degraded").as_str()), (503, ""), "{how}");
    }
    assert_eq!(upstream.count(), 0);
    // Without a body, and where the guest says so itself, the route decides.
    for (how, body) in [("loop", ""), ("error", "{}")] {
        let reply = client.send("POST", &format!("/?{how}"), &[], body.into()).await.unwrap();
        let degraded = reply.header("weir-degraded");
        assert_eq!((reply.status, degraded.as_str()), (200, "policy"), "{how}");
    }
    assert_eq!(weir.metric("weir_decisions_total{policy=\"guest\",decision=\"failed\"}"), 5);
    assert_eq!(weir.metric("weir_decisions_total{policy=\"guest\",decision=\"uncounted\"}"), 2);
}

#[tokio::test]
async fn a_policy_can_deny_and_decorate() {
    let upstream = Upstream::start();
    let weir = start(&upstream, "");
    let denied = get(weir.http, "/?deny", &[]).await;
    assert_eq!(
        (denied.status, denied.header("retry-after").as_str(), denied.header("x-why").as_str()),
        (403, "5", "because"),
        "{denied:?}"
    );
    assert_eq!(denied.header("content-type"), "application/problem+json");
    assert_eq!(upstream.count(), 0);
    let decorated = get(weir.http, "/?decorated", &[]).await;
    assert_eq!(
        (decorated.status, decorated.header("x-plan").as_str()),
        (200, "gold"),
        "{decorated:?}"
    );
    assert_eq!(upstream.only().header("x-plan").as_deref(), Some("gold"));
}

#[tokio::test]
async fn fields_that_would_break_framing_are_the_policys_error() {
    let upstream = Upstream::start();
    let weir = start(&upstream, "");
    for way in ["framing", "host", "smuggle", "header-name"] {
        assert_eq!(get(weir.http, &format!("/?{way}"), &[]).await.status, 503, "{way}");
    }
    assert_eq!(upstream.count(), 0);
}

#[test]
fn check_warns_of_a_policy_that_fails_whatever_it_is_asked() {
    let module = std::fs::read(guest::misbehaving()).expect("the module");
    let check = |more: &str| {
        let config = config("http://127.0.0.1:9", "")
            .more(&format!("[policies.guest.config]\n{more}"))
            .text();
        let line = 1 + config.lines().position(|line| line.starts_with("wasm")).unwrap();
        let (code, out, err) = Weir::check(Weir::build(&config).file("guest.wasm", &module));
        (code, out + &err, format!("proxy.toml:{line}:"))
    };
    let (code, told, line) = check("broken_ms = [0, 9000000000000]");
    assert_eq!(code, 0, "{told}");
    let begin = "warning: the policy guest fails (trap: ";
    let parts =
        [begin, "unreachable", "requests that were tried, such as GET /", "[failing-policy]"];
    for part in parts.into_iter().chain([line.as_str()]) {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert_eq!(told.matches("[failing-policy]").count(), 1, "{told}");
    // One that fails with some requests only may know why.
    let (code, told, _) = check("");
    assert!(code == 0 && told.ends_with(": no errors\n"), "{told}");
}

/// One of the hand-written guests under `tests/guests`.
fn wat(name: &str) -> Vec<u8> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guests").join(name);
    wat::parse_file(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Files that are not policies, with names.
fn no_policies() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("wrong-world", wat("wrong_world.wat")),
        ("foreign-import", wat("foreign_import.wat")),
        ("looping-start", wat("looping_start.wat")),
        ("outside-memory", wat("outside_memory.wat")),
        ("damaged", damaged()),
        ("text", b"hello".to_vec()),
        ("empty", Vec::new()),
    ]
}

/// A valid module of which a part was overwritten.
fn damaged() -> Vec<u8> {
    let mut module = std::fs::read(guest::api_key()).expect("the module");
    let middle = module.len() / 2;
    module[middle..middle + 64].iter_mut().for_each(|byte| *byte ^= 0xff);
    module
}

#[test]
fn a_module_that_cannot_be_a_policy_ends_the_start_with_its_place() {
    for (name, module) in no_policies() {
        let builder =
            Weir::build(&config("http://127.0.0.1:9", "").text()).file("guest.wasm", &module);
        let (code, out, err) = Weir::check(builder);
        assert_eq!(code, 78, "{name}: {out}{err}");
        let told = format!("{out}{err}");
        assert!(told.contains("guest.wasm") && told.contains("proxy.toml:"), "{name}: {told}");
    }
}

#[tokio::test]
async fn a_module_that_cannot_be_a_policy_costs_a_reload_and_nothing_else() {
    let upstream = Upstream::start();
    let good = simple(&upstream.url(), &[WHOLE]).text();
    let module = std::fs::read(guest::misbehaving()).unwrap();
    let weir = Weir::build(&good).file("guest.wasm", &module).start();
    let mut admitted = 0;
    let mut check = async |after: &str| {
        let reply = get(weir.http, "/", &[]).await;
        admitted += 1;
        assert_eq!(
            (reply.status, reply.remaining("day")),
            (200, 1_000_000 - admitted),
            "after {after}"
        );
    };
    for (name, module) in no_policies() {
        std::fs::write(weir.folder().join(format!("{name}.wasm")), module).unwrap();
        weir.reload(
            &good.replace("use = \"client-ip\"", &format!("wasm = \"{name}.wasm\"")),
            "refused",
        );
        check(name).await;
    }
    // A valid policy whose `configure` never returns.
    let looping = config(&upstream.url(), "")
        .more("[policies.guest.config]\nloops_in_configure = true")
        .text();
    weir.reload(&looping, "refused");
    check("a loop in configure").await;
    // A policy that reads an unknown fact.
    let curious =
        config(&upstream.url(), "").more("[policies.guest.config]\nfacts = [\"shoe-size\"]").text();
    weir.reload(&curious, "refused");
    assert!(weir.admin_page("/status").text().contains("shoe-size"));
    check("an unknown fact").await;
}

#[tokio::test]
async fn a_worker_and_a_reload_find_room_whatever_others_keep() {
    let upstream = Upstream::start();
    let text = |quota: u32| {
        let limit = format!(
            "name = \"day\", algorithm = \"fixed_window\", quota = {quota}, period = \"1d\""
        );
        simple(&upstream.url(), &[&limit])
            .server("workers = 2")
            .policy("second", &[&limit])
            .route("name = \"second\"\npath = \"/second\"\nupstream = \"api\"\npolicy = \"second\"")
            .more("[server.policies]\ninstances = 2")
            .text()
    };
    let weir = Weir::start(&text(1_000));
    // One worker would take all the room there is, as each policy runs on it.
    let mut first = Client::connect(weir.http).await.unwrap();
    for path in ["/", "/second", "/"] {
        assert_eq!(first.get(path, &[]).await.unwrap().status, 200);
    }
    // Connections of the other worker are among these.
    for path in ["/second", "/"].repeat(20) {
        assert_eq!(get(weir.http, path, &[]).await.status, 200);
    }
    weir.reload(&text(2_000), "applied");
    assert_eq!(get(weir.http, "/", &[]).await.status, 200);
}
