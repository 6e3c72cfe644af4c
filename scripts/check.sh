#!/usr/bin/env bash
# `make check`: reports all errors in proxy.toml, each with its line.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

scripts/setup.sh build
export_wasm_choice
exec cargo run --quiet --bin weir -- check "$@"
