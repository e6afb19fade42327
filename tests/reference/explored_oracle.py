"""Checks the answers of explored tasks against the raw data of their source.

    python explored_oracle.py FOLDER …              # folders of explored.py: FOLDER/NAME-SEED/tasks/*.parquet
        [--table] [--sample N SEED] [--warnings] [--json FILE]
    python explored_oracle.py --self-test

Of a task it reads what it says, its answer, how answers are compared, and the description of what it asks (column `asks`), never the query.
The answer is computed from the rows of explored/NAME.sql, or by explored/whole.py for a server, and compared strictly: numbers as exact
decimals, sets exactly, texts letter by letter. The exit code is 1 if an answer is wrong. `unsaid` counts tasks whose text does
not name a value of a condition, or names another one, or may mean something else; `loose` those whose answer is a text and is compared as a
number, so that another text passes. Needs pyarrow.
"""

import argparse
import json
import random
import re
import sqlite3
import sys
from collections import Counter, defaultdict
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "explored"
sys.path.insert(0, str(SOURCES))
import whole  # noqa: E402


class Wrong(Exception):
    """The question has no answer, or its description cannot be read."""


# --- Values ---------------------------------------------------------------------------------------------------------


def number(value) -> Decimal | None:
    """A number, also one that is stored as a text."""
    if isinstance(value, bool) or value is None:
        return None
    text = repr(value) if isinstance(value, float) else str(value)
    if not re.fullmatch(r"[-+]?\d+(\.\d+)?([eE][-+]?\d+)?", text.strip()):
        return None
    try:
        return Decimal(text.strip())
    except InvalidOperation:
        return None


def is_number(value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def same(one, other) -> bool:
    """Equal and of one type: 7 is 7.0, the text '07' is no number."""
    if is_number(one) and is_number(other):
        return number(one) == number(other)
    return type(one) is type(other) and one == other


def shown(value) -> str:
    if isinstance(value, Decimal):
        return format(value.normalize(), "f")
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, float) else str(value)


def compared(one, other):
    """Two values in a form that can be compared: as numbers, if both are some, else as texts. A moment counts as its day beside a day."""
    numbers = number(one), number(other)
    if None not in numbers:
        return numbers
    if is_number(one) or is_number(other):
        raise Wrong(f"{one!r} and {other!r} cannot be compared")
    return (one[:10], other) if re.fullmatch(r"\d{4}-\d\d-\d\d", other) else (one, other)


def rank(values: list):
    """The values in a form that can be ordered."""
    numbers = [number(value) for value in values]
    return numbers if None not in numbers else [shown(value) for value in values]


# --- Sources --------------------------------------------------------------------------------------------------------


@cache
def tables(name: str) -> dict[str, list[dict]]:
    """The rows of every table and view. A column is called `table.column`."""
    database = sqlite3.connect(":memory:")
    database.executescript((SOURCES / f"{name}.sql").read_text())
    found = {}
    for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')").fetchall():
        cursor = database.execute('SELECT * FROM "' + table.replace('"', '""') + '"')
        columns = [f"{table}.{column[0]}" for column in cursor.description]
        found[table] = [dict(zip(columns, row)) for row in cursor]
    return found


def table_of(column: str, rows: dict) -> str:
    found = [table for table in rows if column.startswith(f"{table}.")]
    if not found:
        raise Wrong(f"no table has the column {column}")
    return max(found, key=len)


def of_tables(name: str, source: dict) -> list[dict]:
    rows = tables(name)
    if source["table"] not in rows:
        raise Wrong(f"no table {source['table']}")
    records = rows[source["table"]]
    for join in source.get("joins") or []:
        # A table that is there already is joined once more under another name.
        alias, key = join.get("as"), join["key"]
        other = table_of(key, rows) if not alias else join.get("table") or table_of(key, rows)
        if not alias and records and key in records[0]:
            raise Wrong(f"{other} is joined to itself, and its columns have one name")
        by_key = defaultdict(list)
        for row in rows[other]:
            by_key[value_of(row, key)].append({f"{alias}.{column[len(other) + 1:]}": cell for column, cell in row.items()} if alias else row)
        joined = []
        for record in records:
            value = value_of(record, join["column"])
            joined += [record | row for row in by_key[value]] if value is not None else []
        records = joined
    return records


