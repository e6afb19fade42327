#!/bin/sh
# Plays episodes with somebody else's agent loop, the OpenAI Agents SDK (examples/harness):
#
#     tests/reference/harness.sh [MCPRL [CACHE]]
#
# MCPRL (default: target/release/mcprl) is the binary. CACHE (default: target/ui-test) may have the tasks of
# tests/reference/ui.sh. The SDK comes from PyPI, into target/servers/agents. Servers listen on loopback and end with this script.
set -eu
cd "$(dirname "$0")/../.."
mcprl=$(realpath "${1:-target/release/mcprl}")
cache=${2:-target/ui-test}
packages=$PWD/target/servers/agents
if [ ! -f "$packages/bin/complete" ]; then
    rm -rf "$packages"
    python3 -m venv "$packages"
    "$packages/bin/pip" install --quiet --disable-pip-version-check openai-agents==0.24.0 pyarrow==26.0.1
    touch "$packages/bin/complete"
fi
run() {
    "$mcprl" --json run pipelines/sqlite.toml --cache "$cache" --until train --set loop.train.iterations=1 \
        --set loop.train.stages.rollout.prompts=2 --set loop.train.stages.rollout.group_size=4 \
        --set loop.train.stages.rollout.refill_waves=0 \
        --set "agent.harness=[\"$packages/bin/python\", \"../examples/harness/agent.py\"]" "$@"
}
# A weak policy may solve nothing, and then the run ends with 1.
events=$(run) || [ $? = 1 ]
# Others run in the same cache.
id=$(printf '%s\n' "$events" | sed -n 's/.*"event":"ended","run":"\([^"]*\)".*/\1/p')
"$packages/bin/python" tests/reference/harness.py "$cache/runs/$id"
