"""Recomputes every answer of NAME.people.jsonl from the servers' data and tries every order.

Run with the Python that has FastMCP: `python check.py [NAME ...]`. Prints each difference; the exit status is their number.
Answers are computed from the data alone, never through a tool. Each order runs in a fresh process.
"""

import asyncio
import importlib
import json
import logging
import os
import re
import sys
from collections import Counter
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
NAMES = ["tickets", "library", "warehouse", "agenda"]


# Answers: for each question a piece of its wording and the answer; a list stands for a set.


def tickets_answers(d):
    tickets, customers, agents = list(d.TICKETS.values()), d.CUSTOMERS, d.AGENTS

    def company(name):
        (found,) = [c["id"] for c in customers.values() if c["company"] == name]
        return found

    def about(*words):
        (found,) = [t for t in tickets if all(w in t["subject"] for w in words)]
        return found

    def speaks(language, team=None):
        (found,) = [a["name"] for a in agents.values() if language in a["languages"] and team in (None, a["team"])]
        return found

    open_of = Counter(t["assignee"] for t in tickets if t["status"] == "open")
    assert open_of["ann"] != open_of["ben"]
    fee = {n: float(customers[company(n)]["monthly_fee"]) for n in ("Fleurs du Canal", "Aydın Tekstil")}
    aoife = [c["id"] for c in customers.values() if c["name"] == "Aoife Brennan"]
    (no_mail,) = [c["name"] for c in customers.values() if not c["email"]]
    return [
        ("nobody picked up", sum(t["assignee"] is None for t in tickets)),
        ("Giulia", customers[company("Studio Ferraro")]["email"]),
        ("away on leave", [a["name"] for a in agents.values() if a["on_leave"]][0]),
        ("webhook", about("Webhook", "twice")["id"]),
        ("disconnected on a Monday", about("Bank feed disconnected")["priority"]),
        ("Ann or Ben", agents[max(("ann", "ben"), key=lambda a: open_of[a])]["name"]),
        ("crashes when scanning", about("app crashes")["minutes_spent"]),
        ("Polish characters", agents[about("Polish characters")["assignee"]]["name"]),
        ("Köhler Optik", sum(t["customer_id"] == company("Köhler Optik") for t in tickets)),
        ("free plan", [c["company"] for c in customers.values() if c["plan"] == "free"]),
        ("only Italian", speaks("it")),
        ("charged twice in July", "yes" if about("Charged twice")["status"] in ("solved", "closed") else "no"),
        ("reminder mails", about("Reminder mails")["opened"]),
        ("Ortega Hermanos", float(customers[company("Ortega Hermanos")]["monthly_fee"])),
        ("closed for good", sum(t["status"] == "closed" for t in tickets)),
        ("certificate", re.search(r"\d{4}-\d\d-\d\d", about("Bank feed disc")["comments"][0]["text"]).group()),
        ("urgent and still open", [t["id"] for t in tickets if (t["priority"], t["status"]) == ("urgent", "open")]),
        ("two-factor", len(about("Two-factor")["comments"])),
        ("longest", min((t for t in tickets if t["status"] == "pending"), key=lambda t: t["opened"])["id"]),
        ("tag training", [t["subject"] for t in tickets if "training" in t["tags"] and t["status"] == "pending"][0]),
        ("Hindi", speaks("hi", "onboarding")),
        ("Aoife Brennan", sum(t["customer_id"] in aoife and t["status"] == "solved" for t in tickets)),
        ("dark mode", customers[about("Dark mode")["customer_id"]]["company"]),
        ("Tomás", sum(t["assignee"] == "tomas" for t in tickets)),
        ("business plan", sum(c["plan"] == "business" for c in customers.values())),
        ("bank feeds", sum(t["minutes_spent"] for t in tickets if "Bank feed" in t["subject"])),
        ("monthly fee is bigger", max(fee, key=fee.get)),
        ("British", no_mail),
        ("high priority", sum(t["assignee"] == "zoe" and t["priority"] == "high" for t in tickets)),
        ("fax", sum("fax" in t["subject"].lower() for t in tickets)),
    ]


