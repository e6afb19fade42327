"""Reference numbers for the families beside Qwen3: tiny random models, their LoRA adapters, outputs and gradients.

As `model_parity.py`, on which it builds: Transformers runs the model (eager attention, one sequence at a time), PEFT
the adapter, autograd the gradients; here in float64. Per family NAME writes under fixtures/families/NAME/:

    config.json, model.safetensors      hidden 32, 2 layers, 4 heads of 8, 2 key-value heads, vocabulary 64; `yarn` in
                                        two shards with their index, and with the spelling of Transformers 4
    adapter/                            rank 2, alpha 4, every linear layer of attention and feed-forward
    reference.safetensors               tokens.{i}; base.logits.{i}; adapted.logits.{i}, adapted.logprobs.{i},
                                        adapted.gradient.NAME; for `moe`, `gemma3`, `lfm2` and `qwen3_5` base.logprobs.{i} and
                                        base.gradient.NAME too
    long.safetensors                    `phi4-mini`: tokens and logits of a sequence longer than the original context

`qwen3_5` has 4 layers, and sequences that branch near the boundaries of its chunks of 64 tokens.

Weights hold values of bfloat16 and are stored so, `llama` as float32. Names on the command line write only these families.
"""

import contextlib
import copy
import json
import pathlib
import shutil
import sys

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    Lfm2Config,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from model_parity import measure

FAMILIES = pathlib.Path(__file__).parent / "fixtures" / "families"
VOCABULARY = 64
LENGTHS = [23, 8, 37, 2]
SHARED = 5
SIZES = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    bos_token_id=None,
    eos_token_id=1,
    pad_token_id=0,
    attn_implementation="eager",
    dtype="float32",
)
SEPARATE = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
FUSED = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.5, 2.5],
    "long_factor": [2.0, 3.0, 5.0],
}
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16}

# A window that most sequences exceed.
WINDOW = 9

CASES = {
    "gemma3": (
        Gemma3TextConfig(
            **SIZES | dict(num_hidden_layers=3),
            head_dim=16,
            query_pre_attn_scalar=24,
            sliding_window=WINDOW,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            rope_parameters={
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        ),
        SEPARATE,
    ),
    "lfm2": (
        Lfm2Config(
            # PyTorch gives the input row of a padding token no gradient.
            **SIZES | dict(num_hidden_layers=3, intermediate_size=70, pad_token_id=None),
            block_multiple_of=16,
            layer_types=["conv", "full_attention", "conv"],
            rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        ),
        ["q_proj", "k_proj", "v_proj", "in_proj", "out_proj", "w1", "w2", "w3"],
    ),
    "mistral-window": (
        MistralConfig(**SIZES, rope_parameters=PLAIN, head_dim=16, sliding_window=WINDOW),
        SEPARATE,
    ),
    "phi3-window": (Phi3Config(**SIZES, rope_parameters=PLAIN, sliding_window=WINDOW), FUSED),
    "qwen2-window": (
        Qwen2Config(
            **SIZES,
            rope_parameters=PLAIN,
            tie_word_embeddings=True,
            use_sliding_window=True,
            sliding_window=WINDOW,
            max_window_layers=1,
        ),
        SEPARATE,
    ),
    "llama": (LlamaConfig(**SIZES, rope_parameters=LLAMA3, head_dim=8, attention_bias=True, mlp_bias=True), SEPARATE),
    "mistral": (MistralConfig(**SIZES, rope_parameters=PLAIN, head_dim=16, sliding_window=None), SEPARATE),
    "qwen2": (Qwen2Config(**SIZES, rope_parameters=PLAIN, tie_word_embeddings=True), SEPARATE),
    "phi3": (Phi3Config(**SIZES, rope_parameters=PLAIN, sliding_window=48), FUSED),
    "phi4-mini": (
        Phi3Config(
            **SIZES | dict(max_position_embeddings=256),
            rope_parameters=LONGROPE,
            original_max_position_embeddings=64,
            tie_word_embeddings=True,
        ),
        FUSED,
    ),
    "yarn": (Qwen3Config(**SIZES, rope_parameters=YARN, head_dim=8, tie_word_embeddings=True), SEPARATE),
    "moe": (
        Qwen3MoeConfig(
            **SIZES,
            rope_parameters=PLAIN,
            head_dim=8,
            moe_intermediate_size=16,
            num_experts=6,
            num_experts_per_tok=2,
            norm_topk_prob=True,
            experts_implementation="eager",
        ),
        ATTENTION,
    ),
}


DELTA = ["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"]
CASES["qwen3_5"] = (
    Qwen3_5TextConfig(
        # PyTorch gives the input row of a padding token no gradient.
        **SIZES | dict(num_hidden_layers=4, max_position_embeddings=256, pad_token_id=None),
        head_dim=16,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 1000.0,
            "partial_rotary_factor": 0.25,
            "mrope_section": [1, 1, 0],
            "mrope_interleaved": True,
        },
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        tie_word_embeddings=True,
    ),
    SEPARATE + DELTA,
)
# These multiply by 1 more than the weights of their norms.
ADD_ONE = ["gemma3", "qwen3_5"]
# Gradients of all weights too.
WHOLE = ["moe", "gemma3", "lfm2", "qwen3_5"]


