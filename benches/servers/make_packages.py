"""Writes the data of the servers assistant, excel and obsidian: the same bytes each time.

    tests/reference/servers.sh target/servers benches
    target/servers/excel/bin/python benches/servers/make_packages.py

The fourth server, retail, brings its own.
"""

import io
import json
import re
import shutil
import sqlite3
import sys
import uuid
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
SPACE = uuid.UUID("6f1d2a52-3c1e-4c39-9a57-0b6a4c3f8e11")

# --- assistant: projects with tasks, to-dos, appointments and documents of a person who runs a small language school.

# name, description, status, priority, start, end, progress, tags, notes, tasks (title, status, priority, due)
PROJECTS = [
    ("Autumn brochure", "Printed brochure with all evening courses", "in_progress", "high", "2026-09-07", "2026-10-16", 60, ["print", "marketing"], "Printer wants the files as PDF/X-4", [
        ("Collect course descriptions", "done", "high", "2026-09-14"),
        ("Choose cover photo", "done", "medium", "2026-09-18"),
        ("Proofread Spanish pages", "in_progress", "high", "2026-10-02"),
        ("Send files to printer", "todo", "urgent", "2026-10-09"),
    ]),
    ("New booking form", "Replace the paper form on the website", "in_progress", "urgent", "2026-08-17", "2026-11-06", 45, ["website"], "Rafael does the programming", [
        ("Draw the screens", "done", "medium", "2026-08-28"),
        ("Ask the bank about card payments", "blocked", "high", "2026-09-25"),
        ("Test with five students", "todo", "high", "2026-10-20"),
        ("Write the privacy notice", "todo", "medium", "2026-10-23"),
        ("Switch off the old form", "todo", "low", "2026-11-06"),
    ]),
    ("Room 4 renovation", "New floor, paint and a bigger whiteboard", "on_hold", "medium", "2026-07-06", "2026-12-18", 20, ["building"], "Waiting for the landlord's signature", [
        ("Get three offers for the floor", "done", "medium", "2026-07-17"),
        ("Choose the paint", "done", "low", "2026-07-24"),
        ("Order whiteboard", "blocked", "medium", "2026-10-30"),
    ]),
    ("Teacher handbook", "Everything a new teacher needs in the first week", "in_progress", "medium", "2026-06-01", "2026-12-04", 75, ["staff", "writing"], None, [
        ("Chapter on substitutions", "done", "medium", "2026-08-07"),
        ("Chapter on exams", "in_progress", "medium", "2026-10-12"),
        ("Let Ingrid read it", "todo", "low", "2026-11-13"),
    ]),
    ("Exchange with Lyon", "Twelve students go to Lyon for a week", "not_started", "high", "2027-01-11", "2027-03-26", 0, ["travel", "french"], "Partner school: Maison des Langues", [
        ("Confirm dates with Lyon", "todo", "urgent", "2026-11-20"),
        ("Find host families", "todo", "high", "2027-01-29"),
    ]),
    ("Summer camp 2026", "Two weeks of English for children", "completed", "high", "2026-03-02", "2026-08-14", 100, ["children", "english"], "38 children came", [
        ("Rent the boathouse", "done", "high", "2026-04-10"),
        ("Hire two helpers", "done", "medium", "2026-05-15"),
        ("Send photos to the parents", "done", "low", "2026-08-14"),
    ]),
    ("Podcast for learners", "Short episodes in slow German", "cancelled", "low", "2026-02-02", "2026-06-30", 10, ["marketing", "german"], "No time for it this year", [
        ("Record a pilot", "done", "low", "2026-02-27"),
    ]),
    ("Exam centre licence", "Become a centre for the B1 and B2 exams", "in_progress", "urgent", "2026-05-04", "2027-02-26", 35, ["exams"], "The inspector is called Ms Okafor", [
        ("Fill in the application", "done", "high", "2026-06-12"),
        ("Buy a safe for the exam papers", "in_progress", "medium", "2026-10-08"),
        ("Train two examiners", "todo", "high", "2026-12-11"),
        ("Prepare the inspection", "todo", "urgent", "2027-01-22"),
    ]),
    ("Library corner", "Shelf with graded readers in the hall", "completed", "low", "2026-04-13", "2026-07-03", 100, ["building", "books"], "Paid by the friends' association", [
        ("Buy the shelf", "done", "low", "2026-05-08"),
        ("Label the readers", "done", "low", "2026-07-03"),
    ]),
    ("Tax documents 2025", "Papers for the accountant", "on_hold", "high", "2026-09-01", "2026-11-30", 50, ["money"], "Accountant is ill until the end of October", [
        ("Sort the receipts", "done", "medium", "2026-09-11"),
        ("Scan the rent contract", "todo", "medium", "2026-11-03"),
    ]),
    ("Online Italian course", "Ten video lessons with Chiara", "not_started", "medium", "2026-11-09", "2027-04-30", 0, ["italian", "website"], None, [
        ("Sign the contract with Chiara", "todo", "high", "2026-11-02"),
        ("Rent a camera", "todo", "low", "2026-11-27"),
    ]),
    ("Alumni evening", "Dinner for former students", "not_started", "low", "2026-11-16", "2027-05-21", 5, ["marketing"], "Last time 64 guests came", [
        ("Ask Casa Lucia for a menu", "todo", "low", "2026-12-07"),
    ]),
]

