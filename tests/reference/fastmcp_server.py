"""The FastMCP server of tests/integration/servers/real.rs, with the schemas that other servers' tools lack.

    fastmcp_server.py stdio
    fastmcp_server.py http PORT TOKEN    # streamable HTTP on /mcp, for this bearer token only
    fastmcp_server.py sse PORT           # the older HTTP+SSE transport, on /sse

Lists have three tools per page.
"""

import sys
from enum import Enum
from typing import Annotated, Literal, Union

from fastmcp import FastMCP
from fastmcp.exceptions import ToolError
from pydantic import BaseModel, Field


class Node(BaseModel):
    """A tree: its schema refers to itself."""

    value: int
    children: list["Node"] = []


class Circle(BaseModel):
    kind: Literal["circle"]
    radius: float


class Rectangle(BaseModel):
    kind: Literal["rectangle"]
    width: float
    height: float


Shape = Annotated[Union[Circle, Rectangle], Field(discriminator="kind")]


class Unit(str, Enum):
    METRE = "m"
    FOOT = "ft"


def server(auth=None) -> FastMCP:
    mcp = FastMCP("reference", version="1.0", list_page_size=3, auth=auth)

    @mcp.tool
    def sum_tree(tree: Node) -> int:
        """Adds up the values of a tree."""
        return tree.value + sum(sum_tree_of(child) for child in tree.children)

    def sum_tree_of(tree: Node) -> int:
        return tree.value + sum(sum_tree_of(child) for child in tree.children)

    @mcp.tool
    def area(shape: Shape) -> float:
        """The area of a shape."""
        return shape.radius * shape.radius * 3 if isinstance(shape, Circle) else shape.width * shape.height

    @mcp.tool
    def greet(name: str, title: str | None = None) -> str:
        """Greets somebody."""
        return f"Hello, {title + ' ' if title else ''}{name}!"

    @mcp.tool
    def convert(length: float, unit: Unit) -> str:
        """Names a length."""
        return f"{length:g} {unit.value}"

    @mcp.tool
    def nothing() -> None:
        """Returns nothing."""

    @mcp.tool
    def record(id: Annotated[int, Field(ge=1, le=9)]) -> dict:
        """A record by its id."""
        return {"id": id, "tags": ["a", "b"]}

    @mcp.tool
    def fail(reason: str) -> str:
        """Fails with this reason."""
        raise ToolError(reason)

    return mcp


def main() -> None:
    match sys.argv[1:]:
        case ["stdio"]:
            server().run(transport="stdio", show_banner=False)
        case ["http", port, token]:
            from fastmcp.server.auth.providers.jwt import StaticTokenVerifier

            auth = StaticTokenVerifier(tokens={token: {"client_id": "test", "scopes": []}})
            server(auth).run(transport="http", host="127.0.0.1", port=int(port), show_banner=False)
        case ["sse", port]:
            server().run(transport="sse", host="127.0.0.1", port=int(port), show_banner=False)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
