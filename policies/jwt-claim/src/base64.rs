//! Base64 in its URL-safe alphabet, without padding (RFC 7515, section 2).

/// Decodes a text. `None` if it is not exactly what an encoder would write: a token must not have
/// two spellings.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    let mut bits: u32 = 0;
    let mut count = 0;
    for digit in text.bytes() {
        bits = bits << 6 | u32::from(value(digit)?);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count & 0xFF) as u8);
            bits &= (1 << count) - 1;
        }
    }
    // What is left must be the zeros that fill the last digit up.
    (count < 6 && bits == 0).then_some(bytes)
}

fn value(digit: u8) -> Option<u8> {
    match digit {
        b'A'..=b'Z' => Some(digit - b'A'),
        b'a'..=b'z' => Some(digit - b'a' + 26),
        b'0'..=b'9' => Some(digit - b'0' + 52),
        b'-' => Some(62),
        b'_' => Some(63),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_an_encoder_writes_is_read() {
        for (text, bytes) in
            [("", &b""[..]), ("Zg", b"f"), ("Zm8", b"fo"), ("Zm9v", b"foo"), ("_-8", &[0xFF, 0xEF])]
        {
            assert_eq!(decode(text).as_deref(), Some(bytes), "{text}");
        }
        for text in ["Z", "Zh", "Zm9=", "Zg==", "Zm9vZ", "+/8", " Zg", "Zg\n", "\u{e9}"] {
            assert_eq!(decode(text), None, "{text:?}");
        }
    }
}
