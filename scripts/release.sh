#!/usr/bin/env bash
# `make release`: the binary as it is shipped. It is built, put under the benchmark's load, and built again with what that has shown (profile-guided
# optimisation): a tenth less CPU in user space than `cargo build --release`, for half an hour of building. Linux only, like the benchmark.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

[[ $(uname -s) == Linux ]] || die "profiles are taken with the benchmark, which needs Linux" "Type: cargo build --release"
PATH="$PATH:/usr/sbin"
scripts/setup.sh build bench
export_wasm_choice

host=$(rustc -vV | sed -n 's/^host: //p')
tool=$(rustc --print sysroot)/lib/rustlib/$host/bin/llvm-profdata
if [[ ! -x $tool ]]; then
    say "Adding llvm-tools (rustup)"
    have rustup && rustup component add llvm-tools || true
    [[ -x $tool ]] || die "there is no $tool" "With rustup: rustup component add llvm-tools"
fi

target=$(realpath "${CARGO_TARGET_DIR:-target}")
profiles=$target/pgo/profiles
rm -rf "$profiles"
mkdir -p "$profiles"

# build FOLDER FLAGS: a target is named, so that the flags are for the binary and not for what runs during the build.
build() { RUSTFLAGS=$2 cargo build --release --bin weir --target "$host" --target-dir "$target/pgo/$1"; }

say "Building Weir so that it counts what it does"
# Counting begins before the link: without LTO the same is counted, and it is built sooner.
CARGO_PROFILE_RELEASE_LTO=off build counting "-Cprofile-generate=$profiles"

say "Putting it under the benchmark's load"
WEIR=$target/pgo/counting/$host/release/weir ROUNDS=1 SECONDS_EACH=3 CASES="weir weir-cluster" \
    cargo bench --workspace --profile dev --bench compare
"$tool" merge -o "$target/pgo/weir.profdata" "$profiles"

say "Building Weir with what that has shown"
build final "-Cprofile-use=$target/pgo/weir.profdata"
mkdir -p "$target/release"
cp --remove-destination "$target/pgo/final/$host/release/weir" "$target/release/weir"
say "target/release/weir: $(du -k --apparent-size "$target/release/weir" | cut -f 1) KiB"
