//! docs/recipes.md: Weir, started from each file in examples/recipes, answers what the page shows.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use aws_lc_rs::hmac;
use bytes::Bytes;
use serde_json::json;
use tokio::task::JoinHandle;

use crate::harness::client::{Client, Reply, get};
use crate::harness::eventually_async;
use crate::harness::redis::Redis;
use crate::harness::upstream::Upstream;
use crate::harness::weir::{Builder, Weir};
use crate::policies::jwt_claim::{Signer, secret, set};

const PAGE: &str = include_str!("../../../docs/recipes.md");
/// No limit of a recipe lets as many through.
const MOST: u32 = 1_000;
const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");
const JSON: (&str, &str) = ("content-type", "application/json");

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/recipes")
}

/// The names of all recipes.
fn names() -> BTreeSet<String> {
    let files = std::fs::read_dir(folder()).unwrap().map(|file| file.unwrap().file_name());
    files.map(|file| file.to_str().unwrap().trim_end_matches(".toml").to_owned()).collect()
}

fn text(name: &str) -> String {
    std::fs::read_to_string(folder().join(format!("{name}.toml"))).unwrap()
}

fn replaced(text: &str, from: &str, to: &str) -> String {
    assert_eq!(text.matches(from).count(), 1, "{from}: {text}");
    text.replace(from, to)
}

/// With the environment and the file that recipes name.
fn build(config: &str) -> Builder {
    Weir::build(config)
        .environment("OPENAI_AUTHORIZATION", "Bearer sk-test")
        .environment("WEIR_KEY_SECRET", "0123456789abcdef0123456789abcdef")
        .file("jwks.json", set(&[&accounts()]).as_bytes())
}

/// A recipe on free ports in front of `upstream`, with further `addresses` replaced.
fn recipe(name: &str, upstream: &Upstream, addresses: &[(&str, &str)]) -> Weir {
    let mut config = text(name);
    let endpoint = if config.contains("\"https://api.openai.com\"") {
        "\"https://api.openai.com\""
    } else {
        "\"http://127.0.0.1:3000\""
    };
    config = replaced(&config, endpoint, &format!("\"{}\"", upstream.url()));
    for (from, to) in addresses {
        config = replaced(&config, from, to);
    }
    let listener = if config.contains("[[listeners]]") {
        config = replaced(&config, "\"0.0.0.0:8080\"", "\"127.0.0.1:0\"");
        ""
    } else {
        "[[listeners]]\naddress = \"127.0.0.1:0\"\n"
    };
    build(&format!("{listener}[admin]\naddress = \"127.0.0.1:0\"\n\n{config}")).start()
}

