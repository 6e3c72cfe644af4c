#!/usr/bin/env bash
# Builds the program as it is released, for one target, into target/dist/bin/TARGET/weir:
#
#     packaging/build.sh x86_64-unknown-linux-musl
#
# zig is the C compiler and the linker. It brings each target's C library, so that the machine needs
# no cross-compiler, and links against the glibc that is asked for, whatever the machine has. No path
# of the machine is in the program: packaging/reproduce.sh compares two builds of one commit.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"

target=${1:?the target, as in x86_64-unknown-linux-musl}
target_folder=${CARGO_TARGET_DIR:-$PWD/target}
case $target in
    *-linux-musl) zig_target=$target ;;
    # The glibc of RHEL 8, Debian 10 and Ubuntu 20.04.
    *-linux-gnu) zig_target=$target.2.28 ;;
    *) die "there is no release for $target" "See packaging/README.md for those that there are." ;;
esac

export_wasm_choice
# No path of this machine may be in the program, and none of the times at which it is built.
cargo_home=${CARGO_HOME:-$HOME/.cargo}
sysroot=$(rustc --print sysroot)
remap="--remap-path-prefix=$target_folder=/target --remap-path-prefix=$PWD=/weir --remap-path-prefix=$cargo_home=/cargo --remap-path-prefix=$sysroot=/rust"
export RUSTFLAGS="$remap"
# LuaJIT's makefile also links a program, which needs the unwinder of zig.
export CFLAGS="-ffile-prefix-map=$target_folder=/target -ffile-prefix-map=$cargo_home=/cargo -lunwind -Wno-unused-command-line-argument"
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
# LuaJIT's makefile is told by its own build script what to cross-compile with; the tools that it
# runs meanwhile are this machine's.
export HOST_CC=${HOST_CC:-cc}

# LuaJIT's makefile strips a program that nobody uses, with this machine's strip, which knows no
# other processor.
shims=$(mktemp -d)
trap 'rm -rf "$shims"' EXIT
printf '#!/bin/sh\n' > "$shims/strip"
chmod +x "$shims/strip"

say "Building for $target"
# `cargo auditable` puts the list of dependencies into the program, for scanners.
PATH="$shims:$TOOLS/bin:$target_folder/ship/bin:$PATH" cargo auditable zigbuild \
    --locked --release --package weir --bin weir --target "$zig_target"
mkdir -p "$target_folder/dist/bin/$target"
install -m 755 "$target_folder/$target/release/weir" "$target_folder/dist/bin/$target/weir"
