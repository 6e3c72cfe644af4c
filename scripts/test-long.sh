#!/usr/bin/env bash
# `make test-long`: the random tests of `make test`, with two million decisions instead of a hundred
# thousand (WEIR_DECISIONS), and 10,000 histories of admissions for each algorithm (PROPTEST_CASES).
# A failing seed is written to proptest-regressions/; commit it.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

scripts/setup.sh build test
export_wasm_choice
export WEIR_DECISIONS="${WEIR_DECISIONS:-2000000}" PROPTEST_CASES="${PROPTEST_CASES:-10000}"
say "$WEIR_DECISIONS decisions, $PROPTEST_CASES histories of each algorithm"
cargo test --workspace --lib -- engine::equality engine::conformity engine::behaviours --nocapture "$@"
