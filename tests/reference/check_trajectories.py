"""Do the log-probabilities that `mcprl` recorded while sampling agree with Transformers (and PEFT)?

    check_trajectories.py --policy FOLDER [--base FOLDER] --trajectories FILE [--digest DIGEST] [--tolerance 1e-3]

FOLDER is the policy that acted: a model folder, or an adapter folder with --base its model. FILE is the
trajectories.parquet of a `rollout` or the episodes.parquet of an `eval`; where it holds episodes of several policies,
--digest picks one by the beginning of its digest. Where episodes have several rows, each is scored alone. Exits with 1 if any |difference| is above the tolerance.
"""

import argparse
import pathlib
import sys

import polars
import torch

import policy


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", type=pathlib.Path, required=True)
    parser.add_argument("--base", type=pathlib.Path)
    parser.add_argument("--trajectories", type=pathlib.Path, required=True)
    parser.add_argument("--digest", default="")
    parser.add_argument("--tolerance", type=float, default=1e-3)
    return parser.parse_args()


def rows_of(episodes):
    """Every row of every episode: its tokens, from the prompt on, and which of them were sampled after those before."""
    for episode in episodes.select("id", "tokens", "sampled", "logprobs", "row_starts").iter_rows(named=True):
        bounds = [0, *(episode["row_starts"] or []), len(episode["tokens"])]
        for start, end in zip(bounds, bounds[1:]):
            yield {"id": episode["id"]} | {name: episode[name][start:end] for name in ["tokens", "sampled", "logprobs"]}


def main():
    args = arguments()
    episodes = polars.read_parquet(args.trajectories)
    if "row_starts" not in episodes.columns:
        episodes = episodes.with_columns(row_starts=None)
    episodes = episodes.filter(polars.col("policy").str.starts_with(args.digest))
    acting = episodes["policy"].unique().sort().to_list()
    if len(acting) != 1:
        sys.exit(f"{args.trajectories} has episodes of {len(acting)} policies, choose with --digest: {acting}")
    model, _ = policy.load(args.policy, args.base)

    worst, where, total, tokens = 0.0, None, 0.0, 0
    for row in rows_of(episodes):
        sampled = torch.tensor(row["sampled"])
        if not sampled.any():
            continue
        recorded = torch.tensor(row["logprobs"])
        assert len(row["tokens"]) == len(sampled) == len(recorded), f"{row['id']}: columns differ in length"
        assert not sampled[0], f"{row['id']}: the first token can not have been sampled"
        assert not recorded[~sampled].any(), f"{row['id']}: a token that was not sampled has a log-probability"
        gaps = (policy.logprobs(model, row["tokens"]) - recorded[1:])[sampled[1:]].abs()
        total, tokens = total + gaps.sum().item(), tokens + len(gaps)
        if gaps.max().item() >= worst:
            worst, where = gaps.max().item(), row["id"]
    if tokens == 0:
        sys.exit("no token of these episodes was sampled")
    print(f"{len(episodes)} episodes, {tokens} sampled tokens: max |Δ log p| {worst:.3g}, mean {total / tokens:.3g}")
    if not worst <= args.tolerance:
        sys.exit(f"above the tolerance of {args.tolerance:g}, worst in episode {where}")


if __name__ == "__main__":
    main()
