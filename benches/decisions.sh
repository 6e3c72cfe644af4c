#!/usr/bin/env bash
# What a decision for others costs: CPU microseconds of Weir on one core, in memory. Calls of Envoy's
# rate limit service with one descriptor and with sixteen, and of the HTTP API, one in a body and
# five hundred. `WEIR` is the binary; h2load and wrk must be there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
WEIR=$(realpath "${WEIR:-target/release/weir}")
ROUNDS=${ROUNDS:-3}
folder=$(mktemp -d)
started=()
trap 'kill "${started[@]}" 2>/dev/null || true; rm -rf "$folder"' EXIT

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
{
    cat << TOML
[[listeners]]
address = "127.0.0.1:$port"
serves = "decisions"
[admin]
address = "off"
[log]
level = "error"
access = "off"
[server]
workers = 1
[policies.edge]
use = "rls"
[[routes]]
domain = "edge"
policy = "edge"
TOML
    # As many limits as anybody has: what is not met costs nothing.
    for nth in $(seq 60); do
        cat << TOML
[[policies.edge.config.rules]]
descriptor = ["user$nth"]
limits = [{ name = "limit$nth", algorithm = "fixed_window", quota = 1000000000, period = "1d" }]
TOML
    done
} > "$folder/proxy.toml"

python3 - "$folder" << 'PYTHON'
import json, sys
def field(number, data):
    out, size = bytes([number << 3 | 2]), len(data)
    while size > 127:
        out, size = out + bytes([size & 127 | 128]), size >> 7
    return out + bytes([size]) + data
def descriptor(nth):
    return field(2, field(1, field(1, f"user{nth + 1}".encode()) + field(2, b"192.0.2.1")))
for name, count in ("one", 1), ("sixteen", 16):
    message = field(1, b"edge") + b"".join(descriptor(nth) for nth in range(count))
    open(f"{sys.argv[1]}/{name}", "wb").write(b"\0" + len(message).to_bytes(4, "big") + message)
call = lambda nth: {"domain": "edge", "entries": {"user1": f"192.0.2.{nth}"}}
for name, body in ("call", call(1)), ("batch", [call(nth) for nth in range(500)]):
    text = json.dumps(body, separators=(",", ":"))
    open(f"{sys.argv[1]}/{name}.lua", "w").write(f"wrk.method = 'POST'\nwrk.body = [==[{text}]==]\n")
PYTHON

taskset -c 0 "$WEIR" run --config "$folder/proxy.toml" > "$folder/log" 2>&1 &
weir=$!
started+=("$weir")
until curl -fso /dev/null "http://127.0.0.1:$port/healthcheck"; do kill -0 "$weir"; done
ticks() { awk '{ print $14 + $15 }' "/proc/$weir/stat"; }
hertz=$(getconf CLK_TCK)
# cost WHAT DECISIONS_PER_CALL COMMAND ...: the command prints how many calls succeeded.
cost() {
    local what=$1 each=$2 before after calls
    shift 2
    "$@" > /dev/null # What is compiled and remembered is there.
    for _ in $(seq "$ROUNDS"); do
        before=$(ticks)
        calls=$("$@")
        after=$(ticks)
        awk -v what="$what" -v n="$calls" -v each="$each" -v t="$((after - before))" -v hz="$hertz" \
            'BEGIN { us = t * 1e6 / hz; printf "%-44s %7.2f us per call %7.2f us per decision\n", what, us / n, us / n / each }'
    done
}
grpc() {
    taskset -c 1 h2load -c 4 -m 16 -n 200000 -d "$folder/$1" -H 'content-type: application/grpc' -H 'te: trailers' \
        "http://127.0.0.1:$port/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit" |
        sed -n 's/^requests:.* \([0-9]*\) succeeded.*/\1/p'
}
http() {
    taskset -c 1 wrk -t 1 -c 16 -d 5s -s "$folder/$1.lua" "http://127.0.0.1:$port/v1/decide" |
        tee "$folder/wrk" | sed -n 's/^ *\([0-9]*\) requests in.*/\1/p'
    if grep -q "Non-2xx" "$folder/wrk"; then return 1; fi
}
cost "ShouldRateLimit, one descriptor" 1 grpc one
cost "ShouldRateLimit, sixteen descriptors" 16 grpc sixteen
cost "POST /v1/decide, one call" 1 http call
cost "POST /v1/decide, five hundred calls" 500 http batch