# title, due, priority, day completed, tags
TODOS = [
    ("Renew the fire insurance", "2026-10-31", "urgent", None, ["money", "building"]),
    ("Call the plumber about the kitchen tap", "2026-10-06", "high", None, ["building"]),
    ("Buy chalk and markers", "2026-10-05", "low", "2026-10-01", ["supplies"]),
    ("Write a reference for Amina", "2026-10-14", "medium", None, ["staff"]),
    ("Pay the invoice of Schmidt Druck", "2026-10-19", "high", None, ["money", "print"]),
    ("Cancel the newspaper subscription", "2026-11-30", "low", None, ["money"]),
    ("Order coffee capsules", "2026-10-07", "low", "2026-10-02", ["supplies"]),
    ("Water the plants in Room 2", "2026-10-09", "low", None, ["building"]),
    ("Send the attendance lists to the employment office", "2026-10-12", "urgent", None, ["admin"]),
    ("Book train tickets to Graz", "2026-10-15", "medium", None, ["travel"]),
    ("Answer the complaint of Mr Petrov", "2026-10-05", "urgent", "2026-10-03", ["students"]),
    ("Update the price list on the website", "2026-10-21", "medium", None, ["website", "money"]),
    ("Look for a substitute for Chiara", "2026-10-16", "high", None, ["staff", "italian"]),
    ("Print certificates for the B1 group", "2026-10-23", "medium", None, ["exams", "students"]),
    ("Return the projector to the town hall", "2026-10-08", "medium", "2026-10-05", ["building"]),
    ("Ask Ingrid about her holidays", "2026-10-27", "low", None, ["staff"]),
    ("Check the smoke detectors", "2026-11-13", "high", None, ["building"]),
    ("Transfer the deposit for the boathouse", "2026-12-15", "medium", None, ["money", "children"]),
    ("Write the November newsletter", "2026-10-30", "medium", None, ["marketing"]),
    ("Collect the keys from Rafael", "2026-10-13", "low", None, ["admin"]),
    ("Replace the lamp in the corridor", "2026-10-20", "low", "2026-10-04", ["building"]),
    ("Register for the book fair", "2026-11-06", "medium", None, ["books", "marketing"]),
    ("Get a flu shot", "2026-11-12", "low", None, ["private"]),
    ("Congratulate Yusuf on his diploma", "2026-10-06", "low", "2026-10-06", ["students"]),
    ("Back up the student database", "2026-10-29", "high", None, ["admin"]),
    ("Find a present for the landlord", "2026-12-18", "low", None, ["building"]),
    ("Compare phone contracts", "2026-11-20", "medium", None, ["money"]),
    ("Hang up the exam timetable", "2026-11-16", "medium", None, ["exams"]),
    ("Reply to the Polish embassy", "2026-10-22", "high", None, ["admin", "students"]),
    ("Dentist bill to the insurance", "2026-11-25", "low", None, ["private", "money"]),
]

