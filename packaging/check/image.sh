#!/usr/bin/env bash
# Unpacks the image for this machine, runs it as its configuration says, as its user and with its
# variables alone, and sees it work: packaging/check/image.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/lib.sh"

dist=${CARGO_TARGET_DIR:-$PWD/target}/dist
# Unpacked.
megabytes_max=35
root=$(mktemp -d)
trap 'rm -rf "$root" "$root.run"' EXIT
python3 packaging/check/unpack_image.py "$dist"/weir-*-oci.tar "$root" > "$root.run"
variables=()
run=()
while read -r word; do
    if ((${#run[@]} > 0)); then
        run+=("$word")
    elif [[ $word == -- ]]; then
        read -r word
        run=("$word")
    else
        variables+=("$word")
    fi
done < "$root.run"
[[ ! -e $root/bin/sh && ! -e $root/usr/bin/sh ]] || die "there is a shell in the image"
size=$(du --apparent-size --block-size=1M --summarize "$root" | cut -f 1)
((size <= megabytes_max)) || die "the image is $size MiB: at most $megabytes_max are expected"
echo "the image: $size MiB unpacked"
user=$(sed -n 's/^weir:x:\([0-9]*\):.*/\1/p' "$root/etc/passwd")
# The image's user has to be the owner of its folders, so not in a namespace of users. Everybody may
# pass the root, as in a container.
chmod 755 "$root"
mkdir -p "$root/proc" "$root/dev"
# Mounts end with the namespace.
# shellcheck disable=SC2016
mounts='mount -t proc proc "$1/proc" && mount --bind /dev "$1/dev" && shift && exec "$@"'
around=(unshare --mount --propagation private sh -c "$mounts" sh "$root" env -i
    "${variables[@]}" "$(command -v chroot)" "--userspec=$user:$user" --groups= "$root")
"${around[@]}" "${run[0]}" check --config /etc/weir/proxy.toml
python3 packaging/check/serves.py "${around[@]}" "${run[0]}"
compgen -G "$root/var/cache/weir/*" > /dev/null || die "the image has no cache of compiled policies: nothing is in its /var/cache/weir"
