#!/bin/sh
# A wrapper around rustc (RUSTC_WRAPPER): adds coverage to Weir and to nothing that it depends on.
# What wasmtime's macros run in the compiler must have none, and cargo builds that once for both.
rustc=$1
shift
case " $* " in
*" --crate-name weir "*" --crate-type lib "* | *" --crate-name weir_fuzz_policies "* | \
    *" --crate-name modules "* | *" --crate-name answers "*)
    exec "$rustc" "$@" --cfg fuzzing $WEIR_FUZZ_COVERAGE
    ;;
esac
exec "$rustc" "$@"
