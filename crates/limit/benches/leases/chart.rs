//! Decisions a second as bars.

use crate::case::{Case, PROCESSES};
use crate::run::run;

/// Decisions a second over processes and over keys, with leases and without, as a picture.
pub(crate) fn picture(path: &std::path::Path, case: Case) {
    println!("\n{:>9} {:>7} {:>12} {:>12}", "processes", "keys", "lease 200 ms", "without");
    let on_one_key = (1..=PROCESSES).map(|processes| (processes, 1));
    let on_many = [10, 100, 1_000, 10_000].map(|keys| (PROCESSES, keys));
    let rows = on_one_key.chain(on_many).map(|(processes, keys)| {
        let of = |life_ms| {
            let mut one = case;
            (one.life_ms, one.keys, one.processes) = (life_ms, keys, processes);
            run(one, 1).0.decisions
        };
        let (leased, without) = (of(200), of(0));
        println!("{processes:>9} {keys:>7} {leased:>12.0} {without:>12.0}");
        let plural = |count: u64| if count == 1 { "" } else { "s" };
        let name = format!(
            "{processes} process{}, {keys} key{}",
            if processes == 1 { "" } else { "es" },
            plural(keys)
        );
        (name, leased, without)
    });
    let rows: Vec<(String, f64, f64)> = rows.collect();
    std::fs::write(path, bars(&rows)).unwrap();
    println!("written: {}", path.display());
}

/// Two bars for each row.
fn bars(rows: &[(String, f64, f64)]) -> String {
    let most = rows.iter().map(|(_, leased, without)| leased.max(*without)).fold(1.0, f64::max);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 640 {}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"16\" y=\"18\" font-size=\"13\" font-weight=\"bold\" fill=\"#1f2933\">decisions a second</text>\n\
         <text x=\"624\" y=\"18\" text-anchor=\"end\" fill=\"#3e6fb0\">lease of 200 ms</text>\n\
         <text x=\"530\" y=\"18\" text-anchor=\"end\" fill=\"#7b8794\">without</text>\n",
        36 + 34 * rows.len()
    );
    for (index, (name, leased, without)) in rows.iter().enumerate() {
        let top = 32 + 34 * index;
        svg += &format!(
            "<text x=\"160\" y=\"{}\" text-anchor=\"end\" fill=\"#52606d\">{name}</text>\n",
            top + 16
        );
        for (at, value, colour) in [(top, leased, "#3e6fb0"), (top + 13, without, "#7b8794")] {
            let width = value / most * 390.0;
            svg += &format!(
                "<rect x=\"170\" y=\"{at}\" width=\"{width:.1}\" height=\"11\" fill=\"{colour}\"/>\
                 <text x=\"{:.1}\" y=\"{}\" fill=\"#52606d\">{:.2} M</text>\n",
                176.0 + width,
                at + 10,
                value / 1e6
            );
        }
    }
    svg + "</svg>\n"
}
