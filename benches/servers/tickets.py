"""Support desk of a small invoicing product: tickets, customers and agents, in memory."""

from datetime import datetime, timezone

from fastmcp import FastMCP
from fastmcp.exceptions import ToolError

mcp = FastMCP("support-desk")

STATUSES = ["open", "pending", "solved", "closed"]
PRIORITIES = ["low", "normal", "high", "urgent"]

AGENTS = {
    "ann": {"handle": "ann", "name": "Ann Lindqvist", "team": "billing", "on_leave": False, "languages": ["sv", "en"]},
    "ben": {"handle": "ben", "name": "Ben Okafor", "team": "billing", "on_leave": False, "languages": ["en"]},
    "zoe": {"handle": "zoe", "name": "Zoë Marchetti", "team": "technical", "on_leave": False, "languages": ["it", "fr", "en"]},
    "lukasz": {"handle": "lukasz", "name": "Łukasz Nowak", "team": "technical", "on_leave": False, "languages": ["pl", "de", "en"]},
    "priya": {"handle": "priya", "name": "Priya Raman", "team": "onboarding", "on_leave": False, "languages": ["en", "hi"]},
    "tomas": {"handle": "tomas", "name": "Tomás Herrera", "team": "technical", "on_leave": True, "languages": ["es", "en"]},
    "ingrid": {"handle": "ingrid", "name": "Ingrid Sørbø", "team": "onboarding", "on_leave": False, "languages": ["no", "en"]},
}

# number: name, company, email, plan, country, monthly fee
_customers = [
    ("C-0007", "Marguerite Dubois", "Fleurs du Canal", "m.dubois@fleurscanal.example", "basic", "FR", "19.00"),
    ("C-0011", "Håkon Vik", "Vik & Sønner AS", "hakon@vik.example", "business", "NO", "149.00"),
    ("C-0018", "Chidi Eze", "Lagos Print House", "chidi@lagosprint.example", "team", "NG", "59.00"),
    ("C-0023", "Renate Köhler", "Köhler Optik", "buchhaltung@koehler-optik.example", "team", "DE", "59.00"),
    ("C-0029", "Samuel Ortega", "Ortega Hermanos", "samuel@ortega.example", "business", "ES", "149.00"),
    ("C-0034", "Aoife Brennan", "Brennan Tree Care", "aoife@brennantrees.example", "basic", "IE", "19.00"),
    ("C-0041", "Yuki Tanabe", "Tanabe Ceramics", "info@tanabe.example", "team", "JP", "59.00"),
    ("C-0042", "Giulia Ferraro", "Studio Ferraro", "giulia@studioferraro.example", "basic", "IT", "19.00"),
    ("C-0050", "Piotr Zieliński", "Zieliński Transport", "biuro@zielinski.example", "business", "PL", "149.00"),
    ("C-0056", "Naomi Clarke", "Clarke Physio", "", "free", "GB", "0.00"),
    ("C-0063", "Elif Aydın", "Aydın Tekstil", "elif@aydin.example", "team", "TR", "59.00"),
    ("C-0070", "Owen Pritchard", "Pritchard Boats", "owen@pritchardboats.example", "free", "GB", "0.00"),
]
CUSTOMERS = {
    c[0]: dict(zip(["id", "name", "company", "email", "plan", "country", "monthly_fee"], c)) for c in _customers
}

