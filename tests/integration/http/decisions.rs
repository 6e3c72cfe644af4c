//! Weir decides for others: calls of Envoy's rate limit service, as a client of it sees them.
//! `interop` has Envoy itself.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::process::Signal;

use crate::harness::client::get_blocking;
use crate::harness::redis::Redis;
use crate::harness::rls::{
    Client, DAY, Descriptor, Hits, MINUTE, OK, OVER_LIMIT, Override, Request, descriptor, framed,
};
use crate::harness::tls::Http2;
use crate::harness::toml::Toml;
use crate::harness::weir::Weir;
use crate::harness::{TIMEOUT, eventually, free_address};

const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Rules by user, by path, by type of message and number, and one whose keys have an underscore.
const RULES: &str = r#"
[policies.edge]
use = "rls"

[[policies.edge.config.rules]]
descriptor = ["user"]
limits = [{ name = "user", algorithm = "fixed_window", quota = 3, period = "1d" }]

[[policies.edge.config.rules]]
descriptor = ["path"]
limits = [
    { name = "path", algorithm = "gcra", quota = 100, period = "30s" },
    { name = "path-day", algorithm = "fixed_window", quota = 5, period = "1d" },
]

[[policies.edge.config.rules]]
descriptor = ["path=/status"]
unlimited = true

[[policies.edge.config.rules]]
descriptor = ["message_type=marketing", "to_number"]
limits = [{ name = "marketing", algorithm = "fixed_window", quota = 2, period = "1m", alignment = "clock" }]

[[policies.edge.config.rules]]
descriptor = ["a_b", "c"]
limits = [{ name = "words", algorithm = "fixed_window", quota = 1, period = "1d" }]

[[policies.edge.config.rules]]
descriptor = ["shadow"]
limits = [{ name = "shadow", algorithm = "fixed_window", quota = 1, period = "1d", shadow = true }]
"#;

fn config(more: &str) -> Toml {
    Toml::new()
        .listener("serves = \"decisions\"")
        .route(&format!("domain = \"edge\"\npolicy = \"edge\"\n{more}"))
        .more(RULES)
}

async fn start(config: Toml) -> (Weir, Client) {
    start_text(config.text()).await
}

/// Its runtime must run while Weir starts.
pub(super) async fn start_text(text: String) -> (Weir, Client) {
    let weir = tokio::task::spawn_blocking(move || Weir::start(&text)).await.unwrap();
    let client = Client::connect(weir.http).await;
    (weir, client)
}

pub(super) fn user(name: &str) -> Descriptor {
    descriptor(&[("user", name)])
}

pub(super) fn hits(descriptor: Descriptor, value: u64) -> Descriptor {
    Descriptor { hits_addend: Some(Hits { value }), ..descriptor }
}

#[tokio::test]
async fn each_descriptor_has_its_code_and_all_are_charged_or_none() {
    let (_weir, client) = start(config("")).await;
    let ask = async |descriptors: &[Descriptor]| client.ask("edge", descriptors).await.unwrap();
    let path = || descriptor(&[("path", "/x")]);
    for left in [2, 1] {
        let answer = ask(&[user("a"), path(), descriptor(&[("nobody", "knows")])]).await;
        assert_eq!((answer.overall_code, answer.codes()), (OK, vec![OK; 3]));
        // Of a descriptor's limits, the one of which less is left.
        assert_eq!(answer.left(), [left, left + 2, 0]);
        let limits: Vec<_> = answer.statuses.iter().map(|one| one.current_limit.clone()).collect();
        let of = |index: usize| {
            limits[index].as_ref().map(|one| (one.name.as_str(), one.requests_per_unit, one.unit))
        };
        assert_eq!(
            (of(0), of(1), of(2)),
            (Some(("user", 3, DAY)), Some(("path-day", 5, DAY)), None)
        );
        let reset = answer.statuses[0].duration_until_reset.clone().unwrap();
        assert!(reset.nanos == 0 && (86_399..=86_400).contains(&reset.seconds), "{reset:?}");
        assert!(answer.field("ratelimit").contains(&format!("\"user\";r={left}")), "{answer:?}");
        assert_eq!(answer.raw_body, "");
    }
    // The last but one of one user, and the others of the call are not charged for its second.
    let answer = ask(&[user("b"), hits(user("a"), 2), path()]).await;
    assert_eq!((answer.overall_code, answer.codes()), (OVER_LIMIT, vec![OK, OVER_LIMIT, OK]));
    assert_eq!(answer.left(), [3, 1, 3]);
    assert!(answer.field("retry-after").parse::<u64>().unwrap() > 86_000, "{answer:?}");
    assert!(answer.field("content-type").contains("problem+json"), "{answer:?}");
    assert!(answer.raw_body.contains("\"violated-policies\":[\"user\"]"), "{answer:?}");
    let answer = ask(&[user("b"), user("a"), path()]).await;
    assert_eq!((answer.codes(), answer.left()), (vec![OK; 3], vec![2, 0, 2]));
    // The same descriptor twice takes two.
    assert_eq!(ask(&[user("c"), user("c")]).await.left(), [1, 1]);
    assert_eq!(ask(&[user("c"), user("c")]).await.codes(), [OVER_LIMIT; 2]);
    assert_eq!(ask(&[user("c")]).await.left(), [0]);
}

