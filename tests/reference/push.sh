#!/bin/sh
# Uploads one folder by huggingface_hub and by mcprl to one mock of the hub, and compares the requests:
#
#     tests/reference/push.sh [MCPRL]
#
# huggingface_hub comes from PyPI, into target/servers/hub. The mock listens on loopback and ends with this script.
set -eu
cd "$(dirname "$0")/../.."
mcprl=$(realpath "${1:-target/release/mcprl}")
packages=$PWD/target/servers/hub
if [ ! -f "$packages/bin/complete" ]; then
    rm -rf "$packages"
    python3 -m venv "$packages"
    "$packages/bin/pip" install --quiet --disable-pip-version-check huggingface_hub==2.4.0
    touch "$packages/bin/complete"
fi
"$packages/bin/python" tests/reference/push.py "$mcprl"
