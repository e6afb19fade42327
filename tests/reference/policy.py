"""How the checking scripts load a policy folder: a model, or an adapter on a model."""

import json
import pathlib

import torch
from transformers import AutoModelForCausalLM


def load(folder: pathlib.Path, base: pathlib.Path | None):
    """The model, in float32 with eager attention, and the folder that holds its tokenizer."""
    is_adapter = (folder / "adapter_config.json").is_file()
    if is_adapter and base is None:
        digest = "unknown"
        if (folder / "policy.json").is_file():
            digest = json.loads((folder / "policy.json").read_text())["base"]
        raise SystemExit(f"{folder} is an adapter (of policy {digest}): say where its model is with --base FOLDER")
    model_folder = base if is_adapter else folder
    model = AutoModelForCausalLM.from_pretrained(
        model_folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    )
    if is_adapter:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, folder)
        adapted = [name for name, _ in model.named_modules() if name.endswith("lora_A.default")]
        print(f"adapter on {len(adapted)} linear layers")
    return model.eval(), model_folder


@torch.no_grad()
def logprobs(model, tokens):
    """Natural log-probability of every token but the first, given those before it."""
    ids = torch.tensor(tokens)
    logits = model(ids.unsqueeze(0)).logits[0, :-1]
    return logits.log_softmax(-1).gather(1, ids[1:, None])[:, 0]
