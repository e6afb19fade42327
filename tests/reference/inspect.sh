#!/bin/sh
# Writes the exam of a run as logs of Inspect with examples/inspect/to_inspect.py, and reads them with Inspect:
#
#     tests/reference/inspect.sh [MCPRL [CACHE [RUN]]]
#
# MCPRL (default: target/release/mcprl) is the binary. CACHE has the run to read, RUN its id; without them, a short training of
# pipelines/sqlite.toml is run into target/ui-test, as tests/reference/ui.sh does. inspect-ai comes from PyPI, into
# target/servers/inspect.
set -eu
cd "$(dirname "$0")/../.."
mcprl=$(realpath "${1:-target/release/mcprl}")
cache=${2:-target/ui-test}
packages=$PWD/target/servers/inspect
run=${3:-$(tests/reference/short_run.sh "$mcprl" "$cache")}
if [ ! -f "$packages/bin/complete" ]; then
    rm -rf "$packages"
    python3 -m venv "$packages"
    "$packages/bin/pip" install --quiet --disable-pip-version-check inspect-ai==0.3.285 pandas==3.1.1 pyarrow==26.0.1
    touch "$packages/bin/complete"
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$packages/bin/python" examples/inspect/to_inspect.py "$cache/runs/$run/exam" "$scratch/logs"
"$packages/bin/python" tests/reference/inspect_logs.py "$scratch/logs" "$cache/runs/$run/exam"
