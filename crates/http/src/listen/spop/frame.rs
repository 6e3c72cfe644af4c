//! How frames of SPOP are read and written: the protocol in which HAProxy's filter `spoe` asks
//! agents (HAProxy's doc/SPOE.txt, version 2.0). Pure: knows no connection and no request.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The most that a frame may have, without its length: what we accept, and offer.
pub(in crate::listen) const FRAME_BYTES_MAX: usize = 64 << 10;
/// The least that a frame must be able to have.
const FRAME_BYTES_MIN: usize = 256;
/// The length before a frame.
const LENGTH_BYTES: usize = 4;
/// The only version there is.
const VERSION: &[u8] = b"2.0";

const HAPROXY_HELLO: u8 = 1;
const HAPROXY_DISCONNECT: u8 = 2;
const NOTIFY: u8 = 3;
const AGENT_HELLO: u8 = 101;
const AGENT_DISCONNECT: u8 = 102;
const ACK: u8 = 103;
/// The frame is not continued by another one.
const FIN: u32 = 1;
/// An action that sets a variable: of three arguments, in the scope of a transaction.
const SET_VARIABLE: [u8; 3] = [1, 3, 2];

/// What ends a connection, with its number in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::listen) enum Fault {
    Normal = 0,
    TooBig = 3,
    Invalid = 4,
    NoVersion = 5,
    NoFrameSize = 6,
    Version = 8,
    FrameSize = 9,
    Fragmented = 10,
}

impl Fault {
    pub(super) fn why(self) -> &'static str {
        match self {
            Self::Normal => "the connection is not needed any more",
            Self::TooBig => "a frame of SPOP that is too large",
            Self::Invalid => "not a frame of SPOP",
            Self::NoVersion => "a greeting of SPOP without a version",
            Self::NoFrameSize => "a greeting of SPOP without a frame size",
            Self::Version => "a version of SPOP that is not 2.0",
            Self::FrameSize => "a frame size of SPOP that is too small",
            Self::Fragmented => "a fragmented frame of SPOP",
        }
    }
}

/// What HAProxy sends.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame<'a> {
    Hello(Hello),
    Notify(Notice<'a>),
    Disconnect,
}

/// What HAProxy can do, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::listen) struct Hello {
    pub(in crate::listen) frame_bytes_max: usize,
    /// It sends several questions before the first is answered, if we can take them.
    pub(in crate::listen) pipelines: bool,
    /// It only wants to know whether we are there.
    pub(in crate::listen) is_check: bool,
}

/// Which question an answer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::listen) struct Id {
    stream: u64,
    frame: u64,
}

/// A question: the arguments of its messages, by their names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Notice<'a> {
    pub(super) id: Id,
    pub(super) arguments: Vec<(&'a [u8], Value<'a>)>,
}

impl<'a> Notice<'a> {
    /// An argument, if it was given.
    pub(super) fn argument(&self, name: &str) -> Option<&Value<'a>> {
        let own = self.arguments.iter().rev().find(|(own, _)| *own == name.as_bytes());
        own.map(|(_, value)| value)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value<'a> {
    Null,
    Bool(bool),
    Number(u64),
    Address(IpAddr),
    Text(&'a [u8]),
}

/// A variable of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::listen) enum Variable {
    Number(u64),
    Text(Vec<u8>),
}

/// The first frame of what has arrived, without its length, and how long it is with it. `None`:
/// more of it must come.
pub(super) fn first(arrived: &[u8]) -> Result<Option<(&[u8], usize)>, Fault> {
    let Some((length, rest)) = arrived.split_first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let length = u32::from_be_bytes(*length) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(Fault::TooBig);
    }
    Ok(rest.get(..length).map(|frame| (frame, LENGTH_BYTES + length)))
}

