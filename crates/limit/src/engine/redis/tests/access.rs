//! TLS, users with few rights, and addresses that differ from those that nodes announce.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::super::testing::{ALL, Cluster, FIXED_WINDOW, SECOND_US, Server, cell, one};
use super::super::connector::Connector;
use super::{DEADLINE, block_on, engine, left, recovers, settings, slow};
use crate::clock::Clock;
use crate::engine::{
    Cause, Engine, EngineError, Execution, Kind, RedisMode, RedisSettings, Secret,
};
use crate::pki::{IssuedCertificate, Pki};
use crate::telemetry::Metrics;
use weir_tls::{ClientTls, Identity, Pem};

/// What docs/redis.md tells operators to grant.
const DOCUMENTED: &str = include_str!("../../../../../../docs/redis.md");

fn pem(text: &str) -> Pem {
    Pem { path: "test.pem".into(), bytes: text.as_bytes().into() }
}

fn identity(issued: &IssuedCertificate) -> Identity {
    Identity { certificate: pem(&issued.certificate), key: pem(&issued.key) }
}

/// A server that speaks TLS at the second address, and asks clients for a certificate.
fn with_tls(pki: &Pki, more: &[&str]) -> (Server, String, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let issued = pki.server(&["127.0.0.1", "redis.example"]);
    let file = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).unwrap();
        folder.path().join(name).to_str().unwrap().to_owned()
    };
    let files =
        [file("ca", &pki.ca), file("certificate", &issued.certificate), file("key", &issued.key)];
    // The bus port is free: nobody else uses it.
    let arguments = [
        "--tls-port",
        "BUS_PORT",
        "--tls-ca-cert-file",
        &files[0],
        "--tls-cert-file",
        &files[1],
        "--tls-key-file",
        &files[2],
    ];
    let server = Server::start(&[&arguments, more].concat());
    let address = format!("127.0.0.1:{}", server.bus_port);
    (server, address, folder)
}

#[test]
fn with_tls_both_ends_show_a_certificate() {
    let pki = Pki::new();
    let (_server, address, _folder) = with_tls(&pki, &[]);
    let tls = ClientTls {
        ca: Some(pem(&pki.ca)),
        identity: Some(identity(&pki.client("weir"))),
        server_name: None,
        ..ClientTls::default()
    };
    let take = |tls: &ClientTls| {
        let node = vec![address.clone()];
        let (engine, _) =
            engine(RedisSettings { tls: Some(tls.clone()), ..settings(node, RedisMode::Single) });
        block_on(async { engine.take(&one(&slow(1))).await.map(|taken| taken.admitted) })
    };
    assert_eq!(take(&tls), Ok(true));
    assert_eq!(
        take(&ClientTls { server_name: Some("redis.example".into()), ..tls.clone() }),
        Ok(true)
    );
    let refused = Err(EngineError { cause: Cause::Connection, ran: Execution::No });
    let other = Pki::new();
    for wrong in [
        ClientTls { ca: Some(pem(&other.ca)), ..tls.clone() },
        ClientTls { server_name: Some("else.example".into()), ..tls.clone() },
        ClientTls { identity: None, ..tls.clone() },
        ClientTls { identity: Some(identity(&other.client("weir"))), ..tls.clone() },
    ] {
        assert_eq!(take(&wrong), refused, "{wrong:?}");
    }
}

/// A port with TLS closes a connection without it, and one without TLS waits for ever.
#[tokio::test]
async fn a_port_that_takes_the_other_kind_of_connection_is_asked_about() {
    let pki = Pki::new();
    let (server, with, _folder) = with_tls(&pki, &["--tls-auth-clients", "no"]);
    let trusting = ClientTls { ca: Some(pem(&pki.ca)), ..ClientTls::default() };
    let why = async |address: &str, tls: Option<ClientTls>| {
        let node = settings(vec![address.to_owned()], RedisMode::Single);
        let settings = RedisSettings { tls, deadline: Duration::from_millis(100), ..node };
        let opened = Connector::new(&settings).unwrap().open(address, false).await;
        opened.err().map(|error| (error.cause, error.why))
    };
    assert_eq!(why(&with, Some(trusting.clone())).await, None);
    assert_eq!(why(&server.address(), None).await, None);
    let (cause, said) = why(&with, None).await.expect("an error");
    assert_eq!(cause, Cause::Connection, "{said}");
    assert!(said.ends_with(" (does it want TLS on this port?)"), "{said}");
    let (cause, said) = why(&server.address(), Some(trusting)).await.expect("an error");
    assert_eq!(cause, Cause::Timeout, "{said}");
    assert!(said.contains("(does it speak TLS on this port?)"), "{said}");
}

#[test]
fn many_calls_over_tls_are_each_answered() {
    let pki = Pki::new();
    let (_server, address, _folder) = with_tls(&pki, &["--tls-auth-clients", "no"]);
    let tls = ClientTls { ca: Some(pem(&pki.ca)), ..ClientTls::default() };
    let (engine, _) =
        engine(RedisSettings { tls: Some(tls), ..settings(vec![address], RedisMode::Single) });
    block_on(async {
        recovers(&engine, &slow(999)).await;
        for _ in 0..4 {
            // Far more than a socket takes at once.
            let calls = (0..200).map(|_| async { engine.take(&one(&slow(1))).await.unwrap() });
            let taken = futures_util::future::join_all(calls).await;
            assert!(taken.iter().all(|taken| taken.admitted));
        }
        assert_eq!(left(&engine, &slow(1)).await, 200);
    });
}

