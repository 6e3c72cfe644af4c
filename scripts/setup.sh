#!/usr/bin/env bash
# Installs what the named parts need: `build` (no root needed with rustup), `test` (Redis), `lint`,
# `interop` (other people's programs), `bench`, `release`. Prints what it does, and what to type if it can't.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# ---- Packages ------------------------------------------------------------------------------------

# root COMMAND ...: runs the command as root, or fails. Never asks for a password, because waiting
# for one would hang CI.
root() {
    if [[ $(id -u) -eq 0 ]]; then
        "$@"
    elif have sudo && sudo -n true 2> /dev/null; then
        sudo -n "$@"
    else
        return 1
    fi
}

# Packages must not start their services: while this file exists, Debian starts none.
guard=/usr/sbin/policy-rc.d
guard_up() {
    [[ -e $guard ]] && return
    trap guard_down EXIT
    printf '#!/bin/sh\n# Written by weir/scripts/setup.sh during an installation.\nexit 101\n' | root tee "$guard" > /dev/null
    root chmod 755 "$guard"
}
guard_down() {
    if grep -qs 'weir/scripts/setup.sh' "$guard"; then root rm -f "$guard"; fi
    trap - EXIT
}

# install PACKAGE ...: with apt, or with Homebrew on macOS.
install() {
    if [[ $(uname -s) == Darwin ]]; then
        have brew || die "missing: $*" "Install Homebrew (https://brew.sh), then: brew install $*"
        say "Installing $*"
        brew install "$@"
        return
    fi
    have apt-get || die "missing: $*" "Install the equivalents of these Debian packages with your system's package manager, then try again."
    if ! root true; then
        die "packages are missing, and installing them needs root (sudo would ask for a password)" \
            "Type this, then try again:" \
            "    sudo apt-get update && sudo RUNLEVEL=1 apt-get install -y --no-install-recommends $*"
    fi
    say "Installing $* (apt-get, as root)"
    if ! apt-cache show "$1" > /dev/null 2>&1; then
        root apt-get update -q
    fi
    guard_up
    if ! root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"; then
        # Old package lists name versions that the mirror no longer has.
        root apt-get update -q
        root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"
    fi
    guard_down
    # The services must not start at the next boot either. If a service ran before, its package was
    # not installed here.
    [[ -d /run/systemd/system ]] || return 0
    if [[ " $* " == *" redis-server "* ]]; then root systemctl disable --quiet redis-server; fi
    if [[ " $* " == *" nginx-light "* ]]; then root systemctl disable --quiet nginx; fi
    if [[ " $* " == *" haproxy "* ]]; then root systemctl disable --quiet haproxy; fi
    if [[ " $* " == *" prometheus "* ]]; then root systemctl disable --quiet prometheus; fi
    if [[ " $* " == *" lighttpd "* ]]; then root systemctl disable --quiet lighttpd; fi
    if [[ " $* " == *" caddy "* ]]; then root systemctl disable --quiet caddy; fi
}

# ---- Parts ---------------------------------------------------------------------------------------

toolchain() {
    have cargo || die "cargo is missing" \
        "Install Rust with rustup (https://rustup.rs):" \
        "    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh"
    have cc || have gcc || have clang || die "a C compiler is missing (LuaJIT is built from source)" \
        "Debian, Ubuntu: sudo apt-get install build-essential" \
        "macOS: xcode-select --install"
    have make || die "make is missing" "Debian, Ubuntu: sudo apt-get install make"
    new_enough rustc || die "Rust $(rust_of rustc) is older than $(wanted_rust)" "Type: rustup update stable"
}

wasm() {
    has_wasm_target && return
    if have rustup; then
        say "Adding the target wasm32-unknown-unknown (rustup)"
        rustup target add wasm32-unknown-unknown || say "rustup could not download it"
        has_wasm_target && return
    fi
    has_debian_wasm && return
    have apt-get || die "the target wasm32-unknown-unknown is missing" "Type: rustup target add wasm32-unknown-unknown"
    say "Falling back to Debian's toolchain for the guests; this needs root"
    # In addition to rustup's toolchain, which still builds everything else.
    install rustc-web cargo-web rust-web-src lld
    has_debian_wasm || die "Debian's packages can't build the guests" \
        "Expected: /usr/bin/rustc ($(wanted_rust) or later), /usr/bin/cargo, wasm-ld, /usr/src/rustc-*/library/std" \
        "If Debian's versions are older, this is the only way: rustup target add wasm32-unknown-unknown"
}

