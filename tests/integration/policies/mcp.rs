//! `mcp` with the examples of its README and of docs/built-in-policies.md: exact counts by tool,
//! session and batch, and what a refused client is told.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::harness::client::{Client, Reply};
use crate::harness::eventually_async;
use crate::harness::redis::Redis;
use crate::harness::toml::Toml;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;
use crate::policies::examples::{example, whole};

/// The README's example with quotas of a day, which do not fill up while a test runs.
fn config(url: &str, changes: &[(&str, &str)]) -> Toml {
    let written = [
        (
            "\"token_bucket\", quota = 600, period = \"1m\"",
            "\"fixed_window\", quota = 60, period = \"1d\"",
        ),
        (
            "\"token_bucket\", quota = 300, period = \"1m\"",
            "\"fixed_window\", quota = 30, period = \"1d\"",
        ),
        ("\"gcra\", quota = 10, period = \"1m\"", "\"fixed_window\", quota = 2, period = \"1d\""),
        ("quota = 30, period = \"1h\"", "quota = 3, period = \"1d\""),
        ("\"concurrency\", quota = 10", "\"concurrency\", quota = 2"),
    ];
    let block = written.iter().chain(changes).fold(example("mcp", 0), |text, (from, to)| {
        assert!(text.contains(from), "{from:?} is not in {text}");
        text.replace(from, to)
    });
    whole(&block, url)
}

fn call(id: u64, tool: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": tool}})
}

fn request(id: u64, method: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method})
}

/// A POST of a client with this token and session.
async fn post(client: &mut Client, token: &str, session: &str, body: &Value) -> Reply {
    let bearer = format!("Bearer {token}");
    let fields = [
        ("content-type", "application/json"),
        ("authorization", bearer.as_str()),
        ("mcp-session-id", session),
        // Nobody believes these.
        ("mcp-method", "tools/list"),
        ("mcp-name", "free"),
    ];
    client.send("POST", "/mcp", &fields, Bytes::from(body.to_string())).await.unwrap()
}

fn left(reply: &Reply) -> (u16, i64, i64) {
    (reply.status, reply.remaining("client"), reply.remaining("session"))
}

#[tokio::test]
async fn tools_batches_and_sessions_are_counted_exactly_in_memory_and_on_redis() {
    let redis = Redis::start();
    for on_redis in [false, true] {
        let upstream = Upstream::start();
        let config = config(&upstream.url(), &[]);
        let config = if on_redis { config.redis("single", &[redis.address]) } else { config };
        let weir = Weir::start(&config.text());
        let mut client = Client::connect(weir.http).await.unwrap();
        let mut ask =
            async |session: &str, body: &Value| post(&mut client, "ann", session, body).await;
        assert_eq!(left(&ask("s1", &call(1, "search")).await), (200, 55, 25));
        assert_eq!(left(&ask("s1", &request(2, "prompts/get")).await), (200, 54, 24));
        let listed = ask("s1", &request(3, "tools/list")).await;
        assert_eq!((listed.status, listed.header("ratelimit").as_str()), (200, ""));
        // A call of 20, two of 5 and a notification: more than the session has left.
        let notification = json!({"jsonrpc": "2.0", "method": "notifications/progress"});
        let batch = json!([call(4, "run_a"), call(5, "search"), notification, call(6, "search")]);
        let refused = ask("s1", &batch).await;
        assert_eq!(left(&refused), (429, 54, 24), "nothing of it is charged");
        assert_eq!(refused.remaining("runs"), 2);
        let errors = refused.json();
        let ids: Vec<&Value> = errors.as_array().unwrap().iter().map(|one| &one["id"]).collect();
        assert_eq!(ids, [&json!(4), &json!(5), &json!(6)]);
        assert_eq!(errors[0]["error"]["data"]["limit"], "session");
        // The same in an invented session takes from the client all the same.
        let passed = ask("s2", &batch).await;
        assert_eq!((left(&passed), passed.remaining("runs")), ((200, 24, 0), 1));
        assert_eq!(upstream.last().body, batch.to_string());
        assert_eq!(left(&ask("s3", &call(7, "run_b")).await), (200, 4, 10));
        let refused = ask("s4", &call(8, "search")).await;
        assert_eq!(left(&refused), (429, 4, 30));
        let limited = &refused.json()["error"]["data"]["limit"];
        assert_eq!(limited, "client", "however many sessions it invents");
        assert_eq!(upstream.count(), 5);
        // Another client has an allowance of its own.
        let other = post(&mut client, "bob", "s1", &call(1, "search")).await;
        assert_eq!((other.status, other.remaining("client")), (200, 55));
    }
}

