//! Pairs of configurations in docs/haproxy.md, docs/traefik.md and docs/envoy.md: HAProxy, Traefik
//! and Envoy decide as Weir does with the one beside theirs. Not all of them: those with pauses,
//! bans, slow upstreams and Redis were compared once, by hand. For nginx see `import`.

use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use bytes::Bytes;
use tempfile::TempDir;

use crate::harness::client::{Client, get_blocking};
use crate::harness::process::Service;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;
use crate::harness::{eventually, free_address, python};

/// So many requests, one after another.
struct Step {
    method: &'static str,
    path: &'static str,
    fields: &'static [(&'static str, &'static str)],
    count: usize,
    admitted: usize,
    /// How many more may pass: a bucket fills up while they are sent.
    more: usize,
}

const fn step(
    fields: &'static [(&'static str, &'static str)],
    count: usize,
    admitted: usize,
) -> Step {
    Step { method: "GET", path: "/a", fields, count, admitted, more: 0 }
}

const A: &[(&str, &str)] = &[("x-api-key", "a")];
const B: &[(&str, &str)] = &[("x-api-key", "b")];

/// The block of a page in this language that has `part`, and Weir's after it.
fn pair<'page>(page: &'page str, language: &str, part: &str) -> [&'page str; 2] {
    let opening = format!("```{language}\n");
    let mut rest = page;
    while let Some((_, after)) = rest.split_once(opening.as_str()) {
        let (theirs, after) = after.split_once("```").expect("its end");
        if theirs.contains(part) {
            let (between, after) = after.split_once("```toml\n").expect("Weir's");
            assert!(between.trim().is_empty(), "{part}: Weir's block does not follow: {between}");
            return [theirs, after.split("```").next().expect("its end")];
        }
        rest = after;
    }
    panic!("no block in {language} with {part}");
}

/// Weir with the parts that the pages leave out.
fn weir(block: &str, upstream: &Upstream) -> Weir {
    let (_, named) = block.split_once("[policies.").expect("a policy");
    let policy = named.split([']', '.']).next().expect("its name");
    let route = match block.contains("[[routes]]") {
        true => String::new(),
        false => {
            format!("[[routes]]\npath = \"/*\"\nupstream = \"api\"\npolicy = \"{policy}\"\n")
        }
    };
    Weir::start(&format!(
        "{block}\n{route}\n[upstreams.api]\nendpoints = [\"{}\"]\n\n\
         [[listeners]]\naddress = \"127.0.0.1:0\"\n\n[admin]\naddress = \"127.0.0.1:0\"\n",
        upstream.url()
    ))
}

/// Another proxy, as long as the test runs.
struct Peer {
    address: SocketAddr,
    _folder: TempDir,
    _service: Service,
}

impl Peer {
    /// Starts it with this file, and waits until something listens at `address`.
    fn start(address: SocketAddr, file: &str, text: &str, mut command: Command) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join(file), text).expect("a file");
        let service = Service::spawn(command.current_dir(folder.path()));
        eventually("the proxy listens", || {
            TcpStream::connect(address)
                .map_err(|_| format!("{text}\n{}", service.lines().join("\n")))
        });
        Self { address, _folder: folder, _service: service }
    }

    fn haproxy(block: &str, upstream: &Upstream) -> Self {
        let address = free_address();
        let front = format!("frontend web\n    bind {address}\n    default_backend api\n");
        let text = format!(
            "defaults\n    mode http\n    timeout connect 10s\n    timeout client 30s\n    \
             timeout server 30s\n{}\nbackend api\n    server a {}\n",
            block.replacen("frontend web\n", &front, 1),
            &upstream.url()["http://".len()..]
        );
        let mut command = Command::new("haproxy");
        command
            .args(["-db", "-f", "config"])
            .env("PATH", "/usr/sbin:/usr/local/sbin:/usr/bin:/bin");
        Self::start(address, "config", &text, command)
    }

    fn traefik(block: &str, upstream: &Upstream) -> Self {
        let address = free_address();
        // A route that counts nothing tells when the others are known. Without a priority the one
        // with the longer rule is asked first.
        let ready = "  routers:\n    ready:\n      rule: Path(`/ready`)\n      \
                     priority: 1000\n      service: api\n";
        let service = format!(
            "  services:\n    api:\n      loadBalancer:\n        servers: [{{ url: \"{}\" }}]\n",
            upstream.url()
        );
        let text = format!("{}{service}", block.replacen("  routers:\n", ready, 1));
        let mut command = Command::new(python::program("traefik"));
        command.arg(format!("--entryPoints.web.address={address}"));
        command.args(["--providers.file.filename=routes.yaml", "--global.checkNewVersion=false"]);
        command.arg("--global.sendAnonymousUsage=false");
        let peer = Self::start(address, "routes.yaml", &text, command);
        eventually("Traefik has read its routes", || {
            match get_blocking(address, "/ready").map(|reply| reply.status) {
                Ok(200) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
        peer
    }

    fn envoy(block: &str, upstream: &Upstream) -> Self {
        let (address, port) = (free_address(), upstream.url());
        let port = port.rsplit_once(':').expect("a port").1.to_owned();
        let filter: String = block.lines().map(|line| format!("          {line}\n")).collect();
        let text = format!(
            r#"static_resources:
  listeners:
  - address: {{ socket_address: {{ address: 127.0.0.1, port_value: {} }} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: web
          use_remote_address: true
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [{{ match: {{ prefix: "/" }}, route: {{ cluster: api }} }}]
          http_filters:
{filter}          - name: envoy.filters.http.router
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
  - name: api
    load_assignment:
      cluster_name: api
      endpoints:
      - lb_endpoints:
        - endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }} }}
"#,
            address.port()
        );
        let mut command = Command::new(python::program("envoy"));
        command.args(["-c", "config.yaml", "--concurrency", "1", "--base-id"]);
        command.arg(fastrand::u32(1..1_000_000).to_string());
        Self::start(address, "config.yaml", &text, command)
    }
}

