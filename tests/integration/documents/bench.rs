//! The benchmark, as far as it can be tested without measuring: its list of cases, reading the
//! reports of the load generators, calculating, writing.

#[path = "../../../benches/compare/cases.rs"]
mod cases;
#[path = "../../../benches/compare/figures.rs"]
mod figures;
#[path = "../../../benches/compare/picture.rs"]
mod picture;
#[path = "../../../benches/compare/reading.rs"]
mod reading;
#[path = "../../../benches/compare/table.rs"]
mod table;

use cases::{CALIBRATION, Case, TARGETS, chosen};
use figures::{Figure, Row, median};
use reading::{Load, h2load, wrk};

fn cases(words: &[&str]) -> Vec<Case> {
    let words: Vec<String> = words.iter().map(ToString::to_string).collect();
    chosen(&words).unwrap()
}

fn names(words: &[&str]) -> Vec<String> {
    cases(words).iter().map(Case::name).collect()
}

#[test]
fn every_case_has_a_name_of_its_own_and_words_choose_by_its_parts() {
    let all = names(&[]);
    let unlike: std::collections::BTreeSet<&String> = all.iter().collect();
    assert_eq!(unlike.len(), all.len(), "{all:?}");
    assert_eq!(
        names(&["h1/weir"]),
        [
            "h1/weir/plain",
            "h1/weir/admitted",
            "h1/weir-cluster/admitted",
            "h1/weir-leased/admitted",
            "h1/weir/refused"
        ]
    );
    assert!(names(&["h2"]).iter().all(|name| name.starts_with("h2/")), "not tls-h2");
    assert_eq!(names(&["upload", "again"]).len(), 4);
    assert!(chosen(&["caddy".into()]).err().unwrap().contains("h1/nginx/plain"));
}

#[test]
fn targets_and_calibration_name_cases_that_there_are() {
    let all = names(&[]);
    let named = TARGETS
        .iter()
        .flat_map(|target| [target.ours, target.theirs])
        .chain([CALIBRATION.0, CALIBRATION.1]);
    for name in named {
        assert!(all.iter().any(|known| known == name), "{name}");
    }
}

const WRK: &str = "\
Running 2s test @ http://127.0.0.1:1/
  1 threads and 64 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     1.07ms  153.91us   4.45ms   92.07%
    Req/Sec    60.10k     2.36k   62.90k    90.00%
  Latency Distribution
     50%  987.00us
     75%    1.10ms
     90%    1.17ms
     99%    1.62ms
  119732 requests in 2.00s, 19.52MB read
  Non-2xx or 3xx responses: 119731
Requests/sec:  59823.13
Transfer/sec:      9.75MB
";

const H2LOAD: &str = "\
starting benchmark...
spawning thread #0: 8 total client(s). Timing-based test with 0s of warm-up time and 2s of main duration for measurements.
Application protocol: h2c

finished in 2.00s, 30212.50 req/s, 1.05MB/s
requests: 60425 total, 60489 started, 60425 done, 60420 succeeded, 5 failed, 0 errored, 0 timeout
status codes: 60420 2xx, 0 3xx, 4 4xx, 1 5xx
traffic: 2.10MB (2205024) total, 236.04KB (241700) headers (space savings 97.53%), 1.38MB (1450200) data
";
const H2LOAD_LOG: &str = "1700000000000001\t200\t400\n1700000000000002\t200\t300\n1700000000000003\t429\t200\n1700000000000004\t200\t9000\n";

#[test]
fn the_generators_reports_are_read() {
    let expected =
        Load { requests: 119_732, refused: 119_731, seconds: 2.0, p50_us: 987.0, p99_us: 1620.0 };
    assert_eq!(wrk(WRK), Ok(expected));
    let all_good = WRK.replace("  Non-2xx or 3xx responses: 119731\n", "");
    assert_eq!(wrk(&all_good), Ok(Load { refused: 0, ..expected }));
    let expected =
        Load { requests: 60_425, refused: 5, seconds: 2.0, p50_us: 400.0, p99_us: 9000.0 };
    assert_eq!(h2load(H2LOAD, H2LOAD_LOG), Ok(expected));
}