#[test]
fn wrong_tls_files_are_named() {
    let pki = Pki::new();
    let ca = Some(pem(&pki.ca));
    let (client, other) = (pki.client("weir"), pki.client("else"));
    let mixed = Identity { certificate: pem(&client.certificate), key: pem(&other.key) };
    for (tls, setting) in [
        (ClientTls { ca: Some(pem("nothing")), ..ClientTls::default() }, "redis.tls.ca"),
        (
            ClientTls { ca: ca.clone(), identity: Some(mixed), ..ClientTls::default() },
            "redis.tls.key",
        ),
        (
            ClientTls { ca, server_name: Some("not a name".into()), ..ClientTls::default() },
            "redis.tls.server_name",
        ),
    ] {
        let settings =
            RedisSettings { tls: Some(tls), ..settings(vec!["a:1".into()], RedisMode::Single) };
        let built = Engine::build(&settings.into(), Clock::system(), &Metrics::new(1));
        assert_eq!(built.unwrap_err().setting, setting);
    }
}

/// Does everything that Weir does with counters. Only what is allowed matters here, not the
/// answers.
async fn everything(engine: &Engine) {
    for program in ALL {
        let limit = cell(program, "access", 10, 3_600 * SECOND_US, 10);
        for _ in 0..2 {
            let taken = engine.take(&one(&limit)).await.unwrap();
            engine.look(&one(&limit), DEADLINE).await.unwrap();
            engine.renew(&one(&limit)).await.unwrap();
            engine.give_back(&one(&limit), taken.at_us).await.unwrap();
        }
        engine.take(&one(&limit)).await.unwrap();
        if program.text.contains("charge = charge") {
            engine.charge(&one(&limit)).await.unwrap();
        }
    }
    assert_eq!(engine.ping().await, Ok(Vec::new()));
}

#[test]
fn the_documented_user_can_do_what_weir_does_and_no_more() {
    let cluster = Cluster::start(0);
    let acl = |from: usize, count: usize| {
        let lines = DOCUMENTED.lines().filter(|line| line.starts_with("ACL SETUSER"));
        for line in lines.skip(from).take(count) {
            for node in &cluster.nodes {
                let _: String = node.run(line).unwrap();
            }
        }
    };
    let as_weir = |key_prefix: &str| {
        engine(RedisSettings {
            key_prefix: key_prefix.into(),
            username: Some("weir".into()),
            password: Some(Secret("PASSWORD".into())),
            ..settings(cluster.addresses(), RedisMode::Cluster)
        })
    };
    acl(0, 1);
    block_on(async {
        let (engine, _) = as_weir("weir");
        everything(&engine).await;
        let key = cell(&FIXED_WINDOW, "access", 10, 3_600 * SECOND_US, 10).key;
        let find = || engine.find(&key, "test/access/fixed_window", |_| Some(Kind::Numbers));
        let forbidden = EngineError { cause: Cause::NoPermission, ran: Execution::No };
        assert_eq!(find().await.map(|found| found.len()), Err(forbidden));
        acl(1, 2);
        assert_eq!(find().await.map(|found| found.is_empty()), Ok(false));
        engine.reset(&key).await.unwrap();
        let (other, _) = as_weir("other");
        assert_eq!(other.take(&one(&slow(1))).await, Err(forbidden), "keys of somebody else");
    });
}

#[test]
fn nodes_are_found_where_the_settings_say() {
    let cluster = Cluster::with(0, &["--cluster-announce-ip", "192.0.2.1"]);
    let announced = format!("192.0.2.1:{}", cluster.nodes[0].port);
    // One address is enough: the cluster names the others.
    let first = vec![cluster.nodes[1].address()];
    let (engine, _) = engine(RedisSettings {
        addresses: BTreeMap::from([(announced, cluster.nodes[0].address())]),
        ..settings(first, RedisMode::Cluster)
    });
    block_on(async {
        for tag in 1..30 {
            recovers(&engine, &slow(tag)).await;
        }
        assert_eq!(engine.ping().await, Ok(Vec::new()));
    });
}

#[test]
fn a_user_who_may_not_decide_is_found_before_a_request_comes() {
    let server = Server::start(&[]);
    let line = DOCUMENTED.lines().find(|line| line.starts_with("ACL SETUSER")).unwrap();
    let _: String = server.run(line).unwrap();
    let _: String = server.run("ACL SETUSER weir ~other:*").unwrap();
    let as_weir = |key_prefix: &str| {
        engine(RedisSettings {
            key_prefix: key_prefix.into(),
            username: Some("weir".into()),
            password: Some(Secret("PASSWORD".into())),
            ..settings(vec![server.address()], RedisMode::Single)
        })
        .0
    };
    block_on(async {
        let error = as_weir("elsewhere").ping().await.unwrap_err();
        assert_eq!(error.cause, Cause::NoPermission, "keys of somebody else");
        let weir = as_weir("weir");
        assert_eq!(weir.ping().await, Ok(Vec::new()));
        // A command that only some programs run is missing.
        let _: String = server.run("ACL SETUSER weir -set").unwrap();
        let error = weir.take(&one(&slow(1))).await.unwrap_err();
        assert_eq!(error.cause, Cause::NoPermission);
    });
}
