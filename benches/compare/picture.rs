//! The figures as an SVG: a bar for each case, made of kernel, user and Redis time, and a whisker
//! from the cheapest to the most expensive round.

use std::fmt::Write as _;

use super::cases::SITUATIONS;
use super::figures::Row;

const WIDTH: f64 = 900.0;
/// Where bars begin; the cases' names are to the left.
const LEFT: f64 = 300.0;
/// Space for a bar's figure, to the right of the longest bar.
const RIGHT: f64 = 110.0;
const LINE: f64 = 22.0;
const BAR: f64 = 14.0;
const HEAD: f64 = 94.0;
const GAP: f64 = 40.0;

const KERNEL: &str = "#9aa5b1";
const OTHERS: &str = "#5b8fc9";
const WEIR: &str = "#e07b39";
const REDIS: &str = "#b0413e";

/// The whole picture, with `about` in small print below its title.
pub fn draw(rows: &[Row], about: &str) -> String {
    let mut body = String::new();
    let mut y = HEAD;
    for situation in SITUATIONS {
        let here: Vec<&Row> =
            rows.iter().filter(|row| row.case.situation.name == situation.name).collect();
        if here.is_empty() {
            continue;
        }
        // Each situation has its own scale: a mebibyte costs a hundred times what a small response
        // does.
        let longest = here
            .iter()
            .map(|row| row.range_us().1.max(row.cpu_us() + row.redis_us().unwrap_or(0.0)))
            .fold(0.0, f64::max);
        let scale = (WIDTH - LEFT - RIGHT) / longest;
        text(&mut body, 16.0, y, "start", "bold 14px", situation.title);
        y += 12.0;
        for row in here {
            bar(&mut body, row, y, scale);
            y += LINE;
        }
        y += GAP;
    }
    let mut head = String::new();
    text(&mut head, 16.0, 28.0, "start", "bold 18px", "CPU microseconds per request");
    text(&mut head, 16.0, 46.0, "start", "11px", about);
    let mut x = 16.0;
    for (colour, name) in [
        (KERNEL, "kernel"),
        (OTHERS, "in the process"),
        (WEIR, "in the process, Weir"),
        (REDIS, "in Redis"),
    ] {
        let _ = writeln!(head, r#"<rect x="{x}" y="54" width="10" height="10" fill="{colour}"/>"#);
        text(&mut head, x + 15.0, 63.0, "start", "11px", name);
        x += 40.0 + 7.0 * name.len() as f64;
    }
    text(&mut head, x, 63.0, "start", "11px", "|-| cheapest to dearest round, without Redis");
    let height = y - GAP + 16.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" height=\"{height:.0}\" font-family=\"sans-serif\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{head}{body}</svg>\n"
    )
}

fn bar(out: &mut String, row: &Row, y: f64, scale: f64) {
    let weight = if row.case.is_weir() { "bold 12px" } else { "12px" };
    text(out, LEFT - 8.0, y + BAR - 3.0, "end", weight, &row.case.title());
    let parts = [
        (KERNEL, row.median(|figure| figure.kernel_us)),
        (if row.case.is_weir() { WEIR } else { OTHERS }, row.median(|figure| figure.user_us)),
        (REDIS, row.redis_us().unwrap_or(0.0)),
    ];
    let mut x = LEFT;
    for (colour, micros) in parts {
        let width = micros * scale;
        let _ = writeln!(
            out,
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{BAR}" fill="{colour}"/>"#
        );
        x += width;
    }
    let (least, most) = row.range_us();
    let (from, to, middle) = (LEFT + least * scale, LEFT + most * scale, y + BAR / 2.0);
    let (top, bottom) = (middle - 3.0, middle + 3.0);
    let _ = writeln!(
        out,
        r##"<path d="M{from:.1} {middle:.1}H{to:.1}M{from:.1} {top:.1}V{bottom:.1}M{to:.1} {top:.1}V{bottom:.1}" stroke="#1f2933" fill="none"/>"##
    );
    let figure = match row.redis_us() {
        Some(redis) => format!("{:.1} + {redis:.1}", row.cpu_us()),
        None => format!("{:.1}", row.cpu_us()),
    };
    text(out, x.max(to) + 6.0, y + BAR - 3.0, "start", weight, &figure);
}

fn text(out: &mut String, x: f64, y: f64, anchor: &str, font: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(
        out,
        r##"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" style="font:{font} sans-serif" fill="#1f2933">{words}</text>"##
    );
}