# number, subject, customer, assignee, status, priority, tags, opened, minutes spent
_tickets = [
    (101, "Norwegian tax rate shows 24 instead of 25 percent", "C-0011", "ann", "open", "high", "tax", "2026-08-03", 35),
    (102, "Invoice PDF cuts off the last line", "C-0023", "zoe", "solved", "normal", "pdf", "2026-08-03", 80),
    (103, "Cannot log in after changing e-mail", "C-0034", "lukasz", "closed", "urgent", "login", "2026-08-04", 25),
    (104, "How do I import my old clients?", "C-0056", "priya", "solved", "low", "import", "2026-08-05", 15),
    (105, "Charged twice in July", "C-0007", "ann", "open", "urgent", "billing,refund", "2026-08-05", 40),
    (106, "Add a second logo for our shop", "C-0042", None, "open", "low", "branding", "2026-08-06", 0),
    (107, "Export to DATEV fails with error 0042", "C-0023", "lukasz", "open", "high", "export", "2026-08-06", 120),
    (108, "Reminder mails arrive at night", "C-0041", "zoe", "pending", "normal", "mail,timezone", "2026-08-07", 45),
    (109, "Upgrade from team to business", "C-0018", "ben", "closed", "normal", "billing,plan", "2026-08-07", 10),
    (110, "Invoice numbers skipped 0088 to 0090", "C-0050", "ben", "pending", "high", "numbering", "2026-08-10", 55),
    (111, "Need a copy of the data processing agreement", "C-0029", "ingrid", "solved", "normal", "legal", "2026-08-10", 20),
    (112, "Polish characters missing in PDF", "C-0050", "lukasz", "open", "normal", "pdf,fonts", "2026-08-11", 95),
    (113, "Discount of 12.5% is rounded to 13%", "C-0063", None, "open", "high", "tax", "2026-08-11", 0),
    (114, "Please cancel my account", "C-0070", "ben", "closed", "normal", "billing", "2026-08-12", 5),
    (115, "Two-factor code never arrives", "C-0018", "lukasz", "pending", "urgent", "login", "2026-08-12", 60),
    (116, "Wrong VAT number on our invoice", "C-0029", "ann", "solved", "normal", "billing", "2026-08-13", 15),
    (117, "Mobile app crashes when scanning receipts", "C-0034", "zoe", "open", "high", "mobile,crash", "2026-08-13", 150),
    (118, "Bank feed disconnected since Monday", "C-0011", "zoe", "open", "urgent", "bank", "2026-08-14", 70),
    (119, "Refund for unused months", "C-0070", "ann", "pending", "low", "billing,refund", "2026-08-14", 20),
    (120, "Training session for three new colleagues", "C-0029", "ingrid", "open", "low", "training", "2026-08-17", 0),
    (121, "Invoice stuck in draft", "C-0042", None, "open", "normal", "", "2026-08-17", 0),
    (122, "Currency shown as USD instead of EUR", "C-0007", "ben", "solved", "normal", "currency", "2026-08-18", 30),
    (123, "Webhook sends every event twice", "C-0041", "lukasz", "open", "high", "api,webhook", "2026-08-18", 110),
    (124, "Cannot delete a test customer", "C-0056", "priya", "closed", "low", "", "2026-08-19", 10),
    (125, "API returns 500 for empty address", "C-0063", "zoe", "solved", "high", "api", "2026-08-19", 65),
    (126, "Change billing address to Bergen", "C-0011", "ann", "closed", "low", "billing", "2026-08-20", 5),
    (127, "Bank feed shows duplicate payments", "C-0023", None, "open", "urgent", "bank", "2026-08-20", 0),
    (128, "Question about the yearly discount", "C-0034", "ben", "open", "low", "billing,plan", "2026-08-21", 10),
    (129, "Import of 1,200 products times out", "C-0018", "priya", "pending", "high", "import", "2026-08-21", 85),
    (130, "Receipt scanner reads 7 as 1", "C-0042", "zoe", "open", "normal", "mobile", "2026-08-24", 25),
    (131, "Quarterly tax report is empty", "C-0050", "ann", "open", "urgent", "tax,export", "2026-08-24", 50),
    (132, "Dark mode please", "C-0041", None, "open", "low", "", "2026-08-25", 0),
    (133, "Password reset link expired", "C-0070", "lukasz", "solved", "normal", "login", "2026-08-25", 10),
    (134, "Customer portal in Turkish", "C-0063", "ingrid", "pending", "low", "translation", "2026-08-26", 15),
    (135, "Late fee was added to a paid invoice", "C-0007", "ann", "pending", "high", "billing", "2026-08-26", 30),
    (136, "Cannot add a fourth user", "C-0034", "ben", "solved", "normal", "plan", "2026-08-27", 10),
    (137, "Time zone of Tokyo office is wrong", "C-0041", "zoe", "closed", "normal", "timezone", "2026-08-27", 20),
    (138, "Onboarding call moved twice", "C-0029", "ingrid", "pending", "normal", "training", "2026-08-28", 25),
    (139, "Fonts too small on printed quotes", "C-0042", None, "open", "low", "pdf,fonts", "2026-08-28", 0),
    (140, "Direct debit mandate rejected", "C-0050", "ben", "open", "high", "billing,bank", "2026-08-31", 45),
    (141, "Logo disappeared after the update", "C-0018", "zoe", "closed", "high", "branding", "2026-08-31", 35),
    (142, "Can we pay by bank transfer?", "C-0063", "ben", "solved", "low", "billing", "2026-09-01", 5),
]
TICKETS = {}
for n, subject, customer, assignee, status, priority, tags, opened, minutes in _tickets:
    TICKETS[f"T-{n:05d}"] = {
        "id": f"T-{n:05d}",
        "subject": subject,
        "customer_id": customer,
        "assignee": assignee,
        "status": status,
        "priority": priority,
        "tags": tags.split(",") if tags else [],
        "opened": opened,
        "minutes_spent": minutes,
        "updated_at": opened + "T09:00:00+00:00",
        "comments": [],
    }

