#!/usr/bin/env bash
# What exporting traces and metrics costs, and what it costs while the collector is away: Weir's CPU
# microseconds per request, the clients' latency, and Weir's memory at the beginning and the end.
# nginx is the upstream, and the collector that takes everything. `WEIR` is the binary, `SECONDS_EACH`
# how long each case runs, `SAMPLES` the shares of requests that are traced; nginx and wrk must be there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH="$PATH:/usr/sbin"
WEIR=$(realpath "${WEIR:-target/release/weir}")
SECONDS_EACH=${SECONDS_EACH:-60}
SAMPLES=${SAMPLES:-0.01 1.0}
folder=$(mktemp -d)
started=()
trap 'kill "${started[@]}" 2>/dev/null || true; rm -rf "$folder"' EXIT

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
upstream=$(free_port) collector=$(free_port) nobody=$(free_port)
cat > "$folder/nginx.conf" <<NGINX
worker_processes 1; daemon off; pid $folder/nginx.pid; error_log $folder/error.log;
events { worker_connections 1024; }
http {
    access_log off; keepalive_requests 100000000; client_max_body_size 32m;
    client_body_temp_path $folder/b; proxy_temp_path $folder/p; fastcgi_temp_path $folder/f;
    uwsgi_temp_path $folder/u; scgi_temp_path $folder/s;
    server { listen 127.0.0.1:$upstream; location / { return 200 "hello\n"; } }
    server { listen 127.0.0.1:$collector; location / { return 200; } }
}
NGINX
chmod 755 "$folder"
nginx -c "$folder/nginx.conf" & started+=($!)

ticks() { awk '{ print $14 + $15 }' "/proc/$1/stat"; }
memory() { awk '/^VmRSS/ { print $2 }' "/proc/$1/status"; }
metric() { curl -s "http://127.0.0.1:$admin/metrics" | awk -v name="$1" '$1 == name { print $2 }'; }

# run NAME SECTION: one case on a process of its own.
run() {
    local name=$1 section=$2 port admin pid before from answered
    port=$(free_port) admin=$(free_port)
    cat > "$folder/weir.toml" <<TOML
[[listeners]]
address = "127.0.0.1:$port"
[admin]
address = "127.0.0.1:$admin"
[log]
level = "error"
access = "off"
[server]
workers = 1
$section
[upstreams.api]
endpoints = ["http://127.0.0.1:$upstream"]
[policies.p]
use = "client-ip"
config.limits = [{ name = "t", algorithm = "gcra", quota = 1000000000, period = "1s" }]
[[routes]]
path = "/*"
upstream = "api"
policy = "p"
TOML
    taskset -c 1 "$WEIR" run --config "$folder/weir.toml" > "$folder/weir.log" 2>&1 &
    pid=$!
    started+=("$pid")
    until curl -s -o /dev/null "http://127.0.0.1:$port/"; do sleep 0.05; done
    # Until memory is what it is under this load.
    taskset -c 0 wrk -t1 -c32 -d3s "http://127.0.0.1:$port/" > /dev/null
    before=$(memory "$pid") from=$(ticks "$pid")
    taskset -c 0 wrk -t1 -c32 -d"${SECONDS_EACH}s" --latency "http://127.0.0.1:$port/" > "$folder/wrk"
    answered=$(awk '/requests in/ { print $1 }' "$folder/wrk")
    awk -v name="$name" -v answered="$answered" -v ticks="$(($(ticks "$pid") - from))" \
        -v before="$before" -v after="$(memory "$pid")" -v dropped="$(metric 'weir_otlp_dropped_total{signal="traces"}')" '
        $1 == "50%" { p50 = $2 } $1 == "99%" { p99 = $2 }
        END { printf "| %s | %.2f | %s | %s | %.1f | %.1f | %d |\n", name, ticks * 10000 / answered, p50, p99, before / 1024, after / 1024, dropped }' "$folder/wrk"
    kill "$pid"
    wait "$pid" 2> /dev/null || true
}

echo "| case | CPU us | p50 | p99 | MiB before | MiB after | spans dropped |"
echo "|---|---|---|---|---|---|---|"
run "not configured" ""
for sample in $SAMPLES; do
    section() { printf '[telemetry.otlp]\nendpoint = "http://127.0.0.1:%s"\nsample = %s\ninterval = "10s"\n' "$1" "$sample"; }
    run "sample = $sample, the collector takes all" "$(section "$collector")"
    run "sample = $sample, no collector" "$(section "$nobody")"
done
run "not configured, once more" ""
