//! Opens connections: to a cluster, to a single server, and plain ones to a given node. Every wait
//! is bounded. Must not know what is sent on them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::cluster::{ClusterClient, ClusterClientBuilder};
use ::redis::cluster_async::ClusterConnection;
use ::redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
use ::redis::io::tcp::TcpSettings;
use ::redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind,
    IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo, RedisError, Value, cmd,
};

use super::topology::Topology;
use crate::engine::{RedisMode, RedisSettings};
use crate::telemetry::Mistake;

/// Time limit for one node's TCP connection and handshake.
const CONNECT_WAIT: Duration = Duration::from_millis(250);
/// Time limit for a whole new connection, to every node of a cluster.
const OPEN_WAIT: Duration = Duration::from_secs(2);
/// Pauses between redis-rs' own retries. It makes none for commands here, only for its internal
/// work.
const RETRY_WAIT_MS: (u64, u64) = (5, 40);
/// Unacknowledged data for this long closes the connection. Otherwise a cut cable would not be
/// noticed.
#[cfg(target_os = "linux")]
const USER_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection that all calls of one worker share.
#[derive(Clone)]
pub(super) enum Conn {
    Cluster(ClusterConnection),
    Single(MultiplexedConnection),
}

impl Conn {
    /// Sends a command to the master of `slot`, and turns an error reply into an error.
    pub(super) async fn send(&mut self, command: Cmd, slot: u16) -> Result<Value, RedisError> {
        let value = match self {
            Self::Cluster(conn) => {
                let route = SingleNodeRoutingInfo::SpecificNode(Route::new(slot, SlotAddr::Master));
                conn.route_command(command, RoutingInfo::SingleNode(route)).await?
            }
            Self::Single(conn) => conn.send_packed_command(&command).await?,
        };
        value.extract_error()
    }

    /// Sends a command to any node.
    async fn send_anywhere(&mut self, command: Cmd) -> Result<Value, RedisError> {
        let value = match self {
            Self::Cluster(conn) => {
                conn.route_command(command, RoutingInfo::SingleNode(SingleNodeRoutingInfo::Random))
                    .await?
            }
            Self::Single(conn) => conn.send_packed_command(&command).await?,
        };
        value.extract_error()
    }

    /// Whether the store serves: a cluster must report `cluster_state:ok`, a single server must
    /// answer.
    pub(super) async fn is_healthy(&mut self) -> Result<bool, RedisError> {
        if let Self::Single(_) = self {
            return self.send_anywhere(cmd("PING")).await.map(|_| true);
        }
        let mut command = cmd("CLUSTER");
        command.arg("INFO");
        Ok(text(&self.send_anywhere(command).await?).contains("cluster_state:ok"))
    }

    async fn topology(&mut self) -> Result<Topology, RedisError> {
        match self {
            Self::Cluster(_) => read_topology(&self.send_anywhere(slots()).await?),
            Self::Single(_) => Ok(Topology::default()),
        }
    }
}

/// All text in a reply, whatever its type.
fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => text.clone(),
        Value::Array(items) => items.iter().map(text).collect::<Vec<_>>().join(" "),
        Value::Map(pairs) => {
            pairs.iter().map(|(_, value)| text(value)).collect::<Vec<_>>().join(" ")
        }
        _ => String::new(),
    }
}

fn slots() -> Cmd {
    let mut command = cmd("CLUSTER");
    command.arg("SLOTS");
    command
}

fn read_topology(answer: &Value) -> Result<Topology, RedisError> {
    Topology::parse(answer).ok_or_else(|| {
        RedisError::from((ErrorKind::UnexpectedReturnType, "CLUSTER SLOTS can't be parsed"))
    })
}

/// The checked connection settings.
pub(super) struct Connector {
    cluster: Option<ClusterClient>,
    nodes: Vec<(String, u16)>,
    username: Option<String>,
    password: Option<String>,
    deadline: Duration,
    settings_checked: AtomicBool,
}

impl Connector {
    pub(super) fn new(settings: &RedisSettings) -> Result<Self, Mistake> {
        let mut nodes = Vec::with_capacity(settings.nodes.len());
        for (index, node) in settings.nodes.iter().enumerate() {
            let found = || {
                Mistake::new(
                    format!("redis.nodes[{index}]"),
                    format!("{node:?}"),
                    "host:port, as in \"10.0.0.1:6379\"",
                )
            };
            nodes.push(parse_node(node).ok_or_else(found)?);
        }
        if nodes.is_empty() {
            return Err(Mistake::new("redis.nodes", "[]", "at least one host:port"));
        }
        let mut connector = Self {
            cluster: None,
            nodes,
            username: settings.username.clone(),
            password: settings.password.as_ref().map(|secret| secret.0.clone()),
            deadline: settings.deadline,
            settings_checked: AtomicBool::new(false),
        };
        if settings.mode == RedisMode::Cluster {
            connector.cluster = Some(connector.cluster_client().map_err(|error| {
                // redis-rs' message says what it rejects, and contains no secret.
                Mistake::new("redis", error.to_string(), "settings that redis-rs accepts")
            })?);
        }
        Ok(connector)
    }

