#!/bin/sh
# Builds one target with coverage and runs it: `fuzz/run.sh requests -max_total_time=60`. What follows the name goes to libFuzzer.
set -eu
cd "$(dirname "$0")"
target=$1
shift
# What `cargo fuzz` asks for, but for the sanitizer: the code is safe Rust, and stable has none.
export RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
host=$(rustc -vV | sed -n 's/^host: //p')
cargo build --quiet --release --locked --target "$host" --bin "$target"
mkdir -p artifacts
# A file to run alone takes the corpus' place.
for argument; do
    if [ -f "$argument" ]; then
        exec "${CARGO_TARGET_DIR:-target}/$host/release/$target" "$@"
    fi
done
mkdir -p "work/$target"
# What is found goes to the first directory, which is not committed.
exec "${CARGO_TARGET_DIR:-target}/$host/release/$target" -artifact_prefix="artifacts/$target-" -max_len=4096 -dict=http1.dict "$@" \
    "work/$target" "corpus/$target"
