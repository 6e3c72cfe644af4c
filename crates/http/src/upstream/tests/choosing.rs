//! The choice between hosts by weight and by hash, and hosts that are Unix sockets.

use std::collections::HashSet;

use tokio::net::UnixListener;

use super::hosts::{answered_by, build, named, tally};
use super::*;

fn weighted(hosts: &[(&ScriptedUpstream, u32)]) -> Settings {
    let endpoints = hosts.iter().map(|(host, weight)| EndpointSettings {
        url: format!("http://{}", host.address),
        weight: *weight,
        zone: None,
        backup: false,
    });
    Settings { endpoints: endpoints.collect(), ..settings(&[]) }
}

/// Who answers a request with this hash.
async fn answered_for(upstream: &Upstream, hash: u64) -> String {
    belonging(upstream, Affinity::Hash(hash)).await
}

async fn belonging(upstream: &Upstream, affinity: Affinity) -> String {
    let sender = Sender { affinity: Some(affinity), ..Sender::default() };
    text(in_time(upstream.send_from(get(), &sender)).await.unwrap()).await
}

#[tokio::test]
async fn each_host_gets_requests_in_proportion_to_its_weight() {
    let (one, two, three) = (named("one").await, named("two").await, named("three").await);
    let upstream = build(&weighted(&[(&one, 1), (&two, 3), (&three, 6)]));
    let tally = tally(&upstream, 2_000).await;
    let near = |name: &str, expected: usize| tally[name].abs_diff(expected) < 120;
    assert!(near("one", 200) && near("two", 600) && near("three", 1_200), "{tally:?}");
}

#[tokio::test]
async fn hosts_share_the_requests_of_one_that_takes_none() {
    let (big, one, two) = (named("big").await, named("one").await, named("two").await);
    let upstream = build(&weighted(&[(&big, 98), (&one, 1), (&two, 1)]));
    for host in upstream.0.hosts.current().iter().take(1) {
        assert!(upstream.0.hosts.eject(host, u64::MAX, 50));
    }
    let tally = tally(&upstream, 400).await;
    assert!(tally["one"].abs_diff(200) < 60 && tally["two"].abs_diff(200) < 60, "{tally:?}");
}

#[tokio::test]
async fn load_is_compared_with_the_weight() {
    let held = Arc::new(tokio::sync::Semaphore::new(0));
    let holding = || {
        let held = Arc::clone(&held);
        ScriptedUpstream::new(move |mut stream, _| {
            let held = Arc::clone(&held);
            async move {
                while stream.head().await.is_some() {
                    held.acquire().await.unwrap().forget();
                    stream.send(OK).await;
                }
            }
        })
    };
    let (small, large) = (holding().await, holding().await);
    let upstream = Arc::new(build(&weighted(&[(&small, 1), (&large, 4)])));
    let mut waiting = Vec::new();
    for count in 1..=50 {
        let upstream = Arc::clone(&upstream);
        waiting.push(tokio::spawn(async move { answered_by(&upstream).await }));
        until(|| small.accepted() + large.accepted() == count).await;
    }
    // Ten and forty, were there no chance in it.
    assert!((8..=12).contains(&small.accepted()), "{}", small.accepted());
    held.add_permits(50);
    for request in waiting {
        in_time(request).await.unwrap();
    }
}

#[tokio::test]
async fn a_hash_has_one_host_and_another_one_while_that_is_down() {
    let names = ["one", "two", "three"];
    let mut hosts = Vec::new();
    for name in names {
        hosts.push(named(name).await);
    }
    let pairs: Vec<_> = hosts.iter().map(|host| (host, 1)).collect();
    let upstream = build(&weighted(&pairs));
    let mut owners = Vec::new();
    for hash in 0..60 {
        let owner = answered_for(&upstream, hash).await;
        assert_eq!(answered_for(&upstream, hash).await, owner);
        owners.push(owner);
    }
    assert_eq!(owners.iter().collect::<HashSet<_>>().len(), 3, "{owners:?}");
    // Another process ranks them alike, whatever their order.
    let turned: Vec<_> = hosts.iter().rev().map(|host| (host, 1)).collect();
    let other = build(&weighted(&turned));
    for hash in 0..20 {
        assert_eq!(answered_for(&other, hash).await, owners[hash as usize]);
    }
    upstream.0.hosts.current()[0].eject_until(u64::MAX);
    for hash in 0..60 {
        let (before, now) = (&owners[hash as usize], answered_for(&upstream, hash).await);
        assert!(now != "one" && (before == "one" || *before == now), "{before} {now}");
    }
}

