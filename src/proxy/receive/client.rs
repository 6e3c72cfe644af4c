//! A request's client: its address and scheme, which are taken from trusted proxies only. Knows no
//! route and no policy.
//!
//! Of the fields that name a client only `X-Forwarded-For` is trusted. Every proxy writes it.
//! Trusting a second one (`Forwarded`, `X-Real-IP`) would let a client set whichever its proxy
//! leaves alone.

use std::net::IpAddr;

use ipnet::IpNet;

use super::text::AddressText;
use crate::listen::Peer;
use crate::wire::{Fields, Known, Network};

/// The client of a request.
#[derive(Debug)]
pub(in crate::proxy) struct Client {
    /// The address that limits count by, as text.
    pub(in crate::proxy) text: AddressText,
    /// That address. `None` if it is a trusted proxy's own, which many clients share.
    address: Option<IpAddr>,
    /// The peer is a trusted proxy: its forwarding fields are kept.
    pub(in crate::proxy) trusted: bool,
    /// The client's own connection uses TLS.
    pub(in crate::proxy) https: bool,
}

impl Client {
    /// Reads the connection's peer and, if it is trusted, its forwarding fields.
    pub(in crate::proxy) fn of(fields: &Fields, peer: &Peer, trusted_proxies: &[IpNet]) -> Self {
        let address = peer.address.ip().to_canonical();
        if peer.is_unnamed || !is_trusted(address, trusted_proxies) {
            return Self::untrusted(peer);
        }
        let client = walk(address, fields, trusted_proxies);
        let text = AddressText::address(client);
        let address = Some(client).filter(|client| !is_trusted(*client, trusted_proxies));
        Self { text, address, trusted: true, https: forwarded_https(fields).unwrap_or(peer.tls) }
    }

    /// The connection's peer itself.
    pub(in crate::proxy) fn untrusted(peer: &Peer) -> Self {
        Self {
            text: AddressText::copied(&peer.ip),
            address: Some(peer.address.ip()),
            trusted: false,
            https: peer.tls,
        }
    }

    /// The network that its requests under way are counted for. `None` if the client is not known.
    pub(in crate::proxy) fn network(&self, ipv6_prefix: u8) -> Option<Network> {
        self.address.map(|address| Network::of(address, ipv6_prefix))
    }

    /// `http` or `https`.
    pub(in crate::proxy) fn scheme(&self) -> &'static str {
        if self.https { "https" } else { "http" }
    }
}

fn is_trusted(address: IpAddr, trusted_proxies: &[IpNet]) -> bool {
    trusted_proxies.iter().any(|net| net.contains(&address))
}

/// Walks from the right through the trusted proxies, since each address was written by the one
/// after it. Anything that is not an address ends the walk, and the last trusted proxy stands for
/// the client: what is further left could have been invented by anyone.
fn walk(peer: IpAddr, fields: &Fields, trusted_proxies: &[IpNet]) -> IpAddr {
    let mut client = peer;
    let values = fields.get_all(Known::ForwardedFor).rev();
    for entry in values.flat_map(|value| value.rsplit(|byte| *byte == b',')) {
        let Some(address) = entry_address(entry) else { break };
        client = address;
        if !is_trusted(address, trusted_proxies) {
            break;
        }
    }
    client
}

/// An address, perhaps with a port, which some proxies write.
pub(in crate::proxy) fn entry_address(entry: &[u8]) -> Option<IpAddr> {
    let entry = std::str::from_utf8(entry.trim_ascii()).ok()?;
    let address = match entry.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']')?;
            address.parse().ok().filter(|_| port.is_empty() || is_port(port)).map(IpAddr::V6)?
        }
        None => match entry.split_once(':') {
            Some((address, port))
                if !port.contains(':') && is_port(entry.get(address.len()..)?) =>
            {
                IpAddr::V4(address.parse().ok()?)
            }
            _ => entry.parse().ok()?,
        },
    };
    Some(address.to_canonical())
}

