"""Writes tests/reference/chat/: tokenizer folders and what Transformers makes of conversations with them.

Needs transformers and trl (the original chat templates, Apache-2.0, are read from its package).
Run: python tests/reference/chat_render.py             writes the fixtures
     python tests/reference/chat_render.py --all FILE [FOLDER]
         writes what every template of trl, or of a folder, makes of them, for the test
         `every_template_of_a_file_renders_as_in_transformers`
"""

import datetime
import json
import shutil
import sys
from pathlib import Path

import trl
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

HERE = Path(__file__).parent / "chat"
REPO = Path(__file__).parents[2]
TEMPLATES = Path(trl.__file__).parent / "chat_templates"
ORIGINAL = ["qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_5_think", "qwen3_5_nothink"]
FAMILIES = {name: TEMPLATES / f"{name}.jinja" for name in ORIGINAL}
FAMILIES["demo"] = REPO / "pipelines" / "sqlite-model" / "chat_template.jinja"
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


# Templates written for these tests and for `crates/mcprl-chat/src/own`, with the tokens of the families they follow.
LLAMA = dict(
    bos="<|begin_of_text|>",
    eos="<|eot_id|>",
    special=["<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|python_tag|>", "<|end_of_text|>"],
)
MISTRAL = dict(
    bos="<s>",
    eos="</s>",
    special=["[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"]
    + ["[/TOOL_RESULTS]", "[TOOL_CONTENT]", "[CALL_ID]", "[ARGS]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"],
)
PHI = dict(
    bos="<|endoftext|>",
    eos="<|endoftext|>",
    special=["<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|tool|>", "<|/tool|>", "<|tool_call|>"]
    + ["<|/tool_call|>", "<|tool_response|>"],
)
CHATML = dict(bos=None, eos="<|im_end|>", special=[])
LFM2 = dict(
    bos="<|startoftext|>",
    eos="<|im_end|>",
    special=["<|im_start|>", "<|endoftext|>"]
    + [f"<|tool_{part}_{end}|>" for part in ("list", "call", "response") for end in ("start", "end")],
)
GEMMA = dict(bos="<bos>", eos="<end_of_turn>", special=["<start_of_turn>", "<eos>"])
PHI3 = dict(bos="<s>", eos="<|endoftext|>", special=["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"])
PHI4 = dict(bos=None, eos="<|im_end|>", special=["<|im_sep|>"])
WRITTEN = {
    "crates/mcprl-chat/src/own/chatml.jinja": CHATML,
    "crates/mcprl-chat/src/own/gemma.jinja": GEMMA,
    "crates/mcprl-chat/src/own/lfm2.jinja": LFM2,
    "crates/mcprl-chat/src/own/llama.jinja": LLAMA,
    "crates/mcprl-chat/src/own/mistral.jinja": MISTRAL,
    "crates/mcprl-chat/src/own/phi3.jinja": PHI3,
    "crates/mcprl-chat/src/own/phi4.jinja": PHI4,
    "crates/mcprl-chat/src/own/phi4_mini.jinja": PHI,
    "tests/reference/chat/templates/functools.jinja": PHI,
    "tests/reference/chat/templates/llama_user.jinja": LLAMA,
    "tests/reference/chat/templates/mistral_nemo.jinja": MISTRAL,
    "tests/reference/chat/templates/mistral_v7.jinja": MISTRAL,
    "tests/reference/chat/templates/mistral_v11.jinja": MISTRAL,
    "tests/reference/chat/templates/mistral_v13.jinja": MISTRAL,
    "tests/reference/chat/templates/pythonic.jinja": LLAMA,
    "tests/reference/chat/templates/xml.jinja": CHATML,
}


def named(index):
    return f"fixture0{index}"


def with_ids(messages):
    """The same conversation with ids of nine letters on calls and results."""
    messages = json.loads(json.dumps(messages))
    results = 0
    for message in messages:
        for index, made in enumerate(message.get("tool_calls", [])):
            made["id"] = named(index)
        if message["role"] == "tool":
            message["tool_call_id"] = named(results)
            results += 1
    return messages


TYPED = call("run_query", sql="a\n\"b\"", limit=5, tolerance=1e-05, deep=True, none=None, list=["é", {"k": 1.0}])
KEPT = ["opening", "text_and_two_calls", "one_result", "three_results"]
WRITTEN_CONVERSATIONS = {name: with_ids(CONVERSATIONS[name]) for name in KEPT}
WRITTEN_CONVERSATIONS["typed_result"] = with_ids(
    [
        SYSTEM,
        TASK,
        {"role": "assistant", "content": "", "tool_calls": [TYPED]},
        {"role": "tool", "name": "run_query", "content": " say \"ja\" <b>\t\\ 1\nZoë\n"},
    ]
)


