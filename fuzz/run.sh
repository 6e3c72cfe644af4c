#!/bin/sh
# Builds one target with coverage and runs it: `fuzz/run.sh requests -max_total_time=60`. Further
# arguments go to libFuzzer.
set -eu
cd "$(dirname "$0")"
target=$1
shift
# The flags of `cargo fuzz`, except for the sanitizer: the code is safe Rust, and the stable
# toolchain has none.
coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
host=$(rustc -vV | sed -n 's/^host: //p')
case $target in
modules | answers)
    # All of Weir is built. With the profiles of its own Cargo.toml, what it depends on is that of
    # `make test`.
    export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/../target}"
    RUSTC_WRAPPER="$PWD/instrument.sh" WEIR_FUZZ_COVERAGE="$coverage" \
        cargo build --quiet --locked --manifest-path policies/Cargo.toml --bin "$target" \
        --config ../Cargo.toml
    binary=$CARGO_TARGET_DIR/debug/$target
    options=-max_len=16384
    ;;
*)
    RUSTFLAGS="--cfg fuzzing $coverage" \
        cargo build --quiet --release --locked --target "$host" --bin "$target"
    binary=${CARGO_TARGET_DIR:-target}/$host/release/$target
    options="-max_len=4096 -dict=http1.dict"
    ;;
esac
mkdir -p artifacts
# A single file is run instead of the corpus.
for argument; do
    if [ -f "$argument" ]; then
        exec "$binary" "$@"
    fi
done
mkdir -p "work/$target"
# New inputs go to the first directory, which is not committed.
exec "$binary" -artifact_prefix="artifacts/$target-" $options "$@" "work/$target" "corpus/$target"
