//! A gigabyte up and a gigabyte down, and memory stays where it was.

use crate::harness::flood::{Flood, Speaks};
use crate::harness::toml::{Toml, simple};
use crate::harness::transfer::Way;
use crate::harness::weir::Weir;

const GIB: u64 = 1 << 30;
/// Before anything is measured: buffers, the allocator's arenas.
const WARM_UP: u64 = 64 << 20;
/// What a transfer may add to the most memory that the process ever had.
const GROWTH_KIB_MAX: u64 = 20 << 10;

fn house(url: &str) -> Toml {
    simple(url, &["name = \"day\", algorithm = \"fixed_window\", quota = 1000, period = \"1d\""]).limit("body_bytes = \"2GiB\"")
}

/// Sends and fetches so many bytes.
fn both_ways(way: &Way, bytes: u64) {
    // A file of zeros that takes no space.
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().set_len(bytes).expect("its length");
    let path = file.path().to_str().expect("a plain path");
    let up = way.curl("/", &["--max-time", "110", "--upload-file", path, "--header", "Expect:"]);
    assert_eq!((up.status, up.text()), (200, bytes.to_string()), "{}: {up:?}", way.name);
    let down = way.curl_to_nowhere(&format!("/{bytes}"), &["--max-time", "110"]);
    assert_eq!((down.status, down.received), (200, bytes), "{}: {down:?}", way.name);
}

fn a_gigabyte_each_way_leaves_memory_flat(weir: &Weir, way: &Way) {
    both_ways(way, WARM_UP);
    let before = weir.peak_memory_kib();
    both_ways(way, GIB);
    let after = weir.peak_memory_kib();
    assert!(after <= before + GROWTH_KIB_MAX, "{}: {before} KiB at most before, {after} KiB after", way.name);
    println!("{}: 1 GiB up and 1 GiB down: at most {after} KiB, before it {before} KiB", way.name);
}

#[test]
fn a_gigabyte_up_and_down_leaves_memory_flat() {
    let upstream = Flood::start(Speaks::Http1);
    let weir = Weir::start(&house(&upstream.url()).text());
    for way in Way::all(&weir) {
        a_gigabyte_each_way_leaves_memory_flat(&weir, &way);
    }
}
