//! Replies' usage, read while they stream.

use std::io::Write as _;

use proptest::prelude::*;
use serde_json::Value;

use super::*;

const EVENTS: &str = "text/event-stream";
const ALL: [Gather; 5] = [Gather::Last, Gather::Max, Gather::Sum, Gather::Bytes, Gather::Count];

/// What a meter should read of these documents, found by parsing each as a whole.
fn expected(documents: &[Value], text: &str, gather: Gather) -> Option<u64> {
    let tokens = pointer(text).tokens().to_vec();
    let values = documents.iter().flat_map(|document| found(document, &tokens));
    let number = |value: &Value| {
        let whole = value.as_u64().map(|whole| whole.min(1 << 52));
        let float = || value.as_f64().filter(|it| *it >= 0.0);
        whole.or_else(|| float().map(|it| it.ceil().min((1_u64 << 52) as f64) as u64))
    };
    let mut numbers = values.clone().filter_map(number);
    let sum = |all: Vec<u64>| {
        let total = all.iter().fold(0_u64, |total, value| total.saturating_add(*value));
        (!all.is_empty()).then_some(total.min(1 << 52))
    };
    match gather {
        Gather::Last => numbers.next_back(),
        Gather::Max => numbers.max(),
        Gather::Sum => sum(numbers.collect()),
        Gather::Bytes => sum(values
            .filter_map(|value| match value {
                Value::String(text) => Some(text.len() as u64),
                Value::Array(_) | Value::Object(_) => Some(value.to_string().len() as u64),
                _ => None,
            })
            .collect()),
        Gather::Count => sum(values
            .filter(|value| !matches!(value, Value::Null) && *value != "")
            .map(|_| 1)
            .collect()),
    }
}

/// How events are written.
#[derive(Clone, Debug)]
struct Style {
    end: &'static str,
    space: &'static str,
    /// A comment and other fields in front of each event.
    noise: bool,
    /// Data in several lines.
    lines: bool,
    mark: bool,
    /// Nothing after the last event's data.
    cut: bool,
}

fn style() -> impl Strategy<Value = Style> {
    let end = prop::sample::select(vec!["\n", "\r\n", "\r"]);
    let space = prop::sample::select(vec![" ", ""]);
    (end, space, any::<[bool; 4]>()).prop_map(|(end, space, [noise, lines, mark, cut])| Style {
        end,
        space,
        noise,
        lines,
        mark,
        cut,
    })
}

