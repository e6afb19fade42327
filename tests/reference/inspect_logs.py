"""Reads logs that `mcprl export --inspect` wrote, with Inspect. Called by inspect.sh:

inspect_logs.py run LOGS              the run of the logs
inspect_logs.py logs LOGS RUN-FOLDER  compares the logs of a run with its tables
inspect_logs.py hostile LOGS          the logs of hostile episodes
inspect_logs.py viewer URL            asks the viewer's server
"""

import json
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pandas
from inspect_ai.analysis import evals_df, events_df, messages_df, samples_df
from inspect_ai.log import list_eval_logs, read_eval_log, recompute_metrics


def logs_in(folder):
    return [read_eval_log(info) for info in list_eval_logs(str(folder))]


def text_of(message):
    """The text without the reasoning."""
    if isinstance(message.content, str):
        return message.content
    return "".join(part.text for part in message.content if part.type == "text")


def reasoning_of(message):
    if isinstance(message.content, str):
        return None
    return next((part.reasoning for part in message.content if part.type == "reasoning"), None)


def check_messages(sample, spoken):
    """Compares a sample's conversation with an episode's `messages`."""
    assert len(sample.messages) == len(spoken), sample.id
    made = {}
    for shown, message in zip(sample.messages, spoken):
        assert shown.role == message["role"], (shown.role, message["role"])
        assert text_of(shown) == (message.get("content") or ""), sample.id
        if shown.role == "assistant":
            assert reasoning_of(shown) == message.get("reasoning_content")
            calls = shown.tool_calls or []
            made.update((call.id, call) for call in calls)
            if "tool_calls" in message:
                assert len(calls) == len(message["tool_calls"])
                for call, function in zip(calls, (call["function"] for call in message["tool_calls"])):
                    assert call.function == function["name"]
                    if isinstance(function["arguments"], dict):
                        assert call.arguments == function["arguments"], sample.id
        if shown.role == "tool":
            assert shown.tool_call_id in made, sample.id
            assert (shown.error is not None) == ("error" in message or message.get("is_error", False))
            assert shown.error is None or shown.error.message == message["content"]


def check_events(sample, tools):
    """The events have the conversation anew: each model call with what was said before it."""
    turns = [at for at, message in enumerate(sample.messages) if message.role == "assistant"]
    models = [event for event in sample.events if event.event == "model"]
    assert len(models) == len(turns)
    for number, (at, event) in enumerate(zip(turns, models)):
        assert [message.id for message in event.input] == [message.id for message in sample.messages[:at]]
        assert event.output.choices[0].message.id == sample.messages[at].id
        if number == 0:
            assert {tool.name for tool in event.tools} == tools
    results = [message for message in sample.messages if message.role == "tool"]
    called = [event for event in sample.events if event.event == "tool"]
    assert [event.message_id for event in called] == [message.id for message in results]
    assert [event.result for event in called] == [message.content for message in results]


def path_of(folder, stage):
    """`train[0001]/rollout` is in `train.0001/rollout`."""
    return folder / stage.replace("[", ".").replace("]", "")


def table(folder, stage, name):
    return pandas.read_parquet(path_of(folder, stage) / f"{name}.parquet")


