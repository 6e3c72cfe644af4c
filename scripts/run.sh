#!/usr/bin/env bash
# `make run`: from a clean clone to a running demo.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

scripts/setup.sh build
export_wasm_choice
[[ -d target/debug/deps ]] || say "The first build compiles a WebAssembly compiler, too: some minutes. Later ones take seconds."
# The workspace's own selection of features, so that `make test` builds nothing a second time.
cargo build --workspace --bin weir
exec "${CARGO_TARGET_DIR:-target}/debug/weir" demo "$@"
