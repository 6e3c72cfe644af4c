#!/usr/bin/env bash
# 200 reloads of all kinds within a minute, each tenth one broken, under load over HTTP/1.1 and
# HTTP/2: prints latencies and memory beside those of the same load without reloads. `WEIR` is the
# binary, by default the release; `WEIR_RELOADS` and `WEIR_RELOADS_SECONDS` choose another length.
# The same test with forty reloads is in `make test` (tests/integration/reload/storm.rs).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ -z ${WEIR:-} ]]; then
    cargo build --release
    WEIR=target/release/weir
fi
WEIR=$(realpath "$WEIR")
export WEIR WEIR_RELOADS="${WEIR_RELOADS:-200}" WEIR_RELOADS_SECONDS="${WEIR_RELOADS_SECONDS:-60}"
cargo test --workspace --test integration -- storm:: --nocapture
