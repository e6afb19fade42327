"""Writes the episodes of an exam as logs of Inspect (inspect.aisi.org.uk), one for each policy and way of sampling:

    pip install inspect-ai pyarrow
    python examples/inspect/to_inspect.py cache/runs/RUN/exam logs
    inspect view --log-dir logs

The first argument is the folder of an `eval` stage in a run. docs/reference/stages.md lists the columns.
"""

import json
import sys
from datetime import datetime, timezone
from pathlib import Path

import pyarrow.parquet as parquet
from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalSample, EvalSpec, recompute_metrics, write_eval_log
from inspect_ai.model import ChatMessageAssistant, ChatMessageSystem, ChatMessageTool, ChatMessageUser, ContentReasoning
from inspect_ai.model import ContentText, GenerateConfig, ModelOutput
from inspect_ai.scorer import Score
from inspect_ai.tool import ToolCall, ToolCallError


def message(spoken):
    role, text = spoken["role"], spoken["text"]
    if role == "tool":
        error = ToolCallError("unknown", text) if spoken["result"]["error"] else None
        return ChatMessageTool(content=text, error=error, tool_call_id=spoken["result"]["call_id"])
    if role != "assistant":
        return {"system": ChatMessageSystem, "user": ChatMessageUser}[role](content=text)
    if spoken["reasoning"]:
        text = [ContentReasoning(reasoning=spoken["reasoning"]), ContentText(text=text)]
    calls = [ToolCall(call["id"], call["name"], json.loads(call["arguments"])) for call in spoken["calls"]]
    return ChatMessageAssistant(content=text, tool_calls=calls or None)


def sample(row, answers, first):
    messages = [message(spoken) for spoken in row["messages"]]
    right = {None: None, True: "C", False: "I"}[row["correct"]]
    return EvalSample(
        id=row["scenario_id"],
        epoch=1 + row["sample"] - first,
        input=next(message.text for message in messages if message.role == "user"),
        target=answers.get(row["scenario_id"]) or "",
        messages=messages,
        output=ModelOutput(completion=row["answer"] or ""),
        scores={"correct": Score(value=right, answer=row["answer"])} if right else {},
        metadata={name: row[name] for name in ("id", "family", "split", "end", "turns", "calls", "tool_errors")},
    )


def main(stage, out):
    tables = [parquet.ParquetFile(path) for path in stage.parent.glob("*/*.parquet")]
    tables = [table.read(["id", "answer"]) for table in tables if {"task", "answer"} <= set(table.schema.names)]
    answers = {task["id"]: task["answer"] for table in tables for task in table.to_pylist()}
    episodes, verdict = (parquet.read_table(stage / f"{name}.parquet").to_pylist() for name in ("episodes", "verdict"))
    # Episodes have digests of policies, in the order of the verdict's names; those of a variant its name behind the digest. Others are
    # there for comparison, endpoints last. With greedy decoding, it is sample 0.
    digests = dict.fromkeys(row["policy"] for row in episodes if " " not in row["policy"])
    policies = (row["policy"] for row in verdict if not row.get("comparison_only") and not row.get("variant_of"))
    names = dict(zip(digests, dict.fromkeys(policies)))
    named = lambda policy: names.get(policy, policy.split(" ")[-1][:24])
    has_greedy = any(row["mode"] == "greedy" for row in verdict)
    logs = {}
    for row in episodes:
        mode = "greedy" if has_greedy and row["sample"] == 0 else "sampled"
        logs.setdefault((named(row["policy"]), mode), []).append(row)
    for (policy, mode), rows in logs.items():
        samples = [sample(row, answers, int(has_greedy and mode == "sampled")) for row in rows]
        spec = EvalSpec(
            created=datetime.now(timezone.utc).isoformat(),
            task=f"{stage.parent.name}/{stage.name}",
            task_args={"mode": mode},
            dataset=EvalDataset(samples=len({sample.id for sample in samples})),
            model=f"mcprl/{policy}",
            model_generate_config=GenerateConfig(temperature=float(mode == "sampled")),
            config=EvalConfig(epochs=max(sample.epoch for sample in samples)),
            scorers=[{"name": "correct", "metrics": [{"name": "inspect_ai/accuracy"}, {"name": "inspect_ai/stderr"}]}],
        )
        recompute_metrics(log := EvalLog(status="success", eval=spec, samples=samples))
        write_eval_log(log, out / f"{stage.name}-{policy}-{mode}.eval")


main(*map(Path, sys.argv[1:3]))
