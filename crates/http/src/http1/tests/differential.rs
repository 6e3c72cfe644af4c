//! Random streams of requests and replies, compared with hyper: whole, cut, and written again. The
//! seeds are fixed; a failure prints the seed and the bytes.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use http::Method;

use super::cases;
use super::check;
use super::drive::Stop;
use super::send::{Random, round_trip};

/// Time limit of one test in a debug build.
const TIME: Duration = Duration::from_millis(2500);
/// Maximum streams of one test.
const STREAMS_MAX: u64 = 20_000;

/// Runs `check` on the stream that each seed gives.
fn each(stream: impl Fn(&mut Random) -> Vec<u8>, mut check: impl FnMut(&[u8])) {
    let begun = Instant::now();
    for seed in 0..STREAMS_MAX {
        let bytes = stream(&mut Random(seed));
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(&bytes))) {
            eprintln!("seed {seed}: b\"{}\"", bytes.escape_ascii());
            resume_unwind(panic);
        }
        if begun.elapsed() > TIME {
            assert!(seed > 100, "too slow to find anything: {seed}");
            return;
        }
    }
}

#[test]
fn requests_are_read_as_hyper_reads_them() {
    let (mut taken, mut refused, mut broken) = (0, 0, 0);
    each(requests, |bytes| {
        let answer = check::requests(bytes);
        taken += answer.ends.len();
        refused += usize::from(matches!(answer.stop, Stop::HeadRejected(_)));
        broken += usize::from(answer.stop == Stop::Broken);
    });
    // Otherwise too few streams are valid to be of use.
    assert!(
        taken > 50 && refused > 10 && broken > 5,
        "{taken} taken, {refused} refused, {broken} broken"
    );
}

#[test]
fn replies_are_read_as_hyper_reads_them() {
    let mut taken = 0;
    each(reply, |bytes| {
        for method in [Method::GET, Method::HEAD] {
            taken += check::reply(bytes, &method).ends.len();
        }
    });
    assert!(taken > 50, "{taken} taken");
}

#[test]
fn chunks_are_read_as_the_naive_reader_reads_them() {
    each(|random| spoil(chunks(random), random), check::chunks);
}

#[test]
fn an_accepted_request_is_written_as_one_message() {
    each(|random| if random.below(2) == 0 { requests(random) } else { reply(random) }, round_trip);
}

#[test]
fn every_case_is_read_as_hyper_reads_it() {
    for (name, bytes, _) in cases::requests() {
        eprintln!("{name}");
        check::requests(&bytes);
    }
    for (name, bytes, _) in cases::replies() {
        eprintln!("{name}");
        check::reply(bytes, &Method::GET);
        check::reply(bytes, &Method::HEAD);
    }
}

/// Inputs that the fuzz targets found.
#[test]
fn the_corpus_holds() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let check = |target: &str, check: &dyn Fn(&[u8])| {
        let mut files: Vec<_> = std::fs::read_dir(corpus.join(target))
            .unwrap()
            .map(|file| file.unwrap().path())
            .collect();
        files.sort();
        assert!(!files.is_empty(), "{target} has no corpus");
        for file in files {
            eprintln!("{}", file.display());
            check(&std::fs::read(file).unwrap());
        }
    };
    check("requests", &|bytes| drop(check::requests(bytes)));
    check("replies", &|bytes| {
        [Method::GET, Method::HEAD].iter().for_each(|method| drop(check::reply(bytes, method)))
    });
    check("chunks", &check::chunks);
    check("round_trip", &round_trip);
}

fn one<'a>(of: &[&'a str], random: &mut Random) -> &'a str {
    of[random.below(of.len())]
}

/// One to four requests in a row.
fn requests(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..random.below(4) + 1 {
        bytes.extend(request(random));
    }
    spoil(bytes, random)
}