# title, start, minutes, location, attendees, reminder
EVENTS = [
    ("Staff meeting", "2026-10-05 09:00", 60, "Room 1", ["Ingrid", "Rafael", "Chiara", "Amina"], 30),
    ("Placement test Arabic", "2026-10-06 17:00", 90, "Room 3", ["Amina"], 15),
    ("Visit of the fire inspector", "2026-10-07 11:00", 45, "Entrance", ["Mr Lindqvist"], 60),
    ("Lunch with the mayor", "2026-10-08 12:30", 90, "Casa Lucia", ["Mayor Hoffmann"], 60),
    ("Trial lesson Italian", "2026-10-08 18:00", 60, "Room 2", ["Chiara"], 15),
    ("Interview Nadia Brun", "2026-10-12 10:00", 45, "Office", ["Nadia Brun", "Ingrid"], 15),
    ("Interview Peter Zhang", "2026-10-12 11:00", 45, "Office", ["Peter Zhang", "Ingrid"], 15),
    ("Demo of the booking form", "2026-10-14 14:00", 60, "Room 1", ["Rafael", "Ingrid"], 15),
    ("Trip to Graz", "2026-10-20 07:15", 720, "Graz", [], 120),
    ("Parents' evening", "2026-10-21 19:00", 120, "Room 4", ["Amina", "Rafael"], 60),
    ("Photographer", "2026-10-23 15:00", 120, "Garden", ["Lena Vogt"], 30),
    ("Bank appointment", "2026-10-26 09:30", 60, "Sparkasse Marktplatz", ["Ms Demir"], 60),
    ("Open day", "2026-11-07 10:00", 360, "Whole school", ["Ingrid", "Rafael", "Chiara", "Amina"], 120),
    ("B1 exam written", "2026-11-21 09:00", 240, "Room 1", ["Ingrid", "Amina"], 60),
    ("B1 exam oral", "2026-11-22 09:00", 300, "Room 2", ["Ingrid", "Amina"], 60),
    ("Dentist", "2026-11-10 08:00", 30, "Dr Weiss", [], 60),
    ("Staff meeting", "2026-11-02 09:00", 60, "Room 1", ["Ingrid", "Rafael", "Chiara", "Amina"], 30),
    ("Video call with Lyon", "2026-11-11 16:00", 45, "Online", ["Madame Fournier"], 15),
    ("Yoga", "2026-11-12 18:30", 75, "Sports hall", [], 15),
    ("Book fair", "2026-11-18 10:00", 420, "Vienna", ["Ingrid"], 120),
    ("Handover of the safe", "2026-11-19 13:00", 30, "Office", ["Rafael"], 15),
    ("First aid course", "2026-11-27 09:00", 480, "Red Cross house", ["Chiara", "Amina"], 60),
    ("Christmas dinner", "2026-12-17 19:00", 180, "Casa Lucia", ["Ingrid", "Rafael", "Chiara", "Amina"], 60),
    ("Staff meeting", "2026-12-07 09:00", 60, "Room 1", ["Ingrid", "Rafael", "Chiara", "Amina"], 30),
    ("Accountant", "2026-12-01 14:00", 90, "Office Baumann", ["Mr Baumann"], 30),
    ("Piano recital of Clara", "2026-12-12 17:00", 90, "Music school", [], 60),
    ("Rent talks with the landlord", "2026-12-09 11:00", 60, "Office", ["Mr Kessler"], 30),
    ("Inspection of the exam centre", "2027-01-25 10:00", 180, "Whole school", ["Ms Okafor", "Ingrid"], 120),
    ("Ski weekend", "2027-01-16 08:00", 1920, "Schladming", [], 120),
    ("Flu shot", "2026-11-11 08:30", 15, "Dr Weiss", [], 60),
]

# title, url, description, tags
DOCUMENTS = [
    ("Rent contract", "https://files.example.org/rent-2022.pdf", "Signed in March 2022, runs until 2029", ["building", "money"]),
    ("Fire safety report", "https://files.example.org/fire-2025.pdf", "Report of Mr Lindqvist", ["building"]),
    ("Price list", "https://files.example.org/prices-autumn.pdf", "Valid from September 2026", ["money", "website"]),
    ("Handbook draft", "https://files.example.org/handbook-v3.docx", "Third version", ["staff", "writing"]),
    ("Logo", "https://files.example.org/logo.svg", "Blue version", ["marketing"]),
    ("Application exam centre", "https://files.example.org/application.pdf", "Sent in June", ["exams"]),
    ("Agreement with Lyon", "https://files.example.org/lyon.pdf", "In French", ["travel", "french"]),
    ("List of host families", "https://files.example.org/hosts.xlsx", "From the exchange of 2024", ["travel"]),
    ("Insurance policy", "https://files.example.org/policy-8841.pdf", "Number 8841-22", ["money", "building"]),
    ("Menu Casa Lucia", "https://files.example.org/menu.pdf", "For groups of 20 and more", ["food"]),
]


def key(kind, number):
    return str(uuid.uuid5(SPACE, f"{kind} {number}"))


def midnight(day):
    return day and f"{day} 00:00:00"


