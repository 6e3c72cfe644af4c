//! `weir import`: what it writes of a configuration of nginx, and what it says of the rest.

use std::path::Path;

use crate::harness::client::get;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;

/// What is written, and what is said.
fn import(folder: &Path, nginx: &str) -> (String, String) {
    let path = folder.join("nginx.conf");
    std::fs::write(&path, nginx).unwrap();
    let (code, out, err) = Weir::with_arguments(&["import", path.to_str().unwrap()]).run();
    assert_eq!(code, 0, "{out}{err}");
    // Also in the file, for whoever reads only that.
    for line in err.lines() {
        assert!(out.contains(&format!("# {line}\n")), "{line}\n{out}");
    }
    (out, err.replace(&format!("{}:", path.display()), "line "))
}

fn check(folder: &Path, config: &str) {
    let path = folder.join("proxy.toml");
    std::fs::write(&path, config).unwrap();
    let (code, out, err) = Weir::with_arguments(&["check", path.to_str().unwrap()]).run();
    assert_eq!(code, 0, "{out}{err}\n{config}");
}

#[test]
fn what_is_written_has_no_errors_and_what_is_left_out_is_said_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("mime.types"), "types { text/html html; }").unwrap();
    let (config, notes) = import(
        folder.path(),
        r#"user www-data;
events { worker_connections 768; }
http {
    include mime.types;
    include conf.d/*.conf;
    gzip on; charset utf-8;
    limit_req_zone $binary_remote_addr zone=clients:10m rate=10r/s;
    limit_req_zone $http_x_api_key zone=keys:10m rate=600r/m;
    limit_req_zone $bucket zone=odd:10m rate=1r/s;
    limit_conn_zone $binary_remote_addr zone=conns:10m;
    limit_req_status 429;
    upstream api {
        zone api 64k;
        ip_hash;
        server 127.0.0.1:9000 weight=2 max_fails=3;
        server 127.0.0.1:9001 backup;
        server 127.0.0.1:9002 down;
    }
    server {
        listen 8080 default_server;
        server_name api.example.com;
        limit_req zone=clients burst=19 nodelay;
        limit_conn conns 10;
        location / { proxy_pass http://api; proxy_set_header Host $host; }
        location /v2/ { proxy_pass http://api/; proxy_set_header X-User ""; proxy_set_header X-A b; }
        location = /login { limit_req zone=keys burst=5; proxy_pass http://127.0.0.1:9100; }
        location ~* \.(gif|png)$ { proxy_pass http://api; }
        location = /ping { return 200 "pong\n"; }
        location /odd/ { limit_req zone=odd; proxy_pass http://api; }
    }
    server {
        listen 127.0.0.1:8081;
        listen unix:/run/x.sock;
        server_name other.example.com;
        location / { proxy_pass https://127.0.0.1:9443; }
    }
    server {
        listen 8080;
        server_name more.example.com *.old.example;
        return 301 https://www.example.com/;
    }
}
"#,
    );
    check(folder.path(), &config);
    for part in [
        r#"endpoints = [{ url = "http://127.0.0.1:9000", weight = 2 }, { url = "http://127.0.0.1:9001", backup = true }]"#,
        "hash = \"client-ip\"",
        r#"compress = { encodings = ["gzip"], types = ["text/html"], min_bytes = "20B" }"#,
        r#"    { name = "clients", algorithm = "gcra", quota = 10, period = "1s", burst = 20, key = "{client_ip}", when.route = ["all", "all-2", "v2", "v2-2", "odd"] },"#,
        r#"    { name = "conns", algorithm = "concurrency", quota = 10, key = "{client_ip}" },"#,
        r#"    { name = "keys", algorithm = "leaky_bucket", quota = 600, period = "1m", burst = 1, max_delay = "500ms", key = "{header.x-api-key}", missing = "skip", when.route = ["login"] },"#,
        "path = \"/v2/*\"\nlisteners = [\"port-8080\"]\nrewrite = { strip_prefix = \"/v2\" }\nrequest_headers = { set = { \"X-A\" = \"b\" }, remove = [\"X-User\"] }",
        r#"when = { path = "~(?si).*(?:\\.(gif|png)$).*" }"#,
        r#"respond = { status = 200, body = "pong\n" }"#,
        r#"host = "more.example.com""#,
        r#"host = "*.old.example""#,
        r#"respond = { status = 301, headers = { Location = "https://www.example.com/" } }"#,
    ] {
        assert!(config.contains(part), "{part}\n{config}");
    }
    let expected = [
        "line 5: include conf.d/*.conf (no file): left out",
        "line 6: charset utf-8: left out",
        "line 29: limit_req zone=odd: LEFT OUT, nothing is limited by it: Weir has no fact for $bucket",
        "line 33: listen unix:/run/x.sock: left out: expected an address and a port, for TCP",
    ];
    for line in expected {
        assert!(notes.lines().any(|note| note == line), "{line}\n{notes}");
    }
    for needless in ["user", "events", "types", "proxy_set_header", "zone api", "max_fails"] {
        assert!(!notes.contains(&format!(": {needless}")), "{needless}\n{notes}");
    }
}

/// What nginx keeps out, whether Weir has the means or not, does not get through.
#[tokio::test]
async fn what_weir_cannot_answer_as_nginx_does_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let upstream = Upstream::start();
    let api = upstream.url();
    let (config, notes) = import(
        folder.path(),
        &format!(
            r#"server {{
    listen 127.0.0.1:0;
    location / {{ proxy_pass {api}; }}
    location /admin/ {{ deny all; }}
    location /ours/ {{ proxy_pass {api}; allow 10.0.0.0/8; deny all; }}
    location /inner/ {{ internal; proxy_pass {api}; }}
    location /files/ {{ root /srv; }}
    location ~ ^/secret|\.git$ {{ return 403; }}
    location /api/ {{ proxy_pass {api}; location /api/hidden {{ deny all; }} }}
    location /odd/ {{ proxy_pass http://$backend; }}
    location ^~ /plain/ {{ proxy_pass {api}; }}
}}
server {{ listen 127.0.0.1:0; server_name half.example; location /api/ {{ proxy_pass {api}; }} }}
server {{ listen 127.0.0.1:0; server_name secure.example; return 301 https://$host$request_uri; }}
server {{ listen 127.0.0.1:0; server_name closed.example; auth_basic "x"; location / {{ proxy_pass {api}; }} }}
server {{ listen 127.0.0.1:0; server_name down.example; return 503; location / {{ proxy_pass {api}; }} }}
server {{ listen unix:/run/x.sock; location / {{ proxy_pass {api}; }} }}
add_header X "a
[admin]
b";
"#
        ),
    );
    let weir = Weir::start(&format!("{config}\n[admin]\naddress = \"127.0.0.1:0\"\n"));
    for (host, path, status) in [
        ("a", "/", 200),
        ("a", "/admin/", 403),
        ("a", "/admin", 403),
        ("a", "/ours/x", 403),
        ("a", "/inner/x", 404),
        ("a", "/files/x", 404),
        ("a", "/secrets", 403),
        ("a", "/x/.git", 403),
        ("a", "/x/.gitx", 200),
        // Expressions come before paths, unless these forbid it.
        ("a", "/api/.git", 403),
        ("a", "/plain/.git", 200),
        ("a", "/api/x", 200),
        ("a", "/api/hidden", 403),
        ("a", "/api/hidden/x", 403),
        ("a", "/odd/x", 404),
        ("half.example", "/api/x", 200),
        ("half.example", "/", 404),
        ("secure.example", "/x", 308),
        ("closed.example", "/", 403),
        ("down.example", "/", 503),
    ] {
        let reply = get(weir.http, path, &[("host", host)]).await;
        assert_eq!(reply.status, status, "{host}{path}\n{config}");
    }
    assert!(
        notes.contains("server { ... }: left out: it listens nowhere where Weir can"),
        "{notes}"
    );
    assert!(notes.contains("add_header X a\\n[admin]\\nb: left out"), "{notes}");
}

/// The names of a server that can't be written must not lead to another one.
#[tokio::test]
async fn hosts_that_cannot_be_written_do_not_reach_the_default_server() {
    let folder = tempfile::tempdir().unwrap();
    let upstream = Upstream::start();
    let api = upstream.url();
    let (config, notes) = import(
        folder.path(),
        &format!(
            r#"server {{ listen 127.0.0.1:0; server_name a.com; location / {{ proxy_pass {api}; }} }}
server {{ listen 127.0.0.1:0; server_name .foo.com ~^x; location / {{ return 410; }} }}
"#
        ),
    );
    let weir = Weir::start(&format!("{config}\n[admin]\naddress = \"127.0.0.1:0\"\n"));
    for (host, status) in
        [("a.com", 200), ("foo.com", 410), ("x.foo.com", 410), ("xyz", 403), ("other", 403)]
    {
        let reply = get(weir.http, "/", &[("host", host)]).await;
        assert_eq!(reply.status, status, "{host}\n{config}");
    }
    assert_eq!(
        notes.lines().next(),
        Some(
            "line 2: server_name .foo.com ~^x: LEFT OUT: ~^x, as a host is a name, or begins with `*.`"
        )
    );
}

#[test]
fn redirects_hosts_and_proxies_are_those_of_nginx() {
    let folder = tempfile::tempdir().unwrap();
    let to_https = "return 301 https://$host$request_uri;";
    for server in [
        to_https.to_owned(),
        format!("location /.well-known/ {{ root /var/www; }} location / {{ {to_https} }}"),
        format!("if ($host = a) {{ {to_https} }} return 404;"),
    ] {
        let (config, _) = import(folder.path(), &format!("server {{ listen 80; {server} }}"));
        assert!(config.contains("redirect_to_https = 443"), "{server}\n{config}");
        check(folder.path(), &config.replace("0.0.0.0:80", "127.0.0.1:8080"));
    }
    let (config, notes) = import(
        folder.path(),
        "set_real_ip_from 10.0.0.0/8; set_real_ip_from 192.0.2.1; real_ip_header X-Real-IP;
         server {
             listen 8080 proxy_protocol;
             location / { proxy_pass http://10.0.0.1:80; }
             location /a/ { proxy_pass http://10.0.0.1:80; proxy_set_header Host $host; }
             location /b/ { proxy_pass http://10.0.0.1:80; proxy_set_header Host b.internal; }
             location = /c { return 302 https://www.example.com$request_uri; }
         }",
    );
    check(folder.path(), &config);
    for part in [
        "[server]\ntrusted_proxies = [\"10.0.0.0/8\", \"192.0.2.1\"]\n",
        "path = \"/*\"\nupstream_host = \"10.0.0.1:80\"\n",
        "path = \"/a/*\"\nupstream = ",
        "path = \"/b/*\"\nupstream_host = \"b.internal\"\n",
        "redirect = { to = \"https://www.example.com\", status = 302 }",
    ] {
        assert!(config.contains(part), "{part}\n{config}");
    }
    assert!(notes.contains("line 1: real_ip_header X-Real-IP: LEFT OUT"), "{notes}");
}

/// Each address has a default server of its own, and what one server says of an address holds for
/// all.
#[test]
fn addresses_are_shared_as_in_nginx() {
    let folder = tempfile::tempdir().unwrap();
    let (config, _) = import(
        folder.path(),
        "server { listen 8080; server_name a; return 200 a; }
         server { listen 8080; listen 8081 default_server; server_name b; return 200 b; }
         server { listen 8443 quic; listen 8443; listen [::1]; server_name c; return 200 c; }
         server { listen 8443 ssl; ssl_certificate c.pem; ssl_certificate_key c.key; return 200 d; }",
    );
    for part in [
        "\n[[routes]]\nname = \"all\"\npath = \"/*\"\nlisteners = [\"port-8080\"]\nrespond = { status = 200, body = \"a\" }",
        "path = \"/*\"\nlisteners = [\"port-8081\"]\nrespond = { status = 200, body = \"b\" }",
        "host = \"b\"\npath = \"/*\"\nlisteners = [\"port-8080\"]\nrespond = { status = 200, body = \"b\" }",
        "address = \"0.0.0.0:8443\"\ncertificates = [{ certificate = \"c.pem\", key = \"c.key\" }]",
        "address = \"[::1]:80\"",
    ] {
        assert!(config.contains(part), "{part}\n{config}");
    }
}

#[tokio::test]
async fn a_file_without_http_around_it_serves_as_it_says() {
    let folder = tempfile::tempdir().unwrap();
    let upstream = Upstream::start();
    let api = upstream.url();
    let (config, notes) = import(
        folder.path(),
        &format!(
            "server {{ listen 127.0.0.1:0; location / {{ proxy_pass {api}; }} location = /no {{ return 410; }} }}"
        ),
    );
    assert_eq!(notes, "");
    let weir = Weir::start(&format!("{config}\n[admin]\naddress = \"127.0.0.1:0\"\n"));
    assert_eq!(get(weir.http, "/", &[]).await.status, 200);
    assert_eq!(get(weir.http, "/no", &[]).await.status, 410);
}

#[test]
fn a_file_without_a_server_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nginx.conf");
    for (text, expected) in [
        ("events {}\n", "found no `server { }`"),
        ("http {\n", "not closed"),
        ("include /dev/zero;\n", "expected a file"),
    ] {
        std::fs::write(&path, text).unwrap();
        let (code, out, err) = Weir::with_arguments(&["import", path.to_str().unwrap()]).run();
        assert!(code == 2 && out.is_empty() && err.contains(expected), "{out}{err}");
    }
}
