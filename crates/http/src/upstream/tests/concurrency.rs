//! Upstreams with `concurrency`: places, and who waits for them.

use std::sync::Mutex;

use tokio::sync::Semaphore;

use super::hosts::build;
use super::multiplexed::{answer, multiplexing};
use super::*;
use crate::wire::tests::{CHUNKED, incoming};

/// An upstream that answers a request when it is told to, and knows which it got in which order.
struct Gated {
    scripted: ScriptedUpstream,
    arrived: Arc<Mutex<Vec<String>>>,
    under_way: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    answers: Arc<Semaphore>,
}

impl Gated {
    async fn new() -> Self {
        let arrived: Arc<Mutex<Vec<String>>> = Arc::default();
        let (under_way, most) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let answers = Arc::new(Semaphore::new(0));
        let script = {
            let all = (Arc::clone(&arrived), Arc::clone(&under_way), Arc::clone(&most));
            let answers = Arc::clone(&answers);
            move |mut stream: Stream, _| {
                let ((arrived, under_way, most), answers) = (all.clone(), Arc::clone(&answers));
                async move {
                    while let Some(head) = stream.head().await {
                        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
                        arrived.lock().unwrap().push(path);
                        let now = under_way.fetch_add(1, Ordering::SeqCst) + 1;
                        most.fetch_max(now, Ordering::SeqCst);
                        answers.acquire().await.unwrap().forget();
                        under_way.fetch_sub(1, Ordering::SeqCst);
                        stream.send(OK).await;
                    }
                }
            }
        };
        let scripted = ScriptedUpstream::new(script).await;
        Self { scripted, arrived, under_way, most, answers }
    }

    fn upstream(&self, concurrency: Concurrency) -> Arc<Upstream> {
        let settings =
            Settings { concurrency: Some(concurrency), ..settings(&[self.scripted.address]) };
        Arc::new(Upstream::build(&settings, &Metrics::new(1)).unwrap())
    }

    fn arrived(&self) -> Vec<String> {
        self.arrived.lock().unwrap().clone()
    }

    fn answer(&self, count: usize) {
        self.answers.add_permits(count);
    }
}

fn fixed(max: usize) -> Concurrency {
    Concurrency { max, max_wait: TEST_TIMEOUT, ..Concurrency::default() }
}

/// Sends a request for `path` in a task.
fn send(
    upstream: &Arc<Upstream>,
    path: &str,
    (priority, fair_key): (u8, u64),
) -> tokio::task::JoinHandle<Result<String, UpstreamError>> {
    let request = http::Request::get(path).header("host", "a").body(Body::empty()).unwrap();
    let upstream = Arc::clone(upstream);
    let sender = Sender { priority, fair_key, ..Sender::default() };
    tokio::spawn(async move {
        let request = request.into();
        let reply = upstream.send_from(request, &sender).await?;
        Ok(text(reply).await)
    })
}

fn waiting(upstream: &Upstream) -> usize {
    upstream.concurrency().unwrap().waiting
}

/// Nothing is under way and nobody waits.
async fn until_idle(upstream: &Upstream) {
    until(|| {
        let status = upstream.concurrency().unwrap();
        status.in_flight == 0 && status.waiting == 0
    })
    .await;
}

#[tokio::test]
async fn who_waits_is_served_by_priority_and_then_by_who_has_least() {
    let gated = Gated::new().await;
    let upstream = gated.upstream(fixed(1));
    let mut all = vec![send(&upstream, "/first", (4, 1))];
    until(|| gated.arrived().len() == 1).await;
    let order =
        [("/low", (0, 2)), ("/a1", (4, 1)), ("/a2", (4, 1)), ("/b", (4, 2)), ("/high", (7, 1))];
    for (index, (path, sender)) in order.into_iter().enumerate() {
        all.push(send(&upstream, path, sender));
        until(|| waiting(&upstream) == index + 1).await;
    }
    for done in 1..=6 {
        gated.answer(1);
        until(|| gated.arrived().len() == (done + 1).min(6)).await;
    }
    for request in all {
        assert_eq!(in_time(request).await.unwrap().unwrap(), "ok");
    }
    assert_eq!(gated.arrived(), ["/first", "/high", "/a1", "/a2", "/b", "/low"]);
    assert_eq!(gated.most.load(Ordering::SeqCst), 1);
    until_idle(&upstream).await;
}

