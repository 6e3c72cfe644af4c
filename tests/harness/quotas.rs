//! A stream of Envoy's quota service: what Envoy sends, and all that it reads of what it is told.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use prost::Message;

use super::TIMEOUT;
use super::rls::{Seconds, framed};

const PATH: &str = "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";

#[derive(Clone, PartialEq, Message)]
struct Reports {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    usages: Vec<Usage>,
}

#[derive(Clone, PartialEq, Message)]
struct Usage {
    #[prost(message, optional, tag = "1")]
    bucket: Option<Bucket>,
    #[prost(message, optional, tag = "2")]
    elapsed: Option<Seconds>,
    #[prost(uint64, tag = "3")]
    allowed: u64,
    #[prost(uint64, tag = "4")]
    denied: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Bucket {
    #[prost(btree_map = "string, string", tag = "1")]
    entries: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
struct Assignments {
    #[prost(message, repeated, tag = "1")]
    actions: Vec<Action>,
}

#[derive(Clone, PartialEq, Message)]
struct Action {
    #[prost(message, optional, tag = "1")]
    bucket: Option<Bucket>,
    #[prost(message, optional, tag = "2")]
    assign: Option<Assign>,
    #[prost(message, optional, tag = "3")]
    abandon: Option<Abandon>,
}

#[derive(Clone, PartialEq, Message)]
struct Abandon {}

#[derive(Clone, PartialEq, Message)]
struct Assign {
    #[prost(message, optional, tag = "2")]
    time_to_live: Option<Seconds>,
    #[prost(message, optional, tag = "3")]
    strategy: Option<Strategy>,
}

#[derive(Clone, PartialEq, Message)]
struct Strategy {
    /// 0 allows all, 1 denies all.
    #[prost(int32, optional, tag = "1")]
    blanket: Option<i32>,
    #[prost(message, optional, tag = "3")]
    bucket: Option<TokenBucket>,
}

#[derive(Clone, PartialEq, Message)]
struct TokenBucket {
    #[prost(uint32, tag = "1")]
    max_tokens: u32,
    #[prost(message, optional, tag = "2")]
    tokens_per_fill: Option<Tokens>,
    #[prost(message, optional, tag = "3")]
    fill_interval: Option<Seconds>,
}

#[derive(Clone, PartialEq, Message)]
struct Tokens {
    #[prost(uint32, tag = "1")]
    value: u32,
}

/// A bucket, and how many of its requests were let through and turned away.
pub type Reported<'a> = (&'a [(&'a str, &'a str)], u64, u64);

/// What a bucket is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// At most so many requests in so many seconds.
    Units {
        units: u32,
        seconds: i64,
    },
    AllowAll,
    DenyAll,
    Abandon,
}

impl Told {
    pub fn units(&self) -> u32 {
        match self {
            Self::Units { units, .. } => *units,
            other => panic!("{other:?}"),
        }
    }
}

/// What comes on a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Told(Vec<(Vec<(String, String)>, Told)>),
    /// It ends, with this status and message.
    End(String, String),
}

/// A stream, on a connection of its own.
pub struct Stream {
    domain: String,
    send: SendStream<Bytes>,
    receive: RecvStream,
    read: BytesMut,
    _connection: SendRequest<Bytes>,
}

impl Stream {
    /// Opens one for reports about this domain.
    pub async fn open(address: SocketAddr, domain: &str) -> Self {
        Self::open_with(address, domain, None).await.expect("a stream")
    }

