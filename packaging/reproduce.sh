#!/usr/bin/env bash
# Builds one target twice, from two clones in two folders, and compares the programs:
# packaging/reproduce.sh [TARGET]. Twice as long as packaging/build.sh.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"

target=${1:-x86_64-unknown-linux-musl}
shared=$(realpath "${CARGO_TARGET_DIR:-target}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset CARGO_TARGET_DIR
for folder in one another/folder; do
    git clone --quiet . "$work/$folder"
    mkdir -p "$work/$folder/target"
    ln -s "$shared/ship" "$shared/tools" "$work/$folder/target/"
    "$work/$folder/packaging/build.sh" "$target"
done
cd "$work"
sha256sum {one,another/folder}/target/dist/bin/"$target"/weir
cmp {one,another/folder}/target/dist/bin/"$target"/weir || die "two builds of one commit differ"
