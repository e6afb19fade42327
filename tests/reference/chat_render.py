"""Writes tests/reference/chat/: tokenizer folders and what Transformers makes of conversations with them.

Needs transformers and trl (the original chat templates, Apache-2.0, are read from its package).
Run: python tests/reference/chat_render.py
"""

import json
import shutil
from pathlib import Path

import trl
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

HERE = Path(__file__).parent / "chat"
TEMPLATES = Path(trl.__file__).parent / "chat_templates"
FAMILIES = {name: TEMPLATES / f"{name}.jinja" for name in ["qwen2_5", "qwen3", "qwen3_instruct_2507"]}
FAMILIES["warmup"] = HERE.parents[2] / "stages" / "warmup" / "chat_template.jinja"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PLAIN = ["<tool_call>", "</tool_call>", "<think>", "</think>"]

SYSTEM = {"role": "system", "content": "Answer with the tools."}
TASK = {"role": "user", "content": "What is the yearly pay of Zoë O'Neil in \"R&D\" <b>?"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "run_query",
            "description": "Runs a query; it's read-only. Größe < 5 & more",
            "parameters": {
                "type": "object",
                "properties": {
                    "sql": {"type": "string", "description": "SELECT …"},
                    "limit": {"type": "integer", "default": 5, "enum": [1, 5, 10]},
                    "tolerance": {"type": "number", "default": 1e-05, "maximum": 1e16},
                },
                "required": ["sql"],
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "list_tables", "description": "Lists.", "parameters": {"type": "object", "properties": {}}},
    },
]


def call(name, **arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


QUERY = call("run_query", sql="SELECT annual_pay FROM employees WHERE full_name = 'Zoë O''Neil'", limit=5)
CONVERSATIONS = {
    "opening": [SYSTEM, TASK],
    "no_system": [TASK],
    "one_call": [SYSTEM, TASK, {"role": "assistant", "content": "", "tool_calls": [QUERY]}],
    "text_and_two_calls": [
        SYSTEM,
        TASK,
        {"role": "assistant", "content": "I look it up.", "tool_calls": [call("list_tables"), QUERY]},
    ],
    "one_result": [
        SYSTEM,
        TASK,
        {"role": "assistant", "content": "", "tool_calls": [QUERY]},
        {"role": "tool", "name": "run_query", "content": "annual_pay\n83"},
    ],
    "three_results": [
        SYSTEM,
        TASK,
        {"role": "assistant", "content": "", "tool_calls": [call("list_tables"), QUERY, QUERY]},
        {"role": "tool", "name": "list_tables", "content": "departments, employees"},
        {"role": "tool", "name": "run_query", "content": ""},
        {"role": "tool", "name": "run_query", "content": "no such column: salary\n"},
    ],
}


def tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    corpus = [json.dumps(TOOLS), json.dumps(CONVERSATIONS)] * 2
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in PLAIN])
    return tokenizer


def main():
    shutil.rmtree(HERE, ignore_errors=True)
    cases = []
    for family, template in FAMILIES.items():
        folder = HERE / family
        folder.mkdir(parents=True)
        source = template.read_text()
        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer(), eos_token="<|im_end|>", pad_token="<|endoftext|>")
        fast.backend_tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
        config = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "tokenizer_class": "PreTrainedTokenizerFast"}
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
        (folder / "chat_template.jinja").write_text(source)
        for name, messages in CONVERSATIONS.items():
            for tools in (TOOLS, []):
                for header in (True, False):
                    if header and messages[-1]["role"] == "assistant":
                        continue
                    if not tools and name != "opening":
                        continue
                    text = fast.apply_chat_template(
                        messages,
                        tools=tools or None,
                        chat_template=source,
                        add_generation_prompt=header,
                        tokenize=False,
                    )
                    cases.append(
                        {
                            "family": family,
                            "name": name,
                            "messages": messages,
                            "tools": tools,
                            "add_generation_prompt": header,
                            "text": text,
                            "tokens": fast(text, add_special_tokens=False)["input_ids"],
                        }
                    )
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    (HERE / "renders.json").write_text(f"[\n{lines}\n]\n")
    (HERE / "README.md").write_text(
        "Written by `tests/reference/chat_render.py`. The `chat_template.jinja` files are the templates of Qwen2.5 and\n"
        "Qwen3, copyright Alibaba Cloud, licensed under the Apache License 2.0 and unchanged, and the one of the `warmup`\n"
        "stage. The tokenizers are tiny ones trained by the script.\n"
    )


if __name__ == "__main__":
    main()
