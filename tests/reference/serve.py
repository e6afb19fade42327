"""Talks with a served run through openai-python, litellm and the MCP SDKs of Python and TypeScript (see serve.sh): `serve.py MCPRL SUBJECT [OPTION…]`."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import litellm
import openai
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from openai.lib.streaming._deltas import accumulate_delta
from pydantic import BaseModel, ConfigDict, Field

MCPRL, *SUBJECT = sys.argv[1:]
SERVE = ["serve", *SUBJECT]
SYSTEM = Path("pipelines/sqlite.system.txt").read_text().strip()
QUESTIONS = ["How many employees are there?", "How many departments are there?", "How many projects are there?"]


def added(stream):
    """The message that the library makes of a stream's deltas, and how it ended."""
    message, reason, usage = {}, None, None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            message = accumulate_delta(message, choice.delta.to_dict())
            reason = choice.finish_reason or reason
    for call in message.get("tool_calls") or []:
        del call["index"]
    return message, reason, usage


def check_stream(client, **request):
    """Streamed and whole are the same. Returns the whole completion."""
    whole = client.chat.completions.create(**request)
    message, reason, usage = added(
        client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True})
    )
    expected = whole.choices[0].message.to_dict()
    for name in ("content", "tool_calls", "reasoning", "reasoning_content", "role"):
        assert (message.get(name) or None) == (expected.get(name) or None), (name, message, expected)
    assert reason == whole.choices[0].finish_reason
    assert usage == whole.usage
    return whole


def policy(client):
    """The first model that takes tools and forms: any but the agents."""
    return next(model.id for model in client.models.list() if not model.id.startswith("agent"))


def check_completions(client):
    names = [model.id for model in client.models.list()]
    assert "agent" in names and len(names) > 1, names
    streamed = 0
    for model in (name for name in names if not name.startswith("agent")):
        for seed in range(3):
            request = {"model": model, "seed": seed, "max_tokens": 60, "messages": [{"role": "user", "content": "Hello?"}]}
            whole = check_stream(client, **request)
            # The library's own accumulator, the strictest.
            with client.chat.completions.stream(**request) as stream:
                final = stream.get_final_completion()
            assert (final.choices[0].message.content or "") == (whole.choices[0].message.content or "")
            streamed += 1
    for wrong, problem in [
        ({"frequency_penalty": 1}, openai.BadRequestError),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}}, openai.BadRequestError),
        ({"model": "gpt-4"}, openai.NotFoundError),
    ]:
        request = {"model": names[0], "messages": [{"role": "user", "content": "Hello?"}], **wrong}
        try:
            client.chat.completions.create(**request)
        except problem as error:
            assert error.body["message"], error
        else:
            raise AssertionError(f"{wrong} is taken")
    print(f"openai {openai.__version__}: {streamed} streams add up to their whole answers")


class Reading(BaseModel):
    """What a model has to reply, as the library's users write it."""

    model_config = ConfigDict(extra="forbid")
    unit: Literal["celsius", "fahrenheit"]
    degrees: list[Literal[10, 20, 30]] = Field(min_length=1, max_length=3)
    note: str = Field(max_length=12)


