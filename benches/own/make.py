#!/usr/bin/env python3
"""Makes the questions of this folder from shop.toml and company.toml and the data in ../cells.

    python3 benches/own/make.py            # writes shop.train.jsonl, shop.exam.jsonl, company.train.jsonl, company.exam.jsonl
    python3 benches/own/make.py --check    # makes them again and compares
    python3 benches/own/make.py --kinds    # prints how many questions of each kind there are and could be

Each answer is computed twice: by the query of its kind, and by its function in SHOP or COMPANY below, which goes through the
data without SQL. Two questions of a server never have the same values and the same answer. What a training
question looks up on the way to its answer (the customer of an order, whose city is asked for), no exam question asks for.
"""

import json
import random
import re
import sqlite3
import sys
import tomllib
from collections import Counter, defaultdict
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from types import SimpleNamespace

HERE = Path(__file__).resolve().parent
CELLS = HERE.parent / "cells"
TRAIN, EXAM, UNSEEN = 240, 200, 60  # questions of each server; of the exam, those of kinds that training does not have
CONTEXT = 0.3  # share of the questions that come with a few words around them
MOST_NONE = 4  # questions of a kind that are answered with 0 or none

MONTHS = "January February March April May June July August September October November December".split()
NUMBERS = {
    2: "two", 3: "three", 5: "five", 8: "eight", 10: "ten", 12: "twelve", 15: "fifteen", 20: "twenty", 25: "twenty-five",
    30: "thirty", 50: "fifty", 60: "sixty", 70: "seventy", 75: "seventy-five", 80: "eighty",
}  # fmt: skip


# The data: a database for the queries, and plain records for the second way.


def shop():
    text = (CELLS / "shop.sql").read_text()
    database = sqlite3.connect(":memory:")
    database.executescript(text)
    rows = defaultdict(list)
    for table, values in re.findall(r"INSERT INTO (\w+) VALUES\((.*)\);", text):
        rows[table].append([value.strip("'") for value in values.split(",")])
    customers = {row[0]: SimpleNamespace(name=row[1], city=row[2], since=int(row[3])) for row in rows["customers"]}
    products = {
        row[0]: SimpleNamespace(name=row[1], category=row[2], price=Decimal(row[3]), stock=int(row[4])) for row in rows["products"]
    }
    orders = [
        SimpleNamespace(
            number=int(row[0]), customer=customers[row[1]], product=products[row[2]], pieces=int(row[3]), status=row[4], day=row[5]
        )
        for row in rows["orders"]
    ]
    return database, SimpleNamespace(customers=list(customers.values()), products=list(products.values()), orders=orders)


PATTERNS = {
    "person": {"job": r"works as (.+)", "city": r"lives in (.+)", "joined": r"joined in (\d+)", "speaks": r"speaks (.+)", "note": "(.+)"},
    "project": {
        "started": r"started in (\S+)", "deadline": r"deadline (\S+)", "budget": r"budget (\d+) euros", "status": r"status: (.+)", "about": "(.+)",
    },
    "client": {"industry": r"industry: (.+)", "since": r"client since (\d+)"},
    "office": {"opened": r"opened in (\d+)", "desks": r"has (\d+) desks", "extension": r"extension (\d+)"},
    "tool": {"price": r"costs (\d+) euros .+"},
    "team": {"day": r"meets every (.+)"},
    "event": {},
}  # fmt: skip


