//! Several hosts: which one gets a request, which are ejected, what is retried, and names whose
//! addresses change.

use std::collections::HashMap;
use std::io;
use std::sync::Mutex;

use super::super::hosts::{Answer, Found, Question, Resolver, Resolving};
use super::super::pool;
use super::*;
use crate::clock;
use crate::wire::tests::{CHUNKED, incoming};

/// A resolver with the test's own names.
#[derive(Clone, Debug, Default)]
struct TestResolver(Arc<Mutex<HashMap<String, Vec<SocketAddr>>>>);

impl TestResolver {
    fn set(&self, name: &str, addresses: &[SocketAddr]) {
        self.0.lock().unwrap().insert(name.to_owned(), addresses.to_vec());
    }

    fn forget(&self, name: &str) {
        self.0.lock().unwrap().remove(name);
    }
}

impl Resolver for TestResolver {
    fn resolve(&self, question: Question) -> Resolving {
        let Question::Name { host, .. } = question else { panic!("no service is asked for") };
        let found = self.0.lock().unwrap().get(&host).cloned();
        Box::pin(async move {
            let found = found.ok_or_else(|| io::Error::other("no such name"))?;
            Ok(Answer { found: found.into_iter().map(Found::at).collect(), ttl: None })
        })
    }
}

pub(super) fn build(settings: &Settings) -> Upstream {
    Upstream::build(settings, &Metrics::new(1)).unwrap()
}

/// Answers every request with its own name.
pub(super) async fn named(name: &'static str) -> ScriptedUpstream {
    ScriptedUpstream::new(move |mut stream, _| async move {
        while stream.head().await.is_some() {
            stream
                .send(&format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{name}", name.len()))
                .await;
        }
    })
    .await
}

pub(super) async fn answered_by(upstream: &Upstream) -> String {
    text(in_time(upstream.send(get())).await.unwrap()).await
}

/// How often each host answers.
pub(super) async fn tally(upstream: &Upstream, requests: usize) -> HashMap<String, usize> {
    let mut tally = HashMap::new();
    for _ in 0..requests {
        *tally.entry(answered_by(upstream).await).or_default() += 1;
    }
    tally
}

#[tokio::test]
async fn requests_that_follow_each_other_are_shared_by_all() {
    let (one, two, three) = (named("one").await, named("two").await, named("three").await);
    let upstream = build(&settings(&[one.address, two.address, three.address]));
    let tally = tally(&upstream, 300).await;
    assert!(["one", "two", "three"].iter().all(|name| tally[*name] > 50), "{tally:?}");
    // One connection each.
    assert_eq!((one.accepted(), two.accepted(), three.accepted()), (1, 1, 1));
}

#[tokio::test]
async fn a_host_with_more_to_do_gets_less() {
    let go = Arc::new(tokio::sync::Notify::new());
    let held = Arc::clone(&go);
    let slow = ScriptedUpstream::new(move |mut stream, _| {
        let held = Arc::clone(&held);
        async move {
            while stream.head().await.is_some() {
                held.notified().await;
                stream.send(OK).await;
            }
        }
    })
    .await;
    let fast = named("fast").await;
    let upstream = Arc::new(build(&settings(&[slow.address, fast.address])));
    let first = tokio::spawn({
        let upstream = Arc::clone(&upstream);
        async move { while answered_by(&upstream).await == "fast" {} }
    });
    until(|| slow.accepted() == 1).await;
    // One request waits there, so all others go to the other host.
    let tally = tally(&upstream, 50).await;
    assert_eq!(tally["fast"], 50);
    assert_eq!(slow.accepted(), 1);
    go.notify_one();
    in_time(first).await.unwrap();
    assert!(upstream.0.hosts.current().iter().all(|host| host.outstanding() == 0));
}

#[tokio::test]
async fn one_that_refuses_costs_no_reply_and_is_left_alone() {
    let (good, nowhere) = (named("good").await, nobody().await);
    let metrics = Metrics::new(1);
    let settings = settings(&[nowhere, good.address]);
    let upstream = Upstream::build(&settings, &metrics).unwrap();
    assert_eq!(tally(&upstream, 100).await["good"], 100);
    let line = format!(
        "weir_upstream_ejections_total{{upstream=\"api\",endpoint=\"http://{nowhere}\"}} 1\n"
    );
    assert!(metrics.encode().contains(&line), "{}", metrics.encode());
    let ejected: Vec<bool> =
        upstream.0.hosts.current().iter().map(|host| host.is_ejected()).collect();
    assert_eq!(ejected, [true, false]);
}

#[tokio::test]
async fn one_that_was_left_alone_is_tried_by_one_request_and_comes_back() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let good = named("good").await;
    let ejection = Ejection {
        failures: 1,
        time: Duration::from_millis(100),
        time_max: Duration::from_millis(400),
        ..Ejection::default()
    };
    let upstream = build(&Settings { ejection, ..settings(&[address, good.address]) });
    let back = || !upstream.0.hosts.current()[0].is_ejected();
    until_async(async || {
        assert_eq!(answered_by(&upstream).await, "good");
        !back()
    })
    .await;
    // Probed again and again, each time by one request, which the other host then answers.
    let began = clock::monotonic();
    while clock::monotonic() - began < Duration::from_millis(400) {
        assert_eq!(answered_by(&upstream).await, "good");
    }
    let listener = TcpListener::bind(address).await.unwrap();
    tokio::spawn(async move {
        loop {
            let mut stream = Stream(listener.accept().await.unwrap().0);
            tokio::spawn(async move {
                while stream.head().await.is_some() {
                    stream.send(OK).await;
                }
            });
        }
    });
    until_async(async || answered_by(&upstream).await == "ok").await;
    assert!(back());
}

