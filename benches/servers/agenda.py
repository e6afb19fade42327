"""Shared calendars of a small research institute. Answers are written to be read: sentences and Markdown."""

import re
from datetime import datetime

from fastmcp import FastMCP

mcp = FastMCP(name="agenda", instructions="People, their calendars, meeting rooms and invitations. Times are local, 24 hours.")

# short name, full name, group, role, phone extension
PEOPLE = [
    ("amelie", "Amélie Fournier", "Oceans", "group leader", "0112"),
    ("bogdan", "Bogdan Ilić", "Oceans", "engineer", "0118"),
    ("carmen", "Carmen Vidal", "Oceans", "doctoral student", ""),
    ("dag", "Dag Hammarsten", "Climate", "group leader", "0201"),
    ("esra", "Esra Yıldız", "Climate", "researcher", "0207"),
    ("farid", "Farid Rahimi", "Climate", "doctoral student", "0209"),
    ("greta", "Greta Olofsson", "Office", "director", "0001"),
    ("henk", "Henk de Vries", "Office", "finance", "0004"),
    ("ines", "Inês Carvalho", "Office", "events", "0005"),
    ("jakub", "Jakub Dvořák", "Data", "group leader", "0301"),
    ("keiko", "Keiko Arai", "Data", "engineer", "0304"),
    ("liam", "Liam Byrne", "Data", "doctoral student", ""),
    ("maja", "Maja Kowalska", "Climate", "researcher", "0211"),
    ("noor", "Noor van Dijk", "Data", "researcher", "0309"),
]
PEOPLE = {p[0]: dict(zip(("key", "name", "group", "role", "extension"), p)) for p in PEOPLE}

# name, seats, floor, equipment
ROOMS = {
    "Aurora": {"seats": 4, "floor": 1, "equipment": "screen"},
    "Boreas": {"seats": 8, "floor": 1, "equipment": "screen, whiteboard"},
    "Calypso": {"seats": 12, "floor": 2, "equipment": "projector, video"},
    "Delphi": {"seats": 20, "floor": 2, "equipment": "projector, video, whiteboard"},
    "Europa": {"seats": 60, "floor": 0, "equipment": "projector, microphones, video"},
    "Fjord": {"seats": 6, "floor": 3, "equipment": ""},
}

EVENTS = {}
# title, organiser, date, start, end, room, invited (! accepted, ? no answer yet, - declined)
for n, line in enumerate(
    """
Institute assembly|greta|2027-03-01|09:00|10:30|Europa|amelie! dag! jakub! henk! ines!
Oceans group meeting|amelie|2027-03-01|11:00|12:00|Boreas|bogdan! carmen!
Budget talk|henk|2027-03-01|14:00|15:00|Aurora|greta! dag?
Buoy data hand-over|bogdan|2027-03-01|15:00|16:30|Calypso|keiko! noor? carmen-
Climate group meeting|dag|2027-03-02|09:30|10:30|Boreas|esra! farid! maja-
Server maintenance|keiko|2027-03-02|07:00|09:00||jakub!
Thesis talk: Farid|farid|2027-03-02|13:00|14:00|Fjord|dag! esra?
Fire drill briefing|ines|2027-03-02|15:30|16:00|Delphi|amelie? bogdan? dag! jakub! keiko!
Data group meeting|jakub|2027-03-03|10:00|11:00|Calypso|keiko! liam! noor!
Paper club|esra|2027-03-03|12:00|13:00|Fjord|maja! carmen! liam?
Visit of the ministry|greta|2027-03-03|14:00|17:00|Europa|amelie! dag! jakub? ines!
Sensor calibration|bogdan|2027-03-03|08:00|09:30||carmen?
Interview: postdoc Oceans|amelie|2027-03-04|09:00|10:00|Aurora|bogdan! greta?
Interview: lab manager|greta|2027-03-04|10:30|11:30|Aurora|henk! amelie-
Model comparison|maja|2027-03-04|13:30|15:00|Delphi|esra! noor! farid?
Coffee with Noor|noor|2027-03-04|15:30|16:00||keiko?
Travel expenses, how to|henk|2027-03-05|10:00|11:00|Delphi|carmen! farid! liam! noor-
Oceans paper draft|carmen|2027-03-05|13:00|14:30|Fjord|amelie! bogdan?
Farewell cake for Liam|ines|2027-03-05|15:00|16:00|Europa|jakub! keiko! noor! greta?
Oceans group meeting|amelie|2027-03-08|11:00|12:00|Boreas|bogdan! carmen?
Grant deadline check|dag|2027-03-08|09:00|09:45|Aurora|esra! henk!
Storage migration|keiko|2027-03-08|13:00|17:00||jakub! noor! liam-
Climate group meeting|dag|2027-03-09|09:30|10:30|Boreas|esra! farid! maja!
Summer school planning|ines|2027-03-09|14:00|15:30|Calypso|amelie? esra! jakub-
Data group meeting|jakub|2027-03-10|10:00|11:00|Calypso|keiko! liam? noor?
Paper club|esra|2027-03-10|12:00|13:00|Fjord|maja? carmen!
Board lunch|greta|2027-03-10|12:00|13:30|Delphi|henk! dag?
Cruise logistics|bogdan|2027-03-11|10:00|12:00|Calypso|amelie! carmen! ines?
Python course, part 1|noor|2027-03-11|13:00|16:00|Delphi|farid! carmen! liam! maja?
Python course, part 2|noor|2027-03-12|13:00|16:00|Delphi|farid! carmen? liam! maja?
Yearly talk with Dag|greta|2027-03-12|09:00|10:00||dag!
Open day rehearsal|ines|2027-03-12|10:00|12:00|Europa|bogdan? keiko! maja! greta!
""".strip().splitlines(),
    start=1,
):
    title, organiser, date, start, end, room, invited = line.split("|")
    EVENTS[f"ev{n:03d}"] = {
        "title": title,
        "organiser": organiser,
        "date": date,
        "start": start,
        "end": end,
        "room": room,
        "invited": {w[:-1]: {"!": "accepted", "?": "no answer", "-": "declined"}[w[-1]] for w in invited.split()},
    }


