#!/usr/bin/env bash
# The GPU kit: one command that tells whether the CUDA engine is right on a machine, and how fast.
#
#   kit.sh build [ARCHIVE]    # builds with CUDA and packs everything: gpu-kit.tar.gz, below 60 MiB. Needs no GPU
#   kit.sh run [--device cuda:0] [--out gpu-results] [--budget 570]    # on the machine, from the unpacked archive
#   kit.sh rehearse [--out DIR]    # all of it on the CPU, by the operations a device is given; small
#
# `run` wants an NVIDIA driver, python3, and CUDA 13's libraries as PyTorch's wheels or a toolkit bring them. It exits
# with 1 if a part fails or there is no device. Environment of `build`: that of ../cuda_build.sh.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
limit=$((60 << 20))

# stage FOLDER BINARIES TESTS: what is run, as the archive holds it.
stage() {
    rm -rf "$1"
    # Tests look for `tests/reference` from the folder of their package.
    mkdir -p "$1/peers" "$1/reference" "$1/tests/reference" "$1/pipelines" "$1/crates/mcprl-engine"
    cp "$2"/{mcprl,mcprl-bench} "$1"
    cp "$3" "$1/mcprl-tests"
    cp "$here"/{kit.sh,kit.py,parity.py} "$1"
    cp "$root"/benches/peers/{peer,shapes}.py "$1/peers"
    cp "$root/tests/reference/model_parity.py" "$1/reference"
    cp -r "$root/tests/reference/fixtures" "$1/tests/reference"
    cp -r "$root"/pipelines/sqlite* "$1/pipelines"
    git -C "$root" describe --always --dirty >"$1/VERSION" || echo unknown >"$1/VERSION"
}

# The engine's tests among the messages of `cargo test --no-run --message-format=json`.
test_binary() {
    python3 -c '
import json, sys
for message in map(json.loads, sys.stdin):
    if message.get("executable") and message["target"]["name"] == "mcprl_engine" and message["profile"]["test"]:
        print(message["executable"])'
}

build() {
    root=$(cd "$here/../.." && pwd)
    archive=$(realpath "${1:-gpu-kit.tar.gz}")
    export CUDA_TOOLKIT_DIR=${CUDA_TOOLKIT_DIR:-${TMPDIR:-/tmp}/mcprl-cuda-toolkit}
    export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-${TMPDIR:-/tmp}/cuda-target} QUANTISED=no
    # Libraries are linked beside the binaries when the kit runs: children find them too, whatever their environment.
    export RUSTFLAGS='-C link-arg=-Wl,-rpath,$ORIGIN/lib -C link-arg=-Wl,--disable-new-dtags'
    "$root/benches/cuda_build.sh" --workspace --bin mcprl --bin mcprl-bench
    tests=$("$root/benches/cuda_build.sh" test --lib --no-run --message-format=json | test_binary)
    kit=$(mktemp -d)
    trap 'rm -rf "$kit"' EXIT
    stage "$kit/gpu-kit" "$CARGO_TARGET_DIR-called/release" "$tests"
    trace "$kit"
    strip "$kit"/gpu-kit/mcprl{,-bench,-tests}
    tar -C "$kit" -czf "$archive" gpu-kit
    size=$(stat -c %s "$archive")
    echo "$archive: $((size >> 20)) MiB"
    [ "$size" -lt "$limit" ] || { echo "above $((limit >> 20)) MiB" >&2; exit 1; }
}

# trace KIT: the library that profiles by kernel, against the headers of CUPTI's wheel.
trace() {
    cupti="$CUDA_TOOLKIT_DIR/more/nvidia-cuda-cupti/nvidia/cu13"
    home=${CUDA_HOME:-$CUDA_TOOLKIT_DIR/wheels/nvidia/cu13}
    [ -e "$cupti/include/cupti.h" ] || "$CUDA_TOOLKIT_DIR/venv/bin/pip" install --quiet --no-deps --upgrade \
        --target "$CUDA_TOOLKIT_DIR/more/nvidia-cuda-cupti" nvidia-cuda-cupti==13.0.85
    cc -Wall -O2 -shared -fPIC -I"$cupti/include" -I"$home/include" -o "$1/gpu-kit/trace.so" "$here/trace.c" \
        -L"$cupti/lib" -l:libcupti.so.13 -Wl,-rpath,'$ORIGIN/lib' -lpthread
}

rehearse() {
    root=$(cd "$here/../.." && pwd)
    cd "$root"
    cargo build --release --locked --workspace --bin mcprl --bin mcprl-bench
    tests=$(cargo test --release --locked --lib --no-run --message-format=json | test_binary)
    kit=$(mktemp -d)
    trap 'rm -rf "$kit"' EXIT
    stage "$kit/gpu-kit" "${CARGO_TARGET_DIR:-target}/release" "$tests"
    "$kit/gpu-kit/kit.sh" run --device cpu-composed --out "$kit/results" --budget 1200 "$@"
}

verb=${1:-}
shift || true
case $verb in
build | rehearse) "$verb" "$@" ;;
run)
    command -v python3 >/dev/null || { echo "python3 is not found" >&2; exit 1; }
    exec python3 "$here/kit.py" "$@"
    ;;
*)
    sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