def path(value, steps: str):
    """`address.city` of a record."""
    for step in steps.split(".") if steps else []:
        if isinstance(value, list):
            value = [path(one, step) for one in value]
        elif isinstance(value, dict) and step in value:
            value = value[step]
        else:
            raise Wrong(f"no {step} in the result")
    return value


@cache
def schema(name: str) -> dict[str, list[dict]]:
    """The columns of every table, as the CREATE statements have them."""
    found = {}
    for table, body in re.findall(r'CREATE TABLE "?([\w ]+?)"? \((.*)\);', (SOURCES / f"{name}.sql").read_text()):
        columns = [re.match(r'\s*"?(.+?)"? (INTEGER|TEXT|REAL)', part) for part in re.split(r",(?![^(]*\))", body) if "PRIMARY KEY (" not in part]
        found[table] = [{"name": column[1], "type": column[2]} for column in columns]
    # A column of a view is that of its table.
    for view, base in re.findall(r"CREATE VIEW (\w+) AS SELECT .*? FROM (\w+)", (SOURCES / f"{name}.sql").read_text()):
        columns = [column.split(".", 1)[1] for column in (tables(name)[view] or [{}])[0]]
        types = {column["name"]: column["type"] for column in found[base]}
        found[view] = [{"name": column, "type": types.get(column, "")} for column in columns]
    return found


def tools_of(name: str) -> dict:
    if name in whole.WHOLE:
        return whole.WHOLE[name]
    # Of a database, what its server says of tables and columns.
    return {
        "list_tables": lambda: [{"name": table} for table in schema(name) if f"CREATE VIEW {table} " not in (SOURCES / f"{name}.sql").read_text()],
        "describe_table": lambda table_name: schema(name).get(table_name, []),
    }


def of_tool(name: str, source: dict, task: str, inner: list) -> object:
    tools = tools_of(name)
    if source["tool"] not in tools:
        raise Wrong(f"no tool {source['tool']}")
    arguments, limits = {}, {}
    for key, value in (source.get("arguments") or {}).items():
        if isinstance(value, dict) and "of" in value:
            value = answer_of(name, value["of"], task)[1]
            inner.append(value)
        (limits if key in whole.LIMITS else arguments)[key] = value
    try:
        return path(tools[source["tool"]](**arguments), source.get("list") or "")
    except whole.Unknowable as error:
        raise Wrong(str(error)) from None
    except TypeError as error:
        raise Wrong(f"arguments: {error}") from None


def records_of(name: str, asks: dict, task: str, inner: list) -> list:
    source = asks["source"]
    if "table" in source:
        records = of_tables(name, source)
    else:
        found = of_tool(name, source, task, inner)
        records = found if isinstance(found, list) else [] if found is None else [found]
    return [record for record in records if all(fits(record, condition) for condition in asks.get("where") or [])]


def value_of(record, column):
    """A value of a row or record; the parts of a full name together."""
    if isinstance(column, dict):
        parts = [value_of(record, part) for part in column["concat"]]
        return None if None in parts else " ".join(map(shown, parts))
    if not column:
        return record
    if column in record:
        return record[column]
    if any("." in key for key in record):
        raise Wrong(f"no column {column}")
    return path(record, column)


CONDITIONS = {
    "is": lambda cell, value: same(cell, value),
    "not": lambda cell, value: not same(cell, value),
    "above": lambda cell, value: (lambda one, other: one > other)(*compared(cell, value)),
    "below": lambda cell, value: (lambda one, other: one < other)(*compared(cell, value)),
    "at_least": lambda cell, value: (lambda one, other: one >= other)(*compared(cell, value)),
    "at_most": lambda cell, value: (lambda one, other: one <= other)(*compared(cell, value)),
    "between": lambda cell, pair: CONDITIONS["at_least"](cell, pair[0]) and CONDITIONS["at_most"](cell, pair[1]),
    "month": lambda cell, value: re.match(r"\d{4}-\d\d", cell) is not None and cell.startswith(value),
    "year": lambda cell, value: re.match(r"\d{4}", shown(cell)) is not None and shown(cell).startswith(shown(value)),
    "contains": lambda cell, value: value.lower() in cell.lower(),
    "starts": lambda cell, value: cell.lower().startswith(value.lower()),
}