component() { # NAME PROBE
    cargo "$2" --version > /dev/null 2>&1 && return
    have rustup || die "cargo $2 is missing" "Install your toolchain's $1 component or package."
    say "Adding $1 (rustup)"
    rustup component add "$1"
}


# Whether C can be compiled for WebAssembly.
has_wasm_clang() {
    local folder found=1
    folder=$(mktemp -d)
    echo 'int empty(void) { return 0; }' > "$folder/empty.c"
    if clang --target=wasm32-wasi -mexec-model=reactor -o "$folder/empty.wasm" "$folder/empty.c" 2> /dev/null; then found=0; fi
    rm -rf "$folder"
    return $found
}

# has_candidate PACKAGE: whether apt can install it. One package that it can't would fail all others.
has_candidate() {
    if ! apt-cache show "$1" > /dev/null 2>&1; then root apt-get update -q > /dev/null 2>&1 || true; fi
    [[ $(LC_ALL=C apt-cache policy "$1" 2> /dev/null) == *"Candidate: "[!\(]* ]]
}

# add_missing PART: adds the packages of a part that are missing to `missing`.
add_missing() {
    local mac=no
    [[ $(uname -s) != Darwin ]] || mac=yes
    case $1 in
        test)
            if ! have redis-server || ! have redis-cli; then
                if [[ $mac == yes ]]; then missing+=(redis); else missing+=(redis-server); fi
            fi
            ;;
        lint)
            if ! have luacheck; then
                if [[ $mac == yes ]]; then missing+=(luacheck); else missing+=(lua-check); fi
            fi
            ;;
        interop)
            # The tests of skewed clocks are built on Linux only.
            if [[ $mac == no ]] && ! compgen -G '/usr/lib/*/faketime/libfaketime.so.1' > /dev/null; then missing+=(faketime); fi
            # For benches/instructions.sh; it does not exist for macOS.
            if [[ $mac == no ]] && ! have valgrind; then missing+=(valgrind); fi
            # Real clients and upstreams for both sides of Weir. Debian's nginx is in a folder that
            # is rarely on the PATH.
            have curl || missing+=(curl)
            if ! have nginx && [[ ! -x /usr/sbin/nginx ]]; then
                if [[ $mac == yes ]]; then missing+=(nginx); else missing+=(nginx-light); fi
            fi
            if ! some_python > /dev/null; then
                if [[ $mac == yes ]]; then missing+=(python3); else missing+=(python3-venv); fi
            fi
            # Loads docs/prometheus and asks what docs/grafana asks.
            have promtool || missing+=(prometheus)
            # They check their configurations in docs/side-by-side.md, and ask Weir as
            # docs/forward-auth.md has it.
            have haproxy || [[ -x /usr/sbin/haproxy ]] || missing+=(haproxy)
            have caddy || missing+=(caddy)
            # Upstreams for the tests of spellings. lighttpd is in a folder that is rarely on the
            # PATH.
            if ! have php; then
                if [[ $mac == yes ]]; then missing+=(php); else missing+=(php-cli); fi
            fi
            have lighttpd || [[ -x /usr/sbin/lighttpd ]] || missing+=(lighttpd)
            # An authority for certificates. Homebrew has none, and there its tests fail.
            if [[ $mac == no ]]; then have pebble || missing+=(pebble); fi
            have perl || missing+=(perl)
            # Builds the client in Go.
            if ! have go; then
                if [[ $mac == yes ]]; then missing+=(go); else missing+=(golang-go); fi
            fi
            # npm, which installs the Node.js of the tests.
            if ! have node || ! have npm; then
                if [[ $mac == yes ]]; then missing+=(node); else missing+=(nodejs npm); fi
            fi
            # Apple's clang has no such target: the policy in C is tested on Linux only.
            if [[ $mac == no ]] && ! has_wasm_clang; then missing+=(clang lld wasi-libc libclang-rt-dev-wasm32); fi
            # A browser for the tests of the live page, and a font, since the page has none of its
            # own. Homebrew has it as a cask; see browser().
            if [[ $mac == no && -z ${WEIR_NO_BROWSER:-} ]] && ! has_browser; then
                if ! have apt-get || has_candidate chromium; then
                    missing+=(chromium fonts-liberation)
                else
                    say "apt has no package of chromium: see below for other browsers"
                fi
            fi
            ;;
    esac
}

