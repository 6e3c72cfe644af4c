//! The frames of a WebSocket (RFC 6455, section 5.2), as far as its messages can be told apart by
//! them. Knows no connection, and reads no content.

/// The most bytes before a frame's payload: two, the length in eight, and the mask.
const HEADER_BYTES_MAX: usize = 14;
const MASK_BYTES: usize = 4;
const OPCODE: u8 = 0x0f;
/// The bit of a message's last frame.
const FINAL: u8 = 0x80;
/// The opcode of a frame that continues a message.
const CONTINUES: u8 = 0;
/// Opcodes from here on are of control frames, which may come within a message.
const FIRST_CONTROL: u8 = 8;
const CLOSE: u8 = 0x88;
const MASKED: u8 = 0x80;
const LENGTH: u8 = 0x7f;

/// Where one direction of a WebSocket is.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// The header of a frame, as far as it has come.
    header: [u8; HEADER_BYTES_MAX],
    have: usize,
    /// Bytes of a frame's payload that are still to come.
    payload: u64,
    /// It is a client's, whose frames have to be those of RFC 6455: a server that reads others in
    /// its own way might find other messages.
    is_strict: bool,
    /// A message has begun, and frames that continue it follow.
    in_message: bool,
    /// A frame is not one of RFC 6455.
    is_broken: bool,
}

impl Frames {
    /// Those of a client, read strictly.
    pub(super) fn of_client() -> Self {
        Self { is_strict: true, ..Self::default() }
    }

    /// Whether it has read a frame that a client must not send. No more are read.
    pub(super) fn are_broken(&self) -> bool {
        self.is_broken
    }

    /// Reads on in `data`, to the first frame that `stop` says true of. It is given a frame's first
    /// byte. Returns how many bytes were read; of the frame at which it stops, none.
    pub(super) fn read(&mut self, data: &[u8], mut stop: impl FnMut(u8) -> bool) -> usize {
        let mut at = 0;
        while let Some(rest @ [next, ..]) = data.get(at..) {
            if self.is_broken {
                break;
            }
            if self.payload > 0 {
                let skipped = rest.len().min(usize::try_from(self.payload).unwrap_or(usize::MAX));
                self.payload -= skipped as u64;
                at += skipped;
                continue;
            }
            if self.have == 0 {
                if self.is_strict && !self.may_begin(*next) {
                    self.is_broken = true;
                    break;
                }
                if stop(*next) {
                    break;
                }
                if begins_message(*next) || *next & OPCODE == CONTINUES {
                    self.in_message = *next & FINAL == 0;
                }
            }
            if let Some(free) = self.header.get_mut(self.have) {
                *free = *next;
            }
            self.have += 1;
            at += 1;
            let header = self.header.get(..self.have).unwrap_or_default();
            if let Some(payload) = payload_of(header) {
                self.is_broken = self.is_strict && !is_whole(header, payload);
                (self.have, self.payload) = (0, payload);
            }
        }
        at
    }

    /// Whether a new frame comes next.
    pub(super) fn is_between(&self) -> bool {
        self.have == 0 && self.payload == 0
    }

    /// Whether a frame may begin with this byte here (section 5.4, 5.5). No extension that is
    /// registered has further opcodes.
    fn may_begin(&self, first: u8) -> bool {
        match first & OPCODE {
            CONTINUES => self.in_message,
            1 | 2 => !self.in_message,
            8..=10 => first & FINAL != 0,
            _ => false,
        }
    }
}

/// Whether a client's header says a length in the one way that there is, and has a mask.
fn is_whole(header: &[u8], payload: u64) -> bool {
    let [first, second, ..] = header else { return false };
    let least = match second & LENGTH {
        126 => 126,
        127 => 1 << 16,
        _ => 0,
    };
    let most = if *first & OPCODE >= FIRST_CONTROL { 125 } else { i64::MAX as u64 };
    second & MASKED != 0 && (least..=most).contains(&payload)
}

/// The length of a frame's payload, once its header is whole.
fn payload_of(header: &[u8]) -> Option<u64> {
    let [_, second, rest @ ..] = header else { return None };
    let extended = match second & LENGTH {
        126 => 2,
        127 => 8,
        _ => 0,
    };
    let mask = if second & MASKED == 0 { 0 } else { MASK_BYTES };
    if rest.len() < extended + mask {
        return None;
    }
    Some(match rest.get(..extended) {
        Some([]) | None => u64::from(second & LENGTH),
        Some(bytes) => bytes.iter().fold(0, |length, byte| (length << 8) | u64::from(*byte)),
    })
}

/// Whether a frame that begins with this byte begins a message. A frame that continues one does
/// not, nor does a ping, a pong or a close.
pub(super) fn begins_message(first: u8) -> bool {
    (1..FIRST_CONTROL).contains(&(first & OPCODE))
}

