"""What it costs a run to be watched: its page in a browser, and its trackers.

    python3 benches/observe.py [MCPRL [ROUNDS]]

Runs a short training of pipelines/sqlite.toml (8 iterations) alone, with `--ui` and the page open in headless Chromium, and with
all trackers that write files (TensorBoard, W&B offline, trackio), in turn, each in a cache of its own. Prints the CPU seconds
(user and system) and wall seconds of the process `mcprl`, medians over the rounds, and their ratio to the run alone. CPU
seconds hardly depend on what else the machine does; the browser's own work is not counted.
"""

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

MCPRL = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "target/release/mcprl")
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 3
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
SHORT = ["--set", "loop.train.iterations=8"]
WAYS = {
    "alone": [],
    "page": ["--ui"],
    "trackers": ["--set", "track.tensorboard=true", "--set", "track.wandb={}", "--set", "track.trackio=true"],
}


def run(way):
    with tempfile.TemporaryDirectory() as folder:
        command = [MCPRL, "run", "pipelines/sqlite.toml", "--cache", f"{folder}/cache", *SHORT, *WAYS[way]]
        environment = {**os.environ, "TRACKIO_DIR": f"{folder}/trackio"}
        messages = open(f"{folder}/messages", "w+")
        began = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=messages, env=environment)
        browser = None
        if way == "page":
            url = None
            while url is None and process.poll() is None:
                time.sleep(0.1)
                found = re.search(r"^ui +(\S+)", open(f"{folder}/messages").read(), re.M)
                url = found and found.group(1)
            options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={folder}/browser"]
            browser = subprocess.Popen([BROWSER, *options, "--remote-debugging-port=0", url], stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.monotonic() - began
        if browser:
            browser.terminate()
            browser.wait()
            time.sleep(1)
        if status != 0:
            sys.exit(open(f"{folder}/messages").read())
        return usage.ru_utime + usage.ru_stime, wall


if not BROWSER:
    del WAYS["page"]
    print("no Chromium: the page is left out", file=sys.stderr)
measured = {way: [] for way in WAYS}
for turn in range(ROUNDS):
    # Each way is once the first of a round.
    order = list(WAYS)
    for way in order[turn % len(order) :] + order[: turn % len(order)]:
        measured[way].append(run(way))
alone = [statistics.median(column) for column in zip(*measured["alone"])]
for way, figures in measured.items():
    cpu, wall = (statistics.median(column) for column in zip(*figures))
    print(f"{way:9} CPU {cpu:6.1f} s ({cpu / alone[0]:.3f})  wall {wall:6.1f} s ({wall / alone[1]:.3f})")
