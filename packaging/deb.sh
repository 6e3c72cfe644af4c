#!/usr/bin/env bash
# The Debian packages, from the static programs in target/dist/bin: packaging/deb.sh
#
# A static program depends on no library, so one package serves every release of Debian and Ubuntu.
# DEBFULLNAME and DEBEMAIL say who builds it, as for Debian's own tools.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"

dist=${CARGO_TARGET_DIR:-$PWD/target}/dist
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
# Whoever builds this, everybody reads what it installs.
umask 022
maintainer="${DEBFULLNAME:-Weir developers} <${DEBEMAIL:-weir@packages.debian.org}>"
work=$(mktemp -d)
native=$dist/bin/$(uname -m)-unknown-linux-musl/weir
[[ -x $native ]] || die "there is no $native" "It says what the packages' completions are."
trap 'rm -rf "$work"' EXIT

package() { # TARGET ARCHITECTURE
    local program=$dist/bin/$1/weir root=$work/$2
    [[ -f $program ]] || return 0
    install -D -m 755 "$program" "$root/usr/bin/weir"
    install -D -m 644 packaging/proxy.toml "$root/etc/weir/proxy.toml"
    # notify-reload needs systemd 253, and Debian 12 has 252.
    install -d "$root/usr/lib/systemd/system"
    sed -e '/^#/d' -e 's/^Type=notify-reload$/Type=notify\nExecReload=\/bin\/sh -c "kill -HUP $MAINPID"/' \
        docs/systemd/weir.service > "$root/usr/lib/systemd/system/weir.service"
    # An example, because its address has to be that of a listener.
    install -D -m 644 docs/systemd/weir.socket "$root/usr/share/doc/weir/examples/weir.socket"
    install -D -m 644 proxy.toml "$root/usr/share/doc/weir/examples/proxy.toml"
    install -D -m 644 packaging/deb/copyright "$root/usr/share/doc/weir/copyright"
    # The same for each processor, so that of a program that runs here.
    install -d "$root/usr/share/"{bash-completion/completions,zsh/vendor-completions,fish/vendor_completions.d}
    "$native" completions bash > "$root/usr/share/bash-completion/completions/weir"
    "$native" completions zsh > "$root/usr/share/zsh/vendor-completions/_weir"
    "$native" completions fish > "$root/usr/share/fish/vendor_completions.d/weir.fish"
    install -d "$root/usr/share/man/man1"
    gzip -9 -n < packaging/deb/weir.1 > "$root/usr/share/man/man1/weir.1.gz"
    {
        printf 'weir (%s) unstable; urgency=medium\n\n  * See /usr/share/doc/weir/CHANGELOG.md.gz.\n\n' "$version"
        printf ' -- %s  %s\n' "$maintainer" "$(LC_ALL=C date -u -d "@$SOURCE_DATE_EPOCH" '+%a, %d %b %Y %H:%M:%S +0000')"
    } | gzip -9 -n > "$root/usr/share/doc/weir/changelog.gz"
    gzip -9 -n < CHANGELOG.md > "$root/usr/share/doc/weir/CHANGELOG.md.gz"
    install -d "$root/usr/share/lintian/overrides"
    install -m 644 packaging/deb/lintian-overrides "$root/usr/share/lintian/overrides/weir"

    install -d "$root/DEBIAN"
    printf '/etc/weir/proxy.toml\n' > "$root/DEBIAN/conffiles"
    for script in postinst prerm postrm; do
        install -m 755 "packaging/deb/$script" "$root/DEBIAN/$script"
    done
    local size
    size=$(du -k -s --apparent-size "$root" | cut -f 1)
    sed -e "s/@VERSION@/$version/" -e "s/@ARCHITECTURE@/$2/" -e "s/@SIZE@/$size/" \
        -e "s/@MAINTAINER@/$maintainer/" packaging/deb/control > "$root/DEBIAN/control"
    (cd "$root" && find . -type f -not -path './DEBIAN/*' -printf '%P\n' | LC_ALL=C sort | xargs md5sum > DEBIAN/md5sums)
    find "$root" -type d -exec chmod 755 {} +
    chmod 644 "$root"/DEBIAN/{conffiles,control,md5sums}
    find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group -Zxz --build "$root" "$dist/weir_${version}_$2.deb" > /dev/null
    echo "weir_${version}_$2.deb"
}

package x86_64-unknown-linux-musl amd64
package aarch64-unknown-linux-musl arm64
