//! The configurations of docs/forward-auth.md, run by the proxies that they are for: what their
//! clients see, what a client can't do about it, and what happens without Weir.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::harness::process::{Service, run};
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;
use crate::harness::{eventually, free_address, python};

const PAGE: &str = include_str!("../../docs/forward-auth.md");

/// Requests of a client in a day: enough for those that find out whether the proxy is there.
const LIMIT: u64 = 9;

/// Beside the page's route, one whose policy sets a field on requests.
const PLANS: &str = r#"
[admin]
address = "127.0.0.1:0"

[policies.plans]
use = "plans"

[policies.plans.config]
key = "{header.x-api-key}"
default_plan = "free"
plan_header = "x-plan"
plans.free = [{ name = "plan", algorithm = "gcra", quota = 100, period = "1m" }]

[[routes]]
path = "/plan"
policy = "plans"
respond = { status = 200 }
"#;

/// The page's block in this language.
fn block(language: &str) -> &'static str {
    let (_, rest) = PAGE.split_once(&format!("```{language}\n")).expect("a block");
    rest.split("```").next().expect("its end")
}

/// Debian installs servers in a folder that is only on root's PATH.
fn program(name: &str) -> String {
    let path = format!("/usr/sbin/{name}");
    if Path::new(&path).exists() { path } else { name.into() }
}

/// A proxy that asks Weir, and the upstream behind it.
struct Asking {
    folder: TempDir,
    weir: Option<Weir>,
    upstream: Upstream,
    /// Where the proxy listens.
    address: SocketAddr,
    proxy: Option<Service>,
}

impl Asking {
    /// Weir with the page's configuration, asked in this way.
    fn new(serves: &str) -> Self {
        let config = block("toml").replacen("127.0.0.1:8090", "127.0.0.1:0", 1).replacen(
            "\"forward_auth\"",
            &format!("\"{serves}\""),
            1,
        );
        let weir = Weir::start(&format!("{config}\n{PLANS}"));
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (upstream, address) = (Upstream::start(), free_address());
        Self { folder, weir: Some(weir), upstream, address, proxy: None }
    }

    /// A block of the page with this test's addresses.
    fn config(&self, language: &str) -> String {
        let weir = self.weir.as_ref().expect("Weir").http;
        let upstream: SocketAddr = self.upstream.url()["http://".len()..].parse().expect("one");
        block(language)
            .replace("127.0.0.1:8090", &weir.to_string())
            .replace("port_value: 8090", &format!("port_value: {}", weir.port()))
            .replace("127.0.0.1:3000", &upstream.to_string())
            .replace("port_value: 3000", &format!("port_value: {}", upstream.port()))
            .replace("port_value: 8000", &format!("port_value: {}", self.address.port()))
            .replace("listen 8000;", &format!("listen {};", self.address))
            .replace("bind :8000", &format!("bind {}", self.address))
            .replace(":8000 {", &format!("http://:{} {{", self.address.port()))
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), text).expect("a file");
    }

    fn run(mut self, command: &mut Command) -> Self {
        let service = Service::spawn(command.current_dir(self.folder.path()));
        eventually("the proxy answers", || {
            let (status, _) = self.curl("/ready", &["--request", "OPTIONS"]);
            // Traefik answers 404 until it has read its routes.
            if matches!(status, 0 | 404) { Err(service.lines().join("\n")) } else { Ok(()) }
        });
        self.proxy = Some(service);
        self
    }

    /// The status, 0 for none, and everything that curl printed.
    fn curl(&self, target: &str, arguments: &[&str]) -> (u16, String) {
        let mut command = Command::new("curl");
        command.args(["--silent", "--include", "--max-time", "20", "--noproxy", "*"]);
        command.args(["--write-out", "\n%{http_code}"]).args(arguments);
        let done = run(command.arg(format!("http://{}{target}", self.address)));
        let (text, status) = done.out.rsplit_once('\n').unwrap_or(("", "0"));
        (status.parse().unwrap_or_default(), text.to_lowercase())
    }

    /// The upstream gets what the policy sets on a request, and never what a client says of it.
    fn copies(self) -> Self {
        for (target, expected) in [("/plan", Some("free")), ("/a", None)] {
            let (status, text) = self.curl(target, &["--header", "X-Plan: enterprise"]);
            assert_eq!(status, 200, "{text}");
            let found = self.upstream.last().header("x-plan");
            assert_eq!(found.as_deref(), expected, "{target}");
        }
        self
    }

    /// The limit holds for what the client asks for, whatever else it says, and without Weir
    /// nothing passes.
    fn judge(mut self, down: u16) {
        // The proxy's start has asked for as many as it took.
        let key = "X-Api-Key: k";
        let passed = self.upstream.count();
        let limit = LIMIT;
        let mut last = (0, String::new());
        for _ in 0..=limit {
            last = self.curl("/a", &["--header", key, "--data", "a body"]);
            if last.0 == 429 {
                break;
            }
            assert_eq!(last.0, 200, "{}", last.1);
        }
        assert_eq!(last.0, 429, "{}", last.1);
        assert!(last.1.contains("\nretry-after: "), "{}", last.1);
        assert!(self.upstream.count() - passed <= limit, "{passed}");
        let passed = self.upstream.count();
        for fake in [
            "X-Forwarded-For: 198.51.100.9",
            "X-Forwarded-Uri: /free",
            "X-Original-URI: /free",
            "X-Forwarded-Method: OPTIONS",
            "X-Original-Method: OPTIONS",
            "X-Forwarded-Host: free.example",
            "Content-Type: application/grpc",
        ] {
            let (status, text) = self.curl("/a", &["--header", fake]);
            // Envoy refuses in gRPC's way what comes in it.
            let is_refused = matches!(status, 429 | 400 | 403 | 500)
                || (status == 200 && text.contains("\ngrpc-status: 14"));
            assert!(is_refused, "{fake}: {text}");
        }
        assert_eq!(self.upstream.count(), passed, "none of them passes");
        let weir = self.weir.take().expect("Weir");
        assert!(weir.metric("weir_requests_total{route=\"all\",code=\"429\"}") >= 1);
        drop(weir);
        let (status, text) = self.curl("/a", &[]);
        assert_eq!(status, down, "{text}");
        assert_eq!(self.upstream.count(), passed);
    }
}

