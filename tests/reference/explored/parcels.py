"""A carrier. Lists are bare and cut without a word: `list_parcels` at its limit, `parcels_of_sender` at five. Pieces and weights are also ids."""

import json
import random
import time
from pathlib import Path

from fastmcp import FastMCP

DATA = json.loads(Path(__file__).with_suffix(".json").read_text())
STARTED = time.monotonic()
mcp = FastMCP("parcels", version="1.0")


def brief(parcel: dict) -> dict:
    return {key: value for key, value in parcel.items() if key != "events"}


@mcp.tool
def list_parcels(limit: int = 20, offset: int = 0) -> str:
    """List the parcels."""
    return json.dumps([brief(parcel) for parcel in DATA["parcels"][offset : offset + limit]])


@mcp.tool
def get_parcel(parcel_id: int) -> str:
    """Get the details of a parcel."""
    found = [parcel for parcel in DATA["parcels"] if parcel["parcel_id"] == parcel_id]
    return json.dumps(found[0]) if found else "There is no such parcel."


@mcp.tool
def parcels_of_sender(sender: str) -> str:
    """List the parcels of a sender, by the sender's code."""
    return json.dumps([brief(parcel) for parcel in DATA["parcels"] if parcel["sender"] == sender][:5])


@mcp.tool
def list_senders() -> str:
    """List all senders."""
    return json.dumps(DATA["senders"])


@mcp.tool
def get_depot(depot: str) -> str:
    """Get a depot, such as 'D1'."""
    found = [one for one in DATA["depots"] if one["depot"] == depot]
    return json.dumps(found[0]) if found else "There is no such depot."


@mcp.tool
def lucky_parcel() -> str:
    """Get the parcel that wins a prize."""
    return json.dumps(brief(random.choice(DATA["parcels"])))


@mcp.tool
def is_busy() -> str:
    """Tell whether the hotline is busy."""
    return random.choice(["yes", "no"])


@mcp.tool
def minutes_running() -> str:
    """Tell for how long the server has been running."""
    return json.dumps({"seconds": int(time.monotonic() - STARTED), "since": time.strftime("%Y-%m-%d %H:%M")})


if __name__ == "__main__":
    mcp.run(show_banner=False)