TICKETS["T-00105"]["comments"] = [
    {"author": "ann", "text": "Second charge of 19.00 EUR confirmed with the bank, refund requested."},
    {"author": "Marguerite Dubois", "text": "Merci, when will I see it?"},
]
TICKETS["T-00107"]["comments"] = [
    {"author": "lukasz", "text": "Happens only when the cost centre has a leading zero."},
]
TICKETS["T-00115"]["comments"] = [
    {"author": "lukasz", "text": "Carrier blocks our short code, asked Chidi for another phone."},
    {"author": "Chidi Eze", "text": "I will try with my wife's number."},
    {"author": "lukasz", "text": "Waiting for the result."},
]
TICKETS["T-00118"]["comments"] = [{"author": "zoe", "text": "Bank changed its certificate on 2026-08-10."}]
TICKETS["T-00129"]["comments"] = [{"author": "priya", "text": "Asked for the file in four parts."}]


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _ticket(ticket_id: str) -> dict:
    ticket = TICKETS.get(ticket_id)
    if ticket is None:
        raise ToolError(f"Ticket {ticket_id} not found")
    return ticket


def _changeable(ticket_id: str) -> dict:
    ticket = _ticket(ticket_id)
    if ticket["status"] == "closed":
        raise ToolError(f"Ticket {ticket_id} is closed and can no longer be changed")
    return ticket


def _row(ticket: dict) -> dict:
    return {k: ticket[k] for k in ("id", "subject", "customer_id", "assignee", "status", "priority", "opened")}


@mcp.tool
def list_tickets(
    status: str | None = None,
    priority: str | None = None,
    assignee: str | None = None,
    customer_id: str | None = None,
    tag: str | None = None,
    page: int = 1,
    per_page: int = 10,
) -> dict:
    """List tickets, oldest first. All filters are optional and combined with AND.

    Use assignee="none" for tickets that nobody has taken yet. Results are paged, at most 25 per page.
    """
    if status is not None and status not in STATUSES:
        raise ToolError(f"Unknown status {status!r}, use one of: {', '.join(STATUSES)}")
    if priority is not None and priority not in PRIORITIES:
        raise ToolError(f"Unknown priority {priority!r}, use one of: {', '.join(PRIORITIES)}")
    if page < 1 or not 1 <= per_page <= 25:
        raise ToolError("page starts at 1, per_page is between 1 and 25")
    found = []
    for ticket in TICKETS.values():
        if status and ticket["status"] != status:
            continue
        if priority and ticket["priority"] != priority:
            continue
        if assignee and (ticket["assignee"] or "none") != assignee:
            continue
        if customer_id and ticket["customer_id"] != customer_id:
            continue
        if tag and tag not in ticket["tags"]:
            continue
        found.append(_row(ticket))
    start = (page - 1) * per_page
    return {"items": found[start : start + per_page], "total": len(found), "page": page, "per_page": per_page}


