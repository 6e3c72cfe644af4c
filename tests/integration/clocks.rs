//! The store tells the time: proxies whose clocks disagree agree on limits.

use std::path::PathBuf;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::harness::client::storm;
use crate::harness::redis::Redis;
use crate::harness::toml::simple;
use crate::harness::upstream::Upstream;
use crate::harness::weir::{Builder, Weir};

const QUOTA: u64 = 100;
/// One of a hundred an hour comes back this often.
const REFILL_S: u64 = 36;

/// libfaketime: a process under it believes another wall clock. Debian's package `faketime` holds it.
fn faketime() -> PathBuf {
    let mut folders = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let library = folders.find_map(|folder| Some(folder.path().join("faketime/libfaketime.so.1")).filter(|path| path.is_file()));
    library.expect("libfaketime.so.1 under /usr/lib: `make setup` installs it")
}

/// Moves only the wall clock: deadlines and timers go on the monotonic one, as they would on a machine that is simply wrong about the hour.
fn an_hour_ahead(builder: Builder) -> Builder {
    builder
        .environment("LD_PRELOAD", &faketime().to_string_lossy())
        .environment("FAKETIME", "+3600s")
        .environment("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        .environment("FAKETIME_NO_CACHE", "1")
}

/// How far ahead a proxy believes to be, in seconds.
fn skew_s(weir: &Weir) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
    weir.metric("weir_config_applied_timestamp_seconds") as i64 - now
}

async fn two_proxies_an_hour_apart_admit_what_one_would(algorithm: &str, refills: bool) {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let limit = format!("name = \"hour\", algorithm = \"{algorithm}\", quota = {QUOTA}, period = \"1h\"");
    let config = simple(&upstream.url(), &[&limit]).redis("single", &[redis.address]).text();
    let right = Weir::start(&config);
    let wrong = an_hour_ahead(Weir::build(&config)).start();
    assert!((-120..=5).contains(&skew_s(&right)), "{}", skew_s(&right));
    assert!((3480..=3605).contains(&skew_s(&wrong)), "the second proxy is not an hour ahead: {}", skew_s(&wrong));

    let begun = Instant::now();
    let mut admitted = 0;
    // Each in turn, several times, so that either would have every chance to begin a window of its own.
    for _ in 0..3 {
        for address in [right.http, wrong.http] {
            let tally = storm(&[address], 16, 4, |_, _| Vec::new()).await;
            tally.only(&[200, 429]);
            admitted += tally.count(200);
        }
    }
    let together = storm(&[right.http, wrong.http], 32, 4, |_, _| Vec::new()).await;
    together.only(&[200, 429]);
    admitted += together.count(200);
    let refilled = if refills { begun.elapsed().as_secs() / REFILL_S } else { 0 };
    assert!((QUOTA..=QUOTA + refilled).contains(&admitted), "{admitted} admitted, {QUOTA} + at most {refilled} refilled");
    assert_eq!(upstream.count(), admitted);
}

#[tokio::test]
async fn two_proxies_an_hour_apart_admit_what_one_would_under_a_fixed_window() {
    two_proxies_an_hour_apart_admit_what_one_would("fixed_window", false).await;
}

#[tokio::test]
async fn two_proxies_an_hour_apart_admit_what_one_would_under_gcra() {
    two_proxies_an_hour_apart_admit_what_one_would("gcra", true).await;
}

#[tokio::test]
async fn two_proxies_an_hour_apart_admit_what_one_would_under_a_token_bucket() {
    two_proxies_an_hour_apart_admit_what_one_would("token_bucket", true).await;
}
