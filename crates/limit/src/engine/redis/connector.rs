//! Opens connections to nodes, with their handshake. Every wait is bounded. Must not know what is
//! sent on them.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::redis::{RedisError, Value};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::outage::Outages;
use super::resp::{self, ReplyScan};
use super::{CHECK, failure};
use crate::engine::{Cause, RedisMode, RedisSettings, Secret};
use crate::telemetry::SettingError;
use weir_tls::{ClientTls, ClientTlsError};

/// Time limit for a connection and its handshake, unless a call may take longer: a store that is so
/// far away has to be reached first.
const CONNECT_WAIT: Duration = Duration::from_millis(250);
/// Unacknowledged data for this long closes the connection. Otherwise a cut cable would not be
/// noticed.
const USER_TIMEOUT: Duration = Duration::from_secs(2);
/// An idle connection is probed after this long, and then this often.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(5));
/// Maximum size of the replies to a handshake, in bytes.
const HANDSHAKE_BYTES_MAX: usize = 16 << 10;

/// A connection's bytes.
pub(super) type Stream = Pin<Box<dyn Duplex>>;

pub(super) trait Duplex: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> Duplex for T {}

/// Why a node could not be connected to.
#[derive(Debug)]
pub(super) struct OpenError {
    pub(super) cause: Cause,
    /// The reason for the log; contains no secret.
    pub(super) why: String,
    /// The node said nothing that is Redis' protocol.
    is_cut: bool,
}

impl OpenError {
    fn io(error: &std::io::Error) -> Self {
        let cause = match error.kind() {
            std::io::ErrorKind::TimedOut => Cause::Timeout,
            _ => Cause::Connection,
        };
        Self { cause, why: error.to_string(), is_cut: cause == Cause::Connection }
    }

    fn timed_out(what: &str, limit: Duration) -> Self {
        let why = format!("no {what} within {limit:?}");
        Self { cause: Cause::Timeout, why, is_cut: false }
    }
}

impl OpenError {
    /// The error of the first command on a connection.
    fn of_greeting(self, is_tls: bool) -> Self {
        match self.is_cut && !is_tls {
            true => Self { why: format!("{} (does it want TLS on this port?)", self.why), ..self },
            false => self,
        }
    }
}

impl From<std::io::Error> for OpenError {
    fn from(error: std::io::Error) -> Self {
        Self::io(&error)
    }
}

/// The checked connection settings, and what is known about outages.
pub(super) struct Connector {
    mode: RedisMode,
    /// Host and port of each configured node.
    nodes: Vec<(String, u16)>,
    login: Login,
    /// The master's name, and how to log in to the sentinels.
    sentinel: Option<(String, Login)>,
    tls: Option<Tls>,
    addresses: BTreeMap<String, String>,
    pub(super) deadline: Duration,
    pub(super) outages: Outages,
    has_advisor: AtomicBool,
}

/// How this proxy identifies itself to a node.
struct Login {
    username: Option<String>,
    password: Option<String>,
}

impl Login {
    fn new(username: Option<&String>, password: Option<&Secret>) -> Self {
        Self { username: username.cloned(), password: password.map(|secret| secret.0.clone()) }
    }
}

/// How nodes are verified.
struct Tls {
    config: Arc<ClientConfig>,
    /// Instead of the node's own host.
    server_name: Option<ServerName<'static>>,
}

impl Tls {
    fn build(settings: &ClientTls) -> Result<Self, SettingError> {
        let config = settings.build().map_err(|errors| {
            let first = errors.into_iter().next();
            let of = |it: ClientTlsError| SettingError::new(it.part, it.found, it.expected);
            first.map_or_else(|| SettingError::new("", "", ""), of).under("redis.tls")
        })?;
        let server_name = settings.server_name.clone().map(|name| {
            let wrong =
                |_| SettingError::new("redis.tls.server_name", format!("{name:?}"), "a host name");
            ServerName::try_from(name.clone()).map_err(wrong)
        });
        Ok(Self { config: Arc::new(config), server_name: server_name.transpose()? })
    }

    async fn handshake(&self, host: &str, tcp: TcpStream) -> std::io::Result<Stream> {
        let name = match &self.server_name {
            Some(name) => name.clone(),
            None => ServerName::try_from(host.to_owned()).map_err(std::io::Error::other)?,
        };
        let connector = TlsConnector::from(Arc::clone(&self.config));
        Ok(Box::pin(connector.connect(name, tcp).await?))
    }
}

