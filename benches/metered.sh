#!/usr/bin/env bash
# What reading a reply's usage costs: CPU microseconds of Weir for a reply of 64 KiB in 297 events,
# with `client-ip`, with a key from the request's body, and with `llm-budget`. nginx sends all events
# at once. `WEIR` is the binary; Python, nginx and wrk must be there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH="$PATH:/usr/sbin"
WEIR=$(realpath "${WEIR:-target/release/weir}")
ROUNDS=${ROUNDS:-5}
folder=$(mktemp -d)
started=()
trap 'kill "${started[@]}" 2>/dev/null || true; rm -rf "$folder"' EXIT

python3 - "$folder/sse" <<'PYTHON'
import json, sys
event = lambda data: "data: " + json.dumps(data, separators=(",", ":")) + "\n\n"
chunk = {"id": "chatcmpl-9x", "object": "chat.completion.chunk", "created": 1763900000, "model": "gpt-4o", "system_fingerprint": "fp_1"}
choice = lambda i: {"index": 0, "delta": {"content": f" token{i}"}, "logprobs": None, "finish_reason": None}
text = "".join(event(chunk | {"choices": [choice(i)]}) for i in range(297))
usage = {"prompt_tokens": 20, "completion_tokens": 297, "total_tokens": 317}
open(sys.argv[1], "w").write(text + event(chunk | {"choices": [], "usage": usage}) + "data: [DONE]\n\n")
PYTHON
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

upstream=$(free_port)
cat > "$folder/nginx.conf" <<NGINX
worker_processes 1; daemon off; pid $folder/nginx.pid; error_log $folder/error.log;
events { worker_connections 1024; }
http {
    access_log off; sendfile on; keepalive_requests 1000000; default_type text/event-stream;
    client_body_temp_path $folder/b; proxy_temp_path $folder/p; fastcgi_temp_path $folder/f;
    uwsgi_temp_path $folder/u; scgi_temp_path $folder/s;
    server { listen 127.0.0.1:$upstream; root $folder; location / { error_page 405 =200 \$uri; } }
}
NGINX
chmod 755 "$folder"
nginx -c "$folder/nginx.conf" & started+=($!)

cat > "$folder/post.lua" <<'LUA'
wrk.method = "POST"
wrk.body = '{"model":"gpt-4o","max_tokens":512,"stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hello there"}]}'
wrk.headers["Content-Type"] = "application/json"
LUA
declare -A port process policy
policy[client-ip]='config.limits = [{ name = "t", algorithm = "gcra", quota = 1000000000, period = "1s" }]'
policy[keyed]='config.limits = [{ name = "t", algorithm = "gcra", quota = 1000000000, period = "1s", key = "{body:/model}" }]'
policy[llm-budget]='config = { api = "openai", tokens = [{ name = "t", algorithm = "fixed_window", quota = 1000000000000, period = "1d" }] }'
for name in client-ip keyed llm-budget; do
    port[$name]=$(free_port)
    cat > "$folder/$name.toml" <<TOML
[[listeners]]
address = "127.0.0.1:${port[$name]}"
[admin]
address = "off"
[log]
level = "error"
access = "off"
[server]
workers = 1
[upstreams.model]
endpoints = ["http://127.0.0.1:$upstream"]
[policies.p]
use = "$name"
${policy[$name]}
[[routes]]
path = "/*"
upstream = "model"
policy = "p"
TOML
    taskset -c 1 "$WEIR" run --config "$folder/$name.toml" > "$folder/$name.log" 2>&1 &
    process[$name]=$!
    started+=($!)
done
for name in client-ip keyed llm-budget; do
    until curl -s -o /dev/null "http://127.0.0.1:${port[$name]}/sse"; do sleep 0.05; done
done
ticks() { awk '{ print $14 + $15 }' "/proc/$1/stat"; }
for _ in $(seq "$ROUNDS"); do
    for name in client-ip keyed llm-budget; do
        before=$(ticks "${process[$name]}")
        out=$(taskset -c 0 wrk -t1 -c16 -d3s -s "$folder/post.lua" "http://127.0.0.1:${port[$name]}/sse")
        count=$(awk '/requests in/ { print $1 }' <<< "$out")
        if grep -q 'Non-2xx' <<< "$out"; then echo "$out"; exit 1; fi
        echo "$name: $((($(ticks "${process[$name]}") - before) * 10000 / count)) us a reply, of $count"
    done
done
