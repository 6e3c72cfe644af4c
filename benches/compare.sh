#!/usr/bin/env bash
# `make bench`: installs what the benchmark needs, builds Weir in the release profile, and measures.
# benches/README.md lists the settings.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"

[[ $(uname -s) == Linux ]] || die "the benchmark reads /proc and pins cores: it needs Linux"
(($(nproc) >= 2)) || die "two cores are needed: one for the proxy, one for everything else"
# Where Debian puts nginx and HAProxy.
PATH="$PATH:/usr/sbin"
scripts/setup.sh build bench
export_wasm_choice
if [[ -z ${WEIR:-} ]]; then
    say "Building Weir in the release profile (the first time: a quarter of an hour)"
    cargo build --release --bin weir
    WEIR=${CARGO_TARGET_DIR:-target}/release/weir
fi
[[ -x $WEIR ]] || die "there is no $WEIR"
WEIR=$(realpath "$WEIR")
export WEIR
# The measuring program need not be fast, and is built with the dependencies of the tests.
exec cargo bench --workspace --profile dev --bench compare
