#!/usr/bin/env bash
# Where each microsecond goes: runs some of the benchmark's cases under `perf` and sorts the samples
# by library. CASES selects others. RECORD=yes writes the table into benches/README.md.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"

have perf || die "perf is missing" "Debian: sudo apt-get install linux-perf"
if [[ -z ${WEIR:-} ]]; then
    # As shipped, but with function names.
    scripts/setup.sh build bench
    export_wasm_choice
    say "Building Weir in the release profile, with names (the first time: a quarter of an hour)"
    CARGO_PROFILE_RELEASE_STRIP=none cargo build --release --bin weir --target-dir "${CARGO_TARGET_DIR:-target}/named"
    export WEIR=${CARGO_TARGET_DIR:-target}/named/release/weir
fi
export PROFILE=yes SECONDS_EACH=${SECONDS_EACH:-5}
export CASES=${CASES:-h1/nginx/admitted h1/weir/admitted h1/nginx/refused h1/weir/refused clients/nginx-lua-redis/admitted clients/weir-cluster/admitted}
exec benches/compare.sh
