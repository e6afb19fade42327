"""Sends a run to a tracker with `mcprl track`, and reads it back with the tracker's own programs.

Usage: trackers.py TRACKER MCPRL CACHE RUN SCRATCH. Called by trackers.sh, with the Python of the tracker's environment.
"""

import gzip
import http.server
import json
import math
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request

tracker, mcprl, cache, run, scratch = sys.argv[1:]
mcprl = os.path.realpath(mcprl)
scratch = pathlib.Path(scratch)
scratch.mkdir(parents=True)
programs = pathlib.Path(sys.executable).parent


def command(*arguments, expect=0, **environment):
    """Runs mcprl on the copy of the cache. Returns both outputs."""
    words = [mcprl, *arguments, "--cache", str(copy)]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **environment}, timeout=600)
    assert done.returncode == expect, (words, done.returncode, done.stdout, done.stderr)
    return done.stdout, done.stderr


def resume(**environment):
    """Continues the run with this repository's cards, whatever it was started with."""
    return command("resume", run, "--stages", "stages", **environment)


def get(url, body=None, headers=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **(headers or {})}
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=30) as answer:
        return json.load(answer)


def eventually(what, check, seconds=60):
    """Waits until the check returns something true."""
    end = time.time() + seconds
    while True:
        try:
            found, problem = check(), None
        except Exception as error:
            found, problem = None, error
        if found:
            return found
        assert time.time() < end, f"{what}: {found} {problem}"
        time.sleep(0.3)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    """A program that ends with the block."""

    def __init__(self, *words, **environment):
        self.log = open(scratch / f"server-{time.time()}.log", "w+")
        environment = {**os.environ, **environment}
        self.process = subprocess.Popen(
            words, stdout=self.log, stderr=self.log, env=environment, start_new_session=True, cwd=scratch
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is not None:
            return
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


# A copy, so that a run can be cut short and resumed. Links suffice: files of a cache are replaced, not changed.
copy = scratch / "cache"
shutil.copytree(cache, copy, symlinks=True, copy_function=os.link)
if run == "latest":
    run = json.loads(command("runs", "--json")[0])[-1]["id"]
folder = copy / "runs" / run
lines = (folder / "journal.jsonl").read_text().splitlines(keepends=True)
model = json.loads(command("report", run, "--json")[0])
curve = model["curves"]["loops"][0]
loop = curve["name"]
points = [point for point in curve["points"] if point["state"] in ("ran", "cached")]
assert len(points) >= 2, "the run has too few iterations"
exam = model["exams"][-1]
gain = next(
    row for row in exam["rows"] if row["scope"] == "all" and row["mode"] == exam["mode"] and row["gain"] is not None
)
alone = next(iter(model["curves"]["alone"]), None)


def replace(path, text):
    """Not in place: the file may be a link."""
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)


def cut(iterations):
    """Makes the run look as if it had been killed after so many iterations."""
    last = max(
        number
        for number, line in enumerate(lines)
        if json.loads(line).get("id", "").startswith(f"{loop}[{iterations:04}]")
        and json.loads(line)["event"] in ("finished", "cached")
    )
    replace(folder / "journal.jsonl", "".join(lines[: last + 1]))


def whole():
    replace(folder / "journal.jsonl", "".join(lines))


def track_in_file(text):
    """Adds overrides to the run's request, as if it had been started with them."""
    import tomllib

    spec = (folder / "run.toml").read_text()
    before = tomllib.loads(spec).get("overrides", {}).get("set", [])
    spec = re.sub(r"(?ms)^set = \[.*?\]\n", "", spec)
    line = f"set = {json.dumps(before + text)}\n"
    spec = (
        spec.replace("[overrides]\n", f"[overrides]\n{line}")
        if "[overrides]\n" in spec
        else f"{spec}\n[overrides]\n{line}"
    )
    replace(folder / "run.toml", spec)


def close(found, expected):
    return math.isclose(found, expected, rel_tol=1e-6, abs_tol=1e-9)