def person(key):
    key = key.strip().lower()
    if key not in PEOPLE:
        raise ValueError(f"I know nobody called '{key}'. People are named by their short names, see people.")
    return key


def event(event_id):
    if event_id not in EVENTS:
        raise ValueError(f"There is no event '{event_id}'.")
    return EVENTS[event_id]


def check_date(date):
    try:
        return datetime.strptime(date, "%Y-%m-%d").strftime("%Y-%m-%d")
    except ValueError:
        raise ValueError(f"'{date}' is not a date like 2027-03-01.")


def check_time(time):
    if not re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d", time):
        raise ValueError(f"'{time}' is not a time like 09:30.")
    return time


def clash(date, start, end, room=None, who=None, but=None):
    for event_id, e in EVENTS.items():
        if event_id == but or e["date"] != date or e["end"] <= start or end <= e["start"]:
            continue
        if room and e["room"] == room:
            return event_id
        if who and (who == e["organiser"] or e["invited"].get(who) == "accepted"):
            return event_id
    return None


def check_room(room, date, start, end, heads, but=None):
    if room not in ROOMS:
        raise ValueError(f"There is no room '{room}'.")
    if heads > ROOMS[room]["seats"]:
        raise ValueError(f"{room} has only {ROOMS[room]['seats']} seats, {heads} are needed.")
    other = clash(date, start, end, room=room, but=but)
    if other:
        raise ValueError(f"{room} is taken by '{EVENTS[other]['title']}' ({other}) at that time.")


def line(event_id):
    e = EVENTS[event_id]
    where = e["room"] or "no room"
    return f"- **{e['title']}** ({event_id}), {e['date']} {e['start']}-{e['end']}, {where}"


@mcp.tool
def people(group: str = "") -> str:
    """Who works here. Group is one of Oceans, Climate, Data, Office."""
    rows = [p for p in PEOPLE.values() if not group or p["group"].lower() == group.lower()]
    if not rows:
        return "Nobody."
    table = ["| short name | name | group | role | extension |", "|---|---|---|---|---|"]
    table += [f"| {p['key']} | {p['name']} | {p['group']} | {p['role']} | {p['extension'] or '-'} |" for p in rows]
    return "\n".join(table)


@mcp.tool
def rooms(min_seats: int = 0) -> str:
    """The meeting rooms."""
    rows = [(n, r) for n, r in ROOMS.items() if r["seats"] >= min_seats]
    if not rows:
        return "No room is that large."
    return "\n".join(
        f"- **{n}**: {r['seats']} seats, floor {r['floor']}, equipment: {r['equipment'] or 'none'}" for n, r in rows
    )


@mcp.tool
def calendar_of(person_name: str, date: str = "") -> str:
    """Events that somebody organises or is invited to, on one day or on all days.

    Declined invitations are listed too, and say so.
    """
    key = person(person_name)
    if date:
        date = check_date(date)
    rows = []
    for event_id, e in sorted(EVENTS.items(), key=lambda x: (x[1]["date"], x[1]["start"])):
        if date and e["date"] != date:
            continue
        if e["organiser"] == key:
            rows.append(line(event_id) + ", organiser")
        elif key in e["invited"]:
            rows.append(line(event_id) + f", {e['invited'][key]}")
    heading = f"## {PEOPLE[key]['name']}" + (f" on {date}" if date else "")
    return heading + "\n" + ("\n".join(rows) if rows else "Nothing planned.")


