#!/usr/bin/env bash
# `make run`: from a clean clone to a running demo.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

scripts/setup.sh build
export_wasm_choice
[[ -d target/debug/deps ]] || say "The first build includes a WebAssembly compiler and takes a few minutes. Later builds take seconds."
# --workspace selects the same features as `make test`, so that nothing is built twice.
cargo build --workspace --bin weir
exec "${CARGO_TARGET_DIR:-target}/debug/weir" demo "$@"
