//! Which coding a client and a route agree on (RFC 9110, 12.5.3).

use crate::proxy::receive::hop;
use crate::proxy::settings::{Compress, ContentCoding};
use crate::wire::{Fields, Known};

/// A weight of 1, in thousandths.
const WEIGHT_MAX: u16 = 1_000;

/// What `Accept-Encoding` says of what it names, in thousandths; none where it says nothing.
#[derive(Debug, Default)]
struct Weights {
    gzip: Option<u16>,
    brotli: Option<u16>,
    zstd: Option<u16>,
    identity: Option<u16>,
    any: Option<u16>,
}

/// The coding with the highest weight, and of several the first in the route's own order. None if
/// the client names none of them, or would rather have the reply plain. It also gets it plain if it
/// refuses that, too: the rest of the reply is worth more than a 406.
pub(super) fn choose(route: &Compress, fields: &Fields) -> Option<ContentCoding> {
    if !fields.has(Known::AcceptEncoding) {
        return None;
    }
    let mut weights = Weights::default();
    fields.get_all(Known::AcceptEncoding).flat_map(hop::tokens).for_each(|one| weights.note(one));
    let mut best: Option<(u16, ContentCoding)> = None;
    for coding in &route.encodings {
        let weight = weights.of(*coding);
        if weight > best.map_or(0, |(weight, _)| weight) {
            best = Some((weight, *coding));
        }
    }
    let (weight, coding) = best?;
    (weights.identity.unwrap_or(0) <= weight).then_some(coding)
}

impl Weights {
    /// Notes a member of the field. One that can't be read says nothing, and of a name that is
    /// repeated the first holds.
    fn note(&mut self, member: &[u8]) {
        let mut parts = member.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
        let name = parts.next().unwrap_or_default().to_ascii_lowercase();
        let place = match name.as_slice() {
            b"gzip" | b"x-gzip" => &mut self.gzip,
            b"br" => &mut self.brotli,
            b"zstd" => &mut self.zstd,
            b"identity" => &mut self.identity,
            b"*" => &mut self.any,
            _ => return,
        };
        let weight = parts.find_map(|part| match part {
            [b'q' | b'Q', rest @ ..] => rest.trim_ascii_start().strip_prefix(b"="),
            _ => None,
        });
        let weight = weight.map_or(Some(WEIGHT_MAX), |text| thousandths(text.trim_ascii()));
        *place = place.or(weight);
    }

    fn of(&self, coding: ContentCoding) -> u16 {
        let own = match coding {
            ContentCoding::Zstd => self.zstd,
            ContentCoding::Brotli => self.brotli,
            ContentCoding::Gzip => self.gzip,
        };
        own.or(self.any).unwrap_or(0)
    }
}

/// A weight such as `0.8`, with at most three digits after the point.
fn thousandths(text: &[u8]) -> Option<u16> {
    let (whole, part) = match text {
        [whole @ (b'0' | b'1')] => (*whole, &[][..]),
        [whole @ (b'0' | b'1'), b'.', part @ ..] if part.len() <= 3 => (*whole, part),
        _ => return None,
    };
    let mut value = u16::from(whole - b'0');
    for place in 0..3 {
        let digit = part.get(place).copied().unwrap_or(b'0');
        value = value * 10 + digit.is_ascii_digit().then(|| u16::from(digit - b'0'))?;
    }
    (value <= WEIGHT_MAX).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn chosen(encodings: &[ContentCoding], values: &[&str]) -> Option<ContentCoding> {
        let mut fields = Fields::new();
        values.iter().for_each(|value| fields.append(Known::AcceptEncoding, value));
        choose(&Compress { encodings: encodings.to_vec(), ..Compress::default() }, &fields)
    }

    #[test]
    fn the_clients_weights_decide_and_then_the_routes_order() {
        use ContentCoding::{Brotli, Gzip, Zstd};
        const ALL: [ContentCoding; 3] = [Zstd, Brotli, Gzip];
        for (values, expected) in [
            (&[][..], None),
            (&[""], None),
            (&["gzip"], Some(Gzip)),
            (&["X-GZip"], Some(Gzip)),
            (&["gzip, deflate, br"], Some(Brotli)),
            (&["gzip, deflate, br, zstd"], Some(Zstd)),
            (&["gzip", "br"], Some(Brotli)),
            (&["GZIP;Q=1.0 , br ; q=0.9"], Some(Gzip)),
            (&["zstd;q=0.5, br;q=0.501, gzip;q=0.50"], Some(Brotli)),
            (&["deflate, compress"], None),
            // 0 is a refusal.
            (&["gzip;q=0"], None),
            (&["gzip;q=0.000, br;q=0.001"], Some(Brotli)),
            (&["zstd;q=0, *"], Some(Brotli)),
            (&["*"], Some(Zstd)),
            (&["*;q=0"], None),
            (&["*;q=0, gzip"], Some(Gzip)),
            (&["gzip;q=0.2, *;q=0.1"], Some(Gzip)),
            // Plain is one of the choices.
            (&["identity"], None),
            (&["identity, gzip;q=0.5"], None),
            (&["identity;q=0.5, gzip"], Some(Gzip)),
            (&["identity, gzip"], Some(Gzip)),
            (&["identity;q=0, gzip;q=0.1"], Some(Gzip)),
            (&["identity;q=0"], None),
            // What can't be read says nothing.
            (&["gzip;q=2, br;q=x, zstd;q=0.1234"], None),
            (&["gzip;q=1.001"], None),
            (&["gzip;q="], None),
            (&["gzip;level=9;q=0"], None),
            (&["gzip;q=0, gzip"], None),
            (&[",, ;q=1, gzip;;"], Some(Gzip)),
        ] {
            assert_eq!(chosen(&ALL, values), expected, "{values:?}");
        }
        assert_eq!(chosen(&[Gzip, Zstd], &["gzip, br, zstd"]), Some(Gzip));
        assert_eq!(chosen(&[Gzip], &["br, zstd"]), None);
    }
}
