"""The work of `mcprl-bench`, done by TRL, PEFT and Transformers on PyTorch.

    python peer.py update ...   one GRPO step: TRL's own loss, PEFT's adapters, torch's AdamW
    python peer.py dense ...    one supervised step on every sequence: Transformers and PEFT alone
    python peer.py decode ...   `generate` with sampling, all prompts at once

Weights are random, of the shape asked for; token ids are those of `mcprl-bench`. Prints one JSON object. The peak of
memory is the process's own (VmHWM), or the device's, taken over the measured work alone.
"""

import argparse
import collections
import contextlib
import json
import time
import types

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Qwen3_5TextConfig, Qwen3Config

from shapes import SHAPES, UNTIED

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=["update", "dense", "decode"])
    parser.add_argument("--shape", choices=SHAPES, default="demo")
    parser.add_argument("--device", default="cpu", help="as PyTorch names it: cpu, cuda:0")
    parser.add_argument("--dtype", choices=DTYPES, default="f32")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    for name, default in dict(prefix=100, question=20, episode=100, trained_every=2, group=8, groups=4, rank=16,
                              new=200, runs=5, micro=0).items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=default)
    parser.add_argument("--batch", default="1,8,32,128")
    parser.add_argument("--checkpointing", action="store_true", help="recompute activations, as TRL does by default")
    return parser.parse_args()


def tokens(count, seed):
    return [(i * i * 7 + i * 13 + seed * 2929) % 1021 for i in range(count)]


def on_device(args):
    return args.device != "cpu"


def synchronize(args):
    if on_device(args):
        torch.cuda.synchronize(args.device)


def peak_mib(args, forget=False):
    if on_device(args):
        if forget:
            torch.cuda.reset_peak_memory_stats(args.device)
        return torch.cuda.max_memory_allocated(args.device) / 2**20
    if forget:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024


def build(args, train):
    torch.manual_seed(0)
    rope = {"rope_type": "default", "rope_theta": 1e6}
    kind = Qwen3Config
    if args.shape.startswith("qwen3.5"):
        kind, rope = Qwen3_5TextConfig, rope | {"partial_rotary_factor": 0.25}
    config = kind(**SHAPES[args.shape], tie_word_embeddings=args.shape not in UNTIED, rms_norm_eps=1e-6, rope_parameters=rope,
                  max_position_embeddings=40960, attn_implementation="sdpa")
    dtype = DTYPES[args.dtype]
    torch.set_default_dtype(dtype)
    with torch.device(args.device):
        model = AutoModelForCausalLM.from_config(config).to(dtype)
    torch.set_default_dtype(torch.float32)
    model = get_peft_model(model, LoraConfig(r=args.rank, lora_alpha=2 * args.rank, target_modules="all-linear"))
    model.to(args.device)
    model.train(train)
    if train and args.checkpointing:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def sequences(args):
    rows = []
    for index in range(args.groups * args.group):
        parts = [tokens(args.prefix, 0), tokens(args.question, 50 + index // args.group), tokens(args.episode, 100 + index)]
        rows.append(sum(parts, []))
    return torch.tensor(rows, device=args.device)


def trained_mask(args, count):
    at = torch.arange(args.episode, device=args.device)
    return (at % args.trained_every == 0).long().expand(count, -1)


def grpo_loss(model, args, ids):
    """TRL's loss with TRL's log-probabilities, both unmodified."""
    from trl import GRPOTrainer

    stand_in = types.SimpleNamespace(
        loss_type="dapo", importance_sampling_level="token", epsilon_low=0.2, epsilon_high=0.28, beta=0.0,
        max_completion_length=args.episode, temperature=1.0, model=model,
        args=types.SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
        accelerator=types.SimpleNamespace(num_processes=1, is_main_process=True, autocast=contextlib.nullcontext, gather=lambda x: x, reduce=lambda x, reduction: x,
                                          sync_gradients=False),
        current_gradient_accumulation_steps=1, top_entropy_quantile=1.0, off_policy_mask_threshold=None,
        aux_loss_enabled=False, use_vllm=False, use_adaptive_entropy=False, _entropy_bonus_enabled=False,
        model_kwarg_keys={"logits_to_keep"}, is_fsdp_enabled=False,
        _metrics={"train": collections.defaultdict(list)},
    )
    stand_in._get_per_token_logps_and_entropies = types.MethodType(
        GRPOTrainer._get_per_token_logps_and_entropies, stand_in)
    prompt = args.prefix + args.question
    mask = trained_mask(args, len(ids))
    inputs = {
        "prompt_ids": ids[:, :prompt], "prompt_mask": torch.ones_like(ids[:, :prompt]),
        "completion_ids": ids[:, prompt:], "completion_mask": torch.ones_like(mask), "tool_mask": mask,
        "advantages": torch.linspace(-1, 1, len(ids), device=args.device), "num_items_in_batch": mask.sum(),
    }
    return GRPOTrainer._compute_loss(stand_in, model, inputs)


def dense_loss(model, args, ids):
    prompt = args.prefix + args.question
    labels = ids.clone()
    labels[:, :prompt] = -100
    labels[:, prompt:][trained_mask(args, len(ids)) == 0] = -100
    return model(input_ids=ids, labels=labels).loss


def train(args, loss_of):
    model = build(args, True)
    if loss_of is grpo_loss:
        from trl.trainer import add_fused_lm_head

        # As GRPOTrainer patches its model: log-probabilities in chunks, never all logits.
        add_fused_lm_head(model.get_base_model(), temperature=1.0, cast_lm_head_to_fp32=False,
                          outputs=("log_probs", "entropy"))
    ids = sequences(args)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    micro = args.micro or len(ids)

    def step():
        for start in range(0, len(ids), micro):
            loss_of(model, args, ids[start:start + micro]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    peak_mib(args, forget=True)
    seconds = []
    for _ in range(args.runs):
        synchronize(args)
        start = time.perf_counter()
        step()
        synchronize(args)
        seconds.append(time.perf_counter() - start)
    best = min(seconds)
    return {"seconds": best, "tokens_per_second": ids.numel() / best, "peak_mib": peak_mib(args)}


def decode(args):
    model = build(args, False)
    rows = []
    for count in map(int, args.batch.split(",")):
        ids = torch.tensor([tokens(args.prefix, count + 7) + tokens(args.question, 50 + i // args.group)
                            for i in range(count)], device=args.device)
        peak_mib(args, forget=True)

        def run(new):
            synchronize(args)
            start = time.perf_counter()
            with torch.no_grad():
                model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=new,
                               min_new_tokens=new, do_sample=True, temperature=1.0, top_k=0, pad_token_id=0,
                               eos_token_id=None)
            synchronize(args)
            return time.perf_counter() - start

        run(1)  # What is loaded or chosen on first use is not timed.
        first = run(1)
        rest = run(args.new + 1) - first
        rows.append({"sequences": count, "tokens_per_second": count * args.new / rest, "prefill_seconds": first,
                     "peak_mib": peak_mib(args)})
    return rows


if __name__ == "__main__":
    args = arguments()
    torch.set_num_threads(args.threads)
    result = {"work": args.work, "shape": args.shape, "dtype": args.dtype, "device": args.device, "threads": args.threads,
              "torch": torch.__version__}
    if args.work == "decode":
        result["decode"] = decode(args)
    else:
        result |= train(args, grpo_loss if args.work == "update" else dense_loss)
    print(json.dumps(result))
