#!/bin/sh
# Trains shortly with pipelines/sqlite.toml and prints the id of the run, which nothing that others run in the same cache
# changes: what was done before is taken from there.
#
#     tests/reference/short_run.sh MCPRL CACHE [OPTION…]
set -eu
mcprl=$1 cache=$2
shift 2
events=$("$mcprl" --json run pipelines/sqlite.toml --cache "$cache" --set loop.train.iterations=2 "$@")
printf '%s\n' "$events" | sed -n 's/.*"event":"ended","run":"\([^"]*\)".*/\1/p'