def attempt(render, **arguments):
    """The rendered text at the fixed date, or None if the template refuses."""
    try:
        text = render.apply_chat_template(tokenize=False, **arguments)
    except Exception:
        return None
    now, then = datetime.datetime.now(), datetime.datetime(2024, 7, 26)
    for form in ["%Y-%m-%d", "%d %b %Y", "%d %B %Y", "%B %d, %Y"]:
        text = text.replace(now.strftime(form), then.strftime(form))
    return text


def written():
    """Cases of the templates of this repository, with each value of `enable_thinking`."""
    families, cases = [], []
    for path, tokens in WRITTEN.items():
        name = ("own_" if "own" in path else "") + Path(path).stem
        families.append({"name": name, "template": path, **tokens})
        source = (REPO / path).read_text()
        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer(), bos_token=tokens["bos"], eos_token=tokens["eos"])
        for conversation, messages in WRITTEN_CONVERSATIONS.items():
            for tools in (True, False) if conversation == "opening" else (True,):
                for thinking in (None, False) if "enable_thinking" in source else (None,):
                    options = {} if thinking is None else {"enable_thinking": thinking}
                    text = attempt(
                        fast,
                        conversation=messages,
                        tools=TOOLS if tools else None,
                        chat_template=source,
                        add_generation_prompt=messages[-1]["role"] != "assistant",
                        **options,
                    )
                    case = {"family": name, "conversation": conversation, "tools": tools, "thinking": thinking}
                    cases.append({**case, "text": text})
    lists = {"families": families, "renders": cases}
    parts = [f'"tools": {json.dumps(TOOLS, ensure_ascii=False)}']
    parts.append(f'"conversations": {json.dumps(WRITTEN_CONVERSATIONS, ensure_ascii=False)}')
    for name, items in lists.items():
        lines = ",\n".join(json.dumps(item, ensure_ascii=False) for item in items)
        parts.append(f'"{name}": [\n{lines}\n]')
    (HERE / "written.json").write_text("{" + ",\n".join(parts) + "}\n")


def every(path, folder=TEMPLATES):
    """What Transformers makes of every template in a folder; null where the template refuses."""
    conversations = CONVERSATIONS | WRITTEN_CONVERSATIONS | {
        "reasoning": [*CONVERSATIONS["opening"], {"role": "assistant", "content": "<think>\nhm\n</think>\n\nSo."}],
        "two_tasks": [SYSTEM, TASK, {"role": "assistant", "content": " 83 "}, TASK],
    }
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer(), bos_token="<s>", eos_token="</s>")
    cases = []
    for template in sorted(Path(folder).glob("**/*.jinja")):
        for name, messages in conversations.items():
            for tools in (TOOLS, []):
                for header in (True, False):
                    case = dict(messages=messages, tools=tools, add_generation_prompt=header)
                    text = attempt(
                        fast,
                        conversation=messages,
                        tools=tools or None,
                        chat_template=template.read_text(),
                        add_generation_prompt=header,
                        date_string="26 Jul 2024",
                    )
                    cases.append({"family": template.stem, "template": template.read_text(), "name": name, **case, "text": text})
    Path(path).write_text(json.dumps(cases))


# The variable `v` of the snippets.
SNIPPET = {
    "text": "Zoë's <b>",
    "list": ["a", "b", 1],
    "nested": {"k": "v", "n": [1.0, None]},
    "schema": {"type": "array", "items": {"type": "string"}},
    "none": None,
    "flag": True,
    "empty": [],
    "int": -3,
    "float": 1e-07,
}


def snippets():
    """Renders the snippets in `snippets.txt` with Transformers: one per line, `⏎` for a line break; null if it refuses."""
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer(), eos_token="</s>")
    messages = with_ids(CONVERSATIONS["one_result"])
    lines = [line for line in (HERE / "snippets.txt").read_text().split("\n") if line and not line.startswith("# ")]
    cases = []
    for line in lines:
        source = line.replace("⏎", "\n")
        text = attempt(
            fast, conversation=messages, tools=TOOLS, chat_template=source, add_generation_prompt=True, v=SNIPPET
        )
        cases.append(json.dumps([source, text], ensure_ascii=False))
    context = json.dumps({"messages": messages, "tools": TOOLS, "v": SNIPPET}, ensure_ascii=False)
    text = '{"context": ' + context + ',\n"renders": [\n' + ",\n".join(cases) + "\n]}\n"
    (HERE / "snippets.json").write_text(text)


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
    for family in FAMILIES:
        shutil.rmtree(HERE / family, ignore_errors=True)
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
        "Written by `tests/reference/chat_render.py`. The `chat_template.jinja` files are the templates of Qwen2.5,\n"
        "Qwen3 and Qwen3.5, copyright Alibaba Cloud, licensed under the Apache License 2.0 and unchanged, and the one of the demo's\n"
        "model. The tokenizers are tiny ones trained by the script. Those under `templates/` were written for these\n"
        "tests after the manner of the families they are named for.\n"
    )
    written()
    snippets()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--all"]:
        every(*sys.argv[2:4])
    else:
        main()
