#!/usr/bin/env bash
# `make release`: builds the programs and every package that contains them into target/dist, and
# installs each one in a clean root. On Debian; an hour on two cores. `make release TARGETS=...`
# builds for fewer targets. Signed if WEIR_SIGNING_KEY names a secret key of minisign.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

target_folder=${CARGO_TARGET_DIR:-$PWD/target}
dist=$target_folder/dist
read -r -a targets <<< "${TARGETS:-x86_64-unknown-linux-musl aarch64-unknown-linux-musl x86_64-unknown-linux-gnu}"

[[ $(id -u) -eq 0 ]] || die "root is needed: the image has a user of its own, and packages are tried in roots of their own" "In a container or a virtual machine: sudo make release"
[[ -z $(git status --porcelain --untracked-files=no) ]] || die "there are changes that are not committed: a release is of a commit"
[[ " ${targets[*]} " == *" $(uname -m)-unknown-linux-musl "* ]] || die "this machine's own static program is needed to try the packages: $(uname -m)-unknown-linux-musl"
umask 022

scripts/setup.sh build release
"$target_folder/ship/bin/python" packaging/check/tests.py
rm -rf "$dist"
mkdir -p "$dist"
for target in "${targets[@]}"; do packaging/build.sh "$target"; done

say "Packages"
python() { "$target_folder/ship/bin/python" "$@"; }
python packaging/archives.py
python packaging/wheel.py
python packaging/npm.py
python packaging/image.py
python packaging/chart.py
packaging/deb.sh
packaging/sbom.sh
python packaging/homebrew.py

say "Digests"
(cd "$dist" && find . -maxdepth 1 -type f -printf '%P\n' | LC_ALL=C sort | xargs sha256sum > "$target_folder/SHA256SUMS" && mv "$target_folder/SHA256SUMS" .)
if [[ -n ${WEIR_SIGNING_KEY:-} ]]; then
    minisign -S -s "$WEIR_SIGNING_KEY" -m "$dist/SHA256SUMS" -t "weir $(git describe --always --dirty)"
else
    echo "not signed: WEIR_SIGNING_KEY names no key of minisign"
fi

say "Each package in a clean root"
python packaging/chart.py check "$dist/bin/$(uname -m)-unknown-linux-musl/weir"
for archive in "$dist"/weir-*-linux-*.tar.gz; do packaging/check/archive.sh "$archive"; done
packaging/check/wheel.sh
packaging/check/npm.sh
packaging/check/image.sh
packaging/check/deb.sh "$dist"/weir_*_"$(dpkg --print-architecture)".deb
(cd "$dist" && ls -l --block-size=K ./*.* | awk '{ print $5, $9 }')