#[tokio::test]
async fn keys_are_never_joined_and_rules_are_for_whole_descriptors() {
    let (_weir, client) = start(config("")).await;
    let code = async |entries: &[(&str, &str)]| {
        client.ask("edge", &[descriptor(entries)]).await.unwrap().overall_code
    };
    assert_eq!(code(&[("a_b", "x"), ("c", "d")]).await, OK);
    assert_eq!(code(&[("a_b", "x"), ("c", "d")]).await, OVER_LIMIT);
    for other in [[("a_b", "x_c"), ("c", "d")], [("a_b", "x"), ("c", "c_d")]] {
        assert_eq!(code(&other).await, OK, "{other:?}");
    }
    for _ in 0..5 {
        assert_eq!(code(&[("path", "/status")]).await, OK);
        assert_eq!(code(&[("message_type", "alert"), ("to_number", "1")]).await, OK);
        assert_eq!(code(&[("message_type", "marketing")]).await, OK);
    }
    let marketing = [("message_type", "marketing"), ("to_number", "1")];
    let answer = client.ask("edge", &[hits(descriptor(&marketing), 3)]).await.unwrap();
    assert_eq!((answer.overall_code, answer.left()), (OVER_LIMIT, vec![2]));
    assert_eq!(answer.statuses[0].current_limit.as_ref().unwrap().unit, MINUTE);
    let reset = answer.statuses[0].duration_until_reset.clone();
    // Nothing is used, so all of it is there already.
    assert_eq!(reset.map(|reset| reset.seconds), Some(0));
    for _ in 0..3 {
        assert_eq!(code(&[("shadow", "1")]).await, OK);
    }
}

#[tokio::test]
async fn what_a_client_makes_too_large_is_over_its_limit() {
    let (_weir, client) = start(config("")).await;
    // Values that a client has sent, within the limits of Envoy's own head.
    let values: Vec<String> = (0..4).map(|nth| format!("{nth}{}", "v".repeat(40_000))).collect();
    let descriptors: Vec<_> = values.iter().map(|value| user(value)).collect();
    for left in [2, 1, 0] {
        assert_eq!(client.ask("edge", &descriptors).await.unwrap().left(), [left; 4]);
    }
    assert_eq!(client.ask("edge", &descriptors).await.unwrap().overall_code, OVER_LIMIT);
    // A larger call is answered too: by default, Envoy lets a request pass whose call fails.
    let huge = user(&"v".repeat(2 << 20));
    let answer = client.ask("edge", &[huge]).await.unwrap();
    assert_eq!((answer.overall_code, answer.statuses.len()), (OVER_LIMIT, 0));
}