/// Reads a frame without its length. `None`: one of a kind that we do not know, which is to be
/// ignored.
pub(super) fn read(frame: &[u8]) -> Result<Option<Frame<'_>>, Fault> {
    let mut rest = Rest(frame);
    let (kind, flags) = (rest.byte()?, rest.flags()?);
    let id = Id { stream: rest.number()?, frame: rest.number()? };
    if flags & FIN == 0 {
        return Err(Fault::Fragmented);
    }
    Ok(Some(match kind {
        HAPROXY_HELLO => Frame::Hello(hello(rest)?),
        HAPROXY_DISCONNECT => Frame::Disconnect,
        NOTIFY => Frame::Notify(Notice { id, arguments: messages(rest)? }),
        _ => return Ok(None),
    }))
}

fn hello(mut rest: Rest<'_>) -> Result<Hello, Fault> {
    let (mut versions, mut size, mut pipelines, mut is_check) = (None, None, false, false);
    while !rest.0.is_empty() {
        match (rest.text()?, rest.value()?) {
            (b"supported-versions", Value::Text(text)) => versions = Some(text),
            (b"max-frame-size", Value::Number(number)) => size = Some(number),
            (b"capabilities", Value::Text(text)) => {
                pipelines = listed(text).any(|own| own == b"pipelining");
            }
            (b"healthcheck", Value::Bool(is)) => is_check = is,
            _ => {}
        }
    }
    if listed(versions.ok_or(Fault::NoVersion)?).all(|own| own != VERSION) {
        return Err(Fault::Version);
    }
    let size = usize::try_from(size.ok_or(Fault::NoFrameSize)?).unwrap_or(usize::MAX);
    if size < FRAME_BYTES_MIN {
        return Err(Fault::FrameSize);
    }
    Ok(Hello { frame_bytes_max: size.min(FRAME_BYTES_MAX), pipelines, is_check })
}

fn listed(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

fn messages(mut rest: Rest<'_>) -> Result<Vec<(&[u8], Value<'_>)>, Fault> {
    let mut arguments = Vec::new();
    while !rest.0.is_empty() {
        let _name = rest.text()?;
        for _ in 0..rest.byte()? {
            arguments.push((rest.text()?, rest.value()?));
        }
    }
    Ok(arguments)
}

/// The answer to a greeting.
pub(in crate::listen) fn greeting(hello: Hello) -> Vec<u8> {
    frame(AGENT_HELLO, Id { stream: 0, frame: 0 }, |out| {
        put_text(out, b"version");
        put_value(out, &Variable::Text(VERSION.to_vec()));
        put_text(out, b"max-frame-size");
        put_value(out, &Variable::Number(hello.frame_bytes_max as u64));
        put_text(out, b"capabilities");
        let own: &[u8] = if hello.pipelines { b"pipelining" } else { b"" };
        put_value(out, &Variable::Text(own.to_vec()));
    })
}

/// The last frame of a connection.
pub(in crate::listen) fn disconnect(fault: Fault) -> Vec<u8> {
    frame(AGENT_DISCONNECT, Id { stream: 0, frame: 0 }, |out| {
        put_text(out, b"status-code");
        put_value(out, &Variable::Number(fault as u64));
        put_text(out, b"message");
        put_value(out, &Variable::Text(fault.why().into()));
    })
}

/// The answer to a question: as many of the variables, from the first on, as there is room for.
pub(in crate::listen) fn answer(
    id: Id,
    variables: &[(String, Variable)],
    bytes_max: usize,
) -> Vec<u8> {
    frame(ACK, id, |out| {
        for (name, value) in variables {
            let before = out.len();
            out.extend_from_slice(&SET_VARIABLE);
            put_text(out, name.as_bytes());
            put_value(out, value);
            if out.len() > LENGTH_BYTES + bytes_max {
                out.truncate(before);
            }
        }
    })
}

fn frame(kind: u8, id: Id, content: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = vec![0; LENGTH_BYTES];
    out.push(kind);
    out.extend_from_slice(&FIN.to_be_bytes());
    put_number(&mut out, id.stream);
    put_number(&mut out, id.frame);
    content(&mut out);
    let length = u32::try_from(out.len() - LENGTH_BYTES).unwrap_or(u32::MAX);
    if let Some(first) = out.first_chunk_mut() {
        *first = length.to_be_bytes();
    }
    out
}

/// A number takes a byte up to 239, and else four bits of it and seven of each further byte.
fn put_number(out: &mut Vec<u8>, number: u64) {
    let byte = |number: u64| (number & 0xff) as u8;
    if number < 240 {
        return out.push(byte(number));
    }
    out.push(byte(number) | 240);
    let mut rest = (number - 240) >> 4;
    while rest >= 128 {
        out.push(byte(rest) | 128);
        rest = (rest - 128) >> 7;
    }
    out.push(byte(rest));
}

fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    put_number(out, text.len() as u64);
    out.extend_from_slice(text);
}

