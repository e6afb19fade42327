"""Runs the parts of the GPU kit and writes one page of results; `kit.sh` says how it is called.

Results are written after every part, as kit.json and kit.md: a run that is cut off leaves what it had. A part that fails
or runs out of its time leaves the others alone.
"""

import argparse
import atexit
import ctypes
import glob
import importlib.util
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE / "peers"), str(HERE.parent / "peers")]
from shapes import SHAPES  # noqa: E402

# What the binaries are linked to, and the wheels that bring it.
LIBRARIES = {"libcublas.so.13": "nvidia-cublas", "libcublasLt.so.13": "nvidia-cublas", "libcurand.so.10": "nvidia-curand",
             "libnvrtc.so.13": "nvidia-cuda-nvrtc"}
REHEARSAL = "cpu-composed"


class Skipped(Exception):
    pass


class Failed(Exception):
    """`data` is what there is all the same, `output` what the command printed."""

    data, output = None, ""


class Kit:
    def __init__(self, args):
        self.args = args
        self.small = args.device == REHEARSAL
        # As mcprl names it.
        self.device = "cpu" if self.small else args.device
        self.until = time.monotonic() + args.budget
        # When the time of the present part is up.
        self.deadline = self.until
        self.out = args.out
        self.out.mkdir(parents=True, exist_ok=True)
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="mcprl-kit-"))
        atexit.register(shutil.rmtree, self.work, ignore_errors=True)
        self.log = open(self.out / "kit.log", "w")
        version = HERE / "VERSION"
        self.results = {
            "version": version.read_text().strip() if version.is_file() else "unknown",
            "device": args.device,
            "machine": {},
            "verdict": "cut off",
            "parts": [],
        }

    def run(self, command, env=None):
        """Standard output of a command, which may take what is left of its part's time; all it says is in the log."""
        limit = max(1, self.deadline - time.monotonic())
        environment = os.environ | {"RUST_BACKTRACE": "0"} | (env or {})
        if self.small:
            environment["MCPRL_KERNELS"] = "composed"
        command = [str(word) for word in command]
        self.log.write(f"\n$ {' '.join(command)}\n")
        self.log.flush()
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.work,
                                 env=environment, start_new_session=True)
        try:
            output, errors = child.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            output, errors = child.communicate()
            self.log.write(output + errors)
            raise Failed(f"not done after {limit:.0f} s") from None
        finally:
            if child.poll() is None:  # The kit itself is stopped.
                os.killpg(child.pid, signal.SIGKILL)
        self.log.write(output + errors)
        if child.returncode:
            failed = Failed(f"exit {child.returncode}: {told(errors or output)}")
            failed.output = output
            raise failed
        return output

    def mcprl(self, words, env=None):
        return self.run([HERE / "mcprl", *words], env)

    def part(self, name, seconds, work):
        """Runs a part, which has so many seconds, and notes its end; `work` gives a line and data."""
        entry = {"name": name, "status": "running", "seconds": 0.0, "line": "", "data": None}
        self.results["parts"].append(entry)
        self.save()
        began = time.monotonic()
        self.deadline = min(began + seconds, self.until)
        try:
            if self.deadline - began < 5:
                raise Skipped("no time is left")
            entry["line"], entry["data"] = work()
            entry["status"] = "ok"
        except Skipped as why:
            entry["status"], entry["line"] = "skipped", str(why)
        except Failed as why:
            entry["status"], entry["line"] = "failed", str(why)
            entry["data"] = why.data
        except Exception as error:  # noqa: BLE001: whatever is wrong here, the other parts run.
            self.log.write(traceback.format_exc())
            entry["status"], entry["line"] = "failed", f"{type(error).__name__}: {error}"
        entry["seconds"] = round(time.monotonic() - began, 1)
        print(f"{entry['status']:<8} {name:<22} {entry['seconds']:>6} s  {entry['line']}", flush=True)
        self.save()

    def data(self, name):
        return next((part["data"] for part in self.results["parts"] if part["name"] == name), None)

    def save(self):
        for name, text in [("kit.json", json.dumps(self.results, indent=1)), ("kit.md", page(self.results))]:
            partial = self.out / f"{name}.partial"
            partial.write_text(text + "\n")
            partial.replace(self.out / name)


def told(text):
    """The line that says what went wrong."""
    lines = [line for line in text.splitlines() if line.strip()] or ["no message"]
    line = next((line for line in lines if line.startswith(("error", "Error", "thread", "bad", '{"error"'))), lines[-1])
    return json.loads(line)["error"]["message"] if line.startswith('{"error"') else line[:300]


