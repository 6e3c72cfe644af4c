//! What a configuration that was made of nginx's does with requests, and what is said of the rest.

mod maps;

use std::time::Duration;

use super::import;
use crate::app::{self, Simulation};
use crate::cli::import::directives;
use crate::cli::request;
use crate::proxy::trial::TrialReply;

/// The configuration that is written, and the notes.
fn imported(nginx: &str) -> (String, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nginx.conf");
    std::fs::write(&path, nginx).unwrap();
    let imported = import(&directives::read(&path).unwrap()).unwrap();
    let notes = imported.notes.join("\n").replace(&format!("{}:", path.display()), "line ");
    (imported.text, notes)
}

fn simulation(config: &str) -> Simulation {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("proxy.toml");
    std::fs::write(&path, config).unwrap();
    let loaded = app::load(&path).unwrap_or_else(|errors| panic!("{errors}\n{config}"));
    Simulation::build(loaded, 0).unwrap_or_else(|errors| panic!("{errors}\n{config}"))
}

/// Sends requests, as `weir explain` reads them, and compares what is answered with a status.
fn check(nginx: &str, requests: &[(&str, u16)]) -> String {
    let (config, notes) = imported(nginx);
    let mut simulation = simulation(&config);
    for (line, status) in requests {
        let asked = request::parse(line).unwrap();
        let reply = simulation.send(&asked, TrialReply::answer(200), Duration::ZERO).unwrap();
        assert_eq!(reply.account.status, Some(*status), "{line}\n{config}");
    }
    notes
}

const PASS: &str = "proxy_pass http://127.0.0.1:9000;";

/// A server on one address with these locations.
fn server(locations: &str) -> String {
    let locations = locations.replace("PASS", PASS);
    format!("server {{ listen 127.0.0.1:8080; {locations} }}")
}

#[test]
fn a_name_of_the_default_server_is_not_taken_by_anothers_star() {
    let notes = check(
        "server { listen 8080; server_name Api.example.com other.test; return 201; }
         server { listen 8080; server_name *.example.com; return 202; }
         server { listen 8081; server_name *.example.com; return 203; }",
        &[
            ("GET / host: api.example.com", 201),
            ("GET / host: other.test", 201),
            ("GET / host: unknown.test", 201),
            ("GET / host: www.example.com", 202),
        ],
    );
    assert_eq!(notes, "");
}

#[test]
fn the_first_server_with_a_name_has_it() {
    let notes = check(
        "server { listen 8080; return 200; }
         server { listen 8080; server_name a.test a.test .b.test; return 201; }
         server { listen 8080; server_name A.TEST x.b.test c.test; return 202; }
         server { listen 8080; listen 8081; server_name *.b.test b.test c.test; return 203; }",
        &[
            ("GET / host: a.test", 201),
            ("GET / host: b.test", 201),
            ("GET / host: y.b.test", 201),
            ("GET / host: x.b.test", 202),
            ("GET / host: c.test", 202),
            ("GET / host: unknown.test", 200),
        ],
    );
    let lines: Vec<&str> = notes.lines().collect();
    assert_eq!(lines.len(), 5, "{notes}");
    let what = "a.test on 0.0.0.0:8080, as nginx uses the first that has this name";
    assert!(lines[0].starts_with("line 2: ") && lines[0].ends_with(what), "{notes}");
    assert!(lines[1].starts_with("line 3: ") && lines[1].ends_with(what), "{notes}");
}

#[test]
fn names_that_no_request_has_are_left_out() {
    let (config, notes) = imported(
        "server { listen 8080; return 200; }
         server { listen 8080; server_name a.test. \u{e9}.test UPPER.Test _ [::1] !@#; return 201; }",
    );
    for host in ["upper.test", "[::1]"] {
        assert!(config.contains(&format!("host = \"{host}\"")), "{config}");
    }
    assert_eq!(config.matches("host = ").count(), 2, "{config}");
    assert_eq!(notes.matches("as no request has such a host").count(), 3, "{notes}");
    let (_, notes) = imported("server { listen 8080; server_name $hostname; return 201; }");
    assert!(notes.contains("LEFT OUT: $hostname"), "{notes}");
}

/// A default server without names gets all other hosts, but not those of servers whose names can't
/// be written.
#[test]
fn hosts_that_match_an_expression_do_not_reach_the_default_server() {
    let (config, notes) = imported(
        "server { listen 8080; server_name _; location / { return 201; } location = /r { return 301 /r/; }
                  location ~ \\.php$ { return 202; } }
         server { listen 8080; server_name ~^API\\d+\\.test$ www.x.* $hostname; deny all; }
         server { listen 8080; server_name api7.test; return 203; }",
    );
    let mut simulation = simulation(&config);
    for (line, status) in [
        ("GET / host: other.test", 201),
        ("GET /r host: other.test", 301),
        ("GET /x.php host: other.test", 202),
        ("GET / host: api1.test", 403),
        ("GET /r host: api1.test:80", 403),
        ("GET /x.php host: Api1.test", 403),
        ("GET / host: www.x.co.uk", 403),
        ("GET / host: www.x", 201),
        ("GET / host: api7.test", 203),
    ] {
        let asked = request::parse(line).unwrap();
        let reply = simulation.send(&asked, TrialReply::answer(200), Duration::ZERO).unwrap();
        assert_eq!(reply.account.status, Some(status), "{line}\n{config}");
    }
    assert!(notes.contains("LEFT OUT: it also gets the requests for $hostname"), "{notes}");
}

