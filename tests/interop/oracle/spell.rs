//! Random spellings of a request. Each is meant to be read as one of a few values, by some upstream
//! at least.

use fastrand::Rng;

/// The kinds of values by which a request is counted.
pub const KINDS: [&str; 5] = ["header", "bearer", "query", "form", "cookie"];
const VALUES: [&str; 3] = ["abc", "victim", "k-1.x"];
/// What a route and a policy touch, and a client must not set.
const TOUCHED: [&str; 4] = ["X-Internal", "X-User", "X-Plan", "X-Api-Key"];

/// A request before it is sent.
#[derive(Debug)]
pub struct Spelled {
    pub kind: &'static str,
    /// Over HTTP/2.
    pub h2: bool,
    pub target: Vec<u8>,
    pub fields: Vec<(String, Vec<u8>)>,
    pub body: Option<Vec<u8>>,
    pub trailers: Vec<(String, Vec<u8>)>,
}

impl Spelled {
    /// One of the kind.
    pub fn random(kind: &'static str, rng: &mut Rng) -> Self {
        let mut spelled = Self {
            kind,
            h2: rng.u8(..4) == 0,
            target: format!("/{kind}").into_bytes(),
            fields: Vec::new(),
            body: None,
            trailers: Vec::new(),
        };
        match kind {
            "header" => spelled.header(rng),
            "bearer" => spelled.bearer(rng),
            "query" => {
                spelled.target.push(b'?');
                spelled.target.extend(form(rng));
            }
            "form" => {
                spelled.body = Some(form(rng));
                spelled.add("Content-Type", "application/x-www-form-urlencoded");
            }
            _ => spelled.cookie(rng),
        }
        spelled.attack(rng);
        spelled
    }

    fn add(&mut self, name: &str, value: impl AsRef<[u8]>) {
        self.fields.push((name.to_owned(), value.as_ref().to_vec()));
    }

    fn header(&mut self, rng: &mut Rng) {
        for _ in 0..times(rng) {
            let name = field_name("X-Api-Key", rng);
            let value = padded(pick(rng, &VALUES).as_bytes(), rng);
            self.add(&name, value);
        }
        if rng.u8(..10) == 0 {
            let name = field_name("X-Api-Key", rng);
            self.add("Connection", name);
        }
    }

    fn bearer(&mut self, rng: &mut Rng) {
        for _ in 0..times(rng) {
            let mut value = any_case("Bearer", rng).into_bytes();
            value.extend(pick(rng, &[" ", " ", " ", "  ", "     ", "\t", " \t"]).bytes());
            value.extend(pick(rng, &VALUES).bytes());
            value.extend(pick(rng, &["", "", "", " ", "  ", " x", ", Bearer abc", "\t"]).bytes());
            let value = if rng.u8(..6) == 0 { padded(&value, rng) } else { value };
            self.add("Authorization", value);
        }
    }

    fn cookie(&mut self, rng: &mut Rng) {
        let mut field = Vec::new();
        for _ in 0..times(rng) {
            if rng.bool() {
                field.extend(pick(rng, &["a=1; ", "theme=dark;", "b=\"x\"; ", "; "]).bytes());
            }
            let names = ["session", "session", "session", "Session", "%73ession", "session[x]"];
            field.extend(pick(rng, &names).bytes());
            field.push(b'=');
            field.extend(cookie_value(pick(rng, &VALUES), rng));
            field.extend(pick(rng, &["; ", ";", " ; "]).bytes());
            if rng.u8(..5) == 0 {
                self.add("Cookie", std::mem::take(&mut field));
            }
        }
        self.add("Cookie", field);
    }

    /// Tries to set what the client may not.
    fn attack(&mut self, rng: &mut Rng) {
        if rng.u8(..3) == 0 {
            let name = field_name(pick(rng, &TOUCHED[..3]), rng);
            self.add(&name, padded(b"forged", rng));
        }
        // Servers that merge trailers do so behind a chunked body.
        if self.kind != "form" && rng.u8(..3) == 0 {
            let name = field_name(pick(rng, &TOUCHED), rng);
            if rng.u8(..4) > 0 {
                self.add("Trailer", &name);
            }
            self.trailers.push((name, padded(b"forged", rng)));
            self.body = Some(b"x=1".to_vec());
        }
    }

