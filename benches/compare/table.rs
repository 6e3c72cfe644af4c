//! The figures as Markdown: a table for each situation, the ratios with their targets, the noise.

use std::fmt::Write as _;

use super::cases::{CALIBRATION, Limit, SITUATIONS, TARGETS};
use super::figures::{Row, find, median};

/// Memory that Weir may use before its first request.
const REST_MIB_MAX: f64 = 30.0;

/// Facts about the whole run.
pub struct Circumstances {
    pub machine: String,
    pub versions: String,
    pub rounds: u32,
    pub seconds_each: u32,
    pub load_before: f64,
    pub stolen: f64,
}

/// The whole report, ready for a README.
pub fn report(rows: &[Row], about: &Circumstances) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{}; {}. {} rounds of {} s each, medians.\n",
        about.machine, about.versions, about.rounds, about.seconds_each
    );
    text += &targets(rows);
    for situation in SITUATIONS {
        let here: Vec<&Row> =
            rows.iter().filter(|row| row.case.situation.name == situation.name).collect();
        if !here.is_empty() {
            let _ = writeln!(text, "### {} (`{}`)\n", situation.title, situation.name);
            text += &table(&here);
        }
    }
    text + &noise(rows, about)
}

fn table(rows: &[&Row]) -> String {
    let with_redis = rows.iter().any(|row| row.redis_us().is_some());
    let mut text = String::from("| | CPU us | user | kernel | to `limit_req` | spread |");
    text += if with_redis { " Redis us |" } else { "" };
    text += " requests/s | p50 ms | p99 ms | core | rest MiB | peak MiB |\n|---|---|---|---|---|---|---|---|---|---|---|---|";
    text += if with_redis { "---|\n" } else { "\n" };
    for row in rows {
        let mark = if row.case.is_weir() { "**" } else { "" };
        let base = rows.iter().find(|other| {
            other.case.is_baseline()
                && (other.case.limit == Limit::Refused) == (row.case.limit == Limit::Refused)
        });
        let ratio =
            base.map_or_else(String::new, |base| format!("{:.2}", row.cpu_us() / base.cpu_us()));
        let _ = write!(
            text,
            "| {mark}{}{mark} | {mark}{:.1}{mark} | {:.1} | {:.1} | {ratio} | {:.0} % |",
            row.case.title(),
            row.cpu_us(),
            row.median(|figure| figure.user_us),
            row.median(|figure| figure.kernel_us),
            row.spread() * 100.0
        );
        if with_redis {
            let _ = write!(
                text,
                " {} |",
                row.redis_us().map_or_else(String::new, |us| format!("{us:.1}"))
            );
        }
        let _ = writeln!(
            text,
            " {:.0} | {:.2} | {:.2} | {:.0} % | {:.0} | {:.0} |",
            row.median(|figure| figure.requests_a_second),
            row.median(|figure| figure.p50_us) / 1e3,
            row.median(|figure| figure.p99_us) / 1e3,
            row.median(|figure| figure.busy) * 100.0,
            row.median(|figure| figure.rest_mib),
            row.median(|figure| figure.peak_mib)
        );
    }
    text + "\n"
}

/// The ratios of medians, each with its target.
fn targets(rows: &[Row]) -> String {
    let mut lines = String::new();
    for target in TARGETS {
        let (Some(ours), Some(theirs)) = (find(rows, target.ours), find(rows, target.theirs))
        else {
            continue;
        };
        let (Some(us), Some(them)) = (ours.measure(target.measure), theirs.measure(target.measure))
        else {
            continue;
        };
        let ratio = us / them;
        let verdict = match target.then {
            Some(then) if ratio <= then => "yes, and the next target",
            _ if ratio <= target.must => "yes",
            _ => "**no**",
        };
        let then = target.then.map_or_else(String::new, |then| format!(", then {then:.2}"));
        let _ = writeln!(
            lines,
            "| {} | {us:.1} / {them:.1} us | {ratio:.2} | {:.2}{then} | {verdict} |",
            target.what, target.must
        );
    }
    if let Some(weir) = find(rows, "h1/weir/admitted") {
        let rest_mib = weir.median(|figure| figure.rest_mib);
        let verdict = if rest_mib <= REST_MIB_MAX { "yes" } else { "**no**" };
        let _ = writeln!(
            lines,
            "| memory at rest | {rest_mib:.0} MiB | | {REST_MIB_MAX:.0} MiB | {verdict} |"
        );
    }
    if lines.is_empty() {
        return lines;
    }
    format!(
        "| Weir | per request | ratio | target: at most | reached |\n|---|---|---|---|---|\n{lines}\n"
    )
}

fn noise(rows: &[Row], about: &Circumstances) -> String {
    let spreads: Vec<f64> = rows.iter().map(Row::spread).collect();
    let largest = spreads.iter().copied().fold(0.0, f64::max);
    let mut text = format!(
        "Noise: the cheapest and the most expensive round of a case differ by {:.0} % of its median in the middle of all cases, and by {:.0} % at most.",
        median(spreads) * 100.0,
        largest * 100.0
    );
    if let (Some(first), Some(second)) = (find(rows, CALIBRATION.0), find(rows, CALIBRATION.1)) {
        let apart = (second.cpu_us() / first.cpu_us() - 1.0) * 100.0;
        let _ = write!(
            text,
            " The same case measured twice in each round (`{}`) came out {apart:+.1} % apart.",
            CALIBRATION.0
        );
    }
    let _ = writeln!(
        text,
        " The hypervisor took {:.1} % of the cores' time; the load average at the start was {:.1}.",
        about.stolen * 100.0,
        about.load_before
    );
    text
}

/// Every round of every case, for calculations of your own.
pub fn raw(rows: &[Row]) -> String {
    let mut text = String::from(
        "case\tround\trequests_a_second\tp50_us\tp99_us\tuser_us\tkernel_us\tredis_us\tbusy\trest_mib\tpeak_mib\n",
    );
    for row in rows {
        for (round, figure) in row.rounds.iter().enumerate() {
            let redis = figure.redis_us.map_or_else(String::new, |us| format!("{us:.2}"));
            let _ = writeln!(
                text,
                "{}\t{}\t{:.0}\t{:.0}\t{:.0}\t{:.2}\t{:.2}\t{redis}\t{:.3}\t{:.1}\t{:.1}",
                row.case.name(),
                round + 1,
                figure.requests_a_second,
                figure.p50_us,
                figure.p99_us,
                figure.user_us,
                figure.kernel_us,
                figure.busy,
                figure.rest_mib,
                figure.peak_mib
            );
        }
    }
    text
}

/// Replaces what is between the marks `<!-- NAME: ... -->` and `<!-- end of NAME -->` in `readme`
/// by `text`.
pub fn put_into(readme: &str, name: &str, text: &str) -> Result<String, String> {
    let missing = |mark: &str| format!("the mark {mark:?} is missing");
    let (begin, end) = (format!("<!-- {name}: "), format!("<!-- end of {name} -->"));
    let start = readme.find(&begin).ok_or_else(|| missing(&begin))?;
    let length = readme[start..].find("-->\n").ok_or_else(|| missing("-->"))?;
    let (head, rest) = readme.split_at(start + length + "-->\n".len());
    let (_, tail) = rest.split_once(&end).ok_or_else(|| missing(&end))?;
    Ok(format!("{head}\n{}\n\n{end}{tail}", text.trim_end()))
}
