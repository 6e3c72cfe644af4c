#!/usr/bin/env bash
# `make site`: the documentation as a site in target/book/site, with a folder for this version, and
# every link followed. Needs cargo and Python; mdBook is built the first time.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

mdbook_version=0.5.4
have python3 || die "python3 is missing"
if ! cargo install --list --root "$TOOLS" | grep -qx "mdbook v$mdbook_version:"; then
    say "Installing mdBook into $TOOLS (the first time: some minutes)"
    cargo install mdbook --quiet --locked --version "$mdbook_version" --root "$TOOLS" ||
        die "cargo could not install mdBook" "It needs crates.io, or a registry in its place (.cargo/config.toml)."
fi
python3 scripts/site.py "$TOOLS/bin/mdbook" "${CARGO_TARGET_DIR:-target}/book"