impl Connector {
    pub(super) fn new(settings: &RedisSettings) -> Result<Self, SettingError> {
        let mut nodes = Vec::with_capacity(settings.nodes.len());
        for (index, node) in settings.nodes.iter().enumerate() {
            let found = || {
                SettingError::new(
                    format!("redis.nodes[{index}]"),
                    format!("{node:?}"),
                    "host:port, as in \"10.0.0.1:6379\"",
                )
            };
            nodes.push(parse_node(node).ok_or_else(found)?);
        }
        if nodes.is_empty() {
            return Err(SettingError::new("redis.nodes", "[]", "at least one host:port"));
        }
        Ok(Self {
            mode: settings.mode,
            nodes,
            login: Login::new(settings.username.as_ref(), settings.password.as_ref()),
            sentinel: settings.sentinel.as_ref().map(|sentinel| {
                let login = Login::new(sentinel.username.as_ref(), sentinel.password.as_ref());
                (sentinel.master.clone(), login)
            }),
            tls: settings.tls.as_ref().map(Tls::build).transpose()?,
            addresses: settings.addresses.clone(),
            deadline: settings.deadline,
            outages: Outages::default(),
            has_advisor: AtomicBool::new(false),
        })
    }

    /// Opens a connection to the node at `address`; for a single server, to the first of its
    /// addresses at which a master answers. Names are looked up each time. A probe must also be
    /// answered within the deadline.
    pub(super) async fn open(&self, address: &str, is_probe: bool) -> Result<Stream, OpenError> {
        if self.mode == RedisMode::Single {
            let mut last = None;
            for node in &self.nodes {
                match self.open_master(node, is_probe).await {
                    Ok(stream) => return Ok(stream),
                    Err(error) => last = Some(error),
                }
            }
            return Err(last.unwrap_or_else(|| OpenError::timed_out("node", self.connect_wait())));
        }
        let address = self.addresses.get(address).map_or(address, String::as_str);
        let wrong = || {
            let why = format!("no address: {address:?}");
            OpenError { cause: Cause::Cluster, why, is_cut: false }
        };
        self.open_node(&parse_node(address).ok_or_else(wrong)?, is_probe).await
    }

    /// How long a call may take.
    pub(super) fn deadline(&self) -> Duration {
        self.deadline
    }

    fn connect_wait(&self) -> Duration {
        CONNECT_WAIT.max(self.deadline)
    }

    /// Opens a connection to a node, unless that is a replica.
    async fn open_master(&self, node: &(String, u16), is_probe: bool) -> Result<Stream, OpenError> {
        let mut stream = self.open_node(node, is_probe).await?;
        let check: [&[u8]; 3] = [b"EVAL", CHECK.as_bytes(), b"0"];
        let checked = timeout(self.connect_wait(), ask(&mut stream, &check))
            .await
            .unwrap_or_else(|_| Err(OpenError::timed_out("answer", self.connect_wait())));
        match checked {
            // A replica refuses a script that may write (READONLY). Other errors are about the
            // moment or about permissions, and a take has them, too.
            Err(error)
                if matches!(error.cause, Cause::Replica | Cause::Loading | Cause::Timeout) =>
            {
                Err(error)
            }
            _ => Ok(stream),
        }
    }

    async fn open_node(&self, node: &(String, u16), is_probe: bool) -> Result<Stream, OpenError> {
        let (host, port) = node;
        let sentinel = self.sentinel.as_ref().filter(|_| self.nodes.contains(node));
        let login = sentinel.map_or(&self.login, |(_, login)| login);
        let in_handshake = AtomicBool::new(false);
        let opening = async {
            let tcp = TcpStream::connect((host.as_str(), *port)).await?;
            tcp.set_nodelay(true)?;
            keep_alive(&tcp)?;
            let mut stream: Stream = match &self.tls {
                Some(tls) => {
                    in_handshake.store(true, Ordering::Relaxed);
                    let stream = tls.handshake(host, tcp).await?;
                    in_handshake.store(false, Ordering::Relaxed);
                    stream
                }
                None => Box::pin(tcp),
            };
            let greeted = greet(&mut stream, login).await;
            greeted.map_err(|error| error.of_greeting(self.tls.is_some()))?;
            Ok(stream)
        };
        let mut stream = timeout(self.connect_wait(), opening).await.unwrap_or_else(|_| {
            // Redis takes a handshake for the begin of a long command, and waits for the rest.
            let awaited = match in_handshake.load(Ordering::Relaxed) {
                true => "answer to a TLS handshake (does it speak TLS on this port?)",
                false => "connection",
            };
            Err(OpenError::timed_out(awaited, self.connect_wait()))
        })?;
        if is_probe {
            timeout(self.deadline, ask(&mut stream, &[b"PING"]))
                .await
                .unwrap_or_else(|_| Err(OpenError::timed_out("answer", self.deadline)))?;
        }
        Ok(stream)
    }

