"""Compares the logs that examples/inspect/to_inspect.py wrote with the tables of the exam. Called by inspect.sh:

inspect_logs.py LOGS STAGE-FOLDER
"""

import sys
from pathlib import Path

import pandas
from inspect_ai.analysis import samples_df
from inspect_ai.log import list_eval_logs, read_eval_log

folder, stage = sys.argv[1], Path(sys.argv[2])
episodes = pandas.read_parquet(stage / "episodes.parquet")
verdict = pandas.read_parquet(stage / "verdict.parquet")
assert not episodes["id"].duplicated().any(), "two policies with equal weights: nothing can be compared"
logs = [read_eval_log(info) for info in list_eval_logs(folder)]
found = {(log.eval.model.removeprefix("mcprl/"), log.eval.task_args["mode"]): log for log in logs}
rows = verdict[verdict["scope"] == "all"]
# Agents that know nothing play no episodes.
rows = rows[~rows["policy"].isin(["common", "done"])]
assert set(found) == set(zip(rows["policy"], rows["mode"])) and len(found) >= 2, set(found)

rows_by_id = episodes.set_index("id")
calls = results = 0
for (policy, mode), log in found.items():
    assert log.status == "success", log.location
    right = []
    for sample in log.samples:
        row = rows_by_id.loc[sample.metadata["id"]]
        spoken = row["messages"]
        assert [(shown.role, shown.text) for shown in sample.messages] == [
            (message["role"], message["text"]) for message in spoken
        ]
        called = [call.id for shown in sample.messages for call in getattr(shown, "tool_calls", None) or []]
        assert called == [call["id"] for message in spoken for call in message["calls"]]
        answered = [shown.tool_call_id for shown in sample.messages if shown.role == "tool"]
        assert answered == [message["result"]["call_id"] for message in spoken if message["role"] == "tool"]
        calls, results = calls + len(called), results + len(answered)
        assert sample.target and sample.output.completion == (row["answer"] if pandas.notna(row["answer"]) else "")
        assert sample.scores["correct"].value == ("C" if row["correct"] else "I")
        # The verdict is of cases nothing of which was trained on.
        if row["split"] != "unseen_phrasings":
            right.append({"id": sample.id, "right": float(row["correct"])})
    accuracy = log.results.scores[0].metrics["accuracy"].value
    everything = [sample.scores["correct"].value == "C" for sample in log.samples]
    assert abs(accuracy - sum(everything) / len(everything)) < 1e-9, (policy, mode)
    success = rows[(rows["policy"] == policy) & (rows["mode"] == mode)].iloc[0]["success"]
    assert abs(pandas.DataFrame(right).groupby("id")["right"].mean().mean() - success) < 1e-9, (policy, mode)

samples = samples_df(folder, strict=True)
assert len(samples) == len(episodes)
print(f"{len(logs)} logs with {len(samples)} samples, {calls} calls and {results} results are read")