#[tokio::test]
async fn all_endpoints_are_tried_if_all_are_ejected() {
    let dead: Vec<SocketAddr> = [nobody().await, nobody().await].into();
    let ejection = Ejection { max_percent: 100, ..Ejection::default() };
    let upstream = build(&Settings { ejection, ..settings(&dead) });
    for _ in 0..20 {
        let error = upstream.send(get()).await.unwrap_err();
        assert_eq!((error.cause, error.sent), (Cause::Connect, false));
    }
    assert!(upstream.0.hosts.current().iter().all(|host| host.is_ejected()));
    // One is back: it is found although its ejection is not over.
    let listener = TcpListener::bind(dead[0]).await.unwrap();
    tokio::spawn(async move {
        loop {
            let mut stream = Stream(listener.accept().await.unwrap().0);
            tokio::spawn(async move {
                while stream.head().await.is_some() {
                    stream.send(OK).await;
                }
            });
        }
    });
    assert_eq!(answered_by(&upstream).await, "ok");
}

/// Reads every request and cuts the connection.
async fn cutting() -> ScriptedUpstream {
    ScriptedUpstream::new(|mut stream, _| async move {
        stream.head().await;
    })
    .await
}

#[tokio::test]
async fn an_idempotent_request_without_a_body_survives_a_cut_and_no_other_does() {
    for method in ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "POST", "PATCH"] {
        let (cut, good) = (cutting().await, named("good").await);
        let metrics = Metrics::new(1);
        let ejection = Ejection { failures: 0, ..Ejection::default() };
        let upstream = Upstream::build(
            &Settings { ejection, ..settings(&[cut.address, good.address]) },
            &metrics,
        )
        .unwrap();
        let mut errors = 0;
        while cut.accepted() == 0 || errors == 0 && cut.accepted() < 3 {
            let mut request = get();
            request.method = method.parse().unwrap();
            match in_time(upstream.send(request)).await {
                Ok(reply) => assert_eq!(reply.status, 200),
                Err(error) => {
                    assert_eq!((error.cause, error.sent), (Cause::Cut, true));
                    errors += 1;
                }
            }
        }
        let repeated = !matches!(method, "POST" | "PATCH");
        assert_eq!(errors == 0, repeated, "{method}");
        let sent = format!(
            "weir_upstream_retries_total{{upstream=\"api\",result=\"sent\"}} {}\n",
            if repeated { 3 } else { 0 }
        );
        assert!(metrics.encode().contains(&sent), "{method}: {}", metrics.encode());
    }
}