async fn admitted(address: SocketAddr, step: &Step) -> usize {
    let mut admitted = 0;
    for _ in 0..step.count {
        // A refusal may close the connection.
        let mut client = Client::connect(address).await.expect("a connection");
        let reply = client.send(step.method, step.path, step.fields, Bytes::new());
        let reply = reply.await.expect("a reply");
        assert!([200, 429].contains(&reply.status), "{reply:?}");
        admitted += usize::from(reply.status == 200);
    }
    admitted
}

/// Sends the same to both.
async fn alike(peer: &Peer, weir: &Weir, steps: &[Step]) {
    for (number, step) in steps.iter().enumerate() {
        let (theirs, ours) = tokio::join!(admitted(peer.address, step), admitted(weir.http, step));
        for (who, found) in [("the peer", theirs), ("Weir", ours)] {
            assert!(
                (step.admitted..=step.admitted + step.more).contains(&found),
                "step {number}: {who} admitted {found} of {}, expected {}",
                step.count,
                step.admitted
            );
        }
    }
}

const HAPROXY: &str = include_str!("../../docs/haproxy.md");
const TRAEFIK: &str = include_str!("../../docs/traefik.md");
const ENVOY: &str = include_str!("../../docs/envoy.md");

#[tokio::test]
async fn haproxy_decides_alike() {
    let upstream = Upstream::start();
    let login =
        |count, admitted| Step { method: "POST", path: "/login", ..step(&[], count, admitted) };
    for (part, steps) in [
        ("gt 20 }", vec![step(&[], 30, 20)]),
        ("gpc0_rate(10s)", vec![step(A, 30, 20), step(B, 5, 5), step(&[], 30, 30)]),
        ("table login if METH_POST", vec![login(8, 5), step(&[], 8, 8)]),
    ] {
        let [theirs, ours] = pair(HAPROXY, "haproxy", part);
        alike(&Peer::haproxy(theirs, &upstream), &weir(ours, &upstream), &steps).await;
    }
}

#[tokio::test]
async fn traefik_decides_alike() {
    let upstream = Upstream::start();
    let at_login = |count, admitted| Step { path: "/login", more: 1, ..step(&[], count, admitted) };
    for (part, steps) in [
        ("requestHeaderName", [A, B, &[]].map(|key| Step { more: 1, ..step(key, 8, 5) }).into()),
        ("requestHost", vec![Step { more: 1, ..step(&[], 8, 5) }]),
        ("middlewares: [login]", vec![at_login(8, 5), Step { more: 1, ..step(&[], 12, 10) }]),
    ] {
        let [theirs, ours] = pair(TRAEFIK, "yaml", part);
        alike(&Peer::traefik(theirs, &upstream), &weir(ours, &upstream), &steps).await;
    }
}

#[tokio::test]
async fn envoy_decides_alike() {
    let upstream = Upstream::start();
    // Its buckets are filled as time goes on.
    let step = |fields, count, admitted| Step { more: 1, ..step(fields, count, admitted) };
    let post = |count, admitted| Step { method: "POST", ..step(&[], count, admitted) };
    for (part, steps) in [
        ("max_tokens: 20", vec![step(&[], 25, 20)]),
        ("actions: [{ remote_address: {} }]", vec![step(&[], 8, 5)]),
        ("header_name: x-api-key", vec![step(A, 8, 5), step(B, 8, 5), step(&[], 8, 8)]),
        ("descriptor_value: writes", vec![post(6, 3)]),
        (
            "value: gold",
            vec![
                step(&[("x-plan", "gold")], 12, 10),
                step(&[("x-plan", "free")], 5, 3),
                step(&[("x-plan", "none")], 5, 5),
            ],
        ),
    ] {
        let [theirs, ours] = pair(ENVOY, "yaml", part);
        alike(&Peer::envoy(theirs, &upstream), &weir(ours, &upstream), &steps).await;
    }
}
