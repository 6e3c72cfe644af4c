//! curl, in all the versions of HTTP that it speaks, through Weir to nginx and to hypercorn.

use super::{MANY, open_house};
use crate::harness::nginx::Nginx;
use crate::harness::python::PythonServer;
use crate::harness::toml::simple;
use crate::harness::transfer::{Way, curl, try_curl};
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;

/// What nginx serves in these tests.
const PAGES: &str = "location = /told { return 200 \"$request_method $server_protocol $http_host $http_x_ask\"; }\n\
    location = /trailers { add_trailer X-Checked \"$request_method checked\"; try_files /page.txt =404; }\n\
    location /zipped/ { gzip on; gzip_types text/plain; gzip_min_length 100; alias www/; }\n\
    location = /gone { return 410; }";

fn pages(listen: &str) -> (Nginx, Vec<u8>) {
    let nginx = Nginx::with(listen, PAGES);
    let page: Vec<u8> = (0..300_000_u32).map(|index| b"abcdefghij\n"[index as usize % 11]).collect();
    nginx.file("page.txt", &page);
    (nginx, page)
}

#[test]
fn curl_fetches_from_nginx() {
    let (nginx, page) = pages("");
    let weir = Weir::start(&open_house(&nginx.url()).text());
    for way in Way::all(&weir) {
        let whole = way.curl("/page.txt", &[]);
        assert_eq!((whole.status, whole.body == page), (200, true), "{}: {:?}", way.name, whole.heads);
        let etag = whole.field("etag").expect("nginx' own field").to_owned();
        let known = way.curl("/page.txt", &["--header", &format!("If-None-Match: {etag}")]);
        assert_eq!((known.status, known.body.len()), (304, 0), "{}: {known:?}", way.name);
        let part = way.curl("/page.txt", &["--range", "11-21"]);
        assert_eq!((part.status, part.text().as_str()), (206, "abcdefghij\n"), "{}: {part:?}", way.name);
        let head = way.curl("/page.txt", &["--head"]);
        assert_eq!((head.status, head.field("content-length")), (200, Some("300000")), "{}: {head:?}", way.name);
        let zipped = way.curl("/zipped/page.txt", &["--compressed"]);
        assert_eq!((zipped.field("content-encoding"), zipped.body == page), (Some("gzip"), true), "{}: {:?}", way.name, zipped.heads);
        assert_eq!(way.curl("/gone", &[]).status, 410, "{}", way.name);
        let told = way.curl("/told", &["--request", "REPORT", "--header", "X-Ask: yes", "--header", "Host: api.example"]);
        assert_eq!(told.text(), "REPORT HTTP/1.1 api.example yes", "{}: {told:?}", way.name);
    }
}

#[test]
fn curl_speaks_http_1_0() {
    let (nginx, page) = pages("");
    let server = PythonServer::start("asgi.py", &[]);
    let weir = Weir::start(&open_house(&nginx.url()).text());
    let chunked = Weir::start(&open_house(&server.url()).text());
    let done = curl(&["--http1.0", &format!("http://{}/page.txt", weir.http)]);
    assert!(done.status == 200 && done.body == page, "{:?}", done.heads);
    // What comes in pieces and without a length ends with the connection: HTTP/1.0 has no other way to say it.
    let done = curl(&["--http1.0", &format!("http://{}/size/200000", chunked.http)]);
    assert_eq!((done.status, done.body.len()), (200, 200_000), "{:?}", done.heads);
    assert_eq!((done.version.as_str(), done.field("transfer-encoding")), ("1", None), "{:?}", done.heads);
    // Without a Host, as the oldest do.
    let done = try_curl(&["--http1.0", "--header", "Host:", &format!("http://{}/page.txt", weir.http)]);
    assert_eq!((done.exit, done.status, done.body == page), (0, 200, true), "{:?}", done.heads);
    // Two on one connection, for whoever asks to keep it.
    let url = format!("http://{}/page.txt", weir.http);
    let done = curl(&["--http1.0", "--header", "Connection: keep-alive", &url, "--next", "--http1.0", "--output", "/dev/null", &url]);
    assert_eq!(done.status, 200, "{:?}", done.heads);
}