def company():
    lines = [json.loads(line) for line in (CELLS / "memory.jsonl").read_text().splitlines()]
    graph = SimpleNamespace(
        notes={one["name"]: one["observations"] for one in lines if one["type"] == "entity"},
        kinds={one["name"]: one["entityType"] for one in lines if one["type"] == "entity"},
        links=[(one["from"], one["relationType"], one["to"]) for one in lines if one["type"] == "relation"],
    )
    columns = {kind: ["name", *patterns] for kind, patterns in PATTERNS.items()}
    columns["person"] += ["boss", "team"]
    columns["project"] += ["leader", "client"]
    columns["team"] += ["office"]
    place = lambda name: name and name.removesuffix(" Office")
    database = sqlite3.connect(":memory:")
    for kind, names in columns.items():
        database.execute(f"CREATE TABLE {kind} ({', '.join(names)})")
    for kind, names in {"speaks": "person, language", "works_on": "person, project", "uses": "project, tool"}.items():
        database.execute(f"CREATE TABLE {kind} ({names})")
    of = lambda name, link: next((to for start, kind, to in graph.links if (start, kind) == (name, link)), None)
    for name, kind in graph.kinds.items():
        row = {"name": place(name)}
        for note in graph.notes[name]:
            # The first pattern that fits; the last one takes what is left.
            key, found = next(((key, m[1]) for key, p in PATTERNS[kind].items() if (m := re.fullmatch(p, note))), (None, None))
            if key:
                row[key] = int(found) if re.fullmatch(r"\d+", found) else found
        row |= {"boss": of(name, "reports_to"), "team": of(name, "member_of"), "client": of(name, "commissioned_by")}
        row |= {"office": place(of(name, "based_in"))}
        row |= {"leader": next((start for start, link, to in graph.links if (link, to) == ("leads", name)), None)}
        values = [row.get(column) for column in columns[kind]]
        database.execute(f"INSERT INTO {kind} VALUES ({', '.join('?' * len(values))})", values)
        if kind == "person":
            database.executemany("INSERT INTO speaks VALUES (?, ?)", [(name, each) for each in row["speaks"].split(" and ")])
    for link in ("works_on", "uses"):
        database.executemany(f"INSERT INTO {link} VALUES (?, ?)", [(start, to) for start, kind, to in graph.links if kind == link])
    return database, graph


# The second way: each function gets the data and the values of a question.


def named(things, name):
    (found,) = [thing for thing in things if thing.name == name]
    return found


def order(shop, a):
    return shop.orders[a.number - 1]


def rounded(value, places):
    return Decimal(value).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP)


def mean(values, places=2):
    """None where it lies in the middle between two rounded values."""
    values = [Decimal(value) for value in values]
    exact = sum(values) / len(values)
    return None if exact.scaleb(places) % 1 == Decimal("0.5") else rounded(exact, places)


def best(things, key):
    """The one with the smallest key, or several."""
    smallest = min(map(key, things))
    return [thing for thing in things if key(thing) == smallest]


def one(things):
    (found,) = things
    return found


def month(order):
    return order.day.split("-")[1]


def theirs(shop, name, status="any"):
    return [order for order in shop.orders if order.customer.name == name and status in ("any", order.status)]


def of_product(shop, name):
    return [order for order in shop.orders if order.product.name == name]


def worth(order):
    return order.product.price * order.pieces


def pieces(orders):
    return sum(order.pieces for order in orders)


def sign(a):
    return -1 if a.superlative in ("most", "most expensive", "last", "largest") else 1


def yes(holds):
    return "yes" if holds else "no"


def in_category(shop, a):
    return [product for product in shop.products if product.category == a.category]