def expected_series():
    """Values by tag: step to value."""
    series = {
        f"{loop}/{name}": {point["iteration"]: point[name] for point in points if point[name] is not None}
        for name in ("success", "reward", "loss", "gradient_norm", "learning_rate", "entropy")
    }
    series[f"{loop}/success_low"] = {point["iteration"]: point["interval"]["low"] for point in points}
    series[f"{loop}_signal/rollouts"] = {point["iteration"]: point["signal"]["rollouts"] for point in points}
    series[f"{loop}_episodes/turns"] = {point["iteration"]: point["turns"] for point in points}
    steps = [step for point in points for step in point["steps"]]
    series[f"{loop}_steps/loss"] = {number: step["loss"] for number, step in enumerate(steps)}
    if alone:
        series[f"{alone['stage']}_steps/loss"] = {step["step"]: step["loss"] for step in alone["steps"]}
    series[f"{exam['stage']}/{gain['policy']}/gain"] = {0: gain["gain"]}
    series[f"{exam['stage']}/{gain['policy']}/gain_low"] = {0: gain["gain_low"]}
    assert all(series.values()), series
    return series


def same(found, expected, tag):
    assert list(found) == sorted(found), f"{tag}: steps are not in order"
    assert found.keys() == expected.keys(), (tag, list(found)[:9], list(expected)[:9])
    wrong = {step: (found[step], value) for step, value in expected.items() if not close(found[step], value)}
    assert not wrong, (tag, wrong)


def single(value):
    """As TensorBoard stores it."""
    import struct

    return struct.unpack("f", struct.pack("f", value))[0]


def tensorboard():
    port = free_port()
    url = f"http://127.0.0.1:{port}/data"
    name = f"{run}/tensorboard"

    def scalars(tag):
        query = urllib.parse.urlencode({"run": name, "tag": tag})
        found = get(f"{url}/plugin/scalars/scalars?{query}")
        assert len({step for _, step, _ in found}) == len(found), f"{tag}: steps occur twice"
        return {step: value for _, step, value in found}

    cut(1)
    out, _ = command("track", run, "--to", "tensorboard")
    assert out.split() == ["tensorboard", str(folder / "tensorboard")], out
    words = ["--logdir", str(copy / "runs"), "--port", str(port), "--host", "127.0.0.1", "--reload_interval", "1"]
    # All points: by default it keeps a sample of a thousand.
    words += ["--samples_per_plugin", "scalars=10000,text=1000"]
    with Server(str(programs / "tensorboard"), *words):
        first = eventually("the first iteration", lambda: scalars(f"{loop}/success"))
        assert list(first) == [points[0]["iteration"]], first

        # The killed run is resumed, and tracks itself; TensorBoard follows.
        (events,) = (folder / "tensorboard").iterdir()
        before = (events.stat().st_ino, events.read_bytes())
        track_in_file(["track.tensorboard=true"])
        resume()
        assert list((folder / "tensorboard").iterdir()) == [events], "a resumed run adds no file"
        after = (events.stat().st_ino, events.read_bytes())
        assert after[0] == before[0] and after[1].startswith(before[1]) and len(after[1]) > len(before[1])
        eventually("the last iteration", lambda: len(scalars(f"{loop}/success")) == len(points))

        for tag, values in expected_series().items():
            expected = {step: single(value) for step, value in values.items()}
            eventually(tag, lambda tag=tag, expected=expected: len(scalars(tag)) == len(expected))
            same(scalars(tag), expected, tag)
        tags = get(f"{url}/plugin/scalars/tags")[name]
        for stage in model["run"]["stages"]:
            own = stage["name"].split("/")[-1]
            prefix = f"{loop}_metrics/{own}" if stage["iteration"] else f"stages/{own}"
            missing = [metric for metric in stage["metrics"] if f"{prefix}/{metric.replace('.', '/')}" not in tags]
            assert not missing, (stage["id"], missing)

        def text(tag):
            found = get(f"{url}/plugin/text/text?{urllib.parse.urlencode({'run': name, 'tag': tag})}")
            return {entry["step"]: entry["text"] for entry in found}

        verdict = text(f"verdict/{exam['stage']}")[0]
        assert "<h1>Verdict</h1>" in verdict and exam["sentences"][0]["text"].split(":")[0] in verdict, verdict
        episodes = {**text(f"examples/{loop}_right"), **text(f"examples/{loop}_wrong")}
        assert set(episodes) <= {point["iteration"] for point in points} and episodes, episodes.keys()
        assert all("<script" not in page for page in episodes.values())

        # The HPARAMS tab: the run is one session, with its settings and the last value of each metric.
        request = {"experimentName": "", "allowedStatuses": ["STATUS_SUCCESS", "STATUS_RUNNING", "STATUS_UNKNOWN"]}
        request |= {
            "colParams": [{"metric": {"tag": f"{loop}/success", "group": ""}}],
            "startIndex": 0,
            "sliceSize": 9,
        }
        groups = get(f"{url}/plugin/hparams/session_groups", request)["sessionGroups"]
        (group,) = [group for group in groups if group["sessions"][0]["name"] == name]
        hparams = group["hparams"]
        seed = model["run"]["seed"]
        assert hparams["seed"] == seed and hparams[f"{loop}/update.learning_rate"] > 0, hparams
        assert group["sessions"][0]["status"] == "STATUS_SUCCESS", group["sessions"][0]["status"]
        experiment = get(f"{url}/plugin/hparams/experiment", {"experimentName": ""})
        assert any(info["name"] == f"{loop}/update.learning_rate" for info in experiment["hparamInfos"])

    # Into a folder of its own, twice: one file, the same bytes.
    whole()
    written = []
    for _ in range(2):
        command("track", run, "--to", f"tensorboard={scratch / 'logs'}")
        (again,) = (scratch / "logs" / run).iterdir()
        written.append((again.stat().st_ino, again.read_bytes()))
    assert again.name == events.name and written[0] == written[1]