/// A close frame. A client's frames are masked.
pub(super) fn close(code: u16, reason: &str, by_client: bool) -> Vec<u8> {
    let payload = [&code.to_be_bytes()[..], reason.as_bytes()].concat();
    // A control frame has 125 bytes at most.
    let length = u8::try_from(payload.len()).unwrap_or(LENGTH);
    if !by_client {
        return [&[CLOSE, length][..], &payload].concat();
    }
    let mask = fastrand::u32(..).to_be_bytes();
    let masked = payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask);
    [&[CLOSE, MASKED | length][..], &mask].concat().into_iter().chain(masked).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A frame with a payload that looks like the beginnings of frames.
    fn frame(first: u8, length: usize, masked: bool) -> Vec<u8> {
        let mask = if masked { MASKED } else { 0 };
        let mut frame = vec![first];
        match length {
            0..126 => frame.push(mask | u8::try_from(length).unwrap()),
            126..65_536 => {
                frame.push(mask | 126);
                frame.extend(u16::try_from(length).unwrap().to_be_bytes());
            }
            _ => {
                frame.push(mask | 127);
                frame.extend((length as u64).to_be_bytes());
            }
        }
        frame.extend(vec![0x81; if masked { 4 } else { 0 } + length]);
        frame
    }

    proptest! {
        /// However its bytes arrive, each frame is found once, where it begins.
        #[test]
        fn frames_are_found_in_pieces_of_any_size(
            frames in prop::collection::vec(
                (any::<u8>(), prop_oneof![0..200usize, 65_530..65_540usize], any::<bool>()), 0..8),
            piece in 1..20_000usize,
        ) {
            let all: Vec<Vec<u8>> =
                frames.iter().map(|&(first, length, masked)| frame(first, length, masked)).collect();
            let mut reader = Frames::default();
            let mut found = Vec::new();
            for piece in all.concat().chunks(piece) {
                let read = reader.read(piece, |first| { found.push(first); false });
                prop_assert_eq!(read, piece.len());
            }
            prop_assert!(reader.is_between());
            prop_assert_eq!(found, frames.iter().map(|frame| frame.0).collect::<Vec<_>>());
        }

        /// It stops before a frame, and goes on with it.
        #[test]
        fn it_stops_before_the_frame_that_it_is_to_stop_at(lengths in prop::collection::vec(0..300usize, 1..6)) {
            let all: Vec<u8> = lengths.iter().flat_map(|length| frame(0x82, *length, true)).collect();
            let (mut reader, mut from) = (Frames::default(), 0);
            for length in lengths {
                prop_assert_eq!(reader.read(&all[from..], |_| true), 0);
                let mut begun = false;
                let read = reader.read(&all[from..], |_| std::mem::replace(&mut begun, true));
                prop_assert_eq!(read, frame(0x82, length, true).len());
                prop_assert!(reader.is_between());
                from += read;
            }
            prop_assert_eq!(from, all.len());
        }
    }

    #[test]
    fn a_clients_frames_are_those_of_the_rfc() {
        let reads = |frames: &[&[u8]]| {
            let mut reader = Frames::of_client();
            let all = frames.concat();
            (reader.read(&all, |_| false) == all.len() && !reader.are_broken(), reader.is_between())
        };
        let text = frame(0x81, 3, true);
        for fits in [
            &[&text[..], &text][..],
            &[
                &frame(0x01, 0, true),
                &frame(0x89, 125, true),
                &frame(0x00, 1, true),
                &frame(0x80, 2, true),
                &text,
            ],
            &[&frame(0xc2, 126, true), &frame(0x82, 65_536, true)],
        ] {
            assert_eq!(reads(fits), (true, true), "{fits:x?}");
        }
        for wrong in [
            // Without a mask, and with a length in more bytes than it needs.
            &[&frame(0x81, 3, false)[..]][..],
            &[&[0x81, 0x80 | 126, 0, 3, 0, 0, 0, 0, 1, 2, 3]],
            &[&[0x81, 0x80 | 127, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0]],
            &[&[0x82, 0x80 | 127, 0x80, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]],
            // Nothing to continue, and a message within another.
            &[&frame(0x80, 1, true)],
            &[&frame(0x00, 1, true)],
            &[&text, &frame(0x80, 1, true)],
            &[&frame(0x01, 1, true), &text],
            // Control frames in pieces, or too long, and opcodes of nobody.
            &[&frame(0x09, 1, true)],
            &[&frame(0x89, 126, true)],
            &[&frame(0x83, 1, true)],
            &[&frame(0x8b, 1, true)],
        ] {
            assert!(!reads(wrong).0, "{wrong:x?}");
        }
    }

    #[test]
    fn messages_begin_with_data_frames_that_continue_none() {
        for (first, begins) in [
            (0x81, true),
            (0x02, true),
            (0xc1, true),
            (0x83, true),
            (0x80, false),
            (0x00, false),
            (0x88, false),
            (0x89, false),
            (0x8a, false),
        ] {
            assert_eq!(begins_message(first), begins, "{first:x}");
        }
    }

    #[test]
    fn a_close_frame_says_why_and_a_clients_is_masked() {
        assert_eq!(close(1008, "no", false), b"\x88\x04\x03\xf0no");
        let masked = close(1008, "no", true);
        let (header, payload) = masked.split_at(6);
        assert_eq!(header[..2], [0x88, 0x84]);
        let plain: Vec<u8> = payload
            .iter()
            .zip(header[2..].iter().cycle())
            .map(|(byte, mask)| byte ^ mask)
            .collect();
        assert_eq!(plain, b"\x03\xf0no");
    }
}