# The machine.


def find_driver():
    """The driver's library, with a device behind it; else why not."""
    for name in ["libcuda.so.1", *glob.glob("/usr/local/nvidia/lib64/libcuda.so.1")]:
        try:
            driver = ctypes.CDLL(name)
            break
        except OSError:
            continue
    else:
        return None, "no NVIDIA driver: libcuda.so.1 is not found"
    code, count = driver.cuInit(0), ctypes.c_int()
    code = code or driver.cuDeviceGetCount(ctypes.byref(count))
    if code or not count.value:
        return None, f"no NVIDIA device: the driver answers {code}"
    loaded = re.findall(r"\S*/libcuda\.so\S*", pathlib.Path("/proc/self/maps").read_text())
    return loaded[0] if loaded else name, None


def link_libraries(driver):
    """Links CUDA's libraries into `lib/`, where the binaries look: those of PyTorch's wheels, else of a toolkit."""
    folder = HERE / "lib"
    folder.mkdir(exist_ok=True)
    places = [p for path in sys.path if path for p in glob.glob(f"{path}/nvidia/*/lib")]
    places += glob.glob("/usr/local/cuda*/lib64") + glob.glob("/usr/local/cuda*/extras/CUPTI/lib64")
    for library in (library for place in places for library in glob.glob(f"{place}/lib*.so*")):
        link = folder / os.path.basename(library)
        if not link.exists():
            link.unlink(missing_ok=True)
            link.symlink_to(library)
    link = folder / "libcuda.so.1"
    link.unlink(missing_ok=True)
    link.symlink_to(driver)
    missing = [name for name in LIBRARIES if not (folder / name).exists()]
    if missing:
        wheels = " ".join(dict.fromkeys(LIBRARIES[name] for name in missing))
        raise Failed(f"no {', '.join(missing)} of CUDA 13 on this machine: pip install {wheels}")


def have(*packages):
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise Skipped(f"not installed: {', '.join(missing)}")


# The parts. Each gives a line for people and data.


def doctor(kit):
    if shutil.which("nvidia-smi") and not kit.small:
        asked = "name,driver_version,memory.total,clocks.max.sm,power.limit"
        said = kit.run(["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"])
        values = [value.strip() for value in said.splitlines()[0].split(",")]
        kit.results["machine"] = dict(zip(asked.split(","), values))
    text = kit.mcprl(["doctor", HERE / "pipelines/sqlite.toml", "--set", f'engine.devices=["{kit.device}"]',
                      "--cache", kit.work / "cache"])
    return "everything the sqlite run needs is there", text


def device_tests(kit):
    words = ["--ignored", "on_a_device", "--test-threads", "1"]
    try:
        said = kit.run([HERE / "mcprl-tests", *words], {"CARGO_MANIFEST_DIR": str(HERE / "crates/mcprl-engine")})
    except Failed as why:
        names = re.findall(r"^test \S*::(\S+) \.\.\. FAILED", why.output, re.MULTILINE)
        reasons = re.findall(r"panicked at .*\n(.*)", why.output)
        raise Failed("; ".join(map(": ".join, zip(names, reasons))) or str(why)) from None
    count = re.search(r"(\d+) passed", said)
    if not count or count[1] == "0":
        raise Failed("no test ran")
    return f"{count[1]} passed", None


def parity(kit):
    have("torch", "transformers", "peft", "safetensors")
    words = [HERE / "parity.py", kit.work / "parity", "--bench", HERE / "mcprl-bench", "--engine", kit.device]
    words += ["--device", "cpu", "--small"] if kit.small else ["--device", kit.device]
    found = json.loads(kit.run([sys.executable, *words]).splitlines()[-1])
    if found["wrong"]:
        failed = Failed(f"too far from PyTorch: {', '.join(found['wrong'])}")
        failed.data = found
        raise failed
    return "agrees with PyTorch", found


