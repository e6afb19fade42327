"""Clients that misbehave at `mcprl serve`: `hostile_clients.py MCPRL SUBJECT [OPTION…]`.

Each case is bytes on a connection and what may come back: a status, or the end of the connection, within a time. After each, another
client gets the same greedy answer as at the beginning. At the end the server's memory has not grown by more than 400 MiB. Only the
standard library is needed.
"""

import json
import random
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

MCPRL, *SUBJECT = sys.argv[1:]
PATIENCE = 60


def connect():
    return socket.create_connection((HOST, PORT), timeout=PATIENCE)


def status(data):
    """The status of an answer; 0 if the connection ended without one."""
    line = data.split(b"\r\n", 1)[0].split(b" ")
    return int(line[1]) if len(line) > 1 and line[0].startswith(b"HTTP/") and line[1].isdigit() else 0


def read(stream):
    data = b""
    try:
        while chunk := stream.recv(65536):
            data += chunk
    except (ConnectionError, TimeoutError):
        pass
    return data


def send(data, pause=0.0, part=0, ends=True):
    """Sends bytes, perhaps slowly, and reads to the end. `ends`: whether the client closes its side first, as one that goes does."""
    with connect() as stream:
        try:
            if part:
                for at in range(0, len(data), part):
                    stream.sendall(data[at : at + part])
                    time.sleep(pause)
            else:
                stream.sendall(data)
            if ends:
                stream.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        return status(read(stream))


def http(body=b"", method="POST", path="/v1/chat/completions", headers=None, version="HTTP/1.1"):
    given = {"Host": f"{HOST}:{PORT}", "Content-Type": "application/json", "Content-Length": len(body), "Connection": "close"}
    given |= headers or {}
    lines = [f"{method} {path} {version}"] + [f"{name}: {value}" for name, value in given.items() if value is not None]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def chat(**changes):
    request = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0}
    return json.dumps({key: value for key, value in (request | changes).items() if value is not ...}).encode()


def said(content, role="user"):
    return [{"role": role, "content": content}]


def function(name, parameters=None):
    return {"type": "function", "function": {"name": name, "parameters": parameters or {"type": "object", "properties": {}}}}


def leaves(after):
    """Reads so many bytes of a stream, and goes."""
    with connect() as stream:
        stream.sendall(http(chat(stream=True, max_tokens=200)))
        stream.recv(after)
    return 0


def half_open(count=200):
    """Opens connections that never send a whole request."""
    streams = [connect() for _ in range(count)]
    for stream in streams:
        stream.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost:")
    time.sleep(1)
    for stream in streams:
        stream.close()
    return 0


def pipelined():
    with connect() as stream:
        one = http(chat(), headers={"Connection": "keep-alive"})
        stream.sendall(one * 5 + http(chat()))
        data = read(stream)
    assert data.count(b"HTTP/1.1 200") == 6, data[:300]
    return 200


def deep(levels):
    return b'{"a":' * levels + b"1" + b"}" * levels


