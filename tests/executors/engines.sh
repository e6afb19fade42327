#!/bin/bash
# A small `sqlite.toml` on a real batch system of two nodes on this machine: the same digests as without it, also if the run, the
# workers or a node are killed at random moments. Needs the packages of slurm.sh, or a virtual environment for ray.sh.
#
#   engines.sh slurm|ray MCPRL [KILLS]     KILLS: how often each of run, worker and node is killed; 0 by default
#
# With REMOTE=s3://BUCKET/PREFIX in the environment, the results go there too, and a run with an empty cache takes all of them from
# there. MCPRL needs feature `s3` for that.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
engine=$1 mcprl=$(realpath "$2") kills=${3:-0}
dir=$(mktemp -d "/tmp/mcprl-$engine-XXXXXX")
began=$SECONDS

run=
stop() {
    [ -z "$run" ] || kill -KILL "$run" 2>/dev/null || true
    "$here/$engine.sh" stop "$dir/$engine" || true
    rm -rf "$dir"
}
trap stop EXIT

fail() {
    echo "engines.sh: $*" >&2
    tail -n 20 "$dir/last.log" >&2 || true
    exit 1
}

eval "$("$here/$engine.sh" start "$dir/$engine")"
address=${RAY_ADDRESS_HTTP:+address = \"$RAY_ADDRESS_HTTP\"}
cat >"$dir/run.toml" <<END
extends = "$here/../../pipelines/sqlite.toml"
executor = "queue"

[executors.queue]
kind = "$engine"
resources = { cpus = 1, memory_gib = 0.9, time = "10m" }
jobs = 4
attempts = 6
poll_s = 0.5
$address

[agent]
max_turns = 1
max_turn_tokens = 12

[loop.train]
iterations = 1

[loop.train.stages.rollout]
prompts = 4
group_size = 2
shards = 2

[stages.exam]
shards = 2
samples = 0
END
cp -r "$here"/../../pipelines/sqlite{.families.toml,.system.txt,-model} "$dir"

# The digests of a run's outputs.
digests() {
    python3 - "$1" <<'END'
import glob, json, sys
found = {}
for path in glob.glob(sys.argv[1] + "/runs/*/journal.jsonl"):
    for line in open(path):
        entry = json.loads(line)
        if entry["event"] in ("finished", "cached"):
            for port, output in entry["result"]["outputs"].items():
                found[entry["id"] + "." + port] = output["digest"]
for name in sorted(found):
    print(name, found[name])
END
}

# The loop learns nothing from such short episodes, which is exit code 1; what fails has a line `error:`.
mcprl() {
    "$mcprl" "$@" >"$dir/last.log" 2>&1 || ! grep -q "^error" "$dir/last.log" || fail "mcprl $*"
}

alone=(--set executor=local --set loop.train.stages.rollout.shards=1 --set stages.exam.shards=1)
mcprl run "$dir/run.toml" --cache "$dir/here" "${alone[@]}"
digests "$dir/here" >"$dir/expected"
[ "$(wc -l <"$dir/expected")" -gt 15 ] || fail "the run on this machine is not whole"
mcprl run "$dir/run.toml" --cache "$dir/there" ${REMOTE:+--set "cache.remote=$REMOTE"}
digests "$dir/there" >"$dir/found"
diff "$dir/expected" "$dir/found" || fail "other digests"
[ -z "$(find "$dir/there/tmp/jobs" -mindepth 1 -type d)" ] || fail "folders of jobs are left"
echo "$engine: $(wc -l <"$dir/expected") outputs with the same digests, $((SECONDS - began)) s"

if [ -n "${REMOTE:-}" ]; then
    mcprl run "$dir/run.toml" --cache "$dir/elsewhere" "${alone[@]}" --set "cache.remote=$REMOTE"
    digests "$dir/elsewhere" >"$dir/found"
    diff "$dir/expected" "$dir/found" || fail "other digests from $REMOTE"
    ! grep -q '"event":"started"' "$dir"/elsewhere/runs/*/journal.jsonl || fail "a stage ran, although $REMOTE has its result"
    echo "$engine: the same outputs taken from $REMOTE, $((SECONDS - began)) s"
fi

workers() { pgrep -f "worker .*--cache $dir/killed" || true; }

kill_worker() { workers | shuf -n 1 | xargs -r kill -KILL 2>/dev/null || true; }

kill_node() {
    case $engine in
    slurm) kill -KILL "$(cat "$dir/slurm/n1.pid")" && sleep 2 && "$here/slurm.sh" node "$dir/slurm" n1 ;;
    ray) "$here/ray.sh" kill "$dir/ray" && "$here/ray.sh" node "$dir/ray" ;;
    esac
}

for ((round = 0; round < 3 * kills; round++)); do
    what=$(set -- run worker node && shift $((round % 3)) && echo "$1")
    rm -rf "$dir/killed"
    "$mcprl" run "$dir/run.toml" --cache "$dir/killed" >"$dir/last.log" 2>&1 &
    run=$!
    sleep "$((RANDOM % 14)).$((RANDOM % 10))"
    case $what in
    run) kill -KILL $run 2>/dev/null || true ;;
    worker) kill_worker ;;
    node) kill_node ;;
    esac
    wait $run 2>/dev/null || true
    mcprl resume latest --cache "$dir/killed"
    digests "$dir/killed" >"$dir/found"
    diff "$dir/expected" "$dir/found" || fail "other digests after a killed $what"
    echo "$engine: a killed $what, the same digests, $((SECONDS - began)) s"
done