#[test]
fn connections_that_failed_and_reports_that_lack_something_are_errors() {
    let failed = WRK
        .replace("  Non-2xx", "  Socket errors: connect 0, read 3, write 0, timeout 0\n  Non-2xx");
    assert!(wrk(&failed).unwrap_err().contains("read 3"));
    assert!(wrk("unable to connect").unwrap_err().contains("number of requests"));
    assert!(wrk(&WRK.replace("99%  ", "98%  ")).unwrap_err().contains("99%"));
    assert!(h2load(H2LOAD, "").unwrap_err().contains("no request"));
    assert!(
        h2load(&H2LOAD.replace("0 errored", "2 errored"), H2LOAD_LOG)
            .unwrap_err()
            .contains("2 errored")
    );
}

/// A row of `name` whose rounds cost this much.
fn row(name: &str, rounds_us: &[f64], redis_us: Option<f64>) -> Row {
    let figure = |cpu_us: &f64| Figure {
        requests_a_second: 50_000.0,
        p50_us: 1_000.0,
        p99_us: 2_000.0,
        user_us: cpu_us - 8.0,
        kernel_us: 8.0,
        redis_us,
        busy: 1.0,
        rest_mib: 10.0,
        peak_mib: 20.0,
    };
    Row { case: cases(&[name]).remove(0), rounds: rounds_us.iter().map(figure).collect() }
}

#[test]
fn a_row_has_medians_and_the_distance_between_rounds() {
    let row = row("h1/nginx/plain", &[10.0, 12.0, 9.0], None);
    assert_eq!((row.cpu_us(), row.range_us(), row.spread()), (10.0, (9.0, 12.0), 0.3));
    assert_eq!(row.redis_us(), None);
    assert_eq!(median(vec![1.0, 4.0, 2.0, 3.0]), 2.5);
}

#[test]
fn the_report_holds_ratios_targets_and_noise() {
    let rows = [
        row("h1/nginx/admitted", &[12.0, 12.5, 13.0], None),
        row("h1/weir/admitted", &[15.0, 15.0, 15.0], None),
        row("clients/nginx-lua-redis/admitted", &[33.0], Some(12.0)),
        row("clients/weir-cluster/admitted", &[16.5], Some(6.6)),
    ];
    let about = table::Circumstances {
        machine: "a machine".into(),
        versions: "nginx 1".into(),
        rounds: 3,
        seconds_each: 2,
        load_before: 0.5,
        stolen: 0.01,
    };
    let report = table::report(&rows, &about);
    for line in [
        "| admitted, vs nginx `limit_req` | 15.0 / 12.5 us | 1.20 | 1.05, then 1.00 | **no** |",
        "| Redis Cluster, vs nginx + Lua + Redis, admitted | 16.5 / 33.0 us | 0.50 | 0.55 | yes |",
        "| Redis' own CPU for it | 6.6 / 12.0 us | 0.55 | 0.50 | **no** |",
        "| memory at rest | 10 MiB | | 30 MiB | yes |",
        "| nginx limit_req, admitted | 12.5 | 4.5 | 8.0 | 1.00 | 8 % | 50000 | 1.00 | 2.00 | 100 % | 10 | 20 |",
        "| **Weir, Wasm + embedded, admitted** | **15.0** | 7.0 | 8.0 | 1.20 | 0 % | 50000 | 1.00 | 2.00 | 100 % | 10 | 20 |",
    ] {
        assert!(report.lines().any(|found| found == line), "{line}\nis not in\n{report}");
    }
    assert!(!report.contains("download"), "what was not measured is not reported");
    assert_eq!(table::raw(&rows).lines().count(), 1 + 3 + 3 + 1 + 1);
    let picture = picture::draw(&rows, "a machine");
    assert_eq!(
        (picture.matches("<path").count(), picture.matches("16.5 + 6.6").count()),
        (rows.len(), 1)
    );
}

#[test]
fn the_readme_has_places_for_the_figures_and_keeps_the_rest() {
    let readme = include_str!("../../../benches/README.md");
    for name in ["figures", "profile"] {
        let new = table::put_into(readme, name, "| 1 |\n").unwrap();
        let end = format!("<!-- end of {name} -->");
        let (head, tail) = (
            readme.split_once(&format!("<!-- {name}:")).unwrap().0,
            readme.split_once(&end).unwrap().1,
        );
        assert!(
            new.starts_with(head)
                && new.ends_with(tail)
                && new.contains(&format!("-->\n\n| 1 |\n\n{end}")),
            "{new}"
        );
        assert_eq!(table::put_into(&new, name, "| 1 |\n").unwrap(), new);
    }
    assert!(table::put_into("nothing", "figures", "| 1 |").is_err());
}
