//! Envoy's external authorization over gRPC, as a client of it sees it. `interop` has Envoy itself.

use std::collections::HashMap;

use prost::Message;

use crate::harness::rls::{Client, Failed, framed};
use crate::harness::toml::Toml;
use crate::harness::weir::Weir;

const CHECK: &str = "/envoy.service.auth.v3.Authorization/Check";

#[derive(Clone, PartialEq, Message)]
struct CheckRequest {
    #[prost(message, optional, tag = "1")]
    attributes: Option<Attributes>,
}

#[derive(Clone, PartialEq, Message)]
struct Attributes {
    #[prost(message, optional, tag = "4")]
    request: Option<AttributesRequest>,
}

#[derive(Clone, PartialEq, Message)]
struct AttributesRequest {
    #[prost(message, optional, tag = "2")]
    http: Option<Http>,
}

#[derive(Clone, PartialEq, Message)]
struct Http {
    #[prost(string, tag = "2")]
    method: String,
    #[prost(map = "string, string", tag = "3")]
    headers: HashMap<String, String>,
    #[prost(string, tag = "4")]
    path: String,
    #[prost(string, tag = "5")]
    host: String,
    #[prost(string, tag = "11")]
    body: String,
}

#[derive(Clone, PartialEq, Message)]
struct CheckResponse {
    #[prost(message, optional, tag = "1")]
    status: Option<Status>,
    #[prost(message, optional, tag = "2")]
    denied: Option<Denied>,
    #[prost(message, optional, tag = "3")]
    ok: Option<Passed>,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(int32, tag = "1")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Denied {
    #[prost(message, optional, tag = "1")]
    status: Option<Status>,
    #[prost(message, repeated, tag = "2")]
    headers: Vec<Change>,
    #[prost(string, tag = "3")]
    body: String,
}

#[derive(Clone, PartialEq, Message)]
struct Passed {
    #[prost(message, repeated, tag = "2")]
    headers: Vec<Change>,
    #[prost(message, repeated, tag = "6")]
    response_headers_to_add: Vec<Change>,
}

#[derive(Clone, PartialEq, Message)]
struct Change {
    #[prost(message, optional, tag = "1")]
    header: Option<Pair>,
    #[prost(int32, tag = "3")]
    append_action: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Pair {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

fn value(all: &[Change], name: &str) -> String {
    let mut pairs = all.iter().filter_map(|change| change.header.as_ref());
    pairs.find(|pair| pair.key == name).map(|pair| pair.value.clone()).unwrap_or_default()
}

const POLICIES: &str = r#"

[policies.model]
use = "keyed"

[policies.model.config]
key = "{body:/model}"
limits = [{ name = "model", algorithm = "fixed_window", quota = 1, period = "1d" }]

[policies.address]
use = "client-ip"
config.limits = [{ name = "address", algorithm = "fixed_window", quota = 1, period = "1d" }]
"#;

async fn start(trusted: &str) -> (Weir, Client) {
    let text = Toml::new()
        .listener("serves = \"ext_authz_grpc\"")
        .server(&format!("trusted_proxies = [\"{trusted}\"]"))
        .route("path = \"/model\"\nmethods = [\"POST\"]\npolicy = \"model\"\nrespond = { status = 200 }")
        .route("path = \"/address\"\npolicy = \"address\"\nrespond = { status = 200 }")
        .route("path = \"/closed\"\nrespond = { status = 451, body = \"closed\" }")
        .more(POLICIES)
        .text();
    let weir = tokio::task::spawn_blocking(move || Weir::start(&text)).await.unwrap();
    let client = Client::connect(weir.http).await;
    (weir, client)
}

async fn check(client: &Client, http: Http) -> Result<CheckResponse, Failed> {
    let attributes = Some(Attributes { request: Some(AttributesRequest { http: Some(http) }) });
    let message = CheckRequest { attributes }.encode_to_vec();
    let answer = client.call_at(CHECK, framed(&message)).await?;
    Ok(CheckResponse::decode(&answer[..]).unwrap())
}

fn request(method: &str, path: &str, headers: &[(&str, &str)]) -> Http {
    let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    Http {
        method: method.to_owned(),
        path: path.to_owned(),
        host: "api.example".to_owned(),
        headers: headers.iter().map(pair).collect(),
        body: String::new(),
    }
}

#[tokio::test]
async fn a_check_is_decided_like_the_request_that_is_in_it() {
    let (weir, client) = start("127.0.0.1").await;
    for (address, passes) in [("192.0.2.1", true), ("192.0.2.2", true), ("192.0.2.1", false)] {
        let http = request("GET", "/address?a=b", &[("x-forwarded-for", address)]);
        let answer = check(&client, http).await.unwrap();
        assert_eq!(answer.status.clone().unwrap().code == 0, passes, "{answer:?}");
        let ratelimit = match (&answer.ok, &answer.denied) {
            (Some(ok), None) => value(&ok.response_headers_to_add, "ratelimit"),
            (None, Some(denied)) => {
                assert_eq!(denied.status.clone().unwrap().code, 429);
                assert!(!value(&denied.headers, "retry-after").is_empty(), "{answer:?}");
                assert!(denied.body.contains("violated-policies"), "{answer:?}");
                value(&denied.headers, "ratelimit")
            }
            other => panic!("{other:?}"),
        };
        assert!(ratelimit.starts_with("\"address\";r=0"), "{ratelimit}");
    }
    // What Envoy sends of a body is looked into.
    for (model, passes) in [("a", true), ("b", true), ("a", false)] {
        let json = [("content-type", "application/json"), ("content-length", "999")];
        let body = format!("{{\"model\": \"{model}\"}}");
        let http = Http { body, ..request("POST", "/model", &json) };
        let answer = check(&client, http).await.unwrap();
        assert_eq!(answer.ok.is_some(), passes, "{answer:?}");
    }
    for (http, status) in [
        (request("GET", "/closed", &[]), 403),
        (request("GET", "/nothing", &[]), 404),
        (request("GET", "/model", &[]), 405),
    ] {
        let denied = check(&client, http).await.unwrap().denied.unwrap();
        assert_eq!(denied.status.unwrap().code, status, "451 is none of Envoy's");
    }
    let counted = move || weir.metric("weir_requests_total{route=\"address\",code=\"429\"}");
    assert_eq!(tokio::task::spawn_blocking(counted).await.unwrap(), 1);
}

#[tokio::test]
async fn what_is_no_check_is_an_error_of_the_call() {
    let (_weir, client) = start("127.0.0.1").await;
    // A client may have sent such a request, and Envoy be told to let pass whose check fails.
    let denied = async |http: Http| {
        let answer = check(&client, http).await.unwrap();
        answer.denied.unwrap().status.unwrap().code
    };
    assert_eq!(denied(request("", "/address", &[])).await, 400);
    assert_eq!(denied(request("GET", "address", &[])).await, 400);
    assert_eq!(denied(request("GET", "/", &[("a", "b\r\nc: d")])).await, 400);
    let long = "x".repeat(2 << 20);
    assert_eq!(denied(request("GET", "/", &[("a", &long)])).await, 413);
    let other = async |path: &str, body: &[u8]| {
        client.call_at(path, framed(body)).await.unwrap_err().status
    };
    assert_eq!(other(CHECK, &[0xff; 3]).await, "3");
    assert_eq!(other("/envoy.service.auth.v3.Authorization/Other", &[]).await, "12");
    // Whoever is no proxy of ours may not say whom it asks about.
    let (_weir, client) = start("192.0.2.1").await;
    let answer = check(&client, request("GET", "/address", &[])).await.unwrap();
    assert_eq!(answer.denied.unwrap().status.unwrap().code, 400);
}