#[tokio::test]
async fn a_refusal_is_an_error_of_json_rpc_with_its_request_id_and_the_status_that_is_configured() {
    let upstream = Upstream::start();
    for (line, status) in [("", 429), ("refusal_status = 200\n", 200)] {
        let more = [("streams = [", format!("{line}streams = ["))];
        let changes: Vec<(&str, &str)> =
            more.iter().map(|(from, to)| (*from, to.as_str())).collect();
        let weir = Weir::start(&config(&upstream.url(), &changes).text());
        let mut client = Client::connect(weir.http).await.unwrap();
        for _ in 0..3 {
            assert_eq!(post(&mut client, "ann", "s", &request(1, "initialize")).await.status, 200);
        }
        let mut strange = request(0, "initialize");
        strange["id"] = json!("a{when}\"é");
        let refused = post(&mut client, "ann", "s", &strange).await;
        assert_eq!(refused.status, status);
        assert_eq!(refused.header("content-type"), "application/json");
        assert_eq!(refused.header("cache-control"), "no-store");
        let wait: u64 = refused.header("retry-after").parse().unwrap();
        let error = refused.json();
        assert_eq!((&error["jsonrpc"], &error["id"]), (&json!("2.0"), &strange["id"]));
        assert_eq!(error["error"]["code"], -32029);
        let message = error["error"]["message"].as_str().unwrap();
        assert!(
            message.starts_with(
                "Rate limit: \"initialize\" was not done. The allowance is used up for now. Try again in "
            ) && message.ends_with('.'),
            "{message}"
        );
        let data =
            json!({"retry_after_seconds": wait, "limit": "sessions", "method": "initialize"});
        assert_eq!(error["error"]["data"], data);
        assert_eq!(weir.metric("weir_decisions_total{policy=\"tools\",decision=\"refused\"}"), 1);
    }
}

#[tokio::test]
async fn an_operators_own_body_goes_before_the_policys_and_has_its_status() {
    let upstream = Upstream::start();
    let changes = [("streams = [", "refusal_status = 200\nstreams = [")];
    let own = "[[refusals]]\nstatus = 429\nbody = \"{limit}: {when}\"\n";
    let weir = Weir::start(&config(&upstream.url(), &changes).more(own).text());
    let mut client = Client::connect(weir.http).await.unwrap();
    let mut last = None;
    for _ in 0..4 {
        last = Some(post(&mut client, "ann", "s", &request(1, "initialize")).await);
    }
    let last = last.unwrap();
    assert_eq!(
        (last.status, last.header("content-type").as_str()),
        (429, "text/plain; charset=utf-8")
    );
    assert!(last.text().starts_with("sessions: in "), "{last:?}");
}