fn request(random: &mut Random) -> Vec<u8> {
    let method = one(&["GET", "POST", "PUT", "HEAD", "OPTIONS", "get", "CONNECT", "X-Y"], random);
    let target = one(
        &[
            "/",
            "/a?b=c#d",
            "/\u{e4}?\"",
            "http://a/b",
            "http://a:80?b",
            "https://[::1]",
            "*",
            "a:1",
            "/a b",
            "/%2e/<",
        ],
        random,
    );
    let version = one(&["1.1", "1.1", "1.1", "1.1", "1.0", "1.2"], random);
    let mut head = format!("{method} {target} HTTP/{version}\r\n");
    fields(&mut head, random);
    let framing = random.below(5);
    let mut body = Vec::new();
    match framing {
        0 | 1 => body = chunks(random),
        2 | 3 => body = b"hello, 5\r\n\r\n"[..random.below(12)].to_vec(),
        _ => {}
    }
    match framing {
        0 => head.push_str("Transfer-Encoding: chunked\r\n"),
        1 => head.push_str(one(
            &[
                "transfer-encoding:Chunked\r\n",
                "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            ],
            random,
        )),
        2 => head.push_str(&format!("Content-Length: {}\r\n", body.len())),
        3 => {
            head.push_str(&format!("content-length:{0:03}\r\nContent-Length: {0}\r\n", body.len()))
        }
        _ => {}
    }
    [head.as_bytes(), b"\r\n", &body].concat()
}

fn fields(head: &mut String, random: &mut Random) {
    const LINES: [&str; 18] = [
        "Host: a",
        "Host: b",
        "X-Key:",
        "x-key: \t a,b \t",
        "X-Key: \u{e4}",
        "Connection: close",
        "connection: Keep-Alive",
        "Connection: x, upgrade",
        "Upgrade: y",
        "Expect: 100-continue",
        "Content-Length: 5",
        "Content-Length: 0",
        "Transfer-Encoding: chunked",
        "Transfer-Encoding: gzip",
        "Te: trailers",
        "Trailer: X",
        "Date: now",
        "Cookie: a=b",
    ];
    for _ in 0..random.below(5) {
        head.push_str(LINES[random.below(LINES.len())]);
        head.push_str("\r\n");
    }
}

fn chunks(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..random.below(4) {
        let content = &b"hello\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n"[..random.below(30) + 1];
        let extension = one(&["", "", "", ";a=b", " ", ";", "\t;\"x\""], random);
        let size = match random.below(3) {
            0 => format!("{:X}", content.len()),
            1 => format!("{:04x}", content.len()),
            _ => format!("{:x}", content.len()),
        };
        bytes.extend([size.as_bytes(), extension.as_bytes(), b"\r\n", content, b"\r\n"].concat());
    }
    bytes.extend_from_slice(
        one(
            &[
                "0\r\n\r\n",
                "0\r\n\r\n",
                "00;a\r\n\r\n",
                "0\r\nX: y\r\nx:z\r\n\r\n",
                "0\r\nContent-Length: 3\r\n\r\n",
                "0\r\n",
            ],
            random,
        )
        .as_bytes(),
    );
    bytes
}

fn reply(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    if random.below(4) == 0 {
        bytes.extend_from_slice(
            one(&["HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 103 A\r\nLink: </a>\r\n\r\n"], random)
                .as_bytes(),
        );
    }
    let status = one(
        &[
            "200 OK",
            "200",
            "204 No Content",
            "304 Not Modified",
            "404 ",
            "500 \u{e4}",
            "101 Switching",
            "599 Own\treason",
        ],
        random,
    );
    let mut head = format!("HTTP/1.{} {status}\r\n", random.below(2));
    fields(&mut head, random);
    let body = match random.below(4) {
        0 => {
            head.push_str("Transfer-Encoding: chunked\r\n");
            chunks(random)
        }
        1 => {
            head.push_str(one(
                &[
                    "Content-Length: 5\r\n",
                    "Content-Length: 5, 5\r\n",
                    "Content-Length: 5\r\nContent-Length: 5\r\n",
                ],
                random,
            ));
            b"hello".to_vec()
        }
        2 => b"until its close".to_vec(),
        _ => Vec::new(),
    };
    if random.below(8) == 0 {
        head = head.replace("\r\n", "\n");
    }
    bytes.extend(
        [head.as_bytes(), if head.contains('\r') { b"\r\n" } else { b"\n" }, &body].concat(),
    );
    spoil(bytes, random)
}

/// Leaves most streams as they are and damages others in a few sensitive places.
fn spoil(mut bytes: Vec<u8>, random: &mut Random) -> Vec<u8> {
    const PARTS: [&str; 24] = [
        "\r",
        "\n",
        "\r\n",
        "\r\n ",
        "\r\n\t",
        "\0",
        " ",
        "\t",
        ":",
        ",",
        ";",
        "0",
        "5",
        "f",
        "+",
        "0x",
        "\u{7f}",
        "\u{1}",
        "\u{85}",
        "chunked",
        "\r\n\r\n",
        "Content-Length: 5\r\n",
        "Transfer-Encoding: chunked\r\n",
        "0\r\n\r\n",
    ];
    if random.below(3) == 0 {
        return bytes;
    }
    for _ in 0..random.below(3) + 1 {
        let at = place(&bytes, random);
        let to = (at + random.below(3)).min(bytes.len());
        match random.below(5) {
            0 => drop(bytes.splice(at..to, PARTS[random.below(PARTS.len())].bytes())),
            1 => drop(bytes.splice(at..at, PARTS[random.below(PARTS.len())].bytes())),
            2 => drop(bytes.drain(at..to)),
            3 => bytes.truncate(at),
            _ => {
                let line = bytes[at..]
                    .iter()
                    .position(|byte| *byte == b'\n')
                    .map_or(bytes.len(), |end| at + end + 1);
                let again = bytes[at..line].to_vec();
                drop(bytes.splice(line..line, again));
            }
        }
    }
    bytes
}

/// A position, mostly at the start or the end of a line or at a colon.
fn place(bytes: &[u8], random: &mut Random) -> usize {
    let from = random.below(bytes.len() + 1);
    if random.below(3) == 0 {
        return from;
    }
    bytes[from..]
        .iter()
        .position(|byte| matches!(byte, b'\r' | b'\n' | b':'))
        .map_or(from, |found| from + found + random.below(2))
}