#[tokio::test]
async fn one_hash_alone_does_not_overload_its_host() {
    let held = Arc::new(tokio::sync::Semaphore::new(0));
    let mut hosts = Vec::new();
    for _ in 0..4 {
        let held = Arc::clone(&held);
        hosts.push(
            ScriptedUpstream::new(move |mut stream, _| {
                let held = Arc::clone(&held);
                async move {
                    while stream.head().await.is_some() {
                        held.acquire().await.unwrap().forget();
                        stream.send(OK).await;
                    }
                }
            })
            .await,
        );
    }
    let pairs: Vec<_> = hosts.iter().map(|host| (host, 1)).collect();
    let upstream = Arc::new(build(&weighted(&pairs)));
    let mut waiting = Vec::new();
    let accepted = || hosts.iter().map(ScriptedUpstream::accepted).sum::<usize>();
    for count in 1..=40 {
        let upstream = Arc::clone(&upstream);
        waiting.push(tokio::spawn(async move { answered_for(&upstream, 7).await }));
        until(|| accepted() == count).await;
    }
    // A quarter more than a fourth of forty, rounded up.
    let most = hosts.iter().map(ScriptedUpstream::accepted).max().unwrap();
    assert!(most <= 13, "{most}");
    held.add_permits(40);
    for request in waiting {
        in_time(request).await.unwrap();
    }
}

#[tokio::test]
async fn a_host_may_be_a_unix_socket() {
    let path = std::env::temp_dir().join(format!(
        "weir-{}-{}.sock",
        std::process::id(),
        fastrand::u32(..)
    ));
    let listener = UnixListener::bind(&path).unwrap();
    let serving = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut head = String::new();
                while let Ok(byte) = stream.read_u8().await {
                    head.push(char::from(byte));
                    if head.ends_with("\r\n\r\n") {
                        head.clear();
                        stream.write_all(OK.as_bytes()).await.unwrap();
                    }
                }
            });
        }
    });
    let url = format!("unix:{}", path.display());
    let upstream = build(&Settings { endpoints: vec![url.clone().into()], ..settings(&[]) });
    for _ in 0..3 {
        assert_eq!(answered_by(&upstream).await, "ok");
    }
    assert_eq!(upstream.status()[0].address.to_string(), url);
    assert_eq!(upstream.reach().await, [(format!("{url} at {url}"), Ok(()))]);
    serving.abort();
    std::fs::remove_file(&path).unwrap();
    let gone = build(&Settings { endpoints: vec![url.into()], ..settings(&[]) });
    assert_eq!(in_time(gone.send(get())).await.unwrap_err().cause, Cause::Connect);
}

#[tokio::test]
async fn a_host_that_was_ejected_comes_back_with_hashes_too() {
    let (one, two) = (named("one").await, named("two").await);
    let upstream = build(&weighted(&[(&one, 1), (&two, 1)]));
    answered_by(&upstream).await;
    let host = Arc::clone(&upstream.0.hosts.current()[0]);
    host.eject_until(upstream.0.now_ms() + 50);
    until_async(async || {
        answered_for(&upstream, 1).await;
        !host.is_ejected()
    })
    .await;
    let owners: HashSet<String> = {
        let mut owners = HashSet::new();
        for hash in 0..40 {
            owners.insert(answered_for(&upstream, hash).await);
        }
        owners
    };
    assert_eq!(owners.len(), 2, "{owners:?}");
}

#[tokio::test]
async fn a_light_host_stays_light_while_there_is_little_to_do() {
    let (stable, canary) = (named("stable").await, named("canary").await);
    let upstream = Arc::new(build(&weighted(&[(&stable, 99), (&canary, 1)])));
    let clients = (0..4).map(|_| {
        let upstream = Arc::clone(&upstream);
        tokio::spawn(async move { tally(&upstream, 300).await })
    });
    let mut at_canary = 0;
    for client in clients.collect::<Vec<_>>() {
        at_canary += client.await.unwrap().get("canary").copied().unwrap_or_default();
    }
    assert!(at_canary < 60, "{at_canary} of 1,200");
}

/// Hosts with a zone, of which those without one are backups.
fn zoned(hosts: &[(&ScriptedUpstream, Option<&str>)]) -> Settings {
    let endpoints = hosts.iter().map(|(host, zone)| EndpointSettings {
        url: format!("http://{}", host.address),
        weight: 1,
        zone: zone.map(str::to_owned),
        backup: zone.is_none(),
    });
    Settings { endpoints: endpoints.collect(), zone: Some("here".into()), ..settings(&[]) }
}