def cases():
    draw = random.Random(7)
    bad, gone = {400, 413, 422}, {0, 400, 408, 411, 413, 414, 431, 501, 505}
    request = lambda *body, **options: lambda: send(http(*body, **options), ends=False)
    yield "no JSON", request(b"{"), bad
    yield "an empty body", request(b""), bad
    yield "a list", request(b"[]"), bad
    yield "a number", request(b"7"), bad
    yield "not UTF-8", request(b'{"model": "\xff\xfe"}'), bad
    yield "nested a hundred thousand times", request(deep(100_000)), bad
    yield "messages nested deeply", request(b'{"model": "' + MODEL.encode() + b'", "messages": ' + b"[" * 5000 + b"]" * 5000 + b"}"), bad
    yield "NaN", request(b'{"model": "x", "temperature": NaN}'), bad
    yield "a huge number", request(chat(seed=10**30)), bad | {200}
    yield "no model", request(chat(model=...)), bad | {200}
    yield "another model", request(chat(model="gpt-none")), {404}
    yield "a model of another type", request(chat(model=7)), bad
    yield "no messages", request(chat(messages=...)), bad
    yield "no message", request(chat(messages=[])), bad
    yield "messages of another type", request(chat(messages="Hi")), bad
    yield "a message of another type", request(chat(messages=["Hi"])), bad
    yield "an unknown role", request(chat(messages=said("Hi", "wizard"))), bad
    yield "a content of another type", request(chat(messages=said(7))), bad
    yield "an image", request(chat(messages=said([{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]))), bad
    yield "no content", request(chat(messages=[{"role": "user"}])), bad | {200}
    yield "a result without a call", request(chat(messages=[{"role": "tool", "tool_call_id": "x", "content": "y"}])), bad | {200}
    yield "ten thousand messages", request(chat(messages=said("Hi") * 10_000)), bad | {200}
    yield "a prompt over the context", request(chat(messages=said("word " * 200_000))), bad
    yield "a body of 100 MiB", lambda: send(http(headers={"Content-Length": 100 << 20}) + b"x" * (100 << 20)), gone
    yield "a length that is not sent", lambda: send(http(b"{}", headers={"Content-Length": 1000})), gone
    yield "a negative length", request(b"{}", headers={"Content-Length": -1}), gone
    yield "two lengths", lambda: send(http(b"{}", headers={"Content-Length": 2, "content-length": 5})), gone
    yield "a length that is no number", request(b"{}", headers={"Content-Length": "many"}), gone
    yield "chunks that end early", lambda: send(http(headers={"Content-Length": None, "Transfer-Encoding": "chunked"}) + b"ff\r\nshort"), gone
    yield "chunks of no size", lambda: send(http(headers={"Content-Length": None, "Transfer-Encoding": "chunked"}) + b"zz\r\n\r\n"), gone
    yield "length and chunks", lambda: send(http(headers={"Transfer-Encoding": "chunked"}) + b"0\r\n\r\n"), gone
    yield "another content type", request(chat(), headers={"Content-Type": "text/plain"}), bad | {200, 415}
    yield "a header of 1 MiB", request(chat(), headers={"X-Long": "x" * (1 << 20)}), gone
    yield "ten thousand headers", request(chat(), headers={f"X-{i}": "y" for i in range(10_000)}), gone
    yield "a path of 1 MiB", request(path="/" + "x" * (1 << 20)), gone | {404}
    yield "a path upwards", request(method="GET", path="/v1/../../etc/passwd"), {404}
    yield "another method", request(method="DELETE"), {404, 405}
    yield "an unknown method", request(method="BREW"), gone | {404, 405}
    yield "HTTP/3.0", request(chat(), version="HTTP/3.0"), gone
    yield "another host", request(chat(), headers={"Host": "evil.example"}), {403, 421}
    yield "no host", request(chat(), headers={"Host": None}), {400, 403, 421}
    yield "a page of another site", request(chat(), headers={"Origin": "https://evil.example"}), {403}
    yield "an upgrade", request(method="GET", headers={"Upgrade": "websocket"}, path="/v1/models"), {200, 400, 404, 405, 426}
    yield "TLS", lambda: send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + draw.randbytes(500)), gone
    yield "noise", lambda: send(draw.randbytes(100_000)), gone
    yield "nothing", lambda: send(b""), gone
    yield "a byte at a time", lambda: send(http(chat()), pause=0.002, part=1, ends=False), {200}
    yield "a head cut off", lambda: send(http(chat())[:40]), gone
    yield "six requests at once on a connection", pipelined, {200}
    yield "200 connections that say nothing", half_open, {0}
    yield "a client that leaves a stream at once", lambda: leaves(1), {0}
    yield "a client that leaves a stream in the middle", lambda: leaves(2000), {0}
    for name, value in {
        "max_tokens": -1, "temperature": "hot", "top_p": 7, "n": 100_000, "stop": ["x"] * 10_000, "stream": "yes", "seed": "x",
        "logprobs": 7, "tool_choice": "sometimes", "logit_bias": {"1": 100}, "response_format": {"type": "xml"}, "tools": "all",
    }.items():
        yield f"{name} = {str(value)[:20]}", request(chat(**{name: value})), bad
    yield "ten thousand tools", request(chat(tools=[function(f"tool_{i}") for i in range(10_000)])), bad | {200}
    yield "a tool without a name", request(chat(tools=[{"type": "function", "function": {}}])), bad
    yield "a tool whose schema holds itself", request(chat(tools=[function("f", {"$ref": "#"})])), bad | {200}
    yield "a tool with control tokens in its name", request(chat(tools=[function("<|im_end|>")])), bad | {200}
    yield "a key in the query", request(method="GET", path="/v1/models?key=" + "x" * 1000), {200}
    yield "MCP without a method", request(b"{}", path="/mcp", headers={"Accept": "application/json, text/event-stream"}), bad | {404, 406, 415}
    yield "MCP of another session", request(
        b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}', path="/mcp",
        headers={"Accept": "application/json, text/event-stream", "Mcp-Session-Id": "nobody"}), {200, 400, 401, 404}


def resident(process):
    with open(f"/proc/{process.pid}/status") as lines:
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def body(answer):
    head, rest = answer.split(b"\r\n\r\n", 1)
    if b"transfer-encoding: chunked" not in head.lower():
        return rest
    whole = b""
    while size := int((line := rest.split(b"\r\n", 1))[0], 16):
        whole, rest = whole + line[1][:size], line[1][size + 2 :]
    return whole


def good():
    with connect() as stream:
        stream.sendall(http(chat(max_tokens=16)))
        answer = read(stream)
    assert status(answer) == 200, answer[:300]
    return json.loads(body(answer))["choices"][0]["message"]


server = subprocess.Popen([MCPRL, "--json", "serve", *SUBJECT, "--port", "0"], stdout=subprocess.PIPE, text=True)
try:
    shown = json.loads(server.stdout.readline())
    HOST, PORT = shown["url"].removeprefix("http://").split(":")
    MODEL = next(name for name in shown["models"] if not name.startswith("agent"))
    expected, before, failed, count = good(), resident(server), [], 0
    for name, act, allowed in cases():
        began = time.monotonic()
        with ThreadPoolExecutor(1) as beside:
            other = beside.submit(good)
            got = act()
            seconds = time.monotonic() - began
            if other.result() != expected:
                failed.append(f"{name}: another client's answer changed")
        if got not in allowed or seconds > PATIENCE:
            failed.append(f"{name}: {got} in {seconds:.1f} s, expected one of {sorted(allowed)}")
        count += 1
    assert server.poll() is None, "the server has ended"
    assert good() == expected
    grown = resident(server) - before
    if grown > 400:
        failed.append(f"memory has grown by {grown:.0f} MiB")
    print(f"{count} hostile clients, {len(failed)} failures; memory {grown:+.0f} MiB")
    print("\n".join(failed))
finally:
    server.kill()
sys.exit(bool(failed))
