"""Explores the sources of tests/reference/explored offline: `discover` and `scenarios`, nothing else.

    python explored.py FOLDER [NAME …] [--seed N] [--tasks N] [--mcprl PROGRAM]

Writes FOLDER/NAME-SEED with the run file, the database, the cache and a link `tasks` to the tables. tests/reference/servers.sh installs the
servers. explored_oracle.py checks what is there.
"""

import argparse
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPO = HERE.parent.parent
SOURCES = HERE / "explored"
INSTALLED = REPO / "target/servers"

RUN = """
name = "{name}"
seed = {seed}

[server]
command = {command}
state = "read-only"
error_patterns = ["^Error", "^Database error", "^There is no", "^no "]

[stages.tools]
kind = "discover"
{allow}
[stages.tasks]
kind = "scenarios"
tools = "tools"
source = "explored"
tasks = {tasks}
heldout_share = 0.2
"""


def names() -> list[str]:
    return sorted(path.stem for ending in ("sql", "py") for path in SOURCES.glob(f"*.{ending}") if path.stem != "whole")


def make(name: str, folder: Path, seed: int, tasks: int) -> Path:
    """The folder of a run: its data and its run file."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    allow = ""
    script = SOURCES / f"{name}.sql"
    if script.exists():
        with sqlite3.connect(folder / f"{name}.db") as database:
            database.executescript(script.read_text())
        command = [INSTALLED / "sqlite/bin/mcp-server-sqlite", "--db-path", folder / f"{name}.db"]
        allow = 'allow = ["read_query", "list_tables", "describe_table"]\n'
    else:
        command = [INSTALLED / "fastmcp/bin/python", SOURCES / f"{name}.py"]
    words = "[" + ", ".join(f'"{word}"' for word in command) + "]"
    file = folder / "run.toml"
    file.write_text(RUN.format(name=name, seed=seed, command=words, allow=allow, tasks=tasks).lstrip())
    return file


def explore(name: str, folder: Path, seed: int, tasks: int, program: str) -> bool:
    folder = folder.resolve() / f"{name}-{seed}"
    file = make(name, folder, seed, tasks)
    with open(folder / "run.log", "w") as log:
        done = subprocess.run([program, "run", file, "--cache", folder / "cache"], cwd=folder, stdout=log, stderr=log)
    runs = sorted((folder / "cache/runs").glob("*/tasks"))
    if runs:
        (folder / "tasks").symlink_to(runs[-1])
    print(f"{name}: {'explored' if runs else f'exit code {done.returncode}, see {folder}/run.log'}", flush=True)
    return bool(runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tasks", type=int, default=250)
    parser.add_argument("--mcprl", default=os.environ.get("MCPRL", str(REPO / "target/release/mcprl")))
    given = parser.parse_args()
    chosen = given.names or names()
    if unknown := set(chosen) - set(names()):
        sys.exit(f"no such source: {', '.join(sorted(unknown))}; there are {', '.join(names())}")
    done = [explore(name, given.folder, given.seed, given.tasks, given.mcprl) for name in chosen]
    sys.exit(0 if all(done) else 1)


if __name__ == "__main__":
    main()
