//! What the reports of `weir replay` say beyond counts: logs that were read in part.

use std::io::Write as _;

use serde_json::json;

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
