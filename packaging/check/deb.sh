#!/usr/bin/env bash
# Installs the Debian package into a fresh Debian, sees it work, and removes it without a trace:
# packaging/check/deb.sh FILE.deb
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/lib.sh"

deb=$(realpath "$1")
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

lintian --fail-on error,warning "$deb"
say "A fresh Debian with $(basename "$deb")"
# Where this machine takes its packages from, the new one does.
sources=()
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources}; do
    if [[ -s $file ]]; then sources+=("$file"); fi
done
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
mmdebstrap --quiet --variant=minbase "$suite" "$root" "${sources[@]}"
cp "$deb" "$root/tmp/weir.deb"
in_root() {
    bwrap --bind "$root" / --dev /dev --proc /proc --tmpfs /run --unshare-pid "$@"
}
# dpkg fetches nothing: what this package needs and a small Debian lacks would be missing.
in_root dpkg --install /tmp/weir.deb
rm "$root/tmp/weir.deb"
[[ -z $(in_root dpkg --audit) ]] || die "dpkg --audit: $(in_root dpkg --audit)"
in_root weir --version
# By this machine's systemd, as there is none in a small Debian.
mkdir "$root/tmp/unit"
sed "s#/usr/bin/weir#$root&#" "$root/usr/lib/systemd/system/weir.service" > "$root/tmp/unit/weir.service"
have systemd-analyze || die "systemd-analyze is missing" "Debian: sudo apt-get install systemd"
problems=$(systemd-analyze verify "$root/tmp/unit/weir.service" 2>&1 | grep weir.service || true)
rm -r "$root/tmp/unit"
[[ -z $problems ]] || die "systemd-analyze verify: $problems"
in_root weir check --config /etc/weir/proxy.toml
python3 packaging/check/serves.py bwrap --bind "$root" / --dev /dev --proc /proc weir
# As `systemctl enable` makes it. There is no systemd in the root to remove it.
install -d "$root/etc/systemd/system/multi-user.target.wants"
ln -s /usr/lib/systemd/system/weir.service "$root/etc/systemd/system/multi-user.target.wants/weir.service"
in_root dpkg --purge weir
left=$(find "$root" -xdev \( -path "$root/proc" -o -path "$root/var/log" -o -path "$root/var/lib/dpkg" -o -name .cache \) -prune -o -name '*weir*' -print)
[[ -z $left ]] || die "left behind: $left"