    /// The request as HTTP/1.1, on a connection of its own.
    pub fn to_bytes(&self) -> Vec<u8> {
        let method: &[u8] = if self.body.is_some() { b"POST " } else { b"GET " };
        let mut bytes =
            [method, &self.target, b" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"].concat();
        for (name, value) in &self.fields {
            bytes.extend([name.as_bytes(), b": ", value, b"\r\n"].concat());
        }
        match &self.body {
            None => bytes.extend(b"\r\n"),
            Some(body) if self.trailers.is_empty() => {
                bytes.extend(format!("Content-Length: {}\r\n\r\n", body.len()).bytes());
                bytes.extend(body);
            }
            Some(body) => {
                bytes.extend(b"Transfer-Encoding: chunked\r\n\r\n");
                bytes.extend(format!("{:x}\r\n", body.len()).bytes());
                bytes.extend(body);
                bytes.extend(b"\r\n0\r\n");
                for (name, value) in &self.trailers {
                    bytes.extend([name.as_bytes(), b": ", value, b"\r\n"].concat());
                }
                bytes.extend(b"\r\n");
            }
        }
        bytes
    }
}

fn pick<'a>(rng: &mut Rng, from: &[&'a str]) -> &'a str {
    from[rng.usize(..from.len())]
}

fn times(rng: &mut Rng) -> usize {
    if rng.u8(..5) == 0 { 2 } else { 1 }
}

fn any_case(text: &str, rng: &mut Rng) -> String {
    let turn = |letter: char| match rng.u8(..3) {
        0 => letter.to_ascii_uppercase(),
        1 => letter.to_ascii_lowercase(),
        _ => letter,
    };
    text.chars().map(turn).collect()
}

fn field_name(name: &str, rng: &mut Rng) -> String {
    let name = any_case(name, rng);
    if rng.bool() {
        return name;
    }
    name.chars()
        .map(|letter| match (letter, rng.u8(..3)) {
            ('-', 0) => pick(rng, &["_", ".", "~", "!", "|"]).chars().next().unwrap_or('-'),
            _ => letter,
        })
        .collect()
}

/// A field's value with what some servers cut off around it.
fn padded(value: &[u8], rng: &mut Rng) -> Vec<u8> {
    const AROUND: [&[u8]; 8] = [b"", b"", b"", b" ", b"\t", b"  ", b"\xA0", b"\x85"];
    let mut around = || AROUND[rng.usize(..AROUND.len())];
    [around(), value, around()].concat()
}

/// Pairs of a query or a form.
fn form(rng: &mut Rng) -> Vec<u8> {
    let mut text = Vec::new();
    for _ in 0..times(rng) {
        if rng.u8(..3) == 0 {
            text.extend(pick(rng, &["a=1&", "b&", "&", "x=%zz&", "=&", "q=a;", "c=d%26&"]).bytes());
        }
        text.extend(pick(rng, &["", "", "", "", "+", "%20", "++"]).bytes());
        text.extend(escaped(&case_sometimes("username", rng), rng));
        text.extend(
            pick(rng, &["", "", "", "", "%00x", "[]", "[0]", "[x]", "%5B%5D", "["]).bytes(),
        );
        text.push(b'=');
        text.extend(escaped(pick(rng, &VALUES), rng));
        text.extend(pick(rng, &["&", "&", "&", ";", "&&"]).bytes());
    }
    text.pop();
    text
}

fn case_sometimes(text: &str, rng: &mut Rng) -> String {
    if rng.u8(..8) == 0 { any_case(text, rng) } else { text.to_owned() }
}

/// Some characters as escapes.
fn escaped(text: &str, rng: &mut Rng) -> Vec<u8> {
    let few = rng.bool();
    let escape = |byte: u8| match rng.u8(..if few { 12 } else { 4 }) {
        0 => format!("%{byte:02x}").into_bytes(),
        1 => format!("%{byte:02X}").into_bytes(),
        _ => vec![byte],
    };
    text.bytes().flat_map(escape).collect()
}

fn cookie_value(value: &str, rng: &mut Rng) -> Vec<u8> {
    match rng.u8(..8) {
        0 | 1 => value.into(),
        2 => format!("\"{value}\"").into(),
        3 => [b"\"", escaped(value, rng).as_slice(), b"\""].concat(),
        4 => {
            let octal = |byte: u8| match rng.u8(..4) {
                0 => format!("\\{byte:03o}").into_bytes(),
                1 => vec![b'\\', byte],
                _ => vec![byte],
            };
            let inner: Vec<u8> = value.bytes().flat_map(octal).collect();
            [b"\"", inner.as_slice(), b"\""].concat()
        }
        5 => [pick(rng, &["%zz", "%", "%ff", "\""]).as_bytes(), &escaped(value, rng)].concat(),
        _ => escaped(value, rng),
    }
}
