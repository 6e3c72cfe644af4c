#!/usr/bin/env bash
# `make test`: what a contributor needs. Rust and Redis are its only requirements.
#
# Clippy is not here but in `make lint`: it checks all code a second time, with metadata of its own
# for each dependency, which takes as long as half of the tests.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

scripts/setup.sh build test
export_wasm_choice
say "Formatting"
cargo fmt --all --check
# One invocation for the unit, integration and documentation tests of the proxy, the SDK and each
# policy. So their dependencies are built once, in the profile that `make run` uses. Cargo.toml says
# of `interop` and `chaos` that they are not among them.
say "Tests"
more_threads
cargo test --workspace "$@"
say "Passed. \`make test-all\`, which CI runs, adds:"
printf '    %s\n' >&2 \
    "clippy, luacheck, cargo-deny and the fuzz targets (\`make lint\`)" \
    "curl, nginx, Prometheus, a browser; clients, upstreams and policies in other languages (tests/interop)" \
    "faults of Redis under load (tests/chaos)" \
    "instructions per request, counted by valgrind" \
    "more cases of the random tests"
