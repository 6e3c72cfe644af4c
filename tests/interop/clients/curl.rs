//! curl, in all the versions of HTTP that it speaks, through Weir to nginx and to hypercorn.

use super::{MANY, config};
use crate::harness::nginx::Nginx;
use crate::harness::pki::Pki;
use crate::harness::python::PythonServer;
use crate::harness::test_proxy::{IdentityFiles, TestProxy};
use crate::harness::toml::{Toml, simple};
use crate::harness::transfer::{curl, try_curl};
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;

/// What nginx serves in these tests.
const PAGES: &str = "location = /told { return 200 \"$request_method $server_protocol $http_host $http_x_ask\"; }\n\
    location = /trailers { gzip on; gzip_types text/plain; add_header Trailer X-Checked; add_trailer X-Checked \"$request_method checked\"; try_files /page.txt =404; }\n\
    location /zipped/ { gzip on; gzip_types text/plain; gzip_min_length 100; alias www/; }\n\
    location = /gone { return 410; }";

/// nginx with each of the four combinations of TLS and HTTP version for upstreams, and Weir in
/// front.
struct Pages {
    name: &'static str,
    protocol: &'static str,
    proxy: TestProxy,
    page: Vec<u8>,
    _nginx: Nginx,
    _files: IdentityFiles,
}

impl Pages {
    fn start(name: &'static str, secure: bool, h2: bool) -> Self {
        let pki = Pki::new();
        let files = IdentityFiles::of(&pki);
        let [certificate, key] = files.arguments();
        let secured = format!("ssl_certificate {certificate}; ssl_certificate_key {key};\n{PAGES}");
        let words = [if secure { "ssl" } else { "" }, if h2 { "http2" } else { "" }].join(" ");
        let nginx = Nginx::with(&words, if secure { &secured } else { PAGES });
        let page: Vec<u8> = (0..300_000_usize).map(|index| b"abcdefghij\n"[index % 11]).collect();
        nginx.file("page.txt", &page);
        let url = format!("{}://{}", if secure { "https" } else { "http" }, nginx.address);
        let more = if h2 { "protocol = \"h2\"\n" } else { "" }.to_owned()
            + if secure { "tls = { ca = \"ca.pem\" }" } else { "" };
        let proxy = TestProxy::with(&config(&url, &more), &pki);
        Self {
            name,
            protocol: if h2 { "HTTP/2.0" } else { "HTTP/1.1" },
            proxy,
            page,
            _nginx: nginx,
            _files: files,
        }
    }

    fn all() -> Vec<Self> {
        let four = [
            ("h1", false, false),
            ("h2", false, true),
            ("TLS, h1", true, false),
            ("TLS, h2", true, true),
        ];
        four.into_iter().map(|(name, secure, h2)| Self::start(name, secure, h2)).collect()
    }
}

#[test]
fn curl_fetches_from_nginx() {
    for pages in Pages::all() {
        for way in pages.proxy.ways() {
            let which = format!("{} to Weir, {} to nginx", way.name, pages.name);
            let whole = way.curl("/page.txt", &[]);
            assert_eq!(
                (whole.status, whole.body == pages.page),
                (200, true),
                "{which}: {:?}",
                whole.heads
            );
            let etag = whole.field("etag").expect("nginx's own field").to_owned();
            let known = way.curl("/page.txt", &["--header", &format!("If-None-Match: {etag}")]);
            assert_eq!((known.status, known.body.len()), (304, 0), "{which}: {known:?}");
            let part = way.curl("/page.txt", &["--range", "11-21"]);
            assert_eq!(
                (part.status, part.text().as_str()),
                (206, "abcdefghij\n"),
                "{which}: {part:?}"
            );
            let head = way.curl("/page.txt", &["--head"]);
            assert_eq!(
                (head.status, head.field("content-length")),
                (200, Some("300000")),
                "{which}: {head:?}"
            );
            let zipped = way.curl("/zipped/page.txt", &["--compressed"]);
            assert_eq!(
                (zipped.field("content-encoding"), zipped.body == pages.page),
                (Some("gzip"), true),
                "{which}: {:?}",
                zipped.heads
            );
            assert_eq!(way.curl("/gone", &[]).status, 410, "{which}");
            let told = way.curl(
                "/told",
                &["--request", "REPORT", "--header", "X-Ask: yes", "--header", "Host: api.example"],
            );
            assert_eq!(
                told.text(),
                format!("REPORT {} api.example yes", pages.protocol),
                "{which}: {told:?}"
            );
        }
    }
}