    fn cluster_client(&self) -> Result<ClusterClient, RedisError> {
        let infos = self.nodes.iter().map(|node| self.info(node)).collect::<Result<Vec<_>, _>>()?;
        let mut builder = ClusterClientBuilder::new(infos)
            .retries(0)
            .min_retry_wait(RETRY_WAIT_MS.0)
            .max_retry_wait(RETRY_WAIT_MS.1)
            .connection_timeout(CONNECT_WAIT)
            .response_timeout(self.deadline)
            // The engine applies its own deadline around everything.
            .overall_response_timeout(None)
            .use_protocol(ProtocolVersion::RESP3)
            .tcp_settings(tcp());
        if let Some(username) = &self.username {
            builder = builder.username(username);
        }
        if let Some(password) = &self.password {
            builder = builder.password(password);
        }
        builder.build()
    }

    fn info(&self, (host, port): &(String, u16)) -> Result<ConnectionInfo, RedisError> {
        let mut redis = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3);
        if let Some(username) = &self.username {
            redis = redis.set_username(username);
        }
        if let Some(password) = &self.password {
            redis = redis.set_password(password);
        }
        let info = ConnectionAddr::Tcp(host.clone(), *port).into_connection_info()?;
        Ok(info.set_redis_settings(redis).set_tcp_settings(tcp()))
    }

    /// Opens a worker's connection and reads the current topology.
    pub(super) async fn open(&self) -> Result<(Conn, Topology), RedisError> {
        let opening = async {
            let mut conn = match &self.cluster {
                Some(client) => Conn::Cluster(client.get_async_connection().await?),
                None => Conn::Single(self.open_first().await?),
            };
            let topology = conn.topology().await?;
            Ok((conn, topology))
        };
        // `get_async_connection` can hang (redis-rs#1953).
        tokio::time::timeout(OPEN_WAIT, opening).await.unwrap_or_else(|_| Err(timed_out()))
    }

    /// A single server may have several addresses; uses the first that answers.
    async fn open_first(&self) -> Result<MultiplexedConnection, RedisError> {
        let mut last = timed_out();
        for node in &self.nodes {
            match self.open_info(self.info(node)?).await {
                Ok(conn) => return Ok(conn),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Opens a plain connection to `host:port`.
    pub(super) async fn open_node(&self, node: &str) -> Result<MultiplexedConnection, RedisError> {
        let node = parse_node(node)
            .ok_or_else(|| RedisError::from((ErrorKind::Parse, "invalid address")))?;
        self.open_info(self.info(&node)?).await
    }

    async fn open_info(&self, info: ConnectionInfo) -> Result<MultiplexedConnection, RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_WAIT))
            .set_response_timeout(Some(self.deadline));
        let client = Client::open(info)?;
        let opening = client.get_multiplexed_async_connection_with_config(&config);
        tokio::time::timeout(CONNECT_WAIT, opening).await.unwrap_or_else(|_| Err(timed_out()))
    }

    /// Reads the topology on a plain connection. A single server is only pinged, and has an empty
    /// one.
    pub(super) async fn topology_of(
        &self,
        conn: &mut MultiplexedConnection,
    ) -> Result<Topology, RedisError> {
        if self.cluster.is_none() {
            conn.send_packed_command(&cmd("PING")).await?.extract_error()?;
            return Ok(Topology::default());
        }
        read_topology(&conn.send_packed_command(&slots()).await?.extract_error()?)
    }

    /// Sends a command, given as words, and returns all text of the reply; `None` if the node
    /// refuses.
    pub(super) async fn query(
        &self,
        conn: &mut MultiplexedConnection,
        words: &[&str],
    ) -> Option<String> {
        let mut command = Cmd::new();
        words.iter().for_each(|word| _ = command.arg(word));
        let answer = conn.send_packed_command(&command).await.ok()?.extract_error().ok()?;
        Some(text(&answer))
    }

    /// The addresses in the settings.
    pub(super) fn nodes(&self) -> impl Iterator<Item = String> {
        self.nodes.iter().map(|(host, port)| {
            if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
        })
    }

    /// Returns true once: one worker checks Redis' settings.
    pub(super) fn claim_settings_check(&self) -> bool {
        !self.settings_checked.swap(true, Ordering::Relaxed)
    }

    pub(super) fn is_cluster(&self) -> bool {
        self.cluster.is_some()
    }
}

fn tcp() -> TcpSettings {
    let settings = TcpSettings::default().set_nodelay(true);
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(USER_TIMEOUT);
    settings
}

fn timed_out() -> RedisError {
    RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut))
}

/// Parses `host:port` and `[v6]:port`, and also `v6:port`, which CLUSTER SLOTS writes.
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
