//! Redis' wire format: writes commands, and finds where a reply ends. redis-rs parses the replies.
//!
//! <https://redis.io/docs/latest/develop/reference/protocol-spec/>

use ::redis::{RedisError, Value};

/// Maximum size of one reply, in bytes.
const REPLY_BYTES_MAX: usize = 64 << 20;

/// What was received is not a reply, or one that is too large.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the reply is not valid RESP3, or larger than 64 MiB")]
pub(super) struct MalformedReply;

/// Begins a command of this many words.
pub(super) fn begin(out: &mut Vec<u8>, words: usize) {
    number_line(out, b'*', words);
}

/// Adds a word to a command.
pub(super) fn word(out: &mut Vec<u8>, word: &[u8]) {
    word_of(out, word.len(), |out| out.extend_from_slice(word));
}

/// Adds a word of `bytes` bytes, which `write` writes.
pub(super) fn word_of(out: &mut Vec<u8>, bytes: usize, write: impl FnOnce(&mut Vec<u8>)) {
    number_line(out, b'$', bytes);
    write(out);
    out.extend_from_slice(b"\r\n");
}

fn number_line(out: &mut Vec<u8>, kind: u8, number: usize) {
    out.push(kind);
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Finds the ends of replies in bytes that arrive in pieces. What was scanned before is not scanned
/// again.
#[derive(Debug)]
pub(super) struct ReplyScan {
    at: usize,
    /// Values that the reply still lacks, those in its arrays and maps included.
    values: usize,
}

impl Default for ReplyScan {
    fn default() -> Self {
        Self { at: 0, values: 1 }
    }
}

impl ReplyScan {
    /// The length of the reply at the start of `input`, if all of it is there. The next call then
    /// expects another reply, at the start of its own input.
    pub(super) fn end(&mut self, input: &[u8]) -> Result<Option<usize>, MalformedReply> {
        while self.values > 0 {
            let Some(rest) = input.get(self.at..) else { return Ok(None) };
            let Some(line_end) = memchr::memchr(b'\n', rest) else {
                return if input.len() > REPLY_BYTES_MAX { Err(MalformedReply) } else { Ok(None) };
            };
            let (Some(kind), Some(line)) = (rest.first(), rest.get(1..line_end)) else {
                return Err(MalformedReply);
            };
            let mut next = self.at + line_end + 1;
            let mut inside = 0;
            match kind {
                b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => {}
                b'$' | b'=' | b'!' => {
                    if let Some(bytes) = length(line)? {
                        next += bytes + 2;
                    }
                }
                b'*' | b'~' | b'>' => inside = length(line)?.unwrap_or(0),
                b'%' => inside = 2 * length(line)?.unwrap_or(0),
                // Attributes come before the value that they describe.
                b'|' => inside = 2 * length(line)?.unwrap_or(0) + 1,
                _ => return Err(MalformedReply),
            }
            if next > REPLY_BYTES_MAX {
                return Err(MalformedReply);
            }
            // The value's bytes may not be there yet: its line is scanned again then.
            if next > input.len() {
                return Ok(None);
            }
            self.values = self.values - 1 + inside;
            self.at = next;
        }
        Ok(Some(std::mem::take(self).at))
    }
}

/// The number in a line that ends with a carriage return; `None` if it is -1, which stands for nil.
fn length(line: &[u8]) -> Result<Option<usize>, MalformedReply> {
    let digits = line.strip_suffix(b"\r").ok_or(MalformedReply)?;
    let number: i64 =
        str::from_utf8(digits).ok().and_then(|d| d.parse().ok()).ok_or(MalformedReply)?;
    match usize::try_from(number) {
        Ok(number) if number <= REPLY_BYTES_MAX => Ok(Some(number)),
        Ok(_) => Err(MalformedReply),
        Err(_) => Ok(None),
    }
}

/// Parses one whole reply.
pub(super) fn parse(reply: &[u8]) -> Result<Value, RedisError> {
    // The usual reply to a script, without redis-rs' parser.
    if reply.first() == Some(&b'$')
        && let Some(line_end) = memchr::memchr(b'\n', reply)
        && let Some(bytes) = reply.get(line_end + 1..reply.len().saturating_sub(2))
    {
        // A nil has no bytes, nor a second line.
        if line_end + 1 < reply.len() {
            return Ok(Value::BulkString(bytes.to_vec()));
        }
    }
    ::redis::parse_redis_value(reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLIES: [&str; 12] = [
        "+OK\r\n",
        "-MOVED 7 127.0.0.1:7001\r\n",
        ":7\r\n",
        "$5\r\nhello\r\n",
        "$5\r\na\r\nb\n\r\n",
        "$0\r\n\r\n",
        "$-1\r\n",
        "_\r\n",
        "*2\r\n$1\r\na\r\n*2\r\n:1\r\n%1\r\n+k\r\n#t\r\n",
        "*0\r\n",
        "|1\r\n+ttl\r\n:5\r\n*1\r\n,1.5\r\n",
        "=8\r\ntxt:some\r\n",
    ];

    #[test]
    fn a_command_is_an_array_of_words() {
        let mut out = Vec::new();
        begin(&mut out, 2);
        word(&mut out, b"GET");
        word_of(&mut out, 2, |out| out.extend_from_slice(b"\r\n"));
        assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$2\r\n\r\n\r\n");
    }

    #[test]
    fn a_reply_ends_where_it_ends_however_it_arrives() {
        let all = REPLIES.concat();
        for piece in 1..all.len() {
            let (mut scan, mut input, mut found) = (ReplyScan::default(), Vec::new(), Vec::new());
            for bytes in all.as_bytes().chunks(piece) {
                input.extend_from_slice(bytes);
                while let Some(end) = scan.end(&input).unwrap() {
                    found.push(String::from_utf8(input.drain(..end).collect()).unwrap());
                }
            }
            assert_eq!(found, REPLIES, "in pieces of {piece}");
        }
    }

    #[test]
    fn replies_are_parsed_as_redis_rs_parses_them() {
        for reply in REPLIES {
            let expected = ::redis::parse_redis_value(reply.as_bytes()).unwrap();
            assert_eq!(parse(reply.as_bytes()).unwrap(), expected, "{reply:?}");
        }
    }

    #[test]
    fn bytes_that_are_not_a_reply_are_refused() {
        for wrong in ["HTTP/1.1 400\r\n", "\r\n", "$x\r\n", "$5\n", "$99999999999\r\n", "*1.5\r\n"]
        {
            assert_eq!(
                ReplyScan::default().end(wrong.as_bytes()),
                Err(MalformedReply),
                "{wrong:?}"
            );
        }
        let endless = vec![b'+'; REPLY_BYTES_MAX + 1];
        assert_eq!(ReplyScan::default().end(&endless), Err(MalformedReply));
    }
}