def pipeline(kit):
    sets = ["loop.train.iterations=2", "stages.tasks.heldout_per_split=24"]
    if kit.small:
        sets = ["stages.tasks.questions_per_family=8", "stages.tasks.heldout_per_split=2", "loop.train.iterations=1"]
        sets += ["loop.train.patience=0"]  # Episodes this short may have nothing to learn from.
        sets += [f"loop.train.stages.rollout.{name}" for name in ["prompts=2", "group_size=2", "refill_waves=1"]]
        sets += ["agent.max_turns=1", "agent.max_turn_tokens=16"]
    sets.append(f'engine.devices=["{kit.device}"]')
    words = [word for change in sets for word in ["--set", change]]
    said = kit.mcprl(["--json", "run", HERE / "pipelines/sqlite.toml", "--cache", kit.work / "cache", *words])
    events = [json.loads(line) for line in said.splitlines()]
    stages = {event["id"]: {"seconds": event["result"]["cost"]["seconds"]} | event["result"]["metrics"]
              for event in events if event.get("event") == "finished"}
    exam, gaps = stages["exam"], [of["max_logprob_gap"] for of in stages.values() if "max_logprob_gap" in of]
    line = f"{len(stages)} stages in {events[-1]['seconds']:.0f} s, held-out success {exam['all.base.greedy']:.0%} → "
    line += f"{exam['all.trained.greedy']:.0%}"
    # Between sampling and scoring, in nats.
    line += f", largest gap of log-probabilities {max(gaps):.1e}" if gaps else ", no update had a gradient"
    return line, stages


def load(kit):
    """The work of an update and of decoding, as `mcprl-bench` and peer.py name it."""
    small = dict(prefix=24, question=8, episode=16, group=2, groups=2, runs=1, batch="1,4", new=6)
    large = dict(prefix=1000, question=40, episode=300, group=8, groups=4, runs=3, batch="1,32,128", new=64)
    return small if kit.small else large


def flags(load):
    return [word for name, value in load.items() for word in [f"--{name}", str(value)]]


def bench(kit, shape, only, env=None, **changed):
    words = ["--json", "--device", kit.device, "--shape", shape, "--dtype", "bf16", "--only", only]
    return json.loads(kit.run([HERE / "mcprl-bench", *words, *flags(load(kit) | changed)], env))


def update(kit, shape):
    report = bench(kit, shape, "training")
    if kit.small and report["kernels"] != "composed":
        raise Failed(f"computed by the kernels ({report['kernels']}), not as a device would")
    found = report["training"] | {"machine": report["machine"]}
    found["mfu"] = update_operations(shape, load(kit), True) / found["seconds"] / report["machine"]["bf16"] / 1e9
    return f"{found['tokens_per_second']:.0f} tokens/s", found


def decode(kit, shape):
    report = bench(kit, shape, "decode")
    for row in report["decode"]:
        steps = row["tokens_per_second"] / row["sequences"]
        row["bandwidth"] = step_bytes(shape, load(kit), row["sequences"]) * steps / report["machine"]["memory"] / 1e9
    return f"{report['decode'][-1]['tokens_per_second']:.0f} tokens/s", {"rows": report["decode"]}


def peer(kit, work, shape, *more):
    have("torch", "transformers", "peft")
    words = [work, "--shape", shape, "--dtype", "bf16", "--device", kit.device, *flags(load(kit) | dict(runs=2)), *more]
    return json.loads(kit.run([sys.executable, HERE / "peers/peer.py", *words]).splitlines()[-1])


def peer_update(kit, shape):
    # TRL's own loss where TRL is there; else the products of the same step, without it.
    trl = importlib.util.find_spec("trl") is not None
    found = peer(kit, "update" if trl else "dense", shape, "--checkpointing", "--micro", load(kit)["group"])
    found["with"] = "TRL, PEFT, Transformers" if trl else "PEFT, Transformers; TRL is not installed"
    if ours := kit.data(f"update {shape}"):
        operations = update_operations(shape, load(kit), False)
        found["mfu"] = operations / found["seconds"] / ours["machine"]["bf16"] / 1e9
    return f"{found['tokens_per_second']:.0f} tokens/s ({found['with']})", found


def peer_decode(kit, shape):
    rows = peer(kit, "decode", shape)["decode"]
    return f"{rows[-1]['tokens_per_second']:.0f} tokens/s (Transformers)", {"with": "PEFT, Transformers", "rows": rows}