/// A part of the page.
struct Section(&'static str);

impl Section {
    /// The one about this recipe.
    fn about(name: &str) -> Self {
        let link = format!("](../examples/recipes/{name}.toml)");
        let mut found = PAGE.split("\n## ").filter(|section| section.contains(&link));
        let section = found.next().unwrap_or_else(|| panic!("no section has {link}"));
        assert!(found.next().is_none(), "two sections have {link}");
        Self(section)
    }

    fn shows(&self, what: &str) {
        assert!(self.0.contains(what), "the page does not show {what:?}:\n{}", self.0);
    }

    /// Shows this refusal by a limit: its fields, and what its problem document says.
    fn shows_refusal(&self, reply: &Reply) {
        assert_eq!(reply.status, 429, "{reply:?}");
        self.shows("HTTP/1.1 429 Too Many Requests\n");
        self.shows(&format!("ratelimit-policy: {}\n", reply.header("ratelimit-policy")));
        assert_eq!(
            self.0.contains("\n    retry-after: "),
            !reply.header("retry-after").is_empty(),
            "{reply:?}"
        );
        let problem = reply.json();
        let kind = "https://iana.org/assignments/http-problem-types#quota-exceeded";
        assert_eq!(problem["type"], kind);
        let violated = &problem["violated-policies"];
        self.shows(&format!("\"violated-policies\":{violated}"));
        for limit in violated.as_array().unwrap() {
            let limit = limit.as_str().unwrap();
            self.shows(&format!("\"{limit}\";r={}", reply.remaining(limit)));
        }
    }

    /// Shows this denial by a policy.
    fn shows_denial(&self, reply: &Reply, status: u16) {
        assert_eq!(reply.status, status, "{reply:?}");
        self.shows(&format!("HTTP/1.1 {status} "));
        let problem = reply.json();
        assert_eq!(problem["type"], "about:blank");
        self.shows(&format!("\"detail\":{}", problem["detail"]));
    }
}

/// Sends a request again and again: how many pass, and the refusal.
async fn until_refused(mut send: impl AsyncFnMut(u32) -> Reply) -> (u32, Reply) {
    for passed in 0..MOST {
        let reply = send(passed).await;
        if reply.status == 429 {
            return (passed, reply);
        }
        assert!(reply.status < 400, "{reply:?}");
    }
    panic!("{MOST} requests pass");
}

/// Repeats `run` if an hour of UTC ended meanwhile: a calendar's hour, day or month may have ended
/// with it.
async fn within_an_hour<T>(mut run: impl AsyncFnMut() -> T) -> T {
    let hour = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() / 3_600;
    loop {
        let before = hour();
        let seen = run().await;
        if hour() == before {
            return seen;
        }
    }
}

async fn client(weir: &Weir) -> Client {
    Client::connect(weir.http).await.unwrap()
}

#[test]
fn each_recipe_has_a_section_and_a_test() {
    let tests = include_str!("recipes.rs");
    let names = names();
    assert_eq!(names.len(), 9, "as many as the page says: {names:?}");
    for name in &names {
        Section::about(name);
        assert!(tests.contains(&format!("recipe(\"{name}\", ")), "{name} has no test");
        assert!(PAGE.contains(&format!("\n| [{name}](#")), "{name} is not in the page's table");
    }
}

#[test]
fn the_recipes_have_no_errors_and_no_warnings() {
    for name in names() {
        let (code, out, err) = Weir::check(build(&text(&name)).argument("--strict"));
        assert_eq!(code, 0, "{name}\n{out}{err}");
    }
}

#[tokio::test]
async fn keys_have_the_allowance_of_their_plan_and_others_share_that_of_their_address() {
    let (page, upstream) = (Section::about("public-api"), Upstream::start());
    let weir = recipe("public-api", &upstream, &[]);
    let mut one = client(&weir).await;
    let (passed, refused) = until_refused(async |_| one.get("/", &[]).await.unwrap()).await;
    page.shows(&format!("{passed} 200\n"));
    assert_eq!(passed, 60);
    page.shows_refusal(&refused);
    page.shows(&format!("\"detail\":{}", refused.json()["detail"]));
    let invented = one.get("/", &[("x-api-key", "invented")]).await.unwrap();
    assert_eq!(invented.status, 429, "{invented:?}");
    for (key, plan, limit, left) in
        [("free-key", "free", "hour", 999), ("gold-key", "gold", "day", 999_999)]
    {
        let reply = one.get("/", &[("x-api-key", key), ("x-plan", "forged")]).await.unwrap();
        assert_eq!((reply.status, reply.remaining(limit)), (200, left), "{reply:?}");
        assert_eq!(upstream.last().header("x-plan").unwrap(), plan);
    }
    page.shows("\"hour\";r=999;");
    let mut other = Client::connect_from(2, weir.http).await.unwrap();
    assert_eq!(other.get("/", &[]).await.unwrap().remaining("hour"), 59);
}

async fn sign_in(client: &mut Client, account: &str, password: &str) -> Reply {
    let form = format!("username={account}&password={password}");
    client.send("POST", "/login", &[FORM], form.into()).await.unwrap()
}

#[tokio::test]
async fn an_address_has_five_guesses_for_an_account_and_fifty_for_all() {
    let (page, upstream) = (Section::about("sign-in"), Upstream::start());
    let weir = recipe("sign-in", &upstream, &[]);
    let mut attacker = client(&weir).await;
    let (passed, refused) =
        until_refused(async |_| sign_in(&mut attacker, "ann", "guess").await).await;
    assert_eq!(passed, 5);
    page.shows(" 5 HTTP/1.1 200 OK\n");
    page.shows_refusal(&refused);
    // Not even with the right password, and the rest of the site is open.
    assert_eq!(sign_in(&mut attacker, "ann", "right").await.status, 429);
    assert_eq!(attacker.get("/", &[]).await.unwrap().status, 200);

    let mut owner = Client::connect_from(2, weir.http).await.unwrap();
    for _ in 0..4 {
        assert_eq!(sign_in(&mut owner, "ann", "typo").await.status, 200);
    }
    upstream.answer(302, &[("location", "/")], "");
    assert_eq!(sign_in(&mut owner, "ann", "right").await.status, 302);
    upstream.answer(200, &[], "the form");
    eventually_async("her own mistakes are forgiven", async || {
        let reply =
            sign_in(&mut Client::connect_from(2, weir.http).await.unwrap(), "ann", "x").await;
        if reply.remaining("pair") == 4 { Ok(()) } else { Err(format!("{reply:?}")) }
    })
    .await;

    let (passed, refused) = until_refused(async |number| {
        sign_in(&mut attacker, &format!("user{number}"), "guess").await
    })
    .await;
    assert_eq!(passed, 45, "fifty with those for ann");
    page.shows("45 HTTP/1.1 200 OK\n");
    assert_eq!(refused.json()["violated-policies"], json!(["address"]));
    page.shows("\"violated-policies\":[\"address\"]");
    let nobody = attacker.send("POST", "/login", &[FORM], "password=x".into()).await.unwrap();
    assert_eq!(nobody.status, 400, "{nobody:?}");
}

/// The request that the page sends, which may cost 5.000073 dollars.
const QUESTION: &str =
    r#"{"model":"gpt-4o","max_tokens":500000,"messages":[{"role":"user","content":"hello"}]}"#;

async fn ask(client: &mut Client, token: &str, question: &'static str) -> Reply {
    let token = format!("Bearer {token}");
    let headers = [JSON, ("authorization", token.as_str())];
    client.send("POST", "/v1/chat/completions", &headers, question.into()).await.unwrap()
}

#[tokio::test]
async fn a_team_spends_its_month_and_the_others_keep_theirs() {
    let page = Section::about("language-models");
    page.shows(QUESTION);
    let (passed, refused, other, stranger, unpriced, seen) = within_an_hour(async || {
        let upstream = Upstream::start();
        let weir = recipe("language-models", &upstream, &[]);
        let mut one = client(&weir).await;
        let (passed, refused) =
            until_refused(async |_| ask(&mut one, "trial-token", QUESTION).await).await;
        let other = ask(&mut one, "support-token", QUESTION).await;
        let stranger = ask(&mut one, "stolen-token", QUESTION).await;
        let unpriced = ask(&mut one, "search-token", r#"{"model":"gpt-9","messages":[]}"#).await;
        (passed, refused, other, stranger, unpriced, upstream.seen())
    })
    .await;
    assert_eq!(passed, 3);
    page.shows("3 HTTP/1.1 200 OK\n");
    page.shows_refusal(&refused);
    assert_eq!(other.status, 200, "{other:?}");
    page.shows(&format!("\"support\";r={};", other.remaining("support")));
    assert_eq!((stranger.status, unpriced.status), (401, 400), "{stranger:?} {unpriced:?}");
    page.shows("HTTP/1.1 401 Unauthorized\n");
    assert_eq!(seen.len(), 4, "three of trial, one of support");
    for request in seen {
        assert_eq!(request.header("authorization").unwrap(), "Bearer sk-test");
        assert_eq!(request.header("host").unwrap(), "api.openai.com");
    }
}

#[tokio::test]
async fn a_team_pays_what_the_reply_says() {
    /// 2.5 and 1 dollars.
    const REPLY: &str = r#"{"choices":[{"message":{"content":"hello"}}],"usage":{"prompt_tokens":1000000,"completion_tokens":100000}}"#;
    let left = within_an_hour(async || {
        let upstream = Upstream::start();
        upstream.answer(200, &[("content-type", "application/json")], REPLY);
        let weir = recipe("language-models", &upstream, &[]);
        let mut one = client(&weir).await;
        let first = ask(&mut one, "search-token", QUESTION).await.remaining("search");
        // It is settled before its line is written.
        weir.output().await_events("request", 1);
        (first, ask(&mut one, "search-token", QUESTION).await.remaining("search"))
    })
    .await;
    assert_eq!(left, (494_999_927, 500_000_000 - 3_500_000 - 5_000_073));
}

async fn query(client: &mut Client, token: &str, query: &str) -> Reply {
    let (token, body) = (format!("Bearer {token}"), json!({ "query": query }).to_string());
    let headers = [JSON, ("authorization", token.as_str())];
    client.send("POST", "/graphql", &headers, body.into()).await.unwrap()
}

#[tokio::test]
async fn a_query_costs_what_it_asks_for() {
    const LARGE: &str = "{ users(first: 50) { name posts(first: 3) { title } } }";
    let (page, upstream) = (Section::about("graphql"), Upstream::start());
    let weir = recipe("graphql", &upstream, &[]);
    let mut one = client(&weir).await;
    let mut left = Vec::new();
    let (passed, refused) = until_refused(async |_| {
        let reply = query(&mut one, "ann", LARGE).await;
        left.push(reply.remaining("points"));
        reply
    })
    .await;
    assert_eq!((passed, left), (2, vec![600, 200, 200]), "the refusal took nothing");
    page.shows(LARGE);
    page.shows("\"points\";r=600;");
    page.shows_refusal(&refused);
    assert_eq!(query(&mut one, "ann", "{ me { name } }").await.remaining("points"), 198);
    assert_eq!(query(&mut one, "bob", LARGE).await.remaining("points"), 600);
    let dear = query(&mut one, "bob", "{ users(first: 500) { name } }").await;
    page.shows_denial(&dear, 400);
    let deep = (0..11).fold(String::new(), |inner, _| format!("{{ a {inner} }}"));
    let deep = query(&mut one, "bob", &deep).await;
    assert_eq!(deep.status, 400, "{deep:?}");
    assert_eq!(one.get("/graphql", &[]).await.unwrap().status, 405);
    assert_eq!(
        query(&mut one, "bob", "{ a }").await.remaining("points"),
        599,
        "a denial took nothing"
    );
}

/// A request whose `X-Forwarded-For` names this client.
async fn from(client: &mut Client, named: &str) -> Reply {
    client.get("/", &[("x-forwarded-for", named)]).await.unwrap()
}

#[tokio::test]
async fn clients_are_counted_by_the_address_that_the_balancer_names() {
    let (page, upstream) = (Section::about("behind-a-balancer"), Upstream::start());
    let trusted = [("\"10.0.0.0/16\"", "\"127.0.0.1\"")];
    let weir = recipe("behind-a-balancer", &upstream, &trusted);
    let mut balancer = client(&weir).await;
    let (passed, refused) = until_refused(async |_| from(&mut balancer, "203.0.113.7").await).await;
    assert_eq!(passed, 100);
    page.shows("100 HTTP/1.1 200 OK\n");
    page.shows_refusal(&refused);
    let forged = from(&mut balancer, "198.51.100.1, 203.0.113.7").await;
    assert_eq!(forged.status, 429, "what the client wrote is on the left: {forged:?}");
    assert_eq!(from(&mut balancer, "203.0.113.8").await.remaining("minute"), 99);

    // Past the balancer, the field says nothing.
    let mut direct = Client::connect_from(2, weir.http).await.unwrap();
    assert_eq!(from(&mut direct, "203.0.113.7").await.remaining("minute"), 99);
    assert_eq!(from(&mut direct, "203.0.113.9").await.remaining("minute"), 98);

    let before = upstream.count();
    for _ in 0..150 {
        let health = balancer.get("/healthz", &[]).await.unwrap();
        assert_eq!((health.status, health.text().as_str()), (200, "ok\n"), "{health:?}");
    }
    assert_eq!(upstream.count(), before, "Weir answers itself");
}

async fn call(client: &mut Client, caller: &str) -> Reply {
    client.get("/", &[("x-caller", caller)]).await.unwrap()
}

#[tokio::test]
async fn pods_count_together_and_each_by_itself_while_redis_is_away() {
    let (page, upstream) = (Section::about("sidecar"), Upstream::start());
    let mut redis = Redis::start();
    let node = format!("\"{}\"", redis.address);
    // A busy machine may take longer than the usual deadline, which is about time and not counts.
    let addresses = [
        ("\"127.0.0.1:6379\"", node.as_str()),
        ("engine = \"redis\"\n", "engine = \"redis\"\ndeadline = \"10s\"\n"),
    ];
    let pods = [recipe("sidecar", &upstream, &addresses), recipe("sidecar", &upstream, &addresses)];
    let mut clients = [client(&pods[0]).await, client(&pods[1]).await];
    let (passed, refused) = until_refused(async |number| {
        let reply = call(&mut clients[number as usize % 2], "orders").await;
        assert_eq!(reply.header("weir-degraded"), "", "{reply:?}");
        reply
    })
    .await;
    assert_eq!(passed, 300, "over both pods");
    page.shows_refusal(&refused);
    assert_eq!(call(&mut clients[1], "invoices").await.status, 200);

    redis.kill();
    // Each has an allowance of its own now.
    for client in &mut clients {
        let (passed, refused) = until_refused(async |_| {
            let reply = call(client, "reports").await;
            assert!(reply.status == 429 || reply.header("weir-degraded") == "local", "{reply:?}");
            reply
        })
        .await;
        assert_eq!(passed, 300);
        page.shows_refusal(&refused);
    }
    page.shows("300 weir-degraded: local\n");
    eventually_async("the pod knows", async || {
        let ready = pods[0].admin_page("/ready");
        assert_eq!(ready.status, 200, "{ready:?}");
        let text = ready.text();
        if text.starts_with("ready, but degraded: ") { Ok(()) } else { Err(text) }
    })
    .await;
    page.shows("    ready, but degraded: ");
}

/// The game's accounts service.
fn accounts() -> Signer {
    secret("HS256", hmac::HMAC_SHA256)
}

/// A player's long poll.
fn poll(weir: &Weir, player: &str, tier: &str) -> JoinHandle<Reply> {
    let claims = json!({ "iss": "accounts", "aud": "matchmaking", "sub": player, "tier": tier });
    let (address, token) = (weir.http, format!("Bearer {}", accounts().token(claims)));
    tokio::spawn(async move { get(address, "/match", &[("authorization", &token)]).await })
}

async fn until_waiting(weir: &Weir, places: u64, waiting: u64) {
    eventually_async("players wait", async || {
        let now = weir.admin_page("/status").json()["concurrency"]["matchmaker"].clone();
        let reached = now["in_flight"] == places && now["waiting"] == waiting;
        if reached { Ok(()) } else { Err(now.to_string()) }
    })
    .await;
}

async fn until_seen(upstream: &Upstream, polls: usize) {
    eventually_async("polls arrive", async || match upstream.seen().len() {
        seen if seen == polls => Ok(()),
        seen => Err(format!("{seen} of {polls}")),
    })
    .await;
}

#[tokio::test]
async fn a_player_waits_once_and_the_next_place_is_for_one_who_pays() {
    let (page, upstream) = (Section::about("matchmaking"), Upstream::start());
    let weir = recipe("matchmaking", &upstream, &[]);
    upstream.hold();
    let mut polls: Vec<_> =
        (0..100).map(|number| poll(&weir, &format!("player-{number}"), "free")).collect();
    until_waiting(&weir, 100, 0).await;
    until_seen(&upstream, 100).await;
    let again = poll(&weir, "player-7", "free").await.unwrap();
    page.shows_refusal(&again);
    let stranger = get(weir.http, "/match", &[]).await;
    page.shows_denial(&stranger, 401);
    page.shows(&format!("www-authenticate: {}\n", stranger.header("www-authenticate")));

    let free = poll(&weir, "bob", "free");
    until_waiting(&weir, 100, 1).await;
    let paying = poll(&weir, "eve", "paying");
    until_waiting(&weir, 100, 2).await;
    // A player who leaves makes room for one.
    polls.pop().unwrap().abort();
    until_waiting(&weir, 100, 1).await;
    until_seen(&upstream, 101).await;
    let next = upstream.last();
    assert_eq!(next.header("x-player").unwrap(), "eve", "{next:?}");
    assert_eq!(next.header("x-tier").unwrap(), "paying", "{next:?}");
    assert!(!free.is_finished(), "bob has his turn after her");
    upstream.release();
    for reply in polls.into_iter().chain([free, paying]) {
        assert_eq!(reply.await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn deliveries_wait_for_their_turn_and_those_that_come_too_early_are_refused() {
    let (page, upstream) = (Section::about("webhooks-out"), Upstream::start());
    let weir = recipe("webhooks-out", &upstream, &[]);
    let address = weir.http;
    let deliver = |to: &'static str| {
        tokio::spawn(async move {
            let mut worker = Client::connect(address).await.unwrap();
            worker.send("POST", to, &[], Bytes::new()).await.unwrap()
        })
    };
    let began = Instant::now();
    let deliveries: Vec<_> = (0..8).map(|_| deliver("/deliver/acme")).collect();
    assert_eq!(deliver("/deliver/globex").await.unwrap().status, 200);
    assert!(deliveries.iter().any(|reply| !reply.is_finished()), "others still wait");
    let (mut passed, mut refused) = (0_usize, Vec::new());
    for reply in deliveries {
        let reply = reply.await.unwrap();
        match reply.status {
            200 => passed += 1,
            _ => refused.push(reply),
        }
    }
    // One at once, and five that wait. If sending took seconds, more turns have come.
    let took = began.elapsed();
    assert!(passed >= 6 && refused.len() + passed == 8, "{passed} in {took:?}");
    assert!(took.as_secs() >= 5, "a turn each second: {took:?}");
    assert!(passed == 6 || took.as_secs() >= passed as u64 - 1, "{passed} in {took:?}");
    if passed == 6 {
        page.shows_refusal(&refused[0]);
    }
    assert_eq!(page.0.matches("    200 after ").count(), 6);
    assert_eq!(page.0.matches("    429 after ").count(), 2);
}

async fn send_mail(client: &mut Client, key: &str, recipients: usize) -> Reply {
    let body = json!({ "to": vec!["a@example.org"; recipients] }).to_string();
    client.send("POST", "/send", &[JSON, ("x-api-key", key)], body.into()).await.unwrap()
}

#[tokio::test]
async fn a_request_is_charged_for_all_of_its_recipients_or_refused() {
    let page = Section::about("mail-by-the-hour");
    let (left, refused, rest, other, large, stranger, back) = within_an_hour(async || {
        let upstream = Upstream::start();
        let weir = recipe("mail-by-the-hour", &upstream, &[]);
        let mut one = client(&weir).await;
        let mut left = Vec::new();
        for _ in 0..2 {
            let reply = send_mail(&mut one, "acme", 40).await;
            left.push((reply.status, reply.remaining("hour"), reply.remaining("day")));
        }
        let refused = send_mail(&mut one, "acme", 40).await;
        let rest = send_mail(&mut one, "acme", 20).await;
        let other = send_mail(&mut one, "globex", 40).await;
        let large = send_mail(&mut one, "globex", 101).await;
        let stranger = one.send("POST", "/send", &[JSON], "{\"to\":[]}".into()).await.unwrap();
        let mut back = Vec::new();
        for status in [422, 500, 200] {
            upstream.answer(status, &[], "");
            back.push(send_mail(&mut one, "initech", 30).await.remaining("hour"));
            // What is given back is there before the line is written. The stranger has a line, too.
            weir.output().await_events("request", 7 + back.len());
        }
        (left, refused, rest, other, large, stranger, back)
    })
    .await;
    assert_eq!(left, [(200, 60, 960), (200, 20, 920)]);
    page.shows("\"hour\";r=60;");
    page.shows_refusal(&refused);
    assert_eq!((rest.status, rest.remaining("hour")), (200, 0), "{rest:?}");
    assert_eq!((other.status, other.remaining("hour")), (200, 60), "{other:?}");
    page.shows_denial(&large, 400);
    assert_eq!(stranger.status, 401, "{stranger:?}");
    assert_eq!(back, [70, 70, 70], "what was not sent is given back");
}
