"""Decoding as `mcprl-bench --only decode` does it, by llama.cpp: every sequence behind a shared prompt, batched.

    pip install llama-cpp-python gguf numpy        # built here, for this processor
    python llama_peer.py --shape qwen3-0.6b --prefix 380 --question 20 --batch 1,8,32 --new 32

Weights are random, in bf16 or, with `--quantized`, as llama.cpp's own quantizer makes Q4_K_M of them, in a GGUF file of the
shape; the prompt's keys, values and states are shared among the sequences (`llama_memory_seq_cp`). Sampling is greedy and in C, for a vocabulary's worth of Python would be slower than
the model. There are no adapters; `mcprl-bench` and `peer.py` compute theirs. Prints one JSON object.
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

from shapes import SHAPES, UNTIED

BF16 = gguf.GGMLQuantizationType.BF16


def tokens(count, seed):
    return [(i * i * 7 + i * 13 + seed * 2929) % 1021 for i in range(count)]


def write(path, tied, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim,
          vocab_size, linear_num_value_heads=0):
    """A decoder of Qwen3's form, or of Qwen3.5's if it has linear attention."""
    draw = np.random.default_rng(0)
    is_linear = linear_num_value_heads > 0
    out = gguf.GGUFWriter(path, "qwen35" if is_linear else "qwen3")
    out.add_block_count(num_hidden_layers)
    out.add_context_length(40960)
    out.add_embedding_length(hidden_size)
    out.add_feed_forward_length(intermediate_size)
    out.add_head_count(num_attention_heads)
    out.add_head_count_kv(num_key_value_heads)
    out.add_key_length(head_dim)
    out.add_value_length(head_dim)
    out.add_layer_norm_rms_eps(1e-6)
    out.add_rope_freq_base(1e6)
    # The defaults of Transformers: 16 key heads, heads of 128, a convolution over 4 rows, every fourth layer with attention.
    key_heads, width, window, interval = 16, 128, 4, 4
    if is_linear:
        out.add_ssm_conv_kernel(window)
        out.add_ssm_state_size(width)
        out.add_ssm_group_count(key_heads)
        out.add_ssm_time_step_rank(linear_num_value_heads)
        out.add_ssm_inner_size(width * linear_num_value_heads)
        out.add_full_attention_interval(interval)
        out.add_rope_dimension_count(head_dim // 4)
        out.add_rope_dimension_sections([11, 11, 10, 0])
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("qwen2")
    out.add_token_list([f"t{i}" for i in range(vocab_size)])
    out.add_token_types([1] * vocab_size)
    out.add_token_merges(["t0 t1"])  # an empty list would not be written
    out.add_eos_token_id(0)

    def matrix(name, outputs, inputs):
        values = draw.standard_normal((outputs, inputs), dtype=np.float32) * 0.05
        halves = (values.view(np.uint32) >> 16).astype(np.uint16)
        out.add_tensor(name, halves.view(np.uint8), raw_dtype=BF16)

    def vector(name, values):
        out.add_tensor(name, values.astype(np.float32))

    def norm(name, width):
        vector(name, np.ones(width))

    matrix("token_embd.weight", vocab_size, hidden_size)
    if not tied:
        matrix("output.weight", vocab_size, hidden_size)
    for i in range(num_hidden_layers):
        norm(f"blk.{i}.attn_norm.weight", hidden_size)
        if is_linear and (i + 1) % interval:
            values = width * linear_num_value_heads
            channels = 2 * width * key_heads + values
            matrix(f"blk.{i}.attn_qkv.weight", channels, hidden_size)
            matrix(f"blk.{i}.attn_gate.weight", values, hidden_size)
            matrix(f"blk.{i}.ssm_beta.weight", linear_num_value_heads, hidden_size)
            matrix(f"blk.{i}.ssm_alpha.weight", linear_num_value_heads, hidden_size)
            matrix(f"blk.{i}.ssm_out.weight", hidden_size, values)
            vector(f"blk.{i}.ssm_conv1d.weight", draw.standard_normal((channels, window)) * 0.5)
            vector(f"blk.{i}.ssm_a", -draw.uniform(0.02, 2.0, linear_num_value_heads))
            vector(f"blk.{i}.ssm_dt.bias", np.zeros(linear_num_value_heads))
            norm(f"blk.{i}.ssm_norm.weight", width)
        else:
            queries = num_attention_heads * head_dim
            matrix(f"blk.{i}.attn_q.weight", queries * (2 if is_linear else 1), hidden_size)
            matrix(f"blk.{i}.attn_k.weight", num_key_value_heads * head_dim, hidden_size)
            matrix(f"blk.{i}.attn_v.weight", num_key_value_heads * head_dim, hidden_size)
            norm(f"blk.{i}.attn_q_norm.weight", head_dim)
            norm(f"blk.{i}.attn_k_norm.weight", head_dim)
            matrix(f"blk.{i}.attn_output.weight", hidden_size, queries)
        norm(f"blk.{i}.{'post_attention_norm' if is_linear else 'ffn_norm'}.weight", hidden_size)
        matrix(f"blk.{i}.ffn_gate.weight", intermediate_size, hidden_size)
        matrix(f"blk.{i}.ffn_up.weight", intermediate_size, hidden_size)
        matrix(f"blk.{i}.ffn_down.weight", hidden_size, intermediate_size)
    norm("output_norm.weight", hidden_size)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def quantize(path, to):
    given = llama.llama_model_quantize_default_params()
    given.ftype = llama.LLAMA_FTYPE_MOSTLY_Q4_K_M
    if llama.llama_model_quantize(path.encode(), to.encode(), given) != 0:
        raise SystemExit(f"llama.cpp does not quantize {path}")


def made(path, make):
    if not os.path.exists(path):
        make(path + ".part")
        os.rename(path + ".part", path)
    return path


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
    parser.add_argument("--quantized", action="store_true")
    # Llama-cpp-python 0.3.36 crashes on some processors with blocks that it has rearranged.
    parser.add_argument("--plain", action="store_true", help="leave quantized blocks as the file has them")
    for name, default in dict(prefix=380, question=20, group=8, new=32).items():
        parser.add_argument("--" + name, type=int, default=default)
    args = parser.parse_args()
    quiet = llama.llama_log_callback(lambda level, text, data: None)
    llama.llama_log_set(quiet, ctypes.c_void_p(0))
    llama.llama_backend_init()
    name = os.path.join(tempfile.gettempdir(), f"mcprl-{args.shape}")
    path = made(f"{name}.gguf", lambda path: write(path, args.shape not in UNTIED, **SHAPES[args.shape]))
    if args.quantized:
        whole = path
        path = made(f"{name}-q4_k_m.gguf", lambda path: quantize(whole, path))
    given = llama.llama_model_default_params()
    given.use_extra_bufts = not args.plain
    model = llama.llama_model_load_from_file(path.encode(), given)
    if not model:
        raise SystemExit(f"llama.cpp does not load {path}")
    rows = [measure(model, args, int(count)) for count in args.batch.split(",")]
    information = llama.llama_print_system_info().decode()
    print(json.dumps({"work": "decode", "shape": args.shape, "quantized": args.quantized, "plain": args.plain, "llama_cpp": llama.__version__, "cpu": information, "decode": rows}))


main()
