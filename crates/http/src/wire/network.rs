//! A client's network: the addresses that are treated as one client. Knows nothing about what is
//! counted.

use std::net::IpAddr;

/// An IPv4 address, or the prefix of an IPv6 address that one subscriber is assigned. One number,
/// so that it is cheap to hash and to store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network(u128);

impl Network {
    /// The network of `address`, of which `ipv6_prefix` bits are used if it is IPv6. An IPv4
    /// address on an IPv6 socket is treated as IPv4.
    #[must_use]
    pub fn of(address: IpAddr, ipv6_prefix: u8) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self(address.to_ipv6_mapped().to_bits()),
            IpAddr::V6(address) => {
                let ignored = 128 - u32::from(ipv6_prefix.min(128));
                Self(address.to_bits() & u128::MAX.checked_shl(ignored).unwrap_or(0))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_prefix_are_one_network() {
        let network = |text: &str, prefix| Network::of(text.parse().unwrap(), prefix);
        assert_eq!(network("2001:db8:0:1::1", 64), network("2001:db8:0:1:ffff::2", 64));
        assert_ne!(network("2001:db8:0:1::1", 64), network("2001:db8:0:2::1", 64));
        assert_eq!(network("2001:db8:0:1::1", 48), network("2001:db8:0:2::1", 48));
        assert_ne!(network("2001:db8::1", 128), network("2001:db8::2", 128));
        assert_eq!(network("2001:db8::1", 0), network("fe80::2", 0));
        assert_eq!(network("::ffff:192.0.2.1", 64), network("192.0.2.1", 64));
        assert_ne!(network("192.0.2.1", 64), network("192.0.2.2", 64));
    }
}
