#!/usr/bin/env bash
# `make test-all`: setup, all checks, all tests. The same on a fresh machine, on a developer's
# machine and in CI. What is missing and can't be installed is an error.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

scripts/setup.sh build test lint interop
scripts/lint.sh
export_wasm_choice
# As many cases as take some seconds. `make test` tries fewer, `make test-long` many more.
export WEIR_DAMAGED_MODULES="${WEIR_DAMAGED_MODULES:-400}"
say "Tests"
more_threads
cargo test --workspace
if [[ $(uname -s) == Linux ]]; then
    say "Parts of the packages"
    python=${CARGO_TARGET_DIR:-target}/python/bin/python
    if "$python" -c 'import tomllib' 2> /dev/null; then
        "$python" packaging/check/tests.py
    else
        say "Left out: they need Python 3.11, found $("$python" --version)"
    fi
fi
say "The specification of leases"
CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/lease-spec" \
    cargo test --quiet --locked --manifest-path crates/lease/spec/Cargo.toml
say "Other people's programs, and faults of Redis"
cargo test --workspace --test interop --test chaos
say "Half a minute of the soak"
soak_state=$(mktemp -u)
cargo test --workspace --test chaos -- --soak 0.005 --piece 6 --state "$soak_state"
rm -f "$soak_state"
# Callgrind runs on Linux only.
if [[ $(uname -s) == Linux ]]; then
    say "Instructions per request"
    benches/instructions.sh
fi
