//! What a client is told: RateLimit fields that a parser of Structured Fields accepts, problem
//! documents, when to retry.

use crate::harness::client::{Client, get};
use crate::harness::toml::{Toml, simple};
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;

const TWO: [&str; 2] = [
    "name = \"minute\", algorithm = \"fixed_window\", quota = 3, period = \"1m\"",
    "name = \"hour\", algorithm = \"gcra\", quota = 100, period = \"1h\"",
];

#[tokio::test]
async fn an_admitted_request_is_told_what_is_left() {
    let upstream = Upstream::start();
    let weir = Weir::start(&simple(&upstream.url(), &TWO).text());
    let reply = get(weir.http, "/", &[]).await;
    assert_eq!((reply.status, reply.text().as_str()), (200, "from upstream\n"));
    let policies = reply.limit_policies();
    assert_eq!((policies["minute"]["q"], policies["minute"]["w"]), (3, 60), "{reply:?}");
    assert_eq!((policies["hour"]["q"], policies["hour"]["w"]), (100, 3600), "{reply:?}");
    let told = reply.limits();
    assert_eq!((told["minute"].remaining, told["hour"].remaining), (2, 99), "{reply:?}");
    assert!((50..=60).contains(&told["minute"].reset_s.unwrap()), "{reply:?}");
    assert!(
        (1..=36).contains(&told["hour"].reset_s.unwrap()),
        "one of a hundred an hour is back within 36 s: {reply:?}"
    );
    assert_eq!(reply.header("retry-after"), "");
    assert_ne!(reply.header("x-request-id"), "");
}

#[tokio::test]
async fn a_refused_request_is_told_why_and_when_to_come_back() {
    let upstream = Upstream::start();
    let weir = Weir::start(&simple(&upstream.url(), &TWO).text());
    let mut client = Client::connect(weir.http).await.unwrap();
    for _ in 0..3 {
        assert_eq!(client.get("/", &[]).await.unwrap().status, 200);
    }
    let reply = client.get("/", &[]).await.unwrap();
    assert_eq!(reply.status, 429);
    let wait: i64 = reply.header("retry-after").parse().expect("whole seconds");
    assert!((1..=60).contains(&wait), "{reply:?}");
    assert!(
        wait >= reply.limits()["minute"].reset_s.unwrap(),
        "earlier than the field's own t: {reply:?}"
    );
    assert_eq!(reply.remaining("minute"), 0);
    assert_eq!(reply.remaining("hour"), 97, "the limit that had room is not charged: {reply:?}");
    assert_eq!(reply.header("cache-control"), "no-store");
    assert_eq!(reply.header("content-type"), "application/problem+json");
    let problem = reply.json();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(problem["status"], 429);
    assert_eq!(problem["violated-policies"], serde_json::json!(["minute"]));
    assert!(problem["title"].is_string(), "{problem}");
    assert_eq!(upstream.count(), 3);
    assert_eq!(weir.metric("weir_limit_refusals_total{policy=\"public\",limit=\"minute\"}"), 1);
}

