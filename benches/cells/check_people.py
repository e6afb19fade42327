"""Runs the reference of every question in people's words on its server, and checks that the stated answer follows.

    tests/reference/servers.sh
    target/servers/sqlite/bin/python benches/cells/check_people.py [SERVER ...]      # servers of cell.py, all by default

Prints each question whose answer does not follow, and exits with 1 if there is one. An answer follows from SQL if the one
column of the result is the answer, and from another call if the last result has it as whole words, or if its expression in
WORKED yields it. A task that changes something has a server of its own: its checks must fail before and hold after.
"""

import ast
import asyncio
import json
import re
import sys
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from cell import HERE, SERVERS


def only(values):
    """The one value. Several mean that the question has several answers."""
    (value,) = values
    return value


def best(choose, values):
    """The one key with the smallest or largest value."""
    return only(key for key, value in values.items() if value == choose(values.values()))


def linked(kind, end="from", other="to"):
    """The things at one end of the relations of the thing that was opened last."""
    return lambda *graphs: [
        link[end]
        for link in graphs[-1]["relations"]
        if link["relationType"] == kind and link[other] == graphs[-1]["entities"][0]["name"]
    ]


def count(kind):
    return lambda graph: len(linked(kind)(graph))


def boss(*graphs):
    return linked("reports_to", "to", "from")(*graphs)


def noted(pattern):
    """What the notes of the last result's things say, by thing."""
    return lambda *graphs: {
        entity["name"]: int(found[1]) if found[1].isdigit() else found[1]
        for entity in graphs[-1]["entities"]
        for note in entity["observations"]
        if (found := re.fullmatch(pattern, note))
    }


def first(pattern):
    return lambda *graphs: best(min, noted(pattern)(*graphs))


def last(pattern):
    return lambda *graphs: best(max, noted(pattern)(*graphs)).removesuffix(" Office")


def total(pattern):
    return lambda graph: sum(noted(pattern)(graph).values())


def languages(*graphs):
    return only(noted("speaks (.*)")(*graphs).values()).split(" and ")


def amounts(user, source):
    return [method["amount"] for method in user["payment_methods"].values() if method["source"] == source]


def names(people):
    return [f"{person['first_name']} {person['last_name']}" for person in people]


def flights(key):
    return lambda booking: [flight[key] for flight in booking["flights"]]


def paid(*bookings):
    return sum(payment["amount"] for booking in bookings for payment in booking["payment_history"])


def bags(*bookings):
    return sum(booking["total_baggages"] for booking in bookings)


def all_of(user, bookings):
    assert user["reservations"] == [booking["reservation_id"] for booking in bookings]
    return bookings


def offered(*path):
    """The one direct flight's value."""

    def value(*results):
        found = only(results[-1])
        for key in path:
            found = found[key]
        return found

    return value


def flight(choose, *path):
    """The direct flight with the smallest or largest value."""
    return lambda found: best(choose, {each["flight_number"]: offered(*path)([each]) for each in found})


def city(code):
    return lambda airports: [airport["city"] for airport in airports if airport["iata"] == code]


DEPARTURE = "scheduled_departure_time_est"