def assistant(folder):
    made = "2026-09-01 08:00:00"
    projects = [
        {
            "id": key("project", i),
            "name": name,
            "description": about,
            "status": status,
            "priority": priority,
            "start_date": midnight(start),
            "end_date": midnight(end),
            "created_at": made,
            "updated_at": made,
            "tasks": [
                {
                    "id": key(f"task {i}", j),
                    "title": title,
                    "description": None,
                    "status": state,
                    "priority": weight,
                    "due_date": midnight(due),
                    "created_at": made,
                    "updated_at": made,
                    "completed_at": midnight(due) if state == "done" else None,
                    "tags": [],
                }
                for j, (title, state, weight, due) in enumerate(tasks)
            ],
            "tags": tags,
            "notes": notes,
            "progress": progress,
        }
        for i, (name, about, status, priority, start, end, progress, tags, notes, tasks) in enumerate(PROJECTS)
    ]
    todos = [
        {
            "id": key("todo", i),
            "title": title,
            "description": None,
            "due_date": midnight(due),
            "reminder_date": None,
            "priority": priority,
            "completed": done is not None,
            "created_at": made,
            "completed_at": midnight(done),
            "tags": tags,
        }
        for i, (title, due, priority, done, tags) in enumerate(TODOS)
    ]
    events = []
    for i, (title, start, minutes, location, attendees, reminder) in enumerate(EVENTS):
        day, clock = start.split()
        end = int(clock[:2]) * 60 + int(clock[3:]) + minutes
        later = f"{day[:8]}{int(day[8:]) + end // 1440:02}"
        events.append(
            {
                "id": key("event", i),
                "title": title,
                "description": None,
                "start_time": f"{start}:00",
                "end_time": f"{later} {end % 1440 // 60:02}:{end % 60:02}:00",
                "location": location,
                "attendees": attendees,
                "reminder_minutes": reminder,
                "created_at": made,
                "tags": [],
            }
        )
    documents = [
        {
            "id": key("document", i),
            "title": title,
            "description": about,
            "file_path": "",
            "document_type": "other",
            "mime_type": None,
            "size_bytes": 0,
            "created_at": made,
            "updated_at": made,
            "tags": tags,
            "metadata": {},
            "external_url": url,
            "checksum": None,
        }
        for i, (title, url, about, tags) in enumerate(DOCUMENTS)
    ]
    status = {
        "name": "Marta Keller",
        "current_location": {"city": "Linz", "state": "Upper Austria", "country": "Austria", "details": None},
        "laptop_details": {"os": "Ubuntu 24.04", "model": "ThinkPad T14", "specs": None},
        "permissions": {
            "file_system": True,
            "browser": False,
            "terminal": True,
            "database": True,
            "network": False,
            "available_to_setup": ["browser", "network"],
        },
        "last_updated": made,
        "active_projects": [p["id"] for p in projects if p["status"] in ("in_progress", "on_hold")],
        "notes": "Office hours Monday to Thursday",
    }
    (folder / "mcp-pa").mkdir(parents=True)
    with sqlite3.connect(folder / "mcp-pa/database.sqlite") as database:
        database.execute("CREATE TABLE user_status (id INTEGER PRIMARY KEY CHECK (id = 1), data TEXT NOT NULL)")
        database.execute("INSERT INTO user_status VALUES (1, ?)", [json.dumps(status)])
        for table, rows in [("projects", projects), ("todos", todos), ("calendar_events", events), ("documents", documents)]:
            database.execute(f"CREATE TABLE {table} (id TEXT PRIMARY KEY, data TEXT NOT NULL)")
            database.executemany(f"INSERT INTO {table} VALUES (?, ?)", [(row["id"], json.dumps(row)) for row in rows])
    database.close()


# --- excel: the workbooks of a bicycle workshop.

BIKES = [
    ["Code", "Model", "Type", "Frame", "Price", "In stock", "Supplier"],
    ["B-101", "Kestrel City", "city", "steel", 649, 7, "Veloforge"],
    ["B-102", "Kestrel City Plus", "city", "aluminium", 799, 4, "Veloforge"],
    ["B-103", "Harbour", "city", "steel", 549, 12, "Noordwiel"],
    ["B-104", "Canal", "city", "aluminium", 719, 0, "Noordwiel"],
    ["B-201", "Ridge 29", "mountain", "aluminium", 1190, 3, "Altacima"],
    ["B-202", "Ridge 29 Carbon", "mountain", "carbon", 2490, 1, "Altacima"],
    ["B-203", "Boulder", "mountain", "aluminium", 980, 6, "Altacima"],
    ["B-204", "Scree", "mountain", "steel", 870, 2, "Veloforge"],
    ["B-301", "Swift Road", "road", "aluminium", 1350, 5, "Corsa Tre"],
    ["B-302", "Swift Road Carbon", "road", "carbon", 2890, 2, "Corsa Tre"],
    ["B-303", "Peloton", "road", "carbon", 3200, 1, "Corsa Tre"],
    ["B-304", "Audax", "road", "steel", 1420, 3, "Veloforge"],
    ["B-401", "Spark E-City", "electric", "aluminium", 2150, 4, "Noordwiel"],
    ["B-402", "Spark E-Trail", "electric", "aluminium", 3390, 2, "Altacima"],
    ["B-403", "Spark E-Cargo", "electric", "steel", 4680, 1, "Noordwiel"],
    ["B-501", "Pip 16", "children", "aluminium", 289, 9, "Veloforge"],
    ["B-502", "Pip 20", "children", "aluminium", 329, 8, "Veloforge"],
    ["B-503", "Pip 24", "children", "aluminium", 379, 5, "Veloforge"],
    ["B-504", "Tumble Balance", "children", "wood", 119, 14, "Noordwiel"],
]