def fits(record, condition: dict) -> bool:
    cell = value_of(record, condition["column"])
    tests = {key: value for key, value in condition.items() if key != "column"}
    if not tests or set(tests) - set(CONDITIONS) - {"missing"}:
        raise Wrong(f"a condition that is not known: {condition}")
    if "missing" in tests:
        return (cell is None) == tests["missing"]
    return cell is not None and all(CONDITIONS[key](cell, value) for key, value in tests.items())


# --- Operations -----------------------------------------------------------------------------------------------------


def distinct(values: list) -> list:
    found = []
    for value in values:
        if isinstance(value, (list, dict)):
            raise Wrong(f"a value is a list or a record: {value!r}")
        if value is not None and not any(same(value, one) for one in found):
            found.append(value)
    return found


def one_of(values: list, what: str):
    found = distinct(values)
    if len(found) != 1:
        raise Wrong(f"{len(found)} values for {what}")
    return found[0]


def measured(records: list, asks: dict) -> list:
    """The values to add up or compare, without those that are missing."""
    field, times = asks.get("field", ""), asks.get("times")
    values = []
    for record in records:
        pair = [value_of(record, field), value_of(record, times) if times else 1]
        if None not in pair:
            values.append(pair[0] if not times else product(pair))
    return values


def product(pair: list) -> Decimal:
    numbers = [number(value) for value in pair]
    if None in numbers:
        raise Wrong(f"{pair} are no numbers")
    return numbers[0] * numbers[1]


def numbers_of(values: list) -> list[Decimal]:
    numbers = [value if isinstance(value, Decimal) else number(value) for value in values]
    if None in numbers:
        raise Wrong("values that are no numbers")
    if not numbers:
        raise Wrong("no values")
    return numbers


def extreme(pairs: list, largest: bool, what: str):
    """Of pairs of a value and its measure, the value with the largest or smallest measure, if no other has the same."""
    pairs = [pair for pair in pairs if pair[1] is not None]
    if not pairs:
        raise Wrong("no records")
    ranks = rank([measure for _, measure in pairs])
    best = max(ranks) if largest else min(ranks)
    found = [value for (value, _), measure in zip(pairs, ranks) if measure == best]
    if len(found) > 1:
        raise Wrong(f"{len(found)} records have the {what} measure")
    if found[0] is None:
        raise Wrong("the record has no such value")
    return found[0]


def groups_of(records: list, column) -> list[tuple[object, list]]:
    groups: list[tuple[object, list]] = []
    for record in records:
        value = value_of(record, column)
        if value is None:
            continue
        group = next((rows for key, rows in groups if same(key, value)), None)
        if group is None:
            groups.append((value, [record]))
        else:
            group.append(record)
    return groups


def measure_of(records: list, measure):
    if measure == "count":
        return len(records)
    if isinstance(measure, dict) and "total" in measure:
        values = measured(records, {"field": measure["total"], "times": measure.get("times")})
        return sum(numbers_of(values)) if values else None
    raise Wrong(f"a measure that is not known: {measure}")