fn put_value(out: &mut Vec<u8>, value: &Variable) {
    match value {
        Variable::Number(number) => {
            out.push(3);
            put_number(out, *number);
        }
        Variable::Text(text) => {
            out.push(8);
            put_text(out, text);
        }
    }
}

/// What is left of a frame.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn byte(&mut self) -> Result<u8, Fault> {
        let (first, rest) = self.0.split_first().ok_or(Fault::Invalid)?;
        self.0 = rest;
        Ok(*first)
    }

    fn bytes(&mut self, count: u64) -> Result<&'a [u8], Fault> {
        let count = usize::try_from(count).map_err(|_| Fault::Invalid)?;
        let (bytes, rest) = self.0.split_at_checked(count).ok_or(Fault::Invalid)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn flags(&mut self) -> Result<u32, Fault> {
        let (flags, rest) = self.0.split_first_chunk().ok_or(Fault::Invalid)?;
        self.0 = rest;
        Ok(u32::from_be_bytes(*flags))
    }

    fn number(&mut self) -> Result<u64, Fault> {
        let first = self.byte()?;
        let mut number = u64::from(first);
        if first < 240 {
            return Ok(number);
        }
        for shift in (4..64).step_by(7) {
            let byte = self.byte()?;
            let more = u64::from(byte).checked_shl(shift).ok_or(Fault::Invalid)?;
            number = number.checked_add(more).ok_or(Fault::Invalid)?;
            if byte < 128 {
                return Ok(number);
            }
        }
        Err(Fault::Invalid)
    }

    fn text(&mut self) -> Result<&'a [u8], Fault> {
        let length = self.number()?;
        self.bytes(length)
    }

    fn value(&mut self) -> Result<Value<'a>, Fault> {
        let kind = self.byte()?;
        Ok(match kind & 0x0f {
            0 => Value::Null,
            1 => Value::Bool(kind & 0x10 != 0),
            2..=5 => Value::Number(self.number()?),
            6 => {
                let bytes: [u8; 4] = self.bytes(4)?.try_into().map_err(|_| Fault::Invalid)?;
                Value::Address(Ipv4Addr::from(bytes).into())
            }
            7 => {
                let bytes: [u8; 16] = self.bytes(16)?.try_into().map_err(|_| Fault::Invalid)?;
                Value::Address(Ipv6Addr::from(bytes).into())
            }
            8 | 9 => Value::Text(self.text()?),
            _ => return Err(Fault::Invalid),
        })
    }
}

