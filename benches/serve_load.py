"""Many open streams at `mcprl serve`, and a restart: memory, refusals, and the same tokens after `kill -9`.

    benches/serve_load.py MCPRL MODEL [--streams 200] [--seconds 600] [--hostile]

Starts `mcprl serve MODEL`, keeps so many streams open (each asks again when it is over; one of ten goes away in the middle), and prints
the server's resident memory twice a minute. At the end the server is killed with SIGKILL and started again: the greedy answer to one
question is the same. Needs httpx.

With `--hostile`, all of it is done twice: without and with clients that read nothing, that send half a request, and that ask for 64
answers with 20 likely tokens beside each. The last line has the most memory of both, and their ratio, which should be at most 1.3.
"""

import argparse
import asyncio
import json
import random
import signal
import subprocess
import time

import httpx


def start(arguments):
    server = subprocess.Popen(
        [arguments.mcprl, "--json", "serve", arguments.model, "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    shown = json.loads(server.stdout.readline())
    return server, shown["url"], shown["models"][0]


def resident(server):
    with open(f"/proc/{server.pid}/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS"))


def body(model, text, stream=True, most=48):
    message = {"role": "user", "content": text}
    return {"model": model, "messages": [message], "temperature": 0, "max_tokens": most, "stream": stream}


async def stream(client, url, model, end, counts, draw):
    while time.monotonic() < end:
        leaves = draw.random() < 0.1
        try:
            request = body(model, f"Write a line about the number {draw.randrange(10**6)}.")
            async with client.stream("POST", f"{url}/v1/chat/completions", json=request) as answer:
                counts[answer.status_code] = counts.get(answer.status_code, 0) + 1
                if answer.status_code == 429:
                    await answer.aread()
                    await asyncio.sleep(float(answer.headers["retry-after"]))
                    continue
                tokens = 0
                async for line in answer.aiter_lines():
                    tokens += line.startswith("data: {")
                    if leaves and tokens == 5:
                        counts["left"] = counts.get("left", 0) + 1
                        break
                counts["chunks"] = counts.get("chunks", 0) + tokens
        except httpx.HTTPError as failure:
            name = type(failure).__name__
            counts[name] = counts.get(name, 0) + 1


async def reads_nothing(host, port, model, end, counts):
    """Asks for much, and reads nothing of it."""
    while time.monotonic() < end:
        try:
            request = body(model, "Write a long story.", most=512) | {"n": 8, "logprobs": True, "top_logprobs": 20}
            text = json.dumps(request).encode()
            _, writer = await asyncio.open_connection(host, port, limit=1024)
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: %s:%d\r\nContent-Length: %d\r\n\r\n" % (host.encode(), port, len(text)) + text)
            await writer.drain()
            counts["stalled"] = counts.get("stalled", 0) + 1
            await asyncio.sleep(min(20, max(0, end - time.monotonic())))
            writer.transport.abort()
        except OSError:
            await asyncio.sleep(1)


async def half_a_request(host, port, end, counts):
    """Connections that never become a request."""
    kept = []
    while time.monotonic() < end:
        try:
            _, writer = await asyncio.open_connection(host, port)
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHos")
            kept.append(writer)
            counts["halves"] = counts.get("halves", 0) + 1
        except OSError:
            pass
        for writer in kept[:-300]:
            writer.transport.abort()
        kept = kept[-300:]
        await asyncio.sleep(0.1)
    for writer in kept:
        writer.transport.abort()


async def many_choices(client, url, model, end, counts):
    while time.monotonic() < end:
        request = body(model, "Count.", most=256) | {"n": 64, "logprobs": True, "top_logprobs": 20}
        try:
            async with client.stream("POST", f"{url}/v1/chat/completions", json=request) as answer:
                name = f"64 choices: {answer.status_code}"
                counts[name] = counts.get(name, 0) + 1
                async for _ in answer.aiter_raw():
                    pass
        except httpx.HTTPError:
            pass
        await asyncio.sleep(1)


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("mcprl")
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--hostile", action="store_true")
    arguments = parser.parse_args()
    alone = await load(arguments, False)
    if arguments.hostile:
        beside = await load(arguments, True)
        print(json.dumps({"most_mib": {"alone": alone, "beside hostile clients": beside}, "ratio": round(beside / alone, 2)}))


async def load(arguments, hostile):
    """The most resident memory in MiB."""
    server, url, model = start(arguments)
    try:
        ask = lambda url: httpx.post(f"{url}/v1/chat/completions", json=body(model, "Count to ten.", False), timeout=600)
        before = ask(url).json()["choices"][0]["message"]["content"]
        counts, draw, began = {}, random.Random(1), time.monotonic()
        end = began + arguments.seconds
        limits, most = httpx.Limits(max_connections=None), 0
        address = httpx.URL(url)
        async with httpx.AsyncClient(timeout=1800, limits=limits) as client:
            streams = [asyncio.create_task(stream(client, url, model, end, counts, draw)) for _ in range(arguments.streams)]
            if hostile:
                where = (address.host, address.port)
                streams += [asyncio.create_task(reads_nothing(*where, model, end, counts)) for _ in range(4)]
                streams.append(asyncio.create_task(half_a_request(*where, end, counts)))
                streams.append(asyncio.create_task(many_choices(client, url, model, end, counts)))
            shown = began
            while time.monotonic() < end:
                await asyncio.sleep(1)
                most = max(most, resident(server))
                if time.monotonic() < shown + 30:
                    continue
                shown = time.monotonic()
                print(json.dumps({"s": round(time.monotonic() - began), "resident_mib": round(resident(server)), **counts}), flush=True)
            await asyncio.gather(*streams)
        print(json.dumps({"idle_resident_mib": round(resident(server)), **counts}), flush=True)
        assert ask(url).json()["choices"][0]["message"]["content"] == before, "load changes an answer"
        server.send_signal(signal.SIGKILL)
        server.wait()
        server, url, model = start(arguments)
        assert ask(url).json()["choices"][0]["message"]["content"] == before, "a restart changes an answer"
        print(json.dumps({"same answer": "beside load and after SIGKILL"}))
        return most
    finally:
        server.kill()


asyncio.run(main())
