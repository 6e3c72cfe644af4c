//! The texts of JSON values: whether one is valid, where it ends, and what a string says.

use std::borrow::Cow;

/// Maximum nesting depth of values.
pub(super) const DEPTH_MAX: usize = 128;

/// Returns the one value of a text, without the spaces around it.
///
/// # Errors
/// The byte at which the text is not JSON.
pub(super) fn check(text: &str) -> Result<&str, usize> {
    let mut checker = Checker { text, at: 0 };
    let fits = checker.value(0).is_some();
    let end = checker.at;
    checker.space();
    if !fits || checker.at < text.len() {
        return Err(checker.at);
    }
    Ok(text.get(..end).unwrap_or_default().trim_start())
}

struct Checker<'t> {
    text: &'t str,
    at: usize,
}

/// Each method reads one thing, and returns `None` if there is another.
impl Checker<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn eat(&mut self, byte: u8) -> Option<()> {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found.then_some(())
    }

    fn space(&mut self) {
        while self.peek().is_some_and(is_space) {
            self.at += 1;
        }
    }

    fn value(&mut self, depth: usize) -> Option<()> {
        self.space();
        match self.peek()? {
            b'{' => self.values(b'}', depth),
            b'[' => self.values(b']', depth),
            b'"' => self.string(),
            b't' => self.word("true"),
            b'f' => self.word("false"),
            b'n' => self.word("null"),
            _ => self.number(),
        }
    }

    /// The values of a list or an object, with the bracket before them and the one after.
    fn values(&mut self, close: u8, depth: usize) -> Option<()> {
        if depth + 1 == DEPTH_MAX {
            return None;
        }
        self.at += 1;
        self.space();
        if self.eat(close).is_some() {
            return Some(());
        }
        loop {
            if close == b'}' {
                self.space();
                self.string()?;
                self.space();
                self.eat(b':')?;
            }
            self.value(depth + 1)?;
            self.space();
            if self.eat(b',').is_none() {
                return self.eat(close);
            }
        }
    }

    fn word(&mut self, word: &str) -> Option<()> {
        self.text.get(self.at..)?.starts_with(word).then(|| self.at += word.len())
    }

    fn string(&mut self) -> Option<()> {
        self.eat(b'"')?;
        loop {
            match self.peek()? {
                b'"' => return self.eat(b'"'),
                b'\\' => {
                    let (_, rest) = escape(self.text.get(self.at + 1..)?)?;
                    self.at = self.text.len() - rest.len();
                }
                0..=31 => return None,
                _ => self.at += 1,
            }
        }
    }

    fn number(&mut self) -> Option<()> {
        let _ = self.eat(b'-');
        if self.eat(b'0').is_none() {
            self.digits()?;
        }
        if self.eat(b'.').is_some() {
            self.digits()?;
        }
        if self.eat(b'e').or_else(|| self.eat(b'E')).is_some() {
            let _ = self.eat(b'-').or_else(|| self.eat(b'+'));
            self.digits()?;
        }
        Some(())
    }

    /// One digit at least.
    fn digits(&mut self) -> Option<()> {
        let start = self.at;
        while self.peek().is_some_and(|next| next.is_ascii_digit()) {
            self.at += 1;
        }
        (self.at > start).then_some(())
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\r' | b'\t')
}

/// The character that an escape stands for, and what follows. `text` is what follows the backslash.
fn escape(text: &str) -> Option<(char, &str)> {
    let rest = text.get(1..)?;
    let plain = match text.as_bytes().first()? {
        escaped @ (b'"' | b'\\' | b'/') => char::from(*escaped),
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => {
            let (high, rest) = unit(rest)?;
            if let Some(whole) = char::from_u32(high) {
                return Some((whole, rest));
            }
            // Two units of UTF-16.
            let (low, rest) = unit(rest.strip_prefix("\\u")?)?;
            let pair = (0xd800..0xdc00).contains(&high) && (0xdc00..0xe000).contains(&low);
            let code = 0x10000 + ((high & 0x3ff) << 10 | low & 0x3ff);
            return char::from_u32(code).filter(|_| pair).map(|whole| (whole, rest));
        }
        _ => return None,
    };
    Some((plain, rest))
}

fn unit(text: &str) -> Option<(u32, &str)> {
    let (digits, rest) = text.split_at_checked(4)?;
    let mut unit = 0;
    for digit in digits.chars() {
        unit = unit << 4 | digit.to_digit(16)?;
    }
    Some((unit, rest))
}

/// What a string says; `text` is what is between its quotes.
pub(super) fn unescaped(text: &str) -> Cow<'_, str> {
    let Some(mut at) = text.find('\\') else { return Cow::Borrowed(text) };
    let (mut plain, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((next, after)) = rest.get(at + 1..).and_then(escape) {
        plain.push_str(rest.get(..at).unwrap_or_default());
        plain.push(next);
        rest = after;
        match rest.find('\\') {
            Some(found) => at = found,
            None => break,
        }
    }
    plain.push_str(rest);
    Cow::Owned(plain)
}

/// A number times ten to the power of `places`, rounded down, if it is 0 or more. What 64 bits
/// don't hold is the most that they do.
pub(super) fn scaled(number: &str, places: i64) -> Option<u64> {
    let (digits, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_zero = !digits.bytes().any(|digit| (b'1'..=b'9').contains(&digit));
    if is_zero {
        return Some(0);
    }
    if digits.starts_with('-') {
        return None;
    }
    let exponent: i64 = exponent.parse().ok()?;
    // Digits before the point, once it is moved.
    let point = exponent.saturating_add(places).saturating_add_unsigned(whole.len() as u64);
    let mut digits = whole.bytes().chain(fraction.bytes());
    let mut scaled: u64 = 0;
    for _ in 0..point.max(0) {
        let digit = digits.next().unwrap_or(b'0') - b'0';
        scaled = scaled.saturating_mul(10).saturating_add(u64::from(digit));
        if scaled == u64::MAX {
            break;
        }
    }
    Some(scaled)
}

/// Takes the next value, or the name of the next member, from the inside of a valid list or object.
/// `None` at its end.
pub(super) fn next<'t>(rest: &mut &'t str) -> Option<&'t str> {
    let text = rest.trim_start_matches([',', ':', ' ', '\n', '\r', '\t']);
    let bytes = text.as_bytes();
    if matches!(bytes.first()?, b']' | b'}') {
        return None;
    }
    let (value, after) = text.split_at_checked(end(bytes))?;
    *rest = after;
    Some(value)
}

/// Where the value at the start of valid JSON ends.
fn end(bytes: &[u8]) -> usize {
    let (mut at, mut depth) = (0, 0_usize);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => at += string_end(bytes.get(at + 1..).unwrap_or_default()),
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth > 1 => depth -= 1,
            b'}' | b']' if depth == 1 => return at + 1,
            b',' | b':' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t' if depth == 0 => return at,
            _ => {}
        }
        at += 1;
        if depth == 0 && bytes.first() == Some(&b'"') {
            return at;
        }
    }
    at
}

/// The length of a string's text, with the quote after it.
fn string_end(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        at += 1;
        match byte {
            b'"' => break,
            b'\\' => at += 1,
            _ => {}
        }
    }
    at
}