#[tokio::test]
async fn a_request_with_a_body_or_without_another_host_or_that_was_slow_is_not_repeated() {
    let (one, two) = (cutting().await, cutting().await);
    let upstream = build(&settings(&[one.address, two.address]));
    let (_client, body) = incoming(&format!("{CHUNKED}3\r\nabc\r\n0\r\n\r\n")).await;
    let mut request = post(Body::incoming(body));
    request.method = http::Method::PUT;
    assert_eq!(in_time(upstream.send(request)).await.unwrap_err().cause, Cause::Cut);
    assert_eq!(one.accepted() + two.accepted(), 1);
    // Once, and not a third time.
    assert_eq!(in_time(upstream.send(get())).await.unwrap_err().cause, Cause::Cut);
    assert_eq!(one.accepted() + two.accepted(), 3);
    let alone = cutting().await;
    assert_eq!(
        in_time(build(&settings(&[alone.address])).send(get())).await.unwrap_err().cause,
        Cause::Cut
    );
    assert_eq!(alone.accepted(), 1);
    let silent = || async {
        ScriptedUpstream::new(|mut stream, _| async move { stream.closed().await }).await
    };
    let (one, two) = (silent().await, silent().await);
    let upstream = build(&Settings {
        response_header: Duration::from_millis(80),
        ..settings(&[one.address, two.address])
    });
    assert_eq!(in_time(upstream.send(get())).await.unwrap_err().cause, Cause::Timeout);
    assert_eq!(one.accepted() + two.accepted(), 1);
}

#[tokio::test]
async fn retry_says_what_is_tried_again() {
    let (cut, nowhere) = (cutting().await, nobody().await);
    let ejection = Ejection { failures: 0, ..Ejection::default() };
    for (retry, unsent) in [(Retry::Off, true), (Retry::Unsent, false)] {
        let good = named("good").await;
        let upstream = build(&Settings {
            retry,
            ejection: ejection.clone(),
            ..settings(&[nowhere, good.address])
        });
        let mut failed = 0;
        for _ in 0..50 {
            failed += usize::from(in_time(upstream.send(get())).await.is_err());
        }
        assert_eq!(failed > 0, unsent, "{retry:?}: {failed}");
        let upstream = build(&Settings {
            retry,
            ejection: ejection.clone(),
            ..settings(&[cut.address, good.address])
        });
        let mut failed = 0;
        for _ in 0..50 {
            failed += usize::from(in_time(upstream.send(get())).await.is_err());
        }
        assert!(failed > 0, "{retry:?}");
    }
}

#[tokio::test]
async fn second_tries_are_bounded_by_a_share_of_the_requests() {
    let (cut, good) = (cutting().await, named("good").await);
    let metrics = Metrics::new(1);
    let ejection = Ejection { failures: 0, ..Ejection::default() };
    let settings =
        Settings { ejection, retry_percent: 10, ..settings(&[cut.address, good.address]) };
    let upstream = Upstream::build(&settings, &metrics).unwrap();
    let mut failed = 0;
    for _ in 0..400 {
        failed += usize::from(in_time(upstream.send(get())).await.is_err());
    }
    // About 200 lost their connection. The initial 32 and a tenth of 400 went to the other host,
    // except for what the last requests earned.
    let sent = cut.accepted() - failed;
    assert!((68..=72).contains(&sent), "{sent} of {}", cut.accepted());
    for (result, count) in [("held", failed), ("sent", sent)] {
        let line = format!(
            "weir_upstream_retries_total{{upstream=\"api\",result=\"{result}\"}} {count}\n"
        );
        assert!(metrics.encode().contains(&line), "{line}{}", metrics.encode());
    }
}

