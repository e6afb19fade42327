"""Reference numbers for `crates/mcprl-engine/src/model/lora`: what PEFT makes of patterns, and its merged weights.

Puts an adapter on fixtures/qwen3-tiny whose targets are a regular expression, with a rank and an alpha of their own for
some modules, stabilised by rank; draws A and B; merges it with `merge_and_unload`. Writes under fixtures/:

    qwen3-tiny-lora-patterns/   adapter_config.json, adapter_model.safetensors
                                merged.safetensors: the weights that the merge changed, by the base's names
"""

import json
import pathlib

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
BASE, OUT = FIXTURES / "qwen3-tiny", FIXTURES / "qwen3-tiny-lora-patterns"


def main():
    generator = torch.Generator().manual_seed(41)
    model = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
    config = LoraConfig(
        r=2,
        lora_alpha=6,
        target_modules=r"model\.layers\.(0\.self_attn\.[qo]|1\.mlp\.down)_proj",
        rank_pattern={"q_proj": 3},
        alpha_pattern={r"layers\.1\.mlp\.down_proj": 5},
        use_rslora=True,
        lora_dropout=0.125,
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(model, config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / parameter.shape[1] ** 0.5)
    model.save_pretrained(OUT)
    (OUT / "README.md").unlink(missing_ok=True)
    path = OUT / "adapter_config.json"
    # PEFT writes where the base lay; the file is to be the same wherever it is made.
    written = json.loads(path.read_text()) | {"base_model_name_or_path": None}
    path.write_text(json.dumps(written, indent=2) + "\n")

    plain, merged = load_file(BASE / "model.safetensors"), model.merge_and_unload().state_dict()
    changed = {name: merged[name].contiguous() for name in plain if not torch.equal(plain[name], merged[name])}
    save_file(changed, OUT / "merged.safetensors")
    print({name: tuple(tensor.shape) for name, tensor in changed.items()})


if __name__ == "__main__":
    main()