#[cfg(test)]
pub(in crate::listen) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A frame of HAProxy's, without its length.
    fn sent(kind: u8, flags: u32, content: &[u8]) -> Vec<u8> {
        sent_as(7, kind, flags, content)
    }

    fn sent_as(number: u64, kind: u8, flags: u32, content: &[u8]) -> Vec<u8> {
        let mut out = vec![kind];
        out.extend_from_slice(&flags.to_be_bytes());
        put_number(&mut out, 300);
        put_number(&mut out, number);
        out.extend_from_slice(content);
        out
    }

    /// A greeting with these members.
    pub(in crate::listen) fn greeted(members: &[(&str, Vec<u8>)]) -> Vec<u8> {
        let mut content = Vec::new();
        for (name, value) in members {
            put_text(&mut content, name.as_bytes());
            content.extend_from_slice(value);
        }
        sent(HAPROXY_HELLO, FIN, &content)
    }

    pub(in crate::listen) fn text(text: &str) -> Vec<u8> {
        let mut out = Vec::new();
        put_value(&mut out, &Variable::Text(text.into()));
        out
    }

    pub(in crate::listen) fn number(number: u64) -> Vec<u8> {
        let mut out = Vec::new();
        put_value(&mut out, &Variable::Number(number));
        out
    }

    /// The end of a connection.
    pub(in crate::listen) fn ended() -> Vec<u8> {
        sent(HAPROXY_DISCONNECT, FIN, &[])
    }

    /// A question, which has this number, with one message of these arguments.
    pub(in crate::listen) fn asked(frame: u64, arguments: &[(&str, Vec<u8>)]) -> Vec<u8> {
        let mut content = Vec::new();
        put_text(&mut content, b"decide");
        content.push(arguments.len() as u8);
        for (name, value) in arguments {
            put_text(&mut content, name.as_bytes());
            content.extend_from_slice(value);
        }
        sent_as(frame, NOTIFY, FIN, &content)
    }

    pub(in crate::listen) fn id(frame: u64) -> Id {
        Id { stream: 300, frame }
    }

    pub(in crate::listen) fn usual() -> Vec<(&'static str, Vec<u8>)> {
        vec![
            ("supported-versions", text("1.0, 2.0")),
            ("max-frame-size", number(16_380)),
            ("capabilities", text("pipelining,async")),
        ]
    }

    #[test]
    fn a_greeting_says_what_there_is() {
        let hello = Hello { frame_bytes_max: 16_380, pipelines: true, is_check: false };
        assert_eq!(read(&greeted(&usual())), Ok(Some(Frame::Hello(hello))));
        let check = greeted(&[usual(), vec![("healthcheck", vec![0x11])]].concat());
        let is_check = Hello { is_check: true, ..hello };
        assert_eq!(read(&check), Ok(Some(Frame::Hello(is_check))));
        for (without, fault) in [(0, Fault::NoVersion), (1, Fault::NoFrameSize)] {
            let mut members = usual();
            members.remove(without);
            assert_eq!(read(&greeted(&members)), Err(fault));
        }
        let one = |name, value| match read(&greeted(&[usual(), vec![(name, value)]].concat())) {
            Ok(Some(Frame::Hello(hello))) => Ok(hello),
            Ok(other) => panic!("{other:?}"),
            Err(fault) => Err(fault),
        };
        assert_eq!(one("supported-versions", text("3.0")), Err(Fault::Version));
        assert_eq!(one("max-frame-size", number(255)), Err(Fault::FrameSize));
        let large = Hello { frame_bytes_max: FRAME_BYTES_MAX, ..hello };
        assert_eq!(one("max-frame-size", number(1 << 40)), Ok(large));
    }

    #[test]
    fn a_question_has_its_arguments() {
        let v6 = [&[7][..], &[0xfe; 16]].concat();
        let frame = asked(
            7,
            &[
                ("a", vec![0]),
                ("b", vec![0x11]),
                ("c", number(70_000)),
                ("d", vec![6, 192, 0, 2, 1]),
                ("e", v6),
                ("f", text("x")),
                ("f", [&[9][..], &text("y")[1..]].concat()),
            ],
        );
        let Ok(Some(Frame::Notify(notice))) = read(&frame) else { panic!("{frame:?}") };
        assert_eq!(notice.id, id(7));
        let found = ["a", "b", "c", "d", "e", "f", "g"].map(|name| notice.argument(name).copied());
        let address = |text: &str| Value::Address(text.parse().unwrap());
        let v6 = address("fefe:fefe:fefe:fefe:fefe:fefe:fefe:fefe");
        let expected = [
            Value::Null,
            Value::Bool(true),
            Value::Number(70_000),
            address("192.0.2.1"),
            v6,
            Value::Text(b"y"),
        ];
        assert_eq!(found[..6], expected.map(Some));
        assert_eq!(found[6], None);
    }

    #[test]
    fn what_is_no_frame_is_named() {
        assert_eq!(first(&[0, 1, 0, 1]), Err(Fault::TooBig));
        assert_eq!(first(&[0, 0, 0]), Ok(None));
        assert_eq!(first(&[0, 0, 0, 2, 9]), Ok(None));
        assert_eq!(first(&[0, 0, 0, 2, 9, 8, 7]), Ok(Some((&[9, 8][..], 6))));
        assert_eq!(read(&sent(NOTIFY, 0, &[])), Err(Fault::Fragmented));
        assert_eq!(read(&sent(77, FIN, b"anything")), Ok(None));
        let whole = asked(7, &[("a", text("value"))]);
        for length in 0..whole.len() {
            // Without a message there is no argument.
            let is_cut = read(&whole[..length]).is_err();
            assert_eq!(is_cut, length != 8, "{length}");
        }
    }

    #[test]
    fn an_answer_has_as_much_as_there_is_room_for() {
        let id = id(7);
        let variables = [
            ("status".to_owned(), Variable::Number(429)),
            ("body".to_owned(), Variable::Text(vec![b'x'; 400])),
            ("h_a".to_owned(), Variable::Text(b"1".to_vec())),
        ];
        let all = answer(id, &variables, 1_000);
        let some = answer(id, &variables, 256);
        assert_eq!(some, answer(id, &[variables[0].clone(), variables[2].clone()], 1_000));
        assert!(all.len() > 400 && some.len() <= 260);
    }

    /// Bytes as HAProxy's documentation has them.
    #[test]
    fn what_is_sent_is_what_haproxy_reads() {
        for (number, bytes) in [
            (239, &[0xef][..]),
            (240, &[0xf0, 0x00]),
            (2_287, &[0xff, 0x7f]),
            (2_288, &[0xf0, 0x80, 0x00]),
        ] {
            let mut out = Vec::new();
            put_number(&mut out, number);
            assert_eq!(out, bytes, "{number}");
        }
        let hello = Hello { frame_bytes_max: 16_380, pipelines: true, is_check: false };
        let frame = b"\0\0\0\x40\x65\0\0\0\x01\0\0\
            \x07version\x08\x032.0\
            \x0emax-frame-size\x03\xfc\xf0\x06\
            \x0ccapabilities\x08\x0apipelining";
        assert_eq!(greeting(hello), frame);
        let status = [("status".to_owned(), Variable::Number(200))];
        let frame = b"\0\0\0\x14\x67\0\0\0\x01\xfc\x03\x07\x01\x03\x02\x06status\x03\xc8";
        assert_eq!(answer(id(7), &status, 1_000), frame);
    }

    proptest! {
        #[test]
        fn numbers_are_read_as_they_are_written(number: u64, bits in 0_u32..64) {
            let number = number >> bits;
            let mut out = Vec::new();
            put_number(&mut out, number);
            let mut rest = Rest(&out);
            prop_assert_eq!(rest.number(), Ok(number));
            prop_assert!(rest.0.is_empty());
        }

        #[test]
        fn nothing_that_arrives_is_more_than_refused(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = first(&bytes).map(|found| found.map(|(frame, _)| read(frame).is_ok()));
            let _ = read(&bytes);
            let _ = read(&sent(NOTIFY, FIN, &bytes));
            let _ = read(&sent(HAPROXY_HELLO, FIN, &bytes));
        }
    }
}
