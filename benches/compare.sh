#!/usr/bin/env bash
# Weir beside nginx: CPU microseconds per request of the proxy process alone, in interleaved rounds on one pinned core.
#
#   benches/compare.sh                         builds Weir in the release profile and prints a Markdown table
#   WEIR=path/to/weir benches/compare.sh       measures that binary;  WEIR=none: nginx alone
#   ROUNDS=5 SECONDS_EACH=5 PROXY_CORE=1 LOAD_CORE=0 CONNECTIONS=64     what may be changed
#
# CPU time is read from /proc/PID/stat before and after each run, so that neither the load generator nor the upstream, which share the other core,
# are counted, and a core that is not full makes no difference. See benches/README.md for what the figures mean.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"

ROUNDS=${ROUNDS:-5}
SECONDS_EACH=${SECONDS_EACH:-5}
PROXY_CORE=${PROXY_CORE:-1}
LOAD_CORE=${LOAD_CORE:-0}
CONNECTIONS=${CONNECTIONS:-64}
CASES=(nginx-plain nginx-limited nginx-refused)

PATH="$PATH:/usr/sbin"
for tool in nginx wrk taskset; do
    have "$tool" || die "$tool is missing" "Debian, Ubuntu: sudo apt-get install nginx-light wrk util-linux (and stop the service: sudo systemctl disable --now nginx)"
done
(($(nproc) >= 2)) || die "two cores are needed: one for the proxy, one for everything else"

if [[ -z ${WEIR:-} ]]; then
    scripts/setup.sh build
    export_wasm_choice
    say "Building Weir in the release profile"
    cargo build --release --bin weir
    WEIR=${CARGO_TARGET_DIR:-target}/release/weir
fi
if [[ $WEIR != none ]]; then
    [[ -x $WEIR ]] || die "there is no $WEIR"
    CASES+=(weir-admitted weir-refused)
fi

# ---- Processes --------------------------------------------------------------------------------------------------------------------------

folder=$(mktemp -d)
chmod 755 "$folder"
started=()
stop() {
    local pid
    for pid in "${started[@]}"; do kill "$pid" 2> /dev/null || true; done
    for pid in "${started[@]}"; do wait "$pid" 2> /dev/null || true; done
    rm -rf "$folder"
}
trap stop EXIT
trap 'exit 130' INT TERM

taken=()
# A port that nobody listens on, into the variable named: below the range that the kernel gives to outgoing connections.
free_port() { # VARIABLE
    local port
    for _ in $(seq 200); do
        port=$((20000 + RANDOM % 10000))
        [[ " ${taken[*]-} " == *" $port "* ]] && continue
        if ! (exec 3<> "/dev/tcp/127.0.0.1/$port") 2> /dev/null; then
            taken+=("$port")
            printf -v "$1" '%s' "$port"
            return
        fi
    done
    die "no free port was found"
}

await_port() { # PORT PID LOG
    for _ in $(seq 500); do
        kill -0 "$2" 2> /dev/null || die "a server ended at its start:" "$(tail -n 20 "$3")"
        if (exec 3<> "/dev/tcp/127.0.0.1/$1") 2> /dev/null; then return; fi
        sleep 0.02
    done
    die "nobody listens on port $1:" "$(tail -n 20 "$3")"
}

start_nginx() { # NAME CORE PORT; its configuration is in $folder/NAME.conf
    taskset -c "$2" nginx -p "$folder" -c "$folder/$1.conf" -e "$folder/$1.log" > "$folder/$1.out" 2>&1 &
    started+=($!)
    await_port "$3" $! "$folder/$1.log"
}

# The same for both nginxes: nothing written, nothing spooled, connections kept.
common() { # NAME
    cat << CONF
daemon off;
worker_processes 1;
pid $folder/$1.pid;
error_log $folder/$1.log crit;
events { worker_connections 4096; }
http {
    access_log off;
    keepalive_requests 1000000000;
    keepalive_timeout 300s;
    client_body_temp_path $folder/$1-body;
    proxy_temp_path $folder/$1-proxy;
    fastcgi_temp_path $folder/$1-fastcgi;
    uwsgi_temp_path $folder/$1-uwsgi;
    scgi_temp_path $folder/$1-scgi;
CONF
}

free_port upstream_port
free_port plain_port
free_port limited_port
free_port refused_port
free_port weir_port

{
    common upstream
    cat << CONF
    server {
        listen 127.0.0.1:$upstream_port backlog=1024;
        location / { default_type text/plain; return 200 "hello from the upstream\n"; }
    }
}
CONF
} > "$folder/upstream.conf"

