#!/bin/sh
# Talks with a run through other people's clients, openai-python and the Python MCP SDK:
#
#     tests/reference/serve.sh [MCPRL [CACHE [RUN]]]
#
# MCPRL (default: target/release/mcprl) is the binary. CACHE has the run to serve, one of pipelines/sqlite.toml; without it, a
# short training is run into target/ui-test, as tests/reference/ui.sh does. The clients come from PyPI, into
# target/servers/openai. Servers listen on loopback and end with this script.
set -eu
cd "$(dirname "$0")/../.."
mcprl=$(realpath "${1:-target/release/mcprl}")
cache=${2:-target/ui-test}
run=${3:-latest}
packages=$PWD/target/servers/openai
[ -n "${2-}" ] || "$mcprl" run pipelines/sqlite.toml --cache "$cache" \
    --set stages.base.traces=700 --set loop.train.iterations=2 > /dev/null
if [ ! -f "$packages/bin/complete" ]; then
    rm -rf "$packages"
    python3 -m venv "$packages"
    "$packages/bin/pip" install --quiet --disable-pip-version-check openai==3.57.0 mcp==2.3.0
    touch "$packages/bin/complete"
fi
"$packages/bin/python" tests/reference/serve.py "$mcprl" "$run" --cache "$cache"