#[tokio::test]
async fn what_cannot_be_counted_is_not_forwarded() {
    let upstream = Upstream::start();
    let weir = Weir::start(&config(&upstream.url(), &[]).text());
    let mut client = Client::connect(weir.http).await.unwrap();
    let fields = [("content-type", "application/json"), ("authorization", "Bearer ann")];
    for (body, code) in [
        (r#"{"id":1,"method":"tools/call","params":{"name":"a","name":"run_a"}}"#, -32600),
        (r#"{"id":1,"method":"ping","Method":"tools/call","params":{"name":"run_a"}}"#, -32600),
        (r#"{"id":1,"method":"tools/call"}"#, -32602),
        ("[]", -32600),
        ("{\"id\":1,", -32700),
        ("", -32700),
    ] {
        let reply = client.send("POST", "/mcp", &fields, Bytes::from(body)).await.unwrap();
        assert_eq!((reply.status, &reply.json()["error"]["code"]), (400, &json!(code)), "{body}");
    }
    let deep =
        format!(r#"{{"id":1,"method":"ping","params":{}{}}}"#, "[".repeat(500), "]".repeat(500));
    assert_eq!(client.send("POST", "/mcp", &fields, Bytes::from(deep)).await.unwrap().status, 400);
    let form = [("content-type", "application/x-www-form-urlencoded")];
    let call = call(1, "search").to_string();
    let reply = client.send("POST", "/mcp", &form, Bytes::from(call.clone())).await.unwrap();
    assert_eq!(reply.status, 400);
    let get = client.send("GET", "/mcp", &fields, Bytes::from(call)).await.unwrap();
    assert_eq!(get.status, 400);
    let large = call_of(2 << 20);
    let reply = client.send("POST", "/mcp", &fields, Bytes::from(large)).await.unwrap();
    assert_eq!(reply.status, 413);
    assert_eq!(upstream.count(), 0);
}

/// A call with an argument of so many bytes.
fn call_of(bytes: usize) -> String {
    let mut call = call(1, "search");
    call["params"]["arguments"] = json!({"q": "x".repeat(bytes)});
    call.to_string()
}

#[tokio::test]
async fn open_streams_are_limited_and_end_with_their_connection() {
    let upstream = Upstream::start();
    upstream.hold();
    let weir = Weir::start(&config(&upstream.url(), &[]).text());
    let address = weir.http;
    let open = || {
        tokio::spawn(async move {
            let mut client = Client::connect(address).await.unwrap();
            client.get("/mcp", &[("authorization", "Bearer ann")]).await.unwrap().status
        })
    };
    let streams = [open(), open()];
    eventually_async("both are open", async || match upstream.count() {
        2 => Ok(()),
        count => Err(count.to_string()),
    })
    .await;
    let mut client = Client::connect(weir.http).await.unwrap();
    let fields = [("authorization", "Bearer ann")];
    let third = client.get("/mcp", &fields).await.unwrap();
    assert_eq!(
        (third.status, third.header("content-type").as_str()),
        (429, "application/problem+json")
    );
    upstream.release();
    for stream in streams {
        assert_eq!(stream.await.unwrap(), 200);
    }
    eventually_async("there is room again", async || {
        match client.get("/mcp", &fields).await.unwrap().status {
            200 => Ok(()),
            status => Err(status.to_string()),
        }
    })
    .await;
}

#[tokio::test]
async fn the_page_of_built_in_policies_is_what_happens() {
    let upstream = Upstream::start();
    let page = include_str!("../../../docs/built-in-policies.md");
    let block = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    // Slower, so that nothing is given back while the test runs.
    let (written, slow) = ("quota = 10, period = \"1m\" }] }", "quota = 10, period = \"1h\" }] }");
    assert!(block.contains(written), "{block}");
    let block = block.replace("http://127.0.0.1:8000", &upstream.url()).replace(written, slow);
    let weir = Weir::start(&Toml::new().more(&block).text());
    let mut client = Client::connect(weir.http).await.unwrap();
    for _ in 0..10 {
        assert_eq!(post(&mut client, "ann", "s", &call(1, "run_report")).await.status, 200);
    }
    let refused = post(&mut client, "ann", "s", &call(2, "run_report")).await;
    assert_eq!(refused.status, 429);
    let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    let said = "Rate limit: the tool \"run_report\" was not called. \
        The allowance is used up for now. Try again in 6 minutes.";
    assert_eq!(message, said);
    let shown = said.replace("minutes", "seconds");
    assert!(page.replace('\n', " ").contains(&shown), "the page says otherwise");
}