    /// The same with a token. A stream that is refused at once has a status.
    pub async fn open_with(
        address: SocketAddr,
        domain: &str,
        token: Option<&str>,
    ) -> Result<Self, String> {
        let socket = tokio::net::TcpStream::connect(address).await.expect("a connection");
        let (mut connection, driver) = h2::client::handshake(socket).await.expect("HTTP/2");
        tokio::spawn(driver);
        let mut request = http::Request::post(format!("http://weir{PATH}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(()).expect("a request");
        let (reply, send) = connection.send_request(request, false).expect("a call");
        let reply = tokio::time::timeout(TIMEOUT, reply).await.expect("in time").expect("a reply");
        let (head, receive) = reply.into_parts();
        assert_eq!(head.status, 200);
        if let Some(status) = head.headers.get("grpc-status") {
            return Err(status.to_str().expect("text").to_owned());
        }
        let (domain, read) = (domain.to_owned(), BytesMut::new());
        Ok(Self { domain, send, receive, read, _connection: connection })
    }

    /// Reports what was let through and turned away in buckets.
    pub fn report(&mut self, usages: &[Reported<'_>]) {
        let usage = |(entries, allowed, denied): &Reported<'_>| {
            let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
            let entries = entries.iter().map(pair).collect();
            // Envoy's own: whole seconds.
            let elapsed = Some(Seconds { seconds: 0, nanos: 0 });
            let bucket = Some(Bucket { entries });
            Usage { bucket, elapsed, allowed: *allowed, denied: *denied }
        };
        let usages = usages.iter().map(usage).collect();
        let reports = Reports { domain: self.domain.clone(), usages };
        self.send_bytes(framed(&reports.encode_to_vec()));
    }

    /// Sends something else.
    pub fn send_bytes(&mut self, bytes: Bytes) {
        self.send.send_data(bytes, false).expect("an open stream");
    }

    /// Has nothing more to say.
    pub fn finish(&mut self) {
        self.send.send_data(Bytes::new(), true).expect("an open stream");
    }

    /// What comes next.
    pub async fn next(&mut self) -> Event {
        tokio::time::timeout(TIMEOUT, self.read_next()).await.expect("something in time")
    }

    /// What comes next, if it comes within this time.
    pub async fn next_within(&mut self, time: Duration) -> Option<Event> {
        tokio::time::timeout(time, self.read_next()).await.ok()
    }

    async fn read_next(&mut self) -> Event {
        loop {
            if let Some(event) = self.take() {
                return event;
            }
            match self.receive.data().await {
                Some(data) => {
                    let data = data.expect("data");
                    let _ = self.receive.flow_control().release_capacity(data.len());
                    self.read.extend_from_slice(&data);
                }
                None => {
                    let trailers = self.receive.trailers().await.expect("an end");
                    let trailers = trailers.unwrap_or_default();
                    let field = |name: &str| {
                        let value = trailers.get(name).and_then(|value| value.to_str().ok());
                        value.unwrap_or_default().to_owned()
                    };
                    return Event::End(field("grpc-status"), field("grpc-message"));
                }
            }
        }
    }

    fn take(&mut self) -> Option<Event> {
        let head = self.read.get(..5)?;
        let length = u32::from_be_bytes(head[1..].try_into().expect("four bytes")) as usize;
        assert_eq!(head[0], 0);
        if self.read.len() < 5 + length {
            return None;
        }
        let message = self.read.split_to(5 + length).split_off(5);
        let assignments = Assignments::decode(message).expect("a RateLimitQuotaResponse");
        let mut all: Vec<(Vec<(String, String)>, Told)> = Vec::new();
        for action in assignments.actions {
            let entries: Vec<_> = action.bucket.expect("a bucket").entries.into_iter().collect();
            let told = told(action.assign, action.abandon);
            if matches!(told, Told::Units { .. }) {
                // Envoy's bucket is full only if something else came before it.
                assert_eq!(all.pop(), Some((entries.clone(), Told::DenyAll)));
            }
            all.push((entries, told));
        }
        Some(Event::Told(all))
    }

    /// How it ends, whatever is told before.
    pub async fn end(&mut self) -> (String, String) {
        loop {
            if let Event::End(status, message) = self.next().await {
                return (status, message);
            }
        }
    }

    /// What the one bucket is told that has something to be told next.
    pub async fn one(&mut self) -> Told {
        match self.next().await {
            Event::Told(told) if told.len() == 1 => told[0].1.clone(),
            other => panic!("{other:?}"),
        }
    }
}

fn told(assign: Option<Assign>, abandon: Option<Abandon>) -> Told {
    let Some(assign) = assign else {
        assert_eq!(abandon, Some(Abandon {}));
        return Told::Abandon;
    };
    let seconds = assign.time_to_live.expect("an end").seconds;
    let strategy = assign.strategy.expect("a strategy");
    match (strategy.blanket, strategy.bucket) {
        (Some(0), None) => Told::AllowAll,
        (Some(1), None) => Told::DenyAll,
        (None, Some(bucket)) => {
            let interval = bucket.fill_interval.expect("an interval");
            // Envoy divides by whole seconds, and compares the rest of them.
            assert!(interval.seconds > 0 && interval.nanos == 0, "{interval:?}");
            let fill = bucket.tokens_per_fill.expect("tokens").value;
            // Full at first, and what comes back until its end.
            let more = i64::from(fill) * seconds / interval.seconds;
            let units = bucket.max_tokens + u32::try_from(more).expect("a few");
            Told::Units { units, seconds }
        }
        other => panic!("{other:?}"),
    }
}
