"""Decoding as `mcprl bench --only decode` does it, by llama.cpp: every sequence behind a shared prompt, batched.

    pip install llama-cpp-python gguf numpy        # built here, for this processor
    python llama_peer.py --shape qwen3-0.6b --prefix 380 --question 20 --batch 1,8,32 --new 32

Weights are random, in bf16, written as a GGUF file of the shape; the prompt's keys and values are shared among the
sequences (`llama_memory_seq_cp`). Sampling is greedy and in C, for a vocabulary's worth of Python would be slower than
the model. There are no adapters; `mcprl bench` and `peer.py` compute theirs. Prints one JSON object.
"""

import argparse
import ctypes
import json
import os
import tempfile
import time

import gguf
import llama_cpp as llama
import numpy as np

SHAPES = {
    "demo": dict(hidden=128, intermediate=384, layers=4, heads=4, kv=2, dim=32, vocabulary=1024),
    "qwen3-0.6b": dict(hidden=1024, intermediate=3072, layers=28, heads=16, kv=8, dim=128, vocabulary=151936),
}
BF16 = gguf.GGMLQuantizationType.BF16


def tokens(count, seed):
    return [(i * i * 7 + i * 13 + seed * 2929) % 1021 for i in range(count)]


def write(path, hidden, intermediate, layers, heads, kv, dim, vocabulary):
    draw = np.random.default_rng(0)
    out = gguf.GGUFWriter(path, "qwen3")
    out.add_block_count(layers)
    out.add_context_length(40960)
    out.add_embedding_length(hidden)
    out.add_feed_forward_length(intermediate)
    out.add_head_count(heads)
    out.add_head_count_kv(kv)
    out.add_key_length(dim)
    out.add_value_length(dim)
    out.add_layer_norm_rms_eps(1e-6)
    out.add_rope_freq_base(1e6)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("qwen2")
    out.add_token_list([f"t{i}" for i in range(vocabulary)])
    out.add_token_types([1] * vocabulary)
    out.add_token_merges(["t0 t1"])  # an empty list would not be written
    out.add_eos_token_id(0)

    def matrix(name, outputs, inputs):
        values = draw.standard_normal((outputs, inputs), dtype=np.float32) * 0.05
        halves = (values.view(np.uint32) >> 16).astype(np.uint16)
        out.add_tensor(name, halves.view(np.uint8), raw_dtype=BF16)

    def norm(name, width):
        out.add_tensor(name, np.ones(width, dtype=np.float32))

    matrix("token_embd.weight", vocabulary, hidden)
    for i in range(layers):
        norm(f"blk.{i}.attn_norm.weight", hidden)
        matrix(f"blk.{i}.attn_q.weight", heads * dim, hidden)
        matrix(f"blk.{i}.attn_k.weight", kv * dim, hidden)
        matrix(f"blk.{i}.attn_v.weight", kv * dim, hidden)
        norm(f"blk.{i}.attn_q_norm.weight", dim)
        norm(f"blk.{i}.attn_k_norm.weight", dim)
        matrix(f"blk.{i}.attn_output.weight", hidden, heads * dim)
        norm(f"blk.{i}.ffn_norm.weight", hidden)
        matrix(f"blk.{i}.ffn_gate.weight", intermediate, hidden)
        matrix(f"blk.{i}.ffn_up.weight", intermediate, hidden)
        matrix(f"blk.{i}.ffn_down.weight", hidden, intermediate)
    norm("output_norm.weight", hidden)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


class Batch:
    def __init__(self, size):
        self.c = llama.llama_batch_init(size, 0, 1)

    def fill(self, rows):
        """Rows of (token, position, sequence, whether its logits are wanted)."""
        self.c.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            self.c.token[i], self.c.pos[i] = token, position
            self.c.n_seq_id[i], self.c.seq_id[i][0] = 1, sequence
            self.c.logits[i] = wanted
        return self.c


def decode(context, rows, batch, step=512):
    for start in range(0, len(rows), step):
        if llama.llama_decode(context, batch.fill(rows[start:start + step])) != 0:
            raise SystemExit("llama_decode failed")


def measure(model, args, count):
    given = llama.llama_context_default_params()
    prompt = args.prefix + args.question
    given.n_ctx = args.prefix + count * (args.question + args.new + 8) + 256
    given.n_ubatch = 512
    given.n_batch = max(512, count * args.question)
    given.n_seq_max = count
    given.kv_unified = True
    given.n_threads = given.n_threads_batch = args.threads
    context = llama.llama_init_from_model(model, given)
    sampler = llama.llama_sampler_init_greedy()
    batch = Batch(given.n_batch)
    memory = llama.llama_get_memory(context)
    start = time.perf_counter()
    shared = tokens(args.prefix, count + 7)
    decode(context, [(token, i, 0, False) for i, token in enumerate(shared)], batch)
    for sequence in range(1, count):
        llama.llama_memory_seq_cp(memory, 0, sequence, -1, -1)
    own = [
        (token, args.prefix + i, sequence, i == args.question - 1)
        for sequence in range(count)
        for i, token in enumerate(tokens(args.question, 50 + sequence // args.group))
    ]
    decode(context, own, batch, given.n_batch)
    wanted = [i for i, row in enumerate(own) if row[3]]
    sampled = [llama.llama_sampler_sample(sampler, context, i) for i in wanted]
    prefill = time.perf_counter() - start
    start = time.perf_counter()
    for step in range(args.new):
        decode(context, [(token, prompt + step, sequence, True) for sequence, token in enumerate(sampled)], batch)
        sampled = [llama.llama_sampler_sample(sampler, context, i) for i in range(count)]
    seconds = time.perf_counter() - start
    llama.llama_free(context)
    return {"sequences": count, "tokens_per_second": count * args.new / seconds, "prefill_seconds": prefill}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--batch", default="1,8,32")
    for name, default in dict(prefix=380, question=20, group=8, new=32).items():
        parser.add_argument("--" + name, type=int, default=default)
    args = parser.parse_args()
    path = os.path.join(tempfile.gettempdir(), f"mcprl-{args.shape}.gguf")
    if not os.path.exists(path):
        write(path + ".part", **SHAPES[args.shape])
        os.rename(path + ".part", path)
    quiet = llama.llama_log_callback(lambda level, text, data: None)
    llama.llama_log_set(quiet, ctypes.c_void_p(0))
    llama.llama_backend_init()
    model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
    if not model:
        raise SystemExit(f"llama.cpp does not load {path}")
    rows = [measure(model, args, int(count)) for count in args.batch.split(",")]
    information = llama.llama_print_system_info().decode()
    print(json.dumps({"work": "decode", "shape": args.shape, "llama_cpp": llama.__version__, "cpu": information, "decode": rows}))


main()