fn is_port(text: &str) -> bool {
    text.strip_prefix(':').is_some_and(|digits| {
        (1..=5).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// What the nearest proxy says. Anything but the two schemes is ignored.
fn forwarded_https(fields: &Fields) -> Option<bool> {
    match fields.get_all(Known::ForwardedProto).next_back()? {
        scheme if scheme.eq_ignore_ascii_case(b"https") => Some(true),
        scheme if scheme.eq_ignore_ascii_case(b"http") => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(peer: &str, forwarded: &[&str]) -> Client {
        let mut fields = Fields::new();
        for value in forwarded {
            fields.append(Known::ForwardedFor, value);
        }
        let address = peer.parse().unwrap();
        let trusted = ["10.0.0.0/8".parse().unwrap(), "2001:db8::/32".parse().unwrap()];
        Client::of(&fields, &Peer::plain(address, address), &trusted)
    }

    #[track_caller]
    fn is(peer: &str, forwarded: &[&str], expected: &str) {
        assert_eq!(client(peer, forwarded).text.as_str(), expected, "{peer} {forwarded:?}");
    }

    #[test]
    fn nobody_else_than_a_trusted_proxy_is_believed() {
        is("192.0.2.7:1", &["198.51.100.1"], "192.0.2.7");
        assert!(!client("192.0.2.7:1", &[]).trusted);
        is("[::ffff:192.0.2.7]:1", &[], "192.0.2.7");
    }

    #[test]
    fn the_walk_goes_from_the_right_through_the_trusted() {
        is("10.0.0.1:1", &["198.51.100.1"], "198.51.100.1");
        is("10.0.0.1:1", &["1.1.1.1, 198.51.100.1, 10.0.0.2"], "198.51.100.1");
        is("10.0.0.1:1", &["1.1.1.1", "198.51.100.1 ,10.0.0.2", "10.9.9.9"], "198.51.100.1");
        is("10.0.0.1:1", &["10.0.0.3, 10.0.0.2"], "10.0.0.3");
        is("[2001:db8::1]:1", &["2001:DB9::5"], "2001:db9::5");
        is("10.0.0.1:1", &["::ffff:198.51.100.1"], "198.51.100.1");
    }

    #[test]
    fn ports_are_taken_off() {
        is("10.0.0.1:1", &["198.51.100.1:4711"], "198.51.100.1");
        is("10.0.0.1:1", &["[2001:db9::5]:4711"], "2001:db9::5");
        is("10.0.0.1:1", &["[2001:db9::5]"], "2001:db9::5");
    }

    #[test]
    fn an_invalid_address_ends_the_walk_at_the_last_trusted_proxy() {
        for wrong in [
            "1.1.1.1, unknown",
            "1.1.1.1,",
            "1.1.1.1, 1.2.3.4:x",
            "1.1.1.1, [::1",
            "1.1.1.1, _hidden",
            "1.1.1.1, 1.2.3.4:",
            "\u{e9}",
        ] {
            is("10.0.0.1:1", &[wrong], "10.0.0.1");
        }
        is("10.0.0.1:1", &["1.1.1.1, x, 10.0.0.2"], "10.0.0.2");
    }

    #[test]
    fn a_clients_network_is_that_of_its_address_and_a_trusted_proxy_has_none() {
        let network = |text: &str| Some(Network::of(text.parse().unwrap(), 64));
        assert_eq!(client("192.0.2.7:1", &[]).network(64), network("192.0.2.7"));
        assert_eq!(client("10.0.0.1:1", &["198.51.100.1"]).network(64), network("198.51.100.1"));
        assert_eq!(client("10.0.0.1:1", &["2001:db9::5"]).network(64), network("2001:db9::6"));
        assert_eq!(client("10.0.0.1:1", &[]).network(64), None);
        assert_eq!(client("10.0.0.1:1", &["10.0.0.2"]).network(64), None);
    }

    #[test]
    fn the_scheme_is_the_trusted_proxys_word() {
        let mut fields = Fields::new();
        fields.append(Known::ForwardedProto, "https");
        let address = "10.0.0.1:1".parse().unwrap();
        let peer = Peer::plain(address, address);
        assert_eq!(Client::of(&fields, &peer, &["10.0.0.0/8".parse().unwrap()]).scheme(), "https");
        assert_eq!(Client::of(&fields, &peer, &[]).scheme(), "http");
    }
}
