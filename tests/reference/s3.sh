#!/bin/sh
# Runs the tests of feature `s3`, or a command, against moto's server, on loopback alone:
#
#     tests/reference/s3.sh [VENV [COMMAND...]]      a command finds a bucket in MCPRL_TEST_S3
#
# VENV (default: target/s3-venv) is made with `moto[server]` from PyPI where it is absent. Two servers are started: one
# that lets everybody in, and one that knows nobody's keys. Both end with this script.
set -eu
cd "$(dirname "$0")/../.."
venv=${1:-target/s3-venv}
[ $# = 0 ] || shift
if [ ! -x "$venv/bin/moto_server" ]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet 'moto[server]==5.2.5'
fi
scratch=$(mktemp -d)
servers=
trap 'kill $servers 2>/dev/null; rm -r "$scratch"' EXIT

# serve PORT-FILE [VARIABLE=VALUE]: starts a server and waits until it answers.
serve() {
    name=$1
    shift
    port=$("$venv/bin/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    env "$@" "$venv/bin/moto_server" -H 127.0.0.1 -p "$port" > "$scratch/$name.log" 2>&1 &
    servers="$servers $!"
    "$venv/bin/python" - "$port" <<'PYTHON'
import socket, sys, time
for _ in range(600):
    try:
        socket.create_connection(("127.0.0.1", int(sys.argv[1])), 1).close()
        sys.exit()
    except OSError:
        time.sleep(0.1)
sys.exit("the server does not answer")
PYTHON
    echo "http://127.0.0.1:$port" > "$scratch/$name"
}

serve open
serve locked INITIAL_NO_AUTH_ACTION_COUNT=0
export AWS_ENDPOINT_URL="$(cat "$scratch/open")" MCPRL_TEST_S3_LOCKED="$(cat "$scratch/locked")"
export AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test AWS_REGION=us-east-1 MCPRL_TEST_S3=mcprl-test
"$venv/bin/python" -c '
import boto3, os
boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"]).create_bucket(Bucket=os.environ["MCPRL_TEST_S3"])'
if [ $# -gt 0 ]; then
    "$@"
    exit
fi
cargo test --release --locked --features s3 --lib -- --include-ignored store::remote
cargo test --release --locked --features s3 --test integration -- --include-ignored shared_cache