def library_answers(d):
    books, copies, members = list(d.BOOKS.values()), list(d.COPIES.values()), list(d.MEMBERS.values())
    loans, holds = list(d.LOANS.values()), list(d.HOLDS.values())

    def book(title):
        (found,) = [b for b in books if b.title == title]
        return found

    def of(title):
        return [c for c in copies if c.book_id == book(title).id]

    def who(name):
        (found,) = [m for m in members if m.name == name]
        return found

    def by_card(card):
        return [m.name for m in members if m.card == card][0]

    def loan(title, name=None):
        codes = [c.barcode for c in of(title)]
        (found,) = [x for x in loans if x.barcode in codes and (name is None or x.card == who(name).card)]
        return found

    def title_of(x):
        return [b.title for b in books for c in copies if c.barcode == x.barcode and c.book_id == b.id][0]

    (free_prince,) = [c.barcode for c in of("The Little Prince") if c.state == "available"]
    queue = sorted((h for h in holds if h.book_id == book("Sapiens").id), key=lambda h: (h.placed, h.id))
    (blind,) = [h for h in holds if h.book_id == book("Blindness").id]
    assert not of("Blindness")
    return [
        ("copies of Sapiens", len(of("Sapiens"))),
        ("Silent Spring", book("Silent Spring").author),
        ("Solaris", "yes" if any(c.state == "available" for c in of("Solaris")) else "no"),
        ("Ursula Le Guin", [b.title for b in books if b.author == "Ursula K. Le Guin"]),
        ("Dmitri Volkov", who("Dmitri Volkov").fines),
        ("first on the waiting list", by_card(queue[0].card)),
        ("Kenji Mori", sum(x.card == who("Kenji Mori").card for x in loans)),
        ("German", [b.title for b in books if b.language == "German"]),
        ("Cyberiad", of("The Cyberiad")[0].branch),
        ("Agnès", loan("The Master and Margarita", "Agnès Moreau").due.isoformat()),
        ("newest member from Millbeck", max((m for m in members if m.town == "Millbeck"), key=lambda m: m.joined).name),
        ("Maladies", book("The Emperor of All Maladies").pages),
        ("longer read", max(book("Americanah"), book("Half of a Yellow Sun"), key=lambda b: b.pages).title),
        ("oldest book", min(books, key=lambda b: b.year).title),
        ("before 1950", sum(b.year < 1950 for b in books)),
        ("from Eastlow", sum(m.town == "Eastlow" for m in members)),
        ("Beatriz Nunes", who("Beatriz Nunes").card),
        ("Persepolis", by_card(loan("Persepolis").card)),
        ("come back first", title_of(min(loans, key=lambda x: x.due))),
        ("24 September 2026", sum(x.due.isoformat() < "2026-09-24" for x in loans)),
        ("Brief History", sum(c.state == "repair" for c in of("A Brief History of Time"))),
        ("Nadia Petrović", "yes" if who("Nadia Petrović").email else "no"),
        ("Portuguese", sum(b.language == "Portuguese" for b in books)),
        ("came out first", min(book("Kafka on the Shore"), book("Norwegian Wood"), key=lambda b: b.year).title),
        ("Little Prince", free_prince),
        ("Eastlow paid", sum(m.fines for m in members if m.town == "Eastlow")),
        ("Hanna Björk", loan("Le Petit Prince", "Hanna Björk").renewals),
        ("Blindness", by_card(blind.card)),
        ("Grace Adeyemi", sum(h.card == who("Grace Adeyemi").card for h in holds)),
        ("Tom Whitfield", who("Tom Whitfield").joined.isoformat()),
    ]