    /// The addresses in the settings.
    pub(super) fn nodes(&self) -> impl Iterator<Item = String> {
        self.nodes.iter().map(|(host, port)| {
            if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
        })
    }

    /// Returns true once: one worker looks at Redis' settings.
    pub(super) fn claim_advice(&self) -> bool {
        !self.has_advisor.swap(true, Ordering::Relaxed)
    }

    pub(super) fn is_cluster(&self) -> bool {
        self.mode == RedisMode::Cluster
    }

    pub(super) fn is_single(&self) -> bool {
        self.mode == RedisMode::Single
    }

    /// The name of the master, if sentinels are asked for it.
    pub(super) fn sentinels_master(&self) -> Option<&str> {
        self.sentinel.as_ref().map(|(master, _)| master.as_str())
    }
}

/// HELLO chooses RESP3 and names the user.
async fn greet(stream: &mut Stream, login: &Login) -> Result<(), OpenError> {
    let mut words: Vec<&[u8]> = vec![b"HELLO", b"3"];
    if let Some(password) = &login.password {
        let user = login.username.as_deref().unwrap_or("default");
        words.extend([b"AUTH", user.as_bytes(), password.as_bytes()]);
    }
    words.extend([b"SETNAME".as_slice(), b"weir"]);
    ask(stream, &words).await.map(|_| ())
}

/// Sends one command and waits for its reply.
async fn ask(stream: &mut Stream, words: &[&[u8]]) -> Result<Value, OpenError> {
    let mut out = Vec::new();
    resp::begin(&mut out, words.len());
    words.iter().for_each(|word| resp::word(&mut out, word));
    stream.write_all(&out).await?;
    stream.flush().await?;
    let (mut input, mut scan) = (Vec::new(), ReplyScan::default());
    loop {
        if stream.read_buf(&mut input).await? == 0 {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
        }
        if let Some(end) = scan.end(&input).map_err(std::io::Error::other)? {
            let reply = resp::parse(input.get(..end).unwrap_or_default());
            return reply.and_then(Value::extract_error).map_err(|error| refused(&error));
        }
        if input.len() > HANDSHAKE_BYTES_MAX {
            return Err(std::io::Error::other("a reply too long for a handshake").into());
        }
    }
}

/// The node refuses the handshake.
fn refused(error: &RedisError) -> OpenError {
    let (cause, why) = failure::greeting(error);
    OpenError { cause, why, is_cut: false }
}

fn keep_alive(tcp: &TcpStream) -> std::io::Result<()> {
    let socket = socket2::SockRef::from(tcp);
    let (idle, interval) = KEEPALIVE;
    let probes = socket2::TcpKeepalive::new().with_time(idle).with_interval(interval);
    socket.set_tcp_keepalive(&probes)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    Ok(())
}

/// Parses `host:port` and `[v6]:port`, and also `v6:port`, which Redis writes.
fn parse_node(node: &str) -> Option<(String, u16)> {
    let (host, port) = node.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if host.is_empty() || host.contains(['/', '@', ' ']) {
        return None;
    }
    Some((host.to_owned(), port.parse().ok().filter(|port| *port > 0)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port() {
        assert_eq!(parse_node("a.b:1"), Some(("a.b".into(), 1)));
        assert_eq!(parse_node("[::1]:6379"), Some(("::1".into(), 6379)));
        for wrong in ["", "a", "a:", ":1", "a:0", "a:65536", "redis://a:1", "u@a:1"] {
            assert_eq!(parse_node(wrong), None, "{wrong}");
        }
    }
}