#[tokio::test]
async fn a_names_addresses_are_all_used_and_followed() {
    let (one, two, three) = (named("one").await, named("two").await, named("three").await);
    let names = TestResolver::default();
    names.set("api.internal", &[one.address, two.address]);
    let every = Duration::from_millis(50);
    let settings = Settings {
        resolve_every: every,
        endpoints: vec!["http://api.internal".to_owned().into()],
        ..settings(&[])
    };
    let upstream =
        Upstream::build_with(&settings, &Metrics::new(1), Arc::new(names.clone())).unwrap();
    let before = tally(&upstream, 60).await;
    assert!(before["one"] > 10 && before["two"] > 10, "{before:?}");
    let kept = upstream.0.hosts.current();
    names.set("api.internal", &[three.address, two.address]);
    until_async(async || answered_by(&upstream).await == "three").await;
    let after = tally(&upstream, 60).await;
    assert!(!after.contains_key("one") && after["two"] > 10 && after["three"] > 10, "{after:?}");
    // The state of an address that stayed is kept, and its connection is in use.
    let now = upstream.0.hosts.current();
    assert!(now.iter().any(|host| {
        kept.iter()
            .any(|before| Arc::ptr_eq(before, host) && host.address == HostAddress::Ip(two.address))
    }));
    assert_eq!((one.accepted(), two.accepted(), three.accepted()), (1, 1, 1));
    // If the resolver fails or returns nothing, nothing changes.
    for _ in 0..2 {
        names.forget("api.internal");
        tokio::time::sleep(pool::SWEEP + every).await;
        let still = tally(&upstream, 60).await;
        assert!(still["two"] > 10 && still["three"] > 10, "{still:?}");
        names.set("api.internal", &[]);
    }
}

#[tokio::test]
async fn a_connection_to_an_address_that_is_gone_is_closed_after_use() {
    let (closed, mut was_closed) = tokio::sync::mpsc::unbounded_channel();
    let go = Arc::new(tokio::sync::Notify::new());
    let held = Arc::clone(&go);
    let gone = ScriptedUpstream::new(move |mut stream, _| {
        let (closed, held) = (closed.clone(), Arc::clone(&held));
        async move {
            while stream.head().await.is_some() {
                held.notified().await;
                stream.send(OK).await;
            }
            closed.send(()).unwrap();
        }
    })
    .await;
    let new = named("new").await;
    let names = TestResolver::default();
    names.set("api.internal", &[gone.address]);
    let endpoints = vec!["http://api.internal".to_owned().into()];
    let settings =
        Settings { resolve_every: Duration::from_millis(50), endpoints, ..settings(&[]) };
    let upstream = Arc::new(
        Upstream::build_with(&settings, &Metrics::new(1), Arc::new(names.clone())).unwrap(),
    );
    let under_way = tokio::spawn({
        let upstream = Arc::clone(&upstream);
        async move { answered_by(&upstream).await }
    });
    until(|| gone.accepted() == 1).await;
    names.set("api.internal", &[new.address]);
    until(|| upstream.0.hosts.current()[0].address == HostAddress::Ip(new.address)).await;
    assert_eq!(answered_by(&upstream).await, "new");
    go.notify_one();
    assert_eq!(in_time(under_way).await.unwrap(), "ok");
    in_time(was_closed.recv()).await.unwrap();
}

#[tokio::test]
async fn a_name_that_nobody_knows_is_a_failure_to_connect() {
    let settings =
        Settings { endpoints: vec!["http://api.internal".to_owned().into()], ..settings(&[]) };
    let upstream =
        Upstream::build_with(&settings, &Metrics::new(1), Arc::new(TestResolver::default()))
            .unwrap();
    let error = in_time(upstream.send(get())).await.unwrap_err();
    assert_eq!((error.cause, error.sent), (Cause::Connect, false));
}

/// Answers when allowed to, and counts how often it was asked.
#[derive(Debug)]
struct Slow {
    answers: TestResolver,
    may: Arc<tokio::sync::Notify>,
    asked: Arc<std::sync::atomic::AtomicUsize>,
}

impl Resolver for Slow {
    fn resolve(&self, question: Question) -> Resolving {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let (answer, may) = (self.answers.resolve(question), Arc::clone(&self.may));
        Box::pin(async move {
            may.notified().await;
            answer.await
        })
    }
}

