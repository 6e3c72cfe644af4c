#!/usr/bin/env bash
# Installs the wheel for this machine with pip, and nothing from elsewhere, into a fresh
# environment, sees it work, and removes it: packaging/check/wheel.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/lib.sh"

dist=${CARGO_TARGET_DIR:-$PWD/target}/dist
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
python3 -m venv "$root/venv"
"$root/venv/bin/pip" install --quiet --disable-pip-version-check --no-index --find-links "$dist" weir-proxy
[[ $("$root/venv/bin/weir" --version) == $("$root/venv/bin/weir-proxy" --version) ]] || die "weir and weir-proxy differ"
python3 packaging/check/serves.py "$root/venv/bin/weir"
python3 packaging/check/serves.py "$root/venv/bin/weir-proxy"
"$root/venv/bin/pip" uninstall --quiet --yes weir-proxy
[[ ! -e $root/venv/bin/weir && ! -e $root/venv/bin/weir-proxy ]] || die "the programs are still there"
