#!/usr/bin/env bash
# `make bench`: sets up what the benchmark needs, builds Weir in the release profile, and measures. What may be set: benches/README.md.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"

[[ $(uname -s) == Linux ]] || die "the benchmark reads /proc and pins cores: it needs Linux"
(($(nproc) >= 2)) || die "two cores are needed: one for the proxy, one for everything else"
# Where Debian puts nginx and HAProxy.
PATH="$PATH:/usr/sbin"
scripts/setup.sh build bench
export_wasm_choice
say "Building Weir and the benchmark in the release profile (the first time: a quarter of an hour)"
exec cargo bench --bench compare
