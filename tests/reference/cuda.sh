#!/bin/sh
# Runs the CUDA kernels on the CPU, by an emulator, against the same in double precision. Needs a C++20 compiler, no GPU
# and no CUDA.
set -eu
cd "$(dirname "$0")/cuda"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
compile() {
    "${CXX:-c++}" -std=c++20 -O1 -pthread -Wno-unknown-pragmas "$@"
}
compile -o "$folder/elementwise" elementwise.cpp
"$folder/elementwise"
for macros in '-DDIM=32 -DBF16=1' '-DDIM=64 -DBF16=0'; do
    echo "attention: $macros"
    # shellcheck disable=SC2086
    compile $macros -o "$folder/attention" attention.cpp
    "$folder/attention"
done
