//! The page of a soak, and its picture.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use weir::chart::{AxisScale, Chart, Layout, Mark, Series, Unit};

use super::pieces::Piece;
use super::{RATE, Soak};

const STYLE: &str = "<style>text{font:12px system-ui,sans-serif;fill:#57606a}.grid{stroke:#d0d7de}\
.line{fill:none;stroke-width:2}.series-0{stroke:#0969da}.series-1{stroke:#bf8700}</style>";

/// Writes both.
pub fn write(path: &Path, pieces: &[Piece], soak: &Soak) {
    let pictures = path.parent().unwrap_or(Path::new(".")).join("pictures");
    fs::create_dir_all(&pictures).expect("the folder of pictures");
    fs::write(pictures.join("soak.svg"), picture(pieces)).expect("the picture");
    fs::write(path, page(pieces, soak)).expect("the page");
}

/// When each piece ended, in seconds of traffic.
fn ends(pieces: &[Piece]) -> Vec<f64> {
    let ends = pieces.iter().scan(0.0, |sum, piece| {
        *sum += piece.seconds;
        Some(*sum)
    });
    ends.collect()
}

fn picture(pieces: &[Piece]) -> String {
    let ends = ends(pieces);
    let points = |of: &dyn Fn(&Piece) -> f64| -> Vec<(f64, f64)> {
        ends.iter().zip(pieces).map(|(at, piece)| (*at, of(piece))).collect()
    };
    let series = |name: &str, of: &dyn Fn(&Piece) -> f64| Series {
        name: name.to_owned(),
        points: points(of),
    };
    let begins = |(at, pair): (&f64, &[Piece])| {
        let is_new = pair[0].run != pair[1].run;
        is_new.then(|| Mark { at: *at, text: "new processes".to_owned() })
    };
    let marks: Vec<Mark> = ends.iter().zip(pieces.windows(2)).filter_map(begins).collect();
    let chart = |title: &str, y, series| Chart {
        title: title.to_owned(),
        description: format!("{} pieces, each with a fault in its middle.", pieces.len()),
        layout: Layout::Lines,
        x: Unit::Elapsed,
        scale: AxisScale::Linear,
        marks: marks.clone(),
        y,
        series,
    };
    let charts = [
        chart(
            "MiB of memory of three proxies (blue), and their open descriptors (yellow)",
            Unit::Count,
            vec![
                series("memory", &|piece| piece.memory_kib as f64 / 1024.0),
                series("descriptors", &|piece| piece.descriptors as f64),
            ],
        ),
        chart(
            "Response times before the faults: median (blue) and 99th percentile (yellow)",
            Unit::Seconds,
            vec![
                series("p50", &|piece| piece.p50_us as f64 / 1e6),
                series("p99", &|piece| piece.p99_us as f64 / 1e6),
            ],
        ),
    ];
    stacked(&charts)
}

/// Charts one below the other, each under its title.
fn stacked(charts: &[Chart]) -> String {
    const ROW: usize = 240;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 640 {}\">{STYLE}",
        ROW * charts.len()
    );
    for (row, chart) in charts.iter().enumerate() {
        let svg = chart.svg();
        // What follows is a legend for a page.
        let drawn = svg.split_once("</svg>").map_or("", |(drawn, _)| drawn);
        let place = format!("<svg x=\"0\" y=\"{}\" width=\"640\" height=\"206\" ", row * ROW + 26);
        let drawn = drawn.replacen("<svg ", &place, 1);
        let (title, y) = (&chart.title, row * ROW + 18);
        let _ = write!(text, "<text x=\"8\" y=\"{y}\">{title}</text>{drawn}</svg>");
    }
    text + "</svg>\n"
}

fn page(pieces: &[Piece], soak: &Soak) -> String {
    let hours = pieces.iter().map(|piece| piece.seconds).sum::<f64>() / 3_600.0;
    let sum = |of: &dyn Fn(&Piece) -> u64| pieces.iter().map(of).sum::<u64>();
    let runs = pieces.iter().map(|piece| piece.run).max().map_or(0, |run| run + 1);
    let mut by_fault: BTreeMap<&str, Vec<&Piece>> = BTreeMap::new();
    pieces.iter().for_each(|piece| by_fault.entry(&piece.fault).or_default().push(piece));
    let mut table = String::from(
        "| fault | times | requests undecided | units charged too much | takes with an unknown outcome | units missing |\n|---|---|---|---|---|---|\n",
    );
    for (fault, of) in by_fault {
        let sum = |count: fn(&Piece) -> u64| of.iter().map(|piece| count(piece)).sum::<u64>();
        let _ = writeln!(
            table,
            "| {fault} | {} | {} | {} | {} | {} |",
            of.len(),
            sum(|piece| piece.undecided),
            sum(|piece| piece.more),
            sum(|piece| piece.unknown),
            sum(|piece| piece.less)
        );
    }
    let mut growth = String::new();
    for run in 0..runs {
        let of: Vec<&Piece> = pieces.iter().filter(|piece| piece.run == run).collect();
        let (Some(first), Some(last)) = (of.first(), of.last()) else { continue };
        let _ = writeln!(
            growth,
            "| {} | {} | {:.1} | {} to {} | {} to {} |",
            run + 1,
            last.commit,
            of.iter().map(|piece| piece.seconds).sum::<f64>() / 3_600.0,
            first.memory_kib / 1024,
            last.memory_kib / 1024,
            first.descriptors,
            last.descriptors
        );
    }
    let wrong: Vec<String> = pieces.iter().flat_map(Piece::wrong).collect();
    let verdict = match wrong.is_empty() {
        true => "All requests and counters were as promised.".to_owned(),
        false => format!("**Not as promised**: {}.", wrong.join("; ")),
    };
    TEXT.replace("{hours}", &format!("{hours:.1}"))
        .replace("{wanted}", &soak.hours.to_string())
        .replace("{requests}", &sum(&|piece| piece.requests).to_string())
        .replace("{refused}", &sum(&|piece| piece.refused).to_string())
        .replace("{calm}", &sum(&|piece| piece.undecided_calm).to_string())
        .replace("{rate}", &RATE.to_string())
        .replace("{verdict}", &verdict)
        .replace("{faults}", &table)
        .replace("{growth}", &growth)
}

const TEXT: &str = r#"# A soak, measured

Three proxies with two workers each, on a Redis Cluster of three masters with a replica each, serve
{rate} requests a second of a mix: counted exactly under one limit and under several, refused by rates,
taken from leases, held as places. In the middle of every ten minutes something is done to Redis or
to the proxies, which are never restarted. This page is written by `make soak`, which goes on where
it was stopped, from the lines of `benches/results/soak.jsonl`: so far {hours} of {wanted} hours, {requests} requests, of which limits refused {refused}.

    make soak HOURS=8

{verdict} Away from the faults, {calm} requests were not decided by Redis.

![Memory, descriptors and response times](pictures/soak.svg)

{faults}
A take whose connection fails after it was sent may have been charged: so counters may have as many
units more as takes have an unknown outcome. A master that is lost takes with it what it had not
passed on to its replica: so units may be missing then, as Redis' replication has it.

| run | commit | hours | MiB of the three proxies | descriptors |
|---|---|---|---|---|
{growth}
Each run has processes of its own. Nothing is promised about memory: this is what was seen.
Descriptors are those of 36 clients' connections, of the upstream and of Redis. Other work may have
run on the machine meanwhile, at a lower priority: an idle one answers sooner.
"#;