def warehouse_answers(d):
    items, picks, deliveries = list(d.items.values()), list(d.picks.values()), list(d.deliveries.values())

    def sku(*words):
        (found,) = [i["sku"] for i in items if all(w in i["name"] for w in words)]
        return found

    def price(code):
        return d.items[code]["unitPrice"]

    def have(code):
        return sum(n for (_, s), n in d.stock.items() if s == code)

    def room(code):
        return d.bins[code]["capacity"] - sum(n for (b, _), n in d.stock.items() if b == code)

    ochre = sum(
        line["quantity"]
        for p in picks
        if p["customer"] == "Maison Lefèvre" and p["status"] == "open"
        for line in p["lines"]
        if line["sku"] == sku("ochre")
    )
    coming = [x for x in deliveries if x["status"] in ("expected", "late")]
    (helmets,) = [p for p in picks if p["customer"] == "O'Neill Roofing" and p["status"] == "open"]
    (shipped,) = [p for p in picks if p["customer"] == "Bau & Söhne" and p["status"] == "shipped"]
    tools = [c for c, b in d.bins.items() if b["zone"] == "tools" and not b["blocked"]]
    ear, grinder, shovel = sku("Ear defenders"), sku("Angle grinder"), sku("Snow shovel")
    (reel_bin,) = [b for (b, s) in d.stock if s == sku("Cable reel")]
    return [
        ("M8x40", have(sku("M8x40"))),
        ("claw hammer", price(sku("Claw hammer"))),
        ("silicone", d.items[sku("Silicone", "white")]["supplier"]),
        ("running short", [i["sku"] for i in items if have(i["sku"]) < i["minStock"]]),
        ("B-01", room("B-01")),
        ("bins are blocked", [c for c, b in d.bins.items() if b["blocked"]]),
        ("Håndverk", [x["expected"] for x in coming if x["supplier"] == "Håndverk AS"][0]),
        ("ear defenders", d.items[ear]["minStock"] - have(ear)),
        ("O'Neill", helmets["picker"]),
        ("no picker yet", sum(p["status"] == "open" and not p["picker"] for p in picks)),
        ("Maison Lefèvre", "yes" if have(sku("ochre")) >= ochre else "no"),
        ("in the bins today", have(shovel)),
        ("on their way", sum(x["quantity"] for y in coming for x in y["lines"] if x["sku"] == shovel)),
        ("cable reels", reel_bin),
        ("dearest power tool", max((i for i in items if i["category"] == "power tools"), key=lambda i: i["unitPrice"])["sku"]),
        ("pruning shears", sku("Pruning shears")),
        ("work gloves", sum(have(i["sku"]) for i in items if "Work gloves" in i["name"])),
        ("marked late", [x["id"] for x in deliveries if x["status"] == "late"][0]),
        ("order was cancelled", [p["customer"] for p in picks if p["status"] == "cancelled"][0]),
        ("safety items", sum(i["category"] == "safety" for i in items)),
        ("angle grinders", round(have(grinder) * price(grinder), 2)),
        ("most room left", max(tools, key=room)),
        ("Wojtek", sum(p["picker"] == "Wojtek" and p["status"] == "open" for p in picks)),
        ("18 V batteries", sum(x["quantity"] for x in shipped["lines"] if x["sku"] == sku("Battery"))),
        ("Cable reel or LED", max(sku("Cable reel"), sku("LED work light"), key=price)),
        ("no supplier", [i["sku"] for i in items if not i["supplier"]]),
        ("Riverside School", max(p["due"] for p in picks if p["customer"] == "Riverside School" and p["status"] == "open")),
        ("from Håndverk AS", sum(i["supplier"] == "Håndverk AS" for i in items)),
        ("lying in B-03", [s for (b, s) in d.stock if b == "B-03"]),
        ("Bosch", sum("bosch" in i["supplier"].lower() for i in items)),
    ]