#[test]
fn nginx_asks() {
    let asking = Asking::new("auth_request");
    let mut own = String::new();
    for part in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        own += &format!("{part}_temp_path {part};\n");
    }
    asking.write(
        "config",
        &format!(
            "daemon off; master_process off; pid pid; events {{}}\nhttp {{\naccess_log off;\n{own}{}}}\n",
            asking.config("nginx")
        ),
    );
    let mut nginx = Command::new(program("nginx"));
    nginx.arg("-e").arg("stderr").arg("-p").arg(asking.folder.path()).args(["-c", "config"]);
    asking.run(&mut nginx).judge(500);
}

#[test]
fn caddy_asks() {
    let asking = Asking::new("forward_auth");
    asking.write("Caddyfile", &format!("{{\n\tadmin off\n}}\n{}", asking.config("caddyfile")));
    let mut caddy = Command::new("caddy");
    caddy.args(["run", "--config", "Caddyfile"]).env("HOME", asking.folder.path());
    asking.run(&mut caddy).copies().judge(502);
}

#[test]
fn traefik_asks() {
    let asking = Asking::new("forward_auth");
    asking.write("routes.yaml", &asking.config("yaml"));
    let mut traefik = Command::new(python::program("traefik"));
    traefik.arg(format!("--entryPoints.web.address={}", asking.address));
    traefik.args(["--providers.file.filename=routes.yaml", "--global.checkNewVersion=false"]);
    traefik.arg("--global.sendAnonymousUsage=false");
    asking.run(&mut traefik).copies().judge(500);
}

#[test]
fn haproxy_asks() {
    let asking = Asking::new("spoe");
    asking.write("weir.spoe", asking.config("spoe").trim_start());
    asking.write("config", &asking.config("haproxy"));
    let mut haproxy = Command::new(program("haproxy"));
    asking.run(haproxy.args(["-db", "-f", "config"])).copies().judge(503);
}

#[test]
fn haproxy_asks_in_lua() {
    let asking = Asking::new("forward_auth");
    asking.write("weir.lua", &asking.config("lua"));
    asking.write("config", &asking.config("haproxy-lua"));
    let mut haproxy = Command::new(program("haproxy"));
    let asking = asking.run(haproxy.args(["-db", "-f", "config"]));
    // HAProxy's own client crashes with as many.
    let (status, text) = asking.curl("/a", &["--header", "X: a"].repeat(97));
    assert_eq!(status, 431, "{text}");
    asking.judge(503);
}

#[test]
fn envoy_asks() {
    let asking = Asking::new("ext_authz");
    asking.write("config.yaml", &asking.config("envoy"));
    let mut envoy = Command::new(python::program("envoy"));
    envoy.args(["-c", "config.yaml", "--base-id"]).arg(fastrand::u32(1..1_000_000).to_string());
    asking.run(envoy.args(["--concurrency", "1"])).copies().judge(403);
}

#[test]
fn envoy_asks_over_grpc() {
    let asking = Asking::new("ext_authz_grpc");
    let config = asking.config("envoy");
    let (before, rest) = config.split_once("                      allowed_headers:").expect("it");
    let (_, after) = rest.split_once("[{ exact: ratelimit }] }\n").expect("its end");
    let http2 = "    - name: weir
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          \"@type\": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: { http2_protocol_options: {} }
";
    let config = format!("{before}{}{after}", asking.config("envoy-grpc").trim_start_matches('\n'));
    asking.write("config.yaml", &config.replace("    - name: weir\n", http2));
    let mut envoy = Command::new(python::program("envoy"));
    envoy.args(["-c", "config.yaml", "--base-id"]).arg(fastrand::u32(1..1_000_000).to_string());
    let asking = asking.run(envoy.args(["--concurrency", "1"])).copies();
    let (_, text) = asking.curl("/a", &["--header", "X-Api-Key: other"]);
    assert!(text.contains("\nratelimit: \"day\";r="), "{text}");
    asking.judge(403);
}
