//! What the built-in policies are for, with the examples from their READMEs, through the running
//! proxy: costs by path, tenants and their users, requests in flight, units that are given back.

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::harness::client::{Client, Reply, get};
use crate::harness::eventually_async;
use crate::harness::redis::Redis;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;
use crate::policies::examples::{example, whole};

/// An example with other quotas: each pair is what is written and what is tested.
fn changed(policy: &str, number: usize, changes: &[(&str, &str)]) -> String {
    changes.iter().fold(example(policy, number), |text, (from, to)| {
        assert!(text.contains(from), "{from:?} is not in {text}");
        text.replace(from, to)
    })
}

#[tokio::test]
async fn path_cost_charges_by_template_and_no_spelling_is_cheaper() {
    let upstream = Upstream::start();
    let day = "algorithm = \"fixed_window\"\nquota = 100\nperiod = \"1d\"";
    let written = "algorithm = \"token_bucket\"\nquota = 1000\nperiod = \"1m\"\nburst = 100";
    let config = whole(&changed("path-cost", 0, &[(written, day)]), &upstream.url());
    let weir = Weir::start(&config.text());
    let mut client = Client::connect(weir.http).await.unwrap();
    let key = [("x-api-key", "a")];
    for (method, target, status, remaining) in [
        ("POST", "/reports/7", 200, 75),
        ("GET", "/reports/7", 200, 70),
        ("POST", "/reports/7/pages?all", 200, 65),
        ("GET", "/", 200, 64),
        ("POST", "/REPORTS/7/", 200, 39),
        ("POST", "/reports/%37", 200, 14),
        ("POST", "/reports/7", 429, 14),
        ("GET", "/HEALTH", 200, 13),
    ] {
        let reply = client.send(method, target, &key, Bytes::new()).await.unwrap();
        assert_eq!(
            (reply.status, reply.remaining("units")),
            (status, remaining),
            "{method} {target}: {reply:?}"
        );
    }
    let free = client.get("/health", &key).await.unwrap();
    assert_eq!((free.status, free.header("ratelimit").as_str()), (200, ""));
    assert_eq!(client.get("/", &[]).await.unwrap().remaining("units"), 99, "by address");
}

#[tokio::test]
async fn a_tenant_and_its_users_are_charged_in_one_script_both_or_neither() {
    let redis = Redis::start();
    let tenant = "algorithm = \"token_bucket\"\nquota = 1000\nperiod = \"1m\"";
    let user = "algorithm = \"gcra\"\nquota = 100\nperiod = \"1m\"\nburst = 20";
    let days = |quota| format!("algorithm = \"fixed_window\"\nquota = {quota}\nperiod = \"1d\"");
    let example = changed("tenant", 0, &[(tenant, &days(5)), (user, &days(3))]);
    for on_redis in [false, true] {
        let upstream = Upstream::start();
        let config = whole(&example, &upstream.url());
        let config = if on_redis { config.redis("single", &[redis.address]) } else { config };
        let weir = Weir::start(&config.text());
        let mut client = Client::connect(weir.http).await.unwrap();
        let mut ask = async |tenant: &str, user: &str| {
            let fields = [("x-tenant", tenant), ("x-user", user)];
            let fields: Vec<_> =
                fields.into_iter().filter(|(_, value)| !value.is_empty()).collect();
            client.get("/", &fields).await.unwrap()
        };
        let shown =
            |reply: &Reply| (reply.status, reply.remaining("tenant"), reply.remaining("user"));
        assert_eq!(shown(&ask("acme", "ann").await), (200, 4, 2));
        let mut scripts = redis.connect();
        let mut calls = || scripts.attempts("evalsha") + scripts.attempts("eval");
        let before = calls();
        assert_eq!(shown(&ask("acme", "ann").await), (200, 3, 1));
        assert_eq!(shown(&ask("acme", "ann").await), (200, 2, 0));
        // The user's limit refuses, and the tenant's loses nothing.
        assert_eq!(shown(&ask("acme", "ann").await), (429, 2, 0));
        // Another tenant's user of the same name.
        assert_eq!(shown(&ask("globex", "ann").await), (200, 4, 2));
        assert_eq!(shown(&ask("acme", "bob").await), (200, 1, 2));
        assert_eq!(shown(&ask("acme", "bob").await), (200, 0, 1));
        // The tenant's limit refuses, and the user's loses nothing.
        assert_eq!(shown(&ask("acme", "bob").await), (429, 0, 1));
        if on_redis {
            assert_eq!(calls() - before, 7, "one script for each request");
        }
        assert_eq!(ask("", "ann").await.status, 401);
        let alone = ask("globex", "").await;
        assert_eq!((alone.status, alone.remaining("tenant")), (200, 3));
        assert!(!alone.limits().contains_key("user"), "{alone:?}");
        assert_eq!(ask("acme", "").await.status, 429);
        assert_eq!(upstream.count(), 7);
    }
}

