//! Reads a chunked body byte by byte, as RFC 9112 (7.1) describes it, with our limits. It is slow,
//! and shares no code with the decoder. The fuzz targets include this file too.

use super::drive::Pairs;

/// The result of reading a chunked body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// The body is complete; `end` is where it ends.
    Whole { body: Vec<u8>, trailers: Pairs, end: usize },
    /// The body is incomplete, or broken after this part.
    Part { body: Vec<u8>, broken: bool },
}

/// Reads the body at the start of `bytes`.
pub(crate) fn chunked(bytes: &[u8]) -> Read {
    let mut body = Vec::new();
    let mut at = 0;
    let mut extensions = 0;
    loop {
        let size = match size(&bytes[at..]) {
            Line::Whole { value: (size, extension), length } => {
                extensions += extension;
                at += length;
                if extensions > 16 << 10 {
                    return Read::Part { body, broken: true };
                }
                size
            }
            Line::Short => return Read::Part { body, broken: false },
            Line::Broken => return Read::Part { body, broken: true },
        };
        if size == 0 {
            break;
        }
        for _ in 0..size {
            let Some(byte) = bytes.get(at) else { return Read::Part { body, broken: false } };
            body.push(*byte);
            at += 1;
        }
        for expected in b"\r\n" {
            match bytes.get(at) {
                Some(byte) if byte == expected => at += 1,
                Some(_) => return Read::Part { body, broken: true },
                None => return Read::Part { body, broken: false },
            }
        }
    }
    match trailers(&bytes[at..]) {
        Line::Whole { value, length } => Read::Whole { body, trailers: value, end: at + length },
        Line::Short => Read::Part { body, broken: false },
        Line::Broken => Read::Part { body, broken: true },
    }
}

enum Line<T> {
    Whole { value: T, length: usize },
    Short,
    Broken,
}

/// Reads a chunk's size, and the number of bytes of its extensions.
fn size(bytes: &[u8]) -> Line<(u64, usize)> {
    let mut size = 0_u64;
    let mut digits = 0;
    while let Some(digit) = bytes.get(digits).and_then(|byte| (*byte as char).to_digit(16)) {
        digits += 1;
        if digits > 15 {
            return Line::Broken;
        }
        size = size * 16 + u64::from(digit);
    }
    if digits == 0 && !bytes.is_empty() {
        return Line::Broken;
    }
    let mut extends = false;
    for (at, byte) in bytes.iter().enumerate().skip(digits) {
        if at >= (4 << 10) - 1 && *byte != b'\n' {
            return Line::Broken;
        }
        match (byte, bytes.get(at.wrapping_sub(1))) {
            (b'\n', Some(b'\r')) => {
                return Line::Whole { value: (size, at - 1 - digits), length: at + 1 };
            }
            // A CR must be followed by LF.
            (b'\r', _) if bytes.get(at + 1).is_none_or(|next| *next == b'\n') => {}
            (b' ' | b'\t', _) => {}
            (b';', _) => extends = true,
            (0x21..=0x7E | 0x80.., _) if extends => {}
            _ => return Line::Broken,
        }
    }
    Line::Short
}

/// Reads field lines and an empty line.
fn trailers(bytes: &[u8]) -> Line<Pairs> {
    let mut trailers = Vec::new();
    let mut at = 0;
    loop {
        let line =
            bytes[at..].iter().position(|byte| *byte == b'\n').map(|end| &bytes[at..at + end + 1]);
        let Some(line) = line else {
            return if bytes.len() >= 16 << 10 { Line::Broken } else { Line::Short };
        };
        at += line.len();
        let Some(text) = line.strip_suffix(b"\r\n") else { return Line::Broken };
        if at > 16 << 10 && !(trailers.is_empty() && text.is_empty()) {
            return Line::Broken;
        }
        if text.is_empty() {
            return Line::Whole { value: trailers, length: at };
        }
        match field(text) {
            Some(field) if trailers.len() < 64 => trailers.push(field),
            _ => return Line::Broken,
        }
    }
}

fn field(line: &[u8]) -> Option<(String, Vec<u8>)> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    let token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    let fits = !name.is_empty()
        && name.iter().all(token)
        && value.iter().all(|byte| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7F));
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let from = value.iter().position(|byte| !blank(byte)).unwrap_or(value.len());
    let to = value.iter().rposition(|byte| !blank(byte)).map_or(from, |last| last + 1);
    fits.then(|| (String::from_utf8_lossy(name).to_ascii_lowercase(), value[from..to].to_vec()))
}
