//! A gigabyte up and a gigabyte down, while memory stays flat.

use crate::harness::flood::{Flood, Speaks};
use crate::harness::pki::Pki;
use crate::harness::test_proxy::{TestProxy, identity};
use crate::harness::toml::Toml;

const GIB: u64 = 1 << 30;
/// Transferred before anything is measured: fills buffers and the allocator's arenas.
const WARM_UP: u64 = 64 << 20;
/// How much a transfer may add to the process's peak memory.
const GROWTH_KIB_MAX: u64 = 20 << 10;

/// Runs with one of curl's ways to Weir, and to an upstream that speaks the same protocol.
fn a_gigabyte_each_way_leaves_memory_flat(way: &str, speaks: Speaks, secure: bool) {
    let pki = Pki::new();
    let upstream = Flood::with(speaks, secure.then(|| identity(&pki)).as_ref());
    let protocol = if speaks == Speaks::Http2 { "protocol = \"h2\"\n" } else { "" };
    let tls = if secure { "tls = { ca = \"ca.pem\" }" } else { "" };
    let toml = Toml::new()
        .limit("body_bytes = \"2GiB\"")
        .upstream("api", &upstream.url(), &format!("{protocol}{tls}"))
        .policy(
            "public",
            &["name = \"day\", algorithm = \"fixed_window\", quota = 1000, period = \"1d\""],
        )
        .route("name = \"api\"\npath = \"/*\"\nupstream = \"api\"\npolicy = \"public\"");
    let proxy = TestProxy::with(&toml, &pki);
    let way = proxy.ways().into_iter().find(|found| found.name == way).expect("one of the ways");

    let both_ways = |bytes: u64| {
        // A file of zeros that takes no space.
        let file = tempfile::NamedTempFile::new().expect("a file");
        file.as_file().set_len(bytes).expect("its length");
        let path = file.path().to_str().expect("a plain path");
        let up =
            way.curl("/", &["--max-time", "110", "--upload-file", path, "--header", "Expect:"]);
        assert_eq!((up.status, up.text()), (200, bytes.to_string()), "{}: {up:?}", way.name);
        let down = way.curl_to_nowhere(&format!("/{bytes}"), &["--max-time", "110"]);
        assert_eq!((down.status, down.received), (200, bytes), "{}: {down:?}", way.name);
        proxy.weir.peak_memory_kib()
    };
    let before = both_ways(WARM_UP);
    let after = both_ways(GIB);
    assert!(
        after <= before + GROWTH_KIB_MAX,
        "{}: {before} KiB at most before, {after} KiB after",
        way.name
    );
    println!("{}: 1 GiB up and 1 GiB down: {after} KiB at most, and {before} KiB before", way.name);
}

#[test]
fn a_gigabyte_up_and_down_leaves_memory_flat() {
    a_gigabyte_each_way_leaves_memory_flat("h1", Speaks::Http1, false);
}

#[test]
fn a_gigabyte_up_and_down_over_http_2_leaves_memory_flat() {
    a_gigabyte_each_way_leaves_memory_flat("h2", Speaks::Http2, false);
}

#[test]
fn a_gigabyte_up_and_down_over_tls_leaves_memory_flat() {
    a_gigabyte_each_way_leaves_memory_flat("TLS, h1", Speaks::Http1, true);
}

#[test]
fn a_gigabyte_up_and_down_over_tls_and_http_2_leaves_memory_flat() {
    a_gigabyte_each_way_leaves_memory_flat("TLS, h2", Speaks::Http2, true);
}
