#!/usr/bin/env bash
# Unpacks an archive into an empty root, where there is nothing but the program, and sees it work:
# packaging/check/archive.sh FILE.tar.gz
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/lib.sh"

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
tar --extract --gzip --file "$1" --strip-components 1 --directory "$root"
if [[ $1 == *linux-musl* ]]; then
    around=(bwrap --bind "$root" / --dev /dev --proc /proc)
    program=/weir
else
    around=()
    program=$root/weir
fi
if [[ $1 == *-$(uname -m)-* ]]; then
    python3 packaging/check/serves.py "${around[@]}" "$program"
else
    # The emulator is this machine's.
    machine=$(basename "$1" | sed 's/.*-\([a-z0-9_]*\)-unknown.*/\1/')
    around=("qemu-$machine")
    if [[ $1 == *linux-gnu* ]]; then
        # Debian's libraries of another processor, as of the package libc6-amd64-cross.
        libraries=/usr/$machine-linux-gnu
        if [[ ! -d $libraries ]]; then
            echo "not tried: $(basename "$1") needs a glibc for $machine, and there is none in $libraries"
            exit 0
        fi
        around+=(-L "$libraries")
    fi
    # It may not take all of this machine's memory.
    ulimit -v 16000000
    python3 packaging/check/serves.py --emulated "${around[@]}" "$root/weir"
fi