#[tokio::test]
async fn hits_are_64_bits_and_none_of_them_wrap() {
    let (_weir, client) = start(config("")).await;
    let left = async |hits_addend: u32, of: Descriptor| {
        let domain = "edge".to_owned();
        let answer = client.call(&Request { domain, descriptors: vec![of], hits_addend }).await;
        let answer = answer.unwrap();
        (answer.overall_code, answer.left()[0])
    };
    // A look takes nothing, and 0 of the call is 1.
    assert_eq!(left(0, hits(user("a"), 0)).await, (OK, 3));
    assert_eq!(left(0, user("a")).await, (OK, 2));
    assert_eq!(left(2, user("a")).await, (OK, 0));
    assert_eq!(left(0, hits(user("a"), 0)).await, (OVER_LIMIT, 0));
    // A descriptor's own go before those of the call.
    assert_eq!(left(9, hits(user("b"), 1)).await, (OK, 2));
    for many in [4, u64::from(u32::MAX) + 2, 1 << 52, 1 << 63, u64::MAX] {
        assert_eq!(left(0, hits(user("b"), many)).await.0, OVER_LIMIT, "{many}");
    }
    assert_eq!(left(0, user("b")).await, (OK, 1));
}

#[tokio::test]
async fn negative_hits_come_back_whoever_was_charged_for_them() {
    let redis = tokio::task::spawn_blocking(Redis::start).await.unwrap();
    let rules = |limit: &str| {
        format!(
            "[policies.edge]\nuse = \"rls\"\n[[policies.edge.config.rules]]\ndescriptor = [\"user\"]\n\
             limits = [{{ name = \"user\", quota = 5, period = \"1d\", {limit} }}]"
        )
    };
    for (limit, store) in [
        ("algorithm = \"fixed_window\"", None),
        ("algorithm = \"sliding_window_counter\", cost = 1", None),
        ("algorithm = \"gcra\", burst = 5", None),
        ("algorithm = \"token_bucket\", burst = 5", Some(redis.address)),
        ("algorithm = \"fixed_window\", debt = 9", Some(redis.address)),
    ] {
        let config = Toml::new()
            .listener("serves = \"decisions\"")
            .route("domain = \"edge\"\npolicy = \"edge\"")
            .more(&rules(limit));
        let text = match store {
            Some(address) => config.redis("single", &[address]).text(),
            None => config.text(),
        };
        // On Redis, another proxy gives back what the first one has taken.
        let (_weir, client) = start_text(text.clone()).await;
        let second = match store {
            Some(_) => Some(start_text(text).await),
            None => None,
        };
        let other = second.as_ref().map_or(&client, |(_, other)| other);
        let ask = async |client: &Client, count: u64, is_negative_hits: bool| {
            let of = Descriptor { is_negative_hits, ..hits(user("n"), count) };
            let answer = client.ask("edge", &[of]).await.unwrap();
            (answer.overall_code, answer.left()[0])
        };
        assert_eq!(ask(&client, 5, false).await, (OK, 0), "{limit}");
        assert_eq!(ask(&client, 1, false).await.0, OVER_LIMIT, "{limit}");
        let owed = u64::from(limit.contains("debt"));
        assert_eq!(ask(other, 2 + owed, true).await, (OK, 2), "{limit}");
        assert_eq!(ask(other, 2, false).await, (OK, 0), "{limit}");
        // More than was taken is all of it.
        assert_eq!(ask(other, 1 << 60, true).await, (OK, 5), "{limit}");
        assert_eq!(ask(other, 0, true).await, (OK, 5), "{limit}");
    }
}

#[tokio::test]
async fn units_that_are_known_by_name_do_not_come_back() {
    let rules = "[policies.edge]\nuse = \"rls\"\n[[policies.edge.config.rules]]\ndescriptor = [\"user\"]\n\
         limits = [{ name = \"user\", algorithm = \"sliding_window_log\", quota = 5, period = \"1d\" }]";
    let config = Toml::new()
        .listener("serves = \"decisions\"")
        .route("domain = \"edge\"\npolicy = \"edge\"")
        .more(rules);
    let (_weir, client) = start(config).await;
    let negative = Descriptor { is_negative_hits: true, ..user("n") };
    let failed = client.ask("edge", &[negative]).await.unwrap_err();
    assert_eq!(failed.status, "3", "{failed:?}");
    assert!(failed.message.contains("sliding_window_log"), "{failed:?}");
}

