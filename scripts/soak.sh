#!/usr/bin/env bash
# `make soak HOURS=8`: hours of mixed traffic with a fault every ten minutes. Goes on where it was
# stopped, and writes docs/soak.md after every ten minutes. What was seen is in
# benches/results/soak.jsonl, to go on with on another machine: delete it to begin again.
#
# A machine that does other work meanwhile has to give that a lower priority: what waits for a
# processor is undecided. nice(1) does so within a session alone; of a session it is `echo 19 >
# /proc/self/autogroup`.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

[[ $(uname -s) == Linux ]] || die "descriptors are counted in /proc"
scripts/setup.sh build test
export_wasm_choice
release_program
say "Soaking for ${HOURS:-8} hours in all"
exec cargo test --workspace --test chaos -- --soak "${HOURS:-8}" --weir "$(realpath "$WEIR")" \
    --state "$PWD/benches/results/soak.jsonl" --page docs/soak.md \
    --commit "$(git rev-parse --short=8 HEAD)" "$@"