WORKED = {
    # The company's graph.
    "Which languages does Karin Holm speak?": languages,
    "What languages does the person in charge of Plover speak?": languages,
    "Which projects do we have for Vistula Energy?": linked("commissioned_by"),
    "Which projects does Amelie Peeters work on?": linked("works_on", "to", "from"),
    "Who leads Heron?": linked("leads"),
    "Who is in charge of the Siskin project?": linked("leads"),
    "Who does Sofia Greco report to?": boss,
    "Who is the boss of Mateus Silva's boss?": boss,
    "Who is Agata Nowak's mentor?": linked("mentors"),
    "Which of our people keeps bees?": lambda graph: list(noted("(keeps bees)")(graph)),
    "Who is allergic to shellfish?": lambda graph: list(noted("is allergic to (shellfish)")(graph)),
    "Who speaks Arabic?": lambda graph: list(noted("speaks (.*Arabic.*)")(graph)),
    "How many people work on Wren?": count("works_on"),
    "How many people are working on Curlew?": count("works_on"),
    "How many people are in the Water team?": count("member_of"),
    "How many projects has the City of Ghent given us?": count("commissioned_by"),
    "How many projects use QGIS?": count("uses"),
    "How many people report directly to Helena Brandt?": count("reports_to"),
    "How many teams are based in the Leipzig office?": count("based_in"),
    "How many of our people live in Antwerp?": lambda graph: len(noted("lives in (Antwerp)")(graph)),
    "How many projects are on hold at the moment?": lambda graph: len(noted("status: (on hold)")(graph)),
    "What are the budgets of Heron and Osprey together?": total(r"budget (\d+) euros"),
    "How many desks do the Lyon and the Malmo office have between them?": total(r"has (\d+) desks"),
    "Who on the board joined the company first?": first(r"joined in (\d+)"),
    "Which of our offices has the most desks?": last(r"has (\d+) desks"),
    "Which office is the newest?": last(r"opened in (\d+)"),
    "Which project for Baltica Ferries has the bigger budget?": last(r"budget (\d+) euros"),
    "Which tool costs us the most per user?": last(r"costs (\d+) euros per user and month"),
    "Which of our clients have we had the longest?": first(r"client since (\d+)"),
    "Which of the events comes last in the year?": last(r"takes place on (\S+)"),
    "Of the projects Chloe Martin works on, which one has to be finished first?": first(r"deadline (\S+)"),
    # The airline.
    "How many reservations does noah_li_4002 have?": lambda user: len(user["reservations"]),
    "How many bookings are there under the user chen_patel_9446?": lambda user: len(user["reservations"]),
    "How many saved passengers are in the profile of yara_lee_6637?": lambda user: len(user["saved_passengers"]),
    "How many travel certificates does olivia_li_1537 have left?": lambda user: len(amounts(user, "certificate")),
    "Who is the saved passenger of raj_sanchez_7079? First and last name.": lambda user: names(user["saved_passengers"]),
    "What's the name of the passenger on Y2WASI?": lambda booking: names(booking["passengers"]),
    "How many passengers travel on 0TN6YG?": lambda booking: len(booking["passengers"]),
    "How many bags are booked on reservation 6FPGTJ?": bags,
    "Where does the trip LPH2LJ go to? The airport code is enough.": lambda booking: booking["destination"],
    "From which airport does reservation 2GWL5L start?": lambda booking: booking["origin"],
    "Give me the flight numbers of reservation SG0JEB.": flights("flight_number"),
    "What's the airport code for Orlando?": lambda airports: [each["iata"] for each in airports if each["city"] == "Orlando"],
    "Which city is DEN?": city("DEN"),
    "Which city does the code MSP stand for?": city("MSP"),
    "What city does the trip in reservation 4BMN53 go to?": lambda booking, airports: city(booking["destination"])(airports),
    "How many business seats are left on the direct flight MIA to BOS on 2024-05-18?": offered("available_seats", "business"),
    "How many economy seats are still free on the flight of reservation XR266K?": offered("available_seats", "economy"),
    "How many direct flights do we have from ATL to SEA on 2024-05-16?": len,
    "How many direct flights go from BOS to DEN on 2024-05-20?": len,
    "How many airports do we fly to?": len,
    "How much do the flights of M2RFTA cost per person, all legs together?": lambda booking: sum(flights("price")(booking)),
    "How many flights are there in reservation RDBK8Y?": lambda booking: len(booking["flights"]),
    "How much was paid for I6XC2H and XL2C75 together?": paid,
    "What are the certificates of juan_sanchez_6008 worth altogether?": lambda user: sum(amounts(user, "certificate")),
    "How many bags do the reservations IKQC5J and MM9CQ6 have together?": bags,
    "A family of four wants to fly from SEA to ATL on 2024-05-30 in economy, direct. What would the tickets cost altogether?": (
        lambda found, _: 4 * offered("prices", "economy")(found)
    ),
    "What's the cheapest economy fare for a direct flight JFK-MIA on 2024-05-16?": (
        lambda found: min(each["prices"]["economy"] for each in found)
    ),
    "Which direct flight from MIA to JFK is the cheapest in economy on 2024-05-28?": flight(min, "prices", "economy"),
    "A customer wants to go business from SEA to DFW on 2024-05-20, direct, and as cheap as possible. Which flight?": (
        flight(min, "prices", "business")
    ),
    "Which is the first direct flight of the day from MCO to LAS on 2024-05-20?": flight(min, DEPARTURE),
    "What's the last direct flight out of DEN to DFW on 2024-05-30?": flight(max, DEPARTURE),
    "Which direct flight LAS to ATL on 2024-05-18 has the most economy seats left?": flight(max, "available_seats", "economy"),
    "Which flight in reservation Q2CCFC was the most expensive one?": lambda booking: flight(max, "price")(booking["flights"]),
    "Who is the oldest passenger on TD8AQO?": lambda booking: best(
        min, dict(zip(names(booking["passengers"]), (each["dob"] for each in booking["passengers"])))
    ),
    "lucas_brown_4047 has more than one gift card. What's the largest balance on one of them?": lambda user: max(amounts(user, "gift_card")),
    "Which of omar_sanchez_7760's reservations goes to LAS?": lambda user, *bookings: [
        booking["reservation_id"] for booking in all_of(user, bookings) if booking["destination"] == "LAS"
    ],
    "How many of the reservations of juan_johansson_1492 are round trips?": lambda user, *bookings: sum(
        booking["flight_type"] == "round_trip" for booking in all_of(user, bookings)
    ),
    "How many bags has evelyn_wilson_2294 booked over all their reservations?": lambda user, *bookings: bags(*all_of(user, bookings)),
    "For how many of their bookings did harper_smith_3981 take out insurance?": lambda user, *bookings: sum(
        booking["insurance"] == "yes" for booking in all_of(user, bookings)
    ),
}