#[tokio::test]
async fn a_slow_resolver_is_asked_once_and_outlives_the_requests_that_waited() {
    let one = named("one").await;
    let (answers, may, asked) =
        (TestResolver::default(), Arc::new(tokio::sync::Notify::new()), Arc::default());
    answers.set("api.internal", &[one.address]);
    let names = Slow { answers, may: Arc::clone(&may), asked: Arc::clone(&asked) };
    let settings = Settings {
        connect: Duration::from_millis(20),
        endpoints: vec!["http://api.internal".to_owned().into()],
        ..settings(&[])
    };
    let upstream = Upstream::build_with(&settings, &Metrics::new(1), Arc::new(names)).unwrap();
    for _ in 0..5 {
        let error = in_time(upstream.send(get())).await.unwrap_err();
        assert_eq!((error.cause, error.sent), (Cause::Timeout, false));
    }
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    may.notify_one();
    until_async(async || upstream.send(get()).await.is_ok()).await;
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn the_systems_names_are_found() {
    let scripted = ScriptedUpstream::answering(OK).await;
    let endpoints = vec![format!("http://localhost:{}", scripted.address.port()).into()];
    let upstream = build(&Settings { endpoints, ..settings(&[]) });
    for _ in 0..5 {
        assert_eq!(answered_by(&upstream).await, "ok");
    }
}

#[tokio::test]
async fn a_single_host_is_not_counted() {
    let scripted = ScriptedUpstream::answering(OK).await;
    let upstream = upstream(&scripted);
    let pool::Admission::Granted(permit) = pool::admit(&upstream.0, &Sender::default()) else {
        panic!("full")
    };
    assert!(permit.host().is_none());
    assert_eq!(upstream.0.hosts.current()[0].outstanding(), 0);
}

#[tokio::test]
async fn over_http2_hosts_share_and_fail_alike() {
    let serve = || async {
        ScriptedUpstream::new(|stream, _| async move {
            let Ok(mut connection) = h2::server::handshake(stream.0).await else { return };
            while let Some(Ok((_, mut respond))) = connection.accept().await {
                let mut stream = respond.send_response(http::Response::new(()), false).unwrap();
                let _ = stream.send_data(Bytes::from_static(b"ok"), true);
            }
        })
        .await
    };
    let (one, two) = (serve().await, serve().await);
    let addresses = [one.address, nobody().await, two.address];
    let upstream = build(&Settings { protocol: Protocol::H2, ..settings(&addresses) });
    for _ in 0..60 {
        assert_eq!(answered_by(&upstream).await, "ok");
    }
    assert_eq!((one.accepted(), two.accepted()), (1, 1));
    assert!(upstream.0.hosts.current().iter().all(|host| host.outstanding() == 0));
}

#[tokio::test]
async fn a_request_for_another_protocol_gets_the_connection() {
    let scripted = ScriptedUpstream::new(|mut stream, _| async move {
        let head = stream.head().await.unwrap();
        assert!(head.contains("upgrade: echo\r\n") && head.contains("connection: upgrade\r\n"), "{head}");
        stream.send("HTTP/1.1 101 Switching Protocols\r\nupgrade: echo\r\nconnection: upgrade\r\n\r\nearly").await;
        let said = stream.read_to("\n").await.unwrap();
        stream.send(&said).await;
        stream.closed().await;
    })
    .await;
    // Also on an upstream that uses HTTP/2 otherwise.
    for protocol in [Protocol::H1, Protocol::H2] {
        let upstream =
            build(&Settings { protocol, requests_per_worker: 1, ..settings(&[scripted.address]) });
        let mut request = get();
        request.fields.append("upgrade", "echo");
        request.fields.append("connection", "upgrade");
        request.upgrade = true;
        let reply = in_time(upstream.send(request)).await.unwrap();
        assert_eq!(reply.status, 101);
        let Some(crate::wire::Upgrade::Stream(mut stream)) = reply.upgrade else {
            panic!("no stream")
        };
        stream.write_all(b"hello\n").await.unwrap();
        let mut heard = [0; 11];
        in_time(stream.read_exact(&mut heard)).await.unwrap();
        assert_eq!(&heard, b"earlyhello\n");
        // It counts as long as it is held.
        assert_eq!(in_time(upstream.send(get())).await.unwrap_err().cause, Cause::Overload);
        drop(stream);
        assert!(matches!(
            pool::admit(&upstream.0, &Sender::default()),
            pool::Admission::Granted(_)
        ));
    }
}