SHOP = {
    "customer_city": lambda s, a: named(s.customers, a.customer).city,
    "product_price": lambda s, a: named(s.products, a.product).price,
    "product_stock": lambda s, a: named(s.products, a.product).stock,
    "order_status": lambda s, a: order(s, a).status,
    "order_day": lambda s, a: order(s, a).day,
    "order_customer": lambda s, a: order(s, a).customer.name,
    "order_product": lambda s, a: order(s, a).product.name,
    "order_city": lambda s, a: order(s, a).customer.city,
    "order_value": lambda s, a: worth(order(s, a)),
    "city_year_count": lambda s, a: sum(c.city == a.city and c.since < a.year for c in s.customers),
    "category_price_count": lambda s, a: sum(p.price > a.price for p in in_category(s, a)),
    "month_status_count": lambda s, a: sum(month(o) == a.month and o.status == a.status for o in s.orders),
    "customer_status_count": lambda s, a: len(theirs(s, a.customer, a.status)),
    "category_status_count": lambda s, a: sum(o.product.category == a.category and o.status == a.status for o in s.orders),
    "customer_status_pieces": lambda s, a: pieces(theirs(s, a.customer, a.status)),
    "product_pieces": lambda s, a: pieces(of_product(s, a.product)),
    "two_prices": lambda s, a: named(s.products, a.product).price + named(s.products, a.other).price,
    "month_average": lambda s, a: mean(o.pieces for o in s.orders if month(o) == a.month),
    "category_average": lambda s, a: mean(getattr(p, a.what) for p in in_category(s, a)),
    "category_price_extreme": lambda s, a: one(best(in_category(s, a), lambda p: p.price * sign(a))).name,
    "category_stock_extreme": lambda s, a: one(best(in_category(s, a), lambda p: p.stock * sign(a))).name,
    "category_names": lambda s, a: [p.name for p in in_category(s, a) if p.stock < a.stock],
    "month_status_numbers": lambda s, a: [o.number for o in s.orders if month(o) == a.month and o.status == a.status],
    "customer_products": lambda s, a: {o.product.name for o in theirs(s, a.customer)},
    "product_buyers": lambda s, a: {o.customer.name for o in of_product(s, a.product)},
    "customer_last_product": lambda s, a: sorted(theirs(s, a.customer), key=lambda o: o.day)[min(sign(a), 0)].product.name,
    "cheaper": lambda s, a: one(best([named(s.products, a.product), named(s.products, a.other)], lambda p: p.price)).name,
    "price_difference": lambda s, a: named(s.products, a.product).price - named(s.products, a.other).price,
    "enough_stock": lambda s, a: yes(named(s.products, a.product).stock >= a.wanted),
    "customer_spent": lambda s, a: sum(map(worth, theirs(s, a.customer))),
    "customer_average": lambda s, a: mean(o.pieces for o in theirs(s, a.customer)),
    "ordered_ever": lambda s, a: yes(any(o.product.name == a.product for o in theirs(s, a.customer))),
    "more_orders": lambda s, a: one(best([a.customer, a.other], lambda name: -len(theirs(s, name)))),
    "category_city_count": lambda s, a: sum(o.customer.city == a.city and o.product.category == a.category for o in s.orders),
    "status_share": lambda s, a: mean((100 * (o.status == a.status) for o in theirs(s, a.customer)), 0),
    "bought_on": lambda s, a: one(o for o in theirs(s, a.customer) if o.day == a.day).product.name,
    "customer_order_date": lambda s, a: (max if sign(a) < 0 else min)(o.day for o in theirs(s, a.customer)),
    "pieces_difference": lambda s, a: pieces(of_product(s, a.product)) - pieces(of_product(s, a.other)),
}


def note(graph, name, start, end=""):
    """What follows START in the one note of a thing that begins with it."""
    (found,) = [each for each in graph.notes[name] if each.startswith(start) and each.endswith(end)]
    return found[len(start) : len(found) - len(end)]


def ends(graph, kind, start=None, end=None):
    """The other ends of links of a kind."""
    return [to if end is None else begin for begin, link, to in graph.links if link == kind and (begin == start if end is None else to == end)]


def people(graph):
    return [name for name, kind in graph.kinds.items() if kind == "person"]


def joined(graph, name):
    return int(note(graph, name, "joined in "))


def budget(graph, project):
    return int(note(graph, project, "budget ", " euros"))


def languages(graph, name):
    return note(graph, name, "speaks ").split(" and ")


PERSON = {"city": "lives in ", "job": "works as ", "joined": "joined in "}
CLIENT = {"since": "client since ", "industry": "industry: "}
OFFICE = {"desks": ("has ", " desks"), "opened": ("opened in ",), "extension": ("extension ",)}


