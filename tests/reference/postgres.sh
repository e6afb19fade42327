#!/bin/sh
# Sessions with data of their own, on the real programs: a FastMCP server over PostgreSQL, whose databases are made and
# removed around each session, the same server with its data in memory, and mcp-server-sqlite over a copied file.
#
#     tests/reference/postgres.sh
#
# Needs PostgreSQL's programs (Debian: `apt install postgresql`) and tests/reference/servers.sh. PostgreSQL runs in a folder
# of its own, on a socket there alone, and ends with this script.
set -eu
cd "$(dirname "$0")/../.."
servers=${MCPRL_TEST_SERVERS:-$PWD/target/servers}
export MCPRL_TEST_SERVERS="$servers"
programs=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | tail -n 1)
PATH="${programs:+$programs:}$PATH"
"$servers/fastmcp/bin/python" -c 'import psycopg' 2>/dev/null ||
    "$servers/fastmcp/bin/python" -m pip install --quiet 'psycopg[binary]==3.2.10'

scratch=$(mktemp -d)
chmod 755 "$scratch"
# PostgreSQL refuses to run as root.
as=
[ "$(id -u)" != 0 ] || as="runuser -u postgres --"
mkdir "$scratch/data"
[ -z "$as" ] || chown postgres "$scratch" "$scratch/data"
trap '$as pg_ctl --pgdata "$scratch/data" --mode immediate stop > /dev/null; rm -r "$scratch"' EXIT
trap 'exit 130' INT TERM
$as initdb --pgdata "$scratch/data" --username "$(id -un)" --auth trust --no-locale --encoding UTF8 > "$scratch/initdb.log"
$as pg_ctl --pgdata "$scratch/data" --log "$scratch/data/log" --wait \
    --options "-c listen_addresses='' -k $scratch" start > "$scratch/start.log"
export PGHOST="$scratch"
createdb tickets_clean
psql --quiet --dbname tickets_clean --command "CREATE TABLE ticket (title text)" --command "INSERT INTO ticket VALUES ('broken lamp')"

MCPRL_TEST_PGHOST="$scratch" ${CARGO:-cargo} test --release --locked --test integration -- --ignored data_of_its_own_on_real_servers

left=$(psql --dbname tickets_clean --tuples-only --no-align --command "SELECT count(*) FROM pg_database WHERE datname LIKE 'mcprl_%'")
[ "$left" = 0 ] || { echo "$left databases are left" >&2; exit 1; }
