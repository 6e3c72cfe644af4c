//! A client of Weir's HTTP API for decisions.

use std::net::SocketAddr;

use serde_json::Value;

use super::client::{Client, Reply};

/// Where the API is. Each call has a connection of its own.
pub struct Api {
    pub address: SocketAddr,
}

/// An answer whose body is JSON.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub body: Value,
    reply: Reply,
}

impl Api {
    pub fn new(address: SocketAddr) -> Self {
        Self { address }
    }

    /// A call of an operation, such as `decide`.
    pub async fn call(&self, operation: &str, call: &Value) -> Answer {
        self.send_json(&format!("/v1/{operation}"), &[], call).await
    }

    pub async fn send_json(&self, path: &str, headers: &[(&str, &str)], call: &Value) -> Answer {
        self.send("POST", path, headers, call.to_string().into_bytes()).await
    }

    pub async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Answer {
        let mut client = Client::connect(self.address).await.expect("a connection");
        let reply = client.send(method, path, headers, body.into()).await;
        let reply = reply.unwrap_or_else(|error| panic!("{method} {path}: {error}"));
        let body = serde_json::from_slice(&reply.body)
            .unwrap_or_else(|error| panic!("{error}: {}", reply.text()));
        Answer { status: reply.status, body, reply }
    }
}

impl Answer {
    #[track_caller]
    pub fn is(&self, status: u16) {
        assert_eq!(self.status, status, "{self:?}");
    }

    /// A field of the answer itself; empty if there is none.
    pub fn header(&self, name: &str) -> String {
        self.reply.header(name)
    }

    /// A field that a client is to get; empty if there is none.
    pub fn field(&self, name: &str) -> String {
        let fields = self.body["fields"].as_array().expect("a decision");
        let value =
            fields.iter().find(|field| field[0] == name).and_then(|field| field[1].as_str());
        value.unwrap_or_default().to_owned()
    }
}