fn host_at(upstream: &Upstream, of: &ScriptedUpstream) -> Arc<host::Host> {
    let hosts = upstream.0.hosts.current();
    let at = |host: &&Arc<host::Host>| host.address == HostAddress::Ip(of.address);
    Arc::clone(hosts.iter().find(at).unwrap())
}

/// Who answers.
async fn answering(upstream: &Upstream) -> Vec<String> {
    let mut names: Vec<String> = tally(upstream, 60).await.into_keys().collect();
    names.sort_unstable();
    names
}

#[tokio::test]
async fn requests_stay_in_the_zone_while_enough_of_it_can_take_them() {
    let (one, two, three) = (named("one").await, named("two").await, named("three").await);
    let far = named("far").await;
    let hosts =
        [(&far, Some("there")), (&one, Some("here")), (&two, Some("here")), (&three, Some("here"))];
    let upstream = build(&Settings { zone_min: 60, ..zoned(&hosts) });
    assert_eq!(answering(&upstream).await, ["one", "three", "two"]);
    host_at(&upstream, &one).eject_until(u64::MAX);
    assert_eq!(answering(&upstream).await, ["three", "two"], "two of three");
    host_at(&upstream, &two).eject_until(u64::MAX);
    assert_eq!(answering(&upstream).await, ["far", "three"], "one of three");
    host_at(&upstream, &far).eject_until(u64::MAX);
    assert_eq!(answering(&upstream).await, ["three"], "there is no other");
    // In another zone, or in none, the zones of hosts say nothing.
    let elsewhere = build(&Settings { zone: Some("nowhere".into()), ..zoned(&hosts) });
    assert_eq!(answering(&elsewhere).await, ["far", "one", "three", "two"]);
}

#[tokio::test]
async fn a_backup_gets_requests_while_no_other_can_take_any() {
    let (main, other, backup) = (named("main").await, named("other").await, named("backup").await);
    let upstream =
        build(&zoned(&[(&backup, None), (&main, Some("there")), (&other, Some("there"))]));
    assert_eq!(answering(&upstream).await, ["main", "other"]);
    host_at(&upstream, &main).eject_until(u64::MAX);
    assert_eq!(answering(&upstream).await, ["other"]);
    host_at(&upstream, &other).eject_until(u64::MAX);
    assert_eq!(answered_by(&upstream).await, "backup");
    // It is probed though no request is for it.
    host_at(&upstream, &other).eject_until(upstream.0.now_ms());
    until_async(async || answered_by(&upstream).await == "other").await;
    assert_eq!(answering(&upstream).await, ["other"]);
}

#[tokio::test]
async fn a_request_that_a_zone_or_a_rank_refuses_is_sent_on() {
    let (far, backup) = (named("far").await, named("backup").await);
    let nowhere = || async {
        let gone = named("gone").await;
        gone.task.abort();
        until_async(async || TcpStream::connect(gone.address).await.is_err()).await;
        gone
    };
    let near = nowhere().await;
    let upstream = build(&zoned(&[(&near, Some("here")), (&far, Some("there"))]));
    assert_eq!(answering(&upstream).await, ["far"]);
    let upstream = build(&zoned(&[(&near, Some("here")), (&backup, None)]));
    assert_eq!(answering(&upstream).await, ["backup"]);
}

#[tokio::test]
async fn a_client_stays_at_its_host_while_that_can_take_its_requests() {
    let (one, two) = (named("one").await, named("two").await);
    let upstream = build(&weighted(&[(&one, 1), (&two, 1_000)]));
    let tag = HostAddress::Ip(one.address).tag();
    for _ in 0..20 {
        assert_eq!(belonging(&upstream, Affinity::Host(tag)).await, "one");
    }
    host_at(&upstream, &one).eject_until(u64::MAX);
    assert_eq!(belonging(&upstream, Affinity::Host(tag)).await, "two");
    assert_eq!(belonging(&upstream, Affinity::Host(tag ^ 1)).await, "two", "nobody's");
    // Another one that may be tried again is tried by others.
    host_at(&upstream, &one).eject_until(upstream.0.now_ms());
    let other = HostAddress::Ip(two.address).tag();
    assert_eq!(belonging(&upstream, Affinity::Host(other)).await, "two");
    until_async(async || answered_by(&upstream).await == "one").await;
}

#[tokio::test]
async fn a_session_stays_at_no_backup_that_is_not_used() {
    let (main, backup) = (named("main").await, named("backup").await);
    let upstream = build(&zoned(&[(&main, Some("there")), (&backup, None)]));
    let tag = HostAddress::Ip(backup.address).tag();
    assert_eq!(belonging(&upstream, Affinity::Host(tag)).await, "main");
    host_at(&upstream, &main).eject_until(u64::MAX);
    assert_eq!(belonging(&upstream, Affinity::Host(tag)).await, "backup");
}

