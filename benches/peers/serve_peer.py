"""Tokens per second and the time to the first token of `mcprl serve`, beside another server of OpenAI's chat completions.

    mcprl serve FOLDER --port 8001                                                       # bf16
    benches/peers/llama_server.py model-f16.gguf --port 8002
    benches/peers/serve_peer.py mcprl=http://127.0.0.1:8001/v1 llama-server=http://127.0.0.1:8002/v1 --clients 1,8

Every client sends one request with the same system message of about `--prefix` tokens and a question of its own, and reads the
stream. The servers take turns; each round begins with one request that is not counted, so that a server that keeps prefixes has it.
`--warm` plays a round before those that count: llama-server keeps a prefix for each of its sequences. Needs httpx. Prints one JSON object per server and number of clients.
"""

import argparse
import asyncio
import json
import statistics
import time

import httpx

WORDS = "the table of orders has a customer, a product, a quantity and a date of delivery".split()


def system(tokens):
    # A word and its space are about one token.
    return " ".join(WORDS[i % len(WORDS)] for i in range(tokens))


async def ask(client, url, model, prefix, question, most):
    """When the first token came and when the last, and how many there were."""
    body = {
        "model": model,
        "messages": [
            {"role": "system", "content": system(prefix)},
            {"role": "user", "content": f"Question {question}: count from {question} upwards, one number per line, to 500."},
        ],
        "temperature": 0,
        "max_tokens": most,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    # A chunk may hold several tokens, so the server's count is taken.
    began, first, count = time.perf_counter(), None, 0
    async with client.stream("POST", f"{url}/chat/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            count = (chunk.get("usage") or {}).get("completion_tokens", count)
            delta = chunk["choices"][0]["delta"] if chunk["choices"] else {}
            if delta.get("content"):
                first = first or time.perf_counter() - began
    return first, time.perf_counter() - began, count


async def round_of(url, model, clients, arguments, number):
    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(timeout=1800, limits=limits) as client:
        await ask(client, url, model, arguments.prefix, 10**6 + number, 1)
        began = time.perf_counter()
        questions = [(number + 1) * 1000 + index for index in range(clients)]
        every = await asyncio.gather(*(ask(client, url, model, arguments.prefix, one, arguments.new) for one in questions))
        seconds = time.perf_counter() - began
    return [first for first, _, _ in every if first], sum(count for *_, count in every), seconds


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("servers", nargs="+", metavar="NAME=URL")
    parser.add_argument("--clients", default="1,8,32")
    parser.add_argument("--prefix", type=int, default=2000)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--warm", action="store_true")
    arguments = parser.parse_args()
    servers = dict(server.split("=", 1) for server in arguments.servers)
    models = {}
    for name, url in servers.items():
        models[name] = httpx.get(f"{url}/models", timeout=60).json()["data"][0]["id"]
    for clients in map(int, arguments.clients.split(",")):
        found = {name: ([], 0, 0.0) for name in servers}
        for number in range(-int(arguments.warm), arguments.rounds):
            for name, url in servers.items():
                firsts, count, seconds = await round_of(url, models[name], clients, arguments, number)
                if number < 0:
                    continue
                before = found[name]
                found[name] = (before[0] + firsts, before[1] + count, before[2] + seconds)
        for name, (firsts, count, seconds) in found.items():
            shown = {
                "server": name,
                "clients": clients,
                "tokens_per_second": round(count / seconds, 1),
                "first_token_s": round(statistics.median(firsts), 2),
                "slowest_first_token_s": round(max(firsts), 2),
                "tokens": count,
            }
            print(json.dumps(shown), flush=True)


asyncio.run(main())