def answer_of(name: str, asks: dict, task: str):
    """What kind of answer it is (`value`, `set` or `none`), and the answer."""
    operation, source = asks["operation"], asks.get("source") or {}
    if operation == "said":
        return "value", said(asks, task)
    inner: list = []
    if operation == "value":
        return "value", of_tool(name, source, task, inner)
    records = records_of(name, asks, task, inner)
    field, group = asks.get("field", ""), asks.get("group")
    match operation:
        case "field":
            if len(records) != 1:
                raise Wrong(f"{len(records)} records fit")
            value = value_of(records[0], field)
            if value is None:
                raise Wrong("the record has no such value")
            return ("set", distinct(value)) if isinstance(value, list) else ("value", value)
        case "absent":
            return ("none", None) if not records else ("value", value_of(records[0], field) if field else "there is one")
        case "list":
            values = [value_of(record, field) for record in records]
            return "set", distinct([one for value in values for one in (value if isinstance(value, list) else [value])])
        case "count":
            return "value", len(records)
        case "count_distinct":
            return "value", len(distinct([value_of(record, field) for record in records]))
        case "total" | "average":
            numbers = numbers_of(measured(records, asks))
            total = sum(numbers)
            return "value", total if operation == "total" else Fraction(total) / len(numbers)
        case "largest" | "smallest":
            values = distinct(measured(records, asks))
            if not values:
                raise Wrong("no values")
            pick = max if operation == "largest" else min
            return "value", pick(rank(values))
        case "most" | "least":
            return "value", extreme([(value_of(one, field), value_of(one, asks["by"])) for one in records], operation == "most", operation)
        case "most_of" | "least_of":
            measure = asks.get("measure", "count")
            pairs = [(rows, measure_of(rows, measure)) for _, rows in groups_of(records, group)]
            best = extreme(pairs, operation == "most_of", operation)
            return "value", one_of([value_of(one, field or group) for one in best], "the group")
        case "groups":
            sizes = {value: len(rows) for value, rows in groups_of(records, group)}
            passing = [value for value, size in sizes.items() if size > asks.get("more_than", 0) and size >= asks.get("at_least", 0)]
            return "value", len(passing)
        case "without":
            used = [value_of(one, asks["by"]) for one in records]
            rows = tables(name)
            left = [row for row in rows[table_of(asks["of"], rows)] if not any(same(value_of(row, asks["of"]), value) for value in used)]
            return ("set", distinct([value_of(row, field) for row in left])) if field else ("value", len(left))
    raise Wrong(f"an operation that is not known: {operation}")


WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
# Units in a common smaller one.
SCALES = [
    {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86400, "weeks": 604800},
    {"months": 1, "years": 12},
    {"eggs": 1, "dozen": 12},
    {"grams": 1, "kilograms": 1000},
    {"centimetres": 1, "metres": 100, "kilometres": 100000},
    {"millilitres": 1, "litres": 1000},
]


def minutes_of(time: str) -> int:
    hours, minutes = time.split(":")
    return 60 * int(hours) + int(minutes)


def in_unit(many: int, unit: str, other: str) -> Fraction:
    scale = next((scale for scale in SCALES if unit in scale and other in scale), None)
    if scale is None:
        raise Wrong(f"{unit} are not measured in {other}")
    return Fraction(many * scale[unit], scale[other])


# What a task says, in the order of its text, and what follows from it.
SAID = {
    "arithmetic": lambda one, sign, other: {"+": one + other, "-": one - other, "*": one * other, "/": Fraction(one, other)}[sign],
    "percent": lambda percent, of: Fraction(percent * of, 100),
    "convert": in_unit,
    "weekday": lambda day, after: WEEKDAYS[(WEEKDAYS.index(day) + after) % 7],
    "days_between": lambda day, other: (WEEKDAYS.index(other) - WEEKDAYS.index(day)) % 7 or 7,
    "later": lambda now, minutes: "{:02}:{:02}".format(*divmod((minutes_of(now) + minutes) % 1440, 60)),
    "minutes_between": lambda start, end: minutes_of(end) - minutes_of(start),
}
# What a task says of the operation.
SIGNS = {"+": "plus|together|add", "-": "minus|back|old", "*": "times|cost|square|hours at", "/": "evenly"}


def said(asks: dict, task: str):
    kind = next((kind for kind in SAID if kind in asks), None)
    if kind is None:
        raise Wrong("nothing that a task says")
    values = asks[kind]
    for value in values:
        if value not in SIGNS and not whole_word(shown(value), task):
            raise Wrong(f"the task does not say {value}")
    if kind == "arithmetic" and not has(SIGNS[values[1]], task):
        raise Wrong(f"the task does not say {values[1]}")
    numbers = [shown(value) for value in values if value not in SIGNS and re.match(r"\d", shown(value))]
    extra = [number for number in re.findall(r"\d[\d:]*", task) if number.rstrip(":") not in numbers]
    if extra:
        raise Wrong(f"the task says {extra[0]}")
    return SAID[kind](*values)


# --- Comparison -----------------------------------------------------------------------------------------------------


def rounded_right(ours: Decimal, exact, decimals: int) -> bool:
    """Rounded to so many decimals; halves go either way."""
    places = -ours.as_tuple().exponent
    return places <= decimals and abs(Fraction(ours) - Fraction(exact)) <= Fraction(1, 2 * 10**decimals)


