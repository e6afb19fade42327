"""What the tools of the servers here would give without pages and limits, from their raw data.

`WHOLE[server][tool]` takes the arguments. Of a tool that answers at random or by the clock there is nothing to know.
"""

import json
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIMITS = {"limit", "offset", "page", "after", "last"}


class Unknowable(Exception):
    pass


def data(server: str) -> dict:
    return json.loads((HERE / f"{server}.json").read_text())


def without(record: dict, *keys: str) -> dict:
    return {key: value for key, value in record.items() if key not in keys}


def only(records: list):
    """The one record, or nothing."""
    return records[0] if records else None


def unknowable(**_):
    raise Unknowable("nobody can know what this tool answers")


def parcels():
    raw = data("parcels")
    return {
        "list_parcels": lambda: [without(one, "events") for one in raw["parcels"]],
        "get_parcel": lambda parcel_id: only([one for one in raw["parcels"] if one["parcel_id"] == parcel_id]),
        "parcels_of_sender": lambda sender: [without(one, "events") for one in raw["parcels"] if one["sender"] == sender],
        "list_senders": lambda: raw["senders"],
        "get_depot": lambda depot: only([one for one in raw["depots"] if one["depot"] == depot]),
        "lucky_parcel": unknowable,
        "is_busy": unknowable,
        "minutes_running": unknowable,
    }


def hotel():
    raw = data("hotel")

    def bookings_of_guest(guest_id):
        found = [one for one in raw["bookings"] if one["guest_id"] == guest_id]
        return {"total": len(found), "bookings": found}

    return {
        "list_rooms": lambda: {"rooms": raw["rooms"]},
        "get_room": lambda number: only([one for one in raw["rooms"] if one["number"] == number]),
        "list_guests": lambda: {"guests": raw["guests"]},
        "get_guest": lambda guest_id: only([one for one in raw["guests"] if one["guest_id"] == guest_id]),
        "bookings_of_guest": bookings_of_guest,
        "get_booking": lambda code: only([one for one in raw["bookings"] if one["code"] == code]),
        "free_rooms_tonight": unknowable,
    }


def courses():
    raw = data("courses")

    def students_of_course(course_id):
        numbers = [number for course, number in raw["enrolled"] if course == course_id]
        return [one for one in raw["students"] if one["student_no"] in numbers]

    brief = lambda course, *keys: {key: course[key] for key in keys}
    return {
        "search_courses": lambda query: [
            brief(one, "course_id", "title", "credits") for one in raw["courses"] if str(query).lower() in one["title"].lower()
        ],
        "get_course": lambda course_id: only([one for one in raw["courses"] if one["course_id"] == course_id]),
        "courses_of_teacher": lambda teacher_id: [
            brief(one, "course_id", "title", "credits", "seats", "fee", "starts") for one in raw["courses"] if one["teacher_id"] == teacher_id
        ],
        "list_teachers": lambda: raw["teachers"],
        "students_of_course": students_of_course,
        "course_of_the_day": unknowable,
    }


def devices():
    raw = data("devices")
    return {
        "list_devices": lambda site=None: {"devices": [one for one in raw["devices"] if site in (None, one["site"])]},
        # `load_percent` is random: it is no field here.
        "get_device": lambda device_id: only([one for one in raw["devices"] if one["device_id"] == device_id]),
        "get_readings": lambda device_id: [
            f"{at} | {'' if value is None else value}".rstrip() for device, at, value in raw["readings"] if device == device_id
        ],
        "alerts_of_device": lambda device_id: [one for one in raw["alerts"] if one["device_id"] == device_id],
        "list_sites": lambda: raw["sites"],
        "ping": unknowable,
        "clock": unknowable,
    }


WHOLE = {"parcels": parcels(), "hotel": hotel(), "courses": courses(), "devices": devices()}
