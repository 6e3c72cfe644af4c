#!/bin/sh
# A wrapper around rustc (RUSTC_WRAPPER): adds coverage to Weir, and to the crates that read modules
# for it. wasmtime's compiler is left as it is, which would take long to build and to run.
rustc=$1
shift
case " $* " in
*" --crate-name weir "* | *" --crate-name weir_fuzz_policies "* | *" --crate-name modules "* | \
    *" --crate-name answers "* | *" --crate-name wasmparser "* | *" --crate-name wit_component "*)
    exec "$rustc" "$@" --cfg fuzzing $WEIR_FUZZ_COVERAGE
    ;;
esac
exec "$rustc" "$@"
