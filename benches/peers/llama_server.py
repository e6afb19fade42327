"""llama.cpp's own HTTP server (`llama-server`), which PyPI's xllamacpp holds.

    benches/peers/llama_server.py MODEL.gguf [--port 0] [--parallel 8] [--context 4096] [--threads 2]

`--context` is of each of the sequences that it decodes at once. Prints the address of its chat completions, and serves until it is
stopped. Needs xllamacpp.
"""

import argparse
import os
import signal

import xllamacpp


def parameters(arguments):
    chosen = xllamacpp.CommonParams()
    chosen.model.path = arguments.model
    chosen.hostnames = ["127.0.0.1"]
    chosen.port = arguments.port
    chosen.n_parallel = arguments.parallel
    chosen.n_ctx = arguments.context * arguments.parallel
    for threads in (chosen.cpuparams, chosen.cpuparams_batch):
        threads.n_threads = arguments.threads
    chosen.use_jinja = True
    chosen.warmup = False
    return chosen


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--parallel", type=int, default=8)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    server = xllamacpp.Server(parameters(parser.parse_args()))
    print(f"{server.listening_address}/v1", flush=True)
    signal.sigwait({signal.SIGINT, signal.SIGTERM})
    os._exit(0)
