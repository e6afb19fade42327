"""Is a policy folder of `mcprl` what Transformers (and PEFT) take it for?

    check_policy.py FOLDER [--base FOLDER] [--tools TOOLS.parquet] [--task TEXT]

Loads the model, and the adapter where FOLDER is one; loads the tokenizer; renders tools and task with the folder's
chat template; checks that every tensor of the files was used and that none was missing; writes what the policy
answers, greedily. TOOLS is the tools.parquet of a `discover`.
"""

import argparse
import json
import pathlib

import polars
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

import policy

EXAMPLE = {
    "type": "function",
    "function": {
        "name": "complete_task",
        "description": "Ends the task.",
        "parameters": {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]},
    },
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--base", type=pathlib.Path)
    parser.add_argument("--tools", type=pathlib.Path)
    parser.add_argument("--task", default="How many employees are there?")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    return parser.parse_args()


def check_weights(model, folder):
    """Every stored tensor is in the model, bit for bit."""
    is_adapter = (folder / "adapter_config.json").is_file()
    files = [folder / "adapter_model.safetensors"] if is_adapter else sorted(folder.glob("model*.safetensors"))
    stored = {name: tensor for file in files for name, tensor in load_file(file).items()}
    loaded = {name.replace(".default", ""): tensor for name, tensor in model.state_dict().items()}
    for name, tensor in stored.items():
        assert torch.equal(loaded[name], tensor.float()), f"{name} is not what the file says"
    if is_adapter:
        missing = {name for name in loaded if ".lora_" in name} - set(stored)
        assert not missing, f"the adapter file lacks {sorted(missing)}"
    print(f"{len(stored)} tensors, {sum(tensor.numel() for tensor in stored.values())} values, all in the model")


def main():
    args = arguments()
    model, model_folder = policy.load(args.folder, args.base)
    check_weights(model, args.folder)
    tokenizer = AutoTokenizer.from_pretrained(model_folder, local_files_only=True)
    vocabulary = model.config.vocab_size
    assert len(tokenizer) <= vocabulary, f"{len(tokenizer)} tokens, but embeddings for {vocabulary}"

    tools = [EXAMPLE]
    if args.tools:
        tools = [json.loads(text) for text in polars.read_parquet(args.tools)["function"]]
    messages = [{"role": "user", "content": args.task}]
    text = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False)
    for tool in tools:
        name = tool.get("function", tool)["name"]
        assert name in text, f"the template does not show the tool {name}"
    assert args.task in text, "the template does not show the task"
    prompt = tokenizer(text, add_special_tokens=False, return_tensors="pt")
    assert tokenizer.decode(prompt["input_ids"][0]) == text, "the tokenizer does not give the prompt back"
    print(text)

    output = model.generate(**prompt, do_sample=False, max_new_tokens=args.max_new_tokens)
    print(tokenizer.decode(output[0, prompt["input_ids"].shape[1] :]))
    if (args.folder / "adapter_config.json").is_file():
        with model.disable_adapter():
            base = policy.logprobs(model, output[0].tolist())
        gap = (policy.logprobs(model, output[0].tolist()) - base).abs().max().item()
        assert gap > 0, "the adapter changes nothing"
        print(f"the adapter moves log-probabilities by up to {gap:.3g}")


if __name__ == "__main__":
    main()
