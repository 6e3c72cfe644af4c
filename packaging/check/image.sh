#!/usr/bin/env bash
# Unpacks the image for this machine, runs it as its configuration says, as its user, and sees it
# work: packaging/check/image.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/lib.sh"

dist=${CARGO_TARGET_DIR:-$PWD/target}/dist
# Unpacked.
megabytes_max=35
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
python3 packaging/check/unpack_image.py "$dist"/weir-*-oci.tar "$root" > "$root.run"
read -r -a run < "$root.run"
rm -f "$root.run"
[[ ! -e $root/bin/sh && ! -e $root/usr/bin/sh ]] || die "there is a shell in the image"
size=$(du --apparent-size --block-size=1M --summarize "$root" | cut -f 1)
((size <= megabytes_max)) || die "the image is $size MiB: at most $megabytes_max are expected"
echo "the image: $size MiB unpacked"
user=$(sed -n 's/^weir:x:\([0-9]*\):.*/\1/p' "$root/etc/passwd")
around=(bwrap --bind "$root" / --dev /dev --proc /proc --unshare-user --uid "$user" --gid "$user" --cap-drop ALL)
"${around[@]}" "${run[0]}" check --config /etc/weir/proxy.toml
python3 packaging/check/serves.py "${around[@]}" "${run[0]}"