#[test]
fn proxies_are_believed_as_far_as_nginx_believes_them() {
    let server = |directives: &str, listen: &str| {
        format!("{directives} server {{ listen 8080{listen}; return 200; }}")
    };
    let list = "real_ip_header X-Forwarded-For;";
    let recursive = "real_ip_recursive on;";
    for (text, proxies, notes) in [
        (
            server(&format!("set_real_ip_from 10.0.0.1/8; {list} {recursive}"), ""),
            "\"10.0.0.0/8\"",
            "",
        ),
        (
            server(&format!("set_real_ip_from 10.0.0.0/8; set_real_ip_from ::1; {list}"), ""),
            "\"10.0.0.0/8\", \"::1\"",
            "they may have no clients in them",
        ),
        (
            server(&format!("set_real_ip_from 0.0.0.0/0; {list}"), ""),
            "",
            "LEFT OUT: Weir would take",
        ),
        (server(&format!("set_real_ip_from ::/0; {list}"), ""), "", "LEFT OUT: Weir would take"),
        (
            server(&format!("set_real_ip_from ::/0; {list} {recursive}"), ""),
            "\"::/0\"",
            "any client can name the address",
        ),
        (server("set_real_ip_from 10.0.0.1;", ""), "", "without a real_ip_header"),
        (
            server("set_real_ip_from 10.0.0.1; real_ip_header CF-Connecting-IP;", ""),
            "",
            "real_ip_header CF-Connecting-IP: LEFT OUT",
        ),
        (
            server("set_real_ip_from 10.0.0.1; real_ip_header proxy_protocol;", " proxy_protocol"),
            "\"10.0.0.1\"",
            "Weir also believes X-Forwarded-For",
        ),
        (server("", " proxy_protocol"), "", "`weir check` refuses its `proxy_protocol` until"),
        (
            server(&format!("set_real_ip_from lb.internal; {list}"), ""),
            "",
            "LEFT OUT: expected an address or a network",
        ),
        (
            format!(
                "{list} server {{ listen 80; location / {{ set_real_ip_from 10.0.0.1; return 200; }} }}"
            ),
            "",
            "set_real_ip_from 10.0.0.1: LEFT OUT: Weir believes a proxy on all routes",
        ),
        (
            format!(
                "server {{ listen 80; set_real_ip_from 10.0.0.1; {list} {recursive} return 200; }}"
            ),
            "\"10.0.0.1\"",
            "it holds for all servers in Weir",
        ),
    ] {
        let (config, said) = imported(&text);
        let line = format!("trusted_proxies = [{proxies}]\n");
        assert_eq!(config.contains(&line), !proxies.is_empty(), "{text}\n{config}");
        assert_eq!(config.contains("trusted_proxies = "), !proxies.is_empty(), "{text}\n{config}");
        assert_eq!(said.is_empty(), notes.is_empty(), "{text}\n{said}");
        assert!(said.contains(notes), "{text}\n{said}");
    }
}

