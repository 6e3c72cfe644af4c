#!/usr/bin/env bash
# `make test-long`: what `make test` does with a hundred thousand random decisions, with two million (WEIR_DECISIONS), and histories of what was
# admitted in 10,000 cases each (PROPTEST_CASES). A failing seed is written to proptest-regressions/, and belongs into the repository.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

scripts/setup.sh build test
export_wasm_choice
export WEIR_DECISIONS="${WEIR_DECISIONS:-2000000}" PROPTEST_CASES="${PROPTEST_CASES:-10000}"
say "$WEIR_DECISIONS decisions, $PROPTEST_CASES histories of each algorithm"
cargo test --workspace --lib -- engine::equality engine::conformity engine::behaviours --nocapture "$@"