PARTS = [
    ["Code", "Part", "Shelf", "Quantity", "Minimum", "Unit price"],
    ["P-01", "Inner tube 28", "A1", 46, 20, 5.9],
    ["P-02", "Inner tube 26", "A1", 18, 20, 5.9],
    ["P-03", "Tyre 28 x 1.4", "A2", 22, 10, 24.5],
    ["P-04", "Tyre 29 x 2.3", "A2", 8, 8, 38],
    ["P-05", "Brake pads disc", "B1", 31, 15, 14.2],
    ["P-06", "Brake pads rim", "B1", 12, 15, 8.4],
    ["P-07", "Brake cable", "B2", 40, 10, 3.5],
    ["P-08", "Chain 9 speed", "C1", 9, 6, 21.9],
    ["P-09", "Chain 11 speed", "C1", 5, 6, 34.9],
    ["P-10", "Cassette 11-32", "C2", 4, 3, 42],
    ["P-11", "Pedals flat", "C3", 15, 5, 27.5],
    ["P-12", "Saddle comfort", "D1", 7, 4, 39.9],
    ["P-13", "Saddle sport", "D1", 6, 4, 54.9],
    ["P-14", "Bell", "D2", 25, 10, 7.8],
    ["P-15", "Front light", "D3", 11, 8, 32],
    ["P-16", "Rear light", "D3", 13, 8, 18.5],
    ["P-17", "Mudguard set", "D4", 3, 5, 29.9],
    ["P-18", "Kickstand", "D4", 10, 5, 15.5],
    ["P-19", "Handlebar grips", "C3", 16, 8, 12.9],
    ["P-20", "Spoke 292 mm", "B2", 180, 100, 0.9],
]

REPAIRS = [
    ["Job", "Date", "Customer", "Bike", "Work", "Mechanic", "Hours", "Cost", "Status"],
    [3001, "2026-03-02", "Hanna Olsen", "Harbour", "flat tyre", "Milo", 0.5, 22.5, "collected"],
    [3002, "2026-03-02", "Bruno Keita", "Ridge 29", "brake service", "Sunniva", 1.5, 78, "collected"],
    [3003, "2026-03-03", "Leona Marsh", "Audax", "new chain", "Milo", 1, 66.9, "collected"],
    [3004, "2026-03-03", "Tariq Aziz", "Spark E-City", "software update", "Joost", 1, 55, "collected"],
    [3005, "2026-03-04", "Piet de Wit", "Canal", "wheel truing", "Sunniva", 1, 45, "collected"],
    [3006, "2026-03-05", "Hanna Olsen", "Pip 20", "training wheels off", "Milo", 0.5, 15, "collected"],
    [3007, "2026-03-05", "Greta Lind", "Swift Road", "full service", "Joost", 3, 165, "collected"],
    [3008, "2026-03-06", "Omar Haddad", "Boulder", "new tyres", "Milo", 1.5, 121, "collected"],
    [3009, "2026-03-06", "Ines Prado", "Kestrel City", "full service", "Sunniva", 2.5, 140, "collected"],
    [3010, "2026-03-09", "Bruno Keita", "Ridge 29", "new cassette", "Joost", 1, 92, "collected"],
    [3011, "2026-03-09", "Yuki Mori", "Peloton", "bottom bracket", "Joost", 2, 130, "collected"],
    [3012, "2026-03-10", "Dylan Reece", "Scree", "flat tyre", "Milo", 0.5, 22.5, "collected"],
    [3013, "2026-03-11", "Fatou Ndiaye", "Spark E-Cargo", "brake service", "Sunniva", 2, 104, "collected"],
    [3014, "2026-03-11", "Leona Marsh", "Audax", "light repair", "Milo", 1, 57, "collected"],
    [3015, "2026-03-12", "Emil Novak", "Harbour", "new saddle", "Milo", 0.5, 59.9, "collected"],
    [3016, "2026-03-12", "Carla Bianchi", "Swift Road Carbon", "gear tuning", "Joost", 1.5, 75, "ready"],
    [3017, "2026-03-13", "Tariq Aziz", "Spark E-City", "new tyres", "Milo", 1.5, 124, "ready"],
    [3018, "2026-03-16", "Niamh Byrne", "Kestrel City Plus", "full service", "Sunniva", 2.5, 140, "ready"],
    [3019, "2026-03-16", "Omar Haddad", "Boulder", "fork service", "Joost", 3, 189, "waiting for parts"],
    [3020, "2026-03-17", "Piet de Wit", "Canal", "mudguards", "Milo", 1, 74.9, "ready"],
    [3021, "2026-03-17", "Sofia Reyes", "Pip 24", "brake service", "Milo", 1, 53.4, "ready"],
    [3022, "2026-03-18", "Greta Lind", "Swift Road", "new chain", "Joost", 1, 79.9, "in work"],
    [3023, "2026-03-18", "Viktor Hale", "Ridge 29 Carbon", "full service", "Sunniva", 3.5, 210, "in work"],
    [3024, "2026-03-19", "Fatou Ndiaye", "Spark E-Cargo", "spoke broken", "Sunniva", 1, 50.9, "in work"],
    [3025, "2026-03-19", "Dylan Reece", "Scree", "new chain", "Milo", 1, 66.9, "waiting for parts"],
    [3026, "2026-03-20", "Aiko Tan", "Spark E-Trail", "motor check", "Joost", 2, 120, "waiting for parts"],
    [3027, "2026-03-20", "Emil Novak", "Harbour", "light repair", "Milo", 0.5, 33.5, "in work"],
    [3028, "2026-03-20", "Rosa Klein", "Tumble Balance", "new grips", "Milo", 0.5, 27.9, "accepted"],
    [3029, "2026-03-21", "Yuki Mori", "Peloton", "wheel truing", "Sunniva", 1, 45, "accepted"],
    [3030, "2026-03-21", "Ines Prado", "Kestrel City", "kickstand", "Milo", 0.5, 38, "accepted"],
]

