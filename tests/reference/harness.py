"""Checks the episodes that an agent of the OpenAI Agents SDK played (see harness.sh): `harness.py RUN`, its folder."""

import sys
from pathlib import Path

import pyarrow.parquet as parquet

run = Path(sys.argv[1])
episodes = parquet.read_table(run / "train.0001/rollout/trajectories.parquet").to_pylist()
assert len(episodes) == 8, len(episodes)
for episode in episodes:
    messages = episode["messages"]
    assert messages[0]["role"] == "system" and messages[1]["role"] == "user", messages
    assert sum(episode["sampled"]) > 0 and len(episode["tokens"]) == len(episode["logprobs"])
    assert all(logprob <= 0 for logprob in episode["logprobs"])
    assert all(logprob == 0 for logprob, sampled in zip(episode["logprobs"], episode["sampled"]) if not sampled)
ends = sorted({episode["end"] for episode in episodes})
calls = sum(episode["calls"] for episode in episodes)
rows = sum(1 + len(episode.get("row_starts") or []) for episode in episodes)
print(f"{len(episodes)} episodes in {rows} rows, {calls} calls, ended by {', '.join(ends)}")
