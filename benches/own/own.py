#!/usr/bin/env python3
"""What practice on a person's own questions adds: arms of equal time on one server, all from the same start.

    benches/own/own.py run MODEL SERVER ARM [--minutes N] [--seed N] [--set KEY=VALUE ...]   # writes results/SERVER-ARM.json
    benches/own/own.py plan MODEL SERVER ARM                   # writes the run file and shows its plan
    benches/own/own.py table                                   # prints the results, and the differences between arms

MODEL is a file of target/weights or a path, SERVER is shop or company. ARM is one of
    trained   the loop of `extends = "standard"`
    sft       the same loop with supervised training on the policy's own right episodes in place of GRPO
    more      a start from 640 explored lessons instead of 160, and no loop
A loop gets as many iterations, in twos, as fit into --minutes with all before it; exams come on top. Two iterations are timed first.
Runs of a server share a cache, so arms share tasks and start, whose time counts for each. Uses the Python of ../cells/cell.py.
"""

import argparse
import json
import os
import subprocess
import sys
from math import sqrt
from pathlib import Path
from statistics import mean, stdev

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "cells"))

from cell import EXAM, MCPRL, REPO, SERVERS, newest, prepare, run, verdict  # noqa: E402

CELLS = {"shop": "sqlite", "company": "memory"}
EXAMS = ("people", "people_samples")  # greedy, and four samples

# The standard's exam is replaced by two, of the policies of the arm.
HEAD = """
[stages]
exam = false
{removed}
"""

NO_LOOP = """
headroom = false

[loop]
train = false
"""

# In place of GRPO: RAFT, one pass over the right episodes.
SFT = """
[loop.train.stages.update]
kind = "sft"
only_right = true
epochs = 1
schedule = "constant"
"""

BASES = 'variants = { "base+" = { policy = "base", system = "guide", examples = 4 } }\nguide = "tasks"\nexamples = "solved"\n'

ARMS = {
    "trained": {"loop": True, "text": "", "greedy": 'base = "base", start = "start", trained = "train.policy"', "bases": BASES},
    "sft": {"loop": True, "text": SFT, "greedy": 'start = "start", sft = "train.policy"'},
    "more": {"loop": False, "text": "", "greedy": 'more = "start"', "set": ["stages.tasks.lessons=640", "stages.tasks.explore_calls=2400", "stages.tasks.explore_seconds=3600"]},
}  # fmt: skip


def folder_of(server):
    return REPO / "target/own" / server


def exams(arm):
    greedy, sampled = EXAMS
    policies = ", ".join(each for each in arm["greedy"].split(", ") if not each.startswith("base"))
    text = EXAM.format(stage=greedy, scenarios="tasks.heldout")
    text += f"policies = {{ {arm['greedy']} }}\n{arm.get('bases', '')}samples = 0\n"
    text += EXAM.format(stage=sampled, scenarios="tasks.heldout")
    return text + f"policies = {{ {policies} }}\ngreedy = false\nsamples = 4\n"


def written(model, server, name):
    """The arm's run file, beside the server's data and the questions, which the first arm makes."""
    folder, arm = folder_of(server), ARMS[name]
    if not (folder / "run.toml").exists():
        prepare(model, CELLS[server], folder, exams=lambda people: "")
    questions = "".join((HERE / f"{server}.{split}.jsonl").read_text() for split in ("train", "exam"))
    (folder / "own.jsonl").write_text(questions)
    text = (folder / "run.toml").read_text()
    assert text.count("\n[stages.tasks]\n") == 1, text
    text = text.replace("\n[stages.tasks]\n", '\n[stages.tasks]\nfile = "own.jsonl"\n')
    text += HEAD.format(removed="" if arm["loop"] else NO_LOOP) + arm["text"] + exams(arm)
    file = folder / f"{name}.toml"
    file.write_text(text)
    return file


def settings(server, name, seed, more):
    keys = [f"seed={seed}", *SERVERS[CELLS[server]]["set"], *ARMS[name].get("set", []), *more]
    return [word for key in keys for word in ("--set", key)]


def played(words):
    """The last line of a run, and the minutes of its stages, those of earlier runs too."""
    done = run(words, stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, 1):
        sys.exit(f"interrupted: {done.returncode}; the same command goes on")
    ended = json.loads(done.stdout.strip().splitlines()[-1])
    return ended, (ended["spent"]["seconds"] + ended["saved"]["seconds"]) / 60


def iterations(words, minutes):
    """How many fit, in twos, and the minutes before the loop and of one of them."""
    _, before = played([*words, "--until", "headroom"])
    _, two = played([*words, "--until", "train[2]"])
    each = (two - before) / 2
    # A loop that does not begin takes no time.
    count = 2 * max(1, int((minutes - before) / each / 2)) if each > 0.1 else 2
    return count, round(before, 1), round(each, 1)