STAFF = [
    ["Name", "Role", "Since", "Hours per week", "Hourly wage", "Phone"],
    ["Milo Petersen", "mechanic", 2019, 38, 21.5, "0411 2230"],
    ["Sunniva Dahl", "mechanic", 2016, 32, 24, "0411 2231"],
    ["Joost Verhagen", "master mechanic", 2011, 38, 29.5, "0411 2232"],
    ["Ada Lindgren", "sales", 2021, 25, 19, "0411 2233"],
    ["Kofi Mensah", "sales", 2018, 30, 20.5, "0411 2234"],
    ["Renske Bos", "manager", 2008, 40, 36, "0411 2235"],
    ["Luca Ferri", "apprentice", 2025, 38, 11.2, "0411 2236"],
    ["Tove Nyman", "bookkeeping", 2014, 16, 25.5, "0411 2237"],
]

LEAVE = [
    ["Name", "From", "To", "Days", "Approved"],
    ["Milo Petersen", "2026-04-06", "2026-04-10", 5, "yes"],
    ["Sunniva Dahl", "2026-04-13", "2026-04-24", 10, "yes"],
    ["Joost Verhagen", "2026-07-20", "2026-08-07", 15, "no"],
    ["Ada Lindgren", "2026-05-04", "2026-05-06", 3, "yes"],
    ["Kofi Mensah", "2026-06-15", "2026-06-26", 10, "no"],
    ["Renske Bos", "2026-08-10", "2026-08-28", 15, "yes"],
    ["Luca Ferri", "2026-05-18", "2026-05-22", 5, "yes"],
    ["Milo Petersen", "2026-09-07", "2026-09-18", 10, "no"],
    ["Tove Nyman", "2026-07-06", "2026-07-17", 8, "yes"],
]

BUDGET = [
    ["Item", "January", "February", "March", "Quarter"],
    ["Rent", 2400, 2400, 2400, "=SUM(B2:D2)"],
    ["Wages", 15800, 15650, 16240, "=SUM(B3:D3)"],
    ["Electricity", 310, 295, 270, "=SUM(B4:D4)"],
    ["Tools", 480, 95, 1120, "=SUM(B5:D5)"],
    ["Advertising", 250, 600, 900, "=SUM(B6:D6)"],
    ["Insurance", 185, 185, 185, "=SUM(B7:D7)"],
    ["Coffee", 64, 58, 71, "=SUM(B8:D8)"],
    ["Total", *[f"=SUM({c}2:{c}8)" for c in "BCDE"]],
]

WORKBOOKS = {
    "stock.xlsx": {"Bikes": BIKES, "Parts": PARTS},
    "workshop.xlsx": {"Repairs": REPAIRS},
    "staff.xlsx": {"Staff": STAFF, "Leave": LEAVE},
    "budget.xlsx": {"2026": BUDGET},
}


