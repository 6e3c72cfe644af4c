//! The configuration of docs/rate-limit-service.md, asked by a real Envoy: what its clients see,
//! and what happens without Weir or without its store.

use std::net::SocketAddr;
use std::process::Command;

use tempfile::TempDir;

use crate::harness::process::{Service, run};
use crate::harness::redis::Redis;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;
use crate::harness::{eventually, free_address, python};

const PAGE: &str = include_str!("../../docs/rate-limit-service.md");
const ADMIN: &str = "\n[admin]\naddress = \"127.0.0.1:0\"\n";

/// The page's first block in this language.
fn block(language: &str) -> &'static str {
    let (_, rest) = PAGE.split_once(&format!("```{language}\n")).expect("a block");
    rest.split("```").next().expect("its end")
}

/// An Envoy that asks Weir, and the upstream behind it.
struct Envoy {
    weir: Option<Weir>,
    upstream: Upstream,
    address: SocketAddr,
    _folder: TempDir,
    _process: Service,
}

impl Envoy {
    /// With the page's configurations, the first changed by `weir` and the second by `envoy`.
    fn start(weir: impl Fn(&str) -> String, envoy: impl Fn(&str) -> String) -> Self {
        let config = block("toml").replacen("127.0.0.1:8081", "127.0.0.1:0", 1).replacen(
            "quota = 1000",
            "quota = 9",
            1,
        );
        let weir = Weir::start(&format!("{}{ADMIN}", weir(&config)));
        let (folder, upstream, address) =
            (tempfile::tempdir().expect("a folder"), Upstream::start(), free_address());
        let behind: SocketAddr = upstream.url()["http://".len()..].parse().expect("one");
        let config = envoy(block("envoy"))
            .replace("port_value: 8081", &format!("port_value: {}", weir.http.port()))
            .replace("port_value: 3000", &format!("port_value: {}", behind.port()))
            .replace("port_value: 8000", &format!("port_value: {}", address.port()));
        std::fs::write(folder.path().join("config.yaml"), config).expect("a file");
        let mut command = Command::new(python::program("envoy"));
        command.args(["-c", "config.yaml", "--concurrency", "1", "--base-id"]);
        command.arg(fastrand::u32(1..1_000_000).to_string());
        let process = Service::spawn(command.current_dir(folder.path()));
        eventually("Envoy listens", || {
            std::net::TcpStream::connect(address).map_err(|_| process.lines().join("\n"))
        });
        Self { weir: Some(weir), upstream, address, _folder: folder, _process: process }
    }

    /// The status, and everything that curl printed.
    fn curl(&self, target: &str, fields: &[&str]) -> (u16, String) {
        let mut command = Command::new("curl");
        command.args(["--silent", "--include", "--max-time", "20", "--noproxy", "*"]);
        command.args(["--write-out", "\n%{http_code}"]);
        for field in fields {
            command.args(["--header", field]);
        }
        let done = run(command.arg(format!("http://{}{target}", self.address)));
        let (text, status) = done.out.rsplit_once('\n').unwrap_or(("", "0"));
        (status.parse().unwrap_or_default(), text.to_lowercase())
    }
}

#[test]
fn envoys_clients_see_weirs_limits() {
    let mut envoy = Envoy::start(str::to_owned, str::to_owned);
    for left in (0..9).rev() {
        let (status, text) = envoy.curl("/a", &[]);
        assert_eq!(status, 200, "{text}");
        assert!(text.contains(&format!("\"day\";r={left};")), "{text}");
    }
    let passed = envoy.upstream.count();
    for fields in [&[][..], &["X-Forwarded-For: 198.51.100.9"], &["Content-Type: application/json"]]
    {
        let (status, text) = envoy.curl("/a", fields);
        assert_eq!(status, 429, "{text}");
        assert!(text.contains("\nretry-after: ") && text.contains("\"day\";r=0;"), "{text}");
        assert!(text.contains("\ncontent-type: application/problem+json"), "{text}");
        assert_eq!(text.matches("\ncontent-type:").count(), 1, "{text}");
        assert!(text.contains("\"violated-policies\":[\"day\"]"), "{text}");
    }
    assert_eq!(envoy.upstream.count(), passed);
    let weir = envoy.weir.take().expect("Weir");
    assert_eq!(weir.metric("weir_requests_total{route=\"edge\",code=\"429\"}"), 3);
    assert_eq!(weir.metric("weir_requests_total{route=\"edge\",code=\"200\"}"), 9);
    drop(weir);
    // `failure_mode_deny`.
    assert_eq!(envoy.curl("/a", &[]).0, 500);
    assert_eq!(envoy.upstream.count(), passed);
}

#[test]
fn a_descriptor_over_its_limit_leaves_the_others_uncharged() {
    let more = |text: &str| text.replacen("quota = 9", "quota = 4", 1);
    let envoy = Envoy::start(more, str::to_owned);
    let upload = |customer: &str| envoy.curl("/upload/x", &[&format!("X-Customer: {customer}")]);
    assert_eq!((upload("globex").0, upload("globex").0), (200, 200));
    for _ in 0..3 {
        let (status, text) = upload("globex");
        assert_eq!(status, 429, "{text}");
        assert!(text.contains("\"violated-policies\":[\"uploads\"]"), "{text}");
    }
    // Only two of the address's four are used.
    assert_eq!((upload("acme").0, upload("acme").0), (200, 200));
    assert_eq!(upload("acme").0, 429);
}