def items_of(values: list) -> Counter:
    """Items of a comma-separated text."""
    return Counter(part for value in values for part in shown(value).split(", "))


def is_right(answer: str, check: str, asks: dict, kind: str, value) -> bool:
    if kind == "none":
        return answer == "none"
    if kind == "set":
        return check == "set" and (items_of([answer]) if answer else Counter()) == items_of(value)
    if check == "set" or isinstance(value, (list, dict)):
        return False
    decimals, ours = asks.get("decimals"), number(answer)
    if isinstance(value, (Decimal, Fraction)) or is_number(value):
        if ours is None:
            return False
        if decimals is not None:
            return rounded_right(ours, number(value) if is_number(value) else value, decimals)
        return Fraction(ours) == (Fraction(number(value)) if is_number(value) else Fraction(value))
    # A number may be written in another way only where the value is one.
    return answer == shown(value)


def is_loose(name: str, check: str, asks: dict, value) -> bool:
    """Compared as a number, though it is a text that another number would not mean: 007, +49, 1e5, 1.10 beside 1.1."""
    if check != "number" or not isinstance(value, str) or asks["operation"] == "said":
        return False
    if re.match(r"[+-]?0\d|\+", value) or "e" in value.lower():
        return True
    field, rows = asks.get("field"), tables(name) if (SOURCES / f"{name}.sql").exists() else {}
    if not isinstance(field, str) or not any(field.startswith(f"{table}.") for table in rows):
        return False
    others = {row[field] for row in rows[table_of(field, rows)] if field in row}
    return any(other != value and isinstance(other, str) and number(other) == number(value) for other in others)


# --- What a task says -----------------------------------------------------------------------------------------------

MONTHS = "January February March April May June July August September October November December".split()
YES_OR_NO = {"0", "1", "y", "n", "yes", "no", "true", "false", "t", "f"}


def forms(condition: dict) -> list[list[str]]:
    """For each value of a condition, the ways to say it; none for what a word may stand for."""
    found = []
    for key, value in condition.items():
        if key in ("column", "missing"):
            continue
        for one in value if isinstance(value, list) else [value]:
            text = shown(one)
            if key == "is" and text.lower() in YES_OR_NO:
                continue
            ways = [text]
            if key == "month":
                year, month = text.split("-")
                ways += [f"{MONTHS[int(month) - 1]} {year}", f"{MONTHS[int(month) - 1]} of {year}"]
            elif is_number(one):
                ways += [f"{one:,}", shown(number(one))]
            elif re.fullmatch(r"\d{4}-\d\d-\d\d", text):
                year, month, day = text.split("-")
                ways += [f"{MONTHS[int(month) - 1]} {int(day)}, {year}", f"{int(day)} {MONTHS[int(month) - 1]} {year}"]
            found.append(ways)
    return found


def of_asks(asks: dict):
    """The forms of all values that the task must say."""
    for condition in asks.get("where") or []:
        yield from forms(condition)
    for key, value in ((asks.get("source") or {}).get("arguments") or {}).items():
        if isinstance(value, dict) and "of" in value:
            yield from of_asks(value["of"])
        elif key not in whole.LIMITS:
            yield from forms({"column": key, "is": value})
    for key in ("more_than", "at_least"):
        if key in asks:
            words = {1: ["one", "once"], 2: ["two", "twice"], 3: ["three"], 4: ["four"], 5: ["five"]}
            yield [str(asks[key]), *words.get(asks[key], [])]


def whole_word(text: str, within: str) -> re.Match | None:
    start, end = (r"(?<!\w)" if text[:1].isalnum() else ""), (r"(?!\w)" if text[-1:].isalnum() else "")
    return re.search(start + re.escape(text) + end, within, re.IGNORECASE)