#[test]
fn curl_reads_trailers_from_nginx() {
    for pages in Pages::all() {
        for way in pages.proxy.ways() {
            let which = format!("{} to Weir, {} to nginx", way.name, pages.name);
            // Compressed on the fly, it has no length: over HTTP/1.1, trailers are possible only
            // then.
            let done = way.curl("/trailers", &["--compressed", "--header", "TE: trailers"]);
            assert!(done.status == 200 && done.body == pages.page, "{which}: {:?}", done.heads);
            assert_eq!(done.field("x-checked"), Some("GET checked"), "{which}: {}", done.heads);
            let (head, _) = done.heads.split_once("\r\n\r\n").expect("a head");
            assert!(
                !head.to_lowercase().contains("x-checked:"),
                "{which}: not a trailer but a field: {}",
                done.heads
            );
        }
    }
}

#[test]
fn curl_speaks_http_1_0() {
    let pages = Pages::start("h1", false, false);
    let server = PythonServer::start("asgi.py", &[]);
    let weir = &pages.proxy.weir;
    let chunked = Weir::start(&config(&server.url(), "").text());
    let done = curl(&["--http1.0", &format!("http://{}/page.txt", weir.http)]);
    assert!(done.status == 200 && done.body == pages.page, "{:?}", done.heads);
    // A chunked response ends with the connection here: HTTP/1.0 has no other way to delimit a body
    // without a length.
    let done = curl(&["--http1.0", &format!("http://{}/size/200000", chunked.http)]);
    assert_eq!((done.status, done.body.len()), (200, 200_000), "{:?}", done.heads);
    assert_eq!(
        (done.version.as_str(), done.field("transfer-encoding")),
        ("1", None),
        "{:?}",
        done.heads
    );
    // Without a Host field, as the oldest clients send it.
    let done =
        try_curl(&["--http1.0", "--header", "Host:", &format!("http://{}/page.txt", weir.http)]);
    assert_eq!(
        (done.exit, done.status, done.body == pages.page),
        (0, 200, true),
        "{:?}",
        done.heads
    );
    // Two requests on one connection, if the client asks to keep it.
    let url = format!("http://{}/page.txt", weir.http);
    let done = curl(&[
        "--http1.0",
        "--header",
        "Connection: keep-alive",
        &url,
        "--next",
        "--http1.0",
        "--output",
        "/dev/null",
        &url,
    ]);
    assert_eq!(done.status, 200, "{:?}", done.heads);
}

#[test]
fn curl_uploads_with_a_length_and_in_chunks() {
    let server = PythonServer::start("asgi.py", &[]);
    let proxies = [
        TestProxy::start(&config(&server.url(), "")),
        TestProxy::start(&config(&server.url(), "protocol = \"h2\"")),
    ];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("body");
    let body: Vec<u8> = (0..3_000_000_u32).map(|index| (index % 251) as u8).collect();
    std::fs::write(&path, &body).unwrap();
    let path = path.to_str().unwrap();
    for way in proxies.iter().flat_map(TestProxy::ways) {
        for chunked in [false, true] {
            let mut options = vec!["--upload-file", path];
            // HTTP/2 has no chunks: there, a body has no length if curl does not know it in
            // advance.
            if chunked {
                options.extend(["--header", "Transfer-Encoding: chunked"]);
            }
            // Without `Expect`, and with it: then curl sends nothing for a minute unless the server
            // tells it to continue.
            for expect in ["Expect:", "Expect: 100-continue"] {
                options.extend(["--header", expect, "--expect100-timeout", "50"]);
                let done = way.curl("/echo", &options);
                assert!(
                    done.status == 200 && done.body == body,
                    "{} chunked {chunked} {expect}: {done:?}",
                    way.name
                );
            }
            let told: serde_json::Value =
                serde_json::from_slice(&way.curl("/seen?a=b", &options).body).unwrap();
            assert_eq!(
                (told["method"].as_str(), told["length"].as_u64()),
                (Some("PUT"), Some(3_000_000)),
                "{}: {told}",
                way.name
            );
        }
    }
}

