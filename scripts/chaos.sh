#!/usr/bin/env bash
# `make chaos`: breaks real Redis Clusters under load, judges what Weir makes of it, and writes
# docs/chaos.md. With `--only 4`, one row and no page; with `--seed N`, other random choices.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

[[ $(uname -s) == Linux ]] || die "the rows about clocks and memory need Linux"
scripts/setup.sh build test
export_wasm_choice
release_program
say "Faults"
# The suite itself need not be fast, and is built with the dependencies of the tests.
exec cargo test --workspace --test chaos -- --long --weir "$(realpath "$WEIR")" --page docs/chaos.md "$@"
