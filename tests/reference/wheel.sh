#!/bin/sh
# Builds the wheel, installs it into a new environment and runs the binary in it:
#
#     tests/reference/wheel.sh
#
# maturin comes from PyPI, into target/wheel. The build shares target/release with cargo's.
set -eu
cd "$(dirname "$0")/../.."
environment=$PWD/target/wheel
rm -rf "$environment"
python3 -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check 'maturin>=1.9,<2'
PATH=$environment/bin:$PATH maturin build --release --quiet --out "$environment/dist"
python3 -m venv "$environment/user"
"$environment/user/bin/pip" install --quiet --disable-pip-version-check --no-index "$environment"/dist/*.whl
mcprl=$environment/user/bin/mcprl
"$mcprl" --version
"$mcprl" plan pipelines/sqlite.toml --cache "$environment/cache" | tail -n 3
ls -l "$environment"/dist/*.whl
