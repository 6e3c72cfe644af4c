//! Compares `Buffer`, `Fields` and `Scan` with models that are too simple to be wrong.

use std::task::Poll;

use proptest::prelude::*;

use crate::http1::Scan;
use crate::wire::{Buffer, Fields, Known, KnownSet, PLAIN_BYTES};

/// An operation on a buffer.
#[derive(Clone, Debug)]
enum Op {
    Push(usize),
    /// Reads up to this many bytes into the buffer, and how many it may hold.
    Fill(usize, usize),
    FillLarge(usize),
    Consume(usize),
    Release,
}

fn op() -> impl Strategy<Value = Op> {
    let size = || {
        prop_oneof![
            0..40_usize,
            0..2000_usize,
            (PLAIN_BYTES - 2)..(PLAIN_BYTES + 3),
            0..100_000_usize
        ]
    };
    prop_oneof![
        size().prop_map(Op::Push),
        (size(), size()).prop_map(|(bytes, most)| Op::Fill(bytes, most)),
        size().prop_map(Op::FillLarge),
        size().prop_map(Op::Consume),
        Just(Op::Consume(usize::MAX)),
        Just(Op::Release),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_buffer_is_a_queue_of_bytes(ops in proptest::collection::vec(op(), 1..40)) {
        let (mut buffer, mut model) = (Buffer::default(), Vec::new());
        let mut next = 0_u8;
        let mut piece = |bytes: usize| -> Vec<u8> { (0..bytes).map(|_| { next = next.wrapping_mul(5).wrapping_add(3); next }).collect() };
        for op in ops {
            match op {
                Op::Push(bytes) => {
                    let piece = piece(bytes);
                    buffer.push(&piece);
                    model.extend_from_slice(&piece);
                }
                Op::Fill(bytes, most) => {
                    let (mut room_bytes, mut put) = (0, Vec::new());
                    let _ = buffer.poll_fill(most, |room| {
                        room_bytes = room.len();
                        put = piece(bytes.min(room.len()));
                        room[..put.len()].copy_from_slice(&put);
                        if put.is_empty() { Poll::Pending } else { Poll::Ready(Ok(put.len())) }
                    });
                    prop_assert_eq!(room_bytes == 0, model.len() >= most, "{} bytes in it, up to {}", model.len(), most);
                    prop_assert!(room_bytes <= most.saturating_sub(model.len()));
                    model.extend_from_slice(&put);
                }
                Op::FillLarge(bytes) => {
                    let _ = buffer.poll_fill_body(|room| {
                        let piece = piece(bytes.min(room.len()));
                        room[..piece.len()].copy_from_slice(&piece);
                        model.extend_from_slice(&piece);
                        if piece.is_empty() { Poll::Pending } else { Poll::Ready(Ok(piece.len())) }
                    });
                }
                Op::Consume(bytes) => {
                    buffer.consume(bytes);
                    model.drain(..bytes.min(model.len()));
                }
                Op::Release => buffer.release_if_empty(),
            }
            prop_assert!(buffer.bytes() == model.as_slice());
            prop_assert_eq!((buffer.len(), buffer.is_empty()), (model.len(), model.is_empty()));
        }
    }

    #[test]
    fn fields_are_a_list_of_pairs(head in pairs(), ops in proptest::collection::vec(change(), 0..20)) {
        let mut model = head.clone();
        let mut fields = arrived(&head);
        for change in ops {
            let is = |name: &str, other: &str| name.eq_ignore_ascii_case(other);
            match change {
                Change::Append(name, value) => {
                    fields.append(name.as_str(), &value);
                    model.push((name, value));
                }
                Change::Set(name, value) => {
                    fields.set(name.as_str(), &value);
                    model.retain(|(other, _)| !is(&name, other));
                    model.push((name, value));
                }
                Change::Remove(name) => {
                    let had = model.iter().any(|(other, _)| is(&name, other));
                    prop_assert_eq!(fields.remove(name.as_str()), had);
                    model.retain(|(other, _)| !is(&name, other));
                }
                Change::RemoveAll => {
                    fields.remove_all(KnownSet::of(&[Known::Host, Known::Te]));
                    model.retain(|(name, _)| !is(name, "host") && !is(name, "te"));
                }
                Change::Retain(first) => {
                    fields.retain(|_, _, value| value.first() != Some(&first));
                    model.retain(|(_, value)| value.as_bytes().first() != Some(&first));
                }
                Change::Keep(text) => {
                    let span = fields.keep(text.as_bytes());
                    prop_assert_eq!(fields.kept(span), text.as_bytes());
                }
                Change::Clone => fields = fields.clone(),
            }
            agrees(&fields, &model)?;
        }
        agrees(&fields, &model)?;
    }

    #[test]
    fn a_head_is_found_by_scan_where_its_empty_line_is(text in "(\r\n|\n|\r|a|b: c|\r\n\r\n){0,12}", cuts in proptest::collection::vec(0..40_usize, 0..4)) {
        for lenient in [false, true] {
            let mut scan = Scan::default();
            let mut found = Ok(None);
            let mut ends: Vec<usize> = cuts.iter().map(|cut| (*cut).min(text.len())).chain([text.len()]).collect();
            ends.sort_unstable();
            for end in ends {
                found = scan.find(&text.as_bytes()[..end], lenient);
                if !matches!(found, Ok(None)) {
                    break;
                }
            }
            prop_assert_eq!(found.map_err(|_| ()), slow_scan(&text, lenient), "{}", lenient);
        }
    }
}

/// Scans line by line.
fn slow_scan(text: &str, lenient: bool) -> Result<Option<std::ops::Range<usize>>, ()> {
    let (mut at, mut start) = (0, None);
    for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        if !line.ends_with("\r\n") && !lenient {
            return Err(());
        }
        let is_empty = line == "\r\n" || line == "\n";
        match (start, is_empty) {
            (None, false) => start = Some(at),
            (Some(start), true) => return Ok(Some(start..at + line.len())),
            _ => {}
        }
        at += line.len();
    }
    Ok(None)
}

