#!/usr/bin/env python3
"""How long a run of the pipeline engine takes beside DVC and Snakemake, in the same minutes on the same machine.

    python benches/pipeline.py [--mcprl target/release/mcprl] [--peers VENV/bin] [--only noop,cold,file] [--repeat 15]

The work is a chain of trivial command stages, each copying its input and adding a line. Every engine runs the same
command. Figures are wall-clock seconds, the process itself included: medians by hyperfine (Debian, or `cargo install
hyperfine`), but for what can run only once: `cold`, and a file of which a byte was changed.
"""

import argparse
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import tempfile
import time

CARD = """kind = "link"
revision = 1
about = "Copies its input and adds a line."
determinism = "pure"
command = ["sh", "run.sh"]
[inputs.from]
type = "text"
optional = true
[params.n]
type = "integer"
[outputs.out]
type = "text"
path = "out.txt"
"""
SCRIPT = 'cat "${MCPRL_INPUT_FROM:-/dev/null}" > "$MCPRL_OUTPUT_OUT"; echo $$ >> "$MCPRL_OUTPUT_OUT"\n'
FILE_CARD = """kind = "size"
revision = 1
about = "Counts the bytes of a file."
determinism = "pure"
command = ["sh", "run.sh"]
[params.file]
type = "file"
[outputs.out]
type = "text"
path = "out.txt"
"""
FILE_SCRIPT = 'echo done > "$MCPRL_OUTPUT_OUT"\n'


def seconds(command, folder, env=None):
    began = time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, env=env)
    took = time.perf_counter() - began
    if done.returncode != 0:
        raise SystemExit(f"{command} in {folder}:\n{done.stderr.decode()[-2000:]}")
    return took


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


class Mcprl:
    name = "mcprl"

    def __init__(self, binary):
        self.run = [binary, "run", "run.toml"]
        self.plan = [binary, "plan", "run.toml"]
        self.floor = [binary, "--version"]

    def chain(self, folder, n):
        write(folder / "stages/link/card.toml", CARD)
        write(folder / "stages/link/run.sh", SCRIPT)
        stages = (
            f'[stages.s{i:03}]\nkind = "link"\nn = {i}\n' + (f'from = "s{i - 1:03}"\n' if i else "") for i in range(n)
        )
        write(folder / "run.toml", 'name = "chain"\n' + "".join(stages))

    def file(self, folder):
        write(folder / "stages/size/card.toml", FILE_CARD)
        write(folder / "stages/size/run.sh", FILE_SCRIPT)
        write(folder / "run.toml", 'name = "file"\n[stages.size]\nkind = "size"\nfile = "large.bin"\n')


class Dvc:
    name = "dvc"

    def __init__(self, folder):
        self.run = [f"{folder}/dvc", "repro", "-q"]
        self.plan = [f"{folder}/dvc", "status", "-q"]
        self.floor = [f"{folder}/dvc", "--version"]
        self.init = [f"{folder}/dvc", "init", "-q", "--no-scm"]

    def chain(self, folder, n):
        seconds(self.init, folder)
        text = "stages:\n"
        for i in range(n):
            text += f"  s{i:03}:\n    cmd: sh -c 'cat {f's{i - 1:03}.txt' if i else '/dev/null'} > s{i:03}.txt; echo $$ >> s{i:03}.txt'\n"
            text += f"    deps: [s{i - 1:03}.txt]\n" if i else ""
            text += f"    outs: [s{i:03}.txt]\n"
        write(folder / "dvc.yaml", text)

    def file(self, folder):
        seconds(self.init, folder)
        write(folder / "dvc.yaml", "stages:\n  size:\n    cmd: echo done > out.txt\n    deps: [large.bin]\n    outs: [out.txt]\n")


