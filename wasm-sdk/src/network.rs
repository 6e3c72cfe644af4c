//! Networks of addresses, such as `10.0.0.0/8`.

use std::net::IpAddr;

/// A network, or a single address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    address: IpAddr,
    /// Bits that an address in it has in common with it.
    bits: u32,
}

impl Network {
    /// Reads an address, or one with the length of a prefix. IPv4 written as IPv6 is IPv4.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => {
                let digits = !bits.is_empty() && bits.bytes().all(|digit| digit.is_ascii_digit());
                (address, Some(bits.parse().ok().filter(|_| digits)?))
            }
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let all = width(address);
        let bits: u32 = bits.unwrap_or(all);
        if bits > all {
            return None;
        }
        // A network that is larger than all of IPv4 stays one of IPv6.
        let as_v4 = address.to_canonical();
        match bits.checked_sub(all - width(as_v4)) {
            Some(bits) => Some(Self { address: as_v4, bits }),
            None => Some(Self { address, bits }),
        }
    }

    /// Whether an address is in it.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let differing = match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                (own.to_bits() ^ other.to_bits()).leading_zeros()
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                (own.to_bits() ^ other.to_bits()).leading_zeros()
            }
            _ => return false,
        };
        differing >= self.bits
    }
}

fn width(address: IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

#[cfg(test)]
mod tests {
    use ipnet::IpNet;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_invalid_network_is_refused() {
        for text in [
            "",
            "/",
            "/8",
            "10.0.0.0/",
            "10.0.0.0/33",
            "10.0.0.0/+8",
            "10.0.0.0/-1",
            "10.0.0.0/8/8",
            "10.0.0/8",
            "010.0.0.0/8",
            "::/129",
            "::/ 8",
            "10.0.0.0/4294967297",
            "x",
        ] {
            assert_eq!(Network::parse(text), None, "{text}");
        }
    }

    #[test]
    fn ipv4_written_as_ipv6_is_ipv4() {
        assert_eq!(Network::parse("::ffff:10.0.0.0/104"), Network::parse("10.0.0.0/8"));
        assert_eq!(Network::parse("::ffff:10.0.0.1"), Network::parse("10.0.0.1"));
        let wide = Network::parse("::ffff:0:0/95").unwrap();
        assert!(wide.contains("::fffe:1:1".parse().unwrap()));
    }

    proptest! {
        #[test]
        fn networks_contain_what_they_do_in_another_library(
            address: IpAddr, bits in 0_u8..=128, flip in 0_u32..128, other: IpAddr
        ) {
            let text = format!("{address}/{bits}");
            let theirs = text.parse::<IpNet>().ok();
            let ours = Network::parse(&text);
            prop_assert_eq!(ours.is_some(), theirs.is_some());
            // The same address but for one bit.
            let near = match address {
                IpAddr::V4(own) => IpAddr::from((own.to_bits() ^ 1 << (flip % 32)).to_be_bytes()),
                IpAddr::V6(own) => IpAddr::from((own.to_bits() ^ 1 << flip).to_be_bytes()),
            };
            // IPv4 written as IPv6 is another question.
            prop_assume!(address.to_canonical() == address);
            for one in [address, near, other] {
                prop_assert_eq!(
                    ours.is_some_and(|ours| ours.contains(one)),
                    theirs.is_some_and(|theirs| theirs.contains(&one))
                );
            }
        }
    }
}
