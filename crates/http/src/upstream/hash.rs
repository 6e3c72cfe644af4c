//! Which host a hash belongs to: rendezvous hashing with weights and bounded loads. Pure.
//!
//! Each host has a rank for each hash, and the first one gets the request. If a host comes or goes,
//! only the requests that it gets or had move. All processes rank alike, as hashes are those of
//! values and addresses. Source: Thaler and Ravishankar, 1998; weights as Mosko, 2014; bounded
//! loads as Mirrokni, Thorup and Zadimoghaddam, 2016.

use std::hash::{DefaultHasher, Hash, Hasher as _};

/// A host gets requests by hash while it has at most this many hundredths of its share.
const ROOM_PERCENT: u128 = 125;

/// The hash of a value, the same in all processes of one build.
pub(super) fn of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// The rank of a host for a hash: the highest gets it. In proportion to the weights.
pub(super) fn rank(hash: u64, host: u64, weight: u32) -> f64 {
    let mixed = mixed(hash ^ host.rotate_left(32));
    // From above 0 to 1, in steps that a double holds.
    #[expect(clippy::cast_precision_loss, reason = "53 bits")]
    let uniform = ((mixed >> 11) + 1) as f64 / (1_u64 << 53) as f64;
    -f64::from(weight) / uniform.ln()
}

/// Whether a host with so many requests under way, of so many at all hosts, may get one more.
pub(super) fn has_room(outstanding: usize, total: usize, (weight, weights): (u32, u64)) -> bool {
    let share = (total as u128 + 1) * u128::from(weight) * ROOM_PERCENT;
    (outstanding as u128) < share.div_ceil(u128::from(weights.max(1)) * 100)
}

/// Spreads differences over all bits (the last steps of SplitMix64; Steele, Lea and Flood, 2014).
fn mixed(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(hash: u64, hosts: &[(u64, u32)]) -> u64 {
        let ranked = hosts.iter().map(|(host, weight)| (rank(hash, *host, *weight), *host));
        ranked.max_by(|one, other| one.0.total_cmp(&other.0)).unwrap().1
    }

    #[test]
    fn hashes_are_spread_by_weight_and_only_those_of_a_host_that_goes_move() {
        let hosts: Vec<(u64, u32)> =
            (0..10_u64).map(|host| (of(&host), if host == 0 { 5 } else { 1 })).collect();
        let keys: Vec<u64> = (0..100_000_u64).map(|key| of(&("key", key))).collect();
        let share = |host: u64| keys.iter().filter(|key| owner(**key, &hosts) == host).count();
        assert!((34_700..36_700).contains(&share(hosts[0].0)), "{}", share(hosts[0].0));
        for (host, _) in &hosts[1..] {
            assert!((6_600..7_700).contains(&share(*host)), "{}", share(*host));
        }
        let rest = &hosts[..9];
        for key in &keys {
            let before = owner(*key, &hosts);
            assert!(before == hosts[9].0 || owner(*key, rest) == before);
        }
    }

    #[test]
    fn a_host_has_room_for_a_little_more_than_its_share() {
        assert!(has_room(0, 0, (1, 3)), "the first request has a place");
        assert!(has_room(4, 11, (1, 3)) && !has_room(5, 11, (1, 3)));
        assert!(has_room(9, 11, (2, 3)) && !has_room(10, 11, (2, 3)));
        // Somebody always has room.
        for total in 0..200_usize {
            let even = total / 3;
            assert!(has_room(even, total, (1, 3)), "{total}");
        }
    }
}
