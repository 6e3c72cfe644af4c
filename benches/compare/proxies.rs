//! How each proxy is configured for a case: the files in `conf/` with their `@NAMES@` replaced. All
//! do the same work, log nothing and have one worker.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::cases::{Callers, Case, Limit, Subject};
use super::load::MEBIBYTE;

/// Debian's folder for nginx modules.
const NGINX_MODULES: &str = "/usr/share/nginx/modules";
/// Requests a second that are never reached.
const RATE_WIDE: u64 = 1_000_000;

/// What a proxy has to know about its environment.
pub struct Environment<'a> {
    /// A folder of its own.
    pub folder: &'a Path,
    pub upstream: SocketAddr,
    /// The one Redis for nginx + Lua; the cluster's masters for Weir.
    pub redis: &'a [SocketAddr],
    /// A certificate with its chain and its key.
    pub certificate: &'a Path,
    pub key: &'a Path,
    /// Both in one file, as HAProxy requires.
    pub both: &'a Path,
    pub weir: &'a Path,
}

/// Writes the proxy's configuration, and returns what starts it at `address`.
pub fn command(
    case: &Case,
    environment: &Environment<'_>,
    address: SocketAddr,
) -> Result<Command, String> {
    match case.subject {
        Subject::Nginx | Subject::NginxLuaRedis => nginx(case, environment, address),
        Subject::Haproxy => haproxy(case, environment, address),
        Subject::Weir | Subject::WeirCluster | Subject::WeirLeased => {
            weir(case, environment, address)
        }
    }
}

/// The upstream, which is also nginx.
pub fn upstream(folder: &Path, address: SocketAddr) -> Result<Command, String> {
    write(folder, "mebibyte", &"x".repeat(MEBIBYTE))?;
    let names = [
        ("@FOLDER@", path(folder)),
        ("@ADDRESS@", address.to_string()),
        ("@MODULES@", NGINX_MODULES.into()),
    ];
    let file =
        write(folder, "upstream.conf", &filled(include_str!("conf/upstream.conf"), &names)?)?;
    Ok(nginx_command(folder, &file))
}

fn nginx(
    case: &Case,
    environment: &Environment<'_>,
    address: SocketAddr,
) -> Result<Command, String> {
    let (folder, wire) = (environment.folder, case.situation.wire);
    let lua = case.subject == Subject::NginxLuaRedis;
    let mut load_modules = String::new();
    let (mut zone, mut limit) = (String::new(), String::new());
    if lua {
        let redis = environment.redis.first().ok_or("nginx + Lua needs a Redis")?;
        load_modules = format!(
            "load_module {NGINX_MODULES}/ndk_http_module.so;\nload_module {NGINX_MODULES}/ngx_http_lua_module.so;"
        );
        let (interval_us, burst) = match case.limit {
            Limit::Refused => (3_600_000_000, 1),
            Limit::Plain | Limit::Admitted => (1_000_000 / RATE_WIDE, RATE_WIDE),
        };
        let names = [
            ("@REDIS_HOST@", redis.ip().to_string()),
            ("@REDIS_PORT@", redis.port().to_string()),
            ("@INTERVAL_US@", interval_us.to_string()),
            ("@BURST@", burst.to_string()),
        ];
        write(folder, "access.lua", &filled(include_str!("conf/access.lua"), &names)?)?;
        let script = write(folder, "gcra.lua", include_str!("conf/gcra.lua"))?;
        zone = format!(
            "lua_package_path \"{}/?.lua;;\";\n    init_by_lua_block {{ require(\"access\").script = io.open(\"{}\"):read(\"*a\") }}",
            path(folder),
            path(&script)
        );
        limit = "access_by_lua_block { require(\"access\").check() }".into();
    } else if case.limit != Limit::Plain {
        let rate =
            if case.limit == Limit::Refused { "1r/m".into() } else { format!("{RATE_WIDE}r/s") };
        let key = if case.situation.callers == Callers::Keys {
            "$http_x_api_key"
        } else {
            "$binary_remote_addr"
        };
        zone = format!(
            "limit_req_status 429;\n    limit_req_log_level info;\n    limit_req_zone {key} zone=limited:10m rate={rate};"
        );
        limit = match case.limit {
            Limit::Refused => "limit_req zone=limited;".into(),
            Limit::Plain | Limit::Admitted => {
                format!("limit_req zone=limited burst={RATE_WIDE} nodelay;")
            }
        };
    }
    let certificate = format!(
        "ssl_certificate {}; ssl_certificate_key {}; ssl_session_tickets on;",
        path(environment.certificate),
        path(environment.key)
    );
    let names = [
        ("@FOLDER@", path(folder)),
        ("@ADDRESS@", address.to_string()),
        ("@UPSTREAM@", environment.upstream.to_string()),
        ("@LOAD_MODULES@", load_modules),
        (
            "@CLIENTS@",
            if case.situation.callers == Callers::Addresses {
                "set_real_ip_from 127.0.0.1; real_ip_header X-Forwarded-For;".into()
            } else {
                String::new()
            },
        ),
        ("@ZONE@", zone),
        ("@LIMIT@", limit),
        (
            "@LISTEN@",
            format!(
                "{}{}",
                if wire.is_tls() { "ssl " } else { "" },
                if wire.is_h2() { "http2" } else { "" }
            ),
        ),
        ("@CERTIFICATE@", if wire.is_tls() { certificate } else { String::new() }),
    ];
    let file = write(folder, "nginx.conf", &filled(include_str!("conf/nginx.conf"), &names)?)?;
    Ok(nginx_command(folder, &file))
}