#[test]
fn envoy_keeps_the_metadata_of_descriptors_with_room() {
    let told = |text: &str| {
        let (address, upload) =
            ("metadata = { tier = \"free\", most = 5 }", "metadata.tier = \"gold\"");
        text.replacen("limits = [\n", &format!("{address}\nlimits = [\n"), 1).replacen(
            "limits = [{",
            &format!("{upload}\nlimits = [{{"),
            1,
        )
    };
    let shown = |text: &str| {
        let field = |name: &str| {
            let value = format!("%DYNAMIC_METADATA(envoy.filters.http.ratelimit:{name})%");
            let key = format!("x-{}", name.replace(':', "-"));
            format!("- header: {{ key: {key}, value: \"{value}\" }}")
        };
        let fields = ["domain", "metadata:tier", "metadata:most"].map(field);
        let indent = " ".repeat(18);
        let added = format!(
            "{indent}response_headers_to_add:\n{indent}  {}\n{indent}virtual_hosts:\n",
            fields.join(&format!("\n{indent}  "))
        );
        text.replacen(&format!("{indent}virtual_hosts:\n"), &added, 1)
    };
    let envoy = Envoy::start(told, shown);
    let (status, text) = envoy.curl("/upload/x", &["X-Customer: globex"]);
    assert_eq!(status, 200, "{text}");
    for expected in ["x-domain: edge", "x-metadata-tier: free", "x-metadata-most: 5"] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

#[test]
fn envoy_without_an_answer_does_what_it_is_told() {
    let redis = Redis::start();
    let store = format!(
        "\n[store]\nengine = \"redis\"\non_store_error = \"deny\"\n\n[store.redis]\nmode = \"single\"\nnodes = [\"{}\"]\n",
        redis.address
    );
    let with_store = |text: &str| format!("{text}{store}");
    let closed = Envoy::start(with_store, str::to_owned);
    let open = Envoy::start(with_store, |text| {
        text.replacen("failure_mode_deny: true", "failure_mode_deny: false", 1)
    });
    assert_eq!((closed.curl("/a", &[]).0, open.curl("/a", &[]).0), (200, 200));
    drop(redis);
    let (status, text) = closed.curl("/a", &[]);
    assert_eq!(status, 500, "{text}");
    assert_eq!(open.curl("/a", &[]).0, 200);
}

/// The lines of the page's move that are commands, without their indent.
fn commands() -> Vec<&'static str> {
    let (_, section) = PAGE.split_once("\n## A move, step by step\n").expect("the section");
    let (section, _) = section.split_once("\n## ").expect("its end");
    section.lines().filter_map(|line| line.strip_prefix("       ")).collect()
}

#[test]
fn istios_example_moves_as_the_page_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("ratelimit.yaml"), block("yaml")).expect("a file");
    let weir = env!("CARGO_BIN_EXE_weir");
    let shell = |command: &str| {
        let script = command.replace("weir ", &format!("{weir} "));
        let done = run(Command::new("sh").args(["-ec", &script]).current_dir(folder.path()));
        assert_eq!(done.code, 0, "{command}: {}{}", done.out, done.err);
        done.out
    };
    let [import, check, start, ask] = commands()[..] else { panic!("{:?}", commands()) };
    shell(import);
    shell(check);
    assert_eq!(start, "weir run --config proxy.toml");
    let config = std::fs::read_to_string(at("proxy.toml")).expect("what was imported");
    let config = config.replacen("127.0.0.1:8081", "127.0.0.1:0", 1);
    // No test runs over the end of a day.
    let config = config.replace("\"1m\"", "\"1d\"");
    let weir = Weir::start(&format!("{config}{ADMIN}"));
    for code in ["OK", "OVER_LIMIT"] {
        let ask = ask.replace("127.0.0.1:8081", &weir.http.to_string());
        let answer = shell(&format!("{ask} --silent"));
        assert!(answer.contains(&format!("\"overallCode\":\"{code}\"")), "{answer}");
    }
    // What Istio's resources make of its gateway.
    let actions = "
                              - actions: [{ request_headers: { header_name: ':path', descriptor_key: PATH } }]
                              - actions:
                                  - header_value_match:
                                      descriptor_key: PATH
                                      descriptor_value: api
                                      headers: [{ name: ':path', string_match: { prefix: /api/v1/products } }]
";
    let gateway = |text: &str| {
        let (before, rest) = text.split_once("rate_limits:\n").expect("its actions");
        let (_, after) = rest.split_once("                http_filters:").expect("their end");
        let after = after.replacen("domain: edge", "domain: ratelimit", 1);
        format!("{before}rate_limits:{actions}                http_filters:{after}")
    };
    let envoy = Envoy::start(|_| config.clone(), gateway);
    let statuses = |target: &str, times: usize| -> Vec<u16> {
        (0..times).map(|_| envoy.curl(target, &[]).0).collect()
    };
    assert_eq!(statuses("/productpage", 2), [200, 429]);
    // Each path has its own hundred, and those of the API share two.
    assert_eq!(statuses("/api/v1/products/1", 1), [200]);
    assert_eq!(statuses("/api/v1/products/2", 2), [200, 429]);
    assert_eq!(statuses("/login", 3), [200; 3]);
}
