//! Hand-written JSON for the two short texts that a request may need: a problem document and a log
//! line. Knows neither.

/// Appends `text` as a JSON string, with its quotes.
pub(super) fn string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    escaped(out, text);
    out.push(b'"');
}

/// Appends `text` escaped for use inside a string's quotes.
pub(super) fn escaped(out: &mut Vec<u8>, text: &str) {
    // Checks all bytes without stopping early, so that the loop is vectorized. Nearly every text
    // needs no escape.
    if !text
        .bytes()
        .fold(false, |found, byte| found | matches!(byte, 0..=0x1F | b'"' | b'\\' | 0x7F))
    {
        return out.extend_from_slice(text.as_bytes());
    }
    let mut plain = 0;
    for (index, byte) in text.bytes().enumerate() {
        let escape: &[u8] = match byte {
            b'"' => b"\\\"",
            b'\\' => b"\\\\",
            b'\n' => b"\\n",
            b'\r' => b"\\r",
            b'\t' => b"\\t",
            0..=0x1F | 0x7F => b"",
            _ => continue,
        };
        out.extend_from_slice(text.as_bytes().get(plain..index).unwrap_or_default());
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
pub(super) fn number(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Appends a list of strings.
pub(super) fn strings<'a>(out: &mut Vec<u8>, texts: impl Iterator<Item = &'a str>) {
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
        fn a_parser_reads_back_what_was_written(text in "(\\PC|[\\x00-\\x20\"\\\\\\x7f]){0,40}") {
            let mut out = Vec::new();
            strings(&mut out, [text.as_str(), ""].into_iter());
            prop_assert_eq!(serde_json::from_slice::<Vec<String>>(&out).unwrap(), [text.as_str(), ""]);
        }
    }
}