class WandbBackend(http.server.BaseHTTPRequestHandler):
    """As much of Weights & Biases as its client needs to upload a run, and a record of what it uploaded."""

    protocol_version = "HTTP/1.1"
    config, history, summary, files, complete, requests = {}, {}, {}, {}, [], []

    def log_message(self, *_):
        pass

    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def body(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def do_GET(self):
        self.answer({})

    def do_PUT(self):
        self.files[urllib.parse.unquote(self.path.removeprefix("/upload/"))] = self.body()
        self.answer({})

    def do_POST(self):
        request = json.loads(self.body() or b"{}")
        if self.path.endswith("/file_stream"):
            for name, part in (request.get("files") or {}).items():
                for place, line in enumerate(part["content"]):
                    if name.endswith("history.jsonl"):
                        # A later line of the same number replaces the earlier one, as on the server.
                        self.history[part["offset"] + place] = json.loads(line)
                    elif name.endswith("summary.json"):
                        self.summary.update(json.loads(line))
            if request.get("complete"):
                self.complete.append(request.get("exitcode"))
            return self.answer({"exitcode": None, "limits": {}})
        query, variables = request["query"], request.get("variables") or {}
        self.requests.append(query)
        if "upsertBucket" in query:
            self.config.update(json.loads(variables.get("config") or "{}"))
            owner = {"id": "p", "name": variables.get("project") or "", "entity": {"id": "e", "name": "me"}}
            bucket = {"id": "b", "name": variables.get("name"), "displayName": variables.get("displayName")}
            bucket |= {
                "description": None,
                "config": "{}",
                "sweepName": None,
                "project": owner,
                "historyLineCount": 0,
            }
            return self.answer({"data": {"upsertBucket": {"bucket": bucket, "inserted": True}}})
        if "createRunFiles" in query:
            host = self.headers["Host"]
            files = [
                {"name": name, "uploadUrl": f"http://{host}/upload/{urllib.parse.quote(name)}"}
                for name in variables["files"]
            ]
            return self.answer({"data": {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}})
        if "serverInfo" in query:
            versions = {"max_cli_version": "99.0.0", "min_cli_version": "0.1.0"}
            return self.answer(
                {"data": {"serverInfo": {"cliVersionInfo": versions, "latestLocalVersionInfo": None, "features": []}}}
            )
        if "viewer" in query:
            viewer = {"id": "u", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}
            return self.answer({"data": {"viewer": viewer}})
        self.answer({"data": {}})


def wandb():
    backend = http.server.ThreadingHTTPServer(("127.0.0.1", 0), WandbBackend)
    # The client that is ended drops its connections.
    backend.handle_error = lambda *_: None
    threading.Thread(target=backend.serve_forever, daemon=True).start()
    account = {"WANDB_BASE_URL": f"http://127.0.0.1:{backend.server_port}", "WANDB_API_KEY": "0" * 40}
    account |= {"HOME": str(scratch), "WANDB_ERROR_REPORTING": "false", "WANDB_DIR": str(scratch)}
    wandb_program = str(programs / "wandb")
    with_program = {**account, "PATH": f"{programs}:{os.environ['PATH']}"}

    def forget():
        for known in (WandbBackend.config, WandbBackend.history, WandbBackend.summary, WandbBackend.files):
            known.clear()
        WandbBackend.complete.clear()

    def check_uploaded():
        found = {}
        for number in sorted(WandbBackend.history):
            row = WandbBackend.history[number]
            assert row["_step"] == number, (row["_step"], number)
            for tag in row:
                found.setdefault(tag, []).append(row)
        for tag, expected in expected_series().items():
            axis = f"{loop}_steps/step" if tag.startswith(f"{loop}_steps/") else f"{loop}/iteration"
            if alone and tag.startswith(f"{alone['stage']}_steps/"):
                axis = f"{alone['stage']}_steps/step"
            values = {row.get(axis, 0): row[tag] for row in found[tag]}
            assert len(values) == len(found[tag]), f"{tag}: steps occur twice"
            same(values, expected, tag)
        last = points[-1]
        assert close(WandbBackend.summary[f"{loop}/loss"], last["loss"]), WandbBackend.summary
        config = WandbBackend.config
        assert config["seed"]["value"] == model["run"]["seed"], config
        assert config[f"{loop}/update"]["value"]["learning_rate"] > 0, config[f"{loop}/update"]
        verdict = [body for name, body in WandbBackend.files.items() if "/verdict/" in name]
        assert len(verdict) == 1 and b"# Verdict" in verdict[0], list(WandbBackend.files)
        assert WandbBackend.complete[-1:] == [0], WandbBackend.complete

    # Offline, and then uploaded by hand. What was uploaded before is uploaded again once there is more.
    cut(1)
    command("track", run, "--to", "wandb")
    (offline,) = (folder / "wandb").iterdir()
    (log,) = offline.glob("*.wandb")
    first = log.read_bytes()
    done = subprocess.run(
        [wandb_program, "sync", str(offline)],
        env={**os.environ, **account},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert WandbBackend.complete[-1:] == [137], "the run counts as killed"
    assert list(offline.glob("*.synced"))
    whole()
    command("track", run, "--to", "wandb")
    assert not list(offline.glob("*.synced")) and list(offline.glob("*.wandb")) == [log]
    forget()
    done = subprocess.run(
        [wandb_program, "sync", str(folder / "wandb")],
        env={**os.environ, **account},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    check_uploaded()

    # Online: the program is started, follows the run, and ends with it. The run is cut short and resumed.
    cut(1)
    track_in_file(['track.wandb={mode="online",name="nice",tags=["a","b"]}'])
    forget()
    resume(**with_program)
    check_uploaded()
    assert any("createRunFiles" in query for query in WandbBackend.requests)
    assert list((folder / "wandb").iterdir()) == [offline]
    forget()
    command("track", run, **with_program)
    check_uploaded()

    # While the file grows, what is written so far is uploaded.
    forget()
    live = scratch / "offline-run-20260101_000000-abc" / "run-abc.wandb"
    shutil.copytree(offline / "files", live.parent / "files")
    whole_file = log.read_bytes()
    live.write_bytes(whole_file[: len(whole_file) // 2])
    with Server(wandb_program, "beta", "sync", "--live", str(live), **account) as server:
        eventually("the first rows", lambda: WandbBackend.history)
        assert not WandbBackend.complete and server.process.poll() is None
        with live.open("ab") as file:
            file.write(whole_file[len(whole_file) // 2 :])
        eventually("the end", lambda: server.process.poll() is not None)
    check_uploaded()

    # Without the program, without a login, and without a server: the run ends well and says what to do.
    for environment, says in [
        ({**account, "PATH": "/usr/bin:/bin"}, "the program `wandb` is not installed"),
        ({**with_program, "WANDB_API_KEY": ""}, "`wandb` failed"),
        ({**with_program, "WANDB_BASE_URL": f"http://127.0.0.1:{free_port()}"}, "`wandb` failed"),
    ]:
        cut(len(points))
        _, err = resume(**environment)
        assert says in err, err
        assert "0000000000" not in err
    backend.shutdown()


def trackio():
    os.environ["TRACKIO_DIR"] = str(scratch / "trackio")
    import trackio as client
    from trackio.sqlite_storage import SQLiteStorage

    def logs():
        return SQLiteStorage.get_logs(project, run)

    def check():
        rows = logs()
        for tag, expected in expected_series().items():
            of_tag = [row for row in rows if tag in row]
            values = {row["step"]: row[tag] for row in of_tag}
            assert len(values) == len(of_tag), f"{tag}: steps occur twice"
            same(values, expected, tag)
            assert {value["step"] for value in SQLiteStorage.get_metric_values(project, run, tag)} == set(expected)
        assert SQLiteStorage.get_runs(project) == [run]
        config = SQLiteStorage.get_run_config(project, run)
        assert config["seed"] == model["run"]["seed"] and config[f"{loop}/update.learning_rate"] > 0
        (verdict,) = [row[f"verdict/{exam['stage']}"] for row in rows if f"verdict/{exam['stage']}" in row]
        assert verdict["_type"] == "trackio.markdown" and verdict["_value"].startswith("# Verdict"), verdict
        traces = SQLiteStorage.get_traces(project, run)
        assert traces and {trace["step"] for trace in traces} <= {point["iteration"] for point in points}
        first = next(trace for trace in traces if trace["messages"][0]["role"] == "user")
        assert any(message.get("tool_calls") for message in first["messages"]), first["messages"]

    # Into a database that does not exist yet, in two parts, and again.
    project = "mcprl"
    cut(1)
    command("track", run, "--to", "trackio")
    assert {row["step"] for row in logs() if f"{loop}/success" in row} == {points[0]["iteration"]}
    track_in_file(["track.trackio=true"])
    resume()
    check()
    command("track", run)
    check()

    # Its own migration accepts the database, and another run can be logged beside ours.
    SQLiteStorage.migrate_all_projects()
    client.init(project=project, name="other", embed=False)
    client.log({"train/success": 0.5})
    client.finish()
    assert sorted(SQLiteStorage.get_runs(project)) == sorted([run, "other"])
    command("track", run)
    assert sorted(SQLiteStorage.get_runs(project)) == sorted([run, "other"])
    assert len(SQLiteStorage.get_logs(project, "other")) == 1

    # The functions behind its dashboard and its API.
    from trackio import server

    assert {found["name"] for found in server.get_runs_for_project(project)} == {run, "other"}
    assert f"{loop}/success" in server.get_metrics_for_run(project, run)
    (found,) = [found for found in client.Api().runs(project) if found.name == run]
    assert found.config["seed"] == model["run"]["seed"]

    # Into a database that trackio made.
    project = "own"
    client.init(project=project, name="other", embed=False)
    client.log({"x": 1})
    client.finish()
    command("track", run, "--to", f"trackio={project}")
    SQLiteStorage.delete_run(project, "other")
    check()


globals()[tracker]()
print(f"{tracker}: ok")
