"""Tickets behind FastMCP: in memory, or in the PostgreSQL database of DATABASE_URL (table `ticket`, column `title`)."""

import os

from fastmcp import FastMCP

server = FastMCP("tickets")
memory = ["broken lamp"]
database = None
if url := os.environ.get("DATABASE_URL"):
    import psycopg

    database = psycopg.connect(url, autocommit=True)


@server.tool
def add_ticket(title: str) -> str:
    if database:
        database.execute("INSERT INTO ticket VALUES (%s)", [title])
    else:
        memory.append(title)
    return "added"


@server.tool
def count_tickets() -> str:
    if not database:
        return f"{len(memory)} in memory"
    [count] = database.execute("SELECT count(*) FROM ticket").fetchone()
    return f"{count} in {database.info.dbname}"


server.run(show_banner=False)
