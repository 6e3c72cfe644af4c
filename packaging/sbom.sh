#!/usr/bin/env bash
# What the released program is made of, as CycloneDX: packaging/sbom.sh
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"

dist=${CARGO_TARGET_DIR:-$PWD/target}/dist
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
tools=$(realpath "$TOOLS")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
# In a copy, because the tool writes a file beside each Cargo.toml of the workspace.
git archive HEAD | tar --extract --directory "$work"
(cd "$work" && PATH="$tools/bin:$PATH" cargo cyclonedx -qq --format json --spec-version 1.5 --no-build-deps \
    --target x86_64-unknown-linux-musl --override-filename bom)
# The folder of the copy is in the references of our own crates.
sed "s#$work#/weir#g" "$work/bom.json" > "$dist/weir-$version.cdx.json"
echo "weir-$version.cdx.json"
