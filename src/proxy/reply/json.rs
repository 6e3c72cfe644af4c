//! Hand-written JSON for the two short texts that a request may need: a problem document and a log
//! line. Knows neither.

/// Appends `text` as a JSON string, with its quotes.
pub(in crate::proxy) fn string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    escaped(out, text);
    out.push(b'"');
}

/// Appends `text` escaped for use inside a string's quotes.
pub(in crate::proxy) fn escaped(out: &mut Vec<u8>, text: &str) {
    // Checks all bytes without stopping early, so that the loop is vectorized. Nearly every text
    // needs no escape. Of what begins with C2, some are control characters (C1), which terminals
    // obey as they do others.
    if !text
        .bytes()
        .fold(false, |found, byte| found | matches!(byte, 0..=0x1F | b'"' | b'\\' | 0x7F | 0xC2))
    {
        return out.extend_from_slice(text.as_bytes());
    }
    let (mut plain, mut before) = (0, 0);
    for (index, byte) in text.bytes().enumerate() {
        let is_c1 = before == 0xC2 && (0x80..=0x9F).contains(&byte);
        before = byte;
        let escape: &[u8] = match byte {
            _ if is_c1 => b"",
            b'"' => b"\\\"",
            b'\\' => b"\\\\",
            b'\n' => b"\\n",
            b'\r' => b"\\r",
            b'\t' => b"\\t",
            0..=0x1F | 0x7F => b"",
            _ => continue,
        };
        let end = if is_c1 { index.saturating_sub(1) } else { index };
        out.extend_from_slice(text.as_bytes().get(plain..end).unwrap_or_default());
        plain = index + 1;
        if escape.is_empty() {
            out.extend_from_slice(b"\\u00");
            out.extend(
                [byte >> 4, byte & 15]
                    .map(|digit| if digit < 10 { b'0' + digit } else { b'a' + digit - 10 }),
            );
        } else {
            out.extend_from_slice(escape);
        }
    }
    out.extend_from_slice(text.as_bytes().get(plain..).unwrap_or_default());
}

/// Appends a number.
pub(in crate::proxy) fn number(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Appends a list of strings.
pub(in crate::proxy) fn strings<'a>(out: &mut Vec<u8>, texts: impl Iterator<Item = &'a str>) {
    out.push(b'[');
    for (index, text) in texts.enumerate() {
        if index > 0 {
            out.push(b',');
        }
        string(out, text);
    }
    out.push(b']');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_parser_reads_back_what_was_written(
            text in "(\\PC|[\\x00-\\x20\"\\\\\\x7f]|[\u{80}-\u{c0}]){0,40}"
        ) {
            let mut out = Vec::new();
            strings(&mut out, [text.as_str(), ""].into_iter());
            prop_assert_eq!(serde_json::from_slice::<Vec<String>>(&out).unwrap(), [text.as_str(), ""]);
            let written = String::from_utf8(out).unwrap();
            prop_assert!(!written.chars().any(char::is_control), "{:?}", written);
        }
    }
}
