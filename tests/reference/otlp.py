"""Sends a run as traces and checks what arrives. Called by otlp.sh:

otlp.py collector MCPRL CACHE RUN
otlp.py phoenix MCPRL CACHE RUN
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow.parquet as parquet
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Status


def value_of(value):
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [value_of(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None


def attributes_of(message):
    found = {item.key: value_of(item.value) for item in message.attributes}
    assert len(found) == len(message.attributes), "an attribute occurs twice"
    return found


class Collector:
    """A server that parses every request with the official classes."""

    def __init__(self):
        self.requests, self.spans, self.resources = [], [], []
        self.rejects = 0
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.requests.append((self.path, dict(self.headers), body))
                answer = ExportTraceServiceResponse()
                if collector.rejects:
                    answer.partial_success.rejected_spans = collector.rejects
                    answer.partial_success.error_message = "no room"
                else:
                    request = ExportTraceServiceRequest.FromString(body)
                    for resource in request.resource_spans:
                        collector.resources.append(attributes_of(resource.resource))
                        for scope in resource.scope_spans:
                            assert scope.scope.name == "mcprl"
                            collector.spans.extend(scope.spans)
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.end_headers()
                self.wfile.write(answer.SerializeToString())

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def track(mcprl, cache, run, to, expected=0):
    command = [mcprl, "track", run, "--cache", cache, "--to", f"otlp={to}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == expected, (done.returncode, done.stdout, done.stderr)
    return done


def folder_of(mcprl, cache, run):
    shown = subprocess.run([mcprl, "--json", "show", run, "--cache", cache], capture_output=True, text=True, check=True)
    return Path(cache) / "runs" / json.loads(shown.stdout)["id"]


def episodes_in(folder):
    """The episodes by stage, as their tables have them."""
    found = {}
    for path in sorted(folder.glob("**/*.parquet")):
        if path.stem in ("trajectories", "episodes"):
            stage = str(path.parent.relative_to(folder))
            name, dot, rest = stage.partition(".")
            stage = f"{name}[{rest.replace('/', ']/', 1)}" if dot else stage
            found[stage] = parquet.read_table(path).to_pylist()
    return found


def check_content(root, children, row):
    """Compares an episode's spans with its row."""
    attributes = attributes_of(root)
    messages = json.loads(row["messages"])
    assert attributes["gen_ai.operation.name"] == "invoke_agent" and attributes["gen_ai.provider.name"] == "mcprl"
    assert attributes["gen_ai.conversation.id"] == row["id"]
    for name in ("family", "split", "end", "correct", "turns", "calls", "tool_errors", "sample"):
        expected = row[name]
        assert attributes.get(f"mcprl.{name}") == expected, (name, attributes.get(f"mcprl.{name}"), expected)
    assert attributes["gen_ai.usage.output_tokens"] == sum(row["sampled"])
    assert json.loads(attributes["gen_ai.system_instructions"])[0]["content"] == messages[0]["content"]
    assert "nominal" in attributes["mcprl.times"]
    turns = [span for span in children if span.name.startswith("chat ")]
    calls = [span for span in children if span.name.startswith("execute_tool ")]
    assert len(turns) + len(calls) == len(children)
    spoken = [message for message in messages if message["role"] == "assistant"]
    assert len(turns) == len(spoken) == row["turns"]
    sampled = 0
    for turn, message in zip(turns, spoken):
        of_turn = attributes_of(turn)
        output = json.loads(of_turn["gen_ai.output.messages"])
        assert len(output) == 1 and output[0]["role"] == "assistant" and output[0]["finish_reason"]
        texts = [part["content"] for part in output[0]["parts"] if part["type"] == "text"]
        assert "".join(texts) == (message.get("content") or "")
        made = [(part["name"], part["arguments"]) for part in output[0]["parts"] if part["type"] == "tool_call"]
        if "tool_calls" in message:
            assert made == [(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]
        sampled += of_turn["gen_ai.usage.output_tokens"]
    assert sampled == sum(row["sampled"])
    results = {
        json.dumps([message["content"], message.get("error")]) for message in messages if message["role"] == "tool"
    }
    shown = set()
    for call in calls:
        of_call = attributes_of(call)
        error = of_call.get("error.type")
        assert (call.status.code == Status.STATUS_CODE_ERROR) == (error is not None)
        if "gen_ai.tool.call.result" in of_call:
            shown.add(json.dumps([of_call["gen_ai.tool.call.result"], "tool" if error == "tool_error" else error]))
    assert shown == results, (shown, results)
    # Within the episode, one after another.
    order = sorted(children, key=lambda span: span.start_time_unix_nano)
    assert order == children
    for one, other in zip(children, children[1:]):
        assert one.end_time_unix_nano <= other.start_time_unix_nano
    assert children[0].start_time_unix_nano >= root.start_time_unix_nano
    assert children[-1].end_time_unix_nano <= root.end_time_unix_nano


def check_spans(collector, folder):
    spans = collector.spans
    assert all(
        resource["service.name"] == "mcprl" and resource["mcprl.run"] == folder.name for resource in collector.resources
    )
    assert all(len(span.trace_id) == 16 and len(span.span_id) == 8 and any(span.span_id) for span in spans)
    by_id = {(span.trace_id, span.span_id): span for span in spans}
    assert len(by_id) == len(spans), "ids are unique"
    runs = [span for span in spans if span.name.startswith("run ")]
    assert len(runs) == 1 and not runs[0].parent_span_id
    stages = {span.name: span for span in spans if span.parent_span_id == runs[0].span_id}
    roots = [span for span in spans if span.name.startswith("invoke_agent ")]
    assert len(spans) == 1 + len(stages) + len(roots) + sum(
        span.name.split()[0] in ("chat", "execute_tool") for span in spans
    )
    assert len({span.trace_id for span in roots}) == len(roots), "each episode is a trace"
    children = {}
    for span in spans:
        if span.trace_id != runs[0].trace_id and span.parent_span_id:
            children.setdefault((span.trace_id, span.parent_span_id), []).append(span)
    tables = episodes_in(folder)
    sent = {}
    for root in roots:
        attributes = attributes_of(root)
        stage = attributes["mcprl.stage"]
        assert len(root.links) == 1
        link = root.links[0]
        assert by_id[link.trace_id, link.span_id].name == stage, "the root links to its stage"
        assert root.start_time_unix_nano == stages[stage].start_time_unix_nano
        row = next(row for row in tables[stage] if row["id"] == attributes["mcprl.episode"])
        check_content(root, children[root.trace_id, root.span_id], row)
        sent[stage] = sent.get(stage, 0) + 1
        if stage.startswith("train"):
            rewards = parquet.read_table(
                folder / stage.replace("[", ".").replace("]", "").replace("rollout", "reward") / "rewards.parquet"
            )
            reward = next(row for row in rewards.to_pylist() if row["trajectory_id"] == attributes["mcprl.episode"])
            assert attributes["mcprl.reward"] == reward["reward"]
            assert ("mcprl.advantage" in attributes) != ("mcprl.no_signal" in attributes)
    return sent, tables


def check_collector(mcprl, cache, run):
    folder = folder_of(mcprl, cache, run)
    (folder / "otlp.json").unlink(missing_ok=True)
    collector = Collector()
    track(mcprl, cache, run, collector.url)
    sent, tables = check_spans(collector, folder)
    for stage, rows in tables.items():
        expected = len(rows) if stage == "exam" else min(32, len(rows))
        assert sent[stage] == expected, (stage, sent[stage], expected)
    paths = {path for path, _, _ in collector.requests}
    assert paths == {"/v1/traces"}
    largest = max(len(body) for _, _, body in collector.requests)
    assert largest < 1.2e6, largest
    # Nothing is sent twice; to another endpoint, the same bytes.
    before = len(collector.requests)
    track(mcprl, cache, run, collector.url)
    assert len(collector.requests) == before
    other = Collector()
    track(mcprl, cache, run, other.url + "/api/public/otel/v1/traces")
    assert {path for path, _, _ in other.requests} == {"/api/public/otel/v1/traces"}
    assert [body for _, _, body in other.requests] == [body for _, _, body in collector.requests]
    # An endpoint without room: what it rejects is reported once and, as the protocol has it, not sent again.
    full = Collector()
    full.rejects = 3
    refused = track(mcprl, cache, run, full.url, expected=1)
    assert len(full.requests) == before
    assert f"rejected {3 * before} spans: no room" in refused.stderr, refused.stderr
    full.rejects = 0
    track(mcprl, cache, run, full.url)
    assert len(full.requests) == before, "what was rejected is not sent again"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        down = track(mcprl, cache, run, f"http://127.0.0.1:{free.getsockname()[1]}", expected=1)
    assert "cannot be reached" in down.stderr, down.stderr
    (folder / "otlp.json").unlink()
    print(
        f"{len(collector.spans)} spans of {sum(sent.values())} episodes in {before} requests are as their tables have them"
    )


def check_settings(mcprl, cache, run):
    """Settings of a run file: headers from the environment, no content, and episodes of the exam alone."""
    collector = Collector()
    folder = folder_of(mcprl, cache, run)
    copy = folder.with_name(folder.name + "-otlp")
    shutil.copytree(folder, copy, symlinks=True)
    try:
        # The run file is a text in the run's own description.
        spec = (copy / "run.toml").read_text()
        headers = 'headers = { Authorization = "Basic ${OTLP_TEST}" }'
        track = f'[track]\notlp = {{ url = "{collector.url}", {headers}, episodes = "exam", content = false }}'
        assert spec.count("\n[server]\n") == 1
        (copy / "run.toml").write_text(spec.replace("\n[server]\n", f"\n{track}\n\n[server]\n"))
        command = [mcprl, "track", copy.name, "--cache", cache]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OTLP_TEST": "c2VjcmV0"})
        assert done.returncode == 0, (done.stdout, done.stderr)
    finally:
        shutil.rmtree(copy)
    sent = {name.lower(): value for _, headers, _ in collector.requests for name, value in headers.items()}
    assert sent["authorization"] == "Basic c2VjcmV0"
    assert "c2VjcmV0" not in done.stdout + done.stderr
    roots = [attributes_of(span) for span in collector.spans if span.name.startswith("invoke_agent ")]
    assert roots and {root["mcprl.stage"] for root in roots} == {"exam"}
    texts = {"gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.tool.call.result", "gen_ai.tool.call.arguments"}
    texts |= {"gen_ai.system_instructions", "gen_ai.tool.definitions", "mcprl.answer", "mcprl.expected"}
    assert not any(texts & set(attributes_of(span)) for span in collector.spans)
    print("headers, episodes and content follow the run file")


def get(url):
    with urllib.request.urlopen(url, timeout=30) as response:
        return json.loads(response.read())


def check_phoenix(mcprl, cache, run):
    folder = folder_of(mcprl, cache, run)
    with tempfile.TemporaryDirectory() as scratch, socket.socket() as free, socket.socket() as other:
        free.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        port, grpc = free.getsockname()[1], other.getsockname()[1]
        free.close()
        other.close()
        environment = {
            "PHOENIX_WORKING_DIR": scratch,
            "PHOENIX_HOST": "127.0.0.1",
            "PHOENIX_PORT": str(port),
            "PHOENIX_GRPC_PORT": str(grpc),
            "PHOENIX_TELEMETRY_ENABLED": "false",
        }
        log = open(Path(scratch) / "log", "w")
        server = subprocess.Popen(
            [os.environ["PHOENIX"], "serve"], env={**os.environ, **environment}, stdout=log, stderr=log
        )
        try:
            url = f"http://127.0.0.1:{port}"
            for _ in range(120):
                try:
                    get(f"{url}/v1/projects")
                    break
                except OSError:
                    time.sleep(1)
            track(mcprl, cache, run, url)
            expected = json.loads((folder / "otlp.json").read_text())[url]
            assert expected
            spans = settled(url)
            # What is sent again does not appear twice.
            (folder / "otlp.json").unlink()
            track(mcprl, cache, run, url)
            assert len(settled(url)) == len(spans), "a span appears twice"
            roots = [span for span in spans.values() if span["name"].startswith("invoke_agent ")]
            tables = episodes_in(folder)
            assert len(roots) == sum(
                len(rows) if stage == "exam" else min(32, len(rows)) for stage, rows in tables.items()
            )
            children = [span for span in spans.values() if span["name"].startswith("execute_tool ")]
            ids = {span["context"]["span_id"] for span in roots}
            assert children and all(span["parent_id"] in ids for span in children)
            assert any(span["status_code"] == "ERROR" for span in children)
            print(f"Phoenix has {len(spans)} spans of {len(roots)} episodes")
        finally:
            server.terminate()
            server.wait()
            (folder / "otlp.json").unlink(missing_ok=True)


def settled(url):
    """The spans, once no more come: Phoenix stores them behind its answer."""
    spans, before = spans_of(url), -1
    while len(spans) != before:
        before = len(spans)
        time.sleep(8)
        spans = spans_of(url)
    return spans


def spans_of(url):
    spans, cursor = {}, ""
    while cursor is not None:
        page = get(f"{url}/v1/projects/default/spans?limit=1000" + (f"&cursor={cursor}" if cursor else ""))
        for span in page["data"]:
            spans[span["context"]["trace_id"], span["context"]["span_id"], span["id"]] = span
        cursor = page["next_cursor"]
    return spans


def main():
    command, mcprl, cache, run = sys.argv[1:]
    if command == "collector":
        check_collector(mcprl, cache, run)
        check_settings(mcprl, cache, run)
    else:
        check_phoenix(mcprl, cache, run)


main()