def living(graph, city):
    return [name for name in people(graph) if note(graph, name, "lives in ") == city]


def projects_for(graph, client):
    return ends(graph, "commissioned_by", end=client)


def or_none(found):
    return one(found) if found else "none"


COMPARE = {"after": int.__gt__, "before": int.__lt__, "in": int.__eq__}

COMPANY = {
    "person_city": lambda g, a: note(g, a.person, "lives in "),
    "person_job": lambda g, a: note(g, a.person, "works as "),
    "person_joined": lambda g, a: joined(g, a.person),
    "person_languages": lambda g, a: languages(g, a.person),
    "who_does": lambda g, a: one(name for name, notes in g.notes.items() if a.note in notes),
    "project_budget": lambda g, a: budget(g, a.project),
    "project_deadline": lambda g, a: note(g, a.project, "deadline "),
    "project_about": lambda g, a: one(name for name, notes in g.notes.items() if a.about in notes),
    "client_fact": lambda g, a: note(g, a.client, CLIENT[a.what]),
    "licences": lambda g, a: int(note(g, a.tool, "costs ", " euros per user and month")) * a.users,
    "project_leader": lambda g, a: or_none(ends(g, "leads", end=a.project)),
    "person_boss": lambda g, a: or_none(ends(g, "reports_to", a.person)),
    "project_client": lambda g, a: one(ends(g, "commissioned_by", a.project)),
    "person_projects": lambda g, a: ends(g, "works_on", a.person),
    "project_people": lambda g, a: ends(g, "works_on", end=a.project),
    "team_city_count": lambda g, a: len({*living(g, a.city)} & {*ends(g, "member_of", end=a.team)}),
    "language_count": lambda g, a: sum(a.language in languages(g, name) for name in living(g, a.city)),
    "joined_count": lambda g, a: sum(COMPARE[a.after](joined(g, name), a.year) for name in people(g)),
    "two_budgets": lambda g, a: budget(g, a.project) + budget(g, a.other),
    "budget_difference": lambda g, a: budget(g, a.project) - budget(g, a.other),
    "budget_average": lambda g, a: mean([budget(g, a.project), budget(g, a.other)]),
    "who_longer": lambda g, a: one(best([a.person, a.other], lambda name: joined(g, name))),
    "earlier_deadline": lambda g, a: one(best([a.project, a.other], lambda name: note(g, name, "deadline "))),
    "city_first": lambda g, a: one(best(living(g, a.city), lambda name: joined(g, name) * sign(a))),
    "leader_fact": lambda g, a: note(g, one(ends(g, "leads", end=a.project)), PERSON[a.what]),
    "team_day": lambda g, a: note(g, one(ends(g, "member_of", a.person)), "meets every "),
    "project_industry": lambda g, a: note(g, one(ends(g, "commissioned_by", a.project)), CLIENT[a.what]),
    "boss_fact": lambda g, a: note(g, one(ends(g, "reports_to", a.person)), PERSON[a.what]),
    "speaks": lambda g, a: yes(a.language in languages(g, a.person)),
    "client_budget": lambda g, a: sum(budget(g, each) for each in projects_for(g, a.client)),
    "team_first": lambda g, a: one(best(ends(g, "member_of", end=a.team), lambda name: joined(g, name) * sign(a))),
    "works_on_it": lambda g, a: yes(a.project in ends(g, "works_on", a.person)),
    "office_desks": lambda g, a: note(g, one(ends(g, "based_in", one(ends(g, "member_of", a.person)))), *OFFICE[a.what]),
    "client_tools": lambda g, a: {tool for each in projects_for(g, a.client) for tool in ends(g, "uses", each)},
    "client_people": lambda g, a: {name for each in projects_for(g, a.client) for name in ends(g, "works_on", end=each)},
    "more_people": lambda g, a: one(best([a.project, a.other], lambda name: -len(ends(g, "works_on", end=name)))),
    "years_earlier": lambda g, a: joined(g, a.other) - joined(g, a.person),
    "richest_project": lambda g, a: one(best(ends(g, "works_on", a.person), lambda name: budget(g, name) * sign(a))),
    "desks_together": lambda g, a: sum(int(note(g, f"{name} Office", *OFFICE["desks"])) for name in (a.office, a.other)),
}

