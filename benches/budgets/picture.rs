//! The figures as an SVG: a bar for each run, with a line where the budget ends.

use std::fmt::Write as _;

use super::{Row, over};

const WIDTH: f64 = 900.0;
const LEFT: f64 = 300.0;
const RIGHT: f64 = 90.0;
const LINE: f64 = 20.0;
/// The longest bar: this many budgets. Longer ones are cut.
const BUDGETS: f64 = 2.0;

pub fn draw(rows: &[Row]) -> String {
    let scale = (WIDTH - LEFT - RIGHT) / BUDGETS;
    let mut body = String::new();
    let mut y = 60.0;
    let mut scenario = "";
    for row in rows {
        if row.scenario != scenario {
            scenario = row.scenario;
            y += 18.0;
            text(&mut body, 16.0, y, "bold 13px", scenario);
            y += 8.0;
        }
        let length = row.spent.min(BUDGETS) * scale;
        let colour = if row.mode.starts_with("Weir") { "#e07b39" } else { "#5b8fc9" };
        text(&mut body, 32.0, y + 12.0, "12px", row.mode);
        let _ = writeln!(
            body,
            r#"<rect x="{LEFT}" y="{y}" width="{length:.1}" height="14" fill="{colour}"/>"#
        );
        let figure =
            if row.spent > 1.0 { over(row.spent) } else { format!("{:.1} %", row.spent * 100.0) };
        text(&mut body, LEFT + length + 6.0, y + 12.0, "12px", &figure);
        y += LINE;
    }
    let end = LEFT + scale;
    let _ = writeln!(
        body,
        r#"<line x1="{end}" x2="{end}" y1="60" y2="{y}" stroke="black" stroke-dasharray="3 3"/>"#
    );
    let mut head = String::new();
    text(&mut head, 16.0, 28.0, "bold 18px", "Tokens spent, as a part of the budget");
    text(
        &mut head,
        16.0,
        46.0,
        "11px",
        "128 streams of unknown length over three proxies on one Redis Cluster; the dashed line is the budget",
    );
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{0}\" viewBox=\"0 0 {WIDTH} {0}\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{head}{body}</svg>\n",
        y + 16.0
    )
}

fn text(out: &mut String, x: f64, y: f64, font: &str, text: &str) {
    let _ = writeln!(out, r#"<text x="{x}" y="{y}" style="font:{font} sans-serif">{text}</text>"#);
}
