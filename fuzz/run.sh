#!/bin/sh
# Builds one target with coverage and runs it: `fuzz/run.sh requests -max_total_time=60`. Further
# arguments go to libFuzzer.
set -eu
cd "$(dirname "$0")"
target=$1
shift
# The flags of `cargo fuzz`, except for the sanitizer: the code is safe Rust, and the stable
# toolchain has none.
export RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
host=$(rustc -vV | sed -n 's/^host: //p')
cargo build --quiet --release --locked --target "$host" --bin "$target"
mkdir -p artifacts
# A single file is run instead of the corpus.
for argument; do
    if [ -f "$argument" ]; then
        exec "${CARGO_TARGET_DIR:-target}/$host/release/$target" "$@"
    fi
done
mkdir -p "work/$target"
# New inputs go to the first directory, which is not committed.
exec "${CARGO_TARGET_DIR:-target}/$host/release/$target" -artifact_prefix="artifacts/$target-" -max_len=4096 -dict=http1.dict "$@" \
    "work/$target" "corpus/$target"