def branching(generator):
    """Sequences that share 100, 65, 64, 63 or 2 tokens with the first, and short ones."""
    draw = lambda length: torch.randint(VOCABULARY, (length,), generator=generator)
    stem = draw(130)
    branches = [(100, 40), (65, 3), (64, 66), (63, 2), (63, 1), (2, 61), (2, 2)]
    return [stem] + [torch.cat([stem[:shared], draw(own)]) for shared, own in branches] + [draw(3), draw(1)]


def fill_delta(parameters, generator):
    """Gates between slow and fast, and norms about 1."""
    with torch.no_grad():
        for name, parameter in parameters:
            if name.endswith("A_log"):
                parameter.copy_(torch.empty(parameter.shape).uniform_(0.02, 2.0, generator=generator).log())
            elif name.endswith("linear_attn.norm.weight"):
                parameter.add_(1.0)


def fill(parameters, generator, norms=1.0):
    """Draws matrices with deviation 1 / sqrt(inputs), norms about `norms`, biases about 0."""
    with torch.no_grad():
        for name, parameter in parameters:
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:
                parameter.copy_((0.0 if name.endswith("bias") else norms) + 0.3 * noise)
            else:
                parameter.copy_(noise / parameter.shape[-1] ** 0.5)


def spelled_as_by_transformers_4(path):
    """Moves the rotary embedding's table to where earlier releases wrote it."""
    config = json.loads(path.read_text())
    table = config.pop("rope_parameters")
    config["rope_theta"] = table.pop("rope_theta")
    config["rope_scaling"] = table
    path.write_text(json.dumps(config, indent=2) + "\n")


@contextlib.contextmanager
def float64_throughout():
    """Makes the places where a model's code says float32 mean float64, so that the reference adds no rounding."""
    float32, to_float = torch.float32, torch.Tensor.float
    torch.float32, torch.Tensor.float = torch.float64, torch.Tensor.double
    try:
        yield
    finally:
        torch.float32, torch.Tensor.float = float32, to_float


def measure_exactly(model, sequences, name):
    model.double()
    with float64_throughout():
        found = measure(model, sequences, name)
    return {key: tensor.float() for key, tensor in found.items()}


def stored(folder):
    return {name: tensor for path in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(path).items()}