def check_logs(folder, run_folder):
    logs = logs_in(folder)
    assert logs, "no logs"
    exams = 0
    for log in logs:
        assert log.status == "success" and log.samples, log.location
        args = log.eval.task_args
        stage, policy = args["stage"], log.eval.metadata["policy"]
        assert log.eval.model == f"mcprl/{policy}"
        is_exam = (path_of(run_folder, stage) / "verdict.parquet").exists()
        tools = set(table(run_folder, "tools", "tools")["name"])
        episodes = table(run_folder, stage, "episodes" if is_exam else "trajectories").set_index("id")
        if episodes.index.has_duplicates:
            raise SystemExit("two policies with equal weights: nothing can be compared")
        right = []
        for sample in log.samples:
            row = episodes.loc[sample.metadata["episode"]]
            assert sample.id == row["scenario_id"] and sample.metadata["family"] == row["family"]
            assert sample.metadata["end"] == row["end"] and sample.turn_count == row["turns"]
            check_messages(sample, json.loads(row["messages"]))
            usage = sample.model_usage[log.eval.model]
            assert usage.output_tokens == row["sampled"].sum(), sample.id
            if row["correct"] is not None:
                assert sample.scores["correct"].value == ("C" if row["correct"] else "I")
                right.append((row["scenario_id"], row["split"], float(row["correct"])))
            if pandas.notna(row["answer"]):
                assert sample.scores["correct"].answer == row["answer"] == sample.output.completion
        for sample in read_eval_log(log.location, resolve_attachments=True).samples:
            check_events(sample, tools)
        shown = {
            score.name: {name: metric.value for name, metric in score.metrics.items()} for score in log.results.scores
        }
        right = pandas.DataFrame(right, columns=["id", "split", "right"])
        mean = right.groupby("id")["right"].mean().mean()
        assert abs(shown["correct"]["accuracy"] - mean) < 1e-12
        # Inspect's own metrics, from the samples.
        recompute_metrics(log)
        for score in log.results.scores:
            for name, metric in score.metrics.items():
                assert abs(metric.value - shown[score.name][name]) < 1e-9, (score.name, name)
        if is_exam:
            exams += 1
            verdict = table(run_folder, stage, "verdict")
            row = verdict[(verdict.scope == "all") & (verdict.policy == policy) & (verdict["mode"] == args["mode"])]
            # The verdict is of cases nothing of which was trained on.
            unseen = right[right["split"] != "unseen_phrasings"].groupby("id")["right"].mean().mean()
            assert len(row) == 1 and abs(row.iloc[0]["success"] - unseen) < 1e-12
            assert log.eval.metadata["verdict"]["success_low"] == row.iloc[0]["success_low"]
        else:
            judge = stage.rsplit("/", 1)[0] + "/reward"
            rewards = table(run_folder, judge, "rewards").set_index("trajectory_id")
            for sample in log.samples:
                assert sample.scores["reward"].value == float(rewards.loc[sample.metadata["episode"]]["reward"])
                assert "advantage" in sample.metadata or "no_signal" in sample.metadata
    assert exams >= 2 and exams < len(logs), "an exam of two policies, and rollouts"

    evals = evals_df(folder, strict=True)
    assert len(evals) == len(logs)
    samples = samples_df(folder, strict=True)
    assert len(samples) == sum(len(log.samples) for log in logs)
    assert {"score_correct", "metadata_family", "metadata_end", "total_tokens"} <= set(samples.columns)
    messages = messages_df(folder, strict=True)
    # Inspect takes them from the model events: those that a turn has read or written.
    last = [
        max(at for at, message in enumerate(sample.messages) if message.role == "assistant")
        for log in logs
        for sample in log.samples
    ]
    assert len(messages) == sum(at + 1 for at in last)
    events = events_df(folder, strict=True)
    assert len(events) == sum(len(sample.events) for log in logs for sample in log.samples)
    print(f"{len(logs)} logs with {len(samples)} samples, {len(messages)} messages and {len(events)} events are read")


def check_hostile(folder):
    logs = {Path(urllib.parse.urlparse(log.location).path).stem: log for log in logs_in(folder)}
    assert set(logs) == {"base", "trained", "rollout"}
    spoken = json.loads((folder / "rollout.json").read_text())
    samples = logs["rollout"].samples
    assert len(samples) == len(spoken)
    for sample, messages in zip(sorted(samples, key=lambda sample: (sample.id, sample.epoch)), spoken):
        check_messages(sample, messages)
        assert max(len(text_of(message)) for message in sample.messages) > 10_000_000
    everything = "".join(text_of(message) for message in samples[0].messages)
    assert all(text in everything for text in ["<script>", "\x00", "\x1b[31m", "\u202e", "<|im_start|>"])
    assert any(sample.scores["reward"].explanation for sample in samples)
    assert len(samples_df(str(folder), strict=True)) == 16
    print("hostile texts are read as they were written")


def get(url):
    with urllib.request.urlopen(url, timeout=60) as response:
        return response.read()


def check_viewer(url):
    for _ in range(120):
        try:
            get(f"{url}/api/log-dir")
            break
        except OSError:
            time.sleep(0.5)
    files = json.loads(get(f"{url}/api/log-files"))["files"]
    names = {Path(file["name"]).name for file in files}
    assert {"base.eval", "rollout.eval"} <= names and any(name.startswith("exam-base") for name in names), names
    headers = json.loads(
        get(f"{url}/api/log-headers?" + "&".join(f"file={urllib.parse.quote(file['name'])}" for file in files))
    )
    assert {header["eval"]["model"] for header in headers} >= {"mcprl/base", "mcprl/trained"}
    # The hostile rollout has hundreds of megabytes; the page reads it in parts.
    for file in (file for file in files if not file["name"].endswith("/rollout.eval")):
        whole = json.loads(get(f"{url}/api/logs/{urllib.parse.quote(file['name'], safe='')}"))
        assert whole["samples"] and whole["samples"][0]["messages"], file["name"]
    print(f"the viewer's server has {len(files)} logs with their samples")


def main():
    command, *rest = sys.argv[1:]
    if command == "run":
        print(read_eval_log(list_eval_logs(rest[0])[0], header_only=True).eval.metadata["run"])
    elif command == "logs":
        check_logs(rest[0], Path(rest[1]))
    elif command == "hostile":
        check_hostile(Path(rest[0]))
    else:
        check_viewer(rest[0])


main()