#[test]
fn curl_uploads_with_a_length_and_in_chunks() {
    let server = PythonServer::start("asgi.py", &[]);
    let weir = Weir::start(&open_house(&server.url()).text());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("body");
    let body: Vec<u8> = (0..3_000_000_u32).map(|index| (index % 251) as u8).collect();
    std::fs::write(&path, &body).unwrap();
    let path = path.to_str().unwrap();
    for way in Way::all(&weir) {
        for chunked in [false, true] {
            let mut options = vec!["--upload-file", path];
            if chunked {
                options.extend(["--header", "Transfer-Encoding: chunked"]);
            }
            // Without asking first, and with: then nothing is sent for a minute unless the server says that it may be.
            for expect in ["Expect:", "Expect: 100-continue"] {
                options.extend(["--header", expect, "--expect100-timeout", "50"]);
                let done = way.curl("/echo", &options);
                assert!(done.status == 200 && done.body == body, "{} chunked {chunked} {expect}: {done:?}", way.name);
            }
            let told: serde_json::Value = serde_json::from_slice(&way.curl("/seen?a=b", &options).body).unwrap();
            assert_eq!((told["method"].as_str(), told["length"].as_u64()), (Some("PUT"), Some(3_000_000)), "{}: {told}", way.name);
        }
    }
}

#[test]
fn a_refused_upload_gets_its_429_and_no_100() {
    let upstream = Upstream::start();
    let one = "name = \"one\", algorithm = \"fixed_window\", quota = 1, period = \"1d\"";
    let weir = Weir::start(&simple(&upstream.url(), &[one]).server("trusted_proxies = [\"127.0.0.1\"]").text());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("body");
    std::fs::write(&path, vec![b'x'; 2_000_000]).unwrap();
    for (number, way) in Way::all(&weir).into_iter().enumerate() {
        let client = format!("X-Forwarded-For: 192.0.2.{number}");
        let options =
            ["--upload-file", path.to_str().unwrap(), "--header", "Expect: 100-continue", "--expect100-timeout", "50", "--header", &client];
        let admitted = way.curl("/", &options);
        assert_eq!((admitted.statuses(), admitted.sent), (vec![100, 200], 2_000_000), "{}: {admitted:?}", way.name);
        let before = upstream.count();
        let refused = way.curl("/", &options);
        assert_eq!((refused.statuses(), refused.sent), (vec![429], 0), "{}: {refused:?}", way.name);
        assert!(refused.field("retry-after").is_some(), "{}: {refused:?}", way.name);
        assert_eq!(upstream.count(), before, "{}", way.name);
        // Who does not ask is answered as well, whatever he has sent meanwhile.
        let refused = way.curl("/", &["--upload-file", path.to_str().unwrap(), "--header", "Expect:", "--header", &client]);
        assert_eq!(refused.statuses(), [429], "{}: {refused:?}", way.name);
        assert_eq!(upstream.count(), before, "{}", way.name);
    }
}

#[test]
fn curl_keeps_its_connection_through_refusals() {
    let upstream = Upstream::start();
    let two = "name = \"two\", algorithm = \"fixed_window\", quota = 2, period = \"1d\"";
    let weir = Weir::start(&simple(&upstream.url(), &[two, MANY.replace("day", "many").as_str()]).text());
    for way in Way::all(&weir).iter().take(1) {
        let url = format!("{}/", way.url);
        let done = way.curl("/", &[&url, "--output", "/dev/null", &url, "--output", "/dev/null", &url, "--output", "/dev/null"]);
        assert_eq!((done.statuses(), done.connects), (vec![200, 200, 429, 429], 1), "{}", done.heads);
    }
    assert_eq!(upstream.count(), 2);
}