fn nginx_command(folder: &Path, file: &Path) -> Command {
    let mut command = Command::new("nginx");
    command.arg("-p").arg(folder).arg("-c").arg(file).arg("-e").arg(folder.join("log"));
    command
}

fn haproxy(
    case: &Case,
    environment: &Environment<'_>,
    address: SocketAddr,
) -> Result<Command, String> {
    let wire = case.situation.wire;
    let (mut table, mut track, mut deny) = (String::new(), String::new(), String::new());
    if case.limit != Limit::Plain {
        let (period, most) =
            if case.limit == Limit::Refused { ("1h", 1) } else { ("1s", RATE_WIDE) };
        let (kind, client) = match case.situation.callers {
            Callers::One => ("ip", "src"),
            Callers::Addresses => ("ip", "hdr_ip(x-forwarded-for)"),
            Callers::Keys => ("string", "hdr(x-api-key)"),
        };
        table =
            format!("stick-table type {kind} size 100k expire 1h store http_req_rate({period})");
        track = format!("http-request track-sc0 {client}");
        deny = format!("http-request deny deny_status 429 if {{ sc_http_req_rate(0) gt {most} }}");
    }
    let bind = match (wire.is_tls(), wire.is_h2()) {
        (false, false) => String::new(),
        (false, true) => "proto h2".into(),
        (true, h2) => format!(
            "ssl crt {} alpn {}",
            path(environment.both),
            if h2 { "h2,http/1.1" } else { "http/1.1" }
        ),
    };
    let names = [
        ("@ADDRESS@", address.to_string()),
        ("@UPSTREAM@", environment.upstream.to_string()),
        ("@BIND@", bind),
        ("@TABLE@", table),
        ("@TRACK@", track),
        ("@DENY@", deny),
    ];
    let file = write(
        environment.folder,
        "haproxy.cfg",
        &filled(include_str!("conf/haproxy.cfg"), &names)?,
    )?;
    let mut command = Command::new("haproxy");
    command.arg("-db").arg("-f").arg(file);
    Ok(command)
}

fn weir(
    case: &Case,
    environment: &Environment<'_>,
    address: SocketAddr,
) -> Result<Command, String> {
    let store = if case.subject.is_on_cluster() {
        let nodes: Vec<String> =
            environment.redis.iter().map(|node| format!("\"{node}\"")).collect();
        // What the store does not answer in time becomes a 503, which ends the benchmark.
        let head = "engine = \"redis\"\non_store_error = \"deny\"\ndeadline = \"1s\"";
        format!("{head}\n\n[store.redis]\nmode = \"cluster\"\nnodes = [{}]", nodes.join(", "))
    } else {
        "engine = \"embedded\"".into()
    };
    let certificates = format!(
        "certificates = [{{ certificate = \"{}\", key = \"{}\" }}]",
        path(environment.certificate),
        path(environment.key)
    );
    let rate = match case.limit {
        Limit::Refused => "quota = 1, period = \"1h\"".into(),
        Limit::Plain | Limit::Admitted => format!("quota = {RATE_WIDE}, period = \"1s\""),
    };
    let rate: String = if case.subject == Subject::WeirLeased {
        format!("{rate}, lease = \"200ms\"")
    } else {
        rate
    };
    let by_key = case.situation.callers == Callers::Keys;
    let names = [
        ("@ADDRESS@", address.to_string()),
        ("@UPSTREAM@", environment.upstream.to_string()),
        ("@CERTIFICATES@", if case.situation.wire.is_tls() { certificates } else { String::new() }),
        (
            "@CLIENTS@",
            if case.situation.callers == Callers::Addresses {
                "trusted_proxies = [\"127.0.0.1\"]".into()
            } else {
                String::new()
            },
        ),
        ("@USE@", if by_key { "keyed" } else { "client-ip" }.into()),
        ("@KEY@", if by_key { "key = \"{header.x-api-key}\", " } else { "" }.into()),
        ("@STORE@", store),
        ("@RATE@", rate),
        (
            "@POLICY@",
            if case.limit == Limit::Plain { String::new() } else { "policy = \"limited\"".into() },
        ),
    ];
    let file =
        write(environment.folder, "proxy.toml", &filled(include_str!("conf/weir.toml"), &names)?)?;
    let mut command = Command::new(environment.weir);
    command.arg("run").arg("--config").arg(file);
    Ok(command)
}

/// The template with every name replaced. A remaining name is an error.
fn filled(template: &str, names: &[(&str, String)]) -> Result<String, String> {
    let text =
        names.iter().fold(template.to_owned(), |text, (name, value)| text.replace(name, value));
    let left =
        text.split('@').skip(1).step_by(2).find(|word| {
            !word.is_empty() && word.chars().all(|c| c.is_ascii_uppercase() || c == '_')
        });
    match left {
        Some(name) => Err(format!("@{name}@ was not filled in")),
        None => Ok(text),
    }
}

fn write(folder: &Path, name: &str, text: &str) -> Result<PathBuf, String> {
    let file = folder.join(name);
    fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(file)
}

fn path(path: &Path) -> String {
    path.display().to_string()
}
