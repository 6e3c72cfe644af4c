#!/usr/bin/env bash
# `make test`: the whole set-up, every check, every test. The same on a fresh machine, on a developer's and in CI.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

scripts/setup.sh build test
scripts/lint.sh
export_wasm_choice
# One invocation: unit, integration and documentation tests of the proxy, of the SDK and of each policy. Their dependencies are built once, in
# the profile that `make run` uses.
say "Tests"
cargo test --workspace "$@"
# Callgrind runs on Linux only; and whoever asks for a few tests wants those.
if [[ $(uname -s) == Linux && $# -eq 0 ]]; then
    say "Instructions per request"
    benches/instructions.sh
fi
