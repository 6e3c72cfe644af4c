//! `weir health`: what a container or a service manager asks.

use std::net::{SocketAddr, TcpListener};

use crate::harness::free_address;
use crate::harness::redis::Redis;
use crate::harness::toml::simple;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;

const LIMIT: &str = "name = \"day\", algorithm = \"fixed_window\", quota = 5, period = \"1d\"";

/// A wrong configuration.
const EXIT_CONFIG: i32 = 78;

fn health(arguments: &[&str]) -> (i32, String, String) {
    Weir::with_arguments(&[&["health"], arguments].concat()).run()
}

fn at(address: SocketAddr, more: &[&str]) -> (i32, String, String) {
    health(&[&["--admin", &address.to_string()], more].concat())
}

#[tokio::test]
async fn a_proxy_that_takes_requests_is_healthy() {
    let weir = Weir::start(&simple("http://127.0.0.1:9", &[LIMIT]).text());
    let admin = weir.admin.expect("an admin listener");
    for more in [&[][..], &["--live"]] {
        let (code, out, err) = at(admin, more);
        assert_eq!((code, err.as_str()), (0, ""), "{out}");
    }
}

/// Without a store it can only refuse: no traffic should come, and restarting it helps nobody.
#[tokio::test]
async fn a_proxy_that_can_only_refuse_is_live_and_not_ready() {
    let nowhere = free_address();
    let config = simple("http://127.0.0.1:9", &[LIMIT]).redis("single", &[nowhere]).text();
    let weir = Weir::start(&config);
    let admin = weir.admin.expect("an admin listener");
    let (code, out, err) = at(admin, &[]);
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    assert!(err.contains(&nowhere.to_string()), "which node it misses: {err}");
    assert_eq!(at(admin, &["--live"]).0, 0);
}

#[tokio::test]
async fn the_address_is_that_of_the_configuration() {
    let redis = Redis::start();
    let admin = free_address();
    let config = simple("http://127.0.0.1:9", &[LIMIT]).redis("single", &[redis.address]).text();
    let config = config
        .replace("[admin]\naddress = \"127.0.0.1:0\"", &format!("[admin]\naddress = \"{admin}\""));
    assert!(config.contains(&admin.to_string()), "{config}");
    let weir = Weir::start(&config);
    let path = weir.folder().join("proxy.toml");
    let (code, _, err) = health(&["--config", path.to_str().expect("UTF-8")]);
    assert_eq!(code, 0, "{err}");
    // A file with an error says nothing about the proxy that runs. With an address it is not read.
    weir.rewrite("no = configuration");
    assert_eq!(health(&["--config", path.to_str().expect("UTF-8")]).0, EXIT_CONFIG);
    assert_eq!(at(admin, &[]).0, 0);
}

#[test]
fn what_does_not_answer_is_not_healthy_and_is_not_waited_for() {
    let (code, _, err) = at(free_address(), &[]);
    assert!(code == 1 && err.contains("does not answer"), "{err}");
    // Accepts nothing: the kernel does, and no answer comes.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("an address");
    let (code, _, err) = at(address, &["--timeout", "200ms"]);
    assert!(code == 1 && err.contains("no complete answer within 200ms"), "{err}");
}

#[tokio::test]
async fn another_server_is_not_a_healthy_weir() {
    let other = Upstream::start();
    for more in [&[][..], &["--live"]] {
        let (code, out, err) = at(other.address, more);
        assert_eq!((code, out.as_str()), (1, ""), "{err}");
        assert!(err.contains("is not an admin listener of Weir"), "{err}");
    }
}
