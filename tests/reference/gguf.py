"""Exported GGUF files, in llama.cpp: the greedy tokens that mcprl gives for the same model.

    tests/reference/gguf.py URL FOLDER MODEL.gguf [--lora ADAPTER.gguf]

URL is that of `mcprl serve FOLDER`, and FOLDER what `mcprl export --merge` writes. Where the tokens part, llama.cpp's margin
between its token and mcprl's is printed, in nats: rounding decides where it is small. Needs llama-cpp-python and transformers.
"""

import argparse
import json
import urllib.request
from pathlib import Path

import llama_cpp
import numpy as np
from transformers import AutoTokenizer

# llama-cpp-python 0.3.36 crashes on some machines when it rearranges quantized blocks, with published files, too.
defaults = llama_cpp.llama_model_default_params


def without_rearranging():
    params = defaults()
    params.use_extra_bufts = False
    return params


llama_cpp.llama_cpp.llama_model_default_params = without_rearranging

QUESTIONS = [
    "Which tools do you have?",
    "How many customers are there?",
    "What does the most expensive product cost?",
    "Name the capital of France.",
    "Write a query that counts orders by customer.",
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read_query",
            "description": "Execute a SELECT query.",
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
        },
    }
]
MOST = 48


def asked(url, question):
    """The texts of the tokens of mcprl's answer."""
    body = {
        "messages": [{"role": "user", "content": question}],
        "tools": TOOLS,
        "temperature": 0,
        "max_tokens": MOST,
        "logprobs": True,
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    answer = json.load(urllib.request.urlopen(request))
    return [bytes(token["bytes"]) for token in answer["choices"][0]["logprobs"]["content"]]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("gguf")
    parser.add_argument("--lora")
    words = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(words.folder)
    llama = llama_cpp.Llama(words.gguf, lora_path=words.lora, n_ctx=2048, n_threads=2, verbose=False)
    template = (words.folder / "chat_template.jinja").read_text()
    assert words.lora or llama.metadata["tokenizer.chat_template"] == template, "another template"
    same = 0
    for question in QUESTIONS:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], tools=TOOLS, add_generation_prompt=True, tokenize=False
        )
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert words.lora or llama.tokenize(text.encode(), add_bos=False, special=True) == ids, f"other tokens: {question}"
        llama.reset()
        llama.eval(ids)
        parted = None
        answer = asked(words.url, question)
        for index, ours in enumerate(answer):
            logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(llama.ctx, -1), (llama.n_vocab(),))
            theirs = int(np.argmax(logits))
            if llama.detokenize([theirs], special=True) != ours:
                mine = [token for token in np.argsort(-logits)[:100] if llama.detokenize([int(token)], special=True) == ours]
                margin = float(logits[theirs] - logits[mine[0]]) if mine else None
                parted = {"after": index, "margin": margin}
                break
            llama.eval([theirs])
        same += parted is None
        print(json.dumps({"question": question, "tokens": len(answer), "parts": parted}))
    print(f"{same} of {len(QUESTIONS)} answers have the same tokens")


if __name__ == "__main__":
    main()