#[tokio::test]
async fn a_backup_stands_in_for_those_that_are_unhealthy_or_fail() {
    let (one, two, backup) = (named("one").await, named("two").await, named("backup").await);
    let hosts = [(&one, Some("a")), (&two, Some("a")), (&backup, None)];
    let health = reloading::checked(&[], 50).health;
    let upstream = build(&Settings { health, ..zoned(&hosts) });
    let healthy = |of: &ScriptedUpstream, is: bool| {
        host_at(&upstream, of).set_healthy(&upstream.0, is);
        upstream.0.hosts.judge(50);
    };
    healthy(&one, false);
    assert_eq!(answering(&upstream).await, ["two"]);
    healthy(&two, false);
    assert_eq!(answering(&upstream).await, ["backup"]);
    // Without one that is well, checks decide nothing.
    healthy(&backup, false);
    assert_eq!(answering(&upstream).await, ["one", "two"]);
    // With a backup all others may be ejected, and without one only half of them.
    let eject = |upstream: &Upstream| {
        let of = |host: &ScriptedUpstream| host_at(upstream, host);
        [&one, &two].map(|host| upstream.0.hosts.eject(&of(host), u64::MAX, 50))
    };
    let with = build(&zoned(&hosts));
    assert_eq!(eject(&with), [true, true]);
    assert_eq!(eject(&build(&zoned(&hosts[..2]))), [true, false]);
    // The same with another zone.
    let zones = [(&one, Some("here")), (&two, Some("here")), (&backup, Some("there"))];
    assert_eq!(eject(&build(&zoned(&zones))), [true, true]);
}

#[tokio::test]
async fn another_zone_that_is_well_stands_in_for_one_that_is_not() {
    let (one, two, three) = (named("one").await, named("two").await, named("three").await);
    let (far, away) = (named("far").await, named("away").await);
    let zone = [(&one, Some("here")), (&two, Some("here")), (&three, Some("here"))];
    let health = reloading::checked(&[], 50).health;
    let with = |others: &[&ScriptedUpstream], down: &[&ScriptedUpstream]| {
        let others = others.iter().map(|other| (*other, Some("there")));
        let hosts: Vec<_> = zone.into_iter().chain(others).collect();
        let upstream = build(&Settings { health: health.clone(), ..zoned(&hosts) });
        down.iter().for_each(|of| host_at(&upstream, of).set_healthy(&upstream.0, false));
        upstream.0.hosts.judge(50);
        upstream
    };
    // One of four is healthy, but all of the other zone.
    let upstream = with(&[&far], &[&one, &two, &three]);
    assert_eq!(answering(&upstream).await, ["far"]);
    let upstream = with(&[&far], &[&one, &two]);
    assert_eq!(answering(&upstream).await, ["far", "three"]);
    // A zone that is well needs no other.
    let upstream = with(&[&far, &away], &[&one, &far, &away]);
    assert_eq!(answering(&upstream).await, ["three", "two"]);
    // Where too few are healthy in both, checks decide nothing.
    let upstream = with(&[&far], &[&one, &two, &three, &far]);
    assert_eq!(answering(&upstream).await, ["one", "three", "two"]);
}

#[tokio::test]
async fn one_that_starts_slowly_leaves_nothing_to_one_that_is_down() {
    let (slow, down, backup) = (named("slow").await, named("down").await, named("backup").await);
    let with = |hosts: &[(&ScriptedUpstream, Option<&str>)]| {
        let health = reloading::checked(&[], 0).health.unwrap();
        let health = HealthCheck { slow_start: Some(TEST_TIMEOUT * 100), ..health };
        let upstream = build(&Settings { health: Some(health), ..zoned(hosts) });
        host_at(&upstream, &down).set_healthy(&upstream.0, false);
        host_at(&upstream, &slow).set_healthy(&upstream.0, false);
        host_at(&upstream, &slow).set_healthy(&upstream.0, true);
        upstream
    };
    let all = [(&slow, Some("a")), (&down, Some("a")), (&backup, None)];
    let tally = tally(&with(&all), 400).await;
    assert!(!tally.contains_key("down"), "{tally:?}");
    assert!(tally["backup"] > tally["slow"], "{tally:?}");
    // Nobody else is there.
    let alone = with(&all[..2]);
    assert_eq!(answering(&alone).await, ["slow"]);
    let tag = HostAddress::Ip(slow.address).tag();
    let sessions = with(&all);
    for _ in 0..40 {
        assert_eq!(belonging(&sessions, Affinity::Host(tag)).await, "slow");
    }
}
