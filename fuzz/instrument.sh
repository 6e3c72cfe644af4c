#!/bin/sh
# A wrapper around rustc (RUSTC_WRAPPER): adds coverage to Weir and to nothing that it depends on.
# The crates of wasmtime's proc macros run inside the compiler and must not be instrumented. Cargo
# builds a crate that Weir uses too only once, so RUSTFLAGS can't tell the two uses apart.
rustc=$1
shift
case " $* " in
*" --crate-name weir "*" --crate-type lib "* | *" --crate-name weir_fuzz_policies "* | \
    *" --crate-name modules "* | *" --crate-name answers "*)
    exec "$rustc" "$@" --cfg fuzzing $WEIR_FUZZ_COVERAGE
    ;;
esac
exec "$rustc" "$@"