#[derive(Clone, Debug)]
enum Change {
    Append(String, String),
    Set(String, String),
    Remove(String),
    RemoveAll,
    /// Removes fields unless their value starts with this byte.
    Retain(u8),
    Keep(String),
    Clone,
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("Host"),
        Just("hOST"),
        Just("te"),
        Just("X-Key"),
        Just("x-kEY"),
        Just("y"),
        Just("Content-Length"),
        Just("hosts")
    ]
    .prop_map(str::to_owned)
}

fn pairs() -> impl Strategy<Value = Vec<(String, String)>> {
    proptest::collection::vec((name(), "[a-c]{0,3}"), 0..8)
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (name(), "[a-c]{0,3}").prop_map(|(name, value)| Change::Append(name, value)),
        (name(), "[a-c]{0,3}").prop_map(|(name, value)| Change::Set(name, value)),
        name().prop_map(Change::Remove),
        Just(Change::RemoveAll),
        (b'a'..=b'c').prop_map(Change::Retain),
        "[a-z/]{0,9}".prop_map(Change::Keep),
        Just(Change::Clone),
    ]
}

/// Fields as they arrive in a head.
fn arrived(pairs: &[(String, String)]) -> Fields {
    let mut text = String::new();
    let mut places = Vec::new();
    for (name, value) in pairs {
        let start = text.len();
        text.push_str(&format!("{name}:  {value} \r\n"));
        let value_at = start + name.len() + 3;
        places.push((start..start + name.len(), value_at..value_at + value.len(), text.len()));
    }
    let mut fields = Fields::of_head(text.as_bytes());
    let mut index = fields.line_index(places.len());
    places.into_iter().for_each(|(name, value, next)| index.push(name, value, next));
    fields
}

fn agrees(fields: &Fields, model: &[(String, String)]) -> Result<(), TestCaseError> {
    let all: Vec<_> = fields.iter().collect();
    prop_assert_eq!(
        &all,
        &model.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect::<Vec<_>>()
    );
    prop_assert_eq!(fields.is_empty(), model.is_empty());
    for name in ["host", "TE", "x-Key", "Y", "content-length", "hosts", "none", "date"] {
        let values: Vec<_> = model
            .iter()
            .filter(|(other, _)| other.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_bytes())
            .collect();
        prop_assert_eq!(fields.get_all(name).collect::<Vec<_>>(), values.clone());
        prop_assert_eq!(
            fields.get_all(name).rev().collect::<Vec<_>>(),
            values.iter().rev().copied().collect::<Vec<_>>()
        );
        prop_assert_eq!(fields.get(name), values.first().copied());
        prop_assert_eq!(fields.has(name), !values.is_empty());
        let known = Known::of(name.as_bytes());
        prop_assert!(known == Known::Other || fields.present().has(known) != values.is_empty());
    }
    // They are the same after they are written and parsed again.
    let mut out = Vec::new();
    fields.write(&mut out);
    let text = String::from_utf8(out).unwrap();
    let read: Vec<_> = text
        .split_terminator("\r\n")
        .map(|line| {
            line.split_once(':')
                .map(|(name, value)| (name.as_bytes(), value.trim().as_bytes()))
                .unwrap()
        })
        .collect();
    prop_assert_eq!(all, read);
    prop_assert!(text.is_empty() || text.ends_with("\r\n"));
    Ok(())
}
