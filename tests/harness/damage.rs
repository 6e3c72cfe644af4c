//! Damages modules and components at random, by a seed.

/// Where each section's content is, in a module or a component.
fn sections(module: &[u8]) -> Vec<std::ops::Range<usize>> {
    let payloads = wasmparser::Parser::new(0).parse_all(module).map_while(Result::ok);
    payloads.filter_map(|payload| payload.as_section().map(|(_, range)| range)).collect()
}

/// The same bytes, damaged in one of several ways.
pub(crate) fn damage(original: &[u8], random: &mut fastrand::Rng) -> Vec<u8> {
    let mut damaged = original.to_vec();
    let sections = sections(original);
    let any = |random: &mut fastrand::Rng| {
        let range = sections[random.usize(..sections.len())].clone();
        if range.is_empty() { range.start } else { random.usize(range) }
    };
    match random.u8(..8) {
        // Cut short.
        0 => damaged.truncate(random.usize(..original.len())),
        // A section's length, or what comes before it.
        1 => {
            let at = sections[random.usize(..sections.len())].start;
            damaged[at.saturating_sub(1 + random.usize(..4))] = random.u8(..);
        }
        // Bytes that stand for large numbers.
        2 => {
            let at = any(random);
            damaged.splice(at..at + 1, [0xff, 0xff, 0xff, 0xff, 0x0f]);
        }
        // A piece of it, once more or elsewhere.
        3 => {
            let (from, to) = (any(random), any(random));
            let piece = original[from..(from + random.usize(1..64)).min(original.len())].to_vec();
            damaged.splice(to..to, piece);
        }
        // A piece is missing.
        4 => {
            let at = any(random);
            damaged.drain(at..(at + random.usize(1..64)).min(original.len()));
        }
        // Bits anywhere: in sections that are small as often as in code.
        _ => {
            for _ in 0..random.usize(1..8) {
                let at = any(random).min(damaged.len() - 1);
                damaged[at] ^= 1 << random.u8(..8);
            }
        }
    }
    damaged
}
