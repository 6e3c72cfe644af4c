//! Which client a request belongs to, by address: an IPv4 address, or a network of IPv6 addresses.
//! Does not know how the proxy found the address.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv6Addr};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::Facts;
use crate::mistakes::message;

/// The fact that contains the address.
pub(crate) const CLIENT_IP: &str = "client-ip";
const IPV6_BITS: u8 = 128;

/// Bits of an IPv6 address that make one client, 64 by default. Use it as the type of a setting.
///
/// The owner of one IPv6 address usually has the whole network. Counted by single addresses, such a
/// client would have 2^64 allowances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Prefix(u8);

/// A client by address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client<'a> {
    /// The address itself. IPv4 written as IPv6 is IPv4.
    pub address: IpAddr,
    /// What is counted: the address, or the network of an IPv6 address.
    pub text: Cow<'a, str>,
}

impl Default for Ipv6Prefix {
    fn default() -> Self {
        Self(64)
    }
}

impl Ipv6Prefix {
    /// The client of this request, from the fact `client-ip`.
    ///
    /// # Errors
    /// A message, if the proxy showed no address because the manifest didn't name the fact.
    pub fn client<'a>(self, facts: &Facts<'a>) -> Result<Client<'a>, String> {
        let shown = facts.get(CLIENT_IP).ok_or("the proxy showed no client-ip")?;
        let address: IpAddr = shown.parse().map_err(|_| "client-ip is no address")?;
        let address = address.to_canonical();
        let text = match address {
            // Only in IPv6 can an address be written in several ways.
            IpAddr::V4(_) if !shown.contains(':') => Cow::Borrowed(shown),
            IpAddr::V4(address) => Cow::Owned(address.to_string()),
            IpAddr::V6(address) => Cow::Owned(self.network_of(address)),
        };
        Ok(Client { address, text })
    }

    fn network_of(self, address: Ipv6Addr) -> String {
        if self.0 >= IPV6_BITS {
            return address.to_string();
        }
        let host_bits = u32::from(IPV6_BITS - self.0);
        let mask = u128::MAX.checked_shl(host_bits).unwrap_or(0);
        format!("{}/{}", Ipv6Addr::from(u128::from(address) & mask), self.0)
    }
}

impl Client<'_> {
    /// The key that is used for a client without a key of its own. It starts as no key from a
    /// [`Template`](crate::Template) does.
    #[must_use]
    pub fn key(&self) -> String {
        address_key(&self.text)
    }
}

/// No key from a template starts with `\@`.
pub(crate) fn address_key(text: &str) -> String {
    format!("\\@{text}")
}

impl<'de> Deserialize<'de> for Ipv6Prefix {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bits = u64::deserialize(deserializer)?;
        let fitting = u8::try_from(bits).ok().filter(|bits| *bits <= IPV6_BITS);
        fitting.map(Self).ok_or_else(|| D::Error::custom(message(&bits, &"0 to 128")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(bits: u8, address: &str) -> String {
        let shown = [(CLIENT_IP.to_owned(), address.to_owned())];
        Ipv6Prefix(bits).client(&Facts::new(&shown)).unwrap().text.into_owned()
    }

    #[test]
    fn an_ipv6_client_is_its_network_and_an_ipv4_client_its_address() {
        for (bits, address, expected) in [
            (64, "192.0.2.1", "192.0.2.1"),
            (64, "::ffff:192.0.2.1", "192.0.2.1"),
            (64, "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
            (48, "2001:db8:1:2::1", "2001:db8:1::/48"),
            (128, "2001:db8::1", "2001:db8::1"),
            (0, "2001:db8::1", "::/0"),
        ] {
            assert_eq!(counted(bits, address), expected);
        }
    }

    #[test]
    fn without_an_address_there_is_no_client() {
        assert!(Ipv6Prefix::default().client(&Facts::new(&[])).is_err());
        let shown = [(CLIENT_IP.to_owned(), "nobody".to_owned())];
        assert!(Ipv6Prefix::default().client(&Facts::new(&shown)).is_err());
    }

    #[test]
    fn a_prefix_has_at_most_all_bits() {
        assert_eq!(serde_json::from_str::<Ipv6Prefix>("128").unwrap(), Ipv6Prefix(128));
        for (text, part) in [("129", "found 129, expected 0 to 128"), ("-1", "-1"), ("\"x\"", "x")]
        {
            let error = serde_json::from_str::<Ipv6Prefix>(text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
