#!/usr/bin/env bash
# How fast `weir replay` is: a million lines in the combined format, of 20,000 clients (Zipf),
# through `client-ip` with two limits, and with one. Prints requests a second, and microseconds of
# CPU of both threads.
# `WEIR` is the binary; Python must be there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
WEIR=$(realpath "${WEIR:-target/release/weir}")
LINES=${LINES:-1000000}
ROUNDS=${ROUNDS:-3}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

python3 - "$folder" "$LINES" <<'PYTHON'
import random, sys, time
folder, lines = sys.argv[1], int(sys.argv[2])
draw = random.Random(1)
weights, total = [], 0.0
for n in range(1, 20001):
    total += 1 / n
    weights.append(total)
clients = draw.choices(range(20000), cum_weights=weights, k=lines)
agent = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0 Safari/537.36"
with open(f"{folder}/access.log", "w") as out, open(f"{folder}/access.json", "w") as as_json:
    for index, client in enumerate(clients):
        at = 1431857100 + index // 50
        stamp = time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime(at))
        address = f"10.{client >> 16}.{client >> 8 & 255}.{client & 255}"
        path, status, size = f"/page/{index % 997}?a={index % 31}", 200 if index % 50 else 500, index % 9000
        out.write(f'{address} - - [{stamp}] "GET {path} HTTP/1.1" {status} {size} "-" "{agent}"\n')
        if index < lines // 4:
            as_json.write(f'{{"time_iso8601":"{time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))}","remote_addr":"{address}",'
                          f'"request":"GET {path} HTTP/1.1","status":{status},"body_bytes_sent":{size},"request_time":0.{index % 900:03},'
                          f'"http_user_agent":"{agent}"}}\n')
PYTHON
cat > "$folder/proxy.toml" <<'TOML'
[[listeners]]
address = "127.0.0.1:0"
[upstreams.api]
endpoints = ["http://127.0.0.1:9"]
[policies.public]
use = "client-ip"
[policies.public.config]
limits = [
    { name = "minute", algorithm = "sliding_window_counter", quota = 60, period = "1m" },
    { name = "burst", algorithm = "gcra", quota = 10, period = "1s", burst = 20 },
]
[[routes]]
path = "/*"
upstream = "api"
policy = "public"
TOML

one() {
    local name=$1
    shift
    for _ in $(seq "$ROUNDS"); do
        python3 - "$name" "$WEIR" replay --config "$folder/${CONFIG:-proxy.toml}" "$@" <<'PYTHON'
import re, resource, subprocess, sys, time
name, command = sys.argv[1], sys.argv[2:]
began = time.monotonic()
report = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
took = time.monotonic() - began
used = resource.getrusage(resource.RUSAGE_CHILDREN)
count = int(re.search(r"^(\d+) requests of", report, re.M)[1])
refused = re.search(r"(\d+) refused", report)[1]
print(f"{name}: {count} requests in {took:.2f} s ({count / took:,.0f} a second), "
      f"CPU {(used.ru_utime + used.ru_stime) * 1e6 / count:.2f} us each, {refused} refused, {used.ru_maxrss // 1024} MiB")
PYTHON
    done
}
one combined "$folder/access.log"
grep -v '"burst"' "$folder/proxy.toml" > "$folder/one.toml"
CONFIG=one.toml one "one limit" "$folder/access.log"
one "JSON with durations" "$folder/access.json"
one "two configurations" "$folder/access.log" --against "$folder/proxy.toml"
