#!/usr/bin/env bash
# `make test`: setup, all checks, all tests. The same on a fresh machine, on a developer's machine
# and in CI.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

scripts/setup.sh build test
scripts/lint.sh
export_wasm_choice
if ! has_browser; then
    say "There is no browser and none could be installed: what needs one is left out (WEIR_NO_BROWSER=1)"
    export WEIR_NO_BROWSER=1
fi
# One invocation for the unit, integration and documentation tests of the proxy, the SDK and each
# policy. So their dependencies are built once, in the profile that `make run` uses.
say "Tests"
cargo test --workspace "$@"
# Callgrind runs on Linux only. With arguments, only the selected tests are run.
if [[ $(uname -s) == Linux && $# -eq 0 ]]; then
    say "Instructions per request"
    benches/instructions.sh
fi
