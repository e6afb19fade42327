"""Logits, gradients and one GRPO step of `mcprl`, held against PyTorch on the same device.

    python parity.py FOLDER --bench PATH --engine cuda:0 --device cuda:0 [--small]
    python parity.py FOLDER --bench PATH --model MODEL --texts FILE ... [--length 700]

Makes a random Qwen3 with a LoRA adapter in FOLDER (Transformers, PEFT), lets `mcprl-bench --parity` compute on it in f32
and in bf16, and computes the same with Transformers, PEFT and autograd. The reference is PyTorch in f32, TF32 off. In f32
both should agree to rounding; in bf16 ours should be as near the reference as PyTorch's own bf16. Prints one JSON object.

MODEL is a folder of a published model instead, and a sequence is the first tokens of a text. The adapter is fresh (B = 0), as
at the beginning of training, so the logits are the model's own. `largest` is the largest difference of a logit over the
largest logit, `top` the share of positions with the same top token.

A step is one of AdamW on the DAPO loss (Yu et al. 2025, §3.3), with ratios on both sides of the clip.
"""

import argparse
import json
import pathlib
import subprocess
import sys

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE / "reference"), str(HERE.parent.parent / "tests/reference")]
from model_parity import LINEARS, fill  # noqa: E402

# As in benches/engine/src/parity.rs.
RATE, MAX_NORM, BETAS = 1e-3, 1.0, (0.9, 0.95)
LOW, HIGH = 0.8, 1.28

# Largest error in f32: ‖ours − reference‖ / ‖reference‖, over all values together.
F32 = {"logits": 1e-4, "gradients": 1e-3, "update": 2e-2}
# In bf16 ours may be this many times as far from the reference as PyTorch's own bf16.
BF16 = 2.0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--bench", required=True, help="the binary `mcprl-bench`")
    parser.add_argument("--engine", default="cpu", help="the device as mcprl names it")
    parser.add_argument("--device", default="cpu", help="the device as PyTorch names it")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--texts", type=pathlib.Path, nargs="+", default=[])
    parser.add_argument("--length", type=int, default=700, help="tokens of each text")
    return parser.parse_args()


def make(args):
    """Writes the model, the adapter and the step's inputs."""
    generator = torch.Generator().manual_seed(5)
    sizes = dict(hidden_size=1024, intermediate_size=3072, num_hidden_layers=4, num_attention_heads=16,
                 num_key_value_heads=8, head_dim=128, vocab_size=4096)
    count, length, prompt = 8, 640, 256
    if args.small:
        sizes = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=2, head_dim=32, vocab_size=160)
        count, length, prompt = 4, 48, 16
    folder = args.folder / "model"
    if folder.is_symlink():
        folder.unlink()
    if args.model:
        folder.symlink_to(args.model.resolve())
        model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, attn_implementation="eager")
        config = model.config
    else:
        config = Qwen3Config(**sizes, max_position_embeddings=1024, rope_theta=1e6, rms_norm_eps=1e-6,
                             tie_word_embeddings=True, bos_token_id=None, eos_token_id=None, pad_token_id=None)
        model = Qwen3ForCausalLM(config).float()
        fill(model.named_parameters(), generator)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(parameter.bfloat16().float())  # In bf16 the weights are the same ones.
        model.save_pretrained(folder)
    adapted = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules=LINEARS, task_type="CAUSAL_LM"))
    fill([(name, p) for name, p in adapted.named_parameters() if p.requires_grad], generator)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.mul_(0.0 if args.model else 0.05)
    adapted.save_pretrained(args.folder / "adapter")

    if args.model:
        tokenizer = AutoTokenizer.from_pretrained(args.model)
        begin = [] if config.bos_token_id is None else [config.bos_token_id]
        encoded = [begin + tokenizer.encode(path.read_text(), add_special_tokens=False) for path in args.texts]
        if not encoded or any(len(ids) < args.length for ids in encoded):
            sys.exit(f"--texts: every text needs {args.length} tokens")
        tokens = torch.tensor([ids[: args.length] for ids in encoded])
    else:
        tokens = torch.randint(config.vocab_size, (count, length), generator=generator)
        tokens[:, :prompt] = tokens[0, :prompt]
    adapted.to(args.device)
    with torch.no_grad():
        now = torch.cat([logprobs(adapted(row).logits, row, prompt).cpu() for row in tokens.to(args.device).split(1)])
    step = {
        "tokens": tokens,
        "old": now + 0.3 * torch.randn(now.shape, generator=generator),
        "advantages": torch.randn(count, generator=generator),
    }
    save_file(step, args.folder / "step.safetensors")
    return config, step


