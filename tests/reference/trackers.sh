#!/bin/sh
# Sends a run to real experiment trackers and reads it back from each:
#
#     tests/reference/trackers.sh [MCPRL [CACHE [RUN]]]
#
# MCPRL (default: target/release/mcprl) is the binary. CACHE has the run to send; without it, a short training of
# pipelines/sqlite.toml is run into target/ui-test, which tests/reference/ui.sh opens as well. The trackers come from
# PyPI, each into an environment of its own in target/servers/trackers. They are started on loopback and end with this
# script, and nothing is sent anywhere else. ONLY=NAME checks one tracker.
set -eu
cd "$(dirname "$0")/../.."
mcprl=$(realpath "${1:-target/release/mcprl}")
cache=${2:-target/ui-test}
run=${3:-latest}
packages=$PWD/target/servers/trackers
# Cached after the first time.
[ -n "${2-}" ] || run=$(tests/reference/short_run.sh "$mcprl" "$cache")

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for package in tensorboard==2.21.0 wandb==0.31.0 trackio==0.43.0; do
    name=${package%%==*}
    [ -z "${ONLY-}" ] || [ "$ONLY" = "$name" ] || continue
    if [ "$("$packages/$name/bin/pip" show "$name" 2>/dev/null | sed -n 's/^Version: //p')" != "${package#*==}" ]; then
        rm -rf "${packages:?}/$name"
        python3 -m venv "$packages/$name"
        "$packages/$name/bin/pip" install --quiet --disable-pip-version-check "$package"
    fi
    "$packages/$name/bin/python" tests/reference/trackers.py "$name" "$mcprl" "$cache" "$run" "$scratch/$name"
done
