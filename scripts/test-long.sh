#!/usr/bin/env bash
# `make test-long`: the random tests of `make test`, with two million decisions instead of a hundred
# thousand (WEIR_DECISIONS), and 10,000 histories of admissions for each algorithm (PROPTEST_CASES).
# Then ten thousand damaged modules and components (WEIR_DAMAGED_MODULES) instead of a few, loaded and
# as policies of a running proxy, and a million answers of guests (WEIR_ANSWERS). Last, a hundred
# thousand requests that upstreams of other languages read (WEIR_SPELLINGS). A failing seed is written
# to proptest-regressions/; commit it.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

scripts/setup.sh build test interop
export_wasm_choice
export WEIR_DECISIONS="${WEIR_DECISIONS:-2000000}" PROPTEST_CASES="${PROPTEST_CASES:-10000}"
say "$WEIR_DECISIONS decisions, $PROPTEST_CASES histories of each algorithm"
cargo test --workspace --lib -- engine::equality engine::conformity engine::behaviours --nocapture "$@"
export WEIR_DAMAGED_MODULES="${WEIR_DAMAGED_MODULES:-10000}" WEIR_ANSWERS="${WEIR_ANSWERS:-1000000}"
say "$WEIR_DAMAGED_MODULES damaged modules, $WEIR_ANSWERS answers"
cargo test --workspace --lib -- policy::tests::damaged policy::tests::answers --nocapture
cargo test --workspace --test integration -- damaged:: --nocapture
export WEIR_SPELLINGS="${WEIR_SPELLINGS:-100000}"
say "$WEIR_SPELLINGS requests, read by every upstream"
cargo test --workspace --test interop -- oracle:: --nocapture