@asynccontextmanager
async def started(spec):
    """Calls tools of a server over fresh data."""
    with TemporaryDirectory() as name, open("/dev/null", "w") as silent:
        spec["make"](Path(name))
        command, *arguments = (str(word).replace("{folder}", name) for word in spec["command"])
        env = dict(pair.replace("{dir}", f"{name}/graph").split("=", 1) for pair in spec.get("env", []))
        async with stdio_client(StdioServerParameters(command=command, args=arguments, env=env), silent) as streams:
            async with ClientSession(*streams) as session:
                await session.initialize()

                async def call(tool, arguments):
                    result = await session.call_tool(tool, arguments)
                    texts = [part.text for part in result.content]
                    if result.isError or any(text.startswith(("Error", "Database error")) for text in texts):
                        raise ValueError(f"{tool} {arguments}: {texts}")
                    return texts

                yield call


def column(texts):
    """The values of the only column."""
    return [only(row.values()) for row in ast.literal_eval(only(texts))]


def value(tool, texts):
    """A result as a Python value: a list is what one of the airline's tools gives by its parts."""
    try:
        parts = [json.loads(text) for text in texts]
    except ValueError:
        return texts
    return parts if tool.startswith(("list_", "search_direct")) else only(parts)


def same(task, values):
    """Are these values the answer?"""
    if task["check"] == "number":
        return [Decimal(str(each)) for each in values] == [Decimal(task["answer"])]
    answers = task["answer"].split(", ") if task["check"] == "set" else [task["answer"]]
    return sorted(map(str, values)) == sorted(answers)


async def tied(call, query):
    """Does a query's `ORDER BY … LIMIT 1` choose among equals?"""
    ordered = re.fullmatch(r"SELECT .+? (FROM .+) ORDER BY (.+?)( DESC)? LIMIT 1", query)
    if not ordered:
        return False
    rest, by, direction = ordered.groups()
    values = column(await call("read_query", {"query": f"SELECT {by} AS value {rest} ORDER BY value{direction or ''} LIMIT 2"}))
    return len(values) == 2 and values[0] == values[1]


def holds(expect, texts):
    text = "\n".join(texts)
    if "matches" in expect:
        return re.search(expect["matches"], text) is not None
    found = json.loads(text)
    for key in expect["json"].split("/")[1:]:
        found = found[int(key)] if isinstance(found, list) else found.get(key)
        if found is None:
            return False
    return found == expect["equals"] if "equals" in expect else Decimal(str(found)) == expect["number"]


async def state(call, task):
    return [holds(check["expect"], await call(check["tool"], check["arguments"])) for check in task["checks"]["state"]]


async def change(spec, task):
    async with started(spec) as call:
        if all(await state(call, task)):
            return "the checks hold before the change"
        for step in task["reference"]:
            await call(step["name"], step["arguments"])
        return None if all(await state(call, task)) else "the checks do not hold after the change"


async def question(call, task):
    steps = task["reference"]
    results = [await call(step["name"], step["arguments"]) for step in steps]
    if steps[-1]["name"] == "read_query":
        found = column(results[-1])
        if await tied(call, steps[-1]["arguments"]["query"]):
            return "several rows are first"
    elif work := WORKED.get(task["task"]):
        found = work(*(value(step["name"], texts) for step, texts in zip(steps, results)))
        found = found if isinstance(found, list) else [found]
    else:
        text = "\n".join(results[-1])
        return None if re.search(rf"(?<!\w){re.escape(task['answer'])}(?!\w)", text) else f"not in {text}"
    return None if same(task, found) else f"found {found}"


async def check(name):
    """The number of mismatches of a server."""
    spec = SERVERS[name]
    tasks = [json.loads(line) for line in (HERE / spec["people"]).read_text().splitlines()]
    wrong = 0
    async with started(spec) as call:
        for task in tasks:
            try:
                trouble = await (change(spec, task) if "checks" in task else question(call, task))
            except (AssertionError, KeyError, ValueError) as error:
                trouble = repr(error)
            if trouble:
                wrong += 1
                print(f"{spec['people']}: {task['task']} => {task.get('answer')}: {trouble}")
    print(f"{spec['people']}: {len(tasks)} questions, {wrong} wrong")
    return wrong


if __name__ == "__main__":
    wrong = [asyncio.run(check(name)) for name in sys.argv[1:] or SERVERS]
    sys.exit(1 if any(wrong) else 0)