SERVERS = {"shop": (shop, SHOP, "shop.people.jsonl"), "company": (company, COMPANY, "memory.people.jsonl")}


# Questions of a kind.


def plain(value):
    """A value as a person writes it."""
    if isinstance(value, (float, Decimal)):
        text = f"{Decimal(str(value)):.2f}".rstrip("0").rstrip(".")
        return text
    return str(value)


def answer(values):
    return ", ".join(sorted(map(plain, values), key=lambda text: (len(text) if text.isdigit() else 0, text))) or "none"


def instances(name, kind, database, data, second):
    """All questions of a kind that have one answer: their values, what must be unlike, and the answer."""
    cursor = database.execute(kind["over"])
    keys = [column[0] for column in cursor.description]
    found = {}
    for row in sorted(cursor.fetchall(), key=repr):
        values = dict(zip(keys, row))
        rows = [each[0] for each in database.execute(kind["sql"], values)]
        is_set = kind["check"] == "set"
        if not is_set and len(rows) != 1 or None in rows:
            continue
        expected = answer(rows)
        again = second[name](data, SimpleNamespace(**values))
        if again is None:
            continue
        again = again if isinstance(again, (list, set)) else [again]
        assert answer(again) == expected, f"{name} {values}: {expected}, the second way {answer(again)}"
        told = frozenset(plain(value).lower() for key, value in values.items() if key not in kind.get("hidden", ()))
        candidates = [plain(row[0]) for row in database.execute(kind["candidates"], values)] if "candidates" in kind else []
        candidates = sorted({each for each in candidates if each not in ("None", *expected.split(", "))})
        # Of A and B, and B and A, one.
        unlike = told if kind.get("pair") else tuple(values.items())
        if kind.get("pair") and unlike in found and random.Random(f"{name}{sorted(told)}").random() < 0.5:
            continue
        facts = [(told, expected.lower())]
        if is_set:
            # Who counts the items asks the same.
            facts.append((told, str(len(rows))))
        if "via" in kind:
            ((via,),) = database.execute(kind["via"], values)
            facts.append((frozenset([plain(via).lower()]), expected.lower()))
        found[unlike] = {"values": values, "facts": facts, "answer": expected, "candidates": candidates}
    return list(found.values())


def check_of(kind, expected):
    if expected == "none":
        return "text"
    if kind["check"] == "text" and re.fullmatch(r"\d+", expected):
        return "number"
    return kind["check"]


def plural(product):
    return {"Book Shelf": "Book Shelves", "Chef Knife": "Chef Knives"}.get(product, product + "s")


def worded(template, kind, values, rng):
    def value(match):
        key, how = match[1], match[2]
        given = values[key]
        if how == "+":
            return plural(given)
        if how == "~" and rng.random() < 0.5:
            return NUMBERS[given]
        if key == "month":
            return MONTHS[int(given) - 1]
        return kind.get("words", {}).get(key, {}).get(given, plain(given))

    text = re.sub(r"\[([^]]*)\]", lambda match: rng.choice(match[1].split("|")), template)
    text = re.sub(r"\{(\w+)([~+]?)\}", value, text)
    return re.sub(r"\ba (?=[AEIO](?!u))", "an ", text)


def in_context(text, contexts, rng):
    """With a few words around it; not a text that has its own."""
    if rng.random() >= CONTEXT or len(text) > 110 or re.search(r"[?!]|\. ", text[:-1]) or re.search(r"\b(I|I'm|asks|wants)\b", text):
        return text
    context = rng.choice(contexts)
    return context.format(q=text)


