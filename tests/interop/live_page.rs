//! The operator's live page, in a real browser: what it shows, that it asks
//! nothing but the admin's address, and that nothing which a client wrote runs in it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::harness::browser::Browser;
use crate::harness::client::{Client, get, raw, statuses};
use crate::harness::cluster::Cluster;
use crate::harness::pki::Pki;
use crate::harness::toml::{Toml, simple};
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;
use crate::harness::{TIMEOUT, eventually, eventually_async, free_address};

const LIMIT: &str = "name = \"second\", algorithm = \"gcra\", quota = 40, period = \"1s\"";

/// A client that asks for one path after the other until it is dropped.
struct Load {
    stop: Arc<AtomicBool>,
}

impl Load {
    fn start(weir: &Weir, paths: &'static [&'static str]) -> Self {
        let (address, stop) = (weir.http, Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        // A thread of its own, since the browser is waited for on the test's.
        std::thread::spawn(move || {
            runtime().block_on(async {
                let mut client = Client::connect(address).await.unwrap();
                let mut turns = tokio::time::interval(Duration::from_millis(5));
                for path in paths.iter().cycle() {
                    // The proxy may have ended before this.
                    if stopped.load(Ordering::Relaxed) || client.get(path, &[]).await.is_err() {
                        return;
                    }
                    turns.tick().await;
                }
            });
        });
        Self { stop }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn config(upstream: &Upstream) -> Toml {
    Toml::new()
        .upstream("shop", &upstream.url(), "")
        .policy("public", &[LIMIT])
        .route("name = \"search\"\npath = \"/search/*\"\nupstream = \"shop\"\npolicy = \"public\"")
        .route("name = \"rest\"\npath = \"/*\"\nupstream = \"shop\"")
}

fn page(weir: &Weir) -> String {
    format!("http://{}/", weir.admin.expect("an admin listener"))
}

/// Whether the text of an element contains another.
fn shows(selector: &str, text: &str) -> String {
    format!("(document.querySelector({selector:?})?.innerText ?? '').includes({text:?})")
}

/// The browser asked nothing but the admin's address, and has nothing to complain about.
fn is_clean(browser: &mut Browser, weir: &Weir) {
    let (address, problems) = (page(weir), browser.problems());
    for url in browser.requests().keys() {
        assert!(url.starts_with(&address) || url == "about:blank", "{url} was asked for");
    }
    assert!(problems.is_empty(), "{problems:#?}");
}

/// Where screenshots are written, if that is wanted.
fn screenshots() -> Option<PathBuf> {
    std::env::var_os("WEIR_SCREENSHOTS").map(PathBuf::from)
}

#[test]
fn numbers_move_under_load_and_a_bad_reload_is_seen_with_its_line() {
    let Some(mut browser) = Browser::start() else { return };
    let upstream = Upstream::start();
    let text = config(&upstream).text();
    let weir = Weir::start(&text);
    browser.open(&page(&weir));
    browser.until("the page is live", &shows("#connection", "live"));
    browser.until("nothing has happened yet", &shows("#part-limits", "No limit has refused"));
    let load = Load::start(&weir, &["/search/a", "/search/b", "/other"]);
    let requests = "Number.parseFloat(document.querySelector('#part-now b').textContent)";
    browser.until("requests are counted", &format!("{requests} > 20"));
    browser.until("refusals of the limit", &shows("#part-limits", "second"));
    browser.until("refusals of the route", &shows("#part-routes tbody tr", "search"));
    browser.until(
        "the upstream's times",
        "/\\d(\u{b5}s|ms)/.test(document.querySelector('#part-upstreams').innerText)",
    );
    for chart in ["requests", "decisions"] {
        let drawn = format!(
            "document.querySelector('#part-{chart} path.series-0').getAttribute('d').length > 20"
        );
        browser.until("the chart is drawn", &drawn);
    }
    drop(load);
    browser.until("it is quiet again", &format!("{requests} < 20"));

    // A bad reload, with something in it that must not become a part of the page.
    let bad = text.replace("upstream = \"shop\"", "upstrem = \"<img src=x onerror=alert(1)>\"");
    weir.reload(&bad, "refused");
    let at = bad.lines().position(|line| line.contains("upstrem")).unwrap() + 1;
    browser.until("the error's line", &shows("#part-reloads .drawn", &format!("proxy.toml:{at}:")));
    browser.until("its text", &shows("#part-reloads .drawn", "<img src=x onerror=alert(1)>"));
    browser.until("the mark below it", "[...document.querySelectorAll('.drawn .mark')].some((mark) => mark.textContent.includes('^^^'))");
    weir.reload(&text.replace("quota = 40", "quota = 50"), "applied");
    browser.until("what the next one changed", &shows("#part-reloads .changes", "quota"));
    is_clean(&mut browser, &weir);

    // Paused, it stays as it is.
    browser.value("document.querySelector('#pause').click()");
    browser.until("it is paused", &shows("#connection", "paused"));
    let shown = "['now', 'about', 'requests'].map((part) => document.querySelector(`#part-${part}`).innerHTML).join()";
    let before = browser.value(shown);
    let _load = Load::start(&weir, &["/other"]);
    // At 200 a second: long enough for the page to be drawn three times.
    let counted = || weir.metric("weir_requests_total{route=\"rest\",code=\"200\"}");
    let reached = counted() + 800;
    eventually("more requests", || {
        let now = counted();
        if now >= reached { Ok(()) } else { Err(now.to_string()) }
    });
    assert_eq!(browser.value(shown), before);
    browser.value("document.querySelector('#pause').click()");
    browser.until("it goes on", &format!("{requests} > 20"));
    assert_ne!(browser.value(shown), before, "what was compared moves");
    is_clean(&mut browser, &weir);
}

#[test]
fn it_reads_on_a_phone_in_the_dark_and_with_a_keyboard() {
    let Some(mut browser) = Browser::start() else { return };
    let upstream = Upstream::start();
    let weir = Weir::start(&config(&upstream).text());
    let _load = Load::start(&weir, &["/search/a", "/other"]);
    browser.open(&page(&weir));
    browser.until("refusals are listed", &shows("#part-limits", "second"));
    for (width, is_phone) in [(1_280, false), (768, true), (360, true), (320, true)] {
        browser.size(width, 800, is_phone);
        let wide = "document.documentElement.scrollWidth <= document.documentElement.clientWidth";
        browser.until(&format!("no horizontal scroll at {width}"), wide);
    }
    // Labels of charts are scaled with them, and still legible.
    let label =
        "document.querySelector('#part-requests .label').getBoundingClientRect().height >= 9";
    browser.until("legible labels", label);
    let colours =
        "getComputedStyle(document.body).backgroundColor + getComputedStyle(document.body).color";
    browser.prefer("light");
    let light = browser.value(colours);
    browser.prefer("dark");
    assert_ne!(browser.value(colours), light);
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        let poor = browser.value(CONTRASTS);
        assert_eq!(poor, serde_json::json!([]), "too little contrast in {scheme}");
    }
    // The first stops of the keyboard, each visible.
    browser.size(1_280, 800, false);
    browser.value("document.activeElement.blur()");
    for stop in ["#main", "pause"] {
        browser.press("Tab");
        let now = browser
            .value("document.activeElement.getAttribute('href') ?? document.activeElement.id");
        assert_eq!(now, stop);
        let outline = browser.value("getComputedStyle(document.activeElement).outlineStyle");
        assert_eq!(outline, "solid");
    }
    // What a screen reader goes by.
    for (what, expression) in [
        (
            "landmarks",
            "['header', 'main'].every((name) => document.querySelectorAll(name).length === 1)",
        ),
        (
            "a name for each section",
            "[...document.querySelectorAll('section')].every((section) => document.getElementById(section.getAttribute('aria-labelledby'))?.textContent)",
        ),
        (
            "a caption for each table",
            "[...document.querySelectorAll('table')].every((table) => table.caption?.textContent)",
        ),
        (
            "a name for each column and row",
            "[...document.querySelectorAll('th')].every((cell) => cell.scope)",
        ),
        (
            "a name for each chart",
            "[...document.querySelectorAll('svg.picture')].every((chart) => chart.querySelector('title').textContent && chart.getAttribute('role') === 'img')",
        ),
        (
            "a label for each input",
            "[...document.querySelectorAll('input')].every((input) => input.labels.length === 1)",
        ),
        (
            "only states are announced",
            "[...document.querySelectorAll('[aria-live], [role=status], [role=alert]')].every((place) => !place.id.startsWith('part-'))",
        ),
    ] {
        assert_eq!(browser.value(expression), true, "{what}");
    }
    is_clean(&mut browser, &weir);
}

/// Text that stands out less than WCAG's 4.5 to 1 from what is behind it.
const CONTRASTS: &str = r"(() => {
  const parse = (text) => { const of = text.match(/[\d.]+/g).map(Number); return of.length < 4 ? [...of, 1] : of; };
  const light = (colour) => { const [r, g, b] = colour.map((c) => { c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = (element) => { for (let at = element; at; at = at.parentElement) { const colour = parse(getComputedStyle(at).backgroundColor); if (colour[3] > 0) return colour; } return [255, 255, 255, 1]; };
  const poor = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.textContent.trim() || !element.checkVisibility() || ['SCRIPT', 'STYLE', 'NOSCRIPT'].includes(element.tagName)) continue;
    const style = getComputedStyle(element);
    const text = light(parse(element.closest('svg') ? style.fill : style.color)), ground = light(behind(element));
    const ratio = (Math.max(text, ground) + 0.05) / (Math.min(text, ground) + 0.05);
    if (ratio < 4.5) poor.push(`${texts.currentNode.textContent.trim().slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return poor;
})()";

#[test]
fn with_a_token_the_page_asks_for_it() {
    let Some(mut browser) = Browser::start() else { return };
    let upstream = Upstream::start();
    let text = config(&upstream).text().replace("[admin]", "[admin]\ntoken_file = \"token\"");
    let weir = Weir::build(&text).file("token", b"a token of the test\n").start();
    browser.open(&page(&weir));
    browser.until("it asks for the token", "document.activeElement.id === 'token-text'");
    assert_eq!(browser.value("document.querySelector('#content').hidden"), true);
    browser.type_text("not this one");
    browser.press("Enter");
    browser.until("it refuses another", &shows("#token-problem", "not the token"));
    browser.type_text("a token of the test");
    browser.press("Enter");
    browser.until("it shows the page", &shows("#connection", "live"));
    browser.until("the routes", &shows("#part-routes", "search"));
    browser.open(&page(&weir));
    browser.until("it remembers the token", &shows("#part-routes", "search"));
    let asked = browser.requests();
    assert!(asked.keys().all(|url| !url.contains("token")), "{asked:?}");
    // Of the two tries without the token the console shows that much.
    let problems = browser.problems();
    assert!(problems.iter().all(|problem| problem.contains("401")), "{problems:#?}");
}

/// What a client wrote, and what would run if the page took it for its own.
const HOSTILE: &str = "<img src=x onerror=alert(1)>\"'><script>alert(2)</script>";

#[test]
fn a_refused_request_is_found_by_its_id_and_nothing_in_it_runs() {
    let Some(mut browser) = Browser::start() else { return };
    let upstream = Upstream::start();
    let policy = "[policies.public]\nuse = \"keyed\"\n[policies.public.config]\nlimits = [{ name = \"day\", key = \"{header.x-api-key}\", algorithm = \"fixed_window\", quota = 1, period = \"1d\" }]";
    let text = Toml::new()
        .upstream("shop", &upstream.url(), "")
        .more(policy)
        .route("name = \"search\"\npath = \"/*\"\nupstream = \"shop\"\npolicy = \"public\"")
        .text()
        .replace("[admin]", "[admin]\nshow_keys = true");
    let weir = Weir::start(&text);
    browser.open(&page(&weir));
    browser.until("the page is live", &shows("#connection", "live"));
    browser.until("it can explain", "!document.querySelector('#explain').hidden");
    let path = "/%3Cscript%3Ealert(3)%3C/script%3E";
    let ask = || {
        let fields = [("x-api-key", HOSTILE), ("user-agent", HOSTILE)];
        runtime().block_on(get(weir.http, path, &fields))
    };
    assert_eq!(ask().status, 200);
    let refused = ask();
    assert_eq!(refused.status, 429);
    let id = refused.header("x-request-id");
    browser.value("document.querySelector('#explain-id').focus()");
    browser.type_text(&id);
    browser.press("Enter");
    browser.until("the limit that refused", &shows("#explain-answer .summary", "day had 0 of 1"));
    browser.until("its key, as text", &shows("#explain-answer", HOSTILE));
    browser.until("it is among the newest", &shows("#refusals", &id[..12]));
    browser.until("its key is a top key", &shows("#top-lists", HOSTILE));
    let elements = browser.value("document.querySelectorAll('main img, main script').length");
    assert_eq!(elements, 0, "something of the client's became an element");
    browser.value("document.querySelector('#refusals button').click()");
    browser.until("the same by a click", &shows("#explain-answer .summary", "day had 0 of 1"));
    is_clean(&mut browser, &weir);
}

/// Reads what an address of the admin sends until `wanted` is in it.
async fn read_until(weir: &Weir, path: &str, wanted: &str) -> (TcpStream, String) {
    let address = weir.admin.expect("an admin listener");
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let (mut text, mut piece) = (String::new(), vec![0; 64 << 10]);
    let reading = async {
        while !text.contains(wanted) {
            let read = stream.read(&mut piece).await.unwrap();
            assert!(read > 0, "it ended without {wanted:?}: {text}");
            text.push_str(&String::from_utf8_lossy(&piece[..read]));
        }
    };
    if tokio::time::timeout(TIMEOUT, reading).await.is_err() {
        panic!("not within {TIMEOUT:?}: {wanted:?}: {text}");
    }
    (stream, text)
}

#[tokio::test]
async fn its_files_need_no_token_and_confine_what_runs_in_them() {
    let upstream = Upstream::start();
    let text = config(&upstream).text().replace("[admin]", "[admin]\ntoken_file = \"token\"");
    let weir = Weir::build(&text).file("token", b"a token of the test\n").start();
    let admin = weir.admin.unwrap();
    for (path, content_type) in [
        ("/", "text/html; charset=utf-8"),
        ("/page.css", "text/css; charset=utf-8"),
        ("/page.js", "text/javascript; charset=utf-8"),
        ("/icon.svg", "image/svg+xml"),
    ] {
        let reply = get(admin, path, &[]).await;
        assert_eq!((reply.status, reply.header("content-type").as_str()), (200, content_type));
        let policy = reply.header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        for said in ["shop", "search", "public", env!("CARGO_PKG_VERSION")] {
            assert!(!reply.text().contains(&format!("\"{said}\"")), "{path} says {said}");
        }
    }
    assert_eq!(get(admin, "/events", &[]).await.status, 401);
    // Under a name that an attacker points here, not even these are served.
    let request = format!(
        "GET / HTTP/1.1\r\nHost: evil.example:{}\r\nConnection: close\r\n\r\n",
        admin.port()
    );
    assert_eq!(statuses(&raw(admin, request.as_bytes(), TIMEOUT)), [421]);
}

#[tokio::test]
async fn those_who_watch_are_bounded_and_leave_with_the_process() {
    let upstream = Upstream::start();
    // So that files are not scarce, whatever this machine allows.
    let config = simple(&upstream.url(), &[LIMIT]).limit("connections = 100");
    let mut weir = Weir::start(&config.text());
    let mut viewers = Vec::new();
    for _ in 0..32 {
        viewers.push(read_until(&weir, "/events", "event: tick").await);
    }
    let reply = weir.admin_page("/events");
    assert_eq!(reply.status, 503, "{}", reply.text());
    assert!(reply.text().contains("32 viewers watch this page already"), "{}", reply.text());
    let (_, first) = &viewers[0];
    assert!(first.contains("content-type: text/event-stream\r\n"), "{first}");
    assert!(first.contains("event: routes\ndata: <table>"), "{first}");
    // Who leaves makes room.
    viewers.pop();
    eventually_async("another may watch", async || {
        let admin = weir.admin.unwrap();
        let request =
            format!("HEAD /events HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n");
        assert_eq!(statuses(&raw(admin, request.as_bytes(), TIMEOUT)), [405]);
        let mut stream = TcpStream::connect(admin).await.unwrap();
        let request = format!("GET /events HTTP/1.1\r\nhost: {admin}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).await.unwrap();
        let head = String::from_utf8_lossy(&head).into_owned();
        if head == "HTTP/1.1 200" { Ok(()) } else { Err(head) }
    })
    .await;
    // A shutdown ends the others in order.
    weir.signal(Signal::TERM);
    let (stream, _) = &mut viewers[0];
    let mut rest = Vec::new();
    tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut rest)).await.unwrap().unwrap();
    let rest = String::from_utf8_lossy(&rest);
    assert!(rest.ends_with("\r\n0\r\n\r\n"), "{:?}", &rest[rest.len().saturating_sub(60)..]);
    assert!(weir.exit().success());
}

#[tokio::test]
async fn a_shard_that_fails_and_a_certificate_that_expires_are_seen() {
    let (mut cluster, upstream, pki) = (Cluster::start(), Upstream::start(), Pki::new());
    let config = simple(&upstream.url(), &[LIMIT]).redis("cluster", &cluster.addresses());
    let weir = Weir::build(&config.secured(&["shop", "old"]).text())
        .identity("shop", &pki.server(&["shop.example", "*.shop.example"]))
        .identity("old", &pki.expired(&["old.example"]))
        .start();
    let first = cluster.addresses()[0];
    let state = |badge: &str| format!("{first}</th><td><span class=\"badge {badge}");
    let (_, text) = read_until(&weir, "/events", &state("good\">serves")).await;
    let expired = "old.example</th><td><span class=\"badge bad\">expired</span>";
    assert!(text.contains(expired), "{text}");
    assert!(text.contains("shop.example, *.shop.example</th>"), "{text}");
    cluster.nodes[0].kill();
    let (_, text) = read_until(&weir, "/events", &state("bad\">fails: ")).await;
    assert!(text.contains("degraded: 1 Redis shard fails"), "{text}");
}

#[tokio::test]
async fn a_host_that_is_out_is_seen_at_the_top() {
    let (upstream, nobody) = (Upstream::start(), free_address());
    let health = "health = { path = \"/\", interval = \"100ms\", fall = 1 }";
    let config = config(&upstream)
        .upstream("dead", &format!("http://{nobody}"), health)
        .route("path = \"/dead\"\nupstream = \"dead\"");
    let weir = Weir::start(&config.text());
    let (_, text) = read_until(&weir, "/events", "upstream hosts out").await;
    let badge = "serving</span> <span class=\"badge warning\">1 of 2 upstream hosts out</span>";
    assert!(text.contains(badge), "{text}");
}

#[tokio::test]
async fn scarce_files_leave_room_for_probes_beside_viewers() {
    let upstream = Upstream::start();
    let weir = Weir::build(&simple(&upstream.url(), &[LIMIT]).text()).files(128).start();
    let mut viewers = Vec::new();
    for _ in 0..4 {
        viewers.push(read_until(&weir, "/events", "event: tick").await);
    }
    assert_eq!(weir.admin_page("/events").status, 503);
    assert_eq!(weir.admin_page("/live").status, 200);
}

/// Draws the pictures of the documentation into the folder `WEIR_SCREENSHOTS`, after
/// `WEIR_SCREENSHOTS_S` seconds of traffic (600 fill the charts). Else it does nothing.
#[test]
fn screenshots_for_the_documentation() {
    let Some(folder) = screenshots() else { return };
    let mut browser = Browser::start().expect("a browser for screenshots");
    let (shown, (send, enough)) = (Scene::start(), mpsc::channel());
    std::thread::scope(|scope| {
        // It goes on while the pictures are taken.
        scope.spawn(|| runtime().block_on(shown.play(&send)));
        enough.recv().unwrap();
        take_pictures(&mut browser, &shown.weir, &folder);
    });
}

fn take_pictures(browser: &mut Browser, weir: &Weir, folder: &Path) {
    browser.open(&page(weir));
    browser.until("the page is live", &shows("#connection", "live"));
    for (name, scheme, width, height, is_phone) in [
        ("live-light", "light", 1_200, 1_040, false),
        ("live-dark", "dark", 1_200, 1_040, false),
        ("live-phone", "light", 390, 1_000, true),
    ] {
        browser.prefer(scheme);
        browser.size(width, height, is_phone);
        browser.until("it is drawn", &shows("#connection", "live"));
        // One of the three shows the end of the page.
        let end = if scheme == "dark" { "document.body.scrollHeight" } else { "0" };
        browser.value(&format!("scrollTo(0, {end})"));
        browser.screenshot(&folder.join(format!("{name}.png")));
    }
}

/// A proxy with something to see.
struct Scene {
    weir: Weir,
    upstreams: [Upstream; 2],
}

impl Scene {
    fn start() -> Self {
        let (upstreams, pki) = ([Upstream::start(), Upstream::start()], Pki::new());
        let [shop, accounts] = &upstreams;
        let text = Toml::new()
            .upstream("shop", &shop.url(), "")
            .upstream("accounts", &accounts.url(), "")
            .policy("public", &[
                "name = \"per-second\", algorithm = \"gcra\", quota = 90, period = \"1s\", burst = 30",
                "name = \"searches\", algorithm = \"token_bucket\", quota = 3000, period = \"1m\", burst = 600",
            ])
            .policy("careful", &["name = \"sign-ins\", algorithm = \"sliding_window_counter\", quota = 300, period = \"1m\""])
            .route("name = \"search\"\npath = \"/search/*\"\nupstream = \"shop\"\npolicy = \"public\"")
            .route("name = \"checkout\"\npath = \"/checkout\"\nupstream = \"shop\"\npolicy = \"public\"")
            .route("name = \"sign-in\"\npath = \"/sign-in\"\nupstream = \"accounts\"\npolicy = \"careful\"")
            .route("name = \"assets\"\npath = \"/assets/*\"\nupstream = \"shop\"")
            .more("[[listeners]]\naddress = \"127.0.0.1:0\"\ncertificates = [{ certificate = \"shop.pem\", key = \"shop.key\" }, { certificate = \"old.pem\", key = \"old.key\" }]")
            .text();
        let weir = Weir::build(&text)
            .identity("shop", &pki.server(&["shop.example", "*.shop.example"]))
            .identity("old", &pki.expired(&["old.example"]))
            .start();
        weir.reload(&text.replace("quota = 3000", "quotum = 3000"), "refused");
        weir.reload(&text.replace("quota = 90", "quota = 80"), "applied");
        Self { weir, upstreams }
    }

    /// Asks for this and that, more and less. Tells when that was for `WEIR_SCREENSHOTS_S` seconds,
    /// and goes on for a minute.
    async fn play(&self, enough: &mpsc::Sender<()>) {
        let before = std::env::var("WEIR_SCREENSHOTS_S").map_or(60, |text| text.parse().unwrap());
        let seconds = before + 60;
        let path = |path, rate, swing, period| self.ask(path, seconds, (rate, swing, period));
        tokio::join!(
            path("/search/a", 70.0, 45.0, 140.0),
            path("/search/b", 18.0, 9.0, 61.0),
            path("/checkout", 7.0, 5.0, 90.0),
            path("/sign-in", 6.0, 5.0, 200.0),
            path("/assets/a.css", 40.0, 18.0, 75.0),
            path("/nowhere", 1.0, 1.0, 30.0),
            self.slow_down(seconds),
            async {
                tokio::time::sleep(Duration::from_secs(before.into())).await;
                enough.send(()).unwrap();
            },
        );
    }

    async fn ask(&self, path: &str, seconds: u32, (rate, swing, period): (f64, f64, f64)) {
        let mut client = Client::connect(self.weir.http).await.unwrap();
        let mut turns = tokio::time::interval(Duration::from_millis(100));
        let mut owed = 0.0;
        for turn in 0..seconds * 10 {
            turns.tick().await;
            let at = f64::from(turn) / 10.0;
            owed += (rate + swing * (at / period * std::f64::consts::TAU).sin()) / 10.0;
            while owed >= 1.0 {
                client.get(path, &[]).await.unwrap();
                owed -= 1.0;
            }
        }
    }

    /// Has the upstreams answer late now and then.
    async fn slow_down(&self, seconds: u32) {
        let mut turns = tokio::time::interval(Duration::from_millis(20));
        for turn in 0..seconds * 50 {
            turns.tick().await;
            for (upstream, every) in self.upstreams.iter().zip([7, 3]) {
                if turn % every == 0 { upstream.hold() } else { upstream.release() }
            }
        }
        self.upstreams.iter().for_each(Upstream::release);
    }
}
