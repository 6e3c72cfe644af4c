#!/usr/bin/env bash
# Instructions per request, counted by callgrind against what is committed in instructions.toml.
#
#   benches/instructions.sh              counts, and fails where a path costs more than its figure and the tolerance
#   benches/instructions.sh --update     counts, and writes the figures down: do it in the commit that changes them, and say there why
#   WEIR=path/to/weir benches/instructions.sh     counts that binary
#
# A count does not depend on what else the machine does, so this belongs to `make test`. What it
# counts is our own code at opt-level 3 above the dependencies as the tests use them (see
# Cargo.toml; no LTO): nothing is built that was not built for the tests anyway, but for the one
# crate. The shipped binary needs fewer; what becomes dearer here becomes dearer there. See
# benches/README.md.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"

FIGURES=benches/instructions.toml
PATHS=(admitted refused unlimited)
WARM=200
FEW=200
MANY=600
ROUNDS=3

for tool in valgrind callgrind_control curl; do
    have "$tool" || die "$tool is missing" "Type: make setup"
done

if [[ -z ${WEIR:-} ]]; then
    target=${CARGO_TARGET_DIR:-target}
    say "Building Weir's own code with optimisation"
    # The example is there for the sake of the features: with it the dependencies are those of `cargo test --workspace`, and none is built again.
    CARGO_PROFILE_DEV_OPT_LEVEL=3 CARGO_PROFILE_DEV_DEBUG_ASSERTIONS=false CARGO_PROFILE_DEV_OVERFLOW_CHECKS=false \
        cargo build --workspace --bin weir --example limiter
    mkdir -p "$target/guard"
    # The next build puts the tests' own binary back in its place.
    cp --remove-destination "$target/debug/weir" "$target/guard/weir"
    WEIR=$target/guard/weir
fi

folder=$(mktemp -d)
started=()
stop() {
    local pid
    for pid in "${started[@]}"; do kill "$pid" 2> /dev/null || true; done
    for pid in "${started[@]}"; do wait "$pid" 2> /dev/null || true; done
    rm -rf "$folder"
}
trap stop EXIT
trap 'exit 130' INT TERM

# start NAME COMMAND ...: sets `pid` and `address` once it is ready. A port that the kernel chose is in the log.
start() {
    local name=$1
    shift
    "$@" run --config "$folder/$name.toml" > "$folder/$name.log" 2>&1 &
    pid=$!
    started+=("$pid")
    for _ in $(seq 1200); do
        kill -0 "$pid" 2> /dev/null || die "$name ended at its start:" "$(tail -n 20 "$folder/$name.log")"
        if grep -qs '"message":"ready"' "$folder/$name.log"; then
            address=$(sed -n 's/.*"listener":"http","address":"\([^"]*\)".*/\1/p' "$folder/$name.log")
            return
        fi
        sleep 0.1
    done
    die "$name was not ready within two minutes:" "$(tail -n 20 "$folder/$name.log")"
}

common='
[[listeners]]
address = "127.0.0.1:0"
[server]
workers = 1
[admin]
address = "off"
[log]
access = "off"
'

cat > "$folder/upstream.toml" << CONF
$common
[[routes]]
path = "/*"
respond = { status = 200, body = "hello from the upstream\n" }
CONF
start upstream "$WEIR"

cat > "$folder/weir.toml" << CONF
$common
[upstreams.api]
endpoints = ["http://$address"]
[policies.wide]
use = "client-ip"
config.limits = [{ name = "wide", algorithm = "gcra", quota = 1000000, period = "1s" }]
[policies.narrow]
use = "client-ip"
config.limits = [{ name = "narrow", algorithm = "gcra", quota = 1, period = "1d" }]
[[routes]]
path = "/admitted"
upstream = "api"
policy = "wide"
[[routes]]
path = "/refused"
upstream = "api"
policy = "narrow"
[[routes]]
path = "/unlimited"
upstream = "api"
CONF
start weir valgrind --tool=callgrind --callgrind-out-file="$folder/profile" --instr-atstart=no "$WEIR"