def agenda_answers(d):
    events = list(d.EVENTS.values())
    name = {k: p["name"] for k, p in d.PEOPLE.items()}

    def one(title):
        (found,) = [e for e in events if e["title"] == title]
        return found

    def said(title, answer):
        return [name[k] for k, a in one(title)["invited"].items() if a == answer]

    def on(day):
        return [e for e in events if e["date"] == day]

    def hours(e):
        h, m = (int(b) - int(a) for a, b in zip(e["start"].split(":"), e["end"].split(":")))
        return h + m / 60

    def first(rows):
        return min(rows, key=lambda e: e["start"])["title"]

    henk = [e for e in on("2027-03-08") if e["organiser"] == "henk" or "henk" in e["invited"]]
    keiko = [e for e in on("2027-03-09") if e["organiser"] == "keiko" or "keiko" in e["invited"]]
    count = {day: len(on(day)) for day in ("2027-03-09", "2027-03-10")}
    assert count["2027-03-09"] != count["2027-03-10"]
    return [
        ("institute assembly", one("Institute assembly")["room"]),
        ("Calypso", d.ROOMS["Calypso"]["seats"]),
        ("Esra", d.PEOPLE["esra"]["extension"]),
        ("leads the Data", [p["name"] for p in d.PEOPLE.values() if (p["group"], p["role"]) == ("Data", "group leader")][0]),
        ("3 March", len(on("2027-03-03"))),
        ("buoy", said("Buoy data hand-over", "declined")[0]),
        ("whiteboard", [r for r, x in d.ROOMS.items() if "whiteboard" in x["equipment"]]),
        ("model comparison", one("Model comparison")["start"]),
        ("fire drill", len(said("Fire drill briefing", "no answer"))),
        ("ministry", ", ".join(said("Visit of the ministry", "no answer"))),
        ("Noor organise", sum(e["organiser"] == "noor" for e in events)),
        ("thesis talk", one("Thesis talk: Farid")["date"]),
        ("Keiko", len(keiko)),
        ("belongs to the office", [p["name"] for p in d.PEOPLE.values() if p["group"] == "Office"]),
        ("largest room", max(d.ROOMS, key=lambda r: d.ROOMS[r]["seats"])),
        ("storage migration", hours(one("Storage migration"))),
        ("second part", said("Python course, part 2", "no answer")),
        ("doctoral students", sum(p["role"] == "doctoral student" for p in d.PEOPLE.values())),
        ("cruise", name[one("Cruise logistics")["organiser"]]),
        ("no phone extension", [p["name"] for p in d.PEOPLE.values() if not p["extension"]]),
        ("Henk", first(henk)),
        ("Aurora", "yes" if any(e["room"] == "Aurora" for e in on("2027-03-05")) else "no"),
        ("paper club", sum(e["title"] == "Paper club" for e in events)),
        ("quieter day", min(count, key=count.get)),
        ("lab manager", ", ".join(said("Interview: lab manager", "accepted"))),
        ("6 March", len(on("2027-03-06"))),
        ("Liam declined", sum(e["invited"].get("liam") == "declined" for e in events)),
        ("early in the morning", first(on("2027-03-02"))),
        ("15", [r for r, x in d.ROOMS.items() if x["seats"] >= 15]),
        ("Fjord", d.ROOMS["Fjord"]["floor"]),
    ]


# Orders: for each a piece of its wording and the calls that carry it out; "refuse" marks those that no call carries out.

