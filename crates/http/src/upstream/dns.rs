//! Names that are asked of DNS servers directly: services (RFC 2782), and how long answers hold.
//! Knows no host and no connection.
//!
//! The system's resolver is asked otherwise (`hosts`). It knows more sources of names, and neither
//! tells how long an answer holds nor finds services.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures_util::future::join_all;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig,
};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::{RData, Record};

use super::host::Share;
use super::hosts::{Answer, Found, Question, Resolver, Resolving};
use super::settings::Dns;

/// Servers of one service that are asked for, at most.
const TARGETS_MAX: usize = 64;

/// Asks these servers.
#[derive(Debug)]
pub(super) struct DnsResolver {
    settings: Dns,
}

impl DnsResolver {
    pub(super) fn new(settings: Dns) -> Self {
        Self { settings }
    }

    /// Made for each question: its sockets belong to the runtime that asks.
    fn resolver(&self) -> io::Result<TokioResolver> {
        let provider = TokioRuntimeProvider::default();
        let mut builder = if self.settings.servers.is_empty() {
            TokioResolver::builder(provider).map_err(io::Error::other)?
        } else {
            let server = |address: &SocketAddr| {
                let with_port = |mut connection: ConnectionConfig| {
                    connection.port = address.port();
                    connection
                };
                let mut server = NameServerConfig::udp_and_tcp(address.ip());
                server.connections = server.connections.into_iter().map(with_port).collect();
                server
            };
            let mut config = ResolverConfig::default();
            config.name_servers = self.settings.servers.iter().map(server).collect();
            TokioResolver::builder_with_config(config, provider)
        };
        let options = builder.options_mut();
        // Answers are kept by whoever asks, for as long as they hold.
        options.cache_size = 0;
        options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        options.use_hosts_file = ResolveHosts::Never;
        builder.build().map_err(io::Error::other)
    }
}

impl Resolver for DnsResolver {
    fn resolve(&self, question: Question) -> Resolving {
        let resolver = self.resolver();
        Box::pin(async move {
            let resolver = resolver?;
            match question {
                Question::Name { host, port } => {
                    let (addresses, ttl) =
                        addresses(&resolver, &host).await.map_err(io::Error::other)?;
                    let found = |ip| Found::at(SocketAddr::new(ip, port));
                    Ok(Answer { found: addresses.into_iter().map(found).collect(), ttl })
                }
                Question::Service(name) => service(&resolver, &name).await,
            }
        })
    }
}

/// All addresses of a name, of both families, and how long they hold.
async fn addresses(
    resolver: &TokioResolver,
    host: &str,
) -> Result<(Vec<IpAddr>, Option<Duration>), NetError> {
    let lookup = resolver.lookup_ip(host).await?;
    let records = lookup.as_lookup().answers();
    Ok((lookup.iter().collect(), ttl(records)))
}

/// The servers of a service, each with all of its addresses. One whose name has none is left out.
async fn service(resolver: &TokioResolver, name: &str) -> io::Result<Answer> {
    let lookup = resolver.srv_lookup(name).await.map_err(io::Error::other)?;
    let records = lookup.answers();
    let servers = records.iter().filter_map(|record| match &record.data {
        // "." says that there is no such service.
        RData::SRV(server) if !server.target.is_root() => Some(server),
        _ => None,
    });
    let asked = servers
        .take(TARGETS_MAX)
        .map(|server| async move { (server, addresses(resolver, &server.target.to_utf8()).await) });
    let mut answer = Answer { found: Vec::new(), ttl: ttl(records) };
    let mut failed = None;
    for (server, addresses) in join_all(asked).await {
        match addresses {
            Ok((addresses, ttl)) => {
                answer.ttl = answer.ttl.into_iter().chain(ttl).min();
                answer.found.extend(addresses.into_iter().map(|ip| Found {
                    address: SocketAddr::new(ip, server.port),
                    share: Share {
                        weight: u32::from(server.weight),
                        rank: u32::from(server.priority),
                    },
                }));
            }
            // What was known of it goes on serving, as after any other failure.
            Err(error) if !error.is_no_records_found() => return Err(io::Error::other(error)),
            Err(error) => failed = Some(io::Error::other(error)),
        }
    }
    match failed.filter(|_| answer.found.is_empty()) {
        Some(error) => Err(error),
        None => Ok(answer),
    }
}

/// The shortest time that one of these records holds.
fn ttl(records: &[Record]) -> Option<Duration> {
    records.iter().map(|record| Duration::from_secs(u64::from(record.ttl))).min()
}
