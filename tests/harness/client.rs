//! HTTP clients: one that keeps its connection, a storm of them, and one that sends raw bytes that
//! no library would.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::sync::Barrier;

use super::TIMEOUT;

/// Why there was no response.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A whole response.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: http::HeaderMap,
    pub body: Bytes,
}

/// One limit in a `RateLimit` field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitStatus {
    pub remaining: i64,
    pub reset_s: Option<i64>,
}

impl Reply {
    /// A field's value, empty if there is none. Repeated fields are joined as in RFC 9110.
    pub fn header(&self, name: &str) -> String {
        let values: Vec<&str> =
            self.headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
        values.join(", ")
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("no JSON ({error}): {self:?}"))
    }

    /// The limits in `RateLimit`, by name. Fails if the field is not a Structured Field List of
    /// Strings with an `r`.
    pub fn limits(&self) -> BTreeMap<String, LimitStatus> {
        let told = |parameters: &BTreeMap<String, i64>| LimitStatus {
            remaining: parameters["r"],
            reset_s: parameters.get("t").copied(),
        };
        parse_list(&self.header("ratelimit"))
            .iter()
            .map(|(name, parameters)| (name.clone(), told(parameters)))
            .collect()
    }

    /// The limits in `RateLimit-Policy`, by name: their integer parameters.
    pub fn limit_policies(&self) -> BTreeMap<String, BTreeMap<String, i64>> {
        parse_list(&self.header("ratelimit-policy"))
    }

    /// What remains of a limit, which must be in the field.
    pub fn remaining(&self, limit: &str) -> i64 {
        self.limits()
            .get(limit)
            .unwrap_or_else(|| panic!("RateLimit tells nothing of {limit}: {self:?}"))
            .remaining
    }
}

fn parse_list(field: &str) -> BTreeMap<String, BTreeMap<String, i64>> {
    let list: sfv::List = sfv::Parser::new(field)
        .parse()
        .unwrap_or_else(|error| panic!("not a Structured Field List: {field:?}: {error}"));
    let mut all = BTreeMap::new();
    for entry in list {
        let sfv::ListEntry::Item(item) = entry else { panic!("an inner list in {field:?}") };
        let name = item
            .bare_item
            .as_string()
            .unwrap_or_else(|| panic!("a member that is no String in {field:?}"))
            .as_str()
            .to_owned();
        let integers = item.params.iter().filter_map(|(key, value)| {
            Some((key.as_str().to_owned(), i64::from(value.as_integer()?)))
        });
        all.insert(name, integers.collect());
    }
    all
}

/// A connection that is kept between requests.
pub struct Client {
    sender: SendRequest<Full<Bytes>>,
    pub address: SocketAddr,
}

impl Client {
    pub async fn connect(address: SocketAddr) -> Result<Self, Failure> {
        let stream = tokio::net::TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Self::on(stream, address).await
    }

    /// From `127.0.0.LAST`, as another client.
    pub async fn connect_from(last: u8, address: SocketAddr) -> Result<Self, Failure> {
        Self::on(connect_from(last, address).await, address).await
    }

    async fn on(stream: tokio::net::TcpStream, address: SocketAddr) -> Result<Self, Failure> {
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        // When it ends, the next request fails.
        tokio::spawn(connection);
        Ok(Self { sender, address })
    }

    pub async fn get(&mut self, target: &str, headers: &[(&str, &str)]) -> Result<Reply, Failure> {
        self.send("GET", target, headers, Bytes::new()).await
    }

    /// Sends a request and reads its whole response, within [`TIMEOUT`].
    pub async fn send(
        &mut self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Result<Reply, Failure> {
        let mut request = http::Request::builder().method(method).uri(target);
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            request = request.header("host", self.address.to_string());
        }
        for (name, value) in headers {
            // Bytes above 0x7F are allowed, and are sent as in Latin-1.
            let bytes: Vec<u8> =
                value.chars().map(|letter| u8::try_from(letter).unwrap_or(b'?')).collect();
            request = request.header(*name, http::HeaderValue::from_bytes(&bytes)?);
        }
        let request = request.body(Full::new(body))?;
        let exchange = async {
            self.sender.ready().await?;
            let (head, body) = self.sender.send_request(request).await?.into_parts();
            let body = body.collect().await?.to_bytes();
            Ok::<_, Failure>(Reply { status: head.status.as_u16(), headers: head.headers, body })
        };
        tokio::time::timeout(TIMEOUT, exchange).await?
    }
}

