#!/bin/sh
# Reads exported logs with Inspect, in Python, over HTTP and in a browser:
#
#     tests/reference/inspect.sh [MCPRL [CACHE [RUN]]]
#
# MCPRL (default: target/release/mcprl) is the binary. CACHE has the run to export; without it, a short training of
# pipelines/sqlite.toml is run into target/ui-test, as tests/reference/ui.sh does. inspect-ai comes from PyPI, into
# target/servers/inspect. The browser is Chromium on the PATH, or CHROMIUM; without one, that part is skipped.
# CARGO_TEST (default: cargo test --release --locked) builds the test that writes hostile logs.
set -eu
cd "$(dirname "$0")/../.."
mcprl=$(realpath "${1:-target/release/mcprl}")
cache=${2:-target/ui-test}
run=${3:-latest}
packages=$PWD/target/servers/inspect
browser=${CHROMIUM:-$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)}
[ -n "${2-}" ] || run=$(tests/reference/short_run.sh "$mcprl" "$cache")
if [ ! -x "$packages/bin/inspect" ]; then
    rm -rf "$packages"
    python3 -m venv "$packages"
    "$packages/bin/pip" install --quiet --disable-pip-version-check inspect-ai==0.3.285 pandas==3.1.1 pyarrow==26.0.1
fi

scratch=$(mktemp -d)
viewer=
trap '[ -z "$viewer" ] || kill $viewer 2> /dev/null; rm -rf "$scratch"' EXIT
mkdir "$scratch/logs" "$scratch/again" "$scratch/hostile"
"$mcprl" export "$run" --cache "$cache" --inspect "$scratch/logs/exam.eval"
"$mcprl" export "$run" --cache "$cache" --inspect "$scratch/again/exam.eval" > /dev/null
diff -r "$scratch/logs" "$scratch/again"
"$mcprl" export "$run/train/rollout" --cache "$cache" --inspect "$scratch/logs/rollout.eval"
MCPRL_INSPECT_LOGS="$scratch/hostile" ${CARGO_TEST:-cargo test --release --locked} --quiet --lib \
    inspect::tests::hostile_logs -- --ignored > /dev/null

folder=$cache/runs/$("$packages/bin/python" tests/reference/inspect_logs.py run "$scratch/logs")
"$packages/bin/python" tests/reference/inspect_logs.py logs "$scratch/logs" "$folder"
"$packages/bin/python" tests/reference/inspect_logs.py hostile "$scratch/hostile"

# The viewer's own server, with the hostile logs beside the others.
cp "$scratch"/hostile/*.eval "$scratch/logs"
port=$("$packages/bin/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$packages/bin/inspect" view start --log-dir "$scratch/logs" --host 127.0.0.1 --port "$port" > "$scratch/viewer" 2>&1 &
viewer=$!
"$packages/bin/python" tests/reference/inspect_logs.py viewer "http://127.0.0.1:$port"
if [ -z "$browser" ]; then
    echo "no Chromium: the viewer's page is not opened" >&2
    exit 0
fi
ui=$PWD/target/servers/ui
if [ ! -d "$ui/node_modules/playwright-core" ]; then
    mkdir -p "$ui"
    npm install --prefix "$ui" --no-audit --no-fund --loglevel error playwright-core@1.65.1
fi
NODE_PATH="$ui/node_modules" CHROMIUM="$browser" node tests/reference/inspect.mjs "http://127.0.0.1:$port"