#[tokio::test]
async fn a_caller_may_name_another_limit_and_a_wrong_one_is_its_own_mistake() {
    let (_weir, client) = start(config("")).await;
    let ask = async |requests_per_unit: u32, unit: i32| {
        let limit = Some(Override { requests_per_unit, unit });
        client.ask("edge", &[Descriptor { limit, ..descriptor(&[("any", "thing")]) }]).await
    };
    let answer = ask(2, DAY).await.unwrap();
    let limit = answer.statuses[0].current_limit.clone().unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit, answer.left()), (2, DAY, vec![1]));
    assert_eq!(ask(2, DAY).await.unwrap().overall_code, OK);
    assert_eq!(ask(2, DAY).await.unwrap().overall_code, OVER_LIMIT);
    // A higher one is the same counter.
    assert_eq!(ask(3, DAY).await.unwrap().left(), [0]);
    assert_eq!(ask(0, DAY).await.unwrap().overall_code, OVER_LIMIT);
    for unit in [0, 8, -3] {
        let failed = ask(2, unit).await.unwrap_err();
        assert_eq!(failed.status, "3", "{failed:?}");
        assert!(failed.message.contains("without a known unit"), "{failed:?}");
    }
    assert_eq!(ask(9, DAY).await.unwrap().overall_code, OK);
}

#[tokio::test]
async fn what_is_no_call_ends_alone() {
    let (_weir, client) = start(config("")).await;
    let status = async |domain: &str, descriptors: &[Descriptor]| {
        client.ask(domain, descriptors).await.unwrap_err().status
    };
    // Nobody's domain is an error, and not an admission.
    assert_eq!(status("other", &[user("a")]).await, "5");
    assert_eq!(status("", &[user("a")]).await, "3");
    assert_eq!(status("edge", &[]).await, "3");
    assert_eq!(status("edge", &[descriptor(&[])]).await, "3");
    assert_eq!(status("edge", &vec![user("a"); 17]).await, "3");
    let too_many: Vec<_> = (0..16).map(|nth| descriptor(&[("path", &nth.to_string())])).collect();
    assert_eq!(status("edge", &too_many).await, "14", "32 limits");
    let bytes = async |body: Bytes| client.call_at(PATH, body).await.unwrap_err().status;
    assert_eq!(bytes(Bytes::new()).await, "3");
    assert_eq!(bytes(framed(&[0xff; 9])).await, "3");
    assert_eq!(bytes(Bytes::from_static(&[1, 0, 0, 0, 0])).await, "3");
    assert_eq!(bytes(framed(&vec![0; 300 << 10])).await, "3");
    let other = client.call_at("/envoy.service.ratelimit.v3.RateLimitService/Other", framed(&[]));
    assert_eq!(other.await.unwrap_err().status, "12");
    assert_eq!(client.ask("edge", &[user("a")]).await.unwrap().left(), [2]);
}

const HEALTH: &str = "/grpc.health.v1.Health/Check";

/// A question about the health of a service.
fn about(service: &str) -> Bytes {
    let length = u8::try_from(service.len()).unwrap();
    framed(&[&[0x0a, length], service.as_bytes()].concat())
}

#[tokio::test]
async fn health_is_that_of_each_service() {
    let (_weir, client) = start(config("")).await;
    for service in ["", "envoy.service.ratelimit.v3.RateLimitService", "grpc.health.v1.Health"] {
        let status = client.call_at(HEALTH, about(service)).await.unwrap();
        assert_eq!(&status[..], [8, 1], "{service}");
    }
    assert_eq!(&client.call_at(HEALTH, framed(&[])).await.unwrap()[..], [8, 1]);
    for (question, status) in [
        (about("envoy.service.ratelimit.v2.RateLimitService"), "5"),
        (framed(&[0xff; 9]), "3"),
        (Bytes::new(), "3"),
        (framed(&vec![0; 5 << 10]), "3"),
    ] {
        assert_eq!(client.call_at(HEALTH, question).await.unwrap_err().status, status);
    }
}

