#!/bin/sh
# Makes the pictures of the live page, docs/images/ui-*.png, from short runs of pipelines/sqlite.toml:
#
#     tests/reference/images.sh [MCPRL]
#
# With CHECK=1 it takes none, of fewer runs: it looks at what the first screens of their states say.
#
# MCPRL (default: target/release/mcprl) is the binary. The runs are in target/ui-images, made anew each time. Needs what ui.sh needs, and
# `tests/reference/ui.sh` run once. The running state is that of a run that goes on meanwhile.
set -eu
cd "$(dirname "$0")/../.."
mcprl=$(realpath "${1:-target/release/mcprl}")
cache=target/ui-images
export NODE_PATH="$PWD/target/servers/ui/node_modules"
export CHROMIUM="${CHROMIUM:-$(command -v chromium || command -v chromium-browser || command -v google-chrome)}"

rm -rf "$cache" "$cache.files"
rate=loop.train.stages.update.learning_rate
# A run with these options; prints its id.
run() {
    "$mcprl" --json run "$file" --cache "$cache" "$@" 2>/dev/null |
        sed -n 's/.*"event":"ended","run":"\([^"]*\)".*/\1/p' | tail -1
}
long() {
    "$mcprl" --json run pipelines/sqlite.toml --cache "$cache" --set loop.train.iterations="$2" --set seed="$1" > "$cache.files/events" 2>&1 &
    going=$!
    until grep -qsF '"finished","id":"train[0006]/update"' "$cache.files/events"; do
        kill -0 $going
        sleep 0.2
    done
}
# The newest run.
newest() { "$mcprl" runs --cache "$cache" | sed -n 's/^\(sqlite-[^ ]*\) .*/\1/p' | tail -1; }

# Without training.
mkdir -p "$cache.files"
sed 's/, trained = "train.policy"//' pipelines/sqlite.toml > "$cache.files/sqlite.toml"
cp -r pipelines/sqlite.*.* pipelines/sqlite-model "$cache.files"
file=$cache.files/sqlite.toml
base=$(run --until exam)
file=pipelines/sqlite.toml
if [ -n "${CHECK-}" ]; then values="3e-4 3e-3" seeds=1; else values="3e-4 1e-3 3e-3" seeds="1 2 3"; export OUT=docs/images; fi
for value in $values; do
    for seed in $seeds; do
        last=$(run --set loop.train.iterations=8 --set loop.train.stages.update.total_steps=16 --set "$rate=$value" --set loop.train.stages.rollout.seed=$seed)
        [ $value$seed != 3e-41 ] || none=$last
    done
done
gain=$last
long 5 40
kill -INT $going
wait $going || true
stopped=$(newest)
long 6 400
running=$(newest)

address=$(mktemp)
"$mcprl" ui "$gain" --cache "$cache" 2> "$address" &
server=$!
trap 'kill -INT $going 2>/dev/null || true; kill $server 2>/dev/null; rm "$address"' EXIT
until grep -q '^ui' "$address"; do sleep 0.2; done
node tests/reference/images.mjs "$(sed -n 's/^ui *//p' "$address")" " --cache $cache" "gain=$gain" "none=$none" "running=$running" "stopped=$stopped" "base=$base"
