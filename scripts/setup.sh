#!/usr/bin/env bash
# Sets up what the named parts need: `build` (no root where rustup is), `lint`, `test`. Says what it does, and what to type where it can't.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# ---- Packages -------------------------------------------------------------------------------------------------------------------------

# root COMMAND ...: as root, or not at all. Never asks for a password: a script that waits for one hangs a CI.
root() {
    if [[ $(id -u) -eq 0 ]]; then
        "$@"
    elif have sudo && sudo -n true 2> /dev/null; then
        sudo -n "$@"
    else
        return 1
    fi
}

# A package must not start its service: while this stands, Debian starts none.
guard=/usr/sbin/policy-rc.d
guard_up() {
    [[ -e $guard ]] && return
    trap guard_down EXIT
    printf '#!/bin/sh\n# Written by weir/scripts/setup.sh for the time of an installation.\nexit 101\n' | root tee "$guard" > /dev/null
    root chmod 755 "$guard"
}
guard_down() {
    if grep -qs 'weir/scripts/setup.sh' "$guard"; then root rm -f "$guard"; fi
    trap - EXIT
}

# install PACKAGE ...: by apt, or by Homebrew on macOS.
install() {
    if [[ $(uname -s) == Darwin ]]; then
        have brew || die "missing: $*" "Install Homebrew (https://brew.sh), then: brew install $*"
        say "Installing $*"
        brew install "$@"
        return
    fi
    have apt-get || die "missing: $*" "Install what these Debian packages hold with your system's package manager, then try again."
    if ! root true; then
        die "missing packages, and no root (sudo would ask for a password)" \
            "Type this, then try again:" \
            "    sudo apt-get update && sudo RUNLEVEL=1 apt-get install -y --no-install-recommends $*"
    fi
    say "Installing $* (apt-get, as root)"
    if ! apt-cache show "$1" > /dev/null 2>&1; then
        root apt-get update -q
    fi
    guard_up
    if ! root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"; then
        # Old lists name versions that the mirror no longer has.
        root apt-get update -q
        root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"
    fi
    guard_down
    # Nor at the next boot. A machine that ran Redis before keeps it: then nothing was installed here.
    if [[ " $* " == *" redis-server "* && -d /run/systemd/system ]]; then
        root systemctl disable --quiet redis-server
    fi
}

# ---- Parts ----------------------------------------------------------------------------------------------------------------------------

toolchain() {
    have cargo || die "cargo is missing" \
        "Install Rust with rustup (https://rustup.rs):" \
        "    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh"
    have cc || have gcc || have clang || die "a C compiler is missing (LuaJIT is built from source)" \
        "Debian, Ubuntu: sudo apt-get install build-essential" \
        "macOS: xcode-select --install"
    have make || die "make is missing" "Debian, Ubuntu: sudo apt-get install make"
    local wanted found
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
    found=$(rustc --version | cut -d ' ' -f 2)
    if [[ $(printf '%s\n%s\n' "$wanted" "${found%%-*}" | sort -V | head -n 1) != "$wanted" ]]; then
        die "Rust $found is older than $wanted" "Type: rustup update stable"
    fi
}

wasm() {
    has_wasm_target && return
    if have rustup; then
        say "Adding the target wasm32-unknown-unknown (rustup)"
        rustup target add wasm32-unknown-unknown || say "rustup could not fetch it"
        has_wasm_target && return
    fi
    has_debian_wasm && return
    have apt-get || die "the target wasm32-unknown-unknown is missing" "Type: rustup target add wasm32-unknown-unknown"
    say "Falling back to Debian's toolchain for the guests; this needs root"
    # Beside rustup's, which goes on building everything else.
    install rustc-web cargo-web rust-web-src lld
    has_debian_wasm || die "Debian's packages were installed, but no WebAssembly toolchain was found in them" \
        "Expected: /usr/bin/rustc, /usr/bin/cargo, wasm-ld, /usr/src/rustc-*/library/std"
}

component() { # NAME PROBE
    cargo "$2" --version > /dev/null 2>&1 && return
    have rustup || die "cargo $2 is missing" "Install your toolchain's $1 component or package."
    say "Adding $1 (rustup)"
    rustup component add "$1"
}

lint() {
    component rustfmt fmt
    component clippy clippy
    if ! have luacheck; then
        if [[ $(uname -s) == Darwin ]]; then install luacheck; else install lua-check; fi
    fi
}

tests() {
    local missing=()
    if ! have redis-server || ! have redis-cli; then
        if [[ $(uname -s) == Darwin ]]; then missing+=(redis); else missing+=(redis-server); fi
    fi
    if ! compgen -G '/usr/lib/*/faketime/libfaketime.so.1' > /dev/null && ! compgen -G '/opt/homebrew/lib/faketime/*' > /dev/null; then
        if [[ $(uname -s) == Darwin ]]; then missing+=(libfaketime); else missing+=(faketime); fi
    fi
    ((${#missing[@]} == 0)) || install "${missing[@]}"
    local version
    version=$(redis-server --version | sed -n 's/.*v=\([0-9]*\).*/\1/p')
    ((version >= 7)) || die "redis-server $version is too old: 7.0 or later is needed" \
        "https://redis.io/docs/latest/operate/oss_and_stack/install/ has packages for older systems."
}

for part in "$@"; do
    case $part in
        build)
            toolchain
            wasm
            ;;
        lint) lint ;;
        test)
            lint
            tests
            ;;
        *) die "setup.sh knows build, lint and test, not $part" ;;
    esac
done
