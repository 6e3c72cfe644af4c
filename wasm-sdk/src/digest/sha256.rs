//! SHA-256 (FIPS 180-4), in a loop: a fifth of the size of one that is unrolled.

/// The square roots' and cube roots' fractions that the standard names.
const START: [u32; 8] = [
    0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
];
const ROUNDS: [u32; 64] = [
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
];

/// The digest of some bytes.
pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut state = START;
    let (blocks, rest) = bytes.as_chunks::<64>();
    blocks.iter().for_each(|block| add(&mut state, block));
    // One more, or two: the rest, a bit that is set, and the length in bits.
    let mut last = [[0_u8; 64]; 2];
    let two = rest.len() > 55;
    let bits = (bytes.len() as u64 * 8).to_be_bytes();
    let padding = rest.iter().copied().chain([0x80]);
    last.as_flattened_mut().iter_mut().zip(padding).for_each(|(to, from)| *to = from);
    let end = last.as_flattened_mut().iter_mut().skip(if two { 120 } else { 56 });
    end.zip(bits).for_each(|(to, from)| *to = from);
    last.iter().take(1 + usize::from(two)).for_each(|block| add(&mut state, block));
    let mut digest = [0; 32];
    let bytes = state.iter().flat_map(|word| word.to_be_bytes());
    digest.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
    digest
}

#[allow(clippy::many_single_char_names, reason = "the standard's names")]
fn add(state: &mut [u32; 8], block: &[u8; 64]) {
    let (words, _) = block.as_chunks::<4>();
    // The last 16 words of the message's schedule.
    let mut schedule = [0_u32; 16];
    schedule.iter_mut().zip(words).for_each(|(to, from)| *to = u32::from_be_bytes(*from));
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
    for (round, constant) in ROUNDS.iter().enumerate() {
        let word = |at: usize| schedule.get(at & 15).copied().unwrap_or(0);
        let mut next = word(round);
        if round >= 16 {
            let [w16, w15, w7, w2] = [0, 1, 9, 14].map(|after| word(round + after));
            let s0 = w15.rotate_right(7) ^ w15.rotate_right(18) ^ w15 >> 3;
            let s1 = w2.rotate_right(17) ^ w2.rotate_right(19) ^ w2 >> 10;
            next = w16.wrapping_add(s0).wrapping_add(w7).wrapping_add(s1);
            schedule.get_mut(round & 15).into_iter().for_each(|word| *word = next);
        }
        let s1 = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
        let choice = e & f ^ !e & g;
        let one = [s1, choice, *constant, next].into_iter().fold(h, u32::wrapping_add);
        let s0 = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
        let majority = a & b ^ a & c ^ b & c;
        (h, g, f, e) = (g, f, e, d.wrapping_add(one));
        (d, c, b, a) = (c, b, a, one.wrapping_add(s0).wrapping_add(majority));
    }
    let added = [a, b, c, d, e, f, g, h];
    state.iter_mut().zip(added).for_each(|(word, added)| *word = word.wrapping_add(added));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sha2::{Digest as _, Sha256};

    use super::*;

    #[test]
    fn all_lengths_around_a_block_are_right() {
        let bytes: Vec<u8> = (0..=255).collect();
        for length in 0..bytes.len() {
            let bytes = &bytes[..length];
            assert_eq!(sha256(bytes), <[u8; 32]>::from(Sha256::digest(bytes)), "{length}");
        }
    }

    proptest! {
        #[test]
        fn digests_are_those_of_another_library(bytes: Vec<u8>) {
            prop_assert_eq!(sha256(&bytes), <[u8; 32]>::from(Sha256::digest(&bytes)));
        }
    }
}
