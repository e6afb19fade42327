"""Checks the tokenizer and the chat template of a policy folder with Transformers.

    python tokenizer_check.py POLICY

Transformers must load the very tokenizer that `tokenizer.json` describes, give back any text, give an entity the same
tokens wherever it stands, and render a conversation with tools of which each part is a prefix of the next.
"""

import sys

from tokenizers import Tokenizer
from transformers import AutoTokenizer

TEXTS = [
    "SELECT annual_pay FROM employees WHERE full_name = 'Ada Novak'",
    "How much does Ada Novak earn in 2013?",
    "  two  spaces\t\n",
    "Zoë O'Neil — 価格 🦀",
    "a_b_C__d 12.5%",
    '<tool_call>\n{"name": "run_query", "arguments": {}}\n</tool_call>',
]
ENTITIES = ["Ada", "Novak", "Sales", "annual_pay", "2013"]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "run_query",
            "description": "Runs.",
            "parameters": {"type": "object", "properties": {"sql": {"type": "string"}}},
        },
    }
]
CALL = {"type": "function", "function": {"name": "run_query", "arguments": {"sql": "SELECT 'é'"}}}
MESSAGES = [
    {"role": "system", "content": "Use the tools."},
    {"role": "user", "content": "How much does Ada earn?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "x\n1"},
    {"role": "assistant", "content": "1"},
]


def main(folder: str) -> None:
    loaded = AutoTokenizer.from_pretrained(folder)
    written = Tokenizer.from_file(f"{folder}/tokenizer.json")
    encode = lambda text: loaded(text, add_special_tokens=False).input_ids

    assert len(loaded) == written.get_vocab_size(), "another vocabulary was loaded"
    for text in TEXTS:
        assert encode(text) == written.encode(text, add_special_tokens=False).ids, text
        assert loaded.decode(encode(text)) == text, text
    for entity in ENTITIES:
        alone = encode(entity)
        for before, after in [(" ", "?"), ("'", "'"), ('"', '"'), ("\n", "\n"), (" | ", " | ")]:
            around = encode(f"x{before}{entity}{after}")
            places = range(len(around) - len(alone) + 1)
            assert any(around[at : at + len(alone)] == alone for at in places), (before, entity)

    rendered = ""
    for turns in range(2, len(MESSAGES) + 1):
        text = loaded.apply_chat_template(MESSAGES[:turns], tools=TOOLS, tokenize=False)
        assert text.startswith(rendered), "the template rewrites what it wrote before"
        assert text.endswith(f"{loaded.eos_token}\n"), text
        rendered = text
    assert "run_query(sql): Runs." in rendered, rendered
    assert '<tool_call>\n{"name": "run_query", "arguments": {"sql": "SELECT \'é\'"}}\n</tool_call>' in rendered
    print(f"{folder}: {len(loaded)} tokens, loaded as {type(loaded).__name__}: as written")


if __name__ == "__main__":
    main(sys.argv[1])