def excel(folder):
    from openpyxl import Workbook
    from openpyxl.styles import Font

    for name, sheets in WORKBOOKS.items():
        book = Workbook()
        book.remove(book.active)
        for title, rows in sheets.items():
            sheet = book.create_sheet(title)
            for row in rows:
                sheet.append(row)
            for cell in sheet[1]:
                cell.font = Font(bold=True)
        packed = io.BytesIO()
        book.save(packed)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(packed) as old, zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as new:
            for entry in old.namelist():
                text = old.read(entry)
                if entry == "docProps/core.xml":
                    text = re.sub(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", b"2026-03-21T17:00:00Z", text)
                new.writestr(zipfile.ZipInfo(entry, (2026, 3, 21, 17, 0, 0)), text, zipfile.ZIP_DEFLATED)


# --- obsidian: somebody's notes on books, recipes, people, trips and the garden.

# title, author, year, pages, language, stars, lent to, remark
BOOKS = [
    ("The Salt Road", "Imre Halasz", 1998, 312, "English", 4, None, "Slow start, wonderful last third."),
    ("Winter Apples", "Dagny Moen", 2011, 248, "Norwegian", 5, "[[Pilar Ocampo]]", "Read it twice."),
    ("A House of Rivers", "Chinelo Eze", 2019, 401, "English", 5, None, "Best book of the year for me."),
    ("Der stille Hafen", "Rolf Anders", 1987, 189, "German", 3, None, "Nice harbour scenes, thin plot."),
    ("Small Machines", "Theo Varga", 2005, 276, "English", 2, "[[Jonas Weber]]", "Gave up around page 150, finished it later."),
    ("The Glass Orchard", "Dagny Moen", 2016, 330, "Norwegian", 4, None, "The sister is the true hero."),
    ("Lanterns over Suzhou", "Lin Meiying", 2003, 522, "English", 4, "[[Pilar Ocampo]]", "Needs a family tree."),
    ("Nine Letters", "Chinelo Eze", 2014, 198, "English", 3, None, "Good for a train ride."),
    ("Pan y ceniza", "Lucio Barrera", 1994, 264, "Spanish", 4, "[[Samir Haddad]]", "Hard Spanish in chapter 6."),
    ("The Cartographer's Dog", "Theo Varga", 2021, 355, "English", 5, None, "Laughed out loud."),
]

# title, kind, minutes, servings, main thing, source, rating
RECIPES = [
    ("Red lentil soup", "soup", 35, 4, "red lentils", "[[Pilar Ocampo]]", 5),
    ("Mushroom barley", "main dish", 55, 4, "mushrooms", "a magazine", 4),
    ("Lemon chicken", "main dish", 70, 6, "chicken", "[[Aunt Vera]]", 5),
    ("Beetroot salad", "salad", 25, 3, "beetroot", "own idea", 3),
    ("Plum cake", "cake", 80, 12, "plums", "[[Aunt Vera]]", 5),
    ("Spinach dumplings", "main dish", 60, 4, "spinach", "[[Ottilie Gruber]]", 4),
    ("Cold cucumber soup", "soup", 15, 2, "cucumber", "own idea", 4),
    ("Walnut bread", "bread", 200, 10, "walnuts", "[[Jonas Weber]]", 4),
    ("Chickpea curry", "main dish", 40, 5, "chickpeas", "[[Samir Haddad]]", 5),
    ("Rhubarb crumble", "cake", 50, 6, "rhubarb", "a magazine", 4),
    ("Potato leek soup", "soup", 45, 6, "leeks", "[[Ottilie Gruber]]", 3),
    ("Orange fennel salad", "salad", 20, 4, "fennel", "[[Samir Haddad]]", 4),
]

# name, birthday, town, job, allergy, met
PEOPLE = [
    ("Pilar Ocampo", "14 March", "Bremen", "vet", "hazelnuts", "at the choir in 2012"),
    ("Jonas Weber", "2 November", "Kassel", "carpenter", None, "at school"),
    ("Samir Haddad", "27 July", "Bremen", "bus driver", None, "on the allotment in 2018"),
    ("Aunt Vera", "9 May", "Passau", "retired teacher", "penicillin", "family"),
    ("Ottilie Gruber", "30 January", "Innsbruck", "mountain guide", None, "on the hut trip in 2015"),
    ("Kenji Sato", "19 August", "Hamburg", "piano tuner", "shellfish", "through Pilar"),
    ("Marlene Fox", "5 December", "Leeds", "translator", None, "at the book fair in 2020"),
    ("Davide Conti", "21 April", "Trieste", "baker", "cats", "on the ferry in 2017"),
    ("Hedda Lund", "11 October", "Hamburg", "nurse", None, "at the choir in 2014"),
    ("Tomasz Wilk", "16 June", "Gdansk", "sailor", None, "on the ferry in 2017"),
]

# title, when, with, cost, lodging, best, status
TRIPS = [
    ("Trieste 2023", "12 to 19 May 2023", "[[Davide Conti]]", 840, "Pensione Miramar", "the coffee houses", "done"),
    ("Lofoten 2024", "3 to 14 July 2024", "[[Hedda Lund]]", 1960, "Rorbu Nusfjord", "the midnight light", "done"),
    ("Gdansk 2025", "22 to 26 April 2025", "[[Tomasz Wilk]]", 515, "Hotel Brama", "the shipyard museum", "done"),
    ("Hut tour 2025", "8 to 13 August 2025", "[[Ottilie Gruber]]", 430, "four huts", "the ridge on day three", "done"),
    ("Leeds 2026", "2 to 7 June 2026", "[[Marlene Fox]]", 720, "Marlene's flat", None, "booked"),
    ("Kyoto 2027", "April 2027", "[[Kenji Sato]]", 2900, "not chosen yet", None, "planned"),
]

# bed, crop, sown, variety, harvest in kg
BEDS = [
    ("Bed 1", "tomatoes", "10 March", "Black Krim", 18),
    ("Bed 2", "beans", "15 May", "Blauhilde", 9),
    ("Bed 3", "potatoes", "18 April", "Linda", 41),
    ("Bed 4", "carrots", "2 April", "Nantes", 12),
    ("Bed 5", "courgettes", "5 May", "Romanesco", 23),
    ("Bed 6", "garlic", "20 October", "Thermidrome", 4),
    ("Bed 7", "kale", "12 June", "Nero", 7),
    ("Bed 8", "strawberries", "25 July", "Mieze Schindler", 6),
]

# file, lines
LOOSE = [
    ("House/Boiler", ["Model: Vitolux 300", "Serviced: 4 September 2025 by Firma Ehlers", "Next service: September 2026", "Pressure should be 1.6 bar.", "", "#house"]),
    ("House/Paint", ["Kitchen: Sage 14", "Hall: Oat 3", "Bedroom: Dusk 22", "Bathroom: Chalk 1", "", "#house"]),
    ("House/Electricity meter", ["1 January 2026: 48210", "1 April 2026: 49035", "1 July 2026: 49580", "", "#house"]),
    ("House/Bicycle", ["Lock code is in the drawer.", "Frame number: WX 20418", "Last tyre change: 11 March 2026", "", "#house"]),
    ("Ideas/Choir concert", ["Date: 28 November 2026", "Place: St Jakobi", "Conductor: [[Hedda Lund]]", "We sing seven songs.", "", "#choir #todo"]),
    ("Ideas/Birthday presents", ["[[Aunt Vera]]: a magnifying lamp", "[[Kenji Sato]]: tickets for the planetarium", "[[Pilar Ocampo]]: a rain jacket for the dog", "", "#presents"]),
    ("Ideas/Balcony bench", ["Wood: larch", "Length: 140 cm", "[[Jonas Weber]] helps with the joints.", "", "#diy #todo"]),
    ("Ideas/Language course", ["Polish, beginners, Tuesday evening", "Price: 165 euros", "", "#todo"]),
]


def obsidian(folder):
    vault = folder / "notes"

    def note(name, front, lines):
        path = vault / f"{name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        head = ["---", *front, "---", ""] if front else []
        path.write_text("\n".join([*head, f"# {path.stem}", "", *lines, ""]))

    (vault / ".obsidian").mkdir(parents=True)
    (vault / ".obsidian/app.json").write_text("{}\n")
    for title, author, year, pages, language, stars, lent, remark in BOOKS:
        lines = [f"Author: {author}", f"Year: {year}", f"Pages: {pages}", f"Language: {language}", f"Stars: {stars}"]
        lines += [f"Lent to: {lent}"] if lent else []
        note(f"Books/{title}", ["tags: [book]"], [*lines, "", remark, "", "#book" + ("/lent" if lent else "")])
    for title, kind, minutes, servings, main, source, rating in RECIPES:
        lines = [f"Kind: {kind}", f"Main ingredient: {main}", f"Time: {minutes} minutes", f"Serves: {servings}", f"Recipe from: {source}", f"Rating: {rating} of 5"]
        note(f"Recipes/{title}", ["tags: [recipe]"], [*lines, "", "#recipe" + (" #quick" if minutes <= 35 else "")])
    for name, birthday, town, job, allergy, met in PEOPLE:
        lines = [f"Birthday: {birthday}", f"Lives in: {town}", f"Works as: {job}", f"We met {met}."]
        lines += [f"Allergic to: {allergy}"] if allergy else []
        note(f"People/{name}", ["tags: [person]"], [*lines, "", "#person"])
    for title, when, companion, cost, lodging, best, status in TRIPS:
        lines = [f"When: {when}", f"With: {companion}", f"Cost: {cost} euros", f"Lodging: {lodging}"]
        lines += [f"Best of all: {best}"] if best else []
        note(f"Trips/{title}", ["tags: [trip]", f"status: {status}"], [*lines, "", f"#trip #{status}"])
    for bed, crop, sown, variety, harvest in BEDS:
        lines = [f"Crop: {crop}", f"Variety: {variety}", f"Sown: {sown}", f"Harvest 2025: {harvest} kg"]
        note(f"Garden/{bed}", ["tags: [garden]"], [*lines, "", "#garden"])
    for name, lines in LOOSE:
        note(name, [], lines)


if __name__ == "__main__":
    for make in [assistant, excel, obsidian]:
        folder = HERE / f"{make.__name__}.data"
        if sys.argv[1:] and make.__name__ not in sys.argv[1:]:
            continue
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        make(folder)
