"""A hotel. Pages say that they are pages: by `total`, by `pages`, by a cursor `next`. Rooms are called 001, prices are text, records are nested."""

import json
import random
from pathlib import Path

from fastmcp import FastMCP
from fastmcp.exceptions import ToolError

DATA = json.loads(Path(__file__).with_suffix(".json").read_text())
mcp = FastMCP("hotel", version="1.0")


def only(records: list, what: str) -> str:
    if not records:
        raise ToolError(f"no such {what}")
    return json.dumps(records[0], ensure_ascii=False)


@mcp.tool
def list_rooms(page: int = 1) -> str:
    """List the rooms of the hotel, ten on a page."""
    rooms = DATA["rooms"]
    return json.dumps({"page": page, "pages": -(-len(rooms) // 10), "rooms": rooms[10 * (page - 1) :][:10]})


@mcp.tool
def get_room(number: str) -> str:
    """Get a room by its number, such as '104'."""
    return only([room for room in DATA["rooms"] if room["number"] == number], "room")


@mcp.tool
def list_guests(after: int | None = None) -> str:
    """List the guests. `after` is the `next` of the page before."""
    guests = [guest for guest in DATA["guests"] if after is None or guest["guest_id"] > after]
    page = guests[:12]
    return json.dumps({"guests": page, "next": page[-1]["guest_id"] if len(guests) > 12 else None}, ensure_ascii=False)


@mcp.tool
def get_guest(guest_id: int) -> str:
    """Get the details of a guest."""
    return only([guest for guest in DATA["guests"] if guest["guest_id"] == guest_id], "guest")


@mcp.tool
def bookings_of_guest(guest_id: int) -> str:
    """List the bookings of a guest."""
    found = [booking for booking in DATA["bookings"] if booking["guest_id"] == guest_id]
    return json.dumps({"total": len(found), "bookings": found[:4]}, ensure_ascii=False)


@mcp.tool
def get_booking(code: str) -> str:
    """Get the details of a booking by its code, such as 'B-0003'."""
    return only([booking for booking in DATA["bookings"] if booking["code"] == code], "booking")


@mcp.tool
def free_rooms_tonight() -> str:
    """List the rooms that are free tonight."""
    return json.dumps({"rooms": random.sample([room["number"] for room in DATA["rooms"]], 3)})


if __name__ == "__main__":
    mcp.run(show_banner=False)