ORDERS = {
    "tickets": [
        ("Norwegian tax", [("set_status", {"ticket_id": "T-00101", "status": "closed"})]),
        ("Ann's open", [("assign_ticket", {"ticket_id": t, "agent": "ben"}) for t in ("T-00101", "T-00105", "T-00131")]),
        ("two-factor", [("assign_ticket", {"ticket_id": "T-00115", "agent": "zoe"})]),
        (
            "skipped invoice",
            [
                ("set_priority", {"ticket_id": "T-00110", "priority": "urgent"}),
                ("add_comment", {"ticket_id": "T-00110", "author": "ben", "text": "The auditor called."}),
            ],
        ),
        ("duplicate payments", [("assign_ticket", {"ticket_id": "T-00127", "agent": "lukasz"})]),
        ("mandate", [("set_priority", {"ticket_id": "T-00140", "priority": "urgent"})]),
        (
            "wrong logo",
            [("create_ticket", {"customer_id": "C-0034", "subject": "App shows the wrong logo", "priority": "low"})],
        ),
        (
            "20 minutes",
            [("add_comment", {"ticket_id": "T-00130", "author": "zoe", "text": "Fix is being tested", "minutes": 20})],
        ),
        ("Reopen", [("set_status", {"ticket_id": "T-00141", "status": "open"})], "refuse"),
        ("Tomás", [("assign_ticket", {"ticket_id": "T-00134", "agent": "tomas"})], "refuse"),
    ],
    "library": [
        ("Oscar Lund", [("return_copy", {"barcode": "002120"})]),
        ("Dispossessed", [("lend_copy", {"card": "L0023", "barcode": "001444"})]),
        ("Leila", [("pay_fine", {"card": "L0057", "amount": 5.0})]),
        ("Mateus", [("cancel_hold", {"hold_id": 72})]),
        ("Cyberiad", [("place_hold", {"card": c, "book_id": 14}) for c in ("L0040", "L0086")]),
        ("Rosa", [("lend_copy", {"card": "L0080", "barcode": "001269"})]),
        ("Americanah", [("renew_loan", {"loan_id": 509})]),
        ("torn out", [("return_copy", {"barcode": "001259", "damaged": True})]),
        ("Momo", [("lend_copy", {"card": "L0062", "barcode": "001851"})], "refuse"),
        ("Kafka", [("renew_loan", {"loan_id": 510})], "refuse"),
    ],
    "warehouse": [
        ("helmets", [("shipPick", {"pickId": "P0905"})]),
        ("ear defenders", [("receiveDelivery", {"deliveryId": "DLV-0035", "binCode": "D-03"})]),
        ("Amara", [("assignPick", {"pickId": p, "picker": "Amara"}) for p in ("P0904", "P0906")]),
        ("Snow shovels", [("updateItem", {"sku": "00810", "unitPrice": 24.9})]),
        ("hoses", [("moveStock", {"sku": "00801", "fromBin": "E-02", "toBin": "E-01", "quantity": 4})]),
        ("wood glue", [("updateItem", {"sku": "00705", "minStock": 30})]),
        ("tape measures", [("moveStock", {"sku": "00211", "fromBin": "B-01", "toBin": "B-03", "quantity": 20})]),
        ("21 September", [("shipPick", {"pickId": p}) for p in ("P0903", "P0904")]),
        ("Lefèvre", [("shipPick", {"pickId": "P0906"})], "refuse"),
        (
            "washers",
            [("moveStock", {"sku": "00131", "fromBin": "A-01", "toBin": "A-03", "quantity": 100})],
            "refuse",
        ),
    ],
    "agenda": [
        ("Maja", [("invite", {"event_id": "ev018", "person_name": "maja"})]),
        ("fire drill", [("reschedule", {"event_id": "ev008", "date": "2027-03-02", "start": "16:00", "end": "16:30"})]),
        ("coffee", [("cancel_event", {"event_id": "ev016"})]),
        ("stuffy", [("change_room", {"event_id": "ev021", "room": "Boreas"})]),
        ("Farid", [("reply", {"event_id": "ev015", "person_name": "farid", "accept": True})]),
        (
            "Sensor paper",
            [
                (
                    "new_event",
                    {
                        "organiser": "carmen",
                        "title": "Sensor paper",
                        "date": "2027-03-09",
                        "start": "16:00",
                        "end": "17:00",
                        "room": "Fjord",
                        "invited": ["bogdan"],
                    },
                )
            ],
        ),
        ("Python course", [("change_room", {"event_id": "ev030", "room": "Calypso"})]),
        ("board lunch", [("reply", {"event_id": "ev027", "person_name": "dag", "accept": False})]),
        ("institute assembly", [("change_room", {"event_id": "ev001", "room": "Aurora"})], "refuse"),
        (
            "Climate group",
            [("reschedule", {"event_id": "ev023", "date": "2027-03-08", "start": "11:00", "end": "12:00"})],
            "refuse",
        ),
    ],
}

REFUSALS = [
    "I cannot do that.",
    "That can't be done.",
    "This isn’t possible.",
    "I was unable to carry this out.",
    "The server refused the request.",
    "It could not be done.",
    "No.",
    "No, that did not work.",
]
CLAIMS = ["Done.", "I have done it.", "Yes, that worked.", "ok", "Done, everything is arranged."]


def plain(text):
    return re.sub(r"[\s\"'`]+", " ", str(text)).strip().rstrip(".").casefold()