class Wordings:
    """Wordings in turn: of a kind that training has, an old one after a new one."""

    def __init__(self, kind, split, rng):
        self.old = [*kind.get("train", [])]
        self.new = [*kind["exam"]] if split == "exam" else []
        rng.shuffle(self.old)
        rng.shuffle(self.new)
        self.used = Counter()
        self.turn = rng.randrange(2)

    def next(self):
        self.turn += 1
        group = self.new if self.new and (self.turn % 2 or not self.old) else self.old
        self.used[id(group)] += 1
        return group[self.used[id(group)] % len(group)]


class Facts:
    """Which split has a fact. What is looked up on the way is decided beforehand, so that each split has some of it."""

    def __init__(self, people):
        self.split = dict.fromkeys(people, "people")
        self.asked = set(people)

    def divide(self, pool, share, rng):
        facts = sorted({fact for each in pool for fact in each["facts"][1:] if fact not in self.split}, key=lambda fact: (sorted(fact[0]), fact[1]))
        rng.shuffle(facts)
        held = max(1, round(share * len(facts)))
        self.split |= {fact: "exam" if place < held else "train" for place, fact in enumerate(facts)}

    def take(self, each, split):
        """Whether a split may ask this. Of a split too, no two questions have the same values and the same answer."""
        if each["facts"][0] in self.asked or any(self.split.get(fact, split) != split for fact in each["facts"]):
            return False
        self.asked.add(each["facts"][0])
        self.split |= dict.fromkeys(each["facts"], split)
        return True


def chosen(pools, wanted, limit, facts, split):
    """One question of each kind in turn, until there are so many."""
    found = defaultdict(list)
    number = lambda: sum(map(len, found.values()))
    while number() < wanted:
        before = number()
        for name, pool in pools.items():
            if len(found[name]) == limit[name] or number() == wanted:
                continue
            place = next((at for at, each in enumerate(pool) if facts.take(each, split)), None)
            if place is not None:
                found[name].append(pool.pop(place))
        assert number() > before, f"only {before} of {wanted} questions"
    return found


def thinned(pool, kind, rng):
    """A pool in random order, with few questions whose answer is that there is nothing, and with as many yes as no."""
    rng.shuffle(pool)
    most = kind.get("most_none", MOST_NONE)
    nothing = [each for each in pool if each["answer"] in ("0", "none")]
    pool = [each for each in pool if each not in nothing[most:]]
    if kind.get("balanced"):
        groups = [[each for each in pool if each["answer"] == said] for said in ("yes", "no")]
        pool = [each for pair in zip(*groups) for each in pair]
    return pool


def known(server, kinds_values):
    """What the people's questions of ../cells ask: their texts, and the values in them with the answer."""
    tasks = [json.loads(line) for line in (CELLS / SERVERS[server][2]).read_text().splitlines()]
    facts = set()
    for task in tasks:
        text = re.sub(r"[^\w .-]", " ", task["task"].lower())
        told = {value for value in kinds_values if re.search(rf"(?<!\w){re.escape(value)}s?(?!\w)", text)}
        # A number is a value where it stands alone.
        facts.add((frozenset(told), task.get("answer", "").lower()))
    return {task["task"] for task in tasks}, facts


def line(task):
    return json.dumps(task, ensure_ascii=False) + "\n"


