#!/usr/bin/env bash
# `make lint`: the checks that run none of Weir's code.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

scripts/setup.sh build lint
export_wasm_choice
say "Formatting"
cargo fmt --all --check
say "Licences, sources and duplicates of dependencies"
# Not `advisories`: their database is on GitHub, which a build may not reach, and a new advisory
# would fail a commit that has nothing to do with it. deny.toml says how to check them.
"$TOOLS/bin/cargo-deny" --locked --workspace check --hide-inclusion-graph \
    --deny unmatched-skip --deny unnecessary-skip bans licenses sources
say "Lua"
luacheck lua benches examples/scripts
say "Clippy, warnings denied"
cargo clippy --workspace --all-targets -- -D warnings
say "weir-client without TLS"
cargo check --quiet --locked -p weir-client --no-default-features
# fuzz/ is a workspace of its own, which no test builds. Checking it needs no libFuzzer, and so no
# C++ compiler.
say "Fuzz targets"
CUSTOM_LIBFUZZER_PATH=/none/libfuzzer.a cargo check --quiet --locked --manifest-path fuzz/Cargo.toml
# The crate that depends on all of Weir is compiled by Weir's own tests; here only its versions.
cargo tree --quiet --locked --depth 0 --manifest-path fuzz/policies/Cargo.toml > /dev/null