def profile(kit, shape):
    trace = HERE / "trace.so"
    if kit.small:
        raise Skipped("the CPU has no trace")
    if not trace.is_file() or not (HERE / "lib/libcupti.so.13").exists():
        raise Skipped("libcupti.so.13 or trace.so is not there")
    file = kit.work / "trace.tsv"
    env = {"CUDA_INJECTION64_PATH": str(trace), "MCPRL_TRACE": str(file)}
    found = {}
    for what, only, changed in [("update", "training", dict(runs=2)), ("decode", "decode", dict(batch="32", new=16))]:
        file.unlink(missing_ok=True)
        report = bench(kit, shape, only, env, **changed)
        if not file.is_file():
            raise Failed("the driver loaded no trace: CUDA_INJECTION64_PATH was not read")
        measured = report["training"] if what == "update" else report["decode"][0]
        steps = 1 if what == "update" else changed["new"]
        found[what] = by_kernel(file, measured["window"], steps)
    busy = ", ".join(f"{what}: {of['launches']:.0f} launches, device busy {of['busy']:.0%}" for what, of in found.items())
    return busy, found


def by_kernel(file, window, steps):
    """Time and launches of each kernel of one step, from a trace of `steps` of them in this window."""
    kernels, spans = {}, []
    with open(file) as lines:
        for line in lines:
            start, end, name = line.rstrip("\n").split("\t", 2)
            start, end = int(start), int(end)
            if start < window[0] or end > window[1]:
                continue
            spans.append((start, end))
            entry = kernels.setdefault(name, [0, 0])
            entry[0] += end - start
            entry[1] += 1
    spans.sort()
    busy, until = 0, 0
    for start, end in spans:
        busy += max(0, end - max(start, until))
        until = max(until, end)
    ranked = sorted(kernels.items(), key=lambda item: -item[1][0])
    names = demangled([name for name, _ in ranked])
    wall = window[1] - window[0]
    return {
        "milliseconds": wall / steps / 1e6,
        "busy": busy / wall,
        "launches": len(spans) / steps,
        "kernels": [{"name": name, "milliseconds": time / steps / 1e6, "launches": count / steps, "share": time / wall}
                    for name, (_, (time, count)) in zip(names, ranked)],
    }


def demangled(names):
    if not shutil.which("c++filt") or not names:
        return names
    said = subprocess.run(["c++filt", "-p"], input="\n".join(names), capture_output=True, text=True, check=False)
    lines = said.stdout.splitlines()
    return lines if len(lines) == len(names) else names


# What the work takes at least.


def matrices(shape):
    """Values of a layer stack's matrices, and of the output projection."""
    s = SHAPES[shape]
    hidden, dim = s["hidden_size"], s["head_dim"]
    query, kv = s["num_attention_heads"] * dim, s["num_key_value_heads"] * dim
    layer = hidden * (2 * query + 2 * kv) + 3 * hidden * s["intermediate_size"]
    return s["num_hidden_layers"] * layer, hidden * s["vocab_size"]