#[test]
fn a_key_of_a_field_that_a_proxy_writes_is_the_clients_address() {
    let (config, notes) = imported(
        "limit_req_zone $http_X_Forwarded_For zone=a:1m rate=1r/s;
         limit_req_zone $http_x_forwarded_proto zone=b:1m rate=1r/s;
         server { listen 8080; limit_req zone=a; limit_req zone=b; location / { proxy_pass http://127.0.0.1:9000; } }",
    );
    assert!(
        config.contains("quota = 1, period = \"1s\", burst = 1, key = \"{client_ip}\" }"),
        "{config}"
    );
    assert!(notes.contains("limit_req zone=a: counts by {client_ip}"), "{notes}");
    let left = "LEFT OUT, nothing is limited by it: Weir has no fact for $http_x_forwarded_proto";
    assert!(notes.contains(left), "{notes}");
}

#[test]
fn guards_hold_for_the_locations_inside() {
    let notes = check(
        &server(
            "location / { PASS }
             location /deny/ { deny all; PASS location /deny/x/ { PASS location ~ y$ { PASS } } }
             location /inner/ { internal; PASS location /inner/x/ { PASS } }
             location /methods/ { limit_except GET { deny all; } PASS location /methods/x/ { PASS } }
             location /if/ { if ($x) { return 403; } PASS location /if/x/ { PASS } }
             location /lua/ { access_by_lua_block { if '}' then ngx.exit(403) end } PASS }
             location /oidc/ { auth_oidc x; PASS }
             location /rules/ { SecRulesEnabled; PASS }
             location /modsec/ { ModSecurityEnabled on; PASS }
             location /rewrite/ { rewrite_by_lua 'ngx.exit(403)'; PASS location /rewrite/x/ { PASS } }",
        ),
        &[
            ("GET /", 200),
            ("GET /deny/", 403),
            ("GET /deny/x/", 403),
            ("GET /deny/x/y", 403),
            ("GET /inner/x/", 404),
            ("GET /methods/", 403),
            ("GET /methods/x/", 200),
            ("GET /if/", 403),
            ("GET /if/x/", 200),
            ("GET /lua/", 403),
            ("GET /oidc/", 403),
            ("GET /rules/", 403),
            ("GET /modsec/", 403),
            ("GET /rewrite/x/", 403),
        ],
    );
    let what =
        "line 2: location /deny/x/ { ... }: Weir refuses its requests, for `deny all` around it";
    assert!(notes.lines().any(|line| line == what), "{notes}");
}

/// As nginx 1.22 answers.
#[test]
fn expressions_are_asked_from_the_inside_out() {
    check(
        &server(
            "location / { PASS }
             location /a/ { PASS location ~ \\.php$ { return 411; } location /a/b/ { PASS location /a/b/c/ { PASS } } }
             location ~ \\.(php|txt)$ { return 412; }
             location ~ \\.cgi$ { deny all; }
             location ^~ /c/ { PASS location /c/d/ { PASS } location ~ \\.txt$ { return 413; } }
             location /d/ { PASS location ^~ /d/e/ { PASS } location ~ \\.txt$ { return 414; } }
             location = /a/b/exact.php { PASS }
             location /n/ { return 415; location /n/a/b/ { return 416; } location = /n/a/c { return 417; } }
             location /n/a/ { return 418; }",
        ),
        &[
            ("GET /x.php", 412),
            ("GET /a/x.php", 411),
            ("GET /a/b/x.php", 411),
            ("GET /a/b/c/x.php", 411),
            ("GET /a/b/c/x.txt", 412),
            ("GET /a/b/exact.php", 200),
            ("GET /c/x.cgi", 200),
            ("GET /c/d/x.cgi", 200),
            ("GET /c/d/x.txt", 413),
            ("GET /d/x.cgi", 403),
            ("GET /d/e/x.cgi", 403),
            ("GET /d/x.txt", 414),
            ("GET /d/e/x.txt", 412),
            ("GET /n/a/b/x", 418),
            ("GET /n/a/c", 418),
            ("GET /n/x", 415),
        ],
    );
}

#[test]
fn an_expression_inside_another_one_is_refused() {
    let notes = check(
        &server(
            "location / { PASS }
             location ~ \\.php$ { PASS location ~ ^/admin/ { auth_basic x; PASS } location ~ ^/x { return 200; } }",
        ),
        &[("GET /a.php", 200), ("GET /admin/x.php", 403), ("GET /admin/", 403), ("GET /x.php", 403)],
    );
    assert_eq!(notes.matches("LEFT OUT: Weir does not ask two expressions").count(), 2, "{notes}");
}

#[test]
fn an_expression_covers_paths_with_a_slash_at_their_end() {
    for (expression, paths) in [
        ("^/admin/", &["/admin/", "/admin/x", "/Admin/x/"][..]),
        ("^/admin/$", &["/admin/"]),
        ("^/admin/(.*)$", &["/admin/", "/admin/x"]),
        ("^/(admin|private/)", &["/admin", "/private/"]),
        ("/$", &["/", "/x/", "/x/y/"]),
    ] {
        let locations = format!("location / {{ PASS }} location ~ {expression} {{ deny all; }}");
        let lines: Vec<String> = paths.iter().map(|path| format!("GET {path}")).collect();
        let requests: Vec<(&str, u16)> = lines.iter().map(|line| (line.as_str(), 403)).collect();
        check(&server(&locations), &requests);
    }
    let (_, notes) = imported(&server("location / { PASS } location ~ ^/(?!open) { deny all; }"));
    assert!(notes.contains("LEFT OUT for paths that end with a slash"), "{notes}");
}

#[test]
fn a_location_needs_no_blank_and_none_that_guards_is_lost() {
    let notes = check(
        &server(
            "location / { PASS location ~ \\.in$ { PASS } }
             location ~*\\.(bak|sql)$ { deny all; }
             location =/eq { deny all; }
             location ^~/stat/ { PASS }
             location ~^/rx { deny all; }
             location \"/a{b}/\" { deny all; }
             location = /a*b { deny all; }
             location /admin { deny all; }
             location ^~ /adm/api { return 401; }
             location /adm/ { PASS }",
        ),
        &[
            ("GET /x.BAK", 403),
            ("GET /eq", 403),
            ("GET /stat/x.bak", 200),
            ("GET /rxx", 403),
            ("GET /a%7Bb%7D/c", 403),
            ("GET /a*b", 403),
            ("GET /a*bc", 200),
            ("GET /admin", 403),
            ("GET /adminx/y.in", 403),
            ("GET /adm/apix", 401),
            ("GET /adm/api/x", 401),
            ("GET /adm/x", 200),
        ],
    );
    assert_eq!(notes.matches("LEFT OUT: a path has no braces").count(), 2, "{notes}");
}

#[test]
fn a_path_with_and_without_its_slash_are_two_locations() {
    check(
        &server(
            "location / { PASS } location /api { return 201; } location /api/ { return 202; }
             location /both { return 203; } location /both/ { return 204; } location = /both { return 205; }
             location = /limited { return 206; } location /limited/ { proxy_pass http://127.0.0.1:9000/v1/; }",
        ),
        &[
            ("GET /api", 201),
            ("GET /apix", 201),
            ("GET /api/", 202),
            ("GET /api/x", 202),
            ("GET /both", 205),
            ("GET /both/x", 204),
            ("GET /both/", 204),
            ("GET /bothx", 203),
            ("GET /limited", 206),
            ("GET /limited/", 200),
        ],
    );
}

/// Weir's path without a slash takes the one with it, too.
#[test]
fn a_slash_at_the_end_opens_nothing() {
    check(
        &server("location / { deny all; } location = /health { PASS } location = /free/ { PASS }"),
        &[("GET /health", 200), ("GET /health/", 403), ("GET /free/", 200)],
    );
    check(
        &server("location / { PASS } location ~ ^/x/ { deny all; } location = /x { PASS }"),
        &[("GET /x", 200), ("GET /x/", 403), ("GET /x/y", 403)],
    );
    check(&server("location = /x { PASS }"), &[("GET /x", 200), ("GET /x/", 404)]);
    let limited = |own: &str| {
        let zone = "limit_req_zone $binary_remote_addr zone=z:1m rate=1r/s;";
        let locations =
            format!("location / {{ limit_req zone=z; PASS }} location = /x {{ {own} PASS }}");
        imported(&format!("{zone} {}", server(&locations))).0
    };
    assert!(limited("").contains("path = \"/x/\""));
    assert!(!limited("limit_req zone=z;").contains("path = \"/x/\""));
}

#[test]
fn fields_for_the_upstream_are_those_of_nginx() {
    for (fields, written, notes) in [
        ("X-Forwarded-Proto https", "{ set = { \"X-Forwarded-Proto\" = \"https\" } }", ""),
        ("X-Forwarded-For \"\"", "{ remove = [\"X-Forwarded-For\"] }", ""),
        ("Accept-Encoding \"\"", "{ remove = [\"Accept-Encoding\"] }", ""),
        ("X-Forwarded-For $proxy_add_x_forwarded_for", "", ""),
        ("X-Forwarded-Proto $scheme", "", ""),
        ("X-Forwarded-Host $host", "", ""),
        (
            "X-Forwarded-Proto $http_x_forwarded_proto",
            "",
            "LEFT OUT: Weir sends a value of its own",
        ),
        ("Connection $connection_upgrade", "", ""),
        ("TE \"\"", "", "left out: no route changes this field"),
        ("X-User $http_x_user", "", ""),
        (
            "X-User $remote_user",
            "{ remove = [\"X-User\"] }",
            "LEFT OUT: a value has no variables in Weir. The upstream does not get the field",
        ),
        (
            "X-A 1; proxy_set_header x-a 2; proxy_set_header X-B 3",
            "{ set = { \"X-B\" = \"3\" }, add = { \"X-A\" = [\"1\", \"2\"] }, remove = [\"X-A\"] }",
            "",
        ),
    ] {
        let nginx = server(&format!("location / {{ PASS proxy_set_header {fields}; }}"));
        let (config, said) = imported(&nginx);
        let line = format!("request_headers = {written}\n");
        assert_eq!(config.contains(&line), !written.is_empty(), "{fields}\n{config}");
        assert_eq!(config.contains("request_headers"), !written.is_empty(), "{fields}\n{config}");
        assert_eq!(said.is_empty(), notes.is_empty(), "{fields}\n{said}");
        assert!(said.contains(notes), "{fields}\n{said}");
        simulation(&config);
    }
}

#[test]
fn the_path_of_proxy_pass_replaces_the_text_of_the_location() {
    for (location, to, rewrite, notes) in [
        ("/uri/", "/v1/", "{ strip_prefix = \"/uri\", add_prefix = \"/v1\" }", ""),
        ("/uri/", "/v1", "{ match = \"/uri/(.*)\", to = \"/v1{1}\" }", ""),
        ("/", "/v1", "{ match = \"/(.*)\", to = \"/v1{1}\" }", ""),
        ("/", "/v1/", "{ add_prefix = \"/v1\" }", ""),
        (
            "/uri",
            "/v1/",
            "{ strip_prefix = \"/uri\", add_prefix = \"/v1\" }",
            "nginx sends /v1//x for /uri/x",
        ),
        (
            "/uri",
            "/v1",
            "{ strip_prefix = \"/uri\", add_prefix = \"/v1\" }",
            "nginx also takes /urix",
        ),
        ("/uri/", "/uri/", "", ""),
        ("= /uri", "/v1", "\"/v1\"", ""),
        ("/uri/", "/v1?x=1", "", "expected a URL without a query"),
    ] {
        let pass = format!("proxy_pass http://127.0.0.1:9000{to};");
        let (config, said) = imported(&server(&format!("location {location} {{ {pass} }}")));
        let line = format!("rewrite = {rewrite}\n");
        assert_eq!(config.contains(&line), !rewrite.is_empty(), "{location} {to}\n{config}");
        assert_eq!(config.contains("rewrite = "), !rewrite.is_empty(), "{location} {to}\n{config}");
        assert_eq!(said.is_empty(), notes.is_empty(), "{location} {to}\n{said}");
        assert!(said.contains(notes), "{location} {to}\n{said}");
        simulation(&config);
    }
    let (config, _) =
        imported(&server("location /u/ { proxy_pass http://unix:/run/x.sock:/v1/; }"));
    assert!(config.contains("endpoints = [\"unix:/run/x.sock\"]"), "{config}");
    assert!(config.contains("add_prefix = \"/v1\""), "{config}");
}

#[test]
fn a_redirect_to_the_servers_name_is_one_to_its_first_name() {
    let (config, notes) = imported(
        "server { listen 8080; server_name a.test www.a.test; return 301 https://$server_name$request_uri; }",
    );
    assert!(config.contains("redirect = { to = \"https://a.test\", status = 301 }"), "{config}");
    assert!(!config.contains("redirect_to_https") && notes.is_empty(), "{config}{notes}");
    for (text, expected) in [
        ("200 \"hi https://x.test$request_uri\"", "respond = { status = 404 }"),
        (
            "https://x.test/y",
            "respond = { status = 302, headers = { Location = \"https://x.test/y\" } }",
        ),
        ("302 https://x.test$request_uri", "redirect = { to = \"https://x.test\", status = 302 }"),
    ] {
        let (config, _) = imported(&format!("server {{ listen 8080; return {text}; }}"));
        assert!(config.contains(expected), "{text}\n{config}");
    }
}

#[test]
fn a_default_server_that_redirects_does_so_for_its_names() {
    let notes = check(
        "server { listen 8080; server_name a.test; client_max_body_size 1m; return 301 https://$host$request_uri;
                  location /x/ { deny all; } }
         server { listen 8080; server_name b.test; return 201; }",
        &[
            ("GET / host: a.test", 308),
            ("GET / host: b.test", 201),
            ("GET / host: unknown.test", 403),
        ],
    );
    for what in ["client_max_body_size 1m", "location /x/ { ... }"] {
        assert!(
            notes.contains(&format!("{what}: left out: all requests of this server")),
            "{notes}"
        );
    }
}

#[test]
fn the_certificate_of_the_default_server_is_the_first() {
    let (config, _) = imported(
        "ssl_certificate_key all.key;
         server { listen 8443 ssl; server_name a.test; ssl_certificate a.pem; return 200; }
         server { listen 8443 ssl default_server; ssl_certificate b.pem; ssl_certificate_key b.key; return 200; }",
    );
    let both = "certificates = [{ certificate = \"b.pem\", key = \"b.key\" }, { certificate = \"a.pem\", key = \"all.key\" }]";
    assert!(config.contains(both), "{config}");
}

#[test]
fn upstreams_are_found_in_any_case_and_need_a_server_that_is_up() {
    let (config, notes) = imported(&format!(
        "upstream Up {{ server 127.0.0.1:9000; hash $http_x$remote_addr; }}
         upstream down {{ server 127.0.0.1:9000 down; }} {}",
        server("location / { proxy_pass http://uP; } location /d/ { proxy_pass http://down; }")
    ));
    assert!(config.contains("endpoints = [\"http://127.0.0.1:9000\"]"), "{config}");
    assert!(!config.contains("hash = ") && !config.contains("[upstreams.\"down\"]"), "{config}");
    assert!(notes.contains("expected one variable with a fact"), "{notes}");
    assert!(notes.contains("expected a server of its upstream that is not down"), "{notes}");
    simulation(&config);
}

/// The lines of the configuration from a route's name on, without the name.
fn route<'c>(config: &'c str, name: &str) -> &'c str {
    let (_, rest) = config.split_once(&format!("name = \"{name}\"\n")).unwrap();
    rest.split("\n\n").next().unwrap()
}