def logprobs(logits, tokens, prompt):
    """Of every token after the prompt: `[sequences, length − prompt]`."""
    return logits[:, prompt - 1 : -1].float().log_softmax(-1).gather(2, tokens[:, prompt:, None])[..., 0]


def names(config):
    """The adapter's matrices in the order of mcprl's `gradient.{i}`."""
    part = {name: "mlp" if name in LINEARS[4:] else "self_attn" for name in LINEARS}
    return [f"base_model.model.model.layers.{layer}.{part[name]}.{name}.lora_{matrix}.default.weight"
            for layer in range(config.num_hidden_layers) for name in LINEARS for matrix in "AB"]


def by_pytorch(args, config, step, dtype):
    """Logits, gradients and updates by autograd, on the CPU."""
    model = AutoModelForCausalLM.from_pretrained(args.folder / "model", dtype=dtype, attn_implementation="eager")
    model = PeftModel.from_pretrained(model, args.folder / "adapter", is_trainable=True).to(args.device)
    parameters = dict(model.named_parameters())
    parameters = [parameters[name] for name in names(config)]
    assert all(parameter.dtype == torch.float32 for parameter in parameters), "PEFT holds the adapter in f32"
    before = [parameter.detach().clone() for parameter in parameters]
    tokens, old, advantages = (step[name].to(args.device) for name in ["tokens", "old", "advantages"])
    optimizer = torch.optim.AdamW(parameters, lr=RATE, betas=BETAS, eps=1e-8, weight_decay=0.0)
    all_logits = []
    # One sequence at a time: logits over a large vocabulary take gigabytes.
    for row, before_step, advantage in zip(tokens.split(1), old.split(1), advantages):
        logits = model(row).logits
        ratio = (logprobs(logits, row, row.shape[1] - old.shape[1]) - before_step).exp()
        terms = torch.min(ratio * advantage, ratio.clamp(LOW, HIGH) * advantage)
        (-terms.sum() / old.numel()).backward()
        all_logits.append(logits.detach()[0].float().cpu())
    gradients = [parameter.grad.clone() for parameter in parameters]
    torch.nn.utils.clip_grad_norm_(parameters, MAX_NORM)
    optimizer.step()
    updates = [after.detach() - before for after, before in zip(parameters, before)]
    return {"logits": all_logits, "gradients": cpu(gradients), "update": cpu(updates)}, before


def by_us(args, config, before, dtype):
    command = [args.bench, "--device", args.engine, "--dtype", dtype, "--parity", str(args.folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found = load_file(args.folder / "ours.safetensors")
    count = len(names(config))
    updates = [found[f"parameter.{i}"] - before[i].cpu() for i in range(count)]
    gradients = [found[f"gradient.{i}"] for i in range(count)]
    return {"logits": list(found["logits"]), "gradients": cpu(gradients), "update": cpu(updates)}


def cpu(tensors):
    return [tensor.detach().float().cpu() for tensor in tensors]


def errors(found, reference):
    """‖found − reference‖ / ‖reference‖, over all values together; of logits also the largest, and the top tokens."""
    norm = lambda tensors: sum(tensor.double().square().sum().item() for tensor in tensors) ** 0.5
    pairs = {name: list(zip(found[name], tensors)) for name, tensors in reference.items()}
    result = {name: norm(a - b for a, b in pairs[name]) / norm(reference[name]) for name in reference}
    most = max(b.abs().max().item() for b in reference["logits"])
    result["largest"] = max((a - b).abs().max().item() for a, b in pairs["logits"]) / most
    result["top"] = torch.cat([a.argmax(-1) == b.argmax(-1) for a, b in pairs["logits"]]).double().mean().item()
    return result


def main():
    args = arguments()
    args.folder.mkdir(parents=True, exist_ok=True)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    config, step = make(args)
    reference, before = by_pytorch(args, config, step, torch.float32)
    result = {
        "f32": errors(by_us(args, config, before, "f32"), reference),
        "bf16": errors(by_us(args, config, before, "bf16"), reference),
        "bf16 of PyTorch": errors(by_pytorch(args, config, step, torch.bfloat16)[0], reference),
        "positions": step["tokens"].numel(),
        "torch": torch.__version__,
    }
    wrong = [f"f32 {name}" for name, most in F32.items() if not result["f32"][name] <= most]
    wrong += [f"bf16 {name}" for name in F32 if not result["bf16"][name] <= BF16 * result["bf16 of PyTorch"][name]]
    print(json.dumps(result | {"wrong": wrong}))


if __name__ == "__main__":
    main()