def right(folder, stage, rows):
    """By policy, the share of right episodes of each question of the exam; none where all were lost. ROWS are the verdict's."""
    import pyarrow.parquet as parquet

    held = parquet.read_table(folder / "tasks/heldout.parquet", columns=["id", "task"]).to_pylist()
    task_of = {row["id"]: row["task"] for row in held}
    columns = ["policy", "scenario_id", "sample", "correct"]
    # Policies come one behind the other, in the order of the verdict. Two that are one artifact have one digest.
    groups, last, known = [], None, set()
    for row in parquet.read_table(folder / stage / "episodes.parquet", columns=columns).to_pylist():
        episode = (row["scenario_id"], row["sample"])
        if row["policy"] != last or episode in known:
            groups.append({})
            last, known = row["policy"], set()
        known.add(episode)
        groups[-1].setdefault(task_of[row["scenario_id"]], []).append(row["correct"] is True)
    success = {row["policy"]: row["success"] for row in rows if row["scope"] == "all"}
    asked = [task["task"] for task in exam_of(folder.parents[2].name)]
    found = {}
    for (policy, stated), tasks in zip(success.items(), groups):
        found[policy] = [mean(tasks[task]) if task in tasks else None for task in asked]
        counted = 100 * mean(value for value in found[policy] if value is not None)
        if abs(counted - stated) > 0.1:
            print(f"{stage}: {policy} has {stated} % in the verdict and {counted:.1f} % of the episodes", file=sys.stderr)
    return found


def exam_of(server):
    return [json.loads(line) for line in (HERE / f"{server}.exam.jsonl").read_text().splitlines()]


def measured(model, server, name, minutes, seed, more):
    file = written(model, server, name)
    words = [MCPRL, "--json", "run", file, "--cache", file.parent / "cache", *settings(server, name, seed, more)]
    record = {"model": model, "server": server, "arm": name, "seed": seed, "settings": more, "minutes_allowed": minutes}
    if ARMS[name]["loop"]:
        count, before, each = iterations(words, minutes)
        record |= {"iterations": count, "minutes_before_loop": before, "minutes_per_iteration": each}
        words += ["--set", f"loop.train.iterations={count}"]
        _, practised = played([*words, "--until", "train"])
    else:
        _, practised = played([*words, "--until", "start"])
    record["minutes_trained"] = round(practised, 1)
    ended, total = played(words)
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=REPO, capture_output=True, text=True).stdout.strip()
    record |= {"minutes": round(total, 1), "commit": commit, "cores": os.cpu_count(), "failures": ended["failures"], "idle": ended["idle"]}
    folder = newest(file.parent)
    for stage in EXAMS:
        if (folder / stage / "verdict.parquet").exists():
            record[stage] = verdict(folder, stage)
            record[f"{stage}_right"] = right(folder, stage, record[stage])
    (HERE / "results").mkdir(exist_ok=True)
    path = HERE / "results" / f"{server}-{name}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(path)


def percent(values):
    values = [value for value in values if value is not None]
    return f"{100 * mean(values):.1f}" if values else "–"


def difference(pairs):
    """The mean of paired differences in points, with the 95 % interval of its standard error over tasks."""
    gains = [100 * (mine - theirs) for mine, theirs in pairs if mine is not None and theirs is not None]
    if len(gains) < 2:
        return "–"
    half = 1.96 * stdev(gains) / sqrt(len(gains))
    return f"{mean(gains):+.1f} [{mean(gains) - half:+.1f}, {mean(gains) + half:+.1f}]"


def table():
    found = {}
    for path in sorted((HERE / "results").glob("*.json")):
        record = json.loads(path.read_text())
        for stage in EXAMS:
            for policy, tasks in record.get(f"{stage}_right", {}).items():
                # The start sits the exam of two arms, with the same answers.
                found.setdefault((record["server"], policy), {})[stage] = tasks
    is_new = {server: [task["family"].startswith("new: ") for task in exam_of(server)] for server in CELLS}
    print("| server | policy | greedy | kinds as in training | new kinds | mean of four |\n|---|---|---|---|---|---|")
    for (server, policy), stages in found.items():
        greedy, sampled = (stages.get(stage, []) for stage in EXAMS)
        of = lambda new: [value for value, each in zip(greedy, is_new[server]) if each == new]
        print("|", " | ".join([server, policy, percent(greedy), percent(of(False)), percent(of(True)), percent(sampled)]), "|")
    print("\n| trained − | server | greedy | mean of four |\n|---|---|---|---|")
    for other in ("base", "base+", "start", "sft", "more"):
        for servers in (*([server] for server in CELLS), [*CELLS]):
            cells = []
            for stage in EXAMS:
                pairs = []
                for server in servers:
                    mine, theirs = (found.get((server, policy), {}).get(stage, []) for policy in ("trained", other))
                    pairs += zip(mine, theirs)
                cells.append(difference(pairs))
            print("|", " | ".join([other, " and ".join(servers), *cells]), "|")


def main():
    if sys.argv[1:] == ["table"]:
        return table()
    parser = argparse.ArgumentParser(prog="own.py")
    parser.add_argument("command", choices=["run", "plan"])
    parser.add_argument("model")
    parser.add_argument("server", choices=CELLS)
    parser.add_argument("arm", choices=ARMS)
    parser.add_argument("--minutes", type=float, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", action="append", default=[])
    given = parser.parse_args()
    weights = REPO / f"target/weights/{given.model}.gguf"
    model = str(weights) if weights.exists() else given.model
    if given.command == "plan":
        file = written(model, given.server, given.arm)
        words = [MCPRL, "plan", file, "--cache", file.parent / "cache", *settings(given.server, given.arm, given.seed, given.set)]
        sys.exit(run(words).returncode)
    measured(model, given.server, given.arm, given.minutes, given.seed, given.set)


if __name__ == "__main__":
    main()
