#!/bin/sh
# Builds mcprl for NVIDIA devices on a machine that needs neither a GPU nor an installed CUDA toolkit.
#
#   benches/cuda_build.sh            # assembles a toolkit from PyPI wheels, then `cargo build --features cuda`
#   CUDA_HOME=/usr/local/cuda FEATURES=cuda,nccl,cudnn,flash-attn benches/cuda_build.sh    # with a toolkit that is there
#   benches/cuda_build.sh test --lib --no-run    # builds the tests
#   FEATURES=cuda,nccl,flash-attn benches/cuda_build.sh check    # checks types alone: kernels are not compiled; or clippy
#
# Environment: CUDA_TOOLKIT_DIR (where the toolkit is assembled), CARGO_TARGET_DIR, CUDA_COMPUTE_CAP (90: Hopper),
# FEATURES (cuda), QUANTISED=no (leaves out candle's kernels for quantised weights and fused experts, most of the build
# time: mcprl calls none of them, and what stands in for them aborts). Arguments go to cargo. `flash-attn` compiles some fifty kernels, for an hour or more on a few cores,
# and fetches CUTLASS from GitHub; CANDLE_FLASH_ATTN_BUILD_DIR keeps what was compiled.
set -eu
cd "$(dirname "$0")/.."

toolkit=${CUDA_TOOLKIT_DIR:-${TMPDIR:-/tmp}/mcprl-cuda-toolkit}
features=${FEATURES:-cuda}
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-${TMPDIR:-/tmp}/cuda-target}"
export CUDA_COMPUTE_CAP="${CUDA_COMPUTE_CAP:-90}"

wants() {
    case ",$features," in *",$1,"*) return 0 ;; esac
    return 1
}

# Wheels carry libraries under their versioned names alone.
unversioned() {
    for library in "$1"/lib*.so.*; do
        ln -sf "$library" "$2/$(basename "${library%%.so.*}").so"
    done
}

assemble() {
    python3 -m venv "$toolkit/venv"
    "$toolkit/venv/bin/pip" install --quiet --no-deps --target "$toolkit/wheels" \
        nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96 \
        nvidia-cuda-cccl==13.0.85 nvidia-cuda-nvrtc==13.0.88 nvidia-curand==10.4.0.35 nvidia-cublas==13.1.0.3
    ln -sfn lib "$home/lib64"
    unversioned "$home/lib" "$home/lib"
    # The driver comes with the device; the linker only wants its names, which `cuda.h` lists. Called in its place, all of
    # them answer that there is no device (100).
    mkdir -p "$home/lib/stubs"
    grep -o '\bcu[A-Z][A-Za-z0-9_]*' "$home/include/cuda.h" | sort -u | sed 's/.*/int &(void) { return 100; }/' >"$toolkit/stub.c"
    cc -shared -fPIC -w -Wl,-soname,libcuda.so.1 -o "$home/lib/stubs/libcuda.so" "$toolkit/stub.c"
    ln -sf libcuda.so "$home/lib/stubs/libcuda.so.1"
    touch "$toolkit/whole"
}

# add WHEEL FOLDER: a library that is a wheel of its own, its headers and libraries linked into the toolkit.
add() {
    wheel="$toolkit/more/${1%%==*}"
    if [ ! -e "$wheel/whole" ]; then
        "$toolkit/venv/bin/pip" install --quiet --no-deps --upgrade --target "$wheel" "$1"
        touch "$wheel/whole"
    fi
    ln -sf "$wheel/nvidia/$2/include/"* "$home/include/"
    unversioned "$wheel/nvidia/$2/lib" "$home/lib"
}

if [ -z "${CUDA_HOME:-}" ]; then
    home="$toolkit/wheels/nvidia/cu13"
    [ -e "$toolkit/whole" ] || assemble
    if wants nccl; then add nvidia-nccl-cu13==2.28.9 nccl; fi
    if wants cudnn; then add nvidia-cudnn-cu13==9.19.0.56 cudnn; fi
    CUDA_HOME=$home
fi
export CUDA_HOME CUDA_PATH="$CUDA_HOME" PATH="$CUDA_HOME/bin:$PATH"
export LIBRARY_PATH="$CUDA_HOME/lib64:$CUDA_HOME/lib64/stubs${LIBRARY_PATH:+:$LIBRARY_PATH}"

# compiler NAME: a script in place of nvcc.
compiler() {
    export NVCC="$toolkit/bin/$1"
    mkdir -p "$toolkit/bin"
    cat >"$NVCC"
    chmod +x "$NVCC"
}

if [ "${QUANTISED:-yes}" = no ]; then
    # Apart, for what stands in must not be taken for what was compiled.
    export CARGO_TARGET_DIR="$CARGO_TARGET_DIR-called"
    compiler nvcc-called <<'NVCC'
#!/bin/sh
# Runs in the folder of candle-kernels, whose `ffi.rs` names the functions that a binary links to.
for argument in "$@"; do
    [ "${before:-}" != -o ] || out=$argument
    before=$argument
    case $argument in src/moe/*.cu | src/mmq_gguf/*.cu | src/mmvq_gguf.cu) left_out=$argument ;; esac
done
[ -n "${left_out:-}" ] || exec "$CUDA_HOME/bin/nvcc" "$@"
case $left_out in
src/mmvq_gguf.cu) grep -o 'pub fn [A-Za-z0-9_]*' src/ffi.rs | sed 's/pub fn \(.*\)/void \1(void) { __builtin_trap(); }/' ;;
esac | cc -x c -w -c -fPIC -o "$out" -
NVCC
fi

verb=build
if [ "${1:-}" = test ]; then
    verb=test
    shift
elif [ "${1:-}" = check ] || [ "${1:-}" = clippy ]; then
    verb=$1
    shift
    # A compiler that writes empty files, and an empty CUTLASS: types need neither. What cargo keeps of it lies apart from
    # what is built to run.
    export CARGO_TARGET_DIR="$CARGO_TARGET_DIR-check" CUDAFORGE_HOME="$toolkit/check"
    cutlass="$CUDAFORGE_HOME/git/checkouts/cutlass-7d49e6c7e2f8896c"
    mkdir -p "$cutlass/include"
    git -C "$cutlass" init --quiet
    echo 7d49e6c7e2f8896c47f586706e67e1fb215529dc >"$cutlass/.git/HEAD"
    compiler nvcc-empty <<'NVCC'
#!/bin/sh
[ "${1:-}" != --version ] || exec "$CUDA_HOME/bin/nvcc" --version
folder=. ptx= written=
while [ $# -gt 0 ]; do
    case $1 in
    --ptx) ptx=1 ;;
    --output-directory) shift && folder=$1 ;;
    -o) shift && written=1 && : >"$1" ;;
    *.cu) source=$1 ;;
    esac
    shift
done
[ -n "$written" ] || [ -z "$ptx" ] || : >"$folder/$(basename "$source" .cu).ptx"
NVCC
fi
exec cargo "$verb" --release --locked --features "$features" "$@"
