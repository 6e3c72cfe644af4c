#!/usr/bin/env bash
# Installs the packages of npm for this machine into an empty folder, sees them work, and removes
# them: packaging/check/npm.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/lib.sh"

dist=${CARGO_TARGET_DIR:-$PWD/target}/dist
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
case $(uname -m) in
    x86_64) cpu=x64 ;;
    aarch64) cpu=arm64 ;;
    *) die "there is no package of npm for $(uname -m)" ;;
esac
# The platform's package first: from a registry, npm would choose it from the optional ones.
npm install --prefix "$root" --offline --no-audit --no-fund --loglevel error \
    "$dist"/weir-proxy-linux-$cpu-[0-9]*.tgz
npm install --prefix "$root" --offline --omit=optional --no-audit --no-fund --loglevel error \
    "$dist"/weir-proxy-[0-9]*.tgz
python3 packaging/check/serves.py "$root/node_modules/.bin/weir"
# Where the other package is missing, the small one says so.
rm -rf "$root/node_modules/weir-proxy-linux-$cpu"
said=$("$root/node_modules/.bin/weir" --version 2>&1) && die "the launcher found a program: $said"
[[ $said == *"the package weir-proxy-linux-$cpu is missing"* ]] || die "the launcher said: $said"
npm uninstall --prefix "$root" --loglevel error --no-audit weir-proxy
[[ ! -e $root/node_modules/.bin/weir ]] || die "the program is still there"
