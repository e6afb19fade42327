"""A plant. Device lists are cut and say so, readings are lines of text, a device has one field that always changes beside good ones."""

import json
import random
import time
from pathlib import Path
from typing import Literal

from fastmcp import FastMCP

DATA = json.loads(Path(__file__).with_suffix(".json").read_text())
mcp = FastMCP("devices", version="1.0")


@mcp.tool
def list_devices(site: Literal["north", "south", "møllen"] | None = None) -> str:
    """List the devices of a site, or of all sites."""
    found = [device for device in DATA["devices"] if site in (None, device["site"])]
    return json.dumps({"devices": found[:12], "truncated": len(found) > 12}, ensure_ascii=False)


@mcp.tool
def get_device(device_id: int) -> str:
    """Get the details of a device."""
    for device in DATA["devices"]:
        if device["device_id"] == device_id:
            return json.dumps(device | {"load_percent": random.randint(0, 100)}, ensure_ascii=False)
    return "Error: no such device"


@mcp.tool
def get_readings(device_id: int, last: int = 5) -> str:
    """Get the last readings of a device: time and degrees."""
    rows = [(at, value) for device, at, value in DATA["readings"] if device == device_id]
    return "\n".join(f"{at} | {'' if value is None else value}" for at, value in rows[-last:]) or "no readings"


@mcp.tool
def alerts_of_device(device_id: int) -> str:
    """List all alerts of a device."""
    return json.dumps([alert for alert in DATA["alerts"] if alert["device_id"] == device_id])


@mcp.tool
def list_sites() -> str:
    """List all sites."""
    return json.dumps(DATA["sites"], ensure_ascii=False)


@mcp.tool
def ping(device_id: int) -> str:
    """Ping a device."""
    return f"pong from {device_id} in {random.randint(2, 900)} ms"


@mcp.tool
def clock() -> str:
    """Tell the time at the plant."""
    return time.strftime("%H:%M:%S")


if __name__ == "__main__":
    mcp.run(show_banner=False)