#[tokio::test]
async fn who_asks_hears_of_a_shutdown_that_is_announced() {
    let (weir, client) = start(config("").server("shutdown_delay = \"20s\"")).await;
    let address = weir.http;
    let page = async || {
        let page = tokio::task::spawn_blocking(move || get_blocking(address, "/healthcheck"));
        page.await.unwrap().unwrap().status
    };
    assert_eq!(page().await, 200);
    weir.signal(Signal::TERM);
    let deadline = Instant::now() + TIMEOUT;
    while page().await == 200 {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(page().await, 503);
    assert_eq!(&client.call_at(HEALTH, about("")).await.unwrap()[..], [8, 2]);
    // Calls are answered until then.
    assert_eq!(client.ask("edge", &[user("a")]).await.unwrap().overall_code, OK);
}

#[tokio::test]
async fn what_was_used_already_is_kept_where_a_limit_may_be_in_debt() {
    let rules = |debt: &str| {
        format!(
            "[policies.edge]\nuse = \"rls\"\n[[policies.edge.config.rules]]\ndescriptor = [\"user\"]\n\
             limits = [{{ name = \"tokens\", algorithm = \"fixed_window\", quota = 10, period = \"1d\"{debt} }}]"
        )
    };
    for (debt, after) in [("", OK), (", debt = \"allowance\"", OVER_LIMIT)] {
        let config = Toml::new()
            .listener("serves = \"decisions\"")
            .route("domain = \"edge\"\npolicy = \"edge\"")
            .more(&rules(debt));
        let (_weir, client) = start(config).await;
        let code = async |of: Descriptor| client.ask("edge", &[of]).await.unwrap().overall_code;
        // As Envoy does with `apply_on_stream_done`: a look, and at the end what it came to.
        assert_eq!(code(hits(user("a"), 0)).await, OK);
        assert_eq!(code(hits(user("a"), 25)).await, OVER_LIMIT);
        assert_eq!(code(hits(user("a"), 0)).await, after, "{debt}");
        // More than there ever is.
        assert_eq!(code(hits(user("b"), 1 << 63)).await, OVER_LIMIT);
        assert_eq!(code(hits(user("b"), 0)).await, after, "{debt}");
    }
}

#[tokio::test]
async fn domains_with_one_policy_are_counted_apart_and_odd_bytes_are_counted() {
    let more = "\n[[routes]]\ndomain = \"*\"\npolicy = \"edge\"\n";
    let (_weir, client) = start_text(format!("{}{more}", config("").text())).await;
    let left = async |domain: &str| client.ask(domain, &[user("a")]).await.unwrap().left()[0];
    assert_eq!((left("edge").await, left("x").await, left("y").await), (2, 2, 2));
    assert_eq!((left("edge").await, left("x").await, left("y").await), (1, 1, 1));
    // A value that is not UTF-8: `user` is the byte FF.
    let mut call = vec![10, 4];
    call.extend(b"edge");
    let entry: Vec<u8> = [&[10, 4], &b"user"[..], &[18, 1, 0xff]].concat();
    call.extend([18, entry.len() as u8 + 2, 10, entry.len() as u8]);
    call.extend(entry);
    for expected in [2, 1, 0] {
        use prost::Message as _;
        let answer = client.call_at(PATH, framed(&call)).await.unwrap();
        let answer = crate::harness::rls::Response::decode(&answer[..]).unwrap();
        assert_eq!(answer.left(), [expected]);
    }
}

#[test]
fn the_guides_configuration_has_no_warnings() {
    const PAGE: &str = include_str!("../../../docs/rate-limit-service.md");
    const POLICY: &str = include_str!("../../../policies/rls/README.md");
    for page in [PAGE, POLICY] {
        let (_, rest) = page.split_once("```toml\n").unwrap();
        let text = rest.split("```").next().unwrap();
        let (code, out, errors) = Weir::check(Weir::build(text).argument("--strict"));
        assert_eq!(code, 0, "{out}{errors}");
    }
}

#[tokio::test]
async fn a_policy_of_ones_own_sees_domain_and_entries() {
    let policy = r#"
[[policies.own.config.limits]]
name = "own"
algorithm = "fixed_window"
quota = 1
period = "1d"
key = "{rls.domain}/{rls.entry.user}"
when = { "rls.entry.plan" = ["free"] }

[policies.own]
use = "keyed"
"#;
    let config = Toml::new()
        .listener("serves = \"decisions\"")
        .route("domain = \"*\"\npolicy = \"own\"")
        .more(policy);
    let (_weir, client) = start(config).await;
    let code = async |domain: &str, entries: &[(&str, &str)]| {
        client.ask(domain, &[descriptor(entries)]).await.unwrap().overall_code
    };
    let free = [("user", "a"), ("plan", "free")];
    assert_eq!((code("x", &free).await, code("x", &free).await), (OK, OVER_LIMIT));
    assert_eq!(code("y", &free).await, OK, "another domain");
    for _ in 0..3 {
        assert_eq!(code("x", &[("user", "a"), ("plan", "paid")]).await, OK);
    }
}

#[tokio::test]
async fn without_its_store_a_call_fails_and_is_never_answered_with_nothing() {
    // Nothing listens there.
    let nowhere: SocketAddr = free_address();
    let text = config("").redis("single", &[nowhere]).text();
    let (_weir, client) = start_text(text).await;
    let failed = client.ask("edge", &[user("a")]).await.unwrap_err();
    assert_eq!(failed.status, "14", "{failed:?}");
    // What nobody counts needs no store.
    assert_eq!(client.ask("edge", &[descriptor(&[("x", "y")])]).await.unwrap().overall_code, OK);
    let text = config("on_store_error = \"allow\"").redis("single", &[nowhere]).text();
    let (_weir, client) = start_text(text).await;
    let answer = client.ask("edge", &[user("a")]).await.unwrap();
    assert_eq!((answer.overall_code, answer.codes()), (OK, vec![OK]));
    assert_eq!(
        (answer.statuses[0].current_limit.clone(), answer.field("weir-degraded")),
        (None, "store")
    );
}

#[tokio::test]
async fn three_hundred_calls_that_are_reset_at_once_end_no_other() {
    use h2::client;
    let (weir, _) = start(config("")).await;
    let stream = tokio::net::TcpStream::connect(weir.http).await.unwrap();
    let (mut sender, connection) = client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let request = || {
        http::Request::post(format!("http://weir{PATH}"))
            .header("content-type", "application/grpc")
            .body(())
            .unwrap()
    };
    for _ in 0..6 {
        // As many as may be open at once, and their resets follow in the same write.
        let mut open = Vec::new();
        for _ in 0..50 {
            sender = sender.ready().await.unwrap();
            open.push(sender.send_request(request(), false).unwrap());
        }
        for (_, mut body) in open {
            body.send_reset(h2::Reason::CANCEL);
        }
    }
    let message = {
        use prost::Message as _;
        let descriptors = vec![user("a")];
        framed(&Request { domain: "edge".to_owned(), descriptors, hits_addend: 0 }.encode_to_vec())
    };
    let mut reply = loop {
        sender = sender.ready().await.expect("the connection goes on");
        let (reply, mut body) = sender.send_request(request(), false).unwrap();
        body.send_data(message.clone(), true).unwrap();
        match tokio::time::timeout(TIMEOUT, reply).await.unwrap() {
            // More than may be open at once, until their resets are read.
            Err(error) if error.reason() == Some(h2::Reason::REFUSED_STREAM) => {}
            reply => break reply.unwrap(),
        }
    };
    let data = reply.body_mut().data().await.unwrap().unwrap();
    assert!(data.len() > 5);
    let trailers = reply.body_mut().trailers().await.unwrap().unwrap();
    assert_eq!(trailers["grpc-status"], "0");
}

#[tokio::test]
async fn a_reload_changes_limits_and_loses_no_call() {
    let text = config("").text();
    let (mut weir, client) = start_text(text.clone()).await;
    let stop = Arc::new(AtomicBool::new(false));
    let asking = {
        let (client, stop) = (client.clone(), Arc::clone(&stop));
        tokio::spawn(async move {
            let mut calls = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                let answer = client.ask("edge", &[descriptor(&[("x", "y")])]).await.unwrap();
                assert_eq!(answer.overall_code, OK);
                calls += 1;
            }
            calls
        })
    };
    for quota in [7, 8, 9] {
        let next = text.replacen("quota = 3", &format!("quota = {quota}"), 1);
        let reload = move || {
            weir.reload(&next, "applied");
            weir
        };
        weir = tokio::task::spawn_blocking(reload).await.unwrap();
        let limit = async || {
            let answer = client.ask("edge", &[hits(user("a"), 0)]).await.unwrap();
            answer.statuses[0].current_limit.clone().unwrap().requests_per_unit
        };
        assert_eq!(limit().await, quota);
    }
    stop.store(true, Ordering::Relaxed);
    assert!(asking.await.unwrap() > 0);
}

