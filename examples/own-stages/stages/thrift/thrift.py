"""A reward of one's own: the judge's, less a price for each repeated call.

mcprl names every input, output and parameter in the environment and in one JSON file; see `MCPRL_STAGE`.
"""

import json
import os

import polars as pl

stage = json.load(open(os.environ["MCPRL_STAGE"]))
price = stage["params"]["price"]


def repeated(messages: pl.Series) -> int:
    calls = [
        (call["name"], json.dumps(json.loads(call["arguments"]), sort_keys=True))
        for message in messages
        for call in message["calls"]
    ]
    return len(calls) - len(set(calls))


episodes = pl.read_parquet(os.environ["MCPRL_INPUT_TRAJECTORIES"], columns=["id", "messages"]).select(
    trajectory_id="id",
    repeated=pl.col("messages").map_elements(repeated, return_dtype=pl.Int64),
)
rewards = pl.read_parquet(os.environ["MCPRL_INPUT_REWARDS"]).join(
    episodes, on="trajectory_id", how="left", maintain_order="left"
)
less = price * rewards["repeated"]
components = [
    json.dumps({**json.loads(before), "thrift": -cost})
    for before, cost in zip(rewards["components"], less)
]
rewards.with_columns(
    reward=(pl.col("reward") - less).cast(pl.Float32), components=pl.Series(components)
).drop("repeated").write_parquet(os.environ["MCPRL_OUTPUT_REWARDS"])

with open(os.environ["MCPRL_METRICS"], "w") as out:
    json.dump({"repeated": rewards["repeated"].mean()}, out)
