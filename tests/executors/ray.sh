#!/usr/bin/env bash
# A real Ray cluster of two nodes (a head and one worker) on this host, for tests. Linux only.
#
#   eval "$(ray.sh start DIR)"   start it; exports RAY_ADDRESS_HTTP, RAY_AUTH_MODE and RAY_AUTH_TOKEN
#   ray.sh kill DIR              kill -9 the raylets of the workers, and nothing else
#   ray.sh node DIR              start another worker, for instance after `kill`
#   ray.sh stop DIR              end every process of the cluster; may be called again
#
# Everything is kept under DIR, whose path must be short: Ray puts Unix sockets there. Ray comes
# from the virtual environment $RAY_VENV, or from DIR/venv, which is made when absent. RAY_PORT
# and RAY_HTTP_PORT (and the two after it) choose the ports. Other variables reach the cluster and its jobs, such as
# RAY_JOB_START_TIMEOUT_SECONDS (how long a job may stay PENDING; 900).
set -euo pipefail

usage() { sed -n '2,12s/^# \{0,1\}//p' "$0" >&2; exit 2; }
[ $# -eq 2 ] || usage
mkdir -p "$2"
dir=$(cd "$2" && pwd -P)
[ ${#dir} -le 40 ] || { echo "ray.sh: the path $dir is too long" >&2; exit 2; }
venv=${RAY_VENV:-$dir/venv}
port=${RAY_PORT:-6399}
http_port=${RAY_HTTP_PORT:-8299}
url=http://127.0.0.1:$http_port

fail() {
    echo "ray.sh: $1; see $dir/start.log" >&2
    tail -n 5 "$dir/start.log" >&2
    exit 1
}

# Each process of the cluster, jobs included, inherits RAY_TEST_HEAD or RAY_TEST_WORKER with DIR
# as its value. This lists those of one kind: HEAD, WORKER, or (HEAD|WORKER).
pids() {
    local file
    for file in /proc/[0-9]*/environ; do
        if tr '\0' '\n' 2>/dev/null <"$file" | grep -qE "^RAY_TEST_$1=$dir\$"; then
            file=${file%/environ}
            echo "${file#/proc/}"
        fi
    done 2>/dev/null
}

kill_all() {
    local list
    for _ in {1..20}; do
        list=$(pids "$1")
        [ -n "$list" ] || return 0
        # shellcheck disable=SC2086
        kill -KILL $list 2>/dev/null || true
        sleep 0.2
    done
    fail "could not end: $list"
}

# ray_start KIND ARGUMENT... : Ray's GCS listens on every interface, so a token guards it.
# SPT_NOENV keeps Ray's process titles from overwriting the environment that pids() reads.
ray_start() {
    local kind=$1
    shift
    env "RAY_TEST_$kind=$dir" RAY_AUTH_MODE=token RAY_AUTH_TOKEN="$(cat "$dir/token")" \
        RAY_memory_monitor_refresh_ms=0 SPT_NOENV=1 \
        "$venv/bin/ray" start --num-cpus=2 --num-gpus=2 --memory=4000000000 \
        --object-store-memory=100000000 --disable-usage-stats "$@" \
        >>"$dir/start.log" 2>&1 </dev/null || fail "ray start failed"
}

# Ray replaces 127.0.0.1 by the host's outer address, but leaves other loopback addresses alone.
start_head() {
    ray_start HEAD --head --node-ip-address=127.0.0.2 --port="$port" --temp-dir="$dir/s" \
        --ray-client-server-port=$((http_port + 2)) --include-dashboard=true \
        --dashboard-host=127.0.0.1 --dashboard-port="$http_port"
}

# Both agents also listen on 127.0.0.1, so the worker's needs a port of its own.
start_worker() {
    ray_start WORKER --node-ip-address=127.0.0.3 --address="127.0.0.2:$port" \
        --dashboard-agent-listen-port=$((http_port + 1))
}

# The number of nodes the cluster has known; a dead one stays listed.
count_nodes() {
    curl -s -m 5 -H "Authorization: Bearer $(cat "$dir/token")" "$url/api/v0/nodes" |
        grep -o '"node_id"' | wc -l || true
}

wait_nodes() {
    local end=$((SECONDS + 90))
    until [ "$(count_nodes)" -ge "$1" ]; do
        [ $SECONDS -lt $end ] || fail "fewer than $1 nodes after 90 s"
        sleep 0.5
    done
}

case $1 in
start)
    [ -z "$(pids '(HEAD|WORKER)')" ] || { echo "ray.sh: already running in $dir" >&2; exit 1; }
    : >"$dir/start.log"
    if [ ! -x "$venv/bin/ray" ]; then
        python3 -m venv "$venv"
        "$venv/bin/pip" install -q 'ray[default]==2.60.0' >&2
    fi
    [ -s "$dir/token" ] || (umask 077 && od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$dir/token")
    trap '[ $? -eq 0 ] || kill_all "(HEAD|WORKER)"' EXIT
    start_head
    start_worker
    wait_nodes 2
    echo "export RAY_ADDRESS_HTTP=$url RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$(cat "$dir/token")"
    ;;
kill)
    for pid in $(pids WORKER); do
        case $(readlink "/proc/$pid/exe") in */raylet) kill -KILL "$pid" ;; esac
    done
    ;;
node)
    before=$(count_nodes)
    start_worker
    wait_nodes $((before + 1))
    ;;
stop) kill_all '(HEAD|WORKER)' ;;
*) usage ;;
esac