fn events(documents: &[Value], style: &Style) -> String {
    let Style { end, space, .. } = style;
    let mut out = String::from(if style.mark { "\u{feff}" } else { "" });
    for (index, document) in documents.iter().enumerate() {
        if style.noise {
            out += &format!(
                ": ping{end}{end}id: {index}{end}event: data{end}: data: {{}}{end}dat: 1{end}database: 2{end}retry{end}"
            );
        }
        let text =
            if style.lines { escaped(document).replace('\r', "") } else { document.to_string() };
        for line in text.split('\n') {
            out += &format!("data:{space}{line}{end}");
        }
        if !(style.cut && index + 1 == documents.len()) {
            out += end;
        }
    }
    if !style.cut {
        out += &format!("data:{space}[DONE]{end}{end}");
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_stream_in_any_pieces_is_read_like_its_whole_events(
        documents in prop::collection::vec(document(), 0..6),
        texts in pointers(),
        style in style(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
        each_byte: bool,
    ) {
        let list: Vec<(&str, Gather)> = texts
            .iter()
            .flat_map(|text| ALL.map(|gather| (text.as_str(), gather)))
            // Arrays and objects are as long as they are written.
            .filter(|(_, gather)| !style.lines || *gather != Gather::Bytes)
            .collect();
        let stream = events(&documents, &style);
        let split: Vec<&[u8]> = if each_byte {
            stream.as_bytes().chunks(1).collect()
        } else {
            pieces(stream.as_bytes(), &cuts)
        };
        let values = read(&meters(&list), EVENTS, "", split);
        for ((text, gather), value) in list.into_iter().zip(values) {
            prop_assert_eq!(value, expected(&documents, text, gather), "{} {:?} {:?}", text, gather, stream);
        }
    }

    /// The events of a language model differ in this way.
    #[test]
    fn events_that_differ_in_their_texts_are_read_like_any_others(
        base in document(),
        fills in prop::collection::vec(prop_oneof![3 => "[a-z \"]{0,3}", 1 => any::<String>()], 1..12),
        texts in pointers(),
        style in style(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..3),
        every: bool,
    ) {
        let documents: Vec<Value> = fills.iter().map(|fill| filled(&base, fill, every)).collect();
        let list: Vec<(&str, Gather)> = texts
            .iter()
            .flat_map(|text| ALL.map(|gather| (text.as_str(), gather)))
            .filter(|(_, gather)| !style.lines || *gather != Gather::Bytes)
            .collect();
        let stream = events(&documents, &style);
        let values = read(&meters(&list), EVENTS, "", pieces(stream.as_bytes(), &cuts));
        for ((text, gather), value) in list.into_iter().zip(values) {
            prop_assert_eq!(value, expected(&documents, text, gather), "{} {:?} {:?}", text, gather, stream);
        }
    }

    #[test]
    fn a_document_and_lines_in_any_pieces_are_read_like_whole_ones(
        documents in prop::collection::vec(document(), 1..4),
        texts in pointers(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let list: Vec<(&str, Gather)> =
            texts.iter().flat_map(|text| ALL.map(|gather| (text.as_str(), gather))).collect();
        let lines: String = documents.iter().map(|document| format!("{document}\n")).collect();
        let one = documents[0].to_string();
        for (content_type, body, documents) in [
            ("application/x-ndjson", lines.trim_end(), documents.as_slice()),
            ("application/json; charset=utf-8", one.as_str(), &documents[..1]),
        ] {
            let values = read(&meters(&list), content_type, "", pieces(body.as_bytes(), &cuts));
            for ((text, gather), value) in list.iter().zip(values) {
                prop_assert_eq!(value, expected(documents, text, *gather), "{} {:?} {}", text, gather, body);
            }
        }
    }

    #[test]
    fn a_compressed_stream_is_read_like_a_plain_one(
        counts in prop::collection::vec(0_u64..1_000_000, 1..200),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let documents: Vec<Value> =
            counts.iter().map(|count| serde_json::json!({"usage": {"total": count}})).collect();
        let style = Style { end: "\n", space: " ", noise: false, lines: false, mark: false, cut: false };
        let plain = events(&documents, &style).into_bytes();
        let list = [("/usage/total", Gather::Sum), ("/usage/total", Gather::Last)];
        for (coding, bytes) in [
            ("", plain.clone()),
            ("identity", plain.clone()),
            ("gzip", gzip(&plain)),
            ("X-GZIP", gzip(&plain)),
            ("deflate", deflate(&plain)),
            ("zstd", zstd::encode_all(plain.as_slice(), 1).unwrap()),
            ("br", brotli(&plain)),
        ] {
            let values = read(&meters(&list), EVENTS, coding, pieces(&bytes, &cuts));
            prop_assert_eq!(values, [Some(counts.iter().sum()), counts.last().copied()], "{}", coding);
        }
    }
}

/// A document with other texts: all of them, or those of members called `a`.
fn filled(document: &Value, fill: &str, every: bool) -> Value {
    match document {
        Value::String(_) if every => fill.into(),
        Value::Array(items) => items.iter().map(|item| filled(item, fill, every)).collect(),
        Value::Object(members) => members
            .iter()
            .map(|(name, value)| match value {
                Value::String(_) if name == "a" => (name.clone(), fill.into()),
                other => (name.clone(), filled(other, fill, every)),
            })
            .collect(),
        other => other.clone(),
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn deflate(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Encodes as brotli that is stored and not compressed (RFC 7932, 9.2), so that no encoder is
/// needed.
fn brotli(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    // WBITS = 16 is one bit, 0. Then for each block: ISLAST 0, MNIBBLES 0 (four nibbles), MLEN - 1,
    // ISUNCOMPRESSED 1, and zeros up to the next byte.
    for (index, block) in bytes.chunks(1 << 16).enumerate() {
        let begin = if index == 0 { 1 } else { 0 };
        let length = (block.len() - 1) as u64;
        let bits = (length << 3 | 1 << 19) << begin;
        let used = begin + 20;
        out.extend_from_slice(&bits.to_le_bytes()[..usize::div_ceil(used, 8)]);
        out.extend_from_slice(block);
    }
    // ISLAST 1, ISLASTEMPTY 1.
    out.push(3);
    out
}

#[test]
fn two_lines_of_data_are_one_document() {
    let list = [("/a", Gather::Last), ("/b", Gather::Last)];
    let stream = "data: {\"a\": 1,\ndata: \"b\": 2}\n\ndata\ndata: {\"a\": 3}\n\n";
    let values = read(&meters(&list), EVENTS, "", [stream.as_bytes()]);
    assert_eq!(values, [Some(3), Some(2)]);
}

#[test]
fn other_types_and_codings_are_not_read() {
    let list = [("/a", Gather::Last)];
    let body = b"{\"a\": 1}";
    for (content_type, coding, value) in [
        ("application/json", "", Some(1)),
        ("Application/Problem+JSON ; x=y", "", Some(1)),
        ("text/html", "", None),
        ("", "", None),
        ("application/json", "lzma", None),
        ("application/json", "gzip", None),
        ("application/json", "identity, identity", Some(1)),
        ("application/json", "gzip, br", None),
    ] {
        let values = read(&meters(&list), content_type, coding, [body.as_slice()]);
        assert_eq!(values, [value], "{content_type} {coding}");
    }
}

#[test]
fn a_line_after_an_event_that_repeats_another_is_part_of_it() {
    let list = [("/a", Gather::Sum), ("/b", Gather::Count), ("/b", Gather::Bytes)];
    let event = "data: {\"a\":1,\"b\":\"x\"}\n";
    for (after, sum) in
        [("\n", 3), ("data: \n\n", 3), ("data: {\"a\":5}\n\n", 3), ("data:7\n\n", 3)]
    {
        let stream = format!("{event}\n{event}{after}{}\n", event.replace('x', "yy"));
        let values = read(&meters(&list), EVENTS, "", [stream.as_bytes()]);
        assert_eq!(values, [Some(sum), Some(3), Some(4)], "{stream}");
    }
}

/// A few kilobytes that contain gigabytes are given up, not decoded.
#[test]
fn content_that_is_made_to_exhaust_memory_is_given_up() {
    let list = [("/a", Gather::Last)];
    let zeros = vec![b' '; 64 << 20];
    let mut bomb = zstd::encode_all(zeros.as_slice(), 19).unwrap();
    assert!(bomb.len() < 16 << 10, "{}", bomb.len());
    bomb.extend(zstd::encode_all(b"{\"a\": 1}".as_slice(), 1).unwrap());
    let values = read(&meters(&list), "application/json", "zstd", [bomb.as_slice()]);
    assert_eq!(values, [None]);
}

/// Nothing of a document is kept, neither of a text nor of an event that never ends.
#[test]
fn memory_does_not_grow_with_what_is_read() {
    let list = meters(&[("/choices/*/text", Gather::Bytes), ("/usage", Gather::Last)]);
    let mut reading = Reading::new(&list, EVENTS.as_bytes(), "");
    reading.feed(b"data: {\"choices\": [");
    let piece = format!("{{\"text\": \"{}\"}},", "x".repeat(64 << 10));
    for _ in 0..16 << 10 {
        reading.feed(piece.as_bytes());
    }
    // A number and a name without end.
    for begin in ["{\"usage\": 1", ", {\"1"] {
        reading.feed(begin.as_bytes());
        reading.feed("1".repeat(64 << 20).as_bytes());
        reading.feed(b"\": 1}".get(usize::from(begin.starts_with('{'))..).unwrap());
    }
    assert_eq!(reading.value(0), Some(1 << 30));
    assert!(reading.held_bytes() < 1 << 10, "{}", reading.held_bytes());
}

/// A meter has the last number that was whole: more digits of one that is cut may have followed.
#[test]
fn a_number_that_is_cut_counts_for_nothing() {
    let list = [("/usage/out", Gather::Last)];
    let documents = ["{\"usage\": {\"out\": 12}}", "{\"usage\": {\"out\": 9876}}"];
    let events = documents.map(|document| format!("data: {document}\n\n")).concat();
    let lines = documents.map(|document| format!("{document}\n")).concat();
    for (content_type, body) in [
        (EVENTS, events.as_str()),
        ("application/x-ndjson", lines.as_str()),
        ("application/json", documents[1]),
    ] {
        // Where the numbers end: at the first byte after them.
        let ends: Vec<usize> = ["12}", "9876}"]
            .iter()
            .filter_map(|number| body.find(number).map(|at| at + number.len()))
            .collect();
        for cut in 0..=body.len() {
            let values = read(&meters(&list), content_type, "", [&body.as_bytes()[..cut]]);
            let whole = ends.iter().filter(|end| **end <= cut).count();
            let expected = match (whole, ends.len()) {
                (0, _) => None,
                (1, 2) => Some(12),
                _ => Some(9_876),
            };
            assert_eq!(values, [expected], "{content_type}: {}", &body[..cut]);
        }
    }
}

#[test]
fn numbers_are_whole_and_bounded() {
    let list = [("/a", Gather::Sum), ("/a", Gather::Max)];
    for (text, value) in [
        ("12", Some(12)),
        ("0", Some(0)),
        ("1.2", Some(2)),
        ("1e3", Some(1_000)),
        ("-1", None),
        ("-0", Some(0)),
        ("1e400", Some(1 << 52)),
        ("99999999999999999999", Some(1 << 52)),
        ("\"12\"", None),
        ("null", None),
        (&"1".repeat(65), None),
    ] {
        let body = format!("{{\"a\": {text}}}");
        let values = read(&meters(&list), "application/json", "", [body.as_bytes()]);
        assert_eq!(values, [value, value], "{text}");
    }
}