# Words of which a task must have one, by operation and by condition.
MOST = r"largest|highest|most|max|maximum|latest|last|newest|greatest|longest|biggest|youngest|oldest|heaviest|best|top|recent|dearest|farthest"
LEAST = r"smallest|lowest|least|fewest|min|minimum|earliest|first|oldest|shortest|lightest|cheapest|youngest|worst|slowest"
COUNT = r"how many|count|number of|how often|how much"
NEGATIVE = r"no|not|without|never|missing|lacks?|lacking|unknown|empty|any|nothing|except|other than|nobody|isn't|aren't|hasn't|haven't"
WORDS = {
    "count": COUNT,
    "count_distinct": COUNT,
    "total": rf"total|sum|add up|altogether|together|overall|worth|spen[dt]|in all|combined|{COUNT}",
    "average": r"average|mean|typical",
    "largest": MOST,
    "smallest": LEAST,
    "most": MOST,
    "least": LEAST,
    "most_of": MOST,
    "least_of": LEAST,
    "groups": COUNT,
    "without": NEGATIVE,
    "absent": r"none",
    "above": r"more|above|over|after|later|greater|higher|exceeds?|larger|longer|bigger|heavier|beyond",
    "below": r"less|fewer|below|under|before|earlier|smaller|lower|shorter|lighter|cheaper",
    "at_least": r"at least|or more|from|since|or later|on or after|no less|no fewer|or higher|minimum",
    "at_most": r"at most|or less|or fewer|until|by|or earlier|on or before|up to|no more|maximum",
    "more_than": r"more than|over|above",
    "between": r"between|from",
    "not": NEGATIVE,
}


def has(words: str, task: str) -> bool:
    return re.search(rf"(?<![\w])({words})(?![\w])", task, re.IGNORECASE) is not None


def all_asks(asks: dict):
    yield asks
    for value in ((asks.get("source") or {}).get("arguments") or {}).values():
        if isinstance(value, dict) and "of" in value:
            yield from all_asks(value["of"])


def other_words(task: str, asks: dict, rest: str) -> str | None:
    """An operation or a comparison that the task does not say, or a negation that is none."""
    conditions = [condition for one in all_asks(asks) for condition in one.get("where") or []]
    keys = [key for condition in conditions for key in condition] + [asks["operation"]] + [key for key in ("more_than", "at_least") if key in asks]
    for key in keys:
        if key in WORDS and not has(WORDS[key], task):
            return f"does not say {key}"
    missing = [condition["missing"] for condition in conditions if "missing" in condition]
    if True in missing and not has(NEGATIVE, task):
        return "does not say missing"
    if has(WORDS["average"], rest) and asks["operation"] != "average" and "average" not in json.dumps(asks):
        return "says average"
    is_negative = True in missing or "without" in keys or "not" in keys
    no = any(shown(value).lower() in ("0", "n", "no", "false", "f") for condition in conditions for key, value in condition.items() if key == "is")
    plain = re.sub(r"[^.?!,]*\bnone\b[^.?!]*|at least|no more than|no less than|\bno\.", "", rest)
    if not is_negative and not no and asks["operation"] != "absent" and has(r"not|without|never|have no|has no|with no", plain):
        return "says not"
    return None


# How tasks call the two ends of something: `from_account` is the source account.
ENDS = {"from": "from|source|start", "to": "to|target|end"}


def which_reference(name: str, task: str, asks: dict) -> str | None:
    """Of two columns that refer to one table, the task must say which is meant."""
    for join in (asks.get("source") or {}).get("joins") or []:
        if not isinstance(join["column"], str) or (name, join["column"]) not in references():
            continue
        target, table = references()[name, join["column"]], join["column"].rsplit(".", 1)[0]
        rivals = [column for (source, column), other in references().items() if source == name and other == target and column.startswith(f"{table}.")]
        words = lambda column: set(re.findall(r"[a-z]+", column.rsplit(".", 1)[1].lower()))
        for rival in set(rivals) - {join["column"]}:
            own = words(join["column"]) - words(rival) - {"id", "by"}
            if own and not any(has(ENDS.get(word) or (f"{word[:5]}\\w*" if len(word) > 4 else word), task) for word in own):
                return f"does not say which of {join['column']} and {rival}"
    return None


def twin(name: str, asks: dict) -> str | None:
    """A condition on a text of which there is another one in other letters: `gift` and `Gift`."""
    rows = tables(name) if (SOURCES / f"{name}.sql").exists() else {}
    for condition in asks.get("where") or []:
        column, value = condition["column"], condition.get("is")
        if not isinstance(value, str) or not isinstance(column, str) or not any(column.startswith(f"{table}.") for table in rows):
            continue
        for row in rows[table_of(column, rows)]:
            other = row.get(column)
            if isinstance(other, str) and other != value and other.casefold() == value.casefold():
                return f"may mean {other}"
    return None


