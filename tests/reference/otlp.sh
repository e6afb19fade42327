#!/bin/sh
# Sends a run as traces to a collector that parses them with OpenTelemetry's own classes, and checks them:
#
#     tests/reference/otlp.sh [MCPRL [CACHE [RUN]]]
#
# MCPRL (default: target/release/mcprl) is the binary. CACHE has the run to send; without it, a short training of
# pipelines/sqlite.toml is run into target/ui-test, as tests/reference/ui.sh does. opentelemetry-proto comes from PyPI, into
# target/servers/otlp. PHOENIX=1 sends the run to Arize Phoenix as well, a back end that takes a gigabyte of packages, and
# asks it for the traces. Servers listen on loopback and end with this script.
set -eu
cd "$(dirname "$0")/../.."
mcprl=$(realpath "${1:-target/release/mcprl}")
cache=${2:-target/ui-test}
run=${3:-latest}
packages=$PWD/target/servers/otlp
[ -n "${2-}" ] || run=$(tests/reference/short_run.sh "$mcprl" "$cache")
if [ ! -f "$packages/bin/complete" ]; then
    rm -rf "$packages"
    python3 -m venv "$packages"
    "$packages/bin/pip" install --quiet --disable-pip-version-check opentelemetry-proto==1.45.2 pyarrow==26.0.1
    touch "$packages/bin/complete"
fi
"$packages/bin/python" tests/reference/otlp.py collector "$mcprl" "$cache" "$run"
[ -n "${PHOENIX-}" ] || exit 0
if [ ! -x "$packages/phoenix/bin/phoenix" ]; then
    python3 -m venv "$packages/phoenix"
    "$packages/phoenix/bin/pip" install --quiet --disable-pip-version-check arize-phoenix==20.26.1
fi
PHOENIX="$packages/phoenix/bin/phoenix" "$packages/bin/python" tests/reference/otlp.py phoenix "$mcprl" "$cache" "$run"
