"""Writes tests/reference/fixtures/read_calls.json: what small pretrained models write where a chat template asks for tool calls.

Samples at temperature 1, with llama.cpp (llama-cpp-python and jinja2 from PyPI), from the first turn of questions about a shop's
database, and from some turns behind a result. The tools are three of PyPI's `mcp-server-sqlite` and mcprl's `complete_task`.

Run: python tests/reference/read_calls.py NAME=WEIGHTS.gguf ...
     with the names `smollm2-135m` (SmolLM2-135M-Instruct) and `qwen2.5-coder-0.5b` (Qwen2.5-Coder-0.5B-Instruct)

A row's `expected` is written by hand afterwards: rows whose text is sampled again unchanged keep theirs.
"""

import json
import sys
from pathlib import Path

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from llama_cpp import Llama

REPO = Path(__file__).parents[2]
OUT = Path(__file__).parent / "fixtures" / "read_calls.json"
# A template that hides tools is replaced by mcprl's own.
OWN = {"smollm2-135m": REPO / "src" / "chat" / "own" / "chatml.jinja"}
SAMPLES = 3
MOST_TOKENS = 192


def function(name, description, **properties):
    schema = {"type": "object", "properties": properties}
    if properties:
        schema["required"] = list(properties)
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = [
    function(
        "read_query",
        "Execute a SELECT query on the SQLite database",
        query={"type": "string", "description": "SELECT SQL query to execute"},
    ),
    function("list_tables", "List all tables in the SQLite database"),
    function(
        "describe_table",
        "Get the schema information for a specific table",
        table_name={"type": "string", "description": "Name of the table to describe"},
    ),
    function("complete_task", "Ends the task with the answer.", answer={"type": "string"}),
]
SYSTEM = {"role": "system", "content": "Use the tools to answer, then call complete_task."}
QUESTIONS = [
    "How many customers does the shop have?",
    "Which product is the most expensive?",
    "What is the total of all orders?",
    "Which tables does the database have?",
    "Which columns does the table orders have?",
    "How many orders did Alice Meyer place?",
    "What does the product 'Desk lamp' cost?",
    "Which customer spent the most money?",
    "How many products cost less than 20 euros?",
    "List the names of all customers from Hamburg.",
    "When was the latest order placed?",
    "What is the average price of the products?",
    "Which product was never ordered?",
    "How many orders were placed in March 2024?",
    "What is the email address of the customer with id 7?",
    "Is there a customer named O'Brien? Answer yes or no.",
    "Which city has the most customers?",
    "What is the price of the cheapest product in the category 'garden'?",
    "How many different products has Bob Chen ordered?",
    "Which orders contain more than five items?",
    "What was the revenue of the product 'Coffee mug' in 2023?",
    "Find the customer who placed order 42.",
    "What is the type of the column price in the table products?",
    "Which three products sell best?",
    "How much stock is left of all products together?",
]


def called(name, **arguments):
    call = {"id": "call00001", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def result(name, text):
    return {"role": "tool", "tool_call_id": "call00001", "name": name, "content": text}


TABLES = "[{'name': 'customers'}, {'name': 'products'}, {'name': 'orders'}]"
COLUMNS = "[{'cid': 0, 'name': 'id', 'type': 'INTEGER'}, {'cid': 1, 'name': 'name', 'type': 'TEXT'}, {'cid': 2, 'name': 'price', 'type': 'REAL'}]"
# Question, and the turns before the sampled one.
SECOND_TURNS = [
    (0, [called("list_tables"), result("list_tables", TABLES)]),
    (0, [called("read_query", query="SELECT COUNT(*) FROM customers"), result("read_query", "[{'COUNT(*)': 31}]")]),
    (1, [called("describe_table", table_name="products"), result("describe_table", COLUMNS)]),
    (3, [called("list_tables"), result("list_tables", TABLES)]),
    (6, [called("read_query", query="SELECT cost FROM products"), result("read_query", "Error: no such column: cost")]),
]


def conversations():
    """Name and messages of every prompt."""
    for number, question in enumerate(QUESTIONS):
        yield f"question {number}", [SYSTEM, {"role": "user", "content": question}]
    for index, (number, turns) in enumerate(SECOND_TURNS):
        yield f"second turn {index}", [SYSTEM, {"role": "user", "content": QUESTIONS[number]}, *turns]


def renderer(source):
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    environment.globals["raise_exception"] = lambda text: (_ for _ in ()).throw(jinja2.TemplateError(text))
    template = environment.from_string(source)
    return lambda messages: template.render(messages=messages, tools=TOOLS, add_generation_prompt=True)


def sampled(name, weights):
    model = Llama(weights, n_ctx=2048, verbose=False)
    own = OWN.get(name)
    render = renderer(own.read_text() if own else model.metadata["tokenizer.chat_template"])
    end = model.tokenize(b"<|im_end|>", add_bos=False, special=True)[0]
    for prompt, messages in conversations():
        tokens = model.tokenize(render(messages).encode(), add_bos=False, special=True)
        for seed in range(SAMPLES):
            model.set_seed(seed)
            turn = []
            ended = False
            for token in model.generate(tokens, temp=1.0, top_k=0, top_p=1.0, min_p=0.0, repeat_penalty=1.0):
                ended = token in (end, model.token_eos())
                if ended or len(turn) == MOST_TOKENS:
                    break
                turn.append(token)
            text = model.detokenize(turn, special=True).decode(errors="replace")
            yield {"model": name, "prompt": prompt, "seed": seed, "ended": ended, "text": text}


def main():
    known = {}
    if OUT.exists():
        known = {row["text"]: row.get("expected") for row in json.loads(OUT.read_text())["rows"]}
    rows = []
    for name, weights in (argument.split("=", 1) for argument in sys.argv[1:]):
        for row in sampled(name, weights):
            rows.append(row | {"expected": known.get(row["text"])})
            print(json.dumps(row, ensure_ascii=False), file=sys.stderr, flush=True)
    tools = [tool["function"] for tool in TOOLS]
    OUT.write_text(json.dumps({"tools": tools, "rows": rows}, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