#[tokio::test]
async fn whoever_asks_most_gets_no_more_than_its_share() {
    let gated = Gated::new().await;
    let upstream = gated.upstream(fixed(4));
    let mut all: Vec<_> = (0..40).map(|_| send(&upstream, "/greedy", (4, 1))).collect();
    until(|| waiting(&upstream) == 36).await;
    all.extend((0..4).map(|_| send(&upstream, "/modest", (4, 2))));
    until(|| waiting(&upstream) == 40).await;
    // Each has two of the four places then.
    gated.answer(6);
    until(|| gated.arrived().len() == 10).await;
    let modest = gated.arrived().iter().filter(|path| *path == "/modest").count();
    assert!(modest >= 3, "{:?}", gated.arrived());
    gated.answer(100);
    for request in all {
        in_time(request).await.unwrap().unwrap();
    }
    until_idle(&upstream).await;
}

#[tokio::test]
async fn a_wait_has_an_end_and_so_has_the_line() {
    let gated = Gated::new().await;
    let upstream = gated.upstream(Concurrency {
        max: 1,
        queue: 1,
        max_wait: Duration::from_millis(200),
        ..Concurrency::default()
    });
    let first = send(&upstream, "/first", (4, 1));
    until(|| gated.arrived().len() == 1).await;
    let late = send(&upstream, "/late", (4, 2));
    until(|| waiting(&upstream) == 1).await;
    let refused = in_time(send(&upstream, "/full", (4, 2))).await.unwrap().unwrap_err();
    assert_eq!((refused.cause, refused.sent), (Cause::Shed, false));
    let displacing = send(&upstream, "/displacing", (5, 3));
    let displaced = in_time(late).await.unwrap().unwrap_err();
    assert_eq!((displaced.cause, displaced.sent), (Cause::Shed, false));
    let waited = in_time(displacing).await.unwrap().unwrap_err();
    assert_eq!((waited.cause, waited.sent), (Cause::Shed, false));
    gated.answer(1);
    assert_eq!(in_time(first).await.unwrap().unwrap(), "ok");
    assert_eq!(gated.arrived(), ["/first"]);
    until_idle(&upstream).await;
}

#[tokio::test]
async fn whoever_gives_up_waiting_leaves_its_turn_to_the_next() {
    let gated = Gated::new().await;
    let upstream = gated.upstream(fixed(1));
    let first = send(&upstream, "/first", (4, 1));
    until(|| gated.arrived().len() == 1).await;
    let gone = send(&upstream, "/gone", (7, 2));
    until(|| waiting(&upstream) == 1).await;
    let next = send(&upstream, "/next", (4, 3));
    until(|| waiting(&upstream) == 2).await;
    gone.abort();
    until(|| waiting(&upstream) == 1).await;
    gated.answer(2);
    for request in [first, next] {
        assert_eq!(in_time(request).await.unwrap().unwrap(), "ok");
    }
    assert_eq!(gated.arrived(), ["/first", "/next"]);
    until_idle(&upstream).await;
}

#[tokio::test]
async fn a_place_is_held_to_the_end_of_the_reply_or_to_its_head_if_the_limit_is_adaptive() {
    for adaptive in [false, true] {
        a_place_is_held(adaptive).await;
    }
}

async fn a_place_is_held(adaptive: bool) {
    let scripted = ScriptedUpstream::new(|mut stream, number| async move {
        stream.head().await.unwrap();
        if number == 0 {
            stream.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n").await;
            stream.closed().await;
        } else {
            stream.send(OK).await;
        }
    })
    .await;
    let settings = Settings {
        concurrency: Some(Concurrency { adaptive, min: 1, ..fixed(1) }),
        ..settings(&[scripted.address])
    };
    let upstream = Arc::new(Upstream::build(&settings, &Metrics::new(1)).unwrap());
    let streaming = in_time(upstream.send(get())).await.unwrap();
    let second = send(&upstream, "/second", (4, 1));
    if !adaptive {
        until(|| waiting(&upstream) == 1).await;
        drop(streaming);
    }
    assert_eq!(in_time(second).await.unwrap().unwrap(), "ok");
    until_idle(&upstream).await;
}