#[tokio::test]
async fn a_refusal_that_waiting_cannot_help_has_no_retry_after() {
    let upstream = Upstream::start();
    for never in [
        "name = \"none\", algorithm = \"fixed_window\", quota = 0, period = \"1m\"",
        "name = \"none\", algorithm = \"gcra\", quota = 0, period = \"1m\", cost = 6",
    ] {
        let weir = Weir::start(&simple(&upstream.url(), &[never]).text());
        let reply = get(weir.http, "/", &[]).await;
        assert_eq!(
            (reply.status, reply.header("retry-after").as_str()),
            (429, ""),
            "{never}: {reply:?}"
        );
    }
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn retry_after_is_the_longest_of_the_limits_that_refuse() {
    let upstream = Upstream::start();
    let limits = [
        "name = \"minute\", algorithm = \"fixed_window\", quota = 1, period = \"1m\"",
        "name = \"day\", algorithm = \"fixed_window\", quota = 1, period = \"1d\"",
    ];
    let weir = Weir::start(&simple(&upstream.url(), &limits).text());
    assert_eq!(get(weir.http, "/", &[]).await.status, 200);
    let reply = get(weir.http, "/", &[]).await;
    assert_eq!(reply.status, 429);
    let wait: i64 = reply.header("retry-after").parse().unwrap();
    assert!((86_000..=86_400).contains(&wait), "{reply:?}");
    let mut violated: Vec<String> =
        serde_json::from_value(reply.json()["violated-policies"].clone()).unwrap();
    violated.sort();
    assert_eq!(violated, ["day", "minute"]);
}

#[tokio::test]
async fn a_client_that_waits_as_told_is_admitted() {
    let upstream = Upstream::start();
    for algorithm in ["fixed_window", "gcra", "token_bucket"] {
        let weir = Weir::start(
            &simple(
                &upstream.url(),
                &[&format!(
                    "name = \"s\", algorithm = \"{algorithm}\", quota = 1, period = \"2s\""
                )],
            )
            .text(),
        );
        assert_eq!(get(weir.http, "/", &[]).await.status, 200);
        let refused = get(weir.http, "/", &[]).await;
        // On a machine that stood still for two seconds it is rightly admitted.
        if refused.status == 429 {
            let wait: u64 = refused.header("retry-after").parse().unwrap();
            assert!((1..=2).contains(&wait), "{algorithm}: {wait}");
            // Not a guess at a duration: exactly the wait that was promised to be enough.
            tokio::time::sleep(std::time::Duration::from_secs(wait)).await;
            assert_eq!(
                get(weir.http, "/", &[]).await.status,
                200,
                "{algorithm}: told {wait} s, waited {wait} s"
            );
        }
    }
}

#[tokio::test]
async fn a_shadow_limit_counts_and_refuses_nobody() {
    let upstream = Upstream::start();
    let limits = [
        "name = \"real\", algorithm = \"fixed_window\", quota = 4, period = \"1d\"",
        "name = \"trial\", algorithm = \"fixed_window\", quota = 1, period = \"1d\", shadow = true",
    ];
    let weir = Weir::start(&simple(&upstream.url(), &limits).text());
    let mut client = Client::connect(weir.http).await.unwrap();
    for turn in 0..4 {
        let reply = client.get("/", &[]).await.unwrap();
        assert_eq!(reply.status, 200);
        let told = reply.limits();
        assert_eq!((told.len(), told["real"].remaining), (1, 3 - turn), "{reply:?}");
    }
    assert_eq!(client.get("/", &[]).await.unwrap().status, 429);
    assert!(weir.metric("weir_limit_would_refuse_total{policy=\"public\",limit=\"trial\"}") >= 3);
    assert_eq!(weir.metric("weir_limit_refusals_total{policy=\"public\",limit=\"trial\"}"), 0);
}

#[tokio::test]
async fn a_cost_is_taken_whole_or_not_at_all() {
    let upstream = Upstream::start();
    let weir = Weir::start(
        &simple(
            &upstream.url(),
            &["name = \"c\", algorithm = \"gcra\", quota = 10, period = \"1d\", cost = 4"],
        )
        .text(),
    );
    let mut client = Client::connect(weir.http).await.unwrap();
    let mut told = Vec::new();
    for _ in 0..4 {
        let reply = client.get("/", &[]).await.unwrap();
        told.push((reply.status, reply.remaining("c")));
    }
    assert_eq!(told, [(200, 6), (200, 2), (429, 2), (429, 2)]);
}

#[tokio::test]
async fn a_route_says_which_fields_its_clients_are_told() {
    let upstream = Upstream::start();
    let mut config = Toml::new().upstream("api", &upstream.url(), "").policy("public", &[TWO[0]]);
    for style in ["draft", "legacy", "both", "off"] {
        config = config.route(&format!(
            "name = \"{style}\"\npath = \"/{style}\"\nupstream = \"api\"\npolicy = \"public\"\nlimit_scope = \"route\"\nratelimit_fields = \"{style}\""
        ));
    }
    let weir = Weir::start(&config.text());
    for (style, draft, legacy) in [
        ("draft", true, false),
        ("legacy", false, true),
        ("both", true, true),
        ("off", false, false),
    ] {
        let path = format!("/{style}");
        let reply = get(weir.http, &path, &[]).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        assert_eq!(!reply.header("ratelimit").is_empty(), draft, "{reply:?}");
        assert_eq!(!reply.header("ratelimit-policy").is_empty(), draft, "{reply:?}");
        assert_eq!(reply.header("x-ratelimit-remaining") == "2", legacy, "{reply:?}");
        assert_eq!(reply.header("x-ratelimit-limit") == "3", legacy, "{reply:?}");
        for _ in 0..2 {
            get(weir.http, &path, &[]).await;
        }
        let refused = get(weir.http, &path, &[]).await;
        assert_eq!(refused.status, 429);
        assert_ne!(refused.header("retry-after"), "", "Retry-After is told in every style");
    }
}

#[tokio::test]
async fn an_upstreams_own_rate_limit_fields_stay() {
    let upstream = Upstream::start();
    upstream.answer(
        200,
        &[("ratelimit", "\"theirs\";r=7"), ("ratelimit-policy", "\"theirs\";q=9;w=1")],
        "x",
    );
    let weir = Weir::start(&simple(&upstream.url(), &[TWO[0]]).text());
    let reply = get(weir.http, "/", &[]).await;
    assert_eq!((reply.remaining("theirs"), reply.remaining("minute")), (7, 2), "{reply:?}");
    assert_eq!(reply.limit_policies()["theirs"]["q"], 9);
}

#[tokio::test]
async fn bypassed_addresses_are_not_counted() {
    let upstream = Upstream::start();
    let config = simple(
        &upstream.url(),
        &["name = \"one\", algorithm = \"fixed_window\", quota = 1, period = \"1d\""],
    );
    let text = config.text().replace(
        "[policies.public.config]\n",
        "[policies.public.config]\nbypass = [\"127.0.0.0/8\"]\n",
    );
    let weir = Weir::start(&text);
    for _ in 0..5 {
        let reply = get(weir.http, "/", &[]).await;
        assert_eq!((reply.status, reply.header("ratelimit").as_str()), (200, ""), "{reply:?}");
    }
}