def other_meaning(name: str, task: str) -> str | None:
    """`open tickets` may be the rows of `open_tickets`, or those of `tickets` with the status `open`, and these differ."""
    return next((f"may mean {view} or {column} {value}" for phrase, view, column, value in named_twice(name) if has(phrase, task)), None)


@cache
def named_twice(name: str) -> list[tuple[str, str, str, str]]:
    rows = tables(name) if (SOURCES / f"{name}.sql").exists() else {}
    found = []
    for view, of_view in rows.items():
        value, _, table = view.partition("_")
        for column in rows[table][0] if rows.get(table) else []:
            same_rows = [row for row in rows[table] if row[column] == value]
            if same_rows and len(same_rows) != len(of_view):
                found.append((f"{value} {table.removesuffix('s')}s?", view, column, value))
    return found


def whose(task: str, asks: dict) -> str | None:
    """`The price` of a booking is not that of its only extra: the list must be named."""
    found = (asks.get("source") or {}).get("list")
    stem = found.rsplit(".", 1)[-1].replace("_", " ")[:-1] if found else ""
    return f"does not say {found}" if stem.lower() not in task.lower() else None


@cache
def references() -> dict[tuple[str, str], str]:
    """The table that a column refers to, as the schema says."""
    found = {}
    for file in SOURCES.glob("*.sql"):
        for table, body in re.findall(r'CREATE TABLE "?([\w ]+?)"? \((.*)\);', file.read_text()):
            for column, target in re.findall(r"(\w+) [A-Z]+(?: [A-Z ]+?)? ?REFERENCES (\w+)", body):
                found[file.stem, f"{table}.{column}"] = target
    return found


def unsaid(name: str, task: str, asks: dict) -> str | None:
    """What the task does not say, or says too much."""
    if asks["operation"] == "said":
        return None
    for one in all_asks(asks):
        for key, value in ((one.get("source") or {}).get("arguments") or {}).items():
            if key in whole.LIMITS and has(key, task) and whole_word(shown(value), task):
                return f"says the {key} {value}"
    rest = task
    for ways in sorted(of_asks(asks), key=lambda ways: -max(map(len, ways))):
        ways = sorted(ways, key=len, reverse=True)
        at = next((found for way in ways if (found := whole_word(way, rest))), None)
        if at:
            rest = rest[: at.start()] + " " + rest[at.end() :]
        # It may have been said together with a value that has it.
        elif not any(whole_word(way, task) for way in ways):
            return f"does not say {ways[-1]}"
    names = " ".join(re.findall(r"[\w.]+", json.dumps(asks, ensure_ascii=False)))
    for extra in re.findall(r"(?<![\w.-])\d[\d.,:-]*\d|(?<![\w.-])\d\b", rest):
        if extra not in names:
            return f"says {extra}"
    extra = re.search(r'"([^"]+)"', rest)
    if extra and extra[1].strip() and extra[1] not in names:
        return f"says {extra[1]}"
    return other_words(task, asks, rest) or which_reference(name, task, asks) or other_meaning(name, task) or twin(name, asks) or whose(task, asks)


# --- Report ---------------------------------------------------------------------------------------------------------