#[test]
fn sizes_times_and_fields_are_those_of_the_innermost_block() {
    let (config, notes) = imported(&format!(
        "http {{ gzip on; gzip_types application/json; proxy_read_timeout 5m; proxy_connect_timeout 2s;
                 add_header X-A 1 always;
         {} }}",
        server(
            "client_max_body_size 10m;
             location / { PASS }
             location /up { PASS client_max_body_size 0; proxy_read_timeout 1500ms; gzip off; add_header X-B 2; proxy_hide_header X-Powered-By; }
             location /t { return 200; }"
        )
    ));
    simulation(&config);
    assert!(config.contains("[server.limits]\nbody_bytes = \"1MiB\"\n"), "{config}");
    let times = "timeouts = { response_header = \"300s\", idle = \"300s\", connect = \"2s\" }";
    assert!(config.contains(times), "{config}");
    let all = route(&config, "all-2");
    for line in [
        "body_bytes = \"10MiB\"",
        "compress = { encodings = [\"gzip\"], types = [\"text/html\", \"application/json\"], min_bytes = \"20B\" }",
        "response_headers = { add = { \"X-A\" = \"1\" } }",
    ] {
        assert!(all.contains(line), "{line}: {config}");
    }
    assert!(!all.contains("timeouts"), "{config}");
    let up = route(&config, "up");
    for line in [
        "body_bytes = \"1TiB\"",
        "timeouts = { response_header = \"1500ms\", idle = \"1500ms\" }",
        "response_headers = { add = { \"X-B\" = \"2\" }, remove = [\"x-powered-by\"] }",
    ] {
        assert!(up.contains(line), "{line}: {config}");
    }
    assert!(!up.contains("compress"), "{config}");
    assert!(route(&config, "t").contains("body_bytes = \"10MiB\""), "{config}");
    assert!(notes.contains("X-B 2: Weir adds it to every response"), "{notes}");
    // Without a word, nginx waits for a minute, and takes a mebibyte.
    let (config, notes) = imported(&server("location / { PASS }"));
    assert!(config.contains("timeouts = { response_header = \"60s\" }"), "{config}");
    assert_eq!(notes, "");
    let (config, notes) = imported(&server(
        "client_max_body_size 5x; proxy_read_timeout never; location / { PASS add_header X $host; gzip on; gzip_types *; }",
    ));
    simulation(&config);
    assert_eq!(notes.matches("left out: expected a ").count(), 2, "{notes}");
    assert!(notes.contains("X $host: LEFT OUT"), "{notes}");
}