/// An upstream that sends the head and the first half of a reply, and the rest when it is told to.
async fn halves(listener: TcpListener, rest: watch::Receiver<bool>) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let mut rest = rest.clone();
        tokio::spawn(async move {
            let mut head = Vec::new();
            while stream.read_buf(&mut head).await.is_ok_and(|read| read > 0) {
                if !head.ends_with(b"\r\n\r\n") {
                    continue;
                }
                head.clear();
                let start = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\na";
                if stream.write_all(start).await.is_err()
                    || rest.wait_for(|released| *released).await.is_err()
                    || stream.write_all(b"b").await.is_err()
                {
                    return;
                }
            }
        });
    }
}

/// Sends a request, and returns once the first half of its reply has come.
async fn half(weir: &Weir, key: &str) -> TcpStream {
    let mut stream = TcpStream::connect(weir.http).await.unwrap();
    let request =
        format!("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: {key}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut reply = Vec::new();
    while !reply.ends_with(b"\r\n\r\na") {
        assert!(stream.read_buf(&mut reply).await.unwrap() > 0, "{reply:?}");
    }
    assert!(reply.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&reply));
    stream
}

#[tokio::test]
async fn concurrent_holds_a_place_until_the_reply_has_ended() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (release, rest) = watch::channel(false);
    let upstream = tokio::spawn(halves(listener, rest));
    let example = changed("concurrent", 1, &[("max = 2", "max = 1"), ("total = 100", "total = 2")]);
    let weir = Weir::start(&whole(&example, &url).text());
    let ask = async |key: &str| {
        let reply = get(weir.http, "/", &[("x-api-key", key)]).await;
        let violated = reply.json()["violated-policies"].to_string();
        (reply.status, violated)
    };
    let first = half(&weir, "a").await;
    assert_eq!(ask("a").await, (429, "[\"in-flight\"]".to_owned()));
    let second = half(&weir, "b").await;
    assert_eq!(ask("c").await, (429, "[\"total\"]".to_owned()));
    assert_eq!(get(weir.http, "/", &[]).await.status, 401);
    release.send_replace(true);
    for mut stream in [first, second] {
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"b");
    }
    // All places are free again.
    for key in ["a", "b", "c"] {
        eventually_async("a free place", async || {
            match get(weir.http, "/", &[("x-api-key", key)]).await.status {
                200 => Ok(()),
                status => Err(format!("{key}: {status}")),
            }
        })
        .await;
    }
    upstream.abort();
}

#[tokio::test]
async fn send_quota_gives_back_what_was_not_sent_and_keeps_what_was() {
    let upstream = Upstream::start();
    let month = "algorithm = \"quota\"\nquota = 10_000\ncalendar = \"month\"";
    let ten = "algorithm = \"fixed_window\"\nquota = 10\nperiod = \"1d\"";
    let changes =
        [(month, ten), ("quota = 60\n", "quota = 6000\n"), ("max_cost = 500", "max_cost = 8")];
    let config = whole(&changed("send-quota", 0, &changes), &upstream.url());
    let weir = Weir::start(&config.text());
    let mut client = Client::connect(weir.http).await.unwrap();
    let mut send = async |body: &str| {
        let body = Bytes::copy_from_slice(body.as_bytes());
        let reply = client.send("POST", "/", &[("x-account", "ann")], body).await.unwrap();
        let left = reply.limits().get("month").map(|limit| limit.remaining);
        (reply.status, left)
    };
    assert_eq!(send(r#"{"to": ["a", "b"], "cc": "c"}"#).await, (200, Some(7)));
    for (status, all, left) in [(503, "a,b,c,d,e,f,g", 6), (422, "a,b,c,d,e,f", 5)] {
        upstream.answer(status, &[], "");
        let body = format!("{{\"to\": \"{all}\"}}");
        assert_eq!(send(&body).await, (status, Some(0)), "all that is left");
        upstream.answer(200, &[], "");
        // It is given back soon after the reply; until then the next one is refused.
        let found = eventually_async("the units are given back", async || {
            match send(r#"{"to": ["a"]}"#).await {
                (200, left) => Ok(left),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        assert_eq!(found, Some(left), "{status}");
    }
    // What was sent stays charged.
    assert_eq!(send(r#"{"to": "a,b,c,d,e"}"#).await, (200, Some(0)));
    assert_eq!(send(r#"{"to": "a"}"#).await, (429, Some(0)));
    // What can't be counted is not sent, nor is what would never fit.
    let sent = upstream.count();
    assert_eq!(send("to=a").await, (400, None));
    assert_eq!(send(r#"{"to": ["a"], "to": []}"#).await, (400, None));
    assert_eq!(send(r#"{"to": "1,2,3,4,5,6,7,8,9"}"#).await, (400, None));
    assert_eq!(get(weir.http, "/", &[]).await.status, 200, "a GET sends nothing");
    assert_eq!(upstream.count(), sent + 1);
}
