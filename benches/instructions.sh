#!/usr/bin/env bash
# Counts instructions per request with callgrind, and compares them with the figures in
# instructions.toml.
#
#   benches/instructions.sh              counts, and fails if a path costs more than its figure plus the tolerance
#   benches/instructions.sh --update     counts, and writes the figures: in the commit that changes them, whose message says why
#   WEIR=path/to/weir benches/instructions.sh     counts that binary
#
# A count does not depend on the machine's load, so this is part of `make test`. It counts our own
# code at opt-level 3 on top of the tests' dependencies (see Cargo.toml; no LTO), so that only our
# own crate has to be built. The shipped binary needs fewer instructions, but what becomes more
# expensive here becomes more expensive there. See benches/README.md.
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
    # The example is built for its features: with it, the dependencies are those of `cargo test
    # --workspace`, and none is built again.
    CARGO_PROFILE_DEV_OPT_LEVEL=3 CARGO_PROFILE_DEV_DEBUG_ASSERTIONS=false CARGO_PROFILE_DEV_OVERFLOW_CHECKS=false \
        cargo build --workspace --bin weir --example limiter
    mkdir -p "$target/guard"
    # Copied, because the next build restores the tests' own binary.
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

# start NAME COMMAND ...: sets `pid` and `address` once it is ready. The port, chosen by the kernel,
# is in the log.
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
# The same with an export of traces and metrics that has nothing to do.
cat "$folder/weir.toml" - > "$folder/exporting.toml" << CONF
[telemetry.otlp]
endpoint = "http://127.0.0.1:9"
sample = 0
interval = "1h"
CONF
start weir valgrind --tool=callgrind --callgrind-out-file="$folder/profile" --instr-atstart=no "$WEIR"

# ---- Counting ------------------------------------------------------------------------------------

# ask PATH COUNT: sends COUNT requests, one after another on one connection. The part after the # is
# not sent.
ask() {
    local expected=200 found
    [[ $1 != refused ]] || expected=429
    found=$(curl -sS -A count -o /dev/null -w '%{http_code}\n' "http://$address/$1#[1-$2]" | sort | uniq -c | awk '{ print $2 "x" $1 }')
    [[ $found == "${expected}x$2" ]] || die "/$1: expected $expected to all of $2 requests, found: ${found//$'\n'/, }"
}

# counted PATH COUNT: sets `instructions`, the cost of COUNT requests and their connection.
counted() {
    callgrind_control --zero "$pid" > /dev/null 2>&1
    ask "$1" "$2"
    rm -f "$folder"/profile.*
    callgrind_control --dump "$pid" > /dev/null 2>&1
    # There is one file for all threads, and only one part was dumped.
    instructions=$(awk '/^summary:/ { print $2; exit }' "$folder"/profile.*)
    [[ -n $instructions ]] || die "callgrind wrote no profile" "$(tail -n 5 "$folder/weir.log")"
}

# of PATH: sets `each`, instructions per request. Subtracting two counts cancels the connection's
# own cost. The median of ROUNDS is used, because the number of timer wheel levels that are visited
# depends on the moment.
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
# The only request that the narrow limit admits.
curl -sS -o /dev/null "http://$address/refused"
declare -A found
for path in "${PATHS[@]}"; do
    ask "$path" "$WARM"
    of "$path"
    found[$path]=$each
done

start exporting valgrind --tool=callgrind --callgrind-out-file="$folder/profile" --instr-atstart=no "$WEIR"
callgrind_control --instr=on "$pid" > /dev/null 2>&1
ask admitted "$WARM"
of admitted
found[exporting]=$each
PATHS+=(exporting)

# ---- Comparing -----------------------------------------------------------------------------------

committed() { awk -v name="$1" '$1 == name && $2 == "=" { print $3 }' "$FIGURES"; }

if [[ ${1:-} == --update ]]; then
    {
        echo "# Instructions per request in the process, as benches/instructions.sh counts them; written by benches/instructions.sh --update."
        echo "# Of $(rustc --version | cut -d ' ' -f 1-2), $(valgrind --version). In per cent, how much more a path may cost before the check fails:"
        echo "tolerance = 2"
        echo
        for path in "${PATHS[@]}"; do echo "$path = ${found[$path]}"; done
    } > "$FIGURES"
fi

tolerance=$(committed tolerance)
worse=()
printf '%-10s %12s %12s %9s\n' path committed counted change
for path in "${PATHS[@]}"; do
    before=$(committed "$path")
    [[ -n $before ]] || die "$FIGURES has no figure for $path" "Type: benches/instructions.sh --update"
    change=$(awk -v a="$before" -v b="${found[$path]}" 'BEGIN { printf "%+.1f", 100 * (b - a) / a }')
    printf '%-10s %12s %12s %8s%%\n' "$path" "$before" "${found[$path]}" "$change"
    if awk -v change="$change" -v most="$tolerance" 'BEGIN { exit !(change > most) }'; then worse+=("$path ($change %)"); fi
    if awk -v change="$change" -v most="$tolerance" 'BEGIN { exit !(change < -most) }'; then
        say "$path became cheaper: benches/instructions.sh --update records it"
    fi
done
((${#worse[@]} == 0)) || die "more instructions per request than $tolerance % above benches/instructions.toml: ${worse[*]}" \
    "Find out where: callgrind_annotate --inclusive=yes. If the cost is justified: benches/instructions.sh --update, and say why in the commit."
