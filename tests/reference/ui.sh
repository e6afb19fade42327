#!/bin/sh
# Opens every view of the live page in a real browser, and reviews recorded conversations on theirs:
#
#     tests/reference/ui.sh [MCPRL [CACHE [RUN]]]
#
# MCPRL (default: target/release/mcprl) is the binary. CACHE has the run to open; without it, a short training of
# pipelines/sqlite.toml is run into target/ui-test, with two seeds. Needs Chromium or Chrome on the PATH, or in CHROMIUM; playwright-core
# and axe-core come from npm, into target/servers/ui. SCREENSHOTS=FOLDER writes pictures of the views, and
# ASSETS=src/web/page tries other files of the page without a build. Fails if a view shows an error, if
# the browser's console has one, if something cannot be used by keyboard or on 360 pixels, or if a rule of axe is broken.
set -eu
cd "$(dirname "$0")/../.."
mcprl=$(realpath "${1:-target/release/mcprl}")
cache=${2:-target/ui-test}
run=${3:-latest}
packages=$PWD/target/servers/ui
browser=${CHROMIUM:-$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)}
if [ -z "$browser" ]; then
    echo "no Chromium; install it, or name it in CHROMIUM" >&2
    exit 1
fi
if [ ! -d "$packages/node_modules/axe-core" ]; then
    mkdir -p "$packages"
    npm install --prefix "$packages" --no-audit --no-fund --loglevel error playwright-core@1.65.1 axe-core@4.14.1
fi
# Cached after the first time.
if [ -z "${2-}" ]; then
    tests/reference/short_run.sh "$mcprl" "$cache" --set loop.train.stages.rollout.seed=2 > /dev/null
    run=$(tests/reference/short_run.sh "$mcprl" "$cache")
    export SEEDS=2
fi

export NODE_PATH="$packages/node_modules" CHROMIUM="$browser"
scratch=$(mktemp -d)
server=
trap 'kill $server 2>/dev/null; rm -r "$scratch"' EXIT

# Starts a page with these arguments of mcprl; its address is then in $url.
page() {
    : > "$scratch/url"
    "$mcprl" "$@" 2> "$scratch/url" &
    server=$!
    for _ in $(seq 60); do
        url=$(sed -n 's/^ui *//p' "$scratch/url")
        [ -z "$url" ] || break
        sleep 0.5
    done
}

page ui "$run" --cache "$cache"
node tests/reference/ui.mjs "$url"
kill $server

turns='{"role": "assistant", "content": "", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "count", "arguments": "{}"}}]}, {"role": "tool", "tool_call_id": "c", "content": "7"}, {"role": "assistant", "content": "7"}'
for task in first '<b>second</b>' third; do
    printf '{"messages": [{"role": "user", "content": "%s"}, %s]}\n' "$task" "$turns"
done > "$scratch/logs.jsonl"
echo '{"text": "no conversation"}' >> "$scratch/logs.jsonl"
page traces "$scratch/logs.jsonl" --out "$scratch/kept.jsonl" --page
node tests/reference/traces.mjs "$url" "$scratch/kept.jsonl"