#[tokio::test]
async fn calls_are_counted_logged_and_explained_like_requests() {
    let text = config("").text().replace("access = \"off\"", "access = \"all\"");
    let (weir, client) = start_text(format!("{text}\n")).await;
    let two = [user("a"), descriptor(&[("path", "/x")])];
    for expected in [OK, OK, OK, OVER_LIMIT] {
        assert_eq!(client.ask("edge", &two).await.unwrap().overall_code, expected);
    }
    client.ask("nobody", &two).await.unwrap_err();
    tokio::task::spawn_blocking(move || {
        let counted = |code: &str| {
            weir.metric(&format!("weir_requests_total{{route=\"edge\",code=\"{code}\"}}"))
        };
        assert_eq!((counted("200"), counted("429")), (3, 1));
        let decided = |how: &str| {
            weir.metric(&format!("weir_decisions_total{{policy=\"edge\",decision=\"{how}\"}}"))
        };
        assert_eq!((decided("admitted"), decided("refused")), (3, 1));
        let refused = eventually("the access line", || {
            let lines = weir.output().lines();
            let line = lines.iter().find(|line| line.contains("\"status\":429")).cloned();
            line.ok_or_else(|| lines.join("\n"))
        });
        assert!(refused.contains("edge") && refused.contains("user"), "{refused}");
        let page: serde_json::Value = weir.admin_page("/explain").json();
        let id = page["refusals"][0]["request_id"].as_str().unwrap();
        let explained = weir.admin_page(&format!("/explain?request_id={id}")).text();
        assert!(explained.contains("rls.descriptor"), "{explained}");
        // What callers say of their clients is hidden unless keys are shown.
        assert!(!explained.contains("/x"), "{explained}");
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_listener_for_decisions_serves_no_routes_and_others_no_decisions() {
    let respond = "path = \"/*\"\nrespond = { status = 200, body = \"here\" }";
    let text = config("").route(respond).text();
    let other = "\n[[listeners]]\naddress = \"127.0.0.1:0\"\n\n[admin]";
    let (weir, client) = start_text(text.replacen("\n[admin]", other, 1)).await;
    let plain = *weir.listeners().iter().find(|address| **address != weir.http).unwrap();
    let status = async |address: SocketAddr| {
        let reply = tokio::task::spawn_blocking(move || get_blocking(address, "/").unwrap());
        reply.await.unwrap().status
    };
    assert_eq!((status(weir.http).await, status(plain).await), (404, 200));
    assert_eq!(client.ask("edge", &[user("a")]).await.unwrap().left(), [2]);
    let mut requests = Http2::plain(plain).await.unwrap();
    let grpc = [("content-type", "application/grpc")];
    let reply = requests.send("POST", PATH, &grpc, framed(&[])).await.unwrap();
    assert_eq!(reply.body, "here", "a path like any other");
}

#[test]
fn mistakes_are_found_at_their_lines() {
    let lists = |text: &str| {
        let (code, _, errors) = Weir::check(Weir::build(text));
        assert_eq!(code, 78, "{errors}");
        errors
    };
    let good = config("").text();
    for (from, to, expected) in [
        ("serves = \"decisions\"", "", "no listener for what is asked about it"),
        ("policy = \"edge\"\n", "", "`policy = \"NAME\"`"),
        ("domain = \"edge\"", "domain = \"edge\"\npath = \"/x\"", "a route with a `path`"),
        ("domain = \"edge\"", "domain = \"\"", "1 to 64 bytes"),
        (
            "domain = \"edge\"",
            "name = \"one\"\ndomain = \"edge\"\npolicy = \"edge\"\n[[routes]]\ndomain = \"edge\"",
            "a domain that no other route has",
        ),
        ("descriptor = [\"user\"]", "descriptor = [\"=x\"]", "rules[0].descriptor[0]"),
    ] {
        let found = lists(&good.replacen(from, to, 1));
        assert!(found.contains(expected), "{expected}: {found}");
    }
}
