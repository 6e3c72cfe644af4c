# Shared by the other scripts, which read it with `source`. Never run alone.
#
# Each script starts with `source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"`, which also changes to
# the repository's folder.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '\033[1m==> %s\033[0m\n' "$*" >&2; }

# die WHAT [WHAT TO DO ...]: each argument is a line.
die() {
    printf 'weir: %s\n' "$1" >&2
    shift
    (($# == 0)) || printf '      %s\n' "$@" >&2
    exit 1
}

have() { command -v "$1" > /dev/null 2>&1; }

# rustup installs here. A shell that was already open does not have it on its PATH yet.
if ! have cargo && [[ -x "$HOME/.cargo/bin/cargo" ]]; then
    PATH="$HOME/.cargo/bin:$PATH"
fi

# Whether the toolchain that builds Weir has the target for guests.
has_wasm_target() {
    [[ -d "$(rustc --print sysroot)/lib/rustlib/wasm32-unknown-unknown/lib" ]]
}

# The Rust version that Cargo.toml requires.
wanted_rust() { sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml | head -n 1; }

rust_of() { "$1" --version | cut -d ' ' -f 2 | cut -d - -f 1; }

# new_enough RUSTC: whether its version is at least the one that Cargo.toml requires.
new_enough() {
    local wanted
    wanted=$(wanted_rust)
    [[ $(printf '%s\n%s\n' "$wanted" "$(rust_of "$1")" | sort -V | head -n 1) == "$wanted" ]]
}

# Whether Debian's toolchain and the sources of its standard library are installed and new enough:
# the other way to build guests.
has_debian_wasm() {
    have wasm-ld && [[ -x /usr/bin/rustc && -x /usr/bin/cargo ]] && compgen -G '/usr/src/rustc-*/library/std' > /dev/null && new_enough /usr/bin/rustc
}

# Tells build.rs which of the two toolchains builds the guests.
export_wasm_choice() {
    if ! has_wasm_target && has_debian_wasm; then
        export WEIR_WASM_DEBIAN=1
    fi
}

# release_program: sets WEIR to the program that is measured, which is built unless it is given.
release_program() {
    if [[ -z ${WEIR:-} ]]; then
        say "Building Weir in the release profile (the first time: a quarter of an hour)"
        cargo build --release --bin weir
        WEIR=${CARGO_TARGET_DIR:-target}/release/weir
    fi
    [[ -x $WEIR ]] || die "there is no $WEIR"
}

# has_browser: whether there is one where tests/harness/browser.rs looks for it.
has_browser() {
    local program
    for program in /usr/lib/chromium/chromium /usr/bin/chromium /usr/bin/chromium-browser \
        /usr/bin/google-chrome /Applications/Chromium.app/Contents/MacOS/Chromium; do
        if [[ -x $program ]]; then return 0; fi
    done
    return 1
}

# more_threads: most tests wait for a socket, a server or a process, so more of them than there are
# cores run at once.
more_threads() {
    local cores
    cores=$(nproc 2> /dev/null || sysctl -n hw.ncpu 2> /dev/null || echo 2)
    export RUST_TEST_THREADS="${RUST_TEST_THREADS:-$((2 * cores))}"
}

# Where setup.sh installs the tools that cargo builds, out of the way of those of other projects.
TOOLS=${CARGO_TARGET_DIR:-target}/tools
