"""An agent of the OpenAI Agents SDK. It knows nothing of mcprl: the SDK reads the endpoint and the key from the environment."""

import asyncio
import os
import sys
from pathlib import Path

from agents import Agent, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
from agents.mcp import MCPServerStreamableHttp
from openai import AsyncOpenAI


async def main(task):
    async with MCPServerStreamableHttp(params={"url": os.environ["MCPRL_MCP_URL"]}) as server:
        agent = Agent(
            name="assistant",
            instructions=Path(__file__).with_name("instructions.txt").read_text().strip(),
            mcp_servers=[server],
            model=OpenAIChatCompletionsModel(model=os.environ["OPENAI_MODEL"], openai_client=AsyncOpenAI()),
        )
        result = await Runner.run(agent, task)
    print(result.final_output.replace("\n", " "))


set_tracing_disabled(True)
asyncio.run(main(sys.argv[1]))
