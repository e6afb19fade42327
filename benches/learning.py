#!/usr/bin/env python3
"""What advantages do with a noisy judge, and what a draw by pass rate does, on a short sqlite pipeline.

    python benches/learning.py noise [--mcprl target/release/mcprl] [--iterations 12] [--seeds 1,2] [--folder DIR]
    python benches/learning.py draw

`noise` puts a stage between judge and update that flips the outcome of some episodes, at known rates, and adds
normal noise; the judge's other terms stay. `draw` plays the same number of episodes with `draw = "uniform"` and
`draw = "pass_rate"`, without refills. All runs share the base model; a seed decides rollouts and updates. Prints a row
for each run, then means over seeds. Needs pyarrow. Finished runs are cached: a second call only prints.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

REPO = pathlib.Path(__file__).resolve().parent.parent

CARD = """kind = "noise"
revision = 1
about = "Flips the outcomes of some episodes and adds normal noise to rewards."
determinism = "pure"
command = ["PYTHON", "noise.py"]
[inputs.rewards]
type = "rewards"
[params.missed]
type = "number"
default = 0.0
about = "Share of right episodes that are rewarded as wrong."
[params.fooled]
type = "number"
default = 0.0
about = "Share of wrong episodes that are rewarded as right."
[params.deviation]
type = "number"
default = 0.0
about = "Standard deviation of the noise that every reward gets."
[outputs.rewards]
type = "rewards"
path = "rewards.parquet"
"""

STAGE = '''import json, os, random
import pyarrow as pa, pyarrow.parquet as pq

params = json.load(open(os.environ["MCPRL_STAGE"]))["params"]
table = pq.read_table(os.environ["MCPRL_INPUT_REWARDS"])
rewards = []
for row in table.select(["trajectory_id", "reward", "correct"]).to_pylist():
    draw = random.Random(row["trajectory_id"])
    flipped = draw.random() < params["missed" if row["correct"] else "fooled"]
    noise = draw.gauss(0, 1) * params["deviation"]
    rewards.append(row["reward"] + noise + (flipped * (-1 if row["correct"] else 1)))
column = table.schema.get_field_index("reward")
table = table.set_column(column, "reward", pa.array(rewards, pa.float32()))
pq.write_table(table, os.environ["MCPRL_OUTPUT_REWARDS"], compression="snappy")
'''

# name: missed, fooled, deviation
NOISES = {
    "none": (0.0, 0.0, 0.0),
    "20 % flipped": (0.2, 0.2, 0.0),
    "40 % missed": (0.4, 0.0, 0.0),
    "30 % fooled": (0.0, 0.3, 0.0),
    "normal 0.5": (0.0, 0.0, 0.5),
}
SCALES = ["mean", "mean_std", "leave_one_out"]


def project(folder):
    stage = folder / "stages" / "noise"
    stage.mkdir(parents=True, exist_ok=True)
    (stage / "card.toml").write_text(CARD.replace("PYTHON", sys.executable))
    (stage / "noise.py").write_text(STAGE)
    for name in ("sqlite.families.toml", "sqlite.system.txt"):
        (folder / name).write_text((REPO / "pipelines" / name).read_text())
    shutil.copytree(REPO / "pipelines" / "sqlite-model", folder / "sqlite-model", dirs_exist_ok=True)
    run = (REPO / "pipelines" / "sqlite.toml").read_text()
    run = run.replace(
        "[loop.train.stages.update]",
        '[loop.train.stages.noise]\nkind = "noise"\nrewards = "reward"\n\n[loop.train.stages.update]',
    ).replace('rewards = "reward"\nyields', 'rewards = "noise"\nyields')
    (folder / "run.toml").write_text(run)


def execute(folder, mcprl, seed, iterations, settings):
    """Success of base and trained policy, mean share of groups with gradient, and episodes."""
    given = {
        "loop.train.iterations": iterations,
        "loop.train.stages.update.total_steps": 2 * iterations,
        "loop.train.stages.rollout.seed": seed,
        "loop.train.stages.update.seed": seed,
        **settings,
    }
    overrides = [word for key, value in given.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    environment = {**os.environ, "MCPRL_CACHE": str(folder / "cache")}
    before = set((folder / "cache" / "runs").glob("*"))
    done = subprocess.run(
        ["nice", "-n", "10", mcprl, "run", "run.toml", *overrides], cwd=folder, env=environment, capture_output=True
    )
    if done.returncode != 0:
        raise SystemExit(done.stderr.decode()[-3000:])
    (run,) = set((folder / "cache" / "runs").glob("*")) - before
    shown = subprocess.run([mcprl, "--json", "show", run.name], cwd=folder, env=environment, capture_output=True, check=True)
    stages = {stage["id"]: stage.get("metrics", {}) for stage in json.loads(shown.stdout)["stages"]}
    of = lambda stage, metric: [m[metric] for name, m in stages.items() if name.endswith("/" + stage) and metric in m]
    exam = stages["exam"]
    informative = sum(of("update", "groups_with_gradient")) / sum(of("update", "groups"))
    return exam["all.base.greedy"], exam["all.trained.greedy"], informative, sum(of("rollout", "episodes"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["noise", "draw"])
    parser.add_argument("--mcprl", default=str(REPO / "target/release/mcprl"))
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--seeds", default="1,2")
    parser.add_argument("--scales", default=",".join(SCALES))
    parser.add_argument("--noises", default=",".join(NOISES))
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()) / "mcprl-learning")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    project(args.folder)
    if args.what == "noise":
        rollout = "loop.train.stages.rollout."
        variants = {
            (scale, noise): {
                "loop.train.stages.update.scale": scale,
                rollout + "refill_waves": 0,
                **{f"loop.train.stages.noise.{name}": value for name, value in zip(("missed", "fooled", "deviation"), NOISES[noise])},
            }
            for noise in args.noises.split(",")
            for scale in args.scales.split(",")
        }
    else:
        rollout = "loop.train.stages.rollout."
        variants = {
            (draw, "none"): {rollout + "draw": draw, rollout + "refill_waves": 0} for draw in ("uniform", "pass_rate")
        }
    found = {}
    for seed in map(int, args.seeds.split(",")):
        for variant, settings in variants.items():
            result = execute(args.folder, str(pathlib.Path(args.mcprl).resolve()), seed, args.iterations, settings)
            found.setdefault(variant, []).append(result)
            base, trained, informative, episodes = result
            print(
                f"{variant[0]:<14} {variant[1]:<12} seed {seed}  {100 * base:.1f} -> {100 * trained:.1f} %  "
                f"groups with gradient {100 * informative:.0f} %  {episodes:.0f} episodes",
                flush=True,
            )
    for variant, results in found.items():
        base, trained, informative, _ = (statistics.mean(column) for column in zip(*results))
        print(f"| {variant[0]} | {variant[1]} | {100 * base:.1f} | {100 * trained:.1f} | {100 * informative:.0f} |")


if __name__ == "__main__":
    main()