/// Uploads whose clients stop in the middle, as many as there are places, and a request that is
/// answered meanwhile. Then they end.
async fn uploads_take_no_places(settings: Settings) {
    let concurrency = Concurrency { adaptive: true, min: 1, ..fixed(3) };
    let settings = Settings { concurrency: Some(concurrency), ..settings };
    let upstream = Arc::new(Upstream::build(&settings, &Metrics::new(1)).unwrap());
    let mut uploads = Vec::new();
    for _ in 0..3 {
        let (mut client, body) = incoming(CHUNKED).await;
        client.write_all(b"1\r\na\r\n").await.unwrap();
        let upstream = Arc::clone(&upstream);
        let sent = tokio::spawn(async move {
            let reply = upstream.send(post(Body::incoming(body))).await?;
            Ok::<_, UpstreamError>(text(reply).await)
        });
        uploads.push((client, sent));
    }
    assert_eq!(in_time(send(&upstream, "/", (4, 1))).await.unwrap().unwrap(), "ok");
    until(|| upstream.concurrency().unwrap().in_flight == 0).await;
    let (left, ending) = uploads.split_at_mut(1);
    left[0].1.abort();
    for (client, sent) in ending {
        client.write_all(b"0\r\n\r\n").await.unwrap();
        assert_eq!(in_time(sent).await.unwrap().unwrap(), "ok");
    }
    until_idle(&upstream).await;
}

#[tokio::test]
async fn slow_uploads_take_no_places_of_an_adaptive_limit() {
    let scripted = ScriptedUpstream::new(|mut stream, _| async move {
        while let Some(head) = stream.head().await {
            if head.starts_with("POST") && stream.read_to("0\r\n\r\n").await.is_none() {
                return;
            }
            stream.send(OK).await;
        }
    })
    .await;
    uploads_take_no_places(settings(&[scripted.address])).await;
    let multiplexing = multiplexing(10, |request, mut respond, _| async move {
        let mut body = request.into_body();
        while let Some(piece) = body.data().await {
            if piece.is_err() {
                return;
            }
        }
        answer(&mut respond, "ok");
    })
    .await;
    let settings = settings(&[multiplexing.address]);
    uploads_take_no_places(Settings { protocol: Protocol::H2, ..settings }).await;
}

/// Clients that come, wait, give up and are displaced, on several threads: no place is lost, and
/// none is given twice.
#[tokio::test]
async fn no_place_is_lost_or_given_twice_in_a_storm() {
    let gated = Gated::new().await;
    let upstream = gated.upstream(Concurrency {
        max: 3,
        queue: 8,
        max_wait: Duration::from_millis(5),
        ..Concurrency::default()
    });
    let answering = {
        let answers = Arc::clone(&gated.answers);
        tokio::spawn(async move {
            loop {
                answers.add_permits(1);
                tokio::time::sleep(Duration::from_micros(300)).await;
            }
        })
    };
    let workers = (0..2_u64).map(|worker| {
        let upstream = Arc::clone(&upstream);
        tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let clients =
                    (0..16).map(|client| storm(Arc::clone(&upstream), worker * 16 + client));
                let mut served = 0;
                for client in clients.map(tokio::spawn).collect::<Vec<_>>() {
                    served += in_time(client).await.unwrap();
                }
                served
            })
        })
    });
    let mut served = 0;
    for worker in workers.collect::<Vec<_>>() {
        served += in_time(worker).await.unwrap();
    }
    assert!(served >= 32, "{served}");
    answering.abort();
    gated.answer(10_000);
    until_idle(&upstream).await;
    for _ in 0..3 {
        assert_eq!(in_time(send(&upstream, "/", (4, 1))).await.unwrap().unwrap(), "ok");
    }
    until(|| gated.under_way.load(Ordering::SeqCst) == 0).await;
}

/// One client of the storm. Returns how many of its requests were answered.
async fn storm(upstream: Arc<Upstream>, client: u64) -> usize {
    let mut served = 0;
    for round in 0..60_u64 {
        let sender = (u8::try_from((client + round) % 8).unwrap(), client % 5);
        let mut request = send(&upstream, "/", sender);
        if (client + round).is_multiple_of(7) {
            tokio::time::sleep(Duration::from_micros(200 * (round % 9))).await;
            request.abort();
        }
        let status = upstream.concurrency().unwrap();
        assert!(status.in_flight <= status.limit, "{status:?}");
        match (&mut request).await {
            Ok(Ok(_)) => served += 1,
            Ok(Err(error)) => assert_eq!(error.cause, Cause::Shed),
            Err(aborted) => assert!(aborted.is_cancelled()),
        }
    }
    served
}