# ---- Counting ---------------------------------------------------------------------------------------------------------------------------

# ask PATH COUNT: one after another on one connection. What follows a # is not sent.
ask() {
    local expected=200 found
    [[ $1 != refused ]] || expected=429
    found=$(curl -sS -A count -o /dev/null -w '%{http_code}\n' "http://$address/$1#[1-$2]" | sort | uniq -c | awk '{ print $2 "x" $1 }')
    [[ $found == "${expected}x$2" ]] || die "/$1: expected $expected to all of $2 requests, found: ${found//$'\n'/, }"
}

# counted PATH COUNT: sets `instructions`, of COUNT requests and their connection.
counted() {
    callgrind_control --zero "$pid" > /dev/null 2>&1
    ask "$1" "$2"
    rm -f "$folder"/profile.*
    callgrind_control --dump "$pid" > /dev/null 2>&1
    # One file for all threads. The part that was dumped is the only one.
    instructions=$(awk '/^summary:/ { print $2; exit }' "$folder"/profile.*)
    [[ -n $instructions ]] || die "callgrind wrote no profile" "$(tail -n 5 "$folder/weir.log")"
}

# of PATH: sets `each`, instructions per request; the connection's own cost falls out of the difference. The middle of ROUNDS counts, because how many
# levels of the timer wheel are looked at depends on the moment.
of() {
    local few counts=()
    for _ in $(seq "$ROUNDS"); do
        counted "$1" "$FEW"
        few=$instructions
        counted "$1" "$MANY"
        counts+=($(((instructions - few) / (MANY - FEW))))
    done
    each=$(printf '%s\n' "${counts[@]}" | sort -n | sed -n "$((ROUNDS / 2 + 1))p")
}

callgrind_control --instr=on "$pid" > /dev/null 2>&1
# The one that the narrow limit lets through.
curl -sS -o /dev/null "http://$address/refused"
declare -A found
for path in "${PATHS[@]}"; do
    ask "$path" "$WARM"
    of "$path"
    found[$path]=$each
done

# ---- Judging ----------------------------------------------------------------------------------------------------------------------------

committed() { awk -v name="$1" '$1 == name && $2 == "=" { print $3 }' "$FIGURES"; }

if [[ ${1:-} == --update ]]; then
    {
        echo "# Instructions per request in the process, as benches/instructions.sh counts them; written by benches/instructions.sh --update."
        echo "# Of $(rustc --version | cut -d ' ' -f 1-2), $(valgrind --version). In per cent, what a path may cost more before the check fails:"
        echo "tolerance = 2"
        echo
        for path in "${PATHS[@]}"; do echo "$path = ${found[$path]}"; done
    } > "$FIGURES"
fi

tolerance=$(committed tolerance)
dearer=()
printf '%-10s %12s %12s %9s\n' path committed counted change
for path in "${PATHS[@]}"; do
    before=$(committed "$path")
    [[ -n $before ]] || die "$FIGURES has no figure for $path" "Type: benches/instructions.sh --update"
    change=$(awk -v a="$before" -v b="${found[$path]}" 'BEGIN { printf "%+.1f", 100 * (b - a) / a }')
    printf '%-10s %12s %12s %8s%%\n' "$path" "$before" "${found[$path]}" "$change"
    if awk -v change="$change" -v most="$tolerance" 'BEGIN { exit !(change > most) }'; then dearer+=("$path ($change %)"); fi
    if awk -v change="$change" -v most="$tolerance" 'BEGIN { exit !(change < -most) }'; then
        say "$path became cheaper: benches/instructions.sh --update keeps it so"
    fi
done
((${#dearer[@]} == 0)) || die "more instructions per request than $tolerance % above benches/instructions.toml: ${dearer[*]}" \
    "Find out where: callgrind_annotate --inclusive=yes. If it is worth its price: benches/instructions.sh --update, and say why in the commit."