def holds(text, expect):
    """Whether the result of a call is as a comparison says."""
    expect = dict(expect)
    if "json" in expect:
        try:
            value = json.loads(text)
            for part in expect.pop("json").split("/")[1:]:
                part = part.replace("~1", "/").replace("~0", "~")
                value = value[int(part)] if isinstance(value, list) else value[part]
        except (ValueError, KeyError, IndexError, TypeError):
            return False
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    for key, wanted in expect.items():
        if key == "equals":
            good = plain(text) == plain(wanted)
        elif key == "number":
            good = re.fullmatch(r"-?\d+(\.\d+)?", text) is not None and abs(float(text) - wanted) < 1e-9
        elif key == "matches":
            assert not re.search(r"\(\?[=!<]", wanted), "look-around"
            good = re.search(wanted, text) is not None
        else:
            raise ValueError(key)
        if not good:
            return False
    return True


async def state(client, checks):
    result = []
    for check in checks:
        reply = await client.call_tool(check["tool"], check["arguments"], raise_on_error=False)
        text = reply.content[0].text if reply.content else ""
        result.append(not reply.is_error and not text.startswith("ERROR") and holds(text, check["expect"]))
    return result


async def order(module, task, calls, refused):
    from fastmcp import Client

    bad = []
    async with Client(module.mcp) as client:
        checks = task["checks"]["state"]
        before = await state(client, checks)
        errors = []
        for tool, arguments in calls:
            reply = await client.call_tool(tool, arguments, raise_on_error=False)
            errors.append(reply.is_error or reply.content[0].text.startswith("ERROR"))
        after = await state(client, checks)
    if not all(after):
        bad.append(f"the intended calls do not satisfy {[c for c, good in zip(checks, after) if not good]}")
    if refused:
        if not all(before):
            bad.append("the state is not as it should stay")
        if not all(errors):
            bad.append("the server does not refuse")
        (answer,) = task["checks"]["answer"]
        bad += [f"not taken as a refusal: {t}" for t in REFUSALS if not holds(t, answer)]
        bad += [f"taken as a refusal: {t}" for t in CLAIMS if holds(t, answer)]
    else:
        if any(errors):
            bad.append("the server refuses an intended call")
        if all(before):
            bad.append("doing nothing satisfies the checks")
        if not any(before):
            bad.append("no check of what must not change")
    return bad


def fresh(module, task, calls, refused):
    """The differences of one order, found in a process of its own."""
    end, start = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            bad = asyncio.run(order(module, task, calls, refused))
            os.write(start, json.dumps(bad).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(start)
    with os.fdopen(end, "rb") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else ["the process failed"]


def same(answer, value, check):
    if isinstance(value, list):
        return check == "set" and sorted(answer.split(", ")) == sorted(value) and not any("," in v for v in value)
    if isinstance(value, (int, float)):
        return check is None and float(answer) == value
    return check is None and answer == value


def main(names):
    logging.disable(logging.CRITICAL)
    differences = 0
    for name in names:
        module = importlib.import_module(name)
        tasks = [json.loads(line) for line in (HERE / f"{name}.people.jsonl").read_text().splitlines()]
        questions = [t for t in tasks if "checks" not in t]
        orders = [t for t in tasks if "checks" in t]
        answers = globals()[f"{name}_answers"](module)
        bad = []
        if len(questions) != len(answers) or len(orders) != len(ORDERS[name]):
            bad.append("questions or orders without a computation")
        if len({t["task"] for t in tasks}) != len(tasks):
            bad.append("a task twice")
        for task, (words, value) in zip(questions, answers):
            if words not in task["task"]:
                bad.append(f"{task['task']!r} does not contain {words!r}")
            if not same(task["answer"], value, task.get("check")):
                bad.append(f"{task['task']!r} says {task['answer']!r}, the data {value!r}")
        for task, (words, calls, *refuse) in zip(orders, ORDERS[name]):
            if words not in task["task"]:
                bad.append(f"{task['task']!r} does not contain {words!r}")
            bad += [f"{task['task']!r}: {b}" for b in fresh(module, task, calls, bool(refuse))]
        for b in bad:
            print(f"{name}: {b}")
        print(f"{name}: {len(questions)} questions, {len(orders)} orders, {len(bad)} differences")
        differences += len(bad)
    return min(differences, 100)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or NAMES))