def questions(server):
    """The training questions and the exam of a server, and how many of each kind there could be."""
    load, second, _ = SERVERS[server]
    database, data = load()
    kinds = tomllib.loads((HERE / f"{server}.toml").read_text())
    contexts = kinds.pop("context")
    assert kinds.keys() == second.keys(), kinds.keys() ^ second.keys()
    rng = random.Random(f"own {server} 1")
    pools = {name: instances(name, kind, database, data, second) for name, kind in kinds.items()}
    possible = {name: len(pool) for name, pool in pools.items()}
    pools = {name: thinned(pool, kinds[name], rng) for name, pool in pools.items()}
    texts, people = known(server, {value for pool in pools.values() for each in pool for value in each["facts"][0][0]})
    facts = Facts(people)
    # Of a kind, the exam has no larger share than of the whole.
    share = (EXAM - UNSEEN) / (EXAM - UNSEEN + TRAIN)
    new = [name for name, kind in kinds.items() if kind.get("unseen")]
    done = lambda kind: (kind["operation"], tuple(kind["tables"]))
    trained = {done(kind) for name, kind in kinds.items() if name not in new}
    assert not trained & {done(kinds[name]) for name in new}, trained & {done(kinds[name]) for name in new}
    everything = dict.fromkeys(kinds, TRAIN)
    seen = {name: pool for name, pool in pools.items() if name not in new}
    for name in (name for name in seen if "via" in kinds[name]):
        facts.divide(seen[name], share, rng)
    limits = {name: max(1, int(share * len(pool))) for name, pool in seen.items()}
    exam = chosen({name: pools[name] for name in new}, UNSEEN, everything, facts, "exam")
    exam |= chosen(seen, EXAM - UNSEEN, limits, facts, "exam")
    train = chosen(seen, TRAIN, everything, facts, "train")
    files = {}
    for split, picked in (("train", train), ("exam", exam)):
        tasks = []
        for name, found in picked.items():
            wordings = Wordings(kinds[name], split, rng)
            for each in found:
                while True:
                    text = in_context(worded(wordings.next(), kinds[name], each["values"], rng), contexts[split], rng)
                    if text not in texts:
                        break
                texts.add(text)
                check = check_of(kinds[name], each["answer"])
                task = {"task": text, "answer": each["answer"], "check": check}
                if check != "number" and each["candidates"]:
                    task["candidates"] = each["candidates"]
                task |= {"family": f"new: {name}" if name in new else name, "split": "train" if split == "train" else "heldout"}
                tasks.append(task)
        rng.shuffle(tasks)
        files[split] = tasks
    verify(files, train, exam)
    return files, kinds, possible


def verify(files, train, exam):
    texts = [task["task"] for tasks in files.values() for task in tasks]
    assert len({text.lower() for text in texts}) == len(texts) == TRAIN + EXAM, "a question occurs twice"
    facts = lambda picked: {fact for found in picked.values() for each in found for fact in each["facts"]}
    assert not facts(train) & facts(exam), "training and exam have a fact in common"
    families = {task["family"] for task in files["train"]}
    unseen = [task for task in files["exam"] if task["family"] not in families]
    assert len(unseen) == UNSEEN and all(task["family"].startswith("new: ") for task in unseen), len(unseen)
    for tasks in files.values():
        for task in tasks:
            assert not re.search(r"[{}\[\]]", task["task"]), task
            lists = "comma" in task["task"].lower()
            assert task["check"] != "set" or lists, task
            assert task["answer"] != "none" or "none" in task["task"].lower(), task
            assert task["check"] != "number" or "." not in task["answer"] or Decimal(task["answer"]) == rounded(task["answer"], 2), task


def main():
    differ = []
    for server in SERVERS:
        files, kinds, possible = questions(server)
        if sys.argv[1:] == ["--kinds"]:
            counts = {split: Counter(task["family"].removeprefix("new: ") for task in tasks) for split, tasks in files.items()}
            print(f"\n| {server} | operation | tables | possible | train | exam |\n|---|---|---|---|---|---|")
            for name, kind in kinds.items():
                cells = [name, kind["operation"], ", ".join(kind["tables"]), possible[name], counts["train"][name], counts["exam"][name]]
                print("|", " | ".join(map(str, cells)), "|")
            continue
        for split, tasks in files.items():
            path, text = HERE / f"{server}.{split}.jsonl", "".join(map(line, tasks))
            if sys.argv[1:] == ["--check"]:
                differ += [] if path.exists() and path.read_text() == text else [path.name]
            else:
                path.write_text(text)
            print(path.name, len(tasks))
    if differ:
        sys.exit(f"not what make.py writes: {', '.join(differ)}")


if __name__ == "__main__":
    main()