/// A connection from `127.0.0.LAST` to a loopback address, as from another client.
pub async fn connect_from(last: u8, address: SocketAddr) -> tokio::net::TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.bind((std::net::Ipv4Addr::new(127, 0, 0, last), 0).into()).expect("a loopback address");
    let stream = socket.connect(address).await.expect("a connection");
    stream.set_nodelay(true).expect("an option");
    stream
}

/// One request on a connection of its own.
pub async fn get(address: SocketAddr, target: &str, headers: &[(&str, &str)]) -> Reply {
    let mut client = Client::connect(address).await.expect("a connection");
    client.get(target, headers).await.unwrap_or_else(|error| panic!("GET {target}: {error}"))
}

/// The same for tests without a runtime.
pub fn get_blocking(address: SocketAddr, target: &str) -> Result<Reply, Failure> {
    get_blocking_with(address, target, &[])
}

/// The same with these header fields.
pub fn get_blocking_with(
    address: SocketAddr,
    target: &str,
    headers: &[(&str, &str)],
) -> Result<Reply, Failure> {
    let ask = async {
        let mut client = Client::connect(address).await?;
        client.get(target, headers).await
    };
    // A thread of its own, so that it works inside another runtime as well.
    let work =
        move || tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(ask);
    std::thread::scope(|scope| scope.spawn(work).join().expect("no panic"))
}

/// The responses that a storm's clients got.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub by_status: BTreeMap<u16, u64>,
    /// Requests without a response.
    pub failed: Vec<String>,
}

impl Tally {
    pub fn count(&self, status: u16) -> u64 {
        self.by_status.get(&status).copied().unwrap_or(0)
    }

    pub fn total(&self) -> u64 {
        self.by_status.values().sum()
    }

    pub fn add(&mut self, reply: &Result<Reply, Failure>) {
        match reply {
            Ok(reply) => *self.by_status.entry(reply.status).or_default() += 1,
            Err(error) => self.failed.push(error.to_string()),
        }
    }

    /// Fails unless every request was answered, with one of these statuses.
    pub fn only(&self, statuses: &[u16]) {
        assert!(
            self.failed.is_empty(),
            "{} requests without a reply, the first: {:?}",
            self.failed.len(),
            self.failed.first()
        );
        assert!(
            self.by_status.keys().all(|status| statuses.contains(status)),
            "expected only {statuses:?}: {:?}",
            self.by_status
        );
    }
}

/// `clients` clients at once, spread over `addresses`, each on its own connection, each sending
/// `each` requests. They all start once all are connected. `headers` returns a request's fields by
/// client and round.
pub async fn storm(
    addresses: &[SocketAddr],
    clients: usize,
    each: usize,
    headers: impl Fn(usize, usize) -> Vec<(&'static str, String)> + Send + Sync + 'static,
) -> Tally {
    let (barrier, headers) = (Arc::new(Barrier::new(clients)), Arc::new(headers));
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..clients {
        let (address, barrier, headers) =
            (addresses[number % addresses.len()], Arc::clone(&barrier), Arc::clone(&headers));
        tasks.spawn(async move {
            let mut client = Client::connect(address).await.expect("a connection");
            let mut tally = Tally::default();
            barrier.wait().await;
            for turn in 0..each {
                let headers = headers(number, turn);
                let headers: Vec<(&str, &str)> =
                    headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
                tally.add(&client.get("/", &headers).await);
            }
            tally
        });
    }
    let mut all = Tally::default();
    while let Some(tally) = tasks.join_next().await {
        let tally = tally.expect("no panic in a client");
        tally
            .by_status
            .iter()
            .for_each(|(status, count)| *all.by_status.entry(*status).or_default() += count);
        all.failed.extend(tally.failed);
    }
    all
}

/// Sends `bytes` as they are, and returns everything that comes back until the other side closes or
/// is silent for `silence`.
pub fn raw(address: SocketAddr, bytes: &[u8], silence: Duration) -> String {
    let mut stream = std::net::TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(silence)).expect("a timeout");
    // The other side may have answered and closed before it has read everything.
    let _ = stream.write_all(bytes);
    let (mut answer, mut piece) = (Vec::new(), [0; 16 << 10]);
    while let Ok(read @ 1..) = stream.read(&mut piece) {
        answer.extend_from_slice(&piece[..read]);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// The status of each response in what [`raw`] returned.
pub fn statuses(answer: &str) -> Vec<u16> {
    answer.split("HTTP/1.1 ").skip(1).filter_map(|rest| rest.get(..3)?.parse().ok()).collect()
}
