"""How far Transformers itself is from the reference in float64 where it computes in bfloat16.

Loads every family of `fixtures/` in bfloat16 (eager attention, one sequence at a time; PEFT's adapters stay in float32)
and prints the norm of the error relative to the norm of the reference: of the logits at every position, and of the
gradients of all adapters, the loss taken in float32. `crates/mcprl-engine/src/parity/rounded.rs` asserts the same of our decoder. Writes nothing.
"""

import pathlib
from types import SimpleNamespace

import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from model_parity import measure

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
CASES = {"qwen3": (FIXTURES / "qwen3-tiny", FIXTURES / "qwen3-tiny-lora", FIXTURES / "qwen3_tiny.safetensors")}
for folder in sorted((FIXTURES / "families").iterdir()):
    CASES[folder.name] = (folder, folder / "adapter", folder / "reference.safetensors")


def relative(pairs):
    off = sum((ours.double() - theirs.double()).square().sum() for ours, theirs in pairs)
    return (off / sum(theirs.double().square().sum() for _, theirs in pairs)).sqrt().item()


class Widened:
    """A model whose logits come in float32, as trainers take them."""

    def __init__(self, model):
        self.model = model
        self.zero_grad = model.zero_grad

    def __call__(self, tokens):
        return SimpleNamespace(logits=self.model(tokens).logits.float())


def main():
    for name, (folder, adapter, numbers) in CASES.items():
        reference = load_file(numbers)
        sequences = [reference[f"tokens.{i}"].long() for i in range(100) if f"tokens.{i}" in reference]
        load = lambda: AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="eager")
        adapted = PeftModel.from_pretrained(load(), adapter, is_trainable=True)
        for which, model in [("base", load()), ("adapted", adapted)]:
            found = measure(Widened(model.eval()), sequences, which)
            keys = [key for key in found if key.startswith(f"{which}.logits.")]
            text = f"{name} {which}: logits {relative([(found[key], reference[key]) for key in keys]):.4f}"
            if which == "adapted":
                trained = [(key, parameter) for key, parameter in model.named_parameters() if parameter.requires_grad]
                names = [f"adapted.gradient.{key.replace('.default', '')}" for key, _ in trained]
                pairs = [(parameter.grad, reference[key]) for key, (_, parameter) in zip(names, trained)]
                text += f", gradients {relative(pairs):.4f}"
            print(text)


if __name__ == "__main__":
    main()
