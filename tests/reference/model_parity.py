"""Reference numbers for `crates/mcprl-engine/src/model` and `crates/mcprl-engine/src`: a tiny Qwen3, its LoRA adapter, their outputs and gradients.

Transformers makes and runs the model (float32, eager attention, one sequence at a time, so no padding), PEFT the
adapter, autograd the gradients. Weights are drawn far from their usual initialisation, norms included, so that an
error anywhere is an error in the logits. Writes under fixtures/:

    qwen3-tiny/        config.json, model.safetensors: hidden 64, 2 layers, 4 heads, 2 key-value heads of 32,
                       intermediate 96, vocabulary 160, tied embeddings
    qwen3-tiny-lora/   adapter_config.json, adapter_model.safetensors: rank 4, alpha 8, every linear layer,
                       neither A nor B zero
    qwen3_tiny.safetensors, with i = 0 .. 3 the sequence, T its length (23, 8, 37, 2), V = 160:

        tokens.{i}              int64   [T]
        base.logits.{i}         float32 [T, V]    row t is what follows tokens[..= t]
        base.logprobs.{i}       float32 [T - 1]   natural log p of token t + 1, at index t
        base.loss               float32 [1]       -mean of all base.logprobs, over all sequences together
        base.gradient.NAME      the shape of NAME in qwen3-tiny/model.safetensors: d base.loss / d NAME
        adapted.logits.{i}, adapted.logprobs.{i}, adapted.loss         the same with the adapter
        adapted.gradient.NAME   the shape of NAME in qwen3-tiny-lora/adapter_model.safetensors

Sequences 0 and 1 begin with the same 5 tokens: what a token tree would share.
"""

import json
import pathlib

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
VOCABULARY = 160
LENGTHS = [23, 8, 37, 2]
SHARED = 5
LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def fill(parameters, generator):
    """Draws matrices with deviation 1.5 / sqrt(inputs), so that signals neither vanish nor explode, norms about 1."""
    with torch.no_grad():
        for _, parameter in parameters:
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:
                parameter.copy_(1 + 0.3 * noise)
            else:
                parameter.copy_(1.5 * noise / parameter.shape[1] ** 0.5)


def measure(model, sequences, name):
    """Logits, log-probabilities and loss, the gradient of the loss left in the parameters."""
    model.zero_grad()
    found, all_logprobs = {}, []
    for index, tokens in enumerate(sequences):
        logits = model(tokens.unsqueeze(0)).logits[0]
        logprobs = logits[:-1].log_softmax(-1).gather(1, tokens[1:, None])[:, 0]
        all_logprobs.append(logprobs)
        found[f"{name}.logits.{index}"] = logits.detach()
        found[f"{name}.logprobs.{index}"] = logprobs.detach()
    loss = -torch.cat(all_logprobs).mean()
    loss.backward()
    found[f"{name}.loss"] = loss.detach().reshape(1)
    return found


def main():
    generator = torch.Generator().manual_seed(23)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=128,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
        attn_implementation="eager",
        dtype="float32",
    )
    model = Qwen3ForCausalLM(config).eval()
    fill(model.named_parameters(), generator)
    model.save_pretrained(FIXTURES / "qwen3-tiny")
    (FIXTURES / "qwen3-tiny" / "generation_config.json").unlink(missing_ok=True)

    sequences = [torch.randint(VOCABULARY, (length,), generator=generator) for length in LENGTHS]
    sequences[1][:SHARED] = sequences[0][:SHARED]
    found = {f"tokens.{index}": tokens for index, tokens in enumerate(sequences)}

    found |= measure(model, sequences, "base")
    stored = load_file(FIXTURES / "qwen3-tiny" / "model.safetensors")
    for name, parameter in model.named_parameters():
        if name in stored:
            found[f"base.gradient.{name}"] = parameter.grad.clone()

    lora = LoraConfig(r=4, lora_alpha=8, target_modules=LINEARS, task_type="CAUSAL_LM")
    model = get_peft_model(model, lora).eval()
    adapter = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    fill(adapter, generator)
    model.save_pretrained(FIXTURES / "qwen3-tiny-lora")
    (FIXTURES / "qwen3-tiny-lora" / "README.md").unlink(missing_ok=True)
    # PEFT keeps the targets in a set; sorted, the file is the same each time.
    path = FIXTURES / "qwen3-tiny-lora" / "adapter_config.json"
    written = json.loads(path.read_text())
    written["target_modules"].sort()
    path.write_text(json.dumps(written, indent=2) + "\n")
    found |= measure(model, sequences, "adapted")
    for name, parameter in adapter:
        found[f"adapted.gradient.{name.replace('.default', '')}"] = parameter.grad.clone()

    stored = load_file(FIXTURES / "qwen3-tiny-lora" / "adapter_model.safetensors")
    gradients = {name.removeprefix("adapted.gradient.") for name in found if name.startswith("adapted.gradient.")}
    assert gradients == set(stored), "every stored adapter matrix has a gradient under its own name"
    assert all(found[name].abs().max() > 0 for name in found if ".gradient." in name), "no gradient is zero"
    save_file({name: tensor.contiguous() for name, tensor in found.items()}, FIXTURES / "qwen3_tiny.safetensors")
    for which in ("base", "adapted"):
        logits = found[f"{which}.logits.0"]
        print(f"{which}: loss {found[f'{which}.loss'].item():.4f}, logits within ±{logits.abs().max():.2f}")


if __name__ == "__main__":
    main()