class Snakemake:
    name = "snakemake"

    def __init__(self, folder):
        self.run = [f"{folder}/snakemake", "-c1", "-q", "all"]
        self.plan = [f"{folder}/snakemake", "-n", "-q", "all"]
        self.floor = [f"{folder}/snakemake", "--version"]

    def chain(self, folder, n):
        text = f"rule all:\n    input: 's{n - 1:03}.txt'\n"
        for i in range(n):
            text += f"rule s{i:03}:\n"
            text += f"    input: 's{i - 1:03}.txt'\n" if i else ""
            text += f"    output: 's{i:03}.txt'\n"
            source = "{input}" if i else "/dev/null"
            text += f"    shell: 'cat {source} > {{output}}; echo $$ >> {{output}}'\n"
        write(folder / "Snakefile", text)

    def file(self, folder):
        write(
            folder / "Snakefile",
            "rule all:\n    input: 'out.txt'\nrule size:\n    input: 'large.bin'\n    output: 'out.txt'\n    shell: 'echo done > {output}'\n",
        )


def median(command, folder, repeat):
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        hyperfine = ["hyperfine", "-N", "--style=none", "--warmup=1", f"--runs={repeat}", "--export-json", report.name]
        subprocess.run([*hyperfine, shlex.join(command)], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        return json.load(report)["results"][0]["median"]


def show(what, figures):
    ours = figures[0][1]
    cells = [f"{name} {value * 1e3:.1f} ms" + (f" ({value / ours:.1f}x)" if name != "mcprl" else "") for name, value in figures]
    print(f"{what:<34}" + "   ".join(cells), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mcprl", default="target/release/mcprl")
    parser.add_argument("--peers", help="bin folder of a venv with dvc and snakemake")
    parser.add_argument("--only", default="floor,noop,cold,file")
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--stages", default="60,240")
    given = parser.parse_args()
    engines = [Mcprl(os.path.abspath(given.mcprl))]
    if given.peers:
        engines += [Dvc(os.path.abspath(given.peers)), Snakemake(os.path.abspath(given.peers))]
    parts = given.only.split(",")
    top = pathlib.Path(tempfile.mkdtemp(prefix="mcprl-bench-", dir="."))
    top = top.resolve()
    try:
        if "floor" in parts:
            show("process floor (--version)", [(e.name, median(e.floor, top, given.repeat)) for e in engines])
        for n in map(int, given.stages.split(",")):
            if not {"noop", "cold"} & set(parts):
                break
            cold, noop, plan = [], [], []
            for engine in engines:
                folder = top / f"{engine.name}-{n}"
                folder.mkdir()
                engine.chain(folder, n)
                cold.append((engine.name, seconds(engine.run, folder)))
                if "noop" in parts:
                    repeat = given.repeat if engine.name == "mcprl" else 3
                    noop.append((engine.name, median(engine.run, folder, repeat)))
                    plan.append((engine.name, median(engine.plan, folder, repeat)))
            show(f"cold chain, {n} stages", cold)
            if noop:
                show(f"cached run, {n} stages", noop)
                show(f"plan or status, {n} stages", plan)
        if "file" in parts:
            unchanged, changed = [], []
            for engine in engines:
                folder = top / f"{engine.name}-file"
                folder.mkdir()
                engine.file(folder)
                large = folder / "large.bin"
                block = os.urandom(1 << 20)
                with open(large, "wb") as out:
                    for i in range(1024):
                        out.write(block[i:] + block[:i])
                time.sleep(3)
                seconds(engine.run, folder)
                unchanged.append((engine.name, median(engine.run, folder, 3)))
                with open(large, "r+b") as out:
                    out.seek(512 << 20)
                    out.write(b"x")
                time.sleep(0.1)
                changed.append((engine.name, seconds(engine.run, folder)))
                large.unlink()
            show("1 GiB dependency, unchanged", unchanged)
            show("1 GiB dependency, one byte changed", changed)
    finally:
        shutil.rmtree(top, ignore_errors=True)


if __name__ == "__main__":
    main()