def update_operations(shape, load, shared):
    """Operations of a step: forward, and backward to the inputs, of the tokens that go through the decoder. Nothing is
    computed again, and adapters are not counted."""
    prefix, question, episode = load["prefix"], load["question"], load["episode"]
    groups, count = load["groups"], load["groups"] * load["group"]
    times = (1, groups, count) if shared else (count, count, count)
    lengths = zip(times, [prefix, question, episode], [0, prefix, prefix + question])
    rows, contexts = 0, 0
    for number, length, first in lengths:
        rows += number * length
        contexts += number * (length * first + length * (length + 1) // 2)
    s = SHAPES[shape]
    layers, head = matrices(shape)
    attention = 12 * s["num_hidden_layers"] * s["num_attention_heads"] * s["head_dim"] * contexts
    trained = count * -(-episode // 2)
    return 4 * (layers * rows + head * trained) + attention


def step_bytes(shape, load, sequences):
    """Fewest bytes a decode step reads: weights, and the keys and values of distinct tokens, in bf16."""
    s = SHAPES[shape]
    groups = -(-sequences // load["group"])
    tokens = load["prefix"] + groups * load["question"] + sequences * load["new"] / 2
    per_token = 2 * s["num_hidden_layers"] * s["num_key_value_heads"] * s["head_dim"]
    return 2 * (sum(matrices(shape)) + per_token * tokens)


# The page.


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def speed(found, what):
    """A row of the table of speeds: an update, or decoding so many sequences."""
    seconds = found["seconds"] if "seconds" in found else found["sequences"] / found["tokens_per_second"]
    shares = [f"{found[name]:.1%}" if name in found else "" for name in ["mfu", "bandwidth"]]
    return [found.get("with") or "mcprl", what, f"{found['tokens_per_second']:.0f}", f"{1e3 * seconds:.1f}",
            f"{found['peak_mib']:.0f}", *shares]


def page(results):
    parts = results["parts"]
    data = {part["name"]: part["data"] for part in parts if part["data"]}
    text = [f"# mcprl on {results['machine'].get('name', results['device'])}", "",
            f"Version {results['version']}, device `{results['device']}`. Verdict: **{results['verdict']}**.", ""]
    if results["machine"]:
        text += [", ".join(f"{name} {value}" for name, value in results["machine"].items()), ""]
    rows = [[part["name"], part["status"], part["seconds"], part["line"].replace("|", "\\|")] for part in parts]
    if rows:
        text += [table(["part", "status", "seconds", ""], rows), ""]
    if found := data.get("parity"):
        rows = [[name, *(f"{found[name][what]:.2e}" for what in ["logits", "gradients", "update"])]
                for name in ["f32", "bf16", "bf16 of PyTorch"]]
        text += [f"## Distance to PyTorch {found['torch']} in f32", "",
                 table(["", "logits", "gradients", "update"], rows), ""]
    for shape in SHAPES:
        rows = [speed(data[f"{who}update {shape}"], "update") for who in ["", "peer "] if f"{who}update {shape}" in data]
        rows += [speed(row | {"with": found.get("with")}, f"decode, {row['sequences']}")
                 for who in ["", "peer "] if (found := data.get(f"{who}decode {shape}")) for row in found["rows"]]
        if not rows:
            continue
        text += [f"## {shape}, bf16", ""]
        if machine := data.get(f"update {shape}", {}).get("machine"):
            text += [f"Measured here: bf16 products {machine['bf16'] / 1e3:.1f} TFLOP/s, f32 products "
                     f"{machine['f32'] / 1e3:.1f} TFLOP/s, copies {machine['memory']:.0f} GB/s.", ""]
        text += [table(["", "", "tokens/s", "ms a step", "peak MiB", "MFU", "bandwidth"], rows), ""]
    for name, found in data.items():
        if not name.startswith("profile "):
            continue
        for what, of in found.items():
            rows = [[f"`{kernel['name'][:90]}`", f"{kernel['milliseconds']:.3f}", f"{kernel['launches']:.1f}",
                     f"{kernel['share']:.1%}"] for kernel in of["kernels"][:15]]
            text += [f"## {name}: one {what} step", "",
                     f"{of['milliseconds']:.2f} ms, {of['launches']:.0f} launches, the device busy {of['busy']:.0%} of "
                     "the time. Shares are of the whole step.", "", table(["kernel", "ms", "launches", "share"], rows), ""]
    return "\n".join(text).rstrip()


def arguments():
    parser = argparse.ArgumentParser(prog="kit.sh run")
    parser.add_argument("--device", default="cuda:0", help=f"cuda:N, or {REHEARSAL}: a rehearsal on the CPU")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("gpu-results"))
    parser.add_argument("--budget", type=float, default=570, help="seconds for all parts")
    return parser.parse_args()


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    kit = Kit(arguments())
    if not kit.small:
        driver, why = find_driver()
        if why is None:
            try:
                link_libraries(driver)
            except Failed as failed:
                why = str(failed)
        if why:
            kit.results["verdict"] = why
            kit.save()
            print(why)
            return 1
    shapes = ["demo"] if kit.small else ["qwen3-0.6b", "qwen3-8b", "qwen3-4b"]
    first, *others = shapes

    def part(name, seconds, work, *arguments):
        # A rehearsal shares the CPU with whatever runs there.
        seconds *= 5 if kit.small else 1
        kit.part(" ".join([name, *arguments]), seconds, lambda: work(kit, *arguments))

    # What says most comes first; what is left when time is up, is skipped.
    part("doctor", 30, doctor)
    part("tests on a device", 90, device_tests)
    part("parity", 90, parity)
    part("update", 45, update, first)
    part("decode", 45, decode, first)
    part("profile", 60, profile, first)
    part("pipeline", 120, pipeline)
    for shape in [first, *others]:
        if shape != first:
            part("update", 60, update, shape)
            part("decode", 45, decode, shape)
        part("peer update", 75, peer_update, shape)
        part("peer decode", 75, peer_decode, shape)
    failed = [part["name"] for part in kit.results["parts"] if part["status"] == "failed"]
    kit.results["verdict"] = f"failed: {', '.join(failed)}" if failed else "all parts that ran are right"
    kit.save()
    print(f"{kit.results['verdict']}; {kit.out}/kit.md and kit.json have the results")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