def expert_gradients(model):
    """Gradients under the names of the file: Transformers holds the experts of a layer in one tensor."""
    for name, parameter in model.named_parameters():
        prefix, dot, last = name.rpartition(".")
        if not prefix.endswith("mlp.experts"):
            yield name, parameter.grad
            continue
        for index, gradient in enumerate(parameter.grad):
            if last == "gate_up_proj":
                gate, up = gradient.chunk(2)
                yield f"{prefix}.{index}.gate_proj.weight", gate
                yield f"{prefix}.{index}.up_proj.weight", up
            else:
                yield f"{prefix}.{index}.down_proj.weight", gradient


def measure_long(model, folder):
    """Logits of a sequence that is longer than the original context of LongRoPE: Transformers takes the long factors."""
    tokens = torch.randint(VOCABULARY, (100,), generator=torch.Generator().manual_seed(9))
    logits = measure_exactly(copy.deepcopy(model), [tokens], "base")["base.logits.0"]
    save_file({"tokens": tokens, "logits": logits.contiguous()}, folder / "long.safetensors")


def make(name, config, targets):
    folder = FAMILIES / name
    shutil.rmtree(folder, ignore_errors=True)
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    model = AutoModelForCausalLM.from_config(config).float().eval()
    fill(model.named_parameters(), generator, 0.0 if name in ADD_ONE else 1.0)
    fill_delta(model.named_parameters(), generator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16().float())
    small = copy.deepcopy(model) if name == "llama" else copy.deepcopy(model).bfloat16()
    small.save_pretrained(folder, max_shard_size="12KB" if name == "yarn" else "1GB")
    (folder / "generation_config.json").unlink(missing_ok=True)
    if name == "yarn":
        spelled_as_by_transformers_4(folder / "config.json")

    if name == "qwen3_5":
        sequences = branching(generator)
    else:
        sequences = [torch.randint(VOCABULARY, (length,), generator=generator) for length in LENGTHS]
        sequences[1][:SHARED] = sequences[0][:SHARED]
    found = {f"tokens.{index}": tokens for index, tokens in enumerate(sequences)}
    if name == "phi4-mini":
        measure_long(model, folder)
    found |= measure_exactly(model, sequences, "base")
    if name in WHOLE:
        known = stored(folder)
        for tensor, gradient in expert_gradients(model):
            assert tensor in known, tensor
            found[f"base.gradient.{tensor}"] = gradient.float()
        assert len(known) == sum(key.startswith("base.gradient.") for key in found)
    else:
        found = {key: value for key, value in found.items() if not key.startswith("base.logprobs")}

    lora = LoraConfig(r=2, lora_alpha=4, target_modules=targets, task_type="CAUSAL_LM")
    model = get_peft_model(model, lora).eval()
    adapter = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    fill(adapter, generator)
    model.save_pretrained(folder / "adapter")
    (folder / "adapter" / "README.md").unlink(missing_ok=True)
    path = folder / "adapter" / "adapter_config.json"
    written = json.loads(path.read_text())
    written["target_modules"].sort()
    written["base_model_name_or_path"] = name
    path.write_text(json.dumps(written, indent=2) + "\n")
    found |= measure_exactly(model, sequences, "adapted")
    for parameter_name, parameter in adapter:
        found[f"adapted.gradient.{parameter_name.replace('.default', '')}"] = parameter.grad.float()
    saved = load_file(folder / "adapter" / "adapter_model.safetensors")
    gradients = {key.removeprefix("adapted.gradient.") for key in found if key.startswith("adapted.gradient.")}
    assert gradients == set(saved), "every stored adapter matrix has a gradient under its own name"
    save_file({key: tensor.contiguous() for key, tensor in found.items()}, folder / "reference.safetensors")
    for which in ("base", "adapted"):
        print(name, which, f"loss {found[f'{which}.loss'].item():.4f}")
    assert all(found[key].abs().max() > 0 for key in found if ".gradient." in key), "no gradient is zero"


if __name__ == "__main__":
    for name, (config, targets) in CASES.items():
        if name in (sys.argv[1:] or CASES):
            make(name, config, targets)