{
    common proxy
    cat << CONF
    upstream api { server 127.0.0.1:$upstream_port; keepalive 64; keepalive_requests 1000000000; keepalive_timeout 300s; }
    proxy_http_version 1.1;
    proxy_set_header Connection "";
    proxy_set_header Host \$host;
    proxy_set_header X-Forwarded-For \$proxy_add_x_forwarded_for;
    proxy_set_header X-Forwarded-Proto \$scheme;
    limit_req_status 429;
    limit_req_log_level info;
    limit_req_zone \$binary_remote_addr zone=wide:10m rate=1000000r/s;
    limit_req_zone \$binary_remote_addr zone=narrow:10m rate=1r/m;
    server { listen 127.0.0.1:$plain_port backlog=1024; location / { proxy_pass http://api; } }
    server { listen 127.0.0.1:$limited_port backlog=1024; location / { limit_req zone=wide burst=1000000 nodelay; proxy_pass http://api; } }
    server { listen 127.0.0.1:$refused_port backlog=1024; location / { limit_req zone=narrow; proxy_pass http://api; } }
}
CONF
} > "$folder/proxy.conf"

# One worker, as nginx has one; the policy that ships, in Wasm; counters in memory; no access log, as nginx has none.
cat > "$folder/proxy.toml" << CONF
[[listeners]]
address = "127.0.0.1:$weir_port"
[server]
workers = 1
[admin]
address = "127.0.0.1:0"
[log]
level = "warn"
access = "off"
[store]
engine = "embedded"
[upstreams.api]
endpoints = ["http://127.0.0.1:$upstream_port"]
pool_idle_per_worker = 64
[policies.wide]
use = "client-ip"
config.limits = [{ name = "wide", algorithm = "gcra", quota = 1000000, period = "1s" }]
[policies.narrow]
use = "client-ip"
config.limits = [{ name = "narrow", algorithm = "gcra", quota = 1, period = "1m" }]
[[routes]]
name = "admitted"
path = "/*"
upstream = "api"
policy = "wide"
[[routes]]
name = "refused"
path = "/refused"
upstream = "api"
policy = "narrow"
CONF

start_nginx upstream "$LOAD_CORE" "$upstream_port"
start_nginx proxy "$PROXY_CORE" "$plain_port"
nginx_pid=$(pgrep -P "$(cat "$folder/proxy.pid")")
if [[ $WEIR != none ]]; then
    taskset -c "$PROXY_CORE" "$WEIR" run --config "$folder/proxy.toml" > "$folder/weir.log" 2>&1 &
    weir_pid=$!
    started+=("$weir_pid")
    await_port "$weir_port" "$weir_pid" "$folder/weir.log"
fi

# ---- Measuring --------------------------------------------------------------------------------------------------------------------------

ticks_a_second=$(getconf CLK_TCK)

# User and system time of a process, all its threads, in clock ticks. The name in field 2 may hold blanks, so it is cut off first.
cpu_ticks() { # PID
    local stat
    stat=$(< "/proc/$1/stat")
    set -- ${stat##*) }
    echo $((${12} + ${13}))
}

load() { # URL SECONDS
    timeout $(($2 + 30)) taskset -c "$LOAD_CORE" wrk -t 1 -c "$CONNECTIONS" -d "${2}s" "$1" > "$folder/wrk.out" || die "wrk failed:" "$(cat "$folder/wrk.out")"
}

# run CASE SECONDS: sets `micros`, CPU microseconds per request, and checks that what was measured is what was meant.
run() {
    local pid port path=/ refused=no
    case $1 in
        nginx-plain) pid=$nginx_pid port=$plain_port ;;
        nginx-limited) pid=$nginx_pid port=$limited_port ;;
        nginx-refused) pid=$nginx_pid port=$refused_port refused=yes ;;
        weir-admitted) pid=$weir_pid port=$weir_port ;;
        weir-refused) pid=$weir_pid port=$weir_port path=/refused refused=yes ;;
    esac
    local before after requests others
    before=$(cpu_ticks "$pid")
    load "http://127.0.0.1:$port$path" "$2"
    after=$(cpu_ticks "$pid")
    requests=$(awk '/ requests in / { print $1 }' "$folder/wrk.out")
    others=$(awk -F ': *' '/Non-2xx/ { print $2 }' "$folder/wrk.out")
    others=${others:-0}
    if grep -q 'Socket errors' "$folder/wrk.out"; then die "$1: connections failed:" "$(cat "$folder/wrk.out")"; fi
    if [[ $refused == no && $others != 0 ]]; then die "$1: $others of $requests requests were not admitted"; fi
    # The first one, and one a minute, may pass.
    if [[ $refused == yes ]] && ((requests - others > 10)); then die "$1: $((requests - others)) of $requests requests were not refused"; fi
    micros=$(awk -v ticks=$((after - before)) -v rate="$ticks_a_second" -v requests="$requests" 'BEGIN { printf "%.2f", ticks * 1e6 / rate / requests }')
}

say "Warming up"
for name in "${CASES[@]}"; do run "$name" 1; done

for ((round = 1; round <= ROUNDS; round++)); do
    for name in "${CASES[@]}"; do
        run "$name" "$SECONDS_EACH"
        echo "$micros" >> "$folder/figures-$name"
        say "round $round of $ROUNDS: $name $micros us"
    done
done

# ---- Table ------------------------------------------------------------------------------------------------------------------------------

minimum() { sort -n "$folder/figures-$1" | head -n 1; }
median() { sort -n "$folder/figures-$1" | awk '{ all[NR] = $1 } END { printf "%.2f", NR % 2 ? all[(NR + 1) / 2] : (all[NR / 2] + all[NR / 2 + 1]) / 2 }'; }
ratio() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.2f", a / b }'; }

row() { # TITLE CASE BASELINE
    local least middle
    least=$(minimum "$2") middle=$(median "$2")
    printf '| %s | %s | %s | %s | %s |\n' "$1" "$least" "$middle" "$(ratio "$least" "$(minimum "$3")")" "$(ratio "$middle" "$(median "$3")")"
}

echo
echo "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(uname -r), $(nginx -v 2>&1 | sed 's/.*: //'), $CONNECTIONS connections, $ROUNDS rounds of $SECONDS_EACH s"
echo
echo "| CPU per request | minimum, us | median, us | minimum / limit_req | median / limit_req |"
echo "|---|---|---|---|---|"
row "nginx, plain proxy" nginx-plain nginx-limited
row "nginx, limit_req, admitted" nginx-limited nginx-limited
[[ $WEIR == none ]] || row "Weir, Wasm policy + embedded engine, admitted" weir-admitted nginx-limited
row "nginx, limit_req, refused" nginx-refused nginx-refused
[[ $WEIR == none ]] || row "Weir, Wasm policy + embedded engine, refused" weir-refused nginx-refused
