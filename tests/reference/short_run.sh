#!/bin/sh
# Trains shortly with pipelines/sqlite.toml and prints the id of the run, which nothing that others run in the same cache
# changes: what was done before is taken from there.
#
#     tests/reference/short_run.sh MCPRL CACHE
set -eu
events=$("$1" --json run pipelines/sqlite.toml --cache "$2" --set loop.train.iterations=2)
printf '%s\n' "$events" | sed -n 's/.*"event":"ended","run":"\([^"]*\)".*/\1/p'
