#!/bin/sh
# Explores the twelve sources of tests/reference/explored and checks every answer against their raw data:
#
#     tests/reference/explored.sh [NAME …]
#
# SEEDS="1 2 3" explores with each of them. The results are in target/explored.
set -eu
cd "$(dirname "$0")/../.."
tests/reference/servers.sh
python=target/servers/pyarrow/bin/python
[ -x "$python" ] || python3 -m venv target/servers/pyarrow
"$python" -c 'import pyarrow' 2>/dev/null || target/servers/pyarrow/bin/pip install --quiet --disable-pip-version-check pyarrow
"$python" tests/reference/explored_oracle.py --self-test
for seed in ${SEEDS:-1}; do
    "$python" tests/reference/explored.py target/explored "$@" --seed "$seed"
done
"$python" tests/reference/explored_oracle.py target/explored --table