# packages_for PART ...: installs the missing packages with one command, in case it has to be typed
# by hand.
packages_for() {
    local missing=() part
    for part in "$@"; do add_missing "$part"; done
    ((${#missing[@]} == 0)) || install "${missing[@]}"
}

# The proxies that Weir is compared with, and the load generators: Debian's, on Linux only.
packages_for_bench() {
    local missing=() lua=/usr/share/lua/5.1/nginx/redis.lua
    have curl || missing+=(curl)
    have wrk || missing+=(wrk)
    have h2load || missing+=(nghttp2-client)
    have redis-server || missing+=(redis-server)
    have haproxy || [[ -x /usr/sbin/haproxy ]] || missing+=(haproxy)
    have nginx || [[ -x /usr/sbin/nginx ]] || missing+=(nginx-light)
    [[ -e /usr/share/nginx/modules/ngx_http_lua_module.so ]] || missing+=(libnginx-mod-http-lua)
    [[ -e $lua ]] || missing+=(lua-nginx-redis)
    ((${#missing[@]} == 0)) || install "${missing[@]}"
}

# What the packages are made and tried with: Debian's, on Linux only.
packages_for_release() {
    local missing=() program
    for program in umoci bubblewrap:bwrap mmdebstrap lintian minisign qemu-user:qemu-aarch64 npm \
        systemd:systemd-analyze; do
        have "${program#*:}" || missing+=("${program%:*}")
    done
    some_python 11 > /dev/null || missing+=(python3-venv)
    ((${#missing[@]} == 0)) || install "${missing[@]}"
}

# The compiler and linker of released programs, for each target, with what cargo needs to use it.
release_tools() {
    local wanted=packaging/requirements.txt folder=${CARGO_TARGET_DIR:-target}/ship python target tool
    if ! cmp -s "$wanted" "$folder/requirements.txt"; then
        # packaging/common.py reads TOML, which Python can since 3.11.
        python=$(some_python 11) || die "Python 3.11 or later with venv and ensurepip is missing" \
            "Debian 12, Ubuntu 24.04 or later: sudo apt-get install python3-venv"
        say "Installing what releases are built with into $folder"
        "$python" -m venv --clear "$folder"
        "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: --requirement "$wanted" ||
            die "pip could not install $wanted" "It needs PyPI, or an index of yours (PIP_INDEX_URL)."
        cp "$wanted" "$folder/requirements.txt"
    fi
    for target in x86_64-unknown-linux-musl aarch64-unknown-linux-musl x86_64-unknown-linux-gnu; do
        [[ -d $(rustc --print sysroot)/lib/rustlib/$target/lib ]] || rustup target add "$target" ||
            die "the target $target is missing" "Type: rustup target add $target"
    done
    for tool in cargo-auditable@$auditable_version cargo-cyclonedx@$cyclonedx_version; do
        cargo install --list --root "$TOOLS" | grep -qx "${tool%@*} v${tool#*@}:" && continue
        say "Installing ${tool%@*} into $TOOLS"
        cargo install "$tool" --quiet --locked --root "$TOOLS" ||
            die "cargo could not install ${tool%@*}" "It needs crates.io, or a registry in its place (.cargo/config.toml)."
    done
}
auditable_version=0.7.7
cyclonedx_version=0.5.9

# There must be a browser, unless WEIR_NO_BROWSER=1 leaves out the tests that need one.
browser() {
    if [[ -n ${WEIR_NO_BROWSER:-} ]] || has_browser; then return; fi
    die "there is no browser for the tests of the live page" \
        "Debian: sudo apt-get install chromium fonts-liberation" \
        "Ubuntu: Google's package (https://www.google.com/chrome/), since its own chromium is a snap, which sees no folders of tests" \
        "macOS: brew install --cask chromium" \
        "To leave these tests out: WEIR_NO_BROWSER=1 make test-all"
}

# The version of cargo-deny that deny.toml is written for, built by cargo: a minute or two, once.
# Without optimisation: that takes a quarter of the time, and a check five seconds instead of two.
deny_version=0.20.2
deny_tool() {
    if [[ $("$TOOLS/bin/cargo-deny" --version 2> /dev/null) == "cargo-deny $deny_version" ]]; then return; fi
    say "Installing cargo-deny into $TOOLS"
    CARGO_PROFILE_DEV_DEBUG=0 \
        cargo install cargo-deny --quiet --locked --debug --version "$deny_version" --root "$TOOLS" ||
        die "cargo could not install cargo-deny" "It needs crates.io, or a registry in its place (.cargo/config.toml)."
}

redis_version() {
    local version
    version=$(redis-server --version | sed -n 's/.*v=\([0-9]*\).*/\1/p')
    ((version >= 7)) || die "redis-server $version is too old: 7.0 or later is needed" \
        "https://redis.io/docs/latest/operate/oss_and_stack/install/ has packages for other systems."
}

curl_version() {
    [[ $(curl --version) == *HTTP2* ]] || die "$(command -v curl) can't speak HTTP/2" \
        "Debian's and Homebrew's can; put one of them first on the PATH."
}

# some_python [MINOR]: a Python that can create a virtual environment, 3.10 or 3.MINOR or later: the
# one on the PATH, or else Debian's, which a version manager's may hide.
some_python() {
    local python
    for python in python3 /usr/bin/python3; do
        if "$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, int(sys.argv[1])))' "${1:-10}" > /dev/null 2>&1; then
            printf '%s\n' "$python"
            return
        fi
    done
    return 1
}

# The tests' Python packages, in a virtual environment under target/. A copy of the list is written
# last: it shows that the installation is complete.
python_packages() {
    local wanted=tests/clients/requirements.txt folder=${CARGO_TARGET_DIR:-target}/python python
    if cmp -s "$wanted" "$folder/requirements.txt" && "$folder/bin/python" -c 'import httpx' > /dev/null 2>&1; then return; fi
    python=$(some_python) || die "Python 3.10 or later with venv and ensurepip is missing" \
        "Debian, Ubuntu: sudo apt-get install python3-venv" \
        "macOS: brew install python3"
    say "Installing the tests' Python packages into $folder"
    mkdir -p "$(dirname "$folder")"
    "$python" -m venv --clear "$folder"
    # Wheels only: building grpcio takes half an hour.
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: --requirement "$wanted" ||
        die "pip could not install $wanted" "It needs PyPI, or an index of yours (PIP_INDEX_URL), and wheels for $("$python" --version)."
    cp "$wanted" "$folder/requirements.txt"
}

# The oldest Node.js on which the tests' packages run.
node_version=20

# What tests need of npm, with a Node.js of their own, in a folder under target/: Debian's Node.js is
# too old for componentize-qjs. As above, the copy of the list is written last.
node_packages() {
    local wanted=tests/clients/package.json target=${CARGO_TARGET_DIR:-target}
    if ! cmp -s "$wanted" "$target/node/complete.json"; then
        say "Installing the tests' packages from npm into $target/node"
        rm -rf "$target/node"
        mkdir -p "$target/node"
        cp "$wanted" "$target/node/package.json"
        npm install --prefix "$target/node" --no-package-lock --no-audit --no-fund --loglevel error ||
            die "npm could not install $wanted" "It needs the npm registry, or one of yours (npm_config_registry)."
        local node=$target/node/node_modules/.bin/node version
        version=$("$node" --version 2> /dev/null | sed -n 's/^v\([0-9]*\).*/\1/p')
        ((${version:-0} >= node_version)) ||
            die "$node is ${version:-missing}: Node.js $node_version or later is needed" \
                "npm installs it as the package \`node\`, whose install script must be allowed to run (npm config get ignore-scripts)."
        cp "$wanted" "$target/node/complete.json"
    fi
}

packages=()
for part in "$@"; do
    case $part in
        build)
            toolchain
            wasm
            ;;
        test | lint | interop) packages+=("$part") ;;
        bench | release) ;;
        *) die "setup.sh knows build, test, lint, interop, bench and release, not $part" ;;
    esac
done
# All packages at once, in case root has to type the command.
((${#packages[@]} == 0)) || packages_for "${packages[@]}"
for part in "$@"; do
    case $part in
        test)
            component rustfmt fmt
            redis_version
            ;;
        lint)
            component rustfmt fmt
            component clippy clippy
            deny_tool
            ;;
        interop)
            curl_version
            python_packages
            node_packages
            # Last, so that everything else is there without one.
            browser
            ;;
        bench)
            packages_for_bench
            redis_version
            ;;
        release)
            packages_for_release
            release_tools
            ;;
    esac
done
