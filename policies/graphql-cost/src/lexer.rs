//! Splits a GraphQL document into its lexical tokens (GraphQL specification, September 2025,
//! section 2.1). Knows nothing of what the tokens mean.
//!
//! Escapes in strings are skipped and not decoded: only where a string ends is of interest. So `\u`
//! may be followed by anything here, which servers refuse.

use crate::refusal::{Refusal, shown};

const BOM: &[u8] = b"\xef\xbb\xbf";
const BLOCK: &str = "\"\"\"";

/// One token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token<'a> {
    /// One of `! $ & ( ) : = @ [ ] { | }`.
    Punctuator(u8),
    /// `...`
    Spread,
    Name(&'a str),
    Int(&'a str),
    Float(&'a str),
    /// A string or a block string, without its quotes.
    Text(&'a str),
    /// There is nothing more.
    End,
}

/// A position in a document, and what the next tokens are.
pub(crate) struct Lexer<'a> {
    source: &'a str,
    at: usize,
    /// Tokens that may still come.
    left: u64,
    max: u64,
}

impl<'a> Lexer<'a> {
    /// A lexer at the beginning of a document with at most `left` tokens. `max` is the number that
    /// a refusal names.
    pub(crate) fn new(source: &'a str, left: u64, max: u64) -> Self {
        Self { source, at: 0, left, max }
    }

    /// The tokens that were not used.
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// The next token, and where it begins.
    pub(crate) fn next(&mut self) -> Result<(Token<'a>, usize), Refusal> {
        self.skip_ignored();
        let start = self.at;
        let Some(first) = self.peek(0) else { return Ok((Token::End, start)) };
        self.left = self.left.checked_sub(1).ok_or(Refusal::Tokens { max: self.max })?;
        let token = match first {
            b'!' | b'$' | b'&' | b'(' | b')' | b':' | b'=' | b'@' | b'[' | b']' | b'{' | b'|'
            | b'}' => {
                self.at += 1;
                Token::Punctuator(first)
            }
            b'.' if self.rest().starts_with(b"...") => {
                self.at += 3;
                Token::Spread
            }
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => {
                self.skip_while(|next| next.is_ascii_alphanumeric() || next == b'_');
                Token::Name(self.since(start))
            }
            b'-' | b'0'..=b'9' => self.number(start)?,
            b'"' => self.text(start)?,
            _ => return Err(self.unexpected(start, "a token of GraphQL")),
        };
        Ok((token, start))
    }

    /// A syntax error at this position.
    pub(crate) fn unexpected(&self, at: usize, expected: &'static str) -> Refusal {
        let mut rest = self.source.get(at..).unwrap_or_default().chars();
        let found = match rest.next() {
            None => "the end".to_owned(),
            Some(first) if first.is_ascii_alphanumeric() || first == '_' => {
                let more = rest.take_while(|next| next.is_ascii_alphanumeric() || *next == '_');
                let word: String = std::iter::once(first).chain(more.take(64)).collect();
                format!("`{}`", shown(&word))
            }
            Some('"') => "a quote".to_owned(),
            Some(first) => format!("`{}`", shown(first.encode_utf8(&mut [0; 4]))),
        };
        let before = self.source.get(..at).unwrap_or_default();
        // A carriage return and a line feed together end one line.
        let ends = before.bytes().filter(|byte| *byte == b'\n').count();
        let returns = before.bytes().zip(self.source.bytes().skip(1));
        let alone = returns.filter(|pair| pair.0 == b'\r' && pair.1 != b'\n').count();
        let line = before.rsplit(['\n', '\r']).next().unwrap_or_default();
        let column = line.chars().count() + 1;
        Refusal::Syntax { line: ends + alone + 1, column, expected, found }
    }

    /// Skips spaces, line ends, commas, comments and byte order marks.
    fn skip_ignored(&mut self) {
        loop {
            self.skip_while(|next| matches!(next, b' ' | b'\t' | b'\n' | b'\r' | b','));
            if self.peek(0) == Some(b'#') {
                self.skip_while(|next| next != b'\n' && next != b'\r');
            } else if self.rest().starts_with(BOM) {
                self.at += BOM.len();
            } else {
                return;
            }
        }
    }

    /// `-? (0 | [1-9][0-9]*) (\.[0-9]+)? ([eE][+-]?[0-9]+)?`, and no name or dot after it.
    fn number(&mut self, start: usize) -> Result<Token<'a>, Refusal> {
        if self.peek(0) == Some(b'-') {
            self.at += 1;
        }
        if self.peek(0) == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        let mut float = false;
        if self.peek(0) == Some(b'.') {
            self.at += 1;
            self.digits()?;
            float = true;
        }
        if matches!(self.peek(0), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(0), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
            float = true;
        }
        match self.peek(0) {
            Some(next) if next.is_ascii_alphanumeric() || matches!(next, b'_' | b'.') => {
                Err(self.unexpected(self.at, "the end of a number"))
            }
            _ if float => Ok(Token::Float(self.since(start))),
            _ => Ok(Token::Int(self.since(start))),
        }
    }

    fn digits(&mut self) -> Result<(), Refusal> {
        if !self.peek(0).is_some_and(|next| next.is_ascii_digit()) {
            return Err(self.unexpected(self.at, "a digit"));
        }
        self.skip_while(|next| next.is_ascii_digit());
        Ok(())
    }

    fn text(&mut self, start: usize) -> Result<Token<'a>, Refusal> {
        if self.rest().starts_with(BLOCK.as_bytes()) {
            return self.block(start);
        }
        self.at += 1;
        loop {
            self.skip_while(|next| !matches!(next, b'"' | b'\\' | b'\n' | b'\r'));
            match self.peek(0) {
                Some(b'"') => {
                    let content = self.source.get(start + 1..self.at).unwrap_or_default();
                    self.at += 1;
                    return Ok(Token::Text(content));
                }
                Some(b'\\') if self.peek(1).is_some_and(|next| br#""\/bfnrtu"#.contains(&next)) => {
                    self.at += 2;
                }
                Some(b'\\') => return Err(self.unexpected(self.at, "an escape of GraphQL")),
                _ => return Err(self.unexpected(self.at, "the end of a string")),
            }
        }
    }

    /// Ends with the first three quotes without a backslash before them.
    fn block(&mut self, start: usize) -> Result<Token<'a>, Refusal> {
        self.at += BLOCK.len();
        let content = self.at;
        loop {
            self.skip_while(|next| next != b'"');
            if self.peek(0).is_none() {
                return Err(self.unexpected(start, "a block string with an end"));
            }
            let quotes = self.at;
            if !self.rest().starts_with(BLOCK.as_bytes()) {
                self.at += 1;
                continue;
            }
            self.at += BLOCK.len();
            if self.source.as_bytes().get(quotes - 1) != Some(&b'\\') {
                return Ok(Token::Text(self.source.get(content..quotes).unwrap_or_default()));
            }
        }
    }

    fn peek(&self, ahead: usize) -> Option<u8> {
        self.source.as_bytes().get(self.at + ahead).copied()
    }

    fn rest(&self) -> &'a [u8] {
        self.source.as_bytes().get(self.at..).unwrap_or_default()
    }

    fn skip_while(&mut self, wanted: impl Fn(u8) -> bool) {
        let rest = self.rest();
        self.at += rest.iter().position(|next| !wanted(*next)).unwrap_or(rest.len());
    }

    fn since(&self, start: usize) -> &'a str {
        self.source.get(start..self.at).unwrap_or_default()
    }
}