#[test]
fn a_refused_upload_gets_its_429_and_no_100() {
    let upstream = Upstream::start();
    let one = "name = \"one\", algorithm = \"fixed_window\", quota = 1, period = \"1d\"";
    let proxy = TestProxy::start(
        &simple(&upstream.url(), &[one]).server("trusted_proxies = [\"127.0.0.1\"]"),
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("body");
    std::fs::write(&path, vec![b'x'; 2_000_000]).unwrap();
    for (number, way) in proxy.ways().into_iter().enumerate() {
        let client = format!("X-Forwarded-For: 192.0.2.{number}");
        let options = [
            "--upload-file",
            path.to_str().unwrap(),
            "--header",
            "Expect: 100-continue",
            "--expect100-timeout",
            "50",
            "--header",
            &client,
        ];
        let admitted = way.curl("/", &options);
        // Over HTTP/2 curl asks and does not wait, so there is a 100 if its body is late. It stops
        // sending when the refusal arrives.
        let waits = way.name.ends_with("h1");
        let statuses = admitted.statuses();
        assert!(
            statuses == [100, 200] || (!waits && statuses == [200]),
            "{}: {admitted:?}",
            way.name
        );
        assert_eq!(admitted.sent, 2_000_000, "{}: {admitted:?}", way.name);
        let before = upstream.count();
        let refused = way.curl("/", &options);
        assert_eq!(
            (refused.statuses(), waits && refused.sent > 0),
            (vec![429], false),
            "{}: {refused:?}",
            way.name
        );
        assert!(refused.field("retry-after").is_some(), "{}: {refused:?}", way.name);
        assert_eq!(upstream.count(), before, "{}", way.name);
        // A client that does not ask gets an answer as well, whatever it has sent meanwhile.
        let refused = way.curl(
            "/",
            &["--upload-file", path.to_str().unwrap(), "--header", "Expect:", "--header", &client],
        );
        assert_eq!(refused.statuses(), [429], "{}: {refused:?}", way.name);
        assert_eq!(upstream.count(), before, "{}", way.name);
    }
}

#[test]
fn curl_keeps_its_connection_through_refusals() {
    let upstream = Upstream::start();
    let two = "name = \"two\", algorithm = \"fixed_window\", quota = 2, period = \"1d\"";
    let config = simple(&upstream.url(), &[two, MANY.replace("day", "many").as_str()])
        .server("trusted_proxies = [\"127.0.0.1\"]");
    let proxy = TestProxy::start(&config);
    // curl 7.88 can't reuse an HTTP/2 connection that it made by prior knowledge.
    for (number, way) in proxy.ways().into_iter().filter(|way| way.name != "h2").enumerate() {
        let url = format!("{}/", way.url);
        let client = format!("X-Forwarded-For: 192.0.2.{number}");
        let done = way.curl(
            "/",
            &[
                "--header",
                &client,
                &url,
                "--output",
                "/dev/null",
                &url,
                "--output",
                "/dev/null",
                &url,
                "--output",
                "/dev/null",
            ],
        );
        assert_eq!(
            (done.statuses(), done.connects),
            (vec![200, 200, 429, 429], 1),
            "{}: {}",
            way.name,
            done.heads
        );
    }
    assert_eq!(upstream.count(), 2 * 3);
}

#[test]
fn curl_decodes_what_weir_compresses() {
    let upstream = Upstream::start();
    let page: Vec<u8> = (0..300_000_usize).map(|index| b"abcdefghij\n"[index % 11]).collect();
    upstream.answer(200, &[("content-type", "text/plain")], page.clone());
    let config = ["zstd", "br", "gzip"].iter().fold(
        Toml::new().upstream("api", &upstream.url(), ""),
        |config, coding| {
            config.route(&format!(
                "path = \"/{coding}\"\nupstream = \"api\"\ncompress = {{ encodings = [\"{coding}\"] }}"
            ))
        },
    );
    let proxy = TestProxy::start(&config);
    for way in proxy.ways() {
        for coding in ["zstd", "br", "gzip"] {
            let done = way.curl(&format!("/{coding}"), &["--compressed"]);
            let which = format!("{coding}, {}: {:?}", way.name, done.heads);
            assert_eq!(
                (done.status, done.field("content-encoding")),
                (200, Some(coding)),
                "{which}"
            );
            assert!(done.body == page && done.received < 10_000, "{which}");
            let plain = way.curl(&format!("/{coding}"), &[]);
            assert_eq!(plain.field("content-encoding"), None, "{which}");
            assert!(plain.body == page, "{which}");
        }
    }
}