@mcp.tool
def search_tickets(text: str) -> dict:
    """Search the subjects of all tickets for a piece of text (case does not matter)."""
    found = [_row(t) for t in TICKETS.values() if text.lower() in t["subject"].lower()]
    return {"items": found, "total": len(found)}


@mcp.tool
def get_ticket(ticket_id: str) -> dict:
    """Get one ticket with everything: tags, minutes spent, comments. Ids look like T-00101."""
    return _ticket(ticket_id)


@mcp.tool
def list_agents(team: str | None = None) -> dict:
    """List the support agents with team, languages and whether they are on leave."""
    found = [a for a in AGENTS.values() if team is None or a["team"] == team]
    return {"items": found, "total": len(found)}


@mcp.tool
def find_customers(query: str = "", plan: str | None = None, country: str | None = None) -> dict:
    """Find customers by a part of the name or company, by plan (free, basic, team, business) or country code."""
    q = query.lower()
    found = [
        c
        for c in CUSTOMERS.values()
        if (q in c["name"].lower() or q in c["company"].lower())
        and (plan is None or c["plan"] == plan)
        and (country is None or c["country"] == country.upper())
    ]
    return {"items": found, "total": len(found)}


@mcp.tool
def create_ticket(customer_id: str, subject: str, priority: str = "normal", tags: list[str] | None = None) -> dict:
    """Open a new ticket for a customer. It has no assignee at first."""
    if customer_id not in CUSTOMERS:
        raise ToolError(f"Customer {customer_id} not found")
    if priority not in PRIORITIES:
        raise ToolError(f"Unknown priority {priority!r}, use one of: {', '.join(PRIORITIES)}")
    if not subject.strip():
        raise ToolError("The subject must not be empty")
    number = max(int(i[2:]) for i in TICKETS) + 1
    now = _now()
    ticket = {
        "id": f"T-{number:05d}",
        "subject": subject.strip(),
        "customer_id": customer_id,
        "assignee": None,
        "status": "open",
        "priority": priority,
        "tags": tags or [],
        "opened": now[:10],
        "minutes_spent": 0,
        "updated_at": now,
        "comments": [],
    }
    TICKETS[ticket["id"]] = ticket
    return ticket


@mcp.tool
def assign_ticket(ticket_id: str, agent: str) -> dict:
    """Give a ticket to an agent (by handle). Agents on leave do not get tickets."""
    ticket = _changeable(ticket_id)
    if agent not in AGENTS:
        raise ToolError(f"Agent {agent} not found")
    if AGENTS[agent]["on_leave"]:
        raise ToolError(f"{AGENTS[agent]['name']} is on leave")
    ticket["assignee"] = agent
    ticket["updated_at"] = _now()
    return _row(ticket)


@mcp.tool
def set_status(ticket_id: str, status: str) -> dict:
    """Set the status of a ticket: open, pending, solved or closed. Closed is final."""
    ticket = _changeable(ticket_id)
    if status not in STATUSES:
        raise ToolError(f"Unknown status {status!r}, use one of: {', '.join(STATUSES)}")
    ticket["status"] = status
    ticket["updated_at"] = _now()
    return _row(ticket)


@mcp.tool
def set_priority(ticket_id: str, priority: str) -> dict:
    """Set the priority of a ticket: low, normal, high or urgent."""
    ticket = _changeable(ticket_id)
    if priority not in PRIORITIES:
        raise ToolError(f"Unknown priority {priority!r}, use one of: {', '.join(PRIORITIES)}")
    ticket["priority"] = priority
    ticket["updated_at"] = _now()
    return _row(ticket)


@mcp.tool
def add_comment(ticket_id: str, author: str, text: str, minutes: int = 0) -> dict:
    """Add a comment to a ticket, optionally with the minutes of work it took."""
    ticket = _changeable(ticket_id)
    if not text.strip():
        raise ToolError("The comment must not be empty")
    if minutes < 0:
        raise ToolError("minutes must not be negative")
    ticket["comments"].append({"author": author, "text": text.strip()})
    ticket["minutes_spent"] += minutes
    ticket["updated_at"] = _now()
    return {"id": ticket_id, "comments": len(ticket["comments"]), "minutes_spent": ticket["minutes_spent"]}


if __name__ == "__main__":
    mcp.run()
