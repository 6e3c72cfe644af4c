#!/usr/bin/env bash
# Counts instructions per request with callgrind, and compares them with the figures in
# instructions.toml.
#
#   benches/instructions.sh              counts, and fails if a path costs more than its figure plus the tolerance
#   benches/instructions.sh --update     counts, and writes the figures: in the commit that changes them, whose message says why
#   WEIR=path/to/weir benches/instructions.sh     counts that binary
#
# Also sends large heads of many kinds, each within the limits, and fails if one costs more than
# a few times what an ordinary head of its size costs: nobody may keep a core busy with few bytes.
#
# A count does not depend on the machine's load, so this is part of `make test-all`. It counts our own
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
        cargo build --workspace --bin weir --example limiter --config profile.dev.package.weir.opt-level=3
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
[policies.heads]
use = "keyed"
cpu_time = "10s"
config.limits = [{ name = "heads", algorithm = "gcra", quota = 1000000, period = "1s", key = "{client_ip} {bearer} {cookie.sid} {query.q} {header.x-key}" }]
config.missing = "address"
[[routes]]
path = "/heads/*"
upstream = "api"
policy = "heads"
request_headers = { set = { X-Env = "prod" }, remove = ["x-internal"] }
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
    dumped
}

# Sets `instructions` to what was counted since the last --zero.
dumped() {
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

# ---- Heads ---------------------------------------------------------------------------------------

# `&` is no reference to what is replaced.
shopt -u patsub_replacement

# The bytes of each head, and how many times the instructions of an ordinary one are too many.
HEAD_BYTES=24000
TIMES_MAX=8
HEADS_FEW=10
HEADS_MANY=40

# repeat COUNT TEXT
repeat() {
    local text
    printf -v text '%*s' "$1" ''
    printf '%s' "${text// /$2}"
}

# fields COUNT PATTERN: a field for each number, which stands for the @ in the pattern, filled up so
# that all have HEAD_BYTES together.
fields() {
    local number line room=$((HEAD_BYTES / $1))
    for ((number = 1; number <= $1; number++)); do
        line=${2//@/$number}
        printf '%s%s\n' "$line" "$(repeat $((room > ${#line} ? (room - ${#line}) / ${#3} : 0)) "$3")"
    done
}

mkdir "$folder/heads"
kept() { cat > "$folder/heads/$1"; }
fields 90 'x-ordinary-@: ' a | kept ordinary
fields 1 'x-one: ' a | kept one_field
fields 90 'x-same: ' a | kept same_name
fields 1 'cookie: ' 'a=%61; ' | kept cookie_pairs
fields 1 'cookie: ' 'sid=a; ' | kept cookie_same
fields 90 'cookie: sid' '=%61' | kept cookies
fields 1 'authorization: Bearer ' '%41' | kept bearer
fields 1 'x-forwarded-for: 1' ', 1' | kept forwarded_for
fields 90 'x-forwarded-for: 1' ', 1' | kept forwarded_fors
fields 1 'forwarded: for=1' ', for=1' | kept forwarded
fields 1 'accept-encoding: gzip' ', a' | kept accept_encoding
fields 1 'te: trailers' ', a' | kept te
fields 1 'via: 1.1 a' ', 1.1 a' | kept via
fields 1 'x-key: ' ' ,' | kept blanks
fields 90 'x.internal.@: ' a | kept dotted_names
fields 90 'x-escaped-@: ' $'\xff' | kept high_bytes
fields 1 'traceparent: ' '00-' | kept traceparent
{ printf 'connection: close-not'; printf ', x-ordinary-%d' {1..31}; echo; fields 88 'x-ordinary-@: ' a; } | kept connection
{ for number in {1..31}; do echo "connection: x-ordinary-$number"; done; fields 60 'x-ordinary-@: ' a; } | kept connections
fields 90 'x-ordinary-@: ' a > "$folder/ordinary"
for name in segments escapes slashes dots query same_query query_escapes; do cp "$folder/ordinary" "$folder/heads/target_$name"; done
declare -A targets=(
    [target_segments]="$(repeat 3900 /a)"
    [target_escapes]="/$(repeat 2600 %61)"
    [target_slashes]="/$(repeat 2600 %2F)"
    [target_dots]="$(repeat 2600 /./)"
    [target_query]="?$(repeat 2600 '&a=')"
    [target_same_query]="?q=1$(repeat 2600 '&q=')"
    [target_query_escapes]="?q=$(repeat 2600 %71)"
)

# ask_head NAME COUNT: sends COUNT requests with that head; sets `statuses`.
ask_head() {
    statuses=$(curl -sS -A count --path-as-is -H "@$folder/heads/$1" -o /dev/null -w '%{http_code}\n' "http://$address/heads/${targets[$1]:-}#[1-$2]" | sort | uniq -c | awk '{ print $2 "x" $1 }')
    [[ $statuses == [24]??"x$2" ]] || die "head $1: expected one status below 500 for all of $2 requests, found: ${statuses//$'\n'/, }"
}

# of_head NAME: sets `each`, instructions per request with that head.
of_head() {
    local few count
    ask_head "$1" "$HEADS_FEW"
    for count in "$HEADS_FEW" "$HEADS_MANY"; do
        callgrind_control --zero "$pid" > /dev/null 2>&1
        ask_head "$1" "$count"
        dumped
        [[ $count == "$HEADS_MANY" ]] || few=$instructions
    done
    each=$(((instructions - few) / (HEADS_MANY - HEADS_FEW)))
}

of_head ordinary
ordinary=$each
dear=()
printf '%-22s %12s %6s  %s\n' head instructions times status
for file in "$folder"/heads/*; do
    name=${file##*/}
    of_head "$name"
    times=$(awk -v a="$ordinary" -v b="$each" 'BEGIN { printf "%.1f", b / a }')
    printf '%-22s %12s %6s  %s\n' "$name" "$each" "$times" "${statuses%x*}"
    if awk -v times="$times" -v most="$TIMES_MAX" 'BEGIN { exit !(times > most) }'; then dear+=("$name ($times)"); fi
done
((${#dear[@]} == 0)) || die "heads that cost more than $TIMES_MAX times an ordinary one: ${dear[*]}" \
    "Find out where: callgrind_annotate --inclusive=yes."

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