def check_forms(client):
    """Answers whose form is required have it, whatever the model would write: at a high temperature it writes noise."""
    schema = {
        "type": "object", "additionalProperties": False, "required": ["city"],
        "properties": {"city": {"enum": ["Bern", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    }
    tools = [
        {"type": "function", "function": {"name": name, "description": "Weather.", "parameters": schema}}
        for name in ("forecast", "history")
    ]
    request = {"model": policy(client), "messages": [{"role": "user", "content": "Weather?"}], "temperature": 1.5}
    replies = called = 0
    for seed in range(5):
        request["seed"] = seed
        with client.chat.completions.stream(**request, response_format=Reading) as stream:
            streamed = stream.get_final_completion().choices[0].message.parsed
        assert client.chat.completions.parse(**request, response_format=Reading).choices[0].message.parsed == streamed
        replies += isinstance(streamed, Reading)
        for choice, names in [("required", {"forecast", "history"}), ({"type": "function", "function": {"name": "history"}}, {"history"})]:
            completion = check_stream(client, **request, tools=tools, tool_choice=choice)
            (call,) = completion.choices[0].message.tool_calls
            assert completion.choices[0].finish_reason == "tool_calls" and call.function.name in names, call
            arguments = json.loads(call.function.arguments)
            assert arguments["city"] in ("Bern", "Oslo") and 1 <= arguments.get("days", 1) <= 9, arguments
            called += 1
    print(f"openai {openai.__version__}: {replies} replies and {called} calls have the form that was required")


async def check_calls(client):
    """The model calls the demo server's tools through a client's own loop."""
    calls = answers = 0
    async with stdio_client(StdioServerParameters(command=MCPRL, args=["demo-server", "sqlite"])) as pipes:
        async with ClientSession(*pipes) as session:
            await session.initialize()
            listed = (await session.list_tools()).tools
            tools = [
                {"name": tool.name, "description": tool.description, "parameters": tool.input_schema} for tool in listed
            ]
            answer = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
            tools.append({"name": "complete_task", "description": "Ends the task with the answer.", "parameters": answer})
            tools = [{"type": "function", "function": tool} for tool in tools]
            for question in QUESTIONS:
                messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
                for _ in range(6):
                    completion = check_stream(
                        client, model=policy(client), messages=messages, tools=tools, temperature=0, max_tokens=400
                    )
                    message = completion.choices[0].message
                    messages.append(message.to_dict())
                    if not message.tool_calls:
                        break
                    assert completion.choices[0].finish_reason == "tool_calls"
                    for call in message.tool_calls:
                        calls += 1
                        if call.function.name == "complete_task":
                            answers += 1
                            break
                        result = await session.call_tool(call.function.name, json.loads(call.function.arguments))
                        text = "".join(part.text for part in result.content if part.type == "text")
                        messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
                    else:
                        continue
                    break
    assert calls > 0, "the model makes no call"
    print(f"openai {openai.__version__}: {calls} calls, {answers} answers of {len(QUESTIONS)} questions")


async def check_ask(session, how):
    await session.initialize()
    (tool,) = (await session.list_tools()).tools
    assert tool.name == "ask" and "tools of" in tool.description, tool
    heard = []

    async def progress(done, total, message):
        heard.append((done, message))

    replies = []
    for question in QUESTIONS:
        result = await session.call_tool("ask", {"task": question, "calls": True}, progress_callback=progress)
        made = result.structured_content["calls"]
        replies.append((result.content[0].text, len(made)))
        assert all(call["tool"] and isinstance(call["arguments"], dict) for call in made), made
    assert len(heard) > 0 and [done for done, _ in heard][0] == 1.0, heard
    print(f"mcp, {how}: {replies}")
    return replies


def check_kept(folder):
    """Conversations are kept with their tokens: one file for all requests of a loop."""
    kept = [json.loads(path.read_text()) for path in folder.iterdir()]
    for one in kept:
        assert len(one["tokens"]) == len(one["sampled"]) == len(one["logprobs"]) > 0
        assert one["messages"][-1]["role"] in ("assistant", "tool"), one["messages"]
    loops = [one for one in kept if one["model"] != "agent" and len(one["tools"]) > 2]  # the others offer one or two
    turns = [sum(message["role"] == "assistant" for message in one["messages"]) for one in loops]
    assert len(loops) == len(QUESTIONS) and max(turns) > 1, turns
    agents = sum(one["model"] == "agent" for one in kept)
    assert agents >= 2 * len(QUESTIONS), agents
    print(f"kept: {len(loops)} loops of {turns} turns, {agents} conversations of the agent")


def check_litellm(url):
    """litellm's client: whole and streamed answers, tools, and an error of the kind that its users catch."""
    request = {
        "model": "openai/trained",
        "api_base": f"{url}/v1",
        "api_key": "none",
        "messages": [{"role": "user", "content": QUESTIONS[0]}],
        "temperature": 0,
        "max_tokens": 40,
    }
    whole = litellm.completion(**request).choices[0].message.content
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in litellm.completion(**request, stream=True))
    assert whole == streamed, (whole, streamed)
    function = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}
    tools = [{"type": "function", "function": function}]
    assert litellm.completion(**request, tools=tools).choices[0].finish_reason in ("stop", "tool_calls", "length")
    try:
        litellm.completion(**request | {"model": "openai/none"})
        raise AssertionError("an unknown model answers")
    except litellm.NotFoundError:
        pass
    print(f"litellm {version('litellm')}: a stream adds up to its whole answer; an unknown model is its NotFoundError")


def check_typescript():
    """The TypeScript MCP SDK over stdio."""
    command = ["node", Path(__file__).with_suffix(".mjs"), os.environ["MCP_SDK"], MCPRL, *SERVE[1:]]
    done = subprocess.run(command, env=os.environ | {"QUESTIONS": json.dumps(QUESTIONS)}, stdout=subprocess.PIPE, check=True)
    print(f"TypeScript SDK, stdio: {done.stdout.decode().strip()}")
    return [tuple(answer) for answer in json.loads(done.stdout)]


async def main():
    kept = tempfile.TemporaryDirectory()
    command = [MCPRL, "--json", *SERVE, "--port", "0", "--keep", kept.name]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        url = json.loads(server.stdout.readline())["url"]
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        check_completions(client)
        check_forms(client)
        check_litellm(url)
        await check_calls(client)
        async with streamable_http_client(f"{url}/mcp") as (read, write, *_):
            async with ClientSession(read, write) as session:
                over_http = await check_ask(session, "streamable HTTP")
        endpoint = [
            client.chat.completions.create(model="agent", messages=[{"role": "user", "content": question}])
            for question in QUESTIONS
        ]
        texts = [completion.choices[0].message.content for completion in endpoint]
        for (text, _), other in zip(over_http, texts):
            assert other in (text, ""), (text, other)
        async with stdio_client(StdioServerParameters(command=MCPRL, args=[*SERVE, "--mcp"])) as pipes:
            async with ClientSession(*pipes) as session:
                assert await check_ask(session, "stdio") == over_http
        assert check_typescript() == over_http
        check_kept(Path(kept.name))
    finally:
        server.kill()


asyncio.run(main())