@mcp.tool
def day(date: str) -> str:
    """Everything that happens on a day."""
    date = check_date(date)
    rows = [i for i, e in sorted(EVENTS.items(), key=lambda x: x[1]["start"]) if e["date"] == date]
    return f"## {date}\n" + ("\n".join(line(i) for i in rows) or "Nothing planned.")


@mcp.tool
def event_details(event_id: str) -> str:
    """One event with its organiser and the answers of everybody who is invited."""
    e = event(event_id)
    rows = [
        f"# {e['title']}",
        f"{e['date']}, {e['start']} to {e['end']}",
        f"Room: {e['room'] or 'none'}",
        f"Organiser: {PEOPLE[e['organiser']]['name']}",
    ]
    for key, reply in e["invited"].items():
        rows.append(f"* {PEOPLE[key]['name']}: {reply}")
    return "\n".join(rows)


@mcp.tool
def find_events(words: str) -> str:
    """Search in the titles of events."""
    rows = [i for i, e in EVENTS.items() if words.lower() in e["title"].lower()]
    return "\n".join(line(i) for i in rows) or "Nothing found."


@mcp.tool
def new_event(organiser: str, title: str, date: str, start: str, end: str, room: str = "", invited: list[str] = []) -> str:
    """Plan an event and invite people (short names). The room must be free and large enough."""
    key = person(organiser)
    date, start, end = check_date(date), check_time(start), check_time(end)
    if end <= start:
        raise ValueError("An event must end after it starts.")
    guests = [person(p) for p in invited]
    if room:
        check_room(room, date, start, end, len(guests) + 1)
    event_id = f"ev{max(int(i[2:]) for i in EVENTS) + 1:03d}"
    EVENTS[event_id] = {
        "title": title,
        "organiser": key,
        "date": date,
        "start": start,
        "end": end,
        "room": room,
        "invited": {g: "no answer" for g in guests if g != key},
    }
    return f"Planned '{title}' as {event_id} on {date} from {start} to {end}."


@mcp.tool
def reschedule(event_id: str, date: str, start: str, end: str) -> str:
    """Move an event to another time. It keeps its room, which must be free then."""
    e = event(event_id)
    date, start, end = check_date(date), check_time(start), check_time(end)
    if end <= start:
        raise ValueError("An event must end after it starts.")
    if e["room"]:
        check_room(e["room"], date, start, end, 0, but=event_id)
    e["date"], e["start"], e["end"] = date, start, end
    return f"'{e['title']}' is now on {date} from {start} to {end}."


@mcp.tool
def change_room(event_id: str, room: str) -> str:
    """Put an event into another room."""
    e = event(event_id)
    heads = 1 + sum(reply != "declined" for reply in e["invited"].values())
    check_room(room, e["date"], e["start"], e["end"], heads, but=event_id)
    old, e["room"] = e["room"] or "no room", room
    return f"'{e['title']}' moved from {old} to {room}."


@mcp.tool
def invite(event_id: str, person_name: str) -> str:
    """Invite somebody to an event."""
    e, key = event(event_id), person(person_name)
    if key == e["organiser"] or key in e["invited"]:
        raise ValueError(f"{PEOPLE[key]['name']} already belongs to '{e['title']}'.")
    e["invited"][key] = "no answer"
    return f"{PEOPLE[key]['name']} is invited to '{e['title']}'."


@mcp.tool
def reply(event_id: str, person_name: str, accept: bool) -> str:
    """Accept or decline an invitation in somebody's name. Nobody can accept two events at the same time."""
    e, key = event(event_id), person(person_name)
    if key not in e["invited"]:
        raise ValueError(f"{PEOPLE[key]['name']} is not invited to '{e['title']}'.")
    if accept:
        other = clash(e["date"], e["start"], e["end"], who=key, but=event_id)
        if other:
            raise ValueError(f"{PEOPLE[key]['name']} is busy with '{EVENTS[other]['title']}' at that time.")
    e["invited"][key] = "accepted" if accept else "declined"
    return f"{PEOPLE[key]['name']} has {e['invited'][key]} '{e['title']}'."


@mcp.tool
def cancel_event(event_id: str) -> str:
    """Cancel an event for everybody."""
    e = event(event_id)
    del EVENTS[event_id]
    return f"'{e['title']}' on {e['date']} is cancelled."


if __name__ == "__main__":
    mcp.run()