def examine(name: str, row: dict) -> dict:
    """`right`, `wrong` or `without` (a description), with the oracle's answer or why there is none."""
    asks = json.loads(row["asks"]) if row.get("asks") else None
    result = {"source": name, "task": row["task"], "ours": row["answer"], "check": row["check"], "asks": asks}
    if asks is None:
        return result | {"state": "without", "operation": "–"}
    result["operation"] = asks.get("operation", "–")
    try:
        kind, value = answer_of(name, asks, row["task"])
        right = is_right(row["answer"] or "", row["check"], asks, kind, value)
        oracle = "none" if kind == "none" else ", ".join(map(shown, value)) if kind == "set" else f"{float(value)}" if isinstance(value, Fraction) else shown(value)
    except (Wrong, KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        right, oracle = False, f"no answer: {error if isinstance(error, Wrong) else repr(error)}"
    result |= {"state": "right" if right else "wrong", "oracle": oracle}
    loose = result["state"] == "right" and is_loose(name, row["check"], asks, value)
    return result | {"unsaid": unsaid(name, row["task"], asks), "loose": loose}


def rows_of(folder: Path) -> list[dict]:
    import pyarrow.parquet as parquet

    rows = []
    for name in ("start", "train", "heldout"):
        table = parquet.read_table(folder / f"{name}.parquet")
        kept = [column for column in ("id", "task", "answer", "check", "asks") if column in table.column_names]
        rows += table.select(kept).to_pylist()
    return rows


def runs_in(folders: list[Path]) -> list[tuple[str, Path]]:
    runs = [run for folder in folders for run in sorted(folder.glob("*-*")) if (run / "tasks/train.parquet").exists()]
    return [(run.name.rsplit("-", 1)[0], run / "tasks") for run in runs]


COLUMNS = ("tasks", "checked", "wrong", "without", "unsaid", "loose")


def table(results: list[dict], by: str) -> list[str]:
    counts: dict[str, Counter] = defaultdict(Counter)
    for result in results:
        for key in (result[by], "all"):
            counts[key] += Counter({"tasks": 1, "checked": result["state"] != "without", "unsaid": bool(result.get("unsaid")), "loose": bool(result.get("loose"))})
            counts[key][result["state"]] += 1
    lines = [f"| {by} | tasks | checked | wrong | without `asks` | unsaid | loose |", "|---|---|---|---|---|---|---|"]
    for key in sorted(counts, key=lambda key: (key == "all", key)):
        lines.append(f"| {key} | " + " | ".join(str(counts[key][column]) for column in COLUMNS) + " |")
    return lines


def self_test() -> int:
    """Questions that were answered by hand."""
    failures, count = 0, 0
    for line in (SOURCES / "by_hand.jsonl").read_text().splitlines():
        case = json.loads(line)
        row = case | {"asks": json.dumps(case["asks"])}
        found, count = examine(case["source"], row), count + 1
        state = case.get("state", "right")
        if found["state"] != state or any(bool(found[kind]) != case.get(kind, False) for kind in ("unsaid", "loose")):
            failures += 1
            print(f"{case['task']}\n  by hand {case['answer']!r} is {state}; the oracle: {found['oracle']!r}, {found['unsaid']}")
    print(f"{count} by hand, {failures} failures")
    return 1 if failures or not count else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("--table", action="store_true", help="print the tables as Markdown")
    parser.add_argument("--sample", nargs=2, type=int, metavar=("N", "SEED"), help="print N tasks of each source to read")
    parser.add_argument("--warnings", action="store_true", help="print those that are unsaid or loose")
    parser.add_argument("--json", type=Path, help="write all results, one per line")
    given = parser.parse_args()
    if given.self_test:
        return self_test()
    results = [examine(name, row) for name, folder in runs_in(given.folders) for row in rows_of(folder)]
    if not results:
        sys.exit("no tasks: explored.py makes them")
    if given.sample:
        number_of, seed = given.sample
        for name in sorted({result["source"] for result in results}):
            of_source = [result for result in results if result["source"] == name]
            print(f"\n## {name}\n")
            for result in random.Random(seed).sample(of_source, min(number_of, len(of_source))):
                print(f"- {result['task']} → {result['ours']}")
        return 0
    wrong = [result for result in results if result["state"] == "wrong"]
    for result in wrong:
        asks = json.dumps(result["asks"], ensure_ascii=False)
        print(f"WRONG {result['source']}: {result['task']}\n  ours {result['ours']!r} ({result['check']}), the oracle {result['oracle']!r}\n  {asks}")
    if given.warnings:
        for result in results:
            for kind in ("unsaid", "loose"):
                if result.get(kind):
                    print(f"{kind.upper()} {result['source']}: {result['task']}\n  {result[kind]}, {result['ours']}: {json.dumps(result['asks'], ensure_ascii=False)}")
    if given.json:
        given.json.write_text("".join(json.dumps(result, ensure_ascii=False) + "\n" for result in results))
    if given.table or not wrong:
        print("\n".join([*table(results, "source"), "", *table(results, "operation")]))
    print(f"{len(results)} tasks, {len(wrong)} wrong", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
