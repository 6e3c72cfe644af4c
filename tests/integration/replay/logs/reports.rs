//! What the reports of `weir replay` say beyond counts: logs that were read in part, and pictures.

use std::collections::BTreeSet;
use std::io::Write as _;

use serde_json::{Value, json};

use super::{MINUTE, NOWHERE, common, folder, log, replayed, weir};
use crate::harness::toml::simple;

#[test]
fn a_log_that_was_cut_off_is_replayed_up_to_there_and_each_report_says_so() {
    let log = log(3_000);
    let folder = folder(&[("proxy.toml", &simple(NOWHERE, &[MINUTE]).text())]);
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(common(&log).as_bytes()).unwrap();
    let packed = packed.finish().unwrap();
    let half = packed.len() / 2;
    std::fs::write(folder.path().join("access.log.gz"), &packed[..half]).unwrap();

    let report = replayed(folder.path(), &["access.log.gz", "--html", "report.html"]);
    let lines = report["log"]["lines"].as_u64().unwrap();
    assert!((500..3_000).contains(&lines), "{lines} of half of 3,000");
    assert_eq!(report["requests"]["counts"]["all"], lines);
    assert_eq!(report["log"]["broken"], 0, "half of a line is none");
    let damaged = json!([{ "file": "access.log.gz", "byte": half, "lines_before": lines, "ends_there": true }]);
    assert_eq!(report["log"]["damaged"], damaged);
    let told = format!(
        "access.log.gz: ends in the middle of its compressed data, at byte {half}: the {lines} lines \
         before that are replayed"
    );
    let page = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(page.contains(&told), "{page:.2000}");
    let ended = weir(folder.path(), &["replay", "access.log.gz"]);
    assert_eq!(ended.code, 0, "as with broken lines: {}", ended.err);
    assert!(ended.out.contains(&told), "{told}: {}", ended.out);

    // Where nothing at all can be read, that is the reason.
    std::fs::write(folder.path().join("access.log.gz"), &packed[..9]).unwrap();
    let ended = weir(folder.path(), &["replay", "access.log.gz"]);
    assert_eq!(ended.code, 2, "{}", ended.out);
    assert!(ended.err.contains("at byte 9: the 0 lines before that"), "{}", ended.err);
}

#[test]
fn the_curve_of_quotas_has_its_marks_and_an_axis_that_shows_the_small_ones() {
    let log = log(3_000);
    let config = |quota: u64| {
        simple(NOWHERE, &[&MINUTE.replace("quota = 5", &format!("quota = {quota}"))]).text()
    };
    let folder = folder(&[("access.log", &common(&log)), ("proxy.toml", &config(5))]);
    let page = |arguments: &[&str]| {
        let arguments = [&["access.log", "--html", "report.html"], arguments].concat();
        let report = replayed(folder.path(), &arguments);
        (report, std::fs::read_to_string(folder.path().join("report.html")).unwrap())
    };
    let (report, text) = page(&["--percent", "90"]);
    let suggested = report["limits"][0]["suggestion"]["quota"].as_u64().unwrap();
    let curve = report["limits"][0]["curve"].as_array().unwrap();
    let at = |quota: u64| curve.iter().find(|point| point["quota"] == quota).unwrap();
    assert!(suggested > 5 && at(suggested)["keys_refused"].as_f64().unwrap() <= 0.1);
    for told in [
        format!("Marked: current quota 5, suggested quota {suggested}.</desc>"),
        format!(">suggested quota {suggested}</text>"),
        ">current quota 5</text>".to_owned(),
        "The current quota of 5 refuses ".to_owned(),
    ] {
        assert!(text.contains(&told), "{told}");
    }
    assert_eq!(text.matches("<line class=\"mark\"").count(), 2);
    // An allowance of a thousand makes the axis long.
    std::fs::write(folder.path().join("proxy.toml"), config(1_000)).unwrap();
    let (_, text) = page(&[]);
    assert!(text.contains("on a logarithmic axis"));
    let part = &text[text.find("Share refused by minute").unwrap()..];
    for tick in [">1<", ">10<", ">100<", ">1k<"] {
        assert!(part.contains(&format!("text-anchor=\"middle\"{tick}/text>")), "{tick}");
    }
    // The present quota, if that is the one that is suggested, is marked once.
    let (report, _) = page(&["--percent", "100"]);
    let suggested = report["limits"][0]["suggestion"]["quota"].as_u64().unwrap();
    std::fs::write(folder.path().join("proxy.toml"), config(suggested)).unwrap();
    let (_, text) = page(&["--percent", "100"]);
    assert!(text.contains(&format!("Marked: current and suggested quota {suggested}.</desc>")));
}

/// The names of the members of an object, and of those within it.
fn names(json: &Value, found: &mut BTreeSet<String>) {
    match json {
        Value::Object(members) => members.iter().for_each(|(name, value)| {
            found.insert(name.clone());
            names(value, found);
        }),
        Value::Array(values) => values.iter().for_each(|value| names(value, found)),
        _ => {}
    }
}

#[test]
fn the_fields_of_its_json_are_in_the_documentation_and_a_rejection_is_reported() {
    let mut text = common(&log(1_000));
    text.push_str(
        "203.0.113.9 - - [17/May/2015:23:00:00 +0000] \"GET /%zz HTTP/1.1\" 400 0\nbroken\n",
    );
    let config = |quota: &str| simple(NOWHERE, &[&MINUTE.replace("quota = 5", quota)]).text();
    let folder = folder(&[
        ("access.log", &text),
        ("candidate.toml", &config("quota = 2")),
        ("proxy.toml", &config("quota = 4")),
    ]);
    let both = ["access.log", "--config", "candidate.toml", "--against", "proxy.toml"];
    let report =
        replayed(folder.path(), &[&both[..], &["--curves", "--stopped", "stopped.jsonl"]].concat());
    let mut written = BTreeSet::new();
    names(&report, &mut written);
    let lines = std::fs::read_to_string(folder.path().join("stopped.jsonl")).unwrap();
    for line in lines.lines() {
        names(&serde_json::from_str(line).unwrap(), &mut written);
    }
    let page = include_str!("../../../../docs/replay.md");
    let section = page.split("`--json` prints one object. Times").nth(1).unwrap();
    let section = section.split("### Logs").next().unwrap();
    let words: BTreeSet<&str> =
        section.split(|letter: char| !letter.is_alphanumeric() && letter != '_').collect();
    let missing: Vec<_> = written.iter().filter(|name| !words.contains(name.as_str())).collect();
    assert_eq!(missing, Vec::<&String>::new());

    let last: Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    let rejection = &last["rejection"];
    assert_eq!(rejection["check"], "path", "{last}");
    assert_eq!(rejection["found"], "the path has a broken escape", "{last}");
    assert!(
        rejection["expected"].as_str().unwrap().starts_with("a path in one spelling"),
        "{last}"
    );
    assert_eq!(last["at"], "2015-05-17T23:00:00Z");
    let refused: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert_eq!((&refused["verdict"], &refused["rejection"]), (&"refused".into(), &Value::Null));
}