#[tokio::test]
async fn the_limit_follows_an_upstream_that_has_one_worker() {
    let worker = Arc::new(tokio::sync::Mutex::new(()));
    let scripted = ScriptedUpstream::new(move |mut stream, _| {
        let worker = Arc::clone(&worker);
        async move {
            while stream.head().await.is_some() {
                let working = worker.lock().await;
                tokio::time::sleep(Duration::from_millis(4)).await;
                drop(working);
                stream.send(OK).await;
            }
        }
    })
    .await;
    let concurrency = Concurrency {
        adaptive: true,
        min: 1,
        max_wait: Duration::from_millis(20),
        ..Concurrency::default()
    };
    let settings = Settings { concurrency: Some(concurrency), ..settings(&[scripted.address]) };
    let upstream = Arc::new(Upstream::build(&settings, &Metrics::new(1)).unwrap());
    while upstream.concurrency().unwrap().base.is_none() {
        in_time(send(&upstream, "/", (4, 1))).await.unwrap().unwrap();
    }
    let clients: Vec<_> = (0..64)
        .map(|client| {
            let upstream = Arc::clone(&upstream);
            tokio::spawn(async move {
                loop {
                    let shed = send(&upstream, "/", (4, client)).await.unwrap().is_err();
                    if shed {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                }
            })
        })
        .collect();
    until(|| upstream.concurrency().unwrap().limit <= 8).await;
    let status = upstream.concurrency().unwrap();
    assert!(status.base.is_some() && status.in_flight <= 64, "{status:?}");
    clients.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn a_place_that_was_taken_before_is_used_and_one_that_is_not_is_free_again() {
    let gated = Gated::new().await;
    let upstream = gated.upstream(fixed(1));
    let sender = Sender::default();
    let place = in_time(upstream.place(&sender)).await.unwrap();
    assert!(place.is_some());
    assert_eq!(upstream.concurrency().unwrap().in_flight, 1);
    gated.answer(1);
    let began = clock::monotonic();
    let reply = in_time(upstream.send_noting(get(), &sender, place, began, None)).await.unwrap();
    assert_eq!(text(reply).await, "ok");
    until_idle(&upstream).await;
    drop(in_time(upstream.place(&sender)).await.unwrap());
    until_idle(&upstream).await;
    let without = build(&settings(&[gated.scripted.address]));
    assert!(without.place(&sender).await.unwrap().is_none());
}

/// The same upstream with other settings, as after a reload.
fn after(before: &Upstream, settings: &Settings) -> Upstream {
    Upstream::build_within(settings, &Metrics::new(1), &Budget::unlimited(), Some(before)).unwrap()
}

#[tokio::test]
async fn a_reload_keeps_places_and_what_the_limit_has_learnt() {
    let scripted = ScriptedUpstream::answering(OK).await;
    let adaptive = Concurrency { adaptive: true, min: 4, max: 1_000, ..Concurrency::default() };
    let written = |concurrency: &Concurrency, retry_percent| Settings {
        concurrency: Some(concurrency.clone()),
        retry_percent,
        ..settings(&[scripted.address])
    };
    let upstream = Upstream::build(&written(&adaptive, 20), &Metrics::new(1)).unwrap();
    let first = upstream.concurrency().unwrap().limit;
    // Nothing is known of it before it has answered.
    assert_eq!((first, upstream.concurrency().unwrap().base), (16, None));
    until_async(async || {
        in_time(upstream.send(get())).await.unwrap();
        upstream.concurrency().unwrap().base.is_some()
    })
    .await;
    let learnt = upstream.concurrency().unwrap();
    let place = upstream.place(&Sender::default()).await.unwrap();
    let same = after(&upstream, &written(&adaptive, 10));
    assert_eq!(same.concurrency().unwrap(), ConcurrencyStatus { in_flight: 1, ..learnt });
    drop(place);
    assert_eq!(same.concurrency().unwrap().in_flight, 0);
    let narrow = Concurrency { min: 30, max: 40, ..adaptive.clone() };
    let other = after(&upstream, &written(&narrow, 20)).concurrency().unwrap();
    assert_eq!((other.limit, other.base), (30, learnt.base));
    // A fixed limit has nothing to learn, and another server is not known.
    let fixed = after(&upstream, &written(&fixed(7), 20)).concurrency().unwrap();
    assert_eq!((fixed.limit, fixed.base), (7, None));
    let elsewhere = ScriptedUpstream::answering(OK).await;
    let settings = Settings {
        endpoints: vec![format!("http://{}", elsewhere.address).into()],
        ..written(&adaptive, 20)
    };
    assert_eq!(after(&upstream, &settings).concurrency().unwrap().base, None);
}
