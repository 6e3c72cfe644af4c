#!/bin/sh
# What becomes of requests when four times as many come as an upstream can answer: through Weir with
# an adaptive limit, HAProxy with a limit and a queue, and nginx with a limit. The limits of the
# latter two are set to what the upstream can use. Needs python3, haproxy and nginx; takes two
# minutes. WEIR is the binary, the debug build by default.
set -eu
cd "$(dirname "$0")"
weir=${WEIR:-../../target/debug/weir}
PATH=$PATH:/usr/sbin
folder=$(mktemp -d)
pids=
trap 'kill $pids 2>/dev/null || true; rm -rf "$folder"' EXIT

cat > "$folder/proxy.toml" <<END
[[listeners]]
address = "127.0.0.1:18081"
[admin]
address = "off"
[log]
access = "off"
[upstreams.api]
endpoints = ["http://127.0.0.1:18080"]
concurrency = { adaptive = true }
[policies.customers]
use = "keyed"
[policies.customers.config]
key = "{header.x-api-key}"
limits = [{ name = "day", algorithm = "fixed_window", quota = 1_000_000, period = "1d" }]
[[routes]]
path = "/*"
upstream = "api"
policy = "customers"
[[routes]]
path = "/checkout"
upstream = "api"
policy = "customers"
priority = 7
END
cat > "$folder/haproxy.cfg" <<END
global
  maxconn 4000
defaults
  mode http
  timeout connect 3s
  timeout client 60s
  timeout server 30s
  timeout queue 100ms
frontend f
  bind 127.0.0.1:18082
  default_backend b
backend b
  server s 127.0.0.1:18080 maxconn 16
END
cat > "$folder/nginx.conf" <<END
worker_processes 2;
daemon off;
pid $folder/nginx.pid;
error_log $folder/nginx.log;
events { worker_connections 4000; }
http {
  access_log off;
  upstream api { zone api 64k; server 127.0.0.1:18080 max_conns=16; keepalive 64; }
  server {
    listen 127.0.0.1:18083;
    location / { proxy_pass http://api; proxy_http_version 1.1; proxy_set_header Connection ""; }
  }
}
END
python3 upstream.py 18080 & pids="$pids $!"
"$weir" run --config "$folder/proxy.toml" 2> "$folder/weir.log" & pids="$pids $!"
haproxy -f "$folder/haproxy.cfg" 2> "$folder/haproxy.log" & pids="$pids $!"
nginx -c "$folder/nginx.conf" & pids="$pids $!"
sleep 3
for peer in 18081:weir 18082:haproxy 18083:nginx; do
    echo "${peer#*:}"
    python3 load.py "${peer%%:*}" 6:80,5:640,10:640,6:80
    sleep 2
done
