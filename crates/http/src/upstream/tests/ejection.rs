//! Which failures eject a host, and how many hosts at once.

use super::*;

/// Reads requests and never answers.
async fn silent() -> ScriptedUpstream {
    ScriptedUpstream::new(|mut stream, _| async move { stream.closed().await }).await
}

/// Sends the head of an event stream, and then nothing.
async fn quiet() -> ScriptedUpstream {
    ScriptedUpstream::new(|mut stream, _| async move {
        stream.head().await;
        stream.send("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n").await;
        stream.closed().await;
    })
    .await
}

fn impatient(hosts: &[&ScriptedUpstream], failures: u32) -> Settings {
    let addresses: Vec<SocketAddr> = hosts.iter().map(|host| host.address).collect();
    let wait = Duration::from_millis(100);
    let ejection = Ejection { failures, ..Ejection::default() };
    Settings { response_header: wait, idle: wait, ejection, ..settings(&addresses) }
}

fn build(settings: &Settings) -> Arc<Upstream> {
    Arc::new(Upstream::build(settings, &Metrics::new(1)).unwrap())
}

fn ejected(upstream: &Upstream) -> usize {
    upstream.0.hosts.current().iter().filter(|host| host.is_ejected()).count()
}

/// Sends this many requests at the same time. All of them time out.
async fn time_out_together(upstream: &Arc<Upstream>, requests: usize) {
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..requests {
        let upstream = Arc::clone(upstream);
        tasks.spawn(async move { in_time(upstream.send(get())).await.unwrap_err().cause });
    }
    while let Some(cause) = tasks.join_next().await {
        assert_eq!(cause.unwrap(), Cause::Timeout);
    }
}

#[tokio::test]
async fn requests_that_were_under_way_together_and_time_out_count_once() {
    let (one, two) = (silent().await, silent().await);
    let upstream = build(&impatient(&[&one, &two], 3));
    time_out_together(&upstream, 30).await;
    assert_eq!(ejected(&upstream), 0, "one client with thirty slow requests ejects no host");
    time_out_together(&upstream, 30).await;
    assert_eq!(ejected(&upstream), 0);
    time_out_together(&upstream, 30).await;
    assert_eq!(ejected(&upstream), 1, "three times in a row, and yet not both");
}

#[tokio::test]
async fn a_reply_that_stands_still_is_no_failure_of_its_host() {
    let (one, two) = (quiet().await, quiet().await);
    let upstream = build(&impatient(&[&one, &two], 1));
    for _ in 0..6 {
        let reply = in_time(upstream.send(get())).await.unwrap();
        let error = in_time(reply.body.collect()).await.unwrap_err();
        assert!(matches!(error, crate::wire::BodyError::Idle), "{error}");
        assert_eq!(ejected(&upstream), 0);
    }
}

#[tokio::test]
async fn at_most_a_share_of_the_hosts_is_ejected_and_one_in_any_case() {
    for (hosts, max_percent, expected) in
        [(4, 50, 2), (3, 50, 1), (2, 50, 1), (3, 10, 1), (3, 100, 3)]
    {
        let mut dead = Vec::new();
        for _ in 0..hosts {
            dead.push(nobody().await);
        }
        let ejection = Ejection { failures: 1, max_percent, ..Ejection::default() };
        let upstream = build(&Settings { ejection, ..settings(&dead) });
        for _ in 0..50 {
            assert_eq!(in_time(upstream.send(get())).await.unwrap_err().cause, Cause::Connect);
        }
        assert_eq!(ejected(&upstream), expected, "{max_percent} % of {hosts}");
    }
}

#[tokio::test]
async fn requests_in_flight_when_a_host_is_ejected_do_not_decide_its_probe() {
    let (one, two) = (silent().await, silent().await);
    let metrics = Metrics::new(1);
    let ejection =
        Ejection { failures: 1, time: Duration::from_millis(100), ..Ejection::default() };
    let upstream =
        Upstream::build(&Settings { ejection, ..settings(&[one.address, two.address]) }, &metrics)
            .unwrap();
    let host = Arc::clone(&upstream.0.hosts.current()[0]);
    let now = || Some(crate::clock::monotonic());
    let ejections = |count: usize| {
        let line = format!(
            "weir_upstream_ejections_total{{upstream=\"api\",endpoint=\"http://{}\"}} {count}\n",
            one.address
        );
        assert!(metrics.encode().contains(&line), "{line}{}", metrics.encode());
    };
    let before = now();
    host.failed(&upstream.0, Cause::Timeout, before);
    ejections(1);
    until(|| host.may_probe(&upstream.0, 0.0)).await;
    host.failed(&upstream.0, Cause::Timeout, before);
    ejections(1);
    host.failed(&upstream.0, Cause::Timeout, now());
    ejections(2);
}
