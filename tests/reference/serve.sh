#!/bin/sh
# Talks with a run through other people's clients, openai-python, litellm and the MCP SDKs of Python and TypeScript:
#
#     tests/reference/serve.sh [MCPRL [CACHE [RUN]]]
#
# MCPRL (default: target/release/mcprl) is the binary. CACHE has the run to serve, one of pipelines/sqlite.toml; without it, a
# short training is run into target/ui-test, as tests/reference/ui.sh does. The clients come from PyPI and npm, into
# target/servers/openai. Servers listen on loopback and end with this script. SCREENSHOTS=FOLDER writes pictures of the page, and
# ASSETS=1 tries its files without a build.
set -eu
cd "$(dirname "$0")/../.."
mcprl=$(realpath "${1:-target/release/mcprl}")
cache=${2:-target/ui-test}
run=${3:-latest}
packages=$PWD/target/servers/openai
[ -n "${2-}" ] || run=$(tests/reference/short_run.sh "$mcprl" "$cache")
if [ ! -f "$packages/bin/complete-2" ]; then
    rm -rf "$packages"
    python3 -m venv "$packages"
    "$packages/bin/pip" install --quiet --disable-pip-version-check openai==3.57.0 mcp==2.3.0 litellm==1.110.2
    npm install --silent --no-audit --no-fund --prefix "$packages/node" @modelcontextprotocol/sdk@1.32.2
    touch "$packages/bin/complete-2"
fi
MCP_SDK=$packages/node/node_modules/@modelcontextprotocol/sdk LITELLM_LOCAL_MODEL_COST_MAP=True \
    "$packages/bin/python" tests/reference/serve.py "$mcprl" "$run" --cache "$cache"
# 71 clients that misbehave, one beside another that gets its answer.
python3 tests/reference/hostile_clients.py "$mcprl" "$run" --cache "$cache"

# The page, in a browser.
browser=${CHROMIUM:-$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)}
if [ -z "$browser" ]; then
    echo "no Chromium; install it, or name it in CHROMIUM" >&2
    exit 1
fi
pages=$PWD/target/servers/ui
[ -d "$pages/node_modules/playwright-core" ] && [ -d "$pages/node_modules/axe-core" ] ||
    npm install --prefix "$pages" --no-audit --no-fund --loglevel error playwright-core@1.65.1 axe-core@4.14.1
scratch=$(mktemp -d)
servers=
trap 'kill -9 $servers 2> /dev/null || true; rm -r "$scratch"' EXIT
trap 'exit 130' INT TERM

# Serves the run with these options; its address is then in $url.
serve() {
    "$mcprl" serve "$run" --cache "$cache" --port 0 "$@" 2> "$scratch/log" &
    servers="$servers $!"
    url=
    for _ in $(seq 120); do
        url=$(sed -n 's|^open *\(http://[^/]*\)/.*|\1|p' "$scratch/log")
        [ -z "$url" ] || break
        sleep 0.5
    done
}

serve --yes --keep "$scratch/kept"
open="$url $!"
MCPRL_TEST_KEY=s3cret
export MCPRL_TEST_KEY
serve --yes --deny '*' --api-key-env MCPRL_TEST_KEY
# shellcheck disable=SC2086
NODE_PATH="$pages/node_modules" CHROMIUM="$browser" node tests/reference/chat_page.mjs $open "$url" "$!"
